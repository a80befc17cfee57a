//! Which part of a job a caller is shown.
//!
//! That a job is there, what it asks for and where it runs, every user of the cluster may see: who waits wants to know
//! for what; its labels and who submitted it as well. What its workers are started with, its annotations, where they
//! save their work and what they said when they failed is shown to its tenant, to those above that, and to operators:
//! environments hold keys.
//!
//! **Invariant:** every way to read a job or a record about one goes through here.

use muster_journal::Decision;
use muster_state::State;
use muster_transport::{Principal, Role, ShortName};
use muster_types::{JobContract, JobId, Name, Requester};
use muster_wire::{process, v1};
use serde_json::Value;

/// In the place of what is not shown.
pub(crate) const REDACTED: &str = "redacted";

/// Of a job's spec, in a record: what its workers are started with, and where they read and write.
const PRIVATE: [&str; 7] = [
    "command",
    "environment",
    "checkpoint_directory",
    "working_directory",
    "container",
    "workdir",
    "artifacts",
];
/// Of any record about a job: how its workers failed, which may name the program or a path.
const SAID: [&str; 2] = ["detail", "launch_failed"];

/// Of a record about nodes, policy or the cluster: who of the operators asked.
const OPERATOR: [&str; 1] = ["by"];
/// Of who asked: from where, and with which role.
const CALL: [&str; 2] = ["address", "role"];
/// Of a record about a token: which, whose, and who asked.
const TOKEN: [&str; 3] = ["token", "grant", "by"];
/// Of a record about a schedule: its job, its owner, and what became of a moment.
const SCHEDULE: [&str; 4] = ["template", "by", "reason", "run"];

/// Of a record about quota: who asked or answered, and why.
const QUOTA: [&str; 2] = ["by", "reason"];
/// Of a record about a booking: who made it, for whom in its tenant, and why.
const BOOKING: [&str; 4] = ["by", "jobs", "user", "reason"];

/// Whose jobs a caller is shown whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Visibility {
    All,
    /// Those of a tenant and of those below it.
    Below(ShortName),
    Nobodys,
}

impl Visibility {
    pub(crate) fn of(principal: &Principal) -> Visibility {
        match principal.role() {
            // A listener without certificates is one machine's own.
            None | Some(Role::Admin(_) | Role::AllTenants(_)) => Visibility::All,
            Some(Role::TenantClient { tenant, .. }) => Visibility::Below(tenant),
            Some(Role::Client(_) | Role::Agent(_) | Role::AgentGroup(_) | Role::Replica(_)) => {
                Visibility::Nobodys
            }
        }
    }

    /// Whether it sees the jobs of a tenant whole, by the policy of this state.
    pub(crate) fn sees(self, view: &State, tenant: &Name) -> bool {
        match self {
            Visibility::All => true,
            Visibility::Below(own) => {
                view.policy().policy.ancestry(tenant).any(|above| above.as_str() == own.as_str())
            }
            Visibility::Nobodys => false,
        }
    }

    /// Whether it sees a job whole. Of one that is not kept any more nobody knows whose it was.
    pub(crate) fn sees_job(self, view: &State, job: JobId) -> bool {
        self == Visibility::All || view.tenant_of(job).is_some_and(|tenant| self.sees(view, tenant))
    }

    /// A job's message as it is shown.
    pub(crate) fn job(self, view: &State, tenant: &Name, job: v1::Job) -> v1::Job {
        if self.sees(view, tenant) { job } else { redacted(job) }
    }

    /// A node's message as it is shown: which operator is on duty is for those who act for the whole cluster.
    pub(crate) fn node(self, mut node: v1::Node) -> v1::Node {
        if self != Visibility::All {
            for said in [&mut node.cordon_reason, &mut node.drain_reason].into_iter().flatten() {
                said.creator.clear();
            }
            if let Some(set) = &mut node.overrides {
                set.changed_by.clear();
            }
        }
        node
    }

    /// Why a job waits or where it is, as it is shown.
    pub(crate) fn explanation(
        self,
        view: &State,
        job: JobId,
        mut explained: v1::Explanation,
    ) -> v1::Explanation {
        if !self.sees_job(view, job) && tells_how_it_failed(&explained.reason) {
            hide(&mut explained.message);
        }
        explained
    }

