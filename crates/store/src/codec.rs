//! How votes, log ids, memberships and entries become bytes, on disk and between replicas.
//!
//! Little endian throughout. An entry stands in an envelope:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `MLG1` |
//! | 4 | 1 | version |
//! | 5 | 1 | kind: 0 blank, 1 application, 2 membership |
//! | 6 | 2 | flags, zero |
//! | 8 | 4 | length of the payload |
//! | 12 | 4 | chain: the checksum of the previous envelope in this log, 0 where there is none |
//! | 16 | 8 | term |
//! | 24 | 8 | leader |
//! | 32 | 8 | index |
//! | 40 | 4 | CRC-32 of everything before it and of the payload |
//! | 44 | – | payload |
//!
//! Between replicas the chain is 0: where a log was purged differs from replica to replica.
//!
//! **Invariant:** decoding any bytes returns a value or an error, and allocates no more than the
//! input is long.

use crate::raft_types::{
    Entry, EntryPayload, LeaderId, LogId, Membership, Payload, ReplicaNode, SnapshotMeta, StoredMembership,
    Vote,
};
use bytes::Bytes;
use openraft::vote::RaftLeaderId;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Bytes before the payload of an entry.
pub const ENVELOPE_HEADER_BYTES: usize = 44;
const ENVELOPE_MAGIC: [u8; 4] = *b"MLG1";
const ENVELOPE_VERSION: u8 = 1;
const CRC_OFFSET: usize = 40;
const KIND_BLANK: u8 = 0;
const KIND_APPLICATION: u8 = 1;
const KIND_MEMBERSHIP: u8 = 2;
/// A joint membership has two configurations; a few more cost nothing.
const CONFIGS_MAX: usize = 8;
/// Far above any cluster; keeps a damaged count from allocating.
const MEMBERS_MAX: usize = 1_024;
const TEXT_BYTES_MAX: usize = 1_024;

