//! Staying with one job: the output of its workers as they write it, over all its attempts, to its end.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_client::{Client, WatchItem};
use muster_console::{Console, Exit, Failure, one_line};
use muster_types::RefusalCode;
use muster_wire::v1;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;
use v1::exit_status::Kind;

use super::reason;
use crate::view::{self, has_ended};

/// Workers whose output is shown together.
const RANKS_SHOWN_MAX: u32 = 16;
/// Within this of a Ctrl-C a second one cancels the job.
const SECOND_THOUGHTS: Duration = Duration::from_secs(2);
/// How long the rest of the output is waited for once the job has ended and none comes.
const REST_MAX: Duration = Duration::from_secs(10);
/// Pieces of output between their readers and the terminal.
const PIECES_QUEUED_MAX: usize = 64;
/// How soon output that cannot be had is asked for again.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// A line that is longer is shown in parts.
const LINE_BYTES_MAX: usize = 16 << 10;

/// Whose output.
#[derive(Clone, Copy, Debug)]
pub enum Ranks {
    /// Of all workers, or of rank 0 when they are too many.
    All,
    /// Of one.
    One(u32),
}

enum OutputEvent {
    Piece(u32, v1::ReadLogsResponse),
    /// The end of one reader.
    End(Ending),
}

/// How the reading of one worker's output ended.
struct Ending {
    rank: u32,
    /// Of the attempt that was read.
    token: Option<v1::FencingToken>,
    /// Why the output is not complete, where it is not.
    why: Option<String>,
}

/// What Ctrl-C has done so far.
#[derive(Debug, PartialEq)]
enum Interrupt {
    None,
    /// Detaches then.
    Leaving(Instant),
    Cancelled,
}

/// What is to be done for a Ctrl-C.
#[derive(Debug, PartialEq)]
enum Pressed {
    Leave,
    Cancel,
    /// The command ends at once.
    End,
}

impl Interrupt {
    fn press(&mut self, now: Instant) -> Pressed {
        let (next, pressed) = match self {
            Interrupt::None => (Interrupt::Leaving(now + SECOND_THOUGHTS), Pressed::Leave),
            Interrupt::Leaving(_) => (Interrupt::Cancelled, Pressed::Cancel),
            Interrupt::Cancelled => return Pressed::End,
        };
        *self = next;
        pressed
    }

    fn leave_at(&self) -> Option<Instant> {
        match self {
            Interrupt::Leaving(at) => Some(*at),
            Interrupt::None | Interrupt::Cancelled => None,
        }
    }

    /// Does what a Ctrl-C asks for; whether the command ends. `back` is the command that comes back to the job.
    async fn take(
        &mut self,
        (client, console): (&Client, &Console),
        job_id: &str,
        back: &str,
    ) -> Result<bool, Failure> {
        match self.press(Instant::now()) {
            Pressed::Leave => {
                console.progress(&format!("detaching from {job_id} ({back}); Ctrl-C again cancels it"));
            }
            Pressed::Cancel => {
                console.progress(&format!("cancelling {job_id}"));
                let request = v1::CancelJobRequest { job_id: job_id.to_owned(), ..Default::default() };
                client.cancel_job(request).await?;
            }
            Pressed::End => return Ok(true),
        }
        Ok(false)
    }
}

fn watch_one(job_id: &str) -> v1::WatchJobsRequest {
    v1::WatchJobsRequest {
        filter: Some(v1::JobFilter { job_ids: vec![job_id.to_owned()], ..Default::default() }),
        ..Default::default()
    }
}

/// What became of a job that was to run.
pub enum Waited {
    /// It runs.
    Runs,
    /// Before anybody saw it run.
    Ended,
    /// It was left, or cancelled by Ctrl-C.
    Left(Exit),
}

/// Waits until a job runs, and tells why it does not. Ctrl-C leaves it, and a second one cancels it, as in [`attach`].
pub async fn until_it_runs(
    client: &Client,
    console: &Console,
    job_id: &str,
    time_is_up: Option<Instant>,
) -> Result<Waited, Failure> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut watch = client.watch_jobs(watch_one(job_id));
    let mut shown = OutputPrinter::new(console);
    let mut interrupt = Interrupt::None;
    let back = format!("muster attach {job_id}");
    loop {
        tokio::select! {
            item = watch.next() => match item? {
                WatchItem::Changed { job, .. } if job.id == job_id => {
                    if job.phase() == v1::JobPhase::Running {
                        return Ok(Waited::Runs);
                    }
                    if has_ended(job.phase()) {
                        let left = Waited::Left(Exit::Interrupted);
                        return Ok(if interrupt == Interrupt::Cancelled { left } else { Waited::Ended });
                    }
                    shown.tell_waiting(&job);
                }
                WatchItem::Forgotten { job_id: gone, .. } if gone == job_id => return Ok(Waited::Ended),
                _ => {}
            },
            Some(()) = interrupts.recv() => {
                if interrupt.take((client, console), job_id, &back).await? {
                    return Ok(Waited::Left(Exit::Interrupted));
                }
            }
            () = at(interrupt.leave_at()) => return Ok(Waited::Left(Exit::Interrupted)),
            () = at(time_is_up) => {
                let why = format!("the time is up, and {job_id} has not started; it stays in the queue");
                return Err(Failure::new(Exit::Timeout, why).with_next(back));
            }
        }
    }
}

