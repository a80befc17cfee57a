//! Estimates that take long to make for a large fleet. They are made once for a state, apart from the pages that show them.
//!
//! A page waits a moment for the estimate of its state. Where that takes longer, the page shows the last one, with the record of
//! the log that it is of, and those who ask next have the one that is being made meanwhile.
//!
//! **Invariant:** of one thing one estimate is made at a time, and of all things of a kind no more than a bound, however many
//! readers ask: nobody's turn at what is costly is needed for it.
//! **Invariant:** none is shown that is older than [`SHOWN_MAX`] or of another generation of the cluster.

use muster_engine::Reading;
use muster_page::EstimateOf;
use muster_types::LogIndex;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a page waits for one. Tests have slow machines, and are not about how long it takes.
const WAIT_MAX: Duration = Duration::from_millis(if cfg!(test) { 5_000 } else { 100 });
/// For how long one serves those who ask for the same state: it is of the time at which it was made as well.
const SERVES_MAX: Duration = Duration::from_secs(2);
/// For how long it is shown where there is no newer one.
const SHOWN_MAX: Duration = Duration::from_secs(60);

/// Which state an estimate is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StateVersion {
    generation: u32,
    log_index: LogIndex,
}

/// One that was made.
#[derive(Debug)]
struct Made<T> {
    version: StateVersion,
    at: Instant,
    value: Arc<T>,
}

impl<T> Made<T> {
    /// Whether it is as good as one that is made now, or better.
    fn serves(&self, wanted: StateVersion) -> bool {
        self.version.generation == wanted.generation
            && self.version.log_index >= wanted.log_index
            && self.at.elapsed() <= SERVES_MAX
    }

    fn may_be_shown(&self, wanted: StateVersion) -> bool {
        self.version.generation == wanted.generation && self.at.elapsed() <= SHOWN_MAX
    }
}

#[derive(Debug)]
struct Slots<K, T> {
    made: BTreeMap<K, Made<T>>,
    making: BTreeSet<K>,
}

#[derive(Debug)]
struct Inner<K, T> {
    kept_max: usize,
    making_max: usize,
    slots: Mutex<Slots<K, T>>,
    /// Whenever the making of one has ended.
    changed: Notify,
}

/// Estimates of things of one kind. Clones share them.
#[derive(Debug)]
pub(super) struct Estimates<K, T>(Arc<Inner<K, T>>);

impl<K, T> Clone for Estimates<K, T> {
    fn clone(&self) -> Self {
        Estimates(Arc::clone(&self.0))
    }
}

/// One as it is shown.
#[derive(Debug)]
pub(super) struct Estimate<T> {
    pub(super) value: Arc<T>,
    /// The last record that it knows of.
    pub(super) log_index: LogIndex,
}

/// What a page says of the state that its estimate is of.
pub(super) fn as_of<T>(estimate: Option<&Estimate<T>>, page: LogIndex) -> EstimateOf {
    match estimate {
        None => EstimateOf::Unmade,
        Some(estimate) if estimate.log_index < page => EstimateOf::Earlier(estimate.log_index.0),
        Some(_) => EstimateOf::Page,
    }
}

impl<K: Ord + Clone + Send + 'static, T: Send + Sync + 'static> Estimates<K, T> {
    /// None yet. At most `kept_max` are kept, and `making_max` are made at a time.
    pub(super) fn new(kept_max: usize, making_max: usize) -> Estimates<K, T> {
        let slots = Mutex::new(Slots { made: BTreeMap::new(), making: BTreeSet::new() });
        Estimates(Arc::new(Inner { kept_max, making_max, slots, changed: Notify::new() }))
    }

    /// The estimate of a thing for a state, or the last one that was made; none where there is none yet. `make` makes one of that
    /// state, to its end also where nobody waits for it any more.
    pub(super) async fn get(
        &self,
        key: K,
        state: &Reading,
        make: impl Future<Output = Option<T>> + Send + 'static,
    ) -> Option<Estimate<T>> {
        let wanted = StateVersion { generation: state.generation(), log_index: state.log_index() };
        self.wait(key, wanted, WAIT_MAX, make).await
    }

    async fn wait(
        &self,
        key: K,
        wanted: StateVersion,
        wait_max: Duration,
        make: impl Future<Output = Option<T>> + Send + 'static,
    ) -> Option<Estimate<T>> {
        let deadline = Instant::now() + wait_max;
        let mut make = Some(make);
        loop {
            let mut changed = pin!(self.0.changed.notified());
            // Nothing that happens from here on is missed.
            changed.as_mut().enable();
            if let Some(made) = self.made(&key, |made| made.serves(wanted)) {
                return Some(made);
            }
            if make.is_some() {
                if let Some(making) = self.begin(&key)
                    && let Some(make) = make.take()
                {
                    tokio::spawn(async move {
                        if let Some(value) = make.await {
                            making.keep(wanted, value);
                        }
                    });
                }
            } else if !self.0.slots.lock().making.contains(&key) {
                // It could not be made.
                break;
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                break;
            }
        }
        self.made(&key, |made| made.may_be_shown(wanted))
    }

    fn made(&self, key: &K, suits: impl Fn(&Made<T>) -> bool) -> Option<Estimate<T>> {
        let slots = self.0.slots.lock();
        let made = slots.made.get(key).filter(|made| suits(made))?;
        Some(Estimate { value: Arc::clone(&made.value), log_index: made.version.log_index })
    }

