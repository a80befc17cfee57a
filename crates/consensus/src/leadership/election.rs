//! Staggered elections: replicas campaign one after the other, so that votes are rarely split.
//!
//! After a leader falls silent its followers refuse every vote for one lease. From then on each voter has a slot in
//! the order of its rank; the protocol's random timeout is unchanged and begins after the last slot, as a safety net. A
//! campaign asks for pre-votes first, which a replica whose own lease still holds does not even send, so leases are
//! unchanged too. A replica that granted a candidate its request leaves it the time of an election before its own
//! slot: over regions two rounds of votes take longer than a slot, and a split vote costs a timeout.
//!
//! Followers hear the last request of their leader at different moments, distant ones later. Where a candidate needs
//! the vote of every survivor, a follower whose lease has a little longer to run would refuse it, and the slot would be
//! lost. So a candidate that asks shortly before the end of a lease is answered at its end.
//!
//! **Invariant:** nothing here shortens a lease: no replica campaigns before the end of its lease, and the protocol
//! answers a candidate that was kept waiting as if it had just asked.

use crate::config::ConsensusConfig;
use crate::environment::{Environment, Raft};
use crate::rejoin::RejoinGate;
use muster_store::{Space, StorageHealth};
use muster_types::ReplicaId;
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::RaftError;
use openraft::raft::{VoteRequest, VoteResponse};
use openraft::type_config::TypeConfigExt as _;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// When this replica last acknowledged a leader, and when it last granted a candidate something. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct LastContact(Arc<Mutex<ContactTimes>>);

#[derive(Clone, Copy, Default)]
struct ContactTimes {
    leader: Option<Instant>,
    candidate: Option<Instant>,
}

impl LastContact {
    pub(crate) fn at(&self, now: Instant) {
        self.times().leader = Some(now);
    }

    pub(crate) fn candidate_at(&self, now: Instant) {
        self.times().candidate = Some(now);
    }

    /// When a leader was last acknowledged; none before the first.
    pub(crate) fn leader(&self) -> Option<Instant> {
        self.times().leader
    }

    fn times(&self) -> MutexGuard<'_, ContactTimes> {
        // Nothing panics while it holds the lock.
        self.0.lock()
    }
}

/// The time after the end of the own lease: followers heard their leader at different moments, and a campaign can succeed
/// only when the leases of a whole quorum are over. The distances from a leader to its followers differ by an eighth of a
/// heartbeat, in the clusters that the timing is for.
fn margin(config: &ConsensusConfig) -> Duration {
    Duration::from_millis(config.timing.heartbeat_interval_ms / 8)
}

/// How long a candidate is kept waiting: until this replica's lease is over, if that is near. At most half the time that
/// the candidate waits for an answer, because the answer has to travel back.
fn wait_for_lease_end(config: &ConsensusConfig, heard: ContactTimes, now: Instant) -> Option<Duration> {
    let left = (heard.leader? + config.timing.lease()).checked_duration_since(now)?;
    let longest = Duration::from_millis(config.timing.election_timeout_min_ms / 2);
    (!left.is_zero() && left <= longest).then_some(left)
}

/// What a candidate asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoteKind {
    /// Whether this replica would vote for it.
    PreVote,
    /// The vote.
    Vote,
}

/// This replica's part in elections. Clones share it.
pub(crate) struct Elections<E: Environment> {
    config: ConsensusConfig,
    raft: Raft<E>,
    last_contact: LastContact,
}

impl<E: Environment> Clone for Elections<E> {
    fn clone(&self) -> Self {
        Elections {
            config: self.config.clone(),
            raft: self.raft.clone(),
            last_contact: self.last_contact.clone(),
        }
    }
}

impl<E: Environment> Elections<E> {
    pub(crate) fn new(config: ConsensusConfig, raft: Raft<E>) -> Elections<E> {
        Elections { config, raft, last_contact: LastContact::default() }
    }

    /// A leader's request was acknowledged just now: the staggered elections count from here.
    pub(crate) fn leader_heard(&self) {
        self.last_contact.at(E::instant());
    }

    /// When a leader was last acknowledged; `None` before the first.
    pub(crate) fn leader_heard_at(&self) -> Option<Instant> {
        self.last_contact.leader()
    }

