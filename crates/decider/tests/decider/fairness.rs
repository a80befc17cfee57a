//! Shares of tenants while everybody wants more than there is: at every prefix of what is placed, siblings that still
//! have work stand within one gang of each other for their weights, whatever names, sizes and tiers they choose.

use std::collections::BTreeMap;

use muster_decider::{Command, Speculation, handle, schedule};
use muster_journal::Decision;
use muster_planner::Budget;
use muster_types::policy::{Order, PolicyDraft, Quota, TenantPolicy, UNLISTED_TENANT};
use muster_types::{JobId, JobSpec, PriorityTier, Submission, limits};

use crate::random::Random;
use crate::support::{accelerators, founded, group, holder, job_draft, name, node_spec, request};

const HOSTS: u64 = 32;
const HOST_DEVICES: u64 = 8;
const GANG_MAX: u64 = 8;

/// A tenant of the tree; the first ones have no parent.
struct Tenant {
    parent: Option<usize>,
    weight: u64,
    has_children: bool,
    submits: bool,
    /// Whether each of its jobs comes under another name, none of which the policy knows.
    renames: bool,
}

struct World {
    tenants: Vec<Tenant>,
    /// Whether every tenant that submits has its part of the fleet as nominal quota: then tiers order nothing between
    /// tenants.
    has_quotas: bool,
}

impl World {
    fn random(random: &mut Random) -> World {
        let has_quotas = random.once_in(2);
        let mut tenants: Vec<Tenant> = Vec::new();
        for n in 0..2 + random.below(6) as usize {
            // Nested only without quotas: a parent's own work would borrow.
            let parent = (!has_quotas && n > 0 && random.once_in(2)).then(|| random.below(n as u64) as usize);
            if let Some(parent) = parent {
                tenants[parent].has_children = true;
            }
            let weight = 1 + random.below(3);
            tenants.push(Tenant { parent, weight, has_children: false, submits: true, renames: false });
        }
        if random.once_in(2) {
            let parent = None;
            tenants.push(Tenant { parent, weight: 1, has_children: false, submits: true, renames: true });
        }
        // Some that have others below them submit nothing themselves.
        for tenant in &mut tenants {
            tenant.submits = !(tenant.has_children && random.once_in(2));
        }
        World { tenants, has_quotas }
    }

    fn policy(&self) -> PolicyDraft {
        let mut draft = PolicyDraft::default();
        draft.order.order = Order::Submission;
        let weights: u64 = self.tenants.iter().map(|tenant| tenant.weight).sum();
        for (n, tenant) in self.tenants.iter().enumerate() {
            let nominal = HOSTS * HOST_DEVICES * 1_000 * tenant.weight / weights;
            let quota = Quota {
                kind: name("h100"),
                region: None,
                nominal_milli: nominal,
                borrowing_limit_milli: None,
                lending_limit_milli: None,
            };
            let policy = TenantPolicy {
                parent: tenant.parent.map(|parent| name(&format!("t{parent}"))),
                weight_milli: tenant.weight as u32 * 1_000,
                quotas: if self.has_quotas { vec![quota] } else { Vec::new() },
                ..TenantPolicy::default()
            };
            // Without being listed, those that are not named have the ordinary weight together.
            if tenant.renames && self.has_quotas {
                draft.tenants.insert(name(UNLISTED_TENANT), policy);
            } else if !tenant.renames {
                draft.tenants.insert(name(&format!("t{n}")), policy);
            }
        }
        draft
    }

    /// What a tenant submits: more than its share of the fleet, in its own way.
    fn jobs(&self, random: &mut Random, tenant: usize) -> Vec<JobSpec> {
        let manner = random.below(4);
        let mut left = HOSTS * HOST_DEVICES;
        let mut specs = Vec::new();
        while left > 0 {
            let devices = match manner {
                0 => 1,
                1 => GANG_MAX,
                _ => 1 << random.below(4),
            };
            left = left.saturating_sub(devices);
            let main = if manner == 2 {
                // As many workers, and it may do with fewer.
                let mut main = group("main", devices as u32, Some(accelerators("h100", 1)));
                main.workers_min = 1;
                main
            } else {
                group("main", 1, Some(accelerators("h100", devices as u16)))
            };
            let mut draft = job_draft("j", vec![main]);
            draft.tenant = match self.tenants[tenant].renames {
                true => name(&format!("x{}", specs.len())),
                false => name(&format!("t{tenant}")),
            };
            // Without quotas a tier goes before any share; with them it is nobody's business but the tenant's.
            if self.has_quotas {
                let tiers = [PriorityTier::Free, PriorityTier::Batch, PriorityTier::Standard];
                draft.tier = tiers[random.below(3) as usize];
            }
            specs.push(draft.check().unwrap());
        }
        specs
    }

