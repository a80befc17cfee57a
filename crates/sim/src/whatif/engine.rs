//! The inputs of a recording through the shipping scheduler, over virtual time.
//!
//! At one moment runs end first, then come the inputs in the order of the log, and then the scheduler has its turn until
//! nothing more follows. A gang runs from its placement on. It ends after what its attempt took in the log, and goes on from
//! the last of the times at which its work was saved, if it was saved at all.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use muster_decider::{
    Answer, BookingOrder, Command, ControlOrder, FleetHoldOrder, JobPath, JobSelection, ModifyOrder,
    QuotaAnswerOrder, QuotaOrder, ThrottleOrder,
};
use muster_journal::hash;
use muster_state::{NodeStatus, Phase, State};
use muster_types::policy::{Policy, QuotaGrant};
use muster_types::token::user_of;
use muster_types::{
    AffinityTarget, ArrayId, Booking, BookingSpec, BookingTimes, Control, Dependency, FleetHold, HoldTarget,
    HolderId, JobId, LogTime, Name, NamedDependency, NodeAdmission, NodeId, NodeSpec, Requester, Submission,
};

use crate::driver::{Driver, Happened};
use crate::stopwatch::stopped;
use crate::wakes::{Wakes, earliest};
use crate::whatif::WhatifError;
use crate::whatif::change::{Change, Plan};
use crate::whatif::history::{History, Run};
use crate::whatif::meter::{Meter, Side};
use crate::whatif::recorder::{Input, Recording};

impl Recording {
    /// What the scheduler makes of the inputs, with a change or without one. `progress` is told the time that was reached, now
    /// and then.
    ///
    /// # Errors
    /// When the change names what is not there, or breaks a rule of policies.
    pub fn replay(&self, change: &Change, progress: &mut dyn FnMut(LogTime)) -> Result<Side, WhatifError> {
        let plan = Plan::of(change, self)?;
        let mut engine = Engine::begin(self, &plan);
        engine.make_changes()?;
        engine.run(progress)?;
        Ok(engine.close())
    }

    /// Whether a change can be replayed.
    ///
    /// # Errors
    /// As [`Recording::replay`].
    pub fn check(&self, change: &Change) -> Result<(), WhatifError> {
        Plan::of(change, self).map(|_| ())
    }
}

/// Ids of one request: the first on one side, the first on the other, and how many follow one another.
type IdRanges = BTreeMap<JobId, (JobId, u32)>;

/// A job that has been placed, or goes on from saved work.
#[derive(Debug, Default)]
struct Live {
    /// Which of the attempts that end by themselves is next.
    next_run: usize,
    /// Work that the next attempt goes on from, in milliseconds.
    saved_ms: u64,
    /// Saved work that attempts before used up, in milliseconds.
    counted_ms: u64,
    /// When the present attempt was placed, and as which placement of the replay.
    placed: Option<(LogTime, u64)>,
    /// Whether the present attempt has ended by itself.
    has_ended: bool,
}

struct Engine<'a> {
    recording: &'a Recording,
    plan: &'a Plan,
    driver: Driver<'static>,
    meter: Meter,
    live: BTreeMap<JobId, Live>,
    /// When, as which placement, which job; the earliest first.
    ends: BinaryHeap<Reverse<(u64, u64, JobId)>>,
    placements: u64,
    /// From ids of the record to those of the replay, and back.
    replayed: IdRanges,
    recorded: IdRanges,
    wakes: Wakes,
    /// Whether sessions of nodes have begun or ended since the fleet was counted.
    is_fleet_changed: bool,
    now: LogTime,
}

/// The id on the other side; none where the range is not there.
fn counterpart(ranges: &IdRanges, job: JobId) -> Option<JobId> {
    let (first, (other, count)) = ranges.range(..=job).next_back()?;
    let offset = job.0 - first.0;
    (offset < u64::from(*count)).then_some(JobId(other.0 + offset))
}

