//! The leader dies while clients go on: nothing is lost, nothing comes twice, watches go on exactly.

use muster_client::{Client, WatchItem};
use muster_wire::v1;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::{Agents, Cluster, PATIENCE, all_jobs, heavy, is_finished, job, say};

const KILLS: usize = 3;
const CLIENTS: u32 = 3;
/// Between two submissions of one client, whether or not the one before was answered.
const PERIOD: Duration = Duration::from_millis(150);
/// Acknowledged requests between two steps of the story.
const STRIDE: u64 = 20;

/// One change of a job, as a watch delivered it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct JobChange {
    log_index: u64,
    id: String,
    changed_at_index: u64,
    phase: i32,
}

/// The next change; none for an item that is none.
async fn next_change(watch: &mut muster_client::Watch) -> Option<(JobChange, Box<v1::Job>)> {
    let item = watch.next().await.unwrap_or_else(|error| panic!("the watch ended: {error:?}"));
    match item {
        WatchItem::Changed { log_index, job } => {
            let (id, changed_at_index) = (job.id.clone(), job.status().changed_at_index);
            Some((JobChange { log_index, id, changed_at_index, phase: job.status().phase }, job))
        }
        WatchItem::SyncEnd { .. } | WatchItem::Bookmark { .. } => None,
        other => panic!("the watch lost its place: {other:?}"),
    }
}

/// Everything one watch was told, across whatever happens to the replicas.
#[derive(Clone, Default)]
struct History {
    changes: Arc<Mutex<Vec<JobChange>>>,
    finished: watch::Sender<BTreeSet<String>>,
}

impl History {
    async fn record(self, mut watch: muster_client::Watch) {
        loop {
            let Some((seen, job)) = next_change(&mut watch).await else { continue };
            self.changes.lock().push(seen);
            if is_finished(&job) {
                self.finished.send_modify(|ids| {
                    ids.insert(job.id);
                });
            }
        }
    }

    fn changes(&self) -> Vec<JobChange> {
        self.changes.lock().clone()
    }
}

/// One client that submits at its own pace. Every request is answered in the end: the client library
/// repeats it under its id until it is.
async fn submit_in_open_loop(
    client: Client,
    who: u32,
    answers: watch::Sender<BTreeMap<String, String>>,
    mut stop: watch::Receiver<bool>,
) {
    let mut ticks = tokio::time::interval(PERIOD);
    let mut open = JoinSet::new();
    for number in 0u32.. {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
        let (client, answers) = (client.clone(), answers.clone());
        open.spawn(async move {
            let name = format!("c{who}-{number}");
            let request = v1::SubmitJobRequest { job: Some(job(&name, &["true"])), ..Default::default() };
            let answer = client.submit_job(request).await;
            let id = answer.unwrap_or_else(|e| panic!("submitting {name}: {e:?}")).job_ids.remove(0);
            if number % 5 == 0 {
                // May come too late for a short job; then it is refused, which is an answer as well.
                let request = v1::CancelJobRequest { job_id: id.clone(), ..Default::default() };
                if let Err(error) = client.cancel_job(request).await {
                    let code = error.refused().and_then(|refused| refused.code);
                    assert_eq!(code, Some(muster_types::RefusalCode::JobFinished), "{error:?}");
                }
            }
            answers.send_modify(|all| {
                all.insert(name, id);
            });
        });
    }
    while let Some(done) = open.join_next().await {
        if let Err(error) = done {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_kill_under_load() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let _agents = Agents::start(&cluster, &["h1"]).await;
    let client = cluster.client();

    // The watch begins before the first job, so that it is told everything there is.
    let mut watch = client.watch_jobs(v1::WatchJobsRequest::default());
    assert!(matches!(watch.next().await.unwrap(), WatchItem::SyncEnd { .. }));
    let beginning = watch.resume_token().to_owned();
    let history = History::default();
    let recording = tokio::spawn(history.clone().record(watch));

    let answers: watch::Sender<BTreeMap<String, String>> = watch::Sender::default();
    let (stop, stopped) = watch::channel(false);
    let mut clients = JoinSet::new();
    for who in 0..CLIENTS {
        clients.spawn(submit_in_open_loop(cluster.client(), who, answers.clone(), stopped.clone()));
    }
    for _ in 0..KILLS {
        progress(&answers).await;
        let leader = cluster.leader().await;
        cluster.kill(leader).await;
        // Two of three go on.
        progress(&answers).await;
        cluster.start_replica(leader);
        cluster.caught_up(leader, client.seen_log_index()).await;
    }
    progress(&answers).await;
    stop.send_replace(true);
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }

    let answers = answers.borrow().clone();
    let expected: BTreeSet<String> = answers.values().cloned().collect();
    assert_eq!(expected.len(), answers.len(), "two requests were answered with one job");
    let mut finished = history.finished.subscribe();
    let all_finished = tokio::time::timeout(PATIENCE, finished.wait_for(|ids| expected.is_subset(ids))).await;
    drop(all_finished.expect("the watch does not tell of the end of every job").unwrap());
    assert!(!recording.is_finished(), "the watch ended");
    recording.abort();

    // What there is, is what was acknowledged.
    let jobs = all_jobs(&client).await;
    let listed: BTreeMap<String, String> =
        jobs.iter().map(|job| (job.name.clone(), job.id.clone())).collect();
    assert_eq!(listed, answers, "the list and the answers differ");
    assert_eq!(jobs.len(), answers.len(), "a name is there twice");

    // What was watched is in log order, each change once, and ends with what is listed.
    let changes = history.changes();
    assert!(changes.is_sorted_by_key(|seen| seen.log_index), "not in log order");
    let mut once = BTreeSet::new();
    let mut last: BTreeMap<&str, &JobChange> = BTreeMap::new();
    for seen in &changes {
        assert!(once.insert((&seen.id, seen.changed_at_index)), "delivered twice: {seen:?}");
        last.insert(&seen.id, seen);
    }
    for job in &jobs {
        let seen = last[job.id.as_str()];
        assert_eq!(
            (seen.phase, seen.changed_at_index),
            (job.status().phase, job.status().changed_at_index),
            "{}",
            job.id
        );
    }

    // Each replica tells the same history from the same beginning, restarted or not.
    for at in 0..3 {
        let request = v1::WatchJobsRequest { resume_token: beginning.clone(), ..Default::default() };
        let mut watch = cluster.client_of(at).watch_jobs(request);
        let mut again = Vec::new();
        let telling = async {
            while again.len() < changes.len() {
                again.extend(next_change(&mut watch).await.map(|(seen, _)| seen));
            }
        };
        let told = tokio::time::timeout(PATIENCE, telling).await;
        assert!(told.is_ok(), "replica {at} tells {} of {} changes", again.len(), changes.len());
        assert_eq!(again, changes, "replica {at} tells another history");
    }
    cluster.assert_digests_agree().await;
    say(&format!(
        "leader kill under load: {KILLS} kills, {} jobs acknowledged, 0 lost, 0 twice, {} changes watched in order, each once",
        jobs.len(),
        changes.len()
    ));
}

/// Waits for some more answers.
async fn progress(answers: &watch::Sender<BTreeMap<String, String>>) {
    let mut answers = answers.subscribe();
    let until = answers.borrow_and_update().len() as u64 + STRIDE;
    let more = tokio::time::timeout(PATIENCE, answers.wait_for(|all| all.len() as u64 >= until)).await;
    assert!(more.is_ok_and(|more| more.is_ok()), "no submission was acknowledged any more");
}
