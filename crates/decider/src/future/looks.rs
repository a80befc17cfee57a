//! How often a start is looked for where one is known.
//!
//! To look for a start is to look at everything that runs. A gang that waits with a reservation keeps its nodes whatever is found, unless
//! its start on others is earlier by minutes. So in a cluster where a look takes long, not every pass makes one: the next one comes
//! after a time that grows with what the last one took. In between a reservation has the time at which its own nodes are expected to be
//! free, which costs a look at these alone. Where its nodes are a large part of the fleet, passes up to the next look share one
//! timeline of them, to which each pass adds what it places there.

use alloc::sync::Arc;
use muster_state::State;
use muster_types::LogTime;
use muster_types::policy::Policy;

/// Looks that take no more visits than this are made in every pass.
pub(super) const VISITS_IN_EVERY_PASS: u64 = 2_000;
/// Visits of the last look for each millisecond up to the next one: about a tenth of a processor.
const VISITS_PER_MS: u64 = 100;
/// The longest time between two looks.
const BETWEEN_LOOKS_MAX_MS: u64 = 5_000;

/// When starts were last looked for that were known, under which policy, and what that took.
#[derive(Clone, Debug, Default)]
pub(super) struct LastLook {
    at: LogTime,
    visits: u64,
    policy: Option<Arc<Policy>>,
}

impl LastLook {
    /// Whether the next one is due. Another policy may make other starts of all.
    fn is_over(&self, policy: &Arc<Policy>, now: LogTime) -> bool {
        if self.visits <= VISITS_IN_EVERY_PASS {
            return true;
        }
        let pause_ms = (self.visits / VISITS_PER_MS).min(BETWEEN_LOOKS_MAX_MS);
        let is_same_policy = self.policy.as_ref().is_some_and(|known| Arc::ptr_eq(known, policy));
        !is_same_policy || now >= self.at.plus_ms(pause_ms)
    }
}

/// Looks at everything that runs during one pass.
#[derive(Clone, Debug, Default)]
pub(super) struct Looks {
    /// Up to when starts that are known are not looked for; none where they are.
    last: Option<LastLook>,
    policy: Option<Arc<Policy>>,
    visits: u64,
}

impl Looks {
    /// Those of a pass that begins now.
    pub(super) fn begin(state: &State, now: LogTime, last: LastLook) -> Looks {
        let policy = state.effective_policy();
        let last = Some(last).filter(|last| !last.is_over(policy, now));
        Looks { last, policy: Some(Arc::clone(policy)), visits: 0 }
    }

    /// Whether a start is looked for also where one is known.
    pub(super) fn are_due(&self) -> bool {
        self.last.is_none()
    }

    /// Counts what one takes.
    pub(super) fn count(&mut self, visits: u64) {
        self.visits = self.visits.saturating_add(visits);
    }

    /// What the next pass has to know.
    pub(super) fn end(self, now: LogTime) -> LastLook {
        let Looks { last, policy, visits } = self;
        last.unwrap_or(LastLook { at: now, visits, policy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_look_comes_after_a_time_that_grows_with_the_last_one() {
        let state = State::default();
        let pause_ms = |visits: u64| {
            let mut looks = Looks::begin(&state, LogTime(10), LastLook::default());
            assert!(looks.are_due(), "nothing was looked for before");
            looks.count(visits);
            let last = looks.end(LogTime(10));
            let is_due = |ms: &u64| Looks::begin(&state, LogTime(10 + *ms), last.clone()).are_due();
            (0..10_000).find(is_due)
        };
        assert_eq!(pause_ms(0), Some(0));
        assert_eq!(pause_ms(VISITS_IN_EVERY_PASS), Some(0), "small clusters are looked at in every pass");
        assert_eq!(pause_ms(100_000), Some(1_000));
        assert_eq!(pause_ms(u64::MAX), Some(BETWEEN_LOOKS_MAX_MS));
    }

    #[test]
    fn a_pass_between_two_looks_puts_off_neither() {
        let state = State::default();
        let mut looks = Looks::begin(&state, LogTime(10), LastLook::default());
        looks.count(100_000);
        let mut last = looks.end(LogTime(10));
        for now in (20..1_010).step_by(10) {
            // A gang that has no start yet is looked for one whenever that is.
            let mut looks = Looks::begin(&state, LogTime(now), last);
            assert!(!looks.are_due());
            looks.count(100_000);
            last = looks.end(LogTime(now));
        }
        assert!(Looks::begin(&state, LogTime(1_010), last).are_due());
    }

    #[test]
    fn another_policy_is_looked_at_at_once() {
        let state = State::default();
        let mut looks = Looks::begin(&state, LogTime(10), LastLook::default());
        looks.count(100_000);
        let other = Arc::new(Policy::clone(state.effective_policy()));
        let last = LastLook { policy: Some(other), ..looks.end(LogTime(10)) };
        assert!(Looks::begin(&state, LogTime(11), last).are_due());
    }
}
