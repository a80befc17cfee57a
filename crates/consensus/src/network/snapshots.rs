//! Snapshots on their way from a leader to a replica that needs one.
//!
//! An upload that broke is not begun anew: the sender asks how many chunks of exactly this snapshot
//! the receiver holds, and goes on from there.
//!
//! **Invariant:** a snapshot is handed on only when all of it is there, durable, and comes to the
//! digest it was announced with; until then nothing of the replica has changed.
//! **Invariant:** one snapshot is sent and one is received at a time, and no faster than configured.

use super::convert;
use muster_store::{
    RaftConfig, SnapshotDigest, SnapshotHandle, SnapshotMeta, SnapshotStore, SnapshotWriter, StoreError,
    Vote, decode_snapshot_meta, encode_snapshot_meta,
};
use muster_wire::raft::v1 as wire;
use muster_wire::raft::v1::raft_service_client::RaftServiceClient;
use muster_wire::raft::v1::snapshot_request::Part;
use openraft::type_config::alias::SnapshotOf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};
use tonic::transport::Channel;
use tonic::{Status, Streaming};

/// Chunks read ahead of the network, and received ahead of the disk.
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

/// Counted while it lives.
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
pub(super) struct Upload {
    pub(super) client: RaftServiceClient<Channel>,
    pub(super) peer: wire::Peer,
    pub(super) vote: Vote,
    pub(super) snapshot: SnapshotOf<RaftConfig, SnapshotHandle>,
    pub(super) part_wait: Duration,
}

impl Upload {
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
        let held = tokio::time::timeout(self.part_wait, self.client.snapshot_held(asked)).await;
        let held = held.map_err(|_| Status::deadline_exceeded("the receiver does not answer"))??;
        let first_chunk = held.into_inner().chunks.min(digest.chunks);
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
        let bytes_per_s = uploads.0.bytes_per_s;
        let reading = tokio::task::spawn_blocking(move || send_parts(&handle, start, &parts, bytes_per_s));
        let outbound = tokio_stream::wrappers::ReceiverStream::new(outbound);
        let uploaded = self.client.install_snapshot(outbound).await;
        if let Ok(Err(error)) = reading.await {
            return Err(UploadError::Read(error));
        }
        Ok(convert::vote(uploaded?.into_inner().vote)?)
    }
}

/// Reads a snapshot into the upload until it is complete or nobody listens any more.
fn send_parts(
    snapshot: &SnapshotHandle,
    start: wire::SnapshotStart,
    parts: &mpsc::Sender<wire::SnapshotRequest>,
    bytes_per_s: Option<u64>,
) -> Result<(), StoreError> {
    let send = |part| parts.blocking_send(wire::SnapshotRequest { part: Some(part) }).is_ok();
    let mut number = start.first_chunk;
    if !send(Part::Start(start)) {
        return Ok(());
    }
    let began = Instant::now();
    let mut sent_bytes: u64 = 0;
    for chunk in snapshot.chunks_from(number)? {
        let content = chunk?;
        let checksum = crc32fast::hash(&content);
        sent_bytes += content.len() as u64;
        if !send(Part::Chunk(wire::SnapshotChunk { number, content, checksum })) {
            return Ok(());
        }
        number += 1;
        if let Some(bytes_per_s) = bytes_per_s {
            // Arithmetic in microseconds; a snapshot has less than 2^64 of them at any rate.
            let micros = u128::from(sent_bytes) * 1_000_000 / u128::from(bytes_per_s.max(1));
            let due = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
            std::thread::sleep(due.saturating_sub(began.elapsed()).min(PART_WAIT / 2));
        }
    }
    send(Part::End(wire::SnapshotEnd { chunks: number }));
    Ok(())
}

fn digest_to_wire(digest: SnapshotDigest) -> wire::SnapshotDigest {
    wire::SnapshotDigest { chunks: digest.chunks, bytes: digest.bytes, checksum: digest.checksum }
}

/// Which snapshot is meant.
pub(super) struct Announced {
    pub(super) meta: SnapshotMeta,
    digest: SnapshotDigest,
    key: bytes::Bytes,
}

