//! What an operator should know of a policy before it is set, on the fleet and the queue as they are: a policy that
//! keeps every rule may still promise devices that nobody has, or leave a tenant without any.
//!
//! **Invariant:** a warning refuses nothing, and nothing here decides.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use muster_state::quota::QuotaUsage;
use muster_state::{GangClass, MissingRight, Phase, State};
use muster_types::policy::{NonPreemptible, Policy, Quota, UNLISTED_TENANT, WindowPurpose};
use muster_types::{JobSpec, Name, PriorityTier};

mod change;
mod isolation;
mod queues;
mod starved;

use starved::Waiting;

/// Most warnings of one policy.
pub const POLICY_WARNINGS_MAX: usize = 64;

/// Rows of jobs that are looked at for what a policy would mean for those that wait.
const JOBS_LOOKED_AT_MAX: usize = 100_000;

/// Names that one warning lists.
const NAMES_MAX: usize = 5;

/// A tenant whose weight is smaller than a sibling's by this factor has practically no share.
const WEIGHT_RATIO: u64 = 100;

/// Why a policy is worth a second look: a closed set with stable codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyWarningCode {
    /// It requires isolation that no node has which some tenant, or all of them, could use.
    NoIsolatedNode,
    /// It would keep a tenant from using any device at all.
    TenantWithoutDevices,
    /// No node is among those that a tenant's jobs run on, or all of them are kept for others.
    TenantWithoutNodes,
    /// A limit or a weight would keep a tenant's jobs from being taken or from starting.
    TenantStarved,
    /// The same of a tenant's jobs of one tier.
    TierStarved,
    /// It refuses a tenant's ordinary jobs.
    OrdinaryJobsRefused,
    /// Jobs wait that ask for more than a quota can ever give.
    GangAboveQuota,
    /// Jobs wait that could not be submitted under it.
    WaitingWithoutRight,
    /// It guarantees a tenant less than before and than it uses.
    GuaranteeBelowUse,
    /// It ends a grant of quota before its time.
    GrantEnded,
    /// It guarantees a tenant less than before and than is booked for it.
    BookingsAboveQuota,
    /// A window is open already where jobs run that it stops.
    WindowStopsJobs,
    /// Jobs run that say they must not be stopped, and their tenant loses the right to that.
    RunningWithoutRight,
    /// It guarantees more devices than there are.
    NominalAboveFleet,
    /// It names a type of accelerator that no node has.
    UnknownType,
    /// It names a region without a node.
    UnknownRegion,
    /// It names a type in a region that has none of it.
    TypeNotInRegion,
    /// A window covers no node.
    WindowWithoutNodes,
    /// A window is for a tenant that it does not list.
    WindowForUnknownTenant,
    /// A window is over.
    WindowOver,
    /// What a tenant borrows can never be taken back.
    BorrowsForGood,
    /// Guaranteed devices come back only when the jobs that borrow them are done.
    NothingTakenBack,
    /// It has budgets in dollars and no prices.
    SpendWithoutPrices,
    /// A tenant is guaranteed nothing where everything is guaranteed to others.
    NothingGuaranteed,
    /// Nothing is kept for gangs that do not fit yet, and others pass them.
    NothingReserved,
    /// A tenant's share is minute next to a sibling's.
    MinuteWeight,
    /// It requires isolation that some nodes lack.
    NodesNotIsolated,
    /// Tenants with jobs are not listed.
    UnlistedTenants,
}

