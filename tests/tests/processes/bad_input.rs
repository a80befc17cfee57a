//! Nothing that comes in over a network or in a file harms a replica, and every refusal says why.

use muster_types::{ClusterId, LogIndex, RefusalCode};
use muster_wire::admin::probe_service_client::ProbeServiceClient;
use muster_wire::status::Refused;
use muster_wire::time::duration;
use muster_wire::token::{List, PageToken, ResumeToken, filter_digest};
use muster_wire::v1::booking_service_client::BookingServiceClient;
use muster_wire::v1::cluster_service_client::ClusterServiceClient;
use muster_wire::v1::fleet_service_client::FleetServiceClient;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::v1::schedule_service_client::ScheduleServiceClient;
use muster_wire::{admin, agent, v1};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::support::{
    Agents, Cluster, PATIENCE, Ran, accelerators, job, node, registration, run_to_end, session, session_end,
};

type Jobs = JobServiceClient<Channel>;

/// A refusal of ours: with domain, stable name and number.
#[track_caller]
fn refusal(status: &Status) -> Refused {
    let refused = Refused::from_status(status);
    // `reason` is filled in only from details of Muster's domain.
    assert!(refused.code.is_some() && !refused.reason.is_empty(), "without ErrorInfo: {status:?}");
    assert!(refused.number().is_some_and(|number| number.starts_with("MS-")), "{status:?}");
    refused
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(
    result: Result<Response<T>, Status>,
    code: RefusalCode,
    field: &str,
) -> Refused {
    let refused = refusal(&result.expect_err(field));
    assert_eq!(refused.code, Some(code), "{field}: {refused:?}");
    if code == RefusalCode::InvalidField {
        let named = refused.violations.iter().any(|violation| violation.field == field);
        assert!(named, "{field} is not named: {refused:?}");
    }
    refused
}

fn request_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

fn submission(wanted: v1::Job) -> v1::SubmitJobRequest {
    v1::SubmitJobRequest { request_id: request_id(), job: Some(wanted), validate_only: false }
}

/// A good job with something changed.
fn changed(change: impl FnOnce(&mut v1::Job)) -> v1::SubmitJobRequest {
    let mut wanted = job("fine", &["true"]);
    change(&mut wanted);
    submission(wanted)
}

/// Everything that can be wrong in a call about jobs.
async fn wrong_calls(jobs: &mut Jobs, cluster: ClusterId, used: &v1::SubmitJobRequest) {
    use RefusalCode::{InvalidField, JobNotFound, NeverFits, PageTokenInvalid, RequestIdReused};

    for bad in ["", "no-uuid", "0123456789abcdef0123456789abcdef0", &"a".repeat(5_000), "ü", "\0"] {
        let mut request = changed(|_| ());
        request.request_id = bad.to_owned();
        assert_refused(jobs.submit_job(request).await, InvalidField, "request_id");
        let request = v1::SubmitJobsRequest {
            request_id: bad.to_owned(),
            jobs: vec![job("fine", &["true"])],
            ..Default::default()
        };
        assert_refused(jobs.submit_jobs(request).await, InvalidField, "request_id");
        let request = v1::CancelJobRequest { request_id: bad.to_owned(), job_id: "job-1".to_owned() };
        assert_refused(jobs.cancel_job(request).await, InvalidField, "request_id");
        let selector = Some(v1::JobSelector { all: true, ..Default::default() });
        let request = v1::HoldJobsRequest { request_id: bad.to_owned(), selector, validate_only: false };
        assert_refused(jobs.hold_jobs(request).await, InvalidField, "request_id");
        let request = v1::UpdateJobRequest { request_id: bad.to_owned(), ..Default::default() };
        assert_refused(jobs.update_job(request).await, InvalidField, "request_id");
    }
    // A selector that was left out, or is empty, is not one of every job.
    for selector in [None, Some(v1::JobSelector::default())] {
        let request = v1::CancelJobsRequest { request_id: request_id(), selector, validate_only: false };
        assert_refused(jobs.cancel_jobs(request).await, InvalidField, "selector");
    }

    for bad in
        ["", "job-", "job", "node-1", "job-x!", "JOB-1", "job--1", "job-fffffffffffffffffffff", "ü", "a\nb"]
    {
        let job_id = bad.to_owned();
        let request = v1::GetJobRequest { job_id: job_id.clone(), read: None };
        assert_refused(jobs.get_job(request).await, InvalidField, "job_id");
        let request = v1::CancelJobRequest { request_id: request_id(), job_id: job_id.clone() };
        assert_refused(jobs.cancel_job(request).await, InvalidField, "job_id");
        let filter = Some(v1::JobFilter { job_ids: vec![job_id.clone()], ..Default::default() });
        let selector = Some(v1::JobSelector { filter, ..Default::default() });
        let request = v1::RequeueJobsRequest { request_id: request_id(), selector, validate_only: false };
        assert_refused(jobs.requeue_jobs(request).await, InvalidField, "selector.filter.job_ids[0]");
        let job_id_given = job_id.clone();
        let request =
            v1::UpdateJobRequest { request_id: request_id(), job_id: job_id_given, ..Default::default() };
        assert_refused(jobs.update_job(request).await, InvalidField, "job_id");
        let request = v1::ReadLogsRequest { job_id: job_id.clone(), ..Default::default() };
        assert_refused(jobs.read_logs(request).await.map(|_| Response::new(())), InvalidField, "job_id");
        let request = v1::WatchJobsRequest {
            filter: Some(v1::JobFilter { job_ids: vec![job_id], ..Default::default() }),
            ..Default::default()
        };
        assert_refused(
            jobs.watch_jobs(request).await.map(|_| Response::new(())),
            InvalidField,
            "filter.job_ids[0]",
        );
    }
    let nobody = "job-fffffffff".to_owned();
    let request = v1::GetJobRequest { job_id: nobody.clone(), read: None };
    assert_refused(jobs.get_job(request).await, JobNotFound, "");
    let request = v1::CancelJobRequest { request_id: request_id(), job_id: nobody.clone() };
    assert_refused(jobs.cancel_job(request).await, JobNotFound, "");
    let filter = Some(v1::JobFilter { job_ids: vec![nobody.clone()], ..Default::default() });
    let selector = Some(v1::JobSelector { filter, ..Default::default() });
    let request = v1::SuspendJobsRequest { request_id: request_id(), selector, validate_only: false };
    assert_refused(jobs.suspend_jobs(request).await, JobNotFound, "");
    let request = v1::ReadLogsRequest { job_id: nobody.clone(), ..Default::default() };
    assert_refused(jobs.read_logs(request).await.map(|_| Response::new(())), JobNotFound, "");
    let exec = |message| tokio_stream::once(v1::ExecWorkerRequest { message });
    let start = v1::ExecStart { job_id: nobody.clone(), command: vec!["true".into()], ..Default::default() };
    let of_nobody = jobs.exec_worker(exec(Some(v1::exec_worker_request::Message::Start(start)))).await;
    assert_refused(of_nobody.map(|_| Response::new(())), JobNotFound, "");
    for (message, field) in [
        (None, "message"),
        (Some(v1::exec_worker_request::Message::Signal(9)), "message"),
        (Some(v1::exec_worker_request::Message::Start(v1::ExecStart::default())), "start.job_id"),
    ] {
        let answer = jobs.exec_worker(exec(message)).await;
        assert_refused(answer.map(|_| Response::new(())), InvalidField, field);
    }
    let forward = |message| tokio_stream::once(v1::ForwardPortRequest { message });
    let start = |job_id: &str, port| {
        let start = v1::ForwardPortStart { job_id: job_id.to_owned(), port, ..Default::default() };
        Some(v1::forward_port_request::Message::Start(start))
    };
    let of_nobody = jobs.forward_port(forward(start(&nobody, 6_006))).await;
    assert_refused(of_nobody.map(|_| Response::new(())), JobNotFound, "");
    let piece = v1::forward_port_request::Message::Piece(v1::ForwardedPiece::default());
    for (message, field) in [
        (None, "message"),
        (Some(piece), "message"),
        (start("", 6_006), "start.job_id"),
        (start(&nobody, 0), "start.port"),
        (start(&nobody, 65_536), "start.port"),
    ] {
        let answer = jobs.forward_port(forward(message)).await;
        assert_refused(answer.map(|_| Response::new(())), InvalidField, field);
    }
    let request = v1::ReadLogsRequest { job_id: nobody, stream: 17, ..Default::default() };
    assert_refused(jobs.read_logs(request).await.map(|_| Response::new(())), InvalidField, "stream");

    let token = Some(v1::FencingToken { generation: 1, log_index: 7 });
    let request = v1::ReadLogsRequest { job_id: "job-1".to_owned(), token, ..Default::default() };
    let wrong = [
        ("previous", v1::ReadLogsRequest { previous: true, ..request.clone() }),
        ("from_position", v1::ReadLogsRequest { token: None, from_position: 9, ..request.clone() }),
    ];
    for (field, request) in wrong {
        assert_refused(jobs.read_logs(request).await.map(|_| Response::new(())), InvalidField, field);
    }

    let request = v1::ListJobsRequest { page_size: 1_001, ..Default::default() };
    assert_refused(jobs.list_jobs(request).await, InvalidField, "page_size");
    let request = v1::ListJobsRequest {
        filter: Some(v1::JobFilter { phases: vec![99], ..Default::default() }),
        ..Default::default()
    };
    assert_refused(jobs.list_jobs(request).await, InvalidField, "filter.phases");
    let page = |cluster, list, filter: &[&str]| {
        let token = PageToken { after: "job-1".to_owned(), log_index: LogIndex(1) };
        token.encode(cluster, list, filter_digest(filter.iter().copied()))
    };
    let good = page(cluster, List::Jobs, &["jobs"]);
    let request = v1::ListJobsRequest { page_token: good.clone(), ..Default::default() };
    assert!(jobs.list_jobs(request).await.is_ok(), "the token that the bad ones are made from is good");
    let resume = |cluster: ClusterId, filter: &[&str]| {
        ResumeToken::behind(1, LogIndex(1)).encode(cluster, filter_digest(filter.iter().copied()))
    };
    let bad_pages = [
        "x".to_owned(),
        "00".to_owned(),
        "ü".to_owned(),
        "a".repeat(100_000),
        good[..good.len() - 2].to_owned(),
        page(ClusterId(cluster.0 ^ 1), List::Jobs, &["jobs"]),
        page(cluster, List::Nodes, &["jobs"]),
        page(cluster, List::Jobs, &["jobs", "tenant=somebody"]),
        resume(cluster, &["jobs"]),
    ];
    for page_token in bad_pages {
        let request = v1::ListJobsRequest { page_token, ..Default::default() };
        assert_refused(jobs.list_jobs(request).await, PageTokenInvalid, "");
    }
    let bad_resumes = [
        "x".to_owned(),
        "00".to_owned(),
        "ü".to_owned(),
        "a".repeat(100_000),
        resume(ClusterId(cluster.0 ^ 1), &["jobs"]),
        resume(cluster, &["jobs", "tenant=somebody"]),
        good,
    ];
    for resume_token in bad_resumes {
        let request = v1::WatchJobsRequest { resume_token, ..Default::default() };
        // Bad at every replica, unlike a place that one has not reached: a client must not go on asking.
        assert_refused(
            jobs.watch_jobs(request).await.map(|_| Response::new(())),
            InvalidField,
            "resume_token",
        );
    }
    let request = v1::WatchJobsRequest {
        filter: Some(v1::JobFilter { job_ids: vec!["job-1".to_owned(); 1_001], ..Default::default() }),
        ..Default::default()
    };
    assert_refused(jobs.watch_jobs(request).await.map(|_| Response::new(())), InvalidField, "filter.job_ids");

    for count in [0, 1_001] {
        let request = v1::SubmitJobsRequest {
            request_id: request_id(),
            jobs: vec![job("fine", &["true"]); count],
            ..Default::default()
        };
        assert_refused(jobs.submit_jobs(request).await, InvalidField, "jobs");
    }
    let half = v1::Job {
        spec: Some(v1::JobSpec {
            array: Some(v1::JobArray { size: 50_001, ..Default::default() }),
            ..job("fine", &["true"]).spec().clone()
        }),
        ..job("fine", &["true"])
    };
    let request = v1::SubmitJobsRequest {
        request_id: request_id(),
        jobs: vec![half.clone(), half],
        ..Default::default()
    };
    assert_refused(jobs.submit_jobs(request).await, InvalidField, "jobs");
    for (size, indices, throttle, field) in [
        (0, "", None, "job.spec.array.size"),
        (100_001, "", None, "job.spec.array.size"),
        (2, "0-1", None, "job.spec.array"),
        (0, "1,1", None, "job.spec.array.indices"),
        (0, "9-0", None, "job.spec.array.indices"),
        (0, "0-9:0", None, "job.spec.array.indices"),
        (0, "\u{0}", None, "job.spec.array.indices"),
        (0, &"1,".repeat(100_000), None, "job.spec.array.indices"),
        (2, "", Some(0), "job.spec.array.throttle"),
    ] {
        let array = v1::JobArray { size, indices: indices.to_owned(), throttle };
        let request = changed(|wanted| wanted.spec_mut().array = Some(array.clone()));
        assert_refused(jobs.submit_job(request).await, InvalidField, field);
    }
    let unknown = |array_id: &str| v1::GetArrayRequest { array_id: array_id.to_owned(), read: None };
    assert_refused(jobs.get_array(unknown("job-1")).await, InvalidField, "array_id");
    let filter = v1::JobFilter { region: "eu".to_owned(), ..Default::default() };
    let list = v1::ListArraysRequest { filter: Some(filter), ..Default::default() };
    assert_refused(jobs.list_arrays(list).await, InvalidField, "filter.region");
    let request = v1::SubmitJobRequest { request_id: request_id(), job: None, validate_only: false };
    assert_refused(jobs.submit_job(request).await, InvalidField, "job");

    for name in ["", "UPPER", "a b", "-a", "ü", "a\n", "a/b", &"a".repeat(64), &"a".repeat(100_000)] {
        let request = changed(|wanted| wanted.name = name.to_owned());
        assert_refused(jobs.submit_job(request).await, InvalidField, "job.name");
        let batch = vec![job("fine", &["true"]), job(name, &["true"])];
        let request = v1::SubmitJobsRequest { request_id: request_id(), jobs: batch, ..Default::default() };
        assert_refused(jobs.submit_jobs(request).await, InvalidField, "jobs[1].name");
    }
    type Change = fn(&mut v1::Job);
    let changes: [(&str, Change); 13] = [
        ("job.spec.groups[0].workers", |wanted| wanted.spec_mut().groups[0].workers = 0),
        ("job.spec.groups[0].workers", |wanted| wanted.spec_mut().groups[0].workers = u32::MAX),
        ("job.spec.groups[0].process.command", |wanted| wanted.spec_mut().groups[0].command_mut().clear()),
        ("job.spec.groups[0].process.command[1]", |wanted| {
            wanted.spec_mut().groups[0].command_mut().push("a".repeat(5_000))
        }),
        ("job.spec.groups[0].resources.cpu_milli", |wanted| {
            wanted.spec_mut().groups[0].resources_mut().cpu_milli = u64::MAX
        }),
        ("job.spec.groups", |wanted| wanted.spec_mut().groups.clear()),
        ("job.spec.groups", |wanted| wanted.spec_mut().groups = vec![wanted.spec().groups[0].clone(); 17]),
        ("job.spec.tier", |wanted| wanted.spec_mut().tier = 17),
        ("job.tenant", |wanted| wanted.tenant = "No Name".to_owned()),
        ("job.spec.regions[0]", |wanted| wanted.spec_mut().regions = vec!["No Name".to_owned()]),
        ("job.spec.nodes.expressions[0].operator", |wanted| {
            let test = v1::NodeExpression { key: "zone".to_owned(), operator: 17, values: Vec::new() };
            wanted.spec_mut().nodes =
                Some(v1::NodeRequirements { expressions: vec![test], ..Default::default() })
        }),
        ("job.spec.nodes.exclude", |wanted| {
            let names = vec!["h1".to_owned()];
            wanted.spec_mut().nodes =
                Some(v1::NodeRequirements { only: names.clone(), exclude: names, ..Default::default() })
        }),
        ("job.spec.checkpoint.directory", |wanted| {
            wanted.spec_mut().checkpoint_mut().directory = "here".to_owned()
        }),
    ];
    for (field, change) in changes {
        assert_refused(jobs.submit_job(changed(change)).await, InvalidField, field);
    }

    // Nothing here is that large; the refusal states what would fit.
    let mut giant = changed(|wanted| {
        wanted.spec_mut().groups[0].workers = 64;
        wanted.spec_mut().groups[0].resources_mut().accelerators = Some(accelerators("h100", 4));
    });
    for validate_only in [false, true] {
        giant.validate_only = validate_only;
        let refused = assert_refused(jobs.submit_job(giant.clone()).await, NeverFits, "");
        let shape = "closest that would: 1 worker x h100:4";
        assert!(refused.message.contains("64 workers") && refused.message.contains(shape), "{refused:?}");
    }

    // The id of another request; the request itself is answered as before.
    let mut reused = used.clone();
    reused.job = Some(job("another", &["true"]));
    assert_refused(jobs.submit_job(reused).await, RequestIdReused, "");
    let other_call = v1::CancelJobRequest { request_id: used.request_id.clone(), job_id: "job-1".to_owned() };
    let refused = refusal(&jobs.cancel_job(other_call).await.expect_err("the id of another call"));
    assert!(matches!(refused.code, Some(RequestIdReused | JobNotFound)), "{refused:?}");
    assert!(jobs.submit_job(used.clone()).await.is_ok(), "a request under its own id");
    let mut only_checked = changed(|_| ());
    only_checked.validate_only = true;
    assert!(jobs.submit_job(only_checked).await.is_ok());
}

/// More than a message may have, in every place a message can be large in.
async fn oversized(jobs: &mut Jobs) {
    let much = "x".repeat(5 << 20);
    let answers = [
        jobs.submit_job(changed(|wanted| wanted.name = much.clone())).await.map(drop),
        jobs.get_job(v1::GetJobRequest { job_id: much.clone(), read: None }).await.map(drop),
        jobs.list_jobs(v1::ListJobsRequest { page_token: much.clone(), ..Default::default() })
            .await
            .map(drop),
    ];
    for answer in answers {
        // Refused by the framework while it reads: before there is a message to be judged.
        let status = answer.expect_err("more than 4 MiB");
        assert!(matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted), "{status:?}");
    }
}

