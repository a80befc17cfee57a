//! The policy: what the scheduler is told to prefer, promise and forbid. One replicated value.
//!
//! A [`PolicyDraft`] is what an operator writes; [`PolicyDraft::check`] makes the [`Policy`] that the
//! state keeps. Integers only: thousandths (`_milli`), millionths of a dollar (`micro_dollars`).
//! Bounds are part of the record format, like those of [`limits`]: none may be lowered without a new one.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Deref;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::fleet::NodeDraft;
use crate::job::PriorityTier;
use crate::limits;
use crate::name::Name;
use crate::reason::Violation;
use crate::time::LogTime;
use crate::token::TokenRole;

mod grants;
mod interruptions;
mod isolation;
mod named;
mod notifications;
mod parts;
mod prices;
mod queue;
mod resources;
mod roles;
mod rules;
mod spend;
mod users;

pub use crate::purchase::PurchaseKind;
pub use grants::{GrantFault, GrantedPolicy, QuotaGrant, QuotaSource, reason_violation};
pub use interruptions::InterruptionRate;
pub use isolation::Guarantee;
pub use named::NamedPlaces;
pub use notifications::{
    NotificationBody, NotificationEvent, NotificationProgress, RECEIVER_URL_BYTES_MAX, RECEIVERS_MAX,
    Receiver, url_fault,
};
pub use parts::{POLICY_PARTS_MAX, PolicyPart, PolicyUpdate};
pub use prices::{
    DEPRECIATION_MONTHS_MAX, DEVICE_WATTS_MAX, KWH_MICRO_DOLLARS_MAX, OwnedCost, PUE_MILLI_MAX,
    PUE_MILLI_MIN, Price, PriceTable,
};
pub use queue::{
    BLOCK_FOR_MS_MIN, BLOCK_FOR_MS_USUAL, PARTITIONS_MAX, QueueChoices, QueueOrder, QueuePreemption,
};
pub use resources::{COUNTED_RESOURCES_MAX, CountedResource};
pub use roles::{OWN_ROLES_MAX, OwnRole, ROLE_REGIONS_MAX, Verb};
pub use rules::{
    AcceleratorBudget, JobLimits, LIMITED_MEMORY_BYTES_MAX, NonPreemptible, Rights, TenantLimits,
    TenantRights, UNLISTED_TENANT, UserLimits,
};
pub use spend::{OnLimit, SpendBudget};
pub use users::{USER_WEIGHTS_MAX, UserShares};

/// Tenants of one policy.
pub const TENANTS_MAX: usize = 10_000;
/// Levels of the tenant tree; a tenant without a parent is on the first.
pub const TENANT_DEPTH_MAX: usize = 8;
/// Quotas of one tenant.
pub const TENANT_QUOTAS_MAX: usize = 256;
/// Quotas of all tenants together: bounds the record, and the work of taking a new policy into use.
pub const QUOTAS_MAX: usize = 65_536;
/// Largest quota, in thousandths of a device: a billion devices.
pub const QUOTA_MILLI_MAX: u64 = 1_000_000_000_000;
/// Largest weight of a tenant: a thousand times the default.
pub const WEIGHT_MILLI_MAX: u32 = 1_000_000;
/// Shortest half-life of usage: one minute.
pub const USAGE_HALF_LIFE_MS_MIN: u64 = 60_000;
/// Longest half-life of usage, and longest wait or run that a policy names: 366 days.
pub const POLICY_DURATION_MS_MAX: u64 = 366 * 24 * 3_600 * 1_000;
/// Largest ageing factor.
pub const AGEING_MILLI_MAX: u32 = 1_000_000;
/// Most reservations held at a time.
pub const RESERVATIONS_MAX: u32 = 64;
/// Most waiting jobs that backfill looks at.
pub const BACKFILL_DEPTH_MAX: u32 = 10_000;
/// Most victims of one preemption.
pub const VICTIMS_MAX: u32 = 4_096;
/// Most jobs preempted for one where the policy does not say. Part of the state of every cluster, so it never changes.
pub const VICTIMS_USUAL: u32 = 1_024;
/// Most doublings of the time for which a stopped job is not stopped again: 64 times the first.
pub const BACKOFF_DOUBLINGS_MAX: u32 = 6;
/// Shortest time in which a gang must have started or stopped: one minute.
pub const STEP_DEADLINE_MS_MIN: u64 = 60_000;
/// Largest weight of one term of the placement score.
pub const PLACEMENT_WEIGHT_MAX: u16 = 1_000;
/// Prices of one policy.
pub const PRICES_MAX: usize = 4_096;
/// Rates of interruptions of one policy.
pub const INTERRUPTION_RATES_MAX: usize = 256;
/// Transfer rules of one policy.
pub const TRANSFERS_MAX: usize = 4_096;
/// Largest price of a device-hour or a transferred GiB: a million dollars.
pub const PRICE_MICRO_DOLLARS_MAX: u64 = 1_000_000_000_000;
/// Fastest transfer, in bytes per second.
pub const TRANSFER_BYTES_PER_SECOND_MAX: u64 = 1_000_000_000_000_000;
/// Data sets of one policy.
pub const DATASETS_MAX: usize = 10_000;
/// Largest data set: 1 EiB.
pub const DATASET_BYTES_MAX: u64 = 1 << 60;
/// Accelerator types with spare hosts.
pub const SPARE_KINDS_MAX: usize = 1_024;
/// Most spare hosts of one rack.
pub const SPARE_HOSTS_MAX: u16 = 1_000;
/// Maintenance and reservation windows.
pub const WINDOWS_MAX: usize = 256;

