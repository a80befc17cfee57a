//! The guard: what must hold before a record is folded in.
//!
//! The leader ran the same checks on its speculative state, so a refusal whose leadership and
//! sequence were current is a bug of that leader; it is counted the same on every replica.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use muster_journal::{Decision, NodeLostCause, Outcome, RankUpdate, StopCause, WorkerSlot};
use muster_types::{
    ExitStatus, FencingToken, HolderId, JobId, JobSpec, LogIndex, LogTime, NodeId, NodeSpec, limits,
};

use crate::apply::State;
use crate::fit;
use crate::index::PoolKey;
use crate::rows::{JobRow, Leadership, NodeRow, NodeStatus, Phase, Placement, RankState};

/// Why a record was not folded in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardError {
    /// Of a leadership that is not the current one, or not newer for a new leadership.
    StaleLeadership,
    /// Not the next position of the log.
    OutOfSequence,
    /// Log time would go back.
    TimeWentBack,
    /// The cluster exists already, or does not exist yet.
    ClusterExistence,
    /// The request id was used before.
    RequestRepeated,
    /// A bound of `limits` is broken.
    Limit,
    /// No such job.
    JobUnknown,
    /// The job is in another phase.
    JobPhase,
    /// No such node.
    NodeUnknown,
    /// The node is lost, cordoned, held by another, or in another incarnation.
    NodeNotCurrent,
    /// The token is not the placement's.
    TokenNotCurrent,
    /// A rank is not one of this node's, or is over already.
    RankNotCurrent,
    /// A worker does not fit where it was put.
    DoesNotFit,
    /// The gang is spread over several fleet clusters or outside its regions.
    PlaceNotAllowed,
    /// Workers still run.
    WorkersRemain,
    /// Nothing would change.
    NothingToDo,
}

type Check = Result<(), GuardError>;

/// Whether an exit's text is within its bound.
fn is_bounded(exit: &ExitStatus) -> bool {
    !matches!(exit, ExitStatus::LaunchFailed(why) if why.len() > limits::DETAIL_BYTES_MAX)
}

fn require(condition: bool, error: GuardError) -> Check {
    if condition { Ok(()) } else { Err(error) }
}

impl State {
    /// Whether a decision would be folded in at the present position.
    ///
    /// # Errors
    /// The guard's reason.
    pub fn check(&self, decision: &Decision) -> Result<(), GuardError> {
        let founding = matches!(decision, Decision::ClusterCreated { .. });
        let leading = matches!(decision, Decision::LeaderStarted);
        if !leading {
            require(self.meta.cluster.is_none() == founding, GuardError::ClusterExistence)?;
        }
        match decision {
            Decision::ClusterCreated { generation, parameters, .. } => {
                require(*generation > 0 && parameters.violations().is_empty(), GuardError::Limit)
            }
            Decision::LeaderStarted | Decision::DigestRecorded { .. } | Decision::HistoryPruned { .. } => {
                Ok(())
            }
            Decision::JobsSubmitted { request, specs } => {
                require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
                require(!specs.is_empty() && specs.len() <= limits::BATCH_JOBS_MAX, GuardError::Limit)
            }
            Decision::JobCancelRequested { request, job } => {
                require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
                let row = self.jobs.get(job).ok_or(GuardError::JobUnknown)?;
                require(!matches!(row.phase, Phase::Finished(_)), GuardError::JobPhase)
            }
            Decision::NodeRegistered { spec, holder } => self.check_registration(spec, *holder),
            Decision::NodeCordonSet { request, node, .. } => {
                require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
                // One that changes nothing is recorded too: a repetition of the request must find
                // its answer, whatever others have done to the node in between.
                self.nodes.get(node).map(|_| ()).ok_or(GuardError::NodeUnknown)
            }
            Decision::NodeLost { node, incarnation, cause } => self.check_lost(*node, *incarnation, *cause),
            Decision::WorkersReported { node, incarnation, job, token, updates } => {
                self.check_report(*node, *incarnation, *job, *token, updates)
            }
            Decision::GangPlaced { job, workers } => self.check_placement(*job, workers),
            Decision::GangStopRequested { job, token, cause } => self.check_stop(*job, *token, cause),
            Decision::JobRequeued { job, .. } => {
                let (row, placement) = self.placed(*job)?;
                // Waiting again after a cancel would be waiting for nothing: it may not be placed.
                let may_wait = matches!(row.phase, Phase::Stopping(_)) && !row.cancel_requested;
                require(may_wait, GuardError::JobPhase)?;
                require(placement.live == 0, GuardError::WorkersRemain)
            }
            Decision::JobFinished { job, outcome } => self.check_finish(*job, outcome),
        }
    }

