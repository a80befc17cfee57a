//! A model of what a new leader takes from the votes that it got: where a voter's log ends
//! (`crates/consensus/src/follower_hint.rs`, used by `network/client.rs`).
//!
//! The checker goes through every order of elections, appends, late answers, lost storage, confirmations and clock
//! ticks within the bounds of a [`Scope`]. Replica A leads in terms 1 and 3, and C in term 2. What A knows of the log of B is
//! the product's own `FollowerHint`; how A's requests become others is its own `range` and `from_end`; the sequence of
//! `PeerClient::already_replicated` and `Phase::next` is the one of [`Model::pull`] and [`Model::take_answer`]. All other replicas take
//! entries in one step.
//!
//! **Invariants** that are proved within the bounds:
//! - What a leader counts as matching on a peer, that peer has acknowledged to this very leadership, with the same entries.
//! - No committed entry is lost or replaced.
//! - No read is confirmed by a leader after whose term another one had committed something before the read began.
//! - An answer that was not sent makes a peer seem alive for no longer than `fresh` after it really was.
//!
//! For each rule that these rest on, the same model without the rule has a counterexample.

use muster_consensus::follower_hint::{self, FollowerHint, LogEnd, SendPlan};
use muster_consensus::{Timing, TokioEnv};
use muster_store::{Entry, EntryPayload, LeaderId, LogId, Vote};
use openraft::raft::AppendEntriesRequest;
use stateright::{Checker, HasDiscoveries, Model as _, Property};
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
/// The fourth stands for two voters that do the same, where there are five.
const REPLICAS: usize = 4;
/// Who leads in terms 1, 2 and 3.
const OWNERS: [usize; 4] = [A, A, C, A];
const LOG_MAX: usize = 3;

/// A rule of the product that a variant of the model does without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// `FollowerHint::plan`: a hint counts only for the leadership that it was given to.
    OwnLeadership,
    /// `FollowerHint::plan`: no entry counts as held beyond the one that was acknowledged.
    NothingBeyond,
    /// `FollowerHint::plan`: a request that tells of a commit is sent.
    CommitsAreSent,
    /// `FollowerHint::plan`: what was acknowledged counts for a heartbeat interval only.
    Fresh,
    /// `from_end`: the leader's own log has the voter's last entry.
    SameEntry,
    /// `PeerClient::already_replicated`: the answer acknowledges all that was sent.
    WholeAnswer,
    /// `PeerClient::already_replicated`: it counts from when the request was sent.
    CountedFromSending,
    /// `confirm::proved`: a confirmation with an answer that was not sent is asked for again.
    UnsentProvesNothing,
}

/// How far the checker goes.
#[derive(Clone, Copy, Debug)]
struct Scope {
    /// Votes of each replica; of the last there are none where the cluster has three.
    weights: [u32; REPLICAS],
    terms: usize,
    /// Leaders follow each other by elections that succeed, and streams do not break. Without reads, requests go on to the
    /// log's end, and C takes nothing from A.
    calm: bool,
    clock_max: u8,
    reads: bool,
    losses: bool,
}

#[derive(Clone, Debug)]
struct Model {
    scope: Scope,
    without: Option<Rule>,
    /// Clock 0; a tick is as long as what was acknowledged counts.
    start: Instant,
    fresh: Duration,
}

/// An entry is known by its term: each term has one leader, which appends once at each place.
type Log = Vec<u8>;

/// The hint about B's log. Log ids do not implement `Hash`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hint(Option<FollowerHint>);

impl Hash for Hint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Some(FollowerHint { leader, log_end }) = self.0 else { return 0u8.hash(state) };
        leader.term.hash(state);
        let mut id = |id: LogId| (id.committed_leader_id().term, id.index()).hash(state);
        match log_end {
            LogEnd::Reported(end) => id(end),
            LogEnd::Probing => 1u8.hash(state),
            LogEnd::Acknowledged { through, commit, at } => {
                id(through);
                commit.map(id);
                at.hash(state);
            }
        }
    }
}

