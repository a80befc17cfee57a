//! The watchdog of a log: it looks at the storage while the writer may be stuck, measures the flush that is running, asks for
//! free space, and tells the writer when there is something to do that no operation asks for.
//!
//! Like the writer it starts no thread: the thread or task that drives it pauses as long as [`Watchdog::pause`] says, or until it is woken,
//! and then lets it look.
//!
//! **Invariant:** it never waits for the disk the log is written to, except to ask how full it is.

use crate::health::Health;
use crate::log_state::Shared;
use crate::options::StoreOptions;
use crate::raft_types::LogConfig;
use crate::writer::Operation;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::WeakSender;

/// How closely it looks while something goes on. A log that was not written to for one to two of
/// these is settled.
const TICK: Duration = Duration::from_millis(25);

/// The watchdog of one log.
pub struct Watchdog<C: LogConfig> {
    shared: Arc<Shared>,
    queue: WeakSender<Operation<C>>,
    options: StoreOptions,
    dir: PathBuf,
    /// When it asked for free space last.
    asked: Instant,
    /// How many storage operations had begun when it looked last.
    operations: u64,
}

impl<C: LogConfig> Watchdog<C> {
    /// Asks for free space once, so that what is published is true from the start.
    pub(crate) fn new(
        shared: Arc<Shared>,
        queue: WeakSender<Operation<C>>,
        options: StoreOptions,
        dir: PathBuf,
    ) -> Watchdog<C> {
        let asked = (options.clock)();
        let watchdog = Watchdog { shared, queue, options, dir, asked, operations: 0 };
        watchdog.ask_for_space();
        watchdog
    }

    /// What ends a pause early. Set once.
    pub fn set_waker(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.health().set_watchdog(Box::new(wake));
    }

    /// For how long there is nothing to look at, unless it is woken; `None` once the log is closed.
    #[must_use]
    pub fn pause(&self) -> Option<Duration> {
        if self.health().closed.load(Ordering::SeqCst) {
            return None;
        }
        let quiet = self.health().watchdog_may_sleep();
        let tick = TICK.min(Duration::from_millis((self.options.stall_ms / 2).max(1)));
        let until_asking = self.poll().saturating_sub(self.since_asked()).max(Duration::from_millis(1));
        Some(if quiet { until_asking } else { tick.min(until_asking) })
    }

    /// Looks at what goes on, publishes it, and tells the writer what there is to do.
    pub fn look(&mut self) {
        self.health().publish(self.options.stall_ms);
        let asks = self.since_asked() >= self.poll();
        if asks {
            self.asked = (self.options.clock)();
            self.ask_for_space();
        }
        let now = self.health().operations.load(Ordering::SeqCst);
        let idle = std::mem::replace(&mut self.operations, now) == now
            && self.health().flushing_ms().is_none()
            && self.health().unsettled.load(Ordering::SeqCst);
        let retry = self.health().held.load(Ordering::SeqCst) && (asks || !self.health().is_full());
        if idle || retry {
            self.poke();
        }
    }

    fn ask_for_space(&self) {
        match self.options.files.free_bytes(&self.dir) {
            Ok(free_bytes) => self.health().free_bytes_found(free_bytes, &self.options),
            Err(error) => {
                tracing::warn!(dir = %self.dir.display(), %error, "free space cannot be determined");
            }
        }
    }

    fn health(&self) -> &Health {
        &self.shared.health
    }

    fn poll(&self) -> Duration {
        Duration::from_millis(self.options.space_poll_ms.max(1))
    }

    fn since_asked(&self) -> Duration {
        (self.options.clock)().saturating_duration_since(self.asked)
    }

    fn poke(&self) {
        // A full queue keeps the writer busy enough.
        if let Some(queue) = self.queue.upgrade() {
            let _ = queue.try_send(Operation::Poke);
        }
    }
}
