//! The state: its tables, and reading them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::{Bound, RangeBounds, RangeInclusive};
use muster_journal::{FORMAT_MIN, WorkerSlot};
use muster_types::policy::NotificationProgress;
use muster_types::{
    ArrayId, Booking, HoldTarget, JobContract, JobId, JobMetadata, JobSpec, Leadership, LogIndex, LogTime,
    MetadataBits, Name, NodeId, Parameters, PriorityTier, RequestId, ScheduleKey, Token, TokenId,
};
use serde::{Deserialize, Serialize};

use crate::demand::Demand;
use crate::index::{ApartKind, Described, Indexes, LinePlace, Pool, PoolKey, QueuePosition, UserKey};
use crate::quota::QuotaUsage;
use crate::rows::{
    ArrayFacts, ArrayRow, BurstRow, CapacityKey, CapacityRow, ClusterMeta, ControlRow, DoorKey, DoorRow,
    FleetHoldRow, GangClass, HealthPolicyRow, HistoryKey, HistoryRow, JobRow, JobTimes, MemberEnds,
    NodeFacts, NodeRow, PolicyDigest, PolicyRow, QuotaKey, QuotaRow, RecoveryRow, RequestRow, RestrictionRow,
    ScheduleRow, SpecFacts,
};
use crate::table::Table;
use crate::tables::tables;
use crate::tree::Set;
use crate::usage::TenantUsage;

/// What is not a row of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    /// The record format in force.
    pub(crate) format: u16,
    pub(crate) cluster: Option<ClusterMeta>,
    pub(crate) leadership: Option<Leadership>,
    pub(crate) log_index: LogIndex,
    pub(crate) log_time: LogTime,
    /// Nodes that were ever registered: the id of the next one. An id is never given twice, even when its
    /// node is forgotten.
    pub(crate) nodes_registered: u32,
    /// Records the guard refused although leadership and sequence were current.
    pub(crate) rejected: u64,
    /// Records of leaderships that had ended; expected around a change of leader.
    pub(crate) stale: u64,
    /// How far positions in the ids of jobs run ahead of those in the log: arrays take several.
    pub(crate) ids_ahead: u64,
}

impl Default for Meta {
    fn default() -> Meta {
        Meta {
            format: FORMAT_MIN,
            cluster: None,
            leadership: None,
            log_index: LogIndex::ZERO,
            log_time: LogTime(0),
            nodes_registered: 0,
            rejected: 0,
            stale: 0,
            ids_ahead: 0,
        }
    }
}

