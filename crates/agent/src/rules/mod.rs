//! The agent's decisions, without clock, disk, network or process.
//!
//! Leases, fencing tokens, starts and the node's loop are decided here. The agent and its shims read clocks and files, and
//! carry out what follows. Simulated clusters (`muster-world`) call the same functions for leases and tokens and drive the
//! same [`node::Node`] under a simulated clock and simulated faults.
//!
//! **Invariant:** nothing here does IO, reads a clock or knows a message of the protocol; the time is an argument.

mod beats;
mod boot_time;
mod fences;
pub mod node;
#[cfg(test)]
mod node_tests;
mod placement;
mod probe_plan;
mod starts;
mod term;
mod uploads;
mod worker;
mod worker_events;

pub use beats::Beats;
pub use boot_time::BootTime;
pub use fences::{Fence, FenceTable, TokenOrder};
pub use node::WHOLE_PLACEMENT;
pub use placement::{Checkpoint, GroupSize, HttpNotice, Launch, Placement, RankPlace, Slices};
pub use probe_plan::{Limits, Plan};
pub use starts::{Admission, Fit, Held, Wait, admit, epoch_for_start, room_for, withdraw};
pub use term::{LeaseTerm, Renewal, deadline_of, renewed};
pub use worker::{
    Adopted, DEVICE_MILLI, DeviceLoad, ExecutorEvent, Foreign, OutputRequest, OutputStream, StopRequest,
    WorkerCounts, WorkerEvent, WorkerKey, WorkerState,
};
pub(crate) use worker::{detail, whole_device};
pub use worker_events::{Answer, SequencedEvent, Ticket};