    pub(crate) fn check_header(
        &self,
        leadership: Leadership,
        index: LogIndex,
        time: LogTime,
        decision: &Decision,
    ) -> Check {
        let current = self.meta.leadership;
        if matches!(decision, Decision::LeaderStarted) {
            require(current.is_none_or(|c| leadership > c), GuardError::StaleLeadership)?;
        } else {
            require(current == Some(leadership), GuardError::StaleLeadership)?;
        }
        require(index == self.meta.log_index.next(), GuardError::OutOfSequence)?;
        require(time >= self.meta.log_time, GuardError::TimeWentBack)
    }

    /// The job and its placement.
    fn placed(&self, job: JobId) -> Result<(&JobRow, &Placement), GuardError> {
        let row = self.jobs.get(&job).ok_or(GuardError::JobUnknown)?;
        let placement = row.placement.as_deref().ok_or(GuardError::JobPhase)?;
        Ok((row, placement))
    }

    fn check_registration(&self, spec: &NodeSpec, holder: HolderId) -> Check {
        let Some(id) = self.node_named(&spec.name) else {
            return require((self.nodes.len() as u64) < u64::from(limits::NODES_MAX), GuardError::Limit);
        };
        let row = self.nodes.get(&id).ok_or(GuardError::NodeUnknown)?;
        let is_idle = self.gangs_on(id).next().is_none();
        match row.status {
            // Everything on it was given up when it was lost.
            NodeStatus::Lost => require(is_idle, GuardError::NodeNotCurrent),
            NodeStatus::Up => {
                require(row.holder == holder, GuardError::NodeNotCurrent)?;
                require(*row.spec != *spec, GuardError::NothingToDo)?;
                require(is_idle, GuardError::NodeNotCurrent)
            }
        }
    }

    fn check_lost(&self, node: NodeId, incarnation: u32, _cause: NodeLostCause) -> Check {
        let row = self.nodes.get(&node).ok_or(GuardError::NodeUnknown)?;
        require(row.status == NodeStatus::Up && row.incarnation == incarnation, GuardError::NodeNotCurrent)
    }

    fn check_report(
        &self,
        node: NodeId,
        incarnation: u32,
        job: JobId,
        token: FencingToken,
        updates: &[(u32, RankUpdate)],
    ) -> Check {
        let row = self.nodes.get(&node).ok_or(GuardError::NodeUnknown)?;
        require(row.status == NodeStatus::Up && row.incarnation == incarnation, GuardError::NodeNotCurrent)?;
        let (_, placement) = self.placed(job)?;
        require(placement.token == token, GuardError::TokenNotCurrent)?;
        require(!updates.is_empty() && updates.len() <= limits::REPORT_RANKS_MAX, GuardError::Limit)?;
        let mut last: Option<u32> = None;
        for (rank, update) in updates {
            // Ascending, so that no rank is there twice.
            require(last.is_none_or(|l| l < *rank), GuardError::RankNotCurrent)?;
            last = Some(*rank);
            let at = *rank as usize;
            let slot = placement.slots.get(at).ok_or(GuardError::RankNotCurrent)?;
            let state = placement.ranks.get(at).ok_or(GuardError::RankNotCurrent)?;
            require(slot.node == node && !state.is_over(), GuardError::RankNotCurrent)?;
            match update {
                RankUpdate::Running => require(*state == RankState::Assigned, GuardError::RankNotCurrent)?,
                RankUpdate::Exited(exit) => require(is_bounded(exit), GuardError::Limit)?,
            }
        }
        Ok(())
    }

