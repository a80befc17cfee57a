//! How the end of a job enters the history of run times.

use muster_journal::{Outcome, StopCause};
use muster_types::JobId;

use crate::rows::{HISTORY_ROWS_MAX, HistoryKey, HistoryLevel, HistoryRow, Lesson, Phase};
use crate::state::State;

impl State {
    /// Takes the run time of a job that is about to be over into the history; the bucket of run times that it is in,
    /// none when nothing was learned.
    pub(crate) fn learn(&mut self, job: JobId, outcome: &Outcome) -> Option<u8> {
        let now = self.meta.log_time;
        let lesson = self.lesson(job, outcome)?;
        let spec = self.specs.get(&job).expect("a job has a spec").clone();
        for level in HistoryLevel::ALL {
            let key = HistoryKey::of(level, &spec);
            let observed = self.history.change(&key, |row, ()| {
                let last = row.last;
                row.observe(lesson, now);
                last
            });
            match observed {
                Some(last) if last == now => {}
                Some(last) => {
                    self.indexes.history_by_time.remove(&(last, key));
                    self.indexes.history_by_time.insert((now, key));
                }
                None => {
                    let mut row = HistoryRow::default();
                    row.observe(lesson, now);
                    self.history.insert(key, row);
                    self.indexes.history_by_time.insert((now, key));
                }
            }
        }
        while self.history.len() > HISTORY_ROWS_MAX {
            let oldest = self.indexes.history_by_time.first().copied();
            let (last, key) = oldest.expect("every row of the history is indexed");
            self.indexes.history_by_time.remove(&(last, key));
            self.history.remove(&key);
        }
        Some(lesson.bucket())
    }

    /// What there is to learn. Jobs that were cancelled or failed early teach nothing: they would make all jobs like them
    /// look short.
    fn lesson(&self, job: JobId, outcome: &Outcome) -> Option<Lesson> {
        let row = self.jobs.get(&job)?;
        let last_ms = self.meta.log_time.since_ms(row.started_at?);
        let run_ms = self.times(job).ran_ms.saturating_add(last_ms);
        match (outcome, &row.phase) {
            (Outcome::Succeeded, _) => Some(Lesson::Ran(run_ms)),
            (Outcome::Failed { .. }, Phase::Stopping(StopCause::RunTimeLimit)) => {
                Some(Lesson::Outlived(run_ms))
            }
            (Outcome::Failed { .. } | Outcome::Cancelled, _) => None,
        }
    }

    /// A gang that was stopped waits again: since when, and how much of what it has done it will not have to do once
    /// more. To be called while its row still says when it began.
    pub(crate) fn note_waiting_again(&mut self, job: JobId) {
        let now = self.meta.log_time;
        let kept_ms = self.kept_run_ms(job);
        self.change_times(job, |times| {
            times.waits_since = Some(now);
            times.ran_ms = times.ran_ms.saturating_add(kept_ms);
        });
    }

    /// How long the present attempt ran until it saved its work. One that has somewhere to save it, and never says
    /// when it does, is taken to have saved it just now.
    fn kept_run_ms(&self, job: JobId) -> u64 {
        let Some((row, started)) = self.jobs.get(&job).and_then(|row| Some((row, row.started_at?))) else {
            return 0;
        };
        let says_when = self.recovery(job).is_some_and(|known| known.saved.is_some());
        match row.checkpointed_at {
            Some(saved) => saved.since_ms(started),
            None if self.saves_its_work(job) && !says_when => self.meta.log_time.since_ms(started),
            None => 0,
        }
    }
}
