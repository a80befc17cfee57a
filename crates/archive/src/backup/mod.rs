//! One file that holds one applied state of a cluster.
//!
//! ```text
//! magic "MSBK" · layout u32 · header length u32 · header · CRC-32 of all before
//! piece: length u32 (not 0) · CRC-32 of number and bytes · bytes      as often as needed
//! end:   length 0 · pieces u64 · bytes u64 · CRC-32 of all piece checksums · CRC-32 of the end
//! ```
//! Numbers are little-endian. The pieces together are the state's own snapshot; this module does not
//! look into them. A file is written under a temporary name, flushed, and only then given its own.
//!
//! **Invariant:** a file under its own name is complete: it was flushed before it was named.
//! **Invariant:** a reader gives out exactly the bytes that were written, or an error; no bytes make it
//! panic or take more memory than one piece may have.

mod error;
mod reader;
mod writer;

pub use error::BackupError;
pub use reader::{BackupReader, Verified};
pub use writer::{BackupWriter, Written};

use muster_types::ClusterId;

const MAGIC: [u8; 4] = *b"MSBK";
/// The layout this release writes, and the newest it reads.
pub const LAYOUT: u32 = 1;
/// Bytes of one piece.
pub const PIECE_BYTES_MAX: usize = 4 << 20;
/// Bytes of the release's name in a header.
pub const VERSION_BYTES_MAX: usize = 64;
/// Fixed fields, the version's length and the version.
const HEADER_BYTES_MAX: usize = 16 + 4 + 8 + 8 + 8 + 2 + 8 + 8 + 1 + VERSION_BYTES_MAX;

/// What a backup holds, and where it is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupHeader {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// Its generation; a restored cluster begins a higher one.
    pub cluster_generation: u32,
    /// The record up to which it is complete.
    pub log_index: u64,
    /// Log time of that record, in milliseconds since the Unix epoch.
    pub log_time_ms: u64,
    /// Digest of the state.
    pub state_digest: u64,
    /// The record format in force.
    pub format: u16,
    /// The replica it was taken from.
    pub replica_id: u64,
    /// When it was taken, by the clock of the host that took it, in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// The release of the replica; at most [`VERSION_BYTES_MAX`] bytes of it are kept.
    pub version: String,
}

impl BackupHeader {
    fn encode(&self) -> Vec<u8> {
        let mut version_end = self.version.len().min(VERSION_BYTES_MAX);
        while !self.version.is_char_boundary(version_end) {
            version_end -= 1;
        }
        let version = &self.version.as_bytes()[..version_end];
        let mut out = Vec::with_capacity(HEADER_BYTES_MAX);
        out.extend_from_slice(&self.cluster_id.0.to_le_bytes());
        out.extend_from_slice(&self.cluster_generation.to_le_bytes());
        out.extend_from_slice(&self.log_index.to_le_bytes());
        out.extend_from_slice(&self.log_time_ms.to_le_bytes());
        out.extend_from_slice(&self.state_digest.to_le_bytes());
        out.extend_from_slice(&self.format.to_le_bytes());
        out.extend_from_slice(&self.replica_id.to_le_bytes());
        out.extend_from_slice(&self.created_at_ms.to_le_bytes());
        out.push(version.len() as u8);
        out.extend_from_slice(version);
        out
    }

    fn decode(bytes: &[u8]) -> Option<BackupHeader> {
        fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
            let (taken, behind) = rest.split_first_chunk::<N>()?;
            *rest = behind;
            Some(*taken)
        }
        let rest = &mut &*bytes;
        let mut header = BackupHeader {
            cluster_id: ClusterId(u128::from_le_bytes(take(rest)?)),
            cluster_generation: u32::from_le_bytes(take(rest)?),
            log_index: u64::from_le_bytes(take(rest)?),
            log_time_ms: u64::from_le_bytes(take(rest)?),
            state_digest: u64::from_le_bytes(take(rest)?),
            format: u16::from_le_bytes(take(rest)?),
            replica_id: u64::from_le_bytes(take(rest)?),
            created_at_ms: u64::from_le_bytes(take(rest)?),
            version: String::new(),
        };
        let [length] = take::<1>(rest)?;
        if usize::from(length) != rest.len() {
            return None;
        }
        std::str::from_utf8(rest).ok()?.clone_into(&mut header.version);
        Some(header)
    }
}

/// Its place in the file is part of what a piece's checksum covers, so that pieces cannot be swapped.
fn piece_checksum(number: u64, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}
