//! Arrays under people who want more than their share, and in states that are full.

use std::sync::Arc;

use muster_decider::{
    Answer, BootstrapConfig, Command, ControlOrder, JobSelection, ModifyOrder, Speculation, handle, schedule,
    tick,
};
use muster_journal::{Decision, Estimate, Outcome, RankUpdate, RequestKey, SubmittedPart};
use muster_planner::Budget;
use muster_state::{JobEnd, MemberEnd, Phase, State};
use muster_types::policy::{PolicyDraft, TenantPolicy};
use muster_types::{
    ArrayId, ArraySpec, ClusterId, Control, Dependency, DependencyRule, DependencyScope, ExitStatus,
    FieldChange, JobDraft, JobId, JobSpec, LogTime, Parameters, Refusal, RefusalCode, Requester, Submission,
    limits,
};

use crate::support::{
    BOOTSTRAP, accelerators, check, commit, founded_as, group, holder, job_draft, name, node_spec, request,
};

const DAY_MS: u64 = 24 * 3_600_000;

fn begin(bootstrap: BootstrapConfig, devices: u16) -> (Speculation, State) {
    let (mut speculation, mut state) = founded_as(bootstrap);
    let spec = node_spec("n0", "eu", "c1", Some(accelerators("h100", devices)));
    let register = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    handle(&mut speculation, &register).unwrap();
    commit(&mut speculation, &mut state);
    (speculation, state)
}

fn spec(tenant: &str, change: impl FnOnce(&mut JobDraft)) -> JobSpec {
    let mut draft = job_draft("sweep", vec![group("main", 1, Some(accelerators("h100", 1)))]);
    draft.tenant = name(tenant);
    draft.failure_retries_max = 0;
    change(&mut draft);
    draft.check().unwrap()
}

fn array(spec: JobSpec, text: &str) -> Submission {
    Submission { array: Some(ArraySpec::parse(text).unwrap()), ..Submission::from(spec) }
}

fn submit(speculation: &mut Speculation, n: u128, jobs: Vec<Submission>) -> Result<Vec<JobId>, Refusal> {
    match handle(speculation, &Command::submit(request(n), jobs.into()))? {
        Answer::Submitted { jobs, .. } => Ok(jobs),
        other => panic!("{other:?}"),
    }
}

fn ask(
    speculation: &mut Speculation,
    n: u128,
    (control, is_operator): (Control, bool),
    (arrays, jobs): (Vec<JobId>, Vec<JobId>),
) -> Result<u32, Refusal> {
    let arrays = arrays.into_iter().map(|first| ArrayId(first.0)).collect();
    let selection = JobSelection { arrays, ..JobSelection::named(jobs) };
    let who = if is_operator { "admin/ops" } else { "tenant/team/ada" };
    let by = Requester::named(who.to_owned(), is_operator);
    carry_out(speculation, ControlOrder { acts_for: None, request: request(n), by, control, selection })
}

fn carry_out(speculation: &mut Speculation, order: ControlOrder) -> Result<u32, Refusal> {
    match handle(speculation, &Command::Control(Box::new(order)))? {
        Answer::Controlled { jobs, .. } => Ok(jobs),
        other => panic!("{other:?}"),
    }
}

/// Passes until nothing more happens.
fn settle_down(speculation: &mut Speculation, state: &mut State) {
    for _ in 0..2_000 {
        schedule(speculation, &mut Budget::new(10_000_000));
        if commit(speculation, state).is_none() && !speculation.wants_schedule() {
            return check(state);
        }
    }
    panic!("passes do not come to an end");
}

/// Every worker of a job tells something.
fn report(speculation: &mut Speculation, job: JobId, update: &RankUpdate) {
    let placement = speculation.state().job(job).unwrap().placement.clone().unwrap();
    for (rank, slot) in placement.slots.iter().enumerate() {
        let updates = vec![(rank as u32, update.clone())];
        let report =
            Command::Report { node: slot.node, incarnation: 1, job, token: placement.token, updates };
        handle(speculation, &report).unwrap();
    }
}

fn end(speculation: &mut Speculation, job: JobId, code: i32) {
    report(speculation, job, &RankUpdate::Running);
    report(speculation, job, &RankUpdate::Exited(ExitStatus::Code(code)));
}

fn phase(state: &State, job: JobId) -> Option<Phase> {
    state.job(job).map(|row| row.phase.clone())
}

