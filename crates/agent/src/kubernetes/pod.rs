//! The pod of a share, and the secret with its ticket.
//!
//! The pod names its node by affinity and not as `nodeName`, so that kube-scheduler accounts for it, and refuses it where the node
//! is full after all. It is never restarted: only its runner says how workers ended, and one runner is told to launch.
//!
//! **Invariant:** the same placement makes the same pod; nothing of a job's environment or command is in it.

use super::config::Settings;
use super::describe::NodeAccelerators;
use super::names::{SHIM_CONTAINER, TICKET_KEY, WORKERS_CONTAINER, label};
use crate::own_program;
use crate::remote::runner::{POD_NODE_VARIABLE, POD_SCRATCH_DIRECTORY, POD_VARIABLE, TICKET_VARIABLE};
use crate::rules::{DEVICE_MILLI, Placement, Slices};
use k8s_openapi::api::core::v1::{Pod, Secret};
use muster_types::DeviceSet;
use muster_types::container::PullRule;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Where the runner is in every container.
const PROGRAM_DIRECTORY: &str = "/muster";
/// Where it keeps its files: a volume of the pod.
pub(super) const WORK_DIRECTORY: &str = "/muster-work";
/// What the runner and the shims may use of memory beyond what workers were promised. It is not requested: workers are held to
/// their promise by their shims.
const RUNNER_MEMORY_BYTES: u64 = 64 << 20;
/// What a pod that is told to end has beyond the grace of its workers.
const GRACE_BEYOND: Duration = Duration::from_secs(15);

/// Why a placement cannot become a pod; a sentence for people.
///
/// # Errors
/// The first that stands in the way.
pub(super) fn check(settings: &Settings, placement: &Placement) -> Result<(), String> {
    let mut workers = placement.workers.iter();
    let Some(first) = workers.next() else { return Err("the order names no worker".to_owned()) };
    if workers.any(|worker| worker.container != first.container) {
        return Err(
            "workers of one node with different images are not supported on nodes of Kubernetes".to_owned()
        );
    }
    if first.container.is_none() && settings.written.default_image.is_none() {
        return Err(
            "the job names no image, and kubernetes.default_image of the agent names none either".to_owned()
        );
    }
    let tenant = &placement.tenant;
    if first.container.as_ref().is_some_and(|own| own.credentials.is_some()) {
        return Err(
            "container.credentials are secrets of hosts: nodes of Kubernetes pull with the `imagePullSecrets` of the service account \
             that an operator has set up"
                .to_owned(),
        );
    }
    for mount in first.container.iter().flat_map(|own| &own.mounts) {
        if shown(settings, tenant, &mount.source).is_none() {
            return Err(format!(
                "container.mounts: {} is not below a path that kubernetes.host_paths of the agent allows tenant {tenant:?}; its \
                 operator can add one",
                mount.source
            ));
        }
    }
    if placement.workers.iter().any(|worker| worker.command.is_empty()) {
        return Err("a worker on a node of Kubernetes needs a command: that of its image is not known here"
            .to_owned());
    }
    if placement.workers.iter().any(|worker| worker.device_milli != DEVICE_MILLI) {
        return Err("shares of one device are not supported on nodes of Kubernetes".to_owned());
    }
    let hosts: BTreeSet<&str> = placement.rank_map.iter().map(|place| place.node_name.as_str()).collect();
    if hosts.len() > 1 && !settings.written.host_network {
        return Err("a gang on several nodes needs kubernetes.host_network of the agent: its workers find each other by the \
                    addresses of nodes"
            .to_owned());
    }
    Ok(())
}

/// A slice of several hosts is used as a whole: which of its hosts are neighbours is not known here.
fn check_slice(placement: &Placement, offered: Option<&NodeAccelerators>) -> Result<(), String> {
    let Some(own) = offered.and_then(|offered| offered.slice) else { return Ok(()) };
    let is_here =
        |slices: &&Slices| placement.workers.iter().any(|worker| slices.ranks().contains(&worker.rank));
    match placement.slices.iter().find(is_here) {
        Some(asked) if asked.shape != own.shape => Err(format!(
            "the node is a host of a {} slice of GKE, which a job uses as a whole, and the job asks for {}; select nodes by \
             cloud.google.com.gke-tpu-topology={}",
            own.shape, asked.shape, asked.shape
        )),
        _ => Ok(()),
    }
}

