//! Who asked, in the records of what people asked for, and calls that are recorded outside of the log; through a real listener with
//! certificates and tokens.

use muster_decider::Command;
use muster_engine::HistorySettings;
use muster_journal::REQUESTED_DECISIONS;
use muster_transport::{PeerName, Role, TokenSecret};
use muster_types::{AdmissionMode, HolderId, ReplicaId, TokenRole};
use muster_wire::admin::cluster_admin_service_client::ClusterAdminServiceClient;
use muster_wire::closed::{number_or_zero, of_word};
use muster_wire::convert::token_role_to_proto;
use muster_wire::time::{duration, timestamp};
use muster_wire::v1::booking_service_client::BookingServiceClient;
use muster_wire::v1::fleet_service_client::FleetServiceClient;
use muster_wire::v1::history_service_client::HistoryServiceClient;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::v1::policy_service_client::PolicyServiceClient;
use muster_wire::v1::quota_service_client::QuotaServiceClient;
use muster_wire::v1::read_decisions_response::Event;
use muster_wire::v1::schedule_service_client::ScheduleServiceClient;
use muster_wire::v1::set_node_approval_request::Approval;
use muster_wire::{FieldMask, admin, v1};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;
use tonic::Request;
use tonic::transport::Channel;

use crate::ApiConfig;
use crate::access_tests::{World, guarded, host, of_tenant, short, submission};
use crate::sample::CLUSTER;

/// A moment that is not reached while a test runs: the year 2100.
const NEVER_MS: u64 = 4_102_444_800_000;
/// Decisions that no call here leads to: there is no newer format, and nothing runs, because no agent is here.
const UNTRIED: [&str; 4] = ["exec_opened", "format_raised", "job_requeue_requested", "port_forward_opened"];

/// Ids of requests, each used once.
#[derive(Default)]
struct Ids(u32);

impl Ids {
    fn next(&mut self) -> String {
        self.0 += 1;
        format!("00000000-0000-4000-d000-{:012}", self.0)
    }
}

async fn world() -> World {
    let world = World::with_tenants_under(ApiConfig { tokens: true, ..ApiConfig::DEFAULT }).await;
    for (number, name) in ["h1", "h2"].into_iter().enumerate() {
        let holder = HolderId(number as u128 + 1);
        let command = Command::Register { spec: host(name), holder, other_session_is_over: false };
        world.engine.execute(command).await.expect("a host comes");
    }
    world
}

/// What is asked of jobs and arrays.
async fn ask_of_jobs(channel: Channel, ids: &mut Ids) {
    let mut jobs = JobServiceClient::new(channel);
    let waiting = |number, array| {
        let mut request = submission("vision", number);
        let job = request.job.as_mut().expect("it has one");
        job.labels = [("team".to_owned(), "a".to_owned())].into();
        job.spec_mut().not_before = Some(timestamp(NEVER_MS));
        job.spec_mut().array = array;
        request
    };
    let answer = guarded("a job", jobs.submit_job(waiting(1, None))).await.expect("it is taken");
    let job_id = answer.into_inner().job_ids.remove(0);
    let sized = v1::JobArray { size: 3_000, throttle: Some(2), ..Default::default() };
    let answer = guarded("an array", jobs.submit_job(waiting(2, Some(sized)))).await.expect("it is taken");
    let array_id = answer.into_inner().job_ids[0].replace("job-", "array-");
    let named = v1::JobFilter { job_ids: vec![job_id.clone()], ..Default::default() };
    let labelled = v1::JobFilter { label_selector: "team=a".to_owned(), ..Default::default() };
    for filter in [named, labelled] {
        let selector = Some(v1::JobSelector { filter: Some(filter), ..Default::default() });
        let hold = v1::HoldJobsRequest { request_id: ids.next(), selector, validate_only: false };
        guarded("a hold", jobs.hold_jobs(hold)).await.expect("an operator may");
    }
    let throttle = v1::JobArray { throttle: Some(5), ..Default::default() };
    let throttle = v1::JobSpec { array: Some(throttle), ..Default::default() };
    let labels = v1::Job { labels: [("team".to_owned(), "b".to_owned())].into(), ..Default::default() };
    for (job_id, job, path) in [
        (job_id.clone(), labels, "labels"),
        (array_id, v1::Job { spec: Some(throttle), ..Default::default() }, "spec.array.throttle"),
    ] {
        let update = v1::UpdateJobRequest {
            request_id: ids.next(),
            job_id,
            job: Some(job),
            update_mask: Some(FieldMask { paths: vec![path.to_owned()] }),
            ..Default::default()
        };
        guarded("a change", jobs.update_job(update)).await.expect("an operator may");
    }
    let cancel = v1::CancelJobRequest { request_id: ids.next(), job_id };
    guarded("the end", jobs.cancel_job(cancel)).await.expect("an operator may");
}