/// Stays until the job has ended or is left, at most for `limit`. The exit is the job's.
pub async fn attach(
    client: &Client,
    console: &Console,
    job_id: &str,
    ranks: Ranks,
    limit: Duration,
) -> Result<Exit, Failure> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut watch = client.watch_jobs(watch_one(job_id));
    let back = format!("muster job logs {job_id} -f");
    let (say, mut said) = mpsc::channel(PIECES_QUEUED_MAX);
    let mut shown = OutputPrinter::new(console);
    let mut interrupt = Interrupt::None;
    let mut ended: Option<Instant> = None;
    let time_is_up = Instant::now().checked_add(limit);
    while ended.is_none() || shown.readers > 0 {
        tokio::select! {
            item = watch.next(), if ended.is_none() => match item? {
                WatchItem::Changed { job, .. } if job.id == job_id => {
                    shown.readers += begin(client, console, &job, ranks, &mut shown.token, &say);
                    if shown.readers > 1 || job.status().worker_count > 1 && matches!(ranks, Ranks::All) {
                        shown.lines.get_or_insert_default();
                    }
                    shown.tell_waiting(&job);
                    ended = has_ended(job.phase()).then(|| Instant::now() + REST_MAX);
                }
                WatchItem::Forgotten { job_id: gone, .. } if gone == job_id => {
                    return Err(Failure::new(Exit::NotFound, format!("{job_id} is not kept any more")));
                }
                _ => {}
            },
            Some(piece) = said.recv(), if shown.readers > 0 => {
                ended = ended.map(|_| Instant::now() + REST_MAX);
                shown.take(piece).map_err(|failure| left(console, failure, job_id, &back))?;
            }
            Some(()) = interrupts.recv() => {
                if interrupt.take((client, console), job_id, &back).await? {
                    return Ok(Exit::Interrupted);
                }
            }
            () = at(interrupt.leave_at()) => return Ok(Exit::Interrupted),
            () = at(time_is_up) => {
                return Err(Failure::new(Exit::Timeout, format!("the time is up; {job_id} goes on"))
                    .with_next(back));
            }
            () = at(ended) => {
                shown.incomplete = shown.token;
                break;
            }
        }
    }
    shown.flush()?;
    let answer = client.get_job(v1::GetJobRequest { job_id: job_id.to_owned(), read: None }).await?;
    let job = answer.job.unwrap_or_default();
    if job.phase() != v1::JobPhase::Succeeded {
        let seen = view::Job::from(job.clone());
        console.progress(&one_line(&format!("{job_id} {}: {}", seen.status.phase, reason(&seen))));
    }
    let cancelled = matches!(interrupt, Interrupt::Cancelled);
    if cancelled && job.phase() == v1::JobPhase::Cancelled {
        return Ok(Exit::Interrupted);
    }
    match exit_of(&job) {
        Exit::Ok if shown.incomplete.is_some() && shown.incomplete == shown.token => {
            let what = format!("{job_id} succeeded, but its output could not be read to the end");
            Err(Failure::new(Exit::Unavailable, what).with_next(format!("muster job logs {job_id}")))
        }
        exit => Ok(exit),
    }
}

