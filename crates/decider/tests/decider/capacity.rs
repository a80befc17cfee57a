//! Capacity that may be taken back: what is counted of it, and that no job is ever on a purchase that it does not allow.

use muster_decider::{Answer, Command, Speculation, handle, schedule, tick};
use muster_journal::{Decision, RankUpdate, Round};
use muster_planner::Budget;
use muster_state::{CAPACITY_SEEN_MS_MIN, CapacityKey, GuardError, Phase, State};
use muster_types::health::HealthReport;
use muster_types::policy::{InterruptionRate, PolicyDraft, PurchaseKind, TenantPolicy, TenantRights};
use muster_types::{
    CapacityFallback, CapacityRules, ExitStatus, JobContract, JobId, JobSpec, LogTime, PurchaseSet,
    RefusalCode, Requester, Submission,
};

use crate::random::Random;
use crate::support::{
    accelerators, commit, founded, group, holder, job_draft, name, node_draft, request, with_all_rights,
};

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;

fn set(kinds: &[PurchaseKind]) -> PurchaseSet {
    kinds.iter().copied().collect()
}

fn register(speculation: &mut Speculation, text: &str, purchase: Option<PurchaseKind>) {
    let mut draft = node_draft(text, "eu", "c1", Some(accelerators("h100", 8)));
    draft.labels.extend(purchase.map(|purchase| (name("purchase"), purchase.as_str().to_owned())));
    let spec = draft.check().expect("a node");
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: true };
    handle(speculation, &command).expect("it is taken");
}

fn lose(speculation: &mut Speculation, text: &str) {
    let node = speculation.state().node_named(&name(text)).expect("it is there");
    let incarnation = speculation.state().node(node).expect("it has a row").incarnation;
    handle(speculation, &Command::SessionOver { node, incarnation }).expect("it is taken");
}

fn asking(text: &str, devices: u16, rules: CapacityRules) -> JobSpec {
    let mut draft = job_draft(text, vec![group("main", 1, Some(accelerators("h100", devices)))]);
    draft.capacity = Some(Box::new(rules)).filter(|rules| !rules.is_empty());
    draft.check().expect("a job")
}

fn submit(speculation: &mut Speculation, n: u128, spec: JobSpec) -> Result<JobId, RefusalCode> {
    let jobs = [Submission::new(spec, JobContract::default())].into();
    match handle(speculation, &Command::submit(request(n), jobs)) {
        Ok(Answer::Submitted { jobs, .. }) => Ok(jobs[0]),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(refusal.code),
    }
}

fn spot_then_on_demand(after_ms: u64) -> CapacityRules {
    let fallback = CapacityFallback { purchases: set(&[PurchaseKind::OnDemand]), after_ms, is_open: false };
    CapacityRules {
        purchases: set(&[PurchaseKind::Spot]),
        fallback: Some(fallback),
        interruptions_milli_max: None,
    }
}

fn set_policy(speculation: &mut Speculation, n: u128, policy: PolicyDraft) {
    let policy = with_all_rights(policy).check().expect("a policy");
    let command = Command::SetPolicy {
        request: request(n),
        by: Requester::default(),
        policy: Box::new(policy),
        expected_version: None,
    };
    handle(speculation, &command).expect("it is taken");
}

/// Workers that are on nodes which their jobs asked for, and on those of a fallback.
#[derive(Default)]
struct Placed {
    first: u32,
    fallback: u32,
}

/// Every placement of a round is on nodes that its job allowed at that time.
fn check_placements(replica: &State, round: &Round, placed: &mut Placed) {
    for decision in &round.decisions {
        let Decision::GangPlaced { job, workers } = decision else { continue };
        let (spec, row) = (replica.spec(*job).expect("a spec"), replica.job(*job).expect("a row"));
        let Some(rules) = spec.capacity.as_deref() else { continue };
        for slot in workers {
            let node = &replica.node(slot.node).expect("a node").spec;
            assert!(rules.allows(node), "{job} is on {}, which it does not allow", node.name);
            let first = rules.purchases.is_empty()
                || PurchaseKind::of_node(node).is_some_and(|purchase| rules.purchases.contains(purchase));
            let due = rules.fallback.map(|fallback| row.submitted_at.plus_ms(fallback.after_ms));
            assert!(first || due.is_some_and(|due| due <= round.log_time), "{job} took its fallback early");
            *(if first { &mut placed.first } else { &mut placed.fallback }) += 1;
        }
    }
}

fn step(speculation: &mut Speculation, replica: &mut State) {
    step_counting(speculation, replica, &mut Placed::default());
}

fn step_counting(speculation: &mut Speculation, replica: &mut State, placed: &mut Placed) {
    if let Some(round) = commit(speculation, replica) {
        check_placements(replica, &round, placed);
    }
}

