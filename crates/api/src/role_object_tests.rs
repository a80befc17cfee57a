//! Every call about an object that somebody owns, by every role, about an own, a foreign and an absent one: what `role_tests` does not try.

use muster_decider::{Answer, BookingOrder, Command, QuotaOrder, ScheduleOrder};
use muster_transport::Role;
use muster_types::{RefusalCode, RequestId, Requester, TokenRole};
use muster_wire::convert::{
    booking_spec_from_proto, quota_grant_from_proto, schedule_from_proto, token_role_to_proto,
};
use muster_wire::time::{duration, timestamp};
use muster_wire::v1::policy_service_client::PolicyServiceClient;
use muster_wire::{FieldMask, admin, v1};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tonic::Status;

use crate::access::RULES;
use crate::access_tests::{World, guarded, short, submission};
use crate::role_tests::{
    Caller, FOREIGN, WHICH, anonymous, assert_right, call, callers, code, is_denied_by_role, made, next_id,
    objects, world,
};

const OWN: usize = 0;
const ABSENT: usize = 2;

/// Calls about an object that are tried here and in `role_tests`.
const TRIED: &[&str] = &[
    // Jobs.
    "CancelJob",
    "CancelJobs",
    "CommitCheckpoint",
    "ExecWorker",
    "ExplainJob",
    "ForwardPort",
    "GetJob",
    "HoldJobs",
    "ReadLogs",
    "ReleaseJobs",
    "RequeueJobs",
    "SubmitJob",
    "SubmitJobs",
    "SuspendJobs",
    "UpdateJob",
    // Nodes, and replicas of a region.
    "BeginNodeRepair",
    "CancelNodeDrain",
    "CordonNode",
    "DrainNode",
    "EndDrill",
    "FinishNodeRepair",
    "ForgetNode",
    "ProbeNodes",
    "QuarantineNode",
    "ReleaseNode",
    "SetNodeLabels",
    "TransferLeadership",
    "UncordonNode",
    // Schedules.
    "CreateSchedule",
    "DeleteSchedule",
    "GetSchedule",
    "ResumeSchedule",
    "RunSchedule",
    "SuspendSchedule",
    "UpdateSchedule",
    // Bookings.
    "CreateBooking",
    "DeleteBooking",
    "GetBooking",
    "PlanBooking",
    // Quota.
    "AnswerQuota",
    "GrantQuota",
    "RequestQuota",
    // Tokens.
    "CreateToken",
    "RevokeToken",
];

/// Calls about nothing that a tenant or a region owns, lists, what an agent does for its node (`access_tests`), and two that look at each job as
/// calls that are tried do: `SubmitStream` as `SubmitJobs`, and `GetArray` as `GetJob`.
const OF_NO_OBJECT: &[&str] = &[
    "AddReplica",
    "AnnounceDrill",
    "ChangeVoters",
    "Check",
    "CreateBackup",
    "GetArchiveStatus",
    "GetArray",
    "GetDrill",
    "GetHealthPolicy",
    "GetNode",
    "GetNodeAdmission",
    "GetPolicy",
    "GetServerInfo",
    "GetStatus",
    "ListArrays",
    "ListBookings",
    "ListCapacity",
    "ListDeniedCalls",
    "ListFleetHolds",
    "ListJobs",
    "ListLicences",
    "ListNodes",
    "ListNotifications",
    "ListPendingNodes",
    "ListQuotaGrants",
    "ListRevokedCertificates",
    "ListSchedules",
    "ListTenants",
    "ListTokens",
    "PlanJob",
    "PromoteReplica",
    "RaiseFormat",
    "ReadDecisions",
    "ReadRounds",
    "RefuseTraffic",
    "RelayExec",
    "RemoveReplica",
    "ReplaceReplica",
    "RevokeCertificate",
    "ServerReflectionInfo",
    "Session",
    "SetFleetHold",
    "SetHealthPolicy",
    "SetNodeAdmission",
    "SetNodeApproval",
    "SetPolicy",
    "SubmitStream",
    "UpdatePolicy",
    "UploadLogs",
    "Watch",
    "WatchJobs",
    "WatchNodes",
    "WatchTenants",
];

/// A new call is tried about an own, a foreign and an absent object, or is about none.
#[test]
fn every_call_is_tried_about_an_object_or_is_about_none() {
    let named: BTreeSet<&str> = TRIED.iter().chain(OF_NO_OBJECT).copied().collect();
    assert_eq!(named.len(), TRIED.len() + OF_NO_OBJECT.len(), "one is in both, or twice");
    let served = RULES.iter().map(|rule| rule.path.rsplit('/').next().expect("a path"));
    assert_eq!(named, served.collect::<BTreeSet<_>>());
}

