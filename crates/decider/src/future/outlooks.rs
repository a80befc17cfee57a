//! When what runs is expected to end, and the timelines of clusters that are made of it.
//!
//! To find a start, a pass needs the timeline of a whole cluster, which it makes from all gangs that run there. A start that is known
//! depends on its own nodes alone, so that a timeline of these nodes is enough where the other one was not made.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_planner::{Budget, CapacityTimeline, Start};
use muster_policy::expected_end;
use muster_state::{Phase, State};
use muster_types::{JobId, LogTime, NodeId};

use super::looks::VISITS_IN_EVERY_PASS;
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

/// The nodes of a cluster that are reserved, and their timeline.
#[derive(Clone, Debug)]
pub(super) struct ReservedNodes {
    nodes: Arc<BTreeSet<NodeId>>,
    timeline: CapacityTimeline,
}

impl ReservedNodes {
    /// The same with nothing reserved, for passes up to the next look; none where it is made again as soon.
    pub(super) fn to_be_kept(&self) -> Option<ReservedNodes> {
        let (nodes, timeline) = (Arc::clone(&self.nodes), self.timeline.without_reserved());
        (timeline.visits() > VISITS_IN_EVERY_PASS).then_some(ReservedNodes { nodes, timeline })
    }

    /// Whether these nodes are there, with nothing on them that their timeline does not know; and what it takes to look.
    pub(super) fn are_as_known(&self, state: &State) -> (bool, u64) {
        (self.timeline.is_covered(state), self.nodes.len() as u64)
    }

    fn have(&self, start: &Start) -> bool {
        start.nodes.iter().all(|(node, _)| self.nodes.contains(node))
    }

    pub(super) fn timeline(&self) -> &CapacityTimeline {
        &self.timeline
    }
}

impl Future {
    /// The timeline of a cluster as far as one was made: of all of it, else of its nodes that are reserved.
    pub(super) fn timeline(&self, place: &ClusterKey) -> Option<&CapacityTimeline> {
        self.outlooks.get(place).or_else(|| self.reserved_nodes.get(place).map(ReservedNodes::timeline))
    }

    /// The same, to be changed.
    pub(super) fn timeline_mut(&mut self, place: &ClusterKey) -> Option<&mut CapacityTimeline> {
        match self.outlooks.get_mut(place) {
            Some(outlook) => Some(outlook),
            None => self.reserved_nodes.get_mut(place).map(|reserved| &mut reserved.timeline),
        }
    }

    /// A timeline that has the nodes of a start in a cluster, with all that is reserved there.
    pub(super) fn timeline_for(
        &mut self,
        state: &State,
        place: &ClusterKey,
        start: &Start,
        budget: &mut Budget,
    ) -> &mut CapacityTimeline {
        if self.outlooks.contains_key(place) || self.foreseen.outlooks.contains_key(place) {
            self.outlook(state, place, budget);
        } else if !self.reserved_nodes.get(place).is_some_and(|reserved| reserved.have(start)) {
            let reserved = self.new_reserved(state, place, start, budget);
            self.looks.count(reserved.timeline.visits());
            self.reserved_nodes.insert(place.clone(), reserved);
        }
        self.timeline_mut(place).expect("it was just made")
    }

    /// A timeline of the nodes of a start and of all that are reserved, or were by the end of the pass before.
    fn new_reserved(
        &self,
        state: &State,
        place: &ClusterKey,
        start: &Start,
        budget: &mut Budget,
    ) -> ReservedNodes {
        let mut nodes: BTreeSet<NodeId> = start.nodes.iter().map(|(node, _)| *node).collect();
        nodes.extend(self.taken_up.get(place).into_iter().flatten().copied());
        let reserved = self.reservations.iter().chain(&self.own).filter(|other| other.place == *place);
        nodes.extend(reserved.flat_map(|other| other.start.nodes.iter().map(|(node, _)| *node)));
        let mut gangs: BTreeSet<JobId> = BTreeSet::new();
        for node in &nodes {
            gangs.extend(state.gangs_on(*node).chain(state.spares_on(*node)));
        }
        // All workers of a gang are looked at, wherever they are.
        let placements = gangs.iter().filter_map(|job| state.job(*job)?.placement.as_ref());
        let workers: u64 = placements.map(|placement| placement.slots.len() as u64).sum();
        let runs: Vec<RunEnd> = gangs.iter().filter_map(|job| run_end(state, *job, self.now)).collect();
        let ends = at_pace(&runs, self.now, self.pace);
        let mut timeline = CapacityTimeline::of_nodes(state, (&place.0, &place.1), &nodes, ends);
        budget.take((nodes.len() as u64).saturating_add(workers).max(timeline.visits()));
        self.reserve_in(place, &mut timeline, budget);
        ReservedNodes { nodes: Arc::new(nodes), timeline }
    }

    fn reserve_in(&self, place: &ClusterKey, timeline: &mut CapacityTimeline, budget: &mut Budget) {
        for reservation in self.reservations.iter().filter(|other| other.place == *place) {
            budget.take(timeline.walk_visits());
            timeline.reserve(reservation.job, &reservation.start, reservation.until);
            if reservation.is_closed() {
                timeline.close(reservation.job);
            }
        }
    }

    /// The timeline of a whole cluster.
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
            self.looks.count(outlook.visits());
            self.reserve_in(place, &mut outlook, budget);
            self.reserved_nodes.remove(place);
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
    state.ends(&place.0, &place.1).filter_map(|(_, job)| run_end(state, job, now)).collect()
}

/// When a gang that holds devices is expected to end; none of one that holds nothing.
fn run_end(state: &State, job: JobId, now: LogTime) -> Option<RunEnd> {
    let (row, spec) = (state.job(job)?, state.spec(job)?);
    // What is being stopped runs no longer than its grace. Nearly nothing is, and everything that runs is looked at here.
    if matches!(row.phase, Phase::Stopping(_))
        && let Some(end) = state.stopped_by(job)
    {
        return Some(RunEnd { job, at: end.max(now.plus_ms(STOPPED_LATE_MS)), spread: None });
    }
    let at = expected_end(row, spec, now)?;
    Some(RunEnd { job, at, spread: Some((row.estimate.run_ms, row.estimate.run_high_ms)) })
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