    /// What became of a job's attempts, as it is shown.
    pub(crate) fn history(
        self,
        view: &State,
        job: JobId,
        history: Option<v1::AttemptHistory>,
    ) -> Option<v1::AttemptHistory> {
        if self.sees_job(view, job) { history } else { history.map(redacted_history) }
    }

    /// Takes out of a record's content what is not shown; whether that was anything.
    pub(crate) fn redact(self, view: &State, decision: &Decision, content: &mut Value) -> bool {
        if self == Visibility::All {
            return false;
        }
        // Names with jobs are for everybody; from where somebody called, and with which role, is not.
        let has_call = |by: &Requester| by.address.is_some() || by.role.is_some();
        let hides_call =
            decision.requester().is_some_and(|by| has_call(by) && !self.sees_requester(view, by));
        if hides_call && let Some(by) = content.get_mut("by") {
            blank(by, &CALL);
        }
        self.redact_fields(view, decision, content) || hides_call
    }

    /// Whether somebody who asked is of a tenant that it sees.
    fn sees_requester(self, view: &State, by: &Requester) -> bool {
        let tenant = by.name.strip_prefix("tenant/").and_then(|rest| rest.split('/').next());
        tenant.and_then(Name::new).is_some_and(|tenant| self.sees(view, &tenant))
    }

    fn redact_fields(self, view: &State, decision: &Decision, content: &mut Value) -> bool {
        match decision {
            Decision::JobsSubmitted { specs, .. } => {
                let shown = content.get_mut("specs").and_then(Value::as_array_mut).into_iter().flatten();
                let hidden = shown.zip(specs).filter(|(_, spec)| !self.sees(view, &spec.tenant));
                hidden.map(|(content, _)| blank(content, &PRIVATE)).count() > 0
            }
            Decision::ArraysSubmitted { parts, .. } => {
                let shown = content.get_mut("parts").and_then(Value::as_array_mut).into_iter().flatten();
                let hidden = shown.zip(parts).filter(|(_, part)| !self.sees(view, &part.spec.tenant));
                let names = [&PRIVATE[..], &["annotations"]].concat();
                hidden.map(|(content, _)| blank(content, &names)).count() > 0
            }
            Decision::JobMetadataSet { runs } => {
                let shown = content.get_mut("runs").and_then(Value::as_array_mut).into_iter().flatten();
                let hidden = shown.zip(runs).filter(|(_, (job, ..))| !self.sees_job(view, *job));
                hidden.map(|(content, _)| blank(content, &["annotations"])).count() > 0
            }
            Decision::JobContractsSet { contracts } => {
                let shown = content.get_mut("contracts").and_then(Value::as_array_mut).into_iter().flatten();
                let hidden = shown
                    .zip(contracts)
                    .filter(|(_, (job, contract))| names_files(contract) && !self.sees_job(view, *job));
                hidden.map(|(content, _)| blank(content, &["workdir", "paths"])).count() > 0
            }
            Decision::JobModified { job, .. } if !self.sees_job(view, *job) => {
                blank(content, &["annotations"]);
                true
            }
            Decision::WorkersReported { job, .. }
            | Decision::GangStopRequested { job, .. }
            | Decision::JobFinished { job, .. }
            | Decision::AttemptFailed { job, .. }
                if !self.sees_job(view, *job) =>
            {
                blank(content, &SAID);
                true
            }
            // Which operator is on duty is for those who act for the whole cluster.
            Decision::NodeCordonSet { by, .. }
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
            | Decision::NodeOverridesSet { by, .. }
            | Decision::BookingDeleted { by, .. }
            | Decision::FleetHoldSet { by, .. }
                if !by.is_unknown() =>
            {
                blank(content, &OPERATOR);
                true
            }
            // What a booking keeps is for everybody to see; who made it, for whom and why, for its owner.
            Decision::BookingCreated { spec, .. }
                if !spec.tenant.as_ref().is_some_and(|owner| self.sees(view, owner)) =>
            {
                blank(content, &BOOKING);
                true
            }
            Decision::ExecOpened { job, .. } if !self.sees_job(view, *job) => {
                blank(content, &["command"]);
                true
            }
            Decision::QuotaRequested { grant, .. } | Decision::QuotaGranted { grant, .. }
                if !self.sees(view, &grant.tenant) =>
            {
                blank(content, &QUOTA);
                true
            }
            Decision::QuotaAnswered { id, .. }
                if !view.quota_grant(*id).is_some_and(|row| self.sees(view, &row.grant.tenant)) =>
            {
                blank(content, &QUOTA);
                true
            }
            Decision::ArtifactsKept { job, .. } if !self.sees_job(view, *job) => {
                blank(content, &["digest"]);
                true
            }
            Decision::PortForwardOpened { job, .. } if !self.sees_job(view, *job) => {
                blank(content, &["port"]);
                true
            }
            // Which tokens others have is nobody else's business; of one that was revoked it is not known whose it was.
            Decision::TokenCreated { grant, .. }
                if !grant.tenant.as_ref().is_some_and(|tenant| self.sees(view, tenant)) =>
            {
                blank(content, &TOKEN);
                true
            }
            Decision::TokenRevoked { .. } => {
                blank(content, &TOKEN);
                true
            }
            // What a schedule runs, why it does not, and for whom.
            Decision::ScheduleSet { schedule, .. } if !self.sees(view, &schedule.key.tenant) => {
                blank(content, &SCHEDULE);
                true
            }
            Decision::ScheduleDeleted { schedule, .. }
            | Decision::ScheduleSuspensionSet { schedule, .. }
            | Decision::ScheduleRan { schedule, .. }
                if !self.sees(view, &schedule.tenant) =>
            {
                blank(content, &SCHEDULE);
                true
            }
            _ => false,
        }
    }
}

