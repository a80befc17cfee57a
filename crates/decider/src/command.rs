//! What the leader is asked to do, and what it answers.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_journal::{Decision, NodeLostCause, Outcome, RankUpdate, RequestKey, canonical, hash};
use muster_planner::could_ever;
use muster_policy::estimates;
use muster_state::{ExceededLimit, GangClass, MissingRight, Phase, RequestAnswer, State};
use muster_types::health::{HealthPolicy, HealthReport};
use muster_types::policy::{Policy, PolicyDraft};
use muster_types::{
    Approval, CertificateSerial, FencingToken, ForeignLoad, HolderId, JobContract, JobId, JobMetadata,
    JobSpec, LogIndex, LogTime, Name, NodeAdmission, NodeId, NodeSpec, Refusal, RefusalCode, RequestId,
    Revocation, Span, Submission, Violation, limits,
};

use crate::health::{DrainOrder, RepairOrder};
use crate::speculation::Speculation;
use crate::tick::{can_make_room, make_room};
use crate::{admission, cluster, deadline, health, job, network, node, requests};

/// Bytes of one submission: keeps a round far below its bound.
pub const SUBMISSION_BYTES_MAX: usize = 1 << 20;

/// The format that can say what jobs ask of whoever runs them.
const CONTRACTS_FORMAT: u16 = 3;

/// The format that has the second record of a policy: [`Decision::PolicyRulesSet`].
const RULES_FORMAT: u16 = 5;

/// The format that has labels, annotations and creators of jobs: [`Decision::JobMetadataSet`].
const METADATA_FORMAT: u16 = 5;

/// Violations that one refusal lists at most.
const VIOLATIONS_MAX: usize = 32;

/// An input for the leader.
#[derive(Clone, Debug)]
pub enum Command {
    /// Submit jobs, all or none.
    Submit {
        /// The client's name for it.
        request: RequestId,
        /// At most [`limits::BATCH_JOBS_MAX`]. Shared with whoever may have to submit them again.
        jobs: Arc<[Submission]>,
    },
    /// Cancel a job.
    Cancel {
        /// The client's name for it.
        request: RequestId,
        /// Which.
        job: JobId,
    },
    /// Cordon a node or put it back.
    SetCordon {
        /// The client's name for it.
        request: RequestId,
        /// Which.
        node: NodeId,
        /// Which way.
        cordoned: bool,
    },
    /// Set the policy.
    SetPolicy {
        /// The client's name for it.
        request: RequestId,
        /// All of it.
        policy: Box<Policy>,
        /// The version it is meant to replace; none replaces whatever there is.
        expected_version: Option<LogIndex>,
    },
    /// A gang has saved its work.
    CommitCheckpoint {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
    },
    /// A rank takes much longer for its steps than its gang, or keeps up again.
    NoteStraggler {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// Which rank.
        rank: u32,
        /// In thousandths of what they take the gang's median rank; none when it keeps up again.
        slow_milli: Option<u32>,
    },
    /// An agent opens a session.
    Register {
        /// Its host.
        spec: NodeSpec,
        /// Itself.
        holder: HolderId,
        /// Whether the session of another holder, if there is one, is known to have run out.
        other_session_is_over: bool,
    },
    /// Every replica has said that it knows a newer format: rounds are written in it from the next one on.
    RaiseFormat {
        /// Which.
        format: u16,
    },
    /// The cluster begins a new generation. To be given only when one time to live and its margin have passed
    /// on a monotonic clock since this leadership began, under which no lease was granted: then no agent runs
    /// anything of the generation before.
    Recover {
        /// That of the replica's folder.
        generation: u32,
    },
    /// A lost node will not come back: what it had is not counted with any more.
    ForgetNode {
        /// By which request; none from a client that gave no id.
        request: Option<RequestId>,
        /// Which.
        node: NodeId,
    },
    /// An agent says how its host is.
    ReportHealth {
        /// Which node.
        node: NodeId,
        /// Its incarnation.
        incarnation: u32,
        /// All that is wrong, and what happened.
        report: Box<HealthReport>,
    },
    /// A probe of several nodes has found nothing wrong with the network of these.
    NoteSoundNetwork {
        /// Which.
        nodes: Vec<NodeId>,
    },
    /// An agent says what others hold of its host.
    ReportForeignLoad {
        /// Which node.
        node: NodeId,
        /// Its incarnation.
        incarnation: u32,
        /// All of it.
        load: ForeignLoad,
    },
    /// Drain a node, or end that.
    SetDrain {
        /// The client's name for it.
        request: RequestId,
        /// Which.
        node: NodeId,
        /// Which way.
        order: DrainOrder,
    },
    /// Keep a node away from work, or let it back.
    SetQuarantine {
        /// The client's name for it.
        request: RequestId,
        /// Which.
        node: NodeId,
        /// Why; none lets it back.
        reason: Option<String>,
    },
    /// Begin or end a node's repair.
    SetRepair {
        /// The client's name for it.
        request: RequestId,
        /// Which.
        node: NodeId,
        /// Which way.
        order: RepairOrder,
    },
    /// Set the health policy.
    SetHealthPolicy {
        /// The client's name for it.
        request: RequestId,
        /// All of it.
        policy: Box<HealthPolicy>,
        /// The version it is meant to replace; none replaces whatever there is.
        expected_version: Option<LogIndex>,
    },
    /// Say which nodes are admitted.
    SetNodeAdmission {
        /// The client's name for it.
        request: RequestId,
        /// All of it.
        admission: Box<NodeAdmission>,
    },
    /// Approve or reject a node by its name.
    SetNodeApproval {
        /// The client's name for it.
        request: RequestId,
        /// Its name; it need not have registered.
        name: Name,
        /// What is said of it; none takes back what was said before.
        approval: Option<Approval>,
    },
    /// A certificate is not good any more.
    RevokeCertificate {
        /// The client's name for it.
        request: RequestId,
        /// Which.
        serial: CertificateSerial,
        /// Whose, and until when it is remembered.
        revocation: Revocation,
    },
    /// A session has run out by the leader's clock.
    SessionOver {
        /// Which node.
        node: NodeId,
        /// The incarnation whose session it was.
        incarnation: u32,
    },
    /// A node reports on a gang's workers.
    Report {
        /// Which node.
        node: NodeId,
        /// Its incarnation.
        incarnation: u32,
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// Rank and what happened; obsolete ones are dropped.
        updates: Vec<(u32, RankUpdate)>,
    },
}

