//! How often reports of a node's health reach the log.
//!
//! An agent whose findings come and go would write a record each time. So the same report is taken over once in a while only, and
//! few different ones meanwhile; the first of them at once.
//!
//! **Invariant:** of one node at most [`REPORTS_MAX`] reports are taken over within [`APART`], and none of them twice.

use muster_types::NodeId;
use muster_types::health::HealthReport;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// Between two records of the same report.
pub(crate) const APART: Duration = Duration::from_secs(10);
/// Different reports of one node within that time.
pub(crate) const REPORTS_MAX: usize = 4;

/// The reports of each node that were taken over of late. It outlasts sessions: a new one is no way around it.
#[derive(Default)]
pub(crate) struct HealthPace {
    recent: Mutex<BTreeMap<NodeId, VecDeque<(Instant, HealthReport)>>>,
}

impl HealthPace {
    /// How long a report has to wait before it is taken over.
    pub(crate) fn wait(&self, node: NodeId, report: &HealthReport, now: Instant) -> Duration {
        let all = self.recent.lock();
        let Some(recent) = all.get(&node) else { return Duration::ZERO };
        let left = |since: Instant| APART.saturating_sub(now.saturating_duration_since(since));
        let same = recent.iter().filter(|(_, known)| known == report).map(|(since, _)| left(*since));
        let oldest = recent.front().filter(|_| recent.len() >= REPORTS_MAX).map(|(since, _)| left(*since));
        same.chain(oldest).max().unwrap_or_default()
    }

    /// One was taken over.
    pub(crate) fn note(&self, node: NodeId, report: HealthReport, now: Instant) {
        let mut all = self.recent.lock();
        let recent = all.entry(node).or_default();
        recent.retain(|(since, _)| now.saturating_duration_since(*since) < APART);
        while recent.len() >= REPORTS_MAX {
            recent.pop_front();
        }
        recent.push_back((now, report));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_report_waits_and_another_one_does_not_unless_there_were_many() {
        let pace = HealthPace::default();
        let (node, begun) = (NodeId(1), Instant::now());
        let report = |boot: u64| HealthReport { boot, ..HealthReport::default() };
        let wait = |boot: u64, after_s: u64| {
            pace.wait(node, &report(boot), begun + Duration::from_secs(after_s)).as_secs()
        };
        assert_eq!(wait(1, 0), 0, "the first one");
        pace.note(node, report(1), begun);
        assert_eq!((wait(2, 1), wait(1, 1), wait(1, 10)), (0, 9, 0));
        assert_eq!(pace.wait(NodeId(2), &report(1), begun), Duration::ZERO, "of another node");
        // One that alternates.
        pace.note(node, report(2), begun + Duration::from_secs(1));
        assert_eq!((wait(1, 2), wait(2, 2)), (8, 9));
        // One that always says something else.
        for boot in 3..=4 {
            pace.note(node, report(boot), begun + Duration::from_secs(2));
        }
        assert_eq!((wait(5, 3), wait(5, 10)), (7, 0));
        pace.note(node, report(5), begun + Duration::from_secs(30));
        assert_eq!((wait(6, 30), wait(5, 30)), (0, 10));
    }
}
