//! What an agent decides about leases, tokens and starts, without clock, disk, network or process.
//!
//! The agent and its shims read clocks and files, and do what follows from these answers; simulated clusters
//! (`muster-world`) call the same functions under a simulated clock and simulated faults.
//!
//! **Invariant:** nothing here does IO or reads a clock; the time is an argument.

mod beats;
mod fences;
mod starts;
mod term;

pub use beats::Beats;
pub use fences::{Fence, FenceTable, Standing};
pub use starts::{Admission, Fit, Held, Wait, admit, epoch_for_start, room_for, withdraw};
pub use term::{LeaseTerm, Renewal, deadline_of, renewed};