/// What each answer has to be: `denied` has the codes with which a caller that is bound to another tenant is refused, and none where
/// everybody may look. `absent` is the code of what is not there.
fn assert_reach(
    (caller, path, which): (&Caller, &str, usize),
    denied: &[RefusalCode],
    absent: RefusalCode,
    answer: &Result<(), Status>,
) {
    let shown = format!("{} {path} {}: {answer:?}", caller.label, WHICH[which]);
    let found = code(answer);
    if !caller.has(path) {
        assert!(is_denied_by_role(answer), "{shown}");
        return;
    }
    assert!(!is_denied_by_role(answer), "{shown}");
    if which == ABSENT {
        assert_eq!(found, Some(absent), "{shown}");
    } else if which == FOREIGN && caller.is_of_tenant() && !denied.is_empty() {
        assert!(found.is_some_and(|found| denied.contains(&found)), "{shown}");
    } else {
        assert!(found != Some(RefusalCode::PermissionDenied) && found != Some(absent), "{shown}");
    }
}

fn request() -> RequestId {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    RequestId(u128::from(500_000 + NUMBER.fetch_add(1, Ordering::Relaxed)))
}

fn operator() -> Requester {
    Requester::named("admin/root".to_owned(), true)
}

fn name(text: &str) -> muster_types::Name {
    muster_types::Name::new(text).expect("a name")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_and_more_that_is_done_with_jobs() {
    let (world, key) = world().await;
    let channel = anonymous(&world).await;
    let objects = objects(&world).await;
    for caller in callers(&world, &key).await {
        for which in 0..WHICH.len() {
            let is_foreign_denied = caller.is_of_tenant();
            let job_id = || objects.jobs[which].clone();
            macro_rules! ask {
                ($method:literal, $message:expr) => {{
                    let path = concat!("/muster.v1beta1.JobService/", $method);
                    let answer = call(&channel, path, &caller.bearer, $message).await;
                    assert_right(&caller, path, which, is_foreign_denied, &answer);
                }};
            }
            let start = v1::ForwardPortStart { job_id: job_id(), port: 6_006, ..Default::default() };
            let message = Some(v1::forward_port_request::Message::Start(start));
            ask!("ForwardPort", v1::ForwardPortRequest { message });
            let labels = v1::Job { labels: [("a".to_owned(), "b".to_owned())].into(), ..Default::default() };
            let update = v1::UpdateJobRequest {
                job_id: job_id(),
                job: Some(labels),
                update_mask: Some(FieldMask { paths: vec!["labels".to_owned()] }),
                validate_only: true,
                ..Default::default()
            };
            ask!("UpdateJob", update);
            // Whether there is output is for the agent of a node to say, and none is here.
            if which == FOREIGN && is_foreign_denied {
                ask!("ReadLogs", v1::ReadLogsRequest { job_id: job_id(), ..Default::default() });
            }
            if which != ABSENT {
                let jobs = submission(objects.tenants[which], 0).job.into_iter().collect();
                ask!(
                    "SubmitJobs",
                    v1::SubmitJobsRequest { request_id: next_id(), jobs, validate_only: true }
                );
            }
        }
    }
}

fn schedule(tenant: &str, schedule: &str) -> v1::Schedule {
    v1::Schedule {
        tenant: tenant.to_owned(),
        name: schedule.to_owned(),
        cron: "0 6 1 1 *".to_owned(),
        time_zone: "UTC".to_owned(),
        job: submission(tenant, 3).job,
        ..Default::default()
    }
}

/// Both tenants have one of these from now on.
async fn have_schedules(world: &World) {
    for tenant in ["vision", "speech"] {
        let schedule =
            schedule_from_proto("schedule", Some(schedule(tenant, "nightly"))).expect("it is good");
        if world.engine.view().schedule(&schedule.key).is_some() {
            continue;
        }
        let (acts_for, role) = (None, None);
        let order =
            ScheduleOrder { request: request(), by: operator(), acts_for, role, schedule, is_new: true };
        world.engine.execute(Command::SetSchedule(Box::new(order))).await.expect("it is made");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_and_schedules_that_are_its_own_of_others_and_not_there() {
    let (world, key) = world().await;
    let channel = anonymous(&world).await;
    objects(&world).await;
    let which_of = [("vision", "nightly"), ("speech", "nightly"), ("vision", "absent")];
    for caller in callers(&world, &key).await {
        for (which, (of, named)) in which_of.into_iter().enumerate() {
            have_schedules(&world).await;
            let (tenant, name) = (|| of.to_owned(), || named.to_owned());
            macro_rules! ask {
                ($method:literal, $denied:expr, $message:expr) => {{
                    let path = concat!("/muster.v1beta1.ScheduleService/", $method);
                    let answer = call(&channel, path, &caller.bearer, $message).await;
                    assert_reach((&caller, path, which), $denied, RefusalCode::ScheduleNotFound, &answer);
                }};
            }
            let unseen = &[RefusalCode::ScheduleNotFound];
            if which != ABSENT {
                let create =
                    v1::CreateScheduleRequest { request_id: next_id(), schedule: Some(schedule(of, named)) };
                ask!("CreateSchedule", &[RefusalCode::PermissionDenied], create);
            }
            let update =
                v1::UpdateScheduleRequest { request_id: next_id(), schedule: Some(schedule(of, named)) };
            ask!("UpdateSchedule", unseen, update);
            let get = v1::GetScheduleRequest { tenant: tenant(), name: name(), read: None };
            ask!("GetSchedule", unseen, get);
            let reason = "a test".to_owned();
            let suspend =
                v1::SuspendScheduleRequest { request_id: next_id(), tenant: tenant(), name: name(), reason };
            ask!("SuspendSchedule", unseen, suspend);
            let resume = v1::ResumeScheduleRequest { request_id: next_id(), tenant: tenant(), name: name() };
            ask!("ResumeSchedule", unseen, resume);
            let run = v1::RunScheduleRequest { request_id: next_id(), tenant: tenant(), name: name() };
            ask!("RunSchedule", unseen, run);
            let delete = v1::DeleteScheduleRequest { request_id: next_id(), tenant: tenant(), name: name() };
            ask!("DeleteSchedule", unseen, delete);
        }
    }
}

fn booking(tenant: &str, node: &str) -> v1::BookingSpec {
    v1::BookingSpec {
        tenant: tenant.to_owned(),
        shape: Some(v1::BookingShape { nodes: vec![node.to_owned()], ..Default::default() }),
        length: Some(duration(3_600_000)),
        reason: "a test".to_owned(),
        ..Default::default()
    }
}

/// Both tenants have one from now on.
async fn have_bookings(world: &World) {
    for (named, tenant, node) in [("own", "vision", "h1"), ("foreign", "speech", "h2")] {
        let named = name(named);
        if world.engine.view().booking(&named).is_some() {
            continue;
        }
        let spec = booking_spec_from_proto(Some(booking(tenant, node))).expect("it is good");
        let order = BookingOrder { request: request(), by: operator(), acts_for: None, name: named, spec };
        world.engine.execute(Command::CreateBooking(Box::new(order))).await.expect("it is made");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_and_bookings_that_are_its_own_of_others_and_not_there() {
    let (world, key) = world().await;
    let channel = anonymous(&world).await;
    objects(&world).await;
    for caller in callers(&world, &key).await {
        for (which, named) in WHICH.into_iter().enumerate() {
            have_bookings(&world).await;
            macro_rules! ask {
                ($method:literal, $denied:expr, $message:expr) => {{
                    let path = concat!("/muster.v1beta1.BookingService/", $method);
                    let answer = call(&channel, path, &caller.bearer, $message).await;
                    assert_reach((&caller, path, which), $denied, RefusalCode::BookingNotFound, &answer);
                }};
            }
            let get = v1::GetBookingRequest { name: named.to_owned(), read: None };
            ask!("GetBooking", &[], get);
            // A tenant books with a right of the policy, which none has here.
            if which == FOREIGN || (which == OWN && !caller.is_of_tenant()) {
                let (tenant, node) = if which == OWN { ("vision", "h1") } else { ("speech", "h2") };
                let (new, spec) = (|| "another".to_owned(), || Some(booking(tenant, node)));
                let plan = v1::PlanBookingRequest { name: new(), spec: spec(), read: None };
                ask!("PlanBooking", &[RefusalCode::PermissionDenied], plan);
                let create = v1::CreateBookingRequest { request_id: next_id(), name: new(), spec: spec() };
                ask!("CreateBooking", &[RefusalCode::PermissionDenied], create);
            }
            let delete = v1::DeleteBookingRequest { request_id: next_id(), name: named.to_owned() };
            ask!("DeleteBooking", &[RefusalCode::BookingNotFound], delete);
        }
    }
}

/// One device for an hour from now on.
fn grant(tenant: &str) -> v1::QuotaGrant {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let now_ms = u64::try_from(now.as_millis()).expect("before the year 584542046");
    v1::QuotaGrant {
        tenant: tenant.to_owned(),
        r#type: "h100".to_owned(),
        amount_milli: 1_000,
        end_time: Some(timestamp(now_ms + 3_600_000)),
        reason: "a test".to_owned(),
        ..Default::default()
    }
}

/// The policy names a type of accelerators from now on.
async fn name_a_type(world: &World) {
    let price = v1::Price {
        r#type: "h100".to_owned(),
        micro_dollars_per_device_hour: 2_000_000,
        ..Default::default()
    };
    let update = v1::UpdatePolicyRequest {
        request_id: next_id(),
        policy: Some(v1::Policy { prices: vec![price], ..Default::default() }),
        update_mask: Some(FieldMask { paths: vec!["prices".to_owned()] }),
        ..Default::default()
    };
    let mut policies = PolicyServiceClient::new(world.channel(Role::Admin(short("root"))).await);
    guarded("a policy", policies.update_policy(update)).await.expect("an operator may");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_and_quota_of_its_tenant_of_others_and_not_there() {
    let (world, key) = world().await;
    let channel = anonymous(&world).await;
    name_a_type(&world).await;
    for caller in callers(&world, &key).await {
        // Below the tenant of those who are bound to one, and of another one.
        for (which, tenant) in ["video", "speech", "video"].into_iter().enumerate() {
            macro_rules! ask {
                ($method:literal, $denied:expr, $message:expr) => {{
                    let path = concat!("/muster.v1beta1.QuotaService/", $method);
                    let answer = call(&channel, path, &caller.bearer, $message).await;
                    let absent = RefusalCode::QuotaRequestNotFound;
                    assert_reach((&caller, path, which), $denied, absent, &answer);
                }};
            }
            let mut id = u64::MAX;
            if which != ABSENT {
                let denied = &[RefusalCode::PermissionDenied];
                let asked = v1::RequestQuotaRequest {
                    grant: Some(grant(tenant)),
                    validate_only: true,
                    ..Default::default()
                };
                ask!("RequestQuota", denied, asked);
                let give = v1::GrantQuotaRequest {
                    grant: Some(grant(tenant)),
                    validate_only: true,
                    ..Default::default()
                };
                ask!("GrantQuota", denied, give);
                let wanted = quota_grant_from_proto("grant", Some(&grant(tenant))).expect("it is good");
                let order = QuotaOrder { request: request(), by: operator(), acts_for: None, grant: wanted };
                let made = world.engine.execute(Command::RequestQuota(Box::new(order))).await;
                let Answer::Done { at } = made.expect("it is recorded") else {
                    panic!("it is no submission")
                };
                id = at.0;
            }
            let reason = "a test".to_owned();
            let deny = v1::AnswerQuotaRequest { request_id: next_id(), id, approve: Some(false), reason };
            ask!("AnswerQuota", &[RefusalCode::QuotaRequestNotFound], deny);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_and_tokens_of_its_tenant_of_others_and_not_there() {
    let (world, key) = world().await;
    let channel = anonymous(&world).await;
    let mut number = 1_000;
    for caller in callers(&world, &key).await {
        for (which, tenant) in ["vision", "speech", "vision"].into_iter().enumerate() {
            macro_rules! ask {
                ($method:literal, $denied:expr, $message:expr) => {{
                    let path = concat!("/muster.admin.v1beta1.ClusterAdminService/", $method);
                    let answer = call(&channel, path, &caller.bearer, $message).await;
                    let absent = RefusalCode::TokenNotFound;
                    assert_reach((&caller, path, which), $denied, absent, &answer);
                }};
            }
            let mut id = "00000000000000aa".to_owned();
            if which != ABSENT {
                number += 1;
                let secret = muster_transport::TokenSecret::generate().expect("there is randomness");
                let token = admin::Token {
                    id: secret.id().to_string(),
                    name: format!("new-{number}"),
                    user: "ada".to_owned(),
                    role: token_role_to_proto(TokenRole::Viewer).into(),
                    tenant: tenant.to_owned(),
                    ..Default::default()
                };
                let create = admin::CreateTokenRequest {
                    request_id: next_id(),
                    token: Some(token),
                    lifetime: Some(duration(3_600_000)),
                    secret_sha256: secret.sha256().to_vec(),
                };
                ask!("CreateToken", &[RefusalCode::PermissionDenied], create);
                id = made(&world, number, TokenRole::Viewer, Some(tenant), None).await.id().to_string();
            }
            let revoke = admin::RevokeTokenRequest { request_id: next_id(), id };
            ask!("RevokeToken", &[RefusalCode::TokenNotFound], revoke);
        }
    }
}
