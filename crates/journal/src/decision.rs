//! What the log says: inputs and the decisions about them.
//!
//! Inputs (submitted, cancelled, registered, lost, reported) and decisions (placed, stopped,
//! requeued, finished, pruned) are separate variants: a what-if replays the inputs and makes the
//! decisions again.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_types::health::{Condition, Drain, HealthPolicy, NodeHealth, RepairStep};
use muster_types::policy::{NotificationProgress, Policy, QuotaGrant};
use muster_types::{
    Approval, ArrayId, ArraySpec, Artifacts, BookingEnd, BookingSpec, CertificateSerial, ClusterId, Control,
    DeviceSet, ExitStatus, FailureClass, FencingToken, FieldChange, FleetHold, ForeignLoad, HoldTarget,
    HolderId, JobContract, JobId, JobMetadata, JobSpec, LogIndex, LogTime, Name, NodeAdmission, NodeId,
    NodeOverrides, NodeSpec, OwnerRole, Parameters, QueueKey, ReplicaId, RequestId, Requester, Revocation,
    Schedule, ScheduleKey, ScheduleRun, StartId, TokenGrant, TokenId,
};
use serde::{Deserialize, Serialize};

/// The lowest record format: what the first round of every cluster is written in.
pub const FORMAT_MIN: u16 = 1;

/// The highest record format that this binary writes and reads.
///
/// | format | what it added |
/// |---|---|
/// | 1 | the beginning |
///
/// Builds with the feature `test-format` know one more, in which a quarantine can have `TEST_FORMAT_REASON`. With it
/// tests show how a cluster gets from one format to the next.
pub const FORMAT_MAX: u16 = if cfg!(feature = "test-format") { 2 } else { 1 };

/// The reason of a quarantine that needs format 2 in builds with the feature `test-format`.
#[cfg(feature = "test-format")]
pub const TEST_FORMAT_REASON: &str = "recorded in format 2";

/// A batch of decisions made by one leader at one log time: what one Raft entry carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// The record format it is written in: the one in force where it begins. Stands in the envelope,
    /// before the payload.
    #[serde(skip)]
    pub format: u16,
    /// Raft term of the leadership that decided.
    pub term: u64,
    /// The replica that decided. Two replicas can lead in one term, so both make a leadership.
    pub replica: ReplicaId,
    /// Log index of the first decision; the others follow without gaps.
    pub first_index: LogIndex,
    /// The state the round was decided on: everything up to this index was applied, speculatively
    /// at least.
    pub basis_index: LogIndex,
    /// When, by the leader's clock; never before the round before.
    pub log_time: LogTime,
    /// In order.
    pub decisions: Vec<Decision>,
}

/// A client's request as the state remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestKey {
    /// The client's name for it.
    pub id: RequestId,
    /// Hash of what was asked, so that one id is not used for two different requests.
    pub fingerprint: u64,
}

/// One worker of a placement; its rank is its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSlot {
    /// Where.
    pub node: NodeId,
    /// The incarnation of that node the lease stands on.
    pub incarnation: u32,
    /// Its devices, by local number.
    pub devices: DeviceSet,
}

/// What the leader expects of a job, and its place among those that wait. Made by the policy of the
/// leader that admitted it, and never made again in apply: a later release may expect otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// How long one attempt will run: as likely longer as shorter.
    pub run_ms: u64,
    /// The p90 of the same: nine of ten such attempts end by then.
    pub run_high_ms: u64,
    /// Its turn among the jobs of its tier and tenant; the smaller goes first. For a job that joins a
    /// submission group it is the turn of the group from then on.
    pub turn: QueueKey,
    /// The submission group it joins, by the id of the group's first job; without one it begins a new group.
    /// Jobs of one group have one turn and go in the order of their ids.
    pub burst: Option<JobId>,
}

/// One of the jobs and arrays of a submission that has an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmittedPart {
    /// The job, or what every member of the array is made from.
    pub spec: Arc<JobSpec>,
    /// None for the default one.
    pub contract: Option<Arc<JobContract>>,
    /// None without labels, annotations and a creator.
    pub metadata: Option<Arc<JobMetadata>>,
    /// The members of the array; none for a job.
    pub array: Option<ArraySpec>,
    /// What the leader expects of it.
    pub estimate: Estimate,
}

impl SubmittedPart {
    /// How many jobs it comes to.
    #[must_use]
    pub fn job_count(&self) -> u32 {
        self.array.as_ref().map_or(1, ArraySpec::size)
    }
}