/// What the protocol asks of B: entries `prev..end` of A's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Wanted {
    prev: usize,
    end: usize,
    commit: usize,
    /// When it was made.
    at: u8,
    /// Made after the read began that is being confirmed.
    in_read: bool,
}

/// What is sent to B.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SentRequest {
    /// The entries before, of which the last is named.
    prev: Option<(u8, usize)>,
    entries: Log,
    at: u8,
    /// It is sent in the place of another request.
    instead: bool,
}

impl SentRequest {
    fn end(&self) -> usize {
        self.prev.map_or(0, |(_, index)| index + 1) + self.entries.len()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Success,
    Conflict,
    HigherTerm(u8),
}

/// The stream of one leadership of A to B. Requests are answered one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stream {
    Idle,
    OnItsWay(Wanted, SentRequest),
    Answered(Wanted, SentRequest, Answer),
    /// To be answered without being sent.
    Unsent(Wanted),
}

/// A confirmation of A's leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Read {
    term: u8,
    acks: u8,
    /// A later leader had committed something when it began.
    outdated: bool,
    /// An answer was given since without being sent.
    unsent: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    clock: u8,
    votes: [u8; REPLICAS],
    logs: [Log; REPLICAS],
    /// By term: who voted, and whether its leader was elected.
    granted: [u8; 4],
    elected: [bool; 4],
    /// By term: entries that the leader counts as matching, and that were truly acknowledged.
    matching: [[u8; REPLICAS]; 4],
    acked: [[u8; REPLICAS]; 4],
    commits: [u8; 4],
    /// All that was ever committed.
    committed: Log,
    hint: Hint,
    /// By term; A's alone are used.
    streams: [Stream; 4],
    read: Option<Read>,
    /// B lost its storage when this much was committed, and was not taken in again.
    lost_at: Option<u8>,
    losses: u8,
    /// Until when B is believed to have been alive, and when it was.
    believed: u8,
    alive: u8,
    seen: Coverage,
}

/// What has happened on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Coverage {
    replaced_commit: bool,
    outdated_read: bool,
    confirmed_read: bool,
    asked_again: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Campaign(u8),
    Vote(u8, usize),
    BecomeLeader(u8),
    Propose(u8),
    /// A whole log, in one step; from A to B in requests.
    Replicate(u8, usize),
    Pull(u8, usize, usize),
    Arrive(u8),
    TakeAnswer(u8),
    Break(u8),
    AnswerUnsent(u8),
    BeginRead,
    Heartbeat(usize),
    EndRead,
    LoseStorage,
    Readmit,
    Tick,
}

fn leader_id(term: u8) -> LeaderId {
    LeaderId { term: term.into(), node_id: OWNERS[usize::from(term)] as u64 }
}

fn log_id(term: u8, index: usize) -> LogId {
    LogId::new(leader_id(term), index as u64)
}

fn last(log: &[u8]) -> Option<LogId> {
    log.last().map(|term| log_id(*term, log.len() - 1))
}

fn entries(log: &[u8], from: usize, to: usize) -> Vec<Entry> {
    let at = |index: usize| Entry { log_id: log_id(log[index], index), payload: EntryPayload::Blank };
    (from..to.min(log.len())).map(at).collect()
}

fn common(a: &[u8], b: &[u8]) -> u8 {
    a.iter().zip(b).take_while(|(a, b)| a == b).count() as u8
}

/// Entries from `prev` on are taken over; what conflicts with them goes.
fn adopt(log: &mut Log, prev: usize, new: &[u8]) {
    for (offset, term) in new.iter().enumerate() {
        if log.get(prev + offset) != Some(term) {
            log.truncate(prev + offset);
            log.push(*term);
        }
    }
}

impl State {
    fn leads(&self, term: u8) -> bool {
        let t = usize::from(term);
        self.elected[t] && self.votes[OWNERS[t]] == term
    }

    /// The term that A leads in.
    fn term_of_a(&self) -> Option<u8> {
        [1, 3].into_iter().find(|term| self.leads(*term))
    }

