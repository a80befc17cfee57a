//! Output of workers on its way from an agent to a reader: the reader asks here, the agent uploads
//! here, by the read's number.
//!
//! **Invariant:** the number of a read cannot be guessed and is no other replica's: an upload that
//! was meant for the leader before never reaches somebody else's reader.

use bytes::Bytes;
use muster_state::{JobRow, Placement};
use muster_types::{FencingToken, JobId, Refusal, RefusalCode};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// Pieces of output that wait for a slow reader; the agent's upload waits behind them.
const CHUNKS_WAITING_MAX: usize = 2;
/// Reads whose upload has not begun.
const READS_WAITING_MAX: usize = 1_024;
/// How long an agent may take from the order to its upload.
pub(crate) const UPLOAD_BEGINS_MAX: Duration = Duration::from_secs(15);

/// Which output to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRequest {
    /// Names the upload.
    pub read_id: u64,
    /// Which job.
    pub job: JobId,
    /// Which placement.
    pub token: FencingToken,
    /// Which worker.
    pub rank: u32,
    /// Until the worker has ended.
    pub follow: bool,
    /// `stdout`, `stderr`, or empty for both.
    pub stream: String,
    /// Only this number of bytes from the end; 0 for all.
    pub tail_bytes: u64,
    /// Bytes of output since the worker's start that are not wanted again.
    pub from_position: u64,
}

/// Which placement of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The one that stands or stood last.
    Current,
    /// The one before that.
    Previous,
    /// The one with this token, as long as it is one of the two.
    Token(FencingToken),
}

impl Attempt {
    /// That placement of a job, if it is known.
    #[must_use]
    pub fn of(self, row: &JobRow) -> Option<&Arc<Placement>> {
        match self {
            Attempt::Current => row.placement.as_ref(),
            Attempt::Previous => row.previous.as_ref(),
            Attempt::Token(token) => {
                [&row.placement, &row.previous].into_iter().flatten().find(|known| known.token == token)
            }
        }
    }
}

/// A piece of output.
#[derive(Clone, Debug)]
pub struct LogChunk {
    /// `stdout` or `stderr`; empty without data.
    pub stream: String,
    /// The bytes.
    pub data: Bytes,
    /// Bytes of output from the worker's start to the end of these.
    pub position: u64,
    /// Bytes right before these that were not kept.
    pub dropped_bytes: u64,
}

pub(crate) type Chunks = mpsc::Receiver<Result<LogChunk, Refusal>>;
type Reader = mpsc::Sender<Result<LogChunk, Refusal>>;

/// Reads whose upload has not begun.
#[derive(Default)]
pub(crate) struct LogRelay {
    next: AtomicU64,
    /// Keyed differently in every process.
    numbers: RandomState,
    readers: Mutex<BTreeMap<u64, Reader>>,
}

impl LogRelay {
    pub(crate) fn open(&self) -> Result<(u64, Chunks), Refusal> {
        let (reader, chunks) = mpsc::channel(CHUNKS_WAITING_MAX);
        let mut readers = self.readers.lock();
        readers.retain(|_, reader| !reader.is_closed());
        if readers.len() >= READS_WAITING_MAX {
            let text = "too many reads of output wait for their agents; try again";
            return Err(Refusal::new(RefusalCode::Overloaded, text));
        }
        let read_id = loop {
            let number = self.numbers.hash_one(self.next.fetch_add(1, Ordering::Relaxed));
            if number != 0 && !readers.contains_key(&number) {
                break number;
            }
        };
        readers.insert(read_id, reader);
        Ok((read_id, chunks))
    }

    /// Where an agent's upload goes; none when nobody reads any more.
    pub(crate) fn take(&self, read_id: u64) -> Option<Reader> {
        self.readers.lock().remove(&read_id)
    }

    /// Ends a read whose upload has not begun, with the reason.
    pub(crate) fn give_up(&self, read_id: u64, text: &str) {
        if let Some(reader) = self.take(read_id) {
            // Nothing was sent before, so there is capacity; the reader may have gone.
            let _ = reader.try_send(Err(Refusal::new(RefusalCode::LogsUnavailable, text)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_has_one_upload_and_a_number_of_its_own() {
        let relay = LogRelay::default();
        let (first, _chunks) = relay.open().expect("there is capacity");
        let (second, _more) = relay.open().expect("there is capacity");
        assert_ne!(first, second);
        assert!(relay.take(first).is_some() && relay.take(first).is_none());
        assert_ne!(
            LogRelay::default().open().expect("there is capacity").0,
            first,
            "another process, other numbers"
        );
    }

    #[test]
    fn a_read_that_is_given_up_says_why() {
        let relay = LogRelay::default();
        let (read_id, mut chunks) = relay.open().expect("there is capacity");
        relay.give_up(read_id, "the agent did not answer");
        let refusal = chunks.try_recv().expect("it is told").expect_err("nothing was read");
        assert_eq!(refusal.code, RefusalCode::LogsUnavailable);
        assert!(chunks.try_recv().is_err() && relay.take(read_id).is_none());
    }

    #[test]
    fn reads_are_bounded_and_the_abandoned_make_room() {
        let relay = LogRelay::default();
        let mut held: Vec<Chunks> =
            (0..READS_WAITING_MAX).map(|_| relay.open().expect("capacity").1).collect();
        let refused = relay.open().expect_err("full");
        assert_eq!(refused.code, RefusalCode::Overloaded);
        held.pop();
        assert!(relay.open().is_ok());
    }
}
