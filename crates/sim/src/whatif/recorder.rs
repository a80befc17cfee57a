//! A range of a log as something that can be replayed: where it begins, what was asked for in it, how long jobs ran.

use std::collections::{BTreeMap, BTreeSet};

use muster_decider::DrainOrder;
use muster_journal::{Decision, Outcome, StopCause, SubmittedPart};
use muster_state::{Applied, Phase, QuotaGrantStatus, RequestAnswer, State};
use muster_types::policy::{Policy, QuotaGrant};
use muster_types::{
    ArrayId, BookingSpec, Control, FieldChange, FleetHold, ForeignLoad, HoldTarget, HolderId, JobId,
    LogIndex, LogTime, Name, NodeId, NodeSpec, RequestId, Requester, Submission,
};

use crate::driver::{Happened, happened_by};
use crate::whatif::history::History;
use crate::whatif::meter::{Meter, Side};
use crate::whatif::{INPUTS_MAX, JOBS_MAX, Range, WhatifError};

/// What people and nodes did.
#[derive(Clone, Debug)]
pub(super) enum Input {
    /// Jobs and arrays of one request. Ids follow one another from the first one on.
    Submitted { first: JobId, count: u32, parts: Vec<Submission> },
    /// Jobs were cancelled, held, released, requeued or suspended.
    Controlled { by: Requester, control: Control, arrays: Vec<ArrayId>, jobs: Vec<JobId> },
    /// A job was changed.
    Modified { by: Requester, job: JobId, changes: Vec<FieldChange> },
    /// The throttle of an array was changed.
    Throttled { by: Requester, array: ArrayId, throttle: Option<u32> },
    /// The policy was set.
    PolicySet(Box<Policy>),
    /// A node opened a session.
    Registered { spec: Box<NodeSpec>, holder: HolderId },
    /// The session of a node ended.
    Lost(Name),
    /// A node was cordoned or put back.
    Cordoned(Name, bool),
    /// A node was drained, or that was ended.
    Drained(Name, DrainOrder),
    /// A node was put in quarantine, or let back.
    Quarantined(Name, Option<String>),
    /// What others hold of a node.
    Foreign(Name, ForeignLoad),
    /// A tenant was granted quota. That its time is over follows from the grant.
    QuotaGranted(Box<QuotaGrant>),
    /// A grant was ended before its time.
    QuotaWithdrawn(Box<QuotaGrant>),
    /// Nodes were set aside. Which they are, the scheduler chooses again; that a window begins or ends follows from the booking.
    Booked(Name, Box<BookingSpec>),
    /// A booking was given up.
    BookingDeleted(Name),
    /// A part of the fleet or a tenant was held, or released. That the time of a hold is over follows from the hold.
    FleetHeld(HoldTarget, Option<Box<FleetHold>>),
}

/// Looks at the records of a log as they are applied: first those of the range, then those behind it, which say how long the
/// jobs of the range ran.
#[derive(Clone, Debug)]
pub struct Recorder {
    recording: Recording,
    meter: Meter,
    is_in_range: bool,
    /// The record that is being applied, and the saved work of the job that it is about.
    decision: Option<(Decision, u64)>,
    /// Inputs of the round with jobs whose parts are still to be filled in: what they ask of their agents follows in later
    /// records.
    submitted: Vec<usize>,
    is_fleet_changed: bool,
    happened: Vec<Happened>,
    /// The last id of the jobs of the range.
    newest: JobId,
    /// Jobs of the range whose end is still to come.
    unfinished: BTreeSet<JobId>,
    error: Option<WhatifError>,
}

/// What a replay needs, and what the log itself came to.
#[derive(Clone, Debug)]
pub struct Recording {
    pub(super) range: Range,
    /// The state at the beginning of the range.
    pub(super) base: State,
    pub(super) inputs: Vec<(LogTime, Input)>,
    pub(super) histories: BTreeMap<JobId, History>,
    /// What the log says that came of it.
    pub record: Side,
    /// Inputs that are not replayed, by the names of their records.
    pub not_replayed: BTreeMap<&'static str, u64>,
    /// Jobs that held devices where the range begins.
    pub running_at_begin: u64,
    /// Jobs that waited where the range begins, members of arrays counted.
    pub waiting_at_begin: u64,
    /// How far the log was read to learn how long jobs ran.
    pub read_to: LogTime,
}

