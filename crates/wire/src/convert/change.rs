//! Changes of jobs.

use muster_types::{FieldChange, GroupSize, JobMetadata, Violation, fleet::checked_name, limits};

use super::job::{draft, metadata};
use super::{Found, below, shown};
use crate::{FieldMask, v1};

/// Fields of a job that can be changed.
const CHANGEABLE: &str = "labels, annotations, spec.tier, spec.run_time_limit, spec.deadline, spec.not_before, spec.regions, \
                          spec.node_selector, spec.expected_run, spec.nodes, spec.nice, spec.groups and tenant";

/// How many fields those are.
const CHANGEABLE_COUNT: usize = 13;

/// The one field of an array that can be changed.
const THROTTLE: &str = "spec.array.throttle";

/// The throttle that an update of an array asks for; none for no limit.
///
/// # Errors
/// When the mask names anything else, or nothing.
pub fn throttle_from_proto(
    job: Option<&v1::Job>,
    mask: Option<&FieldMask>,
) -> Result<Option<u32>, Violation> {
    let paths = mask.map_or(&[][..], |mask| mask.paths.as_slice());
    if !matches!(paths, [path] if path == THROTTLE) {
        let text = format!("must name {THROTTLE} alone, which is all that can be changed of an array");
        return Err(Violation::new("update_mask", text));
    }
    Ok(job.and_then(|job| job.spec.as_ref()?.array.as_ref()?.throttle))
}

/// The changes that an update asks for: the fields of `job` that the mask names.
///
/// # Errors
/// Lists every field that breaks a rule, by its path in the request.
pub fn changes_from_proto(
    job: Option<v1::Job>,
    mask: Option<FieldMask>,
) -> Result<Vec<FieldChange>, Vec<Violation>> {
    let mut found = Found::default();
    let mut paths = mask.map(|mask| mask.paths).unwrap_or_default();
    // Each field once: a longer list names one twice.
    if paths.is_empty() || paths.len() > CHANGEABLE_COUNT {
        let text = format!("must name 1 to {CHANGEABLE_COUNT} fields, each once, of {CHANGEABLE}");
        return Err(vec![Violation::new("update_mask", text)]);
    }
    paths.sort_unstable();
    if paths.windows(2).any(|pair| matches!(pair, [a, b] if a == b)) {
        found.push(Violation::new("update_mask", "must name each field once"));
    }
    let mut job = job.unwrap_or_default();
    let given = job.spec.take().unwrap_or_default();
    let has = |path: &str| paths.iter().any(|named| named == path);
    let carried = JobMetadata::default();
    let labels = if has("labels") { std::mem::take(&mut job.labels) } else { Default::default() };
    let annotations =
        if has("annotations") { std::mem::take(&mut job.annotations) } else { Default::default() };
    let carried = metadata("job", labels, annotations, &mut found).map_or(carried, |said| (*said).clone());
    // Fields that are not named are not read, and need not be right.
    let named = v1::JobSpec {
        tier: if has("spec.tier") { given.tier } else { 0 },
        run_time_limit: given.run_time_limit.filter(|_| has("spec.run_time_limit")),
        deadline: given.deadline.filter(|_| has("spec.deadline")),
        not_before: given.not_before.filter(|_| has("spec.not_before")),
        regions: if has("spec.regions") { given.regions } else { Vec::new() },
        node_selector: if has("spec.node_selector") { given.node_selector } else { Default::default() },
        expected_run: given.expected_run.filter(|_| has("spec.expected_run")),
        nodes: given.nodes.filter(|_| has("spec.nodes")),
        nice: if has("spec.nice") { given.nice } else { 0 },
        ..v1::JobSpec::default()
    };
    let sizes = if has("spec.groups") {
        group_sizes("job.spec.groups", &given.groups, &mut found)
    } else {
        Vec::new()
    };
    let tenant = if has("tenant") { std::mem::take(&mut job.tenant) } else { String::new() };
    if has("tenant") && tenant.is_empty() {
        found.push(Violation::new("job.tenant", "must be given"));
    }
    // The name cannot be changed: what is right stands in for it.
    let draft = draft("job", ("changed".to_owned(), tenant), named, &mut found);
    let mut changes = Vec::with_capacity(paths.len());
    for path in &paths {
        changes.extend(match path.as_str() {
            "spec.tier" => Some(FieldChange::Tier(draft.tier)),
            "spec.run_time_limit" => Some(FieldChange::RunTimeLimit(draft.run_time_limit_ms)),
            "spec.deadline" => Some(FieldChange::Deadline(draft.deadline)),
            "spec.not_before" => Some(FieldChange::NotBefore(draft.not_before)),
            "spec.regions" => Some(FieldChange::Regions(draft.regions.clone())),
            "spec.node_selector" => Some(FieldChange::NodeSelector(draft.node_selector.clone())),
            "spec.expected_run" => Some(FieldChange::ExpectedRun(draft.expected_run_ms)),
            "spec.nodes" => Some(FieldChange::Nodes(draft.nodes.clone())),
            "spec.nice" => Some(FieldChange::Nice(draft.nice)),
            "spec.groups" => Some(FieldChange::Groups(sizes.clone())),
            "tenant" => Some(FieldChange::Tenant(draft.tenant.clone())),
            "labels" => Some(FieldChange::Labels(carried.labels.clone())),
            "annotations" => Some(FieldChange::Annotations(carried.annotations.clone())),
            THROTTLE => {
                let text = format!("names {THROTTLE}, which only an array has; name the array in job_id");
                found.push(Violation::new("update_mask", text));
                None
            }
            other => {
                let text =
                    format!("names {}, which cannot be changed; these can: {CHANGEABLE}", shown(other));
                found.push(Violation::new("update_mask", text));
                None
            }
        });
    }
    if found.is_empty() { Ok(changes) } else { Err(found.into_violations()) }
}

