//! Verdicts: what is clean is judged clean, and whatever is broken is found.

mod books;
mod broken;
mod figures;
mod page;
mod support;

use muster_drill::judge::{LogBooks, LogRound, Rule};
use muster_journal::RequestKey;
use muster_types::{LogIndex, RequestId};
use proptest::prelude::*;
use support::{Sample, sample};

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Clients that saw what the log says are never blamed, whatever the order of what overlaps.
    #[test]
    fn what_follows_from_a_log_is_judged_clean(seed in any::<u64>(), steps in 60usize..150) {
        let verdict = sample(seed, steps).judge();
        prop_assert!(verdict.held, "{:#?}", verdict.findings);
        prop_assert!(verdict.is_linearizable());
        prop_assert!(verdict.checked.linearizable_reads > 5);
        prop_assert!(verdict.checked.bounded_reads > 0);
        prop_assert!(verdict.checked.contents > 20);
        prop_assert!(verdict.checked.watch_events > 20);
        prop_assert!(verdict.checked.acknowledgements > 10);
        prop_assert_eq!(verdict.checked.replica_states, 3);
        prop_assert!(verdict.checked.placements > 0);
    }

    /// Each breach from the list is found by its rule, in whatever history.
    #[test]
    fn any_breach_is_found(seed in any::<u64>(), which in 0..broken::BREACHES.len()) {
        let mut sample = sample(seed, 100);
        let (what, rule, breach) = broken::BREACHES[which];
        prop_assume!(breach(&mut sample).is_some());
        let verdict = sample.judge();
        prop_assert!(!verdict.held, "{what}");
        prop_assert!(verdict.findings.count(rule) > 0, "{what} is not {rule}: {:#?}", verdict.findings);
    }
}

/// A node that was forgotten, by a request or without one, is another node when it comes back.
#[test]
fn a_forgotten_node_that_comes_back_is_a_new_one() {
    let by_request = RequestKey { id: RequestId(0xf0), fingerprint: 1 };
    for request in [None, Some(by_request)] {
        let mut sample = sample(3, 120);
        broken::node_came_back(&mut sample, request).expect("a gang runs in the sample");
        let verdict = sample.judge();
        for rule in [Rule::LeaseWithoutSession, Rule::LeasedTwice, Rule::RecordRefused] {
            assert_eq!(verdict.findings.count(rule), 0, "{request:?}: {:#?}", verdict.findings);
        }
    }
}

/// A rule without a breach could be one that nothing breaks. A state that breaks its own invariants cannot be made from
/// a log that the guard lets through, and neither can sums of accelerator time that differ from the capacity: those are compared
/// in a separate test.
#[test]
fn every_rule_has_a_breach() {
    let without: Vec<Rule> = Rule::ALL
        .iter()
        .copied()
        .filter(|rule| broken::BREACHES.iter().all(|(_, breached, _)| breached != rule))
        .collect();
    assert_eq!(without, [Rule::State, Rule::NotConserved]);
}

#[test]
fn every_breach_of_the_list_is_found() {
    for (what, rule, breach) in broken::BREACHES {
        let mut found = 0;
        for seed in 0..4 {
            let mut sample = sample(seed, 120);
            if breach(&mut sample).is_none() {
                continue;
            }
            let verdict = sample.judge();
            assert!(verdict.findings.count(*rule) > 0, "{what} is not {rule}: {:#?}", verdict.findings);
            found += 1;
        }
        assert!(found > 0, "{what} was never made");
    }
}

/// What the books find in a log alone; rounds of a leadership that had ended have no position in it.
fn found_in_the_log(sample: &Sample) -> Vec<String> {
    let (mut books, mut found, mut term) = (LogBooks::default(), Vec::new(), 0);
    for LogRound { round, .. } in &sample.rounds {
        let round = round.decode().expect("a round of the sample");
        if round.term < term {
            continue;
        }
        term = round.term;
        for (ordinal, decision) in round.decisions.iter().enumerate() {
            let index = LogIndex(round.first_index.0 + ordinal as u64);
            found.extend(books.record(index, round.log_time, decision, true));
        }
    }
    assert!(books.leases() > 0, "places of workers were counted");
    found
}

#[test]
fn the_books_alone_find_what_a_log_breaks_and_nothing_in_one_that_is_sound() {
    let whole = sample(5, 80);
    assert_eq!(found_in_the_log(&whole), Vec::<String>::new());
    let rules = [
        Rule::LeasedTwice,
        Rule::QuotaExceeded,
        Rule::StartedHeld,
        Rule::StartedCancelled,
        Rule::SizeImpossible,
        Rule::PurchaseBroken,
        Rule::BookingBroken,
        Rule::GrantOutlived,
        Rule::ScheduleMoment,
        Rule::TokenOutlived,
    ];
    for (what, rule, breach) in broken::BREACHES.iter().filter(|(_, rule, _)| rules.contains(rule)) {
        let mut sample = whole.clone();
        breach(&mut sample).expect("a gang runs in the sample");
        let found = found_in_the_log(&sample);
        assert!(found.iter().any(|text| text.starts_with(rule.code())), "{what}: {found:?}");
    }
}