/// A running gang that is preempted, moved or resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Which job.
    pub job: JobId,
    /// Which placement.
    pub token: FencingToken,
    /// For what.
    pub cause: RearrangeCause,
}

/// Why a running gang is preempted, moved or resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RearrangeCause {
    /// For a job that goes before it.
    Preempted {
        /// That job.
        by: JobId,
    },
    /// It goes on elsewhere, so that a pending gang can be placed.
    Moved {
        /// That gang.
        by: JobId,
    },
    /// It goes on with more or fewer workers.
    Resized,
    /// It goes on elsewhere, because everything is to go from a node.
    Drained {
        /// That node.
        node: NodeId,
    },
}

/// Capacity that is held for a job until what runs there has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityHold {
    /// Which job.
    pub job: JobId,
    /// By rank; the incarnations are those of now.
    pub workers: Vec<WorkerSlot>,
}

/// Why a node's session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeLostCause {
    /// No heartbeat was acknowledged for the time to live and the margin.
    LeaseExpired,
    /// Another holder registered under the name after the old session had run out.
    Replaced,
}

/// What a node says of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankUpdate {
    /// Its process runs.
    Running,
    /// Its process has ended, with everything it started.
    Exited(ExitStatus),
    /// It says that it is ready.
    Ready,
}

/// Why a gang is being stopped before its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopCause {
    /// A user cancelled the job.
    Cancelled,
    /// A worker failed by the application's fault; the gang is retried or fails as a unit.
    WorkerFailed {
        /// The first rank that failed.
        rank: u32,
        /// How it ended.
        exit: ExitStatus,
    },
    /// A node of the gang was lost, or a worker ended by the place's fault.
    Evicted {
        /// The node.
        node: NodeId,
    },
    /// The attempt ran longer than its limit.
    RunTimeLimit,
    /// Policy preempted it, moved it or changed its size.
    Rearranged(RearrangeCause),
    /// A place of the gang is not fit for it, whatever its workers say.
    Fault {
        /// What kind of failure of the place it is.
        class: FailureClass,
        /// The node.
        node: NodeId,
        /// What was found, at most `limits::DETAIL_BYTES_MAX` bytes.
        detail: String,
    },
    /// Its deadline has passed before it was over.
    Deadline,
    /// Somebody asked for it, and it waits again: held if that was asked, too.
    Requested {
        /// Whether it is held then.
        suspended: bool,
    },
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Every worker ended with code 0.
    Succeeded,
    /// The application failed more often than it may, or ran over its limit.
    Failed {
        /// One sentence.
        detail: String,
    },
    /// A user cancelled it.
    Cancelled,
}

