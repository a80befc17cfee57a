//! What the leader keeps of nodes: their sessions and leases, and what agents report that is in no record.

pub(crate) mod checkpoints;
pub(crate) mod execs;
pub(crate) mod health_pace;
pub(crate) mod images;
pub(crate) mod liveness;
pub(crate) mod logs;
pub(crate) mod messages;
pub(crate) mod pending;
pub(crate) mod probes;
pub(crate) mod registry;
pub(crate) mod stragglers;
