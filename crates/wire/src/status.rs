//! Refusals as gRPC statuses, and back.
//!
//! Every refusal leaves as a status with `google.rpc` details: always an `ErrorInfo` (reason = the
//! stable name, domain = [`ERROR_DOMAIN`], metadata with the stable number and the facts of its code), a
//! `BadRequest` for fields, a `RetryInfo` where repeating helps. What standard tools know how to show comes from the
//! same facts: a `QuotaFailure` for a limit, a `ResourceInfo` for what was not found or is in the way, a
//! `PreconditionFailure` for what must change first. Programs decide by these, never by the sentence.
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
/// A name in the messages of `google.rpc` that repeat facts.
const NAME_BYTES_MAX: usize = 128;
/// The sentence in each of them.
const SENTENCE_BYTES_MAX: usize = 256;
/// What they take together.
const DESCRIPTIONS_BYTES_MAX: usize = 3 * SENTENCE_BYTES_MAX + 6 * NAME_BYTES_MAX;
/// An entry's tags and lengths, generously.
const ENTRY_OVERHEAD_BYTES: usize = 16;

const HEADER_BYTES_MAX: usize = 16 * 1_024;
const _: () = {
    let details =
        MESSAGE_BYTES_MAX + VIOLATIONS_BYTES_MAX + METADATA_BYTES_MAX + DESCRIPTIONS_BYTES_MAX + 512;
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
        | RefusalCode::FeatureUnknown
        | RefusalCode::JobAboveLimit
        | RefusalCode::JobFinished
        | RefusalCode::JobPhase
        | RefusalCode::JobHeld
        | RefusalCode::ScheduleBusy
        | RefusalCode::ExecUnavailable
        | RefusalCode::BookingDoesNotFit
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
        | RefusalCode::QuotaRequestAnswered
        | RefusalCode::QuotaNotAvailable
        // Nothing but its operators will make this replica answer.
        | RefusalCode::ArchiveUnavailable => Code::FailedPrecondition,
        // Repeating it once the change that runs is over, or with what is in force now, is right.
        RefusalCode::MembershipBusy | RefusalCode::PolicyChanged | RefusalCode::JobChanged => Code::Aborted,
        RefusalCode::Internal => Code::Internal,
        RefusalCode::JobNotFound
        | RefusalCode::ScheduleNotFound
        | RefusalCode::OutputNotFound
        | RefusalCode::NodeNotFound
        | RefusalCode::TokenNotFound
        | RefusalCode::QuotaRequestNotFound
        | RefusalCode::BookingNotFound
        | RefusalCode::ReplicaUnknown => Code::NotFound,
        RefusalCode::FleetFull
        | RefusalCode::Overloaded
        | RefusalCode::StateFull
        | RefusalCode::StorageFull
        | RefusalCode::TenantLimit
        | RefusalCode::MessageTooLarge => Code::ResourceExhausted,
        RefusalCode::PermissionDenied | RefusalCode::RightMissing => Code::PermissionDenied,
        RefusalCode::Unauthenticated => Code::Unauthenticated,
        RefusalCode::TokenExists | RefusalCode::BookingExists | RefusalCode::ScheduleExists => Code::AlreadyExists,
        // The holder must begin again (register, fetch the current token), not repeat.
        RefusalCode::Fenced => Code::Aborted,
        // Repeating the same bytes, request id included, is right at once: what UNAVAILABLE says.
        RefusalCode::NotLeader
        | RefusalCode::OutcomeUnknown
        | RefusalCode::WorkerNotStarted
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
        RefusalCode::RequestTimeout => Code::DeadlineExceeded,
        // Unlike INVALID_ARGUMENT this may pass when the state moves on, or on another replica.
        RefusalCode::ResumeTokenCompacted => Code::OutOfRange,
    }
}

