//! What an operator tells an agent that stands for a Kubernetes cluster.
//!
//! **Invariant:** every refusal names the key and what the key needs.

use crate::settings::{ConfigError, broken, first_block, first_rack};
use muster_types::config_value::span_ms;
use muster_types::{Name, Violation};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of a name of Kubernetes, and of a reference to an image.
const NAME_BYTES_MAX: usize = 253;
const IMAGE_BYTES_MAX: usize = 512;
/// Bytes of a path of a node.
const PATH_BYTES_MAX: usize = 4_096;
/// Entries of one list.
const ENTRIES_MAX: usize = 32;

/// The `[kubernetes]` table.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KubernetesConfig {
    /// Node `n1` of Kubernetes is node `<name>.n1` of Muster; the agent's certificate is for this name.
    pub name: String,
    /// Region of its nodes.
    pub region: String,
    /// Fleet cluster of its nodes: one network that a gang can use.
    pub cluster: String,
    /// The namespace of the pods of workers. It has to be there.
    pub namespace: String,
    /// A file that says where the API server is and who calls; the agent's own service account when absent.
    #[serde(default)]
    pub kubeconfig: Option<PathBuf>,
    /// Which nodes are used, as a selector of labels; every node when empty.
    #[serde(default)]
    pub node_selector: String,
    /// Spine block of the nodes that have none of `block_labels`.
    #[serde(default = "first_block")]
    pub block: String,
    /// Rack of the nodes that have none of `rack_labels`.
    #[serde(default = "first_rack")]
    pub rack: String,
    /// Labels of Kubernetes that name a node's block, the first that it has.
    #[serde(default = "block_labels")]
    pub block_labels: Vec<String>,
    /// Labels of Kubernetes that name a node's rack or NVLink domain, the first that it has.
    #[serde(default = "rack_labels")]
    pub rack_labels: Vec<String>,
    /// Labels of Kubernetes that become labels of the node, with `.` in place of `/`.
    #[serde(default = "node_labels")]
    pub node_labels: Vec<String>,
    /// Facts about all of its nodes.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Taints of all of its nodes in Muster.
    #[serde(default)]
    pub taints: Vec<String>,
    /// Resources of Kubernetes that are accelerators, and what they are called in Muster; `""` for what the node's labels say.
    #[serde(default = "accelerators")]
    pub accelerators: BTreeMap<String, String>,
    /// Taints of Kubernetes that pods of workers tolerate. A node with another one that keeps pods away gets no work.
    #[serde(default = "tolerations")]
    pub tolerations: Vec<TolerationConfig>,
    /// Where this agent waits for the runners in its pods, which dial the same address again after a restart of the agent: a port
    /// that stays.
    pub listen: SocketAddr,
    /// `host:port` at which pods reach that; `listen` itself when absent.
    #[serde(default)]
    pub advertise: Option<String>,
    /// The image with `/usr/bin/muster-agent` of this release: it brings the runner into every pod.
    pub shim_image: String,
    /// The image of workers whose job names none; such jobs are refused when absent.
    #[serde(default)]
    pub default_image: Option<String>,
    /// Secrets of the namespace with which images are pulled.
    #[serde(default)]
    pub image_pull_secrets: Vec<String>,
    /// The priority class of the pods; it should never preempt, because Muster does that.
    #[serde(default)]
    pub priority_class: Option<String>,
    /// Whether pods have the network of their node. Without it a gang cannot have workers on several nodes, because its workers
    /// find each other by the nodes' addresses.
    #[serde(default = "host_network")]
    pub host_network: bool,
    /// The user of the workers; that of the image when absent.
    #[serde(default)]
    pub run_as_user: Option<u32>,
    /// Paths of nodes that jobs may show to their workers (`container.mounts`), with all that is below them, and the tenants that
    /// may; every tenant where its list is empty. No job may when left out: the kubelet finds such paths as root of the node.
    #[serde(default)]
    pub host_paths: BTreeMap<String, Vec<String>>,
    /// What one call to the API server may take.
    #[serde(default = "call_timeout", rename = "call_timeout", with = "span_ms")]
    pub call_timeout_ms: u64,
    /// How long a pod may wait for its node before the place is given up.
    #[serde(default = "start_wait", rename = "start_wait", with = "span_ms")]
    pub start_wait_ms: u64,
    /// From there until it runs: images are pulled meanwhile.
    #[serde(default = "image_wait", rename = "image_wait", with = "span_ms")]
    pub image_wait_ms: u64,
    /// From there to its runner's first word.
    #[serde(default = "runner_wait", rename = "runner_wait", with = "span_ms")]
    pub runner_wait_ms: u64,
}

