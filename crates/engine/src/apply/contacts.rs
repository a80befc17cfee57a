//! Until when each node may have been told that its lease goes on, by what the log says.
//!
//! A leader acknowledges no heartbeat of a node before a record of that leadership says that the node
//! has opened a session: `NodeRegistered`, `AgentStarted` or `SessionResumed`. A leadership without one has acknowledged
//! nothing, so the last acknowledgement came before that leadership began. If the leadership before it has no such
//! record either, the bound is the beginning of that one, and so on. Without this every leader would have to wait a whole
//! lease from its own beginning, and leaders that follow each other faster than that would never declare a node lost.
//!
//! Why the bound is safe: a heartbeat is acknowledged behind a quorum that confirms the leadership after it arrived. The
//! quorum that elects the next leader has a replica in common with that one, so all this came before the election, and that
//! before the moment at which this replica applied the next leader's first record. Agents count from the time at which they
//! sent the heartbeat, which is earlier still.
//!
//! **Invariant:** what is not known here moves no bound: a replica that starts, or takes a snapshot, begins with nothing.

use muster_types::{Leadership, LogTime, NodeId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// Leaderships that are looked back on.
const BEGINNINGS_MAX: usize = 64;

/// A leadership, as it was applied here.
#[derive(Clone, Copy, Debug)]
struct Beginning {
    leadership: Leadership,
    /// When its first record was applied here.
    at: Instant,
    log_time: LogTime,
}

/// What the log has said of leaderships and sessions since this replica started.
#[derive(Debug, Default)]
pub(crate) struct Contacts {
    /// Oldest first.
    beginnings: VecDeque<Beginning>,
    /// By node: the last leadership under which it opened a session.
    sessions: BTreeMap<NodeId, Leadership>,
}

impl Contacts {
    /// A leadership has begun.
    pub(crate) fn began(&mut self, leadership: Leadership, at: Instant, log_time: LogTime) {
        if self.beginnings.len() == BEGINNINGS_MAX {
            self.beginnings.pop_front();
        }
        self.beginnings.push_back(Beginning { leadership, at, log_time });
    }

    /// A node has opened a session.
    pub(crate) fn opened(&mut self, node: NodeId, leadership: Leadership) {
        self.sessions.insert(node, leadership);
    }

    /// A node is not up any more.
    pub(crate) fn lost(&mut self, node: NodeId) {
        self.sessions.remove(&node);
    }

    /// The state was replaced: what happened on the way to it is not known.
    pub(crate) fn forget(&mut self) {
        *self = Contacts::default();
    }

    /// The latest moment at which a heartbeat of the node can have been acknowledged; none where that may have been just
    /// now. `mine` is the leadership that asks, and has begun.
    pub(crate) fn last_before(&self, mine: Leadership, node: NodeId) -> Option<Instant> {
        let session = self.sessions.get(&node);
        let mut back = self.beginnings.iter().rev();
        let newest = back.next().filter(|newest| newest.leadership == mine)?;
        if session == Some(&mine) {
            return None;
        }
        let silent = back.take_while(|before| session != Some(&before.leadership));
        Some(silent.last().unwrap_or(newest).at)
    }

    /// How many leaderships have begun since then, by log time; as many as are looked back on at most.
    pub(crate) fn begun_since(&self, since: LogTime) -> usize {
        self.beginnings.iter().filter(|beginning| beginning.log_time >= since).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::ReplicaId;
    use std::time::Duration;

    const NODE: NodeId = NodeId(4);

    fn term(term: u64) -> Leadership {
        Leadership { term, replica: ReplicaId(term % 3 + 1) }
    }

    /// Leaderships of one second each, of terms 1 and so on.
    fn begun(count: u64) -> (Contacts, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        let at = move |second| start + Duration::from_secs(second);
        let mut contacts = Contacts::default();
        for number in 1..=count {
            contacts.began(term(number), at(number), LogTime(number * 1_000));
        }
        (contacts, at)
    }

    #[test]
    fn leaderships_that_did_not_hear_a_node_do_not_count_for_it() {
        let (mut contacts, at) = begun(5);
        contacts.opened(NODE, term(2));
        // The third leadership was the first that did not hear it: the second may have, until the third began.
        assert_eq!(contacts.last_before(term(5), NODE), Some(at(3)));
        contacts.opened(NODE, term(4));
        assert_eq!(contacts.last_before(term(5), NODE), Some(at(5)));
        contacts.opened(NODE, term(5));
        assert_eq!(contacts.last_before(term(5), NODE), None, "just now");
        // One that was never heard since this replica started was heard before the first leadership seen here.
        assert_eq!(contacts.last_before(term(5), NodeId(9)), Some(at(1)));
    }

    #[test]
    fn what_is_not_known_moves_no_bound() {
        let (mut contacts, at) = begun(3);
        assert_eq!(contacts.last_before(term(9), NODE), None, "it has not begun here");
        contacts.forget();
        contacts.began(term(4), at(4), LogTime(4_000));
        assert_eq!(contacts.last_before(term(4), NODE), Some(at(4)));
    }

    #[test]
    fn only_so_many_leaderships_are_kept() {
        let (contacts, at) = begun(1_000);
        assert_eq!(contacts.last_before(term(1_000), NODE), Some(at(1_001 - BEGINNINGS_MAX as u64)));
        assert_eq!(contacts.begun_since(LogTime(996_000)), 5);
        assert_eq!(contacts.begun_since(LogTime(0)), BEGINNINGS_MAX);
    }
}
