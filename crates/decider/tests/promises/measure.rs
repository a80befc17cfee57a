//! What is looked at while time passes: evictions with the standings at that moment, and waits.

use std::collections::{BTreeMap, BTreeSet};

use muster_decider::explain_job;
use muster_journal::{Decision, RearrangeCause};
use muster_state::Phase;
use muster_types::{JobId, Name, NodeId};

use crate::book::{Book, Side};
use crate::drive::{Drive, LAUNCH_MS};
use crate::world::{SECOND, name};

/// Looks on.
pub trait Observer {
    /// Right before a decision takes effect.
    fn before(&mut self, _drive: &Drive<'_>, _decision: &Decision) {}
    /// A pass over the queue is complete.
    fn passed(&mut self, _drive: &Drive<'_>) {}
    /// Everything of one moment has happened.
    fn moment(&mut self, _drive: &Drive<'_>) {}
}

/// Looks at nothing.
pub struct NullObserver;

impl Observer for NullObserver {}

impl<A: Observer, B: Observer> Observer for (A, B) {
    fn before(&mut self, drive: &Drive<'_>, decision: &Decision) {
        self.0.before(drive, decision);
        self.1.before(drive, decision);
    }

    fn passed(&mut self, drive: &Drive<'_>) {
        self.0.passed(drive);
        self.1.passed(drive);
    }

    fn moment(&mut self, drive: &Drive<'_>) {
        self.0.moment(drive);
        self.1.moment(drive);
    }
}

/// Every eviction by policy, held against the book; and every placement that cannot be taken back.
#[derive(Default)]
pub struct Evictions {
    /// Gangs stopped for others.
    pub count: u64,
    /// Of these, by whom policy would not have let them.
    pub wrong: Vec<String>,
    /// Gangs placed that borrow and may not be preempted.
    pub untouchable: Vec<String>,
}

impl Observer for Evictions {
    fn before(&mut self, drive: &Drive<'_>, decision: &Decision) {
        match decision {
            Decision::Rearranged { stops, promises } => {
                let claimants: BTreeSet<JobId> = stops
                    .iter()
                    .filter_map(|stop| match stop.cause {
                        RearrangeCause::Preempted { by } => Some(by),
                        _ => None,
                    })
                    .collect();
                for by in claimants {
                    // One that goes on with fewer workers gave the rest up for the claimant.
                    let victims: Vec<JobId> = stops
                        .iter()
                        .filter(|stop| {
                            stop.cause == RearrangeCause::Preempted { by }
                                || stop.cause == RearrangeCause::Resized
                        })
                        .map(|stop| stop.job)
                        .collect();
                    let resized = stops.iter().filter(|stop| stop.cause == RearrangeCause::Resized);
                    let resized = resized.map(|stop| stop.job).collect();
                    self.count += victims.len() as u64;
                    let promised =
                        promises.iter().find(|promise| promise.job == by).expect("who claims is promised");
                    self.look_at(drive, (by, promised.workers.len()), &victims, resized);
                }
            }
            Decision::GangPlaced { job, workers } => {
                let spec = drive.replica.spec(*job).expect("a placed job has a spec");
                if spec.preemptible {
                    return;
                }
                let book = Book::of(&drive.replica);
                let plan = drive.plan(*job);
                let milli = workers.len() as u64 * u64::from(plan.devices) * 1_000;
                let kind = name(plan.kind);
                // What was promised to it is counted already.
                let counted = if book.gang(*job).is_some() { 0 } else { milli };
                if !book.stays_within(&spec.tenant, &kind, counted, &[]) {
                    self.untouchable.push(format!(
                        "{} borrows and may not be preempted; {}",
                        plan.name,
                        drive.tail()
                    ));
                }
            }
            _ => {}
        }
    }
}

impl Evictions {
    fn look_at(
        &mut self,
        drive: &Drive<'_>,
        (by, workers): (JobId, usize),
        victims: &[JobId],
        resized: BTreeSet<JobId>,
    ) {
        let mut book = Book::of(&drive.replica);
        book.resized = resized;
        let spec = drive.replica.spec(by).expect("a claimant has a spec");
        let plan = drive.plan(by);
        let milli = workers as u64 * u64::from(plan.devices) * 1_000;
        if let Err(why) = book.may_stop(spec, &name(plan.kind), milli, victims, Some(drive.log_time())) {
            let victims: Vec<String> = victims.iter().map(|job| drive.label(*job)).collect();
            self.wrong.push(format!("{} stops {}: {why}; {}", plan.name, victims.join(" "), drive.tail()));
        }
    }
}

/// How long work that could be within nominal waits.
#[derive(Default)]
pub struct Guarantee {
    /// Since when each job that waits could have had its place within nominal, had nobody borrowed.
    since: BTreeMap<usize, u64>,
    /// Waits that were looked at.
    pub looked_at: BTreeSet<usize>,
    /// The longest, and by how much it is beyond the bound.
    pub worst_ms: u64,
    pub broken: Vec<String>,
}

/// What a promised start may take: the borrowers' minimum run, their grace, the launch, and two looks at the
/// clock.
pub fn bound_ms(drive: &Drive<'_>) -> u64 {
    let grace = drive.world.jobs.iter().map(|job| job.grace_ms).max().unwrap_or(0);
    drive.world.policy.preemption.minimum_run_ms
        + grace
        + LAUNCH_MS
        + 2 * drive.world.tick_ms.max(10 * SECOND)
}

impl Observer for Guarantee {
    fn moment(&mut self, drive: &Drive<'_>) {
        // Waits are told by the minute: the leader's looks at the clock are enough.
        if !drive.now_ms.is_multiple_of(drive.world.tick_ms) {
            return;
        }
        let waiting: Vec<usize> = drive.open.iter().copied().filter(|place| drive.waits(*place)).collect();
        if waiting.is_empty() {
            self.since.clear();
            return;
        }
        let book = Book::of(&drive.replica);
        // Cheap questions first: who would be within nominal at all.
        let claims: Vec<usize> =
            waiting.into_iter().filter(|place| could_be_within(drive, &book, *place, &[])).collect();
        let mut due = BTreeSet::new();
        for place in &claims {
            let others: Vec<usize> = claims.iter().copied().filter(|other| other != place).collect();
            // Behind a gang that is within nominal as well, waits for longer and has no hosts it waits as in strict order:
            // for nobody who borrows. What that may take is the bound on waits of gangs, not this one.
            let at_ms = |place: usize| drive.world.jobs[place].at_ms;
            let is_before = |other: &&usize| at_ms(**other) < at_ms(*place);
            if others.iter().filter(is_before).any(|other| !has_hosts(drive, &book, *other, &[])) {
                continue;
            }
            if could_be_within(drive, &book, *place, &others) && has_hosts(drive, &book, *place, &others) {
                due.insert(*place);
            }
        }
        self.since.retain(|place, _| due.contains(place));
        for place in due {
            let since = *self.since.entry(place).or_insert(drive.now_ms);
            let waited = drive.now_ms - since;
            self.looked_at.insert(place);
            self.worst_ms = self.worst_ms.max(waited);
            // Once is enough: the rest of its wait says nothing new.
            if waited > bound_ms(drive) && self.broken.len() < 100 {
                let plan = &drive.world.jobs[place];
                let why = explain(drive, &book, place);
                let text = format!("has waited {} s within nominal: {plan:?}; {why}", waited / SECOND);
                if !self.broken.iter().any(|known| known.starts_with(&format!("{} ", plan.name))) {
                    self.broken.push(format!("{} {text}; {}", plan.name, drive.tail()));
                }
            }
        }
    }
}

/// What the scheduler says of a job that waits, and who could be stopped for it by the book.
pub fn explain(drive: &Drive<'_>, book: &Book, place: usize) -> String {
    let job = drive.records[place].id.expect("who waits was admitted");
    let now = drive.log_time();
    let explained =
        explain_job(&drive.replica, now, job, &Default::default()).map_or(String::new(), |e| e.to_string());
    let plan = &drive.world.jobs[place];
    let spec = drive.replica.spec(job).expect("a spec");
    let may = |gang: &&crate::book::Gang| {
        book.may_stop(spec, &name(plan.kind), plan.device_count() * 1_000, &[gang.job], None).is_ok()
    };
    let victims: Vec<String> = book.gangs.iter().filter(may).map(|gang| drive.label(gang.job)).collect();
    format!("the scheduler says {explained}; by the book these may be stopped: {}", victims.join(" "))
}

/// Whether a job and these others would all be within nominal at every tenant above it, together with all that runs
/// and does not borrow from them.
fn could_be_within(drive: &Drive<'_>, book: &Book, place: usize, others: &[usize]) -> bool {
    let plan = &drive.world.jobs[place];
    let (tenant, kind) = (name(&plan.tenant), name(plan.kind));
    let wanted = |place: &usize| drive.world.jobs[*place].device_count() * 1_000;
    book.path(&tenant).into_iter().all(|node| {
        let wanted_by_others: u64 = others
            .iter()
            .filter(|other| {
                let plan = &drive.world.jobs[**other];
                name(plan.kind) == kind && book.path(&name(&plan.tenant)).contains(&node)
            })
            .map(wanted)
            .sum();
        // What its siblings borrow of a quota above can be taken back from them.
        book.unborrowed(node, &kind) + wanted_by_others + wanted(&place)
            <= book.nominal_of(Side::Subtree(node), &kind)
    })
}

/// Whether a job would have a place for each of its workers if everybody were gone who may be stopped for it,
/// wherever these others go, and however badly for it.
fn has_hosts(drive: &Drive<'_>, book: &Book, place: usize, others: &[usize]) -> bool {
    let plan = &drive.world.jobs[place];
    let spec = plan.spec(crate::drive::EPOCH);
    let kind = name(plan.kind);
    let taken = devices_taken(drive, book, &spec, &kind, plan.device_count() * 1_000);
    let mut places = 0;
    for (id, row) in drive.replica.nodes().iter() {
        let has = row
            .spec
            .accelerators
            .as_ref()
            .filter(|has| has.kind == kind)
            .map_or(0, |has| u64::from(has.count));
        let taken = taken.get(id).copied().unwrap_or(0);
        // A slice needs its shape: nobody may be in its pod at all.
        if plan.slice.is_some() && has > 0 && (taken > 0 || !row.is_placeable()) {
            return false;
        }
        if row.is_placeable() {
            places += has.saturating_sub(taken) / u64::from(plan.devices);
        }
    }
    let same_kind =
        others.iter().map(|other| &drive.world.jobs[*other]).filter(|other| other.kind == plan.kind);
    let lost: u64 = same_kind
        .map(|other| u64::from(other.workers) * u64::from(other.devices.div_ceil(plan.devices)))
        .sum();
    places >= lost + u64::from(plan.workers)
}

/// By host, devices of those who could not be stopped for this claimant, and devices that are promised.
fn devices_taken(
    drive: &Drive<'_>,
    book: &Book,
    claimant: &muster_types::JobSpec,
    kind: &Name,
    milli: u64,
) -> BTreeMap<NodeId, u64> {
    let mut taken = BTreeMap::new();
    for (job, row) in drive.replica.jobs().iter() {
        let stays = matches!(row.phase, Phase::Starting | Phase::Running)
            && book.may_stop(claimant, kind, milli, &[*job], None).is_err();
        let promised = row.promise.iter().flat_map(|promise| &promise.slots);
        let held = row.placement.iter().filter(|_| stays).flat_map(|placement| &placement.slots);
        for slot in promised.chain(held) {
            *taken.entry(slot.node).or_default() += u64::from(slot.devices.count());
        }
    }
    taken
}
