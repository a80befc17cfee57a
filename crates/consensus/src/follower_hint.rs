//! The follower log hint: where a peer's log ends, so that a new leader need not search for it.
//!
//! The protocol finds the last entry that it shares with a follower by bisection, with a round trip for each step: over
//! regions, and with thousands of entries in the log, a second passes between an election and the first commit. But
//! each voter of the leader has reported where its log ends. So the first request that searches below that entry is
//! replaced by one that resumes there, with all that follows; and entries that the answer acknowledges are not sent again.
//!
//! **Invariant:** an entry counts as replicated only if the peer acknowledged it to this very leader, after an entry that
//! the leader's own log has at the same index. No heartbeat is answered from here.
//! **Invariant:** the request that a peer was asked in the place of is answered by what it answered: the peer was alive after
//! that request was made, however long its answer took.
//! **Invariant:** of later requests, an acknowledgement answers those that are made within a heartbeat interval of when the
//! request was sent that the peer answered. The protocol takes an answer as proof that the peer was alive when the request was
//! made, and is wrong by no more than that. A shorter time would not do: between distant regions an answer takes most of an
//! interval to arrive. A leader judges by it how deaf it is, and whether it refuses votes and takes proposals meanwhile:
//! proposals need their quorum all the same.
//! **Invariant:** no such answer proves a leadership: a confirmation during which one was given counts for nothing, and is
//! asked for once more ([`FollowerHints::answered`]).
//!
//! `tests/log_end_model.rs` checks all of them over every order of votes, requests, answers and confirmations, with this
//! module's own functions, and shows for each rule what goes wrong without it.

use crate::config::Timing;
use crate::environment::Environment;
use muster_store::{Entry, LeaderId, LogId};
use muster_types::ReplicaId;
use openraft::raft::AppendEntriesRequest;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Entries that are sent with the first request at most.
const ENTRIES_MAX: u64 = 1_024;

/// The hints about all peers. Clones share them.
#[derive(Clone)]
pub struct FollowerHints {
    by_peer: Arc<Mutex<BTreeMap<ReplicaId, FollowerHint>>>,
    /// Requests that were answered without being sent.
    answered: Arc<AtomicU64>,
    fresh: Duration,
}

/// The hint about one peer. It decides without a clock, a lock or a network, so that a model can check every order of
/// events (`tests/log_end_model.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerHint {
    /// The leader that it voted for.
    pub leader: LeaderId,
    /// Where its log ends.
    pub log_end: LogEnd,
}

/// Where the log of a peer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEnd {
    /// It reported this end with its vote.
    Reported(LogId),
    /// It is being asked, or its answer was not the expected one.
    Probing,
    /// It acknowledged everything up to an entry.
    Acknowledged {
        /// That entry.
        through: LogId,
        /// How far the log was committed, as the peer was told then.
        commit: Option<LogId>,
        /// When the request was sent that it answered.
        at: Instant,
    },
}

impl FollowerHint {
    /// The peer voted for `candidate`, with a log that ends at `last`; an empty log says nothing.
    #[must_use]
    pub fn voted(candidate: LeaderId, last: Option<LogId>) -> Option<FollowerHint> {
        last.map(|last| FollowerHint { leader: candidate, log_end: LogEnd::Reported(last) })
    }

    /// How a leader's request is sent. An acknowledgement of the peer counts for `fresh`.
    pub fn plan<E: Environment>(
        &mut self,
        request: &AppendEntriesRequest<E>,
        now: Instant,
        fresh: Duration,
    ) -> SendPlan {
        let (Some(last), true) = (request.entries.last(), request.vote.committed) else {
            return SendPlan::AsIs;
        };
        if self.leader != request.vote.leader_id {
            return SendPlan::AsIs;
        }
        match self.log_end {
            // A request that tells the peer of a commit has to arrive, for the protocol tells it once. It is also what keeps
            // the acknowledgement of a storage that was lost since from counting: the cluster takes such a peer in by
            // entries that it commits.
            LogEnd::Acknowledged { through, commit, at }
                if last.log_id.index() <= through.index()
                    && request.leader_commit <= commit
                    && now.saturating_duration_since(at) <= fresh =>
            {
                SendPlan::AlreadyReplicated(last.log_id)
            }
            LogEnd::Reported(end) if request.prev_log_id.is_none_or(|prev| prev.index() < end.index()) => {
                self.log_end = LogEnd::Probing;
                SendPlan::ResumeFrom(end)
            }
            _ => SendPlan::AsIs,
        }
    }

