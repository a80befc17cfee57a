//! The ledger: charges every accelerator-millisecond of the log to one activity with one owner.
//!
//! A fold next to the fold of the state. At each moment every accelerator of the fleet, in thousandths, is in exactly one
//! [`Activity`]; the owner is the tenant whose job holds it, or that it is kept for. Waiting time of jobs is decomposed the
//! same way, by [`WaitReason`].
//!
//! A module imports only those below it:
//!
//! ```text
//! view         save      what was charged until a time; the ledger as bytes
//! ledger                 how each record changes what is charged
//! changes                what a decision changes
//! arrays                 members that are not created
//! jobs         pools     what jobs do and hold; what is idle, by type and region
//! nodes        demand    what parts of a node are idle for; which jobs could start
//! charges                the books
//! step_times             how fast jobs did their steps, by their checkpoints
//! catalog      calendar  numbers for names; days and the window
//! activity               the vocabulary
//! ```
//!
//! **Invariant:** the sum over all activities is capacity × time, to the unit, for every type and region.
//! **Invariant:** time comes from the records; between two of them nothing is charged otherwise.
//! **Invariant:** what the log does not tell is charged as such (`provisional`, `demand_unplaced`), and never guessed.
#![no_std]
#![deny(missing_docs, clippy::float_arithmetic)]

extern crate alloc;

mod activity;
mod arrays;
mod calendar;
mod catalog;
mod changes;
mod charges;
mod demand;
mod jobs;
mod ledger;
mod nodes;
mod pools;
mod save;
mod step_times;
mod view;

pub use activity::{Activity, IdleCause, LossCause, UnplacedReason, WaitReason};
pub use calendar::{DAY_MS, DAYS_BETWEEN_RECORDS_MAX, Detail, Window};
pub use catalog::Selection;
pub use ledger::{JobTotals, Ledger, LedgerError, UnplacedPart, UnplacedPool};
pub use save::LoadError;
pub use step_times::{StepSums, StepTimes};
pub use view::{CapacityRow, DemandRow, UsageRow, View, WaitRow};
