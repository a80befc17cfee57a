//! G2, G6 and G7 while everything changes under gangs that wait, run and have reserved: the policy, the leader, hosts,
//! the leader's clock, and what people ask of jobs, arrays, nodes, the region and quotas: holds, suspensions, changes, throttles,
//! cordons, taints, bookings, maintenance, and grants that are asked for or given; and what the policy chooses of queues and limits
//! of tenants, which `choices` describes. Nobody is
//! stopped by who has no right to or cleared from a host where no operator asked for that, the state stays sound, no record is
//! refused, and once there is peace everybody runs to the end.

use std::collections::BTreeSet;

use muster_journal::{Decision, StopCause};
use muster_state::{RankState, State};
use muster_types::policy::{
    NonPreemptible, Order, PolicyDraft, TenantPolicy, TenantRights, Window, WindowPurpose, WindowScope,
};
use muster_types::{
    BookingClearing, Control, FieldChange, GroupSize, JobId, LogTime, NodeId, NodeRequirements, PriorityTier,
};

use crate::choices::{self, Choices, MET};
use crate::drive::{Drive, EPOCH};
use crate::measure::{Evictions, Observer};
use crate::random::Random;
use crate::seeds;
use crate::world::{Act, HOUR, JobPlan, MINUTE, SECOND, World, hosts, name, tenant};

const HOSTS: usize = 4;
const DEVICES: u16 = 8;
/// How many members each array has.
const MEMBERS: u32 = 12;

/// How long there is unrest, and by when everybody is to be done.
const UNREST_MS: u64 = 3 * HOUR;
const END_MS: u64 = 30 * HOUR;

/// What the leader's clock brings about is looked for once a minute here, and not every moment as by an engine.
const LATE_BY_THE_MINUTE: &str = "GRANT_OUTLIVED";

/// Looks at the state after every this many passes.
const LOOK_AFTER_PASSES: u64 = 16;

/// The policy in times of peace: two labs share the fleet, one has two teams, and there are guests.
fn peace(random: &mut Random) -> PolicyDraft {
    let mut policy = PolicyDraft::default();
    let half = HOSTS as u64 * u64::from(DEVICES) / 2;
    policy.preemption.minimum_run_ms = (1 + random.below(3)) * MINUTE;
    policy.order.order = if random.once_in(2) { Order::Submission } else { Order::Predicted };
    let rights = TenantRights {
        tier_max: Some(PriorityTier::Critical),
        non_preemptible: Some(NonPreemptible::WithinNominal),
        deadlines: Some(true),
        bookings: None,
        purchases: muster_types::PurchaseSet::EMPTY,
        negative_nice: None,
    };
    for (lab, parent, nominal) in [
        ("lab-a", None, half),
        ("lab-b", None, half),
        ("a-1", Some("lab-a"), half / 2),
        ("a-2", Some("lab-a"), half / 2),
    ] {
        policy.tenants.insert(name(lab), TenantPolicy { rights, ..tenant(parent, "h100", nominal) });
    }
    policy.tenants.insert(name("guest"), TenantPolicy { rights, ..TenantPolicy::default() });
    policy
}

/// The same policy but for one or two things.
fn changed(random: &mut Random, peace: &PolicyDraft, now: LogTime) -> PolicyDraft {
    let mut policy = peace.clone();
    for _ in 0..1 + random.below(2) {
        match random.below(10) {
            0 => policy.tenants.values_mut().for_each(|tenant| tenant.quotas.clear()),
            1 => {
                for tenant in policy.tenants.values_mut() {
                    tenant.quotas.iter_mut().for_each(|quota| quota.nominal_milli /= 2);
                }
            }
            2 => {
                policy.tenants.remove(&name("a-2"));
            }
            3 => {
                for tenant in policy.tenants.values_mut() {
                    tenant.quotas.iter_mut().for_each(|quota| quota.borrowing_limit_milli = Some(0));
                }
            }
            4 => {
                for tenant in policy.tenants.values_mut() {
                    tenant.quotas.iter_mut().for_each(|quota| quota.lending_limit_milli = Some(0));
                }
            }
            5 => policy.tenants.values_mut().for_each(|tenant| tenant.rights = TenantRights::default()),
            6 => policy.preemption.reclaim_borrowed = false,
            7 => policy.backfill.reservations_max = random.below(2) as u32,
            8 => (policy.backfill.reserve_after_ms, policy.backfill.reserve_after_runs_milli) = (0, 0),
            _ => {
                let purpose = if random.once_in(2) {
                    WindowPurpose::Maintenance
                } else {
                    WindowPurpose::ReservedFor { tenant: name("lab-b") }
                };
                let from = now.plus_ms(random.below(30) * MINUTE);
                policy.windows.push(Window {
                    name: name(&format!("w{}", policy.windows.len())),
                    from,
                    until: from.plus_ms(HOUR),
                    scope: WindowScope {
                        node: Some(name(&format!("h100-{}", random.below(HOSTS as u64)))),
                        ..WindowScope::default()
                    },
                    purpose,
                });
            }
        }
    }
    policy
}

