//! How a command ends: exit codes, and errors that say what to do next.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use muster_client::{AttemptError, CallError, ConnectError, Refused};
use muster_transport::AuthorityError;
use muster_types::{RefusalCode, Violation};
use tonic::Code;

/// Exit codes; stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It was done.
    Ok,
    /// It failed, or the job did.
    Failed,
    /// The command line or the job file is wrong.
    Usage,
    /// No such job or node.
    NotFound,
    /// Not allowed.
    Denied,
    /// The state of things does not permit it.
    Conflict,
    /// No replica could be reached, or none could decide.
    Unavailable,
    /// No answer in time.
    Timeout,
    /// Ctrl-C.
    Interrupted,
    /// Of `muster run`: what the job ended with.
    Job(u8),
}

impl Exit {
    /// For the operating system.
    pub fn code(self) -> ExitCode {
        ExitCode::from(match self {
            Exit::Ok => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::NotFound => 3,
            Exit::Denied => 4,
            Exit::Conflict => 5,
            Exit::Unavailable => 6,
            Exit::Timeout => 7,
            Exit::Interrupted => 130,
            Exit::Job(code) => code,
        })
    }
}

/// Why a command did not succeed.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    /// One line; empty when there is nothing to say (the reader of a pipe went away).
    headline: String,
    /// One line for each field or cause.
    details: Vec<String>,
    next: Option<String>,
}

impl Failure {
    /// A failure without details.
    pub fn new(exit: Exit, headline: impl Into<String>) -> Failure {
        Failure { exit, headline: headline.into(), details: Vec::new(), next: None }
    }

    /// A wrong command line or file.
    pub fn usage(headline: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, headline)
    }

    /// An error, with a line for each of its causes.
    pub fn of_error(exit: Exit, error: &dyn Error) -> Failure {
        Failure::new(exit, error.to_string()).with_details(causes(error))
    }

    /// With a line for each field or cause.
    pub fn with_details(mut self, details: impl IntoIterator<Item = String>) -> Failure {
        self.details.extend(details);
        self
    }

    /// With what to do next.
    pub fn with_next(mut self, next: impl Into<String>) -> Failure {
        self.next = Some(next.into());
        self
    }

    /// How the command ends.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// What is wrong, in one line; empty when there is nothing to say.
    pub fn headline(&self) -> &str {
        &self.headline
    }

    /// One line for each field or cause.
    pub fn details(&self) -> &[String] {
        &self.details
    }

    /// What to do next, where that is known.
    pub fn next(&self) -> Option<&str> {
        self.next.as_deref()
    }

    /// A refusal; its violations are listed as they are.
    pub fn refused(refused: &Refused) -> Failure {
        let details = refused.violations.iter().map(ToString::to_string).collect();
        Failure::refused_with(refused, details)
    }

    /// A refusal whose violations the caller has put into the user's words.
    pub fn refused_with(refused: &Refused, mut details: Vec<String>) -> Failure {
        if let Some(omitted) = refused.metadata.get(muster_wire::status::METADATA_VIOLATIONS_OMITTED) {
            details.push(format!("and {omitted} more"));
        }
        let is_violation = |violation: &Violation| refused.message == violation.to_string();
        let is_listed =
            refused.code == Some(RefusalCode::InvalidField) || refused.violations.iter().any(is_violation);
        let headline = match refused.number() {
            // The sentence of a field refusal repeats the first violation; the list says it better.
            Some(number) if is_listed && !details.is_empty() => {
                format!("{number} {}: the request breaks these rules", refused.reason)
            }
            _ => refused.to_string(),
        };
        let next = match refused.code {
            Some(code) => Some(next_step(code)),
            None => is_foreign(refused).then_some(NO_REPLICA),
        };
        let next = next.map(str::to_owned);
        // Of one kind with other conflicts for scripts, although it is an argument that is wrong.
        let exit = match refused.code {
            Some(RefusalCode::RequestIdReused) => Exit::Conflict,
            _ => exit_of(refused.grpc),
        };
        Failure { exit, headline, details, next }
    }
}

fn exit_of(code: Code) -> Exit {
    match code {
        Code::InvalidArgument => Exit::Usage,
        Code::NotFound => Exit::NotFound,
        Code::PermissionDenied | Code::Unauthenticated => Exit::Denied,
        Code::AlreadyExists | Code::FailedPrecondition | Code::Aborted | Code::OutOfRange => Exit::Conflict,
        Code::ResourceExhausted | Code::Unavailable => Exit::Unavailable,
        Code::DeadlineExceeded => Exit::Timeout,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss => Exit::Failed,
    }
}