/// The labels of a pod and its secret.
fn labels(scope: &str, placement: &Placement) -> Value {
    json!({
        "app.kubernetes.io/managed-by": "muster",
        label::AGENT: scope,
        label::JOB: placement.job.to_string(),
        label::TOKEN: placement.token.to_string(),
        label::ATTEMPT: placement.attempt.to_string(),
        label::RANK: placement.ranks().min().unwrap_or(0).to_string(),
    })
}

/// Scratch of all workers of a share.
fn scratch_bytes(placement: &Placement) -> u64 {
    placement.scratch_bytes.saturating_mul(placement.workers.len() as u64)
}

/// What is requested for all workers of a share, and limited.
fn resources(placement: &Placement, offered: Option<&NodeAccelerators>) -> Result<(Value, Value), String> {
    let mut devices = DeviceSet::EMPTY;
    let (mut cpu_milli, mut memory_bytes) = (0u64, 0u64);
    for worker in &placement.workers {
        devices = devices.union(worker.devices);
        cpu_milli = cpu_milli.saturating_add(worker.cpu_milli);
        memory_bytes = memory_bytes.saturating_add(worker.memory_bytes);
    }
    let mut before = json!({"requests": {}, "limits": {}});
    if cpu_milli > 0 {
        before["requests"]["cpu"] = format!("{cpu_milli}m").into();
    }
    // No promise is no limit.
    if memory_bytes > 0 {
        before["requests"]["memory"] = memory_bytes.to_string().into();
        let limit = memory_bytes.saturating_add(RUNNER_MEMORY_BYTES);
        before["limits"]["memory"] = limit.to_string().into();
    }
    let mut own = before.clone();
    // The size of the volume is the bound: a limit would count the output of the container and its root directory as well.
    let scratch = scratch_bytes(placement);
    if scratch > 0 {
        own["requests"]["ephemeral-storage"] = scratch.to_string().into();
    }
    if !devices.is_empty() {
        let offered = offered.ok_or("the node has no accelerators any more")?;
        let count = Value::String(devices.count().to_string());
        own["requests"][&offered.resource] = count.clone();
        own["limits"][&offered.resource] = count;
    }
    Ok((before, own))
}

/// Which path of the node a mount comes from, of those that this tenant may have, and which part of it is shown; empty for all of it.
/// The longest that there is. What is below it is the volume's `subPath`: the kubelet follows links in that within the volume only,
/// so a link that a job has made there does not lead to the rest of the node.
fn shown<'a>(settings: &'a Settings, tenant: &str, source: &'a str) -> Option<(&'a str, &'a str)> {
    let allowed = settings
        .written
        .host_paths
        .iter()
        .filter(|(_, tenants)| tenants.is_empty() || tenants.iter().any(|one| one.as_str() == tenant));
    let within = allowed.filter_map(|(path, _)| match source.strip_prefix(path.as_str())? {
        "" => Some((path.as_str(), "")),
        rest => Some((path.as_str(), rest.strip_prefix('/')?)),
    });
    within.max_by_key(|(path, _)| path.len())
}

/// What is shown for checkpoints: the directory above theirs, for the worker makes theirs, as on hosts; or theirs, where no more may
/// be shown. None for a job that may show neither: its checkpoints may be elsewhere than on the node.
fn checkpoints<'a>(settings: &Settings, placement: &'a Placement) -> Option<&'a str> {
    let own = placement.checkpoint_directory.as_str();
    let above = Path::new(own).parent().and_then(Path::to_str);
    let mut places = above.into_iter().chain([own]);
    places.find(|place| shown(settings, &placement.tenant, place).is_some())
}

