//! Refusals as data: a stable code, the field or limit concerned, and a sentence.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use crate::quantity::ByteCount;
use crate::time::Span;

/// One rule that a value breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The field, as a path: `groups[1].workers`.
    pub field: String,
    /// What is wrong and what would be right, with the limit.
    pub description: String,
}

impl Violation {
    /// A rule broken by `field`.
    pub fn new(field: impl Into<String>, description: impl Into<String>) -> Violation {
        Violation { field: field.into(), description: description.into() }
    }

    /// A number outside its bounds.
    #[must_use]
    pub fn limit(field: &str, value: u64, min: u64, max: u64) -> Violation {
        Violation::new(field, format!("must be between {min} and {max}, got {value}"))
    }

    /// There are `count` of `what` in `field`, fewer or more than may be there.
    #[must_use]
    pub fn count(field: &str, count: usize, (min, max): (usize, usize), what: &str) -> Violation {
        Violation::new(field, format!("must be between {min} and {max} {what}, got {count}"))
    }

    /// A span of `field`, in milliseconds, lies outside `min..=max`.
    pub fn span(field: &str, ms: u64, min: u64, max: u64) -> Violation {
        let (ms, min, max) = (Span(ms), Span(min), Span(max));
        Violation::new(field, format!("must be between {min} and {max}, got {ms}"))
    }

    /// A size of `field`, in bytes, lies outside `min..=max`.
    pub fn size(field: &str, bytes: u64, min: u64, max: u64) -> Violation {
        let (bytes, min, max) = (ByteCount(bytes), ByteCount(min), ByteCount(max));
        Violation::new(field, format!("must be between {min} and {max}, got {bytes}"))
    }

    /// The same rule, seen from one level further out.
    #[must_use]
    pub fn under(self, parent: &str) -> Violation {
        Violation { field: format!("{parent}.{}", self.field), description: self.description }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.description)
    }
}

macro_rules! refusal_codes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $text:literal, [$($fact:literal),*];)*) => {
        /// Why a request was refused. The set is closed; numbers and names never change meaning.
        /// Each has a page in `crates/types/src/reasons/`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum RefusalCode {
            $($(#[$doc])* $variant,)*
        }

        impl RefusalCode {
            /// Every code.
            pub const ALL: &'static [RefusalCode] = &[$(RefusalCode::$variant,)*];

            /// The stable number, as `MS-nnnn`.
            #[must_use]
            pub fn number(self) -> &'static str {
                match self { $(RefusalCode::$variant => $number,)* }
            }

            /// The stable name, as in `google.rpc.ErrorInfo.reason`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(RefusalCode::$variant => $text,)* }
            }

            /// The facts that a refusal of any code may carry: when to repeat it, which `google.rpc.RetryInfo` says as well, and
            /// where a watch that it ends goes on.
            pub const COMMON_FACTS: [&'static str; 2] = ["retry_after_ms", "resume_token"];

            /// The facts that a refusal of this code may carry in addition to [`RefusalCode::COMMON_FACTS`], as keys of `google.rpc.ErrorInfo.metadata`: the
            /// code's page says what each means. A client may rely on a key's meaning and on no other key.
            #[must_use]
            pub fn facts(self) -> &'static [&'static str] {
                match self { $(RefusalCode::$variant => &[$($fact),*],)* }
            }
        }
    };
}

