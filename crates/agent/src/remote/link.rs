//! What the agent and a runner inside another scheduler's job say to each other, over a sealed connection.
//!
//! A frame is one byte of kind and a body: JSON, or a piece of output as it is. What a runner tells of its
//! workers is numbered, kept until it is acknowledged, and told again on the next connection.
//!
//! What is more than words goes over more connections, which the runner opens: see `streams.rs`.
//!
//! **Invariant:** times on this link are durations that are left, never moments: the clocks of two hosts
//! have nothing to do with each other. A duration is stamped by its receiver *before* it asked.

use crate::process::transcript::OutputStream;
use crate::process::work_files::FilesConfig;
use crate::rules::Placement;
use crate::rules::WorkerEvent;
use crate::settings::LogLimits;
use muster_transport::SharedIdentity;
use muster_types::terminal::TerminalSize;
use muster_types::{Artifacts, ExitStatus, StopReason};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a runner runs below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Within {
    /// A batch job of Slurm. An agent of an earlier release states nothing and means this.
    #[default]
    Slurm,
    /// A container of a pod of Kubernetes, as its first process.
    Kubernetes,
}

/// What a runner is given when it is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ticket {
    /// Names the share of a placement that it is to run.
    pub(crate) share: String,
    pub(crate) identity: SharedIdentity,
    /// `host:port` of the agent.
    pub(crate) agent: String,
    /// Directory for its own files.
    pub(crate) directory: std::path::PathBuf,
    /// How long it tries to reach the agent before it has anything to run.
    pub(crate) patience_ms: u64,
    /// What it runs below.
    #[serde(default)]
    pub(crate) within: Within,
}

/// From the runner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToAgent {
    /// The first message of every connection.
    Hello {
        /// Drawn when it started: a second runner of the same share has another one.
        runner: String,
        /// The other scheduler's job that it is.
        #[serde(rename = "slurm_job")]
        job: String,
        host: String,
    },
    /// How long does the lease stand?
    Renew { number: u64 },
    /// The worker is launched.
    Running { number: u64, rank: u32 },
    /// Nothing of the worker is left.
    Ended {
        number: u64,
        rank: u32,
        status: ExitStatus,
        /// What became of the files that it left; none where its job wants none.
        #[serde(default)]
        artifacts: Option<Artifacts>,
    },
    /// What a worker says of itself. Answered by its id, and told again on the next connection until it is; 0 for
    /// what nobody waits for.
    Note { id: u64, rank: u32, note: WorkerEvent },
    /// All is told; it exits.
    Done,
    /// The first message of a connection that is not for what is told of workers but for bytes; see `streams.rs`.
    Stream(Purpose),
}

/// What a connection for bytes is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Purpose {
    /// The agent has asked for it, under this number.
    Errand(u64),
    /// Objects of the store that the agent has: files of the job, and what its workers leave.
    Store,
}

/// What a runner does with a connection that the agent asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Errand {
    /// Runs a command next to a worker.
    Exec {
        rank: u32,
        command: Vec<String>,
        environment: BTreeMap<String, String>,
        terminal: Option<TerminalSize>,
    },
    /// Looks whether processes of a worker listen on a port.
    Listens { rank: u32, port: u16 },
    /// Connects to such a port.
    Connect { rank: u32, port: u16 },
}

/// A piece of a worker's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) number: u64,
    pub(crate) rank: u32,
    /// None when there is no data.
    pub(crate) stream: Option<OutputStream>,
    /// Bytes of output right before `data` that were not kept.
    pub(crate) lost: u64,
    pub(crate) data: Vec<u8>,
}

/// What the lease still allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseRemainder {
    /// Until everything is stopped.
    pub(crate) nanos: u64,
    /// SIGTERM to SIGKILL after that.
    pub(crate) grace_ms: u64,
}

/// What a runner is to launch, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) placement: Placement,
    pub(crate) left: LeaseRemainder,
    /// This node's name in Muster.
    pub(crate) node: String,
    /// Empty when it has none.
    pub(crate) accelerator: String,
    pub(crate) logs: LogLimits,
    pub(crate) pass_environment: Vec<String>,
    /// Whether notes of workers are taken. An agent of an earlier release does not state it, and would not answer them.
    #[serde(default)]
    pub(crate) takes_notes: bool,
    /// What the agent's store of files allows; none where it has none, as an agent of an earlier release.
    #[serde(default)]
    pub(crate) files: Option<FilesConfig>,
}

/// To the runner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToRunner {
    /// Launch this; said once, to one runner.
    Launch(Box<Grant>),
    /// It was said to this very runner before; go on.
    GoOn {
        left: LeaseRemainder,
    },
    /// Launch nothing, or stop what was launched.
    Refused {
        reason: String,
    },
    Lease {
        number: u64,
        left: LeaseRemainder,
    },
    /// There is no lease for this share any more, and will not be.
    Lapsed,
    /// Everything up to this number is kept.
    Ack {
        number: u64,
    },
    /// What became of a note; the reason where it can never be taken.
    Noted {
        id: u64,
        refused: Option<String>,
    },
    Stop {
        rank: u32,
        grace_ms: u64,
        /// A runner of an earlier release does not look at it.
        #[serde(default)]
        reason: Option<StopReason>,
    },
    /// Dial again, for this errand, and state its number. A runner of an earlier release passes it over.
    Dial {
        errand: u64,
        work: Errand,
    },
}

