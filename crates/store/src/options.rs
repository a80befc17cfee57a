//! What a store is opened with: limits, the files it stands on, and what happens on a fatal error.

use crate::error::StoreError;
use crate::files::{FileLayer, SystemFiles};
use std::sync::Arc;
use std::time::Instant;

/// What to do when a write or a flush failed. It is called once, on the storage thread; whether it
/// returns or not, nothing is acknowledged any more.
pub type FatalHandler = Arc<dyn Fn(&StoreError) + Send + Sync>;

/// Logs and aborts. After a failed flush the kernel has marked the pages clean, so a second flush
/// would answer success for data that never reached the disk: the process must not go on.
#[must_use]
pub fn abort_on_fatal() -> FatalHandler {
    Arc::new(|error| {
        tracing::error!(error = error as &dyn std::error::Error, "storage failed, the process stops");
        std::process::abort();
    })
}

/// What a store is opened with.
#[derive(Clone)]
pub struct StoreOptions {
    /// Memory for the newest entries, which serve replication and apply without the disk.
    pub tail_bytes_max: usize,
    /// Operations that may wait for the storage thread before appenders wait too.
    pub queue_depth_max: usize,
    /// Entries in one flush.
    pub batch_entries_max: usize,
    /// Bytes in one flush.
    pub batch_bytes_max: usize,
    /// Bytes that one bounded read returns; at least one entry is always returned.
    pub read_bytes_max: usize,
    /// Entries in one segment of the log; a whole segment is purged at once.
    pub segment_entries: u64,
    /// Bytes one segment is given on disk; an entry that needs more gets a separate segment.
    pub segment_bytes: u64,
    /// No entry with a higher Raft index is purged until
    /// [`LogStore::hold_purge`](crate::LogStore::hold_purge) says otherwise.
    pub purge_hold: Option<u64>,
    /// Snapshots kept, at least one.
    pub snapshots_kept: usize,
    /// Bytes one snapshot may have.
    pub snapshot_bytes_max: u64,
    /// With less free than this, [`Space::Low`](crate::Space::Low) is reported.
    pub space_soft_bytes: u64,
    /// With less free than this, entries are held until space returns, and no snapshot is written.
    pub space_hard_bytes: u64,
    /// How often free space is looked at, in milliseconds.
    pub space_poll_ms: u64,
    /// A flush that has been running for longer is reported while it runs, in milliseconds.
    pub stall_ms: u64,
    /// The files.
    pub files: Arc<dyn FileLayer>,
    /// The monotonic clock by which flushes are measured.
    pub clock: fn() -> Instant,
    /// What happens when a write or a flush failed.
    pub fatal: FatalHandler,
}

impl StoreOptions {
    /// The values a server runs with.
    #[must_use]
    pub fn production() -> Self {
        StoreOptions {
            tail_bytes_max: 64 << 20,
            queue_depth_max: 4_096,
            batch_entries_max: 1_024,
            batch_bytes_max: 1 << 20,
            read_bytes_max: 1 << 20,
            segment_entries: 65_536,
            segment_bytes: 32 << 20,
            purge_hold: None,
            snapshots_kept: 2,
            snapshot_bytes_max: 64 << 30,
            // Space for a few snapshots, and for the growth of the log until they are made.
            space_soft_bytes: 2 << 30,
            // Space for votes, the purge floor and the other processes of the machine.
            space_hard_bytes: 256 << 20,
            space_poll_ms: 500,
            stall_ms: 50,
            files: Arc::new(SystemFiles),
            clock: Instant::now,
            fatal: abort_on_fatal(),
        }
    }

    /// Small caches, small files, no reserves, and a fatal handler that only logs, for tests and
    /// simulations.
    #[must_use]
    pub fn small() -> Self {
        StoreOptions {
            tail_bytes_max: 1 << 20,
            segment_bytes: 1 << 20,
            space_soft_bytes: 0,
            space_hard_bytes: 0,
            fatal: Arc::new(|error| {
                tracing::error!(error = error as &dyn std::error::Error, "storage failed");
            }),
            ..StoreOptions::production()
        }
    }
}
