//! Who a job is: name, tenant, labels and annotations.

use std::collections::BTreeMap;

use muster_types::limits::{ANNOTATIONS_BYTES_MAX, LABELS_MAX};
use muster_types::metadata::{is_label_key, is_label_value};
use muster_types::{Name, PriorityTier};

use super::Options;
use super::draft::{Draft, name_of};
use super::field::Field;
use super::finding::shown;

/// The label of Kueue that names a queue.
const QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// The label of Kueue that names a priority.
const PRIORITY: &str = "kueue.x-k8s.io/priority-class";
/// What the other cluster wrote itself.
const WRITTEN_THERE: [&str; 7] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "selfLink",
    "deletionTimestamp",
];

/// A draft with the metadata of an object.
pub fn read(object: &Field<'_>, options: &Options) -> Draft {
    let metadata = object.get("metadata");
    let mut draft = Draft { name: name(&metadata, object), ..Draft::default() };
    let _ = (object.get("apiVersion").text(), object.get("kind").text());
    for field in WRITTEN_THERE.map(|name| metadata.get(name)).into_iter().chain([object.get("status")]) {
        if field.is_given() {
            field.approximate(
                "the other cluster wrote this of its object; the job here begins without a past",
            );
        }
    }
    labels(&metadata.get("labels"), &mut draft, options);
    annotations(&metadata.get("annotations"), &mut draft);
    let namespace = metadata.get("namespace");
    if let Some(text) = namespace.peek() {
        let text = shown(text);
        if draft.tenant.is_empty() {
            namespace.drop(format!(
                "tenants take the place of namespaces: `--tenant {text}` makes it the one of that name"
            ));
        } else {
            namespace.drop(format!("the queue's label names the tenant, and not the namespace {text}"));
        }
    }
    draft
}

fn name(metadata: &Field<'_>, object: &Field<'_>) -> String {
    let (given, generated) = (metadata.get("name"), metadata.get("generateName"));
    let field = if given.is_given() { given } else { generated.clone() };
    let Some(text) = field.text() else {
        object.get("metadata").refuse("must have a name");
        return String::new();
    };
    if generated.is_given() {
        generated
            .approximate("names need not be unique here: jobs have ids, and nothing is put behind the name");
    }
    let Some(name) = name_of(text) else {
        field.refuse(format!("must be a name of letters and digits, got {:?}", shown(text)));
        return String::new();
    };
    if name != text.trim_end_matches('-') {
        field.approximate(format!(
            "names have at most 63 lower-case letters, digits, '-', '_' and '.': {name}"
        ));
    }
    name
}

fn labels(labels: &Field<'_>, draft: &mut Draft, options: &Options) {
    for (key, field) in labels.entries() {
        let Some(value) = field.text() else { continue };
        if key == QUEUE {
            match Name::new(value) {
                Some(name) => draft.tenant = name.to_string(),
                None => field.refuse(format!("a tenant's name cannot be {:?}", shown(value))),
            }
        } else if key == PRIORITY {
            priority(&field, options, &mut draft.rules.tier);
        } else {
            label(key, value, &field, &mut draft.labels);
        }
    }
}

/// A label, where it keeps the rules for labels.
pub fn label(key: &str, value: &str, field: &Field<'_>, labels: &mut BTreeMap<String, String>) {
    if !is_label_key(key) || !is_label_value(value) {
        field.drop("labels of jobs have keys and values of at most 63 letters, digits, '-', '_' and '.'");
    } else if labels.get(key).is_some_and(|known| known != value) {
        field.drop("the job as a whole has another value for this label");
    } else if labels.len() >= LABELS_MAX && !labels.contains_key(key) {
        field.drop(format!("a job has at most {LABELS_MAX} labels"));
    } else {
        labels.insert(key.to_owned(), value.to_owned());
    }
}

fn annotations(annotations: &Field<'_>, draft: &mut Draft) {
    let mut bytes = 0;
    for (key, field) in annotations.entries() {
        let Some(value) = field.text() else { continue };
        if let Some(level) = super::topology::exclusive(key) {
            super::topology::require(value, &field, level, &mut draft.rules);
            continue;
        }
        let is_text = value.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\t'));
        if !is_label_key(key) || !is_text {
            field.drop("annotations of jobs have keys of at most 63 letters, digits, '-', '_' and '.', and texts as values");
        } else if bytes + key.len() + value.len() > ANNOTATIONS_BYTES_MAX {
            field.drop(format!("annotations of a job have at most {ANNOTATIONS_BYTES_MAX} bytes together"));
        } else {
            bytes += key.len() + value.len();
            draft.annotations.insert(key.to_owned(), value.to_owned());
        }
    }
}

/// The tier for a class of priority: the one that an option names, or one that has the same name.
pub fn priority(field: &Field<'_>, options: &Options, tier: &mut Option<String>) {
    let Some(class) = field.text() else { return };
    match tier_of(class, options) {
        Some(found) => *tier = Some(found),
        None => field.drop(no_tier(class)),
    }
}

/// The tier of a class or quality of service.
pub fn tier_of(class: &str, options: &Options) -> Option<String> {
    let named = options.tiers.get(class).copied().or_else(|| PriorityTier::parse(class));
    named.map(|tier| tier.to_string())
}

/// The sentence for a class without a tier.
pub fn no_tier(class: &str) -> String {
    let class = shown(class);
    format!(
        "no tier is known for it: `--tier-of {class}=TIER` says which of free, batch, standard, production and critical it is"
    )
}
