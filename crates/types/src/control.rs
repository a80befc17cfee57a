//! What may be asked of a job that exists: that it ends, waits, goes on, begins again, or is another in some respects.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use crate::job::{JobDraft, PriorityTier};
use crate::limits;
use crate::metadata::{ANONYMOUS, JobMetadata};
use crate::name::Name;
use crate::node_requirements::NodeRequirements;
use crate::time::LogTime;

/// Who asks for something.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Requester {
    /// As its certificate says, like a job's creator; empty when nobody knows.
    pub name: String,
    /// Whether it may act for the operators of the cluster.
    pub is_operator: bool,
}

impl Requester {
    /// Whether its name can be that of a principal.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.name.len() <= limits::CREATOR_BYTES_MAX && self.name.bytes().all(|b| b.is_ascii_graphic())
    }

    /// Whether nothing is known of it.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        *self == Requester::default()
    }
}

impl fmt::Display for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.name.is_empty() { ANONYMOUS } else { &self.name })
    }
}

/// What may be asked of several jobs at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Control {
    /// End it: one that waits at once, one that runs after its workers have stopped.
    Cancel,
    /// Keep one that waits from being placed.
    Hold,
    /// End a hold or a suspension.
    Release,
    /// Stop one that runs; it waits again.
    Requeue,
    /// Stop one that runs, and hold it.
    Suspend,
}

impl Control {
    /// Every one.
    pub const ALL: [Control; 5] =
        [Control::Cancel, Control::Hold, Control::Release, Control::Requeue, Control::Suspend];

    /// As people call it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Control::Cancel => "cancel",
            Control::Hold => "hold",
            Control::Release => "release",
            Control::Requeue => "requeue",
            Control::Suspend => "suspend",
        }
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One property of a job, and what it is to be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FieldChange {
    /// Its tier.
    Tier(PriorityTier),
    /// The longest run of one attempt; none for no limit.
    RunTimeLimit(Option<u64>),
    /// When it has to be over; none for no such time.
    Deadline(Option<LogTime>),
    /// Not to be started before; none for no such time.
    NotBefore(Option<LogTime>),
    /// Regions that it may run in; empty for any.
    Regions(Vec<Name>),
    /// Labels that its nodes must have.
    NodeSelector(BTreeMap<Name, BTreeSet<String>>),
    /// How long its owner expects it to run; none leaves it to what was learned.
    ExpectedRun(Option<u64>),
    /// All its labels.
    Labels(BTreeMap<String, String>),
    /// All its annotations.
    Annotations(BTreeMap<String, String>),
    /// What else its nodes have to be; none for nothing else.
    Nodes(Option<Box<NodeRequirements>>),
}

impl FieldChange {
    /// The field, as in a job's spec.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            FieldChange::Tier(_) => "tier",
            FieldChange::RunTimeLimit(_) => "run_time_limit",
            FieldChange::Deadline(_) => "deadline",
            FieldChange::NotBefore(_) => "not_before",
            FieldChange::Regions(_) => "regions",
            FieldChange::NodeSelector(_) => "node_selector",
            FieldChange::ExpectedRun(_) => "expected_run",
            FieldChange::Labels(_) => "labels",
            FieldChange::Annotations(_) => "annotations",
            FieldChange::Nodes(_) => "nodes",
        }
    }

    /// Whether it can be changed of a job that has been placed.
    #[must_use]
    pub fn is_for_running(&self) -> bool {
        matches!(self, FieldChange::RunTimeLimit(_) | FieldChange::Labels(_) | FieldChange::Annotations(_))
    }

    /// Whether it is a part of what a job carries, and not of what is run.
    #[must_use]
    pub fn is_of_metadata(&self) -> bool {
        matches!(self, FieldChange::Labels(_) | FieldChange::Annotations(_))
    }

    /// Makes the change of what is run; labels and annotations are no part of that.
    pub fn change_draft(&self, draft: &mut JobDraft) {
        match self {
            FieldChange::Tier(tier) => draft.tier = *tier,
            FieldChange::RunTimeLimit(limit) => draft.run_time_limit_ms = *limit,
            FieldChange::Deadline(deadline) => draft.deadline = *deadline,
            FieldChange::NotBefore(time) => draft.not_before = *time,
            FieldChange::Regions(regions) => draft.regions.clone_from(regions),
            FieldChange::NodeSelector(selector) => draft.node_selector.clone_from(selector),
            FieldChange::ExpectedRun(expected) => draft.expected_run_ms = *expected,
            FieldChange::Nodes(nodes) => draft.nodes.clone_from(nodes),
            FieldChange::Labels(_) | FieldChange::Annotations(_) => {}
        }
    }

    /// Makes the change of what a job carries.
    pub fn change_metadata(&self, metadata: &mut JobMetadata) {
        match self {
            FieldChange::Labels(labels) => metadata.labels.clone_from(labels),
            FieldChange::Annotations(annotations) => metadata.annotations.clone_from(annotations),
            _ => {}
        }
    }

    /// Bytes of its texts, and of what holds them together.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        let pairs = |texts: &BTreeMap<String, String>| -> usize {
            texts.iter().map(|(key, value)| key.len() + value.len() + 10).sum()
        };
        match self {
            FieldChange::Regions(regions) => regions.iter().map(|region| region.len() + 5).sum(),
            FieldChange::NodeSelector(selector) => {
                let values =
                    |values: &BTreeSet<String>| values.iter().map(|v| v.len() + 5).sum::<usize>() + 5;
                selector.iter().map(|(label, of_label)| label.len() + 5 + values(of_label)).sum()
            }
            FieldChange::Labels(texts) | FieldChange::Annotations(texts) => pairs(texts),
            FieldChange::Nodes(nodes) => nodes.as_ref().map_or(0, |nodes| nodes.text_bytes()),
            _ => 0,
        }
    }
}

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = || String::from("none");
        let span = |ms: &Option<u64>| ms.map_or_else(none, |ms| crate::time::Span(ms).to_string());
        let time = |time: &Option<LogTime>| time.map_or_else(none, |time| time.to_string());
        let pairs = |texts: &BTreeMap<String, String>| -> String {
            let pairs: Vec<String> =
                texts.iter().map(|(key, value)| alloc::format!("{key}={value}")).collect();
            pairs.join(",")
        };
        let value = match self {
            FieldChange::Tier(tier) => tier.to_string(),
            FieldChange::RunTimeLimit(ms) | FieldChange::ExpectedRun(ms) => span(ms),
            FieldChange::Deadline(at) | FieldChange::NotBefore(at) => time(at),
            FieldChange::Regions(regions) => {
                let names: Vec<&str> = regions.iter().map(Name::as_str).collect();
                names.join(",")
            }
            FieldChange::NodeSelector(selector) => {
                let term = |(label, values): (&Name, &BTreeSet<String>)| {
                    let values: Vec<&str> = values.iter().map(String::as_str).collect();
                    alloc::format!("{label}={}", values.join("|"))
                };
                selector.iter().map(term).collect::<Vec<_>>().join(",")
            }
            FieldChange::Labels(texts) => pairs(texts),
            FieldChange::Annotations(texts) => texts.keys().cloned().collect::<Vec<_>>().join(","),
            FieldChange::Nodes(nodes) => nodes.as_ref().map_or_else(none, |nodes| nodes.to_string()),
        };
        write!(f, "{}={value}", self.field())
    }
}
