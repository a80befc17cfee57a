//! What a record has brought about.

use alloc::vec::Vec;
use muster_types::{ArrayId, JobId, LogIndex, NodeId};

use crate::guard_error::GuardError;

/// What the outside must look at after a record. Nobody needs to have seen it: everything follows
/// from the state as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The cluster exists now, has another leader, another format or another generation.
    ClusterChanged,
    /// A job was added or changed. One without a row is a member of an array that ended without having been created.
    JobChanged(JobId),
    /// An array was added, or counts its members otherwise.
    ArrayChanged(ArrayId),
    /// A finished job was dropped.
    JobForgotten(JobId),
    /// A node was added or changed.
    NodeChanged(NodeId),
    /// A lost node was dropped.
    NodeForgotten(NodeId),
    /// What a node is asked to do has changed.
    OrdersChanged(NodeId),
    /// The policy was set.
    PolicyChanged,
    /// The health policy was set.
    HealthPolicyChanged,
    /// This replica's state is not the leader's: stop serving.
    Diverged {
        /// The digest in the log.
        expected: u64,
        /// This replica's.
        actual: u64,
    },
}

/// What became of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Its position; none for a record of an ended leadership, which takes none.
    pub log_index: Option<LogIndex>,
    /// Why it was refused, when it was.
    pub rejection: Option<GuardError>,
    /// What to look at.
    pub effects: Vec<Effect>,
}
