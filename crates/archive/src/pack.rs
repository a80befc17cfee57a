//! Bytes as they are stored: in blocks, each compressed on its own.
//!
//! ```text
//! block   how u8 (0 as it is, 1 deflate), stored length u32, plain length u32, crc u32, stored bytes
//! ```
//! Little-endian; the checksum covers the lengths and the stored bytes. The checksums of a segment or a base
//! cover what is in it before it is compressed, so that they hold from the one who wrote it to the one who reads.
//!
//! **Invariant:** no byte is decompressed before the checksum of its block held, and nothing is decompressed into more
//! bytes than the bound that the reader names.

use bytes::Bytes;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::codec::Reader;

/// Bytes of a block before it is compressed. Deflate looks back 32 KiB: larger blocks would be no smaller.
pub(crate) const BLOCK_BYTES_MAX: usize = 1 << 20;
pub(crate) const BLOCK_HEADER_BYTES: usize = 1 + 4 + 4 + 4;
/// The level of deflate: higher ones take several times as long and save nothing on records.
const LEVEL: u32 = 4;
const AS_IT_IS: u8 = 0;
const DEFLATE: u8 = 1;

/// Why packed bytes cannot be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unpacked {
    /// They end within a block.
    Short,
    /// A length is none that a block can have.
    Length,
    /// The checksum of a block does not hold.
    Checksum,
    /// The content of a block is not what its header says.
    Content,
    /// All blocks together are larger than the bound.
    TooLarge,
}

impl Unpacked {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Unpacked::Short => "a block of it ends too early",
            Unpacked::Length => "a block of it has a length that none has",
            Unpacked::Checksum => "the checksum of a block does not hold",
            Unpacked::Content => "a block of it does not hold what its header says",
            Unpacked::TooLarge => "its blocks are larger together than any that was written",
        }
    }
}

/// What a block says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    how: u8,
    pub(crate) stored: usize,
    pub(crate) plain: usize,
    checksum: u32,
}

fn checksum(lengths: &[u8], stored: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(lengths);
    hasher.update(stored);
    hasher.finalize()
}

/// A whole block in deflate, where that is smaller than it is.
fn deflated(plain: &[u8]) -> Option<Vec<u8>> {
    let mut stored = Vec::with_capacity(plain.len());
    let mut deflate = Compress::new(Compression::new(LEVEL), false);
    // The vector does not grow: content that does not become smaller does not fit.
    let status = deflate.compress_vec(plain, &mut stored, FlushCompress::Finish).ok()?;
    (status == Status::StreamEnd && stored.len() < plain.len()).then_some(stored)
}

/// Appends `plain` to `out`, block by block.
pub(crate) fn pack(out: &mut Vec<u8>, plain: &[u8]) {
    for block in plain.chunks(BLOCK_BYTES_MAX) {
        let deflated = deflated(block);
        let (how, stored) = match &deflated {
            Some(stored) => (DEFLATE, stored.as_slice()),
            None => (AS_IT_IS, block),
        };
        let begins = out.len();
        out.push(how);
        out.extend_from_slice(&(stored.len() as u32).to_le_bytes());
        out.extend_from_slice(&(block.len() as u32).to_le_bytes());
        let checksum = checksum(&out[begins..], stored);
        out.extend_from_slice(&checksum.to_le_bytes());
        out.extend_from_slice(stored);
    }
}

/// The header of a block, when it is one that a block can have.
pub(crate) fn block_header(bytes: &[u8]) -> Result<BlockHeader, Unpacked> {
    let mut reader = Reader(bytes);
    let parse = |reader: &mut Reader<'_>| {
        let how = reader.u8()?;
        let (stored, plain) = (reader.u32()? as usize, reader.u32()? as usize);
        Some(BlockHeader { how, stored, plain, checksum: reader.u32()? })
    };
    let header = parse(&mut reader).ok_or(Unpacked::Short)?;
    let fits = match header.how {
        AS_IT_IS => header.stored == header.plain,
        DEFLATE => header.stored < header.plain,
        _ => false,
    };
    if fits && (1..=BLOCK_BYTES_MAX).contains(&header.plain) { Ok(header) } else { Err(Unpacked::Length) }
}

/// Appends the content of the first block of `bytes` to `out`; the rest of `bytes`.
fn unpack_block<'a>(out: &mut Vec<u8>, bytes: &'a [u8], bytes_max: usize) -> Result<&'a [u8], Unpacked> {
    let header = block_header(bytes)?;
    let (lengths, rest) = bytes.split_at_checked(BLOCK_HEADER_BYTES).ok_or(Unpacked::Short)?;
    let (stored, rest) = rest.split_at_checked(header.stored).ok_or(Unpacked::Short)?;
    if checksum(&lengths[..BLOCK_HEADER_BYTES - 4], stored) != header.checksum {
        return Err(Unpacked::Checksum);
    }
    let begins = out.len();
    if header.plain > bytes_max.saturating_sub(begins) {
        return Err(Unpacked::TooLarge);
    }
    if header.how == AS_IT_IS {
        out.extend_from_slice(stored);
        return Ok(rest);
    }
    out.resize(begins + header.plain, 0);
    let mut inflate = Decompress::new(false);
    let status = inflate.decompress(stored, &mut out[begins..], FlushDecompress::Finish);
    let whole = matches!(status, Ok(Status::StreamEnd))
        && inflate.total_in() == header.stored as u64
        && inflate.total_out() == header.plain as u64;
    if whole { Ok(rest) } else { Err(Unpacked::Content) }
}

