//! Placing waiting gangs.

use alloc::collections::BTreeSet;
use muster_journal::{Decision, WorkerSlot};
use muster_planner::{Budget, Verdict, plan};
use muster_policy::{Claims, Line, Turn};
use muster_types::{GangClass, JobId};

use crate::job::settle_left_over;
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

/// What a pass has found out so far. It goes on where it was interrupted: from the top it would
/// spend its budget on the same gangs again, and the tail of a long queue would never have a turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnfinishedPass {
    last: Option<Turn>,
    claims: Claims,
    waiting: BTreeSet<GangClass>,
}

/// Gives every waiting gang its turn, in the policy's order, after what full rounds left undecided.
pub fn schedule(speculation: &mut Speculation, budget: &mut Budget) -> Pass {
    if !settle_left_over(speculation) {
        return Pass::Interrupted { placed: 0 };
    }
    let mut pass = speculation.take_pass();
    let (finished, placed) = walk(speculation, &mut pass, budget);
    if finished {
        Pass::Complete { placed }
    } else {
        speculation.keep_pass(pass);
        Pass::Interrupted { placed }
    }
}

/// Whether every turn was taken, and how many gangs were placed.
fn walk(speculation: &mut Speculation, pass: &mut UnfinishedPass, budget: &mut Budget) -> (bool, u32) {
    let mut line = Line::form(speculation.state(), pass.last, &pass.waiting);
    let mut placed = 0;
    let mut is_first = true;
    while let Some((turn, class)) = line.next_turn() {
        if !budget.visit() || speculation.round_bytes() > ROUND_BYTES_SOFT {
            return (false, placed);
        }
        let spec = speculation.state().spec(turn.job()).expect("a pending job has a spec").clone();
        let claims = &pass.claims;
        let is_open = |region: &_, cluster: &_| !claims.is_claimed(region, cluster);
        match plan(speculation.state(), &spec, is_open, budget) {
            Verdict::Fits(found) => {
                place(speculation, turn.job(), found.workers);
                placed += 1;
                line.step_up(class, Some(turn));
            }
            // The rest of its class would get the same answer.
            Verdict::Waits(explanation) => {
                if let Some(open) = explanation.worth_claiming() {
                    pass.claims.claim(&open.region, &open.cluster);
                }
                pass.waiting.insert(class);
            }
            // A gang that a whole budget is too small for would stop every pass at itself.
            Verdict::OutOfBudget if is_first => {
                pass.waiting.insert(class);
            }
            Verdict::OutOfBudget => return (false, placed),
        }
        pass.last = Some(turn);
        is_first = false;
    }
    (true, placed)
}

fn place(speculation: &mut Speculation, job: JobId, workers: alloc::vec::Vec<WorkerSlot>) {
    speculation.push(Decision::GangPlaced { job, workers });
}