/// What a command led to. `at` is the record to wait for before anybody is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Jobs exist.
    Submitted {
        /// In the order submitted.
        jobs: Vec<JobId>,
        /// The record.
        at: LogIndex,
    },
    /// A node's session stands.
    Registered {
        /// Its id.
        node: NodeId,
        /// Its incarnation.
        incarnation: u32,
        /// The record, or the position when nothing had to change.
        at: LogIndex,
    },
    /// Carried out, or nothing left to do.
    Done {
        /// The record, or the position when nothing had to change.
        at: LogIndex,
    },
}

impl Answer {
    /// The record to wait for.
    #[must_use]
    pub fn at(&self) -> LogIndex {
        match self {
            Answer::Submitted { at, .. } | Answer::Registered { at, .. } | Answer::Done { at } => *at,
        }
    }
}

/// Carries out a command on the speculation.
///
/// # Errors
/// A refusal; then nothing was pushed.
pub fn handle(speculation: &mut Speculation, command: &Command) -> Result<Answer, Refusal> {
    // What ran in the generation before may be unknown here: nothing is placed, ended or promised beside it.
    if speculation.is_recovering() && !matches!(command, Command::Recover { .. }) {
        if matches!(command, Command::SessionOver { .. }) {
            // Every session ends with the recovery.
            return Ok(Answer::Done { at: speculation.last_index() });
        }
        let text = "the cluster is being recovered, and leases of its earlier life may still be held";
        return Err(Refusal::new(RefusalCode::ClusterRecovering, text));
    }
    match command {
        Command::RaiseFormat { format } => cluster::raise_format(speculation, *format),
        Command::Recover { generation } => cluster::recover(speculation, *generation),
        Command::ForgetNode { request, node } => node::forget(speculation, *request, *node),
        Command::Submit { request, jobs } => submit(speculation, *request, jobs),
        Command::Cancel { request, job } => cancel(speculation, *request, *job),
        Command::SetCordon { request, node, cordoned } => cordon(speculation, *request, *node, *cordoned),
        Command::SetPolicy { request, policy, expected_version } => {
            set_policy(speculation, *request, policy, *expected_version)
        }
        Command::ReportHealth { node, incarnation, report } => {
            health::report(speculation, *node, *incarnation, report)
        }
        Command::NoteSoundNetwork { nodes } => Ok(network::sound(speculation, nodes)),
        Command::ReportForeignLoad { node, incarnation, load } => {
            node::foreign_load(speculation, *node, *incarnation, *load)
        }
        Command::SetDrain { request, node, order } => health::set_drain(speculation, *request, *node, *order),
        Command::SetQuarantine { request, node, reason } => {
            health::set_quarantine(speculation, *request, *node, reason.as_deref())
        }
        Command::SetRepair { request, node, order } => {
            health::set_repair(speculation, *request, *node, order)
        }
        Command::SetHealthPolicy { request, policy, expected_version } => {
            health::set_policy(speculation, *request, policy, *expected_version)
        }
        Command::SetNodeAdmission { request, admission } => admission::set(speculation, *request, admission),
        Command::SetNodeApproval { request, name, approval } => {
            admission::approve(speculation, *request, name, approval.as_ref())
        }
        Command::RevokeCertificate { request, serial, revocation } => {
            admission::revoke(speculation, *request, *serial, revocation)
        }
        Command::CommitCheckpoint { job, token } => commit_checkpoint(speculation, *job, *token),
        Command::NoteStraggler { job, token, rank, slow_milli } => {
            Ok(note_straggler(speculation, *job, *token, *rank, *slow_milli))
        }
        Command::Register { spec, holder, other_session_is_over } => {
            node::register(speculation, spec, *holder, *other_session_is_over)
        }
        Command::SessionOver { node, incarnation } => {
            Ok(node::lost(speculation, *node, *incarnation, NodeLostCause::LeaseExpired))
        }
        Command::Report { node, incarnation, job, token, updates } => {
            node::report(speculation, *node, *incarnation, *job, *token, updates)
        }
    }
}

