//! Tenants that try to get more than they are promised, each in one way.

use muster_types::{Control, FieldChange, PriorityTier};

use crate::random::Random;
use crate::world::{HOUR, JobOrder, JobPlan, MINUTE, SECOND, World};

/// What somebody without any promise may try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trick {
    /// Another name for every job.
    Rename,
    /// The highest tier there is.
    MisnameTier,
    /// Work that says it may not be stopped.
    NotPreemptible,
    /// Gangs of every size, so that no two ask for the same.
    Resize,
    /// Jobs that say they take a second.
    LieAboutRunTime,
    /// Deadlines that are about to pass.
    Deadline,
    /// Submitted, cancelled, and submitted once more.
    Resubmit,
    /// Held while it waits, and released later.
    Park,
    /// Suspended while it runs, and released later; or stopped and back in the queue at once.
    Suspend,
    /// Changed to the highest tier once it is admitted, with another run time.
    Change,
}

impl Trick {
    pub const ALL: [Trick; 10] = [
        Trick::Rename,
        Trick::MisnameTier,
        Trick::NotPreemptible,
        Trick::Resize,
        Trick::LieAboutRunTime,
        Trick::Deadline,
        Trick::Resubmit,
        Trick::Park,
        Trick::Suspend,
        Trick::Change,
    ];
}

/// Fills a fleet of this number of devices for as long as the world lasts, and a queue behind it.
pub fn flood(
    world: &mut World,
    random: &mut Random,
    tenant: &str,
    kind: &'static str,
    devices: u64,
    per_host: u64,
    tricks: &[Trick],
) {
    let mut work_left = devices * world.horizon_ms * 3 / 2;
    let mut n = 0;
    while work_left > 0 {
        n += 1;
        let name = format!("{tenant}-{n}");
        let sizes = [1, 1, 1, 2, 4, per_host];
        let size = sizes[random.below(sizes.len() as u64) as usize].min(per_host);
        let run_ms = 20 * MINUTE + random.below(4 * HOUR);
        let at_ms = if random.once_in(2) { 0 } else { random.below(world.horizon_ms / 2) };
        let mut job = JobPlan::new(at_ms, &name, tenant, kind).gang(1, size as u16);
        job = job.runs(run_ms, random.once_in(2));
        job.grace_ms = 5 * SECOND + random.below(30 * SECOND);
        job.checkpointed = random.once_in(3);
        if random.once_in(8) {
            // It could go on with less.
            job = job.gang(4, (per_host / 4).max(1) as u16);
            job.workers_min = 1;
        }
        if let Some(trick) = random.pick(tricks) {
            match trick {
                Trick::Rename => job.tenant = format!("{tenant}-alias-{n}"),
                Trick::MisnameTier => job.tier = PriorityTier::Critical,
                Trick::NotPreemptible => job.preemptible = false,
                Trick::Resize => job.cpu_milli = 10 + random.below(1_000),
                Trick::LieAboutRunTime => job.expected_ms = Some(SECOND),
                Trick::Deadline => job.deadline_ms = Some(at_ms + 5 * MINUTE),
                Trick::Resubmit => {
                    let mut gone = job.clone();
                    gone.name = format!("{name}-gone");
                    gone.cancel_at_ms = Some(at_ms + random.below(30 * MINUTE));
                    world.submit(gone);
                }
                Trick::Park => {
                    let held_at = at_ms + random.below(10 * MINUTE);
                    let released_at = held_at + random.below(40 * MINUTE);
                    job.orders = vec![
                        (held_at, JobOrder::Control(Control::Hold)),
                        (released_at, JobOrder::Control(Control::Release)),
                    ];
                }
                Trick::Suspend => {
                    let stopped_at = at_ms + MINUTE + random.below(40 * MINUTE);
                    let control = if random.once_in(2) { Control::Suspend } else { Control::Requeue };
                    job.orders = vec![
                        (stopped_at, JobOrder::Control(control)),
                        (stopped_at + random.below(20 * MINUTE), JobOrder::Control(Control::Release)),
                    ];
                }
                Trick::Change => {
                    let changed_at = at_ms + random.below(20 * MINUTE);
                    job.orders = vec![
                        (changed_at, JobOrder::Change(FieldChange::Tier(PriorityTier::Critical))),
                        (changed_at + MINUTE, JobOrder::Change(FieldChange::ExpectedRun(Some(SECOND)))),
                    ];
                }
            }
        }
        work_left = work_left.saturating_sub(job.device_count() * job.run_ms);
        world.submit(job);
    }
}
