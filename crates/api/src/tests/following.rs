//! Lists that a watch goes on from, and how much of a job the events of a watch carry.

use muster_types::limits::{
    ANNOTATIONS_BYTES_MAX, CREATOR_BYTES_MAX, LABEL_KEY_BYTES_MAX, LABEL_VALUE_BYTES_MAX, LABELS_MAX,
};
use muster_wire::shared::{Shared, encoded_len};
use muster_wire::time::MOMENT_MS_MAX;
use std::collections::HashMap;

use super::*;

/// What an event of the basic view may have, as `job.proto` promises it.
const BASIC_BYTES_MAX: usize = 1 << 10;
const LABEL_MAX: (usize, usize) = (LABEL_KEY_BYTES_MAX, LABEL_VALUE_BYTES_MAX);

fn bytes_of(event: v1::WatchJobsResponse) -> usize {
    encoded_len(&Shared::from(event))
}

fn id_of(n: u32) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

/// Events up to the one that tells of this job.
async fn until(events: &mut Streaming<v1::WatchJobsResponse>, job: &str) -> Vec<v1::WatchJobsResponse> {
    let mut seen = Vec::new();
    loop {
        let event = guarded("an event", events.message()).await.expect("it stands").expect("an event");
        let is_last = matches!(&event.event, Some(watch_jobs_response::Event::Changed(of)) if of.id == job);
        seen.push(event);
        if is_last {
            return seen;
        }
    }
}

#[tokio::test]
async fn a_watch_goes_on_from_the_last_page_of_a_list() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    for n in 1..=3 {
        served.submit(&id_of(n), &format!("train-{n}")).await.expect("it is taken");
    }
    let mut request = v1::ListJobsRequest {
        page_size: 2,
        filter: Some(v1::JobFilter { name_prefix: "train-".to_owned(), ..Default::default() }),
        ..Default::default()
    };
    let page =
        guarded("a page", served.jobs().list_jobs(request.clone())).await.expect("a page").into_inner();
    assert_eq!((page.jobs.len(), page.resume_token.as_str()), (2, ""), "more is to come");
    // What comes between two pages is told too: the token is as old as the first of them.
    let between = served.submit(&id_of(4), "train-4").await.expect("it is taken").job_ids;
    request.page_token = page.next_page_token;
    let page = guarded("a page", served.jobs().list_jobs(request)).await.expect("a page").into_inner();
    assert!(page.next_page_token.is_empty() && !page.resume_token.is_empty(), "{page:?}");
    served.submit(&id_of(5), "other").await.expect("it is taken");
    let later = served.submit(&id_of(6), "train-6").await.expect("it is taken").job_ids;

    let watch = v1::WatchJobsRequest {
        resume_token: page.resume_token.clone(),
        view: v1::JobView::Basic.into(),
        filter: Some(v1::JobFilter { name_prefix: "train-".to_owned(), ..Default::default() }),
        ..Default::default()
    };
    let mut events =
        guarded("a watch", served.jobs().watch_jobs(watch)).await.expect("it opens").into_inner();
    let seen = until(&mut events, &later[0]).await;
    let mut ids: Vec<String> = Vec::new();
    for event in seen {
        match event.event {
            Some(watch_jobs_response::Event::Changed(job)) => {
                assert!(job.name.starts_with("train-") && job.spec.is_none(), "{job:?}");
                ids.push(job.id);
            }
            Some(watch_jobs_response::Event::Bookmark(_)) => {}
            other => panic!("nothing of the present is told again: {other:?}"),
        }
    }
    assert!(ids.contains(&between[0]) && ids.contains(&later[0]), "{ids:?}");
    let elsewhere = v1::WatchJobsRequest { resume_token: page.resume_token, ..Default::default() };
    let refused = refused(guarded("a watch", served.jobs().watch_jobs(elsewhere)).await);
    assert_eq!(refused.violations[0].field, "resume_token", "the filter is another one");
}

#[tokio::test]
async fn a_view_that_nobody_knows_is_refused() {
    let served = TestServer::start().await;
    let watch = v1::WatchJobsRequest { view: 17, ..Default::default() };
    let refused = refused(guarded("a watch", served.jobs().watch_jobs(watch)).await);
    assert_eq!(refused.violations[0].field, "view");
    let both = v1::WatchJobsRequest {
        filter: Some(v1::JobFilter { mine: true, creator: "x".to_owned(), ..Default::default() }),
        ..Default::default()
    };
    let refused = self::refused(guarded("a watch", served.jobs().watch_jobs(both)).await);
    assert_eq!(refused.violations[0].field, "filter.creator");
}

