//! The log, replayed once from its beginning, and everything that is held against it on the way.
//!
//! A read is compared with the state at exactly the position that its answer named; a digest with the states at the
//! ends of rounds there (records of ended leaderships behind a record change the digest and not the position, so that
//! there may be several).

use std::collections::{BTreeMap, HashMap, HashSet};

use muster_archive::{ArchiveError, Observer, Replay};
use muster_journal::{Decision, StopCause, SubmittedPart};
use muster_state::{Applied, Effect, RequestAnswer, State};
use muster_types::{FencingToken, JobId, LogIndex, PastPoint, RequestId};

use super::accounts::Accounts;
use super::evidence::shown;
use super::leases::Leases;
use super::ledger::LedgerMaker;
use super::log::LogRound;
use super::order::MissingJob;
use super::watches::{self, Watches};
use super::{Checked, Findings, LeaderBegan, Rule};
use crate::history::{Call, History, JobSeen, Observation, Operation, Outcome, Query, digest_of_jobs};
use crate::run::{Run, StateSeen};

/// What the log showed, apart from the findings.
#[derive(Default)]
pub(super) struct LogSummary {
    /// Position and log time of the last record.
    pub(super) last_index: u64,
    pub(super) last_time_ms: u64,
    pub(super) leaders: Vec<LeaderBegan>,
    /// Log times of records that submitted jobs, in order.
    pub(super) submitted_at_ms: Vec<u64>,
    /// Acknowledged operations that the log does not have.
    pub(super) lost: Vec<usize>,
    pub(super) ledger: super::ledger::Ledger,
    pub(super) gangs_at_fault: u64,
    /// States of replicas that are the log's, by their place in the run.
    pub(super) states_equal: HashSet<usize>,
    /// Every placement that was ever made.
    pub(super) placed: HashSet<(JobId, FencingToken)>,
    /// Where the last generation of the cluster began, if it is not the first.
    pub(super) recovered_index: Option<u64>,
}

/// What a client may have learned of a request.
#[derive(Default)]
struct Requested {
    operations: Vec<usize>,
    /// Its record.
    record: Option<CarriedOut>,
}

/// The record that carried out a request.
#[derive(Clone, Copy)]
struct CarriedOut {
    index: u64,
    /// The jobs that it submitted, and the id of the first of them.
    jobs: u32,
    first: JobId,
}

struct Digests<'a> {
    waiting: BTreeMap<u64, Vec<Asked<'a>>>,
}

/// Somebody who was told a digest.
#[derive(Clone, Copy)]
enum Asked<'a> {
    Client(&'a Operation),
    Replica(usize, &'a StateSeen),
}

struct Judge<'a> {
    run: &'a Run,
    operations: &'a [Operation],
    requests: HashMap<RequestId, Requested>,
    /// Reads of jobs by the position of their answers.
    reads: BTreeMap<u64, Vec<&'a Operation>>,
    digests: Digests<'a>,
    watches: Watches<'a>,
    ledger: LedgerMaker<'a>,
    leases: Leases,
    accounts: Accounts,
    forgotten: HashSet<JobId>,
    /// Of the record that is being applied.
    request: Option<(RequestId, u32)>,
    /// Records between the first and the last that clients of the history were acknowledged, where every request in
    /// between is theirs.
    ours: Option<std::ops::RangeInclusive<u64>>,
    begins_leadership: bool,
    stops: Option<(JobId, StopCause)>,
    places: Option<JobId>,
    told: LogSummary,
    checked: &'a mut Checked,
    findings: &'a mut Findings,
}

/// Where the generation of a recovered cluster begins: with the first record of the leadership that recorded the
/// recovery. None for a cluster that was not recovered.
pub(super) fn recovered_at(rounds: &[LogRound]) -> Result<Option<u64>, ArchiveError> {
    let (mut found, mut term_begins) = (None, (0, 0));
    for LogRound { round, .. } in rounds {
        let decoded = round.decode()?;
        if term_begins.0 != round.term {
            term_begins = (round.term, decoded.first_index.0);
        }
        if decoded.decisions.iter().any(|decision| matches!(decision, Decision::ClusterRecovered { .. })) {
            found = Some(term_begins.1);
        }
    }
    Ok(found)
}

