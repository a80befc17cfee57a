//! What a node of Kubernetes is in Muster, and how much is free for Muster.
//!
//! **Invariant:** a node is closed unless everything says that a pod would start there.

use super::config::Settings;
use super::names::place_name;
use super::objects::{Amount, NodeObject};
use super::tpu::{GKE_TPU, NODE_POOL, SliceLabels, TOPOLOGY, TPU_RESOURCE};
use crate::discovery::nvidia_type;
use crate::executor::Foreign;
use muster_types::container::{RUNTIME_LABEL, VERSION_LABEL};
use muster_types::tpu::{Generation, PodPosition};
use muster_types::{Accelerators, Name, NodeDraft, NodeSpec};
use std::collections::{BTreeMap, BTreeSet};

/// Labels that say of what type the accelerators of a node are.
const NVIDIA_PRODUCT: &str = "nvidia.com/gpu.product";
const GKE_ACCELERATOR: &str = "cloud.google.com/gke-accelerator";
/// The resource of whole devices of NVIDIA's, and what those of their instances (MIG) begin with.
const NVIDIA_GPU: &str = "nvidia.com/gpu";
const NVIDIA_MIG: &str = "nvidia.com/mig-";
/// What stands between the type of a device and the profile of an instance of it.
const MIG: &str = "-mig-";
/// GKE's labels of nodes whose devices are divided into instances, and of those where several pods share one in time.
const GKE_PARTITION: &str = "cloud.google.com/gke-gpu-partition-size";
const GKE_SHARING: &str = "cloud.google.com/gke-gpu-sharing-strategy";
/// How the type of a device ends that several pods share: the product that NVIDIA's plugin publishes ends so as well.
const SHARED: &str = "-shared";

/// The accelerators of a node that Muster uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeAccelerators {
    /// The resource of Kubernetes.
    pub(super) resource: String,
    pub(super) kind: String,
    /// Healthy or not: the node has the same number when one of them fails.
    pub(super) count: u16,
    /// The slice that the node is one host of, where it has several.
    pub(super) slice: Option<SliceLabels>,
    /// Labels of the node that a pod with these has to select.
    pub(super) selector: BTreeMap<String, String>,
}

/// Keys of the labels of nodes that anything is made of.
pub(super) fn labels_used(settings: &Settings) -> BTreeSet<String> {
    let written = &settings.written;
    let asked = written.node_labels.iter().chain(&written.block_labels).chain(&written.rack_labels).cloned();
    let of_types = [NVIDIA_PRODUCT, GKE_ACCELERATOR, GKE_PARTITION, GKE_SHARING];
    let of_slices = [GKE_TPU, TOPOLOGY, NODE_POOL];
    asked.chain(of_types.into_iter().chain(of_slices).map(str::to_owned)).collect()
}

/// Of several resources the one that there is most of.
pub(super) fn offered(settings: &Settings, node: &NodeObject) -> Option<NodeAccelerators> {
    let named = &settings.written.accelerators;
    let known = node.capacity.extended.keys().chain(node.allocatable.extended.keys());
    let counted = known.filter_map(|resource| {
        let kind = match named.get(resource) {
            Some(kind) => kind.as_str(),
            // Instances of devices are of the types that their profiles make, where whole ones are used.
            None if resource.starts_with(NVIDIA_MIG) && named.contains_key(NVIDIA_GPU) => "",
            None => return None,
        };
        Some((node.count(resource), resource, kind)).filter(|(count, ..)| *count > 0)
    });
    // Of those that there are as many of, the last by name: always the same.
    let (count, resource, kind) = counted.max_by_key(|(count, resource, _)| (*count, *resource))?;
    let kind = if kind.is_empty() { kind_of(resource, node) } else { kind.to_owned() };
    let is_tpu = resource == TPU_RESOURCE;
    let slice = SliceLabels::of(node).filter(|slice| is_tpu && slice.hosts() > 1);
    let selected = [GKE_TPU, TOPOLOGY].into_iter().filter(|_| is_tpu);
    let selector = selected.filter_map(|key| Some((key.to_owned(), node.labels.get(key)?.clone())));
    Some(NodeAccelerators {
        resource: resource.clone(),
        kind,
        count: u16::try_from(count).unwrap_or(u16::MAX),
        slice,
        selector: selector.collect(),
    })
}

/// How many of the accelerators that are offered cannot be had for now.
pub(super) fn unhealthy(settings: &Settings, node: &NodeObject) -> u64 {
    offered(settings, node).map_or(0, |own| node.unhealthy(&own.resource))
}

