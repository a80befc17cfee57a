//! A base: a whole state in the archive, so that a past one is rebuilt in bounded time.
//!
//! ```text
//! header  "MBAS" version u16, 0 u16, cluster u128, place, digest u64, crc u32
//! piece   1 u8, length u32, chain u32, payload
//! end     2 u8, pieces u64, chain u32, crc u32
//! ```
//! The payload of a piece is packed into compressed blocks. Its chain covers what is stored; the digest
//! in the header covers what comes out.

use bytes::{Bytes, BytesMut};
use muster_journal::frame::FRAME_BYTES_MAX;
use muster_state::State;
use muster_types::ClusterId;
use std::io;

use crate::catalog::BaseName;
use crate::codec::{PLACE_BYTES, Reader, put_place, seal, unseal};
use crate::error::ArchiveError;
use crate::object::ObjectStore;
use crate::pack::{BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, pack, unpack};
use crate::record::RaftPosition;
use crate::segment::VERSION;

const MAGIC: [u8; 4] = *b"MBAS";
const HEADER_BYTES: usize = 4 + 2 + 2 + 16 + PLACE_BYTES + 8 + 4;
const PIECE_HEADER_BYTES: usize = 1 + 4 + 4;
const END_BYTES: usize = 1 + 8 + 4 + 4;
const PIECE: u8 = 1;
const END: u8 = 2;
/// A frame with its own header, before it is packed.
const PIECE_BYTES_MAX: usize = FRAME_BYTES_MAX + 64;
/// The same when nothing in it becomes smaller.
const STORED_BYTES_MAX: usize =
    PIECE_BYTES_MAX + PIECE_BYTES_MAX.div_ceil(BLOCK_BYTES_MAX) * BLOCK_HEADER_BYTES;
/// Read at once.
const READ_BYTES: usize = 1 << 20;

/// The bytes of a base, piece by piece.
pub(crate) fn encode(cluster: ClusterId, place: &RaftPosition, state: &State) -> impl Iterator<Item = Bytes> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(&MAGIC);
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&0u16.to_le_bytes());
    header.extend_from_slice(&cluster.0.to_le_bytes());
    put_place(&mut header, place);
    header.extend_from_slice(&state.digest().to_le_bytes());
    let mut chain = seal(&mut header, 0);
    let mut pieces = 0u64;
    let mut chunks = Some(state.snapshot());
    let body = std::iter::from_fn(move || {
        let source = chunks.as_mut()?;
        let Some(chunk) = source.next() else {
            chunks = None;
            let mut end = vec![END];
            end.extend_from_slice(&pieces.to_le_bytes());
            end.extend_from_slice(&chain.to_le_bytes());
            seal(&mut end, 0);
            return Some(Bytes::from(end));
        };
        pieces += 1;
        let mut packed = Vec::with_capacity(chunk.len() / 3);
        pack(&mut packed, &chunk);
        let chunk = packed;
        let mut piece = Vec::with_capacity(PIECE_HEADER_BYTES + chunk.len());
        piece.push(PIECE);
        piece.extend_from_slice(&(chunk.len() as u32).to_le_bytes());
        chain = chained(chain, &piece, &chunk);
        piece.extend_from_slice(&chain.to_le_bytes());
        piece.extend_from_slice(&chunk);
        Some(Bytes::from(piece))
    });
    std::iter::once(Bytes::from(header)).chain(body)
}

fn chained(before: u32, header: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&before.to_le_bytes());
    hasher.update(header);
    hasher.update(payload);
    hasher.finalize()
}

/// What a base says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) cluster: ClusterId,
    pub(crate) place: RaftPosition,
    pub(crate) digest: u64,
}

/// Reads a base from front to end, checking it on the way.
pub(crate) struct BaseReader<'a> {
    store: &'a dyn ObjectStore,
    object: String,
    buffer: BytesMut,
    read: u64,
    chain: u32,
    pieces: u64,
    ended: bool,
    pub(crate) header: Header,
}

impl<'a> BaseReader<'a> {
    pub(crate) fn open(store: &'a dyn ObjectStore, name: &BaseName) -> Result<BaseReader<'a>, ArchiveError> {
        let object = name.object();
        let header = Header { cluster: ClusterId(0), place: RaftPosition::default(), digest: 0 };
        let mut reader = BaseReader {
            store,
            object,
            buffer: BytesMut::new(),
            read: 0,
            chain: 0,
            pieces: 0,
            ended: false,
            header,
        };
        reader.read_header()?;
        if BaseName::of(&reader.header.place, name.bytes) != *name {
            return Err(reader.damaged("its name is not the one of its content"));
        }
        Ok(reader)
    }

    fn damaged(&self, detail: &str) -> ArchiveError {
        ArchiveError::damaged(&self.object, detail)
    }

    /// Exactly this many bytes.
    fn take(&mut self, count: usize) -> Result<Bytes, ArchiveError> {
        while self.buffer.len() < count {
            let wanted = (count - self.buffer.len()).max(READ_BYTES);
            let got = self.store.get(&self.object, self.read, wanted);
            let got = got.map_err(|source| ArchiveError::store("reading", &self.object, source))?;
            if got.is_empty() {
                return Err(self.damaged("it ends too early"));
            }
            self.read += got.len() as u64;
            self.buffer.extend_from_slice(&got);
        }
        Ok(self.buffer.split_to(count).freeze())
    }

    fn read_header(&mut self) -> Result<(), ArchiveError> {
        let bytes = self.take(HEADER_BYTES)?;
        if bytes[..4] != MAGIC {
            return Err(self.damaged("it is no base"));
        }
        let Some((body, checksum)) = unseal(&bytes) else {
            return Err(self.damaged("the checksum of its header does not hold"));
        };
        let parse = |mut reader: Reader<'_>| {
            let (version, zero) = (reader.u16()?, reader.u16()?);
            let cluster = ClusterId(reader.u128()?);
            let (place, digest) = (reader.place()?, reader.u64()?);
            Some((version, zero, Header { cluster, place, digest }))
        };
        match parse(Reader(&body[4..])) {
            Some((version, _, _)) if version > VERSION => {
                Err(ArchiveError::Newer { object: self.object.clone(), found: version, known: VERSION })
            }
            Some((1..=VERSION, 0, header)) => {
                (self.header, self.chain) = (header, checksum);
                Ok(())
            }
            _ => Err(self.damaged("its header has a value that none has")),
        }
    }

