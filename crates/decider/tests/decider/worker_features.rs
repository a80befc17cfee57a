//! A job whose workers ask for what not every host can do stays away from hosts that cannot, also when it is changed.

use crate::support::{accelerators, founded, group, holder, job_draft, name, node_draft, request};
use muster_decider::{Answer, Command, ModifyOrder, Speculation, handle, schedule};
use muster_planner::Budget;
use muster_state::Phase;
use muster_types::worker_features::WorkerFeature;
use muster_types::{FieldChange, JobContract, JobId, Requester, Submission};

/// Two hosts, of which the second lacks terminals.
fn fleet() -> Speculation {
    let (mut speculation, _) = founded();
    for text in ["h1", "h2"] {
        let mut draft = node_draft(text, "eu", "c1", Some(accelerators("h100", 4)));
        if text == "h2" {
            let (label, value) = WorkerFeature::Terminal.lacking_fact();
            draft.labels = [(name(label), value.to_owned())].into();
        }
        let spec = draft.check().expect("a node");
        let command = Command::Register { spec, holder: holder(1), other_session_is_over: true };
        handle(&mut speculation, &command).expect("it is taken");
    }
    speculation
}

/// A job that takes all devices of a host.
fn submit(speculation: &mut Speculation, n: u128, terminal: bool) -> JobId {
    let draft = job_draft("work", vec![group("main", 1, Some(accelerators("h100", 4)))]);
    let contract = JobContract { terminal, ..JobContract::default() };
    let mut jobs = vec![Submission::new(draft.check().expect("a job"), contract)];
    Submission::require_features(&mut jobs, |_| "job".to_owned()).expect("one condition");
    let answer = handle(speculation, &Command::submit(request(n), jobs.into()));
    schedule(speculation, &mut Budget::new(1_000_000));
    match answer {
        Ok(Answer::Submitted { jobs, .. }) => jobs[0],
        other => panic!("{other:?}"),
    }
}

fn is_pending(speculation: &Speculation, job: JobId) -> bool {
    speculation.state().job(job).is_some_and(|row| row.phase == Phase::Pending)
}

#[test]
fn a_job_with_a_terminal_stays_away_from_a_host_without_any() {
    let mut speculation = fleet();
    let first = submit(&mut speculation, 1, true);
    let second = submit(&mut speculation, 2, true);
    assert!(!is_pending(&speculation, first) && is_pending(&speculation, second));
    let asked = speculation.state().spec(second).and_then(|spec| spec.nodes.clone()).expect("a condition");
    assert_eq!(asked.expressions[0].to_string(), "worker.terminal notin (none)");
    // It asks for nothing else of its nodes any more, and still for this.
    let order = ModifyOrder {
        request: request(3),
        by: Requester::default(),
        acts_for: None,
        job: second,
        expected: None,
        changes: vec![FieldChange::Nodes(None)],
    };
    handle(&mut speculation, &Command::Modify(Box::new(order))).expect("it is taken");
    schedule(&mut speculation, &mut Budget::new(1_000_000));
    assert!(is_pending(&speculation, second));
    let other = submit(&mut speculation, 4, false);
    assert!(!is_pending(&speculation, other), "the host takes others");
}
