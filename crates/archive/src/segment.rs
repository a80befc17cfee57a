//! One segment: consecutive rounds, each checksummed over the one before.
//!
//! ```text
//! header  "MARC" version u16, start u8, 0 u8, cluster u128, place, previous u32, crc u32
//! round   1 u8, raft index u64, term u64, leader u64, length u32, chain u32, payload
//! footer  2 u8, place, first time u64, rounds u64, records u64, bytes u64, chain u32, crc u32
//! ```
//! Little-endian. `chain` of a round covers the one before it and the whole round; the first goes by the
//! header's checksum. `previous` is the checksum of the footer before, so segments chain as well.
//!
//! Everything behind the header is packed into compressed blocks; all lengths and checksums above are of what was
//! packed.

use bytes::Bytes;
use muster_journal::ROUND_BYTES_MAX;
use muster_types::{ClusterId, LogTime, ReplicaId};

use crate::catalog::SegmentName;
use crate::codec::{PLACE_BYTES, Reader, put_place, seal, unseal};
use crate::error::ArchiveError;
use crate::pack::{pack, unpack};
use crate::record::{ArchivedRound, RaftPosition};

/// The format of segments and bases that this release writes, and the highest it reads.
pub(crate) const VERSION: u16 = 1;
/// A segment is closed at about this size.
pub const SEGMENT_BYTES_TARGET: usize = 8 << 20;
/// No segment is larger, stored or unpacked: whatever the target, one more round, header and footer.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 64 << 20;

const MAGIC: [u8; 4] = *b"MARC";
pub(crate) const HEADER_BYTES: usize = 4 + 2 + 1 + 1 + 16 + PLACE_BYTES + 4 + 4;
const FOOTER_BYTES: usize = 1 + PLACE_BYTES + 8 * 4 + 4 + 4;
const ROUND_HEADER_BYTES: usize = 1 + 8 * 3 + 4 + 4;
const ROUND: u8 = 1;
const FOOTER: u8 = 2;

/// How a segment begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Right behind the segment before.
    Follows,
    /// With the first record of the cluster.
    Founding,
    /// Behind records that the archive does not have, or with another generation of the cluster.
    Gap,
}

impl Start {
    fn to_byte(self) -> u8 {
        match self {
            Start::Follows => 0,
            Start::Founding => 1,
            Start::Gap => 2,
        }
    }

    fn from_byte(byte: u8) -> Option<Start> {
        match byte {
            0 => Some(Start::Follows),
            1 => Some(Start::Founding),
            2 => Some(Start::Gap),
            _ => None,
        }
    }
}

/// A segment in the making.
#[derive(Debug)]
pub struct SegmentDraft {
    bytes: Vec<u8>,
    chain: u32,
    from: RaftPosition,
    rounds: u64,
    next_raft: u64,
}

/// A segment as it is put into the store.
pub(crate) struct Sealed {
    pub(crate) name: SegmentName,
    pub(crate) bytes: Bytes,
    pub(crate) end: SegmentEnd,
}

/// What the next segment has to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentEnd {
    pub(crate) place: RaftPosition,
    pub(crate) checksum: u32,
}

