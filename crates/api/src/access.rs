//! Who may call what. One table; whatever it does not name is not served.
//!
//! A certificate's kind decides, or where a token is shown, its role. The holder of a client's certificate that names a tenant
//! submits, cancels and reads output only for that tenant and those below it, the holder of one for all tenants for
//! every tenant, and the holder of one that names none looks and changes nothing. What jobs, nodes and queues there
//! are, every user of the cluster may see. An agent speaks for the node that has its name, an agent group for the nodes
//! below its name. A replica calls in its own name only to look; what it passes on is judged by whom it is for.

use muster_transport::{Principal, Role};
use muster_types::TokenRole;

/// How a call is counted, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Until it is answered.
    Call,
    /// An answer that goes on: a watch, output.
    Stream,
    /// An agent's session.
    Session,
    /// An agent's output on its way to a reader.
    Upload,
}

/// Kinds of certificates and roles of tokens, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kinds(u8);

const REPLICA: Kinds = Kinds(1);
const AGENT: Kinds = Kinds(2);
const CLIENT: Kinds = Kinds(4);
const ADMIN: Kinds = Kinds(8);
const VIEWER: Kinds = Kinds(16);
/// Tokens of these roles; those of the other roles are like certificates.
const TENANT_ADMIN: Kinds = Kinds(32);
const OPERATOR: Kinds = Kinds(64);
const DRILL: Kinds = Kinds(128);
/// Who submits, and acts for tenants.
const WRITERS: Kinds = CLIENT.and(TENANT_ADMIN).and(OPERATOR).and(ADMIN);
/// Those, and who only looks or runs drills.
const USERS: Kinds = WRITERS.and(VIEWER).and(DRILL);
/// Who operates nodes.
const OPERATORS: Kinds = OPERATOR.and(ADMIN);
/// Who makes and revokes tokens; a tenant's administrator those of that tenant.
const GRANTERS: Kinds = TENANT_ADMIN.and(ADMIN);
/// Who grants quota; a tenant's administrator to the tenants below that tenant.
const QUOTA_GIVERS: Kinds = TENANT_ADMIN.and(OPERATOR).and(ADMIN);
/// Who books nodes; a tenant's administrator for that tenant.
const BOOKERS: Kinds = TENANT_ADMIN.and(OPERATORS);
/// Everyone who is of this cluster.
const MEMBERS: Kinds = USERS.and(AGENT).and(REPLICA);

impl Kinds {
    const fn and(self, more: Kinds) -> Kinds {
        Kinds(self.0 | more.0)
    }

    /// Whether this principal is among them. On a listener without certificates everybody has all
    /// permissions: it is for one machine.
    pub(crate) fn include(self, principal: &Principal) -> bool {
        let kind = match principal {
            Principal::Plaintext => return true,
            // It has to show a token first.
            Principal::Anonymous => return false,
            Principal::Token(holder) => match holder.role {
                TokenRole::Viewer => VIEWER,
                TokenRole::Submitter => CLIENT,
                TokenRole::TenantAdmin => TENANT_ADMIN,
                TokenRole::Operator => OPERATOR,
                TokenRole::Drill => DRILL,
                TokenRole::Admin => ADMIN,
            },
            Principal::Named(name) => match name.role {
                Role::Replica(_) => REPLICA,
                Role::Agent(_) | Role::AgentGroup(_) => AGENT,
                Role::AllTenants(_) | Role::TenantClient { .. } => CLIENT,
                Role::Client(_) => VIEWER,
                Role::Admin(_) => ADMIN,
            },
        };
        self.0 & kind.0 != 0
    }
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// As in the request.
    pub(crate) path: &'static str,
    pub(crate) class: Class,
    pub(crate) kinds: Kinds,
}

const fn rule(path: &'static str, class: Class, kinds: Kinds) -> Rule {
    Rule { path, class, kinds }
}

