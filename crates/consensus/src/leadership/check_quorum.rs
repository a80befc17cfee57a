//! Silences a leader that hears nobody.
//!
//! A leader whose requests arrive but whose answers are lost renews its followers' leases with
//! every retry, and they refuse every vote while their lease holds: the cluster would stand still
//! for as long as the fault lasts. So once the last acknowledgement of a quorum is older than a
//! bound, nothing is sent to followers except in one phase of three, which finds out whether the
//! fault is over; the two silent phases are long enough for leases to lapse and another replica to
//! be elected.
//!
//! **Invariant:** a leader that was heard within the bound is never held back.

use super::watch::quorum_silence;
use crate::config::Timing;
use crate::environment::{Environment, Metrics};
use muster_planted::{Rule, breaks};
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Silent phases, then one in which requests pass.
const PHASES: u128 = 3;

/// Whether requests to followers may be sent now. Clones share it.
pub struct CheckQuorum<E: Environment> {
    shared: Arc<Shared<E>>,
}

impl<E: Environment> Clone for CheckQuorum<E> {
    fn clone(&self) -> Self {
        CheckQuorum { shared: Arc::clone(&self.shared) }
    }
}

struct Shared<E: Environment> {
    silence_max: Duration,
    phase: Duration,
    /// Set once the protocol runs.
    metrics: Mutex<Option<Metrics<E>>>,
    /// The term this replica last led in, and since when.
    leading: Mutex<Option<(u64, Instant)>>,
}

/// Whether a leader that heard no quorum for `silence` may speak: up to the bound, and from there in the last of
/// every three phases.
fn passes(silence: Duration, silence_max: Duration, phase: Duration) -> bool {
    let Some(beyond) = silence.checked_sub(silence_max) else { return true };
    let slot = beyond.as_millis() / phase.as_millis().max(1);
    slot % PHASES == PHASES - 1
}

impl<E: Environment> CheckQuorum<E> {
    /// Open until the protocol says otherwise.
    #[must_use]
    pub fn new(timing: Timing) -> CheckQuorum<E> {
        let shared = Shared {
            silence_max: timing.silence_max(),
            phase: timing.silent_phase(),
            metrics: Mutex::new(None),
            leading: Mutex::new(None),
        };
        CheckQuorum { shared: Arc::new(shared) }
    }

    /// Once the protocol runs.
    pub fn watch(&self, metrics: Metrics<E>) {
        *self.shared.metrics.lock() = Some(metrics);
    }

    /// Whether requests to followers may be sent now.
    #[must_use]
    pub fn may_send(&self) -> bool {
        if breaks(Rule::DeafLeaderSpeaks) {
            return true;
        }
        let metrics = self.shared.metrics.lock();
        let Some(metrics) = metrics.as_ref().map(|metrics| metrics.borrow_watched()) else { return true };
        let mut leading = self.shared.leading.lock();
        if metrics.state != ServerState::Leader {
            *leading = None;
            return true;
        }
        let since = match *leading {
            Some((term, since)) if term == metrics.current_term => since,
            _ => leading.insert((metrics.current_term, E::instant())).1,
        };
        quorum_silence(&metrics, since)
            .is_none_or(|silence| passes(silence, self.shared.silence_max, self.shared.phase))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deaf_leader_is_heard_in_one_phase_of_three() {
        let (bound, phase) = (Duration::from_millis(300), Duration::from_millis(500));
        let open = |ms| passes(Duration::from_millis(ms), bound, phase);
        assert!(open(0) && open(299), "heard within the bound");
        assert!(!open(300) && !open(1_299), "silent for two phases");
        assert!(open(1_300) && open(1_799), "one phase of probes");
        assert!(!open(1_800) && !open(2_799));
        assert!(open(2_800));
    }

    #[test]
    fn the_silent_phases_outlast_lease_and_election() {
        for timing in [Timing::LOCAL, Timing::WIDE] {
            assert!(timing.silent_phase() * 2 > timing.lease() * 2, "{timing:?}");
            let heartbeat = Duration::from_millis(timing.heartbeat_interval_ms);
            assert!(timing.silence_max() > heartbeat * 2, "one missed heartbeat is left alone: {timing:?}");
        }
    }
}