/// The volumes of a pod, and where the container of the workers has them.
fn volumes(settings: &Settings, placement: &Placement) -> (Vec<Value>, Vec<Value>) {
    let container = placement.workers.first().and_then(|worker| worker.container.as_ref());
    // What each worker asks for itself, all workers of the pod have together. A job asks in its container where it has one.
    let own_memory =
        container.map_or(0, |own| own.shared_memory_bytes).max(placement.host.shared_memory_bytes);
    let shared_memory = own_memory.saturating_mul(placement.workers.len() as u64);
    let mut volumes = vec![
        json!({"name": "muster", "emptyDir": {}}),
        json!({"name": "work", "emptyDir": {}}),
        // The usual 64 MiB of a container are too small for frameworks.
        json!({"name": "shared-memory", "emptyDir": {"medium": "Memory"}}),
    ];
    if shared_memory > 0 {
        volumes[2]["emptyDir"]["sizeLimit"] = shared_memory.to_string().into();
    }
    let mut mounts = vec![
        json!({"name": "muster", "mountPath": PROGRAM_DIRECTORY, "readOnly": true}),
        json!({"name": "work", "mountPath": WORK_DIRECTORY}),
        json!({"name": "shared-memory", "mountPath": "/dev/shm"}),
    ];
    let scratch = scratch_bytes(placement);
    if scratch > 0 {
        volumes.push(json!({"name": "scratch", "emptyDir": {"sizeLimit": scratch.to_string()}}));
        mounts.push(json!({"name": "scratch", "mountPath": POD_SCRATCH_DIRECTORY}));
    }
    let asked = container.map(|own| own.mounts.as_slice()).unwrap_or_default();
    let asked = asked.iter().map(|mount| (mount.source.as_str(), mount.target.as_str(), mount.read_only));
    let mut of_node: Vec<(&str, &str, bool)> = asked.collect();
    // Checkpoints are at the path that the node has for them, where the job does not show something else there.
    if let Some(place) = checkpoints(settings, placement) {
        let overlaps =
            |target: &str| Path::new(target).starts_with(place) || Path::new(place).starts_with(target);
        if !of_node.iter().any(|(_, target, _)| overlaps(target)) {
            of_node.push((place, place, false));
        }
    }
    for (number, (source, target, read_only)) in of_node.into_iter().enumerate() {
        // Checked before: a mount that is not allowed makes no pod.
        let Some((path, below)) = shown(settings, &placement.tenant, source) else { continue };
        let volume = format!("host-{number}");
        volumes.push(json!({"name": volume, "hostPath": {"path": path}}));
        let mut own = json!({"name": volume, "mountPath": target, "readOnly": read_only});
        if !below.is_empty() {
            own["subPath"] = below.into();
        }
        mounts.push(own);
    }
    (volumes, mounts)
}

/// What the containers of a pod may do.
fn security_context(settings: &Settings) -> Value {
    let mut security =
        json!({"allowPrivilegeEscalation": false, "seccompProfile": {"type": "RuntimeDefault"}});
    if let Some(user) = settings.written.run_as_user {
        security["runAsUser"] = user.into();
    }
    security
}

/// The container that brings the program of the runner.
fn shim_container(settings: &Settings, resources: &Value) -> Value {
    json!({
        "name": SHIM_CONTAINER,
        "image": settings.written.shim_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/usr/bin/muster-agent", "shim", "install", PROGRAM_DIRECTORY],
        "resources": resources,
        "securityContext": security_context(settings),
        "volumeMounts": [{"name": "muster", "mountPath": PROGRAM_DIRECTORY}],
    })
}

/// The container of the workers.
fn workers_container(
    settings: &Settings,
    name: &str,
    placement: &Placement,
    resources: &Value,
    mounts: &[Value],
) -> Value {
    let container = placement.workers.first().and_then(|worker| worker.container.as_ref());
    let image = container.map(|own| &own.image).or(settings.written.default_image.as_ref());
    let pull = match container.map(|own| own.pull).unwrap_or_default() {
        PullRule::Missing => "IfNotPresent",
        PullRule::Always => "Always",
        PullRule::Never => "Never",
    };
    let mut command = own_program::installed_in(Path::new(PROGRAM_DIRECTORY));
    command.extend(["shim".to_owned(), "kubernetes".to_owned()]);
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    json!({
        "name": WORKERS_CONTAINER,
        "image": image,
        "imagePullPolicy": pull,
        "command": command,
        "env": [
            {"name": TICKET_VARIABLE, "valueFrom": {"secretKeyRef": {"name": name, "key": TICKET_KEY}}},
            {"name": POD_VARIABLE, "valueFrom": field("metadata.uid")},
            {"name": POD_NODE_VARIABLE, "valueFrom": field("spec.nodeName")},
        ],
        "resources": resources,
        "securityContext": security_context(settings),
        "volumeMounts": mounts,
    })
}

