//! Tokens, through a real listener that takes them.

use muster_decider::{Command, TokenOrder};
use muster_transport::{Expect, Principal, Role, Security, Tls, TokenHolder, TokenSecret};
use muster_types::{RefusalCode, ReplicaId, RequestId, Requester, TokenGrant, TokenId, TokenRole};
use muster_wire::status::Refused;
use muster_wire::time::duration;
use muster_wire::v1;
use muster_wire::v1::booking_service_client::BookingServiceClient;
use muster_wire::v1::job_service_client::JobServiceClient;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::ApiConfig;
use crate::access::RULES;
use crate::access_tests::{World, guarded, of_tenant, short};
use crate::sample::CLUSTER;

const DAY_MS: u64 = 24 * 3_600 * 1_000;

fn name(text: &str) -> muster_types::Name {
    muster_types::Name::new(text).expect("a name")
}

/// A token that an operator has made. `number` is another for each.
async fn made(world: &World, number: u128, role: TokenRole, tenant: Option<&str>) -> TokenSecret {
    let secret = TokenSecret::generate().expect("there is randomness");
    let grant = TokenGrant {
        name: name(&format!("t{number}")),
        user: name("ada"),
        role,
        tenant: tenant.map(name),
        secret_sha256: secret.sha256(),
        own_role: None,
    };
    let order = TokenOrder {
        request: RequestId(1_000 + number),
        by: Requester::default(),
        acts_for: None,
        token: secret.id(),
        grant,
        lifetime_ms: DAY_MS,
    };
    world.engine.execute(Command::CreateToken(Box::new(order))).await.expect("it is made");
    secret
}

async fn channel(world: &World, security: Security) -> Channel {
    let address = security.address(&world.address).expect("an address");
    let endpoint = Endpoint::from_shared(address).expect("an address");
    let connected = endpoint.connect_with_connector(security.connector(Expect::AnyReplica));
    guarded("a connection", connected).await.expect("it may connect")
}

/// A connection without a certificate.
async fn anonymous(world: &World) -> Channel {
    let root = Role::Admin(short("root"));
    drop(world.security(root));
    let ca = world.certificate(root).with_file_name("ca.crt");
    channel(world, Security::Tls(Tls::load_authority(ca).expect("it can be used"))).await
}

fn bearer<T>(message: T, secret: &TokenSecret) -> Request<T> {
    let mut request = Request::new(message);
    let text = format!("Bearer {}", secret.reveal());
    request.metadata_mut().insert("authorization", text.parse().expect("it is ASCII"));
    request
}

/// Any call, with an empty message; up to the beginning of its answer.
async fn call(channel: &Channel, path: &'static str, request: Request<()>) -> Result<(), Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    guarded(path, grpc.ready()).await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    guarded("an answer", grpc.server_streaming(request, PathAndQuery::from_static(path), codec))
        .await
        .map(drop)
}

fn code<T>(answer: Result<T, Status>) -> Option<RefusalCode> {
    answer.err().and_then(|status| Refused::from_status(&status).code)
}

fn with_tokens() -> ApiConfig {
    ApiConfig { tokens: true, ..ApiConfig::DEFAULT }
}

/// Every call by every role: made or refused as the table says, by the call's own token and passed on by a replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_by_every_role() {
    let world = World::with_tenants_under(with_tokens()).await;
    let own = anonymous(&world).await;
    let replica = world.channel(Role::Replica(ReplicaId(1))).await;
    for (number, role) in TokenRole::ALL.into_iter().enumerate() {
        let tenant = (role.needs_tenant() != Some(false)).then_some("vision");
        let secret = made(&world, number as u128, role, tenant).await;
        let holder = TokenHolder {
            cluster: CLUSTER,
            id: secret.id(),
            role,
            tenant: tenant.map(short),
            user: short("ada"),
            own_role: None,
            issuer: None,
        };
        let principal = Principal::Token(holder);
        for rule in RULES {
            let denied = |answer: &Result<(), Status>| {
                let by_table = |status: &&Status| status.message().contains(" may not call ");
                let status = answer.as_ref().err().filter(by_table);
                status.map(|status| Refused::from_status(status).code)
                    == Some(Some(RefusalCode::PermissionDenied))
            };
            let answer = call(&own, rule.path, bearer((), &secret)).await;
            assert_eq!(denied(&answer), !rule.kinds.include(&principal), "{role} {}: {answer:?}", rule.path);
            let mut onward = Request::new(());
            let said = principal.passed_on().expect("it has a name");
            onward.metadata_mut().insert("muster-principal", said.parse().expect("it is ASCII"));
            onward.metadata_mut().insert("muster-forwarded", "1".parse().expect("a digit is ASCII"));
            let answer = call(&replica, rule.path, onward).await;
            assert_eq!(denied(&answer), !rule.kinds.include(&principal), "{role} {}: {answer:?}", rule.path);
        }
    }
    for rule in RULES {
        let status = call(&own, rule.path, Request::new(())).await.expect_err("nobody has a name here");
        assert_eq!(status.code(), Code::Unauthenticated, "{}: {status:?}", rule.path);
    }
}

