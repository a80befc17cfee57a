//! Which state a read is answered from.

use muster_types::read::MAX_STALENESS_MS_MAX;
use muster_types::{Consistency, LogIndex, LogTime, PastPoint, ReadFrom, Violation};

use super::below;
use crate::time::{duration_from_proto, timestamp_from_proto};
use crate::v1;
use v1::past_state::Moment;
use v1::read_options::State;

/// A read whose options say nothing of the state, of a list.
pub const UNSAID_OF_LISTS: Consistency = Consistency::Bounded { max_staleness_ms: 10_000 };

/// What a read asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAsked {
    /// Which state. One of the present is complete up to `min_log_index` at least.
    pub from: ReadFrom,
    /// What the replica has to have applied before it answers, of whatever state.
    pub min_log_index: LogIndex,
}

/// The options of a read; none is the empty message. `at` is the path of the message itself, `unsaid` what a read of
/// this kind is without a state.
///
/// # Errors
/// Names the field that is out of bounds.
pub fn read_from_proto(
    at: &str,
    message: Option<&v1::ReadOptions>,
    unsaid: Consistency,
) -> Result<ReadAsked, Vec<Violation>> {
    let min_log_index = LogIndex(message.map_or(0, |message| message.min_log_index));
    let present = |consistency| ReadFrom::Present { consistency, min_log_index };
    let from = match message.and_then(|message| message.state) {
        None => present(unsaid),
        Some(State::Any(v1::AnyState {})) => present(Consistency::Any),
        Some(State::Linearizable(v1::LinearizableState {})) => present(Consistency::Linearizable),
        Some(State::Bounded(v1::BoundedState { max_staleness })) => {
            let field = below(at, "bounded.max_staleness");
            let read = duration_from_proto(&field, max_staleness.unwrap_or_default());
            let max_staleness_ms = read.map_err(|violation| vec![violation])?;
            if !(1..=MAX_STALENESS_MS_MAX).contains(&max_staleness_ms) {
                return Err(vec![Violation::span(&field, max_staleness_ms, 1, MAX_STALENESS_MS_MAX)]);
            }
            present(Consistency::Bounded { max_staleness_ms })
        }
        Some(State::Past(past)) => ReadFrom::Past(moment(&below(at, "past"), past)?),
    };
    Ok(ReadAsked { from, min_log_index })
}

fn moment(at: &str, past: v1::PastState) -> Result<PastPoint, Vec<Violation>> {
    let refused = |field, rule| Err(vec![Violation::new(below(at, field), rule)]);
    match past.moment {
        Some(Moment::LogIndex(0)) => refused("log_index", "must be above 0"),
        Some(Moment::LogIndex(index)) => Ok(PastPoint::Index(LogIndex(index))),
        Some(Moment::Time(time)) => match timestamp_from_proto(&below(at, "time"), time) {
            Ok(0) => refused("time", "must be after the Unix epoch"),
            Ok(ms) => Ok(PastPoint::Time(LogTime(ms))),
            Err(violation) => Err(vec![violation]),
        },
        None => Err(vec![Violation::new(at, "must have log_index or time")]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{Duration, Timestamp, duration, timestamp};

    fn read(state: Option<State>, min_log_index: u64) -> Result<ReadAsked, Vec<String>> {
        let message = v1::ReadOptions { state, min_log_index, generation: 0 };
        let read = read_from_proto("read", Some(&message), UNSAID_OF_LISTS);
        read.map_err(|found| found.into_iter().map(|violation| violation.field).collect())
    }

    fn bounded(max_staleness_ms: u64) -> Option<State> {
        Some(State::Bounded(v1::BoundedState { max_staleness: Some(duration(max_staleness_ms)) }))
    }

    fn past(moment: Option<Moment>) -> Option<State> {
        Some(State::Past(v1::PastState { moment }))
    }

    #[test]
    fn what_is_asked_for_is_what_is_read() {
        let present = |consistency, index| {
            let min_log_index = LogIndex(index);
            Ok(ReadAsked { from: ReadFrom::Present { consistency, min_log_index }, min_log_index })
        };
        let then = |at, index| Ok(ReadAsked { from: ReadFrom::Past(at), min_log_index: LogIndex(index) });
        let (any, linearizable) =
            (State::Any(v1::AnyState {}), State::Linearizable(v1::LinearizableState {}));
        assert_eq!(read(Some(any), 7), present(Consistency::Any, 7));
        assert_eq!(read(bounded(250), 7), present(Consistency::Bounded { max_staleness_ms: 250 }, 7));
        assert_eq!(read(Some(linearizable), 0), present(Consistency::Linearizable, 0));
        assert_eq!(read(past(Some(Moment::LogIndex(9))), 0), then(PastPoint::Index(LogIndex(9)), 0));
        assert_eq!(read(past(Some(Moment::Time(timestamp(9)))), 3), then(PastPoint::Time(LogTime(9)), 3));
    }

    #[test]
    fn what_is_not_said_is_what_the_call_takes_it_for() {
        let unsaid = |consistency| {
            let nothing = read_from_proto("read", None, consistency).expect("it may be left out");
            let empty = read_from_proto("read", Some(&v1::ReadOptions::default()), consistency);
            assert_eq!(empty, Ok(nothing));
            nothing.from
        };
        for consistency in [Consistency::Any, Consistency::Linearizable, UNSAID_OF_LISTS] {
            let present = ReadFrom::Present { consistency, min_log_index: LogIndex::ZERO };
            assert_eq!(unsaid(consistency), present);
        }
    }

    #[test]
    fn what_is_out_of_bounds_names_its_field() {
        let refused = |state, field: &str| assert_eq!(read(state, 0), Err(vec![field.to_owned()]));
        refused(bounded(0), "read.bounded.max_staleness");
        refused(bounded(MAX_STALENESS_MS_MAX + 1), "read.bounded.max_staleness");
        refused(past(None), "read.past");
        refused(past(Some(Moment::LogIndex(0))), "read.past.log_index");
        refused(past(Some(Moment::Time(timestamp(0)))), "read.past.time");
        refused(past(Some(Moment::Time(Timestamp { seconds: -1, nanos: 0 }))), "read.past.time");
        let half_a_ms = Duration { seconds: 1, nanos: 500_000 };
        let state = v1::BoundedState { max_staleness: Some(half_a_ms) };
        refused(Some(State::Bounded(state)), "read.bounded.max_staleness");
    }
}
