//! Figures: silences, what it cost, what was not looked at.

use muster_drill::judge::{Evidence, Kind, Rule, judge};
use muster_drill::scenario::MeasuredFrom;

use crate::support::sample;

#[test]
fn an_outage_is_measured() {
    let sample = sample(11, 120);
    let verdict = sample.judge();
    let silence =
        verdict.figures.again_ms(Kind::Submission, MeasuredFrom::Fault).expect("there were submissions");
    // 800 ms without a leader, and up to 20 steps of 20 ms until the first submission behind it.
    assert!((780..1_300).contains(&silence), "{silence} ms");
    assert!(verdict.figures.rto_log_ms.is_some_and(|ms| ms >= 800), "{:?}", verdict.figures.rto_log_ms);
    assert_eq!((verdict.figures.lost, verdict.figures.rpo_ms), (0, 0));
    let leaders: Vec<(u64, u64)> =
        verdict.figures.leaders.iter().map(|leader| (leader.term, leader.replica)).collect();
    assert_eq!(leaders, [(1, 1), (2, 2)]);
    let submissions = verdict.figures.kinds[&Kind::Submission];
    assert!(submissions.before.made > 10 && submissions.before.p50_us > 0);
}

#[test]
fn the_ledger_says_what_it_cost() {
    let sample = sample(5, 120);
    let verdict = sample.judge();
    assert_eq!(verdict.gangs_at_fault, 1);
    let [gang] = verdict.ledger.interruptions.as_slice() else { panic!("{:#?}", verdict.ledger) };
    assert_eq!((gang.region.as_str(), gang.region_after.as_deref()), ("a", Some("b")));
    assert_eq!((gang.cause.as_str(), gang.accelerators, gang.touched), ("evicted", 4, true));
    let running_ms = gang.running_ms.expect("it runs again");
    assert_eq!(gang.lost_accelerator_ms, (running_ms - gang.saved_ms) * 4);
    assert_eq!(gang.idle_ms, 150, "placed after 100 ms, running after 50 more");
    assert_eq!(verdict.ledger.by_tenant["lab"].accelerator_ms, gang.lost_accelerator_ms);
    assert_eq!(verdict.ledger.by_region["a"].running_again, 1);
}

#[test]
fn what_is_lost_before_the_fault_may_be_allowed_where_a_cluster_recovers() {
    let mut sample = sample(3, 120);
    sample.scenario.expect.lost_at_most_ms = 3_600_000;
    let verdict = {
        let mut broken = sample.clone();
        crate::broken::BREACHES[0].2(&mut broken).expect("something was acknowledged");
        broken.judge()
    };
    // Allowed only where the cluster was recovered at all.
    assert_eq!(verdict.findings.count(Rule::AcknowledgementLost), 1);
    assert_eq!(verdict.figures.lost, 1);
    assert!(verdict.figures.rpo_ms > 0);
}

#[test]
fn without_a_log_nothing_is_proved() {
    let sample = sample(3, 120);
    let verdict = judge(Evidence {
        scenario: &sample.scenario,
        run: &sample.run,
        history: &sample.history,
        log: None,
        intervals: None,
        troubles: &[],
    });
    assert!(!verdict.held);
    assert!(!verdict.is_linearizable());
    assert!(verdict.findings.count(Rule::NotChecked) >= 3, "{:#?}", verdict.findings);
}

#[test]
fn an_empty_history_proves_nothing() {
    let mut sample = sample(3, 60);
    sample.history = Default::default();
    let verdict = sample.judge();
    assert!(!verdict.held);
    assert!(verdict.findings.count(Rule::NotChecked) >= 4, "{:#?}", verdict.findings);
}

#[test]
fn a_watch_in_a_region_that_was_cut_off_to_the_end_has_nothing_to_show() {
    let mut sample = sample(11, 120);
    crate::broken::stalled(&mut sample).expect("the watch shows something");
    assert_eq!(sample.judge().findings.count(Rule::WatchStalled), 1);
    for event in sample.history.watch_events.iter_mut().filter(|event| event.watch == 1) {
        event.region = "b".to_owned();
    }
    assert_eq!(sample.judge().findings.count(Rule::WatchStalled), 1, "its clients came back");
    let clients = sample.run.hosts.iter_mut().find(|host| host.name == "b-clients").expect("it is there");
    clients.gone = true;
    let verdict = sample.judge();
    assert_eq!(verdict.findings.count(Rule::WatchStalled), 0, "{:#?}", verdict.findings);
}
