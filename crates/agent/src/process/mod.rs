//! Workers as processes of this host: their directories, their shims, and what keeps them apart.

pub(crate) mod artifacts;
pub(crate) mod cdi;
pub mod cgroup;
pub mod cores;
pub mod devices;
pub mod disk_io;
mod ended_workers;
mod exec;
mod executor;
mod follow;
mod guards;
pub mod host_commands;
mod image_root;
pub mod isolation;
mod memory;
pub mod notice;
mod ports;
mod prewarm_pool;
pub(crate) mod priority;
pub mod processes;
pub mod runtime;
pub(crate) mod secrets;
pub(crate) mod shim;
pub(crate) mod socket;
mod speaker;
pub mod task;
mod terminal;
pub mod transcript;
mod unlisted;
pub mod work_files;

pub(crate) use ended_workers::{EndedWorkers, remove_temporary_below};
pub use executor::{ProcessExecutor, ProcessSettings};
pub(crate) use follow::read as read_output;
pub(crate) use ports::has_ended;
pub(crate) use prewarm_pool::speaks;
