//! What monitoring is told of the jobs that wait for capacity, and of what is in use.

use muster_decider::{Command, Speculation, ThrottleOrder, handle, schedule};
use muster_planner::Budget;
use muster_state::State;
use muster_types::policy::{PolicyDraft, Quota, TenantPolicy};
use muster_types::{
    AcceleratorRequest, ArrayId, ArraySpec, Control, Dependency, DependencyRule, JobDraft, JobId, LogTime,
    Requester, Submission,
};

use crate::support::{
    BOOTSTRAP, accelerators, commit, founded_as, holder, job, name, node_spec, request, with_all_rights,
};

/// Eight devices, of which `vision` is promised four; `video` is below it.
fn cluster() -> (Speculation, State) {
    let (mut speculation, mut state) = founded_as(BOOTSTRAP);
    let spec = node_spec("n0", "eu", "c1", Some(accelerators("h100", 8)));
    handle(&mut speculation, &Command::Register { spec, holder: holder(1), other_session_is_over: false })
        .unwrap();
    let quota = Quota {
        kind: name("h100"),
        region: None,
        nominal_milli: 4_000,
        borrowing_limit_milli: None,
        lending_limit_milli: None,
    };
    let mut draft = PolicyDraft::default();
    draft.tenants.insert(name("vision"), TenantPolicy { quotas: vec![quota], ..TenantPolicy::default() });
    let below = TenantPolicy { parent: Some(name("vision")), ..TenantPolicy::default() };
    draft.tenants.insert(name("video"), below);
    let policy = Box::new(with_all_rights(draft).check().unwrap());
    let command = Command::SetPolicy {
        request: request(u128::MAX),
        by: muster_types::Requester::default(),
        policy,
        expected_version: None,
    };
    handle(&mut speculation, &command).unwrap();
    commit(&mut speculation, &mut state);
    (speculation, state)
}

/// Submits a job of one worker, and says what its id is.
fn submit(
    speculation: &mut Speculation,
    state: &mut State,
    (n, tenant, wants): (u128, &str, AcceleratorRequest),
    change: impl FnOnce(&mut JobDraft),
) -> JobId {
    let mut draft = JobDraft::clone(&job(&format!("j{n}"), 1, None));
    draft.tenant = name(tenant);
    draft.groups[0].request.accelerators = Some(wants);
    change(&mut draft);
    let jobs = Submission::plain([draft.check().unwrap()]);
    handle(speculation, &Command::submit(request(n), jobs)).unwrap();
    commit(speculation, state);
    *state.jobs().iter().last().unwrap().0
}

fn eligible(state: &State, tenant: &str, kind: &str) -> Option<u64> {
    state.eligible_demand().get(&name(tenant))?.get(&name(kind)).copied()
}

#[test]
fn jobs_that_wait_for_capacity_count_for_every_tenant_above_them_and_every_type_they_accept() {
    let (mut speculation, mut state) = cluster();
    assert_eq!(eligible(&state, "vision", "h100"), Some(0), "a quota is there before any job");
    assert_eq!(eligible(&state, "video", "h100"), None);
    let of = |kind: &str, count| AcceleratorRequest::from(accelerators(kind, count));
    let either = AcceleratorRequest {
        choices: [of("h100", 2).choices, of("a100", 2).choices].concat(),
        ..of("h100", 2)
    };
    submit(&mut speculation, &mut state, (1, "video", of("h100", 8)), |_| {});
    submit(&mut speculation, &mut state, (2, "video", either), |_| {});
    let any = AcceleratorRequest { choices: Vec::new(), ..of("h100", 1) };
    submit(&mut speculation, &mut state, (3, "vision", any), |_| {});
    assert_eq!(eligible(&state, "video", "h100"), Some(10_000));
    assert_eq!(eligible(&state, "video", "a100"), None, "a type that neither a node nor a quota has");
    assert_eq!(eligible(&state, "vision", "h100"), Some(11_000));
    assert_eq!(state.eligible_milli(&name("h100")), 11_000, "each job counts once over all tenants");
    assert_eq!(state.eligible_milli(&name("a100")), 3_000, "of those that would take this type as well");
    assert_eq!(state.used_milli().values().sum::<u64>(), 0);

    schedule(&mut speculation, &mut Budget::new(u64::MAX));
    commit(&mut speculation, &mut state);
    let used = state.used_milli().get(&name("h100")).copied().unwrap_or_default();
    assert!(used > 0, "something was placed");
    let asked_milli = 11_000;
    assert_eq!(eligible(&state, "vision", "h100"), Some(asked_milli - used), "what is placed waits no more");
}