/// What helps, by code.
fn next_step(code: RefusalCode) -> &'static str {
    match code {
        RefusalCode::InvalidField => "correct the fields named above and try again",
        RefusalCode::NeverFits => {
            "ask for fewer workers or devices, or another type or region; `muster node list -o wide` shows the fleet, \
             and `muster policy show` what it may grow by"
        }
        RefusalCode::DeadlineUnmeetable => {
            "name a later deadline, or leave it out; `muster plan FILE` shows when the job could start and end"
        }
        RefusalCode::DependencyNotFound => {
            "name jobs that exist; `muster job list` shows the ids, and jobs that ended long ago are forgotten"
        }
        RefusalCode::FeatureUnknown => {
            "ask for it in another way; `muster version` shows the release, and its notes what it has"
        }
        RefusalCode::PolicyChanged => {
            "`muster policy show -o yaml` shows the present one; put your change into that and set it again"
        }
        RefusalCode::RequestIdReused => "leave out --request-id to make this a new request",
        RefusalCode::JobNotFound => {
            "`muster job list` shows the ids; `muster job list --name PREFIX` finds them by name"
        }
        RefusalCode::JobFinished => "nothing is left to do; `muster job show ID` shows how it ended",
        RefusalCode::JobPhase => {
            "`muster job show ID` shows what the job does; a waiting job can be held, a running one requeued or suspended"
        }
        RefusalCode::JobChanged => {
            "read the job again with `muster job show ID`, and make the change from that"
        }
        RefusalCode::JobHeld => "ask the operators of the cluster why they hold it",
        RefusalCode::NodeNotFound => "`muster node list` shows the names",
        RefusalCode::NodeHeldByAnother => {
            "stop the other agent of that name, or wait until its session has run out"
        }
        RefusalCode::NodeChanged => "cordon the node and let its work end, then register it again",
        RefusalCode::NodeInUse => "stop its agent, wait until the node is shown as lost, and forget it then",
        RefusalCode::RepairUnderWay => {
            "`muster node health NODE` shows it; `muster node repair NODE --done` ends it"
        }
        RefusalCode::RepairNotBegun => "`muster node health NODE` shows what is known of it",
        RefusalCode::MaintenanceDue => {
            "wait until the maintenance is over; `muster node health NODE` shows it"
        }
        RefusalCode::FormatNotActive => {
            "upgrade the replicas that are behind; `muster cluster status` shows them"
        }
        RefusalCode::ClusterRecovering => "wait one lease; then try again with the same --request-id",
        RefusalCode::FleetFull => "this cluster has as many nodes as it may have",
        RefusalCode::Fenced => "another holder has taken over; start again from its present state",
        RefusalCode::NotLeader => {
            "the replicas have no leader; `muster cluster status` shows which of them are up"
        }
        RefusalCode::Overloaded => {
            "the cluster has too much to do; try again, with a longer --timeout if it lasts"
        }
        RefusalCode::StateFull => {
            "cancel jobs that nobody needs any more, or try again later with the same --request-id"
        }
        RefusalCode::OutcomeUnknown => "repeat the command with the same --request-id to learn the outcome",
        RefusalCode::ResumeTokenCompacted => {
            "the replica does not have that part of the log; ask again without the token or index"
        }
        RefusalCode::LogIndexNotReached => {
            "no replica that was asked has applied the log that far; ask for an earlier index or time"
        }
        RefusalCode::ReplicaStopping => "the replica stops; use another --endpoint",
        RefusalCode::ClusterNotReady => {
            "the replicas have just started; `muster cluster status` shows which of them are up"
        }
        RefusalCode::PageTokenInvalid => "begin the list again from its first page",
        RefusalCode::Internal => {
            "do not repeat it unchanged; report it with the fingerprint and the leader's log"
        }
        RefusalCode::Diverged => {
            "this replica has stopped serving; use another --endpoint and tell its operators"
        }
        RefusalCode::TooStale => {
            "ask another --endpoint, allow more with --max-staleness, or take what there is with --consistency any"
        }
        RefusalCode::ReadUnconfirmed => {
            "`muster cluster status` shows which replicas are up; --consistency any reads without a leader"
        }
        RefusalCode::ArchiveUnavailable => {
            "ask a replica that keeps an archive of its log, or leave out --at to see the present"
        }
        RefusalCode::NodeNotAdmitted => {
            "`muster node pending` lists who waits to be admitted, and why; `muster node approve NAME` admits it"
        }
        RefusalCode::TenantLimit => {
            "wait until some of the tenant's jobs are over, or cancel some; `muster policy show` shows its limits"
        }
        RefusalCode::JobAboveLimit => {
            "ask for less, or have an operator raise the limit; `muster policy show` shows the limits of each tenant"
        }
        RefusalCode::RightMissing => {
            "ask for less, or have an operator give the tenant the right; `muster policy show` shows what each has"
        }
        RefusalCode::PermissionDenied => {
            "use a certificate that permits it: --cert and --key; `muster ca show FILE` says whose one is"
        }
        RefusalCode::Unauthenticated => {
            "check --token-file, MUSTER_TOKEN_FILE or MUSTER_TOKEN; a token may have expired or been revoked, so have another made"
        }
        RefusalCode::TokenNotFound => "`muster token list` lists the tokens that you may revoke",
        RefusalCode::BookingNotFound => "`muster booking list` lists the bookings that there are",
        RefusalCode::BookingExists => {
            "choose another name, or delete the booking that has it: `muster booking delete NAME`"
        }
        RefusalCode::BookingDoesNotFit => {
            "book fewer nodes, other times or another region; `muster booking list` shows who has which"
        }
        RefusalCode::TokenExists => {
            "choose another name, or revoke the token that has it: `muster token revoke NAME`"
        }
        RefusalCode::QuotaRequestNotFound => {
            "`muster quota list` lists the requests and grants that you may see"
        }
        RefusalCode::QuotaRequestAnswered => "`muster quota history` shows who answered it, and how",
        RefusalCode::QuotaNotAvailable => {
            "ask for less or for a shorter time, or have an operator grant more to the tenant above first; `muster quota list` shows \
             what ends when"
        }
        RefusalCode::ScheduleNotFound => "`muster schedule list` lists the schedules of your tenant",
        RefusalCode::ScheduleExists => {
            "choose another name, or change the one that there is: `muster schedule update NAME`"
        }
        RefusalCode::ScheduleBusy => {
            "wait until the job is over, cancel it, or let runs overlap: `muster schedule update NAME --overlap allow`"
        }
        RefusalCode::MessageTooLarge => "send less at once",
        RefusalCode::WouldLoseQuorum => {
            "bring the silent replicas back first; --force makes the change all the same, and may stop the cluster"
        }
        RefusalCode::ReplicaUnknown => "`muster cluster status` lists the members",
        RefusalCode::ReplicaNotCaughtUp => {
            "wait until it has caught up; `muster cluster status` shows what it lacks"
        }
        RefusalCode::MembershipBusy => "repeat the command when the other change is over",
        RefusalCode::MembershipRefused => "`muster cluster status -o wide` shows the members as they are",
        RefusalCode::FormatNotReady => {
            "upgrade the replicas named, or remove those that will not come back, and repeat the command"
        }
        RefusalCode::StorageFull => {
            "free space on the replicas' data disks; `muster cluster status` shows which of them are low"
        }
        RefusalCode::TrafficRefused => {
            "ask another --endpoint; `muster cluster status` names the drill, `muster drill stop` ends it"
        }
        RefusalCode::RequestTimeout => {
            "try again; if it happens again, look at the network between here and the replica"
        }
        RefusalCode::DrillRunning => "wait until it is over, or end it with `muster drill stop`",
        RefusalCode::DrillOver => "find out who stopped it and why before you start another",
        RefusalCode::ProbeUnavailable => "leave that node out, or try again when its agent is back",
        RefusalCode::WorkerNotStarted => {
            "`muster job logs --follow` waits for it; `muster job explain ID` shows why the job waits"
        }
        RefusalCode::OutputNotFound => {
            "only the current attempt and the one before have output; `muster job show ID` lists the attempts"
        }
        RefusalCode::ExecUnavailable => {
            "`muster job show ID` shows whether the worker runs, and where; look whether a command has begun before you run it again"
        }
        RefusalCode::LogsUnavailable => {
            "try again when the worker's node is back; `muster node list` shows which nodes are up"
        }
    }
}

