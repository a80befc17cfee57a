//! The fold: what each record changes. Runs only behind the guard; an assertion here is an
//! invariant that the guard has made true.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use muster_journal::{
    CapacityHold, Decision, Estimate, NodeLostCause, Outcome, RankUpdate, RequestKey, Stop, StopCause,
    WorkerSlot,
};
use muster_types::health::Quarantine;
use muster_types::policy::PurchaseKind;
use muster_types::{
    FencingToken, ForeignLoad, HolderId, JobId, JobSpec, Leadership, LogTime, NodeId, NodeSpec, limits,
};

use crate::effect::Effect;
use crate::free::{Free, Promised, Restricted};
use crate::index::{JobIndexKeys, Offered};
use crate::overrides::said_again;
use crate::restrict::repair;
use crate::rows::{
    CapacityKey, Charge, Charged, ClusterMeta, JobRow, NodeRow, NodeStatus, Phase, Placement, PromiseRow,
    RankState, RequestAnswer, RequestRow,
};
use crate::state::{Meta, State};

impl State {
    pub(crate) fn fold(&mut self, leadership: Leadership, decision: &Decision) -> Vec<Effect> {
        match decision {
            Decision::ClusterCreated { cluster, generation, parameters } => {
                self.meta.cluster =
                    Some(ClusterMeta { cluster: *cluster, generation: *generation, parameters: *parameters });
                // Of the one that every cluster begins with.
                self.note_policy();
                vec![Effect::ClusterChanged]
            }
            Decision::LeaderStarted => {
                self.meta.leadership = Some(leadership);
                vec![Effect::ClusterChanged]
            }
            Decision::JobsSubmitted { request, specs, estimates, .. } => {
                self.fold_submitted(*request, specs, estimates)
            }
            Decision::JobCancelRequested { request, by, jobs } => self.fold_cancelled(*request, by, jobs),
            Decision::JobHoldSet { request, by, jobs, held } => self.fold_held(*request, by, jobs, *held),
            Decision::JobRequeueRequested { request, by, jobs, suspended } => {
                self.fold_requeued(*request, by, jobs, *suspended)
            }
            Decision::JobModified { .. } => self.fold_modified(decision),
            Decision::ArraysSubmitted { request, parts, .. } => self.fold_arrays_submitted(*request, parts),
            Decision::ArrayMembersCreated { array, first, count } => {
                self.fold_created(*array, *first, *count)
            }
            Decision::ArrayReleased { array } => self.fold_array_released(*array),
            Decision::ArrayMembersFailed { array, detail } => self.fold_members_failed(*array, detail),
            Decision::ArraysControlled { request, by, control, arrays, jobs } => {
                self.fold_arrays_controlled((*request, by), *control, arrays, jobs)
            }
            Decision::ArrayThrottleSet { request, array, throttle, by: _ } => {
                self.fold_throttled(*request, *array, *throttle)
            }
            Decision::NodeRegistered { spec, holder } => self.fold_registered(spec, *holder),
            Decision::NodeCordonSet { request, by, node, cordoned, reason } => {
                self.fold_cordon((*request, by), *node, (*cordoned, reason.as_deref()))
            }
            Decision::NodeLost { node, cause, .. } => {
                self.count_interruption(*node, *cause);
                self.fold_lost(*node, *cause)
            }
            Decision::WorkersReported { node, job, updates, .. } => self.fold_reported(*node, *job, updates),
            Decision::GangPlaced { job, workers } => self.fold_placed(*job, workers),
            Decision::GangStopRequested { job, cause, .. } => {
                let cause = cause.clone();
                self.change_job(*job, |row| row.phase = Phase::Stopping(cause));
                self.note_stopping(*job);
                self.gang_effects(*job)
            }
            Decision::JobRequeued { job, failed } => {
                self.drop_spares(*job);
                self.note_stopped(*job);
                self.note_waiting_again(*job);
                let waits = self.retry_wait(*job).is_some_and(|until| until > self.meta.log_time);
                self.change_job(*job, |row| {
                    row.released = !waits;
                    if matches!(row.phase, Phase::Stopping(StopCause::Rearranged(_))) {
                        row.preemptions += 1;
                    }
                    row.phase = Phase::Pending;
                    row.started_at = None;
                    row.checkpointed_at = None;
                    row.failures += u32::from(*failed);
                });
                vec![Effect::JobChanged(*job)]
            }
            Decision::JobFinished { job, outcome } => self.fold_finished(*job, outcome),
            Decision::HistoryPruned { requests_before, jobs_before } => {
                self.fold_pruned(*requests_before, *jobs_before)
            }
            Decision::DigestRecorded { digest } => self.fold_digest(*digest),
            Decision::PolicySet { request, policy, .. } => self.fold_policy(*request, policy),
            Decision::Rearranged { stops, promises } => self.fold_rearranged(stops, promises),
            Decision::PromiseDropped { job } => {
                self.drop_promise(*job);
                vec![Effect::JobChanged(*job)]
            }
            Decision::JobReleased { job } => {
                self.change_job(*job, |row| row.released = true);
                vec![Effect::JobChanged(*job)]
            }
            Decision::TurnsChanged { bursts: groups } => {
                for (group, turn) in groups {
                    self.set_turn(*group, *turn);
                }
                Vec::new()
            }
            Decision::CheckpointCommitted { job, .. } => {
                let now = self.meta.log_time;
                self.note_saved(*job);
                self.change_job(*job, |row| row.checkpointed_at = Some(now));
                vec![Effect::JobChanged(*job)]
            }
            Decision::FormatRaised { format, .. } => {
                self.meta.format = *format;
                vec![Effect::ClusterChanged]
            }
            Decision::ClusterRecovered { generation } => self.fold_recovered(*generation),
            Decision::NodeForgotten { request, node, .. } => {
                if let Some(request) = request {
                    self.remember(*request, RequestAnswer::NodeForgotten { node: *node });
                }
                self.fold_forgotten(*node)
            }
            Decision::JobContractsSet { contracts } => self.fold_contracts(contracts),
            Decision::JobMetadataSet { runs } => self.fold_metadata(runs),
            Decision::AttemptFailed { .. } => self.fold_failed(decision),
            Decision::SparesTaken { job, ranks, .. } => self.fold_taken(*job, ranks),
            Decision::StragglerNoted { job, rank, slow_milli, .. } => {
                self.fold_straggler(*job, *rank, *slow_milli)
            }
            Decision::ArtifactsKept { job, token, rank, artifacts } => {
                self.fold_artifacts(*job, *token, *rank, *artifacts)
            }
            Decision::NodeHealthChanged { node, health, .. } => {
                self.change_restriction(*node, |row, _| row.health = (**health).clone())
            }
            Decision::ForeignLoadSet { node, load, .. } => {
                self.change_restriction(*node, |row, _| row.foreign = *load)
            }
            Decision::NodeDrainSet { request, by, node, drain, reason } => {
                self.fold_drain((*request, by), *node, (*drain, reason.as_deref()))
            }
            Decision::NodeQuarantineSet { request, node, reason, .. } => {
                self.remember_restriction(*request, *node);
                self.change_restriction(*node, |row, now| {
                    let set = |reason: &String| Quarantine { since: now.time, reason: reason.clone() };
                    row.quarantine = reason.as_ref().map(set);
                })
            }
            Decision::NodeRepairSet { request, node, step, .. } => {
                self.remember_restriction(*request, *node);
                self.change_restriction(*node, |row, now| repair(row, step, now))
            }
            Decision::NodeOverridesSet { request, by, node, overrides } => {
                self.fold_overrides(*request, by, *node, overrides)
            }
            Decision::HealthPolicySet { request, policy, .. } => self.fold_health_policy(*request, policy),
            Decision::NodeAdmissionSet { request, admission, .. } => self.fold_admission(*request, admission),
            Decision::NodeApprovalSet { request, name, approval, .. } => {
                self.fold_approval(*request, name, approval.as_ref())
            }
            Decision::CertificateRevoked { request, serial, revocation, .. } => {
                self.fold_revoked(*request, *serial, revocation)
            }
            Decision::TokenCreated { request, token, grant, lifetime_ms, .. } => {
                self.fold_token_created(*request, *token, grant, *lifetime_ms)
            }
            Decision::QuotaRequested { request, by, grant } => self.fold_quota_requested(*request, by, grant),
            Decision::QuotaAnswered { request, by, id, giver, approved, reason } => {
                self.fold_quota_answered((*request, by), *id, giver.as_ref(), *approved, reason)
            }
            Decision::QuotaGranted { request, by, giver, grant } => {
                self.fold_quota_granted(*request, by, giver.as_ref(), grant)
            }
            Decision::QuotaGrantsEnded { ids } => self.fold_quota_ended(ids),
            // For people who read the log.
            Decision::ExecOpened { .. } | Decision::PortForwardOpened { .. } => Vec::new(),
            Decision::TokenRevoked { request, token, .. } => self.fold_token_revoked(*request, *token),
            Decision::BookingCreated { request, by, name, spec, nodes } => {
                self.fold_booking_created(*request, by, name, spec, nodes)
            }
            Decision::BookingDeleted { request, name, .. } => self.fold_booking_deleted(*request, name),
            Decision::BookingOpened { name } => self.fold_booking_opened(name),
            Decision::BookingEnded { name, cause } => self.fold_booking_ended(name, *cause),
            Decision::BookingMoved { name, nodes } => self.fold_booking_moved(name, nodes),
            Decision::ScheduleSet { request, by, acts_for, role, schedule, is_new: _ } => {
                self.fold_schedule_set((*request, by), (acts_for.as_ref(), role.as_ref()), schedule)
            }
            Decision::ScheduleDeleted { request, schedule, by: _ } => {
                self.fold_schedule_deleted(*request, schedule)
            }
            Decision::ScheduleSuspensionSet { request, by, schedule, reason } => {
                self.fold_schedule_suspension(*request, by, schedule, reason.as_ref())
            }
            Decision::SchedulePlanned { schedule, next } => self.fold_schedule_planned(schedule, *next),
            Decision::ScheduleRan { schedule, due, next, run } => {
                self.fold_schedule_ran(schedule, *due, *next, run)
            }
            Decision::FallbackOpened { job } => self.fold_fallback_opened(*job),
            Decision::FleetHoldSet { request, by, target, hold } => {
                self.fold_fleet_hold_set((*request, by), target, hold.as_deref())
            }
            Decision::FleetHoldEnded { target } => self.fold_fleet_hold_ended(target),
            // Who leads next asks the log for it.
            Decision::SessionResumed { .. } => Vec::new(),
            Decision::AgentStarted { node, start, .. } => {
                self.change_node(*node, false, |row| row.start = Some(*start));
                Vec::new()
            }
            Decision::NotificationsDelivered { progress } => self.fold_notifications(progress),
        }
    }

