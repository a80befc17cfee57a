//! Closed sets: values of `types` that the protocol has an enum for.
//!
//! Zero is what a client left out. A number that this version does not know is refused with the field named, and never
//! taken for another value.

use muster_types::health::{DrainCause, HealthAction, XidRule};
use muster_types::policy::{
    Guarantee, NonPreemptible, NotificationBody, NotificationEvent, OnLimit, Order, PurchaseKind, QueueOrder,
    QueuePreemption, Verb,
};
use muster_types::{
    AdmissionMode, AffinityLevel, AffinityRule, BookingClearing, CommandShell, CpuBinding, DependencyRule,
    FailureClass, LaunchForm, Level, Preflight, PriorityTier, PullRule, TokenRole, Violation,
};

use crate::v1;

/// A closed set that the protocol has an enum for.
pub trait ClosedSet: Copy + PartialEq + 'static {
    /// Every value.
    const ALL: &'static [Self];

    /// Its number in messages; never zero.
    fn number(self) -> i32;

    /// Its name in the protocol, as in `TIER_FREE`.
    fn constant(self) -> &'static str;

    /// The word for it in files and to people.
    fn word(self) -> &'static str;
}

macro_rules! closed_sets {
    ($($type:ty as $message:ident { $($value:path = $constant:ident $word:literal),* $(,)? })*) => {$(
        impl ClosedSet for $type {
            const ALL: &'static [$type] = &[$($value,)*];

            fn number(self) -> i32 {
                match self { $($value => v1::$message::$constant.into(),)* }
            }

            fn constant(self) -> &'static str {
                match self { $($value => v1::$message::$constant.as_str_name(),)* }
            }

            fn word(self) -> &'static str {
                match self { $($value => $word,)* }
            }
        }
    )*};
}

/// The same where the enum of the protocol is the set itself, with one value more for what is left out.
macro_rules! enums {
    ($($message:ident { $($constant:ident $word:literal),* $(,)? })*) => {$(
        impl ClosedSet for v1::$message {
            const ALL: &'static [v1::$message] = &[$(v1::$message::$constant,)*];

            fn number(self) -> i32 {
                self.into()
            }

            fn constant(self) -> &'static str {
                self.as_str_name()
            }

            fn word(self) -> &'static str {
                match self { $(v1::$message::$constant => $word,)* v1::$message::Unspecified => "" }
            }
        }
    )*};
}

