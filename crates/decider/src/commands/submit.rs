//! Jobs that are submitted, and what every submission must pass.

use alloc::borrow::Cow;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_journal::{Decision, RequestKey, canonical, hash};
use muster_planner::could_ever;
use muster_policy::estimates;
use muster_state::{ExceededLimit, GangClass, JobAboveLimit, MissingRight, State};
use muster_types::metadata::ANONYMOUS;
use muster_types::{
    JobContract, JobId, JobSpec, LogTime, Name, PriorityTier, Refusal, RefusalCode, RequestId, Span,
    Submission, Violation, limits,
};

use crate::commands::answer::{Answer, VIOLATIONS_MAX, repeated};
use crate::commands::metadata::{check_metadata, metadata_name, set_metadata};
use crate::rules::deadline;
use crate::rules::requested::{JobPath, distinct_specs, job_index};
use crate::settle::job::settle;
use crate::settle::retention::headroom_for;
use crate::speculation::Speculation;

/// Bytes of one submission: keeps a round far below its bound.
pub const SUBMISSION_BYTES_MAX: usize = 1 << 20;

/// What every submission must pass besides each job's own rules; also the check without a change.
///
/// # Errors
/// The refusal.
pub fn check_submission(
    state: &State,
    specs: &[Submission],
    path: JobPath,
    now: LogTime,
) -> Result<(), Refusal> {
    let max = limits::BATCH_JOBS_MAX;
    if specs.is_empty() || specs.len() > max {
        return Err(Refusal::fields(alloc::vec![Violation::limit(
            "jobs",
            specs.len() as u64,
            1,
            max as u64
        )]));
    }
    let specs = &*with_default_limits(state, specs);
    // Members of an array ask for the same: one look at the fleet answers for all.
    let mut seen: BTreeSet<GangClass> = BTreeSet::new();
    check_rights(state, specs)?;
    check_job_limits(state, specs)?;
    check_limits(state, specs)?;
    check_dependencies(state, specs, path)?;
    check_contracts(state, specs, path)?;
    check_datasets(state, specs, path)?;
    check_metadata(specs, path)?;
    deadline::check(specs, path, now)?;
    for (place, spec) in specs.iter().enumerate() {
        if !seen.insert(GangClass::of(spec)) {
            continue;
        }
        if let Err(never) = could_ever(state, spec) {
            return Err(Refusal::new(RefusalCode::NeverFits, format!("job {}: {never}", spec.name))
                .with("job_index", job_index(specs, place))
                .with("group", &never.group)
                .with("wanted", &never.wanted)
                .with("closest", &never.closest));
        }
    }
    Ok(())
}

/// Jobs as they are taken: one that names no run time limit gets the one of its tenant and tier.
#[must_use]
pub fn with_default_limits<'a>(state: &State, specs: &'a [Submission]) -> Cow<'a, [Submission]> {
    let policy = &state.policy().policy;
    // Jobs of one tenant and tier stand next to each other: the tree of tenants is asked once for all of them.
    let mut known: Option<(&Name, PriorityTier, Option<u64>)> = None;
    let default_of = |job: &'a Submission| {
        if job.run_time_limit_ms.is_some() {
            return None;
        }
        let limit_ms = match known {
            Some((tenant, tier, limit_ms)) if *tenant == job.tenant && tier == job.tier => limit_ms,
            _ => policy.job_limits(&job.tenant, job.tier).run_time_unless_named_ms(),
        };
        known = Some((&job.tenant, job.tier, limit_ms));
        limit_ms
    };
    let defaults: Vec<Option<u64>> = specs.iter().map(default_of).collect();
    if defaults.iter().all(Option::is_none) {
        return Cow::Borrowed(specs);
    }
    let with_default = |(job, default): (&Submission, Option<u64>)| {
        let mut job = job.clone();
        if default.is_some() {
            let mut draft = job.spec.clone().into_draft();
            draft.run_time_limit_ms = default;
            // A limit within the policy's bounds is within those of a job.
            job.spec = draft.check().unwrap_or(job.spec);
        }
        job
    };
    Cow::Owned(specs.iter().zip(defaults).map(with_default).collect())
}

