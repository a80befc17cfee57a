//! Which jobs, arrays and nodes a decision changes: found before it is applied, while the state still has what it takes away.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use muster_journal::{Decision, RankUpdate, WorkerSlot};
use muster_state::State;
use muster_types::{ArrayId, JobId, NodeId};

use crate::jobs::{self, Settlement, milli_of};

/// What is looked at again of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobChange {
    /// What its workers and spares hold.
    pub(crate) holdings: bool,
    /// What was submitted.
    pub(crate) spec: bool,
    /// What workers held that are over now: node and thousandths.
    pub(crate) freed: Vec<(NodeId, u64)>,
    /// What became of its work, and whether that is because of a checkpoint.
    pub(crate) settled: Option<(Settlement, bool)>,
}

/// What a decision changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeSet {
    pub(crate) jobs: BTreeMap<JobId, JobChange>,
    pub(crate) arrays: BTreeSet<ArrayId>,
    pub(crate) nodes: BTreeSet<NodeId>,
}

impl ChangeSet {
    pub(crate) fn job(&mut self, job: JobId) -> &mut JobChange {
        self.jobs.entry(job).or_default()
    }

    /// Jobs of which something was asked; a member that is not created changes its array.
    fn asked(&mut self, state: &State, jobs: &[JobId]) {
        for job in jobs {
            self.job(*job);
            if state.job(*job).is_none() {
                self.arrays.extend(state.array_of(*job).map(|(array, _)| array));
            }
        }
    }

    fn places(&mut self, slots: &[WorkerSlot]) {
        self.nodes.extend(slots.iter().map(|slot| slot.node));
    }

    fn hold(&mut self, state: &State, job: JobId) {
        if let Some(hold) = state.job(job).and_then(|row| row.promise.as_ref()) {
            self.places(&hold.slots);
        }
    }

    /// The end of an attempt: its workers are over, and its spares are given up.
    fn end(&mut self, state: &State, job: JobId, settlement: Settlement) {
        self.hold(state, job);
        self.places(state.spares(job));
        let touch = self.job(job);
        touch.holdings = true;
        touch.settled = Some((settlement, false));
    }

    fn lost(&mut self, state: &State, node: NodeId) {
        self.nodes.insert(node);
        for job in state.gangs_on(node).chain(state.spares_on(node)) {
            self.job(job).holdings = true;
        }
    }

    fn reported(&mut self, state: &State, node: NodeId, job: JobId, updates: &[(u32, RankUpdate)]) {
        self.job(job);
        let placement = state.job(job).and_then(|row| row.placement.as_ref());
        let (Some(placement), Some(spec)) = (placement, state.spec(job)) else { return };
        for (rank, update) in updates {
            let place = *rank as usize;
            let is_live = placement.ranks.get(place).is_some_and(|state| !state.is_over());
            if is_live && matches!(update, RankUpdate::Exited(_)) {
                self.nodes.insert(node);
                self.job(job).freed.push((node, milli_of(spec, place, placement.slots.len())));
            }
        }
    }