/// The answer given before under this request id, if there was one.
pub(crate) fn repeated(speculation: &Speculation, key: RequestKey) -> Result<Option<Answer>, Refusal> {
    let Some(row) = speculation.state().request(key.id) else { return Ok(None) };
    if row.fingerprint != key.fingerprint {
        let text = format!("request id {} was used before for a different request; make a new one", key.id);
        return Err(Refusal::new(RefusalCode::RequestIdReused, text).with("log_index", row.log_index));
    }
    let at = row.log_index;
    Ok(Some(match row.answer {
        RequestAnswer::Submitted { jobs } => {
            Answer::Submitted { jobs: (0..jobs as usize).map(|n| JobId::derive(at, n)).collect(), at }
        }
        RequestAnswer::SubmittedFrom { first, jobs } => {
            Answer::Submitted { jobs: (0..u64::from(jobs)).map(|n| JobId(first.0 + n)).collect(), at }
        }
        RequestAnswer::CancelRequested { .. }
        | RequestAnswer::CordonSet { .. }
        | RequestAnswer::NodeForgotten { .. }
        | RequestAnswer::RestrictionSet { .. }
        | RequestAnswer::HealthPolicySet
        | RequestAnswer::Done
        | RequestAnswer::PolicySet => Answer::Done { at },
    }))
}

/// What every submission must pass besides each job's own rules; also the check without a change.
///
/// # Errors
/// The refusal.
pub fn check_submission(state: &State, specs: &[Submission], now: LogTime) -> Result<(), Refusal> {
    let max = limits::BATCH_JOBS_MAX;
    if specs.is_empty() || specs.len() > max {
        return Err(Refusal::fields(alloc::vec![Violation::limit(
            "specs",
            specs.len() as u64,
            1,
            max as u64
        )]));
    }
    // Members of an array ask for the same: one look at the fleet answers for all.
    let mut seen: BTreeSet<GangClass> = BTreeSet::new();
    check_rights(state, specs)?;
    check_limits(state, specs)?;
    check_dependencies(state, specs)?;
    check_contracts(state, specs)?;
    check_metadata(state.format(), specs)?;
    deadline::check(specs, now)?;
    for (place, spec) in specs.iter().enumerate() {
        if !seen.insert(GangClass::of(spec)) {
            continue;
        }
        if let Err(never) = could_ever(state, spec) {
            return Err(Refusal::new(RefusalCode::NeverFits, format!("job {}: {never}", spec.name))
                .with("spec_index", place)
                .with("group", &never.group)
                .with("wanted", &never.wanted)
                .with("closest", &never.closest));
        }
    }
    Ok(())
}