const GIB_BYTES: u128 = 1 << 30;

/// One promise of capacity to a tenant.
///
/// The nominal quota is guaranteed to the tenant and everyone below it, together. Beyond it they may
/// borrow what others leave unused; what they leave unused themselves may be lent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// The type of accelerator.
    pub kind: Name,
    /// The region; none counts all regions together. A quota for a region and one for all bind both.
    pub region: Option<Name>,
    /// Guaranteed, in thousandths of a device.
    pub nominal_milli: u64,
    /// How far beyond the nominal quota use may go; none for no separate limit.
    pub borrowing_limit_milli: Option<u64>,
    /// How much of the unused nominal quota others may use; none for all of it.
    pub lending_limit_milli: Option<u64>,
}

impl Quota {
    /// The part of the nominal quota that is never lent.
    #[must_use]
    pub fn reserve_milli(&self) -> u64 {
        self.lending_limit_milli.map_or(0, |lent| self.nominal_milli.saturating_sub(lent))
    }
}

/// A tenant's place in the tree and what it is promised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantPolicy {
    /// The tenant above it; none for the first level.
    pub parent: Option<Name>,
    /// Its share next to its siblings, in thousandths; 1,000 is the ordinary share. With zero it goes behind all siblings that
    /// have a weight, and among those without one by what it has used.
    pub weight_milli: u32,
    /// Its quotas, at most one for each accelerator type and region.
    pub quotas: Vec<Quota>,
    /// What its jobs may ask for beyond what every job may.
    pub rights: TenantRights,
    /// What it may have at a time, other than devices.
    pub limits: TenantLimits,
    /// What one of its jobs in a tier may ask for, where that differs from what every job may.
    pub tier_limits: BTreeMap<PriorityTier, JobLimits>,
    /// Submissions in a minute with jobs of a tier, where those are limited. They also count in `limits.requests_per_minute`.
    pub tier_submissions: BTreeMap<PriorityTier, u32>,
    /// What one job of a user may ask for, given as the users in `UserShares::weights_milli`. It holds in addition to what every
    /// job may ask for, and its default run time goes before theirs.
    pub user_limits: BTreeMap<String, JobLimits>,
    /// The order of its queue, whom it may have stopped, and the nodes that it runs on.
    pub queue: QueueChoices,
    /// How its users share what it gets; none where they do not.
    pub users: Option<UserShares>,
}

impl Default for TenantPolicy {
    fn default() -> Self {
        TenantPolicy {
            parent: None,
            weight_milli: 1_000,
            quotas: Vec::new(),
            rights: TenantRights::default(),
            limits: TenantLimits::default(),
            tier_limits: BTreeMap::new(),
            tier_submissions: BTreeMap::new(),
            user_limits: BTreeMap::new(),
            queue: QueueChoices::default(),
            users: None,
        }
    }
}

/// What the line of waiting jobs of one tier is sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Order {
    /// First submitted, first.
    Submission,
    /// The least predicted work first, devices times run time: small jobs pass large ones, until those
    /// have waited for [`BackfillPolicy::reserve_after`] and go before all others.
    #[default]
    Predicted,
}

/// Who goes first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OrderPolicy {
    /// The order inside a tenant, or of everyone without fair share.
    pub order: Order,
    /// Whether tenants with less decayed use for their weight go before others of the same tier.
    pub fair_share: bool,
    /// After this long, past use counts half.
    pub usage_half_life_ms: u64,
    /// For [`Order::Predicted`]: for each millisecond that a job was submitted earlier, it may be this many
    /// thousandths of a device-millisecond larger and still go first. Zero looks at the work alone, and
    /// leaves it to reservations that none waits for ever; a large factor is the order of submission. At 250
    /// a job of 8 devices and one hour yields to smaller ones that come within 32 hours. On a fleet that is
    /// full for days every factor makes the average wait longer, and hardly any makes the longest shorter.
    pub ageing_milli: u32,
}

impl Default for OrderPolicy {
    fn default() -> Self {
        OrderPolicy {
            order: Order::Predicted,
            fair_share: true,
            usage_half_life_ms: 7 * 24 * 3_600 * 1_000,
            ageing_milli: 0,
        }
    }
}