/// What the only worker of a job says.
fn report(speculation: &mut Speculation, job: JobId, update: RankUpdate) {
    let row = speculation.state().job(job).expect("it has a row");
    let placement = row.placement.clone().expect("it is placed");
    let slot = &placement.slots[0];
    let command = Command::Report {
        node: slot.node,
        incarnation: slot.incarnation,
        job,
        token: placement.token,
        updates: vec![(0, update)],
    };
    // A worker that runs already is not reported as running again: that is refused.
    let _ = handle(speculation, &command);
}

fn end_some(speculation: &mut Speculation, random: &mut Random) {
    let state = speculation.state();
    let running: Vec<JobId> = state
        .jobs()
        .iter()
        .filter(|(_, row)| matches!(row.phase, Phase::Starting | Phase::Running))
        .map(|(job, _)| *job)
        .collect();
    let Some(job) = random.pick(&running) else { return };
    report(speculation, job, RankUpdate::Running);
    report(speculation, job, RankUpdate::Exited(ExitStatus::Code(0)));
}

#[test]
fn no_job_is_ever_on_a_purchase_that_it_does_not_allow() {
    let mut placed = Placed::default();
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let (mut speculation, mut replica) = founded();
        let purchases =
            [None, Some(PurchaseKind::Owned), Some(PurchaseKind::OnDemand), Some(PurchaseKind::Spot)];
        for (number, purchase) in purchases.iter().enumerate() {
            register(&mut speculation, &format!("n{number}"), *purchase);
        }
        step_counting(&mut speculation, &mut replica, &mut placed);
        let mut now = speculation.now();
        for n in 0..60_u64 {
            match random.below(6) {
                0..=2 => {
                    let rules = match random.below(4) {
                        0 => CapacityRules::default(),
                        1 => CapacityRules { fallback: None, ..spot_then_on_demand(MINUTE_MS) },
                        2 => spot_then_on_demand((1 + random.below(30)) * MINUTE_MS),
                        _ => CapacityRules {
                            purchases: set(&[PurchaseKind::Owned]),
                            interruptions_milli_max: Some(1 + u32::from(random.once_in(2)) * 999_999),
                            ..spot_then_on_demand((1 + random.below(30)) * MINUTE_MS)
                        },
                    };
                    let devices = 1 + random.below(8) as u16;
                    let spec = asking(&format!("j{n}"), devices, rules);
                    submit(&mut speculation, 10_000 + u128::from(n), spec).expect("it fits the fleet");
                }
                3 => end_some(&mut speculation, &mut random),
                4 => {
                    let number = random.below(4) as usize;
                    lose(&mut speculation, &format!("n{number}"));
                    step_counting(&mut speculation, &mut replica, &mut placed);
                    register(&mut speculation, &format!("n{number}"), purchases[number]);
                }
                _ => {}
            }
            step_counting(&mut speculation, &mut replica, &mut placed);
            now = now.plus_ms(random.below(10) * MINUTE_MS);
            speculation.set_now(now);
            tick(&mut speculation);
            step_counting(&mut speculation, &mut replica, &mut placed);
            schedule(&mut speculation, &mut Budget::new(100_000));
            step_counting(&mut speculation, &mut replica, &mut placed);
        }
    }
    assert!(placed.first > 0 && placed.fallback > 0, "{} and {} workers", placed.first, placed.fallback);
}

#[test]
fn a_fallback_opens_when_it_is_due_and_once() {
    let (mut speculation, mut replica) = founded();
    register(&mut speculation, "spot-1", Some(PurchaseKind::Spot));
    register(&mut speculation, "own-1", Some(PurchaseKind::OnDemand));
    // What runs there stays: it may not be stopped.
    let mut draft = asking("holds", 8, spot_then_on_demand(DAY_MS)).into_draft();
    draft.preemptible = false;
    let holds = submit(&mut speculation, 1, draft.check().unwrap()).unwrap();
    schedule(&mut speculation, &mut Budget::new(100_000));
    report(&mut speculation, holds, RankUpdate::Running);
    let waits = submit(&mut speculation, 2, asking("waits", 8, spot_then_on_demand(30 * MINUTE_MS))).unwrap();
    step(&mut speculation, &mut replica);
    let placed = |state: &State, job: JobId| state.job(job).is_some_and(|row| row.placement.is_some());
    assert!(placed(&replica, holds));
    let submitted_at = replica.job(waits).unwrap().submitted_at;
    assert_eq!(replica.fallback_due(waits), Some(submitted_at.plus_ms(30 * MINUTE_MS)));
    let at = |speculation: &mut Speculation, replica: &mut State, time: LogTime| {
        speculation.set_now(time);
        tick(speculation);
        schedule(speculation, &mut Budget::new(100_000));
        step(speculation, replica);
    };
    at(&mut speculation, &mut replica, submitted_at.plus_ms(30 * MINUTE_MS - 1));
    assert!(!placed(&replica, waits), "its time has not come");
    at(&mut speculation, &mut replica, submitted_at.plus_ms(30 * MINUTE_MS));
    assert!(placed(&replica, waits), "on demand is allowed now");
    assert_eq!(replica.fallback_due(waits), None);
    let again = Decision::FallbackOpened { job: waits };
    assert_eq!(replica.check(&again), Err(GuardError::JobPhase));
    assert_eq!(replica.check(&Decision::FallbackOpened { job: JobId(7) }), Err(GuardError::JobUnknown));
    let plain = submit(&mut speculation, 3, asking("plain", 8, CapacityRules::default())).unwrap();
    step(&mut speculation, &mut replica);
    assert_eq!(replica.check(&Decision::FallbackOpened { job: plain }), Err(GuardError::NothingToDo));
}