    /// A replica has acknowledged to a leader what both have.
    fn acknowledge(&mut self, term: u8, replica: usize) {
        let leader = OWNERS[usize::from(term)];
        if self.leads(term) {
            let both = common(&self.logs[leader], &self.logs[replica]);
            let acked = &mut self.acked[usize::from(term)][replica];
            *acked = both.max(*acked);
        }
    }

    /// The leader hears of it.
    fn count(&mut self, term: u8, replica: usize, end: usize) {
        if self.leads(term) {
            let matching = &mut self.matching[usize::from(term)][replica];
            *matching = (*matching).max(end as u8);
        }
    }

    /// Nothing of a leadership that has ended is looked at again.
    fn forget_ended(&mut self) {
        for term in 1..4u8 {
            let t = usize::from(term);
            if self.elected[t] && self.votes[OWNERS[t]] > term {
                (self.matching[t], self.acked[t], self.commits[t]) = ([0; REPLICAS], [0; REPLICAS], 0);
                self.granted[t] = 0;
            }
        }
    }
}

impl Model {
    fn new(scope: Scope, without: Option<Rule>) -> Model {
        let fresh = Duration::from_millis(Timing::WIDE.heartbeat_interval_ms);
        Model { scope, without, start: Instant::now(), fresh }
    }

    /// Whether these replicas are a quorum.
    fn decide(&self, mask: u8) -> bool {
        let votes = |mask: u8| -> u32 {
            let of = |replica: &usize| mask & (1 << replica) != 0;
            (0..REPLICAS).filter(of).map(|replica| self.scope.weights[replica]).sum()
        };
        2 * votes(mask) > votes(u8::MAX)
    }

    fn others(&self, replica: usize) -> impl Iterator<Item = usize> {
        (0..REPLICAS).filter(move |other| *other != replica && self.scope.weights[*other] > 0)
    }

    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn at(&self, clock: u8) -> Instant {
        self.start + self.fresh * clock.into()
    }

    /// The protocol's request, in the product's words.
    fn request(&self, log: &[u8], term: u8, wanted: Wanted) -> AppendEntriesRequest<TokioEnv> {
        AppendEntriesRequest {
            vote: Vote { leader_id: leader_id(term), committed: true },
            prev_log_id: last(&log[..wanted.prev]),
            entries: entries(log, wanted.prev, wanted.end),
            leader_commit: last(&log[..wanted.commit]),
        }
    }

    /// `FollowerHint::plan`, without the rule that is left out.
    fn plan(&self, state: &mut State, request: &AppendEntriesRequest<TokioEnv>) -> SendPlan {
        let Some(known) = &mut state.hint.0 else { return SendPlan::AsIs };
        let (mut request, mut now) = (request.clone(), self.at(state.clock));
        if !self.has(Rule::OwnLeadership) {
            request.vote.leader_id = known.leader;
        }
        if let LogEnd::Acknowledged { through, commit, at } = &mut known.log_end {
            if !self.has(Rule::NothingBeyond) {
                *through = request.entries.last().map_or(*through, |entry| entry.log_id.max(*through));
            }
            if !self.has(Rule::CommitsAreSent) {
                *commit = request.leader_commit.max(*commit);
            }
            if !self.has(Rule::Fresh) {
                now = *at;
            }
        }
        known.plan(&request, now, self.fresh)
    }

    /// `PeerClient::already_replicated` up to its sending: the protocol asks for something to be sent.
    fn pull(&self, state: &mut State, term: u8, wanted: Wanted) {
        let request = self.request(&state.logs[A], term, wanted);
        let plan = self.plan(state, &request);
        state.streams[usize::from(term)] = match plan {
            SendPlan::AlreadyReplicated(_) => self.unsent(state, wanted),
            SendPlan::AsIs => self.plain(state, wanted),
            SendPlan::ResumeFrom(end) => match self.instead(state, &request, end) {
                Some(sent) => Stream::OnItsWay(wanted, sent),
                None => self.plain(state, wanted),
            },
        };
    }