closed_sets! {
    PriorityTier as Tier {
        PriorityTier::Free = Free "free",
        PriorityTier::Batch = Batch "batch",
        PriorityTier::Standard = Standard "standard",
        PriorityTier::Production = Production "production",
        PriorityTier::Critical = Critical "critical",
    }
    BookingClearing as BookingClearing {
        BookingClearing::Finish = Finish "finish",
        BookingClearing::Stop = Stop "stop",
        BookingClearing::Fill = Fill "fill",
    }
    Guarantee as Isolation {
        Guarantee::Devices = Devices "devices",
        Guarantee::Pid = Pid "pid",
        Guarantee::Tmp = Tmp "tmp",
        Guarantee::User = User "user",
    }
    NotificationEvent as NotificationEvent {
        NotificationEvent::JobStarted = JobStarted "job_started",
        NotificationEvent::JobSucceeded = JobSucceeded "job_succeeded",
        NotificationEvent::JobFailed = JobFailed "job_failed",
        NotificationEvent::JobCancelled = JobCancelled "job_cancelled",
        NotificationEvent::JobRetried = JobRetried "job_retried",
        NotificationEvent::JobPreempted = JobPreempted "job_preempted",
        NotificationEvent::JobEvicted = JobEvicted "job_evicted",
        NotificationEvent::NodeUp = NodeUp "node_up",
        NotificationEvent::NodeDown = NodeDown "node_down",
        NotificationEvent::NodeUnhealthy = NodeUnhealthy "node_unhealthy",
        NotificationEvent::NodeQuarantined = NodeQuarantined "node_quarantined",
        NotificationEvent::NodeReleased = NodeReleased "node_released",
        NotificationEvent::NodeDraining = NodeDraining "node_draining",
        NotificationEvent::ScheduleSuspended = ScheduleSuspended "schedule_suspended",
    }
    NotificationBody as NotificationBody {
        NotificationBody::Generic = Generic "generic",
        NotificationBody::Slack = Slack "slack",
    }
    TokenRole as BuiltInRole {
        TokenRole::Viewer = Viewer "viewer",
        TokenRole::Submitter = Submitter "submitter",
        TokenRole::TenantAdmin = TenantAdmin "tenant-admin",
        TokenRole::Operator = Operator "operator",
        TokenRole::Drill = Drill "drill",
        TokenRole::Admin = Admin "admin",
    }
    Verb as Verb {
        Verb::Read = Read "read",
        Verb::Submit = Submit "submit",
        Verb::Cancel = Cancel "cancel",
        Verb::Control = Control "control",
        Verb::Checkpoint = Checkpoint "checkpoint",
        Verb::Output = Output "output",
        Verb::Exec = Exec "exec",
        Verb::Cordon = Cordon "cordon",
        Verb::Drain = Drain "drain",
        Verb::Repair = Repair "repair",
        Verb::Quarantine = Quarantine "quarantine",
        Verb::Label = Label "label",
        Verb::Forget = Forget "forget",
        Verb::Admission = Admission "admission",
        Verb::Probe = Probe "probe",
        Verb::Drill = Drill "drill",
        Verb::Leadership = Leadership "leadership",
        Verb::Archive = Archive "archive",
    }
    LaunchForm as LaunchForm {
        LaunchForm::Environment = Environment "environment",
        LaunchForm::Torchrun = Torchrun "torchrun",
        LaunchForm::Ray = Ray "ray",
        LaunchForm::Mpi = Mpi "mpi",
        LaunchForm::DeepSpeed = Deepspeed "deepspeed",
        LaunchForm::TorchrunElastic = TorchrunElastic "torchrun_elastic",
    }
    PullRule as PullRule {
        PullRule::Missing = Missing "missing",
        PullRule::Always = Always "always",
        PullRule::Never = Never "never",
    }
    CpuBinding as CpuBinding {
        CpuBinding::None = None "none",
        CpuBinding::Numa = Numa "numa",
        CpuBinding::Cores = Cores "cores",
    }
    CommandShell as CommandShell {
        CommandShell::None = None "none",
        CommandShell::Login = Login "login",
    }
    Preflight as Preflight {
        Preflight::Default = Default "default",
        Preflight::Off = Off "off",
        Preflight::On = On "on",
    }
    FailureClass as FailureClass {
        FailureClass::Application = Application "application",
        FailureClass::OutOfMemory = OutOfMemory "out_of_memory",
        FailureClass::LaunchFailed = LaunchFailed "launch_failed",
        FailureClass::NodeFault = NodeFault "node_fault",
        FailureClass::Preflight = Preflight "preflight",
        FailureClass::Preempted = Preempted "preempted",
        FailureClass::Evicted = Evicted "evicted",
        FailureClass::Lost = Lost "lost",
        FailureClass::BackendLost = BackendLost "backend_lost",
    }
    Level as TopologyLevel {
        Level::Block = Block "block",
        Level::Rack = Rack "rack",
        Level::Host = Host "host",
    }
    AffinityLevel as AffinityLevel {
        AffinityLevel::Region = Region "region",
        AffinityLevel::Cluster = Cluster "cluster",
        AffinityLevel::Block = Block "block",
        AffinityLevel::Rack = Rack "rack",
        AffinityLevel::Host = Host "host",
    }
    AffinityRule as AffinityRule {
        AffinityRule::Together = Together "together",
        AffinityRule::Apart = Apart "apart",
    }
    DependencyRule as DependencyRule {
        DependencyRule::Succeeded = Succeeded "succeeded",
        DependencyRule::Finished = Finished "finished",
    }
    NonPreemptible as NonPreemptible {
        NonPreemptible::Never = Never "never",
        NonPreemptible::WithinNominal = WithinNominal "within_nominal",
        NonPreemptible::Always = Always "always",
    }
    QueueOrder as QueueOrder {
        QueueOrder::Fair = Fair "fair",
        QueueOrder::Strict = Strict "strict",
    }
    QueuePreemption as QueuePreemption {
        QueuePreemption::None = None "none",
        QueuePreemption::Reclaim = Reclaim "reclaim",
        QueuePreemption::FairShare = FairShare "fair_share",
    }
    OnLimit as OnLimit {
        OnLimit::Hold = Hold "hold",
        OnLimit::Refuse = Refuse "refuse",
    }
    PurchaseKind as Purchase {
        PurchaseKind::Owned = Owned "owned",
        PurchaseKind::OnDemand = OnDemand "on_demand",
        PurchaseKind::Spot = Spot "spot",
        PurchaseKind::Reserved = Reserved "reserved",
    }
    Order as JobOrder {
        Order::Submission = Submission "submission",
        Order::Predicted = Predicted "predicted",
    }
    AdmissionMode as AdmissionMode {
        AdmissionMode::Open = Open "open",
        AdmissionMode::Pinned = Pinned "pinned",
        AdmissionMode::Approve = Approve "approve",
    }
    DrainCause as DrainCause {
        DrainCause::Operator = Operator "operator",
        DrainCause::Maintenance = Maintenance "maintenance",
        DrainCause::Repair = Repair "repair",
    }
    HealthAction as HealthAction {
        HealthAction::Ignore = Ignore "ignore",
        HealthAction::RestartApp = RestartApp "restart-app",
        HealthAction::Cordon = Cordon "cordon",
        HealthAction::ResetGpu = ResetGpu "reset-gpu",
        HealthAction::RebootNode = RebootNode "reboot-node",
        HealthAction::Inspect = Inspect "inspect",
    }
}