/// The first and the last record that a client was acknowledged. Requests behind the last are not judged: the drill
/// itself clears up when its clients are gone.
fn acknowledged_range(history: &History) -> Option<std::ops::RangeInclusive<u64>> {
    let acknowledged = || {
        history.operations.iter().filter_map(|operation| match operation.outcome {
            Outcome::Acknowledged { log_index, .. } => Some(log_index),
            _ => None,
        })
    };
    Some(acknowledged().min()?..=acknowledged().max()?)
}

/// Replays the log and holds the history against it.
pub(super) fn check(
    run: &Run,
    history: &History,
    rounds: &[LogRound],
    missing: &[MissingJob],
    checked: &mut Checked,
    findings: &mut Findings,
) -> LogSummary {
    let ended = match recovered_at(rounds) {
        Ok(index) => run.recovered_us.zip(index),
        Err(error) => {
            findings.say(Rule::Log, || format!("a round cannot be read: {error}"));
            return LogSummary::default();
        }
    };
    let parts = watches::sorted(&history.watch_events, ended);
    let watches = Watches::new(&parts, checked);
    let mut judge = Judge {
        run,
        operations: &history.operations,
        requests: HashMap::new(),
        reads: BTreeMap::new(),
        digests: Digests { waiting: BTreeMap::new() },
        watches,
        ledger: LedgerMaker::new(run),
        leases: Leases::default(),
        accounts: Accounts::default(),
        forgotten: HashSet::new(),
        request: None,
        ours: run.only_ours.then(|| acknowledged_range(history)).flatten(),
        begins_leadership: false,
        stops: None,
        places: None,
        told: LogSummary { recovered_index: ended.map(|(_, index)| index), ..LogSummary::default() },
        checked,
        findings,
    };
    judge.sort(ended);
    judge.replay(rounds);
    judge.requests();
    judge.not_found(missing);
    judge.told
}

impl<'a> Judge<'a> {
    /// Puts every operation where the replay will meet it.
    fn sort(&mut self, ended: Option<(u64, u64)>) {
        for (place, operation) in self.operations.iter().enumerate() {
            if let Some(request) = operation.request() {
                self.requests.entry(request).or_default().operations.push(place);
            }
            let (Call::Read { query, .. }, Some(index)) = (&operation.call, operation.log_index()) else {
                continue;
            };
            // Read from a previous generation of the cluster, whose records have been replaced.
            if ended.is_some_and(|(at_us, from)| operation.completed_us < at_us && index.0 >= from) {
                self.checked.of_ended_life += 1;
                continue;
            }
            match query {
                Query::Status => {
                    self.digests.waiting.entry(index.0).or_default().push(Asked::Client(operation));
                }
                Query::Job { .. } | Query::Jobs { .. } => {
                    self.reads.entry(index.0).or_default().push(operation)
                }
            }
        }
        for (place, seen) in self.run.states.iter().enumerate() {
            if ended.is_none_or(|(at_us, from)| seen.at_us >= at_us || seen.log_index < from) {
                self.digests.waiting.entry(seen.log_index).or_default().push(Asked::Replica(place, seen));
            }
        }
    }

