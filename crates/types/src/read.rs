//! Which state a read is answered from.

use crate::{LogIndex, LogTime};

/// Most that a bounded read may allow: a caller that is content with more wants [`Consistency::Any`].
pub const MAX_STALENESS_MS_MAX: u64 = 24 * 3_600_000;

/// How current a state has to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Whatever the replica has applied.
    #[default]
    Any,
    /// Holds everything that was committed so long before the read arrived.
    Bounded {
        /// So long, in milliseconds; 1 to [`MAX_STALENESS_MS_MAX`].
        max_staleness_ms: u64,
    },
    /// Holds everything that was committed before the read arrived.
    Linearizable,
}

/// A moment of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PastPoint {
    /// Behind this record.
    Index(LogIndex),
    /// Behind the last record that is not later.
    Time(LogTime),
}

/// Which state a read is answered from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// The present, as this replica knows it.
    Present {
        /// How current it has to be.
        consistency: Consistency,
        /// It is complete up to here at least.
        min_log_index: LogIndex,
    },
    /// The past, from the archive of the log.
    Past(PastPoint),
}

impl Default for ReadFrom {
    fn default() -> ReadFrom {
        ReadFrom::Present { consistency: Consistency::Any, min_log_index: LogIndex::ZERO }
    }
}
