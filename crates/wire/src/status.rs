//! Refusals as gRPC statuses, and back.
//!
//! Every refusal leaves as a status with `google.rpc` details: always an `ErrorInfo` (reason = the
//! stable name, domain = [`ERROR_DOMAIN`], metadata with the stable number), a `BadRequest` for fields,
//! a `RetryInfo` where repeating helps. Programs decide by these, never by the sentence.
//!
//! **Invariant:** the details always fit into the 16 KiB of headers that HTTP/2 peers accept; what does
//! not fit is left out and counted, never the status as a whole.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use muster_types::{Refusal, RefusalCode, Violation};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt as _};

use crate::convert::cut;

/// `ErrorInfo.domain` of every refusal.
pub const ERROR_DOMAIN: &str = "muster.dev";

/// Metadata: the stable number, `MS-nnnn`.
pub const METADATA_CODE: &str = "code";
/// Metadata: where the leader takes calls, when known.
pub const METADATA_LEADER_ENDPOINT: &str = "leader_endpoint";
/// Metadata: when to repeat the request, in milliseconds, in place of the code's usual.
pub const METADATA_RETRY_AFTER_MS: &str = "retry_after_ms";
/// Metadata: where a watch that was cut goes on.
pub const METADATA_RESUME_TOKEN: &str = "resume_token";
/// Metadata: how many violations did not fit.
pub const METADATA_VIOLATIONS_OMITTED: &str = "violations_omitted";

/// The sentence appears twice, once percent-encoded (three bytes for one): 1,024 bytes become 4 KiB.
const MESSAGE_BYTES_MAX: usize = 1_024;
/// Violations are base64-encoded (four bytes for three): 4 KiB become 5.3 KiB.
const VIOLATIONS_BYTES_MAX: usize = 4_096;
/// Metadata likewise.
const METADATA_BYTES_MAX: usize = 2_048;
/// One violation or one metadata value, at most.
const VALUE_BYTES_MAX: usize = 512;
/// An entry's tags and lengths, generously.
const ENTRY_OVERHEAD_BYTES: usize = 16;

const HEADER_BYTES_MAX: usize = 16 * 1_024;
const _: () = {
    let details = MESSAGE_BYTES_MAX + VIOLATIONS_BYTES_MAX + METADATA_BYTES_MAX + 512;
    assert!(MESSAGE_BYTES_MAX * 3 + details * 4 / 3 + 512 < HEADER_BYTES_MAX);
};

/// The gRPC code of a refusal: what generic clients and proxies act on.
#[must_use]
pub fn grpc_code(code: RefusalCode) -> Code {
    match code {
        RefusalCode::InvalidField | RefusalCode::PageTokenInvalid | RefusalCode::RequestIdReused => Code::InvalidArgument,
        RefusalCode::NeverFits
        | RefusalCode::DeadlineUnmeetable
        | RefusalCode::DependencyNotFound
        | RefusalCode::JobFinished
        | RefusalCode::NodeHeldByAnother
        | RefusalCode::NodeChanged
        | RefusalCode::NodeNotAdmitted
        | RefusalCode::NodeInUse
        | RefusalCode::RepairUnderWay
        | RefusalCode::RepairNotBegun
        | RefusalCode::MaintenanceDue
        | RefusalCode::FormatNotActive
        | RefusalCode::WouldLoseQuorum
        | RefusalCode::ReplicaNotCaughtUp
        | RefusalCode::MembershipRefused
        | RefusalCode::FormatNotReady
        | RefusalCode::ProbeUnavailable
        | RefusalCode::DrillRunning
        | RefusalCode::DrillOver
        // Nothing but its operators will make this replica answer.
        | RefusalCode::ArchiveUnavailable => Code::FailedPrecondition,
        // Repeating it once the change that runs is over, or with what is in force now, is right.
        RefusalCode::MembershipBusy | RefusalCode::PolicyChanged => Code::Aborted,
        RefusalCode::Internal => Code::Internal,
        RefusalCode::JobNotFound | RefusalCode::NodeNotFound | RefusalCode::ReplicaUnknown => Code::NotFound,
        RefusalCode::FleetFull
        | RefusalCode::Overloaded
        | RefusalCode::StateFull
        | RefusalCode::StorageFull
        | RefusalCode::TenantLimit
        | RefusalCode::MessageTooLarge => Code::ResourceExhausted,
        RefusalCode::PermissionDenied | RefusalCode::RightMissing => Code::PermissionDenied,
        // The holder must begin anew (register, fetch the current token), not repeat.
        RefusalCode::Fenced => Code::Aborted,
        // Repeating the same bytes, request id included, is right at once: what UNAVAILABLE says.
        RefusalCode::NotLeader
        | RefusalCode::OutcomeUnknown
        | RefusalCode::LogsUnavailable
        | RefusalCode::ClusterRecovering
        | RefusalCode::Diverged
        | RefusalCode::TrafficRefused
        // Another replica may answer at once, and this one as soon as it hears of the leader.
        | RefusalCode::TooStale
        | RefusalCode::LogIndexNotReached
        | RefusalCode::ReplicaStopping
        | RefusalCode::ClusterNotReady
        | RefusalCode::ReadUnconfirmed => Code::Unavailable,
        // Unlike INVALID_ARGUMENT this may pass when the state moves on, or on another replica.
        RefusalCode::ResumeTokenCompacted => Code::OutOfRange,
    }
}