/// Times at which a policy lets something begin or end.
fn windows_of(policy: &Policy) -> impl Iterator<Item = u64> {
    policy.windows.iter().flat_map(|window| [window.from.0, window.until.0])
}

/// Times at which a window of a booking begins or ends.
fn moments_of(times: &BookingTimes) -> impl Iterator<Item = u64> {
    let windows = (0..times.windows).filter_map(move |number| times.window(number));
    windows.flat_map(|window| [window.from.0, window.until.0])
}

impl<'a> Engine<'a> {
    fn begin(recording: &'a Recording, plan: &'a Plan) -> Engine<'a> {
        let (base, from) = (&recording.base, recording.range.from);
        let mut known: BTreeSet<u64> = windows_of(&base.policy().policy).collect();
        known.extend(base.not_before().map(|(at, _)| at.0));
        known.extend(base.arrays_not_before().map(|(at, _)| at.0));
        known.extend(base.deadlines().map(|(at, _)| at.0));
        known.extend(base.grants_in_force().map(|(_, row)| row.grant.until.0));
        known.extend(base.bookings().flat_map(|(_, booking)| moments_of(&booking.spec.times)));
        known.extend(base.fleet_holds().filter_map(|(_, row)| row.hold.until).map(|at| at.0));
        known.extend(base.closed_fallbacks().filter_map(|(_, job)| base.fallback_due(job)).map(|at| at.0));
        let mut engine = Engine {
            recording,
            plan,
            driver: Driver::resumed(base.clone(), from, &stopped),
            meter: Meter::begin(base, recording.range),
            live: BTreeMap::new(),
            ends: BinaryHeap::new(),
            placements: 0,
            replayed: IdRanges::new(),
            recorded: IdRanges::new(),
            wakes: Wakes::at(known),
            is_fleet_changed: false,
            now: from,
        };
        engine.wakes.pass(from.0);
        engine.resume_runs();
        engine
    }

    /// What holds devices where the range begins goes on.
    fn resume_runs(&mut self) {
        let base: &'a State = &self.recording.base;
        for (job, row) in base.jobs().iter() {
            let saved_ms = base.times(*job).ran_ms;
            let placement = match &row.phase {
                Phase::Pending => None,
                Phase::Starting | Phase::Running | Phase::Stopping(_) => row.placement.as_ref(),
                Phase::Finished(_) => continue,
            };
            if saved_ms > 0 || placement.is_some() {
                self.live.insert(*job, Live { saved_ms, ..Live::default() });
            }
            if let Some(placement) = placement {
                self.begin_run(*job, placement.placed_at);
            }
            match &row.phase {
                Phase::Starting => self.driver.report_running(*job),
                // Nobody is left who would take longer.
                Phase::Stopping(_) => self.driver.report_stopped(*job),
                _ => {}
            }
        }
    }

    fn make_changes(&mut self) -> Result<(), WhatifError> {
        let plan: &'a Plan = self.plan;
        // Who may register was decided when the record was made.
        let request = self.driver.next_request();
        let admission = Box::<NodeAdmission>::default();
        let by = Requester::default();
        let open = Command::SetNodeAdmission { request, by, admission, expected_version: None };
        let _ = self.driver.ask(&open);
        if let Some(policy) = &plan.first_policy {
            self.set_policy(policy)?;
        }
        for name in &plan.removed {
            self.lose(name);
        }
        for (place, host) in plan.hosts.iter().enumerate() {
            let holder = HolderId((1 << 127) + place as u128);
            self.register(host, holder).map_err(|sentence| {
                WhatifError::new(
                    format!("the host {} cannot be added: {sentence}", host.name),
                    "add fewer accelerators, or accelerators of another type",
                )
            })?;
        }
        Ok(())
    }

    fn run(&mut self, progress: &mut dyn FnMut(LogTime)) -> Result<(), WhatifError> {
        /// Events between two calls of `progress`.
        const EVENTS_BETWEEN: u64 = 1_024;
        let recording: &'a Recording = self.recording;
        let to = recording.range.to;
        let plan: &'a Plan = self.plan;
        let mut inputs: Vec<&'a (LogTime, Input)> = recording.inputs.iter().chain(&plan.outages).collect();
        // It keeps the order of the log within a moment.
        inputs.sort_by_key(|(at, _)| *at);
        let mut inputs = inputs.into_iter().peekable();
        self.settle();
        for turn in 1u64.. {
            if turn.is_multiple_of(EVENTS_BETWEEN) {
                progress(self.now);
            }
            let input = inputs.peek().map(|(at, _)| at.0);
            let end = self.ends.peek().map(|Reverse((at, ..))| *at);
            let event = earliest(input, end);
            let state = self.driver.state();
            let waits = state.pending_count() > 0 || state.draining().next().is_some();
            let wake = self.wakes.next(self.now.0, waits, event);
            let Some(next) = earliest(event, wake).filter(|at| *at <= to.0) else { break };
            let placements = self.placements;
            self.now = self.now.max(LogTime(next));
            self.meter.advance(self.now);
            self.driver.set_now(self.now.0);
            self.wakes.pass(self.now.0);
            self.end_runs();
            while let Some((_, input)) = inputs.next_if(|(at, _)| *at <= self.now) {
                self.apply(input)?;
            }
            self.settle();
            self.empty_what_is_closed();
            self.wakes.be_patient(event == Some(next) || self.placements > placements);
        }
        Ok(())
    }

    fn close(self) -> Side {
        self.meter.close(self.driver.state(), self.recording.range.to)
    }

    /// Gangs whose attempt is over report it.
    fn end_runs(&mut self) {
        while let Some(Reverse((at, placement, job))) = self.ends.peek().copied()
            && at <= self.now.0
        {
            self.ends.pop();
            let number = self.live.get(&job).filter(|live| !live.has_ended).and_then(|live| live.placed);
            // A run that was lost does not end.
            if number.is_none_or(|(_, number)| number != placement) {
                continue;
            }
            let code = self.run_of(job).map_or(0, |run| run.code);
            if let Some(live) = self.live.get_mut(&job) {
                (live.has_ended, live.saved_ms) = (true, 0);
                live.next_run += 1;
            }
            self.driver.report_exit(job, code);
        }
        // Only now, so that a run that ends at its limit has kept to it.
        self.driver.tick();
    }

    /// Carries out what was decided and lets the scheduler decide, until nothing follows any more.
    fn settle(&mut self) {
        if std::mem::take(&mut self.is_fleet_changed) {
            self.meter.fleet(self.driver.state());
        }
        loop {
            for happened in self.driver.take_happened() {
                self.meter.follow(self.driver.state(), happened);
                self.follow(happened);
            }
            if self.driver.wants_schedule() {
                self.driver.schedule();
            } else if !self.driver.has_happened() {
                break;
            }
        }
    }

    /// Bookings are opened, and what has to go from booked nodes and from held parts of the fleet is stopped: of very much, a
    /// look stops a part, and a leader looks again at once.
    fn empty_what_is_closed(&mut self) {
        /// Looks at one moment, at most.
        const LOOKS_MAX: usize = 1_024;
        for _ in 0..LOOKS_MAX {
            let state = self.driver.state();
            if state.booking_count() == 0 && state.fleet_holds().next().is_none() {
                return;
            }
            self.driver.tick();
            if !self.driver.has_happened() && !self.driver.wants_schedule() {
                return;
            }
            self.settle();
        }
    }

    fn follow(&mut self, happened: Happened) {
        match happened {
            Happened::Placed(job) => {
                self.live.entry(job).or_default();
                self.begin_run(job, self.now);
                self.driver.report_running(job);
            }
            Happened::MustStop { job, .. } => self.driver.report_stopped(job),
            Happened::Requeued(job) => self.lose_run(job),
            Happened::Finished { job, .. } => {
                self.live.remove(&job);
            }
        }
    }

    /// The next attempt of a job that ends by itself; none where the log has none.
    fn run_of(&self, job: JobId) -> Option<Run> {
        let recorded = counterpart(&self.recorded, job).unwrap_or(job);
        let at = self.live.get(&job)?.next_run;
        let runs = &self.recording.histories.get(&recorded)?.runs;
        runs.get(at).copied()
    }

    fn begin_run(&mut self, job: JobId, placed_at: LogTime) {
        let run = self.run_of(job);
        let state = self.driver.state();
        let estimate_ms = state.job(job).map_or(1, |row| row.estimate.run_ms);
        let limit_ms = state.spec(job).and_then(|spec| spec.run_time_limit_ms);
        let run = run.unwrap_or(Run { need_ms: Some(estimate_ms), code: 0, is_estimated: true });
        self.placements += 1;
        self.meter.side.estimated_runs += u64::from(run.is_estimated);
        let Some(live) = self.live.get_mut(&job) else { return };
        (live.placed, live.has_ended) = (Some((placed_at, self.placements)), false);
        let saved_ms = live.saved_ms;
        // None: only the scheduler ends it.
        let end = run.need_ms.map(|ms| placed_at.plus_ms(ms.saturating_sub(saved_ms)));
        if let Some(end) = end {
            let end = end.max(self.now.plus_ms(1));
            self.ends.push(Reverse((end.0, self.placements, job)));
        }
        // The scheduler looks when a run has come to its limit.
        let limit = limit_ms.map(|ms| self.now.plus_ms(ms)).filter(|at| end.is_none_or(|end| *at < end));
        self.wakes.add(limit.map(|at| at.0));
    }

    /// Nothing of the gang runs any more, and it waits again.
    fn lose_run(&mut self, job: JobId) {
        let recorded = counterpart(&self.recorded, job).unwrap_or(job);
        let history = self.recording.histories.get(&recorded);
        let interval_ms = history.and_then(History::interval_ms);
        let ran_ms = self.driver.state().times(job).ran_ms;
        let Some(live) = self.live.get_mut(&job) else { return };
        let Some((placed_at, _)) = live.placed.take() else { return };
        match interval_ms {
            // What is saved up to here belongs to the attempts that are over.
            _ if live.has_ended => live.counted_ms = ran_ms,
            Some(interval_ms) => {
                let done_ms = live.saved_ms.saturating_add(self.now.since_ms(placed_at));
                live.saved_ms = live.saved_ms.max(done_ms - done_ms % interval_ms.max(1));
            }
            // As far as the scheduler takes it to be saved.
            None => live.saved_ms = live.saved_ms.max(ran_ms.saturating_sub(live.counted_ms)),
        }
        live.has_ended = false;
    }

    fn apply(&mut self, input: &Input) -> Result<(), WhatifError> {
        let is_done = match input {
            Input::Submitted { first, count, parts } => {
                self.submit(*first, *count, parts);
                true
            }
            Input::Controlled { by, control, arrays, jobs } => self.control(by, *control, arrays, jobs),
            Input::Modified { by, job, changes } => self.here(*job).is_some_and(|job| {
                let (request, by, changes) = (self.driver.next_request(), by.clone(), changes.clone());
                let order = ModifyOrder { request, by, acts_for: None, job, expected: None, changes };
                self.driver.ask(&Command::Modify(Box::new(order))).is_ok()
            }),
            Input::Throttled { by, array, throttle } => self.here(JobId(array.0)).is_some_and(|job| {
                let (request, by, throttle) = (self.driver.next_request(), by.clone(), *throttle);
                let order = ThrottleOrder { request, by, acts_for: None, array: ArrayId(job.0), throttle };
                self.driver.ask(&Command::SetThrottle(Box::new(order))).is_ok()
            }),
            Input::PolicySet(recorded) => {
                if let Some(policy) = self.plan.policy_for(recorded)? {
                    self.set_policy(&policy)?;
                }
                true
            }
            Input::QuotaGranted(grant) => self.grant_quota(grant),
            Input::QuotaWithdrawn(grant) => self.withdraw_quota(grant),
            Input::Registered { spec, .. } if self.plan.removed.contains(&spec.name) => true,
            Input::Registered { spec, .. } if self.plan.is_failed(&spec.name, self.now) => true,
            Input::Registered { spec, holder } => self.register(spec, *holder).is_ok(),
            Input::Lost(name) => self.plan.removed.contains(name) || self.lose(name),
            Input::Booked(name, spec) => self.book(name, spec),
            Input::BookingDeleted(name) => {
                let (request, by, name) = (self.driver.next_request(), Requester::default(), name.clone());
                self.driver.ask(&Command::DeleteBooking { request, by, acts_for: None, name }).is_ok()
            }
            Input::FleetHeld(target, hold) => self.hold(target, hold.as_deref()),
            of_node => self.about_node(of_node),
        };
        self.meter.side.inputs_without_effect += u64::from(!is_done);
        Ok(())
    }

    /// What operators, and other schedulers, did to a node.
    fn about_node(&mut self, input: &Input) -> bool {
        let (Input::Cordoned(name, _)
        | Input::Drained(name, _)
        | Input::Quarantined(name, _)
        | Input::Foreign(name, _)) = input
        else {
            return false;
        };
        if self.plan.removed.contains(name) {
            return true;
        }
        let Some((node, incarnation)) = self.node(name) else { return false };
        let (request, by) = (self.driver.next_request(), Requester::default());
        let command = match input {
            Input::Cordoned(_, cordoned) => {
                Command::SetCordon { request, by, node, cordoned: *cordoned, reason: None }
            }
            Input::Drained(_, order) => Command::SetDrain { request, by, node, order: *order, reason: None },
            Input::Quarantined(_, reason) => {
                Command::SetQuarantine { request, by, node, reason: reason.clone() }
            }
            Input::Foreign(_, load) => Command::ReportForeignLoad { node, incarnation, load: *load },
            _ => return false,
        };
        self.driver.ask(&command).is_ok()
    }

    fn submit(&mut self, first: JobId, count: u32, parts: &[Submission]) {
        self.meter.side.submitted += u64::from(count);
        let request = self.driver.next_request();
        let mut without_booking = 0;
        let answer = self.with_ids(first, parts).and_then(|mut jobs| {
            without_booking = self.leave_out_bookings(&mut jobs);
            let by = Requester::default();
            let command = Command::Submit { request, by, jobs: jobs.into(), path: JobPath::List };
            self.driver.ask(&command).ok()
        });
        let Some(Answer::Submitted { jobs, .. }) = answer else {
            self.meter.side.refused += u64::from(count);
            return;
        };
        self.meter.side.without_booking += without_booking;
        if let Some(own) = jobs.first() {
            self.replayed.insert(first, (*own, count));
            self.recorded.insert(*own, (first, count));
        }
        let now = self.now;
        let moments = parts.iter().flat_map(|job| {
            // Where a job waits for others first, its fallback opens later, and the first look behind that sees it.
            let fallback = job.spec.capacity.as_deref().and_then(|asked| asked.closed_fallback());
            let since = job.spec.not_before.map_or(now, |time| time.max(now));
            let opens = fallback.map(|fallback| since.plus_ms(fallback.after_ms));
            [job.spec.not_before, job.spec.deadline, opens]
        });
        self.wakes.add(moments.flatten().filter(|at| *at > now).map(|at| at.0));
    }

    /// The jobs with the ids of the replay in what they wait for; none where one of those was refused.
    fn with_ids(&self, first: JobId, parts: &[Submission]) -> Option<Vec<Submission>> {
        // Where each part begins.
        let mut next = first;
        let mut starts: BTreeMap<JobId, &Name> = BTreeMap::new();
        for part in parts {
            starts.insert(next, &part.spec.name);
            next = JobId(next.0 + u64::from(part.job_count()));
        }
        let translate = |part: &Submission| {
            if part.spec.dependencies.is_empty() && part.spec.affinity.is_empty() {
                return Some(part.clone());
            }
            let mut draft = part.spec.clone().into_draft();
            let mut named = Vec::new();
            let dependencies = std::mem::take(&mut draft.dependencies);
            for (place, on) in dependencies.into_iter().enumerate() {
                if on.job < first || on.job >= next {
                    draft.dependencies.push(Dependency { job: self.here(on.job)?, ..on });
                    continue;
                }
                // Of the same request, which has no ids yet.
                named.push(NamedDependency {
                    name: (*starts.get(&on.job)?).clone(),
                    rule: on.rule,
                    by_member: on.is_of_members(),
                    place: u32::try_from(place).ok()?,
                });
            }
            for entry in &mut draft.affinity {
                let (id, is_array) = match entry.target {
                    AffinityTarget::Job(job) => (job, false),
                    AffinityTarget::Array(array) => (JobId(array.0), true),
                    AffinityTarget::Named(_) | AffinityTarget::Labels(_) => continue,
                };
                entry.target = match starts.get(&id) {
                    Some(name) => AffinityTarget::Named((*name).clone()),
                    None if is_array => AffinityTarget::Array(ArrayId(self.here(id)?.0)),
                    None => AffinityTarget::Job(self.here(id)?),
                };
            }
            let spec = draft.check().ok()?;
            Some(Submission { spec, named_dependencies: named, ..part.clone() })
        };
        parts.iter().map(translate).collect()
    }

    /// Jobs that name a booking which the replay does not have, or has for others, go on without it: else what they ask for would be
    /// missing. How many jobs these are.
    fn leave_out_bookings(&self, parts: &mut [Submission]) -> u64 {
        let state = self.driver.state();
        let mut left_out = 0;
        for part in parts {
            let Some(name) = &part.spec.booking else { continue };
            let creator = part.metadata.as_ref().map_or("", |metadata| metadata.creator.as_str());
            let is_for = |booking: &Booking| {
                booking.spec.may_be_named_by(&state.policy().policy, &part.spec)
                    && booking.spec.user.as_ref().is_none_or(|user| user_of(creator) == user)
            };
            if state.booking(name).is_some_and(is_for) {
                continue;
            }
            let mut draft = part.spec.clone().into_draft();
            draft.booking = None;
            if let Ok(spec) = draft.check() {
                part.spec = spec;
                left_out += u64::from(part.job_count());
            }
        }
        left_out
    }

    /// The id in the replay of a job of the record; none where the replay does not have it.
    fn here(&self, job: JobId) -> Option<JobId> {
        let base = &self.recording.base;
        let is_of_base = || base.job(job).is_some() || base.array_of(job).is_some();
        counterpart(&self.replayed, job).or_else(|| is_of_base().then_some(job))
    }

    fn control(&mut self, by: &Requester, control: Control, arrays: &[ArrayId], jobs: &[JobId]) -> bool {
        let own_jobs: Vec<JobId> = jobs.iter().filter_map(|job| self.here(*job)).collect();
        let own_arrays = arrays.iter().filter_map(|array| self.here(JobId(array.0)));
        let own_arrays: Vec<ArrayId> = own_arrays.map(|job| ArrayId(job.0)).collect();
        if own_jobs.is_empty() && own_arrays.is_empty() {
            // A request that changed nothing in the record has nothing to change here.
            return jobs.is_empty() && arrays.is_empty();
        }
        let asked = hash(&(&own_jobs, &own_arrays));
        // Found, so that those of which it cannot be asked any more are passed over.
        let selection = JobSelection { asked, jobs: own_jobs, arrays: own_arrays, is_found: true };
        let (request, by) = (self.driver.next_request(), by.clone());
        let order = ControlOrder { request, by, acts_for: None, control, selection };
        let answer = self.driver.ask(&Command::Control(Box::new(order)));
        matches!(answer, Ok(Answer::Controlled { jobs: 1.., .. }))
    }

    fn set_policy(&mut self, policy: &Policy) -> Result<(), WhatifError> {
        self.wakes.add(windows_of(policy).filter(|at| *at > self.now.0));
        let (request, by) = (self.driver.next_request(), Requester::default());
        let policy = Box::new(policy.clone());
        let answer = self.driver.ask(&Command::SetPolicy { request, by, policy, expected_version: None });
        answer.map(|_| ()).map_err(|refusal| WhatifError {
            sentence: format!("the policy is refused: {}", refusal.message),
            details: refusal.violations.iter().map(ToString::to_string).collect(),
            next: "correct the policy; `muster policy check FILE` checks one".to_owned(),
        })
    }

    /// Grants what was granted; whether the policy of the replay has it to grant.
    fn grant_quota(&mut self, grant: &QuotaGrant) -> bool {
        self.wakes.add(Some(grant.until.0).filter(|at| *at > self.now.0));
        let (request, by) = (self.driver.next_request(), Requester::default());
        let order = QuotaOrder { request, by, acts_for: None, grant: grant.clone() };
        self.driver.ask(&Command::GrantQuota(Box::new(order))).is_ok()
    }

    /// Ends the same grant before its time; whether it is in force.
    fn withdraw_quota(&mut self, grant: &QuotaGrant) -> bool {
        let state = self.driver.state();
        let found = state.grants_in_force().find(|(_, row)| row.grant == *grant).map(|(id, _)| id);
        let Some(id) = found else { return false };
        let (request, by) = (self.driver.next_request(), Requester::default());
        let reason = String::from("as it was");
        let order = QuotaAnswerOrder { request, by, acts_for: None, id, approved: false, reason };
        self.driver.ask(&Command::AnswerQuota(Box::new(order))).is_ok()
    }

    /// Books what was booked; whether it fits. Who may book was decided when the record was made.
    fn book(&mut self, name: &Name, spec: &BookingSpec) -> bool {
        self.wakes.add(moments_of(&spec.times).filter(|at| *at > self.now.0));
        let (request, by) = (self.driver.next_request(), Requester::default());
        let order = BookingOrder { request, by, acts_for: None, name: name.clone(), spec: spec.clone() };
        self.driver.ask(&Command::CreateBooking(Box::new(order))).is_ok()
    }

    /// Holds what was held, or releases it; whether that is a change.
    fn hold(&mut self, target: &HoldTarget, hold: Option<&FleetHold>) -> bool {
        let until = hold.and_then(|hold| hold.until);
        self.wakes.add(until.map(|at| at.0).filter(|at| *at > self.now.0));
        let (request, by) = (self.driver.next_request(), Requester::default());
        let order = FleetHoldOrder { request, by, target: target.clone(), hold: hold.cloned() };
        self.driver.ask(&Command::SetFleetHold(Box::new(order))).is_ok()
    }

    fn register(&mut self, spec: &NodeSpec, holder: HolderId) -> Result<(), String> {
        let command = Command::Register { spec: spec.clone(), holder, other_session_is_over: true };
        self.is_fleet_changed = true;
        self.driver.ask(&command).map(|_| ()).map_err(|refusal| refusal.message)
    }

    /// The session of a node ends; whether it stood.
    fn lose(&mut self, name: &Name) -> bool {
        let Some((node, incarnation)) = self.node(name) else { return false };
        self.is_fleet_changed = true;
        self.driver.ask(&Command::SessionOver { node, incarnation }).is_ok()
    }

    /// A node whose session stands.
    fn node(&self, name: &Name) -> Option<(NodeId, u32)> {
        let state: &State = self.driver.state();
        let node = state.node_named(name)?;
        let row = state.node(node).filter(|row| row.status == NodeStatus::Up)?;
        Some((node, row.incarnation))
    }
}
