//! Who leads, as this replica knows it: values, and a handle to the current view.
//!
//! **Invariant:** a term alone never fences: two replicas can lead in one term, so a [`Leadership`] is the pair of
//! term and replica.

use muster_types::{Leadership, ReplicaId};
use std::time::Instant;
use thiserror::Error;
use tokio::sync::watch;

/// Who leads and where its clients go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The replica.
    pub replica: ReplicaId,
    /// Its client endpoint, once the membership that names it is known here.
    pub client_endpoint: Option<String>,
}

/// This replica does not lead, or cannot prove that it does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Error)]
#[error("this replica does not lead{}", leader.as_ref().map(|leader| format!("; {} does", leader.replica)).unwrap_or_default())]
pub struct NotLeader {
    /// Who does, as far as is known.
    pub leader: Option<Leader>,
}

/// A confirmed leadership, and how far a reader has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPoint {
    /// Everything through here was committed before the confirmation began; a read is linearizable
    /// once this is applied.
    pub raft_index: u64,
    /// Whose leadership a quorum confirmed.
    pub leadership: Leadership,
}

/// Who leads, as this replica sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeadershipView {
    /// The newest term this replica knows.
    pub term: u64,
    /// Who leads; `None` while nobody is known to.
    pub leader: Option<Leader>,
    /// Set while this replica leads.
    pub mine: Option<Leadership>,
    /// Since when it has been so.
    pub since: Instant,
}

impl LeadershipView {
    pub(crate) fn unknown(since: Instant) -> Self {
        LeadershipView { term: 0, leader: None, mine: None, since }
    }
}

/// The view of this replica as it changes. Clones share it.
#[derive(Clone)]
pub(crate) struct LeadershipHandle {
    view: watch::Receiver<LeadershipView>,
}

impl LeadershipHandle {
    pub(crate) fn new(view: watch::Receiver<LeadershipView>) -> LeadershipHandle {
        LeadershipHandle { view }
    }

    /// The view, to wait for its changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<LeadershipView> {
        self.view.clone()
    }

    /// Since when the view has been so.
    pub(crate) fn since(&self) -> Instant {
        self.view.borrow().since
    }

    /// This replica's leadership, while it leads.
    pub(crate) fn mine(&self) -> Option<Leadership> {
        self.view.borrow().mine
    }

    /// Whether this replica leads now, under this leadership.
    pub(crate) fn holds(&self, leadership: Leadership) -> bool {
        self.mine() == Some(leadership)
    }

    /// The refusal that names another leader. This replica is never named: a caller would ask it again.
    pub(crate) fn not_leader(&self) -> NotLeader {
        let view = self.view.borrow();
        NotLeader { leader: view.leader.clone().filter(|_| view.mine.is_none()) }
    }
}
