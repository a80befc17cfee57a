//! What a replica does at its start: it replays a log, takes a snapshot, restores one.
//!
//! The log is made by the shipping decider and written to a file. What is measured runs in a separate
//! process that has nothing else in memory, reads the file piece by piece, and does with each round what a replica
//! does: decode, guard, fold, and publish a view now and then.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use muster_journal::{FORMAT_MAX, RankUpdate, Round, decode_round, encode_round};
use muster_state::State;
use muster_types::{JobId, JobSpec};
use serde_json::{Value, json};

use super::fleet::{Fleet, Layout, Mix};
use super::machine::{resident_bytes, thread_time};
use super::{Bar, Figure, Times, ms};

/// Jobs in one submission.
const BATCH: usize = 100;
/// Submissions in one round: what a leader under load makes, 64 KiB.
const BATCHES_PER_ROUND: usize = 4;
/// Rounds that are applied between two published views.
const ROUNDS_PER_VIEW: usize = 16;
/// Bytes of a piece in which a snapshot comes from disk.
const PIECE_BYTES: usize = 1 << 20;

/// What to do in a separate process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Step {
    /// Replay the log of submissions, take a snapshot
    Submissions,
    /// Replay the log of jobs that start, run and end
    Completed,
    /// Restore the snapshot
    Restore,
}

/// Makes the logs, measures each step in a child of this program, and gives the figures.
///
/// # Errors
/// When a file cannot be written or a child fails, in words.
pub(crate) fn run(jobs: u64, directory: &Path) -> Result<Vec<Figure>, String> {
    let told = |error: std::io::Error| error.to_string();
    eprintln!("making the log of {jobs} submitted jobs");
    write_submissions(&directory.join("submissions"), jobs).map_err(told)?;
    eprintln!("making the log of {} completed jobs", jobs / 10);
    write_completed(&directory.join("completed"), jobs / 10).map_err(told)?;
    let mut figures = submissions(&child(Step::Submissions, directory)?);
    figures.extend(completed(&child(Step::Completed, directory)?));
    figures.extend(restore(&child(Step::Restore, directory)?));
    Ok(figures)
}

fn child(step: Step, directory: &Path) -> Result<Value, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let name = format!("{step:?}").to_lowercase();
    let output = Command::new(program).args(["replay", "--step", &name, "--dir"]).arg(directory).output();
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{name}: {error}"))
}

/// Does one step in this process; its figures as one JSON object.
///
/// # Errors
/// When a file cannot be read or is not what it should be, in words.
pub(crate) fn step(step: Step, directory: &Path) -> Result<Value, String> {
    match step {
        Step::Submissions => {
            let (state, mut found) = replay(&directory.join("submissions"))?;
            found["snapshot"] = snapshot(&state, &directory.join("snapshot"))?;
            Ok(found)
        }
        Step::Completed => Ok(replay(&directory.join("completed"))?.1),
        Step::Restore => restored(&directory.join("snapshot")),
    }
}

struct Log(BufWriter<File>);

impl Log {
    fn create(path: &Path) -> std::io::Result<Log> {
        Ok(Log(BufWriter::new(File::create(path)?)))
    }

    fn add(&mut self, round: &Round) -> std::io::Result<()> {
        let bytes = encode_round(round);
        let length = u32::try_from(bytes.len()).expect("a round is far below 4 GiB");
        self.0.write_all(&length.to_le_bytes())?;
        self.0.write_all(&bytes)
    }

    fn add_open(&mut self, fleet: &mut Fleet) -> std::io::Result<()> {
        fleet.speculation.take_round().map_or(Ok(()), |round| self.add(&round))
    }
}

/// Half of the jobs differ in everything, half come in sweeps of a hundred like ones.
fn spec(n: u64) -> JobSpec {
    let sweep = n / BATCH as u64;
    if sweep.is_multiple_of(2) { Mix::AllDifferent.job(n, 1) } else { Mix::FewClasses.job(sweep, 1) }
}

