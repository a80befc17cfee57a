//! Where updates come from: watches of jobs, nodes and queues, the status of replicas, and explanations.
//!
//! **Invariant:** what a watch tells is never listed again; a watch that lost its replica goes on behind its last event.

use std::time::Duration;

use muster_client::{CallError, Client, Options, Watch, Watched};
use muster_console::with_causes;
use muster_wire::time::span_ms;
use muster_wire::v1;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::model::{Feed, Update};
use crate::rows::{ClusterRow, ReplicaRow, WaitReason};
use crate::text::kept_text;

/// Updates that wait for the view; a feed waits when there are more.
const WAITING_MAX: usize = 1_024;
/// Between two questions about the replicas, for which there is no watch.
const STATUS_EVERY: Duration = Duration::from_secs(2);
/// Between two explanations: each costs a replica a plan.
const EXPLAIN_EVERY: Duration = Duration::from_millis(200);
/// How long a feed that failed pauses.
const PAUSE: Duration = Duration::from_secs(1);
/// How long one that was refused pauses.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
/// Patience of one call. A watch that makes no progress for so long says why, and goes on.
const DEADLINE: Duration = Duration::from_secs(4);
/// More replicas than that are a broken answer.
const REPLICAS_MAX: usize = 64;
/// Warnings that are kept.
const WARNINGS_MAX: usize = 32;
/// Phases of jobs that have not ended: the present of all others is not asked for.
const PHASES: [v1::JobPhase; 4] =
    [v1::JobPhase::Pending, v1::JobPhase::Starting, v1::JobPhase::Running, v1::JobPhase::Stopping];

/// The feeds; dropped, they end.
pub(crate) struct Feeds {
    pub(crate) updates: mpsc::Receiver<Update>,
    /// Jobs that are to be explained, the first ones first.
    pub(crate) to_explain: watch::Sender<Vec<String>>,
    /// Ended with this value.
    _tasks: JoinSet<()>,
}

impl Feeds {
    /// Begins all feeds.
    pub(crate) fn start(client: &Client) -> Feeds {
        let options = Options { deadline: DEADLINE, attempt_timeout: DEADLINE, ..client.options().clone() };
        let client = client.with_options(options);
        let (sender, updates) = mpsc::channel(WAITING_MAX);
        let (to_explain, wanted) = watch::channel(Vec::new());
        let mut tasks = JoinSet::new();
        let filter = v1::JobFilter { phases: PHASES.map(i32::from).to_vec(), ..Default::default() };
        let jobs = v1::WatchJobsRequest {
            filter: Some(filter),
            view: v1::JobView::Basic.into(),
            ..Default::default()
        };
        tasks.spawn(follow(client.watch_jobs(jobs), Feed::Jobs, Update::Job, sender.clone()));
        let nodes = client.watch_nodes(v1::WatchNodesRequest::default());
        tasks.spawn(follow(nodes, Feed::Nodes, Update::Node, sender.clone()));
        let queues = client.watch_tenants(v1::WatchTenantsRequest::default());
        tasks.spawn(follow(queues, Feed::Queues, Update::Queue, sender.clone()));
        tasks.spawn(ask_replicas(client.clone(), sender.clone()));
        tasks.spawn(explain(client, wanted, sender));
        Feeds { updates, to_explain, _tasks: tasks }
    }
}

/// Follows one watch for ever.
async fn follow<W: Watched>(
    mut watch: Watch<W>,
    feed: Feed,
    update: fn(W::Item) -> Update,
    sender: mpsc::Sender<Update>,
) where
    W::Item: Send,
{
    loop {
        let next = match watch.next().await {
            Ok(item) => update(item),
            Err(error) => {
                let lost = Update::Lost { feed, error: with_causes(&error) };
                if sender.send(lost).await.is_err() {
                    return;
                }
                tokio::time::sleep(pause_after(&error)).await;
                continue;
            }
        };
        if sender.send(next).await.is_err() {
            return;
        }
    }
}

fn pause_after(error: &CallError) -> Duration {
    if matches!(error, CallError::Refused { .. }) { REFUSED_PAUSE } else { PAUSE }
}

