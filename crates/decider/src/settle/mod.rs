//! What follows from an input: the records behind it, until nothing more follows.

pub(crate) mod array;
pub(crate) mod job;
pub(crate) mod nodes;
mod quarantine;
mod recovery;
pub(crate) mod retention;
mod spares;