fn world(seed: u64) -> World {
    let mut random = Random::new(seed ^ 0x0bad);
    // Choices are drawn apart: what else a seed stands for does not depend on them.
    let mut choosing = Random::new(seed ^ 0xc401ce);
    let mut plain = peace(&mut random);
    plain.prices.push(choices::price());
    let mut peace = plain.clone();
    if seed % 2 == 1 {
        choices::begin_with(&mut peace);
    }
    let mut world = World::new(seed, choices::bought(hosts("h100", HOSTS, DEVICES)), peace.clone());
    world.horizon_ms = END_MS;
    world.tick_ms = MINUTE;
    let tenants = ["lab-a", "lab-b", "a-1", "a-2", "guest", "stranger"];
    for n in 0..50 {
        let whose = tenants[random.below(tenants.len() as u64) as usize];
        let (workers, devices) =
            [(1, 1), (1, 1), (1, 2), (1, 4), (2, 4), (1, 8), (2, 8), (3, 8)][random.below(8) as usize];
        let at = random.below(UNREST_MS);
        let mut job = JobPlan::new(at, &format!("{whose}-{n}"), whose, "h100").gang(workers, devices);
        job = job.runs(5 * MINUTE + random.below(HOUR), random.once_in(2));
        job.grace_ms = SECOND + random.below(2 * MINUTE);
        job.checkpointed = random.once_in(2);
        // What must not be stopped never borrows: without nominal quota for it, it would wait for ever.
        let nominal = match whose {
            "lab-b" => HOSTS as u64 * u64::from(DEVICES) / 2,
            "a-1" | "a-2" => HOSTS as u64 * u64::from(DEVICES) / 4,
            _ => 0,
        };
        job.preemptible = job.device_count() > nominal || !random.once_in(3);
        job.tier = PriorityTier::ALL[random.below(PriorityTier::ALL.len() as u64) as usize];
        if workers > 1 && random.once_in(3) {
            job.workers_min = 1;
        }
        world.submit(job);
    }
    choices::ask_for_purchases(&mut world, &mut choosing);
    arrays(&mut world, &mut random);
    choices::updates(&mut world, &mut choosing, &peace, UNREST_MS);
    acts(&mut world, (&mut random, &mut choosing), (&peace, &plain));
    requeues(&mut world, &mut Random::new(seed ^ 0x4e90e));
    world.sorted()
}

/// Few jobs run at any moment: so often somebody is asked to begin again that some do.
fn requeues(world: &mut World, random: &mut Random) {
    for n in 1..UNREST_MS / (4 * MINUTE) {
        let job = random.below(world.jobs.len() as u64) as usize;
        let act = Act::Control { job, control: Control::Requeue, is_operator: true };
        world.acts.push((n * 4 * MINUTE, act));
    }
}

/// Arrays whose throttles keep members back for as long as there is unrest.
fn arrays(world: &mut World, random: &mut Random) {
    for (n, tenant) in ["lab-b", "guest"].into_iter().enumerate() {
        let at = n as u64 * 30 * MINUTE;
        for member in 0..MEMBERS {
            let mut job = JobPlan::new(at, &format!("sweep-{n}"), tenant, "h100");
            job = job.runs((10 + random.below(20)) * MINUTE, false);
            (job.members, job.throttle) = (if member == 0 { MEMBERS } else { 0 }, Some(1));
            world.submit(job);
        }
    }
}

