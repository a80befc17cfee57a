//! Policies that no cluster takes, sent past every check of a client: the check without a change and the change say the
//! same of them, and nothing changes.

use super::*;
use muster_wire::FieldMask;
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
        with_rights(v1::TenantRights {
            tier_max,
            non_preemptible,
            deadlines: None,
            bookings: None,
            purchases: Vec::new(),
            negative_nice: None,
        })
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
            policy(vec![("a", v1::TenantPolicy { weight_milli: Some(u32::MAX), ..tenant("") })]),
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
    let served = TestServer::of(sample::leader_with_certificates().await).await;
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

/// An update of these parts.
fn parts(request_id: &str, paths: &[&str], policy: v1::Policy) -> v1::UpdatePolicyRequest {
    let paths = paths.iter().map(|path| (*path).to_owned()).collect();
    v1::UpdatePolicyRequest {
        request_id: request_id.to_owned(),
        policy: Some(policy),
        update_mask: Some(FieldMask { paths }),
        ..Default::default()
    }
}

fn price(micro_dollars_per_device_hour: u64) -> v1::Policy {
    let price = v1::Price { r#type: "h100".to_owned(), micro_dollars_per_device_hour, ..Default::default() };
    v1::Policy { prices: vec![price], ..Default::default() }
}

#[tokio::test]
async fn a_part_of_the_policy_is_set_and_the_others_stay() {
    let served = TestServer::of(sample::leader_with_certificates().await).await;
    let mut policies = PolicyServiceClient::new(served.channel.clone());
    let set = v1::SetPolicyRequest {
        request_id: ONE.to_owned(),
        policy: Some(policy(vec![("a", tenant("")), ("b", tenant("a"))])),
        ..Default::default()
    };
    let whole = guarded("a policy", policies.set_policy(set)).await.expect("it is set").into_inner().version;

    // Nothing is read of an update but its parts.
    let wrong_elsewhere =
        v1::Policy { tenants: policy(vec![("Ü", tenant("?"))]).tenants, ..price(2_000_000) };
    let prices = parts(TWO, &["prices"], wrong_elsewhere);
    let only_checked = v1::UpdatePolicyRequest { validate_only: true, ..prices.clone() };
    let checked = guarded("a check", policies.update_policy(only_checked)).await.expect("it is right");
    assert_eq!(checked.into_inner().version, whole);
    let priced = guarded("prices", policies.update_policy(prices.clone())).await.expect("they are set");
    let priced = priced.into_inner().version;

    // Two people who know nothing of each other: `c` is new, below a tenant that only the cluster has, and `b` goes.
    let tenants = policy(vec![("c", v1::TenantPolicy { weight_milli: Some(3_000), ..tenant("a") })]);
    let update = parts("00000000-0000-4000-8000-000000000003", &["tenants.c", "tenants.b"], tenants);
    guarded("tenants", policies.update_policy(update)).await.expect("they are set");
    let again = guarded("prices", policies.update_policy(prices)).await.expect("it is repeated").into_inner();
    assert_eq!(again.version, priced, "a repetition has no second effect");

    let in_force = served.engine.view().policy().policy.clone();
    let named: Vec<&str> = in_force.tenants.keys().map(muster_types::Name::as_str).collect();
    assert_eq!(named, ["a", "c"]);
    assert_eq!(in_force.prices[0].micro_dollars_per_device_hour, 2_000_000);
}

#[tokio::test]
async fn an_update_that_breaks_the_policy_in_force_changes_nothing() {
    let served = TestServer::of(sample::leader_with_certificates().await).await;
    let mut policies = PolicyServiceClient::new(served.channel.clone());
    let set = v1::SetPolicyRequest {
        request_id: ONE.to_owned(),
        policy: Some(policy(vec![("a", tenant("")), ("b", tenant("a"))])),
        ..Default::default()
    };
    let version =
        guarded("a policy", policies.set_policy(set)).await.expect("it is set").into_inner().version;
    let none = v1::Policy::default;
    let many: Vec<String> = (0..1_001).map(|n| format!("tenants.t{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let attacks: Vec<(&[&str], v1::Policy, &str)> = vec![
        (&[], none(), "update_mask"),
        (&["price"], none(), "update_mask"),
        (&["tenants.b.weight_milli"], none(), "update_mask"),
        (&["tenants."], none(), "update_mask"),
        (&["order.order"], none(), "update_mask"),
        (&["prices", "prices"], none(), "update_mask"),
        (&["tenants", "tenants.a"], none(), "update_mask"),
        (&["datasets.nowhere"], none(), "update_mask"),
        (&many, none(), "update_mask"),
        // The policy in force needs what the update removes, or lacks what it refers to.
        (&["tenants.a"], none(), "policy.tenants.b.parent"),
        (&["tenants.c"], policy(vec![("c", tenant("nobody"))]), "policy.tenants.c.parent"),
        (&["tenants.a"], policy(vec![("a", tenant("b"))]), "policy.tenants.a.parent"),
        (&["prices"], price(u64::MAX), "policy.prices[0].micro_dollars_per_device_hour"),
    ];
    for (paths, policy, field) in attacks {
        for validate_only in [true, false] {
            let update = v1::UpdatePolicyRequest { validate_only, ..parts(TWO, paths, policy.clone()) };
            let refused = refused(guarded(field, policies.update_policy(update)).await);
            assert_eq!(refused.code, Some(RefusalCode::InvalidField), "{paths:?}: {refused:?}");
            assert_eq!(refused.violations[0].field, field, "{paths:?}");
        }
    }
    let stale =
        v1::UpdatePolicyRequest { expected_version: Some(version + 1), ..parts(TWO, &["prices"], price(1)) };
    assert_eq!(
        refused(guarded("a stale one", policies.update_policy(stale)).await).code,
        Some(RefusalCode::PolicyChanged)
    );
    let row = served.engine.view();
    assert_eq!(row.policy().version.0, version);
    assert!(row.request(TWO.parse().expect("an id")).is_none(), "the request id was not used up");
}

#[tokio::test]
async fn a_plan_and_a_submission_say_the_same_of_a_job_above_the_limits() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    let mut policies = PolicyServiceClient::new(served.channel.clone());
    let hour = 3_600_000;
    let job = v1::JobLimits {
        max_devices: None,
        max_workers: None,
        max_run_time: Some(duration(2 * hour)),
        default_run_time: Some(duration(hour)),
        max_artifact_bytes: None,
    };
    let limits = v1::TenantLimits { job: Some(job), ..Default::default() };
    let set = v1::SetPolicyRequest {
        request_id: ONE.to_owned(),
        policy: Some(policy(vec![("unlisted", v1::TenantPolicy { limits: Some(limits), ..tenant("") })])),
        ..Default::default()
    };
    guarded("a policy", policies.set_policy(set)).await.expect("it is set");
    let mut jobs = served.jobs();
    let mut long = submission(TWO, "long");
    long.job.as_mut().expect("it has one").spec_mut().run_time_limit = Some(duration(2 * hour + 1));
    let plan = v1::PlanJobRequest { job: long.job.clone(), read: None };
    let planned = refused(guarded("a plan", jobs.plan_job(plan)).await);
    let submitted = refused(guarded("a submission", jobs.submit_job(long)).await);
    assert_eq!(planned.code, Some(RefusalCode::JobAboveLimit), "{planned:?}");
    assert_eq!((submitted.code, &submitted.metadata), (planned.code, &planned.metadata));
    // One that names no limit gets one, which everybody sees.
    let plain =
        guarded("a submission", jobs.submit_job(submission(TWO, "plain"))).await.expect("it is taken");
    let job_id = plain.into_inner().job_ids.remove(0);
    let shown = guarded("a job", jobs.get_job(v1::GetJobRequest { job_id, read: None })).await;
    let shown = shown.expect("it is there").into_inner().job.expect("a job");
    assert_eq!(shown.spec().run_time_limit, Some(duration(hour)));
}

#[tokio::test]
async fn limits_of_tiers_are_named_once_and_hold_together() {
    let served = TestServer::start().await;
    let mut policies = PolicyServiceClient::new(served.channel.clone());
    let of_tier = |tier: v1::Tier, max: u64, default: u64| v1::TierLimits {
        tier: tier.into(),
        job: Some(v1::JobLimits {
            max_devices: None,
            max_workers: None,
            max_run_time: Some(duration(max)),
            default_run_time: Some(duration(default)),
            max_artifact_bytes: None,
        }),
        submissions_per_minute: None,
    };
    let critical = |max, default| of_tier(v1::Tier::Critical, max, default);
    let attacks = [
        (vec![critical(2, 1), critical(3, 1)], "policy.tenants.a.limits.tiers[1].tier"),
        (vec![of_tier(v1::Tier::Unspecified, 2, 1)], "policy.tenants.a.limits.tiers[0].tier"),
        (vec![critical(1, 2)], "policy.tenants.a.limits.tiers"),
        (vec![critical(0, 0)], "policy.tenants.a.limits.tiers"),
    ];
    for (tiers, field) in attacks {
        let limits = v1::TenantLimits { tiers, ..Default::default() };
        let set = v1::SetPolicyRequest {
            request_id: ONE.to_owned(),
            policy: Some(policy(vec![("a", v1::TenantPolicy { limits: Some(limits), ..tenant("") })])),
            ..Default::default()
        };
        let refused = refused(guarded(field, policies.set_policy(set)).await);
        assert_eq!(refused.violations[0].field, field, "{refused:?}");
    }
}
