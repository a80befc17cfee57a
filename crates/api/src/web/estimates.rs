//! Estimates that take long to make for a large fleet. They are made once for a state, apart from the pages that show them.
//!
//! A page waits a moment for the estimate of its state. Where that takes longer, the page shows the last one, with the record of
//! the log that it is of, and those who ask next have the one that is being made meanwhile.
//!
//! **Invariant:** of one thing one estimate is made at a time, and of all things of a kind no more than a bound, however many
//! readers ask: no page waits for its reader's turn at what is costly because of it.
//! **Invariant:** accounts take turns at having one made, and none has more made at a time than its share. What is kept is bounded,
//! and what an account asks for takes the place of what the same account asked for before, unless another one has more.
//! **Invariant:** none is shown that is older than [`SHOWN_MAX`] or of another generation of the cluster.

use muster_engine::Reading;
use muster_page::EstimateOf;
use muster_types::LogIndex;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::shares::Account;
use crate::turns::{QueuePermit, Turns};

/// How long a page waits for one. Tests have slow machines, and are not about how long it takes.
const WAIT_MAX: Duration = Duration::from_millis(if cfg!(test) { 5_000 } else { 100 });
/// For how long one serves those who ask for the same state: it is of the time at which it was made as well.
const SERVES_MAX: Duration = Duration::from_secs(2);
/// For how long it is shown where there is no newer one.
const SHOWN_MAX: Duration = Duration::from_secs(60);
/// Readers of one account that wait for its turn at making one; others of it are shown the last one at once.
const WAITING_MAX: usize = 64;

/// Which state an estimate is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StateVersion {
    generation: u32,
    log_index: LogIndex,
}

/// One that was made.
#[derive(Debug)]
struct Made<T> {
    /// Who asked for it first, while one of it is kept.
    account: Account,
    version: StateVersion,
    at: Instant,
    /// About what it takes in memory.
    bytes: usize,
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

    fn shown(&self, wanted: StateVersion) -> Estimate<T> {
        let is_current = self.serves(wanted);
        Estimate { value: Arc::clone(&self.value), log_index: self.version.log_index, is_current }
    }
}

#[derive(Debug)]
struct Slots<K, T> {
    made: BTreeMap<K, Made<T>>,
    making: BTreeSet<K>,
    /// When the making of one failed last: none was made since.
    failed: BTreeMap<K, Instant>,
}

impl<K: Ord + Clone, T> Slots<K, T> {
    /// Lets go of the oldest one of the account that has the most, but not of the newest, for which somebody waits; whether there
    /// was one.
    fn let_go(&mut self, newest: &K, weight: impl Fn(&Made<T>) -> usize) -> bool {
        let mut weights: HashMap<Account, usize> = HashMap::new();
        for made in self.made.values() {
            *weights.entry(made.account).or_default() += weight(made);
        }
        let others = self.made.iter().filter(|(key, _)| *key != newest);
        let heaviest = others.max_by_key(|(_, made)| (weights.get(&made.account).copied(), Reverse(made.at)));
        let gone = heaviest.map(|(key, _)| key.clone());
        gone.is_some_and(|gone| self.made.remove(&gone).is_some())
    }

    fn bytes(&self) -> usize {
        self.made.values().map(|made| made.bytes).sum()
    }

    /// Keeps in mind that the making of one has failed, of no more than `kept_max` of them.
    fn note_failure(&mut self, key: K, kept_max: usize) {
        self.failed.retain(|_, at| at.elapsed() <= SHOWN_MAX);
        self.failed.insert(key, Instant::now());
        while self.failed.len() > kept_max {
            let oldest = self.failed.iter().min_by_key(|(_, at)| **at).map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { return };
            self.failed.remove(&oldest);
        }
    }

    /// Why there is none to show of a thing.
    fn why_none(&self, key: &K) -> Unmade {
        match self.failed.get(key) {
            Some(at) if at.elapsed() <= SHOWN_MAX => Unmade::Failed,
            _ => Unmade::BeingMade,
        }
    }
}

/// What is known of a thing for those who ask for a state.
enum Known<T> {
    Serves(Estimate<T>),
    BeingMade,
    Nothing,
}

