//! How the storage is doing, published while it happens: free space, and flushes that take long.
//!
//! **Invariant:** a flush that hangs is seen without the thread that hangs in it.

/// How much room the disk has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// More than the soft reserve.
    #[default]
    Enough,
    /// Less than the soft reserve: new work should be refused.
    Low,
    /// Less than the hard reserve, or the system had no room for a write: entries are held, and
    /// nothing is acknowledged until space returns.
    Full,
}

/// How the storage of one replica is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageHealth {
    /// Bytes this process may still write to the disk the log is on.
    pub free_bytes: u64,
    /// What that means.
    pub space: Space,
    /// A flush has been running for so many milliseconds; `None` when none is, or not for long.
    pub stalled_ms: Option<u64>,
    /// Moving mean of how long flushes took, in microseconds.
    pub flush_mean_us: u64,
    /// The slowest flush of the last 10 to 20 seconds, in milliseconds.
    pub flush_slowest_ms: u64,
    /// Bytes of disk the log has, preallocated room included.
    pub log_bytes: u64,
}
