//! States and records without what people and programs wrote into them: what may be passed on to those who look for a fault.
//!
//! What decides where a job goes stays: names of jobs, tenants, nodes and types, what jobs ask for, labels and taints of nodes,
//! and what jobs ask of those; but not which other jobs they go to by labels. The policy stays too, but for the addresses of its
//! receivers of notifications and the names of users who have a weight or limits. Of a user, the tenant stays.
//!
//! **Invariant:** commands, values of environments, directories, images, digests of files, labels and annotations of jobs,
//! sentences, addresses, secrets of tokens and names of people are in no state and no record that was redacted. Each text has to
//! be named here to be taken out, so matches over decisions name every one.
//! **Invariant:** a redacted record does to a redacted state what the record does to the state, but for these texts.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec;
use muster_journal::{Decision, Outcome, RankUpdate, RequestKey, StopCause, SubmittedPart, hash};
use muster_types::health::{Condition, NodeHealth, RepairPhase, RepairStep};
use muster_types::policy::{Policy, PolicyDraft};
use muster_types::token::user_of;
use muster_types::{
    AffinityTarget, Artifacts, BlobDigest, BookingSpec, ExitStatus, FieldChange, JobContract, JobMetadata,
    JobSpec, Name, NodeSpec, Requester, SIZES_VARIABLE, Schedule, ScheduleRun, ScheduleTemplate, TraceParent,
};

use crate::rows::{
    ArrayRow, ArrayTemplate, ControlRow, DoorKey, HoldRow, JobRow, NodeOverridesRow, NodeReasonsRow, NodeRow,
    Phase, Placement, PolicyRow, QuotaKey, QuotaRow, RankState, RecoveryRow, RestrictionRow, ScheduleRow,
};
use crate::snapshot::RestoreError;
use crate::state::State;
use crate::table::{Derived, Table, TableBuilder};

/// In the place of what was taken out.
const WORD: &str = "redacted";
const PATH: &str = "/redacted";
const IMAGE: &str = "registry.invalid/redacted:1";
const URL: &str = "https://redacted.invalid/";

/// Takes texts out of a state and of the records behind it, in the same way.
#[derive(Clone, Copy, Debug)]
pub struct Redaction {
    salt: u128,
}

fn hide(text: &mut String) {
    if !text.is_empty() {
        *text = WORD.to_string();
    }
}

/// The rows of a table, each as it is to be; none for one that goes.
fn mapped<K: Ord + Clone, V: Clone, F: Derived<K, V>>(
    table: &Table<K, V, F>,
    mut change: impl FnMut(&K, &V) -> Result<Option<V>, RestoreError>,
) -> Result<Table<K, V, F>, RestoreError> {
    let mut rows = TableBuilder::default();
    for (key, value) in table.iter() {
        if let Some(value) = change(key, value)? {
            rows.push(key.clone(), value);
        }
    }
    Ok(rows.finish())
}

impl Redaction {
    /// People get names that follow from theirs and from this number, which nobody else is to know.
    #[must_use]
    pub fn new(salt: u128) -> Redaction {
        Redaction { salt }
    }

