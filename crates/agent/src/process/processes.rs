//! Looking at and ending processes, by `/proc`.
//!
//! **Invariant:** only processes that were just seen to belong to a worker are signalled: descendants
//! of the shim, members of its session, or bearers of the worker's own mark in their environment.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The variable that marks everything that a worker started, with a value no other worker has.
pub const MARK_VARIABLE: &str = "MUSTER_WORKER_MARK";
/// The same for a worker whose other variables would put that one beyond [`MARK_WITHIN_BYTES`]: an environment is sorted by name when a
/// worker is started, and hardly a name sorts before this one.
const EARLY_MARK_VARIABLE: &str = "A0_MUSTER_WORKER_MARK";
/// Bytes at the beginning of an environment in which a mark is looked for. Who looks reads that much of every process of the host, and
/// a job may fork ten thousand with megabytes each.
const MARK_WITHIN_BYTES: usize = 64 << 10;
/// Bytes of one environment that are read where its mark may be further behind, as a shell puts it that does not keep the order.
const ENVIRONMENT_BYTES_MAX: usize = 4 << 20;
/// Bytes of environments that one look for what a worker left behind reads beyond [`MARK_WITHIN_BYTES`], of all processes together.
const FURTHER_BYTES_MAX: usize = 64 << 20;
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

/// Marks the environment of a worker, where no more variables are added to it: within its first [`MARK_WITHIN_BYTES`].
///
/// # Errors
/// When too much of it sorts before every name of a mark.
pub(crate) fn mark_environment(
    environment: &mut BTreeMap<String, String>,
    mark: String,
) -> Result<(), String> {
    environment.insert(MARK_VARIABLE.to_owned(), mark.clone());
    if end_of(environment, MARK_VARIABLE) <= MARK_WITHIN_BYTES {
        return Ok(());
    }
    environment.insert(EARLY_MARK_VARIABLE.to_owned(), mark);
    if end_of(environment, EARLY_MARK_VARIABLE) <= MARK_WITHIN_BYTES {
        return Ok(());
    }
    Err(format!(
        "its environment has more than {MARK_WITHIN_BYTES} bytes in variables whose names sort before {EARLY_MARK_VARIABLE}; \
         give them other names, or less to hold"
    ))
}

/// Where a variable ends in an environment that is sorted by name, as one is that a program of Rust starts another with.
fn end_of(environment: &BTreeMap<String, String>, variable: &str) -> usize {
    let up_to = environment.iter().take_while(|(name, _)| name.as_str() <= variable);
    // With "=" and the zero byte behind each.
    up_to.map(|(name, value)| name.len() + value.len() + 2).fold(0, usize::saturating_add)
}

/// Living processes of the session `session` or with `mark` in their environment.
#[must_use]
pub fn left_behind(session: Option<i32>, mark: &str) -> BTreeSet<Process> {
    let own = std::process::id().cast_signed();
    let mut further = FURTHER_BYTES_MAX;
    all()
        .into_iter()
        .filter(|(pid, stat)| *pid != own && !stat.zombie)
        .filter(|(pid, stat)| {
            // A session number may have been given out again: a member must at least be some worker's.
            let is_member = *pid != 1 && Some(stat.session) == session;
            let bears = |environment: &Environment| {
                environment
                    .values(&[MARK_VARIABLE, EARLY_MARK_VARIABLE])
                    .any(|value| is_member || value == mark.as_bytes())
            };
            let beginning = Environment::read(*pid, MARK_WITHIN_BYTES);
            if bears(&beginning) || beginning.is_whole || further == 0 {
                return bears(&beginning);
            }
            let whole = Environment::read(*pid, ENVIRONMENT_BYTES_MAX.min(further));
            further = further.saturating_sub(whole.bytes.len());
            bears(&whole)
        })
        .map(|(pid, stat)| Process { pid, started: stat.started })
        .collect()
}

/// Living processes with a worker's mark in their environment of which something is wanted, with that.
#[must_use]
pub fn marked<T>(wanted: impl Fn(&str) -> Option<T>) -> BTreeMap<Process, T> {
    marked_by(&[MARK_VARIABLE, EARLY_MARK_VARIABLE], wanted)
}

