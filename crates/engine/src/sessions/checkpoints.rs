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
    /// The highest step of those who wait for that record.
    step: Option<u64>,
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
    /// What a commit has to do now. `step` is the one that the work is saved up to.
    pub(crate) fn enter(
        &self,
        key: (JobId, FencingToken),
        step: Option<u64>,
        now: Instant,
    ) -> Result<CommitAction, Refusal> {
        let mut recent = self.recent.lock();
        if recent.len() >= KEPT_MAX {
            recent.retain(|_, known| known.next.is_some() || known.at + PAUSE > now);
        }
        let is_full = recent.len() >= PLACEMENTS_MAX;
        match recent.get_mut(&key) {
            None if is_full => Err(overloaded()),
            None => {
                recent.insert(key, Recent { at: now, next: None, step: None });
                Ok(CommitAction::Record)
            }
            Some(Recent { next: Some(next), step: highest, .. }) => {
                *highest = (*highest).max(step);
                Ok(CommitAction::Wait(next.clone()))
            }
            Some(known) if known.at + PAUSE <= now => {
                known.at = now;
                Ok(CommitAction::Record)
            }
            Some(known) => {
                let (sender, receiver) = watch::channel(None);
                (known.next, known.step) = (Some(receiver.clone()), step);
                Ok(CommitAction::RecordAt(known.at + PAUSE, sender, receiver))
            }
        }
    }

    /// The record that was waited for is made now: what is reported from here on waits for the one after it. Returns the
    /// highest step that was reported for it.
    pub(crate) fn begin(&self, key: (JobId, FencingToken), now: Instant) -> Option<u64> {
        let mut recent = self.recent.lock();
        recent.insert(key, Recent { at: now, next: None, step: None }).and_then(|known| known.step)
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
            assert!(matches!(checkpoints.enter((JobId(job), token(1)), None, now), Ok(CommitAction::Record)));
        }
        assert!(matches!(checkpoints.enter((JobId(1), token(1)), None, now), Ok(CommitAction::RecordAt(..))));
        assert!(
            matches!(checkpoints.enter((JobId(1), token(2)), None, now), Ok(CommitAction::Record)),
            "another attempt"
        );
        let kept = || checkpoints.recent.lock().len();
        assert_eq!(kept(), KEPT_MAX + 1);
        assert!(matches!(
            checkpoints.enter((JobId(1), token(1)), None, now + PAUSE),
            Ok(CommitAction::Wait(_))
        ));
        assert!(matches!(
            checkpoints.enter((JobId(2), token(1)), None, now + PAUSE),
            Ok(CommitAction::Record)
        ));
        assert_eq!(kept(), 2, "the one that is waited for, and the one that was said just now");
    }

    #[test]
    fn the_record_of_many_commits_has_the_highest_of_their_steps() {
        let checkpoints = Checkpoints::default();
        let (now, key) = (Instant::now(), (JobId(1), token(1)));
        let enter = |step| checkpoints.enter(key, step, now).expect("it is taken");
        assert!(matches!(enter(Some(3)), CommitAction::Record));
        assert!(matches!(enter(Some(4)), CommitAction::RecordAt(..)));
        for step in [Some(6), Some(5), None] {
            assert!(matches!(enter(step), CommitAction::Wait(_)));
        }
        assert_eq!(checkpoints.begin(key, now), Some(6));
        assert_eq!(checkpoints.begin(key, now), None, "the next record begins without one");
    }
}