macro_rules! define_state {
    ($($(#[$doc:meta])* $name:ident: $key:ty => $row:ty, $facts:ty; $tag:literal, $what:literal;)*) => {
        /// The replicated state at one position of the log.
        #[derive(Clone, Debug, Default)]
        pub struct State {
            pub(crate) meta: Meta,
            $($(#[$doc])* pub(crate) $name: Table<$key, $row, $facts>,)*
            pub(crate) policy: PolicyRow,
            /// Follows from the policy.
            pub(crate) policy_digest: PolicyDigest,
            /// What workers asked for; its sample is a separate table.
            pub(crate) demand: Demand,
            /// The one that every cluster begins with.
            pub(crate) first_health_policy: HealthPolicyRow,
            pub(crate) indexes: Indexes,
        }

        impl State {
            /// The digest of each table.
            pub(crate) fn digests(&self) -> [u64; [$($tag),*].len()] {
                [$(self.$name.digest()),*]
            }

            /// The first table whose digest is not that of its rows, by what its rows are called.
            pub(crate) fn wrong_digest(&self) -> Option<&'static str> {
                let tables = [$((self.$name.has_digest_of_rows(), $what)),*];
                tables.into_iter().find(|(is_right, _)| !is_right).map(|(_, what)| what)
            }
        }
    };
}

tables!(define_state);

impl State {
    /// Position of the last record.
    #[must_use]
    pub fn log_index(&self) -> LogIndex {
        self.meta.log_index
    }

    /// Log time of the last record.
    #[must_use]
    pub fn log_time(&self) -> LogTime {
        self.meta.log_time
    }

    /// The leadership whose records are accepted.
    #[must_use]
    pub fn leadership(&self) -> Option<Leadership> {
        self.meta.leadership
    }

    /// Identity and parameters, once the cluster exists.
    #[must_use]
    pub fn cluster(&self) -> Option<&ClusterMeta> {
        self.meta.cluster.as_ref()
    }

    /// The parameters in force.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        self.meta.cluster.map_or(Parameters::DEFAULT, |c| c.parameters)
    }

    /// The record format in force: rounds from here on are written in it.
    #[must_use]
    pub fn format(&self) -> u16 {
        self.meta.format
    }

    /// The cluster's generation, from 1; zero before it exists.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.meta.cluster.map_or(0, |cluster| cluster.generation)
    }

    /// Records the guard refused although their basis was current: each is a bug of a leader.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.meta.rejected
    }

    /// Records of leaderships that had ended, or out of sequence: expected around a change of leader.
    #[must_use]
    pub fn stale(&self) -> u64 {
        self.meta.stale
    }

    /// A job.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<&JobRow> {
        self.jobs.get(&id)
    }

    /// What was submitted.
    #[must_use]
    pub fn spec(&self, id: JobId) -> Option<&Arc<JobSpec>> {
        self.specs.get(&id)
    }

    /// What was submitted, with what follows from it.
    pub(crate) fn described(&self, id: JobId) -> Option<Described> {
        let (spec, facts) = self.specs.get_with_facts(&id)?;
        let metadata = self.metadata.get(&id).map(Arc::clone);
        Some(Described { spec: Arc::clone(spec), facts: *facts, metadata })
    }

    /// All jobs, in order of submission.
    #[must_use]
    pub fn jobs(&self) -> &Table<JobId, JobRow> {
        &self.jobs
    }

    /// Jobs of a range with what was submitted, in order of submission.
    pub fn jobs_with_specs(
        &self,
        range: impl RangeBounds<JobId> + Clone,
    ) -> impl Iterator<Item = (JobId, &JobRow, &Arc<JobSpec>)> {
        // Every job has a spec, so that the two tables have the same keys.
        let rows = self.jobs.range(range.clone()).zip(self.specs.range(range));
        rows.map(|((id, row), (_, spec))| (*id, row, spec))
    }

    /// A node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&NodeRow> {
        self.nodes.get(&id)
    }

    /// All nodes, in order of first registration.
    #[must_use]
    pub fn nodes(&self) -> &Table<NodeId, NodeRow, NodeFacts> {
        &self.nodes
    }

    /// Nodes that were ever registered; every id below it was given once.
    #[must_use]
    pub fn nodes_registered(&self) -> u32 {
        self.meta.nodes_registered
    }

    /// Lost nodes by the time of their last change, longest ago first.
    pub fn lost_nodes(&self) -> impl Iterator<Item = (LogTime, NodeId)> {
        self.indexes.lost_nodes.iter().copied()
    }

    /// A node by its name.
    #[must_use]
    pub fn node_named(&self, name: &Name) -> Option<NodeId> {
        self.indexes.nodes_by_name.get(name).copied()
    }

    /// Nodes in the order of their names.
    pub fn nodes_by_name(&self) -> impl Iterator<Item = (&Name, NodeId)> {
        self.nodes_by_name_behind(None)
    }

    /// The same from the first name behind `after` on.
    pub fn nodes_by_name_behind(&self, after: Option<&Name>) -> impl Iterator<Item = (&Name, NodeId)> {
        let range = (after.cloned().map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.indexes.nodes_by_name.range(range).map(|(name, id)| (name, *id))
    }

    /// Nodes whose session stands.
    #[must_use]
    pub fn nodes_up(&self) -> u64 {
        self.indexes.nodes_up
    }

    /// A remembered request.
    #[must_use]
    pub fn request(&self, id: RequestId) -> Option<&RequestRow> {
        self.requests.get(&id)
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> &PolicyRow {
        &self.policy
    }

    /// What restricts a node; `None` when nothing does.
    #[must_use]
    pub fn restriction(&self, node: NodeId) -> Option<&RestrictionRow> {
        self.restrictions.get(&node)
    }

    /// Nodes that something is known against, in the order of their ids.
    pub fn restrictions(&self) -> impl Iterator<Item = (NodeId, &RestrictionRow)> {
        self.restrictions.iter().map(|(id, row)| (*id, row))
    }

    /// Nodes that everything is to go from.
    pub fn draining(&self) -> impl Iterator<Item = NodeId> {
        self.indexes.draining.iter().copied()
    }

    /// Nodes whose provider has announced maintenance, by the time it begins.
    pub fn maintenance(&self) -> impl Iterator<Item = (LogTime, NodeId)> {
        self.indexes.maintenance.iter().copied()
    }

    /// What happened to a job when.
    #[must_use]
    pub fn times(&self, job: JobId) -> JobTimes {
        self.times.get(&job).copied().unwrap_or_default()
    }

    /// The health policy in force.
    #[must_use]
    pub fn health_policy(&self) -> HealthPolicyRow {
        self.health_policy.get(&()).unwrap_or(&self.first_health_policy).clone()
    }

    /// Tenants with pending jobs of a tier, with the first turn of each.
    pub fn tenants_in_line(&self, tier: PriorityTier) -> impl Iterator<Item = (&Name, QueuePosition)> {
        let of_tier = self.indexes.line.get(&Reverse(tier)).into_iter().flat_map(|tenants| tenants.iter());
        of_tier.filter_map(|(tenant, line)| line.heads.first().map(|(turn, _)| (tenant, *turn)))
    }

    /// The next behind `after` among the first of every class that a tenant has pending; the very first
    /// without it.
    #[must_use]
    pub fn head_behind(
        &self,
        tier: PriorityTier,
        tenant: &Name,
        after: Option<QueuePosition>,
    ) -> Option<(QueuePosition, GangClass)> {
        let heads = &self.indexes.line.get(&Reverse(tier))?.get(tenant)?.heads;
        match after {
            Some(turn) => heads.first_from(&(turn, GangClass::LAST), true).copied(),
            None => heads.first().copied(),
        }
    }

    /// The next pending job of a tenant that asks for the same, behind one of a submission group that has a place in the lane of
    /// this class: another of the group, else the first of the next group. With it is the place of its group.
    #[must_use]
    pub fn next_alike(
        &self,
        (tier, tenant, class): (PriorityTier, &Name, GangClass),
        place: QueuePosition,
        job: JobId,
    ) -> Option<(QueuePosition, JobId)> {
        if let Some(next) = self.indexes.waiting_behind(self.burst_of(job)?, job) {
            return Some((place, next));
        }
        let lanes = &self.indexes.line.get(&Reverse(tier))?.get(tenant)?.lanes;
        let behind = (Bound::Excluded((class, place)), Bound::Unbounded);
        let (of, next) = lanes.range(behind).next().copied()?;
        (of == class).then_some((next, next.job))
    }

    /// Pending submission groups behind a position, or from the front of all lanes; at most `count`, and where to go on,
    /// unless that was all. A position that is gone still shows where to go on.
    #[must_use]
    pub fn in_line_behind(&self, place: Option<&LinePlace>, count: usize) -> (Vec<JobId>, Option<LinePlace>) {
        let from = place.map_or(Bound::Unbounded, |place| Bound::Included(place.tier));
        let mut found = Vec::new();
        for (tier, tenants) in self.indexes.line.range((from, Bound::Unbounded)) {
            let place = place.filter(|place| place.tier == *tier);
            let from = place.map_or(Bound::Unbounded, |place| Bound::Included(place.tenant.clone()));
            for (tenant, line) in tenants.range((from, Bound::Unbounded)) {
                let behind = match place.filter(|place| place.tenant == *tenant) {
                    Some(place) => Bound::Excluded((place.class, place.turn)),
                    None => Bound::Unbounded,
                };
                for (class, turn) in line.lanes.range((behind, Bound::Unbounded)) {
                    found.push(self.burst_of(turn.job).expect("a pending job has a row"));
                    if found.len() >= count {
                        let (tier, tenant) = (*tier, tenant.clone());
                        return (found, Some(LinePlace { tier, tenant, class: *class, turn: *turn }));
                    }
                }
            }
        }
        (found, None)
    }

    /// The number of different requests in the pending queue.
    #[must_use]
    pub fn classes_in_line(&self) -> usize {
        self.indexes.lanes
    }

    /// Jobs that may not start before a time, by that time.
    pub fn not_before(&self) -> impl Iterator<Item = (LogTime, JobId)> {
        self.indexes.not_before.iter().copied()
    }

    /// The same behind one of them.
    pub fn not_before_behind(&self, place: (LogTime, JobId)) -> impl Iterator<Item = (LogTime, JobId)> {
        self.indexes.not_before.range((Bound::Excluded(place), Bound::Unbounded)).copied()
    }

    /// Since when a job waits, or waited before its last placement: since it was submitted, since the last of its known
    /// dependencies finished, or since it was stopped. `None` when there is no such job.
    #[must_use]
    pub fn waits_since(&self, job: JobId) -> Option<LogTime> {
        let row = self.jobs.get(&job)?;
        let could_start = || {
            let dependencies = self.specs.get(&job).map(|spec| spec.dependencies.as_slice());
            let others = dependencies.unwrap_or_default().iter();
            let ordinal = self.specs.get(&job).and_then(|spec| spec.array).map_or(0, |member| member.ordinal);
            let ends = others.filter_map(|on| {
                let array = ArrayId(on.job.0);
                let counterpart = || self.jobs.get(&array.member(ordinal))?.finished_at;
                match (on.is_of_array(), on.is_of_members()) {
                    (true, _) => self.arrays.get(&array)?.finished_at,
                    // Where its row is gone, it had ended before its array had.
                    (_, true) => counterpart().or_else(|| self.arrays.get(&array)?.finished_at),
                    _ => self.jobs.get(&on.job)?.finished_at,
                }
            });
            ends.fold(row.submitted_at, LogTime::max)
        };
        Some(self.times(job).waits_since.unwrap_or_else(could_start))
    }

    /// The next of those times behind another.
    #[must_use]
    pub fn not_before_after(&self, time: LogTime) -> Option<LogTime> {
        let behind = (Bound::Excluded((time, JobId(u64::MAX))), Bound::Unbounded);
        let of_jobs = self.indexes.not_before.range(behind).next().map(|(time, _)| *time);
        let behind = (Bound::Excluded((time, ArrayId(u64::MAX))), Bound::Unbounded);
        let of_arrays = self.indexes.arrays_not_before.range(behind).next().map(|(time, _)| *time);
        of_jobs.into_iter().chain(of_arrays).min()
    }

    /// Jobs that wait for a job.
    pub fn dependents(&self, job: JobId) -> impl Iterator<Item = JobId> {
        let range = (job, JobId(0))..=(job, JobId(u64::MAX));
        self.indexes.dependents.range(range).map(|(_, dependent)| *dependent)
    }

    /// Jobs that wait for others, once for each.
    pub fn waiting_for_others(&self) -> impl Iterator<Item = JobId> {
        self.indexes.dependents.iter().map(|(_, job)| *job)
    }

    /// Jobs that capacity is promised to.
    pub fn promised(&self) -> impl Iterator<Item = JobId> {
        self.indexes.promised.iter().copied()
    }

    /// Jobs that capacity on a node is promised to.
    pub fn promised_on(&self, node: NodeId) -> impl Iterator<Item = JobId> {
        let range = (node, JobId(0))..=(node, JobId(u64::MAX));
        self.indexes.promises_by_node.range(range).map(|(_, job)| *job)
    }

    /// Jobs that hold devices in a cluster, by the time they are expected to end.
    pub fn ends(&self, region: &Name, cluster: &Name) -> impl Iterator<Item = (LogTime, JobId)> {
        let ends = self.indexes.ends.get(&(region.clone(), cluster.clone())).into_iter();
        ends.flat_map(|ends| ends.iter().copied())
    }

    /// Gangs that are being stopped.
    pub fn stopping(&self) -> impl Iterator<Item = JobId> {
        self.indexes.stopping.iter().copied()
    }

    /// Running gangs that policy may stop, up to a tier, lowest tier first.
    pub fn preemptible(&self, tier_max: PriorityTier) -> impl Iterator<Item = JobId> {
        let up_to = (tier_max, JobId(u64::MAX));
        self.indexes.preemptible.range(..=up_to).map(|(_, job)| *job)
    }

    /// What a tenant has used.
    #[must_use]
    pub fn usage(&self, tenant: &Name) -> Option<&TenantUsage> {
        self.tenants.get(tenant)
    }

    /// Whether the policy has quotas at all.
    #[must_use]
    pub fn has_quotas(&self) -> bool {
        self.indexes.has_quotas
    }

    /// Running gangs with fewer workers than they asked for.
    pub fn growable(&self) -> impl Iterator<Item = JobId> {
        self.indexes.growable.iter().copied()
    }

    /// What quotas are used, by tenant, type and region.
    #[must_use]
    pub fn quota_usage(&self) -> &QuotaUsage {
        &self.indexes.quota
    }

    /// What run times were seen.
    #[must_use]
    pub fn history(&self) -> &Table<HistoryKey, HistoryRow> {
        &self.history
    }

    /// What workers asked for lately.
    #[must_use]
    pub fn demand(&self) -> &Demand {
        &self.demand
    }

    /// How many jobs are pending; members of arrays that are not created are among them.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.indexes.pending + usize::try_from(self.indexes.uncreated).unwrap_or(usize::MAX)
    }

    /// The same by what holds them back, as far as the job itself says: `eligible` ones wait for capacity, quota or their turn,
    /// and which of these it is only an explanation says. Jobs of `dependency` may also wait for a time behind other jobs.
    pub fn pending_by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.indexes.pending_by_reason.iter()
    }

    /// Jobs that hold devices, by id.
    pub fn active(&self) -> impl DoubleEndedIterator<Item = JobId> {
        self.indexes.active.iter().copied()
    }

    /// Jobs of a tenant that hold devices and have an id of a range, by id.
    pub fn active_of<'a>(
        &'a self,
        tenant: &Name,
        range: RangeInclusive<JobId>,
    ) -> impl Iterator<Item = JobId> + use<'a> {
        let active = self.indexes.active_by_tenant.get(tenant).into_iter();
        active.flat_map(move |jobs| jobs.range(range.clone()).copied())
    }

    /// Tenants with jobs that hold devices, by name.
    pub fn active_tenants(&self) -> impl Iterator<Item = &Name> {
        self.indexes.work.iter().map(|(tenant, _)| tenant)
    }

    /// Jobs of a tenant that hold devices, or to which some are promised, and that keep other jobs away from there, by what
    /// they keep away.
    pub fn apart_of<'a>(
        &'a self,
        tenant: &Name,
    ) -> impl Iterator<Item = (&'a ApartKind, &'a Set<JobId>)> + use<'a> {
        self.indexes.apart.get(tenant).into_iter().flat_map(|kinds| kinds.iter())
    }

    /// Whether any job keeps others away from where it is, or will be.
    #[must_use]
    pub fn has_apart(&self) -> bool {
        !self.indexes.apart.is_empty()
    }

    /// How many jobs hold devices.
    #[must_use]
    pub fn active_count(&self) -> usize {
        self.indexes.active.size()
    }

    /// How many finished jobs are still kept.
    #[must_use]
    pub fn finished_count(&self) -> usize {
        self.indexes.finished.size()
    }

    /// Finished jobs with the time they ended, oldest first.
    pub fn finished(&self) -> impl Iterator<Item = (LogTime, JobId)> {
        self.indexes.finished.iter().copied()
    }

    /// How many requests are remembered.
    #[must_use]
    pub fn requests_count(&self) -> usize {
        self.indexes.requests_by_time.size()
    }

    /// Remembered requests with their time, oldest first.
    pub fn requests_by_time(&self) -> impl Iterator<Item = (LogTime, RequestId)> {
        self.indexes.requests_by_time.iter().copied()
    }

    /// Running jobs that have a limit, by the time they reach it.
    pub fn run_limits(&self) -> impl Iterator<Item = (LogTime, JobId)> {
        self.indexes.run_limits.iter().copied()
    }

    /// Gangs that are being started, by when they were placed.
    pub fn starting(&self) -> impl Iterator<Item = (LogTime, JobId)> {
        self.indexes.starting.iter().copied()
    }

    /// Gangs that run and of which some workers have yet to say that they are ready, by when they have to.
    pub fn unready(&self) -> impl Iterator<Item = (LogTime, JobId)> {
        self.indexes.unready.iter().copied()
    }

    /// Gangs that are being stopped, by when their workers should have been killed.
    pub fn killed_by(&self) -> impl Iterator<Item = (LogTime, JobId)> {
        self.indexes.killed_by.iter().copied()
    }

    /// Jobs that wait or run and have to be over by a time, by that time.
    pub fn deadlines(&self) -> impl Iterator<Item = (LogTime, JobId)> {
        self.indexes.deadlines.iter().copied()
    }

    /// Gangs with workers on a node that are not over.
    pub fn gangs_on(&self, node: NodeId) -> impl Iterator<Item = JobId> {
        let range = (node, JobId(0))..=(node, JobId(u64::MAX));
        self.indexes.gangs_by_node.range(range).map(|(_, job)| *job)
    }

    /// Capacity by region, cluster and accelerator type, in that order.
    pub fn pools(&self) -> impl Iterator<Item = (&PoolKey, &Pool)> {
        self.indexes.pools.iter()
    }
}
