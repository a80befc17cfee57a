//! Objects of Kubernetes as they are decoded: only the fields that this agent looks at. The rest of an object is most of it (who
//! manages which field, annotations, the images of a node), and is passed over while its text is read.
//!
//! **Invariant:** of a page of a list no more is in memory than its text and what is kept of its objects.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

/// Amounts of resources by their names.
pub(super) type Resources = BTreeMap<String, Quantity>;

/// What every object says of itself.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata {
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) resource_version: Option<String>,
    pub(super) labels: Option<BTreeMap<String, String>>,
    /// Only whether there is one.
    pub(super) deletion_timestamp: Option<IgnoredAny>,
    pub(super) owner_references: Option<Vec<OwnerReference>>,
}

/// What an object belongs to: only its kind.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct OwnerReference {
    pub(super) kind: String,
}

/// An object: what is asked for, and what is.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Object<S, U> {
    #[serde(default)]
    pub(super) metadata: Metadata,
    pub(super) spec: Option<S>,
    pub(super) status: Option<U>,
}

pub(super) type Node = Object<NodeSpec, NodeStatus>;
pub(super) type Pod = Object<PodSpec, PodStatus>;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeSpec {
    pub(super) taints: Option<Vec<Taint>>,
    pub(super) unschedulable: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Taint {
    pub(super) key: String,
    pub(super) value: Option<String>,
    pub(super) effect: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NodeStatus {
    pub(super) addresses: Option<Vec<NodeAddress>>,
    pub(super) conditions: Option<Vec<Condition>>,
    pub(super) allocatable: Option<Resources>,
    pub(super) capacity: Option<Resources>,
    pub(super) node_info: Option<NodeInfo>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeAddress {
    #[serde(rename = "type")]
    pub(super) type_: String,
    pub(super) address: String,
}

/// Of a node or of a pod.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) type_: String,
    pub(super) status: String,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NodeInfo {
    pub(super) container_runtime_version: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodSpec {
    pub(super) node_name: Option<String>,
    pub(super) init_containers: Option<Vec<Container>>,
    pub(super) containers: Option<Vec<Container>>,
    pub(super) overhead: Option<Resources>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Container {
    pub(super) resources: Option<ContainerResources>,
    pub(super) restart_policy: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerResources {
    pub(super) requests: Option<Resources>,
    pub(super) limits: Option<Resources>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodStatus {
    pub(super) phase: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
    pub(super) conditions: Option<Vec<Condition>>,
    pub(super) init_container_statuses: Option<Vec<ContainerStatus>>,
    pub(super) container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerStatus {
    pub(super) name: String,
    pub(super) state: Option<ContainerState>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerState {
    pub(super) waiting: Option<ContainerStateWaiting>,
    /// Only whether it does.
    pub(super) running: Option<IgnoredAny>,
    pub(super) terminated: Option<ContainerStateTerminated>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerStateWaiting {
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ContainerStateTerminated {
    pub(super) exit_code: i32,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
}

/// What is kept of the objects of one kind.
pub(super) trait Decoded: Clone + Debug + Send + Sized + 'static {
    /// Whether objects of the kind are in namespaces.
    type Scope;
    type Spec: DeserializeOwned;
    type Status: DeserializeOwned;
    const KIND: &'static str;
    const PLURAL: &'static str;

    /// None for an object that is of no use.
    fn decode(object: &Object<Self::Spec, Self::Status>) -> Option<Self>;

    /// Drops the labels with other keys.
    fn keep_labels(&mut self, keys: &BTreeSet<String>);
}

/// An object as a list or a watch brings it: decoded to what is kept of it at once.
#[derive(Clone, Debug)]
pub(super) struct Watched<T> {
    /// Its version, which the watch goes on from, and nothing else.
    meta: ObjectMeta,
    pub(super) seen: Option<T>,
}

impl<'de, T: Decoded> Deserialize<'de> for Watched<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object: Object<T::Spec, T::Status> = Deserialize::deserialize(deserializer)?;
        let seen = T::decode(&object);
        let meta = ObjectMeta { resource_version: object.metadata.resource_version, ..ObjectMeta::default() };
        Ok(Watched { meta, seen })
    }
}

impl<T: Decoded> Resource for Watched<T> {
    type DynamicType = ();
    type Scope = T::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        T::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        T::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects::{NodeObject, PodObject};
    use super::*;
    use serde_json::{Value, json};

    /// What servers send with every object, and nobody here looks at.
    fn with_ballast(mut object: Value) -> Value {
        let metadata = &mut object["metadata"];
        metadata["annotations"] =
            json!({"kubectl.kubernetes.io/last-applied-configuration": "x".repeat(9_999)});
        metadata["managedFields"] = json!([{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {"f:images": {}}}}]);
        metadata["creationTimestamp"] = json!("2026-11-27T10:00:00Z");
        metadata["ownerReferences"] =
            json!([{"kind": "Job", "name": "j", "uid": "1", "apiVersion": "batch/v1"}]);
        object["status"]["images"] = json!([{"names": ["docker.io/library/busybox"], "sizeBytes": 9}]);
        object["status"]["podIPs"] = json!([{"ip": "10.1.0.1"}]);
        object["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        object["spec"]["podCIDR"] = json!("10.1.0.0/24");
        object["apiVersion"] = json!("v1");
        object
    }

    fn decoded<T: Decoded>(object: Value) -> Watched<T> {
        serde_json::from_str(&object.to_string()).unwrap()
    }

    #[test]
    fn what_nobody_looks_at_makes_no_difference() {
        let node = json!({
            "metadata": {"name": "n1", "resourceVersion": "7", "labels": {"a/b": "c"}},
            "spec": {"unschedulable": true, "taints": null},
            "status": {"allocatable": {"cpu": "4", "nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let (bare, whole): (Watched<NodeObject>, Watched<NodeObject>) =
            (decoded(node.clone()), decoded(with_ballast(node)));
        assert_eq!(bare.seen, whole.seen);
        assert!(whole.seen.is_some_and(|node| node.is_ready && node.allocatable.cpu_milli == 4_000));
        assert_eq!(whole.meta, ObjectMeta { resource_version: Some("7".into()), ..ObjectMeta::default() });
        let pod = json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u", "deletionTimestamp": null},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {"startedAt": null}}}]},
        });
        let (bare, whole): (Watched<PodObject>, Watched<PodObject>) =
            (decoded(pod.clone()), decoded(with_ballast(pod)));
        assert_eq!(bare.seen, whole.seen);
        assert!(whole.seen.is_some_and(|pod| pod.requests.cpu_milli == 1_000 && !pod.is_deleting));
    }

    #[test]
    fn watches_ask_for_the_kinds_of_the_core() {
        assert_eq!(Watched::<NodeObject>::url_path(&(), None), "/api/v1/nodes");
        assert_eq!(Watched::<PodObject>::url_path(&(), Some("d")), "/api/v1/namespaces/d/pods");
    }

    #[test]
    fn only_the_labels_that_are_looked_at_are_kept() {
        let node = json!({"metadata": {"name": "n1", "labels": {"a": "1", "b": "2"}}});
        let mut node = decoded::<NodeObject>(node).seen.unwrap();
        node.keep_labels(&["b".to_owned(), "c".to_owned()].into());
        assert_eq!(node.labels, [("b".to_owned(), "2".to_owned())].into());
    }
}
