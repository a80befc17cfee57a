//! How the workers of a job are run on their hosts, beyond what they are promised.

use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::reason::Violation;

/// On which processors of its host a worker runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CpuBinding {
    /// On any.
    #[default]
    None,
    /// On all of the NUMA nodes that its devices are at.
    Numa,
    /// On as many as it was promised, near its devices where there are enough, and on none of another worker that is bound so.
    Cores,
}

impl CpuBinding {
    /// Every value.
    pub const ALL: [CpuBinding; 3] = [CpuBinding::None, CpuBinding::Numa, CpuBinding::Cores];

    /// As people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CpuBinding::None => "none",
            CpuBinding::Numa => "numa",
            CpuBinding::Cores => "cores",
        }
    }
}

impl fmt::Display for CpuBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which shell runs the command of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CommandShell {
    /// None: it is executed as it is.
    #[default]
    None,
    /// A login shell (`bash -l`), which reads the host's `/etc/profile` first, and with it environment modules.
    Login,
}

impl CommandShell {
    /// Every value.
    pub const ALL: [CommandShell; 2] = [CommandShell::None, CommandShell::Login];

    /// As people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CommandShell::None => "none",
            CommandShell::Login => "login",
        }
    }
}

impl fmt::Display for CommandShell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How the workers of a job are run on their hosts. The default is as every host does it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostRules {
    /// On which processors.
    pub binding: CpuBinding,
    /// By which shell.
    pub shell: CommandShell,
    /// Bytes of the `/dev/shm` that each has for itself; 0 for that of the host or of its gang.
    pub shared_memory_bytes: u64,
}

impl HostRules {
    /// Whether they say nothing.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == HostRules::default()
    }

    /// Every rule that they break, by fields of the contract.
    pub fn check(&self, found: &mut Vec<Violation>) {
        let (least, most) = (limits::SHARED_MEMORY_BYTES_MIN, limits::MEMORY_BYTES_MAX);
        let bytes = self.shared_memory_bytes;
        if bytes != 0 && !(least..=most).contains(&bytes) {
            found.push(Violation::size("host.shared_memory_bytes", bytes, least, most));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_of_shared_memory_is_none_or_at_least_a_mebibyte() {
        let broken = |shared_memory_bytes| {
            let mut found = Vec::new();
            HostRules { shared_memory_bytes, ..HostRules::default() }.check(&mut found);
            found.len()
        };
        assert_eq!([0, 1, 1 << 20, 1 << 34, u64::MAX].map(broken), [0, 1, 0, 0, 1]);
        assert!(HostRules::default().is_default());
    }
}
