//! The replicated record: header, decision enum, its checksummed codec, upcasts from every
//! released format.
//!
//! A Raft entry carries one [`Round`]: a header and a batch of [`Decision`]s in the past tense,
//! with every choice made. The `n`-th decision of a round stands in the decision log at
//! `first_index + n`; with the header it is a record.
//!
//! **Invariant:** this crate knows bytes, not meaning: it never says whether a decision is allowed.
//! **Invariant:** variants and fields are append-only within a format; a change of layout is a new
//! format with an upcast from every released one, and a golden log in `tests/golden/`.
//! **Invariant:** a round contains nothing that its own format cannot express. So a binary meets what it does
//! not know as a format number, never as an unknown variant.
//! **Invariant:** no bytes whatsoever make a decoder panic or allocate beyond its bound.
#![no_std]
#![deny(missing_docs, clippy::float_arithmetic)]

extern crate alloc;

pub mod codec;
pub mod decision;
pub mod frame;
pub mod names;

pub use codec::{
    DecodeError, EncodedDecisions, ROUND_BYTES_MAX, canonical, decode_round, encode_round, from_canonical,
    hash, hash_of_bytes, seal_round,
};
#[cfg(feature = "test-format")]
pub use decision::TEST_FORMAT_REASON;
pub use decision::{
    CapacityHold, Decision, Estimate, FORMAT_MAX, FORMAT_MIN, NodeLostCause, Outcome, RankUpdate,
    RearrangeCause, RequestKey, Round, Stop, StopCause, SubmittedPart, WorkerSlot,
};
pub use names::REQUESTED_DECISIONS;
