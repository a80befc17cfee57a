//! Who keeps what is freed of what is counted, of licences and of limits on CPUs and memory: the first job that had its turn and
//! found too little, until it is placed.
//!
//! Kept by the leader alone and in no record. A job that found too little is noted, higher tiers first and else in the order in
//! which they were. The first noted one that needs something keeps what is free of it from all that are behind it. The first of
//! all keeps everything that it needs, so that jobs with several licences never wait for each other.
//!
//! Of a tenant one job of a tier is noted at a time that lacks the same thing, so that tenants take turns: many jobs of one that were
//! sent at once would all go before those of another otherwise, whatever their shares are.
//!
//! A job that has no start near, whatever it finds of what is counted, keeps nothing: its tenant has no quota for it for long, or its
//! nodes are not there. Otherwise everyone who may submit could keep all licences from everybody. How near a start has to be grows
//! with the time that the job has waited, so that others who take its nodes again and again do not keep it waiting for good.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Reverse;
use muster_state::State;
use muster_types::{JobId, JobSpec, LogTime, Name, PriorityTier};

use crate::future::LicenceKeepers;
use crate::memory::requests::counted;
use crate::rules::counted::{Counted, are_there, needed};
use crate::rules::planned::planned_spec;

/// Jobs that are noted at a time. One more is noted once another is gone.
const NOTED_MAX: usize = 512;
/// Jobs for which a start is looked for in one pass.
const LOOKS_MAX: u32 = 16;
/// How long the answer holds: for one with a start that is near, and for one without.
const LOOK_AGAIN_MS: u64 = 10 * 60_000;
/// How soon a job has to be able to start, apart from what is counted, to keep that from others: an hour gives several looks at it
/// before its start, and lets little stand idle. What others take before may last longer, and then it waits for that.
const NEAR_MS: u64 = 3_600_000;
/// For each of these hours that a job has waited, its start may be one more hour off: it lets what it keeps stand idle for a small
/// part of its wait at most, and one whose start is always as far off keeps something in the end.
const WAITED_PER_HOUR: u64 = 8;
/// Jobs without a near start that are remembered. One more keeps what it needs until another is forgotten.
const WITHOUT_START_MAX: usize = 4_096;

/// The order of those who wait; the smaller goes first.
type OrderKey = (Reverse<PriorityTier>, u64);

/// A job that is noted.
#[derive(Clone, Debug)]
struct Noted {
    order: OrderKey,
    /// Whose it is; the tenants that the policy does not name are one.
    tenant: Name,
    needed: Vec<(Counted, u64)>,
    /// Of what there was too little.
    lacking: Vec<Counted>,
    /// When a start was last found for it that is near.
    start_found_at: Option<LogTime>,
}

/// Whether the start of a job is near enough for what it needs to be kept: the longer it has waited, the later the start may be.
fn is_near(start: LogTime, now: LogTime, waited_ms: u64) -> bool {
    start <= now.plus_ms(NEAR_MS.saturating_add(waited_ms / WAITED_PER_HOUR))
}

/// Whether a look has found a start that is near; none where nobody knows. A look that ended before it had been everywhere
/// may have missed an earlier start than the one it found.
pub(crate) fn found_near(
    start: Option<LogTime>,
    is_whole: bool,
    now: LogTime,
    waited_ms: u64,
) -> Option<bool> {
    let has_near_start = start.is_some_and(|start| is_near(start, now, waited_ms));
    (has_near_start || is_whole).then_some(has_near_start)
}

/// What a job is noted for: a thing that it lacks, its tenant and its tier.
type NotedFor = (Counted, Name, PriorityTier);

impl Noted {
    fn noted_for(&self) -> impl Iterator<Item = NotedFor> + '_ {
        let Reverse(tier) = self.order.0;
        self.lacking.iter().map(move |what| (what.clone(), self.tenant.clone(), tier))
    }
}

/// Jobs that found too little of what is counted when they had their turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct CountedWaiters {
    noted: BTreeMap<JobId, Noted>,
    noted_for: BTreeSet<NotedFor>,
    /// How much each of them needs, by what it is.
    waiting: BTreeMap<Counted, BTreeMap<OrderKey, (JobId, u64)>>,
    last: u64,
    /// Jobs that have no start near, and since when that is known.
    without_start: BTreeMap<JobId, LogTime>,
    /// Jobs for which a start was looked for in this pass.
    looks: u32,
}