impl PolicyWarningCode {
    /// Stable code.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyWarningCode::NoIsolatedNode => "NO_ISOLATED_NODE",
            PolicyWarningCode::TenantWithoutDevices => "TENANT_WITHOUT_DEVICES",
            PolicyWarningCode::TenantWithoutNodes => "TENANT_WITHOUT_NODES",
            PolicyWarningCode::TenantStarved => "TENANT_STARVED",
            PolicyWarningCode::TierStarved => "TIER_STARVED",
            PolicyWarningCode::OrdinaryJobsRefused => "ORDINARY_JOBS_REFUSED",
            PolicyWarningCode::GangAboveQuota => "GANG_ABOVE_QUOTA",
            PolicyWarningCode::WaitingWithoutRight => "WAITING_WITHOUT_RIGHT",
            PolicyWarningCode::GuaranteeBelowUse => "GUARANTEE_BELOW_USE",
            PolicyWarningCode::GrantEnded => "GRANT_ENDED",
            PolicyWarningCode::BookingsAboveQuota => "BOOKINGS_ABOVE_QUOTA",
            PolicyWarningCode::WindowStopsJobs => "WINDOW_STOPS_JOBS",
            PolicyWarningCode::RunningWithoutRight => "RUNNING_WITHOUT_RIGHT",
            PolicyWarningCode::NominalAboveFleet => "NOMINAL_ABOVE_FLEET",
            PolicyWarningCode::UnknownType => "UNKNOWN_TYPE",
            PolicyWarningCode::UnknownRegion => "UNKNOWN_REGION",
            PolicyWarningCode::TypeNotInRegion => "TYPE_NOT_IN_REGION",
            PolicyWarningCode::WindowWithoutNodes => "WINDOW_WITHOUT_NODES",
            PolicyWarningCode::WindowForUnknownTenant => "WINDOW_FOR_UNKNOWN_TENANT",
            PolicyWarningCode::WindowOver => "WINDOW_OVER",
            PolicyWarningCode::BorrowsForGood => "BORROWS_FOR_GOOD",
            PolicyWarningCode::NothingTakenBack => "NOTHING_TAKEN_BACK",
            PolicyWarningCode::SpendWithoutPrices => "SPEND_WITHOUT_PRICES",
            PolicyWarningCode::NothingGuaranteed => "NOTHING_GUARANTEED",
            PolicyWarningCode::NothingReserved => "NOTHING_RESERVED",
            PolicyWarningCode::MinuteWeight => "MINUTE_WEIGHT",
            PolicyWarningCode::NodesNotIsolated => "NODES_NOT_ISOLATED",
            PolicyWarningCode::UnlistedTenants => "UNLISTED_TENANTS",
        }
    }
}

/// One thing about a policy that its operator should know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyWarning {
    /// The stable code.
    pub code: PolicyWarningCode,
    /// The part of the policy it is about, as violations name it; empty for the policy as a whole.
    pub field: String,
    /// One sentence without a full stop.
    pub text: String,
}

impl fmt::Display for PolicyWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.text)
    }
}

/// Warnings about a policy, the worst first; at most [`POLICY_WARNINGS_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyWarnings {
    /// The first of them.
    pub listed: Vec<PolicyWarning>,
    /// How many more there are.
    pub left_out: usize,
}

/// What an operator should know of a policy, whether it is in force or not. Time and fleet are those of the state.
#[must_use]
pub fn policy_warnings(state: &State, policy: &Policy) -> PolicyWarnings {
    let mut look = Look { state, policy, fleet: Fleet::of(state), found: Vec::new() };
    // Of a fleet without nodes nothing can be said.
    if !look.fleet.is_empty() {
        look.names();
        look.nominal_sums();
        look.tenants_without_devices();
        look.nothing_guaranteed();
        look.windows();
        isolation::look_at(&mut look);
        queues::look_at(&mut look);
    }
    look.rights();
    look.weights();
    look.reclaim();
    look.reserved();
    queues::spends(&mut look);
    let waiting = look.waiting();
    starved::look_at(&mut look, waiting);
    look.unlisted();
    change::look_at(&mut look);
    let mut found = look.found;
    found.sort();
    found.dedup();
    let left_out = found.len().saturating_sub(POLICY_WARNINGS_MAX);
    found.truncate(POLICY_WARNINGS_MAX);
    PolicyWarnings { listed: found, left_out }
}

/// Thousandths of devices that are registered.
struct Fleet {
    by_pool: BTreeMap<(Name, Name), u64>,
    regions: BTreeSet<Name>,
}

impl Fleet {
    fn of(state: &State) -> Fleet {
        let mut fleet = Fleet { by_pool: BTreeMap::new(), regions: BTreeSet::new() };
        for (key, pool) in state.pools() {
            fleet.regions.insert(key.region.clone());
            if let Some(kind) = &key.kind {
                *fleet.by_pool.entry((kind.clone(), key.region.clone())).or_default() +=
                    pool.total_devices * 1_000;
            }
        }
        fleet
    }

    fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Of a type, in a region or in all.
    fn milli(&self, kind: &Name, region: Option<&Name>) -> u64 {
        let of_kind =
            self.by_pool.iter().filter(|((of, at), _)| of == kind && region.is_none_or(|r| r == at));
        of_kind.map(|(_, milli)| milli).sum()
    }
}