/// How capacity is kept for jobs that do not fit yet, and used in the meantime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BackfillPolicy {
    /// Waiting jobs that hold a reservation at a time; zero for none.
    pub reservations_max: u32,
    /// Different requests of one tenant and tier for the same regions and types that are looked at in one pass
    /// and found to wait; as many more have their turn from where the pass before left off, so that everybody
    /// has one in time. With 1 nobody passes the first that waits.
    pub depth_max: u32,
    /// A job has the right to a reservation once it has waited this long and `reserve_after_runs_milli`
    /// thousandths of the time it is expected to run; under [`Order::Predicted`] it also goes before all
    /// that do not wait as long. Tiers above the default, and the first that cannot start, have a reservation at
    /// once. The default is ten minutes and one run: a long run can wait for longer, and gangs do not starve
    /// behind small jobs. On a fleet that is full for days most of the queue is overdue then, and the order
    /// comes near that of submission.
    pub reserve_after_ms: u64,
    /// See `reserve_after_ms`.
    pub reserve_after_runs_milli: u32,
    /// Whether the owner of a reservation may end what was started in its place to fill the time, once that has
    /// run for longer than was expected of it.
    pub end_overrunners: bool,
}

impl BackfillPolicy {
    /// How long a job that is expected to run so long waits before it has the right to a reservation.
    #[must_use]
    pub fn reserve_after(&self, run_ms: u64) -> u64 {
        let runs = u128::from(run_ms) * u128::from(self.reserve_after_runs_milli) / 1_000;
        self.reserve_after_ms.saturating_add(u64::try_from(runs).unwrap_or(u64::MAX))
    }
}

impl Default for BackfillPolicy {
    fn default() -> Self {
        BackfillPolicy {
            reservations_max: 16,
            depth_max: 1_000,
            reserve_after_ms: 10 * 60 * 1_000,
            reserve_after_runs_milli: 1_000,
            end_overrunners: true,
        }
    }
}

/// When running jobs are preempted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PreemptionPolicy {
    /// Whether a higher tier may preempt a lower one.
    pub enabled: bool,
    /// Whether a tenant within its nominal quota may take back what others borrow.
    pub reclaim_borrowed: bool,
    /// A job that has run for less is no victim.
    pub minimum_run_ms: u64,
    /// Most jobs preempted for one that goes before them by its tier: see [`PreemptionPolicy::victims_max_for`].
    pub victims_max: u32,
    /// Whether jobs may be moved to make a contiguous place for one that would fit otherwise.
    pub defragment: bool,
    /// How long that one must have waited.
    pub defragment_wait_ms: u64,
    /// A job that policy has stopped is not stopped again for so long, while others would do; twice as long after
    /// each further time, up to [`BACKOFF_DOUBLINGS_MAX`] doublings.
    pub backoff_ms: u64,
    /// How long the workers of a gang that is being stopped may take, beyond the gang's own grace. After that their
    /// nodes are taken out of service.
    pub stopping_deadline_ms: u64,
    /// How long a gang may take from its placement until every worker has started. After that it is placed again.
    pub starting_deadline_ms: u64,
}

impl PreemptionPolicy {
    /// How long a job that policy has stopped so often is not stopped again while others would do.
    #[must_use]
    pub fn backoff_after_ms(&self, preemptions: u32) -> u64 {
        let Some(doublings) = preemptions.checked_sub(1) else { return 0 };
        self.backoff_ms.saturating_mul(1 << doublings.min(BACKOFF_DOUBLINGS_MAX))
    }
}

impl PreemptionPolicy {
    /// Most jobs preempted by tier for one that needs this number of devices. Below [`VICTIMS_USUAL`] the policy's number
    /// holds for every job. From there on a job may have as many stopped as it needs devices, for each may be held by
    /// another job: one that is larger than the number would wait for good otherwise.
    ///
    /// What is promised is taken back from however many borrow it.
    #[must_use]
    pub fn victims_max_for(&self, devices: u64) -> u32 {
        if self.victims_max < VICTIMS_USUAL {
            return self.victims_max;
        }
        let needed = u32::try_from(devices).unwrap_or(u32::MAX);
        self.victims_max.max(needed).min(VICTIMS_MAX)
    }
}

impl Default for PreemptionPolicy {
    fn default() -> Self {
        PreemptionPolicy {
            enabled: true,
            reclaim_borrowed: true,
            minimum_run_ms: 2 * 60 * 1_000,
            victims_max: VICTIMS_USUAL,
            defragment: true,
            defragment_wait_ms: 30 * 60 * 1_000,
            backoff_ms: 10 * 60 * 1_000,
            stopping_deadline_ms: 10 * 60 * 1_000,
            starting_deadline_ms: 30 * 60 * 1_000,
        }
    }
}

/// What a good place is: the weights of the terms of the placement score, 0 to 1,000 each. Only their
/// proportions matter; a term with weight zero is not looked at.
///
/// The defaults put short paths between the workers of a gang first (500), then full hosts and racks,
/// which keep large holes for large gangs (400), then fast devices and near data (300, 200), then price
/// (200). Spreading works against packing, and is for those who ask for it (0).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlacementWeights {
    /// Fill hosts, racks and blocks that are in use already.
    pub packing: u16,
    /// Prefer the accelerator type that does the job fastest.
    pub throughput: u16,
    /// Prefer the lower price of the whole run.
    pub cost: u16,
    /// Prefer regions that have the job's data.
    pub data: u16,
    /// Prefer few and near domains for one gang.
    pub topology: u16,
    /// Prefer clusters with little of the same tenant's own work: for services whose replicas should not go down
    /// together. Inside a cluster, workers of one gang are kept apart by its topology rule.
    pub spread: u16,
}