#[derive(Debug)]
struct Inner<K, T> {
    kept_max: usize,
    bytes_max: usize,
    weigh: fn(&T) -> usize,
    /// Turns at making one.
    turns: Turns,
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
    /// Whether it is as good as one that is made now; else a newer one is being made.
    is_current: bool,
}

/// Why there is none to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Unmade {
    /// One is being made, or is made once its reader's turn comes.
    #[default]
    BeingMade,
    /// It could not be made when that was last tried.
    Failed,
}

impl Unmade {
    /// What a page says of that.
    pub(super) fn shown(self) -> EstimateOf {
        match self {
            Unmade::BeingMade => EstimateOf::Unmade,
            Unmade::Failed => EstimateOf::Failed,
        }
    }
}

/// One that is shown, or why there is none.
pub(super) type Found<T> = Result<Estimate<T>, Unmade>;

/// What a page says of the state that its estimate is of.
pub(super) fn as_of<T>(found: &Found<T>, page: LogIndex) -> EstimateOf {
    match found {
        Err(unmade) => unmade.shown(),
        Ok(estimate) if estimate.log_index < page || !estimate.is_current => {
            EstimateOf::Earlier(estimate.log_index.0)
        }
        Ok(_) => EstimateOf::Page,
    }
}

impl<K: Ord + Clone + Send + 'static, T: Send + Sync + 'static> Estimates<K, T> {
    /// None yet. At most `kept_max` are kept, and `making_max` are made at a time, of them `each_max` for one account.
    pub(super) fn new(kept_max: usize, making: (usize, usize)) -> Estimates<K, T> {
        Estimates::weighed((kept_max, usize::MAX), making, |_| 0)
    }

    /// The same where one may be large: those that are kept have at most `bytes_max` by what `weigh` says of each, or there is one.
    pub(super) fn weighed(
        (kept_max, bytes_max): (usize, usize),
        (making_max, each_max): (usize, usize),
        weigh: fn(&T) -> usize,
    ) -> Estimates<K, T> {
        let slots = Slots { made: BTreeMap::new(), making: BTreeSet::new(), failed: BTreeMap::new() };
        let slots = Mutex::new(slots);
        let turns = Turns::new(making_max, each_max);
        Estimates(Arc::new(Inner { kept_max, bytes_max, weigh, turns, slots, changed: Notify::new() }))
    }

    /// The estimate of a thing for a state, or the last one that was made; else why there is none. `make` makes one of that
    /// state in a turn of the account, to its end also where nobody waits for it any more; it may panic.
    pub(super) async fn get(
        &self,
        (account, key): (Account, K),
        state: &Reading,
        make: impl Future<Output = Option<T>> + Send + 'static,
    ) -> Found<T> {
        let wanted = StateVersion { generation: state.generation(), log_index: state.log_index() };
        self.wait((account, key), wanted, WAIT_MAX, make).await
    }

    async fn wait(
        &self,
        (account, key): (Account, K),
        wanted: StateVersion,
        wait_max: Duration,
        make: impl Future<Output = Option<T>> + Send + 'static,
    ) -> Found<T> {
        let mut over = pin!(tokio::time::sleep(wait_max));
        let mut turn = pin!(self.turn(account));
        let mut make = Some(make);
        loop {
            let mut changed = pin!(self.0.changed.notified());
            // Nothing that happens from here on is missed.
            changed.as_mut().enable();
            let is_being_made = match self.look(&key, wanted) {
                Known::Serves(made) => return Ok(made),
                Known::BeingMade => true,
                Known::Nothing => false,
            };
            if is_being_made {
                // A turn that nobody takes would be missing to others.
                turn.set(self.turn(account));
            } else if make.is_none() {
                // It could not be made.
                break;
            }
            tokio::select! {
                biased;
                permit = &mut turn, if !is_being_made => {
                    // None where too many readers of the account wait already.
                    let Some(permit) = permit else { break };
                    if let Some(making) = self.begin((account, &key), wanted, permit)
                        && let Some(make) = make.take()
                    {
                        tokio::spawn(async move {
                            if let Some(value) = make.await {
                                making.keep(wanted, value);
                            }
                        });
                    } else {
                        turn.set(self.turn(account));
                    }
                }
                () = &mut changed => {}
                () = &mut over => break,
            }
        }
        let slots = self.0.slots.lock();
        let last = slots.made.get(&key).filter(|made| made.may_be_shown(wanted));
        last.map(|last| last.shown(wanted)).ok_or_else(|| slots.why_none(&key))
    }

