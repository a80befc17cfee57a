//! Passes over a deep queue of requests that all differ: what one costs, in visits, and how many it takes until
//! everybody had a turn.
//!
//! `cargo test -p muster-decider passes -- --nocapture` prints the figures.

use muster_decider::{Answer, Command, Pass, Speculation, handle, schedule};
use muster_journal::RankUpdate;
use muster_planner::Budget;
use muster_types::policy::{NonPreemptible, Order, PolicyDraft, TenantPolicy, TenantRights};
use muster_types::{ExitStatus, JobId, JobSpec, NodeId, PriorityTier, Submission, limits};
use std::collections::BTreeMap;

use crate::support::{accelerators, founded, group, job_draft, name, node_spec, request};

/// What a leader spends in one round.
const VISITS: u64 = 200_000;

const REQUESTS: u64 = 10_000;

/// Hosts of which one device is busy, so that counters alone do not say that eight are not to be had on one host.
const HOSTS: usize = 64;

/// The gangs that could be preempted for those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    /// Nobody: all are of one tier.
    Nobody,
    /// One gang of a lower tier on each host, next to one that cannot be stopped: nobody frees a host.
    TooFew,
}

/// One request for a whole host that differs from all others in the CPU it asks for.
fn whole_host(tenant: u64, n: u64, tier: PriorityTier) -> JobSpec {
    let mut draft = job_draft("waits", vec![group("main", 1, Some(accelerators("h100", 8)))]);
    draft.tier = tier;
    draft.tenant = name(&format!("t{tenant}"));
    draft.groups[0].request.cpu_milli = 1_000 + n;
    draft.check().unwrap()
}

fn submit(speculation: &mut Speculation, n: &mut u128, specs: Vec<JobSpec>) {
    for specs in specs.chunks(limits::BATCH_JOBS_MAX) {
        *n += 1;
        let jobs = Submission::plain(specs.to_vec());
        handle(speculation, &Command::submit(request(*n), jobs)).unwrap();
        speculation.take_round();
    }
}

/// Ten thousand different requests of some tenants that cannot be had, and behind those of each tenant one that can.
/// How many passes until these run, and the most visits of one pass.
fn passes_until_all_had_a_turn(tenants: u64, others: Others) -> (u32, u64) {
    let (mut speculation, _) = founded();
    let mut policy = PolicyDraft::default();
    for tenant in 0..tenants {
        let rights = TenantRights {
            tier_max: Some(PriorityTier::Production),
            non_preemptible: Some(NonPreemptible::Always),
            ..TenantRights::default()
        };
        policy
            .tenants
            .insert(name(&format!("t{tenant}")), TenantPolicy { rights, ..TenantPolicy::default() });
    }
    let policy = Box::new(policy.check().unwrap());
    let set = Command::SetPolicy {
        request: request(1),
        by: muster_types::Requester::default(),
        policy,
        expected_version: None,
    };
    handle(&mut speculation, &set).unwrap();
    for n in 0..HOSTS {
        let spec = node_spec(&format!("n{n:02}"), "eu", "c1", Some(accelerators("h100", 8)));
        let command =
            Command::Register { spec, holder: crate::support::holder(1), other_session_is_over: false };
        handle(&mut speculation, &command).unwrap();
    }
    speculation.take_round();
    let mut n = 1;
    // One device of every host: each takes more than half of the host's CPU, so that no two share one.
    let mut wide = job_draft("one-each", vec![group("main", HOSTS as u32, Some(accelerators("h100", 1)))]);
    wide.groups[0].request.cpu_milli = 33_000;
    let mut running = vec![wide.clone()];
    let mut tier = PriorityTier::default();
    if others == Others::TooFew {
        running[0].preemptible = false;
        running[0].tenant = name("t0");
        let lower = (0..HOSTS).map(|_| {
            let mut draft = job_draft("lower", vec![group("main", 1, Some(accelerators("h100", 1)))]);
            draft.groups[0].request.cpu_milli = 1_000;
            draft.tier = PriorityTier::Free;
            draft
        });
        running.extend(lower);
        tier = PriorityTier::Production;
    }
    let count = running.len();
    for draft in running {
        submit(&mut speculation, &mut n, vec![draft.check().unwrap()]);
    }
    run_pass(&mut speculation);
    assert_eq!(speculation.state().active_count(), count);

    let waiting = (0..REQUESTS).map(|n| whole_host(n % tenants, n, tier));
    submit(&mut speculation, &mut n, waiting.collect());
    // The largest goes last in its tenant's order: two workers of three devices and much expected work.
    let last = (0..tenants).map(|tenant| {
        let mut draft = job_draft("fits", vec![group("main", 2, Some(accelerators("h100", 3)))]);
        draft.tenant = name(&format!("t{tenant}"));
        draft.tier = tier;
        draft.expected_run_ms = Some(limits::RUN_TIME_LIMIT_MS_MAX);
        draft.check().unwrap()
    });
    submit(&mut speculation, &mut n, last.take(HOSTS / 2).collect());
    let wanted = count + tenants.min(HOSTS as u64 / 2) as usize;
    let (mut passes, mut most) = (0, 0);
    while speculation.state().active_count() < wanted {
        passes += 1;
        assert!(passes <= 100, "{} of {wanted} run", speculation.state().active_count());
        most = most.max(run_pass(&mut speculation));
    }
    (passes, most)
}

