//! Snapshots: when they are made and the log behind them is purged, and how one is received.

mod compaction;
mod receiver;

pub use compaction::AppliedBytes;
pub(crate) use compaction::compact;
pub use receiver::{AnnouncedSnapshot, ReceiveError, SnapshotPart, SnapshotReceiver};