/// Thousandths of devices as people write them.
struct Devices(u64);

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1_000, self.0 % 1_000);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{rest:03}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

/// The first few of some names.
fn some(names: &[&Name]) -> String {
    let first: Vec<&str> = names.iter().take(NAMES_MAX).map(|name| name.as_str()).collect();
    let more = names.len().saturating_sub(NAMES_MAX);
    if more == 0 { first.join(", ") } else { format!("{} and {more} more", first.join(", ")) }
}

fn place(region: Option<&Name>) -> String {
    region.map_or("all regions".to_string(), |region| format!("region {region}"))
}

struct Look<'a> {
    state: &'a State,
    policy: &'a Policy,
    fleet: Fleet,
    found: Vec<PolicyWarning>,
}

impl<'a> Look<'a> {
    fn warn(&mut self, code: PolicyWarningCode, field: impl Into<String>, text: impl Into<String>) {
        self.found.push(PolicyWarning { code, field: field.into(), text: text.into() });
    }

    /// Types and regions that the fleet has not.
    fn names(&mut self) {
        let policy = self.policy;
        for (tenant, settings) in &policy.tenants {
            for (index, quota) in settings.quotas.iter().enumerate() {
                let field = format!("tenants.{tenant}.quotas[{index}]");
                self.known(&field, &quota.kind, quota.region.as_ref());
            }
        }
        for (index, price) in policy.prices.iter().enumerate() {
            self.known(&format!("prices[{index}]"), &price.kind, price.region.as_ref());
        }
        for kind in policy.spare_hosts_per_rack.keys() {
            self.known(&format!("spare_hosts_per_rack.{kind}"), kind, None);
        }
        for (index, resource) in policy.resources.iter().enumerate() {
            if let Some(region) = &resource.region {
                self.known_region(&format!("resources[{index}]"), region);
            }
        }
    }

    fn known(&mut self, field: &str, kind: &Name, region: Option<&Name>) {
        if self.fleet.milli(kind, None) == 0 {
            let known: BTreeSet<&Name> = self.fleet.by_pool.keys().map(|(kind, _)| kind).collect();
            let known: Vec<&Name> = known.into_iter().collect();
            let text = format!(
                "no node has accelerators of type {kind}; the fleet has {}; jobs that ask for it wait until one joins",
                some(&known)
            );
            self.warn(PolicyWarningCode::UnknownType, field, text);
            return;
        }
        let Some(region) = region else { return };
        if self.known_region(field, region) && self.fleet.milli(kind, Some(region)) == 0 {
            let text = format!("region {region} has no accelerators of type {kind}");
            self.warn(PolicyWarningCode::TypeNotInRegion, field, text);
        }
    }

    /// Whether a node is in a region.
    fn known_region(&mut self, field: &str, region: &Name) -> bool {
        if self.fleet.regions.contains(region) {
            return true;
        }
        let known: Vec<&Name> = self.fleet.regions.iter().collect();
        let text = format!(
            "no node is in region {region}; the fleet is in {}; jobs for this region wait until one joins",
            some(&known)
        );
        self.warn(PolicyWarningCode::UnknownRegion, field, text);
        false
    }

    /// Quotas that no tenant above has one of the same kind over: what they promise together must be there.
    fn nominal_sums(&mut self) {
        type Flavour<'a> = (&'a Name, Option<&'a Name>);
        let policy = self.policy;
        let states = |tenant: &Name, quota: &Quota| {
            let of = policy.tenants.get(tenant);
            of.is_some_and(|of| of.quotas.iter().any(|q| q.kind == quota.kind && q.region == quota.region))
        };
        let mut sums: BTreeMap<Flavour<'a>, (u64, Vec<&Name>, String)> = BTreeMap::new();
        for (tenant, settings) in &policy.tenants {
            for (index, quota) in settings.quotas.iter().enumerate() {
                if policy.ancestry(tenant).skip(1).any(|above| states(above, quota)) {
                    continue;
                }
                let field = format!("tenants.{tenant}.quotas[{index}].nominal_milli");
                let sum = sums.entry((&quota.kind, quota.region.as_ref())).or_insert((0, Vec::new(), field));
                sum.0 = sum.0.saturating_add(quota.nominal_milli);
                sum.1.push(tenant);
            }
        }
        for ((kind, region), (sum, tenants, field)) in sums {
            let capacity = self.fleet.milli(kind, region);
            // A type that no node has is reported once, as such.
            if capacity > 0 && sum > capacity {
                let text = format!(
                    "{} devices of type {kind} in {} are guaranteed to {}, and there are {}",
                    Devices(sum),
                    place(region),
                    some(&tenants),
                    Devices(capacity)
                );
                self.warn(PolicyWarningCode::NominalAboveFleet, field, text);
            }
        }
    }

