//! What a worker waits for before it is launched: its image, and the files of its job.

use super::{ProcessExecutor, ProcessSettings};
use crate::process::runtime::{Images, Prepared};
use crate::process::task::TaskSpec;
use crate::process::work_files::{FilesError, Staged};
use crate::rules::{Launch, Placement, WorkerKey};
use muster_metrics::{AgentMetrics, LaunchStage};
use muster_types::StartStage;
use parking_lot::Mutex;
use std::time::Instant;

/// Tells and measures in which stage the start of a placement with images is. Nothing of it waits any more when this goes.
pub(super) struct StageClock<'a> {
    /// None for a placement without images.
    images: Option<&'a Images>,
    metrics: &'a AgentMetrics,
    placement: &'a Placement,
    since: Mutex<Option<(StartStage, Instant)>>,
}

impl<'a> StageClock<'a> {
    pub(super) fn begin(settings: &'a ProcessSettings, placement: &'a Placement) -> StageClock<'a> {
        let has_image = placement.workers.iter().any(|worker| worker.container.is_some());
        StageClock {
            images: settings.images.as_deref().filter(|_| has_image),
            metrics: &settings.metrics,
            placement,
            since: Mutex::new(None),
        }
    }

    /// The next worker in the order of its ranks waits for this.
    pub(super) fn enter(&self, stage: StartStage, image: &str) {
        let Some(images) = self.images else { return };
        let now = Instant::now();
        let before = self.since.lock().replace((stage, now));
        self.measure(before, now);
        images.stages().reached(self.placement, stage, image);
    }

    fn measure(&self, stage: Option<(StartStage, Instant)>, now: Instant) {
        let Some((stage, since)) = stage else { return };
        let stage = match stage {
            StartStage::Pulling => LaunchStage::Pulling,
            StartStage::Unpacking => LaunchStage::Unpacking,
            StartStage::Starting => LaunchStage::Starting,
        };
        self.metrics.stage_over(stage, now.saturating_duration_since(since));
    }
}

impl Drop for StageClock<'_> {
    fn drop(&mut self) {
        let Some(images) = self.images else { return };
        self.measure(self.since.lock().take(), Instant::now());
        images.stages().over(self.placement);
    }
}

impl ProcessExecutor {
    /// Has a worker's image prepared, where it has one. None where the worker has met its end meanwhile.
    pub(super) async fn image_of(
        &self,
        of: &Placement,
        worker: &Launch,
        clock: &StageClock<'_>,
    ) -> Option<Result<Option<Prepared>, String>> {
        let Some(container) = &worker.container else { return Some(Ok(None)) };
        let Some(images) = &self.shared.settings.images else {
            return Some(Err("this node has no container runtime".to_owned()));
        };
        let reached = |stage| clock.enter(stage, &container.image);
        tokio::select! {
            prepared = images.prepare(&of.tenant, container, &reached) => {
                Some(prepared.map(Some).map_err(|error| error.to_string()))
            }
            // Nobody waits for it any more: the next image need not wait for this one either.
            () = self.stopped_while_waiting(of.key(worker.rank)) => None,
        }
    }

    /// Has the files of a worker fetched, where its job has some.
    pub(super) async fn files_of(
        &self,
        placement: &Placement,
        spec: &TaskSpec,
    ) -> Result<Option<Staged>, String> {
        let Some(digest) = placement.workdir else { return Ok(None) };
        let settings = &self.shared.settings;
        let bounds = (spec.isolation.user, spec.disk_bytes_max);
        let fetched = match &settings.files {
            Some(files) => files.fetch(&settings.tasks, (spec.key, &placement.tenant), digest, bounds).await,
            None => Err(FilesError::no_store()),
        };
        fetched.map(Some).map_err(|error| error.to_string())
    }

    /// Whether a worker is still to be launched: it may have met its end while it waited for its image or files.
    pub(super) fn is_wanted(&self, placement: &Placement, worker: &Launch) -> bool {
        !waits(placement, worker) || self.shared.waiting.lock().remove(&placement.key(worker.rank))
    }

    /// Ends when a worker that waits for its image or files was told to stop.
    pub(super) async fn stopped_while_waiting(&self, key: WorkerKey) {
        self.until_told(|| !self.shared.waiting.lock().contains(&key)).await;
    }
}

/// Whether a worker needs something before it can be launched that may take long.
pub(super) fn waits(placement: &Placement, worker: &Launch) -> bool {
    worker.container.is_some() || placement.workdir.is_some()
}
