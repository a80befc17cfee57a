//! The archive, and the records of the log of any age.

pub(crate) mod archiver;
pub(crate) mod follower;
pub(crate) mod historical_states;
mod mending;
pub(crate) mod records;
pub(crate) mod settings;