#[test]
fn an_operators_hold_of_an_array_holds_members_that_are_named() {
    let (mut speculation, mut state) = begin(BOOTSTRAP, 8);
    let ids = submit(&mut speculation, 1, vec![array(spec("team", |_| {}), "5000%1")]).unwrap();
    assert_eq!(ask(&mut speculation, 2, (Control::Hold, true), (vec![ids[0]], vec![])).unwrap(), 4_999);
    // The owner cannot hold what the operator holds already, so it has no hold to release.
    assert_eq!(ask(&mut speculation, 3, (Control::Hold, false), (vec![], vec![ids[40]])).unwrap(), 0);
    let refused = ask(&mut speculation, 4, (Control::Release, false), (vec![], vec![ids[40]]));
    assert_eq!(refused.unwrap_err().code, RefusalCode::JobPhase);
    settle_down(&mut speculation, &mut state);
    assert_eq!(phase(&state, ids[40]), None);
    // Where the owner held the array first, a member that an operator holds goes back to the owner's hold.
    let own = submit(&mut speculation, 5, vec![array(spec("team", |_| {}), "5000%1")]).unwrap();
    assert_eq!(ask(&mut speculation, 6, (Control::Hold, false), (vec![own[0]], vec![])).unwrap(), 4_999);
    assert_eq!(ask(&mut speculation, 7, (Control::Hold, true), (vec![], vec![own[40]])).unwrap(), 1);
    assert_eq!(ask(&mut speculation, 8, (Control::Release, true), (vec![], vec![own[40]])).unwrap(), 1);
    settle_down(&mut speculation, &mut state);
    assert_eq!(phase(&state, own[40]), Some(Phase::Pending));
    assert!(state.hold(own[40]).is_some_and(|hold| !hold.by.is_operator));
}

#[test]
fn a_suspended_member_leaves_its_place_to_the_next() {
    let (mut speculation, mut state) = begin(BOOTSTRAP, 8);
    let ids = submit(&mut speculation, 1, vec![array(spec("team", |_| {}), "3%1")]).unwrap();
    settle_down(&mut speculation, &mut state);
    report(&mut speculation, ids[0], &RankUpdate::Running);
    ask(&mut speculation, 2, (Control::Suspend, false), (vec![], vec![ids[0]])).unwrap();
    settle_down(&mut speculation, &mut state);
    assert_eq!(phase(&state, ids[1]), None, "the first still stops");
    report(&mut speculation, ids[0], &RankUpdate::Exited(ExitStatus::Signal(15)));
    settle_down(&mut speculation, &mut state);
    assert_eq!(phase(&state, ids[0]), Some(Phase::Pending));
    assert_eq!(phase(&state, ids[1]), Some(Phase::Starting));
}

#[test]
fn how_members_ended_is_known_until_no_member_asks_for_it() {
    let parameters = Parameters { job_retention_ms: 7 * DAY_MS, ..Parameters::DEFAULT };
    let (mut speculation, mut state) = begin(BootstrapConfig::new(ClusterId(0xc1), parameters), 8);
    let first = submit(&mut speculation, 1, vec![array(spec("team", |_| {}), "3")]).unwrap();
    let after = |draft: &mut JobDraft| {
        let (job, scope) = (first[0], DependencyScope::Member);
        draft.dependencies = vec![Dependency { job, rule: DependencyRule::Succeeded, scope }];
    };
    let second = submit(&mut speculation, 2, vec![array(spec("team", after), "3%1")]).unwrap();
    settle_down(&mut speculation, &mut state);
    for (job, code) in [(first[0], 0), (first[1], 0), (first[2], 1)] {
        end(&mut speculation, job, code);
    }
    settle_down(&mut speculation, &mut state);
    assert_eq!(phase(&state, second[0]), Some(Phase::Starting));
    report(&mut speculation, second[0], &RankUpdate::Running);
    // Far behind the retention of jobs.
    commit(&mut speculation, &mut state);
    for day in 0..30 {
        speculation.set_now(speculation.now().plus_ms(DAY_MS));
        tick(&mut speculation);
        commit(&mut speculation, &mut state);
        tick(&mut speculation);
        assert!(
            commit(&mut speculation, &mut state).is_none(),
            "day {day}: what is to be dropped was dropped"
        );
        if day == 20 {
            assert_eq!(phase(&state, first[2]), None, "its row is gone");
            assert!(state.array(ArrayId(first[0].0)).is_some(), "how it ended is not");
            end_all(&mut speculation, &mut state);
            let ends = [0, 1, 2].map(|n| state.end_of(second[n]));
            let ended = |how| JobEnd::Ended(how);
            assert_eq!(ends, [MemberEnd::Succeeded, MemberEnd::Succeeded, MemberEnd::Failed].map(ended));
        }
    }
    check(&state);
    assert!(state.arrays().iter().next().is_none(), "nothing is kept in the end");
}

