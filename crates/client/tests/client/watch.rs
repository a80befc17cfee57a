//! A watch goes on exactly behind what was delivered, or says that it could not.

use std::time::Duration;

use crate::fake::{Fake, Step, endpoints, options};
use futures::StreamExt as _;
use muster_client::{Client, Options, Watch, WatchItem};
use muster_types::{Refusal, RefusalCode};
use muster_wire::status::to_status;
use muster_wire::v1;
use tonic::Status;
use v1::watch_jobs_response::Event;

fn message(log_index: u64, token: &str, event: Event) -> Result<v1::WatchJobsResponse, Status> {
    Ok(v1::WatchJobsResponse { resume_token: token.into(), log_index, event: Some(event) })
}

fn changed(log_index: u64) -> Result<v1::WatchJobsResponse, Status> {
    message(log_index, &format!("t{log_index}"), Event::Changed(v1::Job::default()))
}

fn sync_end(log_index: u64) -> Result<v1::WatchJobsResponse, Status> {
    message(log_index, &format!("t{log_index}"), Event::SyncEnd(v1::SyncEnd {}))
}

async fn watch(fakes: &[&Fake], token: &str, options: Options) -> Watch {
    let list: Vec<String> = fakes.iter().map(|f| f.endpoint()).collect();
    let client = Client::connect(endpoints(&list), options).await.unwrap();
    client.watch_jobs(v1::WatchJobsRequest { resume_token: token.into(), ..Default::default() })
}

/// `+n` changed, `=n` sync end, `!` restarted.
async fn take(watch: &mut Watch, count: usize) -> Vec<String> {
    let mut seen = Vec::new();
    for _ in 0..count {
        seen.push(match watch.next().await.unwrap() {
            WatchItem::Changed { log_index, .. } => format!("+{log_index}"),
            WatchItem::SyncEnd { log_index } => format!("={log_index}"),
            WatchItem::Restarted => "!".to_owned(),
            other => format!("{other:?}"),
        });
    }
    seen
}

fn tokens(fake: &Fake) -> Vec<String> {
    fake.script.lock().watches.iter().map(|r| r.resume_token.clone()).collect()
}

#[tokio::test]
async fn broken_streams_go_on_behind_the_last_event() {
    let broken = Err(Status::unavailable("failover"));
    let first = Fake::start([
        Step::Stream(vec![changed(1), sync_end(2), changed(3), broken], false),
        Step::Stream(vec![changed(6)], true),
    ]);
    // Ends well in between, as a server does that is shut down.
    let second = Fake::start([Step::Stream(vec![changed(4), changed(5)], false)]);
    let mut watch = watch(&[&first, &second], "", options()).await;
    assert_eq!(take(&mut watch, 6).await, ["+1", "=2", "+3", "+4", "+5", "+6"]);
    assert_eq!(tokens(&first), ["", "t5"]);
    assert_eq!(tokens(&second), ["t3"]);
    assert_eq!(watch.resume_token(), "t6");
}

#[tokio::test]
async fn a_lost_replica_is_noticed_and_left() {
    let first = Fake::start([Step::Stream(vec![changed(1)], true)]);
    let second = Fake::start([Step::Stream(vec![changed(2)], true)]);
    let mut watch = watch(&[&first, &second], "", options()).await;
    assert_eq!(take(&mut watch, 1).await, ["+1"]);
    drop(first);
    assert_eq!(take(&mut watch, 1).await, ["+2"]);
    assert_eq!(tokens(&second), ["t1"]);
}

#[tokio::test]
async fn compacted_history_is_said_and_synced_anew() {
    let compacted = to_status(&Refusal::new(RefusalCode::ResumeTokenCompacted, "too old"));
    let fake = Fake::start([
        Step::Refuse(compacted),
        Step::Stream(vec![changed(50), sync_end(51), changed(52)], true),
    ]);
    let mut watch = watch(&[&fake], "t3", options()).await;
    assert_eq!(take(&mut watch, 4).await, ["!", "+50", "=51", "+52"]);
    assert_eq!(tokens(&fake), ["t3", ""]);
}

#[tokio::test]
async fn a_sync_that_breaks_off_is_begun_again_and_said() {
    let bare = message(1, "", Event::Changed(v1::Job::default()));
    let fake = Fake::start([
        Step::Stream(vec![bare, Err(Status::unavailable("failover"))], false),
        Step::Stream(vec![changed(1), sync_end(2)], true),
    ]);
    let mut watch = watch(&[&fake], "", options()).await;
    assert_eq!(take(&mut watch, 4).await, ["+1", "!", "+1", "=2"]);
}

#[tokio::test]
async fn a_token_ahead_of_one_replica_is_shown_to_another() {
    let ahead = to_status(&Refusal::new(RefusalCode::LogIndexNotReached, "in the future"));
    let behind = Fake::start([Step::Refuse(ahead)]);
    let current = Fake::start([Step::Stream(vec![changed(8)], true)]);
    let mut watch = watch(&[&behind, &current], "t7", options()).await;
    assert_eq!(take(&mut watch, 1).await, ["+8"]);
}

#[tokio::test]
async fn refusals_end_it_and_so_does_the_deadline() {
    let refused = to_status(&Refusal::new(RefusalCode::JobNotFound, "no such job"));
    let fake = Fake::start([Step::Refuse(refused)]);
    let error = watch(&[&fake], "", options()).await.next().await.unwrap_err();
    assert_eq!(error.refused().unwrap().code, Some(RefusalCode::JobNotFound));
    let fake = Fake::start([Step::Stream(vec![changed(1)], true)]);
    let options = Options { deadline: Duration::from_millis(300), ..options() };
    let mut watch = watch(&[&fake], "", options).await;
    assert_eq!(take(&mut watch, 1).await, ["+1"]);
    drop(fake);
    assert!(watch.next().await.unwrap_err().is_unavailable());
}

#[tokio::test]
async fn a_stream_of_changes_goes_on_and_ends_with_the_first_error() {
    let broken = Err(Status::unavailable("failover"));
    let refused = Err(to_status(&Refusal::new(RefusalCode::PermissionDenied, "not yours")));
    let fake = Fake::start([
        Step::Stream(vec![changed(1), broken], false),
        Step::Stream(vec![changed(2), refused, changed(3)], false),
    ]);
    let watch = watch(&[&fake], "", options()).await;
    let items: Vec<_> = watch.into_stream().collect().await;
    let [
        Ok(WatchItem::Changed { log_index: 1, .. }),
        Ok(WatchItem::Changed { log_index: 2, .. }),
        Err(error),
    ] = &items[..]
    else {
        panic!("{items:?}");
    };
    assert_eq!(error.refused().and_then(|refused| refused.code), Some(RefusalCode::PermissionDenied));
}
