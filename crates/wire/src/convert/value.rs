//! Small values that several messages share.

use muster_types::{Accelerators, DeviceSet, ExitStatus, FencingToken, LogIndex, Violation, limits};

use super::below;
use crate::v1;

/// Accelerators of a host or a worker. `at` is the path of the message itself.
///
/// # Errors
/// Lists every field that breaks a rule.
pub fn accelerators_from_proto(at: &str, message: &v1::Accelerators) -> Result<Accelerators, Vec<Violation>> {
    let mut found = Vec::new();
    let kind = muster_types::fleet::checked_name(&below(at, "type"), &message.r#type)
        .map_err(|violation| found.push(violation))
        .ok();
    let max = limits::HOST_DEVICES_MAX;
    let count = u16::try_from(message.count).ok().filter(|count| (1..=max).contains(count));
    if count.is_none() {
        found.push(Violation::limit(&below(at, "count"), message.count.into(), 1, max.into()));
    }
    match (kind, count) {
        (Some(kind), Some(count)) => Ok(Accelerators { kind, count }),
        _ => Err(found),
    }
}

/// As a message.
#[must_use]
pub fn accelerators_to_proto(value: &Accelerators) -> v1::Accelerators {
    v1::Accelerators { r#type: value.kind.to_string(), count: value.count.into() }
}

/// A fencing token; required wherever a message has one.
///
/// # Errors
/// When it is absent.
pub fn fencing_token_from_proto(
    field: &str,
    message: Option<&v1::FencingToken>,
) -> Result<FencingToken, Violation> {
    let message = message.ok_or_else(|| Violation::new(field, "must be given"))?;
    Ok(FencingToken { generation: message.generation, log_index: LogIndex(message.log_index) })
}

/// As a message.
#[must_use]
pub fn fencing_token_to_proto(value: FencingToken) -> v1::FencingToken {
    v1::FencingToken { generation: value.generation, log_index: value.log_index.0 }
}

/// How a worker ended. A text that comes with it is cut to its bound rather than refused: the end
/// of a worker must never be lost over the length of an explanation.
///
/// # Errors
/// When it says nothing, or something only a newer version knows.
pub fn exit_status_from_proto(field: &str, message: &v1::ExitStatus) -> Result<ExitStatus, Violation> {
    use v1::exit_status::Kind;
    match &message.kind {
        Some(Kind::Code(code)) => Ok(ExitStatus::Code(*code)),
        Some(Kind::Signal(signal)) => Ok(ExitStatus::Signal(*signal)),
        Some(Kind::LeaseExpired(v1::LeaseExpired {})) => Ok(ExitStatus::LeaseExpired),
        Some(Kind::LaunchFailed(why)) => {
            Ok(ExitStatus::LaunchFailed(cut(why, limits::DETAIL_BYTES_MAX).to_owned()))
        }
        Some(Kind::Vanished(v1::Vanished {})) => Ok(ExitStatus::Vanished),
        Some(Kind::NotStarted(v1::NotStarted {})) => Ok(ExitStatus::NotStarted),
        Some(Kind::OutOfMemory(v1::OutOfMemory {})) => Ok(ExitStatus::OutOfMemory),
        Some(Kind::OutOfScratch(v1::OutOfScratch {})) => Ok(ExitStatus::OutOfScratch),
        Some(Kind::NodeFault(how)) => {
            Ok(ExitStatus::NodeFault(cut(how, limits::DETAIL_BYTES_MAX).to_owned()))
        }
        Some(Kind::BackendLost(how)) => {
            Ok(ExitStatus::BackendLost(cut(how, limits::DETAIL_BYTES_MAX).to_owned()))
        }
        Some(Kind::PreflightFailed(how)) => {
            Ok(ExitStatus::PreflightFailed(cut(how, limits::DETAIL_BYTES_MAX).to_owned()))
        }
        None => Err(Violation::new(field, "must say how the worker ended, in a way this version knows")),
    }
}

/// As a message.
#[must_use]
pub fn exit_status_to_proto(value: &ExitStatus) -> v1::ExitStatus {
    use v1::exit_status::Kind;
    let kind = match value {
        ExitStatus::Code(code) => Kind::Code(*code),
        ExitStatus::Signal(signal) => Kind::Signal(*signal),
        ExitStatus::LeaseExpired => Kind::LeaseExpired(v1::LeaseExpired {}),
        ExitStatus::LaunchFailed(why) => Kind::LaunchFailed(why.clone()),
        ExitStatus::Vanished => Kind::Vanished(v1::Vanished {}),
        ExitStatus::NotStarted => Kind::NotStarted(v1::NotStarted {}),
        ExitStatus::OutOfMemory => Kind::OutOfMemory(v1::OutOfMemory {}),
        ExitStatus::OutOfScratch => Kind::OutOfScratch(v1::OutOfScratch {}),
        ExitStatus::NodeFault(how) => Kind::NodeFault(how.clone()),
        ExitStatus::BackendLost(how) => Kind::BackendLost(how.clone()),
        ExitStatus::PreflightFailed(how) => Kind::PreflightFailed(how.clone()),
    };
    v1::ExitStatus { kind: Some(kind) }
}

/// Local device numbers as a set.
///
/// # Errors
/// When a number is out of bounds or named twice.
pub fn device_set_from_proto(field: &str, devices: &[u32]) -> Result<DeviceSet, Violation> {
    let max = limits::HOST_DEVICES_MAX;
    let mut bits = 0u64;
    for device in devices {
        if *device >= u32::from(max) {
            return Err(Violation::limit(field, (*device).into(), 0, u64::from(max) - 1));
        }
        let bit = 1u64 << device;
        if bits & bit != 0 {
            return Err(Violation::new(field, format!("must not name device {device} twice")));
        }
        bits |= bit;
    }
    Ok(DeviceSet(bits))
}

/// As a message: ascending.
#[must_use]
pub fn device_set_to_proto(value: DeviceSet) -> Vec<u32> {
    value.iter().map(u32::from).collect()
}

/// The longest start of `text` that fits, cut between characters.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    if text.len() <= bytes_max {
        return text;
    }
    let mut end = bytes_max;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
