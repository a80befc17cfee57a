//! Receives a snapshot, chunk by chunk, over any transport.
//!
//! **Invariant:** a snapshot is passed on only when all of it is there, durable, and comes to the digest it
//! was announced with; until then nothing of the replica has changed.
//! **Invariant:** what was received of one that broke off is kept, and goes on only with the very same
//! snapshot.

use bytes::Bytes;
use muster_store::{
    CodecError, SnapshotDigest, SnapshotHandle, SnapshotMeta, SnapshotStore, SnapshotWriter, StoreError,
    decode_snapshot_meta,
};
use thiserror::Error;

/// Why a part of a snapshot is not taken.
#[derive(Debug, Error)]
pub enum ReceiveError {
    /// The sender goes on behind what is held here.
    #[error("this replica does not hold the chunks before these")]
    Gap,
    /// The parts do not fit one another or what was announced.
    #[error("{0}")]
    Unfit(String),
    /// What arrived is not what was sent.
    #[error("{0}")]
    Damaged(String),
    /// Nothing more came.
    #[error("the snapshot ended early")]
    Cut,
    /// It cannot be stored here.
    #[error("storing the snapshot failed: {0}")]
    Storage(#[source] StoreError),
}

/// One chunk on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotPart {
    /// Its place, from 0.
    pub number: u64,
    /// Its bytes; never empty.
    pub content: Bytes,
    /// CRC-32 of them.
    pub checksum: u32,
}

impl SnapshotPart {
    /// A chunk as it is sent.
    #[must_use]
    pub fn new(number: u64, content: Bytes) -> SnapshotPart {
        let checksum = crc32fast::hash(&content);
        SnapshotPart { number, content, checksum }
    }
}

/// Which snapshot is meant.
#[derive(Clone, Debug)]
pub struct AnnouncedSnapshot {
    meta: SnapshotMeta,
    digest: SnapshotDigest,
    key: Bytes,
}

impl AnnouncedSnapshot {
    /// By its encoded description and what its content comes to.
    ///
    /// # Errors
    /// When the description is none.
    pub fn new(meta: &[u8], digest: SnapshotDigest) -> Result<AnnouncedSnapshot, CodecError> {
        let decoded = decode_snapshot_meta(meta)?;
        let mut key = meta.to_vec();
        key.extend_from_slice(&digest.chunks.to_le_bytes());
        key.extend_from_slice(&digest.bytes.to_le_bytes());
        key.extend_from_slice(&digest.checksum.to_le_bytes());
        Ok(AnnouncedSnapshot { meta: decoded, digest, key: key.into() })
    }

    /// What the snapshot covers.
    pub(crate) fn meta(&self) -> &SnapshotMeta {
        &self.meta
    }

    /// How many chunks of it are held here.
    #[must_use]
    pub fn held(&self, snapshots: &SnapshotStore) -> u64 {
        let Some(writer) = snapshots.take_partial(&self.key) else { return 0 };
        let chunks = writer.chunks();
        snapshots.keep_partial(writer, self.key.clone());
        chunks
    }

    /// Begins to receive it, or goes on from `first_chunk`.
    ///
    /// # Errors
    /// When the chunks before that are not here, or the disk is full.
    pub fn receive(
        self,
        snapshots: &SnapshotStore,
        first_chunk: u64,
    ) -> Result<SnapshotReceiver, ReceiveError> {
        let writer = match snapshots.take_partial(&self.key) {
            Some(writer) if writer.chunks() == first_chunk => writer,
            _ if first_chunk > 0 => return Err(ReceiveError::Gap),
            _ => snapshots.create(self.meta.clone()).map_err(ReceiveError::Storage)?,
        };
        Ok(SnapshotReceiver { announced: self, snapshots: snapshots.clone(), writer: Some(writer) })
    }
}

/// A snapshot that is being received. What arrived is kept when it is dropped before its end.
pub struct SnapshotReceiver {
    announced: AnnouncedSnapshot,
    snapshots: SnapshotStore,
    /// None once it is complete or good for nothing.
    writer: Option<SnapshotWriter>,
}

impl Drop for SnapshotReceiver {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            self.snapshots.keep_partial(writer, self.announced.key.clone());
        }
    }
}

impl SnapshotReceiver {
    /// Takes the next chunk.
    ///
    /// # Errors
    /// When it is not the next one, is damaged or cannot be stored.
    pub fn take(&mut self, part: &SnapshotPart) -> Result<(), ReceiveError> {
        let Some(writer) = &mut self.writer else { return Err(ReceiveError::Cut) };
        check_part(writer, &self.announced.digest, part)?;
        if let Err(error) = writer.write(&part.content) {
            // After a failed write nothing of it is good any more.
            self.writer = None;
            return Err(ReceiveError::Storage(error));
        }
        Ok(())
    }

    /// All of it is there, says the sender.
    ///
    /// # Errors
    /// When it is not, or cannot be made durable.
    pub fn finish(mut self, chunks: u64) -> Result<SnapshotHandle, ReceiveError> {
        let digest = self.announced.digest;
        let complete =
            self.writer.as_ref().is_some_and(|writer| chunks == writer.chunks() && chunks == digest.chunks);
        let Some(writer) = (if complete { self.writer.take() } else { None }) else {
            return Err(ReceiveError::Unfit("the parts of the snapshot do not fit together".to_owned()));
        };
        let handle = writer.finish().map_err(ReceiveError::Storage)?;
        if handle.digest() != digest {
            let text = "the snapshot is not the one that was announced";
            return Err(ReceiveError::Damaged(text.to_owned()));
        }
        Ok(handle)
    }
}

fn check_part(
    writer: &SnapshotWriter,
    digest: &SnapshotDigest,
    part: &SnapshotPart,
) -> Result<(), ReceiveError> {
    if part.number != writer.chunks() || part.number >= digest.chunks {
        let text = format!("chunk {} came where chunk {} was due", part.number, writer.chunks());
        return Err(ReceiveError::Unfit(text));
    }
    // The store cuts larger ones, and would count them differently.
    if part.content.is_empty() || writer.bytes() + part.content.len() as u64 > digest.bytes {
        let text = "a chunk is empty or larger than what was announced";
        return Err(ReceiveError::Unfit(text.to_owned()));
    }
    if crc32fast::hash(&part.content) != part.checksum {
        return Err(ReceiveError::Damaged(format!("the checksum of chunk {} does not hold", part.number)));
    }
    Ok(())
}
