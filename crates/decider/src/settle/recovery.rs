//! What becomes of a gang whose attempt has failed: whether it is tried again, when and where.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use muster_journal::{Decision, RearrangeCause, StopCause};
use muster_state::{JobRow, NodeStatus, Placement, RankState, State};
use muster_types::{ExitStatus, FailureClass, JobContract, JobId, LogTime, NodeId, limits};

use crate::rules::text::cut;
use crate::speculation::Speculation;

/// An attempt that ran for so long, or that saved its work, has made headway: what failed before it does not count as
/// failing in a row.
const HEADWAY_MS: u64 = 600_000;

/// Attempts in a row without headway that are lost with their nodes' sessions, on nodes that come back each time, before
/// the job is taken for the cause: workers that leave nothing to the agent of their host lose its lease. With the
/// usual waits between attempts these take more than eight minutes.
const LOST_IN_A_ROW_MAX: u32 = 10;

/// How an attempt failed.
struct Found {
    class: FailureClass,
    rank: Option<u32>,
    node: Option<NodeId>,
    detail: String,
}

/// The record of a failed attempt that is over and not recorded yet. None as well when it did not fail, or the format
/// cannot express it.
pub(super) fn failed_attempt(
    speculation: &Speculation,
    job: JobId,
    row: &JobRow,
    placement: &Placement,
    cause: &StopCause,
) -> Option<Decision> {
    let state = speculation.state();
    if row.cancel_requested || is_recorded(state, job, placement) {
        return None;
    }
    let Found { class, rank, node, detail } = failure_of(placement, cause)?;
    let booked = node.filter(|_| class == FailureClass::Evicted).and_then(|node| booked(state, job, node));
    let detail = booked.unwrap_or(detail);
    let now = speculation.now();
    let known = state.recovery(job);
    let ran_ms = row.started_at.map_or(0, |began| now.since_ms(began));
    let before = if row.checkpointed_at.is_some() || ran_ms >= HEADWAY_MS {
        0
    } else {
        known.map_or(0, |known| known.streak)
    };
    let streak = if class.is_planned() { before } else { before.saturating_add(1) };
    let count = known.and_then(|known| known.counts.get(&class)).copied().unwrap_or(0).saturating_add(1);
    let ends = gives_up(state, job, row, &Failure { class, count, streak, node }).is_some();
    let rules = contract(state, job).map(|contract| contract.retry.clone()).unwrap_or_default();
    let wait_ms = if ends { 0 } else { rules.wait_ms(class, streak) };
    let avoid_ms = if class.avoids_node() && !ends { rules.avoid_ms() } else { 0 };
    Some(Decision::AttemptFailed {
        job,
        token: placement.token,
        class,
        rank,
        node,
        detail: cut(detail, limits::DETAIL_BYTES_MAX),
        streak,
        wait_until: (wait_ms > 0).then(|| now.plus_ms(wait_ms)),
        avoid: node.filter(|_| avoid_ms > 0).map(|_| now.plus_ms(avoid_ms)),
    })
}

/// The text where a gang had to go for a booking or a hold, and its node is in service.
fn booked(state: &State, job: JobId, node: NodeId) -> Option<String> {
    let row = state.node(node).filter(|row| row.is_placeable())?;
    let held = state.held_against(&state.spec(job)?.tenant, &row.spec).filter(|(_, row)| row.hold.stops_work);
    if let Some((target, row)) = held {
        return Some(format!("{target} is held and drained ({})", row.hold.reason));
    }
    let (name, booking) = state.booked_against(state.spec(job)?, &row.spec.name)?;
    if booking.spec.is_maintenance() {
        return Some(format!("its node is under maintenance by booking {name}"));
    }
    booking.spec.clearing.stops_others().then(|| format!("booking {name} has its node for other jobs"))
}

/// What follows a recorded failure; none when none was recorded of this placement.
pub(super) fn after_failure(
    state: &State,
    job: JobId,
    row: &JobRow,
    placement: &Placement,
) -> Option<Verdict> {
    let recovery = state.recovery(job)?;
    let last = recovery.last.as_ref().filter(|last| last.token == placement.token)?;
    let count = recovery.counts.get(&last.class).copied().unwrap_or(0);
    let failure = Failure { class: last.class, count, streak: recovery.streak, node: last.node };
    Some(match gives_up(state, job, row, &failure) {
        Some(rule) => {
            let rank = last.rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default();
            Verdict::Over { detail: format!("{rank}{} ({rule})", last.detail) }
        }
        None => Verdict::Again { failed: last.class.is_of_application() },
    })
}

/// What becomes of a job.
pub(super) enum Verdict {
    /// It is over.
    Over {
        /// Why, one sentence.
        detail: String,
    },
    /// It waits again.
    Again {
        /// Whether the application is to blame.
        failed: bool,
    },
}

fn is_recorded(state: &State, job: JobId, placement: &Placement) -> bool {
    let last = state.recovery(job).and_then(|row| row.last.as_ref());
    last.is_some_and(|last| last.token == placement.token)
}

fn contract(state: &State, job: JobId) -> Option<&Arc<JobContract>> {
    state.contract(job)
}

/// A failure, as far as it decides whether there is another attempt.
struct Failure {
    class: FailureClass,
    /// Failures of this class with this one.
    count: u32,
    /// Failures in a row with this one.
    streak: u32,
    node: Option<NodeId>,
}

