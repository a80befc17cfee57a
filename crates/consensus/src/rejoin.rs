//! A replica whose storage lost what it had promised, and how it comes back under its old id.
//!
//! Its folder was emptied and carries a durable mark. What its earlier life promised, votes and
//! acknowledged entries, is unknown to it, so it must not speak in that life's name. It asks the
//! leader to be taken in anew: the cluster removes it and adds it again, as a learner, by entry `r`
//! under leadership `(t, l)`. Why it may speak again from there:
//!
//! - Both entries were committed by quorums that do not contain it, for it acknowledges nothing.
//!   Every quorum of the old voters that its forgotten vote or acknowledgement helped meets those
//!   in another replica, and that one has, by then, a vote of at least `(t, l)` and the log of that
//!   leader: what the forgotten vote elected or the forgotten acknowledgement committed is either
//!   in that log or can no longer be decided under an older vote.
//! - It takes the vote `(t, l)` durably, before it takes anything else, so a leader of before
//!   cannot use it to decide either.
//! - A leader's progress of its earlier life ends with the removal; its old streams end with it.
//! - It neither votes nor campaigns before its own membership is one of entry `r` or later: with an
//!   older one it might take itself for a voter.
//!
//! **Invariant:** while `r` is unknown, every vote, append, snapshot and transfer is refused, and
//! the cluster is not formed anew.
//! **Invariant:** the mark is removed only once entry `r` is in the log or the snapshot and, where the
//! replica voted before, once it votes again: a restart on the way goes on where it was.

use crate::consensus::Consensus;
use crate::network::{PeerChannel, Refusal};
use muster_store::{LeaderId, RaftConfig, Rejoin, ReplicaStore, Vote};
use muster_types::ReplicaId;
use muster_wire::raft::v1 as wire;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use openraft::vote::RaftLeaderId;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;
use tonic::{Code, Status};

/// How long a leader may take for the two changes that taking a replica in anew needs.
const READMIT_WAIT: Duration = Duration::from_secs(30);

/// Where a replica that was emptied stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It was never emptied, or is a full member again.
    Member,
    /// It was emptied, and the cluster has not taken it in anew yet.
    Unknown,
    /// It was added again by this entry, and does not have it yet.
    From {
        index: u64,
        /// Whether it voted before.
        voted: bool,
    },
    /// It is a full member again, and is to be given its vote back.
    Voteless,
}

/// Whether this replica may speak. Clones share it.
#[derive(Clone)]
pub(crate) struct RejoinGate {
    store: ReplicaStore,
    mark: watch::Receiver<Option<Rejoin>>,
}

impl RejoinGate {
    pub(crate) fn new(store: ReplicaStore) -> RejoinGate {
        let mark = store.rejoin();
        RejoinGate { store, mark }
    }

    pub(crate) fn standing(&self) -> Standing {
        match *self.mark.borrow() {
            None => Standing::Member,
            Some(Rejoin::Unknown) => Standing::Unknown,
            Some(Rejoin::From { index, voted }) => Standing::From { index, voted },
            Some(Rejoin::Voteless) => Standing::Voteless,
        }
    }

