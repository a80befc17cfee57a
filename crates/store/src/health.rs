//! How the storage is doing, published while it happens: free space, and flushes that take long.
//!
//! **Invariant:** a flush that hangs is seen without the thread that hangs in it.

use crate::options::StoreOptions;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How much space the disk has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// More than the soft reserve.
    #[default]
    Enough,
    /// Less than the soft reserve: new work should be refused.
    Low,
    /// Less than the hard reserve, or the disk was full at a write: entries are held, and
    /// nothing is acknowledged until space returns.
    Full,
}

/// How the storage of one replica is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageHealth {
    /// Bytes this process may still write to the disk the log is on.
    pub free_bytes: u64,
    /// What that means.
    pub space: Space,
    /// The milliseconds that the present flush has been running; `None` when none is, or not for long.
    pub stalled_ms: Option<u64>,
    /// Moving mean of how long flushes took, in microseconds.
    pub flush_mean_us: u64,
    /// The slowest flush of the last 10 to 20 seconds, in milliseconds.
    pub flush_slowest_ms: u64,
    /// Bytes of disk the log has, preallocated space included.
    pub log_bytes: u64,
}

/// The window of [`StorageHealth::flush_slowest_ms`]: flushes of this time, and of the same time before it, count.
const SLOWEST_WINDOW: Duration = Duration::from_secs(10);
/// A flush counts for the mean with one part in this number.
const MEAN_WEIGHT: u64 = 16;
/// A reserve that was touched has to be exceeded by one part in this number before it counts as whole
/// again, so that the report does not flutter.
const RETURN_MARGIN: u64 = 8;

/// Wakes the watchdog while it pauses.
pub(crate) type Waker = Box<dyn Fn() + Send + Sync>;

/// Hears how long each flush took.
pub(crate) type FlushObserver = Box<dyn Fn(Duration) + Send + Sync>;

/// Hears how many bytes of entries became durable at once.
pub(crate) type AppendObserver = Box<dyn Fn(u64) + Send + Sync>;

#[derive(Debug)]
struct Flushes {
    mean_us: u64,
    slowest_us: u64,
    slowest_before_us: u64,
    window_started: Instant,
}

/// What the storage thread, the watchdog and readers of the health share.
pub(crate) struct Health {
    clock: fn() -> Instant,
    base: Instant,
    /// Microseconds after `base` at which the running flush started; 0 when none runs.
    flush_started_us: AtomicU64,
    flushes: Mutex<Flushes>,
    /// Grows with every operation of the storage thread.
    pub(crate) operations: AtomicU64,
    pub(crate) log_bytes: AtomicU64,
    /// The mark is behind the log.
    pub(crate) unsettled: AtomicBool,
    /// Entries wait for space.
    pub(crate) held: AtomicBool,
    /// A write found the disk full, and no later write has succeeded.
    refused: AtomicBool,
    full: AtomicBool,
    published: watch::Sender<StorageHealth>,
    watchdog: OnceLock<Waker>,
    observer: OnceLock<FlushObserver>,
    append_observer: OnceLock<AppendObserver>,
    watchdog_sleeps: AtomicBool,
    pub(crate) closed: AtomicBool,
}

