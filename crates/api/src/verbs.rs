//! Roles of the policy: which verb each call has, and what such a role lets its holder do. What has no verb, no such role may.

use muster_state::State;
use muster_transport::Principal;
use muster_types::Name;
use muster_types::policy::{OwnRole, Verb};

/// The role of the policy that a caller has; `None` where it has all of a built-in one, and `Some(None)` for one that the policy does
/// not define any more.
pub(crate) fn own_role<'a>(view: &'a State, principal: &Principal) -> Option<Option<&'a OwnRole>> {
    let Principal::Token(holder) = principal else { return None };
    let own = holder.own_role?;
    let name = Name::new(own.as_str());
    Some(name.and_then(|name| view.policy().policy.own_role(&name, holder.role)))
}

/// Whether a caller may operate what stands in a region.
pub(crate) fn is_for_region(view: &State, principal: &Principal, region: &str) -> bool {
    own_role(view, principal).is_none_or(|role| role.is_some_and(|role| role.is_for_region(region)))
}

/// Whether a caller's role has a call, as far as verbs say.
pub(crate) fn has_call(view: &State, principal: &Principal, path: &str) -> bool {
    let has =
        |role: Option<&OwnRole>| role.is_some_and(|role| is_in(path, |verb| role.verbs.contains(&verb)));
    own_role(view, principal).is_none_or(has)
}

/// Calls that every role may make: who it is, versions and health.
fn is_for_all(path: &str) -> bool {
    path == "/muster.v1beta1.ClusterService/GetServerInfo" || path.starts_with("/grpc.")
}

/// The verb of a call; none where no role of a policy may make it.
fn verb_of(path: &str) -> Option<Verb> {
    let call = path.strip_prefix("/muster.")?;
    Some(match call {
        "admin.v1beta1.ArchiveService/GetArchiveStatus"
        | "admin.v1beta1.DrillService/GetDrill"
        | "v1beta1.BookingService/GetBooking"
        | "v1beta1.BookingService/ListBookings"
        | "v1beta1.ClusterService/GetStatus"
        | "v1beta1.FleetService/GetHealthPolicy"
        | "v1beta1.FleetService/GetNode"
        | "v1beta1.FleetService/ListCapacity"
        | "v1beta1.FleetService/ListFleetHolds"
        | "v1beta1.FleetService/ListNodes"
        | "v1beta1.FleetService/WatchNodes"
        | "v1beta1.HistoryService/ReadDecisions"
        | "v1beta1.JobService/ExplainJob"
        | "v1beta1.JobService/GetArray"
        | "v1beta1.JobService/GetJob"
        | "v1beta1.JobService/ListArrays"
        | "v1beta1.JobService/ListJobs"
        | "v1beta1.JobService/PlanJob"
        | "v1beta1.JobService/WatchJobs"
        | "v1beta1.PolicyService/GetPolicy"
        | "v1beta1.QuotaService/ListQuotaGrants"
        | "v1beta1.ScheduleService/GetSchedule"
        | "v1beta1.ScheduleService/ListSchedules"
        | "v1beta1.TenantService/ListLicences"
        | "v1beta1.TenantService/ListTenants"
        | "v1beta1.TenantService/WatchTenants" => Verb::Read,
        "v1beta1.JobService/SubmitJob"
        | "v1beta1.JobService/SubmitJobs"
        | "v1beta1.JobService/SubmitStream"
        | "v1beta1.QuotaService/RequestQuota"
        | "v1beta1.ScheduleService/CreateSchedule"
        | "v1beta1.ScheduleService/RunSchedule"
        | "v1beta1.ScheduleService/UpdateSchedule" => Verb::Submit,
        "v1beta1.JobService/CancelJob"
        | "v1beta1.JobService/CancelJobs"
        | "v1beta1.ScheduleService/DeleteSchedule" => Verb::Cancel,
        "v1beta1.JobService/HoldJobs"
        | "v1beta1.JobService/ReleaseJobs"
        | "v1beta1.JobService/RequeueJobs"
        | "v1beta1.JobService/SuspendJobs"
        | "v1beta1.JobService/UpdateJob"
        | "v1beta1.ScheduleService/ResumeSchedule"
        | "v1beta1.ScheduleService/SuspendSchedule" => Verb::Control,
        "v1beta1.JobService/CommitCheckpoint" => Verb::Checkpoint,
        "v1beta1.JobService/ReadLogs" => Verb::Output,
        "v1beta1.JobService/ExecWorker" | "v1beta1.JobService/ForwardPort" => Verb::Exec,
        "v1beta1.FleetService/CordonNode" | "v1beta1.FleetService/UncordonNode" => Verb::Cordon,
        "v1beta1.FleetService/DrainNode" | "v1beta1.FleetService/CancelNodeDrain" => Verb::Drain,
        "v1beta1.FleetService/BeginNodeRepair" | "v1beta1.FleetService/FinishNodeRepair" => Verb::Repair,
        "v1beta1.FleetService/QuarantineNode" | "v1beta1.FleetService/ReleaseNode" => Verb::Quarantine,
        "v1beta1.FleetService/SetNodeLabels" => Verb::Label,
        "v1beta1.FleetService/ForgetNode" => Verb::Forget,
        "v1beta1.FleetService/GetNodeAdmission" | "v1beta1.FleetService/ListPendingNodes" => Verb::Admission,
        "admin.v1beta1.ProbeService/ProbeNodes" => Verb::Probe,
        "admin.v1beta1.DrillService/AnnounceDrill"
        | "admin.v1beta1.DrillService/EndDrill"
        | "admin.v1beta1.DrillService/RefuseTraffic" => Verb::Drill,
        "admin.v1beta1.ClusterAdminService/TransferLeadership" => Verb::Leadership,
        "admin.v1beta1.ArchiveService/ReadRounds" => Verb::Archive,
        _ => return None,
    })
}

