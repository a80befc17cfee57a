//! What is no capacity of a node in Muster, for pods that stand there hold it, or pods of others its disk: more at once, less only
//! after a while.
//!
//! A node is described again for each change of it, with a new session. A DaemonSet that is brought up to date ends its pod on each
//! node before it starts the next one, and that is no change of the node.
//!
//! **Invariant:** never less is kept back of a node than its pods hold now.

use super::objects::Amount;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// How long pods have to hold less before less is kept back.
const LOWER_WAIT: Duration = Duration::from_secs(300);
/// Disk is kept back in steps, so that not every small pod that comes changes a node.
const STORAGE_STEP_BYTES: u64 = 1 << 30;

/// What is kept back of one node.
#[derive(Clone, Debug)]
struct NodeReserve {
    amount: Amount,
    /// Pods have held less since then.
    less_since: Option<Instant>,
}

/// What is kept back of every node that has such pods.
#[derive(Debug, Default)]
pub(super) struct KeptBack {
    by_node: BTreeMap<String, NodeReserve>,
}

impl KeptBack {
    /// What is kept back of each node now that its pods hold this; no node without any.
    pub(super) fn update(
        &mut self,
        now: Instant,
        held: &BTreeMap<String, Amount>,
    ) -> BTreeMap<String, Amount> {
        let rounded = |amount: &Amount| Amount {
            storage_bytes: amount
                .storage_bytes
                .div_ceil(STORAGE_STEP_BYTES)
                .saturating_mul(STORAGE_STEP_BYTES),
            ..amount.clone()
        };
        let held: BTreeMap<&String, Amount> =
            held.iter().map(|(node, amount)| (node, rounded(amount))).collect();
        for (node, amount) in &held {
            let kept = || NodeReserve { amount: Amount::default(), less_since: None };
            self.by_node.entry((*node).clone()).or_insert_with(kept).amount.raise_to(amount);
        }
        let nothing = Amount::default();
        for (node, kept) in &mut self.by_node {
            let amount = held.get(node).unwrap_or(&nothing);
            if kept.amount == *amount {
                kept.less_since = None;
            } else if now.saturating_duration_since(*kept.less_since.get_or_insert(now)) >= LOWER_WAIT {
                *kept = NodeReserve { amount: amount.clone(), less_since: None };
            }
        }
        self.by_node.retain(|_, kept| !kept.amount.is_nothing());
        self.by_node.iter().map(|(node, kept)| (node.clone(), kept.amount.clone())).collect()
    }

    /// When less is to be kept back, where pods hold no more until then.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.by_node.values().filter_map(|kept| kept.less_since).min().map(|since| since + LOWER_WAIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_kept_back_at_once_and_less_after_a_while() {
        let begun = Instant::now();
        let mut kept = KeptBack::default();
        let mut after = |seconds: u64, cpu_milli: u64| {
            let amount = Amount { cpu_milli, ..Amount::default() };
            let all = [("n1".to_owned(), amount)].into_iter().filter(|(_, held)| !held.is_nothing());
            let held: BTreeMap<String, Amount> = all.collect();
            let found = kept.update(begun + Duration::from_secs(seconds), &held);
            (found.get("n1").map_or(0, |own| own.cpu_milli), kept.due_at().map(|at| at - begun))
        };
        assert_eq!(after(0, 250), (250, None));
        assert_eq!(after(1, 400), (400, None));
        // A pod is replaced: nothing changes.
        assert_eq!(after(10, 0), (400, Some(Duration::from_secs(310))));
        assert_eq!(after(20, 400), (400, None));
        // A DaemonSet is gone for good.
        assert_eq!(after(30, 250).0, 400);
        assert_eq!(after(329, 250).0, 400);
        assert_eq!(after(330, 250), (250, None));
        assert_eq!(after(340, 0).0, 250);
        assert_eq!(after(640, 0), (0, None));
    }

    #[test]
    fn disk_is_kept_back_in_steps() {
        let mut kept = KeptBack::default();
        let mut with = |storage_bytes: u64| {
            let amount = Amount { storage_bytes, ..Amount::default() };
            kept.update(Instant::now(), &[("n1".to_owned(), amount)].into())["n1"].storage_bytes
        };
        assert_eq!([1, 1 << 30, (1 << 30) + 1].map(&mut with), [1 << 30, 1 << 30, 2 << 30]);
    }
}