/// Whatever runs ends well, until nothing runs any more.
fn end_all(speculation: &mut Speculation, state: &mut State) {
    for _ in 0..10_000 {
        settle_down(speculation, state);
        let active: Vec<JobId> = state.active().collect();
        if active.is_empty() {
            return;
        }
        active.into_iter().for_each(|job| end(speculation, job, 0));
    }
    panic!("jobs do not end");
}

fn bootstrap(jobs_held_max: u64) -> BootstrapConfig {
    BootstrapConfig::new(ClusterId(0xc1), Parameters { jobs_held_max, ..Parameters::DEFAULT })
}

fn with_tenants(speculation: &mut Speculation, tenants: &[&str]) {
    let mut draft = PolicyDraft::default();
    for tenant in tenants {
        draft.tenants.insert(name(tenant), TenantPolicy::default());
    }
    let policy = Box::new(draft.check().unwrap());
    let set = Command::SetPolicy {
        request: request(u128::MAX),
        by: muster_types::Requester::default(),
        policy,
        expected_version: None,
    };
    handle(speculation, &set).unwrap();
}

#[test]
fn arrays_without_jobs_are_bounded_as_jobs_are() {
    let (mut speculation, mut state) = begin(bootstrap(1_000), 8);
    with_tenants(&mut speculation, &["team", "other"]);
    let later = LogTime(speculation.now().0 + 365 * DAY_MS);
    let parked = |tenant: &'static str| {
        move |n: usize| {
            array(
                spec(tenant, |draft| {
                    draft.not_before = Some(later);
                    draft.groups[0].request.cpu_milli += n as u64;
                }),
                "1",
            )
        }
    };
    let mut taken = 0;
    for n in 0..40 {
        match submit(&mut speculation, n, (0..50).map(parked("team")).collect()) {
            Ok(_) => taken += 50,
            Err(refusal) => assert_eq!(refusal.code, RefusalCode::StateFull, "{refusal}"),
        }
        commit(&mut speculation, &mut state);
    }
    // Each has a row, and one of how its member ends.
    assert!((150..=350).contains(&taken), "{taken} arrays of one tenant were taken");
    // Others can submit, and what is cancelled lets the tenant submit again.
    submit(&mut speculation, 100, (0..50).map(parked("other")).collect()).unwrap();
    let arrays: Vec<JobId> = state.arrays().iter().map(|(id, _)| JobId(id.0)).take(100).collect();
    ask(&mut speculation, 101, (Control::Cancel, false), (arrays, vec![])).unwrap();
    commit(&mut speculation, &mut state);
    submit(&mut speculation, 102, (0..50).map(parked("team")).collect()).unwrap();
    commit(&mut speculation, &mut state);
    check(&state);
    assert!(state.rows_held() <= 1_100, "{} rows", state.rows_held());
}

