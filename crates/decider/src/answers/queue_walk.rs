//! The walk along the pending queue that explanations of one state have in common.
//!
//! Who goes before a job, and what capacity those are given, depends on the job only in how far the walk goes. So the walk is made
//! once for all jobs that are asked about, and what it has come to is kept at some of its places: from the nearest place before
//! the one of a job only a few steps are made again.
//!
//! **Invariant:** what is found for a job does not depend on which jobs were asked about before.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_planner::Budget;
use muster_policy::{Candidate, Line, headroom};
use muster_state::{JobRow, QueuePosition, State};
use muster_types::token::user_of;
use muster_types::{JobId, JobSpec, LogIndex, LogTime};

use crate::future::{Foreseen, Future, KeptReservations, Pace};
use crate::rules::counted::lacks;
use crate::rules::planned::planned_spec;

/// Jobs ahead of the explained one that are given their capacity first.
const AHEAD_MAX: usize = 256;

/// Steps over jobs ahead of it that have no turn, as the pending queue counts them: of users that have as many placed as they
/// may there can be very many.
const STEPS_MAX: u64 = 200_000;

/// Work of one explanation.
pub(crate) const VISITS: u64 = 4_000_000;

/// The id of a job that nobody has submitted yet: behind all others.
pub(crate) const NOT_SUBMITTED: JobId = JobId(u64::MAX);

/// Places from one that is kept to the next, as long as they do not become too large together.
const PLACES_PER_MARK: usize = 4;

/// What the kept places of one walk may come to together, in nodes that are reserved at them: some 10 MiB.
const MARKS_WEIGHT_MAX: usize = 40_000;

/// The job's position in the pending queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Different requests that have their turn before it.
    pub requests_before: usize,
    /// Whether counting stopped there.
    pub or_more: bool,
}

impl Position {
    pub(crate) fn is_first(self) -> bool {
        self.requests_before == 0 && !self.or_more
    }
}

/// How many requests are ahead of a job in the pending queue, and the capacity that is kept for them: what they have reserved, or
/// where a pace is given, what each of them is expected to get when running gangs end at that pace.
pub(crate) struct Ahead {
    pub(crate) future: Future,
    pub(crate) position: Position,
}

impl Ahead {
    /// When a job that is behind all of them can start.
    fn start(
        &mut self,
        state: &State,
        (job, spec, row): (Option<JobId>, &JobSpec, &JobRow),
    ) -> Option<LogTime> {
        let mut budget = Budget::new(VISITS);
        let asker = (job.unwrap_or(NOT_SUBMITTED), spec, row);
        self.future.forget_who_gives_way(state, asker.0, spec, row);
        let start = self.future.earliest(state, asker, &mut budget).map(|(_, start)| start.at)?;
        Some(start.max(spec.not_before.unwrap_or_default()))
    }
}

/// What explanations of one state at one time have in common: made for the first job that is asked about, and used again for the
/// others. It is much larger than an explanation, so no more than one should be kept.
#[derive(Debug)]
pub struct QueueForecast {
    at: LogIndex,
    now: LogTime,
    kept: Arc<KeptReservations>,
    walks: Vec<Walk>,
    /// What several walks have in common, by pace.
    foreseen: Vec<(Pace, Arc<Foreseen>)>,
}

impl QueueForecast {
    /// Of a state at a time, with what the leader keeps for others.
    #[must_use]
    pub fn new(state: &State, now: LogTime, kept: Arc<KeptReservations>) -> QueueForecast {
        QueueForecast { at: state.log_index(), now, kept, walks: Vec::new(), foreseen: Vec::new() }
    }

    /// The time at which its explanations are made.
    #[must_use]
    pub fn now(&self) -> LogTime {
        self.now
    }

    /// Whether it is of the committed state behind the same record, and of the same reservations.
    #[must_use]
    pub fn is_of(&self, state: &State, kept: &Arc<KeptReservations>) -> bool {
        self.at == state.log_index() && Arc::ptr_eq(&self.kept, kept)
    }

    pub(crate) fn kept(&self) -> &Arc<KeptReservations> {
        &self.kept
    }

