//! `muster exec`.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use muster_client::ExecInput;
use muster_console::{Console, Exit, Failure, Global};
use muster_types::limits;
use muster_wire::v1;
use muster_wire::v1::exec_end::End;
use muster_wire::v1::exec_worker_response::Message;
use std::io::Read;
use tokio::sync::mpsc;

use crate::complete;
use crate::find::{self, Find};

/// Bytes of one piece of input.
const PIECE_BYTES: usize = 32 << 10;
/// SIGINT on Linux.
const INTERRUPT: u32 = 2;

/// Options of `muster exec`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster exec job-3f0 -- nvidia-smi              next to rank 0
  muster exec train --rank 3 -- py-spy dump --pid 2
  muster exec job-3f0 -i -- sh < look.sh         with the input of this command
  muster exec job-3f0 --env LEVEL=debug -- env

The command has what the worker has and no more: its processes, files, devices, limits, user and environment. It ends with the
worker, and with this command; Ctrl-C sends it SIGINT, a second one leaves it, which ends it. What it leaves in the background
ends with the worker. That it was run, by whom, is in the log of decisions.

The exit code is the command's; 128 and the signal's number when a signal ended it.")]
pub struct ExecArgs {
    /// The job's id, or its name
    #[arg(add = ArgValueCompleter::new(complete::jobs))]
    id: String,
    /// Which worker
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..i64::from(limits::GANG_WORKERS_MAX)))]
    rank: u32,
    /// Pass on what this command reads; without it the command reads nothing
    #[arg(short = 'i', long)]
    stdin: bool,
    /// A variable for the command, beyond those of the worker
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// The command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("must be NAME=VALUE".to_owned()),
    }
}

pub async fn run(global: &Global, console: &Console, args: ExecArgs) -> Result<Exit, Failure> {
    let client = global.client().await?;
    let start = v1::ExecStart {
        job_id: find::resolve(&client, &args.id, Find::Newest).await?,
        rank: args.rank,
        token: None,
        command: args.command,
        environment: args.env.into_iter().collect(),
    };
    let mut exec = client.exec_worker(start).await?;
    let input = exec.take_input();
    if let Some(input) = input.clone() {
        tokio::spawn(feed(input, args.stdin));
    }
    let mut is_interrupted = false;
    loop {
        let next = tokio::select! {
            next = exec.next() => next?,
            pressed = tokio::signal::ctrl_c() => {
                if pressed.is_err() || std::mem::replace(&mut is_interrupted, true) {
                    return Ok(Exit::Interrupted);
                }
                if let Some(input) = input.clone() {
                    // In a task: input that the command does not take must not hold up its output.
                    tokio::spawn(async move { input.signal(INTERRUPT).await });
                }
                continue;
            }
        };
        match next {
            Some(Message::Stdout(piece)) => console.bytes(&piece)?,
            Some(Message::Stderr(piece)) => console.error_bytes(&piece)?,
            Some(Message::Started(_)) => {}
            Some(Message::End(end)) => return Ok(exit_of(end)),
            None => {
                let text = "the connection ended before the command; whether it still runs is not known";
                return Err(Failure::new(Exit::Unavailable, text)
                    .with_next("it ends by itself: nobody reads its output any more"));
            }
        }
    }
}

/// Sends what this command reads, or only that there is nothing.
async fn feed(input: ExecInput, reads: bool) {
    if reads {
        let mut pieces = read_stdin();
        while let Some(piece) = pieces.recv().await {
            if !input.send(piece).await {
                return;
            }
        }
    }
    input.end().await;
}

/// Standard input, from a thread that nobody waits for: a terminal that nobody types on must not keep this program.
fn read_stdin() -> mpsc::Receiver<Vec<u8>> {
    let (sender, pieces) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut bytes = vec![0; PIECE_BYTES];
        let mut stdin = std::io::stdin().lock();
        while let Ok(read) = stdin.read(&mut bytes) {
            if read == 0 || sender.blocking_send(bytes[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    pieces
}

fn exit_of(end: v1::ExecEnd) -> Exit {
    let code = match end.end {
        Some(End::ExitCode(code)) => code,
        Some(End::Signal(number)) => number.saturating_add(128),
        None => 1,
    };
    match u8::try_from(code) {
        Ok(0) => Exit::Ok,
        Ok(code) => Exit::Job(code),
        Err(_) => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_an_exit_code_as_shells_have_it() {
        let of = |end| exit_of(v1::ExecEnd { end });
        assert_eq!(of(Some(End::ExitCode(0))), Exit::Ok);
        assert_eq!(of(Some(End::ExitCode(7))), Exit::Job(7));
        assert_eq!(of(Some(End::Signal(9))), Exit::Job(137));
        assert_eq!(of(Some(End::ExitCode(-1))), Exit::Failed);
        assert_eq!(of(None), Exit::Job(1));
    }

    #[test]
    fn a_variable_has_a_name() {
        assert_eq!(variable("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert!(variable("A").is_err() && variable("=b").is_err());
    }
}
