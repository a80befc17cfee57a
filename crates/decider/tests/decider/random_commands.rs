//! Random commands keep every invariant. The seed in a failure's message is the whole bug report.

use std::collections::BTreeSet;

use muster_decider::{Command, ControlOrder, JobSelection, handle, schedule};
use muster_planner::Budget;
use muster_state::{NodeStatus, State};
use muster_types::{ArrayId, Control, JobId, NodeId, Requester};

use crate::model::Model;
use crate::support::request;

/// Seeds that are always played.
const SEEDS: u64 = 40;
/// Seeds within which the generator has to reach what is rare.
const SEEDS_MAX: u64 = 400;
/// Decisions that the generator is there for and that come about in few seeds.
const RARE: [&str; 21] = [
    "rearranged",
    "promise_dropped",
    "job_released",
    "policy_set",
    "checkpoint_committed",
    "format_raised",
    "cluster_recovered",
    "node_forgotten",
    "job_contracts_set",
    "job_metadata_set",
    "attempt_failed",
    "spares_taken",
    "straggler_noted",
    "array_throttle_set",
    "booking_opened",
    "booking_ended",
    "fleet_hold_set",
    "fleet_hold_ended",
    "quota_requested",
    "quota_answered",
    "quota_granted",
];
const STEPS: u64 = 360;

#[test]
fn random_commands_keep_every_invariant() {
    let mut placed = 0;
    let mut stale = 0;
    let mut made: BTreeSet<&str> = BTreeSet::new();
    for seed in 0..SEEDS_MAX {
        if seed >= SEEDS && RARE.iter().all(|rare| made.contains(rare)) {
            break;
        }
        let result = std::panic::catch_unwind(|| {
            let mut model = Model::new(seed);
            for _ in 0..STEPS {
                model.step();
            }
            model.commit_all();
            (
                model.replica.jobs().iter().map(|(_, row)| u64::from(row.attempt)).sum::<u64>(),
                model.replica.stale(),
                model.made,
            )
        });
        match result {
            Ok((attempts, late, of_seed)) => {
                made.extend(of_seed);
                placed += attempts;
                stale += late;
            }
            Err(panic) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    // The generator must reach what it is there for.
    // Attempts of the jobs that still have a row at the end.
    assert!(placed > SEEDS * 10, "{placed} gangs were placed");
    assert!(stale > SEEDS, "{stale} records came too late");
    for rare in RARE {
        assert!(made.contains(rare), "{rare} never came about: {made:?}");
    }
}

#[test]
fn same_seed_same_log() {
    let run = |seed| {
        let mut model = Model::new(seed);
        for _ in 0..STEPS {
            model.step();
        }
        model.commit_all();
        model.replica.digest()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

/// The end of everything: whatever happened, a fleet that comes back runs what waits, and jobs that
/// are cancelled end. No job is left in between for ever.
#[test]
fn every_job_can_be_brought_to_an_end() {
    for seed in 100..120 {
        let mut model = Model::new(seed);
        for _ in 0..STEPS {
            model.step();
        }
        model.finish_recovery();
        model.commit_all();
        let jobs: Vec<JobId> = model.speculation.state().jobs().iter().map(|(id, _)| *id).collect();
        for job in jobs {
            model.requests += 1;
            let command = Command::cancel(request(model.requests), job);
            let _ = handle(&mut model.speculation, &command);
        }
        let arrays: Vec<ArrayId> = model.speculation.state().arrays().iter().map(|(id, _)| *id).collect();
        model.requests += 1;
        let by = Requester::default();
        let selection = JobSelection { is_found: true, arrays, ..JobSelection::named(Vec::new()) };
        let order = ControlOrder {
            acts_for: None,
            request: request(model.requests),
            by,
            control: Control::Cancel,
            selection,
        };
        let _ = handle(&mut model.speculation, &Command::Control(Box::new(order)));
        let up = |state: &State| -> Vec<(NodeId, u32)> {
            let nodes = state.nodes().iter().filter(|(_, row)| row.status == NodeStatus::Up);
            nodes.map(|(id, row)| (*id, row.incarnation)).collect()
        };
        for (node, incarnation) in up(model.speculation.state()) {
            handle(&mut model.speculation, &Command::SessionOver { node, incarnation })
                .expect("never refused");
        }
        while model.speculation.wants_schedule() {
            schedule(&mut model.speculation, &mut Budget::new(1_000));
        }
        model.commit_all();
        let state = &model.replica;
        assert_eq!((state.pending_count(), state.active_count()), (0, 0), "seed {seed}");
    }
}