    /// The digest in the record is of the state before it: position and time have moved since.
    fn fold_digest(&mut self, expected: u64) -> Vec<Effect> {
        let actual = self.rows_digest();
        if actual == expected { Vec::new() } else { vec![Effect::Diverged { expected, actual }] }
    }

    /// Digest of the rows alone, without position and time: what `DigestRecorded` carries.
    #[must_use]
    pub fn rows_digest(&self) -> u64 {
        let Meta { format, nodes_registered, rejected, ids_ahead, .. } = self.meta;
        let counts = (format, nodes_registered, rejected, ids_ahead);
        muster_journal::hash(&(self.table_digests(), &self.meta.cluster, counts))
    }

    pub(crate) fn remember(&mut self, request: RequestKey, answer: RequestAnswer) {
        let row = RequestRow {
            fingerprint: request.fingerprint,
            log_index: self.meta.log_index,
            log_time: self.meta.log_time,
            answer,
        };
        self.indexes.requests_by_time.insert((row.log_time, request.id));
        self.requests.insert(request.id, row);
    }

    /// Changes a job's row and moves it between the indexes.
    pub(crate) fn change_job(&mut self, id: JobId, change: impl FnOnce(&mut JobRow)) {
        let spec = self.described(id).expect("the guard has seen the job");
        let row = self.jobs.get(&id).expect("the guard has seen the job");
        let group = self.burst_turn(id, row);
        let wait = self.retry_wait(id);
        let before = (JobIndexKeys::of(row, &spec, group, wait), Charged::of(row));
        let now = self.meta.log_index;
        let after = self.jobs.change(&id, |row, ()| {
            change(row);
            row.changed_at = now;
            (JobIndexKeys::of(row, &spec, group, wait), Charged::of(row))
        });
        let after = after.expect("it was there just now");
        self.indexes.shift(id, &spec, &before.0, &after.0);
        let [charged_before, charged_after] =
            [&before.1, &after.1].map(|charged| charged.as_ref().map(Charged::get));
        if charged_before != charged_after {
            self.change_charge(&spec, charged_before, charged_after);
            let [before_charge, after_charge] =
                [charged_before, charged_after].map(|charged| charged.map(|(_, charge)| charge));
            self.count_budget(id, &spec.spec.tenant, before_charge, after_charge);
            self.count_user(id, &spec.spec.tenant, before_charge, after_charge);
            self.count_spend(id, &spec.spec.tenant, charged_before, charged_after);
        }
    }

