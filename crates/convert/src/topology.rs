//! Rules for how close together workers have to be.

use super::draft::Rules;
use super::field::Field;
use super::finding::shown;

/// Annotations of Kueue for workers that stay together: on which level, and how many.
const SLICE_LEVEL: &str = "kueue.x-k8s.io/podset-slice-required-topology";
const SLICE_SIZE: &str = "kueue.x-k8s.io/podset-slice-size";

/// The annotation of the JobSet whose jobs each have a domain to themselves.
pub const JOB_SET_EXCLUSIVE: &str = "alpha.jobset.sigs.k8s.io/exclusive-topology";

/// Whether all workers have to be within a level, or should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    /// Or the gang does not start.
    Required,
    /// The same, for the workers of each job of a set.
    EachJob,
    /// If that can be had.
    Preferred,
}

/// Annotations that ask for one domain, of the LeaderWorkerSet, the JobSet and Kueue.
pub fn exclusive(annotation: &str) -> Option<Strength> {
    match annotation {
        "leaderworkerset.sigs.k8s.io/exclusive-topology" | "kueue.x-k8s.io/podset-required-topology" => {
            Some(Strength::Required)
        }
        JOB_SET_EXCLUSIVE => Some(Strength::EachJob),
        "kueue.x-k8s.io/podset-preferred-topology" => Some(Strength::Preferred),
        _ => None,
    }
}

/// Notes the level that a label of nodes stands for.
pub fn require(label: &str, field: &Field<'_>, strength: Strength, rules: &mut Rules) {
    let Some(level) = level(label) else {
        field.drop(format!(
            "no level is known for {:?}; `topology: {{required}}` takes block, rack or host",
            shown(label)
        ));
        return;
    };
    match strength {
        Strength::Required | Strength::EachJob => rules.required = Some(level),
        Strength::Preferred => rules.preferred = Some(level),
    }
    let whose = if strength == Strength::EachJob { " of each job" } else { "" };
    field.approximate(format!("all workers{whose} are in one {level}; others may have workers there, too"));
}

/// Notes what an annotation of Kueue says of workers that stay together by a number; whether it is one of these.
pub fn segment(annotation: &str, value: &str, field: &Field<'_>, rules: &mut Rules) -> bool {
    match annotation {
        SLICE_LEVEL => match level(value) {
            Some(level) => rules.segment_level = Some(level),
            None => field.drop(format!(
                "no level is known for {:?}; `topology: {{segments}}` takes block, rack or host",
                shown(value)
            )),
        },
        SLICE_SIZE => match value.trim().parse::<u32>() {
            Ok(workers) if workers > 0 => rules.segment_workers = Some(workers),
            _ => field.refuse(format!("must be a number of workers from 1, got {:?}", shown(value))),
        },
        _ => return false,
    }
    true
}

/// Says what the two annotations of Kueue for workers that stay together become: one without the other makes no segment.
pub fn check_segment(annotations: &Field<'_>, rules: &Rules) {
    let (level, size) = (annotations.get(SLICE_LEVEL), annotations.get(SLICE_SIZE));
    match rules.segment_level {
        Some(name) if size.is_given() => {
            level.approximate(format!("consecutive ranks of the whole job are in one {name} together"));
        }
        Some(_) => {
            level.drop(format!("no workers stay together without {SLICE_SIZE}, which says how many; add it"));
        }
        None => {}
    }
    if rules.segment_workers.is_some() && rules.segment_level.is_none() {
        size.drop(format!("no workers stay together without a level that is known in {SLICE_LEVEL}; add it"));
    }
}

/// The level of the fleet that a label of nodes stands for.
fn level(label: &str) -> Option<&'static str> {
    let name = label.rsplit('/').next().unwrap_or_default();
    let is_of = |word: &str| name.contains(word);
    match () {
        () if is_of("block") || is_of("nodepool") || is_of("superblock") => Some("block"),
        () if is_of("rack") || is_of("subblock") => Some("rack"),
        () if is_of("host") => Some("host"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::{FindingKind, Options, convert_with};

    /// What became of the annotations of a job of Kubernetes.
    fn found(annotations: &str) -> Vec<(String, FindingKind)> {
        let text = include_str!("../testdata/job-segments.yaml");
        let kept = |line: &&str| !line.contains("podset-slice");
        let lines: Vec<&str> = text.lines().filter(kept).collect();
        let text = lines.join("\n").replace("annotations:", &format!("annotations: {annotations}"));
        let conversion = convert_with(&text, &Options::default()).expect("it is a job");
        let found = conversion.findings.iter().filter(|finding| finding.path.contains("podset-slice"));
        found.map(|finding| (finding.path.clone(), finding.kind)).collect()
    }

    #[test]
    fn one_annotation_of_a_segment_without_the_other_is_named() {
        let level = r#""kueue.x-k8s.io/podset-slice-required-topology": kubernetes.io/hostname"#;
        let size = r#""kueue.x-k8s.io/podset-slice-size": "4""#;
        let both = found(&format!("{{{level}, {size}}}"));
        assert!(both.iter().all(|(_, kind)| *kind == FindingKind::Approximated), "{both:?}");
        for (alone, name) in [(level, "required-topology"), (size, "slice-size")] {
            let found = found(&format!("{{{alone}}}"));
            let is_named = |(path, kind): &(String, FindingKind)| {
                path.contains(name) && *kind == FindingKind::NotHonoured
            };
            assert!(found.len() == 1 && found.iter().any(is_named), "{alone}: {found:?}");
        }
    }
}