impl CountedWaiters {
    /// Who keeps licences, and who does not.
    pub(crate) fn licence_keepers(&self) -> LicenceKeepers {
        let first = self.waiting.iter().filter_map(|(what, waiting)| match what {
            Counted::Licence(name) => Some((name.clone(), waiting.values().next()?.0)),
            Counted::Host(..) => None,
        });
        LicenceKeepers::new(first.collect(), self.without_start.keys().copied().collect())
    }

    /// Forgets those that do not wait any more, or that could not start with all that there is. Under another policy a job may
    /// need something else: then it is noted again when it has its turn.
    pub(crate) fn retain(&mut self, state: &State, now: LogTime, is_barred: impl Fn(JobId) -> bool) {
        self.looks = 0;
        self.without_start.retain(|job, since| {
            now.since_ms(*since) < LOOK_AGAIN_MS && state.job(*job).is_some_and(|row| row.is_in_line())
        });
        let waits = |(job, noted): (&JobId, &Noted)| {
            let in_line = state.job(*job).is_some_and(|row| row.is_in_line());
            // What it needs as it is planned is looked at only where that differs: it may be in one region alone.
            let is_same = || {
                state.spec(*job).is_some_and(|spec| needed(state, spec) == noted.needed)
                    || planned_spec(state, *job).is_some_and(|spec| needed(state, &spec) == noted.needed)
            };
            in_line && !is_barred(*job) && are_there(state, &noted.needed) && is_same()
        };
        let gone = self.noted.iter().filter(|(job, noted)| !waits((*job, *noted))).map(|(job, _)| *job);
        let gone: Vec<JobId> = gone.collect();
        for job in gone {
            self.forget(job);
        }
    }

    /// A job keeps nothing any more.
    pub(crate) fn forget(&mut self, job: JobId) {
        let Some(noted) = self.noted.remove(&job) else { return };
        for key in noted.noted_for() {
            self.noted_for.remove(&key);
        }
        for (what, _) in &noted.needed {
            if let Some(waiting) = self.waiting.get_mut(what) {
                waiting.remove(&noted.order);
                if waiting.is_empty() {
                    self.waiting.remove(what);
                }
            }
        }
    }

    /// Whether a job whose turn it is finds what it needs, beyond what is kept for those before it. One that does not is noted.
    pub(crate) fn admit(&mut self, state: &State, job: JobId, spec: &JobSpec) -> bool {
        let needed = needed(state, spec);
        if needed.is_empty() {
            return true;
        }
        let order = self.place_of(job, spec.tier);
        let finds = |(what, count): &(Counted, u64)| {
            *count <= what.free(state).saturating_sub(self.kept_before(state, what, order))
        };
        let lacking = needed.iter().filter(|need| !finds(need)).map(|(what, _)| what.clone());
        let lacking: Vec<Counted> = lacking.collect();
        let finds_all = lacking.is_empty();
        let is_new = !self.noted.contains_key(&job) && self.noted.len() < NOTED_MAX;
        let may_start = !self.without_start.contains_key(&job);
        if !finds_all && is_new && may_start && are_there(state, &needed) {
            let tenant = counted(&state.policy().policy, &spec.tenant).clone();
            let noted = Noted { order, tenant, needed, lacking, start_found_at: None };
            if !noted.noted_for().any(|key| self.noted_for.contains(&key)) {
                self.note(job, noted);
            }
        }
        finds_all
    }

    /// Whether a start is to be looked for: the job keeps something from others, and there was no look for a while.
    pub(crate) fn is_start_unknown(&self, job: JobId, now: LogTime) -> bool {
        let Some(noted) = self.noted.get(&job).filter(|_| self.looks < LOOKS_MAX) else { return false };
        let is_first = |(what, _): &(Counted, u64)| {
            let first = self.waiting.get(what).and_then(|waiting| waiting.values().next());
            first.is_some_and(|(first, _)| *first == job)
        };
        noted.start_found_at.is_none_or(|at| now.since_ms(at) >= LOOK_AGAIN_MS)
            && noted.needed.iter().any(is_first)
    }

    /// What a look for a start has found. Without one that is near the job keeps nothing for a while.
    pub(crate) fn set_start(&mut self, job: JobId, has_near_start: bool, now: LogTime) {
        self.looks += 1;
        if has_near_start {
            if let Some(noted) = self.noted.get_mut(&job) {
                noted.start_found_at = Some(now);
            }
        } else if self.without_start.len() < WITHOUT_START_MAX {
            self.without_start.insert(job, now);
            self.forget(job);
        }
    }

