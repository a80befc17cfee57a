//! What a node of Kubernetes is in Muster, and how much is free for Muster.
//!
//! **Invariant:** a node is closed unless everything says that a pod would start there.

use super::config::Settings;
use super::objects::{Amount, NodeObject};
use crate::discovery::nvidia_type;
use crate::executor::Foreign;
use muster_types::container::{RUNTIME_LABEL, VERSION_LABEL};
use muster_types::tpu::Generation;
use muster_types::{Accelerators, Name, NodeDraft, NodeSpec};

/// Labels that say of what type the accelerators of a node are.
const NVIDIA_PRODUCT: &str = "nvidia.com/gpu.product";
const GKE_ACCELERATOR: &str = "cloud.google.com/gke-accelerator";
const GKE_TPU: &str = "cloud.google.com/gke-tpu-accelerator";

/// The accelerators of a node that Muster uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeAccelerators {
    /// The resource of Kubernetes.
    pub(super) resource: String,
    pub(super) kind: String,
    pub(super) count: u16,
}

/// Of several resources the one that there is most of.
pub(super) fn offered(settings: &Settings, node: &NodeObject) -> Option<NodeAccelerators> {
    let named = &settings.written.accelerators;
    let counted = named.iter().filter_map(|(resource, kind)| {
        let count = node.allocatable.extended.get(resource).copied().filter(|count| *count > 0)?;
        Some((count, resource, kind))
    });
    let (count, resource, kind) = counted.max_by_key(|(count, ..)| *count)?;
    let kind = if kind.is_empty() { kind_of(resource, node) } else { kind.clone() };
    Some(NodeAccelerators {
        resource: resource.clone(),
        kind,
        count: u16::try_from(count).unwrap_or(u16::MAX),
    })
}

/// What the labels of a node say of the type; else the resource's domain.
fn kind_of(resource: &str, node: &NodeObject) -> String {
    let labelled = |key: &str| node.labels.get(key).map(|text| text.to_ascii_lowercase());
    let said = if resource == "google.com/tpu" {
        let tpu = labelled(GKE_TPU);
        let generation = tpu.as_deref().map(|text| text.strip_prefix("tpu-").unwrap_or(text));
        let known = generation.and_then(Generation::of_kind).map(|found| found.as_str().to_owned());
        known.or(tpu)
    } else {
        let product = labelled(NVIDIA_PRODUCT).or_else(|| labelled(GKE_ACCELERATOR));
        product.map(|text| nvidia_type(&text).map_or(text, |kind| kind.to_string()))
    };
    said.unwrap_or_else(|| resource.split('.').next().unwrap_or(resource).to_owned())
}

/// What a node of Kubernetes is in Muster.
///
/// # Errors
/// One sentence: why it cannot be a node of Muster.
pub(super) fn describe(settings: &Settings, node: &NodeObject) -> Result<NodeSpec, String> {
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
    let draft = NodeDraft {
        name,
        region: settings.region.clone(),
        cluster: settings.cluster.clone(),
        block: place(&settings.written.block_labels, &settings.block),
        rack: place(&settings.written.rack_labels, &settings.rack),
        address: if node.address.is_empty() { node.name.clone() } else { node.address.clone() },
        accelerators,
        cpu_milli: node.allocatable.cpu_milli,
        memory_bytes: node.allocatable.memory_bytes,
        labels,
        taints: settings.taints.clone(),
        pod: None,
    };
    draft.check().map_err(|found| match found.into_iter().next() {
        Some(first) => format!("{}: {}", first.field, first.description),
        None => "breaks a rule".to_owned(),
    })
}

/// The value of a label as a name: in small letters, with `-` for what no name has, and its end where it is too long, because
/// the beginnings of such values are alike.
fn place_name(text: &str) -> Option<Name> {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c.to_ascii_lowercase() } else { '-' }
    };
    let text: String = text.chars().map(plain).collect();
    let start = text.len().saturating_sub(63);
    Name::new(text[start..].trim_matches(|c: char| !c.is_ascii_alphanumeric()))
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
    let devices = offered(settings, node).and_then(|own| taken.extended.get(&own.resource).copied());
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
    use crate::kubernetes::objects::NodeTaint;

    fn gpu_node() -> NodeObject {
        let label = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        NodeObject {
            name: "gpu-1".into(),
            address: "10.0.0.1".into(),
            is_ready: true,
            allocatable: Amount {
                cpu_milli: 96_000,
                memory_bytes: 1 << 40,
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
        let spec = describe(&settings, &gpu_node()).unwrap();
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
    fn what_cannot_be_a_node_says_why() {
        let settings = good().check().unwrap();
        let long = NodeObject { name: "n".repeat(80), ..gpu_node() };
        assert!(describe(&settings, &long).unwrap_err().contains("is no name"));
        let empty = NodeObject { allocatable: Amount::default(), ..gpu_node() };
        assert!(describe(&settings, &empty).unwrap_err().starts_with("cpu_milli"));
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