/// What the log has not reached is waited for a moment, then refused; never answered with less.
async fn ahead_of_the_log(endpoint: &str) {
    use RefusalCode::LogIndexNotReached;
    let read = Some(muster_client::Read::any().at_least(u64::MAX).into());
    let connected = Channel::from_shared(endpoint.to_owned()).expect("an address").connect().await;
    let channel = connected.expect("a replica takes connections");
    let (mut jobs, mut again) = (Jobs::new(channel.clone()), Jobs::new(channel.clone()));
    let mut fleet = FleetServiceClient::new(channel.clone());
    let mut cluster = ClusterServiceClient::new(channel);
    let (job, list, nodes, status) = tokio::join!(
        jobs.get_job(v1::GetJobRequest { job_id: "job-1".to_owned(), read }),
        again.list_jobs(v1::ListJobsRequest { read, ..Default::default() }),
        fleet.list_nodes(v1::ListNodesRequest { read, ..Default::default() }),
        cluster.get_status(v1::GetStatusRequest { read }),
    );
    assert_refused(job, LogIndexNotReached, "");
    assert_refused(list, LogIndexNotReached, "");
    assert_refused(nodes, LogIndexNotReached, "");
    assert_refused(status, LogIndexNotReached, "");
}

async fn wrong_schedule_calls(endpoint: &str) {
    use RefusalCode::{InvalidField, ScheduleNotFound};
    let connected = ScheduleServiceClient::connect(endpoint.to_owned()).await;
    let mut schedules = connected.expect("a replica takes connections");
    let good = || v1::Schedule {
        name: "nightly".to_owned(),
        cron: "0 6 * * 1-5".to_owned(),
        job: Some(job("fine", &["true"])),
        ..Default::default()
    };
    let create = |schedule| v1::CreateScheduleRequest { request_id: request_id(), schedule };
    assert_refused(schedules.create_schedule(create(None)).await, InvalidField, "schedule");
    let huge = "*,".repeat(100_000);
    for cron in ["", "* * * *", "61 * * * *", "0 0 31 2 *", "ü", "\0", huge.as_str()] {
        let wrong = v1::Schedule { cron: cron.to_owned(), ..good() };
        assert_refused(schedules.create_schedule(create(Some(wrong))).await, InvalidField, "schedule.cron");
    }
    for zone in ["Nowhere", "../../etc/passwd", "Europe/Berlin ", "ü"] {
        let wrong = v1::Schedule { time_zone: zone.to_owned(), ..good() };
        let answer = schedules.create_schedule(create(Some(wrong))).await;
        assert_refused(answer, InvalidField, "schedule.time_zone");
    }
    let late = v1::Schedule { starting_deadline: Some(duration(700_000_000)), ..good() };
    let answer = schedules.create_schedule(create(Some(late))).await;
    assert_refused(answer, InvalidField, "schedule.starting_deadline");
    let update = v1::UpdateScheduleRequest { request_id: request_id(), schedule: Some(good()) };
    assert_refused(schedules.update_schedule(update).await, ScheduleNotFound, "");
    let (tenant, name) = (String::new(), "nobody".to_owned());
    let run = v1::RunScheduleRequest { request_id: request_id(), tenant: tenant.clone(), name: name.clone() };
    assert_refused(schedules.run_schedule(run.clone()).await, ScheduleNotFound, "");
    let wrong = v1::RunScheduleRequest { request_id: "x".to_owned(), ..run };
    assert_refused(schedules.run_schedule(wrong).await, InvalidField, "request_id");
    let get = v1::GetScheduleRequest { tenant, name: "Ü".to_owned(), read: None };
    assert_refused(schedules.get_schedule(get).await, InvalidField, "name");
}