/// A frame from the runner, opened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Message(ToAgent),
    Output(Piece),
}

const MESSAGE: u8 = 0;
const OUTPUT: u8 = 1;
/// Kind, number, rank, stream, lost bytes.
const OUTPUT_HEAD: usize = 1 + 8 + 4 + 1 + 8;

/// As a frame.
pub(crate) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    let mut frame = vec![MESSAGE];
    let body = serde_json::to_vec(message);
    frame.extend(body.expect("messages have no keys but texts and numbers, and no failing serializers"));
    frame
}

/// As a frame.
pub(crate) fn encode_piece(piece: &Piece) -> Vec<u8> {
    let mut frame = vec![OUTPUT];
    frame.extend_from_slice(&piece.number.to_le_bytes());
    frame.extend_from_slice(&piece.rank.to_le_bytes());
    frame.push(match piece.stream {
        Some(OutputStream::Stdout) => 0,
        Some(OutputStream::Stderr) => 1,
        None => 2,
    });
    frame.extend_from_slice(&piece.lost.to_le_bytes());
    frame.extend_from_slice(&piece.data);
    frame
}

/// A message; none when the frame is none of this version's.
pub(crate) fn decode<T: for<'a> Deserialize<'a>>(frame: &[u8]) -> Option<T> {
    let (kind, body) = frame.split_first()?;
    if *kind != MESSAGE {
        return None;
    }
    serde_json::from_slice(body).ok()
}

/// What a runner sent; none when the frame is none of this version's.
pub(crate) fn decode_frame(frame: &[u8]) -> Option<Frame> {
    if frame.first() != Some(&OUTPUT) {
        return decode(frame).map(Frame::Message);
    }
    let number = u64::from_le_bytes(frame.get(1..9)?.try_into().ok()?);
    let rank = u32::from_le_bytes(frame.get(9..13)?.try_into().ok()?);
    let stream = match frame.get(13)? {
        0 => Some(OutputStream::Stdout),
        1 => Some(OutputStream::Stderr),
        2 => None,
        _ => return None,
    };
    let lost = u64::from_le_bytes(frame.get(14..OUTPUT_HEAD)?.try_into().ok()?);
    Some(Frame::Output(Piece { number, rank, stream, lost, data: frame.get(OUTPUT_HEAD..)?.to_vec() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_what_is_read() {
        let hello = ToAgent::Hello { runner: "r".into(), job: "7".into(), host: "n1".into() };
        assert_eq!(decode_frame(&encode(&hello)), Some(Frame::Message(hello)));
        let ended = ToAgent::Ended { number: 3, rank: 1, status: ExitStatus::Code(2), artifacts: None };
        assert_eq!(decode_frame(&encode(&ended)), Some(Frame::Message(ended)));
        for stream in [Some(OutputStream::Stdout), Some(OutputStream::Stderr), None] {
            let piece = Piece { number: 9, rank: 4, stream, lost: 1 << 40, data: vec![0, 255, 10] };
            assert_eq!(decode_frame(&encode_piece(&piece)), Some(Frame::Output(piece)));
        }
        let stream = ToAgent::Stream(Purpose::Errand(u64::MAX));
        assert_eq!(decode_frame(&encode(&stream)), Some(Frame::Message(stream)));
        let command = vec!["sh".to_owned()];
        let work = Errand::Exec { rank: 1, command, environment: BTreeMap::new(), terminal: None };
        let dial = ToRunner::Dial { errand: u64::MAX, work };
        assert_eq!(decode::<ToRunner>(&encode(&dial)), Some(dial));
        let stop = ToRunner::Stop { rank: 1, grace_ms: 5, reason: Some(StopReason::Drained) };
        assert_eq!(decode::<ToRunner>(&encode(&stop)), Some(stop));
    }

    #[test]
    fn other_bytes_are_nothing() {
        let piece = encode_piece(&Piece { number: 9, rank: 4, stream: None, lost: 0, data: vec![] });
        for cut in 0..piece.len() {
            assert_eq!(decode_frame(&piece[..cut]), None, "{cut} bytes");
        }
        let mut odd = piece.clone();
        odd[13] = 3;
        assert_eq!(decode_frame(&odd), None);
        for bytes in [&b""[..], b"\x00", b"\x00{", b"\x02{}", b"\x00{\"Unheard\":{}}", b"\x00\xff"] {
            assert_eq!(decode_frame(bytes), None, "{bytes:?}");
            assert_eq!(decode::<ToRunner>(bytes), None, "{bytes:?}");
        }
    }
}
