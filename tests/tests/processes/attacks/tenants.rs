//! More of what a hostile tenant tries at three real replicas: every call that reads, repeating and forestalling what
//! others asked for, and calls that are larger than they may be.

use muster_client::Client;
use muster_transport::Role;
use muster_wire::v1;
use muster_wire::v1::cluster_service_client::ClusterServiceClient;
use muster_wire::v1::fleet_service_client::FleetServiceClient;
use muster_wire::v1::history_service_client::HistoryServiceClient;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::v1::policy_service_client::PolicyServiceClient;
use muster_wire::v1::schedule_service_client::ScheduleServiceClient;
use muster_wire::v1::tenant_service_client::TenantServiceClient;
use prost::Message;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request};

use super::replicas::{
    SECRET, Town, drained, endless, of_tenant, refused, request_id, short, silent, submitted, told_without,
    turned_away,
};
use super::table::{Kind, Outcome, Table};
use crate::support::{is_finished, wait_for_job};

/// A job of the victim's tenant that fails with a sentence of the host about a private path; its id.
async fn failing(bob: &Client) -> String {
    let mut wanted = endless("failing", "speech", "true");
    *wanted.spec_mut().groups[0].command_mut() = vec![format!("/nowhere/{SECRET}/train")];
    let id = submitted(bob, wanted).await;
    let ended = wait_for_job(bob, &id, is_finished).await;
    assert!(ended.status().message.contains(SECRET), "its own tenant reads why: {ended:#?}");
    id
}

/// Reads whatever else can be read, in the present and in the past.
pub(super) async fn read_all(town: &Town, attacks: &mut Table, bob: &Client, victim: &v1::Job) {
    let failed = failing(bob).await;
    let past = town.index().await;
    for at in 0..3 {
        for role in [of_tenant("vision", "eve"), Role::Client(short("spy"))] {
            let channel = town.channel(at, role).await;
            let mut note = |name: &str, outcome: Outcome| attacks.note(Kind::Read, name, outcome);
            let mut jobs = JobServiceClient::new(channel.clone());
            // Behind everything that was done so far.
            let fresh = Some(muster_client::Read::any().at_least(past).into());
            let get = v1::GetJobRequest { job_id: failed.clone(), read: fresh };
            note("how a job failed", silent(jobs.get_job(get).await.map(|r| r.into_inner()), &failed));
            let explain = v1::ExplainJobRequest { job_id: failed.clone(), read: fresh };
            let answer = jobs.explain_job(explain).await.map(|r| r.into_inner());
            note("how a job failed, explained", silent(answer, ""));
            let then = Some(muster_client::Read::at_log_index(past).into());
            for (name, id) in [("the job, as it was", &victim.id), ("how a job failed, as it was", &failed)] {
                let get = v1::GetJobRequest { job_id: id.clone(), read: then };
                note(name, past_or_silent(jobs.get_job(get).await.map(|r| r.into_inner()), id));
            }
            let list = v1::ListJobsRequest { page_size: 1_000, read: then, ..Default::default() };
            note(
                "a list of the past",
                past_or_silent(jobs.list_jobs(list).await.map(|r| r.into_inner()), ""),
            );
            let explain = v1::ExplainJobRequest { job_id: victim.id.clone(), read: then };
            let answer = jobs.explain_job(explain).await.map(|r| r.into_inner());
            note("an explanation of the past", past_or_silent(answer, ""));
            let plan = v1::PlanJobRequest { job: Some(endless("like-it", "vision", "true")), read: None };
            note("a plan", silent(jobs.plan_job(plan).await.map(|r| r.into_inner()), ""));
            let tenant = v1::WatchJobsRequest {
                filter: Some(v1::JobFilter { tenant: "speech".to_owned(), ..Default::default() }),
                ..Default::default()
            };
            note(
                "a watch of the tenant",
                told_without(&drained(jobs.watch_jobs(tenant).await).await, &failed),
            );
            for previous in [false, true] {
                let output = v1::ReadLogsRequest {
                    job_id: victim.id.clone(),
                    previous,
                    follow: true,
                    ..Default::default()
                };
                note("output, followed", refused(jobs.read_logs(output).await.map(drop)));
            }
            let token = victim.status().placement.as_ref().and_then(|placement| placement.token);
            let output = v1::ReadLogsRequest {
                job_id: victim.id.clone(),
                token,
                from_position: 1,
                ..Default::default()
            };
            note("output, by its token", refused(jobs.read_logs(output).await.map(drop)));
            read_around(channel, &mut note).await;
        }
    }
}

