//! Answers for users and operators, from a state that nobody changes. Nothing here decides.

pub(crate) mod bookings;
pub(crate) mod borrowers;
pub(crate) mod explain;
pub(crate) mod goodput;
pub(crate) mod licences;
pub(crate) mod planned_images;
pub(crate) mod policy_warnings;
pub(crate) mod queue_front;
pub(crate) mod queue_walk;
pub(crate) mod quota_impact;
pub(crate) mod starts;
pub(crate) mod user_turns;
