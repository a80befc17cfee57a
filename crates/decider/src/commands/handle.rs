//! Carries out what the leader is asked to do.

use muster_journal::NodeLostCause;
use muster_types::{Refusal, RefusalCode};

use crate::commands::answer::Answer;
use crate::commands::command::Command;
use crate::commands::{
    admission, booking, cluster, controls, fleet_holds, health, jobs, modify, network, node, notifications,
    overrides, policy, quota, restrictions, schedules, submit, throttle, token,
};
use crate::speculation::Speculation;

/// Carries out a command on the speculation.
///
/// # Errors
/// A refusal; then nothing was pushed.
pub fn handle(speculation: &mut Speculation, command: &Command) -> Result<Answer, Refusal> {
    // What ran in the previous generation may be unknown here: until the recovery nothing is placed, ended or promised.
    if speculation.is_recovering() && !matches!(command, Command::Recover { .. }) {
        if matches!(command, Command::SessionOver { .. }) {
            // Every session ends with the recovery.
            return Ok(Answer::Done { at: speculation.last_index() });
        }
        let text = "the cluster is being recovered, and leases of its previous generation may still be held";
        return Err(Refusal::new(RefusalCode::ClusterRecovering, text));
    }
    match command {
        Command::RaiseFormat { by, format } => cluster::raise_format(speculation, by, *format),
        Command::Recover { generation } => cluster::recover(speculation, *generation),
        Command::ForgetNode { request, by, node } => node::forget(speculation, (*request, by), *node),
        Command::Submit { request, by, jobs, path } => {
            submit::submit(speculation, (*request, by), jobs, *path)
        }
        Command::Control(order) => controls::control(speculation, order),
        Command::Modify(order) => modify::modify(speculation, order),
        Command::SetThrottle(order) => throttle::set_throttle(speculation, order),
        Command::SetCordon { request, by, node, cordoned, reason } => {
            restrictions::set_cordon(speculation, (*request, by), *node, (*cordoned, reason.as_deref()))
        }
        Command::SetPolicy { request, by, policy, expected_version } => {
            policy::set_policy(speculation, (*request, by), policy, *expected_version)
        }
        Command::UpdatePolicy { request, by, update, expected_version } => {
            policy::update_policy(speculation, (*request, by), update, *expected_version)
        }
        Command::ReportHealth { node, incarnation, report } => {
            health::report(speculation, *node, *incarnation, report)
        }
        Command::NoteSoundNetwork { nodes } => Ok(network::sound(speculation, nodes)),
        Command::ReportForeignLoad { node, incarnation, load } => {
            node::foreign_load(speculation, *node, *incarnation, *load)
        }
        Command::SetDrain { request, by, node, order, reason } => {
            restrictions::set_drain(speculation, (*request, by), *node, (*order, reason.as_deref()))
        }
        Command::SetQuarantine { request, by, node, reason } => {
            restrictions::set_quarantine(speculation, (*request, by), *node, reason.as_deref())
        }
        Command::SetRepair { request, by, node, order } => {
            restrictions::set_repair(speculation, (*request, by), *node, order)
        }
        Command::SetHealthPolicy { request, by, policy, expected_version } => {
            health::set_policy(speculation, (*request, by), policy, *expected_version)
        }
        Command::SetNodeOverrides(order) => overrides::set(speculation, order),
        Command::SetNodeAdmission { request, by, admission, expected_version } => {
            admission::set(speculation, (*request, by), admission, *expected_version)
        }
        Command::SetNodeApproval { request, by, name, approval } => {
            admission::approve(speculation, (*request, by), name, approval.as_ref())
        }
        Command::RevokeCertificate { request, by, serial, revocation } => {
            admission::revoke(speculation, (*request, by), *serial, revocation)
        }
        Command::CommitCheckpoint { job, token, step } => {
            jobs::commit_checkpoint(speculation, *job, *token, *step)
        }
        Command::NoteStraggler { job, token, rank, slow_milli } => {
            Ok(jobs::note_straggler(speculation, *job, *token, *rank, *slow_milli))
        }
        Command::Register { spec, holder, other_session_is_over } => {
            node::register(speculation, spec, (*holder, None), *other_session_is_over)
        }
        Command::RegisterStart { spec, holder, start } => {
            node::register(speculation, spec, (*holder, Some(*start)), false)
        }
        Command::SessionOver { node, incarnation } => {
            Ok(node::lost(speculation, *node, *incarnation, NodeLostCause::LeaseExpired))
        }
        Command::Report { node, incarnation, job, token, updates } => {
            node::report(speculation, *node, *incarnation, *job, *token, updates)
        }
        Command::NoteNotifications { progress } => Ok(notifications::note(speculation, progress)),
        Command::OpenExec { by, job, token, rank, command } => {
            jobs::open_exec(speculation, by, *job, *token, *rank, command)
        }
        Command::RequestQuota(order) => quota::request(speculation, order),
        Command::AnswerQuota(order) => quota::answer(speculation, order),
        Command::GrantQuota(order) => quota::grant(speculation, order),
        Command::OpenPortForward { by, job, token, rank, port } => {
            jobs::open_port_forward(speculation, by, *job, *token, *rank, *port)
        }
        Command::KeepArtifacts { job, token, rank, artifacts } => {
            Ok(jobs::keep_artifacts(speculation, *job, *token, *rank, *artifacts))
        }
        Command::CreateToken(order) => token::create(speculation, order),
        Command::RevokeToken { request, by, acts_for, token } => {
            token::revoke(speculation, *request, by, acts_for.as_ref(), *token)
        }
        Command::CreateBooking(order) => booking::create(speculation, order),
        Command::DeleteBooking { request, by, acts_for, name } => {
            booking::delete(speculation, (*request, by), acts_for.as_ref(), name)
        }
        Command::SetFleetHold(order) => fleet_holds::set(speculation, order),
        Command::SetSchedule(order) => schedules::set(speculation, order),
        Command::ControlSchedule(order) => schedules::control(speculation, order),
        Command::PlanSchedule { schedule, set_index, next } => {
            Ok(schedules::plan(speculation, schedule, *set_index, *next))
        }
        Command::FireSchedule { schedule, set_index, due, next } => {
            Ok(schedules::fire(speculation, schedule, *set_index, (*due, *next)))
        }
    }
}
