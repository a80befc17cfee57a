//! The replicated state machine: guard, fold, derived indexes, invariants, digest, snapshot.
//!
//! [`State::apply_round`] takes a round from the log. Each record passes the guard (leadership and
//! sequence current, the decision's own preconditions) and is folded in; a record that does not pass
//! is counted and changes nothing else. What the outside must do about it comes back as
//! [`Effect`]s: apply itself has no clock, no randomness, no IO, and does not know who leads here.
//!
//! **Invariant:** same rounds, same state, same digest, on every replica and every version.
//! **Invariant:** this crate decides nothing: it accepts or rejects what was decided.
//! **Invariant:** a clone costs nothing and never changes afterwards (persistent maps), so read
//! views, speculation and snapshots need no lock.
#![no_std]
#![deny(missing_docs, clippy::float_arithmetic)]

extern crate alloc;

mod apply;
mod fold;
mod guard;
mod index;
mod rows;
mod snapshot;
mod table;
mod verify;

pub mod fit;

pub use apply::{Applied, Effect, State};
pub use guard::GuardError;
pub use index::{Pool, PoolKey, Shape};
pub use rows::{
    ClusterMeta, JobRow, Leadership, NodeRow, NodeStatus, Phase, Placement, RankState, RequestAnswer,
    RequestRow,
};
pub use snapshot::{RestoreError, SnapshotChunks};
pub use table::Table;
pub use verify::BrokenInvariant;
