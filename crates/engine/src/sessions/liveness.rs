//! The leader's count of session leases.
//!
//! A deadline is counted from the moment of an acknowledgement, plus the time to live, plus the
//! margin; the agent counts from the moment it *sent* what was acknowledged, without the margin. So
//! the agent has stopped everything before the leader gives its capacity away. `crates/world/tests/lease_model.rs` checks both
//! counts over several leaders.
//!
//! **Invariant:** every node that is up by the leader's speculation has a lease here, from the
//! moment its registration was decided: else one whose agent went away while it registered would
//! stay up for ever, and two agents could both be told that they hold it.
//! **Invariant:** once a session is over it stays over: only a registration that was decided later
//! begins another.

use muster_types::{Leadership, NodeId, Parameters};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

#[derive(Clone, Copy)]
struct Lease {
    incarnation: u32,
    deadline: Instant,
}

#[derive(Default)]
struct Inner {
    /// The leadership that counts; none while this replica does not lead.
    leadership: Option<Leadership>,
    /// Time to live plus margin.
    term: Duration,
    /// What the leader adds to a lease for the difference between clocks.
    margin: Duration,
    leases: BTreeMap<NodeId, Lease>,
    by_deadline: BTreeSet<(Instant, NodeId)>,
}

/// Session leases, while this replica leads. Every call says what time it is.
#[derive(Default)]
pub struct Liveness {
    inner: Mutex<Inner>,
    /// A node was heard of again after its lease had lapsed: what waits may begin there.
    returned: Notify,
}

impl Liveness {
    fn lock(&self) -> parking_lot::MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// A leadership begins: every session that stands gets one full term from the last moment at which a leader
    /// before may have acknowledged one of its heartbeats.
    pub fn begin(
        &self,
        leadership: Leadership,
        parameters: &Parameters,
        sessions: impl Iterator<Item = (NodeId, u32, Instant)>,
    ) {
        let margin = Duration::from_millis(parameters.lease_margin_ms);
        let term = Duration::from_millis(parameters.lease_ttl_ms) + margin;
        let mut inner = self.lock();
        *inner = Inner { leadership: Some(leadership), term, margin, ..Inner::default() };
        for (node, incarnation, heard) in sessions {
            inner.set(node, Lease { incarnation, deadline: heard + term });
        }
    }

    /// The leadership has ended: nothing is counted or acknowledged any more.
    pub fn end(&self) {
        *self.lock() = Inner::default();
    }

    /// A registration was decided just now. The same session going on is not renewed by that: only
    /// what a quorum confirmed renews.
    pub fn registered(&self, now: Instant, node: NodeId, incarnation: u32) {
        let mut inner = self.lock();
        if inner.leases.get(&node).is_some_and(|lease| lease.incarnation == incarnation) {
            return;
        }
        let deadline = now + inner.term;
        inner.set(node, Lease { incarnation, deadline });
    }

    /// Renews a session that is not over, under the leadership that a quorum has confirmed; false
    /// when it is over or another leadership counts.
    pub fn renew(&self, now: Instant, leadership: Leadership, node: NodeId, incarnation: u32) -> bool {
        let mut inner = self.lock();
        if inner.leadership != Some(leadership) {
            return false;
        }
        let stands = |lease: &&Lease| lease.incarnation == incarnation && lease.deadline > now;
        let Some(before) = inner.leases.get(&node).filter(stands).map(|lease| lease.deadline) else {
            return false;
        };
        let had_lapsed = before < now + inner.margin;
        let deadline = now + inner.term;
        inner.set(node, Lease { incarnation, deadline });
        drop(inner);
        if had_lapsed {
            self.returned.notify_one();
        }
        true
    }

    /// Ends when a node whose lease had lapsed was heard of again.
    pub async fn returned(&self) {
        self.returned.notified().await;
    }

    /// Whether `leadership` is the one that counts.
    pub fn counts(&self, leadership: Leadership) -> bool {
        self.lock().leadership == Some(leadership)
    }

