//! What can be measured on a real cluster; each scenario starts its own.

pub(crate) mod agents;
pub(crate) mod controls;
pub(crate) mod disk;
pub(crate) mod failover;
pub(crate) mod launch;
pub(crate) mod pages;
pub(crate) mod read;
pub(crate) mod restart;
pub(crate) mod submit;
pub(crate) mod watch;

pub(crate) use crate::options::{Common, To};
