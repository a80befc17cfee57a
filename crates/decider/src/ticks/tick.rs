//! What only time brings about.

use alloc::vec::Vec;
use muster_journal::{Decision, StopCause};
use muster_state::Phase;
use muster_types::{JobId, LogIndex, LogTime, Parameters, Requester, limits};

use crate::memory::starts::Starts;
use crate::passes::turns::renew_turns;
use crate::settle::array;
use crate::settle::job::{has_next_step, settle, settle_left_over};
use crate::speculation::Speculation;
use crate::ticks::{bookings, deadlines, drains, fallbacks, fleet_holds, stuck, windows};

/// Jobs stopped for their limit in one tick.
const LIMITS_PER_TICK: usize = 1_000;

/// Time from one pass over the queue to the next, when nothing happens.
const RECONSIDER_MS: u64 = 10_000;

/// Records in one tick that drop history: each drops up to [`limits::PRUNE_ROWS_MAX`] rows of a kind, and a busy
/// cluster takes in some thousand a second.
const PRUNES_PER_TICK: usize = 4;

/// Lost nodes forgotten in one tick.
const NODES_FORGOTTEN_PER_TICK: usize = 256;

/// Jobs released in one tick.
const RELEASES_PER_TICK: usize = 1_000;

/// Jobs and arrays whose time has come that are looked at in one tick.
const STARTS_LOOKED_AT_PER_TICK: usize = 50_000;

/// Members of arrays that are looked at in one tick for those that are ready before their turn.
const MEMBERS_LOOKED_AT_PER_TICK: u32 = 8_192;

/// One of the things that time brings about.
#[derive(Clone, Copy, Debug)]
pub struct TickStep {
    /// Its name, for people.
    pub name: &'static str,
    run: fn(&mut Speculation),
}

impl TickStep {
    /// Pushes what is due; nothing while the cluster is being recovered.
    pub fn run(&self, speculation: &mut Speculation) {
        if !speculation.is_recovering() {
            (self.run)(speculation);
        }
    }
}

const fn step(name: &'static str, run: fn(&mut Speculation)) -> TickStep {
    TickStep { name, run }
}

/// All steps of a tick, in their order: stops gangs that have run for their limit or to their deadline, are where a window
/// or a booking is open to others, or on nodes that had to be empty by now, opens and ends bookings, ends holds of the fleet, releases jobs whose time has come, opens the fallbacks of jobs that have waited for long enough, ends grants of quota, and drops history
/// and lost nodes that have been kept for their time. Windows follow bookings, because they empty the parts of
/// the fleet whose maintenance has begun; no other needs those before it.
pub const TICK_STEPS: [TickStep; 13] = [
    step("run limits", stop_overdue),
    step("deadlines", deadlines::end_late),
    step("stuck gangs", stuck::advance),
    step("bookings", bookings::advance),
    step("holds of the fleet", fleet_holds::end),
    step("windows", windows::clear),
    step("drains and maintenance", drains::advance),
    step("starts", release),
    step("fallbacks", fallbacks::open),
    step("grants of quota", end_grants),
    step("retention", prune),
    step("lost nodes", forget_nodes),
    step("turns", reconsider),
];

/// Takes every step of [`TICK_STEPS`].
pub fn tick(speculation: &mut Speculation) {
    for step in &TICK_STEPS {
        step.run(speculation);
    }
}

/// Waiting jobs are looked at again now and then even if nothing has happened: rights to a reservation, to
/// capacity of others and the ends of windows come about by time alone.
fn reconsider(speculation: &mut Speculation) {
    renew_turns(speculation);
    let state = speculation.state();
    let waits =
        state.classes_in_line() > 0 || state.growable().next().is_some() || state.draining().next().is_some();
    if waits && speculation.now().since_ms(speculation.last_pass()) >= RECONSIDER_MS {
        speculation.want_schedule();
    }
}

/// Grants of quota whose time is over, and requests for quota that nobody answered in the time that they asked for.
fn end_grants(speculation: &mut Speculation) {
    let due = speculation.state().due_grants(speculation.now());
    let mut ids: Vec<LogIndex> = due.take(limits::QUOTA_GRANTS_ENDED_MAX).collect();
    if ids.is_empty() {
        return;
    }
    ids.sort_unstable();
    speculation.push(Decision::QuotaGrantsEnded { ids });
}

/// Jobs that were not to start before now.
fn release(speculation: &mut Speculation) {
    let now = speculation.now();
    let Starts { mut jobs, mut arrays, .. } = speculation.starts();
    let (mut due, mut due_arrays, mut is_cut) = (Vec::new(), Vec::new(), false);
    // What also waits for other jobs is looked at once: when they are over, it is settled.
    let behind = speculation.state().not_before_behind(jobs).take_while(|(time, _)| *time <= now);
    for (looked_at, place) in behind.enumerate() {
        if looked_at == STARTS_LOOKED_AT_PER_TICK || due.len() == RELEASES_PER_TICK {
            is_cut = true;
            break;
        }
        jobs = place;
        due.extend(Some(place.1).filter(|job| has_next_step(speculation, *job)));
    }
    let behind = speculation.state().arrays_not_before_behind(arrays).take_while(|(time, _)| *time <= now);
    for (looked_at, place) in behind.enumerate() {
        if looked_at == STARTS_LOOKED_AT_PER_TICK || due_arrays.len() == RELEASES_PER_TICK {
            is_cut = true;
            break;
        }
        arrays = place;
        due_arrays.extend(Some(place.1).filter(|array| array::has_next_step(speculation, *array)));
    }
    speculation.set_starts(Starts { jobs, arrays, is_cut });
    speculation.find_ready_members(MEMBERS_LOOKED_AT_PER_TICK);
    for job in due {
        settle(speculation, job);
    }
    speculation.leave_arrays_unsettled(due_arrays);
    settle_left_over(speculation);
    speculation.retry_without_room();
}

