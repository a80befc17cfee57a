//! What may be asked of a job that exists: that it ends, waits, goes on, begins again, or is another in some respects.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use crate::ids::LogIndex;
use crate::job::{JobDraft, PriorityTier};
use crate::metadata::JobMetadata;
use crate::name::Name;
use crate::node_requirements::NodeRequirements;
use crate::reason::Violation;
use crate::time::LogTime;

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

/// How many workers a group of a job is to have.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GroupSize {
    /// The group's name; none for the only group of the job.
    pub group: Option<Name>,
    /// How many workers.
    pub workers: u32,
    /// The fewest that it can start and go on with; none leaves the fewest of an elastic group, and means all of another.
    pub workers_min: Option<u32>,
}

impl GroupSize {
    /// The group that is meant, by its place in the job; none where there is no such group.
    #[must_use]
    pub fn place_in(&self, draft: &JobDraft) -> Option<usize> {
        match &self.group {
            Some(name) => draft.groups.iter().position(|group| group.name == *name),
            None => (draft.groups.len() == 1).then_some(0),
        }
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
    /// Its nice value.
    Nice(i8),
    /// It goes before the other waiting jobs of its tenant and tier. The record that has it; none in what is asked for, where that
    /// is not known.
    Front(Option<LogIndex>),
    /// How many workers its groups have; of each group at most once.
    Groups(Vec<GroupSize>),
    /// The most workers that an elastic job of one group is placed with; none for as many as its group has.
    Size(Option<u32>),
    /// Who it is for.
    Tenant(Name),
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
            FieldChange::Nice(_) => "nice",
            FieldChange::Front(_) => "place in the queue",
            FieldChange::Groups(_) => "groups",
            FieldChange::Size(_) => "size",
            FieldChange::Tenant(_) => "tenant",
        }
    }

    /// Whether it can be changed of a job that has been placed.
    #[must_use]
    pub fn is_for_running(&self) -> bool {
        matches!(
            self,
            FieldChange::RunTimeLimit(_)
                | FieldChange::Labels(_)
                | FieldChange::Annotations(_)
                | FieldChange::Size(_)
        )
    }

    /// Whether it is a part of what a job carries, and not of what is run.
    #[must_use]
    pub fn is_of_metadata(&self) -> bool {
        matches!(self, FieldChange::Labels(_) | FieldChange::Annotations(_))
    }

    /// What is wrong with the change for this job, that the rules of a job do not say.
    #[must_use]
    pub fn violation(&self, draft: &JobDraft) -> Option<Violation> {
        let FieldChange::Groups(sizes) = self else { return None };
        let mut places = BTreeSet::new();
        for size in sizes {
            let Some(place) = size.place_in(draft) else {
                let text = match &size.group {
                    Some(name) => alloc::format!("names {name}, which is no group of the job"),
                    None => "must name the group that is meant, because the job has several".into(),
                };
                return Some(Violation::new("groups", text));
            };
            if !places.insert(place) {
                return Some(Violation::new("groups", "must not name a group twice"));
            }
            if draft.groups.get(place).is_some_and(|group| group.slice.is_some()) {
                let text = "forms slices, which say how many workers it has";
                return Some(Violation::new(alloc::format!("groups[{place}]"), text));
            }
        }
        sizes.is_empty().then(|| Violation::new("groups", "must have a group"))
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
            FieldChange::Nice(nice) => draft.nice = *nice,
            FieldChange::Front(front) => draft.front = *front,
            FieldChange::Groups(sizes) => change_groups(draft, sizes),
            FieldChange::Size(size) => draft.size = *size,
            FieldChange::Tenant(tenant) => draft.tenant.clone_from(tenant),
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
            FieldChange::Groups(sizes) => {
                sizes.iter().map(|size| size.group.as_ref().map_or(0, |name| name.len()) + 20).sum()
            }
            FieldChange::Tenant(tenant) => tenant.len(),
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
            FieldChange::Nice(nice) => nice.to_string(),
            FieldChange::Front(_) => "front".into(),
            FieldChange::Groups(sizes) => sizes.iter().map(size_text).collect::<Vec<_>>().join(","),
            FieldChange::Size(size) => size.map_or_else(none, |size| size.to_string()),
            FieldChange::Tenant(tenant) => tenant.to_string(),
        };
        write!(f, "{}={value}", self.field())
    }
}

/// Gives groups other numbers of workers. A size that was asked for while the job ran is for the numbers that it had then.
fn change_groups(draft: &mut JobDraft, sizes: &[GroupSize]) {
    for size in sizes {
        let Some(group) = size.place_in(draft).and_then(|place| draft.groups.get_mut(place)) else {
            continue;
        };
        let is_elastic = group.workers_min < group.workers;
        let least = if is_elastic { group.workers_min.min(size.workers) } else { size.workers };
        group.workers = size.workers;
        group.workers_min = size.workers_min.unwrap_or(least);
    }
    draft.size = None;
}

fn size_text(size: &GroupSize) -> String {
    let least = size.workers_min.map(|least| alloc::format!("{least}..")).unwrap_or_default();
    match &size.group {
        Some(group) => alloc::format!("{group}={least}{}", size.workers),
        None => alloc::format!("{least}{}", size.workers),
    }
}
