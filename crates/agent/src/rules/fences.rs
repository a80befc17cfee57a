//! The newest token that a node has seen of each job.

use muster_types::{FencingToken, JobId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What is remembered of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The newest token seen.
    pub token: FencingToken,
    /// Ranks of the start order with this token; empty when only a stop was seen.
    pub ranks: BTreeSet<u32>,
}

/// What a token is against what was seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenOrder {
    /// Newer than all: may be launched.
    Newer,
    /// The one that is already persisted: never launched a second time.
    Same,
    /// Older than the persisted one.
    Older,
}

/// Fences by job. What is remembered cannot grow without end: the lowest tokens are folded into one **floor** below
/// which no unknown job starts.
#[derive(Clone, Debug)]
pub struct FenceTable {
    jobs: BTreeMap<JobId, Fence>,
    floor: FencingToken,
    jobs_max: usize,
}

impl FenceTable {
    /// Nothing seen; at most `jobs_max` are kept one by one, and an eighth more between two foldings.
    #[must_use]
    pub fn new(jobs_max: usize) -> FenceTable {
        FenceTable { jobs: BTreeMap::new(), floor: FencingToken::default(), jobs_max: jobs_max.max(1) }
    }

    /// A fence as it was kept, whatever is known.
    pub fn restore(&mut self, job: JobId, fence: Fence) {
        self.jobs.insert(job, fence);
    }

    /// A floor as it was kept: it takes back what is below it.
    pub fn restore_floor(&mut self, floor: FencingToken) {
        self.floor = floor;
        self.jobs.retain(|_, fence| fence.token > floor);
    }

    /// What `token` is for `job`.
    #[must_use]
    pub fn standing(&self, job: JobId, token: FencingToken) -> TokenOrder {
        match self.jobs.get(&job) {
            Some(fence) if token == fence.token => TokenOrder::Same,
            Some(fence) if token < fence.token => TokenOrder::Older,
            Some(_) => TokenOrder::Newer,
            None if token <= self.floor => TokenOrder::Older,
            None => TokenOrder::Newer,
        }
    }

    /// What is remembered of a job.
    #[must_use]
    pub fn of(&self, job: JobId) -> Option<&Fence> {
        self.jobs.get(&job)
    }

    /// All fences, by job.
    #[must_use]
    pub fn jobs(&self) -> &BTreeMap<JobId, Fence> {
        &self.jobs
    }

    /// No job is known from below this token, except those that are remembered one by one.
    #[must_use]
    pub fn floor(&self) -> FencingToken {
        self.floor
    }

    /// Takes a newer token with its ranks; an older or equal one changes nothing. Whether it was taken.
    pub fn raise(&mut self, job: JobId, fence: Fence) -> bool {
        let newer = self.standing(job, fence.token) == TokenOrder::Newer;
        if newer {
            self.jobs.insert(job, fence);
        }
        newer
    }

    /// Folds the lowest tokens but that of `keep` into the floor, once there are too many. Whether it did.
    pub fn fold(&mut self, keep: JobId) -> bool {
        // An eighth of slack, so that the sort is paid once in a while.
        if self.jobs.len() <= self.jobs_max + self.jobs_max / 8 {
            return false;
        }
        let mut by_token: Vec<(FencingToken, JobId)> =
            self.jobs.iter().filter(|(job, _)| **job != keep).map(|(job, f)| (f.token, *job)).collect();
        by_token.sort_unstable();
        let surplus = self.jobs.len() - self.jobs_max;
        let out = &by_token[..surplus.min(by_token.len())];
        if let Some((highest, _)) = out.last() {
            self.floor = self.floor.max(*highest);
        }
        for (_, job) in out {
            self.jobs.remove(job);
        }
        true
    }
}
