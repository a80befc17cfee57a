//! What a leader makes of images that hosts hold, and which ones they are to fetch ahead.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::support::{accelerators, founded, group, holder, job_draft, name, node_draft, request};
use muster_decider::{
    Answer, Command, HeldImages, KeptReservations, PlannedImage, Speculation, explain_job, handle,
    planned_images, schedule,
};
use muster_planner::Budget;
use muster_types::container::RUNTIME_LABEL;
use muster_types::{Container, JobContract, JobId, NodeId, PriorityTier, PullRule, Submission};

const IMAGE: &str = "registry.example.org/train:1";

/// Three hosts that can run images.
fn fleet() -> Speculation {
    let (mut speculation, _) = founded();
    for text in ["h1", "h2", "h3"] {
        let mut draft = node_draft(text, "eu", "c1", Some(accelerators("h100", 4)));
        draft.labels = [(name(RUNTIME_LABEL), "podman".to_owned())].into();
        let spec = draft.check().expect("a node");
        let command = Command::Register { spec, holder: holder(1), other_session_is_over: true };
        handle(&mut speculation, &command).expect("it is taken");
    }
    speculation
}

fn submit(speculation: &mut Speculation, n: u128, asked: (u16, PriorityTier), pull: PullRule) -> JobId {
    submit_for(speculation, n, asked, pull, None)
}

/// The same job, with how long it is expected to run.
fn submit_for(
    speculation: &mut Speculation,
    n: u128,
    (devices, tier): (u16, PriorityTier),
    pull: PullRule,
    run_ms: Option<u64>,
) -> JobId {
    let mut draft = job_draft("work", vec![group("main", 1, Some(accelerators("h100", devices)))]);
    draft.tier = tier;
    draft.expected_run_ms = run_ms;
    draft.groups[0].container = Some(Container { pull, ..Container::new(IMAGE.to_owned()) });
    let jobs = vec![Submission::new(draft.check().expect("a job"), JobContract::default())];
    match handle(speculation, &Command::submit(request(n), jobs.into())) {
        Ok(Answer::Submitted { jobs, .. }) => jobs[0],
        other => panic!("{other:?}"),
    }
}

fn held_by(nodes: &[u32]) -> Arc<HeldImages> {
    let mut held = HeldImages::default();
    for node in nodes {
        held.replace(NodeId(*node), &BTreeSet::new(), &[Arc::from(IMAGE)].into());
    }
    Arc::new(held)
}

fn nodes() -> Vec<u32> {
    let speculation = fleet();
    speculation.state().nodes().iter().map(|(node, _)| node.0).collect()
}

#[test]
fn a_job_goes_to_the_host_that_holds_its_image_and_an_explanation_shows_why() {
    for node in nodes() {
        let mut speculation = fleet();
        let job = submit(&mut speculation, 1, (1, PriorityTier::Standard), PullRule::Missing);
        let mut kept = KeptReservations::default();
        kept.set_images(held_by(&[node]));
        let now = speculation.now();
        let explained = explain_job(speculation.state(), now, job, &kept).expect("it waits");
        let plan = explained.plan.expect("it fits");
        let part = plan.score.parts.iter().find(|part| part.name == "image").expect("a term of the score");
        assert_eq!(part.value_milli, 1_000);
        speculation.set_images(held_by(&[node]));
        schedule(&mut speculation, &mut Budget::new(1_000_000));
        let placement =
            speculation.state().job(job).and_then(|row| row.placement.clone()).expect("it starts");
        assert_eq!(placement.slots[0].node, NodeId(node));
        assert_eq!(plan.workers[0].node, NodeId(node), "the explanation says what is done");
    }
}

#[test]
fn hosts_of_a_reservation_fetch_ahead_what_may_be_pulled() {
    // Of the first tier the reservation is kept beyond the pass, of the second one it is not.
    let tiers = [PriorityTier::Production, PriorityTier::Standard];
    for (pull, tier) in PullRule::ALL.into_iter().flat_map(|pull| tiers.map(|tier| (pull, tier))) {
        let mut speculation = fleet();
        for n in 1..4 {
            submit(&mut speculation, n, (4, PriorityTier::Production), PullRule::Missing);
        }
        schedule(&mut speculation, &mut Budget::new(1_000_000));
        let none = planned_images(speculation.state(), speculation.kept_reservations());
        assert!(none.is_empty(), "nobody waits: {none:?}");
        submit(&mut speculation, 9, (4, tier), pull);
        schedule(&mut speculation, &mut Budget::new(1_000_000));
        let planned = planned_images(speculation.state(), speculation.kept_reservations());
        if pull == PullRule::Never {
            assert!(planned.is_empty(), "{planned:?}");
            continue;
        }
        let image = PlannedImage { tenant: name("research"), image: IMAGE.to_owned(), credentials: None };
        assert_eq!(planned.into_values().collect::<Vec<_>>(), [[image]], "one host is reserved");
    }
}

#[test]
fn hosts_of_a_reservation_fetch_ahead_only_for_a_start_that_is_near() {
    const HOUR_MS: u64 = 3_600_000;
    for (run_ms, hosts) in [(HOUR_MS, 1), (12 * HOUR_MS, 0)] {
        let mut speculation = fleet();
        for n in 1..4 {
            let asked = (4, PriorityTier::Production);
            submit_for(&mut speculation, n, asked, PullRule::Missing, Some(run_ms));
        }
        schedule(&mut speculation, &mut Budget::new(1_000_000));
        submit(&mut speculation, 9, (4, PriorityTier::Production), PullRule::Missing);
        schedule(&mut speculation, &mut Budget::new(1_000_000));
        let planned = planned_images(speculation.state(), speculation.kept_reservations());
        assert_eq!(planned.len(), hosts, "what runs takes {run_ms} ms: {planned:?}");
    }
}