    /// How long until the node's session runs out; none when it has none.
    pub fn remaining(&self, now: Instant, node: NodeId) -> Option<Duration> {
        let lease = *self.lock().leases.get(&node)?;
        Some(lease.deadline.saturating_duration_since(now))
    }

    /// One session that has run out; from now on it is over.
    pub fn next_expired(&self, now: Instant) -> Option<(NodeId, u32)> {
        let mut inner = self.lock();
        let (deadline, node) = inner.by_deadline.first().copied()?;
        if deadline > now {
            return None;
        }
        inner.by_deadline.pop_first();
        inner.leases.remove(&node).map(|lease| (node, lease.incarnation))
    }

    /// Sessions that stand and were not renewed for `silence`, those that run out first, `max` at most.
    pub fn silent(&self, now: Instant, silence: Duration, max: usize) -> Vec<NodeId> {
        let inner = self.lock();
        // A deadline is a term behind the renewal.
        let before = now + inner.term.saturating_sub(silence);
        let silent = inner.by_deadline.iter().take_while(|(deadline, _)| *deadline < before);
        silent.take(max).map(|(_, node)| *node).collect()
    }

    /// Sessions that stand, but whose agents cannot have a lease any more by their own count: only the margin is left.
    /// They start nothing before they are heard of again. Those that run out first, `max` at most.
    pub fn lapsed(&self, now: Instant, max: usize) -> Vec<NodeId> {
        let inner = self.lock();
        let before = now + inner.margin;
        let lapsed = inner.by_deadline.iter().take_while(|(deadline, _)| *deadline < before);
        lapsed.take(max).map(|(_, node)| *node).collect()
    }

    /// When the next session runs out.
    pub fn next_deadline(&self) -> Option<Instant> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::ReplicaId;

    const MINE: Leadership = Leadership { term: 2, replica: ReplicaId(1) };
    const TERM: Duration = Duration::from_millis(1_000);
    const PARAMETERS: Parameters =
        Parameters { lease_ttl_ms: 800, lease_margin_ms: 200, ..Parameters::DEFAULT };
    const NODE: NodeId = NodeId(4);

    /// A leadership that begins at the returned time.
    fn begun(sessions: &[(NodeId, u32)]) -> (Liveness, impl Fn(u64) -> Instant) {
        let liveness = Liveness::default();
        let start = Instant::now();
        liveness.begin(
            MINE,
            &PARAMETERS,
            sessions.iter().map(|(node, incarnation)| (*node, *incarnation, start)),
        );
        (liveness, move |ms| start + Duration::from_millis(ms))
    }

    #[test]
    fn a_session_stands_for_one_term_after_its_last_renewal() {
        let (liveness, at) = begun(&[(NODE, 3)]);
        assert!(liveness.renew(at(900), MINE, NODE, 3));
        assert_eq!(liveness.next_expired(at(1_899)), None);
        assert!(!liveness.renew(at(1_899), MINE, NODE, 2), "another incarnation");
        assert!(!liveness.renew(at(1_899), Leadership { term: 3, ..MINE }, NODE, 3), "another leadership");
        assert!(!liveness.renew(at(1_900), MINE, NODE, 3), "over, whether or not anybody looked");
        assert_eq!(liveness.next_expired(at(1_900)), Some((NODE, 3)));
        assert_eq!((liveness.next_expired(at(1_900)), liveness.next_deadline()), (None, None));
    }

    #[test]
    fn who_was_not_heard_for_a_while_is_silent_before_it_is_over() {
        let (liveness, at) = begun(&[(NODE, 3), (NodeId(9), 1)]);
        let silent = |ms, max| liveness.silent(at(ms), Duration::from_millis(300), max);
        assert_eq!(silent(300, 8), []);
        assert_eq!((silent(301, 8), silent(301, 1)), (vec![NODE, NodeId(9)], vec![NODE]));
        assert!(liveness.renew(at(302), MINE, NODE, 3));
        assert_eq!((silent(303, 8), silent(602, 8)), (vec![NodeId(9)], vec![NodeId(9)]));
        assert_eq!(silent(603, 8), [NodeId(9), NODE]);
    }