/// When to repeat the request; none where repeating it unchanged does not help.
#[must_use]
pub fn retry_after(code: RefusalCode) -> Option<Duration> {
    match code {
        // Housekeeping makes room within seconds, where it can.
        RefusalCode::StateFull => Some(Duration::from_millis(5_000)),
        RefusalCode::NotLeader
        | RefusalCode::LogIndexNotReached
        | RefusalCode::ReplicaStopping
        | RefusalCode::ClusterNotReady
        | RefusalCode::ReadUnconfirmed => Some(Duration::from_millis(200)),
        RefusalCode::Overloaded | RefusalCode::ClusterRecovering => Some(Duration::from_millis(500)),
        RefusalCode::StorageFull | RefusalCode::MembershipBusy => Some(Duration::from_millis(1_000)),
        RefusalCode::ReplicaNotCaughtUp => Some(Duration::from_millis(250)),
        RefusalCode::OutcomeUnknown | RefusalCode::TooStale => Some(Duration::from_millis(100)),
        RefusalCode::InvalidField
        | RefusalCode::NeverFits
        | RefusalCode::DeadlineUnmeetable
        | RefusalCode::DependencyNotFound
        | RefusalCode::RequestIdReused
        | RefusalCode::PolicyChanged
        | RefusalCode::Internal
        | RefusalCode::JobNotFound
        | RefusalCode::RightMissing
        | RefusalCode::TenantLimit
        | RefusalCode::JobFinished
        | RefusalCode::NodeNotFound
        | RefusalCode::NodeHeldByAnother
        | RefusalCode::NodeChanged
        | RefusalCode::NodeNotAdmitted
        | RefusalCode::NodeInUse
        | RefusalCode::RepairUnderWay
        | RefusalCode::RepairNotBegun
        | RefusalCode::MaintenanceDue
        | RefusalCode::FormatNotActive
        | RefusalCode::FleetFull
        | RefusalCode::Fenced
        | RefusalCode::ResumeTokenCompacted
        | RefusalCode::PageTokenInvalid
        | RefusalCode::Diverged
        | RefusalCode::WouldLoseQuorum
        | RefusalCode::ReplicaUnknown
        | RefusalCode::MembershipRefused
        | RefusalCode::FormatNotReady
        | RefusalCode::ArchiveUnavailable
        | RefusalCode::LogsUnavailable
        | RefusalCode::ProbeUnavailable
        | RefusalCode::DrillRunning
        | RefusalCode::DrillOver
        // Another replica takes it at once.
        | RefusalCode::TrafficRefused
        | RefusalCode::PermissionDenied
        | RefusalCode::MessageTooLarge => None,
    }
}

