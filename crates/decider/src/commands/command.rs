//! What the leader is asked to do.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_journal::RankUpdate;
use muster_types::health::{HealthAction, HealthPolicy, HealthReport};
use muster_types::policy::{NotificationProgress, Policy, PolicyUpdate, QuotaGrant};
use muster_types::{
    AgentStart, Approval, Artifacts, CertificateSerial, Control, DeviceSet, FencingToken, ForeignLoad,
    HolderId, JobId, LogIndex, LogTime, Name, NodeAdmission, NodeId, NodeSpec, RequestId, Requester,
    Revocation, ScheduleKey, Submission, TokenGrant, TokenId,
};

use crate::commands::booking::BookingOrder;
use crate::commands::controls::{ControlOrder, JobSelection};
use crate::commands::fleet_holds::FleetHoldOrder;
use crate::commands::modify::ModifyOrder;
use crate::commands::overrides::OverridesOrder;
use crate::commands::schedules::{ScheduleControl, ScheduleOrder};
use crate::commands::throttle::ThrottleOrder;
use crate::rules::requested::JobPath;

/// An input for the leader.
#[derive(Clone, Debug)]
pub enum Command {
    /// Submit jobs, all or none.
    Submit {
        /// The client's name for it.
        request: RequestId,
        /// Who asks.
        by: Requester,
        /// At most [`muster_types::limits::BATCH_JOBS_MAX`]. Shared, because a caller may have to submit them again.
        jobs: Arc<[Submission]>,
        /// What the request calls them.
        path: JobPath,
    },
    /// Something is asked of jobs that exist.
    Control(Box<ControlOrder>),
    /// Change a job.
    Modify(Box<ModifyOrder>),
    /// Cordon a node or put it back.
    SetCordon {
        /// The client's name for it.
        request: RequestId,
        /// Who asks.
        by: Requester,
        /// Which.
        node: NodeId,
        /// Which way.
        cordoned: bool,
        /// Why, for people; none where nothing was given.
        reason: Option<String>,
    },
    /// Set the policy.
    SetPolicy {
        /// The client's name for it.
        request: RequestId,
        /// Who asks.
        by: Requester,
        /// All of it.
        policy: Box<Policy>,
        /// The version it is meant to replace; none replaces whatever there is.
        expected_version: Option<LogIndex>,
    },
    /// Set parts of the policy; the others stay as they are in force when this is decided.
    UpdatePolicy {
        /// The client's name for it.
        request: RequestId,
        /// Who asks.
        by: Requester,
        /// Which parts, and what each becomes.
        update: Box<PolicyUpdate>,
        /// The version it is meant to replace; none replaces whatever there is.
        expected_version: Option<LogIndex>,
    },
    /// A gang has saved its work.
    CommitCheckpoint {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// The step that its work is saved up to, where its worker states it.
        step: Option<u64>,
    },
    /// A rank takes much longer for its steps than its gang, or keeps up again.
    NoteStraggler {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// Which rank.
        rank: u32,
        /// The duration of its steps, in thousandths of the gang's median; `None` when it keeps up again.
        slow_milli: Option<u32>,
    },
    /// An agent opens a session.
    Register {
        /// Its host.
        spec: NodeSpec,
        /// Itself.
        holder: HolderId,
        /// Whether the session of another holder, if there is one, is known to have run out.
        other_session_is_over: bool,
    },
    /// An agent opens a session, and says which of its starts it is.
    RegisterStart {
        /// Its host.
        spec: NodeSpec,
        /// Itself.
        holder: HolderId,
        /// Which start.
        start: AgentStart,
    },
    /// Every replica has said that it knows a newer format: rounds are written in it from the next one on.
    RaiseFormat {
        /// Who asks; nobody when it is due by itself.
        by: Requester,
        /// Which.
        format: u16,
    },
    /// The cluster begins a new generation. To be given only when one time to live and its margin have passed
    /// on a monotonic clock since this leadership began, under which no lease was granted: then no agent runs
    /// anything of the generation before.
    Recover {
        /// The generation of the replica's data directory.
        generation: u32,
    },
    /// A lost node will not come back: what it had is not counted with any more.
    ForgetNode {
        /// By which request; none from a client that gave no id.
        request: Option<RequestId>,
        /// Who asks.
        by: Requester,
        /// Which.
        node: NodeId,
    },
    /// An agent says how its host is.
    ReportHealth {
        /// Which node.
        node: NodeId,
        /// Its incarnation.
        incarnation: u32,
        /// All that is wrong, and what happened.
        report: Box<HealthReport>,
    },
    /// A probe of several nodes has found nothing wrong with the network of these.
    NoteSoundNetwork {
        /// Which.
        nodes: Vec<NodeId>,
    },
    /// An agent says what others hold of its host.
    ReportForeignLoad {
        /// Which node.
        node: NodeId,
        /// Its incarnation.
        incarnation: u32,
        /// All of it.
        load: ForeignLoad,
    },
    /// Drain a node, or end that.
    SetDrain {
        /// The client's name for it.
        request: RequestId,
        /// Who asks.
        by: Requester,
        /// Which.
        node: NodeId,
        /// Which way.
        order: DrainOrder,
        /// Why, for people; none where nothing was given.
        reason: Option<String>,
    },
    /// Keep a node away from work, or let it back.
    SetQuarantine {
        /// The client's name for it.
        request: RequestId,
        /// Who asks.
        by: Requester,
        /// Which.
        node: NodeId,
        /// Why; none lets it back.
        reason: Option<String>,
    },
    /// Begin or end a node's repair.
    SetRepair {
        /// The client's name for it.
        request: RequestId,
        /// Who asks.
        by: Requester,
        /// Which.
        node: NodeId,
        /// Which way.
        order: RepairOrder,
    },
    /// Set the health policy.
    SetHealthPolicy {
        /// The client's name for it.
        request: RequestId,
        /// Who asks.
        by: Requester,
        /// All of it.
        policy: Box<HealthPolicy>,
        /// The version it is meant to replace; none replaces whatever there is.
        expected_version: Option<LogIndex>,
    },
    /// Set labels or taints of a node, or take back what operators have set.
    SetNodeOverrides(Box<OverridesOrder>),
    /// Say which nodes are admitted.
    SetNodeAdmission {
        /// The client's name for it.
        request: RequestId,
        /// Who asks.
        by: Requester,
        /// All of it.
        admission: Box<NodeAdmission>,
        /// The version it is meant to replace; none replaces whatever there is.
        expected_version: Option<LogIndex>,
    },
    /// Approve or reject a node by its name.
    SetNodeApproval {
        /// The client's name for it.
        request: RequestId,
        /// Who asks.
        by: Requester,
        /// Its name; it need not have registered.
        name: Name,
        /// The decision; none withdraws the previous decision.
        approval: Option<Approval>,
    },
    /// A certificate is not good any more.
    RevokeCertificate {
        /// The client's name for it.
        request: RequestId,
        /// Who asks.
        by: Requester,
        /// Which.
        serial: CertificateSerial,
        /// Whose, and until when it is remembered.
        revocation: Revocation,
    },
    /// A session has run out by the leader's clock.
    SessionOver {
        /// Which node.
        node: NodeId,
        /// The incarnation whose session it was.
        incarnation: u32,
    },
    /// A node reports on a gang's workers.
    Report {
        /// Which node.
        node: NodeId,
        /// Its incarnation.
        incarnation: u32,
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// Rank and what happened; obsolete ones are dropped.
        updates: Vec<(u32, RankUpdate)>,
    },
    /// Change how many members of an array may be unfinished at a time.
    SetThrottle(Box<ThrottleOrder>),
    /// Receivers of notifications have come further; those that have not, or that the policy in force does not name, are
    /// passed over.
    NoteNotifications {
        /// By receiver.
        progress: Vec<(Name, NotificationProgress)>,
    },
    /// A command is run next to a worker.
    OpenExec {
        /// Who asks.
        by: Requester,
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// Which worker.
        rank: u32,
        /// What the command begins with; at most [`muster_types::limits::EXEC_TEXT_BYTES_MAX`] bytes.
        command: String,
    },
    /// Somebody connects to a port of a worker.
    OpenPortForward {
        /// Who asks.
        by: Requester,
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// Which worker.
        rank: u32,
        /// The port; 0 is refused.
        port: u16,
    },
    /// The agent of a worker that has ended says what became of its files. What comes too late is dropped.
    KeepArtifacts {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// Which worker.
        rank: u32,
        /// What it kept.
        artifacts: Artifacts,
    },
    /// Make a bearer token.
    CreateToken(Box<TokenOrder>),
    /// A bearer token is refused from now on.
    RevokeToken {
        /// The client's name for it.
        request: RequestId,
        /// Who asks.
        by: Requester,
        /// The tenant that the requester is bound to; none where it acts for the cluster's operators.
        acts_for: Option<Name>,
        /// Which.
        token: TokenId,
    },
    /// Ask for more quota for a tenant.
    RequestQuota(Box<QuotaOrder>),
    /// Approve or deny a request for quota, or end the grant that it has become.
    AnswerQuota(Box<QuotaAnswerOrder>),
    /// Grant quota to a tenant.
    GrantQuota(Box<QuotaOrder>),
    /// Set nodes aside for a tenant.
    CreateBooking(Box<BookingOrder>),
    /// Give a booking up.
    DeleteBooking {
        /// The client's name for it.
        request: RequestId,
        /// Who asks.
        by: Requester,
        /// The tenant that the requester is bound to; none where it acts for the cluster's operators.
        acts_for: Option<Name>,
        /// Which.
        name: Name,
    },
    /// Hold a part of the fleet or a tenant, or release it.
    SetFleetHold(Box<FleetHoldOrder>),
    /// Make a schedule, or change one.
    SetSchedule(Box<ScheduleOrder>),
    /// Something is asked of a schedule.
    ControlSchedule(Box<ScheduleControl>),
    /// The next moment of a schedule was found.
    PlanSchedule {
        /// Which.
        schedule: ScheduleKey,
        /// The record that set it: of another one it is another moment.
        set_index: LogIndex,
        /// When; none where there is none.
        next: Option<LogTime>,
    },
    /// A moment of a schedule has come.
    FireSchedule {
        /// Which.
        schedule: ScheduleKey,
        /// The record that set it.
        set_index: LogIndex,
        /// The moment: the last of those that have come and have no record.
        due: LogTime,
        /// The first one after now; none where it is not known.
        next: Option<LogTime>,
    },
}