/// The rule by which a job is not tried again.
fn gives_up(state: &State, job: JobId, row: &JobRow, failure: &Failure) -> Option<String> {
    let Failure { class, count, streak, node } = *failure;
    let named = contract(state, job).map(|contract| &contract.retry.limits);
    if let Some(retries) = named.and_then(|limits| limits.get(&class)) {
        let rule = || format!("{class}: failure {count}, retries allowed: {retries}");
        return (count > *retries).then(rule);
    }
    if class == FailureClass::Lost
        && streak.min(count) >= LOST_IN_A_ROW_MAX
        && others_are_up(state, job, node)
    {
        return Some(format!(
            "lost {streak} times in a row on nodes that came back each time, so the job is the likely cause: its workers \
             may use up what the agent of their host needs; let each ask for the CPU and memory that it uses, or set \
             how often it is tried again in retry.limits.lost"
        ));
    }
    if !class.is_of_application() {
        return None;
    }
    // Classes with a separate limit do not count here; what failed before records of it began does.
    let counts = state.recovery(job).map(|known| &known.counts);
    let apart = named.into_iter().flatten().filter(|(class, _)| class.is_of_application());
    let apart = apart
        .filter_map(|(class, _)| counts?.get(class))
        .fold(0, |sum: u32, count| sum.saturating_add(*count));
    let failures = row.failures.saturating_sub(apart);
    let retries = state.spec(job)?.failure_retries_max;
    let rule = || format!("failure {}, retries allowed: {retries}", failures + 1);
    (failures >= retries).then(rule)
}

/// What explains the end of a gang best. A fault of the place explains the failures of the peers, so it comes before
/// them; a fault that was seen, before a silence.
fn failure_of(placement: &Placement, cause: &StopCause) -> Option<Found> {
    match cause {
        StopCause::Cancelled
        | StopCause::RunTimeLimit
        | StopCause::Deadline
        | StopCause::Requested { .. }
        | StopCause::Rearranged(
            RearrangeCause::Moved { .. } | RearrangeCause::Resized | RearrangeCause::Drained { .. },
        ) => return None,
        StopCause::Fault { class, node, detail } => {
            return Some(Found { class: *class, rank: None, node: Some(*node), detail: detail.clone() });
        }
        StopCause::Rearranged(RearrangeCause::Preempted { .. })
        | StopCause::Evicted { .. }
        | StopCause::WorkerFailed { .. } => {}
    }
    let of_place = placement.ranks.iter().enumerate().filter_map(|(rank, state)| {
        let (class, weight) = fault_of_place(state)?;
        Some((weight, rank, class))
    });
    if let Some((_, rank, class)) = of_place.min_by_key(|(weight, rank, _)| (*weight, *rank)) {
        let detail = match &placement.ranks[rank] {
            RankState::Exited(
                ExitStatus::NodeFault(text)
                | ExitStatus::BackendLost(text)
                | ExitStatus::PreflightFailed(text),
            ) => text.clone(),
            RankState::Exited(exit) => exit.to_string(),
            _ => String::from("the session of its node ran out"),
        };
        return Some(Found {
            class,
            rank: Some(rank as u32),
            node: Some(placement.slots[rank].node),
            detail,
        });
    }
    Some(match cause {
        StopCause::WorkerFailed { rank, exit } => Found {
            class: class_of(exit),
            rank: Some(*rank),
            node: placement.slots.get(*rank as usize).map(|slot| slot.node),
            detail: exit.to_string(),
        },
        StopCause::Rearranged(RearrangeCause::Preempted { by }) => Found {
            class: FailureClass::Preempted,
            rank: None,
            node: None,
            detail: format!("it was preempted for {by}, which goes before it"),
        },
        StopCause::Evicted { node } => Found {
            class: FailureClass::Evicted,
            rank: None,
            node: Some(*node),
            detail: String::from("its node was taken out of service"),
        },
        _ => return None,
    })
}

/// Whether the nodes that failed under a job lately are in service again, but for the one of the last failure: then it is
/// not the fleet that goes down.
fn others_are_up(state: &State, job: JobId, last: Option<NodeId>) -> bool {
    let failed = state.recovery(job).into_iter().flat_map(|recovery| recovery.avoided.keys());
    let is_up = |node: &NodeId| state.node(*node).is_some_and(|row| row.status == NodeStatus::Up);
    failed.filter(|node| Some(**node) != last).all(is_up)
}

/// The class that explains the end of a gang, as far as it is known now.
pub(super) fn class_of_end(placement: &Placement, cause: &StopCause) -> Option<FailureClass> {
    failure_of(placement, cause).map(|found| found.class)
}

/// Whether a rank ended by the fault of its place.
pub(super) fn is_fault_of_place(rank: &RankState) -> bool {
    fault_of_place(rank).is_some()
}

/// The class of a rank's end that its place is to blame for; what says most comes first.
fn fault_of_place(rank: &RankState) -> Option<(FailureClass, u8)> {
    match rank {
        RankState::Exited(ExitStatus::NodeFault(_)) => Some((FailureClass::NodeFault, 0)),
        RankState::Exited(ExitStatus::PreflightFailed(_)) => Some((FailureClass::Preflight, 0)),
        RankState::Exited(ExitStatus::BackendLost(_)) => Some((FailureClass::BackendLost, 1)),
        RankState::Lost => Some((FailureClass::Lost, 2)),
        RankState::Exited(ExitStatus::Vanished | ExitStatus::LeaseExpired) => Some((FailureClass::Lost, 3)),
        RankState::Exited(_) | RankState::Assigned | RankState::Running => None,
    }
}

fn class_of(exit: &ExitStatus) -> FailureClass {
    match exit {
        ExitStatus::OutOfMemory => FailureClass::OutOfMemory,
        ExitStatus::LaunchFailed(_) => FailureClass::LaunchFailed,
        _ => FailureClass::Application,
    }
}

/// The time before which a job that failed is not placed again. None when it has passed, or there is no such time.
pub(super) fn waits_until(state: &State, job: JobId, now: LogTime) -> Option<LogTime> {
    state.recovery(job)?.wait_until.filter(|until| *until > now)
}