    /// Changes a node's row and moves it between the indexes. `is_transition` stamps it.
    pub(crate) fn change_node(&mut self, id: NodeId, is_transition: bool, change: impl FnOnce(&mut NodeRow)) {
        let row = self.nodes.get(&id).expect("the guard has seen the node");
        let before = Offered::of(row);
        self.indexes.remove_status(id, row);
        let was_placeable = row.is_placeable();
        let (was_up, old_spec) = (row.status == NodeStatus::Up, row.spec.clone());
        let now = (self.meta.log_time, self.meta.log_index);
        let changed = self.nodes.change(&id, |row, _| {
            change(row);
            if is_transition {
                (row.changed_at, row.changed_index) = now;
            }
        });
        changed.expect("it was there just now");
        let row = self.nodes.get(&id).expect("it was there just now");
        let after = Offered::of(row);
        // Out of the place of the old description before into that of a new one.
        let stays = Arc::ptr_eq(&old_spec, &row.spec);
        let before = if stays {
            before
        } else {
            self.indexes.shift_free(id, &old_spec, before, None);
            None
        };
        // The size in a description changes only while the node is not placeable (see `fold_registered`).
        match (was_placeable, row.is_placeable()) {
            (true, false) => self.indexes.remove_placeable(&row.spec),
            (false, true) => self.indexes.add_placeable(&row.spec),
            (true, true) | (false, false) => {}
        }
        self.indexes.add_status(id, row);
        self.indexes.shift_free(id, &row.spec, before, after);
        let (is_up, spec) = (row.status == NodeStatus::Up, row.spec.clone());
        if was_up != is_up || !stays {
            let key_of = |is_up: bool, spec: &NodeSpec| if is_up { CapacityKey::of(spec) } else { None };
            self.count_capacity(key_of(was_up, &old_spec), key_of(is_up, &spec));
        }
    }

