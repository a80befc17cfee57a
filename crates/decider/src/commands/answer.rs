//! What a command is answered, also one that is repeated.

use alloc::format;
use alloc::vec::Vec;
use muster_journal::{Decision, RequestKey};
use muster_state::RequestAnswer;
use muster_types::{JobId, LogIndex, NodeId, Refusal, RefusalCode};

use crate::speculation::Speculation;

/// The largest number of violations that one refusal lists.
pub(super) const VIOLATIONS_MAX: usize = 32;

/// What a command led to. `at` is the record to wait for before anybody is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Jobs exist.
    Submitted {
        /// In the order submitted.
        jobs: Vec<JobId>,
        /// The record.
        at: LogIndex,
    },
    /// A node's session stands.
    Registered {
        /// Its id.
        node: NodeId,
        /// Its incarnation.
        incarnation: u32,
        /// The record, or the position when nothing had to change.
        at: LogIndex,
    },
    /// Asked of jobs that exist.
    Controlled {
        /// Of how many it changed anything.
        jobs: u32,
        /// The last of them; members of an array that are not created count as its first. None where it changed nothing.
        last: Option<JobId>,
        /// Whether it was done before under the same request id, and this is how many it was then.
        is_repeat: bool,
        /// The record, or the position when nothing had to change.
        at: LogIndex,
    },
    /// Carried out, or nothing left to do.
    Done {
        /// The record, or the position when nothing had to change.
        at: LogIndex,
    },
}

impl Answer {
    /// The record to wait for.
    #[must_use]
    pub fn at(&self) -> LogIndex {
        match self {
            Answer::Submitted { at, .. }
            | Answer::Registered { at, .. }
            | Answer::Controlled { at, .. }
            | Answer::Done { at } => *at,
        }
    }
}

/// The answer given before under this request id, if there was one.
pub(super) fn repeated(speculation: &Speculation, key: RequestKey) -> Result<Option<Answer>, Refusal> {
    let Some(row) = speculation.state().request(key.id) else { return Ok(None) };
    if row.fingerprint != key.fingerprint {
        let text = format!("request id {} was used before for a different request; make a new one", key.id);
        return Err(Refusal::new(RefusalCode::RequestIdReused, text).with("log_index", row.log_index));
    }
    let at = row.log_index;
    Ok(Some(match row.answer {
        RequestAnswer::Submitted { first, jobs } => {
            Answer::Submitted { jobs: (0..u64::from(jobs)).map(|n| JobId(first.0 + n)).collect(), at }
        }
        RequestAnswer::Controlled { jobs, last } => Answer::Controlled { jobs, last, is_repeat: true, at },
        RequestAnswer::CordonSet { .. }
        | RequestAnswer::NodeForgotten { .. }
        | RequestAnswer::RestrictionSet { .. }
        | RequestAnswer::HealthPolicySet
        | RequestAnswer::Done
        | RequestAnswer::PolicySet => Answer::Done { at },
    }))
}

/// A refusal when the record format in force has no form for this decision.
pub(super) fn not_active(speculation: &Speculation, decision: &Decision, what: &str) -> Option<Refusal> {
    if speculation.can_say(decision) {
        return None;
    }
    let needed = decision.since_format();
    let text = format!(
        "{what} needs record format {needed}, and {} is in force; upgrade every replica first",
        speculation.state().format()
    );
    Some(Refusal::new(RefusalCode::FormatNotActive, text).with("needed", needed))
}
