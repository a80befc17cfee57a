//! A command that somebody runs next to a worker: in its namespaces, its control group, with its user and environment.
//!
//! The agent starts this process, which joins the worker, starts the command and tells the agent how it ended. They speak on a
//! socket, which is the standard input of this process; its standard output and error are the command's. The command itself begins
//! as one more process of this program: that one ties itself to this one, joins the worker's mounts and gives up what the worker
//! gave up, and then executes. It is there before it joins them, for an image may have nothing that this program needs to start.
//!
//! **Invariant:** a command ends with its worker: it is in the worker's process namespace, which ends with its first process, or in
//! its control group, which the shim empties before it records the worker's end. In a job of another scheduler it is ended by who
//! runs the worker there, and what has left its session by the job's end. Where there is none of these, no command is run.
//! **Invariant:** a command has no more than its worker: a step that fails ends its process before the command begins.

use super::{confine, namespaces::failed, stage};
use crate::limits;
use crate::own_program;
use crate::process::cgroup;
use crate::process::exec::{FRAME_HEAD_BYTES, Frame, Request};
use crate::process::isolation::Namespaces;
use crate::process::processes;
use crate::process::task::{Running, TaskDir, TaskSpec};
use muster_types::terminal::TerminalSize;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{OpenptyResult, openpty};
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl::{set_dumpable, set_pdeathsig};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, Uid, fchown, setsid};
use rustix::process::{PidfdFlags, ioctl_tiocsctty, pidfd_open};
use rustix::termios::{Winsize, tcsetwinsize};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What the command of a process says that has not become its worker.
pub(crate) const NOT_YET: &str = "the worker is still being started; try again";
pub(crate) const ENDED: &str = "the worker has ended";
/// Words between that of a command's process and its command.
const BECOME_WORDS: usize = 5;
/// What stands before the name of each variable of the caller until the command's process is confined.
const VARIABLE: &str = "command:";
/// What a terminal takes for the end of its input at the beginning of a line.
const END_OF_TRANSMISSION: u8 = 4;
/// Between two looks whether the command of a terminal has ended.
const TERMINAL_LOOK_MS: u8 = 50;
/// Between two looks whether all of its output is handed on.
const FINISHED_LOOK: Duration = Duration::from_millis(5);

/// Runs a command next to the worker of this directory. Returns the exit code of this process, which says nothing of the
/// command's.
pub(super) fn main(directory: &Path) -> i32 {
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from) else { return 1 };
    let outcome =
        prepare(directory, &socket).and_then(|prepared| Joined::start(socket_of(&socket)?, prepared));
    match outcome.and_then(Joined::watch) {
        Ok(()) => 0,
        Err(why) => {
            // An agent that has gone needs no reason.
            let _ = (&socket).write_all(&Frame::Failed(crate::rules::detail(&why)).encode());
            1
        }
    }
}

fn socket_of(socket: &UnixStream) -> Result<UnixStream, String> {
    socket.try_clone().map_err(|error| format!("keep the agent's socket: {error}"))
}

/// What the command is started from; what this process starts from here on is among the worker's processes.
struct Prepared {
    request: Request,
    location: Location,
    terminal: Option<(Terminal, TerminalReader)>,
}

/// Where a command's process finds what it has to join. The namespaces are held open, so that their numbers stay theirs.
struct Location {
    directory: PathBuf,
    worker: i32,
    /// None where it has the host's.
    namespaces: Option<NamespaceFiles>,
}

/// The namespaces of a worker's mounts and of its users.
type NamespaceFiles = (File, File);

fn prepare(directory: &Path, socket: &UnixStream) -> Result<Prepared, String> {
    super::begin()?;
    let request = read_request(socket)?;
    let task = TaskDir::at(directory.to_owned());
    let spec = task.spec().map_err(|e| e.to_string())?.ok_or(ENDED)?;
    let running = task.running().map_err(|e| e.to_string())?.ok_or(NOT_YET)?;
    // Of the host's file system for terminals, which the worker may not see, and before its control group asks about devices.
    let terminal = request.terminal.map(|size| Terminal::open(size, spec.isolation.user)).transpose()?;
    let master = terminal.as_ref().map(|terminal| dup(&terminal.master)).transpose()?;
    let (worker, namespaces, reader) = join(&task, &spec, &running, master)?;
    let location = Location { directory: directory.to_owned(), worker, namespaces };
    Ok(Prepared { request, location, terminal: terminal.zip(reader) })
}