    /// The next piece of the state; none at the end.
    pub(crate) fn next_piece(&mut self) -> Result<Option<Bytes>, ArchiveError> {
        if self.ended {
            return Ok(None);
        }
        let tag = self.take(1)?;
        if tag[0] == END {
            return self.read_end(&tag);
        }
        let head = self.take(PIECE_HEADER_BYTES - 1)?;
        let mut reader = Reader(&head);
        let (length, checksum) = (reader.u32().unwrap_or(0) as usize, reader.u32().unwrap_or(0));
        if tag[0] != PIECE || length > STORED_BYTES_MAX {
            return Err(self.damaged("a piece of it is none"));
        }
        let payload = self.take(length)?;
        let covered = [&tag[..], &head[..4]].concat();
        self.chain = chained(self.chain, &covered, &payload);
        if self.chain != checksum {
            return Err(self.damaged(&format!("the checksum of piece {} does not hold", self.pieces)));
        }
        self.pieces += 1;
        let plain = unpack(&payload, PIECE_BYTES_MAX).map_err(|error| self.damaged(error.text()))?;
        Ok(Some(plain))
    }

    fn read_end(&mut self, tag: &[u8]) -> Result<Option<Bytes>, ArchiveError> {
        let rest = self.take(END_BYTES - 1)?;
        let end = [tag, &rest[..]].concat();
        let fits = unseal(&end).is_some_and(|(body, _)| {
            let mut reader = Reader(&body[1..]);
            reader.u64() == Some(self.pieces) && reader.u32() == Some(self.chain)
        });
        let size = self.store.size(&self.object);
        let size = size.map_err(|source| ArchiveError::store("reading", &self.object, source))?;
        if !fits || size != self.read || !self.buffer.is_empty() {
            return Err(self.damaged("its end does not belong to it"));
        }
        self.ended = true;
        Ok(None)
    }

    /// Reads on to the end and throws away what it reads.
    pub(crate) fn check(mut self) -> Result<Header, ArchiveError> {
        while self.next_piece()?.is_some() {}
        Ok(self.header)
    }

    /// The state in it.
    pub(crate) fn restore(mut self) -> Result<(State, Header), ArchiveError> {
        let mut failure = None;
        let pieces = std::iter::from_fn(|| match self.next_piece() {
            Ok(piece) => piece,
            Err(error) => {
                failure = Some(error);
                None
            }
        });
        let restored = State::restore(pieces);
        if let Some(failure) = failure {
            return Err(failure);
        }
        let restored =
            restored.map_err(|source| ArchiveError::Base { object: self.object.clone(), source })?;
        let header = self.header;
        if restored.digest() != header.digest || restored.sequence() != header.place.sequence {
            return Err(self.damaged("its state is not the one its header names"));
        }
        Ok((restored, header))
    }
}

/// For a store: the pieces as it takes them.
pub(crate) fn pieces(encoded: impl Iterator<Item = Bytes>) -> impl Iterator<Item = io::Result<Bytes>> {
    encoded.map(Ok)
}

/// Adds up the packed blocks between two places of an object, before they were compressed.
pub(crate) type BlocksOf = fn(&dyn ObjectStore, &str, u64, u64) -> Result<u64, ArchiveError>;

/// Bytes of a base before it was compressed, by the headers in it alone.
pub(crate) fn plain_bytes(
    store: &dyn ObjectStore,
    name: &BaseName,
    blocks: BlocksOf,
) -> Result<u64, ArchiveError> {
    let reader = BaseReader::open(store, name)?;
    let end = name.bytes.saturating_sub(END_BYTES as u64);
    let (mut at, mut plain) = (HEADER_BYTES as u64, (HEADER_BYTES + END_BYTES) as u64);
    while at < end {
        let head = store.get(&reader.object, at, PIECE_HEADER_BYTES);
        let head = head.map_err(|source| ArchiveError::store("reading", &reader.object, source))?;
        let length = Reader(head.get(1..).unwrap_or_default()).u32();
        let length = length.ok_or_else(|| reader.damaged("it ends too early"))?;
        let begins = at + PIECE_HEADER_BYTES as u64;
        at = begins + u64::from(length);
        plain += PIECE_HEADER_BYTES as u64 + blocks(store, &reader.object, begins, at)?;
    }
    Ok(plain)
}