/// Every call that is served, in the order of paths.
#[rustfmt::skip]
pub(crate) const RULES: &[Rule] = &[
    rule("/grpc.health.v1.Health/Check", Class::Call, MEMBERS),
    rule("/grpc.health.v1.Health/Watch", Class::Stream, MEMBERS),
    rule("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Class::Stream, MEMBERS),
    rule("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Class::Stream, MEMBERS),

    rule("/muster.admin.v1beta1.ArchiveService/GetArchiveStatus", Class::Call, USERS.and(REPLICA)),
    // For replicas that lack a part, and for operators who copy an archive.
    rule("/muster.admin.v1beta1.ArchiveService/ReadRounds", Class::Stream, ADMIN.and(DRILL).and(REPLICA)),

    rule("/muster.admin.v1beta1.ClusterAdminService/AddReplica", Class::Call, ADMIN),
    rule("/muster.admin.v1beta1.ClusterAdminService/ChangeVoters", Class::Call, ADMIN),
    rule("/muster.admin.v1beta1.ClusterAdminService/CreateBackup", Class::Stream, ADMIN),
    rule("/muster.admin.v1beta1.ClusterAdminService/CreateToken", Class::Call, GRANTERS),
    rule("/muster.admin.v1beta1.ClusterAdminService/ListDeniedCalls", Class::Call, ADMIN),
    rule("/muster.admin.v1beta1.ClusterAdminService/ListNotifications", Class::Call, ADMIN),
    rule("/muster.admin.v1beta1.ClusterAdminService/ListRevokedCertificates", Class::Call, ADMIN),
    rule("/muster.admin.v1beta1.ClusterAdminService/ListTokens", Class::Call, GRANTERS),
    rule("/muster.admin.v1beta1.ClusterAdminService/PromoteReplica", Class::Call, ADMIN),
    rule("/muster.admin.v1beta1.ClusterAdminService/RaiseFormat", Class::Call, ADMIN),
    rule("/muster.admin.v1beta1.ClusterAdminService/RemoveReplica", Class::Call, ADMIN),
    rule("/muster.admin.v1beta1.ClusterAdminService/ReplaceReplica", Class::Call, ADMIN),
    rule("/muster.admin.v1beta1.ClusterAdminService/RevokeCertificate", Class::Call, ADMIN),
    rule("/muster.admin.v1beta1.ClusterAdminService/RevokeToken", Class::Call, GRANTERS),
    rule("/muster.admin.v1beta1.ClusterAdminService/TransferLeadership", Class::Call, ADMIN.and(DRILL)),

    rule("/muster.admin.v1beta1.DrillService/AnnounceDrill", Class::Call, ADMIN.and(DRILL)),
    rule("/muster.admin.v1beta1.DrillService/EndDrill", Class::Call, ADMIN.and(DRILL)),
    rule("/muster.admin.v1beta1.DrillService/GetDrill", Class::Call, OPERATORS.and(DRILL)),
    rule("/muster.admin.v1beta1.DrillService/RefuseTraffic", Class::Call, ADMIN.and(DRILL)),

    rule("/muster.admin.v1beta1.ProbeService/ProbeNodes", Class::Call, OPERATORS),

    rule("/muster.agent.v1beta1.NodeService/RelayExec", Class::Upload, AGENT),
    rule("/muster.agent.v1beta1.NodeService/Session", Class::Session, AGENT),
    rule("/muster.agent.v1beta1.NodeService/UploadLogs", Class::Upload, AGENT),

    rule("/muster.v1beta1.BookingService/CreateBooking", Class::Call, BOOKERS),
    rule("/muster.v1beta1.BookingService/DeleteBooking", Class::Call, BOOKERS),
    rule("/muster.v1beta1.BookingService/GetBooking", Class::Call, USERS),
    rule("/muster.v1beta1.BookingService/ListBookings", Class::Call, USERS),
    rule("/muster.v1beta1.BookingService/PlanBooking", Class::Call, BOOKERS),

    rule("/muster.v1beta1.ClusterService/GetServerInfo", Class::Call, MEMBERS),
    rule("/muster.v1beta1.ClusterService/GetStatus", Class::Call, USERS.and(REPLICA)),

    rule("/muster.v1beta1.FleetService/BeginNodeRepair", Class::Call, OPERATORS),
    rule("/muster.v1beta1.FleetService/CancelNodeDrain", Class::Call, OPERATORS),
    rule("/muster.v1beta1.FleetService/CordonNode", Class::Call, OPERATORS),
    rule("/muster.v1beta1.FleetService/DrainNode", Class::Call, OPERATORS),
    rule("/muster.v1beta1.FleetService/FinishNodeRepair", Class::Call, OPERATORS),
    rule("/muster.v1beta1.FleetService/ForgetNode", Class::Call, OPERATORS),
    rule("/muster.v1beta1.FleetService/GetHealthPolicy", Class::Call, USERS),
    rule("/muster.v1beta1.FleetService/GetNode", Class::Call, USERS),
    rule("/muster.v1beta1.FleetService/GetNodeAdmission", Class::Call, OPERATORS),
    rule("/muster.v1beta1.FleetService/ListCapacity", Class::Call, USERS),
    rule("/muster.v1beta1.FleetService/ListFleetHolds", Class::Call, USERS),
    rule("/muster.v1beta1.FleetService/ListNodes", Class::Call, USERS),
    rule("/muster.v1beta1.FleetService/ListPendingNodes", Class::Call, OPERATORS),
    rule("/muster.v1beta1.FleetService/QuarantineNode", Class::Call, OPERATORS.and(DRILL)),
    rule("/muster.v1beta1.FleetService/ReleaseNode", Class::Call, OPERATORS.and(DRILL)),
    rule("/muster.v1beta1.FleetService/SetFleetHold", Class::Call, OPERATORS),
    rule("/muster.v1beta1.FleetService/SetHealthPolicy", Class::Call, ADMIN),
    rule("/muster.v1beta1.FleetService/SetNodeAdmission", Class::Call, ADMIN),
    rule("/muster.v1beta1.FleetService/SetNodeApproval", Class::Call, ADMIN),
    rule("/muster.v1beta1.FleetService/SetNodeLabels", Class::Call, OPERATORS),
    rule("/muster.v1beta1.FleetService/UncordonNode", Class::Call, OPERATORS),
    rule("/muster.v1beta1.FleetService/WatchNodes", Class::Stream, USERS),

    rule("/muster.v1beta1.HistoryService/ReadDecisions", Class::Stream, USERS),

    rule("/muster.v1beta1.JobService/CancelJob", Class::Call, WRITERS.and(DRILL)),
    rule("/muster.v1beta1.JobService/CancelJobs", Class::Call, WRITERS),
    // A worker commits with what its agent has given it: an agent for jobs that it runs.
    rule("/muster.v1beta1.JobService/CommitCheckpoint", Class::Call, WRITERS.and(AGENT)),
    rule("/muster.v1beta1.JobService/ExecWorker", Class::Stream, WRITERS),
    rule("/muster.v1beta1.JobService/ExplainJob", Class::Call, USERS),
    rule("/muster.v1beta1.JobService/ForwardPort", Class::Stream, WRITERS),
    rule("/muster.v1beta1.JobService/GetArray", Class::Call, USERS),
    rule("/muster.v1beta1.JobService/GetJob", Class::Call, USERS),
    rule("/muster.v1beta1.JobService/HoldJobs", Class::Call, WRITERS),
    rule("/muster.v1beta1.JobService/ListArrays", Class::Call, USERS),
    rule("/muster.v1beta1.JobService/ListJobs", Class::Call, USERS),
    rule("/muster.v1beta1.JobService/PlanJob", Class::Call, USERS),
    rule("/muster.v1beta1.JobService/ReadLogs", Class::Stream, WRITERS),
    rule("/muster.v1beta1.JobService/ReleaseJobs", Class::Call, WRITERS),
    rule("/muster.v1beta1.JobService/RequeueJobs", Class::Call, WRITERS),
    rule("/muster.v1beta1.JobService/SubmitJob", Class::Call, WRITERS.and(DRILL)),
    rule("/muster.v1beta1.JobService/SubmitJobs", Class::Call, WRITERS),
    rule("/muster.v1beta1.JobService/SubmitStream", Class::Stream, WRITERS),
    rule("/muster.v1beta1.JobService/SuspendJobs", Class::Call, WRITERS),
    rule("/muster.v1beta1.JobService/UpdateJob", Class::Call, WRITERS),
    rule("/muster.v1beta1.JobService/WatchJobs", Class::Stream, USERS),

    rule("/muster.v1beta1.PolicyService/GetPolicy", Class::Call, USERS),
    rule("/muster.v1beta1.PolicyService/SetPolicy", Class::Call, ADMIN),
    rule("/muster.v1beta1.PolicyService/UpdatePolicy", Class::Call, ADMIN),

    rule("/muster.v1beta1.QuotaService/AnswerQuota", Class::Call, QUOTA_GIVERS),
    rule("/muster.v1beta1.QuotaService/GrantQuota", Class::Call, QUOTA_GIVERS),
    rule("/muster.v1beta1.QuotaService/ListQuotaGrants", Class::Call, USERS),
    rule("/muster.v1beta1.QuotaService/RequestQuota", Class::Call, WRITERS),
    // They have commands and environments in them: a caller that acts for no tenant is shown none.
    rule("/muster.v1beta1.ScheduleService/CreateSchedule", Class::Call, WRITERS),
    rule("/muster.v1beta1.ScheduleService/DeleteSchedule", Class::Call, WRITERS),
    rule("/muster.v1beta1.ScheduleService/GetSchedule", Class::Call, WRITERS),
    rule("/muster.v1beta1.ScheduleService/ListSchedules", Class::Call, WRITERS),
    rule("/muster.v1beta1.ScheduleService/ResumeSchedule", Class::Call, WRITERS),
    rule("/muster.v1beta1.ScheduleService/RunSchedule", Class::Call, WRITERS),
    rule("/muster.v1beta1.ScheduleService/SuspendSchedule", Class::Call, WRITERS),
    rule("/muster.v1beta1.ScheduleService/UpdateSchedule", Class::Call, WRITERS),

    rule("/muster.v1beta1.TenantService/ListLicences", Class::Call, USERS),
    rule("/muster.v1beta1.TenantService/ListTenants", Class::Call, USERS),
    rule("/muster.v1beta1.TenantService/WatchTenants", Class::Stream, USERS),
];

/// The line for a path.
pub(crate) fn rule_of(path: &str) -> Option<&'static Rule> {
    RULES.binary_search_by(|rule| rule.path.cmp(path)).ok().map(|at| &RULES[at])
}

/// Whether a caller that shows this may make the call at `path`, by the table alone; none where no line names it,
/// so that nobody may.
#[must_use]
pub fn may_call(path: &str, principal: &Principal) -> Option<bool> {
    rule_of(path).map(|rule| rule.kinds.include(principal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_transport::{PeerName, ShortName, TokenHolder};
    use muster_types::{ClusterId, ReplicaId, TokenId};
    use prost::Message as _;
    use std::collections::BTreeSet;

    /// Every call of the public services and of the standard ones next to them.
    fn described() -> BTreeSet<String> {
        let reflection = tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET;
        let alpha = tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET;
        let sets = [muster_wire::DESCRIPTORS, tonic_health::pb::FILE_DESCRIPTOR_SET, reflection, alpha];
        let mut paths = BTreeSet::new();
        for set in sets {
            let set = prost_types::FileDescriptorSet::decode(set).expect("descriptors are whole");
            // Replicas speak Raft to one another on a separate listener.
            for file in set.file.iter().filter(|file| file.package() != "muster.raft.v1") {
                for service in &file.service {
                    for method in &service.method {
                        paths.insert(format!("/{}.{}/{}", file.package(), service.name(), method.name()));
                    }
                }
            }
        }
        paths
    }

    #[test]
    fn every_call_has_its_line_and_every_line_its_call() {
        let named: BTreeSet<String> = RULES.iter().map(|rule| rule.path.to_owned()).collect();
        let described = described();
        let missing: Vec<_> = described.difference(&named).collect();
        assert!(
            missing.is_empty(),
            "calls that nobody may make, because the table does not name them: {missing:?}"
        );
        let gone: Vec<_> = named.difference(&described).collect();
        assert!(gone.is_empty(), "lines for calls that do not exist: {gone:?}");
        assert!(RULES.is_sorted_by(|a, b| a.path < b.path), "the table is in the order of paths");
        assert!(RULES.iter().all(|rule| rule_of(rule.path).is_some_and(|found| found.path == rule.path)));
        assert!(rule_of("/muster.v1beta1.JobService/Anything").is_none());
    }

    /// The table that people read says what the table that is obeyed says, of every call and every kind.
    #[test]
    fn what_is_written_down_is_what_is_allowed() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../SECURITY.md");
        let text = std::fs::read_to_string(path).expect("it is there");
        let short = |text| ShortName::new(text).expect("a name");
        let roles = [
            Role::Replica(ReplicaId(1)),
            Role::Agent(short("h1")),
            Role::AgentGroup(short("h1")),
            Role::Client(short("h1")),
            Role::TenantClient { tenant: short("h1"), user: short("h1") },
            Role::AllTenants(short("h1")),
            Role::Admin(short("h1")),
        ];
        let of_certificate =
            |role: Role| (role.kind().to_owned(), Principal::Named(PeerName { cluster: ClusterId(1), role }));
        let of_token = |role: TokenRole| (format!("token:{role}"), holder(role, None));
        let kinds: Vec<(String, Principal)> =
            roles.into_iter().map(of_certificate).chain(TokenRole::ALL.map(of_token)).collect();
        let mut written: BTreeSet<(String, String)> = BTreeSet::new();
        for row in text.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [who, calls] = cells[..] else { continue };
            for kind in who.split(',').map(|kind| kind.trim().trim_matches('`')) {
                assert!(kinds.iter().any(|(known, _)| known == kind), "{kind:?} is no kind of caller");
                let calls = calls.split(',').map(|call| call.trim().trim_matches('`').to_owned());
                written.extend(calls.map(|call| (call, kind.to_owned())));
            }
        }
        let mut allowed = BTreeSet::new();
        for rule in RULES.iter().filter(|rule| rule.path.starts_with("/muster.")) {
            let call = rule.path.rsplit('.').next().expect("a path");
            for (kind, _) in kinds.iter().filter(|(_, principal)| rule.kinds.include(principal)) {
                allowed.insert((call.to_owned(), kind.clone()));
            }
        }
        let missing: Vec<_> = allowed.difference(&written).collect();
        let wrong: Vec<_> = written.difference(&allowed).collect();
        assert!(missing.is_empty() && wrong.is_empty(), "not written: {missing:?}; not so: {wrong:?}");
    }

    fn holder(role: TokenRole, tenant: Option<&str>) -> Principal {
        let short = |text| ShortName::new(text).expect("a name");
        let (tenant, user) = (tenant.map(short), short("ada"));
        Principal::Token(TokenHolder {
            cluster: ClusterId(1),
            id: TokenId(7),
            role,
            tenant,
            user,
            own_role: None,
            issuer: None,
        })
    }

    /// Each role of a token may what a certificate may, or something in between.
    #[test]
    fn what_the_roles_of_tokens_may() {
        let short = |text| ShortName::new(text).expect("a name");
        let may = |principal: Principal| {
            let calls = RULES.iter().filter(move |rule| rule.kinds.include(&principal));
            calls.map(|rule| rule.path.rsplit('/').next().expect("a path")).collect::<BTreeSet<_>>()
        };
        let named = |role| may(Principal::Named(PeerName { cluster: ClusterId(1), role }));
        let token = |role| may(holder(role, Some("vision")));
        assert_eq!(token(TokenRole::Viewer), named(Role::Client(short("ada"))));
        let submitter = named(Role::TenantClient { tenant: short("vision"), user: short("ada") });
        assert_eq!(token(TokenRole::Submitter), submitter);
        let more = |role| token(role).difference(&submitter).copied().collect::<Vec<_>>();
        let of_admin = [
            "AnswerQuota",
            "CreateBooking",
            "CreateToken",
            "DeleteBooking",
            "GrantQuota",
            "ListTokens",
            "PlanBooking",
            "RevokeToken",
        ];
        assert_eq!(more(TokenRole::TenantAdmin), of_admin);
        let operator = token(TokenRole::Operator);
        assert!(submitter.is_subset(&operator) && operator.contains("DrainNode"));
        for only_admins in
            ["SetPolicy", "SetNodeAdmission", "CreateToken", "RemoveReplica", "RevokeCertificate"]
        {
            assert!(!operator.contains(only_admins), "{only_admins}");
        }
        let drill = token(TokenRole::Drill);
        assert!(
            drill.contains("RefuseTraffic") && !drill.contains("DrainNode") && !drill.contains("ReadLogs")
        );
        assert_eq!(token(TokenRole::Admin), named(Role::Admin(short("ada"))));
        assert_eq!(may(Principal::Anonymous), BTreeSet::new(), "a caller without a name may nothing");
        for role in TokenRole::ALL {
            let calls = token(role);
            assert!(!calls.contains("Session") && !calls.contains("UploadLogs"), "{role} is no agent");
        }
    }

    #[test]
    fn who_may_what() {
        let short = |text| ShortName::new(text).expect("a name");
        let of = |role| Principal::Named(PeerName { cluster: ClusterId(1), role });
        let may = |role| {
            let calls = RULES.iter().filter(|rule| rule.kinds.include(&of(role)));
            calls.map(|rule| rule.path.rsplit('/').next().expect("a path")).collect::<BTreeSet<_>>()
        };
        let agent = may(Role::Agent(short("h1")));
        assert_eq!(
            agent,
            BTreeSet::from([
                "Check",
                "Watch",
                "ServerReflectionInfo",
                "GetServerInfo",
                "CommitCheckpoint",
                "RelayExec",
                "Session",
                "UploadLogs",
            ])
        );
        assert_eq!(agent, may(Role::AgentGroup(short("slurm"))));
        let client = may(Role::TenantClient { tenant: short("vision"), user: short("ada") });
        assert_eq!(client, may(Role::AllTenants(short("ada"))));
        let viewer = may(Role::Client(short("ada")));
        assert!(viewer.is_subset(&client));
        assert_eq!(
            client.difference(&viewer).copied().collect::<BTreeSet<_>>(),
            BTreeSet::from([
                "CancelJob",
                "CancelJobs",
                "CommitCheckpoint",
                "CreateSchedule",
                "DeleteSchedule",
                "ExecWorker",
                "ForwardPort",
                "GetSchedule",
                "HoldJobs",
                "ListSchedules",
                "ReadLogs",
                "ReleaseJobs",
                "RequestQuota",
                "RequeueJobs",
                "ResumeSchedule",
                "RunSchedule",
                "SubmitJob",
                "SubmitJobs",
                "SubmitStream",
                "SuspendJobs",
                "SuspendSchedule",
                "UpdateJob",
                "UpdateSchedule",
            ])
        );
        let admin = may(Role::Admin(short("ada")));
        assert!(client.is_subset(&admin));
        assert_eq!(
            admin.difference(&client).copied().collect::<BTreeSet<_>>(),
            BTreeSet::from([
                "AddReplica",
                "AnnounceDrill",
                "AnswerQuota",
                "BeginNodeRepair",
                "CancelNodeDrain",
                "ChangeVoters",
                "CordonNode",
                "CreateBackup",
                "CreateBooking",
                "CreateToken",
                "DeleteBooking",
                "DrainNode",
                "EndDrill",
                "FinishNodeRepair",
                "ForgetNode",
                "GetDrill",
                "GetNodeAdmission",
                "GrantQuota",
                "ListDeniedCalls",
                "ListNotifications",
                "ListPendingNodes",
                "ListRevokedCertificates",
                "ListTokens",
                "PlanBooking",
                "ProbeNodes",
                "PromoteReplica",
                "QuarantineNode",
                "RaiseFormat",
                "ReadRounds",
                "RefuseTraffic",
                "ReleaseNode",
                "RemoveReplica",
                "ReplaceReplica",
                "RevokeCertificate",
                "RevokeToken",
                "SetFleetHold",
                "SetHealthPolicy",
                "SetNodeAdmission",
                "SetNodeApproval",
                "SetNodeLabels",
                "SetPolicy",
                "TransferLeadership",
                "UncordonNode",
                "UpdatePolicy",
            ])
        );
        assert!(!admin.contains("Session") && !admin.contains("UploadLogs"), "only an agent is one");
        let replica = may(Role::Replica(ReplicaId(1)));
        let own = BTreeSet::from([
            "Check",
            "Watch",
            "ServerReflectionInfo",
            "GetServerInfo",
            "GetStatus",
            "GetArchiveStatus",
            "ReadRounds",
        ]);
        assert_eq!(replica, own, "in its own name it only looks");
        assert!(RULES.iter().all(|rule| rule.kinds.include(&Principal::Plaintext)));
    }
}
