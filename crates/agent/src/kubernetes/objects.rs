//! Objects of Kubernetes as far as this agent looks at them.
//!
//! **Invariant:** what an object does not say, or says in a form that is not understood, counts as the safe side: a node has less,
//! a pod of others holds what can be read of it.

use super::decoded::{
    Container, ContainerStateTerminated, ContainerStatus, Decoded, Node, NodeSpec, NodeStatus, Pod, PodSpec,
    PodStatus, Taint,
};
use super::names::{self, label};
use super::quantity::{Round, thousandths, whole};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a text that is kept.
const TEXT_BYTES_MAX: usize = 512;
/// Whose pods are on a node for as long as it is there: of DaemonSets, and those that a kubelet starts from files (static pods).
const STANDING_OWNERS: [&str; 2] = ["DaemonSet", "Node"];

/// An amount of what nodes give out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) cpu_milli: u64,
    pub(super) memory_bytes: u64,
    /// Of the disk of the node for pods (ephemeral storage).
    pub(super) storage_bytes: u64,
    /// Resources with a domain in their names, such as accelerators.
    pub(super) extended: BTreeMap<String, u64>,
}

impl Amount {
    fn of(resources: Option<&BTreeMap<String, Quantity>>, round: Round) -> Amount {
        let mut amount = Amount::default();
        for (name, Quantity(text)) in resources.into_iter().flatten() {
            match name.as_str() {
                "cpu" => amount.cpu_milli = thousandths(text, round).unwrap_or(0),
                "memory" => amount.memory_bytes = whole(text, round).unwrap_or(0),
                "ephemeral-storage" => amount.storage_bytes = whole(text, round).unwrap_or(0),
                name if name.contains('/') => {
                    let count = whole(text, round).unwrap_or(0);
                    if count > 0 {
                        amount.extended.insert(name.to_owned(), count);
                    }
                }
                _ => {}
            }
        }
        amount
    }

    pub(super) fn is_nothing(&self) -> bool {
        *self == Amount::default()
    }

    pub(super) fn add(&mut self, other: &Amount) {
        self.cpu_milli = self.cpu_milli.saturating_add(other.cpu_milli);
        self.memory_bytes = self.memory_bytes.saturating_add(other.memory_bytes);
        self.storage_bytes = self.storage_bytes.saturating_add(other.storage_bytes);
        for (name, count) in &other.extended {
            let sum = self.extended.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    pub(super) fn subtract(&mut self, other: &Amount) {
        self.cpu_milli = self.cpu_milli.saturating_sub(other.cpu_milli);
        self.memory_bytes = self.memory_bytes.saturating_sub(other.memory_bytes);
        self.storage_bytes = self.storage_bytes.saturating_sub(other.storage_bytes);
        for (name, count) in &other.extended {
            if let Some(sum) = self.extended.get_mut(name) {
                *sum = sum.saturating_sub(*count);
            }
        }
        self.extended.retain(|_, count| *count > 0);
    }

    /// The larger of both, resource by resource.
    pub(super) fn raise_to(&mut self, other: &Amount) {
        self.cpu_milli = self.cpu_milli.max(other.cpu_milli);
        self.memory_bytes = self.memory_bytes.max(other.memory_bytes);
        self.storage_bytes = self.storage_bytes.max(other.storage_bytes);
        for (name, count) in &other.extended {
            let own = self.extended.entry(name.clone()).or_default();
            *own = (*own).max(*count);
        }
    }
}

/// A taint of a node that keeps pods away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeTaint {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) effect: String,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeObject {
    pub(super) name: String,
    /// What others reach it by; empty where it states none.
    pub(super) address: String,
    pub(super) is_ready: bool,
    pub(super) is_unschedulable: bool,
    pub(super) taints: Vec<NodeTaint>,
    pub(super) allocatable: Amount,
    /// What the node has at all. A device that its plugin finds unhealthy is in here, and is not allocatable.
    pub(super) capacity: Amount,
    pub(super) labels: BTreeMap<String, String>,
    /// Program and version: `containerd://1.6.20`.
    pub(super) runtime: String,
}

impl NodeObject {
    /// What a node's object says; none for one without a name.
    pub(super) fn of(node: &Node) -> Option<NodeObject> {
        let (spec, status) = (node.spec.as_ref(), node.status.as_ref());
        let addresses = status.and_then(|status| status.addresses.as_deref()).unwrap_or_default();
        let address = ["InternalIP", "Hostname", "ExternalIP"]
            .iter()
            .find_map(|kind| addresses.iter().find(|address| address.type_ == *kind));
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let keeps_away = taints.iter().filter(|taint| taint.effect != "PreferNoSchedule");
        let taint = |taint: &Taint| NodeTaint {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: taint.effect.clone(),
        };
        Some(NodeObject {
            name: node.metadata.name.clone().filter(|name| !name.is_empty())?,
            address: address.map(|address| address.address.clone()).unwrap_or_default(),
            is_ready: conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"),
            is_unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
            taints: keeps_away.map(taint).collect(),
            allocatable: Amount::of(status.and_then(|status| status.allocatable.as_ref()), Round::Down),
            capacity: Amount::of(status.and_then(|status| status.capacity.as_ref()), Round::Down),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            runtime: status
                .and_then(|status| status.node_info.as_ref())
                .map(|info| info.container_runtime_version.clone())
                .unwrap_or_default(),
        })
    }
}

impl Decoded for NodeObject {
    type Scope = ClusterResourceScope;
    type Spec = NodeSpec;
    type Status = NodeStatus;
    const KIND: &'static str = "Node";
    const PLURAL: &'static str = "nodes";