    /// Answers a candidate: at the end of this replica's lease where that is near, at once otherwise.
    ///
    /// # Errors
    /// When the protocol has stopped.
    pub(crate) async fn answer(
        &self,
        kind: VoteKind,
        request: VoteRequest<E>,
    ) -> Result<VoteResponse<E>, RaftError<E>> {
        let times = *self.last_contact.times();
        // A leader that transfers leadership has its successor elected within its lease.
        if !request.leadership_transfer
            && let Some(left) = wait_for_lease_end(&self.config, times, E::instant())
        {
            // A lease is over after its last instant.
            E::pause(left + Duration::from_millis(1)).await;
        }
        let answer = match kind {
            VoteKind::PreVote => self.raft.pre_vote(request).await?,
            VoteKind::Vote => self.raft.vote(request).await?,
        };
        if answer.vote_granted {
            self.last_contact.candidate_at(E::instant());
        }
        Ok(answer)
    }
}

/// A voter and its region.
type Voter = (ReplicaId, String);

/// Which slot a replica has among `voters` when `silent` no longer leads, and how many slots there are. Of equal rank,
/// voters in the region of the silent leader come last: what silenced it may have silenced them, and an unused slot is
/// lost time.
fn slot(config: &ConsensusConfig, voters: &[Voter], silent: Option<ReplicaId>) -> Option<(u32, u32)> {
    let ranks = &config.leader.election_ranks;
    let region = voters.iter().find(|(voter, _)| Some(*voter) == silent).map(|(_, region)| region);
    let mut order: Vec<&Voter> = voters.iter().filter(|(voter, _)| Some(*voter) != silent).collect();
    order.sort_by_key(|(voter, own)| {
        (ranks.get(voter).copied().unwrap_or(u32::MAX), Some(own) == region, *voter)
    });
    let place = order.iter().position(|(voter, _)| *voter == config.replica_id)?;
    Some((u32::try_from(place).unwrap_or(u32::MAX), u32::try_from(order.len()).unwrap_or(u32::MAX)))
}

/// How long after the end of a lease this replica's slot begins.
fn offset(config: &ConsensusConfig, place: u32, slots: u32, storage: StorageHealth) -> Duration {
    let span = Duration::from_millis(config.timing.election_timeout_min_ms);
    // A replica that should not lead leaves the slots to the others.
    if storage.space != Space::Enough || storage.stalled_ms.is_some() {
        return span;
    }
    span * place / slots.max(1)
}

/// When this replica's slot begins, from when it heard the leader and candidates.
fn due(config: &ConsensusConfig, heard: ContactTimes, offset: Duration) -> Option<Instant> {
    let due = heard.leader? + config.timing.lease() + margin(config) + offset;
    // A candidate of an earlier silence does not matter now.
    let candidate = heard.candidate.filter(|candidate| Some(*candidate) > heard.leader);
    let left_to_it = candidate.map(|at| at + Duration::from_millis(config.timing.election_timeout_min_ms));
    Some(due.max(left_to_it.unwrap_or(due)))
}

