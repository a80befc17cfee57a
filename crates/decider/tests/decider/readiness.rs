//! Gangs whose workers have to say that they are ready, over a change of the leader and while an agent is cut off.

use muster_decider::{Answer, Command, Speculation, handle, schedule, tick};
use muster_journal::RankUpdate;
use muster_planner::Budget;
use muster_state::{Phase, State};
use muster_types::{JobContract, JobId, LogTime, NodeId, Submission};

use crate::support::{BOOTSTRAP, commit, founded, group, holder, job_draft, leadership, node_spec, request};

const TIMEOUT_MS: u64 = 60_000;

fn register(speculation: &mut Speculation) {
    let spec = node_spec("h1", "eu", "c1", None);
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    handle(speculation, &command).expect("it is taken");
}

fn report(speculation: &mut Speculation, job: JobId, update: RankUpdate) {
    let row = speculation.state().job(job).expect("a job");
    let placement = row.placement.clone().expect("a placement");
    let (slot, token) = (&placement.slots[0], placement.token);
    let updates = vec![(0, update)];
    let command = Command::Report { node: slot.node, incarnation: slot.incarnation, job, token, updates };
    handle(speculation, &command).expect("it is taken");
}

/// A job runs that has to be ready within a minute, and its leader is gone; with the state of another replica.
fn without_a_leader() -> (State, JobId) {
    let (mut speculation, mut state) = founded();
    register(&mut speculation);
    let mut draft = job_draft("serve", vec![group("main", 1, None)]);
    draft.readiness_ms = Some(TIMEOUT_MS);
    let jobs = [Submission::new(draft.check().expect("a job"), JobContract::default())].into();
    let job = match handle(&mut speculation, &Command::submit(request(1), jobs)) {
        Ok(Answer::Submitted { jobs, .. }) => jobs[0],
        other => panic!("{other:?}"),
    };
    schedule(&mut speculation, &mut Budget::new(u64::MAX));
    report(&mut speculation, job, RankUpdate::Running);
    commit(&mut speculation, &mut state);
    (state, job)
}

/// The next leader, as soon as the time is over.
fn next_leader(state: &State) -> Speculation {
    let now = state.log_time().plus_ms(TIMEOUT_MS);
    Speculation::begin(state.clone(), leadership(2, 2), now, BOOTSTRAP)
}

fn later(speculation: &mut Speculation, state: &mut State, ms: u64) {
    commit(speculation, state);
    let now = speculation.now();
    speculation.set_now(LogTime(now.0 + ms));
    tick(speculation);
}

fn phase(speculation: &Speculation, job: JobId) -> Phase {
    speculation.state().job(job).expect("a job").phase.clone()
}

#[test]
fn what_a_worker_said_while_nobody_led_counts() {
    let (mut state, job) = without_a_leader();
    let mut speculation = next_leader(&state);
    tick(&mut speculation);
    assert_eq!(phase(&speculation, job), Phase::Running, "its agent has yet to open a session");
    register(&mut speculation);
    tick(&mut speculation);
    assert_eq!(phase(&speculation, job), Phase::Running, "its agent has yet to repeat what it said");
    report(&mut speculation, job, RankUpdate::Ready);
    later(&mut speculation, &mut state, 3_600_000);
    assert_eq!(phase(&speculation, job), Phase::Running);
    commit(&mut speculation, &mut state);
}

#[test]
fn who_has_said_nothing_is_stopped_by_the_next_leader() {
    let (mut state, job) = without_a_leader();
    let mut speculation = next_leader(&state);
    register(&mut speculation);
    later(&mut speculation, &mut state, 5_000);
    assert_eq!(phase(&speculation, job), Phase::Running, "its agent may still repeat something");
    later(&mut speculation, &mut state, 5_000);
    assert!(matches!(phase(&speculation, job), Phase::Stopping(_)));
    commit(&mut speculation, &mut state);
}

#[test]
fn what_a_worker_said_while_its_agent_was_cut_off_counts() {
    let (mut state, job) = without_a_leader();
    let mut speculation = next_leader(&state);
    register(&mut speculation);
    // It is cut off from this leader while the time is over, and longer than anybody waits for one that is heard of.
    let node = NodeId(0);
    assert!(speculation.state().node(node).is_some());
    speculation.set_silent([node]);
    later(&mut speculation, &mut state, 30_000);
    assert_eq!(phase(&speculation, job), Phase::Running, "nobody knows what it has to say");
    register(&mut speculation);
    speculation.set_silent([]);
    later(&mut speculation, &mut state, 9_000);
    assert_eq!(phase(&speculation, job), Phase::Running, "its agent may still repeat something");
    report(&mut speculation, job, RankUpdate::Ready);
    later(&mut speculation, &mut state, 3_600_000);
    assert_eq!(phase(&speculation, job), Phase::Running);
    commit(&mut speculation, &mut state);
}

#[test]
fn an_agent_that_opens_sessions_again_and_again_is_not_waited_for_without_end() {
    let (mut state, job) = without_a_leader();
    let mut speculation = next_leader(&state);
    let mut waited_ms = 0;
    while phase(&speculation, job) == Phase::Running {
        assert!(waited_ms < 60_000, "it has had the time to repeat everything");
        register(&mut speculation);
        later(&mut speculation, &mut state, 5_000);
        waited_ms += 5_000;
    }
    assert_eq!(waited_ms, 60_000);
    commit(&mut speculation, &mut state);
}
