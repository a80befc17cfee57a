//! How far receivers of notifications have come: one row for each that the policy names.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;
use muster_types::Name;
use muster_types::policy::{NotificationProgress, RECEIVERS_MAX};

use crate::effect::Effect;
use crate::guard_error::{GuardError, require};
use crate::state::State;
use crate::verify::BrokenInvariant;

impl State {
    /// How far a receiver has come; none for one that the policy does not name.
    #[must_use]
    pub fn notification_progress(&self, receiver: &Name) -> Option<NotificationProgress> {
        self.notifications.get(receiver).copied()
    }

    pub(crate) fn check_notifications(
        &self,
        progress: &[(Name, NotificationProgress)],
    ) -> Result<(), GuardError> {
        require(!progress.is_empty() && progress.len() <= RECEIVERS_MAX, GuardError::Limit)?;
        require(progress.is_sorted_by(|a, b| a.0 < b.0), GuardError::Limit)?;
        // Nobody can have been told of what is not in the log.
        require(progress.iter().all(|(_, now)| now.delivered <= self.meta.log_index), GuardError::Limit)?;
        let follows = |(name, now): &(Name, NotificationProgress)| {
            self.notifications.get(name).is_some_and(|before| now.follows(before))
        };
        require(progress.iter().all(follows), GuardError::NothingToDo)
    }

    pub(crate) fn fold_notifications(&mut self, progress: &[(Name, NotificationProgress)]) -> Vec<Effect> {
        for (name, now) in progress {
            self.notifications.insert(name.clone(), *now);
        }
        Vec::new()
    }

    /// A receiver that the policy in force names for the first time is told of everything behind the policy's record; one
    /// that it does not name any more is forgotten.
    pub(crate) fn keep_receivers(&mut self) {
        let named: BTreeSet<Name> =
            self.policy.policy.notifications.iter().map(|receiver| receiver.name.clone()).collect();
        let forgotten: Vec<Name> = self
            .notifications
            .iter()
            .map(|(name, _)| name)
            .filter(|name| !named.contains(*name))
            .cloned()
            .collect();
        for name in forgotten {
            self.notifications.remove(&name);
        }
        let at = self.meta.log_index;
        for name in named {
            if !self.notifications.contains(&name) {
                self.notifications.insert(name, NotificationProgress::behind(at));
            }
        }
    }

    /// There is a row for each receiver of the policy and for nobody else, and none is ahead of the log.
    pub(crate) fn verify_notifications(&self) -> Result<(), BrokenInvariant> {
        let named: BTreeSet<&Name> =
            self.policy.policy.notifications.iter().map(|receiver| &receiver.name).collect();
        let known: BTreeSet<&Name> = self.notifications.iter().map(|(name, _)| name).collect();
        if named != known {
            return Err(BrokenInvariant(format!(
                "receivers {known:?} have rows, the policy names {named:?}"
            )));
        }
        let ahead = self.notifications.iter().find(|(_, row)| row.delivered > self.meta.log_index);
        match ahead {
            Some((name, row)) => {
                Err(BrokenInvariant(format!("receiver {name} is at {}, ahead of the log", row.delivered)))
            }
            None => Ok(()),
        }
    }
}
