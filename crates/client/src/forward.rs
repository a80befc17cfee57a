//! Connections to a port of a worker: many on one stream of messages, each with a bound on what waits.
//!
//! Both ends are the same: the caller's, which takes connections from programs, and the agent's, which makes them to the worker.
//!
//! **Invariant:** of each connection at most [`WINDOW_BYTES`] wait at either end, and a connection that nobody reads delays no other.

use futures::StreamExt;
use muster_wire::v1;
use muster_wire::v1::forward_port_request::Message;
use muster_wire::v1::forward_port_response::Message as Answer;
use muster_wire::v1::forwarded_piece::Content;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::Client;
use crate::calls::jobs;
use crate::connection::Link;
use crate::error::{AttemptError, CallError};
use crate::exec::says_that_nothing_was_done;
use crate::retry::{Failure, RetryBudget, Subject};

/// Connections that a caller has open at a time.
pub const CONNECTIONS_MAX: usize = 64;
/// Bytes of one connection that one end has sent and the other has not said to have taken.
pub const WINDOW_BYTES: usize = 128 << 10;
/// Bytes that are read from a connection at a time.
const PIECE_BYTES: usize = 32 << 10;
/// Pieces on their way to the replica.
const PIECES_WAITING_MAX: usize = 4;

const SUBJECT: Subject = Subject { operation: "connect to a port of a worker", request_id: None };

/// The connections of one stream, at one of its ends.
#[derive(Clone)]
pub struct Connections {
    shared: Arc<Shared>,
}

struct Shared {
    to_peer: mpsc::Sender<v1::ForwardedPiece>,
    open: Mutex<BTreeMap<u32, Arc<Flow>>>,
    open_max: usize,
    /// Of the next that is opened here.
    next: AtomicU32,
}

/// What is known of one connection.
#[derive(Default)]
struct Flow {
    state: Mutex<State>,
    /// The peer has taken some of what was sent.
    credit: Notify,
    /// Data has arrived, or its end.
    arrived: Notify,
    /// It is over.
    closed: Notify,
}

#[derive(Default)]
struct State {
    /// What has arrived and is not written to the connection yet.
    waiting: Vec<u8>,
    /// Bytes that have arrived and that the peer has not been told to be taken.
    kept: usize,
    /// Nothing more arrives.
    ended: bool,
    /// Bytes that were sent and are not known to be taken.
    sent: usize,
    closed: Option<Closed>,
}

/// Why a connection is over before both of its directions have ended.
#[derive(Clone)]
enum Closed {
    /// The peer has closed it.
    ByPeer(String),
    /// The peer broke the bound of what waits.
    Broken,
}

/// What a piece of the peer came to.
pub enum Arrival {
    /// Its connection has it, or there is none any more.
    Done,
    /// The peer opens a connection.
    Opened(Connection),
    /// The peer opens a connection of this number, and as many are open as may be: [`Connections::refuse`] tells it, and the others go on.
    Full(u32),
    /// The peer does what it must not; the stream is worth no more.
    Refused(String),
}

/// Why a connection gets no place.
enum NoPlace {
    /// As many are open as may be.
    Full,
    /// One of its number is open.
    Taken,
}

/// One connection's place. Dropping it forgets the connection.
pub struct Connection {
    shared: Arc<Shared>,
    flow: Arc<Flow>,
    number: u32,
}

impl Connections {
    /// Those of a caller: what they say goes into this queue.
    #[must_use]
    pub fn of_caller(to_peer: mpsc::Sender<v1::ForwardedPiece>) -> Connections {
        Connections::new(to_peer, CONNECTIONS_MAX)
    }

    /// Those of an agent. It forgets a connection a little later than its caller does.
    #[must_use]
    pub fn of_agent(to_peer: mpsc::Sender<v1::ForwardedPiece>) -> Connections {
        Connections::new(to_peer, 2 * CONNECTIONS_MAX)
    }

    fn new(to_peer: mpsc::Sender<v1::ForwardedPiece>, open_max: usize) -> Connections {
        let shared = Shared { to_peer, open: Mutex::default(), open_max, next: AtomicU32::new(1) };
        Connections { shared: Arc::new(shared) }
    }