    fn replay(&mut self, rounds: &[LogRound]) {
        let mut replay = Replay::founding();
        self.position(replay.state(), 0);
        self.digests_at(replay.state());
        for LogRound { round, until } in rounds {
            if let Err(error) = replay.apply_observed(round, until.map(PastPoint::Index), self) {
                let at = replay.state().log_index();
                self.findings.say(Rule::Log, || format!("the replay ends behind record {at}: {error}"));
                break;
            }
        }
        let state = replay.state();
        self.told.last_index = state.log_index().0;
        self.told.last_time_ms = state.log_time().0;
        self.checked.records = state.log_index().0;
        self.checked.digests_of_leaders = replay.digests_compared();
        if let Err(broken) = state.verify() {
            self.findings.say(Rule::State, || broken.0);
        }
        if state.rejected() > 0 {
            let rejected = state.rejected();
            self.findings.say(Rule::RecordRefused, || format!("the guard refused {rejected} records"));
        }
        std::mem::take(&mut self.accounts).end(self.findings);
        self.digests_before(u64::MAX);
        self.watches.end(self.told.last_index, self.findings);
        for operation in std::mem::take(&mut self.reads).into_values().flatten() {
            self.nowhere(operation);
        }
        let ledger = std::mem::take(&mut self.ledger);
        self.told.gangs_at_fault = ledger.gangs_at_fault();
        self.told.ledger = ledger.end(self.told.last_time_ms);
    }

    /// Reads of jobs whose answer is complete up to here.
    fn position(&mut self, state: &State, index: u64) {
        let Some(reads) = self.reads.remove(&index) else { return };
        for operation in reads {
            let Call::Read { query, .. } = &operation.call else { continue };
            let Outcome::Answered { seen, .. } = &operation.outcome else { continue };
            self.checked.contents += 1;
            let expected = expected(state, query);
            if expected.as_ref() == Some(seen) {
                continue;
            }
            self.findings.add(Rule::ContentDiffers, || {
                let there = expected.map_or("no such job".to_owned(), |expected| format!("{expected:?}"));
                let text = format!("an answer at {index} shows {seen:?}, the log comes to {there}");
                (text, vec![shown(operation)])
            });
        }
    }

    /// Holds digests of this position against the state at the end of a round.
    fn digests_at(&mut self, state: &State) {
        let index = state.log_index().0;
        self.digests_before(index);
        let Some(waiting) = self.digests.waiting.get_mut(&index) else { return };
        let own = (
            state.digest(),
            state.pending_count() as u64,
            state.active_count() as u64,
            state.finished_count() as u64,
        );
        let (told, checked) = (&mut self.told, &mut *self.checked);
        waiting.retain(|asked| match asked {
            Asked::Client(operation) => {
                let Outcome::Answered {
                    seen: Observation::Status { digest, pending, active, finished }, ..
                } = &operation.outcome
                else {
                    return false;
                };
                let is_equal = (*digest, *pending, *active, *finished) == own;
                checked.contents += u64::from(is_equal);
                !is_equal
            }
            Asked::Replica(place, seen) => {
                let is_equal = seen.digest == own.0;
                if is_equal {
                    told.states_equal.insert(*place);
                    checked.replica_states += 1;
                }
                !is_equal
            }
        });
    }

    /// Digests of positions before one that nothing was equal to.
    fn digests_before(&mut self, index: u64) {
        while let Some(entry) = self.digests.waiting.first_entry().filter(|entry| *entry.key() < index) {
            let (at, left) = (*entry.key(), entry.remove());
            for asked in left {
                match asked {
                    Asked::Client(operation) if at > self.told.last_index && index == u64::MAX => {
                        self.nowhere(operation);
                    }
                    Asked::Client(operation) => {
                        self.checked.contents += 1;
                        self.findings.add(Rule::ContentDiffers, || {
                            let text = format!("a digest at {at} is not that of the log up to there");
                            (text, vec![shown(operation)])
                        });
                    }
                    Asked::Replica(_, seen) => {
                        self.checked.replica_states += 1;
                        let (replica, digest, last) = (seen.replica, seen.digest, self.told.last_index);
                        self.findings.say(Rule::ReplicaDiffers, || match at > last && index == u64::MAX {
                            true => format!("r{replica} is at {at}; the log ends at {last}"),
                            false => {
                                format!(
                                    "r{replica} has digest {digest:016x} at {at}; the log comes to another"
                                )
                            }
                        });
                    }
                }
            }
        }
    }