#[test]
fn a_tenant_whose_arrays_are_all_released_leaves_room_for_others() {
    let (mut speculation, mut state) = begin(bootstrap(20_000), 8);
    with_tenants(&mut speculation, &["team", "other"]);
    let later = LogTime(speculation.now().0 + DAY_MS);
    for n in 0..40 {
        let parked = spec("team", |draft| {
            draft.not_before = Some(later);
            draft.groups[0].request.cpu_milli += n as u64;
        });
        submit(&mut speculation, n, vec![array(parked, "2000")]).unwrap();
    }
    commit(&mut speculation, &mut state);
    speculation.set_now(later.plus_ms(1));
    tick(&mut speculation);
    commit(&mut speculation, &mut state);
    let mut most = 0;
    for _ in 0..100 {
        let before = state.jobs().len();
        schedule(&mut speculation, &mut Budget::new(10_000_000));
        commit(&mut speculation, &mut state);
        most = most.max(state.jobs().len() - before);
    }
    assert!(most <= 3 * 4_096, "{most} members became jobs with one round");
    let held = state.jobs().len();
    assert!((5_000..=14_000).contains(&held), "{held} jobs of one tenant");
    submit(&mut speculation, 1_000, vec![array(spec("other", |_| {}), "1000")]).unwrap();
    for _ in 0..20 {
        schedule(&mut speculation, &mut Budget::new(10_000_000));
        commit(&mut speculation, &mut state);
    }
    let others = state.jobs().len() - held;
    assert!(others >= muster_types::limits::ARRAY_WINDOW as usize, "{others} jobs of the other tenant");
    // What is over lets arrays have members that had none, long before its history is dropped.
    let arrays: Vec<JobId> = state.arrays().iter().map(|(id, _)| JobId(id.0)).collect();
    let has_jobs =
        |state: &State, array: &JobId| state.jobs().range(state.members(ArrayId(array.0))).next().is_some();
    let (with, without): (Vec<JobId>, Vec<JobId>) = arrays.iter().partition(|array| has_jobs(&state, array));
    assert!(!without.is_empty(), "some arrays have no rows");
    ask(&mut speculation, 2_000, (Control::Cancel, false), (with, vec![])).unwrap();
    let waiting: Vec<JobId> = state.jobs().iter().map(|(id, _)| *id).collect();
    for (n, some) in waiting.chunks(1_000).enumerate() {
        ask(&mut speculation, 2_001 + n as u128, (Control::Cancel, false), (vec![], some.to_vec())).unwrap();
        commit(&mut speculation, &mut state);
    }
    speculation.set_now(speculation.now().plus_ms(10_000));
    tick(&mut speculation);
    for _ in 0..20 {
        schedule(&mut speculation, &mut Budget::new(10_000_000));
        commit(&mut speculation, &mut state);
    }
    assert!(has_jobs(&state, &without[0]), "arrays that were left without rows are filled");
    check(&state);
}

#[test]
fn members_that_wait_are_bounded_over_all_arrays() {
    let (mut speculation, mut state) = begin(BOOTSTRAP, 8);
    // No test submits that many; the state answers what the leader asks it.
    let (most, jobs) = (limits::UNCREATED_MEMBERS_MAX, u64::from(limits::ARRAY_MEMBERS_MAX));
    assert_eq!(state.check_members_waiting(most, jobs), Ok(()));
    assert_eq!(state.check_members_waiting(most + 1, jobs), Err(0));
    assert_eq!(state.check_members_waiting(jobs, jobs), Ok(()));
    submit(&mut speculation, 1, vec![array(spec("team", |_| {}), "100000%1")]).unwrap();
    commit(&mut speculation, &mut state);
    assert_eq!(state.check_members_waiting(most, jobs), Err(99_999));
}

/// Ends of single members and of all the rest come to the same rows as ends one by one.
#[test]
fn a_riddled_array_ends_at_once() {
    let (mut speculation, mut state) = begin(BOOTSTRAP, 8);
    let ids = submit(&mut speculation, 1, vec![array(spec("team", |_| {}), "5000%1")]).unwrap();
    for (n, some) in ids.iter().copied().skip(11).step_by(3).collect::<Vec<_>>().chunks(900).enumerate() {
        ask(&mut speculation, 10 + n as u128, (Control::Cancel, false), (vec![], some.to_vec())).unwrap();
    }
    ask(&mut speculation, 2, (Control::Cancel, false), (vec![ids[0]], vec![ids[0]])).unwrap();
    settle_down(&mut speculation, &mut state);
    let row = state.array(ArrayId(ids[0].0)).unwrap();
    assert_eq!((row.cancelled, row.uncreated), (5_000, 0));
    assert_eq!(state.member_ends(ArrayId(ids[0].0)).count(), 1, "all ended alike");
}

