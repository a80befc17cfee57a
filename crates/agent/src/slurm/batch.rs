//! The batch job of a share as its agent knows it: whether it is to be submitted, what Slurm makes of it, and whether it is
//! cancelled. Three machines of few states, which are told what happens and when.
//!
//! **Invariant:** what is over stays over; what Slurm says of it later changes only how its end is told.

use super::parse::SlurmJob;
use std::time::Duration;
use tokio::time::Instant;

/// The next call that submits it. It counts only while the record says that the job is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submission {
    /// Not before this time.
    Due { at: Instant },
    /// Not before a poll that shows whether an earlier attempt was taken.
    AwaitsPoll,
    /// The call runs.
    InFlight,
}

impl Submission {
    /// Whether it may be begun.
    pub(super) fn is_due(self, now: Instant) -> bool {
        match self {
            Submission::Due { at } => at <= now,
            Submission::AwaitsPoll => true,
            Submission::InFlight => false,
        }
    }

    pub(super) fn is_in_flight(self) -> bool {
        self == Submission::InFlight
    }

    /// A poll has ended.
    pub(super) fn polled(&mut self, now: Instant) {
        if *self == Submission::AwaitsPoll {
            *self = Submission::Due { at: now };
        }
    }
}

/// What Slurm makes of the batch job.
#[derive(Debug)]
pub(super) enum Progress {
    /// No poll has shown it.
    Unseen,
    /// Slurm has it.
    Live {
        job: SlurmJob,
        /// Since when it has run, if it ever did.
        runs_since: Option<Instant>,
        /// Since when it has waited for a node that is out of use.
        vain_since: Option<Instant>,
    },
    /// Nothing more comes of it.
    Over {
        /// As the last poll had it; none where Slurm has no trace of it.
        job: Option<SlurmJob>,
        since: Instant,
        /// Whether the lease of its workers ran out, in place of the job itself.
        lapsed: bool,
    },
}

impl Progress {
    /// The job as the last poll had it.
    pub(super) fn job(&self) -> Option<&SlurmJob> {
        match self {
            Progress::Unseen => None,
            Progress::Live { job, .. } => Some(job),
            Progress::Over { job, .. } => job.as_ref(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self, Progress::Over { .. })
    }

    /// A poll shows the job.
    pub(super) fn seen(&mut self, seen: SlurmJob, now: Instant) {
        if let Progress::Over { job, .. } = self {
            *job = Some(seen);
            return;
        }
        if seen.is_over() {
            *self = Progress::Over { job: Some(seen), since: now, lapsed: false };
            return;
        }
        let (ran, vain) = match self {
            Progress::Live { runs_since, vain_since, .. } => (*runs_since, *vain_since),
            Progress::Unseen | Progress::Over { .. } => (None, None),
        };
        let runs_since = ran.or_else(|| (seen.state == "RUNNING").then_some(now));
        let vain_since = seen.waits_in_vain().then(|| vain.unwrap_or(now));
        *self = Progress::Live { job: seen, runs_since, vain_since };
    }

    /// Slurm has no trace of it, and its workers were launched.
    pub(super) fn lost(&mut self, now: Instant) {
        *self = Progress::Over { job: None, since: now, lapsed: false };
    }

    /// The lease of its workers has run out.
    pub(super) fn lapsed(&mut self, now: Instant) {
        let job = match std::mem::replace(self, Progress::Unseen) {
            Progress::Unseen => None,
            Progress::Live { job, .. } => Some(job),
            Progress::Over { job, .. } => job,
        };
        *self = Progress::Over { job, since: now, lapsed: true };
    }
}

/// Whether Slurm has been asked to end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cancellation {
    NotAsked,
    /// The call runs since.
    InFlight {
        at: Instant,
    },
    /// The call has ended; it began at this time.
    Asked {
        at: Instant,
    },
}

impl Cancellation {
    /// Begins a call unless one runs or began less than `pause` ago; whether it does.
    pub(super) fn begin(&mut self, now: Instant, pause: Duration) -> bool {
        let may = match self {
            Cancellation::NotAsked => true,
            Cancellation::InFlight { .. } => false,
            Cancellation::Asked { at } => now.saturating_duration_since(*at) >= pause,
        };
        if may {
            *self = Cancellation::InFlight { at: now };
        }
        may
    }

