//! Arrays: what becomes of one as a whole, and when its next members become jobs.
//!
//! An array is one row until its members are near their turn. Members become jobs in the round of the submission, and
//! again whenever no more than half the window of them are in the queue. They have the position of the submission: its
//! turn, and ids in its order. A pass over the pending queue calls for more as soon as it has placed enough of them, so
//! that no job of the tenant that comes later has its turn before them.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::Decision;
use muster_state::{DependencyState, JobEnd, MemberEnd, State};
use muster_types::{ArrayId, Dependency, JobId, LogTime, limits};

use crate::round::ROUND_BYTES_SOFT;
use crate::rules::deadline::LATE;
use crate::rules::share::rows_left;
use crate::speculation::Speculation;

/// Members that are made jobs without a pause: a record of a few bytes makes many rows, at every replica.
const CREATED_AT_ONCE: u32 = 16 * limits::ARRAY_WINDOW;

/// Members that wait for members of another array and are made jobs in order, at a time. As many again may be jobs whose turn comes
/// earlier because what they wait for is over.
const WAITING_BY_MEMBER_MAX: u32 = limits::ARRAY_CREATED_MAX / 2;

/// Members that are looked at for the next ones in order which are ready, and as many of them as are made jobs at once.
const IN_ORDER_LOOKED_AT_MAX: u32 = 4_096;
const IN_ORDER_MAX: usize = limits::ARRAY_WINDOW as usize;

/// Members that are looked at, whenever arrays are filled, for more that are ready before their turn.
const LOOKED_AT_WHEN_FILLED: u32 = 2 * limits::ARRAY_WINDOW;

/// Pushes whatever the present state of an array calls for, and leaves it to be filled where it may have more members.
pub(super) fn settle_array(speculation: &mut Speculation, array: ArrayId) {
    if let Some(decision) = next_step(speculation.state(), array, speculation.now()) {
        let ends = matches!(decision, Decision::ArrayMembersFailed { .. });
        speculation.push(decision);
        if ends {
            leave_dependents(speculation, array);
        }
    }
}

/// Whether there is anything to settle.
pub(crate) fn has_next_step(speculation: &Speculation, array: ArrayId) -> bool {
    next_step(speculation.state(), array, speculation.now()).is_some()
}

fn next_step(state: &State, array: ArrayId, now: LogTime) -> Option<Decision> {
    let row = state.array(array).filter(|row| row.uncreated > 0)?;
    let spec = &row.template.spec;
    if spec.deadline.is_some_and(|deadline| deadline <= now) {
        return Some(Decision::ArrayMembersFailed { array, detail: String::from(LATE) });
    }
    if row.released {
        return None;
    }
    let mut waits = spec.not_before.is_some_and(|time| time > now);
    for on in &spec.dependencies {
        match state.dependency(on, None) {
            DependencyState::Met => {}
            DependencyState::Waits => waits = true,
            DependencyState::Broken(how) => {
                return Some(Decision::ArrayMembersFailed { array, detail: broken(on, how, "this array") });
            }
        }
    }
    (!waits).then_some(Decision::ArrayReleased { array })
}

/// Why something that waited for another job or array to succeed has failed.
pub(super) fn broken(on: &Dependency, how: MemberEnd, what: &str) -> String {
    let how = match how {
        MemberEnd::Cancelled => "was cancelled",
        _ => "failed",
    };
    let array = ArrayId(on.job.0);
    match (on.is_of_array(), on.is_of_members()) {
        (true, _) => format!("a member of {array} {how}, and {what} waits for all of them to succeed"),
        (_, true) => format!("the same member of {array} {how}, and {what} waits for it to succeed"),
        _ => format!("{} {how}, and {what} waits for it to succeed", on.job),
    }
}

/// Those who wait for an array, or for members of it, are left to be settled: all that were left to be created have ended.
pub(crate) fn leave_dependents(speculation: &mut Speculation, array: ArrayId) {
    let members = speculation.state().members(array);
    let state = speculation.state();
    let jobs: Vec<JobId> = state.dependents_of(members.clone()).collect();
    let arrays: Vec<ArrayId> = state.array_dependents_of(members).collect();
    let by_member: Vec<ArrayId> = state.member_dependents_of(array).collect();
    speculation.leave_unsettled(jobs);
    speculation.leave_arrays_unsettled(arrays);
    by_member.into_iter().for_each(|array| speculation.look_for_ready_members(array));
}

/// Jobs are over, or members of arrays that were not created: those who wait for them, and for their arrays that are over with
/// it, are left to be settled.
pub(crate) fn leave_dependents_of_jobs(speculation: &mut Speculation, jobs: &[JobId]) {
    let state = speculation.state();
    let arrays = jobs.iter().filter_map(|job| state.array_of(*job)).map(|(array, _)| array);
    let over = arrays.filter(|array| state.end_of_array(*array) != JobEnd::Unfinished);
    let waited_for: BTreeSet<JobId> = over.map(|array| JobId(array.0)).chain(jobs.iter().copied()).collect();
    // Of arrays that wait member by member those members that are not created are no dependents of these jobs.
    let members = jobs.iter().filter_map(|job| state.array_of(*job));
    let by_member: Vec<(ArrayId, u32)> = members
        .flat_map(|(array, ordinal)| state.member_dependents_of(array).map(move |other| (other, ordinal)))
        .collect();
    let jobs: Vec<JobId> = waited_for.iter().flat_map(|job| state.dependents(*job)).collect();
    let arrays: Vec<ArrayId> = waited_for.iter().flat_map(|job| state.array_dependents(*job)).collect();
    speculation.leave_unsettled(jobs);
    speculation.leave_arrays_unsettled(arrays);
    by_member.into_iter().for_each(|(array, ordinal)| speculation.note_if_ready(array, ordinal));
}