    /// What a decision about jobs changes.
    fn of_jobs(&mut self, state: &State, decision: &Decision) {
        match decision {
            Decision::JobCancelRequested { jobs, .. }
            | Decision::JobHoldSet { jobs, .. }
            | Decision::JobRequeueRequested { jobs, .. } => self.asked(state, jobs),
            Decision::ArraysControlled { arrays, jobs, .. } => {
                self.arrays.extend(arrays);
                self.asked(state, jobs);
            }
            Decision::JobModified { job, .. } => {
                // What is kept for it has its tier.
                self.hold(state, *job);
                self.job(*job).spec = true;
            }
            Decision::WorkersReported { node, job, updates, .. } => {
                self.reported(state, *node, *job, updates);
            }
            Decision::GangPlaced { job, workers } => {
                self.hold(state, *job);
                self.places(workers);
                self.job(*job).holdings = true;
            }
            Decision::JobRequeued { job, .. } => self.end(state, *job, jobs::requeued(state, *job)),
            Decision::JobFinished { job, outcome } => {
                self.end(state, *job, jobs::finished(state, *job, outcome));
            }
            Decision::Rearranged { stops, promises } => {
                stops.iter().for_each(|stop| _ = self.job(stop.job));
                for hold in promises {
                    self.job(hold.job);
                    self.places(&hold.workers);
                }
            }
            Decision::PromiseDropped { job } => {
                self.job(*job);
                self.hold(state, *job);
            }
            Decision::CheckpointCommitted { job, .. } => {
                self.job(*job).settled = Some((Settlement::Kept, true));
            }
            Decision::SparesTaken { job, .. } => {
                self.places(state.spares(*job));
                let placement = state.job(*job).and_then(|row| row.placement.as_ref());
                self.places(placement.map_or(&[], |placement| &placement.slots));
                self.job(*job).holdings = true;
            }
            // The rest is not handed to this.
            Decision::GangStopRequested { .. }
            | Decision::JobReleased { .. }
            | Decision::JobsSubmitted { .. }
            | Decision::JobContractsSet { .. }
            | Decision::JobMetadataSet { .. }
            | Decision::ArraysSubmitted { .. }
            | Decision::ArrayMembersCreated { .. }
            | Decision::ArrayReleased { .. }
            | Decision::ArrayMembersFailed { .. }
            | Decision::ArrayThrottleSet { .. }
            | Decision::AttemptFailed { .. }
            | Decision::StragglerNoted { .. }
            | Decision::NodeRegistered { .. }
            | Decision::NodeLost { .. }
            | Decision::NodeForgotten { .. }
            | Decision::NodeCordonSet { .. }
            | Decision::NodeHealthChanged { .. }
            | Decision::NodeDrainSet { .. }
            | Decision::NodeQuarantineSet { .. }
            | Decision::NodeRepairSet { .. }
            | Decision::NodeOverridesSet { .. }
            | Decision::NodeAdmissionSet { .. }
            | Decision::NodeApprovalSet { .. }
            | Decision::ForeignLoadSet { .. }
            | Decision::SessionResumed { .. }
            | Decision::AgentStarted { .. }
            | Decision::NotificationsDelivered { .. }
            | Decision::CertificateRevoked { .. }
            | Decision::TokenCreated { .. }
            | Decision::TokenRevoked { .. }
            | Decision::ExecOpened { .. }
            | Decision::QuotaRequested { .. }
            | Decision::QuotaAnswered { .. }
            | Decision::QuotaGranted { .. }
            | Decision::QuotaGrantsEnded { .. }
            | Decision::BookingCreated { .. }
            | Decision::BookingDeleted { .. }
            | Decision::BookingOpened { .. }
            | Decision::BookingEnded { .. }
            | Decision::BookingMoved { .. }
            | Decision::FallbackOpened { .. }
            | Decision::FleetHoldSet { .. }
            | Decision::FleetHoldEnded { .. }
            | Decision::PortForwardOpened { .. }
            | Decision::ArtifactsKept { .. }
            | Decision::ScheduleSet { .. }
            | Decision::ScheduleDeleted { .. }
            | Decision::ScheduleSuspensionSet { .. }
            | Decision::SchedulePlanned { .. }
            | Decision::ScheduleRan { .. }
            | Decision::ClusterCreated { .. }
            | Decision::ClusterRecovered { .. }
            | Decision::LeaderStarted
            | Decision::HistoryPruned { .. }
            | Decision::DigestRecorded { .. }
            | Decision::PolicySet { .. }
            | Decision::HealthPolicySet { .. }
            | Decision::TurnsChanged { .. }
            | Decision::FormatRaised { .. } => {}
        }
    }

