//! The agent's look at its shims: one that stands still enforces nothing, so it is woken, and killed where that does not
//! help. With a shim ends its worker: where it has a process namespace the kernel sees to that.
//!
//! **Invariant:** only a process that leads a separate session and holds its worker's lock is signalled here.

use crate::clock::BootTime;
use crate::disk::lease::{LeaseSlot, read_path};
use crate::offload::blocking;
use crate::process::processes;
use crate::process::task::TaskDir;
use crate::rules::WorkerKey;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Between two looks: well below any lease.
pub(crate) const LOOK: Duration = Duration::from_millis(500);
/// Looks at which a shim may stand still before it is killed; it is woken at each.
const STILL_MAX: u32 = 4;
/// What a shim may take for what is due: a stop whose grace is over, a lease that has run out.
pub(crate) const OVERDUE: Duration = Duration::from_secs(5);

/// Why a shim is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It stands still, and does not wake.
    Still,
    /// Its worker was to be gone.
    StopOverdue,
    /// Its worker's lease has run out, and its grace.
    LeaseOverdue,
}

impl Fault {
    fn text(self) -> &'static str {
        match self {
            Fault::Still => "it stands still and does not wake",
            Fault::StopOverdue => "its worker was told to stop and is still there",
            Fault::LeaseOverdue => "its worker's lease has run out and it is still there",
        }
    }
}

/// Ends when the lease of an epoch is over. One that cannot be read says nothing.
pub(crate) async fn lease_over(lease: &Path, epoch: u64) {
    loop {
        tokio::time::sleep(LOOK).await;
        let path = lease.to_owned();
        let slot = blocking(move || read_path(&path).ok()).await;
        if slot.is_some_and(|slot| is_over(&slot, epoch, BootTime::now())) {
            return;
        }
    }
}

/// Whether nothing may run under the lease of an epoch any more.
fn is_over(slot: &LeaseSlot, epoch: u64, now: BootTime) -> bool {
    slot.epoch != epoch || slot.deadline <= now
}

/// One shim, as the agent sees it.
#[derive(Debug)]
pub(crate) struct Guarded {
    key: WorkerKey,
    task: TaskDir,
    lease: PathBuf,
    /// Both once its worker is launched.
    known: Option<(i32, u64)>,
    still: u32,
    lapsed_at: Option<BootTime>,
}

impl Guarded {
    pub(crate) fn new(key: WorkerKey, task: TaskDir, lease: PathBuf) -> Guarded {
        Guarded { key, task, lease, known: None, still: 0, lapsed_at: None }
    }

    /// Looks once, and acts. `stop_by` is when the grace of a stop is over, if one was asked for.
    pub(crate) fn look(&mut self, stop_by: Option<BootTime>) -> Option<Fault> {
        let (shim, epoch) = self.shim()?;
        let state = processes::state(shim).filter(|state| state.session == shim)?;
        let now = BootTime::now();
        let fault = if state.stands_still {
            self.still += 1;
            if self.still <= STILL_MAX {
                tracing::warn!(
                    job = %self.key.job,
                    worker = %self.key,
                    shim,
                    "a shim stands still; it is woken"
                );
                let _ = kill(Pid::from_raw(shim), Signal::SIGCONT);
                None
            } else {
                Some(Fault::Still)
            }
        } else {
            self.still = 0;
            None
        };
        let fault =
            fault.or_else(|| stop_by.filter(|at| at.after(OVERDUE) < now).map(|_| Fault::StopOverdue));
        let fault = fault.or_else(|| self.lease_overdue(epoch, now).then_some(Fault::LeaseOverdue))?;
        // The lock is held until the shim ends: the number is no other process's.
        if matches!(self.task.try_lock(), Ok(None)) {
            tracing::error!(
                job = %self.key.job,
                worker = %self.key,
                shim,
                why = fault.text(),
                "a shim is killed"
            );
            let _ = kill(Pid::from_raw(shim), Signal::SIGKILL);
        }
        Some(fault)
    }

    fn shim(&mut self) -> Option<(i32, u64)> {
        if self.known.is_none() {
            let running = self.task.running().ok().flatten()?;
            let spec = self.task.spec().ok().flatten()?;
            self.known = Some((running.shim_pid, spec.epoch));
        }
        self.known
    }

    fn lease_overdue(&mut self, epoch: u64, now: BootTime) -> bool {
        let Ok(slot) = read_path(&self.lease) else { return false };
        if !is_over(&slot, epoch, now) {
            self.lapsed_at = None;
            return false;
        }
        let lapsed_at = *self.lapsed_at.get_or_insert(now);
        lapsed_at.after(Duration::from_millis(slot.grace_ms)).after(OVERDUE) < now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_over_at_its_deadline_and_with_its_epoch() {
        let slot = LeaseSlot { sequence: 1, epoch: 7, deadline: BootTime(1_000), grace_ms: 10, holder: 1 };
        assert!(!is_over(&slot, 7, BootTime(999)));
        assert!(is_over(&slot, 7, BootTime(1_000)));
        assert!(is_over(&slot, 6, BootTime(0)) && is_over(&slot, 8, BootTime(0)));
    }
}
