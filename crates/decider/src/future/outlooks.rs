//! When what runs is expected to end, and the timelines of clusters that are made of it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_planner::{Budget, CapacityTimeline};
use muster_policy::expected_end;
use muster_state::{Phase, State};
use muster_types::{JobId, LogTime};

use super::{ClusterKey, Future, Pace};
use crate::rules::affinity::STOPPED_LATE_MS;

/// When a gang is expected to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunEnd {
    job: JobId,
    at: LogTime,
    /// The median of its run time and the time that it ends by with a probability of 90 %; none where the end does not depend on
    /// the pace.
    spread: Option<(u64, u64)>,
}

impl Future {
    pub(super) fn outlook(
        &mut self,
        state: &State,
        place: &ClusterKey,
        budget: &mut Budget,
    ) -> &CapacityTimeline {
        if !self.outlooks.contains_key(place) {
            let mut outlook = match self.foreseen.outlooks.get(place) {
                Some(foreseen) => foreseen.clone(),
                None => self.new_outlook(state, place),
            };
            budget.take(outlook.visits());
            for reservation in self.reservations.iter().filter(|r| r.place == *place) {
                budget.take(outlook.walk_visits());
                outlook.reserve(reservation.job, &reservation.start, reservation.until);
                if reservation.is_closed() {
                    outlook.close(reservation.job);
                }
            }
            self.outlooks.insert(place.clone(), outlook);
        }
        self.outlooks.get(place).expect("it was just made")
    }

    /// A timeline without reservations. Of one at another pace the gangs are known, and where they are.
    fn new_outlook(&mut self, state: &State, place: &ClusterKey) -> CapacityTimeline {
        let other = self.foreseen.at_another_pace.as_deref();
        let known = other.and_then(|other| Some((other.outlooks.get(place)?, other.runs.get(place)?)));
        let (runs, outlook) = match known {
            Some((outlook, runs)) => (Arc::clone(runs), outlook.retimed(at_pace(runs, self.now, self.pace))),
            None => {
                let runs = run_ends(state, place, self.now);
                let ends = at_pace(&runs, self.now, self.pace);
                (Arc::new(runs), CapacityTimeline::new(state, &place.0, &place.1, ends))
            }
        };
        self.runs.insert(place.clone(), runs);
        outlook
    }
}

/// Gangs in a cluster with the times they are expected to end.
pub(super) fn releases(state: &State, place: &ClusterKey, now: LogTime, pace: Pace) -> Vec<(LogTime, JobId)> {
    at_pace(&run_ends(state, place, now), now, pace)
}

fn run_ends(state: &State, place: &ClusterKey, now: LogTime) -> Vec<RunEnd> {
    let mut found = Vec::new();
    for (_, job) in state.ends(&place.0, &place.1) {
        let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { continue };
        // What is being stopped runs no longer than its grace. Nearly nothing is, and everything that runs is looked at here.
        if matches!(row.phase, Phase::Stopping(_))
            && let Some(end) = state.stopped_by(job)
        {
            found.push(RunEnd { job, at: end.max(now.plus_ms(STOPPED_LATE_MS)), spread: None });
        } else if let Some(at) = expected_end(row, spec, now) {
            let spread = Some((row.estimate.run_ms, row.estimate.run_high_ms));
            found.push(RunEnd { job, at, spread });
        }
    }
    found
}

/// These ends at a pace, in the order of time.
fn at_pace(runs: &[RunEnd], now: LogTime, pace: Pace) -> Vec<(LogTime, JobId)> {
    let end = |run: &RunEnd| run.spread.map_or(run.at, |spread| scaled(run.at, spread, now, pace));
    let mut ends: Vec<(LogTime, JobId)> = runs.iter().map(|run| (end(run), run.job)).collect();
    ends.sort_unstable();
    ends
}

/// The end of a gang at a pace: the time that is left to run is scaled by what the estimate says of the
/// spread of run times, which is about the same on both sides of the median in proportion.
pub(super) fn scaled(expected: LogTime, (median, high): (u64, u64), now: LogTime, pace: Pace) -> LogTime {
    let left = u128::from(expected.since_ms(now));
    let (median, high) = (u128::from(median.max(1)), u128::from(high.max(1)));
    let left = match pace {
        Pace::Expected => left,
        Pace::Early => left * median / high.max(median),
        Pace::Late => left * high.max(median) / median,
    };
    now.plus_ms(u64::try_from(left).unwrap_or(u64::MAX))
}
