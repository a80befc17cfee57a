//! Settings of a policy that a runbook names are ones that a policy file has.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use muster_manifest::parse_policy;
use std::fs;
use std::path::Path;

/// Names of other files and outputs that runbooks write in the same form: what a replica's status has of its disk.
const OTHERS: [&str; 2] = ["flushTime", "flushStall"];

/// The words of a page that are written as code and have the form of a setting: `limits.pendingJobs`.
fn settings(page: &str) -> Vec<&str> {
    let is_setting = |word: &&str| {
        let is_plain = word.chars().all(|letter| letter.is_ascii_alphabetic() || letter == '.');
        let begins = word.starts_with(|letter: char| letter.is_ascii_lowercase());
        is_plain && begins && word.contains(|letter: char| letter.is_ascii_uppercase())
    };
    page.split('`').skip(1).step_by(2).filter(is_setting).collect()
}

/// Whether a policy file may state it of a tenant.
fn is_of_a_tenant(setting: &str) -> bool {
    let nested = setting.rsplit('.').fold("1".to_owned(), |inner, field| format!("{{{field}: {inner}}}"));
    let file = format!("apiVersion: muster.dev/v1\nkind: Policy\nspec:\n  tenants:\n    vision: {nested}\n");
    parse_policy(file.as_bytes(), 0).is_ok()
}

#[test]
fn settings_that_runbooks_name_exist() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops/runbooks");
    let mut named = 0;
    for entry in fs::read_dir(pages).unwrap() {
        let path = entry.unwrap().path();
        let page = fs::read_to_string(&path).unwrap();
        for setting in settings(&page).into_iter().filter(|word| !OTHERS.contains(word)) {
            assert!(is_of_a_tenant(setting), "{}: no policy has `{setting}`", path.display());
            named += 1;
        }
    }
    assert!(named > 0, "the settings are not read");
    assert!(is_of_a_tenant("limits.pendingJobs") && !is_of_a_tenant("waitingJobs"));
    assert_eq!(settings("as `limits.pendingJobs`, `muster job list`, `x` and `$A`"), ["limits.pendingJobs"]);
}