/// A tenant has no more jobs than the policy lets it have.
fn check_limits(state: &State, specs: &[Submission]) -> Result<(), Refusal> {
    let Some(exceeded) = state.exceeded_limit(specs.iter().map(|job| &job.spec)) else { return Ok(()) };
    let ExceededLimit { tenant, limit, most, held } = exceeded;
    let what = if limit == "pendingJobs" { "that wait" } else { "that are not over" };
    let text = format!(
        "tenant {tenant} may have {most} jobs {what} (`limits.{limit}` in the policy) and has {held}: with this \
         submission it would have more; wait until some are over, or cancel some"
    );
    Err(Refusal::new(RefusalCode::TenantLimit, text)
        .with("tenant", tenant)
        .with("limit", limit)
        .with("limit_max", most)
        .with("held", held))
}

/// What jobs ask for beyond what every job may is a right of their tenant.
fn check_rights(state: &State, specs: &[Submission]) -> Result<(), Refusal> {
    let Some((place, missing)) = state.missing_right(specs.iter().map(|job| &job.spec)) else {
        return Ok(());
    };
    let Some(spec) = specs.get(place).map(|job| &job.spec) else { return Ok(()) };
    let (right, text) = match missing {
        MissingRight::Tier { most } => (
            "tierMax",
            format!(
                "job {}: tenant {} may name tiers up to {most}, and this one is {}; name a lower tier, or have the \
                 policy give the tenant the right `tierMax: {}`",
                spec.name, spec.tenant, spec.tier, spec.tier
            ),
        ),
        MissingRight::NonPreemptible => (
            "nonPreemptible",
            format!(
                "job {}: tenant {} may not have jobs that policy cannot stop; leave out `preemptible: false`, or \
                 have the policy give the tenant the right `nonPreemptible: within_nominal`",
                spec.name, spec.tenant
            ),
        ),
    };
    Err(Refusal::new(RefusalCode::RightMissing, text)
        .with("spec_index", place)
        .with("tenant", &spec.tenant)
        .with("right", right))
}