#[test]
fn a_job_that_starts_later_waits_for_its_fallback_from_then_on() {
    let (mut speculation, mut replica) = founded();
    register(&mut speculation, "own-1", Some(PurchaseKind::OnDemand));
    let start = speculation.now();
    let not_before = start.plus_ms(DAY_MS);
    let mut draft = asking("later", 8, spot_then_on_demand(30 * MINUTE_MS)).into_draft();
    draft.not_before = Some(not_before);
    let later = submit(&mut speculation, 1, draft.check().unwrap()).unwrap();
    step(&mut speculation, &mut replica);
    let placed_at = |speculation: &mut Speculation, replica: &mut State, time: LogTime| {
        speculation.set_now(time);
        tick(speculation);
        // What a tick releases is looked at by the next one.
        tick(speculation);
        schedule(speculation, &mut Budget::new(100_000));
        step(speculation, replica);
        replica.job(later).is_some_and(|row| row.placement.is_some())
    };
    assert!(!placed_at(&mut speculation, &mut replica, not_before), "it may start now, and has not waited");
    assert!(!placed_at(&mut speculation, &mut replica, not_before.plus_ms(30 * MINUTE_MS - 1)));
    assert!(placed_at(&mut speculation, &mut replica, not_before.plus_ms(30 * MINUTE_MS)));
}

#[test]
fn losses_are_counted_against_the_time_of_nodes() {
    let (mut speculation, mut replica) = founded();
    let rates = vec![InterruptionRate { purchase: PurchaseKind::Spot, region: None, per_day_milli: 70 }];
    set_policy(&mut speculation, 1, PolicyDraft { interruption_rates: rates, ..PolicyDraft::default() });
    for number in 0..4 {
        register(&mut speculation, &format!("spot-{number}"), Some(PurchaseKind::Spot));
    }
    step(&mut speculation, &mut replica);
    let key = CapacityKey { region: name("eu"), kind: Some(name("h100")), purchase: PurchaseKind::Spot };
    let start = speculation.now();
    let stated = replica.interruptions(&key, start);
    assert_eq!((stated.per_day_milli, stated.is_measured), (Some(70), false));
    speculation.set_now(start.plus_ms(5 * DAY_MS));
    lose(&mut speculation, "spot-0");
    // An operator had taken this one out of placement: its end was nobody else's doing.
    let node = speculation.state().node_named(&name("spot-1")).unwrap();
    let by = Requester::default();
    let cordon = Command::SetCordon { request: request(2), by, node, cordoned: true, reason: None };
    handle(&mut speculation, &cordon).unwrap();
    lose(&mut speculation, "spot-1");
    // And this one was kept away from work, so that somebody could look at it.
    let (by, node) = (Requester::default(), speculation.state().node_named(&name("spot-2")).unwrap());
    let reason = Some("it is looked at".to_owned());
    handle(&mut speculation, &Command::SetQuarantine { request: request(3), by, node, reason }).unwrap();
    lose(&mut speculation, "spot-2");
    step(&mut speculation, &mut replica);
    let seen = replica.interruptions(&key, start.plus_ms(5 * DAY_MS));
    assert_eq!((seen.seen, seen.node_ms), (1, 20 * DAY_MS));
    assert!(seen.node_ms >= CAPACITY_SEEN_MS_MIN && seen.is_measured);
    assert_eq!(seen.per_day_milli, Some(50), "one in twenty days of nodes");
    // One goes on; what is more than two weeks ago is forgotten.
    let later = replica.interruptions(&key, start.plus_ms(40 * DAY_MS));
    assert_eq!(later.seen, 0);
    assert!(later.node_ms <= 28 * DAY_MS);
    let other = CapacityKey { purchase: PurchaseKind::OnDemand, ..key };
    assert_eq!(replica.interruptions(&other, start).per_day_milli, None);
}

