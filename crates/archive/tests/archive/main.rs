//! The archive, held against damage, loss and exchange of its objects.
#![allow(
    clippy::unwrap_used,
    reason = "a panic here is the report; the lint knows test functions but not their helpers"
)]

mod capsule;
mod compressed;
mod damage;
mod historical_state;
mod mend;
mod rendering;
mod retention;
mod support;
