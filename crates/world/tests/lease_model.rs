//! A model of a node's lease over several leaders, and of its fence: the agent's count (`crates/agent/src/rules/term.rs`), the
//! leader's (`crates/engine/src/sessions/liveness.rs`), and what a new leader takes over (`apply/contacts.rs`).
//!
//! The checker goes through every order of heartbeats, answers, elections, losses and starts within the bounds of a
//! [`Scope`]. A message may arrive at any later time or never. The agent's clock may fall behind that of the leaders by as much as
//! a margin allows. What an answer is worth is asked of the agent's own `renewed`, until when a worker may run of its `deadline_of`,
//! and whether a session stands or is over of the engine's own `Liveness`.
//!
//! **Invariant** that is proved within the bounds: when a leader declares a node lost, and so may place its job elsewhere,
//! no worker of the attempt runs there, and none starts there later.
//!
//! For each rule that this rests on, the same model without the rule has a counterexample.

use std::time::Duration;

use muster_agent::rules::{BootTime, LeaseTerm, deadline_of, renewed};
use muster_engine::Liveness;
use muster_types::{Leadership, NodeId, Parameters, ReplicaId};
use stateright::{Checker, HasDiscoveries, Model as _, Property};
use tokio::time::Instant;

/// A step of time, in what the product counts in.
const TICK_MS: u64 = 1_000;
const TICK: Duration = Duration::from_millis(TICK_MS);
const TTL: u8 = 3;
const MARGIN: u8 = 2;
/// What the agent takes to stop a worker, by its own clock.
const STOP: u8 = 1;
/// How far the agent's clock may fall behind, within the margin in addition to the stop.
const SLOW: u8 = 1;
const NODE: NodeId = NodeId(1);

/// A rule of the product that a variant of the model does without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// `renewed`: a lease counts from when the heartbeat was sent, not from when its answer arrives.
    CountsFromSending,
    /// `Engine`: a leader answers a heartbeat after a quorum has confirmed that it leads.
    QuorumConfirms,
    /// `SessionResumed`: a leader answers no heartbeat before the log says that this leadership heard the node.
    ContactIsRecorded,
    /// `Liveness`: a session ends a margin after the lease.
    MarginIsKept,
    /// A start order belongs to the session that it was sent in.
    OrderIsOfItsSession,
}

/// How far the checker goes.
#[derive(Clone, Copy, Debug)]
struct Scope {
    ticks: u8,
    leaderships: u8,
    beats: usize,
}

#[derive(Clone, Debug)]
struct Model {
    scope: Scope,
    without: Option<Rule>,
    /// The leaders' clocks begin here.
    origin: Instant,
}

/// A heartbeat on its way to a leader, or its answer on the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Beat {
    session: u8,
    /// By the agent's clock.
    sent: u8,
    answered: bool,
}

/// A leadership: when it began, and until when it counts the node's session to stand. Not over for itself before it learns so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Leader {
    began: u8,
    session: u8,
    deadline: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    epoch: u8,
    deadline: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    time: u8,
    agent_time: u8,
    slow: u8,
    /// Every leadership so far; the last one is the current one, the others may not know.
    leaders: Vec<Leader>,
    /// By the log: the last leadership that heard the node, its session, and whether it was declared lost.
    heard: u8,
    session: u8,
    lost: bool,
    /// The job of the first session may run elsewhere, for good.
    elsewhere: bool,
    /// The agent's own session and lease.
    own_session: u8,
    lease: Option<Lease>,
    /// When the lease of the epoch before ended, by the agent's clock.
    lapsed_at: u8,
    beats: Vec<Beat>,
    /// A start order of the one attempt: the session that it was sent in.
    order: Option<u8>,
    /// The epoch of the worker that runs.
    worker: Option<u8>,
    overlap: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Time passes; by the agent's clock so much.
    Tick(u8),
    SendBeat,
    /// The heartbeat at this place reaches this leadership, which answers it.
    Answer(usize, usize),
    /// The answer at this place reaches the agent.
    Hear(usize),
    Start,
    Stop,
    Elect,
    /// The log says that the current leadership hears the node.
    Resume,
    DeclareLost,
    /// The agent opens another session after it was declared lost.
    Register,
}

impl Model {
    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn at(&self, time: u8) -> Instant {
        self.origin + TICK * u32::from(time)
    }

    fn leadership(index: usize) -> Leadership {
        Leadership { term: index as u64 + 1, replica: ReplicaId(1) }
    }

