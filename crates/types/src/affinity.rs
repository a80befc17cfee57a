//! Where the workers of a job lie with respect to those of other jobs.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use crate::fleet::NodeDraft;
use crate::ids::{ArrayId, JobId};
use crate::limits;
use crate::name::Name;
use crate::reason::Violation;
use crate::selector::LabelSelector;

/// A level of the fleet's tree, from the outside in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AffinityLevel {
    /// Region.
    Region,
    /// Fleet cluster.
    Cluster,
    /// Spine block.
    Block,
    /// Rack or NVLink domain.
    Rack,
    /// One host.
    Host,
}

/// A domain of a level by its names, from the outside in: region, cluster, block, rack and host.
pub type AffinityDomain<'a> =
    (&'a Name, Option<&'a Name>, Option<&'a Name>, Option<&'a Name>, Option<&'a Name>);

impl AffinityLevel {
    /// As users write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            AffinityLevel::Region => "region",
            AffinityLevel::Cluster => "cluster",
            AffinityLevel::Block => "block",
            AffinityLevel::Rack => "rack",
            AffinityLevel::Host => "host",
        }
    }

    /// The domain of this level that a node lies in.
    #[must_use]
    pub fn domain(self, node: &NodeDraft) -> AffinityDomain<'_> {
        let at = |level: AffinityLevel, name| Some(name).filter(|_| self >= level);
        (
            &node.region,
            at(AffinityLevel::Cluster, &node.cluster),
            at(AffinityLevel::Block, &node.block),
            at(AffinityLevel::Rack, &node.rack),
            at(AffinityLevel::Host, &node.name),
        )
    }
}

impl fmt::Display for AffinityLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Whether a job goes to where others are, or where they are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AffinityRule {
    /// Each worker lies in a domain in which a worker of one of the other jobs lies.
    Together,
    /// Each worker lies in a domain in which none of them lies.
    Apart,
}

impl AffinityRule {
    /// As users write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            AffinityRule::Together => "together",
            AffinityRule::Apart => "apart",
        }
    }
}

/// The other jobs that an entry is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AffinityTarget {
    /// One job. When it is over, the place where it was last.
    Job(JobId),
    /// The members of an array that run; while none does, the places where those were last that are over.
    Array(ArrayId),
    /// A job or an array that stands before this one in the same request. It has an id once it is submitted, and no job that
    /// is submitted has this.
    Named(Name),
    /// Jobs that run and that have the labels of this selector.
    Labels(String),
}

impl fmt::Display for AffinityTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AffinityTarget::Job(job) => job.fmt(f),
            AffinityTarget::Array(array) => array.fmt(f),
            AffinityTarget::Named(name) => name.fmt(f),
            AffinityTarget::Labels(selector) => write!(f, "jobs with {selector}"),
        }
    }
}

/// Where the workers of a job lie with respect to those of other jobs of its tenant and of the tenants below it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Affinity {
    /// The other jobs.
    pub target: AffinityTarget,
    /// The domains that are compared.
    pub level: AffinityLevel,
    /// Whether to go to where they are.
    pub rule: AffinityRule,
    /// How much it counts in the score of a place; none where the job starts only in places that meet it.
    pub weight: Option<u8>,
}

impl Affinity {
    /// Whether the job starts only in places that meet it.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.weight.is_none()
    }

    /// The selector of the other jobs; none for an entry that names them, and for a text that is no selector.
    #[must_use]
    pub fn selector(&self) -> Option<LabelSelector> {
        match &self.target {
            AffinityTarget::Labels(text) => LabelSelector::parse(text).ok(),
            AffinityTarget::Job(_) | AffinityTarget::Array(_) | AffinityTarget::Named(_) => None,
        }
    }

    fn check(&self, at: usize, found: &mut Vec<Violation>) {
        if let Some(weight) = self.weight
            && !(1..=limits::AFFINITY_WEIGHT_MAX).contains(&weight)
        {
            let max = limits::AFFINITY_WEIGHT_MAX.into();
            found.push(Violation::limit(&format!("affinity[{at}].weight"), weight.into(), 1, max));
        }
        let AffinityTarget::Labels(text) = &self.target else { return };
        let field = || format!("affinity[{at}].label_selector");
        match LabelSelector::parse(text) {
            Err(error) => found.push(Violation::new(field(), error.to_string())),
            Ok(selector) if !selector.needs_labels() => found.push(Violation::new(
                field(),
                "must name a label that the other jobs have, like app=cache: what selects jobs without labels selects too many",
            )),
            Ok(_) => {}
        }
    }
}

impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (level, target) = (self.level, &self.target);
        match self.rule {
            AffinityRule::Together => write!(f, "in a {level} of {target}"),
            AffinityRule::Apart => write!(f, "in no {level} of {target}"),
        }
    }
}

/// Adds every rule that the entries of a job break.
pub(crate) fn check_all(entries: &[Affinity], found: &mut Vec<Violation>) {
    if entries.len() > limits::JOB_AFFINITY_MAX {
        let max = limits::JOB_AFFINITY_MAX as u64;
        found.push(Violation::limit("affinity", entries.len() as u64, 0, max));
        return;
    }
    let mut seen = BTreeSet::new();
    for (at, entry) in entries.iter().enumerate() {
        entry.check(at, found);
        if !seen.insert((&entry.target, entry.level, entry.rule)) {
            let text = format!("must not ask twice for a place {entry}");
            found.push(Violation::new(format!("affinity[{at}]"), text));
        }
        let contradicts = |other: &&Affinity| {
            // Where one is apart in an outer domain, no inner one of that is left to be together in.
            let excludes = other.rule == AffinityRule::Apart
                && entry.rule == AffinityRule::Together
                && other.level <= entry.level;
            excludes && other.target == entry.target && other.is_required() && entry.is_required()
        };
        if let Some(other) = entries.iter().find(contradicts) {
            let text = format!("no place is {entry} and {other}; leave one of them out, or give it a weight");
            found.push(Violation::new(format!("affinity[{at}]"), text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str, level: AffinityLevel, rule: AffinityRule) -> Affinity {
        Affinity { target: AffinityTarget::Labels(text.to_string()), level, rule, weight: None }
    }

    fn fields(entries: &[Affinity]) -> Vec<String> {
        let mut found = Vec::new();
        check_all(entries, &mut found);
        found.into_iter().map(|violation| violation.field).collect()
    }

    #[test]
    fn entries_that_cannot_be_met_or_select_everything_are_refused() {
        let together = |text: &str| entry(text, AffinityLevel::Host, AffinityRule::Together);
        let apart = |text: &str, level| entry(text, level, AffinityRule::Apart);
        assert!(fields(&[together("app=cache"), apart("app=web", AffinityLevel::Rack)]).is_empty());
        // In its rack, and not on its host.
        let rack = entry("app=cache", AffinityLevel::Rack, AffinityRule::Together);
        assert!(fields(&[rack, apart("app=cache", AffinityLevel::Host)]).is_empty());
        for selector in ["", "!debug", "app!=web", "app in ("] {
            assert_eq!(fields(&[together(selector)]), ["affinity[0].label_selector"], "{selector:?}");
        }
        assert_eq!(fields(&[together("a=b"), together("a=b")]), ["affinity[1]"]);
        assert_eq!(fields(&[together("a=b"), apart("a=b", AffinityLevel::Rack)]), ["affinity[0]"]);
        let weighted = |weight| Affinity { weight: Some(weight), ..apart("a=b", AffinityLevel::Rack) };
        assert!(fields(&[together("a=b"), weighted(100)]).is_empty());
        assert_eq!(fields(&[weighted(0)]), ["affinity[0].weight"]);
        assert_eq!(fields(&[weighted(101)]), ["affinity[0].weight"]);
        let many: Vec<Affinity> = (0..9).map(|n| together(&format!("n=v{n}"))).collect();
        assert_eq!(fields(&many), ["affinity"]);
        assert!(fields(&many[..8]).is_empty());
    }
}
