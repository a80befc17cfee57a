//! How a replica that lost its storage rejoins its cluster.

use super::{RejoinGate, RejoinState, mark_behind_entry};
use crate::config::ConsensusConfig;
use crate::environment::{Environment, PeerLink as _, Peers as _, Raft};
use crate::messages::{FormerVote, RejoinGrant, RejoinRequest, RejoinStep};
use crate::stop::StopHandle;
use muster_store::Rejoin;
use muster_types::ReplicaId;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use openraft::type_config::TypeConfigExt as _;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a leader may take for the two changes that a rejoin needs.
const REJOIN_WAIT: Duration = Duration::from_secs(30);

/// Asks the cluster to add this replica again, and opens the gate when that is done.
pub(crate) struct RejoinTask<E: Environment> {
    pub(crate) config: ConsensusConfig,
    pub(crate) raft: Raft<E>,
    pub(crate) peers: E::Peers,
    pub(crate) gate: RejoinGate<E>,
}

impl<E: Environment> RejoinTask<E> {
    /// Returns once this replica is a full member again, or has stopped.
    pub(crate) async fn run(self, stop: StopHandle) {
        tokio::select! {
            biased;
            () = stop.stopped() => {}
            () = self.rejoin() => {}
        }
    }

    async fn rejoin(&self) {
        let gate = &self.gate;
        if gate.state() == RejoinState::Unknown {
            tracing::warn!("this replica lost its storage and asks to rejoin");
            let grant = self.ask(RejoinStep::AddAsLearner).await;
            tracing::info!(from_index = grant.from_index, "this replica was added again and catches up");
        }
        if let RejoinState::From { index, voted } = gate.state() {
            if !self.reaches(index).await {
                return;
            }
            if let Err(error) = gate.set(mark_behind_entry(Some(Rejoin::From { index, voted }))).await {
                tracing::error!(error, "the mark of a lost storage stays until the next start");
                return;
            }
            self.raft.runtime_config().elect(true);
            tracing::info!(
                from_index = index,
                "this replica knows the entry that added it again: it is a full member"
            );
        }
        if gate.state() == RejoinState::AwaitingVote {
            self.ask(RejoinStep::RestoreVote).await;
            if let Err(error) = gate.set(None).await {
                // At the next start it asks for what it has.
                tracing::warn!(error, "the mark of a vote that is given back stays until the next start");
            }
            tracing::info!("this replica votes again");
        }
    }

    /// Waits for a membership of this entry or a later one; false when the replica stops.
    async fn reaches(&self, index: u64) -> bool {
        let mut metrics = self.raft.metrics();
        loop {
            let known = metrics.borrow_watched().membership_config.log_id().map(|log_id| log_id.index());
            if known >= Some(index) {
                return true;
            }
            if metrics.changed().await.is_err() {
                return false;
            }
        }
    }

    /// Asks one peer after the other until one that leads has done it.
    async fn ask(&self, step: RejoinStep) -> RejoinGrant {
        let own = self.config.replica_id;
        let pause = self.config.timing.lease() * 2;
        let mut links = BTreeMap::new();
        let mut logged = String::new();
        let node = self.config.known_peers.get(&own).cloned().unwrap_or_default();
        // Whether an earlier attempt may have removed this replica and not added it again.
        let mut begun = false;
        // Asked before anything is changed, so that it is known here whichever leader carries the changes out.
        let mut voted = match step {
            RejoinStep::AddAsLearner => FormerVote::Queried,
            RejoinStep::RestoreVote => FormerVote::Known(true),
        };
        loop {
            let mut peers = self.config.known_peers.clone();
            {
                let metrics = self.raft.metrics();
                let metrics = metrics.borrow_watched();
                peers.extend(
                    metrics.membership_config.nodes().map(|(id, node)| (ReplicaId(*id), node.clone())),
                );
            }
            for (id, peer) in peers.iter().filter(|(id, _)| **id != own) {
                let link = links.entry(*id).or_insert_with(|| self.peers.link(*id, peer));
                let mut request = RejoinRequest { step, begun, voted, node: node.clone() };
                let mut answer = E::timeout(REJOIN_WAIT, link.readmit(request.clone())).await;
                if let Ok(Ok(told)) = &answer
                    && voted == FormerVote::Queried
                    && told.from_index == 0
                {
                    voted = FormerVote::Known(told.voted);
                    request.voted = voted;
                    answer = E::timeout(REJOIN_WAIT, link.readmit(request)).await;
                }
                let refusal = match answer {
                    Err(_) => {
                        begun = true;
                        "no answer in time".to_owned()
                    }
                    Ok(Err(error)) => {
                        begun |= error.may_have_begun;
                        error.detail
                    }
                    Ok(Ok(grant)) => match self.accept(step, grant).await {
                        Ok(()) => return grant,
                        Err(reason) => reason,
                    },
                };
                // The same answer every second is logged once.
                if logged != refusal {
                    tracing::warn!(peer = %id, refusal, "this replica has not rejoined yet");
                    logged = refusal;
                }
            }
            E::sleep(pause).await;
        }
    }

    /// Takes the vote of the leadership that added this replica, durably, and only then the entry that it names.
    async fn accept(&self, step: RejoinStep, grant: RejoinGrant) -> Result<(), String> {
        if step != RejoinStep::AddAsLearner {
            return Ok(());
        }
        if !grant.vote.committed {
            return Err("the answer names no leader".to_owned());
        }
        let heartbeat = AppendEntriesRequest::<E> {
            vote: grant.vote,
            prev_log_id: None,
            entries: Vec::new(),
            leader_commit: None,
        };
        match self.raft.append_entries(heartbeat).await {
            Ok(AppendEntriesResponse::Success) => {}
            Ok(other) => return Err(format!("the leadership that added it is over: {other:?}")),
            Err(error) => return Err(error.to_string()),
        }
        let mark = Rejoin::From { index: grant.from_index, voted: grant.voted };
        self.gate.set(Some(mark)).await
    }
}