    /// What a tenant could use of a type in a region if nobody used anything.
    fn most_milli(&self, unused: &QuotaUsage, tenant: &Name, kind: &Name, region: &Name) -> u64 {
        let capacity = |kind: &Name, region: Option<&Name>| self.fleet.milli(kind, region);
        unused.headroom(capacity, tenant, kind, region).total_milli()
    }

    fn tenants_without_devices(&mut self) {
        if self.policy.tenants.values().all(|tenant| tenant.quotas.is_empty())
            || self.fleet.by_pool.is_empty()
        {
            return;
        }
        let unused = QuotaUsage::new(self.policy);
        let unlisted = Name::literal(UNLISTED_TENANT);
        let policy = self.policy;
        let parents: BTreeSet<&Name> = policy.tenants.values().filter_map(|t| t.parent.as_ref()).collect();
        let is_leaf = |name: &&Name| !parents.contains(*name) && **name != unlisted;
        let without = |name: &Name| {
            self.fleet.by_pool.keys().all(|(kind, region)| self.most_milli(&unused, name, kind, region) == 0)
        };
        let mut found = Vec::new();
        for tenant in policy.tenants.keys().filter(is_leaf).filter(|name| without(name)) {
            let text = format!(
                "tenant {tenant} can use no device: it has no nominal quota, and may not borrow or nobody lends"
            );
            found.push((format!("tenants.{tenant}"), text));
        }
        if without(&unlisted) {
            let listed = policy.tenants.contains_key(&unlisted);
            let field = if listed { format!("tenants.{unlisted}") } else { String::new() };
            let text = "tenants that the policy does not list can use no device: nobody lends to `unlisted`";
            found.push((field, text.to_string()));
        }
        for (field, text) in found {
            self.warn(PolicyWarningCode::TenantWithoutDevices, field, text);
        }
    }

    /// Tenants that may only borrow, on a fleet of which every device is guaranteed to somebody else: they may wait for
    /// as long as those use what is theirs.
    fn nothing_guaranteed(&mut self) {
        let policy = self.policy;
        let unused = QuotaUsage::new(policy);
        let promised = |(kind, region): &(Name, Name)| {
            let of_region = unused.promised_to_all(kind, Some(region)).unwrap_or(0);
            of_region >= self.fleet.milli(kind, Some(region))
                || unused.promised_to_all(kind, None).unwrap_or(0) >= self.fleet.milli(kind, None)
        };
        if self.fleet.by_pool.is_empty() || !self.fleet.by_pool.keys().all(promised) {
            return;
        }
        let parents: BTreeSet<&Name> = policy.tenants.values().filter_map(|t| t.parent.as_ref()).collect();
        let mut found = Vec::new();
        for tenant in policy.tenants.keys().filter(|name| !parents.contains(name)) {
            let mut pools = self.fleet.by_pool.keys();
            let is_promised = pools.any(|(kind, region)| unused.nominal_milli(tenant, kind, region) > 0);
            let mut pools = self.fleet.by_pool.keys();
            let may_borrow = pools.any(|(kind, region)| self.most_milli(&unused, tenant, kind, region) > 0);
            if !is_promised && may_borrow {
                let text = format!(
                    "tenant {tenant} is guaranteed nothing, and every device is guaranteed to others: its jobs run only \
                     on what those leave, are stopped when they take it back, and may never run"
                );
                found.push((format!("tenants.{tenant}"), text));
            }
        }
        for (field, text) in found {
            self.warn(PolicyWarningCode::NothingGuaranteed, field, text);
        }
    }

    /// Gangs that never get their capacity, because smaller jobs take each part of it as it comes free.
    fn reserved(&mut self) {
        let backfill = &self.policy.backfill;
        // With a depth of 1 nobody passes the first that waits.
        if backfill.reservations_max == 0 && backfill.depth_max > 1 {
            let text = "nothing is kept for gangs that do not fit yet, and smaller jobs pass them: large gangs may never \
                        run, those of the lowest tiers first";
            self.warn(PolicyWarningCode::NothingReserved, "backfill.max_reservations", text);
        }
    }

