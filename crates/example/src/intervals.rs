//! Interval evidence: from when to when each process really ran, written by the process itself.
//!
//! One file per job, attempt and rank, `<directory>/<job>/<token or attempt>-<rank>.log`, of lines:
//!
//! ```text
//! start <unix ns> <boot-time ns> pid <pid> id <id>
//! alive <boot-time ns> <id>
//! stop <boot-time ns> <id>
//! ```
//!
//! `alive` comes every [`BEAT`] from a separate thread, so that a process that is killed has said up to
//! when it ran, to within that time. Its rate is some 20 MB an hour and process: evidence for tests and
//! drills, not for every day. The clock is `CLOCK_BOOTTIME`, which does not jump and goes on through a
//! suspend; it is one clock for all processes of a machine, in whatever namespace they run, and means
//! nothing across machines. The id tells two processes apart that write to the same file, which is
//! exactly what must never happen.
//!
//! [`read`] collects a directory and [`check`] looks for two intervals of one job that overlap: different
//! attempts at any ranks, or one rank of one attempt twice.

use crate::error::Error;
use crate::process::complain;
use crate::rank_map::{RankMap, is_name};
use nix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often a running process reports that it runs. Half of the 20 ms that readers may count on: a busy machine
/// wakes threads late.
pub const BEAT: Duration = Duration::from_millis(10);

const LINE_LEN_MAX: usize = 256;
/// Ends a line that could not be written whole, as on a full disk.
const TORN: char = '~';

/// Writes the evidence of this process until it is dropped.
pub(crate) struct Recorder {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Starts the evidence. A workload asked for evidence does not run without it.
    pub(crate) fn start(directory: &Path, map: &RankMap) -> Result<Recorder, Error> {
        let directory = directory.join(&map.job);
        fs::create_dir_all(&directory).map_err(Error::file(&directory, "create the directory"))?;
        let path = directory.join(format!("{}-{}.log", map.attempt_label(), map.rank));
        let mut lines = Lines::open(&path).map_err(Error::file(&path, "open"))?;
        let (unix, boot, pid) = (unix_nanos(), boottime_nanos()?, std::process::id());
        let id = format!("{pid}-{boot}");
        lines
            .write(&format!("start {unix} {boot} pid {pid} id {id}"))
            .map_err(Error::file(&path, "write"))?;
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("intervals".into())
            .spawn(move || {
                while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(BEAT) {
                    lines.record("alive", &id);
                }
                lines.record("stop", &id);
            })
            .map_err(|source| Error::Process {
                doing: "start the thread that writes the intervals",
                source,
            })?;
        Ok(Recorder { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It ends by itself now; if it had panicked the file would show it.
            let _ = thread.join();
        }
    }
}

struct Lines {
    path: PathBuf,
    file: File,
    torn: bool,
    complained: bool,
}

impl Lines {
    fn open(path: &Path) -> std::io::Result<Lines> {
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
        let torn = if file.seek(SeekFrom::End(0))? == 0 {
            false
        } else {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            last != *b"\n"
        };
        Ok(Lines { path: path.to_owned(), file, torn, complained: false })
    }

    fn record(&mut self, word: &str, id: &str) {
        let written = boottime_nanos().and_then(|boot| {
            self.write(&format!("{word} {boot} {id}")).map_err(Error::file(&self.path, "write"))
        });
        if let Err(error) = written
            && !self.complained
        {
            self.complained = true;
            complain(&error.report());
        }
    }