    fn fold_submitted(
        &mut self,
        request: RequestKey,
        specs: &[Arc<JobSpec>],
        estimates: &[Estimate],
    ) -> Vec<Effect> {
        let (index, jobs) = (self.meta.log_index, specs.len() as u32);
        self.remember(request, RequestAnswer::Submitted { first: self.job_id(index, 0), jobs });
        let mut effects = Vec::with_capacity(specs.len());
        for (ordinal, (spec, estimate)) in specs.iter().zip(estimates).enumerate() {
            let id = self.job_id(index, ordinal);
            self.add_job(id, spec, *estimate);
            effects.push(Effect::JobChanged(id));
        }
        effects
    }

    /// A job that was submitted just now.
    pub(crate) fn add_job(&mut self, id: JobId, spec: &Arc<JobSpec>, estimate: Estimate) {
        let row = JobRow {
            changed_at: self.meta.log_index,
            ..JobRow::submitted(self.meta.log_time, estimate, spec)
        };
        self.specs.insert(id, Arc::clone(spec));
        let spec = self.described(id).expect("it was put there just now");
        match estimate.burst {
            Some(group) => self.join_burst(group, estimate.turn, 1),
            None => self.indexes.bursts_by_key.insert((spec.facts.group_key, id)),
        }
        let standing = JobIndexKeys::of(&row, &spec, self.burst_turn(id, &row), None);
        self.indexes.shift(id, &spec, &JobIndexKeys::default(), &standing);
        self.demand.observe(&spec);
        self.jobs.insert(id, row);
    }