enums! {
    JobPhase {
        Pending "pending", Starting "starting", Running "running", Stopping "stopping", Succeeded "succeeded",
        Failed "failed", Cancelled "cancelled",
    }
    WorkerState { Assigned "assigned", Running "running", Exited "exited", Lost "lost" }
    OutputStream { Stdout "stdout", Stderr "stderr" }
    QuotaStanding { WithinNominal "within_nominal", Borrowing "borrowing", Unpromised "unpromised" }
    QuotaLimit {
        Nominal "nominal", Borrowing "borrowing", ParentCapacity "parent_capacity", LentReserve "lent_reserve",
    }
    QuotaGrantStatus {
        Requested "requested", Granted "granted", Denied "denied", Ended "ended", Lapsed "lapsed",
    }
    QuotaGrantEnd {
        Expired "expired", Withdrawn "withdrawn", PolicySet "policy_set", SourceEnded "source_ended",
    }
    NodeOperator {
        In "in", NotIn "not_in", Exists "exists", DoesNotExist "does_not_exist", Greater "greater", Less "less",
    }
    RepairPhase { Draining "draining", Working "working", Failed "failed" }
    ReplicaRole {
        Leader "leader", Unconfirmed "unconfirmed", Follower "follower", Candidate "candidate", Learner "learner",
        Stopped "stopped",
    }
}

impl ClosedSet for XidRule {
    const ALL: &'static [XidRule] = &[
        XidRule::Act(HealthAction::Ignore),
        XidRule::Act(HealthAction::RestartApp),
        XidRule::Act(HealthAction::Cordon),
        XidRule::Act(HealthAction::ResetGpu),
        XidRule::Act(HealthAction::RebootNode),
        XidRule::Act(HealthAction::Inspect),
        XidRule::AsDriverSays,
    ];

    fn number(self) -> i32 {
        action(self).into()
    }

    fn constant(self) -> &'static str {
        action(self).as_str_name()
    }

    fn word(self) -> &'static str {
        self.name()
    }
}

fn action(rule: XidRule) -> v1::XidAction {
    match rule {
        XidRule::Act(HealthAction::Ignore) => v1::XidAction::Ignore,
        XidRule::Act(HealthAction::RestartApp) => v1::XidAction::RestartApp,
        XidRule::Act(HealthAction::Cordon) => v1::XidAction::Cordon,
        XidRule::Act(HealthAction::ResetGpu) => v1::XidAction::ResetGpu,
        XidRule::Act(HealthAction::RebootNode) => v1::XidAction::RebootNode,
        XidRule::Act(HealthAction::Inspect) => v1::XidAction::Inspect,
        XidRule::AsDriverSays => v1::XidAction::AsDriverSays,
    }
}

/// The value of a number in a message; none for zero.
///
/// # Errors
/// When this version knows no such number.
pub fn value_from_proto<T: ClosedSet>(field: &str, number: i32) -> Result<Option<T>, Violation> {
    if number == 0 {
        return Ok(None);
    }
    T::ALL.iter().copied().find(|value| value.number() == number).map(Some).ok_or_else(|| {
        let known: Vec<&str> = T::ALL.iter().map(|value| value.constant()).collect();
        Violation::new(field, format!("must be one of {}, got the number {number}", known.join(", ")))
    })
}

/// The value of a number that has to be given.
///
/// # Errors
/// When it is zero, or this version knows no such number.
pub fn given_from_proto<T: ClosedSet>(field: &str, number: i32) -> Result<T, Violation> {
    value_from_proto(field, number)?.ok_or_else(|| {
        let known: Vec<&str> = T::ALL.iter().map(|value| value.constant()).collect();
        Violation::new(field, format!("must be given: one of {}", known.join(", ")))
    })
}

/// The number of a value.
#[must_use]
pub fn number<T: ClosedSet>(value: T) -> i32 {
    value.number()
}

/// The number of a value that may be left out, which is zero then.
#[must_use]
pub fn number_or_zero<T: ClosedSet>(value: Option<T>) -> i32 {
    value.map_or(0, T::number)
}