/// What a role may do to jobs of its tenant, and of another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_and_foreign_jobs() {
    let world = World::with_tenants_under(with_tokens()).await;
    let job_id = world.job_of("speech").await;
    let mut jobs = JobServiceClient::new(anonymous(&world).await);
    let denied = Some(RefusalCode::PermissionDenied);
    let cases = [
        (TokenRole::Viewer, None, denied, true),
        (TokenRole::Viewer, Some("vision"), denied, true),
        (TokenRole::Viewer, Some("speech"), denied, false),
        (TokenRole::Submitter, Some("vision"), denied, true),
        (TokenRole::Submitter, Some("video"), denied, true),
        (TokenRole::TenantAdmin, Some("vision"), denied, true),
        (TokenRole::Submitter, Some("speech"), None, false),
        (TokenRole::TenantAdmin, Some("speech"), None, false),
        (TokenRole::Operator, None, None, false),
        (TokenRole::Drill, None, None, false),
        (TokenRole::Admin, None, None, false),
    ];
    for (number, (role, tenant, expected, is_redacted)) in cases.into_iter().enumerate() {
        let secret = made(&world, number as u128, role, tenant).await;
        let get = v1::GetJobRequest { job_id: job_id.clone(), ..Default::default() };
        let job = guarded("an answer", jobs.get_job(bearer(get, &secret))).await.expect("all may look");
        let job = job.into_inner().job.expect("it is there");
        assert_eq!(job.redacted, is_redacted, "{role} {tenant:?}");
        // Cancelling it again changes nothing.
        let request_id = format!("00000000-0000-4000-b000-{number:012}");
        let cancel = v1::CancelJobRequest { request_id, job_id: job_id.clone() };
        let answer = guarded("an answer", jobs.cancel_job(bearer(cancel, &secret))).await;
        let refused = code(answer).filter(|code| *code != RefusalCode::JobFinished);
        assert_eq!(refused, expected, "{role} {tenant:?}");
    }
}

/// Who repeats somebody's booking sees as little of another tenant's as everybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_booking_tells_no_more_than_a_look_at_it() {
    let world = World::with_tenants_under(with_tokens()).await;
    world.job_of("speech").await;
    let mut bookings = BookingServiceClient::new(anonymous(&world).await);
    let create = || v1::CreateBookingRequest {
        request_id: "00000000-0000-4000-b000-000000000001".to_owned(),
        name: "demo".to_owned(),
        spec: Some(v1::BookingSpec {
            tenant: "speech".to_owned(),
            shape: Some(v1::BookingShape { nodes: vec!["h1".to_owned()], ..Default::default() }),
            length: Some(duration(3_600_000)),
            reason: "a demonstration".to_owned(),
            ..Default::default()
        }),
    };
    let cases = [
        (TokenRole::Admin, None, true),
        (TokenRole::TenantAdmin, Some("speech"), true),
        (TokenRole::TenantAdmin, Some("vision"), false),
    ];
    for (number, (role, tenant, is_shown)) in cases.into_iter().enumerate() {
        let secret = made(&world, number as u128, role, tenant).await;
        let answer = guarded("a booking", bookings.create_booking(bearer(create(), &secret))).await;
        let booking = answer.expect("it is made, or repeated").into_inner().booking.expect("it is there");
        let reason = booking.spec.expect("it has one").reason;
        assert_eq!(!reason.is_empty(), is_shown, "{role} {tenant:?}");
    }
}