    fn nowhere(&mut self, operation: &Operation) {
        self.checked.contents += 1;
        let last = self.told.last_index;
        self.findings.add(Rule::AnswerFromNowhere, || {
            (
                format!("an answer is complete up to a position behind the log's end, {last}"),
                vec![shown(operation)],
            )
        });
    }

    /// A record that carries out a request.
    fn carried_out(&mut self, request: RequestId, record: CarriedOut) {
        let index = record.index;
        let is_ours = self.ours.as_ref().is_some_and(|ours| ours.contains(&index));
        let Some(requested) = self.requests.get_mut(&request) else {
            if is_ours {
                let text =
                    || format!("record {index} carries out {request}, which no client of the drill made");
                self.findings.say(Rule::RequestOfNobody, text);
            }
            return;
        };
        if let Some(before) = requested.record.map(|record| record.index) {
            let first = requested.operations.first().map(|place| shown(&self.operations[*place]));
            self.findings.add(Rule::DoneTwice, || {
                let text = format!("{request} is carried out by record {before} and again by {index}");
                (text, first.into_iter().collect())
            });
            return;
        }
        requested.record = Some(record);
    }

    /// What clients were told of their requests, against what the log has.
    fn requests(&mut self) {
        let mut lost = Vec::new();
        for (place, operation) in self.operations.iter().enumerate() {
            let Some(request) = operation.request() else { continue };
            let record = self.requests.get(&request).and_then(|requested| requested.record);
            match (&operation.outcome, record) {
                (
                    Outcome::Acknowledged { log_index, jobs },
                    Some(CarriedOut { index, jobs: count, first }),
                ) => {
                    self.checked.acknowledgements += 1;
                    let derived = (0..u64::from(count)).map(|ordinal| JobId(first.0 + ordinal));
                    let is_right = *log_index == index && derived.eq(jobs.iter().copied());
                    if !is_right {
                        self.findings.add(Rule::WrongRecord, || {
                            let text =
                                format!("{request} is record {index} with {count} job(s), not what was told");
                            (text, vec![shown(operation)])
                        });
                    }
                }
                (Outcome::Acknowledged { .. }, None) => {
                    self.checked.acknowledgements += 1;
                    lost.push(place);
                }
                (Outcome::Refused { code }, Some(CarriedOut { index, .. })) => {
                    // The same request may have been made again, and taken then.
                    let taken = self.requests.get(&request).is_some_and(|requested| {
                        requested
                            .operations
                            .iter()
                            .any(|other| !matches!(self.operations[*other].outcome, Outcome::Refused { .. }))
                    });
                    if !taken {
                        self.findings.add(Rule::DoneThoughRefused, || {
                            let text = format!("{request} was refused with {code} and is record {index}");
                            (text, vec![shown(operation)])
                        });
                    }
                }
                (Outcome::Unknown { .. } | Outcome::TimedOut | Outcome::Malformed { .. }, record) => {
                    self.checked.unknown += 1;
                    self.checked.unknown_done += u64::from(record.is_some());
                }
                _ => {}
            }
        }
        self.told.lost = lost;
    }

    /// Jobs that somebody was told are not there: only if they were dropped, or never were.
    fn not_found(&mut self, missing: &[MissingJob]) {
        for MissingJob { job, operation } in missing {
            let submitted = self.requests.values().any(|requested| {
                let covers = |record: CarriedOut| {
                    (record.first.0..record.first.0 + u64::from(record.jobs)).contains(&job.0)
                };
                requested.record.is_some_and(covers)
            });
            if submitted && !self.forgotten.contains(job) {
                let operation = &self.operations[*operation];
                self.findings.add(Rule::StaleLinearizableRead, || {
                    let text = format!("a linearizable read did not find {job}, which had been submitted");
                    (text, vec![shown(operation)])
                });
            }
        }
    }
}

