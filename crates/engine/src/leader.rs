//! The decision loop: one serial loop, running only while this replica leads.
//!
//! A round is made of what arrived while the flush of the round before ran: commands wait in their
//! lanes until the local log has flushed what was proposed last (or everything in flight has
//! committed), are then decided together, and go out as one entry. Several rounds may be in flight
//! to the quorum. Nodes have a lane of their own, so that submissions never delay a report.

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use muster_consensus::{Consensus, Ground, LeadershipView, Proposal, ProposeError};
use muster_decider::{Answer, Command, Founding, Speculation, handle, schedule, settle_all, tick};
use muster_journal::encode_round;
use muster_planner::Budget;
use muster_planted::{Rule, breaks};
use muster_state::{Leadership, NodeStatus};
use muster_types::{LogTime, Refusal, RefusalCode};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::{self, LogClock, instant};
use crate::liveness::Liveness;
use crate::replicated::Shared;
use crate::session::Sessions;
use crate::steps::Steps;
use crate::waiters::Reply;

/// Rounds on their way to the quorum at once: covers a round trip of 140 ms at 2 ms a round.
const ROUNDS_IN_FLIGHT_MAX: usize = 64;
/// Commands decided into one round.
const COMMANDS_PER_ROUND_MAX: usize = 1_024;
/// Bytes at which a round takes no further command.
const ROUND_BYTES_SOFT: usize = 64 << 10;
/// Planning work in one round, in visits: some tens of milliseconds.
const VISITS_PER_ROUND: u64 = 200_000;
/// Bytes at which a round takes no further lost node. What follows from a loss is bounded by the
/// decider; the losses themselves are bounded here: a whole fleet can fall silent at once.
const ROUND_BYTES_LOST: usize = 256 << 10;
/// Silent nodes that a pass over the queue goes round. Of more, those whose leases run out last are used as others are.
const SILENT_MAX: usize = 4_096;
/// Of every so many commands one is a client's, however many the nodes have: a fleet that reports
/// without end must not shut out those who would cancel its work.
const CLIENT_TURN: usize = 4;
/// How often history is looked at for what has been kept long enough.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(10);
/// The same while there was something to do: one look does a bounded part of it.
const HOUSEKEEPING_PAUSE: Duration = Duration::from_millis(100);

/// Least time between two looks for jobs that may start now.
const RELEASES_APART_MS: u64 = 50;

/// Between a refusal by consensus and the next attempt at the barrier.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_millis(20);

/// A command and where its answer goes.
pub(crate) struct Intake {
    pub(crate) command: Command,
    pub(crate) reply: Reply,
    /// Its share of the memory that waiting commands may take.
    pub(crate) _room: Option<OwnedSemaphorePermit>,
}

pub(crate) struct DecisionLoop<G: Ground> {
    pub(crate) consensus: Consensus<G>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) steps: Arc<Steps>,
    pub(crate) founding: Founding,
    pub(crate) clients: mpsc::Receiver<Intake>,
    pub(crate) nodes: mpsc::Receiver<Intake>,
    pub(crate) shutdown: CancellationToken,
}

/// The leadership in a view, when it is this replica's.
pub(crate) fn own(view: &LeadershipView) -> Option<Leadership> {
    view.mine.map(|mine| Leadership { term: mine.term, replica: mine.replica })
}

/// What a view says about a leadership of this replica's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Leads,
    /// A quorum has been silent for too long: decide nothing until it is heard again or another
    /// replica leads.
    Paused,
    Lost,
}

fn standing(view: &LeadershipView, mine: Leadership) -> Standing {
    match own(view) {
        Some(other) if other != mine => Standing::Lost,
        Some(_) => Standing::Leads,
        None if view.term > mine.term => Standing::Lost,
        None if view.leader.as_ref().is_some_and(|leader| leader.replica != mine.replica) => Standing::Lost,
        None => Standing::Paused,
    }
}

fn not_leader() -> Refusal {
    Refusal::new(RefusalCode::NotLeader, "this replica does not lead")
}

/// Why a leadership's work came to an end.
#[derive(Debug)]
enum End {
    /// Another leadership has begun.
    Lost,
    /// The barrier or a proposal was refused.
    Refused,
    Shutdown,
}

