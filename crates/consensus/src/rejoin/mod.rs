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

mod task;

use crate::environment::{Environment, Storage as _};
use muster_store::Rejoin;
use thiserror::Error;
use tokio::sync::watch;

pub(crate) use task::RejoinTask;

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
