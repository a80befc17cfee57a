//! Output of workers on its way from an agent to a reader: the reader asks here, the agent uploads
//! here, by the read's number.

use bytes::Bytes;
use muster_types::{FencingToken, JobId, Refusal};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tokio::sync::mpsc;

/// Pieces of output that wait for a slow reader; the agent's upload waits behind them.
const CHUNKS_WAITING_MAX: usize = 16;

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
    /// Only the last so many bytes; 0 for all.
    pub tail_bytes: u64,
}

/// A piece of output.
#[derive(Clone, Debug)]
pub struct LogChunk {
    /// `stdout` or `stderr`.
    pub stream: String,
    /// The bytes.
    pub data: Bytes,
}

type Reader = mpsc::Sender<Result<LogChunk, Refusal>>;

/// Reads in progress.
pub(crate) struct LogRelay {
    next: AtomicU64,
    readers: Mutex<BTreeMap<u64, Reader>>,
}

impl Default for LogRelay {
    fn default() -> Self {
        LogRelay { next: AtomicU64::new(1), readers: Mutex::default() }
    }
}

impl LogRelay {
    pub(crate) fn open(&self) -> (u64, mpsc::Receiver<Result<LogChunk, Refusal>>) {
        let read_id = self.next.fetch_add(1, Ordering::Relaxed);
        let (reader, chunks) = mpsc::channel(CHUNKS_WAITING_MAX);
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|_, reader| !reader.is_closed());
        readers.insert(read_id, reader);
        (read_id, chunks)
    }

    /// Where an agent's upload goes; none when nobody reads any more.
    pub(crate) fn take(&self, read_id: u64) -> Option<Reader> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).remove(&read_id)
    }
}
