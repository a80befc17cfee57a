//! When a node's lease stands, and until when a worker may run under it. `crates/world/tests/lease_model.rs` checks it over several leaders.

use super::boot_time::BootTime;
use muster_planted::{Rule, breaks};
use std::time::Duration;

/// A lease as it was last written: everything of `epoch` is stopped at `deadline`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerm {
    /// Rises when a lapse was observed.
    pub epoch: u64,
    /// When everything of this epoch is stopped.
    pub deadline: BootTime,
}

impl LeaseTerm {
    /// Whether it has not run out.
    #[must_use]
    pub fn stands(self, now: BootTime) -> bool {
        now < self.deadline
    }
}

/// What a renewal did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The deadline moved, in the same epoch.
    Extended,
    /// It would not have moved the deadline forward.
    Stale,
    /// The lease had lapsed; a new epoch began and whatever ran before is being stopped.
    Restarted,
}

/// What it makes of a lease that the leader acknowledged, at `now`, what was sent at `sent`; and the lease to write,
/// where it changes. `epoch_floor` is the highest epoch that any worker is known to belong to.
///
/// The deadline counts from the time of sending, never of arrival. A lease that has run out is never picked up again: the
/// next one is another epoch.
#[must_use]
pub fn renewed(
    lease: Option<LeaseTerm>,
    epoch_floor: u64,
    sent: BootTime,
    ttl: Duration,
    now: BootTime,
) -> (Renewal, Option<LeaseTerm>) {
    let ttl = if breaks(Rule::AgentIgnoresLease) { ttl + Duration::from_secs(3_600) } else { ttl };
    let deadline = sent.after(ttl);
    match lease.filter(|lease| lease.stands(now)) {
        Some(lease) if deadline <= lease.deadline => (Renewal::Stale, None),
        Some(lease) => (Renewal::Extended, Some(LeaseTerm { deadline, ..lease })),
        // An answer so late that it is over before it begins.
        None if deadline <= now => (Renewal::Stale, None),
        None => {
            let before = lease.map_or(0, |lease| lease.epoch).max(epoch_floor);
            (Renewal::Restarted, Some(LeaseTerm { epoch: before.saturating_add(1), deadline }))
        }
    }
}

/// Until when a worker of `epoch` may run, by the lease as it was read last; none where it has to be stopped.
#[must_use]
pub fn deadline_of(lease: Option<LeaseTerm>, epoch: u64) -> Option<BootTime> {
    lease.filter(|lease| lease.epoch == epoch).map(|lease| lease.deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> BootTime {
        BootTime(seconds * 1_000_000_000)
    }

    #[test]
    fn the_deadline_counts_from_sending_and_a_lapse_is_another_epoch() {
        let lease = |epoch, second| Some(LeaseTerm { epoch, deadline: at(second) });
        let first = renewed(None, 0, at(100), TTL, at(103));
        assert_eq!(first, (Renewal::Restarted, lease(1, 110)));
        assert_eq!(renewed(first.1, 0, at(99), TTL, at(104)), (Renewal::Stale, None));
        assert_eq!(renewed(first.1, 0, at(104), TTL, at(105)), (Renewal::Extended, lease(1, 114)));
        assert_eq!(renewed(first.1, 0, at(109), TTL, at(110)), (Renewal::Restarted, lease(2, 119)));
        assert_eq!(renewed(first.1, 7, at(109), TTL, at(110)), (Renewal::Restarted, lease(8, 119)));
        assert_eq!(renewed(first.1, 0, at(100), TTL, at(130)), (Renewal::Stale, None));
    }

    /// A hypervisor stops the whole machine, which this clock does not count. Nothing can be told from it, so whatever answers
    /// arrive after the resume, work goes on for one lease at most: the leader answers no heartbeat that is sent then, and those before
    /// count from when they were sent.
    #[test]
    fn a_pause_that_the_clock_does_not_count_adds_one_lease_at_most() {
        for paused_at in [101, 105, 109] {
            // Heartbeats of every second, none of them answered yet; the lease is that of the first.
            let (_, mut lease) = renewed(None, 0, at(100), TTL, at(100));
            for (sent, arrives) in
                (101..=paused_at).flat_map(|sent| (paused_at..=120).map(move |now| (sent, now)))
            {
                let (_, next) = renewed(lease, 0, at(sent), TTL, at(arrives));
                lease = next.or(lease);
                let deadline = lease.unwrap().deadline;
                assert!(deadline <= at(paused_at).after(TTL), "{deadline:?} by what was sent at {sent}");
            }
        }
    }

    #[test]
    fn a_worker_runs_under_its_own_epoch_alone() {
        let lease = Some(LeaseTerm { epoch: 3, deadline: at(110) });
        assert_eq!(deadline_of(lease, 3), Some(at(110)));
        assert_eq!(deadline_of(lease, 2), None);
        assert_eq!(deadline_of(None, 3), None);
    }
}
