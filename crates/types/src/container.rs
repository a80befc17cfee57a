//! Workers whose root directory is that of an image: which image, when it is pulled, and which directories of the host
//! it shows.
//!
//! **Invariant:** it says nothing about who a worker is or what it may use: user, devices, limits and lease are those of
//! every worker.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use crate::fleet::NodeDraft;
use crate::limits;
use crate::name::Name;
use crate::reason::Violation;

/// The label of a node that names what it prepares images with; `none` where it cannot.
pub const RUNTIME_LABEL: &str = "container.runtime";
/// The label of a node with the version of that.
pub const VERSION_LABEL: &str = "container.version";
/// The value of [`RUNTIME_LABEL`] on a node that cannot.
pub const NO_RUNTIME: &str = "none";

/// What a reference has to look like, in words.
pub const REFERENCE_RULE: &str = "must be a reference like registry.example.org/team/train:1 or \
                                  registry.example.org/team/train@sha256:… with its registry, at most 512 bytes";

/// When an image is pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PullRule {
    /// Where the node does not have it.
    #[default]
    Missing,
    /// Before every start.
    Always,
    /// Never: the node has it, or the start fails.
    Never,
}

impl PullRule {
    /// Every rule.
    pub const ALL: [PullRule; 3] = [PullRule::Missing, PullRule::Always, PullRule::Never];

    /// As people write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            PullRule::Missing => "missing",
            PullRule::Always => "always",
            PullRule::Never => "never",
        }
    }
}

impl fmt::Display for PullRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A file or directory of the host that a worker with an image sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Where it is on the host.
    pub source: String,
    /// Where the worker sees it.
    pub target: String,
    /// Whether the worker can only read it.
    pub read_only: bool,
}

/// The image of a group's workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Registry, name, and tag or digest.
    pub image: String,
    /// When it is pulled.
    pub pull: PullRule,
    /// What the workers see of the host.
    pub mounts: Vec<Mount>,
    /// Bytes of a /dev/shm that each worker has for itself; 0 for that of its gang on the host.
    pub shared_memory_bytes: u64,
    /// The secret of the tenant, on the hosts, that opens the image's registry; none for what the hosts have themselves.
    pub credentials: Option<Name>,
}

/// What a worker with an image waits for before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StartStage {
    /// Its image is fetched from its registry.
    Pulling,
    /// Its image is unpacked.
    Unpacking,
    /// Everything is there, and it is launched.
    Starting,
}

impl StartStage {
    /// Every stage, in their order.
    pub const ALL: [StartStage; 3] = [StartStage::Pulling, StartStage::Unpacking, StartStage::Starting];

    /// As people read it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            StartStage::Pulling => "pulling",
            StartStage::Unpacking => "unpacking",
            StartStage::Starting => "starting",
        }
    }
}

impl Container {
    /// With this image, pulled where it is missing, and nothing of the host.
    #[must_use]
    pub fn new(image: String) -> Container {
        let (pull, mounts) = (PullRule::default(), Vec::new());
        Container { image, pull, mounts, shared_memory_bytes: 0, credentials: None }
    }

    /// Appends every rule that it breaks. `at` is its path.
    pub fn check(&self, at: &str, found: &mut Vec<Violation>) {
        if !is_reference(&self.image) {
            found.push(Violation::new(format!("{at}.image"), REFERENCE_RULE));
        }
        let (least, most) = (limits::SHARED_MEMORY_BYTES_MIN, limits::MEMORY_BYTES_MAX);
        if self.shared_memory_bytes != 0 && !(least..=most).contains(&self.shared_memory_bytes) {
            let field = format!("{at}.shared_memory_bytes");
            found.push(Violation::size(&field, self.shared_memory_bytes, least, most));
        }
        if self.mounts.len() > limits::CONTAINER_MOUNTS_MAX {
            let (count, max) = (self.mounts.len(), limits::CONTAINER_MOUNTS_MAX);
            found.push(Violation::count(&format!("{at}.mounts"), count, (0, max), "mounts"));
            return;
        }
        let mut targets: BTreeSet<&str> = BTreeSet::new();
        for (place, mount) in self.mounts.iter().enumerate() {
            let field = |part: &str| format!("{at}.mounts[{place}].{part}");
            if !is_plain_path(&mount.source) || is_of_system(&mount.source) {
                found.push(Violation::new(field("source"), PATH_RULE));
            }
            if !is_plain_path(&mount.target) || is_of_system(&mount.target) {
                found.push(Violation::new(field("target"), PATH_RULE));
            } else if targets
                .iter()
                .any(|other| is_below(&mount.target, other) || is_below(other, &mount.target))
            {
                let rule = "must be neither another mount's target nor above or below one";
                found.push(Violation::new(field("target"), rule));
            } else {
                targets.insert(&mount.target);
            }
        }
    }