    /// A state without these texts. Its digest is another one.
    ///
    /// # Errors
    /// When a row of it cannot be without them.
    pub fn state(&self, state: &State) -> Result<State, RestoreError> {
        let whole = state;
        let mut state = whole.clone();
        state.nodes = mapped(&whole.nodes, |_, row| Ok(Some(self.node(row))))?;
        state.jobs = mapped(&whole.jobs, |_, row| Ok(Some(self.job(row))))?;
        state.specs = mapped(&whole.specs, |_, spec| self.spec(spec).map(Some))?;
        state.requests = mapped(&whole.requests, |_, row| {
            let mut row = row.clone();
            row.fingerprint = 0;
            Ok(Some(row))
        })?;
        state.contracts = mapped(&whole.contracts, |_, contract| Ok(Some(self.contract(contract))))?;
        state.recoveries = mapped(&whole.recoveries, |_, row| Ok(Some(self.recovery(row))))?;
        state.restrictions = mapped(&whole.restrictions, |_, row| Ok(Some(self.restriction(row))))?;
        state.doors = mapped(&whole.doors, |key, row| {
            Ok((!matches!(key, DoorKey::Certificate(_))).then(|| row.clone()))
        })?;
        state.metadata = mapped(&whole.metadata, |_, metadata| Ok(self.metadata(metadata)))?;
        state.controls = mapped(&whole.controls, |_, row| Ok(Some(self.control(row))))?;
        state.arrays = mapped(&whole.arrays, |_, row| self.array(row).map(Some))?;
        state.bookings = mapped(&whole.bookings, |_, booking| {
            let mut booking = booking.clone();
            self.booking(&mut booking.spec);
            self.requester(&mut booking.by);
            Ok(Some(booking))
        })?;
        state.fleet_holds = mapped(&whole.fleet_holds, |_, row| {
            let mut row = row.clone();
            hide(&mut row.hold.reason);
            self.requester(&mut row.by);
            Ok(Some(row))
        })?;
        state.quotas = self.quotas(&whole.quotas);
        state.user_usage = Table::default();
        for ((tenant, user), row) in whole.user_usage.iter() {
            let mut user = user.clone();
            self.user(&mut user);
            state.user_usage.insert((tenant.clone(), user), row.clone());
        }
        state.schedules = mapped(&whole.schedules, |_, row| self.schedule_row(row).map(Some))?;
        state.tokens = Table::default();
        let policy = Arc::new(self.policy(&whole.policy.policy)?);
        state.policy = PolicyRow { policy, ..whole.policy.clone() };
        state.note_policy();
        state.indexes = state.rebuilt_indexes();
        state.verify_rows().map_err(|broken| RestoreError::Invariant(broken.0))?;
        Ok(state)
    }

    /// What a person did with a certificate and with a token stays what one person did: limits count it together. The tenant of
    /// a person stays too: a policy knows people by their names in their tenant, and holds them to limits by it in the tenants
    /// above and below.
    fn user(&self, name: &mut String) {
        // One that a token spoke for and nobody knows is counted with all that nobody knows.
        let user = user_of(name);
        if user.is_empty() {
            name.clear();
            return;
        }
        let in_tenant = user.strip_prefix("tenant/").and_then(|rest| rest.split_once('/'));
        *name = match in_tenant {
            Some((tenant, own)) if Name::new(tenant).is_some() => {
                format!("tenant/{tenant}/user-{:016x}", self.number(own))
            }
            _ => format!("user-{:016x}", self.number(user)),
        };
    }

    /// Stands for a text: another number for another text.
    fn number(&self, text: &str) -> u64 {
        hash(&(self.salt, text))
    }

    /// For texts that a guard compares: what is news has to stay news.
    fn word(&self, text: &mut String) {
        if !text.is_empty() {
            *text = format!("{WORD}-{:016x}", self.number(text));
        }
    }

    fn booking(&self, spec: &mut BookingSpec) {
        if let Some(user) = &mut spec.user {
            // A booking is for a user, and one with a sign that no user has is for nobody.
            if user.contains('+') { hide(user) } else { self.user(user) }
        }
        hide(&mut spec.reason);
    }

    fn schedule(&self, schedule: &Schedule) -> Result<Schedule, RestoreError> {
        let ScheduleTemplate { spec, contract, metadata } = &schedule.template;
        let metadata = self.metadata(metadata).map(Arc::unwrap_or_clone).unwrap_or_default();
        let template =
            ScheduleTemplate { spec: self.spec(spec)?, contract: self.contract(contract), metadata };
        Ok(Schedule { template, ..schedule.clone() })
    }

