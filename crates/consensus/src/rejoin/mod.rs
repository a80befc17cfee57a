//! Rejoin: how a replica whose storage lost what it had promised returns under its old id.
//!
//! Its data directory was emptied and carries a durable mark. The replica does not know what it promised before, votes
//! and acknowledged entries, so it must neither vote nor acknowledge as if it did. It asks the leader to rejoin: the
//! cluster removes it and adds it again, as a learner, by entry `r` under leadership `(t, l)`. From there it may vote and
//! acknowledge again, because:
//!
//! - Both entries were committed by quorums that do not contain it, for it acknowledges nothing.
//!   Every quorum of the old voters that its forgotten vote or acknowledgement helped meets those
//!   in another replica, and that one has, by then, a vote of at least `(t, l)` and the log of that
//!   leader: what the forgotten vote elected or the forgotten acknowledgement committed is either
//!   in that log or can no longer be decided under an older vote.
//! - It takes the vote `(t, l)` durably, before it takes anything else, so an earlier leader
//!   cannot use it to decide either.
//! - With the removal, leaders forget how far the replica had acknowledged, and their streams to it end.
//! - It neither votes nor campaigns before its own membership is that of entry `r` or a later one: with an
//!   older one it might take itself for a voter.
//!
//! **Invariant:** while `r` is unknown, every vote, append, snapshot and transfer is refused, and
//! the cluster is not founded a second time.
//! `tests/rejoin_model.rs` checks this over every order of elections, appends, changes of the members and losses, and shows
//! for each rule what is lost without it. The last rule and the vote that is taken matter where the members have grown since
//! a leader was left behind: one more replica would make it a quorum of the members that it knows.
//!
//! **Invariant:** the mark is removed only once entry `r` is in the log or the snapshot and, where the
//! replica voted before, once it votes again: after a restart the rejoin continues where it was.

mod task;

use crate::environment::{Environment, Storage as _};
use muster_store::Rejoin;
use thiserror::Error;
use tokio::sync::watch;

pub(crate) use task::RejoinTask;

/// A replica that lost its storage is asked for something that it must refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RejoinRefusal {
    /// To vote, or to lead.
    #[error("this replica lost its storage: it does not vote before it has rejoined")]
    Vote,
    /// To take entries or a snapshot.
    #[error("this replica lost its storage: it acknowledges nothing before it rejoins")]
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
/// While no leader has added it again.
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

/// How far the rejoin of a replica has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RejoinState {
    /// Its storage was never lost, or it is a full member again.
    Member,
    /// Its storage was lost, and the cluster has not added it again.
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

/// Decides whether this replica may vote and acknowledge. Clones share it.
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

    /// Whether a step of the rejoin is still to be done.
    pub(crate) fn is_pending(&self) -> bool {
        self.state() != RejoinState::Member
    }

    /// Refuses calls that ask for a promise this replica cannot judge.
    pub(crate) fn may_vote(&self) -> Result<(), RejoinRefusal> {
        may_vote(*self.mark.borrow())
    }

    /// Refuses entries and snapshots while an acknowledgement could count together with forgotten ones.
    pub(crate) fn may_acknowledge(&self) -> Result<(), RejoinRefusal> {
        may_acknowledge(*self.mark.borrow())
    }

    /// Changes the mark, durably.
    async fn set(&self, mark: Option<Rejoin>) -> Result<(), String> {
        self.store.set_rejoin(mark).await
    }
}
