//! Gangs that do not come to a start or to an end: what holds them up is taken out of service, and the jobs that wait for
//! it look elsewhere.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::{Decision, StopCause};
use muster_state::{Phase, Placement, RankState, State};
use muster_types::{FailureClass, JobId, LogTime, NodeId, Requester, Span};

use crate::round::ROUND_BYTES_SOFT;
use crate::settle::job::{settle, settle_many};
use crate::speculation::{SessionTimes, Speculation};

/// Nodes taken out of service, and gangs stopped because they do not start, in one tick.
const PER_TICK: usize = 256;

/// Acts on gangs that take longer to start or to stop than policy allows.
pub(super) fn advance(speculation: &mut Speculation) {
    give_up_starting(speculation);
    give_up_unready(speculation);
    take_out_of_service(speculation);
}

/// Stops gangs whose workers have not all started in time, by the fault of a node on which one has not. They are tried
/// again elsewhere.
fn give_up_starting(speculation: &mut Speculation) {
    let now = speculation.now();
    let state = speculation.state();
    let allowed_ms = state.policy().policy.preemption.starting_deadline_ms;
    let late = state.starting().take_while(|(placed, _)| placed.plus_ms(allowed_ms) <= now);
    let late: Vec<JobId> = late.map(|(_, job)| job).take(PER_TICK).collect();
    for job in late {
        if speculation.round_bytes() > ROUND_BYTES_SOFT {
            return;
        }
        let row = speculation.state().job(job).expect("an indexed job has a row");
        let placement = row.placement.as_deref().expect("a gang that is being started is placed");
        let Some((rank, node)) = first_in(placement, |rank| *rank == RankState::Assigned) else { continue };
        let detail = format!("rank {rank} did not start within {}", Minutes(allowed_ms));
        let cause = StopCause::Fault { class: FailureClass::NodeFault, node, detail };
        speculation.push(Decision::GangStopRequested { job, token: placement.token, cause });
        settle(speculation, job);
    }
}

/// How long the agent of a host has to repeat, in a session that it has opened, what nobody has taken before.
const REPEATED_MS: u64 = 10_000;
/// For how long an agent that opens one session after another is waited for.
const REPEATED_MAX_MS: u64 = 60_000;

/// Whether a leader knows what became of the workers of a gang that have yet to say that they are ready: one may have said it while
/// nobody led or its agent was cut off, and its agent says it once it has a session here. A host that opens none is lost when its
/// lease has run out. `by` is when they had to be ready.
fn is_known(speculation: &Speculation, job: JobId, by: LogTime) -> bool {
    let (now, silent) = (speculation.now(), &speculation.unheard().silent);
    let Some(row) = speculation.state().job(job) else { return false };
    let Some(placement) = row.placement.as_deref() else { return false };
    let mut missing = (0u32..).zip(&placement.slots).filter(|(rank, _)| !placement.ready.contains(rank));
    missing.all(|(_, slot)| {
        let Some(SessionTimes { first, last }) = speculation.sessions_of(slot.node) else { return false };
        let has_repeated = now.since_ms(last) >= REPEATED_MS;
        !silent.contains(&slot.node) && (has_repeated || now.since_ms(first.max(by)) >= REPEATED_MAX_MS)
    })
}

/// Ends attempts whose workers have not all said in time that they are ready, as ones that could not be started.
fn give_up_unready(speculation: &mut Speculation) {
    let (now, state) = (speculation.now(), speculation.state());
    // Which agents were cut off then is known once they had the time to be heard of.
    let silence_ms = state.parameters().silence_ms();
    let late = state.unready().take_while(|(by, _)| by.plus_ms(silence_ms) <= now);
    let late = late.filter(|(by, job)| is_known(speculation, *job, *by)).map(|(_, job)| job);
    let late: Vec<JobId> = late.take(PER_TICK).collect();
    for job in late {
        if speculation.round_bytes() > ROUND_BYTES_SOFT {
            return;
        }
        let row = speculation.state().job(job).expect("an indexed job has a row");
        let placement = row.placement.as_deref().expect("a gang that runs is placed");
        let missing = (0u32..).zip(&placement.slots).filter(|(rank, _)| !placement.ready.contains(rank));
        let missing: Vec<(u32, NodeId)> = missing.map(|(rank, slot)| (rank, slot.node)).collect();
        let Some((_, node)) = missing.first().copied() else { continue };
        let timeout_ms = speculation.state().spec(job).and_then(|spec| spec.readiness_ms).unwrap_or(0);
        let ranks: Vec<u32> = missing.into_iter().map(|(rank, _)| rank).collect();
        let verb = if ranks.len() == 1 { "was" } else { "were" };
        let detail = format!("{} {verb} not ready within {}", ranks_text(&ranks), Span(timeout_ms));
        let cause = StopCause::Fault { class: FailureClass::LaunchFailed, node, detail };
        let token = placement.token;
        speculation.push(Decision::GangStopRequested { job, token, cause });
        settle(speculation, job);
    }
}