impl Default for PlacementWeights {
    fn default() -> Self {
        PlacementWeights { packing: 400, throughput: 300, cost: 200, data: 200, topology: 500, spread: 0 }
    }
}

/// Data that jobs read, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dataset {
    /// Its size.
    pub bytes: u64,
    /// Regions with a copy, at least one.
    pub regions: BTreeSet<Name>,
}

/// What it takes to bring data from one region to another. The most specific rule counts: both ends,
/// then the source, then the destination, then the rule for all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// The source; none for any.
    pub from: Option<Name>,
    /// The destination; none for any.
    pub to: Option<Name>,
    /// Millionths of a dollar for 2^30 bytes.
    pub micro_dollars_per_gib: u64,
    /// Speed of one transfer, from 1.
    pub bytes_per_second: u64,
}

/// The part of the fleet that lies in every domain named; domains not named do not restrict it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WindowScope {
    /// Region.
    pub region: Option<Name>,
    /// Cluster.
    pub cluster: Option<Name>,
    /// Block.
    pub block: Option<Name>,
    /// Rack.
    pub rack: Option<Name>,
    /// One host.
    pub node: Option<Name>,
}

impl WindowScope {
    /// Whether it names nothing, and so would be the whole fleet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        [&self.region, &self.cluster, &self.block, &self.rack, &self.node].iter().all(|part| part.is_none())
    }

    /// Whether a host lies in it.
    #[must_use]
    pub fn covers(&self, node: &NodeDraft) -> bool {
        let within = |part: &Option<Name>, own: &Name| part.as_ref().is_none_or(|name| name == own);
        within(&self.region, &node.region)
            && within(&self.cluster, &node.cluster)
            && within(&self.block, &node.block)
            && within(&self.rack, &node.rack)
            && within(&self.node, &node.name)
    }
}

/// What a window is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WindowPurpose {
    /// Nothing runs there: what is still there when it opens is stopped with its grace.
    Maintenance,
    /// Only one tenant's work runs there, and that of the tenants below it. When it opens, preemptible work of others
    /// that is still there is stopped with its grace; what is not preemptible stays to its end.
    ReservedFor {
        /// Whose.
        tenant: Name,
    },
}

/// A part of the fleet set aside for some time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Unique in the policy.
    pub name: Name,
    /// Its first moment.
    pub from: LogTime,
    /// The first moment after it.
    pub until: LogTime,
    /// Where.
    pub scope: WindowScope,
    /// What for.
    pub purpose: WindowPurpose,
}

impl Window {
    /// Whether the window is open at some moment from `from` until before `until`.
    #[must_use]
    pub fn overlaps(&self, from: LogTime, until: LogTime) -> bool {
        self.from < until && from < self.until
    }
}

/// What an operator sets; checked by [`PolicyDraft::check`].
///
/// The default is one flat world: no tenants and no quotas, the predicted order with fair share,
/// 16 reservations, preemption with reclaim after two minutes, defragmentation after half an hour.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyDraft {
    /// The tenant tree. A tenant that is not here is below [`UNLISTED_TENANT`], with the default weight and
    /// without quotas.
    pub tenants: BTreeMap<Name, TenantPolicy>,
    /// Who goes first.
    pub order: OrderPolicy,
    /// Reservations and backfill.
    pub backfill: BackfillPolicy,
    /// Preemption, reclaim and defragmentation.
    pub preemption: PreemptionPolicy,
    /// What a good place is.
    pub weights: PlacementWeights,
    /// Prices of devices. No two are for the same type, region and purchase at the same time.
    pub prices: Vec<Price>,
    /// Data that jobs may name.
    pub datasets: BTreeMap<Name, Dataset>,
    /// Prices and speeds between regions; without a rule a transfer is free and takes no time.
    pub transfers: Vec<Transfer>,
    /// By accelerator type: hosts of each rack that are kept free for replacing a failed one, such as 2
    /// of the 18 trays of an NVL72.
    pub spare_hosts_per_rack: BTreeMap<Name, u16>,
    /// Maintenance and reservations.
    pub windows: Vec<Window>,
    /// What a node must isolate its workers by; on one that lacks any of it nothing is placed.
    pub required_isolation: BTreeSet<Guarantee>,
    /// Who is told of what happens to jobs and nodes.
    pub notifications: Vec<Receiver>,
    /// Roles next to the built-in ones, for tokens and sign-ins to name.
    pub roles: BTreeMap<Name, OwnRole>,
    /// How often nodes are taken away, where too little was seen of them. No two are for the same purchase and region.
    pub interruption_rates: Vec<InterruptionRate>,
    /// What is counted and no node has, such as licences of programs. No two have the same name.
    pub resources: Vec<CountedResource>,
}

