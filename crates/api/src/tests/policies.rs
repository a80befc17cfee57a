//! Policies that no cluster takes, sent past every check of a client: the check without a change and the change say the
//! same of them, and nothing changes.

use super::*;
use muster_wire::time::duration;

fn tenant(parent: &str) -> v1::TenantPolicy {
    v1::TenantPolicy { parent: parent.to_owned(), ..Default::default() }
}

fn with_quota(quota: v1::Quota) -> v1::TenantPolicy {
    v1::TenantPolicy { quotas: vec![quota], ..Default::default() }
}

fn quota(kind: &str, nominal_milli: u64) -> v1::Quota {
    v1::Quota { r#type: kind.to_owned(), nominal_milli, ..Default::default() }
}

fn with_rights(rights: v1::TenantRights) -> v1::TenantPolicy {
    v1::TenantPolicy { rights: Some(rights), ..Default::default() }
}

fn policy(tenants: Vec<(&str, v1::TenantPolicy)>) -> v1::Policy {
    let tenants = tenants.into_iter().map(|(name, tenant)| (name.to_owned(), tenant)).collect();
    v1::Policy { tenants, ..Default::default() }
}

/// Each policy with the field that it is refused for.
fn attacks() -> Vec<(v1::Policy, &'static str)> {
    let rights = |tier_max: i32, non_preemptible: i32| {
        with_rights(v1::TenantRights { tier_max, non_preemptible, deadlines: None })
    };
    let preemption = |preemption| v1::Policy { preemption: Some(preemption), ..Default::default() };
    let twice = v1::TenantPolicy { quotas: vec![quota("h100", 1), quota("h100", 2)], ..Default::default() };
    let names: Vec<String> = (0..10_001).map(|n| format!("t{n}")).collect();
    let too_many = policy(names.iter().map(|name| (name.as_str(), tenant(""))).collect());
    let name = |n: u32| format!("{n:04}-{}", "x".repeat(58));
    let top = name(0);
    let mut too_large = policy(vec![]);
    too_large.tenants = (0..9_000).map(|n| (name(n), tenant(if n == 0 { "" } else { &top }))).collect();
    vec![
        (policy(vec![("a", tenant("a"))]), "policy.tenants.a.parent"),
        (policy(vec![("a", tenant("b")), ("b", tenant("a"))]), "policy.tenants.a.parent"),
        (policy(vec![("a", tenant("nobody"))]), "policy.tenants.a.parent"),
        (policy(vec![("Ünïcode", tenant(""))]), "policy.tenants"),
        (policy(vec![("", tenant(""))]), "policy.tenants"),
        (policy(vec![("a\u{1b}[31m", tenant(""))]), "policy.tenants"),
        (policy(vec![("a", with_quota(quota("", 1)))]), "policy.tenants.a.quotas[0].type"),
        (policy(vec![("a", with_quota(quota("H\u{200b}100", 1)))]), "policy.tenants.a.quotas[0].type"),
        (
            policy(vec![("a", with_quota(quota("h100", u64::MAX)))]),
            "policy.tenants.a.quotas[0].nominal_milli",
        ),
        (
            policy(vec![("a", with_quota(v1::Quota { lending_limit_milli: Some(2), ..quota("h100", 1) }))]),
            "policy.tenants.a.quotas[0].lending_limit_milli",
        ),
        (policy(vec![("a", twice)]), "policy.tenants.a.quotas[1]"),
        (
            policy(vec![("a", v1::TenantPolicy { weight_milli: u32::MAX, ..tenant("") })]),
            "policy.tenants.a.weight_milli",
        ),
        (policy(vec![("a", rights(17, 0))]), "policy.tenants.a.rights.tier_max"),
        (policy(vec![("a", rights(0, 17))]), "policy.tenants.a.rights.non_preemptible"),
        (
            preemption(v1::PreemptionPolicy { max_victims: Some(u32::MAX), ..Default::default() }),
            "policy.preemption.max_victims",
        ),
        (
            preemption(v1::PreemptionPolicy { minimum_run: Some(duration(u64::MAX)), ..Default::default() }),
            "policy.preemption.minimum_run",
        ),
        (too_many, "policy.tenants"),
        (too_large, "policy"),
    ]
}

#[tokio::test]
async fn hostile_policies_are_refused_with_their_field_and_change_nothing() {
    let served = Served::of(sample::leader_with_certificates().await).await;
    let mut policies = PolicyServiceClient::new(served.channel.clone());
    for (policy, field) in attacks() {
        for validate_only in [true, false] {
            let request = v1::SetPolicyRequest {
                request_id: ONE.to_owned(),
                policy: Some(policy.clone()),
                expected_version: None,
                validate_only,
            };
            let refused = refused(guarded(field, policies.set_policy(request)).await);
            assert_eq!(refused.code, Some(RefusalCode::InvalidField), "{field}: {refused:?}");
            assert_eq!(refused.violations[0].field, field, "validate only: {validate_only}");
            assert!(!refused.violations[0].description.is_empty());
        }
    }
    let row = served.engine.view();
    assert_eq!((row.policy().version, row.policy().policy.tenants.len()), (LogIndex::ZERO, 0));
    assert!(row.request(ONE.parse().expect("an id")).is_none(), "the request id was not used up");
}