    /// The call has ended, however.
    pub(super) fn ended(&mut self) {
        if let Cancellation::InFlight { at } = *self {
            *self = Cancellation::Asked { at };
        }
    }

    pub(super) fn is_in_flight(self) -> bool {
        matches!(self, Cancellation::InFlight { .. })
    }

    pub(super) fn is_asked(self) -> bool {
        self != Cancellation::NotAsked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(state: &str, reason: &str) -> SlurmJob {
        SlurmJob {
            id: 7,
            name: "muster".into(),
            comment: String::new(),
            state: state.into(),
            reason: reason.into(),
            wait_status: 0,
            nodes: "n1".into(),
        }
    }

    #[test]
    fn a_job_runs_from_the_first_poll_that_says_so() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut progress = Progress::Unseen;
        progress.seen(job("PENDING", "Resources"), after(1));
        assert!(matches!(progress, Progress::Live { runs_since: None, vain_since: None, .. }));
        progress.seen(job("RUNNING", "None"), after(2));
        progress.seen(job("RUNNING", "None"), after(3));
        // A job that Slurm puts back has run all the same.
        progress.seen(job("PENDING", "BeginTime"), after(4));
        assert!(matches!(progress, Progress::Live { runs_since: Some(at), .. } if at == after(2)));
    }

    #[test]
    fn waiting_in_vain_counts_without_a_break() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let vain = job("PENDING", "ReqNodeNotAvail, UnavailableNodes:n1");
        assert!(vain.waits_in_vain(), "as Slurm says it");
        let mut progress = Progress::Unseen;
        let since = |progress: &Progress| match progress {
            Progress::Live { vain_since, .. } => *vain_since,
            other => panic!("{other:?}"),
        };
        progress.seen(vain.clone(), after(1));
        progress.seen(vain.clone(), after(2));
        assert_eq!(since(&progress), Some(after(1)));
        progress.seen(job("PENDING", "Priority"), after(3));
        assert_eq!(since(&progress), None);
        progress.seen(vain, after(4));
        assert_eq!(since(&progress), Some(after(4)));
    }

    #[test]
    fn what_is_over_stays_over() {
        let begun = Instant::now();
        let late = begun + Duration::from_secs(9);
        for end in [
            |progress: &mut Progress, at| progress.seen(job("COMPLETED", "None"), at),
            |progress: &mut Progress, at| progress.lapsed(at),
            |progress: &mut Progress, at| progress.lost(at),
        ] {
            let mut progress = Progress::Unseen;
            progress.seen(job("RUNNING", "None"), begun);
            end(&mut progress, begun);
            progress.seen(job("RUNNING", "None"), late);
            assert!(matches!(progress, Progress::Over { since, .. } if since == begun), "{progress:?}");
            assert!(progress.job().is_some(), "Slurm shows it again");
        }
        let mut progress = Progress::Unseen;
        progress.lapsed(begun);
        assert!(progress.job().is_none() && matches!(progress, Progress::Over { lapsed: true, .. }));
    }

    #[test]
    fn calls_that_cancel_have_a_pause_between_them() {
        let begun = Instant::now();
        let pause = Duration::from_secs(10);
        let mut cancellation = Cancellation::NotAsked;
        assert!(cancellation.begin(begun, pause) && cancellation.is_in_flight());
        assert!(!cancellation.begin(begun + 2 * pause, pause), "one call at a time");
        cancellation.ended();
        assert!(cancellation.is_asked() && !cancellation.is_in_flight());
        assert!(!cancellation.begin(begun + pause / 2, pause) && cancellation.begin(begun + pause, pause));
    }

    #[test]
    fn a_submission_waits_for_its_time_or_for_a_poll() {
        let begun = Instant::now();
        let later = begun + Duration::from_secs(1);
        let mut submission = Submission::Due { at: later };
        assert!(!submission.is_due(begun) && submission.is_due(later));
        submission.polled(begun);
        assert_eq!(submission, Submission::Due { at: later }, "a poll is no reason to hurry");
        submission = Submission::AwaitsPoll;
        submission.polled(later);
        assert_eq!(submission, Submission::Due { at: later });
        submission = Submission::InFlight;
        submission.polled(later);
        assert!(submission.is_in_flight() && !submission.is_due(later));
    }
}
