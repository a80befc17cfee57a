//! The bootstrap of a new cluster.
//!
//! Every replica of a new cluster is started with the request to found it, and the one with the lowest id does so. A
//! replica whose disk was lost or replaced looks the same as a new one, and would forget what it promised. So the
//! founder asks all configured members first. If one of them has a log, the cluster exists, and nothing is founded.
//! When all of them wait for a founding, the founder draws a number, has each of them store it durably, and only then
//! writes the first entry.
//!
//! **Invariant:** a replica that waits for a founding neither votes nor acknowledges.
//! **Invariant:** nothing is founded unless every configured member said that it has nothing.

use crate::environment::{Environment, Peers as _, Raft, TokioEnv};
use crate::error::StartError;
use crate::messages::PeerReport;
use crate::network::{Grpc, PeerChannel, PeerNetwork};
use muster_store::{FoundingId, ReplicaNode, ReplicaStore};
use muster_types::ReplicaId;
use openraft::errors::{InitializeError, RaftError};
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

/// How long one member may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Between two rounds of questions.
const ROUNDS_APART: Duration = Duration::from_millis(100);
/// After this many rounds the members that the founding waits for are logged.
const ROUNDS_PER_NOTE: u32 = 50;

/// A number that no other founding has. The keys of the standard library's hash maps are random.
pub(crate) fn fresh_founding() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Writes the first membership, if this replica is the member with the lowest id and its log is empty.
///
/// # Errors
/// When this replica is not in the list, or it stops.
pub(crate) async fn initialize<E: Environment>(
    own: ReplicaId,
    raft: &Raft<E>,
    members: BTreeMap<ReplicaId, ReplicaNode>,
) -> Result<(), StartError> {
    if !members.contains_key(&own) {
        return Err(StartError::Initialize { detail: format!("{own} is not among the members") });
    }
    if members.keys().next() != Some(&own) {
        return Ok(());
    }
    let members: BTreeMap<u64, ReplicaNode> = members.into_iter().map(|(id, node)| (id.0, node)).collect();
    match raft.initialize(members).await {
        // Already part of a cluster.
        Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
        Err(error) => Err(StartError::Initialize { detail: error.to_string() }),
    }
}

/// Forms a new cluster from this replica's side.
pub(crate) struct Bootstrap<'r> {
    pub(crate) own: ReplicaId,
    pub(crate) store: &'r ReplicaStore,
    pub(crate) raft: &'r Raft<TokioEnv>,
    pub(crate) network: &'r PeerNetwork<TokioEnv, Grpc>,
}

impl Bootstrap<'_> {
    /// Founds the cluster of `members`, all voters, or waits until the member with the lowest id has done so. Every
    /// replica of a new cluster calls this with the same members. A replica that has a log, or that waits to be taken
    /// into a cluster that runs, does nothing.
    ///
    /// # Errors
    /// [`StartError::Exists`] when a member has this cluster already: this replica lost its disk.
    pub(crate) async fn found(&self, members: BTreeMap<ReplicaId, ReplicaNode>) -> Result<(), StartError> {
        let (own, store) = (self.own, self.store);
        if store.founding() == FoundingId::Unknown || !members.contains_key(&own) {
            return initialize(own, self.raft, members).await;
        }
        let founds = members.keys().next() == Some(&own);
        let mut links: BTreeMap<ReplicaId, PeerChannel<TokioEnv, Grpc>> = BTreeMap::new();
        for (id, node) in members.iter().filter(|(id, _)| **id != own) {
            links.insert(*id, self.network.link(*id, node));
        }
        for round in 1_u32.. {
            if !store.is_blank() || (!founds && store.founding().id().is_some()) {
                return Ok(());
            }
            let ours = store.founding().id();
            let answers = ask(&mut links, ours.filter(|_| founds)).await;
            // A member that was made one of this founding meanwhile may see its founder's first entry.
            let is_still_blank = store.is_blank() && store.founding().id() == ours;
            let has_log =
                |report: &PeerReport| report.last_log_index.is_some() || report.applied_index.is_some();
            if let Some((peer, _)) = answers.iter().find(|(_, report)| has_log(report))
                && is_still_blank
            {
                return Err(StartError::Exists { peer: *peer });
            }
            let has_all = answers.len() == links.len();
            if founds && has_all {
                if ours.is_some() && answers.values().all(|report| report.founding == ours) {
                    return initialize(own, self.raft, members).await;
                }
                if ours.is_none() {
                    // One that was chosen before an interruption stays.
                    let chosen = answers.values().find_map(|report| report.founding);
                    self.belong_to(chosen.unwrap_or_else(fresh_founding)).await?;
                    continue;
                }
            }
            if round.is_multiple_of(ROUNDS_PER_NOTE) {
                let missing: Vec<_> = links.keys().filter(|id| !answers.contains_key(id)).collect();
                tracing::warn!(?missing, "the cluster is founded once every configured member has answered");
            }
            tokio::time::sleep(ROUNDS_APART).await;
        }
        Ok(())
    }

    async fn belong_to(&self, founding: u64) -> Result<(), StartError> {
        let store = self.store.clone();
        let marked = tokio::task::spawn_blocking(move || store.set_founding(founding)).await;
        let marked = marked.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        marked.map_err(StartError::Mark)
    }
}

/// How the members are that answer.
async fn ask(
    links: &mut BTreeMap<ReplicaId, PeerChannel<TokioEnv, Grpc>>,
    found: Option<u64>,
) -> BTreeMap<ReplicaId, PeerReport> {
    let asked = links.iter_mut().map(|(id, link)| async move {
        let answer = tokio::time::timeout(ANSWER_MAX, link.found(found)).await;
        Some((*id, answer.ok()?.ok()?))
    });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}
