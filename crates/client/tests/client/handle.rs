//! A job is waited for by a watch, across replicas, and no wait ends before the job does.

use crate::fake::{Fake, Step, endpoints, options};
use muster_client::v1::watch_jobs_response::Event;
use muster_client::v1::{self, JobPhase};
use muster_client::{Client, JobSpec, Read, TaskGroup};
use muster_types::{Refusal, RefusalCode};
use muster_wire::status::to_status;
use tonic::Status;

fn job(phase: JobPhase, annotation: &str) -> v1::Job {
    let status = v1::JobStatus { phase: phase.into(), ..Default::default() };
    let annotations = [(annotation.to_owned(), String::new())].into();
    v1::Job { id: "job-1".into(), annotations, status: Some(status), ..Default::default() }
}

fn event(log_index: u64, event: Event) -> Result<v1::WatchJobsResponse, Status> {
    Ok(v1::WatchJobsResponse { resume_token: format!("t{log_index}"), log_index, event: Some(event) })
}

fn changed(log_index: u64, phase: JobPhase) -> Result<v1::WatchJobsResponse, Status> {
    event(log_index, Event::Changed(job(phase, "told")))
}

fn sync_end(log_index: u64) -> Result<v1::WatchJobsResponse, Status> {
    event(log_index, Event::SyncEnd(v1::SyncEnd {}))
}

fn not_found() -> Status {
    to_status(&Refusal::new(RefusalCode::JobNotFound, "there is no such job"))
}

async fn client(fakes: &[&Fake]) -> Client {
    let list: Vec<String> = fakes.iter().map(|fake| fake.endpoint()).collect();
    Client::connect(endpoints(&list), options()).await.unwrap()
}

fn reads(fake: &Fake) -> Vec<bool> {
    let linearizable = v1::ReadOptions::from(Read::linearizable()).state;
    let gets = fake.script.lock().gets.clone();
    gets.iter().map(|get| get.read.and_then(|read| read.state) == linearizable).collect()
}

#[tokio::test]
async fn a_wait_goes_on_at_the_next_replica_and_ends_with_all_of_the_job() {
    let first = Fake::start([Step::Stream(
        vec![changed(1, JobPhase::Running), sync_end(2), Err(Status::unavailable("failover"))],
        false,
    )]);
    let second = Fake::start([Step::Stream(
        vec![changed(3, JobPhase::Stopping), changed(4, JobPhase::Cancelled)],
        true,
    )]);
    second.script.lock().jobs.push_back(job(JobPhase::Cancelled, "all"));
    let ended = client(&[&first, &second]).await.job("job-1").wait().await.unwrap();
    assert!(ended.phase() == JobPhase::Cancelled && ended.annotations.contains_key("all"), "{ended:?}");
    let watches = second.script.lock().watches.clone();
    assert_eq!(watches[0].resume_token, "t2", "nothing is told twice");
    assert_eq!((watches[0].view(), reads(&first).len()), (v1::JobView::Basic, 0));
}

#[tokio::test]
async fn what_is_dropped_behind_its_end_is_what_the_last_event_said() {
    let fake = Fake::start([
        Step::Stream(vec![sync_end(1), changed(2, JobPhase::Succeeded)], true),
        // It was not there when the watch began: a read tells that it has to come.
        Step::Answer,
        Step::Refuse(not_found()),
    ]);
    let ended = client(&[&fake]).await.wait_job("job-1").await.unwrap();
    assert!(ended.phase() == JobPhase::Succeeded && ended.annotations.contains_key("told"), "{ended:?}");
    assert_eq!(reads(&fake), [true, false]);
}

#[tokio::test]
async fn a_job_that_was_not_there_at_first_and_has_ended_since_is_not_waited_for() {
    let fake = Fake::start([Step::Stream(vec![sync_end(1)], true), Step::Answer]);
    fake.script.lock().jobs.push_back(job(JobPhase::Failed, "all"));
    let ended = client(&[&fake]).await.wait_job("job-1").await.unwrap();
    assert_eq!(ended.phase(), JobPhase::Failed);
}

#[tokio::test]
async fn a_job_that_there_is_not_is_refused_and_not_waited_for() {
    let never = Fake::start([Step::Stream(vec![sync_end(1)], true), Step::Refuse(not_found())]);
    let forgotten = Fake::start([
        Step::Stream(
            vec![changed(1, JobPhase::Running), sync_end(2), event(3, Event::Forgotten("job-1".into()))],
            true,
        ),
        Step::Refuse(not_found()),
    ]);
    for fake in [never, forgotten] {
        let error = client(&[&fake]).await.wait_job("job-1").await.unwrap_err();
        assert_eq!(error.refused().unwrap().code, Some(RefusalCode::JobNotFound));
    }
}

#[tokio::test]
async fn a_phase_is_waited_for_until_it_can_come_no_more() {
    let fake = Fake::start([
        Step::Stream(vec![changed(1, JobPhase::Pending), sync_end(1), changed(2, JobPhase::Running)], true),
        Step::Answer,
        Step::Stream(vec![changed(3, JobPhase::Cancelled)], true),
        Step::Answer,
    ]);
    fake.script.lock().jobs.extend([JobPhase::Running, JobPhase::Cancelled].map(|phase| job(phase, "all")));
    let job = client(&[&fake]).await.job("job-1");
    assert_eq!(job.wait_for(JobPhase::Running).await.unwrap().phase(), JobPhase::Running);
    assert_eq!(job.wait_for(JobPhase::Starting).await.unwrap().phase(), JobPhase::Cancelled);
}

#[tokio::test]
async fn a_job_is_submitted_once_however_often_it_is_sent() {
    let fake = Fake::start([Step::Refuse(Status::unavailable("failover")), Step::Answer]);
    let spec = JobSpec::new("train", TaskGroup::process(["true"])).tenant("vision");
    let job = client(&[&fake]).await.submit(spec).await.unwrap();
    let submits = fake.script.lock().submits.clone();
    assert_eq!((job.id(), submits.len()), ("job-1", 2));
    assert_eq!(submits[0], submits[1], "under one request id");
    assert_eq!(submits[0].job.as_ref().map(|job| job.tenant.as_str()), Some("vision"));
}