/// A state of the past may not be had; what is had says nothing.
fn past_or_silent(answer: Result<impl Message, tonic::Status>, of: &str) -> Outcome {
    match answer {
        Err(status)
            if matches!(
                status.code(),
                Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded
            ) =>
        {
            Ok(format!("{:?}", status.code()))
        }
        other => silent(other, of),
    }
}

/// Schedules of another tenant: they have its commands in them.
pub(super) async fn reach_schedules(town: &Town, attacks: &mut Table) {
    let mut bob = ScheduleServiceClient::new(town.channel(0, of_tenant("speech", "bob")).await);
    let schedule = v1::Schedule {
        tenant: "speech".to_owned(),
        name: "nightly".to_owned(),
        cron: "0 6 1 1 *".to_owned(),
        job: Some(endless("nightly", "speech", SECRET)),
        ..Default::default()
    };
    let create = v1::CreateScheduleRequest { request_id: request_id(), schedule: Some(schedule.clone()) };
    bob.create_schedule(create).await.expect("it is theirs");
    let which = || ("speech".to_owned(), "nightly".to_owned());
    // As if there were none.
    let hidden = |code: Option<Code>| match code {
        Some(code @ (Code::NotFound | Code::PermissionDenied)) => Ok(format!("{code:?}")),
        other => Err(format!("{other:?}")),
    };
    for at in 0..3 {
        for role in [of_tenant("vision", "eve"), Role::Client(short("spy"))] {
            let mut eve = ScheduleServiceClient::new(town.channel(at, role).await);
            let (tenant, name) = which();
            let get = eve.get_schedule(v1::GetScheduleRequest { tenant, name, read: None }).await;
            attacks.note(Kind::Read, "another tenant's schedule", hidden(get.err().map(|e| e.code())));
            let list = eve.list_schedules(v1::ListSchedulesRequest::default()).await;
            let list = match list {
                Ok(list) if !list.get_ref().schedules.is_empty() => Err(format!("{list:?}")),
                Ok(_) => Ok("left out".to_owned()),
                Err(status) => hidden(Some(status.code())),
            };
            attacks.note(Kind::Read, "a list of schedules", list);
            let (tenant, name) = which();
            let run = v1::RunScheduleRequest { request_id: request_id(), tenant, name };
            let ran = eve.run_schedule(run).await;
            attacks.note(Kind::Forge, "a run of another's schedule", hidden(ran.err().map(|e| e.code())));
            let update =
                v1::UpdateScheduleRequest { request_id: request_id(), schedule: Some(schedule.clone()) };
            let changed = eve.update_schedule(update).await;
            attacks.note(
                Kind::Forge,
                "a change of another's schedule",
                hidden(changed.err().map(|e| e.code())),
            );
            let (tenant, name) = which();
            let delete = v1::DeleteScheduleRequest { request_id: request_id(), tenant, name };
            let gone = eve.delete_schedule(delete).await;
            attacks.note(Kind::Delete, "another tenant's schedule", hidden(gone.err().map(|e| e.code())));
        }
    }
    let (tenant, name) = which();
    let delete = v1::DeleteScheduleRequest { request_id: request_id(), tenant, name };
    bob.delete_schedule(delete).await.expect("it is still there, and theirs");
}

/// What is not about jobs: nothing of it may say what is private to one.
async fn read_around(channel: tonic::transport::Channel, note: &mut impl FnMut(&str, Outcome)) {
    let mut fleet = FleetServiceClient::new(channel.clone());
    let node = v1::GetNodeRequest { node: "h1".to_owned(), ..Default::default() };
    note("the node", silent(fleet.get_node(node).await.map(|r| r.into_inner()), "h1"));
    let nodes = fleet.list_nodes(v1::ListNodesRequest::default()).await.map(|r| r.into_inner());
    note("the nodes", silent(nodes, "h1"));
    let watched = drained(fleet.watch_nodes(v1::WatchNodesRequest::default()).await).await;
    note("a watch of nodes", told_without(&watched, "h1"));
    let health = fleet.get_health_policy(v1::GetHealthPolicyRequest::default()).await;
    note("the rules of health", silent(health.map(|r| r.into_inner()), ""));
    let mut queues = TenantServiceClient::new(channel.clone());
    let list = queues.list_tenants(v1::ListTenantsRequest::default()).await.map(|r| r.into_inner());
    note("the queues", silent(list, "speech"));
    let watched = drained(queues.watch_tenants(v1::WatchTenantsRequest::default()).await).await;
    note("a watch of queues", told_without(&watched, "speech"));
    let policy = PolicyServiceClient::new(channel.clone()).get_policy(v1::GetPolicyRequest::default()).await;
    note("the policy", silent(policy.map(|r| r.into_inner()), "speech"));
    let mut log = HistoryServiceClient::new(channel.clone());
    for decision in ["jobs_submitted", "workers_reported", "job_finished", "gang_placed", "attempt_failed"] {
        let request = v1::ReadDecisionsRequest {
            decisions: vec![decision.to_owned()],
            from_index: 1,
            follow: true,
            raw: true,
            ..Default::default()
        };
        let read = drained(log.read_decisions(request).await).await;
        note(&format!("records {decision}, followed"), told_without(&read, ""));
    }
    let mut cluster = ClusterServiceClient::new(channel);
    let info = cluster.get_server_info(v1::GetServerInfoRequest::default()).await.map(|r| r.into_inner());
    note("what a server says of itself", silent(info, ""));
}

