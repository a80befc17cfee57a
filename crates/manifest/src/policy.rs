//! Policy files: YAML in, a `Policy` message out.
//!
//! `apiVersion: muster.dev/v1`, `kind: Policy`. Devices, weights and dollars are written as such and sent
//! as thousandths and millionths. `muster policy show -o yaml` prints what is read here; its
//! `metadata.version` then is what `muster policy set` expects to replace.

use std::collections::{BTreeMap, HashMap};

use muster_types::{PriorityTier, Violation, policy};
use muster_wire::v1::window::Purpose;
use muster_wire::{convert, v1};
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::reader::{API_VERSION, Reader, structure, with_rules};
use super::shape::Text;
use super::{ManifestError, PROBLEMS_MAX, Problem, line_of, quantity, text};

const KIND: &str = "Policy";

/// The policy of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyFile {
    /// What is sent.
    pub message: v1::Policy,
    /// The version it was made from, when it says so.
    pub version: Option<u64>,
    lines: BTreeMap<String, u64>,
    first_line: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Document {
    api_version: Option<Text>,
    kind: Option<Text>,
    metadata: Option<Metadata>,
    spec: Option<Spec>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Metadata {
    version: Option<Text>,
    set_time: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Spec {
    tenants: Option<BTreeMap<String, Option<Tenant>>>,
    order: Option<Order>,
    backfill: Option<Backfill>,
    preemption: Option<Preemption>,
    weights: Option<Weights>,
    prices: Option<Vec<Spanned<Price>>>,
    datasets: Option<BTreeMap<String, Dataset>>,
    transfers: Option<Vec<Spanned<Transfer>>>,
    spare_hosts_per_rack: Option<BTreeMap<String, Text>>,
    windows: Option<Vec<Spanned<Window>>>,
    isolation: Option<Isolation>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Isolation {
    require: Option<Vec<Text>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Tenant {
    parent: Option<Text>,
    weight: Option<Text>,
    quotas: Option<Vec<Spanned<Quota>>>,
    rights: Option<Rights>,
    limits: Option<Limits>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Limits {
    pending_jobs: Option<Text>,
    unfinished_jobs: Option<Text>,
    running_jobs: Option<Text>,
    requests_per_minute: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Rights {
    tier_max: Option<Text>,
    non_preemptible: Option<Text>,
    deadlines: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Quota {
    r#type: Option<Text>,
    region: Option<Text>,
    nominal: Option<Text>,
    borrowing_limit: Option<Text>,
    lending_limit: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Order {
    by: Option<Text>,
    fair_share: Option<Text>,
    usage_half_life: Option<Text>,
    ageing: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Backfill {
    reservations: Option<Text>,
    depth: Option<Text>,
    reserve_after: Option<Text>,
    reserve_after_runs: Option<Text>,
    end_overrunners: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Preemption {
    enabled: Option<Text>,
    reclaim_borrowed: Option<Text>,
    minimum_run: Option<Text>,
    victims: Option<Text>,
    defragment: Option<Text>,
    defragment_wait: Option<Text>,
    backoff: Option<Text>,
    stopping_timeout: Option<Text>,
    starting_timeout: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Weights {
    packing: Option<Text>,
    throughput: Option<Text>,
    cost: Option<Text>,
    data: Option<Text>,
    topology: Option<Text>,
    spread: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Price {
    r#type: Option<Text>,
    region: Option<Text>,
    per_device_hour: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Dataset {
    size: Option<Text>,
    regions: Option<Vec<Text>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Transfer {
    from: Option<Text>,
    to: Option<Text>,
    per_gib: Option<Text>,
    bytes_per_second: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Window {
    name: Option<Text>,
    start_time: Option<Text>,
    end_time: Option<Text>,
    scope: Option<Scope>,
    maintenance: Option<Text>,
    reserved_for: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Scope {
    region: Option<Text>,
    cluster: Option<Text>,
    block: Option<Text>,
    rack: Option<Text>,
    node: Option<Text>,
}

/// Reads a policy file. `now_ms` is what times like `+2h` count from, since the Unix epoch.
pub fn parse_policy(bytes: &[u8], now_ms: u64) -> Result<PolicyFile, ManifestError> {
    let documents: Vec<Spanned<Document>> =
        serde_saphyr::from_multiple(text(bytes)?).map_err(|error| ManifestError(vec![structure(&error)]))?;
    let mut documents = documents.into_iter();
    let (Some(document), None) = (documents.next(), documents.next()) else {
        return Err(ManifestError::whole("the file must hold one document, of kind: Policy"));
    };
    let mut problems = Vec::new();
    let mut reader = Reader::new(&mut problems, now_ms);
    let first_line = document.referenced.line();
    let (message, version) = reader.policy_document(document.value);
    let (lines, unknown_words) = (reader.lines, reader.unknown_words);
    let file = PolicyFile { message, version, lines, first_line };
    let problems = with_rules(problems, unknown_words, || file.check());
    if problems.is_empty() { Ok(file) } else { Err(ManifestError(problems)) }
}

impl Reader<'_> {
    fn policy_document(&mut self, document: Document) -> (v1::Policy, Option<u64>) {
        self.constant("apiVersion", document.api_version, API_VERSION);
        self.constant("kind", document.kind, KIND);
        let metadata = document.metadata.unwrap_or_default();
        let version = self.value("metadata.version", metadata.version, quantity::index);
        // Only shown, never set.
        let _ = self.text("metadata.setTime", metadata.set_time);
        let Some(spec) = document.spec else {
            self.problem(None, "spec", "must be given; {} is a policy of nothing but defaults");
            return (v1::Policy::default(), version);
        };
        (self.policy(spec), version)
    }

    fn policy(&mut self, spec: Spec) -> v1::Policy {
        let mut tenants = HashMap::new();
        for (name, tenant) in spec.tenants.unwrap_or_default() {
            let tenant = self.tenant(&format!("spec.tenants.{}", short(&name)), tenant.unwrap_or_default());
            tenants.insert(name, tenant);
        }
        let mut datasets = HashMap::new();
        for (name, dataset) in spec.datasets.unwrap_or_default() {
            let at = format!("spec.datasets.{}", short(&name));
            let bytes = self.value(&format!("{at}.size"), dataset.size, quantity::memory_bytes);
            let regions = self.list(&format!("{at}.regions"), dataset.regions.unwrap_or_default());
            datasets.insert(name, v1::Dataset { bytes: bytes.unwrap_or_default(), regions });
        }
        let mut spare_hosts_per_rack = HashMap::new();
        for (kind, hosts) in spec.spare_hosts_per_rack.unwrap_or_default() {
            let field = format!("spec.spareHostsPerRack.{}", short(&kind));
            let hosts = self.value(&field, Some(hosts), quantity::count).unwrap_or_default();
            spare_hosts_per_rack.insert(kind, hosts);
        }
        v1::Policy {
            tenants,
            order: spec.order.map(|order| self.order(order)),
            backfill: spec.backfill.map(|backfill| self.backfill(backfill)),
            preemption: spec.preemption.map(|preemption| self.preemption(preemption)),
            weights: spec.weights.map(|weights| self.weights(weights)),
            prices: self.each("spec.prices", spec.prices, Self::price),
            datasets,
            transfers: self.each("spec.transfers", spec.transfers, Self::transfer),
            spare_hosts_per_rack,
            windows: self.each("spec.windows", spec.windows, Self::window),
            isolation: spec.isolation.map(|isolation| v1::IsolationPolicy {
                require: self.isolation(isolation.require.unwrap_or_default()),
            }),
        }
    }

    fn isolation(&mut self, words: Vec<Text>) -> Vec<i32> {
        let read = |(index, text)| {
            let field = format!("spec.isolation.require[{index}]");
            self.closed::<policy::Guarantee>(&field, Some(text))
        };
        words.into_iter().enumerate().map(read).collect()
    }

    /// The items of a list, each read with its path.
    fn each<T, M>(
        &mut self,
        at: &str,
        items: Option<Vec<Spanned<T>>>,
        read: impl Fn(&mut Self, &str, T) -> M,
    ) -> Vec<M> {
        let mut messages = Vec::new();
        for (index, item) in items.unwrap_or_default().into_iter().enumerate() {
            let at = format!("{at}[{index}]");
            self.place(&at, item.referenced);
            messages.push(read(self, &at, item.value));
        }
        messages
    }

    fn tenant(&mut self, at: &str, tenant: Tenant) -> v1::TenantPolicy {
        v1::TenantPolicy {
            parent: self.text(&format!("{at}.parent"), tenant.parent),
            weight_milli: self.above_zero(
                &format!("{at}.weight"),
                tenant.weight,
                quantity::milli_small,
                "leave it out for the ordinary share, 1",
            ),
            quotas: self.each(&format!("{at}.quotas"), tenant.quotas, Self::quota),
            rights: tenant.rights.map(|rights| self.rights(&format!("{at}.rights"), rights)),
            limits: tenant.limits.map(|limits| self.limits(&format!("{at}.limits"), limits)),
        }
    }

    fn rights(&mut self, at: &str, rights: Rights) -> v1::TenantRights {
        v1::TenantRights {
            tier_max: self.closed::<PriorityTier>(&format!("{at}.tierMax"), rights.tier_max),
            non_preemptible: self
                .closed::<policy::NonPreemptible>(&format!("{at}.nonPreemptible"), rights.non_preemptible),
            deadlines: self.value(&format!("{at}.deadlines"), rights.deadlines, quantity::flag),
        }
    }

    fn limits(&mut self, at: &str, limits: Limits) -> v1::TenantLimits {
        v1::TenantLimits {
            pending_jobs: self.value(&format!("{at}.pendingJobs"), limits.pending_jobs, quantity::count),
            unfinished_jobs: self.value(
                &format!("{at}.unfinishedJobs"),
                limits.unfinished_jobs,
                quantity::count,
            ),
            running_jobs: self.value(&format!("{at}.runningJobs"), limits.running_jobs, quantity::count),
            requests_per_minute: self.value(
                &format!("{at}.requestsPerMinute"),
                limits.requests_per_minute,
                quantity::count,
            ),
        }
    }

    fn quota(&mut self, at: &str, quota: Quota) -> v1::Quota {
        let path = |field: &str| format!("{at}.{field}");
        if quota.nominal.is_none() {
            let place = quota.r#type.as_ref().map(|kind| kind.referenced);
            self.problem(place, &path("nominal"), "must be given: the devices that are guaranteed, or 0");
        }
        v1::Quota {
            r#type: self.text(&path("type"), quota.r#type),
            region: self.text(&path("region"), quota.region),
            nominal_milli: self.value(&path("nominal"), quota.nominal, quantity::milli).unwrap_or_default(),
            borrowing_limit_milli: self.value(
                &path("borrowingLimit"),
                quota.borrowing_limit,
                quantity::milli,
            ),
            lending_limit_milli: self.value(&path("lendingLimit"), quota.lending_limit, quantity::milli),
        }
    }

    fn order(&mut self, order: Order) -> v1::OrderPolicy {
        v1::OrderPolicy {
            order: self.closed::<policy::Order>("spec.order.by", order.by),
            fair_share: self.value("spec.order.fairShare", order.fair_share, quantity::flag),
            usage_half_life: self.span("spec.order.usageHalfLife", order.usage_half_life),
            ageing_milli: self.value("spec.order.ageing", order.ageing, quantity::milli_small),
        }
    }

    fn backfill(&mut self, given: Backfill) -> v1::BackfillPolicy {
        let path = |field: &str| format!("spec.backfill.{field}");
        v1::BackfillPolicy {
            max_reservations: self.value(&path("reservations"), given.reservations, quantity::count),
            max_depth: self.value(&path("depth"), given.depth, quantity::count),
            reserve_after: self.span(&path("reserveAfter"), given.reserve_after),
            reserve_after_runs_milli: self.value(
                &path("reserveAfterRuns"),
                given.reserve_after_runs,
                quantity::milli_small,
            ),
            end_overrunners: self.value(&path("endOverrunners"), given.end_overrunners, quantity::flag),
        }
    }

    fn preemption(&mut self, given: Preemption) -> v1::PreemptionPolicy {
        let path = |field: &str| format!("spec.preemption.{field}");
        v1::PreemptionPolicy {
            enabled: self.value(&path("enabled"), given.enabled, quantity::flag),
            reclaim_borrowed: self.value(&path("reclaimBorrowed"), given.reclaim_borrowed, quantity::flag),
            minimum_run: self.span(&path("minimumRun"), given.minimum_run),
            max_victims: self.value(&path("victims"), given.victims, quantity::count),
            defragment: self.value(&path("defragment"), given.defragment, quantity::flag),
            defragment_wait: self.span(&path("defragmentWait"), given.defragment_wait),
            backoff: self.span(&path("backoff"), given.backoff),
            stopping_timeout: self.span(&path("stoppingTimeout"), given.stopping_timeout),
            starting_timeout: self.span(&path("startingTimeout"), given.starting_timeout),
        }
    }

    fn weights(&mut self, given: Weights) -> v1::PlacementWeights {
        let mut weight =
            |field: &str, text| self.value(&format!("spec.weights.{field}"), text, quantity::count);
        v1::PlacementWeights {
            packing: weight("packing", given.packing),
            throughput: weight("throughput", given.throughput),
            cost: weight("cost", given.cost),
            data: weight("data", given.data),
            topology: weight("topology", given.topology),
            spread: weight("spread", given.spread),
        }
    }

    fn price(&mut self, at: &str, price: Price) -> v1::Price {
        v1::Price {
            r#type: self.text(&format!("{at}.type"), price.r#type),
            region: self.text(&format!("{at}.region"), price.region),
            micro_dollars_per_device_hour: self
                .value(&format!("{at}.perDeviceHour"), price.per_device_hour, quantity::micro_dollars)
                .unwrap_or_default(),
        }
    }

    fn transfer(&mut self, at: &str, transfer: Transfer) -> v1::Transfer {
        v1::Transfer {
            from: self.text(&format!("{at}.from"), transfer.from),
            to: self.text(&format!("{at}.to"), transfer.to),
            micro_dollars_per_gib: self
                .value(&format!("{at}.perGib"), transfer.per_gib, quantity::micro_dollars)
                .unwrap_or_default(),
            bytes_per_second: self
                .value(&format!("{at}.bytesPerSecond"), transfer.bytes_per_second, quantity::memory_bytes)
                .unwrap_or_default(),
        }
    }

    fn window(&mut self, at: &str, window: Window) -> v1::Window {
        let path = |field: &str| format!("{at}.{field}");
        let scope = window.scope.unwrap_or_default();
        let mut part = |field: &str, text| self.text(&format!("{at}.scope.{field}"), text);
        let scope = v1::WindowScope {
            region: part("region", scope.region),
            cluster: part("cluster", scope.cluster),
            block: part("block", scope.block),
            rack: part("rack", scope.rack),
            node: part("node", scope.node),
        };
        let name = self.text(&path("name"), window.name);
        let place = window.maintenance.as_ref().or(window.reserved_for.as_ref()).map(|text| text.referenced);
        let maintenance = self.value(&path("maintenance"), window.maintenance, quantity::flag);
        let purpose = match (maintenance, window.reserved_for) {
            (Some(true), None) => Some(Purpose::Maintenance(v1::Maintenance {})),
            (None, Some(tenant)) => {
                Some(Purpose::ReservedForTenant(self.text(&path("reservedFor"), Some(tenant))))
            }
            _ => {
                let advice = "must say what it is for: either `maintenance: true` or `reservedFor: TENANT`";
                self.problem(place, at, advice);
                None
            }
        };
        v1::Window {
            name,
            start_time: self.time(&path("startTime"), window.start_time),
            end_time: self.time(&path("endTime"), window.end_time),
            scope: Some(scope),
            purpose,
        }
    }
}

impl PolicyFile {
    /// Every rule the server would refuse this policy for, in the file's words.
    pub fn check(&self) -> Result<(), ManifestError> {
        match convert::policy_from_proto("policy", Some(self.message.clone())) {
            Ok(_) => Ok(()),
            Err(found) => {
                Err(ManifestError(found.iter().take(PROBLEMS_MAX).map(|v| self.explain(v)).collect()))
            }
        }
    }

    /// The path of a whole entry with a name of the user's: the name may be that of a setting, which is called
    /// something else in the file.
    fn entry(&self, path: &str) -> Option<String> {
        let policy = &self.message;
        let under = |group: &str| path.strip_prefix("policy.")?.strip_prefix(group)?.strip_prefix('.');
        if let Some(name) = under("tenants").filter(|name| policy.tenants.contains_key(*name)) {
            return Some(format!("spec.tenants.{name}"));
        }
        if let Some(name) = under("datasets").filter(|name| policy.datasets.contains_key(*name)) {
            return Some(format!("spec.datasets.{name}"));
        }
        let name = under("spare_hosts_per_rack")?;
        policy.spare_hosts_per_rack.contains_key(name).then(|| format!("spec.spareHostsPerRack.{name}"))
    }

    /// A violation in the message, as a problem of the file. The path starts with `policy`.
    pub fn explain(&self, violation: &Violation) -> Problem {
        let (field, unit) = match self.entry(&violation.field) {
            Some(field) => (field, ""),
            None => in_file(&violation.field),
        };
        let line = line_of(&field, &self.lines, self.first_line);
        Problem { line, field, description: format!("{}{unit}", violation.description) }
    }
}

/// A path in the message as one in the file, and what its numbers count when the file writes another unit.
fn in_file(path: &str) -> (String, &'static str) {
    const THOUSANDTHS: &str = " (in thousandths)";
    const MILLIONTHS: &str = " (in millionths of a dollar)";
    const RENAMED: [(&str, &str, &str); 27] = [
        ("weight_milli", "weight", THOUSANDTHS),
        ("nominal_milli", "nominal", THOUSANDTHS),
        ("borrowing_limit_milli", "borrowingLimit", THOUSANDTHS),
        ("lending_limit_milli", "lendingLimit", THOUSANDTHS),
        ("order", "by", ""),
        ("fair_share", "fairShare", ""),
        ("usage_half_life", "usageHalfLife", ""),
        ("ageing_milli", "ageing", THOUSANDTHS),
        ("max_reservations", "reservations", ""),
        ("max_depth", "depth", ""),
        ("reserve_after", "reserveAfter", ""),
        ("reserve_after_runs_milli", "reserveAfterRuns", THOUSANDTHS),
        ("reclaim_borrowed", "reclaimBorrowed", ""),
        ("minimum_run", "minimumRun", ""),
        ("max_victims", "victims", ""),
        ("defragment_wait", "defragmentWait", ""),
        ("stopping_timeout", "stoppingTimeout", ""),
        ("starting_timeout", "startingTimeout", ""),
        ("end_overrunners", "endOverrunners", ""),
        ("tier_max", "tierMax", ""),
        ("non_preemptible", "nonPreemptible", ""),
        ("micro_dollars_per_device_hour", "perDeviceHour", MILLIONTHS),
        ("micro_dollars_per_gib", "perGib", MILLIONTHS),
        ("bytes_per_second", "bytesPerSecond", ""),
        ("start_time", "startTime", ""),
        ("end_time", "endTime", ""),
        ("reserved_for_tenant", "reservedFor", ""),
    ];
    let Some(rest) = path.strip_prefix("policy") else { return (path.to_owned(), "") };
    let path = format!("spec{rest}").replacen("spec.spare_hosts_per_rack", "spec.spareHostsPerRack", 1);
    let Some((parent, last)) = path.rsplit_once('.') else { return (path, "") };
    // Directly in `spec` are only groups of settings, whose names are the same.
    if parent == "spec" {
        return (path, "");
    }
    if last == "bytes" && parent.starts_with("spec.datasets.") {
        return (format!("{parent}.size"), " (in bytes)");
    }
    match RENAMED.iter().find(|(name, _, _)| *name == last) {
        Some((_, renamed, unit)) => (format!("{parent}.{renamed}"), *unit),
        None => (path, ""),
    }
}

/// A user's name in a path.
fn short(name: &str) -> String {
    name.chars().take(80).collect()
}
