//! Looking at and ending processes, by `/proc`.
//!
//! **Invariant:** only processes that were just seen to belong to a worker are signalled: descendants
//! of the shim, members of its session, or bearers of the worker's own mark in their environment.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The variable that marks everything that a worker started, with a value no other worker has.
pub const MARK_VARIABLE: &str = "MUSTER_WORKER_MARK";
/// Processes whose ends are waited for at a time: each takes a descriptor.
const WAITED_FOR_MAX: usize = 128;
/// The pause where no end can be waited for.
const WITHOUT_EVENT: Duration = Duration::from_millis(20);

/// What `/proc/<pid>/stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    session: i32,
    /// Dead, waiting for its parent.
    zombie: bool,
    /// When it began, in ticks since the machine did.
    started: u64,
}

/// A process that was seen: its number, and when it began, which tells it from a later one with that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Its id, unique among the processes that run.
    pub pid: i32,
    started: u64,
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The name in parentheses may hold anything, parentheses included.
    let rest = &text[text.rfind(')')? + 1..];
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    let started = fields.nth(15)?.parse().ok()?;
    Some(Stat { parent, session, zombie: matches!(state, "Z" | "X"), started })
}

fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/stat")).ok()?))
}

fn all() -> BTreeMap<i32, Stat> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return BTreeMap::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, stat(pid)?))
        })
        .collect()
}

/// Every living descendant of a process, itself excluded.
#[must_use]
pub fn descendants(of: i32) -> BTreeSet<Process> {
    let processes = all();
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (pid, stat) in &processes {
        children.entry(stat.parent).or_default().push(*pid);
    }
    let mut found = BTreeSet::new();
    let mut queue = vec![of];
    while let Some(parent) = queue.pop() {
        for child in children.get(&parent).into_iter().flatten() {
            if found.insert(*child) {
                queue.push(*child);
            }
        }
    }
    let living = |pid: i32| processes.get(&pid).filter(|stat| !stat.zombie);
    found.into_iter().filter_map(|pid| Some(Process { pid, started: living(pid)?.started })).collect()
}

/// The same as [`descendants`] by a way that looks at nothing else of the machine, where the kernel lists
/// children; dead ones that nobody has waited for may be among them.
#[must_use]
pub fn family(of: i32) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut queue = vec![of];
    while let Some(parent) = queue.pop() {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{parent}/task")) else { continue };
        for thread in threads.flatten() {
            let Ok(children) = std::fs::read_to_string(thread.path().join("children")) else {
                if thread.path().exists() {
                    return descendants(of).iter().map(|process| process.pid).collect();
                }
                continue;
            };
            let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
            queue.extend(children.filter(|child| found.insert(*child)));
        }
    }
    found
}

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// Its session.
    pub(crate) session: i32,
    /// Stopped by a signal or by a tracer.
    pub(crate) stands_still: bool,
}

/// What a process is doing; none that is gone.
pub(crate) fn state(pid: i32) -> Option<State> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let stat = parse_stat(&text)?;
    let letter = text[text.rfind(')')? + 1..].trim_start().chars().next();
    Some(State { session: stat.session, stands_still: matches!(letter, Some('T' | 't')) })
}

/// A process's parent; none where it is gone.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    stat(pid).map(|stat| stat.parent)
}

