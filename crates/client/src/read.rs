//! Which state a read is answered from.

use std::time::Duration;

use muster_wire::v1;

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
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Read(v1::ReadOptions);

impl Read {
    /// Nothing in particular: the same as [`Read::any`].
    pub(crate) const NOTHING_SAID: Read = Read(v1::ReadOptions {
        consistency: 0,
        max_staleness_ms: 0,
        min_log_index: 0,
        at_log_index: 0,
        at_time_ms: 0,
    });

    /// Whatever the replica that is asked has applied.
    #[must_use]
    pub fn any() -> Read {
        Read::with(v1::Consistency::Any)
    }

    /// Everything that was committed so long before the replica was asked. Rounded up to whole
    /// milliseconds; one that cannot prove it is left for the next.
    #[must_use]
    pub fn bounded(max_staleness: Duration) -> Read {
        let Read(options) = Read::with(v1::Consistency::Bounded);
        let ms = u64::try_from(max_staleness.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Read(v1::ReadOptions { max_staleness_ms: ms, ..options })
    }

    /// Everything that was committed before the replica was asked.
    #[must_use]
    pub fn linearizable() -> Read {
        Read::with(v1::Consistency::Linearizable)
    }

    /// The state as it was behind a record of the log; 0 is the present.
    #[must_use]
    pub fn at_log_index(log_index: u64) -> Read {
        Read(v1::ReadOptions { at_log_index: log_index, ..Default::default() })
    }

    /// The state as it was at a log time, in milliseconds since the Unix epoch; 0 is the present.
    #[must_use]
    pub fn at_time_ms(time_ms: u64) -> Read {
        Read(v1::ReadOptions { at_time_ms: time_ms, ..Default::default() })
    }

    /// The same, complete up to this position of the log at least. Not for reads of the past.
    #[must_use]
    pub fn at_least(self, min_log_index: u64) -> Read {
        Read(v1::ReadOptions { min_log_index, ..self.0 })
    }

    fn with(consistency: v1::Consistency) -> Read {
        Read(v1::ReadOptions { consistency: consistency.into(), ..Default::default() })
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

/// Whether an answer depends on what other replicas say, so that one that hears nobody may hold it up.
pub(crate) fn needs_others(options: &v1::ReadOptions) -> bool {
    let needs = [v1::Consistency::Bounded, v1::Consistency::Linearizable];
    needs.into_iter().any(|consistency| options.consistency == i32::from(consistency))
}

/// Whether it asks for a moment of the past.
pub(crate) fn is_past(options: &v1::ReadOptions) -> bool {
    options.at_log_index > 0 || options.at_time_ms > 0
}