    /// What a decision changes, by the state before it. What it adds is known from its effects.
    pub(crate) fn by(state: &State, decision: &Decision) -> ChangeSet {
        let mut changed = ChangeSet::default();
        match decision {
            Decision::JobCancelRequested { .. }
            | Decision::JobHoldSet { .. }
            | Decision::JobRequeueRequested { .. }
            | Decision::ArraysControlled { .. }
            | Decision::JobModified { .. }
            | Decision::WorkersReported { .. }
            | Decision::GangPlaced { .. }
            | Decision::JobRequeued { .. }
            | Decision::JobFinished { .. }
            | Decision::Rearranged { .. }
            | Decision::PromiseDropped { .. }
            | Decision::CheckpointCommitted { .. }
            | Decision::SparesTaken { .. } => changed.of_jobs(state, decision),
            Decision::GangStopRequested { job, .. } | Decision::JobReleased { job } => {
                changed.job(*job);
            }
            Decision::ArrayMembersCreated { array, .. }
            | Decision::ArrayReleased { array }
            | Decision::ArrayMembersFailed { array, .. }
            | Decision::ArrayThrottleSet { array, .. } => {
                changed.arrays.insert(*array);
            }
            Decision::NodeLost { node, .. } => changed.lost(state, *node),
            Decision::ClusterRecovered { .. } => {
                state.nodes().iter().for_each(|(node, _)| changed.lost(state, *node));
            }
            Decision::NodeCordonSet { node, .. }
            | Decision::NodeForgotten { node, .. }
            | Decision::NodeHealthChanged { node, .. }
            | Decision::NodeDrainSet { node, .. }
            | Decision::NodeQuarantineSet { node, .. }
            | Decision::NodeRepairSet { node, .. }
            | Decision::ForeignLoadSet { node, .. } => _ = changed.nodes.insert(*node),
            // New ones, which the effects name.
            Decision::JobsSubmitted { .. }
            | Decision::ArraysSubmitted { .. }
            | Decision::NodeRegistered { .. } => {}
            // Nothing that is charged changes.
            Decision::ClusterCreated { .. }
            | Decision::LeaderStarted
            | Decision::HistoryPruned { .. }
            | Decision::DigestRecorded { .. }
            | Decision::PolicySet { .. }
            | Decision::TurnsChanged { .. }
            | Decision::FormatRaised { .. }
            | Decision::JobContractsSet { .. }
            | Decision::AttemptFailed { .. }
            | Decision::StragglerNoted { .. }
            | Decision::HealthPolicySet { .. }
            | Decision::NodeOverridesSet { .. }
            | Decision::NodeAdmissionSet { .. }
            | Decision::NodeApprovalSet { .. }
            | Decision::CertificateRevoked { .. }
            | Decision::TokenCreated { .. }
            | Decision::TokenRevoked { .. }
            | Decision::ExecOpened { .. }
            | Decision::QuotaRequested { .. }
            | Decision::QuotaAnswered { .. }
            | Decision::QuotaGranted { .. }
            | Decision::QuotaGrantsEnded { .. }
            | Decision::BookingCreated { .. }
            | Decision::BookingDeleted { .. }
            | Decision::BookingOpened { .. }
            | Decision::BookingEnded { .. }
            | Decision::BookingMoved { .. }
            | Decision::FallbackOpened { .. }
            | Decision::FleetHoldSet { .. }
            | Decision::FleetHoldEnded { .. }
            | Decision::PortForwardOpened { .. }
            | Decision::ArtifactsKept { .. }
            | Decision::ScheduleSet { .. }
            | Decision::ScheduleDeleted { .. }
            | Decision::ScheduleSuspensionSet { .. }
            | Decision::SchedulePlanned { .. }
            | Decision::ScheduleRan { .. }
            | Decision::SessionResumed { .. }
            | Decision::AgentStarted { .. }
            | Decision::NotificationsDelivered { .. }
            | Decision::JobMetadataSet { .. } => {}
        }
        changed
    }
}