    fn schedule_row(&self, row: &ScheduleRow) -> Result<ScheduleRow, RestoreError> {
        let mut row = row.clone();
        row.schedule = Arc::new(self.schedule(&row.schedule)?);
        self.requester(&mut row.by);
        if let Some(suspension) = &mut row.suspension {
            self.requester(&mut suspension.by);
            hide(&mut suspension.reason);
        }
        row.runs.iter_mut().for_each(|run| Redaction::run(&mut run.run));
        Ok(row)
    }

    fn run(run: &mut ScheduleRun) {
        match run {
            ScheduleRun::Skipped(why) => hide(why),
            ScheduleRun::Submitted(_) => {}
        }
    }

    /// Budgets are of users, whose names are in the keys.
    fn quotas<F: Derived<QuotaKey, QuotaRow>>(
        &self,
        quotas: &Table<QuotaKey, QuotaRow, F>,
    ) -> Table<QuotaKey, QuotaRow, F> {
        let mut redacted = BTreeMap::new();
        for (key, row) in quotas.iter() {
            let (mut key, mut row) = (key.clone(), row.clone());
            if let QuotaKey::Budget(_, Some(user)) | QuotaKey::Spend(_, Some(user)) = &mut key {
                self.user(user);
            }
            if let QuotaRow::Grant(row) = &mut row {
                self.user(&mut row.by);
                hide(&mut row.grant.reason);
                if let Some(answer) = &mut row.answer {
                    self.user(&mut answer.by);
                    hide(&mut answer.reason);
                }
            }
            redacted.insert(key, row);
        }
        let mut rows = TableBuilder::default();
        for (key, row) in redacted {
            rows.push(key, row);
        }
        rows.finish()
    }

    /// Who knows the address of a receiver can often write to it. Weights stay those of the users who have them.
    fn policy(&self, policy: &Policy) -> Result<Policy, RestoreError> {
        let mut draft = PolicyDraft::clone(policy);
        for tenant in draft.tenants.values_mut() {
            // By the name in a tenant, or as the creator of jobs has it: each stays what it is.
            let redacted = |mut user: String| {
                self.user(&mut user);
                user
            };
            let limits = core::mem::take(&mut tenant.user_limits);
            tenant.user_limits = limits.into_iter().map(|(user, limits)| (redacted(user), limits)).collect();
            let Some(users) = &mut tenant.users else { continue };
            let weights = core::mem::take(&mut users.weights_milli);
            users.weights_milli = weights.into_iter().map(|(user, milli)| (redacted(user), milli)).collect();
        }
        for receiver in draft.notifications.iter_mut().filter(|receiver| !receiver.url.is_empty()) {
            receiver.url = URL.to_string();
        }
        draft.check().map_err(|_| RestoreError::Content("policy, once it is redacted"))
    }

    fn requester(&self, by: &mut Requester) {
        self.user(&mut by.name);
        (by.address, by.role) = (None, None);
    }

    fn request(request: &mut RequestKey) {
        // It is a hash of everything that was asked.
        request.fingerprint = 0;
    }

    fn spec(&self, spec: &JobSpec) -> Result<Arc<JobSpec>, RestoreError> {
        let mut draft = spec.clone().into_draft();
        for group in &mut draft.groups {
            if !group.command.is_empty() {
                group.command = vec![WORD.to_string()];
            }
            // The scheduler reads these numbers, and nothing else of an environment.
            let is_sizes =
                |sizes: &String| sizes.bytes().all(|b| b.is_ascii_digit() || matches!(b, b',' | b' '));
            let sizes = group.environment.remove(SIZES_VARIABLE).filter(is_sizes);
            group.environment = sizes.map(|sizes| (SIZES_VARIABLE.to_string(), sizes)).into_iter().collect();
            if let Some(container) = &mut group.container {
                container.image = IMAGE.to_string();
                container.mounts.clear();
                container.credentials = None;
            }
        }
        // No job has a label any more, so that nothing would be where such an entry is about.
        draft.affinity.retain(|entry| !matches!(entry.target, AffinityTarget::Labels(_)));
        for directory in [&mut draft.checkpoint_directory, &mut draft.working_directory] {
            if directory.is_some() {
                *directory = Some(PATH.to_string());
            }
        }
        draft.check().map(Arc::new).map_err(|_| RestoreError::Content("job spec, once it is redacted"))
    }

