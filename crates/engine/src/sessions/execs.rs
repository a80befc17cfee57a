//! Commands next to workers and connections to their ports, between the caller that asked here and the agent: the agent opens a
//! relay by its number.
//!
//! **Invariant:** the number of a relay cannot be guessed, is good once, and only for the node that it was made for.

use bytes::Bytes;
use muster_types::terminal::TerminalSize;
use muster_types::{FencingToken, JobId, Name, Refusal, RefusalCode};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// Pieces that wait on one way of one relay; who writes waits behind them.
const PIECES_WAITING_MAX: usize = 4;
/// Relays that no agent has opened.
const RELAYS_WAITING_MAX: usize = 256;
/// How long an agent may take from the order to the relay.
pub(crate) const RELAY_BEGINS_MAX: Duration = Duration::from_secs(15);

/// An agent is to run a command next to a worker, or to connect to a port of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecOrder {
    /// Names the relay.
    pub relay_id: u64,
    /// Which job.
    pub job: JobId,
    /// Which placement.
    pub token: FencingToken,
    /// The worker, by its rank in the gang.
    pub rank: u32,
}

/// What a caller says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecInput {
    /// Which command; the first of all.
    Start {
        /// Program and arguments.
        command: Vec<String>,
        /// Variables beyond those of the worker, or in their place.
        environment: BTreeMap<String, String>,
        /// The terminal that it has; none for pipes.
        terminal: Option<TerminalSize>,
        /// Whether it is no command: who asks attaches to the terminal of the worker.
        attach: bool,
    },
    /// For its standard input.
    Data(Bytes),
    /// No more input follows.
    End,
    /// A signal, by its number.
    Signal(u32),
    /// The size of its terminal from now on.
    Resize(TerminalSize),
    /// Which port of the worker is connected to; the first of all, in place of `Start`.
    Port(u16),
    /// Of a connection to that port.
    Piece(ForwardedPiece),
}

/// A piece of one connection to a port of a worker, in either direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardedPiece {
    /// Which connection, by the number that the caller gave it.
    pub connection: u32,
    /// Its data, or a change of the connection.
    pub content: ForwardedContent,
}

/// Data of a connection, or a change of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardedContent {
    /// The caller opens it.
    Open,
    /// Data, at least one byte.
    Data(Bytes),
    /// No more data follows.
    End,
    /// It is over in both directions, for this reason.
    Closed(String),
    /// This number of bytes of data has left the receiver's memory.
    Taken(u32),
}

/// Progress and end of a command, or of connections to a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecOutput {
    /// Its process is there, or the worker listens on the port.
    Started,
    /// Of a connection to a port.
    Piece(ForwardedPiece),
    /// Of its standard output.
    Stdout(Bytes),
    /// Of its standard error.
    Stderr(Bytes),
    /// It returned this; the last of all.
    Exited(i32),
    /// This signal ended it; the last of all.
    Signaled(i32),
}

/// A relay from the side of who asked.
#[derive(Debug)]
pub struct CallerSide {
    /// Of the placement.
    pub token: FencingToken,
    /// To the node. Dropping it says that no more input follows.
    pub to_node: mpsc::Sender<ExecInput>,
    /// From the node. Dropping it ends the command.
    pub from_node: mpsc::Receiver<Result<ExecOutput, Refusal>>,
}

/// A relay from the side of the node.
#[derive(Debug)]
pub struct NodeSide {
    /// What the caller says.
    pub from_caller: mpsc::Receiver<ExecInput>,
    /// To the caller; closed when nobody takes the output any more.
    pub to_caller: mpsc::Sender<Result<ExecOutput, Refusal>>,
}

/// Relays that no agent has opened.
#[derive(Default)]
pub(crate) struct ExecRelay {
    next: AtomicU64,
    /// Keyed differently in every process.
    numbers: RandomState,
    waiting: Mutex<BTreeMap<u64, (Name, NodeSide)>>,
}

impl ExecRelay {
    /// A relay for the agent of this node, and its number.
    pub(crate) fn open(&self, node: Name, token: FencingToken) -> Result<(u64, CallerSide), Refusal> {
        let (to_node, from_caller) = mpsc::channel(PIECES_WAITING_MAX);
        let (to_caller, from_node) = mpsc::channel(PIECES_WAITING_MAX);
        let mut waiting = self.waiting.lock();
        waiting.retain(|_, (_, side)| !side.to_caller.is_closed());
        if waiting.len() >= RELAYS_WAITING_MAX {
            let text = "too many commands wait for their agents; try again";
            return Err(Refusal::new(RefusalCode::Overloaded, text));
        }
        let relay_id = loop {
            let number = self.numbers.hash_one(self.next.fetch_add(1, Ordering::Relaxed));
            if number != 0 && !waiting.contains_key(&number) {
                break number;
            }
        };
        waiting.insert(relay_id, (node, NodeSide { from_caller, to_caller }));
        Ok((relay_id, CallerSide { token, to_node, from_node }))
    }

    /// The side of the node; none when it is not that node's, or nobody waits any more.
    pub(crate) fn take(&self, relay_id: u64, node: &str) -> Option<NodeSide> {
        let mut waiting = self.waiting.lock();
        waiting.get(&relay_id).filter(|(of, _)| of.as_str() == node)?;
        waiting.remove(&relay_id).map(|(_, side)| side)
    }

    /// Ends a relay that no agent has opened, with the reason.
    pub(crate) fn give_up(&self, relay_id: u64, text: &str) {
        if let Some((node, side)) = self.waiting.lock().remove(&relay_id) {
            let refusal = Refusal::new(RefusalCode::ExecUnavailable, text).with("node", node);
            // Nothing was sent before, so there is capacity; the caller may have gone.
            let _ = side.to_caller.try_send(Err(refusal));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Name {
        Name::new(name).expect("a name")
    }

    #[test]
    fn a_relay_is_good_once_and_for_its_own_node() {
        let relay = ExecRelay::default();
        let (first, _side) = relay.open(node("h1"), FencingToken::default()).expect("there is capacity");
        assert!(relay.take(first, "h2").is_none(), "another node's agent gets nothing");
        assert!(relay.take(first ^ 1, "h1").is_none());
        assert!(relay.take(first, "h1").is_some() && relay.take(first, "h1").is_none());
    }

    #[test]
    fn a_relay_that_no_agent_opens_says_why() {
        let relay = ExecRelay::default();
        let (id, mut side) = relay.open(node("h1"), FencingToken::default()).expect("there is capacity");
        relay.give_up(id, "the agent did not answer");
        let refusal = side.from_node.try_recv().expect("it is told").expect_err("nothing was run");
        assert_eq!(refusal.code, RefusalCode::ExecUnavailable);
        assert!(relay.take(id, "h1").is_none());
        relay.give_up(id, "again");
    }

    #[test]
    fn relays_are_bounded_and_the_abandoned_are_forgotten() {
        let relay = ExecRelay::default();
        let open = || relay.open(node("h1"), FencingToken::default());
        let mut held: Vec<_> = (0..RELAYS_WAITING_MAX).map(|_| open().expect("capacity")).collect();
        assert_eq!(open().expect_err("full").code, RefusalCode::Overloaded);
        held.pop();
        assert!(open().is_ok());
    }
}
