//! Attaching to the terminal of a worker, from the agent's side: what is typed goes into the FIFO of its shim
//! (`shim/terminal.rs`), and what it writes is read from its output as it grows.
//!
//! **Invariant:** the worker goes on, no matter who attaches or leaves; a few pieces are in memory of each.

use crate::executor::{ExecInput, ExecOutput, OutputRequest};
use crate::limits;
use crate::offload::blocking;
use crate::process::exec::Frame;
use crate::process::follow;
use crate::process::task::TaskDir;
use crate::rules::OutputStream;
use muster_types::ExitStatus;
use muster_types::terminal::TerminalSize;
use std::io;
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

/// Bytes of what the worker wrote before that who attaches is shown: about a screen.
const SHOWN_BEFORE: u64 = 4 << 10;
/// Bytes of input in one message: with its head less than what the kernel writes to a FIFO at once, so that messages of several who
/// are attached never mix.
const INPUT_BYTES_MAX: usize = 4_000;
/// SIGINT, and what a terminal takes for it.
const INTERRUPT: (i32, u8) = (2, 3);

/// Attaches until the worker has ended, or nobody takes its output any more.
///
/// # Errors
/// One sentence, where the worker has no terminal, or how it ended is no code.
pub(crate) async fn attach(
    task: &TaskDir,
    size: TerminalSize,
    inputs: mpsc::Receiver<ExecInput>,
    outputs: &mpsc::Sender<ExecOutput>,
) -> Result<(), String> {
    let of = task.clone();
    let spec = blocking(move || of.spec()).await.map_err(|error| error.to_string())?;
    let spec = spec.ok_or("the worker has not started, or has ended")?;
    if !spec.terminal {
        return Err("the worker has no terminal: its job does not ask for one (`terminal: true`). A command next to it can have one \
                    (`muster exec -it`)"
            .to_owned());
    }
    let opened = pipe::OpenOptions::new().open_sender(task.terminal_input());
    let mut typed = opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "the worker is still being started; try again".to_owned(),
        // Nobody reads it.
        _ => "the worker does not run any more".to_owned(),
    })?;
    let told = typed.write_all(&Frame::Resize(size).encode()).await;
    told.map_err(|error| format!("speak to the worker's terminal: {error}"))?;
    let _ = outputs.send(ExecOutput::Started).await;
    let request = OutputRequest {
        key: spec.key,
        streams: vec![OutputStream::Stdout, OutputStream::Stderr],
        follow: true,
        tail_bytes: SHOWN_BEFORE,
        from_position: 0,
    };
    let (sink, mut pieces) = mpsc::channel(limits::EXEC_PIECES_QUEUED_MAX);
    let reading = async move { follow::read(task, &request, &sink).await };
    let showing = async {
        while let Some(piece) = pieces.recv().await {
            if !piece.data.is_empty() && outputs.send(ExecOutput::Stdout(piece.data)).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        (read, ()) = async { tokio::join!(reading, showing) } => read.map_err(|error| error.to_string())?,
        () = hand_on(inputs, typed) => {}
        () = outputs.closed() => return Ok(()),
    }
    let of = task.clone();
    let exit = blocking(move || of.exit()).await.map_err(|error| error.to_string())?;
    let end = match exit.map(|exit| exit.status) {
        Some(ExitStatus::Code(code)) => ExecOutput::Exited(code),
        Some(ExitStatus::Signal(signal)) => ExecOutput::Signaled(signal),
        Some(status) => return Err(format!("the worker has ended: {status}")),
        None => return Err("how the worker ended is not known".to_owned()),
    };
    let _ = outputs.send(end).await;
    Ok(())
}

/// Hands on what is typed; never ends, for the worker may write on when nobody types any more.
async fn hand_on(mut inputs: mpsc::Receiver<ExecInput>, mut typed: pipe::Sender) {
    while let Some(input) = inputs.recv().await {
        let messages: Vec<Vec<u8>> = match input {
            ExecInput::Data(bytes) => {
                bytes.chunks(INPUT_BYTES_MAX).map(|piece| Frame::Input(piece.to_vec()).encode()).collect()
            }
            ExecInput::Resize(size) => vec![Frame::Resize(size).encode()],
            ExecInput::Signal(number) if number == INTERRUPT.0 => {
                vec![Frame::Input(vec![INTERRUPT.1]).encode()]
            }
            // It is the worker's terminal: others may type on.
            ExecInput::Signal(_) | ExecInput::End => Vec::new(),
        };
        for message in messages {
            // A shim that has gone is seen by the end of the output.
            if typed.write_all(&message).await.is_err() {
                return std::future::pending().await;
            }
        }
    }
    std::future::pending().await
}
