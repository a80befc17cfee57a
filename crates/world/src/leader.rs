//! The decision loop on the simulated runtime: step for step that of `muster-engine`, with the decider, the
//! liveness and the waiters of the product.

use crate::replica::{Replica, Standing, instant, local_of};
use crate::runtime::{JoinHandle, Sleep, event, local_ns, sleep_ms, spawn};
use crate::settings::PlantedBug;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use muster_decider::{Answer, Command, Founding, Speculation, handle, schedule, settle_all, tick};
use muster_engine::parts::{LogClock, Reply};
use muster_journal::encode_round;
use muster_planner::Budget;
use muster_state::{Leadership, NodeStatus};
use muster_store::{LeaderId, Payload};
use muster_types::{ClusterId, Refusal, RefusalCode};
use openraft::vote::RaftLeaderId;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

const ROUNDS_IN_FLIGHT_MAX: usize = 64;
const COMMANDS_PER_ROUND_MAX: usize = 1_024;
const ROUND_BYTES_SOFT: usize = 64 << 10;
const VISITS_PER_ROUND: u64 = 200_000;
const ROUND_BYTES_LOST: usize = 256 << 10;
const CLIENT_TURN: usize = 4;
const HOUSEKEEPING_MS: u64 = 2_000;
const HOUSEKEEPING_PAUSE_MS: u64 = 100;
const PAUSE_AFTER_REFUSAL_MS: u64 = 20;

/// A command and where its answer goes.
pub struct Intake {
    /// The command.
    pub command: Command,
    /// Where its answer goes.
    pub reply: Reply,
}

#[derive(PartialEq, Eq)]
enum Say {
    Leads,
    Paused,
    Lost,
}

fn say(view: &Standing, mine: Leadership) -> Say {
    match view.mine {
        Some(other) if other != mine => Say::Lost,
        Some(_) => Say::Leads,
        None if view.term > mine.term => Say::Lost,
        None if view.leader.is_some_and(|leader| leader != mine.replica.0) => Say::Lost,
        None => Say::Paused,
    }
}

fn refuse(intake: Intake) {
    // The asker may have gone.
    let _ = intake.reply.send(Err(Refusal::new(RefusalCode::NotLeader, "this replica does not lead")));
}

struct Lanes {
    clients: mpsc::Receiver<Intake>,
    nodes: mpsc::Receiver<Intake>,
}

/// Leads whenever the replica does, until it stops.
pub async fn run_decisions(
    replica: Arc<Replica>,
    clients: mpsc::Receiver<Intake>,
    nodes: mpsc::Receiver<Intake>,
) {
    let mut lanes = Lanes { clients, nodes };
    let mut standing = replica.standing.clone();
    loop {
        let mine = standing.borrow_and_update().mine;
        let Some(mine) = mine else {
            tokio::select! {
                biased;
                changed = standing.changed() => if changed.is_err() { return },
                Some(intake) = lanes.nodes.recv() => refuse(intake),
                Some(intake) = lanes.clients.recv() => refuse(intake),
            }
            continue;
        };
        lead(&replica, mine, &mut standing, &mut lanes).await;
        replica.liveness.end();
        replica.close_sessions();
        replica.view.waiters().fail(mine);
        replica.view.own_rounds().clear();
        event("leadership over", format_args!("n{} term {}", replica.host, mine.term));
        sleep_ms(PAUSE_AFTER_REFUSAL_MS).await;
    }
}

async fn lost(standing: &mut watch::Receiver<Standing>, mine: Leadership) {
    loop {
        let now = say(&standing.borrow_and_update(), mine);
        if now == Say::Lost || standing.changed().await.is_err() {
            return;
        }
    }
}

