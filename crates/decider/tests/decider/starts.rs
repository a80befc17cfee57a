//! The forecast of the starts of all waiting jobs.

use std::sync::Arc;

use muster_decider::{
    Answer, Command, ExpectedStarts, QueueForecast, Speculation, expected_starts, expected_starts_in,
    explain_job, explain_job_in, handle, schedule,
};
use muster_planner::Budget;
use muster_state::State;
use muster_types::policy::{
    CountedResource, PolicyDraft, QueueChoices, QueueOrder, TenantLimits, TenantPolicy,
};
use muster_types::{JobContract, JobDraft, JobId, LogTime, Name, PriorityTier, Requester, Submission};

use crate::support::{
    accelerators, commit, founded, group, holder, job_draft, name, node_draft, request, with_all_rights,
};

const HOUR_MS: u64 = 3_600_000;
const WAITING: usize = 5;

/// One host, a gang that holds all of it, and others that ask for the same.
fn busy() -> (Speculation, State, Vec<JobId>) {
    busy_under(PolicyDraft::default(), |_, _| {})
}

/// The same under a policy, with jobs that are changed by their number.
fn busy_under(
    policy: PolicyDraft,
    change: impl Fn(usize, &mut JobDraft),
) -> (Speculation, State, Vec<JobId>) {
    let (mut speculation, mut state) = founded();
    let command = Command::SetPolicy {
        request: request(1_000),
        by: Requester::default(),
        policy: Box::new(with_all_rights(policy).check().expect("a policy")),
        expected_version: None,
    };
    handle(&mut speculation, &command).expect("it is taken");
    let spec = node_draft("n1", "eu", "c1", Some(accelerators("h100", 8))).check().expect("a node");
    let register = Command::Register { spec, holder: holder(1), other_session_is_over: true };
    handle(&mut speculation, &register).expect("it is taken");
    let mut jobs = Vec::new();
    for number in 0..=WAITING {
        let text = format!("job{number}");
        let mut draft = job_draft(&text, vec![group("main", 1, Some(accelerators("h100", 8)))]);
        draft.expected_run_ms = Some(HOUR_MS);
        change(number, &mut draft);
        let submission = Submission::new(draft.check().expect("a job"), JobContract::default());
        let asked = Command::submit(request(number as u128 + 1), [submission].into());
        match handle(&mut speculation, &asked) {
            Ok(Answer::Submitted { jobs: made, .. }) => jobs.push(made[0]),
            other => panic!("{other:?}"),
        }
    }
    schedule(&mut speculation, &mut Budget::new(u64::MAX));
    commit(&mut speculation, &mut state);
    (speculation, state, jobs)
}

fn forecast(speculation: &Speculation, state: &State, jobs_max: usize, visits: u64) -> ExpectedStarts {
    let bounds = (jobs_max, 10_000, visits);
    expected_starts(state, state.log_time(), speculation.kept_reservations(), bounds)
}

#[test]
fn jobs_that_ask_for_the_same_start_one_after_another_and_the_first_as_it_is_explained() {
    let (speculation, state, jobs) = busy();
    let found = forecast(&speculation, &state, 100, u64::MAX);
    assert!(!found.is_cut);
    let order: Vec<JobId> = found.starts.iter().map(|start| start.job).collect();
    assert_eq!(order, jobs[1..], "what runs does not wait");
    let starts: Vec<LogTime> =
        found.starts.iter().map(|start| start.start.expect("it is known").q50).collect();
    assert!(starts.is_sorted_by(|a, b| a < b), "no two of them have the host at a time: {starts:?}");
    let kept = speculation.kept_reservations();
    let explained = explain_job(&state, state.log_time(), jobs[1], kept).expect("it waits");
    assert_eq!(explained.start.map(|start| start.q50), Some(starts[0]));
    for start in found.starts.iter().filter_map(|start| start.start) {
        assert!(start.q10 <= start.q50 && start.q90.is_none_or(|late| start.q50 <= late), "{start:?}");
    }
}