impl Recorder {
    /// Begins with the state behind the last record before the range.
    #[must_use]
    pub fn begin(state: &State, range: Range) -> Recorder {
        let mut histories: BTreeMap<JobId, History> = BTreeMap::new();
        for job in state.active() {
            if let Some(placement) = state.job(job).and_then(|row| row.placement.as_ref()) {
                histories.entry(job).or_default().placed(placement.placed_at);
            }
        }
        let of_array = state.arrays().last_key().map(|array| state.members(*array).end);
        let newest = state.jobs().last_key().copied().max(of_array).unwrap_or(JobId(0));
        let recording = Recording {
            range,
            base: state.clone(),
            inputs: Vec::new(),
            histories,
            record: Side::default(),
            not_replayed: BTreeMap::new(),
            running_at_begin: state.active_count() as u64,
            waiting_at_begin: state.pending_count() as u64,
            read_to: range.from,
        };
        Recorder {
            recording,
            meter: Meter::begin(state, range),
            is_in_range: true,
            decision: None,
            submitted: Vec::new(),
            is_fleet_changed: false,
            happened: Vec::new(),
            newest,
            unfinished: BTreeSet::new(),
            error: None,
        }
    }

    /// Before a record.
    pub fn before(&mut self, state: &State, decision: &Decision) {
        let saved_ms = match decision {
            Decision::GangStopRequested { job, .. }
            | Decision::JobRequeued { job, .. }
            | Decision::JobFinished { job, .. } => state.times(*job).ran_ms,
            _ => 0,
        };
        self.decision = Some((decision.clone(), saved_ms));
    }

    /// Behind a record; the state has it, unless it was refused.
    pub fn after(&mut self, state: &State, applied: &Applied) {
        let Some((decision, saved_ms)) = self.decision.take() else { return };
        if applied.log_index.is_none() || applied.rejection.is_some() || self.error.is_some() {
            return;
        }
        let now = state.log_time();
        self.recording.read_to = now;
        if self.is_in_range {
            self.meter.advance(now);
            happened_by(state, &decision, &mut self.happened);
            for happened in self.happened.drain(..) {
                self.meter.follow(state, happened);
            }
            self.note_input(state, now, &decision);
        }
        self.note_run(state, now, &decision, saved_ms);
        if self.recording.inputs.len() > INPUTS_MAX || self.recording.histories.len() > JOBS_MAX {
            self.error = Some(WhatifError::new(
                format!("the range has more than {INPUTS_MAX} inputs or {JOBS_MAX} jobs"),
                "name a shorter range with --from and --to",
            ));
        }
    }

    /// Behind the last record of a round.
    pub fn round_over(&mut self, state: &State) {
        if std::mem::take(&mut self.is_fleet_changed) {
            self.meter.fleet(state);
        }
        let part = |job: JobId| {
            let spec = state.spec(job)?;
            let contract = state.agreed(job).map(|contract| (**contract).clone()).unwrap_or_default();
            let metadata = state.carried(job).cloned();
            Some(Submission { metadata, ..Submission::new((**spec).clone(), contract) })
        };
        for place in std::mem::take(&mut self.submitted) {
            if let Some((_, Input::Submitted { first, count, parts })) = self.recording.inputs.get_mut(place)
            {
                let ids = (0..u64::from(*count)).map(|n| JobId(first.0 + n));
                *parts = ids.filter_map(part).collect();
            }
        }
    }

    /// Why the range cannot be replayed; nothing more is recorded then.
    #[must_use]
    pub fn error(&self) -> Option<&WhatifError> {
        self.error.as_ref()
    }

