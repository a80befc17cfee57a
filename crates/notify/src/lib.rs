//! Signed webhooks on what happens to jobs and nodes.
//!
//! The policy names the receivers. The leader follows the changes of the log for each of them, sends those that the receiver
//! wants, and records how far it has come, so that the next leader goes on from there.
//!
//! **Invariant:** only tasks of this crate wait for receivers; nothing of a replica does.
//! **Invariant:** every event is delivered at least once, or given up after a bounded time or because too many of its tenant wait, or
//! skipped with its record; the last two are counted in the log.
//! **Invariant:** a request goes to the address that was checked, and nowhere else.
#![deny(missing_docs)]

mod courier;
mod error;
mod exchange;
mod message;
mod notifier;
mod rules;
#[cfg(test)]
mod sample;
mod settings;
mod signature;
mod turns;

pub use notifier::run;
pub use settings::NotifySettings;
