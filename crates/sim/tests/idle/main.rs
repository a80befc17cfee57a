//! What the planner says while a log is replayed, over random histories of the scheduler: reasons divide what is idle for jobs that
//! wait, and nothing else; placements out of turn are found.
// A test may look at a clock; the crate it tests may not.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]
// Helpers of tests may unwrap too: a panic there is the report.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_journal::{Decision, Estimate, RequestKey, WorkerSlot};
use muster_ledger::{Activity, IdleCause, Ledger, View, WaitReason, Window};
use muster_sim::idle::IdleReasons;
use muster_sim::predictions::PredictionCheck;
use muster_sim::turns::{TurnCheck, TurnCounts};
use muster_sim::waits::WaitReasons;
use muster_state::State;
use muster_types::{
    CheckpointRules, ClusterId, DeviceSet, JobContract, JobId, LogIndex, LogTime, Name, NodeId, Parameters,
    RequestId, Requester,
};

#[path = "../../../decider/tests/decider/model.rs"]
#[allow(dead_code, reason = "what the tests of the decider alone need")]
mod model;
#[path = "../../../decider/tests/decider/random.rs"]
#[allow(dead_code, reason = "what the tests of the decider alone need")]
mod random;
#[path = "../../../decider/tests/decider/support.rs"]
#[allow(dead_code, reason = "what the tests of the decider alone need")]
mod support;

use crate::model::Model;
use crate::support::{accelerators, group, holder, job_draft, leadership, node_spec};

const SEEDS: u64 = 8;
const STEPS: u64 = 200;

/// The rows of a view without the reasons of the planner.
fn plain(view: &View) -> BTreeMap<String, u128> {
    let mut rows: BTreeMap<String, u128> = BTreeMap::new();
    for row in &view.usage {
        let place = (row.day, &row.kind, &row.region, row.purchase);
        let key = match row.activity {
            Activity::Idle(IdleCause::DemandUnplaced(_)) => format!("{place:?} demand_unplaced"),
            activity => format!("{place:?} {:?} {:?} {activity}", row.tenant, row.tier),
        };
        *rows.entry(key).or_default() += row.milli_ms;
    }
    rows
}

fn sum(rows: impl Iterator<Item = u128>) -> u128 {
    rows.sum()
}

#[test]
fn reasons_divide_demand_that_is_not_placed_and_every_sum_stays() {
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        let mut model = Model::new(seed);
        for _ in 0..STEPS {
            model.step();
        }
        model.commit_all();
        for interval_ms in [0, 20_000] {
            let mut states = [State::default(), State::default()];
            let mut without = Ledger::begin(&states[0], Window::default());
            let mut with = without.clone();
            let mut reasons = IdleReasons::every(interval_ms);
            for round in &model.log {
                without.fold_round(&mut states[0], round).unwrap();
                with.fold_round(&mut states[1], round).unwrap();
                reasons.look(&mut with, &states[1]);
            }
            let (told, untold) = (with.view(with.log_time()), without.view(without.log_time()));
            assert_eq!(plain(&told), plain(&untold), "seed {seed}, every {interval_ms} ms");
            assert_eq!(told.waits, untold.waits, "seed {seed}");
            let used = sum(told.usage.iter().map(|row| row.milli_ms));
            assert_eq!(used, sum(told.capacity.iter().map(|row| row.milli_ms)), "seed {seed}");
            seen.extend(told.usage.iter().filter_map(|row| match row.activity {
                Activity::Idle(IdleCause::DemandUnplaced(Some(reason))) => Some(reason.as_str()),
                _ => None,
            }));
        }
    }
    assert!(seen.len() >= 2, "few reasons came about: {seen:?}");
}

/// The waits of a view without the reasons of the planner.
fn plain_waits(view: &View) -> BTreeMap<String, u128> {
    let mut rows: BTreeMap<String, u128> = BTreeMap::new();
    for row in &view.waits {
        let reason = match row.reason {
            WaitReason::Waiting(_) => WaitReason::Waiting(None),
            reason => reason,
        };
        let key = format!("{:?}", (row.day, &row.tenant, row.tier, &row.kind, &row.region, reason));
        *rows.entry(key).or_default() += row.job_ms;
    }
    rows
}

#[test]
fn reasons_divide_what_jobs_waited_for_capacity_and_every_sum_stays() {
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        let mut model = Model::new(seed);
        for _ in 0..STEPS {
            model.step();
        }
        model.commit_all();
        for interval_ms in [0, 20_000] {
            let mut states = [State::default(), State::default()];
            let mut without = Ledger::begin(&states[0], Window::default());
            let mut with = without.clone();
            let mut reasons = WaitReasons::every(interval_ms);
            for round in &model.log {
                without.fold_round(&mut states[0], round).unwrap();
                with.fold_round(&mut states[1], round).unwrap();
                reasons.look(&mut with, &states[1]);
            }
            let (told, untold) = (with.view(with.log_time()), without.view(without.log_time()));
            assert_eq!(plain_waits(&told), plain_waits(&untold), "seed {seed}, every {interval_ms} ms");
            assert_eq!((told.usage, told.demand), (untold.usage, untold.demand), "seed {seed}");
            seen.extend(told.waits.iter().filter_map(|row| match row.reason {
                WaitReason::Waiting(Some(reason)) => Some(reason.as_str()),
                _ => None,
            }));
        }
    }
    assert!(seen.len() >= 2, "few reasons came about: {seen:?}");
}

