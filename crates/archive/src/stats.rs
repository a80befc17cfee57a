//! What an archive takes on its disk, and what it would take uncompressed.

use crate::archive::Archive;
use crate::base;
use crate::error::ArchiveError;
use crate::object::ObjectStore;
use crate::pack::{BLOCK_HEADER_BYTES, block_header};
use crate::segment;

/// Bytes of some objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// How many objects.
    pub objects: u64,
    /// Their bytes in the store.
    pub stored_bytes: u64,
    /// Bytes before they were compressed.
    pub plain_bytes: u64,
}

/// Sizes of an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Of its segments.
    pub segments: Sizes,
    /// Of its bases.
    pub bases: Sizes,
}

/// Bytes of packed blocks from `from` to `to` of an object before they were compressed, by their headers alone.
fn plain_bytes(store: &dyn ObjectStore, object: &str, from: u64, to: u64) -> Result<u64, ArchiveError> {
    let (mut at, mut plain) = (from, 0);
    while at < to {
        let bytes = store.get(object, at, BLOCK_HEADER_BYTES);
        let bytes = bytes.map_err(|source| ArchiveError::store("reading", object, source))?;
        let header = block_header(&bytes).map_err(|error| ArchiveError::damaged(object, error.text()))?;
        plain += header.plain as u64;
        at = at.saturating_add((BLOCK_HEADER_BYTES + header.stored) as u64);
    }
    Ok(plain)
}

impl Archive {
    /// Adds up what its objects take. Reads the headers in them and not what they hold, so that a large archive is
    /// measured in seconds and no checksum is compared.
    ///
    /// # Errors
    /// When an object cannot be read or is not one of an archive.
    pub fn stats(&self) -> Result<Stats, ArchiveError> {
        let mut stats = Stats::default();
        let segments = self.catalog().segments().to_vec();
        for name in segments {
            let object = name.object();
            let head = self.store.get(&object, 0, segment::HEADER_BYTES);
            let head = head.map_err(|source| ArchiveError::store("reading", &object, source))?;
            segment::parse_header(&object, &head)?;
            let begins = segment::HEADER_BYTES as u64;
            let plain = begins + plain_bytes(self.store.as_ref(), &object, begins, name.bytes)?;
            stats.segments.add(name.bytes, plain);
        }
        for name in self.bases() {
            stats.bases.add(name.bytes, base::plain_bytes(self.store.as_ref(), &name, plain_bytes)?);
        }
        Ok(stats)
    }
}

impl Sizes {
    fn add(&mut self, stored_bytes: u64, plain_bytes: u64) {
        self.objects += 1;
        self.stored_bytes += stored_bytes;
        self.plain_bytes += plain_bytes;
    }
}
