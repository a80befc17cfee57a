//! What decisions are called, who asks for them, and since which format there are such.

use muster_types::Requester;

#[cfg(feature = "test-format")]
use crate::decision::TEST_FORMAT_REASON;
use crate::decision::{Decision, FORMAT_MIN};

/// Names of the decisions that somebody asks for: those with a [`Decision::requester`].
pub const REQUESTED_DECISIONS: [&str; 33] = [
    "jobs_submitted",
    "job_cancel_requested",
    "node_cordon_set",
    "policy_set",
    "format_raised",
    "node_forgotten",
    "node_drain_set",
    "node_quarantine_set",
    "node_repair_set",
    "health_policy_set",
    "node_admission_set",
    "node_approval_set",
    "certificate_revoked",
    "job_hold_set",
    "job_requeue_requested",
    "job_modified",
    "arrays_submitted",
    "arrays_controlled",
    "array_throttle_set",
    "node_overrides_set",
    "token_created",
    "token_revoked",
    "exec_opened",
    "quota_requested",
    "quota_answered",
    "quota_granted",
    "booking_created",
    "booking_deleted",
    "port_forward_opened",
    "schedule_set",
    "schedule_deleted",
    "schedule_suspension_set",
    "fleet_hold_set",
];

impl Decision {
    /// The lowest format that can say this.
    #[must_use]
    pub fn since_format(&self) -> u16 {
        match self {
            #[cfg(feature = "test-format")]
            Decision::NodeQuarantineSet { reason: Some(reason), .. } if reason == TEST_FORMAT_REASON => 2,
            _ => FORMAT_MIN,
        }
    }

    /// Who asked for it; none for what is decided without anybody asking, and for what agents report.
    #[must_use]
    pub fn requester(&self) -> Option<&Requester> {
        match self {
            Decision::JobsSubmitted { by, .. }
            | Decision::JobCancelRequested { by, .. }
            | Decision::NodeCordonSet { by, .. }
            | Decision::PolicySet { by, .. }
            | Decision::FormatRaised { by, .. }
            | Decision::NodeForgotten { by, .. }
            | Decision::NodeDrainSet { by, .. }
            | Decision::NodeQuarantineSet { by, .. }
            | Decision::NodeRepairSet { by, .. }
            | Decision::HealthPolicySet { by, .. }
            | Decision::NodeAdmissionSet { by, .. }
            | Decision::NodeApprovalSet { by, .. }
            | Decision::CertificateRevoked { by, .. }
            | Decision::JobHoldSet { by, .. }
            | Decision::JobRequeueRequested { by, .. }
            | Decision::JobModified { by, .. }
            | Decision::ArraysSubmitted { by, .. }
            | Decision::ArraysControlled { by, .. }
            | Decision::ArrayThrottleSet { by, .. }
            | Decision::NodeOverridesSet { by, .. }
            | Decision::TokenCreated { by, .. }
            | Decision::TokenRevoked { by, .. }
            | Decision::ExecOpened { by, .. }
            | Decision::QuotaRequested { by, .. }
            | Decision::QuotaAnswered { by, .. }
            | Decision::QuotaGranted { by, .. }
            | Decision::BookingCreated { by, .. }
            | Decision::BookingDeleted { by, .. }
            | Decision::PortForwardOpened { by, .. }
            | Decision::ScheduleSet { by, .. }
            | Decision::FleetHoldSet { by, .. }
            | Decision::ScheduleDeleted { by, .. }
            | Decision::ScheduleSuspensionSet { by, .. } => Some(by),
            _ => None,
        }
    }

