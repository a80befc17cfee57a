//! The thread that looks at the storage while the storage thread may be stuck: it measures the flush
//! that is running, asks for free space, and tells the storage thread when there is something to do
//! that no operation asks for.
//!
//! **Invariant:** it never waits for the disk the log is written to, except to ask how full it is.

use crate::health::Health;
use crate::io_thread::Operation;
use crate::log_state::Shared;
use crate::options::StoreOptions;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::WeakSender;

/// How closely it looks while something goes on. A log that was not written to for one to two of
/// these is settled.
const TICK: Duration = Duration::from_millis(25);

pub(crate) struct Watchdog {
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: WeakSender<Operation>,
    pub(crate) options: StoreOptions,
    pub(crate) dir: PathBuf,
}

impl Watchdog {
    /// Asks for free space once, so that what is published is true from the start.
    pub(crate) fn look(&self) {
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

    pub(crate) fn run(self) {
        let poll = Duration::from_millis(self.options.space_poll_ms.max(1));
        let tick = TICK.min(Duration::from_millis((self.options.stall_ms / 2).max(1)));
        let mut looked = Instant::now();
        let mut operations = 0;
        while !self.health().closed.load(Ordering::SeqCst) {
            let quiet = self.health().watchdog_may_sleep();
            let until_look = poll.saturating_sub(looked.elapsed()).max(Duration::from_millis(1));
            std::thread::park_timeout(if quiet { until_look } else { tick.min(until_look) });
            self.health().publish(self.options.stall_ms);
            let look = looked.elapsed() >= poll;
            if look {
                looked = Instant::now();
                self.look();
            }
            let now = self.health().operations.load(Ordering::SeqCst);
            let idle = std::mem::replace(&mut operations, now) == now
                && self.health().flushing_ms().is_none()
                && self.health().unsettled.load(Ordering::SeqCst);
            let retry = self.health().held.load(Ordering::SeqCst) && (look || !self.health().is_full());
            if idle || retry {
                self.poke();
            }
        }
    }

    fn poke(&self) {
        // A full queue keeps the storage thread busy enough.
        if let Some(queue) = self.queue.upgrade() {
            let _ = queue.try_send(Operation::Poke);
        }
    }
}