/// Runs of ranks that a sentence names; the others are counted.
const RANKS_NAMED_MAX: usize = 16;

/// Ascending ranks as people write them: `rank 3`, `ranks 0-5, 7`.
fn ranks_text(ranks: &[u32]) -> String {
    let mut runs = Vec::new();
    let (mut named, mut count) = (0, 0);
    for run in ranks.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        if count < RANKS_NAMED_MAX {
            runs.push(if first == last { format!("{first}") } else { format!("{first}-{last}") });
            named += run.len();
        }
        count += 1;
    }
    let rest = match ranks.len() - named {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{} {}{rest}", if ranks.len() == 1 { "rank" } else { "ranks" }, runs.join(", "))
}

/// Takes nodes out of service on which workers run on although they should have been killed long ago. The devices stay
/// theirs until the node says that they are over, or its session ends; the jobs that were promised them look elsewhere.
fn take_out_of_service(speculation: &mut Speculation) {
    let now = speculation.now();
    let state = speculation.state();
    let allowed_ms = state.policy().policy.preemption.stopping_deadline_ms;
    // Each holds a node on which nothing new begins, so there are not many.
    let stuck = state.killed_by().take_while(|(at, _)| at.plus_ms(allowed_ms) <= now);
    let mut nodes: Vec<(NodeId, JobId, u32)> = Vec::new();
    for (_, job) in stuck {
        if nodes.len() >= PER_TICK {
            break;
        }
        nodes.extend(held_by(state, job).map(|(rank, node)| (node, job, rank)));
    }
    nodes.sort_unstable();
    nodes.dedup_by_key(|(node, _, _)| *node);
    for (node, job, rank) in nodes {
        if speculation.round_bytes() > ROUND_BYTES_SOFT {
            return;
        }
        let reason = format!(
            "rank {rank} of {job} still runs, {} after it should have been killed; end it on the host, or end the \
             agent's session, then release the node",
            Minutes(allowed_ms)
        );
        let decision = Decision::NodeQuarantineSet {
            request: None,
            by: Requester::default(),
            node,
            reason: Some(reason),
        };
        let promised: Vec<JobId> = speculation.state().promised_on(node).collect();
        speculation.push(decision);
        settle_many(speculation, promised);
    }
}

/// Nodes that are in service on which workers of a gang are not over, each with the first such rank.
fn held_by(state: &State, job: JobId) -> impl Iterator<Item = (u32, NodeId)> {
    let row = state.job(job).filter(|row| matches!(row.phase, Phase::Stopping(_)));
    let placement = row.and_then(|row| row.placement.as_deref());
    let ranks = placement.into_iter().flat_map(|placement| placement.slots.iter().zip(&placement.ranks));
    let live = ranks.enumerate().filter(|(_, (_, rank))| !rank.is_over());
    let in_service = |node: NodeId| state.restriction(node).is_none_or(|row| row.quarantine.is_none());
    live.map(|(rank, (slot, _))| (rank as u32, slot.node)).filter(move |(_, node)| in_service(*node))
}

fn first_in(placement: &Placement, wanted: impl Fn(&RankState) -> bool) -> Option<(u32, NodeId)> {
    let rank = placement.ranks.iter().position(wanted)?;
    Some((rank as u32, placement.slots[rank].node))
}

/// A time as people say it.
struct Minutes(u64);

impl core::fmt::Display for Minutes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let minutes = self.0.div_ceil(60_000);
        write!(f, "{minutes} {}", if minutes == 1 { "minute" } else { "minutes" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_as_runs_and_many_are_counted() {
        assert_eq!(ranks_text(&[3]), "rank 3");
        assert_eq!(ranks_text(&[0, 1, 2, 5, 7, 8]), "ranks 0-2, 5, 7-8");
        let every_second: Vec<u32> = (0..40).map(|rank| rank * 2).collect();
        let text = ranks_text(&every_second);
        assert!(text.starts_with("ranks 0, 2, 4") && text.ends_with("30 and 24 more"), "{text}");
    }
}
