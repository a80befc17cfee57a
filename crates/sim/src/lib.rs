//! The shipping scheduler under a virtual clock: trace replay, workload generators and reports.
//!
//! A replay stands where consensus and the agents stand otherwise: it hands commands to the decider,
//! takes the rounds it makes, and answers for the nodes. [`pack`] fills a fleet without ever emptying it,
//! [`queue`] replays submissions and run times and says how long everybody waited, [`generate`] makes
//! traces where none were recorded, [`trace`] reads them, [`html`] draws a report. [`whatif`] replays the inputs of a log
//! under a change. [`idle`] asks the planner why accelerators of a log were idle, [`waits`] why jobs were pending,
//! and [`turns`] looks for placements out of turn.
//!
//! **Invariant:** no rule of scheduling is written here. Who goes where and when is `muster_decider`'s to
//! say, for the same commands that a cluster would have had; this crate only says what users and nodes did.
//! **Invariant:** a replay reads no clock and draws no random number: the same trace gives the same report,
//! apart from the times that the caller's clock measured.
#![deny(missing_docs)]

mod comparison;
mod driver;
pub mod generate;
pub mod html;
pub mod idle;
mod names;
pub mod pack;
mod policy;
pub mod predictions;
pub mod queue;
mod random;
mod stopwatch;
mod summary;
mod tally;
mod tenants;
pub mod trace;
pub mod turns;
pub mod waits;
mod wakes;
pub mod whatif;

pub use comparison::{TenantRow, side_by_side};
pub use driver::{EPOCH_MS, FleetError};
pub use policy::{Preset, ReplayPolicy, UnknownPreset};
pub use stopwatch::{Clock, stopped};
pub use summary::Quantiles;
pub use tenants::TenantReport;
