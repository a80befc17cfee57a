//! The one clock that leases are counted on.
//!
//! CLOCK_BOOTTIME never steps, goes on while the machine is suspended (a lease runs out during a
//! suspend too) and reads the same in every process of one boot, so agent and shims compare its
//! values through a file.
//!
//! **Invariant:** no lease decision reads any other clock.

pub use crate::rules::BootTime;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The number of the time namespace that a machine boots with: part of the kernel's interface.
const FIRST_NAMESPACE: &str = "time:[4026531834]";

/// Which clock this process reads, where it is not the machine's own: the clocks since boot of two time
/// namespaces may be any time apart, so a deadline of the one means nothing in the other.
#[must_use]
pub fn foreign_clock() -> Option<String> {
    // A kernel before 5.6 has no such thing, nor a second clock.
    let own = std::fs::read_link("/proc/self/ns/time").ok()?.to_string_lossy().into_owned();
    (own != FIRST_NAMESPACE).then_some(own)
}

impl BootTime {
    /// Now.
    ///
    /// # Panics
    /// On a kernel without CLOCK_BOOTTIME (before Linux 2.6.39), where no lease could be kept.
    #[must_use]
    pub fn now() -> BootTime {
        let time =
            clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every supported Linux kernel has CLOCK_BOOTTIME");
        BootTime(Duration::from(time).as_nanos().try_into().unwrap_or(u64::MAX))
    }

    /// As a timer wants it. Never zero, which would disarm a timer.
    #[must_use]
    pub fn timespec(self) -> TimeSpec {
        TimeSpec::from(Duration::from_nanos(self.0.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_has_passed_since_boot() {
        assert!(BootTime::now() > BootTime(0));
    }
}