/// When to repeat the request; none where repeating it unchanged does not help.
#[must_use]
pub fn retry_after(code: RefusalCode) -> Option<Duration> {
    match code {
        // Housekeeping frees space within seconds, where it can.
        RefusalCode::StateFull => Some(Duration::from_millis(5_000)),
        RefusalCode::NotLeader
        | RefusalCode::LogIndexNotReached
        | RefusalCode::ReplicaStopping
        | RefusalCode::ClusterNotReady
        | RefusalCode::ReadUnconfirmed => Some(Duration::from_millis(200)),
        RefusalCode::Overloaded | RefusalCode::ClusterRecovering => Some(Duration::from_millis(500)),
        RefusalCode::StorageFull
        | RefusalCode::MembershipBusy
        // They come with the next round of placement or the next session of the node.
        | RefusalCode::WorkerNotStarted
        | RefusalCode::LogsUnavailable => Some(Duration::from_millis(1_000)),
        RefusalCode::ReplicaNotCaughtUp => Some(Duration::from_millis(250)),
        RefusalCode::OutcomeUnknown | RefusalCode::TooStale => Some(Duration::from_millis(100)),
        RefusalCode::InvalidField
        | RefusalCode::NeverFits
        | RefusalCode::DeadlineUnmeetable
        | RefusalCode::DependencyNotFound
        | RefusalCode::FeatureUnknown
        | RefusalCode::RequestIdReused
        | RefusalCode::PolicyChanged
        | RefusalCode::Internal
        | RefusalCode::JobNotFound
        | RefusalCode::RightMissing
        | RefusalCode::TenantLimit
        | RefusalCode::JobAboveLimit
        | RefusalCode::JobFinished
        | RefusalCode::JobPhase
        | RefusalCode::JobChanged
        | RefusalCode::JobHeld
        | RefusalCode::ScheduleNotFound
        | RefusalCode::ScheduleExists
        | RefusalCode::ScheduleBusy
        | RefusalCode::ExecUnavailable
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
        | RefusalCode::OutputNotFound
        | RefusalCode::ProbeUnavailable
        | RefusalCode::DrillRunning
        | RefusalCode::DrillOver
        // Another replica takes it at once.
        | RefusalCode::TrafficRefused
        | RefusalCode::RequestTimeout
        | RefusalCode::PermissionDenied
        | RefusalCode::Unauthenticated
        | RefusalCode::TokenNotFound
        | RefusalCode::TokenExists
        | RefusalCode::QuotaRequestNotFound
        | RefusalCode::QuotaRequestAnswered
        | RefusalCode::QuotaNotAvailable
        | RefusalCode::BookingNotFound
        | RefusalCode::BookingExists
        | RefusalCode::BookingDoesNotFit
        | RefusalCode::MessageTooLarge => None,
    }
}

/// The status that carries a refusal.
#[must_use]
pub fn to_status(refusal: &Refusal) -> Status {
    with_code(grpc_code(refusal.code), refusal)
}

/// The status of a call that no service has: by its gRPC code, standard tools find out what a server serves.
#[must_use]
pub fn no_such_call(path: &str) -> Status {
    let refusal = Refusal::new(RefusalCode::FeatureUnknown, "there is no such call");
    with_code(Code::Unimplemented, &refusal.with("feature", path))
}

fn with_code(grpc: Code, refusal: &Refusal) -> Status {
    let (violations, omitted) = fitting_violations(&refusal.violations);
    let mut details = ErrorDetails::new();
    details.set_error_info(refusal.code.name(), ERROR_DOMAIN, metadata(refusal, omitted));
    if !violations.is_empty() {
        details.set_bad_request(violations);
    }
    let hinted = fact(refusal, METADATA_RETRY_AFTER_MS)
        .and_then(|value| value.parse().ok())
        .map(Duration::from_millis);
    if let Some(delay) = hinted.or_else(|| retry_after(refusal.code)) {
        details.set_retry_info(Some(delay));
    }
    let message = cut(&refusal.message, MESSAGE_BYTES_MAX);
    describe(refusal, &mut details);
    Status::with_error_details(grpc, message, details)
}

fn fact<'a>(refusal: &'a Refusal, name: &str) -> Option<&'a str> {
    refusal.metadata.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
}

/// Facts that name an object, and what kind of object that is.
const RESOURCES: [(&str, &str); 7] = [
    ("job_id", "muster.dev/Job"),
    ("node", "muster.dev/Node"),
    ("drill_id", "muster.dev/Drill"),
    ("schedule", "muster.dev/Schedule"),
    ("booking", "muster.dev/Booking"),
    ("token_id", "muster.dev/Token"),
    ("quota_request_id", "muster.dev/QuotaRequest"),
];

/// The facts again in the messages that `google.rpc` has for them.
fn describe(refusal: &Refusal, details: &mut ErrorDetails) {
    let text = cut(&refusal.message, SENTENCE_BYTES_MAX);
    let grpc = grpc_code(refusal.code);
    if let Some(limit) = fact(refusal, "limit").filter(|_| grpc == Code::ResourceExhausted) {
        // Where a limit is of one user, the tenant only says whose user that is.
        let owner = ["user", "tenant", "account", "principal", "node"]
            .into_iter()
            .find_map(|kind| fact(refusal, kind).map(|name| format!("{kind}:{}", cut(name, NAME_BYTES_MAX))));
        let subject = owner.unwrap_or_else(|| "cluster".to_owned());
        details.add_quota_failure_violation(subject, format!("{}: {text}", cut(limit, NAME_BYTES_MAX)));
    }
    let resource = RESOURCES
        .into_iter()
        .find_map(|(name, kind)| fact(refusal, name).map(|value| (kind, cut(value, NAME_BYTES_MAX))));
    let (kind, name) = resource.unwrap_or_default();
    let is_about_it =
        matches!(grpc, Code::NotFound | Code::AlreadyExists | Code::FailedPrecondition | Code::Unavailable);
    if !kind.is_empty() && is_about_it {
        details.set_resource_info(kind, name, "", text);
    }
    if grpc == Code::FailedPrecondition {
        details.add_precondition_failure_violation(refusal.code.name(), name, text);
    }
}

