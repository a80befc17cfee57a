//! Shares of the users of a tenant, as policy files write them.

use super::*;

const NOW_MS: u64 = 1_800_000_000_000;

fn policy(users: &str) -> String {
    format!(
        "apiVersion: muster.dev/v1\nkind: Policy\nmetadata: {{version: 812}}\nspec:\n  tenants:\n    vision: {{users: {users}}}\n"
    )
}

#[test]
fn shares_of_users_are_read_and_shown() {
    let text = policy("{weightDefault: 0.5, weights: {ada: 2, tenant/vision/eve: 1.25}}");
    let file = parse_policy(text.as_bytes(), NOW_MS).unwrap();
    file.check().unwrap();
    let users = file.message.tenants["vision"].users.as_ref().unwrap();
    assert_eq!(users.default_weight_milli, Some(500));
    assert_eq!((users.weights_milli["ada"], users.weights_milli["tenant/vision/eve"]), (2_000, 1_250));
    let answer =
        v1::GetPolicyResponse { policy: Some(file.message.clone()), version: 812, ..Default::default() };
    let yaml = serde_saphyr::to_string(&policy_file(&answer)).unwrap();
    let again = parse_policy(yaml.as_bytes(), NOW_MS).unwrap_or_else(|error| panic!("{error:?} in\n{yaml}"));
    assert_eq!(again.message.tenants, file.message.tenants, "{yaml}");
}

#[test]
fn limits_of_users_are_read_and_shown() {
    let limits = "limits: {users: {ada: {maxWorkers: 2, defaultRunTime: 1h}}}";
    let file = parse_policy(policy("{}").replace("users: {}", limits).as_bytes(), NOW_MS).unwrap();
    file.check().unwrap();
    let ada = &file.message.tenants["vision"].limits.as_ref().unwrap().users["ada"];
    assert_eq!(
        (ada.max_workers, ada.max_run_time.is_some(), ada.default_run_time.is_some()),
        (Some(2), false, true)
    );
    let answer =
        v1::GetPolicyResponse { policy: Some(file.message.clone()), version: 812, ..Default::default() };
    let yaml = serde_saphyr::to_string(&policy_file(&answer)).unwrap();
    let again = parse_policy(yaml.as_bytes(), NOW_MS).unwrap_or_else(|error| panic!("{error:?} in\n{yaml}"));
    assert_eq!(again.message.tenants, file.message.tenants, "{yaml}");
}

#[test]
fn users_without_a_word_share_by_the_ordinary_weight() {
    let file = parse_policy(policy("{}").as_bytes(), NOW_MS).unwrap();
    file.check().unwrap();
    let users = file.message.tenants["vision"].users.as_ref().unwrap();
    assert_eq!((users.default_weight_milli, users.weights_milli.len()), (None, 0));
}

#[test]
fn a_weight_of_nothing_is_refused_by_its_name() {
    let file = parse_policy(policy("{weights: {ada: 0}}").as_bytes(), NOW_MS).unwrap();
    let found = file.check().unwrap_err();
    let found: Vec<String> = found.0.iter().map(Problem::to_string).collect();
    let part =
        "spec.tenants.vision.users.weights: of ada must be between 1 and 1000000, got 0 (in thousandths)";
    assert!(found.iter().any(|problem| problem.contains(part)), "{found:?}");
}
