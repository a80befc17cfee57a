//! Nodes that have tried to register and are not admitted.
//!
//! Kept in the leader's memory alone: an agent that is refused tries again within seconds, so the next leader knows
//! them soon, and nobody can fill the log by trying.
//!
//! **Invariant:** bounded, for all nodes and for those whose names begin alike, so that one certificate for many nodes
//! cannot hide the others.

use muster_types::{LogTime, Name, NodeSpec, Refusal};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Nodes at a time.
const PENDING_MAX: usize = 4_096;
/// Of them, those whose names have the same text before the first dot.
const PENDING_ALIKE_MAX: usize = 512;
/// One that has not tried for so long is forgotten: agents try every few seconds.
const SILENT_MS_MAX: u64 = 10 * 60 * 1_000;

/// A node that waits to be admitted.
#[derive(Clone, Debug)]
pub struct PendingNode {
    /// As it describes itself.
    pub spec: NodeSpec,
    /// When it first tried, by this replica's clock.
    pub first_seen: LogTime,
    /// When it last tried.
    pub last_seen: LogTime,
    /// Why it is not admitted.
    pub reason: String,
}

/// Nodes that wait to be admitted.
#[derive(Default)]
pub(crate) struct Pending {
    nodes: Mutex<BTreeMap<Name, PendingNode>>,
}

fn stem(name: &Name) -> &str {
    name.split('.').next().unwrap_or_default()
}

impl Pending {
    /// It has tried and was refused.
    pub(crate) fn note(&self, spec: NodeSpec, refusal: &Refusal, now: LogTime) {
        let mut nodes = self.nodes.lock();
        let reason = refusal.message.clone();
        if let Some(known) = nodes.get_mut(&spec.name) {
            *known = PendingNode { spec, first_seen: known.first_seen, last_seen: now, reason };
            return;
        }
        nodes.retain(|_, node| now.since_ms(node.last_seen) < SILENT_MS_MAX);
        let alike = nodes.keys().filter(|name| stem(name) == stem(&spec.name)).count();
        if nodes.len() < PENDING_MAX && alike < PENDING_ALIKE_MAX {
            let node = PendingNode { first_seen: now, last_seen: now, reason, spec };
            nodes.insert(node.spec.name.clone(), node);
        }
    }

    /// It was admitted, or nobody asks about it any more.
    pub(crate) fn forget(&self, name: &Name) {
        self.nodes.lock().remove(name);
    }

    /// Those that have tried lately, by name.
    pub(crate) fn list(&self, now: LogTime) -> Vec<PendingNode> {
        let nodes = self.nodes.lock();
        nodes.values().filter(|node| now.since_ms(node.last_seen) < SILENT_MS_MAX).cloned().collect()
    }

    /// One of them.
    pub(crate) fn get(&self, name: &Name) -> Option<PendingNode> {
        self.nodes.lock().get(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::host;
    use muster_types::RefusalCode;

    #[test]
    fn one_name_cannot_hide_the_others_and_the_silent_are_forgotten() {
        let pending = Pending::default();
        let refusal = Refusal::new(RefusalCode::NodeNotAdmitted, "nobody has approved it");
        for number in 0..PENDING_ALIKE_MAX + 10 {
            pending.note(host(&format!("evil.n{number}")), &refusal, LogTime(1_000));
        }
        pending.note(host("h1"), &refusal, LogTime(2_000));
        assert_eq!(pending.list(LogTime(2_000)).len(), PENDING_ALIKE_MAX + 1);
        pending.note(host("h1"), &refusal, LogTime(3_000));
        let known = pending.get(&crate::sample::name("h1")).expect("it has tried");
        assert_eq!((known.first_seen, known.last_seen), (LogTime(2_000), LogTime(3_000)));
        let later = LogTime(1_000 + SILENT_MS_MAX);
        assert_eq!(pending.list(later).len(), 1, "the others are silent");
        pending.note(host("h2"), &refusal, later);
        pending.forget(&crate::sample::name("h1"));
        assert_eq!(pending.nodes.lock().len(), 1);
    }
}
