//! What a replica does for its callers: each module adds methods to [`Engine`](crate::Engine).

mod checkpoints;
mod explanations;
mod log_reads;
mod members;
mod past;
mod past_changes;
pub(crate) mod probe;
pub(crate) mod reads;
pub(crate) mod session;
pub(crate) mod watching;
