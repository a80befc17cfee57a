//! What a store is opened with: limits, how files are made durable, and what happens on a fatal error.

use crate::error::StoreError;
use std::fs::File;
use std::sync::Arc;

/// What to do when a write or a flush failed. It is called once, on the storage thread; whether it
/// returns or not, nothing is acknowledged any more.
pub type FatalHandler = Arc<dyn Fn(&StoreError) + Send + Sync>;

/// Makes the content of files durable. A seam for tests that count or fail it.
pub trait FileSync: Send + Sync {
    /// Returns once the content would survive a power cut.
    ///
    /// # Errors
    /// What the system said; the caller never tries again.
    fn sync_data(&self, file: &File) -> std::io::Result<()>;
}

/// `fdatasync`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SyncData;

impl FileSync for SyncData {
    fn sync_data(&self, file: &File) -> std::io::Result<()> {
        file.sync_data()
    }
}

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
    /// Memory the database may use as cache.
    pub cache_bytes_max: u64,
    /// Memory for the newest entries, which serve replication and apply without the database.
    pub tail_bytes_max: usize,
    /// Operations that may wait for the storage thread before appenders wait too.
    pub queue_depth_max: usize,
    /// Entries in one flush.
    pub batch_entries_max: usize,
    /// Bytes in one flush.
    pub batch_bytes_max: usize,
    /// Bytes that one bounded read returns; at least one entry is always returned.
    pub read_bytes_max: usize,
    /// Indexes in one segment of the log; a whole segment is purged at once.
    pub segment_entries: u64,
    /// Snapshots kept, at least one.
    pub snapshots_kept: usize,
    /// Bytes one snapshot may have.
    pub snapshot_bytes_max: u64,
    /// How files are made durable.
    pub sync: Arc<dyn FileSync>,
    /// What happens when a write or a flush failed.
    pub fatal: FatalHandler,
}

impl StoreOptions {
    /// The values a server runs with.
    #[must_use]
    pub fn production() -> Self {
        StoreOptions {
            cache_bytes_max: 256 << 20,
            tail_bytes_max: 64 << 20,
            queue_depth_max: 4_096,
            batch_entries_max: 1_024,
            batch_bytes_max: 1 << 20,
            read_bytes_max: 1 << 20,
            segment_entries: 65_536,
            snapshots_kept: 2,
            snapshot_bytes_max: 64 << 30,
            sync: Arc::new(SyncData),
            fatal: abort_on_fatal(),
        }
    }

    /// Small caches and a fatal handler that only logs, for tests and simulations.
    #[must_use]
    pub fn small() -> Self {
        StoreOptions {
            cache_bytes_max: 8 << 20,
            tail_bytes_max: 1 << 20,
            fatal: Arc::new(|error| {
                tracing::error!(error = error as &dyn std::error::Error, "storage failed");
            }),
            ..StoreOptions::production()
        }
    }
}
