//! How far placements are that start from images, and what each node is to fetch ahead.

use muster_types::{FencingToken, JobId, NodeId};
use std::collections::BTreeMap;

use crate::engine::Engine;
use crate::sessions::images::NodeStage;

impl Engine {
    /// What the nodes of a placement have said that they wait for; nothing at a replica that does not lead.
    #[must_use]
    pub fn start_stages(&self, job: JobId, token: FencingToken) -> BTreeMap<NodeId, NodeStage> {
        self.inner.sessions.images.stages_of((job, token))
    }
}
