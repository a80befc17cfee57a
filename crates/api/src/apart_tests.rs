//! What tenants see of each other's jobs: that they are there, and nothing that is private.

use muster_transport::Role;
use muster_types::RefusalCode;
use muster_wire::agent::session_request;
use muster_wire::status::Refused;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::{agent, v1};
use prost::Message as _;
use std::time::Duration;
use tonic::transport::Channel;

use crate::access_tests::{
    World, command_next_to, guarded, host, of_tenant, port_of, session_taking, short, submission,
};

/// In the environment, the command, the directories and the ends of one job, and nowhere else.
const SECRET: &str = "hunter2";

/// A job of `speech` that is full of secrets, on `h1`; its id.
async fn secretive(world: &World) -> String {
    use muster_decider::{Answer, Command};
    let register = Command::Register {
        spec: host("h1"),
        holder: muster_types::HolderId(1),
        other_session_is_over: false,
    };
    world.engine.execute(register).await.expect("a host comes");
    let mut wanted = submission("speech", 0).job.expect("it has one");
    *wanted.spec_mut().groups[0].command_mut() = vec!["/opt/train".to_owned(), format!("--key={SECRET}")];
    wanted.spec_mut().groups[0].set_variable("HF_TOKEN", SECRET);
    wanted.spec_mut().checkpoint_mut().directory = format!("/data/{SECRET}/saved");
    wanted.spec_mut().working_directory = format!("/home/{SECRET}");
    let jobs = muster_wire::convert::submissions_from_proto("job", Some(wanted)).expect("it is a job").into();
    let submit = Command::submit(muster_types::RequestId(7), jobs);
    let answer = world.engine.execute(submit).await.expect("it fits");
    let Answer::Submitted { jobs, .. } = answer else { panic!("{answer:?}") };
    jobs[0].to_string()
}

/// Everything that the calls about jobs answer, as bytes; a watch up to its first change behind the present.
async fn shown(channel: Channel, id: &str, change: impl Future<Output = ()>) -> Vec<(&'static str, Vec<u8>)> {
    let mut jobs = JobServiceClient::new(channel);
    let get = v1::GetJobRequest { job_id: id.to_owned(), ..Default::default() };
    let got = guarded("a job", jobs.get_job(get)).await.expect("everybody may look").into_inner();
    let listed = guarded("a list", jobs.list_jobs(v1::ListJobsRequest::default())).await;
    let explain = v1::ExplainJobRequest { job_id: id.to_owned(), ..Default::default() };
    let explained = guarded("an explanation", jobs.explain_job(explain)).await.expect("everybody may ask");
    let watched = guarded("a watch", jobs.watch_jobs(v1::WatchJobsRequest::default())).await;
    let mut watch = watched.expect("everybody may watch").into_inner();
    let mut seen = Vec::new();
    let mut is_present = true;
    let mut change = Some(change);
    loop {
        let message = guarded("a message", watch.message()).await.expect("it goes on").expect("it goes on");
        seen.extend(message.encode_to_vec());
        match message.event {
            Some(v1::watch_jobs_response::Event::SyncEnd(_)) => {
                is_present = false;
                change.take().expect("it is complete once").await;
            }
            Some(v1::watch_jobs_response::Event::Changed(_)) if !is_present => break,
            _ => {}
        }
    }
    vec![
        ("get", got.encode_to_vec()),
        ("list", listed.expect("everybody may list").into_inner().encode_to_vec()),
        ("explain", explained.into_inner().encode_to_vec()),
        ("watch", seen),
    ]
}

fn tells(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes())
}

