//! Placing waiting gangs.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use muster_journal::Decision;
use muster_planner::{Budget, Holds, Terms, Verdict, plan};
use muster_policy::{Candidate, Line, burst_turn};
use muster_state::{JobRow, PoolKey, State};
use muster_types::{JobId, JobSpec, LogTime, Name, limits};

use crate::future::Future;
use crate::health;
use crate::job::settle_left_over;
use crate::planned::{choices, planned_spec};
use crate::rearrange;
use crate::spares::with_spares;
use crate::speculation::Speculation;

/// How a pass over the queue ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Every waiting gang had its turn.
    Complete {
        /// Gangs placed.
        placed: u32,
    },
    /// The budget or the round is full; the next call goes on from there.
    Interrupted {
        /// Gangs placed.
        placed: u32,
    },
}

/// Bytes of a round at which a pass stops, so that placements never make a round too large.
pub(crate) const ROUND_BYTES_SOFT: usize = 256 << 10;

/// Gangs that one pass looks for room for by having others make it: each looks at every gang it may stop.
const REARRANGEMENTS_TRIED_MAX: u32 = 16;

/// What a pass has found out so far. It goes on where it was interrupted: from the top it would
/// spend its budget on the same gangs again, and the tail of a long queue would never have a turn.
#[derive(Clone, Debug)]
pub(crate) struct UnfinishedPass {
    line: Line,
    future: Future,
    /// Requests that were found to wait.
    waits: u32,
    /// Of these, gangs for whom others could not make room.
    rearrangements_tried: u32,
}

impl UnfinishedPass {
    pub(crate) fn begin(speculation: &Speculation) -> UnfinishedPass {
        let state = speculation.state();
        UnfinishedPass {
            line: Line::form(state, speculation.now()),
            future: Future::of(speculation.now()),
            waits: 0,
            rearrangements_tried: 0,
        }
    }
}

/// Gives every waiting gang its turn, in the policy's order, after what full rounds left undecided.
pub fn schedule(speculation: &mut Speculation, budget: &mut Budget) -> Pass {
    if speculation.is_recovering() {
        return Pass::Complete { placed: 0 };
    }
    if !settle_left_over(speculation) || !renew_turns(speculation) {
        return Pass::Interrupted { placed: 0 };
    }
    let mut pass = speculation.take_pass();
    let (finished, placed) = walk(speculation, &mut pass, budget);
    if !finished {
        speculation.keep_pass(pass);
        return Pass::Interrupted { placed };
    }
    health::move_drained(speculation, &pass.future, budget);
    // Nobody waits for what is free: running gangs that asked for more may have it.
    if pass.waits == 0 {
        rearrange::grow(speculation, &pass.future, budget);
    }
    Pass::Complete { placed }
}

/// Gives waiting bursts the turns that a changed policy and what was learned make for them, a record at a
/// time; whether that is done.
pub(crate) fn renew_turns(speculation: &mut Speculation) -> bool {
    let now = speculation.now();
    while let Some(from) = speculation.stale_turns() {
        if speculation.round_bytes() > ROUND_BYTES_SOFT {
            return false;
        }
        let state = speculation.state();
        let mut bursts: Vec<(JobId, u64)> = Vec::new();
        let mut next = None;
        for burst in state.bursts_from(from) {
            if bursts.len() == limits::TURNS_CHANGED_MAX {
                next = Some(burst);
                break;
            }
            let renewed = burst_turn(state, burst, now).filter(|turn| state.turn_of(burst) != Some(*turn));
            bursts.extend(renewed.map(|turn| (burst, turn)));
        }
        if !bursts.is_empty() {
            speculation.push(Decision::TurnsChanged { bursts });
        }
        speculation.set_stale_turns(next);
    }
    let bursts = speculation.changed_turns();
    if !bursts.is_empty() {
        speculation.push(Decision::TurnsChanged { bursts });
    }
    true
}

/// What became of a gang whose turn it was.
enum Outcome {
    Placed,
    PromisedRoom,
    Waits,
    OutOfBudget,
}

/// Whether every turn was taken, and how many gangs were placed.
fn walk(speculation: &mut Speculation, pass: &mut UnfinishedPass, budget: &mut Budget) -> (bool, u32) {
    let depth_max = speculation.state().policy().policy.backfill.depth_max;
    let mut placed = 0;
    let mut is_first = true;
    loop {
        if budget.is_spent() || speculation.round_bytes() > ROUND_BYTES_SOFT {
            return (false, placed);
        }
        let Some(candidate) = pass.line.take_next(speculation.state()) else { return (true, placed) };
        match offer(speculation, pass, &candidate, budget) {
            Outcome::Placed => {
                placed += 1;
                pass.line.placed(speculation.state(), &candidate);
            }
            Outcome::PromisedRoom => pass.line.placed(speculation.state(), &candidate),
            // A gang that a whole budget is too small for would stop every pass at itself.
            Outcome::OutOfBudget if !is_first => {
                pass.line.put_back(speculation.state(), candidate);
                return (false, placed);
            }
            Outcome::Waits | Outcome::OutOfBudget => {
                pass.line.waits(speculation.state(), &candidate);
                pass.waits += 1;
                if pass.waits >= depth_max {
                    return (true, placed);
                }
            }
        }
        is_first = false;
    }
}

