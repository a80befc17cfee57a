//! The shim's loop: one thread that sleeps on timer, signals and control, and decides who must die.
//!
//! **Invariant:** after every wake-up, however long the sleep was, the lease is looked at before
//! anything else; the deadline only ever comes from a whole slot of our holder and our epoch.

use super::disk::DiskWatch;
use super::init_report::{InitReport, REPORT_BYTES, STOP};
use super::stage::Launched;
use crate::clock::BootTime;
use crate::disk::lease::{LeaseSlot, read_path};
use crate::limits;
use crate::process::cgroup::Cgroup;
use crate::process::memory;
use crate::process::processes;
use crate::process::task::{CONTROL_MESSAGE_BYTES, TaskSpec};
use crate::rules::deadline_of;
use muster_types::ExitStatus;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::timer::TimerSetTimeFlags;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// When the killing is repeated while something is left: a process may fork between the look and the
/// kill. At first soon, then ever more rarely, for what is left then is stuck in the kernel.
const KILL_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Between two looks at the worker's memory, of which no event tells: usually, and near its limit.
const MEMORY_LOOK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(100));
/// Between two looks at what was counted of its files.
const DISK_LOOK: Duration = Duration::from_secs(1);
/// The part of its limit that counts as near, in percent.
const MEMORY_NEAR_PERCENT: u64 = 75;

/// Holds the worker to its memory where the kernel does not.
struct MemoryWatch {
    max: u64,
    look_at: BootTime,
}

/// Reads the lease file on a separate thread, so that a hanging disk cannot hold up the deadline.
pub(super) struct LeaseWatch {
    ask: SyncSender<()>,
    answer: Receiver<Option<LeaseSlot>>,
    holder: u128,
    epoch: u64,
    /// The last good slot.
    last: LeaseSlot,
}

impl LeaseWatch {
    /// The lease as it stands, when it stands.
    pub(super) fn start(spec: &TaskSpec) -> Result<LeaseWatch, String> {
        let (ask, asked) = sync_channel::<()>(1);
        let (tell, answer) = sync_channel(1);
        let path = spec.lease_path.clone();
        std::thread::spawn(move || {
            for () in asked {
                let slot = read_path(&path).map_err(|e| super::complain(&e.to_string())).ok();
                if tell.send(slot).is_err() {
                    return;
                }
            }
        });
        let none =
            LeaseSlot { sequence: 0, epoch: 0, deadline: BootTime(0), grace_ms: 0, holder: spec.holder.0 };
        let mut watch = LeaseWatch { ask, answer, holder: spec.holder.0, epoch: spec.epoch, last: none };
        if watch.still_stands() { Ok(watch) } else { Err("the lease had run out before the launch".into()) }
    }

    /// Reads again; whether our lease stands now.
    fn still_stands(&mut self) -> bool {
        // A full queue: the thread still hangs in an earlier read.
        if self.ask.try_send(()).is_err() {
            return false;
        }
        // The wait is taken out of the grace, which counts from the deadline: half of it is bearable.
        let patience = Duration::from_millis(self.last.grace_ms / 2);
        let patience = patience.clamp(limits::LEASE_READ_MAX.0, limits::LEASE_READ_MAX.1);
        let Ok(Some(slot)) = self.answer.recv_timeout(patience) else { return false };
        let term = (slot.holder == self.holder).then(|| slot.term());
        let Some(deadline) = deadline_of(term, self.epoch) else { return false };
        self.last = slot;
        BootTime::now() < deadline
    }
}

/// What wakes the guard.
pub(super) struct Events {
    signals: SignalFd,
    timer: TimerFd,
    control: File,
}

impl Events {
    pub(super) fn open(control: File) -> Result<Events, String> {
        let signals =
            SignalFd::with_flags(&super::watched_signals(), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
                .map_err(|e| format!("watch signals: {e}"))?;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)
            .map_err(|e| format!("make a timer: {e}"))?;
        Ok(Events { signals, timer, control })
    }