    /// Stable name, for logs, metrics and tests.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Decision::ClusterCreated { .. } => "cluster_created",
            Decision::LeaderStarted => "leader_started",
            Decision::JobsSubmitted { .. } => "jobs_submitted",
            Decision::JobCancelRequested { .. } => "job_cancel_requested",
            Decision::NodeRegistered { .. } => "node_registered",
            Decision::NodeCordonSet { .. } => "node_cordon_set",
            Decision::NodeLost { .. } => "node_lost",
            Decision::WorkersReported { .. } => "workers_reported",
            Decision::GangPlaced { .. } => "gang_placed",
            Decision::GangStopRequested { .. } => "gang_stop_requested",
            Decision::JobRequeued { .. } => "job_requeued",
            Decision::JobFinished { .. } => "job_finished",
            Decision::HistoryPruned { .. } => "history_pruned",
            Decision::DigestRecorded { .. } => "digest_recorded",
            Decision::PolicySet { .. } => "policy_set",
            Decision::Rearranged { .. } => "rearranged",
            Decision::PromiseDropped { .. } => "promise_dropped",
            Decision::JobReleased { .. } => "job_released",
            Decision::TurnsChanged { .. } => "turns_changed",
            Decision::CheckpointCommitted { .. } => "checkpoint_committed",
            Decision::FormatRaised { .. } => "format_raised",
            Decision::ClusterRecovered { .. } => "cluster_recovered",
            Decision::NodeForgotten { .. } => "node_forgotten",
            Decision::JobContractsSet { .. } => "job_contracts_set",
            Decision::AttemptFailed { .. } => "attempt_failed",
            Decision::SparesTaken { .. } => "spares_taken",
            Decision::StragglerNoted { .. } => "straggler_noted",
            Decision::NodeHealthChanged { .. } => "node_health_changed",
            Decision::NodeDrainSet { .. } => "node_drain_set",
            Decision::NodeQuarantineSet { .. } => "node_quarantine_set",
            Decision::NodeRepairSet { .. } => "node_repair_set",
            Decision::HealthPolicySet { .. } => "health_policy_set",
            Decision::ForeignLoadSet { .. } => "foreign_load_set",
            Decision::NodeAdmissionSet { .. } => "node_admission_set",
            Decision::NodeApprovalSet { .. } => "node_approval_set",
            Decision::CertificateRevoked { .. } => "certificate_revoked",
            Decision::SessionResumed { .. } => "session_resumed",
            Decision::AgentStarted { .. } => "agent_started",
            Decision::JobMetadataSet { .. } => "job_metadata_set",
            Decision::JobHoldSet { .. } => "job_hold_set",
            Decision::JobRequeueRequested { .. } => "job_requeue_requested",
            Decision::JobModified { .. } => "job_modified",
            Decision::ArraysSubmitted { .. } => "arrays_submitted",
            Decision::ArrayMembersCreated { .. } => "array_members_created",
            Decision::ArrayReleased { .. } => "array_released",
            Decision::ArrayMembersFailed { .. } => "array_members_failed",
            Decision::ArraysControlled { .. } => "arrays_controlled",
            Decision::ArrayThrottleSet { .. } => "array_throttle_set",
            Decision::NodeOverridesSet { .. } => "node_overrides_set",
            Decision::NotificationsDelivered { .. } => "notifications_delivered",
            Decision::TokenCreated { .. } => "token_created",
            Decision::TokenRevoked { .. } => "token_revoked",
            Decision::ExecOpened { .. } => "exec_opened",
            Decision::QuotaRequested { .. } => "quota_requested",
            Decision::QuotaAnswered { .. } => "quota_answered",
            Decision::QuotaGranted { .. } => "quota_granted",
            Decision::QuotaGrantsEnded { .. } => "quota_grants_ended",
            Decision::BookingCreated { .. } => "booking_created",
            Decision::BookingDeleted { .. } => "booking_deleted",
            Decision::BookingOpened { .. } => "booking_opened",
            Decision::BookingEnded { .. } => "booking_ended",
            Decision::BookingMoved { .. } => "booking_moved",
            Decision::PortForwardOpened { .. } => "port_forward_opened",
            Decision::ArtifactsKept { .. } => "artifacts_kept",
            Decision::ScheduleSet { .. } => "schedule_set",
            Decision::ScheduleDeleted { .. } => "schedule_deleted",
            Decision::ScheduleSuspensionSet { .. } => "schedule_suspension_set",
            Decision::SchedulePlanned { .. } => "schedule_planned",
            Decision::ScheduleRan { .. } => "schedule_ran",
            Decision::FallbackOpened { .. } => "fallback_opened",
            Decision::FleetHoldSet { .. } => "fleet_hold_set",
            Decision::FleetHoldEnded { .. } => "fleet_hold_ended",
        }
    }
}
