//! Where a peer's log ends, so that a new leader need not search for it.
//!
//! The protocol finds the last entry that it shares with a follower by halves, with a round trip for each: over
//! regions, and with thousands of entries in the log, a second passes between an election and the first commit. But
//! whoever voted for the leader has said where its log ends. So the first request that searches below that place is
//! sent from there on instead, with all that follows; and what the answer shows to be held is not asked for again.
//!
//! **Invariant:** nothing counts as held but what the peer acknowledged to this very leader, after an entry that the
//! leader's own log has at the same place. No heartbeat is answered from here.
//! **Invariant:** it counts for a part of a heartbeat's time only, from when the request was sent that the peer answered. The
//! protocol takes an answer for a sign of life at the time of its request, and is wrong by no more than that. What rests on
//! it is a leader's judgement of how deaf it is, and whether it refuses votes and takes proposals meanwhile: proposals
//! need their quorum all the same.
//! **Invariant:** no such answer proves a leadership: a confirmation during which one was given counts for nothing, and is
//! asked for once more ([`Shortcuts::answered`]).
//!
//! `tests/log_end_model.rs` checks all three over every order of votes, requests, answers and confirmations, with this
//! module's own functions, and shows for each rule what goes wrong without it.

use crate::config::Timing;
use crate::environment::Environment;
use muster_store::{Entry, LeaderId, LogId};
use muster_types::ReplicaId;
use openraft::raft::AppendEntriesRequest;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Entries that are sent with the first request at most.
const ENTRIES_MAX: u64 = 1_024;

/// What is known of peers. Clones share it.
#[derive(Clone)]
pub struct Shortcuts {
    known: Arc<Mutex<BTreeMap<ReplicaId, Known>>>,
    /// Requests that were answered without being sent.
    answered: Arc<AtomicU64>,
    fresh: Duration,
}

/// What is known of one peer. It decides without a clock, a lock or a network, so that a model can check every order of
/// events (`tests/log_end_model.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Whom it voted for.
    pub leader: LeaderId,
    /// How far its log goes.
    pub place: Place,
}

/// How far the log of a peer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Its log ends here, it said.
    Said(LogId),
    /// It is being asked, or it did not answer as was thought.
    Asked,
    /// It acknowledged everything up to an entry.
    Held {
        /// That entry.
        through: LogId,
        /// How far the log was committed, as the peer was told then.
        commit: Option<LogId>,
        /// When the request was sent that it answered.
        at: Instant,
    },
}

impl Known {
    /// The peer voted for `candidate`, with a log that ends at `last`; an empty log says nothing.
    #[must_use]
    pub fn voted(candidate: LeaderId, last: Option<LogId>) -> Option<Known> {
        last.map(|last| Known { leader: candidate, place: Place::Said(last) })
    }

    /// What becomes of a leader's request. What the peer acknowledged counts for `fresh`.
    pub fn way<E: Environment>(
        &mut self,
        request: &AppendEntriesRequest<E>,
        now: Instant,
        fresh: Duration,
    ) -> Way {
        let (Some(last), true) = (request.entries.last(), request.vote.committed) else { return Way::Plain };
        if self.leader != request.vote.leader_id {
            return Way::Plain;
        }
        match self.place {
            // A request that tells the peer of a commit has to arrive, for the protocol tells it once. It is also what keeps
            // the acknowledgement of a storage that was lost since from counting: the cluster takes such a peer in by
            // entries that it commits.
            Place::Held { through, commit, at }
                if last.log_id.index() <= through.index()
                    && request.leader_commit <= commit
                    && now.saturating_duration_since(at) <= fresh =>
            {
                Way::Held(last.log_id)
            }
            Place::Said(end) if request.prev_log_id.is_none_or(|prev| prev.index() < end.index()) => {
                self.place = Place::Asked;
                Way::From(end)
            }
            _ => Way::Plain,
        }
    }

    /// The peer acknowledged everything through `through`, in answer to a request that was sent at `sent`.
    pub fn held<E: Environment>(&mut self, request: &AppendEntriesRequest<E>, through: LogId, sent: Instant) {
        if self.leader == request.vote.leader_id {
            self.place = Place::Held { through, commit: request.leader_commit, at: sent };
        }
    }
}

