//! Whole gangs of real processes: to the end, killed, preempted, and wrongly started.
#![allow(
    clippy::unwrap_used,
    reason = "a panic here is the report; the lint knows test functions but not their helpers"
)]

use muster_example::intervals;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const RANKS: u32 = 4;
/// Far beyond what any of these needs; reached only when something hangs.
const DEADLINE: Duration = Duration::from_secs(120);

/// One process; killed when the test lets go of it.
struct Rank {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Rank {
    fn start(mut command: Command) -> Rank {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let outputs: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for output in outputs {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines() {
                    if sender.send(line.unwrap()).is_err() {
                        return;
                    }
                }
            });
        }
        Rank { child, lines, seen: Vec::new() }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn wait_for(&mut self, text: &str) {
        let end = Instant::now() + DEADLINE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.seen.push(line),
                Err(why) => panic!("no {text:?}: {why}, but {:#?}", self.seen),
            }
            if self.seen.last().unwrap().contains(text) {
                return;
            }
        }
    }

    /// The exit code, `None` for a signal, and all lines.
    fn finish(mut self) -> (Option<i32>, Vec<String>) {
        let end = Instant::now() + DEADLINE;
        // Both outputs close when the process ends.
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("hangs after {:#?}", self.seen),
            }
        }
        let code = self.child.wait().unwrap().code();
        (code, std::mem::take(&mut self.seen))
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster-example"));
    command.args(words.split_whitespace());
    for inherited in [
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "MUSTER_JOB_ID",
        "MUSTER_ATTEMPT",
        "MUSTER_FENCING_TOKEN",
        "MUSTER_CHECKPOINT_DIR",
        "MUSTER_INTERVAL_DIR",
    ] {
        command.env_remove(inherited);
    }
    command
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A run of several attempts over one directory for checkpoints and one for intervals.
struct Job {
    directory: tempfile::TempDir,
    attempt: u32,
}

impl Job {
    fn new() -> Job {
        Job { directory: tempfile::tempdir().unwrap(), attempt: 0 }
    }

    fn checkpoints(&self) -> PathBuf {
        self.directory.path().join("checkpoints")
    }

    fn attempt(&mut self, flags: &str) -> Vec<Rank> {
        self.attempt += 1;
        let port = free_port();
        (0..RANKS).map(|rank| Rank::start(self.command(rank, port, flags))).collect()
    }

    fn command(&self, rank: u32, port: u16, flags: &str) -> Command {
        let mut command = program("train --samples 512");
        for (flag, usual) in [("--steps", "60"), ("--checkpoint-every", "5")] {
            if !flags.contains(flag) {
                command.args([flag, usual]);
            }
        }
        command
            .args(flags.split_whitespace())
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", RANKS.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("MUSTER_JOB_ID", "job-7")
            .env("MUSTER_ATTEMPT", self.attempt.to_string())
            .env("MUSTER_FENCING_TOKEN", format!("1-{}", 10 * self.attempt))
            .env("MUSTER_CHECKPOINT_DIR", self.checkpoints())
            .env("MUSTER_INTERVAL_DIR", self.directory.path().join("intervals"));
        command
    }

    /// Runs an attempt to its end and returns its final loss and all that rank 0 printed.
    fn complete(&mut self) -> (String, Vec<String>) {
        let mut losses = Vec::new();
        let mut outputs = Vec::new();
        for rank in self.attempt("") {
            let (code, lines) = rank.finish();
            assert_eq!(code, Some(0), "{lines:#?}");
            losses.push(find(&lines, "final loss ").to_owned());
            outputs.push(lines);
        }
        assert!(losses.iter().all(|loss| *loss == losses[0]), "{losses:?}");
        (losses.swap_remove(0), outputs.swap_remove(0))
    }

    fn assert_intervals(&self) {
        let found = intervals::read(&self.directory.path().join("intervals")).unwrap();
        let report = intervals::check(&found);
        assert_eq!(report.overlaps, [], "{report}");
        let attempts = &report.jobs["job-7"];
        assert_eq!(attempts.len(), self.attempt as usize);
        for (attempt, ranks) in attempts {
            assert_eq!(ranks.len(), RANKS as usize, "attempt {attempt}");
            assert!(ranks.values().all(|intervals| intervals.len() == 1));
        }
    }
}

fn uninterrupted() -> String {
    Job::new().complete().0
}

/// The one line that holds `text`. Lines of stdout and stderr come in no order relative to one another.
fn find<'a>(lines: &'a [String], text: &str) -> &'a str {
    let mut found = lines.iter().filter(|line| line.contains(text));
    match (found.next(), found.next()) {
        (Some(line), None) => line,
        _ => panic!("not one line with {text:?} in {lines:#?}"),
    }
}