    /// The engine's own count of a leader, as it stands.
    fn liveness(&self, index: usize, leader: Leader) -> Liveness {
        let margin = if self.has(Rule::MarginIsKept) { MARGIN } else { 0 };
        let parameters = Parameters {
            lease_ttl_ms: u64::from(TTL) * TICK_MS,
            lease_margin_ms: u64::from(margin) * TICK_MS,
            ..Parameters::DEFAULT
        };
        let liveness = Liveness::default();
        let heard = self.at(leader.deadline) - TICK * u32::from(TTL + margin);
        liveness.begin(
            Model::leadership(index),
            &parameters,
            [(NODE, u32::from(leader.session), heard)].into_iter(),
        );
        liveness
    }

    fn term(&self) -> u8 {
        TTL + if self.has(Rule::MarginIsKept) { MARGIN } else { 0 }
    }

    /// A leader answers a heartbeat, if its session stands.
    fn answer(&self, state: &mut State, beat: usize, index: usize) -> Option<()> {
        let (current, sent) = (state.leaders.len() - 1, *state.beats.get(beat)?);
        let confirmed = index == current || !self.has(Rule::QuorumConfirms);
        let recorded = usize::from(state.heard) >= index || !self.has(Rule::ContactIsRecorded);
        if sent.answered || !confirmed || !recorded || (index == current && state.lost) {
            return None;
        }
        let liveness = self.liveness(index, state.leaders[index]);
        let now = self.at(state.time);
        if !liveness.renew(now, Model::leadership(index), NODE, u32::from(sent.session)) {
            return None;
        }
        let left = liveness.remaining(now, NODE)?;
        state.leaders[index].deadline = state.time + (left.as_millis() / TICK.as_millis()) as u8;
        state.beats[beat].answered = true;
        Some(())
    }

    /// The agent makes a lease of an answer.
    fn hear(&self, state: &mut State, beat: usize) {
        let sent = state.beats.remove(beat);
        if sent.session != state.own_session {
            return;
        }
        let boot = |ticks: u8| BootTime(u64::from(ticks) * TICK.as_nanos() as u64);
        let ticks = |time: BootTime| (time.0 / TICK.as_nanos() as u64) as u8;
        let from = if self.has(Rule::CountsFromSending) { sent.sent } else { state.agent_time };
        let before =
            state.lease.map(|lease| LeaseTerm { epoch: lease.epoch.into(), deadline: boot(lease.deadline) });
        let ttl = TICK * u32::from(TTL);
        let (_, after) = renewed(before, 0, boot(from), ttl, boot(state.agent_time));
        if let Some(after) = after {
            if let Some(lease) = state.lease.filter(|lease| u64::from(lease.epoch) < after.epoch) {
                state.lapsed_at = lease.deadline;
            }
            state.lease = Some(Lease { epoch: after.epoch as u8, deadline: ticks(after.deadline) });
        }
    }

    /// When the worker has to be gone, by the agent's clock.
    fn gone_at(&self, state: &State) -> Option<u8> {
        let epoch = state.worker?;
        let lease = state.lease?;
        let term = LeaseTerm { epoch: lease.epoch.into(), deadline: BootTime(lease.deadline.into()) };
        // A worker of an epoch before had to be stopped when that epoch ended, whatever the lease is now.
        let deadline =
            deadline_of(Some(term), epoch.into()).map_or(state.lapsed_at, |deadline| deadline.0 as u8);
        Some(deadline + STOP)
    }

    /// A leadership begins: its session stands for a term from when the last one that heard the node can have answered it.
    fn elect(&self, state: &mut State) {
        let next = state.leaders.len();
        let after = usize::from(state.heard) + 1;
        let heard = if after < next { state.leaders[after].began } else { state.time };
        state.leaders.push(Leader {
            began: state.time,
            session: state.session,
            deadline: heard + self.term(),
        });
    }
}