    fn decode(node: &Node) -> Option<NodeObject> {
        NodeObject::of(node)
    }

    fn keep_labels(&mut self, keys: &BTreeSet<String>) {
        self.labels.retain(|key, _| keys.contains(key));
    }
}

impl NodeObject {
    /// How many devices of a resource the node has, healthy or not.
    pub(super) fn count(&self, resource: &str) -> u64 {
        let of = |amount: &Amount| amount.extended.get(resource).copied().unwrap_or(0);
        of(&self.capacity).max(of(&self.allocatable))
    }

    /// How many of them cannot be had: their plugin finds them unhealthy, or is not there.
    pub(super) fn unhealthy(&self, resource: &str) -> u64 {
        let allocatable = self.allocatable.extended.get(resource).copied().unwrap_or(0);
        self.count(resource).saturating_sub(allocatable)
    }
}

/// How far a pod is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
    /// Its node has not been heard of.
    Unknown,
}

impl Phase {
    pub(super) fn is_over(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed)
    }
}

/// Why a container waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ContainerWait {
    pub(super) reason: String,
    pub(super) message: String,
}

/// How a container ended, as the node says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ContainerEnd {
    pub(super) code: i32,
    pub(super) reason: String,
    pub(super) message: String,
}

/// A pod. Of others only what it holds is looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodObject {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// The agent that made it; none for pods of anybody else.
    pub(super) scope: Option<String>,
    /// Where it was put.
    pub(super) node: Option<String>,
    pub(super) phase: Phase,
    /// What it holds of its node.
    pub(super) requests: Amount,
    /// Whether its node has it for as long as the node is there.
    pub(super) is_standing: bool,
    /// Somebody has asked for its deletion.
    pub(super) is_deleting: bool,
    /// Of the pod itself.
    pub(super) reason: String,
    pub(super) message: String,
    /// Why no node takes it.
    pub(super) unschedulable: Option<String>,
    /// Why it was disturbed: preemption, a drain, a taint, the loss of its node.
    pub(super) disruption: Option<String>,
    /// Of the container that brings the runner.
    pub(super) shim_waiting: Option<ContainerWait>,
    pub(super) shim_failed: Option<ContainerEnd>,
    /// Of the container of the workers.
    pub(super) waiting: Option<ContainerWait>,
    pub(super) is_running: bool,
    pub(super) terminated: Option<ContainerEnd>,
}

