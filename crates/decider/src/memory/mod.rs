//! What a leader remembers that is not in the state. It is in no record: a new leader begins without it.

pub(crate) mod booking_looks;
pub(crate) mod counted_waiters;
pub(crate) mod pass;
pub(crate) mod ready_members;
pub(crate) mod requests;
pub(crate) mod rotation;
pub(crate) mod searches;
pub(crate) mod starts;
pub(crate) mod sweep;
