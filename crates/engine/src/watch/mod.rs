//! What watchers are told of records: made once, and kept in memory for a while.

pub(crate) mod changes;
pub(crate) mod events;
mod happening;
pub(crate) mod hub;
