//! What an archive holds: rounds as they were applied, and the records in them.

use bytes::Bytes;
use muster_journal::{Decision, Round, decode_round};
use muster_state::Sequence;
use muster_types::{Leadership, LogIndex, LogTime, ReplicaId};

use crate::error::ArchiveError;

/// One applied Raft entry of the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivedRound {
    /// Its position in the Raft log.
    pub raft_index: u64,
    /// The term it was appended in.
    pub term: u64,
    /// The replica that led then.
    pub leader: ReplicaId,
    /// The encoded round.
    pub payload: Bytes,
}

impl ArchivedRound {
    /// The round in the payload.
    ///
    /// # Errors
    /// When it is damaged or of a newer format.
    pub fn decode(&self) -> Result<Round, ArchiveError> {
        decode_round(&self.payload, muster_journal::FORMAT_MAX)
            .map_err(|source| ArchiveError::Round { raft_index: self.raft_index, source })
    }
}

/// A position between two Raft entries, with what has to be known to go on there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RaftPosition {
    /// The next Raft entry.
    pub next_raft: u64,
    /// Whose records are accepted next, and from where.
    pub sequence: Sequence,
    /// The generation of the cluster; 0 before it was founded.
    pub generation: u32,
}

impl RaftPosition {
    /// Goes on behind a round.
    ///
    /// # Errors
    /// When the round cannot be read.
    pub fn step(&mut self, round: &ArchivedRound) -> Result<(), ArchiveError> {
        let decoded = round.decode()?;
        self.step_decoded(round.raft_index, &decoded, |_, _| {});
        Ok(())
    }

    /// The same for one that is decoded already; tells of each record that has a position.
    pub fn step_decoded(
        &mut self,
        raft_index: u64,
        round: &Round,
        mut taken: impl FnMut(LogIndex, &Decision),
    ) {
        let leadership = Leadership { term: round.term, replica: round.replica };
        for (ordinal, decision) in round.decisions.iter().enumerate() {
            let index = LogIndex(round.first_index.0.saturating_add(ordinal as u64));
            if self.sequence.step(leadership, index, round.log_time, decision) {
                self.generation = generation_after(decision).unwrap_or(self.generation);
                taken(index, decision);
            }
        }
        self.next_raft = raft_index.saturating_add(1);
    }
}

/// The generation that a record begins.
fn generation_after(decision: &Decision) -> Option<u32> {
    match decision {
        Decision::ClusterCreated { generation, .. } | Decision::ClusterRecovered { generation } => {
            Some(*generation)
        }
        _ => None,
    }
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its position.
    pub log_index: LogIndex,
    /// When the leader decided it.
    pub log_time: LogTime,
    /// The leadership's term.
    pub term: u64,
    /// The replica that decided.
    pub leader: ReplicaId,
    /// The Raft entry it came in.
    pub raft_index: u64,
    /// The generation of the cluster that it belongs to.
    pub generation: u32,
    /// What was decided.
    pub decision: Decision,
}

/// Takes the records out of rounds, one round after the other.
#[derive(Clone, Debug)]
pub struct Records {
    place: RaftPosition,
}

impl Records {
    /// From a place on.
    #[must_use]
    pub fn from(place: RaftPosition) -> Records {
        Records { place }
    }

    /// Where it has come to.
    #[must_use]
    pub fn place(&self) -> RaftPosition {
        self.place
    }

    /// Goes on behind entries that have no round.
    pub fn pass(&mut self, next_raft: u64) {
        self.place.next_raft = self.place.next_raft.max(next_raft);
    }

    /// The records of the next round. Those of an ended leadership have no position and are none.
    ///
    /// # Errors
    /// When the round cannot be read.
    pub fn take(&mut self, round: &ArchivedRound) -> Result<Vec<Record>, ArchiveError> {
        let decoded = round.decode()?;
        let mut taken = Vec::with_capacity(decoded.decisions.len());
        let mut generation = self.place.generation;
        self.place.step_decoded(round.raft_index, &decoded, |log_index, decision| {
            generation = generation_after(decision).unwrap_or(generation);
            taken.push(Record {
                log_index,
                log_time: decoded.log_time,
                term: decoded.term,
                leader: decoded.replica,
                raft_index: round.raft_index,
                generation,
                decision: decision.clone(),
            });
        });
        Ok(taken)
    }

    /// The same without a copy of any of them: tells of each with its position and its time.
    ///
    /// # Errors
    /// As [`Records::take`].
    pub fn visit(
        &mut self,
        round: &ArchivedRound,
        mut told: impl FnMut(LogIndex, LogTime, &Decision),
    ) -> Result<(), ArchiveError> {
        let decoded = round.decode()?;
        self.place.step_decoded(round.raft_index, &decoded, |log_index, decision| {
            told(log_index, decoded.log_time, decision);
        });
        Ok(())
    }
}
