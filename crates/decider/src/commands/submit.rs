//! Jobs that are submitted, and what every submission must pass.

use alloc::borrow::Cow;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_journal::{Decision, Estimate, RequestKey, SubmittedPart, canonical, hash_of_bytes};
use muster_planner::{Never, could_ever};
use muster_policy::{estimates, estimates_of_parts};
use muster_state::{ExceededLimit, GangClass, JobAboveLimit, JobEnd, MissingRight, RequestAnswer, State};
use muster_types::metadata::ANONYMOUS;
use muster_types::{
    ArrayId, ArraySpec, Control, Dependency, JobContract, JobId, JobSpec, LogIndex, LogTime, Name,
    PriorityTier, Refusal, RefusalCode, RequestId, Requester, Span, Submission, Violation, limits,
};

use crate::commands::answer::{Answer, VIOLATIONS_MAX, repeated};
use crate::commands::metadata::{check_metadata, metadata_name, set_metadata};
use crate::commands::named::{check_named, check_named_affinity, with_ids};
use crate::rules::affinity;
use crate::rules::at_limit::{check_on_limit, whose_limit};
use crate::rules::bookings::why_not_named;
use crate::rules::deadline;
use crate::rules::planned::licensed;
use crate::rules::requested::JobPath;
use crate::rules::share::{check_members_share, check_share, rows_of};
use crate::settle::job::{advance_arrays, settle};
use crate::settle::retention::pruning_for;
use crate::speculation::Speculation;

/// Bytes of one submission: keeps a round far below its bound.
pub const SUBMISSION_BYTES_MAX: usize = 1 << 20;

/// What every submission must pass in addition to each job's own rules; also the check without a change.
///
/// # Errors
/// The refusal.
pub fn check_submission(
    state: &State,
    specs: &[Submission],
    path: JobPath,
    now: LogTime,
) -> Result<(), Refusal> {
    check_with_limits(state, &with_default_limits(state, specs), path, now)
}

/// The same of submissions whose limits are filled in already.
fn check_with_limits(
    state: &State,
    specs: &[Submission],
    path: JobPath,
    now: LogTime,
) -> Result<(), Refusal> {
    check_terms(state, specs, path, now)?;
    // Jobs that ask for the same get the same answer.
    let mut seen: BTreeSet<GangClass> = BTreeSet::new();
    for (place, spec) in specs.iter().enumerate() {
        // What one asks for need not be compared with anything: most submissions are of one job.
        if specs.len() > 1 && !seen.insert(GangClass::of(spec)) {
            continue;
        }
        check_could_ever(state, spec, place)?;
    }
    Ok(())
}

/// A job could run in the fleet as it is registered and as the policy names it, in the region of its licences where they have one.
pub(super) fn check_could_ever(state: &State, spec: &JobSpec, place: usize) -> Result<(), Refusal> {
    let refused = |never: Never, more: &str| {
        Refusal::new(RefusalCode::NeverFits, format!("job {}: {never}{more}", spec.name))
            .with("job_index", place)
            .with("group", &never.group)
            .with("wanted", &never.wanted)
            .with("closest", &never.closest)
    };
    could_ever(state, spec).map_err(|never| refused(never, ""))?;
    let Some(Cow::Owned(there)) = licensed(state, spec) else { return Ok(()) };
    let Some(region) = there.regions.first().filter(|_| there.regions != spec.regions) else { return Ok(()) };
    let more = format!("; its licences are for region {region}, and nodes elsewhere are of no use to it");
    could_ever(state, &there).map_err(|never| refused(never, &more))
}

