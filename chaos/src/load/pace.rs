//! Open loops: an operation is due at a time fixed beforehand, whatever became of those before it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

/// Operations of one loop that may be under way at once: those of a whole deadline, many times over.
const UNDER_WAY_MAX: usize = 2_000;

/// A loop of operations.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// From one operation to the next.
    pub every: Duration,
    /// The first one is so much later: loops that begin together do not all fire together.
    pub offset: Duration,
}

/// What tells loops to make no further operation.
pub type Stop = watch::Receiver<bool>;

/// Makes an operation whenever one is due, and waits for those under way once it is told to stop. The operation is
/// given the moment it was due at: its time counts from there. How many there were, and how many were not made
/// because too many were under way.
pub async fn open_loop<F, Fut>(pace: Pace, mut stop: Stop, operation: F) -> Counts
where
    F: Fn(u64, Instant) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    let begun = Instant::now() + pace.offset;
    let permits = Arc::new(Semaphore::new(UNDER_WAY_MAX));
    let mut counts = Counts::default();
    for number in 0u64.. {
        // An hour of a hundred a second is far below 2^32.
        let due = begun + pace.every * u32::try_from(number).unwrap_or(u32::MAX);
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            counts.left_out += 1;
            continue;
        };
        counts.made += 1;
        let making = operation(number, due);
        tokio::spawn(async move {
            making.await;
            drop(permit);
        });
    }
    // All permits are back when every operation has ended.
    let _all = permits.acquire_many(UNDER_WAY_MAX as u32).await;
    counts
}

/// What a loop came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that were made.
    pub made: u64,
    /// Operations that were due while too many were under way.
    pub left_out: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_delays_nothing_and_is_waited_for() {
        let (stop, stopped) = watch::channel(false);
        let ended = Arc::new(Mutex::new(Vec::new()));
        let pace = Pace { every: Duration::from_millis(10), offset: Duration::from_millis(5) };
        let seen = Arc::clone(&ended);
        let loop_of = tokio::spawn(open_loop(pace, stopped, move |number, due| {
            let seen = Arc::clone(&seen);
            async move {
                assert!(Instant::now() - due < Duration::from_millis(2), "it was late");
                tokio::time::sleep(Duration::from_secs(3)).await;
                seen.lock().push(number);
            }
        }));
        tokio::time::sleep(Duration::from_millis(100)).await;
        stop.send_replace(true);
        let counts = loop_of.await.expect("it ends");
        assert_eq!(counts, Counts { made: 10, left_out: 0 });
        assert_eq!(ended.lock().len(), 10);
    }
}
