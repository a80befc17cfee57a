//! What a booking would cost others, before it is made.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use muster_planner::Budget;
use muster_policy::expected_end;
use muster_state::{Phase, State};
use muster_types::{BookingSpec, BookingWindow, JobId, LogTime, Name, NodeId, Refusal};

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
    /// The nodes that it would get, by name.
    pub nodes: Vec<Name>,
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
    let ids: BTreeSet<NodeId> = nodes.iter().filter_map(|node| state.node_named(node)).collect();
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
    Ok(BookingPlan { spec, nodes, overrunning, displaced, is_cut, knows_reservations })
}
