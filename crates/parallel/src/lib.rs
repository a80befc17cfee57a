//! The parallelism planner: from a model's description to the sizes, the memory, the time and the ranks of the gang
//! that trains it.
//!
//! Pure: no IO, no clock, no randomness; the same question has the same answer. It computes with floating point
//! numbers: what it says is advice, which a person or a command acts on, and never becomes part of what replicas
//! agree on.
//!
//! **Invariant:** parameters and memory are exact by the published formulas; a time is a prediction, and every answer
//! says which of its terms are measured, calibrated or assumed.

pub mod accelerator;
mod architectures;
pub mod calibration;
pub mod check;
mod coefficients;
pub mod collective;
mod config;
pub mod cost;
mod error;
pub mod html;
pub mod layout;
pub mod memory;
mod model;
pub mod programs;
pub mod published;
pub mod ranks;
pub mod report;
pub mod search;
pub mod serving;

pub use accelerator::Accelerator;
pub use calibration::Observation;
pub use coefficients::{Calibration, Origin};
pub use config::{CONFIG_BYTES_MAX, parse as parse_config};
pub use error::PlanError;
pub use layout::{Layout, Precision, Program, Recompute, Sharding, Training};
pub use model::{Attention, Experts, FeedForward, Model, Parameters};
pub use report::Report;
