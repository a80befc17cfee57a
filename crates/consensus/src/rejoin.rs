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
//! `tests/rejoin_model.rs` checks this over every order of elections, appends, changes of the members and losses, and shows
//! for each rule what is lost without it. The last rule and the vote that is taken matter where the members have grown since
//! a leader was left behind: one more replica would make it a quorum of those that it knows.
//!
//! **Invariant:** the mark is removed only once entry `r` is in the log or the snapshot and, where the
//! replica voted before, once it votes again: a restart on the way goes on where it was.

use crate::consensus::Consensus;
use crate::environment::{Environment, PeerError, PeerLink as _, Peers as _, Storage as _};
use crate::error::MembershipError;
use crate::membership::ReaddedMember;
use muster_store::{LeaderId, Rejoin, ReplicaNode, Vote};
use muster_types::ReplicaId;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use openraft::type_config::TypeConfigExt as _;
use openraft::vote::RaftLeaderId;
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch;

/// How long a leader may take for the two changes that taking a replica in anew needs.
const REJOIN_WAIT: Duration = Duration::from_secs(30);

/// What a replica that lost its storage asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejoinStep {
    /// To be taken in anew.
    AddAsLearner,
    /// To be given its vote back.
    RestoreVote,
}

/// What a replica that lost its storage knows of whether it voted. The leader that took its vote may end before it gives
/// the vote back, and no later one could know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormerVote {
    /// It says nothing: an earlier release.
    Unreported,
    /// It asks, and nothing is to be changed yet.
    Queried,
    /// A leader has told it.
    Known(bool),
}

/// A replica that lost its storage asks whoever leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejoinRequest {
    /// For what.
    pub step: RejoinStep,
    /// What it knows of its vote.
    pub voted: FormerVote,
    /// Whether an earlier attempt may have removed it and not added it again.
    pub begun: bool,
    /// Where it lives, for a leader that does not know it any more.
    pub node: ReplicaNode,
}

/// What a leader has done for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejoinGrant {
    /// The entry that added it again; 0 where it only asked whether it voted.
    pub from_index: u64,
    /// The leadership that did so.
    pub vote: Vote,
    /// Whether it voted before.
    pub voted: bool,
}

/// A replica that lost its storage is asked for what it must not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RejoinRefusal {
    /// To vote, or to lead.
    #[error("this replica lost its storage: it does not vote before the cluster has taken it in anew")]
    Vote,
    /// To take entries or a snapshot.
    #[error("this replica lost its storage: it acknowledges nothing before the cluster has taken it in anew")]
    Acknowledge,
}

/// Whether a replica with this mark may vote and campaign.
///
/// # Errors
/// Before it knows the entry that added it again.
pub fn may_vote(mark: Option<Rejoin>) -> Result<(), RejoinRefusal> {
    match mark {
        Some(Rejoin::Unknown | Rejoin::From { .. }) => Err(RejoinRefusal::Vote),
        Some(Rejoin::AwaitingVote) | None => Ok(()),
    }
}

/// Whether a replica with this mark may take entries and snapshots.
///
/// # Errors
/// While no leader has taken it in.
pub fn may_acknowledge(mark: Option<Rejoin>) -> Result<(), RejoinRefusal> {
    match mark {
        Some(Rejoin::Unknown) => Err(RejoinRefusal::Acknowledge),
        Some(Rejoin::From { .. } | Rejoin::AwaitingVote) | None => Ok(()),
    }
}

/// The mark once the replica knows a membership of the entry that added it again, or of a later one.
#[must_use]
pub fn mark_behind_entry(mark: Option<Rejoin>) -> Option<Rejoin> {
    match mark {
        Some(Rejoin::From { voted, .. }) => voted.then_some(Rejoin::AwaitingVote),
        other => other,
    }
}

/// Where a replica that was emptied stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RejoinState {
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
    AwaitingVote,
}

/// Whether this replica may speak. Clones share it.
pub(crate) struct RejoinGate<E: Environment> {
    store: E::Storage,
    mark: watch::Receiver<Option<Rejoin>>,
}

impl<E: Environment> Clone for RejoinGate<E> {
    fn clone(&self) -> Self {
        RejoinGate { store: self.store.clone(), mark: self.mark.clone() }
    }
}

impl<E: Environment> RejoinGate<E> {
    pub(crate) fn new(store: E::Storage) -> RejoinGate<E> {
        let mark = store.rejoin();
        RejoinGate { store, mark }
    }

