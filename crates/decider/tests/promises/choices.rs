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
//! - Purchases: a job may wait while nodes are free that were bought in another way. What holds is that it is on no other node, and
//!   takes its fallback after its wait, to which the books of the log hold every record (`drive`).
//! - Limits and budgets: a tenant may wait while it could be within nominal. What holds is that it has no more jobs placed, and none
//!   once its accelerator time or its dollars are used up; nobody is stopped for that.
//!
//! Schedules are not here: a leader's task makes their jobs, which these worlds do not have. The simulation has them.
//!
//! Once the choices are gone everybody is placed and ends, which `unrest` asserts.

use std::collections::BTreeMap;

use muster_journal::{Decision, WorkerSlot};
use muster_state::{Phase, State};
use muster_types::policy::{
    AcceleratorBudget, Policy, PolicyDraft, PolicyPart, Price, PurchaseKind, QueueChoices, QueueOrder,
    QueuePreemption, SpendBudget, TenantLimits,
};
use muster_types::{
    CapacityFallback, CapacityRules, JobId, LogIndex, LogTime, Name, NodeDraft, NodeRequirements, NodeSpec,
    PriorityTier,
};

use crate::drive::Drive;
use crate::measure::Observer;
use crate::random::Random;
use crate::world::{Act, MINUTE, World, name};

/// Choices that were met by a placement in some world at least.
pub const MET: [&str; 6] =
    ["accelerator time", "dollars", "nodes", "placed jobs", "purchases", "strict order"];

/// Tenants for which something is chosen.
const CHOOSING: [&str; 5] = ["lab-a", "lab-b", "a-1", "a-2", "guest"];

/// A dollar for an hour of a device.
pub fn price() -> Price {
    Price {
        kind: name("h100"),
        region: None,
        micro_dollars_per_device_hour: 1_000_000,
        purchase: None,
        from: None,
        until: None,
        owned: None,
    }
}

/// A budget in dollars as one in hours, by [`price`].
fn as_hours(spend: SpendBudget) -> AcceleratorBudget {
    AcceleratorBudget { hours: spend.dollars, window_ms: spend.window_ms }
}

/// The fleet, of which the last host may be taken back by its owner, and the one before it is rented by the hour.
pub fn bought(mut fleet: Vec<NodeSpec>) -> Vec<NodeSpec> {
    for (host, how) in fleet.iter_mut().rev().zip([PurchaseKind::Spot, PurchaseKind::OnDemand]) {
        let mut draft = NodeDraft::clone(host);
        draft.labels.insert(name("purchase"), how.as_str().to_owned());
        *host = draft.check().expect("a node");
    }
    fleet
}

/// Some jobs that one host holds ask for hosts that may be taken back, and take those rented by the hour after a wait.
pub fn ask_for_purchases(world: &mut World, random: &mut Random) {
    for job in world.jobs.iter_mut().filter(|job| job.workers == 1) {
        if !random.once_in(4) {
            continue;
        }
        let after_ms = (5 + random.below(25)) * MINUTE;
        let purchases = [PurchaseKind::OnDemand].into_iter().collect();
        job.capacity = Some(CapacityRules {
            purchases: [PurchaseKind::Spot].into_iter().collect(),
            fallback: Some(CapacityFallback { purchases, after_ms, is_open: false }),
            interruptions_milli_max: None,
        });
    }
}

/// The first hosts of the fleet.
fn some_hosts(count: usize) -> NodeRequirements {
    let only = (0..count).map(|host| name(&format!("h100-{host}"))).collect();
    NodeRequirements { only, ..NodeRequirements::default() }
}

fn queue(random: &mut Random) -> QueueChoices {
    let preemption =
        [None, Some(QueuePreemption::None), Some(QueuePreemption::Reclaim), Some(QueuePreemption::FairShare)];
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
    let spend = SpendBudget { dollars: 1, window_ms: (30 + random.below(120)) * MINUTE };
    TenantLimits {
        running_jobs: random.once_in(2).then(|| 1 + random.below(4) as u32),
        accelerator_hours: random.once_in(2).then_some(budget),
        spend: random.once_in(3).then(|| SpendBudget { dollars: 2 + random.below(6) as u32, ..spend }),
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
    let spend = Some(SpendBudget { dollars: 8, window_ms: 60 * MINUTE });
    change("a-2", QueueChoices::default(), TenantLimits { spend, ..TenantLimits::default() });
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

/// What a tenant has used of a budget in the present window.
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
    used: BTreeMap<(Name, &'static str), Used>,
    until: LogTime,
}

impl Observer for Choices {
    fn before(&mut self, drive: &Drive<'_>, decision: &Decision) {
        self.charge(&drive.replica, drive.log_time());
        match decision {
            Decision::GangPlaced { job, workers } => {
                self.on_its_nodes(drive, *job, workers);
                if drive.plan(*job).capacity.is_some() {
                    self.note(drive, "purchases", None);
                }
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
                let holds = row.promise.is_some() || matches!(row.phase, Phase::Starting | Phase::Running);
                holds && *other != job
            };
            let is_its_own = |other: &&JobId| state.spec(**other).is_some_and(|spec| spec.tenant == *tenant);
            let placed = state.jobs().iter().map(|(other, _)| other).filter(is_its_own);
            let placed = placed.filter(|other| is_placed(other)).count() as u64;
            let broken = (placed >= u64::from(most)).then(|| {
                format!("{} is placed next to {placed} of {tenant}, which may have {most}", drive.label(job))
            });
            self.note(drive, "placed jobs", broken);
        }
        for (what, budget) in budgets(&limits) {
            let Some(budget) = budget else { continue };
            let used = self.used.get(&(tenant.clone(), what)).map_or(0, |used| used.milli_ms);
            let broken = (used >= budget.milli_ms()).then(|| {
                format!("{} is placed, and {tenant} has used {used} of {budget:?}", drive.label(job))
            });
            self.note(drive, what, broken);
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
        let since = std::mem::replace(&mut self.until, now);
        for tenant in CHOOSING.map(name) {
            let limits = state.policy().policy.limits(&tenant);
            for (what, budget) in budgets(&limits) {
                let known = self.used.remove(&(tenant.clone(), what));
                let Some(budget) = budget else { continue };
                // A budget that is new, or has other windows, begins with nothing.
                let milli_ms = known.filter(|used| used.window_ms == budget.window_ms).map_or(0, |used| {
                    let window_start = budget.window_start(now);
                    let before = if window_start > since { 0 } else { used.milli_ms };
                    let ms = u128::from(now.since_ms(since.max(window_start)));
                    before + u128::from(charged_milli(state, &tenant)) * ms
                });
                self.used.insert((tenant.clone(), what), Used { window_ms: budget.window_ms, milli_ms });
            }
        }
    }
}

/// The budgets of a tenant, by what they are of.
fn budgets(limits: &TenantLimits) -> [(&'static str, Option<AcceleratorBudget>); 2] {
    [("accelerator time", limits.accelerator_hours), ("dollars", limits.spend.map(as_hours))]
}

/// What the jobs of a tenant are charged for at this moment.
fn charged_milli(state: &State, tenant: &Name) -> u64 {
    let is_its_own = |job: JobId| state.spec(job).is_some_and(|spec| spec.tenant == *tenant);
    let own = state.jobs().iter().filter(|(job, _)| is_its_own(**job));
    let charges = own.filter_map(|(_, row)| row.charge());
    charges.flat_map(|(_, charge)| &charge.devices_milli).map(|(_, milli)| *milli).sum()
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