    /// Whether nothing more is to be learned: the range is over, and every job of it that had begun has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.error.is_some() || (!self.is_in_range && self.unfinished.is_empty())
    }

    /// The range is over; the state is the one behind its last record.
    pub fn end_range(&mut self, state: &State) {
        self.round_over(state);
        let meter = Meter::begin(state, self.recording.range);
        let meter = std::mem::replace(&mut self.meter, meter);
        let submitted = self.recording.inputs.iter().map(|(_, input)| match input {
            Input::Submitted { count, .. } => u64::from(*count),
            _ => 0,
        });
        let submitted = submitted.sum();
        self.recording.record = Side { submitted, ..meter.close(state, self.recording.range.to) };
        self.is_in_range = false;
        let is_over = |phase: &Phase| matches!(phase, Phase::Finished(_));
        let unfinished = state.jobs().iter().filter(|(_, row)| !is_over(&row.phase));
        self.unfinished = unfinished.map(|(job, _)| *job).collect();
    }

    /// What was recorded so far, as a recording whose range ends at a time that is not before the last record. The state is
    /// the one behind that record; recording goes on.
    ///
    /// # Errors
    /// When the range cannot be replayed.
    pub fn so_far(&self, state: &State, to: LogTime) -> Result<Recording, WhatifError> {
        let mut recorder = self.clone();
        recorder.recording.range.to = to;
        recorder.end_range(state);
        recorder.finish(state)
    }

    /// How many inputs and jobs it holds, which is what its memory follows.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        (self.recording.inputs.len(), self.recording.histories.len())
    }

    /// Nothing more is read; the state is the one that was reached.
    ///
    /// # Errors
    /// When the range cannot be replayed.
    pub fn finish(mut self, state: &State) -> Result<Recording, WhatifError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let now = state.log_time();
        for (job, history) in &mut self.recording.histories {
            let expected_ms = state.job(*job).map_or(0, |row| row.estimate.run_ms);
            history.unfinished(now, state.times(*job).ran_ms, expected_ms);
        }
        Ok(self.recording)
    }

    fn push(&mut self, at: LogTime, input: Input) {
        self.recording.inputs.push((at, input));
    }

    /// What people and nodes did, as something that can be done again.
    fn note_input(&mut self, state: &State, now: LogTime, decision: &Decision) {
        let named = |node: &NodeId| state.node(*node).map(|row| row.spec.name.clone());
        let input = match decision {
            Decision::JobsSubmitted { request, .. } => {
                let Some((first, count)) = submitted_by(state, request.id) else { return };
                self.newest = self.newest.max(JobId(first.0 + u64::from(count)));
                self.submitted.push(self.recording.inputs.len());
                Some(Input::Submitted { first, count, parts: Vec::new() })
            }
            Decision::ArraysSubmitted { request, parts, .. } => {
                let Some((first, count)) = submitted_by(state, request.id) else { return };
                self.newest = self.newest.max(JobId(first.0 + u64::from(count)));
                Some(Input::Submitted { first, count, parts: parts.iter().map(submission).collect() })
            }
            Decision::PolicySet { policy, .. } => Some(Input::PolicySet(policy.clone())),
            Decision::ClusterRecovered { .. } => {
                self.error = Some(WhatifError::new(
                    format!("the cluster was recovered at {now}, within the range"),
                    "name a range with --from and --to that is before that or behind it",
                ));
                None
            }
            Decision::NodeRegistered { spec, holder } => {
                self.is_fleet_changed = true;
                Some(Input::Registered { spec: Box::new(spec.clone()), holder: *holder })
            }
            Decision::NodeLost { node, .. } => {
                self.is_fleet_changed = true;
                named(node).map(Input::Lost)
            }
            Decision::NodeCordonSet { node, cordoned, .. } => {
                named(node).map(|name| Input::Cordoned(name, *cordoned))
            }
            // Those without a request are the scheduler's own decisions.
            Decision::NodeDrainSet { request: Some(_), node, drain, .. } => {
                let begin = |deadline: Option<LogTime>| DrainOrder::Begin {
                    deadline_ms: deadline.map(|deadline| deadline.since_ms(now)),
                };
                let order = drain.as_ref().map_or(DrainOrder::End, |drain| begin(drain.deadline));
                named(node).map(|name| Input::Drained(name, order))
            }
            Decision::NodeQuarantineSet { request: Some(_), node, reason, .. } => {
                named(node).map(|name| Input::Quarantined(name, reason.clone()))
            }
            Decision::ForeignLoadSet { node, load, .. } => {
                named(node).map(|name| Input::Foreign(name, *load))
            }
            Decision::QuotaGranted { grant, .. } => Some(Input::QuotaGranted(grant.clone())),
            Decision::QuotaAnswered { id, .. } => answered_of(state, *id),
            other => control_of(other).or_else(|| kept_free_by(other)),
        };
        match input {
            Some(input) => self.push(now, input),
            None if is_input(decision) => {
                *self.recording.not_replayed.entry(decision.name()).or_default() += 1;
            }
            None => {}
        }
    }

    /// What a record says of how long a job ran.
    fn note_run(&mut self, state: &State, now: LogTime, decision: &Decision, saved_ms: u64) {
        let job = match decision {
            Decision::GangPlaced { job, .. }
            | Decision::CheckpointCommitted { job, .. }
            | Decision::GangStopRequested { job, .. }
            | Decision::JobRequeued { job, .. }
            | Decision::JobFinished { job, .. } => *job,
            _ => return,
        };
        if job > self.newest {
            return;
        }
        let expected_ms = state.job(job).map_or(0, |row| row.estimate.run_ms);
        let history = self.recording.histories.entry(job).or_default();
        match decision {
            Decision::GangPlaced { .. } => history.placed(now),
            Decision::CheckpointCommitted { .. } => history.saved(),
            Decision::GangStopRequested { cause: StopCause::RunTimeLimit, .. } => history.cut(),
            Decision::GangStopRequested { cause: StopCause::Deadline, .. } => {
                history.unfinished(now, saved_ms, expected_ms);
            }
            Decision::JobRequeued { failed: true, .. } => {
                history.ended(now, 1, saved_ms, state.times(job).ran_ms);
            }
            Decision::JobRequeued { .. } => history.stopped(),
            Decision::JobFinished { outcome, .. } => {
                match outcome {
                    Outcome::Succeeded => history.ended(now, 0, saved_ms, saved_ms),
                    Outcome::Failed { .. } => history.ended(now, 1, saved_ms, saved_ms),
                    Outcome::Cancelled => history.unfinished(now, saved_ms, expected_ms),
                }
                self.unfinished.remove(&job);
            }
            _ => {}
        }
    }
}

