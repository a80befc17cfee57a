//! An incident in one file: the state before it and the records behind that, redacted, so that they replay anywhere.
//!
//! ```text
//! magic "MSIC" · layout u32
//! section: tag u8 · length u32 · CRC-32 of number, tag and content · content     header, state, records, end
//! ```
//! Numbers are little-endian, and contents are packed into compressed blocks. What is in them was redacted as
//! [`muster_state::Redaction`] states, before anything was written. A record that is about nothing else stands there as a
//! record of the digest, so that each has its position.
//!
//! **Invariant:** what is replayed was compared when the capsule was made: every record does what it did in the log.
//! **Invariant:** no byte is used before its checksum is verified; no bytes cause a panic or take more memory than the bounds.

mod capture;
mod error;
mod file;

use muster_journal::Decision;
use muster_state::{Applied, Effect, State};
use muster_types::{Leadership, LogIndex, LogTime};
use serde::{Deserialize, Serialize};

pub use capture::{CapsuleSpan, capture};
pub use error::CapsuleError;
pub use file::{read_capsule, write_capsule};

/// The layout that this release writes, and the newest that it reads.
pub const CAPSULE_LAYOUT: u32 = 1;
/// Records of one capsule.
pub const CAPSULE_RECORDS_MAX: u64 = 200_000;
/// Bytes of one file.
pub const CAPSULE_BYTES_MAX: u64 = 256 << 20;

/// What a capsule says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CapsuleHeader {
    /// The cluster.
    pub cluster_id: String,
    /// Its generation at the beginning.
    pub cluster_generation: u32,
    /// The first record in it; the state is that before it.
    pub first_log_index: u64,
    /// The last record in it.
    pub last_log_index: u64,
    /// The record that somebody asked about.
    pub around_log_index: u64,
    /// Log time of the state, in milliseconds since the Unix epoch.
    pub begin_time_ms: u64,
    /// Log time of the last record, in milliseconds since the Unix epoch.
    pub end_time_ms: u64,
    /// The release of the program that made it.
    pub version: String,
    /// When it was made, by the clock of the host that made it, in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Digest of the cluster's own state before the first record, which is not in it.
    pub original_digest_before: u64,
    /// The same behind the last record.
    pub original_digest_after: u64,
    /// Digest of the redacted state before the first record.
    pub digest_before: u64,
    /// The same behind the last record.
    pub digest_after: u64,
    /// Records that are left out, with what they decided.
    pub left_out: Vec<LeftOutRecord>,
}

/// A record of which only the name is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftOutRecord {
    /// Its position.
    pub log_index: u64,
    /// The name of the decision.
    pub decision: String,
}

/// A record of a capsule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapsuleRecord {
    /// Its position.
    pub log_index: LogIndex,
    /// When the leader decided it.
    pub log_time: LogTime,
    /// The leadership that decided it.
    pub leadership: Leadership,
    /// The Raft entry it came in.
    pub raft_index: u64,
    /// What was decided, redacted.
    pub decision: Decision,
}

/// An incident.
#[derive(Clone, Debug)]
pub struct Capsule {
    /// What it says of itself.
    pub header: CapsuleHeader,
    /// The state before the first record.
    pub state: State,
    /// Without a gap, in their order.
    pub records: Vec<CapsuleRecord>,
}

impl Capsule {
    /// Replays the records, those up to `until` or all, and shows each with the state behind it. Returns the state that was
    /// reached.
    ///
    /// # Errors
    /// When the state is another one than the capsule states, on the way or at the end.
    pub fn replay(
        &self,
        until: Option<LogIndex>,
        mut look: impl FnMut(&State, &CapsuleRecord, &Applied),
    ) -> Result<State, CapsuleError> {
        let mut state = self.state.clone();
        for record in &self.records {
            let log_index = record.log_index;
            if until.is_some_and(|until| log_index > until) {
                return Ok(state);
            }
            let applied = state.apply(record.leadership, log_index, record.log_time, &record.decision);
            for effect in &applied.effects {
                if let Effect::Diverged { expected, actual } = *effect {
                    return Err(CapsuleError::Diverged { log_index, expected, actual });
                }
            }
            if applied.log_index.is_none() {
                return Err(CapsuleError::Differs { log_index });
            }
            look(&state, record, &applied);
        }
        let (expected, actual) = (self.header.digest_after, state.digest());
        if expected != actual {
            return Err(CapsuleError::Diverged { log_index: state.log_index(), expected, actual });
        }
        Ok(state)
    }
}