/// A taint of Kubernetes that is tolerated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TolerationConfig {
    /// Its key; every key when empty.
    #[serde(default)]
    pub key: String,
    /// Its value; every value when absent.
    #[serde(default)]
    pub value: Option<String>,
    /// `NoSchedule` or `NoExecute`; both when absent.
    #[serde(default)]
    pub effect: Option<String>,
}

impl TolerationConfig {
    /// Whether it tolerates a taint.
    pub(super) fn tolerates(&self, key: &str, value: &str, effect: &str) -> bool {
        (self.key.is_empty() || self.key == key)
            && self.value.as_deref().is_none_or(|own| own == value)
            && self.effect.as_deref().is_none_or(|own| own == effect)
    }
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

fn block_labels() -> Vec<String> {
    texts(&["cloud.google.com/gce-topology-block", "topology.kubernetes.io/zone"])
}

fn rack_labels() -> Vec<String> {
    texts(&["nvidia.com/gpu.clique", "cloud.google.com/gce-topology-subblock", "topology.kubernetes.io/rack"])
}

fn node_labels() -> Vec<String> {
    texts(&[
        "kubernetes.io/arch",
        "node.kubernetes.io/instance-type",
        "nvidia.com/gpu.product",
        "cloud.google.com/gke-nodepool",
        "cloud.google.com/gke-tpu-accelerator",
        "cloud.google.com/gke-tpu-topology",
    ])
}

fn accelerators() -> BTreeMap<String, String> {
    let named = ["nvidia.com/gpu", "amd.com/gpu", "google.com/tpu"];
    named.into_iter().map(|resource| (resource.to_owned(), String::new())).collect()
}

fn tolerations() -> Vec<TolerationConfig> {
    let named = ["nvidia.com/gpu", "amd.com/gpu", "google.com/tpu", "muster.dev/workers"];
    let toleration = |key: &str| TolerationConfig { key: key.to_owned(), value: None, effect: None };
    named.into_iter().map(toleration).collect()
}

fn host_network() -> bool {
    true
}

fn call_timeout() -> u64 {
    30_000
}

fn start_wait() -> u64 {
    120_000
}

fn image_wait() -> u64 {
    1_800_000
}

fn runner_wait() -> u64 {
    60_000
}

/// The same, checked.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) name: Name,
    pub(super) region: Name,
    pub(super) cluster: Name,
    pub(super) block: Name,
    pub(super) rack: Name,
    pub(super) labels: BTreeMap<Name, String>,
    pub(super) taints: BTreeSet<Name>,
    pub(super) advertise: String,
    pub(super) start_wait: Duration,
    pub(super) image_wait: Duration,
    pub(super) runner_wait: Duration,
    pub(super) call_timeout: Duration,
    pub(super) written: KubernetesConfig,
}

