//! The last step before the worker's program: a process of our own that becomes it.
//!
//! Between fork and exec only this crate's code can tie the worker to its shim (parent-death signal)
//! and put it into its control group, and doing that after a first exec needs no unsafe code: the shim
//! starts itself again as the worker's process, and that one executes the program.
//!
//! **Invariant:** the program runs only while the shim that started it lives: the signal is set first,
//! and a shim that died before that shows as another parent.

use crate::cgroup;
use crate::task::TaskDir;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::getppid;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// What the shim hands over: task folder, its own process id, OOM score to go back to, control group.
pub(super) struct Arguments<'a> {
    pub(super) task: &'a Path,
    pub(super) shim_pid: i32,
    pub(super) oom_score: &'a str,
    pub(super) cgroup: Option<&'a Path>,
}

/// The exit code of a program that could not be executed, as shells have it; never reported.
const NOT_EXECUTED: i32 = 127;

/// Becomes the worker; returns only when that is impossible.
pub(super) fn main(arguments: &Arguments<'_>) -> i32 {
    let task = TaskDir::at(arguments.task.to_owned());
    let reason = match become_worker(&task, arguments) {
        Ok(never) => match never {},
        Err(reason) => reason,
    };
    if let Err(error) = crate::durable::write_file_of_boot(&task.launch_error(), reason.as_bytes()) {
        super::complain(&format!("{reason}; and that could not be recorded: {error}"));
    }
    NOT_EXECUTED
}

fn become_worker(task: &TaskDir, arguments: &Arguments<'_>) -> Result<std::convert::Infallible, String> {
    set_pdeathsig(Signal::SIGKILL).map_err(|e| format!("tie the worker to its shim: {e}"))?;
    if getppid().as_raw() != arguments.shim_pid {
        return Err("its shim died during the launch".to_owned());
    }
    if let Some(group) = arguments.cgroup {
        cgroup::join(group).map_err(|e| format!("join control group {}: {e}", group.display()))?;
    }
    // The shim is hard to kill for want of memory; its worker must not inherit that. Where it could
    // not be set, there is nothing to undo.
    let _ = std::fs::write("/proc/self/oom_score_adj", arguments.oom_score);
    SigSet::empty().thread_set_mask().map_err(|e| format!("unblock signals: {e}"))?;
    let spec = task
        .spec()
        .map_err(|e| format!("read the launch: {e}"))?
        .ok_or_else(|| "the launch is not on disk".to_owned())?;
    std::env::set_current_dir(&spec.working_directory)
        .map_err(|e| format!("working directory {}: {e}", spec.working_directory.display()))?;
    let (program, rest) = spec.command.split_first().ok_or("the command is empty")?;
    let error = Command::new(program).args(rest).env_clear().envs(&spec.environment).exec();
    Err(format!("execute {program}: {error}"))
}
