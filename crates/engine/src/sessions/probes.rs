//! Probes that run, and checks of placements that gather their nodes.

use muster_types::{FencingToken, JobId, NodeId, Refusal, RefusalCode};
use parking_lot::Mutex;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, mpsc};
use tokio::time::Instant;

use crate::sessions::messages::ProbeReport;

/// Probes at a time: they share networks.
const PROBES_MAX: usize = 8;

type Placement = (JobId, FencingToken);

type ReportSender = mpsc::Sender<(NodeId, ProbeReport)>;

/// The check of one placement.
#[derive(Default)]
struct Check {
    waiting: BTreeSet<NodeId>,
    changed: Arc<Notify>,
    /// Once it is over, who is at fault and how.
    verdict: Option<BTreeMap<NodeId, String>>,
}

/// Probes that run, and checks that gather their nodes.
pub(crate) struct Probes {
    next: AtomicU64,
    /// Keyed differently in every process: neither a number nor a key can be guessed.
    numbers: RandomState,
    keys: RandomState,
    running: Mutex<BTreeMap<u64, ReportSender>>,
    checks: Mutex<BTreeMap<Placement, Check>>,
    free: Semaphore,
    /// When nodes that are kept away are measured again.
    recheck: Mutex<BTreeMap<NodeId, Instant>>,
}

impl Default for Probes {
    fn default() -> Probes {
        Probes {
            next: AtomicU64::new(0),
            numbers: RandomState::new(),
            keys: RandomState::new(),
            running: Mutex::default(),
            checks: Mutex::default(),
            free: Semaphore::new(PROBES_MAX),
            recheck: Mutex::default(),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> parking_lot::MutexGuard<'_, T> {
    mutex.lock()
}

/// A probe that runs. It is taken out of the running ones however its future ends.
pub(crate) struct Running<'a> {
    probes: &'a Probes,
    pub(crate) probe: u64,
    /// What connections have to show.
    pub(crate) key: u128,
    /// What its nodes say.
    pub(crate) reports: mpsc::Receiver<(NodeId, ProbeReport)>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        locked(&self.probes.running).remove(&self.probe);
    }
}

/// What a node that waits for a check is to be told.
pub(crate) enum Waits {
    /// Nothing now.
    On,
    /// The check begins with it, and is notified of others that wait.
    First(Arc<Notify>),
    /// The check is over: why this node is at fault, if it is.
    Over(Option<String>),
}

impl Probes {
    /// A place for a probe.
    ///
    /// # Errors
    /// When as many run as may.
    pub(crate) fn enter(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        self.free.try_acquire().map_err(|_| {
            let text = format!("{PROBES_MAX} probes run already; try again in some seconds");
            Refusal::new(RefusalCode::Overloaded, text)
        })
    }

    /// A probe begins, of which at most `reports_max` reports wait.
    pub(crate) fn begin(&self, reports_max: usize) -> Running<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let probe = self.numbers.hash_one(number);
        let key = u128::from(self.keys.hash_one(number)) << 64 | u128::from(self.keys.hash_one(!number));
        let (heard, reports) = mpsc::channel(reports_max);
        locked(&self.running).insert(probe, heard);
        Running { probes: self, probe, key, reports }
    }

    /// A node says something of a probe. It is dropped where that is over, or the node says more than it may.
    pub(crate) fn heard(&self, probe: u64, node: NodeId, report: ProbeReport) {
        let heard = locked(&self.running).get(&probe).cloned();
        let _ = heard.map(|heard| heard.try_send((node, report)));
    }

    /// Whether a node that is kept away is to be measured again now. `is_away` says of which nodes that is remembered.
    pub(crate) fn is_due(
        &self,
        node: NodeId,
        now: Instant,
        every: Duration,
        is_away: impl Fn(NodeId) -> bool,
    ) -> bool {
        let mut recheck = locked(&self.recheck);
        recheck.retain(|node, _| is_away(*node));
        let at = recheck.entry(node).or_insert(now + every);
        let is_due = now >= *at;
        if is_due {
            *at = now + every;
        }
        is_due
    }

    /// A node waits for the check of a placement. `is_starting` says which placements are still checked; it is asked
    /// where this one is new.
    pub(crate) fn waits(
        &self,
        node: NodeId,
        placement: Placement,
        is_starting: impl Fn(&Placement) -> bool,
    ) -> Waits {
        let mut checks = locked(&self.checks);
        let known = checks.contains_key(&placement);
        if !known {
            if !is_starting(&placement) {
                return Waits::On;
            }
            checks.retain(|placement, _| is_starting(placement));
        }
        let check = checks.entry(placement).or_default();
        check.waiting.insert(node);
        check.changed.notify_one();
        match &check.verdict {
            Some(faults) => Waits::Over(faults.get(&node).cloned()),
            None if known => Waits::On,
            None => Waits::First(Arc::clone(&check.changed)),
        }
    }

    /// The nodes that wait for the check of a placement; none where it is not checked any more.
    pub(crate) fn waiting(&self, placement: Placement) -> Option<BTreeSet<NodeId>> {
        locked(&self.checks).get(&placement).map(|check| check.waiting.clone())
    }

    /// A check is over; the nodes that wait for it.
    pub(crate) fn conclude(
        &self,
        placement: Placement,
        faults: BTreeMap<NodeId, String>,
    ) -> Option<Vec<NodeId>> {
        let mut checks = locked(&self.checks);
        let check = checks.get_mut(&placement)?;
        check.verdict = Some(faults);
        Some(check.waiting.iter().copied().collect())
    }

    /// A placement is not checked any more.
    pub(crate) fn give_up(&self, placement: Placement) {
        locked(&self.checks).remove(&placement);
    }
}