fn read_request(mut socket: &UnixStream) -> Result<Request, String> {
    let mut head = [0; FRAME_HEAD_BYTES];
    let broken = |error: io::Error| format!("read which command to run: {error}");
    socket.read_exact(&mut head).map_err(broken)?;
    let length = Frame::length(head).map_err(|error| error.to_string())?;
    let mut bytes = head.to_vec();
    bytes.resize(FRAME_HEAD_BYTES + length, 0);
    socket.read_exact(&mut bytes[FRAME_HEAD_BYTES..]).map_err(broken)?;
    match Frame::decode(&bytes) {
        Ok(Some((Frame::Request(request), _))) => Ok(request),
        _ => Err("the first message is no request".to_owned()),
    }
}

/// The worker's process as it stands below its shim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lineage {
    /// Below the shim; the first of the worker's processes where these are apart from the host's.
    pub(crate) init: i32,
    /// Below that.
    pub(crate) worker: i32,
}

/// Looks whether the worker runs and has become its program: only then it has given up what it was to give up.
pub(crate) fn lineage(task: &TaskDir, running: &Running) -> Result<Lineage, String> {
    // A lock that can be had is that of no shim: process ids mean nothing then.
    if task.exit().map_err(|e| e.to_string())?.is_some() || !matches!(task.try_lock(), Ok(None)) {
        return Err(ENDED.to_owned());
    }
    let worker = running.worker_pid;
    let init = processes::parent(worker).ok_or(ENDED)?;
    if processes::parent(init) != Some(running.shim_pid) {
        return Err(ENDED.to_owned());
    }
    let line = std::fs::read(format!("/proc/{worker}/cmdline")).map_err(|_| ENDED)?;
    if line.is_empty() || is_stage(&line) { Err(NOT_YET.to_owned()) } else { Ok(Lineage { init, worker }) }
}

/// Whether a command line is that of a process which has not become its worker.
fn is_stage(line: &[u8]) -> bool {
    let words: Vec<&[u8]> = line.strip_suffix(&[0]).unwrap_or(line).split(|byte| *byte == 0).collect();
    words.iter().rev().nth(4).is_some_and(|word| *word == super::STAGE.as_bytes())
        && words
            .last()
            .and_then(|word| std::str::from_utf8(word).ok())
            .and_then(Namespaces::of_word)
            .is_some()
}

fn open_namespace(pid: i32, kind: &str) -> Result<File, String> {
    let path = format!("/proc/{pid}/ns/{kind}");
    File::open(&path).map_err(|error| format!("open {path}: {error}"))
}

fn number_of(namespace: &File) -> Result<u64, String> {
    namespace
        .metadata()
        .map(|metadata| metadata.ino())
        .map_err(|error| format!("look at a namespace: {error}"))
}

