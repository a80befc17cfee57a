//! What only time brings about.

use alloc::vec::Vec;
use muster_journal::{Decision, StopCause};
use muster_state::Phase;
use muster_types::policy::{Window, WindowPurpose};
use muster_types::{JobId, LogTime, NodeId, Parameters, limits};

use crate::health;
use crate::job::{has_next_step, settle};
use crate::schedule::renew_turns;
use crate::speculation::Speculation;

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

/// Stops gangs that have run for their limit, are in the way of maintenance or on nodes that had to be empty by
/// now, releases jobs whose time has
/// come, and drops history and lost nodes that have been kept for their time.
pub fn tick(speculation: &mut Speculation) {
    if speculation.is_recovering() {
        return;
    }
    stop_overdue(speculation);
    clear_windows(speculation);
    health::advance(speculation);
    release(speculation);
    prune(speculation);
    forget_nodes(speculation);
    reconsider(speculation);
}

/// Waiting jobs are looked at again now and then even if nothing has happened: rights to a reservation, to
/// room of others and the ends of windows come about by time alone.
fn reconsider(speculation: &mut Speculation) {
    renew_turns(speculation);
    let state = speculation.state();
    let waits =
        state.classes_in_line() > 0 || state.growable().next().is_some() || state.draining().next().is_some();
    if waits && speculation.now().since_ms(speculation.last_pass()) >= RECONSIDER_MS {
        speculation.want_schedule();
    }
}

/// Jobs that were not to start before now.
fn release(speculation: &mut Speculation) {
    let now = speculation.now();
    let due = speculation.state().not_before().take_while(|(time, _)| *time <= now);
    // Those that wait for others besides do not count.
    let due = due.map(|(_, job)| job).filter(|job| has_next_step(speculation, *job));
    let due: Vec<JobId> = due.take(RELEASES_PER_TICK).collect();
    for job in due {
        settle(speculation, job);
    }
}

/// Evicts what still runs where maintenance has begun.
fn clear_windows(speculation: &mut Speculation) {
    let now = speculation.now();
    let state = speculation.state();
    let policy = state.policy().policy.clone();
    let open: Vec<&Window> = policy
        .windows
        .iter()
        .filter(|window| window.purpose == WindowPurpose::Maintenance)
        .filter(|window| window.from <= now && now < window.until)
        .collect();
    if open.is_empty() {
        return;
    }
    let mut stops: Vec<(JobId, NodeId)> = Vec::new();
    for (id, node) in state.nodes().iter() {
        if open.iter().any(|window| window.scope.covers(&node.spec)) {
            stops.extend(state.gangs_on(*id).map(|job| (job, *id)));
        }
    }
    let mut stopped = 0;
    for (job, node) in stops {
        let row = speculation.state().job(job).expect("an indexed job has a row");
        if stopped < LIMITS_PER_TICK && matches!(row.phase, Phase::Starting | Phase::Running) {
            stopped += 1;
            let token = row.placement.as_ref().expect("a running job has a placement").token;
            speculation.push(Decision::GangStopRequested { job, token, cause: StopCause::Evicted { node } });
            settle(speculation, job);
        }
    }
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

/// Nodes that have been lost for so long that they will not come back under their ids. Until the format can say
/// so they stay.
fn forget_nodes(speculation: &mut Speculation) {
    let before = speculation.now().minus_ms(speculation.state().parameters().node_retention_ms);
    let state = speculation.state();
    let old = state.lost_nodes().take_while(|(at, _)| *at < before).take(NODES_FORGOTTEN_PER_TICK);
    let old: Vec<Decision> = old.map(|(_, node)| Decision::NodeForgotten { node }).collect();
    for decision in old {
        // Promised room on it is dropped first.
        if speculation.can_say(&decision) && speculation.state().check(&decision).is_ok() {
            speculation.push(decision);
        }
    }
}

/// Drops what has been kept for long enough, and what there is no room for any more, oldest first.
fn prune(speculation: &mut Speculation) {
    for _ in 0..PRUNES_PER_TICK {
        let parameters = speculation.state().parameters();
        let now = speculation.now();
        let state = speculation.state();
        let pressed = |held: usize, max: u64| (held as u64).saturating_sub(max - max / 10);
        let requests_before = before(
            now.minus_ms(parameters.request_retention_ms),
            now.minus_ms(Parameters::REQUEST_RETENTION_MIN_MS),
            pressed(state.requests_count(), parameters.requests_held_max),
            state.requests_by_time().map(|(at, _)| at),
        );
        let jobs_before = before(
            now.minus_ms(parameters.job_retention_ms),
            now,
            pressed(state.jobs().len(), parameters.jobs_held_max),
            state.finished().map(|(at, _)| at),
        );
        let old_request = state.requests_by_time().next().is_some_and(|(at, _)| at < requests_before);
        let old_job = state.finished().next().is_some_and(|(at, _)| at < jobs_before);
        if !old_request && !old_job {
            return;
        }
        speculation.push(Decision::HistoryPruned { requests_before, jobs_before });
    }
}

/// What is older than this goes: by age, and as far as `excess` asks for, but nothing younger than `youngest`.
/// `times` are those of what there is, oldest first.
fn before(
    by_age: LogTime,
    youngest: LogTime,
    excess: u64,
    mut times: impl Iterator<Item = LogTime>,
) -> LogTime {
    // One record drops no more rows than this, so there is no need to look further.
    let last = usize::try_from(excess.min(u64::from(limits::PRUNE_ROWS_MAX))).unwrap_or(usize::MAX);
    let Some(last) = last.checked_sub(1).and_then(|last| times.nth(last)) else { return by_age };
    by_age.max(LogTime(last.0.saturating_add(1)).min(youngest))
}