impl<E: Environment> Elections<E> {
    /// Campaigns once in every silence of the leader, at the time that this replica's rank gives it.
    pub(crate) async fn run_staggered(self, rejoin: RejoinGate<E>, storage: watch::Receiver<StorageHealth>) {
        let Elections { config, raft, last_contact } = self;
        let metrics = raft.metrics();
        let lease = config.timing.lease();
        let mut campaigned = None;
        loop {
            let (running, order, other_candidate) = {
                let metrics = metrics.borrow_watched();
                let members = &metrics.membership_config;
                let region = |id: u64| {
                    members.membership().get_node(&id).map_or(String::new(), |node| node.region.clone())
                };
                let voters: Vec<Voter> = members.voter_ids().map(|id| (ReplicaId(id), region(id))).collect();
                let follows = matches!(metrics.state, ServerState::Follower);
                let silent = metrics.vote.committed.then_some(ReplicaId(metrics.vote.leader_id.node_id));
                let order = if follows { slot(&config, &voters, silent) } else { None };
                (metrics.running_state.is_ok(), order, !metrics.vote.committed)
            };
            if !running {
                return;
            }
            let times = *last_contact.times();
            let last = times.leader.filter(|last| campaigned != Some(*last));
            let (Some(last), Some((place, slots)), false) = (last, order, rejoin.is_closed()) else {
                E::sleep(lease / 4).await;
                continue;
            };
            let Some(due) = due(&config, times, offset(&config, place, slots, *storage.borrow())) else {
                continue;
            };
            let rest = due.saturating_duration_since(E::instant());
            if !rest.is_zero() {
                E::sleep(rest).await;
                continue;
            }
            campaigned = Some(last);
            // A candidate with an earlier slot has this replica's vote already.
            if other_candidate {
                continue;
            }
            tracing::info!(place, "the leader is silent: this replica campaigns");
            if raft.trigger().elect(true).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::ClusterId;

    fn config(id: u64) -> ConsensusConfig {
        ConsensusConfig::new(ClusterId(1), ReplicaId(id))
    }

    fn voters(regions: &[(u64, &str)]) -> Vec<Voter> {
        regions.iter().map(|(id, region)| (ReplicaId(*id), (*region).to_owned())).collect()
    }

    #[test]
    fn slots_follow_ranks_then_ids_and_skip_the_silent_leader() {
        let voters = voters(&[(1, "a"), (2, "b"), (3, "c")]);
        assert_eq!(slot(&config(2), &voters, Some(ReplicaId(1))), Some((0, 2)));
        assert_eq!(slot(&config(3), &voters, Some(ReplicaId(1))), Some((1, 2)));
        assert_eq!(slot(&config(4), &voters, None), None, "a learner has no slot");
        let mut ranked = config(3);
        ranked.leader.election_ranks = [(ReplicaId(3), 0)].into();
        assert_eq!(slot(&ranked, &voters, Some(ReplicaId(1))), Some((0, 2)));
    }

    #[test]
    fn voters_in_the_region_of_the_silent_leader_come_last_of_their_rank() {
        let voters = voters(&[(1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "c")]);
        let place = |id| slot(&config(id), &voters, Some(ReplicaId(1)));
        assert_eq!([3, 4, 5, 2].map(place), [0, 1, 2, 3].map(|place| Some((place, 4))));
        let mut ranked = config(2);
        ranked.leader.election_ranks = [(ReplicaId(2), 0)].into();
        assert_eq!(slot(&ranked, &voters, Some(ReplicaId(1))), Some((0, 4)), "a rank says more");
    }

    #[test]
    fn a_candidate_that_was_heard_has_the_time_of_an_election() {
        let config = config(1);
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let lease = config.timing.lease() + margin(&config);
        let span = ms(config.timing.election_timeout_min_ms);
        let at = |leader, candidate: Option<Duration>| {
            let times =
                ContactTimes { leader: Some(start + leader), candidate: candidate.map(|at| start + at) };
            due(&config, times, ms(10))
        };
        assert_eq!(at(ms(5_000), None), Some(start + ms(5_010) + lease));
        assert_eq!(at(ms(5_000), Some(ms(4_999))), at(ms(5_000), None), "of an earlier silence");
        assert_eq!(at(ms(5_000), Some(ms(5_000) + lease)), Some(start + ms(5_000) + lease + span));
        assert_eq!(due(&config, ContactTimes::default(), ms(0)), None, "no leader was ever heard");
    }

    #[test]
    fn a_candidate_waits_for_the_end_of_a_lease_that_is_near() {
        let config = config(1);
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let lease = config.timing.lease();
        let half = ms(config.timing.election_timeout_min_ms / 2);
        let heard = ContactTimes { leader: Some(start), candidate: None };
        let at = |now| wait_for_lease_end(&config, heard, start + now);
        assert_eq!(at(lease - ms(10)), Some(ms(10)));
        assert_eq!(at(lease - half), Some(half));
        assert_eq!(at(lease - half - ms(1)), None, "a leader that was just heard: refused at once");
        assert_eq!(at(lease), None, "over");
        assert_eq!(at(lease + ms(500)), None);
        assert_eq!(
            wait_for_lease_end(&config, ContactTimes::default(), start),
            None,
            "no leader was ever heard"
        );
    }

    #[test]
    fn the_last_slot_ends_before_the_random_timeouts_begin() {
        let config = config(1);
        let well = StorageHealth::default();
        let span = Duration::from_millis(config.timing.election_timeout_min_ms);
        assert_eq!(offset(&config, 0, 5, well), Duration::ZERO);
        assert!(offset(&config, 4, 5, well) < span);
        let full = StorageHealth { space: Space::Full, ..well };
        assert_eq!(offset(&config, 0, 5, full), span);
    }
}