/// Joins the worker's control group, and its processes with what this process starts. The worker, and its namespaces of mounts and
/// users, where it has its own; and who reads the command's terminal, where it has one.
fn join(
    task: &TaskDir,
    spec: &TaskSpec,
    running: &Running,
    terminal: Option<OwnedFd>,
) -> Result<(i32, Option<NamespaceFiles>, Option<TerminalReader>), String> {
    let namespaces = spec.isolation.namespaces;
    let empties = running.cgroup.as_ref().is_some_and(|group| group.join("cgroup.kill").exists());
    if namespaces == Namespaces::Host && !empties && !spec.is_in_job {
        return Err("this node has neither process namespaces nor control groups for its workers, so nothing would end a \
                    command together with its worker"
            .to_owned());
    }
    let before = lineage(task, running)?;
    let Lineage { init, worker } = before;
    let opened = match namespaces {
        Namespaces::Host => None,
        Namespaces::Root | Namespaces::User => {
            let of_worker = |kind| open_namespace(worker, kind);
            Some((open_namespace(init, "user")?, of_worker("user")?, of_worker("mnt")?, of_worker("pid")?))
        }
    };
    if let Some(group) = &running.cgroup {
        cgroup::join(group).map_err(|e| format!("join control group {}: {e}", group.display()))?;
    }
    crate::process::priority::step_back();
    // Looked at again behind both: what was opened and joined is this worker's, and its shim has not emptied the group since.
    if lineage(task, running)? != before {
        return Err(ENDED.to_owned());
    }
    let Some((outer, inner, mounts, pids)) = opened else {
        return Ok((worker, None, terminal.map(TerminalReader::start)));
    };
    if namespaces == Namespaces::User {
        if number_of(&outer)? == number_of(&inner)? {
            return Err(NOT_YET.to_owned());
        }
        setns(&outer, CloneFlags::CLONE_NEWUSER).map_err(failed("join the worker's user namespace"))?;
    }
    // A process with several threads joins no user namespace, and one whose children are of other processes starts no thread.
    let reader = terminal.map(TerminalReader::start);
    setns(&pids, CloneFlags::CLONE_NEWPID).map_err(failed("join the worker's processes"))?;
    Ok((worker, Some((mounts, inner)), reader))
}

/// The command, from the side of its starter.
struct Joined {
    socket: UnixStream,
    child: Child,
    ended: OwnedFd,
    stdin: Option<File>,
    /// Its terminal, where it has one, and who reads that.
    terminal: Option<(OwnedFd, TerminalReader)>,
    /// What has come of the agent and is not taken apart yet.
    heard: Vec<u8>,
    /// What is on its way into the command, from a position on.
    pending: (Vec<u8>, usize),
    /// The agent has said that no more input follows.
    is_last: bool,
    _location: Location,
}

impl Joined {
    fn start(socket: UnixStream, prepared: Prepared) -> Result<Joined, String> {
        let Prepared { request, location, terminal } = prepared;
        let parent = std::process::id().to_string();
        let mut command = own_program::again();
        command.args(super::before_own_arguments()).arg(super::BECOME).arg(&location.directory).arg(parent);
        let numbers = match &location.namespaces {
            Some((mounts, users)) => [number_of(mounts)?, number_of(users)?],
            None => [0, 0],
        };
        command.arg(location.worker.to_string()).args(numbers.map(|number| number.to_string()));
        // No variable of the caller or of the worker may reach that process under its own name before it is confined: a loader would
        // obey it. Nor may one be among its words, which every user of the host can read.
        let variables = request.environment.iter().map(|(name, value)| (format!("{VARIABLE}{name}"), value));
        command.args(&request.command).env_clear().envs(variables).stdin(Stdio::piped());
        let (terminal, reader) = terminal.unzip();
        let master = terminal.map(|terminal| terminal.give(&mut command)).transpose()?;
        let mut child = command.spawn().map_err(|e| format!("start the command's process: {e}"))?;
        // With it the other side of the terminal is closed here.
        drop(command);
        // What is here is nothing for a debugger of the same user.
        let _ = set_dumpable(false);
        let mut begun = || {
            let stdin = match (&master, child.stdin.take()) {
                (Some(master), _) => File::from(dup(master)?),
                (None, Some(pipe)) => File::from(OwnedFd::from(pipe)),
                (None, None) => return Err("a command without a pipe".to_owned()),
            };
            fcntl(&stdin, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
                .map_err(failed("prepare the command's input"))?;
            let pid = rustix::process::Pid::from_child(&child);
            let ended =
                pidfd_open(pid, PidfdFlags::empty()).map_err(|e| format!("watch the command: {e}"))?;
            (&socket).write_all(&Frame::Started.encode()).map_err(|e| format!("speak to the agent: {e}"))?;
            socket.set_nonblocking(true).map_err(|e| format!("listen to the agent: {e}"))?;
            Ok::<_, String>((stdin, ended))
        };
        match begun() {
            Ok((stdin, ended)) => Ok(Joined {
                socket,
                child,
                ended,
                stdin: Some(stdin),
                terminal: master.zip(reader),
                heard: Vec::new(),
                pending: (Vec::new(), 0),
                is_last: false,
                _location: location,
            }),
            Err(why) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(why)
            }
        }
    }

