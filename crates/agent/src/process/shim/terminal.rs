//! The terminal of a worker whose job asks for one.
//!
//! The shim holds it as long as the worker is there, so nobody who attaches or leaves makes a difference to the worker. What the
//! worker writes goes into its output like that of every worker, where those who are attached read it. What they type comes
//! through a FIFO in the worker's directory, in the messages of commands next to workers (`process/exec.rs`).
//!
//! **Invariant:** only the agent's user types; what is no message is dropped, and costs nobody more than its own input.

use super::exec::{Terminal, winsize};
use super::namespaces::failed;
use crate::limits;
use crate::process::exec::{FRAME_HEAD_BYTES, Frame};
use crate::process::task::{TaskDir, TaskSpec};
use muster_types::terminal::TerminalSize;
use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::{mkfifo, setsid};
use rustix::process::ioctl_tiocsctty;
use rustix::termios::tcsetwinsize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

/// How large it is until somebody attaches.
const SIZE: TerminalSize = TerminalSize { rows: 24, columns: 80 };
/// Taken from the FIFO at once.
const PIECE_BYTES: usize = 4_096;

/// The terminal from its shim's side. The worker's side is held open here as well, so that there is always somebody.
pub(super) struct WorkerTerminal {
    terminal: Terminal,
}

impl WorkerTerminal {
    /// That of a worker, with a thread that takes what is typed; none where the worker has none.
    pub(super) fn open(task: &TaskDir, spec: &TaskSpec) -> Result<Option<WorkerTerminal>, String> {
        if !spec.terminal {
            return Ok(None);
        }
        let terminal = Terminal::open(SIZE, spec.isolation.user)?;
        let device = fs::read_link(format!("/proc/self/fd/{}", terminal.slave.as_raw_fd()));
        let device = device.map_err(|e| format!("find the worker's terminal: {e}"))?;
        let told = std::os::unix::fs::symlink(device, task.terminal_device());
        told.map_err(|e| format!("tell the worker's terminal: {e}"))?;
        match mkfifo(&task.terminal_input(), Mode::S_IRUSR | Mode::S_IWUSR) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(format!("make a FIFO for the worker's terminal: {error}")),
        }
        // Both ends, so that there is never an end of what is typed.
        let typed = OpenOptions::new().read(true).write(true).open(task.terminal_input());
        let typed = typed.map_err(|e| format!("open the FIFO of the worker's terminal: {e}"))?;
        let master = terminal.master.try_clone().map_err(|e| format!("keep the worker's terminal: {e}"))?;
        std::thread::spawn(move || {
            crate::process::priority::step_back();
            hand_on(typed, &mut File::from(master));
        });
        Ok(Some(WorkerTerminal { terminal }))
    }

    /// Where what the worker writes is read; none where the shim may have no more files.
    pub(super) fn output(&self) -> Option<OwnedFd> {
        self.terminal.master.try_clone().ok()
    }
}

/// Hands on what is typed, as long as this process is there.
fn hand_on(mut typed: impl Read, terminal: &mut File) {
    let (mut heard, mut bytes) = (Vec::new(), [0u8; PIECE_BYTES]);
    loop {
        let read = match typed.read(&mut bytes) {
            Ok(0) => return,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        heard.extend_from_slice(bytes.get(..read).unwrap_or_default());
        while let Some(frame) = next_frame(&mut heard) {
            match frame {
                Frame::Input(text) => {
                    // A worker that reads nothing makes those wait who type, and nobody else.
                    let _ = terminal.write_all(&text);
                }
                Frame::Resize(size) => {
                    let _ = tcsetwinsize(&*terminal, winsize(size));
                }
                _ => {}
            }
        }
    }
}

/// The next message; what is none is dropped with all that was heard.
fn next_frame(heard: &mut Vec<u8>) -> Option<Frame> {
    match Frame::decode(heard) {
        Ok(Some((frame, length))) => {
            heard.drain(..length);
            Some(frame)
        }
        Ok(None) if heard.len() <= FRAME_HEAD_BYTES + limits::EXEC_FRAME_BYTES_MAX => None,
        Ok(None) | Err(_) => {
            heard.clear();
            None
        }
    }
}

/// Makes the terminal that of this process, which leads a session from here on.
pub(super) fn take(task: &TaskDir) -> Result<File, String> {
    setsid().map_err(failed("start a session for the worker's terminal"))?;
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(nix::libc::O_NOCTTY)
        .open(task.terminal_device());
    let terminal = opened.map_err(|e| format!("open the worker's terminal: {e}"))?;
    ioctl_tiocsctty(&terminal).map_err(|e| format!("take the worker's terminal: {e}"))?;
    Ok(terminal)
}

/// Makes it the three streams of a program.
pub(super) fn give(terminal: File, command: &mut Command) -> Result<(), String> {
    let dup = || terminal.try_clone().map_err(|e| format!("keep the worker's terminal: {e}"));
    command.stdin(dup()?).stdout(dup()?).stderr(terminal);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_message_is_dropped_and_what_follows_is_heard() {
        let mut heard = Frame::Input(b"ls\n".to_vec()).encode();
        heard.extend(Frame::Resize(TerminalSize { rows: 1, columns: 2 }).encode());
        let rest = heard.split_off(heard.len() - 1);
        assert_eq!(next_frame(&mut heard), Some(Frame::Input(b"ls\n".to_vec())));
        assert_eq!(next_frame(&mut heard), None);
        heard.extend(rest);
        assert_eq!(next_frame(&mut heard), Some(Frame::Resize(TerminalSize { rows: 1, columns: 2 })));
        heard.extend([99, 0, 0, 0, 0]);
        assert_eq!(next_frame(&mut heard), None);
        assert!(heard.is_empty());
    }

    #[test]
    fn what_is_typed_reaches_the_terminal() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("terminal");
        let mut typed = Frame::Input(b"one ".to_vec()).encode();
        typed.extend(Frame::Input(b"two".to_vec()).encode());
        hand_on(typed.as_slice(), &mut File::create(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"one two");
    }
}