fn metadata(refusal: &Refusal, violations_omitted: usize) -> HashMap<String, String> {
    let mut kept = HashMap::from([(METADATA_CODE.to_owned(), refusal.code.number().to_owned())]);
    if violations_omitted > 0 {
        kept.insert(METADATA_VIOLATIONS_OMITTED.to_owned(), violations_omitted.to_string());
    }
    let mut left = METADATA_BYTES_MAX;
    for (name, value) in &refusal.metadata {
        let value = cut(value, VALUE_BYTES_MAX);
        let size = name.len() + value.len() + ENTRY_OVERHEAD_BYTES;
        if size <= left {
            left -= size;
            kept.insert((*name).to_owned(), value.to_owned());
        }
    }
    kept
}

/// The first violations that fit, and how many did not.
fn fitting_violations(violations: &[Violation]) -> (Vec<FieldViolation>, usize) {
    let mut left = VIOLATIONS_BYTES_MAX;
    let mut kept = Vec::new();
    for violation in violations {
        let field = cut(&violation.field, VALUE_BYTES_MAX);
        let description = cut(&violation.description, VALUE_BYTES_MAX);
        let size = field.len() + description.len() + ENTRY_OVERHEAD_BYTES;
        if size > left {
            break;
        }
        left -= size;
        kept.push(FieldViolation::new(field, description));
    }
    let omitted = violations.len() - kept.len();
    (kept, omitted)
}