    /// Until the command has ended, or the agent has gone and the command is killed.
    fn watch(mut self) -> Result<(), String> {
        loop {
            self.feed();
            let waits = self.pending.1 < self.pending.0.len();
            // Who takes no input is not sent more: the agent waits, and behind it the one who writes. Its end is seen all the same.
            let wanted = if waits { PollFlags::empty() } else { PollFlags::POLLIN };
            let (polled, ended, socket) = {
                let mut fds = vec![
                    PollFd::new(self.ended.as_fd(), PollFlags::POLLIN),
                    PollFd::new(self.socket.as_fd(), wanted),
                ];
                if let Some(stdin) = self.stdin.as_ref().filter(|_| waits) {
                    fds.push(PollFd::new(stdin.as_fd(), PollFlags::POLLOUT));
                }
                let polled = poll(&mut fds, PollTimeout::NONE);
                let seen = |fd: &PollFd<'_>| fd.revents().unwrap_or(PollFlags::empty());
                (polled, seen(&fds[0]), seen(&fds[1]))
            };
            match polled {
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(self.kill(format!("wait for what happens: {error}"))),
            }
            let gone = socket.intersects(PollFlags::POLLHUP | PollFlags::POLLERR);
            if ended.contains(PollFlags::POLLIN) {
                return self.tell_end();
            }
            if gone || (!waits && !self.hear()?) {
                return Err(self.kill("the agent has gone".to_owned()));
            }
        }
    }

    /// Kills the command and what it has started in its session; passes the reason on.
    fn kill(&mut self, why: String) -> String {
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait();
        why
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        // Not the leader of a group yet in its first moment.
        if killpg(pid, signal).is_err() {
            let _ = kill(pid, signal);
        }
    }

    fn tell_end(&mut self) -> Result<(), String> {
        let status = self.child.wait().map_err(|e| format!("wait for the command: {e}"))?;
        let frame = match (status.code(), status.signal()) {
            (Some(code), _) => Frame::Exited(code),
            (None, Some(signal)) => Frame::Signaled(signal),
            (None, None) => Frame::Failed(format!("the command ended in an unknown way: {status}")),
        };
        if let Some((_, reader)) = self.terminal.take() {
            reader.finish(limits::OUTPUT_DRAIN_MAX);
        }
        self.socket.set_nonblocking(false).map_err(|e| e.to_string())?;
        self.socket.write_all(&frame.encode()).map_err(|e| e.to_string())
    }

