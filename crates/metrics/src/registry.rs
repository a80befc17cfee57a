//! The registry of one replica.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text::encode};
use prometheus_client::metrics::family::Family as Series;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, counter::Counter, gauge::Gauge};
use prometheus_client::registry::Registry;
use std::fmt::Error;
use std::time::Duration;

use crate::calls::{CallLabels, MethodLabel, ReasonLabel};
use crate::decisions::DecisionCounts;
use crate::facts::{QuotaFacts, ReplicaFacts, TenantFacts};
use crate::families::{self, Family, Kind};

/// The media type of what [`ReplicaMetrics::scrape`] makes.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Tenants that have separate series. A thousand of them with three types and quotas are half a MiB.
pub const TENANTS_MAX: usize = 1_000;

/// Bounds of the buckets of durations, in seconds. The promised figures lie on bounds: 5, 10, 50 and 500 ms of a submission,
/// 1 and 2.5 s of a failover.
const BUCKETS_S: [f64; 14] =
    [0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

type Durations = Series<MethodLabel, Histogram, fn() -> Histogram>;

/// What one replica counts, and the format in which it is read. Clones share it.
#[derive(Clone, Debug)]
pub struct ReplicaMetrics {
    calls: Series<CallLabels, Counter>,
    seconds: Durations,
    open: Gauge,
    refusals: Series<ReasonLabel, Counter>,
    decisions: DecisionCounts,
}

impl Default for ReplicaMetrics {
    fn default() -> ReplicaMetrics {
        ReplicaMetrics {
            calls: Series::default(),
            seconds: Series::new_with_constructor(|| Histogram::new(BUCKETS_S)),
            open: Gauge::default(),
            refusals: Series::default(),
            decisions: DecisionCounts::default(),
        }
    }
}

impl ReplicaMetrics {
    /// A call has begun.
    pub fn call_begun(&self) {
        self.open.inc();
    }

    /// A call that had begun is over. A stream has no duration that says anything.
    pub fn call_ended(&self, labels: CallLabels, duration: Option<Duration>) {
        self.open.dec();
        if let Some(duration) = duration {
            let method = MethodLabel { method: labels.method };
            self.seconds.get_or_create(&method).observe(duration.as_secs_f64());
        }
        self.calls.get_or_create(&labels).inc();
    }

    /// A call was refused for one of the reasons of the protocol.
    pub fn refused(&self, reason: &'static str) {
        self.refusals.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// What is counted of the decisions that this replica applies.
    #[must_use]
    pub fn decisions(&self) -> &DecisionCounts {
        &self.decisions
    }

    /// Everything in the text format, with these facts.
    #[must_use]
    pub fn scrape(&self, facts: ReplicaFacts) -> String {
        let mut registry = Registry::default();
        let [calls, seconds, open, refusals] =
            [families::CALLS, families::CALL_SECONDS, families::CALLS_OPEN, families::REFUSALS];
        registry.register(calls.name, calls.help, self.calls.clone());
        registry.register(seconds.name, seconds.help, self.seconds.clone());
        registry.register(open.name, open.help, self.open.clone());
        registry.register(refusals.name, refusals.help, self.refusals.clone());
        self.decisions.register(&mut registry);
        registry.register_collector(Box::new(Reading(facts)));
        let mut text = String::new();
        // Writing into a string cannot fail.
        if encode(&mut text, &registry).is_err() {
            text.clear();
        }
        text
    }
}

/// Series of one family: label values and the value, where it is known.
struct Rows<'a> {
    family: Family,
    rows: Vec<(Vec<&'a str>, f64)>,
}

impl<'a> Rows<'a> {
    fn new(family: Family) -> Rows<'a> {
        Rows { family, rows: Vec::new() }
    }

    fn one(family: Family, value: Option<f64>) -> Rows<'a> {
        Rows { family, rows: value.into_iter().map(|value| (Vec::new(), value)).collect() }
    }

    fn row<const N: usize>(&mut self, labels: [&'a str; N], value: f64) {
        self.rows.push((labels.to_vec(), value));
    }

    fn encode(&self, encoder: &mut DescriptorEncoder) -> Result<(), Error> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let Family { name, kind, labels, help } = self.family;
        let shown = match kind {
            Kind::Counter => MetricType::Counter,
            Kind::Info => MetricType::Info,
            Kind::Gauge | Kind::Histogram => MetricType::Gauge,
        };
        let mut series = encoder.encode_descriptor(name, help, None, shown)?;
        for (values, value) in &self.rows {
            let pairs: Vec<(&str, &str)> = labels.iter().copied().zip(values.iter().copied()).collect();
            if kind == Kind::Info {
                series.encode_info(&pairs)?;
            } else if pairs.is_empty() {
                encode_value(kind, *value, &mut series)?;
            } else {
                encode_value(kind, *value, &mut series.encode_family(&pairs)?)?;
            }
        }
        Ok(())
    }
}