/// A job may wait for a member whose row is gone; what it waits for is not dropped for its sake.
#[test]
fn a_submission_does_not_drop_what_it_waits_for() {
    let (mut speculation, mut state) = begin(bootstrap(1_000), 8);
    let ids = submit(&mut speculation, 1, vec![array(spec("team", |_| {}), "2")]).unwrap();
    settle_down(&mut speculation, &mut state);
    end(&mut speculation, ids[0], 1);
    settle_down(&mut speculation, &mut state);
    // The table is full of what is over, so that the oldest goes.
    for n in 0..12 {
        let others = vec![Submission::from(spec("team", |_| {})); 100];
        let others = submit(&mut speculation, 10 + n, others).unwrap();
        ask(&mut speculation, 50 + n, (Control::Cancel, false), (vec![], others)).unwrap();
        settle_down(&mut speculation, &mut state);
        speculation.set_now(speculation.now().plus_ms(1_000));
    }
    assert!(phase(&state, ids[0]).is_none(), "its row is gone");
    end(&mut speculation, ids[1], 0);
    settle_down(&mut speculation, &mut state);
    for n in 0..20 {
        let after = |draft: &mut JobDraft| {
            draft.dependencies = vec![Dependency::new(ids[0], DependencyRule::Succeeded)];
        };
        let waits: Vec<Submission> = vec![Submission::from(spec("team", after)); 50];
        match handle(&mut speculation, &Command::submit(request(100 + n), Arc::from(waits))) {
            Err(refusal) => {
                let known = [RefusalCode::DependencyNotFound, RefusalCode::StateFull];
                assert!(known.contains(&refusal.code), "{refusal}");
            }
            Ok(Answer::Submitted { jobs, .. }) => {
                settle_down(&mut speculation, &mut state);
                let end = phase(&state, jobs[0]);
                assert!(matches!(end, Some(Phase::Finished(Outcome::Failed { .. }))), "{end:?}");
            }
            Ok(other) => panic!("{other:?}"),
        }
    }
}

/// What a client looked at before its call is behind what the call is decided on: it may name a job that it could not have seen.
#[test]
fn a_job_of_another_tenant_is_not_there_for_one_that_acts_for_a_tenant() {
    let (mut speculation, mut state) = begin(BOOTSTRAP, 8);
    let mut draft = PolicyDraft::default();
    for tenant in ["team", "other"] {
        draft.tenants.insert(name(tenant), TenantPolicy::default());
    }
    let below = TenantPolicy { parent: Some(name("team")), ..TenantPolicy::default() };
    draft.tenants.insert(name("below"), below);
    let policy = Box::new(draft.check().unwrap());
    let set = Command::SetPolicy {
        request: request(u128::MAX),
        by: muster_types::Requester::default(),
        policy,
        expected_version: None,
    };
    handle(&mut speculation, &set).unwrap();
    let own = submit(&mut speculation, 1, vec![Submission::from(spec("below", |_| {}))]).unwrap()[0];
    let members = submit(&mut speculation, 2, vec![array(spec("below", |_| {}), "5000")]).unwrap();
    let mut n = 100;
    let mut asked = |control, tenant: &str, jobs: Vec<JobId>, arrays: Vec<JobId>, is_found| {
        n += 1;
        let arrays = arrays.into_iter().map(|first| ArrayId(first.0)).collect();
        let selection = JobSelection { arrays, is_found, ..JobSelection::named(jobs) };
        let by = Requester::named(format!("tenant/{tenant}/eve"), false);
        let acts_for = Some(name(tenant));
        carry_out(&mut speculation, ControlOrder { request: request(n), by, acts_for, control, selection })
    };
    for control in Control::ALL {
        for job in [own, members[0], members[4_000]] {
            let refused = asked(control, "other", vec![job], vec![], false).unwrap_err();
            assert_eq!(refused.code, RefusalCode::JobNotFound, "{control} {job}");
        }
        let refused = asked(control, "other", vec![], vec![members[0]], false).unwrap_err();
        assert_eq!(refused.code, RefusalCode::JobNotFound, "{control} of an array");
        assert_eq!(
            asked(control, "other", vec![own], vec![members[0]], true),
            Ok(0),
            "{control}: passed over"
        );
    }
    assert_eq!(asked(Control::Hold, "team", vec![own], vec![], false), Ok(1), "a tenant below");
    assert_eq!(
        asked(Control::Hold, "below", vec![], vec![members[0]], false),
        Ok(5_000 - muster_types::limits::ARRAY_WINDOW),
        "all that wait"
    );
    let change = |tenant: &str, n| {
        let (by, acts_for) = (Requester::default(), Some(name(tenant)));
        let changes = vec![FieldChange::Labels(std::collections::BTreeMap::new())];
        Command::Modify(Box::new(ModifyOrder {
            request: request(n),
            by,
            acts_for,
            job: own,
            expected: None,
            changes,
        }))
    };
    let refused = handle(&mut speculation, &change("other", 50)).unwrap_err();
    assert_eq!(refused.code, RefusalCode::JobNotFound);
    handle(&mut speculation, &change("team", 51)).unwrap();
    commit(&mut speculation, &mut state);
}

