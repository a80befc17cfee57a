//! Moments and spans: `google.protobuf.Timestamp` and `Duration` in messages, whole milliseconds everywhere else.
//!
//! What a client sends is exact or refused, with the field named. What a replica says is made from milliseconds, so it
//! is exact too; a reader of an answer leaves out what is finer, and takes what is out of range for absent.

pub use muster_types::quantity::SPAN_MS_MAX;
use muster_types::{LogTime, Violation};
pub use prost_types::{Duration, Timestamp};

/// The last moment that is taken: 9999-12-30T22:00:00.999Z. A `Timestamp` may have a day more, which some offset from UTC
/// turns into the year 10000: programs that keep local times, and job files, could not write it.
pub const MOMENT_MS_MAX: u64 = 253_402_207_200_999;

const NANOS_PER_MS: i32 = 1_000_000;

/// A moment, cut to the last one that can be written.
#[must_use]
pub fn timestamp(unix_ms: u64) -> Timestamp {
    let (seconds, nanos) = parts(unix_ms.min(MOMENT_MS_MAX), 1_000);
    Timestamp { seconds, nanos }
}

/// A log time; none for zero, which stands for what has not happened.
#[must_use]
pub fn log_time(time: LogTime) -> Option<Timestamp> {
    (time != LogTime::default()).then(|| timestamp(time.0))
}

/// A span, cut to the longest that can be written.
#[must_use]
pub fn duration(ms: u64) -> Duration {
    let (seconds, nanos) = parts(ms.min(SPAN_MS_MAX), 1_000);
    Duration { seconds, nanos }
}

/// The same of microseconds, for what is measured and never compared.
#[must_use]
pub fn duration_us(us: u64) -> Duration {
    let (seconds, nanos) = parts(us.min(SPAN_MS_MAX * 1_000), 1_000_000);
    Duration { seconds, nanos }
}

/// Seconds and nanoseconds of a number of parts of a second.
fn parts(value: u64, per_second: u64) -> (i64, i32) {
    let nanos = value % per_second * (1_000_000_000 / per_second);
    (i64::try_from(value / per_second).unwrap_or(i64::MAX), i32::try_from(nanos).unwrap_or(0))
}

/// Milliseconds since the Unix epoch of a moment that a client sent.
///
/// # Errors
/// When it is before the epoch, after the year 9999, or between two milliseconds.
pub fn timestamp_from_proto(field: &str, moment: Timestamp) -> Result<u64, Violation> {
    let Timestamp { seconds, nanos } = moment;
    whole_ms(field, seconds, nanos, MOMENT_MS_MAX, "from 1970-01-01T00:00:00Z to 9999-12-31T23:59:59.999Z")
}

/// Milliseconds of a span that a client sent.
///
/// # Errors
/// When it is negative, longer than a `Duration` may be, or no whole number of milliseconds.
pub fn duration_from_proto(field: &str, span: Duration) -> Result<u64, Violation> {
    let Duration { seconds, nanos } = span;
    whole_ms(field, seconds, nanos, SPAN_MS_MAX, "from 0s to 315576000000s")
}

fn whole_ms(field: &str, seconds: i64, nanos: i32, ms_max: u64, range: &str) -> Result<u64, Violation> {
    let outside = || Violation::new(field, format!("must be {range}, got {seconds} s and {nanos} ns"));
    if !(0..1_000_000_000).contains(&nanos) {
        return Err(outside());
    }
    if nanos % NANOS_PER_MS != 0 {
        let text = format!("must be a whole number of milliseconds, got {nanos} ns beyond the second");
        return Err(Violation::new(field, text));
    }
    let ms = u64::from(nanos.unsigned_abs() / NANOS_PER_MS.unsigned_abs());
    let whole = u64::try_from(seconds).ok().and_then(|seconds| seconds.checked_mul(1_000)?.checked_add(ms));
    whole.filter(|ms| *ms <= ms_max).ok_or_else(outside)
}

/// Milliseconds since the Unix epoch of a moment in an answer, what is finer left out; none when it has none, and for what
/// no moment may be.
#[must_use]
pub fn unix_ms(moment: impl Into<Option<Timestamp>>) -> Option<u64> {
    let Timestamp { seconds, nanos } = moment.into()?;
    whole_ms("", seconds, nanos - nanos % NANOS_PER_MS, MOMENT_MS_MAX, "").ok()
}

