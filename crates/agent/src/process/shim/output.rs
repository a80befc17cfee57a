//! From the worker's pipes into its transcript.
//!
//! One thread sleeps on both pipes and takes from whichever has something, so the streams are kept in the
//! order in which they came, as far as two pipes can show it.
//!
//! **Invariant:** the pipes are always drained: a full disk or a failing write costs output, which is
//! counted, never a worker that blocks on it, and never the shim's own attention (this is a separate
//! thread).

use crate::process::transcript::{OutputStream, OutputTally, Writer};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

/// Taken from a pipe at once: what a pipe holds.
const PIPE_BYTES: usize = 64 << 10;

/// The thread that copies.
pub(super) struct Copying {
    done: Receiver<OutputTally>,
}

impl Copying {
    /// Starts the thread.
    pub(super) fn start(pipes: Vec<(OwnedFd, OutputStream)>, writer: Writer) -> Copying {
        let (tell, done): (Sender<OutputTally>, _) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            crate::process::priority::step_back();
            let tally = copy(pipes, writer);
            // The receiver is gone only when the shim is about to end anyway.
            let _ = tell.send(tally);
        });
        Copying { done }
    }

    /// Waits until the pipes are at their end, at most this long; what became of the output, if that is known by then.
    pub(super) fn finish(self, patience: Duration) -> Option<OutputTally> {
        // Whatever holds a pipe open by then is no process of the worker.
        self.done.recv_timeout(patience).ok()
    }
}

fn copy(pipes: Vec<(OwnedFd, OutputStream)>, mut writer: Writer) -> OutputTally {
    let mut pipes: Vec<(File, OutputStream)> =
        pipes.into_iter().map(|(pipe, stream)| (File::from(pipe), stream)).collect();
    let mut buffer = vec![0u8; PIPE_BYTES];
    let mut complained = false;
    let mut complain_once = |error: &io::Error| {
        if !std::mem::replace(&mut complained, true) {
            super::complain(&format!("output is being lost: {error}"));
        }
    };
    while !pipes.is_empty() {
        let mut fds: Vec<PollFd<'_>> =
            pipes.iter().map(|(pipe, _)| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)).collect();
        let polled = poll(&mut fds, PollTimeout::NONE);
        if polled == Err(Errno::EINTR) {
            continue;
        }
        // Where it cannot be known, reading tells.
        let is_ready =
            |fd: &PollFd<'_>| polled.is_err() || fd.revents().is_none_or(|events| !events.is_empty());
        let ready: Vec<bool> = fds.iter().map(is_ready).collect();
        let mut ready = ready.into_iter();
        pipes.retain_mut(|(pipe, stream)| {
            if !ready.next().unwrap_or(true) {
                return true;
            }
            match pipe.read(&mut buffer) {
                Ok(0) => false,
                Ok(read) => {
                    if let Err(error) = writer.write(*stream, &buffer[..read]) {
                        complain_once(&error);
                    }
                    true
                }
                Err(error) => error.kind() == io::ErrorKind::Interrupted,
            }
        });
    }
    if let Err(error) = writer.finish() {
        complain_once(&error);
    }
    writer.tally()
}
