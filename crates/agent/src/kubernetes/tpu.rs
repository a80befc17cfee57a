//! Where the hosts of GKE's TPU slices are, from the labels of their nodes.
//!
//! A node pool of several hosts is one slice: its nodes have the label `cloud.google.com/gke-tpu-topology` with the shape of the whole
//! slice, and jobs use it as a whole. No label names the place of a host in it, and none has to: a container's `TPU_WORKER_ID`
//! names its host, as with any workload of GKE. So the hosts are given the places of the shape in the order of their names. Of one host
//! alone, each is a slice by itself, however many the pool has.
//!
//! **Invariant:** only a pool of which every host is known has places. Two hosts have the same place at no time.

use super::config::Settings;
use super::names::place_name;
use super::objects::NodeObject;
use muster_types::tpu::{CUBE_EDGE, Generation, PodPosition, SliceShape, host_offsets};
use std::collections::{BTreeMap, BTreeSet};

/// The resource that is chips.
pub(super) const TPU_RESOURCE: &str = "google.com/tpu";
/// The generation of a node's chips.
pub(super) const GKE_TPU: &str = "cloud.google.com/gke-tpu-accelerator";
/// The shape of the slice that a node is part of.
pub(super) const TOPOLOGY: &str = "cloud.google.com/gke-tpu-topology";
/// The pool that a node is in.
pub(super) const NODE_POOL: &str = "cloud.google.com/gke-nodepool";

/// What a node says of the slice that it is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SliceLabels {
    pub(super) generation: Generation,
    pub(super) shape: SliceShape,
    pub(super) chips_per_host: u16,
}

impl SliceLabels {
    /// None for a node without TPUs, and for one whose labels fit no slice.
    pub(super) fn of(node: &NodeObject) -> Option<SliceLabels> {
        let generation = Generation::of_kind(node.labels.get(GKE_TPU)?)?;
        let shape = SliceShape::parse(node.labels.get(TOPOLOGY)?)?;
        let chips_per_host = u16::try_from(node.count(TPU_RESOURCE)).ok()?;
        shape.check(generation).ok()?;
        shape.hosts(chips_per_host)?;
        Some(SliceLabels { generation, shape, chips_per_host })
    }

    /// Hosts of the slice, from 1.
    pub(super) fn hosts(&self) -> usize {
        self.shape.hosts(self.chips_per_host).map_or(1, usize::from)
    }

    /// The places of its hosts in rank order.
    fn places(&self) -> Vec<(u16, [u8; 3])> {
        let offsets = host_offsets(self.shape, self.chips_per_host).unwrap_or_default();
        offsets.into_iter().filter_map(|offset| self.place(offset)).collect()
    }

    /// The cube of a host and its place there, or on the grid.
    fn place(&self, offset: [u16; 3]) -> Option<(u16, [u8; 3])> {
        let small = |at: [u16; 3]| {
            let [x, y, z] = at.map(u8::try_from);
            Some([x.ok()?, y.ok()?, z.ok()?])
        };
        if !self.shape.is_whole_cubes() {
            return Some((0, small(offset)?));
        }
        let [x_cubes, y_cubes, _] = self.shape.extent().map(|length| length / CUBE_EDGE);
        let [x, y, z] = offset.map(|at| at / CUBE_EDGE);
        Some((x + x_cubes * (y + y_cubes * z), small(offset.map(|at| at % CUBE_EDGE))?))
    }
}