/// No job asks for more than the policy lets one job of its tenant and tier ask for.
///
/// # Errors
/// The refusal, with the limit and what the job asks for.
pub fn check_job_limits(state: &State, specs: &[Submission]) -> Result<(), Refusal> {
    let Some((place, above)) = state.above_job_limit(specs.iter().map(|job| &job.spec)) else {
        return Ok(());
    };
    let Some(spec) = specs.get(place).map(|job| &job.spec) else { return Ok(()) };
    let (name, tenant, tier) = (&spec.name, &spec.tenant, spec.tier);
    let (limit, most, asked, text) = match above {
        JobAboveLimit::Devices { most, asked } => {
            let text = format!(
                "job {name}: a {tier} job of tenant {tenant} may ask for {most} devices, and this one asks for {asked}; ask \
                 for fewer workers, or have the policy raise `limits.job.maxDevices`"
            );
            ("job.maxDevices", u64::from(most), Some(asked), text)
        }
        JobAboveLimit::RunTime { most_ms, asked_ms } => {
            let asked = asked_ms.map_or_else(|| "none".into(), |ms| format!("{}", Span(ms)));
            let text = format!(
                "job {name}: the run time limit of a {tier} job of tenant {tenant} may be {} at most, and that of this one \
                 is {asked}; name a shorter one, or have the policy raise `limits.job.maxRunTime`",
                Span(most_ms)
            );
            ("job.maxRunTime", most_ms, asked_ms, text)
        }
    };
    let refusal = Refusal::new(RefusalCode::JobAboveLimit, text)
        .with("job_index", job_index(specs, place))
        .with("tenant", tenant)
        .with("limit", limit)
        .with("limit_max", most);
    Err(match asked {
        Some(asked) => refusal.with("asked", asked),
        None => refusal,
    })
}

/// Who submits a job; empty when nobody knows.
fn creator(job: &Submission) -> &str {
    job.metadata.as_ref().map_or("", |metadata| &metadata.creator)
}

/// A tenant has no more jobs than the policy lets it have, and neither has any of its users.
fn check_limits(state: &State, specs: &[Submission]) -> Result<(), Refusal> {
    // Most submissions are of one user, so that there is one run.
    let runs = specs.chunk_by(|a, b| a.spec.tenant == b.spec.tenant && creator(a) == creator(b));
    let counted = runs.filter_map(|run| {
        let job = run.first()?;
        Some((job.spec.tenant.clone(), String::from(creator(job)), run.len() as u64))
    });
    let exceeded = state.exceeded_limit(specs.iter().map(|job| &job.spec));
    let Some(exceeded) = exceeded.or_else(|| state.exceeded_user_limit(counted)) else {
        return Ok(());
    };
    let ExceededLimit { tenant, user, limit, most, held } = exceeded;
    let what = if limit.ends_with("pendingJobs") { "that wait" } else { "that are not over" };
    let user = user.map(|user| if user.is_empty() { ANONYMOUS.into() } else { user });
    let who = user.as_ref().map(|user| format!("user {user} of ")).unwrap_or_default();
    let text = format!(
        "{who}tenant {tenant} may have {most} jobs {what} (`limits.{limit}` in the policy) and has {held}: with this \
         submission it would have more; wait until some are over, or cancel some"
    );
    let refusal = Refusal::new(RefusalCode::TenantLimit, text)
        .with("tenant", tenant)
        .with("limit", limit)
        .with("limit_max", most)
        .with("held", held);
    Err(match user {
        Some(user) => refusal.with("user", user),
        None => refusal,
    })
}

/// What jobs ask for beyond what every job may is a right of their tenant.
pub(super) fn check_rights(state: &State, specs: &[Submission]) -> Result<(), Refusal> {
    let Some((place, missing)) = state.missing_right(specs.iter().map(|job| &job.spec)) else {
        return Ok(());
    };
    let Some(spec) = specs.get(place).map(|job| &job.spec) else { return Ok(()) };
    let place = job_index(specs, place);
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
        .with("job_index", place)
        .with("tenant", &spec.tenant)
        .with("right", right))
}