async fn wrong_fleet_calls(endpoint: &str) {
    use RefusalCode::{InvalidField, NodeHeldByAnother, NodeNotFound, PageTokenInvalid};
    let mut fleet =
        FleetServiceClient::connect(endpoint.to_owned()).await.expect("a replica takes connections");
    for nobody in ["", "nobody", "node-999", "ü", "a\nb", &"a".repeat(100_000)] {
        let request = v1::GetNodeRequest { node: nobody.to_owned(), read: None };
        assert_refused(fleet.get_node(request).await, NodeNotFound, "");
        let (id, node) = (request_id(), nobody.to_owned());
        let request = v1::CordonNodeRequest { request_id: id, node, ..Default::default() };
        assert_refused(fleet.cordon_node(request).await, NodeNotFound, "");
        let request = v1::ForgetNodeRequest { request_id: request_id(), node: nobody.to_owned() };
        assert_refused(fleet.forget_node(request).await, NodeNotFound, "");
    }
    let request =
        v1::CordonNodeRequest { request_id: "x".to_owned(), node: "h1".to_owned(), ..Default::default() };
    assert_refused(fleet.cordon_node(request).await, InvalidField, "request_id");
    let labels = |key: &str, value: &str| v1::SetNodeLabelsRequest {
        request_id: request_id(),
        node: "h1".to_owned(),
        set_labels: [(key.to_owned(), value.to_owned())].into(),
        ..Default::default()
    };
    for key in ["", "A", "a/b", "ü", "a\nb", &"a".repeat(100_000)] {
        assert_refused(fleet.set_node_labels(labels(key, "x")).await, InvalidField, "set_labels");
    }
    let control = fleet.set_node_labels(labels("pool", "a\u{1b}[31m")).await;
    assert_refused(control, InvalidField, "set_labels.pool");
    let reserved = fleet.set_node_labels(labels("gpu.model", "x")).await;
    assert_refused(reserved, InvalidField, "set_labels.gpu.model");
    let nobody = v1::SetNodeLabelsRequest { node: "nobody".to_owned(), ..labels("pool", "x") };
    assert_refused(fleet.set_node_labels(nobody).await, NodeNotFound, "");
    let request = v1::ForgetNodeRequest { request_id: "x".to_owned(), node: "h1".to_owned() };
    assert_refused(fleet.forget_node(request).await, InvalidField, "request_id");
    let mut bookings =
        BookingServiceClient::connect(endpoint.to_owned()).await.expect("a replica takes connections");
    for wrong in ["", "A", "ü", "a\nb", &"a".repeat(100_000)] {
        let request = v1::GetBookingRequest { name: wrong.to_owned(), read: None };
        assert_refused(bookings.get_booking(request).await, InvalidField, "name");
        let request =
            v1::CreateBookingRequest { request_id: request_id(), name: wrong.to_owned(), spec: None };
        assert_refused(bookings.create_booking(request).await, InvalidField, "name");
    }
    let shape = v1::BookingShape { hosts: u32::MAX, devices: u32::MAX, ..Default::default() };
    let spec = v1::BookingSpec { tenant: "default".to_owned(), shape: Some(shape), ..Default::default() };
    let request =
        v1::CreateBookingRequest { request_id: request_id(), name: "b".to_owned(), spec: Some(spec) };
    assert_refused(bookings.create_booking(request).await, InvalidField, "spec.shape");
    let mut probes =
        ProbeServiceClient::connect(endpoint.to_owned()).await.expect("a replica takes connections");
    let probe = |nodes: &[&str]| admin::ProbeNodesRequest {
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
    };
    for wrong in [probe(&[]), probe(&["h1"]), probe(&["h1"; 257])] {
        assert_refused(probes.probe_nodes(wrong).await, InvalidField, "nodes");
    }
    assert_refused(probes.probe_nodes(probe(&["h1", "h1"])).await, InvalidField, "nodes");
    assert_refused(probes.probe_nodes(probe(&["h1", "nobody"])).await, NodeNotFound, "");
    let request = v1::ListNodesRequest { page_token: "x".to_owned(), ..Default::default() };
    assert_refused(fleet.list_nodes(request).await, PageTokenInvalid, "");
    let request = v1::ListNodesRequest { page_size: 1_001, ..Default::default() };
    assert_refused(fleet.list_nodes(request).await, InvalidField, "page_size");

    // Sessions.
    let holder = "0123456789abcdef0123456789abcdef";
    let heartbeat = agent::session_request::Message::Heartbeat(agent::Heartbeat { sequence: 1 });
    let large = v1::NodeDescription { cpu_milli: u64::MAX, ..node("h9") };
    let cases: [(&str, RefusalCode, agent::SessionRequest); 6] = [
        ("message", InvalidField, agent::SessionRequest { message: Some(heartbeat) }),
        ("message", InvalidField, agent::SessionRequest { message: None }),
        ("holder_id", InvalidField, registration(node("h9"), "x")),
        ("node.name", InvalidField, registration(node("No Name"), holder)),
        ("node.cpu_milli", InvalidField, registration(large, holder)),
        ("", NodeHeldByAnother, registration(node("h1"), holder)),
    ];
    for (field, code, message) in cases {
        let answer = session(endpoint, vec![message]).await;
        assert_refused(answer.map(Response::new), code, field);
    }
}

