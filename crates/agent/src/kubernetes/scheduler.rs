//! Kubernetes as what another scheduler is to the agent.

use super::backend::{Backend, Call, Held, View};
use super::names::pod_name;
use super::stage::Stage;
use super::{describe, share, tpu};
use crate::executor::Foreign;
use crate::remote::scheduler::{Allocation, Candidate, Common, Scheduler};
use crate::rules::Placement;
use std::sync::Arc;
use tokio::sync::watch;

impl Scheduler for Backend {
    const NAME: &'static str = "Kubernetes";
    type Stage = Stage;
    type Call = Call;
    type Holds = Held;
    type View = View;

    fn common(&self) -> &Common<Backend> {
        &self.common
    }

    fn share_name(&self, placement: &Placement, _place: &str) -> String {
        pod_name(&self.common.scope, placement)
    }

    fn wanted() -> Stage {
        Stage::Wanted { tried: false }
    }

    fn holds(_placement: &Placement, _place: &str) -> Held {
        Held
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
        if view.number == 0 {
            return None;
        }
        let nodes = view.picture.nodes.values();
        let mut positions = tpu::positions(&self.settings, nodes.clone().map(|node| &**node));
        let candidates = nodes.map(|node| Candidate {
            place: node.name.clone(),
            is_offered: true,
            spec: describe::describe(
                &self.settings,
                node,
                view.kept_back.get(&node.name),
                positions.remove(&node.name),
            ),
        });
        Some(candidates.collect())
    }

    async fn follow(self: Arc<Self>, place: String, said: watch::Sender<Foreign>) {
        self.follow_node(place, said).await;
    }
}