    /// `FollowerHints::plan` counts the answer before it is given.
    fn unsent(&self, state: &mut State, wanted: Wanted) -> Stream {
        if let Some(read) = &mut state.read {
            read.unsent = true;
        }
        Stream::Unsent(wanted)
    }

    fn plain(&self, state: &State, wanted: Wanted) -> Stream {
        let log = &state.logs[A];
        let prev = wanted.prev.checked_sub(1).map(|index| (log[index], index));
        let entries = log[wanted.prev..wanted.end].to_vec();
        Stream::OnItsWay(wanted, SentRequest { prev, entries, at: state.clock, instead: false })
    }

    /// The request that is sent from the voter's end on.
    fn instead(
        &self,
        state: &State,
        request: &AppendEntriesRequest<TokioEnv>,
        end: LogId,
    ) -> Option<SentRequest> {
        let log = &state.logs[A];
        let range = follower_hint::range(end);
        let (from, to) = (range.start as usize, range.end as usize);
        let mut own = entries(log, from, to);
        if !self.has(Rule::SameEntry)
            && let Some(first) = own.first_mut()
        {
            first.log_id = end;
        }
        let asked = follower_hint::from_end(request, end, own)?;
        let prev = asked.prev_log_id.map(|id| (id.committed_leader_id().term as u8, id.index() as usize));
        let entries = asked.entries.iter().map(|entry| entry.log_id.committed_leader_id().term as u8);
        Some(SentRequest { prev, entries: entries.collect(), at: state.clock, instead: true })
    }

    /// B takes a request.
    fn arrive(&self, state: &mut State, term: u8, sent: &SentRequest) -> Answer {
        if state.votes[B] > term {
            return Answer::HigherTerm(state.votes[B]);
        }
        state.votes[B] = term;
        state.alive = state.clock;
        let from = match sent.prev {
            Some((term, index)) if state.logs[B].get(index) == Some(&term) => index + 1,
            Some(_) => return Answer::Conflict,
            None => 0,
        };
        adopt(&mut state.logs[B], from, &sent.entries);
        state.acknowledge(term, B);
        Answer::Success
    }

    /// `PeerClient::already_replicated` from its answer on; a plain request is the protocol's.
    fn take_answer(&self, state: &mut State, term: u8, wanted: Wanted, sent: &SentRequest, answer: Answer) {
        let stream = usize::from(term);
        state.streams[stream] = Stream::Idle;
        if !sent.instead {
            match answer {
                Answer::Success => {
                    state.count(term, B, sent.end());
                    self.believe(state, term, wanted);
                }
                Answer::HigherTerm(higher) => state.votes[A] = state.votes[A].max(higher),
                Answer::Conflict => {}
            }
            return;
        }
        if answer == Answer::Success || !self.has(Rule::WholeAnswer) {
            self.held(state, term, wanted, sent);
        }
        // Nobody waits for the rest where it does not lead any more.
        if !state.leads(term) {
            return;
        }
        let request = self.request(&state.logs[A], term, wanted);
        state.streams[stream] = match self.resumed(state, &request) {
            true => self.unsent(state, wanted),
            false => self.plain(state, wanted),
        };
    }

    /// `FollowerHint::resumed`, without the rule that is left out.
    fn resumed(&self, state: &State, request: &AppendEntriesRequest<TokioEnv>) -> bool {
        let Some(mut known) = state.hint.0 else { return false };
        let mut request = request.clone();
        if !self.has(Rule::OwnLeadership) {
            request.vote.leader_id = known.leader;
        }
        if let LogEnd::Acknowledged { through, .. } = &mut known.log_end
            && !self.has(Rule::NothingBeyond)
        {
            *through = request.entries.last().map_or(*through, |entry| entry.log_id.max(*through));
        }
        known.resumed(&request).is_some()
    }

