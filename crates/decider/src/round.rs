//! Rounds of decisions: how large they are, and how one that is too large is cut.

use alloc::vec::Vec;
use muster_journal::{EncodedDecisions, ROUND_BYTES_MAX, Round, seal_round};
use muster_types::LogIndex;

/// Bytes of a round at which a pass stops: about a thousand placements, so that no round is too large and nobody waits
/// for long behind one.
pub(crate) const ROUND_BYTES_SOFT: usize = 64 << 10;

/// Bytes above which a round is cut into several; one decision can have as many as a submission may.
const ROUND_BYTES_SPLIT: usize = ROUND_BYTES_MAX / 2;

/// A round and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedRound {
    /// What it says.
    pub round: Round,
    /// What it is written as.
    pub bytes: Vec<u8>,
}

/// A round with its bytes; one that is larger than it should be as several that say the same, one after the other. Nearly
/// every round stays as it is.
pub(crate) fn sealed(mut round: Round, encoded: &EncodedDecisions) -> Vec<EncodedRound> {
    let mut rounds = Vec::new();
    for (count, bytes) in encoded.runs(ROUND_BYTES_SPLIT) {
        let rest = round.decisions.split_off(count);
        let next = round.first_index.0 + count as u64;
        let bytes = seal_round(&round, bytes);
        let (first_index, basis_index) = (LogIndex(next), LogIndex(next.saturating_sub(1)));
        let following = Round { decisions: rest, first_index, basis_index, ..round };
        rounds.push(EncodedRound { round: core::mem::replace(&mut round, following), bytes });
    }
    rounds
}