/// What is asked of schedules.
async fn ask_of_schedules(channel: Channel, ids: &mut Ids) {
    let mut schedules = ScheduleServiceClient::new(channel);
    let (tenant, name) = ("vision".to_owned(), "nightly".to_owned());
    let schedule = v1::Schedule {
        tenant: tenant.clone(),
        name: name.clone(),
        cron: "0 6 1 1 *".to_owned(),
        time_zone: "Europe/Berlin".to_owned(),
        job: submission("vision", 3).job,
        ..Default::default()
    };
    let create = v1::CreateScheduleRequest { request_id: ids.next(), schedule: Some(schedule) };
    let made = guarded("a schedule", schedules.create_schedule(create)).await.expect("an operator may");
    assert_eq!(made.into_inner().schedule.expect("it is there").owner, "admin/root");
    let suspend = v1::SuspendScheduleRequest {
        request_id: ids.next(),
        tenant: tenant.clone(),
        name: name.clone(),
        reason: "the data moves".to_owned(),
    };
    guarded("a suspension", schedules.suspend_schedule(suspend)).await.expect("an operator may");
    let read = v1::GetScheduleRequest { tenant: tenant.clone(), name: name.clone(), read: None };
    let shown = guarded("a schedule", schedules.get_schedule(read)).await.expect("an operator may");
    let shown = shown.into_inner().schedule.expect("it is there");
    assert_eq!(shown.suspension.expect("it is suspended").reason, "the data moves");
    let delete = v1::DeleteScheduleRequest { request_id: ids.next(), tenant, name };
    guarded("the end", schedules.delete_schedule(delete)).await.expect("an operator may");
}

/// What is asked of nodes.
async fn ask_of_nodes(channel: Channel, ids: &mut Ids) {
    let mut fleet = FleetServiceClient::new(channel);
    let h1 = || "h1".to_owned();
    let cordon = v1::CordonNodeRequest { request_id: ids.next(), node: h1(), ..Default::default() };
    guarded("a cordon", fleet.cordon_node(cordon)).await.expect("an operator may");
    let drain = v1::DrainNodeRequest { request_id: ids.next(), node: h1(), ..Default::default() };
    guarded("a drain", fleet.drain_node(drain)).await.expect("an operator may");
    let quarantine =
        v1::QuarantineNodeRequest { request_id: ids.next(), node: h1(), reason: "loud".to_owned() };
    guarded("a quarantine", fleet.quarantine_node(quarantine)).await.expect("an operator may");
    let repair = v1::BeginNodeRepairRequest { request_id: ids.next(), node: h1(), ..Default::default() };
    guarded("a repair", fleet.begin_node_repair(repair)).await.expect("an operator may");
    let labels = v1::SetNodeLabelsRequest {
        request_id: ids.next(),
        node: h1(),
        set_labels: [("team".to_owned(), "a".to_owned())].into(),
        ..Default::default()
    };
    guarded("labels", fleet.set_node_labels(labels)).await.expect("an operator may");
    let target = v1::HoldTarget { region: "nowhere".to_owned(), ..Default::default() };
    let hold = v1::SetFleetHoldRequest {
        request_id: ids.next(),
        target: Some(target),
        held: Some(true),
        reason: "a flood".to_owned(),
        ..Default::default()
    };
    let held = guarded("a hold", fleet.set_fleet_hold(hold)).await.expect("an operator may").into_inner();
    assert_eq!(
        held.hold.map(|hold| (hold.reason, hold.creator)),
        Some(("a flood".to_owned(), "admin/root".to_owned()))
    );
    let listed = fleet.list_fleet_holds(v1::ListFleetHoldsRequest::default());
    assert_eq!(guarded("the holds", listed).await.expect("all may look").into_inner().holds.len(), 1);
    let forget = v1::ForgetNodeRequest { node: "h2".to_owned(), request_id: ids.next() };
    guarded("a node", fleet.forget_node(forget)).await.expect("it is lost");
    let admission = v1::SetNodeAdmissionRequest {
        request_id: ids.next(),
        mode: number_or_zero(of_word::<AdmissionMode>("pinned")),
        ..Default::default()
    };
    guarded("an admission", fleet.set_node_admission(admission)).await.expect("an operator may");
    let approval = v1::SetNodeApprovalRequest {
        request_id: ids.next(),
        name: "h3".to_owned(),
        approval: Some(Approval::Reject(v1::RejectNode {})),
    };
    guarded("an approval", fleet.set_node_approval(approval)).await.expect("an operator may");
    let read = fleet.get_health_policy(v1::GetHealthPolicyRequest::default());
    let policy = guarded("a health policy", read).await.expect("all may look").into_inner().policy;
    let set = v1::SetHealthPolicyRequest { request_id: ids.next(), policy, ..Default::default() };
    guarded("a health policy", fleet.set_health_policy(set)).await.expect("an operator may");
}