/// Repeats what the victim's tenant asked for, under its own request ids, and asks under ids that others will want.
pub(super) async fn replay(town: &Town, attacks: &mut Table, bob: &Client, victim: &v1::Job) {
    let (id, cancel_id) = (request_id(), request_id());
    let wanted = || endless("asked-once", "speech", "exec sleep 600");
    let asked = v1::SubmitJobRequest { request_id: id.clone(), job: Some(wanted()), validate_only: false };
    let own = bob.submit_job(asked.clone()).await.expect("it is taken").job_ids.remove(0);
    for at in 0..3 {
        for role in [of_tenant("vision", "eve"), Role::Client(short("spy"))] {
            let channel = town.channel(at, role).await;
            let mut jobs = JobServiceClient::new(channel);
            let mut note = |name: &str, outcome: Outcome| attacks.note(Kind::Forge, name, outcome);
            note("a submission, repeated under its id", refused(jobs.submit_job(asked.clone()).await));
            let cancel = v1::CancelJobRequest { request_id: id.clone(), job_id: own.clone() };
            note("a cancellation under another's id", refused(jobs.cancel_job(cancel).await));
            let other = v1::CancelJobRequest { request_id: request_id(), job_id: victim.id.clone() };
            note("a cancellation in a fresh name", refused(forged(&mut jobs, other).await));
        }
        // For her own tenant, under an id that is taken: she learns of no job, and none is made.
        let mut jobs = JobServiceClient::new(town.channel(at, of_tenant("vision", "eve")).await);
        let mine = v1::SubmitJobRequest {
            request_id: id.clone(),
            job: Some(endless("mine", "vision", "true")),
            validate_only: false,
        };
        let answer = jobs.submit_job(mine).await;
        let outcome = match answer {
            Err(status)
                if told_without(status.message().as_bytes(), "").is_ok()
                    && !status.message().contains(&own) =>
            {
                Ok(format!("{:?}", status.code()))
            }
            other => Err(format!("{other:?}").chars().take(300).collect()),
        };
        attacks.note(Kind::Read, "what came of another's request id", outcome);
    }
    let now = bob.get_job(v1::GetJobRequest { job_id: own.clone(), ..Default::default() }).await;
    let phase = now.expect("it is there").job.expect("it is there").phase();
    assert!(!matches!(phase, v1::JobPhase::Failed | v1::JobPhase::Succeeded), "{phase:?}");
    // Its owner still gets the answer of the first time.
    assert_eq!(bob.submit_job(asked).await.expect("it is repeated").job_ids, std::slice::from_ref(&own));
    let cancel = v1::CancelJobRequest { request_id: cancel_id, job_id: own };
    bob.cancel_job(cancel).await.expect("it is theirs");
}

/// As if a replica had passed the call on for the victim's own user.
async fn forged(
    jobs: &mut JobServiceClient<tonic::transport::Channel>,
    cancel: v1::CancelJobRequest,
) -> Result<tonic::Response<v1::CancelJobResponse>, tonic::Status> {
    let mut request = Request::new(cancel);
    let name = MetadataValue::try_from("spiffe://x/tenant/speech/bob").expect("it is text");
    request.metadata_mut().insert("muster-principal", name);
    request.metadata_mut().insert("muster-forwarded", MetadataValue::from_static("1"));
    jobs.cancel_job(request).await
}

/// Asks for more than any answer or message may have.
pub(super) async fn oversize(town: &Town, attacks: &mut Table) {
    let leader = town.cluster.leader().await;
    let channel = town.channel(leader, of_tenant("vision", "eve")).await;
    pages(&channel, attacks).await;
    metadata(&channel, attacks).await;
    large_jobs(&channel, attacks).await;
}