/// The same of everything but where the jobs could run: their limits are filled in already.
///
/// # Errors
/// The refusal.
pub fn check_terms(state: &State, specs: &[Submission], path: JobPath, now: LogTime) -> Result<(), Refusal> {
    let max = limits::BATCH_JOBS_MAX;
    if specs.is_empty() || specs.len() > max {
        return Err(Refusal::fields(alloc::vec![Violation::limit(
            "jobs",
            specs.len() as u64,
            1,
            max as u64
        )]));
    }
    check_arrays(specs, path)?;
    check_members(state, specs)?;
    check_members_share(state, specs)?;
    check_rights(state, specs)?;
    check_job_limits(state, specs)?;
    check_limits(state, specs)?;
    check_on_limit(state, specs, now)?;
    check_dependencies(state, specs, path)?;
    check_named(specs, path)?;
    check_named_affinity(state, specs, path)?;
    check_contracts(state, specs, path)?;
    check_datasets(state, specs, path)?;
    check_licences(state, specs, path)?;
    check_licence_regions(state, specs, path)?;
    check_metadata(specs, path)?;
    check_receivers(state, specs, path)?;
    check_bookings(state, specs, path)?;
    check_affinity(state, specs, path)?;
    deadline::check(specs, path, now)
}

/// Receivers of notifications that jobs name are there, and for jobs of their tenants.
pub(super) fn check_receivers(state: &State, specs: &[Submission], path: JobPath) -> Result<(), Refusal> {
    let policy = &state.policy().policy;
    let mut found = Vec::new();
    for (place, job) in specs.iter().enumerate() {
        for (index, entry) in job.contract.notify.iter().enumerate() {
            if found.len() >= VIOLATIONS_MAX {
                return Err(Refusal::fields(found));
            }
            let why = policy.why_not_receiver(&job.spec.tenant, &entry.receiver);
            let field =
                |text| Violation::new(format!("{}.spec.notify[{index}].receiver", path.at(place)), text);
            found.extend(why.map(field));
        }
    }
    if found.is_empty() { Ok(()) } else { Err(Refusal::fields(found)) }
}

/// Bookings that jobs name are there, and for them.
pub(super) fn check_bookings(state: &State, specs: &[Submission], path: JobPath) -> Result<(), Refusal> {
    let mut found = Vec::new();
    for (place, job) in specs.iter().enumerate().filter(|(_, job)| job.spec.booking.is_some()) {
        if found.len() >= VIOLATIONS_MAX {
            break;
        }
        let creator = job.metadata.as_ref().map_or("", |metadata| metadata.creator.as_str());
        let why = why_not_named(state, &job.spec, creator);
        found.extend(why.map(|text| Violation::new(format!("{}.spec.booking", path.at(place)), text)));
    }
    if found.is_empty() { Ok(()) } else { Err(Refusal::fields(found)) }
}

/// Jobs and arrays that others are to be with or away from are there, and of the same tenant or of one below it.
pub(super) fn check_affinity(state: &State, specs: &[Submission], path: JobPath) -> Result<(), Refusal> {
    let mut found = Vec::new();
    for (place, job) in specs.iter().enumerate() {
        for (entry, text) in affinity::missing(state, &job.spec) {
            if found.len() < VIOLATIONS_MAX {
                found.push(Violation::new(format!("{}.spec.affinity[{entry}]", path.at(place)), text));
            }
        }
    }
    if found.is_empty() { Ok(()) } else { Err(Refusal::fields(found)) }
}

/// Arrays are valid, and all jobs together are not too many.
fn check_arrays(specs: &[Submission], path: JobPath) -> Result<(), Refusal> {
    let mut found = Vec::new();
    for (place, job) in specs.iter().enumerate() {
        if found.len() >= VIOLATIONS_MAX {
            break;
        }
        let violations = job.array.as_ref().map(ArraySpec::violations).unwrap_or_default();
        found.extend(
            violations.into_iter().map(|violation| violation.under(&format!("{}.spec", path.at(place)))),
        );
    }
    let jobs = jobs_of(specs);
    let max = limits::ARRAY_MEMBERS_MAX;
    if found.is_empty() && jobs > u64::from(max) {
        let text = format!("must be at most {max} jobs together, members of arrays counted, got {jobs}");
        found.push(Violation::new("jobs", text));
    }
    if found.is_empty() { Ok(()) } else { Err(Refusal::fields(found)) }
}

/// What the limits of one job depend on: tenant, tier and creator.
type LimitKey<'a> = (&'a Name, PriorityTier, &'a str);