/// Makes jobs of the next members of arrays that have few waiting, while the round is not full; whether no array is left that
/// should have more. Members that wait for members of another array are left to be settled.
pub(crate) fn fill_arrays(speculation: &mut Speculation) -> bool {
    let (mut left, mut looks) = (CREATED_AT_ONCE, LOOKED_AT_WHEN_FILLED);
    while speculation.round_bytes() <= ROUND_BYTES_SOFT && left > 0 {
        let Some(array) = speculation.next_unfilled() else { return true };
        let state = speculation.state();
        let load = state.array_load(array);
        // Many at a time: a record for each would be one for each placement.
        let half = limits::ARRAY_WINDOW / 2;
        let is_full = load.in_line > half || load.pending - load.held > limits::ARRAY_CREATED_MAX - half;
        let wanted = if is_full { 0 } else { state.array_room(array) };
        let tenant = state.array(array).map(|row| &row.template.spec.tenant);
        let free = tenant.map_or(0, |tenant| rows_left(state, tenant, u64::from(wanted)));
        let may = wanted.min(u32::try_from(free).unwrap_or(u32::MAX));
        let count = may.min(left);
        let row = state.array(array);
        let waits_by_member =
            row.is_some_and(|row| row.template.spec.dependencies.iter().any(Dependency::is_of_members));
        if may < wanted {
            speculation.leave_without_room();
        }
        if count < may {
            speculation.leave_unfilled(array);
        }
        if count == 0 {
            continue;
        }
        if waits_by_member {
            left -= create_by_member(speculation, array, count);
            // Where some are found, the array is filled again, and fewer are left to be created in this round.
            speculation.find_ready_members_of(array, &mut looks);
        } else {
            speculation.push(Decision::ArrayMembersCreated { array, first: None, count });
            left -= count;
        }
    }
    !speculation.has_unfilled()
}

/// Makes jobs of members of an array that waits for others member by member: first of those whose counterparts are over, whatever is
/// before them, then of the next ones. How many.
fn create_by_member(speculation: &mut Speculation, array: ArrayId, count: u32) -> u32 {
    let ready = speculation.take_ready_members(array, count);
    let mut created = 0;
    for side_by_side in ready.chunk_by(|a, b| *a + 1 == *b) {
        let (Some(first), Some(last)) = (side_by_side.first(), side_by_side.last()) else { continue };
        let count = last - first + 1;
        speculation.push(Decision::ArrayMembersCreated { array, first: Some(*first), count });
        leave_members(speculation, array, *first, last + 1);
        created += count;
    }
    let state = speculation.state();
    let first = state.array(array).map_or(0, |row| row.next);
    let in_order = next_in_order(state, array).min(count - created);
    if in_order > 0 {
        speculation.push(Decision::ArrayMembersCreated { array, first: None, count: in_order });
        let end = speculation.state().array(array).map_or(first, |row| row.next);
        leave_members(speculation, array, first, end);
    }
    created + in_order
}

/// How many of the next members of such an array may be made jobs, whether or not their counterparts are over. Some may wait as jobs,
/// so that most are there when their counterparts end. Where a throttle bounds how many there are, none may that would only wait: the
/// throttle is for those that can run.
fn next_in_order(state: &State, array: ArrayId) -> u32 {
    let Some(row) = state.array(array).filter(|row| row.is_open()) else { return 0 };
    if row.template.array.throttle.is_none() {
        let load = state.array_load(array);
        let waiting = load.pending.saturating_sub(load.held).saturating_sub(load.in_line);
        return row.uncreated.min(WAITING_BY_MEMBER_MAX.saturating_sub(waiting));
    }
    let looked_at = row.next..row.size().min(row.next.saturating_add(IN_ORDER_LOOKED_AT_MAX));
    let left = looked_at.filter(|ordinal| state.is_uncreated(array, *ordinal));
    let ready = left.take_while(|ordinal| state.is_ready_member(array, *ordinal)).take(IN_ORDER_MAX);
    u32::try_from(ready.count()).unwrap_or(u32::MAX)
}

/// Members that were made jobs and wait for others are settled: some of the others may have ended otherwise than they ask.
fn leave_members(speculation: &mut Speculation, array: ArrayId, first: u32, end: u32) {
    let state = speculation.state();
    let members = array.member(first)..array.member(end);
    let created = state.jobs_with_specs(members).filter(|(_, row, _)| !row.released);
    let created: Vec<JobId> = created.map(|(job, ..)| job).collect();
    speculation.leave_unsettled(created);
}
