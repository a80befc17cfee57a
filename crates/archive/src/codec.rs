//! Numbers off the front of bytes that nobody has vouched for.

use muster_state::Sequence;
use muster_types::{Leadership, LogIndex, LogTime, ReplicaId};

use crate::record::RaftPosition;

/// Bytes of an encoded [`RaftPosition`].
pub(crate) const PLACE_BYTES: usize = 8 + 8 + 8 + 1 + 8 + 8 + 4;

pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(first)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }

    pub(crate) fn place(&mut self) -> Option<RaftPosition> {
        let next_raft = self.u64()?;
        let log_index = LogIndex(self.u64()?);
        let log_time = LogTime(self.u64()?);
        let has_leadership = self.u8()?;
        let leadership = Leadership { term: self.u64()?, replica: ReplicaId(self.u64()?) };
        let generation = self.u32()?;
        let leadership = match has_leadership {
            0 => None,
            1 => Some(leadership),
            _ => return None,
        };
        Some(RaftPosition { next_raft, sequence: Sequence { leadership, log_index, log_time }, generation })
    }
}

pub(crate) fn put_place(out: &mut Vec<u8>, place: &RaftPosition) {
    let sequence = &place.sequence;
    let leadership = sequence.leadership.unwrap_or(Leadership { term: 0, replica: ReplicaId(0) });
    out.extend_from_slice(&place.next_raft.to_le_bytes());
    out.extend_from_slice(&sequence.log_index.0.to_le_bytes());
    out.extend_from_slice(&sequence.log_time.0.to_le_bytes());
    out.push(u8::from(sequence.leadership.is_some()));
    out.extend_from_slice(&leadership.term.to_le_bytes());
    out.extend_from_slice(&leadership.replica.0.to_le_bytes());
    out.extend_from_slice(&place.generation.to_le_bytes());
}

/// Appends the CRC-32 of everything that is there from `from` on.
pub(crate) fn seal(out: &mut Vec<u8>, from: usize) -> u32 {
    let checksum = crc32fast::hash(&out[from..]);
    out.extend_from_slice(&checksum.to_le_bytes());
    checksum
}

/// The bytes before a trailing CRC-32 that holds, and the checksum.
pub(crate) fn unseal(bytes: &[u8]) -> Option<(&[u8], u32)> {
    let (body, checksum) = bytes.split_last_chunk::<4>()?;
    let checksum = u32::from_le_bytes(*checksum);
    (crc32fast::hash(body) == checksum).then_some((body, checksum))
}