    /// One call of the system per line, at the end of the file: lines of two processes never mix.
    fn write(&mut self, line: &str) -> std::io::Result<()> {
        let mended = if self.torn { format!("{TORN}\n{line}\n") } else { format!("{line}\n") };
        match self.file.write(mended.as_bytes()) {
            Ok(written) if written == mended.len() => {
                self.torn = false;
                Ok(())
            }
            Ok(0) => Err(std::io::ErrorKind::WriteZero.into()),
            Ok(_) => {
                self.torn = true;
                Err(std::io::ErrorKind::WriteZero.into())
            }
            Err(error) => Err(error),
        }
    }
}

/// Now on `CLOCK_BOOTTIME`, in nanoseconds: the clock of the evidence.
///
/// # Errors
/// When the system has no such clock.
pub fn boottime_nanos() -> Result<u64, Error> {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map_err(|errno| Error::Process { doing: "read CLOCK_BOOTTIME", source: errno.into() })?;
    // Both parts are non-negative on this clock, and 2^64 ns are 584 years since the machine started.
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

fn unix_nanos() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

/// The time that one process ran: both ends are moments at which it certainly did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The job.
    pub job: String,
    /// The fencing token, or the attempt where there was none.
    pub attempt: String,
    /// The rank.
    pub rank: u32,
    /// The process.
    pub pid: u32,
    /// When it started, boot-time nanoseconds.
    pub start: u64,
    /// Its last `alive`, boot-time nanoseconds.
    pub end: u64,
    /// Whether it came to its own end; a killed process does not.
    pub stopped: bool,
    /// Where this is written.
    pub file: PathBuf,
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "job {} attempt {} rank {} pid {} ran {}..{}{} ({})",
            self.job,
            self.attempt,
            self.rank,
            self.pid,
            self.start,
            self.end,
            if self.stopped { "" } else { " (no stop)" },
            self.file.display()
        )
    }
}

/// Reads every file of an interval directory.
///
/// A last line without its end is what a killed process leaves and is passed over.
///
/// # Errors
/// When a file cannot be read, or holds anything else than evidence; the message names file and line.
pub fn read(directory: &Path) -> Result<Vec<Interval>, Error> {
    let mut intervals = Vec::new();
    for job_directory in sorted_entries(directory)? {
        let job = file_name(&job_directory)?;
        for path in sorted_entries(&job_directory)? {
            let name = file_name(&path)?;
            let (attempt, rank) = parse_name(&name).ok_or_else(|| {
                Error::Config(format!("{}: the name is not <token or attempt>-<rank>.log", path.display()))
            })?;
            let file = File::open(&path).map_err(Error::file(&path, "open"))?;
            let found = parse(BufReader::new(file), &path)?;
            intervals.extend(found.into_iter().map(|process| Interval {
                job: job.clone(),
                attempt: attempt.to_owned(),
                rank,
                pid: process.pid,
                start: process.start,
                end: process.end,
                stopped: process.stopped,
                file: path.clone(),
            }));
        }
    }
    Ok(intervals)
}

fn sorted_entries(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let listed: std::io::Result<Vec<PathBuf>> =
        fs::read_dir(directory).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut paths = listed.map_err(Error::file(directory, "list"))?;
    paths.sort();
    Ok(paths)
}

fn file_name(path: &Path) -> Result<String, Error> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.filter(|name| is_name(name.strip_suffix(".log").unwrap_or(name)))
        .map(str::to_owned)
        .ok_or_else(|| Error::Config(format!("{}: not a name of evidence", path.display())))
}

fn parse_name(name: &str) -> Option<(&str, u32)> {
    let (attempt, rank) = name.strip_suffix(".log")?.rsplit_once('-')?;
    Some((attempt, rank.parse().ok()?))
}

struct Process {
    pid: u32,
    start: u64,
    end: u64,
    stopped: bool,
}

fn parse(mut reader: impl BufRead, path: &Path) -> Result<Vec<Process>, Error> {
    // By id, in the order of their start; a file has one or two of them.
    let mut order: Vec<String> = Vec::new();
    let mut processes: BTreeMap<String, Process> = BTreeMap::new();
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        (&mut reader)
            .take(LINE_LEN_MAX as u64)
            .read_until(b'\n', &mut line)
            .map_err(Error::file(path, "read"))?;
        let garbage = || {
            let shown = String::from_utf8_lossy(&line);
            Error::Config(format!(
                "{}:{number}: not a line of evidence: {:?}",
                path.display(),
                shown.trim_end()
            ))
        };
        let Some(text) = line.strip_suffix(b"\n") else {
            if line.len() == LINE_LEN_MAX {
                return Err(garbage());
            }
            break;
        };
        let text = std::str::from_utf8(text).map_err(|_| garbage())?;
        if text.ends_with(TORN) {
            continue;
        }
        fold(text, &mut order, &mut processes).ok_or_else(garbage)?;
    }
    Ok(order.iter().filter_map(|id| processes.remove(id)).collect())
}

