//! Why a call failed, in the words a caller decides by.

use std::time::Duration;

use muster_wire::status::Refused;

use crate::endpoint::ConnectError;

/// Why one attempt failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttemptError {
    /// No replica could be reached.
    #[error("no replica could be reached")]
    Connect(#[source] ConnectError),
    /// A replica answered with a refusal, or the connection to it broke.
    #[error("the replica at {endpoint} did not do it")]
    Answer {
        /// Who was asked.
        endpoint: String,
        /// Its words.
        #[source]
        refused: Refused,
    },
    /// No answer in time.
    #[error("no answer from {endpoint} in time")]
    Timeout {
        /// Who was asked.
        endpoint: String,
    },
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The answer is no; repeating the call unchanged would not help.
    #[error("{operation} was refused by {endpoint}")]
    Refused {
        /// What was asked for.
        operation: &'static str,
        /// Who said no.
        endpoint: String,
        /// Why, with the stable code and the fields concerned.
        #[source]
        refused: Refused,
    },
    /// The deadline passed without a definite answer.
    #[error("{operation}: no definite answer within {} ms ({attempts} attempts)", .waited.as_millis())]
    DeadlineExceeded {
        /// What was asked for.
        operation: &'static str,
        /// How often it was sent, or tried to be.
        attempts: u32,
        /// The deadline.
        waited: Duration,
        /// Of a mutation: it may have happened. Repeating it under this id tells, and does it once.
        request_id: Option<String>,
        /// How the last attempt failed.
        #[source]
        last: AttemptError,
    },
    /// A stream of output broke off; what came before is good.
    #[error("{operation} broke off after {bytes} bytes")]
    StreamBroken {
        /// What was read.
        operation: &'static str,
        /// How much had been delivered.
        bytes: u64,
        /// How it ended.
        #[source]
        last: AttemptError,
    },
}

impl CallError {
    /// The refusal behind it, if a server's answer is.
    #[must_use]
    pub fn refused(&self) -> Option<&Refused> {
        let last = match self {
            CallError::Refused { refused, .. } => return Some(refused),
            CallError::DeadlineExceeded { last, .. } | CallError::StreamBroken { last, .. } => last,
        };
        match last {
            AttemptError::Answer { refused, .. } => Some(refused),
            AttemptError::Connect(_) | AttemptError::Timeout { .. } => None,
        }
    }

    /// Whether the cluster could not be reached or could not decide, as against having said no.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        !matches!(self, CallError::Refused { .. }) && !self.is_timeout()
    }

    /// Whether the last thing that happened was silence.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            CallError::Refused { .. } => false,
            CallError::DeadlineExceeded { last, .. } | CallError::StreamBroken { last, .. } => {
                matches!(last, AttemptError::Timeout { .. })
            }
        }
    }
}