/// A part of a request as it was submitted.
fn submission(part: &SubmittedPart) -> Submission {
    let contract = part.contract.as_ref().map(|contract| (**contract).clone()).unwrap_or_default();
    Submission {
        metadata: part.metadata.clone(),
        array: part.array.clone(),
        ..Submission::new((*part.spec).clone(), contract)
    }
}

/// The jobs that a request made: the first id, and how many.
fn submitted_by(state: &State, request: RequestId) -> Option<(JobId, u32)> {
    match state.request(request).map(|row| &row.answer) {
        Some(RequestAnswer::Submitted { first, jobs }) => Some((*first, *jobs)),
        _ => None,
    }
}

/// What an answer to a request for quota came to: a denied request changes nothing.
fn answered_of(state: &State, id: LogIndex) -> Option<Input> {
    let row = state.quota_grant(id)?;
    let grant = Box::new(row.grant.clone());
    match row.status {
        QuotaGrantStatus::Granted => Some(Input::QuotaGranted(grant)),
        QuotaGrantStatus::Ended { .. } => Some(Input::QuotaWithdrawn(grant)),
        _ => None,
    }
}

/// What people asked of jobs that exist; none for what is no such record.
fn control_of(decision: &Decision) -> Option<Input> {
    let of = |by: &Requester, control, jobs: &[JobId]| {
        Some(Input::Controlled { by: by.clone(), control, arrays: Vec::new(), jobs: jobs.to_vec() })
    };
    match decision {
        Decision::JobCancelRequested { by, jobs, .. } => of(by, Control::Cancel, jobs),
        Decision::JobHoldSet { by, jobs, held: true, .. } => of(by, Control::Hold, jobs),
        Decision::JobHoldSet { by, jobs, held: false, .. } => of(by, Control::Release, jobs),
        Decision::JobRequeueRequested { by, jobs, suspended: true, .. } => of(by, Control::Suspend, jobs),
        Decision::JobRequeueRequested { by, jobs, suspended: false, .. } => of(by, Control::Requeue, jobs),
        Decision::ArraysControlled { by, control, arrays, jobs, .. } => Some(Input::Controlled {
            by: by.clone(),
            control: *control,
            arrays: arrays.clone(),
            jobs: jobs.clone(),
        }),
        Decision::JobModified { by, job, changes, .. } => {
            Some(Input::Modified { by: by.clone(), job: *job, changes: changes.clone() })
        }
        Decision::ArrayThrottleSet { by, array, throttle, .. } => {
            Some(Input::Throttled { by: by.clone(), array: *array, throttle: *throttle })
        }
        _ => None,
    }
}

/// What people keep free of work, or open again; none for what is no such record.
fn kept_free_by(decision: &Decision) -> Option<Input> {
    match decision {
        Decision::BookingCreated { name, spec, .. } => Some(Input::Booked(name.clone(), spec.clone())),
        Decision::BookingDeleted { name, .. } => Some(Input::BookingDeleted(name.clone())),
        Decision::FleetHoldSet { target, hold, .. } => Some(Input::FleetHeld(target.clone(), hold.clone())),
        _ => None,
    }
}

/// Whether a record that is not replayed is about what can be used: its absence changes what a replay comes to.
fn is_input(decision: &Decision) -> bool {
    matches!(
        decision,
        Decision::NodeHealthChanged { .. }
            | Decision::NodeRepairSet { .. }
            | Decision::NodeOverridesSet { .. }
            | Decision::HealthPolicySet { .. }
            | Decision::StragglerNoted { .. }
    )
}