/// A refusal as a client sees it. Also what becomes of a status without details (a proxy, a
/// connection that broke): then `code` is none and `grpc` says what there is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
            let facts = code.facts().iter().filter(|fact| **fact != METADATA_RETRY_AFTER_MS);
            let refusal = facts.fold(Refusal::new(*code, "why"), |refusal, fact| refusal.with(fact, 7));
            let refused = Refused::from_status(&to_status(&refusal));
            assert_eq!(refused.code, Some(*code));
            assert_eq!(refused.reason, code.name());
            assert_eq!(refused.number(), Some(code.number()));
            assert_eq!(refused.grpc, grpc_code(*code));
            assert_ne!(refused.grpc, Code::Ok);
            assert_eq!(refused.retry_after, retry_after(*code));
            assert!(refusal.metadata.iter().all(|(fact, _)| refused.metadata[*fact] == "7"), "{code}");
            assert_eq!(refused.message, "why");
        }
    }

    #[test]
    fn violations_and_hints_arrive() {
        let violations = vec![Violation::new("spec.name", "must be given"), Violation::limit("b", 3, 1, 2)];
        let refused = Refused::from_status(&to_status(&Refusal::fields(violations.clone())));
        assert_eq!(refused.violations, violations);
        let refusal =
            Refusal::new(RefusalCode::NotLeader, "elsewhere").with(METADATA_LEADER_ENDPOINT, "http://a:1");
        assert_eq!(Refused::from_status(&to_status(&refusal)).leader_endpoint(), Some("http://a:1"));
        let refusal = Refusal::new(RefusalCode::Overloaded, "later").with(METADATA_RETRY_AFTER_MS, 40);
        let refused = Refused::from_status(&to_status(&refusal));
        assert_eq!(refused.retry_after, Some(Duration::from_millis(40)));
    }

    #[test]
    fn a_call_that_there_is_not_has_a_reason_and_the_code_that_tools_look_for() {
        let status = no_such_call("/muster.v1beta1.JobService/Nothing");
        assert_eq!(status.code(), Code::Unimplemented);
        let refused = Refused::from_status(&status);
        assert_eq!(refused.code, Some(RefusalCode::FeatureUnknown));
        assert_eq!(refused.metadata["feature"], "/muster.v1beta1.JobService/Nothing");
    }

    #[test]
    fn a_foreign_status_keeps_its_words() {
        let refused = Refused::from_status(&Status::unavailable("no route"));
        assert_eq!((refused.code, refused.reason.as_str()), (None, ""));
        assert_eq!(refused.to_string(), "Unavailable: no route");
    }

    #[test]
    fn limits_and_things_are_said_as_tools_expect_them() {
        let refusal = Refusal::new(RefusalCode::TenantLimit, "too many jobs")
            .with("tenant", "vision")
            .with("limit", "jobsWaiting");
        let details = to_status(&refusal).get_error_details();
        let quota = &details.quota_failure().expect("a limit").violations[0];
        assert_eq!(
            (quota.subject.as_str(), quota.description.as_str()),
            ("tenant:vision", "jobsWaiting: too many jobs")
        );
        assert!(details.resource_info().is_none() && details.precondition_failure().is_none());

        let refusal = Refusal::new(RefusalCode::NodeInUse, "it is up").with("node", "h1");
        let details = to_status(&refusal).get_error_details();
        let resource = details.resource_info().expect("a node");
        assert_eq!(
            (resource.resource_type.as_str(), resource.resource_name.as_str()),
            ("muster.dev/Node", "h1")
        );
        let first = &details.precondition_failure().expect("it must stop first").violations[0];
        assert_eq!((first.r#type.as_str(), first.subject.as_str()), ("NODE_IN_USE", "h1"));

        for (code, fact, kind) in [
            (RefusalCode::ScheduleNotFound, "schedule", "muster.dev/Schedule"),
            (RefusalCode::BookingExists, "booking", "muster.dev/Booking"),
            (RefusalCode::TokenNotFound, "token_id", "muster.dev/Token"),
            (RefusalCode::QuotaRequestAnswered, "quota_request_id", "muster.dev/QuotaRequest"),
            (RefusalCode::ScheduleBusy, "job_id", "muster.dev/Job"),
        ] {
            assert!(code.facts().contains(&fact), "{code}: {fact}");
            let details = to_status(&Refusal::new(code, "no").with(fact, "it")).get_error_details();
            let resource = details.resource_info().expect("it is about an object");
            assert_eq!((resource.resource_type.as_str(), resource.resource_name.as_str()), (kind, "it"));
        }

        let refusal = Refusal::new(RefusalCode::TenantLimit, "too many jobs")
            .with("tenant", "vision")
            .with("user", "ada")
            .with("limit", "jobsWaiting");
        let details = to_status(&refusal).get_error_details();
        assert_eq!(details.quota_failure().expect("a limit").violations[0].subject, "user:ada");

        let refusal = Refusal::new(RefusalCode::StateFull, "full").with("limit", "jobs_held_max");
        let details = to_status(&refusal).get_error_details();
        assert_eq!(details.quota_failure().expect("a limit").violations[0].subject, "cluster");
    }

    /// What programs may rely on, in one table for people and for generators of clients.
    #[test]
    fn the_table_of_reasons_is_that_of_the_code() {
        let mut table = String::from(
            "# Reasons of refusals\n\nEvery refused call carries `google.rpc.ErrorInfo` with the reason, the domain `muster.dev` and, in its \
             metadata, the number as `code` and the facts listed here, where the refusal knows them. A client may rely on these and must \
             expect others. Any of them may carry `retry_after_ms`, which `RetryInfo` says as well, and one that ends a watch carries \
             `resume_token`, where the watch goes on. `retry` is the usual delay of `google.rpc.RetryInfo`; a reason without one is not worth repeating unchanged. \
             A `QuotaFailure`, `ResourceInfo` or `PreconditionFailure` repeats facts for standard tools. Each reason has a page in \
             [crates/types/src/reasons](../crates/types/src/reasons), which says what to do.\n\nMade by the tests of `muster-wire` with \
             `UPDATE_EXPECT=1`.\n\n| number | reason | gRPC code | retry | facts |\n|---|---|---|---|---|\n",
        );
        for code in RefusalCode::ALL {
            let retry = retry_after(*code)
                .map_or_else(|| "-".to_owned(), |delay| format!("{} ms", delay.as_millis()));
            let facts: Vec<String> = code.facts().iter().map(|fact| format!("`{fact}`")).collect();
            let facts = if facts.is_empty() { "-".to_owned() } else { facts.join(", ") };
            table += &format!(
                "| {} | {} | {:?} | {retry} | {facts} |\n",
                code.number(),
                code.name(),
                grpc_code(*code)
            );
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto/REASONS.md");
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(path, &table).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), table, "run the test with UPDATE_EXPECT=1");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn any_refusal_fits_into_headers(
            message in "\\PC{0,2000}",
            fields in proptest::collection::vec(("\\PC{0,300}", "\\PC{0,300}"), 0..300),
            code in proptest::sample::select(RefusalCode::ALL),
            facts in proptest::collection::vec("\\PC{0,900}", 0..30),
        ) {
            let mut refusal = Refusal::new(code, message);
            refusal.violations = fields.into_iter().map(|(f, d)| Violation::new(f, d)).collect();
            refusal.metadata = code.facts().iter().copied().cycle().zip(facts).collect();
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