    fn is_below(&self, tenant: usize, above: usize) -> bool {
        tenant == above || self.tenants[tenant].parent.is_some_and(|parent| self.is_below(parent, above))
    }

    /// Siblings stand within one gang of each other.
    fn check(&self, used: &BTreeMap<usize, u64>) {
        let own = |tenant: usize| used.get(&tenant).copied().unwrap_or(0);
        let all = 0..self.tenants.len();
        let submits_below =
            |above: usize| all.clone().any(|n| self.tenants[n].submits && self.is_below(n, above));
        for above in all.clone().map(Some).chain([None]) {
            let mut seats: Vec<(u64, u64)> = Vec::new();
            for child in all.clone().filter(|n| self.tenants[*n].parent == above && submits_below(*n)) {
                let used = all.clone().filter(|n| self.is_below(*n, child)).map(own).sum();
                seats.push((used, self.tenants[child].weight));
            }
            if let Some(above) = above.filter(|above| self.tenants[*above].submits) {
                seats.push((own(above), 1));
            }
            for (used, weight) in &seats {
                for (other, other_weight) in &seats {
                    // used / weight - other / other_weight <= GANG_MAX / weight
                    let (ahead, behind) = (used * other_weight, other * weight);
                    assert!(
                        ahead <= behind + GANG_MAX * other_weight,
                        "below {above:?}: {used} for weight {weight} and {other} for weight {other_weight}"
                    );
                }
            }
        }
    }
}

fn submit(speculation: &mut Speculation, n: &mut u128, specs: &[JobSpec]) {
    for specs in specs.chunks(limits::BATCH_JOBS_MAX) {
        *n += 1;
        let jobs = Submission::plain(specs.to_vec());
        handle(speculation, &Command::submit(request(*n), jobs)).unwrap();
        speculation.take_round();
    }
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let world = World::random(&mut random);
    let (mut speculation, _) = founded();
    let policy = Box::new(world.policy().check().unwrap());
    let set = Command::SetPolicy {
        request: request(1),
        by: muster_types::Requester::default(),
        policy,
        expected_version: None,
    };
    handle(&mut speculation, &set).unwrap();
    for n in 0..HOSTS {
        let spec =
            node_spec(&format!("n{n:02}"), "eu", "c1", Some(accelerators("h100", HOST_DEVICES as u16)));
        let command = Command::Register { spec, holder: holder(1), other_session_is_over: false };
        handle(&mut speculation, &command).unwrap();
    }
    speculation.take_round();
    let mut n = 1;
    for tenant in 0..world.tenants.len() {
        if world.tenants[tenant].submits {
            let jobs = world.jobs(&mut random, tenant);
            submit(&mut speculation, &mut n, &jobs);
        }
    }
    let mut used: BTreeMap<usize, u64> = BTreeMap::new();
    // As far as every gang still fits.
    let most = HOSTS * HOST_DEVICES * 3 / 4;
    schedule(&mut speculation, &mut Budget::new(1_000_000));
    let round = speculation.take_round().unwrap();
    let tenant_of = |job: &JobId| -> usize {
        let spec = speculation.state().spec(*job).unwrap();
        match spec.tenant.as_str().split_at(1) {
            ("x", _) => world.tenants.len() - 1,
            (_, number) => number.parse().unwrap(),
        }
    };
    for decision in &round.decisions {
        let Decision::GangPlaced { job, workers } = decision else { continue };
        let devices: u64 = workers.iter().map(|slot| u64::from(slot.devices.count())).sum();
        if used.values().sum::<u64>() + devices > most {
            return;
        }
        *used.entry(tenant_of(job)).or_default() += devices;
        world.check(&used);
    }
    panic!("seed {seed}: not enough was placed");
}

#[test]
fn siblings_stay_within_one_gang_of_each_other() {
    for seed in 0..32 {
        run(seed);
    }
}
