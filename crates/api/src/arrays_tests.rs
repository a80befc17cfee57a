//! Arrays, through a real listener with certificates.

use muster_decider::Command;
use muster_state::State;
use muster_transport::Role;
use muster_types::{ArrayId, Control, HolderId, JobId, RefusalCode, Requester};
use muster_wire::status::Refused;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::{FieldMask, v1};
use tonic::transport::Channel;

use crate::access_tests::{World, guarded, host, of_tenant, short, submission};
use crate::controls::{FoundArray, left_over};

type Jobs = JobServiceClient<Channel>;

fn id(number: u32) -> String {
    format!("00000000-0000-4000-c000-{number:012}")
}

async fn world() -> World {
    let world = World::with_tenants().await;
    let command = Command::Register { spec: host("h1"), holder: HolderId(1), other_session_is_over: false };
    world.engine.execute(command).await.expect("a host comes");
    world
}

/// Submits an array of a tenant; the ids of its members.
async fn submit(jobs: &mut Jobs, number: u32, array: v1::JobArray) -> Vec<String> {
    let mut request = submission("vision", number);
    let job = request.job.as_mut().expect("it has one");
    job.labels = [("team".to_owned(), "a".to_owned())].into();
    job.spec_mut().array = Some(array);
    let answer = guarded("an answer", jobs.submit_job(request)).await.expect("it is taken");
    answer.into_inner().job_ids
}

async fn show(jobs: &mut Jobs, job_id: &str) -> v1::Job {
    let request = v1::GetJobRequest { job_id: job_id.to_owned(), read: None };
    let answer = guarded("an answer", jobs.get_job(request)).await.expect("it is there");
    answer.into_inner().job.expect("a job")
}

async fn array(jobs: &mut Jobs, array_id: &str) -> v1::Array {
    let request = v1::GetArrayRequest { array_id: array_id.to_owned(), read: None };
    let answer = guarded("an answer", jobs.get_array(request)).await.expect("it is there");
    answer.into_inner().array.expect("an array")
}

fn by(filter: v1::JobFilter) -> Option<v1::JobSelector> {
    Some(v1::JobSelector { filter: Some(filter), ..Default::default() })
}

fn states(array: &v1::Array) -> Vec<(v1::JobPhase, bool, &str)> {
    array.states.iter().map(|state| (state.phase(), state.created, state.indices.as_str())).collect()
}