    /// Opens a connection; none where as many are open as may be, or nobody is there any more.
    pub async fn open(&self) -> Option<Connection> {
        let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let connection = self.enter(number).ok()?;
        connection.tell(Content::Open(v1::ForwardedOpen {})).await.ok()?;
        Some(connection)
    }

    /// Tells the peer that a connection that it opened is over, as one too many.
    pub async fn refuse(&self, connection: u32) {
        let reason = format!("{} connections are open at the other end; close one", self.shared.open_max);
        let piece = v1::ForwardedPiece { connection, content: Some(Content::Closed(reason)) };
        // A peer that has gone needs no reason.
        let _ = self.shared.to_peer.send(piece).await;
    }

    fn enter(&self, number: u32) -> Result<Connection, NoPlace> {
        let mut open = self.shared.open.lock();
        if open.contains_key(&number) {
            return Err(NoPlace::Taken);
        }
        if open.len() >= self.shared.open_max {
            return Err(NoPlace::Full);
        }
        let flow = Arc::new(Flow::default());
        open.insert(number, Arc::clone(&flow));
        Ok(Connection { shared: Arc::clone(&self.shared), flow, number })
    }

    /// Hands a piece of the peer to its connection. It never waits.
    #[must_use]
    pub fn take(&self, piece: v1::ForwardedPiece) -> Arrival {
        let v1::ForwardedPiece { connection, content } = piece;
        let flow = self.shared.open.lock().get(&connection).cloned();
        match (content, flow) {
            (Some(Content::Open(_)), _) => match self.enter(connection) {
                Ok(connection) => Arrival::Opened(connection),
                Err(NoPlace::Full) => Arrival::Full(connection),
                Err(NoPlace::Taken) => Arrival::Refused(format!("connection {connection} is opened twice")),
            },
            (Some(content), Some(flow)) => {
                flow.take(content);
                Arrival::Done
            }
            // Pieces are on their way while a connection ends.
            (Some(_), None) | (None, _) => Arrival::Done,
        }
    }
}

impl State {
    /// Adds what has arrived, which is within the bound with what waits already. A buffer that grows as it likes would be twice as
    /// large as the bound.
    fn put(&mut self, bytes: &[u8]) {
        let (length, capacity) = (self.waiting.len(), self.waiting.capacity());
        let needed = length.saturating_add(bytes.len());
        if needed > capacity {
            let wanted = capacity.saturating_mul(2).min(WINDOW_BYTES).max(needed);
            self.waiting.reserve_exact(wanted - length);
        }
        self.waiting.extend_from_slice(bytes);
    }
}

impl Flow {
    fn take(&self, content: Content) {
        let mut state = self.state.lock();
        match content {
            Content::Data(bytes) => {
                let kept = state.kept.saturating_add(bytes.len());
                if kept > WINDOW_BYTES || state.ended {
                    state.closed.get_or_insert(Closed::Broken);
                    self.closed.notify_one();
                } else {
                    state.kept = kept;
                    state.put(&bytes);
                    self.arrived.notify_one();
                }
            }
            Content::End(_) => {
                state.ended = true;
                self.arrived.notify_one();
            }
            Content::Closed(reason) => {
                state.closed.get_or_insert(Closed::ByPeer(reason));
                self.closed.notify_one();
            }
            Content::Taken(bytes) => match state.sent.checked_sub(bytes as usize) {
                Some(left) => {
                    state.sent = left;
                    self.credit.notify_one();
                }
                None => {
                    state.closed.get_or_insert(Closed::Broken);
                    self.closed.notify_one();
                }
            },
            Content::Open(_) => {}
        }
    }

    /// How much may be sent, once it is something.
    async fn free(&self) -> usize {
        loop {
            let free = WINDOW_BYTES.saturating_sub(self.state.lock().sent);
            if free > 0 {
                return free;
            }
            self.credit.notified().await;
        }
    }

    /// What has arrived, and whether that is all.
    async fn arrivals(&self) -> (Vec<u8>, bool) {
        loop {
            {
                let mut state = self.state.lock();
                if !state.waiting.is_empty() || state.ended {
                    return (std::mem::take(&mut state.waiting), state.ended);
                }
            }
            self.arrived.notified().await;
        }
    }
}