#[test]
fn what_is_idle_is_not_kept_because_a_job_waits_for_its_booking() {
    let mut state = State::default();
    let mut ledger = Ledger::begin(&state, Window::default());
    let take = |state: &mut State, ledger: &mut Ledger, seconds: u64, decision: Decision| {
        let index = state.log_index().next();
        ledger.fold(state, leadership(1, 1), index, LogTime(1_000_000 + seconds * 1_000), &decision).unwrap();
        assert_eq!(state.rejected(), 0, "{decision:?}");
    };
    let (cluster, parameters) = (ClusterId(1), Parameters::DEFAULT);
    take(&mut state, &mut ledger, 0, Decision::LeaderStarted);
    take(&mut state, &mut ledger, 0, Decision::ClusterCreated { cluster, generation: 1, parameters });
    let spec = node_spec("n1", "eu", "c1", Some(accelerators("h100", 8)));
    take(&mut state, &mut ledger, 0, Decision::NodeRegistered { spec, holder: holder(1) });
    let mut draft = job_draft("j1", vec![group("main", 1, Some(accelerators("h100", 2)))]);
    draft.booking = Some(Name::literal("deadline-week"));
    let request = RequestKey { id: RequestId(1), fingerprint: 0 };
    let (specs, estimates) = (vec![draft.check().unwrap().into()], vec![Estimate::default()]);
    let submitted = Decision::JobsSubmitted { request, by: Requester::default(), specs, estimates };
    take(&mut state, &mut ledger, 0, submitted);
    IdleReasons::every(0).look(&mut ledger, &state);
    let digest = state.rows_digest();
    take(&mut state, &mut ledger, 60, Decision::DigestRecorded { digest });
    let view = ledger.view(ledger.log_time());
    let reasons: BTreeSet<&str> = view
        .usage
        .iter()
        .filter_map(|row| match row.activity {
            Activity::Idle(IdleCause::DemandUnplaced(reason)) => {
                Some(reason.map_or("unknown", |r| r.as_str()))
            }
            _ => None,
        })
        .collect();
    // It asks for two of them; more than that nobody asks for.
    assert_eq!(reasons, BTreeSet::from(["constraint", "surplus"]));
}

#[test]
fn a_placement_before_one_that_fits_is_found() {
    let mut state = State::default();
    let mut check = TurnCheck::default();
    let mut take = |decision: Decision| {
        let index = state.log_index().next();
        check.before(&state, &decision);
        let applied = state.apply(leadership(1, 1), index, LogTime(1_000_000 + index.0), &decision);
        assert_eq!(applied.rejection, None, "{decision:?}");
        check.after(&applied);
        index
    };
    let (cluster, parameters) = (ClusterId(1), Parameters::DEFAULT);
    take(Decision::LeaderStarted);
    take(Decision::ClusterCreated { cluster, generation: 1, parameters });
    let spec = node_spec("n1", "eu", "c1", Some(accelerators("h100", 8)));
    take(Decision::NodeRegistered { spec, holder: holder(1) });
    let mut submit = |number: u128| {
        let spec = job_draft(&format!("j{number}"), vec![group("main", 1, Some(accelerators("h100", 2)))]);
        let request = RequestKey { id: RequestId(number), fingerprint: 0 };
        let (specs, estimates) = (vec![spec.check().unwrap().into()], vec![Estimate::default()]);
        let by = Requester::default();
        let index = take(Decision::JobsSubmitted { request, by, specs, estimates });
        JobId::derive_in(1, LogIndex(index.0), 0)
    };
    let jobs = [submit(1), submit(2), submit(3)];
    let place = |job, first: u64| Decision::GangPlaced {
        job,
        workers: vec![WorkerSlot { node: NodeId(0), incarnation: 1, devices: DeviceSet(0b11 << first) }],
    };
    // The first in its turn, then the third before the second.
    for (job, first) in [(jobs[0], 0), (jobs[2], 2), (jobs[1], 4)] {
        take(place(job, first));
    }
    let expected = TurnCounts { first: 2, out_of_turn: 1, ..TurnCounts::default() };
    assert_eq!(*check.counts(), expected, "{:?}", check.findings());
    let finding = &check.findings()[0];
    assert_eq!((finding.placed.0, finding.passed_over.0), (jobs[2], jobs[1]));
}