/// Whether an answer looks like that of something which speaks another protocol, or of a replica that lacks a call.
fn is_foreign(refused: &Refused) -> bool {
    refused.reason.is_empty() && matches!(refused.grpc, Code::Internal | Code::Unimplemented | Code::Unknown)
}

const NO_REPLICA: &str = "check that --endpoint names a client address of a replica, and not its web pages, its peer address or another server; \
     `muster version --server` says whether a replica answers, and of which release it is";

const UNREACHABLE: &str =
    "check --endpoint, MUSTER_ENDPOINTS or the configuration file, and that a replica is running there";

/// A peer that takes the connection and does not answer as a replica does.
const NO_COMMON_LANGUAGE: &str = "if the cluster uses certificates, give --ca, --cert and --key (or MUSTER_CA, MUSTER_CERT, MUSTER_KEY); if not, leave \
     them out; and check that --endpoint names a client address, not a peer address";

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Failure {
        match error {
            ConnectError::ConnectAny { attempts } => {
                let details = attempts.into_iter().map(|(endpoint, why)| format!("{endpoint}: {why}"));
                Failure::new(Exit::Unavailable, "no replica could be reached")
                    .with_details(details)
                    .with_next(UNREACHABLE)
            }
            error @ ConnectError::ConnectInTime { .. } => {
                Failure::new(Exit::Unavailable, error.to_string()).with_next(UNREACHABLE)
            }
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        if let CallError::Refused { refused, .. } = &error {
            return Failure::refused(refused);
        }
        let exit = if error.is_timeout() { Exit::Timeout } else { Exit::Unavailable };
        let mut failure = Failure::of_error(exit, &error);
        failure.next = error.refused().and_then(|refused| refused.code).map(next_step).map(str::to_owned);
        match &error {
            CallError::DeadlineExceeded { request_id: Some(id), .. } => failure.with_next(format!(
                "it may have been done: repeat the command with --request-id {id} to learn it; it will not be done twice"
            )),
            CallError::DeadlineExceeded { last: AttemptError::Connect(_), .. } => failure.with_next(UNREACHABLE),
            CallError::DeadlineExceeded { last: AttemptError::Answer { refused, .. }, .. }
                if refused.code.is_none() && matches!(refused.grpc, Code::Unknown | Code::Unavailable) =>
            {
                failure.with_next(NO_COMMON_LANGUAGE)
            }
            CallError::DeadlineExceeded { last: AttemptError::Answer { refused, .. }, .. }
                if is_foreign(refused) =>
            {
                failure.with_next(NO_REPLICA)
            }
            _ => failure,
        }
    }
}