/// What a state answers to a query.
fn expected(state: &State, query: &Query) -> Option<Observation> {
    match query {
        Query::Job { job } => state.job(*job).map(|row| Observation::Job(JobSeen::of(*job, row))),
        Query::Jobs { count, tenant } => {
            let wanted = |job: &JobId| match tenant {
                Some(tenant) => state.spec(*job).is_some_and(|spec| *spec.tenant == **tenant),
                None => true,
            };
            let newest = state.jobs().iter().rev().filter(|(job, _)| wanted(job));
            let page: Vec<JobSeen> =
                newest.take(*count as usize).map(|(job, row)| JobSeen::of(*job, row)).collect();
            Some(Observation::Jobs { count: page.len() as u32, digest: digest_of_jobs(&page) })
        }
        Query::Status => None,
    }
}

impl Observer for Judge<'_> {
    fn before(&mut self, state: &State, decision: &Decision) {
        self.leases.before(decision);
        self.accounts.before(state, decision);
        self.request = match decision {
            Decision::JobsSubmitted { request, specs, .. } => {
                Some((request.id, u32::try_from(specs.len()).unwrap_or(u32::MAX)))
            }
            Decision::ArraysSubmitted { request, parts, .. } => {
                Some((request.id, parts.iter().map(SubmittedPart::job_count).sum()))
            }
            Decision::ArraysControlled { request, .. }
            | Decision::ArrayThrottleSet { request, .. }
            | Decision::JobCancelRequested { request, .. }
            | Decision::JobHoldSet { request, .. }
            | Decision::JobRequeueRequested { request, .. }
            | Decision::JobModified { request, .. } => Some((request.id, 0)),
            _ => None,
        };
        self.begins_leadership = matches!(decision, Decision::LeaderStarted);
        self.stops = match decision {
            Decision::GangStopRequested { job, cause, .. } => Some((*job, cause.clone())),
            _ => None,
        };
        self.places = match decision {
            Decision::GangPlaced { job, .. } => Some(*job),
            _ => None,
        };
    }

    fn after(&mut self, state: &State, applied: &Applied) {
        self.accounts.after(state, applied, self.checked, self.findings);
        let Some(LogIndex(index)) = applied.log_index else { return };
        self.told.last_index = index;
        let time_ms = state.log_time().0;
        let position = (index, state.log_time());
        self.leases.after(position, applied.rejection.is_none(), self.checked, self.findings);
        if applied.rejection.is_none() {
            if let Some((request, jobs)) = self.request.take() {
                if jobs > 0 {
                    self.told.submitted_at_ms.push(time_ms);
                }
                // The record is the last one, so that the state knows which ids it gave.
                let first = match state.request(request).map(|row| &row.answer) {
                    Some(RequestAnswer::Submitted { first, .. }) => *first,
                    _ => state.job_id(LogIndex(index), 0),
                };
                self.carried_out(request, CarriedOut { index, jobs, first });
            }
            if let Some(job) = self.places.take() {
                let token = FencingToken { generation: state.generation(), log_index: LogIndex(index) };
                self.told.placed.insert((job, token));
            }
            if self.begins_leadership
                && let Some(leadership) = state.leadership()
            {
                self.told.leaders.push(LeaderBegan {
                    log_index: index,
                    log_time_ms: time_ms,
                    term: leadership.term,
                    replica: leadership.replica.0,
                });
            }
        }
        self.ledger.record(state, time_ms, self.stops.take(), &applied.effects);
        for effect in &applied.effects {
            if let Effect::JobForgotten(job) = effect {
                self.forgotten.insert(*job);
            }
        }
        self.position(state, index);
        self.watches.record(state, index, &applied.effects, self.checked, self.findings);
    }

    fn round_over(&mut self, state: &State) {
        self.digests_at(state);
    }
}
