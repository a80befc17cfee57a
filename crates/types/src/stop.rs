//! Why a worker is told to stop, in one word that programs can go by.

use core::fmt;
use serde::{Deserialize, Serialize};

/// Why a worker has to stop before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// A user cancelled the job.
    Cancelled,
    /// The job ran longer than it may.
    RunTimeLimit,
    /// Another job goes before it.
    Preempted,
    /// It goes on elsewhere, so that another gang can be placed.
    Moved,
    /// It goes on with more or fewer workers.
    Resized,
    /// Everything is to go from a node.
    Drained,
    /// A provider takes a node away for maintenance.
    Maintenance,
    /// A node is to be repaired.
    Repair,
    /// A node of the gang is not fit for it, or is gone.
    NodeFault,
    /// Another worker of the gang has failed.
    PeerFailed,
    /// Somebody asked for it: the job waits again.
    Requeued,
    /// Somebody asked for it: the job is held until it is released.
    Suspended,
}

impl StopReason {
    /// Every one.
    pub const ALL: [StopReason; 12] = [
        StopReason::Cancelled,
        StopReason::RunTimeLimit,
        StopReason::Preempted,
        StopReason::Moved,
        StopReason::Resized,
        StopReason::Drained,
        StopReason::Maintenance,
        StopReason::Repair,
        StopReason::NodeFault,
        StopReason::PeerFailed,
        StopReason::Requeued,
        StopReason::Suspended,
    ];

    /// Stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StopReason::Cancelled => "cancelled",
            StopReason::RunTimeLimit => "run-time-limit",
            StopReason::Preempted => "preempted",
            StopReason::Moved => "moved",
            StopReason::Resized => "resized",
            StopReason::Drained => "drained",
            StopReason::Maintenance => "maintenance",
            StopReason::Repair => "repair",
            StopReason::NodeFault => "node-fault",
            StopReason::PeerFailed => "peer-failed",
            StopReason::Requeued => "requeued",
            StopReason::Suspended => "suspended",
        }
    }

    /// By its stable name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<StopReason> {
        StopReason::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_are_those_of_the_bytes() {
        for reason in StopReason::ALL {
            assert_eq!(StopReason::of_name(reason.name()), Some(reason));
        }
        assert_eq!(StopReason::of_name("bored"), None);
    }
}
