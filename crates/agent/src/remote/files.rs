//! The store of files that an agent has, for runners that have none: over connections that they open, see `streams.rs`.
//!
//! A runner unpacks and collects with the code that hosts use; only where that code asks a directory for an object, it asks the agent
//! here. An object goes over the connection as the store has it, in pieces, and is checked at its end by who takes it.
//!
//! A runner is somebody else's process, and the store is every tenant's. So a share may have the objects of the files of its job and
//! no others, whatever digests it knows, and it may name as its workers' files only what it has sent.
//!
//! **Invariant:** nothing appears in the store that is not what its digest names; a share reads nothing of another job's; of an
//! object, a few pieces are in memory.

use super::streams::Stream;
use crate::offload::blocking;
use crate::process::work_files::FilesConfig;
use crate::rules::Placement;
use crate::turns::Turns;
use muster_blobs::{BlobError, BlobStore, Entry, LIST_BYTES_MAX, Store, UnpackError, list, take_in};
use muster_types::blob::STORE_LABEL;
use muster_types::{ArtifactFault, Artifacts, BlobDigest, Name};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// Objects that are sent or taken at the same time, by one agent.
const AT_ONCE: usize = 8;
/// Lists of what was sent that are looked at, at the same time.
const LOOKS_AT_ONCE: usize = 2;
/// Bytes of one piece of an object.
const PIECE_BYTES: usize = 64 << 10;
/// Between two frames of a connection on which an object is sent.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long a runner waits for a turn at its agent, where its own limit is not over before: as long as another object may hold one.
const TURN_MAX: Duration = OBJECT_MAX;
/// How long a connection may stand without a question. A runner keeps one for less, and opens another when it needs one.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// How long one object may be on its way, and hold a turn meanwhile.
const OBJECT_MAX: Duration = Duration::from_secs(900);
/// How long a runner may keep a turn waiting on top of what its pace gives it.
const PACE_GRACE: Duration = Duration::from_secs(20);
/// The least pace of an object, in bytes a second: who sends or takes it slower gives its turn up.
const PACE_BYTES: u64 = 256 << 10;
/// Connections of one share at a time: its runner keeps a few.
const CONNECTIONS_MAX: usize = 32;
/// Objects that one share may send.
const OBJECTS_MAX: usize = 200_000;

/// What the agent of a cluster has that workers there are given.
#[derive(Clone, Debug, Default)]
pub struct SecretsAndFiles {
    /// Where secrets of tenants are, each in a directory of its tenant's; none where there are none.
    pub secrets_dir: Option<PathBuf>,
    /// Where files of jobs are, and their bounds.
    pub files: FilesConfig,
}

impl SecretsAndFiles {
    /// What is so of the nodes of a cluster goes before what an operator says.
    pub(crate) fn label(&self, labels: &mut BTreeMap<Name, String>) {
        labels.retain(|label, _| label.as_str() != STORE_LABEL);
        let fact = self.files.fact();
        labels.extend(fact.and_then(|(label, fact)| Some((Name::new(&label)?, fact))));
    }
}

/// A question of a runner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Question {
    /// Whether the share has sent this object.
    Has(BlobDigest),
    /// The object, in pieces.
    Get(BlobDigest),
    /// Pieces of the object follow.
    Put(BlobDigest),
    /// That was the last of them.
    End,
}

impl Question {
    /// Whether the answer takes disk and network, and so a turn.
    fn needs_turn(self) -> bool {
        match self {
            Question::Get(_) | Question::Put(_) => true,
            Question::Has(_) | Question::End => false,
        }
    }
}

/// An answer to one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    Has(bool),
    /// That was all of the object; or it was taken.
    Done,
    Failed(Fault),
}

/// What a store says of an object that cannot be had or put.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Fault {
    NotFound,
    Mismatch,
    TooLarge(u64),
    Unreachable(String),
}

impl Fault {
    fn of(error: &BlobError) -> Fault {
        match error {
            BlobError::NotFound(_) => Fault::NotFound,
            BlobError::Mismatch(_) | BlobError::Changed => Fault::Mismatch,
            BlobError::TooLarge { max, .. } => Fault::TooLarge(*max),
            BlobError::Unreachable(why) => Fault::Unreachable(why.clone()),
            BlobError::NoStore(_) | BlobError::Local(_) => Fault::Unreachable(error.to_string()),
        }
    }

