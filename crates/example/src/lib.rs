//! Workers that people can run to see Muster at work: a real data-parallel training run and short
//! jobs.
//!
//! [`train`] is softmax regression over a generated data set: small enough for any machine, yet with
//! everything that makes a gang hard to schedule. Its ranks find one another through the rank map that
//! the launcher hands them, sum gradients over TCP in a fixed order, checkpoint, stop together on
//! SIGTERM and resume. Every operation it does on numbers is exact to the bit on every machine, so a
//! run that was killed and resumed must end with the same loss as one that never was, and any mistake
//! of the scheduler, the checkpoint or the resume shows as a different last digit.
//!
//! [`work`] is a short job that only lasts a while. Both leave **interval evidence** when asked to:
//! each process writes down from when to when it ran, and [`intervals`] finds two incarnations of one
//! job that ran at the same time. That evidence comes from outside the scheduler, on purpose: the
//! scheduler cannot be the witness for what it promised.
//!
//! **Invariant:** this crate knows nothing of Muster but the names of environment variables. It is an
//! ordinary workload, and whatever it can do, any other program can.
#![deny(missing_docs)]

mod checkpoint;
mod collective;
mod dataset;
mod error;
mod float;
mod frame;
pub mod intervals;
mod model;
mod process;
mod rank_map;
mod rendezvous;
mod train;
mod work;

pub use error::Error;
pub use process::Exit;
pub use rank_map::RankMap;
pub use train::{TrainArgs, train};
pub use work::{WorkArgs, work};
