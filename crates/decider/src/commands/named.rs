//! Jobs that wait for other jobs of the same request, which have names there and no ids yet.

use alloc::borrow::Cow;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_state::State;
use muster_types::cycle::cycle_of;
use muster_types::{
    AffinityRule, AffinityTarget, ArrayId, Dependency, DependencyScope, JobId, Name, NamedDependency,
    Refusal, Submission, Violation, limits,
};

use crate::commands::answer::VIOLATIONS_MAX;
use crate::rules::requested::JobPath;

/// Jobs of a cycle that a sentence names.
const NAMED_MAX: usize = 8;

/// The place of each job in the request whose name no other job there has; none for a name of several.
fn places(jobs: &[Submission]) -> BTreeMap<&Name, Option<usize>> {
    let mut places = BTreeMap::new();
    for (place, job) in jobs.iter().enumerate() {
        places.entry(&job.spec.name).and_modify(|known| *known = None).or_insert(Some(place));
    }
    places
}

fn has_named(jobs: &[Submission]) -> bool {
    jobs.iter().any(|job| !job.named_dependencies.is_empty() || job.spec.names_unsubmitted())
}

/// A job that another is to be with or away from stands before that in the request, so that no two wait for each other, and is
/// of the same tenant or of one below it.
pub(super) fn check_named_affinity(state: &State, jobs: &[Submission], path: JobPath) -> Result<(), Refusal> {
    if !jobs.iter().any(|job| job.spec.names_unsubmitted()) {
        return Ok(());
    }
    let policy = &state.policy().policy;
    let places = places(jobs);
    let mut found = Vec::new();
    for (place, job) in jobs.iter().enumerate() {
        for (at, entry) in job.spec.affinity.iter().enumerate() {
            let AffinityTarget::Named(name) = &entry.target else { continue };
            let other = places.get(name).copied();
            let of = other.flatten().and_then(|other| jobs.get(other)).map(|other| &other.spec.tenant);
            let is_own = of.is_some_and(|of| policy.ancestry(of).any(|above| *above == job.spec.tenant));
            let wrong = match other {
                Some(None) => {
                    format!("several jobs of this request have the name {name}; give them different names")
                }
                Some(Some(other)) if other == place => {
                    String::from("a job cannot be with itself or away from itself")
                }
                Some(Some(other)) if is_own && other < place => continue,
                Some(Some(_)) if is_own => format!("{name} has to stand before this job in the request"),
                Some(Some(_)) | None => format!(
                    "no job of this request that is of the tenant or of one below it has the name {name}; name a job of another \
                     request by its id"
                ),
            };
            found.push(Violation::new(format!("{}.spec.affinity[{at}].job_name", path.at(place)), wrong));
        }
    }
    found.truncate(VIOLATIONS_MAX);
    if found.is_empty() { Ok(()) } else { Err(Refusal::fields(found)) }
}

/// Each name must be that of one other job of the request, and no job may wait for itself by way of others.
pub(super) fn check_named(jobs: &[Submission], path: JobPath) -> Result<(), Refusal> {
    if jobs.iter().all(|job| job.named_dependencies.is_empty()) {
        return Ok(());
    }
    let places = places(jobs);
    let field = |place: usize, on: &NamedDependency| {
        format!("{}.spec.dependencies[{}].job_name", path.at(place), on.place)
    };
    let mut found = Vec::new();
    let mut waits_for: Vec<Vec<usize>> = Vec::with_capacity(jobs.len());
    for (place, job) in jobs.iter().enumerate() {
        let count = job.spec.dependencies.len() + job.named_dependencies.len();
        if count > limits::JOB_DEPENDENCIES_MAX {
            let at = format!("{}.spec.dependencies", path.at(place));
            found.push(Violation::limit(&at, count as u64, 0, limits::JOB_DEPENDENCIES_MAX as u64));
        }
        let mut others = Vec::new();
        let mut seen = BTreeSet::new();
        for on in &job.named_dependencies {
            let name = &on.name;
            let is_again = !seen.insert((name, on.by_member));
            let wrong = match places.get(name) {
                _ if is_again => Some(format!("must not name {name} twice")),
                None if jobs.len() == 1 => Some(format!(
                    "no other job is in this request, so that none has the name {name}; submit them together, or wait for a job \
                     of another request by its id"
                )),
                None => Some(format!(
                    "no job of this request has the name {name}; wait for a job of another request by its id"
                )),
                Some(None) => Some(format!(
                    "several jobs of this request have the name {name}; give them different names"
                )),
                Some(Some(other)) if *other == place => Some(String::from("a job cannot wait for itself")),
                Some(Some(other)) => {
                    others.push(*other);
                    wrong_members(job, on, jobs.get(*other))
                }
            };
            found.extend(wrong.map(|text| Violation::new(field(place, on), text)));
        }
        others.extend(starts_after(job, &places));
        waits_for.push(others);
    }
    if found.is_empty() {
        found.extend(cycle_of(&waits_for).and_then(|cycle| in_a_cycle(jobs, &cycle, field)));
    }
    found.truncate(VIOLATIONS_MAX);
    if found.is_empty() { Ok(()) } else { Err(Refusal::fields(found)) }
}