impl KubernetesConfig {
    /// The least that a file has to state, for tests.
    pub(super) fn sample() -> Option<KubernetesConfig> {
        let text = r#"{"name": "k8s-a", "region": "eu", "cluster": "eu-a", "namespace": "muster-workers",
            "listen": "127.0.0.1:7480", "shim_image": "registry.example.org/muster:1"}"#;
        serde_json::from_str(text).ok()
    }

    /// The first key with an invalid value, and its rule, as a sentence; none when all values are valid.
    #[must_use]
    pub fn rule_broken(&self) -> Option<String> {
        self.violation().map(|error| error.to_string())
    }

    /// The first key that breaks its rule.
    pub(crate) fn violation(&self) -> Option<ConfigError> {
        self.check().err()
    }

    /// Parses and checks all values.
    ///
    /// # Errors
    /// The first that breaks its rule.
    pub(super) fn check(&self) -> Result<Settings, ConfigError> {
        let name = |key: &str, text: &str| {
            Name::new(text).ok_or_else(|| broken(key, format!("must be {}", muster_types::name::NAME_RULE)))
        };
        self.check_words()?;
        self.check_lists()?;
        self.check_host_paths()?;
        self.check_spans()?;
        let mut labels = BTreeMap::new();
        for (key, value) in &self.labels {
            labels.insert(name("kubernetes.labels", key)?, value.clone());
        }
        let mut taints = BTreeSet::new();
        for taint in &self.taints {
            taints.insert(name("kubernetes.taints", taint)?);
        }
        for kind in self.accelerators.values().filter(|kind| !kind.is_empty()) {
            name("kubernetes.accelerators", kind)?;
        }
        let advertise = self.advertise.clone().unwrap_or_else(|| self.listen.to_string());
        if self.advertise.is_none() && self.listen.ip().is_unspecified() {
            return Err(broken(
                "kubernetes.advertise",
                "must say what to dial where `listen` is every address",
            ));
        }
        if advertise
            .rsplit_once(':')
            .is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err())
        {
            return Err(broken("kubernetes.advertise", "must be host:port"));
        }
        Ok(Settings {
            name: name("kubernetes.name", &self.name)?,
            region: name("kubernetes.region", &self.region)?,
            cluster: name("kubernetes.cluster", &self.cluster)?,
            block: name("kubernetes.block", &self.block)?,
            rack: name("kubernetes.rack", &self.rack)?,
            labels,
            taints,
            advertise,
            start_wait: Duration::from_millis(self.start_wait_ms),
            image_wait: Duration::from_millis(self.image_wait_ms),
            runner_wait: Duration::from_millis(self.runner_wait_ms),
            call_timeout: Duration::from_millis(self.call_timeout_ms),
            written: self.clone(),
        })
    }

    fn check_words(&self) -> Result<(), ConfigError> {
        let names = [("kubernetes.namespace", &self.namespace)]
            .into_iter()
            .chain(self.priority_class.iter().map(|word| ("kubernetes.priority_class", word)))
            .chain(self.image_pull_secrets.iter().map(|word| ("kubernetes.image_pull_secrets", word)));
        for (key, word) in names {
            if !is_object_name(word) {
                let rule = format!("{word:?} is no name that an object of Kubernetes could have");
                return Err(broken(key, rule));
            }
        }
        let images = [("kubernetes.shim_image", &self.shim_image)]
            .into_iter()
            .chain(self.default_image.iter().map(|image| ("kubernetes.default_image", image)));
        for (key, image) in images {
            let is_plain = |b: u8| b.is_ascii_graphic();
            if image.is_empty() || image.len() > IMAGE_BYTES_MAX || !image.bytes().all(is_plain) {
                return Err(broken(key, "must be a reference like registry.example.org/team/train:1"));
            }
        }
        if self.listen.port() == 0 {
            let rule =
                "must have a port that stays, not 0: runners dial it again after a restart of the agent";
            return Err(broken("kubernetes.listen", rule));
        }
        if self.kubeconfig.as_ref().is_some_and(|path| !path.is_absolute()) {
            return Err(broken("kubernetes.kubeconfig", "must be an absolute path"));
        }
        if self.node_selector.len() > 4_096 || self.node_selector.chars().any(char::is_control) {
            return Err(broken(
                "kubernetes.node_selector",
                "must be a selector like muster.dev/workers=true",
            ));
        }
        for toleration in &self.tolerations {
            let is_known = |effect: &str| matches!(effect, "NoSchedule" | "NoExecute");
            if !toleration.effect.as_deref().is_none_or(is_known) {
                return Err(broken("kubernetes.tolerations", "effect must be NoSchedule or NoExecute"));
            }
            if toleration.key.is_empty() && toleration.value.is_some() {
                return Err(broken("kubernetes.tolerations", "a value needs a key"));
            }
            if !toleration.key.is_empty() && !is_label_key(&toleration.key) {
                return Err(broken(
                    "kubernetes.tolerations",
                    format!("{:?} is no key of a taint", toleration.key),
                ));
            }
        }
        Ok(())
    }

    fn check_lists(&self) -> Result<(), ConfigError> {
        let lists = [
            ("kubernetes.block_labels", &self.block_labels),
            ("kubernetes.rack_labels", &self.rack_labels),
            ("kubernetes.node_labels", &self.node_labels),
        ];
        for (key, list) in lists {
            if let Some(bad) = list.iter().find(|label| !is_label_key(label)) {
                return Err(broken(key, format!("{bad:?} is no key of a label")));
            }
        }
        if let Some(bad) = self.accelerators.keys().find(|resource| !is_label_key(resource)) {
            return Err(broken("kubernetes.accelerators", format!("{bad:?} is no name of a resource")));
        }
        let lengths = [
            ("kubernetes.block_labels", self.block_labels.len()),
            ("kubernetes.rack_labels", self.rack_labels.len()),
            ("kubernetes.node_labels", self.node_labels.len()),
            ("kubernetes.accelerators", self.accelerators.len()),
            ("kubernetes.tolerations", self.tolerations.len()),
            ("kubernetes.image_pull_secrets", self.image_pull_secrets.len()),
        ];
        match lengths.into_iter().find(|(_, length)| *length > ENTRIES_MAX) {
            Some((key, _)) => Err(broken(key, format!("must have at most {ENTRIES_MAX} entries"))),
            None => Ok(()),
        }
    }

    fn check_host_paths(&self) -> Result<(), ConfigError> {
        let key = "kubernetes.host_paths";
        if self.host_paths.len() > ENTRIES_MAX
            || self.host_paths.values().any(|tenants| tenants.len() > ENTRIES_MAX)
        {
            return Err(broken(key, format!("must have at most {ENTRIES_MAX} paths and tenants of each")));
        }
        if let Some(bad) = self.host_paths.keys().find(|path| !is_plain_path(path)) {
            let rule = format!("{bad:?} must be an absolute path without `.`, `..` and empty parts, not `/`");
            return Err(broken(key, rule));
        }
        match self.host_paths.values().flatten().find(|tenant| Name::new(tenant.as_str()).is_none()) {
            Some(bad) => Err(broken(key, format!("{bad:?} is no name of a tenant"))),
            None => Ok(()),
        }
    }

    fn check_spans(&self) -> Result<(), ConfigError> {
        let spans = [
            ("kubernetes.call_timeout", self.call_timeout_ms, 1_000, 600_000),
            ("kubernetes.start_wait", self.start_wait_ms, 1_000, 86_400_000),
            ("kubernetes.image_wait", self.image_wait_ms, 1_000, 86_400_000),
            ("kubernetes.runner_wait", self.runner_wait_ms, 1_000, 3_600_000),
        ];
        for (key, ms, least, most) in spans {
            if !(least..=most).contains(&ms) {
                return Err(broken(key, Violation::span(key, ms, least, most).description));
            }
        }
        Ok(())
    }
}