    /// Bytes of its texts.
    pub(crate) fn text_bytes(&self) -> usize {
        let of_mounts: usize = self.mounts.iter().map(|mount| mount.source.len() + mount.target.len()).sum();
        self.image.len() + of_mounts + self.credentials.as_ref().map_or(0, |name| name.as_str().len())
    }
}

/// Whether a node gives its workers the root directories of images. One that states nothing does not: an older agent, or a
/// backend such as Slurm.
#[must_use]
pub fn has_runtime(node: &NodeDraft) -> bool {
    let stated = node.labels.iter().find(|(label, _)| label.as_str() == RUNTIME_LABEL);
    stated.is_some_and(|(_, value)| value != NO_RUNTIME)
}

const PATH_RULE: &str = "must be an absolute path without `.`, `..` and empty parts, not `/`, and neither /proc, /sys, /dev nor \
                         below them, at most 4096 bytes";

/// Whether a path is absolute and says what it means: no part is empty, `.` or `..`.
fn is_plain_path(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    path.len() <= limits::TEXT_BYTES_MAX
        && !path.contains('\0')
        && rest.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Whether a path leads into what the kernel shows of itself and of devices.
fn is_of_system(path: &str) -> bool {
    ["/proc", "/sys", "/dev"].iter().any(|system| is_below(path, system))
}

/// Whether a path is another one, or below it.
fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a text is a reference of the distribution specification with a registry: `host[:port]/name[:tag][@digest]`, with a
/// tag or a digest at least. A name without a registry would be completed differently on every node.
#[must_use]
pub fn is_reference(text: &str) -> bool {
    if text.len() > limits::IMAGE_BYTES_MAX {
        return false;
    }
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (text, None),
    };
    let Some((registry, path)) = rest.split_once('/') else { return false };
    let (path, tag) = match path.rsplit_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (path, None),
    };
    (tag.is_some() || digest.is_some())
        && is_registry(registry)
        && path.split('/').all(is_name_part)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest)
}

/// What podman knows in addition to registries: files and daemons of the host that they run on. `docker` is not among them:
/// with a port it is a host.
const TRANSPORTS: [&str; 10] = [
    "atomic",
    "containers-storage",
    "dir",
    "docker-archive",
    "docker-daemon",
    "oci",
    "oci-archive",
    "ostree",
    "sif",
    "tarball",
];