    /// Whether a part of what limits on CPUs and memory leave to a job is kept for others before it: a size above its least would
    /// take from that.
    pub(crate) fn is_kept_from(&self, state: &State, job: JobId, spec: &JobSpec) -> bool {
        if self.noted.is_empty() || !spec.is_elastic() {
            return false;
        }
        let order = self.place_of(job, spec.tier);
        let is_kept = |(what, _): &(Counted, u64)| {
            matches!(what, Counted::Host(..)) && self.kept_before(state, what, order) > 0
        };
        needed(state, spec).iter().any(is_kept)
    }

    fn note(&mut self, job: JobId, noted: Noted) {
        self.last += 1;
        self.noted_for.extend(noted.noted_for());
        for (what, count) in &noted.needed {
            self.waiting.entry(what.clone()).or_default().insert(noted.order, (job, *count));
        }
        self.noted.insert(job, noted);
    }

    /// Where a job stands, or would stand if it was noted now.
    fn place_of(&self, job: JobId, tier: PriorityTier) -> OrderKey {
        self.noted.get(&job).map_or((Reverse(tier), self.last + 1), |noted| noted.order)
    }

    /// What the first of those before a order keeps of something.
    fn kept_before(&self, state: &State, what: &Counted, order: OrderKey) -> u64 {
        let Some(waiting) = self.waiting.get(what) else { return 0 };
        let waits = |job: JobId| state.job(job).is_some_and(|row| row.is_in_line());
        let mut before = waiting.range(..order).map(|(_, needs)| *needs);
        before.find(|(job, _)| waits(*job)).map_or(0, |(_, count)| count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_a_job_has_waited_the_later_may_its_start_be() {
        const HOUR_MS: u64 = 3_600_000;
        let (now, in_hours) = (LogTime(HOUR_MS), |hours: u64| LogTime(HOUR_MS).plus_ms(hours * HOUR_MS));
        assert!(is_near(LogTime(0), now, 0) && is_near(now, now, 0) && is_near(in_hours(1), now, 0));
        assert!(!is_near(in_hours(2), now, 7 * HOUR_MS) && is_near(in_hours(2), now, 8 * HOUR_MS));
        assert!(!is_near(in_hours(24), now, 24 * HOUR_MS) && is_near(in_hours(24), now, 8 * 23 * HOUR_MS));
    }

    #[test]
    fn a_look_that_has_not_been_everywhere_does_not_know_that_no_start_is_near() {
        let (now, far) = (LogTime(1_000), LogTime(1_000).plus_ms(2 * NEAR_MS));
        assert_eq!(found_near(Some(now), false, now, 0), Some(true), "the start that it found is near");
        assert_eq!(found_near(Some(far), false, now, 0), None, "there may be an earlier one elsewhere");
        assert_eq!(found_near(None, false, now, 0), None);
        assert_eq!(found_near(Some(far), true, now, 0), Some(false));
        assert_eq!(found_near(None, true, now, 0), Some(false));
    }

    #[test]
    fn higher_tiers_and_those_that_were_noted_before_stand_first() {
        let mut waiters = CountedWaiters::default();
        let (first, second, third) = (JobId(1), JobId(2), JobId(3));
        let needed = alloc::vec![(Counted::Licence(Name::literal("matlab")), 2)];
        for job in [first, second] {
            let order = waiters.place_of(job, PriorityTier::Batch);
            let (tenant, needed) = (Name::literal("research"), needed.clone());
            let lacking = Vec::new();
            waiters.note(job, Noted { order, tenant, needed, lacking, start_found_at: None });
        }
        assert!(waiters.place_of(first, PriorityTier::Batch) < waiters.place_of(second, PriorityTier::Batch));
        assert!(waiters.place_of(third, PriorityTier::Batch) > waiters.place_of(second, PriorityTier::Batch));
        assert!(
            waiters.place_of(third, PriorityTier::Critical) < waiters.place_of(first, PriorityTier::Batch)
        );
        waiters.forget(first);
        assert_eq!(waiters.waiting.values().map(BTreeMap::len).sum::<usize>(), 1);
        waiters.forget(second);
        assert!(waiters.waiting.is_empty() && waiters.noted.is_empty());
    }
}