/// The visits of one pass.
fn run_pass(speculation: &mut Speculation) -> u64 {
    run_pass_within(speculation, VISITS).0
}

/// The visits of one pass, and the rounds that it takes with this budget for each.
fn run_pass_within(speculation: &mut Speculation, visits: u64) -> (u64, u32) {
    let (mut spent, mut rounds) = (0, 0);
    loop {
        let mut budget = Budget::new(visits);
        let pass = schedule(speculation, &mut budget);
        spent += visits - budget.left();
        rounds += 1;
        assert!(rounds < 1_000, "a pass ends");
        speculation.take_round();
        if matches!(pass, Pass::Complete { .. }) {
            return (spent, rounds);
        }
    }
}

#[test]
fn everybody_behind_ten_thousand_requests_has_a_turn_within_ten_passes() {
    for (tenants, others) in
        [(1, Others::Nobody), (50, Others::Nobody), (1, Others::TooFew), (50, Others::TooFew)]
    {
        let (passes, visits) = passes_until_all_had_a_turn(tenants, others);
        println!(
            "{REQUESTS} different requests of {tenants} tenants, to preempt: {others:?}: everybody had a turn within \
             {passes} passes; at most {visits} visits in a pass, of {VISITS}"
        );
        assert!(passes <= 10, "{passes} passes");
        assert!(visits <= VISITS, "{visits} visits");
    }
}

/// Gangs of a full fleet, one on each host, that may be stopped.
const LOW: usize = 4;

/// Waiting gangs of a high tier. Each `small` one has another stopped for it, after which what is expected of the
/// cluster is out of date; before and behind each there may be a `large` one for which no stops suffice, and which gets a
/// reservation.
fn large_and_small(hosts: usize, with_large: bool) -> Speculation {
    let (mut speculation, _) = founded();
    let mut policy = PolicyDraft::default();
    policy.order.order = Order::Submission;
    policy.preemption.minimum_run_ms = 0;
    let rights = TenantRights { tier_max: Some(PriorityTier::Production), ..TenantRights::default() };
    policy.tenants.insert(name("t0"), TenantPolicy { rights, ..TenantPolicy::default() });
    let policy = Box::new(policy.check().unwrap());
    handle(
        &mut speculation,
        &Command::SetPolicy {
            request: request(1),
            by: muster_types::Requester::default(),
            policy,
            expected_version: None,
        },
    )
    .unwrap();
    register_hosts(&mut speculation, hosts);
    let mut n = 1;
    let of_tier = |workers: u32, tier: PriorityTier| {
        let mut draft = job_draft("job", vec![group("main", workers, Some(accelerators("h100", 8)))]);
        (draft.tenant, draft.tier) = (name("t0"), tier);
        draft.check().unwrap()
    };
    let running =
        (0..hosts).map(|n| of_tier(1, if n < LOW { PriorityTier::Free } else { PriorityTier::Production }));
    submit(&mut speculation, &mut n, running.collect());
    run_pass(&mut speculation);
    assert_eq!(speculation.state().active_count(), hosts);
    for small in 0..=LOW as u32 {
        if with_large {
            submit(&mut speculation, &mut n, vec![of_tier(LOW as u32 + 1 + small, PriorityTier::Production)]);
        }
        if small < LOW as u32 {
            submit(&mut speculation, &mut n, vec![of_tier(1, PriorityTier::Production)]);
        }
    }
    speculation
}