    fn windows(&mut self) {
        let policy = self.policy;
        let mut empty: BTreeSet<usize> = (0..policy.windows.len()).collect();
        for (_, row) in self.state.nodes().iter() {
            if empty.is_empty() {
                break;
            }
            empty.retain(|index| !policy.windows[*index].scope.covers(&row.spec));
        }
        let now = self.state.log_time();
        for (index, window) in policy.windows.iter().enumerate() {
            let field = format!("windows[{index}]");
            if window.until <= now {
                let text = format!("window {} has been over since {}", window.name, window.until);
                self.warn(PolicyWarningCode::WindowOver, field, text);
                continue;
            }
            if empty.contains(&index) {
                let text = format!("no node lies in window {}", window.name);
                self.warn(PolicyWarningCode::WindowWithoutNodes, format!("{field}.scope"), text);
            }
            if let WindowPurpose::ReservedFor { tenant } = &window.purpose
                && !policy.tenants.contains_key(tenant)
            {
                let text =
                    format!("window {} is for tenant {tenant}, which the policy does not list", window.name);
                self.warn(PolicyWarningCode::WindowForUnknownTenant, field, text);
            }
        }
    }

    fn rights(&mut self) {
        let policy = self.policy;
        let ordinary = PriorityTier::default();
        let promised = policy.tenants.values().flat_map(|t| &t.quotas).any(|quota| quota.nominal_milli > 0);
        for (tenant, settings) in &policy.tenants {
            let field = |right: &str| format!("tenants.{tenant}.rights.{right}");
            if let Some(most) = settings.rights.tier_max.filter(|most| *most < ordinary) {
                let text = format!(
                    "jobs of tenant {tenant} and those below it that name no tier are {ordinary}, and are refused: \
                     it may name tiers up to {most}"
                );
                self.warn(PolicyWarningCode::OrdinaryJobsRefused, field("tier_max"), text);
            }
            let may_borrow = settings.quotas.is_empty()
                || settings.quotas.iter().any(|q| q.borrowing_limit_milli != Some(0));
            let for_good = settings.rights.non_preemptible == Some(NonPreemptible::Always);
            if for_good && may_borrow && promised {
                let text = format!(
                    "tenant {tenant} may borrow for jobs that cannot be stopped: who is guaranteed those devices \
                     waits until they end; `within_nominal` keeps guarantees"
                );
                self.warn(PolicyWarningCode::BorrowsForGood, field("non_preemptible"), text);
            }
        }
    }

    fn weights(&mut self) {
        let policy = self.policy;
        let mut largest: BTreeMap<Option<&Name>, (u32, &Name)> = BTreeMap::new();
        for (name, tenant) in &policy.tenants {
            let most = largest.entry(tenant.parent.as_ref()).or_insert((0, name));
            if tenant.weight_milli > most.0 {
                *most = (tenant.weight_milli, name);
            }
        }
        // A weight of zero is written on purpose.
        for (name, tenant) in policy.tenants.iter().filter(|(_, tenant)| tenant.weight_milli > 0) {
            let Some((most, sibling)) = largest.get(&tenant.parent.as_ref()).copied() else { continue };
            if u64::from(tenant.weight_milli) * WEIGHT_RATIO <= u64::from(most) {
                let text = format!(
                    "on a full fleet tenant {name} gets at most 1 device for {} of {sibling}, by their weights",
                    most / tenant.weight_milli.max(1)
                );
                self.warn(PolicyWarningCode::MinuteWeight, format!("tenants.{name}.weight_milli"), text);
            }
        }
    }

    fn reclaim(&mut self) {
        let mut quotas = self.policy.tenants.values().flat_map(|tenant| &tenant.quotas);
        let is_promised = quotas.any(|quota| quota.nominal_milli > 0);
        if is_promised && !self.policy.preemption.reclaim_borrowed {
            let text = "with reclaimBorrowed off, guaranteed devices that others borrow come back only when their jobs end";
            self.warn(PolicyWarningCode::NothingTakenBack, "preemption.reclaim_borrowed", text);
        }
    }

