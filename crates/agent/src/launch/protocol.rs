//! What hub, members and `remote` say to each other: JSON lines of bounded length over TCP.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// Bytes of one line. Open MPI's command lines hold a map of all its hosts, a few bytes for each.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;

/// The first line of whoever connects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    /// Of the placement.
    pub(super) token: String,
    pub(super) role: Role,
}

/// What a connection is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    /// A worker of the gang.
    Member {
        /// Its rank, from 1.
        rank: usize,
    },
    /// A command for a rank, which is answered with its exit code.
    Remote {
        /// What the hub gave to the process that it started.
        secret: String,
        rank: usize,
        /// A line for a shell.
        shell: String,
    },
}

/// From the hub.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Told {
    /// The connection stands; the token is the hub's own.
    Welcome { token: String },
    /// Start this line in a shell.
    Run { id: u64, shell: String },
    /// Nobody waits for this command any more.
    Kill { id: u64 },
    /// Join this Ray cluster.
    Ray { address: String },
    /// The work is done.
    End,
    /// To `remote`: how its command ended.
    Exited { code: i32 },
}

/// From a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// How a command ended.
    Exited { id: u64, code: i32 },
    /// It is part of the Ray cluster.
    Ready,
}

/// Writes one line.
pub(super) fn send<T: Serialize>(mut stream: &TcpStream, message: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    if line.len() >= LINE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
    }
    line.push(b'\n');
    stream.write_all(&line)
}

/// Lines from a connection.
pub(super) struct Lines(BufReader<TcpStream>);

impl Lines {
    pub(super) fn of(stream: TcpStream) -> Lines {
        Lines(BufReader::new(stream))
    }

    /// The next message; none at the end of the stream.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = Vec::new();
        let read = (&mut self.0).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is cut off or too long"));
        }
        Ok(Some(serde_json::from_slice(&line)?))
    }
}