/// Why bytes could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CodecError {
    /// The input ends too early.
    #[error("the bytes end inside {0}")]
    Short(&'static str),
    /// Bytes are left over.
    #[error("{0} bytes follow the end")]
    Trailing(usize),
    /// A checksum does not hold.
    #[error("the checksum of {0} does not hold")]
    Checksum(&'static str),
    /// A field has a value this release does not know.
    #[error("{field} has the unknown value {value}")]
    Unknown {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A value is not allowed.
    #[error("{0} is not valid")]
    Invalid(&'static str),
}

/// Reads fields from the front of a slice.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], CodecError> {
        if self.0.len() < len {
            return Err(CodecError::Short(field));
        }
        let (head, tail) = self.0.split_at(len);
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], CodecError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, field)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, CodecError> {
        Ok(self.array::<1>(field)?[0])
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, CodecError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, CodecError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, CodecError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u128(&mut self, field: &'static str) -> Result<u128, CodecError> {
        Ok(u128::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn bool(&mut self, field: &'static str) -> Result<bool, CodecError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(CodecError::Unknown { field, value: u64::from(value) }),
        }
    }

    fn count(&mut self, max: usize, field: &'static str) -> Result<usize, CodecError> {
        let count = self.u32(field)? as usize;
        if count > max { Err(CodecError::Invalid(field)) } else { Ok(count) }
    }

    fn text(&mut self, field: &'static str) -> Result<String, CodecError> {
        let len = self.count(TEXT_BYTES_MAX, field)?;
        let bytes = self.take(len, field)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| CodecError::Invalid(field))
    }

    pub(crate) fn end(&self) -> Result<(), CodecError> {
        if self.0.is_empty() { Ok(()) } else { Err(CodecError::Trailing(self.0.len())) }
    }
}

/// Appends the CRC-32 of what is there.
pub(crate) fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// The bytes before a trailing CRC-32 that holds.
pub(crate) fn unseal<'a>(bytes: &'a [u8], what: &'static str) -> Result<&'a [u8], CodecError> {
    let body_len = bytes.len().checked_sub(4).ok_or(CodecError::Short(what))?;
    let (body, crc) = bytes.split_at(body_len);
    if crc32fast::hash(body).to_le_bytes() == *crc { Ok(body) } else { Err(CodecError::Checksum(what)) }
}

pub(crate) fn put_log_id(out: &mut Vec<u8>, log_id: &LogId) {
    let leader = log_id.committed_leader_id();
    out.extend_from_slice(&leader.term.to_le_bytes());
    out.extend_from_slice(&leader.node_id.to_le_bytes());
    out.extend_from_slice(&log_id.index().to_le_bytes());
}

pub(crate) fn read_log_id(reader: &mut Reader<'_>) -> Result<LogId, CodecError> {
    let term = reader.u64("term")?;
    let leader = reader.u64("leader")?;
    let index = reader.u64("index")?;
    Ok(LogId::new(LeaderId::new(term, leader), index))
}

pub(crate) fn put_log_id_option(out: &mut Vec<u8>, log_id: Option<&LogId>) {
    out.push(u8::from(log_id.is_some()));
    if let Some(log_id) = log_id {
        put_log_id(out, log_id);
    }
}

pub(crate) fn read_log_id_option(reader: &mut Reader<'_>) -> Result<Option<LogId>, CodecError> {
    if reader.bool("log id")? { read_log_id(reader).map(Some) } else { Ok(None) }
}

pub(crate) fn put_vote(out: &mut Vec<u8>, vote: &Vote) {
    out.extend_from_slice(&vote.leader_id.term.to_le_bytes());
    out.extend_from_slice(&vote.leader_id.node_id.to_le_bytes());
    out.push(u8::from(vote.committed));
}

pub(crate) fn read_vote(reader: &mut Reader<'_>) -> Result<Vote, CodecError> {
    let term = reader.u64("term")?;
    let replica = reader.u64("replica")?;
    let committed = reader.bool("committed")?;
    Ok(if committed { Vote::new_committed(term, replica) } else { Vote::new(term, replica) })
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    // A name longer than the limit is cut at a character, so that what is written can be read.
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.extend_from_slice(&(end as u32).to_le_bytes());
    out.extend_from_slice(&text.as_bytes()[..end]);
}

fn put_membership(out: &mut Vec<u8>, membership: &Membership) {
    let configs = membership.get_joint_config();
    out.extend_from_slice(&(configs.len() as u32).to_le_bytes());
    for config in configs {
        out.extend_from_slice(&(config.len() as u32).to_le_bytes());
        for replica in config {
            out.extend_from_slice(&replica.to_le_bytes());
        }
    }
    let nodes: Vec<_> = membership.nodes().collect();
    out.extend_from_slice(&(nodes.len() as u32).to_le_bytes());
    for (replica, node) in nodes {
        out.extend_from_slice(&replica.to_le_bytes());
        put_text(out, &node.region);
        put_text(out, &node.peer_endpoint);
        put_text(out, &node.client_endpoint);
    }
}

fn read_membership(reader: &mut Reader<'_>) -> Result<Membership, CodecError> {
    let mut configs = Vec::new();
    for _ in 0..reader.count(CONFIGS_MAX, "configurations")? {
        let mut config = BTreeSet::new();
        for _ in 0..reader.count(MEMBERS_MAX, "members")? {
            config.insert(reader.u64("member")?);
        }
        configs.push(config);
    }
    let mut nodes = BTreeMap::new();
    for _ in 0..reader.count(MEMBERS_MAX, "nodes")? {
        let replica = reader.u64("node")?;
        let node = ReplicaNode {
            region: reader.text("region")?,
            peer_endpoint: reader.text("peer endpoint")?,
            client_endpoint: reader.text("client endpoint")?,
        };
        nodes.insert(replica, node);
    }
    if configs.is_empty() && nodes.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(configs, nodes).map_err(|_| CodecError::Invalid("membership"))
}

/// Encodes what a snapshot covers, with its checksum.
#[must_use]
pub fn encode_snapshot_meta(meta: &SnapshotMeta) -> Vec<u8> {
    let mut out = vec![1];
    put_log_id_option(&mut out, meta.last_log_id.as_ref());
    put_log_id_option(&mut out, meta.last_membership.log_id().as_ref());
    put_membership(&mut out, meta.last_membership.membership());
    seal(out)
}

/// Decodes what [`encode_snapshot_meta`] wrote.
///
/// # Errors
/// When the bytes are not such an encoding.
pub fn decode_snapshot_meta(bytes: &[u8]) -> Result<SnapshotMeta, CodecError> {
    let mut reader = Reader(unseal(bytes, "the snapshot's description")?);
    let version = reader.u8("version")?;
    if version != 1 {
        return Err(CodecError::Unknown { field: "version", value: u64::from(version) });
    }
    let last_log_id = read_log_id_option(&mut reader)?;
    let membership_log_id = read_log_id_option(&mut reader)?;
    let membership = read_membership(&mut reader)?;
    reader.end()?;
    Ok(SnapshotMeta { last_log_id, last_membership: StoredMembership::new(membership_log_id, membership) })
}

/// Encodes an entry that follows the envelope whose checksum is `chain`; 0 where there is none.
#[must_use]
pub fn encode_entry(entry: &Entry, chain: u32) -> Bytes {
    let mut out = Vec::new();
    put_entry(&mut out, entry, chain);
    Bytes::from(out)
}

/// Appends the envelope of an entry; returns its checksum, which the next envelope chains to.
pub(crate) fn put_entry(out: &mut Vec<u8>, entry: &Entry, chain: u32) -> u32 {
    let mut membership_bytes = Vec::new();
    let (kind, payload): (u8, &[u8]) = match &entry.payload {
        EntryPayload::Blank => (KIND_BLANK, &[]),
        EntryPayload::Normal(payload) => (KIND_APPLICATION, &payload.0),
        EntryPayload::Membership(membership) => {
            put_membership(&mut membership_bytes, membership);
            (KIND_MEMBERSHIP, &membership_bytes)
        }
    };
    let leader = entry.log_id.committed_leader_id();
    let start = out.len();
    out.reserve(ENVELOPE_HEADER_BYTES + payload.len());
    out.extend_from_slice(&ENVELOPE_MAGIC);
    out.extend_from_slice(&[ENVELOPE_VERSION, kind, 0, 0]);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&chain.to_le_bytes());
    out.extend_from_slice(&leader.term.to_le_bytes());
    out.extend_from_slice(&leader.node_id.to_le_bytes());
    out.extend_from_slice(&entry.log_id.index().to_le_bytes());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&out[start..]);
    hasher.update(payload);
    let checksum = hasher.finalize();
    out.extend_from_slice(&checksum.to_le_bytes());
    out.extend_from_slice(payload);
    checksum
}

