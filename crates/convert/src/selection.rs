//! Which nodes a pod may be on: selectors, affinity and taints.

use muster_types::Name;
use muster_types::limits::{LABEL_BYTES_MAX, SELECTOR_VALUES_MAX};
use serde_json::json;

use super::accelerator;
use super::draft::Rules;
use super::field::Field;
use super::finding::shown;

/// Labels of nodes that name the type of their accelerators.
const PRODUCTS: [&str; 5] = [
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-tpu-accelerator",
    "amd.com/gpu.product-name",
    "k8s.amazonaws.com/accelerator",
];
/// The label of nodes that names the shape of a TPU slice.
const SLICE: &str = "cloud.google.com/gke-tpu-topology";
/// Taints that only keep others away from devices, and so need no toleration where devices are asked for.
const OF_DEVICES: [&str; 3] = ["nvidia.com/gpu", "amd.com/gpu", "google.com/tpu"];

/// What a pod says of nodes.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Types of accelerators that it names.
    pub types: Vec<String>,
    /// The shape of a TPU slice.
    pub slice: Option<String>,
}

/// Reads selectors, affinity and tolerations of a pod.
pub fn read(pod: &Field<'_>, rules: &mut Rules) -> Selection {
    let mut selection = Selection::default();
    for (label, field) in pod.get("nodeSelector").entries() {
        if let Some(value) = field.text() {
            select(label, &[value], &field, rules, &mut selection);
        }
    }
    affinity(pod, rules, &mut selection);
    super::affinity::read(pod, rules);
    for toleration in pod.get("tolerations").items() {
        tolerate(&toleration, rules);
    }
    selection
}

fn affinity(pod: &Field<'_>, rules: &mut Rules, selection: &mut Selection) {
    let required = pod.at(["affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"]);
    let terms = required.get("nodeSelectorTerms");
    let items = terms.items();
    if items.len() > 1 {
        terms.refuse("a selector has labels that must all fit; of several terms none can be chosen");
        return;
    }
    let Some(term) = items.first() else { return };
    for field in term.get("matchFields").items() {
        name(&field, rules);
    }
    for expression in term.get("matchExpressions").items() {
        let (key, values) = (expression.get("key"), expression.get("values"));
        match (key.text(), expression.get("operator").text()) {
            (Some(label), Some("In")) => select(label, &values.texts(), &expression, rules, selection),
            (Some(label), Some(operator)) => test(label, operator, &values.texts(), &expression, rules),
            _ => expression.refuse("must have a key and an operator"),
        }
    }
}

/// The only field of nodes that Kubernetes selects by is their name.
fn name(field: &Field<'_>, rules: &mut Rules) {
    let (key, values) = (field.get("key").text(), field.get("values"));
    let names: Vec<String> = values.texts().iter().map(|name| (*name).to_owned()).collect();
    let are_names = !names.is_empty() && names.iter().all(|name| Name::new(name).is_some());
    match (key, field.get("operator").text()) {
        (Some("metadata.name"), Some("In")) if are_names && rules.only.is_empty() => rules.only = names,
        (Some("metadata.name"), Some("NotIn")) if are_names => rules.exclude.extend(names),
        _ => field.refuse("must be metadata.name with the operator In, once, or NotIn, and names of nodes"),
    }
}

/// A test of a label by another operator than `In`.
fn test(label: &str, operator: &str, values: &[&str], field: &Field<'_>, rules: &mut Rules) {
    let is_special = PRODUCTS.contains(&label)
        || [SLICE, "topology.kubernetes.io/region", "kubernetes.io/os"].contains(&label);
    if is_special {
        let operator = shown(operator);
        field.refuse(format!(
            "of this label the values that fit have to be listed (In), and it has {operator}"
        ));
        return;
    }
    let plain = plain(label);
    let Some(name) = Name::new(&plain) else {
        field.refuse("labels of nodes have names of at most 63 lower-case letters, digits, '-', '_' and '.'");
        return;
    };
    let is_listed = (1..=SELECTOR_VALUES_MAX).contains(&values.len())
        && values.iter().all(|value| value.len() <= LABEL_BYTES_MAX);
    let bound = || match values {
        [value] => value.parse::<i64>().ok(),
        _ => None,
    };
    let test = match operator {
        "NotIn" if is_listed => Some(json!({ "key": plain, "notIn": values })),
        "Exists" => Some(json!({ "key": plain, "exists": true })),
        "DoesNotExist" => Some(json!({ "key": plain, "exists": false })),
        "Gt" => bound().map(|bound| json!({ "key": plain, "greater": bound })),
        "Lt" => bound().map(|bound| json!({ "key": plain, "less": bound })),
        _ => None,
    };
    let Some(test) = test else {
        field.refuse(
            "must have the operator In, NotIn, Exists, DoesNotExist, Gt or Lt, and values that go with it",
        );
        return;
    };
    if plain != label {
        field.approximate(format!(
            "labels of nodes have no prefix and no capitals: the label `{name}` of nodes is tested"
        ));
    }
    rules.expressions.push(test);
}

