//! The apply loop of every replica, and what it publishes: the view, orders, answers and contacts.

pub(crate) mod contacts;
pub(crate) mod orders;
pub(crate) mod pending_replies;
pub(crate) mod proposed_rounds;
pub(crate) mod replicated;
pub(crate) mod traced;
