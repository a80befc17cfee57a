//! The leader's clock: read once a round and stamped on it.

use muster_types::LogTime;
use std::time::{SystemTime, UNIX_EPOCH};

/// Wall-clock time for the next round. A clock before 1970 reads as the epoch; the speculation never
/// lets log time go back.
pub(crate) fn now() -> LogTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    LogTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
