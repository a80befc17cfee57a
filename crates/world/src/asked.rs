//! What clients of all kinds ask for, by the names that the log has for it: how often it was sent, and how often it was taken.
//!
//! **Invariant:** a command that somebody can give has a name here, or the crate does not compile.

use muster_decider::{Command, ScheduleAction};
use muster_journal::Decision;
use muster_types::Control;
use std::collections::BTreeMap;

/// How often each thing was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// By the name of the decision, and of a change also by the field of the job: how often a client sent it, repeats left out.
    pub sent: BTreeMap<&'static str, u64>,
    /// By the name of the decision: how often the log has it.
    pub accepted: BTreeMap<&'static str, u64>,
}

impl Asked {
    /// Adds what another run has come to.
    pub fn add(&mut self, other: &Asked) {
        let pairs = [(&mut self.sent, &other.sent), (&mut self.accepted, &other.accepted)];
        for (own, theirs) in pairs {
            theirs.iter().for_each(|(name, count)| *own.entry(*name).or_default() += count);
        }
    }

    /// One line for each name: sent and accepted.
    #[must_use]
    pub fn table(&self, names: &[&str]) -> String {
        let count = |of: &BTreeMap<&'static str, u64>, name: &str| of.get(name).copied().unwrap_or(0);
        let mut text = String::new();
        for name in names {
            let (sent, accepted) = (count(&self.sent, name), count(&self.accepted, name));
            text.push_str(&format!("{name:<26} {sent:>6} sent {accepted:>6} accepted\n"));
        }
        text
    }
}

/// What a command asks for; none for what agents report, and for what a leader asks of itself.
#[must_use]
pub fn asked_of(command: &Command) -> Option<&'static str> {
    Some(match command {
        Command::Submit { jobs, .. } if jobs.iter().any(|job| job.array.is_some()) => "arrays_submitted",
        Command::Submit { .. } => "jobs_submitted",
        Command::Control(order) if !order.selection.arrays.is_empty() => "arrays_controlled",
        Command::Control(order) => match order.control {
            Control::Cancel => "job_cancel_requested",
            Control::Hold | Control::Release => "job_hold_set",
            Control::Requeue | Control::Suspend => "job_requeue_requested",
        },
        Command::Modify(_) => "job_modified",
        Command::SetCordon { .. } => "node_cordon_set",
        Command::SetPolicy { .. } | Command::UpdatePolicy { .. } => "policy_set",
        Command::RaiseFormat { .. } => "format_raised",
        Command::ForgetNode { .. } => "node_forgotten",
        Command::SetDrain { .. } => "node_drain_set",
        Command::SetQuarantine { .. } => "node_quarantine_set",
        Command::SetRepair { .. } => "node_repair_set",
        Command::SetHealthPolicy { .. } => "health_policy_set",
        Command::SetNodeOverrides(_) => "node_overrides_set",
        Command::SetNodeAdmission { .. } => "node_admission_set",
        Command::SetNodeApproval { .. } => "node_approval_set",
        Command::RevokeCertificate { .. } => "certificate_revoked",
        Command::SetThrottle(_) => "array_throttle_set",
        Command::OpenExec { .. } => "exec_opened",
        Command::OpenPortForward { .. } => "port_forward_opened",
        Command::CreateToken(_) => "token_created",
        Command::RevokeToken { .. } => "token_revoked",
        Command::RequestQuota(_) => "quota_requested",
        Command::AnswerQuota(_) => "quota_answered",
        Command::GrantQuota(_) => "quota_granted",
        Command::CreateBooking(_) => "booking_created",
        Command::DeleteBooking { .. } => "booking_deleted",
        Command::SetFleetHold(_) => "fleet_hold_set",
        Command::SetSchedule(_) => "schedule_set",
        Command::ControlSchedule(order) => match order.action {
            ScheduleAction::Delete => "schedule_deleted",
            ScheduleAction::Suspend { .. } | ScheduleAction::Resume => "schedule_suspension_set",
            ScheduleAction::Run => "jobs_submitted",
        },
        Command::CommitCheckpoint { .. }
        | Command::NoteStraggler { .. }
        | Command::Register { .. }
        | Command::RegisterStart { .. }
        | Command::Recover { .. }
        | Command::ReportHealth { .. }
        | Command::NoteSoundNetwork { .. }
        | Command::ReportForeignLoad { .. }
        | Command::SessionOver { .. }
        | Command::Report { .. }
        | Command::NoteNotifications { .. }
        | Command::KeepArtifacts { .. }
        | Command::PlanSchedule { .. }
        | Command::FireSchedule { .. } => return None,
    })
}

/// The name of a decision that somebody asked for; none for what was decided here.
#[must_use]
pub fn accepted_as(decision: &Decision) -> Option<&'static str> {
    decision.requester()?;
    let is_asked = match decision {
        Decision::NodeForgotten { request, .. }
        | Decision::NodeDrainSet { request, .. }
        | Decision::NodeQuarantineSet { request, .. }
        | Decision::NodeRepairSet { request, .. }
        | Decision::NodeApprovalSet { request, .. }
        | Decision::ScheduleSuspensionSet { request, .. } => request.is_some(),
        _ => true,
    };
    is_asked.then(|| decision.name())
}
