//! Rules that follow from the state, the policy and a time alone: they make no record, and know nothing of the leader.

pub(crate) mod affinity;
pub(crate) mod at_limit;
pub(crate) mod bookings;
pub(crate) mod counted;
pub(crate) mod deadline;
pub(crate) mod faults;
pub(crate) mod health;
pub(crate) mod images;
pub(crate) mod network;
pub(crate) mod planned;
pub(crate) mod requested;
pub(crate) mod share;
pub(crate) mod terms;
pub(crate) mod text;
pub(crate) mod windows;
