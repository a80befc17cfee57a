//! Launches under way, for what is measured of them.
//!
//! **Invariant:** nothing is decided by it; what the loop has not heard of counts nothing.

use crate::rules::{Placement, WorkerKey};
use crate::traces::{LAUNCHES_MAX, TracedLaunch};
use muster_types::{FencingToken, JobId};
use std::collections::BTreeMap;
use std::time::Instant;

/// Start orders that wait for their launch. Of more, those that are the oldest by job are not measured.
const ORDERS_MAX: usize = 1_024;

/// When start orders arrived, and the workers that have not been launched.
#[derive(Debug, Default)]
pub(crate) struct Launches {
    orders: BTreeMap<(JobId, FencingToken), Instant>,
    /// Since when; none for a worker that is refused.
    workers: BTreeMap<WorkerKey, Option<Instant>>,
    /// Those of them that are a part of a trace, where spans are recorded.
    traced: BTreeMap<WorkerKey, TracedLaunch>,
}

impl Launches {
    /// A start order has arrived. One that comes again is as old as the first.
    pub(crate) fn ordered(&mut self, placement: &Placement, now: Instant) {
        if self.orders.len() >= ORDERS_MAX {
            self.orders.pop_first();
        }
        self.orders.entry((placement.job, placement.token)).or_insert(now);
    }

    /// Placements of a job up to this one are not launched any more.
    pub(crate) fn stopped(&mut self, job: JobId, token: FencingToken) {
        self.orders.retain(|(other, of), _| *other != job || *of > token);
    }

    /// The workers of a placement are launched from now on.
    pub(crate) fn begun(&mut self, placement: &Placement) {
        let ordered = self.orders.remove(&(placement.job, placement.token));
        self.workers.extend(placement.ranks().map(|rank| (placement.key(rank), ordered)));
        if placement.trace_parent.is_some() && self.traced.len() < LAUNCHES_MAX {
            let traced =
                placement.ranks().map(|rank| Some((placement.key(rank), TracedLaunch::of(placement, rank)?)));
            self.traced.extend(traced.flatten());
        }
    }

    /// A worker will not be launched; its end is reported next.
    pub(crate) fn refused(&mut self, key: WorkerKey) {
        self.orders.remove(&(key.job, key.token));
        self.workers.insert(key, None);
    }

    /// A worker runs: since when it was ordered, if that is known. None for one that was not being launched.
    pub(crate) fn running(&mut self, key: WorkerKey) -> Option<Option<Instant>> {
        let ordered = self.workers.remove(&key);
        if let Some(traced) = self.traced.remove(&key) {
            traced.end(key, ordered.flatten(), None);
        }
        ordered
    }

    /// A worker has ended; whether it was being launched.
    pub(crate) fn ended(&mut self, key: WorkerKey) -> bool {
        let ordered = self.workers.remove(&key);
        if let Some(traced) = self.traced.remove(&key) {
            traced.end(key, ordered.flatten(), Some("not launched"));
        }
        ordered.is_some()
    }
}
