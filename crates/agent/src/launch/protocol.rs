//! What hub, members and `remote` say to each other: JSON lines of bounded length over TCP.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// Bytes of one line. Open MPI's command lines hold a map of all its hosts, a few bytes for each.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;

/// The first line of a connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    /// Of the placement.
    pub(super) token: String,
    /// What the hub's proof has to be made with; a member's.
    #[serde(default)]
    pub(super) nonce: String,
    pub(super) role: Role,
}

/// Which side a proof is of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    Hub,
    Member,
}

/// A number that was never used before.
pub(super) fn nonce() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Proves that who made it knows the gang's secret, to the side whose nonce is in it: it is of no use to anybody else, at
/// any other time, or for another rank.
pub(super) fn proof(secret: &str, side: Side, rank: usize, nonces: [&str; 2]) -> String {
    let mut hash = Sha256::new().chain_update(b"muster gang proof\0");
    let side = match side {
        Side::Hub => "hub",
        Side::Member => "member",
    };
    let rank = rank.to_string();
    for part in [secret, side, &rank, nonces[0], nonces[1]] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether two proofs are the same, in a time that says nothing of where they differ.
pub(super) fn is_proof(told: &str, wanted: &str) -> bool {
    let differs = told.bytes().zip(wanted.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    told.len() == wanted.len() && differs == 0
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
pub(super) enum HubMessage {
    /// The connection stands; the token is the hub's own, and it proves that it is this gang's.
    Welcome {
        token: String,
        #[serde(default)]
        nonce: String,
        #[serde(default)]
        proof: String,
    },
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
    /// It is of this gang: the first thing that it says.
    Proof { proof: String },
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
