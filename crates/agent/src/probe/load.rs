//! How loaded the processors of this host are while it measures: a host that is busy moves bytes slowly over a network
//! that is sound.

use std::time::Instant;

/// One measurement.
pub(super) struct Load {
    began: Instant,
    stalled_us: Option<u64>,
}

impl Load {
    pub(super) fn begin() -> Load {
        Load { began: Instant::now(), stalled_us: stalled_us() }
    }

    /// The part of the time since the beginning, in thousandths, in which something waited for a processor. Where the
    /// kernel does not count that, the part of the processes that could run and have no processor now.
    pub(super) fn milli(&self) -> u16 {
        let elapsed_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
        let part = match (self.stalled_us, stalled_us()) {
            (Some(before), Some(now)) => now.saturating_sub(before).saturating_mul(1_000) / elapsed_us,
            _ => waiting_milli(),
        };
        part.min(1_000) as u16
    }
}

/// Microseconds since boot in which at least one process waited for a processor; none where the kernel does not say.
fn stalled_us() -> Option<u64> {
    total_of(&std::fs::read_to_string("/proc/pressure/cpu").ok()?)
}

fn total_of(pressure: &str) -> Option<u64> {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|word| word.strip_prefix("total="))?.trim().parse().ok()
}

/// See [`Load::milli`].
fn waiting_milli() -> u64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    running_of(&text).map_or(0, |running| running.saturating_sub(processors) * 1_000 / running.max(1))
}

fn running_of(loadavg: &str) -> Option<u64> {
    loadavg.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        let text = "some avg10=0.00 avg60=1.00 avg300=0.10 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n";
        assert_eq!(total_of(text), Some(1234));
        assert_eq!((total_of(""), total_of("some total=x")), (None, None));
        assert_eq!(running_of("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(running_of("0.20"), None);
        assert!(Load::begin().milli() <= 1_000);
    }
}