/// What an agent says of the end of its host.
fn announce(speculation: &mut Speculation, text: &str, maintenance_at: LogTime) {
    let node = speculation.state().node_named(&name(text)).expect("it is there");
    let incarnation = speculation.state().node(node).expect("it has a row").incarnation;
    let report = HealthReport { boot: 1, maintenance_at: Some(maintenance_at), ..HealthReport::default() };
    let command = Command::ReportHealth { node, incarnation, report: Box::new(report) };
    handle(speculation, &command).expect("it is taken");
}

/// Another agent takes over the name of a host.
fn replace(speculation: &mut Speculation, text: &str, by: u128) {
    let mut draft = node_draft(text, "eu", "c1", Some(accelerators("h100", 8)));
    draft.labels.insert(name("purchase"), PurchaseKind::Spot.as_str().to_owned());
    let spec = draft.check().expect("a node");
    let command = Command::Register { spec, holder: holder(by), other_session_is_over: true };
    handle(speculation, &command).expect("it is taken");
}

#[test]
fn an_announced_end_makes_a_loss_an_interruption_only_when_it_is_near() {
    let (mut speculation, mut replica) = founded();
    for text in ["far", "near", "silent"] {
        register(&mut speculation, text, Some(PurchaseKind::Spot));
    }
    let now = speculation.now();
    announce(&mut speculation, "far", now.plus_ms(3 * DAY_MS));
    // Within the time before maintenance at which a drain begins: that is no wish of anybody here.
    announce(&mut speculation, "near", now.plus_ms(MINUTE_MS));
    announce(&mut speculation, "silent", now.plus_ms(MINUTE_MS));
    step(&mut speculation, &mut replica);
    let key = CapacityKey { region: name("eu"), kind: Some(name("h100")), purchase: PurchaseKind::Spot };
    let seen = |speculation: &Speculation| speculation.state().interruptions(&key, now).seen;
    replace(&mut speculation, "far", 2);
    assert_eq!(seen(&speculation), 0, "its agent was started again, days before that end");
    replace(&mut speculation, "near", 2);
    assert_eq!(seen(&speculation), 1);
    lose(&mut speculation, "silent");
    assert_eq!(seen(&speculation), 2);
    step(&mut speculation, &mut replica);
}

#[test]
fn nodes_that_are_taken_away_too_often_are_not_used() {
    let (mut speculation, mut replica) = founded();
    let rates = vec![InterruptionRate { purchase: PurchaseKind::Spot, region: None, per_day_milli: 70 }];
    set_policy(&mut speculation, 1, PolicyDraft { interruption_rates: rates, ..PolicyDraft::default() });
    register(&mut speculation, "spot-1", Some(PurchaseKind::Spot));
    let most = |milli| CapacityRules {
        purchases: set(&[PurchaseKind::Spot]),
        fallback: None,
        interruptions_milli_max: Some(milli),
    };
    let strict = submit(&mut speculation, 2, asking("strict", 1, most(69))).unwrap();
    let easy = submit(&mut speculation, 3, asking("easy", 1, most(70))).unwrap();
    schedule(&mut speculation, &mut Budget::new(100_000));
    step(&mut speculation, &mut replica);
    let placed = |job: JobId| replica.job(job).is_some_and(|row| row.placement.is_some());
    assert_eq!((placed(strict), placed(easy)), (false, true));
}

#[test]
fn a_tenant_asks_for_the_purchases_that_it_has_the_right_to() {
    let (mut speculation, mut replica) = founded();
    let rights = TenantRights { purchases: set(&[PurchaseKind::Spot]), ..TenantRights::ALL };
    let tenant = TenantPolicy { rights, ..TenantPolicy::default() };
    let tenants = [(name("research"), tenant)].into();
    set_policy(&mut speculation, 1, PolicyDraft { tenants, ..PolicyDraft::default() });
    register(&mut speculation, "spot-1", Some(PurchaseKind::Spot));
    step(&mut speculation, &mut replica);
    let spot = CapacityRules { fallback: None, ..spot_then_on_demand(MINUTE_MS) };
    let missing = Err(RefusalCode::RightMissing);
    assert_eq!(submit(&mut speculation, 2, asking("any", 1, CapacityRules::default())), missing);
    assert_eq!(submit(&mut speculation, 3, asking("both", 1, spot_then_on_demand(MINUTE_MS))), missing);
    assert!(submit(&mut speculation, 4, asking("spot", 1, spot)).is_ok());
    step(&mut speculation, &mut replica);
}
