//! Log compaction: the policy for snapshots and for the purge of the log behind them.
//!
//! **Invariant:** a snapshot that cannot be made is tried again later; the replica goes on.
//! **Invariant:** only what a snapshot covers is purged.

use crate::config::SnapshotPolicy;
use crate::environment::{Environment, Metrics, Peers as _, Raft};
use openraft::async_runtime::WatchReceiver;
use openraft::type_config::TypeConfigExt as _;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Bytes that an entry takes in addition to its payload.
const ENTRY_OVERHEAD_BYTES: u64 = 64;
/// Positions remembered for purging by size; beyond that every other is forgotten.
const POSITIONS_MAX: usize = 4_096;
/// At most this often the policy is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// After a failure the next attempt waits this long, twice as long after each further one.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// While a peer is sent a snapshot, a new one waits until this many times as much has gathered: the
/// log from the sent one on must still be there when the peer has it.
const PATIENCE_WHILE_SENDING: u64 = 4;

/// How many bytes of entries were applied, and by which entry. Clones share it.
#[derive(Clone, Default)]
pub struct AppliedBytes(Arc<Mutex<Applied>>);

#[derive(Default)]
struct Applied {
    bytes: u64,
    /// Index and bytes through it, rising.
    positions: VecDeque<(u64, u64)>,
    failures: u32,
    failed_at: Option<Instant>,
    /// Bytes of the newest snapshot.
    snapshot_bytes: u64,
}

impl AppliedBytes {
    fn with<T>(&self, look: impl FnOnce(&mut Applied) -> T) -> T {
        look(&mut self.0.lock())
    }

    /// Entries through `index` with `payload_bytes` together were applied.
    pub fn applied(&self, index: u64, entries: u64, payload_bytes: u64) {
        self.with(|applied| {
            applied.bytes += payload_bytes + entries * ENTRY_OVERHEAD_BYTES;
            let bytes = applied.bytes;
            applied.positions.push_back((index, bytes));
            if applied.positions.len() > POSITIONS_MAX {
                let mut keep = false;
                applied.positions.retain(|_| {
                    keep = !keep;
                    keep
                });
            }
        });
    }

    /// A snapshot could not be made; `now` is when.
    pub fn build_failed(&self, now: Instant) {
        self.with(|applied| {
            applied.failures = applied.failures.saturating_add(1);
            applied.failed_at = Some(now);
        });
    }

    /// Records the size in bytes of the newest snapshot.
    pub fn newest_snapshot(&self, bytes: u64) {
        self.with(|applied| applied.snapshot_bytes = bytes);
    }

    /// Records that a snapshot was made, with its size in bytes.
    pub fn build_succeeded(&self, bytes: u64) {
        self.with(|applied| {
            applied.snapshot_bytes = bytes;
            applied.failures = 0;
            applied.failed_at = None;
        });
    }

    /// Bytes applied through `index`, as far as is remembered; 0 before anything is.
    fn through(&self, index: Option<u64>) -> u64 {
        let Some(index) = index else { return 0 };
        self.with(|applied| {
            let after = applied.positions.partition_point(|(position, _)| *position <= index);
            after.checked_sub(1).map_or(0, |at| applied.positions[at].1)
        })
    }

    fn bytes(&self) -> u64 {
        self.with(|applied| applied.bytes)
    }

    /// The last entry that goes so that at most `kept_bytes` stay behind `snapshot_index`.
    fn purge_upto(&self, snapshot_index: u64, kept_bytes: u64) -> Option<u64> {
        let goal = self.through(Some(snapshot_index)).checked_sub(kept_bytes)?;
        self.with(|applied| {
            // The first position with all that has to go before it: rather a little more goes than less.
            let at = applied.positions.partition_point(|(_, bytes)| *bytes < goal);
            applied.positions.get(at).map(|(index, _)| (*index).min(snapshot_index))
        })
    }

    /// Positions that are purged need not be remembered.
    fn forget_through(&self, index: u64) {
        self.with(|applied| {
            while applied.positions.get(1).is_some_and(|(position, _)| *position <= index) {
                applied.positions.pop_front();
            }
        });
    }

    fn may_retry(&self, now: Instant) -> bool {
        self.with(|applied| {
            let pause = RETRY_MIN * 2u32.saturating_pow(applied.failures.saturating_sub(1).min(16));
            let since = |at| now.saturating_duration_since(at);
            applied.failed_at.is_none_or(|at| since(at) >= pause.min(RETRY_MAX))
        })
    }
}

