//! What a policy may choose for the queue of a tenant, and what it may limit: drawn for worlds that are about something else, and held
//! against every placement.
//!
//! What each choice takes from the promises, by decision:
//! - Strict order: G6 does not hold for `block_for`, since capacity stays idle behind the first that waits. What holds is that nobody
//!   of the tenant goes past it meanwhile.
//! - Preemption `none`: G1 does not hold for the tenant. What holds is that nobody is stopped for it (`book`).
//! - Preemption `fair_share`: G2 holds for work within nominal alone. What borrows may be stopped, by the parts (`book`).
//! - Nodes: a tenant may wait while other nodes are free. What holds is that it is on no other node, and that nodes which it keeps
//!   from others have nobody else's new work.
//! - Limits and budgets: a tenant may wait while it could be within nominal. What holds is that it has no more jobs placed, and none
//!   once its accelerator time is used up; nobody is stopped for that.
//!
//! Once the choices are gone everybody is placed and ends, which `unrest` asserts.

use std::collections::BTreeMap;

use muster_journal::{Decision, WorkerSlot};
use muster_state::{Phase, State};
use muster_types::policy::{
    AcceleratorBudget, Policy, PolicyDraft, PolicyPart, QueueChoices, QueueOrder, QueuePreemption,
    TenantLimits,
};
use muster_types::{JobId, LogIndex, LogTime, Name, NodeRequirements, PriorityTier};

use crate::drive::Drive;
use crate::measure::Observer;
use crate::random::Random;
use crate::world::{Act, MINUTE, World, name};

/// Choices that were met by a placement in some world at least.
pub const MET: [&str; 4] = ["accelerator time", "nodes", "placed jobs", "strict order"];

/// Tenants for which something is chosen.
const CHOOSING: [&str; 5] = ["lab-a", "lab-b", "a-1", "a-2", "guest"];

/// The first hosts of the fleet.
fn some_hosts(count: usize) -> NodeRequirements {
    let only = (0..count).map(|host| name(&format!("h100-{host}"))).collect();
    NodeRequirements { only, ..NodeRequirements::default() }
}

fn queue(random: &mut Random) -> QueueChoices {
    let preemption = [
        None,
        Some(QueuePreemption::None),
        Some(QueuePreemption::Reclaim),
        Some(QueuePreemption::FairShare),
    ];
    let nodes = random.once_in(3).then(|| some_hosts(2 + random.below(2) as usize));
    QueueChoices {
        order: random.once_in(2).then_some(QueueOrder::Strict),
        block_for_ms: random.once_in(2).then(|| (5 + random.below(60)) * MINUTE),
        preemption: preemption[random.below(4) as usize],
        isolated: nodes.is_some().then(|| random.once_in(2)),
        nodes,
    }
}

fn limits(random: &mut Random) -> TenantLimits {
    let hours = 2 + random.below(6) as u32;
    let budget = AcceleratorBudget { hours, window_ms: (30 + random.below(120)) * MINUTE };
    TenantLimits {
        running_jobs: random.once_in(2).then(|| 1 + random.below(4) as u32),
        accelerator_hours: random.once_in(2).then_some(budget),
        ..TenantLimits::default()
    }
}

/// Chooses something for one tenant of a policy. The answer is which tenant that is.
pub fn choose(random: &mut Random, policy: &mut PolicyDraft) -> Name {
    let whose = name(CHOOSING[random.below(CHOOSING.len() as u64) as usize]);
    if let Some(tenant) = policy.tenants.get_mut(&whose) {
        match random.below(3) {
            0 => tenant.limits = limits(random),
            1 => tenant.queue = queue(random),
            _ => (tenant.queue, tenant.limits) = (queue(random), limits(random)),
        }
    }
    whose
}

/// What guests choose for themselves, of what takes nothing from others.
pub fn of_guests(random: &mut Random) -> QueueChoices {
    QueueChoices {
        order: random.once_in(2).then_some(QueueOrder::Strict),
        block_for_ms: Some(5 * MINUTE),
        preemption: random.once_in(2).then_some(QueuePreemption::None),
        ..QueueChoices::default()
    }
}

/// Choices that every one of these worlds begins with, so that each of [`MET`] is met.
pub fn begin_with(policy: &mut PolicyDraft) {
    let mut change = |tenant: &str, queue: QueueChoices, limits: TenantLimits| {
        if let Some(tenant) = policy.tenants.get_mut(&name(tenant)) {
            (tenant.queue, tenant.limits) = (queue, limits);
        }
    };
    let strict = QueueChoices { order: Some(QueueOrder::Strict), ..QueueChoices::default() };
    let evening_out =
        QueueChoices { preemption: Some(QueuePreemption::FairShare), ..QueueChoices::default() };
    let on_some =
        QueueChoices { nodes: Some(some_hosts(2)), isolated: Some(false), ..QueueChoices::default() };
    let limits = TenantLimits {
        running_jobs: Some(3),
        accelerator_hours: Some(AcceleratorBudget { hours: 8, window_ms: 60 * MINUTE }),
        ..TenantLimits::default()
    };
    change("lab-b", strict, TenantLimits::default());
    change("guest", on_some, TenantLimits::default());
    change("a-1", evening_out, limits);
}