/// Quota that is asked for or to be granted.
#[derive(Clone, Debug)]
pub struct QuotaOrder {
    /// The client's name for it.
    pub request: RequestId,
    /// Who asks.
    pub by: Requester,
    /// The tenant that the requester is bound to; none where it acts for the cluster's operators.
    pub acts_for: Option<Name>,
    /// What.
    pub grant: QuotaGrant,
}

/// An answer to a request for quota.
#[derive(Clone, Debug)]
pub struct QuotaAnswerOrder {
    /// The client's name for it.
    pub request: RequestId,
    /// Who asks.
    pub by: Requester,
    /// The tenant that the requester is bound to; none where it acts for the cluster's operators.
    pub acts_for: Option<Name>,
    /// The record that made the request for quota, or the grant.
    pub id: LogIndex,
    /// Whether it is granted. A grant in force that is not ends at once.
    pub approved: bool,
    /// Why; one line.
    pub reason: String,
}

/// A bearer token that is to be made.
#[derive(Clone, Debug)]
pub struct TokenOrder {
    /// The client's name for it.
    pub request: RequestId,
    /// Who asks.
    pub by: Requester,
    /// The tenant that the requester is bound to; none where it acts for the cluster's operators.
    pub acts_for: Option<Name>,
    /// Its id, of the client's making.
    pub token: TokenId,
    /// What it is made of.
    pub grant: TokenGrant,
    /// How long it is accepted, in milliseconds.
    pub lifetime_ms: u64,
}