/// Which of those that wait have a start.
fn have_starts(speculation: &Speculation, state: &State) -> Vec<bool> {
    let found = forecast(speculation, state, 100, u64::MAX);
    found.starts.iter().map(|job| job.start.is_some()).collect()
}

#[test]
fn of_two_jobs_that_want_the_last_licence_one_has_a_start() {
    let resource = CountedResource { name: name("matlab"), count: 1, region: None };
    let policy = PolicyDraft { resources: vec![resource], ..PolicyDraft::default() };
    let (speculation, state, _) = busy_under(policy, |number, draft| {
        if number > 0 {
            draft.licences = [(name("matlab"), 1)].into();
        }
    });
    assert_eq!(have_starts(&speculation, &state), [true, false, false, false, false]);
}

#[test]
fn of_two_jobs_that_want_what_a_limit_leaves_one_has_a_start() {
    // Each of them takes one CPU, and one of them runs.
    let limits = TenantLimits { cpu_milli: Some(3_000), ..TenantLimits::default() };
    let tenant = TenantPolicy { limits, ..TenantPolicy::default() };
    let policy = PolicyDraft { tenants: [(name("research"), tenant)].into(), ..PolicyDraft::default() };
    let (speculation, state, _) = busy_under(policy, |_, _| {});
    assert_eq!(have_starts(&speculation, &state), [true, true, false, false, false]);
}

#[test]
fn in_strict_order_only_the_first_has_a_start() {
    let queue = QueueChoices { order: Some(QueueOrder::Strict), ..QueueChoices::default() };
    let tenant = TenantPolicy { queue, ..TenantPolicy::default() };
    let policy = PolicyDraft { tenants: [(name("research"), tenant)].into(), ..PolicyDraft::default() };
    let (speculation, state, jobs) = busy_under(policy, |_, _| {});
    assert_eq!(have_starts(&speculation, &state), [true, false, false, false, false]);
    let explained = |job: JobId| {
        let kept = speculation.kept_reservations();
        explain_job(&state, state.log_time(), job, kept).expect("it waits").start.is_some()
    };
    assert!(explained(jobs[1]) && !explained(jobs[2]), "as a job is explained");
}

#[test]
fn a_forecast_ends_at_its_bounds_and_tells_it() {
    let (speculation, state, _) = busy();
    let few = forecast(&speculation, &state, 3, u64::MAX);
    assert_eq!((few.starts.len(), few.is_cut), (3, true));
    let none = forecast(&speculation, &state, 100, 0);
    assert_eq!((none.starts.len(), none.is_cut), (0, true));
    let all = forecast(&speculation, &state, WAITING, u64::MAX);
    assert_eq!((all.starts.len(), all.is_cut), (WAITING, false));
}

/// Two hosts that are full, and more different requests than a walk along the queue comes to: of several sizes, tiers and tenants.
fn crowded() -> (Speculation, State, Vec<JobId>) {
    let (mut speculation, mut state) = founded();
    for host in 1..=2 {
        let draft = node_draft(&format!("n{host}"), "eu", "c1", Some(accelerators("h100", 8)));
        let spec = draft.check().expect("a node");
        let register = Command::Register { spec, holder: holder(host), other_session_is_over: true };
        handle(&mut speculation, &register).expect("it is taken");
    }
    let tiers = PriorityTier::ALL;
    let mut jobs = Vec::new();
    for number in 0..420_usize {
        let devices = [8, 1, 4, 2][number % 4];
        let workers = 1 + u32::from(number.is_multiple_of(7));
        let mut asked = group("main", workers, Some(accelerators("h100", devices)));
        asked.request.cpu_milli = 1_000 + number as u64;
        let mut draft = job_draft(&format!("job{number}"), vec![asked]);
        draft.tenant = Name::new(["vision", "speech", "research"][number % 3]).expect("a name");
        // Most are of one tier, so that many have others before them.
        draft.tier = if number % 11 == 3 { tiers[number % tiers.len()] } else { PriorityTier::default() };
        draft.expected_run_ms = Some(HOUR_MS * (1 + number as u64 % 5));
        let submission = Submission::new(draft.check().expect("a job"), JobContract::default());
        let asked = Command::submit(request(number as u128 + 1), [submission].into());
        match handle(&mut speculation, &asked) {
            Ok(Answer::Submitted { jobs: made, .. }) => jobs.extend(made),
            other => panic!("{other:?}"),
        }
        commit(&mut speculation, &mut state);
    }
    schedule(&mut speculation, &mut Budget::new(u64::MAX));
    commit(&mut speculation, &mut state);
    (speculation, state, jobs)
}

