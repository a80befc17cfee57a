//! Why the store refused or failed, named by the operation.
//!
//! **Invariant:** damage is its own case with what is missing, so that nobody mistakes a log that
//! lost acknowledged entries for a short one.

use muster_types::{ClusterId, ReplicaId};
use std::path::PathBuf;
use thiserror::Error;

/// What a damaged replica is missing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Damage {
    /// A file that every opened store has is gone.
    #[error("the file {path} is missing")]
    FileMissing {
        /// The missing file.
        path: PathBuf,
    },
    /// A file's own checksum does not hold.
    #[error("the file {path} is corrupt: {detail}")]
    FileCorrupt {
        /// The corrupt file.
        path: PathBuf,
        /// What did not hold.
        detail: String,
    },
    /// The database could not be opened or read.
    #[error("the database of votes and floors cannot be read: {detail}")]
    Database {
        /// What the database said.
        detail: String,
    },
    /// Entries that were once flushed are gone or differ.
    #[error(
        "the log was flushed through entry {flushed_index}, but only entries through {intact_index:?} are intact"
    )]
    EntriesLost {
        /// The last entry that was acknowledged as durable.
        flushed_index: u64,
        /// The last entry that is intact.
        intact_index: Option<u64>,
    },
    /// A vote that was once flushed is gone: voting again in that term could elect two leaders.
    #[error("the vote {flushed} was flushed, but {found} is on disk")]
    VoteLost {
        /// The vote that was flushed.
        flushed: String,
        /// What is on disk.
        found: String,
    },
    /// The database lost the purge floor: the log starts later than behind it.
    #[error(
        "the log starts at entry {first_index}, but the database says that nothing behind entry {floor_index:?} was purged"
    )]
    FloorLost {
        /// The first entry that is there.
        first_index: u64,
        /// What the database says was purged.
        floor_index: Option<u64>,
    },
    /// The log starts after the newest intact snapshot ends.
    #[error(
        "the log starts after entry {purged_index}, but the newest intact snapshot ends at {snapshot_index:?}"
    )]
    SnapshotLost {
        /// Everything up to here was purged from the log.
        purged_index: u64,
        /// Where the newest intact snapshot ends.
        snapshot_index: Option<u64>,
    },
}

