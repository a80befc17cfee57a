//! What reaches an agent from other processes, from other machines and from its own disk, one function for each way
//! in: for tests that feed damaged input. Each says whether the input was taken.

use crate::process::transcript::{OutputStream, Reader, Writer};
use muster_wire::agent;
use std::io;
use std::path::Path;

/// A message of the leader.
#[must_use]
pub fn order(message: agent::session_response::Message) -> bool {
    crate::wire::order_of(message).is_ok_and(|order| order.is_some())
}

/// A line that a worker sends to the agent's socket.
#[must_use]
pub fn worker_line(line: &[u8]) -> bool {
    crate::process::socket::parse(line).is_ok()
}

/// A frame between an agent and its runner in a Slurm allocation, from either side.
#[must_use]
pub fn slurm_frame(frame: &[u8]) -> bool {
    crate::remote::takes_frame(frame)
}

/// A frame as a runner sends it.
#[must_use]
pub fn slurm_frame_sample() -> Vec<u8> {
    crate::remote::frame_sample()
}

/// What Slurm's commands print.
#[must_use]
pub fn slurm_text(text: &str) -> bool {
    crate::slurm::takes_text(text)
}

/// An object that a Kubernetes API server sends: a node or a pod, with what follows from it.
#[must_use]
pub fn kubernetes_object(bytes: &[u8]) -> bool {
    crate::kubernetes::takes_object(bytes)
}

/// Writes a worker's output as its shim does.
///
/// # Errors
/// When it cannot be written.
pub fn write_transcript(path: &Path, pieces: &[&[u8]]) -> io::Result<()> {
    let mut writer = Writer::new(path.to_owned(), path.with_extension("before"), 1 << 20, 0);
    for piece in pieces {
        writer.write(OutputStream::Stdout, piece)?;
    }
    writer.finish()
}

/// A worker's output on disk, read to its end.
#[must_use]
pub fn transcript(path: &Path) -> bool {
    let streams = vec![OutputStream::Stdout, OutputStream::Stderr];
    let opened = Reader::open(path.to_owned(), path.with_extension("before"), streams, 0, 0);
    let Ok(mut reader) = opened else { return false };
    let mut pieces = 0;
    loop {
        match reader.next() {
            Ok(Some(_)) => pieces += 1,
            Ok(None) => return pieces > 0,
            Err(_) => return false,
        }
    }
}