/// What the front of an envelope says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EnvelopeFront {
    pub(crate) log_id: LogId,
    /// The checksum of the envelope before it.
    pub(crate) chain: u32,
    pub(crate) checksum: u32,
    /// Bytes of the whole envelope.
    pub(crate) len: usize,
}

/// Checks the envelope that `bytes` start with, whatever follows it.
pub(crate) fn check_envelope(bytes: &[u8]) -> Result<EnvelopeFront, CodecError> {
    let len = envelope_len(bytes)?;
    let envelope = bytes.get(..len).ok_or(CodecError::Short("the envelope"))?;
    let checksum = envelope_checksum(envelope)?;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&envelope[..CRC_OFFSET]);
    hasher.update(&envelope[ENVELOPE_HEADER_BYTES..]);
    if hasher.finalize() != checksum {
        return Err(CodecError::Checksum("the entry"));
    }
    let mut reader = Reader(&envelope[12..]);
    let chain = reader.u32("chain")?;
    let log_id = read_log_id(&mut reader)?;
    Ok(EnvelopeFront { log_id, chain, checksum, len })
}

/// The checksum that the next envelope chains to. The envelope must be whole.
pub(crate) fn envelope_checksum(envelope: &[u8]) -> Result<u32, CodecError> {
    let mut reader = Reader(envelope);
    reader.take(CRC_OFFSET, "the envelope")?;
    reader.u32("the checksum")
}