/// Why the store refused or failed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// An operation on a file or directory failed.
    #[error("{operation} {path} failed")]
    File {
        /// What was tried.
        operation: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The disk is full. Nothing was acknowledged and nothing is lost: it can be tried
    /// again once there is.
    #[error("{operation} {path} failed for lack of space")]
    NoSpace {
        /// What was tried.
        operation: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The database refused an operation.
    #[error("{operation} in the database failed")]
    Database {
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        #[source]
        source: sled::Error,
    },
    /// The database panicked during an operation.
    #[error("{operation} in the database panicked: {detail}")]
    DatabasePanicked {
        /// What was tried.
        operation: &'static str,
        /// The panic's message.
        detail: String,
    },
    /// Acknowledged data is gone. The replica must not run in its old identity.
    #[error("the replica's storage in {dir} is damaged: {damage}")]
    Damaged {
        /// The data directory.
        dir: PathBuf,
        /// What is missing.
        #[source]
        damage: Damage,
    },
    /// The data directory belongs to another cluster.
    #[error("{dir} belongs to cluster {found}, not to {expected}")]
    OtherCluster {
        /// The data directory.
        dir: PathBuf,
        /// The cluster it belongs to.
        found: ClusterId,
        /// The cluster that was asked for.
        expected: ClusterId,
    },
    /// The data directory belongs to another generation of the cluster.
    #[error("{dir} belongs to generation {found} of the cluster, not to {expected}")]
    OtherGeneration {
        /// The data directory.
        dir: PathBuf,
        /// The generation it belongs to.
        found: u32,
        /// The generation that was asked for.
        expected: u32,
    },
    /// The data directory belongs to another founding of the cluster.
    #[error("the data directory belongs to another founding of the cluster")]
    OtherFounding,
    /// The data directory belongs to another replica.
    #[error("{dir} belongs to replica {found}, not to {expected}")]
    OtherReplica {
        /// The data directory.
        dir: PathBuf,
        /// The replica it belongs to.
        found: ReplicaId,
        /// The replica that was asked for.
        expected: ReplicaId,
    },
    /// A newer release wrote the directory.
    #[error("{dir} has on-disk format {found}; this release reads up to {supported}")]
    NewerFormat {
        /// The data directory.
        dir: PathBuf,
        /// The format found.
        found: u32,
        /// The newest format this release reads.
        supported: u32,
    },
    /// Another process has the directory open.
    #[error("{dir} is in use by another process")]
    InUse {
        /// The data directory.
        dir: PathBuf,
    },
    /// There is a replica in the directory where one was to be created.
    #[error("{dir} holds a replica already")]
    Exists {
        /// The data directory.
        dir: PathBuf,
    },
    /// The replica has a log, a vote or a snapshot, so that it can adopt nothing.
    #[error("the replica is not blank, so it cannot become one of generation {generation}")]
    NotBlank {
        /// The generation it was to adopt.
        generation: u32,
    },
    /// As much evidence of damage as is kept is there already.
    #[error("{dir} holds {kept} sets of evidence of damage already; examine and remove some first")]
    EvidenceFull {
        /// The data directory.
        dir: PathBuf,
        /// Sets of evidence in it.
        kept: usize,
    },
    /// There is no replica in the directory and creating one was not allowed.
    #[error("{dir} holds no replica")]
    NotFound {
        /// The data directory.
        dir: PathBuf,
    },
    /// The log has no entry where one must be.
    #[error("the log has no entry {index}")]
    EntryMissing {
        /// The missing entry.
        index: u64,
    },
    /// A stored entry cannot be decoded.
    #[error("entry {index} of the log cannot be decoded")]
    EntryCorrupt {
        /// The entry.
        index: u64,
        /// What did not hold.
        #[source]
        source: crate::codec::CodecError,
    },
    /// A snapshot cannot be read.
    #[error("the snapshot {name} is corrupt: {detail}")]
    SnapshotCorrupt {
        /// The snapshot's name.
        name: String,
        /// What did not hold.
        detail: String,
    },
    /// A snapshot grew past the limit.
    #[error("the snapshot is larger than {bytes_max} bytes")]
    SnapshotTooLarge {
        /// The limit.
        bytes_max: u64,
    },
    /// What a new replica was to be made from could not be read.
    #[error("reading what the replica is created from failed")]
    CreationSource(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store was closed, or stopped after a fatal error.
    #[error("the log store is stopped: {reason}")]
    Stopped {
        /// Why it stopped.
        reason: String,
    },
    /// The storage thread could not be started.
    #[error("starting the storage thread failed")]
    StartThread(#[source] std::io::Error),
}

impl StoreError {
    /// Whether the same can succeed once the disk has free space.
    #[must_use]
    pub fn is_out_of_space(&self) -> bool {
        matches!(self, StoreError::NoSpace { .. })
    }

    /// What an operator can do about it, where there is something to do.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        match self {
            StoreError::Damaged { dir, .. } => Some(format!(
                "this replica acknowledged data that its disk no longer has, so it must not vote again under its id. \
                 Move {} aside, remove the replica from the membership, and add it again as a learner: it rebuilds from its peers",
                dir.display()
            )),
            StoreError::NotFound { dir } => Some(format!(
                "if this replica never ran, allow its creation; if it did, its disk was lost or {} is not mounted: \
                 do not recreate it under the same id, add it again as a learner",
                dir.display()
            )),
            StoreError::NewerFormat { .. } => {
                Some("run the release that wrote it, or a newer one".to_owned())
            }
            _ => None,
        }
    }
}

/// For openraft, whose storage traits speak `io::Error`. A lack of space stays visible as the kind.
impl From<StoreError> for std::io::Error {
    fn from(error: StoreError) -> Self {
        if error.is_out_of_space() {
            return std::io::Error::new(std::io::ErrorKind::StorageFull, error);
        }
        std::io::Error::other(error)
    }
}
