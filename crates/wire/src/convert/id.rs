//! Ids, from and to text. Absence is a separate violation: "must be given" helps more than the
//! grammar of an id.

use std::fmt::Display;
use std::str::FromStr;

use muster_types::{ArrayId, HolderId, JobId, NodeId, ParseIdError, RequestId, Violation};

use super::shown;

fn parse<T>(field: &str, text: &str) -> Result<T, Violation>
where
    T: FromStr<Err = ParseIdError>,
{
    if text.is_empty() {
        return Err(Violation::new(field, "must be given"));
    }
    text.parse().map_err(|e: ParseIdError| malformed(field, &e.expected, text))
}

fn malformed(field: &str, expected: &dyn Display, text: &str) -> Violation {
    Violation::new(field, format!("must be {expected}, got {}", shown(text)))
}

/// The request id of a mutation; required.
///
/// # Errors
/// When it is absent or no UUID.
pub fn request_id(field: &str, text: &str) -> Result<RequestId, Violation> {
    // Hyphens are dropped by the parser, so the length has to be bounded before.
    if text.len() > 64 {
        return Err(malformed(field, &"a UUID: 32 hexadecimal digits, with or without hyphens", text));
    }
    parse(field, text)
}

/// The request id of a mutation that may be checked without being made: a check has no effect that would have to be remembered, so
/// it needs none.
///
/// # Errors
/// As [`request_id`]; of a check, only when it is no UUID.
pub fn request_id_of(field: &str, text: &str, validate_only: bool) -> Result<RequestId, Violation> {
    if validate_only && text.is_empty() { Ok(RequestId(0)) } else { request_id(field, text) }
}

/// A job's id.
///
/// # Errors
/// When it is absent or malformed.
pub fn job_id(field: &str, text: &str) -> Result<JobId, Violation> {
    parse(field, text)
}

/// An array's id.
///
/// # Errors
/// When it is absent or malformed.
pub fn array_id(field: &str, text: &str) -> Result<ArrayId, Violation> {
    parse(field, text)
}

/// A node's id.
///
/// # Errors
/// When it is absent or malformed.
pub fn node_id(field: &str, text: &str) -> Result<NodeId, Violation> {
    parse(field, text)
}

/// The agent instance behind a session.
///
/// # Errors
/// When it is not 32 hexadecimal digits.
pub fn holder_id_from_text(field: &str, text: &str) -> Result<HolderId, Violation> {
    let form = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let value = if form { u128::from_str_radix(text, 16).ok() } else { None };
    value.map(HolderId).ok_or_else(|| malformed(field, &"32 hexadecimal digits", text))
}

/// As the agent sends it.
#[must_use]
pub fn holder_id_to_text(holder: HolderId) -> String {
    format!("{:032x}", holder.0)
}