/// The length the whole envelope says it has, from its first bytes.
pub(crate) fn envelope_len(envelope: &[u8]) -> Result<usize, CodecError> {
    let mut reader = Reader(envelope);
    if reader.take(4, "the magic")? != ENVELOPE_MAGIC {
        return Err(CodecError::Invalid("the magic"));
    }
    reader.take(4, "the kind")?;
    Ok(ENVELOPE_HEADER_BYTES + reader.u32("the length")? as usize)
}

/// Decodes an envelope; returns the entry and the checksum it chains to.
///
/// # Errors
/// When the bytes are not one whole, intact envelope of a version this release knows.
pub fn decode_entry(envelope: &Bytes) -> Result<(Entry, u32), CodecError> {
    if envelope_len(envelope)? != envelope.len() {
        return Err(CodecError::Invalid("the length"));
    }
    let EnvelopeFront { log_id, chain, .. } = check_envelope(envelope)?;
    let payload = envelope.slice(ENVELOPE_HEADER_BYTES..);
    let mut reader = Reader(&envelope[4..]);
    let version = reader.u8("version")?;
    if version != ENVELOPE_VERSION {
        return Err(CodecError::Unknown { field: "version", value: u64::from(version) });
    }
    let kind = reader.u8("kind")?;
    let flags = reader.u16("flags")?;
    if flags != 0 {
        return Err(CodecError::Unknown { field: "flags", value: u64::from(flags) });
    }
    let payload = match kind {
        KIND_BLANK if payload.is_empty() => EntryPayload::Blank,
        KIND_APPLICATION => EntryPayload::Normal(Payload(payload)),
        KIND_MEMBERSHIP => {
            let mut reader = Reader(&payload);
            let membership = read_membership(&mut reader)?;
            reader.end()?;
            EntryPayload::Membership(membership)
        }
        value => return Err(CodecError::Unknown { field: "kind", value: u64::from(value) }),
    };
    Ok((Entry { log_id, payload }, chain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        let log_id = |index| LogId::new(LeaderId::new(7, 2), index);
        let node =
            ReplicaNode { region: "eu".into(), peer_endpoint: "a:1".into(), client_endpoint: "b:2".into() };
        let membership = Membership::new(
            vec![BTreeSet::from([1, 2]), BTreeSet::from([2, 3])],
            BTreeMap::from([(1, node.clone()), (2, node.clone()), (3, node)]),
        )
        .unwrap();
        vec![
            Entry { log_id: log_id(0), payload: EntryPayload::Blank },
            Entry { log_id: log_id(1), payload: EntryPayload::Normal(Payload(Bytes::from_static(b"round"))) },
            Entry { log_id: log_id(2), payload: EntryPayload::Membership(membership) },
        ]
    }

    #[test]
    fn every_entry_comes_back() {
        for entry in entries() {
            let bytes = encode_entry(&entry, 99);
            assert_eq!(decode_entry(&bytes).unwrap(), (entry, 99));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_seen() {
        for entry in entries() {
            let bytes = encode_entry(&entry, 99);
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.to_vec();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(decode_entry(&Bytes::from(flipped)).is_err(), "bit {bit}");
            }
            for len in 0..bytes.len() {
                assert!(decode_entry(&bytes.slice(..len)).is_err(), "cut at {len}");
            }
        }
    }

    #[test]
    fn a_snapshot_description_comes_back() {
        let Entry { payload: EntryPayload::Membership(membership), log_id } = entries().remove(2) else {
            panic!("the third entry is a membership");
        };
        let meta = SnapshotMeta {
            last_log_id: Some(log_id),
            last_membership: StoredMembership::new(Some(log_id), membership),
        };
        assert_eq!(decode_snapshot_meta(&encode_snapshot_meta(&meta)).unwrap(), meta);
        let empty = SnapshotMeta::default();
        assert_eq!(decode_snapshot_meta(&encode_snapshot_meta(&empty)).unwrap(), empty);
    }
}
