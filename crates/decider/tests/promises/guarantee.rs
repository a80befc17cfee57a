//! G1 to G3: work within nominal never waits for work that borrows, is stopped by nobody who has no right to, and
//! what borrows can be taken back.

use std::sync::OnceLock;

use muster_types::PriorityTier;
use muster_types::policy::{NonPreemptible, Order, PolicyDraft, TenantPolicy, TenantRights, UNLISTED_TENANT};

use crate::adversaries::{Trick, flood};
use crate::choices::of_guests;
use crate::drive::{Drive, Record};
use crate::measure::{Evictions, Guarantee, bound_ms};
use crate::random::Random;
use crate::seeds;
use crate::world::{Act, HOUR, JobPlan, MINUTE, SECOND, World, grid, hosts, name, tenant};

/// A tree of owners who ask for less than they are promised, and guests who take whatever they can get.
pub fn owners_and_guests(seed: u64) -> World {
    let mut random = Random::new(seed);
    let count = 4 + random.below(4) as usize;
    let devices = count as u64 * 8;
    let mut policy = PolicyDraft::default();
    policy.preemption.minimum_run_ms = (1 + random.below(4)) * MINUTE;
    policy.order.order = if random.once_in(3) { Order::Submission } else { Order::Predicted };
    policy.order.fair_share = !random.once_in(4);
    // Two labs share the fleet; each has two teams.
    let half = devices / 2;
    policy.tenants.insert(name("lab-a"), tenant(None, "h100", half));
    policy.tenants.insert(name("lab-b"), tenant(None, "h100", devices - half));
    for team in ["a-1", "a-2"] {
        policy.tenants.insert(name(team), tenant(Some("lab-a"), "h100", half / 2));
    }
    for team in ["b-1", "b-2"] {
        policy.tenants.insert(name(team), tenant(Some("lab-b"), "h100", half / 2));
    }
    // One guest is a tenant that nobody promised anything, one is in a lab, and one is not known at all.
    policy.tenants.insert(name("guest"), TenantPolicy::default());
    policy.tenants.insert(name("a-guest"), tenant(Some("lab-a"), "h100", 0));
    // In some worlds guests may name any tier and have work that must not be stopped, within their nominal quota;
    // in the others they only try.
    if random.once_in(2) {
        let rights = TenantRights {
            tier_max: Some(PriorityTier::Critical),
            non_preemptible: Some(NonPreemptible::WithinNominal),
            deadlines: Some(true),
            bookings: None,
            purchases: muster_types::PurchaseSet::EMPTY,
            negative_nice: None,
        };
        for guest in ["guest", "a-guest", UNLISTED_TENANT] {
            policy.tenants.entry(name(guest)).or_default().rights = rights;
        }
    }
    // What guests choose for themselves takes nothing from owners: the bounds are the same.
    let mut choosing = Random::new(seed ^ 0xc401ce);
    for guest in ["guest", "a-guest"] {
        policy.tenants.entry(name(guest)).or_default().queue = of_guests(&mut choosing);
    }
    let mut world = World::new(seed, hosts("h100", count, 8), policy);
    world.horizon_ms = 2 * HOUR;
    world.tick_ms = 30 * SECOND;
    let tricks: Vec<Trick> = Trick::ALL.into_iter().filter(|_| random.once_in(2)).collect();
    for guest in ["guest", "a-guest", "stranger"] {
        if guest == "guest" || random.once_in(2) {
            flood(&mut world, &mut random, guest, "h100", devices, 8, &tricks);
        }
    }
    for team in ["a-1", "a-2", "b-1", "b-2"] {
        owner(&mut world, &mut random, team, half / 2);
    }
    if random.once_in(3) {
        let at = HOUR / 2 + random.below(HOUR);
        world.acts.push((at, Act::Drain { node: 0, deadline_ms: Some(10 * MINUTE) }));
        world.acts.push((at + HOUR, Act::EndDrain { node: 0 }));
    }
    if random.once_in(4) {
        let at = HOUR / 2 + random.below(HOUR);
        world.acts.push((at, Act::Lose { node: 1 }));
        world.acts.push((at + 20 * MINUTE, Act::Return { node: 1 }));
    }
    world.sorted()
}

/// Work of an owner, a third of what it is promised on average.
fn owner(world: &mut World, random: &mut Random, team: &str, nominal: u64) {
    let mut at = 5 * MINUTE + random.below(30 * MINUTE);
    let mut n = 0;
    while at < world.horizon_ms {
        n += 1;
        let run_ms = 5 * MINUTE + random.below(50 * MINUTE);
        let (workers, devices) = match random.below(6) {
            0 if nominal >= 16 => (2, 8),
            1 if nominal >= 8 => (1, 8),
            2 => (2, 2),
            3 => (1, 4),
            _ => (1, 1),
        };
        let mut job = JobPlan::new(at, &format!("{team}-{n}"), team, "h100").gang(workers, devices);
        job = job.runs(run_ms, random.once_in(2));
        job.grace_ms = 5 * SECOND;
        job.tier =
            [PriorityTier::Batch, PriorityTier::Standard, PriorityTier::Standard][random.below(3) as usize];
        let work = job.device_count() * run_ms;
        world.submit(job);
        at += work * 3 / nominal.max(1) + random.below(10 * MINUTE);
    }
}