/// What becomes of a request to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is sent as it is.
    Plain,
    /// The peer holds it, through its last entry: it is answered without being sent.
    Held(LogId),
    /// What follows this entry is sent in its place, if the leader's own log has it.
    From(LogId),
}

impl Shortcuts {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(timing: Timing) -> Shortcuts {
        let fresh = Duration::from_millis(timing.heartbeat_interval_ms / 4);
        Shortcuts { known: Arc::default(), answered: Arc::default(), fresh }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<ReplicaId, Known>> {
        // Nothing panics while it holds the lock.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A peer voted for `candidate`, with a log that ends at `last`.
    pub fn voted(&self, peer: ReplicaId, candidate: LeaderId, last: Option<LogId>) {
        if let Some(known) = Known::voted(candidate, last) {
            self.known().insert(peer, known);
        }
    }

    /// What becomes of a leader's request to a peer.
    #[must_use]
    pub fn way<E: Environment>(
        &self,
        peer: ReplicaId,
        request: &AppendEntriesRequest<E>,
        now: Instant,
    ) -> Way {
        let mut known = self.known();
        let way = known.get_mut(&peer).map_or(Way::Plain, |known| known.way(request, now, self.fresh));
        if let Way::Held(_) = way {
            // Before it is answered, so that whoever is confirmed by it sees it.
            self.answered.fetch_add(1, Ordering::SeqCst);
        }
        way
    }

    /// How many requests were answered without being sent, so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::SeqCst)
    }