#[test]
fn jobs_that_wait_for_something_else_do_not_count() {
    let (mut speculation, mut state) = cluster();
    let of = |count| AcceleratorRequest::from(accelerators("h100", count));
    let first = submit(&mut speculation, &mut state, (1, "video", of(2)), |_| {});
    let depends = Dependency::new(first, DependencyRule::Succeeded);
    submit(&mut speculation, &mut state, (2, "video", of(4)), |draft| draft.dependencies = vec![depends]);
    let later = LogTime(speculation.now().0 + 3_600_000);
    submit(&mut speculation, &mut state, (3, "video", of(4)), |draft| draft.not_before = Some(later));
    assert_eq!(eligible(&state, "vision", "h100"), Some(2_000));
    handle(&mut speculation, &Command::control(request(4), Control::Hold, first)).unwrap();
    commit(&mut speculation, &mut state);
    assert_eq!(eligible(&state, "vision", "h100"), Some(0));
    assert_eq!(eligible(&state, "video", "h100"), None);
}

#[test]
fn members_that_are_not_created_count_unless_a_throttle_keeps_them_back() {
    let (mut speculation, mut state) = cluster();
    let many = |text: &str| {
        let mut draft = JobDraft::clone(&job("many", 1, Some(accelerators("h100", 1))));
        draft.tenant = name("video");
        let array = Some(ArraySpec::parse(text).unwrap());
        Submission { array, ..Submission::from(draft.check().unwrap()) }
    };
    handle(&mut speculation, &Command::submit(request(1), vec![many("1000")].into())).unwrap();
    commit(&mut speculation, &mut state);
    let array = *state.arrays().iter().next().unwrap().0;
    assert!(state.jobs().len() < 1_000, "not all of them are jobs");
    assert_eq!(eligible(&state, "vision", "h100"), Some(1_000_000));
    handle(&mut speculation, &Command::submit(request(2), vec![many("1000%2")].into())).unwrap();
    commit(&mut speculation, &mut state);
    assert_eq!(eligible(&state, "vision", "h100"), Some(1_002_000));
    schedule(&mut speculation, &mut Budget::new(u64::MAX));
    commit(&mut speculation, &mut state);
    let used = state.used_milli().get(&name("h100")).copied().unwrap_or_default();
    assert!(used > 0, "something was placed");
    assert_eq!(eligible(&state, "video", "h100"), Some(1_002_000 - used));
    throttle(&mut speculation, 3, array, Some(1));
    commit(&mut speculation, &mut state);
    let waiting = state.jobs().iter().filter(|(_, row)| row.is_in_line()).count() as u64;
    assert_eq!(eligible(&state, "video", "h100"), Some(waiting * 1_000), "only those that are jobs");
    throttle(&mut speculation, 4, array, None);
    commit(&mut speculation, &mut state);
    assert_eq!(eligible(&state, "video", "h100"), Some(1_002_000 - used));
}

fn throttle(speculation: &mut Speculation, n: u128, array: ArrayId, throttle: Option<u32>) {
    let (request, by) = (request(n), Requester::default());
    let order = ThrottleOrder { request, by, acts_for: None, array, throttle };
    handle(speculation, &Command::SetThrottle(Box::new(order))).unwrap();
}