/// Milliseconds of a span in an answer, what is finer left out; none when it has none, and for what no span may be.
#[must_use]
pub fn span_ms(span: impl Into<Option<Duration>>) -> Option<u64> {
    let Duration { seconds, nanos } = span.into()?;
    whole_ms("", seconds, nanos - nanos % NANOS_PER_MS, SPAN_MS_MAX, "").ok()
}

/// The same in microseconds.
#[must_use]
pub fn span_us(span: impl Into<Option<Duration>>) -> Option<u64> {
    let span = span.into()?;
    let below_ms = u64::from((span.nanos % NANOS_PER_MS).unsigned_abs() / 1_000);
    span_ms(span).map(|ms| ms * 1_000 + below_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused<T: std::fmt::Debug>(result: Result<T, Violation>) -> String {
        let violation = result.expect_err("it is refused");
        assert_eq!(violation.field, "spec.deadline");
        violation.description
    }

    proptest! {
        #[test]
        fn milliseconds_are_exact(moment in 0..=MOMENT_MS_MAX, span in 0..=SPAN_MS_MAX) {
            prop_assert_eq!(timestamp_from_proto("f", timestamp(moment)), Ok(moment));
            prop_assert_eq!(duration_from_proto("f", duration(span)), Ok(span));
            prop_assert_eq!(unix_ms(timestamp(moment)), Some(moment));
            prop_assert_eq!(span_ms(duration(span)), Some(span));
            prop_assert_eq!(span_us(duration_us(span)), Some(span));
        }

        #[test]
        fn whatever_is_sent_is_exact_or_refused_with_its_field(seconds in any::<i64>(), nanos in any::<i32>()) {
            let field = "spec.deadline";
            match timestamp_from_proto(field, Timestamp { seconds, nanos }) {
                Ok(ms) => prop_assert_eq!(timestamp(ms), Timestamp { seconds, nanos }),
                Err(violation) => prop_assert_eq!(violation.field, field),
            }
            match duration_from_proto(field, Duration { seconds, nanos }) {
                Ok(ms) => prop_assert_eq!(duration(ms), Duration { seconds, nanos }),
                Err(violation) => prop_assert_eq!(violation.field, field),
            }
            // Who reads an answer never panics over it.
            let _ = (unix_ms(Timestamp { seconds, nanos }), span_us(Duration { seconds, nanos }));
        }

        #[test]
        fn what_lies_between_two_milliseconds_is_refused(seconds in 0..253_402_207_200i64, nanos in 0..1_000_000_000i32) {
            prop_assume!(nanos % NANOS_PER_MS != 0);
            let text = refused(timestamp_from_proto("spec.deadline", Timestamp { seconds, nanos }));
            prop_assert!(text.contains("whole number of milliseconds"), "{}", text);
            let text = refused(duration_from_proto("spec.deadline", Duration { seconds, nanos }));
            prop_assert!(text.contains("whole number of milliseconds"), "{}", text);
            prop_assert_eq!(span_ms(Duration { seconds, nanos }).map(|ms| ms / 1_000), u64::try_from(seconds).ok());
        }
    }

    #[test]
    fn the_edges_of_the_range() {
        assert_eq!(timestamp_from_proto("f", Timestamp::default()), Ok(0));
        assert_eq!(timestamp(u64::MAX), timestamp(MOMENT_MS_MAX));
        assert_eq!(duration(u64::MAX), duration(SPAN_MS_MAX));
        assert_eq!(log_time(LogTime(0)), None);
        let field = "spec.deadline";
        for (seconds, nanos) in
            [(-1, 0), (0, -1_000_000), (0, 1_000_000_000), (253_402_207_201, 0), (i64::MAX, 0)]
        {
            let text = refused(timestamp_from_proto(field, Timestamp { seconds, nanos }));
            assert!(text.contains("from 1970-01-01T00:00:00Z"), "{text}");
        }
        for (seconds, nanos) in [(-1, 0), (0, -1_000_000), (315_576_000_000, 1_000_000), (i64::MIN, i32::MIN)]
        {
            let text = refused(duration_from_proto(field, Duration { seconds, nanos }));
            assert!(text.contains("from 0s"), "{text}");
        }
    }
}
