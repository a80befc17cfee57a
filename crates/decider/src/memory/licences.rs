//! Who keeps what is freed of counted resources: the first job that had its turn and found too little, until it is placed.
//!
//! Kept by the leader alone and in no record. A job that found too few licences is noted, higher tiers first and else in the order
//! in which they were. The first noted one that asks for a resource keeps what is free of it from all that are behind it. The first
//! of all keeps everything that it asks for, so that jobs with several licences never wait for each other.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use muster_state::State;
use muster_types::{JobId, JobSpec, Name, PriorityTier};

/// Jobs that are noted at a time. One more is noted once another is gone.
const NOTED_MAX: usize = 1_024;

/// The order of those who wait for licences; the smaller goes first.
type Place = (Reverse<PriorityTier>, u64);

/// Jobs that found too little of a counted resource when they had their turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct LicenceWaiters {
    waiting: BTreeMap<Place, JobId>,
    places: BTreeMap<JobId, Place>,
    last: u64,
}

impl LicenceWaiters {
    /// Forgets those that do not wait any more, or that could not start with all licences that there are.
    pub(crate) fn retain(&mut self, state: &State, is_barred: impl Fn(JobId) -> bool) {
        if self.waiting.is_empty() {
            return;
        }
        let waits = |job: &JobId| {
            let in_line = state.job(*job).is_some_and(|row| row.is_in_line());
            in_line && !is_barred(*job) && state.spec(*job).is_some_and(|spec| are_there(state, spec))
        };
        let gone: Vec<JobId> = self.places.keys().filter(|job| !waits(job)).copied().collect();
        for job in gone {
            self.forget(job);
        }
    }

    /// A job keeps nothing any more.
    pub(crate) fn forget(&mut self, job: JobId) {
        if let Some(place) = self.places.remove(&job) {
            self.waiting.remove(&place);
        }
    }

    /// Whether a job whose turn it is finds its licences, beyond what is kept for those before it. One that does not is noted.
    pub(crate) fn admit(&mut self, state: &State, job: JobId, spec: &JobSpec) -> bool {
        if spec.licences.is_empty() {
            return true;
        }
        let own = self.place_of(job, spec.tier);
        let finds = |(name, count): (&Name, &u32)| {
            let kept = self.kept_before(state, name, own);
            u64::from(*count) <= state.licences_free(name).saturating_sub(kept)
        };
        let finds_all = spec.licences.iter().all(finds);
        let is_new = !self.places.contains_key(&job) && self.places.len() < NOTED_MAX;
        if !finds_all && is_new && are_there(state, spec) {
            self.last += 1;
            self.places.insert(job, own);
            self.waiting.insert(own, job);
        }
        finds_all
    }

    /// Where a job stands, or would stand if it was noted now.
    fn place_of(&self, job: JobId, tier: PriorityTier) -> Place {
        self.places.get(&job).copied().unwrap_or((Reverse(tier), self.last + 1))
    }

    /// What the first of those before a place keeps of a counted resource.
    fn kept_before(&self, state: &State, name: &Name, place: Place) -> u64 {
        let asks = |job: &JobId| {
            let waits = state.job(*job).is_some_and(|row| row.is_in_line());
            state.spec(*job).filter(|_| waits)?.licences.get(name).copied()
        };
        self.waiting.range(..place).find_map(|(_, job)| asks(job)).map_or(0, u64::from)
    }
}

/// Whether the policy has as many of each resource as a job asks for: one that asks for more would keep them from all others for
/// good.
fn are_there(state: &State, spec: &JobSpec) -> bool {
    let policy = &state.policy().policy;
    spec.licences.iter().all(|(name, count)| u64::from(*count) <= policy.resource_count(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_tiers_and_those_that_were_noted_before_stand_first() {
        let mut waiters = LicenceWaiters::default();
        let (first, second, third) = (JobId(1), JobId(2), JobId(3));
        for (job, tier) in [(first, PriorityTier::Batch), (second, PriorityTier::Batch)] {
            let place = waiters.place_of(job, tier);
            waiters.last += 1;
            waiters.places.insert(job, place);
            waiters.waiting.insert(place, job);
        }
        assert!(waiters.place_of(first, PriorityTier::Batch) < waiters.place_of(second, PriorityTier::Batch));
        assert!(waiters.place_of(third, PriorityTier::Batch) > waiters.place_of(second, PriorityTier::Batch));
        assert!(waiters.place_of(third, PriorityTier::Critical) < waiters.place_of(first, PriorityTier::Batch));
        waiters.forget(first);
        assert_eq!(waiters.waiting.len(), 1);
    }
}
