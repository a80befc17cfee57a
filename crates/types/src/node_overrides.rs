//! Labels and taints that operators set on nodes at run time.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::metadata::{LABEL_VALUE_RULE, is_label_value};
use crate::name::Name;
use crate::reason::Violation;

/// Beginnings of keys that agents use for what they find out about their hosts. Policy and placement trust what
/// stands there, so that nobody else sets it.
pub const RESERVED_PREFIXES: [&str; 4] = ["gpu.", "isolation.", "lacks-isolation.", "muster."];

/// All labels and taints that operators have set on one node, apart from what its agent says. A label replaces the
/// agent's label with the same key; taints are added to the agent's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeOverrides {
    /// At most [`limits::NODE_OVERRIDE_LABELS_MAX`].
    pub labels: BTreeMap<Name, String>,
    /// At most [`limits::NODE_OVERRIDE_TAINTS_MAX`].
    pub taints: BTreeSet<Name>,
}

impl NodeOverrides {
    /// Whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.taints.is_empty()
    }

    /// Every rule that it breaks: bounds and reserved keys.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        bound("labels", self.labels.len(), limits::NODE_OVERRIDE_LABELS_MAX, &mut found);
        bound("taints", self.taints.len(), limits::NODE_OVERRIDE_TAINTS_MAX, &mut found);
        check_labels("labels", &self.labels, &mut found);
        check_keys("taints", &self.taints, &mut found);
        found
    }
}

/// What is to change about the labels and taints that operators have set on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeOverridesChange {
    /// Labels that are set, or set to another value.
    pub set_labels: BTreeMap<Name, String>,
    /// Keys of labels that operators set no more. What the agent says under the key counts again.
    pub remove_labels: BTreeSet<Name>,
    /// Taints that are set.
    pub set_taints: BTreeSet<Name>,
    /// Taints that operators set no more. A taint of the agent stays.
    pub remove_taints: BTreeSet<Name>,
}

impl NodeOverridesChange {
    /// Every rule that it breaks by itself, whatever the node has.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let (labels_max, taints_max) = (limits::NODE_OVERRIDE_LABELS_MAX, limits::NODE_OVERRIDE_TAINTS_MAX);
        bound("set_labels", self.set_labels.len(), labels_max, &mut found);
        bound("remove_labels", self.remove_labels.len(), labels_max, &mut found);
        bound("set_taints", self.set_taints.len(), taints_max, &mut found);
        bound("remove_taints", self.remove_taints.len(), taints_max, &mut found);
        if !found.is_empty() {
            return found;
        }
        // What is set here is selected by as labels of jobs are. Agents and earlier records may have longer values.
        for (key, value) in &self.set_labels {
            if !is_label_value(value) {
                let text = format!("the value {LABEL_VALUE_RULE}");
                found.push(Violation::new(format!("set_labels.{key}"), text));
            }
            check_key("set_labels", key, &mut found);
        }
        check_keys("set_taints", &self.set_taints, &mut found);
        for key in self.remove_labels.iter().filter(|key| self.set_labels.contains_key(*key)) {
            found.push(Violation::new("remove_labels", format!("{key} is set in the same request")));
        }
        for key in self.remove_taints.intersection(&self.set_taints) {
            found.push(Violation::new("remove_taints", format!("{key} is set in the same request")));
        }
        let is_empty = self.set_labels.is_empty()
            && self.remove_labels.is_empty()
            && self.set_taints.is_empty()
            && self.remove_taints.is_empty();
        if is_empty {
            found.push(Violation::new("set_labels", "a label or a taint to set or to remove must be given"));
        }
        found
    }

    /// What is set once the change is made to `before`.
    #[must_use]
    pub fn applied_to(&self, before: &NodeOverrides) -> NodeOverrides {
        let mut after = before.clone();
        after.labels.retain(|key, _| !self.remove_labels.contains(key));
        after.taints.retain(|key| !self.remove_taints.contains(key));
        after.labels.extend(self.set_labels.iter().map(|(key, value)| (key.clone(), value.clone())));
        after.taints.extend(self.set_taints.iter().cloned());
        after
    }
}

