//! Every call by every role, about an own, a foreign and an absent object: built-in roles and roles of the policy, by tokens of the
//! cluster's making and by tokens of an issuer.

use muster_decider::{Command, TokenOrder};
use muster_oidc::test_issuer::TestIssuer;
use muster_oidc::{Algorithm, FetchRules, IssuerSettings, Issuers, KeySource, Rule};
use muster_transport::{Expect, Principal, Role, Security, Tls, TokenHolder, TokenSecret};
use muster_types::policy::Verb;
use muster_types::{HolderId, RefusalCode, RequestId, Requester, TokenGrant, TokenId, TokenRole};
use muster_wire::closed::number;
use muster_wire::status::Refused;
use muster_wire::v1::policy_service_client::PolicyServiceClient;
use muster_wire::{FieldMask, admin, v1};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::ApiConfig;
use crate::access::RULES;
use crate::access_tests::{World, guarded, host_in, short, submission};
use crate::sample::CLUSTER;
use crate::verbs::is_in;

const ISSUER: &str = "https://login.example";
/// The verbs of a role for builds, and of one for operators of one region.
const CI: &[Verb] = &[Verb::Read, Verb::Submit, Verb::Cancel];
const EU: &[Verb] =
    &[Verb::Cordon, Verb::Drain, Verb::Repair, Verb::Quarantine, Verb::Label, Verb::Forget, Verb::Probe];

fn name(text: &str) -> muster_types::Name {
    muster_types::Name::new(text).expect("a name")
}

fn settings() -> IssuerSettings {
    let rule = |group: &str, role: &str, tenant: Option<&str>| Rule {
        group: Some(group.to_owned()),
        role: name(role),
        tenant: tenant.map(name),
    };
    IssuerSettings {
        name: name("corp"),
        url: ISSUER.to_owned(),
        audience: "muster".to_owned(),
        keys: KeySource::Described,
        algorithms: Algorithm::ALL.into_iter().collect(),
        clock_skew: Duration::from_secs(30),
        lifetime_max: Duration::from_secs(24 * 3_600),
        user_claim: "sub".to_owned(),
        user_suffix: String::new(),
        groups_claim: "groups".to_owned(),
        rules: vec![
            rule("vision", "submitter", Some("vision")),
            rule("builds", "ci", Some("vision")),
            rule("on-call", "eu-operator", None),
            rule("gone", "viewer", Some("nobody")),
            rule("undefined", "no-such-role", None),
            rule("crossed", "ci", None),
        ],
        refresh: Duration::from_secs(300),
        refetch_gap: Duration::from_secs(10),
        keys_kept: Duration::from_secs(3_600),
        fetch: FetchRules {
            allow_http: false,
            allowed_hosts: BTreeSet::new(),
            timeout: Duration::from_secs(1),
        },
        ca_file: None,
    }
}