/// Parts of the policy that are set by themselves meanwhile: one tenant with other choices, or the reservations.
pub fn updates(world: &mut World, random: &mut Random, peace: &PolicyDraft, until_ms: u64) {
    let mut at = 15 * MINUTE;
    while at < until_ms {
        let mut given = peace.clone();
        let part = if random.once_in(4) {
            given.backfill.reservations_max = random.below(3) as u32;
            PolicyPart::Backfill
        } else {
            PolicyPart::Tenant(choose(random, &mut given))
        };
        world.acts.push((at, Act::UpdatePolicy { given: Box::new(given), part }));
        at += 10 * MINUTE + random.below(20 * MINUTE);
    }
}

/// The first of a tenant's queue when a pass over it was complete, with what it was like.
#[derive(Clone, Copy, PartialEq, Eq)]
struct First {
    job: JobId,
    changed_at: LogIndex,
    policy: LogIndex,
}

/// What a tenant has used of its accelerator time in the present window.
struct Used {
    window_ms: u64,
    milli_ms: u128,
}

/// Holds every placement against the choices of its tenant.
#[derive(Default)]
pub struct Choices {
    /// How many placements each choice said something of.
    pub met: BTreeMap<&'static str, u64>,
    pub wrong: Vec<String>,
    firsts: BTreeMap<Name, First>,
    used: BTreeMap<Name, Used>,
    until: LogTime,
}

impl Observer for Choices {
    fn before(&mut self, drive: &Drive<'_>, decision: &Decision) {
        self.charge(&drive.replica, drive.log_time());
        match decision {
            Decision::GangPlaced { job, workers } => {
                self.on_its_nodes(drive, *job, workers);
                // Capacity that was promised is had whatever was chosen since.
                if drive.replica.job(*job).is_some_and(|row| row.promise.is_none()) {
                    self.within_limits(drive, *job);
                    self.behind_nobody(drive, *job);
                }
            }
            Decision::Rearranged { promises, .. } => {
                promises.iter().for_each(|promise| self.on_its_nodes(drive, promise.job, &promise.workers));
            }
            _ => {}
        }
    }

    fn passed(&mut self, drive: &Drive<'_>) {
        let state = &drive.replica;
        let policy = &state.policy().policy;
        let tenants = CHOOSING.into_iter().map(name);
        let strict = tenants.filter(|tenant| policy.queue_order(tenant) == QueueOrder::Strict);
        self.firsts = strict.filter_map(|tenant| Some((tenant.clone(), first(state, &tenant)?))).collect();
    }
}

impl Choices {
    fn note(&mut self, drive: &Drive<'_>, what: &'static str, broken: Option<String>) {
        *self.met.entry(what).or_default() += 1;
        self.wrong.extend(broken.map(|text| format!("{what}: {text}; {}", drive.tail())));
    }

    /// A tenant runs on its nodes, and on none that another keeps for itself.
    fn on_its_nodes(&mut self, drive: &Drive<'_>, job: JobId, workers: &[WorkerSlot]) {
        let state = &drive.replica;
        let (Some(spec), policy) = (state.spec(job), &state.policy().policy) else { return };
        if policy.tenants.values().all(|tenant| tenant.queue.nodes.is_none()) {
            return;
        }
        let mut hosts = workers.iter().filter_map(|slot| state.node(slot.node)).map(|row| &row.spec.name);
        let closed = hosts.find(|host| !is_open(policy, host, &spec.tenant));
        let broken = closed.map(|host| format!("{} of {} is on {host}", drive.label(job), spec.tenant));
        self.note(drive, "nodes", broken);
    }

