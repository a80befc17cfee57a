//! Why the guard refuses a record.

use crate::fit;

/// Why a record was not folded in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardError {
    /// Of a leadership that is not the current one, or not newer for a new leadership.
    StaleLeadership,
    /// Not the next position of the log.
    OutOfSequence,
    /// Log time would go back.
    TimeWentBack,
    /// The format in force cannot say this, or is not below the one it is to be raised to.
    Format,
    /// The cluster exists already, or does not exist yet.
    ClusterExistence,
    /// The request id was used before.
    RequestRepeated,
    /// A bound of `limits` is broken.
    Limit,
    /// No such job.
    JobUnknown,
    /// The job is in another phase.
    JobPhase,
    /// No such node.
    NodeUnknown,
    /// The node is lost, cordoned, held by another, or in another incarnation.
    NodeNotCurrent,
    /// The token is not the placement's.
    TokenNotCurrent,
    /// A rank is not one of this node's, or is over already.
    RankNotCurrent,
    /// A worker does not fit where it was put.
    DoesNotFit,
    /// The node is not admitted as it describes itself.
    NotAdmitted,
    /// The workers are not the gang that was asked for: type, labels, place, topology or slice.
    NotTheGang(fit::GangFault),
    /// A job does not belong to the submission group it is to join, or there is no such group.
    BurstNotCurrent,
    /// A gang would go on where its checkpoints cannot be read.
    CheckpointsOutOfReach,
    /// A quota of the tenant, or of one above it, would be exceeded.
    QuotaExceeded,
    /// More of a counted resource would be held than the policy has, or in another region than its own.
    LicencesExceeded,
    /// A tenant, or one above it, would be charged for more CPUs or memory than the policy lets it.
    HostLimitExceeded,
    /// A gang would be stopped that may not be stopped for this one: see `standing`.
    Protected,
    /// A gang that policy must not stop would borrow what others are promised.
    FixedBorrower,
    /// The policy does not give the tenant the right that this needs.
    RightMissing,
    /// Its tenant would have more jobs than the policy lets it have.
    TenantLimit,
    /// An operator holds the job or has suspended the schedule, and nobody else may release or resume it.
    HeldByOperator,
    /// Workers still run.
    WorkersRemain,
    /// Nothing would change.
    NothingToDo,
    /// Another token has this id, or this name among those of the same tenant.
    TokenExists,
    /// The policy does not list the tenant.
    TenantUnlisted,
    /// A grant of quota would promise more than there is to promise.
    QuotaUnavailable,
    /// No such request for quota or grant.
    QuotaGrantUnknown,
    /// The request for quota was answered, or the grant is over.
    QuotaGrantOver,
    /// There is a booking of this name.
    BookingExists,
    /// Another booking has one of the nodes at the same time.
    BookingOverlaps,
    /// An operator holds the place of a node, or the tenant of the job.
    FleetHeld,
    /// A booking keeps the job from a node, or the one that it names is not open.
    Booked,
    /// The tenant has a schedule of this name.
    ScheduleExists,
    /// No such schedule.
    ScheduleUnknown,
    /// The schedule waits for another moment, or for none.
    ScheduleNotDue,
}

pub(crate) fn require(condition: bool, error: GuardError) -> Result<(), GuardError> {
    if condition { Ok(()) } else { Err(error) }
}