    pub(crate) fn state(&self) -> RejoinState {
        match *self.mark.borrow() {
            None => RejoinState::Member,
            Some(Rejoin::Unknown) => RejoinState::Unknown,
            Some(Rejoin::From { index, voted }) => RejoinState::From { index, voted },
            Some(Rejoin::AwaitingVote) => RejoinState::AwaitingVote,
        }
    }

    /// Whether it may not vote.
    pub(crate) fn is_closed(&self) -> bool {
        self.may_vote().is_err()
    }

    /// Whether something of being taken in anew is still to be done.
    pub(crate) fn is_pending(&self) -> bool {
        self.state() != RejoinState::Member
    }

    /// Refuses calls that ask for a promise this replica cannot judge.
    pub(crate) fn may_vote(&self) -> Result<(), RejoinRefusal> {
        may_vote(*self.mark.borrow())
    }

    /// Refuses entries and snapshots while an acknowledgement could count for its earlier life.
    pub(crate) fn may_acknowledge(&self) -> Result<(), RejoinRefusal> {
        may_acknowledge(*self.mark.borrow())
    }

    /// Changes the mark, durably.
    async fn set(&self, mark: Option<Rejoin>) -> Result<(), String> {
        self.store.set_rejoin(mark).await
    }
}

/// Has the cluster take this replica in anew, and opens the gate when that is done.
pub(crate) async fn run_rejoin<E: Environment>(consensus: Consensus<E>) {
    let mut stop = consensus.stopped();
    tokio::select! {
        biased;
        _ = stop.wait_for(Option::is_some) => {}
        () = rejoin(&consensus) => {}
    }
}

async fn rejoin<E: Environment>(consensus: &Consensus<E>) {
    let gate = &consensus.inner.rejoin;
    if gate.state() == RejoinState::Unknown {
        tracing::warn!("this replica lost its storage and asks to be taken in anew");
        let readmitted = ask(consensus, RejoinStep::AddAsLearner).await;
        tracing::info!(from_index = readmitted.from_index, "this replica is taken in anew and catches up");
    }
    if let RejoinState::From { index, voted } = gate.state() {
        if !reaches(consensus, index).await {
            return;
        }
        if let Err(error) = gate.set(mark_behind_entry(Some(Rejoin::From { index, voted }))).await {
            tracing::error!(error, "the mark of a lost storage stays until the next start");
            return;
        }
        consensus.inner.raft.runtime_config().elect(true);
        tracing::info!(
            from_index = index,
            "this replica knows the entry that took it in anew: it is a full member again"
        );
    }
    if gate.state() == RejoinState::AwaitingVote {
        ask(consensus, RejoinStep::RestoreVote).await;
        if let Err(error) = gate.set(None).await {
            // At the next start it asks for what it has.
            tracing::warn!(error, "the mark of a vote that is given back stays until the next start");
        }
        tracing::info!("this replica votes again");
    }
}

/// Waits for a membership of this entry or a later one; false when the replica stops.
async fn reaches<E: Environment>(consensus: &Consensus<E>, index: u64) -> bool {
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
async fn ask<E: Environment>(consensus: &Consensus<E>, step: RejoinStep) -> RejoinGrant {
    let own = consensus.inner.config.replica_id;
    let pause = consensus.inner.config.timing.lease() * 2;
    let mut links = BTreeMap::new();
    let mut said = String::new();
    let here = consensus.inner.config.known_peers.get(&own).cloned().unwrap_or_default();
    // Whether an earlier attempt may have removed this replica and not added it again.
    let mut begun = false;
    // Asked before anything is changed, so that it is known here whichever leader carries the changes out.
    let mut voted = match step {
        RejoinStep::AddAsLearner => FormerVote::Queried,
        RejoinStep::RestoreVote => FormerVote::Known(true),
    };
    loop {
        let mut peers = consensus.inner.config.known_peers.clone();
        {
            let metrics = consensus.inner.raft.metrics();
            let metrics = metrics.borrow_watched();
            peers.extend(metrics.membership_config.nodes().map(|(id, node)| (ReplicaId(*id), node.clone())));
        }
        for (id, node) in peers.iter().filter(|(id, _)| **id != own) {
            let link = links.entry(*id).or_insert_with(|| consensus.inner.network.link(*id, node));
            let mut request = RejoinRequest { step, begun, voted, node: here.clone() };
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
                Ok(Ok(readmitted)) => match accept(consensus, step, readmitted).await {
                    Ok(()) => return readmitted,
                    Err(reason) => reason,
                },
            };
            // The same answer every second is said once.
            if said != refusal {
                tracing::warn!(peer = %id, refusal, "this replica is not taken in anew yet");
                said = refusal;
            }
        }
        E::sleep(pause).await;
    }
}

