//! The leader's decision step: (state, command or tick, log time) to records or a rejection.
//!
//! The leader decides on [`Speculation`]: the applied state plus its own records still in flight.
//! Every record is checked by the state's own guard when it is pushed, so what is proposed passes
//! the guard on every replica. Commands become inputs; `settle` turns inputs into the
//! decisions that follow; [`schedule()`] places waiting gangs.
//!
//! A module imports only those below it:
//!
//! ```text
//! ticks                        what time alone brings about
//! passes        commands       the pending queue; what the leader is asked to do
//! settle                       what follows from an input
//! speculation                  the state to decide on, and the round in progress
//! memory        round          what a leader remembers that is in no record; sizes of rounds
//! answers                      answers for users and operators
//! future                       reservations
//! rules                        what follows from the state and the policy alone
//! ```
//!
//! **Invariant:** never waits, never looks at a clock: time is handed in and stamped once a round.
//! **Invariant:** a refusal pushes nothing.
#![no_std]
#![deny(missing_docs, clippy::float_arithmetic)]

extern crate alloc;

mod answers;
mod commands;
mod future;
mod memory;
mod passes;
mod round;
mod rules;
mod settle;
mod speculation;
mod ticks;

pub use answers::bookings::{BookingPlan, plan_booking};
pub use answers::borrowers::{Borrower, Hindrance};
pub use answers::explain::{
    Blocker, JobExplanation, QuotaReport, StartEstimate, explain_briefly, explain_job, explain_job_in,
    explain_spec,
};
pub use answers::goodput::{CheckpointAdvice, checkpoint_advice};
pub use answers::licences::first_for_licences;
pub use answers::planned_images::{PlannedImage, planned_images};
pub use answers::policy_warnings::{
    POLICY_WARNINGS_MAX, PolicyWarning, PolicyWarningCode, PolicyWarnings, policy_warnings,
};
pub use answers::queue_front::{
    FrontRequest, QueueFront, queue_front, queue_front_counted, queue_front_listed,
};
pub use answers::queue_walk::{Position, QueueForecast};
pub use answers::quota_impact::{DisplacedBorrower, QuotaImpact, quota_impact};
pub use answers::starts::{ExpectedStarts, JobStart, expected_starts, expected_starts_in};
pub use answers::user_turns::users_of_queue;
pub use commands::answer::Answer;
pub use commands::booking::BookingOrder;
pub use commands::command::{Command, DrainOrder, QuotaAnswerOrder, QuotaOrder, RepairOrder, TokenOrder};
pub use commands::controls::{
    ControlOrder, JobSelection, check_acts_for, check_array_control, check_control,
};
pub use commands::fleet_holds::FleetHoldOrder;
pub use commands::handle::handle;
pub use commands::health::check_policy as check_health_policy;
pub use commands::modify::{JobVersion, ModifyOrder, check_modify, stop_request_of};
pub use commands::overrides::{OverridesOrder, check_overrides};
pub use commands::policy::{check_policy, updated_policy};
pub use commands::quota::{check_quota_grant, check_quota_request};
pub use commands::schedules::{ScheduleAction, ScheduleControl, ScheduleOrder, check_schedule};
pub use commands::submit::{SUBMISSION_BYTES_MAX, check_submission, check_terms, with_default_limits};
pub use commands::throttle::{ThrottleOrder, check_throttle};
pub use future::KeptReservations;
pub use muster_policy::UserPlace;
pub use passes::schedule::{Pass, schedule};
pub use round::EncodedRound;
pub use rules::bookings::{BookingExcess, BookingExcesses};
pub use rules::faults::fails_more_often;
pub use rules::images::HeldImages;
pub use rules::network::suspects_beyond_the_bound;
pub use rules::requested::JobPath;
pub use settle::job::settle_all;
pub use speculation::{BootstrapConfig, Speculation, Steady};
pub use ticks::tick::{TICK_STEPS, TickStep, tick};
