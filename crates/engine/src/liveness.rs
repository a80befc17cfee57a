//! The leader's count of session leases.
//!
//! A deadline is counted from the moment of an acknowledgement, plus the time to live, plus the
//! margin; the agent counts from the moment it *sent* what was acknowledged, without the margin. So
//! the agent has stopped everything before the leader gives its capacity away.
//!
//! **Invariant:** once a session is over it stays over: only a registration begins another.

use muster_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Clone, Copy)]
struct Lease {
    incarnation: u32,
    deadline: Instant,
}

#[derive(Default)]
struct Inner {
    /// Only while this replica leads.
    active: bool,
    /// Time to live plus margin.
    term: Duration,
    leases: BTreeMap<NodeId, Lease>,
    by_deadline: BTreeSet<(Instant, NodeId)>,
}

/// Session leases, while this replica leads.
#[derive(Default)]
pub(crate) struct Liveness {
    inner: Mutex<Inner>,
}

impl Liveness {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A leadership begins: every session that stands gets one full term from now, because the
    /// leader before may have acknowledged a heartbeat until just now.
    pub(crate) fn begin(&self, term: Duration, sessions: impl Iterator<Item = (NodeId, u32)>) {
        let mut inner = self.lock();
        *inner = Inner { active: true, term, ..Inner::default() };
        let deadline = Instant::now() + term;
        for (node, incarnation) in sessions {
            inner.set(node, Lease { incarnation, deadline });
        }
    }

    /// The leadership has ended: nothing is counted or acknowledged any more.
    pub(crate) fn end(&self) {
        *self.lock() = Inner::default();
    }

    /// A registration was applied and the leadership confirmed since: a session begins.
    pub(crate) fn register(&self, node: NodeId, incarnation: u32) -> bool {
        let mut inner = self.lock();
        let newer = inner.leases.get(&node).is_none_or(|lease| lease.incarnation <= incarnation);
        if !inner.active || !newer {
            return false;
        }
        let deadline = Instant::now() + inner.term;
        inner.set(node, Lease { incarnation, deadline });
        true
    }

    /// Renews a session that is not over; false when it is.
    pub(crate) fn renew(&self, node: NodeId, incarnation: u32) -> bool {
        let mut inner = self.lock();
        let now = Instant::now();
        let stands =
            inner.leases.get(&node).is_some_and(|l| l.incarnation == incarnation && l.deadline > now);
        if !inner.active || !stands {
            return false;
        }
        let deadline = now + inner.term;
        inner.set(node, Lease { incarnation, deadline });
        true
    }

    /// How long until the node's session runs out; none when it has none.
    pub(crate) fn remaining(&self, node: NodeId) -> Option<Duration> {
        let lease = *self.lock().leases.get(&node)?;
        Some(lease.deadline.saturating_duration_since(Instant::now()))
    }

    /// Sessions that have run out; from now on they are over.
    pub(crate) fn take_expired(&self) -> Vec<(NodeId, u32)> {
        let mut inner = self.lock();
        let now = Instant::now();
        let mut expired = Vec::new();
        while let Some((deadline, node)) = inner.by_deadline.first().copied() {
            if deadline > now {
                break;
            }
            inner.by_deadline.pop_first();
            if let Some(lease) = inner.leases.remove(&node) {
                expired.push((node, lease.incarnation));
            }
        }
        expired
    }

    /// When the next session runs out.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.lock().by_deadline.first().map(|(deadline, _)| *deadline)
    }
}

impl Inner {
    fn set(&mut self, node: NodeId, lease: Lease) {
        if let Some(old) = self.leases.insert(node, lease) {
            self.by_deadline.remove(&(old.deadline, node));
        }
        self.by_deadline.insert((lease.deadline, node));
    }
}