fn write_submissions(path: &Path, jobs: u64) -> std::io::Result<()> {
    let mut log = Log::create(path)?;
    let mut fleet = Fleet::recorded(Layout::blocks_of_512(1_000), |round| log.add(&round))?;
    let mut next = 0;
    while next < jobs {
        for _ in 0..BATCHES_PER_ROUND {
            let until = (next + BATCH as u64).min(jobs);
            if next < until {
                fleet.submit((next..until).map(spec).collect());
            }
            next = until;
        }
        fleet.speculation.push_digest_if_due();
        log.add_open(&mut fleet)?;
        fleet.pass_ms(2);
    }
    log.0.flush()
}

/// Jobs come in waves that fill the fleet; each is placed, runs and ends.
fn write_completed(path: &Path, jobs: u64) -> std::io::Result<()> {
    let mut log = Log::create(path)?;
    let layout = Layout::blocks_of_512(1_000);
    let mut fleet = Fleet::recorded(layout, |round| log.add(&round))?;
    let wave = 8 * u64::from(layout.hosts);
    let mut next = 0;
    while next < jobs {
        let until = (next + wave).min(jobs);
        let mut ids: Vec<JobId> = Vec::new();
        let specs: Vec<JobSpec> = (next..until).map(spec).collect();
        for batch in specs.chunks(BATCH) {
            ids.extend(fleet.submit(batch.to_vec()));
            log.add_open(&mut fleet)?;
        }
        while fleet.speculation.wants_schedule() {
            fleet.decide().map_or(Ok(()), |round| log.add(&round))?;
        }
        fleet.pass_ms(1_000);
        for update in [RankUpdate::Running, RankUpdate::Exited(muster_types::ExitStatus::Code(0))] {
            for some in ids.chunks(64) {
                some.iter().for_each(|job| fleet.report(*job, &update));
                fleet.speculation.push_digest_if_due();
                log.add_open(&mut fleet)?;
                fleet.pass_ms(2);
            }
            fleet.pass_ms(60_000);
        }
        next = until;
    }
    log.0.flush()
}

/// Replays a log as a replica does at its start.
fn replay(path: &Path) -> Result<(State, Value), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut file = BufReader::with_capacity(PIECE_BYTES, File::open(path).map_err(told)?);
    let resident_before = resident_bytes();
    let begun = thread_time();
    let (mut state, mut view) = (State::default(), State::default());
    let (mut rounds, mut bytes) = (0usize, 0u64);
    let mut decoding = Duration::ZERO;
    let mut round_bytes = Vec::new();
    loop {
        let mut length = [0u8; 4];
        match file.read_exact(&mut length) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error.to_string()),
        }
        round_bytes.resize(u32::from_le_bytes(length) as usize, 0);
        file.read_exact(&mut round_bytes).map_err(told)?;
        bytes += round_bytes.len() as u64;
        let before = thread_time();
        let round = decode_round(&round_bytes, FORMAT_MAX).map_err(|error| error.to_string())?;
        decoding += thread_time() - before;
        for applied in state.apply_round(&round) {
            if let Some(rejection) = applied.rejection {
                return Err(format!("a record of the log was refused: {rejection:?}"));
            }
            if applied.effects.iter().any(|effect| matches!(effect, muster_state::Effect::Diverged { .. })) {
                return Err("a digest of the log was not met".to_owned());
            }
        }
        rounds += 1;
        if rounds.is_multiple_of(ROUNDS_PER_VIEW) {
            view = state.clone();
        }
    }
    drop(view);
    let took = thread_time() - begun;
    let records = state.log_index().0;
    let jobs = state.jobs().len() as f64;
    let resident = resident_bytes().saturating_sub(resident_before);
    let found = json!({
        "seconds": took.as_secs_f64(),
        "decoding_seconds": decoding.as_secs_f64(),
        "jobs": jobs,
        "records": records,
        "rounds": rounds,
        "log_bytes": bytes,
        "resident_bytes_per_job": resident as f64 / jobs,
        "digest": format!("{:016x}", state.digest()),
    });
    Ok((state, found))
}

