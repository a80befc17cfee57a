//! Reasons of idle accelerators, over random histories of the scheduler: they divide what jobs waited for, and nothing else.
// A test may look at a clock; the crate it tests may not.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]
// Helpers of tests may unwrap too: a panic there is the report.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use muster_ledger::{Activity, IdleCause, Ledger, View, Window};
use muster_sim::idle::IdleReasons;
use muster_state::State;

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
