//! The order of tenants against a model of it that was written from what is promised, not from the code: at every
//! level of the tree the child with the least weighted share of decayed use goes first, and a tenant's own work is
//! one child of it. The model keeps the history of every use, and counts all of it again for every question.

use std::collections::{BTreeMap, BTreeSet};

use muster_policy::Line;
use muster_types::policy::{Order, PolicyDraft, Quota, TenantPolicy};
use muster_types::{JobId, Name, PriorityTier};
use proptest::prelude::*;

use crate::support::{World, spec};

const NODES: u32 = 40;
const DEVICES: f64 = 64.0 * NODES as f64;
const HALF_LIFE_MS: u64 = 3_600_000;

/// Keys that differ by less than this part are taken as equal: the product rounds.
const NEAR: f64 = 1e-3;

struct Use {
    job: JobId,
    tenant: usize,
    devices: f64,
    from_ms: u64,
    until_ms: Option<u64>,
}

#[derive(Default)]
struct Model {
    /// By tenant: the one above it and its weight.
    tenants: Vec<(Option<usize>, f64)>,
    uses: Vec<Use>,
}

impl Model {
    fn is_below(&self, tenant: usize, above: usize) -> bool {
        tenant == above || self.tenants[tenant].0.is_some_and(|parent| self.is_below(parent, above))
    }

    /// The share of all uses of tenants for which that holds: of what they hold now, and of what they held, the
    /// less the longer ago it was.
    fn share(&self, now_ms: u64, of: impl Fn(usize) -> bool) -> f64 {
        let weight = |at_ms: u64| (-((now_ms - at_ms) as f64) / HALF_LIFE_MS as f64).exp2();
        let sum: f64 = self
            .uses
            .iter()
            .filter(|used| of(used.tenant))
            .map(|used| {
                let past = weight(used.until_ms.unwrap_or(now_ms)) - weight(used.from_ms);
                used.devices * (past + if used.until_ms.is_none() { 1.0 } else { 0.0 })
            })
            .sum();
        sum / DEVICES
    }

    /// Who may go next of those with pending work, below a tenant or, without one, of all.
    fn next(&self, now_ms: u64, pending: &BTreeSet<usize>, above: Option<usize>) -> BTreeSet<usize> {
        // Each child: its weighted share, and who of it may go next.
        let mut children: Vec<(f64, BTreeSet<usize>)> = Vec::new();
        for (child, (parent, weight)) in self.tenants.iter().enumerate() {
            let has_work = pending.iter().any(|tenant| self.is_below(*tenant, child));
            if *parent == above && has_work {
                let share = self.share(now_ms, |tenant| self.is_below(tenant, child));
                children.push((share / weight, self.next(now_ms, pending, Some(child))));
            }
        }
        if let Some(own) = above.filter(|own| pending.contains(own)) {
            children.push((self.share(now_ms, |tenant| tenant == own), BTreeSet::from([own])));
        }
        let least = children.iter().map(|(share, _)| *share).fold(f64::INFINITY, f64::min);
        let is_least = |share: f64| share <= least * (1.0 + NEAR) + 1e-7;
        children.into_iter().filter(|(share, _)| is_least(*share)).flat_map(|(_, next)| next).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Submit {
        tenant: usize,
        tier: usize,
        devices: u16,
        count: usize,
    },
    Pass {
        ms: u64,
    },
    /// This many are placed in one pass.
    Place {
        count: usize,
    },
    End {
        nth: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..8usize, 0..2usize, 1..9u16, 1..5usize)
            .prop_map(|(tenant, tier, devices, count)| Step::Submit { tenant, tier, devices, count }),
        2 => (1..5_000_000u64).prop_map(|ms| Step::Pass { ms }),
        4 => (1..12usize).prop_map(|count| Step::Place { count }),
        2 => any::<usize>().prop_map(|nth| Step::End { nth }),
    ];
    prop::collection::vec(step, 1..40)
}

/// Each tenant: below which of those before it, if any, and its weight.
fn trees() -> impl Strategy<Value = Vec<(Option<usize>, u32)>> {
    let tenant = |n: usize| (prop::option::of(0..n.max(1)), 1..5u32);
    let tenants = (1..7usize).prop_flat_map(move |count| (0..count).map(tenant).collect::<Vec<_>>());
    tenants.prop_map(|mut tenants| {
        tenants[0].0 = None;
        tenants
    })
}

fn draft(tree: &[(Option<usize>, u32)]) -> PolicyDraft {
    let mut draft = PolicyDraft::default();
    draft.order.order = Order::Submission;
    draft.order.usage_half_life_ms = HALF_LIFE_MS;
    for (n, (parent, weight)) in tree.iter().enumerate() {
        let parent = parent.map(name);
        let tenant = TenantPolicy { parent, weight_milli: weight * 1_000, ..TenantPolicy::default() };
        draft.tenants.insert(name(n), tenant);
    }
    draft
}

fn name(tenant: usize) -> Name {
    Name::new(&format!("t{tenant}")).unwrap()
}

