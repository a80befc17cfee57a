//! Watches that nothing gets lost of: slow ones, ones that come back late, and ones of queues and nodes.

use muster_client::{NodeItem, QueueItem, WatchItem};
use muster_types::RefusalCode;
use muster_wire::status::Refused;
use muster_wire::v1;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::v1::watch_jobs_response::Event;

use crate::support::{Cluster, PATIENCE, eventually, heavy, job, node, register, say};

/// Changes that a replica keeps in memory, and some more.
const MORE_THAN_KEPT: usize = 70_000;
const BATCH: usize = 1_000;
/// Bytes of a stream that its reader has not taken.
const WINDOW_BYTES: u32 = 65_535;
/// Snapshots and segments every moment, so that the log is purged within a test.
const EAGER: &str =
    "\n[snapshots]\nevery_entries = 20\nkept_entries = 5\n\n[archive]\nsegment_age = \"200ms\"\n";

/// One change that a watcher was told of: the record, and which job.
type Change = (u64, String);

/// Reads until the stream ends or has come to a record; what it told of, its last token and how it ended.
async fn read(
    stream: &mut tonic::Streaming<v1::WatchJobsResponse>,
    up_to: u64,
) -> (Vec<Change>, String, Option<Refused>) {
    let mut told = Vec::new();
    let mut token = String::new();
    let reading = async {
        loop {
            match stream.message().await {
                Ok(Some(message)) => {
                    if !message.resume_token.is_empty() {
                        token = message.resume_token;
                    }
                    if let Some(Event::Changed(job)) = message.event {
                        told.push((message.log_index, job.id));
                    }
                    if message.log_index >= up_to {
                        return None;
                    }
                }
                Ok(None) => panic!("the watch ended without a word"),
                Err(status) => return Some(Refused::from_status(&status)),
            }
        }
    };
    let ended = tokio::time::timeout(PATIENCE * 2, reading).await.expect("the watch stands still");
    (told, token, ended)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_watcher_is_cut_with_its_place_and_goes_on_there_exactly() {
    let _heavy = heavy().await;
    let cluster = Cluster::start_with(1, 0, "\n[archive]\nsegment_age = \"200ms\"\n").await;
    let client = cluster.client();
    let channel =
        tonic::transport::Endpoint::from_shared(cluster.replicas[0].endpoint()).expect("an address");
    // Little on the way: what is not taken waits at the replica.
    let channel =
        channel.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
    let mut jobs = JobServiceClient::new(channel.connect().await.expect("it listens"));
    let watch = jobs.watch_jobs(v1::WatchJobsRequest::default()).await.expect("it opens");
    let mut slow = watch.into_inner();
    // It takes the present, and then nothing for a while.
    loop {
        let message = slow.message().await.expect("it stands").expect("the present");
        if message.event == Some(Event::SyncEnd(v1::SyncEnd {})) {
            break;
        }
    }
    let mut submitted = 0;
    while submitted < MORE_THAN_KEPT {
        let specs = (0..BATCH).map(|n| job(&format!("job-{}", submitted + n), &["true"])).collect();
        let request = v1::SubmitJobsRequest { jobs: specs, ..Default::default() };
        submitted += client.submit_jobs(request).await.expect("they are taken").job_ids.len();
    }
    // A record with one change: a reader that has come to it has come to the end.
    let last = v1::SubmitJobRequest { job: Some(job("last", &["true"])), ..Default::default() };
    client.submit_job(last).await.expect("it is taken");
    submitted += 1;
    let end = client.seen_log_index();
    let (mut told, token, ended) = read(&mut slow, end).await;
    let ended = ended.expect("what it has not read is not kept for it");
    // A slow machine notices first that nothing was taken.
    let codes = [RefusalCode::ResumeTokenCompacted, RefusalCode::Overloaded];
    assert!(ended.code.is_some_and(|code| codes.contains(&code)), "{ended}");
    assert_eq!(ended.metadata["resume_token"], token, "behind all that was sent");
    let before = told.len();
    assert!(before > 0 && before < MORE_THAN_KEPT, "{before} changes were read");
    let request = v1::WatchJobsRequest { resume_token: token, ..Default::default() };
    let mut again = jobs.watch_jobs(request).await.expect("the archive has it").into_inner();
    let (rest, _, ended) = read(&mut again, end).await;
    assert_eq!(ended, None);
    told.extend(rest);
    assert!(told.is_sorted_by_key(|(index, _)| *index), "not in log order");
    // Each job was submitted, and whatever else has happened to it came behind that, each once.
    let mut once = told.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), told.len(), "a change was told twice");
    let known: std::collections::BTreeSet<&String> = told.iter().map(|(_, id)| id).collect();
    assert_eq!(known.len(), submitted, "a job was never told of");
    say(&format!(
        "a slow watcher: cut behind {before} changes, the other {} from the archive, none lost, none twice",
        told.len() - before
    ));
}