impl<G: Ground> DecisionLoop<G> {
    pub(crate) async fn run(mut self) {
        let mut leadership = self.consensus.leadership();
        loop {
            let mine = own(&leadership.borrow_and_update());
            let Some(mine) = mine else {
                if self.follow(&mut leadership).await {
                    return;
                }
                continue;
            };
            let end = self.lead(mine, &mut leadership).await;
            self.liveness.end();
            self.steps.forget();
            self.sessions.close_all();
            self.shared.waiters.fail(mine);
            self.shared.own_rounds.clear();
            tracing::info!(term = mine.term, ?end, "leadership ended");
            match end {
                End::Shutdown => return,
                End::Lost => {}
                // The leadership may still stand; a moment later its barrier says so.
                End::Refused => G::pause(PAUSE_AFTER_REFUSAL).await,
            }
        }
    }

    /// Refuses commands until the leadership changes; whether the replica stops.
    async fn follow(&mut self, leadership: &mut watch::Receiver<LeadershipView>) -> bool {
        loop {
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return true,
                changed = leadership.changed() => return changed.is_err(),
                Some(intake) = self.nodes.recv() => refuse(intake),
                Some(intake) = self.clients.recv() => refuse(intake),
            }
        }
    }

    async fn lead(&mut self, mine: Leadership, leadership: &mut watch::Receiver<LeadershipView>) -> End {
        let ours = muster_consensus::Leadership { term: mine.term, replica: mine.replica };
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => return End::Shutdown,
            () = lost(leadership, mine) => return End::Lost,
            passed = self.consensus.barrier(ours) => if passed.is_err() { return End::Refused },
        }
        let state = muster_state::State::clone(&self.shared.view.load());
        if state.leadership().is_some_and(|current| current > mine) {
            // Passed, and deposed since: the next leader's records are applied here already.
            return End::Refused;
        }
        let mut clock = LogClock::new(state.log_time(), instant::<G>());
        let now = clock.at(clock::now::<G>(), instant::<G>());
        let speculation = Speculation::begin(state, mine, now, self.founding);
        let mut term = Term {
            flushed: self.consensus.flush_progress(),
            proposed: 0,
            flushed_before: 0,
            in_flight: FuturesUnordered::new(),
            interrupted: false,
            housekeeping: instant::<G>(),
            released: LogTime(0),
            recover_at: None,
            ours,
            speculation,
            clock,
            outer: self,
        };
        term.flushed_before = term.flushed.borrow().app_entries_flushed;
        term.begin();
        term.run(leadership).await
    }
}

/// Waits until the leadership is not `mine` any more.
async fn lost(leadership: &mut watch::Receiver<LeadershipView>, mine: Leadership) {
    loop {
        let standing = standing(&leadership.borrow_and_update(), mine);
        if standing == Standing::Lost || leadership.changed().await.is_err() {
            return;
        }
    }
}

fn refuse(intake: Intake) {
    // The asker may have gone; then nobody is left to tell.
    let _ = intake.reply.send(Err(not_leader()));
}

/// One leadership at work.
struct Term<'a, G: Ground> {
    outer: &'a mut DecisionLoop<G>,
    ours: muster_consensus::Leadership,
    speculation: Speculation,
    clock: LogClock,
    in_flight: FuturesUnordered<Proposal>,
    flushed: watch::Receiver<muster_consensus::FlushProgress>,
    flushed_before: u64,
    proposed: u64,
    /// A planning pass ran out of budget and goes on in the next round.
    interrupted: bool,
    housekeeping: Instant,
    /// Jobs whose time to start had come by then were looked at.
    released: LogTime,
    /// When every lease of the generation before has run out; none while there is nothing to recover.
    recover_at: Option<Instant>,
}

