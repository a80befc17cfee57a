//! Processes that a launcher starts, and the events it acts on.

use super::protocol::HubMessage;
use super::{Failure, PART_MAX, TERM_MAX};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Instant;

/// What a launcher reacts to.
#[derive(Debug)]
pub(super) enum Event {
    /// SIGTERM or its like.
    Stop,
    /// A child has ended.
    Ended { id: u64, code: i32 },
    /// A child printed a line that was waited for.
    Marked { id: u64 },
    /// A Ray node may be started on this machine, until the file is dropped.
    Turn(Option<File>),
    /// A member is there.
    Joined,
    /// A member is part of the cluster.
    Ready { rank: usize },
    /// A member is gone.
    Left { rank: usize },
    /// `remote` wants a line run here, in rank 0.
    RunHere { id: u64, shell: String },
    /// Its `remote` is gone.
    KillHere { id: u64 },
    /// Where a member stands, the hub's word; none when the hub is gone.
    Hub(Option<HubMessage>),
}

/// Turns the signals to this process into events. To be called before any other thread exists.
pub(super) fn watch_signals(events: SyncSender<Event>) -> Result<(), Failure> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block().map_err(|e| format!("block signals: {e}"))?;
    std::thread::spawn(move || {
        while set.wait().is_ok() {
            if events.send(Event::Stop).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Children by numbers of ours; each leads a separate process group, so that what is sent to the
/// worker's group reaches the launcher alone.
pub(super) struct Children {
    pub(super) events: SyncSender<Event>,
    running: BTreeMap<u64, Pid>,
}

impl Children {
    pub(super) fn new(events: SyncSender<Event>) -> Children {
        Children { events, running: BTreeMap::new() }
    }

    /// Starts a program; its end comes as an event.
    pub(super) fn start(&mut self, id: u64, command: &mut Command) -> Result<(), Failure> {
        let child = self.spawn(id, command)?;
        self.wait(id, child);
        Ok(())
    }

    /// The same for a program with pipes, which the caller takes before it hands the child to
    /// [`Children::wait`].
    pub(super) fn spawn(&mut self, id: u64, command: &mut Command) -> Result<Child, Failure> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.process_group(0).spawn().map_err(|e| format!("start {program}: {e}"))?;
        self.running.insert(id, Pid::from_raw(child.id().cast_signed()));
        Ok(child)
    }

    /// Tells the end of a child as an event.
    pub(super) fn wait(&self, id: u64, mut child: Child) {
        let events = self.events.clone();
        std::thread::spawn(move || {
            let code = match child.wait() {
                Ok(status) => status.code().or(status.signal().map(|s| 128 + s)).unwrap_or(1),
                Err(_) => 1,
            };
            // The launcher is gone.
            let _ = events.send(Event::Ended { id, code });
        });
    }

    /// To be called for every [`Event::Ended`]: the number may be another process's from now on.
    pub(super) fn ended(&mut self, id: u64) {
        self.running.remove(&id);
    }

    pub(super) fn is_running(&self, id: u64) -> bool {
        self.running.contains_key(&id)
    }

    pub(super) fn are_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Sends a signal to a child and its group.
    pub(super) fn signal(&self, id: u64, signal: Signal) {
        if let Some(pid) = self.running.get(&id) {
            // The child ended this moment.
            let _ = killpg(*pid, signal);
        }
    }

    /// Sends a signal to all.
    pub(super) fn signal_all(&self, signal: Signal) {
        for id in self.running.keys() {
            self.signal(*id, signal);
        }
    }
}

/// Asks everything to end, kills what does not, and waits until nothing runs and nobody is `awaited`: one for each
/// [`Event::Left`] that is to come. What is left after [`PART_MAX`] goes with the worker.
pub(super) fn wind_down(children: &mut Children, incoming: &Receiver<Event>, mut awaited: usize) {
    children.signal_all(Signal::SIGTERM);
    let begun = Instant::now();
    let mut killed = false;
    while awaited > 0 || children.are_running() {
        let limit = if killed || !children.are_running() { PART_MAX } else { TERM_MAX };
        match incoming.recv_timeout(limit.saturating_sub(begun.elapsed())) {
            Ok(Event::Left { .. }) => awaited = awaited.saturating_sub(1),
            Ok(Event::Ended { id, .. }) => children.ended(id),
            Ok(_) => {}
            Err(_) if limit == TERM_MAX => {
                children.signal_all(Signal::SIGKILL);
                killed = true;
            }
            Err(_) => return,
        }
    }
}

/// A shell that runs one line, with separate temporary files: daemons of one job that find each other's on one
/// machine take themselves for one.
pub(super) fn shell(line: &str, scratch: &Path) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(line).stdin(std::process::Stdio::null());
    if std::fs::DirBuilder::new().recursive(true).mode(0o700).create(scratch).is_ok() {
        command.env("TMPDIR", scratch);
    }
    command
}