#[test]
fn a_job_is_explained_alike_alone_and_after_any_others_of_the_same_state() {
    let (speculation, state, jobs) = crowded();
    let now = state.log_time();
    let kept = speculation.kept_reservations();
    // From the front, the end and places between them, also the same place again.
    let steps = [1, 419, 2, 3, 160, 160, 318, 41, 42, 250, 1, 5];
    let alone = |job: JobId| explain_job(&state, now, job, kept);
    let mut forecast = QueueForecast::new(&state, now, Arc::new(kept.clone()));
    let (mut explained, mut or_more) = (0, 0);
    for at in steps {
        let found = explain_job_in(&state, jobs[at], &mut forecast);
        assert_eq!(found, alone(jobs[at]), "job {at}");
        explained += usize::from(found.is_some());
        let position = found.and_then(|found| found.position);
        or_more += usize::from(position.is_some_and(|position| position.or_more));
    }
    assert!(explained > 6, "most of them wait: {explained}");
    assert!(or_more > 0, "some are farther behind than is counted");
    let mut backwards = QueueForecast::new(&state, now, Arc::new(kept.clone()));
    for at in (0..jobs.len()).rev().step_by(90) {
        assert_eq!(explain_job_in(&state, jobs[at], &mut backwards), alone(jobs[at]), "job {at}");
    }
}

#[test]
fn starts_are_expected_alike_alone_and_with_what_explanations_have_foreseen() {
    let (speculation, state, jobs) = crowded();
    let (now, kept) = (state.log_time(), speculation.kept_reservations());
    for bounds in [(200, 10_000, 1_000_000), (40, 10_000, 20_000), (0, 10, 10)] {
        let alone = expected_starts(&state, now, kept, bounds);
        let mut forecast = QueueForecast::new(&state, now, Arc::new(kept.clone()));
        assert!(explain_job_in(&state, jobs[319], &mut forecast).is_some());
        let explained = explain_job_in(&state, jobs[250], &mut forecast);
        let mut separate = forecast.without_walks();
        assert_eq!(expected_starts_in(&state, &mut separate, bounds), alone, "{bounds:?}");
        // Nor does an explanation depend on them.
        assert_eq!(expected_starts_in(&state, &mut forecast, bounds), alone, "{bounds:?}");
        assert_eq!(explain_job_in(&state, jobs[250], &mut forecast), explained, "{bounds:?}");
    }
}

#[test]
fn a_forecast_of_an_older_state_is_not_used_for_a_newer_one() {
    let (mut speculation, mut state, jobs) = crowded();
    let now = state.log_time();
    let kept = Arc::new(speculation.kept_reservations().clone());
    let mut forecast = QueueForecast::new(&state, now, Arc::clone(&kept));
    assert!(explain_job_in(&state, jobs[319], &mut forecast).is_some());
    let draft = job_draft("late", vec![group("main", 1, Some(accelerators("h100", 3)))]);
    let submission = Submission::new(draft.check().expect("a job"), JobContract::default());
    handle(&mut speculation, &Command::submit(request(9_999), [submission].into())).expect("it is taken");
    commit(&mut speculation, &mut state);
    assert!(!forecast.is_of(&state, &kept));
    let found = explain_job_in(&state, jobs[300], &mut forecast);
    assert_eq!(found, explain_job(&state, now, jobs[300], &kept));
    assert!(forecast.is_of(&state, &kept));
}
