//! Drills: carrying scenarios out on a cluster, and judging what was seen.

pub mod drill;
pub mod evidence;
pub mod links;
pub mod parts;
pub mod session;
pub mod stage;
pub mod timeline;
