//! Where other pods are, which a pod has to be with or away from.

use muster_types::LabelSelector;
use muster_types::limits::{AFFINITY_WEIGHT_MAX, JOB_AFFINITY_MAX};
use serde_json::{Value, json};

use super::draft::Rules;
use super::field::Field;

/// Fields that say in which namespaces pods are looked for, and how pods of one set are told apart.
const OF_NAMESPACES: [&str; 4] = ["namespaces", "namespaceSelector", "matchLabelKeys", "mismatchLabelKeys"];

/// Reads affinity and anti-affinity between pods.
pub fn read(pod: &Field<'_>, rules: &mut Rules) {
    for (kind, rule) in [("podAffinity", "together"), ("podAntiAffinity", "apart")] {
        let affinity = pod.at(["affinity", kind]);
        for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution").items() {
            add(&term, &term, rule, json!({ "required": true }), rules);
        }
        for wish in affinity.get("preferredDuringSchedulingIgnoredDuringExecution").items() {
            let weights = 1..=u32::from(AFFINITY_WEIGHT_MAX);
            let Some(weight) = wish.get("weight").count().filter(|weight| weights.contains(weight)) else {
                wish.refuse(format!("must have a weight from 1 to {AFFINITY_WEIGHT_MAX}"));
                continue;
            };
            add(&wish, &wish.get("podAffinityTerm"), rule, json!({ "weight": weight }), rules);
        }
    }
}

fn add(field: &Field<'_>, term: &Field<'_>, rule: &str, strength: Value, rules: &mut Rules) {
    if OF_NAMESPACES.iter().any(|name| term.get(name).is_given()) {
        field.drop("jobs are looked for in the tenant and in those below it, and by their labels alone; use `affinity`");
        return;
    }
    let Some(level) = term.get("topologyKey").text().and_then(level_of) else {
        field.drop("a domain is a region, cluster, block, rack or host (`affinity: [{level}]`), and no label of nodes");
        return;
    };
    let Some(selector) = selector(&term.get("labelSelector")) else {
        field.drop("other jobs are selected by labels that they have (`affinity: [{jobs: app=cache}]`)");
        return;
    };
    if rules.affinity.len() >= JOB_AFFINITY_MAX {
        field.drop(format!("a job has at most {JOB_AFFINITY_MAX} entries under `affinity`"));
        return;
    }
    let mut entry = json!({ "jobs": selector, "level": level, "rule": rule });
    if let (Some(entry), Value::Object(strength)) = (entry.as_object_mut(), strength) {
        entry.extend(strength);
    }
    if rules.affinity.contains(&entry) {
        field.drop("says the same again");
        return;
    }
    rules.affinity.push(entry);
    let own = match rule {
        "apart" => "for the workers of the job itself use `topology: {spread: {level, maxWorkers}}`",
        _ => "for the workers of the job itself use `topology: {required}`",
    };
    field.approximate(format!(
        "is about the {level} of other jobs, by the labels that these have as jobs; {own}"
    ));
}

/// The level whose domains a label of nodes names there.
fn level_of(key: &str) -> Option<&'static str> {
    match key {
        "kubernetes.io/hostname" => Some("host"),
        // A zone is one site, and a fleet cluster lies in one.
        "topology.kubernetes.io/zone" | "failure-domain.beta.kubernetes.io/zone" => Some("cluster"),
        "topology.kubernetes.io/region" | "failure-domain.beta.kubernetes.io/region" => Some("region"),
        other => match other.rsplit('/').next().unwrap_or_default() {
            "rack" => Some("rack"),
            "block" => Some("block"),
            _ => None,
        },
    }
}

/// The selector as job documents have it; none for one that they cannot have.
fn selector(field: &Field<'_>) -> Option<String> {
    let mut terms = Vec::new();
    for (key, value) in field.get("matchLabels").entries() {
        terms.push(format!("{key}={}", value.text()?));
    }
    for expression in field.get("matchExpressions").items() {
        let (key, operator) = (expression.get("key").text()?, expression.get("operator").text()?);
        let values = expression.get("values").texts().join(",");
        terms.push(match operator {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => return None,
        });
    }
    let text = terms.join(",");
    LabelSelector::parse(&text).is_ok_and(|selector| selector.needs_labels()).then_some(text)
}
