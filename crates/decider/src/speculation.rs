//! Applied state plus the leader's own records in flight.

use alloc::vec::Vec;
use muster_journal::{Decision, Round};
use muster_state::{Leadership, State};
use muster_types::{ClusterId, LogIndex, LogTime, Parameters};

/// What the first leader of a new cluster writes.
#[derive(Clone, Copy, Debug)]
pub struct Founding {
    /// The cluster's identity.
    pub cluster: ClusterId,
    /// Its parameters.
    pub parameters: Parameters,
}

/// The state the leader decides on.
///
/// **Invariant:** it is the state that every replica will have once the rounds taken from it are
/// applied; nothing else may be proposed under this leadership.
#[derive(Clone, Debug)]
pub struct Speculation {
    state: State,
    leadership: Leadership,
    now: LogTime,
    first_index: LogIndex,
    basis_index: LogIndex,
    decisions: Vec<Decision>,
    bytes: usize,
    last_digest: LogIndex,
    wants_schedule: bool,
}

impl Speculation {
    /// Begins a leadership on the applied state. The caller has passed the barrier: everything of
    /// earlier leaderships is applied. The first round opens with the leadership, and with the
    /// cluster itself when there is none.
    #[must_use]
    pub fn begin(state: State, leadership: Leadership, now: LogTime, founding: Founding) -> Speculation {
        let mut speculation = Speculation {
            leadership,
            now: now.max(state.log_time()),
            first_index: state.log_index().next(),
            basis_index: state.log_index(),
            decisions: Vec::new(),
            bytes: 0,
            last_digest: LogIndex::ZERO,
            wants_schedule: true,
            state,
        };
        speculation.push(Decision::LeaderStarted);
        if speculation.state.cluster().is_none() {
            speculation.push(Decision::ClusterCreated {
                cluster: founding.cluster,
                generation: 1,
                parameters: founding.parameters,
            });
        }
        speculation.push_digest();
        speculation
    }

    /// The speculative state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The leadership this speculates under.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        self.leadership
    }

    /// Log time of the round being made.
    #[must_use]
    pub fn now(&self) -> LogTime {
        self.now
    }

    /// Moves time on; never back. Only between rounds: one round has one time.
    pub fn set_now(&mut self, now: LogTime) {
        if self.decisions.is_empty() {
            self.now = self.now.max(now);
        }
    }

    /// Adds a decision to the round being made; its position.
    ///
    /// # Panics
    /// When the guard refuses it: the decider proposes only what it has checked, so that is a bug,
    /// and it must stop this leader rather than reach the log.
    pub fn push(&mut self, decision: Decision) -> LogIndex {
        let index = self.state.log_index().next();
        let applied = self.state.apply(self.leadership, index, self.now, &decision);
        assert!(
            applied.rejection.is_none(),
            "the guard refused the leader's own {} at {index}: {:?}",
            decision.name(),
            applied.rejection
        );
        self.wants_schedule |= changes_capacity_or_demand(&decision);
        self.bytes += approximate_bytes(&decision);
        self.decisions.push(decision);
        index
    }

    /// Adds the state's digest to the round being made.
    pub(crate) fn push_digest(&mut self) {
        let digest = self.state.rows_digest();
        self.last_digest = self.push(Decision::DigestRecorded { digest });
    }

    /// Adds a digest when the last one is far enough back.
    pub fn push_digest_if_due(&mut self) {
        let interval = self.state.parameters().digest_interval_records;
        if self.state.log_index().0 >= self.last_digest.0 + interval {
            self.push_digest();
        }
    }

    /// About how many bytes the round being made will have.
    #[must_use]
    pub fn round_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether something has changed that could let a waiting gang start.
    #[must_use]
    pub fn wants_schedule(&self) -> bool {
        self.wants_schedule
    }

    pub(crate) fn set_wants_schedule(&mut self, wants: bool) {
        self.wants_schedule = wants;
    }

    /// Position of the last record decided.
    #[must_use]
    pub fn last_index(&self) -> LogIndex {
        self.state.log_index()
    }

    /// The round made so far, to be proposed; none when it is empty.
    pub fn take_round(&mut self) -> Option<Round> {
        if self.decisions.is_empty() {
            return None;
        }
        let round = Round {
            term: self.leadership.term,
            replica: self.leadership.replica,
            first_index: self.first_index,
            basis_index: self.basis_index,
            log_time: self.now,
            decisions: core::mem::take(&mut self.decisions),
        };
        self.first_index = self.state.log_index().next();
        self.basis_index = self.state.log_index();
        self.bytes = 0;
        Some(round)
    }
}

fn changes_capacity_or_demand(decision: &Decision) -> bool {
    match decision {
        Decision::JobsSubmitted { .. }
        | Decision::NodeRegistered { .. }
        | Decision::NodeCordonSet { .. }
        | Decision::WorkersReported { .. }
        | Decision::NodeLost { .. }
        | Decision::JobRequeued { .. }
        | Decision::JobFinished { .. } => true,
        Decision::ClusterCreated { .. }
        | Decision::LeaderStarted
        | Decision::JobCancelRequested { .. }
        | Decision::GangPlaced { .. }
        | Decision::GangStopRequested { .. }
        | Decision::HistoryPruned { .. }
        | Decision::DigestRecorded { .. } => false,
    }
}

/// Bytes of a decision, near enough to bound a round without encoding it twice.
fn approximate_bytes(decision: &Decision) -> usize {
    match decision {
        Decision::JobsSubmitted { specs, .. } => {
            let words = |s: &muster_types::JobSpec| -> usize {
                let text = |g: &muster_types::TaskGroup| -> usize {
                    let command: usize = g.command.iter().map(|w| w.len() + 3).sum();
                    let environment: usize = g.environment.iter().map(|(k, v)| k.len() + v.len() + 6).sum();
                    command + environment + 128
                };
                s.groups.iter().map(text).sum::<usize>() + 128
            };
            specs.iter().map(words).sum()
        }
        Decision::GangPlaced { workers, .. } => 32 + workers.len() * 16,
        Decision::WorkersReported { updates, .. } => 48 + updates.len() * 16,
        Decision::NodeRegistered { .. } => 1_024,
        _ => 64,
    }
}