/// The replicas of a cluster that purges its log every moment.
async fn purging() -> Cluster {
    let mut cluster = Cluster::lay_out_with(3, 0, EAGER);
    cluster.found().await;
    cluster
}

async fn submit(cluster: &Cluster, count: usize, what: &str) -> u64 {
    let client = cluster.client();
    for number in 0..count {
        let wanted = Some(job(&format!("{what}-{number}"), &["true"]));
        let request = v1::SubmitJobRequest { job: wanted, ..Default::default() };
        client.submit_job(request).await.expect("it is taken");
    }
    client.seen_log_index()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_snapshot_took_a_replica_past_its_archive_gets_from_a_peer() {
    let _heavy = heavy().await;
    let mut cluster = purging().await;
    let early = submit(&cluster, 20, "early").await;
    let late = cluster.follower().await;
    cluster.caught_up(late, early).await;
    cluster.stop(late).await;
    let last = submit(&cluster, 120, "meanwhile").await;
    let leader = cluster.leader().await;
    // The others no longer have in their logs what the late one lacks.
    let gone = eventually("the log was not purged", || async {
        let status = cluster.status_of(leader).await.ok()?;
        (status.raft_snapshot_index > 100).then_some(status.raft_snapshot_index)
    })
    .await;
    cluster.start_replica(late);
    cluster.caught_up(late, last).await;
    let filled = eventually("the archive was not filled", || async {
        cluster.log_of(late).contains("the archive got what it lacked from its peers").then_some(())
    });
    filled.await;
    let end = submit(&cluster, 30, "after").await;
    let status = eventually("the archive goes on", || async {
        let status = cluster.client_of(late).get_archive_status().await.ok()?;
        (status.last_log_index >= last).then_some(status)
    })
    .await;
    assert!(status.gaps.is_empty() && status.first_log_index == 1, "{status:?}");
    // Everything, read there: from the first record on, and as a watch from before it went.
    cluster.caught_up(late, end).await;
    let request = v1::ReadDecisionsRequest { from_index: 1, to_index: end, ..Default::default() };
    let mut reader = cluster.client_of(late).read_decisions(request);
    let mut next = 1;
    while let Some(item) = reader.next().await.expect("the log can be read") {
        if let muster_client::LogItem::Record(record) = item {
            assert_eq!(record.log_index, next);
            next += 1;
        }
    }
    assert_eq!(next, end + 1);
    cluster.stop(late).await;
    let archive = cluster.replicas[late].data().join("archive");
    let archive = archive.to_str().expect("the test's directory is text");
    let ran = crate::support::run_to_end(&["log", "verify", "--archive", archive], "").await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    // With no archive at all it gets everything again.
    std::fs::remove_dir_all(archive).expect("the archive can be taken away");
    cluster.start_replica(late);
    cluster.assert_digests_agree().await;
    eventually("an empty archive was not filled", || async {
        let status = cluster.client_of(late).get_archive_status().await.ok()?;
        (status.first_log_index == 1 && status.gaps.is_empty() && status.last_log_index >= last).then_some(())
    })
    .await;
    cluster.stop(late).await;
    let ran = crate::support::run_to_end(&["log", "verify", "--archive", archive], "").await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    say(&format!(
        "an archive without what a snapshot through entry {gone} replaced: filled from a peer, whole"
    ));
}

/// Jobs, nodes and queues, watched from before everything through restarts and purges: the same on every
/// replica, whatever is still in its memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_watchers_are_told_everything_by_every_replica() {
    let _heavy = heavy().await;
    let mut cluster = purging().await;
    let client = cluster.client();
    let mut jobs = client.watch_jobs(v1::WatchJobsRequest::default());
    let mut nodes = client.watch_nodes(v1::WatchNodesRequest::default());
    let mut queues = client.watch_tenants(v1::WatchTenantsRequest::default());
    while !matches!(jobs.next().await.expect("it opens"), WatchItem::SyncEnd { .. }) {}
    while !matches!(nodes.next().await.expect("it opens"), NodeItem::SyncEnd { .. }) {}
    while !matches!(queues.next().await.expect("it opens"), QueueItem::SyncEnd { .. }) {}
    let tokens =
        (jobs.resume_token().to_owned(), nodes.resume_token().to_owned(), queues.resume_token().to_owned());
    let leader = cluster.leader().await;
    register(&cluster.replicas[leader].endpoint(), node("late")).await.expect("it is registered");
    let end = submit(&cluster, 60, "work").await;
    for at in 0..3 {
        cluster.caught_up(at, end).await;
        eventually("the log was not purged", || async {
            (cluster.status_of(at).await.ok()?.raft_snapshot_index > 20).then_some(())
        })
        .await;
    }
    for at in 0..3 {
        cluster.stop(at).await;
    }
    cluster.start_all();
    cluster.leader().await;
    let mut all = Vec::new();
    for at in 0..3 {
        cluster.caught_up(at, end).await;
        all.push(
            tokio::time::timeout(PATIENCE, told_by(&cluster, at, &tokens, end)).await.expect("it tells"),
        );
    }
    assert!(all[0].0.len() >= 60, "{} changes of jobs", all[0].0.len());
    assert!(all[0].1.iter().any(|line| line.contains("late")), "{:?}", all[0].1);
    assert!(!all[0].2.is_empty());
    assert_eq!(all[0], all[1]);
    assert_eq!(all[0], all[2]);
    cluster.assert_digests_agree().await;
}

