//! Connections for bytes between an agent and a runner: commands next to workers, connections to their ports, objects of the store.
//!
//! Nobody can dial a runner, so the agent asks it on the link to dial once more, under a number that it has drawn. Each connection is
//! for one thing, and proves the share's identity like the link. So what one of them carries delays neither the lease nor another,
//! and what is not read is not sent: the window of TCP is the bound.
//!
//! **Invariant:** a connection is handed only to who asked for it, of the same share; of each, a few pieces are in memory.

use super::link::{self, Errand, Purpose, Ticket, ToAgent};
use super::record::ShareKey;
use crate::executor::{ExecInput, ExecOutput, ExecRequest, Executor};
use crate::limits;
use crate::process::ProcessExecutor;
use crate::rules::{WorkerKey, detail};
use muster_transport::{PinnedReader, PinnedWriter, dial};
use muster_types::terminal::TerminalSize;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

/// Errands that wait for their connection, of all runners of one agent.
const WAITING_MAX: usize = 4_096;
/// From the word to the runner to its connection. Its dial may have to be tried again.
const ARRIVAL_MAX: Duration = Duration::from_secs(20);
/// How long a runner tries to connect.
const DIAL_MAX: Duration = Duration::from_secs(15);
/// Bytes of one piece.
const PIECE_BYTES: usize = 64 << 10;

/// A connection for bytes.
pub(crate) struct Stream {
    pub(crate) reader: PinnedReader<TcpStream>,
    pub(crate) writer: PinnedWriter<TcpStream>,
}

/// A word between pieces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Word {
    /// What was asked for is there: the command's process, the connection, somebody who listens.
    Started,
    /// No more pieces come from this side.
    End,
    /// A signal that the command gets.
    Signal(i32),
    /// The size of the command's terminal from now on.
    Resize(TerminalSize),
    /// It ended with this code.
    Exited(i32),
    /// A signal ended it.
    Signaled(i32),
    /// It could not be done, or its end is not known.
    Failed(String),
}

/// One frame of such a connection.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Word(Word),
    /// Input, output, or bytes of a connection.
    Data(Vec<u8>),
    /// Of the standard error of a command.
    Errors(Vec<u8>),
}

const WORD: u8 = 0;
const DATA: u8 = 1;
const ERRORS: u8 = 2;

fn word(word: &Word) -> Vec<u8> {
    let mut frame = vec![WORD];
    frame.extend(serde_json::to_vec(word).expect("words are numbers and texts"));
    frame
}

fn piece(kind: u8, data: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(1 + data.len());
    frame.push(kind);
    frame.extend_from_slice(data);
    frame
}

/// Reads a frame; `None` for a kind that this version does not know.
fn decode(frame: &[u8]) -> Option<Piece> {
    let (kind, body) = frame.split_first()?;
    match *kind {
        WORD => serde_json::from_slice(body).ok().map(Piece::Word),
        DATA => Some(Piece::Data(body.to_vec())),
        ERRORS => Some(Piece::Errors(body.to_vec())),
        _ => None,
    }
}

/// Which share a connection belongs to: a placement, and its node.
type Owner = (ShareKey, String);

/// Who waits for the connection of each errand.
type Waiting = Arc<Mutex<BTreeMap<u64, (Owner, oneshot::Sender<Stream>)>>>;

/// The errands of one agent that wait for their connection.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    waiting: Waiting,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stream(..)")
    }
}

/// One errand that waits; forgotten when this is dropped.
pub(crate) struct Awaited {
    pub(crate) errand: u64,
    arrived: oneshot::Receiver<Stream>,
    waiting: Waiting,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.waiting.lock().remove(&self.errand);
    }
}

impl Streams {
    /// Awaits a connection of a share's runner.
    ///
    /// # Errors
    /// One sentence, where too many are awaited.
    pub(crate) fn expect(&self, key: ShareKey, place: &str) -> Result<Awaited, String> {
        let errand = rand::random::<u64>();
        let (tell, arrived) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        if waiting.len() >= WAITING_MAX || waiting.contains_key(&errand) {
            return Err("too many connections to runners are awaited; try again".to_owned());
        }
        waiting.insert(errand, ((key, place.to_owned()), tell));
        Ok(Awaited { errand, arrived, waiting: Arc::clone(&self.waiting) })
    }

