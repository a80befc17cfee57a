//! Small worlds with random trees of tenants, in which everything that the scheduler decides about quotas and
//! evictions is worked out a second time, and everything that it leaves undone.

use muster_journal::Decision;
use muster_state::Phase;
use muster_types::policy::{NonPreemptible, Order, PolicyDraft, TenantPolicy, TenantRights, UNLISTED_TENANT};
use muster_types::{JobId, LogIndex, PriorityTier};

use crate::book::Book;
use crate::drive::Drive;
use crate::measure::{Evictions, Observer, explain};
use crate::random::Random;
use crate::seeds;
use crate::world::{HOUR, JobPlan, MINUTE, SECOND, World, hosts, name, quota};

/// Most gangs of which every set is tried.
const TRIED_MAX: usize = 12;

fn small_tree(seed: u64) -> World {
    let mut random = Random::new(seed ^ 0x77ee);
    let count = 2 + random.below(2) as usize;
    let devices = count as u64 * 4;
    let mut policy = PolicyDraft::default();
    policy.order.order = if random.once_in(2) { Order::Submission } else { Order::Predicted };
    policy.order.fair_share = random.once_in(2);
    policy.backfill.reservations_max = 0;
    policy.preemption.minimum_run_ms = 0;
    policy.preemption.defragment = false;
    let mut left = devices;
    let mut tenants = Vec::new();
    for top in 0..2 + random.below(2) {
        let top = format!("top-{top}");
        let nominal = random.below(left + 1);
        left -= nominal;
        let stated = random.below(4) > 0;
        policy.tenants.insert(name(&top), random_tenant(&mut random, None, stated.then_some(nominal)));
        let mut below = nominal;
        for child in 0..random.below(3) {
            let child = format!("{top}-{child}");
            let nominal = random.below(below + 1);
            below -= nominal;
            let stated = random.below(4) > 0;
            policy
                .tenants
                .insert(name(&child), random_tenant(&mut random, Some(&top), stated.then_some(nominal)));
            tenants.push(child);
        }
        tenants.push(top);
    }
    tenants.push("stranger".into());
    // Work that must not be stopped is held to nominal, whoever's it is.
    let rights = TenantRights {
        tier_max: Some(PriorityTier::Production),
        non_preemptible: Some(NonPreemptible::WithinNominal),
        deadlines: None,
        bookings: None,
        purchases: muster_types::PurchaseSet::EMPTY,
        negative_nice: None,
    };
    policy.tenants.entry(name(UNLISTED_TENANT)).or_default();
    policy.tenants.values_mut().for_each(|tenant| tenant.rights = rights);
    let mut world = World::new(seed, hosts("h100", count, 4), policy);
    world.horizon_ms = 2 * HOUR;
    world.tick_ms = 30 * SECOND;
    for n in 0..40 {
        let tenant = random.pick(&(0..tenants.len()).collect::<Vec<_>>()).unwrap();
        let tier = PriorityTier::ALL[random.below(4) as usize];
        let devices = 1 + random.below(4) as u16;
        let at = random.below(90 * MINUTE);
        let mut job =
            JobPlan::new(at, &format!("job-{n}"), &tenants[tenant], "h100").gang(1, devices).tier(tier);
        job.grace_ms = 5 * SECOND;
        job.preemptible = !random.once_in(5);
        world.submit(job.runs(5 * MINUTE + random.below(40 * MINUTE), true));
    }
    world.sorted()
}

fn random_tenant(random: &mut Random, parent: Option<&str>, nominal: Option<u64>) -> TenantPolicy {
    let mut tenant = TenantPolicy { parent: parent.map(name), ..TenantPolicy::default() };
    if let Some(nominal) = nominal {
        let mut quota = quota("h100", nominal);
        quota.borrowing_limit_milli = random.once_in(4).then(|| random.below(5) * 1_000);
        quota.lending_limit_milli = random.once_in(4).then(|| random.below(nominal + 1) * 1_000);
        tenant.quotas.push(quota);
    }
    tenant
}

/// What was placed against the quotas, and what could have been done and was not.
#[derive(Default)]
struct Undone {
    /// The position after the last pass, and the last that was looked at.
    seen: LogIndex,
    settled: LogIndex,
    looked_at: u64,
    /// Placements that a quota forbids.
    forbidden: Vec<String>,
    /// Jobs that wait though they fit.
    idle: Vec<String>,
    /// Jobs that wait though others may be stopped for them.
    unasked: Vec<String>,
}

impl Observer for Undone {
    fn before(&mut self, drive: &Drive<'_>, decision: &Decision) {
        let Decision::GangPlaced { job, .. } = decision else { return };
        let plan = drive.plan(*job);
        let book = Book::of(&drive.replica);
        // What was promised to it is counted already, and was looked at then.
        let is_new = book.gang(*job).is_none();
        let milli = plan.device_count() * 1_000;
        if is_new
            && let Err(why) = book.admits(&name(&plan.tenant), &name(plan.kind), milli, capacity(drive), &[])
        {
            self.forbidden.push(format!("{} of {}: {why}; {}", plan.name, plan.tenant, drive.tail()));
        }
    }