async fn ask_replicas(client: Client, sender: mpsc::Sender<Update>) {
    loop {
        let update = match client.get_status(v1::GetStatusRequest::default()).await {
            Ok(first) => Update::Cluster(cluster(&client, first).await),
            Err(error) => Update::Lost { feed: Feed::Replicas, error: with_causes(&error) },
        };
        if sender.send(update).await.is_err() {
            return;
        }
        tokio::time::sleep(STATUS_EVERY).await;
    }
}

/// What every replica says, put together.
async fn cluster(client: &Client, first: v1::GetStatusResponse) -> ClusterRow {
    let own = first.freshness.as_ref().map(|freshness| freshness.replica_id);
    let mut replicas: Vec<ReplicaRow> =
        first.replicas.iter().take(REPLICAS_MAX).map(ReplicaRow::named).collect();
    let mut asking = JoinSet::new();
    for (place, known) in first.replicas.iter().take(REPLICAS_MAX).enumerate() {
        if own == Some(known.id) || known.client_endpoint.is_empty() {
            continue;
        }
        let (client, endpoint) = (client.clone(), known.client_endpoint.clone());
        asking.spawn(async move { (place, client.get_status_of(&endpoint).await) });
    }
    let mut answers = Vec::new();
    if let Some(place) = first.replicas.iter().position(|known| own == Some(known.id)) {
        answers.push((place, first.clone()));
    }
    while let Some(answered) = asking.join_next().await {
        match answered {
            Ok((place, Ok(status))) => answers.push((place, status)),
            Ok((place, Err(error))) => {
                if let Some(replica) = replicas.get_mut(place) {
                    replica.error = kept_text(&with_causes(&error));
                }
            }
            Err(_) => {}
        }
    }
    let mut warnings: Vec<String> = Vec::new();
    for (place, status) in &answers {
        if let Some(replica) = replicas.get_mut(*place) {
            replica.answered(status);
        }
        for warning in &status.warnings {
            let text = kept_text(&format!("{}: {}", warning.code, warning.message));
            if warnings.len() < WARNINGS_MAX && !warnings.contains(&text) {
                warnings.push(text);
            }
        }
    }
    // Only the leader knows what the others lack.
    let leads = |status: &v1::GetStatusResponse| status.role() == v1::ReplicaRole::Leader;
    if let Some((_, status)) = answers.iter().find(|(_, status)| leads(status)) {
        for (replica, known) in
            replicas.iter_mut().zip(&status.replicas).filter(|(row, known)| row.id == known.id)
        {
            (replica.lag_entries, replica.silence_ms) = (known.lag_entries, span_ms(known.silence));
        }
    }
    let freshness = first.freshness.unwrap_or_default();
    ClusterRow {
        cluster_id: kept_text(&first.cluster_id),
        log_index: freshness.log_index,
        staleness_ms: span_ms(freshness.staleness),
        replicas,
        warnings,
    }
}

/// Explains jobs as long as there are some to explain.
async fn explain(client: Client, mut wanted: watch::Receiver<Vec<String>>, sender: mpsc::Sender<Update>) {
    // Calls without an answer, one after the other: after each of them it is another job's turn.
    let mut unanswered: usize = 0;
    loop {
        let next = {
            let wanted = wanted.borrow_and_update();
            wanted.get(unanswered % wanted.len().max(1)).cloned()
        };
        let Some(job_id) = next else {
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        };
        let request = v1::ExplainJobRequest { job_id: job_id.clone(), ..Default::default() };
        let reason = match client.explain_job(request).await {
            Ok(answer) => answer.explanation.as_ref().map(WaitReason::of).unwrap_or_default(),
            // It may have started or ended: there is nothing to explain until it is asked for again.
            Err(CallError::Refused { .. }) => WaitReason::default(),
            // No answer says nothing about the job: what is known of it stays.
            Err(_) => {
                unanswered = unanswered.wrapping_add(1);
                tokio::time::sleep(PAUSE).await;
                if sender.is_closed() || wanted.has_changed().is_err() {
                    return;
                }
                continue;
            }
        };
        unanswered = 0;
        if sender.send(Update::Explained { job_id: job_id.clone(), reason }).await.is_err() {
            return;
        }
        tokio::time::sleep(EXPLAIN_EVERY).await;
        // The view may not have taken it in yet.
        let is_same = wanted.borrow().contains(&job_id);
        if is_same
            && tokio::time::timeout(PAUSE, wanted.changed()).await.is_ok_and(|changed| changed.is_err())
        {
            return;
        }
    }
}