    /// Those ahead of a job, and what is kept for them; with a pace, what they are expected to get.
    pub(crate) fn ahead(
        &mut self,
        state: &State,
        asker: (Option<JobId>, &JobSpec, &JobRow),
        pace: Option<Pace>,
    ) -> Ahead {
        let of_pace = pace.unwrap_or(Pace::Expected);
        let foreseen = self.foreseen(of_pace);
        let known = self.walks.iter().position(|walk| walk.pace == pace);
        let at = known.unwrap_or_else(|| {
            self.walks.push(Walk::begin(state, self.now, &self.kept, (pace, &foreseen)));
            self.walks.len() - 1
        });
        let ahead = self.walks[at].ahead(state, asker, &foreseen);
        self.learn(of_pace, &ahead.future);
        ahead
    }

    /// When a job can start if those ahead of it get their capacity first and what runs ends at a pace.
    pub(crate) fn start(
        &mut self,
        state: &State,
        asker: (Option<JobId>, &JobSpec, &JobRow),
        pace: Pace,
    ) -> Option<LogTime> {
        let mut ahead = self.ahead(state, asker, Some(pace));
        let start = ahead.start(state, asker);
        self.learn(pace, &ahead.future);
        start
    }

    fn foreseen(&self, pace: Pace) -> Arc<Foreseen> {
        match self.foreseen.iter().find(|(of, _)| *of == pace) {
            Some((_, known)) => Arc::clone(known),
            None => Arc::new(Foreseen::next_to(self.foreseen.first().map(|(_, other)| other))),
        }
    }

    /// Keeps what was made of the state for those who ask next.
    fn learn(&mut self, pace: Pace, made: &Future) {
        match self.foreseen.iter_mut().find(|(of, _)| *of == pace) {
            Some((_, known)) if known.lacks(made) => Arc::make_mut(known).add(made),
            Some(_) => {}
            None => {
                let mut known = Foreseen::default();
                known.add(made);
                self.foreseen.push((pace, Arc::new(known)));
            }
        }
    }
}

/// What a walk has come to behind some of the requests.
#[derive(Clone, Debug)]
struct Mark {
    future: Future,
    budget: Budget,
}

/// One walk along the queue, as far as anybody has asked for.
#[derive(Debug)]
struct Walk {
    now: LogTime,
    pace: Option<Pace>,
    line: Line,
    /// Those that have had their turn, in order.
    taken: Vec<Candidate>,
    /// Whose turn it is, taken out of the line already.
    next: Option<Candidate>,
    is_over: bool,
    /// Before all of them.
    first: Mark,
    /// Behind all that were taken.
    last: Mark,
    /// By how many were taken, each with its weight.
    marks: BTreeMap<usize, (usize, Mark)>,
    places_per_mark: usize,
}

impl Walk {
    fn begin(
        state: &State,
        now: LogTime,
        kept: &KeptReservations,
        (pace, foreseen): (Option<Pace>, &Arc<Foreseen>),
    ) -> Walk {
        let mut future = Future::resume_at(now, kept.clone(), pace.unwrap_or(Pace::Expected));
        future.set_foreseen(foreseen);
        let line = Line::form(state, now);
        let mut budget = Budget::new(VISITS);
        future.take_up(state, &mut budget);
        let first = Mark { future, budget };
        Walk {
            now,
            pace,
            line,
            taken: Vec::new(),
            next: None,
            is_over: false,
            last: first.clone(),
            first,
            marks: BTreeMap::new(),
            places_per_mark: PLACES_PER_MARK,
        }
    }