/// A token decides where a person shows a certificate too; agents and replicas show none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_next_to_a_certificate() {
    const CORDON: &str = "/muster.v1beta1.FleetService/CordonNode";
    let world = World::with_tenants_under(with_tokens()).await;
    let viewer = made(&world, 1, TokenRole::Viewer, None).await;
    let admin = made(&world, 2, TokenRole::Admin, None).await;
    let denied = Some(RefusalCode::PermissionDenied);
    let root = world.channel(Role::Admin(short("root"))).await;
    assert_eq!(
        code(call(&root, CORDON, bearer((), &viewer)).await),
        denied,
        "it is less than the certificate"
    );
    let ada = world.channel(of_tenant("vision", "ada")).await;
    assert_eq!(code(call(&ada, CORDON, Request::new(())).await), denied);
    assert_ne!(code(call(&ada, CORDON, bearer((), &admin)).await), denied, "it is more than the certificate");
    for role in [Role::Agent(short("h1")), Role::Replica(ReplicaId(1))] {
        let answer = call(&world.channel(role).await, CORDON, bearer((), &admin)).await;
        assert_eq!(code(answer), Some(RefusalCode::Unauthenticated), "{role}");
    }
}

/// Where the configuration says nothing of tokens, none is taken, and nobody connects without a certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_tokens_unless_they_are_configured() {
    let world = World::with_tenants().await;
    let secret = made(&world, 1, TokenRole::Admin, None).await;
    let root = world.channel(Role::Admin(short("root"))).await;
    let path = "/muster.v1beta1.ClusterService/GetServerInfo";
    call(&root, path, Request::new(())).await.expect("its certificate is enough");
    assert_eq!(code(call(&root, path, bearer((), &secret)).await), Some(RefusalCode::Unauthenticated));
    let ca = world.certificate(Role::Admin(short("root"))).with_file_name("ca.crt");
    let security = Security::Tls(Tls::load_authority(ca).expect("it can be used"));
    let address = security.address(&world.address).expect("an address");
    let endpoint = Endpoint::from_shared(address).expect("an address");
    let connecting = endpoint.connect_with_connector(security.connector(Expect::AnyReplica));
    if let Ok(channel) = guarded("an end", connecting).await {
        let answer = call(&channel, path, bearer((), &secret)).await;
        assert_eq!(code(answer.as_ref().map_err(Clone::clone)), None, "the connection is cut, not answered");
        assert!(answer.is_err());
    }
}

/// A replica that is behind may pass on a call with a token that the leader knows to be revoked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_looks_at_tokens_that_are_passed_on() {
    const PATH: &str = "/muster.v1beta1.ClusterService/GetServerInfo";
    let world = World::with_tenants_under(with_tokens()).await;
    let replica = world.channel(Role::Replica(ReplicaId(1))).await;
    let secret = made(&world, 1, TokenRole::Submitter, Some("vision")).await;
    let passed_on = |role: TokenRole, id: TokenId| {
        let (tenant, user) = (Some(short("vision")), short("ada"));
        let (own_role, issuer) = (None, None);
        let principal =
            Principal::Token(TokenHolder { cluster: CLUSTER, id, role, tenant, user, own_role, issuer });
        let said = principal.passed_on().expect("it has a name");
        let mut onward = Request::new(());
        onward.metadata_mut().insert("muster-principal", said.parse().expect("it is ASCII"));
        onward.metadata_mut().insert("muster-forwarded", "1".parse().expect("a digit is ASCII"));
        onward
    };
    let own = || passed_on(TokenRole::Submitter, secret.id());
    call(&replica, PATH, own()).await.expect("it is accepted");
    let refused = Some(RefusalCode::Unauthenticated);
    // A token of this id acts for somebody else by now.
    let other = passed_on(TokenRole::TenantAdmin, secret.id());
    assert_eq!(code(call(&replica, PATH, other).await), refused);
    let unknown = passed_on(TokenRole::Submitter, TokenId(1));
    assert_eq!(code(call(&replica, PATH, unknown).await), refused);
    let revoke = Command::RevokeToken {
        request: RequestId(2_000),
        by: Requester::default(),
        acts_for: None,
        token: secret.id(),
    };
    world.engine.execute(revoke).await.expect("it is revoked");
    assert_eq!(code(call(&replica, PATH, own()).await), refused);
}