    /// A runner of this share has connected for an errand. One that nobody awaits, or another share's, is closed.
    pub(super) fn arrived(&self, key: ShareKey, place: &str, errand: u64, mut stream: Stream) {
        // A kind and a piece, as commands of this host have them.
        stream.reader.limit_frames(1 + limits::EXEC_FRAME_BYTES_MAX);
        let mut waiting = self.waiting.lock();
        let is_own = |((of, at), _): &(Owner, oneshot::Sender<Stream>)| *of == key && at == place;
        if !waiting.get(&errand).is_some_and(is_own) {
            return;
        }
        if let Some((_, tell)) = waiting.remove(&errand) {
            // Who asked for it may have gone.
            let _ = tell.send(stream);
        }
    }
}

impl Awaited {
    /// Waits for the connection that the runner opens for this purpose.
    ///
    /// # Errors
    /// One sentence, where none came in time.
    pub(crate) async fn stream(mut self) -> Result<Stream, String> {
        match tokio::time::timeout(ARRIVAL_MAX, &mut self.arrived).await {
            Ok(Ok(stream)) => Ok(stream),
            _ => {
                Err("the runner of this worker has not connected; it may be out of reach for now".to_owned())
            }
        }
    }
}

/// Runs a command next to a worker of a runner, over a connection that was asked for.
///
/// # Errors
/// One sentence, where it could not be run or its end is not known.
pub(crate) async fn exec(
    stream: Stream,
    mut inputs: mpsc::Receiver<ExecInput>,
    outputs: &mpsc::Sender<ExecOutput>,
) -> Result<(), String> {
    let Stream { mut reader, mut writer } = stream;
    let feed = async {
        while let Some(input) = inputs.recv().await {
            let frame = match input {
                ExecInput::Data(bytes) => piece(DATA, &bytes),
                ExecInput::End => word(&Word::End),
                ExecInput::Signal(number) => word(&Word::Signal(number)),
                ExecInput::Resize(size) => word(&Word::Resize(size)),
            };
            // A runner that has gone is seen by its silence.
            if writer.write(&frame).await.is_err() {
                break;
            }
        }
        let _ = writer.write(&word(&Word::End)).await;
        // The command may run on without any input.
        std::future::pending::<()>().await;
    };
    let hear = async {
        loop {
            let frame = reader.read().await.ok().flatten();
            let frame = frame.ok_or("the connection to the worker is over, and the command with it")?;
            let (output, is_last) = match decode(&frame) {
                Some(Piece::Data(bytes)) => (ExecOutput::Stdout(bytes), false),
                Some(Piece::Errors(bytes)) => (ExecOutput::Stderr(bytes), false),
                Some(Piece::Word(Word::Started)) => (ExecOutput::Started, false),
                Some(Piece::Word(Word::Exited(code))) => (ExecOutput::Exited(code), true),
                Some(Piece::Word(Word::Signaled(number))) => (ExecOutput::Signaled(number), true),
                Some(Piece::Word(Word::Failed(why))) => return Err(detail(&why)),
                _ => return Err("the runner says what it has no reason to".to_owned()),
            };
            if outputs.send(output).await.is_err() || is_last {
                return Ok(());
            }
        }
    };
    tokio::select! {
        ended = hear => ended,
        () = feed => Ok(()),
        () = outputs.closed() => Ok(()),
    }
}

/// Waits for the first word of an errand that is done once.
///
/// # Errors
/// Why it was not done.
pub(crate) async fn started(stream: &mut Stream) -> Result<(), String> {
    let heard = tokio::time::timeout(ARRIVAL_MAX, stream.reader.read()).await;
    let frame = heard.ok().and_then(Result::ok).flatten().ok_or("the runner gives no answer")?;
    match decode(&frame) {
        Some(Piece::Word(Word::Started)) => Ok(()),
        Some(Piece::Word(Word::Failed(why))) => Err(detail(&why)),
        _ => Err("the runner says what it has no reason to".to_owned()),
    }
}

/// The agent's end of a connection to a port of a worker.
pub(crate) struct FarPort {
    stream: DuplexStream,
    /// Tells by its end that nobody has this any more.
    _held: oneshot::Sender<()>,
}

