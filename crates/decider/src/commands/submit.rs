//! Jobs that are submitted, and what every submission must pass.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_journal::{Decision, Estimate, RequestKey, SubmittedPart, canonical, hash};
use muster_planner::could_ever;
use muster_policy::{estimates, estimates_of_parts};
use muster_state::{ExceededLimit, GangClass, JobEnd, MissingRight, RequestAnswer, State};
use muster_types::{
    ArrayId, ArraySpec, Dependency, JobContract, JobId, JobSpec, LogIndex, LogTime, Name, Refusal,
    RefusalCode, RequestId, Span, Submission, Violation, limits,
};

use crate::commands::answer::{Answer, VIOLATIONS_MAX, repeated};
use crate::commands::metadata::{check_metadata, metadata_name, set_metadata};
use crate::rules::deadline;
use crate::settle::job::{advance_arrays, settle};
use crate::settle::retention::headroom_for;
use crate::speculation::Speculation;

/// Bytes of one submission: keeps a round far below its bound.
pub const SUBMISSION_BYTES_MAX: usize = 1 << 20;

/// What every submission must pass besides each job's own rules; also the check without a change.
///
/// # Errors
/// The refusal.
pub fn check_submission(state: &State, specs: &[Submission], now: LogTime) -> Result<(), Refusal> {
    let max = limits::BATCH_JOBS_MAX;
    if specs.is_empty() || specs.len() > max {
        return Err(Refusal::fields(alloc::vec![Violation::limit(
            "jobs",
            specs.len() as u64,
            1,
            max as u64
        )]));
    }
    check_arrays(specs)?;
    // Jobs that ask for the same get the same answer.
    let mut seen: BTreeSet<GangClass> = BTreeSet::new();
    check_rights(state, specs)?;
    check_limits(state, specs)?;
    check_dependencies(state, specs)?;
    check_contracts(state, specs)?;
    check_datasets(state, specs)?;
    check_metadata(specs)?;
    deadline::check(specs, now)?;
    for (place, spec) in specs.iter().enumerate() {
        if !seen.insert(GangClass::of(spec)) {
            continue;
        }
        if let Err(never) = could_ever(state, spec) {
            return Err(Refusal::new(RefusalCode::NeverFits, format!("job {}: {never}", spec.name))
                .with("job_index", place)
                .with("group", &never.group)
                .with("wanted", &never.wanted)
                .with("closest", &never.closest));
        }
    }
    Ok(())
}

/// Arrays are valid, and all jobs together are not too many.
fn check_arrays(specs: &[Submission]) -> Result<(), Refusal> {
    let mut found = Vec::new();
    for (place, job) in specs.iter().enumerate() {
        if found.len() >= VIOLATIONS_MAX {
            break;
        }
        let violations = job.array.as_ref().map(ArraySpec::violations).unwrap_or_default();
        found.extend(violations.into_iter().map(|violation| violation.under(&format!("jobs[{place}].spec"))));
    }
    let jobs: u64 = specs.iter().map(|job| u64::from(job.job_count())).sum();
    let max = limits::ARRAY_MEMBERS_MAX;
    if found.is_empty() && jobs > u64::from(max) {
        let text = format!("must be at most {max} jobs together, members of arrays counted, got {jobs}");
        found.push(Violation::new("jobs", text));
    }
    if found.is_empty() { Ok(()) } else { Err(Refusal::fields(found)) }
}

/// A tenant has no more jobs than the policy lets it have.
fn check_limits(state: &State, specs: &[Submission]) -> Result<(), Refusal> {
    let counted = specs.iter().map(|job| (&job.spec, u64::from(job.job_count())));
    let Some(exceeded) = state.exceeded_limit(counted) else { return Ok(()) };
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
pub(super) fn check_rights(state: &State, specs: &[Submission]) -> Result<(), Refusal> {
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
        .with("job_index", place)
        .with("tenant", &spec.tenant)
        .with("right", right))
}

