//! What is foreseen of a state whatever is reserved: made once for several who look at the same state.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_planner::CapacityTimeline;
use muster_types::{JobId, LogTime};

use super::outlooks::RunEnd;
use super::{ClusterKey, Future};

/// Timelines of clusters without reservations, and when what runs ends, of one state at one time and pace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Foreseen {
    pub(super) outlooks: BTreeMap<ClusterKey, CapacityTimeline>,
    pub(super) ends: Option<Arc<Vec<(LogTime, JobId)>>>,
    /// What the timelines were made of.
    pub(super) runs: BTreeMap<ClusterKey, Arc<Vec<RunEnd>>>,
    /// The same at another pace, to make this one from.
    pub(super) at_another_pace: Option<Arc<Foreseen>>,
}

impl Foreseen {
    /// Nothing yet, next to what is foreseen of the same state at another pace.
    pub(crate) fn next_to(other: Option<&Arc<Foreseen>>) -> Foreseen {
        Foreseen { at_another_pace: other.cloned(), ..Foreseen::default() }
    }

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
                if let Some(runs) = made.runs.get(place) {
                    self.runs.insert(place.clone(), Arc::clone(runs));
                }
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
        // A pass has nothing of it, and places many gangs.
        let Foreseen { outlooks, ends, runs, at_another_pace } = &*self.foreseen;
        let is_blank = outlooks.is_empty() && ends.is_none() && runs.is_empty() && at_another_pace.is_none();
        if !is_blank {
            self.foreseen = Arc::default();
        }
    }
}
