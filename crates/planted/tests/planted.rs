//! With the feature: `cargo test -p muster-planted --features on`. Without it: that nothing is broken.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use muster_planted::{IS_ON, Rule, admit, breaks, confess};

#[test]
fn names_lead_back_to_rules() {
    for rule in Rule::ALL {
        assert_eq!(rule.name().parse::<Rule>().unwrap(), rule);
    }
    let unknown = "none-such".parse::<Rule>().unwrap_err().to_string();
    assert!(unknown.contains("none-such") && unknown.contains("skip-guard"), "{unknown}");
}

#[test]
fn a_build_that_was_not_told_breaks_nothing_and_one_that_can_does_not_work() {
    // Nobody sets the variable for the tests, and cargo starts them without.
    if std::env::var_os(muster_planted::VARIABLE).is_some() {
        println!("skipped: {} is set", muster_planted::VARIABLE);
        return;
    }
    assert!(Rule::ALL.into_iter().all(|rule| !breaks(rule)));
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(admit(&folder.path().join("data")).is_err(), IS_ON);
    assert_eq!(confess().is_some(), IS_ON);
}