    fn turn(&self, account: Account) -> impl Future<Output = Option<QueuePermit>> {
        self.0.turns.enter(account, 1, WAITING_MAX)
    }

    fn look(&self, key: &K, wanted: StateVersion) -> Known<T> {
        let slots = self.0.slots.lock();
        match slots.made.get(key) {
            Some(made) if made.serves(wanted) => Known::Serves(made.shown(wanted)),
            _ if slots.making.contains(key) => Known::BeingMade,
            _ => Known::Nothing,
        }
    }

    /// Begins to make one in a turn, unless it is being made or was made meanwhile.
    fn begin(
        &self,
        (account, key): (Account, &K),
        wanted: StateVersion,
        turn: QueuePermit,
    ) -> Option<Making<K, T>> {
        let mut slots = self.0.slots.lock();
        let is_made = slots.made.get(key).is_some_and(|made| made.serves(wanted));
        if is_made || !slots.making.insert(key.clone()) {
            return None;
        }
        Some(Making { inner: Arc::clone(&self.0), account, key: key.clone(), is_kept: false, _turn: turn })
    }
}

/// One that is being made. Its place is given back with it, also after a panic.
struct Making<K: Ord + Clone, T> {
    inner: Arc<Inner<K, T>>,
    account: Account,
    key: K,
    /// Whether it was made.
    is_kept: bool,
    _turn: QueuePermit,
}

impl<K: Ord + Clone, T> Making<K, T> {
    fn keep(mut self, version: StateVersion, value: T) {
        self.is_kept = true;
        let mut slots = self.inner.slots.lock();
        slots.failed.remove(&self.key);
        slots.made.retain(|_, made| made.at.elapsed() <= SHOWN_MAX);
        // Else an account that asks for what another one looks at would have it counted as its, and let go of it.
        let account = slots.made.get(&self.key).map_or(self.account, |made| made.account);
        let bytes = (self.inner.weigh)(&value);
        let made = Made { account, version, at: Instant::now(), bytes, value: Arc::new(value) };
        slots.made.insert(self.key.clone(), made);
        while slots.made.len() > self.inner.kept_max && slots.let_go(&self.key, |_| 1) {}
        while slots.bytes() > self.inner.bytes_max && slots.let_go(&self.key, |made| made.bytes) {}
    }
}