async fn lead(
    replica: &Arc<Replica>,
    mine: Leadership,
    standing: &mut watch::Receiver<Standing>,
    lanes: &mut Lanes,
) {
    tokio::select! {
        biased;
        () = lost(standing, mine) => return,
        passed = replica.raft.write_blank() => if passed.is_err() { return },
    }
    let state = muster_state::State::clone(&replica.view.state());
    if state.leadership().is_some_and(|current| current > mine) {
        return;
    }
    replica.cluster.checks.wrote_as_leader(mine.term, mine.replica.0, replica.start);
    let founding = Founding::new(ClusterId(1), replica.cluster.settings.parameters());
    let mut clock = LogClock::new(state.log_time(), instant());
    let now = clock.at(replica.cluster.log_time(replica.host), instant());
    let speculation = Speculation::begin(state, mine, now, founding);
    let flushed = replica.log.flushed();
    let flushed_before = *flushed.borrow();
    let mut term = Term {
        replica,
        lanes,
        speculation,
        clock,
        in_flight: FuturesUnordered::new(),
        flushed,
        flushed_before,
        proposed: 0,
        interrupted: false,
        housekeeping: 0,
    };
    term.begin();
    term.run(standing).await;
}

struct Term<'a> {
    replica: &'a Arc<Replica>,
    lanes: &'a mut Lanes,
    speculation: Speculation,
    clock: LogClock,
    in_flight: FuturesUnordered<JoinHandle<bool>>,
    flushed: watch::Receiver<u64>,
    flushed_before: u64,
    proposed: u64,
    interrupted: bool,
    /// When history is looked at next, by this host's clock.
    housekeeping: u64,
}

