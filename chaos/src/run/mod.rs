//! Drills.
pub mod links;
pub mod parts;
pub mod stage;
pub mod timeline;
