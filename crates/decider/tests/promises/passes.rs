//! G7: every pass is bounded, and nobody behind a bound waits for ever.

use muster_types::PriorityTier;
use muster_types::policy::PolicyDraft;

use crate::drive::Drive;
use crate::measure::NullObserver;
use crate::random::Random;
use crate::seeds;
use crate::world::{HOUR, JobPlan, MINUTE, World, give_all_rights, hosts};

/// Passes within which everybody has been looked at.
const PASSES_MAX: u64 = 10;

/// Fills `h100` hosts with work that outlasts the world.
fn fill(world: &mut World, count: u64, tier: PriorityTier) {
    for n in 0..count {
        let job = JobPlan::new(0, &format!("holder-{n}"), "holder", "h100").runs(100 * HOUR, true);
        world.submit(job.tier(tier));
    }
}

/// Passes from the submission of a job to its placement; none while it still waits after `max`.
fn passes_until_placed(drive: &mut Drive<'_>, job: usize, max: u64) -> Option<u64> {
    let at_ms = drive.world.jobs[job].at_ms;
    drive.run_until(at_ms - 1, &mut NullObserver);
    let before = drive.passes;
    while drive.records[job].placed.is_empty()
        && drive.passes <= before + max
        && drive.step(&mut NullObserver)
    {}
    (!drive.records[job].placed.is_empty()).then(|| drive.passes - before)
}

#[test]
fn who_asks_for_what_cannot_be_had_hides_nobody() {
    for seed in 0..seeds(1) {
        let mut random = Random::new(seed ^ 0x9a55);
        let mut fleet = hosts("h100", 2, 8);
        fleet.extend(hosts("a100", 2, 8));
        let mut world = World::new(seed, fleet, PolicyDraft::default());
        world.visits = [200_000, 2_000][seed as usize % 2];
        world.tick_ms = MINUTE;
        fill(&mut world, 16, PriorityTier::Standard);
        // More different requests than a pass looks at; each for devices that are all in use.
        let tenants = 1 + random.below(20);
        for n in 0..1_010 + random.below(20) {
            let mut job =
                JobPlan::new(MINUTE, &format!("hopeless-{n}"), &format!("t-{}", n % tenants), "h100")
                    .runs(MINUTE, true);
            job.cpu_milli = 100 + n;
            world.submit(job);
        }
        // They have used something, so that those who have used nothing go before them.
        let mut markers = Vec::new();
        for n in 0..4u64 {
            let tenant = if n % 2 == 0 { "holder".to_owned() } else { format!("late-{n}") };
            let at = 2 * MINUTE + n * 2 * MINUTE;
            world.submit(JobPlan::new(at, &format!("marker-{n}"), &tenant, "a100").runs(10 * HOUR, true));
        }
        let world = world.sorted();
        markers.extend((0..world.jobs.len()).filter(|place| world.jobs[*place].kind == "a100"));
        let mut drive = Drive::new(&world);
        for marker in markers {
            let passes = passes_until_placed(&mut drive, marker, PASSES_MAX);
            let name = &world.jobs[marker].name;
            assert!(passes.is_some(), "seed {seed}: {name} is not looked at within {PASSES_MAX} passes");
        }
    }
}