/// What is expected of a cluster is made again after each preemption, and that is in the budget: a visit for every host
/// and for every gang that will end.
#[test]
fn what_is_expected_of_a_cluster_is_made_again_within_the_budget() {
    let stopping = |speculation: &Speculation| speculation.state().stopping().count();
    // What the large ones cost.
    let more = |hosts: usize| {
        let [spent_without, spent_with] = [false, true].map(|with_large| {
            let mut speculation = large_and_small(hosts, with_large);
            let (spent, _) = run_pass_within(&mut speculation, VISITS);
            assert_eq!(stopping(&speculation), LOW);
            spent
        });
        spent_with - spent_without
    };
    let (few, many) = (more(64), more(320));
    println!("{} futures cost {few} visits on 64 hosts, {many} on 320", LOW + 1);
    assert!(many - few >= (LOW as u64 + 1) * 2 * (320 - 64), "{few} visits, {many} visits");
    // A round ends when its budget is spent. The pass goes on from there, and everybody has a turn.
    let mut slow = large_and_small(320, true);
    let (_, rounds) = run_pass_within(&mut slow, 2 * 320);
    assert_eq!(stopping(&slow), LOW);
    assert!(rounds > LOW as u32, "{rounds} rounds");
}

/// Gangs on each host of a full fleet.
const PER_HOST: usize = 8;

/// One of these tiers, with as many devices for each worker.
fn of_tier(tier: PriorityTier, workers: u32, devices: u16) -> JobSpec {
    let mut draft = job_draft("job", vec![group("main", workers, Some(accelerators("h100", devices)))]);
    draft.tier = tier;
    draft.check().unwrap()
}

/// Hosts of eight devices, in one cluster.
fn register_hosts(speculation: &mut Speculation, hosts: usize) {
    for n in 0..hosts {
        let spec = node_spec(&format!("n{n:03}"), "eu", "c1", Some(accelerators("h100", 8)));
        let holder = crate::support::holder(1);
        handle(speculation, &Command::Register { spec, holder, other_session_is_over: false }).unwrap();
    }
    speculation.take_round();
}

/// A full fleet, and a gang of a high tier that waits for some hosts of it.
fn one_waits_for_hosts(hosts: usize, wanted: u32) -> (Speculation, JobId) {
    let (mut speculation, _) = founded();
    register_hosts(&mut speculation, hosts);
    let mut n = 1;
    submit(&mut speculation, &mut n, vec![of_tier(PriorityTier::Production, 1, 1); hosts * PER_HOST]);
    run_pass(&mut speculation);
    assert_eq!(speculation.state().active_count(), hosts * PER_HOST);
    let jobs = Submission::plain([of_tier(PriorityTier::Production, wanted, 8)]);
    match handle(&mut speculation, &Command::submit(request(10_000), jobs)) {
        Ok(Answer::Submitted { jobs, .. }) => (speculation, jobs[0]),
        other => panic!("{other:?}"),
    }
}

fn later(speculation: &mut Speculation, ms: u64) {
    let now = speculation.now().plus_ms(ms);
    speculation.take_round();
    speculation.set_now(now);
}

