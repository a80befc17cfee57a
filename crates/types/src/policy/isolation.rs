//! Which isolation of its workers a node has to have before any tenant's work is placed on it.

use core::fmt;
use serde::{Deserialize, Serialize};

use crate::fleet::NodeDraft;

/// What an agent isolates workers by; each is the label `isolation.…` of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Guarantee {
    /// Each worker opens only the devices that it was given.
    Devices,
    /// Each worker sees only its own processes, and none of them outlives its shim.
    Pid,
    /// Directories for temporary files are a worker's own.
    Tmp,
    /// Workers of each tenant run as a separate user.
    User,
}

/// The value of the label of a guarantee that a host lacks.
const LACKING: &str = "none";

impl Guarantee {
    /// Every guarantee.
    pub const ALL: [Guarantee; 4] = [Guarantee::Devices, Guarantee::Pid, Guarantee::Tmp, Guarantee::User];

    /// As people write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Guarantee::Devices => "devices",
            Guarantee::Pid => "pid",
            Guarantee::Tmp => "tmp",
            Guarantee::User => "user",
        }
    }

    /// The guarantee that a person named.
    #[must_use]
    pub fn parse(text: &str) -> Option<Guarantee> {
        Guarantee::ALL.into_iter().find(|guarantee| guarantee.as_str() == text)
    }

    /// The label of a node that states it.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Guarantee::Devices => "isolation.devices",
            Guarantee::Pid => "isolation.pid",
            Guarantee::Tmp => "isolation.tmp",
            Guarantee::User => "isolation.user",
        }
    }

    /// Whether a node has it. One that states nothing has not: an older agent, or a backend such as Slurm.
    #[must_use]
    pub fn is_of(self, node: &NodeDraft) -> bool {
        let stated = node.labels.iter().find(|(label, _)| label.as_str() == self.label());
        stated.is_some_and(|(_, value)| value != LACKING)
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