    /// Stops first: gangs that move are in both lists, and free what they hold.
    fn fold_rearranged(&mut self, stops: &[Stop], promises: &[CapacityHold]) -> Vec<Effect> {
        let mut effects = Vec::new();
        for stop in stops {
            self.change_job(stop.job, |row| row.phase = Phase::Stopping(StopCause::Rearranged(stop.cause)));
            self.note_stopping(stop.job);
            effects.extend(self.gang_effects(stop.job));
        }
        for promise in promises {
            let spec = self.specs.get(&promise.job).expect("the guard has seen the job").clone();
            for (rank, slot) in promise.workers.iter().enumerate() {
                let group = spec.group_of(rank as u32, promise.workers.len());
                let (group, _) = group.expect("the guard has counted the workers");
                self.change_node(slot.node, false, |row| {
                    row.promised.add(&group.request, slot.devices, &row.spec)
                });
            }
            let row = PromiseRow {
                since: self.meta.log_index,
                region: self.region_of(&promise.workers),
                slots: promise.workers.clone(),
                charge: self.charge_for(&spec, &promise.workers),
            };
            self.change_job(promise.job, |job| job.promise = Some(Arc::new(row)));
            effects.push(Effect::JobChanged(promise.job));
        }
        effects
    }

    /// Takes a job's promise from its nodes and its row.
    fn drop_promise(&mut self, job: JobId) {
        let promise = self.jobs.get(&job).and_then(|row| row.promise.clone());
        let promise = promise.expect("the guard has seen the promise");
        let spec = self.specs.get(&job).expect("the guard has seen the job").clone();
        for (rank, slot) in promise.slots.iter().enumerate() {
            let group = spec.group_of_slot(rank as u32, promise.slots.len());
            let group = group.expect("a promised place has a group");
            self.change_node(slot.node, false, |row| {
                row.promised.remove(&group.request, slot.devices, &row.spec)
            });
        }
        self.change_job(job, |row| row.promise = None);
    }

    pub(crate) fn region_of(&self, workers: &[WorkerSlot]) -> muster_types::Name {
        let first = workers.first().expect("a gang has a worker");
        self.nodes.get(&first.node).expect("the guard has seen the node").spec.region.clone()
    }

    /// What workers on these nodes are charged for.
    pub(crate) fn charge_for(&self, spec: &JobSpec, workers: &[WorkerSlot]) -> Charge {
        let mut charge = Charge::default();
        for (rank, slot) in workers.iter().enumerate() {
            let group = spec.group_of_slot(rank as u32, workers.len());
            let group = group.expect("the guard has counted the workers");
            let node = self.nodes.get(&slot.node).expect("the guard has seen the node");
            let (cpu_milli, memory_bytes) = match group.request.exclusive {
                true => (node.spec.cpu_milli, node.spec.memory_bytes),
                false => (group.request.cpu_milli, group.request.memory_bytes),
            };
            charge.cpu_milli += cpu_milli;
            charge.memory_bytes += memory_bytes;
            let milli = group.request.device_milli();
            let Some(kind) = node.spec.accelerators.as_ref().map(|a| &a.kind).filter(|_| milli > 0) else {
                continue;
            };
            match charge.devices_milli.iter_mut().find(|(known, _)| known == kind) {
                Some((_, sum)) => *sum += milli,
                None => charge.devices_milli.push((kind.clone(), milli)),
            }
            let Some(purchase) = PurchaseKind::of_node(&node.spec) else { continue };
            let bought = &mut charge.bought_milli;
            match bought.iter_mut().find(|(known, of, _)| known == kind && *of == purchase) {
                Some((.., sum)) => *sum += milli,
                None => bought.push((kind.clone(), purchase, milli)),
            }
        }
        charge.devices_milli.sort_unstable();
        charge.bought_milli.sort_unstable();
        charge
    }

    /// What is promised of a node that is to be this host: workers that have hosts to themselves are promised all of it.
    fn promised_of(&self, node: NodeId, host: &NodeSpec) -> Promised {
        let mut promised = Promised::default();
        for job in self.promised_on(node) {
            let (Some(row), Some(spec)) = (self.jobs.get(&job), self.specs.get(&job)) else { continue };
            let Some(promise) = &row.promise else { continue };
            for (rank, slot) in promise.slots.iter().enumerate().filter(|(_, slot)| slot.node == node) {
                let group = spec.group_of_slot(rank as u32, promise.slots.len());
                let group = group.expect("a promised place has a group");
                promised.add(&group.request, slot.devices, host);
            }
        }
        promised
    }