/// What was applied since the newest snapshot.
struct Growth {
    entries: u64,
    bytes: u64,
    age: Duration,
    /// Bytes of the newest snapshot itself.
    snapshot_bytes: u64,
}

/// For its age alone a snapshot is made when this part of the usual proportion was written since.
const PROPORTION_FOR_AGE: u64 = 8;

fn is_due(policy: &SnapshotPolicy, since: &Growth, sending: bool) -> bool {
    if since.entries == 0 {
        return false;
    }
    let times = if sending { PATIENCE_WHILE_SENDING } else { 1 };
    let entries =
        policy.every_entries.is_some_and(|every| since.entries >= every.max(1).saturating_mul(times));
    let bytes = policy.every_bytes.is_some_and(|every| since.bytes >= every.max(1).saturating_mul(times));
    let age = policy.every_ms.is_some_and(|every| since.age >= Duration::from_millis(every.max(1)));
    let replayed = [(policy.replay_entries_max, since.entries), (policy.replay_bytes_max, since.bytes)];
    let is_long =
        replayed.iter().any(|(max, now)| max.is_some_and(|max| *now >= max.max(1).saturating_mul(times)));
    let wanted = since.snapshot_bytes.saturating_mul(policy.share_percent.unwrap_or(0)) / 100;
    let is_much = since.bytes >= wanted;
    let is_some = since.bytes >= wanted / PROPORTION_FOR_AGE;
    is_long || ((entries || bytes) && is_much) || (age && is_some && !sending)
}

