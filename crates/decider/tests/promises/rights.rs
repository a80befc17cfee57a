//! G4: what a job asks for beyond what every job may is a right of its tenant, refused at submission with the right
//! that is missing.

use muster_types::policy::{NonPreemptible, PolicyDraft, TenantPolicy, TenantRights, UNLISTED_TENANT};
use muster_types::{PriorityTier, RefusalCode};

use crate::drive::Drive;
use crate::measure::NullObserver;
use crate::random::Random;
use crate::seeds;
use crate::world::{HOUR, JobPlan, MINUTE, World, hosts, name};

fn random_rights(random: &mut Random) -> TenantRights {
    TenantRights {
        tier_max: random.once_in(2).then(|| PriorityTier::ALL[random.below(5) as usize]),
        non_preemptible: random.once_in(2).then(|| NonPreemptible::ALL[random.below(3) as usize]),
        deadlines: random.once_in(2).then(|| random.once_in(2)),
        bookings: None,
        purchases: muster_types::PurchaseSet::EMPTY,
        negative_nice: None,
    }
}

/// A tree three levels deep, and somebody whom the policy does not name.
fn a_tree_of_rights(seed: u64) -> World {
    let mut random = Random::new(seed ^ 0x419);
    let mut policy = PolicyDraft::default();
    let mut list = |name_of: &str, parent: Option<&str>, random: &mut Random| {
        let rights = random_rights(random);
        let tenant = TenantPolicy { parent: parent.map(name), rights, ..TenantPolicy::default() };
        policy.tenants.insert(name(name_of), tenant);
    };
    list("a", None, &mut random);
    list("a-1", Some("a"), &mut random);
    list("a-1-1", Some("a-1"), &mut random);
    list("b", None, &mut random);
    if random.once_in(2) {
        list(UNLISTED_TENANT, None, &mut random);
    }
    let mut world = World::new(seed, hosts("h100", 1, 8), policy);
    world.horizon_ms = HOUR;
    for n in 0..60 {
        let tenant = ["a", "a-1", "a-1-1", "b", "stranger"][random.below(5) as usize];
        let mut job = JobPlan::new(n * MINUTE / 2, &format!("job-{n}"), tenant, "h100").runs(MINUTE, true);
        job.tier = PriorityTier::ALL[random.below(5) as usize];
        job.preemptible = !random.once_in(3);
        world.submit(job);
    }
    world.sorted()
}

/// The nearest that is stated on the way up, else the least.
fn right<T>(policy: &PolicyDraft, tenant: &str, of: impl Fn(&TenantRights) -> Option<T>) -> Option<T> {
    let mut next = Some(name(tenant));
    while let Some(here) = next {
        let Some(listed) = policy.tenants.get(&here) else {
            next = (here.as_str() != UNLISTED_TENANT).then(|| name(UNLISTED_TENANT));
            continue;
        };
        if let Some(stated) = of(&listed.rights) {
            return Some(stated);
        }
        next = listed.parent.clone();
    }
    None
}

#[test]
fn what_is_no_right_of_the_tenant_is_refused_by_name() {
    let (mut refused, mut admitted) = (0, 0);
    for seed in 0..seeds(20) {
        let world = a_tree_of_rights(seed);
        let drive = Drive::run(&world, &mut NullObserver);
        for (plan, record) in world.jobs.iter().zip(&drive.records) {
            let tier_max = right(&world.policy, &plan.tenant, |rights| rights.tier_max);
            let untouchable = right(&world.policy, &plan.tenant, |rights| rights.non_preemptible);
            let mut missing = Vec::new();
            if plan.tier > tier_max.unwrap_or(PriorityTier::Standard) {
                missing.push("tierMax");
            }
            if !plan.preemptible && untouchable.unwrap_or(NonPreemptible::Never) == NonPreemptible::Never {
                missing.push("nonPreemptible");
            }
            let Some(refusal) = &record.refused else {
                admitted += 1;
                assert!(missing.is_empty(), "seed {seed}: {plan:?} is admitted without {missing:?}");
                continue;
            };
            refused += 1;
            assert_eq!(refusal.code, RefusalCode::RightMissing, "seed {seed}: {plan:?}: {refusal}");
            let named =
                refusal.metadata.iter().find(|(key, _)| *key == "right").map(|(_, value)| value.as_str());
            assert!(named.is_some_and(|named| missing.contains(&named)), "seed {seed}: {plan:?}: {refusal}");
        }
    }
    assert!(refused > 20 && admitted > 20, "both come about: {refused}, {admitted}");
}