    /// The same about an object, as a store states it.
    pub(super) fn error(self, digest: BlobDigest) -> BlobError {
        match self {
            Fault::NotFound => BlobError::NotFound(digest),
            Fault::Mismatch => BlobError::Mismatch(digest),
            Fault::TooLarge(max) => BlobError::TooLarge { digest, max },
            Fault::Unreachable(why) => BlobError::Unreachable(why),
        }
    }
}

/// One frame of such a connection: a piece, or a question or answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<T> {
    Piece(Vec<u8>),
    Word(T),
}

const WORD: u8 = 0;
const PIECE: u8 = 1;

pub(super) fn encode<T: Serialize>(word: &T) -> Vec<u8> {
    let mut frame = vec![WORD];
    frame.extend(serde_json::to_vec(word).expect("words are numbers and texts"));
    frame
}

fn decode<T: for<'a> Deserialize<'a>>(frame: &[u8]) -> Option<Frame<T>> {
    let (kind, body) = frame.split_first()?;
    match *kind {
        WORD => serde_json::from_slice(body).ok().map(Frame::Word),
        PIECE => Some(Frame::Piece(body.to_vec())),
        _ => None,
    }
}

/// What the other side of a connection has of the time for one object. Only waiting for it counts for its pace: a slow store is
/// not its fault.
#[derive(Debug)]
struct Pace {
    until: Instant,
    waited: Duration,
    moved_bytes: u64,
}

impl Pace {
    fn from(now: Instant) -> Pace {
        Pace { until: now + OBJECT_MAX, waited: Duration::ZERO, moved_bytes: 0 }
    }

    /// A frame was waited for.
    fn note(&mut self, waited: Duration, bytes: usize) {
        self.waited = self.waited.saturating_add(waited);
        self.moved_bytes = self.moved_bytes.saturating_add(bytes as u64);
    }

    /// How long it may still be waited for.
    fn left(&self, now: Instant) -> Duration {
        let earned = Duration::from_millis(self.moved_bytes.saturating_mul(1_000) / PACE_BYTES);
        let of_pace = PACE_GRACE.saturating_add(earned).saturating_sub(self.waited);
        of_pace.min(self.until.saturating_duration_since(now))
    }
}

/// A connection as work that blocks uses it, on a thread for such work.
pub(super) struct Wire {
    stream: Stream,
    runtime: Handle,
    /// Longest time between two frames of the other side.
    silence_max: Duration,
    /// What the other side has to keep to; none for no bound beyond that of each frame.
    pace: Option<Pace>,
}

impl Wire {
    pub(super) fn new(stream: Stream, runtime: Handle) -> Wire {
        Wire { stream, runtime, silence_max: SILENCE_MAX, pace: None }
    }

    /// Sends a question. What needs a turn at the agent is waited for as long as that may take.
    pub(super) fn ask(&mut self, question: Question) -> io::Result<()> {
        self.silence_max = if question.needs_turn() { TURN_MAX } else { SILENCE_MAX };
        self.write(&encode(&question))
    }

    /// The agent has begun with its answer.
    pub(super) fn note_answer(&mut self) {
        self.silence_max = SILENCE_MAX;
    }

    /// How long the next frame may take.
    fn patience(&self) -> Duration {
        self.pace.as_ref().map_or(self.silence_max, |pace| pace.left(Instant::now()).min(self.silence_max))
    }

    /// A frame of this number of bytes was waited for.
    fn note(&mut self, begun: Instant, bytes: usize) {
        if let Some(pace) = &mut self.pace {
            pace.note(begun.elapsed(), bytes);
        }
    }

