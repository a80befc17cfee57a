//! What is known of the cluster: updates come in, rows go out.
//!
//! **Invariant:** memory is bounded, whatever a cluster holds; what is left out is counted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_client::{NodeItem, QueueItem, WatchItem};

use crate::rows::{ClusterRow, EventRow, JobRow, NodeRow, Phase, QueueRow, ReplicaRow, Subject, WaitReason};
use crate::text::kept_text;

const JOBS_MAX: usize = 20_000;
const NODES_MAX: usize = 50_000;
const QUEUES_MAX: usize = 5_000;
const EVENTS_MAX: usize = 500;
/// Jobs that have ended and are still shown.
const ENDED_MAX: usize = 500;
/// Events that are made of the present, before there are others.
const FIRST_EVENTS: usize = 50;
/// Explanations that are kept.
const EXPLAINED_MAX: usize = 500;
/// How long an explanation is good for.
const EXPLAINED_FOR_MS: u64 = 10_000;
/// Silence after which nothing is taken for answered.
const SILENCE_MAX_MS: u64 = 6_000;

/// Where updates come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Feed {
    Jobs,
    Nodes,
    Queues,
    Replicas,
}

impl Feed {
    pub(crate) const ALL: [Feed; 4] = [Feed::Jobs, Feed::Nodes, Feed::Queues, Feed::Replicas];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Feed::Jobs => "jobs",
            Feed::Nodes => "nodes",
            Feed::Queues => "queues",
            Feed::Replicas => "replicas",
        }
    }
}

/// One step of a feed.
#[derive(Debug)]
pub(crate) enum Update {
    Job(WatchItem),
    Node(NodeItem),
    Queue(QueueItem),
    Cluster(ClusterRow),
    /// Why a job waits.
    Explained {
        job_id: String,
        reason: WaitReason,
    },
    /// A feed has no answer now, and goes on asking.
    Lost {
        feed: Feed,
        error: String,
    },
}

/// How a feed stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FeedState {
    /// Whether the present has been received in whole.
    pub(crate) is_complete: bool,
    /// Why there is no answer now; empty while there is one.
    pub(crate) error: String,
}

/// The model.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) jobs: BTreeMap<String, JobRow>,
    pub(crate) nodes: BTreeMap<String, NodeRow>,
    pub(crate) queues: BTreeMap<String, QueueRow>,
    pub(crate) cluster: ClusterRow,
    /// Newest first.
    pub(crate) events: VecDeque<EventRow>,
    /// The highest position of the log that an update named.
    pub(crate) log_index: u64,
    /// When something was last heard, on a monotonic clock.
    heard_ms: Option<u64>,
    /// When the replicas last answered.
    cluster_ms: Option<u64>,
    feeds: BTreeMap<Feed, FeedState>,
    /// Feeds of which rows were left out since they last began from the start.
    cut: BTreeSet<Feed>,
    ended: VecDeque<String>,
    /// Ids of nodes by id of the job that holds a part of them.
    nodes_of: BTreeMap<String, BTreeSet<String>>,
    explained: BTreeMap<String, (u64, WaitReason)>,
    has_first_events: bool,
}

impl Model {
    /// Takes in an update that was received at a moment of a monotonic clock.
    pub(crate) fn apply(&mut self, update: Update, now_ms: u64) {
        if !matches!(update, Update::Lost { .. }) {
            self.heard_ms = Some(now_ms);
        }
        match update {
            Update::Job(item) => self.apply_job(item),
            Update::Node(item) => self.apply_node(item),
            Update::Queue(item) => self.apply_queue(item),
            Update::Cluster(cluster) => {
                self.reach(cluster.log_index);
                self.cluster = cluster;
                self.cluster_ms = Some(now_ms);
                self.complete(Feed::Replicas);
            }
            Update::Explained { job_id, reason } => self.keep_reason(job_id, reason, now_ms),
            Update::Lost { feed, error } => self.feed_mut(feed).error = kept_text(&error),
        }
    }

