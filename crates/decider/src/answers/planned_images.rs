//! The images that hosts will need soon: of gangs that wait, and whose hosts are known already.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use muster_state::{Phase, State};
use muster_types::{JobId, JobSpec, Name, NodeId, PullRule};

use crate::future::KeptReservations;

/// Jobs that are looked at: those to which capacity is promised, then those with a reservation, in the order of their turns.
const JOBS_MAX: usize = 64;
/// Images of one host, and those of one tenant among them.
const NODE_IMAGES_MAX: usize = 4;
const TENANT_IMAGES_MAX: usize = 2;
/// Hosts that get images ahead.
const NODES_MAX: usize = 4_096;
/// How soon a gang with a reservation has to be expected for its hosts to fetch its images: two hours are more than any pull takes.
/// Of later starts the hosts may still change, and until then their images would take the place of others on the disk.
const AHEAD_MS: u64 = 2 * 3_600_000;

/// An image that a host will need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedImage {
    /// Whose job needs it.
    pub tenant: Name,
    /// Its reference.
    pub image: String,
    /// The secret of the tenant that opens its registry; none for what the host has itself.
    pub credentials: Option<Name>,
}

/// The images that each host will need soon. Nothing follows from it but that hosts fetch them ahead: no worker starts by it, and
/// another placement in the end costs a pull that was in vain.
#[must_use]
pub fn planned_images(state: &State, kept: &KeptReservations) -> BTreeMap<NodeId, Vec<PlannedImage>> {
    let mut planned = BTreeMap::new();
    let mut left = JOBS_MAX;
    for job in state.promised() {
        let Some(row) = state.job(job).filter(|row| row.phase == Phase::Pending) else { continue };
        let Some(promise) = &row.promise else { continue };
        let Some(spec) = takes_images(state, job) else { continue };
        if left == 0 {
            return planned;
        }
        left -= 1;
        plan(&mut planned, spec, promise.slots.iter().map(|slot| slot.node));
    }
    let soon = state.log_time().plus_ms(AHEAD_MS);
    for (job, start) in kept.reserved_starts() {
        if start.at > soon || state.job(job).is_none_or(|row| row.phase != Phase::Pending) {
            continue;
        }
        let Some(spec) = takes_images(state, job) else { continue };
        if left == 0 {
            return planned;
        }
        left -= 1;
        plan(&mut planned, spec, start.nodes.iter().map(|(node, _)| *node));
    }
    planned
}

/// The job, where a host may fetch something for it ahead.
fn takes_images(state: &State, job: JobId) -> Option<&JobSpec> {
    let spec = state.spec(job)?;
    spec.needs_container_runtime().then_some(&**spec)
}

fn plan(
    planned: &mut BTreeMap<NodeId, Vec<PlannedImage>>,
    spec: &JobSpec,
    nodes: impl Iterator<Item = NodeId>,
) {
    let mut wanted: Vec<PlannedImage> = Vec::new();
    let containers = spec.groups.iter().filter_map(|group| group.container.as_ref());
    for container in containers.filter(|container| container.pull != PullRule::Never) {
        let image = PlannedImage {
            tenant: spec.tenant.clone(),
            image: container.image.clone(),
            credentials: container.credentials.clone(),
        };
        if !wanted.contains(&image) {
            wanted.push(image);
        }
    }
    for node in nodes {
        if planned.len() >= NODES_MAX && !planned.contains_key(&node) {
            continue;
        }
        let images = planned.entry(node).or_default();
        for image in &wanted {
            let own = images.iter().filter(|known| known.tenant == image.tenant).count();
            if images.len() < NODE_IMAGES_MAX && own < TENANT_IMAGES_MAX && !images.contains(image) {
                images.push(image.clone());
            }
        }
    }
    planned.retain(|_, images| !images.is_empty());
}