    /// A peer acknowledged everything through `through`, in answer to a request that was sent at `sent`: the answer may
    /// have waited in a socket while this process stood still.
    pub fn held<E: Environment>(
        &self,
        peer: ReplicaId,
        request: &AppendEntriesRequest<E>,
        through: LogId,
        sent: Instant,
    ) {
        if let Some(known) = self.known().get_mut(&peer) {
            known.held(request, through, sent);
        }
    }
}

/// Where the entries are that take the place of a request, the voter's last one included.
#[must_use]
pub fn range(end: LogId) -> std::ops::Range<u64> {
    // What a voter says of itself is not to be counted beyond.
    end.index()..end.index().saturating_add(1 + ENTRIES_MAX)
}

/// The request that takes another's place: from `end` on, with what the leader's own log has there and behind it.
/// None where the log has another entry at that place, or none any more.
#[must_use]
pub fn from_end<E: Environment>(
    request: &AppendEntriesRequest<E>,
    end: LogId,
    own: Vec<Entry>,
) -> Option<AppendEntriesRequest<E>> {
    let mut own = own.into_iter();
    let same = own.next().is_some_and(|entry| entry.log_id == end);
    same.then(|| AppendEntriesRequest {
        vote: request.vote,
        prev_log_id: Some(end),
        entries: own.collect(),
        leader_commit: request.leader_commit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_store::{Payload, RaftConfig, Vote};
    use openraft::EntryPayload;

    const PEER: ReplicaId = ReplicaId(2);

    fn leader(term: u64) -> LeaderId {
        LeaderId { term, node_id: 1 }
    }

    fn id(term: u64, index: u64) -> LogId {
        LogId::new(leader(term), index)
    }

    fn entries(ids: &[LogId]) -> Vec<Entry> {
        ids.iter().map(|id| Entry { log_id: *id, payload: EntryPayload::<Payload, _, _>::Blank }).collect()
    }

    fn request(prev: LogId, ids: &[LogId]) -> AppendEntriesRequest<RaftConfig> {
        let vote = Vote { leader_id: leader(5), committed: true };
        AppendEntriesRequest { vote, prev_log_id: Some(prev), entries: entries(ids), leader_commit: None }
    }

    #[test]
    fn a_search_goes_on_from_where_the_voter_said_and_what_it_then_holds_is_not_sent() {
        let (known, now) = (Shortcuts::new(Timing::WIDE), Instant::now());
        let search = request(id(4, 50), &[id(4, 51), id(4, 52)]);
        assert_eq!(known.way(PEER, &search, now), Way::Plain, "nobody voted");
        known.voted(PEER, leader(5), Some(id(4, 100)));
        assert_eq!(known.way(ReplicaId(3), &search, now), Way::Plain, "another peer");
        assert_eq!(known.way(PEER, &search, now), Way::From(id(4, 100)));
        assert_eq!(known.way(PEER, &search, now), Way::Plain, "asked once");
        known.held(PEER, &search, id(5, 101), now);
        assert_eq!(known.way(PEER, &search, now), Way::Held(id(4, 52)));
        assert_eq!(known.way(PEER, &request(id(4, 100), &[id(5, 101)]), now), Way::Held(id(5, 101)));
        assert_eq!(known.way(PEER, &request(id(5, 101), &[id(5, 102)]), now), Way::Plain, "not held");
        let mut telling = request(id(4, 100), &[id(5, 101)]);
        telling.leader_commit = Some(id(5, 101));
        assert_eq!(known.way(PEER, &telling, now), Way::Plain, "it has to hear of the commit");
        let later = now + Duration::from_millis(Timing::WIDE.heartbeat_interval_ms);
        assert_eq!(known.way(PEER, &search, later), Way::Plain, "too long ago for a sign of life");
    }

    #[test]
    fn an_answer_that_was_read_late_says_nothing_of_the_present() {
        let (known, sent) = (Shortcuts::new(Timing::WIDE), Instant::now());
        let search = request(id(4, 50), &[id(4, 51), id(4, 52)]);
        known.voted(PEER, leader(5), Some(id(4, 100)));
        assert_eq!(known.way(PEER, &search, sent), Way::From(id(4, 100)));
        // The process stood still before it read the answer.
        known.held(PEER, &search, id(5, 101), sent);
        assert_eq!(known.way(PEER, &search, sent + Duration::from_secs(3)), Way::Plain);
        assert_eq!(known.answered(), 0);
        // By a clock that stood still as well it cannot be told, but it is counted.
        assert_eq!(known.way(PEER, &search, sent), Way::Held(id(4, 52)));
        assert_eq!(known.answered(), 1);
    }

    #[test]
    fn heartbeats_other_leaders_and_what_lies_behind_the_end_go_as_they_are() {
        let (known, now) = (Shortcuts::new(Timing::WIDE), Instant::now());
        known.voted(PEER, leader(5), Some(id(4, 100)));
        assert_eq!(known.way(PEER, &request(id(4, 50), &[]), now), Way::Plain, "a heartbeat");
        let mut other = request(id(4, 50), &[id(4, 51)]);
        other.vote.leader_id = leader(6);
        assert_eq!(known.way(PEER, &other, now), Way::Plain, "it voted for somebody else");
        let mut candidate = request(id(4, 50), &[id(4, 51)]);
        candidate.vote.committed = false;
        assert_eq!(known.way(PEER, &candidate, now), Way::Plain, "not elected");
        assert_eq!(
            known.way(PEER, &request(id(4, 100), &[id(5, 101)]), now),
            Way::Plain,
            "at the end already"
        );
        known.held(PEER, &other, id(5, 101), now);
        assert_eq!(known.way(PEER, &request(id(4, 50), &[id(4, 51)]), now), Way::From(id(4, 100)));
        known.voted(PEER, leader(5), None);
        assert_eq!(
            known.way(PEER, &request(id(4, 50), &[id(4, 51)]), now),
            Way::Plain,
            "an empty log says nothing"
        );
    }

    #[test]
    fn only_the_leaders_own_entry_is_built_upon() {
        let search = request(id(4, 50), &[id(4, 51)]);
        let own = entries(&[id(4, 100), id(5, 101)]);
        let asked = from_end(&search, id(4, 100), own.clone()).expect("the log has it");
        assert_eq!(asked.prev_log_id, Some(id(4, 100)));
        assert_eq!(asked.entries, entries(&[id(5, 101)]));
        assert!(from_end(&search, id(3, 100), own).is_none(), "the voter's end is of another leader");
        assert!(from_end(&search, id(4, 100), Vec::new()).is_none(), "purged");
    }
}
