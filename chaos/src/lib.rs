//! Drills over real processes: hosts and regions on one machine, faults, and the evidence.
//!
//! `sandbox` is where the harness runs, so that nothing stays behind; `net` makes hosts and the wide-area network
//! between them; `faults` harms one process or one disk, and undoes it. On these, `cluster` runs real replicas and
//! agents, `load` puts clients and work on them, and `run` carries out scenarios and judges what was seen. What a
//! machine cannot do is [`Unsupported`], which skips a drill and never fails one.

pub mod bugs;
pub mod cli;
pub mod cluster;
pub mod faults;
pub mod load;
pub mod net;
pub mod report;
pub mod run;
pub mod sandbox;
pub mod summary;
mod unsupported;

pub use unsupported::{Means, Unsupported};