/// Every job and array that is waited for must exist: one that is gone cannot say how it ended.
fn check_dependencies(state: &State, specs: &[Submission]) -> Result<(), Refusal> {
    let mut found = Vec::new();
    for (place, job) in specs.iter().enumerate() {
        for (at, on) in job.dependencies.iter().enumerate() {
            if found.len() >= VIOLATIONS_MAX {
                break;
            }
            let field = format!("jobs[{place}].spec.dependencies[{at}]");
            let by_member = on.is_of_members();
            if let Some(text) = missing_dependency(state, on) {
                found.push((true, Violation::new(field, text)));
            } else if by_member && !has_same_indices(state, job, on) {
                let text = format!(
                    "only an array can wait for {} member by member, and only one with the same indices",
                    ArrayId(on.job.0)
                );
                found.push((false, Violation::new(field, text)));
            }
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    let is_missing = found.iter().all(|(is_missing, _)| *is_missing);
    let refusal = Refusal::fields(found.into_iter().map(|(_, violation)| violation).collect());
    Err(if is_missing { Refusal { code: RefusalCode::DependencyNotFound, ..refusal } } else { refusal })
}

fn missing_dependency(state: &State, on: &Dependency) -> Option<String> {
    let rest = "it never was, or its history has been dropped";
    if on.is_of_array() || on.is_of_members() {
        let array = ArrayId(on.job.0);
        let is_gone = state.end_of_array(array) == JobEnd::Gone;
        return is_gone.then(|| {
            format!("there is no {array}: {rest}; an array can be waited for that was submitted before and is still listed")
        });
    }
    (state.end_of(on.job) == JobEnd::Gone).then(|| {
        format!(
            "there is no {}: {rest}; a job can wait for jobs that were submitted before it and are still listed",
            on.job
        )
    })
}

fn has_same_indices(state: &State, job: &Submission, on: &Dependency) -> bool {
    let other = state.array(ArrayId(on.job.0)).map(|row| &row.template.array);
    job.array.as_ref().zip(other).is_some_and(|(own, other)| own.has_indices_of(other))
}

/// Contracts must be valid, and the format in force must have a form for them.
fn check_contracts(state: &State, specs: &[Submission]) -> Result<(), Refusal> {
    let mut found = Vec::new();
    for (place, job) in specs.iter().enumerate() {
        if job.contract.is_default() || found.len() >= VIOLATIONS_MAX {
            continue;
        }
        let at = format!("jobs[{place}].spec");
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
pub fn check_datasets(state: &State, specs: &[Submission]) -> Result<(), Refusal> {
    let mut found = Vec::new();
    let named = specs
        .iter()
        .enumerate()
        .flat_map(|(place, spec)| spec.datasets.iter().enumerate().map(move |(at, name)| (place, at, name)));
    for (place, at, name) in named {
        if found.len() >= VIOLATIONS_MAX {
            break;
        }
        if let Some(text) = unknown_dataset(state, name) {
            found.push(Violation::new(format!("jobs[{place}].spec.datasets[{at}]"), text));
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
        let own = if unfinished + rows_of(specs) <= most / 4 { 0 } else { unfinished_of(state, tenant) };
        let free = most.saturating_sub(unfinished);
        if own > 0 && own + rows_of(of_one) > free {
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

/// Jobs of a tenant that are not over. Members of arrays that are not created take no memory.
fn unfinished_of(state: &State, tenant: &Name) -> u64 {
    let load = state.queue(tenant).map(|queue| queue.load).unwrap_or_default();
    load.pending_jobs + load.active_jobs - load.uncreated_jobs
}

/// How many jobs a submission has at once, or soon: of an array no more than a window and its throttle let be created.
fn rows_of(jobs: &[Submission]) -> u64 {
    let rows = |job: &Submission| {
        let throttle = job.array.as_ref().and_then(|array| array.throttle).unwrap_or(u32::MAX);
        u64::from(job.job_count().min(limits::ARRAY_WINDOW).min(throttle))
    };
    jobs.iter().map(rows).sum()
}

pub(super) fn submit(
    speculation: &mut Speculation,
    request: RequestId,
    submitted: &[Submission],
) -> Result<Answer, Refusal> {
    let specs: Vec<&JobSpec> = submitted.iter().map(|job| &job.spec).collect();
    let key = RequestKey { id: request, fingerprint: hash(&request_bytes(submitted, &specs)?) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let headroom = headroom_for(speculation, &specs, rows_of(submitted))?;
    check_share(speculation.state(), submitted)?;
    check_submission(speculation.state(), submitted, speculation.now())?;
    speculation.count_request(specs.iter().map(|spec| &spec.tenant))?;
    headroom.make(speculation);
    let at = if submitted.iter().any(|job| job.array.is_some()) {
        push_arrays(speculation, key, submitted)
    } else {
        push_jobs(speculation, key, submitted)
    };
    let jobs = submitted_under(speculation, key);
    let mut place = 0;
    for job in submitted {
        if job.array.is_none() && (!job.dependencies.is_empty() || job.not_before.is_some()) {
            jobs.get(place).inspect(|id| settle(speculation, **id));
        }
        place += job.job_count() as usize;
    }
    if submitted.iter().any(|job| job.array.is_some()) {
        advance_arrays(speculation);
    }
    Ok(Answer::Submitted { jobs, at })
}

/// What a request is known by, as bytes.
fn request_bytes(submitted: &[Submission], specs: &[&JobSpec]) -> Result<Vec<u8>, Refusal> {
    let mut bytes = canonical(specs);
    // Jobs that say nothing of how they are run add nothing.
    if submitted.iter().any(|job| !job.contract.is_default()) {
        let contracts: Vec<&JobContract> = submitted.iter().map(|job| &job.contract).collect();
        bytes.extend(canonical(&contracts));
    }
    if submitted.iter().any(|job| job.array.is_some()) {
        let arrays: Vec<&Option<ArraySpec>> = submitted.iter().map(|job| &job.array).collect();
        bytes.extend(canonical(&("arrays", arrays)));
    }
    bytes.extend(metadata_name(submitted));
    let texts: usize =
        submitted.iter().filter_map(|job| job.metadata.as_ref()).map(|shared| shared.text_bytes()).sum();
    if bytes.len() + texts > SUBMISSION_BYTES_MAX {
        let text =
            format!("must be at most {SUBMISSION_BYTES_MAX} bytes together, got {}", bytes.len() + texts);
        return Err(Refusal::fields(alloc::vec![Violation::new("jobs", text)]));
    }
    Ok(bytes)
}

/// The ids that the record of a request gave.
fn submitted_under(speculation: &Speculation, key: RequestKey) -> Vec<JobId> {
    match speculation.state().request(key.id).map(|row| &row.answer) {
        Some(RequestAnswer::Submitted { first, jobs }) => {
            (0..u64::from(*jobs)).map(|n| JobId(first.0 + n)).collect()
        }
        _ => Vec::new(),
    }
}

fn push_jobs(speculation: &mut Speculation, request: RequestKey, submitted: &[Submission]) -> LogIndex {
    let specs = submitted.iter().map(|job| &job.spec);
    let estimates = estimates(speculation.state(), specs.clone(), speculation.now());
    let specs = specs.map(|spec| Arc::new(spec.clone())).collect();
    let at = speculation.push(Decision::JobsSubmitted { request, specs, estimates });
    let jobs = submitted_under(speculation, request);
    set_contracts(speculation, &jobs, submitted);
    set_metadata(speculation, &jobs, submitted);
    at
}

/// One record has all of an array, so that its members never lack a part of it.
fn push_arrays(speculation: &mut Speculation, request: RequestKey, submitted: &[Submission]) -> LogIndex {
    let parts = submitted.iter().map(|job| (&job.spec, job.job_count()));
    let estimates = estimates_of_parts(speculation.state(), parts, speculation.now());
    let part = |(job, estimate): (&Submission, Estimate)| SubmittedPart {
        spec: Arc::new(job.spec.clone()),
        contract: (!job.contract.is_default()).then(|| Arc::new(job.contract.clone())),
        metadata: job.metadata.clone().filter(|metadata| !metadata.is_default()),
        array: job.array.clone(),
        estimate,
    };
    let parts = submitted.iter().zip(estimates).map(part).collect();
    speculation.push(Decision::ArraysSubmitted { request, parts })
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