    /// What a request is answered with that another one was sent in the place of, after the answer to that was taken: with its
    /// own last entry, where the peer has acknowledged that much.
    #[must_use]
    pub fn resumed<E: Environment>(&self, request: &AppendEntriesRequest<E>) -> Option<LogId> {
        let LogEnd::Acknowledged { through, .. } = self.log_end else { return None };
        let last = request.entries.last()?.log_id;
        (self.leader == request.vote.leader_id && last.index() <= through.index()).then_some(last)
    }

    /// The peer acknowledged everything through `through`, in answer to a request that was sent at `sent`.
    pub fn acknowledged<E: Environment>(
        &mut self,
        request: &AppendEntriesRequest<E>,
        through: LogId,
        sent: Instant,
    ) {
        if self.leader == request.vote.leader_id {
            self.log_end = LogEnd::Acknowledged { through, commit: request.leader_commit, at: sent };
        }
    }
}

/// How a request to a peer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPlan {
    /// Unchanged.
    AsIs,
    /// Not at all: the peer has its entries, through this one, and the request is answered here.
    AlreadyReplicated(LogId),
    /// Replaced by a request for what follows this entry, if the leader's own log has it.
    ResumeFrom(LogId),
}

impl FollowerHints {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(timing: Timing) -> FollowerHints {
        let fresh = Duration::from_millis(timing.heartbeat_interval_ms);
        FollowerHints { by_peer: Arc::default(), answered: Arc::default(), fresh }
    }