/// What is asked of the cluster itself; a token of an operator that is made on the way.
async fn ask_of_cluster(channel: Channel, ids: &mut Ids) -> TokenSecret {
    let mut policies = PolicyServiceClient::new(channel.clone());
    let price = v1::Price {
        r#type: "h100".to_owned(),
        micro_dollars_per_device_hour: 2_000_000,
        ..Default::default()
    };
    let update = v1::UpdatePolicyRequest {
        request_id: ids.next(),
        policy: Some(v1::Policy { prices: vec![price], ..Default::default() }),
        update_mask: Some(FieldMask { paths: vec!["prices".to_owned()] }),
        ..Default::default()
    };
    guarded("a policy", policies.update_policy(update)).await.expect("an operator may");
    let mut cluster = ClusterAdminServiceClient::new(channel);
    let certificate = admin::RevokedCertificate {
        serial: "0badcafe".to_owned(),
        holder: "tenant/speech/bob".to_owned(),
        expire_time: Some(timestamp(NEVER_MS)),
    };
    let revoke = admin::RevokeCertificateRequest { request_id: ids.next(), certificate: Some(certificate) };
    guarded("a revocation", cluster.revoke_certificate(revoke)).await.expect("an operator may");
    let tokens = ["kept", "revoked"].map(|name| (name, TokenSecret::generate().expect("a secret")));
    for (name, secret) in &tokens {
        let token = admin::Token {
            id: secret.id().to_string(),
            name: (*name).to_owned(),
            user: "ops".to_owned(),
            role: token_role_to_proto(TokenRole::Operator).into(),
            ..Default::default()
        };
        let create = admin::CreateTokenRequest {
            request_id: ids.next(),
            token: Some(token),
            lifetime: Some(duration(3_600_000)),
            secret_sha256: secret.sha256().to_vec(),
        };
        guarded("a token", cluster.create_token(create)).await.expect("an operator may");
    }
    let revoke = admin::RevokeTokenRequest { request_id: ids.next(), id: tokens[1].1.id().to_string() };
    guarded("a token", cluster.revoke_token(revoke)).await.expect("an operator may");
    let [(_, kept), _] = tokens;
    kept
}

/// Quota of a type that the policy names by now: asked for, granted, and ended.
async fn ask_of_quota(channel: Channel, ids: &mut Ids) {
    let mut quotas = QuotaServiceClient::new(channel);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is past 1970");
    let now_ms = u64::try_from(now.as_millis()).expect("it is before the year 584542046");
    let grant = v1::QuotaGrant {
        tenant: "vision".to_owned(),
        r#type: "h100".to_owned(),
        amount_milli: 1_000,
        end_time: Some(timestamp(now_ms + 3_600_000)),
        reason: "a deadline".to_owned(),
        ..Default::default()
    };
    let request =
        v1::RequestQuotaRequest { request_id: ids.next(), grant: Some(grant.clone()), ..Default::default() };
    let asked = guarded("a request", quotas.request_quota(request)).await.expect("everybody may");
    let id = asked.into_inner().grant.expect("it is recorded").id;
    let answer = v1::AnswerQuotaRequest {
        request_id: ids.next(),
        id,
        approve: Some(true),
        reason: "agreed".to_owned(),
    };
    guarded("an answer", quotas.answer_quota(answer)).await.expect("an operator may");
    let give = v1::GrantQuotaRequest { request_id: ids.next(), grant: Some(grant), ..Default::default() };
    guarded("a grant", quotas.grant_quota(give)).await.expect("an operator may");
}