    /// Takes what the agent says; false at its end.
    fn hear(&mut self) -> Result<bool, String> {
        let mut bytes = [0; 16 << 10];
        match self.socket.read(&mut bytes) {
            Ok(0) => return Ok(false),
            Ok(read) => self.heard.extend_from_slice(&bytes[..read]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(self.kill(format!("listen to the agent: {error}"))),
        }
        Ok(true)
    }

    /// Takes apart what was heard, as far as the command takes its input.
    fn feed(&mut self) {
        loop {
            let (bytes, at) = &mut self.pending;
            if let (Some(stdin), true) = (&mut self.stdin, *at < bytes.len()) {
                match stdin.write(&bytes[*at..]) {
                    Ok(written) => *at += written,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // It has closed its input; what is written there from now on goes nowhere.
                    Err(_) => self.stdin = None,
                }
                continue;
            }
            self.pending = (Vec::new(), 0);
            if self.is_last && self.terminal.is_none() {
                self.stdin = None;
            }
            match Frame::decode(&self.heard) {
                Ok(Some((frame, length))) => {
                    self.heard.drain(..length);
                    self.take(frame);
                }
                Ok(None) => return,
                // The agent is of this release; what is broken is not worth more than an end.
                Err(_) => {
                    self.heard.clear();
                    self.signal(Signal::SIGKILL);
                    return;
                }
            }
        }
    }

    fn take(&mut self, frame: Frame) {
        match frame {
            Frame::Input(bytes) if self.stdin.is_some() => self.pending = (bytes, 0),
            // A terminal has no end: what stands for one is a character.
            Frame::InputEnd if self.terminal.is_some() && !self.is_last => {
                self.pending = (vec![END_OF_TRANSMISSION], 0);
                self.is_last = true;
            }
            Frame::InputEnd => self.is_last = true,
            Frame::Resize(size) => {
                if let Some((master, _)) = &self.terminal {
                    // A terminal that nobody has open any more has no size.
                    let _ = tcsetwinsize(master, winsize(size));
                }
            }
            Frame::Signal(number) => {
                if let Ok(signal) = Signal::try_from(number) {
                    self.signal(signal);
                }
            }
            Frame::Input(_)
            | Frame::Request(_)
            | Frame::Started
            | Frame::Exited(_)
            | Frame::Signaled(_)
            | Frame::Failed(_) => {}
        }
    }
}

/// A terminal for a command, or for a worker.
pub(super) struct Terminal {
    pub(super) master: OwnedFd,
    pub(super) slave: OwnedFd,
}

impl Terminal {
    pub(super) fn open(size: TerminalSize, user: Option<u32>) -> Result<Terminal, String> {
        let OpenptyResult { master, slave } =
            openpty(None, None).map_err(|error| format!("make a terminal: {error}"))?;
        for end in [&master, &slave] {
            fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(failed("make a terminal"))?;
        }
        tcsetwinsize(&master, winsize(size)).map_err(|error| format!("make a terminal: {error}"))?;
        if let Some(user) = user {
            fchown(&slave, Some(Uid::from_raw(user)), None)
                .map_err(failed("give the command its terminal"))?;
        }
        Ok(Terminal { master, slave })
    }

    /// Makes it the three streams of a command; the side that stays here.
    fn give(self, command: &mut Command) -> Result<OwnedFd, String> {
        command.stdin(dup(&self.slave)?).stdout(dup(&self.slave)?).stderr(self.slave);
        Ok(self.master)
    }
}

fn dup(fd: &OwnedFd) -> Result<OwnedFd, String> {
    fd.try_clone().map_err(|error| format!("keep a terminal: {error}"))
}

pub(super) fn winsize(size: TerminalSize) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Hands on what a command writes to its terminal, to the standard output of this process.
struct TerminalReader {
    /// The command has ended: what is there by now is all.
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl TerminalReader {
    fn start(master: OwnedFd) -> TerminalReader {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || copy_terminal(&File::from(master), &seen));
        TerminalReader { is_over, thread }
    }

    /// Waits until all is handed on, the agent has gone, or for this time: a caller that takes nothing must not keep this process, for
    /// which the worker's shim may wait. The thread ends with the process.
    fn finish(self, wait_max: Duration) {
        self.is_over.store(true, Ordering::Relaxed);
        let until = Instant::now() + wait_max;
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(FINISHED_LOOK);
        }
    }
}

