//! The rounds this replica proposes, kept until they come back to be applied.
//!
//! What a leader applies is, nearly always, what it has just encoded itself. Decoding it again is a quarter
//! of the work of applying it, so the round is kept next to its bytes and taken instead.
//!
//! **Invariant:** a round is taken only for the very bytes that it was encoded into: the same memory, which
//! cannot become anything else while it is kept here. Every other entry is decoded.

use bytes::Bytes;
use muster_journal::Round;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Instant;

/// Rounds kept at most: as many as may be in flight, and some that nobody will ask for any more.
const KEPT_MAX: usize = 128;

/// When the leader worked on a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTimes {
    /// Since when it was decided.
    pub begun: Instant,
    /// When it was proposed.
    pub proposed: Instant,
}

/// A round behind its bytes, and when it was made.
type ProposedRound = (Bytes, Round, RoundTimes);

/// Rounds by their bytes, in the order they were proposed.
#[derive(Default)]
pub struct ProposedRounds {
    kept: Mutex<VecDeque<ProposedRound>>,
}

impl ProposedRounds {
    fn lock(&self) -> parking_lot::MutexGuard<'_, VecDeque<ProposedRound>> {
        // Nothing panics while it holds the lock.
        self.kept.lock()
    }

    /// `payload` is what `round` was encoded into, and it is made at these times.
    pub fn keep(&self, payload: Bytes, round: Round, times: RoundTimes) {
        let mut kept = self.lock();
        if kept.len() >= KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back((payload, round, times));
    }

    /// The round that was encoded into these bytes here, and when it was made, if it is still kept. Those before it were lost
    /// on the way, or decoded: they go as well.
    pub fn take(&self, payload: &Bytes) -> Option<(Round, RoundTimes)> {
        let mut kept = self.lock();
        let same =
            |(own, _, _): &ProposedRound| own.as_ptr() == payload.as_ptr() && own.len() == payload.len();
        let place = kept.iter().position(same)?;
        kept.drain(..=place).next_back().map(|(_, round, times)| (round, times))
    }

    /// The leadership is over; what it proposed is decoded when it comes.
    pub fn clear(&self) {
        self.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_journal::{Decision, encode_round};
    use muster_types::{LogIndex, LogTime, ReplicaId};

    fn round(first: u64) -> Round {
        Round {
            format: muster_journal::FORMAT_MIN,
            term: 3,
            replica: ReplicaId(1),
            first_index: LogIndex(first),
            basis_index: LogIndex(first - 1),
            log_time: LogTime(9),
            decisions: vec![Decision::LeaderStarted],
        }
    }

    fn times() -> RoundTimes {
        let now = Instant::now();
        RoundTimes { begun: now, proposed: now }
    }

    fn encoded(round: &Round) -> Bytes {
        encode_round(round).into()
    }

    #[test]
    fn a_round_is_taken_once_for_its_own_bytes_and_for_no_others() {
        let rounds = ProposedRounds::default();
        let payload = encoded(&round(1));
        let now = times();
        rounds.keep(payload.clone(), round(1), now);
        assert_eq!(rounds.take(&encoded(&round(1))), None, "equal bytes from elsewhere are decoded");
        assert_eq!(rounds.take(&payload.clone()), Some((round(1), now)));
        assert_eq!(rounds.take(&payload), None);
    }

    #[test]
    fn those_before_it_go_and_no_more_than_the_bound_are_kept() {
        let rounds = ProposedRounds::default();
        let payloads: Vec<Bytes> = (1..=200).map(|first| encoded(&round(first))).collect();
        let now = times();
        for (payload, first) in payloads.iter().zip(1..) {
            rounds.keep(payload.clone(), round(first), now);
        }
        assert_eq!(rounds.lock().len(), KEPT_MAX);
        assert_eq!(rounds.take(&payloads[0]), None);
        assert_eq!(rounds.take(&payloads[149]), Some((round(150), now)));
        assert_eq!(rounds.take(&payloads[148]), None);
        assert_eq!(rounds.take(&payloads[150]), Some((round(151), now)));
        rounds.clear();
        assert_eq!(rounds.take(&payloads[199]), None);
    }
}