    /// Whether it may not vote.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.standing(), Standing::Unknown | Standing::From { .. })
    }

    /// Whether something of being taken in anew is still to be done.
    pub(crate) fn is_on_its_way(&self) -> bool {
        self.standing() != Standing::Member
    }

    /// Refuses calls that ask for a promise this replica cannot judge.
    pub(crate) fn may_vote(&self) -> Result<(), Status> {
        if !self.is_closed() {
            return Ok(());
        }
        Err(Refusal::Rejoining.status(
            "this replica lost its storage: it does not vote before the cluster has taken it in anew",
        ))
    }

    /// Refuses entries and snapshots while an acknowledgement could count for its earlier life.
    pub(crate) fn may_acknowledge(&self) -> Result<(), Status> {
        match self.standing() {
            Standing::Unknown => Err(Refusal::Rejoining.status(
                "this replica lost its storage: it acknowledges nothing before the cluster has taken it in anew",
            )),
            _ => Ok(()),
        }
    }

    /// Changes the mark, durably.
    async fn set(&self, mark: Option<Rejoin>) -> Result<(), String> {
        let store = self.store.clone();
        let written = tokio::task::spawn_blocking(move || match mark {
            None => store.clear_rejoin(),
            Some(rejoin) => store.set_rejoin(rejoin),
        });
        match written.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Has the cluster take this replica in anew, and opens the gate when that is done.
pub(crate) async fn come_back(consensus: Consensus) {
    let mut stop = consensus.stopped();
    tokio::select! {
        _ = stop.wait_for(Option::is_some) => {}
        () = find_back(&consensus) => {}
    }
}

async fn find_back(consensus: &Consensus) {
    let gate = &consensus.inner.rejoin;
    if gate.standing() == Standing::Unknown {
        tracing::warn!("this replica lost its storage and asks to be taken in anew");
        let readmitted = ask(consensus, wire::readmit_request::Step::Readmit).await;
        tracing::info!(from_index = readmitted.from_index, "this replica is taken in anew and catches up");
    }
    if let Standing::From { index, voted } = gate.standing() {
        if !reaches(consensus, index).await {
            return;
        }
        if let Err(error) = gate.set(voted.then_some(Rejoin::Voteless)).await {
            tracing::error!(error, "the mark of a lost storage stays until the next start");
            return;
        }
        consensus.inner.raft.runtime_config().elect(true);
        tracing::info!(
            from_index = index,
            "this replica knows the entry that took it in anew: it is a full member again"
        );
    }
    if gate.standing() == Standing::Voteless {
        ask(consensus, wire::readmit_request::Step::Promote).await;
        if let Err(error) = gate.set(None).await {
            // At the next start it asks for what it has.
            tracing::warn!(error, "the mark of a vote that is given back stays until the next start");
        }
        tracing::info!("this replica votes again");
    }
}

/// Waits for a membership of this entry or a later one; false when the replica stops.
async fn reaches(consensus: &Consensus, index: u64) -> bool {
    let mut metrics = consensus.inner.raft.metrics();
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
async fn ask(consensus: &Consensus, step: wire::readmit_request::Step) -> wire::ReadmitResponse {
    let own = consensus.inner.config.replica_id;
    let pause = consensus.inner.config.timing.lease() * 2;
    let mut channels: BTreeMap<ReplicaId, PeerChannel> = BTreeMap::new();
    let mut said = String::new();
    let here = consensus.inner.config.known_peers.get(&own).cloned().unwrap_or_default();
    // Whether an earlier attempt may have removed this replica and not added it again.
    let mut begun = false;
    loop {
        let mut peers = consensus.inner.config.known_peers.clone();
        {
            let metrics = consensus.inner.raft.metrics();
            let metrics = metrics.borrow_watched();
            peers.extend(metrics.membership_config.nodes().map(|(id, node)| (ReplicaId(*id), node.clone())));
        }
        for (id, node) in peers.iter().filter(|(id, _)| **id != own) {
            let channel = channels.entry(*id).or_insert_with(|| consensus.inner.network.channel(*id, node));
            let request = wire::ReadmitRequest {
                peer: None,
                step: step.into(),
                begun,
                region: here.region.clone(),
                peer_endpoint: here.peer_endpoint.clone(),
                client_endpoint: here.client_endpoint.clone(),
            };
            let answer = tokio::time::timeout(READMIT_WAIT, channel.readmit(request)).await;
            let refusal = match answer {
                Err(_) => {
                    begun = true;
                    "no answer in time".to_owned()
                }
                Ok(Err(status)) => {
                    begun |= matches!(
                        status.code(),
                        Code::Aborted
                            | Code::Unknown
                            | Code::Internal
                            | Code::Cancelled
                            | Code::DeadlineExceeded
                    );
                    status.message().to_owned()
                }
                Ok(Ok(response)) => match accept(consensus, step, &response).await {
                    Ok(()) => return response,
                    Err(reason) => reason,
                },
            };
            // The same answer every second is said once.
            if said != refusal {
                tracing::warn!(peer = %id, refusal, "this replica is not taken in anew yet");
                said = refusal;
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// Takes the vote of the leadership that took this replica in, durably, and only then its word for
/// the entry.
async fn accept(
    consensus: &Consensus,
    step: wire::readmit_request::Step,
    response: &wire::ReadmitResponse,
) -> Result<(), String> {
    if step != wire::readmit_request::Step::Readmit {
        return Ok(());
    }
    let vote = response.vote.filter(|vote| vote.committed).ok_or("the answer names no leader")?;
    let vote = Vote { leader_id: LeaderId::new(vote.term, vote.replica), committed: true };
    let heartbeat = AppendEntriesRequest::<RaftConfig> {
        vote,
        prev_log_id: None,
        entries: Vec::new(),
        leader_commit: None,
    };
    match consensus.inner.raft.append_entries(heartbeat).await {
        Ok(AppendEntriesResponse::Success) => {}
        Ok(other) => return Err(format!("the leadership that took it in is over: {other:?}")),
        Err(error) => return Err(error.to_string()),
    }
    let mark = Rejoin::From { index: response.from_index, voted: response.voted };
    consensus.inner.rejoin.set(Some(mark)).await
}