#[test]
fn only_those_who_wait_for_a_cancelled_member_are_settled() {
    let (mut speculation, mut state) = begin(BOOTSTRAP, 8);
    let ids = submit(&mut speculation, 1, vec![array(spec("team", |_| {}), "100000%1")]).unwrap();
    let after = |draft: &mut JobDraft| {
        draft.dependencies = vec![Dependency::new(ids[99_000], DependencyRule::Succeeded)];
    };
    let waits = submit(&mut speculation, 2, vec![Submission::from(spec("team", after)); 100]).unwrap();
    settle_down(&mut speculation, &mut state);
    // A round that is full settles nobody, so that it can be seen whether somebody is left to be settled.
    let mut n = 10;
    for some in ids[1_000..90_000].chunks(1_000) {
        n += 1;
        ask(&mut speculation, n, (Control::Cancel, false), (vec![], some.to_vec())).unwrap();
    }
    assert!(speculation.round_bytes() > 100_000, "the round is full");
    ask(&mut speculation, 5, (Control::Cancel, false), (vec![], vec![ids[98_000]])).unwrap();
    assert!(!speculation.wants_schedule(), "nobody waits for what was cancelled");
    ask(&mut speculation, 6, (Control::Cancel, false), (vec![], vec![ids[99_000]])).unwrap();
    assert!(speculation.wants_schedule(), "some wait for this one");
    settle_down(&mut speculation, &mut state);
    let failed = |job: &JobId| matches!(phase(&state, *job), Some(Phase::Finished(Outcome::Failed { .. })));
    assert!(waits.iter().all(failed));
}

/// Many that wait are looked at some at a time.
#[test]
fn a_member_that_everybody_waits_for_is_settled_in_parts() {
    let (mut speculation, mut state) = begin(BOOTSTRAP, 8);
    let ids = submit(&mut speculation, 1, vec![array(spec("team", |_| {}), "2000%1")]).unwrap();
    let after = |draft: &mut JobDraft| {
        let on = |job| Dependency::new(job, DependencyRule::Finished);
        draft.dependencies = vec![on(ids[1_800]), on(ids[1_900])];
    };
    for n in 0..12 {
        submit(&mut speculation, 10 + n, vec![Submission::from(spec("team", after)); 1_000]).unwrap();
    }
    settle_down(&mut speculation, &mut state);
    ask(&mut speculation, 2, (Control::Cancel, false), (vec![], vec![ids[1_800]])).unwrap();
    assert!(speculation.wants_schedule(), "some are left to be settled");
    settle_down(&mut speculation, &mut state);
    ask(&mut speculation, 3, (Control::Cancel, false), (vec![], vec![ids[1_900]])).unwrap();
    settle_down(&mut speculation, &mut state);
    let waits = state.jobs().iter().filter(|(_, row)| !row.released).count();
    assert_eq!(waits, 0, "all have been settled");
}

#[test]
fn arrays_that_are_needed_do_not_keep_others() {
    let parameters = Parameters { job_retention_ms: 7 * DAY_MS, ..Parameters::DEFAULT };
    let (mut speculation, mut state) = begin(BootstrapConfig::new(ClusterId(0xc1), parameters), 8);
    let later = LogTime(speculation.now().0 + 365 * DAY_MS);
    let parked = |on: &[JobId]| {
        let dependencies = on.iter().map(|job| Dependency {
            job: *job,
            rule: DependencyRule::Finished,
            scope: DependencyScope::Member,
        });
        let dependencies = dependencies.collect();
        let change = |draft: &mut JobDraft| {
            draft.not_before = Some(later);
            draft.dependencies = dependencies;
        };
        array(spec("team", change), "1-1")
    };
    let mut needed = Vec::new();
    for n in 0..4 {
        needed.extend(submit(&mut speculation, n, vec![parked(&[]); 1_000]).unwrap());
    }
    // 4,032 by 63 arrays.
    needed.extend(submit(&mut speculation, 5, vec![parked(&[]); 32]).unwrap());
    let dependents = needed.chunks(64).map(parked).collect();
    submit(&mut speculation, 6, dependents).unwrap();
    for (n, some) in needed.chunks(100).enumerate() {
        ask(&mut speculation, 100 + n as u128, (Control::Cancel, false), (some.to_vec(), vec![])).unwrap();
    }
    commit(&mut speculation, &mut state);
    speculation.set_now(speculation.now().plus_ms(1_000));
    let other = submit(&mut speculation, 7, vec![parked(&[])]).unwrap()[0];
    ask(&mut speculation, 8, (Control::Cancel, false), (vec![other], vec![])).unwrap();
    commit(&mut speculation, &mut state);
    speculation.set_now(speculation.now().plus_ms(8 * DAY_MS));
    tick(&mut speculation);
    commit(&mut speculation, &mut state);
    assert!(state.array(ArrayId(other.0)).is_none(), "nobody needs it");
    assert_eq!(state.arrays().len(), 4_032 + 63, "those that are needed are there");
    tick(&mut speculation);
    assert!(commit(&mut speculation, &mut state).is_none(), "nothing more is to be dropped");
}