/// The value of a word in a file.
#[must_use]
pub fn of_word<T: ClosedSet>(word: &str) -> Option<T> {
    T::ALL.iter().copied().find(|value| value.word() == word)
}

/// The word of a number in an answer; empty for zero, `unknown` for one of a newer server.
#[must_use]
pub fn word<T: ClosedSet>(number: i32) -> &'static str {
    match T::ALL.iter().find(|value| value.number() == number) {
        Some(value) => value.word(),
        None if number == 0 => "",
        None => "unknown",
    }
}

/// The word of a job's phase; `unknown` where a message states none.
#[must_use]
pub fn phase_word(phase: v1::JobPhase) -> &'static str {
    match phase {
        v1::JobPhase::Unspecified => "unknown",
        known => known.word(),
    }
}

/// Every word, for a sentence that lists them.
#[must_use]
pub fn words<T: ClosedSet>() -> String {
    T::ALL.iter().map(|value| value.word()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds<T: ClosedSet + std::fmt::Debug>(said: impl Fn(T) -> String) {
        for value in T::ALL.iter().copied() {
            assert_ne!(value.number(), 0, "{value:?}");
            assert_eq!(value_from_proto("field", value.number()), Ok(Some(value)));
            assert_eq!(of_word::<T>(value.word()), Some(value));
            assert_eq!(word::<T>(value.number()), value.word());
            assert_eq!(said(value), value.word());
            // The name in the protocol is the word, behind the name of the set.
            let ending = value.word().replace('-', "_").to_uppercase();
            assert!(value.constant().ends_with(&format!("_{ending}")), "{}", value.constant());
        }
        assert_eq!(value_from_proto::<T>("field", 0), Ok(None));
        for number in [-1, 99, i32::MAX] {
            let violation = value_from_proto::<T>("spec.tier", number).expect_err("nobody knows it");
            assert_eq!(violation.field, "spec.tier");
            assert!(violation.description.contains(&format!("got the number {number}")), "{violation}");
            assert_eq!(word::<T>(number), "unknown");
        }
        assert!(given_from_proto::<T>("field", 0).is_err());
    }

    #[test]
    fn every_value_has_a_number_and_a_word_and_what_is_unknown_is_refused() {
        holds::<PriorityTier>(|value| value.to_string());
        holds::<Guarantee>(|value| value.to_string());
        holds::<NotificationEvent>(|value| value.to_string());
        holds::<NotificationBody>(|value| value.to_string());
        holds::<LaunchForm>(|value| value.to_string());
        holds::<PullRule>(|value| value.to_string());
        holds::<CpuBinding>(|value| value.to_string());
        holds::<CommandShell>(|value| value.to_string());
        holds::<Preflight>(|value| value.to_string());
        holds::<FailureClass>(|value| value.to_string());
        holds::<Level>(|value| value.to_string());
        holds::<TokenRole>(|value| value.to_string());
        holds::<Verb>(|value| value.to_string());
        holds::<NonPreemptible>(|value| value.as_str().to_owned());
        holds::<OnLimit>(|value| value.as_str().to_owned());
        holds::<QueueOrder>(|value| value.as_str().to_owned());
        holds::<QueuePreemption>(|value| value.as_str().to_owned());
        holds::<PurchaseKind>(|value| value.to_string());
        holds::<AdmissionMode>(|value| value.name().to_owned());
        holds::<DrainCause>(|value| value.name().to_owned());
        holds::<BookingClearing>(|value| value.name().to_owned());
        holds::<HealthAction>(|value| value.name().to_owned());
        holds::<XidRule>(|value| value.name().to_owned());
        holds::<AffinityLevel>(|value| value.as_str().to_owned());
        holds::<AffinityRule>(|value| value.as_str().to_owned());
        holds::<DependencyRule>(|value| value.word().to_owned());
        holds::<Order>(|value| value.word().to_owned());
        holds::<v1::JobPhase>(|value| phase_word(value).to_owned());
        holds::<v1::WorkerState>(|value| value.word().to_owned());
        holds::<v1::OutputStream>(|value| value.word().to_owned());
        holds::<v1::QuotaStanding>(|value| value.word().to_owned());
        holds::<v1::QuotaLimit>(|value| value.word().to_owned());
        holds::<v1::QuotaGrantStatus>(|value| value.word().to_owned());
        holds::<v1::QuotaGrantEnd>(|value| value.word().to_owned());
        holds::<v1::NodeOperator>(|value| value.word().to_owned());
        holds::<v1::RepairPhase>(|value| value.word().to_owned());
        holds::<v1::ReplicaRole>(|value| value.word().to_owned());
    }
}
