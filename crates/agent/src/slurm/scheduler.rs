//! Slurm as what another scheduler is to the agent.

use super::backend::{Backend, Call, Held, View};
use super::parse::SlurmNode;
use super::stage::Stage;
use super::{load, share};
use crate::executor::Foreign;
use crate::remote::scheduler::{Allocation, Candidate, Common, Scheduler};
use crate::rules::Placement;
use muster_types::DeviceSet;
use std::sync::Arc;
use tokio::sync::watch;

impl Scheduler for Backend {
    const NAME: &'static str = "Slurm";
    type Stage = Stage;
    type Call = Call;
    type Holds = Held;
    type View = View;

    fn common(&self) -> &Common<Backend> {
        &self.common
    }

    fn share_name(&self, placement: &Placement, place: &str) -> String {
        format!("muster-{}-{}-{}-{place}", &self.common.scope[..8], placement.job, placement.token)
    }

    fn wanted() -> Stage {
        Stage::Wanted { tried: false }
    }

    fn holds(placement: &Placement, place: &str) -> Held {
        let mut devices = DeviceSet::EMPTY;
        let (mut cpu_milli, mut memory_bytes) = (0u64, 0u64);
        for worker in &placement.workers {
            devices = devices.union(worker.devices);
            cpu_milli = cpu_milli.saturating_add(worker.cpu_milli);
            memory_bytes = memory_bytes.saturating_add(worker.memory_bytes);
        }
        Held {
            node: place.to_owned(),
            cpus: cpu_milli.div_ceil(1_000).max(1),
            memory_mib: memory_bytes.div_ceil(1 << 20).max(1),
            devices: devices.count(),
        }
    }

    async fn run(share: Allocation<Backend>) {
        share::run(share).await;
    }

    async fn poll(self: Arc<Self>) {
        self.poll_for_ever().await;
    }

    fn views(&self) -> watch::Receiver<Arc<View>> {
        Backend::views(self)
    }

    fn candidates(&self, view: &View) -> Option<Vec<Candidate>> {
        let candidate = |found: &SlurmNode| Candidate {
            place: found.name.clone(),
            is_offered: self.partition_for(view, found).is_some(),
            spec: self.describe(found),
        };
        Some(view.nodes.iter().map(candidate).collect())
    }

    async fn follow(self: Arc<Self>, place: String, said: watch::Sender<Foreign>) {
        load::follow(self, place, said).await;
    }
}