/// How many workers groups are to have: nothing else of them is read.
fn group_sizes(at: &str, groups: &[v1::TaskGroup], found: &mut Found) -> Vec<GroupSize> {
    if groups.is_empty() || groups.len() > limits::TASK_GROUPS_MAX {
        found.push(Violation::limit(at, groups.len() as u64, 1, limits::TASK_GROUPS_MAX as u64));
        return Vec::new();
    }
    let mut sizes = Vec::with_capacity(groups.len());
    for (place, given) in groups.iter().enumerate() {
        let at = format!("{at}[{place}]");
        if given.workers == 0 {
            found.push(Violation::new(below(&at, "workers"), "must be given"));
        }
        let name = match given.name.as_str() {
            "" => None,
            text => found.take(checked_name(&below(&at, "name"), text)),
        };
        let workers_min = (given.min_workers > 0).then_some(given.min_workers);
        sizes.push(GroupSize { group: name, workers: given.workers, workers_min });
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::duration;

    fn mask(paths: &[&str]) -> Option<FieldMask> {
        Some(FieldMask { paths: paths.iter().map(|path| (*path).to_owned()).collect() })
    }

    fn of(spec: v1::JobSpec) -> Option<v1::Job> {
        Some(v1::Job { spec: Some(spec), ..v1::Job::default() })
    }

    #[test]
    fn only_what_the_mask_names_is_read_and_what_is_absent_is_cleared() {
        let spec = v1::JobSpec {
            tier: v1::Tier::Production.into(),
            run_time_limit: Some(duration(60_000)),
            // Neither named nor right.
            regions: vec!["No Region".to_owned()],
            ..v1::JobSpec::default()
        };
        let changes = changes_from_proto(
            of(spec),
            mask(&["spec.tier", "spec.run_time_limit", "spec.deadline", "labels"]),
        );
        assert_eq!(
            changes,
            Ok(vec![
                FieldChange::Labels(Default::default()),
                FieldChange::Deadline(None),
                FieldChange::RunTimeLimit(Some(60_000)),
                FieldChange::Tier(muster_types::PriorityTier::Production),
            ])
        );
    }

    #[test]
    fn a_wrong_mask_is_refused_by_name() {
        let fields = |mask| {
            let found = changes_from_proto(None, mask).expect_err("it is wrong");
            found.into_iter().map(|violation| violation.to_string()).collect::<Vec<_>>().join("\n")
        };
        assert!(fields(None).contains("must name 1 to 13 fields"));
        assert!(fields(mask(&["spec.tier", "spec.tier"])).contains("each field once"));
        assert!(fields(mask(&["spec.booking"])).contains("\"spec.booking\", which cannot be changed"));
        assert!(fields(mask(&["spec.groups"])).contains("job.spec.groups"));
        assert!(fields(mask(&["tenant"])).contains("job.tenant"));
        assert!(fields(mask(&["spec.tier"; 40])).contains("must name 1 to 13 fields"));
        assert!(fields(mask(&[THROTTLE])).contains("which only an array has"));
        let spec = v1::JobSpec { regions: vec!["No Region".to_owned()], ..v1::JobSpec::default() };
        let found = changes_from_proto(of(spec), mask(&["spec.regions"])).expect_err("it is no region");
        assert_eq!(found[0].field, "job.spec.regions[0]");
    }

    #[test]
    fn of_groups_the_numbers_of_workers_alone_are_read() {
        let group = v1::TaskGroup { workers: 4, min_workers: 2, ..v1::TaskGroup::default() };
        let spec = v1::JobSpec { groups: vec![group], nice: -5, ..v1::JobSpec::default() };
        let job = v1::Job { tenant: "vision".to_owned(), spec: Some(spec), ..v1::Job::default() };
        let changes = changes_from_proto(Some(job), mask(&["tenant", "spec.nice", "spec.groups"]));
        let size = GroupSize { group: None, workers: 4, workers_min: Some(2) };
        let tenant = muster_types::Name::literal("vision");
        let expected =
            vec![FieldChange::Groups(vec![size]), FieldChange::Nice(-5), FieldChange::Tenant(tenant)];
        assert_eq!(changes, Ok(expected));
        let spec = v1::JobSpec { nice: 1_000, ..v1::JobSpec::default() };
        let found = changes_from_proto(of(spec), mask(&["spec.nice"])).expect_err("it is too nice");
        assert_eq!(found[0].field, "job.spec.nice");
    }

    #[test]
    fn of_an_array_the_throttle_alone_is_changed() {
        let array = |throttle| {
            let array = Some(v1::JobArray { throttle, ..v1::JobArray::default() });
            of(v1::JobSpec { array, ..v1::JobSpec::default() })
        };
        let named = mask(&[THROTTLE]);
        for throttle in [None, Some(0), Some(7), Some(u32::MAX)] {
            assert_eq!(throttle_from_proto(array(throttle).as_ref(), named.as_ref()), Ok(throttle));
        }
        assert_eq!(throttle_from_proto(None, named.as_ref()), Ok(None));
        let refused = [None, mask(&[]), mask(&["labels"]), mask(&[THROTTLE, "labels"]), mask(&[THROTTLE; 2])];
        for wrong in refused {
            let found = throttle_from_proto(array(Some(7)).as_ref(), wrong.as_ref());
            assert!(found.is_err_and(|found| found.field == "update_mask"), "{wrong:?}");
        }
    }
}