/// The status that carries a refusal.
#[must_use]
pub fn to_status(refusal: &Refusal) -> Status {
    let (violations, omitted) = fitting_violations(&refusal.violations);
    let mut details = ErrorDetails::new();
    details.set_error_info(refusal.code.name(), ERROR_DOMAIN, metadata(refusal, omitted));
    if !violations.is_empty() {
        details.set_bad_request(violations);
    }
    let hinted = refusal
        .metadata
        .iter()
        .find(|(name, _)| *name == METADATA_RETRY_AFTER_MS)
        .and_then(|(_, value)| value.parse().ok())
        .map(Duration::from_millis);
    if let Some(delay) = hinted.or_else(|| retry_after(refusal.code)) {
        details.set_retry_info(Some(delay));
    }
    let message = cut(&refusal.message, MESSAGE_BYTES_MAX);
    Status::with_error_details(grpc_code(refusal.code), message, details)
}

fn metadata(refusal: &Refusal, violations_omitted: usize) -> HashMap<String, String> {
    let mut kept = HashMap::from([(METADATA_CODE.to_owned(), refusal.code.number().to_owned())]);
    if violations_omitted > 0 {
        kept.insert(METADATA_VIOLATIONS_OMITTED.to_owned(), violations_omitted.to_string());
    }
    let mut room = METADATA_BYTES_MAX;
    for (name, value) in &refusal.metadata {
        let value = cut(value, VALUE_BYTES_MAX);
        let size = name.len() + value.len() + ENTRY_OVERHEAD_BYTES;
        if size <= room {
            room -= size;
            kept.insert((*name).to_owned(), value.to_owned());
        }
    }
    kept
}

/// The first violations that fit, and how many did not.
fn fitting_violations(violations: &[Violation]) -> (Vec<FieldViolation>, usize) {
    let mut room = VIOLATIONS_BYTES_MAX;
    let mut kept = Vec::new();
    for violation in violations {
        let field = cut(&violation.field, VALUE_BYTES_MAX);
        let description = cut(&violation.description, VALUE_BYTES_MAX);
        let size = field.len() + description.len() + ENTRY_OVERHEAD_BYTES;
        if size > room {
            break;
        }
        room -= size;
        kept.push(FieldViolation::new(field, description));
    }
    let omitted = violations.len() - kept.len();
    (kept, omitted)
}

/// A refusal as a client sees it. Also what becomes of a status without details (a proxy, a
/// connection that broke): then `code` is none and `grpc` says what there is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The gRPC code.
    pub grpc: Code,
    /// The stable code, when this version knows it.
    pub code: Option<RefusalCode>,
    /// The stable name as it was sent; empty when the status came from no Muster server.
    pub reason: String,
    /// One sentence for people.
    pub message: String,
    /// The fields concerned, by their paths in the request.
    pub violations: Vec<Violation>,
    /// Facts for programs, by name.
    pub metadata: BTreeMap<String, String>,
    /// When to repeat the request, if that helps.
    pub retry_after: Option<Duration>,
}

impl Refused {
    /// Reads a status.
    #[must_use]
    pub fn from_status(status: &Status) -> Refused {
        let details = status.get_error_details();
        let info = details.error_info().filter(|info| info.domain == ERROR_DOMAIN);
        let reason = info.map(|info| info.reason.clone()).unwrap_or_default();
        let violation = |v: &FieldViolation| Violation::new(v.field.clone(), v.description.clone());
        Refused {
            grpc: status.code(),
            code: RefusalCode::ALL.iter().copied().find(|code| code.name() == reason),
            message: status.message().to_owned(),
            violations: details
                .bad_request()
                .map(|bad| bad.field_violations.iter().map(violation).collect())
                .unwrap_or_default(),
            metadata: info.map(|info| info.metadata.clone().into_iter().collect()).unwrap_or_default(),
            retry_after: details.retry_info().and_then(|info| info.retry_delay),
            reason,
        }
    }