/// One decision. Variants are append-only: the position is the wire tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// The cluster exists. The second record of every log, behind the first leadership.
    ClusterCreated {
        /// Its identity.
        cluster: ClusterId,
        /// The generation of the cluster, from 1.
        generation: u32,
        /// Fixed parameters.
        parameters: Parameters,
    },
    /// A leadership begins; the header says whose. Its first record: everything of earlier terms
    /// had been applied when it was decided.
    LeaderStarted,
    /// Input: jobs were submitted, all or none.
    JobsSubmitted {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// Their ids derive from the record's index. Shared with the state that takes them over.
        specs: Vec<Arc<JobSpec>>,
        /// What the leader expects of each.
        estimates: Vec<Estimate>,
    },
    /// Input: somebody asked to cancel jobs.
    JobCancelRequested {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// The jobs, in ascending order. Empty when nothing had to change.
        jobs: Vec<JobId>,
    },
    /// Input: an agent holds a node. New node, new holder, or a lost node back.
    NodeRegistered {
        /// What it said of its host.
        spec: NodeSpec,
        /// Who holds it.
        holder: HolderId,
    },
    /// Input: an operator took a node out of placement or put it back.
    NodeCordonSet {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// Which.
        node: NodeId,
        /// Whether nothing new may be placed on it.
        cordoned: bool,
        /// Why, for people; none where nothing was said, and where it is put back.
        reason: Option<String>,
    },
    /// Decision of the leader's clock: a node's session is over; every lease on it is revoked.
    NodeLost {
        /// Which.
        node: NodeId,
        /// Its incarnation at that time.
        incarnation: u32,
        /// Why.
        cause: NodeLostCause,
    },
    /// Input: a node reported transitions of a gang's workers.
    WorkersReported {
        /// Which node.
        node: NodeId,
        /// Its incarnation.
        incarnation: u32,
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// Rank and what happened to it.
        updates: Vec<(u32, RankUpdate)>,
    },
    /// Decision: the whole gang got its devices. The record's index is in its fencing token.
    GangPlaced {
        /// Which job.
        job: JobId,
        /// By rank.
        workers: Vec<WorkerSlot>,
    },
    /// Decision: the gang must stop; its devices stay leased until every node has confirmed.
    GangStopRequested {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// Why.
        cause: StopCause,
    },
    /// Decision: the stopped gang waits again.
    JobRequeued {
        /// Which job.
        job: JobId,
        /// Whether the attempt counts as a failure of the application. Known only now: a worker
        /// that failed because its peer's node was lost is not to blame.
        failed: bool,
    },
    /// Decision: the job is over; nothing of it runs.
    JobFinished {
        /// Which job.
        job: JobId,
        /// How.
        outcome: Outcome,
    },
    /// Decision: old rows were dropped, oldest first, at most `limits::PRUNE_ROWS_MAX` of each kind.
    HistoryPruned {
        /// Request ids remembered from before this time.
        requests_before: LogTime,
        /// Jobs finished before this time.
        jobs_before: LogTime,
    },
    /// The leader's digest of the state right before this record. A replica whose own differs stops.
    DigestRecorded {
        /// The digest.
        digest: u64,
    },
    /// Input: an operator set the policy; the record's index is its version.
    PolicySet {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// All of it.
        policy: Box<Policy>,
    },
    /// Decision: running gangs give up capacity, and the capacity is promised to others, in one record:
    /// nobody else can take it in between, so preemption cannot run in circles. A gang that is moved or
    /// resized is in both lists.
    Rearranged {
        /// Who stops; each waits again once nothing of it runs.
        stops: Vec<Stop>,
        /// Who gets which capacity; each is placed there once it is free.
        promises: Vec<CapacityHold>,
    },
    /// Decision: promised capacity will not come free, because one of its nodes was lost or cordoned; the
    /// job is back in the pending queue.
    PromiseDropped {
        /// Which job.
        job: JobId,
    },
    /// Decision: whatever the job waited for, other than capacity, has come about; it is in the pending
    /// queue from now on.
    JobReleased {
        /// Which job.
        job: JobId,
    },
    /// Decision: waiting jobs have other places in the order, because the policy has changed or because
    /// more is known of how long they will run.
    TurnsChanged {
        /// Submission group and turn; groups ascending. The id of a group is that of its first job, and a
        /// job that is alone is a group by itself.
        bursts: Vec<(JobId, QueueKey)>,
    },
    /// Input: a gang has saved its work; should it be stopped, only what comes after is lost.
    CheckpointCommitted {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// The step that the work is saved up to, as its worker states it, or else the last step that it reported; none
        /// where it did neither.
        step: Option<u64>,
    },
    /// Decision: rounds after this one are written in a newer format; every replica has said that it knows
    /// it. A binary that does not know it applies this record and stops before the next round.
    FormatRaised {
        /// Who asked; nobody when the leader raised it by itself.
        by: Requester,
        /// The format in force from now on.
        format: u16,
    },
    /// Decision: the cluster continues in a new generation, from a backup or from one surviving replica.
    /// Every earlier session and lease is over; every token given from now on is newer than all before.
    ClusterRecovered {
        /// The generation from now on.
        generation: u32,
    },
    /// A lost node is not counted with any more. Its id is never given again.
    NodeForgotten {
        /// By which request; none when it was decided here. It is remembered, so that repeating it does not find the
        /// node missing.
        request: Option<RequestKey>,
        /// Who asked; nobody when it was decided here.
        by: Requester,
        /// Which.
        node: NodeId,
    },
    /// Input: what the jobs that were submitted just before ask of the agents that run them. A job that
    /// asks nothing is not here.
    JobContractsSet {
        /// By job, ascending.
        contracts: Vec<(JobId, Arc<JobContract>)>,
    },
    /// Decision: an attempt is over before its work was done, and why. Behind the end of its last
    /// worker, before the job waits again or is over.
    AttemptFailed {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// What kind of failure.
        class: FailureClass,
        /// The rank it began with, if it began with one.
        rank: Option<u32>,
        /// The node it happened on, if one is known.
        node: Option<NodeId>,
        /// What was found, at most `limits::DETAIL_BYTES_MAX` bytes.
        detail: String,
        /// Failures in a row, this one included, without an attempt that made headway.
        streak: u32,
        /// Not to be placed again before; none for at once.
        wait_until: Option<LogTime>,
        /// The node is avoided until then; none for not at all.
        avoid: Option<LogTime>,
    },
    /// Decision: ranks of a gang that is being stopped, on nodes that failed, go on in its spares; the
    /// capacity of the others is kept for them. The next placement is that.
    SparesTaken {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// Rank and its new place, one of the spares; ranks ascending.
        ranks: Vec<(u32, WorkerSlot)>,
    },
    /// Decision: a rank takes much longer for its steps than its gang, or does so no more.
    StragglerNoted {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// Which rank.
        rank: u32,
        /// How long its steps take, in thousandths of what they take the gang's median rank; none when it keeps up
        /// again.
        slow_milli: Option<u32>,
    },
    /// Decision: what is known of a node's health is this now. What stops because of it
    /// follows in separate records.
    NodeHealthChanged {
        /// Which.
        node: NodeId,
        /// The version of the health policy that it was concluded by; zero for the one every cluster has.
        policy: LogIndex,
        /// All that is known.
        health: Box<NodeHealth>,
        /// What happened, with what was concluded from each: the evidence.
        events: Vec<Condition>,
    },
    /// Everything is to go from a node, or may come back to it.
    NodeDrainSet {
        /// By which request; none when it was decided here.
        request: Option<RequestKey>,
        /// Who asked; nobody when it was decided here.
        by: Requester,
        /// Which.
        node: NodeId,
        /// How; none ends it.
        drain: Option<Drain>,
        /// Why, for people; none where nothing was said, and where it is put back.
        reason: Option<String>,
    },
    /// A node is kept away from work, or let back. What runs on it goes on.
    NodeQuarantineSet {
        /// By which request; none when it was decided here.
        request: Option<RequestKey>,
        /// Who asked; nobody when it was decided here.
        by: Requester,
        /// Which.
        node: NodeId,
        /// Why; none ends it.
        reason: Option<String>,
    },
    /// A step of a node's repair.
    NodeRepairSet {
        /// By which request; none when it was decided here.
        request: Option<RequestKey>,
        /// Who asked; nobody when it was decided here.
        by: Requester,
        /// Which.
        node: NodeId,
        /// Which step.
        step: RepairStep,
    },
    /// Input: an operator set the health policy; the record's index is its version.
    HealthPolicySet {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// All of it.
        policy: Box<HealthPolicy>,
    },
    /// Input: what others hold of a node is this now.
    ForeignLoadSet {
        /// Which.
        node: NodeId,
        /// In which incarnation.
        incarnation: u32,
        /// All of it.
        load: ForeignLoad,
    },
    /// Input: an operator said which nodes are admitted.
    NodeAdmissionSet {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// All of it.
        admission: Box<NodeAdmission>,
    },
    /// Input: an operator approved or rejected a node by its name. Or a node came back with fewer
    /// devices, and may have again what it had.
    NodeApprovalSet {
        /// By which request; none when it was decided here.
        request: Option<RequestKey>,
        /// Who asked; nobody when it was decided here.
        by: Requester,
        /// Its name; it need not have registered.
        name: Name,
        /// What was said; none takes back what was said before.
        approval: Option<Approval>,
    },
    /// Input: a certificate is not good any more.
    CertificateRevoked {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// Which.
        serial: CertificateSerial,
        /// Whose, and until when it is remembered.
        revocation: Revocation,
    },
    /// Input: a node's agent has opened its session at this leader and goes on as it is. No leader
    /// acknowledges heartbeats of a node before this or its registration, so a leadership without either has not
    /// been heard by it. It changes nothing in the state.
    SessionResumed {
        /// Which node.
        node: NodeId,
        /// Its incarnation, which stays the same.
        incarnation: u32,
    },
    /// Input: labels, annotations and the creator of jobs that were submitted just before. A job
    /// without any of them is not here.
    JobMetadataSet {
        /// The first job, how many have consecutive ids from it on, and what each of them has; ascending.
        runs: Vec<(JobId, u32, Arc<JobMetadata>)>,
    },
    /// Input: somebody asked that waiting jobs are not placed, or that they may be again.
    JobHoldSet {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// The jobs, in ascending order. Empty when nothing had to change.
        jobs: Vec<JobId>,
        /// Whether they are held from now on.
        held: bool,
    },
    /// Input: somebody asked that running jobs are stopped and wait again. Their workers are told to stop with
    /// this record; their devices stay leased until every node has confirmed.
    JobRequeueRequested {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// The jobs, in ascending order. Empty when nothing had to change.
        jobs: Vec<JobId>,
        /// Whether they are held from now on.
        suspended: bool,
    },
    /// Input: somebody changed a job that exists.
    JobModified {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// Which.
        job: JobId,
        /// What it is from now on, each field once.
        changes: Vec<FieldChange>,
        /// What the leader expects of it from now on, and its position among those that wait. The fold decides about its submission group.
        estimate: Estimate,
    },
    /// Input: jobs were submitted, all or none, and at least one part of the submission is an array. The ids follow one
    /// another in the order of the parts: a job takes one, an array one for each member. No member is a job yet.
    ArraysSubmitted {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// In the order of the request.
        parts: Vec<SubmittedPart>,
    },
    /// Decision: members of an array are jobs from now on, because they are near their turn, or because the members of other arrays are
    /// over that they waited for.
    ArrayMembersCreated {
        /// Which array.
        array: ArrayId,
        /// The ordinal of the first of them, where others before it are not created; none for the first of those that are not created.
        first: Option<u32>,
        /// How many, from 1 to `limits::ARRAY_CREATED_MAX`. With `first` they are side by side.
        count: u32,
    },
    /// Decision: what an array waited for, capacity apart, has come about; its members may be created from now on.
    ArrayReleased {
        /// Which array.
        array: ArrayId,
    },
    /// Decision: the members of an array that are not created have failed, for a reason that concerns all of them.
    ArrayMembersFailed {
        /// Which array.
        array: ArrayId,
        /// One sentence.
        detail: String,
    },
    /// Input: somebody asked something of arrays, as far as their members are not created, and together with that of jobs.
    ArraysControlled {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// Cancel, hold or release.
        control: Control,
        /// The arrays, in ascending order.
        arrays: Vec<ArrayId>,
        /// The jobs, in ascending order.
        jobs: Vec<JobId>,
    },
    /// Input: somebody changed how many members of an array may be unfinished at a time. It concerns members that are not
    /// created; none that exists is stopped.
    ArrayThrottleSet {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// Which array.
        array: ArrayId,
        /// From 1; none for no limit.
        throttle: Option<u32>,
    },
    /// Input: an operator set labels or taints of a node, or took back what operators had set.
    NodeOverridesSet {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// Which.
        node: NodeId,
        /// All that operators have set on it from now on.
        overrides: Box<NodeOverrides>,
    },
    /// Decision: how far receivers of notifications have come, by the leader that delivers to them.
    NotificationsDelivered {
        /// By receiver, in ascending order of their names; those that have not gone on are not here.
        progress: Vec<(Name, NotificationProgress)>,
    },
    /// Input: somebody made a bearer token. Its secret is not in the record, and neither is anything that it follows from.
    TokenCreated {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// Its id, of the client's making.
        token: TokenId,
        /// What it is made of.
        grant: Box<TokenGrant>,
        /// From when on it is refused, in milliseconds after the log time of the record.
        lifetime_ms: u64,
    },
    /// Input: somebody revoked a bearer token. It is refused from this record on.
    TokenRevoked {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// Which.
        token: TokenId,
    },
    /// Input: somebody had a command run next to a worker. What became of the command is in no record.
    ExecOpened {
        /// Who asked.
        by: Requester,
        /// Which job.
        job: JobId,
        /// The placement that the worker is of.
        token: FencingToken,
        /// The worker, by its rank in the gang.
        rank: u32,
        /// What the command begins with, as text for people.
        command: String,
    },
    /// Input: somebody asked for more quota for a tenant. The record's index is the number of the request.
    QuotaRequested {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// What for.
        grant: Box<QuotaGrant>,
    },
    /// Input: somebody answered a request for quota, or ended the grant that it has become.
    QuotaAnswered {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// The record of the request for quota, or of the grant.
        id: LogIndex,
        /// The tenant whose administrator answers; none where one of the cluster's operators does.
        giver: Option<Name>,
        /// Whether it is granted from this record on.
        approved: bool,
        /// Why; one line.
        reason: String,
    },
    /// Input: somebody granted quota that nobody had asked for here. The record's index is the number of the grant.
    QuotaGranted {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// The tenant whose administrator grants it; none where one of the cluster's operators does.
        giver: Option<Name>,
        /// What.
        grant: Box<QuotaGrant>,
    },
    /// Decision: the time of these grants of quota is over, or that for which their requests asked.
    QuotaGrantsEnded {
        /// Their records, in ascending order.
        ids: Vec<LogIndex>,
    },
    /// Input: somebody set nodes aside for a tenant. The leader has chosen them.
    BookingCreated {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// What it is called.
        name: Name,
        /// What was booked.
        spec: Box<BookingSpec>,
        /// Names of the nodes, in ascending order.
        nodes: Vec<Name>,
    },
    /// Input: somebody gave a booking up. Its nodes are open to everybody from this record on.
    BookingDeleted {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// Which.
        name: Name,
    },
    /// Decision: a window of a booking has begun.
    BookingOpened {
        /// Which.
        name: Name,
    },
    /// Decision: a window of a booking is over, and behind its last one the booking; or its owner is gone.
    BookingEnded {
        /// Which.
        name: Name,
        /// Why.
        cause: BookingEnd,
    },
    /// Decision: a booking has other nodes, because some of them are lost or out of service.
    BookingMoved {
        /// Which.
        name: Name,
        /// All of its nodes from now on, in ascending order.
        nodes: Vec<Name>,
    },
    /// Input: somebody connects to a port of a worker. Which connections followed is in no record.
    PortForwardOpened {
        /// Who asked.
        by: Requester,
        /// Which job.
        job: JobId,
        /// The placement that the worker is of.
        token: FencingToken,
        /// The worker, by its rank in the gang.
        rank: u32,
        /// The port; never 0.
        port: u16,
    },
    /// The agent of a worker that has ended says which of its files it has kept, and why not all.
    ArtifactsKept {
        /// Which job.
        job: JobId,
        /// The placement that the worker was of.
        token: FencingToken,
        /// The worker, by its rank in the gang.
        rank: u32,
        /// What became of its files.
        artifacts: Artifacts,
    },
    /// Input: somebody made a schedule, or changed one. Who did is its owner from now on. Its next moment is not known yet.
    ScheduleSet {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// The tenant that the one who asked acts for, and for those below it; none acts for all.
        acts_for: Option<Name>,
        /// The role of the policy that the one who asked has; none for a whole built-in role, and for a certificate.
        role: Option<OwnerRole>,
        /// All of it.
        schedule: Box<Schedule>,
        /// Whether there was none of this name.
        is_new: bool,
    },
    /// Input: somebody deleted a schedule. The jobs that it made are what they were.
    ScheduleDeleted {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// Which.
        schedule: ScheduleKey,
    },
    /// A schedule makes no jobs, or makes some again.
    ScheduleSuspensionSet {
        /// By which request; none when it was decided here.
        request: Option<RequestKey>,
        /// Who asked; nobody when it was decided here.
        by: Requester,
        /// Which.
        schedule: ScheduleKey,
        /// Why; none ends it, and the next moment is not known then.
        reason: Option<String>,
    },
    /// Decision: the next moment of a schedule, by the leader that knows its zone.
    SchedulePlanned {
        /// Which.
        schedule: ScheduleKey,
        /// When.
        next: LogTime,
    },
    /// Decision: what became of a moment of a schedule. Behind the job that was submitted, if one was.
    ScheduleRan {
        /// Which.
        schedule: ScheduleKey,
        /// The moment; none for a run that somebody asked for, which changes no moment.
        due: Option<LogTime>,
        /// The next one; none where it is not known, and for a run that somebody asked for.
        next: Option<LogTime>,
        /// What became of it.
        run: ScheduleRun,
    },
    /// Decision: a job has waited for as long as it says, and takes from now on what it names as a fallback.
    FallbackOpened {
        /// Which.
        job: JobId,
    },
    /// Input: an operator holds a part of the fleet or a tenant, holds it in another way than before, or releases it.
    FleetHoldSet {
        /// By which request.
        request: RequestKey,
        /// Who asked.
        by: Requester,
        /// What is held.
        target: HoldTarget,
        /// How; none releases it.
        hold: Option<Box<FleetHold>>,
    },
    /// Decision: the time of a hold of a part of the fleet or of a tenant is over.
    FleetHoldEnded {
        /// What is held no more.
        target: HoldTarget,
    },
    /// Input: the agent of a node was started and has opened its session at this leader, as with `SessionResumed`. Who comes
    /// with an earlier start of the same holder comes from an older copy of its state directory.
    AgentStarted {
        /// Which node.
        node: NodeId,
        /// Its incarnation, which stays the same.
        incarnation: u32,
        /// Which start.
        start: StartId,
    },
}