/// What the labels of a node say of the type; else the resource's domain.
fn kind_of(resource: &str, node: &NodeObject) -> String {
    let labelled = |key: &str| node.labels.get(key).map(|text| text.to_ascii_lowercase());
    let said = if resource == TPU_RESOURCE {
        let tpu = labelled(GKE_TPU);
        let generation = tpu.as_deref().map(|text| text.strip_prefix("tpu-").unwrap_or(text));
        let known = generation.and_then(Generation::of_kind).map(|found| found.as_str().to_owned());
        known.or(tpu)
    } else {
        let product = labelled(NVIDIA_PRODUCT).or_else(|| labelled(GKE_ACCELERATOR));
        let partition = labelled(GKE_PARTITION).filter(|profile| !profile.is_empty());
        let profile = resource.strip_prefix(NVIDIA_MIG).or(partition.as_deref());
        let is_shared = node.labels.get(GKE_SHARING).is_some_and(|strategy| !strategy.is_empty());
        product.map(|text| nvidia_kind(&text, profile, is_shared))
    };
    let said = said.or_else(|| Some(format!("nvidia{MIG}{}", resource.strip_prefix(NVIDIA_MIG)?)));
    said.unwrap_or_else(|| resource.split('.').next().unwrap_or(resource).to_owned())
}

/// The type of a device by its product. An instance of a device (MIG) is another type than the whole: its profile is in the resource,
/// or at the end of the product where all instances of the node are alike. A part of a device's time is another type too: there
/// are several of one device.
fn nvidia_kind(product: &str, profile: Option<&str>, is_shared: bool) -> String {
    let (product, is_shared) = product.strip_suffix(SHARED).map_or((product, is_shared), |of| (of, true));
    let shared = if is_shared { SHARED } else { "" };
    let (product, own) = product.split_once(MIG).map_or((product, None), |(whole, own)| (whole, Some(own)));
    let whole = nvidia_type(product).map_or_else(|| product.to_owned(), |kind| kind.to_string());
    match profile.or(own) {
        Some(profile) => format!("{whole}{MIG}{}{shared}", profile.replace('+', ".")),
        None => format!("{whole}{shared}"),
    }
}

/// What a node of Kubernetes is in Muster, less what is no capacity and with its place in a TPU pod.
///
/// # Errors
/// One sentence: why it cannot be a node of Muster.
pub(super) fn describe(
    settings: &Settings,
    node: &NodeObject,
    kept_back: Option<&Amount>,
    pod: Option<PodPosition>,
) -> Result<NodeSpec, String> {
    let text = format!("{}.{}", settings.name, node.name.to_ascii_lowercase());
    let rule = || format!("{text} is no name: it must be {}", muster_types::name::NAME_RULE);
    let name = Name::new(&text).ok_or_else(rule)?;
    let accelerators = match offered(settings, node) {
        None => None,
        Some(NodeAccelerators { kind, count, .. }) => {
            let kind = Name::new(&kind).ok_or_else(|| {
                format!("accelerators of type {kind:?} have no name in Muster; see kubernetes.accelerators")
            })?;
            Some(Accelerators { kind, count })
        }
    };
    // Another resource or another name for it may be what is offered.
    let is_tpu = accelerators.as_ref().is_some_and(|own| Generation::of_kind(&own.kind).is_some());
    // What is so goes before what an operator says.
    let mut labels = settings.labels.clone();
    for key in &settings.written.node_labels {
        let label = Name::new(&key.to_ascii_lowercase().replace('/', "."));
        if let (Some(label), Some(value)) = (label, node.labels.get(key)) {
            labels.insert(label, value.clone());
        }
    }
    let (runtime, version) = node.runtime.split_once("://").unwrap_or(("kubernetes", ""));
    labels.insert(Name::literal(RUNTIME_LABEL), runtime.to_owned());
    if !version.is_empty() {
        labels.insert(Name::literal(VERSION_LABEL), version.to_owned());
    }
    let place = |keys: &[String], otherwise: &Name| {
        let said = keys.iter().find_map(|key| node.labels.get(key));
        said.and_then(|text| place_name(text)).unwrap_or_else(|| otherwise.clone())
    };
    let kept = |of: fn(&Amount) -> u64| kept_back.map_or(0, of);
    let draft = NodeDraft {
        name,
        region: settings.region.clone(),
        cluster: settings.cluster.clone(),
        block: place(&settings.written.block_labels, &settings.block),
        rack: place(&settings.written.rack_labels, &settings.rack),
        address: if node.address.is_empty() { node.name.clone() } else { node.address.clone() },
        accelerators,
        cpu_milli: node.allocatable.cpu_milli.saturating_sub(kept(|own| own.cpu_milli)),
        memory_bytes: node.allocatable.memory_bytes.saturating_sub(kept(|own| own.memory_bytes)),
        scratch_bytes: node
            .allocatable
            .storage_bytes
            .saturating_sub(kept(|own| own.storage_bytes))
            .min(muster_types::limits::SCRATCH_BYTES_MAX),
        labels,
        taints: settings.taints.clone(),
        pod: pod.filter(|_| is_tpu),
    };
    draft.check().map_err(|found| match found.into_iter().next() {
        Some(first) => format!("{}: {}", first.field, first.description),
        None => "breaks a rule".to_owned(),
    })
}