    fn within_limits(&mut self, drive: &Drive<'_>, job: JobId) {
        let state = &drive.replica;
        let Some(spec) = state.spec(job) else { return };
        let (tenant, limits) = (&spec.tenant, state.policy().policy.limits(&spec.tenant));
        if let Some(most) = limits.running_jobs {
            let is_placed = |other: &JobId| {
                let Some(row) = state.job(*other) else { return false };
                *other != job && (row.promise.is_some() || matches!(row.phase, Phase::Starting | Phase::Running))
            };
            let is_its_own = |other: &&JobId| state.spec(**other).is_some_and(|spec| spec.tenant == *tenant);
            let placed = state.jobs().iter().map(|(other, _)| other).filter(is_its_own);
            let placed = placed.filter(|other| is_placed(*other)).count() as u64;
            let broken = (placed >= u64::from(most)).then(|| {
                format!("{} is placed next to {placed} of {tenant}, which may have {most}", drive.label(job))
            });
            self.note(drive, "placed jobs", broken);
        }
        if let Some(budget) = limits.accelerator_hours {
            let used = self.used.get(tenant).map_or(0, |used| used.milli_ms);
            let broken = (used >= budget.milli_ms()).then(|| {
                format!("{} is placed, and {tenant} has used {used} of {budget:?}", drive.label(job))
            });
            self.note(drive, "accelerator time", broken);
        }
    }

    /// In strict order nobody goes past the first, which was the first in the pass before already and has changed in nothing since.
    fn behind_nobody(&mut self, drive: &Drive<'_>, job: JobId) {
        let state = &drive.replica;
        let Some(tenant) = state.spec(job).map(|spec| spec.tenant.clone()) else { return };
        let policy = &state.policy().policy;
        if policy.queue_order(&tenant) != QueueOrder::Strict {
            return;
        }
        let known = self.firsts.get(&tenant).copied();
        let first = first(state, &tenant).filter(|first| first.job != job && known == Some(*first));
        let now = drive.log_time();
        let passed = first.filter(|first| {
            let row = state.job(first.job);
            let until = row.map(|row| row.submitted_at.plus_ms(policy.block_for_ms(&tenant)));
            // One that may not start whatever is free blocks nobody.
            let is_barred = state.is_user_at_limit(first.job)
                || state.is_held_by_limit(first.job)
                || state.spent_user_budget(first.job, now).is_some();
            until.is_some_and(|until| now < until) && !is_barred
        });
        let broken = passed
            .map(|first| format!("{} goes past {} of {tenant}", drive.label(job), drive.label(first.job)));
        self.note(drive, "strict order", broken);
    }

    /// Counts what was charged since the last decision, for tenants that have a budget.
    fn charge(&mut self, state: &State, now: LogTime) {
        let policy = &state.policy().policy;
        let since = std::mem::replace(&mut self.until, now);
        for tenant in CHOOSING.map(name) {
            let Some(budget) = policy.limits(&tenant).accelerator_hours else {
                self.used.remove(&tenant);
                continue;
            };
            let begins = Used { window_ms: budget.window_ms, milli_ms: 0 };
            // A budget that is new, or has other windows, begins with nothing.
            let known = self.used.remove(&tenant).filter(|used| used.window_ms == budget.window_ms);
            let Some(mut used) = known else {
                self.used.insert(tenant, begins);
                continue;
            };
            let window_start = budget.window_start(now);
            if window_start > since {
                used.milli_ms = 0;
            }
            let ms = u128::from(now.since_ms(since.max(window_start)));
            let own = state.jobs().iter().filter(|(job, _)| {
                state.spec(**job).is_some_and(|spec| spec.tenant == tenant)
            });
            let charges = own.filter_map(|(_, row)| row.charge());
            let milli: u64 =
                charges.flat_map(|(_, charge)| &charge.devices_milli).map(|(_, milli)| *milli).sum();
            used.milli_ms += u128::from(milli) * ms;
            self.used.insert(tenant, used);
        }
    }
}

/// The first job of a tenant that waits, of its highest tier.
fn first(state: &State, tenant: &Name) -> Option<First> {
    let mut tiers = PriorityTier::ALL.into_iter().rev();
    let (turn, _) = tiers.find_map(|tier| state.head_behind(tier, tenant, None))?;
    let changed_at = state.job(turn.job)?.changed_at;
    Some(First { job: turn.job, changed_at, policy: state.policy().version })
}

/// Whether a tenant's jobs may be on a host, by the names of hosts alone: these worlds state nodes by nothing else.
fn is_open(policy: &Policy, host: &Name, tenant: &Name) -> bool {
    let queues: Vec<(&Name, &QueueChoices)> = policy
        .ancestry(tenant)
        .filter_map(|above| Some((above, &policy.tenants.get(above)?.queue)))
        .collect();
    let own = queues.iter().find_map(|(_, queue)| queue.nodes.as_ref());
    let is_kept_from = policy.tenants.iter().any(|(holder, other)| {
        let keeps = other.queue.isolated == Some(true);
        let nodes = other.queue.nodes.as_ref().filter(|nodes| keeps && nodes.only.contains(host));
        nodes.is_some_and(|nodes| own != Some(nodes) && queues.iter().all(|(above, _)| *above != holder))
    });
    own.is_none_or(|nodes| nodes.only.contains(host)) && !is_kept_from
}
