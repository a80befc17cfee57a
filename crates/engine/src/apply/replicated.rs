//! The apply loop: what consensus calls with committed entries, and what it publishes.

use arc_swap::ArcSwap;
use bytes::Bytes;
use muster_archive::Observer as _;
use muster_consensus::{
    Application, ApplicationError, CommittedEntry, SnapshotData, SnapshotSource, StateMark, StateMarks, halt,
};
use muster_decider::KeptReservations;
use muster_journal::{Decision, Round, decode_round};
use muster_planted::{Rule, breaks};
use muster_state::{Applied, Effect, State};
use muster_types::{Leadership, LogIndex, LogTime};
use parking_lot::{Mutex, MutexGuard};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

use crate::apply::contacts::Contacts;
use crate::apply::orders::OrderBoard;
use crate::apply::pending_replies::PendingReplies;
use crate::apply::proposed_rounds::{ProposedRounds, RoundTimes};
use crate::apply::traced::{Stages, TracedSubmission, traced};
use crate::log_lines;
use crate::watch::changes::Event;
use crate::watch::events::EventMaker;
use crate::watch::hub::WatchHub;

/// What apply publishes and everybody else reads.
pub(crate) struct Shared {
    pub(crate) view: ArcSwap<State>,
    pub(crate) applied: watch::Sender<LogIndex>,
    pub(crate) hub: Arc<WatchHub>,
    pub(crate) pending_replies: PendingReplies,
    pub(crate) proposed_rounds: ProposedRounds,
    pub(crate) orders: OrderBoard,
    /// The same state as the view, with its place among the Raft entries.
    pub(crate) position: ArcSwap<Position>,
    /// The newest snapshot that replaced the state, until the task that keeps history has gone on from it.
    pub(crate) restored: Mutex<Option<Arc<Position>>>,
    /// What the records say of leaderships and of sessions under them.
    pub(crate) contacts: Mutex<Contacts>,
    /// What the state came to behind the last entries.
    pub(crate) marks: StateMarks,
    /// Who hears how long the work of this replica's leaderships takes.
    pub(crate) timed_by: OnceLock<Box<dyn WorkObserver>>,
    /// What the last pass of this replica's leadership keeps for later, for explanations; nothing while it does not lead.
    pub(crate) kept: ArcSwap<KeptReservations>,
}

/// A state and the last Raft entry in it.
#[derive(Debug, Default)]
pub(crate) struct Position {
    pub(crate) raft_index: u64,
    /// Whether the last round in it has a record, so that nothing else is ever the state behind that record.
    pub(crate) exact: bool,
    pub(crate) state: Arc<State>,
}

/// Hears how long the work of a leader takes. It is called within that work, so it has to be quick.
pub trait WorkObserver: Send + Sync {
    /// The decision loop spent this time on the round that it proposes now.
    fn round_decided(&self, took: Duration);

    /// A round that was proposed here is applied here, this time after it was proposed.
    fn proposal_applied(&self, took: Duration);

    /// Whether it wants to hear of submissions that are a part of a trace.
    fn wants_traces(&self) -> bool {
        false
    }

    /// A submission that is a part of a trace, and that was proposed here, was applied here at that time.
    fn submission_applied(&self, submission: &TracedSubmission, applied: Instant) {
        let _ = (submission, applied);
    }
}

impl Shared {
    pub(crate) fn contacts(&self) -> MutexGuard<'_, Contacts> {
        self.contacts.lock()
    }

    pub(crate) fn restored(&self) -> Option<Arc<Position>> {
        self.restored.lock().clone()
    }

    pub(crate) fn forget_restored(&self) {
        *self.restored.lock() = None;
    }
}

/// The replicated state behind consensus. Keeps the only copy that changes.
pub struct Replicated {
    state: State,
    format_max: u16,
    events: EventMaker,
    shared: Arc<Shared>,
    on_divergence: Option<DivergenceHandler>,
    observer: Option<RecordObserver>,
    /// When the rounds were proposed that are being applied, of those that were proposed here.
    proposed: Vec<Instant>,
    /// Submissions in them that are a part of a trace, where somebody wants to hear of them.
    traced: Vec<TracedSubmission>,
    clock: fn() -> Instant,
}

