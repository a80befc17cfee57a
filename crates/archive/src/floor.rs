//! The floor of an archive: up to where its records are in another store.

use muster_types::{LogIndex, LogTime};

/// Up to where an archive gave its records to another store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Floor {
    /// The last record that was given away.
    pub through: LogIndex,
    /// Its log time.
    pub log_time: LogTime,
    /// Where the records are now.
    pub place: String,
}