/// Pages larger than a page may be.
async fn pages(channel: &tonic::transport::Channel, attacks: &mut Table) {
    let bad = [Code::InvalidArgument];
    let mut jobs = JobServiceClient::new(channel.clone());
    let size = u32::MAX;
    let mut note = |name: &str, outcome: Outcome| attacks.note(Kind::Exhaust, name, outcome);
    let list = v1::ListJobsRequest { page_size: size, ..Default::default() };
    note("a giant page of jobs", turned_away(jobs.list_jobs(list).await, &bad));
    let list = v1::ListNodesRequest { page_size: size, ..Default::default() };
    let nodes = FleetServiceClient::new(channel.clone()).list_nodes(list).await;
    note("a giant page of nodes", turned_away(nodes, &bad));
    let list = v1::ListTenantsRequest { page_size: size, ..Default::default() };
    let queues = TenantServiceClient::new(channel.clone()).list_tenants(list).await;
    note("a giant page of queues", turned_away(queues, &bad));
    for token in ["x".repeat(1 << 20), "\u{1F980}".repeat(40), "AAAA".to_owned()] {
        let list = v1::ListJobsRequest { page_token: token, ..Default::default() };
        note("a page behind an invented token", turned_away(jobs.list_jobs(list).await, &bad));
    }
    let watch = v1::WatchJobsRequest { resume_token: "x".repeat(1 << 20), ..Default::default() };
    let codes = [Code::InvalidArgument, Code::OutOfRange, Code::FailedPrecondition];
    note("a watch behind an invented token", turned_away(jobs.watch_jobs(watch).await, &codes));
    let log = v1::ReadDecisionsRequest { decisions: vec!["x".to_owned(); 100_000], ..Default::default() };
    let read = HistoryServiceClient::new(channel.clone()).read_decisions(log).await;
    note("a filter of 100,000 names", turned_away(read, &[Code::InvalidArgument, Code::ResourceExhausted]));
}

/// Headers without end: many, and large.
async fn metadata(channel: &tonic::transport::Channel, attacks: &mut Table) {
    for (name, count, bytes) in
        [("metadata of many entries", 20_000, 8), ("metadata of large entries", 64, 60 << 10)]
    {
        let mut request = Request::new(v1::ListJobsRequest::default());
        for number in 0..count {
            let key =
                format!("x-deep-{number}").parse::<tonic::metadata::MetadataKey<_>>().expect("it is a key");
            let value = MetadataValue::try_from("v".repeat(bytes)).expect("it is text");
            request.metadata_mut().insert(key, value);
        }
        let answer = JobServiceClient::new(channel.clone()).list_jobs(request).await;
        let outcome = match answer {
            Ok(_) => Err("it was taken".to_owned()),
            Err(status) => Ok(format!("{:?}: {}", status.code(), status.message())),
        };
        attacks.note(Kind::Exhaust, name, outcome);
    }
}

/// Jobs that keep the bound of a message and break those of what is in it.
async fn large_jobs(channel: &tonic::transport::Channel, attacks: &mut Table) {
    type Change = fn(&mut v1::Job);
    let changes: [(&str, Change); 7] = [
        ("a job of 100,000 groups", |wanted| {
            wanted.spec_mut().groups = vec![v1::TaskGroup::default(); 100_000]
        }),
        ("a job of 100,000 variables", |wanted| {
            wanted.spec_mut().groups[0].environment =
                (0..100_000).map(|n| v1::EnvVar::new(format!("V{n}"), "")).collect();
        }),
        ("a command of three MiB", |wanted| {
            wanted.spec_mut().groups[0].command_mut().push("x".repeat(3 << 20))
        }),
        ("a job for 100,000 regions", |wanted| wanted.spec_mut().regions = vec!["r".to_owned(); 100_000]),
        ("a job that tolerates 100,000 taints", |wanted| {
            wanted.spec_mut().tolerations = vec!["t".to_owned(); 100_000]
        }),
        ("a job that names 100,000 nodes", |wanted| {
            let only = (0..100_000).map(|n| format!("n{n}")).collect();
            wanted.spec_mut().nodes = Some(v1::NodeRequirements { only, ..Default::default() });
        }),
        ("a job with 100,000 tests of labels", |wanted| {
            let expressions = vec![v1::NodeExpression::default(); 100_000];
            wanted.spec_mut().nodes = Some(v1::NodeRequirements { expressions, ..Default::default() });
        }),
    ];
    for (name, change) in changes {
        let mut wanted = endless("large", "vision", "true");
        change(&mut wanted);
        let request =
            v1::SubmitJobRequest { request_id: request_id(), job: Some(wanted), validate_only: false };
        let answer = JobServiceClient::new(channel.clone()).submit_job(request).await;
        attacks.note(Kind::Exhaust, name, turned_away(answer, &[Code::InvalidArgument]));
    }
}
