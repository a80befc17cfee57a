//! Snapshots on their way from a leader to a replica that needs one.
//!
//! An upload that broke is not begun anew: the sender asks how many chunks of exactly this snapshot
//! the receiver holds, and goes on from there.
//!
//! **Invariant:** one snapshot is sent and one is received at a time, and no faster than configured.

use super::convert;
use crate::reception::{Announced, ReceptionError, SnapshotPart};
use muster_store::{
    RaftConfig, SnapshotDigest, SnapshotHandle, SnapshotStore, StoreError, Vote, encode_snapshot_meta,
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
use tonic::{Code, Status, Streaming};

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
        sent_bytes += content.len() as u64;
        let SnapshotPart { number: place, content, checksum } = SnapshotPart::new(number, content);
        if !send(Part::Chunk(wire::SnapshotChunk { number: place, content, checksum })) {
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

/// What a sender says of a snapshot.
pub(super) fn announced(
    meta: &bytes::Bytes,
    digest: Option<wire::SnapshotDigest>,
) -> Result<Announced, Status> {
    let digest = digest.ok_or_else(|| convert::missing("digest"))?;
    let digest = SnapshotDigest { chunks: digest.chunks, bytes: digest.bytes, checksum: digest.checksum };
    Announced::new(meta, digest)
        .map_err(|error| Status::invalid_argument(format!("the description cannot be decoded: {error}")))
}

/// Receives the rest, from `first_chunk` on.
pub(super) async fn receive(
    announced: Announced,
    snapshots: SnapshotStore,
    first_chunk: u64,
    mut inbound: Streaming<wire::SnapshotRequest>,
) -> Result<SnapshotHandle, Status> {
    let (parts, received) = mpsc::channel(CHUNKS_AHEAD);
    let writing = tokio::task::spawn_blocking(move || write(announced, &snapshots, first_chunk, received));
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
    let written = writing.await.map_err(|error| Status::internal(error.to_string()))?;
    written.map_err(|error| broken.unwrap_or_else(|| refused(&error)))
}

/// Writes what arrives. What arrived of one that ends early is kept.
fn write(
    announced: Announced,
    snapshots: &SnapshotStore,
    first_chunk: u64,
    mut parts: mpsc::Receiver<Part>,
) -> Result<SnapshotHandle, ReceptionError> {
    let mut reception = announced.receive(snapshots, first_chunk)?;
    loop {
        match parts.blocking_recv() {
            Some(Part::Chunk(wire::SnapshotChunk { number, content, checksum })) => {
                reception.take(&SnapshotPart { number, content, checksum })?;
            }
            Some(Part::End(end)) => return reception.finish(end.chunks),
            Some(Part::Start(_)) => {
                return Err(ReceptionError::Unfit("a snapshot begins inside another".to_owned()));
            }
            None => return Err(ReceptionError::Cut),
        }
    }
}

fn refused(error: &ReceptionError) -> Status {
    let code = match error {
        ReceptionError::Gap | ReceptionError::Cut => Code::Aborted,
        ReceptionError::Unfit(_) => Code::InvalidArgument,
        ReceptionError::Damaged(_) => Code::DataLoss,
        ReceptionError::Storage(_) => Code::Internal,
    };
    Status::new(code, error.to_string())
}
