//! Elastic gangs whose number of workers is changed after they were placed.

use muster_decider::{Answer, Command, ModifyOrder, Speculation, handle, schedule};
use muster_journal::{CapacityHold, Decision, RankUpdate, RearrangeCause, Stop};
use muster_planner::Budget;
use muster_state::{Phase, Placement, State};
use muster_types::{ExitStatus, FieldChange, GroupSize, JobContract, JobId, Requester, Submission};

use crate::support::{commit, founded, group, holder, job_draft, node_spec, request};

const WORKERS: u32 = 8;

/// A gang of two to eight workers, which runs with all of them.
fn running() -> (Speculation, State, JobId) {
    let (mut speculation, mut state) = founded();
    let spec = node_spec("h1", "eu", "c1", None);
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    handle(&mut speculation, &command).expect("it is taken");
    let mut main = group("main", WORKERS, None);
    main.workers_min = 2;
    let spec = job_draft("train", vec![main]).check().expect("a job");
    let jobs = [Submission::new(spec, JobContract::default())].into();
    let job = match handle(&mut speculation, &Command::submit(request(1), jobs)) {
        Ok(Answer::Submitted { jobs, .. }) => jobs[0],
        other => panic!("{other:?}"),
    };
    place(&mut speculation, &mut state, job);
    assert_eq!(state.job(job).expect("a job").phase, Phase::Running);
    (speculation, state, job)
}

fn placement(speculation: &Speculation, job: JobId) -> Placement {
    let row = speculation.state().job(job).expect("a job");
    Placement::clone(row.placement.as_ref().expect("a placement"))
}

fn report(speculation: &mut Speculation, job: JobId, update: &RankUpdate) {
    let placement = placement(speculation, job);
    let updates = (0u32..).zip(&placement.slots).map(|(rank, _)| (rank, update.clone())).collect();
    let (slot, token) = (&placement.slots[0], placement.token);
    let command = Command::Report { node: slot.node, incarnation: slot.incarnation, job, token, updates };
    handle(speculation, &command).expect("it is taken");
}

fn place(speculation: &mut Speculation, state: &mut State, job: JobId) {
    schedule(speculation, &mut Budget::new(u64::MAX));
    report(speculation, job, &RankUpdate::Running);
    commit(speculation, state);
}

fn resize(speculation: &mut Speculation, n: u128, job: JobId, workers: u32) {
    let size = GroupSize { group: None, workers, workers_min: None };
    let order = ModifyOrder {
        request: request(n),
        by: Requester::default(),
        acts_for: None,
        job,
        expected: None,
        changes: vec![FieldChange::Groups(vec![size])],
    };
    handle(speculation, &Command::Modify(Box::new(order))).expect("it is taken");
}

#[test]
fn a_gang_with_as_many_workers_as_somebody_asked_for_is_not_looked_at_for_growing() {
    let (mut speculation, mut state, job) = running();
    resize(&mut speculation, 2, job, 4);
    report(&mut speculation, job, &RankUpdate::Exited(ExitStatus::Signal(15)));
    place(&mut speculation, &mut state, job);
    assert_eq!(placement(&speculation, job).slots.len(), 4);
    assert_eq!(state.growable().count(), 0);
    resize(&mut speculation, 3, job, 6);
    commit(&mut speculation, &mut state);
    assert_eq!(state.growable().collect::<Vec<_>>(), [job]);
}

#[test]
fn a_gang_that_moves_gives_up_a_place_for_more_workers_than_it_is_to_have() {
    let (mut speculation, mut state, job) = running();
    let Placement { token, slots, .. } = placement(&speculation, job);
    let stops = vec![Stop { job, token, cause: RearrangeCause::Resized }];
    speculation.push(Decision::Rearranged { stops, promises: vec![CapacityHold { job, workers: slots }] });
    resize(&mut speculation, 2, job, 4);
    commit(&mut speculation, &mut state);
    assert!(state.job(job).is_some_and(|row| row.promise.is_none()));
    report(&mut speculation, job, &RankUpdate::Exited(ExitStatus::Signal(15)));
    place(&mut speculation, &mut state, job);
    assert_eq!(placement(&speculation, job).slots.len(), 4);
}
