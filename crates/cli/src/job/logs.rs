//! `muster job logs`.

use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use muster_client::{CallError, Client};
use muster_console::{Console, Exit, Failure, Global};
use muster_types::{RefusalCode, limits};
use muster_wire::v1;

use super::attach;
use super::follow::{self, Subject, WaitCondition};
use crate::complete;
use crate::find::{self, Find};
use crate::interrupt::Interrupts;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stream {
    Stdout,
    Stderr,
    /// Both, in the order in which they were written
    Both,
}

/// Options of `muster job logs`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster job logs job-3f0                    rank 0, all that is kept
  muster logs train -n 20                    the last 20 lines of the job of that name
  muster job logs job-3f0 --rank 3 -f        follow until the worker ends; waits for one that has not begun
  muster job logs job-3f0 --previous         the attempt before this one
  muster job logs 'array-3f0[7]'             the member of an array with the index 7

The output is written as it is, both streams in the order in which they were written, whatever -o says.
Its node keeps the newest of it; what is missing is reported on stderr.")]
pub struct LogsArgs {
    /// The job's id, or its name
    #[arg(add = ArgValueCompleter::new(complete::jobs))]
    id: String,
    /// Which worker
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..i64::from(limits::GANG_WORKERS_MAX)))]
    rank: u32,
    /// Go on until the worker has ended
    #[arg(short, long)]
    follow: bool,
    /// The attempt before the current one
    #[arg(long)]
    previous: bool,
    /// Which stream
    #[arg(long, value_enum, default_value_t = Stream::Both)]
    stream: Stream,
    /// Only the last lines
    #[arg(short = 'n', long, value_name = "LINES", conflicts_with = "tail_bytes", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    tail: Option<u64>,
    /// Only the last bytes
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    tail_bytes: Option<u64>,
}

/// How much of the end of the output is looked at first for its last lines; then eight times as much, and so on.
const TAIL_BYTES_FIRST: u64 = 16 << 10;
/// What is looked at for its last lines at most.
const TAIL_BYTES_MAX: u64 = 64 << 20;

/// How many bytes the last lines of the output have now.
async fn tail_bytes_of(client: &Client, request: &v1::ReadLogsRequest, lines: u64) -> Result<u64, CallError> {
    let mut bytes = TAIL_BYTES_FIRST;
    loop {
        let look = v1::ReadLogsRequest { follow: false, tail_bytes: bytes, ..request.clone() };
        let mut logs = client.read_logs(look).await?;
        let mut text: Vec<u8> = Vec::new();
        while let Some(piece) = logs.next().await? {
            text.extend_from_slice(&piece.data);
        }
        // The newline at the very end ends the last line, it begins no other one.
        let end = text.len() - usize::from(text.last() == Some(&b'\n'));
        let newlines = text.iter().take(end).enumerate().rev().filter(|(_, byte)| **byte == b'\n');
        let nth = usize::try_from(lines.saturating_sub(1)).unwrap_or(usize::MAX);
        if let Some((place, _)) = { newlines }.nth(nth) {
            return Ok((text.len() - place - 1) as u64);
        }
        let is_all = (text.len() as u64) < bytes;
        if is_all || bytes >= TAIL_BYTES_MAX {
            return Ok(text.len().max(1) as u64);
        }
        bytes = (bytes * 8).min(TAIL_BYTES_MAX);
    }
}

pub async fn run(global: &Global, console: &Console, args: LogsArgs) -> Result<Exit, Failure> {
    let client = global.client().await?;
    let mut request = v1::ReadLogsRequest {
        job_id: find::resolve(&client, &args.id, Find::Newest).await?,
        rank: args.rank,
        follow: args.follow,
        stream: match args.stream {
            Stream::Stdout => v1::OutputStream::Stdout.into(),
            Stream::Stderr => v1::OutputStream::Stderr.into(),
            Stream::Both => 0,
        },
        previous: args.previous,
        tail_bytes: args.tail_bytes.unwrap_or(0),
        ..Default::default()
    };
    if let Some(lines) = args.tail {
        request.tail_bytes = match tail_bytes_of(&client, &request, lines).await {
            Ok(bytes) => bytes,
            // It has not begun: all that comes is wanted.
            Err(error) if args.follow && is_absent(&error) => 0,
            Err(error) => return Err(error.into()),
        };
    }
    if !args.follow {
        return read(global, &client, console, &args, request).await;
    }
    let job_id = request.job_id.clone();
    let mut interrupts = Interrupts::listen()?;
    tokio::select! {
        ended = read(global, &client, console, &args, request) => ended,
        exit = interrupts.next() => {
            console.progress(&format!("{job_id} goes on; follow its output with: muster job logs {job_id} -f"));
            Ok(exit)
        }
    }
}

/// Writes the output as it comes, to its end.
async fn read(
    global: &Global,
    client: &Client,
    console: &Console,
    args: &LogsArgs,
    request: v1::ReadLogsRequest,
) -> Result<Exit, Failure> {
    // A worker that has not started has no output to follow: then its job is waited for, once.
    let mut may_wait = args.follow && !args.previous;
    let mut logs = None;
    let mut read = 0;
    loop {
        let next = match &mut logs {
            None => match client.read_logs(request.clone()).await {
                Ok(opened) => {
                    logs = Some(opened);
                    continue;
                }
                Err(error) => Err(error),
            },
            Some(logs) => logs.next().await,
        };
        match next {
            Ok(Some(piece)) => {
                attach::tell_dropped(console, args.rank, piece.dropped_bytes);
                console.bytes(&piece.data)?;
                read += piece.data.len();
            }
            Ok(None) => return Ok(Exit::Ok),
            Err(error) if std::mem::take(&mut may_wait) && read == 0 && is_absent(&error) => {
                console.progress(&format!("waiting for {} to start", request.job_id));
                let ids = vec![request.job_id.clone()];
                let subject =
                    Subject { until: WaitCondition::Running, limit: global.timeout, ..Subject::of(ids) };
                let (exit, _) = follow::follow(client, console, subject, |_, _| Ok(())).await?;
                if exit == Exit::Interrupted {
                    return Ok(exit);
                }
                logs = None;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_absent(error: &CallError) -> bool {
    error.refused().is_some_and(|refused| refused.code == Some(RefusalCode::WorkerNotStarted))
}