    /// All-or-nothing: every worker of the gang fits where it was put, on live nodes of one fleet
    /// cluster in an allowed region, with devices nobody holds.
    fn check_placement(&self, job: JobId, workers: &[WorkerSlot]) -> Check {
        let row = self.jobs.get(&job).ok_or(GuardError::JobUnknown)?;
        let spec = self.specs.get(&job).ok_or(GuardError::JobUnknown)?;
        require(row.phase == Phase::Pending && !row.cancel_requested, GuardError::JobPhase)?;
        require(workers.len() == spec.worker_count() as usize, GuardError::Limit)?;
        self.check_gang(spec, workers)
    }

    fn check_gang(&self, spec: &JobSpec, workers: &[WorkerSlot]) -> Check {
        // Workers of one gang may share a node: each is checked against what the ones before left.
        let mut touched: BTreeMap<NodeId, NodeRow> = BTreeMap::new();
        let mut place: Option<PoolKey> = None;
        for (rank, slot) in workers.iter().enumerate() {
            let (group, _) = spec.group_of(rank as u32).ok_or(GuardError::Limit)?;
            let row = match touched.entry(slot.node) {
                Entry::Occupied(row) => row.into_mut(),
                Entry::Vacant(place) => {
                    place.insert(self.nodes.get(&slot.node).ok_or(GuardError::NodeUnknown)?.clone())
                }
            };
            require(row.is_placeable() && row.incarnation == slot.incarnation, GuardError::NodeNotCurrent)?;
            let here = PoolKey::of(&row.spec);
            let same = place.as_ref().is_none_or(|p| p.region == here.region && p.cluster == here.cluster);
            let allowed = spec.regions.is_empty() || spec.regions.contains(&here.region);
            require(same && allowed, GuardError::PlaceNotAllowed)?;
            place.get_or_insert(here);
            require(fit::admits(row, &group.request, slot.devices), GuardError::DoesNotFit)?;
            row.free_devices = row.free_devices.difference(slot.devices);
            row.free_cpu_milli -= group.request.cpu_milli;
            row.free_memory_bytes -= group.request.memory_bytes;
        }
        Ok(())
    }

    fn check_stop(&self, job: JobId, token: FencingToken, cause: &StopCause) -> Check {
        let (row, placement) = self.placed(job)?;
        require(matches!(row.phase, Phase::Starting | Phase::Running), GuardError::JobPhase)?;
        require(placement.token == token, GuardError::TokenNotCurrent)?;
        match cause {
            StopCause::Cancelled => require(row.cancel_requested, GuardError::JobPhase),
            StopCause::WorkerFailed { rank, exit } => {
                let ended = placement.ranks.get(*rank as usize);
                let so = matches!(ended, Some(RankState::Exited(how)) if how == exit && !exit.is_success());
                require(so, GuardError::RankNotCurrent)
            }
            StopCause::Evicted { node } => {
                require(placement.slots.iter().any(|slot| slot.node == *node), GuardError::RankNotCurrent)
            }
            StopCause::RunTimeLimit => {
                let limit = self.specs.get(&job).and_then(|spec| spec.run_time_limit_ms);
                require(row.started_at.is_some() && limit.is_some(), GuardError::JobPhase)
            }
        }
    }

    /// The end must be one that the rows bear out; whether a failure is worth a retry is not asked.
    fn check_finish(&self, job: JobId, outcome: &Outcome) -> Check {
        let row = self.jobs.get(&job).ok_or(GuardError::JobUnknown)?;
        require(!matches!(row.phase, Phase::Finished(_)), GuardError::JobPhase)?;
        let live = match row.phase {
            Phase::Pending => 0,
            _ => row.placement.as_ref().map_or(0, |p| p.live),
        };
        require(live == 0, GuardError::WorkersRemain)?;
        match outcome {
            Outcome::Succeeded => {
                let ranks = row.placement.as_ref().map(|p| p.ranks.as_slice()).unwrap_or_default();
                let good = |rank: &RankState| matches!(rank, RankState::Exited(exit) if exit.is_success());
                let placed = matches!(row.phase, Phase::Starting | Phase::Running);
                require(placed && ranks.iter().all(good), GuardError::JobPhase)
            }
            Outcome::Failed { detail } => {
                require(detail.len() <= limits::OUTCOME_BYTES_MAX, GuardError::Limit)
            }
            Outcome::Cancelled => require(row.cancel_requested, GuardError::JobPhase),
        }
    }
}
