//! What people ask of jobs, through a real listener with certificates.

use muster_decider::Command;
use muster_journal::RankUpdate;
use muster_transport::Role;
use muster_types::{ExitStatus, HolderId, JobId, RefusalCode, RequestId, Requester};
use muster_wire::status::Refused;
use muster_wire::time::{duration, timestamp};
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::{FieldMask, v1};
use tonic::Status;
use tonic::transport::Channel;

use crate::access_tests::{World, guarded, host, of_tenant, short, submission};

type Jobs = JobServiceClient<Channel>;

/// A moment that is not reached while a test runs: the year 2100.
const NEVER_MS: u64 = 4_102_444_800_000;

async fn world() -> World {
    let world = World::with_tenants().await;
    let command = Command::Register { spec: host("h1"), holder: HolderId(1), other_session_is_over: false };
    world.engine.execute(command).await.expect("a host comes");
    world
}

fn id(number: u32) -> String {
    format!("00000000-0000-4000-c000-{number:012}")
}

/// A job that waits for a moment far away, with a label.
fn waiting(tenant: &str, number: u32, team: &str) -> v1::SubmitJobRequest {
    let mut request = submission(tenant, number);
    let job = request.job.as_mut().expect("it has one");
    job.spec_mut().not_before = Some(timestamp(NEVER_MS));
    job.labels = [("team".to_owned(), team.to_owned())].into();
    request
}

async fn submit(jobs: &mut Jobs, request: v1::SubmitJobRequest) -> String {
    let answer = guarded("an answer", jobs.submit_job(request)).await.expect("it is taken");
    answer.into_inner().job_ids.remove(0)
}

async fn show(jobs: &mut Jobs, job_id: &str) -> v1::Job {
    let request = v1::GetJobRequest { job_id: job_id.to_owned(), read: None };
    let answer = guarded("an answer", jobs.get_job(request)).await.expect("it is there");
    answer.into_inner().job.expect("a job")
}

fn named(ids: &[&str]) -> v1::JobSelector {
    by(v1::JobFilter { job_ids: ids.iter().map(|id| (*id).to_owned()).collect(), ..Default::default() })
}

fn labelled(label_selector: &str) -> v1::JobSelector {
    by(v1::JobFilter { label_selector: label_selector.to_owned(), ..Default::default() })
}

fn by(filter: v1::JobFilter) -> v1::JobSelector {
    v1::JobSelector { filter: Some(filter), ..Default::default() }
}

fn of(spec: v1::JobSpec) -> v1::Job {
    v1::Job { spec: Some(spec), ..Default::default() }
}

async fn hold(
    jobs: &mut Jobs,
    number: u32,
    selector: v1::JobSelector,
    validate_only: bool,
) -> Result<v1::HoldJobsResponse, Refused> {
    let request = v1::HoldJobsRequest { request_id: id(number), selector: Some(selector), validate_only };
    refused(guarded("an answer", jobs.hold_jobs(request)).await)
}

async fn release(
    jobs: &mut Jobs,
    number: u32,
    selector: v1::JobSelector,
) -> Result<v1::ReleaseJobsResponse, Refused> {
    let request =
        v1::ReleaseJobsRequest { request_id: id(number), selector: Some(selector), validate_only: false };
    refused(guarded("an answer", jobs.release_jobs(request)).await)
}

async fn update(
    jobs: &mut Jobs,
    number: u32,
    (job_id, etag): (&str, &str),
    job: v1::Job,
    paths: &[&str],
) -> Result<v1::Job, Refused> {
    let paths = paths.iter().map(|path| (*path).to_owned()).collect();
    let request = v1::UpdateJobRequest {
        request_id: id(number),
        job_id: job_id.to_owned(),
        job: Some(job),
        update_mask: Some(FieldMask { paths }),
        etag: etag.to_owned(),
        validate_only: false,
        move_to_front: false,
    };
    let answer = refused(guarded("an answer", jobs.update_job(request)).await)?;
    Ok(answer.job.expect("it is shown"))
}

fn refused<T>(answer: Result<tonic::Response<T>, Status>) -> Result<T, Refused> {
    answer.map(tonic::Response::into_inner).map_err(|status| Refused::from_status(&status))
}

