//! Rules for how close together workers have to be.

use super::draft::Rules;
use super::field::Field;
use super::finding::shown;

/// Whether all workers have to be within a level, or should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    /// Or the gang does not start.
    Required,
    /// If that can be had.
    Preferred,
}

/// Annotations that ask for one domain, of the LeaderWorkerSet, the JobSet and Kueue.
pub fn exclusive(annotation: &str) -> Option<Strength> {
    match annotation {
        "leaderworkerset.sigs.k8s.io/exclusive-topology"
        | "alpha.jobset.sigs.k8s.io/exclusive-topology"
        | "kueue.x-k8s.io/podset-required-topology" => Some(Strength::Required),
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
        Strength::Required => rules.required = Some(level),
        Strength::Preferred => rules.preferred = Some(level),
    }
    field.approximate(format!("all workers are in one {level}; others may have workers there, too"));
}

/// Notes what an annotation of Kueue says of workers that stay together by a number; whether it is one of these.
pub fn segment(annotation: &str, value: &str, field: &Field<'_>, rules: &mut Rules) -> bool {
    match annotation {
        "kueue.x-k8s.io/podset-slice-required-topology" => match level(value) {
            Some(level) => {
                rules.segment_level = Some(level);
                field.approximate(format!("consecutive ranks of the whole job are in one {level} together"));
            }
            None => field.drop(format!(
                "no level is known for {:?}; `topology: {{segments}}` takes block, rack or host",
                shown(value)
            )),
        },
        "kueue.x-k8s.io/podset-slice-size" => match value.trim().parse::<u32>() {
            Ok(workers) if workers > 0 => rules.segment_workers = Some(workers),
            _ => field.refuse(format!("must be a number of workers from 1, got {:?}", shown(value))),
        },
        _ => return false,
    }
    true
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
