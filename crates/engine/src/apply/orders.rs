//! The outbox: what a node is asked to do, read off the state. Nothing is queued, so nothing is lost
//! with a leader: a session looks again whenever its node's orders have changed.

use muster_journal::{RearrangeCause, StopCause};
use muster_state::{Phase, Placement, RankState, State};
use muster_types::health::DrainCause;
use muster_types::{FencingToken, JobId, JobSpec, NodeId, StopReason};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::Notify;

/// Start the workers of a gang that are on a node.
#[derive(Clone, Debug)]
pub struct StartOrder {
    /// Which job.
    pub job: JobId,
    /// Placements of the job so far, this one included.
    pub attempt: u32,
    /// What was submitted.
    pub spec: Arc<JobSpec>,
    /// The placement; its token fences the order.
    pub placement: Arc<Placement>,
    /// The state the order was read from, for names and addresses of the gang's nodes.
    pub view: Arc<State>,
}

/// Stop whatever a node has of a job up to a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopOrder {
    /// Which job.
    pub job: JobId,
    /// Up to this placement.
    pub token: FencingToken,
    /// From SIGTERM to SIGKILL.
    pub grace_ms: u64,
    /// Why, as far as a worker is to know; none for what should not be there at all.
    pub reason: Option<StopReason>,
}

/// What a node is asked to do.
#[derive(Clone, Debug)]
pub enum Order {
    /// Start.
    Start(StartOrder),
    /// Stop.
    Stop(StopOrder),
}

impl Order {
    /// Which order this is: the same one is not sent twice in a session.
    #[must_use]
    pub fn key(&self) -> (JobId, FencingToken, bool) {
        match self {
            Order::Start(start) => (start.job, start.placement.token, true),
            Order::Stop(stop) => (stop.job, stop.token, false),
        }
    }
}

/// Everything a node is asked to do, by the state.
#[must_use]
pub fn outstanding(view: &Arc<State>, node: NodeId) -> Vec<Order> {
    let mut orders = Vec::new();
    for job in view.gangs_on(node) {
        let (Some(row), Some(spec)) = (view.job(job), view.spec(job)) else { continue };
        let Some(placement) = &row.placement else { continue };
        match &row.phase {
            Phase::Starting | Phase::Running if has_unstarted(placement, node) => {
                orders.push(Order::Start(StartOrder {
                    job,
                    attempt: row.attempt,
                    spec: Arc::clone(spec),
                    placement: Arc::clone(placement),
                    view: Arc::clone(view),
                }));
            }
            Phase::Stopping(cause) => {
                orders.push(Order::Stop(StopOrder {
                    job,
                    token: placement.token,
                    grace_ms: view.stop_grace_ms(job),
                    reason: Some(reason_of(view, cause)),
                }));
            }
            _ => {}
        }
    }
    orders
}

/// What workers are told of the cause of a stop. A drain has a cause too, and its workers are told that one.
fn reason_of(view: &State, cause: &StopCause) -> StopReason {
    let emptied = |node: &NodeId| Some(view.restriction(*node)?.drain.as_ref()?.cause);
    let of_drain = |cause: DrainCause| match cause {
        DrainCause::Operator => StopReason::Drained,
        DrainCause::Maintenance => StopReason::Maintenance,
        DrainCause::Repair => StopReason::Repair,
    };
    match cause {
        StopCause::Cancelled => StopReason::Cancelled,
        // Either way it has run for longer than it may.
        StopCause::RunTimeLimit | StopCause::Deadline => StopReason::RunTimeLimit,
        StopCause::WorkerFailed { .. } => StopReason::PeerFailed,
        StopCause::Requested { suspended: true } => StopReason::Suspended,
        StopCause::Requested { suspended: false } => StopReason::Requeued,
        StopCause::Fault { class, .. } if class.is_of_application() => StopReason::PeerFailed,
        StopCause::Fault { .. } => StopReason::NodeFault,
        StopCause::Evicted { node } => emptied(node).map_or(StopReason::NodeFault, of_drain),
        StopCause::Rearranged(RearrangeCause::Preempted { .. }) => StopReason::Preempted,
        StopCause::Rearranged(RearrangeCause::Moved { .. }) => StopReason::Moved,
        StopCause::Rearranged(RearrangeCause::Resized) => StopReason::Resized,
        StopCause::Rearranged(RearrangeCause::Drained { node }) => {
            emptied(node).map_or(StopReason::Drained, of_drain)
        }
    }
}

fn has_unstarted(placement: &Placement, node: NodeId) -> bool {
    let mut ranks = placement.slots.iter().zip(&placement.ranks);
    ranks.any(|(slot, state)| slot.node == node && *state == RankState::Assigned)
}

#[derive(Default)]
struct Board {
    sessions: BTreeMap<NodeId, Arc<Notify>>,
    marked: BTreeSet<NodeId>,
}

/// Which nodes' orders have changed, for the sessions of those nodes.
#[derive(Default)]
pub struct OrderBoard {
    inner: Mutex<Board>,
}

impl OrderBoard {
    fn lock(&self) -> parking_lot::MutexGuard<'_, Board> {
        self.inner.lock()
    }

    /// What wakes the session of a node; a later session of the node takes its place.
    pub fn subscribe(&self, node: NodeId) -> Arc<Notify> {
        let notify = Arc::new(Notify::new());
        self.lock().sessions.insert(node, Arc::clone(&notify));
        notify
    }

    /// The session has ended.
    pub fn unsubscribe(&self, node: NodeId, notify: &Arc<Notify>) {
        let mut board = self.lock();
        if board.sessions.get(&node).is_some_and(|n| Arc::ptr_eq(n, notify)) {
            board.sessions.remove(&node);
        }
    }

    /// A record changed the node's orders; its session is woken once the view is published.
    pub(crate) fn mark(&self, node: NodeId) {
        self.lock().marked.insert(node);
    }

    /// Wakes the marked.
    pub(crate) fn wake_marked(&self) {
        let mut board = self.lock();
        let marked = std::mem::take(&mut board.marked);
        for node in marked {
            if let Some(notify) = board.sessions.get(&node) {
                notify.notify_one();
            }
        }
    }

    /// Wakes everybody: the state was replaced.
    pub(crate) fn wake_all(&self) {
        for notify in self.lock().sessions.values() {
            notify.notify_one();
        }
    }
}
