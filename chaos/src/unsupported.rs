//! What a machine may not have: drills that need it report that it is missing and are skipped, they do not fail.

use std::error::Error;
use std::fmt;

/// What is needed of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Means {
    /// Separate process and mount namespaces, in which everything ends with the harness.
    Sandbox,
    /// Network namespaces.
    NetworkNamespace,
    /// Virtual network devices.
    Tun,
    /// Mounting file systems.
    Mount,
    /// File systems on files.
    LoopDevice,
    /// Watching and changing the system calls of another process.
    Strace,
    /// Another clock for one process.
    Faketime,
}

impl fmt::Display for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Means::Sandbox => "process and mount namespaces",
            Means::NetworkNamespace => "a network namespace",
            Means::Tun => "a TUN device of /dev/net/tun",
            Means::Mount => "mounting a file system",
            Means::LoopDevice => "ext4 on a loop device",
            Means::Strace => "strace on another process",
            Means::Faketime => "libfaketime",
        })
    }
}

/// A means that cannot be had here, and why.
#[derive(Debug)]
pub struct Unsupported {
    means: Means,
    reason: String,
}

impl Unsupported {
    /// Says the reason with everything below it.
    pub fn new(means: Means, error: &(dyn Error + 'static)) -> Unsupported {
        let mut reason = error.to_string();
        let mut below = error.source();
        while let Some(error) = below {
            reason.push_str(": ");
            reason.push_str(&error.to_string());
            below = error.source();
        }
        Unsupported { means, reason }
    }

    /// With a reason that is not an error.
    pub fn because(means: Means, reason: impl Into<String>) -> Unsupported {
        Unsupported { means, reason: reason.into() }
    }

    /// What is missing.
    pub fn means(&self) -> Means {
        self.means
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be had here: {}", self.means, self.reason)
    }
}

impl Error for Unsupported {}