/// The pod of a share.
///
/// # Errors
/// One sentence: why there can be none.
pub(super) fn pod(
    settings: &Settings,
    scope: &str,
    name: &str,
    placement: &Placement,
    node: &str,
    offered: Option<&NodeAccelerators>,
) -> Result<Pod, String> {
    check(settings, placement)?;
    let written = &settings.written;
    check_slice(placement, offered)?;
    let (before, own) = resources(placement, offered)?;
    let (volumes, mounts) = volumes(settings, placement);
    let grace = placement.stop_grace.saturating_add(GRACE_BEYOND);
    let grace = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]},
    ]}}});
    let mut spec = json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": i64::try_from(grace).unwrap_or(i64::MAX),
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "affinity": affinity,
        "tolerations": tolerations(settings),
        "initContainers": [shim_container(settings, &before)],
        "containers": [workers_container(settings, name, placement, &own, &mounts)],
        "volumes": volumes,
    });
    if written.host_network {
        spec["hostNetwork"] = true.into();
        spec["dnsPolicy"] = "ClusterFirstWithHostNet".into();
    }
    // GKE refuses pods with chips that do not select these.
    let selector = offered.map(|own| &own.selector).filter(|selector| !selector.is_empty());
    if let Some(selector) =
        selector.filter(|_| placement.workers.iter().any(|worker| !worker.devices.is_empty()))
    {
        spec["nodeSelector"] = json!(selector);
    }
    if let Some(class) = &written.priority_class {
        spec["priorityClassName"] = class.as_str().into();
    }
    if !written.image_pull_secrets.is_empty() {
        let secrets = written.image_pull_secrets.iter().map(|secret| json!({"name": secret}));
        spec["imagePullSecrets"] = secrets.collect();
    }
    let object = json!({
        "metadata": {
            "name": name,
            "namespace": written.namespace,
            "labels": labels(scope, placement),
            "annotations": {
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                "muster.dev/tenant": placement.tenant,
                "muster.dev/job-name": placement.job_name,
            },
        },
        "spec": spec,
    });
    serde_json::from_value(object).map_err(|error| format!("make the pod: {error}"))
}

fn tolerations(settings: &Settings) -> Value {
    let of = settings.written.tolerations.iter().map(|own| {
        let mut toleration = json!({"operator": if own.value.is_some() { "Equal" } else { "Exists" }});
        if !own.key.is_empty() {
            toleration["key"] = own.key.as_str().into();
        }
        if let Some(value) = &own.value {
            toleration["value"] = value.as_str().into();
        }
        if let Some(effect) = &own.effect {
            toleration["effect"] = effect.as_str().into();
        }
        toleration
    });
    of.collect()
}

/// The secret with the ticket of a pod, which goes when the pod goes.
///
/// # Errors
/// One sentence: why there can be none.
pub(super) fn secret(
    settings: &Settings,
    scope: &str,
    placement: &Placement,
    (name, uid): (&str, &str),
    ticket: &str,
) -> Result<Secret, String> {
    let object = json!({
        "metadata": {
            "name": name,
            "namespace": settings.written.namespace,
            "labels": labels(scope, placement),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}],
        },
        "immutable": true,
        "type": "muster.dev/ticket",
        "stringData": {TICKET_KEY: ticket},
    });
    serde_json::from_value(object).map_err(|error| format!("make the secret: {error}"))
}