/// Sees each record with the state before and behind it. It runs within apply, so it has to be quick, and it changes nothing.
pub type RecordObserver = Box<dyn muster_archive::Observer + Send + Sync>;

/// What shows that a replica has diverged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The digest in the log is not that of the state here.
    Digest {
        /// The digest in the log.
        expected: u64,
        /// That of the state here.
        actual: u64,
    },
    /// A round of the leadership in force does not begin behind the last record here.
    Position {
        /// Where it begins.
        first: LogIndex,
    },
}

/// This replica's state is not the one that the log is of.
pub struct Divergence<'a> {
    /// The record that carries the digest, or the last one here.
    pub log_index: LogIndex,
    /// What shows it.
    pub mismatch: Mismatch,
    /// The state, as it is.
    pub state: &'a State,
}

/// Keeps what is known of a divergence, durably, before the replica stops. It blocks apply, and nothing
/// is applied after it.
pub type DivergenceHandler = Box<dyn Fn(&Divergence<'_>) + Send + Sync>;

/// A fresh replicated state, to be handed to consensus, and the view of it for the engine. The replica reads
/// record formats up to `format_max`: `muster_journal::FORMAT_MAX`, or less to stand for an older binary.
#[must_use]
pub fn replicated(format_max: u16) -> (Replicated, View) {
    let state = State::default();
    let shared = Arc::new(Shared {
        view: ArcSwap::from_pointee(state.clone()),
        applied: watch::Sender::new(LogIndex::ZERO),
        hub: Arc::new(WatchHub::new(LogIndex::ZERO)),
        pending_replies: PendingReplies::default(),
        proposed_rounds: ProposedRounds::default(),
        orders: OrderBoard::default(),
        position: ArcSwap::default(),
        restored: Mutex::new(None),
        contacts: Mutex::default(),
        marks: StateMarks::default(),
        timed_by: OnceLock::new(),
        kept: ArcSwap::default(),
    });
    let events = EventMaker::behind(&state);
    let replicated = Replicated {
        state,
        format_max,
        events,
        shared: Arc::clone(&shared),
        on_divergence: None,
        observer: None,
        proposed: Vec::new(),
        traced: Vec::new(),
        clock: Instant::now,
    };
    (replicated, View { shared })
}

/// The engine's end of a [`Replicated`]. Clones share it.
#[derive(Clone)]
pub struct View {
    pub(crate) shared: Arc<Shared>,
}

impl View {
    /// What the state came to behind the last entries, for peers to compare.
    #[must_use]
    pub fn marks(&self) -> StateMarks {
        self.shared.marks.clone()
    }

    /// From now on this one hears how long the work of a leader takes. The first one stays.
    pub fn timed_by(&self, observer: Box<dyn WorkObserver>) {
        let _ = self.shared.timed_by.set(observer);
    }

    /// The applied state. It never changes; ask again for a newer one.
    #[must_use]
    pub fn state(&self) -> Arc<State> {
        self.shared.view.load_full()
    }
}

impl Replicated {
    /// The same with someone who keeps the evidence when this replica diverges.
    #[must_use]
    pub fn on_divergence(mut self, handler: DivergenceHandler) -> Replicated {
        self.on_divergence = Some(handler);
        self
    }

    /// The same with someone who sees each record that is applied.
    #[must_use]
    pub fn observed_by(mut self, observer: RecordObserver) -> Replicated {
        self.observer = Some(observer);
        self
    }

    /// The same on another monotonic clock than the host's, for simulations.
    #[must_use]
    pub fn with_clock(mut self, clock: fn() -> Instant) -> Replicated {
        self.clock = clock;
        self
    }

    /// Stops the replica: nothing that it would answer from here on could be relied on.
    fn diverged(&self, log_index: LogIndex, mismatch: Mismatch) -> ! {
        if let Some(handler) = &self.on_divergence {
            handler(&Divergence { log_index, mismatch, state: &self.state });
        }
        let how = match mismatch {
            Mismatch::Digest { expected, actual } => {
                format!("its digest is {actual:016x}, the log's {expected:016x}")
            }
            Mismatch::Position { first } => format!("the leader's next round begins at {first}"),
        };
        halt(format!(
            "this replica's state has diverged at log index {log_index}: {how}; keep its data directory as evidence \
             and start it once with --rebuild"
        ))
    }

    /// A round of the leadership in force goes on behind the state of its leader. Where that is not the state here,
    /// the records here are not the leader's. Only a gap is passed over: a leader that gives up leaves out a
    /// proposal that was refused, and those behind it may be in the log still.
    fn check_position(&self, round: &Round) {
        let here = self.state.sequence();
        let leadership = Leadership { term: round.term, replica: round.replica };
        let begins = matches!(round.decisions.first(), Some(Decision::LeaderStarted));
        let (first, next) = (round.first_index, here.log_index.next());
        let is_elsewhere = match here.leadership {
            _ if breaks(Rule::SkipGuard) => false,
            Some(current) if begins => leadership > current && first != next,
            None => begins && first != next,
            Some(current) => leadership == current && first < next,
        };
        if is_elsewhere {
            self.diverged(here.log_index, Mismatch::Position { first });
        }
    }

    fn apply_round(&mut self, raft_index: u64, payload: &Bytes) {
        // Unknown formats and damage are neither skipped nor guessed at: the replica stops before
        // them, with the reason, and a binary that knows them goes on from here.
        let decode = || {
            decode_round(payload, self.format_max).unwrap_or_else(|error| {
                halt(format!("the entry at raft index {raft_index} cannot be applied: {error}"))
            })
        };
        let (round, own_times) = match self.shared.proposed_rounds.take(payload) {
            Some((own, times)) => {
                self.proposed.push(times.proposed);
                debug_assert_eq!(own, decode(), "a round is not what its own bytes say");
                (own, Some(times))
            }
            None => (decode(), None),
        };
        let wants_traces = || self.shared.timed_by.get().is_some_and(|observer| observer.wants_traces());
        let stages = own_times.filter(|_| wants_traces()).map(|RoundTimes { begun, proposed }| Stages {
            begun,
            proposed,
            committed: (self.clock)(),
        });
        self.check_position(&round);
        for (ordinal, decision) in round.decisions.iter().enumerate() {
            let (leadership, index, log_time) = self.header(&round, ordinal);
            self.events.before(&self.state, decision);
            if let Some(observer) = &mut self.observer {
                observer.before(&self.state, decision);
            }
            let applied = self.state.apply(leadership, index, log_time, decision);
            self.after_record(&round, ordinal, &applied);
            self.events.after(&self.state, &applied);
            if let Some(observer) = &mut self.observer {
                observer.after(&self.state, &applied);
            }
        }
        self.events.round_over(&self.state);
        if let Some(stages) = stages {
            self.traced.extend(traced(&self.state, &round, stages));
        }
    }

    /// What a record is held against: the header of its round, and its place in it.
    fn header(&self, round: &Round, ordinal: usize) -> (Leadership, LogIndex, LogTime) {
        let begins = matches!(round.decisions.get(ordinal), Some(Decision::LeaderStarted));
        if breaks(Rule::SkipGuard)
            && !begins
            && let Some(current) = self.state.leadership()
        {
            return (current, self.state.log_index().next(), round.log_time.max(self.state.log_time()));
        }
        let index = LogIndex(round.first_index.0.saturating_add(ordinal as u64));
        (Leadership { term: round.term, replica: round.replica }, index, round.log_time)
    }

    fn after_record(&self, round: &Round, ordinal: usize, applied: &Applied) {
        if let (Some(index), Some(rejection)) = (applied.log_index, &applied.rejection) {
            let decision = round.decisions[ordinal].name();
            let (job, node) = log_lines::subject(&round.decisions[ordinal]);
            let (job, node) = (job.map(tracing::field::display), node.map(tracing::field::display));
            tracing::error!(log_index = %index, term = round.term, job, node, decision, ?rejection, "the guard refused a record of the current leader: a bug");
        }
        let Some(log_index) = applied.log_index else { return };
        if applied.rejection.is_none() {
            self.note_contact(round, &round.decisions[ordinal]);
        }
        for effect in &applied.effects {
            match effect {
                Effect::OrdersChanged(node) => self.shared.orders.mark(*node),
                Effect::Diverged { expected, actual } => {
                    let (expected, actual) = (*expected, *actual);
                    self.diverged(log_index, Mismatch::Digest { expected, actual });
                }
                _ => {}
            }
        }
    }

    /// Under whose leadership a node opened a session.
    fn note_contact(&self, round: &Round, decision: &Decision) {
        let leadership = Leadership { term: round.term, replica: round.replica };
        match decision {
            Decision::LeaderStarted => {
                self.shared.contacts().began(leadership, (self.clock)(), round.log_time);
            }
            Decision::NodeRegistered { spec, .. } => {
                if let Some(node) = self.state.node_named(&spec.name) {
                    self.shared.contacts().opened(node, leadership);
                }
            }
            Decision::SessionResumed { node, .. } | Decision::AgentStarted { node, .. } => {
                self.shared.contacts().opened(*node, leadership);
            }
            Decision::NodeLost { node, .. } | Decision::NodeForgotten { node, .. } => {
                self.shared.contacts().lost(*node);
            }
            _ => {}
        }
    }

    fn publish(&self, raft_index: u64, exact: bool, events: Vec<Event>) {
        let end = self.state.log_index();
        let state = Arc::new(self.state.clone());
        self.shared.position.store(Arc::new(Position { raft_index, exact, state: Arc::clone(&state) }));
        self.shared.view.store(state);
        self.shared.hub.append(end, events);
        self.shared.applied.send_replace(end);
        self.shared.orders.wake_marked();
    }
}

impl Application for Replicated {
    fn apply(&mut self, entries: &[CommittedEntry]) {
        // The state's leadership, not the round's: a round of a lost one is applied as nothing.
        let mut reached: Vec<(LogIndex, Option<Leadership>)> = Vec::new();
        let mut marks = Vec::new();
        let (mut last, mut exact) = (0, false);
        self.proposed.clear();
        self.traced.clear();
        for entry in entries {
            last = entry.raft_index;
            let Some(payload) = &entry.payload else { continue };
            let before = self.state.log_index();
            self.apply_round(entry.raft_index, payload);
            exact = self.state.log_index() > before;
            reached.push((self.state.log_index(), self.state.leadership()));
            marks.push(StateMark { raft_index: entry.raft_index, digest: self.state.digest() });
        }
        self.shared.marks.note(marks);
        if reached.is_empty() {
            return;
        }
        let events = self.events.take();
        self.publish(last, exact, events);
        if let Some(observer) = self.shared.timed_by.get() {
            let now = (self.clock)();
            let took = self.proposed.iter().map(|at| now.saturating_duration_since(*at));
            took.for_each(|took| observer.proposal_applied(took));
            self.traced.iter().for_each(|traced| observer.submission_applied(traced, now));
        }
        // Only now: who is answered must find the record in the view.
        for (index, leadership) in reached {
            self.shared.pending_replies.applied(index, leadership);
        }
    }

    fn snapshot(&self) -> Box<dyn SnapshotSource> {
        Box::new(Source { state: self.state.clone() })
    }

    fn restore(&mut self, data: SnapshotData) -> Result<(), ApplicationError> {
        let raft_index = data.raft_index();
        let chunks: Vec<Bytes> = data.collect::<Result<_, _>>()?;
        let state =
            State::restore_up_to(self.format_max, chunks.iter()).map_err(|error| ApplicationError {
                detail: "the snapshot is not a state".to_owned(),
                source: Some(Box::new(error)),
            })?;
        self.events = EventMaker::behind(&state);
        self.shared.contacts().forget();
        self.shared.marks.forget();
        self.state = state;
        let end = self.state.log_index();
        let state = Arc::new(self.state.clone());
        let position = Arc::new(Position { raft_index, exact: false, state: Arc::clone(&state) });
        *self.shared.restored.lock() = Some(Arc::clone(&position));
        self.shared.position.store(position);
        self.shared.view.store(state);
        self.shared.hub.reset(end);
        self.shared.applied.send_replace(end);
        self.shared.orders.wake_all();
        self.shared.pending_replies.applied(end, self.state.leadership());
        Ok(())
    }
}

struct Source {
    state: State,
}

impl SnapshotSource for Source {
    fn chunks(self: Box<Self>) -> Box<dyn Iterator<Item = Bytes> + Send> {
        Box::new(self.state.snapshot().map(Bytes::from))
    }
}