impl<G: Ground> Term<'_, G> {
    fn begin(&mut self) {
        settle_all(&mut self.speculation);
        let parameters = self.speculation.state().parameters();
        let lease = Duration::from_millis(parameters.lease_ttl_ms + parameters.lease_margin_ms);
        // A recovered state does not say who holds what: all of it is over one full term from now, at once.
        let is_recovering = self.speculation.is_recovering();
        self.recover_at = is_recovering.then(|| instant::<G>() + lease);
        let nodes = self.speculation.state().nodes().iter();
        let up = nodes
            .filter(|(_, row)| row.status == NodeStatus::Up && !is_recovering)
            .map(|(id, row)| (*id, row.incarnation));
        let mine = self.speculation.leadership();
        self.outer.liveness.begin(mine, instant::<G>(), lease, up);
        tracing::info!(term = mine.term, log_index = %self.speculation.last_index(), "leadership begins");
    }

    async fn run(&mut self, leadership: &mut watch::Receiver<LeadershipView>) -> End {
        let mine = self.speculation.leadership();
        loop {
            let view = leadership.borrow_and_update().clone();
            let stands = match standing(&view, mine) {
                Standing::Lost if breaks(Rule::SkipGuard) => view.mine.is_some(),
                Standing::Lost => return End::Lost,
                Standing::Leads => true,
                Standing::Paused => false,
            };
            if stands && self.may_propose() {
                self.decide();
            }
            let open = stands && self.may_propose();
            let wake = self.next_wake();
            tokio::select! {
                biased;
                () = self.outer.shutdown.cancelled() => return End::Shutdown,
                changed = leadership.changed() => if changed.is_err() { return End::Shutdown },
                Some(result) = self.in_flight.next() => if let Err(error) = result {
                    self.log_end(&error);
                    if !breaks(Rule::SkipGuard) && !breaks(Rule::HeartbeatWithoutQuorum) {
                        return End::Refused;
                    }
                },
                Ok(()) = self.flushed.changed(), if !open => {}
                Some(intake) = self.outer.nodes.recv(), if open => self.take(intake),
                Some(intake) = self.outer.clients.recv(), if open || !stands => self.answer(intake, stands),
                () = G::pause(clock::until::<G>(wake)), if open => {}
                // Goes on with the pass, after whatever was ready above.
                () = tokio::task::yield_now(), if open && self.interrupted => {}
            }
        }
    }

    fn log_end(&self, error: &ProposeError) {
        match error {
            ProposeError::NotLeader(_) | ProposeError::Unknown | ProposeError::Shutdown => {
                tracing::info!(%error, "a round was not acknowledged");
            }
            ProposeError::Overloaded | ProposeError::TooLarge { .. } => {
                tracing::error!(%error, "a round within its bounds was refused: a bug");
            }
        }
    }

    /// Whether the flush of the last round is over, so that what waits makes the next one.
    fn may_propose(&self) -> bool {
        let flushed = self.flushed.borrow().app_entries_flushed.saturating_sub(self.flushed_before);
        self.in_flight.is_empty() || (self.in_flight.len() < ROUNDS_IN_FLIGHT_MAX && flushed >= self.proposed)
    }

    /// Takes what waits in the lanes, adds what time and capacity bring about, and proposes.
    fn decide(&mut self) {
        self.speculation.set_now(self.clock.at(clock::now::<G>(), instant::<G>()));
        for turn in 1..=COMMANDS_PER_ROUND_MAX {
            if self.speculation.round_bytes() >= ROUND_BYTES_SOFT {
                break;
            }
            let DecisionLoop { nodes, clients, .. } = &mut *self.outer;
            let next = if turn % CLIENT_TURN == 0 {
                clients.try_recv().or_else(|_| nodes.try_recv())
            } else {
                nodes.try_recv().or_else(|_| clients.try_recv())
            };
            let Ok(intake) = next else { break };
            self.take(intake);
        }
        self.recover();
        self.take_expired();
        if self.housekeeping_is_due() {
            let before = self.speculation.last_index();
            self.released = self.speculation.now();
            tick(&mut self.speculation);
            let pause = if self.speculation.last_index() == before {
                HOUSEKEEPING_INTERVAL
            } else {
                HOUSEKEEPING_PAUSE
            };
            self.housekeeping = instant::<G>() + pause;
        }
        if self.speculation.wants_schedule() {
            let silence = Duration::from_millis(self.speculation.state().parameters().silence_ms());
            self.speculation.set_silent(self.outer.liveness.silent(instant::<G>(), silence, SILENT_MAX));
            let mut budget = Budget::new(VISITS_PER_ROUND);
            schedule(&mut self.speculation, &mut budget);
            // The pass was interrupted, or something that concerns those it had passed came in between.
            self.interrupted = self.speculation.wants_schedule();
        }
        self.speculation.push_digest_if_due();
        self.propose();
    }

    /// Begins the generation of this replica's folder once nobody can hold anything of the one before.
    fn recover(&mut self) {
        if self.recover_at.is_none_or(|at| at > instant::<G>()) {
            return;
        }
        self.recover_at = None;
        let generation = self.outer.founding.generation;
        handle(&mut self.speculation, &Command::Recover { generation })
            .expect("the generation that is due is never refused");
        tracing::warn!(generation, log_index = %self.speculation.last_index(), "the cluster begins a new generation");
    }

    /// Ends sessions that have run out, as many as one round says; the others are over as well, and
    /// are said in the rounds after it.
    fn take_expired(&mut self) {
        let now = instant::<G>();
        while self.speculation.round_bytes() < ROUND_BYTES_LOST {
            let Some((node, incarnation)) = self.outer.liveness.next_expired(now) else { return };
            tracing::warn!(%node, incarnation, "session ran out");
            handle(&mut self.speculation, &Command::SessionOver { node, incarnation })
                .expect("the end of a session is never refused");
        }
    }

    /// Without a quorum nothing can be promised, and a client may find another leader. A node's report
    /// waits instead: to refuse it would end its session for a pause of a moment.
    fn answer(&mut self, intake: Intake, stands: bool) {
        if stands { self.take(intake) } else { refuse(intake) }
    }

    fn take(&mut self, intake: Intake) {
        self.speculation.set_now(self.clock.at(clock::now::<G>(), instant::<G>()));
        let answer = handle(&mut self.speculation, &intake.command);
        if let Ok(Answer::Registered { node, incarnation, .. }) = answer {
            self.outer.liveness.registered(instant::<G>(), node, incarnation);
        }
        // A refusal too was decided on speculative state: it is told once that state is real.
        let at = answer.as_ref().map_or_else(|_| self.speculation.last_index(), muster_decider::Answer::at);
        self.outer.shared.waiters.add(at, self.speculation.leadership(), intake.reply, answer);
    }

    fn propose(&mut self) {
        let Some(round) = self.speculation.take_round() else { return };
        let payload = Bytes::from(encode_round(&round));
        tracing::debug!(first_index = %round.first_index, decisions = round.decisions.len(), bytes = payload.len(), "round");
        // Before it is proposed: it may be applied before this goes on.
        self.outer.shared.own_rounds.keep(payload.clone(), round);
        self.in_flight.push(self.outer.consensus.propose(payload, self.ours));
        self.proposed += 1;
    }

    fn housekeeping_is_due(&self) -> bool {
        let overdue = self.next_due().is_some_and(|due| due <= self.speculation.now());
        overdue || self.housekeeping <= instant::<G>()
    }

    /// When the next job has run for as long as it may, or may start: one that was not to start before, or that
    /// waits after a failure.
    fn next_due(&self) -> Option<LogTime> {
        // Nothing is stopped or released before leases of the life before are over.
        if self.speculation.is_recovering() {
            return None;
        }
        let state = self.speculation.state();
        let limit = state.run_limits().next().map(|(limit, _)| limit);
        // Many that come due one after the other are looked at together.
        let earliest = LogTime(self.released.0.saturating_add(RELEASES_APART_MS));
        let start = state.not_before_after(self.released).map(|time| time.max(earliest));
        limit.into_iter().chain(start).min()
    }

    /// When something is due without anybody asking.
    fn next_wake(&self) -> Instant {
        let now = instant::<G>();
        let mut wake = self.housekeeping;
        if let Some(deadline) = self.outer.liveness.next_deadline() {
            wake = wake.min(deadline);
        }
        if let Some(at) = self.recover_at {
            wake = wake.min(at);
        }
        if let Some(due) = self.next_due() {
            wake = wake.min(now + Duration::from_millis(due.since_ms(self.speculation.now())));
        }
        wake
    }
}