    /// The next frame; an error when the connection is over.
    pub(super) fn read<T: for<'a> Deserialize<'a>>(&mut self) -> io::Result<Frame<T>> {
        let (begun, patience) = (Instant::now(), self.patience());
        let Wire { stream, runtime, .. } = self;
        let read = runtime.block_on(async { tokio::time::timeout(patience, stream.reader.read()).await });
        let frame = read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
        let frame = frame.map_err(io::Error::other)?;
        let frame = frame.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionAborted))?;
        self.note(begun, frame.len());
        decode(&frame).ok_or_else(|| io::Error::other("a frame of another version"))
    }

    pub(super) fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        let (begun, patience) = (Instant::now(), self.patience());
        let Wire { stream, runtime, .. } = self;
        let written =
            runtime.block_on(async { tokio::time::timeout(patience, stream.writer.write(frame)).await });
        written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?.map_err(io::Error::other)?;
        self.note(begun, frame.len());
        Ok(())
    }

    fn piece(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut frame = Vec::with_capacity(1 + bytes.len());
        frame.push(PIECE);
        frame.extend_from_slice(bytes);
        self.write(&frame)
    }
}

/// Sends what is written in pieces.
pub(super) struct Pieces<'a> {
    wire: &'a mut Wire,
    waiting: Vec<u8>,
}

impl<'a> Pieces<'a> {
    pub(super) fn to(wire: &'a mut Wire) -> Pieces<'a> {
        Pieces { wire, waiting: Vec::with_capacity(PIECE_BYTES) }
    }
}

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.waiting.len() >= PIECE_BYTES {
            self.flush()?;
        }
        let count = bytes.len().min(PIECE_BYTES - self.waiting.len());
        self.waiting.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.waiting.is_empty() {
            self.wire.piece(&self.waiting)?;
            self.waiting.clear();
        }
        Ok(())
    }
}

/// Pieces of an object that come, up to the word behind them.
struct Coming<'a> {
    wire: &'a mut Wire,
    piece: Vec<u8>,
    at: usize,
    /// The word has come.
    is_over: bool,
}

