//! Threads for work that takes a processor for long and is in nobody's way: explanations, states of the past, pieces of
//! the log. They have the lowest priority, so on a machine whose processors are all in use the decision loop,
//! consensus and the sessions of nodes get theirs first.
//!
//! **Invariant:** there are [`THREADS_MAX`] of them at most, however much is asked for; who may ask for how much at a time
//! is decided before.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::oneshot;

/// As many as there are places for what they do: see `EXPLANATIONS_MAX`, and in `history/`.
const THREADS_MAX: usize = 8;
/// The lowest priority that the kernel knows for ordinary work.
const NICENESS: i32 = 19;
/// A thread without work ends after this time.
const IDLE_MAX: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

struct Line {
    waiting: VecDeque<Work>,
    threads: usize,
    idle: usize,
}

static LINE: Mutex<Line> = Mutex::new(Line { waiting: VecDeque::new(), threads: 0, idle: 0 });
static WORK_CAME: Condvar = Condvar::new();

fn line() -> MutexGuard<'static, Line> {
    // Work runs without the lock, so a panic leaves the line whole.
    LINE.lock()
}

/// The work panicked, or no thread could be started for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotDone;

/// Does the work on one of these threads, to its end also where its caller goes away meanwhile.
///
/// # Errors
/// When the work panicked, or the system starts no thread.
pub async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NotDone> {
    let (done, result) = oneshot::channel();
    let work = Box::new(move || {
        let value = work();
        // Nobody may wait for it any more.
        let _ = done.send(value);
    });
    enter(work)?;
    result.await.map_err(|_| NotDone)
}

fn enter(work: Work) -> Result<(), NotDone> {
    let mut line = line();
    line.waiting.push_back(work);
    if line.idle >= line.waiting.len() || line.threads >= THREADS_MAX {
        drop(line);
        WORK_CAME.notify_one();
        return Ok(());
    }
    line.threads += 1;
    drop(line);
    let started = std::thread::Builder::new().name("muster-background".to_owned()).spawn(run);
    if let Err(error) = started {
        let mut line = self::line();
        line.threads -= 1;
        // Others that run come to it; without any it is given up.
        if line.threads == 0 {
            line.waiting.clear();
            tracing::error!(error = &error as &dyn std::error::Error, "no thread could be started");
            return Err(NotDone);
        }
    }
    Ok(())
}

fn run() {
    // Of this thread alone. Where it is not allowed the work has the priority of everything else.
    let _ = rustix::process::setpriority_process(None, NICENESS);
    let mut line = line();
    loop {
        if let Some(work) = line.waiting.pop_front() {
            drop(line);
            // Its caller is told by the channel that it drops.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            line = self::line();
            continue;
        }
        line.idle += 1;
        let waited = WORK_CAME.wait_for(&mut line, IDLE_MAX);
        line.idle -= 1;
        if waited.timed_out() && line.waiting.is_empty() {
            line.threads -= 1;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn so_much_is_done_at_a_time_at_a_low_priority_and_a_panic_ends_nothing() {
        let (at_once, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let asked = (0..THREADS_MAX * 4).map(|number| {
            let (at_once, most) = (Arc::clone(&at_once), Arc::clone(&most));
            in_background(move || {
                most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let niceness = rustix::process::getpriority_process(None).expect("it is known");
                std::thread::yield_now();
                at_once.fetch_sub(1, Ordering::SeqCst);
                assert!(number % 5 > 0, "it panics on purpose");
                niceness
            })
        });
        let done = futures::future::join_all(asked).await;
        for (number, done) in done.into_iter().enumerate() {
            assert_eq!(done, if number % 5 > 0 { Ok(NICENESS) } else { Err(NotDone) }, "{number}");
        }
        assert!(most.load(Ordering::SeqCst) <= THREADS_MAX);
        let own = rustix::process::getpriority_process(None).expect("it is known");
        assert!(own < NICENESS, "the threads that serve keep theirs");
    }
}