impl Health {
    pub(crate) fn new(clock: fn() -> Instant) -> Self {
        let base = clock();
        let flushes = Flushes { mean_us: 0, slowest_us: 0, slowest_before_us: 0, window_started: base };
        Health {
            clock,
            base,
            flush_started_us: AtomicU64::new(0),
            flushes: Mutex::new(flushes),
            operations: AtomicU64::new(0),
            log_bytes: AtomicU64::new(0),
            unsettled: AtomicBool::new(false),
            held: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            full: AtomicBool::new(false),
            published: watch::Sender::new(StorageHealth::default()),
            watchdog: OnceLock::new(),
            observer: OnceLock::new(),
            append_observer: OnceLock::new(),
            watchdog_sleeps: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<StorageHealth> {
        self.published.subscribe()
    }

    fn elapsed_us(&self) -> u64 {
        u64::try_from((self.clock)().saturating_duration_since(self.base).as_micros()).unwrap_or(u64::MAX)
    }

    pub(crate) fn flush_begins(&self) {
        self.flush_started_us.store(self.elapsed_us().max(1), Ordering::SeqCst);
        self.operations.fetch_add(1, Ordering::SeqCst);
        if self.watchdog_sleeps.swap(false, Ordering::SeqCst) {
            self.wake_watchdog();
        }
    }

    pub(crate) fn flush_ends(&self) {
        let started = self.flush_started_us.swap(0, Ordering::SeqCst);
        let took_us = self.elapsed_us().saturating_sub(started);
        if let Some(observer) = self.observer.get() {
            observer(Duration::from_micros(took_us));
        }
        let mut flushes = self.flushes.lock();
        flushes.turn_window((self.clock)());
        flushes.slowest_us = flushes.slowest_us.max(took_us);
        flushes.mean_us = match flushes.mean_us {
            0 => took_us,
            mean_us => (mean_us * (MEAN_WEIGHT - 1) + took_us) / MEAN_WEIGHT,
        };
    }

    /// For how long the running flush has been running.
    pub(crate) fn flushing_ms(&self) -> Option<u64> {
        match self.flush_started_us.load(Ordering::SeqCst) {
            0 => None,
            started => Some(self.elapsed_us().saturating_sub(started) / 1_000),
        }
    }

    /// Whether entries are held.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::SeqCst)
    }

    /// A write found the disk full.
    pub(crate) fn refused(&self) {
        self.refused.store(true, Ordering::SeqCst);
        self.full.store(true, Ordering::SeqCst);
        self.published
            .send_if_modified(|health| std::mem::replace(&mut health.space, Space::Full) != Space::Full);
    }

    /// Whether the last write found the disk full.
    pub(crate) fn was_refused(&self) -> bool {
        self.refused.load(Ordering::SeqCst)
    }

    /// A write succeeded again.
    pub(crate) fn accepted(&self) {
        self.refused.store(false, Ordering::SeqCst);
    }

    pub(crate) fn free_bytes_found(&self, free_bytes: u64, options: &StoreOptions) {
        let above = |reserve: u64, touched: bool| {
            let margin = if touched { reserve / RETURN_MARGIN } else { 0 };
            free_bytes >= reserve.saturating_add(margin)
        };
        let before = self.published.borrow().space;
        let space = if self.refused.load(Ordering::SeqCst)
            || !above(options.space_hard_bytes, before == Space::Full)
        {
            Space::Full
        } else if !above(options.space_soft_bytes, before != Space::Enough) {
            Space::Low
        } else {
            Space::Enough
        };
        self.full.store(space == Space::Full, Ordering::SeqCst);
        self.published.send_if_modified(|health| {
            let changed = health.space != space || health.free_bytes != free_bytes;
            health.free_bytes = free_bytes;
            health.space = space;
            changed
        });
    }

    /// Publishes what changes all the time; called by the watchdog.
    pub(crate) fn publish(&self, stall_ms: u64) {
        let stalled_ms = self.flushing_ms().filter(|running| *running >= stall_ms);
        let log_bytes = self.log_bytes.load(Ordering::SeqCst);
        let (flush_mean_us, flush_slowest_ms) = {
            let mut flushes = self.flushes.lock();
            flushes.turn_window((self.clock)());
            (flushes.mean_us, flushes.slowest_us.max(flushes.slowest_before_us) / 1_000)
        };
        self.published.send_if_modified(|health| {
            let now = StorageHealth { stalled_ms, flush_mean_us, flush_slowest_ms, log_bytes, ..*health };
            std::mem::replace(health, now) != now
        });
    }

    pub(crate) fn observe(&self, observer: FlushObserver) {
        let _ = self.observer.set(observer);
    }

    pub(crate) fn observe_appends(&self, observer: AppendObserver) {
        let _ = self.append_observer.set(observer);
    }

    /// Entries with this number of bytes are durable.
    pub(crate) fn appended(&self, bytes: u64) {
        if let Some(observer) = self.append_observer.get().filter(|_| bytes > 0) {
            observer(bytes);
        }
    }

    pub(crate) fn set_watchdog(&self, waker: Waker) {
        let _ = self.watchdog.set(waker);
    }

    pub(crate) fn wake_watchdog(&self) {
        if let Some(wake) = self.watchdog.get() {
            wake();
        }
    }

    /// Whether nothing goes on that the watchdog has to look at closely.
    pub(crate) fn is_quiet(&self) -> bool {
        self.flush_started_us.load(Ordering::SeqCst) == 0
            && !self.unsettled.load(Ordering::SeqCst)
            && !self.held.load(Ordering::SeqCst)
    }

    /// Lets the next flush wake the watchdog. Returns whether it may sleep.
    pub(crate) fn watchdog_may_sleep(&self) -> bool {
        self.watchdog_sleeps.store(true, Ordering::SeqCst);
        let quiet = self.is_quiet();
        if !quiet {
            self.watchdog_sleeps.store(false, Ordering::SeqCst);
        }
        quiet
    }
}

impl Flushes {
    fn turn_window(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.window_started);
        if age >= SLOWEST_WINDOW {
            self.slowest_before_us = if age < SLOWEST_WINDOW * 2 { self.slowest_us } else { 0 };
            self.slowest_us = 0;
            self.window_started = now;
        }
    }
}