/// Every job that is waited for must exist: one that is gone cannot say how it ended.
fn check_dependencies(state: &State, specs: &[Submission]) -> Result<(), Refusal> {
    let mut found = Vec::new();
    for (place, spec) in specs.iter().enumerate() {
        for (at, dependency) in spec.dependencies.iter().enumerate() {
            if state.job(dependency.job).is_none() && found.len() < VIOLATIONS_MAX {
                let field = format!("specs[{place}].dependencies[{at}]");
                let text = format!(
                    "there is no {}: it never was, or its history has been dropped; a job can wait for jobs that \
                     were submitted before it and are still listed",
                    dependency.job
                );
                found.push(Violation::new(field, text));
            }
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    Err(Refusal { code: RefusalCode::DependencyNotFound, ..Refusal::fields(found) })
}

/// What jobs ask of whoever runs them must be right, and something that the log can say yet.
fn check_contracts(state: &State, specs: &[Submission]) -> Result<(), Refusal> {
    let mut found = Vec::new();
    for (place, job) in specs.iter().enumerate() {
        if job.contract.is_default() || found.len() >= VIOLATIONS_MAX {
            continue;
        }
        let at = format!("specs[{place}].contract");
        found.extend(job.contract.violations(&job.spec).into_iter().map(|violation| violation.under(&at)));
        found.extend(notice_too_short(job).map(|violation| violation.under(&at)));
        let place = job.contract.checkpoint.place.as_ref();
        if let Some(unknown) = place.filter(|place| !state.policy().policy.datasets.contains_key(*place)) {
            let text = format!("policy knows no data set {unknown}");
            found.push(Violation::new(format!("{at}.checkpoint.place"), text));
        }
    }
    if !found.is_empty() {
        found.truncate(VIOLATIONS_MAX);
        return Err(Refusal::fields(found));
    }
    contracts_sayable(state.format(), specs)
}

/// Labels and annotations must be right, and something that the log can say yet. That a creator cannot be kept yet
/// refuses nothing: nobody asked for it.
fn check_metadata(format: u16, specs: &[Submission]) -> Result<(), Refusal> {
    let mut found = Vec::new();
    let mut says_something = false;
    for (place, metadata) in distinct_metadata(specs) {
        says_something |= !(metadata.labels.is_empty() && metadata.annotations.is_empty());
        let at = format!("specs[{place}]");
        found.extend(metadata.violations().into_iter().map(|violation| violation.under(&at)));
        if found.len() >= VIOLATIONS_MAX {
            break;
        }
    }
    if !found.is_empty() {
        found.truncate(VIOLATIONS_MAX);
        return Err(Refusal::fields(found));
    }
    let needed = METADATA_FORMAT;
    if says_something && format < needed {
        let text = format!(
            "labels and annotations need record format {needed}, and {format} is in force; upgrade every replica first"
        );
        return Err(Refusal::new(RefusalCode::FormatNotActive, text).with("needed", needed));
    }
    Ok(())
}

/// The metadata of jobs, once for neighbours that share it, with the place of the first of them.
fn distinct_metadata(jobs: &[Submission]) -> impl Iterator<Item = (usize, &Arc<JobMetadata>)> {
    let mut last: Option<&Arc<JobMetadata>> = None;
    jobs.iter().enumerate().filter_map(move |(place, job)| {
        let metadata = job.metadata.as_ref()?;
        let is_new = last.is_none_or(|last| !Arc::ptr_eq(last, metadata));
        last = Some(metadata);
        is_new.then_some((place, metadata))
    })
}

/// Whoever says how long its steps and its saves take is told to stop two steps and a save before it is killed. That
/// has to fit into the longest grace there is: a shorter one would promise what it does not keep.
fn notice_too_short(job: &Submission) -> Option<Violation> {
    let save_ms = job.contract.checkpoint.save_ms?;
    let steps_ms = job.contract.checkpoint.step_ms.unwrap_or(0).saturating_mul(2);
    let (needed, most) = (save_ms.saturating_add(steps_ms), limits::STOP_GRACE_MS_MAX);
    (needed > most).then(|| {
        let text = format!(
            "two steps and a save take {}, and a worker that is told to stop has at most {}; save \
             faster, or leave it out: then the job is told to stop `stop_grace_ms` before it is killed",
            Span(needed),
            Span(most)
        );
        Violation::new("checkpoint.save_ms", text)
    })
}

/// A format that is raised in a round is that of the next: `format` is the one in force where the round began.
fn contracts_sayable(format: u16, specs: &[Submission]) -> Result<(), Refusal> {
    let needed = CONTRACTS_FORMAT;
    if format < needed && specs.iter().any(|job| !job.contract.is_default()) {
        let text = format!(
            "launch, retry, checkpoint, notice, spares and preflight need record format {needed}, and {format} is in force; \
             upgrade every replica first"
        );
        return Err(Refusal::new(RefusalCode::FormatNotActive, text).with("needed", needed));
    }
    Ok(())
}

/// Where a policy names tenants, each may have as many jobs that are not over as there is room beside the others: one
/// alone gets half, two that take all they can get a third each, and there is always room left for the next.
fn check_share(state: &State, specs: &[Submission]) -> Result<(), Refusal> {
    if state.policy().policy.tenants.is_empty() {
        return Ok(());
    }
    let most = state.parameters().jobs_held_max;
    let unfinished = (state.jobs().len() - state.finished_count()) as u64;
    for of_one in specs.chunk_by(|a, b| a.spec.tenant == b.spec.tenant) {
        let Some(tenant) = of_one.first().map(|job| &job.spec.tenant) else { continue };
        // Far below the bound nobody is asked.
        let own = if unfinished + specs.len() as u64 <= most / 4 { 0 } else { unfinished_of(state, tenant) };
        let free = most.saturating_sub(unfinished);
        if own > 0 && own + of_one.len() as u64 > free {
            let text = format!(
                "tenant {tenant} has {own} jobs that are not over, of the {most} that the cluster may hold, and {free} are \
                 left: the rest is kept for other tenants; cancel some, or wait until some are over"
            );
            return Err(Refusal::new(RefusalCode::StateFull, text)
                .with("limit", "jobs_held_share")
                .with("tenant", tenant)
                .with("held", own)
                .with("held_max", free)
                .with("retry_after_ms", 5_000));
        }
    }
    Ok(())
}

fn unfinished_of(state: &State, tenant: &Name) -> u64 {
    state.queue(tenant).map_or(0, |queue| queue.load.pending_jobs + queue.load.active_jobs)
}

/// Memory is bounded whatever is submitted: what is finished or old goes first (`tick`), then nothing new comes in.
fn check_room(state: &State, jobs: usize) -> Result<(), Refusal> {
    let parameters = state.parameters();
    let refuse = |limit: &'static str, max: u64, held: usize, what: &str| {
        let text = format!("the cluster holds {held} {what}; it may hold {max}");
        Err(Refusal::new(RefusalCode::StateFull, text)
            .with("limit", limit)
            .with("held", held)
            .with("held_max", max)
            .with("retry_after_ms", 5_000))
    };
    let held = state.jobs().len();
    if (held + jobs) as u64 > parameters.jobs_held_max {
        return refuse("jobs_held_max", parameters.jobs_held_max, held, "jobs");
    }
    let held = state.requests_count();
    if held as u64 >= parameters.requests_held_max {
        return refuse("requests_held_max", parameters.requests_held_max, held, "requests");
    }
    Ok(())
}

fn submit(
    speculation: &mut Speculation,
    request: RequestId,
    submitted: &[Submission],
) -> Result<Answer, Refusal> {
    let specs: Vec<&JobSpec> = submitted.iter().map(|job| &job.spec).collect();
    let mut bytes = canonical(&specs);
    // Jobs that say nothing of how they are run have the name that they had before anybody could.
    if submitted.iter().any(|job| !job.contract.is_default()) {
        let contracts: Vec<&JobContract> = submitted.iter().map(|job| &job.contract).collect();
        bytes.extend(canonical(&contracts));
    }
    bytes.extend(metadata_name(submitted));
    // Each job has a row: texts that an array shares count once for every job.
    let texts: usize =
        submitted.iter().filter_map(|job| job.metadata.as_ref()).map(|shared| shared.text_bytes()).sum();
    if bytes.len() + texts > SUBMISSION_BYTES_MAX {
        let text =
            format!("must be at most {SUBMISSION_BYTES_MAX} bytes together, got {}", bytes.len() + texts);
        return Err(Refusal::fields(alloc::vec![Violation::new("specs", text)]));
    }
    let key = RequestKey { id: request, fingerprint: hash(&bytes) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    // What is over goes first, but not while somebody submits a job that waits for it.
    let is_free = specs.iter().all(|spec| spec.dependencies.is_empty());
    let forgets = is_free && can_make_room(speculation, specs.len());
    check_room(speculation.state(), if forgets { 0 } else { specs.len() })?;
    check_share(speculation.state(), submitted)?;
    check_submission(speculation.state(), submitted, speculation.now())?;
    contracts_sayable(speculation.format(), submitted)?;
    check_metadata(speculation.format(), submitted)?;
    requests::take(speculation, specs.iter().map(|spec| &spec.tenant))?;
    if forgets {
        make_room(speculation, specs.len());
    }
    let now = speculation.now();
    let estimates = estimates(speculation.state(), specs.iter().copied(), now);
    let shared = specs.iter().map(|spec| Arc::new((*spec).clone())).collect();
    let at = speculation.push(Decision::JobsSubmitted { request: key, specs: shared, estimates });
    let jobs: Vec<JobId> = (0..specs.len()).map(|n| speculation.state().job_id(at, n)).collect();
    set_contracts(speculation, &jobs, submitted);
    set_metadata(speculation, &jobs, submitted);
    for (job, spec) in jobs.iter().zip(specs) {
        if !spec.dependencies.is_empty() || spec.not_before.is_some() {
            job::settle(speculation, *job);
        }
    }
    Ok(Answer::Submitted { jobs, at })
}

/// Right behind the jobs, in the same round. Jobs that ask for the same share it.
fn set_contracts(speculation: &mut Speculation, jobs: &[JobId], submitted: &[Submission]) {
    let mut contracts: Vec<(JobId, Arc<JobContract>)> = Vec::new();
    for (job, submission) in jobs.iter().zip(submitted) {
        if submission.contract.is_default() {
            continue;
        }
        let known = contracts.last().filter(|(_, last)| **last == submission.contract);
        let shared =
            known.map_or_else(|| Arc::new(submission.contract.clone()), |(_, last)| Arc::clone(last));
        contracts.push((*job, shared));
    }
    if !contracts.is_empty() {
        speculation.push(Decision::JobContractsSet { contracts });
    }
}

/// What labels and annotations add to a request's fingerprint: nothing when there are none. The creator does not count:
/// a request that is repeated over another connection is the same request.
fn metadata_name(submitted: &[Submission]) -> Vec<u8> {
    let said = |job: &Submission| {
        job.metadata.as_ref().is_some_and(|said| !(said.labels.is_empty() && said.annotations.is_empty()))
    };
    if !submitted.iter().any(said) {
        return Vec::new();
    }
    let runs: Vec<_> = submitted
        .chunk_by(|a, b| a.metadata == b.metadata)
        .map(|run| {
            let texts = run.first().and_then(|job| job.metadata.as_ref());
            (run.len() as u64, texts.map(|texts| (&texts.labels, &texts.annotations)))
        })
        .collect();
    canonical(&("metadata", runs))
}

/// Right behind the jobs, in the same round: neighbours that have the same are one run.
fn set_metadata(speculation: &mut Speculation, jobs: &[JobId], submitted: &[Submission]) {
    if speculation.format() < METADATA_FORMAT {
        return;
    }
    let mut runs: Vec<(JobId, u32, Arc<JobMetadata>)> = Vec::new();
    for (job, submission) in jobs.iter().zip(submitted) {
        let Some(metadata) = submission.metadata.as_ref().filter(|metadata| !metadata.is_default()) else {
            continue;
        };
        match runs.last_mut() {
            Some((first, count, last)) if first.0 + u64::from(*count) == job.0 && *last == *metadata => {
                *count += 1;
            }
            _ => runs.push((*job, 1, Arc::clone(metadata))),
        }
    }
    if !runs.is_empty() {
        speculation.push(Decision::JobMetadataSet { runs });
    }
}

fn cancel(speculation: &mut Speculation, request: RequestId, job: JobId) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("cancel", job)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let Some(row) = speculation.state().job(job) else {
        return Err(Refusal::new(RefusalCode::JobNotFound, format!("there is no job {job}")));
    };
    if let Phase::Finished(outcome) = &row.phase {
        let text = match outcome {
            Outcome::Succeeded => format!("{job} has already finished: it succeeded"),
            Outcome::Cancelled => format!("{job} has already finished: it was cancelled"),
            Outcome::Failed { detail } => format!("{job} has already finished: it failed, {detail}"),
        };
        return Err(Refusal::new(RefusalCode::JobFinished, text));
    }
    // An operator who ends many jobs is not held up. Repeated cancellations of one job count, because they end it no sooner.
    if row.cancel_requested {
        let tenant = speculation.state().spec(job).map(|spec| spec.tenant.clone());
        requests::take(speculation, tenant.iter())?;
    }
    let at = speculation.push(Decision::JobCancelRequested { request: key, job });
    job::settle(speculation, job);
    Ok(Answer::Done { at })
}

fn cordon(
    speculation: &mut Speculation,
    request: RequestId,
    node: NodeId,
    cordoned: bool,
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("cordon", node, cordoned)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    if speculation.state().node(node).is_none() {
        return Err(Refusal::new(RefusalCode::NodeNotFound, format!("there is no {node}")));
    }
    let at = speculation.push(Decision::NodeCordonSet { request: key, node, cordoned });
    let promised: Vec<JobId> = speculation.state().promised_on(node).collect();
    job::settle_many(speculation, promised);
    Ok(Answer::Done { at })
}

fn set_policy(
    speculation: &mut Speculation,
    request: RequestId,
    policy: &Policy,
    expected_version: Option<LogIndex>,
) -> Result<Answer, Refusal> {
    let rules = policy.rules();
    let key = RequestKey { id: request, fingerprint: hash(&("policy", policy, &rules, expected_version)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let second = Decision::PolicyRulesSet { rules: Box::new(rules) };
    let can_say = speculation.can_say(&second);
    check_policy_for(speculation.state(), policy, expected_version, can_say)?;
    let before = speculation.state().policy().policy.clone();
    let at = speculation.push(Decision::PolicySet { request: key, policy: Box::new(policy.as_recorded()) });
    if can_say {
        speculation.push(second);
    }
    if before.required_isolation != policy.required_isolation {
        let promised: Vec<JobId> = speculation.state().promised().collect();
        job::settle_many(speculation, promised);
    }
    if before.order != policy.order || before.backfill != policy.backfill {
        speculation.leave_turns_stale();
    }
    Ok(Answer::Done { at })
}

/// What every policy must pass after its own rules; also the check without a change.
///
/// # Errors
/// The refusal.
pub fn check_policy(
    state: &State,
    policy: &Policy,
    expected_version: Option<LogIndex>,
) -> Result<(), Refusal> {
    check_policy_for(state, policy, expected_version, RULES_FORMAT <= state.format())
}

/// The same; `has_rules` tells whether the format has the second record of a policy.
fn check_policy_for(
    state: &State,
    policy: &Policy,
    expected_version: Option<LogIndex>,
    has_rules: bool,
) -> Result<(), Refusal> {
    let rules = policy.rules();
    let bytes = canonical(policy).len() + canonical(&rules).len();
    if bytes > SUBMISSION_BYTES_MAX {
        let text = format!("must be at most {SUBMISSION_BYTES_MAX} bytes, got {bytes}");
        return Err(Refusal::fields(alloc::vec![Violation::new("policy", text)]));
    }
    let current = state.policy().version;
    if let Some(expected) = expected_version.filter(|expected| *expected != current) {
        let text = format!(
            "the policy is at version {current}, not {expected}; read it again and apply the change to that"
        );
        return Err(Refusal::new(RefusalCode::PolicyChanged, text).with("version", current));
    }
    // What such a cluster shows may be set again as it is.
    let known = [PolicyDraft::default().rules(), state.policy().policy.rules()];
    if !has_rules && !known.contains(&rules) {
        let text = "rights of tenants, required isolation, backoff, endOverrunners and deadlines of starts and stops need record format 5; \
                    upgrade every replica first";
        return Err(Refusal::new(RefusalCode::FormatNotActive, text).with("needed", RULES_FORMAT));
    }
    Ok(())
}

/// What comes too late, or the format cannot say yet, is not worth a refusal: it is said again if it stays so.
fn note_straggler(
    speculation: &mut Speculation,
    job: JobId,
    token: FencingToken,
    rank: u32,
    slow_milli: Option<u32>,
) -> Answer {
    let decision = Decision::StragglerNoted { job, token, rank, slow_milli };
    if !speculation.can_say(&decision) || speculation.state().check(&decision).is_err() {
        return Answer::Done { at: speculation.last_index() };
    }
    Answer::Done { at: speculation.push(decision) }
}

/// Late and repeated reports change nothing: the gang may be over, or another attempt be running.
fn commit_checkpoint(
    speculation: &mut Speculation,
    job: JobId,
    token: FencingToken,
) -> Result<Answer, Refusal> {
    let Some(row) = speculation.state().job(job) else {
        return Err(Refusal::new(RefusalCode::JobNotFound, format!("there is no {job}")));
    };
    let runs = matches!(row.phase, Phase::Running | Phase::Stopping(_));
    let current = row.placement.as_ref().is_some_and(|p| p.token == token && p.live > 0);
    if !runs || !current {
        let text = format!("{job} does not run under token {token}");
        return Err(Refusal::new(RefusalCode::Fenced, text));
    }
    let at = speculation.push(Decision::CheckpointCommitted { job, token });
    Ok(Answer::Done { at })
}
