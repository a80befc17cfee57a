//! How far receivers of notifications have come.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use muster_journal::Decision;
use muster_types::Name;
use muster_types::policy::NotificationProgress;

use crate::commands::answer::Answer;
use crate::speculation::Speculation;

/// One record for all that have gone on. A receiver may have left the policy meanwhile, or a late report may be older than
/// what is recorded: neither is an error.
pub(super) fn note(speculation: &mut Speculation, reported: &[(Name, NotificationProgress)]) -> Answer {
    let state = speculation.state();
    let goes_on = |(name, now): &&(Name, NotificationProgress)| {
        let before = state.notification_progress(name);
        now.delivered <= state.log_index() && before.is_some_and(|before| now.follows(&before))
    };
    // In the order of names, each once.
    let progress: BTreeMap<Name, NotificationProgress> = reported.iter().filter(goes_on).cloned().collect();
    if progress.is_empty() {
        return Answer::Done { at: speculation.last_index() };
    }
    let progress: Vec<(Name, NotificationProgress)> = progress.into_iter().collect();
    Answer::Done { at: speculation.push(Decision::NotificationsDelivered { progress }) }
}