impl<K: Ord + Clone, T> Drop for Making<K, T> {
    fn drop(&mut self) {
        let mut slots = self.inner.slots.lock();
        slots.making.remove(&self.key);
        if !self.is_kept {
            slots.note_failure(self.key.clone(), self.inner.kept_max);
        }
        drop(slots);
        self.inner.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_transport::ShortName;
    use std::future::{pending, ready};
    use tokio::sync::oneshot;

    const LONG: Duration = Duration::from_secs(60);

    fn account(name: &str) -> Account {
        Account::Tenant(ShortName::new(name).expect("a name"))
    }

    /// A thing as one account asks for it.
    fn of<K>(key: K) -> (Account, K) {
        (account("lab"), key)
    }

    fn at(log_index: u64) -> StateVersion {
        StateVersion { generation: 1, log_index: LogIndex(log_index) }
    }

    /// As if it was so much later.
    fn age<K: Ord, T>(estimates: &Estimates<K, T>, by: Duration) {
        for made in estimates.0.slots.lock().made.values_mut() {
            made.at = made.at.checked_sub(by).expect("the machine has run for longer");
        }
    }

    fn shown(found: Found<&'static str>) -> Option<(&'static str, u64)> {
        found.ok().map(|estimate| (*estimate.value, estimate.log_index.0))
    }

    #[tokio::test]
    async fn one_is_made_once_for_a_state_and_serves_a_while() {
        let estimates = Estimates::new(4, (1, 1));
        let get = |log_index, value| {
            let estimates = estimates.clone();
            async move { shown(estimates.wait(of(()), at(log_index), LONG, ready(Some(value))).await) }
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
        let estimates = Estimates::new(4, (1, 1));
        let never = || pending::<Option<&'static str>>();
        let (made, making) = oneshot::channel();
        let slow = async move { making.await.ok() };
        assert_eq!(
            shown(estimates.wait(of(()), at(1), Duration::ZERO, slow).await),
            None,
            "there is none yet"
        );
        assert_eq!(
            shown(estimates.wait(of(()), at(2), Duration::ZERO, never()).await),
            None,
            "it is being made"
        );
        made.send("first").expect("it is waited for");
        assert_eq!(shown(estimates.wait(of(()), at(1), LONG, never()).await), Some(("first", 1)));
        assert_eq!(shown(estimates.wait(of(()), at(2), Duration::ZERO, never()).await), Some(("first", 1)));
        let other = StateVersion { generation: 2, ..at(1) };
        let of_other = estimates.wait(of(()), other, Duration::ZERO, never()).await;
        assert_eq!(shown(of_other), None, "of another generation");
        age(&estimates, SHOWN_MAX);
        assert_eq!(
            shown(estimates.wait(of(()), at(2), Duration::ZERO, never()).await),
            None,
            "it is too old"
        );
    }

    #[tokio::test]
    async fn a_page_says_where_one_cannot_be_made() {
        let estimates: Estimates<i32, &'static str> = Estimates::new(2, (1, 1));
        for time in ["the first time", "each time"] {
            let panics = async { ready(None::<&'static str>).await.or_else(|| panic!("on purpose")) };
            let found = estimates.wait(of(1), at(1), LONG, panics).await;
            assert_eq!(as_of(&found, LogIndex(1)), EstimateOf::Failed, "{time}");
        }
        let slow = estimates.wait(of(1), at(1), Duration::ZERO, pending()).await;
        assert_eq!(slow.map(drop), Err(Unmade::Failed), "it is tried again, and the last time it failed");
        let slow = estimates.wait(of(2), at(1), Duration::ZERO, pending()).await;
        assert_eq!(slow.map(drop), Err(Unmade::BeingMade), "another one");
    }

    #[tokio::test]
    async fn one_that_is_made_at_last_is_shown_and_failures_are_bounded() {
        let estimates: Estimates<i32, &'static str> = Estimates::new(2, (1, 1));
        for key in 0..5 {
            let failed = estimates.wait(of(key), at(1), LONG, ready(None)).await;
            assert_eq!(shown(failed), None);
        }
        assert_eq!(estimates.0.slots.lock().failed.len(), 2);
        let made = estimates.wait(of(4), at(1), LONG, ready(Some("made"))).await;
        assert_eq!(shown(made), Some(("made", 1)));
        assert!(!estimates.0.slots.lock().failed.contains_key(&4));
    }

    #[tokio::test]
    async fn a_page_says_where_a_newer_one_is_being_made() {
        let estimate = |is_current| Estimate { value: Arc::new(()), log_index: LogIndex(1), is_current };
        assert_eq!(as_of(&Ok(estimate(true)), LogIndex(1)), EstimateOf::Page);
        assert_eq!(as_of(&Ok(estimate(true)), LogIndex(2)), EstimateOf::Earlier(1));
        assert_eq!(as_of::<()>(&Err(Unmade::BeingMade), LogIndex(1)), EstimateOf::Unmade);
        // Nothing has changed since, but time has passed.
        let estimates = Estimates::new(4, (1, 1));
        let made = estimates.wait(of(()), at(1), LONG, ready(Some("first"))).await;
        assert_eq!(as_of(&made, LogIndex(1)), EstimateOf::Page);
        age(&estimates, SERVES_MAX);
        let last = estimates.wait(of(()), at(1), Duration::ZERO, pending()).await;
        assert_eq!(as_of(&last, LogIndex(1)), EstimateOf::Earlier(1));
    }

    #[tokio::test]
    async fn an_account_that_asks_for_much_lets_go_of_what_is_kept_for_itself() {
        let estimates: Estimates<i32, &'static str> = Estimates::new(4, (1, 1));
        let (loud, quiet) = (account("loud"), account("quiet"));
        let asks = |account, key| {
            let estimates = estimates.clone();
            async move {
                let made = estimates.wait((account, key), at(1), LONG, ready(Some("made"))).await;
                assert_eq!(shown(made), Some(("made", 1)), "{key}");
            }
        };
        let kept = || estimates.0.slots.lock().made.keys().copied().collect::<Vec<i32>>();
        for key in [1, 2] {
            asks(quiet, key).await;
        }
        for key in 3..=20 {
            asks(loud, key).await;
        }
        assert_eq!(kept(), [1, 2, 19, 20]);
        // Who asks for what another account looks at cannot let go of it either.
        let again = estimates.wait((loud, 1), at(2), LONG, ready(Some("again"))).await;
        assert_eq!(shown(again), Some(("again", 2)));
        for key in 21..=30 {
            asks(loud, key).await;
        }
        assert_eq!(kept(), [1, 2, 29, 30]);
        asks(quiet, 31).await;
        assert_eq!(kept(), [1, 29, 30, 31], "who has the most lets go of its oldest");
        age(&estimates, SHOWN_MAX);
        asks(quiet, 40).await;
        assert_eq!(kept(), [40], "what is not shown any more is not kept");
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded_in_bytes_and_who_asks_has_what_was_made() {
        let estimates: Estimates<i32, &'static str> = Estimates::weighed((9, 10), (1, 1), |text| text.len());
        let (loud, quiet) = (account("loud"), account("quiet"));
        let kept = || estimates.0.slots.lock().made.keys().copied().collect::<Vec<i32>>();
        for (account, key, text) in
            [(quiet, 1, "ab"), (loud, 2, "abcd"), (loud, 3, "abcd"), (loud, 4, "abcd"), (quiet, 5, "a")]
        {
            let made = estimates.wait((account, key), at(1), LONG, ready(Some(text))).await;
            assert_eq!(shown(made), Some((text, 1)), "{key}");
        }
        assert_eq!(kept(), [1, 4, 5], "4 bytes had to go twice, of those who had 12 and 8");
        let large = estimates.wait((quiet, 6), at(1), LONG, ready(Some("larger than all of it"))).await;
        assert_eq!(shown(large), Some(("larger than all of it", 1)));
        assert_eq!(kept(), [6]);
    }

    #[tokio::test]
    async fn an_account_has_no_more_made_at_a_time_than_its_share() {
        let estimates: Estimates<i32, &'static str> = Estimates::new(4, (2, 1));
        let (loud, quiet) = (account("loud"), account("quiet"));
        for key in 1..=5 {
            let made = estimates.wait((loud, key), at(1), Duration::ZERO, pending()).await;
            assert_eq!(shown(made), None, "{key}");
        }
        assert_eq!(estimates.0.slots.lock().making.iter().copied().collect::<Vec<i32>>(), [1]);
        let made = estimates.wait((quiet, 6), at(1), LONG, ready(Some("made"))).await;
        assert_eq!(shown(made), Some(("made", 1)), "the other place is free");
    }

    #[tokio::test]
    async fn so_many_are_made_at_a_time_and_kept_and_a_panic_takes_no_place() {
        let estimates = Estimates::new(2, (1, 1));
        let panics = async { ready(None::<&'static str>).await.or_else(|| panic!("on purpose")) };
        assert_eq!(shown(estimates.wait(of(1), at(1), LONG, panics).await), None);
        assert_eq!(shown(estimates.wait(of(1), at(1), LONG, ready(None)).await), None, "it was not made");
        for key in 1..=4 {
            let made = estimates.wait(of(key), at(1), LONG, ready(Some("made"))).await;
            assert_eq!(shown(made), Some(("made", 1)), "{key}");
        }
        let kept: Vec<i32> = estimates.0.slots.lock().made.keys().copied().collect();
        assert_eq!(kept, [3, 4]);
        assert_eq!(shown(estimates.wait(of(5), at(1), Duration::ZERO, pending()).await), None);
        assert_eq!(shown(estimates.wait(of(6), at(1), Duration::ZERO, ready(Some("no place"))).await), None);
        assert_eq!(estimates.0.slots.lock().making.len(), 1);
    }
}
