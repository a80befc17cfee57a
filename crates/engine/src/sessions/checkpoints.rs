//! Which commits of checkpoints become records: at most one a second of each placement.
//!
//! **Invariant:** nothing is kept of a placement whose last record is older than the pause, unless somebody waits.

use muster_decider::Answer;
use muster_types::{FencingToken, JobId, Refusal};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::refusals::overloaded;

/// Between two records about one placement.
const PAUSE: Duration = Duration::from_secs(1);
/// Placements with a record within the last pause. Beyond it commits are refused as too many.
const PLACEMENTS_MAX: usize = 65_536;
/// From this number on, those whose pause is over are dropped.
const KEPT_MAX: usize = 1_024;

pub(crate) type Outcome = Option<Result<Answer, Refusal>>;

struct Recent {
    /// When the last record was asked for.
    at: Instant,
    /// The record after it, while somebody waits for that.
    next: Option<watch::Receiver<Outcome>>,
}

/// Placements with recent commits.
#[derive(Default)]
pub(crate) struct Checkpoints {
    recent: Mutex<BTreeMap<(JobId, FencingToken), Recent>>,
}

/// What a commit has to do.
pub(crate) enum CommitAction {
    /// Make a record now.
    Record,
    /// Make one then, for all who wait.
    RecordAt(Instant, watch::Sender<Outcome>, watch::Receiver<Outcome>),
    /// Wait for the one that another makes.
    Wait(watch::Receiver<Outcome>),
}

impl Checkpoints {
    /// What a commit has to do now.
    pub(crate) fn enter(&self, key: (JobId, FencingToken), now: Instant) -> Result<CommitAction, Refusal> {
        let mut recent = self.recent.lock();
        if recent.len() >= KEPT_MAX {
            recent.retain(|_, known| known.next.is_some() || known.at + PAUSE > now);
        }
        let is_full = recent.len() >= PLACEMENTS_MAX;
        match recent.get_mut(&key) {
            None if is_full => Err(overloaded()),
            None => {
                recent.insert(key, Recent { at: now, next: None });
                Ok(CommitAction::Record)
            }
            Some(Recent { next: Some(next), .. }) => Ok(CommitAction::Wait(next.clone())),
            Some(known) if known.at + PAUSE <= now => {
                known.at = now;
                Ok(CommitAction::Record)
            }
            Some(known) => {
                let (sender, receiver) = watch::channel(None);
                known.next = Some(receiver.clone());
                Ok(CommitAction::RecordAt(known.at + PAUSE, sender, receiver))
            }
        }
    }

    /// The record that was waited for is made now: what is reported from here on waits for the one after it.
    pub(crate) fn begin(&self, key: (JobId, FencingToken), now: Instant) {
        let mut recent = self.recent.lock();
        recent.insert(key, Recent { at: now, next: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::LogIndex;

    fn token(log_index: u64) -> FencingToken {
        FencingToken { log_index: LogIndex(log_index), ..FencingToken::default() }
    }

    #[test]
    fn nothing_is_kept_of_a_placement_that_is_silent() {
        let checkpoints = Checkpoints::default();
        let now = Instant::now();
        for job in 0..KEPT_MAX as u64 {
            assert!(matches!(checkpoints.enter((JobId(job), token(1)), now), Ok(CommitAction::Record)));
        }
        assert!(matches!(checkpoints.enter((JobId(1), token(1)), now), Ok(CommitAction::RecordAt(..))));
        assert!(
            matches!(checkpoints.enter((JobId(1), token(2)), now), Ok(CommitAction::Record)),
            "another attempt"
        );
        let kept = || checkpoints.recent.lock().len();
        assert_eq!(kept(), KEPT_MAX + 1);
        assert!(matches!(checkpoints.enter((JobId(1), token(1)), now + PAUSE), Ok(CommitAction::Wait(_))));
        assert!(matches!(checkpoints.enter((JobId(2), token(1)), now + PAUSE), Ok(CommitAction::Record)));
        assert_eq!(kept(), 2, "the one that is waited for, and the one that was said just now");
    }
}