    /// Jobs that wait now, in one walk: what follows from rights and quotas for them, and what else is to be known of them.
    fn waiting(&mut self) -> Waiting<'a> {
        let state = self.state;
        let mut waiting = Waiting::default();
        let unused = QuotaUsage::new(self.policy);
        let mut without_right: BTreeMap<(&Name, &'static str), (u64, &Name)> = BTreeMap::new();
        let mut above: BTreeMap<&Name, (u64, &Name)> = BTreeMap::new();
        let has_quotas = self.policy.tenants.values().any(|tenant| !tenant.quotas.is_empty());
        let mut known: BTreeMap<(&Name, GangClass), bool> = BTreeMap::new();
        for (id, row) in state.jobs().iter().take(JOBS_LOOKED_AT_MAX) {
            let Some(spec) = state.spec(*id).filter(|_| row.phase == Phase::Pending) else { continue };
            waiting.add(self, *id, spec);
            let missing =
                MissingRight::of(self.policy.rights(&spec.tenant), spec).map(|missing| match missing {
                    MissingRight::Tier { .. } => "tierMax",
                    MissingRight::NonPreemptible => "nonPreemptible",
                    MissingRight::Purchases { .. } => "purchases",
                    MissingRight::NegativeNice => "negativeNice",
                });
            if let Some(right) = missing {
                without_right.entry((&spec.tenant, right)).or_insert((0, &spec.name)).0 += 1;
            }
            // Members of a sweep ask for the same.
            let is_above = || self.is_above_quota(&unused, spec);
            if has_quotas && *known.entry((&spec.tenant, GangClass::of(spec))).or_insert_with(is_above) {
                above.entry(&spec.tenant).or_insert((0, &spec.name)).0 += 1;
            }
        }
        for ((tenant, right), (count, first)) in without_right {
            let text = format!(
                "{count} waiting jobs of tenant {tenant}, such as {first}, need the right {right}, which it would \
                 not have; they stay, and could not be submitted again"
            );
            self.warn(PolicyWarningCode::WaitingWithoutRight, self.field_of(tenant), text);
        }
        for (tenant, (count, first)) in above {
            let text = format!(
                "{count} waiting jobs of tenant {tenant}, such as {first}, ask for more devices than its quotas and \
                 what others lend can ever give it"
            );
            self.warn(PolicyWarningCode::GangAboveQuota, self.field_of(tenant), text);
        }
        waiting
    }

    /// Where a policy says something of a tenant.
    fn field_of(&self, tenant: &Name) -> String {
        if self.policy.tenants.contains_key(tenant) { format!("tenants.{tenant}") } else { String::new() }
    }

    /// Whether the fewest workers of a gang would break a quota wherever it may run, even if nobody used anything.
    fn is_above_quota(&self, unused: &QuotaUsage, spec: &JobSpec) -> bool {
        let mut asks = false;
        for (kind, region) in self.fleet.by_pool.keys() {
            if !spec.regions.is_empty() && !spec.regions.contains(region) {
                continue;
            }
            let wanted = spec.least_milli_of(kind);
            if wanted == 0 {
                continue;
            }
            asks = true;
            if self.most_milli(unused, &spec.tenant, kind, region) >= wanted {
                return false;
            }
        }
        asks
    }

    /// Tenants with jobs that a policy with a tree leaves out.
    fn unlisted(&mut self) {
        if self.policy.tenants.is_empty() {
            return;
        }
        let mut unlisted: Vec<Name> = Vec::new();
        let mut after: Option<Name> = None;
        loop {
            let names = self.state.queues_behind(after.as_ref(), 1_000);
            let Some(last) = names.last().cloned() else { break };
            let has_jobs = |name: &Name| {
                let load = self.state.queue(name).map(|queue| queue.load);
                load.is_some_and(|load| load.pending_jobs + load.active_jobs > 0)
            };
            let is_unlisted = |name: &Name| !self.policy.tenants.contains_key(name) && has_jobs(name);
            unlisted.extend(names.into_iter().filter(is_unlisted));
            after = Some(last);
        }
        if !unlisted.is_empty() {
            let names: Vec<&Name> = unlisted.iter().collect();
            let text = format!(
                "{} tenants with jobs are not listed, so they share one place, `unlisted`: {}",
                unlisted.len(),
                some(&names)
            );
            self.warn(PolicyWarningCode::UnlistedTenants, "tenants", text);
        }
    }
}
