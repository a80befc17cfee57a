//! What became of the attempts of a job.

use alloc::collections::BTreeMap;
use alloc::string::String;
use muster_types::{Artifacts, FailureClass, FencingToken, LogTime, NodeId, limits};
use serde::{Deserialize, Serialize};

/// How an attempt came to its end before its work was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of failure.
    pub class: FailureClass,
    /// The rank it began with, if it began with one.
    pub rank: Option<u32>,
    /// The node it happened on, if one is known.
    pub node: Option<NodeId>,
    /// What was found.
    pub detail: String,
    /// When the last of its workers had ended.
    pub at: LogTime,
    /// Which attempt of the job, from 1.
    pub attempt: u32,
    /// Its placement.
    pub token: FencingToken,
}

/// The last time that a job saved its work, in whatever attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// When.
    pub at: LogTime,
    /// In which attempt of the job, from 1.
    pub attempt: u32,
}

/// What became of a job's attempts. A job none of whose attempts failed and that never saved its work has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryRow {
    /// Failures by class.
    pub counts: BTreeMap<FailureClass, u32>,
    /// Failures in a row, without an attempt that made headway.
    pub streak: u32,
    /// The last one.
    pub last: Option<Failure>,
    /// Not to be placed again before.
    pub wait_until: Option<LogTime>,
    /// Nodes that it keeps away from, and until when; at most [`limits::AVOIDED_NODES_MAX`].
    pub avoided: BTreeMap<NodeId, LogTime>,
    /// When it last saved its work.
    pub saved: Option<Saved>,
    /// Ranks of the present placement that take much longer than their gang; at most [`limits::STRAGGLERS_MAX`].
    pub stragglers: BTreeMap<u32, Straggler>,
    /// What became of the files of workers that have ended, by rank; at most [`limits::ARTIFACT_WORKERS_MAX`].
    pub artifacts: BTreeMap<u32, RankArtifacts>,
}

/// What became of the files of the worker that had a rank last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankArtifacts {
    /// The placement that it was of.
    pub token: FencingToken,
    /// What was kept.
    pub artifacts: Artifacts,
}

/// A rank that takes much longer for its steps than its gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Straggler {
    /// How long, in thousandths of what they take the median rank.
    pub slow_milli: u32,
    /// Since when.
    pub since: LogTime,
}

impl RecoveryRow {
    /// Nodes that it keeps away from at a time, ascending.
    pub fn avoided_at(&self, now: LogTime) -> impl Iterator<Item = NodeId> {
        self.avoided.iter().filter(move |(_, until)| **until > now).map(|(node, _)| *node)
    }

    /// Keeps the time; of too many, the one that ends first goes.
    pub(crate) fn avoid(&mut self, node: NodeId, until: LogTime, now: LogTime) {
        self.avoided.retain(|_, until| *until > now);
        self.avoided.insert(node, until);
        while self.avoided.len() > limits::AVOIDED_NODES_MAX {
            let first = self.avoided.iter().min_by_key(|(node, until)| (**until, **node));
            let Some(first) = first.map(|(node, _)| *node) else { return };
            self.avoided.remove(&first);
        }
    }
}