impl stateright::Model for Model {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // The first leadership has just registered the node, and sent it the start order.
        vec![State {
            time: 0,
            agent_time: 0,
            slow: 0,
            leaders: vec![Leader { began: 0, session: 1, deadline: self.term() }],
            heard: 0,
            session: 1,
            lost: false,
            elsewhere: false,
            own_session: 1,
            lease: None,
            lapsed_at: 0,
            beats: Vec::new(),
            order: Some(1),
            worker: None,
            overlap: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What comes behind a loss matters only while something may still run or start.
        if state.overlap || (state.worker.is_none() && state.order.is_none()) {
            return;
        }
        let current = state.leaders.len() - 1;
        if state.time < self.scope.ticks {
            // A worker is gone before the moment at which it has to be.
            let may_pass = |step: u8| self.gone_at(state).is_none_or(|gone| state.agent_time + step < gone);
            actions.extend([1, 0].into_iter().filter(|step| may_pass(*step)).map(Action::Tick));
        }
        if state.beats.len() < self.scope.beats {
            actions.push(Action::SendBeat);
        }
        for (place, beat) in state.beats.iter().enumerate() {
            if beat.answered {
                actions.push(Action::Hear(place));
            } else {
                let first = if self.has(Rule::QuorumConfirms) { current } else { 0 };
                actions.extend((first..=current).map(|leader| Action::Answer(place, leader)));
            }
        }
        actions.extend([Action::Start, Action::Stop, Action::Resume, Action::DeclareLost, Action::Register]);
        if state.leaders.len() < usize::from(self.scope.leaderships) {
            actions.push(Action::Elect);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let current = state.leaders.len() - 1;
        match action {
            Action::Tick(step) => {
                state.time += 1;
                state.agent_time += step;
                state.slow += 1 - step;
                if state.slow > SLOW {
                    return None;
                }
            }
            Action::SendBeat => {
                let beat = Beat { session: state.own_session, sent: state.agent_time, answered: false };
                if state.beats.contains(&beat) {
                    return None;
                }
                state.beats.push(beat);
                state.beats.sort_unstable();
            }
            Action::Answer(beat, leader) => self.answer(&mut state, beat, leader)?,
            Action::Hear(beat) => self.hear(&mut state, beat),
            Action::Start => {
                let session = state.order?;
                let lease = state.lease.filter(|lease| state.agent_time < lease.deadline)?;
                if state.worker.is_some()
                    || session != state.own_session && self.has(Rule::OrderIsOfItsSession)
                {
                    return None;
                }
                (state.worker, state.order) = (Some(lease.epoch), None);
                state.overlap |= state.elsewhere;
            }
            Action::Stop => {
                // It is told to end at the deadline and may be gone at any time from then on.
                self.gone_at(&state).filter(|gone| state.agent_time + STOP >= *gone)?;
                state.worker = None;
            }
            Action::Elect => self.elect(&mut state),
            Action::Resume => {
                if usize::from(state.heard) == current {
                    return None;
                }
                state.heard = current as u8;
            }
            Action::DeclareLost => {
                let liveness = self.liveness(current, state.leaders[current]);
                if state.lost || liveness.next_expired(self.at(state.time)).is_none() {
                    return None;
                }
                (state.lost, state.elsewhere) = (true, true);
                state.overlap |= state.worker.is_some();
            }
            Action::Register => {
                if !state.lost || state.own_session > 1 {
                    return None;
                }
                (state.own_session, state.session) = (2, 2);
                state.heard = current as u8;
                state.leaders[current].session = 2;
                state.leaders[current].deadline = state.time + self.term();
                state.beats.clear();
                state.lost = false;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Model>> {
        vec![
            Property::always(ONE, |_: &Model, state: &State| !state.overlap),
            Property::sometimes("a lease ends its worker", |_, state: &State| {
                state.worker.is_none() && state.order.is_none() && !state.elsewhere
            }),
            Property::sometimes("a later leader declares the node lost", |_, state: &State| {
                state.lost && state.leaders.len() > 1
            }),
            Property::sometimes("a worker goes on under the next leader", |_, state: &State| {
                state.worker.is_some() && state.heard > 0
            }),
        ]
    }
}

const ONE: &str = "a node that is declared lost runs nothing of the attempt";

const SCOPE: Scope = Scope { ticks: 7, leaderships: 3, beats: 1 };

fn model(without: Option<Rule>) -> Model {
    Model { scope: SCOPE, without, origin: Instant::now() + TICK * 100 }
}

#[test]
fn a_lease_is_over_before_its_node_is_lost() {
    let checker = model(None).checker().spawn_bfs().join();
    println!("leases: {} states, {} steps deep", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

#[test]
fn without_any_one_rule_an_attempt_runs_on_a_lost_node() {
    for without in [
        Rule::CountsFromSending,
        Rule::QuorumConfirms,
        Rule::ContactIsRecorded,
        Rule::MarginIsKept,
        Rule::OrderIsOfItsSession,
    ] {
        let checker = model(Some(without)).checker();
        let checker = checker.finish_when(HasDiscoveries::AnyOf([ONE].into())).spawn_bfs().join();
        assert!(checker.discoveries().contains_key(ONE), "without {without:?} it still holds");
        println!("without {without:?}: {} states", checker.unique_state_count());
    }
}
