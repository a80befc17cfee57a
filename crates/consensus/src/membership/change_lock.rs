//! The lock that keeps changes of the membership apart, and the votes that rejoining replicas are to get back.

use super::{ChangeProgress, ChangeStep};
use crate::error::MembershipError;
use muster_types::ReplicaId;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use tokio::sync::watch;

/// The one change that may be made at a time.
pub(super) struct ChangeLock {
    running: Mutex<Option<String>>,
    progress: watch::Sender<Option<ChangeProgress>>,
    /// Replicas that lost their vote under this leader because they rejoin, and do not have it back yet. One that missed
    /// the answer asks once more, and is no longer a voter by then. The set is lost with the leadership; each replica
    /// has asked before whether it voted, and tells the next leader.
    owed: Mutex<BTreeSet<ReplicaId>>,
}

impl ChangeLock {
    pub(super) fn new() -> ChangeLock {
        ChangeLock { running: Mutex::new(None), progress: watch::Sender::new(None), owed: Mutex::default() }
    }

    pub(super) fn progress(&self) -> watch::Receiver<Option<ChangeProgress>> {
        self.progress.subscribe()
    }

    fn owed(&self) -> MutexGuard<'_, BTreeSet<ReplicaId>> {
        self.owed.lock()
    }

    /// Whether this replica's vote is to be given back.
    pub(super) fn owes_a_vote(&self, id: ReplicaId) -> bool {
        self.owed().contains(&id)
    }

    /// The replica lost its vote because it rejoins.
    pub(super) fn vote_removed(&self, id: ReplicaId) {
        self.owed().insert(id);
    }

    /// The replica votes again.
    pub(super) fn vote_restored(&self, id: ReplicaId) {
        self.owed().remove(&id);
    }

    pub(super) fn begin(&self, operation: String) -> Result<ChangePermit<'_>, MembershipError> {
        let mut running = self.running.lock();
        if let Some(running) = &*running {
            return Err(MembershipError::Busy { running: running.clone() });
        }
        *running = Some(operation.clone());
        Ok(ChangePermit { lock: self, operation })
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.lock().is_none()
    }
}

/// Held while a change is made.
pub(super) struct ChangePermit<'c> {
    lock: &'c ChangeLock,
    operation: String,
}

impl ChangePermit<'_> {
    pub(super) fn at(&self, step: ChangeStep) {
        let progress = ChangeProgress { operation: self.operation.clone(), step };
        self.lock.progress.send_if_modified(|current| {
            let changed = current.as_ref() != Some(&progress);
            if changed {
                *current = Some(progress);
            }
            changed
        });
    }
}

impl Drop for ChangePermit<'_> {
    fn drop(&mut self) {
        *self.lock.running.lock() = None;
        self.lock.progress.send_replace(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_change_at_a_time() {
        let changes = ChangeLock::new();
        let permit = changes.begin("one".to_owned()).expect("nothing runs yet");
        permit.at(ChangeStep::AddingLearner);
        assert!(changes.progress().borrow().is_some());
        let refused = changes.begin("two".to_owned());
        assert!(matches!(refused, Err(MembershipError::Busy { running }) if running == "one"));
        drop(permit);
        assert!(changes.progress().borrow().is_none());
        assert!(changes.begin("two".to_owned()).is_ok());
    }
}
