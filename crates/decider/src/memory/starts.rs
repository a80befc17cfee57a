//! How far jobs have been looked at that were not to start before a time.

use muster_types::{ArrayId, JobId, LogTime};

/// The last ones that were looked at once their time had come. Those up to it that still wait do so for other jobs, and are settled
/// when these are over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Starts {
    pub(crate) jobs: (LogTime, JobId),
    pub(crate) arrays: (LogTime, ArrayId),
    /// Whether the last look ended before it had seen all whose time has come, because it had done as much as one tick may.
    pub(crate) is_cut: bool,
}

impl Default for Starts {
    fn default() -> Starts {
        Starts { jobs: (LogTime(0), JobId(0)), arrays: (LogTime(0), ArrayId(0)), is_cut: false }
    }
}