/// Whether a role with these verbs has a call.
pub(crate) fn is_in(path: &str, has: impl Fn(Verb) -> bool) -> bool {
    is_for_all(path) || verb_of(path).is_some_and(has)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::RULES;
    use muster_transport::{ShortName, TokenHolder};
    use muster_types::{ClusterId, TokenId, TokenRole};

    fn holder(role: TokenRole) -> Principal {
        Principal::Token(TokenHolder {
            cluster: ClusterId(1),
            id: TokenId(7),
            role,
            tenant: None,
            user: ShortName::new("ada").expect("a name"),
            own_role: None,
            issuer: None,
        })
    }

    /// No call is forgotten: it has a verb, every role has it, or it is listed here as one that no role of a policy has.
    #[test]
    fn every_call_of_a_built_in_role_has_a_verb_or_is_withheld() {
        let withheld = [
            "AnswerQuota",
            "CreateBooking",
            "CreateToken",
            "DeleteBooking",
            "GrantQuota",
            "ListTokens",
            "PlanBooking",
            "RevokeToken",
            "SetFleetHold",
        ];
        for rule in RULES {
            let name = rule.path.rsplit('/').next().expect("a path");
            let wholes = TokenRole::ALL.into_iter().filter(|role| *role != TokenRole::Admin);
            let is_of_some = wholes.into_iter().any(|role| rule.kinds.include(&holder(role)));
            let is_classified = is_in(rule.path, |_| true);
            assert_eq!(is_classified, is_of_some && !withheld.contains(&name), "{}", rule.path);
        }
    }

    #[test]
    fn what_causes_jobs_has_the_verb_of_jobs_and_what_gives_away_capacity_has_none() {
        for (call, verb) in [
            ("ScheduleService/CreateSchedule", Some(Verb::Submit)),
            ("ScheduleService/UpdateSchedule", Some(Verb::Submit)),
            ("ScheduleService/RunSchedule", Some(Verb::Submit)),
            ("ScheduleService/ResumeSchedule", Some(Verb::Control)),
            ("ScheduleService/GetSchedule", Some(Verb::Read)),
            ("JobService/ForwardPort", Some(Verb::Exec)),
            ("QuotaService/GrantQuota", None),
            ("QuotaService/AnswerQuota", None),
            ("BookingService/CreateBooking", None),
            ("BookingService/DeleteBooking", None),
        ] {
            assert_eq!(verb_of(&format!("/muster.v1beta1.{call}")), verb, "{call}");
        }
    }

    /// What the policy checks of verbs and built-in roles is what the permission table says.
    #[test]
    fn a_verb_is_of_a_built_in_role_where_the_role_has_a_call_of_it() {
        for verb in Verb::ALL {
            for role in TokenRole::ALL {
                let mut calls = RULES.iter().filter(|rule| verb_of(rule.path) == Some(verb));
                let has_one = calls.any(|rule| rule.kinds.include(&holder(role)));
                assert_eq!(verb.is_of(role), has_one, "{verb} {role}");
            }
        }
    }
}
