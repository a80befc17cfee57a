//! Mutations keep their request id, replicas are rotated through, refusals come at once.

use std::time::Duration;

use crate::fake::{Fake, OUTPUT, Step, dead_endpoint, endpoints, options, silent_endpoint};
use muster_client::{AttemptError, CallError, Client, Options, Read};
use muster_types::{Refusal, RefusalCode, Violation};
use muster_wire::status::{METADATA_LEADER_ENDPOINT, METADATA_RETRY_AFTER_MS, to_status};
use muster_wire::v1;
use tonic::Status;

fn refuse(code: RefusalCode) -> Step {
    Step::Refuse(to_status(&Refusal::new(code, "for the test").with(METADATA_RETRY_AFTER_MS, 1)))
}

async fn client(list: &[String], options: Options) -> Client {
    Client::connect(endpoints(list), options).await.unwrap()
}

#[tokio::test]
async fn every_attempt_carries_the_same_request_id() {
    let fake = Fake::start([
        Step::Refuse(Status::unavailable("restarting")),
        Step::Refuse(Status::deadline_exceeded("slow")),
        refuse(RefusalCode::NotLeader),
        refuse(RefusalCode::OutcomeUnknown),
        refuse(RefusalCode::Overloaded),
        Step::Answer,
    ]);
    let client = client(&[fake.endpoint()], options()).await;
    let answer = client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    assert_eq!(answer.job_ids, ["job-1"]);
    let script = fake.script.lock();
    let ids: Vec<_> = script.submits.iter().map(|r| r.request_id.as_str()).collect();
    assert_eq!(ids.len(), 6);
    assert!(ids[0].parse::<muster_types::RequestId>().is_ok());
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[tokio::test]
async fn a_given_request_id_is_kept_and_two_calls_differ() {
    let fake = Fake::start([]);
    let client = client(&[fake.endpoint()], options()).await;
    for request_id in ["00000000-0000-0000-0000-000000000001", "", ""] {
        let request = v1::SubmitJobRequest { request_id: request_id.into(), ..Default::default() };
        client.submit_job(request).await.unwrap();
    }
    let script = fake.script.lock();
    assert_eq!(script.submits[0].request_id, "00000000-0000-0000-0000-000000000001");
    assert_ne!(script.submits[1].request_id, script.submits[2].request_id);
}

#[tokio::test]
async fn a_dead_first_endpoint_is_passed_over() {
    let fake = Fake::start([]);
    let client = client(&[dead_endpoint().await, fake.endpoint()], options()).await;
    client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
}

#[tokio::test]
async fn a_replica_that_dies_is_left_for_the_next() {
    let first = Fake::start([]);
    let second = Fake::start([]);
    let client = client(&[first.endpoint(), second.endpoint()], options()).await;
    client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    assert_eq!(first.script.lock().submits.len(), 1);
    drop(first);
    client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    assert_eq!(second.script.lock().submits.len(), 1);
}

#[tokio::test]
async fn silence_moves_on_with_the_same_request_id() {
    let first = Fake::start([Step::Hang]);
    let second = Fake::start([]);
    let options = Options { attempt_timeout: Duration::from_millis(200), ..options() };
    let client = client(&[first.endpoint(), second.endpoint()], options).await;
    client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    let first_id = first.script.lock().submits[0].request_id.clone();
    assert_eq!(second.script.lock().submits[0].request_id, first_id);
}

#[tokio::test]
async fn a_mutation_goes_by_another_way_while_a_replica_says_nothing() {
    let (first, second) = (Fake::start([Step::Hang]), Fake::start([]));
    // Without another way the one attempt would take all the time there is.
    let patient = Options { attempt_timeout: options().deadline, ..options() };
    let client = client(&[first.endpoint(), second.endpoint()], patient).await;
    client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    let submits = |fake: &Fake| fake.script.lock().submits.clone();
    assert_eq!(submits(&first)[0].request_id, submits(&second)[0].request_id);
    client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    assert_eq!((submits(&first).len(), submits(&second).len()), (1, 2), "it stays where it was answered");
}

#[tokio::test]
async fn an_answer_is_not_held_up_by_a_way_that_is_being_opened() {
    let (leader, follower) = (Fake::start([]), Fake::start([]));
    let (silent, _kept) = silent_endpoint().await;
    follower.script.lock().leader = Some(leader.endpoint());
    let client = client(&[follower.endpoint(), silent], options()).await;
    while leader.script.lock().submits.is_empty() {
        client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    }
    // The present connection is lost, and a read opens another again and again, which takes as long as it may.
    drop(follower);
    let reader = client.clone();
    let reading = tokio::spawn(async move { reader.get_job(v1::GetJobRequest::default()).await });
    leader.script.lock().steps.push_back(Step::AnswerAfter(Duration::from_millis(1_500)));
    let submitted = client.submit_job(v1::SubmitJobRequest::default());
    tokio::time::timeout(Duration::from_secs(10), submitted).await.expect("it was answered").unwrap();
    reading.abort();
}

#[tokio::test]
async fn a_replica_that_only_knows_of_no_leader_is_as_good_as_silent() {
    let refused = std::iter::repeat_with(|| refuse(RefusalCode::OutcomeUnknown)).take(10_000);
    let first = Fake::start(std::iter::once(Step::Hang).chain(refused));
    let second = Fake::start([]);
    let patient = Options { attempt_timeout: options().deadline, ..options() };
    let client = client(&[first.endpoint(), second.endpoint()], patient).await;
    let submit = || client.submit_job(v1::SubmitJobRequest::default());
    let (kept, refused) = tokio::join!(submit(), submit());
    kept.unwrap();
    refused.unwrap();
    assert!(!second.script.lock().submits.is_empty());
}

#[tokio::test]
async fn a_second_way_that_fails_is_not_the_end_while_the_first_is_silent() {
    let (first, second) = (Fake::start([Step::Hang]), Fake::start([refuse(RefusalCode::NotLeader)]));
    let patient = Options { attempt_timeout: options().deadline, ..options() };
    let client = client(&[first.endpoint(), second.endpoint()], patient).await;
    client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    let ids = |fake: &Fake| -> Vec<String> {
        fake.script.lock().submits.iter().map(|submit| submit.request_id.clone()).collect()
    };
    let mut all = ids(&first);
    all.extend(ids(&second));
    assert!(all.len() >= 3 && all.iter().all(|id| *id == all[0]), "{all:?}");
}

#[tokio::test]
async fn a_mutation_goes_back_to_the_present_replica_while_the_leader_says_nothing() {
    let (leader, follower) = (Fake::start([]), Fake::start([]));
    follower.script.lock().leader = Some(leader.endpoint());
    let patient = Options { attempt_timeout: options().deadline, ..options() };
    let client = client(&[follower.endpoint()], patient).await;
    let served = |fake: &Fake| fake.script.lock().submits.len();
    while served(&leader) == 0 {
        client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    }
    follower.script.lock().leader = None;
    leader.script.lock().steps.push_back(Step::Hang);
    let before = (served(&leader), served(&follower));
    client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    assert_eq!((served(&leader), served(&follower)), (before.0 + 1, before.1 + 1));
    client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    assert_eq!((served(&leader), served(&follower)), (before.0 + 1, before.1 + 2), "the leader is forgotten");
}

#[tokio::test]
async fn a_leader_hint_is_followed() {
    let leader = Fake::start([]);
    let hint = Refusal::new(RefusalCode::NotLeader, "ask the leader")
        .with(METADATA_LEADER_ENDPOINT, leader.endpoint())
        .with(METADATA_RETRY_AFTER_MS, 1);
    let follower = Fake::start([Step::Refuse(to_status(&hint))]);
    // The leader is not among the endpoints: only the hint can lead there.
    let client = client(&[follower.endpoint()], options()).await;
    client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    assert_eq!(leader.script.lock().submits.len(), 1);
}

#[tokio::test]
async fn a_hint_to_nowhere_is_forgotten() {
    let hint = Refusal::new(RefusalCode::NotLeader, "ask the leader")
        .with(METADATA_LEADER_ENDPOINT, dead_endpoint().await)
        .with(METADATA_RETRY_AFTER_MS, 1);
    let follower = Fake::start([Step::Refuse(to_status(&hint))]);
    let client = client(&[follower.endpoint()], options()).await;
    client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    assert_eq!(follower.script.lock().submits.len(), 2);
}

#[tokio::test]
async fn refusals_come_at_once_with_their_fields() {
    let violation = Violation::new("job.spec.groups[0].workers", "must be between 1 and 16384, got 0");
    let refusal = Refusal::fields(vec![violation.clone()]);
    let fake = Fake::start([Step::Refuse(to_status(&refusal))]);
    let client = client(&[fake.endpoint()], options()).await;
    let error = client.submit_job(v1::SubmitJobRequest::default()).await.unwrap_err();
    let CallError::Refused { refused, endpoint, .. } = &error else { panic!("{error:?}") };
    assert_eq!(refused.code, Some(RefusalCode::InvalidField));
    assert_eq!(refused.violations, [violation]);
    assert_eq!(*endpoint, fake.endpoint());
    assert!(!error.is_unavailable() && !error.is_timeout());
    assert_eq!(fake.script.lock().submits.len(), 1);
}

#[tokio::test]
async fn the_deadline_ends_it_and_names_the_request_id() {
    let fake = Fake::start(std::iter::repeat_with(|| refuse(RefusalCode::NotLeader)).take(10_000));
    let options = Options { deadline: Duration::from_millis(300), ..options() };
    let client = client(&[fake.endpoint()], options).await;
    let error = client.submit_job(v1::SubmitJobRequest::default()).await.unwrap_err();
    assert!(error.is_unavailable());
    assert_eq!(error.refused().unwrap().code, Some(RefusalCode::NotLeader));
    let CallError::DeadlineExceeded { request_id, attempts, .. } = error else { panic!() };
    let script = fake.script.lock();
    assert_eq!(request_id.as_deref(), Some(script.submits[0].request_id.as_str()));
    assert!(attempts > 1);
}

#[tokio::test]
async fn nothing_but_silence_is_a_timeout() {
    let fake = Fake::start([Step::Hang]);
    let options = Options { deadline: Duration::from_millis(200), ..options() };
    let error =
        client(&[fake.endpoint()], options).await.get_job(v1::GetJobRequest::default()).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
}

#[tokio::test]
async fn nobody_there_is_told_at_once() {
    let started = std::time::Instant::now();
    let error = Client::connect(endpoints(&[dead_endpoint().await]), Options::STANDARD).await.err().unwrap();
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
    assert!(started.elapsed() < Options::STANDARD.deadline / 2);
}

#[tokio::test]
async fn reads_wait_for_what_was_written() {
    let fake = Fake::start([]);
    let client = client(&[fake.endpoint()], options()).await;
    client.submit_job(v1::SubmitJobRequest::default()).await.unwrap();
    client.clone().get_job(v1::GetJobRequest::default()).await.unwrap();
    let read = Read::any().at_least(100).into();
    client.get_job(v1::GetJobRequest { read, ..Default::default() }).await.unwrap();
    let careless = client.with_options(Options { read_your_writes: false, ..options() });
    careless.get_job(v1::GetJobRequest::default()).await.unwrap();
    let script = fake.script.lock();
    let asked: Vec<_> = script.gets.iter().map(|r| r.read.unwrap_or_default().min_log_index).collect();
    assert_eq!(asked, [41, 100, 0]);
    assert_eq!(client.seen_log_index(), 45);
}

#[tokio::test]
async fn a_replica_behind_the_wanted_index_is_left_for_the_next() {
    let behind = Fake::start([refuse(RefusalCode::LogIndexNotReached)]);
    let ahead = Fake::start([]);
    let client = client(&[behind.endpoint(), ahead.endpoint()], options()).await;
    client.observe_log_index(40);
    client.get_job(v1::GetJobRequest::default()).await.unwrap();
    assert_eq!(ahead.script.lock().gets.len(), 1);
}

#[tokio::test]
async fn output_goes_on_behind_what_was_read() {
    let first = Fake::start([]);
    let second = Fake::start([Step::Answer, refuse(RefusalCode::LogsUnavailable)]);
    for fake in [&first, &second] {
        fake.script.lock().names_positions = true;
    }
    let client = client(&[first.endpoint(), second.endpoint()], options()).await;
    let request = v1::ReadLogsRequest { previous: true, tail_bytes: 99, ..Default::default() };
    let mut logs = client.read_logs(request).await.unwrap();
    let mut read = Vec::new();
    while let Some(piece) = logs.next().await.unwrap() {
        read.extend(piece.data);
    }
    assert_eq!(read, OUTPUT);
    let asked: Vec<_> = [&first, &second].iter().flat_map(|f| f.script.lock().logs.clone()).collect();
    assert_eq!(asked.len(), 3);
    let again: Vec<_> = asked.iter().filter(|request| request.from_position > 0).collect();
    assert_eq!(again.len(), 2);
    for request in again {
        assert_eq!(request.token, Some(v1::FencingToken { generation: 1, log_index: 7 }));
        assert!(!request.previous && request.tail_bytes == 0);
    }
}

#[tokio::test]
async fn output_that_is_refused_before_it_begins_is_refused() {
    let fake = Fake::start([refuse(RefusalCode::LogsUnavailable)]);
    let client = client(&[fake.endpoint()], options()).await;
    let error = client.read_logs(v1::ReadLogsRequest::default()).await.err().unwrap();
    assert!(matches!(error, CallError::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn output_that_is_followed_waits_for_the_start_of_its_worker() {
    let fake = Fake::start([refuse(RefusalCode::WorkerNotStarted)]);
    let client = client(&[fake.endpoint()], options()).await;
    let request = v1::ReadLogsRequest { follow: true, ..Default::default() };
    let mut logs = client.read_logs(request).await.unwrap();
    assert_eq!(logs.next().await.unwrap().unwrap().data, b"step 1\n");
    let fake = Fake::start([refuse(RefusalCode::WorkerNotStarted)]);
    let client = self::client(&[fake.endpoint()], options()).await;
    let error = client.read_logs(v1::ReadLogsRequest::default()).await.err().unwrap();
    assert!(matches!(error, CallError::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn broken_output_without_a_position_says_how_much_was_read() {
    let fake = Fake::start([]);
    let client = client(&[fake.endpoint()], options()).await;
    let mut logs = client.read_logs(v1::ReadLogsRequest::default()).await.unwrap();
    assert_eq!(logs.next().await.unwrap().unwrap().data, b"step 1\n");
    let error = logs.next().await.unwrap_err();
    assert!(
        matches!(error, CallError::StreamBroken { bytes: 7, last: AttemptError::Answer { .. }, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn reads_ask_for_what_they_say_or_what_their_client_says() {
    let fake = Fake::start([]);
    let client = client(&[fake.endpoint()], options()).await;
    client.observe_log_index(7);
    client.get_job(v1::GetJobRequest::default()).await.unwrap();
    let exact = client.reading(Read::linearizable());
    exact.get_job(v1::GetJobRequest::default()).await.unwrap();
    let read = Read::bounded(Duration::from_micros(1_500)).into();
    exact.get_job(v1::GetJobRequest { read, ..Default::default() }).await.unwrap();
    exact.reading(Read::at_log_index(3)).get_job(v1::GetJobRequest::default()).await.unwrap();
    client.reading(Read::at_time_ms(9)).get_job(v1::GetJobRequest::default()).await.unwrap();
    let asked: Vec<v1::ReadOptions> = fake.script.lock().gets.iter().filter_map(|r| r.read).collect();
    let (any, index, time) = (Read::default(), Read::at_log_index(3), Read::at_time_ms(9));
    let bounded = Read::bounded(Duration::from_millis(2));
    // What was seen goes along with the present, never with the past; each answer carries 45.
    let expected = [any.at_least(7), Read::linearizable().at_least(45), bounded.at_least(45), index, time];
    assert_eq!(asked, expected.map(v1::ReadOptions::from));
}

#[tokio::test]
async fn a_replica_that_cannot_prove_its_freshness_is_left_for_the_next() {
    for code in [RefusalCode::TooStale, RefusalCode::ReadUnconfirmed] {
        let stale = Fake::start([refuse(code)]);
        let fresh = Fake::start([]);
        let client = client(&[stale.endpoint(), fresh.endpoint()], options()).await;
        let read = Read::bounded(Duration::from_secs(1)).into();
        client.get_job(v1::GetJobRequest { read, ..Default::default() }).await.unwrap();
        let asked = |fake: &Fake| fake.script.lock().gets.len();
        assert_eq!((asked(&stale), asked(&fresh)), (1, 1), "{code}");
    }
}

#[tokio::test]
async fn a_replica_without_an_archive_is_not_asked_again() {
    let fake = Fake::start([refuse(RefusalCode::ArchiveUnavailable)]);
    let client = client(&[fake.endpoint()], options()).await.reading(Read::at_log_index(3));
    let error = client.get_job(v1::GetJobRequest::default()).await.unwrap_err();
    assert_eq!(error.refused().unwrap().code, Some(RefusalCode::ArchiveUnavailable));
    assert_eq!(fake.script.lock().gets.len(), 1);
}