impl Announced {
    pub(super) fn new(meta: &bytes::Bytes, digest: Option<wire::SnapshotDigest>) -> Result<Self, Status> {
        let digest = digest.ok_or_else(|| convert::missing("digest"))?;
        let decoded = decode_snapshot_meta(meta).map_err(|error| {
            Status::invalid_argument(format!("the description cannot be decoded: {error}"))
        })?;
        let mut key = meta.to_vec();
        key.extend_from_slice(&digest.chunks.to_le_bytes());
        key.extend_from_slice(&digest.bytes.to_le_bytes());
        key.extend_from_slice(&digest.checksum.to_le_bytes());
        let digest = SnapshotDigest { chunks: digest.chunks, bytes: digest.bytes, checksum: digest.checksum };
        Ok(Announced { meta: decoded, digest, key: key.into() })
    }

    /// How many chunks of it are held here.
    pub(super) fn held(&self, snapshots: &SnapshotStore) -> u64 {
        let Some(writer) = snapshots.take_partial(&self.key) else { return 0 };
        let chunks = writer.chunks();
        snapshots.keep_partial(writer, self.key.clone());
        chunks
    }

    /// Receives the rest, from `first_chunk` on.
    pub(super) async fn receive(
        self,
        snapshots: SnapshotStore,
        first_chunk: u64,
        mut inbound: Streaming<wire::SnapshotRequest>,
    ) -> Result<SnapshotHandle, Status> {
        let (parts, received) = mpsc::channel(CHUNKS_AHEAD);
        let writing = tokio::task::spawn_blocking(move || self.write(&snapshots, first_chunk, received));
        // Why the input ended, where that was not the sender's wish.
        let mut broken = None;
        loop {
            let part = match tokio::time::timeout(PART_WAIT, inbound.message()).await {
                Ok(Ok(Some(message))) => message.part,
                Ok(Ok(None)) => None,
                Ok(Err(status)) => {
                    broken = Some(status);
                    None
                }
                Err(_) => {
                    broken = Some(Status::deadline_exceeded("nothing more of the snapshot came"));
                    None
                }
            };
            let Some(part) = part else { break };
            if parts.send(part).await.is_err() {
                break;
            }
        }
        drop(parts);
        let written = writing.await.map_err(internal)?;
        written.map_err(|status| broken.unwrap_or(status))
    }

    /// Writes what arrives, and returns it only when it is complete, durable and what was announced.
    /// What arrived of one that ends early is kept.
    fn write(
        self,
        snapshots: &SnapshotStore,
        first_chunk: u64,
        mut parts: mpsc::Receiver<Part>,
    ) -> Result<SnapshotHandle, Status> {
        let mut writer = match snapshots.take_partial(&self.key) {
            Some(writer) if writer.chunks() == first_chunk => writer,
            _ if first_chunk > 0 => {
                return Err(Status::aborted("this replica does not hold the chunks before these"));
            }
            _ => snapshots.create(self.meta).map_err(internal)?,
        };
        loop {
            let refused = match parts.blocking_recv() {
                Some(Part::Chunk(chunk)) => match check_chunk(&writer, &self.digest, &chunk) {
                    Ok(()) => {
                        // After a failed write nothing of it is good any more.
                        writer.write(&chunk.content).map_err(internal)?;
                        continue;
                    }
                    Err(status) => status,
                },
                Some(Part::End(end)) if end.chunks == writer.chunks() && end.chunks == self.digest.chunks => {
                    let handle = writer.finish().map_err(internal)?;
                    if handle.digest() == self.digest {
                        return Ok(handle);
                    }
                    return Err(Status::data_loss("the snapshot is not the one that was announced"));
                }
                Some(Part::End(_) | Part::Start(_)) => {
                    Status::invalid_argument("the parts of the snapshot do not fit together")
                }
                None => Status::aborted("the snapshot ended early"),
            };
            snapshots.keep_partial(writer, self.key);
            return Err(refused);
        }
    }
}

fn check_chunk(
    writer: &SnapshotWriter,
    digest: &SnapshotDigest,
    chunk: &wire::SnapshotChunk,
) -> Result<(), Status> {
    if chunk.number != writer.chunks() || chunk.number >= digest.chunks {
        let text = format!("chunk {} came where chunk {} was due", chunk.number, writer.chunks());
        return Err(Status::invalid_argument(text));
    }
    // The store cuts larger ones, and would count them differently.
    if chunk.content.is_empty() || writer.bytes() + chunk.content.len() as u64 > digest.bytes {
        return Err(Status::invalid_argument("a chunk is empty or larger than what was announced"));
    }
    if crc32fast::hash(&chunk.content) != chunk.checksum {
        return Err(Status::data_loss(format!("the checksum of chunk {} does not hold", chunk.number)));
    }
    Ok(())
}

fn internal(error: impl std::fmt::Display) -> Status {
    Status::internal(format!("storing the snapshot failed: {error}"))
}