#[test]
fn gangs_that_cannot_be_helped_keep_nobody_from_making_room() {
    for seed in 0..seeds(2) {
        let mut random = Random::new(seed ^ 0x16);
        let mut policy = PolicyDraft::default();
        give_all_rights(&mut policy);
        policy.preemption.minimum_run_ms = MINUTE;
        policy.preemption.defragment = false;
        let mut world = World::new(seed, hosts("h100", 4, 8), policy);
        // Of each host half is held by work that nobody may stop for production.
        for n in 0..4 {
            let job = JobPlan::new(0, &format!("critical-{n}"), "service", "h100")
                .gang(1, 5)
                .runs(100 * HOUR, true);
            world.submit(job.tier(PriorityTier::Critical));
        }
        for n in 0..12 {
            let job = JobPlan::new(1, &format!("free-{n}"), "holder", "h100").runs(100 * HOUR, true);
            world.submit(job.tier(PriorityTier::Free));
        }
        let hopeless = 20 + random.below(40);
        for n in 0..hopeless {
            let mut job = JobPlan::new(2 * MINUTE, &format!("whole-{n}"), &format!("w-{}", n % 7), "h100")
                .gang(1 + (n % 3) as u32, 8)
                .runs(MINUTE, true);
            job.cpu_milli = 100 + n;
            world.submit(job.tier(PriorityTier::Production));
        }
        let one = JobPlan::new(5 * MINUTE, "one", "holder", "h100").runs(MINUTE, true);
        world.submit(one.tier(PriorityTier::Production));
        let world = world.sorted();
        let one = world.jobs.iter().position(|job| job.name == "one").unwrap();
        let mut drive = Drive::new(&world);
        let passes = passes_until_placed(&mut drive, one, PASSES_MAX);
        assert!(
            passes.is_some(),
            "seed {seed}: behind {hopeless} hopeless gangs nobody is preempted for one device"
        );
    }
}

/// Workers that a gang holds.
fn workers(drive: &Drive<'_>, job: &str) -> usize {
    let place = drive.world.jobs.iter().position(|plan| plan.name == job).unwrap();
    let row = drive.records[place].id.and_then(|id| drive.replica.job(id));
    row.and_then(|row| row.placement.as_ref()).map_or(0, |placement| placement.slots.len())
}

fn elastic(name: &str, kind: &'static str, at_ms: u64, workers: u32, min: u32) -> JobPlan {
    let mut job = JobPlan::new(at_ms, name, "elastic", kind).gang(workers, 1).runs(100 * HOUR, true);
    (job.workers_min, job.checkpointed) = (min, true);
    job
}

#[test]
fn an_elastic_gang_grows_beside_others_that_cannot() {
    let mut fleet = hosts("a100", 1, 8);
    fleet.extend(hosts("b200", 1, 8));
    let mut world = World::new(0, fleet, PolicyDraft::default());
    // Five gangs that have less than they ask for, with nothing free next to them: while these hosts were full,
    // each was given the one device that was left.
    for n in 0..5 {
        world.submit(JobPlan::new(0, &format!("first-{n}"), "other", "b200").runs((n + 1) * MINUTE, true));
        world.submit(elastic(&format!("narrow-{n}"), "b200", 1 + n, 2, 1));
    }
    world.submit(JobPlan::new(0, "rest", "other", "b200").gang(1, 3).runs(100 * HOUR, true));
    world.submit(JobPlan::new(MINUTE, "neighbor", "other", "a100").gang(1, 5).runs(30 * MINUTE, true));
    world.submit(elastic("grows", "a100", 2 * MINUTE, 8, 3));
    let world = world.sorted();
    let mut drive = Drive::new(&world);
    drive.run_until(20 * MINUTE, &mut NullObserver);
    assert_eq!(workers(&drive, "grows"), 3, "it begins next to another gang");
    drive.run_until(40 * MINUTE, &mut NullObserver);
    assert_eq!(workers(&drive, "grows"), 8, "ten minutes after devices came free it has grown into them");
}

#[test]
fn an_elastic_gang_grows_beside_work_that_waits_for_something_else() {
    let mut fleet = hosts("h100", 1, 8);
    fleet.extend(hosts("a100", 1, 8));
    let mut world = World::new(0, fleet, PolicyDraft::default());
    fill(&mut world, 8, PriorityTier::Standard);
    world.submit(JobPlan::new(MINUTE, "waits", "other", "h100").runs(HOUR, true));
    world.submit(JobPlan::new(0, "neighbor", "other", "a100").gang(1, 5).runs(30 * MINUTE, true));
    world.submit(elastic("grows", "a100", MINUTE, 8, 3));
    let world = world.sorted();
    let mut drive = Drive::new(&world);
    drive.run_until(20 * MINUTE, &mut NullObserver);
    assert_eq!(workers(&drive, "grows"), 3, "it begins next to another gang");
    drive.run_until(40 * MINUTE, &mut NullObserver);
    assert_eq!(workers(&drive, "grows"), 8, "ten minutes after devices came free it has grown into them");
}
