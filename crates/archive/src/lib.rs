//! The decision log, kept for ever in checksummed segments, and states of the past rebuilt from it.
//!
//! ```text
//! segments/<generation>/<first>-<last>-<raft first>-<raft last>-<last time>   rounds, chained
//! bases/<generation>/<log index>-<raft index>-<time>                          whole states
//! retention/floor                                                             what went to another store, and where
//! ```
//!
//! A segment holds the payloads of consecutive Raft entries as they were applied, those of ended
//! leaderships too: only then does a replay come to the same digest. Objects are written once, whole,
//! and never changed, so that any store with an atomic `put` can hold them. A past state is the
//! nearest base before it and the rounds behind that, through the guard and the fold of the replica. Both are stored
//! compressed; all checksums but those of the blocks cover what they hold uncompressed.
//!
//! **Invariant:** no byte that is read is believed before its checksum held; damage names its object.
//! **Invariant:** segments form a chain: a missing, foreign or exchanged one is reported as a gap.
//! **Invariant:** nothing is removed but what another store has, and the floor says where.
//! **Invariant:** what is damaged is replaced only by what is proved to be the same, and kept aside.
#![deny(missing_docs)]

mod archive;
pub mod backup;
mod base;
pub mod capsule;
mod catalog;
mod codec;
mod error;
mod export;
mod floor;
mod floor_file;
mod layout;
mod memory;
mod mend;
mod object;
mod pack;
mod record;
mod render;
mod replay;
mod retention;
mod segment;
mod stats;
mod suspects;
mod verify;

pub use archive::{Archive, Rounds, Slice};
pub use catalog::{BaseName, Gap, SegmentName, Summary};
pub use error::ArchiveError;
pub use export::{CSV_HEADER, csv_line, json_line};
pub use floor::Floor;
pub use memory::MemoryStore;
pub use mend::Lack;
pub use object::{DirectoryStore, JoinedStores, ObjectInfo, ObjectStore, object_name_is_valid};
pub use record::{ArchivedRound, RaftPosition, Record, Records};
pub use render::{content, summary};
pub use replay::{Observer, Replay};
pub use retention::{Bounds, Offloaded};
pub use segment::{SEGMENT_BYTES_TARGET, SegmentDraft, Start};
pub use stats::{Sizes, Stats};
pub use verify::{Report, SegmentReport};
