//! A file with the calls that were denied, and with those of operators that leave no record in the log.
//!
//! Calls tell of themselves in a bounded queue and go on; what is the same within an interval is one line. So a flood of denied
//! calls costs neither the calls of others nor the disk.
//!
//! **Invariant:** a file that cannot be written stops no replica: what was not written is counted and written later.

mod call_counts;
mod file;
mod read;

use muster_api::RecordedCalls;
use muster_types::ReplicaId;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::config::AuditConfig;
use call_counts::CallCounts;
use file::Lines;
pub(crate) use read::AuditFiles;

/// Its name in the data directory.
const FILE: &str = "audit.log";

/// Writes what is told, until `stopping` and then the rest.
pub(crate) async fn record(
    mut calls: RecordedCalls,
    (dir, replica): (PathBuf, ReplicaId),
    config: AuditConfig,
    stopping: impl Future<Output = ()>,
) {
    let mut writer = Writer { path: dir.join(FILE), config, lines: None, lost: 0 };
    let mut counted = CallCounts::default();
    let mut ticks = tokio::time::interval(config.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut stopping = std::pin::pin!(stopping);
    loop {
        let is_over = tokio::select! {
            call = calls.next() => match call {
                Some(call) => {
                    counted.add(call);
                    continue;
                }
                None => true,
            },
            _ = ticks.tick() => false,
            () = &mut stopping => true,
        };
        while is_over && let Some(call) = calls.waiting() {
            counted.add(call);
        }
        let unwritten = calls.take_dropped() + writer.lost;
        let recorded = counted.calls() + unwritten;
        let lines = counted.take(replica, unwritten, SystemTime::now());
        if !lines.is_empty() {
            // Disks are slow, and calls are told meanwhile.
            let written = tokio::task::spawn_blocking(move || writer.write(&lines, recorded)).await;
            match written {
                Ok(next) => writer = next,
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            }
        }
        if is_over {
            return;
        }
    }
}

struct Writer {
    path: PathBuf,
    config: AuditConfig,
    /// None before the first line, and after a failure.
    lines: Option<Lines>,
    /// Calls that are in no line, because it could not be written.
    lost: u64,
}

impl Writer {
    /// Appends lines, which are about this number of calls.
    fn write(mut self, lines: &[String], calls: u64) -> Writer {
        match self.try_write(lines) {
            Ok(()) => self.lost = 0,
            Err(error) => {
                // Which of the lines are in the file is not known, so that the calls of all of them count as missing.
                self.lost = calls;
                self.lines = None;
                let (path, error) = (Path::display(&self.path), &error as &dyn std::error::Error);
                tracing::error!(%path, error, "calls that were denied cannot be recorded");
            }
        }
        self
    }

    fn try_write(&mut self, lines: &[String]) -> std::io::Result<()> {
        let AuditConfig { file_bytes_max, files_max, .. } = self.config;
        let file = match &mut self.lines {
            Some(file) => file,
            none => none.insert(Lines::open(&self.path, file_bytes_max, files_max)?),
        };
        file.write(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_counted_and_told_later() {
        let dir = tempfile::tempdir().expect("a directory");
        let gone = dir.path().join("gone");
        let config = AuditConfig::default();
        let writer = Writer { path: gone.join(FILE), config, lines: None, lost: 0 };
        let writer = writer.write(&["a".to_owned(), "b".to_owned()], 5);
        assert_eq!(writer.lost, 5, "calls are counted, and not lines");
        std::fs::create_dir(&gone).expect("it is made");
        let writer = writer.write(&["c".to_owned()], 6);
        assert_eq!(writer.lost, 0);
        assert_eq!(std::fs::read_to_string(gone.join(FILE)).expect("it is there"), "c\n");
    }

    #[tokio::test]
    async fn nothing_is_written_where_nothing_was_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let (recorder, calls) = muster_api::CallRecorder::queue();
        let place = (dir.path().to_path_buf(), ReplicaId(1));
        record(calls, place, AuditConfig::default(), std::future::ready(())).await;
        drop(recorder);
        assert!(!dir.path().join(FILE).exists());
    }
}