    /// Keeps why a job waits; of too many reasons the oldest is dropped.
    fn keep_reason(&mut self, job_id: String, reason: WaitReason, now_ms: u64) {
        if self.jobs.get(&job_id).is_none_or(|job| job.state != Phase::Pending) {
            return;
        }
        if self.explained.len() >= EXPLAINED_MAX && !self.explained.contains_key(&job_id) {
            let oldest = self.explained.iter().min_by_key(|(_, (at, _))| *at).map(|(id, _)| id.clone());
            if let Some(oldest) = oldest {
                self.explained.remove(&oldest);
            }
        }
        self.explained.insert(job_id, (now_ms, reason));
    }

    fn apply_job(&mut self, item: WatchItem) {
        self.answered(Feed::Jobs);
        match item {
            WatchItem::Changed { log_index, job } => {
                self.reach(log_index);
                let row = JobRow::of(&job);
                if self.feed(Feed::Jobs).is_complete {
                    self.event(EventRow::of_job(log_index, &row));
                }
                self.put_job(row);
            }
            WatchItem::SyncEnd { log_index } => {
                self.reach(log_index);
                self.complete(Feed::Jobs);
            }
            WatchItem::Bookmark { log_index } => self.reach(log_index),
            WatchItem::Forgotten { log_index, job_id } => {
                self.reach(log_index);
                self.explained.remove(&job_id);
                if let Some(row) = self.jobs.remove(&job_id) {
                    let tenants = vec![row.tenant.clone()];
                    self.event(EventRow::forgotten(log_index, Subject::Job, &row.id, &row.tenant, tenants));
                }
            }
            WatchItem::Restarted => {
                self.jobs.clear();
                self.cut.remove(&Feed::Jobs);
                self.ended.clear();
                self.explained.clear();
                self.feed_mut(Feed::Jobs).is_complete = false;
            }
            // Of a newer client: nothing that is known here.
            _ => {}
        }
    }

    fn put_job(&mut self, row: JobRow) {
        if row.state != Phase::Pending {
            self.explained.remove(&row.id);
        }
        let is_known = self.jobs.contains_key(&row.id);
        if !is_known && self.jobs.len() >= JOBS_MAX {
            self.cut.insert(Feed::Jobs);
            return;
        }
        let had_ended = self.jobs.get(&row.id).is_some_and(|known| known.state.has_ended());
        if row.state.has_ended() && !had_ended {
            self.ended.push_back(row.id.clone());
        }
        self.jobs.insert(row.id.clone(), row);
        while self.ended.len() > ENDED_MAX {
            if let Some(oldest) = self.ended.pop_front() {
                self.jobs.remove(&oldest);
            }
        }
    }

    fn apply_node(&mut self, item: NodeItem) {
        self.answered(Feed::Nodes);
        match item {
            NodeItem::Changed { log_index, node } => {
                self.reach(log_index);
                let row = NodeRow::of(&node);
                if self.feed(Feed::Nodes).is_complete {
                    let tenants = self.tenants_on(self.nodes.get(&row.id).into_iter().chain([&row]));
                    self.event(EventRow::of_node(log_index, &row, tenants));
                }
                self.put_node(row);
            }
            NodeItem::SyncEnd { log_index } => {
                self.reach(log_index);
                self.complete(Feed::Nodes);
            }
            NodeItem::Bookmark { log_index } => self.reach(log_index),
            NodeItem::Forgotten { log_index, node_id } => {
                self.reach(log_index);
                if let Some(row) = self.nodes.remove(&node_id) {
                    self.unlink(&row);
                    let tenants = self.tenants_on([&row]);
                    self.event(EventRow::forgotten(
                        log_index,
                        Subject::Node,
                        &row.name,
                        &row.region,
                        tenants,
                    ));
                }
            }
            NodeItem::Restarted => {
                self.nodes.clear();
                self.cut.remove(&Feed::Nodes);
                self.nodes_of.clear();
                self.feed_mut(Feed::Nodes).is_complete = false;
            }
            _ => {}
        }
    }