/// A gang that waits with a reservation is looked for a start in a look at all that runs. Such a look is not made in each pass where it
/// takes long: between two of them a pass looks at what is reserved alone.
#[test]
fn a_reservation_costs_a_pass_what_is_reserved_and_not_what_runs() {
    let spent = |hosts: usize| {
        let (mut speculation, _) = one_waits_for_hosts(hosts, 2);
        run_pass(&mut speculation);
        // By now nothing else is to be found out about it.
        later(&mut speculation, 60_000);
        let first = run_pass(&mut speculation);
        later(&mut speculation, 1);
        let next = run_pass(&mut speculation);
        later(&mut speculation, 60_000);
        (first, next, run_pass(&mut speculation))
    };
    let (few, many) = (spent(256), spent(512));
    println!(
        "visits of a look, of a pass without one and of the next look: {few:?} on 256 hosts, {many:?} on 512"
    );
    for ((first, next, again), hosts) in [(few, 256), (many, 512)] {
        assert!(first.min(again) >= hosts * (1 + PER_HOST as u64), "{first} and {again} visits");
        assert!(next <= hosts, "{next} visits");
    }
    assert!(many.1 <= few.1 + few.1 / 2, "{few:?} and {many:?}: it does not grow with the fleet");
}

/// A large part of the fleet is looked at once up to the next look.
#[test]
fn a_reservation_of_many_hosts_costs_few_passes_what_runs_there() {
    const WANTED: u32 = 256;
    let (mut speculation, _) = one_waits_for_hosts(2 * WANTED as usize, WANTED);
    run_pass(&mut speculation);
    let mut pass = || {
        later(&mut speculation, 1);
        run_pass(&mut speculation)
    };
    let (first, next, last) = (pass(), pass(), pass());
    println!("visits of passes behind a look, where {WANTED} hosts are reserved: {first}, {next}, {last}");
    assert!(first >= u64::from(WANTED) * (1 + PER_HOST as u64), "{first} visits");
    assert!(2 * next <= first && 2 * last <= first, "{first}, {next} and {last} visits");
}

/// What is kept for it is kept from others in those passes as well, and it starts when it can.
#[test]
fn a_reservation_holds_in_passes_that_look_for_no_start() {
    const HOSTS: usize = 256;
    let (mut speculation, waits) = one_waits_for_hosts(HOSTS, 2);
    run_pass(&mut speculation);
    later(&mut speculation, 1);
    // One device of each host comes free, and there are others who would take all of them.
    let mut on: BTreeMap<NodeId, Vec<JobId>> = BTreeMap::new();
    for job in speculation.state().active() {
        let placement = speculation.state().job(job).and_then(|row| row.placement.as_ref());
        on.entry(placement.expect("a placement").slots[0].node).or_default().push(job);
    }
    on.values().for_each(|jobs| end(&mut speculation, jobs[0]));
    let mut n = 20_000;
    // Longer than until the gang is to start: of those that ended nobody is to learn that they are short.
    let mut long = of_tier(PriorityTier::default(), 1, 1).into_draft();
    long.expected_run_ms = Some(limits::RUN_TIME_LIMIT_MS_MAX);
    submit(&mut speculation, &mut n, vec![long.check().unwrap(); HOSTS]);
    run_pass(&mut speculation);
    assert_eq!(speculation.state().active_count(), HOSTS * PER_HOST - 2, "two are kept");
    let state = speculation.state();
    let is_kept = |node: &NodeId| state.gangs_on(*node).count() < PER_HOST;
    let kept: Vec<NodeId> = on.keys().copied().filter(is_kept).collect();
    assert_eq!(kept.len(), 2);
    for node in &kept {
        on[node][1..].iter().for_each(|job| end(&mut speculation, *job));
    }
    later(&mut speculation, 1);
    run_pass(&mut speculation);
    let placement = speculation.state().job(waits).and_then(|row| row.placement.clone()).expect("it starts");
    let mut nodes: Vec<NodeId> = placement.slots.iter().map(|slot| slot.node).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, kept);
}

/// The only worker of a gang does its work.
fn end(speculation: &mut Speculation, job: JobId) {
    let placement = speculation.state().job(job).and_then(|row| row.placement.clone()).expect("a placement");
    let (slot, token) = (&placement.slots[0], placement.token);
    let (node, incarnation) = (slot.node, slot.incarnation);
    for update in [RankUpdate::Running, RankUpdate::Exited(ExitStatus::Code(0))] {
        let updates = vec![(0, update)];
        let command = Command::Report { node, incarnation, job, token, updates };
        handle(speculation, &command).expect("it is taken");
    }
}