/// Takes the vote of the leadership that took this replica in, durably, and only then its word for
/// the entry.
async fn accept<E: Environment>(
    consensus: &Consensus<E>,
    step: RejoinStep,
    readmitted: RejoinGrant,
) -> Result<(), String> {
    if step != RejoinStep::AddAsLearner {
        return Ok(());
    }
    if !readmitted.vote.committed {
        return Err("the answer names no leader".to_owned());
    }
    let heartbeat = AppendEntriesRequest::<E> {
        vote: readmitted.vote,
        prev_log_id: None,
        entries: Vec::new(),
        leader_commit: None,
    };
    match consensus.inner.raft.append_entries(heartbeat).await {
        Ok(AppendEntriesResponse::Success) => {}
        Ok(other) => return Err(format!("the leadership that took it in is over: {other:?}")),
        Err(error) => return Err(error.to_string()),
    }
    let mark = Rejoin::From { index: readmitted.from_index, voted: readmitted.voted };
    consensus.inner.rejoin.set(Some(mark)).await
}

impl<E: Environment> Consensus<E> {
    /// Whether this replica may be asked for its vote, or to lead.
    ///
    /// # Errors
    /// When its storage was lost and the cluster has not taken it in anew.
    pub fn may_vote(&self) -> Result<(), RejoinRefusal> {
        self.inner.rejoin.may_vote()
    }

    /// Whether this replica may take entries and snapshots.
    ///
    /// # Errors
    /// When its storage was lost and no leader has begun to take it in anew.
    pub fn may_acknowledge(&self) -> Result<(), RejoinRefusal> {
        self.inner.rejoin.may_acknowledge()
    }

    /// Takes in anew a replica that lost its storage, or gives it its vote back, while this replica leads.
    ///
    /// # Errors
    /// When it does not, or the membership refuses; with a word on whether half of it may be done.
    pub async fn rejoin_or_restore_vote(
        &self,
        source: ReplicaId,
        request: RejoinRequest,
    ) -> Result<RejoinGrant, PeerError> {
        let gone = |detail: &str| PeerError { detail: detail.to_owned(), may_have_begun: false };
        let leads = self.leadership().borrow().mine;
        let Some(mine) = leads else { return Err(gone("this replica does not lead")) };
        let readmission = self.readmission(source, request).await.map_err(|error| PeerError {
            detail: error.to_string(),
            // Perhaps by half: the caller says so when it asks again.
            may_have_begun: matches!(
                error,
                MembershipError::Unknown { .. } | MembershipError::NotLeader(_) | MembershipError::Shutdown
            ),
        })?;
        // Made under another leadership, it would be answered in the wrong name.
        if self.leadership().borrow().mine != Some(mine) {
            return Err(gone("the leadership ended meanwhile"));
        }
        let vote = Vote { leader_id: LeaderId::new(mine.term, mine.replica.0), committed: true };
        Ok(RejoinGrant { from_index: readmission.raft_index, vote, voted: readmission.voted })
    }

    async fn readmission(
        &self,
        source: ReplicaId,
        request: RejoinRequest,
    ) -> Result<ReaddedMember, MembershipError> {
        let told = request.voted == FormerVote::Known(true);
        match request.step {
            RejoinStep::AddAsLearner if request.voted == FormerVote::Queried => {
                let votes = self.members().iter().any(|member| member.replica == source && member.votes);
                let voted = votes || self.inner.changing.owes_a_vote(source);
                Ok(ReaddedMember { raft_index: 0, voted })
            }
            RejoinStep::AddAsLearner => match self.readmit(source).await {
                // Its removal was committed under a leadership that ended before it added it again.
                Err(MembershipError::NotMember { .. }) if request.begun => {
                    let added = self.add_learner(source, request.node).await?;
                    let voted = told || self.inner.changing.owes_a_vote(source);
                    Ok(ReaddedMember { raft_index: added.raft_index, voted })
                }
                // It voted when a leader first looked: what took its vote since was its coming back.
                readmitted => readmitted.map(|done| ReaddedMember { voted: done.voted || told, ..done }),
            },
            RejoinStep::RestoreVote => {
                let already = self.members().iter().any(|member| member.replica == source && member.votes);
                let raft_index = if already { 0 } else { self.promote(source).await?.raft_index };
                Ok(ReaddedMember { raft_index, voted: true })
            }
        }
    }
}