fn last_number(line: &str) -> u64 {
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn resumed_from(lines: &[String]) -> u64 {
    last_number(find(lines, "resumed from step"))
}

#[test]
fn a_killed_and_resumed_run_ends_with_the_same_bits() {
    let mut job = Job::new();
    let mut ranks = job.attempt("--step-ms 100");
    ranks[0].wait_for("checkpoint of step 5 ");
    ranks[2].signal(Signal::SIGKILL);
    for (number, rank) in ranks.into_iter().enumerate() {
        let (code, lines) = rank.finish();
        if number == 2 {
            assert_eq!(code, None);
        } else {
            assert_eq!(code, Some(1), "{lines:#?}");
            // Rank 0 loses rank 2, and the others then lose rank 0.
            let lost = if number == 0 { "lost rank 2" } else { "lost rank 0" };
            find(&lines, lost);
        }
    }
    let (loss, lines) = job.complete();
    let step = resumed_from(&lines);
    assert!((5..60).contains(&step) && step.is_multiple_of(5), "{step}");
    assert_eq!(loss, uninterrupted());
    job.assert_intervals();
    // Another attempt after the last finds everything done.
    assert_eq!(job.complete().0, loss);
}

#[test]
fn sigterm_to_one_rank_stops_all_together_with_a_checkpoint() {
    let mut job = Job::new();
    let mut ranks = job.attempt("--step-ms 100 --checkpoint-every 1000");
    ranks[3].wait_for("starting at step 0");
    ranks[0].wait_for("step 2 loss");
    ranks[3].signal(Signal::SIGTERM);
    let mut steps = Vec::new();
    for rank in ranks {
        let (code, lines) = rank.finish();
        assert_eq!(code, Some(143), "{lines:#?}");
        steps.push(last_number(find(&lines, "preempted after step ")));
    }
    assert!(steps.iter().all(|step| *step == steps[0]), "{steps:?}");
    let (loss, lines) = job.complete();
    assert_eq!(resumed_from(&lines), steps[0]);
    assert_eq!(loss, uninterrupted());
    job.assert_intervals();
}

#[test]
fn sigterm_before_the_gang_is_complete_is_honoured() {
    let job = Job::new();
    let port = free_port();
    let mut root = Rank::start(job.command(0, port, ""));
    let mut peer = Rank::start(job.command(1, port, ""));
    for process in [&mut root, &mut peer] {
        process.wait_for("meeting at");
        process.signal(Signal::SIGTERM);
    }
    for process in [root, peer] {
        let (code, lines) = process.finish();
        // Whichever is second may see the other leave before its own signal.
        assert!(code == Some(143) || code == Some(1), "{code:?} {lines:#?}");
        assert!(!lines.iter().any(|line| line.starts_with("step")));
    }
}

#[test]
fn a_damaged_checkpoint_costs_one_interval_and_another_runs_is_refused() {
    let mut job = Job::new();
    let (loss, _) = job.complete();
    let newest = job.checkpoints().join("step-000000000060.ckpt");
    let mut bytes = std::fs::read(&newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&newest, bytes).unwrap();
    let (again, lines) = job.complete();
    assert_eq!(resumed_from(&lines), 55);
    find(&lines, "falling back");
    assert_eq!(again, loss);

    job.attempt += 1;
    let (code, lines) = Rank::start(job.command(0, 1, "--seed 2")).finish();
    assert_eq!(code, Some(2));
    let message = lines.join("\n");
    assert!(message.contains("seed=1 ") && message.contains("seed=2 "), "{message}");
    let (code, lines) = Rank::start(job.command(0, 1, "--steps 50")).finish();
    assert_eq!(code, Some(2), "{lines:#?}");
    find(&lines, "this run ends at --steps 50");
}

#[test]
fn a_variable_that_is_missing_or_wrong_is_named() {
    let good = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];
    let with = |changed: &str, value: Option<&str>| {
        let mut command = program("train --steps 3");
        command.envs(good);
        match value {
            Some(value) => command.env(changed, value),
            None => command.env_remove(changed),
        };
        Rank::start(command).finish()
    };
    // With all of them a gang of one needs no port.
    assert_eq!(with("RANK", Some("0")).0, Some(0));
    for (name, value) in [
        ("RANK", None),
        ("RANK", Some("1")),
        ("WORLD_SIZE", Some("many")),
        ("MASTER_ADDR", None),
        ("MASTER_PORT", Some("")),
        ("MUSTER_ATTEMPT", Some("-1")),
        ("MUSTER_JOB_ID", Some("a/b")),
    ] {
        let (code, lines) = with(name, value);
        assert_eq!(code, Some(2), "{name}={value:?}: {lines:#?}");
        find(&lines, name);
    }
}

#[test]
fn ranks_of_different_runs_do_not_mix() {
    let job = Job::new();
    let port = free_port();
    let root = Rank::start(job.command(0, port, ""));
    let (code, lines) = Rank::start(job.command(1, port, "--seed 9")).finish();
    assert_eq!(code, Some(1));
    find(&lines, "refused by rank 0");
    drop(root);
}

#[test]
fn a_gang_that_stays_incomplete_gives_up_and_says_who_is_missing() {
    let job = Job::new();
    let root = Rank::start(job.command(0, free_port(), "--rendezvous-timeout-s 1"));
    let (code, lines) = root.finish();
    assert_eq!(code, Some(1));
    find(&lines, "rank 1, 2, 3");
}

#[test]
fn work_lasts_its_time_ends_with_its_code_and_leaves_evidence() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = program("work --duration-ms 50 --exit-code 7");
    command.env("MUSTER_INTERVAL_DIR", directory.path());
    let (code, lines) = Rank::start(command).finish();
    assert_eq!(code, Some(7));
    find(&lines, "rank 0 of 1");
    let found = intervals::read(directory.path()).unwrap();
    assert_eq!(found.len(), 1);
    assert!(found[0].stopped && found[0].end - found[0].start >= 40_000_000);

    let mut process = Rank::start(program("work --duration-ms 600000"));
    process.wait_for("working for");
    process.signal(Signal::SIGTERM);
    assert_eq!(process.finish().0, Some(143));
}
