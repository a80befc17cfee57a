//! A process on a host.

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use tokio::sync::watch;

/// A process that was started on a host, in a separate process group. It continues when this is dropped, until the
/// network is.
#[derive(Clone, Debug)]
pub struct Process {
    pid: Pid,
    /// Stands for this process alone, also when its number belongs to another.
    handle: std::sync::Arc<OwnedFd>,
    exit: watch::Receiver<Option<ExitStatus>>,
}

/// Why a process could not be started or reached.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The host is gone.
    #[error("the host of this process is gone")]
    Host,
    /// It could not be started.
    #[error("starting `{program}`")]
    Start {
        /// The program.
        program: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It has ended.
    #[error("the process has ended ({0})")]
    Ended(ExitStatus),
    /// The signal could not be sent.
    #[error("sending {signal} to process {pid}")]
    Signal {
        /// To which.
        pid: Pid,
        /// Which signal.
        signal: Signal,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl Process {
    /// Starts it on the thread that calls, which must be the host's.
    pub(super) fn start(mut command: tokio::process::Command) -> Result<Process, ProcessError> {
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        let failed = |source| ProcessError::Start { program: program.clone(), source };
        let mut child = command.process_group(0).spawn().map_err(failed)?;
        let pid = child.id().map(u32::cast_signed).and_then(rustix::process::Pid::from_raw);
        let pid = pid.expect("a child that nobody has waited for has a number");
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(error) => {
                // Without it nothing could be done to it safely.
                let _ = child.start_kill();
                return Err(failed(error.into()));
            }
        };
        let (ended, exit) = watch::channel(None);
        tokio::spawn(async move {
            let status = child.wait().await;
            ended.send_replace(Some(status.unwrap_or_default()));
        });
        Ok(Process { pid: Pid::from_raw(pid.as_raw_nonzero().get()), handle: handle.into(), exit })
    }

    /// Its number, which is also that of its group.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// How it ended; `None` while it runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.exit.borrow()
    }

    /// Waits until it has ended.
    pub async fn ended(&self) -> Result<ExitStatus, ProcessError> {
        let mut exit = self.exit.clone();
        let status = exit.wait_for(Option::is_some).await.map_err(|_| ProcessError::Host)?;
        status.ok_or(ProcessError::Host)
    }

    /// Sends it a signal: to it alone, not to what it has started.
    pub fn signal(&self, signal: Signal) -> Result<(), ProcessError> {
        if let Some(status) = self.exit_status() {
            return Err(ProcessError::Ended(status));
        }
        let number = rustix::process::Signal::from_named_raw(signal as i32);
        let number = number.expect("every named signal of one crate is one of the other");
        let sent = pidfd_send_signal(&*self.handle, number);
        sent.map_err(|error| ProcessError::Signal { pid: self.pid, signal, source: error.into() })
    }
}
