//! What a workload shares with the process around it: exit codes, the stop signal, lines on stdout.

use crate::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How a workload ended; the number is the process's exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: all the work is done.
    Done,
    /// 1: it failed; another attempt may succeed.
    Failed,
    /// 2: an argument, a variable or the checkpoint directory cannot be used; another attempt would fail alike.
    Unusable,
    /// 143: SIGTERM was honoured: what was done is saved, start another attempt to go on.
    Preempted,
    /// The code that the user asked for.
    Asked(u8),
}

impl Exit {
    /// The exit code of the process.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Unusable => 2,
            // 128 + SIGTERM: what a shell reports for a process that dies of the signal, so a launcher
            // that knows nothing of this program sorts it under "preempted" as well.
            Exit::Preempted => 143,
            Exit::Asked(code) => code,
        }
    }

    /// Reports the error on stderr, where there is one, and chooses the code for it.
    pub(crate) fn of(result: Result<Exit, Error>) -> Exit {
        match result {
            Ok(exit) => exit,
            Err(error) => {
                complain(&error.report());
                match error {
                    Error::Config(_) => Exit::Unusable,
                    Error::Preempted => Exit::Preempted,
                    _ => Exit::Failed,
                }
            }
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// One line on stdout. A reader that went away must not end a training run, so nothing is made of a failed write.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// One line on stderr; see [`say`].
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "muster example: {line}");
}

/// Whether SIGTERM has arrived.
#[derive(Clone)]
pub(crate) struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// From here on SIGTERM only raises the flag.
    pub(crate) fn install() -> Result<StopSignal, Error> {
        let flag = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&flag))
            .map_err(|source| Error::Process { doing: "take over SIGTERM", source })?;
        Ok(StopSignal(flag))
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Passes the time until `end`, in slices short enough that a stop signal is seen at once.
    pub(crate) fn pass_time_until(&self, end: Instant) {
        const SLICE: Duration = Duration::from_millis(10);
        while !self.is_raised() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(SLICE));
        }
    }

    #[cfg(test)]
    pub(crate) fn never() -> StopSignal {
        StopSignal(Arc::new(AtomicBool::new(false)))
    }
}
