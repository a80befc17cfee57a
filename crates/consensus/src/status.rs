//! What a replica knows about itself and, while it leads, about its peers.

use crate::environment::{Environment, Metrics};
use crate::messages::{PeerReport, Reports, millis};
use muster_store::ReplicaNode;
use muster_types::ReplicaId;
use openraft::async_runtime::WatchReceiver;
use openraft::{RaftMetrics, ServerState};
use tokio::sync::watch;

/// What a replica does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Follows without a vote.
    Learner,
    /// Follows.
    Follower,
    /// Asks for votes.
    Candidate,
    /// Leads.
    Leader,
    /// Takes no part any more.
    Stopped,
}

/// One member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The replica.
    pub replica: ReplicaId,
    /// Its region and endpoints.
    pub node: ReplicaNode,
    /// Whether it votes.
    pub votes: bool,
    /// The last entry it is known to have; only on the leader.
    pub matched_index: Option<u64>,
    /// Entries it lacks; only on the leader.
    pub lag_entries: Option<u64>,
    /// How long ago it last answered; only on the leader.
    pub silent_ms: Option<u64>,
    /// Whether it leads.
    pub leads: bool,
    /// Its newest report; of the others, only on the leader.
    pub report: Option<PeerReport>,
}

/// A replica's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// The replica.
    pub replica: ReplicaId,
    /// What it does.
    pub role: Role,
    /// The newest term it knows.
    pub term: u64,
    /// Who leads, as far as it knows.
    pub leader: Option<ReplicaId>,
    /// The last entry of its log.
    pub last_log_index: Option<u64>,
    /// The last entry it knows to be committed.
    pub committed_index: Option<u64>,
    /// The last entry it applied.
    pub applied_index: Option<u64>,
    /// Where its newest snapshot ends.
    pub snapshot_index: Option<u64>,
    /// Everything up to here was purged from its log.
    pub purged_index: Option<u64>,
    /// How long ago a quorum last answered it; only on the leader.
    pub quorum_silent_ms: Option<u64>,
    /// How long ago a leader was last heard; not on the leader, and not before one was.
    pub leader_silent_ms: Option<u64>,
    /// All members, in the order of their ids.
    pub members: Vec<Member>,
    /// Why it takes no part any more.
    pub stopped: Option<String>,
    /// Whether the newest membership it knows is committed and complete; until then decisions may
    /// need the old voters and the new ones.
    pub membership_settled: bool,
    /// Whether its storage lost what it had promised and it has not rejoined yet.
    pub rejoining: bool,
}

/// The members as this replica knows them, with their reports. Clones share it.
pub(crate) struct Members<E: Environment> {
    metrics: Metrics<E>,
    reports: watch::Receiver<Reports>,
}

impl<E: Environment> Clone for Members<E> {
    fn clone(&self) -> Self {
        Members { metrics: self.metrics.clone(), reports: self.reports.clone() }
    }
}

impl<E: Environment> Members<E> {
    pub(crate) fn new(metrics: Metrics<E>, reports: watch::Receiver<Reports>) -> Members<E> {
        Members { metrics, reports }
    }

    pub(crate) fn reports(&self) -> &watch::Receiver<Reports> {
        &self.reports
    }

    /// The replica's state, without what the protocol does not know of it.
    pub(crate) fn status(&self) -> ReplicaStatus {
        ReplicaStatus::of(&self.metrics.borrow_watched(), &self.reports.borrow())
    }

    /// All members, in the order of their ids.
    pub(crate) fn all(&self) -> Vec<Member> {
        self.status().members
    }
}

impl ReplicaStatus {
    fn of<E: Environment>(metrics: &RaftMetrics<E>, reports: &Reports) -> ReplicaStatus {
        use openraft::Instant as _;
        let voters: std::collections::BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
        let member = |(id, node): (&u64, &ReplicaNode)| {
            let matched_index = if *id == metrics.id {
                metrics.replication.as_ref().and(metrics.last_log_index)
            } else {
                let matched = metrics.replication.as_ref().and_then(|peers| peers.get(id));
                matched.and_then(|matched| matched.as_ref().map(|log_id| log_id.index()))
            };
            let lag_entries = metrics.replication.as_ref().map(|_| {
                let next = |index: Option<u64>| index.map_or(0, |index| index + 1);
                next(metrics.last_log_index).saturating_sub(next(matched_index))
            });
            let answered = metrics.heartbeat.as_ref().and_then(|peers| peers.get(id));
            let silent_ms = answered.and_then(|at| at.as_ref().map(|at| millis(at.elapsed())));
            Member {
                replica: ReplicaId(*id),
                node: node.clone(),
                votes: voters.contains(id),
                matched_index,
                lag_entries,
                silent_ms,
                leads: metrics.current_leader == Some(*id),
                report: reports.get(&ReplicaId(*id)).cloned(),
            }
        };
        let stopped = metrics.running_state.as_ref().err().map(ToString::to_string);
        ReplicaStatus {
            replica: ReplicaId(metrics.id),
            role: match metrics.state {
                _ if stopped.is_some() => Role::Stopped,
                ServerState::Learner => Role::Learner,
                ServerState::Follower => Role::Follower,
                ServerState::Candidate => Role::Candidate,
                ServerState::Leader => Role::Leader,
                ServerState::Shutdown => Role::Stopped,
            },
            term: metrics.current_term,
            leader: metrics.current_leader.map(ReplicaId),
            last_log_index: metrics.last_log_index,
            committed_index: metrics.local_committed.map(|log_id| log_id.index()),
            applied_index: metrics.last_applied.map(|log_id| log_id.index()),
            snapshot_index: metrics.snapshot.map(|log_id| log_id.index()),
            purged_index: metrics.purged.map(|log_id| log_id.index()),
            quorum_silent_ms: metrics.last_quorum_acked.as_ref().map(|at| millis(at.elapsed())),
            leader_silent_ms: None,
            members: metrics.membership_config.nodes().map(member).collect(),
            stopped,
            membership_settled: metrics.membership_config.log_id()
                == metrics.committed_membership_config.log_id()
                && metrics.membership_config.membership().get_joint_config().len() <= 1,
            rejoining: false,
        }
    }
}