#[test]
fn how_members_end_is_counted_for_their_tenant() {
    let (mut speculation, mut state) = begin(bootstrap(20_000), 8);
    with_tenants(&mut speculation, &["team", "other"]);
    let later = LogTime(speculation.now().0 + 365 * DAY_MS);
    let parked = |tenant: &str, text: &str| array(spec(tenant, |draft| draft.not_before = Some(later)), text);
    let mut taken = Vec::new();
    for n in 0..250 {
        match submit(&mut speculation, n, vec![parked("team", "100000")]) {
            Ok(ids) => taken.push(ids[0]),
            Err(refusal) => assert_eq!(refusal.code, RefusalCode::StateFull, "{refusal}"),
        }
    }
    commit(&mut speculation, &mut state);
    assert!((50..=150).contains(&taken.len()), "{} arrays were taken", taken.len());
    // One member in each row of ends.
    for (n, first) in taken.iter().enumerate() {
        let some = (0..98).map(|row| JobId(first.0 + row * 1_024)).collect();
        ask(&mut speculation, 1_000 + n as u128, (Control::Cancel, false), (vec![], some)).unwrap();
    }
    commit(&mut speculation, &mut state);
    assert!(state.rows_held() <= 12_000, "{} rows", state.rows_held());
    submit(&mut speculation, 2_000, vec![parked("other", "1000")]).unwrap();
    // What is kept because members ask for it is counted for those who ask.
    ask(&mut speculation, 2_001, (Control::Cancel, false), (vec![taken[0]], vec![])).unwrap();
    commit(&mut speculation, &mut state);
    let before = state.rows_unfinished();
    let on = Dependency { job: taken[0], rule: DependencyRule::Finished, scope: DependencyScope::Member };
    let asks = spec("other", |draft| {
        draft.not_before = Some(later);
        draft.dependencies = vec![on];
    });
    submit(&mut speculation, 2_002, vec![array(asks, "100000")]).unwrap();
    commit(&mut speculation, &mut state);
    assert_eq!(state.rows_unfinished(), before + 2 * 99, "its own rows, and those that it needs");
    let load = state.queue(&name("other")).unwrap().load;
    assert_eq!((load.array_rows, load.awaited_rows), (2 + 99, 99));
}

/// Submits an array of a number of members that wait for a year, as a leader would.
fn park(speculation: &mut Speculation, n: u128, members: u32) {
    let later = LogTime(speculation.now().0 + 365 * DAY_MS);
    let parked = array(spec("team", |draft| draft.not_before = Some(later)), &members.to_string());
    let part = SubmittedPart {
        spec: Arc::new(parked.spec),
        contract: None,
        metadata: None,
        array: parked.array,
        estimate: Estimate::default(),
    };
    let request = RequestKey { id: request(n), fingerprint: 1 };
    speculation.push(Decision::ArraysSubmitted {
        request,
        by: muster_types::Requester::default(),
        parts: vec![part],
    });
}