/// Puts a word in the place of every field of these names, wherever it is.
fn blank(content: &mut Value, names: &[&str]) {
    match content {
        Value::Object(fields) => {
            for (name, value) in fields {
                if names.contains(&name.as_str()) {
                    if !value.is_null() {
                        *value = Value::String(REDACTED.to_owned());
                    }
                } else {
                    blank(value, names);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| blank(item, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn word() -> String {
    REDACTED.to_owned()
}

/// Whether a job says which files it brings, or which of its workers come back.
fn names_files(contract: &JobContract) -> bool {
    contract.workdir.is_some() || contract.artifacts.is_some()
}

fn hide(text: &mut String) {
    if !text.is_empty() {
        *text = word();
    }
}

fn redacted(mut job: v1::Job) -> v1::Job {
    job.redacted = true;
    if let Some(spec) = &mut job.spec {
        redact_spec(spec);
    }
    if !job.annotations.is_empty() {
        job.annotations = [(word(), word())].into();
    }
    let Some(status) = &mut job.status else { return job };
    if let Some(placement) = &mut status.placement {
        for exit in placement.workers.iter_mut().filter_map(|worker| worker.exit.as_mut()) {
            if let Some(v1::exit_status::Kind::LaunchFailed(text)) = &mut exit.kind {
                hide(text);
            }
        }
    }
    if tells_how_it_failed(&status.reason) {
        hide(&mut status.message);
    }
    status.history = status.history.take().map(redacted_history);
    job
}

/// Whether the sentence of this reason is about how a job failed: it says what its workers said.
fn tells_how_it_failed(reason: &str) -> bool {
    reason.contains("FAIL") || matches!(reason, "RETRY_BACKOFF" | "REQUEUED" | "STOPPING_FAULT")
}

fn redact_spec(spec: &mut v1::JobSpec) {
    for group in &mut spec.groups {
        group.runtime = process(vec![word()]);
        if !group.environment.is_empty() {
            group.environment = vec![v1::EnvVar::new(word(), word())];
        }
    }
    if let Some(checkpoint) = &mut spec.checkpoint {
        hide(&mut checkpoint.directory);
    }
    hide(&mut spec.working_directory);
    // Who knows the digest could have a worker fetch the files.
    if let Some(files) = &mut spec.workdir {
        hide(&mut files.digest);
    }
    if let Some(artifacts) = &mut spec.artifacts {
        artifacts.paths.iter_mut().for_each(hide);
    }
}

fn redacted_history(mut history: v1::AttemptHistory) -> v1::AttemptHistory {
    // As for the files that a job brings.
    history.artifacts.iter_mut().for_each(|kept| hide(&mut kept.digest));
    if let Some(last) = &mut history.last_failure {
        hide(&mut last.message);
    }
    history
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_archive::content;
    use muster_journal::{Outcome, RequestKey};
    use muster_types::RequestId;
    use std::sync::Arc;

    fn spec(tenant: &str) -> Arc<muster_types::JobSpec> {
        let mut job = crate::access_tests::submission(tenant, 0).job.expect("it has one");
        let group = &mut job.spec_mut().groups[0];
        group.set_variable("KEY", "hunter2");
        *group.command_mut() = vec!["hunter2".to_owned()];
        let jobs = muster_wire::convert::submissions_from_proto("job", Some(job)).expect("it is a job");
        Arc::new(jobs[0].spec.clone())
    }

    #[test]
    fn the_files_of_a_job_are_named_to_its_tenant_alone() {
        let view = State::default();
        let files = Some(muster_types::BlobDigest::new([0x5a; 32]));
        let contract = muster_types::JobContract { workdir: files, ..Default::default() };
        let others = muster_types::JobContract { spares: 1, ..Default::default() };
        let contracts = vec![(JobId(8), Arc::new(others)), (JobId(9), Arc::new(contract))];
        let decision = Decision::JobContractsSet { contracts };
        let shown = |visibility: Visibility| {
            let mut shown = content(&decision);
            let redacted = visibility.redact(&view, &decision, &mut shown);
            (shown.to_string().contains("5a5a"), redacted)
        };
        assert_eq!(shown(Visibility::All), (true, false));
        assert_eq!(shown(Visibility::Nobodys), (false, true));
        let mut job = crate::access_tests::submission("speech", 0).job.expect("it has one");
        job.spec_mut().workdir = Some(v1::Workdir { digest: "sha256:5a5a".to_owned() });
        assert_eq!(redacted(job).spec().workdir.as_ref().map(|files| files.digest.as_str()), Some(REDACTED));
    }

    #[test]
    fn a_record_is_shown_without_what_is_private_to_others() {
        let view = State::default();
        let request = RequestKey { id: RequestId(1), fingerprint: 1 };
        let specs = vec![spec("speech"), spec("vision")];
        let submitted = Decision::JobsSubmitted {
            request,
            by: muster_types::Requester::default(),
            specs,
            estimates: Vec::new(),
        };
        let finished = Decision::JobFinished {
            job: JobId(9),
            outcome: Outcome::Failed { detail: "rank 0: cannot run /home/hunter2".to_owned() },
        };
        let times = |visibility: Visibility, decision: &Decision| {
            let mut shown = content(decision);
            let redacted = visibility.redact(&view, decision, &mut shown);
            (shown.to_string().matches("hunter2").count(), redacted)
        };
        assert_eq!(times(Visibility::All, &submitted), (4, false));
        assert_eq!(times(Visibility::Nobodys, &submitted), (0, true));
        assert_eq!(
            times(Visibility::Below(ShortName::new("speech").expect("a name")), &submitted),
            (2, true)
        );
        assert_eq!(times(Visibility::All, &finished), (1, false));
        assert_eq!(times(Visibility::Nobodys, &finished), (0, true));
        let carried = muster_types::JobMetadata {
            labels: [("team".to_owned(), "vision".to_owned())].into(),
            annotations: [("note".to_owned(), "hunter2".to_owned())].into(),
            creator: "tenant/vision/ada".to_owned(),
        };
        let carried = Decision::JobMetadataSet { runs: vec![(JobId(9), 1, Arc::new(carried))] };
        assert_eq!(times(Visibility::All, &carried), (1, false));
        assert_eq!(times(Visibility::Nobodys, &carried), (0, true));
        let mut shown = content(&carried);
        Visibility::Nobodys.redact(&view, &carried, &mut shown);
        assert!(
            shown.to_string().contains("tenant/vision/ada") && shown.to_string().contains("team"),
            "{shown}"
        );
        let name = |text| muster_types::Name::new(text).expect("a name");
        let grant = muster_types::TokenGrant {
            name: name("hunter2"),
            user: name("ada"),
            role: muster_types::TokenRole::Submitter,
            tenant: Some(name("speech")),
            secret_sha256: [7; 32],
            own_role: None,
        };
        let (token, by) = (muster_types::TokenId(1), muster_types::Requester::default());
        let made = Decision::TokenCreated { request, by, token, grant: Box::new(grant), lifetime_ms: 60_000 };
        let speech = Visibility::Below(ShortName::new("speech").expect("a name"));
        assert_eq!(times(Visibility::All, &made), (1, false));
        assert_eq!(times(speech, &made), (1, false), "its own");
        assert_eq!(times(Visibility::Below(ShortName::new("vision").expect("a name")), &made), (0, true));
        assert_eq!(times(Visibility::Nobodys, &made), (0, true));
        let name = "admin/hunter2".to_owned();
        let by = muster_types::Requester::named(name, true);
        let node = muster_types::NodeId(1);
        let cordoned = Decision::NodeCordonSet { request, by, node, cordoned: true, reason: None };
        assert_eq!(times(Visibility::All, &cordoned), (1, false));
        assert_eq!(times(speech, &cordoned), (0, true));
        let by = muster_types::Requester::default();
        let drained = Decision::NodeDrainSet { request: None, by, node, drain: None, reason: None };
        assert_eq!(times(Visibility::Nobodys, &drained), (0, false), "the leader decided it");
        let created = Decision::LeaderStarted;
        assert_eq!(times(Visibility::Nobodys, &created), (0, false));
    }

    #[test]
    fn a_node_names_its_operators_to_those_who_act_for_the_whole_cluster() {
        let said = || v1::NodeReason {
            reason: "power work".to_owned(),
            creator: "admin/ada".to_owned(),
            create_time: None,
        };
        let overrides = v1::NodeOverrides { changed_by: "admin/ada".to_owned(), ..Default::default() };
        let whole = v1::Node {
            cordon_reason: Some(said()),
            drain_reason: Some(said()),
            overrides: Some(overrides),
            ..Default::default()
        };
        assert_eq!(Visibility::All.node(whole.clone()), whole);
        let speech = Visibility::Below(ShortName::new("speech").expect("a name"));
        for visibility in [Visibility::Nobodys, speech] {
            let shown = visibility.node(whole.clone());
            assert!(!format!("{shown:?}").contains("ada"), "{shown:?}");
            assert_eq!(shown.drain_reason.map(|said| said.reason).as_deref(), Some("power work"));
            assert!(shown.overrides.is_some(), "what was set is for everybody");
        }
    }

    #[test]
    fn from_where_somebody_called_is_for_its_tenant_and_operators() {
        let view = State::default();
        let request = RequestKey { id: RequestId(1), fingerprint: 1 };
        let below = |tenant| Visibility::Below(ShortName::new(tenant).expect("a name"));
        let asked = |name: &str| {
            let by = muster_types::Requester {
                name: name.to_owned(),
                is_operator: false,
                address: Some([192, 0, 2, 7].into()),
                role: muster_types::Name::new("on-call"),
            };
            Decision::JobCancelRequested { request, by, jobs: vec![JobId(9)] }
        };
        let shown = |visibility: Visibility, name: &str| {
            let decision = asked(name);
            let mut shown = content(&decision);
            let redacted = visibility.redact(&view, &decision, &mut shown);
            assert_eq!(shown["by"]["name"], name, "it is a name with a job");
            assert_eq!(shown["by"]["role"] == "on-call", shown["by"]["address"] == "192.0.2.7");
            (shown["by"]["address"].as_str().unwrap_or_default().to_owned(), redacted)
        };
        let (whole, hidden) = (("192.0.2.7".to_owned(), false), (REDACTED.to_owned(), true));
        for name in ["tenant/vision/ada", "tenant/vision/ada+token/00c0ffee"] {
            assert_eq!(shown(Visibility::All, name), whole);
            assert_eq!(shown(below("vision"), name), whole);
            assert_eq!(shown(below("speech"), name), hidden);
            assert_eq!(shown(Visibility::Nobodys, name), hidden);
        }
        assert_eq!(shown(below("vision"), "admin/ops"), hidden, "an operator is of no tenant");
    }
}