/// Jobs as they are taken: one that names no run time limit gets the one of its user, tenant and tier.
#[must_use]
pub fn with_default_limits<'a>(state: &State, specs: &'a [Submission]) -> Cow<'a, [Submission]> {
    let policy = &state.policy().policy;
    // Jobs of one tenant and tier stand next to each other: the tree of tenants is asked once for all of them.
    let mut known: Option<(LimitKey<'_>, Option<u64>)> = None;
    let default_of = |job: &'a Submission| {
        if job.run_time_limit_ms.is_some() {
            return None;
        }
        let kind = (&job.spec.tenant, job.spec.tier, creator_of(job));
        let limit_ms = match known {
            Some((last, limit_ms)) if last == kind => limit_ms,
            _ => policy.job_limits_of_user(kind.0, kind.1, kind.2).run_time_unless_named_ms(),
        };
        known = Some((kind, limit_ms));
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

/// Who submits a job; empty where nobody knows.
fn creator_of(job: &Submission) -> &str {
    job.metadata.as_ref().map_or("", |metadata| metadata.creator.as_str())
}

/// No job asks for more than the policy lets one job of its user, tenant and tier ask for.
///
/// # Errors
/// The refusal, with the limit and what the job asks for.
fn check_job_limits(state: &State, specs: &[Submission]) -> Result<(), Refusal> {
    let jobs = specs.iter().map(|job| (&job.spec, job.contract.spares, creator_of(job)));
    let Some((place, above)) = state.above_job_limit(jobs) else { return Ok(()) };
    let refused = |job: &Submission| above_job_limit(state, &job.spec, above).with("job_index", place);
    specs.get(place).map_or(Ok(()), |job| Err(refused(job)))
}

/// The refusal of a job that asks for more than one may.
pub(super) fn above_job_limit(state: &State, spec: &JobSpec, above: JobAboveLimit) -> Refusal {
    let (name, tenant, tier) = (&spec.name, &spec.tenant, spec.tier);
    let (whose, at) = whose_limit(state, spec, above);
    let (limit, most, asked, text) = match above {
        JobAboveLimit::Devices { most, asked } => {
            let text = format!(
                "job {name}: a {tier} job of {whose}tenant {tenant} may ask for {most} devices, and this one asks for {asked} with \
                 its spare workers; ask for fewer workers, or have the policy raise `limits.{at}.maxDevices`"
            );
            (format!("{at}.maxDevices"), u64::from(most), Some(asked), text)
        }
        JobAboveLimit::Workers { most, asked } => {
            let text = format!(
                "job {name}: a {tier} job of {whose}tenant {tenant} may have {most} workers, and this one asks for {asked} with its \
                 spare workers; ask for fewer, or have the policy raise `limits.{at}.maxWorkers`"
            );
            (format!("{at}.maxWorkers"), u64::from(most), Some(asked), text)
        }
        JobAboveLimit::RunTime { most_ms, asked_ms } => {
            let asked = asked_ms.map_or_else(|| "none".into(), |ms| format!("{}", Span(ms)));
            let text = format!(
                "job {name}: the run time limit of a {tier} job of {whose}tenant {tenant} may be {} at most, and that of this one \
                 is {asked}; name a shorter one, or have the policy raise `limits.{at}.maxRunTime`",
                Span(most_ms)
            );
            (format!("{at}.maxRunTime"), most_ms, asked_ms, text)
        }
    };
    let refusal = Refusal::new(RefusalCode::JobAboveLimit, text)
        .with("tenant", tenant)
        .with("limit", limit)
        .with("limit_max", most);
    match asked {
        Some(asked) => refusal.with("asked", asked),
        None => refusal,
    }
}

/// The cluster can take these members of arrays.
fn check_members(state: &State, specs: &[Submission]) -> Result<(), Refusal> {
    let members = specs.iter().filter(|job| job.array.is_some()).map(|job| u64::from(job.job_count())).sum();
    if members == 0 {
        return Ok(());
    }
    let Err(held) = state.check_members_waiting(members, jobs_of(specs)) else { return Ok(()) };
    let max = limits::UNCREATED_MEMBERS_MAX;
    let text = format!(
        "{held} members of arrays wait to be created, and {max} may; wait until some have started, or cancel some"
    );
    Err(Refusal::new(RefusalCode::StateFull, text)
        .with("limit", "members_waiting_max")
        .with("held", held)
        .with("held_max", max)
        .with("retry_after_ms", 5_000))
}

/// How many jobs these come to, members of arrays counted.
fn jobs_of(jobs: &[Submission]) -> u64 {
    jobs.iter().map(|job| u64::from(job.job_count())).sum()
}

/// Who submits a job; empty when nobody knows.
fn creator(job: &Submission) -> &str {
    job.metadata.as_ref().map_or("", |metadata| &metadata.creator)
}

/// A tenant has no more jobs than the policy lets it have, and neither has any of its users.
pub(super) fn check_limits(state: &State, specs: &[Submission]) -> Result<(), Refusal> {
    if !state.policy().policy.has_limits() {
        return Ok(());
    }
    // Most submissions are of one user, so that there is one run.
    let runs = specs.chunk_by(|a, b| a.spec.tenant == b.spec.tenant && creator(a) == creator(b));
    let counted = runs.filter_map(|run| {
        let job = run.first()?;
        Some((job.spec.tenant.clone(), String::from(creator(job)), jobs_of(run)))
    });
    let exceeded = state.exceeded_limit(specs.iter().map(|job| (&job.spec, u64::from(job.job_count()))));
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
        MissingRight::Purchases { allowed, missing } => (
            "purchases",
            format!(
                "job {}: tenant {} may ask for nodes of the purchases {allowed}, and this one also takes {missing}; name in \
                 `capacity.purchases` no others, or have the policy give the tenant the right `purchases` for them",
                spec.name, spec.tenant
            ),
        ),
        MissingRight::NegativeNice => (
            "negativeNice",
            format!(
                "job {}: tenant {} may not have jobs with negative nice values, and that of this one is {}; name 0 or more, or \
                 have the policy give the tenant the right `negativeNice: true`",
                spec.name, spec.tenant, spec.nice
            ),
        ),
    };
    Err(Refusal::new(RefusalCode::RightMissing, text)
        .with("job_index", place)
        .with("tenant", &spec.tenant)
        .with("right", right))
}

