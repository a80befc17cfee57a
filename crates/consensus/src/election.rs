//! Replicas campaign in turn, so that votes are rarely split.
//!
//! After a leader falls silent its followers refuse every vote for one lease. From then on each
//! voter has a turn of its own, in the order of its rank; the protocol's random timeout stays what
//! it was and begins after the last turn, as a safety net. A turn asks for pre-votes, which a
//! replica whose own lease still holds does not even send, so leases are what they were.
//!
//! **Invariant:** nothing here shortens a lease: a campaign before its end is a campaign not made.

use crate::config::ConsensusConfig;
use crate::ground::{Ground, Metrics, Raft};
use crate::rejoin::RejoinGate;
use muster_store::{Space, StorageHealth};
use muster_types::ReplicaId;
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use openraft::type_config::TypeConfigExt as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// When this replica last acknowledged a leader. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Heard(Arc<Mutex<Option<Instant>>>);

impl Heard {
    pub(crate) fn at(&self, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    fn last(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Beyond the end of the lease by the protocol's own clock, which starts when a message is handled.
const MARGIN: Duration = Duration::from_millis(5);

/// Which turn a replica has among `voters` when `silent` leads no more, and how many there are.
fn turn(config: &ConsensusConfig, voters: &[ReplicaId], silent: Option<ReplicaId>) -> Option<(u32, u32)> {
    let ranks = &config.leader.election_ranks;
    let mut order: Vec<ReplicaId> = voters.iter().copied().filter(|voter| Some(*voter) != silent).collect();
    order.sort_by_key(|voter| (ranks.get(voter).copied().unwrap_or(u32::MAX), *voter));
    let place = order.iter().position(|voter| *voter == config.replica_id)?;
    Some((u32::try_from(place).unwrap_or(u32::MAX), u32::try_from(order.len()).unwrap_or(u32::MAX)))
}

/// How long after the end of a lease this replica waits for its turn.
fn offset(config: &ConsensusConfig, place: u32, turns: u32, storage: StorageHealth) -> Duration {
    let span = Duration::from_millis(config.timing.election_timeout_min_ms);
    // One that should not lead leaves the turns to the others.
    if storage.space != Space::Enough || storage.stalled_ms.is_some() {
        return span;
    }
    span * place / turns.max(1)
}

/// Campaigns once in every silence, when this replica's turn comes.
pub(crate) async fn campaign_in_turn<G: Ground>(
    config: ConsensusConfig,
    raft: Raft<G>,
    metrics: Metrics<G>,
    heard: Heard,
    rejoin: RejoinGate<G>,
    storage: watch::Receiver<StorageHealth>,
) {
    let lease = config.timing.lease();
    let mut campaigned = None;
    loop {
        let (running, order, other_candidate) = {
            let metrics = metrics.borrow_watched();
            let voters: Vec<ReplicaId> = metrics.membership_config.voter_ids().map(ReplicaId).collect();
            let follows = matches!(metrics.state, ServerState::Follower);
            let silent = metrics.vote.committed.then_some(ReplicaId(metrics.vote.leader_id.node_id));
            let order = if follows { turn(&config, &voters, silent) } else { None };
            (metrics.running_state.is_ok(), order, !metrics.vote.committed)
        };
        if !running {
            return;
        }
        let last = heard.last().filter(|last| campaigned != Some(*last));
        let (Some(last), Some((place, turns)), false) = (last, order, rejoin.is_closed()) else {
            G::sleep(lease / 4).await;
            continue;
        };
        let due = last + lease + MARGIN + offset(&config, place, turns, *storage.borrow());
        let rest = due.saturating_duration_since(G::instant());
        if !rest.is_zero() {
            G::sleep(rest).await;
            continue;
        }
        campaigned = Some(last);
        // Somebody whose turn was earlier got this replica's vote already.
        if other_candidate {
            continue;
        }
        tracing::info!(place, "the leader is silent: this replica campaigns in its turn");
        if raft.trigger().elect(true).await.is_err() {
            return;
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

    #[test]
    fn turns_follow_ranks_then_ids_and_pass_over_the_silent_leader() {
        let voters = [ReplicaId(1), ReplicaId(2), ReplicaId(3)];
        assert_eq!(turn(&config(2), &voters, Some(ReplicaId(1))), Some((0, 2)));
        assert_eq!(turn(&config(3), &voters, Some(ReplicaId(1))), Some((1, 2)));
        assert_eq!(turn(&config(4), &voters, None), None, "a learner has no turn");
        let mut ranked = config(3);
        ranked.leader.election_ranks = [(ReplicaId(3), 0)].into();
        assert_eq!(turn(&ranked, &voters, Some(ReplicaId(1))), Some((0, 2)));
    }

    #[test]
    fn the_last_turn_ends_before_the_random_timeouts_begin() {
        let config = config(1);
        let well = StorageHealth::default();
        let span = Duration::from_millis(config.timing.election_timeout_min_ms);
        assert_eq!(offset(&config, 0, 5, well), Duration::ZERO);
        assert!(offset(&config, 4, 5, well) < span);
        let full = StorageHealth { space: Space::Full, ..well };
        assert_eq!(offset(&config, 0, 5, full), span);
    }
}
