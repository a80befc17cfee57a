//! `muster exec` and `muster attach`.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use muster_client::{Client, ExecInput};
use muster_console::{Console, Exit, Failure, Global};
use muster_types::limits;
use muster_wire::v1;
use muster_wire::v1::exec_end::End;
use muster_wire::v1::exec_worker_response::Message;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};

use crate::complete;
use crate::find::{self, Find};

/// Bytes of one piece of input.
const PIECE_BYTES: usize = 32 << 10;
/// Ctrl-P and Ctrl-Q, one after the other.
const LEAVE_KEYS: (u8, u8) = (16, 17);
/// SIGINT on Linux.
const INTERRUPT: u32 = 2;

/// Options of `muster exec`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster exec job-3f0 -- nvidia-smi              next to rank 0
  muster exec train --rank 3 -- py-spy dump --pid 2
  muster exec job-3f0 -i -- sh < look.sh         with the input of this command
  muster exec job-3f0 -it -- bash                a shell, with this terminal
  muster exec job-3f0 --env LEVEL=debug -- env

The command has what the worker has and no more: its processes, files, devices, limits, user and environment. It ends with the
worker, and with this command; Ctrl-C sends it SIGINT, a second one leaves it, which ends it. With -t every key goes to the
command, and both of its streams come to stdout. What it leaves in the background ends with the worker. That it was run, by
whom, is in the log of decisions.

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
    /// Give the command a terminal, as this one; with -i
    #[arg(short = 't', long = "tty", requires = "stdin")]
    terminal: bool,
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
    let terminal = args.terminal.then(size_here).transpose()?;
    let client = global.client().await?;
    let mut environment: HashMap<String, String> = args.env.into_iter().collect();
    if terminal.is_some()
        && let Ok(kind) = std::env::var("TERM")
    {
        environment.entry("TERM".to_owned()).or_insert(kind);
    }
    let start = v1::ExecStart {
        job_id: find::resolve(&client, &args.id, Find::Newest).await?,
        rank: args.rank,
        token: None,
        command: args.command,
        environment,
        terminal,
        attach: false,
    };
    converse(&client, console, start, args.stdin).await
}

/// Options of `muster attach`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster run -it -- python                       starts a job with a terminal, and attaches to it
  muster attach job-3f0                          again, from anywhere
  muster attach train --rank 3

Only for jobs with `terminal: true`. Every key goes to the worker, Ctrl-C too; Ctrl-P and then Ctrl-Q leaves it, and it runs on.
Several people can be attached to one worker: all of them see what it writes and may type. That somebody attached, and who, is in
the log of decisions.

The exit code is the worker's when it ends meanwhile; 128 and the signal's number when a signal ended it.")]
pub struct AttachArgs {
    /// The job's id, or its name
    #[arg(add = ArgValueCompleter::new(complete::jobs))]
    id: String,
    /// Which worker
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..i64::from(limits::GANG_WORKERS_MAX)))]
    rank: u32,
    /// As it always does, for those who are used to it
    #[arg(short = 'i', long)]
    stdin: bool,
    /// As it always does, for those who are used to it
    #[arg(short = 't', long = "tty")]
    terminal: bool,
}

pub async fn attach(global: &Global, console: &Console, args: AttachArgs) -> Result<Exit, Failure> {
    // Before anything is asked for.
    size_here()?;
    let AttachArgs { id, rank, stdin, terminal } = args;
    // Both are always so.
    let _ = (stdin, terminal);
    let client = global.client().await?;
    let job_id = find::resolve(&client, &id, Find::Newest).await?;
    attach_to(&client, console, job_id, rank).await
}

/// Attaches to the terminal of a worker until that ends, or it is left.
pub async fn attach_to(
    client: &Client,
    console: &Console,
    job_id: String,
    rank: u32,
) -> Result<Exit, Failure> {
    let terminal = Some(size_here()?);
    let start = v1::ExecStart { job_id, rank, terminal, attach: true, ..Default::default() };
    converse(client, console, start, true).await
}

/// Carries what this command reads to a worker or a command next to one, and what that writes back, until it has ended or is left.
async fn converse(
    client: &Client,
    console: &Console,
    start: v1::ExecStart,
    reads: bool,
) -> Result<Exit, Failure> {
    let (terminal, is_attached) = (start.terminal, start.attach);
    let left = Arc::new(Notify::new());
    let mut opened = client.exec_worker(start).await?;
    let input = opened.take_input();
    // Behind the input, and so dropped before it: what is left has not come to the end of its input.
    let mut exec = opened;
    let (failed, mut failures) = mpsc::channel(1);
    // Put back when this function ends, before an error is printed.
    let _raw = if terminal.is_some() { Some(RawTerminal::enter()?) } else { None };
    if let Some(input) = input.clone() {
        let leave = is_attached.then(|| Arc::clone(&left));
        tokio::spawn(feed(input, reads, leave, failed));
    }
    let mut resized = signal(SignalKind::window_change())?;
    let mut is_interrupted = false;
    loop {
        let next = tokio::select! {
            next = exec.next() => next?,
            _ = resized.recv(), if terminal.is_some() => {
                if let (Some(input), Ok(size)) = (input.clone(), size_here()) {
                    tokio::spawn(async move { input.resize(size).await });
                }
                continue;
            }
            () = left.notified(), if is_attached => return Ok(Exit::Ok),
            Some(error) = failures.recv() => return Err(not_read(&error, is_attached)),
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
            // From here on it is the command that is silent, and not the cluster.
            Some(Message::Started(_)) => console.bytes(&[])?,
            Some(Message::End(end)) => return Ok(exit_of(end)),
            None => {
                let text = "the connection ended before the command; whether it still runs is not known";
                return Err(Failure::new(Exit::Unavailable, text)
                    .with_next("it ends by itself: nobody reads its output any more"));
            }
        }
    }
}

