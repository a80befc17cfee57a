//! One shape for a job in requests and in answers.

use super::*;

async fn get(served: &TestServer, job_id: &str) -> v1::Job {
    let request = v1::GetJobRequest { job_id: job_id.to_owned(), read: None };
    guarded("a job", served.jobs().get_job(request))
        .await
        .expect("it is there")
        .into_inner()
        .job
        .expect("a job")
}

#[tokio::test]
async fn a_job_that_is_shown_can_be_submitted_again() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    let mut request = submission(ONE, "again");
    let job = request.job.as_mut().expect("it has one");
    job.labels.insert("team".to_owned(), "vision".to_owned());
    job.annotations.insert("note".to_owned(), "a\nb".to_owned());
    let spec = job.spec_mut();
    spec.array = Some(v1::JobArray { size: 2, ..Default::default() });
    spec.retry_mut().max_failures = 3;
    spec.checkpoint_mut().directory = "/shared".to_owned();
    spec.groups[0].environment = vec![v1::EnvVar::new("A", "b"), v1::EnvVar::secret("TOKEN", "hub")];
    let ids = guarded("an answer", served.jobs().submit_job(request)).await.expect("it is taken");
    let ids = ids.into_inner().job_ids;
    let shown = get(&served, &ids[1]).await;
    let member = shown.array.clone().expect("it is one of an array");
    assert_eq!((member.array_id, member.index, member.size), (ids[0].replace("job-", "array-"), 1, 2));
    assert_eq!(shown.etag, format!("1-{}", shown.status().changed_at_index));
    assert!(shown.status().create_time.is_some() && shown.status().tier() == v1::Tier::Standard);

    let again = v1::SubmitJobRequest {
        request_id: TWO.to_owned(),
        job: Some(v1::Job { creator: "admin/root".to_owned(), ..shown.clone() }),
        validate_only: false,
    };
    let answer = guarded("an answer", served.jobs().submit_job(again)).await.expect("it is taken");
    // A member by itself is an array of its index alone.
    let ids = answer.into_inner().job_ids;
    assert_eq!(ids.len(), 1, "{ids:?}");
    let other = get(&served, &ids[0]).await;
    assert_eq!(other.array.as_ref().map(|member| (member.index, member.size)), Some((1, 1)));
    assert_eq!((&other.name, &other.tenant, &other.labels), (&shown.name, &shown.tenant, &shown.labels));
    assert_eq!((&other.annotations, &other.spec), (&shown.annotations, &shown.spec));
    assert!(other.id != shown.id && other.creator == "anonymous", "{other:?}");
}

#[tokio::test]
async fn what_no_release_can_run_is_refused_by_every_call_that_takes_a_job() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    let mut request = submission(ONE, "contained");
    let container = v1::ContainerRuntime {
        image: "example.org/train:1".to_owned(),
        user: "1000".to_owned(),
        ..Default::default()
    };
    let groups = &mut request.job.as_mut().expect("it has one").spec_mut().groups;
    groups[0].runtime = Some(v1::task_group::Runtime::Container(container));
    let job = request.job.clone();
    let batch = v1::SubmitJobsRequest {
        request_id: TWO.to_owned(),
        jobs: submission(ONE, "fine").job.into_iter().chain(job.clone()).collect(),
        ..Default::default()
    };
    let plan = v1::PlanJobRequest { job, read: None };
    let mut jobs = served.jobs();
    let refusals = [
        refused(guarded("an answer", jobs.submit_job(request)).await),
        refused(guarded("an answer", jobs.submit_jobs(batch)).await),
        refused(guarded("an answer", jobs.plan_job(plan)).await),
    ];
    for refusal in refusals {
        assert_eq!(
            (refusal.grpc, refusal.code),
            (Code::FailedPrecondition, Some(RefusalCode::FeatureUnknown))
        );
        assert_eq!(refusal.metadata["feature"], "container.user", "{refusal:?}");
    }
}

#[tokio::test]
async fn a_call_that_requires_what_nobody_knows_is_refused_and_changes_nothing() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    let requiring = |features: &str| {
        let mut request = Request::new(submission(ONE, "requiring"));
        let features = features.parse().expect("it is ASCII");
        request.metadata_mut().insert(muster_wire::features::REQUIRED_FEATURES, features);
        request
    };
    let mut jobs = served.jobs();
    let unknown = jobs.submit_job(requiring("job-nodes,time-travel"));
    let refusal = refused(guarded("an answer", unknown).await);
    assert_eq!((refusal.grpc, refusal.code), (Code::FailedPrecondition, Some(RefusalCode::FeatureUnknown)));
    assert_eq!(refusal.metadata["feature"], "time-travel", "{refusal:?}");
    let listed = guarded("a list", jobs.list_jobs(v1::ListJobsRequest::default())).await;
    assert!(listed.expect("it is answered").into_inner().jobs.is_empty());
    guarded("an answer", jobs.submit_job(requiring("job-nodes"))).await.expect("it is known");
}
