//! Reads that miss nothing: a confirmed leadership, and the read index on every replica.

mod coalescing;
mod confirmation;
mod read_index;

pub(crate) use coalescing::Caller;
pub(crate) use confirmation::{Confirmation, Confirmations, confirmed, run_confirmations};
pub(crate) use read_index::{FreshAsOf, Source, run_reads};