/// The jobs of the request that a job has to be together with: it does not start before they run, and so none of them can wait
/// for its end.
fn starts_after<'a>(
    job: &'a Submission,
    places: &'a BTreeMap<&'a Name, Option<usize>>,
) -> impl Iterator<Item = usize> + 'a {
    let required = job.spec.affinity.iter().filter(|entry| entry.is_required());
    let together = required.filter(|entry| entry.rule == AffinityRule::Together);
    together.filter_map(move |entry| match &entry.target {
        AffinityTarget::Named(name) => places.get(name).copied().flatten(),
        AffinityTarget::Job(_) | AffinityTarget::Array(_) | AffinityTarget::Labels(_) => None,
    })
}

fn wrong_members(job: &Submission, on: &NamedDependency, other: Option<&Submission>) -> Option<String> {
    let arrays = job.array.as_ref().zip(other.and_then(|other| other.array.as_ref()));
    let is_right = !on.by_member || arrays.is_some_and(|(own, other)| own.has_indices_of(other));
    (!is_right).then(|| {
        format!("only an array can wait for {} member by member, and only one with the same indices", on.name)
    })
}

/// The violation that names a cycle, at the first dependency in it.
fn in_a_cycle(
    jobs: &[Submission],
    cycle: &[usize],
    field: impl Fn(usize, &NamedDependency) -> String,
) -> Option<Violation> {
    // Not all of it are dependencies: some jobs have to be where others run.
    let dependency = |at: usize| {
        let (job, next) = (jobs.get(*cycle.get(at)?)?, jobs.get(*cycle.get((at + 1) % cycle.len())?)?);
        job.named_dependencies.iter().find(|on| on.name == next.spec.name)
    };
    let (begin, on) = (0..cycle.len()).find_map(|at| Some((at, dependency(at)?)))?;
    let (behind, ahead) = cycle.split_at(begin);
    let cycle = [ahead, behind].concat();
    let first = *cycle.first()?;
    let mut names: Vec<&str> = cycle
        .iter()
        .take(NAMED_MAX)
        .filter_map(|place| jobs.get(*place))
        .map(|job| job.spec.name.as_str())
        .collect();
    if cycle.len() > NAMED_MAX {
        names.push("...");
    }
    names.push(jobs.get(first)?.spec.name.as_str());
    let text = format!("jobs wait for each other in a circle: {}", names.join(" -> "));
    Some(Violation::new(field(first, on), text))
}

/// The jobs with the ids of those that they name, where the next record submits them.
pub(super) fn with_ids<'a>(state: &State, jobs: &'a [Submission]) -> Result<Cow<'a, [Submission]>, Refusal> {
    if !has_named(jobs) {
        return Ok(Cow::Borrowed(jobs));
    }
    let first = state.job_id(state.log_index().next(), 0);
    let mut ahead = 0;
    let ids: Vec<JobId> = jobs
        .iter()
        .map(|job| {
            let id = JobId(first.0 + ahead);
            ahead += u64::from(job.job_count());
            id
        })
        .collect();
    let places = places(jobs);
    let dependency = |on: &NamedDependency| {
        let place = places.get(&on.name).copied().flatten()?;
        let scope = match (on.by_member, jobs.get(place)?.array.is_some()) {
            (true, _) => DependencyScope::Member,
            (false, true) => DependencyScope::Array,
            (false, false) => DependencyScope::Job,
        };
        Some(Dependency { job: *ids.get(place)?, rule: on.rule, scope })
    };
    let with_id = |job: &Submission| {
        let mut job = job.clone();
        let named = job.named_dependencies.iter().filter_map(dependency);
        let mut draft = job.spec.clone().into_draft();
        draft.dependencies.extend(named);
        for entry in &mut draft.affinity {
            let AffinityTarget::Named(name) = &entry.target else { continue };
            let Some(place) = places.get(name).copied().flatten() else { continue };
            let is_array = jobs.get(place).is_some_and(|other| other.array.is_some());
            let Some(id) = ids.get(place) else { continue };
            entry.target =
                if is_array { AffinityTarget::Array(ArrayId(id.0)) } else { AffinityTarget::Job(*id) };
        }
        job.spec = draft.check().map_err(Refusal::fields)?;
        Ok(job)
    };
    jobs.iter().map(with_id).collect::<Result<Vec<_>, Refusal>>().map(Cow::Owned)
}
