//! Commands that somebody runs next to a worker, from the agent's side: the messages to the process that joins the worker
//! (`shim/exec.rs`), and what goes between it and the caller.
//!
//! **Invariant:** whatever a command writes and however slowly that is taken, a few pieces are in memory; when nobody takes it any
//! more, the command is ended.

use crate::executor::{ExecInput, ExecOutput};
use crate::limits;
use crate::process::task::TaskDir;
use crate::rules::detail;
use muster_types::terminal::TerminalSize;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::Command;
use tokio::sync::mpsc;

/// First argument of the process that runs a command next to a worker.
pub(crate) const EXEC: &str = "exec";
/// The kind of a message and the length of what follows.
pub(crate) const FRAME_HEAD_BYTES: usize = 5;

/// What is to be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Program and arguments.
    pub(crate) command: Vec<String>,
    /// Variables beyond those of the worker, or in their place.
    pub(crate) environment: BTreeMap<String, String>,
    /// The terminal that it has; none for pipes.
    pub(crate) terminal: Option<TerminalSize>,
}

/// A message between the agent and the process that joins the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The agent's first.
    Request(Request),
    /// For the command's standard input.
    Input(Vec<u8>),
    /// No more input.
    InputEnd,
    /// A signal for the command and what it has started.
    Signal(i32),
    /// The command's process is there.
    Started,
    /// It ended with this code.
    Exited(i32),
    /// A signal ended it.
    Signaled(i32),
    /// It could not be started, or watched.
    Failed(String),
    /// The size of its terminal from now on.
    Resize(TerminalSize),
}

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// Of another release.
    #[error("a message of an unknown kind, {0}")]
    Unknown(u8),
    /// Longer than any.
    #[error("a message of {0} bytes is too long")]
    TooLong(u32),
    /// Its content is not of its kind.
    #[error("a message of kind {0} is broken")]
    Broken(u8),
}

impl Frame {
    /// As it is sent.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, content) = match self {
            Frame::Request(request) => (1, serde_json::to_vec(request).unwrap_or_default()),
            Frame::Input(bytes) => (2, bytes.clone()),
            Frame::InputEnd => (3, Vec::new()),
            Frame::Signal(number) => (4, number.to_le_bytes().to_vec()),
            Frame::Started => (5, Vec::new()),
            Frame::Exited(code) => (6, code.to_le_bytes().to_vec()),
            Frame::Signaled(number) => (7, number.to_le_bytes().to_vec()),
            Frame::Failed(text) => (8, text.clone().into_bytes()),
            Frame::Resize(size) => (9, [size.rows.to_le_bytes(), size.columns.to_le_bytes()].concat()),
        };
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&u32::try_from(content.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(&content);
        bytes
    }

    /// How many bytes follow a head.
    pub(crate) fn length([_, a, b, c, d]: [u8; FRAME_HEAD_BYTES]) -> Result<usize, FrameError> {
        let length = u32::from_le_bytes([a, b, c, d]);
        let bounded = usize::try_from(length).ok().filter(|length| *length <= limits::EXEC_FRAME_BYTES_MAX);
        bounded.ok_or(FrameError::TooLong(length))
    }

    /// The first message of these bytes and how many it takes; none while it is not whole.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Frame, usize)>, FrameError> {
        let Some((head, rest)) = bytes.split_first_chunk::<FRAME_HEAD_BYTES>() else { return Ok(None) };
        let length = Frame::length(*head)?;
        let Some(content) = rest.get(..length) else { return Ok(None) };
        let kind = head[0];
        let number = || content.try_into().map(i32::from_le_bytes).map_err(|_| FrameError::Broken(kind));
        let frame = match kind {
            1 => Frame::Request(serde_json::from_slice(content).map_err(|_| FrameError::Broken(kind))?),
            2 => Frame::Input(content.to_vec()),
            3 => Frame::InputEnd,
            4 => Frame::Signal(number()?),
            5 => Frame::Started,
            6 => Frame::Exited(number()?),
            7 => Frame::Signaled(number()?),
            8 => Frame::Failed(String::from_utf8_lossy(content).into_owned()),
            9 => {
                let [a, b, c, d]: [u8; 4] = content.try_into().map_err(|_| FrameError::Broken(kind))?;
                let (rows, columns) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
                let size = TerminalSize::new(rows.into(), columns.into());
                Frame::Resize(size.ok_or(FrameError::Broken(kind))?)
            }
            _ => return Err(FrameError::Unknown(kind)),
        };
        Ok(Some((frame, FRAME_HEAD_BYTES + length)))
    }
}