    fn fold_registered(&mut self, spec: &NodeSpec, holder: HolderId) -> Vec<Effect> {
        let mut spec = spec.clone();
        self.indexes.share_names(&mut spec);
        let spec = Arc::new(spec);
        let all = Free::all_of(&spec);
        let id = match self.node_named(&spec.name) {
            Some(id) => {
                let row = self.nodes.get(&id).expect("a named node has a row");
                let old = row.spec.clone();
                // What operators have set stays.
                let (spec, overrides) = said_again(row, &spec);
                // A host that is larger now than when it was promised as a whole is promised as a whole.
                let promised = self.promised_of(id, &spec);
                // Out of the old place before into the new: the pool may be another.
                self.change_node(id, true, |row| row.status = NodeStatus::Lost);
                self.indexes.remove_shape(id, &old);
                self.indexes.add_shape(id, &spec);
                self.change_node(id, true, |row| {
                    row.free = all;
                    row.promised = promised;
                    row.spec = spec;
                    row.overrides = overrides;
                    row.holder = holder;
                    row.replaced_start = row.start.take().or(row.replaced_start);
                    row.incarnation += 1;
                    row.status = NodeStatus::Up;
                });
                // The new session says what it sees.
                self.change_restriction(id, |row, _| row.foreign = ForeignLoad::default());
                id
            }
            None => {
                let id = NodeId(self.meta.nodes_registered);
                self.meta.nodes_registered += 1;
                self.indexes.nodes_by_name.insert(spec.name.clone(), id);
                self.indexes.add_shape(id, &spec);
                let row = NodeRow {
                    holder,
                    start: None,
                    replaced_start: None,
                    incarnation: 1,
                    status: NodeStatus::Up,
                    cordoned: false,
                    free: all,
                    promised: Promised::default(),
                    changed_at: self.meta.log_time,
                    changed_index: self.meta.log_index,
                    overrides: None,
                    reasons: None,
                    restricted: Restricted::default(),
                    spec,
                };
                self.indexes.add_status(id, &row);
                self.indexes.add_placeable(&row.spec);
                self.indexes.add_free(id, &row);
                let bought = CapacityKey::of(&row.spec);
                self.nodes.insert(id, row);
                self.count_capacity(None, bought);
                id
            }
        };
        vec![Effect::NodeChanged(id), Effect::OrdersChanged(id)]
    }

    fn fold_lost(&mut self, node: NodeId, _cause: NodeLostCause) -> Vec<Effect> {
        let gangs: Vec<JobId> = self.gangs_on(node).collect();
        let mut effects = vec![Effect::NodeChanged(node), Effect::OrdersChanged(node)];
        effects.extend(self.drop_spares_on(node));
        for job in gangs {
            let over: Vec<(u32, RankState)> = {
                let placement = self.placement_of(job);
                let ranks = placement.slots.iter().zip(&placement.ranks).enumerate();
                ranks
                    .filter(|(_, (slot, state))| slot.node == node && !state.is_over())
                    .map(|(rank, _)| (rank as u32, RankState::Lost))
                    .collect()
            };
            self.set_ranks(job, node, over);
            effects.push(Effect::JobChanged(job));
        }
        self.change_node(node, true, |row| row.status = NodeStatus::Lost);
        effects
    }

    /// Nothing of the generation before is held any more: as if every session had run out at once. What ran
    /// where, and whether it still does, is not known; the decider has let every lease run out.
    fn fold_recovered(&mut self, generation: u32) -> Vec<Effect> {
        let cluster = self.meta.cluster.as_mut().expect("the guard has seen the cluster");
        cluster.generation = generation;
        // Ids of a generation begin at its records.
        self.meta.ids_ahead = 0;
        let up = self.nodes.iter().filter(|(_, row)| row.status == NodeStatus::Up);
        let up: Vec<NodeId> = up.map(|(id, _)| *id).collect();
        let mut effects = vec![Effect::ClusterChanged];
        for node in up {
            effects.extend(self.fold_lost(node, NodeLostCause::LeaseExpired));
        }
        effects
    }

    fn fold_forgotten(&mut self, node: NodeId) -> Vec<Effect> {
        let row = self.nodes.get(&node).expect("the guard has seen the node").clone();
        self.indexes.nodes_by_name.remove(&row.spec.name);
        self.indexes.remove_status(node, &row);
        self.indexes.remove_shape(node, &row.spec);
        if let Some(restriction) = self.restrictions.get(&node) {
            self.indexes.remove_restriction(node, restriction);
            self.restrictions.remove(&node);
        }
        self.nodes.remove(&node);
        self.node_faults.remove(&node);
        vec![Effect::NodeForgotten(node)]
    }