    /// A place to make one, unless it is being made or too many others are.
    fn begin(&self, key: &K) -> Option<Making<K, T>> {
        let mut slots = self.0.slots.lock();
        if slots.making.len() >= self.0.making_max || !slots.making.insert(key.clone()) {
            return None;
        }
        Some(Making { inner: Arc::clone(&self.0), key: key.clone() })
    }
}

/// One that is being made. Its place is given back with it, also after a panic.
struct Making<K: Ord + Clone, T> {
    inner: Arc<Inner<K, T>>,
    key: K,
}

impl<K: Ord + Clone, T> Making<K, T> {
    fn keep(self, version: StateVersion, value: T) {
        let mut slots = self.inner.slots.lock();
        slots.made.insert(self.key.clone(), Made { version, at: Instant::now(), value: Arc::new(value) });
        while slots.made.len() > self.inner.kept_max {
            let oldest = slots.made.iter().min_by_key(|(_, made)| made.at).map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { break };
            slots.made.remove(&oldest);
        }
    }
}

impl<K: Ord + Clone, T> Drop for Making<K, T> {
    fn drop(&mut self) {
        self.inner.slots.lock().making.remove(&self.key);
        self.inner.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use tokio::sync::oneshot;

    const LONG: Duration = Duration::from_secs(60);

    fn at(log_index: u64) -> StateVersion {
        StateVersion { generation: 1, log_index: LogIndex(log_index) }
    }

    /// As if it was so much later.
    fn age<K: Ord, T>(estimates: &Estimates<K, T>, by: Duration) {
        for made in estimates.0.slots.lock().made.values_mut() {
            made.at = made.at.checked_sub(by).expect("the machine has run for longer");
        }
    }

    fn shown(estimate: Option<Estimate<&'static str>>) -> Option<(&'static str, u64)> {
        estimate.map(|estimate| (*estimate.value, estimate.log_index.0))
    }

    #[tokio::test]
    async fn one_is_made_once_for_a_state_and_serves_a_while() {
        let estimates = Estimates::new(4, 1);
        let get = |log_index, value| {
            let estimates = estimates.clone();
            async move { shown(estimates.wait((), at(log_index), LONG, ready(Some(value))).await) }
        };
        assert_eq!(get(7, "first").await, Some(("first", 7)));
        assert_eq!(get(7, "again").await, Some(("first", 7)));
        assert_eq!(get(6, "of a state before").await, Some(("first", 7)));
        assert_eq!(get(8, "next").await, Some(("next", 8)));
        age(&estimates, SERVES_MAX);
        assert_eq!(get(8, "later").await, Some(("later", 8)));
    }

    #[tokio::test]
    async fn those_who_cannot_wait_have_the_last_one_while_the_next_is_made() {
        let estimates = Estimates::new(4, 1);
        let never = || pending::<Option<&'static str>>();
        let (made, making) = oneshot::channel();
        let slow = async move { making.await.ok() };
        assert_eq!(shown(estimates.wait((), at(1), Duration::ZERO, slow).await), None, "there is none yet");
        assert_eq!(shown(estimates.wait((), at(2), Duration::ZERO, never()).await), None, "it is being made");
        made.send("first").expect("it is waited for");
        assert_eq!(shown(estimates.wait((), at(1), LONG, never()).await), Some(("first", 1)));
        assert_eq!(shown(estimates.wait((), at(2), Duration::ZERO, never()).await), Some(("first", 1)));
        let first = Estimate { value: Arc::new(()), log_index: LogIndex(1) };
        assert_eq!(as_of(Some(&first), LogIndex(2)), EstimateOf::Earlier(1));
        assert_eq!(as_of(Some(&first), LogIndex(1)), EstimateOf::Page);
        let other = StateVersion { generation: 2, ..at(1) };
        let of_other = estimates.wait((), other, Duration::ZERO, never()).await;
        assert_eq!(shown(of_other), None, "of another generation");
        age(&estimates, SHOWN_MAX);
        assert_eq!(shown(estimates.wait((), at(2), Duration::ZERO, never()).await), None, "it is too old");
    }

    #[tokio::test]
    async fn so_many_are_made_at_a_time_and_kept_and_a_panic_takes_no_place() {
        let estimates = Estimates::new(2, 1);
        let panics = async { ready(None::<&'static str>).await.or_else(|| panic!("on purpose")) };
        assert_eq!(shown(estimates.wait(1, at(1), LONG, panics).await), None);
        assert_eq!(shown(estimates.wait(1, at(1), LONG, ready(None)).await), None, "it was not made");
        for key in 1..=4 {
            let made = estimates.wait(key, at(1), LONG, ready(Some("made"))).await;
            assert_eq!(shown(made), Some(("made", 1)), "{key}");
        }
        let kept: Vec<i32> = estimates.0.slots.lock().made.keys().copied().collect();
        assert_eq!(kept, [3, 4]);
        assert_eq!(shown(estimates.wait(5, at(1), Duration::ZERO, pending()).await), None);
        assert_eq!(shown(estimates.wait(6, at(1), Duration::ZERO, ready(Some("no place"))).await), None);
        assert_eq!(estimates.0.slots.lock().making.len(), 1);
    }
}
