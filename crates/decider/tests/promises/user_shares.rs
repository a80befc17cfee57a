//! Shares of users: where the users of a tenant share what it gets, each that always has work gets its part by weight, whatever the
//! others submit, and none of them waits for ever.

use std::collections::BTreeMap;

use muster_journal::Decision;
use muster_types::policy::{Order, PolicyDraft, TenantPolicy, UserShares};

use crate::drive::Drive;
use crate::measure::Observer;
use crate::random::Random;
use crate::seeds;
use crate::world::{HOUR, JobPlan, MINUTE, World, hosts, name};

const ADA: &str = "tenant/lab/ada";
const EVE: &str = "tenant/lab/eve";
const FLOOD: &str = "tenant/lab/flood";

/// Before this the first jobs begin together, of all users.
const BEGIN_MS: u64 = HOUR;

/// A fleet for which two users have more work than it can do, in jobs of twenty minutes, while a third floods it with jobs of a few
/// minutes, each of which asks for something else.
fn flooded(seed: u64, users: Option<UserShares>) -> World {
    let mut random = Random::new(seed ^ 0x05e5);
    let mut policy = PolicyDraft::default();
    // The work that is predicted sends small jobs first.
    policy.order.order = if random.once_in(2) { Order::Submission } else { Order::Predicted };
    policy.preemption.enabled = false;
    // Fewer than the flood has of different requests.
    policy.backfill.depth_max = 2 + random.below(6) as u32;
    policy.tenants.insert(name("lab"), TenantPolicy { users, ..TenantPolicy::default() });
    let mut world = World::new(seed, hosts("h100", 2, 4), policy);
    world.horizon_ms = 5 * HOUR;
    // The flood is there first.
    for n in 0..600 {
        let run_ms = 3 * MINUTE + random.below(3 * MINUTE);
        let mut job = JobPlan::new(0, &format!("flood-{n}"), "lab", "h100").runs(run_ms, true).by(FLOOD);
        job.cpu_milli = 10 + n % 97;
        world.submit(job);
    }
    for (who, user) in [("ada", ADA), ("eve", EVE)] {
        for n in 0..130 {
            let run_ms = 18 * MINUTE + random.below(4 * MINUTE);
            let at_ms = random.below(2) * n;
            world.submit(
                JobPlan::new(at_ms, &format!("{who}-{n}"), "lab", "h100").runs(run_ms, true).by(user),
            );
        }
    }
    world.sorted()
}

/// When each user had a job placed last, and for how long one that had work waited at most for the next.
#[derive(Default)]
struct Waits {
    last_ms: BTreeMap<&'static str, u64>,
    longest_ms: BTreeMap<&'static str, u64>,
}

impl Observer for Waits {
    fn before(&mut self, drive: &Drive<'_>, decision: &Decision) {
        let Decision::GangPlaced { job, .. } = decision else { return };
        let user = drive.plan(*job).user;
        let since = self.last_ms.insert(user, drive.now_ms).unwrap_or(0);
        let longest = self.longest_ms.entry(user).or_default();
        *longest = (*longest).max(drive.now_ms - since);
    }
}

/// Device-milliseconds of a user behind the beginning.
fn used_ms(drive: &Drive<'_>, user: &str) -> u64 {
    let until = drive.world.horizon_ms;
    let jobs = drive.world.jobs.iter().zip(&drive.records).filter(|(plan, _)| plan.user == user);
    let used = jobs.map(|(plan, record)| {
        let Some(begun) = record.placed.first() else { return 0 };
        let ended = record.finished.unwrap_or(until).min(until);
        ended.saturating_sub((*begun).max(BEGIN_MS)) * plan.device_count()
    });
    used.sum()
}

fn has_waiting(drive: &Drive<'_>, user: &str) -> bool {
    drive.open.iter().any(|place| drive.world.jobs[*place].user == user && drive.waits(*place))
}

#[test]
fn users_get_their_parts_by_weight_while_another_floods_the_queue() {
    for seed in 0..seeds(2) {
        let weights_milli = [("ada".to_owned(), 2_000)].into();
        let world = flooded(seed, Some(UserShares { weights_milli, ..UserShares::default() }));
        let mut waits = Waits::default();
        let drive = Drive::run(&world, &mut waits);
        for user in [ADA, EVE, FLOOD] {
            assert!(has_waiting(&drive, user), "seed {seed}: {user} is to have work until the end");
        }
        let [ada, eve, flood] = [ADA, EVE, FLOOD].map(|user| used_ms(&drive, user));
        // Two, one and one parts of four, as near as whole jobs of one device on eight come to that.
        let all = ada + eve + flood;
        let parts = [(ADA, ada, 500), (EVE, eve, 250), (FLOOD, flood, 250)];
        for (user, used, part_milli) in parts {
            let has_milli = used * 1_000 / all;
            let is_near = has_milli.abs_diff(part_milli) <= 70;
            assert!(is_near, "seed {seed}: {user} has {has_milli} thousandths and its part is {part_milli}");
        }
        // The part of each is two devices at least, which come free every twenty minutes.
        for (user, longest_ms) in &waits.longest_ms {
            assert!(*longest_ms <= 45 * MINUTE, "seed {seed}: {user} waited for {longest_ms} ms");
        }
        assert!(drive.broken.is_empty(), "seed {seed}: {:?}", drive.broken);
        drive.replica.verify().expect("the state keeps its invariants");
    }
}

#[test]
fn without_shares_of_users_the_flood_has_more_than_its_part() {
    let more = (0..seeds(2)).filter(|seed| {
        let world = flooded(*seed, None);
        let drive = Drive::run(&world, &mut Waits::default());
        let [ada, eve, flood] = [ADA, EVE, FLOOD].map(|user| used_ms(&drive, user));
        flood > ada + eve
    });
    assert!(more.count() > 0, "the property above would hold by itself");
}
