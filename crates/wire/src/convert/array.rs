//! Arrays.

use muster_types::{ArraySpec, IndexRange, Violation, array::indices};

use super::{Found, below};
use crate::v1;

/// Which members an array has. What is wrong is named by the fields of the message; `at` is its path.
pub(super) fn array(at: &str, message: v1::JobArray, found: &mut Found) -> Option<ArraySpec> {
    let v1::JobArray { size, indices: text, throttle } = message;
    let ranges = match (size, text.as_str()) {
        (0, "") => {
            found.push(Violation::new(below(at, "size"), "must be above 0, or indices must be given"));
            return None;
        }
        (_, "") => ArraySpec::of_size(size).ranges,
        (0, text) => match indices(text) {
            Ok(ranges) => ranges,
            Err(wrong) => {
                found.push(Violation::new(below(at, "indices"), wrong));
                return None;
            }
        },
        _ => {
            found.push(Violation::new(at, "must have a size or indices, and not both"));
            return None;
        }
    };
    let array = ArraySpec { ranges, throttle };
    let violations = array.violations();
    let is_valid = violations.is_empty();
    let parent = at.strip_suffix("array").unwrap_or(at).trim_end_matches('.');
    found.extend(violations.into_iter().map(|violation| violation.under(parent)).collect());
    is_valid.then_some(array)
}

/// The message that says the same.
#[must_use]
pub fn array_to_proto(array: &ArraySpec) -> v1::JobArray {
    let throttle = array.throttle;
    match array.ranges.as_slice() {
        [IndexRange { .. }] if array.is_counted() => {
            v1::JobArray { size: array.size(), indices: String::new(), throttle }
        }
        _ => v1::JobArray { size: 0, indices: array.indices_text(), throttle },
    }
}
