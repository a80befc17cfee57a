//! Snapshots on their way from a leader to a replica that needs one.
//!
//! An upload that broke is resumed: the sender asks how many chunks of exactly this snapshot
//! the receiver holds, and goes on from there.
//!
//! **Invariant:** one snapshot is sent and one is received at a time, and no faster than configured.

use super::convert;
use super::transport::Connection;
use crate::environment::Environment;
use crate::snapshots::{AnnouncedSnapshot, ReceiveError, SnapshotPart};
use futures::{Stream, StreamExt};
use muster_store::{SnapshotDigest, SnapshotHandle, SnapshotStore, StoreError, Vote, encode_snapshot_meta};
use muster_wire::raft::v1 as wire;
use muster_wire::raft::v1::snapshot_request::Part;
use openraft::type_config::TypeConfigExt as _;
use openraft::type_config::alias::SnapshotOf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tonic::{Code, Status};

/// Chunks read ahead of the network.
const CHUNKS_AHEAD: usize = 4;
/// An upload of which nothing is heard for this long has ended.
pub(super) const PART_WAIT: Duration = Duration::from_secs(20);

/// The uploads of this replica. Clones share them.
#[derive(Clone)]
pub(crate) struct Uploads(Arc<Shared>);

struct Shared {
    turns: Semaphore,
    running: AtomicUsize,
    bytes_per_s: Option<u64>,
}

/// Counts one upload until it is dropped.
struct Running<'u>(&'u AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Uploads {
    pub(super) fn new(bytes_per_s: Option<u64>) -> Uploads {
        Uploads(Arc::new(Shared { turns: Semaphore::new(1), running: AtomicUsize::new(0), bytes_per_s }))
    }

    /// Whether a peer is being sent a snapshot, or waits for one.
    pub(crate) fn are_running(&self) -> bool {
        self.0.running.load(Ordering::Acquire) > 0
    }
}

/// Why an upload failed.
pub(super) enum UploadError {
    /// The snapshot cannot be read here.
    Read(StoreError),
    /// The network or the receiver.
    Refused(Status),
}

impl From<Status> for UploadError {
    fn from(status: Status) -> Self {
        UploadError::Refused(status)
    }
}

/// One snapshot for one peer.
pub(super) struct Upload<E: Environment, C> {
    pub(super) client: C,
    pub(super) peer: wire::Peer,
    pub(super) vote: Vote,
    pub(super) snapshot: SnapshotOf<E, SnapshotHandle>,
    pub(super) part_wait: Duration,
}

/// Runs what may wait for a disk where it holds up nobody.
async fn blocking<E: Environment, T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    E::spawn_blocking(work).await.map_err(|error| Status::internal(error.to_string()))
}

impl<E: Environment, C: Connection> Upload<E, C> {
    /// Sends what the receiver does not hold, and waits until it is installed.
    pub(super) async fn run(mut self, uploads: &Uploads) -> Result<Vote, UploadError> {
        uploads.0.running.fetch_add(1, Ordering::AcqRel);
        let _running = Running(&uploads.0.running);
        let _turn = uploads.0.turns.acquire().await.map_err(|error| Status::cancelled(error.to_string()))?;
        let meta: bytes::Bytes = encode_snapshot_meta(&self.snapshot.meta).into();
        let digest = digest_to_wire(self.snapshot.snapshot.digest());
        let asked = wire::SnapshotHeldRequest {
            peer: Some(self.peer.clone()),
            meta: meta.clone(),
            digest: Some(digest),
        };
        let held = E::within(self.part_wait, self.client.snapshot_held(asked)).await;
        let held = held.map_err(|_| Status::deadline_exceeded("the receiver does not answer"))??;
        let first_chunk = held.chunks.min(digest.chunks);
        if first_chunk > 0 {
            tracing::info!(first_chunk, chunks = digest.chunks, "the upload of a snapshot goes on");
        }
        let start = wire::SnapshotStart {
            peer: Some(self.peer.clone()),
            vote: Some(convert::vote_to_wire(&self.vote)),
            meta,
            first_chunk,
            digest: Some(digest),
        };
        let (parts, outbound) = mpsc::channel(CHUNKS_AHEAD);
        let handle = self.snapshot.snapshot.clone();
        let reading = E::spawn(send_parts::<E>(handle, start, parts, uploads.0.bytes_per_s));
        let outbound = tokio_stream::wrappers::ReceiverStream::new(outbound);
        let uploaded = self.client.install_snapshot(outbound.boxed()).await;
        if let Ok(Err(error)) = reading.await {
            return Err(error);
        }
        Ok(convert::vote(uploaded?.vote)?)
    }
}