/// Unrest, and peace at the end of it, without choices of queues and limits.
fn acts(
    world: &mut World,
    (random, choosing): (&mut Random, &mut Random),
    (peace, plain): (&PolicyDraft, &PolicyDraft),
) {
    let mut jumped = 0;
    let mut at = 10 * MINUTE;
    while at < UNREST_MS {
        let node = random.below(HOSTS as u64) as usize;
        let act = match random.below(12) {
            0..=4 => {
                let now = EPOCH.plus_ms(at + jumped);
                let mut policy = changed(random, peace, now);
                if choosing.once_in(2) {
                    choices::choose(choosing, &mut policy);
                }
                Act::SetPolicy { policy: Box::new(policy) }
            }
            5 => Act::SetPolicy { policy: Box::new(peace.clone()) },
            6 => Act::ChangeLeader,
            7 => {
                let ms = HOUR + random.below(12 * HOUR);
                jumped += ms;
                Act::Jump { ms }
            }
            8 | 9 => {
                world.acts.push((at + 5 * MINUTE + random.below(30 * MINUTE), Act::Return { node }));
                Act::Lose { node }
            }
            _ => {
                world.acts.push((at + 5 * MINUTE + random.below(HOUR), Act::EndDrain { node }));
                Act::Drain { node, deadline_ms: random.once_in(2).then_some(10 * MINUTE) }
            }
        };
        world.acts.push((at, act));
        at += random.below(25 * MINUTE);
    }
    orders(world, random);
    orders_of_operators(world, random);
    let end = UNREST_MS + 2 * HOUR;
    world.acts.push((end, Act::SetPolicy { policy: Box::new(plain.clone()) }));
    for booking in BOOKINGS.into_iter().chain([MAINTENANCE]) {
        world.acts.push((end, Act::Unbook { booking }));
    }
    for tenant in HELD {
        world.acts.push((end, Act::ReleaseFleet { tenant }));
    }
    for node in 0..HOSTS {
        world.acts.push((end, Act::Cordon { node, cordoned: false }));
        world.acts.push((end, Act::Taint { node, is_set: false }));
    }
    // The hold of an operator, and the one of the owner beneath it.
    for job in (0..world.jobs.len()).flat_map(|job| [job, job]) {
        world.acts.push((end, Act::Control { job, control: Control::Release, is_operator: true }));
    }
    world.acts.sort_by_key(|(at, _)| *at);
}

const BOOKINGS: [&str; 2] = ["exam", "course"];
const MAINTENANCE: &str = "upgrade";

/// What operators hold: the jobs of a tenant, or the region.
const HELD: [Option<&str>; 3] = [None, Some("lab-a"), Some("guest")];

/// What somebody asks for and gets in some world at least, by the names of the decisions.
const ASKED: [&str; 13] = [
    "array_throttle_set",
    "arrays_submitted",
    "booking_created",
    "booking_deleted",
    "fleet_hold_set",
    "job_hold_set",
    "job_modified",
    "job_requeue_requested",
    "node_cordon_set",
    "node_overrides_set",
    "quota_answered",
    "quota_granted",
    "quota_requested",
];

/// What people ask for meanwhile.
fn orders(world: &mut World, random: &mut Random) {
    let tenants = ["lab-a", "lab-b", "a-1", "a-2", "guest"];
    let mut at = 10 * MINUTE;
    while at < UNREST_MS {
        let job = random.below(world.jobs.len() as u64) as usize;
        let (tenant, booking) =
            (tenants[random.below(tenants.len() as u64) as usize], BOOKINGS[random.below(2) as usize]);
        let act = match random.below(12) {
            0..=4 => {
                let controls = [
                    Control::Hold,
                    Control::Release,
                    Control::Requeue,
                    Control::Suspend,
                    Control::Suspend,
                    Control::Cancel,
                ];
                let control = controls[random.below(controls.len() as u64) as usize];
                Act::Control { job, control, is_operator: random.once_in(3) }
            }
            5..=7 => {
                let tiers = PriorityTier::ALL;
                // One worker is fewer than most have, and no more than an elastic gang may go on with.
                let size = GroupSize { group: None, workers: 1, workers_min: None };
                let later = EPOCH.plus_ms(at + random.below(6 * HOUR));
                let change = match random.below(9) {
                    0 => FieldChange::Tier(tiers[random.below(tiers.len() as u64) as usize]),
                    1 => FieldChange::ExpectedRun(Some(MINUTE + random.below(3 * HOUR))),
                    2 => FieldChange::RunTimeLimit(Some(HOUR + random.below(3 * HOUR))),
                    3 => FieldChange::Nice(i8::try_from(random.below(101)).unwrap_or_default()),
                    4 => FieldChange::Front(None),
                    5 => FieldChange::NotBefore(random.once_in(2).then_some(later)),
                    6 => FieldChange::Deadline(random.once_in(2).then_some(later.plus_ms(6 * HOUR))),
                    7 => {
                        let exclude = [name(&format!("h100-{}", random.below(HOSTS as u64)))].into();
                        let nodes = NodeRequirements { exclude, ..NodeRequirements::default() };
                        FieldChange::Nodes(random.once_in(2).then(|| Box::new(nodes)))
                    }
                    _ => FieldChange::Groups(vec![size]),
                };
                Act::Modify { job, change }
            }
            8 | 9 => Act::Book {
                booking,
                tenant,
                hosts: 1 + random.below(2) as u32,
                length_ms: 2 * MINUTE + random.below(HOUR),
                clearing: BookingClearing::ALL[random.below(3) as usize],
            },
            10 => Act::Unbook { booking },
            _ => Act::Grant {
                tenant,
                devices: 1 + random.below(16),
                length_ms: MINUTE + random.below(2 * HOUR),
            },
        };
        world.acts.push((at, act));
        at += random.below(8 * MINUTE);
    }
}

