//! The time scale of leases.

use std::time::Duration;

/// A moment since boot, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(pub u64);

impl BootTime {
    /// This much later; saturates, 584 years after boot.
    #[must_use]
    pub fn after(self, span: Duration) -> BootTime {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        BootTime(self.0.saturating_add(nanos))
    }

    /// How long until `later`; zero when it has passed.
    #[must_use]
    pub fn until(self, later: BootTime) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_saturate() {
        let t = BootTime(5);
        assert_eq!(t.until(BootTime(3)), Duration::ZERO);
        assert_eq!(t.after(Duration::MAX), BootTime(u64::MAX));
    }
}
