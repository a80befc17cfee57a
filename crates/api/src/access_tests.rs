//! The door, through a real listener with certificates.

use muster_oidc::Issuers;
use muster_transport::{Authority, Expect, Principal, Role, Security, ShortName, Tls, TlsFiles};
use muster_types::{RefusalCode, ReplicaId};
use muster_wire::agent::node_service_client::NodeServiceClient;
use muster_wire::agent::session_request;
use muster_wire::status::Refused;
use muster_wire::v1::fleet_service_client::FleetServiceClient;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::{agent, v1};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::access::RULES;
use crate::protocol_tests::StatedReasons;
use crate::sample::{self, CLUSTER};
use crate::{ApiConfig, CallLimits, Shared, serve};

pub(crate) async fn guarded<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(30), future).await {
        Ok(value) => value,
        Err(_) => panic!("nothing happened: {what}"),
    }
}

pub(crate) struct World {
    directory: TempDir,
    authority: Authority,
    pub(crate) engine: muster_engine::Engine,
    pub(crate) address: String,
    pub(crate) recorded: tokio::sync::Mutex<crate::RecordedCalls>,
    task: tokio::task::JoinHandle<()>,
    _stated: StatedReasons,
}

impl World {
    pub(crate) async fn start(config: ApiConfig) -> World {
        World::start_with(config, Issuers::new(Vec::new())).await
    }

    /// The same with tokens of these issuers.
    async fn start_with(config: ApiConfig, issuers: Issuers) -> World {
        let directory = tempfile::tempdir().expect("a directory");
        let authority =
            Authority::init(&directory.path().join("authority"), CLUSTER, 10).expect("it is made");
        let engine = sample::leader_with_certificates().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it has one").to_string();
        let (recorder, recorded) = crate::CallRecorder::queue();
        let (recorded, task) = (tokio::sync::Mutex::new(recorded), tokio::spawn(async {}));
        let mut world =
            World { directory, authority, engine, address, recorded, task, _stated: StatedReasons };
        let security = world.security(Role::Replica(ReplicaId(1)));
        let shared =
            Shared::new(world.engine.clone(), config, security).recording(recorder).signing_in(issuers);
        let metrics = muster_metrics::ReplicaMetrics::default();
        let serving = serve(shared, metrics, listener, std::future::pending());
        world.task = tokio::spawn(async move { drop(serving.await) });
        world
    }

    pub(crate) fn security(&self, role: Role) -> Security {
        let out = self.directory.path().join(role.to_string().replace('/', "-"));
        let issued = self.authority.issue(role, 5, &out, true).expect("it is issued");
        let files = TlsFiles { ca: issued.ca, cert: issued.cert, key: issued.key };
        Security::Tls(Tls::load(files).expect("it can be used"))
    }

    /// Where the certificate lies that was issued last for this role.
    pub(crate) fn certificate(&self, role: Role) -> std::path::PathBuf {
        self.directory.path().join(role.to_string().replace('/', "-")).join("tls.crt")
    }