/// Reads a snapshot into the upload until it is complete or nobody listens any more.
async fn send_parts<E: Environment>(
    snapshot: SnapshotHandle,
    start: wire::SnapshotStart,
    parts: mpsc::Sender<wire::SnapshotRequest>,
    bytes_per_s: Option<u64>,
) -> Result<(), UploadError> {
    let send = async |part| parts.send(wire::SnapshotRequest { part: Some(part) }).await.is_ok();
    let mut number = start.first_chunk;
    if !send(Part::Start(start)).await {
        return Ok(());
    }
    let began = E::instant();
    let mut sent_bytes: u64 = 0;
    let opened = blocking::<E, _>(move || snapshot.chunks_from(number)).await?;
    let mut chunks = opened.map_err(UploadError::Read)?;
    loop {
        let (chunk, rest) = blocking::<E, _>(move || (chunks.next(), chunks)).await?;
        chunks = rest;
        let Some(chunk) = chunk else { break };
        let content = chunk.map_err(UploadError::Read)?;
        sent_bytes += content.len() as u64;
        let SnapshotPart { number: place, content, checksum } = SnapshotPart::new(number, content);
        if !send(Part::Chunk(wire::SnapshotChunk { number: place, content, checksum })).await {
            return Ok(());
        }
        number += 1;
        if let Some(bytes_per_s) = bytes_per_s {
            // Arithmetic in microseconds; a snapshot has less than 2^64 of them at any rate.
            let micros = u128::from(sent_bytes) * 1_000_000 / u128::from(bytes_per_s.max(1));
            let due = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
            let passed = E::instant().saturating_duration_since(began);
            E::pause(due.saturating_sub(passed).min(PART_WAIT / 2)).await;
        }
    }
    send(Part::End(wire::SnapshotEnd { chunks: number })).await;
    Ok(())
}

fn digest_to_wire(digest: SnapshotDigest) -> wire::SnapshotDigest {
    wire::SnapshotDigest { chunks: digest.chunks, bytes: digest.bytes, checksum: digest.checksum }
}

/// What a sender says of a snapshot.
pub(super) fn announced(
    meta: &bytes::Bytes,
    digest: Option<wire::SnapshotDigest>,
) -> Result<AnnouncedSnapshot, Status> {
    let digest = digest.ok_or_else(|| convert::missing("digest"))?;
    let digest = SnapshotDigest { chunks: digest.chunks, bytes: digest.bytes, checksum: digest.checksum };
    AnnouncedSnapshot::new(meta, digest)
        .map_err(|error| Status::invalid_argument(format!("the description cannot be decoded: {error}")))
}

/// Receives the rest, from `first_chunk` on. What arrived of one that ends early is kept.
pub(super) async fn receive<E: Environment>(
    announced: AnnouncedSnapshot,
    snapshots: SnapshotStore,
    first_chunk: u64,
    mut inbound: impl Stream<Item = Result<wire::SnapshotRequest, Status>> + Unpin + Send,
) -> Result<SnapshotHandle, Status> {
    let begun = blocking::<E, _>(move || announced.receive(&snapshots, first_chunk)).await?;
    let mut receiver = begun.map_err(|error| refused(&error))?;
    loop {
        let message = E::within(PART_WAIT, inbound.next()).await;
        let message = message.map_err(|_| Status::deadline_exceeded("nothing more of the snapshot came"))?;
        match message.transpose()?.and_then(|message| message.part) {
            Some(Part::Chunk(wire::SnapshotChunk { number, content, checksum })) => {
                let part = SnapshotPart { number, content, checksum };
                let taken = blocking::<E, _>(move || receiver.take(&part).map(|()| receiver)).await?;
                receiver = taken.map_err(|error| refused(&error))?;
            }
            Some(Part::End(end)) => {
                let finished = blocking::<E, _>(move || receiver.finish(end.chunks)).await?;
                return finished.map_err(|error| refused(&error));
            }
            Some(Part::Start(_)) => {
                return Err(refused(&ReceiveError::Unfit("a snapshot begins inside another".to_owned())));
            }
            None => return Err(refused(&ReceiveError::Cut)),
        }
    }
}

fn refused(error: &ReceiveError) -> Status {
    let code = match error {
        ReceiveError::Gap | ReceiveError::Cut => Code::Aborted,
        ReceiveError::Unfit(_) => Code::InvalidArgument,
        ReceiveError::Damaged(_) => Code::DataLoss,
        ReceiveError::Storage(_) => Code::Internal,
    };
    Status::new(code, error.to_string())
}