impl PodObject {
    /// What a pod's object says; none for one without a name.
    pub(super) fn of(pod: &Pod) -> Option<PodObject> {
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let metadata = &pod.metadata;
        let labels = metadata.labels.as_ref();
        let scope = labels.and_then(|labels| labels.get(label::AGENT)).cloned();
        let mut seen = PodObject {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().filter(|name| !name.is_empty())?,
            uid: metadata.uid.clone().unwrap_or_default(),
            node: spec.and_then(|spec| spec.node_name.clone()).filter(|node| !node.is_empty()),
            phase: match status.and_then(|status| status.phase.as_deref()) {
                Some("Running") => Phase::Running,
                Some("Succeeded") => Phase::Succeeded,
                Some("Failed") => Phase::Failed,
                Some("Unknown") => Phase::Unknown,
                _ => Phase::Pending,
            },
            requests: spec.map(requests).unwrap_or_default(),
            is_standing: metadata
                .owner_references
                .as_deref()
                .unwrap_or_default()
                .iter()
                .any(|owner| STANDING_OWNERS.contains(&owner.kind.as_str())),
            ..PodObject::default()
        };
        if scope.is_none() {
            return Some(seen);
        }
        let Some(status) = status else { return Some(PodObject { scope, ..seen }) };
        seen.scope = scope;
        seen.is_deleting = metadata.deletion_timestamp.is_some();
        seen.reason = short(status.reason.as_deref());
        seen.message = short(status.message.as_deref());
        for condition in status.conditions.as_deref().unwrap_or_default() {
            let text = || short(condition.message.as_deref());
            match (condition.type_.as_str(), condition.status.as_str()) {
                ("PodScheduled", "False") => seen.unschedulable = Some(text()),
                ("DisruptionTarget", "True") => {
                    let reason = condition.reason.clone().unwrap_or_default();
                    seen.disruption = Some(short(Some(&format!("{reason}: {}", text()))));
                }
                _ => {}
            }
        }
        let find = |statuses: &Option<Vec<ContainerStatus>>, name: &str| {
            let state = statuses.as_deref().unwrap_or_default().iter().find(|status| status.name == name);
            state.and_then(|status| status.state.clone()).unwrap_or_default()
        };
        let shim = find(&status.init_container_statuses, names::SHIM_CONTAINER);
        seen.shim_waiting = shim.waiting.map(|waiting| ContainerWait {
            reason: short(waiting.reason.as_deref()),
            message: short(waiting.message.as_deref()),
        });
        let terminated = |state: ContainerStateTerminated| ContainerEnd {
            code: state.exit_code,
            reason: short(state.reason.as_deref()),
            message: short(state.message.as_deref()),
        };
        seen.shim_failed = shim.terminated.map(terminated).filter(|ended| ended.code != 0);
        let workers = find(&status.container_statuses, names::WORKERS_CONTAINER);
        seen.is_running = workers.running.is_some();
        seen.waiting = workers.waiting.map(|waiting| ContainerWait {
            reason: short(waiting.reason.as_deref()),
            message: short(waiting.message.as_deref()),
        });
        seen.terminated = workers.terminated.map(terminated);
        Some(seen)
    }
}

impl Decoded for PodObject {
    type Scope = NamespaceResourceScope;
    type Spec = PodSpec;
    type Status = PodStatus;
    const KIND: &'static str = "Pod";
    const PLURAL: &'static str = "pods";

    fn decode(pod: &Pod) -> Option<PodObject> {
        PodObject::of(pod)
    }

    /// None are kept as they are.
    fn keep_labels(&mut self, _: &BTreeSet<String>) {}
}