    pub(crate) async fn channel(&self, role: Role) -> Channel {
        let security = self.security(role);
        let address = security.address(&self.address).expect("an address");
        let endpoint = Endpoint::from_shared(address).expect("an address");
        let connected = endpoint.connect_with_connector(security.connector(Expect::AnyReplica));
        guarded("a connection", connected).await.expect("a member connects")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn short(name: &str) -> ShortName {
    ShortName::new(name).expect("a name")
}

/// Any call, with an empty message; up to the beginning of its answer.
async fn call(channel: &Channel, path: &'static str, on_behalf: Option<&str>) -> Result<(), Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    guarded(path, grpc.ready()).await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let mut request = Request::new(());
    if let Some(name) = on_behalf {
        request.metadata_mut().insert("muster-principal", name.parse().expect("a name is ASCII"));
        request.metadata_mut().insert("muster-forwarded", "1".parse().expect("a digit is ASCII"));
    }
    let path = PathAndQuery::from_static(path);
    guarded("an answer", grpc.server_streaming(request, path, codec)).await.map(drop)
}

fn refused(status: &Status) -> Option<RefusalCode> {
    Refused::from_status(status).code
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_refused_to_whoever_may_not_make_it() {
    let world = World::start(ApiConfig::DEFAULT).await;
    let before = world.engine.view().log_index();
    let admin = format!("spiffe://{CLUSTER}/admin/root");
    let stranger = format!("spiffe://{}/admin/root", "1".repeat(32));
    let roles = [
        Role::Agent(short("h1")),
        Role::AgentGroup(short("slurm-a")),
        Role::Client(short("ada")),
        Role::AllTenants(short("ada")),
        Role::Admin(short("root")),
        Role::Replica(ReplicaId(1)),
    ];
    for role in roles {
        let channel = world.channel(role).await;
        let principal = Principal::Named(muster_transport::PeerName { cluster: CLUSTER, role });
        let replica = matches!(role, Role::Replica(_));
        for rule in RULES {
            let denied = |answer: &Result<(), Status>| {
                // By the table; what an agent says inside of a call is another matter.
                let by_table = |status: &&Status| {
                    let text = status.message();
                    text.contains(" may not call ") || text.contains("is passed on for nobody")
                };
                let status = answer.as_ref().err().filter(by_table);
                status.and_then(refused) == Some(RefusalCode::PermissionDenied)
            };
            let answer = call(&channel, rule.path, None).await;
            assert_eq!(denied(&answer), !rule.kinds.include(&principal), "{role} {}: {answer:?}", rule.path);
            // For an operator, by its own account: believed of a replica alone.
            let answer = call(&channel, rule.path, Some(&admin)).await;
            let root = Principal::Named(admin.parse().expect("a name"));
            let judged = if replica { root } else { principal };
            assert_eq!(denied(&answer), !rule.kinds.include(&judged), "{role} {}: {answer:?}", rule.path);
            let answer = call(&channel, rule.path, Some(&stranger)).await;
            assert_eq!(
                denied(&answer),
                replica || !rule.kinds.include(&principal),
                "for another cluster's: {role} {}: {answer:?}",
                rule.path
            );
        }
        let unknown =
            call(&channel, "/muster.v1beta1.JobService/Anything", None).await.expect_err("no such call");
        assert_eq!(unknown.code(), Code::Unimplemented);
        assert_eq!(refused(&unknown), Some(RefusalCode::FeatureUnknown), "{unknown:?}");
    }
    // Without a certificate there is no answer at all.
    let endpoint = Endpoint::from_shared(format!("http://{}", world.address)).expect("an address");
    if let Ok(channel) = guarded("an end", endpoint.connect()).await {
        for rule in RULES {
            let answer = call(&channel, rule.path, None).await.expect_err("plaintext is not answered");
            assert!(refused(&answer).is_none() && answer.code() != Code::Unimplemented, "{answer:?}");
        }
    }
    assert_eq!(world.engine.view().log_index(), before, "somebody was obeyed");
}

/// Begins a session with an empty description of this node.
async fn empty_session(channel: &Channel, name: &str) -> Status {
    let node = v1::NodeDescription { name: name.to_owned(), ..Default::default() };
    let register = agent::Register { node: Some(node), ..Default::default() };
    let message = agent::SessionRequest { message: Some(session_request::Message::Register(register)) };
    let mut nodes = NodeServiceClient::new(channel.clone());
    let answer = guarded("an answer", nodes.session(tokio_stream::once(message))).await;
    answer.map(drop).expect_err("the description is empty")
}

pub(crate) fn command_next_to(job_id: &str) -> v1::ExecWorkerRequest {
    let command = vec!["true".to_owned()];
    let start = v1::ExecStart { job_id: job_id.to_owned(), command, ..Default::default() };
    v1::ExecWorkerRequest { message: Some(v1::exec_worker_request::Message::Start(start)) }
}

pub(crate) fn port_of(job_id: &str) -> v1::ForwardPortRequest {
    let start = v1::ForwardPortStart { job_id: job_id.to_owned(), port: 6_006, ..Default::default() };
    v1::ForwardPortRequest { message: Some(v1::forward_port_request::Message::Start(start)) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_speaks_for_its_own_node_alone() {
    let world = World::start(ApiConfig::DEFAULT).await;
    let channel = world.channel(Role::Agent(short("h1"))).await;
    for other in ["h2", "h10", "h", "x.h1", "", "h1.", "h1.n1", "h1.evil"] {
        let status = empty_session(&channel, other).await;
        assert_eq!(refused(&status), Some(RefusalCode::PermissionDenied), "{other:?}: {status:?}");
    }
    let status = empty_session(&channel, "h1").await;
    assert_eq!(refused(&status), Some(RefusalCode::InvalidField), "its own is looked at: {status:?}");
    let upload = |name: &str| {
        let message =
            agent::UploadLogsRequest { read_id: 1, node_name: name.to_owned(), ..Default::default() };
        let mut nodes = NodeServiceClient::new(channel.clone());
        async move { guarded("an answer", nodes.upload_logs(tokio_stream::once(message))).await.map(drop) }
    };
    let status = upload("h2").await.expect_err("another's node");
    assert_eq!(refused(&status), Some(RefusalCode::PermissionDenied), "{status:?}");
    let status = upload("h1").await.expect_err("nobody reads");
    assert_eq!(refused(&status), Some(RefusalCode::Fenced), "{status:?}");
    let relay = |name: &str| {
        let message = agent::RelayExecRequest { relay_id: 1, node_name: name.to_owned(), message: None };
        let mut nodes = NodeServiceClient::new(channel.clone());
        async move { guarded("an answer", nodes.relay_exec(tokio_stream::once(message))).await.map(drop) }
    };
    let status = relay("h2").await.expect_err("another's node");
    assert_eq!(refused(&status), Some(RefusalCode::PermissionDenied), "{status:?}");
    let status = relay("h1").await.expect_err("nobody asked");
    assert_eq!(refused(&status), Some(RefusalCode::ExecUnavailable), "{status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_group_speaks_for_the_nodes_below_its_name_and_no_others() {
    let world = World::start(ApiConfig::DEFAULT).await;
    let channel = world.channel(Role::AgentGroup(short("slurm-a"))).await;
    for other in ["slurm-a", "slurm-a.", "slurm-ab.n1", "slurm-b.n1", "h1", "", "x.slurm-a.n1"] {
        let status = empty_session(&channel, other).await;
        assert_eq!(refused(&status), Some(RefusalCode::PermissionDenied), "{other:?}: {status:?}");
    }
    for own in ["slurm-a.n1", "slurm-a.rack-1.n1"] {
        let status = empty_session(&channel, own).await;
        assert_eq!(refused(&status), Some(RefusalCode::InvalidField), "{own:?}: {status:?}");
    }
}

type Requests = tokio_stream::wrappers::ReceiverStream<agent::SessionRequest>;

/// Begins a session of a whole host, and keeps it open.
pub(crate) async fn session_of(
    channel: &Channel,
    spec: &muster_types::NodeSpec,
) -> Result<AgentSession, Status> {
    session_taking(channel, spec, &[]).await
}

/// Both ways of a session.
type AgentSession =
    (tokio::sync::mpsc::Sender<agent::SessionRequest>, tonic::Streaming<agent::SessionResponse>);

/// The same of an agent that takes this.
pub(crate) async fn session_taking(
    channel: &Channel,
    spec: &muster_types::NodeSpec,
    takes: &[agent::SessionFeature],
) -> Result<AgentSession, Status> {
    let takes = takes.iter().map(|feature| i32::from(*feature)).collect();
    let node = Some(muster_wire::convert::node_spec_to_proto(spec));
    let holder_id = "00000000000000000000000000000009".to_owned();
    let register = agent::Register { node, holder_id, takes, ..Default::default() };
    let message = agent::SessionRequest { message: Some(session_request::Message::Register(register)) };
    let (to_replica, requests) = tokio::sync::mpsc::channel(4);
    to_replica.try_send(message).expect("there is capacity");
    let mut nodes = NodeServiceClient::new(channel.clone());
    let opened = guarded("an answer", nodes.session(Requests::new(requests))).await?;
    Ok((to_replica, opened.into_inner()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_counted_by_node_and_not_by_certificate() {
    let world = World::start(ApiConfig::DEFAULT).await;
    let channel = world.channel(Role::AgentGroup(short("slurm-a"))).await;
    let mut open = Vec::new();
    for number in 0..12 {
        let name = format!("slurm-a.n{number}");
        open.push(
            session_of(&channel, &host(&name)).await.unwrap_or_else(|status| panic!("{name}: {status:?}")),
        );
    }
    assert_eq!(world.engine.view().nodes_up(), 12);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_one_takes_nothing_from_the_others() {
    let calls = CallLimits { streams_max: 2, ..CallLimits::DEFAULT };
    let world = World::start(ApiConfig { calls, ..ApiConfig::DEFAULT }).await;
    let ada = world.channel(Role::Client(short("ada"))).await;
    let watch = |channel: Channel| async move {
        let mut jobs = JobServiceClient::new(channel);
        guarded("an answer", jobs.watch_jobs(v1::WatchJobsRequest::default())).await
    };
    // On two connections: it is the caller that is counted.
    let first = watch(ada.clone()).await.expect("there is capacity");
    let _second = watch(world.channel(Role::Client(short("ada"))).await).await.expect("there is capacity");
    let status = watch(ada.clone()).await.expect_err("it has two open");
    assert_eq!(status.code(), Code::ResourceExhausted);
    let told = Refused::from_status(&status);
    assert_eq!(told.code, Some(RefusalCode::Overloaded));
    assert_eq!(told.retry_after, Some(Duration::from_millis(calls.retry_after_ms)));
    assert_eq!(told.metadata.get("principal").map(String::as_str), Some("client/ada"));
    // Its calls, others' watches and agents' sessions are counted apart.
    let mut jobs = JobServiceClient::new(ada.clone());
    guarded("a call", jobs.list_jobs(v1::ListJobsRequest::default())).await.expect("a call is no stream");
    let _others = watch(world.channel(Role::Client(short("bob"))).await).await.expect("another's");
    let agent = world.channel(Role::Agent(short("h1"))).await;
    let status =
        call(&agent, "/muster.agent.v1beta1.NodeService/Session", None).await.expect_err("an empty message");
    assert_eq!(refused(&status), Some(RefusalCode::InvalidField), "{status:?}");
    // A place is free again when its stream has ended.
    drop(first);
    guarded("a place", async {
        while watch(ada.clone()).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// A tenant may have any number of certificates and of tokens: what they have open is counted together as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_of_one_tenant_take_nothing_from_the_others() {
    let calls = CallLimits { streams_max: 2, tenant_streams_max: 3, ..CallLimits::DEFAULT };
    let world = World::start(ApiConfig { calls, ..ApiConfig::DEFAULT }).await;
    let watch = async |role: Role| {
        let mut jobs = JobServiceClient::new(world.channel(role).await);
        guarded("an answer", jobs.watch_jobs(v1::WatchJobsRequest::default())).await
    };
    let first = watch(of_tenant("vision", "ada")).await.expect("there is capacity");
    let _second = watch(of_tenant("vision", "ada")).await.expect("there is capacity");
    let _third = watch(of_tenant("vision", "bob")).await.expect("there is capacity");
    let status = watch(of_tenant("vision", "eve")).await.expect_err("its tenant has three open");
    let told = Refused::from_status(&status);
    assert_eq!(told.code, Some(RefusalCode::Overloaded));
    assert_eq!(told.metadata.get("limit").map(String::as_str), Some("tenant_open_streams"));
    watch(of_tenant("speech", "eve")).await.expect("another tenant's");
    watch(Role::Client(short("eve"))).await.expect("of no tenant");
    // A place is free again when its stream has ended.
    drop(first);
    guarded("a place", async {
        while watch(of_tenant("vision", "eve")).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_is_refused_in_our_words() {
    let world = World::start(ApiConfig::DEFAULT).await;
    let channel = world.channel(Role::Client(short("ada"))).await;
    let request = v1::GetNodeRequest { node: "n".repeat(1 << 20), ..Default::default() };
    let status = guarded("an answer", FleetServiceClient::new(channel.clone()).get_node(request)).await;
    let told = Refused::from_status(&status.expect_err("a name has 63 bytes, not a million"));
    assert_eq!((told.grpc, told.code), (Code::ResourceExhausted, Some(RefusalCode::MessageTooLarge)));
    assert!(told.message.contains("262144"), "the limit is named: {told}");
    let request = v1::ListJobsRequest {
        filter: Some(v1::JobFilter { name_prefix: "n".repeat(5 << 20), ..Default::default() }),
        ..Default::default()
    };
    let status = guarded("an answer", JobServiceClient::new(channel).list_jobs(request)).await;
    assert_eq!(refused(&status.expect_err("more than 4 MiB")), Some(RefusalCode::MessageTooLarge));
}

pub(crate) fn host(name: &str) -> muster_types::NodeSpec {
    host_in(name, "eu")
}

/// The same in a region.
pub(crate) fn host_in(name: &str, region: &str) -> muster_types::NodeSpec {
    let name_of = |text: &str| muster_types::Name::new(text).expect("a name");
    let draft = muster_types::NodeDraft {
        name: name_of(name),
        region: name_of(region),
        cluster: name_of(&format!("{region}-1")),
        block: name_of("b"),
        rack: name_of("k"),
        address: "10.0.0.1".to_owned(),
        accelerators: None,
        cpu_milli: 64_000,
        memory_bytes: 64 << 30,
        labels: Default::default(),
        taints: Default::default(),
        pod: None,
        scratch_bytes: 0,
    };
    draft.check().expect("it is a host")
}

pub(crate) fn submission(tenant: &str, number: u32) -> v1::SubmitJobRequest {
    let group = v1::TaskGroup {
        workers: 1,
        runtime: muster_wire::process(vec!["true".to_owned()]),
        resources: Some(v1::Resources { cpu_milli: 100, memory_bytes: 1 << 20, ..Default::default() }),
        ..Default::default()
    };
    let spec = v1::Job {
        name: "a".to_owned(),
        tenant: tenant.to_owned(),
        spec: Some(v1::JobSpec { groups: vec![group], ..Default::default() }),
        ..Default::default()
    };
    let request_id = format!("00000000-0000-4000-9000-{number:012}");
    v1::SubmitJobRequest { request_id, job: Some(spec), validate_only: false }
}

pub(crate) fn of_tenant(tenant: &str, user: &str) -> Role {
    Role::TenantClient { tenant: short(tenant), user: short(user) }
}

/// Why a call was refused; none when it was not.
fn code<T>(answer: Result<T, Status>) -> Option<RefusalCode> {
    answer.err().as_ref().and_then(refused)
}

impl World {
    /// `vision` with `video` below it, and `speech`.
    pub(crate) async fn with_tenants() -> World {
        World::with_tenants_under(ApiConfig::DEFAULT).await
    }

    /// The same with other bounds.
    pub(crate) async fn with_tenants_under(config: ApiConfig) -> World {
        World::with_tenants_signing_in(config, Issuers::new(Vec::new())).await
    }

    /// The same with tokens of these issuers.
    pub(crate) async fn with_tenants_signing_in(config: ApiConfig, issuers: Issuers) -> World {
        use muster_wire::v1::policy_service_client::PolicyServiceClient;
        let world = World::start_with(config, issuers).await;
        let root = world.channel(Role::Admin(short("root"))).await;
        let tenants = [("vision", ""), ("video", "vision"), ("speech", "")].map(|(name, parent)| {
            let parent = parent.to_owned();
            (name.to_owned(), v1::TenantPolicy { parent, ..Default::default() })
        });
        let policy = v1::SetPolicyRequest {
            request_id: "00000000-0000-4000-8000-000000000001".to_owned(),
            policy: Some(v1::Policy { tenants: tenants.into(), ..Default::default() }),
            ..Default::default()
        };
        guarded("a policy", PolicyServiceClient::new(root).set_policy(policy)).await.expect("it is set");
        world
    }

    /// A job of a tenant's, on a host that is there from now on: `h1`.
    pub(crate) async fn job_of(&self, tenant: &str) -> String {
        use muster_decider::{Answer, Command};
        let register = Command::Register {
            spec: host("h1"),
            holder: muster_types::HolderId(1),
            other_session_is_over: false,
        };
        self.engine.execute(register).await.expect("a host comes");
        let jobs = muster_wire::convert::submissions_from_proto("job", submission(tenant, 0).job);
        let jobs = jobs.expect("it is a job").into();
        let submit = Command::submit(muster_types::RequestId(7), jobs);
        let answer = self.engine.execute(submit).await.expect("it fits");
        let Answer::Submitted { jobs, .. } = answer else { panic!("{answer:?}") };
        jobs[0].to_string()
    }
}

/// By whichever way, and whichever replica passes the call on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_user_submits_for_that_tenant_and_those_below_it() {
    let world = World::with_tenants().await;
    let role = of_tenant("vision", "ada");
    let mut direct = JobServiceClient::new(world.channel(role).await);
    let replica = world.channel(Role::Replica(ReplicaId(1))).await;
    let cases = [("vision", true), ("video", true), ("speech", false), ("", false), ("nobody", false)];
    for (number, (tenant, may)) in cases.into_iter().enumerate() {
        // A fleet without nodes refuses every job for what it asks, and the tenant is looked at before that.
        let expected = Some(if may { RefusalCode::NeverFits } else { RefusalCode::PermissionDenied });
        let request = submission(tenant, number as u32);
        let answer = guarded("an answer", direct.submit_job(request.clone())).await;
        assert_eq!(code(answer), expected, "{tenant}");
        let check = v1::SubmitJobRequest { validate_only: true, ..request.clone() };
        let answer = guarded("an answer", direct.submit_job(check)).await;
        assert_eq!(code(answer), expected, "{tenant}, only checked");
        let batch = v1::SubmitJobsRequest {
            request_id: format!("00000000-0000-4000-a000-{number:012}"),
            jobs: submission("vision", 0).job.into_iter().chain(request.job.clone()).collect(),
            ..Default::default()
        };
        let answer = guarded("an answer", direct.submit_jobs(batch)).await;
        assert_eq!(code(answer), expected, "{tenant}, among others");
        // Passed on by a replica, it is judged by whom it is for.
        let mut onward = Request::new(request);
        let name = muster_transport::PeerName { cluster: CLUSTER, role }.to_string();
        onward.metadata_mut().insert("muster-principal", name.parse().expect("a name is ASCII"));
        onward.metadata_mut().insert("muster-forwarded", "1".parse().expect("a digit is ASCII"));
        let answer = guarded("an answer", JobServiceClient::new(replica.clone()).submit_job(onward)).await;
        assert_eq!(code(answer), expected, "{tenant}, passed on");
    }
    assert_eq!(world.engine.view().jobs().len(), 0);
}

/// A certificate without a tenant is for looking, unless it says that it is for all tenants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_tenant_changes_nothing() {
    let world = World::with_tenants().await;
    let mut eve = JobServiceClient::new(world.channel(Role::Client(short("eve"))).await);
    let mut all = JobServiceClient::new(world.channel(Role::AllTenants(short("bot"))).await);
    let job_id = world.job_of("speech").await;
    let denied = Some(RefusalCode::PermissionDenied);
    for (number, tenant) in ["vision", "speech", ""].into_iter().enumerate() {
        let request = submission(tenant, number as u32);
        let check = v1::SubmitJobRequest { validate_only: true, ..request.clone() };
        assert_eq!(code(guarded("an answer", eve.submit_job(request)).await), denied, "{tenant}");
        assert_eq!(code(guarded("an answer", eve.submit_job(check.clone())).await), denied, "{tenant}");
        assert_eq!(code(guarded("an answer", all.submit_job(check)).await), None, "{tenant}");
    }
    let cancel = v1::CancelJobRequest {
        request_id: "00000000-0000-4000-b000-000000000001".to_owned(),
        job_id: job_id.clone(),
    };
    let read = v1::ReadLogsRequest { job_id: job_id.clone(), ..Default::default() };
    let commit =
        v1::CommitCheckpointRequest { job_id: job_id.clone(), token: Some(v1::FencingToken::default()) };
    assert_eq!(code(guarded("an answer", eve.cancel_job(cancel.clone())).await), denied);
    assert_eq!(code(guarded("an answer", eve.read_logs(read)).await), denied);
    let exec = tokio_stream::once(command_next_to(&job_id));
    assert_eq!(code(guarded("an answer", eve.exec_worker(exec)).await), denied);
    let forward = tokio_stream::once(port_of(&job_id));
    assert_eq!(code(guarded("an answer", eve.forward_port(forward)).await), denied);
    assert_eq!(code(guarded("an answer", eve.commit_checkpoint(commit)).await), denied);
    guarded("a list", eve.list_jobs(v1::ListJobsRequest::default())).await.expect("everybody may look");
    guarded("an answer", all.cancel_job(cancel)).await.expect("it is for all tenants");
}

/// With the right token, which every reader of the job can see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_is_committed_by_the_jobs_tenant_and_by_agents_that_run_it() {
    let world = World::with_tenants().await;
    let job_id = world.job_of("speech").await;
    let id: muster_types::JobId = job_id.parse().expect("an id");
    let placed = guarded("a placement", async {
        loop {
            let row = world.engine.view().job(id).and_then(|row| row.placement.clone());
            match row {
                Some(placement) => return placement,
                None => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    let token = Some(muster_wire::convert::fencing_token_to_proto(placed.token));
    let commit = |role| {
        let request = v1::CommitCheckpointRequest { job_id: job_id.clone(), token };
        let channel = world.channel(role);
        async move {
            let mut jobs = JobServiceClient::new(channel.await);
            code(guarded("an answer", jobs.commit_checkpoint(request)).await)
        }
    };
    let denied = Some(RefusalCode::PermissionDenied);
    assert_eq!(commit(of_tenant("vision", "ada")).await, denied);
    assert_eq!(commit(Role::Agent(short("h2"))).await, denied, "it is on h1");
    assert_eq!(commit(Role::AgentGroup(short("h1"))).await, denied, "it is on h1");
    // None of its workers runs yet, and that is looked at last.
    let fenced = Some(RefusalCode::Fenced);
    assert_eq!(commit(of_tenant("speech", "bob")).await, fenced);
    assert_eq!(commit(Role::Agent(short("h1"))).await, fenced);
    assert_eq!(commit(Role::Admin(short("root"))).await, fenced);
    let unknown = muster_types::JobId(id.0 + 1_000).to_string();
    for role in [of_tenant("vision", "ada"), Role::Agent(short("h1")), Role::Admin(short("root"))] {
        let request = v1::CommitCheckpointRequest { job_id: unknown.clone(), token };
        let mut jobs = JobServiceClient::new(world.channel(role).await);
        let refused = code(guarded("an answer", jobs.commit_checkpoint(request)).await);
        assert_eq!(refused, Some(RefusalCode::JobNotFound));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_user_sees_all_jobs_and_ends_and_reads_only_its_own() {
    let world = World::with_tenants().await;
    let job_id = world.job_of("speech").await;
    let cancel = |number: u32| v1::CancelJobRequest {
        request_id: format!("00000000-0000-4000-b000-{number:012}"),
        job_id: job_id.clone(),
    };
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let listed = guarded("a list", ada.list_jobs(v1::ListJobsRequest::default())).await;
    assert_eq!(listed.expect("every user may look").into_inner().jobs.len(), 1);
    let denied = Some(RefusalCode::PermissionDenied);
    assert_eq!(code(guarded("an answer", ada.cancel_job(cancel(1))).await), denied);
    let read = v1::ReadLogsRequest { job_id: job_id.clone(), ..Default::default() };
    assert_eq!(code(guarded("an answer", ada.read_logs(read)).await), denied);
    let exec = tokio_stream::once(command_next_to(&job_id));
    assert_eq!(code(guarded("an answer", ada.exec_worker(exec)).await), denied);
    let forward = tokio_stream::once(port_of(&job_id));
    assert_eq!(code(guarded("an answer", ada.forward_port(forward)).await), denied);
    let mut bob = JobServiceClient::new(world.channel(of_tenant("speech", "bob")).await);
    guarded("an answer", bob.cancel_job(cancel(2))).await.expect("it is his tenant's");
}