/// Whether a path says what it means, and is not the whole node.
fn is_plain_path(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('/') else { return false };
    text.len() <= PATH_BYTES_MAX
        && !text.chars().any(char::is_control)
        && rest.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Whether an object of Kubernetes can have this name.
fn is_object_name(text: &str) -> bool {
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().last()];
    text.len() <= NAME_BYTES_MAX
        && ends.into_iter().all(|end| end.is_some_and(edge))
        && text.bytes().all(|b| edge(b) || matches!(b, b'-' | b'.'))
}

/// Whether a label, a taint or a resource of Kubernetes can have this name: a domain and `/` may stand before it.
fn is_label_key(text: &str) -> bool {
    let (domain, name) = text.split_once('/').map_or((None, text), |(domain, name)| (Some(domain), name));
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let ends = [name.bytes().next(), name.bytes().last()];
    domain.is_none_or(is_object_name)
        && name.len() <= 63
        && name.bytes().all(inner)
        && ends.into_iter().all(|end| end.is_some_and(|b| b.is_ascii_alphanumeric()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn good() -> KubernetesConfig {
        let default_image = Some("registry.example.org/base:1".to_owned());
        KubernetesConfig { default_image, ..KubernetesConfig::sample().unwrap() }
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let settings = good().check().unwrap();
        assert_eq!(settings.advertise, "127.0.0.1:7480");
        assert_eq!(settings.start_wait, Duration::from_secs(120));
        assert_eq!(settings.image_wait, Duration::from_secs(1_800));
        assert!(settings.written.host_network);
        assert!(settings.written.accelerators.contains_key("nvidia.com/gpu"));
    }

    #[test]
    fn the_broken_key_is_named() {
        let key = |change: fn(&mut KubernetesConfig)| {
            let mut config = good();
            change(&mut config);
            config.check().unwrap_err().key
        };
        assert_eq!(key(|c| c.name = "No".into()), "kubernetes.name");
        assert_eq!(key(|c| c.namespace = "a/b".into()), "kubernetes.namespace");
        assert_eq!(key(|c| c.namespace = String::new()), "kubernetes.namespace");
        assert_eq!(key(|c| c.priority_class = Some("No".into())), "kubernetes.priority_class");
        assert_eq!(key(|c| c.shim_image = "a b".into()), "kubernetes.shim_image");
        assert_eq!(key(|c| c.default_image = Some(String::new())), "kubernetes.default_image");
        assert_eq!(key(|c| c.kubeconfig = Some("kubeconfig".into())), "kubernetes.kubeconfig");
        assert_eq!(key(|c| c.node_selector = "a\nb".into()), "kubernetes.node_selector");
        assert_eq!(key(|c| c.listen = "0.0.0.0:1".parse().unwrap()), "kubernetes.advertise");
        assert_eq!(key(|c| c.listen = "127.0.0.1:0".parse().unwrap()), "kubernetes.listen");
        assert_eq!(key(|c| c.advertise = Some("host".into())), "kubernetes.advertise");
        assert_eq!(key(|c| c.rack_labels = vec!["a b".into()]), "kubernetes.rack_labels");
        assert_eq!(key(|c| c.taints = vec!["No".into()]), "kubernetes.taints");
        assert_eq!(key(|c| c.start_wait_ms = 1), "kubernetes.start_wait");
        assert_eq!(key(|c| c.node_labels = vec!["a".into(); 33]), "kubernetes.node_labels");
        let accelerators = |resource: &str, kind: &str| {
            let mut config = good();
            config.accelerators = [(resource.to_owned(), kind.to_owned())].into();
            config.check().map(|_| ()).map_err(|error| error.key)
        };
        assert_eq!(accelerators("nvidia.com/gpu", "h100"), Ok(()));
        assert_eq!(accelerators("nvidia.com/gpu", "H 100"), Err("kubernetes.accelerators".into()));
        assert_eq!(accelerators("/gpu", "h100"), Err("kubernetes.accelerators".into()));
        let host_paths = |path: &str, tenant: &str| {
            let mut config = good();
            config.host_paths = [(path.to_owned(), vec![tenant.to_owned()])].into();
            config.check().map(|_| ()).map_err(|error| error.key)
        };
        assert_eq!(host_paths("/mnt/data", "research"), Ok(()));
        for (path, tenant) in [
            ("/", "research"),
            ("mnt", "research"),
            ("/mnt/", "research"),
            ("/mnt/../etc", "research"),
            ("/mnt", "No"),
        ] {
            assert_eq!(host_paths(path, tenant), Err("kubernetes.host_paths".into()), "{path} {tenant}");
        }
        let tolerations = |toleration: serde_json::Value| {
            let mut config = good();
            config.tolerations = vec![serde_json::from_value(toleration).unwrap()];
            config.check().map(|_| ()).map_err(|error| error.key)
        };
        assert_eq!(tolerations(serde_json::json!({})), Ok(()));
        assert_eq!(tolerations(serde_json::json!({"key": "a", "effect": "NoExecute"})), Ok(()));
        for bad in [
            serde_json::json!({"key": "a", "effect": "PreferNoSchedule"}),
            serde_json::json!({"value": "x"}),
            serde_json::json!({"key": "-"}),
        ] {
            assert_eq!(tolerations(bad), Err("kubernetes.tolerations".into()));
        }
    }

    #[test]
    fn a_toleration_is_read_as_kubernetes_reads_it() {
        let of = |key: &str, value: Option<&str>, effect: Option<&str>| TolerationConfig {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            effect: effect.map(str::to_owned),
        };
        assert!(of("", None, None).tolerates("gpu", "x", "NoSchedule"));
        assert!(of("gpu", None, None).tolerates("gpu", "x", "NoExecute"));
        assert!(!of("gpu", Some("y"), None).tolerates("gpu", "x", "NoExecute"));
        assert!(!of("gpu", None, Some("NoSchedule")).tolerates("gpu", "x", "NoExecute"));
        assert!(!of("cpu", None, None).tolerates("gpu", "x", "NoSchedule"));
    }
}