    fn fold_reported(&mut self, node: NodeId, job: JobId, updates: &[(u32, RankUpdate)]) -> Vec<Effect> {
        let states = updates.iter().filter_map(|(rank, update)| match update {
            RankUpdate::Running => Some((*rank, RankState::Running)),
            RankUpdate::Exited(exit) => Some((*rank, RankState::Exited(exit.clone()))),
            RankUpdate::Ready => None,
        });
        let states: Vec<(u32, RankState)> = states.collect();
        if !states.is_empty() {
            self.set_ranks(job, node, states);
        }
        self.note_ready(job, updates);
        vec![Effect::JobChanged(job), Effect::OrdersChanged(node)]
    }

    /// Ranks are ready, or it does not matter any more whether they are.
    fn note_ready(&mut self, job: JobId, updates: &[(u32, RankUpdate)]) {
        if self.specs.get(&job).is_none_or(|spec| spec.readiness_ms.is_none()) {
            return;
        }
        let ranks =
            updates.iter().filter(|(_, update)| *update != RankUpdate::Running).map(|(rank, _)| *rank);
        let ranks: Vec<u32> = ranks.collect();
        if ranks.is_empty() {
            return;
        }
        self.change_job(job, |row| {
            let placement = row.placement.as_mut().expect("a gang on a node has a placement");
            Arc::make_mut(placement).ready.extend(ranks);
        });
    }

    /// Moves ranks of a gang on one node, frees what the ended ones held, and moves the gang to
    /// running when the last worker has started.
    fn set_ranks(&mut self, job: JobId, node: NodeId, states: Vec<(u32, RankState)>) {
        let spec = self.specs.get(&job).expect("a placed job has a spec").clone();
        let now = self.meta.log_index;
        // Nothing that the indexes know of the job depends on its ranks alone: its row changes where it stands.
        let change = |row: &mut JobRow, &(): &()| {
            let placement = row.placement.as_mut().expect("a gang on a node has a placement");
            let freed = Arc::make_mut(placement).set_ranks(node, states);
            row.changed_at = now;
            let mut there = placement.slots.iter().zip(&placement.ranks);
            let remains = there.any(|(slot, state)| slot.node == node && !state.is_over());
            let all_started = placement.unstarted == 0 && placement.ranks.iter().all(RankState::has_started);
            (freed, remains, all_started && row.phase == Phase::Starting, placement.slots.len())
        };
        let changed = self.jobs.change(&job, change);
        let (freed, remains, begins, workers) = changed.expect("a gang on a node has a job");
        if !remains {
            self.indexes.gangs_by_node.remove(&(node, job));
        }
        if !freed.is_empty() {
            self.change_node(node, false, |row| {
                for (rank, devices) in freed {
                    let (group, _) = spec.group_of(rank, workers).expect("a placed rank has a group");
                    row.free.give(&group.request, devices);
                }
                assert!(row.free.cpu_milli <= row.spec.cpu_milli, "no more is freed than there is");
                assert!(row.free.memory_bytes <= row.spec.memory_bytes, "no more is freed than there is");
                assert!(row.free.scratch_bytes <= row.spec.scratch_bytes, "no more is freed than there is");
            });
        }
        if begins {
            let now = self.meta.log_time;
            self.change_job(job, |row| {
                row.phase = Phase::Running;
                row.started_at = Some(now);
            });
        }
    }

    /// What is behind the last worker are spares.
    fn fold_placed(&mut self, job: JobId, placed: &[WorkerSlot]) -> Vec<Effect> {
        // It is placed in the capacity that was promised to it.
        if self.jobs.get(&job).is_some_and(|row| row.promise.is_some()) {
            self.drop_promise(job);
        }
        let spec = self.specs.get(&job).expect("the guard has seen the job").clone();
        let charge = self.charge_for(&spec, placed);
        let (workers, spares) = placed.split_at(placed.len().min(spec.worker_count() as usize));
        self.forget_stragglers(job);
        let generation = self.meta.cluster.expect("the guard has seen the cluster").generation;
        let first = workers.first().expect("a gang has a worker");
        let first_spec = self.nodes.get(&first.node).expect("the guard has seen the node").spec.clone();
        let mut rank = 0u32;
        // Neighbours on one node are one change of it.
        for of_node in workers.chunk_by(|a, b| a.node == b.node) {
            let node = of_node[0].node;
            self.change_node(node, false, |row| {
                for slot in of_node {
                    let group = spec.group_of(rank, workers.len());
                    let (group, _) = group.expect("the guard has counted the workers");
                    row.free.take(&group.request, slot.devices);
                    rank += 1;
                }
            });
            self.indexes.gangs_by_node.insert((node, job));
        }
        let count = workers.len() as u32;
        let placement = Placement {
            token: FencingToken { generation, log_index: self.meta.log_index },
            region: first_spec.region.clone(),
            cluster: first_spec.cluster.clone(),
            placed_at: self.meta.log_time,
            slots: workers.to_vec(),
            ranks: vec![RankState::Assigned; workers.len()],
            live: count,
            unstarted: count,
            charge,
            ready: BTreeSet::new(),
        };
        self.hold_spares(job, &spec, spares);
        self.change_job(job, |row| {
            row.previous = row.placement.take();
            row.placement = Some(Arc::new(placement));
            row.attempt += 1;
            row.phase = Phase::Starting;
        });
        self.gang_effects(job)
    }