/// Says that the job goes on where its output cannot be written any more, as when a pipe is closed by `head`.
fn left(console: &Console, failure: Failure, job_id: &str, back: &str) -> Failure {
    if failure.headline().is_empty() {
        console.progress(&format!("nobody reads the output any more; {job_id} goes on: {back}"));
        return failure;
    }
    failure.with_next(format!("{job_id} goes on: {back}"))
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Begins to read the output of an attempt that has not been read yet; how many readers there are more.
fn begin(
    client: &Client,
    console: &Console,
    job: &v1::Job,
    ranks: Ranks,
    token: &mut Option<v1::FencingToken>,
    say: &mpsc::Sender<OutputEvent>,
) -> usize {
    use v1::JobPhase::{Pending, Starting};
    let Some(placement) = &job.status().placement else { return 0 };
    let Some(current) = placement.token else { return 0 };
    // An elastic gang may have fewer than it would like.
    let placed = u32::try_from(placement.workers.len()).unwrap_or(u32::MAX);
    let workers = if placed > 0 { placed } else { job.status().worker_count };
    // Before that some workers have no output yet that could be asked for.
    let early = [Pending, Starting].into_iter().any(|phase| job.phase() == phase);
    if early || *token == Some(current) {
        return 0;
    }
    if token.replace(current).is_some() {
        console.progress(&format!("{}: attempt {}", job.id, job.status().attempt));
    }
    let wanted: Vec<u32> = match ranks {
        Ranks::One(rank) => vec![rank],
        Ranks::All if workers <= RANKS_SHOWN_MAX => (0..workers).collect(),
        Ranks::All => {
            console.progress(&format!("{workers} workers; the output is that of rank 0"));
            vec![0]
        }
    };
    for rank in &wanted {
        let request = v1::ReadLogsRequest {
            job_id: job.id.clone(),
            rank: *rank,
            follow: true,
            token: Some(current),
            ..Default::default()
        };
        tokio::spawn(read(client.clone(), request, say.clone()));
    }
    wanted.len()
}

/// Whether output that is not there now may be there in a moment.
fn may_come(code: RefusalCode) -> bool {
    matches!(code, RefusalCode::WorkerNotStarted | RefusalCode::LogsUnavailable)
}

/// Reads the output of one worker to its end. A node that cannot be reached is asked again as long as anybody listens:
/// its agent may be back in a moment, and the caller ends with the job.
async fn read(client: Client, request: v1::ReadLogsRequest, say: mpsc::Sender<OutputEvent>) {
    let (rank, token) = (request.rank, request.token);
    let why = loop {
        let mut has_begun = false;
        let reading = async {
            let mut logs = client.read_logs(request.clone()).await?;
            while let Some(piece) = logs.next().await? {
                has_begun = true;
                // Nobody listens any more: then the command ends.
                let _ = say.send(OutputEvent::Piece(rank, piece)).await;
            }
            Ok::<(), muster_client::CallError>(())
        };
        let Err(error) = reading.await else { break None };
        let is_unavailable = error.refused().is_some_and(|refused| refused.code.is_some_and(may_come));
        // What has begun goes on by itself behind what was read; asked again it would begin again.
        if has_begun || !is_unavailable {
            break Some(error.refused().map_or_else(|| error.to_string(), |refused| refused.message.clone()));
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY_EVERY) => {}
            () = say.closed() => return,
        }
    };
    let _ = say.send(OutputEvent::End(Ending { rank, token, why })).await;
}

/// Shows the output, and knows what has been shown.
struct OutputPrinter<'a> {
    console: &'a Console,
    /// Readers that have not ended.
    readers: usize,
    /// Of the attempt that is being read.
    token: Option<v1::FencingToken>,
    /// The last word on why it waits.
    waiting: String,
    /// Lines that are not complete, by rank and whether it is stderr; none when one worker is shown as it is.
    lines: Option<BTreeMap<(u32, bool), Vec<u8>>>,
    /// The attempt whose output could not be read to the end.
    incomplete: Option<v1::FencingToken>,
}

impl<'a> OutputPrinter<'a> {
    fn new(console: &'a Console) -> OutputPrinter<'a> {
        let waiting = String::new();
        OutputPrinter { console, readers: 0, token: None, waiting, lines: None, incomplete: None }
    }

    fn tell_waiting(&mut self, job: &v1::Job) {
        if job.phase() != v1::JobPhase::Pending {
            return;
        }
        let why = reason(&view::Job::from(job.clone()));
        if !why.is_empty() && why != self.waiting {
            self.console.progress(&one_line(&format!("{} waits: {why}", job.id)));
            self.waiting = why;
        }
    }

    fn take(&mut self, event: OutputEvent) -> Result<(), Failure> {
        match event {
            OutputEvent::Piece(rank, piece) => {
                tell_dropped(self.console, rank, piece.dropped_bytes);
                self.show(rank, piece.stream() == v1::OutputStream::Stderr, &piece.data)
            }
            OutputEvent::End(Ending { rank, token, why }) => {
                self.readers -= 1;
                if let Some(why) = why {
                    self.console
                        .error(&one_line(&format!("muster: the output of rank {rank} ends early: {why}")));
                    self.incomplete = token;
                }
                Ok(())
            }
        }
    }

    fn show(&mut self, rank: u32, is_error: bool, data: &[u8]) -> Result<(), Failure> {
        let Some(lines) = &mut self.lines else { return put(self.console, is_error, data) };
        let line = lines.entry((rank, is_error)).or_default();
        let mut out = Vec::with_capacity(data.len() + 16);
        for part in data.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(part);
            if part.ends_with(b"\n") || line.len() > LINE_BYTES_MAX {
                out.extend_from_slice(format!("{rank}: ").as_bytes());
                out.append(line);
                if out.last() != Some(&b'\n') {
                    out.push(b'\n');
                }
            }
        }
        put(self.console, is_error, &out)
    }

