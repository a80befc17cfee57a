//! Which state a read is answered from.

use std::time::Duration;

use muster_wire::time::{duration, timestamp};
use muster_wire::v1;
use muster_wire::v1::past_state::Moment;
use muster_wire::v1::read_options::State;

/// How a read is to be answered: from the present, as current as asked, or from the past.
///
/// ```
/// # use muster_client::Read;
/// # use std::time::Duration;
/// let fresh = Read::bounded(Duration::from_secs(2));
/// let exact = Read::linearizable();
/// let then = Read::at_log_index(4_711);
/// ```
///
/// Goes into a request as its `read`, or is the default of a client through
/// [`Client::reading`](crate::Client::reading).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Read(v1::ReadOptions);

impl Read {
    /// What a client asks for that is not told otherwise: [`Read::any`], complete up to what it has seen.
    pub(crate) const NOTHING_SAID: Read = Read::with(State::Any(v1::AnyState {}));

    /// Whatever the replica that is asked has applied.
    #[must_use]
    pub fn any() -> Read {
        Read::NOTHING_SAID
    }

    /// Everything that was committed so long before the replica was asked. Rounded up to whole
    /// milliseconds; one that cannot prove it is left for the next.
    #[must_use]
    pub fn bounded(max_staleness: Duration) -> Read {
        let max_staleness_ms =
            u64::try_from(max_staleness.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Read::with(State::Bounded(v1::BoundedState { max_staleness: Some(duration(max_staleness_ms)) }))
    }

    /// Everything that was committed before the replica was asked.
    #[must_use]
    pub fn linearizable() -> Read {
        Read::with(State::Linearizable(v1::LinearizableState {}))
    }

    /// The state as it was behind a record of the log, from 1.
    #[must_use]
    pub fn at_log_index(log_index: u64) -> Read {
        Read::with(State::Past(v1::PastState { moment: Some(Moment::LogIndex(log_index)) }))
    }

    /// The state as it was at a log time, in milliseconds since the Unix epoch, from 1.
    #[must_use]
    pub fn at_time_ms(time_ms: u64) -> Read {
        Read::with(State::Past(v1::PastState { moment: Some(Moment::Time(timestamp(time_ms))) }))
    }

    /// The same, by a replica that has applied this position of the log at least.
    #[must_use]
    pub fn at_least(self, min_log_index: u64) -> Read {
        Read(v1::ReadOptions { min_log_index, ..self.0 })
    }

    const fn with(state: State) -> Read {
        Read(v1::ReadOptions { state: Some(state), min_log_index: 0, generation: 0 })
    }
}

impl Default for Read {
    fn default() -> Read {
        Read::NOTHING_SAID
    }
}

impl From<Read> for v1::ReadOptions {
    fn from(read: Read) -> v1::ReadOptions {
        read.0
    }
}

impl From<Read> for Option<v1::ReadOptions> {
    fn from(read: Read) -> Option<v1::ReadOptions> {
        Some(read.0)
    }
}

/// Whether an answer depends on what other replicas say: a replica that hears from none of them may hold it up. Without
/// a state it does.
pub(crate) fn needs_others(options: &v1::ReadOptions) -> bool {
    !matches!(options.state, Some(State::Any(_) | State::Past(_)))
}

/// Whether it asks for a moment of the past.
pub(crate) fn is_past(options: &v1::ReadOptions) -> bool {
    matches!(options.state, Some(State::Past(_)))
}