/// Changes the job once more: another checkpoint, as it were.
async fn touch(world: &World, number: u128) {
    use muster_decider::Command;
    let jobs = muster_wire::convert::submissions_from_proto("job", submission("speech", 0).job);
    let jobs = jobs.expect("it is a job").into();
    let submit = Command::submit(muster_types::RequestId(number), jobs);
    world.engine.execute(submit).await.expect("it fits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_private_to_a_job_is_shown_to_its_tenant_and_to_operators_alone() {
    let world = World::with_tenants().await;
    let id = secretive(&world).await;
    let others = [of_tenant("vision", "ada"), of_tenant("video", "eve"), Role::Client(short("viewer"))];
    for (number, role) in others.into_iter().enumerate() {
        let seen = shown(world.channel(role).await, &id, touch(&world, 100 + number as u128)).await;
        for (call, bytes) in seen {
            assert!(!tells(&bytes), "{role} is shown the secret by {call}");
        }
        let mut jobs = JobServiceClient::new(world.channel(role).await);
        let get = v1::GetJobRequest { job_id: id.clone(), ..Default::default() };
        let job = guarded("a job", jobs.get_job(get)).await.expect("everybody may look").into_inner().job;
        let job = job.expect("it is there");
        let group = &job.spec.as_ref().expect("it has one").groups[0];
        assert!(job.redacted && group.command() == ["redacted"] && group.workers == 1, "{role}: {job:?}");
    }
    let own = [of_tenant("speech", "bob"), Role::AllTenants(short("gateway")), Role::Admin(short("root"))];
    for (number, role) in own.into_iter().enumerate() {
        for (call, bytes) in shown(world.channel(role).await, &id, touch(&world, 200 + number as u128)).await
        {
            assert_eq!(tells(&bytes), matches!(call, "get" | "watch"), "{role}: {call}");
        }
    }
}

/// Has the host of a job's only worker say this of it, once it has a host.
async fn report(world: &World, job: muster_types::JobId, update: muster_journal::RankUpdate) {
    let report = guarded("a placement", async {
        loop {
            let view = world.engine.view();
            if let Some(placement) = view.job(job).and_then(|row| row.placement.clone()) {
                let slot = placement.slots[0];
                return muster_decider::Command::Report {
                    node: slot.node,
                    incarnation: slot.incarnation,
                    job,
                    token: placement.token,
                    updates: vec![(0, update)],
                };
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    world.engine.execute(report).await.expect("it is believed");
}

/// A job's program cannot be started, and what the host says of that names a path.
async fn fail(world: &World, id: &str) {
    let exit = muster_types::ExitStatus::LaunchFailed(format!("cannot run /home/{SECRET}"));
    report(world, id.parse().expect("it is an id"), muster_journal::RankUpdate::Exited(exit)).await;
}

/// A job of a tenant's whose worker runs, as far as anybody knows; its id. There is a host for it.
async fn running(world: &World, number: u128, tenant: &str) -> String {
    use muster_decider::{Answer, Command};
    let jobs = muster_wire::convert::submissions_from_proto("job", submission(tenant, 0).job);
    let jobs = jobs.expect("it is a job").into();
    let answer = world.engine.execute(Command::submit(muster_types::RequestId(number), jobs)).await;
    let Ok(Answer::Submitted { jobs, .. }) = answer else { panic!("{answer:?}") };
    report(world, jobs[0], muster_journal::RankUpdate::Running).await;
    jobs[0].to_string()
}

/// How a job failed is its tenant's to read, in whatever answer it stands: also where it is explained.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_a_job_failed_is_explained_to_its_tenant_alone() {
    let world = World::with_tenants().await;
    let id = secretive(&world).await;
    fail(&world, &id).await;
    for (role, may) in [(of_tenant("vision", "ada"), false), (of_tenant("speech", "bob"), true)] {
        let mut jobs = JobServiceClient::new(world.channel(role).await);
        let explain = v1::ExplainJobRequest { job_id: id.clone(), ..Default::default() };
        let explained =
            guarded("an explanation", jobs.explain_job(explain)).await.expect("everybody may ask");
        assert_eq!(tells(&explained.get_ref().encode_to_vec()), may, "{role}: {:?}", explained.get_ref());
        let reason = explained.into_inner().explanation.expect("it is there").reason;
        assert!(reason.contains("FAIL") || reason == "RETRY_BACKOFF", "{reason}");
    }
}

/// A change is rendered once for all who see it whole, and once for all others; never the one for the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_different_tenants_share_no_rendering() {
    let world = World::with_tenants().await;
    let mut watches = Vec::new();
    for role in [of_tenant("speech", "bob"), of_tenant("vision", "ada"), of_tenant("speech", "eve")] {
        let mut jobs = JobServiceClient::new(world.channel(role).await);
        let watch = guarded("a watch", jobs.watch_jobs(v1::WatchJobsRequest::default())).await;
        watches.push((role, watch.expect("everybody may watch").into_inner()));
    }
    secretive(&world).await;
    for (role, watch) in &mut watches {
        let is_own = *role != of_tenant("vision", "ada");
        let job = guarded("the job", async {
            loop {
                let message = watch.message().await.expect("it goes on").expect("it goes on");
                if let Some(v1::watch_jobs_response::Event::Changed(job)) = message.event {
                    return job;
                }
            }
        })
        .await;
        assert_eq!(tells(&job.encode_to_vec()), is_own, "{role}");
        assert_eq!(job.redacted, !is_own, "{role}");
    }
}

/// What one caller begins and does not finish takes memory from nobody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_messages_of_one_tenant_leave_room_for_the_others() {
    use crate::{ApiConfig, CallLimits};
    use tonic::codegen::Bytes;
    let calls = CallLimits {
        message_room_bytes: 64 << 20,
        message_room_each_bytes: 16 << 20,
        message_timeout_ms: 2_000,
        ..CallLimits::DEFAULT
    };
    let world = World::start(ApiConfig { calls, ..ApiConfig::DEFAULT }).await;
    let refused = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut calls = Vec::new();
    for user in ["ada", "eve"] {
        let channel = world.channel(of_tenant("vision", user)).await;
        for _ in 0..16 {
            // The length of a message of nearly four MiB, one byte of it, and then nothing.
            let head = [&[0][..], &(4_000_000_u32).to_be_bytes(), &[8]].concat();
            let frames = futures::stream::once(std::future::ready(Ok::<_, tonic::Status>(
                http_body::Frame::data(Bytes::from(head)),
            )));
            let body = http_body_util::StreamBody::new(futures::StreamExt::chain(
                frames,
                futures::stream::pending(),
            ));
            let request =
                http::Request::post(format!("https://{}/muster.v1beta1.JobService/SubmitJob", world.address))
                    .header("content-type", "application/grpc")
                    .body(tonic::body::Body::new(body))
                    .expect("a request");
            let (mut channel, refused) = (channel.clone(), std::sync::Arc::clone(&refused));
            calls.push(tokio::spawn(async move {
                use tonic::codegen::Service as _;
                std::future::poll_fn(|context| channel.poll_ready(context)).await.expect("it stands");
                let answer = channel.call(request).await.expect("it is answered");
                let status = tonic::Status::from_header_map(answer.headers()).expect("it is refused");
                if status.code() == tonic::Code::ResourceExhausted {
                    refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                status.code()
            }));
        }
    }
    // Somebody else is served meanwhile.
    let mut jobs = JobServiceClient::new(world.channel(of_tenant("speech", "bob")).await);
    let large = v1::ListJobsRequest {
        filter: Some(v1::JobFilter { name_prefix: "n".repeat(3 << 20), ..Default::default() }),
        ..Default::default()
    };
    // It is read before it is refused, so others are not kept out.
    let refused_name = guarded("a list", jobs.list_jobs(large)).await.expect_err("no name is so long");
    assert_eq!(refused_name.code(), tonic::Code::InvalidArgument);
    let mut codes = Vec::new();
    for call in calls {
        codes.push(guarded("an answer", call).await.expect("it does not panic"));
    }
    let refused = refused.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(refused, 28, "four fit into the share of one tenant, whichever user sends them: {codes:?}");
    assert!(codes.iter().filter(|code| **code == tonic::Code::DeadlineExceeded).count() == 4, "{codes:?}");
}

/// An agent that stays in its session, takes this, and answers nothing: it sends no output of any worker and runs no command; until
/// both are aborted.
async fn silent_agent(world: &World, takes: &[agent::SessionFeature]) -> [tokio::task::JoinHandle<()>; 2] {
    let channel = world.channel(Role::Agent(short("h1"))).await;
    let session = session_taking(&channel, &host("h1"), takes).await;
    let (to_replica, mut orders) = session.expect("it is admitted");
    guarded("the registration", orders.message()).await.expect("the session stands");
    let beats = tokio::spawn(async move {
        for sequence in 1.. {
            let beat = session_request::Message::Heartbeat(agent::Heartbeat { sequence });
            if to_replica.send(agent::SessionRequest { message: Some(beat) }).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    let taken = tokio::spawn(async move { while let Ok(Some(_)) = orders.message().await {} });
    [beats, taken]
}

/// The agent of a host sends only a limited number of outputs at a time: no tenant has all of them, however many users it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_readers_of_one_tenant_leave_outputs_of_a_host_to_others() {
    use muster_decider::{Answer, Command};
    let world = World::with_tenants().await;
    let silent = silent_agent(&world, &[]).await;
    let mut requests = Vec::new();
    for (number, tenant) in (7..).zip(["speech", "vision"]) {
        let jobs = muster_wire::convert::submissions_from_proto("job", submission(tenant, 0).job);
        let jobs = jobs.expect("it is a job").into();
        let answer = world.engine.execute(Command::submit(muster_types::RequestId(number), jobs)).await;
        let Ok(Answer::Submitted { jobs, .. }) = answer else { panic!("{answer:?}") };
        guarded("a placement", async {
            while world.engine.view().job(jobs[0]).is_none_or(|row| row.placement.is_none()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        let job_id = jobs[0].to_string();
        requests.push(v1::ReadLogsRequest { job_id, follow: true, ..Default::default() });
    }
    let [of_speech, of_vision] = [requests[0].clone(), requests[1].clone()];
    let read = async |role: Role, request: v1::ReadLogsRequest| {
        let mut jobs = JobServiceClient::new(world.channel(role).await);
        guarded("an answer", jobs.read_logs(request)).await
    };
    let mut held = Vec::new();
    for _ in 0..16 {
        held.push(read(of_tenant("speech", "eve"), of_speech.clone()).await.expect("there is capacity"));
    }
    for user in ["eve", "mallory"] {
        let status = read(of_tenant("speech", user), of_speech.clone()).await.expect_err("half is taken");
        let told = Refused::from_status(&status);
        assert_eq!(told.code, Some(RefusalCode::Overloaded), "{told:?}");
        assert_eq!(told.metadata.get("node").map(String::as_str), Some("h1"));
    }
    read(of_tenant("vision", "ada"), of_vision).await.expect("another tenant's");
    // A place is free again when its output is not read any more.
    held.pop();
    guarded("a place", async {
        while read(of_tenant("speech", "mallory"), of_speech.clone()).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    silent.iter().for_each(tokio::task::JoinHandle::abort);
}

/// The agent of a host runs only a limited number of commands at a time: no tenant has all of them, however many users it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_one_tenant_leave_commands_on_a_host_to_others() {
    let world = World::with_tenants().await;
    let silent = silent_agent(&world, &[agent::SessionFeature::Exec]).await;
    let of_speech = running(&world, 7, "speech").await;
    let of_vision = running(&world, 8, "vision").await;
    let client =
        async |tenant: &str, user: &str| JobServiceClient::new(world.channel(of_tenant(tenant, user)).await);
    let (eve, mallory) = (client("speech", "eve").await, client("speech", "mallory").await);
    let ada = client("vision", "ada").await;
    let run = async |client: &JobServiceClient<Channel>, job: &str| {
        let mut client = client.clone();
        let asked = tokio_stream::once(command_next_to(job));
        guarded("an answer", client.exec_worker(asked)).await
    };
    let is_refused = |status: tonic::Status| {
        let told = Refused::from_status(&status);
        assert_eq!(told.code, Some(RefusalCode::Overloaded), "{told:?}");
        assert!(status.message().contains("on one node"), "{status:?}");
    };
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(run(&eve, &of_speech).await.expect("there is capacity"));
    }
    for client in [&eve, &mallory] {
        is_refused(run(client, &of_speech).await.expect_err("half is taken"));
    }
    // Connections to ports are counted with them.
    let port = tokio_stream::once(port_of(&of_speech));
    is_refused(guarded("an answer", mallory.clone().forward_port(port)).await.expect_err("half is taken"));
    run(&ada, &of_vision).await.expect("another tenant's");
    // A place is free again when a command has nobody any more who waits for it.
    held.pop();
    guarded("a place", async {
        while run(&mallory, &of_speech).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    silent.iter().for_each(tokio::task::JoinHandle::abort);
}