/// What it takes to have a job's data in a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DataMove {
    /// Bytes that come from elsewhere.
    pub bytes: u64,
    /// Price of that, in millionths of a dollar; each data set is rounded up.
    pub micro_dollars: u64,
    /// Time of that, one data set after the other, in milliseconds; each is rounded up.
    pub ms: u64,
}

/// A checked policy. There is no other way to make one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    draft: PolicyDraft,
    price_table: PriceTable,
    queues: queue::QueueTable,
    transfers: BTreeMap<(Option<Name>, Option<Name>), usize>,
    named: NamedPlaces,
    /// [`UNLISTED_TENANT`], to be lent out.
    unlisted: Name,
}

impl Default for Policy {
    fn default() -> Self {
        PolicyDraft::default().check().expect("the default breaks no rule")
    }
}

impl Deref for Policy {
    type Target = PolicyDraft;

    fn deref(&self) -> &PolicyDraft {
        &self.draft
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.draft.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let draft = PolicyDraft::deserialize(deserializer)?;
        draft.check().map_err(|found| {
            let first = found.first().map(ToString::to_string).unwrap_or_default();
            serde::de::Error::custom(first)
        })
    }
}

impl Policy {
    /// The role of this name that the policy defines, while it is a part of this built-in role. What was granted as a part of
    /// another one is not granted any more.
    #[must_use]
    pub fn own_role(&self, name: &Name, part_of: TokenRole) -> Option<&OwnRole> {
        self.roles.get(name).filter(|role| role.part_of == part_of)
    }

    /// Millionths of a dollar for one device and one hour at a time, as placement and preemption compare it: the price that
    /// is for no purchase, of the region or of every region; without it the lowest of those for a purchase. None when the
    /// policy states none that is in force then.
    #[must_use]
    pub fn price(&self, kind: &Name, region: &Name, at: LogTime) -> Option<u64> {
        self.price_table.compared(kind, region, at)
    }

    /// All prices, to look them up by purchase.
    #[must_use]
    pub fn price_table(&self) -> &PriceTable {
        &self.price_table
    }

    /// The rule for transfers between two regions.
    #[must_use]
    pub fn transfer(&self, from: &Name, to: &Name) -> Option<&Transfer> {
        let (from, to) = (Some(from.clone()), Some(to.clone()));
        [(from.clone(), to.clone()), (from, None), (None, to), (None, None)]
            .iter()
            .find_map(|ends| self.transfers.get(ends))
            .and_then(|&index| self.draft.transfers.get(index))
    }

    /// What it takes to have these data sets in a region. Each comes from the copy that is cheapest,
    /// then fastest, then first by the name of its region. A name that the policy does not know counts
    /// nothing.
    #[must_use]
    pub fn data_move<'a>(&self, datasets: impl IntoIterator<Item = &'a Name>, region: &Name) -> DataMove {
        let mut total = DataMove::default();
        for dataset in datasets.into_iter().filter_map(|name| self.datasets.get(name)) {
            if dataset.regions.contains(region) {
                continue;
            }
            let from_each = dataset.regions.iter().map(|from| self.copy_cost(dataset.bytes, from, region));
            if let Some((micro_dollars, ms)) = from_each.min() {
                total.bytes = total.bytes.saturating_add(dataset.bytes);
                total.micro_dollars = total.micro_dollars.saturating_add(micro_dollars);
                total.ms = total.ms.saturating_add(ms);
            }
        }
        total
    }

    fn copy_cost(&self, bytes: u64, from: &Name, to: &Name) -> (u64, u64) {
        let Some(rule) = self.transfer(from, to) else { return (0, 0) };
        let bytes = u128::from(bytes);
        let micro_dollars = (bytes * u128::from(rule.micro_dollars_per_gib)).div_ceil(GIB_BYTES);
        let ms = (bytes * 1_000).div_ceil(u128::from(rule.bytes_per_second.max(1)));
        (u64::try_from(micro_dollars).unwrap_or(u64::MAX), u64::try_from(ms).unwrap_or(u64::MAX))
    }

    /// The accelerator types and regions that it names.
    #[must_use]
    pub fn named(&self) -> &NamedPlaces {
        &self.named
    }

    /// The tenant above another; none on the first level. A tenant that the policy does not name is below
    /// [`UNLISTED_TENANT`].
    #[must_use]
    pub fn parent(&self, tenant: &Name) -> Option<&Name> {
        match self.tenants.get(tenant) {
            Some(listed) => listed.parent.as_ref(),
            None => Some(&self.unlisted).filter(|unlisted| *unlisted != tenant),
        }
    }

    /// The tenant that those are below which the policy does not name.
    #[must_use]
    pub fn unlisted(&self) -> &Name {
        &self.unlisted
    }

    /// The tenant and everyone above it, itself first; at most [`TENANT_DEPTH_MAX`].
    pub fn ancestry<'a>(&'a self, tenant: &'a Name) -> impl Iterator<Item = &'a Name> {
        core::iter::successors(Some(tenant), |below| self.parent(below))
    }

    /// A tenant's weight in thousandths; the default for one that the policy does not know.
    #[must_use]
    pub fn weight_milli(&self, tenant: &Name) -> u32 {
        self.tenants.get(tenant).map_or(1_000, |t| t.weight_milli)
    }

    /// What a node lacks of the isolation that this policy requires.
    pub fn lacking_isolation<'a>(&'a self, node: &'a NodeDraft) -> impl Iterator<Item = Guarantee> + 'a {
        self.required_isolation.iter().copied().filter(|guarantee| !guarantee.is_of(node))
    }

    /// Back to a draft, for building a variation of it.
    #[must_use]
    pub fn into_draft(self) -> PolicyDraft {
        self.draft
    }
}