/// Where each host is, by the name of its node; none for hosts of a pool that is not whole.
pub(super) fn positions<'a>(
    settings: &Settings,
    nodes: impl IntoIterator<Item = &'a NodeObject>,
) -> BTreeMap<String, PodPosition> {
    let mut pools: BTreeMap<(&str, SliceLabels), BTreeSet<&str>> = BTreeMap::new();
    let mut found = BTreeMap::new();
    // Another cluster of Kubernetes may have pools and nodes of the same names.
    let named = |name: &str| place_name(&format!("{}.{name}", settings.name));
    for node in nodes {
        let Some(labels) = SliceLabels::of(node) else { continue };
        if labels.hosts() == 1 {
            let position = named(&node.name).map(|pod| PodPosition { pod, cube: 0, at: [0; 3] });
            found.extend(position.map(|position| (node.name.clone(), position)));
        } else if let Some(pool) = node.labels.get(NODE_POOL) {
            pools.entry((pool.as_str(), labels)).or_default().insert(&node.name);
        }
    }
    for ((pool, labels), hosts) in pools {
        let (Some(pod), places) = (named(pool), labels.places()) else { continue };
        if hosts.len() != labels.hosts() || places.len() != hosts.len() {
            continue;
        }
        for (host, (cube, at)) in hosts.into_iter().zip(places) {
            found.insert(host.to_owned(), PodPosition { pod: pod.clone(), cube, at });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::config::tests::good;
    use crate::kubernetes::objects::tests::node;
    use muster_types::tpu::forms_slice;
    use serde_json::json;

    /// A node as GKE publishes it.
    fn tpu_node(name: &str, pool: &str, (accelerator, topology): (&str, &str), chips: u16) -> NodeObject {
        let chips = chips.to_string();
        node(json!({
            "metadata": {"name": name, "labels": {
                "cloud.google.com/gke-accelerator-count": chips,
                "cloud.google.com/gke-nodepool": pool,
                "cloud.google.com/gke-tpu-accelerator": accelerator,
                "cloud.google.com/gke-tpu-topology": topology,
                "node.kubernetes.io/instance-type": "ct5p-hightpu-4t",
                "topology.kubernetes.io/zone": "us-east5-a",
            }},
            "spec": {"taints": [{"key": "google.com/tpu", "effect": "NoSchedule", "value": "present"}]},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "conditions": [{"type": "Ready", "status": "True"}],
                "capacity": {"cpu": "208", "memory": "448Gi", "google.com/tpu": chips},
                "allocatable": {"cpu": "207", "memory": "440Gi", "google.com/tpu": chips},
            },
        }))
    }

    fn pool(name: &str, of: (&str, &str), chips: u16, hosts: usize) -> Vec<NodeObject> {
        // Names say nothing of the order.
        (0..hosts)
            .map(|n| tpu_node(&format!("gke-{name}-{:04x}", (n * 7_919) % 65_521), name, of, chips))
            .collect()
    }

    fn found(nodes: &[NodeObject]) -> BTreeMap<String, PodPosition> {
        positions(&good().check().unwrap(), nodes)
    }

    #[test]
    fn the_hosts_of_a_pool_form_the_slice_that_its_label_names() {
        for (accelerator, topology, chips, hosts) in [
            ("tpu-v5-lite-podslice", "4x4", 4, 4),
            ("tpu-v5-lite-podslice", "2x4", 4, 2),
            ("tpu-v6e-slice", "16x16", 4, 64),
            ("tpu-v4-podslice", "2x2x4", 4, 4),
            ("tpu-v5p-slice", "2x4x4", 4, 8),
            ("tpu-v5p-slice", "4x4x8", 4, 32),
            ("tpu-v5p-slice", "8x8x8", 4, 128),
            ("tpu7x", "4x4x4", 4, 16),
        ] {
            let nodes = pool("slice-a", (accelerator, topology), chips, hosts);
            let found = found(&nodes);
            assert_eq!(found.len(), hosts, "{accelerator} {topology}");
            let generation = Generation::of_kind(accelerator).unwrap();
            let shape = SliceShape::parse(topology).unwrap();
            let offsets = host_offsets(shape, chips).unwrap();
            // By rank, as the planner orders hosts: that of names.
            let by_rank: Vec<PodPosition> = found.values().cloned().collect();
            assert_eq!(offsets.len(), by_rank.len());
            let formed = forms_slice(generation, shape, chips, &by_rank);
            assert_eq!(formed, Ok(shape), "{accelerator} {topology}");
            assert!(by_rank.iter().all(|position| position.pod.as_str() == "k8s-a.slice-a"));
        }
    }

    #[test]
    fn a_host_that_is_a_whole_slice_is_alone_in_its_pod() {
        for (accelerator, topology, chips) in [
            ("tpu-v5-lite-podslice", "2x4", 8),
            ("tpu-v6e-slice", "2x2", 4),
            ("tpu-v6e-slice", "1x1", 1),
            ("tpu-v5p-slice", "2x2x1", 4),
        ] {
            let found = found(&pool("singles", (accelerator, topology), chips, 3));
            let pods: BTreeSet<&str> = found.values().map(|position| position.pod.as_str()).collect();
            assert_eq!(pods.len(), 3, "{accelerator} {topology}: {found:?}");
            assert!(found.values().all(|position| (position.cube, position.at) == (0, [0; 3])));
        }
    }

    #[test]
    fn slices_of_two_pools_are_apart_and_a_pool_that_is_not_whole_has_no_place() {
        let of = ("tpu-v5p-slice", "2x2x4");
        let mut nodes = [pool("a", of, 4, 4), pool("b", of, 4, 4)].concat();
        let whole = found(&nodes);
        assert_eq!(whole.len(), 8);
        assert_eq!(whole.values().collect::<BTreeSet<_>>().len(), 8, "no place twice");
        let pods: BTreeSet<&str> = whole.values().map(|position| position.pod.as_str()).collect();
        assert_eq!(pods, ["k8s-a.a", "k8s-a.b"].into());
        let lost = nodes.remove(0);
        let part = found(&nodes);
        assert_eq!(part.len(), 4, "those of the other pool stay: {part:?}");
        assert!(
            nodes
                .iter()
                .filter(|node| node.name.starts_with("gke-b"))
                .all(|node| part[&node.name] == whole[&node.name])
        );
        nodes.push(lost);
        assert_eq!(found(&nodes), whole, "as before, once it is back");
        // More hosts than a slice has are none that this can put in order.
        nodes.push(tpu_node("gke-a-one-more", "a", of, 4));
        assert_eq!(found(&nodes).len(), 4);
    }

    #[test]
    fn labels_that_fit_no_slice_give_no_place() {
        for (accelerator, topology, chips) in [
            ("tpu-v5p-slice", "3x3x3", 4),
            ("tpu-v5p-slice", "4x4", 4),
            ("tpu-v5p-slice", "", 4),
            ("tpu-v5p-slice", "2x2x4", 3),
            ("tpu-v5p-slice", "2x2x4", 0),
            ("tpu-of-tomorrow", "2x2x4", 4),
        ] {
            let found = found(&pool("odd", (accelerator, topology), chips, 4));
            assert!(found.is_empty(), "{accelerator} {topology} {chips}: {found:?}");
        }
        let mut bare = tpu_node("n", "a", ("tpu-v5p-slice", "2x2x4"), 4);
        bare.labels.remove(NODE_POOL);
        assert!(found(&[bare]).is_empty(), "of no pool");
    }
}
