//! The last step before the worker's program: a process of our own that becomes it.
//!
//! Between fork and exec only this crate's code can tie the worker to its shim (parent-death signal)
//! and put it into its control group, and doing that after a first exec needs no unsafe code: the shim
//! starts itself again as the worker's process, and that one executes the program. Which one it learns on its
//! standard input, so that it can be started before there is any.
//!
//! **Invariant:** the program runs only while the shim that started it lives: the signal is set first,
//! and a shim that died before that shows as another parent.

use crate::cgroup;
use crate::task::TaskDir;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::getppid;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A worker's process that waits for its order.
pub(super) struct Stage {
    child: Child,
}

/// Which worker it is to become: its folder, and its control group if it has one.
#[derive(Debug, PartialEq, Eq)]
struct Order {
    task: PathBuf,
    cgroup: Option<PathBuf>,
}

/// What it says where its worker's output will go, before there is a worker.
const THERE: [u8; 1] = *b".";
/// Two paths take no more.
const ORDER_BYTES_MAX: u64 = 2 * (4_096 + 1);

impl Stage {
    /// Starts one. From the main thread: the parent-death signal follows the thread that forked, and this one
    /// lives as long as the shim. `folder` is for whoever looks at the list of processes. With a control group it
    /// is in that one before it gets its order.
    pub(super) fn start(
        before: &[OsString],
        folder: &Path,
        oom_score: &str,
        cgroup: Option<&Path>,
    ) -> Result<Stage, String> {
        let oom_score = if oom_score.is_empty() { "0" } else { oom_score };
        let child = Command::new("/proc/self/exe")
            .args(before)
            .arg(super::STAGE)
            .arg(folder)
            .arg(std::process::id().to_string())
            .arg(oom_score)
            .args(cgroup)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|e| format!("start the worker's process: {e}"))?;
        let mut stage = Stage { child };
        if cgroup.is_some() && !stage.is_there() {
            stage.dismiss();
            return Err("the worker's process did not enter its control group".to_owned());
        }
        Ok(stage)
    }

    /// Waits for its word that it is in its control group.
    fn is_there(&mut self) -> bool {
        let mut word = [0; THERE.len()];
        let said = self.child.stdout.as_mut().map(|said| said.read_exact(&mut word));
        matches!(said, Some(Ok(()))) && word == THERE
    }

    /// Tells it what to become. On an error it will become nothing.
    pub(super) fn become_worker(mut self, task: &Path, cgroup: Option<&Path>) -> Result<Child, String> {
        let mut order = task.as_os_str().as_bytes().to_vec();
        order.push(0);
        order.extend_from_slice(cgroup.map_or(&[], |group| group.as_os_str().as_bytes()));
        order.push(0);
        let told = match self.child.stdin.take() {
            Some(mut stdin) => stdin.write_all(&order),
            None => Err(io::Error::other("it has no standard input")),
        };
        match told {
            Ok(()) => Ok(self.child),
            Err(error) => {
                self.dismiss();
                Err(format!("tell the worker's process what to execute: {error}"))
            }
        }
    }

    /// Ends it.
    pub(super) fn dismiss(mut self) {
        // It may have ended by itself; either way it is collected.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the order; none at an end without one.
fn read_order(from: impl Read) -> io::Result<Option<Order>> {
    let mut bytes = Vec::new();
    from.take(ORDER_BYTES_MAX).read_to_end(&mut bytes)?;
    let mut parts = bytes.split(|byte| *byte == 0);
    let whole = (parts.next(), parts.next(), parts.next(), parts.next());
    let (Some(task), Some(cgroup), Some([]), None) = whole else {
        return if bytes.is_empty() { Ok(None) } else { Err(io::Error::other("it is not whole")) };
    };
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    Ok(Some(Order { task: path(task), cgroup: (!cgroup.is_empty()).then(|| path(cgroup)) }))
}

/// The exit code of a program that could not be executed, as shells have it; never reported.
const NOT_EXECUTED: i32 = 127;

/// Becomes the worker; returns only when that is impossible, or no order comes. `shim_pid` is who started this
/// process, `oom_score` what the worker's is to be, `cgroup` where it waits. To enter one takes many milliseconds:
/// the kernel waits until no processor still looks at the group before.
pub(super) fn main(shim_pid: i32, oom_score: &OsStr, cgroup: Option<&Path>) -> i32 {
    let tied = tie_to(shim_pid);
    if let Some(group) = cgroup {
        let entered = cgroup::join(group).and_then(|()| {
            let mut out = io::stdout().lock();
            out.write_all(&THERE).and_then(|()| out.flush())
        });
        if let Err(error) = entered {
            super::complain(&format!("join control group {}: {error}", group.display()));
            return NOT_EXECUTED;
        }
    }
    let order = match read_order(io::stdin().lock()) {
        Ok(Some(order)) => order,
        Ok(None) => return 0,
        Err(error) => {
            super::complain(&format!("the order could not be read: {error}"));
            return NOT_EXECUTED;
        }
    };
    let task = TaskDir::at(order.task.clone());
    let reason = match tied.and_then(|()| execute(&task, order.cgroup.as_deref(), oom_score)) {
        Ok(never) => match never {},
        Err(reason) => reason,
    };
    if let Err(error) = crate::durable::write_file_of_boot(&task.launch_error(), reason.as_bytes()) {
        super::complain(&format!("{reason}; and that could not be recorded: {error}"));
    }
    NOT_EXECUTED
}

fn tie_to(shim_pid: i32) -> Result<(), String> {
    set_pdeathsig(Signal::SIGKILL).map_err(|e| format!("tie the worker to its shim: {e}"))?;
    if getppid().as_raw() != shim_pid {
        return Err("its shim died during the launch".to_owned());
    }
    Ok(())
}

fn execute(
    task: &TaskDir,
    cgroup: Option<&Path>,
    oom_score: &OsStr,
) -> Result<std::convert::Infallible, String> {
    if let Some(group) = cgroup {
        cgroup::join(group).map_err(|e| format!("join control group {}: {e}", group.display()))?;
    }
    // The shim is hard to kill for want of memory; its worker must not inherit that. Where it could
    // not be set, there is nothing to undo.
    let _ = std::fs::write("/proc/self/oom_score_adj", oom_score.as_bytes());
    SigSet::empty().thread_set_mask().map_err(|e| format!("unblock signals: {e}"))?;
    let spec = task
        .spec()
        .map_err(|e| format!("read the launch: {e}"))?
        .ok_or_else(|| "the launch is not on disk".to_owned())?;
    std::env::set_current_dir(&spec.working_directory)
        .map_err(|e| format!("working directory {}: {e}", spec.working_directory.display()))?;
    let (program, rest) = spec.command.split_first().ok_or("the command is empty")?;
    // The order came on what is its standard input from here on.
    let mut command = Command::new(program);
    command.args(rest).env_clear().envs(&spec.environment).stdin(Stdio::null());
    let error = command.exec();
    Err(format!("execute {program}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_whole_or_none() {
        let order = |bytes: &[u8]| read_order(bytes);
        let task = PathBuf::from("/t/a");
        assert_eq!(order(b"").unwrap(), None);
        let plain = Order { task: task.clone(), cgroup: None };
        assert_eq!(order(b"/t/a\0\0").unwrap(), Some(plain));
        assert_eq!(order(b"/t/a\0/c\0").unwrap(), Some(Order { task, cgroup: Some("/c".into()) }));
        for bad in [&b"/t/a"[..], b"/t/a\0", b"/t/a\0/c", b"/t/a\0\0\0", b"/t/a\0\0x"] {
            assert!(order(bad).is_err(), "{bad:?}");
        }
    }
}
