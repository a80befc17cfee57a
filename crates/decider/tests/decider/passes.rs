//! Passes over a deep queue of requests that all differ: what one costs, in visits, and how many it takes until
//! everybody had a turn.
//!
//! `cargo test -p muster-decider passes -- --nocapture` prints the figures.

use muster_decider::{Command, Pass, Speculation, handle, schedule};
use muster_planner::Budget;
use muster_types::policy::{NonPreemptible, PolicyDraft, TenantPolicy, TenantRights};
use muster_types::{JobSpec, PriorityTier, Submission, limits};

use crate::support::{accelerators, founded, group, job_draft, name, node_spec, request};

/// What a leader spends in one round.
const VISITS: u64 = 200_000;

const REQUESTS: u64 = 10_000;

/// Hosts of which one device is busy, so that counters alone do not say that eight are not to be had on one host.
const HOSTS: usize = 64;

/// Whom those who wait could ask to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    /// Nobody: all are of one tier.
    Nobody,
    /// One gang of a lower tier on each host, beside one that cannot be stopped: nobody frees a host.
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
        handle(speculation, &Command::Submit { request: request(*n), jobs }).unwrap();
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
    let set = Command::SetPolicy { request: request(1), policy, expected_version: None };
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
    let mut spent = 0;
    loop {
        let mut budget = Budget::new(VISITS);
        let pass = schedule(speculation, &mut budget);
        spent += VISITS - budget.left();
        speculation.take_round();
        if matches!(pass, Pass::Complete { .. }) {
            return spent;
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
            "{REQUESTS} different requests of {tenants} tenants, to make room: {others:?}: everybody had a turn within \
             {passes} passes; at most {visits} visits in a pass, of {VISITS}"
        );
        assert!(passes <= 10, "{passes} passes");
        assert!(visits <= VISITS, "{visits} visits");
    }
}