/// What was packed, which has at most `bytes_max` bytes.
pub(crate) fn unpack(mut bytes: &[u8], bytes_max: usize) -> Result<Bytes, Unpacked> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        bytes = unpack_block(&mut out, bytes, bytes_max)?;
    }
    Ok(Bytes::from(out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes that repeat themselves more or less, as records do.
    fn content() -> impl Strategy<Value = Vec<u8>> {
        let part = (proptest::collection::vec(any::<u8>(), 0..40), 1usize..200);
        proptest::collection::vec(part, 0..12)
            .prop_map(|parts| parts.into_iter().flat_map(|(bytes, times)| bytes.repeat(times)).collect())
    }

    /// A block with a checksum that holds, whatever it says.
    fn forged(how: u8, plain: u32, stored: &[u8]) -> Vec<u8> {
        let mut bytes = vec![how];
        bytes.extend_from_slice(&(stored.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&plain.to_le_bytes());
        let checksum = checksum(&bytes, stored);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(stored);
        bytes
    }

    proptest! {
        #[test]
        fn what_was_packed_comes_out(content in content()) {
            let mut packed = Vec::new();
            pack(&mut packed, &content);
            prop_assert_eq!(unpack(&packed, content.len()), Ok(Bytes::from(content.clone())));
            if !content.is_empty() {
                prop_assert_eq!(unpack(&packed, content.len() - 1), Err(Unpacked::TooLarge));
            }
        }

        #[test]
        fn a_changed_byte_is_seen(content in content(), at in any::<usize>(), with in 1u8..) {
            let mut packed = Vec::new();
            pack(&mut packed, &content);
            prop_assume!(!packed.is_empty());
            let at = at % packed.len();
            packed[at] ^= with;
            prop_assert!(unpack(&packed, content.len()).is_err());
        }

        #[test]
        fn no_bytes_make_it_panic_or_exceed_its_bound(bytes in proptest::collection::vec(any::<u8>(), 0..300), bytes_max in 0usize..4_000) {
            if let Ok(out) = unpack(&bytes, bytes_max) {
                prop_assert!(out.len() <= bytes_max);
            }
        }

        /// The checksum is the writer's own, so the content is his as well.
        #[test]
        fn a_hostile_block_is_held_to_its_bound(
            stored in proptest::collection::vec(any::<u8>(), 0..200),
            how in 0u8..3,
            plain in prop_oneof![0u32..2_000, any::<u32>()],
            bytes_max in 0usize..4_000,
        ) {
            if let Ok(out) = unpack(&forged(how, plain, &stored), bytes_max) {
                prop_assert!(out.len() <= bytes_max && out.len() == plain as usize);
            }
        }
    }

    /// A few bytes that would become very many.
    #[test]
    fn a_bomb_does_not_go_off() {
        let zeros = vec![0u8; BLOCK_BYTES_MAX];
        let bomb = deflated(&zeros).unwrap();
        assert!(bomb.len() < BLOCK_BYTES_MAX / 500, "{}", bomb.len());
        let honest = forged(DEFLATE, BLOCK_BYTES_MAX as u32, &bomb);
        assert_eq!(unpack(&honest, BLOCK_BYTES_MAX).map(|out| out.len()), Ok(BLOCK_BYTES_MAX));
        assert_eq!(unpack(&honest.repeat(3), 2 * BLOCK_BYTES_MAX), Err(Unpacked::TooLarge));
        // It says less than it has, and more.
        assert_eq!(unpack(&forged(DEFLATE, 2_000, &bomb), BLOCK_BYTES_MAX), Err(Unpacked::Content));
        let short = deflated(&zeros[..1_000]).unwrap();
        assert_eq!(unpack(&forged(DEFLATE, 2_000, &short), BLOCK_BYTES_MAX), Err(Unpacked::Content));
        assert_eq!(unpack(&forged(DEFLATE, u32::MAX, &bomb), usize::MAX), Err(Unpacked::Length));
    }

    #[test]
    fn what_does_not_become_smaller_stays_as_it_is() {
        let mut noise = vec![0u8; 5_000];
        let mut seed = 1u64;
        for byte in &mut noise {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (seed >> 56) as u8;
        }
        let mut packed = Vec::new();
        pack(&mut packed, &noise);
        assert_eq!(packed.len(), noise.len() + BLOCK_HEADER_BYTES);
        assert_eq!(unpack(&packed, noise.len()), Ok(Bytes::from(noise)));
    }
}