/// Whether a pod that has the name of a share is the one that would be made: of this agent, for this placement, on this node.
pub(super) fn is_same(wanted: &Pod, found: &Pod) -> bool {
    let labels = |pod: &Pod| {
        let all = pod.metadata.labels.clone().unwrap_or_default();
        [label::AGENT, label::JOB, label::TOKEN, label::RANK].map(|key| all.get(key).cloned())
    };
    let node = |pod: &Pod| {
        let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
        affinity.required_during_scheduling_ignored_during_execution.clone()
    };
    labels(wanted) == labels(found) && node(wanted) == node(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::config::KubernetesConfig;
    use crate::kubernetes::config::tests::good;
    use crate::kubernetes::tpu::SliceLabels;
    use crate::wire::{placement, tests::order};
    use muster_types::container::Mount;
    use muster_types::tpu::{Generation, SliceShape};
    use std::collections::BTreeMap;

    const SCOPE: &str = "0123456789abcdef0123456789abcdef";

    /// Two workers of one gang on one node.
    fn two() -> Placement {
        let mut placement = placement(order()).unwrap();
        placement.tenant = "research".into();
        placement.job_name = "llama".into();
        placement.attempt = 3;
        placement.stop_grace = Duration::from_millis(30_500);
        let first = &mut placement.workers[0];
        (first.cpu_milli, first.memory_bytes) = (1_500, 1 << 30);
        first.command = vec!["python3".into(), "train.py".into()];
        first.environment = [("KEY".to_owned(), "private".to_owned())].into();
        let mut second = first.clone();
        second.rank = 2;
        second.devices = DeviceSet(0b0110);
        placement.workers.push(second);
        placement
    }

    fn made(config: &KubernetesConfig, placement: &Placement) -> Result<Value, String> {
        let offered = NodeAccelerators {
            resource: "nvidia.com/gpu".into(),
            kind: "h100".into(),
            count: 8,
            slice: None,
            selector: BTreeMap::new(),
        };
        made_with(config, placement, &offered)
    }

    fn made_with(
        config: &KubernetesConfig,
        placement: &Placement,
        offered: &NodeAccelerators,
    ) -> Result<Value, String> {
        let settings = config.check().unwrap();
        let name = crate::kubernetes::names::pod_name(SCOPE, placement);
        let pod = pod(&settings, SCOPE, &name, placement, "gpu-1.example.org", Some(offered))?;
        Ok(serde_json::to_value(pod).unwrap())
    }

    /// What is written in `testdata/kubernetes/`; `UPDATE_EXPECT=1` rewrites it.
    fn expect(name: &str, value: &Value) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/kubernetes").join(name);
        let text = format!("{}\n", serde_json::to_string_pretty(value).unwrap());
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, expected, "{}", path.display());
    }

    #[test]
    fn the_pod_of_a_share_with_devices() {
        let pod = made(&good(), &two()).unwrap();
        expect("pod_with_devices.json", &pod);
        let text = pod.to_string();
        assert!(!text.contains("private") && !text.contains("train.py"), "what a job runs is not in its pod");
        assert!(!text.contains("nodeName\":\""), "kube-scheduler places it");
    }

    #[test]
    fn a_pod_has_the_scratch_of_all_its_workers() {
        let mut placement = two();
        let scratch_of = |placement: &Placement| {
            let pod = made(&good(), placement).unwrap();
            let volumes = pod["spec"]["volumes"].as_array().cloned().unwrap();
            let volume = volumes.into_iter().find(|volume| volume["name"] == "scratch");
            (volume, pod["spec"]["containers"][0]["resources"]["requests"]["ephemeral-storage"].clone())
        };
        assert_eq!(scratch_of(&placement), (None, Value::Null));
        placement.scratch_bytes = 10 << 30;
        let bytes = (20_u64 << 30).to_string();
        let volume = json!({"name": "scratch", "emptyDir": {"sizeLimit": bytes}});
        assert_eq!(scratch_of(&placement), (Some(volume), json!(bytes)));
    }

    #[test]
    fn shared_memory_of_a_job_without_an_image_bounds_that_of_its_pod() {
        let mut placement = two();
        let bound = |placement: &Placement| {
            let pod = made(&good(), placement).unwrap();
            let mut volumes = pod["spec"]["volumes"].as_array().unwrap().iter();
            volumes.find(|volume| volume["name"] == "shared-memory").unwrap()["emptyDir"].clone()
        };
        assert_eq!(bound(&placement), json!({"medium": "Memory"}));
        placement.host.shared_memory_bytes = 1 << 30;
        let bytes = (2_u64 << 30).to_string();
        assert_eq!(bound(&placement), json!({"medium": "Memory", "sizeLimit": bytes}));
    }

    #[test]
    fn the_pod_of_a_job_with_an_image_and_every_setting() {
        let mut config = good();
        config.priority_class = Some("muster-workers".into());
        config.image_pull_secrets = vec!["registry".into()];
        config.run_as_user = Some(1_000);
        config.tolerations = vec![
            serde_json::from_value(json!({"key": "spot", "value": "yes", "effect": "NoSchedule"})).unwrap(),
            serde_json::from_value(json!({})).unwrap(),
        ];
        config.host_network = false;
        let mut placement = two();
        let mut image = muster_types::Container::new("registry.example.org/team/train:1".into());
        image.pull = PullRule::Always;
        config.host_paths = [("/data".to_owned(), vec!["research".to_owned()])].into();
        image.mounts = vec![
            Mount { source: "/data".into(), target: "/mnt/data".into(), read_only: true },
            Mount { source: "/data/a/b".into(), target: "/mnt/part".into(), read_only: false },
        ];
        image.shared_memory_bytes = 1 << 20;
        for worker in &mut placement.workers {
            worker.devices = DeviceSet::EMPTY;
            worker.container = Some(image.clone());
        }
        expect("pod_with_every_setting.json", &made(&config, &placement).unwrap());
    }

    #[test]
    fn a_pod_shows_of_its_node_what_its_tenant_may_see() {
        let mut config = good();
        config.host_paths = [
            ("/mnt".to_owned(), vec!["research".to_owned()]),
            ("/mnt/all".to_owned(), Vec::new()),
            ("/mnt/other".to_owned(), vec!["other".to_owned()]),
        ]
        .into();
        let settings = config.check().unwrap();
        for (tenant, source, seen) in [
            ("research", "/mnt", Some(("/mnt", ""))),
            ("research", "/mnt/a/b", Some(("/mnt", "a/b"))),
            ("research", "/mnt/all/a", Some(("/mnt/all", "a"))),
            ("research", "/mnt/other", Some(("/mnt", "other"))),
            ("research", "/mntx", None),
            ("research", "/etc", None),
            ("other", "/mnt/all", Some(("/mnt/all", ""))),
            ("other", "/mnt/other/x", Some(("/mnt/other", "x"))),
            ("other", "/mnt/a", None),
            ("other", "/mnt", None),
        ] {
            assert_eq!(shown(&settings, tenant, source), seen, "{tenant} {source}");
        }
        let mut placement = two();
        // Checkpoints are shown at their own path, and only where they may be.
        placement.checkpoint_directory = "/mnt/runs/one".into();
        let places = |config: &KubernetesConfig| {
            let pod = made(config, &placement).unwrap();
            let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().unwrap();
            let of_node = mounts.iter().filter(|mount| mount["name"].as_str().unwrap().starts_with("host-"));
            of_node.map(|mount| (mount["mountPath"].clone(), mount["subPath"].clone())).collect::<Vec<_>>()
        };
        assert!(places(&good()).is_empty());
        assert_eq!(places(&config), [(json!("/mnt/runs"), json!("runs"))]);
        let mut image = muster_types::Container::new("registry.example.org/team/train:1".into());
        image.mounts = vec![Mount { source: "/etc".into(), target: "/seen".into(), read_only: true }];
        for worker in &mut placement.workers {
            worker.container = Some(image.clone());
        }
        for config in [good(), config] {
            let why = made(&config, &placement).unwrap_err();
            assert!(why.contains("/etc") && why.contains("kubernetes.host_paths"), "{why}");
        }
    }

    #[test]
    fn the_secret_goes_with_its_pod() {
        let (settings, placement) = (good().check().unwrap(), two());
        let secret = secret(&settings, SCOPE, &placement, ("muster-01234567-x", "uid-1"), "{}").unwrap();
        expect("secret.json", &serde_json::to_value(secret).unwrap());
    }

    #[test]
    fn nothing_that_is_stated_is_lost_on_the_way() {
        // Types drop fields that they do not know.
        let pod = made(&good(), &two()).unwrap();
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        assert_eq!(container["env"][0]["valueFrom"]["secretKeyRef"]["key"], TICKET_KEY);
        assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], "4");
        assert_eq!(container["resources"]["requests"]["cpu"], "3000m");
        assert_eq!(pod["spec"]["initContainers"][0]["command"][2], "install");
        assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 46);
        let term = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(term["nodeSelectorTerms"][0]["matchFields"][0]["values"][0], "gpu-1.example.org");
        assert_eq!(pod["metadata"]["name"], "muster-01234567-job-1-1-7-1");
    }

    #[test]
    fn what_cannot_be_a_pod_says_why() {
        let why = |config: &KubernetesConfig, change: fn(&mut Placement)| {
            let mut placement = two();
            change(&mut placement);
            made(config, &placement).unwrap_err()
        };
        let config = good();
        let mixed = why(&config, |placement| {
            placement.workers[0].container =
                Some(muster_types::Container::new("registry.example.org/x:1".into()));
        });
        assert!(mixed.contains("different images"), "{mixed}");
        let with_credentials = why(&config, |placement| {
            for worker in &mut placement.workers {
                worker.container = Some(muster_types::Container {
                    credentials: Some(muster_types::Name::literal("registry")),
                    ..muster_types::Container::new("registry.example.org/x:1".into())
                });
            }
        });
        assert!(with_credentials.contains("imagePullSecrets"), "{with_credentials}");
        assert!(why(&config, |placement| placement.workers[1].command.clear()).contains("needs a command"));
        assert!(
            why(&config, |placement| placement.workers[0].device_milli = 500)
                .contains("shares of one device")
        );
        assert!(why(&config, |placement| placement.workers.clear()).contains("no worker"));
        let mut none = good();
        none.default_image = None;
        assert!(why(&none, |_| ()).contains("kubernetes.default_image"));
        let mut apart = good();
        apart.host_network = false;
        let several = why(&apart, |placement| placement.rank_map[0].node_name = "elsewhere".into());
        assert!(several.contains("kubernetes.host_network"), "{several}");
    }

    #[test]
    fn a_host_of_a_slice_takes_the_whole_slice_and_its_pod_selects_it() {
        let shape = |text: &str| SliceShape::parse(text).unwrap();
        let selected = [
            ("cloud.google.com/gke-tpu-topology", "2x2x4"),
            ("cloud.google.com/gke-tpu-accelerator", "tpu-v5p-slice"),
        ];
        let offered = NodeAccelerators {
            resource: "google.com/tpu".into(),
            kind: "v5p".into(),
            count: 4,
            slice: Some(SliceLabels {
                generation: Generation::V5p,
                shape: shape("2x2x4"),
                chips_per_host: 4,
            }),
            selector: selected.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        };
        let asked = |text: &str| {
            let mut placement = two();
            placement.slices = vec![Slices { first_rank: 0, hosts: 4, count: 1, shape: shape(text) }];
            made_with(&good(), &placement, &offered)
        };
        let pod = asked("2x2x4").unwrap();
        let limit = &pod["spec"]["containers"][0]["resources"]["limits"]["google.com/tpu"];
        assert_eq!(limit, "4");
        assert_eq!(pod["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"], "2x2x4");
        assert_eq!(pod["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"], "tpu-v5p-slice");
        let why = asked("2x2x2").unwrap_err();
        assert!(why.contains("2x2x4") && why.contains("cloud.google.com.gke-tpu-topology=2x2x2"), "{why}");
        // One that asks for chips and no slice joins nothing.
        assert!(made_with(&good(), &two(), &offered).is_ok());
        let mut plain = two();
        for worker in &mut plain.workers {
            worker.devices = DeviceSet::EMPTY;
        }
        assert!(made_with(&good(), &plain, &offered).unwrap()["spec"].get("nodeSelector").is_none());
    }

    #[test]
    fn a_pod_of_the_same_name_is_compared() {
        let pod = |change: fn(&mut Value)| -> Pod {
            let mut value = made(&good(), &two()).unwrap();
            change(&mut value);
            serde_json::from_value(value).unwrap()
        };
        let wanted = pod(|_| ());
        // What a server fills in makes no difference.
        let filled = pod(|value| {
            value["metadata"]["uid"] = "u".into();
            value["spec"]["schedulerName"] = "default-scheduler".into();
        });
        assert!(is_same(&wanted, &filled));
        assert!(!is_same(&wanted, &pod(|value| value["metadata"]["labels"][label::AGENT] = "other".into())));
        assert!(!is_same(&wanted, &pod(|value| value["metadata"]["labels"][label::TOKEN] = "1.8".into())));
        assert!(!is_same(&wanted, &pod(|value| value["spec"]["affinity"] = Value::Null)));
    }
}
