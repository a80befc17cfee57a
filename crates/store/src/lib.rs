//! Raft log, vote and snapshots on disk, and an in-memory twin; one conformance suite for both.
//!
//! What a replica promised its peers must still be true after a crash, and what the disk lost must
//! never look like something that was never written. So every record carries a checksum that
//! chains to its predecessor, a mark says how far the log was once flushed, and opening with less
//! than that is *damage*, never a short log.
//!
//! **Invariant:** nothing is acknowledged before it would survive a power cut.
//! **Invariant:** a replica whose storage is damaged does not open in its old identity.
//! **Invariant:** no byte read from a disk or a network panics.
//! **Invariant:** this crate never knows what an entry means; payloads are opaque.

mod backend;
mod codec;
mod disk;
mod error;
mod files;
mod health;
mod high_water;
mod identity;
mod io_thread;
mod log_state;
mod log_store;
mod memory;
mod meta;
mod options;
mod raft_types;
mod segment;
mod snapshot;
mod store;
mod watchdog;
mod writer;

pub use backend::{LogBackend, LogFloor, Recovered, StorageOperation, StorageOutcome, WriteBatch};
pub use codec::{
    CodecError, ENVELOPE_HEADER_BYTES, decode_entry, decode_snapshot_meta, encode_entry, encode_snapshot_meta,
};
pub use disk::DiskBackend;
pub use error::{Damage, StoreError};
pub use files::{FileLayer, SystemFiles};
pub use health::{Space, StorageHealth};
pub use identity::{FIRST_GENERATION, FORMAT_VERSION, FoundingId, Identity, OpenMode, Rejoin};
pub use log_state::FlushProgress;
pub use log_store::{LogEntries, LogParts, LogReader, LogStore};
pub use memory::{MemoryBackend, MemoryDisk};
pub use options::{FatalHandler, StoreOptions, abort_on_fatal};
pub use raft_types::{
    Entry, EntryPayload, LeaderId, LogConfig, LogId, Membership, Payload, RaftConfig, ReplicaNode,
    SnapshotMeta, StoredMembership, Vote,
};
pub use snapshot::{SnapshotDigest, SnapshotHandle, SnapshotReader, SnapshotStore, SnapshotWriter};
pub use store::ReplicaStore;
pub use watchdog::Watchdog;
pub use writer::{Closing, LogWriter, Step};