/// What an agent could pass on of workers, on a session that stands: it ends with the field that is wrong.
async fn notes(endpoint: &str) {
    let token = Some(v1::FencingToken { generation: 1, log_index: 1 });
    let note =
        |job_id: &str, token| agent::WorkerNote { job_id: job_id.to_owned(), token, ..Default::default() };
    let cases = [
        ("note.job_id", note("../job", token)),
        ("note.token", note("job-1", None)),
        ("note.note", note("job-1", token)),
    ];
    for (field, note) in cases {
        let holder = format!("{:032x}", uuid::Uuid::new_v4().as_u128());
        let note = agent::SessionRequest { message: Some(agent::session_request::Message::Note(note)) };
        let opening = vec![registration(node(&field.replace(['.', '_'], "-")), &holder), note];
        let ended = session_end(endpoint, opening).await;
        assert_refused(Err::<Response<()>, _>(ended), RefusalCode::InvalidField, field);
    }
}

/// Bytes that are no call at all. The connection may be answered or cut; the replica stays.
async fn garbage(address: SocketAddr) {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let noise: Vec<u8> = (0..64 << 10).map(|_| rand::random()).collect();
    let giant_frame = [&preface[..], &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat();
    let half_settings = [&preface[..], &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0]].concat();
    let cases = [
        noise.clone(),
        [&preface[..], &noise].concat(),
        giant_frame,
        half_settings,
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        vec![0x16, 0x03, 0x01, 0x02, 0x00, 0x01],
        vec![0; 1 << 16],
        Vec::new(),
    ];
    for bytes in cases {
        let mut stream = TcpStream::connect(address).await.expect("a replica listens");
        // It may have been cut before all was written.
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        assert!(end.is_ok(), "a connection that carries nonsense is kept");
    }
}