/// A booking of a node that is there: made, and given up.
async fn ask_of_bookings(channel: Channel, ids: &mut Ids) {
    let mut bookings = BookingServiceClient::new(channel);
    let name = "demo".to_owned();
    let spec = v1::BookingSpec {
        tenant: "vision".to_owned(),
        shape: Some(v1::BookingShape { nodes: vec!["h1".to_owned()], ..Default::default() }),
        length: Some(duration(3_600_000)),
        ..Default::default()
    };
    let create = v1::CreateBookingRequest { request_id: ids.next(), name: name.clone(), spec: Some(spec) };
    guarded("a booking", bookings.create_booking(create)).await.expect("an operator may");
    let delete = v1::DeleteBookingRequest { request_id: ids.next(), name };
    guarded("its end", bookings.delete_booking(delete)).await.expect("an operator may");
}

/// Every record so far that somebody asked for.
pub(crate) async fn records(world: &World, channel: Channel) -> Vec<(String, Value)> {
    world.engine.keep_history(HistorySettings::new(None));
    let mut history = HistoryServiceClient::new(channel);
    let request = v1::ReadDecisionsRequest {
        to_index: world.engine.view().log_index().0,
        follow: true,
        decisions: REQUESTED_DECISIONS.map(str::to_owned).to_vec(),
        ..Default::default()
    };
    let opened = guarded("a stream", async {
        loop {
            match history.read_decisions(request.clone()).await {
                Ok(opened) => return opened.into_inner(),
                // What is in the log is looked through first.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    });
    let mut stream = opened.await;
    let mut records = Vec::new();
    while let Some(message) = guarded("the log", stream.message()).await.expect("it goes on") {
        if let Some(Event::Record(record)) = message.event {
            let content = serde_json::from_str(&record.content_json).expect("it is JSON");
            records.push((record.decision, content));
        }
    }
    records
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_record_that_a_call_leads_to_names_its_caller() {
    let world = world().await;
    let root = world.channel(Role::Admin(short("root"))).await;
    let lost = Command::SessionOver { node: muster_types::NodeId(1), incarnation: 1 };
    world.engine.execute(lost).await.expect("its session is over");
    let mut ids = Ids::default();
    ask_of_jobs(root.clone(), &mut ids).await;
    ask_of_schedules(root.clone(), &mut ids).await;
    let secret = ask_of_cluster(root.clone(), &mut ids).await;
    ask_of_quota(root.clone(), &mut ids).await;
    ask_of_bookings(root.clone(), &mut ids).await;
    ask_of_nodes(root.clone(), &mut ids).await;
    // The holder of a token is told apart by its id.
    let mut uncordon =
        Request::new(v1::UncordonNodeRequest { request_id: ids.next(), node: "h1".to_owned() });
    let bearer = format!("Bearer {}", secret.reveal()).parse().expect("it is ASCII");
    uncordon.metadata_mut().insert("authorization", bearer);
    let mut fleet = FleetServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    guarded("an end", fleet.uncordon_node(uncordon)).await.expect("its token may");

    let records = records(&world, root).await;
    let by_token = Value::from(format!("all-tenants/ops+token/{}", secret.id()));
    let mut seen = BTreeSet::new();
    for (decision, content) in &records {
        let by = &content["by"]["name"];
        if content["request"].is_null() {
            // What the leader decided because of it names the same, or nobody.
            assert!(by == "admin/root" || by == "", "{decision}: {content}");
            continue;
        }
        let is_token = decision == "node_cordon_set" && content["cordoned"] == false;
        let expected = if is_token { by_token.clone() } else { Value::from("admin/root") };
        assert_eq!(*by, expected, "{decision}: {content}");
        assert_eq!(content["by"]["is_operator"], true, "{decision}: {content}");
        assert_eq!(content["by"]["address"], "127.0.0.1", "{decision}: {content}");
        seen.insert(decision.as_str());
    }
    seen.extend(UNTRIED);
    assert_eq!(seen, REQUESTED_DECISIONS.into_iter().collect::<BTreeSet<_>>(), "every kind was made");
}

/// From where a call comes is what the replica sees that takes it. It passes that on to the leader, which believes it of replicas alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_says_from_where_a_call_came() {
    let world = world().await;
    let role = Role::Admin(short("root"));
    let root = world.channel(role).await;
    let replica = world.channel(Role::Replica(ReplicaId(1))).await;
    let name = PeerName { cluster: CLUSTER, role }.to_string();
    let mut ids = Ids::default();
    let long = format!("{}192.0.2.7", "0".repeat(45));
    for (channel, is_replica, said) in [
        (&root, false, "203.0.113.9"),
        (&replica, true, "203.0.113.9"),
        (&replica, true, "2001:db8::7"),
        (&replica, true, "::ffff:192.0.2.7"),
        (&replica, true, "a.example"),
        (&replica, true, long.as_str()),
    ] {
        let cordon =
            v1::CordonNodeRequest { request_id: ids.next(), node: "h1".to_owned(), reason: String::new() };
        let mut cordon = Request::new(cordon);
        cordon.metadata_mut().insert("muster-client-address", said.parse().expect("it is ASCII"));
        if is_replica {
            cordon.metadata_mut().insert("muster-principal", name.parse().expect("a name is ASCII"));
            cordon.metadata_mut().insert("muster-forwarded", "1".parse().expect("a digit is ASCII"));
        }
        let mut fleet = FleetServiceClient::new(channel.clone());
        guarded("a cordon", fleet.cordon_node(cordon)).await.expect("an operator may");
    }
    let records = records(&world, root).await;
    let cordons = records.iter().filter(|(decision, _)| decision == "node_cordon_set");
    let shown: Vec<Option<&str>> = cordons.map(|(_, content)| content["by"]["address"].as_str()).collect();
    let said = [Some("127.0.0.1"), Some("203.0.113.9"), Some("2001:db8::7"), Some("192.0.2.7"), None, None];
    assert_eq!(shown, said);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_denied_is_recorded_with_who_and_why() {
    let world = world().await;
    let mut eve = JobServiceClient::new(world.channel(Role::Client(short("eve"))).await);
    guarded("an answer", eve.submit_job(submission("vision", 1))).await.expect_err("it may look alone");
    let mut bob = JobServiceClient::new(world.channel(of_tenant("speech", "bob")).await);
    guarded("an answer", bob.submit_job(submission("vision", 2))).await.expect_err("another tenant's");
    guarded("an answer", bob.list_jobs(v1::ListJobsRequest::default())).await.expect("all may look");
    let mut forged = Request::new(v1::ListJobsRequest::default());
    forged.metadata_mut().insert("authorization", "Bearer muster_1".parse().expect("it is ASCII"));
    guarded("an answer", bob.list_jobs(forged)).await.expect_err("it is no token");

    let mut recorded = world.recorded.lock().await;
    for (caller, call, code, reason) in [
        ("client/eve", "SubmitJob", "PERMISSION_DENIED", "may not call"),
        ("tenant/speech/bob", "SubmitJob", "PERMISSION_DENIED", "not for vision"),
        ("tenant/speech/bob", "ListJobs", "UNAUTHENTICATED", "not accepted"),
    ] {
        let told = recorded.waiting().expect("it is recorded");
        assert_eq!(told.caller.to_string(), caller, "{told:?}");
        assert_eq!(told.call, format!("muster.v1beta1.JobService/{call}"), "{told:?}");
        assert_eq!(told.code, code, "{told:?}");
        assert!(told.reason.contains(reason) && told.address.is_loopback(), "{told:?}");
    }
    assert_eq!(recorded.waiting(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submission_that_is_denied_within_a_stream_is_recorded_too() {
    let world = world().await;
    let mut bob = JobServiceClient::new(world.channel(of_tenant("speech", "bob")).await);
    let sent = |number: u32, tenant: &str| v1::SubmitStreamRequest {
        sequence: number.into(),
        submission: Some(submission(tenant, number)),
    };
    let submissions = tokio_stream::iter([sent(1, "vision"), sent(2, "speech")]);
    let opened = guarded("a stream", bob.submit_stream(submissions)).await.expect("it opens");
    let mut answers = opened.into_inner();
    let mut count = 0;
    while guarded("an answer", answers.message()).await.expect("it goes on").is_some() {
        count += 1;
    }
    assert_eq!(count, 2);
    let mut recorded = world.recorded.lock().await;
    let told = recorded.waiting().expect("it is recorded");
    assert_eq!(
        (told.caller.to_string().as_str(), told.code),
        ("tenant/speech/bob", "PERMISSION_DENIED"),
        "{told:?}"
    );
    assert_eq!(told.call, "muster.v1beta1.JobService/SubmitStream", "{told:?}");
    assert!(told.reason.contains("not for vision") && told.address.is_loopback(), "{told:?}");
    assert_eq!(recorded.waiting(), None, "the other one is not denied");
}