    /// `FollowerHint::acknowledged`, which an answer may reach after its leadership has ended.
    fn held(&self, state: &mut State, term: u8, wanted: Wanted, sent: &SentRequest) {
        let Some(known) = &mut state.hint.0 else { return };
        let at = if self.has(Rule::CountedFromSending) { sent.at } else { state.clock };
        let (before, index) = sent.prev.expect("it begins behind the voter's last entry");
        let through = log_id(sent.entries.last().copied().unwrap_or(before), index + sent.entries.len());
        let commit = wanted.commit.checked_sub(1).map(|index| log_id(state.committed[index], index));
        let mut request = AppendEntriesRequest::<TokioEnv> {
            vote: Vote { leader_id: leader_id(term), committed: true },
            prev_log_id: None,
            entries: Vec::new(),
            leader_commit: commit,
        };
        if !self.has(Rule::OwnLeadership) {
            request.vote.leader_id = known.leader;
        }
        known.acknowledged(&request, through, self.at(at));
    }

    /// The protocol takes an answer as proof that the peer was alive at the time of its request, and for an acknowledgement of a read.
    fn believe(&self, state: &mut State, term: u8, wanted: Wanted) {
        if state.leads(term) {
            state.believed = state.believed.max(wanted.at);
        }
        if let Some(read) = state.read.as_mut().filter(|read| read.term == term && wanted.in_read) {
            read.acks |= 1 << B;
        }
    }

    fn replicate(&self, state: &mut State, term: u8, to: usize) {
        let leader = OWNERS[usize::from(term)];
        state.votes[to] = term;
        let log = state.logs[leader].clone();
        adopt(&mut state.logs[to], 0, &log);
        state.acknowledge(term, to);
        state.count(term, to, log.len());
    }

    /// Commits what a quorum matches, as far as it is of the leader's own term.
    fn commit(&self, state: &mut State, term: u8) {
        let (t, leader) = (usize::from(term), OWNERS[usize::from(term)]);
        if !state.leads(term) {
            return;
        }
        let log = &state.logs[leader];
        let decided = |end: usize| {
            let holds = |replica: usize| replica == leader || usize::from(state.matching[t][replica]) >= end;
            self.decide((0..REPLICAS).filter(|replica| holds(*replica)).map(|replica| 1 << replica).sum())
        };
        let mut ends = (usize::from(state.commits[t]) + 1..=log.len()).rev();
        let Some(end) = ends.find(|end| log[end - 1] == term && decided(*end)) else { return };
        let known = usize::from(common(&state.committed, log));
        state.seen.replaced_commit |= known < state.committed.len().min(end);
        if end > state.committed.len() {
            state.committed = log[..end].to_vec();
        }
        state.commits[t] = end as u8;
    }

    fn stream_actions(&self, state: &State, term: u8, actions: &mut Vec<Action>) {
        let stream = &state.streams[usize::from(term)];
        if !self.scope.calm && matches!(stream, Stream::OnItsWay(..) | Stream::Answered(..)) {
            actions.push(Action::Break(term));
        }
        match stream {
            Stream::Idle if state.leads(term) => {
                let end = state.logs[A].len();
                for prev in 0..end {
                    actions.push(Action::Pull(term, prev, end));
                    if prev + 1 < end && (!self.scope.calm || self.scope.reads) {
                        actions.push(Action::Pull(term, prev, prev + 1));
                    }
                }
            }
            Stream::Idle => {}
            Stream::OnItsWay(..) if state.lost_at.is_none() => {
                actions.push(Action::Arrive(term));
            }
            Stream::Answered(..) => actions.push(Action::TakeAnswer(term)),
            Stream::OnItsWay(..) => {}
            Stream::Unsent(_) => actions.push(Action::AnswerUnsent(term)),
        }
    }

