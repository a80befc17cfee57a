//! Reservations of the pass before, as a pass takes them up again.

use alloc::vec::Vec;
use muster_planner::{Budget, Start};
use muster_state::{JobRow, State, fit};
use muster_types::{JobId, JobSpec, LogTime, NodeId};

use super::{Future, Reservation, is_at_limit};
use crate::rules::affinity;
use crate::rules::bookings::{closures, covers};
use crate::rules::counted::lacks;

/// A start that is so little later has not slipped.
const SLIP_MS: u64 = 60_000;

impl Future {
    /// Takes up what is remembered, as far as it still concerns anybody.
    pub(crate) fn take_up(&mut self, state: &State, budget: &mut Budget) {
        self.lent.retain(state, self.now);
        // So much stays for the first turn, wherever the others are that the reservations depend on: else it would find
        // nothing, pass for pass.
        let kept = budget.left() / 2;
        // A node that has less than its timeline has of it would be lent to others for longer than it may be.
        for (place, nodes) in core::mem::take(&mut self.known_nodes) {
            let (are_as_known, looked_at) = nodes.are_as_known(state);
            budget.take(looked_at);
            if are_as_known {
                self.reserved_nodes.insert(place, nodes);
            }
        }
        let remembered = core::mem::take(&mut self.remembered);
        // One timeline has the nodes of all of them.
        for reservation in &remembered {
            let nodes = reservation.start.nodes.iter().map(|(node, _)| *node);
            self.taken_up.entry(reservation.place.clone()).or_default().extend(nodes);
        }
        for reservation in remembered {
            self.take_up_one(state, reservation, kept, budget);
        }
    }

    /// Takes up a reservation, if it still concerns anybody; whether it does. Of the budget, `kept` visits are left for what comes after it.
    fn take_up_one(
        &mut self,
        state: &State,
        mut reservation: Reservation,
        kept: u64,
        budget: &mut Budget,
    ) -> bool {
        let job = reservation.job;
        let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { return false };
        let is_over = !row.is_in_line() || row.cancel_requested;
        if is_over || lacks(state, spec) || is_at_limit(state, job, self.now) {
            return false;
        }
        if !self.may_be_on(state, spec, &reservation.start) {
            return false;
        }
        // Nor do nodes where the jobs are not any more that it has to be with, or where others are of whom nobody knows when
        // they are gone.
        let (opens, looked_at) = opens_at(state, (job, spec), &reservation.start, self.now);
        budget.take(looked_at.min(budget.left().saturating_sub(kept)));
        let Some(opens) = opens else { return false };
        // Nodes that are gone take the reservation with them: the gang gets another when it is its turn.
        let timeline = self.timeline_for(state, &reservation.place, &reservation.start, budget);
        let again = timeline.again(&reservation.start);
        budget.take(timeline.walk_visits());
        let Some(at) = again else { return false };
        // Nodes may be free before there is quota: that it starts earlier is found when it is its turn.
        let at = at.max(reservation.start.at).max(opens);
        reservation.has_slipped |= at > reservation.promised_at.plus_ms(SLIP_MS);
        reservation.start.at = at;
        // What did not begin when it could runs from now on.
        let begins = at.max(self.now);
        reservation.until = Some(begins.plus_ms(row.estimate.run_high_ms.max(1)));
        // What will be in use then takes a look at all that runs. In between that of the last look is gone on with, which knows what
        // was placed since, and not what ended before its time: it leaves others rather too little.
        if self.looks.are_due() {
            reservation.quota = None;
        }
        reservation.overdue_since = self.overdue_since(state, job, spec, row);
        self.install(state, reservation, budget);
        true
    }

    /// Whether the nodes of a start are still there for a gang, as far as what is asked of them goes.
    fn may_be_on(&self, state: &State, spec: &JobSpec, start: &Start) -> bool {
        // Nodes that do not suit the gang any more, by labels or taints that an operator has set since, are as good
        // as gone.
        let policy = &state.policy().policy;
        let suits = |node: &NodeId| {
            let row = state.node(*node).filter(|row| row.is_placeable());
            row.is_some_and(|row| fit::allows(&row.spec, spec, policy))
        };
        if !start.nodes.iter().all(|(node, _)| suits(node)) {
            return false;
        }
        // Nor do nodes that somebody has booked since for the time when it was to start.
        let mut closed = closures(state, spec, self.now);
        closed.retain(|closure| closure.lasts_at(start.at.max(self.now)));
        let is_booked =
            |node: &NodeId| state.node(*node).is_some_and(|row| covers(state, &closed, &row.spec));
        closed.is_empty() || !start.nodes.iter().any(|(node, _)| is_booked(node))
    }

    /// A gang keeps the reservation that it has, where no start is looked for that is known.
    pub(super) fn keep_own(
        &mut self,
        state: &State,
        mut own: Reservation,
        (row, is_kept, overdue_since): (&JobRow, bool, Option<LogTime>),
        budget: &mut Budget,
    ) {
        own.is_kept = is_kept;
        own.until = Some(own.start.at.plus_ms(row.estimate.run_high_ms.max(1)));
        own.overdue_since = overdue_since;
        if overdue_since.is_none() {
            own.extra = Vec::new();
        }
        let from = if own.is_closed() { self.now } else { own.start.at };
        own.extra.iter_mut().for_each(|(_, hold)| hold.from = from);
        self.install(state, own, budget);
    }

    /// Keeps for a gang during this pass what an earlier one kept for it, where no start is looked for that is known; whether it does.
    pub(super) fn make_again(&mut self, state: &State, job: JobId, budget: &mut Budget) -> bool {
        let Some(at) = self.passing.iter().position(|known| known.job == job) else { return false };
        let mut known = self.passing.remove(at);
        // It is promised nothing beyond the pass, and so it cannot slip.
        known.made_at = self.now;
        known.promised_at = LogTime(u64::MAX);
        let is_made = self.take_up_one(state, known, budget.left() / 2, budget);
        if is_made && let Some(made) = self.reservations.last_mut() {
            made.promised_at = made.start.at;
        }
        is_made
    }
}

/// When other jobs are expected to let a gang be on the nodes of a start, and how much was looked at; none where nobody knows.
fn opens_at(
    state: &State,
    (job, spec): (JobId, &JobSpec),
    start: &Start,
    now: LogTime,
) -> (Option<LogTime>, u64) {
    let others = affinity::resolve(state, job, spec);
    let rows: Vec<_> = start.nodes.iter().filter_map(|(node, _)| state.node(*node)).collect();
    if !rows.iter().any(|row| others.excludes(&row.spec)) {
        return (Some(LogTime(0)), others.looked_at);
    }
    let (openings, more) = affinity::openings(state, job, spec, now);
    let opens = rows
        .iter()
        .try_fold(LogTime(0), |latest, row| others.opens_at(&row.spec, &openings).map(|at| latest.max(at)));
    (opens, others.looked_at + more)
}