    fn contract(&self, contract: &JobContract) -> Arc<JobContract> {
        let mut contract = contract.clone();
        if !contract.notice.http_path.is_empty() {
            contract.notice.http_path = PATH.to_string();
        }
        contract.workdir = contract.workdir.map(|_| BlobDigest::new([0; 32]));
        if let Some(rules) = &mut contract.artifacts {
            rules.paths.iter_mut().for_each(hide);
        }
        // Ids of traces lead to what other systems know of a user.
        contract.trace_parent = contract.trace_parent.and_then(|_| TraceParent::new([1; 16], [1; 8], 0));
        Arc::new(contract)
    }

    /// None without anything that stays.
    fn metadata(&self, metadata: &JobMetadata) -> Option<Arc<JobMetadata>> {
        let mut creator = metadata.creator.clone();
        self.user(&mut creator);
        let metadata = JobMetadata { labels: BTreeMap::new(), annotations: BTreeMap::new(), creator };
        (!metadata.is_default()).then(|| Arc::new(metadata))
    }

    fn exit(exit: &mut ExitStatus) {
        match exit {
            ExitStatus::LaunchFailed(text)
            | ExitStatus::NodeFault(text)
            | ExitStatus::BackendLost(text)
            | ExitStatus::PreflightFailed(text) => hide(text),
            ExitStatus::Code(_)
            | ExitStatus::Signal(_)
            | ExitStatus::LeaseExpired
            | ExitStatus::Vanished
            | ExitStatus::NotStarted
            | ExitStatus::OutOfMemory
            | ExitStatus::OutOfScratch => {}
        }
    }

    fn outcome(outcome: &mut Outcome) {
        match outcome {
            Outcome::Failed { detail } => hide(detail),
            Outcome::Succeeded | Outcome::Cancelled => {}
        }
    }

    fn cause(cause: &mut StopCause) {
        match cause {
            StopCause::WorkerFailed { exit, .. } => Redaction::exit(exit),
            StopCause::Fault { detail, .. } => hide(detail),
            StopCause::Cancelled
            | StopCause::Evicted { .. }
            | StopCause::RunTimeLimit
            | StopCause::Rearranged(_)
            | StopCause::Deadline
            | StopCause::Requested { .. } => {}
        }
    }

    fn placement(placement: &Arc<Placement>) -> Arc<Placement> {
        let mut placement = Placement::clone(placement);
        for rank in &mut placement.ranks {
            if let RankState::Exited(exit) = rank {
                Redaction::exit(exit);
            }
        }
        Arc::new(placement)
    }

    fn job(&self, row: &JobRow) -> JobRow {
        let mut row = row.clone();
        match &mut row.phase {
            Phase::Stopping(cause) => Redaction::cause(cause),
            Phase::Finished(outcome) => Redaction::outcome(outcome),
            Phase::Pending | Phase::Starting | Phase::Running => {}
        }
        row.placement = row.placement.as_ref().map(Redaction::placement);
        row.previous = row.previous.as_ref().map(Redaction::placement);
        row
    }

    fn recovery(&self, row: &RecoveryRow) -> RecoveryRow {
        let mut row = row.clone();
        if let Some(last) = &mut row.last {
            hide(&mut last.detail);
        }
        for of_rank in row.artifacts.values_mut() {
            self.artifacts(&mut of_rank.artifacts);
        }
        row
    }

    fn artifacts(&self, artifacts: &mut Artifacts) {
        artifacts.digest = artifacts.digest.map(|digest| {
            let mut bytes = [0_u8; 32];
            bytes[..8].copy_from_slice(&hash(&(self.salt, digest)).to_le_bytes());
            BlobDigest::new(bytes)
        });
    }

