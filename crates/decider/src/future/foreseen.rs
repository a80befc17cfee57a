//! What is foreseen of a state whatever is reserved: made once for several who look at the same state.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_planner::CapacityTimeline;
use muster_types::{JobId, LogTime};

use super::{ClusterKey, Future};

/// Timelines of clusters without reservations, and when what runs ends, of one state at one time and pace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Foreseen {
    pub(super) outlooks: BTreeMap<ClusterKey, CapacityTimeline>,
    pub(super) ends: Option<Arc<Vec<(LogTime, JobId)>>>,
}

impl Foreseen {
    /// Whether a future has made something that is not in it.
    pub(crate) fn lacks(&self, made: &Future) -> bool {
        let is_new = |place: &ClusterKey| !self.outlooks.contains_key(place);
        made.outlooks.keys().any(is_new) || (self.ends.is_none() && made.ends.is_some())
    }

    /// Adds what a future of the same state, time and pace has made, in which nothing was placed.
    pub(crate) fn add(&mut self, made: &Future) {
        for (place, outlook) in &made.outlooks {
            if !self.outlooks.contains_key(place) {
                self.outlooks.insert(place.clone(), outlook.without_reserved());
            }
        }
        if self.ends.is_none() {
            self.ends.clone_from(&made.ends);
        }
    }
}

impl Future {
    /// Spares it to make again what is foreseen of the same state at the same time and pace.
    pub(crate) fn set_foreseen(&mut self, foreseen: &Arc<Foreseen>) {
        self.foreseen = Arc::clone(foreseen);
    }

    /// What was foreseen is out of date.
    pub(super) fn forget_foreseen(&mut self) {
        // A pass has none, and places many gangs.
        if !self.foreseen.outlooks.is_empty() || self.foreseen.ends.is_some() {
            self.foreseen = Arc::default();
        }
    }
}