/// Every job that is waited for must exist: one that is gone cannot say how it ended.
fn check_dependencies(state: &State, specs: &[Submission], path: JobPath) -> Result<(), Refusal> {
    let mut found = Vec::new();
    for (place, spec) in distinct_specs(specs) {
        for (at, dependency) in spec.dependencies.iter().enumerate() {
            if state.job(dependency.job).is_none() && found.len() < VIOLATIONS_MAX {
                let field = format!("{}.spec.dependencies[{at}]", path.at(place));
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

/// Contracts must be valid, and the format in force must have a form for them.
fn check_contracts(state: &State, specs: &[Submission], path: JobPath) -> Result<(), Refusal> {
    let mut found = Vec::new();
    for (place, job) in distinct_specs(specs) {
        if job.contract.is_default() || found.len() >= VIOLATIONS_MAX {
            continue;
        }
        let at = format!("{}.spec", path.at(place));
        found.extend(job.contract.violations(&job.spec).into_iter().map(|violation| violation.under(&at)));
        found.extend(notice_too_short(job).map(|violation| violation.under(&at)));
        let checkpoints = job.contract.checkpoint.place.as_ref();
        if let Some(violation) = checkpoints.and_then(|name| unknown_dataset(state, name)) {
            found.push(Violation::new(format!("{at}.checkpoint.place"), violation));
        }
    }
    if !found.is_empty() {
        found.truncate(VIOLATIONS_MAX);
        return Err(Refusal::fields(found));
    }
    Ok(())
}

/// Every data set that a job reads must be one that the policy lists: a misspelled name would move its work away from its
/// data without a word.
///
/// # Errors
/// The refusal, with the field of each that the policy does not list.
pub fn check_datasets(state: &State, specs: &[Submission], path: JobPath) -> Result<(), Refusal> {
    let mut found = Vec::new();
    let named = distinct_specs(specs)
        .flat_map(|(place, spec)| spec.datasets.iter().enumerate().map(move |(at, name)| (place, at, name)));
    for (place, at, name) in named {
        if found.len() >= VIOLATIONS_MAX {
            break;
        }
        if let Some(text) = unknown_dataset(state, name) {
            found.push(Violation::new(format!("{}.spec.datasets[{at}]", path.at(place)), text));
        }
    }
    if found.is_empty() { Ok(()) } else { Err(Refusal::fields(found)) }
}

/// What is wrong with the name of a data set, unless the policy lists it.
fn unknown_dataset(state: &State, name: &Name) -> Option<String> {
    /// How many names a sentence lists.
    const NAMED_MAX: usize = 8;
    let known = &state.policy().policy.datasets;
    if known.contains_key(name) {
        return None;
    }
    if known.is_empty() {
        return Some(format!(
            "the policy lists no data set {name}: it lists none (`datasets` in the policy)"
        ));
    }
    let listed: Vec<&str> = known.keys().take(NAMED_MAX).map(Name::as_str).collect();
    let more = if known.len() > NAMED_MAX { ", ..." } else { "" };
    Some(format!("the policy lists no data set {name}; it lists {}{more}", listed.join(", ")))
}

/// A job that says how long its steps and saves take is told to stop two steps and one save before it is killed. That time
/// has to fit into the longest grace, or the notice would be shorter than promised.
fn notice_too_short(job: &Submission) -> Option<Violation> {
    let save_ms = job.contract.checkpoint.save_ms?;
    let steps_ms = job.contract.checkpoint.step_ms.unwrap_or(0).saturating_mul(2);
    let (needed, most) = (save_ms.saturating_add(steps_ms), limits::STOP_GRACE_MS_MAX);
    (needed > most).then(|| {
        let text = format!(
            "two steps and a save take {}, and a worker that is told to stop has at most {}; save \
             faster, or leave it out: then the job is told to stop `stop_grace` before it is killed",
            Span(needed),
            Span(most)
        );
        Violation::new("checkpoint.save", text)
    })
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

pub(super) fn submit(
    speculation: &mut Speculation,
    request: RequestId,
    submitted: &[Submission],
    path: JobPath,
) -> Result<Answer, Refusal> {
    let specs: Vec<&JobSpec> = submitted.iter().map(|job| &job.spec).collect();
    let mut bytes = canonical(&specs);
    // Jobs that say nothing of how they are run add nothing.
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
        return Err(Refusal::fields(alloc::vec![Violation::new("jobs", text)]));
    }
    let key = RequestKey { id: request, fingerprint: hash(&bytes) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    // The request is what was asked for, whatever the policy adds to it at the time.
    let submitted = &*with_default_limits(speculation.state(), submitted);
    let specs: Vec<&JobSpec> = submitted.iter().map(|job| &job.spec).collect();
    let headroom = headroom_for(speculation, &specs)?;
    check_share(speculation.state(), submitted)?;
    check_submission(speculation.state(), submitted, path, speculation.now())?;
    speculation.count_request(specs.iter().map(|spec| &spec.tenant))?;
    headroom.make(speculation);
    let now = speculation.now();
    let estimates = estimates(speculation.state(), specs.iter().copied(), now);
    let shared = specs.iter().map(|spec| Arc::new((*spec).clone())).collect();
    let at = speculation.push(Decision::JobsSubmitted { request: key, specs: shared, estimates });
    let jobs: Vec<JobId> = (0..specs.len()).map(|n| speculation.state().job_id(at, n)).collect();
    set_contracts(speculation, &jobs, submitted);
    set_metadata(speculation, &jobs, submitted);
    for (job, spec) in jobs.iter().zip(specs) {
        if !spec.dependencies.is_empty() || spec.not_before.is_some() {
            settle(speculation, *job);
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
