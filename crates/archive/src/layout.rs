//! The directories of an archive.

pub(crate) const SEGMENTS: &str = "segments/";
pub(crate) const BASES: &str = "bases/";
/// The floor: which part of the archive was moved to another store.
pub(crate) const RETENTION: &str = "retention/";
