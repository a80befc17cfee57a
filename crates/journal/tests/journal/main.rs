//! Bytes of rounds and frames: what was written comes back, what was damaged is refused, and no
//! bytes whatsoever panic or allocate beyond their bound.
// Helpers of tests may unwrap too: a panic there is the report.
#![allow(clippy::unwrap_used)]

mod allocation;
mod frames;
mod generate;
mod rounds;