    /// Sleeps until `until` or an event.
    fn sleep(&self, until: BootTime, socket: Option<BorrowedFd<'_>>) {
        let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME;
        // A timer that cannot be set would sleep for ever: then the loop turns without sleep instead.
        let timeout = match self.timer.set(Expiration::OneShot(until.timespec()), flags) {
            Ok(()) => PollTimeout::NONE,
            Err(_) => PollTimeout::from(50u8),
        };
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.control.as_fd(), PollFlags::POLLIN),
        ];
        fds.extend(socket.map(|socket| PollFd::new(socket, PollFlags::POLLIN)));
        // An interrupted or failed poll is a wake-up like any other.
        let _ = poll(&mut fds, timeout);
    }

    /// The shortest grace that was asked for since the last look.
    fn stop_asked(&mut self, grace_ms_default: u64) -> Option<u64> {
        let mut grace = None;
        let mut message = [0u8; CONTROL_MESSAGE_BYTES];
        while let Ok(CONTROL_MESSAGE_BYTES) = self.control.read(&mut message) {
            let asked = u64::from_le_bytes(message);
            grace = Some(grace.map_or(asked, |g: u64| g.min(asked)));
        }
        while let Ok(Some(signal)) = self.signals.read_signal() {
            if signal.ssi_signo != Signal::SIGCHLD as u32 {
                grace = Some(grace.map_or(grace_ms_default, |g: u64| g.min(grace_ms_default)));
            }
        }
        grace
    }
}

/// The state of one worker's watch.
pub(super) struct Guard<'a> {
    lease: LeaseWatch,
    events: Events,
    /// The first process of the worker's namespaces, and what it says.
    init: Pid,
    socket: UnixStream,
    cgroup: Option<&'a Cgroup>,
    stop_grace_ms: u64,
    /// Set once; nothing takes it back.
    lease_expired: bool,
    term_sent: bool,
    kill_at: Option<BootTime>,
    /// The worker's own end; its descendants may still be there.
    ended: Option<ExitStatus>,
    init_ended: bool,
    kill_again: Duration,
    memory: Option<MemoryWatch>,
    out_of_memory: bool,
    disk: Option<DiskWatch>,
    scratch: Option<DiskWatch>,
    out_of_scratch: bool,
    /// Into the worker's output.
    note: Option<PipeWriter>,
}