impl SegmentDraft {
    /// An empty one that goes on at `from`; `previous` is the checksum of the segment before.
    pub(crate) fn new(cluster: ClusterId, start: Start, from: RaftPosition, previous: u32) -> SegmentDraft {
        let mut bytes = Vec::with_capacity(SEGMENT_BYTES_TARGET / 8);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[start.to_byte(), 0]);
        bytes.extend_from_slice(&cluster.0.to_le_bytes());
        put_place(&mut bytes, &from);
        bytes.extend_from_slice(&previous.to_le_bytes());
        let chain = seal(&mut bytes, 0);
        SegmentDraft { bytes, chain, from, rounds: 0, next_raft: from.next_raft }
    }

    /// Bytes so far.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Adds the next round. Entries of the protocol's own may lie between two of them.
    ///
    /// # Panics
    /// When it does not come behind the one before, or is larger than a round can be.
    pub fn push(&mut self, round: &ArchivedRound) {
        assert!(round.raft_index >= self.next_raft, "rounds are archived in the order of the log");
        assert!(round.payload.len() <= ROUND_BYTES_MAX, "a round is bounded before it is proposed");
        self.next_raft = round.raft_index + 1;
        self.rounds += 1;
        let begins = self.bytes.len();
        self.bytes.push(ROUND);
        self.bytes.extend_from_slice(&round.raft_index.to_le_bytes());
        self.bytes.extend_from_slice(&round.term.to_le_bytes());
        self.bytes.extend_from_slice(&round.leader.0.to_le_bytes());
        self.bytes.extend_from_slice(&(round.payload.len() as u32).to_le_bytes());
        self.chain = chain(self.chain, &self.bytes[begins..], &round.payload);
        self.bytes.extend_from_slice(&self.chain.to_le_bytes());
        self.bytes.extend_from_slice(&round.payload);
    }

    /// Closes it at `end`, the place behind the last entry it covers.
    ///
    /// # Panics
    /// When `end` is not behind its rounds.
    pub(crate) fn seal(mut self, end: RaftPosition, first_time: LogTime) -> Sealed {
        assert!(end.next_raft >= self.next_raft, "a segment ends behind its last round");
        let records = end.sequence.log_index.0.saturating_sub(self.from.sequence.log_index.0);
        let begins = self.bytes.len();
        self.bytes.push(FOOTER);
        put_place(&mut self.bytes, &end);
        self.bytes.extend_from_slice(&first_time.0.to_le_bytes());
        self.bytes.extend_from_slice(&self.rounds.to_le_bytes());
        self.bytes.extend_from_slice(&records.to_le_bytes());
        self.bytes.extend_from_slice(&((begins + FOOTER_BYTES) as u64).to_le_bytes());
        self.bytes.extend_from_slice(&self.chain.to_le_bytes());
        let checksum = seal(&mut self.bytes, begins);
        let (header, body) = self.bytes.split_at(HEADER_BYTES);
        let mut stored = Vec::with_capacity(self.bytes.len() / 4);
        stored.extend_from_slice(header);
        pack(&mut stored, body);
        let name = SegmentName::of(&self.from, &end, stored.len() as u64);
        Sealed { name, bytes: Bytes::from(stored), end: SegmentEnd { place: end, checksum } }
    }
}

fn chain(before: u32, header: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&before.to_le_bytes());
    hasher.update(header);
    hasher.update(payload);
    hasher.finalize()
}

/// What a segment begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) cluster: ClusterId,
    pub(crate) start: Start,
    pub(crate) from: RaftPosition,
    pub(crate) previous: u32,
    checksum: u32,
}

/// A whole segment whose checksums hold.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) header: Header,
    pub(crate) rounds: Vec<ArchivedRound>,
    pub(crate) end: SegmentEnd,
    pub(crate) records: u64,
}

struct Footer {
    end: SegmentEnd,
    first_time: LogTime,
    rounds: u64,
    records: u64,
    bytes: u64,
    chain: u32,
}

pub(crate) fn parse_header(object: &str, bytes: &[u8]) -> Result<Header, ArchiveError> {
    let damaged = |what: &str| ArchiveError::damaged(object, what);
    let header = bytes.get(..HEADER_BYTES).ok_or_else(|| damaged("it ends in its header"))?;
    let mut reader = Reader(header);
    if reader.take(4) != Some(&MAGIC) {
        return Err(damaged("it is no segment"));
    }
    let (body, checksum) =
        unseal(header).ok_or_else(|| damaged("the checksum of its header does not hold"))?;
    let mut reader = Reader(&body[4..]);
    let parse = |reader: &mut Reader<'_>| {
        let version = reader.u16()?;
        let start = reader.u8()?;
        let zero = reader.u8()?;
        let cluster = ClusterId(reader.u128()?);
        let from = reader.place()?;
        let previous = reader.u32()?;
        Some((version, start, zero, cluster, from, previous))
    };
    let parsed = parse(&mut reader).ok_or_else(|| damaged("its header is none"))?;
    let (version, start, zero, cluster, from, previous) = parsed;
    if version > VERSION {
        return Err(ArchiveError::Newer { object: object.to_owned(), found: version, known: VERSION });
    }
    match Start::from_byte(start).filter(|_| version > 0 && zero == 0) {
        Some(start) => Ok(Header { cluster, start, from, previous, checksum }),
        None => Err(damaged("its header has a value that none has")),
    }
}

