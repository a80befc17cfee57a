//! What a booking would cost others, before it is made.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use muster_planner::Budget;
use muster_policy::expected_end;
use muster_state::{Phase, State};
use muster_types::{Booking, BookingSpec, BookingWindow, JobId, LogTime, Name, NodeId, Refusal};

use crate::future::{Future, KeptReservations};
use crate::rules::bookings::{CheckedBooking, prepare};

/// Jobs of each kind that are listed.
const LISTED_MAX: usize = 1_000;

/// Work of one answer.
const VISITS: u64 = 4_000_000;

/// What would become of a booking that was made now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookingPlan {
    /// What would be booked, with its start.
    pub spec: BookingSpec,
    /// The nodes that it would get, by name; none for a part of the fleet.
    pub nodes: Vec<Name>,
    /// How many nodes that are, with those of a part of the fleet.
    pub node_count: usize,
    /// Bookings of others that have some of these nodes during some of the windows: maintenance is over those of tenants.
    pub met: Vec<Name>,
    /// Others' jobs that run there, or are being started, and are expected (p50) to run beyond the start of the first window,
    /// with that end. They are stopped then, unless the booking lets others finish.
    pub overrunning: Vec<(JobId, LogTime)>,
    /// Others' gangs that wait and have a reservation there for a start that the booking rules out, or to which capacity there is
    /// promised for now.
    pub displaced: Vec<JobId>,
    /// Whether there are more of them than are listed.
    pub is_cut: bool,
    /// Whether the leader's reservations were known: without them only promised capacity is.
    pub knows_reservations: bool,
}

/// What a booking would cost others, as the requester could make it now. Nothing is changed. `acts_for` is the tenant that the
/// requester is bound to; none where it acts for the cluster's operators.
///
/// # Errors
/// The refusal that making it would get.
pub fn plan_booking(
    state: &State,
    now: LogTime,
    (acts_for, name): (Option<&Name>, &Name),
    asked: &BookingSpec,
    kept: &KeptReservations,
) -> Result<BookingPlan, Refusal> {
    let CheckedBooking { spec, nodes } = prepare(state, now, acts_for, name, asked)?;
    let first = spec.times.window(0).unwrap_or(BookingWindow { from: now, until: now });
    let ids = ids_of(state, &spec, &nodes);
    let policy = &state.policy().policy;
    let is_foreign = |job: JobId| state.spec(job).is_some_and(|job| !spec.admits(policy, name, job));
    let gangs: BTreeSet<JobId> = ids.iter().flat_map(|node| state.gangs_on(*node)).collect();
    let end_of = |job: JobId| {
        let (row, job_spec) = (state.job(job)?, state.spec(job)?);
        let runs = matches!(row.phase, Phase::Starting | Phase::Running);
        expected_end(row, job_spec, now).filter(|_| runs)
    };
    let ends = gangs.into_iter().filter(|job| is_foreign(*job));
    let ends = ends.filter_map(|job| end_of(job).map(|end| (job, end)));
    let mut overrunning: Vec<(JobId, LogTime)> = ends.filter(|(_, end)| *end > first.from).collect();
    let mut displaced: BTreeSet<JobId> = BTreeSet::new();
    let is_ruled_out = |job: JobId, at: LogTime| {
        let limit_ms = state.spec(job).and_then(|spec| spec.run_time_limit_ms);
        is_foreign(job) && spec.closed_from(first, limit_ms) <= at && at < first.until
    };
    for node in &ids {
        displaced.extend(state.promised_on(*node).filter(|job| is_ruled_out(*job, now)));
    }
    let mut future = Future::resume(now, kept.clone());
    future.take_up(state, &mut Budget::new(VISITS));
    for reservation in future.reservations() {
        let is_there = reservation.start.nodes.iter().any(|(node, _)| ids.contains(node));
        if is_there && is_ruled_out(reservation.job, reservation.start.at.max(now)) {
            displaced.insert(reservation.job);
        }
    }
    let is_cut = overrunning.len() > LISTED_MAX || displaced.len() > LISTED_MAX;
    overrunning.truncate(LISTED_MAX);
    let displaced = displaced.into_iter().take(LISTED_MAX).collect();
    let knows_reservations = kept.is_of_a_pass();
    let (node_count, met) = (ids.len(), met_by(state, &spec, &ids));
    Ok(BookingPlan { spec, nodes, node_count, met, overrunning, displaced, is_cut, knows_reservations })
}

/// The nodes that a booking keeps.
fn ids_of(state: &State, spec: &BookingSpec, nodes: &[Name]) -> BTreeSet<NodeId> {
    let Some(part) = spec.part() else {
        return nodes.iter().filter_map(|node| state.node_named(node)).collect();
    };
    let all = state.nodes_by_name().map(|(_, id)| id);
    all.filter(|id| state.node(*id).is_some_and(|row| part.covers(&row.spec))).collect()
}

/// Bookings that have some of these nodes during some of the windows of another; of two of which one at least is maintenance, because
/// those of tenants do not meet.
fn met_by(state: &State, spec: &BookingSpec, ids: &BTreeSet<NodeId>) -> Vec<Name> {
    let names: BTreeSet<&Name> = ids.iter().filter_map(|id| Some(&state.node(*id)?.spec.name)).collect();
    let has_one = |booking: &Booking| match booking.spec.part() {
        Some(part) => ids.iter().any(|id| state.node(*id).is_some_and(|row| part.covers(&row.spec))),
        None => booking.nodes.iter().any(|node| names.contains(node)),
    };
    let meets = |booking: &Booking| booking.left().meets(&spec.times).is_some() && has_one(booking);
    let met = state.bookings().filter(|(_, booking)| meets(booking));
    met.map(|(name, _)| name.clone()).collect()
}
