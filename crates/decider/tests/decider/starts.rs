//! The forecast of the starts of all waiting jobs.

use muster_decider::{
    Answer, Command, ExpectedStarts, Speculation, expected_starts, explain_job, handle, schedule,
};
use muster_planner::Budget;
use muster_state::State;
use muster_types::{JobContract, JobId, LogTime, Submission};

use crate::support::{accelerators, commit, founded, group, holder, job_draft, node_draft, request};

const HOUR_MS: u64 = 3_600_000;
const WAITING: usize = 5;

/// One host, a gang that holds all of it, and others that ask for the same.
fn busy() -> (Speculation, State, Vec<JobId>) {
    let (mut speculation, mut state) = founded();
    let spec = node_draft("n1", "eu", "c1", Some(accelerators("h100", 8))).check().expect("a node");
    let register = Command::Register { spec, holder: holder(1), other_session_is_over: true };
    handle(&mut speculation, &register).expect("it is taken");
    let mut jobs = Vec::new();
    for number in 0..=WAITING {
        let text = format!("job{number}");
        let mut draft = job_draft(&text, vec![group("main", 1, Some(accelerators("h100", 8)))]);
        draft.expected_run_ms = Some(HOUR_MS);
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
