//! What the leader is asked to do: one module for each subject, and [`handle`] above them.

mod admission;
pub(crate) mod answer;
pub(crate) mod booking;
mod cluster;
pub(crate) mod command;
pub(crate) mod controls;
pub(crate) mod fleet_holds;
pub(crate) mod handle;
pub(crate) mod health;
mod jobs;
mod metadata;
pub(crate) mod modify;
mod named;
mod network;
mod node;
mod notifications;
pub(crate) mod overrides;
pub(crate) mod policy;
pub(crate) mod quota;
mod restrictions;
pub(crate) mod schedules;
pub(crate) mod submit;
pub(crate) mod throttle;
mod token;
