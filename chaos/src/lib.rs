//! Drills over real processes: hosts and regions on one machine, faults, and the evidence.
//!
//! `room` is where the harness lives, so that nothing stays behind; `net` makes hosts and the wide-area network
//! between them; `faults` harms one process or one disk, and undoes it. What a machine cannot do is
//! [`Unable`], which skips a drill and never fails one.

pub mod net;
pub mod room;
mod unable;

pub use unable::{Means, Unable};
