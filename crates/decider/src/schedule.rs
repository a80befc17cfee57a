//! Placing waiting gangs.

use alloc::collections::BTreeSet;
use muster_journal::Decision;
use muster_planner::{Budget, Verdict, plan};
use muster_policy::{Claims, GangClass, turns};
use muster_types::JobId;

use crate::speculation::Speculation;

/// How a pass over the queue ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Every waiting gang had its turn.
    Complete {
        /// Gangs placed.
        placed: u32,
    },
    /// The budget or the round is full; another pass goes on from the top.
    Interrupted {
        /// Gangs placed.
        placed: u32,
    },
}

/// Bytes of a round at which a pass stops, so that placements never make a round too large.
const ROUND_BYTES_SOFT: usize = 256 << 10;

/// Gives every waiting gang its turn, in the policy's order.
pub fn schedule(speculation: &mut Speculation, budget: &mut Budget) -> Pass {
    // A clone is constant-time, and the walk must not see its own changes.
    let before = speculation.state().clone();
    let mut claims = Claims::default();
    let mut waiting: BTreeSet<GangClass> = BTreeSet::new();
    let mut placed = 0;
    for job in turns(&before) {
        if !budget.visit() || speculation.round_bytes() > ROUND_BYTES_SOFT {
            return Pass::Interrupted { placed };
        }
        let Some(spec) = before.spec(job) else { continue };
        let class = GangClass::of(spec);
        if waiting.contains(&class) {
            continue;
        }
        let verdict =
            plan(speculation.state(), spec, |region, cluster| !claims.is_claimed(region, cluster), budget);
        match verdict {
            Verdict::Fits(found) => {
                place(speculation, job, found.workers);
                placed += 1;
            }
            Verdict::Waits(explanation) => {
                if let Some(closest) = explanation.closest() {
                    claims.claim(&closest.region, &closest.cluster);
                }
                waiting.insert(class);
            }
            Verdict::OutOfBudget => return Pass::Interrupted { placed },
        }
    }
    speculation.set_wants_schedule(false);
    Pass::Complete { placed }
}

fn place(speculation: &mut Speculation, job: JobId, workers: alloc::vec::Vec<muster_journal::WorkerSlot>) {
    speculation.push(Decision::GangPlaced { job, workers });
}
