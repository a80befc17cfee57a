//! Spares of gangs whose workers go together.

use std::sync::Arc;

use muster_decider::{Answer, Command, Speculation, handle, schedule};
use muster_planner::Budget;
use muster_types::{JobContract, JobId, Level, Refusal, Segment, Spread, Submission, TopologyRule};

use crate::support::{accelerators, commit, founded, group, holder, job_draft, name, node_draft, request};

fn register(speculation: &mut Speculation, text: &str, devices: u16) {
    let mut draft = node_draft(text, "eu", "c1", Some(accelerators("h100", devices)));
    draft.rack = name(&format!("rack-of-{text}"));
    let spec = draft.check().expect("a node");
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    handle(speculation, &command).expect("it is taken");
}

/// A gang of four workers and a spare.
fn submit(speculation: &mut Speculation, n: u128, topology: TopologyRule) -> Result<JobId, Refusal> {
    let mut draft = job_draft("gang", vec![group("main", 4, Some(accelerators("h100", 1)))]);
    draft.topology = topology;
    let contract = JobContract { spares: 1, ..JobContract::default() };
    let submission = Submission::new(draft.check().expect("a job"), contract);
    match handle(speculation, &Command::submit(request(n), Arc::new([submission])))? {
        Answer::Submitted { jobs, .. } => Ok(jobs[0]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_gang_in_segments_has_the_spares_that_it_asks_for() {
    let (mut speculation, mut replica) = founded();
    ["n1", "n2", "n3"].into_iter().for_each(|text| register(&mut speculation, text, 2));
    let segments = vec![Segment { level: Level::Rack, workers: 2 }];
    let topology = TopologyRule { segments, ..TopologyRule::default() };
    let job = submit(&mut speculation, 1, topology).expect("it is taken");
    schedule(&mut speculation, &mut Budget::new(1_000_000));
    commit(&mut speculation, &mut replica);
    let placement = replica.job(job).and_then(|row| row.placement.clone()).expect("it is placed");
    assert_eq!(placement.slots.len(), 4);
    // The third rack has a segment of spares, of which it needs one.
    assert_eq!(replica.spares(job).len(), 1);
    assert_eq!(replica.verify(), Ok(()));
}

#[test]
fn spares_for_which_the_rules_of_a_gang_leave_no_place_are_refused() {
    let (mut speculation, _) = founded();
    ["n1", "n2", "n3"].into_iter().for_each(|text| register(&mut speculation, text, 8));
    let topology = TopologyRule {
        required: Some(Level::Rack),
        spread: Some(Spread { level: Level::Rack, workers_max: 4 }),
        ..TopologyRule::default()
    };
    let refused = submit(&mut speculation, 1, topology).expect_err("five are too many for a rack");
    assert!(refused.violations.iter().any(|found| found.field.ends_with("spares")), "{refused:?}");
}