impl Term<'_> {
    fn begin(&mut self) {
        settle_all(&mut self.speculation);
        let parameters = self.speculation.state().parameters();
        let lease = Duration::from_millis(parameters.lease_ttl_ms + parameters.lease_margin_ms);
        let nodes = self.speculation.state().nodes().iter();
        let up =
            nodes.filter(|(_, row)| row.status == NodeStatus::Up).map(|(id, row)| (*id, row.incarnation));
        let mine = self.speculation.leadership();
        self.replica.liveness.begin(mine, instant(), lease, up);
        event("leads", format_args!("n{} term {}", self.replica.host, mine.term));
    }

    async fn run(&mut self, standing: &mut watch::Receiver<Standing>) {
        let mine = self.speculation.leadership();
        let zombie = self.replica.cluster.settings.bug == Some(PlantedBug::SkipGuard);
        loop {
            let view = *standing.borrow_and_update();
            let stands = match say(&view, mine) {
                Say::Lost if zombie => view.mine.is_some(),
                Say::Lost => return,
                Say::Leads => true,
                Say::Paused => false,
            };
            if stands && self.may_propose() {
                self.decide();
            }
            let open = stands && self.may_propose();
            let wake = self.next_wake();
            tokio::select! {
                biased;
                changed = standing.changed() => if changed.is_err() { return },
                Some(done) = self.in_flight.next() => if !done.unwrap_or(false) && !zombie { return },
                Ok(()) = self.flushed.changed(), if !open => {}
                Some(intake) = self.lanes.nodes.recv(), if open => self.take(intake),
                Some(intake) = self.lanes.clients.recv(), if open || !stands => {
                    if stands { self.take(intake) } else { refuse(intake) }
                }
                () = Sleep::until(wake), if open => {}
                () = sleep_ms(0), if open && self.interrupted => {}
            }
        }
    }

    fn read_clock(&mut self) {
        let wall = self.replica.cluster.log_time(self.replica.host);
        let stands = self.replica.cluster.settings.bug == Some(PlantedBug::WallClockOnly);
        self.speculation.set_now(if stands { wall } else { self.clock.at(wall, instant()) });
    }

    fn may_propose(&self) -> bool {
        let flushed = self.flushed.borrow().saturating_sub(self.flushed_before);
        self.in_flight.is_empty() || (self.in_flight.len() < ROUNDS_IN_FLIGHT_MAX && flushed >= self.proposed)
    }

    fn decide(&mut self) {
        self.read_clock();
        for turn in 1..=COMMANDS_PER_ROUND_MAX {
            if self.speculation.round_bytes() >= ROUND_BYTES_SOFT {
                break;
            }
            let Lanes { nodes, clients } = &mut *self.lanes;
            let next = if turn % CLIENT_TURN == 0 {
                clients.try_recv().or_else(|_| nodes.try_recv())
            } else {
                nodes.try_recv().or_else(|_| clients.try_recv())
            };
            let Ok(intake) = next else { break };
            self.take(intake);
        }
        self.take_expired();
        if self.housekeeping_is_due() {
            let before = self.speculation.last_index();
            tick(&mut self.speculation);
            let idle = self.speculation.last_index() == before;
            let pause = if idle { HOUSEKEEPING_MS } else { HOUSEKEEPING_PAUSE_MS };
            self.housekeeping = local_ns() + pause * 1_000_000;
        }
        if self.speculation.wants_schedule() {
            let mut budget = Budget::new(VISITS_PER_ROUND);
            schedule(&mut self.speculation, &mut budget);
            self.interrupted = self.speculation.wants_schedule();
        }
        self.speculation.push_digest_if_due();
        self.propose();
    }

    fn take_expired(&mut self) {
        let now = instant();
        while self.speculation.round_bytes() < ROUND_BYTES_LOST {
            let Some((node, incarnation)) = self.replica.liveness.next_expired(now) else { return };
            event("lease over", format_args!("node {node} incarnation {incarnation}"));
            if handle(&mut self.speculation, &Command::SessionOver { node, incarnation }).is_err() {
                self.replica.cluster.checks.fail(format!("the end of the session of {node} was refused"));
            }
        }
    }

    fn take(&mut self, intake: Intake) {
        self.read_clock();
        let answer = handle(&mut self.speculation, &intake.command);
        if let Ok(Answer::Registered { node, incarnation, .. }) = answer {
            self.replica.liveness.registered(instant(), node, incarnation);
        }
        let at = answer.as_ref().map_or_else(|_| self.speculation.last_index(), Answer::at);
        self.replica.view.waiters().add(at, self.speculation.leadership(), intake.reply, answer);
    }

    fn propose(&mut self) {
        let Some(round) = self.speculation.take_round() else { return };
        let payload = Bytes::from(encode_round(&round));
        let mine = self.speculation.leadership();
        let bound = self.replica.cluster.settings.bug != Some(PlantedBug::SkipGuard);
        if bound {
            self.replica.view.own_rounds().keep(payload.clone(), round);
        }
        let raft = self.replica.raft.clone();
        let (responder, answer) = openraft::impls::ProgressResponder::<
            crate::raft_runtime::SimConfig,
            openraft::raft::ClientWriteResult<crate::raft_runtime::SimConfig>,
        >::complete_only();
        let leader = LeaderId::new(mine.term, mine.replica.0);
        // In line before anything else is proposed: one poll of a line that is never full here.
        let queued = {
            use futures::FutureExt;
            use std::future::IntoFuture;
            let request = raft.write(Payload(payload)).responder(responder);
            let request = if bound { request.with_leader(leader) } else { request };
            request.into_future().now_or_never().is_some_and(|sent| sent.is_ok())
        };
        self.in_flight.push(spawn(async move { queued && matches!(answer.await, Ok(Ok(_))) }));
        self.proposed += 1;
    }

    fn housekeeping_is_due(&self) -> bool {
        let limit = self.speculation.state().run_limits().next().map(|(limit, _)| limit);
        limit.is_some_and(|limit| limit <= self.speculation.now()) || self.housekeeping <= local_ns()
    }

    fn next_wake(&self) -> u64 {
        let mut wake = self.housekeeping;
        if let Some(deadline) = self.replica.liveness.next_deadline() {
            wake = wake.min(local_of(deadline));
        }
        if let Some((limit, _)) = self.speculation.state().run_limits().next() {
            let due_ms = limit.since_ms(self.speculation.now());
            wake = wake.min(local_ns() + due_ms * 1_000_000);
        }
        wake
    }
}