impl<'a> Coming<'a> {
    fn over(wire: &'a mut Wire) -> Coming<'a> {
        Coming { wire, piece: Vec::new(), at: 0, is_over: false }
    }

    /// Passes over what is left, so that the next question can be read.
    fn skip(mut self) -> io::Result<()> {
        while !self.is_over {
            self.next()?;
        }
        Ok(())
    }

    fn next(&mut self) -> io::Result<()> {
        match self.wire.read::<Question>()? {
            Frame::Piece(piece) => (self.piece, self.at) = (piece, 0),
            Frame::Word(Question::End) => self.is_over = true,
            Frame::Word(_) => return Err(io::Error::other("a question between pieces")),
        }
        Ok(())
    }
}

impl Read for Coming<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at >= self.piece.len() {
            if self.is_over {
                return Ok(0);
            }
            self.next()?;
        }
        let count = into.len().min(self.piece.len() - self.at);
        into[..count].copy_from_slice(&self.piece[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// The store of an agent, as its runners may use it.
#[derive(Debug)]
pub(crate) struct OwnStore {
    pub(super) config: FilesConfig,
    store: Store,
    /// Of objects on their way, which who sends them may delay.
    turns: Turns,
    /// Of looks at what was sent, which nobody can.
    looks: Turns,
    /// The objects in lists of jobs that are under way: a gang has one list on many nodes.
    lists: Mutex<BTreeMap<BlobDigest, Weak<BTreeSet<BlobDigest>>>>,
}

impl OwnStore {
    /// As an operator says; none where no store is named.
    pub(super) fn of(config: &FilesConfig) -> Option<OwnStore> {
        let store = Store::at(config.store.clone()?, &config.s3);
        let (turns, looks) = (Turns::halved(AT_ONCE), Turns::halved(LOOKS_AT_ONCE));
        Some(OwnStore { config: config.clone(), store, turns, looks, lists: Mutex::default() })
    }

    /// The objects in a list of files.
    fn objects_in(&self, digest: &BlobDigest) -> Result<Arc<BTreeSet<BlobDigest>>, BlobError> {
        if let Some(known) = self.lists.lock().get(digest).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let tree = list(&self.store, digest, self.config.bytes_max);
        // Who unpacks it finds the same, and says which rule it breaks.
        let tree = tree.map_err(|error| BlobError::Unreachable(error.to_string()))?;
        let objects: Arc<BTreeSet<BlobDigest>> =
            Arc::new(tree.entries().iter().filter_map(digest_in).collect());
        let mut lists = self.lists.lock();
        lists.retain(|_, known| known.strong_count() > 0);
        lists.insert(*digest, Arc::downgrade(&objects));
        Ok(objects)
    }
}

/// What a share may have of the store, and what it has sent.
#[derive(Debug)]
pub(crate) struct ShareFiles {
    tenant: String,
    workdir: Option<BlobDigest>,
    /// Bytes that it may send; none where its job wants nothing kept.
    sent_bytes_max: Option<u64>,
    connections: Semaphore,
    state: Mutex<ShareState>,
}

#[derive(Debug, Default)]
struct ShareState {
    /// The objects of its job's files, once their list was asked for.
    own: Option<Arc<BTreeSet<BlobDigest>>>,
    sent: BTreeSet<BlobDigest>,
    sent_bytes: u64,
}

impl ShareFiles {
    /// Those of a placement's share; `each_bytes_max` is what the agent keeps of one worker.
    pub(super) fn of(placement: &Placement, each_bytes_max: u64) -> ShareFiles {
        let each = placement.artifacts_bytes_max.map_or(each_bytes_max, |max| max.min(each_bytes_max));
        let workers = placement.workers.len() as u64;
        // An attempt that fails is made again, and then some of it is sent twice.
        let all = each.saturating_add(LIST_BYTES_MAX).saturating_mul(workers).saturating_mul(2);
        ShareFiles {
            tenant: placement.tenant.clone(),
            workdir: placement.workdir,
            sent_bytes_max: placement.artifacts.as_ref().map(|_| all),
            connections: Semaphore::new(CONNECTIONS_MAX),
            state: Mutex::default(),
        }
    }

    /// Whether an object is one of the job's files.
    fn is_own(&self, store: &OwnStore, digest: &BlobDigest) -> Result<bool, BlobError> {
        let Some(workdir) = self.workdir else { return Ok(false) };
        if *digest == workdir {
            return Ok(true);
        }
        let known = self.state.lock().own.clone();
        let own = match known {
            Some(own) => own,
            None => {
                let own = store.objects_in(&workdir)?;
                self.state.lock().own = Some(Arc::clone(&own));
                own
            }
        };
        Ok(own.contains(digest))
    }

    /// Whose job it is.
    pub(super) fn tenant(&self) -> &str {
        &self.tenant
    }

    fn has_sent(&self, digest: &BlobDigest) -> bool {
        self.state.lock().sent.contains(digest)
    }

    /// How many bytes the next object may have.
    ///
    /// # Errors
    /// When there may be none.
    fn bytes_left(&self, digest: &BlobDigest) -> Result<u64, BlobError> {
        let state = self.state.lock();
        let left = self.sent_bytes_max.unwrap_or(0).saturating_sub(state.sent_bytes);
        if left == 0 || state.sent.len() >= OBJECTS_MAX {
            return Err(BlobError::TooLarge { digest: *digest, max: 0 });
        }
        Ok(left)
    }

    /// Takes an object. What comes of several at the same time counts together, while it comes: else as many as there are turns
    /// could each have all that is left.
    fn take_in(
        &self,
        store: &dyn BlobStore,
        digest: &BlobDigest,
        coming: &mut dyn Read,
    ) -> Result<(), BlobError> {
        let bytes_left = self.bytes_left(digest)?;
        let most = self.sent_bytes_max.unwrap_or(0);
        let mut counted = 0u64;
        let taken = take_in(store, digest, bytes_left, coming, &mut |bytes| {
            let mut state = self.state.lock();
            let all = state.sent_bytes.saturating_add(bytes);
            if all > most {
                return Err(BlobError::TooLarge { digest: *digest, max: bytes_left });
            }
            (state.sent_bytes, counted) = (all, counted.saturating_add(bytes));
            Ok(())
        });
        let mut state = self.state.lock();
        match taken {
            Ok(_) => {
                state.sent.insert(*digest);
                Ok(())
            }
            Err(error) => {
                state.sent_bytes = state.sent_bytes.saturating_sub(counted);
                Err(error)
            }
        }
    }

    /// What a runner says that it has kept, if it has sent all of it.
    pub(super) async fn checked(
        self: &Arc<Self>,
        store: Option<&Arc<OwnStore>>,
        said: Artifacts,
    ) -> Artifacts {
        let Some(digest) = said.digest else { return said };
        let nothing =
            |fault| Artifacts { fault: Some((fault, 0)), left_out: said.left_out, ..Artifacts::default() };
        let Some(store) = store.cloned() else { return nothing(ArtifactFault::NoStore) };
        let turn = store.looks.take(&self.tenant).await;
        let files = Arc::clone(self);
        let looked = blocking(move || {
            let _turn = turn;
            files.has_sent_all(&store, &digest)
        });
        match looked.await {
            // How many they are is not the runner's to say.
            Ok(Some((files, bytes))) => Artifacts { files, bytes, ..said },
            // This agent was started again since, or the runner says what is not so.
            Ok(None) => nothing(ArtifactFault::StoreUnreachable),
            Err(error) => {
                tracing::warn!(%digest, %error, "what a runner has kept cannot be looked at");
                nothing(ArtifactFault::StoreUnreachable)
            }
        }
    }

    /// How many files are in a list and how many bytes they have; none unless it has sent the list and every file in it.
    fn has_sent_all(&self, store: &OwnStore, digest: &BlobDigest) -> Result<Option<(u32, u64)>, UnpackError> {
        if !self.has_sent(digest) {
            return Ok(None);
        }
        let tree = list(&store.store, digest, store.config.artifacts_bytes_max)?;
        let state = self.state.lock();
        let (mut files, mut bytes) = (0u32, 0u64);
        for entry in tree.entries() {
            let Entry::File { digest, size, .. } = entry else { continue };
            if !state.sent.contains(digest) {
                return Ok(None);
            }
            (files, bytes) = (files.saturating_add(1), bytes.saturating_add(*size));
        }
        Ok(Some((files, bytes)))
    }
}

/// The content that an entry of a list names.
fn digest_in(entry: &Entry) -> Option<BlobDigest> {
    match entry {
        Entry::File { digest, .. } => Some(*digest),
        Entry::Link { .. } | Entry::Directory { .. } => None,
    }
}

/// Answers the questions of a runner on one connection, until it is over. Where the agent has no store, nothing is answered.
pub(super) async fn serve(
    store: Option<&Arc<OwnStore>>,
    files: &Arc<ShareFiles>,
    mut stream: Stream,
) -> Result<(), String> {
    let Some(store) = store else { return Err("there is no store for runners".to_owned()) };
    let Ok(_place) = files.connections.try_acquire() else {
        return Err("a share has too many connections to the store".to_owned());
    };
    // A question is short, and pieces are all alike.
    stream.reader.limit_frames(1 + PIECE_BYTES);
    let runtime = Handle::current();
    loop {
        let asked = tokio::time::timeout(IDLE_MAX, stream.reader.read()).await;
        let Ok(Ok(Some(asked))) = asked else { return Ok(()) };
        let Some(Frame::Word(question)) = decode::<Question>(&asked) else {
            return Err("a question was expected".to_owned());
        };
        // It is answered from memory, and waits for nobody's object.
        if let Question::Has(digest) = question {
            let answer = encode(&Answer::Has(files.has_sent(&digest)));
            let written = tokio::time::timeout(SILENCE_MAX, stream.writer.write(&answer)).await;
            written.map_err(|_| "an answer was not taken in time")?.map_err(|error| error.to_string())?;
            continue;
        }
        let turn = store.turns.take(&files.tenant).await;
        let (store, files, runtime) = (Arc::clone(store), Arc::clone(files), runtime.clone());
        let work = move || {
            let _turn = turn;
            let mut wire = Wire::new(stream, runtime);
            wire.pace = Some(Pace::from(Instant::now()));
            answer(&store, &files, &mut wire, question).map(|()| wire.stream)
        };
        stream = blocking(work).await.map_err(|error| error.to_string())?;
    }
}

/// Answers a question of a runner about objects of the store, and takes or sends their bytes.
fn answer(store: &OwnStore, files: &ShareFiles, wire: &mut Wire, question: Question) -> io::Result<()> {
    let answer = match question {
        Question::Has(digest) => Answer::Has(files.has_sent(&digest)),
        Question::Get(digest) => match files.is_own(store, &digest) {
            Ok(true) => match store.store.open(&digest) {
                Ok(object) => send(object, wire)?,
                Err(error) => Answer::Failed(Fault::of(&error)),
            },
            Ok(false) => Answer::Failed(Fault::NotFound),
            Err(error) => Answer::Failed(Fault::of(&error)),
        },
        Question::Put(digest) => {
            let mut coming = Coming::over(wire);
            let taken = files.take_in(&store.store, &digest, &mut coming);
            coming.skip()?;
            match taken {
                Ok(()) => Answer::Done,
                Err(error) => Answer::Failed(Fault::of(&error)),
            }
        }
        Question::End => return Err(io::Error::other("an end of nothing")),
    };
    wire.write(&encode(&answer))
}

/// Sends an object as the store has it. The answer behind it says whether that was all.
fn send(mut object: Box<dyn Read>, wire: &mut Wire) -> io::Result<Answer> {
    let mut bytes = vec![0; PIECE_BYTES];
    loop {
        match object.read(&mut bytes) {
            Ok(0) => return Ok(Answer::Done),
            Ok(read) => wire.piece(&bytes[..read])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Ok(Answer::Failed(Fault::Unreachable(error.to_string()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::far_store::FarStore;
    use crate::remote::link::{self, Purpose, Ticket, ToAgent, Within};
    use crate::remote::streams::Dialling;
    use crate::wire::{placement, tests::order};
    use muster_blobs::{BlobDirectory, Collecting, Unpacking, collect, pack, unpack};
    use muster_transport::{SharedIdentity, greet};
    use muster_types::ArtifactRules;
    use std::path::Path;
    use tokio::net::TcpListener;
    use tokio::task::AbortHandle;

    /// An agent with a store, and a runner of one share; and what is served in between.
    struct Bench {
        scratch: tempfile::TempDir,
        store: Arc<OwnStore>,
        files: Arc<ShareFiles>,
        far: FarStore,
        serving: AbortHandle,
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            self.serving.abort();
        }
    }

    impl Bench {
        async fn new(workdir: Option<&Path>) -> Bench {
            let scratch = tempfile::tempdir().unwrap();
            let root = scratch.path().join("store");
            std::fs::create_dir(&root).unwrap();
            let directory = BlobDirectory::open_or_make(root.clone()).unwrap();
            let config = FilesConfig { store: Some(root), ..FilesConfig::default() };
            let store = Arc::new(OwnStore::of(&config).unwrap());
            let mut placement = placement(order()).unwrap();
            placement.workdir = workdir.map(|from| {
                let packed = pack(from).unwrap();
                packed.send(&directory, &mut |_| ()).unwrap();
                packed.digest()
            });
            placement.artifacts = Some(ArtifactRules { paths: vec!["out".into()], required: true });
            let files = Arc::new(ShareFiles::of(&placement, 1 << 20));
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let identity = SharedIdentity::generate().unwrap();
            let ticket = Ticket {
                share: "share".into(),
                identity: identity.clone(),
                agent: listener.local_addr().unwrap().to_string(),
                directory: scratch.path().to_owned(),
                patience_ms: 1,
                within: Within::Kubernetes,
            };
            let (own, of) = (Arc::clone(&store), Arc::clone(&files));
            let serving = tokio::spawn(async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let (mut reader, writer) = greet(stream).await.unwrap().accept(&identity).await.unwrap();
                    let first = reader.read().await.unwrap().unwrap();
                    assert_eq!(link::decode::<ToAgent>(&first), Some(ToAgent::Stream(Purpose::Store)));
                    let (own, of) = (Arc::clone(&own), Arc::clone(&of));
                    tokio::spawn(async move { serve(Some(&own), &of, Stream { reader, writer }).await });
                }
            });
            let far = FarStore::over(Dialling { ticket: Arc::new(ticket) });
            Bench { scratch, store, files, far, serving: serving.abort_handle() }
        }

        /// Does what blocks on the runner's side.
        async fn there<T: Send + 'static>(&self, work: impl FnOnce(FarStore) -> T + Send + 'static) -> T {
            let far = self.far.clone();
            blocking(move || work(far)).await
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_runner_unpacks_what_its_job_has_and_sees_nothing_else() {
        let from = tempfile::tempdir().unwrap();
        std::fs::create_dir(from.path().join("src")).unwrap();
        std::fs::write(from.path().join("src/train.py"), vec![b'x'; 300_000]).unwrap();
        std::fs::write(from.path().join("empty"), "").unwrap();
        let bench = Bench::new(Some(from.path())).await;
        let (digest, into) = (bench.files.workdir.unwrap(), bench.scratch.path().join("work"));
        let unpacked = into.clone();
        let done = bench.there(move |far| {
            let is_given_up = || false;
            let into = unpacked.as_path();
            let asked =
                Unpacking { digest, into, bytes_max: 1 << 20, owner: None, is_given_up: &is_given_up };
            unpack(&far, &asked).map_err(|error| error.to_string())
        });
        assert_eq!(done.await, Ok(()));
        assert_eq!(std::fs::read(into.join("src/train.py")).unwrap().len(), 300_000);
        assert!(into.join("empty").exists());

        // Another job's, which is in the store and whose digest it knows.
        let other = tempfile::tempdir().unwrap();
        std::fs::write(other.path().join("private"), "private").unwrap();
        let packed = pack(other.path()).unwrap();
        packed.send(&bench.store.store, &mut |_| ()).unwrap();
        let digest = packed.digest();
        let found =
            bench.there(move |far| far.open(&digest).map(drop).map_err(|error| error.to_string())).await;
        assert!(found.unwrap_err().contains("not in the store"));
        let found = bench.there(move |far| far.has(&digest).map_err(|error| error.to_string())).await;
        assert_eq!(found, Ok(false), "it has not sent it");
        let said = Artifacts { digest: Some(digest), files: 1, bytes: 7, ..Artifacts::default() };
        let checked = bench.files.checked(Some(&bench.store), said).await;
        assert_eq!((checked.digest, checked.files), (None, 0), "nor may it name it as what it has kept");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_workers_leave_is_in_the_store_of_the_agent() {
        let bench = Bench::new(None).await;
        let left = bench.scratch.path().join("left");
        std::fs::create_dir_all(left.join("out")).unwrap();
        std::fs::write(left.join("out/model"), vec![7; 200_000]).unwrap();
        let kept = |bytes_max: u64| {
            let left = left.clone();
            bench.there(move |far| {
                let is_given_up = || false;
                let paths = ["out".to_owned()];
                let asked = Collecting {
                    root: &left,
                    is_root_followed: false,
                    covered: &[],
                    shown: &[],
                    paths: &paths,
                    owner: None,
                    files_max: 10,
                    bytes_max,
                    is_given_up: &is_given_up,
                };
                collect(&far, &asked)
            })
        };
        let said = kept(1 << 20).await;
        assert_eq!((said.files, said.bytes, said.fault), (1, 200_000, None));
        assert_eq!(bench.files.checked(Some(&bench.store), said).await, said);
        // Numbers that are not those of what it has sent are not passed on.
        let more = Artifacts { files: 9_999, bytes: 1 << 60, ..said };
        assert_eq!(bench.files.checked(Some(&bench.store), more).await, said);
        let digest = said.digest.unwrap();
        let tree = list(&bench.store.store, &digest, 1 << 20).unwrap();
        assert_eq!(tree.entries().len(), 1);
        let again = Arc::new(ShareFiles::of(&placement(order()).unwrap(), 1 << 20));
        let checked = again.checked(Some(&bench.store), said).await;
        assert_eq!(checked.digest, None, "another share has not sent it");
        // One that wants nothing kept may send nothing.
        assert!(matches!(again.bytes_left(&digest), Err(BlobError::TooLarge { .. })));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_others_send_delays_no_question_and_takes_half_of_the_turns() {
        let bench = Bench::new(None).await;
        // As if objects of other tenants were on their way and came slowly.
        let mut held = Vec::new();
        for number in 0..AT_ONCE {
            held.push(bench.store.turns.take(["one", "two"][number % 2]).await);
        }
        let digest = BlobDigest::new([3; 32]);
        let asked = bench.there(move |far| far.has(&digest).map_err(|error| error.to_string()));
        let found = tokio::time::timeout(Duration::from_secs(30), asked).await;
        assert_eq!(found, Ok(Ok(false)), "it is answered without a turn");
        held.clear();
        for _ in 0..AT_ONCE / 2 {
            held.push(bench.store.turns.take("one").await);
        }
        let more = tokio::time::timeout(Duration::ZERO, bench.store.turns.take("one")).await;
        assert!(more.is_err(), "the other half is for others");
        for _ in 0..AT_ONCE / 2 {
            held.push(bench.store.turns.take("two").await);
        }
    }

    #[test]
    fn an_object_that_comes_too_slowly_gives_its_turn_up() {
        let now = Instant::now();
        let mut pace = Pace::from(now);
        assert_eq!(pace.left(now), PACE_GRACE);
        // A piece every ten seconds.
        for _ in 0..3 {
            pace.note(Duration::from_secs(10), PIECE_BYTES);
        }
        assert_eq!(pace.left(now), Duration::ZERO, "and not after a quarter of an hour");
        // One at the least pace goes on, up to the end of its time.
        let mut pace = Pace::from(now);
        for _ in 0..100 {
            pace.note(Duration::from_secs(1), 256 << 10);
        }
        assert_eq!(pace.left(now), PACE_GRACE);
        assert_eq!(pace.left(now + OBJECT_MAX), Duration::ZERO);
        assert!(TURN_MAX > SILENCE_MAX && !Question::End.needs_turn());
    }

    /// Bytes that come in two parts; between them something else happens.
    struct InTwoParts<'a> {
        first: &'a [u8],
        between: Option<Box<dyn FnOnce() + 'a>>,
        second: &'a [u8],
    }

    impl Read for InTwoParts<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.first.is_empty()
                && let Some(between) = self.between.take()
            {
                between();
            }
            if self.first.is_empty() { self.second.read(into) } else { self.first.read(into) }
        }
    }

    #[test]
    fn objects_that_come_at_the_same_time_have_one_bound() {
        let scratch = tempfile::tempdir().unwrap();
        let object = |name: &str, byte: u8, bytes: usize| {
            let from = scratch.path().join(format!("{name}-from"));
            std::fs::create_dir(&from).unwrap();
            std::fs::write(from.join("file"), vec![byte; bytes]).unwrap();
            let root = scratch.path().join(name);
            std::fs::create_dir(&root).unwrap();
            let store = BlobDirectory::open_or_make(root).unwrap();
            let packed = pack(&from).unwrap();
            packed.send(&store, &mut |_| ()).unwrap();
            let tree = list(&store, &packed.digest(), 1 << 30).unwrap();
            let digest = tree.entries().iter().find_map(digest_in).unwrap();
            let mut stored = Vec::new();
            store.open(&digest).unwrap().read_to_end(&mut stored).unwrap();
            (digest, stored)
        };
        let root = scratch.path().join("store");
        std::fs::create_dir(&root).unwrap();
        let store = BlobDirectory::open_or_make(root).unwrap();
        let mut placement = placement(order()).unwrap();
        placement.artifacts = Some(ArtifactRules { paths: vec!["out".into()], required: true });
        let files = ShareFiles { sent_bytes_max: Some(1 << 20), ..ShareFiles::of(&placement, 1) };
        // Each fits, and both do not.
        let (one, first) = object("one", 1, 600 << 10);
        let (two, second) = object("two", 2, 600 << 10);
        let (begun, rest) = second.split_at(second.len() / 2);
        let between: Box<dyn FnOnce() + '_> =
            Box::new(|| files.take_in(&store, &one, &mut first.as_slice()).unwrap());
        let mut coming = InTwoParts { first: begun, between: Some(between), second: rest };
        let taken = files.take_in(&store, &two, &mut coming);
        assert!(matches!(taken, Err(BlobError::TooLarge { .. })), "{taken:?}");
        assert!(store.has(&one).unwrap() && !store.has(&two).unwrap());
        // What was refused takes nothing away from the next one.
        assert_eq!(files.state.lock().sent_bytes, 600 << 10);
        let (three, third) = object("three", 3, 300 << 10);
        assert!(files.take_in(&store, &three, &mut third.as_slice()).is_ok());
    }
}