async fn command(cluster: &Cluster, args: &[&str], stdin: &str) -> Ran {
    let endpoints = cluster.endpoints().join(",");
    run_to_end(&[&["--endpoint", &endpoints], args].concat(), stdin).await
}

async fn wrong_commands(cluster: &Cluster, used: &v1::SubmitJobRequest) {
    let yaml = |spec: &str| {
        format!(
            "apiVersion: muster.dev/v1\nkind: Job\nmetadata:\n  name: fine\nspec:\n  command: [\"true\"]\n{spec}"
        )
    };
    let submit = ["submit", "-"];
    let cases: [(String, i32, &[&str]); 7] = [
        (yaml("  colour: red\n"), 2, &["colour"]),
        (yaml("  workers: 0\n"), 2, &["workers"]),
        (yaml("").replace("name: fine", "name: Not Fine"), 2, &["name"]),
        (yaml("").replace("kind: Job", "kind: Jobs"), 2, &["kind"]),
        ("[".to_owned(), 2, &[]),
        (String::new(), 2, &[]),
        (
            yaml("  workers: 64\n  accelerators: h100:4\n"),
            5,
            &["MS-1002", "closest that would: 1 worker x h100:4"],
        ),
    ];
    for (text, code, parts) in cases {
        command(cluster, &submit, &text).await.assert_refused(code, parts);
    }
    let much = format!("{}#{}", yaml(""), "x".repeat(5 << 20));
    command(cluster, &submit, &much).await.assert_refused(2, &[]);
    let reuse = ["submit", "-", "--request-id", &used.request_id];
    command(cluster, &reuse, &yaml("")).await.assert_refused(5, &["MS-1003"]);
    command(cluster, &["submit", "-", "--request-id", "x"], &yaml(""))
        .await
        .assert_refused(2, &["request-id"]);
    command(cluster, &["submit", "/nowhere/job.yaml"], "").await.assert_refused(2, &["/nowhere/job.yaml"]);
    command(cluster, &["job", "show", "node-1"], "").await.assert_refused(3, &["node-1"]);
    command(cluster, &["job", "show", "job-fffffffff"], "").await.assert_refused(3, &["MS-2001"]);
    command(cluster, &["job", "cancel", "job-fffffffff"], "").await.assert_refused(3, &["MS-2001"]);
    command(cluster, &["node", "show", "nobody"], "").await.assert_refused(3, &["MS-3001"]);
    command(cluster, &["job", "logs", "job-fffffffff"], "").await.assert_refused(3, &["MS-2001"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input() {
    let mut cluster = Cluster::start(3).await;
    let _agents = Agents::start(&cluster, &["h1"]).await;
    let client = cluster.client();
    // A fleet to judge by, on which nothing is placed: then the log stands still by itself.
    let cordon = v1::CordonNodeRequest { node: "h1".to_owned(), ..Default::default() };
    client.cordon_node(cordon).await.unwrap();
    let used = changed(|_| ());
    client.submit_job(used.clone()).await.unwrap();

    let leader = cluster.leader().await;
    let follower = cluster.follower().await;
    let before = cluster.status_of(leader).await.unwrap().freshness.unwrap().log_index;
    for at in [leader, follower] {
        let endpoint = cluster.replicas[at].endpoint();
        // The bare client: what it sends is not checked on this side.
        let mut jobs = Jobs::connect(endpoint.clone()).await.unwrap();
        wrong_calls(&mut jobs, cluster.id, &used).await;
        wrong_fleet_calls(&endpoint).await;
        wrong_schedule_calls(&endpoint).await;
        oversized(&mut jobs).await;
        ahead_of_the_log(&endpoint).await;
    }
    wrong_commands(&cluster, &used).await;
    for replica in &cluster.replicas {
        garbage(replica.client).await;
        garbage(replica.peer).await;
    }
    cluster.assert_alive();
    assert_eq!(cluster.leader().await, leader, "nonsense moved the leadership");
    let after = cluster.status_of(leader).await.unwrap().freshness.unwrap().log_index;
    assert_eq!(after, before, "a refused request moved the log");
    // These come on sessions that stand, of nodes that are registered for it.
    notes(&cluster.replicas[leader].endpoint()).await;
    cluster.assert_digests_agree().await;
}
