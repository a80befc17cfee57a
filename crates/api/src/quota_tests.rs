//! Quota for some time: who asks, who answers, and who is shown what; through a real listener with certificates.

use muster_transport::Role;
use muster_types::RefusalCode;
use muster_wire::status::Refused;
use muster_wire::time::timestamp;
use muster_wire::v1;
use muster_wire::v1::policy_service_client::PolicyServiceClient;
use muster_wire::v1::quota_service_client::QuotaServiceClient;
use tonic::Status;
use tonic::transport::Channel;

use crate::ApiConfig;
use crate::access_tests::{World, guarded, of_tenant, short};
use crate::visibility::REDACTED;

/// `vision` with `video` below it has 8, and `speech` nothing; the policy names the type.
async fn world() -> World {
    let world = World::with_tenants_under(ApiConfig::DEFAULT).await;
    let mut policies = PolicyServiceClient::new(world.channel(Role::Admin(short("root"))).await);
    let quota = v1::Quota { r#type: "h100".to_owned(), nominal_milli: 8_000, ..Default::default() };
    let tenants = [("vision", "", vec![quota]), ("video", "vision", vec![]), ("speech", "", vec![])];
    let tenants = tenants.map(|(name, parent, quotas)| {
        let parent = parent.to_owned();
        (name.to_owned(), v1::TenantPolicy { parent, quotas, ..Default::default() })
    });
    let policy = v1::SetPolicyRequest {
        request_id: id(1),
        policy: Some(v1::Policy { tenants: tenants.into(), ..Default::default() }),
        ..Default::default()
    };
    guarded("a policy", policies.set_policy(policy)).await.expect("it is set");
    world
}

fn id(number: u32) -> String {
    format!("00000000-0000-4000-e000-{number:012}")
}

fn soon() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is past 1970");
    u64::try_from(now.as_millis()).expect("it is no distant future") + 3_600_000
}

fn grant(tenant: &str, amount_milli: u64) -> v1::QuotaGrant {
    v1::QuotaGrant {
        tenant: tenant.to_owned(),
        r#type: "h100".to_owned(),
        amount_milli,
        end_time: Some(timestamp(soon())),
        reason: "a deadline".to_owned(),
        ..Default::default()
    }
}

async fn ask(channel: &Channel, number: u32, grant: v1::QuotaGrant) -> Result<v1::QuotaGrant, Status> {
    let request =
        v1::RequestQuotaRequest { request_id: id(number), grant: Some(grant), validate_only: false };
    let mut client = QuotaServiceClient::new(channel.clone());
    let answer = guarded("a request", client.request_quota(request)).await?;
    Ok(answer.into_inner().grant.expect("it is recorded"))
}

async fn answer(channel: &Channel, number: u32, of: u64) -> Result<v1::QuotaGrant, Status> {
    let request = v1::AnswerQuotaRequest {
        request_id: id(number),
        id: of,
        approve: Some(true),
        reason: "agreed".to_owned(),
    };
    let mut client = QuotaServiceClient::new(channel.clone());
    let answer = guarded("an answer", client.answer_quota(request)).await?;
    Ok(answer.into_inner().grant.expect("it is there"))
}

async fn listed(channel: &Channel) -> Vec<v1::QuotaGrant> {
    let request = v1::ListQuotaGrantsRequest { include_over: true, ..Default::default() };
    let mut client = QuotaServiceClient::new(channel.clone());
    guarded("a list", client.list_quota_grants(request)).await.expect("everybody may").into_inner().grants
}

fn code(status: Status) -> Option<RefusalCode> {
    Refused::from_status(&status).code
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_asks_and_an_operator_answers() {
    let world = world().await;
    let root = world.channel(Role::Admin(short("root"))).await;
    let ada = world.channel(of_tenant("vision", "ada")).await;
    let bob = world.channel(of_tenant("speech", "bob")).await;
    let eve = world.channel(Role::Client(short("eve"))).await;

    let wanted = grant("video", 2_000);
    let asked = ask(&ada, 10, wanted.clone()).await.expect("it is below its tenant");
    assert_eq!(asked.status(), v1::QuotaGrantStatus::Requested);
    assert_eq!(asked.created_by, "tenant/vision/ada");
    assert_eq!(ask(&ada, 10, wanted).await.expect("it is repeated").id, asked.id, "nothing happens again");
    let foreign = ask(&bob, 11, grant("video", 2_000)).await.expect_err("another tenant's");
    assert_eq!(code(foreign), Some(RefusalCode::PermissionDenied));
    let looks = ask(&eve, 12, grant("video", 2_000)).await.expect_err("it looks alone");
    assert_eq!(code(looks), Some(RefusalCode::PermissionDenied));

    // A tenant's certificate answers nothing; only its administrators' tokens do.
    let own = answer(&ada, 20, asked.id).await.expect_err("it is not an administrator");
    assert_eq!(code(own), Some(RefusalCode::PermissionDenied));
    let unknown = answer(&root, 21, asked.id + 1_000).await.expect_err("there is none");
    assert_eq!(code(unknown), Some(RefusalCode::QuotaRequestNotFound));
    let granted = answer(&root, 22, asked.id).await.expect("an operator may");
    assert_eq!(granted.status(), v1::QuotaGrantStatus::Granted);
    assert_eq!(granted.answered_by, "admin/root");
    // What was forgotten does not end it.
    let request = v1::AnswerQuotaRequest {
        request_id: id(25),
        id: asked.id,
        reason: "agreed".to_owned(),
        ..Default::default()
    };
    let mut service = QuotaServiceClient::new(root.clone());
    let forgotten = guarded("an answer", service.answer_quota(request)).await.expect_err("it says neither");
    assert_eq!(Refused::from_status(&forgotten).violations[0].field, "approve");
    let above = ask(&ada, 23, grant("video", 7_000)).await.expect("it is recorded");
    let refused = answer(&root, 24, above.id).await.expect_err("vision has 8, and video 2 of them");
    assert_eq!(code(refused), Some(RefusalCode::QuotaNotAvailable));

    assert_eq!(listed(&ada).await.len(), 2);
    assert_eq!(listed(&bob).await, [], "those of other tenants are not shown");
    let shown = listed(&eve).await;
    assert_eq!((shown.len(), shown[0].reason.as_str()), (2, REDACTED));
}
