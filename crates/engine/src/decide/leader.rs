//! The decision loop: one serial loop, running only while this replica leads.
//!
//! A round is made of what arrived while the flush of the round before ran: commands wait in their
//! lanes until the local log has flushed what was proposed last (or everything in flight has
//! committed), are then decided together, and go out as one entry. Several rounds may be in flight
//! to the quorum. Nodes have a separate lane, so that submissions never delay a report.

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use muster_consensus::{Consensus, Environment, LeadershipView, Proposal, ProposeError};
use muster_decider::{
    Answer, BootstrapConfig, Command, EncodedRound, Pass, ScheduleOrder, Speculation, TICK_STEPS,
    planned_images, schedule, settle_all,
};
use muster_planner::Budget;
use muster_planted::{Rule, breaks};
use muster_state::NodeStatus;
use muster_types::{Leadership, LogIndex, LogTime, NodeId, Refusal, RefusalCode, ScheduleKey};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::apply::pending_replies::Reply;
use crate::apply::proposed_rounds::RoundTimes;
use crate::apply::replicated::Shared;
use crate::clock::{self, LogClock, instant};
use crate::decide::containment::{Attempt, Faults, Handled, LeftOut};
use crate::decide::schedules;
use crate::log_lines;
use crate::sessions::liveness::Liveness;
use crate::sessions::registry::Sessions;
use crate::sessions::stragglers::StragglerDetector;

/// Rounds on their way to the quorum at once: covers a round trip of 140 ms at 2 ms a round.
const ROUNDS_IN_FLIGHT_MAX: usize = 64;
/// Commands decided into one round.
const COMMANDS_PER_ROUND_MAX: usize = 1_024;
/// Bytes at which a round takes no further command.
const ROUND_BYTES_SOFT: usize = 32 << 10;
/// Planning work in one round, in visits: some tens of milliseconds.
const VISITS_PER_ROUND: u64 = 200_000;
/// Bytes at which a round takes no further lost node. What follows from a loss is bounded by the
/// decider; the losses themselves are bounded here: a whole fleet can fall silent at once.
const ROUND_BYTES_LOST: usize = 64 << 10;
/// The most silent nodes that a pass over the queue avoids. Beyond that number, those whose leases run out last are used
/// like healthy ones.
const SILENT_MAX: usize = 4_096;
/// Of every group of this many commands one is a client's, however many the nodes have: a fleet that
/// reports without end must not shut out those who would cancel its work.
const CLIENT_TURN: usize = 4;
/// Time between two looks for work that time brings about, such as history that has expired.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(10);
/// The same while there was something to do, or something was left to look at: one look does a bounded part of it.
const HOUSEKEEPING_PAUSE: Duration = Duration::from_millis(100);

/// A step that met a broken invariant is left out for so long.
const LEFT_OUT: Duration = Duration::from_secs(30);
/// The step that plans, by its name among those that are left out.
const PLANNING: &str = "planning";
/// The same of the one that finds which images hosts will need.
const IMAGES: &str = "images";
/// How long a schedule whose moments met a broken invariant is left out, by log time.
const SCHEDULE_LEFT_OUT_MS: u64 = 30_000;

/// Least time between two looks for jobs that may start now.
const RELEASES_APART_MS: u64 = 50;

/// How often the speculation goes on with the applied state, where nothing is in flight.
const SHARED_EVERY: Duration = Duration::from_secs(1);
/// And under load that never ends: then nothing is proposed until everything in flight is applied.
const SHARED_AT_LEAST_EVERY: Duration = Duration::from_secs(60);

/// Clocks of replicas that are no further apart than this agree.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(30);

/// Between a refusal by consensus and the next attempt at the barrier.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_millis(20);

/// A command and where its answer goes.
pub(crate) struct Intake {
    pub(crate) command: Command,
    pub(crate) reply: Reply,
    /// Its share of the memory that waiting commands may take.
    pub(crate) _memory: Option<OwnedSemaphorePermit>,
}

pub(crate) struct DecisionLoop<G: Environment> {
    pub(crate) consensus: Consensus<G>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) stragglers: Arc<StragglerDetector>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) contain_faults: bool,
    pub(crate) founding: BootstrapConfig,
    pub(crate) clients: mpsc::Receiver<Intake>,
    pub(crate) nodes: mpsc::Receiver<Intake>,
    pub(crate) shutdown: CancellationToken,
}

