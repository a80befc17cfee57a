//! What a cluster would have done: the inputs of its log, replayed under a change.
//!
//! A [`Recorder`] looks at the rounds of a range of the log as they are applied. It keeps the state at the beginning of the
//! range, the inputs in it, and how long each job ran. [`Recording::replay`] gives the same inputs to the shipping scheduler,
//! from the same state, with a [`Change`] or without one. Both sides are counted in one way, so that they can be compared.
//!
//! The replay without a change is the side to compare with: it differs from the record by what a replay cannot know, and
//! that error is in both replays. [`Difference::between`] of the record and the unchanged replay is the calibration.
//!
//! **Invariant:** no rule of scheduling is written here, and nothing reads a clock: the same recording and change give the same
//! figures.
//! **Invariant:** what the log does not contain is counted as such and never made up without being counted.

mod change;
mod compare;
mod engine;
mod history;
mod meter;
mod recorder;
mod shadow;
#[cfg(test)]
mod tests;

use muster_types::LogTime;
use thiserror::Error;

pub use change::{AddedDevices, Change, NodeFailure, QuotaAmount, QuotaChange};
pub use compare::{Difference, TenantDifference, TypeDifference, WaitDifference, starved};
pub use meter::{Side, TenantWaits, TypeUse, Waits};
pub use recorder::{Recorder, Recording};
pub use shadow::{SHADOW_INPUTS_MAX, SHADOW_JOBS_MAX, Shadow};

/// Inputs of one range, at most; it bounds the memory of a recording.
pub const INPUTS_MAX: usize = 1_000_000;
/// Jobs of which a recording keeps how long they ran, at most.
pub const JOBS_MAX: usize = 2_000_000;

/// A part of a log: behind the records of `from`, up to those of `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Where it begins.
    pub from: LogTime,
    /// Where it ends.
    pub to: LogTime,
}

/// A change or a range that cannot be replayed. Nothing was replayed then.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{sentence}")]
pub struct WhatifError {
    /// What is wrong.
    pub sentence: String,
    /// Each rule that is broken; empty where the sentence says it all.
    pub details: Vec<String>,
    /// What to do next.
    pub next: String,
}

impl WhatifError {
    pub(crate) fn new(sentence: impl Into<String>, next: impl Into<String>) -> WhatifError {
        WhatifError { sentence: sentence.into(), details: Vec::new(), next: next.into() }
    }
}

/// The first few of many names, for a sentence.
fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    /// How many a sentence names.
    const NAMED_MAX: usize = 8;
    let mut names = names.into_iter();
    let first: Vec<&str> = names.by_ref().take(NAMED_MAX).collect();
    match (first.is_empty(), names.next()) {
        (true, _) => "none".to_owned(),
        (false, None) => first.join(", "),
        (false, Some(_)) => format!("{}, ...", first.join(", ")),
    }
}