/// A token of the issuer for the members of a group.
fn issued(key: &TestIssuer, group: &str) -> String {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let claims = format!(
        r#"{{"iss":"{ISSUER}","aud":"muster","sub":"ada","groups":["{group}"],"iat":{now_s},"exp":{}}}"#,
        now_s + 3_600
    );
    key.sign_text(r#"{"alg":"EdDSA","kid":"k1"}"#, &claims)
}

pub(crate) async fn world() -> (World, TestIssuer) {
    let (key, issuers) = (TestIssuer::new("k1"), Issuers::new(vec![settings()]));
    issuers.set_keys(0, &key.key_set());
    let config = ApiConfig { tokens: true, ..ApiConfig::DEFAULT };
    let world = World::with_tenants_signing_in(config, issuers).await;
    set_roles(
        &world,
        2,
        &[("ci", TokenRole::Submitter, CI, &[]), ("eu-operator", TokenRole::Operator, EU, &["eu"])],
    )
    .await
    .expect("they break no rule");
    (world, key)
}

/// Puts other roles into the policy.
async fn set_roles(
    world: &World,
    request: u32,
    roles: &[(&str, TokenRole, &[Verb], &[&str])],
) -> Result<(), Status> {
    let role = |(text, part_of, verbs, regions): &(&str, TokenRole, &[Verb], &[&str])| {
        let role = v1::OwnRole {
            part_of: number(*part_of),
            verbs: verbs.iter().map(|verb| number(*verb)).collect(),
            regions: regions.iter().map(|region| (*region).to_owned()).collect(),
        };
        ((*text).to_owned(), role)
    };
    let update = v1::UpdatePolicyRequest {
        request_id: format!("00000000-0000-4000-8000-{request:012}"),
        policy: Some(v1::Policy { roles: roles.iter().map(role).collect(), ..Default::default() }),
        update_mask: Some(FieldMask { paths: vec!["roles".to_owned()] }),
        ..Default::default()
    };
    let mut policies = PolicyServiceClient::new(world.channel(Role::Admin(short("root"))).await);
    guarded("a policy", policies.update_policy(update)).await.map(drop)
}

/// Who calls, and what it shows.
pub(crate) struct Caller {
    pub(crate) label: String,
    pub(crate) bearer: String,
    principal: Principal,
    /// Of a role of the policy.
    verbs: Option<&'static [Verb]>,
    is_regional: bool,
}

impl Caller {
    pub(crate) fn has(&self, path: &str) -> bool {
        let rule = RULES.iter().find(|rule| rule.path == path).expect("a call");
        let has_verb = self.verbs.is_none_or(|verbs| is_in(path, |verb| verbs.contains(&verb)));
        rule.kinds.include(&self.principal) && has_verb
    }

    /// Whether it acts for one tenant alone.
    pub(crate) fn is_of_tenant(&self) -> bool {
        matches!(self.principal.role(), Some(Role::TenantClient { .. }))
    }
}

pub(crate) async fn made(
    world: &World,
    number: u64,
    role: TokenRole,
    tenant: Option<&str>,
    own_role: Option<&str>,
) -> TokenSecret {
    let secret = TokenSecret::generate().expect("there is randomness");
    let grant = TokenGrant {
        name: name(&format!("t{number}")),
        user: name("ada"),
        role,
        tenant: tenant.map(name),
        secret_sha256: secret.sha256(),
        own_role: own_role.map(name),
    };
    let order = TokenOrder {
        request: RequestId(1_000 + u128::from(number)),
        by: Requester::default(),
        acts_for: None,
        token: secret.id(),
        grant,
        lifetime_ms: 24 * 3_600 * 1_000,
    };
    world.engine.execute(Command::CreateToken(Box::new(order))).await.expect("it is made");
    secret
}

/// A built-in role, the tenant, the own role with its verbs.
type Kind = (TokenRole, Option<&'static str>, Option<&'static str>, Option<&'static [Verb]>);

pub(crate) async fn callers(world: &World, key: &TestIssuer) -> Vec<Caller> {
    let holder = |id: u64, role, tenant: Option<&str>, own: Option<&str>, issuer: Option<&str>| {
        Principal::Token(TokenHolder {
            cluster: CLUSTER,
            id: TokenId(id),
            role,
            tenant: tenant.map(short),
            user: short("ada"),
            own_role: own.map(short),
            issuer: issuer.map(short),
        })
    };
    let mut kinds: Vec<Kind> = TokenRole::ALL
        .into_iter()
        .map(|role| (role, (role.needs_tenant() != Some(false)).then_some("vision"), None, None))
        .collect();
    kinds.push((TokenRole::Submitter, Some("vision"), Some("ci"), Some(CI)));
    kinds.push((TokenRole::Operator, None, Some("eu-operator"), Some(EU)));
    let mut callers = Vec::new();
    for (number, (role, tenant, own, verbs)) in kinds.into_iter().enumerate() {
        let secret = made(world, number as u64, role, tenant, own).await;
        callers.push(Caller {
            label: format!("{role} {own:?}"),
            bearer: secret.reveal().to_owned(),
            principal: holder(secret.id().0, role, tenant, own, None),
            verbs,
            is_regional: own == Some("eu-operator"),
        });
    }
    let groups: [(&str, Kind); 3] = [
        ("vision", (TokenRole::Submitter, Some("vision"), None, None)),
        ("builds", (TokenRole::Submitter, Some("vision"), Some("ci"), Some(CI))),
        ("on-call", (TokenRole::Operator, None, Some("eu-operator"), Some(EU))),
    ];
    for (group, (role, tenant, own, verbs)) in groups {
        callers.push(Caller {
            label: format!("group {group}"),
            bearer: issued(key, group),
            principal: holder(0, role, tenant, own, Some("corp")),
            verbs,
            is_regional: own == Some("eu-operator"),
        });
    }
    callers
}

/// A connection without a certificate.
pub(crate) async fn anonymous(world: &World) -> Channel {
    let root = Role::Admin(short("root"));
    drop(world.security(root));
    let ca = world.certificate(root).with_file_name("ca.crt");
    let security = Security::Tls(Tls::load_authority(ca).expect("it can be used"));
    let address = security.address(&world.address).expect("an address");
    let endpoint = Endpoint::from_shared(address).expect("an address");
    let connected = endpoint.connect_with_connector(security.connector(Expect::AnyReplica));
    guarded("a connection", connected).await.expect("it may connect")
}

/// Any call with any message; up to the beginning of its answer.
pub(crate) async fn call<M>(
    channel: &Channel,
    path: &'static str,
    bearer: &str,
    message: M,
) -> Result<(), Status>
where
    M: prost::Message + Default + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    guarded(path, grpc.ready()).await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = tonic_prost::ProstCodec::<M, ()>::default();
    let mut request = Request::new(message);
    let text = format!("Bearer {bearer}");
    request.metadata_mut().insert("authorization", text.parse().expect("it is ASCII"));
    guarded("an answer", grpc.server_streaming(request, PathAndQuery::from_static(path), codec))
        .await
        .map(drop)
}

pub(crate) fn code(answer: &Result<(), Status>) -> Option<RefusalCode> {
    answer.as_ref().err().and_then(|status| Refused::from_status(status).code)
}

/// By the table and the verbs, and not by what the call is about.
pub(crate) fn is_denied_by_role(answer: &Result<(), Status>) -> bool {
    let is_named = answer.as_ref().is_err_and(|status| status.message().contains(" may not call "));
    is_named && code(answer) == Some(RefusalCode::PermissionDenied)
}

pub(crate) fn next_id() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("00000000-0000-4000-b000-{:012}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Objects of the one who calls, of others, and such as are not there.
pub(crate) struct Objects {
    pub(crate) jobs: [String; 3],
    nodes: [&'static str; 3],
    pub(crate) tenants: [&'static str; 3],
}

pub(crate) const WHICH: [&str; 3] = ["own", "foreign", "absent"];
pub(crate) const FOREIGN: usize = 1;

pub(crate) async fn objects(world: &World) -> Objects {
    for (holder, (node, region)) in [("h1", "eu"), ("h2", "us")].into_iter().enumerate() {
        let register = Command::Register {
            spec: host_in(node, region),
            holder: HolderId(holder as u128 + 1),
            other_session_is_over: false,
        };
        world.engine.execute(register).await.expect("a host comes");
    }
    let mut jobs = Vec::new();
    for (number, tenant) in ["vision", "speech"].into_iter().enumerate() {
        let asked = muster_wire::convert::submissions_from_proto("job", submission(tenant, 0).job);
        let asked = asked.expect("it is a job").into();
        let submit = Command::submit(RequestId(number as u128 + 7), asked);
        let answer = world.engine.execute(submit).await.expect("it fits");
        let muster_decider::Answer::Submitted { jobs: made, .. } = answer else { panic!("{answer:?}") };
        jobs.push(made[0]);
    }
    let absent = muster_types::JobId(jobs[1].0 + 1_000);
    Objects {
        jobs: [jobs[0].to_string(), jobs[1].to_string(), absent.to_string()],
        nodes: ["h1", "h2", "h3"],
        tenants: ["video", "speech", "nobody"],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_by_every_role_of_either_kind() {
    let (world, key) = world().await;
    let channel = anonymous(&world).await;
    for caller in callers(&world, &key).await {
        for rule in RULES {
            let answer = call(&channel, rule.path, &caller.bearer, ()).await;
            let (label, path) = (&caller.label, rule.path);
            assert_eq!(is_denied_by_role(&answer), !caller.has(path), "{label} {path}: {answer:?}");
            assert_ne!(code(&answer), Some(RefusalCode::Unauthenticated), "{label} {path}");
        }
    }
}

/// What each answer about an object has to be, by the caller, the call and the object.
pub(crate) fn assert_right(
    caller: &Caller,
    path: &str,
    which: usize,
    is_foreign_denied: bool,
    answer: &Result<(), Status>,
) {
    let shown = format!("{} {path} {}: {answer:?}", caller.label, WHICH[which]);
    if !caller.has(path) {
        assert!(is_denied_by_role(answer), "{shown}");
    } else if which == FOREIGN && is_foreign_denied {
        let denied = [Some(RefusalCode::PermissionDenied), Some(RefusalCode::JobNotFound)];
        assert!(denied.contains(&code(answer)), "{shown}");
        assert!(!is_denied_by_role(answer), "{shown}");
    } else if which != FOREIGN || !is_foreign_denied {
        // Of a tenant that the policy does not know, nobody is told more than that it is not theirs.
        let is_unknown_tenant =
            path.ends_with("/SubmitJob") && WHICH[which] == "absent" && caller.is_of_tenant();
        assert_eq!(code(answer) == Some(RefusalCode::PermissionDenied), is_unknown_tenant, "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_and_jobs_that_are_its_own_of_others_and_not_there() {
    let (world, key) = world().await;
    let channel = anonymous(&world).await;
    let objects = objects(&world).await;
    for caller in callers(&world, &key).await {
        for which in 0..WHICH.len() {
            let job_id = || objects.jobs[which].clone();
            let of_job = || {
                let filter = Some(v1::JobFilter { job_ids: vec![job_id()], ..Default::default() });
                Some(v1::JobSelector { filter, ..Default::default() })
            };
            let is_foreign_denied = caller.is_of_tenant();
            macro_rules! ask {
                ($method:literal, $message:expr, $is_foreign_denied:expr) => {{
                    let path = concat!("/muster.v1beta1.JobService/", $method);
                    let answer = call(&channel, path, &caller.bearer, $message).await;
                    assert_right(&caller, path, which, $is_foreign_denied, &answer);
                }};
            }
            macro_rules! select {
                ($($method:literal $request:ident,)*) => {$(
                    let (request_id, selector) = (next_id(), of_job());
                    let message = v1::$request { request_id, selector, validate_only: true };
                    ask!($method, message, is_foreign_denied);
                )*};
            }
            ask!("GetJob", v1::GetJobRequest { job_id: job_id(), ..Default::default() }, false);
            ask!("ExplainJob", v1::ExplainJobRequest { job_id: job_id(), ..Default::default() }, false);
            select! {
                "CancelJobs" CancelJobsRequest, "HoldJobs" HoldJobsRequest, "ReleaseJobs" ReleaseJobsRequest,
                "RequeueJobs" RequeueJobsRequest, "SuspendJobs" SuspendJobsRequest,
            }
            let start =
                v1::ExecStart { job_id: job_id(), command: vec!["true".to_owned()], ..Default::default() };
            let exec =
                v1::ExecWorkerRequest { message: Some(v1::exec_worker_request::Message::Start(start)) };
            ask!("ExecWorker", exec, is_foreign_denied);
            let token = Some(v1::FencingToken { generation: 1, log_index: 1 });
            ask!(
                "CommitCheckpoint",
                v1::CommitCheckpointRequest { job_id: job_id(), token },
                is_foreign_denied
            );
            let cancel = v1::CancelJobRequest { request_id: next_id(), job_id: job_id() };
            ask!("CancelJob", cancel, is_foreign_denied);
            let tenant = objects.tenants[which];
            let submit =
                v1::SubmitJobRequest { request_id: next_id(), validate_only: true, ..submission(tenant, 0) };
            ask!("SubmitJob", submit, is_foreign_denied);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_and_nodes_in_its_region_in_others_and_not_there() {
    let (world, key) = world().await;
    let channel = anonymous(&world).await;
    let objects = objects(&world).await;
    for caller in callers(&world, &key).await {
        for which in 0..WHICH.len() {
            let node = || objects.nodes[which].to_owned();
            macro_rules! ask {
                ($($path:literal, $message:expr;)*) => {$(
                    let path = concat!("/muster.", $path);
                    let answer = call(&channel, path, &caller.bearer, $message).await;
                    assert_right(&caller, path, which, caller.is_regional, &answer);
                )*};
            }
            macro_rules! change {
                ($($method:literal $request:ident,)*) => {$(
                    ask!($method, v1::$request { request_id: next_id(), node: node() };);
                )*};
            }
            change! {
                "v1beta1.FleetService/UncordonNode" UncordonNodeRequest,
                "v1beta1.FleetService/CancelNodeDrain" CancelNodeDrainRequest,
                "v1beta1.FleetService/ReleaseNode" ReleaseNodeRequest,
            }
            // A node that an operator forgets is no node of another region for those who come after.
            if caller.is_regional {
                change! { "v1beta1.FleetService/ForgetNode" ForgetNodeRequest, }
            }
            let inspect = v1::HealthAction::Inspect.into();
            let done = v1::RepairOutcome::Done.into();
            let labels: HashMap<String, String> = [("team".to_owned(), "x".to_owned())].into();
            let reason = "looks odd".to_owned();
            ask! {
                "v1beta1.FleetService/CordonNode",
                v1::CordonNodeRequest { request_id: next_id(), node: node(), ..Default::default() };
                "v1beta1.FleetService/DrainNode",
                v1::DrainNodeRequest { request_id: next_id(), node: node(), ..Default::default() };
                "v1beta1.FleetService/QuarantineNode",
                v1::QuarantineNodeRequest { request_id: next_id(), node: node(), reason };
                "v1beta1.FleetService/BeginNodeRepair",
                v1::BeginNodeRepairRequest { request_id: next_id(), node: node(), action: inspect, ..Default::default() };
                "v1beta1.FleetService/FinishNodeRepair",
                v1::FinishNodeRepairRequest { request_id: next_id(), node: node(), outcome: done, ..Default::default() };
                "v1beta1.FleetService/SetNodeLabels",
                v1::SetNodeLabelsRequest { node: node(), set_labels: labels, validate_only: true, ..Default::default() };
                "admin.v1beta1.ProbeService/ProbeNodes",
                admin::ProbeNodesRequest { nodes: vec!["h1".to_owned(), node()] };
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sign_in_is_refused_with_its_reason_and_ends_with_its_grant() {
    const PATH: &str = "/muster.v1beta1.ClusterService/GetServerInfo";
    let (world, key) = world().await;
    let channel = anonymous(&world).await;
    let reason = |answer: Result<(), Status>| {
        let refused = Refused::from_status(&answer.expect_err("it is refused"));
        assert_eq!(refused.code, Some(RefusalCode::Unauthenticated), "{refused:?}");
        refused.metadata.get("reason").cloned().unwrap_or_default()
    };
    for (group, expected) in [
        ("nobody", "TOKEN_NO_RULE"),
        ("gone", "TOKEN_TENANT"),
        ("undefined", "TOKEN_ROLE"),
        // A submitter without a tenant.
        ("crossed", "TOKEN_ROLE"),
    ] {
        assert_eq!(reason(call(&channel, PATH, &issued(&key, group), ()).await), expected, "{group}");
    }
    let forged = TestIssuer::new("k1");
    assert_eq!(reason(call(&channel, PATH, &issued(&forged, "vision"), ()).await), "TOKEN_SIGNATURE");
    let long = format!("{}.e30.AA", "a".repeat(9_000));
    assert_eq!(reason(call(&channel, PATH, &long, ()).await), "TOKEN_TOO_LARGE");
    // What is of neither form says no more than before.
    assert_eq!(reason(call(&channel, PATH, "aa.bb", ()).await), "");
    let token = issued(&key, "builds");
    call(&channel, PATH, &token, ()).await.expect("it is accepted");
    set_roles(&world, 3, &[]).await.expect("no token of the cluster has it");
    assert_eq!(reason(call(&channel, PATH, &token, ()).await), "TOKEN_ROLE");
}

/// Drills and the leadership are of the region of a replica, which is `eu` here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drills_are_for_the_regions_of_a_role() {
    const VERBS: &[Verb] = &[Verb::Drill, Verb::Leadership];
    let (world, _key) = world().await;
    let own = ("here", TokenRole::Drill, VERBS, &["eu"][..]);
    let other = ("elsewhere", TokenRole::Drill, VERBS, &["us"][..]);
    set_roles(&world, 3, &[own, other]).await.expect("they break no rule");
    let channel = anonymous(&world).await;
    for (number, role, is_denied) in [(1, "here", false), (2, "elsewhere", true)] {
        let secret = made(&world, number, TokenRole::Drill, None, Some(role)).await;
        let denied = Some(RefusalCode::PermissionDenied);
        let end = "/muster.admin.v1beta1.DrillService/EndDrill";
        let answer = call(&channel, end, secret.reveal(), admin::EndDrillRequest::default()).await;
        assert_eq!(code(&answer) == denied, is_denied, "{role}: {answer:?}");
        let transfer = "/muster.admin.v1beta1.ClusterAdminService/TransferLeadership";
        let message = admin::TransferLeadershipRequest { target_replica_id: 1, ..Default::default() };
        let answer = call(&channel, transfer, secret.reveal(), message).await;
        assert_eq!(code(&answer) == denied, is_denied, "{role}: {answer:?}");
        // To which replica, the leader would choose.
        let message = admin::TransferLeadershipRequest::default();
        let answer = call(&channel, transfer, secret.reveal(), message).await;
        assert_eq!(code(&answer), denied, "{role}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_is_told_who_it_is() {
    use muster_wire::v1::cluster_service_client::ClusterServiceClient;
    let (world, key) = world().await;
    let secret = made(&world, 1, TokenRole::Operator, None, Some("eu-operator")).await;
    let mut clusters = ClusterServiceClient::new(anonymous(&world).await);
    let mut ask = async |bearer: &str| {
        let mut request = Request::new(v1::GetServerInfoRequest {});
        let text = format!("Bearer {bearer}");
        request.metadata_mut().insert("authorization", text.parse().expect("it is ASCII"));
        let answer = guarded("an answer", clusters.get_server_info(request)).await.expect("everybody may");
        answer.into_inner().caller.expect("it is somebody")
    };
    let own = ask(secret.reveal()).await;
    assert_eq!((own.kind.as_str(), own.own_role.as_str()), ("token:operator", "eu-operator"));
    assert_eq!((own.token_id, own.regions), (secret.id().to_string(), vec!["eu".to_owned()]));
    assert_eq!(own.verbs.len(), EU.len());
    assert!(own.expire_time.is_some() && own.issuer.is_empty());
    let issued = ask(&issued(&key, "vision")).await;
    assert_eq!(issued.name, "tenant/vision/ada+oidc/corp");
    assert_eq!(
        (issued.tenant.as_str(), issued.user.as_str(), issued.issuer.as_str()),
        ("vision", "ada", "corp")
    );
    assert!(issued.own_role.is_empty() && issued.token_id.is_empty());
}

/// What an operator gives a person: one verb on one subtree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_has_one_verb_on_one_subtree_and_the_log_has_what_was_done_with_it() {
    const PATH: &str = "/muster.v1beta1.JobService/CancelJob";
    let (world, _key) = world().await;
    let role: (&str, TokenRole, &[Verb], &[&str]) = ("cancels", TokenRole::Submitter, &[Verb::Cancel], &[]);
    set_roles(&world, 3, &[role]).await.expect("it breaks no rule");
    let objects = objects(&world).await;
    let asked = muster_wire::convert::submissions_from_proto("job", submission("video", 0).job);
    let submit = Command::submit(RequestId(9), asked.expect("it is a job").into());
    let answer = world.engine.execute(submit).await.expect("it fits");
    let muster_decider::Answer::Submitted { jobs: below, .. } = answer else { panic!("{answer:?}") };
    let secret = made(&world, 1, TokenRole::Submitter, Some("vision"), Some("cancels")).await;
    let channel = anonymous(&world).await;
    for rule in RULES.iter().filter(|rule| !is_in(rule.path, |verb| verb == Verb::Cancel)) {
        let answer = call(&channel, rule.path, secret.reveal(), ()).await;
        assert!(is_denied_by_role(&answer), "{}: {answer:?}", rule.path);
    }
    let cancel = |job_id: String| v1::CancelJobRequest { request_id: next_id(), job_id };
    let foreign = call(&channel, PATH, secret.reveal(), cancel(objects.jobs[FOREIGN].clone())).await;
    assert_eq!(code(&foreign), Some(RefusalCode::PermissionDenied), "{foreign:?}");
    for own in [objects.jobs[0].clone(), below[0].to_string()] {
        call(&channel, PATH, secret.reveal(), cancel(own)).await.expect("it is of the subtree");
    }
    let root = world.channel(Role::Admin(short("root"))).await;
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let by: Vec<(String, String)> = crate::audit_tests::records(&world, root)
        .await
        .into_iter()
        .filter(|(decision, _)| decision == "job_cancel_requested")
        .map(|(_, content)| (text(&content["by"]["name"]), text(&content["by"]["role"])))
        .collect();
    let holder = (format!("tenant/vision/ada+token/{}", secret.id()), "cancels".to_owned());
    assert_eq!(by, [holder.clone(), holder], "who and with which role; what was denied is in no record");
}

/// A role that is in use stays, and a watch ends when its role lacks the call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_ends_when_its_role_lacks_the_verb() {
    use muster_wire::v1::job_service_client::JobServiceClient;
    let (world, _key) = world().await;
    let channel = anonymous(&world).await;
    let secret = made(&world, 1, TokenRole::Submitter, Some("vision"), Some("ci")).await;
    let mut request = Request::new(v1::WatchJobsRequest::default());
    let text = format!("Bearer {}", secret.reveal());
    request.metadata_mut().insert("authorization", text.parse().expect("it is ASCII"));
    let mut jobs = JobServiceClient::new(channel);
    let mut watch = guarded("a watch", jobs.watch_jobs(request)).await.expect("it may").into_inner();
    let refused = set_roles(&world, 3, &[]).await.expect_err("a token has it");
    assert_eq!(Refused::from_status(&refused).code, Some(RefusalCode::InvalidField));
    set_roles(&world, 4, &[("ci", TokenRole::Submitter, &[Verb::Submit], &[])])
        .await
        .expect("it may have less");
    let ended = guarded("an end", async {
        loop {
            match watch.message().await {
                Err(status) => return status,
                Ok(message) => assert!(message.is_some(), "it ends with a reason"),
            }
        }
    });
    assert_eq!(ended.await.code(), tonic::Code::Unauthenticated);
}

/// What the check of a token costs, for who wants to know: `cargo test --release -p muster-api what_a_token_costs -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement; it holds no bound on machines that do other work"]
async fn what_a_token_costs() {
    use crate::tokens::Tokens;
    use muster_transport::PeerInfo;
    use tonic::codegen::http;
    const TIMES: u32 = 20_000;
    let (world, key) = world().await;
    let issuers = Issuers::new(vec![settings()]);
    issuers.set_keys(0, &key.key_set());
    let tokens = Tokens::new(world.engine.clone(), true, issuers);
    for number in 0..90 {
        made(&world, 100 + number, TokenRole::Viewer, None, None).await;
    }
    let secret = made(&world, 1, TokenRole::Submitter, Some("vision"), None).await;
    let own = made(&world, 2, TokenRole::Submitter, Some("vision"), Some("ci")).await;
    let peer = PeerInfo { address: ([127, 0, 0, 1], 1).into(), principal: Principal::Anonymous };
    let shown = |bearer: &str| {
        let mut headers = http::HeaderMap::new();
        let text = format!("Bearer {bearer}");
        headers.insert(http::header::AUTHORIZATION, text.parse().expect("it is ASCII"));
        headers
    };
    let measure = |what: &str, bearer: &str| {
        let begun = std::time::Instant::now();
        for _ in 0..TIMES {
            let mut headers = shown(bearer);
            let principal = tokens.judge(&mut headers, peer).expect("it is accepted").expect("a holder");
            assert!(tokens.has_call(&principal, "/muster.v1beta1.JobService/SubmitJob"));
        }
        println!("{what}: {} ns a call, to be at most 5000", begun.elapsed().as_nanos() / u128::from(TIMES));
    };
    measure("a token of the cluster", secret.reveal());
    measure("one with a role of the policy", own.reveal());
    measure("a token of an issuer that was verified", &issued(&key, "vision"));
    let begun = std::time::Instant::now();
    let fresh: Vec<String> = (0..1_000).map(|_| issued(&TestIssuer::new("k1"), "vision")).collect();
    println!("made in {:?}", begun.elapsed());
    let begun = std::time::Instant::now();
    for token in &fresh {
        let mut headers = shown(token);
        assert!(tokens.judge(&mut headers, peer).is_err(), "of another key");
    }
    println!("a token of an issuer that was not verified: {} ns a call", begun.elapsed().as_nanos() / 1_000);
}