/// An owner who asks for slices of a pod now and then, and a guest who fills it with single hosts.
fn owner_of_slices(seed: u64) -> World {
    let mut random = Random::new(seed ^ 0x511c);
    let mut policy = PolicyDraft::default();
    policy.preemption.minimum_run_ms = (1 + random.below(4)) * MINUTE;
    policy.tenants.insert(name("owner"), tenant(None, "tpu-v5e", 32));
    policy.tenants.insert(name("guest"), TenantPolicy::default());
    let mut world = World::new(seed, grid("tpu-v5e", "pod", 4, 8), policy);
    world.horizon_ms = 4 * HOUR;
    world.tick_ms = 30 * SECOND;
    for n in 0..60 {
        let mut job = JobPlan::new(0, &format!("guest-{n}"), "guest", "tpu-v5e").gang(1, 4);
        job.slice = Some("2x2");
        job.grace_ms = 5 * SECOND + random.below(30 * SECOND);
        world.submit(job.runs(20 * MINUTE + random.below(2 * HOUR), random.once_in(2)));
    }
    for n in 0..5 {
        let (shape, workers) = [("4x8", 8), ("4x4", 4), ("2x4", 2)][random.below(3) as usize];
        let at = 20 * MINUTE + n * 40 * MINUTE + random.below(10 * MINUTE);
        let mut job = JobPlan::new(at, &format!("owner-{n}"), "owner", "tpu-v5e").gang(workers, 4);
        job.slice = Some(shape);
        job.grace_ms = 5 * SECOND;
        world.submit(job.runs(10 * MINUTE + random.below(10 * MINUTE), true));
    }
    world.sorted()
}

/// What was observed in one world.
struct WorldResult {
    seed: u64,
    bound_s: u64,
    /// Jobs that did not start in the pass after their submission.
    waited: usize,
    guarantee: Guarantee,
    evictions: Evictions,
}

/// All worlds, once for all the properties of this file.
fn seen() -> &'static [WorldResult] {
    static SEEN: OnceLock<Vec<WorldResult>> = OnceLock::new();
    SEEN.get_or_init(|| {
        let look = |seed| {
            let world = if seed % 2 == 1 { owner_of_slices(seed) } else { owners_and_guests(seed) };
            let mut seen = (Guarantee::default(), Evictions::default());
            let drive = Drive::run(&world, &mut seen);
            assert_eq!(
                drive.broken.first(),
                None,
                "seed {seed}: {} records break a rule",
                drive.broken.len()
            );
            let waits = |(plan, record): &(&JobPlan, &Record)| record.wait_ms(plan).is_none_or(|ms| ms > 0);
            let owners =
                world.jobs.iter().zip(&drive.records).filter(|(plan, _)| !plan.name.contains("guest"));
            let waited = owners.filter(waits).count();
            WorldResult {
                seed,
                bound_s: bound_ms(&drive) / SECOND,
                waited,
                guarantee: seen.0,
                evictions: seen.1,
            }
        };
        (0..seeds(2)).map(look).collect()
    })
}

/// Fails with one line for each world in which something is wrong, and all of the first.
fn assert_none(found: impl Iterator<Item = (u64, String, Option<String>)>) {
    let found: Vec<_> = found.filter(|(_, _, first)| first.is_some()).collect();
    let lines: Vec<String> = found.iter().map(|(seed, line, _)| format!("seed {seed}: {line}")).collect();
    assert!(found.is_empty(), "{}\n{}", lines.join("\n"), found[0].2.as_deref().unwrap_or_default());
}

#[test]
fn work_within_nominal_never_waits_for_work_that_borrows() {
    let waited: usize = seen().iter().map(|seen| seen.waited).sum();
    assert!(waited > 3 * seen().len(), "worlds have owners who wait: {waited}");
    assert_none(seen().iter().map(|seen| {
        let Guarantee { broken, looked_at, worst_ms, .. } = &seen.guarantee;
        let (broken_count, bound_s, worst_s) = (broken.len(), seen.bound_s, worst_ms / SECOND);
        let line = format!(
            "{broken_count} of {} waits within nominal longer than {bound_s} s, the longest {worst_s} s",
            looked_at.len()
        );
        (seen.seed, line, broken.first().cloned())
    }));
}

#[test]
fn nobody_within_nominal_is_stopped_by_who_has_no_right_to() {
    let evictions: u64 = seen().iter().map(|seen| seen.evictions.count).sum();
    assert!(evictions > 3 * seen().len() as u64, "worlds have evictions: {evictions}");
    assert_none(seen().iter().map(|seen| {
        let Evictions { wrong, count, .. } = &seen.evictions;
        (seen.seed, format!("{} of {count} evictions are wrong", wrong.len()), wrong.first().cloned())
    }));
}

#[test]
fn what_borrows_can_be_taken_back() {
    assert_none(seen().iter().map(|seen| {
        let found = &seen.evictions.untouchable;
        (seen.seed, format!("{} gangs that borrow may not be preempted", found.len()), found.first().cloned())
    }));
}
