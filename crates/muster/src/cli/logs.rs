//! `muster job logs`.

use clap::{Args, ValueEnum};
use muster_client::CallError;
use muster_types::{RefusalCode, limits};
use muster_wire::v1;

use super::Global;
use super::attach;
use super::console::Console;
use super::failure::{Exit, Failure};
use super::follow::{self, Subject, Until};
use super::job::checked;

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
  muster job logs job-3f0 --rank 3 -f        follow until the worker ends; waits for one that has not begun
  muster job logs job-3f0 --previous         the attempt before this one

The output is written as it is, both streams in the order in which they were written, whatever -o says.
Its node keeps the newest of it; what is missing is said on stderr.")]
pub struct LogsArgs {
    /// The job's id
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
    /// Only the last so many bytes
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    tail: Option<u64>,
}

pub async fn run(global: &Global, console: &Console, args: LogsArgs) -> Result<Exit, Failure> {
    let request = v1::ReadLogsRequest {
        job_id: checked(&args.id)?,
        rank: args.rank,
        follow: args.follow,
        stream: match args.stream {
            Stream::Stdout => "stdout".to_owned(),
            Stream::Stderr => "stderr".to_owned(),
            Stream::Both => String::new(),
        },
        previous: args.previous,
        tail_bytes: args.tail.unwrap_or(0),
        ..Default::default()
    };
    let client = global.client().await?;
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
                    Subject { ids, tenant: String::new(), until: Until::Running, limit: global.timeout };
                let (exit, _) = follow::follow(&client, console, subject, |_, _| Ok(())).await?;
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
    error.refused().is_some_and(|refused| refused.code == Some(RefusalCode::LogsUnavailable))
}