/// Takes one line into account; `None` when it is not one of ours or does not follow from those before it.
fn fold(line: &str, order: &mut Vec<String>, processes: &mut BTreeMap<String, Process>) -> Option<()> {
    let words: Vec<&str> = line.split(' ').collect();
    if let ["start", unix, boot, "pid", pid, "id", id] = words[..] {
        unix.parse::<u128>().ok()?;
        let start = boot.parse().ok()?;
        let process = Process { pid: pid.parse().ok()?, start, end: start, stopped: false };
        order.push(id.to_owned());
        return match processes.insert(id.to_owned(), process) {
            Some(_) => None,
            None => Some(()),
        };
    }
    let [word @ ("alive" | "stop"), boot, id] = words[..] else {
        return None;
    };
    let boot: u64 = boot.parse().ok()?;
    let process = processes.get_mut(id)?;
    if process.stopped || boot < process.end {
        return None;
    }
    process.end = boot;
    process.stopped = word == "stop";
    Some(())
}

/// What [`check`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Per job, per attempt, per rank: its intervals, by start.
    pub jobs: BTreeMap<String, BTreeMap<String, BTreeMap<u32, Vec<Interval>>>>,
    /// Every pair that must not have run at the same time, and did.
    pub overlaps: Vec<(Interval, Interval)>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempts: usize = self.jobs.values().map(BTreeMap::len).sum();
        write!(f, "{} jobs, {attempts} attempts, {} overlaps", self.jobs.len(), self.overlaps.len())?;
        for (a, b) in &self.overlaps {
            write!(f, "\n  {a}\n  {b}")?;
        }
        Ok(())
    }
}