/// What a pod holds, as kube-scheduler counts it: its containers together, or the largest that runs before them, next to those of
/// the latter that stay.
fn requests(spec: &PodSpec) -> Amount {
    let of = |container: &Container| {
        let resources = container.resources.as_ref();
        let mut amount = Amount::of(resources.and_then(|all| all.requests.as_ref()), Round::Up);
        // What is limited and not requested is requested as it is limited. The API server fills that in; a static pod may lack it.
        let limits = Amount::of(resources.and_then(|all| all.limits.as_ref()), Round::Up);
        if amount.is_nothing() {
            amount = limits;
        }
        amount
    };
    let mut staying = Amount::default();
    let mut highest = Amount::default();
    for container in spec.init_containers.as_deref().unwrap_or_default() {
        let mut own = of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            staying.add(&own);
            highest.raise_to(&staying);
        } else {
            own.add(&staying);
            highest.raise_to(&own);
        }
    }
    let mut sum = staying;
    for container in spec.containers.as_deref().unwrap_or_default() {
        sum.add(&of(container));
    }
    sum.raise_to(&highest);
    sum.add(&Amount::of(spec.overhead.as_ref(), Round::Up));
    sum
}

fn short(text: Option<&str>) -> String {
    let text = text.unwrap_or_default();
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::{Value, json};

    pub(crate) fn node(value: Value) -> NodeObject {
        NodeObject::of(&serde_json::from_value(value).unwrap()).unwrap()
    }

    pub(crate) fn pod(value: Value) -> PodObject {
        PodObject::of(&serde_json::from_value(value).unwrap()).unwrap()
    }

    #[test]
    fn a_node_says_what_it_has() {
        let seen = node(json!({
            "metadata": {"name": "gpu-1", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
            "spec": {"unschedulable": true, "taints": [
                {"key": "nvidia.com/gpu", "effect": "NoSchedule", "value": "present"},
                {"key": "slow", "effect": "PreferNoSchedule"},
            ]},
            "status": {
                "addresses": [{"type": "Hostname", "address": "gpu-1"}, {"type": "InternalIP", "address": "10.0.0.1"}],
                "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
                "allocatable": {"cpu": "95500m", "memory": "1000Gi", "nvidia.com/gpu": "8", "pods": "110",
                    "hugepages-2Mi": "0", "ephemeral-storage": "9"},
                "nodeInfo": {"containerRuntimeVersion": "containerd://1.6.20", "architecture": "amd64", "bootID": "",
                    "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "",
                    "operatingSystem": "linux", "osImage": "", "systemUUID": ""},
            },
        }));
        assert_eq!((seen.address.as_str(), seen.is_ready, seen.is_unschedulable), ("10.0.0.1", true, true));
        assert_eq!(seen.allocatable.cpu_milli, 95_500);
        assert_eq!(seen.allocatable.memory_bytes, 1_000 << 30);
        assert_eq!(seen.allocatable.extended, [("nvidia.com/gpu".to_owned(), 8)].into());
        assert_eq!(seen.taints.len(), 1, "one that only advises keeps nothing away");
        assert_eq!(seen.runtime, "containerd://1.6.20");
        assert_eq!(seen.allocatable.storage_bytes, 9);
    }

    #[test]
    fn a_node_that_says_nothing_has_nothing() {
        let seen = node(json!({"metadata": {"name": "n"}}));
        assert_eq!(seen, NodeObject { name: "n".into(), ..NodeObject::default() });
        assert!(NodeObject::of(&Node::default()).is_none());
        let odd = node(json!({"metadata": {"name": "n"}, "status": {
            "allocatable": {"cpu": "much", "nvidia.com/gpu": "-1"},
            "conditions": [{"type": "Ready", "status": "Unknown"}],
        }}));
        assert!(odd.allocatable.is_nothing() && !odd.is_ready);
    }

    #[test]
    fn a_pod_holds_what_its_scheduler_counts() {
        let requests = |spec: Value| {
            let mut pod = json!({"metadata": {"name": "p", "namespace": "d"}});
            pod["spec"] = spec;
            self::pod(pod).requests
        };
        let cpu = |text: &str| json!({"requests": {"cpu": text}});
        // The sum of the containers, or the largest that runs before them.
        let containers =
            json!([{"name": "a", "resources": cpu("1")}, {"name": "b", "resources": cpu("500m")}]);
        assert_eq!(requests(json!({"containers": containers})).cpu_milli, 1_500);
        let first = json!([{"name": "i", "resources": cpu("4")}]);
        assert_eq!(requests(json!({"initContainers": first, "containers": containers})).cpu_milli, 4_000);
        // One that stays counts next to both.
        let first = json!([{"name": "s", "restartPolicy": "Always", "resources": cpu("1")}, {"name": "i", "resources": cpu("4")}]);
        assert_eq!(requests(json!({"initContainers": first, "containers": containers})).cpu_milli, 5_000);
        let first = json!([{"name": "s", "restartPolicy": "Always", "resources": cpu("1")}]);
        let overhead = json!({"cpu": "250m"});
        let spec = json!({"initContainers": first, "containers": containers, "overhead": overhead});
        assert_eq!(requests(spec).cpu_milli, 2_750);
        let gpus = json!([{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "2", "memory": "1Gi"}}}]);
        let found = requests(json!({"containers": gpus}));
        assert_eq!((found.memory_bytes, found.extended["nvidia.com/gpu"]), (1 << 30, 2));
        let disk = json!([{"name": "a", "resources": {"requests": {"ephemeral-storage": "2Gi"}}}]);
        assert_eq!(requests(json!({"containers": disk})).storage_bytes, 2 << 30);
        assert!(requests(json!({"containers": []})).is_nothing());
    }

    #[test]
    fn pods_of_daemon_sets_and_static_pods_stand_on_their_nodes() {
        let owned = |owners: Value| {
            pod(json!({"metadata": {"name": "p", "namespace": "d", "ownerReferences": owners}})).is_standing
        };
        assert!(owned(json!([{"kind": "DaemonSet", "name": "cni", "uid": "1", "apiVersion": "apps/v1"}])));
        assert!(owned(
            json!([{"kind": "Node", "name": "n1", "uid": "2", "apiVersion": "v1", "controller": true}])
        ));
        assert!(!owned(json!([{"kind": "ReplicaSet", "name": "web", "uid": "3", "apiVersion": "apps/v1"}])));
        assert!(!owned(json!([])) && !owned(json!(null)));
    }

    #[test]
    fn a_pod_of_this_agent_says_how_it_is() {
        let with = |status: Value| {
            pod(json!({
                "metadata": {"name": "p", "namespace": "d", "uid": "u", "labels": {label::AGENT: "mine"},
                    "deletionTimestamp": "2026-11-27T10:00:00Z"},
                "spec": {"nodeName": "n1", "containers": []},
                "status": status,
            }))
        };
        let seen = with(json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"},
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "by another"},
        ]}));
        assert!(seen.is_deleting && seen.scope.as_deref() == Some("mine"));
        assert_eq!(seen.unschedulable.as_deref(), Some("0/1 nodes are available"));
        assert_eq!(seen.disruption.as_deref(), Some("PreemptionByScheduler: by another"));
        let container = |name: &str, state: Value| json!({"name": name, "state": state, "image": "", "imageID": "", "ready": false, "restartCount": 0});
        let seen = with(json!({"phase": "Failed",
            "initContainerStatuses": [container("shim", json!({"terminated": {"exitCode": 0}}))],
            "containerStatuses": [container("workers", json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}))],
        }));
        let ended = seen.terminated.unwrap();
        assert_eq!((ended.code, ended.reason.as_str(), seen.shim_failed), (137, "OOMKilled", None));
        let seen = with(json!({"phase": "Pending", "containerStatuses": [
            container("workers", json!({"waiting": {"reason": "ImagePullBackOff", "message": "x".repeat(9_999)}})),
            container("other", json!({"running": {}})),
        ]}));
        let waiting = seen.waiting.unwrap();
        assert_eq!((waiting.reason.as_str(), waiting.message.len()), ("ImagePullBackOff", TEXT_BYTES_MAX));
        assert!(!seen.is_running);
    }
}
