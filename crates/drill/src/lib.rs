//! A drill as data: what is done to a cluster, what was seen of it, and what that proves.
//!
//! [`scenario`] reads the files of `ops/drills`: what is done to hosts, links, disks and clocks, and what must hold.
//! [`history`] is what clients wrote down, [`run`] is what the program that carried the drill out knows.
//! [`judge`] holds them against the log, against real time and against what must hold.
//! [`report`] shows what came of it.
//!
//! **Invariant:** no network, no processes, no clock: the program that carries a drill out passes in what was seen.
#![deny(missing_docs)]

pub mod history;
pub mod judge;
pub mod report;
pub mod run;
pub mod scenario;
mod text;