/// Looks for two incarnations of one job that ran at the same time.
#[must_use]
pub fn check(intervals: &[Interval]) -> Report {
    let mut report = Report::default();
    let mut by_start: Vec<&Interval> = intervals.iter().collect();
    by_start.sort_by_key(|i| (&i.job, i.start, &i.attempt, i.rank, i.pid));
    // Those of the same job that had not ended when the current one started.
    let mut running: Vec<&Interval> = Vec::new();
    for interval in by_start {
        running.retain(|other| other.job == interval.job && other.end >= interval.start);
        for other in &running {
            if other.attempt != interval.attempt || other.rank == interval.rank {
                report.overlaps.push(((*other).clone(), interval.clone()));
            }
        }
        running.push(interval);
        report
            .jobs
            .entry(interval.job.clone())
            .or_default()
            .entry(interval.attempt.clone())
            .or_default()
            .entry(interval.rank)
            .or_default()
            .push(interval.clone());
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(job: &str, attempt: &str, rank: u32, start: u64, end: u64) -> Interval {
        Interval {
            job: job.into(),
            attempt: attempt.into(),
            rank,
            pid: 1,
            start,
            end,
            stopped: false,
            file: PathBuf::new(),
        }
    }

    #[test]
    fn ranks_of_one_attempt_run_together_and_attempts_one_after_another() {
        let report = check(&[
            interval("a", "1", 0, 10, 20),
            interval("a", "1", 1, 11, 22),
            interval("a", "2", 0, 23, 30),
            interval("a", "2", 1, 24, 31),
            interval("b", "9", 0, 5, 100),
        ]);
        assert_eq!(report.overlaps, []);
        assert_eq!(report.jobs["a"]["2"][&1][0].end, 31);
        assert_eq!(report.to_string(), "2 jobs, 3 attempts, 0 overlaps");
    }

    #[test]
    fn an_overlap_is_found_across_ranks_and_however_far_apart_the_starts() {
        let report = check(&[
            interval("a", "1", 3, 10, 1000),
            interval("a", "1", 0, 11, 20),
            interval("a", "2", 0, 999, 1001),
            interval("a", "3", 0, 1001, 1002),
        ]);
        let pairs: Vec<_> =
            report.overlaps.iter().map(|(a, b)| (a.attempt.as_str(), b.attempt.as_str())).collect();
        assert_eq!(pairs, [("1", "2"), ("2", "3")]);
    }

    #[test]
    fn one_rank_twice_in_one_attempt_is_an_overlap() {
        let twice =
            [interval("a", "1", 0, 10, 20), interval("a", "1", 0, 15, 25), interval("a", "1", 0, 26, 30)];
        assert_eq!(check(&twice).overlaps.len(), 1);
    }

    fn parsed(text: &str) -> Result<Vec<(u64, u64, bool)>, String> {
        parse(text.as_bytes(), Path::new("f.log"))
            .map(|found| found.iter().map(|p| (p.start, p.end, p.stopped)).collect())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn a_file_tells_until_when_each_of_its_processes_lived() {
        let killed = "start 5 100 pid 7 id 7-100\nalive 110 7-100\nalive 120 7-100\nalive 13";
        assert_eq!(parsed(killed).unwrap(), [(100, 120, false)]);
        let two = "start 5 100 pid 7 id a\nstart 5 105 pid 8 id b\nalive 110 a\nstop 112 b\nstop 130 a\n";
        assert_eq!(parsed(two).unwrap(), [(100, 130, true), (105, 112, true)]);
        let torn = "start 5 100 pid 7 id a\nalive 11~\nalive 130 a\n";
        assert_eq!(parsed(torn).unwrap(), [(100, 130, false)]);
        assert_eq!(parsed("").unwrap(), []);
        assert_eq!(parsed("sta").unwrap(), []);
    }

    #[test]
    fn garbage_is_an_error_that_names_file_and_line() {
        let start = "start 5 100 pid 7 id a\n";
        for bad in [
            "hello\n",
            "alive x a\n",
            "alive 110 b\n",
            "alive 99 a\n",
            "alive 110\n",
            "stop 110 a\nalive 111 a\n",
            "start 5 200 pid 7 id a\n",
            "\n",
        ] {
            let message = parsed(&format!("{start}{bad}")).unwrap_err();
            assert!(message.starts_with("f.log:"), "{bad:?}: {message}");
        }
        assert!(parsed(&format!("{start}nonsense\n")).unwrap_err().contains("f.log:2:"));
        assert!(parsed(&"x".repeat(100_000)).is_err());
        assert!(parse(&b"\xff\xfe\n"[..], Path::new("f.log")).is_err());
    }

    fn map(attempt: u64, rank: u32) -> RankMap {
        RankMap {
            rank,
            world_size: 2,
            master_addr: "localhost".into(),
            master_port: 1,
            job: "job-1".into(),
            attempt,
            token: (attempt == 2).then(|| "1-77".into()),
        }
    }

    #[test]
    fn what_is_recorded_is_read_back_and_two_at_once_are_caught() {
        let directory = tempfile::tempdir().unwrap();
        let first = Recorder::start(directory.path(), &map(1, 0)).unwrap();
        let before = boottime_nanos().unwrap();
        drop(first);
        drop(Recorder::start(directory.path(), &map(2, 0)).unwrap());
        let found = read(directory.path()).unwrap();
        assert_eq!(check(&found).overlaps, []);
        let labels: Vec<_> = found.iter().map(|i| (i.attempt.as_str(), i.rank)).collect();
        assert_eq!(labels, [("1", 0), ("1-77", 0)]);
        assert!(found.iter().all(|i| i.stopped));
        assert!(found[0].start <= before && before <= found[0].end);

        let both = [
            Recorder::start(directory.path(), &map(3, 0)).unwrap(),
            Recorder::start(directory.path(), &map(4, 1)).unwrap(),
            Recorder::start(directory.path(), &map(4, 1)).unwrap(),
        ];
        drop(both);
        // 3 against each of the two, and the two, same rank and attempt, against one another.
        assert_eq!(check(&read(directory.path()).unwrap()).overlaps.len(), 3);
    }

    #[test]
    fn a_line_that_a_full_disk_cut_does_not_spoil_the_file() {
        let directory = tempfile::tempdir().unwrap();
        drop(Recorder::start(directory.path(), &map(1, 0)).unwrap());
        let path = directory.path().join("job-1/1-0.log");
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"alive 12").unwrap();
        drop(Recorder::start(directory.path(), &map(1, 0)).unwrap());
        assert_eq!(read(directory.path()).unwrap().len(), 2);
    }

    #[test]
    fn foreign_files_are_named() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("job-1")).unwrap();
        let path = directory.path().join("job-1/notes.txt");
        fs::write(&path, b"hello").unwrap();
        assert!(read(directory.path()).unwrap_err().report().contains("notes.txt"));
        assert!(read(&directory.path().join("none")).is_err());
    }
}
