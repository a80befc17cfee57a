//! Which state a read is answered from.

use muster_types::read::MAX_STALENESS_MS_MAX;
use muster_types::{At, Consistency, LogIndex, LogTime, ReadFrom, Violation};

use super::below;
use crate::v1;

/// The options of a read; none is the empty message. `at` is the path of the message itself.
///
/// # Errors
/// Names every field that contradicts another or is out of bounds.
pub fn read_from_proto(at: &str, message: Option<&v1::ReadOptions>) -> Result<ReadFrom, Vec<Violation>> {
    let Some(message) = message else { return Ok(ReadFrom::default()) };
    let mut found = Vec::new();
    let consistency = consistency(at, message).map_err(|violation| found.push(violation)).ok();
    let past = match (message.at_log_index, message.at_time_ms) {
        (0, 0) => None,
        (index, 0) => Some(At::Index(LogIndex(index))),
        (0, time) => Some(At::Time(LogTime(time))),
        (_, _) => {
            found.push(Violation::new(below(at, "at_time_ms"), "must not be given with at_log_index"));
            None
        }
    };
    if past.is_some() {
        let present = [
            ("consistency", message.consistency != i32::from(v1::Consistency::Unspecified)),
            ("max_staleness_ms", message.max_staleness_ms > 0),
            ("min_log_index", message.min_log_index > 0),
        ];
        for (field, _) in present.into_iter().filter(|(_, given)| *given) {
            let text = "must not be given with at_log_index or at_time_ms: the past does not get fresher";
            let violation = Violation::new(below(at, field), text);
            // A value that is wrong by itself has been named already.
            if found.iter().all(|other| other.field != violation.field) {
                found.push(violation);
            }
        }
    }
    match (consistency, past) {
        (Some(consistency), None) if found.is_empty() => {
            Ok(ReadFrom::Present { consistency, min_log_index: LogIndex(message.min_log_index) })
        }
        (Some(_), Some(past)) if found.is_empty() => Ok(ReadFrom::Past(past)),
        _ => Err(found),
    }
}

fn consistency(at: &str, message: &v1::ReadOptions) -> Result<Consistency, Violation> {
    let bound = message.max_staleness_ms;
    let unbounded = |consistency| match bound {
        0 => Ok(consistency),
        _ => {
            Err(Violation::new(below(at, "max_staleness_ms"), "must be given with consistency BOUNDED only"))
        }
    };
    match v1::Consistency::try_from(message.consistency) {
        Ok(v1::Consistency::Unspecified | v1::Consistency::Any) => unbounded(Consistency::Any),
        Ok(v1::Consistency::Linearizable) => unbounded(Consistency::Linearizable),
        Ok(v1::Consistency::Bounded) if (1..=MAX_STALENESS_MS_MAX).contains(&bound) => {
            Ok(Consistency::Bounded { max_staleness_ms: bound })
        }
        Ok(v1::Consistency::Bounded) => {
            Err(Violation::limit(&below(at, "max_staleness_ms"), bound, 1, MAX_STALENESS_MS_MAX))
        }
        Err(_) => Err(Violation::new(
            below(at, "consistency"),
            format!("must be ANY, BOUNDED or LINEARIZABLE, got {}", message.consistency),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use v1::Consistency as Asked;

    fn options(consistency: Asked, numbers: [u64; 4]) -> v1::ReadOptions {
        let [max_staleness_ms, min_log_index, at_log_index, at_time_ms] = numbers;
        let consistency = consistency.into();
        v1::ReadOptions { consistency, max_staleness_ms, min_log_index, at_log_index, at_time_ms }
    }

    fn read(consistency: Asked, numbers: [u64; 4]) -> Result<ReadFrom, Vec<String>> {
        let read = read_from_proto("read", Some(&options(consistency, numbers)));
        read.map_err(|found| found.into_iter().map(|violation| violation.field).collect())
    }

    #[test]
    fn what_is_asked_for_is_what_is_read() {
        let present =
            |consistency, index| Ok(ReadFrom::Present { consistency, min_log_index: LogIndex(index) });
        assert_eq!(read_from_proto("read", None).ok(), Some(ReadFrom::default()));
        assert_eq!(read(Asked::Unspecified, [0; 4]), Ok(ReadFrom::default()));
        assert_eq!(read(Asked::Any, [0, 7, 0, 0]), present(Consistency::Any, 7));
        let bounded = Consistency::Bounded { max_staleness_ms: 250 };
        assert_eq!(read(Asked::Bounded, [250, 7, 0, 0]), present(bounded, 7));
        assert_eq!(read(Asked::Linearizable, [0; 4]), present(Consistency::Linearizable, 0));
        assert_eq!(read(Asked::Unspecified, [0, 0, 9, 0]), Ok(ReadFrom::Past(At::Index(LogIndex(9)))));
        assert_eq!(read(Asked::Unspecified, [0, 0, 0, 9]), Ok(ReadFrom::Past(At::Time(LogTime(9)))));
    }

    #[test]
    fn contradictions_name_their_fields() {
        let refused = |consistency, numbers, fields: &[&str]| {
            let fields: Vec<String> = fields.iter().map(|field| format!("read.{field}")).collect();
            assert_eq!(read(consistency, numbers), Err(fields), "{consistency:?} {numbers:?}");
        };
        for unbounded in [Asked::Unspecified, Asked::Any, Asked::Linearizable] {
            refused(unbounded, [1, 0, 0, 0], &["max_staleness_ms"]);
        }
        refused(Asked::Bounded, [0; 4], &["max_staleness_ms"]);
        refused(Asked::Bounded, [MAX_STALENESS_MS_MAX + 1, 0, 0, 0], &["max_staleness_ms"]);
        refused(Asked::Unspecified, [0, 0, 1, 1], &["at_time_ms"]);
        for (at_log_index, at_time_ms) in [(1, 0), (0, 1)] {
            refused(Asked::Any, [0, 0, at_log_index, at_time_ms], &["consistency"]);
            refused(Asked::Linearizable, [0, 3, at_log_index, at_time_ms], &["consistency", "min_log_index"]);
            refused(Asked::Unspecified, [5, 0, at_log_index, at_time_ms], &["max_staleness_ms"]);
        }
        let unknown = v1::ReadOptions { consistency: 77, ..Default::default() };
        let found = read_from_proto("read", Some(&unknown)).expect_err("there is no such consistency");
        assert_eq!(found[0].field, "read.consistency");
    }
}
