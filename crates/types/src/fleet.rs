//! The fleet: region, cluster, block, rack, host and its devices.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;
use serde::{Deserialize, Deserializer, Serialize};

use crate::limits;
use crate::name::{NAME_RULE, Name};
use crate::node_overrides::NodeOverrides;
use crate::reason::Violation;
use crate::tpu::{Generation, PodPosition};

/// A set of the devices of one host, by their local number.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceSet(pub u64);

impl DeviceSet {
    /// No device.
    pub const EMPTY: DeviceSet = DeviceSet(0);

    /// Devices `0..count`.
    ///
    /// # Panics
    /// When `count` is above [`limits::HOST_DEVICES_MAX`].
    #[must_use]
    pub fn first(count: u16) -> DeviceSet {
        assert!(count <= limits::HOST_DEVICES_MAX, "a host has at most 64 devices");
        if count == 64 { DeviceSet(u64::MAX) } else { DeviceSet((1 << count) - 1) }
    }

    /// How many devices.
    #[must_use]
    pub fn count(self) -> u16 {
        self.0.count_ones() as u16
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether every device of `other` is here.
    #[must_use]
    pub fn contains(self, other: DeviceSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether no device is in both.
    #[must_use]
    pub fn is_disjoint(self, other: DeviceSet) -> bool {
        self.0 & other.0 == 0
    }

    /// Devices of either.
    #[must_use]
    pub fn union(self, other: DeviceSet) -> DeviceSet {
        DeviceSet(self.0 | other.0)
    }

    /// Devices here but not in `other`.
    #[must_use]
    pub fn difference(self, other: DeviceSet) -> DeviceSet {
        DeviceSet(self.0 & !other.0)
    }

    /// The `count` lowest-numbered devices, when there are as many.
    #[must_use]
    pub fn lowest(self, count: u16) -> Option<DeviceSet> {
        let mut rest = self.0;
        let mut taken = 0u64;
        for _ in 0..count {
            if rest == 0 {
                return None;
            }
            let bit = rest & rest.wrapping_neg();
            taken |= bit;
            rest ^= bit;
        }
        Some(DeviceSet(taken))
    }

    /// The local numbers, ascending.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        (0..limits::HOST_DEVICES_MAX).filter(move |n| self.0 & (1 << n) != 0)
    }
}

impl fmt::Debug for DeviceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Accelerators of one type: what a host has, or what a worker asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Accelerators {
    /// For example `h100` or `v5p`.
    pub kind: Name,
    /// How many, from 1.
    pub count: u16,
}

impl fmt::Display for Accelerators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.count)
    }
}

/// The agent instance that holds a node: made when the agent's state directory is created, and
/// again when the machine has been rebooted. Two holders never share running workers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HolderId(pub u128);

impl fmt::Debug for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// One start of an agent on its state directory: a number that was made at random then; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StartId(pub u64);

/// Which start of an agent a session is of. A directory takes another one only when the last one is registered, so that of
/// two copies of a directory at most one goes on from what the log knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStart {
    /// This one.
    pub id: StartId,
    /// The one before it that was registered; none where there was none.
    pub before: Option<StartId>,
}

impl AgentStart {
    /// Whether it is the start that is known, or the next one behind it. The one that the known start has replaced is not, whatever it
    /// was started behind.
    #[must_use]
    pub fn continues(&self, known: StartId, replaced: Option<StartId>) -> bool {
        self.id == known || (self.before == Some(known) && replaced != Some(self.id))
    }
}

/// What an agent says of its host; checked by [`NodeDraft::check`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDraft {
    /// Unique in the Muster cluster.
    pub name: Name,
    /// Where it is, from the outside in.
    pub region: Name,
    /// The fleet cluster in that region: one network that a gang can use.
    pub cluster: Name,
    /// Spine block.
    pub block: Name,
    /// Rack or NVLink domain.
    pub rack: Name,
    /// What other hosts of the cluster reach it by: an IP address or host name, without a port.
    pub address: String,
    /// Its accelerators; none for a plain host.
    pub accelerators: Option<Accelerators>,
    /// Milli-CPUs for workers.
    pub cpu_milli: u64,
    /// Bytes of memory for workers.
    pub memory_bytes: u64,
    /// Bytes of a local disk for the scratch directories of workers; 0 where it has none to give.
    pub scratch_bytes: u64,
    /// Free-form facts, which jobs can select by.
    pub labels: BTreeMap<Name, String>,
    /// Only jobs that tolerate every one of these are placed here.
    pub taints: BTreeSet<Name>,
    /// Its place in a TPU pod.
    pub pod: Option<PodPosition>,
}

/// A checked description of a host: as its agent says it, or with what operators have set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct NodeSpec(NodeDraft);

impl NodeDraft {
    /// The node, or every rule it breaks.
    ///
    /// # Errors
    /// Lists all violations, not just the first.
    pub fn check(self) -> Result<NodeSpec, Vec<Violation>> {
        self.check_within(limits::NODE_LABELS_MAX, limits::NODE_TAINTS_MAX)
    }

