//! A range of an archive as a recording.

use std::cell::Cell;

use muster_archive::{Archive, ArchiveError, Observer};
use muster_console::{Exit, Failure};
use muster_journal::Decision;
use muster_sim::whatif::{Range, Recorder, Recording};
use muster_state::{Applied, State};
use muster_types::{LogIndex, LogTime, PastPoint};

use super::{Progress, refused};
use crate::log::archive_failure;

/// Records between two looks at the clock.
const RECORDS_BETWEEN: u64 = 1_024;

/// What an archive says of a range.
pub(super) struct Reading {
    pub(super) recording: Recording,
    /// What is missing behind the range.
    pub(super) note: Option<String>,
}

/// The recorder as it looks at a replay of the archive.
struct Watcher<'a, 'b> {
    recorder: Recorder,
    is_done: &'a Cell<bool>,
    progress: &'a mut Progress<'b>,
    records: u64,
}

impl Observer for Watcher<'_, '_> {
    fn before(&mut self, state: &State, decision: &Decision) {
        self.recorder.before(state, decision);
    }

    fn after(&mut self, state: &State, applied: &Applied) {
        self.recorder.after(state, applied);
        self.records += 1;
        if self.records.is_multiple_of(RECORDS_BETWEEN) {
            self.progress.tell("reading the log", state.log_time());
        }
    }

    fn round_over(&mut self, state: &State) {
        self.recorder.round_over(state);
        self.is_done.set(self.recorder.is_done());
    }
}

impl Reading {
    /// Reads the range, and what is behind it until the jobs of the range have ended.
    pub(super) fn of(
        archive: &Archive,
        (from, to): (LogTime, LogTime),
        progress: &mut Progress<'_>,
    ) -> Result<Reading, Failure> {
        check(archive, from, to)?;
        let (mut replay, _) = archive.replay(PastPoint::Time(from), None).map_err(|e| in_range(&e))?;
        if replay.state().cluster().is_none() {
            let text = format!("the range begins at {from}, before the first record of the archive");
            return Err(Failure::usage(text).with_next("name a later --from"));
        }
        let is_done = Cell::new(false);
        let recorder = Recorder::begin(replay.state(), Range { from, to });
        let mut watcher = Watcher { recorder, is_done: &is_done, progress, records: 0 };
        let goes_on = || !is_done.get();
        match archive.follow_while(&mut replay, PastPoint::Time(to), goes_on, &mut watcher) {
            Ok(_) | Err(ArchiveError::GivenUp) => {}
            Err(error) => return Err(in_range(&error)),
        }
        if let Some(error) = watcher.recorder.error() {
            return Err(refused(error.clone()));
        }
        watcher.recorder.end_range(replay.state());
        is_done.set(watcher.recorder.is_done());
        let end = PastPoint::Index(LogIndex(u64::MAX));
        let note = match archive.follow_while(&mut replay, end, goes_on, &mut watcher) {
            Ok(_) | Err(ArchiveError::GivenUp) => None,
            Err(ArchiveError::Missing { from, to }) => Some(format!(
                "the records {from} to {to} behind the range are not in the archive: how long jobs ran is known up to {}",
                replay.state().log_time()
            )),
            Err(error) => return Err(archive_failure(&error)),
        };
        let recording = watcher.recorder.finish(replay.state()).map_err(refused)?;
        Ok(Reading { recording, note })
    }
}

/// The range is in the log.
fn check(archive: &Archive, from: LogTime, to: LogTime) -> Result<(), Failure> {
    if from >= to {
        return Err(Failure::usage("--from has to be before --to"));
    }
    let last = archive.summary().last_time;
    if to > last {
        let text = format!("the range ends at {to}, and the log ends at {last}");
        return Err(Failure::usage(text).with_next(format!("name a --to that is not after {last}")));
    }
    Ok(())
}

/// What is missing within the range, or before it without a state to begin with.
fn in_range(error: &ArchiveError) -> Failure {
    match error {
        ArchiveError::Missing { from, to } => {
            let text = format!("the records {from} to {to} are not in the archive, and the range needs them");
            Failure::new(Exit::NotFound, text).with_next(
                "name a range that is whole before or behind them, or copy the segments from another replica's archive; \
                 `muster log verify --archive DIR` lists the gaps",
            )
        }
        error => archive_failure(error),
    }
}