/// The pause of a snapshot, its encoding, and what the first change after it costs.
fn snapshot(state: &State, path: &Path) -> Result<Value, String> {
    let mut pauses = Times::default();
    let copy = pauses.around(|| state.clone());
    for _ in 0..99 {
        pauses.around(|| state.clone());
    }
    let mut digests = Times::default();
    let digest = digests.around(|| copy.digest());
    let mut file = BufWriter::new(File::create(path).map_err(|error| error.to_string())?);
    let mut encoding = Times::default();
    let chunks = encoding.around(|| copy.snapshot());
    let mut bytes = 0;
    let begun = thread_time();
    for chunk in chunks {
        bytes += chunk.len();
        file.write_all(&chunk).map_err(|error| error.to_string())?;
    }
    file.flush().map_err(|error| error.to_string())?;
    let encoded = thread_time() - begun;
    Ok(json!({
        "pause_max_ms": ms(pauses.quantile(1_000)),
        "digest_ms": ms(digests.median()),
        "encode_seconds": encoded.as_secs_f64(),
        "bytes": bytes,
        "digest": format!("{digest:016x}"),
    }))
}

/// Pieces of a file.
struct Pieces(File);

impl Iterator for Pieces {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut filled = 0;
        while filled < piece.len() {
            match self.0.read(&mut piece[filled..]) {
                Ok(0) | Err(_) => break,
                Ok(read) => filled += read,
            }
        }
        piece.truncate(filled);
        (filled > 0).then_some(piece)
    }
}

fn restored(path: &Path) -> Result<Value, String> {
    let resident_before = resident_bytes();
    let begun = thread_time();
    let file = File::open(path).map_err(|error| error.to_string())?;
    let state = State::restore(Pieces(file)).map_err(|error| error.to_string())?;
    let took = thread_time() - begun;
    let jobs = state.jobs().len() as f64;
    let resident = resident_bytes().saturating_sub(resident_before);
    Ok(json!({
        "seconds": took.as_secs_f64(),
        "jobs": jobs,
        "resident_bytes_per_job": resident as f64 / jobs,
        "digest": format!("{:016x}", state.digest()),
    }))
}

fn number(found: &Value, field: &str) -> f64 {
    found[field].as_f64().unwrap_or(f64::NAN)
}

fn per_second(found: &Value, field: &str) -> f64 {
    number(found, field) / number(found, "seconds")
}

fn submissions(found: &Value) -> Vec<Figure> {
    let snapshot = &found["snapshot"];
    let figure = |what: &str, value, unit| Figure::new("replay", what, value, unit);
    vec![
        figure("jobs submitted in batches of 100", per_second(found, "jobs"), "jobs/s")
            .bar(Bar::AtLeast(1e6))
            .detail(found.clone()),
        figure("log of a submitted job", number(found, "log_bytes") / number(found, "jobs"), "bytes/job"),
        figure("resident memory of a waiting job", number(found, "resident_bytes_per_job"), "bytes/job")
            .bar(Bar::AtMost(1_536.0)),
        figure("pause of a snapshot, longest of 100", number(snapshot, "pause_max_ms"), "ms")
            .bar(Bar::AtMost(20.0)),
        figure("digest", number(snapshot, "digest_ms"), "ms"),
        figure("encoding the snapshot, concurrently with apply", number(snapshot, "encode_seconds"), "s"),
        figure("snapshot of a job", number(snapshot, "bytes") / number(found, "jobs"), "bytes/job"),
    ]
}

fn completed(found: &Value) -> Vec<Figure> {
    vec![
        Figure::new(
            "replay",
            "records of jobs that start, run and end",
            per_second(found, "records"),
            "records/s",
        )
        .bar(Bar::AtLeast(1e6))
        .detail(found.clone()),
    ]
}

fn restore(found: &Value) -> Vec<Figure> {
    let what = format!("restoring a snapshot of {} jobs", number(found, "jobs"));
    vec![
        Figure::new("replay", what, number(found, "seconds"), "s")
            .bar(Bar::AtMost(6.0))
            .detail(found.clone()),
        Figure::new(
            "replay",
            "memory of a job after it",
            number(found, "resident_bytes_per_job"),
            "bytes/job",
        )
        .bar(Bar::AtMost(1_536.0)),
    ]
}