    fn fold_finished(&mut self, job: JobId, outcome: &Outcome) -> Vec<Effect> {
        let now = self.meta.log_time;
        if self.jobs.get(&job).is_some_and(|row| row.promise.is_some()) {
            self.drop_promise(job);
        }
        self.drop_spares(job);
        self.note_stopped(job);
        let bucket = self.learn(job, outcome);
        self.end_hold(job);
        self.change_job(job, |row| {
            row.held = false;
            // The attempt that the job failed by counts like those before it.
            let ran = row.phase != Phase::Pending;
            row.failures += u32::from(ran && matches!(outcome, Outcome::Failed { .. }));
            row.phase = Phase::Finished(outcome.clone());
            row.finished_at = Some(now);
        });
        self.leave_burst(job, bucket);
        let mut effects = vec![Effect::JobChanged(job)];
        effects.extend(self.note_member_end(job, outcome));
        effects
    }

    fn fold_pruned(&mut self, requests_before: LogTime, jobs_before: LogTime) -> Vec<Effect> {
        let bound = limits::PRUNE_ROWS_MAX as usize;
        let old: Vec<_> =
            self.requests_by_time().take_while(|(at, _)| *at < requests_before).take(bound).collect();
        for (at, id) in old {
            self.requests.remove(&id);
            self.indexes.requests_by_time.remove(&(at, id));
        }
        let old: Vec<_> = self.finished().take_while(|(at, _)| *at < jobs_before).take(bound).collect();
        let mut effects = Vec::with_capacity(old.len());
        for (_, id) in old {
            let row = self.jobs.get(&id).expect("an indexed job has a row");
            let spec = self.described(id).expect("an indexed job has a spec");
            self.indexes.shift(
                id,
                &spec,
                &JobIndexKeys::of(row, &spec, None, None),
                &JobIndexKeys::default(),
            );
            self.jobs.remove(&id);
            self.specs.remove(&id);
            self.forget_recovery(id);
            self.metadata.remove(&id);
            self.controls.remove(&id);
            self.times.remove(&id);
            effects.push(Effect::JobForgotten(id));
        }
        self.prune_arrays(jobs_before, bound);
        self.sweep_tenants();
        self.sweep_budgets();
        self.sweep_users();
        effects
    }

    fn placement_of(&self, job: JobId) -> &Placement {
        let row = self.jobs.get(&job).expect("a gang on a node has a job");
        row.placement.as_deref().expect("a gang on a node has a placement")
    }

    /// The job changed, and so did the orders of every node it still has workers on.
    pub(crate) fn gang_effects(&self, job: JobId) -> Vec<Effect> {
        let placement = self.placement_of(job);
        if let ([slot], [state]) = (placement.slots.as_slice(), placement.ranks.as_slice()) {
            let orders = Effect::OrdersChanged(slot.node);
            return if state.is_over() {
                vec![Effect::JobChanged(job)]
            } else {
                vec![Effect::JobChanged(job), orders]
            };
        }
        let mut nodes: Vec<NodeId> = placement
            .slots
            .iter()
            .zip(&placement.ranks)
            .filter(|(_, state)| !state.is_over())
            .map(|(slot, _)| slot.node)
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut effects = Vec::with_capacity(1 + nodes.len());
        effects.push(Effect::JobChanged(job));
        effects.extend(nodes.into_iter().map(Effect::OrdersChanged));
        effects
    }
}
