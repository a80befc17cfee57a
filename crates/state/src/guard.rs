//! The guard: what must hold before a record is folded in.
//!
//! The leader ran the same checks on its speculative state, so a refusal whose leadership and
//! sequence were current is a bug of that leader; it is counted the same on every replica.

use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use muster_journal::{
    CapacityHold, Decision, NodeLostCause, Outcome, RankUpdate, RearrangeCause, Stop, StopCause, WorkerSlot,
};
use muster_types::{
    ExitStatus, FencingToken, HolderId, JobId, JobSpec, Leadership, LogIndex, LogTime, NodeId, NodeSpec,
    Requester, limits,
};

use crate::fit;
use crate::free::{Free, Promised};
use crate::guard_error::{GuardError, require};
use crate::node_reasons::check_reason;
use crate::rows::{JobRow, NodeRow, NodeStatus, Phase, Placement, RankState};
use crate::state::State;

type Check = Result<(), GuardError>;

/// Whether an exit's text is within its bound.
fn is_bounded(exit: &ExitStatus) -> bool {
    exit.text().is_none_or(|text| text.len() <= limits::DETAIL_BYTES_MAX)
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
        require(decision.since_format() <= self.meta.format, GuardError::Format)?;
        require(decision.requester().is_none_or(Requester::is_valid), GuardError::Limit)?;
        match decision {
            Decision::ClusterCreated { generation, parameters, .. } => {
                require(*generation > 0 && parameters.violations().is_empty(), GuardError::Limit)
            }
            Decision::LeaderStarted | Decision::DigestRecorded { .. } | Decision::HistoryPruned { .. } => {
                Ok(())
            }
            Decision::JobsSubmitted { request, specs, estimates, .. } => {
                require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
                require(specs.len() == estimates.len(), GuardError::Limit)?;
                require(!specs.is_empty() && specs.len() <= limits::BATCH_JOBS_MAX, GuardError::Limit)?;
                // Members are made of arrays alone.
                require(specs.iter().all(|spec| spec.array.is_none()), GuardError::Limit)?;
                require(specs.iter().all(|spec| !spec.names_unsubmitted()), GuardError::Limit)?;
                let specs_of = specs.iter().map(|spec| &**spec);
                require(self.missing_right(specs_of.clone()).is_none(), GuardError::RightMissing)?;
                // Spares are in the contracts and creators in the metadata, which follow in separate records.
                let alone = specs_of.clone().map(|spec| (spec, 0, ""));
                require(self.above_job_limit(alone).is_none(), GuardError::TenantLimit)?;
                let counted = specs_of.map(|spec| (spec, 1));
                require(self.exceeded_limit(counted).is_none(), GuardError::TenantLimit)?;
                self.check_waits_within(specs.iter().map(|spec| (&**spec, 1)))?;
                self.check_bursts(specs, estimates)
            }
            Decision::JobCancelRequested { request, by, jobs } => self.check_cancelled(*request, by, jobs),
            Decision::JobHoldSet { request, by, jobs, held } => self.check_held(*request, by, jobs, *held),
            Decision::JobRequeueRequested { request, by, jobs, .. } => {
                self.check_requeued(*request, by, jobs)
            }
            Decision::JobModified { request, by, job, changes, .. } => {
                self.check_modified(*request, by, *job, changes)
            }
            Decision::ArraysSubmitted { request, parts, .. } => self.check_arrays_submitted(*request, parts),
            Decision::ArrayMembersCreated { array, first, count } => {
                self.check_created(*array, *first, *count)
            }
            Decision::ArrayReleased { array } => self.check_array_released(*array),
            Decision::ArrayMembersFailed { array, detail } => self.check_members_failed(*array, detail),
            Decision::ArraysControlled { request, by, control, arrays, jobs } => {
                self.check_arrays_controlled((*request, by), *control, arrays, jobs)
            }
            Decision::ArrayThrottleSet { request, by, array, throttle } => {
                self.check_throttled(*request, by, *array, *throttle)
            }
            Decision::NodeRegistered { spec, holder } => self.check_registration(spec, *holder),
            Decision::NodeCordonSet { request, node, cordoned, reason, .. } => {
                check_reason(*cordoned, reason.as_deref())?;
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
            Decision::PolicySet { request, .. } => {
                require(!self.requests.contains(&request.id), GuardError::RequestRepeated)
            }
            Decision::Rearranged { stops, promises } => self.check_rearranged(stops, promises),
            Decision::PromiseDropped { job } => {
                let row = self.jobs.get(job).ok_or(GuardError::JobUnknown)?;
                require(row.promise.is_some(), GuardError::NothingToDo)
            }
            Decision::JobReleased { job } => {
                let row = self.jobs.get(job).ok_or(GuardError::JobUnknown)?;
                require(row.phase == Phase::Pending && !row.released, GuardError::JobPhase)?;
                self.check_dependencies_met(*job)
            }
            Decision::TurnsChanged { bursts: groups } => {
                require(!groups.is_empty() && groups.len() <= limits::TURNS_CHANGED_MAX, GuardError::Limit)?;
                require(groups.is_sorted_by(|a, b| a.0 < b.0), GuardError::Limit)?;
                let is_alone =
                    |job: &JobId| self.jobs.get(job).is_some_and(|row| row.submission_group(*job) == *job);
                let known = groups.iter().all(|(id, _)| self.submission_groups.contains(id) || is_alone(id));
                require(known, GuardError::JobUnknown)
            }
            Decision::CheckpointCommitted { job, token, .. } => {
                let (row, placement) = self.placed(*job)?;
                let runs = matches!(row.phase, Phase::Running | Phase::Stopping(_)) && placement.live > 0;
                require(runs, GuardError::JobPhase)?;
                require(placement.token == *token, GuardError::TokenNotCurrent)
            }
            // Whether a binary knows the format is not asked: every binary must say the same here.
            Decision::FormatRaised { format, .. } => require(*format > self.meta.format, GuardError::Format),
            Decision::ClusterRecovered { generation } => {
                require(*generation > self.generation(), GuardError::NothingToDo)
            }
            Decision::NodeForgotten { request, node, .. } => {
                let is_repeated = request.is_some_and(|request| self.requests.contains(&request.id));
                require(!is_repeated, GuardError::RequestRepeated)?;
                self.check_forgotten(*node)
            }
            Decision::JobContractsSet { contracts } => self.check_contracts(contracts),
            Decision::JobMetadataSet { runs } => self.check_metadata(runs),
            Decision::AttemptFailed { .. } => self.check_failed(decision),
            Decision::SparesTaken { job, token, ranks } => self.check_taken(*job, *token, ranks),
            Decision::StragglerNoted { job, token, rank, slow_milli } => {
                self.check_straggler(*job, *token, *rank, *slow_milli)
            }
            Decision::ArtifactsKept { job, token, rank, artifacts } => {
                self.check_artifacts(*job, *token, *rank, artifacts)
            }
            Decision::NodeHealthChanged { node, health, events, .. } => {
                self.check_health(*node, health, events)
            }
            Decision::ForeignLoadSet { node, incarnation, load } => {
                self.check_foreign(*node, *incarnation, load)
            }
            Decision::NodeDrainSet { request, node, drain, reason, .. } => {
                check_reason(drain.is_some(), reason.as_deref())?;
                self.check_restriction(*request, *node)
            }
            Decision::NodeQuarantineSet { request, node, reason, .. } => {
                let length = reason.as_ref().map_or(0, |reason| reason.len());
                require(length <= limits::DETAIL_BYTES_MAX, GuardError::Limit)?;
                self.check_restriction(*request, *node)
            }
            Decision::NodeRepairSet { request, node, step, .. } => {
                self.check_restriction(*request, *node)?;
                self.check_repair(*node, step, request.is_some())
            }
            Decision::NodeOverridesSet { request, by, node, overrides } => {
                self.check_overrides(*request, by, *node, overrides)
            }
            Decision::NodeAdmissionSet { request, admission, .. } => {
                self.check_admission(*request, admission)
            }
            Decision::NodeApprovalSet { request, name, approval, .. } => {
                self.check_approval(*request, name, approval.as_ref())
            }
            Decision::CertificateRevoked { request, serial, revocation, .. } => {
                self.check_revocation(*request, *serial, revocation)
            }
            Decision::NotificationsDelivered { progress } => self.check_notifications(progress),
            Decision::TokenCreated { request, by, token, grant, lifetime_ms } => {
                self.check_token_created((*request, by), *token, grant, *lifetime_ms)
            }
            Decision::ExecOpened { by, job, token, rank, command } => {
                let is_bounded = by.is_valid() && command.len() <= limits::EXEC_TEXT_BYTES_MAX;
                self.check_next_to_worker(*job, *token, *rank, is_bounded)
            }
            Decision::PortForwardOpened { by, job, token, rank, port } => {
                self.check_next_to_worker(*job, *token, *rank, by.is_valid() && *port != 0)
            }
            Decision::TokenRevoked { request, by, token } => self.check_token_revoked(*request, by, *token),
            Decision::QuotaRequested { request, by, grant } => {
                self.check_quota_requested((*request, by), grant)
            }
            Decision::QuotaAnswered { request, by, id, giver, approved, reason } => {
                self.check_quota_answered((*request, by), *id, giver.as_ref(), *approved, reason)
            }
            Decision::QuotaGranted { request, by, giver, grant } => {
                self.check_quota_granted((*request, by), giver.as_ref(), grant)
            }
            Decision::QuotaGrantsEnded { ids } => self.check_quota_ended(ids),
            Decision::BookingCreated { request, by, name, spec, nodes } => {
                self.check_booking_created((*request, by), name, spec, nodes)
            }
            Decision::BookingDeleted { request, by, name } => self.check_booking_deleted(*request, by, name),
            Decision::BookingOpened { name } => require(
                self.bookings.get(name).is_some_and(|booking| !booking.is_open),
                GuardError::NothingToDo,
            ),
            Decision::BookingEnded { name, cause } => self.check_booking_ended(name, *cause),
            Decision::BookingMoved { name, nodes } => self.check_booking_moved(name, nodes),
            Decision::FallbackOpened { job } => self.check_fallback_opened(*job),
            Decision::FleetHoldSet { request, by, target, hold } => {
                self.check_fleet_hold_set((*request, by), target, hold.as_deref())
            }
            Decision::FleetHoldEnded { target } => self.check_fleet_hold_ended(target),
            Decision::ScheduleSet { request, by, acts_for: _, role: _, schedule, is_new } => {
                self.check_schedule_set((*request, by), schedule, *is_new)
            }
            Decision::ScheduleDeleted { request, by, schedule } => {
                self.check_schedule_deleted(*request, by, schedule)
            }
            Decision::ScheduleSuspensionSet { request, by, schedule, reason } => {
                self.check_schedule_suspension(*request, by, schedule, reason.as_ref())
            }
            Decision::SchedulePlanned { schedule, next: _ } => self.check_schedule_planned(schedule),
            Decision::ScheduleRan { schedule, due, next, run } => {
                self.check_schedule_ran(schedule, *due, *next, run)
            }
            Decision::SessionResumed { node, incarnation }
            | Decision::AgentStarted { node, incarnation, .. } => {
                let row = self.nodes.get(node).ok_or(GuardError::NodeUnknown)?;
                let is_current = row.status == NodeStatus::Up && row.incarnation == *incarnation;
                require(is_current, GuardError::NodeNotCurrent)
            }
            Decision::HealthPolicySet { request, policy, .. } => {
                require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
                require(policy.violations().is_empty(), GuardError::Limit)
            }
        }
    }

    /// What somebody asks for next to a worker is within bounds, and that worker runs.
    fn check_next_to_worker(&self, job: JobId, token: FencingToken, rank: u32, is_bounded: bool) -> Check {
        let (row, placement) = self.placed(job)?;
        require(is_bounded, GuardError::Limit)?;
        require(matches!(row.phase, Phase::Starting | Phase::Running), GuardError::JobPhase)?;
        require(placement.token == token, GuardError::TokenNotCurrent)?;
        let state = placement.ranks.get(rank as usize);
        require(state == Some(&RankState::Running), GuardError::RankNotCurrent)
    }

    /// What a job waits for is over, and has succeeded where that was asked. What is gone from the state
    /// was looked at before it went.
    fn check_dependencies_met(&self, job: JobId) -> Check {
        let spec = self.specs.get(&job).ok_or(GuardError::JobUnknown)?;
        let ordinal = spec.array.map(|member| member.ordinal);
        require(self.is_met(spec, ordinal), GuardError::JobPhase)
    }

    /// Nothing counts on the node: its session is over, so nothing is placed there, and nothing is promised.
    fn check_forgotten(&self, node: NodeId) -> Check {
        let row = self.nodes.get(&node).ok_or(GuardError::NodeUnknown)?;
        require(row.status == NodeStatus::Lost, GuardError::NodeNotCurrent)?;
        let is_idle = self.gangs_on(node).next().is_none();
        let is_promised = self.promised_on(node).next().is_some();
        require(is_idle && !is_promised, GuardError::NodeNotCurrent)
    }

    pub(crate) fn check_header(
        &self,
        leadership: Leadership,
        index: LogIndex,
        time: LogTime,
        decision: &Decision,
    ) -> Check {
        self.sequence().check(leadership, index, time, decision)
    }

    /// The job and its placement.
    fn placed(&self, job: JobId) -> Result<(&JobRow, &Placement), GuardError> {
        let row = self.jobs.get(&job).ok_or(GuardError::JobUnknown)?;
        let placement = row.placement.as_deref().ok_or(GuardError::JobPhase)?;
        Ok((row, placement))
    }

    fn check_registration(&self, spec: &NodeSpec, holder: HolderId) -> Check {
        self.check_admitted(spec)?;
        require(spec.is_within_agent_bounds(), GuardError::Limit)?;
        let Some(id) = self.node_named(&spec.name) else {
            // Ids are never used again, so they are exhausted after 2^32 registrations.
            let has_room = (self.nodes.len() as u64) < u64::from(limits::NODES_MAX);
            return require(has_room && self.meta.nodes_registered < u32::MAX, GuardError::Limit);
        };
        let row = self.nodes.get(&id).ok_or(GuardError::NodeUnknown)?;
        let is_idle = self.gangs_on(id).next().is_none() && self.spares_on(id).next().is_none();
        match row.status {
            // Everything on it was given up when it was lost.
            NodeStatus::Lost => require(is_idle, GuardError::NodeNotCurrent),
            NodeStatus::Up => {
                require(row.holder == holder, GuardError::NodeNotCurrent)?;
                require(**row.said() != *spec, GuardError::NothingToDo)?;
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
                RankUpdate::Ready => {
                    let is_asked = self.specs.get(&job).is_some_and(|spec| spec.readiness_ms.is_some());
                    require(is_asked && !placement.ready.contains(rank), GuardError::RankNotCurrent)?;
                }
            }
        }
        Ok(())
    }

    /// All-or-nothing: every worker of the gang fits where it was put, on live nodes, with devices nobody
    /// holds; together they are the gang that was asked for, and no quota is exceeded. A job with a promise
    /// gets exactly that.
    fn check_placement(&self, job: JobId, workers: &[WorkerSlot]) -> Check {
        let row = self.jobs.get(&job).ok_or(GuardError::JobUnknown)?;
        let spec = self.specs.get(&job).ok_or(GuardError::JobUnknown)?;
        let may_start = row.phase == Phase::Pending && row.released && !row.held && !row.cancel_requested;
        require(may_start, GuardError::JobPhase)?;
        let (gang, spares) = workers.split_at(workers.len().min(spec.worker_count() as usize));
        self.check_gang(spec, gang)?;
        self.check_spares(job, spec, gang, spares)?;
        self.check_checkpoints(job, gang)?;
        self.check_booked(spec, workers)?;
        self.check_not_held(spec, workers)?;
        match &row.promise {
            // It was charged when it was promised.
            Some(promise) => {
                require(promise.slots == workers, GuardError::DoesNotFit)?;
                self.take_all(spec, workers, &mut BTreeMap::new(), NodeRow::usable)
            }
            None => {
                self.check_offered(spec, workers)?;
                self.check_licences(&[(job, spec, workers)])?;
                self.check_host_limits(&BTreeSet::new(), &[(job, spec, workers)])?;
                self.check_quota(&BTreeSet::new(), &[(job, spec, workers)])?;
                self.check_fixed(&BTreeSet::new(), &[(job, spec, workers)])
            }
        }
    }

    /// The workers fit into what their nodes offer.
    fn check_offered(&self, spec: &JobSpec, workers: &[WorkerSlot]) -> Check {
        let [slot] = workers else {
            return self.take_all(spec, workers, &mut BTreeMap::new(), |node| node.offer().into_owned());
        };
        // Most jobs have one worker: no other takes anything, so that nothing is copied.
        let group = spec.group_of_slot(0, 1).ok_or(GuardError::Limit)?;
        let node = self.nodes.get(&slot.node).ok_or(GuardError::NodeUnknown)?;
        require(node.offer().admits(&group.request, slot.devices), GuardError::DoesNotFit)
    }

    /// The workers are the gang that was asked for, on nodes that take new work.
    pub(crate) fn check_gang(&self, spec: &JobSpec, workers: &[WorkerSlot]) -> Check {
        let count = u32::try_from(workers.len()).map_err(|_| GuardError::Limit)?;
        require(spec.may_have(count), GuardError::Limit)?;
        let mut nodes: Vec<&NodeSpec> = Vec::with_capacity(workers.len());
        for slot in workers {
            let row = self.nodes.get(&slot.node).ok_or(GuardError::NodeUnknown)?;
            require(row.is_placeable() && row.incarnation == slot.incarnation, GuardError::NodeNotCurrent)?;
            nodes.push(&row.spec);
        }
        fit::forms_gang(spec, &nodes, &self.policy.policy).map_err(GuardError::NotTheGang)
    }

    /// Takes the workers from what is left of their nodes. Workers of one gang may share a node: each is
    /// checked against what the ones before left.
    pub(crate) fn take_all(
        &self,
        spec: &JobSpec,
        workers: &[WorkerSlot],
        left: &mut BTreeMap<NodeId, Free>,
        free_of: impl Fn(&NodeRow) -> Free,
    ) -> Check {
        for (rank, slot) in workers.iter().enumerate() {
            let group = spec.group_of_slot(rank as u32, workers.len()).ok_or(GuardError::Limit)?;
            let free = match left.entry(slot.node) {
                Entry::Occupied(free) => free.into_mut(),
                Entry::Vacant(place) => {
                    place.insert(free_of(self.nodes.get(&slot.node).ok_or(GuardError::NodeUnknown)?))
                }
            };
            require(free.admits(&group.request, slot.devices), GuardError::DoesNotFit)?;
            free.take(&group.request, slot.devices);
        }
        Ok(())
    }

    /// What is promised of nodes beyond what gangs will leave there that are being stopped, of those nodes of which something is
    /// promised. Until they have, their CPUs, their memory and their parts of devices are not free. Were all that is promised taken from
    /// what is free, it would be missing twice, and more gangs would have to stop than are needed.
    pub(crate) fn promised_beyond_leavers(
        &self,
        nodes: impl Iterator<Item = NodeId>,
    ) -> BTreeMap<NodeId, Promised> {
        let mut promised = BTreeMap::new();
        let mut leavers = BTreeSet::new();
        for node in nodes {
            let Some(row) = self.nodes.get(&node).filter(|row| !row.promised.is_empty()) else { continue };
            promised.insert(node, row.promised.clone());
            leavers.extend(self.gangs_on(node));
        }
        // Each gang once, however many of the nodes it is on.
        for job in leavers {
            let Some((of_job, spec)) = self.jobs.get(&job).zip(self.specs.get(&job)) else { continue };
            let Some(placement) = of_job.placement.as_deref() else { continue };
            if !matches!(of_job.phase, Phase::Stopping(_)) {
                continue;
            }
            let ranks = placement.slots.iter().zip(&placement.ranks).enumerate();
            for (rank, (slot, _)) in ranks.filter(|(_, (_, of))| !of.is_over()) {
                let group = spec.group_of_slot(rank as u32, placement.slots.len());
                let there = promised.get_mut(&slot.node).zip(self.nodes.get(&slot.node));
                if let (Some(group), Some((beyond, row))) = (group, there) {
                    beyond.leave_out(&group.request, slot.devices, &row.free);
                }
            }
        }
        promised
    }

    /// Stops concern running gangs; what is promised fits into what they will leave, in addition to what others
    /// were promised before; no quota is exceeded once all is done.
    fn check_rearranged(&self, stops: &[Stop], promises: &[CapacityHold]) -> Check {
        require(!stops.is_empty() && stops.len() <= limits::REARRANGED_STOPS_MAX, GuardError::Limit)?;
        let promised: usize = promises.iter().map(|p| p.workers.len()).sum();
        require(
            !promises.is_empty() && promises.len() <= limits::REARRANGED_PROMISES_MAX,
            GuardError::Limit,
        )?;
        require(promised <= limits::REARRANGED_WORKERS_MAX, GuardError::Limit)?;
        // What the stopped gangs will leave, by node.
        let mut left: BTreeMap<NodeId, Free> = BTreeMap::new();
        let mut stopped: BTreeSet<JobId> = BTreeSet::new();
        for stop in stops {
            require(stopped.insert(stop.job), GuardError::NothingToDo)?;
            let (row, placement) = self.placed(stop.job)?;
            let spec = self.specs.get(&stop.job).ok_or(GuardError::JobUnknown)?;
            require(matches!(row.phase, Phase::Starting | Phase::Running), GuardError::JobPhase)?;
            require(placement.token == stop.token && !row.cancel_requested, GuardError::TokenNotCurrent)?;
            let moves = promises.iter().any(|promise| promise.job == stop.job);
            let so = match stop.cause {
                RearrangeCause::Preempted { by } | RearrangeCause::Moved { by } => {
                    by != stop.job && promises.iter().any(|promise| promise.job == by)
                }
                RearrangeCause::Resized => moves,
                RearrangeCause::Drained { node } => {
                    let is_there = placement.slots.iter().any(|slot| slot.node == node);
                    moves && is_there && self.restrictions.get(&node).is_some_and(|row| row.drain.is_some())
                }
            };
            // What borrows can be taken back whatever it says of itself: `check_grounds`.
            let is_taken = matches!(stop.cause, RearrangeCause::Preempted { .. });
            require(so && (spec.preemptible || is_taken), GuardError::JobPhase)?;
            self.give_all(stop.job, spec, placement, &mut left)?;
        }
        // Where nobody stops by this record, those may that were stopped before.
        for slot in promises.iter().flat_map(|promise| &promise.workers) {
            if let Some(row) = self.nodes.get(&slot.node) {
                left.entry(slot.node).or_insert_with(|| row.free.clone());
            }
        }
        // Less what others were promised before, and what is not to be used.
        let promised = self.promised_beyond_leavers(left.keys().copied());
        for (node, free) in &mut left {
            let row = self.nodes.get(node).ok_or(GuardError::NodeUnknown)?;
            let promised = promised.get(node).unwrap_or(&row.promised);
            *free = free.without_promised(promised).without(&row.restricted);
        }
        self.check_promises(promises, &stopped, &mut left)?;
        self.check_grounds(stops)?;
        let mut gangs: Vec<(JobId, &JobSpec, &[WorkerSlot])> = Vec::with_capacity(promises.len());
        for promise in promises {
            let spec = self.specs.get(&promise.job).ok_or(GuardError::JobUnknown)?;
            gangs.push((promise.job, spec, &promise.workers));
        }
        self.check_licences(&gangs)?;
        self.check_host_limits(&stopped, &gangs)?;
        self.check_quota(&stopped, &gangs)?;
        self.check_fixed(&stopped, &gangs)
    }

    fn check_promises(
        &self,
        promises: &[CapacityHold],
        stopped: &BTreeSet<JobId>,
        left: &mut BTreeMap<NodeId, Free>,
    ) -> Check {
        let mut seen: BTreeSet<JobId> = BTreeSet::new();
        for promise in promises {
            require(seen.insert(promise.job), GuardError::NothingToDo)?;
            let row = self.jobs.get(&promise.job).ok_or(GuardError::JobUnknown)?;
            let spec = self.specs.get(&promise.job).ok_or(GuardError::JobUnknown)?;
            let waits = row.is_in_line() && !row.cancel_requested;
            require(waits || stopped.contains(&promise.job), GuardError::JobPhase)?;
            self.check_gang(spec, &promise.workers)?;
            self.check_checkpoints(promise.job, &promise.workers)?;
            self.check_booked(spec, &promise.workers)?;
            self.check_not_held(spec, &promise.workers)?;
            self.take_all(spec, &promise.workers, left, |node| node.offer().into_owned())?;
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
            StopCause::Fault { node, detail, .. } => {
                require(detail.len() <= limits::DETAIL_BYTES_MAX, GuardError::Limit)?;
                require(placement.slots.iter().any(|slot| slot.node == *node), GuardError::RankNotCurrent)
            }
            // Only together with what is promised to others, or with who asked for it.
            StopCause::Rearranged(_) | StopCause::Requested { .. } => Err(GuardError::JobPhase),
            StopCause::RunTimeLimit => {
                let limit = self.specs.get(&job).and_then(|spec| spec.run_time_limit_ms);
                require(row.started_at.is_some() && limit.is_some(), GuardError::JobPhase)
            }
            StopCause::Deadline => {
                let has_deadline = self.specs.get(&job).is_some_and(|spec| spec.deadline.is_some());
                require(has_deadline, GuardError::JobPhase)
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