    /// Lines without an end.
    fn flush(&mut self) -> Result<(), Failure> {
        for ((rank, is_error), line) in self.lines.take().unwrap_or_default() {
            if !line.is_empty() {
                let mut out = format!("{rank}: ").into_bytes();
                out.extend(line);
                out.push(b'\n');
                put(self.console, is_error, &out)?;
            }
        }
        Ok(())
    }
}

fn put(console: &Console, is_error: bool, bytes: &[u8]) -> Result<(), Failure> {
    if is_error { console.error_bytes(bytes) } else { console.bytes(bytes) }
}

/// Says on stderr that something is missing in the output.
pub fn tell_dropped(console: &Console, rank: u32, bytes: u64) {
    if bytes > 0 {
        console
            .error(&format!("muster: {bytes} bytes of the output of rank {rank} were not kept on its node"));
    }
}

/// What a job ended with: the code of the lowest rank that ended with one by itself, else 128 and the signal
/// that ended one.
fn exit_of(job: &v1::Job) -> Exit {
    if job.phase() == v1::JobPhase::Succeeded {
        return Exit::Ok;
    }
    let workers = job.status().placement.iter().flat_map(|placement| &placement.workers);
    let kinds: Vec<&Kind> = workers.filter_map(|worker| worker.exit.as_ref()?.kind.as_ref()).collect();
    let by = |code: &dyn Fn(&Kind) -> Option<i32>| kinds.iter().find_map(|kind| code(kind));
    let code = by(&|kind| match kind {
        Kind::Code(code) if *code != 0 => Some(*code),
        _ => None,
    });
    let signal = || {
        by(&|kind| match kind {
            Kind::Signal(signal) => Some(128 + signal),
            Kind::OutOfMemory(_) | Kind::OutOfScratch(_) => Some(128 + 9),
            _ => None,
        })
    };
    let code = code.or_else(signal).and_then(|code| u8::try_from(code).ok());
    code.filter(|code| *code != 0).map_or(Exit::Failed, Exit::Job)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(phase: v1::JobPhase, kinds: &[Kind]) -> v1::Job {
        let worker = |kind: &Kind| v1::WorkerPlacement {
            exit: Some(v1::ExitStatus { kind: Some(kind.clone()) }),
            ..Default::default()
        };
        let workers = kinds.iter().map(worker).collect();
        let placement = Some(v1::Placement { workers, ..Default::default() });
        let status = v1::JobStatus { phase: phase.into(), placement, ..Default::default() };
        v1::Job { status: Some(status), ..Default::default() }
    }

    #[test]
    fn a_job_whose_output_cannot_be_written_is_named() {
        let console = Console::new(muster_console::Format::Table, true, true);
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let told = left(&console, Failure::from(full), "job-1", "muster job logs job-1 -f");
        assert_eq!(told.next(), Some("job-1 goes on: muster job logs job-1 -f"));
        let closed = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert_eq!(left(&console, Failure::from(closed), "job-1", "").exit(), Exit::Ok);
    }

    #[test]
    fn one_ctrl_c_leaves_a_second_cancels_and_a_third_ends_the_command() {
        let now = Instant::now();
        let mut interrupt = Interrupt::None;
        assert_eq!(interrupt.leave_at(), None);
        assert_eq!(interrupt.press(now), Pressed::Leave);
        assert_eq!(interrupt.leave_at(), Some(now + SECOND_THOUGHTS));
        assert_eq!(interrupt.press(now), Pressed::Cancel);
        assert_eq!(interrupt.leave_at(), None, "what the job ends with is waited for");
        assert_eq!(interrupt.press(now), Pressed::End);
    }

    #[test]
    fn the_exit_is_that_of_the_job() {
        use v1::JobPhase::{Failed, Succeeded};
        let exit = |phase, kinds: &[Kind]| exit_of(&job(phase, kinds));
        assert_eq!(exit(Succeeded, &[Kind::Code(0)]), Exit::Ok);
        assert_eq!(exit(Failed, &[Kind::Signal(15), Kind::Code(0), Kind::Code(7)]), Exit::Job(7));
        assert_eq!(exit(Failed, &[Kind::Code(0), Kind::Signal(9)]), Exit::Job(137));
        assert_eq!(exit(Failed, &[Kind::OutOfMemory(v1::OutOfMemory {})]), Exit::Job(137));
        assert_eq!(exit(Failed, &[Kind::Code(256)]), Exit::Failed);
        assert_eq!(exit(Failed, &[Kind::Code(-1)]), Exit::Failed);
        assert_eq!(exit(Failed, &[Kind::LaunchFailed("no such file".into())]), Exit::Failed);
        assert_eq!(exit(Failed, &[]), Exit::Failed);
    }
}
