//! Log time: the only time the replicated state knows.

use core::fmt;
use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch, stamped by the leader on a round and never going back along
/// the log. Everything the state does with time compares log times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogTime(pub u64);

impl LogTime {
    /// Milliseconds from `earlier` to here; zero when it is not earlier.
    #[must_use]
    pub fn since_ms(self, earlier: LogTime) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This time plus a duration.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> LogTime {
        LogTime(self.0.saturating_add(ms))
    }

    /// This time less a duration, not before the epoch.
    #[must_use]
    pub fn minus_ms(self, ms: u64) -> LogTime {
        LogTime(self.0.saturating_sub(ms))
    }
}

impl fmt::Display for LogTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}
