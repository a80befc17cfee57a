//! What a replica does for its callers: each module adds methods to [`Engine`](crate::Engine).

mod checkpoints;
pub(crate) mod execs;
mod explanations;
mod historical_changes;
mod historical_state;
mod images;
mod log_reads;
mod members;
pub(crate) mod probe;
pub(crate) mod reads;
pub(crate) mod session;
pub(crate) mod watching;
