//! Heartbeats of one session: which are unanswered, and what an answer is worth.

use super::boot_time::BootTime;
use std::collections::VecDeque;
use std::time::Duration;

/// Heartbeats of one session that are not acknowledged, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Beats {
    sequence: u64,
    sent: VecDeque<(u64, BootTime)>,
}

impl Beats {
    /// The number of the next one.
    pub fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// It was sent at this time.
    pub fn sent(&mut self, sequence: u64, at: BootTime) {
        self.sent.push_back((sequence, at));
    }

    /// One was acknowledged: when it had been sent, and no earlier one is waited for any more. None for one that is
    /// not waited for.
    pub fn acknowledged(&mut self, sequence: u64) -> Option<BootTime> {
        let mut at = None;
        while let Some((number, time)) = self.sent.front().copied().filter(|(number, _)| *number <= sequence)
        {
            self.sent.pop_front();
            at = (number == sequence).then_some(time);
        }
        at
    }

    /// Whether the oldest one has waited for longer than this.
    #[must_use]
    pub fn is_silent(&self, now: BootTime, silence_max: Duration) -> bool {
        self.sent.front().is_some_and(|(_, oldest)| oldest.until(now) > silence_max)
    }

    /// Without an acknowledgement for this long, another replica is tried while the lease still stands.
    #[must_use]
    pub fn silence_max(ttl: Duration, interval: Duration) -> Duration {
        (ttl / 2).max(interval * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_for_its_own_heartbeat_and_ends_the_wait_for_earlier_ones() {
        let mut beats = Beats::default();
        for second in 1..=4 {
            let sequence = beats.next_sequence();
            beats.sent(sequence, BootTime(second));
        }
        assert_eq!(beats.acknowledged(3), Some(BootTime(3)));
        assert_eq!(beats.acknowledged(2), None);
        assert_eq!(beats.acknowledged(9), None, "of another session");
        assert!(!beats.is_silent(BootTime(1 << 40), Duration::from_secs(1)));
        beats.sent(10, BootTime(10));
        assert!(beats.is_silent(BootTime(16), Duration::from_nanos(5)));
        assert!(!beats.is_silent(BootTime(15), Duration::from_nanos(5)));
    }
}