impl PolicyDraft {
    /// The policy, or every rule it breaks.
    ///
    /// # Errors
    /// Lists all violations, not just the first. Rules about the tree as a whole are looked at only
    /// when every tenant has its place in it.
    pub fn check(self) -> Result<Policy, Vec<Violation>> {
        let mut found = Vec::new();
        self.check_tenants(&mut found);
        self.check_scheduling(&mut found);
        self.check_weights(&mut found);
        prices::check_prices(&self.prices, &mut found);
        self.check_transfers(&mut found);
        self.check_datasets(&mut found);
        self.check_spares(&mut found);
        self.check_windows(&mut found);
        self.check_notifications(&mut found);
        roles::check_roles(&self.roles, &mut found);
        self.check_interruption_rates(&mut found);
        self.check_resources(&mut found);
        if !found.is_empty() {
            return Err(found);
        }
        let price_table = PriceTable::of(&self.prices);
        let rules = self.transfers.iter().enumerate();
        let transfers = rules.map(|(index, rule)| ((rule.from.clone(), rule.to.clone()), index)).collect();
        let unlisted = Name::literal(UNLISTED_TENANT);
        let named = NamedPlaces::of(&self);
        let queues = queue::QueueTable::of(&self.tenants);
        Ok(Policy { draft: self, price_table, queues, transfers, named, unlisted })
    }

    fn check_tenants(&self, found: &mut Vec<Violation>) {
        let before = found.len();
        let quotas: usize = self.tenants.values().map(|t| t.quotas.len()).sum();
        check_count("tenants", self.tenants.len(), TENANTS_MAX, found);
        if quotas > QUOTAS_MAX {
            found.push(Violation::new(
                "tenants",
                format!("must have at most {QUOTAS_MAX} quotas together, got {quotas}"),
            ));
        }
        if found.len() > before {
            return;
        }
        for (name, tenant) in &self.tenants {
            tenant.check(&format!("tenants.{name}"), found);
            if name.as_str() == UNLISTED_TENANT && tenant.parent.is_some() {
                found.push(Violation::new(
                    format!("tenants.{name}.parent"),
                    "must not be given: tenants that the policy does not name stand on the first level together",
                ));
            }
        }
        queue::check_partitions(&self.tenants, found);
        self.check_tree(found);
        if found.len() == before {
            self.check_nominal_sums(found);
        }
    }

    /// Parents are known, there are no cycles, and the tree is not too deep.
    fn check_tree(&self, found: &mut Vec<Violation>) {
        // The level of each tenant, from 1; zero where there is none, after something was found.
        let mut levels: BTreeMap<&Name, usize> = BTreeMap::new();
        for name in self.tenants.keys() {
            let mut path: Vec<&Name> = Vec::new();
            let mut on_path = BTreeSet::new();
            let mut next = Some(name);
            let mut level = loop {
                let Some(here) = next else { break Some(0) };
                if let Some(&level) = levels.get(here) {
                    break (level > 0).then_some(level);
                }
                if !on_path.insert(here) {
                    let first = path.iter().position(|member| *member == here).unwrap_or(0);
                    found.push(cycle(path.get(first..).unwrap_or_default()));
                    break None;
                }
                let Some(tenant) = self.tenants.get(here) else {
                    // Only a parent can be unknown, so the path has the tenant that named it.
                    let below = path.last().map_or("", |below| below.as_str());
                    found.push(Violation::new(
                        format!("tenants.{below}.parent"),
                        format!("must be a tenant that the policy lists, got {here}: list {here} as well"),
                    ));
                    break None;
                };
                path.push(here);
                next = tenant.parent.as_ref();
            };
            for member in path.into_iter().rev() {
                level = level.map(|above| above + 1);
                levels.insert(member, level.unwrap_or(0));
                // Those further down are too deep only because this one is.
                if level == Some(TENANT_DEPTH_MAX + 1) {
                    found.push(Violation::new(
                        format!("tenants.{member}.parent"),
                        format!("must leave the tree at most {TENANT_DEPTH_MAX} levels deep"),
                    ));
                }
            }
        }
    }