/// What one replica tells of jobs, nodes and queues behind these tokens, up to a record.
async fn told_by(
    cluster: &Cluster,
    at: usize,
    tokens: &(String, String, String),
    end: u64,
) -> (Vec<String>, Vec<String>, Vec<String>) {
    let client = cluster.client_of(at);
    let (mut of_jobs, mut of_nodes, mut of_queues) = (Vec::new(), Vec::new(), Vec::new());
    let request = v1::WatchJobsRequest { resume_token: tokens.0.clone(), ..Default::default() };
    let mut jobs = client.watch_jobs(request);
    loop {
        match jobs.next().await.expect("it tells") {
            WatchItem::Changed { log_index, .. } | WatchItem::Bookmark { log_index } if log_index > end => {
                break;
            }
            WatchItem::Changed { log_index, job } => of_jobs.push(format!("{log_index} {job:?}")),
            WatchItem::Bookmark { log_index } if log_index == end => break,
            WatchItem::Restarted => panic!("replica {at} has lost the place"),
            _ => {}
        }
    }
    let request = v1::WatchNodesRequest { resume_token: tokens.1.clone(), ..Default::default() };
    let mut nodes = client.watch_nodes(request);
    loop {
        match nodes.next().await.expect("it tells") {
            NodeItem::Changed { log_index, .. } | NodeItem::Bookmark { log_index } if log_index > end => {
                break;
            }
            NodeItem::Changed { log_index, node } => of_nodes.push(format!("{log_index} {node:?}")),
            NodeItem::Bookmark { log_index } if log_index == end => break,
            NodeItem::Restarted => panic!("replica {at} has lost the place"),
            _ => {}
        }
    }
    let request = v1::WatchTenantsRequest { resume_token: tokens.2.clone(), ..Default::default() };
    let mut queues = client.watch_tenants(request);
    loop {
        match queues.next().await.expect("it tells") {
            QueueItem::Changed { log_index, .. } | QueueItem::Bookmark { log_index } if log_index > end => {
                break;
            }
            QueueItem::Changed { log_index, queues, forgotten } => {
                let counts = queues.iter().map(|q| (&q.tenant, q.pending_jobs, q.active_jobs));
                of_queues.push(format!("{log_index} {:?} {forgotten:?}", counts.collect::<Vec<_>>()));
            }
            QueueItem::Bookmark { log_index } if log_index == end => break,
            QueueItem::Restarted => panic!("replica {at} has lost the place"),
            _ => {}
        }
    }
    (of_jobs, of_nodes, of_queues)
}
