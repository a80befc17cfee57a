//! What a job asks of its nodes, condition by condition: for counting how many nodes each keeps it from.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use muster_types::policy::PurchaseKind;
use muster_types::{CapacityRules, JobSpec, Name, NodeExpression, NodeSpec, PurchaseSet};

/// Names that a text shows.
const NAMES_SHOWN_MAX: usize = 4;

/// One condition on nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Condition<'a> {
    /// A label with one of these values.
    Label(&'a Name, &'a BTreeSet<String>),
    /// A test of a label.
    Expression(&'a NodeExpression),
    /// The only nodes.
    Only(&'a BTreeSet<Name>),
    /// Nodes that are excluded.
    Exclude(&'a BTreeSet<Name>),
    /// The only purchases.
    Purchases(PurchaseSet),
}

impl<'a> Condition<'a> {
    /// Those of a job, in the order of its fields. A node that meets them all is one that [`muster_state::fit::selects`] and
    /// [`muster_state::fit::is_bought_for`].
    pub(crate) fn all(spec: &'a JobSpec) -> Vec<Condition<'a>> {
        let labels = spec.node_selector.iter().map(|(label, values)| Condition::Label(label, values));
        let mut all: Vec<Condition<'a>> = labels.collect();
        if let Some(nodes) = spec.nodes.as_deref() {
            all.extend(nodes.expressions.iter().map(Condition::Expression));
            all.extend((!nodes.only.is_empty()).then_some(Condition::Only(&nodes.only)));
            all.extend((!nodes.exclude.is_empty()).then_some(Condition::Exclude(&nodes.exclude)));
        }
        all.extend(spec.capacity.as_deref().and_then(CapacityRules::allowed).map(Condition::Purchases));
        all
    }

    /// Whether a node meets it.
    pub(crate) fn is_met(&self, node: &NodeSpec) -> bool {
        match self {
            Condition::Label(label, values) => {
                node.labels.get(*label).is_some_and(|value| values.contains(value))
            }
            Condition::Expression(expression) => expression.matches(node),
            Condition::Only(names) => names.contains(&node.name),
            Condition::Exclude(names) => !names.contains(&node.name),
            Condition::Purchases(allowed) => {
                PurchaseKind::of_node(node).is_some_and(|purchase| allowed.contains(purchase))
            }
        }
    }

    /// How many of some nodes meet it, as a part of a sentence.
    pub(crate) fn count(&self, met: u64, of: u64) -> String {
        match self {
            Condition::Label(..) => format!("{met} have {self}"),
            Condition::Expression(_) => format!("{met} match {self}"),
            Condition::Only(_) => format!("{met} are among the nodes that it names"),
            Condition::Exclude(_) => format!("{} are excluded by name", of.saturating_sub(met)),
            Condition::Purchases(allowed) => format!("{met} were bought as it asks for ({allowed})"),
        }
    }
}

impl fmt::Display for Condition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Label(label, values) => {
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                write!(f, "{label}={}", values.join("|"))
            }
            Condition::Expression(expression) => expression.fmt(f),
            Condition::Only(names) => write!(f, "only {}", some_of(names)),
            Condition::Exclude(names) => write!(f, "exclude {}", some_of(names)),
            Condition::Purchases(allowed) => write!(f, "purchase {allowed}"),
        }
    }
}

fn some_of(names: &BTreeSet<Name>) -> String {
    let shown: Vec<&str> = names.iter().take(NAMES_SHOWN_MAX).map(Name::as_str).collect();
    let rest = names.len() - shown.len();
    let behind = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("{}{behind}", shown.join(","))
}