    fn ahead(
        &mut self,
        state: &State,
        (job, spec, row): (Option<JobId>, &JobSpec, &JobRow),
        foreseen: &Arc<Foreseen>,
    ) -> Ahead {
        self.first.future.set_foreseen(foreseen);
        self.last.future.set_foreseen(foreseen);
        let within_nominal = headroom(state, spec).is_offered_nominal();
        let (rank, turn) = (spec.rank(), row.estimate.turn);
        let own = QueuePosition { rank, turn, job: job.unwrap_or(NOT_SUBMITTED) };
        let shares = state.policy().policy.user_shares(&spec.tenant);
        let user = shares.map(|_| job.map_or("", |job| user_of(state.creator(job))));
        let mut position = Position { requests_before: 0, or_more: false };
        loop {
            let place = position.requests_before;
            let candidate = self.candidate(state, place);
            match candidate.map(|candidate| Line::is_behind(candidate, (spec, user), own, within_nominal)) {
                Some(true) => break,
                Some(false) if place == AHEAD_MAX => {
                    position.or_more = true;
                    break;
                }
                Some(false) => {}
                None => {
                    position.or_more = self.line.is_cut();
                    break;
                }
            }
            if place == self.taken.len() {
                self.step(state);
            }
            position.requests_before += 1;
        }
        let Mark { mut future, mut budget } = self.mark_at(state, position.requests_before, foreseen);
        future.turn_of(state, own.job, within_nominal, &mut budget);
        future.keep_what_is_owed(state, &mut budget);
        Ahead { future, position }
    }

    /// Who has the turn behind that many others; none where the queue, or what is walked of it, ends before.
    fn candidate(&mut self, state: &State, place: usize) -> Option<&Candidate> {
        if place < self.taken.len() {
            return self.taken.get(place);
        }
        if self.next.is_none() && !self.is_over {
            self.next = self.line.take_within(state, STEPS_MAX);
            self.is_over = self.next.is_none();
        }
        self.next.as_ref()
    }

    /// The next one has its turn.
    fn step(&mut self, state: &State) {
        let Some(candidate) = self.next.take() else { return };
        if state.job(candidate.turn.job).is_some() {
            has_turn(state, (self.now, self.pace), &candidate, &mut self.last);
            self.line.waits(state, &candidate);
        } else {
            self.is_over = true;
        }
        self.taken.push(candidate);
        let place = self.taken.len();
        if place.is_multiple_of(self.places_per_mark) {
            let mark = self.last.clone();
            self.marks.insert(place, (mark.future.weight(), mark));
            while self.weight() > MARKS_WEIGHT_MAX && !self.marks.is_empty() {
                self.places_per_mark *= 2;
                let apart = self.places_per_mark;
                self.marks.retain(|place, _| place.is_multiple_of(apart));
            }
        }
    }

    fn weight(&self) -> usize {
        self.marks.values().map(|(weight, _)| weight).sum()
    }

    /// What the walk had come to behind that many.
    fn mark_at(&mut self, state: &State, place: usize, foreseen: &Arc<Foreseen>) -> Mark {
        if place == self.taken.len() {
            return self.last.clone();
        }
        let nearest = self.marks.range(..=place).next_back();
        let (from, mark) = nearest.map_or((0, &self.first), |(from, (_, mark))| (*from, mark));
        let mut mark = mark.clone();
        mark.future.set_foreseen(foreseen);
        for candidate in self.taken.iter().take(place).skip(from) {
            has_turn(state, (self.now, self.pace), candidate, &mut mark);
        }
        // Jobs that are asked about one after the other often have the same place.
        let weight = mark.future.weight();
        if from < place && self.weight() + weight <= MARKS_WEIGHT_MAX {
            self.marks.insert(place, (weight, mark.clone()));
        }
        mark
    }
}

/// A candidate that waits has its turn: it reserves what it may, or at a pace, is given what it is expected to get.
fn has_turn(state: &State, (now, pace): (LogTime, Option<Pace>), candidate: &Candidate, mark: &mut Mark) {
    let Mark { future, budget } = mark;
    let job = candidate.turn.job;
    let Some(row) = state.job(job) else { return };
    let at_limit = |spec: &JobSpec| {
        state.running_limit_reached(&spec.tenant).is_some()
            || state.spent_budget(&spec.tenant, now).is_some()
            || lacks(state, spec)
    };
    let Some(spec) = planned_spec(state, job).filter(|spec| !at_limit(spec)) else { return };
    future.turn_of(state, job, candidate.within_nominal, budget);
    match pace {
        // As in a real pass: only those with the right to it.
        None => future.reserve(state, job, &spec, row, budget),
        Some(_) => {
            future.forget_who_gives_way(state, job, &spec, row);
            future.expect_start(state, job, &spec, row, budget);
        }
    }
}