impl Command {
    /// Submits jobs that a request has in a list, for somebody who is not known.
    #[must_use]
    pub fn submit(request: RequestId, jobs: Arc<[Submission]>) -> Command {
        Command::Submit { request, by: Requester::default(), jobs, path: JobPath::List }
    }

    /// Cancels a job, for somebody who is not known.
    #[must_use]
    pub fn cancel(request: RequestId, job: JobId) -> Command {
        Command::control(request, Control::Cancel, job)
    }

    /// Asks something of a job, for somebody who is not known.
    #[must_use]
    pub fn control(request: RequestId, control: Control, job: JobId) -> Command {
        let selection = JobSelection::named(alloc::vec![job]);
        Command::Control(Box::new(ControlOrder {
            request,
            by: Requester::default(),
            acts_for: None,
            control,
            selection,
        }))
    }
}

/// What an operator wants of a node's drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DrainOrder {
    /// Move everything away. What still runs after the deadline is stopped.
    Begin {
        /// Milliseconds from now; `None` waits without a limit.
        deadline_ms: Option<u64>,
    },
    /// It may be used again.
    End,
}

/// What an operator wants of a node's repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairOrder {
    /// It is to be emptied and repaired.
    Begin {
        /// What is to be done; none for what the gravest of its conditions asks for.
        action: Option<HealthAction>,
        /// The devices concerned; empty for those of its conditions.
        devices: DeviceSet,
        /// As for a drain.
        deadline_ms: Option<u64>,
    },
    /// It is repaired: what was known against it is over.
    Done,
    /// It could not be repaired.
    Failed {
        /// One sentence.
        detail: String,
    },
}
