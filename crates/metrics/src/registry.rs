//! The registry of one replica.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::family::Family as Series;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use prometheus_client::registry::Registry;
use std::fmt::Error;
use std::time::Duration;

use crate::calls::{CallLabels, CallSeries, MethodLabel, RefusalLabels};
use crate::decisions::DecisionCounts;
use crate::facts::{QuotaFacts, ReplicaFacts, StateFacts, StrandedFacts, TenantFacts, UsedFacts};
use crate::families;
use crate::rows::{self, Rows, count, truth, units};

/// The media type of what [`ReplicaMetrics::scrape`] makes.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Tenants that have separate series. A thousand of them with three types and quotas are half a MiB.
pub const TENANTS_MAX: usize = 1_000;

/// Bounds of the buckets of durations, in seconds. The promised figures lie on bounds: 5, 10, 50 and 500 ms of a submission,
/// 1 and 2.5 s of a failover.
const BUCKETS_S: [f64; 14] =
    [0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// The same of what takes less than a millisecond where nothing is wrong: flushes, rounds and the agreement of a quorum.
const SHORT_BUCKETS_S: [f64; 16] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

type Durations = Series<MethodLabel, Histogram, fn() -> Histogram>;

/// What one replica counts, and the format in which it is read. Clones share it.
#[derive(Clone, Debug)]
pub struct ReplicaMetrics {
    calls: Series<CallLabels, Counter>,
    seconds: Durations,
    open: Gauge,
    refusals: Series<RefusalLabels, Counter>,
    decisions: DecisionCounts,
    proposals: Histogram,
    flushes: Histogram,
    appended: Counter,
    rounds: Histogram,
}

impl Default for ReplicaMetrics {
    fn default() -> ReplicaMetrics {
        ReplicaMetrics {
            calls: Series::default(),
            seconds: Series::new_with_constructor(|| Histogram::new(BUCKETS_S)),
            open: Gauge::default(),
            refusals: Series::default(),
            decisions: DecisionCounts::default(),
            proposals: Histogram::new(SHORT_BUCKETS_S),
            flushes: Histogram::new(SHORT_BUCKETS_S),
            appended: Counter::default(),
            rounds: Histogram::new(SHORT_BUCKETS_S),
        }
    }
}

impl ReplicaMetrics {
    /// A call has begun.
    pub fn call_begun(&self) {
        self.open.inc();
    }

    /// Exposes these series from now on, at zero.
    pub fn begin_calls(&self, series: CallSeries<'_>) {
        for &method in series.methods {
            for &code in series.codes {
                drop(self.calls.get_or_create(&CallLabels { method, code, bound: "" }));
            }
        }
        series.timed.iter().for_each(|method| drop(self.seconds.get_or_create(&MethodLabel { method })));
        series.refusals.iter().for_each(|labels| drop(self.refusals.get_or_create(labels)));
    }

    /// A call that had begun is over. A stream has no duration that says anything.
    pub fn call_ended(&self, labels: CallLabels, duration: Option<Duration>) {
        self.open.dec();
        self.answered(labels, duration);
    }

    /// A call was answered, or one message of a stream where each has an answer.
    pub fn answered(&self, labels: CallLabels, duration: Option<Duration>) {
        if let Some(duration) = duration {
            let method = MethodLabel { method: labels.method };
            self.seconds.get_or_create(&method).observe(duration.as_secs_f64());
        }
        self.calls.get_or_create(&labels).inc();
    }

    /// How many answers were counted under these labels since the process started.
    #[must_use]
    pub fn answers(&self, labels: &CallLabels) -> u64 {
        self.calls.get(labels).map_or(0, |counter| counter.get())
    }

    /// A call was refused for one of the reasons of the protocol.
    pub fn refused(&self, labels: RefusalLabels) {
        self.refusals.get_or_create(&labels).inc();
    }

    /// A round that this leader proposed is committed and applied.
    pub fn proposal_applied(&self, took: Duration) {
        self.proposals.observe(took.as_secs_f64());
    }

    /// A flush of the log is over.
    pub fn flushed(&self, took: Duration) {
        self.flushes.observe(took.as_secs_f64());
    }

    /// Entries with this number of bytes are durable in the log.
    pub fn appended(&self, bytes: u64) {
        self.appended.inc_by(bytes);
    }

    /// A round was decided.
    pub fn round_decided(&self, took: Duration) {
        self.rounds.observe(took.as_secs_f64());
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
        let appended = families::LOG_APPENDED;
        registry.register(appended.name, appended.help, self.appended.clone());
        self.decisions.register(&mut registry);
        for (family, durations) in [
            (families::PROPOSAL_SECONDS, &self.proposals),
            (families::FLUSH_SECONDS, &self.flushes),
            (families::ROUND_SECONDS, &self.rounds),
        ] {
            registry.register(family.name, family.help, durations.clone());
        }
        registry.register_collector(Box::new(Reading(facts)));
        rows::text(&registry)
    }
}

/// ReplicaFacts of one moment as series.
#[derive(Debug)]
struct Reading(ReplicaFacts);

impl Collector for Reading {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let facts = &self.0;
        let of_itself = replica(facts).into_iter().chain(storage(facts)).chain(rows::process(facts.process));
        let of_the_fleet = fleet(facts).into_iter().chain(tenants(facts));
        for rows in of_itself.chain(of_the_fleet) {
            rows.encode(&mut encoder)?;
        }
        Ok(())
    }
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
        one(families::IS_VOTER, truth(facts.is_voter)),
        one(families::LEADERSHIPS, count(facts.leaderships_recent)),
        one(families::LAST_INDEX, count(facts.last_index)),
        one(families::COMMITTED_INDEX, count(facts.committed_index)),
        one(families::APPLIED_INDEX, count(facts.applied_index)),
        one(families::SNAPSHOT_INDEX, count(facts.snapshot_index)),
        Rows::one(families::LOG_BYTES, facts.log_bytes.map(count)),
        Rows::one(families::LEADER_SILENT, facts.leader_silent_ms.map(units)),
        Rows::one(families::QUORUM_SILENT, facts.quorum_silent_ms.map(units)),
        one(families::REJOINING, truth(facts.is_rejoining)),
        one(families::LOG_INDEX, count(facts.log_index)),
        one(families::LOG_TIME, units(facts.log_time_ms)),
        one(families::FORMAT, count(facts.format)),
        one(families::RECORDS_REJECTED, count(facts.records_rejected)),
        one(families::DECISION_FAULTS, count(facts.decision_faults)),
    ];
    let mut inbox = Rows::new(families::INBOX);
    facts.inbox.iter().for_each(|(lane, commands)| inbox.row([lane], count(*commands)));
    rows.push(inbox);
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
    let mut notifications = Rows::new(families::NOTIFICATIONS);
    facts.notifications.iter().for_each(|(result, events)| notifications.row([*result], count(*events)));
    vec![
        notifications,
        Rows::one(families::NOTIFICATION_LAG, facts.notification_lag_records.map(count)),
        Rows::one(families::STORAGE_FREE, facts.storage_free_bytes.map(count)),
        Rows::one(families::STALLED, facts.stalled_ms.map(units)),
        Rows::one(families::SNAPSHOT_AGE, facts.snapshot_age_ms.map(units)),
        Rows::one(families::ARCHIVE_INDEX, facts.archive_log_index.map(count)),
        Rows::one(families::ARCHIVE_FAILING, Some(truth(facts.archive_is_failing))),
        Rows::one(families::ARCHIVE_OFFLOAD_FAILING, Some(truth(facts.archive_offload_is_failing))),
        Rows::one(families::ARCHIVE_DAMAGED, Some(count(facts.archive_damaged_objects))),
        Rows::one(families::CERTIFICATE_DAYS, facts.certificate_days_left.map(rows::days)),
    ]
}

