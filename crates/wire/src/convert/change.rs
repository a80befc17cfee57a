//! Changes of jobs.

use muster_types::{FieldChange, JobMetadata, Violation};

use super::job::{draft, metadata};
use super::{Found, shown};
use crate::{FieldMask, v1};

/// Fields of a job that can be changed.
const CHANGEABLE: &str = "tier, run_time_limit, deadline, not_before, regions, node_selector, expected_run, labels and annotations";

/// The changes that an update asks for: the fields of `spec` that the mask names.
///
/// # Errors
/// Lists every field that breaks a rule, by its path in the request.
pub fn changes_from_proto(
    spec: Option<v1::JobSpec>,
    mask: Option<FieldMask>,
) -> Result<Vec<FieldChange>, Vec<Violation>> {
    let mut found = Found::default();
    let mut paths = mask.map(|mask| mask.paths).unwrap_or_default();
    // Each field once: a longer list names one twice.
    if paths.is_empty() || paths.len() > 9 {
        let text = format!("must name 1 to 9 fields, each once, of {CHANGEABLE}");
        return Err(vec![Violation::new("update_mask", text)]);
    }
    paths.sort_unstable();
    if paths.windows(2).any(|pair| matches!(pair, [a, b] if a == b)) {
        found.push(Violation::new("update_mask", "must name each field once"));
    }
    let mut given = spec.unwrap_or_default();
    let has = |path: &str| paths.iter().any(|named| named == path);
    let carried = JobMetadata::default();
    let labels = if has("labels") { std::mem::take(&mut given.labels) } else { Default::default() };
    let annotations =
        if has("annotations") { std::mem::take(&mut given.annotations) } else { Default::default() };
    let carried = metadata("spec", labels, annotations, &mut found).map_or(carried, |said| (*said).clone());
    // Fields that are not named are not read, and need not be right.
    let named = v1::JobSpec {
        name: "changed".to_owned(),
        tier: if has("tier") { given.tier } else { 0 },
        run_time_limit: given.run_time_limit.filter(|_| has("run_time_limit")),
        deadline: given.deadline.filter(|_| has("deadline")),
        not_before: given.not_before.filter(|_| has("not_before")),
        regions: if has("regions") { given.regions } else { Vec::new() },
        node_selector: if has("node_selector") { given.node_selector } else { Default::default() },
        expected_run: given.expected_run.filter(|_| has("expected_run")),
        ..v1::JobSpec::default()
    };
    let draft = draft("spec", named, &mut found);
    let mut changes = Vec::with_capacity(paths.len());
    for path in &paths {
        changes.extend(match path.as_str() {
            "tier" => Some(FieldChange::Tier(draft.tier)),
            "run_time_limit" => Some(FieldChange::RunTimeLimit(draft.run_time_limit_ms)),
            "deadline" => Some(FieldChange::Deadline(draft.deadline)),
            "not_before" => Some(FieldChange::NotBefore(draft.not_before)),
            "regions" => Some(FieldChange::Regions(draft.regions.clone())),
            "node_selector" => Some(FieldChange::NodeSelector(draft.node_selector.clone())),
            "expected_run" => Some(FieldChange::ExpectedRun(draft.expected_run_ms)),
            "labels" => Some(FieldChange::Labels(carried.labels.clone())),
            "annotations" => Some(FieldChange::Annotations(carried.annotations.clone())),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::duration;

    fn mask(paths: &[&str]) -> Option<FieldMask> {
        Some(FieldMask { paths: paths.iter().map(|path| (*path).to_owned()).collect() })
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
        let changes = changes_from_proto(Some(spec), mask(&["tier", "run_time_limit", "deadline", "labels"]));
        assert_eq!(
            changes,
            Ok(vec![
                FieldChange::Deadline(None),
                FieldChange::Labels(Default::default()),
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
        assert!(fields(None).contains("must name 1 to 9 fields"));
        assert!(fields(mask(&["tier", "tier"])).contains("each field once"));
        assert!(fields(mask(&["groups"])).contains("\"groups\", which cannot be changed"));
        assert!(fields(mask(&["tier"; 40])).contains("must name 1 to 9 fields"));
        let spec = v1::JobSpec { regions: vec!["No Region".to_owned()], ..v1::JobSpec::default() };
        let found = changes_from_proto(Some(spec), mask(&["regions"])).expect_err("it is no region");
        assert_eq!(found[0].field, "spec.regions[0]");
    }
}