    #[tokio::test]
    async fn whose_agent_has_no_lease_by_its_own_count_has_lapsed_until_it_is_heard_of_again() {
        let (liveness, at) = begun(&[(NODE, 3), (NodeId(9), 1)]);
        assert_eq!(liveness.lapsed(at(800), 8), []);
        assert!(liveness.renew(at(800), MINE, NODE, 3));
        assert_eq!((liveness.lapsed(at(801), 8), liveness.lapsed(at(801), 0)), (vec![NodeId(9)], vec![]));
        let returned = liveness.returned();
        let mut returned: core::pin::Pin<&mut dyn Future<Output = ()>> = core::pin::pin!(returned);
        let is_told = async |returned: core::pin::Pin<&mut dyn Future<Output = ()>>| {
            tokio::select! { biased; () = returned => true, () = core::future::ready(()) => false }
        };
        assert!(!is_told(returned.as_mut()).await, "the first was renewed in time");
        assert!(liveness.renew(at(802), MINE, NodeId(9), 1));
        assert!(is_told(returned.as_mut()).await);
        assert_eq!(liveness.lapsed(at(803), 8), []);
    }

    #[test]
    fn what_is_over_stays_over() {
        let (liveness, at) = begun(&[(NODE, 3)]);
        // The same session registers again before anybody noticed that it ran out.
        liveness.registered(at(1_000), NODE, 3);
        assert!(!liveness.renew(at(1_000), MINE, NODE, 3));
        assert_eq!(liveness.next_expired(at(1_000)), Some((NODE, 3)));
        assert!(!liveness.renew(at(1_001), MINE, NODE, 3));
        liveness.registered(at(1_002), NODE, 4);
        assert!(liveness.renew(at(1_003), MINE, NODE, 4));
    }

    #[test]
    fn a_registration_that_nobody_takes_up_runs_out() {
        let (liveness, at) = begun(&[]);
        liveness.registered(at(0), NODE, 1);
        assert_eq!(liveness.remaining(at(0), NODE), Some(TERM));
        liveness.registered(at(500), NODE, 1);
        assert_eq!(liveness.remaining(at(500), NODE), Some(TERM / 2), "saying it again renews nothing");
        assert_eq!(liveness.next_expired(at(1_000)), Some((NODE, 1)));
    }

    #[test]
    fn a_new_leadership_grants_one_full_term_and_knows_no_others() {
        let (liveness, at) = begun(&[(NODE, 1)]);
        let next = Leadership { term: 3, ..MINE };
        liveness.begin(next, &PARAMETERS, [(NODE, 1, at(900))].into_iter());
        assert_eq!(liveness.next_deadline(), Some(at(1_900)));
        assert!(!liveness.renew(at(901), MINE, NODE, 1) && liveness.renew(at(901), next, NODE, 1));
    }

    #[test]
    fn who_was_not_heard_for_several_leaderships_is_over_at_once() {
        let (liveness, at) = begun(&[(NODE, 1)]);
        let next = Leadership { term: 5, ..MINE };
        liveness.begin(next, &PARAMETERS, [(NODE, 1, at(100)), (NodeId(9), 1, at(1_500))].into_iter());
        assert_eq!(liveness.next_expired(at(1_500)), Some((NODE, 1)));
        assert_eq!((liveness.next_expired(at(1_500)), liveness.next_deadline()), (None, Some(at(2_500))));
    }

    #[test]
    fn nothing_is_acknowledged_without_a_leadership() {
        let (liveness, at) = begun(&[(NODE, 1)]);
        liveness.end();
        assert!(!liveness.renew(at(1), MINE, NODE, 1) && !liveness.counts(MINE));
        assert_eq!((liveness.remaining(at(1), NODE), liveness.next_deadline()), (None, None));
    }
}
