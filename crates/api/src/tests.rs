//! Calls on a whole replica, through a real listener.

use muster_transport::Security;
use muster_types::{JobId, LogIndex, RefusalCode};
use muster_wire::agent::node_service_client::NodeServiceClient;
use muster_wire::agent::{session_request, session_response};
use muster_wire::status::Refused;
use muster_wire::time::{duration, span_ms, timestamp};
use muster_wire::token::{List, PageToken, ResumeToken, filter_digest};
use muster_wire::v1::cluster_service_client::ClusterServiceClient;
use muster_wire::v1::fleet_service_client::FleetServiceClient;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::v1::past_state::Moment;
use muster_wire::v1::policy_service_client::PolicyServiceClient;
use muster_wire::v1::read_options::State;
use muster_wire::v1::{submit_stream_response, watch_jobs_response};
use muster_wire::{agent, v1};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use crate::protocol_tests::StatedReasons;
use crate::sample::{self, CLUSTER};
use crate::{ApiConfig, ServeError, Shared, serve};

mod filters;
mod following;
mod nodes;
mod policies;
mod queues;
mod shapes;
mod stored_requests;
mod web;
mod web_bounds;
mod web_moments;
mod web_times;

async fn guarded<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(30), future).await {
        Ok(value) => value,
        Err(_) => panic!("nothing happened: {what}"),
    }
}

fn at_least(min_log_index: u64) -> Option<v1::ReadOptions> {
    Some(v1::ReadOptions { min_log_index, ..any() })
}

fn state(state: State) -> v1::ReadOptions {
    v1::ReadOptions { state: Some(state), ..Default::default() }
}

fn any() -> v1::ReadOptions {
    state(State::Any(v1::AnyState {}))
}

fn linearizable() -> v1::ReadOptions {
    state(State::Linearizable(v1::LinearizableState {}))
}

fn bounded(max_staleness_ms: u64) -> v1::ReadOptions {
    state(State::Bounded(v1::BoundedState { max_staleness: Some(duration(max_staleness_ms)) }))
}

fn past(moment: Option<Moment>) -> v1::ReadOptions {
    state(State::Past(v1::PastState { moment }))
}

struct TestServer {
    engine: muster_engine::Engine,
    metrics: muster_metrics::ReplicaMetrics,
    channel: Channel,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), ServeError>>,
    _stated: StatedReasons,
}

