//! The policy bounds how much of the shared capacity a tenant may have, and so does what is left for others.

use std::sync::Arc;

use muster_decider::{
    Answer, BootstrapConfig, Command, JobPath, ModifyOrder, Pass, Speculation, explain_job, handle, schedule,
};
use muster_journal::RankUpdate;
use muster_planner::{Budget, WaitReason};
use muster_state::{Phase, State};
use muster_types::policy::{JobLimits, PolicyDraft, TenantLimits, TenantPolicy, UserLimits};
use muster_types::{
    ArraySpec, ExitStatus, FieldChange, JobContract, JobDraft, JobId, JobMetadata, LogTime, NodeId,
    Parameters, PriorityTier, Refusal, RefusalCode, Requester, Submission,
};

use crate::support::{
    BOOTSTRAP, accelerators, check, commit, founded_as, group, holder, job, leadership, name, node_spec,
    request,
};

const NONE: TenantLimits = TenantLimits::NONE;

/// A cluster with one host, and tenants with these limits.
fn cluster(bootstrap: BootstrapConfig, tenants: &[(&str, TenantLimits)]) -> (Speculation, State) {
    let (mut speculation, mut state) = founded_as(bootstrap);
    let spec = node_spec("n0", "eu", "c1", None);
    let register = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    handle(&mut speculation, &register).unwrap();
    let mut draft = PolicyDraft::default();
    for (tenant, limits) in tenants {
        draft.tenants.insert(name(tenant), TenantPolicy { limits: *limits, ..TenantPolicy::default() });
    }
    let policy = Box::new(draft.check().unwrap());
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

fn submission(n: u128, tenant: &str) -> Command {
    let mut draft = JobDraft::clone(&job(&format!("j{n}"), 1, None));
    draft.tenant = name(tenant);
    Command::submit(request(n), Submission::plain([draft.check().unwrap()]))
}

fn submit(speculation: &mut Speculation, n: u128, tenant: &str) -> Result<JobId, Refusal> {
    match handle(speculation, &submission(n, tenant))? {
        Answer::Submitted { jobs, .. } => Ok(jobs[0]),
        other => panic!("{other:?}"),
    }
}

fn pass(speculation: &mut Speculation, state: &mut State) {
    schedule(speculation, &mut Budget::new(u64::MAX));
    commit(speculation, state);
}

fn is_placed(state: &State, job: JobId) -> bool {
    state.job(job).is_some_and(|row| row.placement.is_some())
}

fn fact(refusal: &Refusal, key: &str) -> String {
    let found = refusal.metadata.iter().find(|(known, _)| *known == key);
    found.map(|(_, value)| value.clone()).unwrap_or_default()
}

#[test]
fn a_tenant_has_no_more_jobs_placed_than_its_policy_lets_it_have() {
    let limits = TenantLimits { running_jobs: Some(2), ..NONE };
    let (mut speculation, mut state) = cluster(BOOTSTRAP, &[("team", limits), ("other", NONE)]);
    let own: Vec<JobId> = (0..4).map(|n| submit(&mut speculation, n, "team").unwrap()).collect();
    let other = submit(&mut speculation, 10, "other").unwrap();
    pass(&mut speculation, &mut state);
    let placed = |state: &State| own.iter().filter(|job| is_placed(state, **job)).count();
    assert_eq!(placed(&state), 2);
    assert!(is_placed(&state, other), "what is behind them does not wait for them");
    let waits = own.iter().find(|job| !is_placed(&state, **job)).unwrap();
    let said = explain_job(&state, state.log_time(), *waits, speculation.kept_reservations()).unwrap();
    assert_eq!(said.reason, WaitReason::TenantLimit, "{said}");
    assert!(said.sentence.contains("runningJobs") && said.sentence.contains("may have 2"), "{said}");
    // However often it is looked at.
    for _ in 0..3 {
        pass(&mut speculation, &mut state);
    }
    assert_eq!(placed(&state), 2);
    // When one ends, another is placed.
    let over = *own.iter().find(|job| is_placed(&state, **job)).unwrap();
    let token = state.job(over).unwrap().placement.as_ref().unwrap().token;
    let updates = vec![(0, RankUpdate::Running), (0, RankUpdate::Exited(ExitStatus::Code(0)))];
    let report = Command::Report { node: NodeId(0), incarnation: 1, job: over, token, updates };
    handle(&mut speculation, &report).unwrap();
    pass(&mut speculation, &mut state);
    assert!(matches!(state.job(over).unwrap().phase, Phase::Finished(_)), "{:?}", state.job(over));
    let active = own.iter().filter(|job| {
        state.job(**job).is_some_and(|row| !matches!(row.phase, Phase::Pending | Phase::Finished(_)))
    });
    assert_eq!(active.count(), 2);
    check(&state);
}

#[test]
fn a_limit_of_nothing_places_nothing_and_stops_nobody_else() {
    let limits = TenantLimits { running_jobs: Some(0), ..NONE };
    let (mut speculation, mut state) = cluster(BOOTSTRAP, &[("team", limits), ("other", NONE)]);
    let own = submit(&mut speculation, 1, "team").unwrap();
    let other = submit(&mut speculation, 2, "other").unwrap();
    pass(&mut speculation, &mut state);
    assert!(!is_placed(&state, own) && is_placed(&state, other));
    let said = explain_job(&state, state.log_time(), own, speculation.kept_reservations()).unwrap();
    assert_eq!(said.reason, WaitReason::TenantLimit, "{said}");
    let text = &said.sentence;
    assert!(text.contains("may have 0") && text.ends_with("placed when the policy allows more"), "{text}");
}

#[test]
fn a_tenant_makes_no_more_requests_in_a_minute_than_its_policy_lets_it() {
    let limits = TenantLimits { requests_per_minute: Some(3), ..NONE };
    let (mut speculation, mut state) = cluster(BOOTSTRAP, &[("team", limits), ("other", NONE)]);
    let first = submit(&mut speculation, 1, "team").unwrap();
    submit(&mut speculation, 2, "team").unwrap();
    pass(&mut speculation, &mut state);
    // Ending a job is not counted; asking again and again to end it is, for each is remembered by its id.
    for n in 100..102 {
        handle(&mut speculation, &Command::cancel(request(n), first)).unwrap();
    }
    let before = speculation.last_index();
    let refused = submit(&mut speculation, 4, "team").unwrap_err();
    assert_eq!(
        (refused.code, fact(&refused, "limit")),
        (RefusalCode::Overloaded, "requestsPerMinute".into())
    );
    assert_eq!((fact(&refused, "tenant"), fact(&refused, "retry_after_ms")), ("team".into(), "20000".into()));
    let cancel = Command::cancel(request(5), first);
    assert!(handle(&mut speculation, &cancel).is_err());
    assert_eq!(speculation.last_index(), before, "a refusal pushes nothing");
    // One that is repeated has its answer, whatever was used.
    assert_eq!(submit(&mut speculation, 1, "team").unwrap(), first);
    submit(&mut speculation, 6, "other").unwrap();
    // After the time that it was told, exactly one more.
    commit(&mut speculation, &mut state);
    let now = speculation.now();
    speculation.set_now(LogTime(now.0 + 19_999));
    assert!(submit(&mut speculation, 4, "team").is_err());
    speculation.set_now(LogTime(now.0 + 20_000));
    submit(&mut speculation, 4, "team").unwrap();
    assert!(submit(&mut speculation, 7, "team").is_err());
    // And after a long time no more than in a minute.
    commit(&mut speculation, &mut state);
    speculation.set_now(LogTime(now.0 + 3_600_000));
    for n in 20..23 {
        submit(&mut speculation, n, "team").unwrap();
    }
    assert!(submit(&mut speculation, 23, "team").is_err());
}

/// All tenants with made-up names share one limit.
#[test]
fn tenants_that_nobody_named_share_one_limit() {
    let mut draft = PolicyDraft::default();
    draft.tenants.insert(name("team"), TenantPolicy::default());
    let unlisted = draft.clone().check().unwrap().unlisted().clone();
    let limits = TenantLimits { requests_per_minute: Some(2), ..NONE };
    let (mut speculation, _) = cluster(BOOTSTRAP, &[("team", NONE), (unlisted.as_str(), limits)]);
    submit(&mut speculation, 1, "made-up-1").unwrap();
    submit(&mut speculation, 2, "made-up-2").unwrap();
    assert_eq!(submit(&mut speculation, 3, "made-up-3").unwrap_err().code, RefusalCode::Overloaded);
    submit(&mut speculation, 4, "team").unwrap();
}

/// The table of request ids is shared: a tenant that fills it leaves a part to the next.
#[test]
fn no_tenant_takes_all_the_room_for_request_ids() {
    let parameters = Parameters { requests_held_max: 1_000, ..Parameters::DEFAULT };
    let bootstrap = BootstrapConfig { parameters, ..BOOTSTRAP };
    let tenants = [("loud", NONE), ("quiet", NONE), ("third", NONE)];
    let (mut speculation, mut state) = cluster(bootstrap, &tenants);
    let mut n = 0;
    let mut until_refused = |speculation: &mut Speculation, state: &mut State, tenant: &str| {
        let mut taken = 0;
        loop {
            n += 1;
            if let Err(refused) = submit(speculation, n, tenant) {
                assert_eq!(refused.code, RefusalCode::StateFull, "{refused:?}");
                assert_eq!(fact(&refused, "limit"), "requests_held_share", "{refused:?}");
                return taken;
            }
            taken += 1;
            if n % 100 == 0 {
                commit(speculation, state);
            }
        }
    };
    let loud = until_refused(&mut speculation, &mut state, "loud");
    assert!((450..=550).contains(&loud), "alone it has about half: {loud}");
    let quiet = until_refused(&mut speculation, &mut state, "quiet");
    assert!(quiet > 200, "{quiet}");
    assert!(until_refused(&mut speculation, &mut state, "third") > 50);
    // After ten minutes they need not be remembered at any price, and are not held against anybody.
    commit(&mut speculation, &mut state);
    let now = speculation.now();
    speculation.set_now(LogTime(now.0 + 12 * 60_000));
    submit(&mut speculation, 1_000_000, "loud").unwrap();
    commit(&mut speculation, &mut state);
    check(&state);
}

/// A new leader counts from nothing, so that what it has not seen is held against nobody.
#[test]
fn a_new_leader_begins_to_count() {
    let limits = TenantLimits { requests_per_minute: Some(1), ..NONE };
    let (mut speculation, mut state) = cluster(BOOTSTRAP, &[("team", limits)]);
    submit(&mut speculation, 1, "team").unwrap();
    assert!(submit(&mut speculation, 2, "team").is_err());
    commit(&mut speculation, &mut state);
    let now = speculation.now();
    let mut next = Speculation::begin(state.clone(), leadership(7, 2), now, BOOTSTRAP);
    submit(&mut next, 2, "team").unwrap();
    assert!(submit(&mut next, 3, "team").is_err());
}

/// A submission of one job of a tenant by a user, as it is changed.
fn submit_as(
    speculation: &mut Speculation,
    n: u128,
    (tenant, user): (&str, &str),
    change: impl FnOnce(&mut JobDraft),
) -> Result<JobId, Refusal> {
    let mut draft = JobDraft::clone(&job(&format!("j{n}"), 1, None));
    draft.tenant = name(tenant);
    change(&mut draft);
    let metadata = JobMetadata { creator: user.to_owned(), ..JobMetadata::default() };
    let mut submission = Submission::new(draft.check().unwrap(), JobContract::default());
    submission.metadata = (!metadata.is_default()).then(|| Arc::new(metadata));
    match handle(
        speculation,
        &Command::Submit {
            request: request(n),
            by: muster_types::Requester::default(),
            jobs: Arc::new([submission]),
            path: JobPath::List,
        },
    )? {
        Answer::Submitted { jobs, .. } => Ok(jobs[0]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_user_makes_no_more_submissions_in_a_minute_than_the_tenant_lets_each() {
    let user = UserLimits { submissions_per_minute: Some(2), ..UserLimits::default() };
    let limits = TenantLimits { user, ..NONE };
    let (mut speculation, mut state) = cluster(BOOTSTRAP, &[("team", limits), ("other", NONE)]);
    let as_is = |_: &mut JobDraft| {};
    for n in 0..2 {
        submit_as(&mut speculation, n, ("team", "ada"), as_is).unwrap();
    }
    let before = speculation.last_index();
    let refused = submit_as(&mut speculation, 2, ("team", "ada"), as_is).unwrap_err();
    let limit = (refused.code, fact(&refused, "limit"));
    assert_eq!(limit, (RefusalCode::Overloaded, "user.submissionsPerMinute".into()));
    assert_eq!((fact(&refused, "user"), fact(&refused, "retry_after_ms")), ("ada".into(), "30000".into()));
    assert_eq!(speculation.last_index(), before, "a refusal pushes nothing");
    // Others of the tenant, those that nobody knows, and the same name elsewhere have each their own.
    for (n, who) in [(3, ("team", "bob")), (4, ("team", "")), (5, ("other", "ada"))] {
        submit_as(&mut speculation, n, who, as_is).unwrap();
    }
    // One that is repeated has its answer.
    submit_as(&mut speculation, 0, ("team", "ada"), as_is).unwrap();
    // After the time that it was told, exactly one more.
    commit(&mut speculation, &mut state);
    let now = speculation.now();
    speculation.set_now(LogTime(now.0 + 29_999));
    assert!(submit_as(&mut speculation, 2, ("team", "ada"), as_is).is_err());
    speculation.set_now(LogTime(now.0 + 30_000));
    submit_as(&mut speculation, 2, ("team", "ada"), as_is).unwrap();
    assert!(submit_as(&mut speculation, 6, ("team", "ada"), as_is).is_err());
}

#[test]
fn a_user_has_no_more_jobs_than_the_tenant_lets_each_have() {
    let user = UserLimits { pending_jobs: Some(2), unfinished_jobs: Some(3), ..UserLimits::default() };
    let limits = TenantLimits { user, ..NONE };
    let (mut speculation, mut state) = cluster(BOOTSTRAP, &[("team", limits), ("other", NONE)]);
    let as_is = |_: &mut JobDraft| {};
    for n in 0..2 {
        submit_as(&mut speculation, n, ("team", "ada"), as_is).unwrap();
    }
    let refused = submit_as(&mut speculation, 2, ("team", "ada"), as_is).unwrap_err();
    assert_eq!(refused.code, RefusalCode::TenantLimit, "{refused}");
    assert_eq!(
        ["tenant", "user", "limit", "limit_max", "held"].map(|key| fact(&refused, key)),
        ["team", "ada", "user.pendingJobs", "2", "2"]
    );
    // Others of the tenant, those that nobody knows, and the same user elsewhere have their own.
    submit_as(&mut speculation, 3, ("team", "bob"), as_is).unwrap();
    submit_as(&mut speculation, 4, ("team", ""), as_is).unwrap();
    submit_as(&mut speculation, 5, ("team", ""), as_is).unwrap();
    let nobody = submit_as(&mut speculation, 6, ("team", ""), as_is).unwrap_err();
    assert_eq!(fact(&nobody, "user"), "anonymous");
    submit_as(&mut speculation, 7, ("other", "ada"), as_is).unwrap();
    // What runs no longer waits, and is not over.
    pass(&mut speculation, &mut state);
    let third = submit_as(&mut speculation, 8, ("team", "ada"), as_is).unwrap();
    let refused = submit_as(&mut speculation, 9, ("team", "ada"), as_is).unwrap_err();
    assert_eq!(fact(&refused, "limit"), "user.unfinishedJobs");
    // What is cancelled is over.
    handle(&mut speculation, &Command::cancel(request(100), third)).unwrap();
    submit_as(&mut speculation, 10, ("team", "ada"), as_is).unwrap();
    commit(&mut speculation, &mut state);
    assert_eq!(state.user_load(&name("team"), "ada").unfinished_jobs, 3);
    check(&state);
}

#[test]
fn one_job_asks_for_no_more_than_its_tenant_and_tier_may() {
    const HOUR_MS: u64 = 3_600_000;
    let of_every_job = JobLimits {
        devices_max: Some(4),
        run_time_max_ms: Some(10 * HOUR_MS),
        run_time_default_ms: Some(2 * HOUR_MS),
        ..JobLimits::default()
    };
    let (mut speculation, _) =
        cluster(BOOTSTRAP, &[("team", TenantLimits { job: of_every_job, ..NONE }), ("other", NONE)]);
    let mut draft = speculation.state().policy().policy.as_ref().clone().into_draft();
    let of_batch = JobLimits { run_time_max_ms: Some(HOUR_MS), ..JobLimits::default() };
    let team = draft.tenants.get_mut(&name("team")).unwrap();
    team.tier_limits.insert(PriorityTier::Batch, of_batch);
    // A tenant below inherits all of it.
    let below = TenantPolicy { parent: Some(name("team")), ..TenantPolicy::default() };
    draft.tenants.insert(name("below"), below);
    let policy = Box::new(draft.check().unwrap());
    handle(
        &mut speculation,
        &Command::SetPolicy {
            request: request(u128::MAX - 1),
            by: muster_types::Requester::default(),
            policy,
            expected_version: None,
        },
    )
    .unwrap();

    let limit_of = |speculation: &Speculation, job| speculation.state().spec(job).unwrap().run_time_limit_ms;
    for (n, tenant) in [(1, "team"), (2, "below")] {
        let plain = submit_as(&mut speculation, n, (tenant, "ada"), |_| {}).unwrap();
        assert_eq!(limit_of(&speculation, plain), Some(2 * HOUR_MS), "{tenant}");
    }
    // The default of every job is longer than the longest of a batch job: that is what it gets.
    let batch = |draft: &mut JobDraft| draft.tier = PriorityTier::Batch;
    let job = submit_as(&mut speculation, 3, ("team", "ada"), batch).unwrap();
    assert_eq!(limit_of(&speculation, job), Some(HOUR_MS));
    let named = |limit_ms| move |draft: &mut JobDraft| draft.run_time_limit_ms = Some(limit_ms);
    submit_as(&mut speculation, 4, ("team", "ada"), named(10 * HOUR_MS)).unwrap();
    let before = speculation.last_index();
    let refused = submit_as(&mut speculation, 5, ("below", "ada"), named(10 * HOUR_MS + 1)).unwrap_err();
    assert_eq!(refused.code, RefusalCode::JobAboveLimit, "{refused}");
    assert_eq!(
        ["tenant", "limit", "limit_max", "asked"].map(|key| fact(&refused, key)),
        ["below", "job.maxRunTime", "36000000", "36000001"]
    );
    let wide = |draft: &mut JobDraft| {
        draft.groups = vec![group("main", 5, Some(accelerators("h100", 1)))];
    };
    let refused = submit_as(&mut speculation, 6, ("team", "ada"), wide).unwrap_err();
    assert_eq!(
        (refused.code, fact(&refused, "limit"), fact(&refused, "asked")),
        (RefusalCode::JobAboveLimit, "job.maxDevices".into(), "5".into())
    );
    assert_eq!(speculation.last_index(), before, "a refusal leaves no record");
    // Repeated under its id, a submission is the same one whatever the policy adds to it by then.
    let again = submit_as(&mut speculation, 1, ("team", "ada"), |_| {}).unwrap();
    assert_eq!(limit_of(&speculation, again), Some(2 * HOUR_MS));
    let other = submit_as(&mut speculation, 7, ("other", "ada"), |_| {}).unwrap();
    assert_eq!(limit_of(&speculation, other), None);
}

#[test]
fn one_job_of_a_named_user_asks_for_no_more_than_that_user_may() {
    const HOUR_MS: u64 = 3_600_000;
    let of = |max, default| JobLimits {
        run_time_max_ms: Some(max * HOUR_MS),
        run_time_default_ms: Some(default * HOUR_MS),
        ..JobLimits::default()
    };
    let (mut speculation, mut state) =
        cluster(BOOTSTRAP, &[("team", TenantLimits { job: of(4, 2), ..NONE })]);
    let mut draft = speculation.state().policy().policy.as_ref().clone().into_draft();
    let of_ada = JobLimits { workers_max: Some(2), ..of(3, 1) };
    // A limit of a user above that of every job raises nothing.
    let users = [("ada".to_owned(), of_ada), ("eve".to_owned(), of(9, 9))];
    draft.tenants.get_mut(&name("team")).unwrap().user_limits = users.into();
    let policy = Box::new(draft.check().unwrap());
    let by = muster_types::Requester::default();
    let set = Command::SetPolicy { request: request(u128::MAX - 1), by, policy, expected_version: None };
    handle(&mut speculation, &set).unwrap();
    for (n, user, hours) in [(1, "ada", 1), (2, "bob", 2), (3, "eve", 4)] {
        let job = submit_as(&mut speculation, n, ("team", user), |_| {}).unwrap();
        let limit_ms = speculation.state().spec(job).unwrap().run_time_limit_ms;
        assert_eq!(limit_ms, Some(hours * HOUR_MS), "{user}");
    }
    let named = |hours: u64| move |draft: &mut JobDraft| draft.run_time_limit_ms = Some(hours * HOUR_MS);
    submit_as(&mut speculation, 4, ("team", "bob"), named(4)).unwrap();
    for (n, user, limit, max) in [(5, "ada", "users.maxRunTime", 3), (6, "eve", "job.maxRunTime", 4)] {
        let refused = submit_as(&mut speculation, n, ("team", user), named(max + 1)).unwrap_err();
        assert_eq!((refused.code, fact(&refused, "limit")), (RefusalCode::JobAboveLimit, limit.into()));
        assert_eq!(fact(&refused, "limit_max"), (max * HOUR_MS).to_string());
    }
    let wide = |draft: &mut JobDraft| draft.groups = vec![group("main", 3, None)];
    let refused = submit_as(&mut speculation, 7, ("team", "ada"), wide).unwrap_err();
    assert_eq!(
        (refused.code, fact(&refused, "limit")),
        (RefusalCode::JobAboveLimit, "users.maxWorkers".into())
    );
    // A token of the user is the user.
    let refused =
        submit_as(&mut speculation, 8, ("team", "ada+token/0000000000000007"), named(4)).unwrap_err();
    assert_eq!(fact(&refused, "limit"), "users.maxRunTime");
    // The record that says whose a job is is refused by every replica where the user may not have it.
    let job = submit_as(&mut speculation, 9, ("team", ""), named(4)).unwrap();
    commit(&mut speculation, &mut state);
    check(&state);
    let told = |creator: &str| {
        let metadata = JobMetadata { creator: creator.to_owned(), ..JobMetadata::default() };
        muster_journal::Decision::JobMetadataSet { runs: vec![(job, 1, Arc::new(metadata))] }
    };
    assert_eq!(state.check(&told("ada")), Err(muster_state::GuardError::TenantLimit));
    assert_eq!(state.check(&told("bob")), Ok(()));
}

#[test]
fn a_change_keeps_a_job_within_its_limits() {
    const HOUR_MS: u64 = 3_600_000;
    let of_every_job = JobLimits { run_time_max_ms: Some(10 * HOUR_MS), ..JobLimits::default() };
    let (mut speculation, _) = cluster(BOOTSTRAP, &[("team", TenantLimits { job: of_every_job, ..NONE })]);
    let job = submit_as(&mut speculation, 1, ("team", "ada"), |_| {}).unwrap();
    assert_eq!(speculation.state().spec(job).unwrap().run_time_limit_ms, Some(10 * HOUR_MS));
    let change = |n, limit_ms| {
        let by = Requester::named("ada".to_owned(), false);
        let changes = vec![FieldChange::RunTimeLimit(limit_ms)];
        Command::Modify(Box::new(ModifyOrder {
            acts_for: None,
            request: request(n),
            by,
            job,
            expected: None,
            changes,
        }))
    };
    for (n, limit_ms) in [(2, None), (3, Some(10 * HOUR_MS + 1))] {
        let refused = handle(&mut speculation, &change(n, limit_ms)).unwrap_err();
        assert_eq!(refused.code, RefusalCode::JobAboveLimit, "{limit_ms:?}: {refused}");
    }
    handle(&mut speculation, &change(4, Some(HOUR_MS))).unwrap();
    assert_eq!(speculation.state().spec(job).unwrap().run_time_limit_ms, Some(HOUR_MS));
}

/// A submission of several jobs with the same metadata.
fn submit_many(
    speculation: &mut Speculation,
    n: u128,
    metadata: &JobMetadata,
    tenants: &[&str],
) -> Result<Answer, Refusal> {
    let submission = |(place, tenant): (usize, &&str)| {
        let mut draft = JobDraft::clone(&job(&format!("j{n}-{place}"), 1, None));
        draft.tenant = name(tenant);
        let mut submission = Submission::new(draft.check().unwrap(), JobContract::default());
        submission.metadata = (!metadata.is_default()).then(|| Arc::new(metadata.clone()));
        submission
    };
    let jobs: Vec<Submission> = tenants.iter().enumerate().map(submission).collect();
    handle(speculation, &Command::submit(request(n), jobs.into()))
}

#[test]
fn jobs_of_one_batch_count_for_their_own_tenant_and_user_alone() {
    let user = UserLimits { pending_jobs: Some(2), ..UserLimits::default() };
    let (mut speculation, mut state) =
        cluster(BOOTSTRAP, &[("team", TenantLimits { user, ..NONE }), ("other", NONE)]);
    // A batch for several tenants with the same labels, of which one has a limit.
    let ada = JobMetadata { creator: "ada".to_owned(), ..JobMetadata::default() };
    submit_many(&mut speculation, 1, &ada, &["team", "other", "other", "team", "other"]).unwrap();
    let refused = submit_many(&mut speculation, 2, &ada, &["other", "team"]).unwrap_err();
    assert_eq!(refused.code, RefusalCode::TenantLimit, "{refused}");
    // Nobody knows who submits these: labels change nothing of how they are counted.
    let mut labelled = JobMetadata::default();
    labelled.labels.insert("sweep".to_owned(), "7".to_owned());
    submit_many(&mut speculation, 3, &labelled, &["team", "team"]).unwrap();
    let refused = submit_many(&mut speculation, 4, &labelled, &["team"]).unwrap_err();
    assert_eq!(fact(&refused, "user"), "anonymous");
    commit(&mut speculation, &mut state);
    let pending = |tenant, user| state.user_load(&name(tenant), user).pending_jobs;
    assert_eq!([pending("team", "ada"), pending("other", "ada"), pending("team", "")], [2, 3, 2]);
    check(&state);
}

#[test]
fn members_that_are_not_created_count_for_their_user() {
    let user =
        UserLimits { pending_jobs: Some(5_000), unfinished_jobs: Some(6_000), ..UserLimits::default() };
    let (mut speculation, mut state) = cluster(BOOTSTRAP, &[("team", TenantLimits { user, ..NONE })]);
    let mut array_of = |n: u128, size: u32| {
        let mut draft = JobDraft::clone(&job(&format!("a{n}"), 1, None));
        draft.tenant = name("team");
        let mut submission = Submission::new(draft.check().unwrap(), JobContract::default());
        submission.metadata =
            Some(Arc::new(JobMetadata { creator: "ada".to_owned(), ..JobMetadata::default() }));
        submission.array = Some(ArraySpec::of_size(size));
        let answer = handle(&mut speculation, &Command::submit(request(n), Arc::new([submission])));
        commit(&mut speculation, &mut state);
        check(&state);
        (answer, state.user_load(&name("team"), "ada"))
    };
    let (answer, load) = array_of(1, 4_000);
    answer.unwrap();
    assert_eq!((load.pending_jobs, load.unfinished_jobs), (4_000, 4_000));
    let (refused, _) = array_of(2, 1_001);
    assert_eq!(fact(&refused.unwrap_err(), "limit"), "user.pendingJobs");
    let (answer, load) = array_of(3, 1_000);
    answer.unwrap();
    assert_eq!(load.pending_jobs, 5_000);
}

#[test]
fn a_user_with_many_arrays_has_no_more_placed_than_each_may_have_and_keeps_nobody_waiting() {
    let user = UserLimits { running_jobs: Some(2), ..UserLimits::default() };
    let (mut speculation, mut state) =
        cluster(BOOTSTRAP, &[("team", TenantLimits { user, ..NONE }), ("other", NONE)]);
    // All of them ask for the same under like names, and so do the jobs behind them: they are of one submission group.
    for n in 0..40 {
        let mut draft = JobDraft::clone(&job(&format!("j{n}"), 1, None));
        draft.tenant = name("team");
        let mut submission = Submission::new(draft.check().unwrap(), JobContract::default());
        let creator = "eve".to_owned();
        submission.metadata = Some(Arc::new(JobMetadata { creator, ..JobMetadata::default() }));
        submission.array = Some(ArraySpec::of_size(100));
        handle(&mut speculation, &Command::submit(request(n), Arc::new([submission]))).unwrap();
    }
    let as_is = |_: &mut JobDraft| {};
    let of_ada: Vec<JobId> =
        (1_000..1_003).map(|n| submit_as(&mut speculation, n, ("team", "ada"), as_is).unwrap()).collect();
    let of_nobody = submit_as(&mut speculation, 2_000, ("team", ""), as_is).unwrap();
    let elsewhere: Vec<JobId> =
        (3_000..3_003).map(|n| submit_as(&mut speculation, n, ("other", "eve"), as_is).unwrap()).collect();
    let placed_of_eve = |state: &State| {
        let is_hers = |job: JobId| {
            state.creator(job) == "eve" && state.spec(job).is_some_and(|spec| spec.tenant == name("team"))
        };
        state.jobs().iter().filter(|(job, row)| row.placement.is_some() && is_hers(**job)).count()
    };
    for _ in 0..3 {
        pass(&mut speculation, &mut state);
        assert_eq!(placed_of_eve(&state), 2);
        assert_eq!(of_ada.iter().filter(|job| is_placed(&state, **job)).count(), 2, "she may have as many");
        assert!(is_placed(&state, of_nobody), "those that nobody knows are another user");
        assert!(elsewhere.iter().all(|job| is_placed(&state, *job)), "another tenant has no such limit");
    }
    check(&state);
    let waits = of_ada.iter().find(|job| !is_placed(&state, **job)).unwrap();
    let said = explain_job(&state, state.log_time(), *waits, speculation.kept_reservations()).unwrap();
    assert_eq!(said.reason, WaitReason::TenantLimit, "{said}");
    for part in ["user ada", "tenant team", "limits.user.runningJobs", "may have 2"] {
        assert!(said.sentence.contains(part), "{said}");
    }
    // Each that ends gives way to one of the same user.
    let over = *of_ada.iter().find(|job| is_placed(&state, **job)).unwrap();
    let token = state.job(over).unwrap().placement.as_ref().unwrap().token;
    let updates = vec![(0, RankUpdate::Running), (0, RankUpdate::Exited(ExitStatus::Code(0)))];
    let report = Command::Report { node: NodeId(0), incarnation: 1, job: over, token, updates };
    handle(&mut speculation, &report).unwrap();
    pass(&mut speculation, &mut state);
    assert!(is_placed(&state, *waits));
    assert_eq!(placed_of_eve(&state), 2);
    // Without the limit everything that fits is placed.
    let mut draft = speculation.state().policy().policy.as_ref().clone().into_draft();
    draft.tenants.get_mut(&name("team")).unwrap().limits.user = UserLimits::default();
    let policy = Box::new(draft.check().unwrap());
    let set = Command::SetPolicy {
        request: request(u128::MAX - 1),
        by: muster_types::Requester::default(),
        policy,
        expected_version: None,
    };
    handle(&mut speculation, &set).unwrap();
    pass(&mut speculation, &mut state);
    assert!(placed_of_eve(&state) > 2);
    check(&state);
}

#[test]
fn users_of_one_tenant_share_the_rest_of_what_it_may_have_placed() {
    let user = UserLimits { running_jobs: Some(2), ..UserLimits::default() };
    let limits = TenantLimits { running_jobs: Some(3), user, ..NONE };
    let (mut speculation, mut state) = cluster(
        BOOTSTRAP,
        &[
            ("team", limits),
            (
                "none",
                TenantLimits { user: UserLimits { running_jobs: Some(0), ..UserLimits::default() }, ..NONE },
            ),
        ],
    );
    let as_is = |_: &mut JobDraft| {};
    let mut submitted = Vec::new();
    for (n, user) in ["ada", "ada", "ada", "bob", "bob"].into_iter().enumerate() {
        submitted.push(submit_as(&mut speculation, n as u128, ("team", user), as_is).unwrap());
    }
    let never = submit_as(&mut speculation, 10, ("none", "ada"), as_is).unwrap();
    pass(&mut speculation, &mut state);
    let placed: Vec<bool> = submitted.iter().map(|job| is_placed(&state, *job)).collect();
    assert_eq!(placed, [true, true, false, true, false]);
    assert!(!is_placed(&state, never));
    check(&state);
}

/// They ask for capacity in one name, and each has its own count of jobs.
#[test]
fn a_tenant_that_nobody_named_keeps_no_other_waiting_at_its_limit() {
    let mut draft = PolicyDraft::default();
    draft.tenants.insert(name("team"), TenantPolicy::default());
    let unlisted = draft.check().unwrap().unlisted().clone();
    let limits = TenantLimits { running_jobs: Some(1), ..NONE };
    let (mut speculation, mut state) = cluster(BOOTSTRAP, &[("team", NONE), (unlisted.as_str(), limits)]);
    let own: Vec<JobId> = (0..3).map(|n| submit(&mut speculation, n, "made-up-1").unwrap()).collect();
    let others = [(10, "made-up-2"), (11, "made-up-3"), (12, "team")];
    let others = others.map(|(n, tenant)| submit(&mut speculation, n, tenant).unwrap());
    for _ in 0..2 {
        pass(&mut speculation, &mut state);
        assert_eq!(own.iter().filter(|job| is_placed(&state, **job)).count(), 1);
        assert!(others.iter().all(|job| is_placed(&state, *job)), "they are not at their limits");
    }
    check(&state);
}

/// The work of a pass is bounded, and what was stepped over is not stepped over again by the next call.
#[test]
fn a_user_at_its_limit_with_a_long_queue_leaves_others_the_budget_that_they_need() {
    let user = UserLimits { running_jobs: Some(1), ..UserLimits::default() };
    let (mut speculation, mut state) = cluster(BOOTSTRAP, &[("team", TenantLimits { user, ..NONE })]);
    let as_is = |_: &mut JobDraft| {};
    let of_eve: Vec<JobId> =
        (0..100).map(|n| submit_as(&mut speculation, n, ("team", "eve"), as_is).unwrap()).collect();
    let of_ada = submit_as(&mut speculation, 1_000, ("team", "ada"), as_is).unwrap();
    commit(&mut speculation, &mut state);
    let mut calls = 0;
    while let Pass::Interrupted { .. } = schedule(&mut speculation, &mut Budget::new(40)) {
        commit(&mut speculation, &mut state);
        calls += 1;
        assert!(calls < 100, "a pass comes to its end");
    }
    commit(&mut speculation, &mut state);
    assert!(calls > 1, "one call steps over no more than its budget");
    assert_eq!(of_eve.iter().filter(|job| is_placed(&state, **job)).count(), 1);
    assert!(is_placed(&state, of_ada));
    check(&state);
}

/// A host with eight devices joins.
fn join_host(speculation: &mut Speculation) {
    let spec = node_spec("gpus", "eu", "c1", Some(accelerators("h100", 8)));
    let join = Command::Register { spec, holder: holder(9), other_session_is_over: false };
    handle(speculation, &join).unwrap();
}

#[test]
fn what_is_kept_for_a_user_who_came_with_a_token_counts_for_that_user() {
    let user = UserLimits { running_jobs: Some(1), ..UserLimits::default() };
    let (mut speculation, mut state) =
        cluster(BOOTSTRAP, &[("team", TenantLimits { user, ..NONE }), ("other", NONE)]);
    join_host(&mut speculation);
    let mut draft = speculation.state().policy().policy.as_ref().clone().into_draft();
    draft.preemption.minimum_run_ms = 0;
    let (by, policy) = (Requester::default(), Box::new(draft.check().unwrap()));
    let set = Command::SetPolicy { request: request(u128::MAX - 1), by, policy, expected_version: None };
    handle(&mut speculation, &set).unwrap();
    let whole_host = |tier: PriorityTier| {
        move |draft: &mut JobDraft| {
            draft.tier = tier;
            draft.groups = vec![group("main", 1, Some(accelerators("h100", 8)))];
        }
    };
    let low = submit_as(&mut speculation, 1, ("other", "eve"), whole_host(PriorityTier::Free)).unwrap();
    pass(&mut speculation, &mut state);
    let token = state.job(low).unwrap().placement.as_ref().unwrap().token;
    let updates = vec![(0, RankUpdate::Running)];
    let report = Command::Report { node: NodeId(1), incarnation: 1, job: low, token, updates };
    handle(&mut speculation, &report).unwrap();
    let by_token = ("team", "ada+token/0000000000000007");
    let above = submit_as(&mut speculation, 2, by_token, whole_host(PriorityTier::Standard)).unwrap();
    pass(&mut speculation, &mut state);
    assert!(state.job(above).unwrap().promise.is_some(), "another gives way to it");
    let waits = submit_as(&mut speculation, 3, ("team", "ada"), |_: &mut JobDraft| {}).unwrap();
    pass(&mut speculation, &mut state);
    assert!(state.is_user_at_limit(waits) && !is_placed(&state, waits));
    check(&state);
}

#[test]
fn devices_that_a_user_holds_keep_its_next_job_waiting() {
    let user = UserLimits { devices: Some(4), ..UserLimits::default() };
    let (mut speculation, mut state) = cluster(BOOTSTRAP, &[("team", TenantLimits { user, ..NONE })]);
    join_host(&mut speculation);
    let with = |devices: u16| {
        move |draft: &mut JobDraft| draft.groups = vec![group("main", 1, Some(accelerators("h100", devices)))]
    };
    let first = submit_as(&mut speculation, 1, ("team", "ada"), with(3)).unwrap();
    pass(&mut speculation, &mut state);
    assert!(is_placed(&state, first));
    let too_many = submit_as(&mut speculation, 2, ("team", "ada"), with(2)).unwrap();
    let of_another = submit_as(&mut speculation, 3, ("team", "eve"), with(2)).unwrap();
    let without = submit_as(&mut speculation, 4, ("team", "ada"), |_: &mut JobDraft| {}).unwrap();
    pass(&mut speculation, &mut state);
    for (job, is_held) in [(too_many, true), (of_another, false), (without, false)] {
        assert_eq!(state.is_held_by_limit(job), is_held, "{job}");
        assert_eq!(state.user_device_limit_reached(job).is_some(), is_held, "{job}");
        assert_eq!(is_placed(&state, job), !is_held, "{job}");
    }
    check(&state);
}

#[test]
fn spare_workers_count_for_the_limit_of_one_job() {
    let of_every_job = JobLimits { devices_max: Some(4), ..JobLimits::default() };
    let (mut speculation, _) = cluster(BOOTSTRAP, &[("team", TenantLimits { job: of_every_job, ..NONE })]);
    join_host(&mut speculation);
    let mut with_spares = |n: u128, spares| {
        let mut draft = JobDraft::clone(&job(&format!("s{n}"), 1, None));
        draft.tenant = name("team");
        draft.groups = vec![group("main", 2, Some(accelerators("h100", 1)))];
        let contract = JobContract { spares, ..JobContract::default() };
        let submission = Submission::new(draft.check().unwrap(), contract);
        handle(&mut speculation, &Command::submit(request(n), Arc::new([submission])))
    };
    with_spares(1, 2).unwrap();
    let refused = with_spares(2, 3).unwrap_err();
    assert_eq!((refused.code, fact(&refused, "asked")), (RefusalCode::JobAboveLimit, "5".into()));
}

#[test]
fn a_limit_on_workers_also_bounds_gangs_without_devices() {
    let of_every_job = JobLimits { workers_max: Some(4), ..JobLimits::default() };
    let (mut speculation, _) = cluster(BOOTSTRAP, &[("team", TenantLimits { job: of_every_job, ..NONE })]);
    join_host(&mut speculation);
    let mut submit = |n: u128, groups, spares| {
        let mut draft = JobDraft::clone(&job(&format!("w{n}"), 1, None));
        draft.tenant = name("team");
        draft.groups = groups;
        let contract = JobContract { spares, ..JobContract::default() };
        let submission = Submission::new(draft.check().unwrap(), contract);
        handle(&mut speculation, &Command::submit(request(n), Arc::new([submission])))
    };
    submit(1, vec![group("main", 4, None)], 0).unwrap();
    submit(2, vec![group("main", 2, None), group("other", 2, None)], 0).unwrap();
    // All groups together, and the spare workers of one.
    for (n, groups, spares) in [
        (3, vec![group("main", 5, None)], 0),
        (4, vec![group("main", 2, None), group("other", 3, None)], 0),
        (5, vec![group("main", 4, Some(accelerators("h100", 1)))], 1),
    ] {
        let refused = submit(n, groups, spares).unwrap_err();
        assert_eq!(
            (refused.code, fact(&refused, "limit"), fact(&refused, "limit_max"), fact(&refused, "asked")),
            (RefusalCode::JobAboveLimit, "job.maxWorkers".into(), "4".into(), "5".into()),
        );
    }
}

#[test]
fn a_job_that_a_lower_limit_found_may_ask_for_less() {
    const HOUR_MS: u64 = 3_600_000;
    let (mut speculation, _) = cluster(BOOTSTRAP, &[("team", NONE)]);
    join_host(&mut speculation);
    let wide = |draft: &mut JobDraft| {
        draft.groups = vec![group("main", 3, Some(accelerators("h100", 1)))];
        draft.run_time_limit_ms = Some(10 * HOUR_MS);
    };
    let job = submit_as(&mut speculation, 1, ("team", "ada"), wide).unwrap();
    let mut draft = speculation.state().policy().policy.as_ref().clone().into_draft();
    let lower =
        JobLimits { devices_max: Some(2), run_time_max_ms: Some(5 * HOUR_MS), ..JobLimits::default() };
    draft.tenants.get_mut(&name("team")).unwrap().limits.job = lower;
    let policy = Box::new(draft.check().unwrap());
    let set = Command::SetPolicy {
        request: request(u128::MAX - 1),
        by: muster_types::Requester::default(),
        policy,
        expected_version: None,
    };
    handle(&mut speculation, &set).unwrap();
    let mut change = |n, change: FieldChange| {
        let by = Requester::named("ada".to_owned(), false);
        let order = ModifyOrder {
            acts_for: None,
            request: request(n),
            by,
            job,
            expected: None,
            changes: vec![change],
        };
        handle(&mut speculation, &Command::Modify(Box::new(order)))
    };
    change(2, FieldChange::RunTimeLimit(Some(7 * HOUR_MS))).unwrap();
    let longer = change(3, FieldChange::RunTimeLimit(Some(8 * HOUR_MS))).unwrap_err();
    assert_eq!((longer.code, fact(&longer, "limit")), (RefusalCode::JobAboveLimit, "job.maxRunTime".into()));
    let none = change(4, FieldChange::RunTimeLimit(None)).unwrap_err();
    assert_eq!(none.code, RefusalCode::JobAboveLimit);
    // Another tier has to be one that lets a job ask for this.
    let tier = change(5, FieldChange::Tier(PriorityTier::Batch)).unwrap_err();
    assert_eq!(fact(&tier, "limit"), "job.maxDevices");
    change(6, FieldChange::RunTimeLimit(Some(HOUR_MS))).unwrap();
}

#[test]
fn a_submission_is_the_same_request_whether_or_not_its_creator_is_known() {
    let (mut speculation, _) = cluster(BOOTSTRAP, &[("team", NONE)]);
    let mut batch = |creator: &str| {
        let plain = JobDraft::clone(&job("plain", 1, None));
        let mut jobs =
            [1, 2].map(|_| Submission::new(plain.clone().check().unwrap(), JobContract::default()));
        let mut labelled = JobMetadata { creator: creator.to_owned(), ..JobMetadata::default() };
        let unlabelled = labelled.clone();
        labelled.labels.insert("team".to_owned(), "vision".to_owned());
        jobs[0].metadata = Some(Arc::new(labelled));
        jobs[1].metadata = (!unlabelled.is_default()).then(|| Arc::new(unlabelled));
        handle(&mut speculation, &Command::submit(request(1), Arc::new(jobs)))
    };
    let first = batch("ada").unwrap();
    assert_eq!(batch("").unwrap(), first);
}