/// Whether nothing can be started on a node for now, and why.
pub(super) fn closed(settings: &Settings, node: &NodeObject) -> Option<String> {
    if !node.is_ready {
        return Some("it is not ready".to_owned());
    }
    if node.is_unschedulable {
        return Some("it is unschedulable: cordoned or drained".to_owned());
    }
    let tolerated = &settings.written.tolerations;
    let is_tolerated = |taint: &&super::objects::NodeTaint| {
        tolerated.iter().any(|own| own.tolerates(&taint.key, &taint.value, &taint.effect))
    };
    let taint = node.taints.iter().find(|taint| !is_tolerated(taint))?;
    Some(format!("no pod of this agent tolerates its taint {}:{}", taint.key, taint.effect))
}

/// What others hold of a node, as Muster counts it.
pub(super) fn foreign(settings: &Settings, node: Option<&NodeObject>, taken: Option<&Amount>) -> Foreign {
    let Some(node) = node else { return Foreign { closed: true, ..Foreign::default() } };
    let none = Amount::default();
    let taken = taken.unwrap_or(&none);
    let devices = offered(settings, node).map(|own| {
        let of_others = taken.extended.get(&own.resource).copied().unwrap_or(0);
        // Kubernetes does not name the failed ones, so their number counts as held.
        of_others.saturating_add(node.unhealthy(&own.resource))
    });
    Foreign {
        closed: closed(settings, node).is_some(),
        devices: u16::try_from(devices.unwrap_or(0)).unwrap_or(u16::MAX),
        cpu_milli: taken.cpu_milli,
        memory_bytes: taken.memory_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::config::tests::good;
    use crate::kubernetes::decoded::Decoded as _;
    use crate::kubernetes::objects::NodeTaint;
    use crate::kubernetes::objects::tests::node;
    use serde_json::{Value, json};

    fn gpu_node() -> NodeObject {
        let label = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        NodeObject {
            name: "gpu-1".into(),
            address: "10.0.0.1".into(),
            is_ready: true,
            allocatable: Amount {
                cpu_milli: 96_000,
                memory_bytes: 1 << 40,
                storage_bytes: 100 << 30,
                extended: [("nvidia.com/gpu".to_owned(), 8)].into(),
            },
            labels: [
                (NVIDIA_PRODUCT, "NVIDIA-H100-80GB-HBM3"),
                ("nvidia.com/gpu.clique", "Fabric_7/3"),
                ("topology.kubernetes.io/zone", "eu-west4-a"),
                ("kubernetes.io/arch", "amd64"),
            ]
            .map(label)
            .into(),
            runtime: "containerd://1.6.20".into(),
            ..NodeObject::default()
        }
    }

    #[test]
    fn a_node_with_gpus_becomes_a_node_of_muster() {
        let settings = good().check().unwrap();
        let spec = describe(&settings, &gpu_node(), None, None).unwrap();
        assert_eq!(spec.name.as_str(), "k8s-a.gpu-1");
        assert_eq!(spec.accelerators.as_ref().map(ToString::to_string).as_deref(), Some("h100:8"));
        assert_eq!((spec.block.as_str(), spec.rack.as_str()), ("eu-west4-a", "fabric_7-3"));
        assert_eq!((spec.cpu_milli, spec.memory_bytes), (96_000, 1 << 40));
        let label = |key: &str| spec.labels.get(&Name::new(key).unwrap()).map(String::as_str);
        assert_eq!(label("kubernetes.io.arch"), Some("amd64"));
        assert_eq!(label("container.runtime"), Some("containerd"));
        assert_eq!(label("container.version"), Some("1.6.20"));
    }

    #[test]
    fn what_stands_on_a_node_is_no_capacity_of_it() {
        let settings = good().check().unwrap();
        let standing = Amount { cpu_milli: 750, memory_bytes: 1 << 30, ..Amount::default() };
        let spec = describe(&settings, &gpu_node(), Some(&standing), None).unwrap();
        assert_eq!((spec.cpu_milli, spec.memory_bytes), (95_250, (1 << 40) - (1 << 30)));
        assert_eq!(spec.scratch_bytes, 100 << 30);
        let on_disk = Amount { storage_bytes: 30 << 30, ..Amount::default() };
        assert_eq!(
            describe(&settings, &gpu_node(), Some(&on_disk), None).unwrap().scratch_bytes,
            70 << 30,
            "others were promised the rest"
        );
        // Nobody else is there: the whole host is free, and a worker with all of it asks for what is left.
        assert_eq!(foreign(&settings, Some(&gpu_node()), None), Foreign::default());
        let whole = Amount { cpu_milli: u64::MAX, ..standing };
        assert!(describe(&settings, &gpu_node(), Some(&whole), None).unwrap_err().starts_with("cpu_milli"));
    }

    #[test]
    fn labels_that_are_not_kept_make_no_difference() {
        let settings = good().check().unwrap();
        let mut kept = gpu_node();
        kept.labels.insert("example.com/of-others".into(), "x".into());
        let before = describe(&settings, &kept, None, None).unwrap();
        kept.keep_labels(&labels_used(&settings));
        assert!(!kept.labels.contains_key("example.com/of-others"));
        assert_eq!(describe(&settings, &kept, None, None).unwrap(), before);
        // Without one of these a part of a device would be offered as a whole one.
        kept.labels.remove(NVIDIA_PRODUCT);
        for (label, value) in
            [(GKE_ACCELERATOR, "nvidia-tesla-a100"), (GKE_PARTITION, "1g.5gb"), (GKE_SHARING, "time-sharing")]
        {
            kept.labels.insert(label.into(), value.into());
        }
        kept.keep_labels(&labels_used(&settings));
        let spec = describe(&settings, &kept, None, None).unwrap();
        let offered = spec.accelerators.as_ref().map(ToString::to_string);
        assert_eq!(offered.as_deref(), Some("a100-mig-1g.5gb-shared:8"));
    }

    #[test]
    fn types_come_from_the_configuration_or_from_labels() {
        let mut config = good();
        let kind = |config: &super::super::config::KubernetesConfig, node: &NodeObject| {
            offered(&config.check().unwrap(), node).map(|own| own.kind)
        };
        let mut node = gpu_node();
        node.labels.remove(NVIDIA_PRODUCT);
        assert_eq!(kind(&config, &node).as_deref(), Some("nvidia"), "no label says more");
        node.labels.insert(GKE_ACCELERATOR.into(), "nvidia-l4".into());
        assert_eq!(kind(&config, &node).as_deref(), Some("l4"));
        node.allocatable.extended = [("google.com/tpu".to_owned(), 4)].into();
        node.labels.insert(GKE_TPU.into(), "tpu-v5p-slice".into());
        assert_eq!(kind(&config, &node).as_deref(), Some("v5p"));
        node.labels.insert(GKE_TPU.into(), "tpu-v6e-slice".into());
        assert_eq!(kind(&config, &node).as_deref(), Some("v6e"));
        config.accelerators = [("example.org/npu".to_owned(), "npu-1".to_owned())].into();
        assert_eq!(kind(&config, &node), None);
        node.allocatable.extended.insert("example.org/npu".into(), 2);
        assert_eq!(kind(&config, &node).as_deref(), Some("npu-1"));
    }

    #[test]
    fn a_device_that_fails_is_not_free_and_the_node_has_it_still() {
        let settings = good().check().unwrap();
        // As the kubelet publishes it: what a plugin finds unhealthy is not allocatable, and stays in the capacity.
        let with = |allocatable: Value, capacity: Value| {
            node(json!({
                "metadata": {"name": "gpu-1", "labels": {NVIDIA_PRODUCT: "NVIDIA-H100-80GB-HBM3"}},
                "status": {
                    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "capacity": {"cpu": "96", "memory": "1000Gi", "nvidia.com/gpu": capacity},
                    "allocatable": {"cpu": "95", "memory": "990Gi", "nvidia.com/gpu": allocatable},
                },
            }))
        };
        let whole = with(json!("8"), json!("8"));
        let taken = Amount { extended: [(NVIDIA_GPU.to_owned(), 2)].into(), ..Amount::default() };
        let devices = |node: &NodeObject| foreign(&settings, Some(node), Some(&taken)).devices;
        assert_eq!((devices(&whole), unhealthy(&settings, &whole)), (2, 0));
        let spec = describe(&settings, &whole, None, None).unwrap();
        for (allocatable, failed) in [("7", 1), ("5", 3), ("0", 8)] {
            let node = with(json!(allocatable), json!("8"));
            assert_eq!((devices(&node), unhealthy(&settings, &node)), (2 + failed, u64::from(failed)));
            let same = describe(&settings, &node, None, None).unwrap();
            assert_eq!(same.accelerators, spec.accelerators, "it is the same node");
        }
        // It is healthy again, and none is missed.
        assert_eq!(devices(&with(json!("8"), json!("8"))), 2);
        // A kubelet that does not state a capacity.
        assert_eq!(unhealthy(&settings, &gpu_node()), 0);
        let gone = with(json!("0"), json!("0"));
        assert_eq!(offered(&settings, &gone), None);
        assert_eq!(foreign(&settings, Some(&gone), None).devices, 0);
    }

    #[test]
    fn instances_of_devices_are_types_by_their_profiles() {
        let mut config = good();
        let kind = |config: &super::super::config::KubernetesConfig, node: &NodeObject| {
            offered(&config.check().unwrap(), node).map(|own| (own.resource, own.kind, own.count))
        };
        let all =
            |resource: &str, kind: &str, count: u16| Some((resource.to_owned(), kind.to_owned(), count));
        let mut node = gpu_node();
        // Every instance of the node is alike, and called as whole devices are.
        node.labels.insert(NVIDIA_PRODUCT.into(), "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb".into());
        node.allocatable.extended = [(NVIDIA_GPU.to_owned(), 56)].into();
        assert_eq!(kind(&config, &node), all(NVIDIA_GPU, "a100-mig-1g.5gb", 56));
        // Parts of the time of devices and of instances: four jobs of "one device" would share one.
        let products = [
            ("Tesla-T4-SHARED", "t4-shared"),
            ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED", "a100-mig-1g.5gb-shared"),
        ];
        for (product, expected) in products {
            node.labels.insert(NVIDIA_PRODUCT.into(), product.into());
            assert_eq!(kind(&config, &node), all(NVIDIA_GPU, expected, 56));
        }
        // As GKE labels them.
        node.labels.remove(NVIDIA_PRODUCT);
        node.labels.insert(GKE_ACCELERATOR.into(), "nvidia-tesla-a100".into());
        node.labels.insert(GKE_PARTITION.into(), "1g.5gb".into());
        assert_eq!(kind(&config, &node), all(NVIDIA_GPU, "a100-mig-1g.5gb", 56));
        node.labels.insert(GKE_SHARING.into(), "time-sharing".into());
        assert_eq!(kind(&config, &node), all(NVIDIA_GPU, "a100-mig-1g.5gb-shared", 56));
        node.labels.remove(GKE_PARTITION);
        assert_eq!(kind(&config, &node), all(NVIDIA_GPU, "a100-shared", 56));
        node.labels.remove(GKE_SHARING);
        node.labels.remove(GKE_ACCELERATOR);
        // Several profiles, of which there is most of one.
        node.labels.insert(NVIDIA_PRODUCT.into(), "NVIDIA-H100-80GB-HBM3".into());
        let profiles =
            [("nvidia.com/mig-1g.10gb", 14), ("nvidia.com/mig-3g.40gb", 4), ("nvidia.com/mig-1g.10gb.me", 2)];
        node.allocatable.extended = profiles.map(|(resource, count)| (resource.to_owned(), count)).into();
        assert_eq!(kind(&config, &node), all("nvidia.com/mig-1g.10gb", "h100-mig-1g.10gb", 14));
        let spec = describe(&config.check().unwrap(), &node, None, None).unwrap();
        assert_eq!(
            spec.accelerators.as_ref().map(ToString::to_string).as_deref(),
            Some("h100-mig-1g.10gb:14")
        );
        // One whose instance has failed.
        node.capacity = node.allocatable.clone();
        node.allocatable.extended.insert("nvidia.com/mig-1g.10gb".into(), 13);
        assert_eq!(unhealthy(&config.check().unwrap(), &node), 1);
        node.labels.remove(NVIDIA_PRODUCT);
        assert_eq!(kind(&config, &node), all("nvidia.com/mig-1g.10gb", "nvidia-mig-1g.10gb", 14));
        // An operator names them, or uses no devices of NVIDIA's.
        config.accelerators.insert("nvidia.com/mig-3g.40gb".into(), "half-h100".into());
        node.capacity.extended.retain(|resource, _| resource.contains("3g"));
        node.allocatable.extended = node.capacity.extended.clone();
        assert_eq!(kind(&config, &node), all("nvidia.com/mig-3g.40gb", "half-h100", 4));
        config.accelerators = [("google.com/tpu".to_owned(), String::new())].into();
        assert_eq!(kind(&config, &node), None);
    }

    #[test]
    fn a_host_of_a_slice_has_its_place() {
        let settings = good().check().unwrap();
        let mut node = gpu_node();
        node.labels =
            [(GKE_TPU, "tpu-v5p-slice"), (TOPOLOGY, "2x2x4"), ("cloud.google.com/gke-nodepool", "a")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into();
        node.allocatable.extended = [(TPU_RESOURCE.to_owned(), 4)].into();
        let place = PodPosition { pod: Name::new("k8s-a.a").unwrap(), cube: 0, at: [0, 0, 2] };
        let spec = describe(&settings, &node, None, Some(place.clone())).unwrap();
        assert_eq!(
            (spec.pod.clone(), spec.accelerators.as_ref().map(ToString::to_string)),
            (Some(place.clone()), Some("v5p:4".to_owned()))
        );
        let own = offered(&settings, &node).unwrap();
        assert_eq!(own.slice.map(|slice| slice.shape.to_string()).as_deref(), Some("2x2x4"));
        let selected: Vec<&str> = own.selector.keys().map(String::as_str).collect();
        assert_eq!(selected, [GKE_TPU, TOPOLOGY]);
        let mut named = good();
        named.accelerators.insert(TPU_RESOURCE.into(), "chips".into());
        let spec = describe(&named.check().unwrap(), &node, None, Some(place)).unwrap();
        assert_eq!(spec.pod, None, "chips of another name form no slice");
    }

    #[test]
    fn what_cannot_be_a_node_says_why() {
        let settings = good().check().unwrap();
        let long = NodeObject { name: "n".repeat(80), ..gpu_node() };
        assert!(describe(&settings, &long, None, None).unwrap_err().contains("is no name"));
        let empty = NodeObject { allocatable: Amount::default(), ..gpu_node() };
        assert!(describe(&settings, &empty, None, None).unwrap_err().starts_with("cpu_milli"));
        assert_eq!(place_name("/"), None);
        assert_eq!(place_name(&format!("{}-end", "a".repeat(80))).unwrap().as_str().len(), 63);
    }

    #[test]
    fn a_node_is_closed_unless_a_pod_would_start_there() {
        let settings = good().check().unwrap();
        let why = |change: fn(&mut NodeObject)| {
            let mut node = gpu_node();
            change(&mut node);
            closed(&settings, &node)
        };
        assert_eq!(why(|_| ()), None);
        assert!(why(|node| node.is_ready = false).unwrap().contains("not ready"));
        assert!(why(|node| node.is_unschedulable = true).unwrap().contains("cordoned"));
        let taint =
            |key: &str| NodeTaint { key: key.into(), value: String::new(), effect: "NoSchedule".into() };
        let mut node = gpu_node();
        node.taints = vec![taint("nvidia.com/gpu")];
        assert_eq!(closed(&settings, &node), None, "pods of workers tolerate it");
        node.taints.push(taint("node.kubernetes.io/disk-pressure"));
        assert!(closed(&settings, &node).unwrap().contains("disk-pressure"));
    }

    #[test]
    fn what_others_hold_is_counted_in_the_resource_that_is_offered() {
        let settings = good().check().unwrap();
        let mut taken = Amount { cpu_milli: 500, memory_bytes: 1 << 30, ..Amount::default() };
        taken.extended = [("nvidia.com/gpu".to_owned(), 3), ("example.org/other".to_owned(), 9)].into();
        let found = foreign(&settings, Some(&gpu_node()), Some(&taken));
        let expected = Foreign { closed: false, devices: 3, cpu_milli: 500, memory_bytes: 1 << 30 };
        assert_eq!(found, expected);
        assert_eq!(foreign(&settings, Some(&gpu_node()), None), Foreign::default());
        assert!(foreign(&settings, None, Some(&taken)).closed, "a node that is gone");
    }
}