fn bound(field: &str, count: usize, max: usize, found: &mut Vec<Violation>) {
    if count > max {
        found.push(Violation::limit(field, count as u64, 0, max as u64));
    }
}

fn check_labels(field: &str, labels: &BTreeMap<Name, String>, found: &mut Vec<Violation>) {
    let max = limits::LABEL_BYTES_MAX;
    for (key, value) in labels {
        if value.len() > max || value.chars().any(char::is_control) {
            let text = format!("must be at most {max} bytes without control characters");
            found.push(Violation::new(format!("{field}.{key}"), text));
        }
        check_key(field, key, found);
    }
}

fn check_keys(field: &str, keys: &BTreeSet<Name>, found: &mut Vec<Violation>) {
    keys.iter().for_each(|key| check_key(field, key, found));
}

fn check_key(field: &str, key: &Name, found: &mut Vec<Violation>) {
    if let Some(prefix) = RESERVED_PREFIXES.iter().find(|prefix| key.starts_with(*prefix)) {
        let text =
            format!("keys that begin with {prefix:?} are reserved for what agents find out; use another");
        found.push(Violation::new(format!("{field}.{key}"), text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(keys: &[&'static str]) -> BTreeSet<Name> {
        keys.iter().copied().map(Name::literal).collect()
    }

    fn labels(pairs: &[(&'static str, &str)]) -> BTreeMap<Name, String> {
        pairs.iter().map(|(key, value)| (Name::literal(key), String::from(*value))).collect()
    }

    #[test]
    fn a_change_sets_replaces_and_removes() {
        let before = NodeOverrides { labels: labels(&[("a", "1"), ("b", "2")]), taints: names(&["old"]) };
        let change = NodeOverridesChange {
            set_labels: labels(&[("a", "3"), ("c", "")]),
            remove_labels: names(&["b", "unknown"]),
            set_taints: names(&["new"]),
            remove_taints: names(&["old"]),
        };
        assert!(change.violations().is_empty());
        let after = change.applied_to(&before);
        assert_eq!(after.labels, labels(&[("a", "3"), ("c", "")]));
        assert_eq!(after.taints, names(&["new"]));
        assert_eq!(change.applied_to(&after), after, "repeating it changes nothing");
    }

    #[test]
    fn what_breaks_a_rule_is_named() {
        let fields = |change: NodeOverridesChange| -> Vec<String> {
            change.violations().into_iter().map(|violation| violation.field).collect()
        };
        assert_eq!(fields(NodeOverridesChange::default()), ["set_labels"]);
        let set_labels = labels(&[("gpu.model", "x"), ("isolation.user", "yes"), ("ok", "a\nb")]);
        let reserved = NodeOverridesChange {
            set_labels,
            set_taints: names(&["lacks-isolation.user"]),
            ..Default::default()
        };
        let expected = [
            "set_labels.gpu.model",
            "set_labels.isolation.user",
            "set_labels.ok",
            "set_taints.lacks-isolation.user",
        ];
        assert_eq!(fields(reserved), expected);
        let long = "x".repeat(64);
        for value in ["b c", "-b", "b.", "b=c", long.as_str()] {
            let change = NodeOverridesChange { set_labels: labels(&[("a", value)]), ..Default::default() };
            assert_eq!(fields(change), ["set_labels.a"], "{value:?}");
        }
        let both = NodeOverridesChange {
            set_labels: labels(&[("a", "1")]),
            remove_labels: names(&["a"]),
            set_taints: names(&["b"]),
            remove_taints: names(&["b"]),
        };
        assert_eq!(fields(both), ["remove_labels", "remove_taints"]);
        let taints: BTreeSet<Name> = (0..17).filter_map(|n| Name::new(&format!("t{n}"))).collect();
        assert_eq!(
            fields(NodeOverridesChange { set_taints: taints.clone(), ..Default::default() }),
            ["set_taints"]
        );
        let full = NodeOverrides { taints, ..Default::default() };
        assert_eq!(full.violations().len(), 1);
    }
}