fn fleet(facts: &ReplicaFacts) -> Vec<Rows<'_>> {
    let mut jobs = Rows::new(families::JOBS);
    jobs.row(["pending"], count(facts.jobs_pending));
    jobs.row(["active"], count(facts.jobs_active));
    jobs.row(["finished"], count(facts.jobs_finished));
    let mut held_back = Rows::new(families::JOBS_PENDING);
    facts.jobs_held_back.iter().for_each(|(reason, jobs)| held_back.row([reason], count(*jobs)));
    let mut nodes = Rows::new(families::NODES);
    nodes.row(["up"], count(facts.nodes_up));
    nodes.row(["lost"], count(facts.nodes_lost));
    let [mut total, mut free, mut idle, mut of_rack, mut price] = [
        families::DEVICES,
        families::DEVICES_FREE,
        families::DEVICES_IDLE,
        families::RACK_IDLE,
        families::DEVICE_PRICE,
    ]
    .map(Rows::new);
    for pool in &facts.pools {
        let labels: [&str; 3] = [&pool.region, &pool.cluster, &pool.kind];
        total.row(labels, count(pool.total));
        free.row(labels, units(pool.free_milli));
        idle.row(labels, count(pool.idle));
        of_rack.row(labels, count(pool.idle_in_one_rack));
        if let Some(micro_dollars) = pool.hourly_micro_dollars {
            price.row(labels, rows::millionths(micro_dollars));
        }
    }
    let mut used = Rows::new(families::DEVICES_USED);
    for UsedFacts { kind, milli } in &facts.used {
        used.row([kind], units(*milli));
    }
    let mut states = Rows::new(families::DEVICES_STATE);
    for StateFacts { region, kind, state, milli } in &facts.states {
        states.row([region, kind, state], units(*milli));
    }
    let mut stranded = Rows::new(families::DEVICES_STRANDED);
    for StrandedFacts { region, kind, cause, milli } in &facts.stranded {
        stranded.row([region, kind, cause], units(*milli));
    }
    let sessions = Rows::one(families::SESSIONS, facts.sessions.map(count));
    let restricted = Rows::one(families::NODES_RESTRICTED, Some(count(facts.nodes_restricted)));
    let pending = Rows::one(families::NODES_PENDING, Some(count(facts.nodes_awaiting_admission)));
    vec![
        jobs, held_back, nodes, restricted, sessions, pending, total, used, states, stranded, free, idle,
        of_rack, price,
    ]
}