/// Offers capacity to one gang: what is free, else what others can make free, else a time when it will be.
fn offer(
    speculation: &mut Speculation,
    pass: &mut UnfinishedPass,
    candidate: &Candidate,
    budget: &mut Budget,
) -> Outcome {
    speculation.refresh_valuation();
    let (state, valuation) = (speculation.state(), speculation.valuation());
    let job = candidate.turn.job;
    let row = state.job(job).expect("a job in line has a row").clone();
    // Where its checkpoints cannot be read it would begin again.
    let Some(spec) = planned_spec(state, job) else { return Outcome::Waits };
    let holds = pass.future.holds_for(state, &spec.tenant);
    let mut place = |spec: &JobSpec, holds: &Holds| {
        with_terms(state, speculation.now(), spec, &row, holds, |terms| {
            let terms = Terms { valuation: Some(valuation), ..*terms };
            plan(state, spec, &terms, budget)
        })
    };
    let choices = choices(state, job, &holds, speculation.silent(), speculation.now());
    let wanted = state.contract(job).map_or(0, |contract| contract.spares);
    if let Some(larger) = (wanted > 0).then(|| with_spares(&spec, wanted)).flatten()
        && let Verdict::Fits(found) = place(&larger, &choices[0])
    {
        let decision = Decision::GangPlaced { job, workers: found.workers };
        // With spares among them, ranks may lie otherwise than its topology rule asks for.
        if state.check(&decision).is_ok() {
            pass.future.changed(&found.region, &found.cluster);
            speculation.push(decision);
            return Outcome::Placed;
        }
    }
    // Away from nodes that failed under it or are silent, as long as there are others.
    let mut found = Verdict::Waits;
    for (at, choice) in choices.iter().enumerate() {
        let next = place(&spec, choice);
        if let Verdict::Fits(known) = &found
            && !matches!(&next, Verdict::Fits(more) if more.workers.len() > known.workers.len())
        {
            break;
        }
        found = next;
        // Whoever is silent may be back in a moment: an elastic gang does not begin smaller for that.
        let goes_round_silent = at == 0 && !speculation.silent().is_empty();
        let is_smaller = |workers: usize| goes_round_silent && workers < spec.worker_count() as usize;
        match &found {
            Verdict::Waits => {}
            Verdict::Fits(known) if is_smaller(known.workers.len()) => {}
            Verdict::Fits(_) | Verdict::OutOfBudget => break,
        }
    }
    match found {
        Verdict::Fits(found) => {
            pass.future.changed(&found.region, &found.cluster);
            speculation.push(Decision::GangPlaced { job, workers: found.workers });
            return Outcome::Placed;
        }
        Verdict::OutOfBudget => return Outcome::OutOfBudget,
        Verdict::Waits => {}
    }
    if pass.rearrangements_tried < REARRANGEMENTS_TRIED_MAX {
        match rearrange::make_room(speculation, job, &spec, &row, &holds, budget) {
            rearrange::Room::Promised { places } => {
                for (region, cluster) in places {
                    pass.future.changed(&region, &cluster);
                }
                return Outcome::PromisedRoom;
            }
            rearrange::Room::Coming | rearrange::Room::NobodyToAsk => {}
            rearrange::Room::NotEnough => pass.rearrangements_tried += 1,
        }
    }
    pass.future.reserve(speculation.state(), job, &spec, &row);
    Outcome::Waits
}

/// The terms under which policy lets a job be planned in this state.
pub(crate) fn with_terms<T>(
    state: &State,
    now: LogTime,
    spec: &JobSpec,
    row: &JobRow,
    holds: &Holds,
    plan: impl FnOnce(&Terms<'_>) -> T,
) -> T {
    // Quota is asked once for each type and region.
    let rooms: core::cell::RefCell<BTreeMap<(Name, Name), u64>> = core::cell::RefCell::default();
    let room_milli = |pool: &PoolKey| -> u64 {
        let Some(kind) = pool.kind.as_ref().filter(|_| state.has_quotas()) else { return u64::MAX };
        let mut rooms = rooms.borrow_mut();
        *rooms.entry((kind.clone(), pool.region.clone())).or_insert_with(|| {
            let capacity = |kind: &Name, region: Option<&Name>| state.registered_milli(kind, region);
            state.quota_usage().room(capacity, &spec.tenant, kind, &pool.region).total_milli()
        })
    };
    plan(&Terms {
        now,
        run_ms: row.estimate.run_high_ms,
        room_milli: &room_milli,
        holds,
        policy: &state.policy().policy,
        elastic: spec.is_elastic(),
        valuation: None,
    })
}