/// Places `count` jobs in one pass and holds each against the model.
fn place(world: &mut World, model: &mut Model, count: usize) {
    let tenant_of = |world: &World, job: JobId| -> usize {
        world.state.spec(job).unwrap().tenant.as_str()[1..].parse().unwrap()
    };
    let mut line = Line::form(&world.state, world.now);
    for _ in 0..count {
        if !world.has_room() {
            return;
        }
        let Some(candidate) = line.take_next(&world.state) else {
            assert!(world.state.pending_count() == 0, "some pending job had no turn");
            return;
        };
        let waiting: Vec<JobId> =
            world.state.jobs().iter().filter(|(_, row)| row.is_in_line()).map(|(id, _)| *id).collect();
        let tier = |job: &JobId| world.state.spec(*job).unwrap().tier;
        let highest = waiting.iter().map(tier).max();
        assert_eq!(Some(candidate.tier), highest, "without quotas tiers go first");
        let pending: BTreeSet<usize> = waiting
            .iter()
            .filter(|job| Some(tier(job)) == highest)
            .map(|job| tenant_of(world, *job))
            .collect();
        let job = candidate.turn.job;
        let tenant = tenant_of(world, job);
        let next = model.next(world.now.0, &pending, None);
        assert!(next.contains(&tenant), "t{tenant} went, where one of {next:?} is next");
        let before = waiting.iter().filter(|other| tenant_of(world, **other) == tenant && **other < job);
        assert!(
            before.clone().all(|other| Some(tier(other)) != highest),
            "{job} went before its own {before:?}"
        );
        let devices = world.state.spec(job).unwrap().device_count() as f64;
        world.start(job);
        model.uses.push(Use { job, tenant, devices, from_ms: world.now.0, until_ms: None });
        line.placed(&world.state, &candidate);
    }
}

fn run(tree: &[(Option<usize>, u32)], steps: &[Step]) {
    let mut world = World::new(NODES, draft(tree));
    let tenants = tree.iter().map(|(parent, weight)| (*parent, f64::from(*weight))).collect();
    let mut model = Model { tenants, ..Model::default() };
    let mut names: BTreeMap<usize, u32> = BTreeMap::new();
    for step in steps {
        match step {
            Step::Submit { tenant, tier, devices, count } => {
                let tenant = tenant % tree.len();
                let n = names.entry(tenant).or_default();
                *n += 1;
                let draft = muster_types::JobDraft {
                    tier: [PriorityTier::Standard, PriorityTier::Batch][*tier],
                    ..spec(name(tenant).as_str(), &format!("j{n}"), *devices)
                };
                world.submit(vec![draft.check().unwrap(); *count]);
            }
            Step::Pass { ms } => world.pass(*ms),
            Step::Place { count } => place(&mut world, &mut model, *count),
            Step::End { nth } => {
                let running = world.running();
                if !running.is_empty() {
                    let job = running[nth % running.len()];
                    world.end(job);
                    let used = model.uses.iter_mut().find(|used| used.job == job && used.until_ms.is_none());
                    used.unwrap().until_ms = Some(world.now.0);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn tenants_go_as_the_model_says(tree in trees(), steps in steps()) {
        run(&tree, &steps);
    }
}

#[test]
fn a_walk_that_steps_over_many_requests_ends_after_its_steps() {
    // Nobody has nominal quota left, and every request is another one: all of them are stepped over before the first is found.
    let mut policy = draft(&[(None, 1)]);
    let quota = Quota {
        kind: Name::literal("h100"),
        region: None,
        nominal_milli: 0,
        borrowing_limit_milli: None,
        lending_limit_milli: None,
    };
    policy.tenants.get_mut(&name(0)).unwrap().quotas = vec![quota];
    let mut world = World::new(1, policy);
    let specs = (0..200_u64).map(|n| {
        let mut job = spec("t0", &format!("j{n}"), 1);
        job.groups[0].request.cpu_milli = 1_000 + n;
        job.check().unwrap()
    });
    world.submit(specs.collect());
    let mut line = Line::form(&world.state, world.now);
    assert!(line.take_within(&world.state, 50).is_none() && line.is_cut());
    assert_eq!(line.take_steps(), 50);
    let mut line = Line::form(&world.state, world.now);
    let first = line.take_within(&world.state, 1_000).expect("it borrows");
    assert!(!first.within_nominal && !line.is_cut());
}

#[test]
fn behind_one_whose_user_is_at_its_limit_others_who_ask_for_the_same_have_their_turns() {
    let mut world = World::new(1, draft(&[(None, 1)]));
    let specs = (0..3).map(|n| spec("t0", &format!("j{n}"), 1).check().unwrap());
    let jobs = world.submit(specs.collect());
    let behind_first = |at_limit: bool| {
        let mut line = Line::form(&world.state, world.now);
        let first = line.take_next(&world.state).expect("somebody is first");
        assert_eq!(first.turn.job, jobs[0]);
        match at_limit {
            true => line.user_at_limit(&world.state, &first),
            false => line.waits(&world.state, &first),
        }
        let mut behind = Vec::new();
        while let Some(next) = line.take_next(&world.state) {
            behind.push(next.turn.job);
            line.user_at_limit(&world.state, &next);
        }
        behind
    };
    assert_eq!(behind_first(true), jobs[1..]);
    assert!(behind_first(false).is_empty());
}
