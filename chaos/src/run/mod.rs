//! Drills: carrying scenarios out on a cluster, and judging what was seen.

pub mod drill;
pub mod evidence;
mod harm;
pub mod links;
mod members;
pub mod parts;
pub mod session;
pub mod stage;
pub mod timeline;
