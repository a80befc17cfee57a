//! What a quickstart ends with.

use anyhow::Result;
use serde::Serialize;

/// Milliseconds from a kill to what follows, as a client sees it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LeaderKill {
    /// To the next acknowledged submission.
    pub submit_ms: u64,
    /// To the next placement.
    pub placement_ms: u64,
}

/// A gang that was preempted for one of higher priority, in milliseconds from the submission of the latter.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Preemption {
    /// Gangs that saved their work and were preempted.
    pub jobs: u64,
    /// To the placement of the gang that came.
    pub placed_ms: u64,
    /// To the first preempted gang running again.
    pub resumed_ms: u64,
}

/// The same for the loss of a region.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RegionLoss {
    /// To the next acknowledged submission.
    pub submit_ms: u64,
    /// To the next placement.
    pub placement_ms: u64,
    /// To the last job of the lost region running again.
    pub resumed_ms: u64,
}

/// The evidence.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Jobs whose submission was acknowledged.
    pub acknowledged: u64,
    /// Of those, jobs that ended well.
    pub finished: u64,
    /// Of those, jobs that did not.
    pub lost: u64,
    /// Pairs of run intervals of one job that overlap, by what its processes wrote.
    pub overlaps: u64,
    /// The preemption of training for a production gang.
    pub preemption: Preemption,
    /// The death of the leader.
    pub leader_kill: LeaderKill,
    /// The loss of a region.
    pub region_loss: RegionLoss,
    /// Jobs that were running in the lost region.
    pub resumed_jobs: u64,
    /// Whether the training runs that were killed and resumed ended with the same loss, to the last
    /// bit, as the one that was not.
    pub losses_agree: bool,
    /// Whether all replicas ended with the same state digest.
    pub digests_agree: bool,
    /// From the start to the end.
    pub seconds: f32,
}

impl Summary {
    /// Whether every promise was kept.
    pub fn is_good(&self) -> bool {
        self.lost == 0
            && self.overlaps == 0
            && self.acknowledged > 0
            && self.finished == self.acknowledged
            && self.preemption.jobs > 0
            && self.losses_agree
            && self.digests_agree
    }
}

/// Prints the summary: for people, or as one line.
pub fn print(summary: &Summary, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(summary)?);
        return Ok(());
    }
    let yes = |good: bool| if good { "yes" } else { "NO" };
    println!();
    println!("  acknowledged jobs                     {:>8}", summary.acknowledged);
    println!("  finished                              {:>8}", summary.finished);
    println!("  lost                                  {:>8}", summary.lost);
    println!("  overlapping runs of one job           {:>8}", summary.overlaps);
    println!();
    println!("  preemption       -> gang placed       {:>5} ms", summary.preemption.placed_ms);
    println!(
        "                   -> {:>2} gang resumed    {:>5} ms",
        summary.preemption.jobs, summary.preemption.resumed_ms
    );
    println!("  leader killed    -> next submission   {:>5} ms", summary.leader_kill.submit_ms);
    println!("                   -> next placement    {:>5} ms", summary.leader_kill.placement_ms);
    println!("  region lost      -> next submission   {:>5} ms", summary.region_loss.submit_ms);
    println!("                   -> next placement    {:>5} ms", summary.region_loss.placement_ms);
    println!(
        "                   -> {:>2} jobs resumed    {:>5} ms",
        summary.resumed_jobs, summary.region_loss.resumed_ms
    );
    println!();
    println!("  resumed and uninterrupted losses agree to the last bit   {}", yes(summary.losses_agree));
    println!("  the three replicas' digests agree                        {}", yes(summary.digests_agree));
    println!("  total {:.1} s", summary.seconds);
    Ok(())
}
