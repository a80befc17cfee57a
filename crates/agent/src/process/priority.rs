//! The processor goes to what guards work before it goes to the work: to the agent, whose heartbeats keep the leases of a host, and
//! to the shims. An agent that may raise its priority does, and its shims have it from their start; where it may not, workers have a lower one.

use rustix::process::{Pid, getpriority_process, setpriority_process};

/// The niceness of an agent that may raise itself, and of its shims.
const GUARD: i32 = -10;
/// By how much a worker is nicer than an agent that may not.
const STEP: i32 = 5;
/// The largest niceness, which is the lowest priority.
const NICEST: i32 = 19;

/// Raises every thread of this process, unless an operator has given it another priority; those that are made later have it from
/// who makes them. Says whether it could.
pub(crate) fn raise() -> bool {
    if getpriority_process(None).unwrap_or(0) != 0 {
        return true;
    }
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let ids = threads.filter_map(|thread| Pid::from_raw(thread.file_name().to_str()?.parse().ok()?));
    // Each of them, also behind one that cannot be raised.
    let refused = ids.filter(|id| setpriority_process(Some(*id), GUARD).is_err()).count();
    refused == 0
}

/// Makes this thread nicer than its shim, whose priority it has: of a process that becomes a worker, or of a shim where it does work
/// that a worker makes for it.
pub(super) fn step_back() {
    let shim = getpriority_process(None).unwrap_or(0);
    // More niceness is nothing that is refused; without it the worker only has too much.
    let _ = setpriority_process(None, niceness_of_worker(shim));
}

/// The same for a process that this one has just started: a command of this host is nicer than its agent.
pub(super) fn step_back_for(pid: i32) {
    let own = getpriority_process(None).unwrap_or(0);
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = setpriority_process(Some(pid), niceness_of_worker(own));
    }
}

fn niceness_of_worker(shim: i32) -> i32 {
    if shim < 0 { 0 } else { shim.saturating_add(STEP).min(NICEST) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_nicer_than_its_guard() {
        for shim in -20..NICEST {
            assert!(niceness_of_worker(shim) > shim, "{shim}");
        }
        assert_eq!(
            (niceness_of_worker(GUARD), niceness_of_worker(0), niceness_of_worker(19)),
            (0, STEP, NICEST)
        );
    }
}