fn parse_footer(object: &str, bytes: &[u8]) -> Result<Footer, ArchiveError> {
    let damaged = |what: &str| ArchiveError::damaged(object, what);
    let (body, checksum) = unseal(bytes).ok_or_else(|| damaged("the checksum of its end does not hold"))?;
    let parse = |mut reader: Reader<'_>| {
        let tag = reader.u8()?;
        let place = reader.place()?;
        let footer = Footer {
            end: SegmentEnd { place, checksum },
            first_time: LogTime(reader.u64()?),
            rounds: reader.u64()?,
            records: reader.u64()?,
            bytes: reader.u64()?,
            chain: reader.u32()?,
        };
        (tag == FOOTER && reader.0.is_empty()).then_some(footer)
    };
    parse(Reader(body)).ok_or_else(|| damaged("its end is none"))
}

impl Segment {
    /// Parses a whole segment and checks everything in it that can be checked without the others.
    pub(crate) fn parse(object: &str, bytes: &Bytes) -> Result<Segment, ArchiveError> {
        let damaged = |what: String| ArchiveError::damaged(object, what);
        let header = parse_header(object, bytes)?;
        let body = bytes.slice(HEADER_BYTES..);
        let plain_bytes_max = SEGMENT_BYTES_MAX as usize - HEADER_BYTES;
        let body = unpack(&body, plain_bytes_max).map_err(|error| damaged(error.text().to_owned()))?;
        let begins = body.len().checked_sub(FOOTER_BYTES);
        let begins = begins.ok_or_else(|| damaged("it is shorter than header and end".to_owned()))?;
        let footer = parse_footer(object, &body[begins..])?;
        let size = HEADER_BYTES + body.len();
        if footer.bytes != size as u64 {
            return Err(damaged(format!("it has {size} bytes instead of {}", footer.bytes)));
        }
        let mut rounds = Vec::new();
        let mut place = 0;
        let mut expected = header.checksum;
        let mut next_raft = header.from.next_raft;
        while place < begins {
            let (round, checksum, after) = parse_round(&body, place, begins, expected)
                .ok_or_else(|| damaged(format!("the round at byte {place} is not what was written")))?;
            if round.raft_index < next_raft {
                return Err(damaged(format!("the round at byte {place} is out of order")));
            }
            next_raft = round.raft_index.saturating_add(1);
            (expected, place) = (checksum, after);
            rounds.push(round);
        }
        let (from, end) = (header.from.sequence.log_index, footer.end.place.sequence.log_index);
        let consistent = footer.chain == expected
            && footer.rounds == rounds.len() as u64
            && footer.end.place.next_raft >= next_raft
            && footer.first_time <= footer.end.place.sequence.log_time
            && end.0.checked_sub(from.0) == Some(footer.records);
        if !consistent {
            return Err(damaged("its end does not belong to its rounds".to_owned()));
        }
        Ok(Segment { header, rounds, end: footer.end, records: footer.records })
    }
}

/// The round at `place`, its checksum, and where the next one begins.
fn parse_round(bytes: &Bytes, place: usize, end: usize, before: u32) -> Option<(ArchivedRound, u32, usize)> {
    let header = bytes.get(place..place.checked_add(ROUND_HEADER_BYTES)?)?;
    let mut reader = Reader(header);
    if reader.u8()? != ROUND {
        return None;
    }
    let (raft_index, term, leader) = (reader.u64()?, reader.u64()?, ReplicaId(reader.u64()?));
    let length = reader.u32()? as usize;
    let checksum = reader.u32()?;
    let from = place + ROUND_HEADER_BYTES;
    let to = from.checked_add(length).filter(|to| length <= ROUND_BYTES_MAX && *to <= end)?;
    let payload = bytes.slice(from..to);
    let found = chain(before, &header[..ROUND_HEADER_BYTES - 4], &payload);
    (found == checksum).then_some((ArchivedRound { raft_index, term, leader, payload }, checksum, to))
}
