//! The ledger as bytes, the window, and what is refused.

use muster_journal::Decision;
use muster_ledger::{DAY_MS, Ledger, LedgerError, Window};
use muster_state::State;
use muster_types::{LogIndex, LogTime};

use crate::model::Model;
use crate::scene::{START_MS, Scene};
use crate::support::leadership;

fn sample() -> (Ledger, State) {
    let mut model = Model::new(3);
    for _ in 0..120 {
        model.step();
    }
    model.commit_all();
    let mut state = State::default();
    let mut ledger = Ledger::begin(&state, Window::default());
    for round in &model.log {
        ledger.fold_round(&mut state, round).unwrap();
    }
    (ledger, state)
}

#[test]
fn bytes_that_are_cut_or_changed_are_refused_and_never_a_panic() {
    let (ledger, _) = sample();
    let bytes = ledger.save();
    assert_eq!(Ledger::load(&bytes).unwrap().save(), bytes);
    for end in 0..bytes.len() {
        assert!(Ledger::load(&bytes[..end]).is_err(), "cut at {end}");
    }
    let mut damaged = bytes.clone();
    for at in 0..bytes.len() {
        damaged[at] ^= 0x55;
        assert!(Ledger::load(&damaged).is_err(), "changed at {at}");
        damaged[at] ^= 0x55;
    }
}

#[test]
fn records_that_do_not_follow_are_refused() {
    let (mut ledger, mut state) = sample();
    let begins = Decision::LeaderStarted;
    let next = state.log_index().next();
    let behind = state.apply(leadership(90, 1), next, state.log_time(), &begins);
    assert!(behind.log_index.is_some());
    // One record was not shown to the ledger.
    let error = ledger.fold(&mut state, leadership(91, 1), LogIndex(next.0 + 1), LogTime(u64::MAX), &begins);
    assert_eq!(
        error,
        Err(LedgerError::OutOfStep { last: LogIndex(next.0 - 1), found: LogIndex(next.0 + 1) })
    );
}

#[test]
fn a_log_in_which_ten_years_pass_between_two_records_is_refused() {
    let (mut ledger, mut state) = sample();
    let (from, next) = (state.log_time(), state.log_index().next());
    for to in [LogTime(from.0 + 4_000 * DAY_MS), LogTime(u64::MAX)] {
        let (mut ledger, mut state) = (ledger.clone(), state.clone());
        let error = ledger.fold(&mut state, leadership(90, 1), next, to, &Decision::LeaderStarted);
        assert_eq!(error, Err(LedgerError::TimeLeap { from, to }));
    }
    ledger.fold(&mut state, leadership(90, 1), next, from, &Decision::LeaderStarted).unwrap();
}

#[test]
fn a_window_counts_what_is_within_it_with_what_is_known_behind_it() {
    let mut scene = Scene::new();
    let window = Window { from: LogTime(START_MS + 20_000), until: Some(LogTime(START_MS + 50_000)) };
    scene.ledger = Ledger::begin(&scene.state, window);
    scene.node("n1", 8);
    let job = scene.job(1, 8);
    scene.pass();
    scene.running(job);
    scene.at(100);
    assert_eq!(scene.used(100), ["research provisional 240"]);
    // It is known only later that the work was kept.
    scene.exit(job, 0);
    assert_eq!(scene.used(200), ["research kept 240"]);
}