    fn election_actions(&self, state: &State, term: u8, actions: &mut Vec<Action>) {
        let (t, owner) = (usize::from(term), OWNERS[usize::from(term)]);
        if state.votes[owner] < term && (!self.scope.calm || term == 1 || state.elected[t - 1]) {
            actions.push(Action::Campaign(term));
        }
        if state.granted[t] == 0 || state.elected[t] {
            return;
        }
        let older = self.others(owner).filter(|voter| state.votes[*voter] < term);
        // A candidate's log is what it was: nobody else led it meanwhile.
        let may = |voter: &usize| {
            let speaks = *voter != B || state.lost_at.is_none();
            speaks && last(&state.logs[*voter]) <= last(&state.logs[owner])
        };
        if state.votes[owner] == term {
            actions.extend(older.filter(may).map(|voter| Action::Vote(term, voter)));
            if self.decide(state.granted[t]) {
                actions.push(Action::BecomeLeader(term));
            }
        }
    }

    fn read_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let Some(term) = state.term_of_a() else { return };
        match state.read {
            None if !state.seen.confirmed_read && !state.seen.asked_again => actions.push(Action::BeginRead),
            None => {}
            Some(read) if read.term == term => {
                let answering = self
                    .others(A)
                    .filter(|replica| state.votes[*replica] <= term && read.acks & (1 << replica) == 0);
                actions.extend(answering.map(Action::Heartbeat));
                if self.decide(read.acks) {
                    actions.push(Action::EndRead);
                }
            }
            Some(_) => {}
        }
    }

    fn end_read(&self, state: &mut State) {
        let Some(read) = state.read.take() else { return };
        if read.unsent && self.has(Rule::UnsentProvesNothing) {
            state.seen.asked_again = true;
            return;
        }
        state.seen.confirmed_read = true;
        state.seen.outdated_read |= read.outdated;
    }

    fn become_leader(&self, state: &mut State, term: u8) {
        let owner = OWNERS[usize::from(term)];
        state.elected[usize::from(term)] = true;
        state.logs[owner].push(term);
    }

    fn vote(&self, state: &mut State, term: u8, voter: usize) {
        state.votes[voter] = term;
        state.granted[usize::from(term)] |= 1 << voter;
        if voter == B && OWNERS[usize::from(term)] == A {
            let known = FollowerHint::voted(leader_id(term), last(&state.logs[B]));
            state.hint = Hint(known.or(state.hint.0));
        }
    }

    /// B starts with nothing, and neither votes nor acknowledges (`rejoin.rs`).
    fn lose_storage(&self, state: &mut State) {
        state.losses += 1;
        state.lost_at = state.term_of_a().map(|term| state.commits[usize::from(term)]);
        state.logs[B].clear();
        for term in 0..4 {
            state.acked[term][B] = 0;
        }
    }

    /// The leader has committed entries that remove B and add it again; its progress begins with nothing, and its old
    /// stream has ended. B takes the leader's vote.
    fn readmit(&self, state: &mut State, term: u8) {
        let t = usize::from(term);
        state.lost_at = None;
        state.votes[B] = term;
        state.matching[t][B] = 0;
        state.streams[t] = Stream::Idle;
    }
}

