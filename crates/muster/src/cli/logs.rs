//! `muster job logs`.

use clap::{Args, ValueEnum};
use muster_types::limits;
use muster_wire::v1;

use super::Global;
use super::console::Console;
use super::failure::{Exit, Failure};
use super::job::checked;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stream {
    Stdout,
    Stderr,
    /// Both, interleaved as written
    Both,
}

/// Options of `muster job logs`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster job logs job-3f0                    rank 0, all that is kept
  muster job logs job-3f0 --rank 3 -f        follow until the worker ends
  muster job logs job-3f0 --previous         the attempt before this one

The output is written as it is, whatever -o says.")]
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
    };
    let client = global.client().await?;
    let mut logs = client.read_logs(request).await?;
    while let Some(piece) = logs.next().await? {
        console.bytes(&piece.data)?;
    }
    Ok(Exit::Ok)
}
