//! Where clients write down what they did: one history for all of a drill.

use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use muster_client::CallError;
use muster_drill::history::{JobPhase, JobSeen, Line, Operation, Outcome, WatchEvent, Writer};
use muster_types::RefusalCode;
use muster_wire::v1;
use tokio::time::Instant;

/// Bytes of an error's text that are kept.
const ERROR_BYTES_MAX: usize = 500;

struct Inner {
    writer: Mutex<Result<Writer<BufWriter<File>>, String>>,
    written: AtomicU64,
}

/// The history of a drill. Clones write into the same one.
#[derive(Clone)]
pub struct Record {
    inner: Arc<Inner>,
}

impl Record {
    /// A new history in this file.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(path: &Path) -> Result<Record> {
        let file = File::create_new(path).with_context(|| format!("creating {}", path.display()))?;
        let writer = Mutex::new(Ok(Writer::new(BufWriter::new(file))));
        Ok(Record { inner: Arc::new(Inner { writer, written: AtomicU64::new(0) }) })
    }

    /// An operation that is over.
    pub fn operation(&self, operation: Operation) {
        self.line(&Line::Operation(operation));
    }

    /// A message of a watch.
    pub fn watch(&self, event: WatchEvent) {
        self.line(&Line::Watch(event));
    }

    fn lock(&self) -> MutexGuard<'_, Result<Writer<BufWriter<File>>, String>> {
        // What is behind the lock is whole between two calls.
        self.inner.writer.lock()
    }

    fn line(&self, line: &Line) {
        let mut writer = self.lock();
        let written = writer.as_mut().map(|writer| writer.append(line));
        match written {
            Ok(Ok(())) => drop(self.inner.written.fetch_add(1, Ordering::Relaxed)),
            // Said when the history is closed: a history with a hole proves nothing.
            Ok(Err(error)) => *writer = Err(error.to_string()),
            Err(_) => {}
        }
    }

    /// Everything is on file; how many lines.
    ///
    /// # Errors
    /// When one could not be written: the history has a hole.
    pub fn close(self) -> Result<u64> {
        let closed = Err("the history is closed".to_owned());
        let writer = std::mem::replace(&mut *self.lock(), closed);
        let writer = writer.map_err(|error| anyhow::anyhow!("writing the history: {error}"))?;
        let flushed: io::Result<()> = writer.into_inner().flush();
        flushed.context("writing the history")?;
        Ok(self.inner.written.load(Ordering::Relaxed))
    }
}

/// Whether the clock of all evidence can be read. Checked when a drill begins: without it nothing could be held against
/// real time.
///
/// # Errors
/// When it cannot be read.
pub fn check_clock() -> Result<()> {
    read_us().map(drop)
}

fn read_us() -> Result<u64> {
    let nanos = muster_example::intervals::boottime_nanos();
    Ok(nanos.context("the clock of all evidence cannot be read")? / 1_000)
}

/// Now, on the clock of all evidence: microseconds since the machine started.
///
/// # Panics
/// When the clock cannot be read any more. A time that is made up would be evidence that is made up.
#[must_use]
pub fn now_us() -> u64 {
    read_us().expect("the clock was there when the drill began")
}

/// A moment of this process's timers on the clock of all evidence.
#[must_use]
pub fn us_of(moment: Instant) -> u64 {
    let ago = Instant::now().saturating_duration_since(moment).as_micros();
    now_us().saturating_sub(u64::try_from(ago).unwrap_or(u64::MAX))
}

/// What a client may know of a job; none where the cluster's answer makes no sense.
#[must_use]
pub fn seen(job: &v1::Job) -> Option<JobSeen> {
    Some(JobSeen {
        job: job.id.parse().ok()?,
        phase: JobPhase::from_number(job.status().phase)?,
        attempt: job.status().attempt,
        changed_at_index: job.status().changed_at_index,
    })
}

/// What came of a call that failed. A refusal after other attempts says nothing certain of those, so only codes that
/// are certain of the request as a whole are refusals.
#[must_use]
pub fn failed(error: &CallError) -> Outcome {
    let text = |error: &dyn std::error::Error| {
        let mut text = error.to_string();
        let mut below = error.source();
        while let Some(error) = below {
            text.push_str(": ");
            text.push_str(&error.to_string());
            below = error.source();
        }
        let end = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= ERROR_BYTES_MAX).last();
        text.truncate(end.unwrap_or_default());
        text
    };
    match error {
        CallError::Refused { refused, .. } => match refused.code {
            Some(RefusalCode::OutcomeUnknown) | None => Outcome::Unknown { error: text(error) },
            Some(code) => Outcome::Refused { code: code.to_string() },
        },
        error if error.is_timeout() => Outcome::TimedOut,
        error => Outcome::Unknown { error: text(error) },
    }
}

/// The answer does not fit the question: the history records it, and its judge has a finding.
#[must_use]
pub fn malformed(what: &str) -> Outcome {
    Outcome::Malformed { what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_all_evidence_is_there_and_goes_on() {
        check_clock().expect("every Linux has it");
        let before = now_us();
        assert!(before > 0 && now_us() >= before);
        assert!(us_of(Instant::now()) >= before);
    }
}
