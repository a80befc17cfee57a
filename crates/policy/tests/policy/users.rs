//! Turns of the users of one tenant, where they share what it gets.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_journal::Decision;
use muster_policy::{Line, Marks, users_by_turn};
use muster_types::policy::{Order, PolicyDraft, TenantPolicy, UserShares};
use muster_types::{JobId, JobMetadata, Name, PriorityTier};

use crate::support::{World, spec};

fn lab() -> Name {
    Name::literal("lab")
}

fn world(nodes: u32) -> World {
    let mut policy = PolicyDraft::default();
    policy.order.order = Order::Submission;
    let weights_milli = [("ada".to_owned(), 2_000)].into();
    let users = Some(UserShares { weights_milli, ..UserShares::default() });
    policy.tenants.insert(lab(), TenantPolicy { users, ..TenantPolicy::default() });
    World::new(nodes, policy)
}

/// Jobs of a user, of which each asks for something else, or all for the same.
fn submit(world: &mut World, user: &str, count: u64, from_cpu_milli: Option<u64>) -> Vec<JobId> {
    let specs = (0..count).map(|n| {
        let mut job = spec("lab", &format!("{user}{n}"), 1);
        if let Some(from) = from_cpu_milli {
            job.groups[0].request.cpu_milli = from + n;
        }
        job.check().unwrap()
    });
    let jobs = world.submit(specs.collect());
    let metadata = JobMetadata { creator: format!("tenant/lab/{user}"), ..JobMetadata::default() };
    let runs = vec![(jobs[0], jobs.len() as u32, Arc::new(metadata))];
    world.push(Decision::JobMetadataSet { runs });
    world.state.verify().expect("the state keeps its invariants");
    jobs
}

#[test]
fn every_request_of_every_user_has_a_turn_within_some_passes() {
    let mut world = world(1);
    let mut all = BTreeSet::new();
    for (user, count, from) in [("ada", 40, 1_000), ("bob", 1, 2_000), ("eve", 23, 3_000)] {
        all.extend(submit(&mut world, user, count, Some(from)));
    }
    for depth in [2, 3, 7] {
        let mut had = BTreeSet::new();
        let mut marks = Marks::default();
        for _ in 0..64 {
            let mut line = Line::of_pass(&world.state, world.now, depth, marks);
            while let Some(candidate) = line.take_next(&world.state) {
                had.insert(candidate.turn.job);
                line.waits(&world.state, &candidate);
            }
            marks = line.into_marks();
        }
        assert_eq!(had, all, "with a depth of {depth}");
    }
}

#[test]
fn the_one_that_has_used_least_for_its_weight_goes_first() {
    let mut world = world(8);
    let mut of_ada: BTreeSet<JobId> = submit(&mut world, "ada", 12, None).into_iter().collect();
    let mut of_eve: BTreeSet<JobId> = submit(&mut world, "eve", 12, None).into_iter().collect();
    let mut placed = Vec::new();
    for _ in 0..6 {
        let mut line = Line::form(&world.state, world.now);
        let next = line.take_next(&world.state).expect("somebody waits").turn.job;
        world.start(next);
        world.state.verify().expect("the state keeps its invariants");
        placed.push(if of_ada.remove(&next) { "ada" } else { "eve" });
        of_eve.remove(&next);
    }
    // Ada weighs twice as much, and what was submitted first breaks ties.
    assert_eq!(placed, ["ada", "eve", "ada", "ada", "eve", "ada"]);
    let turns = users_by_turn(&world.state, PriorityTier::Standard, &lab(), world.now);
    let users: Vec<&str> = turns.iter().map(|place| place.user.as_str()).collect();
    assert_eq!(users, ["tenant/lab/ada", "tenant/lab/eve"]);
    assert_eq!(turns[0].share, turns[1].share);
}

#[test]
fn one_whose_jobs_wait_leaves_the_others_their_part_of_the_depth() {
    let mut world = world(1);
    let of_ada = submit(&mut world, "ada", 30, Some(1_000));
    let of_eve = submit(&mut world, "eve", 1, Some(2_000));
    let mut line = Line::of_pass(&world.state, world.now, 8, Marks::default());
    let mut had = Vec::new();
    while let Some(candidate) = line.take_next(&world.state).filter(|_| had.len() < 8) {
        had.push(candidate.turn.job);
        line.waits(&world.state, &candidate);
    }
    // Half of the depth, then the other user, then the rest of the depth.
    let expected: Vec<JobId> = of_ada[..4].iter().chain(&of_eve).chain(&of_ada[4..7]).copied().collect();
    assert_eq!(had, expected);
}