refusal_codes! {
    /// A field breaks a rule or a limit.
    InvalidField = "MS-1001", "INVALID_FIELD", [];
    /// No capacity that the fleet has ever had could hold this job.
    NeverFits = "MS-1002", "NEVER_FITS", ["job_index", "group", "wanted", "closest"];
    /// The request id was used before for a different request.
    RequestIdReused = "MS-1003", "REQUEST_ID_REUSED", ["log_index"];
    /// The policy has changed since the version that the request meant to replace.
    PolicyChanged = "MS-1004", "POLICY_CHANGED", ["version"];
    /// A deadline has passed already, or comes before the job can be over.
    DeadlineUnmeetable = "MS-1010", "DEADLINE_UNMEETABLE", ["job_index", "deadline_ms", "earliest_ms"];
    /// A job is to wait for one that is not there.
    DependencyNotFound = "MS-1011", "DEPENDENCY_NOT_FOUND", [];
    /// The request asks for something that this release does not do.
    FeatureUnknown = "MS-1012", "FEATURE_UNKNOWN", ["feature", "field"];
    /// No such job.
    JobNotFound = "MS-2001", "JOB_NOT_FOUND", ["job_id"];
    /// The job has already finished.
    JobFinished = "MS-2002", "JOB_FINISHED", ["job_id"];
    /// The job is not in a phase in which this can be done: something else came first.
    JobPhase = "MS-2006", "JOB_PHASE", ["job_id", "phase", "changed_at_index"];
    /// The job has changed since the request was made from it.
    JobChanged = "MS-2007", "JOB_CHANGED", ["job_id", "phase", "changed_at_index"];
    /// An operator holds the job.
    JobHeld = "MS-2008", "JOB_HELD", ["job_id", "held_by"];
    /// No such node.
    NodeNotFound = "MS-3001", "NODE_NOT_FOUND", ["node"];
    /// Another agent holds this node's name, and its session has not run out.
    NodeHeldByAnother = "MS-3002", "NODE_HELD_BY_ANOTHER", ["node"];
    /// The node tries to change where it is or what it has while work runs on it.
    NodeChanged = "MS-3003", "NODE_CHANGED", ["node"];
    /// The fleet has as many nodes as one cluster may have.
    FleetFull = "MS-3004", "FLEET_FULL", [];
    /// Nobody has admitted a node of this name that is where this one is and has what this one has.
    NodeNotAdmitted = "MS-3007", "NODE_NOT_ADMITTED", ["node"];
    /// The node cannot be forgotten: its session stands, or capacity on it is promised.
    NodeInUse = "MS-3006", "NODE_IN_USE", ["node"];
    /// The session, incarnation or fencing token is not the current one.
    Fenced = "MS-3005", "FENCED", [];
    /// This replica does not lead, and no leader is known.
    NotLeader = "MS-4001", "NOT_LEADER", ["leader_endpoint"];
    /// Too many requests wait; try again after the hint.
    Overloaded = "MS-4002", "OVERLOADED", ["account", "tenant", "user", "node", "principal", "limit", "limit_max", "last_log_index"];
    /// The leader changed while the request was on its way; its outcome is unknown until it is
    /// repeated under the same request id.
    OutcomeUnknown = "MS-4003", "OUTCOME_UNKNOWN", [];
    /// The resume token is older than what is kept.
    ResumeTokenCompacted = "MS-4004", "RESUME_TOKEN_COMPACTED", ["oldest_log_index", "offloaded_to"];
    /// This replica has not applied the log up to the index, token or time that the request names.
    LogIndexNotReached = "MS-4005", "LOG_INDEX_NOT_REACHED", ["applied_log_index", "newest_log_index"];
    /// This replica stops.
    ReplicaStopping = "MS-4012", "REPLICA_STOPPING", [];
    /// The cluster has had no leader yet, or this replica has just started.
    ClusterNotReady = "MS-4013", "CLUSTER_NOT_READY", [];
    /// A page token was not made by this cluster for this request.
    PageTokenInvalid = "MS-4006", "PAGE_TOKEN_INVALID", [];
    /// The cluster holds as many jobs or requests as it may.
    StateFull = "MS-4010", "STATE_FULL", ["limit", "held", "held_max", "tenant"];
    /// The replica stopped serving: its state differs from the log's digest.
    Diverged = "MS-5001", "DIVERGED", [];
    /// Carrying out the request failed on a broken invariant; it was undone.
    Internal = "MS-5002", "INTERNAL", ["fingerprint"];
    /// The record format in force cannot say this yet.
    FormatNotActive = "MS-6001", "FORMAT_NOT_ACTIVE", ["needed"];
    /// The cluster is being recovered: leases of its previous generation may still be held.
    ClusterRecovering = "MS-6002", "CLUSTER_RECOVERING", [];
    /// The replica cannot prove that its state is as current as the read asks for.
    TooStale = "MS-4007", "TOO_STALE", ["staleness_ms", "applied_log_index"];
    /// No leader confirmed in time that the state here holds everything that was committed.
    ReadUnconfirmed = "MS-4008", "READ_UNCONFIRMED", ["staleness_ms"];
    /// The state of the past that a read asks for is not at hand here.
    ArchiveUnavailable = "MS-4009", "ARCHIVE_UNAVAILABLE", [];
    /// After the change, the voters that answer would not be a quorum.
    WouldLoseQuorum = "MS-7001", "WOULD_LOSE_QUORUM", ["healthy", "needed", "silent"];
    /// No such replica among the members.
    ReplicaUnknown = "MS-7002", "REPLICA_UNKNOWN", [];
    /// The replica lacks too much of the log for what is asked of it.
    ReplicaNotCaughtUp = "MS-7003", "REPLICA_NOT_CAUGHT_UP", ["lag_entries"];
    /// Another change of the members is being made.
    MembershipBusy = "MS-7004", "MEMBERSHIP_BUSY", ["running"];
    /// The change of the members or of the leadership is not possible.
    MembershipRefused = "MS-7005", "MEMBERSHIP_REFUSED", [];
    /// Some replica does not read that record format, or has not reported that it does.
    FormatNotReady = "MS-7006", "FORMAT_NOT_READY", ["replicas"];
    /// The disk of the leader has no free space for new work.
    StorageFull = "MS-7007", "STORAGE_FULL", [];
    /// The worker has not started, so that it has no output yet.
    WorkerNotStarted = "MS-2004", "WORKER_NOT_STARTED", ["job_id", "rank"];
    /// The output of this worker is gone, or there never was any.
    OutputNotFound = "MS-2005", "OUTPUT_NOT_FOUND", ["job_id", "rank", "node"];
    /// The node that has the output of this worker does not answer.
    LogsUnavailable = "MS-2003", "LOGS_UNAVAILABLE", ["node"];
    /// The caller's certificate does not permit this call.
    PermissionDenied = "MS-8001", "PERMISSION_DENIED", ["principal", "tenant", "region"];
    /// The policy does not give the tenant a right that the job needs.
    RightMissing = "MS-8003", "RIGHT_MISSING", ["job_index", "tenant", "right"];
    /// The tenant has as many jobs as the policy lets it have.
    TenantLimit = "MS-8004", "TENANT_LIMIT", ["tenant", "user", "limit", "limit_max", "held"];
    /// The job asks for more than the policy lets one job of its tenant and tier ask for.
    JobAboveLimit = "MS-8005", "JOB_ABOVE_LIMIT", ["job_index", "tenant", "limit", "limit_max", "asked"];
    /// The message is larger than this service takes.
    MessageTooLarge = "MS-8002", "MESSAGE_TOO_LARGE", [];
    /// The node is being repaired.
    RepairUnderWay = "MS-9050", "REPAIR_UNDER_WAY", [];
    /// The node is not being repaired, and nothing is known against it.
    RepairNotBegun = "MS-9051", "REPAIR_NOT_BEGUN", [];
    /// The node is drained because its provider is about to take the host away.
    MaintenanceDue = "MS-9052", "MAINTENANCE_DUE", ["maintenance_at_ms"];
    /// A node cannot take part in a probe of the network at present.
    ProbeUnavailable = "MS-9250", "PROBE_UNAVAILABLE", [];
    /// The replica is silent on purpose, for a drill.
    TrafficRefused = "MS-4011", "TRAFFIC_REFUSED", ["refused_ms"];
    /// Another drill runs on the cluster.
    DrillRunning = "MS-7101", "DRILL_RUNNING", ["drill_id", "name", "started_by"];
    /// The drill does not run any more.
    DrillOver = "MS-7102", "DRILL_OVER", ["drill_id"];
    /// The call came with no certificate and no token, or with a token that is not accepted.
    Unauthenticated = "MS-8006", "UNAUTHENTICATED", ["reason"];
    /// No such token that the caller may revoke.
    TokenNotFound = "MS-8007", "TOKEN_NOT_FOUND", ["token_id"];
    /// Another token has this name or id.
    TokenExists = "MS-8008", "TOKEN_EXISTS", ["token_id"];
    /// A command could not be run next to a worker, or its end is not known; or a port of a worker is not reached.
    ExecUnavailable = "MS-2009", "EXEC_UNAVAILABLE", ["node"];
    /// No such schedule.
    ScheduleNotFound = "MS-2010", "SCHEDULE_NOT_FOUND", ["schedule"];
    /// Another schedule of the tenant has this name.
    ScheduleExists = "MS-2011", "SCHEDULE_EXISTS", ["schedule"];
    /// An earlier job of the schedule is not over, and the schedule lets none overlap.
    ScheduleBusy = "MS-2012", "SCHEDULE_BUSY", ["schedule", "job_id"];
    /// No such booking that the caller may change.
    BookingNotFound = "MS-3008", "BOOKING_NOT_FOUND", ["booking"];
    /// There is a booking of this name.
    BookingExists = "MS-3009", "BOOKING_EXISTS", ["booking"];
    /// There are not as many nodes for a booking that nobody has booked at the same time.
    BookingDoesNotFit = "MS-3010", "BOOKING_DOES_NOT_FIT", ["booking", "found"];
    /// No such request for quota and no such grant that the caller may see or answer.
    QuotaRequestNotFound = "MS-8021", "QUOTA_REQUEST_NOT_FOUND", ["quota_request_id"];
    /// The request for quota was answered, or the grant has ended.
    QuotaRequestAnswered = "MS-8022", "QUOTA_REQUEST_ANSWERED", ["quota_request_id", "status"];
    /// A grant of quota would promise more than the tenant that it comes out of has left.
    QuotaNotAvailable = "MS-8023", "QUOTA_NOT_AVAILABLE", ["tenant", "from", "nominal_milli", "given_milli", "asked_milli", "until_ms"];
    /// The request, or the first message of a stream, was not there whole in time: nothing was done.
    RequestTimeout = "MS-4014", "REQUEST_TIMEOUT", [];
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A refusal: nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The stable code.
    pub code: RefusalCode,
    /// One sentence for people.
    pub message: String,
    /// The fields concerned, for [`RefusalCode::InvalidField`].
    pub violations: Vec<Violation>,
    /// Facts for programs: what would help, by name.
    pub metadata: Vec<(&'static str, String)>,
}

impl Refusal {
    /// A refusal with a sentence.
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Refusal {
        Refusal { code, message: message.into(), violations: Vec::new(), metadata: Vec::new() }
    }

    /// A refusal for fields that break rules.
    ///
    /// # Panics
    /// When there is no violation: then there is nothing to refuse.
    #[must_use]
    pub fn fields(violations: Vec<Violation>) -> Refusal {
        let first = violations.first().expect("a field refusal names a field").to_string();
        let message = match violations.len() {
            1 => first,
            more => format!("{first} (and {} more)", more - 1),
        };
        Refusal { code: RefusalCode::InvalidField, message, violations, metadata: Vec::new() }
    }

    /// Adds a fact for programs: one of those that the code lists ([`RefusalCode::facts`]).
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Refusal {
        // A fact too many harms nobody in production; every test sees it.
        debug_assert!(
            self.code.facts().contains(&name) || RefusalCode::COMMON_FACTS.contains(&name),
            "{} lists no fact {name:?}",
            self.code
        );
        self.metadata.push((name, value.to_string()));
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code.number(), self.code, self.message)
    }
}

impl core::error::Error for Refusal {}
