//! Lists that a watch goes on from, and how much of a job the events of a watch carry.

use muster_wire::shared::{Shared, encoded_len};
use muster_wire::time::MOMENT_MS_MAX;

use super::*;

/// What an event of the basic view may have, in addition to the labels of its job.
const BASIC_BYTES_MAX: usize = 1 << 10;

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
    let served = Served::start().await;
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
    let served = Served::start().await;
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

/// A large job in both views, as it is sent.
#[tokio::test]
async fn an_event_of_the_basic_view_is_within_1_kib() {
    let served = Served::start().await;
    let (_send, _session) = served.agent().await;
    let group = v1::TaskGroup {
        workers: 16_384,
        runtime: muster_wire::process(vec!["x".repeat(4_000); 4]),
        environment: (0..60).map(|n| v1::EnvVar::new(format!("V{n}"), "x".repeat(250))).collect(),
        ..Default::default()
    };
    let wanted = v1::Job {
        name: "n".repeat(63),
        tenant: "t".repeat(63),
        spec: Some(v1::JobSpec { groups: vec![group], ..Default::default() }),
        ..Default::default()
    };
    let request = v1::SubmitJobRequest { request_id: id_of(1), job: Some(wanted), validate_only: false };
    // One that no fleet can hold is refused, so the gang is as large as what there is; the spec is large anyway.
    let mut smaller = request.clone();
    if let Some(wanted) = &mut smaller.job {
        wanted.spec_mut().groups[0].workers = 1;
    }
    let answer = match served.jobs().submit_job(request).await {
        Ok(answer) => answer,
        Err(_) => served.jobs().submit_job(smaller).await.expect("it is taken"),
    };
    let job = answer.into_inner().job_ids[0].clone();
    let watch = |view: v1::JobView| v1::WatchJobsRequest {
        view: view.into(),
        filter: Some(v1::JobFilter { job_ids: vec![job.clone()], ..Default::default() }),
        ..Default::default()
    };
    let mut sizes = Vec::new();
    for view in [v1::JobView::Basic, v1::JobView::Full] {
        let mut events =
            guarded("a watch", served.jobs().watch_jobs(watch(view))).await.expect("it opens").into_inner();
        let seen = until(&mut events, &job).await;
        sizes.push(seen.into_iter().map(bytes_of).max().unwrap_or_default());
    }
    assert!(sizes[0] <= BASIC_BYTES_MAX, "{sizes:?}");
    assert!(sizes[1] > 30_000, "the other view has all of it: {sizes:?}");
}

/// Everything that the basic view has, each as large as it may be.
#[test]
fn the_largest_event_of_the_basic_view_is_within_1_kib() {
    let name = || "n".repeat(63);
    let time = Some(timestamp(MOMENT_MS_MAX));
    let span = Some(duration(366 * 86_400_000 - 1));
    let token = Some(v1::FencingToken { generation: u32::MAX, log_index: u64::MAX });
    let status = v1::JobStatus {
        phase: v1::JobPhase::Cancelled.into(),
        reason: "RESERVED_FOR_ANOTHER_TENANT_HERE".to_owned(),
        message: "x".repeat(80),
        attempt: u32::MAX,
        create_time: time,
        start_time: time,
        end_time: time,
        placement: Some(v1::Placement {
            token,
            region: name(),
            cluster: name(),
            create_time: time,
            ..Default::default()
        }),
        tier: v1::Tier::Critical.into(),
        worker_count: u32::MAX,
        device_count: u64::MAX,
        failures: u32::MAX,
        changed_at_index: u64::MAX,
        estimate: Some(v1::Estimate { run_time: span, run_time_p90: span }),
        preemptions: u32::MAX,
        last_checkpoint: Some(v1::Checkpoint { attempt: u32::MAX, time }),
        eligible: true,
        history: Some(v1::AttemptHistory {
            consecutive_failures: u32::MAX,
            retry_time: time,
            ..Default::default()
        }),
        ..Default::default()
    };
    let job = v1::Job {
        id: "job-zzzzzzzzzzzzz-zzzzzzz".to_owned(),
        name: name(),
        tenant: name(),
        creator: "c".repeat(160),
        array: Some(v1::ArrayMember {
            array_id: "array-zzzzzzzzzzzzz".to_owned(),
            index: u32::MAX,
            size: u32::MAX,
            ordinal: u32::MAX,
        }),
        etag: format!("{}-{}", u32::MAX, u64::MAX),
        status: Some(status),
        redacted: true,
        ..Default::default()
    };
    let token = ResumeToken::behind(u32::MAX, LogIndex(u64::MAX)).encode(CLUSTER, u64::MAX);
    let event = Some(watch_jobs_response::Event::Changed(job));
    let bytes = bytes_of(v1::WatchJobsResponse { resume_token: token, log_index: u64::MAX, event });
    assert!(bytes <= BASIC_BYTES_MAX, "{bytes}");
}