/// A host that cannot be taken for the first part of a name, nor for something that is no registry: it has a dot or a port, or
/// is `localhost`.
fn is_registry(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let label = |label: &str| {
        let form = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        !label.is_empty() && form && !label.starts_with('-') && !label.ends_with('-')
    };
    let is_port =
        |port: &str| (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_host = host == "localhost" || host.contains('.') || port.is_some();
    is_host && !TRANSPORTS.contains(&host) && host.split('.').all(label) && port.is_none_or(is_port)
}

/// Lower-case letters and digits, with `.`, `_`, `__` or dashes between them.
fn is_name_part(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_edge = |byte: Option<u8>| byte.is_some_and(plain);
    let form = part.bytes().all(|byte| plain(byte) || matches!(byte, b'.' | b'_' | b'-'));
    let has_run = ["..", "___", "._", "_.", ".-", "-.", "_-", "-_"].iter().any(|run| part.contains(*run));
    form && !has_run && is_edge(part.bytes().next()) && is_edge(part.bytes().next_back())
}

fn is_tag(tag: &str) -> bool {
    let form = tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    (1..=128).contains(&tag.len()) && form && !tag.starts_with(['.', '-'])
}

fn is_digest(digest: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let hex = |name: &str, length: usize| {
        digest.strip_prefix(name).is_some_and(|hex| hex.len() == length && hex.bytes().all(is_hex))
    };
    hex("sha256:", 64) || hex("sha512:", 128)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;

    fn faults(container: &Container) -> Vec<String> {
        let mut found = Vec::new();
        container.check("container", &mut found);
        found.into_iter().map(|violation| violation.field).collect()
    }

    #[test]
    fn a_size_of_shared_memory_is_none_or_at_least_a_mebibyte() {
        let of = |shared_memory_bytes| Container {
            shared_memory_bytes,
            ..Container::new("localhost/train:1".to_string())
        };
        for good in [0, 1 << 20, limits::MEMORY_BYTES_MAX] {
            assert_eq!(faults(&of(good)), Vec::<String>::new(), "{good}");
        }
        for bad in [1, (1 << 20) - 1, limits::MEMORY_BYTES_MAX + 1, u64::MAX] {
            assert_eq!(faults(&of(bad)), ["container.shared_memory_bytes"], "{bad}");
        }
    }

    fn mount(source: &str, target: &str) -> Mount {
        Mount { source: source.to_string(), target: target.to_string(), read_only: true }
    }

    #[test]
    fn a_reference_has_a_registry_and_a_tag_or_a_digest() {
        let digest = format!("sha256:{}", "0f".repeat(32));
        for good in [
            "localhost/train:1",
            "localhost:5000/team/train:v1.2_3-x",
            "registry.example.org/train:latest",
            "host:5000/a__b/c-d.e:T",
            &format!("registry.example.org/train@{digest}"),
            &format!("registry.example.org/train:1@{digest}"),
        ] {
            assert!(is_reference(good), "{good}");
        }
        let long = format!("registry.example.org/{}:1", "a".repeat(512));
        for bad in [
            "",
            "train",
            "train:1",
            "team/train:1",
            "registry.example.org/train",
            "registry.example.org/Train:1",
            "registry.example.org/../train:1",
            "registry.example.org/train:",
            "registry.example.org/train:-x",
            "registry.example.org/train:a b",
            "registry.example.org//train:1",
            "registry.example.org:x/train:1",
            "-x.example.org/train:1",
            "--root=/.x/train:1",
            "registry.example.org/train@sha256:00",
            "registry.example.org/train@md5:00",
            "oci:/etc/x:1",
            "docker://registry.example.org/train:1",
            "dir:5/train:1",
            "docker-archive:5/train:1",
            "docker-daemon:5000/train:1",
            "containers-storage:5/train:1",
            &long,
        ] {
            assert!(!is_reference(bad), "{bad}");
        }
    }

    #[test]
    fn mounts_say_what_they_mean() {
        let with = |mounts| Container { mounts, ..Container::new("localhost/train:1".to_string()) };
        assert_eq!(
            faults(&with(vec![mount("/data", "/data"), mount("/data", "/data2")])),
            Vec::<String>::new()
        );
        for (source, target, field) in [
            ("data", "/data", "source"),
            ("/", "/data", "source"),
            ("/data/../etc", "/data", "source"),
            ("/data/", "/data", "source"),
            ("/proc/1/root", "/data", "source"),
            ("/data", "/dev/shm", "target"),
            ("/data", "/sys", "target"),
            ("/data", "/./data", "target"),
            ("/data", "/a\0b", "target"),
        ] {
            let expected = vec![format!("container.mounts[0].{field}")];
            assert_eq!(faults(&with(vec![mount(source, target)])), expected, "{source} {target}");
        }
        let nested = with(vec![mount("/a", "/data"), mount("/b", "/data/sub")]);
        assert_eq!(faults(&nested), ["container.mounts[1].target"]);
        let many = (0..=limits::CONTAINER_MOUNTS_MAX).map(|n| mount("/a", &format!("/m{n}"))).collect();
        assert_eq!(faults(&with(many)), ["container.mounts"]);
    }
}