impl Connection {
    async fn tell(&self, content: Content) -> io::Result<()> {
        let piece = v1::ForwardedPiece { connection: self.number, content: Some(content) };
        self.shared.to_peer.send(piece).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Tells the peer that the connection is over, and why.
    pub async fn close(self, reason: &str) {
        // A peer that has gone needs no reason.
        let _ = self.tell(Content::Closed(reason.to_owned())).await;
    }

    /// Carries data in both directions until both have ended.
    ///
    /// # Errors
    /// The reason, where it was over before that.
    pub async fn carry(self, stream: TcpStream) -> Result<(), String> {
        // What people type must not wait for more of it.
        let _ = stream.set_nodelay(true);
        self.carry_bytes(stream).await
    }

    /// The same, for bytes that may come another way than over TCP.
    ///
    /// # Errors
    /// The reason, where it was over before that.
    pub async fn carry_bytes<S: AsyncRead + AsyncWrite>(self, stream: S) -> Result<(), String> {
        let (reader, writer) = tokio::io::split(stream);
        let both = async { tokio::try_join!(self.send_all(reader), self.receive_all(writer)) };
        let over = tokio::select! {
            over = both => over.map(|_| ()).map_err(|error| error.to_string()),
            () = self.flow.closed.notified() => {
                let closed = self.flow.state.lock().closed.clone();
                match closed {
                    Some(Closed::ByPeer(reason)) => return Err(reason),
                    Some(Closed::Broken) | None => {
                        Err("the other end sent more than it was asked for".to_owned())
                    }
                }
            }
        };
        if let Err(reason) = &over {
            let _ = self.tell(Content::Closed(reason.clone())).await;
        }
        over
    }

    /// Sends what the connection's program writes, up to its end.
    async fn send_all<S: AsyncRead>(&self, mut reader: ReadHalf<S>) -> io::Result<()> {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let free = self.flow.free().await.min(PIECE_BYTES);
            let read = reader.read(&mut buffer[..free]).await?;
            if read == 0 {
                return self.tell(Content::End(v1::ForwardedEnd {})).await;
            }
            self.flow.state.lock().sent += read;
            self.tell(Content::Data(buffer[..read].to_vec())).await?;
        }
    }

    /// Writes what the peer sends to the connection's program, up to its end.
    async fn receive_all<S: AsyncWrite>(&self, mut writer: WriteHalf<S>) -> io::Result<()> {
        loop {
            let (bytes, is_all) = self.flow.arrivals().await;
            if bytes.is_empty() && is_all {
                // A program that has gone already needs no end.
                let _ = writer.shutdown().await;
                return Ok(());
            }
            writer.write_all(&bytes).await?;
            {
                let mut state = self.flow.state.lock();
                state.kept = state.kept.saturating_sub(bytes.len());
            }
            let taken = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            self.tell(Content::Taken(taken)).await?;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.open.lock().remove(&self.number);
    }
}

/// A stream to a port of a worker. Dropping it ends its connections.
pub struct PortForward {
    link: Link,
    connections: Connections,
    answers: Streaming<v1::ForwardPortResponse>,
    bytes: u64,
}

impl Client {
    /// Opens a stream to a port of a worker, on which that worker listens.
    ///
    /// # Errors
    /// Refusals at once, those of the worker's agent among them: it says on which ports the worker listens.
    pub async fn forward_port(&self, start: v1::ForwardPortStart) -> Result<PortForward, CallError> {
        let mut budget = RetryBudget::new(&self.options);
        loop {
            budget.attempts += 1;
            let failure = match self.connection.current_within(budget.left()).await {
                Err(error) => Failure::connect(error),
                Ok(link) => match open(&link, start.clone()).await {
                    Ok(forward) => return Ok(forward),
                    Err(status) => {
                        let failure = Failure::answer(&link, &status, &SUBJECT);
                        if !says_that_nothing_was_done(&failure.error) {
                            return Err(ended(failure.error, 0));
                        }
                        failure
                    }
                },
            };
            self.after_failure(&SUBJECT, &mut budget, failure).await?;
        }
    }
}

async fn open(link: &Link, start: v1::ForwardPortStart) -> Result<PortForward, Status> {
    let (to_peer, pieces) = mpsc::channel(PIECES_WAITING_MAX);
    let first = v1::ForwardPortRequest { message: Some(Message::Start(start)) };
    let later = ReceiverStream::new(pieces)
        .map(|piece| v1::ForwardPortRequest { message: Some(Message::Piece(piece)) });
    let requests = futures::stream::once(std::future::ready(first)).chain(later);
    let mut answers = jobs(link.channel.clone()).forward_port(requests).await?.into_inner();
    match answers.message().await? {
        Some(v1::ForwardPortResponse { message: Some(Answer::Started(_)) }) => {
            let connections = Connections::of_caller(to_peer);
            Ok(PortForward { link: link.clone(), connections, answers, bytes: 0 })
        }
        Some(_) | None => Err(Status::unavailable("it ended before it began")),
    }
}

impl PortForward {
    /// Its connections, to open some while [`PortForward::serve`] runs.
    #[must_use]
    pub fn connections(&self) -> Connections {
        self.connections.clone()
    }