    fn put_node(&mut self, row: NodeRow) {
        match self.nodes.remove(&row.id) {
            Some(old) => self.unlink(&old),
            None if self.nodes.len() >= NODES_MAX => {
                self.cut.insert(Feed::Nodes);
                return;
            }
            None => {}
        }
        for job in &row.job_ids {
            self.nodes_of.entry(job.clone()).or_default().insert(row.id.clone());
        }
        self.nodes.insert(row.id.clone(), row);
    }

    /// Tenants whose jobs hold a part of these nodes, by name.
    fn tenants_on<'a>(&self, nodes: impl IntoIterator<Item = &'a NodeRow>) -> Vec<String> {
        let jobs = nodes.into_iter().flat_map(|node| &node.job_ids);
        let tenants: BTreeSet<&str> =
            jobs.filter_map(|id| Some(self.jobs.get(id)?.tenant.as_str())).collect();
        tenants.into_iter().map(str::to_owned).collect()
    }

    /// The node holds no part of any job any more.
    fn unlink(&mut self, node: &NodeRow) {
        for job in &node.job_ids {
            if let Some(nodes) = self.nodes_of.get_mut(job) {
                nodes.remove(&node.id);
                if nodes.is_empty() {
                    self.nodes_of.remove(job);
                }
            }
        }
    }

    fn apply_queue(&mut self, item: QueueItem) {
        self.answered(Feed::Queues);
        match item {
            QueueItem::Changed { log_index, queues, forgotten } => {
                self.reach(log_index);
                for tenant in forgotten {
                    self.queues.remove(&tenant);
                }
                for usage in queues {
                    let row = QueueRow::of(&usage);
                    if self.queues.len() < QUEUES_MAX || self.queues.contains_key(&row.tenant) {
                        self.queues.insert(row.tenant.clone(), row);
                    } else {
                        self.cut.insert(Feed::Queues);
                    }
                }
            }
            QueueItem::SyncEnd { log_index } => {
                self.reach(log_index);
                self.complete(Feed::Queues);
            }
            QueueItem::Bookmark { log_index } => self.reach(log_index),
            QueueItem::Restarted => {
                self.queues.clear();
                self.cut.remove(&Feed::Queues);
                self.feed_mut(Feed::Queues).is_complete = false;
            }
            _ => {}
        }
    }

    fn reach(&mut self, log_index: u64) {
        self.log_index = self.log_index.max(log_index);
    }

    fn event(&mut self, event: EventRow) {
        self.events.push_front(event);
        self.events.truncate(EVENTS_MAX);
    }

    fn feed_mut(&mut self, feed: Feed) -> &mut FeedState {
        self.feeds.entry(feed).or_default()
    }

    fn answered(&mut self, feed: Feed) {
        self.feed_mut(feed).error.clear();
    }

    fn complete(&mut self, feed: Feed) {
        *self.feed_mut(feed) = FeedState { is_complete: true, error: String::new() };
        let is_complete = |feed| self.feed(feed).is_complete;
        if !self.has_first_events && is_complete(Feed::Jobs) && is_complete(Feed::Nodes) {
            self.has_first_events = true;
            self.first_events();
        }
    }

    /// The last change of each row, newest first, behind what was heard since.
    fn first_events(&mut self) {
        let oldest = self.events.back().map_or(u64::MAX, |event| event.log_index);
        let jobs = self.jobs.values().map(|job| EventRow::of_job(job.changed_at_index, job));
        let of_node =
            |node: &NodeRow| EventRow::of_node(node.changed_at_index, node, self.tenants_on([node]));
        let nodes = self.nodes.values().map(of_node);
        let mut first: Vec<EventRow> = jobs.chain(nodes).filter(|event| event.log_index < oldest).collect();
        first.sort_by(|a, b| b.log_index.cmp(&a.log_index).then_with(|| a.id.cmp(&b.id)));
        first.truncate(FIRST_EVENTS);
        self.events.extend(first);
        self.events.truncate(EVENTS_MAX);
    }

    /// How a feed stands.
    pub(crate) fn feed(&self, feed: Feed) -> FeedState {
        self.feeds.get(&feed).cloned().unwrap_or_default()
    }

    /// Whether every feed has brought the present.
    pub(crate) fn is_complete(&self) -> bool {
        Feed::ALL.into_iter().all(|feed| self.feed(feed).is_complete)
    }

    /// Whether rows are left out because there are too many.
    pub(crate) fn is_cut(&self) -> bool {
        !self.cut.is_empty()
    }

    /// Whether something was ever heard.
    pub(crate) fn has_heard(&self) -> bool {
        self.heard_ms.is_some()
    }

    /// How old what is shown may be: since the replicas last answered, and how far the one that did may have been behind.
    pub(crate) fn age_ms(&self, now_ms: u64) -> Option<u64> {
        Some(now_ms.saturating_sub(self.cluster_ms?) + self.cluster.staleness_ms?)
    }

    /// How long nothing has been heard; none while there are answers.
    pub(crate) fn silence_ms(&self, now_ms: u64) -> Option<u64> {
        let silence = now_ms.saturating_sub(self.heard_ms.unwrap_or(0));
        (silence > SILENCE_MAX_MS).then_some(silence)
    }

    /// Names of the nodes that hold a part of a job, by name.
    pub(crate) fn nodes_of(&self, job_id: &str) -> Vec<&str> {
        let ids = self.nodes_of.get(job_id).into_iter().flatten();
        let mut names: Vec<&str> = ids.filter_map(|id| Some(self.nodes.get(id)?.name.as_str())).collect();
        names.sort_unstable();
        names
    }

    /// Why a job waits, as the planner states it.
    pub(crate) fn wait_reason(&self, job_id: &str) -> Option<&WaitReason> {
        self.explained.get(job_id).map(|(_, reason)| reason)
    }

    /// Whether an explanation is missing or old.
    pub(crate) fn lacks_reason(&self, job: &JobRow, now_ms: u64) -> bool {
        let is_old = |at: u64| now_ms.saturating_sub(at) >= EXPLAINED_FOR_MS;
        job.wants_explanation() && self.explained.get(&job.id).is_none_or(|(at, _)| is_old(*at))
    }

    /// Why a job waits, stops or ended, in one text: the code, and the sentence.
    pub(crate) fn why(&self, job: &JobRow) -> String {
        let (reason, message) = match self.wait_reason(&job.id) {
            Some(known) if job.wants_explanation() && !known.reason.is_empty() => {
                (&known.reason, &known.message)
            }
            _ => (&job.reason, &job.message),
        };
        match (reason.is_empty(), message.is_empty()) {
            (true, _) => message.clone(),
            (false, true) => reason.clone(),
            (false, false) => format!("{reason}: {message}"),
        }
    }

    /// The job of a tenant that is offered capacity first: by the queue, where that is known, else the oldest that waits.
    pub(crate) fn next_of(&self, tenant: &str) -> Option<&JobRow> {
        let waiting = self.jobs.values().filter(|job| job.tenant == tenant && job.wants_explanation());
        waiting.min_by_key(|job| (self.position(job).unwrap_or(u64::MAX), job.created_ms, &job.id))
    }

    /// Requests before a job in the pending queue, where that is known.
    pub(crate) fn position(&self, job: &JobRow) -> Option<u64> {
        self.wait_reason(&job.id).filter(|_| job.wants_explanation())?.requests_before
    }

    /// Jobs at the front of the pending queue whose position is known.
    pub(crate) fn front(&self) -> Vec<(u64, &JobRow)> {
        let known = self.explained.keys().filter_map(|id| self.jobs.get(id));
        let mut front: Vec<(u64, &JobRow)> =
            known.filter_map(|job| Some((self.position(job)?, job))).collect();
        front.sort_by(|(a, job), (b, other)| {
            (a, job.created_ms, &job.id).cmp(&(b, other.created_ms, &other.id))
        });
        front
    }

    /// The replica that leads.
    pub(crate) fn leader(&self) -> Option<&ReplicaRow> {
        self.cluster.replicas.iter().find(|replica| replica.role == "leader")
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
pub(crate) mod tests;