/// Runs one command until it has ended, or nobody takes its output any more. `guard` is the program of shims with its first
/// arguments.
///
/// # Errors
/// One sentence, where it could not be run or its end is not known.
pub(crate) async fn run(
    guard: &[String],
    task: &TaskDir,
    request: Request,
    inputs: mpsc::Receiver<ExecInput>,
    outputs: &mpsc::Sender<ExecOutput>,
) -> Result<(), String> {
    let (program, before) = guard.split_first().ok_or("there is no program of shims")?;
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(|e| format!("make a socket: {e}"))?;
    ours.set_nonblocking(true).map_err(|e| format!("make a socket: {e}"))?;
    let (stdout, stderr) = {
        let mut command = Command::new(program);
        command.args(before).arg(EXEC).arg(task.path()).kill_on_drop(true).env_clear().current_dir("/");
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("start {program}: {e}"))?;
        let pipes = child.stdout.take().zip(child.stderr.take());
        // It ends the command and goes when this end of the socket is closed; the other end is closed here with `command`.
        tokio::spawn(async move { child.wait().await });
        pipes.ok_or("a command without pipes")?
    };
    let (mut said, mut tell) =
        UnixStream::from_std(ours).map_err(|e| format!("make a socket: {e}"))?.into_split();
    let asked = tell.write_all(&Frame::Request(request).encode()).await;
    asked.map_err(|e| format!("say which command to run: {e}"))?;
    let feed = feed(inputs, tell);
    let copy = async {
        tokio::join!(copy(stdout, outputs, ExecOutput::Stdout), copy(stderr, outputs, ExecOutput::Stderr))
    };
    tokio::pin!(feed, copy);
    let mut copied = false;
    let end = {
        let hear = hear(&mut said, outputs);
        tokio::pin!(hear);
        loop {
            tokio::select! {
                end = &mut hear => break end,
                _ = &mut copy, if !copied => copied = true,
                () = &mut feed => {}
                () = outputs.closed() => return Ok(()),
            }
        }
    };
    if !copied {
        // What it has left in the background may hold its output open for as long as the worker runs.
        let _ = tokio::time::timeout(limits::OUTPUT_DRAIN_MAX, &mut copy).await;
    }
    let _ = outputs.send(end?).await;
    Ok(())
}

/// Hands on what the caller tells the command; never ends, for the command may run on without any.
async fn feed(mut inputs: mpsc::Receiver<ExecInput>, mut tell: OwnedWriteHalf) {
    loop {
        let frame = match inputs.recv().await {
            Some(ExecInput::Data(bytes)) => Frame::Input(bytes),
            Some(ExecInput::Signal(number)) => Frame::Signal(number),
            Some(ExecInput::Resize(size)) => Frame::Resize(size),
            Some(ExecInput::End) | None => Frame::InputEnd,
        };
        let is_last = frame == Frame::InputEnd && inputs.is_closed();
        // A process that has gone is seen by its silence.
        if tell.write_all(&frame.encode()).await.is_err() || is_last {
            break;
        }
    }
    // Closed, this half would be the end of the command.
    let _held = tell;
    std::future::pending::<()>().await;
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    outputs: &mpsc::Sender<ExecOutput>,
    piece: impl Fn(Vec<u8>) -> ExecOutput,
) {
    let mut bytes = vec![0; limits::LOG_CHUNK_BYTES];
    loop {
        let Ok(read @ 1..) = from.read(&mut bytes).await else { return };
        if outputs.send(piece(bytes[..read].to_vec())).await.is_err() {
            return;
        }
    }
}

/// What the process says of the command, up to its end.
async fn hear(said: &mut OwnedReadHalf, outputs: &mpsc::Sender<ExecOutput>) -> Result<ExecOutput, String> {
    loop {
        let mut head = [0; FRAME_HEAD_BYTES];
        // The process is in the worker's control group and ends with it.
        let ended = |_| "the worker has ended, and the command with it".to_owned();
        said.read_exact(&mut head).await.map_err(ended)?;
        let length = Frame::length(head).map_err(|error| error.to_string())?;
        let mut bytes = head.to_vec();
        bytes.resize(FRAME_HEAD_BYTES + length, 0);
        said.read_exact(&mut bytes[FRAME_HEAD_BYTES..]).await.map_err(ended)?;
        match Frame::decode(&bytes) {
            Ok(Some((Frame::Started, _))) => {
                let _ = outputs.send(ExecOutput::Started).await;
            }
            Ok(Some((Frame::Exited(code), _))) => return Ok(ExecOutput::Exited(code)),
            Ok(Some((Frame::Signaled(number), _))) => return Ok(ExecOutput::Signaled(number)),
            Ok(Some((Frame::Failed(why), _))) => return Err(detail(&why)),
            Ok(_) => return Err("the process next to the worker says what it has no reason to".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_sent_and_not_before_it_is_whole() {
        let environment = [("A".to_owned(), "b\u{e9}".to_owned())].into();
        let frames = [
            Frame::Request(Request {
                command: vec!["sh".to_owned(), String::new()],
                environment,
                terminal: TerminalSize::new(24, 80),
            }),
            Frame::Resize(TerminalSize { rows: 1, columns: 65_535 }),
            Frame::Input((0..=255).collect()),
            Frame::Input(Vec::new()),
            Frame::InputEnd,
            Frame::Signal(15),
            Frame::Started,
            Frame::Exited(-1),
            Frame::Signaled(9),
            Frame::Failed("no such file".to_owned()),
        ];
        for frame in frames {
            let mut bytes = frame.encode();
            let length = bytes.len();
            for cut in 0..length {
                assert_eq!(Frame::decode(&bytes[..cut]), Ok(None), "{frame:?}");
            }
            bytes.push(7);
            assert_eq!(Frame::decode(&bytes), Ok(Some((frame, length))));
        }
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_before_anything_is_read() {
        let mut bytes = vec![2];
        bytes.extend_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Frame::decode(&bytes), Err(FrameError::TooLong(u32::MAX)));
        assert_eq!(Frame::decode(&[10, 0, 0, 0, 0]), Err(FrameError::Unknown(10)));
        assert_eq!(Frame::decode(&[9, 4, 0, 0, 0, 0, 0, 80, 0]), Err(FrameError::Broken(9)));
        assert_eq!(Frame::decode(&[4, 1, 0, 0, 0, 7]), Err(FrameError::Broken(4)));
    }
}
