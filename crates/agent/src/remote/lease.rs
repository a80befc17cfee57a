//! The lease of a node as the runner of one share may count on it.
//!
//! **Invariant:** no runner is promised more than the lease of its node stands; what was promised is known until it is over.

use super::link::LeaseRemainder;
use crate::clock::BootTime;
use crate::disk::lease::Lease;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The lease as a share's runner may count on it.
#[derive(Debug)]
pub(crate) struct RunnerLease {
    lease: Arc<Mutex<Lease>>,
    epoch: u64,
    state: Mutex<RunnerLeaseState>,
}

#[derive(Debug)]
struct RunnerLeaseState {
    /// Set once: nothing is promised any more.
    over: bool,
    /// Up to when anything launched may run, the grace of the lease's end included; none when this agent
    /// has promised nothing yet.
    until: Option<BootTime>,
}

impl RunnerLease {
    /// For workers of one epoch of a lease.
    pub(crate) fn new(lease: Arc<Mutex<Lease>>, epoch: u64) -> RunnerLease {
        RunnerLease { lease, epoch, state: Mutex::new(RunnerLeaseState { over: false, until: None }) }
    }

    /// What is left now; none when the share's lease is over.
    pub(crate) fn left(&self) -> Option<LeaseRemainder> {
        let mut state = self.state.lock();
        let now = BootTime::now();
        let slot = self.lease.lock().standing(now).filter(|slot| slot.epoch == self.epoch && !state.over)?;
        let end = slot.deadline.after(Duration::from_millis(slot.grace_ms));
        state.until = Some(state.until.map_or(end, |before| before.max(end)));
        let nanos = u64::try_from(now.until(slot.deadline).as_nanos()).unwrap_or(u64::MAX);
        Some(LeaseRemainder { nanos, grace_ms: slot.grace_ms })
    }

    /// Whether the share's lease is over: it never comes back.
    pub(crate) fn has_lapsed(&self) -> bool {
        self.lease.lock().standing(BootTime::now()).is_none_or(|slot| slot.epoch != self.epoch)
    }

    /// Promises nothing more.
    pub(crate) fn end(&self) {
        self.state.lock().over = true;
    }

    /// How long until nothing that was launched under it can be running, if nothing more is promised.
    /// None as long as that is not known.
    pub(crate) fn rest(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        let now = BootTime::now();
        let until = match state.until {
            Some(until) => until,
            None => {
                // What an earlier agent promised ended before what is promised now would. It is kept: what this agent's own lease
                // stands for later is promised to nobody.
                let slot = self.lease.lock().standing(now)?;
                let end = slot.deadline.after(Duration::from_millis(slot.grace_ms));
                *state.until.insert(end)
            }
        };
        Some(now.until(until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_agent_promised_ends_although_the_lease_of_the_node_goes_on() {
        let place = tempfile::tempdir().unwrap();
        let lease = Lease::open(&place.path().join("lease"), 7, 0).unwrap();
        let lease = Arc::new(Mutex::new(lease));
        let renew = |ttl_ms| {
            let now = BootTime::now();
            let (ttl, grace) = (Duration::from_millis(ttl_ms), Duration::from_millis(10));
            lease.lock().renew(now, ttl, grace, now).unwrap();
        };
        renew(1_000);
        let epoch = lease.lock().standing(BootTime::now()).unwrap().epoch;
        let promise = RunnerLease::new(Arc::clone(&lease), epoch);
        let first = promise.rest().unwrap();
        assert!(first <= Duration::from_millis(1_010), "{first:?}");
        renew(60_000);
        let second = promise.rest().unwrap();
        assert!(second <= first, "{second:?}");
        // What is promised now counts.
        assert!(promise.left().is_some());
        assert!(promise.rest().unwrap() > Duration::from_secs(50));
    }
}
