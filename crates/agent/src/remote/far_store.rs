//! The store of an agent as its runner sees it: the same trait as a directory that both would share.
//!
//! **Invariant:** what it returns is believed no more than what a directory holds: who reads it checks the digest.

use super::files::{Answer, Frame, Pieces, Question, Wire, encode};
use super::link::Purpose;
use super::streams::Dialling;
use muster_blobs::{BlobError, BlobStore};
use muster_types::BlobDigest;
use parking_lot::Mutex;
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Connections that are kept for the next object.
const IDLE_MAX: usize = 4;
/// How long they are kept: less than the agent waits for a question on one.
const KEPT_MAX: Duration = Duration::from_secs(10);

/// The store. It is used on threads for work that blocks, and nowhere else.
#[derive(Clone)]
pub(crate) struct FarStore {
    shared: Arc<Shared>,
}

struct Shared {
    dialling: Dialling,
    runtime: Handle,
    /// Each with when it was used last.
    idle: Mutex<Vec<(Instant, Wire)>>,
}

impl fmt::Debug for FarStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FarStore(..)")
    }
}

fn broken(error: &io::Error) -> BlobError {
    BlobError::Unreachable(format!("the agent: {error}"))
}

fn of_another_version() -> BlobError {
    BlobError::Unreachable("the agent says what it has no reason to".to_owned())
}

/// Asks on a connection, and takes the first frame of the answer.
fn first_of(wire: &mut Wire, question: Question) -> io::Result<Frame<Answer>> {
    wire.ask(question)?;
    let frame = wire.read()?;
    wire.note_answer();
    Ok(frame)
}

impl FarStore {
    /// To be called on the runtime that the connections are served by.
    pub(super) fn over(dialling: Dialling) -> FarStore {
        let idle = Mutex::new(Vec::new());
        FarStore { shared: Arc::new(Shared { dialling, runtime: Handle::current(), idle }) }
    }
}

impl Shared {
    fn dial(&self) -> Result<Wire, BlobError> {
        let opened = self.runtime.block_on(self.dialling.open(Purpose::Store));
        let stream = opened.map_err(|why| BlobError::Unreachable(format!("the agent: {why}")))?;
        Ok(Wire::new(stream, self.runtime.clone()))
    }

    fn give_back(&self, wire: Wire) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push((Instant::now(), wire));
        }
    }

    /// A connection that was used a moment ago. Others are closed: a runner waits long for a turn, and the host of its agent may be
    /// gone.
    fn kept(&self) -> Option<Wire> {
        let mut idle = self.idle.lock();
        idle.retain(|(since, _)| since.elapsed() < KEPT_MAX);
        idle.pop().map(|(_, wire)| wire)
    }

    /// Asks, and takes the first frame of the answer. A connection that was kept may be over since; then another is asked.
    fn ask(&self, question: Question) -> Result<(Wire, Frame<Answer>), BlobError> {
        if let Some(mut wire) = self.kept() {
            if let Ok(frame) = first_of(&mut wire, question) {
                return Ok((wire, frame));
            }
            self.idle.lock().clear();
        }
        let mut wire = self.dial()?;
        let frame = first_of(&mut wire, question);
        frame.map(|frame| (wire, frame)).map_err(|error| broken(&error))
    }

    fn send(
        &self,
        mut wire: Wire,
        digest: &BlobDigest,
        write: &mut dyn FnMut(&mut dyn Write) -> Result<(), BlobError>,
    ) -> Result<(), BlobError> {
        wire.ask(Question::Put(*digest)).map_err(|error| broken(&error))?;
        {
            let mut pieces = Pieces::to(&mut wire);
            // Where it fails the connection is closed, and nothing of the object appears.
            write(&mut pieces)?;
            pieces.flush().map_err(|error| broken(&error))?;
        }
        wire.write(&encode(&Question::End)).map_err(|error| broken(&error))?;
        match wire.read::<Answer>().map_err(|error| broken(&error))? {
            Frame::Word(Answer::Done) => {
                self.give_back(wire);
                Ok(())
            }
            Frame::Word(Answer::Failed(fault)) => {
                self.give_back(wire);
                Err(fault.error(*digest))
            }
            Frame::Word(Answer::Has(_)) | Frame::Piece(_) => Err(of_another_version()),
        }
    }
}

impl BlobStore for FarStore {
    fn has(&self, digest: &BlobDigest) -> Result<bool, BlobError> {
        match self.shared.ask(Question::Has(*digest))? {
            (wire, Frame::Word(Answer::Has(is_there))) => {
                self.shared.give_back(wire);
                Ok(is_there)
            }
            (_, Frame::Word(Answer::Failed(fault))) => Err(fault.error(*digest)),
            (_, Frame::Word(Answer::Done) | Frame::Piece(_)) => Err(of_another_version()),
        }
    }

    fn put(
        &self,
        digest: &BlobDigest,
        write: &mut dyn FnMut(&mut dyn Write) -> Result<(), BlobError>,
    ) -> Result<(), BlobError> {
        // What is written cannot be written twice. So it is asked first, which shows whether a kept connection still stands.
        let (wire, _) = self.shared.ask(Question::Has(*digest))?;
        self.shared.send(wire, digest, write)
    }

    fn open(&self, digest: &BlobDigest) -> Result<Box<dyn Read>, BlobError> {
        let (wire, first) = self.shared.ask(Question::Get(*digest))?;
        let piece = match first {
            Frame::Piece(piece) => piece,
            Frame::Word(Answer::Done) => {
                self.shared.give_back(wire);
                return Ok(Box::new(io::empty()));
            }
            Frame::Word(Answer::Failed(fault)) => {
                self.shared.give_back(wire);
                return Err(fault.error(*digest));
            }
            Frame::Word(Answer::Has(_)) => return Err(of_another_version()),
        };
        Ok(Box::new(Object { shared: Arc::clone(&self.shared), wire: Some(wire), piece, at: 0 }))
    }
}

/// An object that comes.
struct Object {
    shared: Arc<Shared>,
    /// `None` once all of it has come. If this is dropped before that, the connection is closed.
    wire: Option<Wire>,
    piece: Vec<u8>,
    at: usize,
}

impl Read for Object {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at >= self.piece.len() {
            let Some(mut wire) = self.wire.take() else { return Ok(0) };
            match wire.read::<Answer>()? {
                Frame::Piece(piece) => {
                    (self.piece, self.at) = (piece, 0);
                    self.wire = Some(wire);
                }
                Frame::Word(Answer::Done) => self.shared.give_back(wire),
                Frame::Word(Answer::Failed(_) | Answer::Has(_)) => {
                    return Err(io::Error::other("the agent cannot read the rest of it"));
                }
            }
        }
        let count = into.len().min(self.piece.len() - self.at);
        into[..count].copy_from_slice(&self.piece[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}
