//! What lasts longer than a second is told each second that it lasts.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use muster_console::Console;

/// Between two lines of progress.
pub const TOLD_EVERY: Duration = Duration::from_secs(1);

/// Does work of unknown length on another thread, and tells each second that it lasts.
pub fn told_while<T: Send>(console: &Console, what: &str, work: impl FnOnce() -> T + Send) -> T {
    let tell = |lasted: Duration| console.progress(&format!("{what}: {} s so far", lasted.as_secs()));
    while_lasting(TOLD_EVERY, tell, work)
}

fn while_lasting<T: Send>(
    every: Duration,
    mut tell: impl FnMut(Duration),
    work: impl FnOnce() -> T + Send,
) -> T {
    let begun = Instant::now();
    let (lasts, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let working = scope.spawn(move || {
            // Goes with the thread, also where the work panics.
            let _lasts = lasts;
            work()
        });
        while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            tell(begun.elapsed());
        }
        working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_lasts_is_told_and_its_result_comes_back() {
        let (told, heard) = mpsc::channel();
        let tell = |lasted: Duration| {
            let _ = told.send(lasted);
        };
        // The work ends once it was told of.
        let work = move || heard.recv_timeout(Duration::from_secs(60)).is_ok();
        assert!(while_lasting(Duration::from_millis(1), tell, work), "nobody told that it lasts");
        let console = Console::new(muster_console::Format::Table, true, true);
        assert_eq!(told_while(&console, "adding", || 3 + 4), 7);
    }
}