/// What operators ask for meanwhile, and tenants of quota: one kind after the other, each at a time and with arguments of the seed.
fn orders_of_operators(world: &mut World, random: &mut Random) {
    let mut at = 10 * MINUTE;
    for kind in (0..8).cycle() {
        if at >= UNREST_MS {
            return;
        }
        let node = random.below(HOSTS as u64) as usize;
        let (tenant, length_ms) =
            (HELD[random.below(HELD.len() as u64) as usize], MINUTE + random.below(20 * MINUTE));
        let act = match kind {
            0 => Act::AskQuota {
                tenant: ["a-1", "guest"][random.below(2) as usize],
                devices: 1 + random.below(8),
                length_ms: HOUR + random.below(HOUR),
            },
            1 => {
                world.acts.push((at + length_ms, Act::Cordon { node, cordoned: false }));
                Act::Cordon { node, cordoned: true }
            }
            2 => Act::Throttle { throttle: 1 + random.below(2) as u32 },
            3 => Act::HoldFleet {
                tenant,
                length_ms: random.once_in(2).then_some(length_ms),
                // What runs is stopped by where it runs, and not by whose it is.
                stops_work: tenant.is_none() && random.once_in(2),
            },
            4 => Act::AnswerQuota { approved: !random.once_in(4) },
            5 => {
                world.acts.push((at + length_ms, Act::Taint { node, is_set: false }));
                Act::Taint { node, is_set: true }
            }
            6 => {
                world.acts.push((at + length_ms + 10 * MINUTE, Act::Unbook { booking: MAINTENANCE }));
                let node = (!random.once_in(3)).then_some(node);
                Act::Maintain { booking: MAINTENANCE, node, length_ms }
            }
            _ => Act::ReleaseFleet { tenant },
        };
        world.acts.push((at, act));
        at += 2 * MINUTE + random.below(6 * MINUTE);
    }
}

/// Every gang that is cleared from a host, held against what operators have asked for there.
#[derive(Default)]
struct Clearings {
    count: u64,
    wrong: Vec<String>,
}

impl Observer for Clearings {
    fn before(&mut self, drive: &Drive<'_>, decision: &Decision) {
        let Decision::GangStopRequested { job, cause: StopCause::Evicted { node }, .. } = decision else {
            return;
        };
        if has_lost_a_host(&drive.replica, *job) {
            return;
        }
        self.count += 1;
        if !is_to_be_cleared(&drive.replica, drive.log_time(), *job, *node) {
            let (whom, tail) = (drive.label(*job), drive.tail());
            self.wrong.push(format!("{whom} is cleared from {node}, and nobody asked for that; {tail}"));
        }
    }
}

fn has_lost_a_host(state: &State, job: JobId) -> bool {
    let placement = state.job(job).and_then(|row| row.placement.as_ref());
    placement.is_some_and(|placement| placement.ranks.contains(&RankState::Lost))
}

