//! Which nodes a pod may be on: selectors, affinity and taints.

use muster_types::Name;
use muster_types::limits::{LABEL_BYTES_MAX, SELECTOR_VALUES_MAX};

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
    for expression in term.get("matchExpressions").items() {
        let (key, values) = (expression.get("key"), expression.get("values"));
        match (key.text(), expression.get("operator").text()) {
            (Some(label), Some("In")) => select(label, &values.texts(), &expression, rules, selection),
            (_, Some(operator)) => {
                let operator = shown(operator);
                expression
                    .refuse(format!("a selector lists the values that fit (In), and has no {operator}"));
            }
            _ => expression.refuse("must have a key and an operator"),
        }
    }
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
    let plain = label.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
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