    fn by_peer(&self) -> MutexGuard<'_, BTreeMap<ReplicaId, FollowerHint>> {
        // Nothing panics while it holds the lock.
        self.by_peer.lock()
    }

    /// A peer voted for `candidate`, with a log that ends at `last`.
    pub fn voted(&self, peer: ReplicaId, candidate: LeaderId, last: Option<LogId>) {
        if let Some(hint) = FollowerHint::voted(candidate, last) {
            self.by_peer().insert(peer, hint);
        }
    }

    /// How a leader's request to a peer is sent.
    #[must_use]
    pub fn plan<E: Environment>(
        &self,
        peer: ReplicaId,
        request: &AppendEntriesRequest<E>,
        now: Instant,
    ) -> SendPlan {
        let mut hints = self.by_peer();
        let plan = hints.get_mut(&peer).map_or(SendPlan::AsIs, |hint| hint.plan(request, now, self.fresh));
        if let SendPlan::AlreadyReplicated(_) = plan {
            // Counted before it is answered, so that a confirmation that rests on it sees the count.
            self.answered.fetch_add(1, Ordering::SeqCst);
        }
        plan
    }

    /// What a request to a peer is answered with that another one was sent in the place of; none where it has to be sent.
    #[must_use]
    pub fn resumed<E: Environment>(
        &self,
        peer: ReplicaId,
        request: &AppendEntriesRequest<E>,
    ) -> Option<LogId> {
        let through = self.by_peer().get(&peer).and_then(|hint| hint.resumed(request))?;
        self.answered.fetch_add(1, Ordering::SeqCst);
        Some(through)
    }

    /// How many requests were answered without being sent, so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::SeqCst)
    }

    /// A peer acknowledged everything through `through`, in answer to a request that was sent at `sent`: the answer may
    /// have waited in a socket while this process stood still.
    pub fn acknowledged<E: Environment>(
        &self,
        peer: ReplicaId,
        request: &AppendEntriesRequest<E>,
        through: LogId,
        sent: Instant,
    ) {
        if let Some(hint) = self.by_peer().get_mut(&peer) {
            hint.acknowledged(request, through, sent);
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
        let (hints, now) = (FollowerHints::new(Timing::WIDE), Instant::now());
        let search = request(id(4, 50), &[id(4, 51), id(4, 52)]);
        assert_eq!(hints.plan(PEER, &search, now), SendPlan::AsIs, "nobody voted");
        hints.voted(PEER, leader(5), Some(id(4, 100)));
        assert_eq!(hints.plan(ReplicaId(3), &search, now), SendPlan::AsIs, "another peer");
        assert_eq!(hints.plan(PEER, &search, now), SendPlan::ResumeFrom(id(4, 100)));
        assert_eq!(hints.plan(PEER, &search, now), SendPlan::AsIs, "asked once");
        hints.acknowledged(PEER, &search, id(5, 101), now);
        assert_eq!(hints.plan(PEER, &search, now), SendPlan::AlreadyReplicated(id(4, 52)));
        assert_eq!(
            hints.plan(PEER, &request(id(4, 100), &[id(5, 101)]), now),
            SendPlan::AlreadyReplicated(id(5, 101))
        );
        assert_eq!(hints.plan(PEER, &request(id(5, 101), &[id(5, 102)]), now), SendPlan::AsIs, "not held");
        let mut telling = request(id(4, 100), &[id(5, 101)]);
        telling.leader_commit = Some(id(5, 101));
        assert_eq!(hints.plan(PEER, &telling, now), SendPlan::AsIs, "it has to hear of the commit");
        let later = now + Duration::from_millis(Timing::WIDE.heartbeat_interval_ms + 1);
        assert_eq!(
            hints.plan(PEER, &search, later),
            SendPlan::AsIs,
            "too long ago to prove that the peer is alive"
        );
    }

    #[test]
    fn an_answer_that_was_read_late_says_nothing_of_the_present() {
        let (hints, sent) = (FollowerHints::new(Timing::WIDE), Instant::now());
        let search = request(id(4, 50), &[id(4, 51), id(4, 52)]);
        hints.voted(PEER, leader(5), Some(id(4, 100)));
        assert_eq!(hints.plan(PEER, &search, sent), SendPlan::ResumeFrom(id(4, 100)));
        // The process stood still before it read the answer.
        hints.acknowledged(PEER, &search, id(5, 101), sent);
        assert_eq!(hints.plan(PEER, &search, sent + Duration::from_secs(3)), SendPlan::AsIs);
        assert_eq!(hints.answered(), 0);
        // By a clock that stood still as well it cannot be told, but it is counted.
        assert_eq!(hints.plan(PEER, &search, sent), SendPlan::AlreadyReplicated(id(4, 52)));
        assert_eq!(hints.answered(), 1);
    }

    #[test]
    fn an_answer_from_a_distant_region_answers_the_request_that_it_was_asked_in_the_place_of() {
        let (hints, sent) = (FollowerHints::new(Timing::WIDE), Instant::now());
        let search = request(id(4, 50), &[id(4, 51), id(4, 52)]);
        assert_eq!(hints.resumed(PEER, &search), None, "nobody voted");
        hints.voted(PEER, leader(5), Some(id(4, 100)));
        assert_eq!(hints.plan(PEER, &search, sent), SendPlan::ResumeFrom(id(4, 100)));
        assert_eq!(hints.resumed(PEER, &search), None, "nothing is acknowledged");
        // Its answer takes as long as answers may: the peer was alive after the request was made.
        hints.acknowledged(PEER, &search, id(5, 101), sent);
        assert_eq!(hints.resumed(PEER, &search), Some(id(4, 52)));
        let after = sent + Duration::from_millis(Timing::WIDE.heartbeat_interval_ms * 9 / 10);
        let next = request(id(4, 52), &[id(4, 53), id(4, 54)]);
        assert_eq!(hints.plan(PEER, &next, after), SendPlan::AlreadyReplicated(id(4, 54)));
        assert_eq!(hints.answered(), 2, "neither proves a leadership");
        let mut other = search.clone();
        other.vote.leader_id = leader(6);
        assert_eq!(hints.resumed(PEER, &other), None, "acknowledged to another leader");
        assert_eq!(hints.resumed(PEER, &request(id(5, 101), &[id(5, 102)])), None, "not acknowledged");
    }

    #[test]
    fn heartbeats_other_leaders_and_what_lies_behind_the_end_go_as_they_are() {
        let (hints, now) = (FollowerHints::new(Timing::WIDE), Instant::now());
        hints.voted(PEER, leader(5), Some(id(4, 100)));
        assert_eq!(hints.plan(PEER, &request(id(4, 50), &[]), now), SendPlan::AsIs, "a heartbeat");
        let mut other = request(id(4, 50), &[id(4, 51)]);
        other.vote.leader_id = leader(6);
        assert_eq!(hints.plan(PEER, &other, now), SendPlan::AsIs, "it voted for somebody else");
        let mut candidate = request(id(4, 50), &[id(4, 51)]);
        candidate.vote.committed = false;
        assert_eq!(hints.plan(PEER, &candidate, now), SendPlan::AsIs, "not elected");
        assert_eq!(
            hints.plan(PEER, &request(id(4, 100), &[id(5, 101)]), now),
            SendPlan::AsIs,
            "at the end already"
        );
        hints.acknowledged(PEER, &other, id(5, 101), now);
        assert_eq!(
            hints.plan(PEER, &request(id(4, 50), &[id(4, 51)]), now),
            SendPlan::ResumeFrom(id(4, 100))
        );
        hints.voted(PEER, leader(5), None);
        assert_eq!(
            hints.plan(PEER, &request(id(4, 50), &[id(4, 51)]), now),
            SendPlan::AsIs,
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
