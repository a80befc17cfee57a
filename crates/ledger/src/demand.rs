//! Which jobs wait that could start: by the types and regions that they accept.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_types::{JobSpec, Name};
use serde::{Deserialize, Serialize};

/// The types and regions that a job accepts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// None for any type. Empty for a job without accelerators.
    kinds: Option<Vec<Name>>,
    /// Empty for any.
    regions: Vec<Name>,
}

impl Shape {
    pub(crate) fn of(spec: &JobSpec) -> Shape {
        let mut kinds = Some(Vec::new());
        for request in spec.groups.iter().filter_map(|group| group.request.accelerators.as_ref()) {
            if request.choices.is_empty() {
                kinds = None;
            }
            if let Some(kinds) = &mut kinds {
                kinds.extend(request.choices.iter().map(|choice| choice.kind.clone()));
            }
        }
        if let Some(kinds) = &mut kinds {
            kinds.sort_unstable();
            kinds.dedup();
        }
        let mut regions = spec.regions.clone();
        regions.sort_unstable();
        Shape { kinds, regions }
    }

    fn is_of(&self, kind: &Name) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.contains(kind))
    }

    fn is_in(&self, region: &Name) -> bool {
        self.regions.is_empty() || self.regions.contains(region)
    }

    /// What a job of this shape is to a type in a region while it waits.
    pub(crate) fn demand(&self, kind: &Name, region: &Name) -> Demand {
        let asks = self.kinds.as_ref().is_none_or(|kinds| !kinds.is_empty());
        match (self.is_of(kind), self.is_in(region)) {
            (true, true) => Demand::Here,
            (true, false) => Demand::Elsewhere,
            (false, _) if asks => Demand::OtherType,
            (false, _) => Demand::None,
        }
    }
}

/// What waits for the accelerators of a pool; of several jobs the greatest counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Demand {
    /// Nothing.
    #[default]
    None,
    /// Jobs that accept other types only.
    OtherType,
    /// Jobs that accept the type in other regions only.
    Elsewhere,
    /// Jobs that accept the type in the region.
    Here,
}

/// Shapes of jobs with the number of those that could start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    shapes: BTreeMap<Arc<Shape>, ShapeCount>,
    /// Shapes of which a job could start, so that pools are looked up among few.
    open: BTreeSet<Arc<Shape>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ShapeCount {
    jobs: u64,
    eligible: u64,
}

impl Queue {
    /// A job begins to wait; its shape is shared with its like.
    pub(crate) fn enter(&mut self, shape: Shape) -> Arc<Shape> {
        let known = self.shapes.get_key_value(&shape).map(|(known, _)| Arc::clone(known));
        let shape = known.unwrap_or_else(|| Arc::new(shape));
        self.shapes.entry(Arc::clone(&shape)).or_default().jobs += 1;
        shape
    }

    /// A job that is not eligible is over or has another shape.
    pub(crate) fn leave(&mut self, shape: &Arc<Shape>) {
        if let Some(count) = self.shapes.get_mut(shape) {
            count.jobs = count.jobs.saturating_sub(1);
            if count.jobs == 0 {
                self.shapes.remove(shape);
            }
        }
    }

    /// Whether the first job of this shape becomes eligible, or the last one no longer is, when one more or one less is.
    pub(crate) fn changes_demand(&self, shape: &Arc<Shape>, is_eligible: bool) -> bool {
        let eligible = self.shapes.get(shape).map_or(0, |count| count.eligible);
        eligible == u64::from(!is_eligible)
    }

    /// One more job of this shape could start, or one less.
    pub(crate) fn set_eligible(&mut self, shape: &Arc<Shape>, is_eligible: bool) {
        let Some(count) = self.shapes.get_mut(shape) else { return };
        if is_eligible {
            count.eligible += 1;
            self.open.insert(Arc::clone(shape));
        } else {
            count.eligible = count.eligible.saturating_sub(1);
            if count.eligible == 0 {
                self.open.remove(shape);
            }
        }
    }

    /// What waits for a type in a region.
    pub(crate) fn demand(&self, kind: &Name, region: &Name) -> Demand {
        let mut found = Demand::None;
        for shape in &self.open {
            found = found.max(shape.demand(kind, region));
            if found == Demand::Here {
                break;
            }
        }
        found
    }
}