#[test]
fn no_tenant_takes_all_members_that_may_wait() {
    let (mut speculation, _) = begin(BOOTSTRAP, 8);
    with_tenants(&mut speculation, &["team", "other"]);
    for n in 0..4_999 {
        park(&mut speculation, n, 100_000);
    }
    submit(&mut speculation, 20_000, vec![array(spec("team", |_| {}), "100000")]).unwrap();
    let refused = submit(&mut speculation, 20_001, vec![array(spec("team", |_| {}), "1")]).unwrap_err();
    assert_eq!(refused.code, RefusalCode::StateFull, "{refusal}", refusal = refused);
    submit(&mut speculation, 20_002, vec![array(spec("other", |_| {}), "100000")]).unwrap();
    // The leader and the guard count the same at the bound: single jobs are no members that wait.
    let waiting = speculation.state().uncreated_count();
    let left = limits::UNCREATED_MEMBERS_MAX - waiting - 100;
    for n in 0..left / 100_000 {
        park(&mut speculation, 30_000 + u128::from(n), 100_000);
    }
    park(&mut speculation, 29_000, (left % 100_000) as u32);
    assert_eq!(limits::UNCREATED_MEMBERS_MAX - speculation.state().uncreated_count(), 100);
    let later = LogTime(speculation.now().0 + 365 * DAY_MS);
    let parked = spec("third", |draft| draft.not_before = Some(later));
    let both = vec![array(parked.clone(), "100"), Submission::from(parked.clone())];
    submit(&mut speculation, 20_003, both).unwrap();
    let refused = submit(&mut speculation, 20_004, vec![array(parked, "1")]).unwrap_err();
    assert_eq!(refused.code, RefusalCode::StateFull);
}

#[test]
fn members_that_ran_do_not_show_why_the_others_failed() {
    let parameters = Parameters { job_retention_ms: 7 * DAY_MS, ..Parameters::DEFAULT };
    let (mut speculation, mut state) = begin(BootstrapConfig::new(ClusterId(0xc1), parameters), 8);
    let deadline = LogTime(speculation.now().0 + DAY_MS);
    let first = array(spec("team", |draft| draft.deadline = Some(deadline)), "3%1");
    let first = submit(&mut speculation, 1, vec![first]).unwrap();
    let (job, scope) = (first[0], DependencyScope::Member);
    let asks = spec("team", |draft| {
        draft.not_before = Some(LogTime(deadline.0 + 365 * DAY_MS));
        draft.dependencies = vec![Dependency { job, rule: DependencyRule::Finished, scope }];
    });
    submit(&mut speculation, 2, vec![array(asks, "3")]).unwrap();
    settle_down(&mut speculation, &mut state);
    ask(&mut speculation, 3, (Control::Hold, false), (vec![first[0]], vec![])).unwrap();
    end(&mut speculation, first[0], 1);
    settle_down(&mut speculation, &mut state);
    for _ in 0..30 {
        speculation.set_now(speculation.now().plus_ms(DAY_MS));
        tick(&mut speculation);
        commit(&mut speculation, &mut state);
    }
    let shown = |job| match state.shown_member(job).expect("its row is gone").0.phase {
        Phase::Finished(Outcome::Failed { detail }) => detail,
        other => panic!("{other:?}"),
    };
    assert!(shown(first[2]).contains("deadline"), "{}", shown(first[2]));
    assert!(shown(first[0]).contains("dropped"), "{}", shown(first[0]));
}

/// Jobs whose time has come are looked at once, and go on when what else they wait for is over.
#[test]
fn a_job_whose_time_has_come_waits_for_others_and_for_no_tick() {
    let (mut speculation, mut state) = begin(BOOTSTRAP, 8);
    let soon = LogTime(speculation.now().0 + 1_000);
    let other = submit(&mut speculation, 1, vec![Submission::from(spec("team", |_| {}))]).unwrap()[0];
    let blocked = spec("team", |draft| {
        draft.not_before = Some(soon);
        draft.dependencies = vec![Dependency::new(other, DependencyRule::Finished)];
    });
    let parked = spec("team", |draft| draft.not_before = Some(soon));
    let waits = vec![Submission::from(blocked.clone()), array(blocked, "3")];
    let waits = submit(&mut speculation, 2, waits).unwrap();
    let free = submit(&mut speculation, 3, vec![Submission::from(parked.clone()); 1_000]).unwrap();
    let more = submit(&mut speculation, 4, vec![Submission::from(parked); 700]).unwrap();
    commit(&mut speculation, &mut state);
    for _ in 0..3 {
        speculation.set_now(speculation.now().plus_ms(1_000));
        tick(&mut speculation);
        commit(&mut speculation, &mut state);
    }
    assert!(free.iter().chain(&more).all(|job| state.job(*job).unwrap().released));
    assert!(!state.job(waits[0]).unwrap().released);
    ask(&mut speculation, 5, (Control::Cancel, false), (vec![], vec![other])).unwrap();
    commit(&mut speculation, &mut state);
    assert!(state.job(waits[0]).unwrap().released);
    assert!(state.array(ArrayId(waits[1].0)).unwrap().released);
}
