//! G6: a gang waits no longer than a quarter more than it would if nobody passed anybody, and one run.

use muster_types::policy::PolicyDraft;

use crate::drive::{Drive, LAUNCH_MS};
use crate::measure::NullObserver;
use crate::random::Random;
use crate::seeds;
use crate::strict::starts;
use crate::world::{HOUR, JobPlan, MINUTE, SECOND, World, grid, hosts, name, tenant};

/// What else stands in the gangs' way, in addition to small jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    /// Nothing.
    Plain,
    /// A quota of somebody else, for a type that nobody has.
    QuotaElsewhere,
    /// The gangs are as large as their tenant's quota, and its small jobs use it up.
    OwnQuota,
    /// Hosts are those of TPU pods, and a gang is a whole pod.
    Slices,
}

const HOSTS: usize = 8;
const DEVICES: u16 = 4;

struct Fleet {
    world: World,
    /// Hosts that the strict order has to do with.
    hosts: usize,
}

/// A fleet that is as good as full with small jobs, and gangs of several hosts among them. NullObserver says how long
/// anything takes; the scheduler learns it.
fn small_jobs_and_gangs(seed: u64, setting: Setting) -> Fleet {
    let mut random = Random::new(seed ^ 0x57a2);
    let mut policy = PolicyDraft::default();
    let (kind, fleet) = match setting {
        Setting::Slices => {
            let mut fleet = grid("tpu-v5e", "pod-a", 4, 8);
            fleet.extend(grid("tpu-v5e", "pod-b", 4, 8));
            ("tpu-v5e", fleet)
        }
        // The other half of the fleet is another tenant's, who is away.
        Setting::OwnQuota => ("h100", hosts("h100", HOSTS, DEVICES)),
        _ => ("h100", hosts("h100", HOSTS, DEVICES)),
    };
    let mut count = fleet.len();
    match setting {
        Setting::QuotaElsewhere => {
            policy.tenants.insert(name("elsewhere"), tenant(None, "b200", 8));
        }
        Setting::OwnQuota => {
            count = HOSTS / 2;
            let mut lab = tenant(None, kind, count as u64 * u64::from(DEVICES));
            lab.quotas[0].borrowing_limit_milli = Some(0);
            policy.tenants.insert(name("small"), lab);
        }
        _ => {}
    }
    let mut world = World::new(seed, fleet, policy);
    world.horizon_ms = 40 * HOUR;
    world.tick_ms = 30 * SECOND;
    let arrivals_ms = 10 * HOUR;
    // Run times spread over a factor of thirty; their mean is about 25 minutes.
    let runs = [4, 6, 8, 12, 16, 20, 25, 30, 45, 60, 120];
    let small_devices = if setting == Setting::Slices { DEVICES } else { 1 };
    let slots = count as u64 * u64::from(DEVICES / small_devices);
    let mean_ms = runs.iter().sum::<u64>() * MINUTE / runs.len() as u64;
    // The queue is there from the beginning, and new ones come as fast as they go.
    let mut at = 0;
    let mut n = 0;
    while at < arrivals_ms {
        n += 1;
        let run_ms = runs[random.below(runs.len() as u64) as usize] * MINUTE - random.below(MINUTE);
        let mut job = JobPlan::new(at, "small", "small", kind).gang(1, small_devices).runs(run_ms, false);
        job.slice = (setting == Setting::Slices).then_some("2x2");
        world.submit(job);
        if n > slots * 5 / 4 {
            at += random.below(2 * mean_ms / slots);
        }
    }
    let owner = if setting == Setting::OwnQuota { "small" } else { "big" };
    for gang in 0..2 {
        let at = HOUR + gang * 3 * HOUR + random.below(HOUR);
        let workers = match setting {
            Setting::Slices => 8,
            Setting::OwnQuota => count as u32,
            _ => 4,
        };
        let mut job = JobPlan::new(at, &format!("gang-{gang}"), owner, kind).gang(workers, DEVICES);
        job = job.runs(2 * HOUR, false);
        job.slice = (setting == Setting::Slices).then_some("4x8");
        world.submit(job);
    }
    Fleet { world: world.sorted(), hosts: count }
}

fn gangs_start_in_time(setting: Setting) {
    let mut late = Vec::new();
    // Of the first three seeds one has a small job that ends between the start that a gang was promised and its quota.
    let usual = if setting == Setting::OwnQuota { 3 } else { 1 };
    for seed in 0..seeds(usual) {
        let Fleet { world, hosts } = small_jobs_and_gangs(seed, setting);
        let mut jobs = world.jobs.clone();
        if setting == Setting::Slices {
            // A small slice is one host, wherever.
            jobs.iter_mut().filter(|job| job.workers == 1).for_each(|job| job.slice = None);
        }
        let strict = starts(&jobs, hosts, DEVICES, 8);
        let drive = run_until_gangs_ran(&world);
        for (place, plan) in world.jobs.iter().enumerate().filter(|(_, plan)| plan.workers > 1) {
            let strict_ms = strict[place] - plan.at_ms;
            let bound_ms = strict_ms + strict_ms / 4 + plan.run_ms + LAUNCH_MS + 2 * world.tick_ms;
            let wait_ms = drive.records[place].wait_ms(plan);
            if wait_ms.is_none_or(|wait_ms| wait_ms > bound_ms) {
                let wait = wait_ms
                    .map_or(format!("more than {}", (drive.now_ms - plan.at_ms) / MINUTE), |ms| {
                        (ms / MINUTE).to_string()
                    });
                late.push(format!(
                    "seed {seed}: {} waits {wait} min, in strict order {} min, bound {} min",
                    plan.name,
                    strict_ms / MINUTE,
                    bound_ms / MINUTE
                ));
            }
        }
    }
    assert!(late.is_empty(), "{setting:?}:\n{}", late.join("\n"));
}

fn run_until_gangs_ran(world: &World) -> Drive<'_> {
    let mut drive = Drive::new(world);
    let gangs: Vec<usize> = (0..world.jobs.len()).filter(|place| world.jobs[*place].workers > 1).collect();
    while gangs.iter().any(|place| drive.records[*place].placed.is_empty()) && drive.step(&mut NullObserver) {
    }
    drive
}

#[test]
fn gangs_do_not_starve_behind_small_jobs() {
    gangs_start_in_time(Setting::Plain);
}

#[test]
fn a_quota_for_somebody_else_takes_no_reservation_away() {
    gangs_start_in_time(Setting::QuotaElsewhere);
}

#[test]
fn a_gang_as_large_as_its_quota_does_not_starve() {
    gangs_start_in_time(Setting::OwnQuota);
}

#[test]
fn slices_do_not_starve_behind_single_hosts() {
    gangs_start_in_time(Setting::Slices);
}