/// By a drain that is overdue, a booking, a window of the policy, or a hold that stops what runs.
fn is_to_be_cleared(state: &State, now: LogTime, job: JobId, node: NodeId) -> bool {
    let (Some(spec), Some(row)) = (state.spec(job), state.node(node)) else { return false };
    let policy = &state.policy().policy;
    let drain = state.restriction(node).and_then(|row| row.drain.as_ref());
    let is_overdue = drain.and_then(|drain| drain.deadline).is_some_and(|deadline| deadline <= now);
    let is_booked = state.bookings().any(|(name, booking)| {
        let is_there = booking.has_node(&row.spec.name)
            || booking.spec.part().is_some_and(|part| part.covers(&row.spec));
        let clears = booking.is_open && booking.spec.clearing.stops_others();
        is_there && clears && !booking.spec.admits(policy, name, spec)
    });
    let is_held =
        state.fleet_holds().any(|(target, held)| held.hold.stops_work && target.part().covers(&row.spec));
    let is_window = policy.windows.iter().any(|window| {
        let is_open = window.from <= now && now < window.until && window.scope.covers(&row.spec);
        is_open
            && match &window.purpose {
                WindowPurpose::Maintenance => true,
                WindowPurpose::ReservedFor { tenant } => {
                    spec.preemptible && policy.ancestry(&spec.tenant).all(|above| above != tenant)
                }
            }
    });
    is_overdue || is_booked || is_held || is_window
}

/// Holds the state against its own rules now and then.
#[derive(Default)]
struct Sound {
    passes: u64,
}

impl Observer for Sound {
    fn passed(&mut self, drive: &Drive<'_>) {
        self.passes += 1;
        if self.passes.is_multiple_of(LOOK_AFTER_PASSES) {
            drive.replica.verify().unwrap_or_else(|broken| panic!("{broken:?}; {}", drive.tail()));
        }
    }
}

#[test]
fn whatever_changes_nobody_is_stopped_without_right_and_in_peace_everybody_ends() {
    let (mut evictions, mut clearings, mut admitted, mut updates) = (0, 0, 0, 0);
    let mut met = BTreeSet::new();
    let mut made = BTreeSet::new();
    for seed in 0..seeds(2) {
        let world = world(seed);
        let mut seen = (Evictions::default(), (Clearings::default(), (Sound::default(), Choices::default())));
        let drive = Drive::run(&world, &mut seen);
        let (of_policy, (of_operators, (_, of_choices))) = &seen;
        assert_eq!(of_choices.wrong.first(), None, "seed {seed}: {} are wrong", of_choices.wrong.len());
        assert_eq!(of_policy.wrong.first(), None, "seed {seed}: {} are wrong", of_policy.wrong.len());
        assert_eq!(of_operators.wrong.first(), None, "seed {seed}: {} are wrong", of_operators.wrong.len());
        let broken: Vec<&String> =
            drive.broken.iter().filter(|text| !text.starts_with(LATE_BY_THE_MINUTE)).collect();
        assert_eq!(broken.first(), None, "seed {seed}: {} records break a rule", broken.len());
        assert!(drive.orders_taken > 10, "seed {seed}: {} orders were taken", drive.orders_taken);
        let left: Vec<String> = drive
            .open
            .iter()
            .filter(|place| !is_over(&drive, **place))
            .map(|place| {
                let job = drive.records[*place].id.expect("who is open was admitted");
                let phase = drive.replica.job(job).map(|row| row.phase.clone());
                let why =
                    muster_decider::explain_job(&drive.replica, drive.log_time(), job, &Default::default());
                let why = why.map_or(String::new(), |why| why.to_string());
                format!("{:?}: {phase:?}; {why}", drive.world.jobs[*place])
            })
            .collect();
        assert!(left.is_empty(), "seed {seed}: {} are not over: {}; {}", left.len(), left[0], drive.tail());
        evictions += of_policy.count;
        clearings += of_operators.count;
        admitted += drive.records.iter().filter(|record| record.id.is_some()).count();
        made.extend(drive.made.iter().copied());
        met.extend(of_choices.met.keys().copied());
        updates += drive.updates_taken;
    }
    assert!(evictions > 0 && admitted > 0, "worlds have evictions: {evictions} of {admitted} jobs");
    assert!(clearings > 0, "nobody was cleared from a host");
    assert!(updates > 0, "no part of a policy was set by itself");
    let unmet: Vec<&str> = MET.into_iter().filter(|what| !met.contains(what)).collect();
    assert!(unmet.is_empty(), "no placement met a choice or limit of {unmet:?}");
    let never: Vec<&str> = ASKED.into_iter().filter(|name| !made.contains(name)).collect();
    assert!(never.is_empty(), "nobody asked for {never:?}, or it was refused in every world");
}

/// Members that were cancelled before they were created end without a record of each.
fn is_over(drive: &Drive<'_>, place: usize) -> bool {
    let job = drive.records[place].id.expect("who is open was admitted");
    drive.replica.job(job).is_none() && drive.replica.waiting_member(job).is_none()
}