/// The causes of an error, the nearest one first.
pub fn causes(error: &dyn Error) -> Vec<String> {
    let mut found = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        found.push(cause.to_string());
        next = cause.source();
    }
    found
}

/// An error and its causes in one line.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    for cause in causes(error) {
        text.push_str(": ");
        text.push_str(&cause);
    }
    text
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        // `muster job list | head`: the reader has read enough.
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::new(Exit::Ok, "");
        }
        Failure::new(Exit::Failed, format!("the output could not be written: {error}"))
    }
}

impl From<AuthorityError> for Failure {
    fn from(error: AuthorityError) -> Failure {
        let exit = match &error {
            AuthorityError::Exists { .. }
            | AuthorityError::AuthorityExists { .. }
            | AuthorityError::Step { .. } => Exit::Conflict,
            AuthorityError::Days { .. } | AuthorityError::Hosts { .. } => Exit::Usage,
            AuthorityError::NoAuthority { .. } => Exit::NotFound,
            AuthorityError::File { .. } | AuthorityError::Content { .. } | AuthorityError::Make { .. } => {
                Exit::Failed
            }
        };
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        Failure::new(exit, error.to_string()).with_details(cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::Refusal;

    #[test]
    fn every_refusal_has_an_exit_code_and_a_next_step() {
        for code in RefusalCode::ALL {
            let status = muster_wire::status::to_status(&Refusal::new(*code, "why"));
            let failure = Failure::refused(&Refused::from_status(&status));
            assert!(failure.headline.starts_with(code.number()), "{}", failure.headline);
            assert!(failure.next.is_some());
            // What is a defect of the cluster is nothing that another exit code would tell a script to do.
            let is_defect = *code == RefusalCode::Internal;
            assert_eq!(failure.exit == Exit::Failed, is_defect, "{code}: {:?}", failure.exit);
            assert_ne!(failure.exit, Exit::Ok, "{code}");
        }
    }

    #[test]
    fn an_answer_of_another_server_leads_to_the_endpoint() {
        let status =
            tonic::Status::internal("protocol error: received message with invalid compression flag: 60");
        let failure = Failure::refused(&Refused::from_status(&status));
        assert_eq!(failure.next(), Some(NO_REPLICA));
        let status = tonic::Status::unauthenticated("a proxy wants a password");
        assert_eq!(Failure::refused(&Refused::from_status(&status)).next(), None);
    }

    #[test]
    fn what_is_wrong_with_one_field_is_said_once() {
        let violation = Violation::new("job.spec.deadline", "must be after the present time");
        let refusal = Refusal::new(RefusalCode::DeadlineUnmeetable, "why");
        let mut refused = Refused::from_status(&muster_wire::status::to_status(&refusal));
        refused.message = violation.to_string();
        refused.violations = vec![violation];
        let in_file = "w.yaml:4: spec.deadline: must be after the present time";
        let of_file = Failure::refused_with(&refused, vec![in_file.to_owned()]);
        assert!(!of_file.headline.contains("job.spec.deadline"), "{}", of_file.headline);
        assert_eq!(of_file.details, [in_file]);
        let bare = Failure::refused_with(&refused, Vec::new());
        assert!(bare.headline.contains("job.spec.deadline"), "{}", bare.headline);
    }
}
