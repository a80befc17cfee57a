//! The leader's decision step: (state, command or tick, log time) to records or a rejection.
//!
//! The leader decides on [`Speculation`]: the applied state plus its own records still in flight.
//! Every record is checked by the state's own guard when it is pushed, so what is proposed passes
//! the guard on every replica. Commands become inputs; [`settle`](job) turns inputs into the
//! decisions that follow; [`schedule()`] places waiting gangs.
//!
//! **Invariant:** never waits, never looks at a clock: time is handed in and stamped once a round.
//! **Invariant:** a refusal pushes nothing.
#![no_std]
#![deny(missing_docs, clippy::float_arithmetic)]

extern crate alloc;

mod admission;
mod asked;
mod borrowers;
mod cluster;
mod command;
mod deadline;
mod explain;
mod future;
mod goodput;
mod growth;
mod health;
mod job;
mod network;
mod node;
mod planned;
mod policy_warnings;
mod quarantine;
mod rearrange;
mod recovery;
mod requests;
mod rotation;
mod schedule;
mod searches;
mod spares;
mod speculation;
mod stuck;
mod tick;
mod windows;

pub use borrowers::{Borrower, Hindrance};
pub use command::{Answer, Command, SUBMISSION_BYTES_MAX, check_policy, check_submission, handle};
pub use explain::{
    Blocker, JobExplanation, Position, QuotaReport, StartEstimate, explain_briefly, explain_job, explain_spec,
};
pub use future::KeptReservations;
pub use goodput::{CheckpointAdvice, checkpoint_advice};
pub use health::{DrainOrder, RepairOrder};
pub use job::settle_all;
pub use network::suspects_beyond_the_bound;
pub use policy_warnings::{
    POLICY_WARNINGS_MAX, PolicyWarning, PolicyWarningCode, PolicyWarnings, policy_warnings,
};
pub use quarantine::fails_more_often;
pub use schedule::{Pass, schedule};
pub use speculation::{Founding, Speculation, Steady, split_round};
pub use tick::{TICK_STEPS, TickStep, tick};