impl<'a> Guard<'a> {
    pub(super) fn new(
        lease: LeaseWatch,
        events: Events,
        launched: Launched,
        cgroup: Option<&'a Cgroup>,
        stop_grace_ms: u64,
    ) -> Result<Guard<'a>, String> {
        let Launched { socket, init, .. } = launched;
        socket.set_nonblocking(true).map_err(|e| format!("listen to the worker's first process: {e}"))?;
        Ok(Guard {
            lease,
            events,
            init,
            socket,
            cgroup,
            stop_grace_ms,
            lease_expired: false,
            term_sent: false,
            kill_at: None,
            ended: None,
            init_ended: false,
            kill_again: KILL_AGAIN.0,
            memory: None,
            out_of_memory: false,
            disk: None,
            scratch: None,
            out_of_scratch: false,
            note: None,
        })
    }

    /// Holds the worker to `max` bytes, if any; what is to be said of it goes into its output.
    pub(super) fn with_memory(self, max: Option<u64>, note: Option<PipeWriter>) -> Guard<'a> {
        let memory = max.map(|max| MemoryWatch { max, look_at: BootTime::now().after(MEMORY_LOOK.1) });
        Guard { memory, note, ..self }
    }

    /// Holds the worker's files to what they may take of the disk, if that is bounded.
    pub(super) fn with_disk(self, disk: Option<DiskWatch>) -> Guard<'a> {
        Guard { disk, ..self }
    }

    /// Holds what the worker writes to its scratch directory to what it has asked for, if it has one.
    pub(super) fn with_scratch(self, scratch: Option<DiskWatch>) -> Guard<'a> {
        Guard { scratch, ..self }
    }

    /// Until nothing of the worker is left.
    pub(super) fn watch(mut self) -> ExitStatus {
        loop {
            self.check_lease();
            // Signals are drained before children are waited for: one that ends in between wakes the
            // next sleep. The other way round its signal would be lost.
            let asked = self.events.stop_asked(self.stop_grace_ms);
            if self.reap() {
                return self.verdict();
            }
            if let Some(grace_ms) = asked {
                self.begin_stop(BootTime::now().after(Duration::from_millis(grace_ms)));
            }
            self.check_memory();
            self.check_disk();
            self.kill_if_due();
            let until = self.next_wake();
            // At its end a socket would wake this process again and again.
            let socket = (!self.init_ended).then(|| self.socket.as_fd());
            self.events.sleep(until, socket);
        }
    }

    fn check_lease(&mut self) {
        if self.lease_expired || BootTime::now() < self.lease.last.deadline {
            return;
        }
        let (deadline, grace_ms) = (self.lease.last.deadline, self.lease.last.grace_ms);
        if self.lease.still_stands() {
            return;
        }
        self.lease_expired = true;
        // From the deadline, not from now: a shim that slept past both leaves no grace.
        self.begin_stop(deadline.after(Duration::from_millis(grace_ms)));
    }

    /// Whether what is there may go on for now: the worker itself, or, of a worker that was told to stop, what it
    /// has started, which saves its work while the grace lasts. A shell ends at once when it is told to stop.
    fn may_run(&self, now: BootTime) -> bool {
        (self.ended.is_none() || self.term_sent) && self.kill_at.is_none_or(|at| now < at)
    }

    fn check_memory(&mut self) {
        let now = BootTime::now();
        if !self.may_run(now) {
            return;
        }
        let Some(watch) = self.memory.as_mut().filter(|watch| now >= watch.look_at) else { return };
        let pids = match self.cgroup {
            Some(group) => group.processes().into_iter().collect(),
            None => processes::family(std::process::id().cast_signed()),
        };
        let near = watch.max / 100 * MEMORY_NEAR_PERCENT;
        let used = memory::used_above(near, &pids);
        watch.look_at = now.after(if used.is_some() { MEMORY_LOOK.1 } else { MEMORY_LOOK.0 });
        let max = watch.max;
        if let Some(used) = used.filter(|used| *used > max) {
            self.memory = None;
            self.out_of_memory = true;
            self.say(&format!("the worker used {used} bytes of memory, of {max} that it has; it is killed"));
            // Like the kernel's own: there is no time to lose for the others on the host.
            self.kill_at = Some(now);
        }
    }

    fn check_disk(&mut self) {
        let now = BootTime::now();
        if let Some(line) = self.disk.as_ref().filter(|_| self.may_run(now)).and_then(DiskWatch::complaint) {
            self.disk = None;
            self.say(&line);
            self.kill_at = Some(now);
        }
        let scratch = self.scratch.as_ref().filter(|_| self.may_run(now));
        if let Some(line) = scratch.and_then(DiskWatch::complaint) {
            self.scratch = None;
            self.out_of_scratch = true;
            self.say(&line);
            self.kill_at = Some(now);
        }
    }

    /// A line in the worker's output.
    fn say(&mut self, line: &str) {
        super::complain(line);
        if let Some(note) = &mut self.note {
            // A pipe that nobody empties any more has no reader to tell.
            let _ = writeln!(note, "muster: {line}");
        }
    }

    fn begin_stop(&mut self, kill_at: BootTime) {
        self.kill_at = Some(self.kill_at.map_or(kill_at, |before| before.min(kill_at)));
        if self.term_sent || self.ended.is_some() {
            return;
        }
        self.term_sent = true;
        // No time left to answer: a worker that stands still is killed as it stands, for between being
        // woken and being killed it would run on.
        if kill_at <= BootTime::now() {
            return;
        }
        // To the worker's process group, by the one process that knows whether its number still is the group's. One that
        // does not take it has gone, or stands still and is killed.
        let _ = self.socket.write_all(&[STOP]);
    }

    /// Kills what must not be there: everything when the grace is over, descendants once a worker has ended
    /// that was not told to stop.
    fn kill_if_due(&mut self) {
        if self.may_run(BootTime::now()) {
            return;
        }
        if !self.init_ended {
            // Not collected yet, so the number is its own. Where it has a namespace that ends everything in it.
            let _ = kill(self.init, Signal::SIGKILL);
        }
        if let Some(group) = self.cgroup {
            group.kill();
        }
        processes::kill_all(&processes::descendants(std::process::id().cast_signed()));
    }

    /// Takes every ended child; whether none is left. As the subreaper this process becomes the parent
    /// of every orphan below it, so no child means no descendant.
    fn reap(&mut self) -> bool {
        self.hear();
        loop {
            match waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => return false,
                Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _)) if pid == self.init => {
                    self.init_ended = true;
                    self.hear();
                    // It was killed before it could tell: with its worker, by the kernel or by who may do anything here.
                    if self.ended.is_none() {
                        self.end_with(ExitStatus::Signal(Signal::SIGKILL as i32));
                    }
                }
                // An orphan, or one ended by a real-time signal, which the wrapper cannot name; collected it is.
                Ok(_) | Err(Errno::EINTR | Errno::EINVAL) => {}
                Err(Errno::ECHILD) => return true,
                Err(error) => {
                    super::complain(&format!("wait for the worker: {error}"));
                    return false;
                }
            }
        }
    }

    /// What the first process says of the worker.
    fn hear(&mut self) {
        let mut bytes = [0; REPORT_BYTES];
        // Written at once, so there is all of it or nothing.
        while let Ok(REPORT_BYTES) = self.socket.read(&mut bytes) {
            let end = InitReport::decode(bytes).and_then(InitReport::end);
            if let Some(end) = end.filter(|_| self.ended.is_none()) {
                self.end_with(end);
            }
        }
    }

    /// What the worker made of SIGTERM is not its result: a program that saves and returns 0 when it is
    /// told to stop has not finished its job. So the lease's end overrides whatever comes after it.
    fn end_with(&mut self, status: ExitStatus) {
        let by_kernel = || {
            // What a worker that was stopped lost before says nothing of its end.
            let failed = !self.term_sent && status != ExitStatus::Code(0);
            failed && self.cgroup.is_some_and(Cgroup::ran_out_of_memory)
        };
        let end = if self.lease_expired {
            ExitStatus::LeaseExpired
        } else if self.out_of_scratch {
            ExitStatus::OutOfScratch
        } else if self.out_of_memory || by_kernel() {
            ExitStatus::OutOfMemory
        } else {
            status
        };
        if end == ExitStatus::OutOfMemory && !self.out_of_memory {
            self.say("the kernel killed a process of the worker for want of memory");
        }
        self.ended = Some(end);
    }

    fn verdict(self) -> ExitStatus {
        // No child is left, so the worker is reaped; a miss of its status would be a kernel's bug.
        self.ended.unwrap_or(ExitStatus::Vanished)
    }

    fn next_wake(&mut self) -> BootTime {
        let now = BootTime::now();
        let killing = !self.may_run(now);
        let mut next = BootTime(u64::MAX);
        if killing {
            next = now.after(self.kill_again);
            self.kill_again = (self.kill_again * 2).min(KILL_AGAIN.1);
        }
        if !self.lease_expired {
            next = next.min(self.lease.last.deadline);
        }
        if let Some(at) = self.kill_at.filter(|at| *at > now) {
            next = next.min(at);
        }
        if let Some(watch) = self.memory.as_ref().filter(|_| !killing) {
            next = next.min(watch.look_at);
        }
        if (self.disk.is_some() || self.scratch.is_some()) && !killing {
            next = next.min(now.after(DISK_LOOK));
        }
        next
    }
}