fn code<T: std::fmt::Debug>(answer: Result<T, Refused>) -> RefusalCode {
    answer.expect_err("it is refused").code.expect("it says why")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_holds_what_is_its_own_and_an_operator_what_is_anybodys() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let mut bob = JobServiceClient::new(world.channel(of_tenant("speech", "bob")).await);
    let mut root = JobServiceClient::new(world.channel(Role::Admin(short("root"))).await);
    let first = submit(&mut ada, waiting("vision", 1, "a")).await;
    let second = submit(&mut ada, waiting("video", 2, "a")).await;
    let third = submit(&mut bob, waiting("speech", 3, "a")).await;
    // The same selector finds what each may change.
    let counts = |answer: Result<v1::HoldJobsResponse, Refused>| {
        let answer = answer.expect("it is answered");
        (answer.job_count, answer.job_ids)
    };
    let own = vec![first.clone(), second.clone()];
    assert_eq!(counts(hold(&mut ada, 1, labelled("team=a"), true).await), (2, own));
    assert_eq!(counts(hold(&mut bob, 1, labelled("team=a"), true).await), (1, vec![third.clone()]));
    assert_eq!(counts(hold(&mut root, 1, labelled("team=a"), true).await).0, 3);
    assert!(show(&mut ada, &first).await.status().controls.is_none(), "looking changed nothing");
    assert_eq!(counts(hold(&mut ada, 2, labelled("team=a"), false).await), (2, Vec::new()));
    let shown = show(&mut bob, &first).await;
    assert_eq!(shown.status().reason, "HELD");
    assert!(shown.status().message.contains("tenant/vision/ada"), "{}", shown.status().message);
    let held = shown.status().controls.clone().expect("it is held").hold.expect("it is held");
    assert_eq!((held.principal.as_str(), held.by_operator), ("tenant/vision/ada", false));
    // By its id a job of another tenant is refused.
    assert_eq!(code(hold(&mut ada, 3, named(&[&third]), false).await), RefusalCode::PermissionDenied);
    let of_speech = by(v1::JobFilter { tenant: "speech".to_owned(), ..Default::default() });
    assert_eq!(code(hold(&mut ada, 3, of_speech, false).await), RefusalCode::PermissionDenied);
    assert_eq!(code(release(&mut bob, 3, named(&[&first])).await), RefusalCode::PermissionDenied);
    // What an operator holds only an operator releases: named it is refused, found it is passed over.
    assert_eq!(counts(hold(&mut root, 4, named(&[&first]), false).await).0, 1);
    assert_eq!(code(release(&mut ada, 5, named(&[&first])).await), RefusalCode::JobHeld);
    let found = release(&mut ada, 6, labelled("team=a")).await.expect("the other is released");
    assert_eq!((found.job_count, found.passed_over_count), (1, 1));
    assert!(show(&mut ada, &second).await.status().controls.is_none());
    assert_eq!(release(&mut root, 7, named(&[&first])).await.expect("it is released").job_count, 1);
    // A caller that acts for no tenant only looks.
    let mut eve = JobServiceClient::new(world.channel(Role::Client(short("eve"))).await);
    assert_eq!(code(hold(&mut eve, 8, labelled("team=a"), true).await), RefusalCode::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_request_has_one_effect_whatever_its_selector_finds_then() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let first = submit(&mut ada, waiting("vision", 1, "a")).await;
    assert_eq!(hold(&mut ada, 1, labelled("team=a"), false).await.expect("it is held").job_count, 1);
    let second = submit(&mut ada, waiting("vision", 2, "a")).await;
    assert_eq!(hold(&mut ada, 1, labelled("team=a"), false).await.expect("it is repeated").job_count, 1);
    assert!(show(&mut ada, &second).await.status().controls.is_none(), "it came later");
    // Another selector under the same id is another request, and so is another call.
    assert_eq!(code(hold(&mut ada, 1, labelled("team"), false).await), RefusalCode::RequestIdReused);
    assert_eq!(code(release(&mut ada, 1, labelled("team=a")).await), RefusalCode::RequestIdReused);
    assert_eq!(release(&mut ada, 2, named(&[&first])).await.expect("it is released").job_count, 1);
    // What cannot be done to one of them is done to none.
    let runs = submit(&mut ada, submission("vision", 3)).await;
    let both = named(&[&first, &runs]);
    guarded("a placement", async {
        while show(&mut ada, &runs).await.status().phase != i32::from(v1::JobPhase::Starting) {}
    })
    .await;
    let refusal = hold(&mut ada, 3, both.clone(), true).await.expect_err("one of them runs");
    assert_eq!(refusal.code, Some(RefusalCode::JobPhase));
    assert_eq!(code(hold(&mut ada, 3, both, false).await), RefusalCode::JobPhase);
    assert!(
        show(&mut ada, &first)
            .await
            .status()
            .controls
            .as_ref()
            .is_none_or(|controls| controls.hold.is_none())
    );
    // Found, it is passed over.
    let found = hold(&mut ada, 4, by(v1::JobFilter { mine: true, ..Default::default() }), false).await;
    let found = found.expect("two of them wait");
    assert_eq!((found.job_count, found.passed_over_count), (2, 1));
    let cancel = v1::CancelJobsRequest {
        request_id: id(5),
        selector: Some(v1::JobSelector { all: true, ..Default::default() }),
        validate_only: false,
    };
    let cancelled = refused(guarded("an answer", ada.cancel_jobs(cancel)).await).expect("all of them");
    assert_eq!(cancelled.job_count, 3);
    let shown = show(&mut ada, &first).await;
    assert_eq!(shown.status().phase, i32::from(v1::JobPhase::Cancelled));
    assert_eq!(shown.status().message, "tenant/vision/ada cancelled it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_array_is_found_by_its_id() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let mut request = waiting("vision", 1, "a");
    request.job.as_mut().expect("it has one").spec_mut().array =
        Some(v1::JobArray { size: 5, ..Default::default() });
    let answer = guarded("an answer", ada.submit_job(request)).await.expect("it is taken").into_inner();
    let alone = submit(&mut ada, waiting("vision", 2, "a")).await;
    let array = show(&mut ada, &answer.job_ids[3]).await.array.expect("it is a member");
    let of = |id: &str| by(v1::JobFilter { array_id: id.to_owned(), ..Default::default() });
    let held = hold(&mut ada, 1, of(&array.array_id), true).await.expect("they are found");
    // No member is created before its time: the array stands for all of them.
    assert_eq!((held.job_count, held.job_ids), (5, vec![array.array_id.clone()]));
    assert!(show(&mut ada, &alone).await.array.is_none());
    let none = hold(&mut ada, 1, of(&alone.replace("job-", "array-")), true).await.expect("there is none");
    assert_eq!(none.job_count, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_selector_that_selects_nothing_or_contradicts_itself_is_refused() {
    let world = world().await;
    let mut root = JobServiceClient::new(world.channel(Role::Admin(short("root"))).await);
    let field = |answer: Result<v1::HoldJobsResponse, Refused>| {
        let refused = answer.expect_err("it is wrong");
        assert_eq!(refused.code, Some(RefusalCode::InvalidField));
        refused.violations.first().map(|violation| violation.field.clone()).unwrap_or_default()
    };
    let many: Vec<String> = (0..1_001).map(|n| muster_types::JobId(n).to_string()).collect();
    let one = vec!["job-1".to_owned()];
    let bad = [
        ("selector", v1::JobSelector::default()),
        ("selector", v1::JobSelector { all: true, ..labelled("team=a") }),
        ("selector", by(v1::JobFilter { job_ids: one, tenant: "vision".to_owned(), ..Default::default() })),
        ("selector", v1::JobSelector { all: true, ..named(&["job-1"]) }),
        ("selector.filter.job_ids", by(v1::JobFilter { job_ids: many, ..Default::default() })),
        ("selector.filter.job_ids[0]", named(&["no id"])),
        (
            "selector.filter.array_id",
            by(v1::JobFilter { array_id: "no id".to_owned(), ..Default::default() }),
        ),
        ("selector.filter.phases", by(v1::JobFilter { phases: vec![0], ..Default::default() })),
        ("selector.filter.phases", by(v1::JobFilter { phases: vec![77], ..Default::default() })),
        (
            "selector.filter.creator",
            by(v1::JobFilter { mine: true, creator: "x".to_owned(), ..Default::default() }),
        ),
        ("selector.filter.label_selector", labelled("team in (")),
    ];
    for (expected, selector) in bad {
        assert_eq!(field(hold(&mut root, 1, selector.clone(), true).await), expected, "{selector:?}");
        assert_eq!(field(hold(&mut root, 1, selector, false).await), expected);
    }
    let without = v1::HoldJobsRequest { request_id: id(1), ..Default::default() };
    assert_eq!(field(refused(guarded("an answer", root.hold_jobs(without)).await)), "selector");
    let nobody = hold(&mut root, 1, labelled("team=nobody"), false).await.expect("there are none");
    assert_eq!(nobody.job_count, 0);
    assert_eq!(code(hold(&mut root, 2, named(&["job-zzz"]), false).await), RefusalCode::JobNotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_gets_another_place_size_and_tenant_within_the_rights_of_the_caller() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let job = submit(&mut ada, waiting("vision", 1, "a")).await;
    // To go later is open to everybody, to go earlier is a right.
    let nice = |nice| of(v1::JobSpec { nice, ..Default::default() });
    let changed = update(&mut ada, 1, (&job, ""), nice(10), &["spec.nice"]).await.expect("it goes later");
    // The answer has the reason of a list: nothing is looked for before it is sent.
    let list = guarded("a list", ada.list_jobs(v1::ListJobsRequest::default())).await.expect("a page");
    let listed = list.into_inner().jobs.into_iter().find(|listed| listed.id == job).expect("it is listed");
    let reason = |job: &v1::Job| (job.status().reason.clone(), job.status().message.clone());
    assert_eq!(reason(&changed), reason(&listed));
    assert_eq!(changed.spec.expect("it is shown").nice, 10);
    assert_eq!(
        code(update(&mut ada, 2, (&job, ""), nice(-1), &["spec.nice"]).await),
        RefusalCode::RightMissing
    );
    let request = v1::UpdateJobRequest {
        request_id: id(3),
        job_id: job.clone(),
        move_to_front: true,
        ..v1::UpdateJobRequest::default()
    };
    let moved = refused(guarded("an answer", ada.update_job(request.clone())).await).expect("it is moved");
    let moved = moved.job.expect("it is shown");
    let controls = moved.status().controls.clone().expect("somebody changed it");
    assert_eq!(controls.moved_to_front_at_index, controls.modified_at_index);
    let again = refused(guarded("an answer", ada.update_job(request)).await).expect("it is repeated");
    assert_eq!(again.job.expect("it is shown").etag, moved.etag);
    let groups = vec![v1::TaskGroup { workers: 2, ..Default::default() }];
    let larger = of(v1::JobSpec { groups, ..Default::default() });
    let larger = update(&mut ada, 4, (&job, ""), larger, &["spec.groups"]).await.expect("it is larger");
    assert_eq!(larger.spec.expect("it is shown").groups[0].workers, 2);
    // The caller has to act for the other tenant, too.
    let to = |tenant: &str| v1::Job { tenant: tenant.to_owned(), ..Default::default() };
    let denied = update(&mut ada, 5, (&job, ""), to("speech"), &["tenant"]).await;
    assert_eq!(code(denied), RefusalCode::PermissionDenied);
    let mut root = JobServiceClient::new(world.channel(Role::Admin(short("root"))).await);
    let given = update(&mut root, 6, (&job, ""), to("speech"), &["tenant"]).await.expect("it is given away");
    assert_eq!(given.tenant, "speech");
    assert_eq!(
        code(update(&mut ada, 7, (&job, ""), nice(20), &["spec.nice"]).await),
        RefusalCode::PermissionDenied
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_submitted_held_waits_for_its_release() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let mut request = submission("vision", 1);
    request.job.as_mut().expect("it has one").hold = true;
    let job = submit(&mut ada, request.clone()).await;
    assert_eq!(submit(&mut ada, request).await, job, "repeated, it is answered");
    let held = show(&mut ada, &job).await;
    let hold = held.status().controls.clone().and_then(|controls| controls.hold).expect("it is held");
    assert_eq!((hold.principal.as_str(), hold.by_operator), ("tenant/vision/ada", false));
    release(&mut ada, 2, named(&[&job])).await.expect("it is released");
    guarded("a placement", async {
        while show(&mut ada, &job).await.status().phase != i32::from(v1::JobPhase::Starting) {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_made_from_what_was_read_or_refused() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let job = submit(&mut ada, waiting("vision", 1, "a")).await;
    let before = show(&mut ada, &job).await;
    let spec = v1::Job {
        labels: [("team".to_owned(), "b".to_owned())].into(),
        ..of(v1::JobSpec {
            tier: v1::Tier::Batch.into(),
            run_time_limit: Some(duration(60_000)),
            ..Default::default()
        })
    };
    let changed = update(
        &mut ada,
        1,
        (&job, &before.etag),
        spec.clone(),
        &["spec.tier", "spec.run_time_limit", "labels"],
    );
    let changed = changed.await.expect("it is changed");
    assert_eq!(changed.status().tier, i32::from(v1::Tier::Batch));
    assert_eq!(changed.labels["team"], "b");
    assert_eq!(changed.spec.as_ref().expect("it is shown").run_time_limit, Some(duration(60_000)));
    let controls = changed.status().controls.clone().expect("somebody changed it");
    assert_eq!(controls.modified_by, "tenant/vision/ada");
    assert_eq!(controls.modified_at_index, changed.status().changed_at_index);
    // Repeated, it is answered; made from what was before, it is refused, with what the job is.
    update(&mut ada, 1, (&job, &before.etag), spec.clone(), &["spec.tier", "spec.run_time_limit", "labels"])
        .await
        .expect("it is repeated");
    let late = update(&mut ada, 2, (&job, &before.etag), spec.clone(), &["spec.tier"]).await;
    let late = late.expect_err("it has changed");
    assert_eq!(late.code, Some(RefusalCode::JobChanged));
    assert_eq!(late.metadata.get("changed_at_index"), Some(&changed.status().changed_at_index.to_string()));
    assert_eq!(late.metadata.get("phase").map(String::as_str), Some("pending"));
    // What a field is cleared to, and what is not named, which stays.
    let cleared = update(&mut ada, 3, (&job, ""), v1::Job::default(), &["spec.run_time_limit"]).await;
    let cleared = cleared.expect("it is cleared").spec.expect("it is shown");
    assert_eq!((cleared.run_time_limit, cleared.tier), (None, i32::from(v1::Tier::Batch)));
    assert_eq!(cleared.not_before, Some(timestamp(NEVER_MS)));
    // Found by what it carries now, and not by what it carried.
    assert_eq!(hold(&mut ada, 4, labelled("team=a"), true).await.expect("an answer").job_count, 0);
    assert_eq!(hold(&mut ada, 4, labelled("team=b"), true).await.expect("an answer").job_count, 1);
    // What is wrong with it.
    let none = v1::Job::default();
    for (field, id, etag, paths) in [
        ("update_mask", job.as_str(), "", [].as_slice()),
        ("update_mask", &job, "", &["spec.booking"]),
        ("job.spec.groups", &job, "", &["spec.groups"]),
        ("job.tenant", &job, "", &["tenant"]),
        ("etag", &job, "new", &["spec.tier"]),
        ("job_id", "no id", "", &["spec.tier"]),
    ] {
        let refused = update(&mut ada, 5, (id, etag), none.clone(), paths).await.expect_err("it is wrong");
        assert_eq!(refused.code, Some(RefusalCode::InvalidField), "{field}");
        assert_eq!(refused.violations[0].field, field);
    }
    let critical = of(v1::JobSpec { tier: v1::Tier::Critical.into(), ..Default::default() });
    assert_eq!(
        code(update(&mut ada, 6, (&job, ""), critical, &["spec.tier"]).await),
        RefusalCode::RightMissing
    );
    let mut bob = JobServiceClient::new(world.channel(of_tenant("speech", "bob")).await);
    let denied = update(&mut bob, 7, (&job, ""), none.clone(), &["spec.tier"]).await;
    assert_eq!(code(denied), RefusalCode::PermissionDenied);
    // Once it has been placed, its tier is what it was placed with; its limit and labels can be changed.
    let started =
        update(&mut ada, 8, (&job, ""), none.clone(), &["spec.not_before"]).await.expect("it may start");
    assert_eq!(started.spec.expect("it is shown").not_before, None);
    guarded("a placement", async {
        while show(&mut ada, &job).await.status().phase != i32::from(v1::JobPhase::Starting) {}
    })
    .await;
    let late =
        update(&mut ada, 9, (&job, ""), none.clone(), &["spec.tier"]).await.expect_err("it came later");
    assert_eq!(late.code, Some(RefusalCode::JobPhase));
    assert_eq!(late.metadata.get("phase").map(String::as_str), Some("starting"));
    let limit = of(v1::JobSpec { run_time_limit: Some(duration(7_200_000)), ..Default::default() });
    let changed = update(&mut ada, 10, (&job, ""), limit, &["spec.run_time_limit", "labels"]).await;
    assert!(changed.expect("it is changed").labels.is_empty());
}

/// A gang that is requeued is stopped first, and says who asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_job_is_requeued_and_suspended() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let job = submit(&mut ada, submission("vision", 1)).await;
    guarded("a placement", async {
        while show(&mut ada, &job).await.status().phase != i32::from(v1::JobPhase::Starting) {}
    })
    .await;
    let requeue =
        v1::RequeueJobsRequest { request_id: id(1), selector: Some(named(&[&job])), validate_only: false };
    let answer = refused(guarded("an answer", ada.requeue_jobs(requeue)).await).expect("it is stopped");
    assert_eq!(answer.job_count, 1);
    let shown = show(&mut ada, &job).await;
    assert_eq!(shown.status().reason, "STOPPING_REQUEUED");
    assert_eq!(shown.status().message, "tenant/vision/ada asked to requeue it");
    let controls = shown.status().controls.clone().expect("somebody asked for it");
    assert_eq!((controls.requeue_count, controls.requeued_by.as_str()), (1, "tenant/vision/ada"));
    let suspend =
        v1::SuspendJobsRequest { request_id: id(2), selector: Some(named(&[&job])), validate_only: false };
    let late = refused(guarded("an answer", ada.suspend_jobs(suspend)).await);
    assert_eq!(code(late), RefusalCode::JobPhase);
    // Once nothing of it runs it waits again, and says for what.
    let job_id: JobId = job.parse().expect("it is an id");
    let view = world.engine.view();
    let placement = view.job(job_id).and_then(|row| row.placement.clone()).expect("it is placed");
    let (slot, by) = (placement.slots[0], Requester::default());
    let (request, node) = (RequestId(77), slot.node);
    let cordon = Command::SetCordon { request, by, node, cordoned: true, reason: None };
    world.engine.execute(cordon).await.expect("it is cordoned");
    let report = Command::Report {
        node: slot.node,
        incarnation: slot.incarnation,
        job: job_id,
        token: placement.token,
        updates: vec![(0, RankUpdate::Exited(ExitStatus::Code(0)))],
    };
    world.engine.execute(report).await.expect("it is believed");
    let shown = show(&mut ada, &job).await;
    assert_eq!(shown.status().phase(), v1::JobPhase::Pending);
    let message = &shown.status().message;
    assert_eq!(shown.status().reason, "WAITING_FOR_NODES", "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_go_on_behind_one_another_and_a_repetition_says_what_is_left() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let many = waiting("vision", 1, "a");
    let job = many.job.expect("it has one");
    let request =
        v1::SubmitJobsRequest { request_id: many.request_id, jobs: vec![job; 1_000], ..Default::default() };
    guarded("an answer", ada.submit_jobs(request)).await.expect("they are taken");
    let last = submit(&mut ada, waiting("vision", 2, "a")).await;
    let first = hold(&mut ada, 1, labelled("team=a"), false).await.expect("they are held");
    assert_eq!((first.job_count, first.remaining_count), (1_000, 1));
    // The answer was lost: what the repeated call says is left is what was not held.
    let again = hold(&mut ada, 1, labelled("team=a"), false).await.expect("it is repeated");
    assert_eq!((again.job_count, again.remaining_count), (1_000, 1));
    assert_eq!(
        again.last_job_id, first.last_job_id,
        "a caller goes on where the lost answer would have let it"
    );
    // Behind the last one, jobs that match once more are not asked twice.
    let all = v1::JobSelector { all: true, ..Default::default() };
    release(&mut ada, 2, all).await.expect("they are released");
    let behind = v1::JobSelector { after_job_id: first.last_job_id, ..labelled("team=a") };
    let rest = hold(&mut ada, 3, behind, false).await.expect("it is held");
    assert_eq!((rest.job_count, rest.remaining_count, rest.last_job_id), (1, 0, last));
    let both = v1::JobSelector { after_job_id: "job-1".to_owned(), ..named(&["job-1"]) };
    assert_eq!(code(hold(&mut ada, 4, both, false).await), RefusalCode::InvalidField);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_of_a_tier_shows_a_job_that_leaves_it() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let mut wanted = waiting("vision", 1, "a");
    wanted.job.as_mut().expect("it has one").spec_mut().tier = v1::Tier::Batch.into();
    let job = submit(&mut ada, wanted).await;
    let filter = v1::JobFilter { tiers: vec![v1::Tier::Batch.into()], ..Default::default() };
    let watch = v1::WatchJobsRequest { filter: Some(filter), ..Default::default() };
    let mut events = guarded("a watch", ada.watch_jobs(watch)).await.expect("it opens").into_inner();
    let standard = of(v1::JobSpec { tier: v1::Tier::Standard.into(), ..Default::default() });
    update(&mut ada, 1, (&job, ""), standard, &["spec.tier"]).await.expect("it is changed");
    loop {
        let event = guarded("an event", events.message()).await.expect("it goes on").expect("it goes on");
        let Some(v1::watch_jobs_response::Event::Changed(seen)) = event.event else { continue };
        if seen.status().tier == i32::from(v1::Tier::Standard) {
            assert_eq!(seen.id, job);
            return;
        }
    }
}