/// Jobs as they are sent in both views: ordinary ones, and the largest that a client can submit.
///
/// `cargo test -p muster-api basic_view -- --nocapture` prints the bytes of each.
#[tokio::test]
async fn an_event_of_the_basic_view_is_within_1_kib() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    let ordinary = submission(ONE, "train-resnet").job.expect("it has one");
    let labeled = v1::Job { labels: labels(3, (8, 12)), ..ordinary.clone() };
    let group = v1::TaskGroup {
        workers: 1,
        runtime: muster_wire::process(vec!["x".repeat(3_500); 4]),
        environment: (0..60).map(|n| v1::EnvVar::new(format!("V{n}"), "x".repeat(250))).collect(),
        ..Default::default()
    };
    let largest = v1::Job {
        name: "n".repeat(63),
        tenant: "t".repeat(63),
        labels: labels(LABELS_MAX, LABEL_MAX),
        annotations: [("note".to_owned(), "a".repeat(ANNOTATIONS_BYTES_MAX - 4))].into(),
        spec: Some(v1::JobSpec {
            groups: vec![group],
            array: Some(v1::JobArray { size: 3, ..Default::default() }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let cases = [("ordinary", ordinary), ("with three labels", labeled), ("largest", largest)];
    for (place, (what, wanted)) in (1..).zip(cases) {
        let request =
            v1::SubmitJobRequest { request_id: id_of(place), job: Some(wanted), validate_only: false };
        let answer = served.jobs().submit_job(request).await.expect("it is taken");
        let job = answer.into_inner().job_ids.pop().expect("an id");
        let basic = event_bytes(&served, &job, v1::JobView::Basic).await;
        let full = event_bytes(&served, &job, v1::JobView::Full).await;
        println!("an event of a job, {what}: {basic} bytes in the basic view, {full} in the full one");
        assert!(basic <= BASIC_BYTES_MAX, "{what}: {basic}");
        assert!(what != "largest" || full > 30_000, "the other view has all of it: {full}");
    }
}

/// The largest event up to the one that tells of a job.
async fn event_bytes(served: &TestServer, job: &str, view: v1::JobView) -> usize {
    let watch = v1::WatchJobsRequest {
        view: view.into(),
        filter: Some(v1::JobFilter { job_ids: vec![job.to_owned()], ..Default::default() }),
        ..Default::default()
    };
    let events = guarded("a watch", served.jobs().watch_jobs(watch)).await.expect("it opens");
    until(&mut events.into_inner(), job).await.into_iter().map(bytes_of).max().unwrap_or_default()
}

/// As many labels, with keys and values of these lengths.
fn labels(count: usize, (key, value): (usize, usize)) -> HashMap<String, String> {
    let key = |n: usize| format!("{n:0key$}");
    (0..count).map(|n| (key(n), "v".repeat(value))).collect()
}

/// Everything that the basic view has, each as large as it may be. A field that the messages get has to be named here, with
/// the most that it can take, or as absent from the view.
fn largest_job(labels: HashMap<String, String>) -> v1::Job {
    let name = || "n".repeat(63);
    let time = Some(timestamp(MOMENT_MS_MAX));
    let span = Some(duration(366 * 86_400_000 - 1));
    let token = Some(v1::FencingToken { generation: u32::MAX, log_index: u64::MAX });
    let placement = v1::Placement {
        token,
        region: name(),
        cluster: name(),
        create_time: time,
        workers: Vec::new(),
        spares: Vec::new(),
    };
    let history = v1::AttemptHistory {
        last_failure: None,
        failures: Vec::new(),
        consecutive_failures: u32::MAX,
        retry_time: time,
        avoided: Vec::new(),
        stragglers: Vec::new(),
        artifacts: Vec::new(),
    };
    let status = v1::JobStatus {
        phase: v1::JobPhase::Cancelled.into(),
        reason: "RESERVED_FOR_ANOTHER_TENANT_HERE".to_owned(),
        message: "x".repeat(80),
        attempt: u32::MAX,
        create_time: time,
        start_time: time,
        end_time: time,
        placement: Some(placement),
        tier: v1::Tier::Critical.into(),
        worker_count: u32::MAX,
        device_count: u64::MAX,
        failures: u32::MAX,
        changed_at_index: u64::MAX,
        estimate: Some(v1::Estimate { run_time: span, run_time_p90: span }),
        preemptions: u32::MAX,
        last_checkpoint: Some(v1::Checkpoint { attempt: u32::MAX, time }),
        eligible: true,
        nominated_placement: None,
        history: Some(history),
        controls: None,
        expected_start: None,
    };
    let array = v1::ArrayMember {
        array_id: "array-zzzzzzzzzzzzz".to_owned(),
        index: u32::MAX,
        size: u32::MAX,
        ordinal: u32::MAX,
    };
    v1::Job {
        id: "job-zzzzzzzzzzzzz-zzzzzzz".to_owned(),
        name: name(),
        tenant: name(),
        labels,
        annotations: HashMap::new(),
        creator: "c".repeat(CREATOR_BYTES_MAX),
        array: Some(array),
        etag: format!("{}-{}", u32::MAX, u64::MAX),
        spec: None,
        status: Some(status),
        redacted: true,
        hold: false,
        labels_incomplete: false,
    }
}

/// An event of the basic view that carries this job, with the longest token and the last position.
fn event_of(job: v1::Job) -> v1::WatchJobsResponse {
    let token = ResumeToken::behind(u32::MAX, LogIndex(u64::MAX)).encode(CLUSTER, u64::MAX);
    let event = Some(watch_jobs_response::Event::Changed(job));
    v1::WatchJobsResponse { resume_token: token, log_index: u64::MAX, event }
}

/// Cuts the labels of a job as a basic view does, and checks what is left.
fn check_cut(mut job: v1::Job) -> usize {
    let all: std::collections::BTreeMap<_, _> = job.labels.clone().into_iter().collect();
    crate::render::cut_labels(&mut job);
    let kept: std::collections::BTreeMap<_, _> = job.labels.clone().into_iter().collect();
    assert!(kept.iter().eq(all.iter().take(kept.len())), "the first in the order of their keys stay");
    assert_eq!(job.labels_incomplete, kept.len() < all.len(), "what is missing is told");
    bytes_of(event_of(job))
}

#[test]
fn the_largest_event_of_the_basic_view_is_within_what_is_promised() {
    for count in 0..=LABELS_MAX {
        for lengths in [(2, 0), (2, 63), (63, 0), LABEL_MAX] {
            let bytes = check_cut(largest_job(labels(count, lengths)));
            if count == 0 || (count, lengths) == (LABELS_MAX, LABEL_MAX) {
                println!("the largest event of the basic view, with {count} labels: {bytes} bytes");
            }
            assert!(bytes <= BASIC_BYTES_MAX, "{count} labels of {lengths:?}: {bytes}");
        }
    }
}

/// Jobs of every size in between, with labels of every length: the bound holds for each, and nothing is left out in vain.
#[test]
fn every_event_of_the_basic_view_is_within_what_is_promised() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |most: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap_or_default() % (most + 1)
    };
    for _ in 0..2_000 {
        let count = below(LABELS_MAX);
        let key = |n: usize, length: usize| format!("{n:0width$}", width = length.max(2));
        let carried: HashMap<String, String> = (0..count)
            .map(|n| (key(n, below(LABEL_KEY_BYTES_MAX)), "v".repeat(below(LABEL_VALUE_BYTES_MAX))))
            .collect();
        let mut job = largest_job(carried);
        job.name.truncate(1 + below(62));
        job.tenant.truncate(1 + below(62));
        job.creator.truncate(below(CREATOR_BYTES_MAX));
        if below(1) == 0 {
            job.status_mut().placement = None;
        }
        let whole = bytes_of(event_of(job.clone()));
        let bytes = check_cut(job.clone());
        assert!(bytes <= BASIC_BYTES_MAX, "{bytes} bytes, {whole} of them before: {job:?}");
        assert!(
            whole > BASIC_BYTES_MAX - 32 || bytes == whole,
            "nothing had to be left out of {whole} bytes"
        );
    }
}
