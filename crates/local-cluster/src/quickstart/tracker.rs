//! What a watching client has seen of the jobs, and when it saw it.

use muster_client::{Client, WatchItem};
use muster_wire::v1::{Job, JobPhase, WatchJobsRequest};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The jobs as last seen.
pub type Jobs = BTreeMap<String, Job>;

/// Follows every job through whichever replica answers.
#[derive(Clone)]
pub struct Tracker {
    jobs: Arc<Mutex<Jobs>>,
    version: watch::Receiver<u64>,
}

impl Tracker {
    /// Starts following.
    pub fn start(client: &Client) -> Tracker {
        let jobs: Arc<Mutex<Jobs>> = Arc::default();
        let (changed, version) = watch::channel(0);
        let mut events = client.watch_jobs(WatchJobsRequest::default());
        let seen = Arc::clone(&jobs);
        tokio::spawn(async move {
            loop {
                match events.next().await {
                    Ok(WatchItem::Changed { job, .. }) => {
                        let mut jobs = seen.lock();
                        jobs.insert(job.id.clone(), *job);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::warn!(%error, "the watch ended");
                        return;
                    }
                }
                changed.send_modify(|version| *version += 1);
            }
        });
        Tracker { jobs, version }
    }

    /// The jobs as last seen.
    pub fn jobs(&self) -> Jobs {
        self.jobs.lock().clone()
    }

    /// Waits until `done` holds of what was seen; when it did, or none after `limit`.
    pub async fn wait(&self, limit: Duration, done: impl Fn(&Jobs) -> bool) -> Option<Instant> {
        let mut version = self.version.clone();
        let waiting = async {
            loop {
                version.mark_unchanged();
                if done(&self.jobs()) {
                    return Some(Instant::now());
                }
                if version.changed().await.is_err() {
                    return None;
                }
            }
        };
        tokio::time::timeout(limit, waiting).await.ok().flatten()
    }
}

/// Whether the job is over.
pub fn is_finished(job: &Job) -> bool {
    matches!(job.phase(), JobPhase::Succeeded | JobPhase::Failed | JobPhase::Cancelled)
}

/// Whether the job was placed at all.
pub fn is_placed(job: &Job) -> bool {
    job.status().placement.is_some()
}

/// Where it runs, while it does.
pub fn running_in(job: &Job) -> Option<&str> {
    let active = matches!(job.phase(), JobPhase::Starting | JobPhase::Running);
    job.status().placement.as_ref().filter(|_| active).map(|p| p.region.as_str())
}