#[test]
fn a_placement_behind_its_like_is_not_compared_with_what_comes_behind_both() {
    let (mut state, mut check) = (State::default(), TurnCheck::default());
    let mut take = |decision: Decision| {
        let index = state.log_index().next();
        check.before(&state, &decision);
        let applied = state.apply(leadership(1, 1), index, LogTime(1_000_000 + index.0), &decision);
        assert_eq!(applied.rejection, None, "{decision:?}");
        check.after(&applied);
        index
    };
    let (cluster, parameters) = (ClusterId(1), Parameters::DEFAULT);
    take(Decision::LeaderStarted);
    take(Decision::ClusterCreated { cluster, generation: 1, parameters });
    let spec = node_spec("n1", "eu", "c1", Some(accelerators("h100", 8)));
    take(Decision::NodeRegistered { spec, holder: holder(1) });
    let mut submit = |number: u128, devices: u16| {
        let wants = Some(accelerators("h100", devices));
        let spec = job_draft(&format!("j{number}"), vec![group("main", 1, wants)]);
        let request = RequestKey { id: RequestId(number), fingerprint: 0 };
        let (specs, estimates) = (vec![spec.check().unwrap().into()], vec![Estimate::default()]);
        let by = Requester::default();
        let index = take(Decision::JobsSubmitted { request, by, specs, estimates });
        JobId::derive_in(1, LogIndex(index.0), 0)
    };
    let jobs = [submit(1, 2), submit(2, 2), submit(3, 1)];
    // The first cannot be placed anywhere: nothing has a copy of where its checkpoints are.
    let checkpoint = CheckpointRules { place: Some(Name::literal("nowhere")), ..CheckpointRules::default() };
    let contract = JobContract { checkpoint, ..JobContract::default() };
    take(Decision::JobContractsSet { contracts: vec![(jobs[0], Arc::new(contract))] });
    let workers = vec![WorkerSlot { node: NodeId(0), incarnation: 1, devices: DeviceSet(0b11) }];
    take(Decision::GangPlaced { job: jobs[1], workers });
    // The third fits, and its turn is behind both.
    let expected = TurnCounts { behind_waiting: 1, ..TurnCounts::default() };
    assert_eq!(*check.counts(), expected, "{:?}", check.findings());
}

#[test]
fn every_placement_of_a_history_is_counted_once() {
    for seed in 0..4 {
        let mut model = Model::new(seed);
        for _ in 0..STEPS {
            model.step();
        }
        model.commit_all();
        let (mut state, mut check, mut placed) = (State::default(), TurnCheck::default(), 0);
        for round in &model.log {
            let leadership = muster_types::Leadership { term: round.term, replica: round.replica };
            for (ordinal, decision) in round.decisions.iter().enumerate() {
                check.before(&state, decision);
                let index = LogIndex(round.first_index.0 + ordinal as u64);
                let applied = state.apply(leadership, index, round.log_time, decision);
                check.after(&applied);
                let is_taken = applied.log_index.is_some() && applied.rejection.is_none();
                placed += u64::from(is_taken && matches!(decision, Decision::GangPlaced { .. }));
            }
        }
        let TurnCounts { first, behind_waiting, held_for, out_of_turn, not_asked } = *check.counts();
        assert_eq!(first + behind_waiting + held_for + out_of_turn + not_asked, placed, "seed {seed}");
    }
}

#[test]
fn every_predicted_job_starts_ends_or_still_waits() {
    let (mut asked, mut started) = (0, 0);
    for seed in 0..SEEDS {
        let mut model = Model::new(seed);
        for _ in 0..STEPS {
            model.step();
        }
        model.commit_all();
        let mut state = State::default();
        let mut check = PredictionCheck::every(0);
        for round in &model.log {
            let leadership = muster_types::Leadership { term: round.term, replica: round.replica };
            for (ordinal, decision) in round.decisions.iter().enumerate() {
                let index = LogIndex(round.first_index.0 + ordinal as u64);
                check.before(decision);
                let applied = state.apply(leadership, index, round.log_time, decision);
                check.after(&state, &applied);
            }
            check.round_over(&state);
        }
        let counts = check.counts();
        assert_eq!(
            counts.asked,
            counts.unpredicted + counts.started + counts.never + counts.open,
            "{counts:?}"
        );
        assert!(counts.by_q10 <= counts.by_q50 && counts.by_q50 <= counts.started, "{counts:?}");
        assert!(
            counts.by_q90 + counts.without_q90 <= counts.started && counts.overdue <= counts.open,
            "{counts:?}"
        );
        assert_eq!(check.errors_ms().is_some(), counts.started > 0);
        (asked, started) = (asked + counts.asked, started + counts.started);
    }
    assert!(asked > 0 && started > 0, "{asked} asked, {started} started");
}