/// Until the last process has closed the terminal, nobody takes its output, or the command has ended and nothing is left.
fn copy_terminal(mut master: &File, is_over: &AtomicBool) {
    let mut bytes = [0; 16 << 10];
    let mut last_of_all = None;
    loop {
        let ended = is_over.load(Ordering::Relaxed);
        // What it left in the background may write for as long as the worker runs.
        if ended
            && *last_of_all.get_or_insert_with(|| Instant::now() + limits::OUTPUT_DRAIN_MAX) <= Instant::now()
        {
            return;
        }
        let mut fds = [PollFd::new(master.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(TERMINAL_LOOK_MS)) {
            Ok(0) if ended => return,
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(_) => return,
        }
        match master.read(&mut bytes) {
            Ok(0) => return,
            Ok(read) => {
                let mut out = io::stdout().lock();
                if out.write_all(&bytes[..read]).and_then(|()| out.flush()).is_err() {
                    return;
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // Nobody has its other side open any more.
            Err(_) => return,
        }
    }
}

/// What a command's process is told, before its command.
struct Orders {
    task: TaskDir,
    /// Who started it, as the host numbers it.
    parent: i32,
    worker: i32,
    /// Numbers of the namespaces of mounts and users.
    numbers: [u64; 2],
}

impl Orders {
    fn read([directory, parent, worker, mounts, users]: &[OsString; BECOME_WORDS]) -> Option<Orders> {
        let number = |word: &OsString| word.to_str()?.parse::<u64>().ok();
        let pid = |word: &OsString| word.to_str()?.parse::<i32>().ok();
        Some(Orders {
            task: TaskDir::at(PathBuf::from(directory)),
            parent: pid(parent)?,
            worker: pid(worker)?,
            numbers: [number(mounts)?, number(users)?],
        })
    }

    /// Joins the worker's mounts and gives up what the worker gave up. Ends in the worker's directory, with its
    /// environment.
    fn carry_out(&self) -> Result<BTreeMap<String, String>, String> {
        let spec = self.task.spec().map_err(|e| e.to_string())?.ok_or(ENDED)?;
        let namespaces = spec.isolation.namespaces;
        if namespaces != Namespaces::Host {
            let mounts = open_namespace(self.worker, "mnt")?;
            let users = open_namespace(self.worker, "user")?;
            // The one that was looked at: another process may have the worker's number by now.
            if [number_of(&mounts)?, number_of(&users)?] != self.numbers {
                return Err(ENDED.to_owned());
            }
            setns(&mounts, CloneFlags::CLONE_NEWNS).map_err(failed("join the worker's mounts"))?;
            if namespaces == Namespaces::User {
                // The one in which it is the agent's user again and has no say over what was mounted.
                setns(&users, CloneFlags::CLONE_NEWUSER).map_err(failed("join the worker's users"))?;
            }
        }
        confine::confine_joined(&spec.isolation)?;
        std::env::set_current_dir(&spec.working_directory)
            .map_err(|e| format!("working directory {}: {e}", spec.working_directory.display()))?;
        Ok(spec.environment)
    }
}

/// Becomes the command; returns only when that is impossible. `words` are what [`Joined::start`] says, and the command.
pub(super) fn become_command(words: &[OsString]) -> Option<i32> {
    let (orders, command) = words.split_first_chunk::<BECOME_WORDS>()?;
    let orders = Orders::read(orders)?;
    let outcome = (|| {
        let starter = Starter::new(orders.parent)?;
        starter.tie()?;
        let mut environment = orders.carry_out()?;
        // A change of the user undoes it.
        starter.tie()?;
        // What it starts is signalled together with it.
        setsid().map_err(failed("start a session"))?;
        if io::stdin().is_terminal() {
            ioctl_tiocsctty(io::stdin()).map_err(|e| format!("take the terminal: {e}"))?;
        }
        let (program, rest) = command.split_first().ok_or("the command is empty")?;
        let mark = environment.get(processes::MARK_VARIABLE).cloned();
        let more = variables_of(std::env::vars_os());
        environment.extend(more.filter_map(|(name, value)| Some((name, value.into_string().ok()?))));
        // Found whatever the caller adds, who does not set it.
        if let Some(mark) = mark {
            processes::mark_environment(&mut environment, mark)?;
        }
        let error = Command::new(program).args(rest).env_clear().envs(&environment).exec();
        Err::<std::convert::Infallible, String>(format!("execute {}: {error}", display(program)))
    })();
    match outcome {
        Ok(never) => match never {},
        Err(why) => {
            super::complain(&why);
            Some(stage::NOT_EXECUTED)
        }
    }
}

/// The caller's variables, under their own names.
fn variables_of(all: impl Iterator<Item = (OsString, OsString)>) -> impl Iterator<Item = (String, OsString)> {
    all.filter_map(|(name, value)| Some((name.to_str()?.strip_prefix(VARIABLE)?.to_owned(), value)))
}

/// Who started this process, with which it ends. Among the worker's processes `getppid` is 0, and stays 0 when that one has ended.
struct Starter {
    pid: i32,
    /// Of this process, from the host's `/proc`: the worker's mounts have another.
    status: File,
}

impl Starter {
    fn new(pid: i32) -> Result<Starter, String> {
        let opened = File::open("/proc/self/status");
        let status = opened.map_err(|e| format!("look who started the command's process: {e}"))?;
        Ok(Starter { pid, status })
    }

    fn tie(&self) -> Result<(), String> {
        set_pdeathsig(Signal::SIGKILL).map_err(failed("tie the command to its starter"))?;
        let mut text = String::new();
        let mut status = &self.status;
        let read = status.rewind().and_then(|()| status.read_to_string(&mut text));
        read.map_err(|e| format!("look who started the command's process: {e}"))?;
        if parent_in(&text) == Some(self.pid) {
            Ok(())
        } else {
            Err("the process that started the command has ended".to_owned())
        }
    }
}

/// The parent, as a process's status has it.
fn parent_in(status: &str) -> Option<i32> {
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

fn display(program: &OsStr) -> String {
    crate::rules::detail(&program.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_not_become_its_worker_is_known_by_its_command_line() {
        let line = |words: &[&str]| {
            words.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect::<Vec<u8>>()
        };
        assert!(is_stage(&line(&["muster-shim", "stage", "/t/job-1", "1", "0", "root"])));
        assert!(is_stage(&line(&["muster", "shim", "stage", "/t/job-1", "7", "-17", "host"])));
        for other in [&["sleep", "60"][..], &["stage"], &["a", "stage", "b", "c", "d", "e"], &[]] {
            assert!(!is_stage(&line(other)), "{other:?}");
        }
    }

    #[test]
    fn the_orders_of_a_command_are_whole_or_none() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let whole = words(&["/t/a", "7", "12", "34", "56", "sh"]);
        let (orders, rest) = whole.split_first_chunk::<BECOME_WORDS>().unwrap();
        let orders = Orders::read(orders).unwrap();
        assert_eq!((orders.parent, orders.worker, orders.numbers), (7, 12, [34, 56]));
        assert_eq!(rest, words(&["sh"]));
        for bad in [&["/t/a", "0", "12", "34"][..], &["/t/a", "x", "1", "1", "1", "sh"]] {
            assert_eq!(become_command(&words(bad)), None, "{bad:?}");
        }
    }

    #[test]
    fn variables_come_under_names_that_no_loader_knows() {
        let all = [("command:LD_PRELOAD", "/x"), ("PATH", "/bin"), ("command:A", "b=c"), ("command", "d")];
        let all = all.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let of_caller: Vec<_> = variables_of(all.into_iter()).collect();
        let expected = [("LD_PRELOAD", "/x"), ("A", "b=c")];
        assert_eq!(of_caller, expected.map(|(name, value)| (name.to_owned(), OsString::from(value))));
    }

    #[test]
    fn a_process_knows_who_started_it_and_that_another_did_not() {
        let parent = nix::unistd::getppid().as_raw();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(parent_in(&status), Some(parent));
        assert_eq!(parent_in("Name:\tPPid: 3\nPPid:\t12\n"), Some(12));
        assert_eq!(parent_in("Name:\tx\n"), None);
    }

    #[test]
    fn a_terminal_whose_output_nobody_takes_keeps_no_process() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = held.recv();
        });
        let reader = TerminalReader { is_over: Arc::default(), thread };
        let before = Instant::now();
        reader.finish(Duration::from_millis(30));
        assert!(before.elapsed() >= Duration::from_millis(30));
        drop(release);
        let thread = std::thread::spawn(|| ());
        TerminalReader { is_over: Arc::default(), thread }.finish(Duration::from_secs(3_600));
    }

    #[test]
    fn the_first_message_is_a_request_or_nothing_is_run() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let request = Request {
            command: vec!["true".into()],
            environment: [("A".into(), "b".into())].into(),
            terminal: None,
        };
        theirs.write_all(&Frame::Request(request.clone()).encode()).unwrap();
        assert_eq!(read_request(&ours).unwrap(), request);
        theirs.write_all(&Frame::InputEnd.encode()).unwrap();
        assert!(read_request(&ours).is_err());
        theirs.write_all(&[1, 0xff, 0xff, 0xff, 0xff]).unwrap();
        assert!(read_request(&ours).unwrap_err().contains("long"));
        drop(theirs);
        assert!(read_request(&ours).is_err());
    }
}
