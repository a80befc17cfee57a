//! What the agent keeps on disk: records, fencing tokens, the lease, its own directory; and the removal of directories.

pub(crate) mod disposal;
pub mod durable;
mod fence_log;
pub mod fencing;
pub mod lease;
pub mod state_dir;
pub(crate) mod tree;