fn encode_value(kind: Kind, value: f64, encoder: &mut MetricEncoder<'_>) -> Result<(), Error> {
    match kind {
        Kind::Counter => encoder.encode_counter::<NoLabelSet, _, u64>(&value, None),
        _ => encoder.encode_gauge(&value),
    }
}

/// ReplicaFacts of one moment as series.
#[derive(Debug)]
struct Reading(ReplicaFacts);

impl Collector for Reading {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let facts = &self.0;
        let of_itself = replica(facts).into_iter().chain(storage(facts)).chain(process(facts));
        let of_the_fleet = fleet(facts).into_iter().chain(tenants(facts));
        for rows in of_itself.chain(of_the_fleet) {
            rows.encode(&mut encoder)?;
        }
        Ok(())
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the text format has floating point values; 2^53 is exact enough"
)]
fn count(value: u64) -> f64 {
    value as f64
}

fn truth(value: bool) -> f64 {
    f64::from(u8::from(value))
}

/// Thousandths as units.
fn units(milli: u64) -> f64 {
    count(milli) / 1_000.0
}

fn replica(facts: &ReplicaFacts) -> Vec<Rows<'_>> {
    let one = |family, value: f64| Rows::one(family, Some(value));
    let mut build = Rows::new(families::BUILD);
    build.row([&facts.version], 1.0);
    let mut rows = vec![
        build,
        one(families::IS_LEADER, truth(facts.is_leader)),
        one(families::HAS_LEADER, truth(facts.has_leader)),
        one(families::TERM, count(facts.term)),
        one(families::VOTERS, count(facts.voters)),
        one(families::LEADERSHIPS, count(facts.leaderships_recent)),
        one(families::LAST_INDEX, count(facts.last_index)),
        one(families::COMMITTED_INDEX, count(facts.committed_index)),
        one(families::APPLIED_INDEX, count(facts.applied_index)),
        one(families::SNAPSHOT_INDEX, count(facts.snapshot_index)),
        Rows::one(families::LEADER_SILENT, facts.leader_silent_ms.map(units)),
        Rows::one(families::QUORUM_SILENT, facts.quorum_silent_ms.map(units)),
        one(families::REJOINING, truth(facts.is_rejoining)),
        one(families::LOG_INDEX, count(facts.log_index)),
        one(families::LOG_TIME, units(facts.log_time_ms)),
        one(families::FORMAT, count(facts.format)),
        one(families::RECORDS_REJECTED, count(facts.records_rejected)),
    ];
    if let Some(lags) = &facts.peer_lag_entries {
        let mut rows_of_peers = Rows::new(families::PEER_LAG);
        for (replica, entries) in lags {
            rows_of_peers.row([replica], count(*entries));
        }
        rows.push(rows_of_peers);
    }
    rows
}

fn storage(facts: &ReplicaFacts) -> Vec<Rows<'_>> {
    vec![
        Rows::one(families::STORAGE_FREE, facts.storage_free_bytes.map(count)),
        Rows::one(families::FLUSH, facts.flush_us.map(|us| count(us) / 1e6)),
        Rows::one(families::STALLED, facts.stalled_ms.map(units)),
        Rows::one(families::SNAPSHOT_AGE, facts.snapshot_age_ms.map(units)),
        Rows::one(families::ARCHIVE_INDEX, facts.archive_log_index.map(count)),
        Rows::one(families::ARCHIVE_FAILING, Some(truth(facts.archive_is_failing))),
        Rows::one(families::ARCHIVE_DAMAGED, Some(count(facts.archive_damaged_objects))),
        Rows::one(families::CERTIFICATE_DAYS, facts.certificate_days_left.map(|days| days as f64)),
    ]
}

fn process(facts: &ReplicaFacts) -> Vec<Rows<'_>> {
    vec![
        Rows::one(families::RESIDENT, facts.resident_bytes.map(count)),
        Rows::one(families::CPU, facts.cpu_ms.map(units)),
        Rows::one(families::DESCRIPTORS, facts.open_descriptors.map(count)),
    ]
}