fn tenants(facts: &ReplicaFacts) -> Vec<Rows<'_>> {
    let [mut jobs, mut pending, mut share, mut eligible, mut used] = [
        families::TENANT_JOBS,
        families::TENANT_PENDING,
        families::TENANT_SHARE,
        families::TENANT_ELIGIBLE,
        families::TENANT_DEVICES,
    ]
    .map(Rows::new);
    let [mut nominal, mut of_quota, mut borrowed, mut borrowing, mut lending] = [
        families::QUOTA_NOMINAL,
        families::QUOTA_USED,
        families::QUOTA_BORROWED,
        families::QUOTA_BORROWING,
        families::QUOTA_LENDING,
    ]
    .map(Rows::new);
    for TenantFacts {
        tenant,
        pending: waiting,
        held,
        active,
        pending_milli,
        share_billionths,
        eligible_milli,
        used_milli,
        quotas,
    } in facts.tenants.iter().take(TENANTS_MAX)
    {
        jobs.row([tenant, "pending"], count(*waiting));
        jobs.row([tenant, "held"], count(*held));
        jobs.row([tenant, "active"], count(*active));
        pending.row([tenant], units(*pending_milli));
        share.row([tenant], rows::billionths(*share_billionths));
        for (rows, of_kinds) in [(&mut eligible, eligible_milli), (&mut used, used_milli)] {
            for (kind, milli) in of_kinds {
                rows.row([tenant, kind], units(*milli));
            }
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
            borrowed.row(labels, units(used_milli.saturating_sub(*nominal_milli)));
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
    vec![jobs, pending, share, eligible, used, left_out, nominal, of_quota, borrowed, borrowing, lending]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decisions::DecisionLabels;
    use crate::facts::{PoolFacts, ProcessFacts};
    use crate::families::FAMILIES;

    fn everything() -> ReplicaFacts {
        let quota = |kind: &str, limit| QuotaFacts {
            kind: kind.to_owned(),
            nominal_milli: 8_000,
            used_milli: 9_500,
            borrowing_limit_milli: limit,
            lending_limit_milli: limit,
            ..QuotaFacts::default()
        };
        let tenant = TenantFacts {
            tenant: "vision \"lab\"\n".to_owned(),
            pending: 3,
            active: 2,
            share_billionths: 250_000_000,
            eligible_milli: vec![("h100".to_owned(), 8_000)],
            used_milli: vec![("h100".to_owned(), 2_500)],
            quotas: vec![quota("h100", Some(4_000)), quota("a100", None)],
            ..TenantFacts::default()
        };
        ReplicaFacts {
            version: "1.2.3".to_owned(),
            is_leader: true,
            log_bytes: Some(96 << 20),
            leader_silent_ms: Some(1_500),
            quorum_silent_ms: Some(10),
            peer_lag_entries: Some(vec![("2".to_owned(), 7)]),
            tenants: vec![tenant],
            used: vec![UsedFacts { milli: 2_500, ..UsedFacts::default() }],
            states: vec![StateFacts { state: "starting", milli: 1_500, ..StateFacts::default() }],
            stranded: vec![StrandedFacts { cause: "unplaced", milli: 2_500, ..StrandedFacts::default() }],
            sessions: Some(7),
            pools: vec![PoolFacts {
                total: 16,
                free_milli: 5_500,
                idle: 5,
                idle_in_one_rack: 3,
                hourly_micro_dollars: Some(2_500_000),
                ..PoolFacts::default()
            }],
            storage_free_bytes: Some(1 << 40),
            stalled_ms: Some(0),
            snapshot_age_ms: Some(60_000),
            archive_log_index: Some(9),
            notifications: vec![("acknowledged", 4), ("given_up", 1)],
            notification_lag_records: Some(12),
            certificate_days_left: Some(-1),
            process: ProcessFacts {
                resident_bytes: Some(1),
                cpu_ms: Some(1_250),
                open_descriptors: Some(12),
                trace_spans_dropped: 0,
            },
            inbox: vec![("clients", 3), ("nodes", 0)],
            jobs_held_back: vec![("held", 2), ("eligible", 1)],
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
            CallLabels { method: "JobService/GetJob", code: "OK", bound: "" },
            Some(Duration::from_millis(3)),
        );
        metrics.refused(RefusalLabels { reason: "JOB_NOT_FOUND", limit: "" });
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
        metrics.call_ended(CallLabels { method: "JobService/WatchJobs", code: "CANCELLED", bound: "" }, None);
        let text = metrics.scrape(everything());
        let escaped = r#"vision \"lab\"\n"#;
        for (series, wanted) in [
            ("muster_raft_leader_silent_seconds", "1.5"),
            ("muster_raft_log_bytes", "100663296.0"),
            (r#"muster_inbox_commands{lane="clients"}"#, "3.0"),
            (r#"muster_jobs_pending{reason="held"}"#, "2.0"),
            ("process_cpu_seconds_total", "1.25"),
            (r#"muster_raft_peer_lag_entries{replica="2"}"#, "7.0"),
            (r#"muster_accelerators_used{type=""}"#, "2.5"),
            (r#"muster_accelerators_by_state{region="",type="",state="starting"}"#, "1.5"),
            (r#"muster_accelerators_stranded{region="",type="",cause="unplaced"}"#, "2.5"),
            ("muster_sessions", "7.0"),
            (
                &format!(r#"muster_quota_borrowed_accelerators{{tenant="{escaped}",type="h100",region=""}}"#),
                "1.5",
            ),
            (r#"muster_accelerators_free{region="",cluster="",type=""}"#, "5.5"),
            (r#"muster_accelerators_idle_rack{region="",cluster="",type=""}"#, "3.0"),
            ("muster_certificate_days_left", "-1.0"),
            (r#"muster_notifications_total{result="given_up"}"#, "1.0"),
            ("muster_notification_lag_records", "12.0"),
            (r#"muster_build_info{version="1.2.3"}"#, "1"),
            (
                &format!(r#"muster_quota_used_accelerators{{tenant="{escaped}",type="h100",region=""}}"#),
                "9.5",
            ),
            (
                &format!(
                    r#"muster_quota_lending_limit_accelerators{{tenant="{escaped}",type="h100",region=""}}"#
                ),
                "4.0",
            ),
            (&format!(r#"muster_tenant_share{{tenant="{escaped}"}}"#), "0.25"),
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
    fn durations_of_a_leader_have_buckets_below_a_millisecond() {
        let metrics = ReplicaMetrics::default();
        metrics.flushed(Duration::from_micros(350));
        metrics.appended(4_096);
        metrics.appended(512);
        metrics.proposal_applied(Duration::from_millis(3));
        metrics.round_decided(Duration::from_micros(40));
        let text = metrics.scrape(ReplicaFacts::default());
        for (series, wanted) in [
            (r#"muster_storage_flush_duration_seconds_bucket{le="0.00025"}"#, "0"),
            (r#"muster_storage_flush_duration_seconds_bucket{le="0.0005"}"#, "1"),
            ("muster_storage_flush_duration_seconds_sum", "0.00035"),
            ("muster_raft_log_appended_bytes_total", "4608"),
            (r#"muster_raft_proposal_duration_seconds_bucket{le="0.005"}"#, "1"),
            (r#"muster_rounds_duration_seconds_bucket{le="0.0001"}"#, "1"),
        ] {
            assert_eq!(value(&text, series), Some(wanted), "{series} in {text}");
        }
    }

    #[test]
    fn calls_begin_at_zero_and_labels_without_a_value_are_left_out() {
        let metrics = ReplicaMetrics::default();
        let full = RefusalLabels { reason: "STATE_FULL", limit: "jobs_held_max" };
        metrics.begin_calls(CallSeries {
            methods: &["JobService/GetJob", "JobService/SubmitJob"],
            codes: &["OK", "UNAVAILABLE"],
            timed: &["JobService/SubmitJob"],
            refusals: &[full, RefusalLabels { reason: "TOO_STALE", limit: "" }],
        });
        let stale = CallLabels { method: "JobService/GetJob", code: "UNAVAILABLE", bound: "unmet" };
        metrics.answered(stale, Some(Duration::from_millis(3)));
        metrics.refused(full);
        let text = metrics.scrape(ReplicaFacts::default());
        for (series, wanted) in [
            (r#"muster_grpc_calls_total{method="JobService/GetJob",code="OK"}"#, "0"),
            (r#"muster_grpc_calls_total{method="JobService/GetJob",code="UNAVAILABLE"}"#, "0"),
            (r#"muster_grpc_calls_total{method="JobService/GetJob",code="UNAVAILABLE",bound="unmet"}"#, "1"),
            (r#"muster_grpc_calls_total{method="JobService/SubmitJob",code="UNAVAILABLE"}"#, "0"),
            (r#"muster_grpc_call_duration_seconds_count{method="JobService/SubmitJob"}"#, "0"),
            (r#"muster_grpc_call_duration_seconds_count{method="JobService/GetJob"}"#, "1"),
            (r#"muster_grpc_calls_open"#, "0"),
            (r#"muster_refusals_total{reason="TOO_STALE"}"#, "0"),
            (r#"muster_refusals_total{reason="STATE_FULL",limit="jobs_held_max"}"#, "1"),
        ] {
            assert_eq!(value(&text, series), Some(wanted), "{series} in {text}");
        }
    }

    #[test]
    fn decisions_begin_at_zero_and_waits_have_their_buckets() {
        let metrics = ReplicaMetrics::default();
        let decisions = metrics.decisions();
        decisions.begin(DecisionLabels {
            tiers: &["batch", "production"],
            stop_causes: &["preempted", "cancelled"],
            failure_classes: &[],
            outcomes: &[],
            loss_causes: &[],
        });
        decisions.submitted("batch", 3);
        decisions.placed("batch", Duration::from_secs(90));
        decisions.started("production", Duration::from_millis(300));
        decisions.ended("preempted", Duration::from_secs(20));
        let text = metrics.scrape(ReplicaFacts::default());
        for (series, wanted) in [
            (r#"muster_jobs_submitted_total{tier="batch"}"#, "3"),
            (r#"muster_jobs_submitted_total{tier="production"}"#, "0"),
            (r#"muster_gangs_stopped_total{cause="preempted"}"#, "0"),
            (r#"muster_job_queue_duration_seconds_bucket{le="60.0",tier="batch"}"#, "0"),
            (r#"muster_job_queue_duration_seconds_bucket{le="300.0",tier="batch"}"#, "1"),
            (r#"muster_job_start_duration_seconds_count{tier="production"}"#, "1"),
            (r#"muster_job_start_duration_seconds_count{tier="batch"}"#, "0"),
            (r#"muster_gang_stop_duration_seconds_bucket{le="15.0",cause="preempted"}"#, "0"),
            (r#"muster_gang_stop_duration_seconds_bucket{le="60.0",cause="preempted"}"#, "1"),
            (r#"muster_gang_stop_duration_seconds_count{cause="cancelled"}"#, "0"),
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