impl TestServer {
    async fn of(engine: muster_engine::Engine) -> TestServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address: SocketAddr = listener.local_addr().expect("it has one");
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async move { drop(stopped.await) };
        let metrics = muster_metrics::ReplicaMetrics::default();
        let shared = Shared::new(engine.clone(), ApiConfig::DEFAULT, Security::Plaintext);
        let task = tokio::spawn(serve(shared, metrics.clone(), listener, stopped));
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let channel = guarded("a connection", endpoint.connect()).await.expect("it listens");
        TestServer { engine, metrics, channel, stop, task, _stated: StatedReasons }
    }

    async fn start() -> TestServer {
        TestServer::of(sample::leader().await).await
    }

    fn jobs(&self) -> JobServiceClient<Channel> {
        JobServiceClient::new(self.channel.clone())
    }

    /// Opens a session for host `h1` and keeps the stream.
    async fn agent(&self) -> (mpsc::Sender<agent::SessionRequest>, Streaming<agent::SessionResponse>) {
        self.agent_of("h1", 7).await
    }

    /// Opens a session for a host of this name and holder, and keeps the stream.
    async fn agent_of(
        &self,
        name: &str,
        holder: u128,
    ) -> (mpsc::Sender<agent::SessionRequest>, Streaming<agent::SessionResponse>) {
        let (send, requests) = mpsc::channel(16);
        let node = v1::NodeDescription {
            name: name.to_owned(),
            region: "eu".to_owned(),
            cluster: "eu-1".to_owned(),
            block: "b".to_owned(),
            rack: "k".to_owned(),
            address: "10.0.0.1".to_owned(),
            accelerators: Some(v1::Accelerators { r#type: "h100".to_owned(), count: 8 }),
            cpu_milli: 64_000,
            memory_bytes: 64 << 30,
            ..Default::default()
        };
        let register =
            agent::Register { node: Some(node), holder_id: format!("{holder:032x}"), ..Default::default() };
        let message = Some(session_request::Message::Register(register));
        send.send(agent::SessionRequest { message }).await.expect("it is taken");
        let mut client = NodeServiceClient::new(self.channel.clone());
        let session = client.session(ReceiverStream::new(requests));
        let mut responses = guarded("a session", session).await.expect("it opens").into_inner();
        let first = guarded("the registration", responses.message()).await.expect("it stands");
        let first = first.and_then(|m| m.message);
        assert!(matches!(first, Some(session_response::Message::Registered(_))), "{first:?}");
        (send, responses)
    }

    async fn submit(&self, request: &str, name: &str) -> Result<v1::SubmitJobResponse, Status> {
        let request = submission(request, name);
        guarded("a submission", self.jobs().submit_job(request)).await.map(tonic::Response::into_inner)
    }
}

fn submission(request: &str, name: &str) -> v1::SubmitJobRequest {
    let group = v1::TaskGroup {
        name: "main".to_owned(),
        workers: 1,
        runtime: muster_wire::process(vec!["true".to_owned()]),
        resources: Some(v1::Resources {
            accelerators: Some(v1::AcceleratorRequest {
                choices: vec![v1::AcceleratorChoice { r#type: "h100".to_owned(), throughput_milli: 0 }],
                amount: Some(v1::accelerator_request::Amount::Count(1)),
            }),
            cpu_milli: 100,
            memory_bytes: 1 << 20,
        }),
        ..Default::default()
    };
    let spec = v1::Job {
        name: name.to_owned(),
        tenant: "lab".to_owned(),
        spec: Some(v1::JobSpec { groups: vec![group], ..Default::default() }),
        ..Default::default()
    };
    v1::SubmitJobRequest { request_id: request.to_owned(), job: Some(spec), validate_only: false }
}

const ONE: &str = "00000000-0000-4000-8000-000000000001";
const TWO: &str = "00000000-0000-4000-8000-000000000002";

fn refused<T>(result: Result<T, Status>) -> Refused {
    Refused::from_status(&result.err().expect("it is refused"))
}

#[tokio::test]
async fn every_call_of_the_public_services_is_answered_by_this_server() {
    use prost::Message;
    let served = TestServer::start().await;
    let all = prost_types::FileDescriptorSet::decode(muster_wire::DESCRIPTORS).expect("they are descriptors");
    let mut methods = Vec::new();
    let is_served = |package: &str| package.starts_with("muster.") && package != "muster.raft.v1";
    for file in all.file.iter().filter(|file| is_served(file.package())) {
        for service in &file.service {
            let method = |m: &prost_types::MethodDescriptorProto| {
                format!("/{}.{}/{}", file.package(), service.name(), m.name())
            };
            methods.extend(service.method.iter().map(method));
        }
    }
    assert!(methods.len() >= 19, "{methods:?}");
    for method in methods {
        let path = http::uri::PathAndQuery::try_from(method.as_str()).expect("a path");
        let mut grpc = tonic::client::Grpc::new(served.channel.clone());
        guarded("a connection", grpc.ready()).await.expect("it stands");
        // An empty message: valid on the wire for every call, and refused or answered by the service.
        let codec =
            tonic_prost::ProstCodec::<agent::UploadLogsResponse, agent::UploadLogsResponse>::default();
        let call = grpc.server_streaming(Request::new(agent::UploadLogsResponse {}), path, codec);
        if let Err(status) = guarded(&method, call).await {
            assert_ne!(status.code(), Code::Unimplemented, "{method}: {status}");
        }
    }
    let path = http::uri::PathAndQuery::from_static("/muster.v1beta1.JobService/Nothing");
    let mut grpc = tonic::client::Grpc::new(served.channel.clone());
    guarded("a connection", grpc.ready()).await.expect("it stands");
    let codec = tonic_prost::ProstCodec::<agent::UploadLogsResponse, agent::UploadLogsResponse>::default();
    let call = grpc.server_streaming(Request::new(agent::UploadLogsResponse {}), path, codec);
    let status = guarded("a call that is none", call).await.expect_err("it is none");
    assert_eq!(status.code(), Code::Unimplemented, "so the test above can tell");
}

#[tokio::test]
async fn a_write_is_read_at_once_and_its_repetition_is_its_answer() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    let answer = served.submit(ONE, "a").await.expect("it is taken");
    let again = served.submit(ONE, "a").await.expect("it is repeated");
    assert_eq!(again.job_ids, answer.job_ids);
    let at = answer.freshness.expect("it says").log_index;
    let get = v1::GetJobRequest { job_id: answer.job_ids[0].clone(), read: at_least(at) };
    let job = guarded("a read", served.jobs().get_job(get)).await.expect("it is there").into_inner();
    assert_eq!(job.job.map(|job| job.name), Some("a".to_owned()));
    assert_eq!(refused(served.submit(ONE, "b").await).code, Some(RefusalCode::RequestIdReused));
    let cancel = v1::CancelJobRequest { request_id: TWO.to_owned(), job_id: answer.job_ids[0].clone() };
    let cancelled = guarded("a cancel", served.jobs().cancel_job(cancel)).await.expect("it is taken");
    let phase = cancelled.into_inner().job.expect("it is shown").phase();
    assert!(matches!(phase, v1::JobPhase::Stopping | v1::JobPhase::Cancelled), "{phase:?}");
}

#[tokio::test]
async fn checking_only_says_what_a_submission_would_and_changes_nothing() {
    let served = TestServer::start().await;
    let check = || v1::SubmitJobRequest { validate_only: true, ..submission(ONE, "a") };
    let verdict = guarded("a check", served.jobs().submit_job(check())).await;
    assert_eq!(refused(verdict).code, Some(RefusalCode::NeverFits));
    let (_send, _session) = served.agent().await;
    let verdict = guarded("a check", served.jobs().submit_job(check())).await.expect("it would be taken");
    assert!(verdict.into_inner().job_ids.is_empty());
    assert_eq!(served.engine.view().jobs().len(), 0);
    served.submit(ONE, "a").await.expect("the request id was not used up");
}

#[tokio::test]
async fn a_policy_is_set_once_compared_and_shown() {
    let served = TestServer::start().await;
    let mut policies = PolicyServiceClient::new(served.channel.clone());
    let first = guarded("a read", policies.get_policy(v1::GetPolicyRequest::default())).await;
    let first = first.expect("every cluster has one").into_inner();
    assert_eq!((first.version, first.set_time), (0, None));
    let mut policy = first.policy.expect("it is shown");
    policy
        .tenants
        .insert("vision".to_owned(), v1::TenantPolicy { weight_milli: Some(2_000), ..Default::default() });
    let request = |request_id: &str, expected_version, validate_only| v1::SetPolicyRequest {
        request_id: request_id.to_owned(),
        policy: Some(policy.clone()),
        expected_version,
        validate_only,
    };
    let stale = guarded("a check", policies.set_policy(request(ONE, Some(7), true))).await;
    assert_eq!(refused(stale).code, Some(RefusalCode::PolicyChanged));
    let checked = guarded("a check", policies.set_policy(request(ONE, Some(0), true))).await;
    assert_eq!(checked.expect("it is right").into_inner().version, 0, "nothing was set");
    let set = guarded("a change", policies.set_policy(request(ONE, Some(0), false))).await;
    let set = set.expect("it is taken").into_inner();
    let again = guarded("a change", policies.set_policy(request(ONE, Some(0), false))).await;
    assert_eq!(again.expect("it is repeated").into_inner().version, set.version);
    let stale = guarded("a change", policies.set_policy(request(TWO, Some(0), false))).await;
    assert_eq!(refused(stale).code, Some(RefusalCode::PolicyChanged));
    let read = v1::GetPolicyRequest { read: at_least(set.version) };
    let shown = guarded("a read", policies.get_policy(read)).await.expect("it is there").into_inner();
    assert_eq!((shown.version, shown.policy.as_ref()), (set.version, Some(&policy)));
    assert!(shown.set_time.is_some());
    policy.tenants.insert("x".to_owned(), v1::TenantPolicy { parent: "y".to_owned(), ..Default::default() });
    let wrong = v1::SetPolicyRequest { policy: Some(policy), ..Default::default() };
    let wrong = refused(guarded("a change", policies.set_policy(wrong)).await);
    let fields: Vec<&str> = wrong.violations.iter().map(|v| v.field.as_str()).collect();
    assert_eq!(fields, ["request_id", "policy.tenants.x.parent"]);
}

#[tokio::test]
async fn plans_and_explanations_say_where_and_why_and_change_nothing() {
    let served = TestServer::start().await;
    let plan = || v1::PlanJobRequest { job: submission(ONE, "a").job, read: None };
    let explained = guarded("a plan", served.jobs().plan_job(plan())).await.expect("it is answered");
    let explanation = explained.into_inner().explanation.expect("it says");
    assert!(explanation.placement.is_none() && !explanation.message.is_empty(), "{explanation:?}");
    let (_send, _session) = served.agent().await;
    let explained = guarded("a plan", served.jobs().plan_job(plan())).await.expect("it is answered");
    let explanation = explained.into_inner().explanation.expect("it says");
    let place = explanation.placement.expect("there is capacity");
    assert_eq!(
        (place.region.as_str(), place.cluster.as_str(), place.accelerator_type.as_str()),
        ("eu", "eu-1", "h100")
    );
    assert_eq!((place.nodes[0].node_name.as_str(), place.nodes[0].workers), ("h1", 1));
    assert!(!place.score.is_empty() && explanation.estimate.is_some());
    let nodes = explanation.clusters[0].nodes.expect("they are counted");
    assert_eq!((nodes.registered, nodes.fit, explanation.clusters[0].total_devices), (1, 1, 8));
    assert_eq!(served.engine.view().jobs().len(), 0, "nothing was submitted");

    // One that waits: it asks for more than the one that runs leaves free.
    let wide = |id: &str, name: &str, count| {
        let mut request = submission(id, name);
        let groups = &mut request.job.as_mut().expect("it has one").spec_mut().groups;
        groups[0].resources_mut().accelerators.as_mut().expect("it asks for some").amount =
            Some(v1::accelerator_request::Amount::Count(count));
        request
    };
    let submit =
        |request| async { served.jobs().submit_job(request).await.expect("it is taken").into_inner() };
    let running = guarded("a submission", submit(wide(ONE, "runs", 6))).await.job_ids.remove(0);
    guarded("a placement", async {
        while served.engine.view().job(running.parse().expect("an id")).is_none_or(|row| row.attempt == 0) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let waiting = guarded("a submission", submit(wide(TWO, "waits", 4))).await;
    let explain = |job_id: &str| {
        let read = at_least(waiting.freshness.map_or(0, |f| f.log_index));
        let request = v1::ExplainJobRequest { job_id: job_id.to_owned(), read };
        let mut jobs = served.jobs();
        async move { jobs.explain_job(request).await.expect("it is answered").into_inner().explanation }
    };
    let why = guarded("why", explain(&waiting.job_ids[0])).await.expect("it says");
    assert_eq!((why.reason.as_str(), why.placement), ("WAITING_FOR_CAPACITY", None), "{}", why.message);
    assert_eq!((why.clusters[0].free_devices, why.clusters[0].workers_that_fit), (2, 0));
    let place = guarded("where", explain(&running)).await.expect("it says").placement.expect("it has one");
    assert_eq!((place.nodes[0].node_name.as_str(), place.nodes[0].devices), ("h1", 6));
    let job = v1::GetJobRequest { job_id: waiting.job_ids[0].clone(), read: None };
    let job = guarded("a read", served.jobs().get_job(job)).await.expect("it is there").into_inner().job;
    let job = job.expect("it is shown");
    assert_eq!(job.status().reason, "WAITING_FOR_CAPACITY");
    assert!(
        job.status().eligible
            && job.status().estimate.is_some_and(|e| {
                let (run, high) = (span_ms(e.run_time), span_ms(e.run_time_p90));
                run > Some(0) && high >= run
            }),
        "{job:?}"
    );
    let nobody = v1::ExplainJobRequest { job_id: JobId(1).to_string(), read: None };
    let nobody = guarded("why", served.jobs().explain_job(nobody)).await;
    assert_eq!(refused(nobody).code, Some(RefusalCode::JobNotFound));
}

#[tokio::test]
async fn the_leader_knows_what_it_reserves_now_and_nobody_what_was_reserved_before() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    let whole = |id: &str, name: &str| {
        let mut request = submission(id, name);
        let groups = &mut request.job.as_mut().expect("there is one").spec_mut().groups;
        groups[0].resources_mut().accelerators.as_mut().expect("it asks for some").amount =
            Some(v1::accelerator_request::Amount::Count(8));
        request
    };
    let submit =
        |request| async { served.jobs().submit_job(request).await.expect("it is taken").into_inner() };
    guarded("a submission", submit(whole(ONE, "runs"))).await;
    let waits = guarded("a submission", submit(whole(TWO, "waits"))).await;
    let explain = |read| {
        let request = v1::ExplainJobRequest { job_id: waits.job_ids[0].clone(), read };
        let mut jobs = served.jobs();
        async move { jobs.explain_job(request).await.map(tonic::Response::into_inner) }
    };
    let at = waits.freshness.map_or(0, |freshness| freshness.log_index);
    let mut index = 0;
    guarded("a complete pass", async {
        loop {
            let said = explain(at_least(at)).await.expect("it is answered");
            index = said.freshness.expect("it says").log_index;
            if said.explanation.expect("it says").knows_reservations {
                break;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let plan = v1::PlanJobRequest { job: submission(ONE, "plan").job, read: None };
    let plan = guarded("a plan", served.jobs().plan_job(plan)).await.expect("it is answered").into_inner();
    assert!(plan.explanation.expect("it says").knows_reservations);
    // Of the newest state no archive is needed, unless there is a newer one by now.
    let past = guarded("the past", async {
        loop {
            let read = Some(past(Some(Moment::LogIndex(index))));
            match explain(read).await {
                Ok(said) => break said,
                Err(_) => {
                    let said = explain(None).await.expect("it is answered");
                    index = said.freshness.expect("it says").log_index;
                }
            }
        }
    });
    assert!(!past.await.explanation.expect("it says").knows_reservations);
    let alone = TestServer::of(sample::engine_alone().await).await;
    let plan = v1::PlanJobRequest { job: submission(ONE, "plan").job, read: Some(any()) };
    let plan = guarded("a plan", alone.jobs().plan_job(plan)).await.expect("it is answered").into_inner();
    assert!(!plan.explanation.expect("it says").knows_reservations, "it has never led");
}

#[tokio::test]
async fn only_the_current_placement_commits_a_checkpoint() {
    let served = TestServer::start().await;
    let (send, _session) = served.agent().await;
    let job_id = served.submit(ONE, "a").await.expect("it is taken").job_ids.remove(0);
    let id: JobId = job_id.parse().expect("an id");
    let token = guarded("a placement", async {
        loop {
            if let Some(placement) = served.engine.view().job(id).and_then(|row| row.placement.clone()) {
                return muster_wire::convert::fencing_token_to_proto(placement.token);
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let worker = agent::WorkerState {
        job_id: job_id.clone(),
        token: Some(token),
        subject: Some(agent::worker_state::Subject::Rank(0)),
        exit: None,
        artifacts: None,
    };
    let report = agent::Report { sequence: 1, workers: vec![worker] };
    let message = Some(session_request::Message::Report(report));
    send.send(agent::SessionRequest { message }).await.expect("it is taken");
    guarded("a start", async {
        while served.engine.view().job(id).is_none_or(|row| row.started_at.is_none()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let commit = |token| {
        let request = v1::CommitCheckpointRequest { job_id: job_id.clone(), token };
        let mut jobs = served.jobs();
        async move { jobs.commit_checkpoint(request).await }
    };
    let none = refused(guarded("a commit", commit(None)).await);
    assert_eq!(none.violations.first().map(|v| v.field.as_str()), Some("token"));
    let other = v1::FencingToken { log_index: token.log_index + 1, ..token };
    assert_eq!(refused(guarded("a commit", commit(Some(other))).await).code, Some(RefusalCode::Fenced));
    let done = guarded("a commit", commit(Some(token))).await.expect("it holds its devices").into_inner();
    let read = v1::GetJobRequest { job_id, read: at_least(done.freshness.map_or(0, |f| f.log_index)) };
    let job = guarded("a read", served.jobs().get_job(read)).await.expect("it is there").into_inner().job;
    assert!(job.is_some_and(|job| job.status().last_checkpoint.is_some()));
}

#[tokio::test]
async fn tokens_that_cannot_be_used_name_their_field_and_those_of_the_future_do_not() {
    let served = TestServer::start().await;
    let filter = filter_digest(["jobs"]);
    let generation = 1;
    let watch = |resume_token: String| async {
        let request = v1::WatchJobsRequest { resume_token, ..Default::default() };
        guarded("a watch", served.jobs().watch_jobs(request)).await
    };
    let other = muster_types::ClusterId(CLUSTER.0 ^ 1);
    let place = ResumeToken::behind(generation, LogIndex(1));
    let unusable = [
        "zz".to_owned(),
        place.encode(other, filter),
        place.encode(CLUSTER, filter ^ 1),
        PageToken { after: String::new(), log_index: LogIndex(1) }.encode(CLUSTER, List::Jobs, filter),
    ];
    for token in unusable {
        let refused = refused(watch(token.clone()).await);
        assert_eq!((refused.grpc, refused.code), (Code::InvalidArgument, Some(RefusalCode::InvalidField)));
        assert_eq!(refused.violations[0].field, "resume_token", "{token}");
    }
    let ahead = ResumeToken::behind(generation, LogIndex(1 << 40)).encode(CLUSTER, filter);
    assert_eq!(refused(watch(ahead).await).code, Some(RefusalCode::LogIndexNotReached));
    let before = ResumeToken::behind(generation + 1, LogIndex(1)).encode(CLUSTER, filter);
    assert_eq!(refused(watch(before).await).code, Some(RefusalCode::ResumeTokenCompacted));
    watch(place.encode(CLUSTER, filter)).await.expect("it is a place in this log");
    let list = v1::ListJobsRequest { page_token: "zz".to_owned(), ..Default::default() };
    let page = guarded("a list", served.jobs().list_jobs(list)).await;
    assert_eq!(refused(page).code, Some(RefusalCode::PageTokenInvalid));
}

#[tokio::test]
async fn an_index_that_nobody_has_reached_is_waited_for_and_then_refused() {
    let served = TestServer::start().await;
    let far = v1::GetStatusRequest { read: at_least(1 << 40) };
    let mut cluster = ClusterServiceClient::new(served.channel.clone());
    let refused = refused(guarded("a read", cluster.get_status(far)).await);
    assert_eq!(refused.code, Some(RefusalCode::LogIndexNotReached));
    assert!(refused.metadata.contains_key("applied_log_index"), "{refused:?}");
    let caught_up = v1::GetStatusRequest { read: at_least(1) };
    guarded("a read", cluster.get_status(caught_up)).await.expect("it is reached");
}

#[tokio::test]
async fn pages_hold_every_job_once() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    for n in 1..=7 {
        let id = format!("00000000-0000-4000-8000-{n:012}");
        served.submit(&id, &format!("job-{n}")).await.expect("it is taken");
    }
    let mut seen: Vec<String> = Vec::new();
    let mut request = v1::ListJobsRequest { page_size: 3, ..Default::default() };
    loop {
        let page = guarded("a page", served.jobs().list_jobs(request.clone())).await.expect("it is there");
        let page = page.into_inner();
        seen.extend(page.jobs.into_iter().map(|job| job.id));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let ids: Vec<JobId> = seen.iter().map(|id| id.parse().expect("an id")).collect();
    assert!(ids.is_sorted_by(|a, b| a > b) && ids.len() == 7, "{ids:?}");
}

#[tokio::test]
async fn a_watch_shows_the_present_then_each_change_and_names_nodes_that_came_later() {
    let served = TestServer::start().await;
    let watch = guarded("a watch", served.jobs().watch_jobs(v1::WatchJobsRequest::default())).await;
    let mut events = watch.expect("it opens").into_inner();
    let first = guarded("the present", events.message()).await.expect("it stands").expect("an event");
    assert_eq!(first.event, Some(watch_jobs_response::Event::SyncEnd(v1::SyncEnd {})));
    let (_send, _session) = served.agent().await;
    served.submit(ONE, "a").await.expect("it is taken");
    let named = guarded("a placement", async {
        loop {
            let event = events.message().await.expect("it stands").expect("an event");
            assert!(!event.resume_token.is_empty());
            if let Some(watch_jobs_response::Event::Changed(job)) = event.event
                && let Some(placement) = &job.status().placement
            {
                return placement.workers[0].node_name.clone();
            }
        }
    });
    assert_eq!(named.await, "h1");
}

#[tokio::test]
async fn the_server_ends_although_watches_and_sessions_are_open() {
    let served = TestServer::start().await;
    let (_send, mut session) = served.agent().await;
    let watch = guarded("a watch", served.jobs().watch_jobs(v1::WatchJobsRequest::default())).await;
    let mut events = watch.expect("it opens").into_inner();
    served.engine.stop();
    served.stop.send(()).expect("it runs");
    let told = guarded("the watch ends", async {
        loop {
            match events.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("without a word"),
                Err(status) => return Refused::from_status(&status),
            }
        }
    });
    let told = told.await;
    assert_eq!(told.code, Some(RefusalCode::ReplicaStopping), "another replica can go on with it");
    let place = ResumeToken::decode(&told.metadata["resume_token"], CLUSTER, filter_digest(["jobs"]));
    assert!(place.is_ok_and(|place| place.log_index > LogIndex(0)), "{told:?}");
    guarded("the session ends", async { while let Ok(Some(_)) = session.message().await {} }).await;
    drop(served.channel);
    guarded("the server ends", served.task).await.expect("it does not panic").expect("it ends well");
}

#[tokio::test]
async fn wrong_read_options_are_refused_by_every_read_with_their_fields() {
    let served = TestServer::start().await;
    let mut jobs = served.jobs();
    let mut cluster = ClusterServiceClient::new(served.channel.clone());
    let mut fleet = FleetServiceClient::new(served.channel.clone());
    let mut policy = PolicyServiceClient::new(served.channel.clone());
    let job_id = JobId(1).to_string();
    let cases = [
        (bounded(0), "read.bounded.max_staleness"),
        (bounded(u64::MAX), "read.bounded.max_staleness"),
        (past(None), "read.past"),
        (past(Some(Moment::LogIndex(0))), "read.past.log_index"),
        (past(Some(Moment::Time(timestamp(0)))), "read.past.time"),
    ];
    for (wrong, field) in cases {
        let read = Some(wrong);
        let spec = submission(ONE, "a").job;
        let job_id = job_id.clone();
        let get = v1::GetJobRequest { job_id: job_id.clone(), read };
        let answers = [
            jobs.get_job(get).await.map(drop),
            jobs.list_jobs(v1::ListJobsRequest { read, ..Default::default() }).await.map(drop),
            jobs.plan_job(v1::PlanJobRequest { job: spec, read }).await.map(drop),
            jobs.explain_job(v1::ExplainJobRequest { job_id, read }).await.map(drop),
            fleet.list_nodes(v1::ListNodesRequest { read, ..Default::default() }).await.map(drop),
            fleet.get_node(v1::GetNodeRequest { node: "h1".to_owned(), read }).await.map(drop),
            policy.get_policy(v1::GetPolicyRequest { read }).await.map(drop),
            cluster.get_status(v1::GetStatusRequest { read }).await.map(drop),
        ];
        for answer in answers {
            let refused = Refused::from_status(&answer.expect_err("it is out of bounds"));
            assert_eq!(refused.code, Some(RefusalCode::InvalidField), "{wrong:?}");
            assert_eq!(refused.violations[0].field, field, "{wrong:?}");
        }
    }
}

#[tokio::test]
async fn a_page_token_goes_on_under_any_read_options() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    for n in 1..=4 {
        let id = format!("00000000-0000-4000-8000-{n:012}");
        served.submit(&id, &format!("job-{n}")).await.expect("it is taken");
    }
    let mut request = v1::ListJobsRequest { page_size: 1, ..Default::default() };
    let mut seen = Vec::new();
    for read in [None, Some(any()), Some(bounded(60_000)), Some(linearizable())] {
        request.read = read;
        let page = guarded("a page", served.jobs().list_jobs(request.clone())).await.expect("it is there");
        let page = page.into_inner();
        seen.push(page.jobs[0].id.parse::<JobId>().expect("an id"));
        request.page_token = page.next_page_token;
    }
    assert!(seen.is_sorted_by(|a, b| a > b) && request.page_token.is_empty(), "{seen:?}");
}

#[tokio::test]
async fn a_confirmed_answer_says_how_old_it_may_be_and_one_of_the_past_needs_an_archive() {
    let served = TestServer::start().await;
    let mut cluster = ClusterServiceClient::new(served.channel.clone());
    let read = Some(linearizable());
    let began = std::time::Instant::now();
    let status = guarded("a read", cluster.get_status(v1::GetStatusRequest { read })).await;
    let fresh = status.expect("the replica leads").into_inner().freshness.expect("it is stated");
    assert!(fresh.log_index > 0 && fresh.log_time.is_some(), "{fresh:?}");
    let staleness = span_ms(fresh.staleness).expect("it was just proved");
    assert!(u128::from(staleness) <= began.elapsed().as_millis() + 1, "no older than the read");
    let past = Some(past(Some(Moment::LogIndex(1))));
    let refused = refused(guarded("the past", cluster.get_status(v1::GetStatusRequest { read: past })).await);
    // Nobody has said yet where history is kept.
    assert_eq!(refused.code, Some(RefusalCode::ClusterNotReady));
    assert_eq!(refused.grpc, Code::Unavailable);
}

#[tokio::test]
async fn without_a_leader_reads_are_answered_or_refused_before_their_caller_gives_up() {
    let served = TestServer::of(sample::engine_alone().await).await;
    let read = |read: Option<v1::ReadOptions>| {
        let mut cluster = ClusterServiceClient::new(served.channel.clone());
        let mut request = Request::new(v1::GetStatusRequest { read });
        request.set_timeout(Duration::from_millis(1_500));
        async move { guarded("a read", cluster.get_status(request)).await }
    };
    let status = read(None).await.expect("there is a state, however old").into_inner();
    let fresh = status.freshness.expect("it is stated");
    assert_eq!((fresh.staleness, fresh.leader_id), (None, 0), "nothing is proved");
    let stale = refused(read(Some(bounded(1_000))).await);
    assert_eq!((stale.code, stale.grpc), (Some(RefusalCode::TooStale), Code::Unavailable));
    assert!(!stale.metadata.contains_key("staleness_ms"), "{stale:?}");
    let began = std::time::Instant::now();
    let held = refused(read(Some(linearizable())).await);
    assert_eq!((held.code, held.grpc), (Some(RefusalCode::ReadUnconfirmed), Code::Unavailable));
    assert!(began.elapsed() >= Duration::from_millis(900), "a leader may come while the caller waits");
}

/// A read without options is linearizable, and a list is bounded: each is refused when no leader can confirm it.
#[tokio::test]
async fn a_read_that_says_nothing_of_the_state_is_a_safe_one() {
    fn soon<T>(message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(Duration::from_millis(1_500));
        request
    }
    let served = TestServer::of(sample::engine_alone().await).await;
    let (mut jobs, mut fleet) = (served.jobs(), FleetServiceClient::new(served.channel.clone()));
    let job_id = JobId(1).to_string();
    let empty = Some(v1::ReadOptions::default());
    for read in [None, empty] {
        let get = v1::GetJobRequest { job_id: job_id.clone(), read };
        let get = refused(guarded("a job", jobs.get_job(soon(get))).await);
        assert_eq!(get.code, Some(RefusalCode::ReadUnconfirmed));
        let explain = v1::ExplainJobRequest { job_id: job_id.clone(), read };
        let explain = refused(guarded("an explanation", jobs.explain_job(soon(explain))).await);
        assert_eq!(explain.code, Some(RefusalCode::ReadUnconfirmed));
        let list = v1::ListNodesRequest { read, ..Default::default() };
        let list = refused(guarded("a list", fleet.list_nodes(soon(list))).await);
        assert_eq!(list.code, Some(RefusalCode::TooStale));
    }
    let get = v1::GetJobRequest { job_id, read: Some(any()) };
    let get = refused(guarded("a job", jobs.get_job(soon(get))).await);
    assert_eq!(get.code, Some(RefusalCode::JobNotFound), "there is a state, however old");
}

#[tokio::test]
async fn a_stream_that_is_ended_here_ends_with_its_refusal() {
    let served = TestServer::start().await;
    let _agent = served.agent().await;
    let numbered = |sequence, submission| v1::SubmitStreamRequest { sequence, submission: Some(submission) };
    let mut too_large = submission(TWO, "b");
    if let Some(job) = &mut too_large.job {
        job.name = "b".repeat(ApiConfig::DEFAULT.message_bytes_max + 1);
    }
    let mut answers = BTreeMap::new();
    for (submissions, ends_with) in [
        (vec![numbered(1, submission(ONE, "a")), numbered(2, too_large)], Some(RefusalCode::MessageTooLarge)),
        (vec![numbered(3, submission(ONE, "a"))], None),
    ] {
        let mut jobs = served.jobs();
        let opened = jobs.submit_stream(tokio_stream::iter(submissions));
        let mut inbound = guarded("a stream", opened).await.expect("it opens").into_inner();
        let ended = loop {
            match guarded("an answer", inbound.message()).await {
                Ok(Some(answer)) => _ = answers.insert(answer.sequence, answer.outcome),
                Ok(None) => break None,
                Err(status) => break Refused::from_status(&status).code,
            }
        };
        assert_eq!(ended, ends_with);
    }
    let accepted = |outcome: &Option<submit_stream_response::Outcome>| {
        matches!(outcome, Some(submit_stream_response::Outcome::Accepted(_)))
    };
    assert_eq!(answers.keys().copied().collect::<Vec<_>>(), [1, 3], "what came whole is answered");
    assert!(answers.values().all(accepted), "{answers:?}");
}

async fn next_order(orders: &mut Streaming<agent::SessionResponse>) -> session_response::Message {
    let order = guarded("an order", orders.message()).await.expect("the session stands");
    order.and_then(|order| order.message).expect("it orders something")
}

/// An agent that goes while it sends an output has not come to its end.
#[tokio::test]
async fn an_output_whose_upload_is_reset_has_not_ended() {
    let served = TestServer::start().await;
    let (_session, mut orders) = served.agent().await;
    let submitted = served.submit(ONE, "a").await.expect("it is taken");
    let job_id = submitted.job_ids.first().expect("it has an id").clone();
    while !matches!(next_order(&mut orders).await, session_response::Message::Start(_)) {}
    let (mut jobs, request) = (served.jobs(), v1::ReadLogsRequest { job_id, ..Default::default() });
    let mut output = guarded("a read", jobs.read_logs(request)).await.expect("it begins").into_inner();
    let read_id = loop {
        if let session_response::Message::ReadLogs(order) = next_order(&mut orders).await {
            break order.read_id;
        }
    };
    let (send, pieces) = mpsc::channel(1);
    let (node_name, stream, data) = ("h1".to_owned(), "stdout".to_owned(), b"half".to_vec());
    let piece =
        agent::UploadLogsRequest { read_id, node_name, stream, data, position: 4, ..Default::default() };
    send.send(piece).await.expect("there is a place");
    let mut upload = Request::new(ReceiverStream::new(pieces));
    let reset = upload.cancellation_handle();
    let mut nodes = NodeServiceClient::new(served.channel.clone());
    tokio::spawn(async move { nodes.upload_logs(upload).await.map(drop) });
    let first = guarded("output", output.message()).await.expect("it goes on").expect("a piece");
    assert_eq!(first.data, b"half");
    reset.cancel();
    let cut = guarded("what follows", output.message()).await;
    assert_eq!(refused(cut).code, Some(RefusalCode::LogsUnavailable));
    drop(send);
}

#[tokio::test]
async fn a_stream_answers_each_submission_as_a_call_would() {
    let served = TestServer::start().await;
    let _agent = served.agent().await;
    let stream = |submissions: Vec<v1::SubmitStreamRequest>| {
        let mut jobs = served.jobs();
        async move {
            let opened = jobs.submit_stream(tokio_stream::iter(submissions));
            let response = guarded("a stream", opened).await.expect("it opens");
            assert!(!response.metadata().contains_key("muster-leader"), "it is the leader itself");
            let mut answers = response.into_inner();
            let mut outcomes = BTreeMap::new();
            while let Some(answer) = guarded("an answer", answers.message()).await.expect("it goes on") {
                let outcome = answer.outcome.expect("an answer has one");
                assert!(outcomes.insert(answer.sequence, outcome).is_none(), "answered twice");
            }
            outcomes
        }
    };
    let numbered = |sequence, submission| v1::SubmitStreamRequest { sequence, submission };
    let mut nameless = submission(TWO, "a");
    nameless.job = None;
    let outcomes = stream(vec![
        numbered(7, Some(submission(ONE, "a"))),
        numbered(8, Some(submission(ONE, "a"))),
        numbered(10, Some(nameless)),
        numbered(11, None),
    ])
    .await;
    assert_eq!(outcomes.len(), 4);
    let mut outcomes = outcomes;
    outcomes.extend(stream(vec![numbered(9, Some(submission(ONE, "b")))]).await);
    let accepted = |sequence: u64| match &outcomes[&sequence] {
        submit_stream_response::Outcome::Accepted(response) => response.job_ids.clone(),
        other => panic!("{sequence} was not accepted: {other:?}"),
    };
    let refused = |sequence: u64| match &outcomes[&sequence] {
        submit_stream_response::Outcome::Refused(status) => {
            let details = status.details.clone().into();
            Refused::from_status(&Status::with_details(Code::from_i32(status.code), &status.message, details))
        }
        other => panic!("{sequence} was not refused: {other:?}"),
    };
    let by_call = served.submit(ONE, "a").await.expect("it is known");
    assert_eq!(accepted(7), by_call.job_ids);
    assert_eq!(accepted(8), by_call.job_ids, "the same request id, the same answer");
    assert_eq!(refused(9).code, Some(RefusalCode::RequestIdReused));
    assert_eq!(refused(10).violations[0].field, "job");
    assert_eq!(refused(11).violations[0].field, "submission");
    // Each is counted like a call, next to the two streams.
    let text = served.metrics.scrape(muster_metrics::ReplicaFacts::default());
    let method = "muster.v1beta1.JobService/SubmitStream/submission";
    for (series, wanted) in [
        (format!("muster_grpc_calls_total{{method=\"{method}\",code=\"OK\"}}"), 2),
        (format!("muster_grpc_calls_total{{method=\"{method}\",code=\"INVALID_ARGUMENT\"}}"), 3),
        (format!("muster_grpc_call_duration_seconds_count{{method=\"{method}\"}}"), 5),
        ("muster_refusals_total{reason=\"REQUEST_ID_REUSED\"}".to_owned(), 1),
        ("muster_refusals_total{reason=\"INVALID_FIELD\"}".to_owned(), 2),
    ] {
        assert!(text.contains(&format!("{series} {wanted}\n")), "{series} is not {wanted}: {text}");
    }
}