    /// Hands to the connections what comes for them, until the stream ends.
    ///
    /// # Errors
    /// Why it ended: the worker has ended, its node does not answer, or nothing was sent for an hour.
    pub async fn serve(&mut self) -> Result<(), CallError> {
        loop {
            match self.answers.message().await {
                Ok(Some(v1::ForwardPortResponse { message: Some(Answer::Piece(piece)) })) => {
                    if let Some(Content::Data(bytes)) = &piece.content {
                        self.bytes += bytes.len() as u64;
                    }
                    // An agent opens none; what it would open is forgotten here.
                    let _ = self.connections.take(piece);
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(status) => {
                    return Err(ended(Failure::answer(&self.link, &status, &SUBJECT).error, self.bytes));
                }
            }
        }
    }
}

fn ended(error: AttemptError, bytes: u64) -> CallError {
    match error {
        AttemptError::Answer { endpoint, refused } if refused.code.is_some() => {
            CallError::Refused { operation: SUBJECT.operation, endpoint, refused }
        }
        last => CallError::StreamBroken { operation: SUBJECT.operation, bytes, last },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// Both ends without a cluster between them; the agent's connects to this port.
    fn joined(port: u16) -> Connections {
        let (to_agent, mut from_caller) = mpsc::channel(PIECES_WAITING_MAX);
        let (to_caller, mut from_agent) = mpsc::channel(PIECES_WAITING_MAX);
        let (caller, agent) = (Connections::of_caller(to_agent), Connections::of_agent(to_caller));
        let taking = caller.clone();
        tokio::spawn(async move {
            while let Some(piece) = from_agent.recv().await {
                let _ = taking.take(piece);
            }
        });
        tokio::spawn(async move {
            while let Some(piece) = from_caller.recv().await {
                if let Arrival::Opened(connection) = agent.take(piece) {
                    tokio::spawn(async move {
                        match TcpStream::connect(("127.0.0.1", port)).await {
                            Ok(stream) => {
                                let _ = connection.carry(stream).await;
                            }
                            Err(error) => connection.close(&error.to_string()).await,
                        }
                    });
                }
            }
        });
        caller
    }

    /// A connection of a program to the caller's end.
    async fn connected(connections: &Connections) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let program = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let connection = connections.open().await.expect("there is a place");
        tokio::spawn(connection.carry(accepted));
        program
    }

    #[tokio::test]
    async fn an_end_of_one_direction_is_none_of_the_other() {
        let worker = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connections = joined(worker.local_addr().unwrap().port());
        let answer = tokio::spawn(async move {
            let (mut stream, _) = worker.accept().await.unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            stream.write_all(&all).await.unwrap();
            all.len()
        });
        let mut program = connected(&connections).await;
        // More than any queue holds, and the answer comes behind its end.
        let sent = vec![7; 5 * WINDOW_BYTES + 3];
        program.write_all(&sent).await.unwrap();
        program.shutdown().await.unwrap();
        let mut back = Vec::new();
        program.read_to_end(&mut back).await.unwrap();
        assert_eq!((back.len(), answer.await.unwrap()), (sent.len(), sent.len()));
    }

    #[tokio::test]
    async fn a_connection_that_nobody_reads_delays_no_other() {
        let worker = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connections = joined(worker.local_addr().unwrap().port());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = worker.accept().await {
                tokio::spawn(async move {
                    let mut first = [0];
                    stream.read_exact(&mut first).await.unwrap();
                    if first[0] == 0 {
                        // Without an end, as far as it is taken.
                        while stream.write_all(&[0; 4_096]).await.is_ok() {}
                    }
                    stream.write_all(&first).await.unwrap();
                });
            }
        });
        let mut unread = connected(&connections).await;
        unread.write_all(&[0]).await.unwrap();
        for byte in 1..=20 {
            let mut other = connected(&connections).await;
            other.write_all(&[byte]).await.unwrap();
            let mut back = [0];
            other.read_exact(&mut back).await.unwrap();
            assert_eq!(back, [byte]);
        }
    }