    fn check_within(self, labels_max: usize, taints_max: usize) -> Result<NodeSpec, Vec<Violation>> {
        let mut found = Vec::new();
        let host_form = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'_');
        if self.address.is_empty() || self.address.len() > 253 || !self.address.bytes().all(host_form) {
            found.push(Violation::new(
                "address",
                "must be an IP address or host name of at most 253 bytes, without a port",
            ));
        }
        if let Some(accelerators) = &self.accelerators {
            let max = limits::HOST_DEVICES_MAX;
            if accelerators.count == 0 || accelerators.count > max {
                found.push(Violation::limit("accelerators.count", accelerators.count.into(), 1, max.into()));
            }
        }
        if self.cpu_milli == 0 || self.cpu_milli > limits::CPU_MILLI_MAX {
            found.push(Violation::limit("cpu_milli", self.cpu_milli, 1, limits::CPU_MILLI_MAX));
        }
        if self.memory_bytes == 0 || self.memory_bytes > limits::MEMORY_BYTES_MAX {
            found.push(Violation::limit("memory_bytes", self.memory_bytes, 1, limits::MEMORY_BYTES_MAX));
        }
        if self.scratch_bytes > limits::SCRATCH_BYTES_MAX {
            found.push(Violation::size("scratch_bytes", self.scratch_bytes, 0, limits::SCRATCH_BYTES_MAX));
        }
        if self.labels.len() > labels_max {
            found.push(Violation::limit("labels", self.labels.len() as u64, 0, labels_max as u64));
        }
        for (key, value) in &self.labels {
            let max = limits::LABEL_BYTES_MAX;
            if value.len() > max {
                found.push(Violation::new(format!("labels.{key}"), format!("must be at most {max} bytes")));
            }
        }
        if self.taints.len() > taints_max {
            found.push(Violation::limit("taints", self.taints.len() as u64, 0, taints_max as u64));
        }
        self.check_pod(&mut found);
        if found.is_empty() { Ok(NodeSpec(self)) } else { Err(found) }
    }
}

impl NodeDraft {
    fn check_pod(&self, found: &mut Vec<Violation>) {
        let Some(pod) = &self.pod else { return };
        let Some(accelerators) = &self.accelerators else {
            found.push(Violation::new("pod", "only a host with TPU chips has a place in a pod"));
            return;
        };
        match Generation::of_kind(&accelerators.kind) {
            None => found.push(Violation::new(
                "pod",
                format!("{} is no TPU generation: v4, v5e, v5p, v6e or tpu7x", accelerators.kind),
            )),
            Some(generation) => {
                if let Err(violation) = pod.check(generation, accelerators.count) {
                    found.push(violation.under("pod"));
                }
            }
        }
    }
}

impl NodeSpec {
    /// How many devices the host has.
    #[must_use]
    pub fn device_count(&self) -> u16 {
        self.accelerators.as_ref().map_or(0, |a| a.count)
    }

    /// Takes the names of its place and of its type from `known`, where that has equal ones: hosts of one place have them in memory
    /// once, and comparing them reads nothing.
    pub fn share_names(&mut self, mut known: impl FnMut(&Name) -> Option<Name>) {
        let NodeDraft { region, cluster, block, rack, accelerators, .. } = &mut self.0;
        let kind = accelerators.as_mut().map(|accelerators| &mut accelerators.kind);
        for name in [region, cluster, block, rack].into_iter().chain(kind) {
            if let Some(same) = known(name).filter(|same| *same == *name) {
                *name = same;
            }
        }
    }

    /// The host with what operators have set: their labels in place of those with the same keys, and their taints too.
    #[must_use]
    pub fn overridden_by(&self, overrides: &NodeOverrides) -> NodeSpec {
        let mut draft = self.0.clone();
        draft.labels.extend(overrides.labels.iter().map(|(key, value)| (key.clone(), value.clone())));
        draft.taints.extend(overrides.taints.iter().cloned());
        NodeSpec(draft)
    }

    /// The host without the address that others reach it by, for those who are not to know it. A word made from this number
    /// stands there, so that a host that got another address is still another description.
    #[must_use]
    pub fn without_address(&self, number: u64) -> NodeSpec {
        NodeSpec(NodeDraft { address: format!("redacted-{number:016x}"), ..self.0.clone() })
    }

    /// Whether it has no more labels and taints than an agent may say; one that operators have added to may have more.
    #[must_use]
    pub fn is_within_agent_bounds(&self) -> bool {
        self.labels.len() <= limits::NODE_LABELS_MAX && self.taints.len() <= limits::NODE_TAINTS_MAX
    }
}

impl Deref for NodeSpec {
    type Target = NodeDraft;

    fn deref(&self) -> &NodeDraft {
        &self.0
    }
}

impl<'de> Deserialize<'de> for NodeSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let draft = NodeDraft::deserialize(deserializer)?;
        // The state keeps descriptions with what operators have set.
        let labels_max = limits::NODE_LABELS_MAX + limits::NODE_OVERRIDE_LABELS_MAX;
        let taints_max = limits::NODE_TAINTS_MAX + limits::NODE_OVERRIDE_TAINTS_MAX;
        draft.check_within(labels_max, taints_max).map_err(|found| {
            let first = found.first().map(ToString::to_string).unwrap_or_default();
            serde::de::Error::custom(first)
        })
    }
}

/// A name, or the violation of `field`.
///
/// # Errors
/// When the text is not a name.
pub fn checked_name(field: &str, text: &str) -> Result<Name, Violation> {
    Name::new(text).ok_or_else(|| {
        let shown: String = text.chars().take(80).collect();
        Violation::new(field, format!("must be {NAME_RULE}, got {shown:?}"))
    })
}

/// What others than Muster hold of a node, where others may use it too: another scheduler's jobs. None of it
/// is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ForeignLoad {
    /// Nothing can be started there for now: the other scheduler has taken the node out of use, or is down.
    pub closed: bool,
    /// As many devices as others hold, of those that Muster's workers do not. Which ones means nothing where
    /// the other scheduler gives them out.
    pub devices: DeviceSet,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// Bytes.
    pub memory_bytes: u64,
}

impl ForeignLoad {
    /// Whether others hold nothing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == ForeignLoad::default()
    }
}