impl stateright::Model for Model {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            clock: 0,
            votes: [0; REPLICAS],
            logs: std::array::from_fn(|_| vec![0]),
            granted: [0; 4],
            elected: [false; 4],
            matching: [[0; REPLICAS]; 4],
            acked: [[0; REPLICAS]; 4],
            commits: [0; 4],
            committed: Vec::new(),
            hint: Hint(None),
            streams: [Stream::Idle, Stream::Idle, Stream::Idle, Stream::Idle],
            read: None,
            lost_at: None,
            losses: 0,
            believed: 0,
            alive: 0,
            seen: Coverage::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for term in 1..=self.scope.terms as u8 {
            self.election_actions(state, term, actions);
            let (t, owner) = (usize::from(term), OWNERS[usize::from(term)]);
            if owner == A {
                self.stream_actions(state, term, actions);
            }
            if !state.leads(term) {
                continue;
            }
            // The first leader alone proposes where three follow each other.
            if state.logs[owner].len() < LOG_MAX && (term == 1 || !self.scope.calm) {
                actions.push(Action::Propose(term));
            }
            let asks_c = !self.scope.calm || self.scope.reads;
            let others = self.others(owner).filter(|to| owner != A || (*to != B && (*to != C || asks_c)));
            let behind = others.filter(|to| {
                let lags = usize::from(state.matching[t][*to]) < state.logs[owner].len();
                state.votes[*to] <= term && lags && (*to != B || state.lost_at.is_none())
            });
            actions.extend(behind.map(|to| Action::Replicate(term, to)));
        }
        if self.scope.reads {
            self.read_actions(state, actions);
        }
        if self.scope.losses
            && let Some(term) = state.term_of_a()
        {
            match state.lost_at {
                None if state.losses == 0 => actions.push(Action::LoseStorage),
                Some(at) if state.commits[usize::from(term)] > at => actions.push(Action::Readmit),
                _ => {}
            }
        }
        if state.clock < self.scope.clock_max {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let now = state.clock;
        match action {
            Action::Campaign(term) => {
                let owner = OWNERS[usize::from(term)];
                state.votes[owner] = term;
                state.granted[usize::from(term)] = 1 << owner;
            }
            Action::Vote(term, voter) => self.vote(&mut state, term, voter),
            Action::BecomeLeader(term) => self.become_leader(&mut state, term),
            Action::Propose(term) => state.logs[OWNERS[usize::from(term)]].push(term),
            Action::Replicate(term, to) => self.replicate(&mut state, term, to),
            Action::Pull(term, prev, end) => {
                let commit = usize::from(state.commits[usize::from(term)]);
                let in_read = state.read.is_some_and(|read| read.term == term);
                self.pull(&mut state, term, Wanted { prev, end, commit, at: now, in_read });
            }
            Action::Arrive(term) => {
                let stream = &mut state.streams[usize::from(term)];
                let Stream::OnItsWay(wanted, sent) = std::mem::replace(stream, Stream::Idle) else {
                    return None;
                };
                let answer = self.arrive(&mut state, term, &sent);
                state.streams[usize::from(term)] = Stream::Answered(wanted, sent, answer);
            }
            Action::TakeAnswer(term) => {
                let Stream::Answered(wanted, sent, answer) = state.streams[usize::from(term)].clone() else {
                    return None;
                };
                self.take_answer(&mut state, term, wanted, &sent, answer);
            }
            Action::Break(term) => state.streams[usize::from(term)] = Stream::Idle,
            Action::AnswerUnsent(term) => {
                let stream = &mut state.streams[usize::from(term)];
                let Stream::Unsent(wanted) = std::mem::replace(stream, Stream::Idle) else { return None };
                state.count(term, B, wanted.end);
                self.believe(&mut state, term, wanted);
            }
            Action::BeginRead => {
                let term = state.term_of_a()?;
                let outdated = state.committed.last().is_some_and(|later| *later > term);
                state.read = Some(Read { term, acks: 1 << A, outdated, unsent: false });
            }
            Action::Heartbeat(from) => {
                let read = state.read.as_mut()?;
                read.acks |= 1 << from;
                state.votes[from] = read.term;
            }
            Action::EndRead => self.end_read(&mut state),
            Action::LoseStorage => self.lose_storage(&mut state),
            Action::Readmit => {
                let term = state.term_of_a()?;
                self.readmit(&mut state, term);
            }
            Action::Tick => state.clock += 1,
        }
        (1..4).for_each(|term| self.commit(&mut state, term));
        state.forget_ended();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Model>> {
        let mut properties = vec![
            Property::always("what is counted was acknowledged", |_: &Model, state: &State| {
                // What a lost storage held is counted until its replica is removed, and not beyond.
                let is_there = |replica: usize| replica != B || state.lost_at.is_none();
                (1..4).all(|term| {
                    let counted = state.matching[term].iter().zip(&state.acked[term]).enumerate();
                    counted
                        .into_iter()
                        .all(|(replica, (matching, acked))| matching <= acked || !is_there(replica))
                })
            }),
            Property::always("no committed entry is replaced", |_, state: &State| {
                !state.seen.replaced_commit
            }),
            Property::always("no read is outdated", |_, state: &State| !state.seen.outdated_read),
            Property::always("a peer seems alive only so long", |_, state: &State| {
                state.believed <= state.alive + 1
            }),
            Property::sometimes("a search goes on from the voter's end", |_, state: &State| {
                matches!(state.hint.0, Some(FollowerHint { log_end: LogEnd::Acknowledged { .. }, .. }))
            }),
            Property::sometimes("a request is answered without being sent", |_, state: &State| {
                state.streams.iter().any(|stream| matches!(stream, Stream::Unsent(_)))
            }),
            Property::sometimes("something is committed", |_, state: &State| !state.committed.is_empty()),
        ];
        if self.scope.terms > 2 {
            properties.push(Property::sometimes("three leaders follow each other", |_, state: &State| {
                state.elected[3] && state.elected[2] && state.elected[1]
            }));
        }
        if self.scope.reads {
            properties.push(Property::sometimes("a read is confirmed", |_, state: &State| {
                state.seen.confirmed_read
            }));
            properties.push(Property::sometimes("a confirmation is asked for again", |_, state: &State| {
                state.seen.asked_again
            }));
        }
        if self.scope.losses {
            properties.push(Property::sometimes("B is taken in again", |_, state: &State| {
                state.losses > 0 && state.lost_at.is_none() && state.logs[B].len() > 1
            }));
        }
        properties
    }
}

const THREE: [u32; REPLICAS] = [1, 1, 1, 0];
const FIVE: [u32; REPLICAS] = [1, 1, 1, 2];
const ELECTIONS: Scope =
    Scope { weights: FIVE, terms: 3, calm: true, clock_max: 0, reads: false, losses: false };
const READS: Scope = Scope { weights: THREE, terms: 2, calm: true, clock_max: 0, reads: true, losses: false };
const CLOCK: Scope =
    Scope { weights: THREE, terms: 1, calm: false, clock_max: 3, reads: false, losses: false };
const LOSSES: Scope =
    Scope { weights: THREE, terms: 1, calm: false, clock_max: 0, reads: false, losses: true };

fn holds(name: &str, scope: Scope) {
    let checker = Model::new(scope, None).checker().spawn_bfs().join();
    println!("{name}: {} states, {} steps deep", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

/// The model without a rule breaks a property.
fn breaks(scope: Scope, without: Rule, property: &'static str) {
    let model = Model::new(scope, Some(without)).checker();
    let checker = model.finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
    let found = checker.discovery(property);
    let found = found.unwrap_or_else(|| panic!("without {without:?} the model still holds: {property}"));
    println!("without {without:?}: {property} is broken after {} steps", found.into_actions().len());
}

#[test]
fn over_elections_nothing_counts_but_what_was_acknowledged() {
    holds("elections", ELECTIONS);
}

#[test]
fn a_read_is_confirmed_by_answers_that_were_sent() {
    holds("reads", READS);
}

#[test]
fn a_silent_peer_seems_alive_for_a_heartbeat_interval_only() {
    holds("clock", CLOCK);
}

#[test]
fn a_lost_storage_is_not_taken_for_what_it_held() {
    holds("losses", LOSSES);
}

#[test]
fn without_any_one_rule_something_breaks() {
    const COUNTED: &str = "what is counted was acknowledged";
    breaks(ELECTIONS, Rule::OwnLeadership, COUNTED);
    breaks(ELECTIONS, Rule::NothingBeyond, COUNTED);
    breaks(ELECTIONS, Rule::SameEntry, COUNTED);
    breaks(ELECTIONS, Rule::WholeAnswer, COUNTED);
    breaks(LOSSES, Rule::CommitsAreSent, COUNTED);
    breaks(CLOCK, Rule::Fresh, "a peer seems alive only so long");
    breaks(CLOCK, Rule::CountedFromSending, "a peer seems alive only so long");
    breaks(READS, Rule::UnsentProvesNothing, "no read is outdated");
}