/// The children of a process's first thread, oldest first; none where the kernel does not list them.
#[must_use]
pub fn children(of: i32) -> Vec<i32> {
    let listed = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    listed.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Living processes of the session `session` or with `mark` in their environment.
#[must_use]
pub fn left_behind(session: Option<i32>, mark: &str) -> BTreeSet<Process> {
    let own = std::process::id().cast_signed();
    let wanted = format!("{MARK_VARIABLE}={mark}");
    all()
        .into_iter()
        .filter(|(pid, stat)| {
            *pid != own
                && !stat.zombie
                && ((*pid != 1 && Some(stat.session) == session && bears_any_mark(*pid))
                    || bears(*pid, &wanted))
        })
        .map(|(pid, stat)| Process { pid, started: stat.started })
        .collect()
}

/// Living processes with a worker's mark in their environment of which something is wanted, with that.
#[must_use]
pub fn marked<T>(wanted: impl Fn(&str) -> Option<T>) -> BTreeMap<Process, T> {
    marked_by(MARK_VARIABLE, wanted)
}

/// The same with marks in another variable.
#[must_use]
pub(crate) fn marked_by<T>(variable: &str, wanted: impl Fn(&str) -> Option<T>) -> BTreeMap<Process, T> {
    let prefix = format!("{variable}=");
    let found = |pid: i32| {
        let environment = environment(pid);
        let mut marks =
            environment.split(|b| *b == 0).filter_map(|entry| entry.strip_prefix(prefix.as_bytes()));
        marks.find_map(|mark| std::str::from_utf8(mark).ok().and_then(&wanted))
    };
    let own = std::process::id().cast_signed();
    let living = all().into_iter().filter(|(pid, stat)| *pid != own && !stat.zombie);
    living.filter_map(|(pid, stat)| Some((Process { pid, started: stat.started }, found(pid)?))).collect()
}

/// Living processes that lead a session, as every shim does.
#[must_use]
pub fn session_leaders() -> BTreeSet<Process> {
    let own = std::process::id().cast_signed();
    let leads = |(pid, stat): &(i32, Stat)| *pid != own && stat.session == *pid && !stat.zombie;
    all().into_iter().filter(leads).map(|(pid, stat)| Process { pid, started: stat.started }).collect()
}

fn environment(pid: i32) -> Vec<u8> {
    crate::disk::durable::read_bounded(format!("/proc/{pid}/environ").as_ref(), 4 << 20).unwrap_or_default()
}

fn bears(pid: i32, variable: &str) -> bool {
    environment(pid).split(|b| *b == 0).any(|entry| entry == variable.as_bytes())
}

/// A session number may have been given out again: a member must at least be some worker's.
fn bears_any_mark(pid: i32) -> bool {
    let prefix = format!("{MARK_VARIABLE}=");
    environment(pid).split(|b| *b == 0).any(|entry| entry.starts_with(prefix.as_bytes()))
}

/// Kills; a process that is already gone is fine, and another that has its number by now is left alone.
pub fn kill_all(seen: &BTreeSet<Process>) {
    for process in seen {
        // The only error left is a lack of permission, of which nothing better can be made here.
        let _ = kill_one(*process);
    }
}

/// Kills the processes and waits at most `wait_max` for them to end. It waits for the first [`WAITED_FOR_MAX`] only: a caller
/// that looks again finds those that are left.
pub(crate) fn end_all(seen: &BTreeSet<Process>, wait_max: Duration) {
    let mut handles: Vec<OwnedFd> = Vec::new();
    for process in seen {
        if let Ok(Some(handle)) = kill_one(*process)
            && handles.len() < WAITED_FOR_MAX
        {
            handles.push(handle);
        }
    }
    let until = Instant::now() + wait_max;
    if handles.is_empty() && !seen.is_empty() {
        // All of them are gone, or without a handle there is no event.
        std::thread::sleep(wait_max.min(WITHOUT_EVENT));
    }
    for handle in handles {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        // Readable once the process has ended. If the wait is interrupted, the caller looks again and waits again.
        let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&left));
    }
}

/// Kills; a handle that tells the end, where the kernel has such, and it was still there.
fn kill_one(seen: Process) -> rustix::io::Result<Option<OwnedFd>> {
    use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
    let Some(pid) = Pid::from_raw(seen.pid) else { return Ok(None) };
    // The handle first: what it is of stays the same, whatever becomes of the number.
    let handle = pidfd_open(pid, PidfdFlags::empty());
    if stat(seen.pid).is_none_or(|now| now.started != seen.started) {
        return Ok(None);
    }
    match handle {
        Ok(handle) => pidfd_send_signal(&handle, Signal::KILL).map(|()| Some(handle)),
        // No descriptor is free, or the kernel has none of this kind. The process was checked a moment ago.
        Err(_) => kill_process(pid, Signal::KILL).map(|()| None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_with_odd_names() {
        let rest = "0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 9876 99 100";
        let stat = parse_stat(&format!("42 (a) b (c)) S 7 42 40 {rest}")).unwrap();
        assert_eq!(stat, Stat { parent: 7, session: 40, zombie: false, started: 9_876 });
        assert!(parse_stat(&format!("42 (x) Z 1 1 1 {rest}")).unwrap().zombie);
        for bad in ["", "42", "42 (x)", "42 (x) S", "42 (x) S a b c", "42 (x) S 1 1 1"] {
            assert!(parse_stat(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn this_process_has_no_mark_and_init_no_parent_here() {
        assert!(descendants(i32::MAX).is_empty());
        assert!(left_behind(None, "no such mark").is_empty());
        assert!(family(i32::MAX).is_empty());
    }

    #[test]
    fn a_family_is_found_whole() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sh -c 'echo; exec sleep 600' & wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0u8; 1];
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut line).unwrap();
        let pid = shell.id().cast_signed();
        let found = family(pid);
        let seen = descendants(pid);
        assert_eq!(found, seen.iter().map(|process| process.pid).collect());
        assert_eq!(found.len(), 1);
        assert!(family(std::process::id().cast_signed()).contains(&pid));
        // Another one that had the number is not meant.
        kill_all(&seen.iter().map(|process| Process { started: process.started + 1, ..*process }).collect());
        assert_eq!(descendants(pid), seen);
        end_all(&seen, Duration::from_secs(60));
        assert!(descendants(pid).is_empty(), "it has ended when that returns");
        shell.wait().unwrap();
    }
}
