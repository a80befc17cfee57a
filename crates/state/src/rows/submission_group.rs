//! Submission groups: jobs of one kind that a tenant submits together.

use alloc::vec::Vec;
use muster_journal::hash;
use muster_types::{JobId, JobSpec, LogTime, QueueKey};
use serde::{Deserialize, Serialize};

use super::class::GangClass;
use super::history::stem;

/// A job joins a group whose last member was submitted at most this long before it.
pub const BURST_GAP_MS: u64 = 60_000;

/// What the members of a submission group have in common; a hash, so that the rows are small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BurstKey(u64);

impl BurstKey {
    /// The key of a job: its tenant and tier, its name without trailing digits, what it asks for, and what
    /// its owner says of its time.
    #[must_use]
    pub fn of(spec: &JobSpec) -> BurstKey {
        BurstKey::of_request(spec, GangClass::request(spec))
    }

    /// The same with the class of the job: both are made of one hash of what it asks for.
    #[must_use]
    pub fn with_class(spec: &JobSpec) -> (BurstKey, GangClass) {
        let request = GangClass::request(spec);
        (BurstKey::of_request(spec, request), GangClass::of_request(request, spec))
    }

    pub(crate) fn of_request(spec: &JobSpec, request: u64) -> BurstKey {
        let times = (spec.deadline, spec.expected_run_ms, spec.run_time_limit_ms);
        let key = hash(&(spec.tier, &spec.tenant, stem(&spec.name), request, times));
        // The members stand at one place.
        let is_moved = spec.nice != 0 || spec.front.is_some();
        BurstKey(if is_moved { hash(&(key, spec.nice, spec.front)) } else { key })
    }
}

/// A submission group of two or more jobs, until the last of them is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BurstRow {
    /// What its members have in common.
    pub key: BurstKey,
    /// Its place in the order; the smaller goes first.
    pub turn: QueueKey,
    /// Members that are not over.
    pub members: u32,
    /// When the last of them was submitted.
    pub last_submitted: LogTime,
    /// Members that ran and ended, by the bucket of their run time: those that succeeded, and in the
    /// bucket behind it those that were stopped at their limit. Buckets ascending.
    pub ended: Vec<(u8, u32)>,
}

/// The submission group of a job as far as the order is concerned: its id and its turn, when it has a row.
pub(crate) type BurstTurn = Option<(JobId, QueueKey)>;