impl FarPort {
    /// Carries bytes over a connection on which the runner has connected to the port.
    pub(crate) fn over(link: Stream) -> FarPort {
        let (stream, other) = tokio::io::duplex(PIECE_BYTES);
        let (held, let_go) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let gone = async {
                let _ = let_go.await;
                // What was written before that may still be on its way.
                tokio::time::sleep(limits::OUTPUT_DRAIN_MAX).await;
            };
            tokio::select! {
                () = carry(other, link) => {}
                () = gone => {}
            }
        });
        FarPort { stream, _held: held }
    }
}

impl AsyncRead for FarPort {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for FarPort {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Carries bytes in both directions until both have ended, or one has broken. An end of one direction is none of the other.
async fn carry<S: AsyncRead + AsyncWrite>(near: S, far: Stream) {
    let (mut from, mut to) = tokio::io::split(near);
    let Stream { mut reader, mut writer } = far;
    let away = async {
        let mut bytes = vec![0; PIECE_BYTES];
        loop {
            let read = from.read(&mut bytes).await.map_err(drop)?;
            let frame = if read == 0 { word(&Word::End) } else { piece(DATA, &bytes[..read]) };
            writer.write(&frame).await.map_err(drop)?;
            if read == 0 {
                return Ok::<(), ()>(());
            }
        }
    };
    let back = async {
        loop {
            let frame = reader.read().await.map_err(drop)?.ok_or(())?;
            match decode(&frame) {
                Some(Piece::Data(bytes)) => to.write_all(&bytes).await.map_err(drop)?,
                Some(Piece::Word(Word::End)) => {
                    // A program that has gone already needs no end.
                    let _ = to.shutdown().await;
                    return Ok::<(), ()>(());
                }
                _ => return Err(()),
            }
        }
    };
    let _ = tokio::try_join!(away, back);
}

/// How a runner opens connections to its agent.
#[derive(Clone, Debug)]
pub(crate) struct Dialling {
    pub(crate) ticket: Arc<Ticket>,
}

impl Dialling {
    /// Opens one for a purpose.
    ///
    /// # Errors
    /// One sentence: why there is none.
    pub(crate) async fn open(&self, purpose: Purpose) -> Result<Stream, String> {
        let opening = async {
            let stream = TcpStream::connect(&self.ticket.agent).await.map_err(|e| e.to_string())?;
            // What people type must not wait for more of it.
            let _ = stream.set_nodelay(true);
            let opened = dial(stream, &self.ticket.share, &self.ticket.identity).await;
            let (reader, mut writer) = opened.map_err(|e| e.to_string())?;
            writer.write(&link::encode(&ToAgent::Stream(purpose))).await.map_err(|e| e.to_string())?;
            Ok(Stream { reader, writer })
        };
        tokio::time::timeout(DIAL_MAX, opening).await.map_err(|_| "no connection in time".to_owned())?
    }
}

impl Errand {
    /// The worker that it is about.
    pub(super) fn rank(&self) -> u32 {
        match self {
            Errand::Exec { rank, .. } | Errand::Listens { rank, .. } | Errand::Connect { rank, .. } => *rank,
        }
    }
}

/// Does an errand of the agent's at a worker of this runner, over a new connection.
pub(super) async fn run(
    dialling: Dialling,
    executor: ProcessExecutor,
    key: WorkerKey,
    errand: u64,
    work: Errand,
) -> Result<(), String> {
    let mut stream = dialling.open(Purpose::Errand(errand)).await?;
    let refused = match work {
        Errand::Exec { command, environment, terminal, .. } => {
            return run_command(stream, executor, ExecRequest { key, command, environment, terminal }).await;
        }
        Errand::Listens { port, .. } => executor.listens(key, port).await.err(),
        Errand::Connect { port, .. } => {
            let connecting =
                tokio::time::timeout(limits::PORT_CONNECT_MAX, executor.connect(key, port)).await;
            match connecting.unwrap_or_else(|_| Err("no connection in time".to_owned())) {
                Ok(port) => {
                    stream.writer.write(&word(&Word::Started)).await.map_err(|e| e.to_string())?;
                    tokio::select! {
                        () = carry(port, stream) => {}
                        () = over(&executor, key) => {}
                    }
                    return Ok(());
                }
                Err(why) => Some(why),
            }
        }
    };
    let answer = refused.map_or(Word::Started, |why| Word::Failed(detail(&why)));
    say_last(&mut stream, &answer).await
}

/// The worker has ended, and what it wrote before has had its time to arrive.
async fn over(executor: &ProcessExecutor, key: WorkerKey) {
    executor.ended(key).await;
    tokio::time::sleep(limits::OUTPUT_DRAIN_MAX).await;
}

/// Says the last word of an errand, and waits until the agent has taken it and closes the connection.
async fn say_last(stream: &mut Stream, last: &Word) -> Result<(), String> {
    stream.writer.write(&word(last)).await.map_err(|e| e.to_string())?;
    let closed = async { while let Ok(Some(_)) = stream.reader.read().await {} };
    let _ = tokio::time::timeout(limits::EXEC_REQUEST_MAX, closed).await;
    Ok(())
}

/// Runs a command, and carries what goes between it and the agent.
async fn run_command(
    mut stream: Stream,
    executor: ProcessExecutor,
    request: ExecRequest,
) -> Result<(), String> {
    let key = request.key;
    let (to_command, inputs) = mpsc::channel(limits::EXEC_PIECES_QUEUED_MAX);
    let (outputs, mut from_command) = mpsc::channel(limits::EXEC_PIECES_QUEUED_MAX);
    let Stream { reader, writer } = &mut stream;
    let feed = async {
        let mut to_command = Some(to_command);
        // Nobody waits for the command any more when this ends.
        while let Ok(Some(frame)) = reader.read().await {
            let input = match decode(&frame) {
                Some(Piece::Data(bytes)) if bytes.len() <= limits::EXEC_FRAME_BYTES_MAX => {
                    ExecInput::Data(bytes)
                }
                Some(Piece::Word(Word::End)) => ExecInput::End,
                Some(Piece::Word(Word::Signal(number))) => ExecInput::Signal(number),
                Some(Piece::Word(Word::Resize(size))) => ExecInput::Resize(size),
                _ => continue,
            };
            let is_taken = match &to_command {
                Some(to) => to.send(input).await.is_ok(),
                None => true,
            };
            if !is_taken {
                // It takes no more and is about to say how it ended.
                to_command = None;
            }
        }
    };
    let forward = async {
        let mut last = None;
        while let Some(output) = from_command.recv().await {
            let frame = match output {
                ExecOutput::Stdout(bytes) => piece(DATA, &bytes),
                ExecOutput::Stderr(bytes) => piece(ERRORS, &bytes),
                ExecOutput::Started => word(&Word::Started),
                ExecOutput::Exited(code) => {
                    last = Some(Word::Exited(code));
                    continue;
                }
                ExecOutput::Signaled(number) => {
                    last = Some(Word::Signaled(number));
                    continue;
                }
            };
            if writer.write(&frame).await.is_err() {
                break;
            }
        }
        last
    };
    let work = async { tokio::join!(executor.exec(request, inputs, outputs), forward) };
    let (ended, last) = tokio::select! {
        ended = work => ended,
        () = feed => return Ok(()),
        // Nothing else would end it here with its worker.
        () = executor.ended(key) => (Err("the worker has ended, and the command with it".to_owned()), None),
    };
    let last = match (ended, last) {
        (Err(why), _) => Word::Failed(detail(&why)),
        (Ok(()), Some(last)) => last,
        (Ok(()), None) => return Ok(()),
    };
    say_last(&mut stream, &last).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_transport::{SharedIdentity, greet};
    use muster_types::{FencingToken, JobId, LogIndex};
    use tokio::net::TcpListener;

    fn key() -> ShareKey {
        (JobId(1), FencingToken { generation: 1, log_index: LogIndex(9) })
    }

    /// Both ends of a connection.
    async fn joined() -> (Stream, Stream) {
        let identity = SharedIdentity::generate().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let calling = async {
            let stream = TcpStream::connect(address).await.unwrap();
            let (reader, writer) = dial(stream, "share", &identity).await.unwrap();
            Stream { reader, writer }
        };
        let taking = async {
            let (stream, _) = listener.accept().await.unwrap();
            let (reader, writer) = greet(stream).await.unwrap().accept(&identity).await.unwrap();
            Stream { reader, writer }
        };
        tokio::join!(calling, taking)
    }

    #[test]
    fn what_is_sent_is_what_is_read_and_other_bytes_are_nothing() {
        let words = [Word::Started, Word::End, Word::Signal(15), Word::Exited(-1), Word::Failed("x".into())];
        for one in words {
            assert_eq!(decode(&word(&one)), Some(Piece::Word(one)));
        }
        assert_eq!(decode(&piece(DATA, b"")), Some(Piece::Data(Vec::new())));
        assert_eq!(decode(&piece(ERRORS, &[0, 255])), Some(Piece::Errors(vec![0, 255])));
        for bytes in [&b""[..], b"\x03x", b"\x00{", b"\x00{\"Unheard\":1}"] {
            assert_eq!(decode(bytes), None, "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn a_connection_is_handed_to_who_asked_for_it_alone() {
        let streams = Streams::default();
        let awaited = streams.expect(key(), "n1").unwrap();
        let errand = awaited.errand;
        for (place, number) in [("n2", errand), ("n1", errand.wrapping_add(1))] {
            let (_, theirs) = joined().await;
            streams.arrived(key(), place, number, theirs);
            assert_eq!(streams.waiting.lock().len(), 1, "it still waits");
        }
        let (mut ours, theirs) = joined().await;
        streams.arrived(key(), "n1", errand, theirs);
        let mut got = awaited.stream().await.unwrap();
        ours.writer.write(&word(&Word::Started)).await.unwrap();
        assert_eq!(started(&mut got).await, Ok(()));
        assert!(streams.waiting.lock().is_empty());
        drop(streams.expect(key(), "n1").unwrap());
        assert!(streams.waiting.lock().is_empty(), "nobody waits for it any more");
    }

    #[tokio::test]
    async fn a_piece_is_no_larger_than_one_of_a_command_of_this_host() {
        let streams = Streams::default();
        let awaited = streams.expect(key(), "n1").unwrap();
        let (mut runner, agent) = joined().await;
        streams.arrived(key(), "n1", awaited.errand, agent);
        let agent = awaited.stream().await.unwrap();
        let (_inputs, from_caller) = mpsc::channel(1);
        let (outputs, mut told) = mpsc::channel(8);
        let running = tokio::spawn(async move { exec(agent, from_caller, &outputs).await });
        let bytes_max = limits::EXEC_FRAME_BYTES_MAX;
        runner.writer.write(&piece(DATA, &vec![b'x'; bytes_max])).await.unwrap();
        assert_eq!(told.recv().await, Some(ExecOutput::Stdout(vec![b'x'; bytes_max])));
        // The agent may close the connection before it has all of it.
        let _ = runner.writer.write(&piece(DATA, &vec![b'x'; bytes_max + 1])).await;
        assert_eq!(told.recv().await, None, "nothing of it is handed on");
        assert!(running.await.unwrap().is_err());
    }

    #[tokio::test]
    async fn an_end_of_one_direction_is_none_of_the_other() {
        let (agent, runner) = joined().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let worker = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut program, _) = listener.accept().await.unwrap();
        tokio::spawn(carry(worker, runner));
        let mut port = FarPort::over(agent);
        // More than any queue holds, and the answer comes behind its end.
        let sent = vec![7; 5 * PIECE_BYTES + 3];
        let (bytes, mut all) = (sent.clone(), Vec::new());
        let answering = async {
            program.read_to_end(&mut all).await.unwrap();
            program.write_all(&all).await.unwrap();
            program.shutdown().await.unwrap();
        };
        let asking = async {
            port.write_all(&bytes).await.unwrap();
            port.shutdown().await.unwrap();
            let mut back = Vec::new();
            port.read_to_end(&mut back).await.unwrap();
            back
        };
        let ((), back) = tokio::join!(answering, asking);
        assert!(back == sent);
    }

    #[tokio::test]
    async fn a_command_is_over_when_its_connection_is() {
        let (agent, mut runner) = joined().await;
        let (_inputs, from_caller) = mpsc::channel(1);
        let (outputs, mut told) = mpsc::channel(8);
        let running = tokio::spawn(async move { exec(agent, from_caller, &outputs).await });
        runner.writer.write(&word(&Word::Started)).await.unwrap();
        runner.writer.write(&piece(ERRORS, b"e")).await.unwrap();
        assert_eq!(told.recv().await, Some(ExecOutput::Started));
        assert_eq!(told.recv().await, Some(ExecOutput::Stderr(b"e".to_vec())));
        drop(runner);
        assert!(running.await.unwrap().unwrap_err().contains("over"));
    }
}
