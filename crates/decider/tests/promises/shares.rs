//! G5: among tenants who all have work, nobody is served while a sibling has less for its weight, at any level of
//! the tree and at every prefix of the run.

use std::collections::{BTreeMap, BTreeSet};

use muster_journal::Decision;
use muster_types::Name;
use muster_types::policy::{Order, POLICY_DURATION_MS_MAX, PolicyDraft, TenantPolicy};

use crate::drive::Drive;
use crate::measure::Observer;
use crate::random::Random;
use crate::seeds;
use crate::world::{HOUR, JobPlan, MINUTE, World, hosts, name};

/// What a tenant's own work weighs next to its children, and what all tenants weigh that policy does not name.
const DEFAULT_WEIGHT: u64 = 1_000;
/// The reserved tenant above all that policy does not name.
const UNLISTED: &str = "unlisted";
/// Thousandths of a device that past use may come to: it decays over a year, and a world takes hours.
const PAST_MILLI: u64 = 50;

/// A place in the tree: a tenant with everybody below it, or its own work alone.
type Node = (Name, bool);

/// Places from the first level down to a tenant's own work.
fn places(policy: &PolicyDraft, tenant: &Name) -> Vec<Node> {
    let mut path = vec![];
    let mut next = Some(tenant.clone());
    while let Some(here) = next {
        next = match policy.tenants.get(&here) {
            Some(listed) => listed.parent.clone(),
            None => (here.as_str() != UNLISTED).then(|| name(UNLISTED)),
        };
        path.push((here, false));
    }
    path.reverse();
    if policy.tenants.values().any(|other| other.parent.as_ref() == Some(tenant)) {
        path.push((tenant.clone(), true));
    }
    path
}

fn weight(policy: &PolicyDraft, node: &Node) -> u64 {
    match policy.tenants.get(&node.0) {
        Some(listed) if !node.1 => u64::from(listed.weight_milli),
        _ => DEFAULT_WEIGHT,
    }
}

#[derive(Default)]
struct Shares {
    looked_at: u64,
    /// Devices in use, by place.
    used: BTreeMap<Node, u64>,
    wrong: Vec<String>,
}

impl Shares {
    fn change(&mut self, drive: &Drive<'_>, job: muster_types::JobId, by: i64) {
        for place in places(&drive.world.policy, &name(&drive.plan(job).tenant)) {
            let used = self.used.entry(place).or_default();
            *used = used.checked_add_signed(by).expect("what ends has begun");
        }
    }
}

impl Observer for Shares {
    fn before(&mut self, drive: &Drive<'_>, decision: &Decision) {
        match decision {
            Decision::JobFinished { job, .. } => self.change(drive, *job, -1),
            Decision::GangPlaced { job, .. } => {
                let policy = &drive.world.policy;
                let served = places(policy, &name(&drive.plan(*job).tenant));
                let waiting: BTreeSet<Vec<Node>> = drive
                    .open
                    .iter()
                    .filter(|place| drive.waits(**place))
                    .map(|place| places(policy, &name(&drive.world.jobs[*place].tenant)))
                    .collect();
                for other in waiting {
                    let Some(level) = (0..served.len().min(other.len())).find(|at| served[*at] != other[*at])
                    else {
                        continue;
                    };
                    self.looked_at += 1;
                    let (ours, theirs) = (&served[level], &other[level]);
                    let milli = |node| self.used.get(node).copied().unwrap_or(0) * 1_000;
                    let (our_weight, their_weight) = (weight(policy, ours), weight(policy, theirs));
                    if milli(ours) * their_weight
                        > (milli(theirs) + PAST_MILLI) * our_weight + PAST_MILLI * their_weight
                    {
                        self.wrong.push(format!(
                            "{ours:?} has {} for a weight of {our_weight} and is served, {theirs:?} has {} for \
                             {their_weight} and waits; {}",
                            milli(ours) / 1_000,
                            milli(theirs) / 1_000,
                            drive.tail()
                        ));
                    }
                }
                self.change(drive, *job, 1);
            }
            _ => {}
        }
    }
}

/// A fleet for which everybody in a random tree has more work than it can do, all in jobs of one device.
fn saturated(seed: u64) -> World {
    let mut random = Random::new(seed ^ 0x5a7e);
    let mut policy = PolicyDraft::default();
    policy.order.order = Order::Submission;
    policy.order.usage_half_life_ms = POLICY_DURATION_MS_MAX;
    policy.preemption.enabled = false;
    let mut workers: Vec<String> = Vec::new();
    for org in 0..2 + random.below(2) {
        let org = format!("org-{org}");
        let of = |parent: Option<&str>, random: &mut Random| TenantPolicy {
            parent: parent.map(name),
            weight_milli: 1_000 * (1 + random.below(3) as u32),
            ..TenantPolicy::default()
        };
        policy.tenants.insert(name(&org), of(None, &mut random));
        let teams = random.below(4);
        // Some have work in addition to their teams'.
        if teams == 0 || random.once_in(2) {
            workers.push(org.clone());
        }
        for team in 0..teams {
            let team = format!("{org}-{team}");
            policy.tenants.insert(name(&team), of(Some(&org), &mut random));
            workers.push(team.clone());
        }
    }
    let mut world = World::new(seed, hosts("h100", 4, 4), policy);
    world.horizon_ms = 2 * HOUR;
    for tenant in workers {
        backlog(&mut world, &tenant, |_| tenant.clone());
    }
    // One submits every job under another name.
    if random.once_in(2) {
        backlog(&mut world, "stranger", |n| format!("stranger-{n}"));
    }
    world.sorted()
}

fn backlog(world: &mut World, who: &str, tenant: impl Fn(u64) -> String) {
    for n in 0..16 * 5 {
        let run_ms = 20 * MINUTE + n % 7 * MINUTE;
        world.submit(JobPlan::new(0, &format!("{who}-{n}"), &tenant(n), "h100").runs(run_ms, true));
    }
}

#[test]
fn nobody_is_served_before_a_sibling_that_has_less() {
    let mut lines = Vec::new();
    let mut first = String::new();
    for seed in 0..seeds(2) {
        let world = saturated(seed);
        let mut shares = Shares::default();
        Drive::run(&world, &mut shares);
        assert!(shares.looked_at > 50, "seed {seed}: placements to look at: {}", shares.looked_at);
        if let Some(found) = shares.wrong.first() {
            lines.push(format!("seed {seed}: {} of {} comparisons", shares.wrong.len(), shares.looked_at));
            first = if first.is_empty() { found.clone() } else { first };
        }
    }
    assert!(lines.is_empty(), "{}\n{first}", lines.join("\n"));
}