    /// What is promised to the tenants below one is part of what is promised to it. A tenant without a
    /// quota promises what those below it are promised. Needs a sound tree.
    fn check_nominal_sums(&self, found: &mut Vec<Violation>) {
        type Flavour<'a> = (&'a Name, Option<&'a Name>);
        let parent_of = |name: &Name| self.tenants.get(name).and_then(|t| t.parent.as_ref());
        let mut stated: BTreeMap<(&Name, Flavour<'_>), u64> = BTreeMap::new();
        let mut deepest_first: Vec<(usize, &Name)> = Vec::new();
        for (name, tenant) in &self.tenants {
            let depth = core::iter::successors(Some(name), |below| parent_of(below)).count();
            deepest_first.push((usize::MAX - depth, name));
            for quota in &tenant.quotas {
                stated.insert((name, (&quota.kind, quota.region.as_ref())), quota.nominal_milli);
            }
        }
        deepest_first.sort_unstable();
        let mut below: BTreeMap<&Name, BTreeMap<Flavour<'_>, u64>> = BTreeMap::new();
        for (_, name) in deepest_first {
            let Some(tenant) = self.tenants.get(name) else { continue };
            let mut promised = below.remove(name).unwrap_or_default();
            for (index, quota) in tenant.quotas.iter().enumerate() {
                let field = || format!("tenants.{name}.quotas[{index}].nominal_milli");
                let flavour = (&quota.kind, quota.region.as_ref());
                let ancestors = core::iter::successors(tenant.parent.as_ref(), |below| parent_of(below));
                let mut promises = ancestors.map(|a| (a, stated.get(&(a, flavour))));
                if let Some((ancestor, Some(&most))) = promises.find(|(_, nominal)| nominal.is_some())
                    && quota.nominal_milli > most
                {
                    found.push(Violation::new(
                        field(),
                        format!("must be at most that of {ancestor}, {most}, got {}", quota.nominal_milli),
                    ));
                }
                let together = promised.insert(flavour, quota.nominal_milli).unwrap_or(0);
                if together > quota.nominal_milli {
                    found.push(Violation::new(
                        field(),
                        format!(
                            "must be at least what the tenants below it have together, {together}, got {}",
                            quota.nominal_milli
                        ),
                    ));
                }
            }
            if let Some(parent) = &tenant.parent {
                let sums = below.entry(parent).or_default();
                for (flavour, nominal) in promised {
                    // At most QUOTAS_MAX terms of at most QUOTA_MILLI_MAX: far below 2^64.
                    let sum: &mut u64 = sums.entry(flavour).or_default();
                    *sum = sum.saturating_add(nominal);
                }
            }
        }
    }

    fn check_scheduling(&self, found: &mut Vec<Violation>) {
        let order = &self.order;
        let preemption = &self.preemption;
        let (step_min, longest) = (STEP_DEADLINE_MS_MIN, POLICY_DURATION_MS_MAX);
        let counts: [(&str, u32, u32, u32); 4] = [
            ("order.ageing_milli", order.ageing_milli, 0, AGEING_MILLI_MAX),
            ("backfill.max_reservations", self.backfill.reservations_max, 0, RESERVATIONS_MAX),
            ("backfill.max_depth", self.backfill.depth_max, 1, BACKFILL_DEPTH_MAX),
            ("preemption.max_victims", preemption.victims_max, 0, VICTIMS_MAX),
        ];
        for (field, value, min, max) in counts {
            check_bound(field, value.into(), min.into(), max.into(), found);
        }
        let spans: [(&str, u64, u64, u64); 6] = [
            ("order.usage_half_life", order.usage_half_life_ms, USAGE_HALF_LIFE_MS_MIN, longest),
            ("preemption.minimum_run", preemption.minimum_run_ms, 0, longest),
            ("preemption.defragment_wait", preemption.defragment_wait_ms, 0, longest),
            ("preemption.backoff", preemption.backoff_ms, 0, longest),
            ("preemption.stopping_timeout", preemption.stopping_deadline_ms, step_min, longest),
            ("preemption.starting_timeout", preemption.starting_deadline_ms, step_min, longest),
        ];
        for (field, ms, min, max) in spans {
            if ms < min || ms > max {
                found.push(Violation::span(field, ms, min, max));
            }
        }
    }

    fn check_weights(&self, found: &mut Vec<Violation>) {
        let weights = &self.weights;
        let terms = [
            ("packing", weights.packing),
            ("throughput", weights.throughput),
            ("cost", weights.cost),
            ("data", weights.data),
            ("topology", weights.topology),
            ("spread", weights.spread),
        ];
        for (term, weight) in terms {
            let field = format!("weights.{term}");
            check_bound(&field, weight.into(), 0, PLACEMENT_WEIGHT_MAX.into(), found);
        }
    }

    fn check_transfers(&self, found: &mut Vec<Violation>) {
        check_count("transfers", self.transfers.len(), TRANSFERS_MAX, found);
        let mut seen = BTreeSet::new();
        for (index, rule) in self.transfers.iter().enumerate() {
            let field = format!("transfers[{index}]");
            if !seen.insert((&rule.from, &rule.to)) {
                found.push(Violation::new(&field, "must be the only rule for its two ends"));
            }
            let (price, speed) =
                (format!("{field}.micro_dollars_per_gib"), format!("{field}.bytes_per_second"));
            check_bound(&price, rule.micro_dollars_per_gib, 0, PRICE_MICRO_DOLLARS_MAX, found);
            check_bound(&speed, rule.bytes_per_second, 1, TRANSFER_BYTES_PER_SECOND_MAX, found);
        }
    }

    fn check_datasets(&self, found: &mut Vec<Violation>) {
        check_count("datasets", self.datasets.len(), DATASETS_MAX, found);
        for (name, dataset) in &self.datasets {
            check_bound(&format!("datasets.{name}.bytes"), dataset.bytes, 0, DATASET_BYTES_MAX, found);
            let (copies, max) = (dataset.regions.len() as u64, limits::JOB_REGIONS_MAX as u64);
            check_bound(&format!("datasets.{name}.regions"), copies, 1, max, found);
        }
    }

    fn check_spares(&self, found: &mut Vec<Violation>) {
        check_count("spare_hosts_per_rack", self.spare_hosts_per_rack.len(), SPARE_KINDS_MAX, found);
        for (kind, &hosts) in &self.spare_hosts_per_rack {
            let field = format!("spare_hosts_per_rack.{kind}");
            check_bound(&field, hosts.into(), 0, SPARE_HOSTS_MAX.into(), found);
        }
    }

    fn check_windows(&self, found: &mut Vec<Violation>) {
        check_count("windows", self.windows.len(), WINDOWS_MAX, found);
        let mut names = BTreeSet::new();
        for (index, window) in self.windows.iter().enumerate() {
            let field = format!("windows[{index}]");
            if !names.insert(&window.name) {
                found.push(Violation::new(format!("{field}.name"), "must be unique in the policy"));
            }
            if window.from >= window.until {
                found.push(Violation::new(
                    format!("{field}.end_time"),
                    format!("must be after the window's start, {}, got {}", window.from, window.until),
                ));
            }
            if window.scope.is_empty() {
                found.push(Violation::new(
                    format!("{field}.scope"),
                    "must name a region, cluster, block, rack or node",
                ));
            }
        }
    }
}

impl TenantPolicy {
    fn check(&self, at: &str, found: &mut Vec<Violation>) {
        let weight = format!("{at}.weight_milli");
        check_bound(&weight, self.weight_milli.into(), 0, WEIGHT_MILLI_MAX.into(), found);
        check_count(&format!("{at}.quotas"), self.quotas.len(), TENANT_QUOTAS_MAX, found);
        self.limits.job.check(&format!("{at}.limits.job"), found);
        self.limits.check_budgets(&format!("{at}.limits"), found);
        self.queue.check(&format!("{at}.queue"), found);
        users::check_users(self, at, found);
        users::check_user_limits(self, at, found);
        for (tier, limits) in &self.tier_limits {
            // By tier, because the order of the list that they were given in is not kept.
            let mut of_tier = Vec::new();
            limits.check("job", &mut of_tier);
            let named = |broken: Violation| {
                Violation::new(format!("{at}.limits.tiers"), format!("of {tier} jobs, {broken}"))
            };
            found.extend(of_tier.into_iter().map(named));
        }
        let mut seen = BTreeSet::new();
        for (index, quota) in self.quotas.iter().enumerate() {
            let at = format!("{at}.quotas[{index}]");
            if !seen.insert((&quota.kind, &quota.region)) {
                let place = quota.region.as_ref().map_or("all regions", |region| region.as_str());
                found.push(Violation::new(
                    &at,
                    format!("must be the tenant's only quota for {} in {place}", quota.kind),
                ));
            }
            check_bound(&format!("{at}.nominal_milli"), quota.nominal_milli, 0, QUOTA_MILLI_MAX, found);
            if let Some(limit) = quota.borrowing_limit_milli {
                check_bound(&format!("{at}.borrowing_limit_milli"), limit, 0, QUOTA_MILLI_MAX, found);
            }
            if let Some(limit) = quota.lending_limit_milli
                && limit > quota.nominal_milli
            {
                found.push(Violation::new(
                    format!("{at}.lending_limit_milli"),
                    format!("must be at most the nominal quota, {}, got {limit}", quota.nominal_milli),
                ));
            }
        }
    }
}

/// The violation of a cycle whose members follow each other upwards, told from the smallest name on.
fn cycle(members: &[&Name]) -> Violation {
    const SHOWN: usize = 16;
    let smallest = (0..members.len()).min_by_key(|&index| members.get(index)).unwrap_or(0);
    let (end, start) = members.split_at(smallest);
    let mut text = String::new();
    for member in start.iter().chain(end).take(SHOWN) {
        text.push_str(member);
        text.push_str(" -> ");
    }
    if members.len() > SHOWN {
        text.push_str("... -> ");
    }
    let first = start.first().map_or("", |member| member.as_str());
    Violation::new(format!("tenants.{first}.parent"), format!("must not lead back to itself: {text}{first}"))
}

fn check_bound(field: &str, value: u64, min: u64, max: u64, found: &mut Vec<Violation>) {
    if value < min || value > max {
        found.push(Violation::limit(field, value, min, max));
    }
}

fn check_count(field: &str, count: usize, max: usize, found: &mut Vec<Violation>) {
    check_bound(field, count as u64, 0, max as u64, found);
}