/// What a label of nodes is called here.
fn plain(label: &str) -> String {
    label.rsplit('/').next().unwrap_or_default().to_ascii_lowercase()
}

fn select(label: &str, values: &[&str], field: &Field<'_>, rules: &mut Rules, selection: &mut Selection) {
    if PRODUCTS.contains(&label) {
        let types: Vec<Option<String>> = values.iter().map(|value| accelerator::of_product(value)).collect();
        match types.into_iter().collect::<Option<Vec<String>>>() {
            Some(types) => selection.types.extend(types),
            None => {
                field.refuse("no type of accelerator is known by this name; write `accelerators: TYPE:COUNT`")
            }
        }
        return;
    }
    match (label, values) {
        (SLICE, [shape]) => selection.slice = Some((*shape).to_owned()),
        ("topology.kubernetes.io/region", _) => regions(values, field, rules),
        ("kubernetes.io/os", ["linux"]) => field.approximate("every node runs Linux"),
        _ => own_label(label, values, field, rules),
    }
}

fn regions(values: &[&str], field: &Field<'_>, rules: &mut Rules) {
    if values.iter().all(|region| Name::new(region).is_some()) {
        rules.regions.extend(values.iter().map(|region| (*region).to_owned()));
    } else {
        field.refuse("regions have names of lower-case letters, digits, '-', '_' and '.'");
    }
}

/// A label that people gave their nodes. Labels of nodes are names, without a prefix.
fn own_label(label: &str, values: &[&str], field: &Field<'_>, rules: &mut Rules) {
    let plain = plain(label);
    let fits = (1..=SELECTOR_VALUES_MAX).contains(&values.len())
        && values.iter().all(|value| value.len() <= LABEL_BYTES_MAX);
    let Some(name) = Name::new(&plain).filter(|_| fits) else {
        field.refuse("labels of nodes have names of at most 63 lower-case letters, digits, '-', '_' and '.'");
        return;
    };
    if rules.node_selector.get(&plain).is_some_and(|known| known != values) {
        field.refuse(format!("two labels become one: `{name}`"));
        return;
    }
    if plain != label {
        field.approximate(format!(
            "labels of nodes have no prefix and no capitals: nodes need the label `{name}`"
        ));
    }
    rules.node_selector.insert(plain, values.iter().map(|value| (*value).to_owned()).collect());
}

fn tolerate(toleration: &Field<'_>, rules: &mut Rules) {
    let effect = toleration.get("effect").text();
    let operator = toleration.get("operator").text().unwrap_or("Equal");
    let value = toleration.get("value").text();
    if toleration.get("tolerationSeconds").is_given() {
        toleration.drop("a taint keeps jobs from being placed and stops none");
        return;
    }
    if !matches!(operator, "Equal" | "Exists")
        || !matches!(effect, None | Some("NoSchedule" | "PreferNoSchedule" | "NoExecute"))
    {
        toleration.refuse("must have the operator Equal or Exists, and an effect of Kubernetes");
        return;
    }
    match toleration.get("key").text() {
        Some(key) if OF_DEVICES.contains(&key) => {
            toleration.approximate("needs no toleration: devices go to the jobs that ask for them");
        }
        Some(key) => match Name::new(key) {
            Some(name) => {
                rules.tolerations.insert(name.to_string());
                if let Some(value) = value {
                    toleration.approximate(format!(
                        "a taint is a name without a value or an effect: `{name}` is tolerated whatever {:?} was",
                        shown(value)
                    ));
                }
            }
            None => toleration
                .drop("taints have names of lower-case letters, digits, '-', '_' and '.', and no prefix"),
        },
        None => toleration.drop("each taint that is tolerated has to be named"),
    }
}