    fn conditions<'a>(&self, conditions: impl IntoIterator<Item = &'a mut Condition>) {
        for condition in conditions {
            self.word(&mut condition.observation.detail);
        }
    }

    fn health(&self, health: &mut NodeHealth) {
        self.conditions(health.conditions.iter_mut().chain(&mut health.recent));
    }

    fn restriction(&self, row: &RestrictionRow) -> RestrictionRow {
        let mut row = row.clone();
        if let Some(quarantine) = &mut row.quarantine {
            hide(&mut quarantine.reason);
        }
        if let Some(RepairPhase::Failed(text)) = row.repair.as_mut().map(|repair| &mut repair.phase) {
            hide(text);
        }
        self.health(&mut row.health);
        row
    }

    fn node_spec(&self, spec: &NodeSpec) -> NodeSpec {
        spec.without_address(self.number(&spec.address))
    }

    fn node(&self, row: &NodeRow) -> NodeRow {
        let mut row = row.clone();
        row.spec = Arc::new(self.node_spec(&row.spec));
        if let Some(overrides) = &row.overrides {
            let mut overrides = NodeOverridesRow::clone(overrides);
            self.requester(&mut overrides.by);
            overrides.said = Arc::new(self.node_spec(&overrides.said));
            row.overrides = Some(Arc::new(overrides));
        }
        if let Some(reasons) = &row.reasons {
            let mut reasons = NodeReasonsRow::clone(reasons);
            for said in [&mut reasons.cordon, &mut reasons.drain].into_iter().flatten() {
                self.requester(&mut said.by);
                hide(&mut said.reason);
            }
            row.reasons = Some(Arc::new(reasons));
        }
        row
    }

    fn hold(&self, hold: &mut HoldRow) {
        self.requester(&mut hold.by);
        if let Some(beneath) = &mut hold.beneath {
            self.hold(beneath);
        }
    }

    fn control(&self, row: &ControlRow) -> ControlRow {
        let mut row = row.clone();
        if let Some(hold) = &mut row.hold {
            self.hold(hold);
        }
        for by in [&mut row.cancelled_by, &mut row.requeued_by].into_iter().flatten() {
            self.requester(by);
        }
        if let Some(modified) = &mut row.modified {
            self.requester(&mut modified.by);
        }
        row
    }

    fn array(&self, row: &ArrayRow) -> Result<ArrayRow, RestoreError> {
        let mut row = row.clone();
        let template = &row.template;
        row.template = Arc::new(ArrayTemplate {
            spec: self.spec(&template.spec)?,
            contract: template.contract.as_ref().map(|contract| self.contract(contract)),
            metadata: template.metadata.as_ref().and_then(|metadata| self.metadata(metadata)),
            array: template.array.clone(),
        });
        if let Some(hold) = &mut row.hold {
            self.hold(hold);
        }
        row.cancelled_by.iter_mut().for_each(|by| self.requester(by));
        row.detail = row.detail.map(|_| Arc::from(WORD));
        Ok(row)
    }

    fn part(&self, part: &SubmittedPart) -> Result<SubmittedPart, RestoreError> {
        Ok(SubmittedPart {
            spec: self.spec(&part.spec)?,
            contract: part.contract.as_ref().map(|contract| self.contract(contract)),
            metadata: part.metadata.as_ref().and_then(|metadata| self.metadata(metadata)),
            ..part.clone()
        })
    }

    fn changes(changes: &mut [FieldChange]) {
        for change in changes {
            match change {
                FieldChange::Labels(texts) | FieldChange::Annotations(texts) => texts.clear(),
                FieldChange::Tier(_)
                | FieldChange::RunTimeLimit(_)
                | FieldChange::Deadline(_)
                | FieldChange::NotBefore(_)
                | FieldChange::Regions(_)
                | FieldChange::NodeSelector(_)
                | FieldChange::ExpectedRun(_)
                | FieldChange::Nodes(_)
                | FieldChange::Nice(_)
                | FieldChange::Front(_)
                | FieldChange::Groups(_)
                | FieldChange::Size(_)
                | FieldChange::Tenant(_) => {}
            }
        }
    }

    /// A record without these texts; none for one that is about nothing else, such as a token.
    ///
    /// # Errors
    /// When it cannot be without them.
    pub fn decision(&self, decision: &Decision) -> Result<Option<Decision>, RestoreError> {
        let mut decision = decision.clone();
        self.asked(&mut decision);
        match &mut decision {
            Decision::TokenCreated { .. }
            | Decision::TokenRevoked { .. }
            | Decision::CertificateRevoked { .. }
            | Decision::ExecOpened { .. }
            | Decision::PortForwardOpened { .. } => return Ok(None),
            Decision::JobsSubmitted { specs, .. } => {
                for spec in specs {
                    *spec = self.spec(spec)?;
                }
            }
            Decision::ArraysSubmitted { parts, .. } => {
                for part in parts {
                    *part = self.part(part)?;
                }
            }
            Decision::PolicySet { policy, .. } => **policy = self.policy(policy)?,
            Decision::NodeRegistered { spec, .. } => *spec = self.node_spec(spec),
            Decision::WorkersReported { updates, .. } => {
                for (_, update) in updates {
                    if let RankUpdate::Exited(exit) = update {
                        Redaction::exit(exit);
                    }
                }
            }
            Decision::GangStopRequested { cause, .. } => Redaction::cause(cause),
            Decision::JobFinished { outcome, .. } => Redaction::outcome(outcome),
            Decision::JobContractsSet { contracts } => {
                for (_, contract) in contracts {
                    *contract = self.contract(contract);
                }
            }
            Decision::JobMetadataSet { runs } => {
                let kept = runs.iter().filter_map(|(job, count, metadata)| {
                    self.metadata(metadata).map(|metadata| (*job, *count, metadata))
                });
                *runs = kept.collect();
                if runs.is_empty() {
                    return Ok(None);
                }
            }
            Decision::JobModified { changes, .. } => Redaction::changes(changes),
            Decision::AttemptFailed { detail, .. } | Decision::ArrayMembersFailed { detail, .. } => {
                hide(detail)
            }
            Decision::QuotaRequested { grant, .. } | Decision::QuotaGranted { grant, .. } => {
                hide(&mut grant.reason);
            }
            Decision::QuotaAnswered { reason, .. }
            | Decision::ScheduleSuspensionSet { reason: Some(reason), .. } => hide(reason),
            Decision::ScheduleSet { schedule, .. } => **schedule = self.schedule(schedule)?,
            Decision::ScheduleRan { run, .. } => Redaction::run(run),
            Decision::BookingCreated { spec, .. } => self.booking(spec),
            Decision::FleetHoldSet { hold: Some(hold), .. } => hide(&mut hold.reason),
            Decision::ArtifactsKept { artifacts, .. } => self.artifacts(artifacts),
            Decision::NodeHealthChanged { health, events, .. } => {
                self.health(health);
                self.conditions(events);
            }
            Decision::NodeQuarantineSet { reason: Some(reason), .. }
            | Decision::NodeCordonSet { reason: Some(reason), .. }
            | Decision::NodeDrainSet { reason: Some(reason), .. } => hide(reason),
            Decision::NodeRepairSet { step: RepairStep::Fail(text), .. } => hide(text),
            Decision::ClusterCreated { .. }
            | Decision::LeaderStarted
            | Decision::JobCancelRequested { .. }
            | Decision::NodeCordonSet { reason: None, .. }
            | Decision::NodeLost { .. }
            | Decision::GangPlaced { .. }
            | Decision::JobRequeued { .. }
            | Decision::HistoryPruned { .. }
            | Decision::DigestRecorded { .. }
            | Decision::Rearranged { .. }
            | Decision::PromiseDropped { .. }
            | Decision::JobReleased { .. }
            | Decision::TurnsChanged { .. }
            | Decision::CheckpointCommitted { .. }
            | Decision::FormatRaised { .. }
            | Decision::ClusterRecovered { .. }
            | Decision::NodeForgotten { .. }
            | Decision::SparesTaken { .. }
            | Decision::StragglerNoted { .. }
            | Decision::NodeDrainSet { reason: None, .. }
            | Decision::NodeQuarantineSet { reason: None, .. }
            | Decision::NodeRepairSet { .. }
            | Decision::HealthPolicySet { .. }
            | Decision::ForeignLoadSet { .. }
            | Decision::NodeAdmissionSet { .. }
            | Decision::NodeApprovalSet { .. }
            | Decision::SessionResumed { .. }
            | Decision::AgentStarted { .. }
            | Decision::JobHoldSet { .. }
            | Decision::JobRequeueRequested { .. }
            | Decision::ArrayMembersCreated { .. }
            | Decision::ArrayReleased { .. }
            | Decision::ArraysControlled { .. }
            | Decision::ArrayThrottleSet { .. }
            | Decision::NodeOverridesSet { .. }
            | Decision::QuotaGrantsEnded { .. }
            | Decision::BookingDeleted { .. }
            | Decision::BookingOpened { .. }
            | Decision::BookingEnded { .. }
            | Decision::BookingMoved { .. }
            | Decision::FallbackOpened { .. }
            | Decision::FleetHoldSet { hold: None, .. }
            | Decision::FleetHoldEnded { .. }
            | Decision::ScheduleDeleted { .. }
            | Decision::ScheduleSuspensionSet { reason: None, .. }
            | Decision::SchedulePlanned { .. }
            | Decision::NotificationsDelivered { .. } => {}
        }
        Ok(Some(decision))
    }

    /// Who asked, and with which request.
    fn asked(&self, decision: &mut Decision) {
        match decision {
            Decision::JobsSubmitted { request, by, .. }
            | Decision::JobCancelRequested { request, by, .. }
            | Decision::NodeCordonSet { request, by, .. }
            | Decision::PolicySet { request, by, .. }
            | Decision::HealthPolicySet { request, by, .. }
            | Decision::NodeAdmissionSet { request, by, .. }
            | Decision::CertificateRevoked { request, by, .. }
            | Decision::JobHoldSet { request, by, .. }
            | Decision::JobRequeueRequested { request, by, .. }
            | Decision::JobModified { request, by, .. }
            | Decision::ArraysSubmitted { request, by, .. }
            | Decision::ArraysControlled { request, by, .. }
            | Decision::ArrayThrottleSet { request, by, .. }
            | Decision::NodeOverridesSet { request, by, .. }
            | Decision::TokenCreated { request, by, .. }
            | Decision::TokenRevoked { request, by, .. }
            | Decision::QuotaRequested { request, by, .. }
            | Decision::QuotaAnswered { request, by, .. }
            | Decision::QuotaGranted { request, by, .. }
            | Decision::BookingCreated { request, by, .. }
            | Decision::BookingDeleted { request, by, .. }
            | Decision::FleetHoldSet { request, by, .. }
            | Decision::ScheduleSet { request, by, .. }
            | Decision::ScheduleDeleted { request, by, .. } => {
                Redaction::request(request);
                self.requester(by);
            }
            Decision::NodeForgotten { request, by, .. }
            | Decision::NodeDrainSet { request, by, .. }
            | Decision::NodeQuarantineSet { request, by, .. }
            | Decision::NodeRepairSet { request, by, .. }
            | Decision::NodeApprovalSet { request, by, .. }
            | Decision::ScheduleSuspensionSet { request, by, .. } => {
                request.iter_mut().for_each(Redaction::request);
                self.requester(by);
            }
            Decision::FormatRaised { by, .. }
            | Decision::ExecOpened { by, .. }
            | Decision::PortForwardOpened { by, .. } => self.requester(by),
            _ => {}
        }
    }
}