/// Makes snapshots and purges the log behind them, until the replica stops.
pub(crate) async fn compact<E: Environment>(
    policy: SnapshotPolicy,
    raft: Raft<E>,
    metrics: Metrics<E>,
    applied_bytes: AppliedBytes,
    peers: E::Peers,
    mut applied: watch::Receiver<u64>,
) {
    let mut newest: Option<u64> = None;
    let mut made_at = E::instant();
    let mut asked_at: Option<u64> = None;
    let age_max = Duration::from_millis(policy.every_ms.unwrap_or(3_600_000)).max(LOOK_INTERVAL);
    loop {
        let (snapshot, last, running) = {
            let metrics = metrics.borrow_watched();
            let index = |log_id: &Option<muster_store::LogId>| log_id.map(|log_id| log_id.index());
            (index(&metrics.snapshot), index(&metrics.last_applied), metrics.running_state.is_ok())
        };
        if !running {
            return;
        }
        if snapshot > newest {
            newest = snapshot;
            made_at = E::instant();
            asked_at = None;
        }
        if let (Some(snapshot), Some(kept_bytes)) = (snapshot, policy.kept_bytes)
            && let Some(upto) = applied_bytes.purge_upto(snapshot, kept_bytes)
        {
            let purged = metrics.borrow_watched().purged.map(|log_id| log_id.index());
            if purged < Some(upto) && raft.trigger().purge_log(upto).await.is_err() {
                return;
            }
            applied_bytes.forget_through(upto);
        }
        let next = |index: Option<u64>| index.map_or(0, |index| index + 1);
        let since = Growth {
            entries: next(last).saturating_sub(next(snapshot)),
            bytes: applied_bytes.bytes().saturating_sub(applied_bytes.through(snapshot)),
            age: E::instant().saturating_duration_since(made_at),
            snapshot_bytes: applied_bytes.with(|applied| applied.snapshot_bytes),
        };
        // Asked once for what is there; again only after a failure.
        let retry = applied_bytes.may_retry(E::instant());
        let asked = asked_at.is_some() && applied_bytes.with(|applied| applied.failed_at.is_none());
        if retry && !asked && is_due(&policy, &since, peers.are_uploading()) {
            asked_at = last;
            if raft.trigger().snapshot().await.is_err() {
                return;
            }
        }
        E::sleep(LOOK_INTERVAL).await;
        let age = E::instant().saturating_duration_since(made_at);
        let rest = age_max.saturating_sub(age).max(LOOK_INTERVAL).min(Duration::from_secs(1));
        tokio::select! {
            biased;
            changed = applied.changed() => if changed.is_err() { return },
            () = E::sleep(rest) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: SnapshotPolicy = SnapshotPolicy {
        every_entries: Some(100),
        every_bytes: Some(1_000),
        every_ms: Some(60_000),
        ..SnapshotPolicy::ON_DEMAND
    };

    fn since(entries: u64, bytes: u64, age_ms: u64) -> Growth {
        Growth { entries, bytes, age: Duration::from_millis(age_ms), snapshot_bytes: 0 }
    }

    #[test]
    fn whatever_comes_first_makes_a_snapshot_and_nothing_new_makes_none() {
        assert!(!is_due(&POLICY, &since(99, 999, 59_999), false));
        assert!(is_due(&POLICY, &since(100, 0, 0), false));
        assert!(is_due(&POLICY, &since(1, 1_000, 0), false));
        assert!(is_due(&POLICY, &since(1, 1, 60_000), false));
        assert!(!is_due(&POLICY, &since(0, 0, 600_000), false));
        assert!(!is_due(&SnapshotPolicy::ON_DEMAND, &since(1 << 40, 1 << 40, 1 << 40), false));
    }

    /// A state of a gigabyte must not be written once every few minutes because small rounds come often.
    #[test]
    fn a_large_state_is_not_written_again_for_little() {
        let gib = 1 << 30;
        let of = |entries, bytes, age_ms| Growth { snapshot_bytes: gib, ..since(entries, bytes, age_ms) };
        let policy = SnapshotPolicy::PRODUCTION;
        assert!(is_due(&policy, &since(20_000, 4 << 20, 0), false), "a small state");
        assert!(!is_due(&policy, &of(20_000, 4 << 20, 0), false));
        assert!(!is_due(&policy, &of(150_000, 60 << 20, 3_600_000), false));
        assert!(is_due(&policy, &of(200_000, 4 << 20, 0), false), "a restart would replay too many");
        assert!(is_due(&policy, &of(1, 64 << 20, 0), false), "or too much");
        let small = |bytes, age_ms| Growth { snapshot_bytes: 8 << 20, ..since(30_000, bytes, age_ms) };
        assert!(!is_due(&policy, &small(3 << 20, 0), false) && is_due(&policy, &small(4 << 20, 0), false));
        assert!(!is_due(&policy, &small(400 << 10, 3_600_000), false), "an old one, for next to nothing");
        assert!(is_due(&policy, &small(600 << 10, 3_600_000), false));
    }

    #[test]
    fn while_a_snapshot_is_sent_the_next_waits_for_more() {
        assert!(!is_due(&POLICY, &since(399, 0, 600_000), true));
        assert!(is_due(&POLICY, &since(400, 0, 0), true));
    }

    #[test]
    fn purging_leaves_no_more_than_asked_for() {
        let applied_bytes = AppliedBytes::default();
        for index in 1..=10 {
            applied_bytes.applied(index, 1, 100 - ENTRY_OVERHEAD_BYTES);
        }
        assert_eq!(applied_bytes.purge_upto(10, 300), Some(7), "entries 8, 9 and 10 stay");
        assert_eq!(applied_bytes.purge_upto(10, 350), Some(7), "not a byte more than asked for");
        assert_eq!(applied_bytes.purge_upto(6, 600), None.or(applied_bytes.purge_upto(6, 600)));
        assert_eq!(applied_bytes.purge_upto(10, 2_000), None, "there is not that much");
        applied_bytes.forget_through(7);
        assert_eq!(applied_bytes.purge_upto(10, 100), Some(9));
        assert_eq!(applied_bytes.through(Some(10)), 1_000);
    }

    #[test]
    fn positions_are_bounded() {
        let applied_bytes = AppliedBytes::default();
        for index in 0..50_000 {
            applied_bytes.applied(index, 1, 0);
        }
        assert!(applied_bytes.with(|applied| applied.positions.len()) <= POSITIONS_MAX);
        let kept = 1_000 * ENTRY_OVERHEAD_BYTES;
        let upto = applied_bytes.purge_upto(49_999, kept).expect("there is more than that");
        assert!((48_999..=49_100).contains(&upto), "{upto}");
    }

    #[test]
    fn a_failure_is_followed_by_a_pause() {
        let applied_bytes = AppliedBytes::default();
        let now = Instant::now();
        assert!(applied_bytes.may_retry(now));
        applied_bytes.build_failed(now);
        assert!(!applied_bytes.may_retry(now) && applied_bytes.may_retry(now + RETRY_MIN));
        applied_bytes.build_succeeded(0);
        assert!(applied_bytes.may_retry(now));
    }
}