/// The size of the terminal that this command reads from.
pub fn size_here() -> Result<v1::ExecTerminal, Failure> {
    let size = tcgetwinsize(std::io::stdin()).map_err(|_| {
        Failure::usage("a terminal is needed as standard input")
            .with_next("call it from a terminal; muster run and muster exec without -t need none")
    })?;
    // Some terminals do not say how large they are.
    let at_least = |number: u16| u32::from(number.max(1));
    Ok(v1::ExecTerminal { rows: at_least(size.ws_row), columns: at_least(size.ws_col) })
}

/// The terminal hands on every key as it is, as long as this is there.
struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    fn enter() -> Result<RawTerminal, Failure> {
        let failed =
            |error: rustix::io::Errno| Failure::new(Exit::Failed, format!("set the terminal: {error}"));
        let before = tcgetattr(std::io::stdin()).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).map_err(failed)?;
        Ok(RawTerminal { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Drain, &self.before);
    }
}

fn not_read(error: &io::Error, is_attached: bool) -> Failure {
    let next = match is_attached {
        true => "the worker goes on; attach to it again from a terminal",
        false => "what was run has not got all of its input, and is ended",
    };
    Failure::new(Exit::Failed, format!("read standard input: {error}")).with_next(next)
}

/// Sends what this command reads, or only that there is nothing. Where it cannot be read on, that is no end of it.
async fn feed(input: ExecInput, reads: bool, leave: Option<Arc<Notify>>, failed: mpsc::Sender<io::Error>) {
    if reads {
        let (mut pieces, mut keys) = (read_stdin(), LeaveKeys::default());
        while let Some(piece) = pieces.recv().await {
            let piece = match piece {
                Ok(piece) => piece,
                Err(error) => {
                    // Who hears it ends the command.
                    let _ = failed.send(error).await;
                    return;
                }
            };
            if let Some(leave) = leave.as_ref().filter(|_| keys.are_in(&piece)) {
                leave.notify_one();
                return;
            }
            if !input.send(piece).await {
                return;
            }
        }
    }
    input.end().await;
}

/// Looks for the keys that leave a worker's terminal.
#[derive(Default)]
struct LeaveKeys {
    /// The first of them was the last key.
    is_first_pressed: bool,
}

impl LeaveKeys {
    /// Whether the last of them is in this piece.
    fn are_in(&mut self, piece: &[u8]) -> bool {
        for key in piece {
            if self.is_first_pressed && *key == LEAVE_KEYS.1 {
                return true;
            }
            self.is_first_pressed = *key == LEAVE_KEYS.0;
        }
        false
    }
}

/// Standard input, from a thread that nobody waits for: a terminal that nobody types on must not keep this program.
fn read_stdin() -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, pieces) = mpsc::channel(1);
    std::thread::spawn(move || read_pieces(io::stdin().lock(), &sender));
    pieces
}

/// Reads up to the end, to an error, which comes last, or until nobody takes it.
fn read_pieces(mut from: impl Read, sender: &mpsc::Sender<io::Result<Vec<u8>>>) {
    let mut bytes = vec![0; PIECE_BYTES];
    loop {
        let piece = match from.read(&mut bytes) {
            Ok(0) => return,
            Ok(read) => Ok(bytes[..read].to_vec()),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let is_last = piece.is_err();
        if sender.blocking_send(piece).is_err() || is_last {
            return;
        }
    }
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
    fn two_keys_one_after_the_other_leave_a_terminal() {
        let pressed = |pieces: &[&[u8]]| {
            let mut keys = LeaveKeys::default();
            pieces.iter().any(|piece| keys.are_in(piece))
        };
        assert!(pressed(&[b"ls\n\x10\x11"]) && pressed(&[b"\x10", b"\x11"]) && pressed(&[b"\x10\x10\x11"]));
        assert!(!pressed(&[b"\x10x\x11"]) && !pressed(&[b"\x11\x10"]));
    }

    /// Gives a piece, is interrupted, and then fails.
    struct Breaks(u32);

    impl Read for Breaks {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.0 += 1;
            match self.0 {
                1 => {
                    bytes[..4].copy_from_slice(b"half");
                    Ok(4)
                }
                2 => Err(ErrorKind::Interrupted.into()),
                _ => Err(io::Error::other("the disk is gone")),
            }
        }
    }

    #[test]
    fn input_that_cannot_be_read_on_has_not_ended() {
        let (sender, mut pieces) = mpsc::channel(8);
        read_pieces(Breaks(0), &sender);
        read_pieces(io::empty(), &sender);
        drop(sender);
        let first = pieces.blocking_recv().expect("a piece").expect("it is read");
        assert_eq!(first, b"half");
        let failed = pieces.blocking_recv().expect("it is told").expect_err("it failed");
        assert!(failed.to_string().contains("the disk is gone"), "{failed}");
        assert!(pieces.blocking_recv().is_none(), "an end is told by nothing that follows");
    }

    #[test]
    fn a_variable_has_a_name() {
        assert_eq!(variable("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert!(variable("A").is_err() && variable("=b").is_err());
    }
}