/// What a view says about a leadership of this replica's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeadershipStatus {
    Leads,
    /// A quorum has been silent for too long: decide nothing until it is heard again or another
    /// replica leads.
    Paused,
    Lost,
}

fn leadership_status(view: &LeadershipView, mine: Leadership) -> LeadershipStatus {
    match view.mine {
        Some(other) if other != mine => LeadershipStatus::Lost,
        Some(_) => LeadershipStatus::Leads,
        None if view.term > mine.term => LeadershipStatus::Lost,
        None if view.leader.as_ref().is_some_and(|leader| leader.replica != mine.replica) => {
            LeadershipStatus::Lost
        }
        None => LeadershipStatus::Paused,
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

impl<G: Environment> DecisionLoop<G> {
    pub(crate) async fn run(mut self) {
        let mut leadership = self.consensus.leadership();
        loop {
            let mine = leadership.borrow_and_update().mine;
            let Some(mine) = mine else {
                if self.follow(&mut leadership).await {
                    return;
                }
                continue;
            };
            let end = self.lead(mine, &mut leadership).await;
            self.liveness.end();
            self.stragglers.forget();
            self.sessions.close_all();
            self.shared.pending_replies.fail(mine);
            self.shared.proposed_rounds.clear();
            tracing::info!(term = mine.term, ?end, "leadership ended");
            match end {
                End::Shutdown => return,
                End::Lost => {}
                // The leadership may still stand; its barrier shows that a moment later.
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
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => return End::Shutdown,
            () = lost(leadership, mine) => return End::Lost,
            passed = self.consensus.barrier(mine) => if passed.is_err() { return End::Refused },
        }
        let state = muster_state::State::clone(&self.shared.view.load());
        if state.leadership().is_some_and(|current| current > mine) {
            // Passed, and deposed since: the next leader's records are applied here already.
            return End::Refused;
        }
        let mut clock = LogClock::new(state.log_time(), instant::<G>());
        let agrees = || self.consensus.clock_agrees(CLOCKS_APART_MAX);
        let now = clock.at(clock::now::<G>(), instant::<G>(), agrees);
        let speculation = Speculation::begin(state, mine, now, self.founding);
        let mut term = Term {
            flushed: self.consensus.flush_progress(),
            proposed: 0,
            flushed_before: 0,
            in_flight: FuturesUnordered::new(),
            interrupted: false,
            housekeeping: instant::<G>(),
            released: LogTime(0),
            schedules_at: LogTime(0),
            schedules_left_out: BTreeMap::new(),
            recover_at: None,
            attempt: Attempt::new(self.contain_faults),
            left_out: LeftOut::default(),
            shared_at: instant::<G>(),
            spent: Duration::ZERO,
            speculation,
            clock,
            outer: self,
        };
        term.flushed_before = term.flushed.borrow().app_entries_flushed;
        term.begin();
        let end = term.run(leadership).await;
        term.outer.shared.kept.store(Arc::default());
        for Handled { reply, .. } in term.attempt.take() {
            // Never proposed, so nothing was changed. The asker may have gone; then nobody is left to tell.
            let _ = reply.send(Err(not_leader()));
        }
        end
    }
}

/// Waits until the leadership is not `mine` any more.
async fn lost(leadership: &mut watch::Receiver<LeadershipView>, mine: Leadership) {
    loop {
        let status = leadership_status(&leadership.borrow_and_update(), mine);
        if status == LeadershipStatus::Lost || leadership.changed().await.is_err() {
            return;
        }
    }
}

fn refuse(intake: Intake) {
    // The asker may have gone; then nobody is left to tell.
    let _ = intake.reply.send(Err(not_leader()));
}

/// One leadership at work.
struct Term<'a, G: Environment> {
    outer: &'a mut DecisionLoop<G>,
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
    /// When to look at schedules again.
    schedules_at: LogTime,
    /// Schedules that met a broken invariant, and until when each is left out: no more than there are schedules.
    schedules_left_out: BTreeMap<ScheduleKey, LogTime>,
    /// When every lease of the generation before has run out; none while there is nothing to recover.
    recover_at: Option<Instant>,
    /// The round being made.
    attempt: Attempt,
    left_out: LeftOut,
    /// When the speculation and the applied state were last one in memory.
    shared_at: Instant,
    /// Time that went into what will be the next round.
    spent: Duration,
}

impl<G: Environment> Term<'_, G> {
    fn begin(&mut self) {
        if let Err(why) = self.attempt.step(&mut self.speculation, settle_all) {
            self.outer.faults.note_step("settling", &why);
        }
        let parameters = self.speculation.state().parameters();
        let lease = Duration::from_millis(parameters.lease_ttl_ms + parameters.lease_margin_ms);
        // A recovered state does not say who holds what: all of it is over one full term from now, at once.
        let is_recovering = self.speculation.is_recovering();
        self.recover_at = is_recovering.then(|| instant::<G>() + lease);
        let nodes = self.speculation.state().nodes().iter();
        let mine = self.speculation.leadership();
        let (now, contacts) = (instant::<G>(), self.outer.shared.contacts());
        // Leaders before that never heard a node do not prolong its lease.
        let heard = |node| contacts.last_before(mine, node).map_or(now, |at| Instant::from_std(at).min(now));
        let up = nodes
            .filter(|(_, row)| row.status == NodeStatus::Up && !is_recovering)
            .map(|(id, row)| (*id, row.incarnation, heard(*id)));
        self.outer.liveness.begin(mine, &parameters, up);
        drop(contacts);
        tracing::info!(term = mine.term, log_index = %self.speculation.last_index(), "leadership begins");
    }

    async fn run(&mut self, leadership: &mut watch::Receiver<LeadershipView>) -> End {
        let mine = self.speculation.leadership();
        loop {
            let view = leadership.borrow_and_update().clone();
            let stands = match leadership_status(&view, mine) {
                LeadershipStatus::Lost if breaks(Rule::SkipGuard) => view.mine.is_some(),
                LeadershipStatus::Lost => return End::Lost,
                LeadershipStatus::Leads => true,
                LeadershipStatus::Paused => false,
            };
            self.share();
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
                Some(intake) = self.outer.nodes.recv(), if open => self.take_first(intake),
                Some(intake) = self.outer.clients.recv(), if open || !stands => self.answer(intake, stands),
                () = self.outer.liveness.returned() => self.speculation.want_schedule(),
                () = G::pause(clock::until::<G>(wake)), if open => {}
                // Goes on with the pass, after whatever was ready above.
                () = tokio::task::yield_now(), if open && self.interrupted => {}
            }
        }
    }

    /// Has the speculation go on with the applied state while nothing is between them. What both would fold by themselves
    /// for the whole of a leadership is twice in memory.
    fn share(&mut self) {
        let now = instant::<G>();
        if self.in_flight.is_empty() && now >= self.shared_at + SHARED_EVERY {
            let applied = self.outer.shared.view.load();
            if self.speculation.adopt(&applied) || now >= self.shared_at + SHARED_AT_LEAST_EVERY {
                self.shared_at = now;
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
        // Once in a while, for one round trip: see `share`.
        if !self.in_flight.is_empty() && instant::<G>() >= self.shared_at + SHARED_AT_LEAST_EVERY {
            return false;
        }
        let flushed = self.flushed.borrow().app_entries_flushed.saturating_sub(self.flushed_before);
        self.in_flight.is_empty() || (self.in_flight.len() < ROUNDS_IN_FLIGHT_MAX && flushed >= self.proposed)
    }

    /// Reads the clock for the round being made.
    fn read_clock(&mut self) {
        let now = instant::<G>();
        let agrees = || self.outer.consensus.clock_agrees(CLOCKS_APART_MAX);
        self.speculation.set_now(self.clock.at(clock::now::<G>(), now, agrees));
    }

    /// Takes what waits in the lanes, adds what time and capacity bring about, and proposes.
    fn decide(&mut self) {
        let begun = instant::<G>();
        self.read_clock();
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
        self.run_schedules();
        self.keep_house();
        self.plan();
        self.speculation.push_digest_if_due();
        self.propose(begun);
    }

    /// What time brings about, when it is time to look.
    fn keep_house(&mut self) {
        if !self.housekeeping_is_due() {
            return;
        }
        let now = instant::<G>();
        let before = self.speculation.last_index();
        self.released = self.speculation.now();
        self.speculation.set_steady(self.clock.steady(now));
        let silent = self.silent(now);
        self.speculation.set_silent(silent);
        for step in &TICK_STEPS {
            if self.left_out.holds(step.name, now) {
                continue;
            }
            let ran = self.attempt.step(&mut self.speculation, |speculation| {
                step.run(speculation);
                #[cfg(test)]
                crate::tests::poison_step(step.name, speculation.state());
            });
            if let Err(why) = ran {
                self.outer.faults.note_step(step.name, &why);
                self.left_out.until(step.name, now + LEFT_OUT);
                // The others are taken once more with the next round.
                self.housekeeping = now;
                return;
            }
        }
        let did_something = self.speculation.last_index() != before;
        let goes_on = did_something || self.speculation.has_more_due();
        let pause = if goes_on { HOUSEKEEPING_PAUSE } else { HOUSEKEEPING_INTERVAL };
        self.housekeeping = now + pause;
    }

    /// Carries out schedules whose moments have come, and finds the next moments of those that were set.
    fn run_schedules(&mut self) {
        let now = self.speculation.now();
        if self.schedules_at > now || self.speculation.is_recovering() {
            return;
        }
        self.schedules_left_out.retain(|_, until| *until > now);
        let left_out = &self.schedules_left_out;
        let (keys, look) = schedules::due(self.speculation.state(), now, |key| left_out.contains_key(key));
        self.schedules_at = left_out.values().copied().min().map_or(look, |until| look.min(until));
        for key in keys {
            if self.speculation.round_bytes() >= ROUND_BYTES_SOFT {
                // The others with the next round.
                self.schedules_at = now;
                return;
            }
            // One step for each, so that one whose moments cannot be found delays no other.
            let found = self.attempt.step(&mut self.speculation, |speculation| {
                #[cfg(test)]
                crate::tests::poison_schedule(&key);
                schedules::command_for(speculation.state(), &key, now)
            });
            match found {
                Ok(None) => {}
                Ok(Some((command, next))) => {
                    self.schedules_at = next.map_or(self.schedules_at, |next| next.min(self.schedules_at));
                    let before = self.speculation.last_index();
                    let is_undone = self.carry_out(command, oneshot::channel().0).is_err();
                    // What steps of this round had added is undone with it, so that the log may be shorter than before.
                    if is_undone || self.speculation.last_index() <= before {
                        // The same would be found at once again, in the place of others.
                        self.leave_schedule_out(key, now);
                    }
                }
                Err(why) => {
                    self.outer.faults.note_schedule(&key, &why);
                    self.leave_schedule_out(key, now);
                }
            }
        }
    }

    /// A schedule for which nothing could be done is looked at again after a while.
    fn leave_schedule_out(&mut self, key: ScheduleKey, now: LogTime) {
        let until = now.plus_ms(SCHEDULE_LEFT_OUT_MS);
        self.schedules_at = self.schedules_at.min(until);
        self.schedules_left_out.insert(key, until);
    }

    /// A moment that has come before its schedule is changed is one of the schedule as it was: what is set waits for later ones.
    fn run_before_change(&mut self, order: &ScheduleOrder) {
        let now = self.speculation.now();
        if order.is_new || self.speculation.is_recovering() {
            return;
        }
        let due = self.attempt.step(&mut self.speculation, |speculation| {
            schedules::due_of(speculation.state(), &order.schedule.key, now)
        });
        match due {
            Ok(None) => {}
            Ok(Some(due)) => {
                self.carry_out(due, oneshot::channel().0);
            }
            // It is changed all the same: what it is then may be what mends it.
            Err(why) => self.outer.faults.note_schedule(&order.schedule.key, &why),
        }
    }

    /// Nodes whose leases stand and that were not heard of for a while.
    fn silent(&self, now: Instant) -> Vec<NodeId> {
        let silence = Duration::from_millis(self.speculation.state().parameters().silence_ms());
        self.outer.liveness.silent(now, silence, SILENT_MAX)
    }

    /// A pass over the queue, where something has changed for those who wait.
    fn plan(&mut self) {
        let now = instant::<G>();
        self.interrupted = false;
        if !self.speculation.wants_schedule() || self.left_out.holds(PLANNING, now) {
            return;
        }
        let silent = self.silent(now);
        let lapsed = self.outer.liveness.lapsed(now, SILENT_MAX);
        let held = self.outer.sessions.images.held();
        let mut is_complete = false;
        let planned = self.attempt.step(&mut self.speculation, |speculation| {
            speculation.set_silent(silent);
            speculation.set_lapsed(lapsed);
            speculation.set_images(held);
            let mut budget = Budget::new(VISITS_PER_ROUND);
            is_complete = matches!(schedule(speculation, &mut budget), Pass::Complete { .. });
            #[cfg(test)]
            crate::tests::poison_step(PLANNING, speculation.state());
        });
        match planned {
            // The pass was interrupted, or something that concerns those it had passed came in between.
            Ok(()) => {
                self.interrupted = self.speculation.wants_schedule();
                if is_complete {
                    self.publish_kept();
                }
            }
            Err(why) => {
                self.outer.faults.note_step(PLANNING, &why);
                self.left_out.until(PLANNING, now + LEFT_OUT);
                // Whatever time brought about before is undone as well.
                self.housekeeping = now;
            }
        }
    }

    /// Shows what the pass keeps for later, and has hosts fetch ahead what they will need then.
    fn publish_kept(&mut self) {
        let now = instant::<G>();
        let mut kept = self.speculation.kept_reservations().clone();
        if !self.left_out.holds(IMAGES, now) {
            let planned = self.attempt.step(&mut self.speculation, |speculation| {
                #[cfg(test)]
                crate::tests::poison_step(IMAGES, speculation.state());
                planned_images(speculation.state(), &kept)
            });
            match planned {
                Ok(planned) => self.outer.sessions.images.plan(planned),
                Err(why) => {
                    self.outer.faults.note_step(IMAGES, &why);
                    self.left_out.until(IMAGES, now + LEFT_OUT);
                    // The pass is undone with it, and made once more.
                    self.housekeeping = now;
                    return;
                }
            }
        }
        kept.set_images(self.outer.sessions.images.held());
        self.outer.shared.kept.store(Arc::new(kept));
    }

    /// Begins the generation of this replica's directory once nobody can hold anything of the one before.
    fn recover(&mut self) {
        if self.recover_at.is_none_or(|at| at > instant::<G>()) {
            return;
        }
        self.recover_at = None;
        let generation = self.outer.founding.generation;
        let command = Command::Recover { generation };
        self.carry_out(command, oneshot::channel().0);
        tracing::warn!(generation, log_index = %self.speculation.last_index(), "the cluster begins a new generation");
    }

    /// Ends sessions that have run out, as many as one round takes; the others are over as well, and
    /// the rounds after it report them.
    fn take_expired(&mut self) {
        let now = instant::<G>();
        while self.speculation.round_bytes() < ROUND_BYTES_LOST {
            let Some((node, incarnation)) = self.outer.liveness.next_expired(now) else { return };
            tracing::warn!(%node, incarnation, "session ran out");
            self.carry_out(Command::SessionOver { node, incarnation }, oneshot::channel().0);
        }
    }

    /// Without a quorum nothing can be promised, and a client may find another leader. A node's report
    /// waits instead: to refuse it would end its session for a pause of a moment.
    fn answer(&mut self, intake: Intake, stands: bool) {
        if stands { self.take_first(intake) } else { refuse(intake) }
    }

    /// The first command of a round, which is decided with what arrives meanwhile.
    fn take_first(&mut self, intake: Intake) {
        let begun = instant::<G>();
        self.take(intake);
        self.spent += instant::<G>() - begun;
    }

    fn take(&mut self, intake: Intake) {
        self.read_clock();
        let Intake { command, reply, .. } = intake;
        if matches!(command, Command::SetSchedule(_) | Command::ControlSchedule(_)) {
            self.schedules_at = LogTime(0);
        }
        let mut changed = None;
        if let Command::SetSchedule(order) = &command {
            self.run_before_change(order);
            changed = Some(order.schedule.key.clone());
        }
        let answer = self.carry_out(command, reply);
        let is_done = answer.is_ok();
        if let Ok(Answer::Registered { node, incarnation, .. }) = *answer {
            self.outer.liveness.registered(instant::<G>(), node, incarnation);
        }
        if let Some(key) = changed.filter(|_| is_done) {
            // What it is now may have moments that can be found.
            self.schedules_left_out.remove(&key);
        }
    }

    /// Carries out a command; it is answered when the round it is in is known.
    fn carry_out(&mut self, command: Command, reply: Reply) -> &Result<Answer, Refusal> {
        self.attempt.command(&mut self.speculation, &self.outer.faults, command, reply)
    }

    /// Proposes what was decided since `begun`, and before that of the same round.
    fn propose(&mut self, begun: Instant) {
        let handled = self.attempt.take();
        let rounds = self.speculation.take_encoded();
        self.promise(handled, rounds.first().map(|first| first.round.first_index));
        let now = instant::<G>();
        let spent = std::mem::take(&mut self.spent) + (now - begun);
        if let Some(observer) = self.outer.shared.timed_by.get().filter(|_| !rounds.is_empty()) {
            observer.round_decided(spent);
        }
        let times = RoundTimes {
            begun: (now.checked_sub(spent).unwrap_or(begun)).into_std(),
            proposed: now.into_std(),
        };
        for EncodedRound { round, bytes } in rounds {
            let payload = Bytes::from(bytes);
            tracing::debug!(log_index = %round.first_index, term = round.term, decisions = round.decisions.len(), bytes = payload.len(), "round");
            log_lines::of_round(&round);
            // Before it is proposed: it may be applied before this goes on.
            self.outer.shared.proposed_rounds.keep(payload.clone(), round, times);
            self.in_flight.push(self.outer.consensus.propose(payload, self.speculation.leadership()));
            self.proposed += 1;
        }
    }

    /// Has the answers wait for what proves them. A record of this round that is applied proves its answer. A refusal,
    /// and an answer that needed no record, were decided on what this leader knew, and another may lead by now:
    /// they wait for the end of this round, and without one for a quorum that confirms this leadership.
    fn promise(&self, handled: Vec<Handled>, first: Option<LogIndex>) {
        let (mine, last) = (self.speculation.leadership(), self.speculation.last_index());
        let mut unproved = Vec::new();
        for Handled { reply, answer, .. } in handled {
            let at = answer.as_ref().map_or(LogIndex::ZERO, Answer::at);
            match first {
                Some(first) => {
                    let at = if at < first { last } else { at };
                    self.outer.shared.pending_replies.add(at, mine, reply, answer);
                }
                None if reply.is_closed() => {}
                None => unproved.push((reply, answer)),
            }
        }
        if unproved.is_empty() {
            return;
        }
        let (consensus, shared) = (self.outer.consensus.clone(), Arc::clone(&self.outer.shared));
        G::detach(async move {
            let confirmed = consensus.confirm_leadership().await;
            let stands = confirmed.is_ok_and(|point| {
                point.leadership.term == mine.term && point.leadership.replica == mine.replica
            });
            for (reply, answer) in unproved {
                if stands {
                    shared.pending_replies.add(last, mine, reply, answer);
                } else {
                    // The asker may have gone; then nobody is left to tell.
                    let _ = reply.send(Err(not_leader()));
                }
            }
        });
    }

    fn housekeeping_is_due(&self) -> bool {
        let overdue = self.next_due().is_some_and(|due| due <= self.speculation.now());
        overdue || self.housekeeping <= instant::<G>()
    }

    /// When the next job has run for as long as it may, takes its fallback, or may start: one that was not to start
    /// before, or that waits after a failure; or when the next grant of quota or request for one is over.
    fn next_due(&self) -> Option<LogTime> {
        // Nothing is stopped or released before leases of the previous generation are over.
        if self.speculation.is_recovering() {
            return None;
        }
        let state = self.speculation.state();
        let limit = state.run_limits().next().map(|(limit, _)| limit);
        // Many that come due one after the other are looked at together.
        let earliest = LogTime(self.released.0.saturating_add(RELEASES_APART_MS));
        let start = state.not_before_after(self.released).into_iter();
        let start = start.chain(self.speculation.next_fallback(self.released));
        let start = start.chain(state.next_grant_end()).min();
        limit.into_iter().chain(start.map(|time| time.max(earliest))).min()
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
        if let Some(at) = self.left_out.next(now) {
            wake = wake.min(at);
        }
        if self.schedules_at < LogTime(u64::MAX) && !self.speculation.is_recovering() {
            let wait_ms = self.schedules_at.since_ms(self.speculation.now());
            wake = wake.min(now + Duration::from_millis(wait_ms));
        }
        if let Some(due) = self.next_due() {
            wake = wake.min(now + Duration::from_millis(due.since_ms(self.speculation.now())));
        }
        wake
    }
}
