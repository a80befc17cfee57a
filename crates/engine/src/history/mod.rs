//! The archive, and the records of the log of any age.

pub(crate) mod archiver;
pub(crate) mod follower;
mod mending;
pub(crate) mod past_states;
pub(crate) mod records;
pub(crate) mod settings;