    #[test]
    fn what_waits_takes_no_more_memory_than_its_bound() {
        for piece in [1, 1_000, PIECE_BYTES, WINDOW_BYTES] {
            let mut state = State::default();
            while state.waiting.len() + piece <= WINDOW_BYTES {
                state.put(&vec![7; piece]);
            }
            assert!(state.waiting.capacity() <= WINDOW_BYTES, "{piece}");
        }
    }

    #[tokio::test]
    async fn one_connection_too_many_is_refused_and_the_others_go_on() {
        let (to_peer, mut told) = mpsc::channel(8);
        let connections = Connections::of_agent(to_peer);
        let piece = |connection, content| v1::ForwardedPiece { connection, content: Some(content) };
        let open = |number| connections.take(piece(number, Content::Open(v1::ForwardedOpen {})));
        let held: Vec<_> = (0..2 * CONNECTIONS_MAX as u32).map(open).collect();
        let Arrival::Full(number) = open(9_999) else { panic!("there is no place") };
        connections.refuse(number).await;
        let answer = told.recv().await.expect("it is told");
        assert_eq!(answer.connection, 9_999);
        assert!(
            matches!(answer.content, Some(Content::Closed(ref why)) if why.contains("128")),
            "{answer:?}"
        );
        // The caller may have sent more before it heard of that.
        assert!(matches!(connections.take(piece(9_999, Content::Data(vec![7]))), Arrival::Done));
        assert!(matches!(connections.take(piece(5, Content::Data(vec![7]))), Arrival::Done));
        let Arrival::Opened(other) = &held[5] else { panic!("it has a place") };
        assert_eq!(other.flow.state.lock().waiting, [7]);
    }

    #[tokio::test]
    async fn a_peer_that_sends_too_much_loses_the_connection_and_connections_are_bounded() {
        let (to_peer, mut told) = mpsc::channel(8);
        let connections = Connections::of_agent(to_peer);
        let piece = |connection, content| v1::ForwardedPiece { connection, content: Some(content) };
        let open = |number| connections.take(piece(number, Content::Open(v1::ForwardedOpen {})));
        let Arrival::Opened(connection) = open(1) else { panic!("it is the first") };
        assert!(matches!(open(1), Arrival::Refused(_)), "twice");
        for _ in 0..3 {
            let _ = connections.take(piece(1, Content::Data(vec![0; WINDOW_BYTES / 2])));
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        // What waits may be written before the end is seen, and nothing behind it.
        assert!(connection.carry(stream).await.is_err());
        loop {
            let piece = told.recv().await.expect("it is told");
            if matches!(piece.content, Some(Content::Closed(_))) {
                break;
            }
        }
        let held: Vec<_> = (0..2 * CONNECTIONS_MAX as u32).map(|number| open(10 + number)).collect();
        assert!(held.iter().all(|arrival| matches!(arrival, Arrival::Opened(_))));
        assert!(matches!(open(9_999), Arrival::Full(9_999)));
        drop(held);
        assert!(matches!(open(9_999), Arrival::Opened(_)), "each place is free again");
    }
}