    /// The stable number, `MS-nnnn`: as sent, so that it is known even for codes this version is not
    /// aware of.
    #[must_use]
    pub fn number(&self) -> Option<&str> {
        self.metadata.get(METADATA_CODE).map(String::as_str)
    }

    /// Where the leader takes calls, when the server knew.
    #[must_use]
    pub fn leader_endpoint(&self) -> Option<&str> {
        self.metadata.get(METADATA_LEADER_ENDPOINT).map(String::as_str).filter(|text| !text.is_empty())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number() {
            Some(number) => write!(f, "{number} {}: {}", self.reason, self.message),
            None => write!(f, "{:?}: {}", self.grpc, self.message),
        }
    }
}

impl std::error::Error for Refused {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_code_goes_there_and_back() {
        for code in RefusalCode::ALL {
            let refusal = Refusal::new(*code, "why").with("limit", 7);
            let refused = Refused::from_status(&to_status(&refusal));
            assert_eq!(refused.code, Some(*code));
            assert_eq!(refused.reason, code.name());
            assert_eq!(refused.number(), Some(code.number()));
            assert_eq!(refused.grpc, grpc_code(*code));
            assert_ne!(refused.grpc, Code::Ok);
            assert_eq!(refused.retry_after, retry_after(*code));
            assert_eq!(refused.metadata["limit"], "7");
            assert_eq!(refused.message, "why");
        }
    }

    #[test]
    fn violations_and_hints_arrive() {
        let violations = vec![Violation::new("spec.name", "must be given"), Violation::limit("b", 3, 1, 2)];
        let refused = Refused::from_status(&to_status(&Refusal::fields(violations.clone())));
        assert_eq!(refused.violations, violations);
        let refusal = Refusal::new(RefusalCode::NotLeader, "elsewhere")
            .with(METADATA_LEADER_ENDPOINT, "http://a:1")
            .with(METADATA_RETRY_AFTER_MS, 40);
        let refused = Refused::from_status(&to_status(&refusal));
        assert_eq!(refused.leader_endpoint(), Some("http://a:1"));
        assert_eq!(refused.retry_after, Some(Duration::from_millis(40)));
    }

    #[test]
    fn a_foreign_status_keeps_its_words() {
        let refused = Refused::from_status(&Status::unavailable("no route"));
        assert_eq!((refused.code, refused.reason.as_str()), (None, ""));
        assert_eq!(refused.to_string(), "Unavailable: no route");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn any_refusal_fits_into_headers(
            message in "\\PC{0,2000}",
            fields in proptest::collection::vec(("\\PC{0,300}", "\\PC{0,300}"), 0..300),
            facts in proptest::collection::vec("\\PC{0,900}", 0..30),
        ) {
            let mut refusal = Refusal::new(RefusalCode::InvalidField, message);
            refusal.violations = fields.into_iter().map(|(f, d)| Violation::new(f, d)).collect();
            for fact in facts {
                refusal = refusal.with("fact", fact);
            }
            let status = to_status(&refusal);
            let mut headers = tonic::codegen::http::HeaderMap::new();
            status.add_header(&mut headers).unwrap();
            let size: usize = headers.iter().map(|(k, v)| k.as_str().len() + v.len() + 32).sum();
            prop_assert!(size < HEADER_BYTES_MAX, "{size}");
            let refused = Refused::from_status(&status);
            let omitted: usize = refused
                .metadata
                .get(METADATA_VIOLATIONS_OMITTED)
                .map_or(0, |n| n.parse().unwrap());
            prop_assert_eq!(refused.violations.len() + omitted, refusal.violations.len());
        }

    }

    proptest! {
        #[test]
        fn no_details_panic(code in -1i32..30, message: String, details: Vec<u8>) {
            let status = Status::with_details(Code::from_i32(code), message, details.into());
            let _ = Refused::from_status(&status).to_string();
        }
    }
}