    fn passed(&mut self, drive: &Drive<'_>) {
        // A pass that changed nothing has offered everybody what there is now.
        let at = drive.replica.log_index();
        let is_quiet = std::mem::replace(&mut self.seen, at) == at;
        let stopping = drive.replica.stopping().next().is_some();
        if !is_quiet || stopping || drive.replica.promised().next().is_some() || self.settled == at {
            return;
        }
        self.settled = at;
        let book = Book::of(&drive.replica);
        for place in drive.open.iter().filter(|place| drive.waits(**place)) {
            self.looked_at += 1;
            self.look_at(drive, &book, *place);
        }
    }
}

impl Undone {
    fn look_at(&mut self, drive: &Drive<'_>, book: &Book, place: usize) {
        let plan = &drive.world.jobs[place];
        let job = drive.records[place].id.expect("who waits was admitted");
        let spec = drive.replica.spec(job).expect("a spec");
        let (tenant, kind) = (name(&plan.tenant), name(plan.kind));
        let milli = plan.device_count() * 1_000;
        let fits = |stopped: &[JobId]| {
            hosts_fit(drive, plan, stopped)
                && book.admits(&tenant, &kind, milli, capacity(drive), stopped).is_ok()
                && (plan.preemptible || book.stays_within(&tenant, &kind, milli, stopped))
        };
        if fits(&[]) {
            self.idle.push(format!("{plan:?}; {}", drive.tail()));
            return;
        }
        let runs = |job: &JobId| {
            let phase = drive.replica.job(*job).map(|row| &row.phase);
            matches!(phase, Some(Phase::Starting | Phase::Running))
        };
        let candidates: Vec<JobId> = book.gangs.iter().map(|gang| gang.job).filter(runs).collect();
        // Each for itself: sets in which one may go only because another goes too are left out.
        let may_go = |job: &JobId| book.may_stop(spec, &kind, milli, &[*job], None).is_ok();
        let candidates: Vec<JobId> = candidates.into_iter().filter(may_go).collect();
        if candidates.len() > TRIED_MAX || !hosts_fit(drive, plan, &candidates) {
            return;
        }
        for mask in 1u32..1 << candidates.len() {
            let set: Vec<JobId> =
                (0..candidates.len()).filter(|at| mask & (1 << at) != 0).map(|at| candidates[at]).collect();
            if fits(&set) && book.may_stop(spec, &kind, milli, &set, None).is_ok() {
                let labels: Vec<String> = set.iter().map(|job| drive.label(*job)).collect();
                let (labels, why) = (labels.join(" "), explain(drive, book, place));
                self.unasked.push(format!("nobody stops {labels} for {plan:?}; {why}; {}", drive.tail()));
                return;
            }
        }
    }
}

fn capacity(drive: &Drive<'_>) -> u64 {
    drive.world.hosts.iter().map(|host| u64::from(host.device_count()) * 1_000).sum()
}

/// Whether one of the hosts holds a job of one worker once these are gone.
fn hosts_fit(drive: &Drive<'_>, plan: &JobPlan, stopped: &[JobId]) -> bool {
    drive.replica.nodes().iter().any(|(id, row)| {
        let freed: u64 = stopped
            .iter()
            .filter_map(|job| drive.replica.job(*job)?.placement.as_ref())
            .flat_map(|placement| placement.slots.iter().filter(|slot| slot.node == *id))
            .map(|slot| u64::from(slot.devices.count()))
            .sum();
        u64::from(row.free.devices.count()) + freed >= u64::from(plan.devices)
    })
}

#[test]
fn quotas_and_evictions_are_what_the_book_says() {
    let mut found: Vec<String> = Vec::new();
    let mut first = String::new();
    let (mut looked_at, mut evictions) = (0, 0);
    for seed in 0..seeds(5) {
        let world = small_tree(seed);
        let mut seen = (Undone::default(), Evictions::default());
        Drive::run(&world, &mut seen);
        let (undone, stopped) = seen;
        looked_at += undone.looked_at;
        evictions += stopped.count;
        let kinds = [
            ("forbidden by a quota", &undone.forbidden),
            ("idle", &undone.idle),
            ("unasked", &undone.unasked),
            ("wrong evictions", &stopped.wrong),
        ];
        for (what, texts) in kinds {
            if let Some(text) = texts.first() {
                found.push(format!("seed {seed}: {} {what}", texts.len()));
                first += &format!("{what}: {text}\n");
            }
        }
    }
    assert!(looked_at > 50 && evictions > 20, "worlds have something to look at: {looked_at}, {evictions}");
    assert!(
        found.is_empty(),
        "{} of {looked_at} waits, {evictions} evictions:\n{}\n{first}",
        found.len(),
        found.join("\n")
    );
}