fn fleet(facts: &ReplicaFacts) -> Vec<Rows<'_>> {
    let mut jobs = Rows::new(families::JOBS);
    jobs.row(["pending"], count(facts.jobs_pending));
    jobs.row(["active"], count(facts.jobs_active));
    jobs.row(["finished"], count(facts.jobs_finished));
    let mut nodes = Rows::new(families::NODES);
    nodes.row(["up"], count(facts.nodes_up));
    nodes.row(["lost"], count(facts.nodes_lost));
    let [mut total, mut free, mut idle] =
        [families::DEVICES, families::DEVICES_FREE, families::DEVICES_IDLE].map(Rows::new);
    for pool in &facts.pools {
        let labels: [&str; 3] = [&pool.region, &pool.cluster, &pool.kind];
        total.row(labels, count(pool.total));
        free.row(labels, units(pool.free_milli));
        idle.row(labels, count(pool.idle));
    }
    let restricted = Rows::one(families::NODES_RESTRICTED, Some(count(facts.nodes_restricted)));
    let pending = Rows::one(families::NODES_PENDING, Some(count(facts.nodes_awaiting_admission)));
    vec![jobs, nodes, restricted, pending, total, free, idle]
}

fn tenants(facts: &ReplicaFacts) -> Vec<Rows<'_>> {
    let [mut jobs, mut pending, mut used] =
        [families::TENANT_JOBS, families::TENANT_PENDING, families::TENANT_DEVICES].map(Rows::new);
    let [mut nominal, mut of_quota, mut borrowing, mut lending] =
        [families::QUOTA_NOMINAL, families::QUOTA_USED, families::QUOTA_BORROWING, families::QUOTA_LENDING]
            .map(Rows::new);
    for TenantFacts { tenant, pending: waiting, held, active, pending_milli, used_milli, quotas } in
        facts.tenants.iter().take(TENANTS_MAX)
    {
        jobs.row([tenant, "pending"], count(*waiting));
        jobs.row([tenant, "held"], count(*held));
        jobs.row([tenant, "active"], count(*active));
        pending.row([tenant], units(*pending_milli));
        for (kind, milli) in used_milli {
            used.row([tenant, kind], units(*milli));
        }
        for QuotaFacts {
            kind,
            region,
            nominal_milli,
            used_milli,
            borrowing_limit_milli,
            lending_limit_milli,
        } in quotas
        {
            let labels: [&str; 3] = [tenant, kind, region];
            nominal.row(labels, units(*nominal_milli));
            of_quota.row(labels, units(*used_milli));
            for (rows, limit) in
                [(&mut borrowing, borrowing_limit_milli), (&mut lending, lending_limit_milli)]
            {
                if let Some(milli) = limit {
                    rows.row(labels, units(*milli));
                }
            }
        }
    }
    let left_out = Rows::one(families::TENANTS_LEFT_OUT, Some(truth(facts.leaves_tenants_out)));
    vec![jobs, pending, used, left_out, nominal, of_quota, borrowing, lending]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decisions::DecisionLabels;
    use crate::facts::PoolFacts;
    use crate::families::FAMILIES;

    fn everything() -> ReplicaFacts {
        let quota = |kind: &str, limit| QuotaFacts {
            kind: kind.to_owned(),
            nominal_milli: 8_000,
            used_milli: 2_500,
            borrowing_limit_milli: limit,
            lending_limit_milli: limit,
            ..QuotaFacts::default()
        };
        let tenant = TenantFacts {
            tenant: "vision \"lab\"\n".to_owned(),
            pending: 3,
            active: 2,
            used_milli: vec![("h100".to_owned(), 2_500)],
            quotas: vec![quota("h100", Some(4_000)), quota("a100", None)],
            ..TenantFacts::default()
        };
        ReplicaFacts {
            version: "1.2.3".to_owned(),
            is_leader: true,
            leader_silent_ms: Some(1_500),
            quorum_silent_ms: Some(10),
            peer_lag_entries: Some(vec![("2".to_owned(), 7)]),
            tenants: vec![tenant],
            pools: vec![PoolFacts { total: 16, free_milli: 5_500, idle: 5, ..PoolFacts::default() }],
            storage_free_bytes: Some(1 << 40),
            flush_us: Some(350),
            stalled_ms: Some(0),
            snapshot_age_ms: Some(60_000),
            archive_log_index: Some(9),
            certificate_days_left: Some(-1),
            resident_bytes: Some(1),
            cpu_ms: Some(1_250),
            open_descriptors: Some(12),
            ..ReplicaFacts::default()
        }
    }

    fn value<'a>(text: &'a str, series: &str) -> Option<&'a str> {
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
    }

    #[test]
    fn every_family_of_the_table_is_exposed_once_and_no_other() {
        let metrics = ReplicaMetrics::default();
        metrics.call_begun();
        metrics.call_ended(
            CallLabels { method: "JobService/GetJob", code: "OK" },
            Some(Duration::from_millis(3)),
        );
        metrics.refused("JOB_NOT_FOUND");
        let decisions = metrics.decisions();
        decisions.record("gang_placed");
        decisions.begin(DecisionLabels {
            tiers: &["standard"],
            stop_causes: &["preempted"],
            failure_classes: &["application"],
            outcomes: &["succeeded"],
            loss_causes: &["lease_expired"],
        });
        let text = metrics.scrape(everything());
        let described = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        let mut described: Vec<&str> = described.collect();
        let mut wanted: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        described.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(described, wanted);
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn values_are_in_base_units_and_texts_cannot_break_the_format() {
        let metrics = ReplicaMetrics::default();
        metrics.call_begun();
        metrics.call_begun();
        metrics.call_ended(CallLabels { method: "JobService/WatchJobs", code: "CANCELLED" }, None);
        let text = metrics.scrape(everything());
        let escaped = r#"vision \"lab\"\n"#;
        for (series, wanted) in [
            ("muster_raft_leader_silent_seconds", "1.5"),
            ("muster_storage_flush_seconds", "0.00035"),
            ("process_cpu_seconds_total", "1.25"),
            (r#"muster_raft_peer_lag_entries{replica="2"}"#, "7.0"),
            (r#"muster_accelerators_free{region="",cluster="",type=""}"#, "5.5"),
            ("muster_certificate_days_left", "-1.0"),
            (r#"muster_build_info{version="1.2.3"}"#, "1"),
            (
                &format!(r#"muster_quota_used_accelerators{{tenant="{escaped}",type="h100",region=""}}"#),
                "2.5",
            ),
            (
                &format!(
                    r#"muster_quota_lending_limit_accelerators{{tenant="{escaped}",type="h100",region=""}}"#
                ),
                "4.0",
            ),
            ("muster_grpc_calls_open", "1"),
            (r#"muster_grpc_calls_total{method="JobService/WatchJobs",code="CANCELLED"}"#, "1"),
        ] {
            assert_eq!(value(&text, series), Some(wanted), "{series} in {text}");
        }
        let without_limit =
            format!(r#"muster_quota_lending_limit_accelerators{{tenant="{escaped}",type="a100""#);
        assert!(!text.contains(&without_limit), "{text}");
        assert!(!text.contains("muster_grpc_call_duration_seconds_count"), "a stream has no duration");
    }

    #[test]
    fn decisions_begin_at_zero_and_waits_have_their_buckets() {
        let metrics = ReplicaMetrics::default();
        let decisions = metrics.decisions();
        decisions.begin(DecisionLabels {
            tiers: &["batch", "production"],
            stop_causes: &["preempted"],
            failure_classes: &[],
            outcomes: &[],
            loss_causes: &[],
        });
        decisions.submitted("batch", 3);
        decisions.placed("batch", Duration::from_secs(90));
        decisions.started("production", Duration::from_millis(300));
        let text = metrics.scrape(ReplicaFacts::default());
        for (series, wanted) in [
            (r#"muster_jobs_submitted_total{tier="batch"}"#, "3"),
            (r#"muster_jobs_submitted_total{tier="production"}"#, "0"),
            (r#"muster_gangs_stopped_total{cause="preempted"}"#, "0"),
            (r#"muster_job_queue_duration_seconds_bucket{le="60.0",tier="batch"}"#, "0"),
            (r#"muster_job_queue_duration_seconds_bucket{le="300.0",tier="batch"}"#, "1"),
            (r#"muster_job_start_duration_seconds_count{tier="production"}"#, "1"),
            (r#"muster_job_start_duration_seconds_count{tier="batch"}"#, "0"),
        ] {
            assert_eq!(value(&text, series), Some(wanted), "{series} in {text}");
        }
    }

    #[test]
    fn tenants_beyond_the_bound_have_no_series_and_it_is_said() {
        let named = |at: usize| TenantFacts { tenant: format!("tenant-{at}"), ..TenantFacts::default() };
        let tenants = (0..=TENANTS_MAX).map(named).collect();
        let facts = ReplicaFacts { tenants, leaves_tenants_out: true, ..ReplicaFacts::default() };
        let text = ReplicaMetrics::default().scrape(facts);
        assert_eq!(text.matches("muster_tenant_pending_accelerators{").count(), TENANTS_MAX);
        assert_eq!(value(&text, "muster_tenants_left_out"), Some("1.0"));
        assert!(text.len() < 1 << 20, "{} bytes", text.len());
    }
}
