//! Submissions over a stream: answered each by itself, repeated as calls when the stream gives none.

use std::time::Duration;

use crate::fake::{Fake, Step, endpoints, options};
use muster_client::{CallError, Client, Options};
use muster_types::{Refusal, RefusalCode};
use muster_wire::status::to_status;
use muster_wire::v1;
use tonic::Status;

async fn client(list: &[String]) -> Client {
    Client::connect(endpoints(list), options()).await.unwrap()
}

#[tokio::test]
async fn submissions_go_over_one_stream_each_with_an_id_of_its_own() {
    let fake = Fake::start([]);
    let client = client(&[fake.endpoint()]).await;
    let submitter = client.submitter();
    let all = (0..50).map(|_| {
        let submitter = submitter.clone();
        async move { submitter.submit_job(v1::SubmitJobRequest::default()).await.unwrap() }
    });
    for answer in futures::future::join_all(all).await {
        assert_eq!(answer.job_ids, ["job-1"]);
    }
    assert_eq!(client.seen_log_index(), 41);
    let script = fake.script.lock();
    let ids: std::collections::BTreeSet<_> = script.streamed.iter().map(|r| &r.request_id).collect();
    assert_eq!((script.streamed.len(), ids.len(), script.submits.len()), (50, 50, 0));
}

#[tokio::test]
async fn what_a_job_needs_is_required_of_the_replica_and_not_over_a_stream() {
    let fake = Fake::start([]);
    let client = client(&[fake.endpoint()]).await;
    let submitter = client.submitter();
    let nodes = Some(v1::NodeRequirements::default());
    let job = v1::Job { spec: Some(v1::JobSpec { nodes, ..Default::default() }), ..Default::default() };
    let request = || v1::SubmitJobRequest { job: Some(job.clone()), ..Default::default() };
    client.submit_job(request()).await.unwrap();
    submitter.submit_job(request()).await.unwrap();
    client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    let script = fake.script.lock();
    assert_eq!((script.streamed.len(), script.submits.len()), (0, 3));
    assert_eq!(script.required, ["job-nodes", "job-nodes", ""]);
}

#[tokio::test]
async fn a_refusal_that_stands_is_told_and_the_stream_goes_on() {
    let refusal = Refusal::new(RefusalCode::NeverFits, "too large");
    let fake = Fake::start([Step::Refuse(to_status(&refusal)), Step::Answer]);
    let submitter = client(&[fake.endpoint()]).await.submitter();
    let error = submitter.submit_job(v1::SubmitJobRequest::default()).await.unwrap_err();
    let CallError::Refused { refused, .. } = error else { panic!("{error}") };
    assert_eq!(refused.code, Some(RefusalCode::NeverFits));
    submitter.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    let script = fake.script.lock();
    assert_eq!((script.streamed.len(), script.submits.len()), (2, 0));
}

#[tokio::test]
async fn what_a_broken_stream_left_open_is_repeated_under_the_same_request_id() {
    let unknown = Refusal::new(RefusalCode::OutcomeUnknown, "the leader changed");
    let fake = Fake::start([
        Step::Refuse(Status::aborted("the stream breaks")),
        Step::Answer,
        Step::Refuse(to_status(&unknown)),
        Step::Answer,
    ]);
    let submitter = client(&[fake.endpoint()]).await.submitter();
    for _ in 0..2 {
        submitter.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    }
    let script = fake.script.lock();
    let ids = |requests: &[v1::SubmitJobRequest]| -> Vec<String> {
        requests.iter().map(|request| request.request_id.clone()).collect()
    };
    assert_eq!(ids(&script.streamed).len(), 2);
    assert_eq!(ids(&script.streamed), ids(&script.submits));
}

#[tokio::test]
async fn a_stream_goes_to_the_leader_that_a_replica_names_and_stays_where_there_is_no_way_to_it() {
    let (leader, follower) = (Fake::start([]), Fake::start([]));
    follower.script.lock().leader = Some(leader.endpoint());
    let submitter = client(&[follower.endpoint()]).await.submitter();
    submitter.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    assert_eq!(leader.script.lock().streamed.len(), 1);
    drop(leader);
    let submitter = client(&[follower.endpoint()]).await.submitter();
    submitter.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    assert_eq!(follower.script.lock().streamed.len(), 1);
}

#[tokio::test]
async fn a_submission_leaves_a_stream_that_says_nothing() {
    let (silent, other) = (Fake::start([Step::Hang]), Fake::start([]));
    // Without another way the stream would take all the time there is.
    let patient = Options { attempt_timeout: options().deadline, ..options() };
    let list = endpoints(&[silent.endpoint(), other.endpoint()]);
    let submitter = Client::connect(list, patient).await.unwrap().submitter();
    submitter.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    assert_eq!(silent.script.lock().streamed.len(), 1);
}

#[tokio::test]
async fn mutations_move_to_the_leader_that_was_named_and_back_when_it_is_gone() {
    let (leader, follower) = (Fake::start([]), Fake::start([]));
    follower.script.lock().leader = Some(leader.endpoint());
    let client = client(&[follower.endpoint()]).await;
    let served = |fake: &Fake| fake.script.lock().submits.len();
    let moved = async {
        while served(&leader) == 0 {
            client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(30), moved).await.expect("it moves to the leader");
    client.get_job(v1::GetJobRequest { job_id: "job-1".into(), ..Default::default() }).await.unwrap();
    assert_eq!(follower.script.lock().gets.len(), 1, "reads stay where they were");
    follower.script.lock().leader = None;
    let before = served(&follower);
    drop(leader);
    client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    assert_eq!(served(&follower), before + 1);
}
