//! Tenants, pools and descriptions of demand under short numbers.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use muster_types::{JobSpec, Name};
use serde::{Deserialize, Serialize};

/// One of several, any, or a certain one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Selection {
    /// None: a job without accelerators.
    Nothing,
    /// Whatever there is.
    Any,
    /// One of several.
    Several,
    /// This one.
    One(Name),
}

impl Selection {
    fn of<'a>(mut names: impl Iterator<Item = &'a Name>, otherwise: Selection) -> Selection {
        let Some(first) = names.next() else { return otherwise };
        if names.all(|name| name == first) { Selection::One(first.clone()) } else { Selection::Several }
    }

    /// The word that reports show.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Selection::Nothing => "(none)",
            Selection::Any => "(any)",
            Selection::Several => "(several)",
            Selection::One(name) => name.as_str(),
        }
    }
}

/// The types and regions that a job accepts, as far as time spent waiting is reported by them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Label {
    pub(crate) kind: Selection,
    pub(crate) region: Selection,
}

impl Label {
    pub(crate) fn of(spec: &JobSpec) -> Label {
        let requests = || spec.groups.iter().filter_map(|group| group.request.accelerators.as_ref());
        let kind = if requests().next().is_none() {
            Selection::Nothing
        } else if requests().any(|request| request.choices.is_empty()) {
            Selection::Any
        } else {
            let kinds = requests().flat_map(|request| request.choices.iter().map(|choice| &choice.kind));
            Selection::of(kinds, Selection::Any)
        };
        Label { kind, region: Selection::of(spec.regions.iter(), Selection::Any) }
    }
}

/// Values in the order in which they were first seen.
#[derive(Clone, Debug)]
pub(crate) struct Catalog<T> {
    values: Vec<T>,
    numbers: BTreeMap<T, u32>,
}

impl<T> Default for Catalog<T> {
    fn default() -> Catalog<T> {
        Catalog { values: Vec::new(), numbers: BTreeMap::new() }
    }
}

impl<T: Clone + Ord> Catalog<T> {
    pub(crate) fn number(&mut self, value: &T) -> u32 {
        if let Some(number) = self.numbers.get(value) {
            return *number;
        }
        let number = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        self.values.push(value.clone());
        self.numbers.insert(value.clone(), number);
        number
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.values.get(number as usize)
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.values.iter()
    }
}
