//! Jobs that are a part of a trace: it decides nothing.

use std::sync::Arc;

use muster_decider::{Answer, Command, Speculation, handle};
use muster_state::GangClass;
use muster_types::{ArraySpec, JobContract, JobDraft, JobId, RefusalCode, Submission, TraceParent};

use crate::support::{BOOTSTRAP, check, commit, founded_as, holder, job, node_spec, request};

fn parent(byte: u8) -> Option<TraceParent> {
    TraceParent::new([byte; 16], [byte; 8], 1)
}

fn submission(trace_parent: Option<TraceParent>, spares: u32) -> Submission {
    let contract = JobContract { trace_parent, spares, ..JobContract::default() };
    Submission::new(JobDraft::clone(&job("train", 1, None)).check().unwrap(), contract)
}

fn submit(speculation: &mut Speculation, n: u128, jobs: &[Submission]) -> Result<Vec<JobId>, RefusalCode> {
    match handle(speculation, &Command::submit(request(n), Arc::from(jobs))) {
        Ok(Answer::Submitted { jobs, .. }) => Ok(jobs),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(refusal.code),
    }
}

#[test]
fn a_request_that_is_repeated_in_another_span_is_the_same_request() {
    let (mut speculation, mut state) = founded_as(BOOTSTRAP);
    let spec = node_spec("n0", "eu", "c1", None);
    let register = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    handle(&mut speculation, &register).unwrap();
    commit(&mut speculation, &mut state);
    let ids = submit(&mut speculation, 1, &[submission(parent(1), 0)]).unwrap();
    for again in [parent(2), None, parent(1)] {
        assert_eq!(submit(&mut speculation, 1, &[submission(again, 0)]), Ok(ids.clone()));
    }
    let other = submit(&mut speculation, 1, &[submission(parent(1), 1)]);
    assert_eq!(other, Err(RefusalCode::RequestIdReused), "what is asked for differs");
    // The same where the first one was a part of no trace, and of an array.
    let plain = submit(&mut speculation, 2, &[submission(None, 0)]).unwrap();
    assert_eq!(submit(&mut speculation, 2, &[submission(parent(3), 0)]), Ok(plain.clone()));
    let array = |trace| {
        let mut submission = submission(trace, 0);
        submission.array = Some(ArraySpec::parse("0-1").unwrap());
        [submission]
    };
    let members = submit(&mut speculation, 3, &array(parent(4))).unwrap();
    assert_eq!(submit(&mut speculation, 3, &array(parent(5))), Ok(members.clone()));
    commit(&mut speculation, &mut state);
    let kept = |job: &JobId| state.contract(*job).and_then(|contract| contract.trace_parent);
    assert_eq!((kept(&ids[0]), kept(&plain[0]), kept(&members[0])), (parent(1), None, parent(4)));
    check(&state);
}

#[test]
fn jobs_of_different_traces_are_alike() {
    let (one, other) = (submission(parent(1), 0), submission(parent(2), 0));
    assert_eq!(GangClass::of(&one), GangClass::of(&other));
    assert_eq!(one.contract.without_trace(), other.contract.without_trace());
    assert!(one.contract.without_trace().is_default() && !one.contract.is_default());
}