fn sized(size: u32, throttle: u32) -> v1::JobArray {
    v1::JobArray { size, throttle: Some(throttle), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_array_and_members_that_are_not_created_are_shown() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let indices = v1::JobArray { indices: "10-90:20,200".to_owned(), throttle: Some(2), size: 0 };
    let members = submit(&mut ada, 1, indices.clone()).await;
    assert_eq!(members.len(), 6, "every id is known at once");
    let last = show(&mut ada, &members[5]).await;
    let place = last.array.clone().expect("it is a member");
    assert_eq!((place.index, place.ordinal, place.size), (200, 5, 6));
    assert_eq!(
        (last.status().phase(), last.status().reason.as_str()),
        (v1::JobPhase::Pending, "ARRAY_THROTTLED")
    );
    let alone = v1::JobArray { indices: "200".to_owned(), ..Default::default() };
    assert_eq!(last.spec().array, Some(alone), "submitted again, it is this member alone");
    assert_eq!((last.creator.as_str(), last.labels["team"].as_str()), ("tenant/vision/ada", "a"));
    let explain = v1::ExplainJobRequest { job_id: members[5].clone(), read: None };
    let explained = guarded("an answer", ada.explain_job(explain)).await.expect("it is there").into_inner();
    assert_eq!(explained.explanation.expect("it waits").reason, "ARRAY_THROTTLED");

    let shown = array(&mut ada, &place.array_id).await;
    assert_eq!((shown.size, shown.first_job_id.as_str()), (6, members[0].as_str()));
    assert_eq!(shown.counts.map(|counts| (counts.uncreated, counts.pending + counts.active)), Some((4, 2)));
    assert_eq!(states(&shown)[0], (v1::JobPhase::Pending, false, "50-90:20,200"));
    assert_eq!(shown.array, Some(indices));
    let list = v1::ListArraysRequest::default();
    let listed = guarded("a list", ada.list_arrays(list)).await.expect("a page").into_inner();
    assert_eq!(listed.arrays.len(), 1);
    assert!(listed.arrays[0].spec.is_none() && listed.arrays[0].states.is_empty());
    let other = v1::JobFilter { tenant: "speech".to_owned(), ..Default::default() };
    let list = v1::ListArraysRequest { filter: Some(other), ..Default::default() };
    assert!(guarded("a list", ada.list_arrays(list)).await.expect("a page").into_inner().arrays.is_empty());
    // Jobs that are named are listed and watched whether or not they are created.
    let filter =
        v1::JobFilter { job_ids: vec![members[0].clone(), members[4].clone()], ..Default::default() };
    let list = v1::ListJobsRequest { filter: Some(filter), ..Default::default() };
    let listed = guarded("a list", ada.list_jobs(list)).await.expect("a page").into_inner();
    assert_eq!(listed.jobs.len(), 2);
    let missing = v1::GetArrayRequest { array_id: "array-zzz".to_owned(), read: None };
    let refused =
        Refused::from_status(&guarded("an answer", ada.get_array(missing)).await.expect_err("there is none"));
    assert_eq!(refused.code, Some(RefusalCode::JobNotFound));
}

/// Changes what the paths name of an array or a job, to a throttle.
async fn change(
    jobs: &mut Jobs,
    (number, validate_only): (u32, bool),
    (job_id, etag): (&str, &str),
    throttle: Option<u32>,
    paths: &[&str],
) -> Result<v1::UpdateJobResponse, Refused> {
    let array = v1::JobArray { throttle, ..Default::default() };
    let spec = v1::JobSpec { array: Some(array), ..Default::default() };
    let request = v1::UpdateJobRequest {
        request_id: id(number),
        job_id: job_id.to_owned(),
        job: Some(v1::Job { spec: Some(spec), ..Default::default() }),
        update_mask: Some(FieldMask { paths: paths.iter().map(|path| (*path).to_owned()).collect() }),
        etag: etag.to_owned(),
        validate_only,
        move_to_front: false,
    };
    let answer = guarded("an answer", jobs.update_job(request)).await;
    answer.map(tonic::Response::into_inner).map_err(|status| Refused::from_status(&status))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_throttle_is_changed_by_the_arrays_own_tenant_and_nothing_else_of_it() {
    const THROTTLE: &[&str] = &["spec.array.throttle"];
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let mut bob = JobServiceClient::new(world.channel(of_tenant("speech", "bob")).await);
    let members = submit(&mut ada, 1, sized(3_000, 2)).await;
    let array_id = members[0].replace("job-", "array-");
    let is_waiting = |shown: &v1::Array| shown.counts.map(|counts| counts.uncreated);
    for (job_id, etag, throttle, paths, wanted) in [
        (array_id.as_str(), "", Some(0), THROTTLE, RefusalCode::InvalidField),
        (array_id.as_str(), "", Some(100_001), THROTTLE, RefusalCode::InvalidField),
        (array_id.as_str(), "1-7", Some(5), THROTTLE, RefusalCode::InvalidField),
        (array_id.as_str(), "", Some(5), &["spec.tier"], RefusalCode::InvalidField),
        (array_id.as_str(), "", Some(5), &["spec.array.throttle", "labels"], RefusalCode::InvalidField),
        (array_id.as_str(), "", Some(5), &[], RefusalCode::InvalidField),
        (members[0].as_str(), "", Some(5), THROTTLE, RefusalCode::InvalidField),
        ("array-!", "", Some(5), THROTTLE, RefusalCode::InvalidField),
        ("array-zzz", "", Some(5), THROTTLE, RefusalCode::JobNotFound),
    ] {
        let refused = change(&mut ada, (2, false), (job_id, etag), throttle, paths).await;
        assert_eq!(refused.expect_err("it is refused").code, Some(wanted), "{job_id} {throttle:?} {paths:?}");
    }
    let own = (array_id.as_str(), "");
    let refused = change(&mut bob, (3, false), own, Some(5), THROTTLE).await.expect_err("it is not his");
    assert_eq!(refused.code, Some(RefusalCode::PermissionDenied));
    change(&mut ada, (3, true), own, Some(5), THROTTLE).await.expect("it could be changed");
    let shown = array(&mut ada, &array_id).await;
    assert_eq!(shown.array.as_ref().and_then(|array| array.throttle), Some(2), "nothing was changed so far");
    assert_eq!(is_waiting(&shown), Some(2_998));
    let changed = change(&mut ada, (4, false), own, Some(5), THROTTLE).await.expect("it is hers");
    let changed = changed.array.expect("it is shown");
    assert_eq!(changed.array.as_ref().and_then(|array| array.throttle), Some(5));
    assert_eq!(is_waiting(&changed), Some(2_995), "members are jobs at once");
    // A lower one stops none, and without one the window alone keeps members back.
    change(&mut ada, (5, false), own, Some(1), THROTTLE).await.expect("it is hers");
    assert_eq!(is_waiting(&array(&mut ada, &array_id).await), Some(2_995));
    let changed = change(&mut ada, (6, false), own, None, THROTTLE).await.expect("it is hers");
    let changed = changed.array.expect("it is shown");
    assert_eq!(changed.array.as_ref().and_then(|array| array.throttle), None);
    assert!(is_waiting(&changed) < Some(2_995), "{changed:?}");
    // The same request again changes nothing.
    change(&mut ada, (5, false), own, Some(1), THROTTLE).await.expect("it was answered before");
    assert_eq!(array(&mut ada, &array_id).await.array.and_then(|array| array.throttle), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controls_act_on_members_that_are_not_created() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let mut bob = JobServiceClient::new(world.channel(of_tenant("speech", "bob")).await);
    let members = submit(&mut ada, 1, sized(3_000, 2)).await;
    let array_id = members[0].replace("job-", "array-");
    let of_array = || by(v1::JobFilter { array_id: array_id.clone(), ..Default::default() });
    let labelled = || by(v1::JobFilter { label_selector: "team=a".to_owned(), ..Default::default() });
    let preview = |selector| v1::CancelJobsRequest { request_id: id(1), selector, validate_only: true };
    for selector in [of_array(), labelled()] {
        let answer =
            guarded("an answer", ada.cancel_jobs(preview(selector.clone()))).await.expect("a preview");
        assert_eq!(answer.into_inner().job_count, 3_000);
        let of_others =
            guarded("an answer", bob.cancel_jobs(preview(selector))).await.expect("nobody of his");
        assert_eq!(of_others.into_inner().job_count, 0);
    }
    let hold = v1::HoldJobsRequest { request_id: id(2), selector: of_array(), validate_only: false };
    let held = guarded("an answer", ada.hold_jobs(hold)).await.expect("it is held").into_inner();
    assert!((2_998..=3_000).contains(&held.job_count), "{held:?}");
    let shown = array(&mut ada, &array_id).await;
    assert_eq!(shown.hold.map(|hold| hold.principal), Some("tenant/vision/ada".to_owned()));
    assert_eq!(show(&mut ada, &members[2_000]).await.status().reason, "HELD");
    // One member by its id, by its tenant alone.
    let one =
        |number, job: usize| v1::CancelJobRequest { request_id: id(number), job_id: members[job].clone() };
    assert!(guarded("an answer", bob.cancel_job(one(3, 2_500))).await.is_err());
    let gone =
        guarded("an answer", ada.cancel_job(one(4, 2_500))).await.expect("it is cancelled").into_inner();
    assert_eq!(gone.job.expect("it is shown").status().phase(), v1::JobPhase::Cancelled);
    let again = Refused::from_status(
        &guarded("an answer", ada.cancel_job(one(5, 2_500))).await.expect_err("it has ended"),
    );
    assert_eq!(again.code, Some(RefusalCode::JobFinished));
    let release = v1::ReleaseJobsRequest { request_id: id(6), selector: of_array(), validate_only: false };
    guarded("an answer", ada.release_jobs(release)).await.expect("it is released");
    let mut root = JobServiceClient::new(world.channel(Role::Admin(short("root"))).await);
    let cancel = v1::CancelJobsRequest { request_id: id(7), selector: labelled(), validate_only: false };
    let cancelled = guarded("an answer", root.cancel_jobs(cancel)).await.expect("all of them").into_inner();
    assert_eq!((cancelled.job_count, cancelled.remaining_count), (2_999, 0));
    let shown = array(&mut ada, &array_id).await;
    let counts = shown.counts.expect("they are counted");
    assert_eq!((counts.uncreated, counts.pending), (0, 0));
    assert_eq!(shown.cancelled_by, ["tenant/vision/ada", "admin/root"]);
    let message = show(&mut ada, &members[2_000]).await.status().message.clone();
    assert!(message.contains("admin/root cancelled"), "{message}");
}

/// A selector looks at a state that others are changing: what becomes a job before the call is carried out is left to another call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_become_jobs_while_a_call_is_on_its_way_are_left_to_the_next() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let members = submit(&mut ada, 1, sized(3_000, 2)).await;
    let ids: Vec<JobId> = members.iter().map(|id| id.parse().expect("it is an id")).collect();
    let array_id = ArrayId(ids[0].0);
    let before = world.engine.view();
    let found = [FoundArray::of(array_id, before.array(array_id).expect("it is there"))];
    let (by, last) = (Requester::default(), Some(ids[1]));
    let left = |view: &State, control| left_over(view, (control, &by, false), &found, (7, last));
    assert_eq!(left(&before, Control::Cancel), (7, last), "nothing has changed");
    let text = array_id.to_string();
    let changed = change(&mut ada, (2, false), (text.as_str(), ""), Some(5), &["spec.array.throttle"]).await;
    changed.expect("it is hers");
    let after = world.engine.view();
    assert_eq!(left(&after, Control::Cancel), (10, last), "three more are jobs");
    assert_eq!(left(&after, Control::Requeue), (7, last), "they were not asked");
    // Behind what the call was about, so that the next one finds all three.
    let all = left_over(&after, (Control::Cancel, &by, false), &found, (0, Some(ids[2_000])));
    assert_eq!(all, (3, Some(ids[1])));
}

/// Calls behind one another until nothing is left.
async fn all_of(jobs: &mut Jobs, (mut number, is_hold): (u32, bool)) -> u32 {
    let (mut after_job_id, mut calls) = (String::new(), 0);
    loop {
        let filter = v1::JobFilter { tenant: "vision".to_owned(), ..Default::default() };
        let selector = v1::JobSelector { filter: Some(filter), after_job_id, ..Default::default() };
        let (request_id, selector) = (id(number), Some(selector));
        let (last, remaining) = if is_hold {
            let hold = v1::HoldJobsRequest { request_id, selector, validate_only: false };
            let answer = guarded("an answer", jobs.hold_jobs(hold)).await.expect("held").into_inner();
            (answer.last_job_id, answer.remaining_count)
        } else {
            let release = v1::ReleaseJobsRequest { request_id, selector, validate_only: false };
            let answer =
                guarded("an answer", jobs.release_jobs(release)).await.expect("released").into_inner();
            (answer.last_job_id, answer.remaining_count)
        };
        calls += 1;
        if remaining == 0 || calls > 10 {
            return calls;
        }
        (after_job_id, number) = (last, number + 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_who_releases_in_several_calls_leaves_the_hold_of_the_owner() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let mut root = JobServiceClient::new(world.channel(Role::Admin(short("root"))).await);
    // Each has some hundred members that are jobs.
    let mut array_id = String::new();
    for number in 1..=8 {
        let members = submit(&mut ada, number, v1::JobArray { size: 5_000, ..Default::default() }).await;
        array_id = members[0].replace("job-", "array-");
    }
    let mut calls = Vec::new();
    for (number, is_hold) in [(20, true), (40, true), (60, false)] {
        let jobs = if number == 20 { &mut ada } else { &mut root };
        calls.push(all_of(jobs, (number, is_hold)).await);
        let held = array(&mut ada, &array_id).await.hold.map(|hold| hold.principal);
        let by = if number == 40 { "admin/root" } else { "tenant/vision/ada" };
        assert_eq!(held.as_deref(), Some(by), "call {number}");
    }
    assert!(calls.iter().all(|calls| (2..10).contains(calls)), "{calls:?}");
    let counts = array(&mut ada, &array_id).await.counts.expect("they are counted");
    assert!(counts.uncreated > 3_000, "nothing that the owner parked was created: {counts:?}");
}

/// Members that have no row among the jobs count for what a page may hold as jobs do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_members_that_are_not_created_is_bounded() {
    let world = world().await;
    let ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let mut ada = ada.max_decoding_message_size(64 << 20);
    let mut request = submission("vision", 1);
    let job = request.job.as_mut().expect("it has one");
    job.annotations = [("why".to_owned(), "x".repeat(7_000))].into();
    job.spec_mut().array = Some(sized(1_000, 1));
    let members =
        guarded("an answer", ada.submit_job(request)).await.expect("it is taken").into_inner().job_ids;
    let filter = v1::JobFilter { job_ids: members, ..Default::default() };
    let mut list = v1::ListJobsRequest {
        filter: Some(filter),
        page_size: 1_000,
        view: v1::JobView::Full.into(),
        ..Default::default()
    };
    let (mut seen, mut pages) = (0, 0);
    loop {
        let page = guarded("a list", ada.list_jobs(list.clone())).await.expect("a page").into_inner();
        seen += page.jobs.len();
        pages += 1;
        if page.next_page_token.is_empty() {
            break;
        }
        list.page_token = page.next_page_token;
    }
    assert_eq!(seen, 1_000);
    assert!(pages > 1, "seven megabytes are no page");
}

/// Labels are as long as they may be, and the client reads what any gRPC library does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_the_basic_view_stays_below_what_grpc_libraries_read() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let mut request = submission("vision", 1);
    let job = request.job.as_mut().expect("it has one");
    job.labels = (0..32).map(|number| (format!("{number:0>63}"), "v".repeat(63))).collect();
    job.spec_mut().array = Some(sized(1_000, 1));
    let members =
        guarded("an answer", ada.submit_job(request)).await.expect("it is taken").into_inner().job_ids;
    let filter = v1::JobFilter { job_ids: members, ..Default::default() };
    let mut list = v1::ListJobsRequest { filter: Some(filter), page_size: 1_000, ..Default::default() };
    let (mut seen, mut pages) = (0, 0);
    loop {
        let page = guarded("a list", ada.list_jobs(list.clone())).await.expect("it is read").into_inner();
        seen += page.jobs.len();
        pages += 1;
        if page.next_page_token.is_empty() {
            break;
        }
        list.page_token = page.next_page_token;
    }
    // Labels beyond what one entry may have are left out, so that a thousand fit.
    assert_eq!((seen, pages), (1_000, 1));
}
