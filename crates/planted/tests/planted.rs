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
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(admit(&directory.path().join("data")).is_err(), IS_ON);
    assert_eq!(confess().is_some(), IS_ON);
}

/// What a process is told is decided once, so each case is a separate process: this test again, as a child.
#[cfg(feature = "on")]
mod told {
    use super::*;
    use muster_planted::VARIABLE;
    use std::path::Path;
    use std::process::Command;

    /// Where a child is to work.
    const DIRECTORY: &str = "PLANTED_TEST_DIRECTORY";

    #[test]
    fn child() {
        let Some(directory) = std::env::var_os(DIRECTORY) else { return };
        let broken: Vec<&str> = Rule::ALL.into_iter().filter(|rule| breaks(*rule)).map(Rule::name).collect();
        let admitted = admit(Path::new(&directory)).map_err(|refusal| refusal.to_string());
        println!("says {:?} breaks {broken:?} admitted {admitted:?}.", confess().unwrap());
    }

    fn said(variable: &str, directory: &Path) -> String {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "told::child", "--nocapture"])
            .env(DIRECTORY, directory)
            .env(VARIABLE, variable);
        String::from_utf8(child.output().unwrap().stdout).unwrap()
    }

    #[test]
    fn it_breaks_what_it_is_told_in_folders_of_its_own_and_nowhere_else() {
        let scratch = tempfile::tempdir().unwrap();
        let own = scratch.path().join("own");
        let told = said("skip-guard", &own);
        assert!(told.contains(r#"breaks ["skip-guard"] admitted Ok(())."#), "{told}");
        assert!(told.contains("BREAKS A RULE ON PURPOSE (skip-guard)"), "{told}");
        // It may come back to what it made, and to what was made of it meanwhile.
        std::fs::create_dir_all(own.join("log")).unwrap();
        assert!(said("none", &own).contains("breaks [] admitted Ok(())."));
        let others = scratch.path().join("others");
        std::fs::create_dir_all(others.join("log")).unwrap();
        let told = said("skip-guard", &others);
        assert!(told.contains("was not made by it"), "{told}");
        // A separate disk, as it was made.
        let disk = scratch.path().join("disk");
        std::fs::create_dir_all(disk.join("lost+found")).unwrap();
        assert!(said("none", &disk).contains("admitted Ok(())."));
        let told = said("no-such-rule", &scratch.path().join("new"));
        assert!(told.contains("breaks []") && told.contains("no planted bug"), "{told}");
        let told = said("", &scratch.path().join("new"));
        assert!(told.contains("breaks []") && told.contains("set MUSTER_PLANTED_BUG"), "{told}");
        assert!(!scratch.path().join("new").exists());
    }
}