/// Every job and array that is waited for must exist: one that is gone cannot say how it ended.
fn check_dependencies(state: &State, specs: &[Submission], path: JobPath) -> Result<(), Refusal> {
    let mut found = Vec::new();
    for (place, job) in specs.iter().enumerate() {
        for (at, on) in job.dependencies.iter().enumerate() {
            if found.len() >= VIOLATIONS_MAX {
                break;
            }
            let field = format!("{}.spec.dependencies[{}]", path.at(place), place_of(job, at));
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

/// The place in the request of a dependency by id, where there are dependencies by name in between.
fn place_of(job: &Submission, at: usize) -> usize {
    let is_named = |place: &usize| job.named_dependencies.iter().any(|on| on.place as usize == *place);
    (0..).filter(|place| !is_named(place)).nth(at).unwrap_or(at)
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
fn check_contracts(state: &State, specs: &[Submission], path: JobPath) -> Result<(), Refusal> {
    let mut found = Vec::new();
    for (place, job) in specs.iter().enumerate() {
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
fn check_datasets(state: &State, specs: &[Submission], path: JobPath) -> Result<(), Refusal> {
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
            found.push(Violation::new(format!("{}.spec.datasets[{at}]", path.at(place)), text));
        }
    }
    if found.is_empty() { Ok(()) } else { Err(Refusal::fields(found)) }
}

/// Jobs ask for no more of a counted resource than the policy has.
fn check_licences(state: &State, specs: &[Submission], path: JobPath) -> Result<(), Refusal> {
    let policy = &state.policy().policy;
    let mut found = Vec::new();
    for (place, job) in specs.iter().enumerate() {
        for (name, asked) in &job.spec.licences {
            let text = match policy.resource(name) {
                Some(resource) if *asked <= resource.count => continue,
                Some(resource) => format!(
                    "must be at most {}, which the policy has of it, got {asked}; ask for fewer, or have the policy raise \
                     its count",
                    resource.count
                ),
                None => String::from(
                    "is not counted by the policy; `muster licence list` shows what is, and `resources` of the policy \
                     adds to it",
                ),
            };
            if found.len() < VIOLATIONS_MAX {
                found.push(Violation::new(format!("{}.spec.licences.{name}", path.at(place)), text));
            }
        }
    }
    if found.is_empty() { Ok(()) } else { Err(Refusal::fields(found)) }
}

/// What each job asks for is for one region, and for one that it may use: otherwise it would wait for good.
pub(super) fn check_licence_regions(
    state: &State,
    specs: &[Submission],
    path: JobPath,
) -> Result<(), Refusal> {
    let mut found = Vec::new();
    for (place, job) in specs.iter().enumerate() {
        if found.len() < VIOLATIONS_MAX && licensed(state, &job.spec).is_none() {
            let text = "must be for one region that the job may use; `muster licence list` shows the region of each: name it in \
                        `regions`, or none";
            found.push(Violation::new(format!("{}.spec.licences", path.at(place)), text));
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

pub(super) fn submit(
    speculation: &mut Speculation,
    (request, by): (RequestId, &Requester),
    submitted: &[Submission],
    path: JobPath,
) -> Result<Answer, Refusal> {
    let specs: Vec<&JobSpec> = submitted.iter().map(|job| &job.spec).collect();
    let key = RequestKey { id: request, fingerprint: hash_of_bytes(&request_bytes(submitted, &specs)?) };
    submit_as(speculation, (key, by), submitted, path)
}

/// The same for a request whose fingerprint is known.
pub(super) fn submit_as(
    speculation: &mut Speculation,
    (key, by): (RequestKey, &Requester),
    submitted: &[Submission],
    path: JobPath,
) -> Result<Answer, Refusal> {
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    // The request is what was asked for, whatever the policy adds to it at the time.
    let submitted = &*with_default_limits(speculation.state(), submitted);
    let specs: Vec<&JobSpec> = submitted.iter().map(|job| &job.spec).collect();
    let pruning = pruning_for(speculation, &specs, rows_of(submitted))?;
    check_share(speculation.state(), submitted)?;
    check_with_limits(speculation.state(), submitted, path, speculation.now())?;
    check_held(speculation.state(), key, by, submitted)?;
    // Nothing is counted or pushed before all that can be refused was looked at.
    with_ids(speculation.state(), submitted)?;
    if !speculation.state().policy().policy.tenants.is_empty() {
        let users = submitted.iter().map(|job| (&job.spec.tenant, creator(job))).collect();
        let tiers = submitted.iter().map(|job| (&job.spec.tenant, job.spec.tier)).collect();
        speculation.count_submission(&users, &tiers)?;
    }
    pruning.carry_out(speculation);
    // The ids are those of the next record.
    let submitted = &*with_ids(speculation.state(), submitted)?;
    let (at, jobs) = if submitted.iter().any(|job| job.array.is_some()) {
        let at = push_arrays(speculation, (key, by), submitted);
        (at, submitted_under(speculation, key))
    } else {
        push_jobs(speculation, (key, by), submitted)
    };
    hold_from_the_beginning(speculation, (key, by), submitted, &jobs);
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
    // A default contract adds nothing, so a request with it is the same whether the contract was written out or not. A request that is repeated is a part of another span.
    if submitted.iter().any(|job| !job.contract.without_trace().is_default()) {
        let contracts: Vec<Cow<'_, JobContract>> =
            submitted.iter().map(|job| job.contract.without_trace()).collect();
        bytes.extend(canonical(&contracts));
    }
    if submitted.iter().any(|job| job.array.is_some()) {
        let arrays: Vec<&Option<ArraySpec>> = submitted.iter().map(|job| &job.array).collect();
        bytes.extend(canonical(&("arrays", arrays)));
    }
    if submitted.iter().any(|job| !job.named_dependencies.is_empty()) {
        let named: Vec<_> = submitted.iter().map(|job| &job.named_dependencies).collect();
        bytes.extend(canonical(&("named", named)));
    }
    if submitted.iter().any(|job| job.held) {
        let held: Vec<bool> = submitted.iter().map(|job| job.held).collect();
        bytes.extend(canonical(&("held", held)));
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

/// Set in the id of a request that submits held jobs, for the record that holds them.
const HOLDS: u128 = (1 << 126) | 0x484f_4c44;

/// Right behind the jobs, in the same round, so that nothing is placed in between.
fn hold_from_the_beginning(
    speculation: &mut Speculation,
    (key, by): (RequestKey, &Requester),
    submitted: &[Submission],
    ids: &[JobId],
) {
    let (mut jobs, mut arrays) = (Vec::new(), Vec::new());
    let mut place = 0;
    for job in submitted {
        match ids.get(place).filter(|_| job.held) {
            Some(id) if job.array.is_some() => arrays.push(ArrayId(id.0)),
            Some(id) => jobs.push(*id),
            None => {}
        }
        place += job.job_count() as usize;
    }
    let request = RequestKey { id: RequestId(key.id.0 ^ HOLDS), ..key };
    if jobs.is_empty() && arrays.is_empty() {
        return;
    }
    let by = by.clone();
    speculation.push(match arrays.is_empty() {
        true => Decision::JobHoldSet { request, by, jobs, held: true },
        false => Decision::ArraysControlled { request, by, control: Control::Hold, arrays, jobs },
    });
}

/// One record can hold all of what is to be held from the beginning.
fn check_held(
    state: &State,
    key: RequestKey,
    by: &Requester,
    submitted: &[Submission],
) -> Result<(), Refusal> {
    if !submitted.iter().any(|job| job.held) {
        return Ok(());
    }
    let arrays = submitted.iter().filter(|job| job.held && job.array.is_some()).count();
    let max = limits::CONTROLLED_ARRAYS_MAX;
    if arrays > max {
        let text = format!("must be so for at most {max} arrays of one request, got {arrays}");
        return Err(Refusal::fields(alloc::vec![Violation::new("jobs.hold", text)]));
    }
    if !by.is_valid() {
        let max = limits::CREATOR_BYTES_MAX;
        let text = format!("must be at most {max} bytes of printable ASCII");
        return Err(Refusal::fields(alloc::vec![Violation::new("by", text)]));
    }
    // No client makes up such an id by chance.
    if state.request(RequestId(key.id.0 ^ HOLDS)).is_some() {
        let text = "the request id was used for another request";
        return Err(Refusal::new(RefusalCode::RequestIdReused, text));
    }
    Ok(())
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

fn push_jobs(
    speculation: &mut Speculation,
    (request, by): (RequestKey, &Requester),
    submitted: &[Submission],
) -> (LogIndex, Vec<JobId>) {
    let specs = submitted.iter().map(|job| &job.spec);
    let estimates = estimates(speculation.state(), specs.clone(), speculation.now());
    let specs = specs.map(|spec| Arc::new(spec.clone())).collect();
    let at = speculation.push(Decision::JobsSubmitted { request, by: by.clone(), specs, estimates });
    // As the record of the request has them: they follow one another.
    let first = speculation.state().job_id(at, 0);
    let jobs: Vec<JobId> = (first.0..).take(submitted.len()).map(JobId).collect();
    set_contracts(speculation, &jobs, submitted);
    set_metadata(speculation, &jobs, submitted);
    (at, jobs)
}

/// One record has all of an array, so that its members never lack a part of it.
fn push_arrays(
    speculation: &mut Speculation,
    (request, by): (RequestKey, &Requester),
    submitted: &[Submission],
) -> LogIndex {
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
    speculation.push(Decision::ArraysSubmitted { request, by: by.clone(), parts })
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