/// The same with marks in other variables, within [`MARK_WITHIN_BYTES`].
#[must_use]
pub(crate) fn marked_by<T>(variables: &[&str], wanted: impl Fn(&str) -> Option<T>) -> BTreeMap<Process, T> {
    let found = |pid: i32| {
        let environment = Environment::read(pid, MARK_WITHIN_BYTES);
        environment.values(variables).find_map(|mark| std::str::from_utf8(mark).ok().and_then(&wanted))
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

/// The environment that a process was started with, as far as it was read.
struct Environment {
    /// Whole entries, each with a zero byte behind it.
    bytes: Vec<u8>,
    is_whole: bool,
}

impl Environment {
    /// At most `bytes_max` of it; nothing of a process that is gone, or that may not be looked at.
    fn read(pid: i32, bytes_max: usize) -> Environment {
        match File::open(format!("/proc/{pid}/environ")) {
            Ok(file) => Environment::of(file, bytes_max),
            Err(_) => Environment { bytes: Vec::new(), is_whole: true },
        }
    }

    fn of(from: impl Read, bytes_max: usize) -> Environment {
        let mut bytes = Vec::new();
        // What was read before an error counts.
        let _ = from.take(bytes_max as u64).read_to_end(&mut bytes);
        let is_whole = bytes.len() < bytes_max;
        if !is_whole {
            // The beginning of a value is another value.
            let end = bytes.iter().rposition(|byte| *byte == 0).map_or(0, |last| last + 1);
            bytes.truncate(end);
        }
        Environment { bytes, is_whole }
    }

    /// What these variables hold.
    fn values<'a>(&'a self, variables: &'a [&str]) -> impl Iterator<Item = &'a [u8]> {
        self.bytes.split(|byte| *byte == 0).filter_map(move |entry| {
            let end = entry.iter().position(|byte| *byte == b'=')?;
            let (name, value) = (entry.get(..end)?, entry.get(end + 1..)?);
            variables.iter().any(|variable| variable.as_bytes() == name).then_some(value)
        })
    }
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
    fn the_beginning_of_an_environment_is_read_and_no_entry_that_was_cut_off() {
        let bytes = b"A=1\0MARK=ab\0Z=x\0";
        let values = |bytes_max| {
            let environment = Environment::of(&bytes[..], bytes_max);
            let values: Vec<Vec<u8>> = environment.values(&["MARK", "Z"]).map(<[u8]>::to_vec).collect();
            (values.concat(), environment.is_whole)
        };
        assert_eq!(values(100), (b"abx".to_vec(), true));
        assert_eq!(values(12), (b"ab".to_vec(), false));
        assert_eq!(values(11), (Vec::new(), false), "its value is not all there");
    }

    /// A process with this environment, started as a shim starts its worker.
    fn started_with(environment: &BTreeMap<String, String>) -> std::process::Child {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        let mut command = Command::new("cat");
        command.env_clear().envs(environment).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Its environment is there once it answers.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    }

    #[test]
    fn a_mark_is_found_at_the_beginning_whatever_the_environment() {
        let value = "x".repeat(60 << 10);
        let holding = |names: &[&str]| -> BTreeMap<String, String> {
            names.iter().map(|name| ((*name).to_owned(), value.clone())).collect()
        };
        let mark = format!("of-this-test-{}", std::process::id());
        let look = |environment: &BTreeMap<String, String>| {
            let mut child = started_with(environment);
            let found = marked(|found| (found == mark).then_some(()));
            let left = left_behind(None, &mark);
            child.kill().unwrap();
            child.wait().unwrap();
            let pid = child.id().cast_signed();
            assert!(found.keys().chain(&left).all(|process| process.pid == pid));
            (found.len(), left.len())
        };
        let cases: [&[&str]; 4] = [&[], &["B", "C"], &["Z0", "Z1"], &["A", "B", "Z"]];
        for names in cases {
            let mut environment = holding(names);
            mark_environment(&mut environment, mark.clone()).unwrap();
            assert_eq!(look(&environment), (1, 1), "{names:?}");
        }
        let why = mark_environment(&mut holding(&["A", "A0"]), mark.clone()).unwrap_err();
        assert!(why.contains("sort before"), "{why}");
        // As a program has it that orders its environment otherwise. No more than the beginning is read of every process; who looks
        // for what one worker left behind reads on.
        let mut behind = holding(&["B", "C"]);
        behind.insert(MARK_VARIABLE.to_owned(), mark.clone());
        assert_eq!(look(&behind), (0, 1));
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