fn stop_overdue(speculation: &mut Speculation) {
    let now = speculation.now();
    let due = speculation.state().run_limits().take_while(|(limit, _)| *limit <= now);
    let overdue: Vec<JobId> = due.map(|(_, job)| job).take(LIMITS_PER_TICK).collect();
    for job in overdue {
        let row = speculation.state().job(job).expect("an indexed job has a row");
        assert!(row.phase == Phase::Running, "only a running job has a limit");
        let token = row.placement.as_ref().expect("a running job has a placement").token;
        speculation.push(Decision::GangStopRequested { job, token, cause: StopCause::RunTimeLimit });
        settle(speculation, job);
    }
}

/// Nodes that have been lost for so long that they will not come back under their ids.
fn forget_nodes(speculation: &mut Speculation) {
    if !speculation.believes_ages() {
        return;
    }
    let before = speculation.now().minus_ms(speculation.state().parameters().node_retention_ms);
    let state = speculation.state();
    let old = state.lost_nodes().take_while(|(at, _)| *at < before).take(NODES_FORGOTTEN_PER_TICK);
    let old: Vec<Decision> = old
        .map(|(_, node)| Decision::NodeForgotten { request: None, by: Requester::default(), node })
        .collect();
    for decision in old {
        // Promised capacity on it is dropped first.
        if speculation.state().check(&decision).is_ok() {
            speculation.push(decision);
        }
    }
}

/// Drops what has been kept for long enough, and what there is no space for any more, oldest first; and what was used of budgets
/// in windows that are over.
fn prune(speculation: &mut Speculation) {
    // Jobs that wait for one that is over see how it ended before that is forgotten.
    if !settle_left_over(speculation) {
        return;
    }
    for _ in 0..PRUNES_PER_TICK {
        let parameters = speculation.state().parameters();
        let now = speculation.now();
        let state = speculation.state();
        let pressed = |held: u64, max: u64| held.saturating_sub(max - max / 10);
        // A leader whose clock is wrong would forget a request id that its client still repeats, and the work
        // would be done twice: nothing goes by its age before this leadership has borne that age out.
        let by_age = |retention_ms| match speculation.believes_ages() {
            true => now.minus_ms(retention_ms),
            false => LogTime(0),
        };
        let requests_before = before(
            by_age(parameters.request_retention_ms),
            speculation.proved_now().minus_ms(Parameters::REQUEST_RETENTION_MIN_MS),
            pressed(state.requests_count() as u64, parameters.requests_held_max),
            state.requests_by_time().map(|(at, _)| (at, 1)),
        );
        let excess = pressed(state.rows_held(), parameters.jobs_held_max);
        let of_jobs =
            before(by_age(parameters.job_retention_ms), now, excess, state.finished().map(|(at, _)| (at, 1)));
        let arrays = || state.finished_arrays().map(|(at, array)| (at, state.array_rows(array)));
        // Where arrays fill the state that have no jobs any more, they go as jobs do.
        let jobs_before = match state.finished_count() as u64 >= excess {
            true => of_jobs,
            false => of_jobs.max(before(LogTime(0), now, excess, arrays())),
        };
        let old_request = state.requests_by_time().next().is_some_and(|(at, _)| at < requests_before);
        let old_job = state.finished().next().is_some_and(|(at, _)| at < jobs_before);
        let old_array = state.finished_arrays().next().is_some_and(|(at, _)| at < jobs_before);
        let old_budget = state.has_budgets_over(now);
        let old_use = state.has_users_to_forget(now);
        if !old_request && !old_job && !old_array && !old_budget && !old_use {
            return;
        }
        speculation.push(Decision::HistoryPruned { requests_before, jobs_before });
    }
}

/// What is older than this goes: by age, and as far as `excess` asks for, but nothing younger than `youngest`.
/// `times` are those of what there is, oldest first, with how many rows it takes.
fn before(
    by_age: LogTime,
    youngest: LogTime,
    excess: u64,
    mut times: impl Iterator<Item = (LogTime, u64)>,
) -> LogTime {
    // One record drops no more rows of a kind than this, so there is no need to look further.
    let wanted = excess.min(u64::from(limits::PRUNE_ROWS_MAX));
    if wanted == 0 {
        return by_age;
    }
    let mut rows: u64 = 0;
    let last = times.find_map(|(at, of_one)| {
        rows += of_one;
        (rows >= wanted).then_some(at)
    });
    let Some(last) = last else { return by_age };
    by_age.max(LogTime(last.0.saturating_add(1)).min(youngest))
}
