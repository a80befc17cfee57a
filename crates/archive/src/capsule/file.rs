//! A capsule as a file.

use std::path::Path;

use muster_files::{Existing, Manner, read_bounded, write_whole};
use muster_journal::{canonical, from_canonical};
use muster_state::State;
use muster_types::{Leadership, LogIndex, LogTime, ReplicaId};

use super::{
    CAPSULE_BYTES_MAX, CAPSULE_LAYOUT, CAPSULE_RECORDS_MAX, Capsule, CapsuleError, CapsuleHeader,
    CapsuleRecord,
};
use crate::codec::Reader;
use crate::pack::{pack, unpack};

const MAGIC: [u8; 4] = *b"MSIC";
const HEADER: u8 = 1;
const STATE: u8 = 2;
const RECORDS: u8 = 3;
const END: u8 = 255;
/// Bytes of the content of a section before it is packed.
const CONTENT_BYTES_MAX: usize = 32 << 20;
/// Bytes of all of them together before they are packed.
const ALL_BYTES_MAX: usize = 1 << 30;
/// Records of one section end at this many bytes.
const BATCH_BYTES: usize = 256 << 10;
/// Sections of one file. Those of records and of a table of the state have at least [`BATCH_BYTES`], but for the last one.
const SECTIONS_MAX: u64 = 1 << 14;

/// Its place in the file is part of what a checksum covers, so that sections cannot be exchanged.
fn checksum(number: u64, tag: u8, content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(&[tag]);
    hasher.update(content);
    hasher.finalize()
}

/// The bytes of a capsule in the making.
struct Sections {
    bytes: Vec<u8>,
    count: u64,
    all_bytes: usize,
}

impl Sections {
    fn push(&mut self, tag: u8, content: &[u8]) {
        let mut packed = Vec::with_capacity(content.len() / 3);
        pack(&mut packed, content);
        let length = u32::try_from(packed.len()).unwrap_or(u32::MAX);
        self.bytes.push(tag);
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(&checksum(self.count, tag, &packed).to_le_bytes());
        self.bytes.extend_from_slice(&packed);
        self.count += 1;
        self.all_bytes += content.len();
    }
}

/// The bytes, and how many they were before they were packed.
fn encode(capsule: &Capsule) -> (Vec<u8>, usize) {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&CAPSULE_LAYOUT.to_le_bytes());
    let mut sections = Sections { bytes, count: 0, all_bytes: 0 };
    let header = serde_json::to_vec(&capsule.header).unwrap_or_default();
    sections.push(HEADER, &header);
    for chunk in capsule.state.snapshot() {
        sections.push(STATE, &chunk);
    }
    let mut batch = Vec::new();
    for record in &capsule.records {
        let decision = canonical(&record.decision);
        let length = u32::try_from(decision.len()).unwrap_or(u32::MAX);
        let Leadership { term, replica } = record.leadership;
        for number in [record.log_index.0, record.log_time.0, term, replica.0, record.raft_index] {
            batch.extend_from_slice(&number.to_le_bytes());
        }
        batch.extend_from_slice(&length.to_le_bytes());
        batch.extend_from_slice(&decision);
        if batch.len() >= BATCH_BYTES {
            sections.push(RECORDS, &batch);
            batch.clear();
        }
    }
    if !batch.is_empty() {
        sections.push(RECORDS, &batch);
    }
    let count = sections.count;
    sections.push(END, &count.to_le_bytes());
    (sections.bytes, sections.all_bytes)
}

/// Writes a capsule to a new file that its owner alone may read: whole, or not at all. Returns its size in bytes.
///
/// # Errors
/// When it is too large, there is such a file already, or it cannot be written.
pub fn write_capsule(path: &Path, capsule: &Capsule) -> Result<u64, CapsuleError> {
    let (bytes, all_bytes) = encode(capsule);
    if all_bytes > ALL_BYTES_MAX {
        let (found, max) = (all_bytes as u64, ALL_BYTES_MAX as u64);
        return Err(CapsuleError::TooLarge { what: "bytes", found, max });
    }
    let found = bytes.len() as u64;
    if found > CAPSULE_BYTES_MAX {
        return Err(CapsuleError::TooLarge { what: "bytes", found, max: CAPSULE_BYTES_MAX });
    }
    let failed = |source| CapsuleError::File { operation: "writing", path: path.to_owned(), source };
    let manner = Manner { existing: Existing::Kept, ..Manner::PRIVATE };
    write_whole(path, &bytes, manner).map_err(failed)?;
    Ok(found)
}

/// What has been read of a file so far.
#[derive(Default)]
struct Parts {
    header: Option<CapsuleHeader>,
    chunks: Vec<bytes::Bytes>,
    records: Vec<CapsuleRecord>,
}

/// Reads a capsule: every checksum, the state with its digest and its invariants, and the order of its records.
///
/// # Errors
/// When the file cannot be read, is no capsule, is newer than this release, or is damaged.
pub fn read_capsule(path: &Path) -> Result<Capsule, CapsuleError> {
    let bytes = read_bounded(path, CAPSULE_BYTES_MAX).map_err(|source| CapsuleError::File {
        operation: "reading",
        path: path.to_owned(),
        source,
    })?;
    decode(&bytes, path)
}

fn decode(bytes: &[u8], path: &Path) -> Result<Capsule, CapsuleError> {
    let mut reader = Reader(bytes);
    if reader.take(4) != Some(&MAGIC[..]) {
        return Err(CapsuleError::Foreign { path: path.to_owned() });
    }
    let damaged = |section: u64, detail: &str| CapsuleError::Damaged {
        path: path.to_owned(),
        section,
        detail: detail.to_owned(),
    };
    let layout = reader.u32().ok_or_else(|| damaged(0, "the file ends"))?;
    if layout > CAPSULE_LAYOUT {
        return Err(CapsuleError::Newer { path: path.to_owned(), found: layout, supported: CAPSULE_LAYOUT });
    }
    if layout == 0 {
        return Err(damaged(0, "its layout is one that none has"));
    }
    let mut parts = Parts::default();
    let (mut section, mut all_bytes) = (0, 0);
    loop {
        // Each takes memory apart from its content, which may be empty.
        if section >= SECTIONS_MAX {
            return Err(damaged(section, "it has more sections than a capsule may have"));
        }
        let fields = |reader: &mut Reader<'_>| Some((reader.u8()?, reader.u32()?, reader.u32()?));
        let (tag, length, expected) = fields(&mut reader).ok_or_else(|| damaged(section, "the file ends"))?;
        let packed = reader.take(length as usize).ok_or_else(|| damaged(section, "the file ends"))?;
        if checksum(section, tag, packed) != expected {
            return Err(damaged(section, "its checksum does not hold"));
        }
        let content = unpack(packed, CONTENT_BYTES_MAX).map_err(|error| damaged(section, error.text()))?;
        if tag == END {
            if content[..] != section.to_le_bytes()[..] || !reader.0.is_empty() {
                return Err(damaged(section, "the end does not belong to it"));
            }
            break;
        }
        all_bytes += content.len();
        if all_bytes > ALL_BYTES_MAX {
            return Err(damaged(section, "its sections are larger together than any that were written"));
        }
        parts.take(tag, content).map_err(|detail| damaged(section, detail))?;
        section += 1;
    }
    parts.finish().map_err(|detail| CapsuleError::Damaged { path: path.to_owned(), section, detail })
}

impl Parts {
    fn take(&mut self, tag: u8, content: bytes::Bytes) -> Result<(), &'static str> {
        match tag {
            HEADER if self.header.is_none() => {
                let header = serde_json::from_slice(&content).map_err(|_| "the header is none")?;
                self.header = Some(header);
            }
            STATE if self.header.is_some() && self.records.is_empty() => self.chunks.push(content),
            RECORDS if self.header.is_some() => self.take_records(&content)?,
            _ => return Err("a section is not where it may be"),
        }
        Ok(())
    }

    fn take_records(&mut self, content: &[u8]) -> Result<(), &'static str> {
        let mut reader = Reader(content);
        while !reader.0.is_empty() {
            let record = record(&mut reader).ok_or("a record is none")?;
            if self.records.len() as u64 >= CAPSULE_RECORDS_MAX {
                return Err("it has more records than a capsule may have");
            }
            self.records.push(record);
        }
        Ok(())
    }

    fn finish(self) -> Result<Capsule, String> {
        let Parts { header, chunks, records } = self;
        let header = header.ok_or("it has no header")?;
        let state = State::restore(&chunks).map_err(|error| error.to_string())?;
        if state.digest() != header.digest_before {
            return Err("its state is not the one that its header names".to_owned());
        }
        if state.log_index().0.checked_add(1) != Some(header.first_log_index) {
            return Err("its state is not that before its first record".to_owned());
        }
        let expected = header.first_log_index..=header.last_log_index;
        if !records.iter().map(|record| record.log_index.0).eq(expected) {
            return Err("its records are not those that its header names".to_owned());
        }
        Ok(Capsule { header, state, records })
    }
}

fn record(reader: &mut Reader<'_>) -> Option<CapsuleRecord> {
    let (log_index, log_time) = (LogIndex(reader.u64()?), LogTime(reader.u64()?));
    let leadership = Leadership { term: reader.u64()?, replica: ReplicaId(reader.u64()?) };
    let raft_index = reader.u64()?;
    let length = reader.u32()? as usize;
    let decision = from_canonical(reader.take(length)?)?;
    Some(CapsuleRecord { log_index, log_time, leadership, raft_index, decision })
}

#[cfg(test)]
mod tests {
    use muster_journal::Decision;
    use muster_types::{ClusterId, Parameters};

    use super::*;

    fn sample() -> Capsule {
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let (cluster, parameters) = (ClusterId(7), Parameters::DEFAULT);
        let created = Decision::ClusterCreated { cluster, generation: 1, parameters };
        let mut behind = State::default();
        let mut records = Vec::new();
        for (place, decision) in [Decision::LeaderStarted, created].into_iter().enumerate() {
            let (log_index, log_time) = (LogIndex(place as u64 + 1), LogTime(1_000));
            behind.apply(leadership, log_index, log_time, &decision);
            records.push(CapsuleRecord { log_index, log_time, leadership, raft_index: 1, decision });
        }
        let state = State::default();
        let header = CapsuleHeader {
            first_log_index: 1,
            last_log_index: 2,
            digest_before: state.digest(),
            digest_after: behind.digest(),
            version: "1.0.0".to_owned(),
            ..CapsuleHeader::default()
        };
        Capsule { header, state, records }
    }

    /// The sections of a file as they were before they were packed: tag, length, content.
    fn plain(bytes: &[u8]) -> Vec<u8> {
        let mut reader = Reader(&bytes[8..]);
        let mut plain = Vec::new();
        while let (Some(tag), Some(length), Some(_)) = (reader.u8(), reader.u32(), reader.u32()) {
            let content = unpack(reader.take(length as usize).unwrap(), CONTENT_BYTES_MAX).unwrap();
            plain.push(tag);
            plain.extend_from_slice(&(content.len() as u32).to_le_bytes());
            plain.extend_from_slice(&content);
        }
        plain
    }

    /// A file of such sections, whatever is in them: its checksums hold.
    fn file_of(plain: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&CAPSULE_LAYOUT.to_le_bytes());
        let mut sections = Sections { bytes, count: 0, all_bytes: 0 };
        let mut reader = Reader(plain);
        while let (Some(tag), Some(length)) = (reader.u8(), reader.u32()) {
            let Some(content) = reader.take(length as usize) else { break };
            sections.push(tag, content);
        }
        sections.bytes
    }

    #[test]
    fn a_file_is_what_was_written() {
        let (bytes, _) = encode(&sample());
        assert_eq!(file_of(&plain(&bytes)), bytes);
        let read = decode(&bytes, Path::new("a")).unwrap();
        assert_eq!((&read.header, &read.records), (&sample().header, &sample().records));
    }

    #[test]
    fn sections_are_bounded_where_nothing_is_in_them() {
        let sections = plain(&encode(&sample()).0);
        // Behind the header: its tag, its length and its content.
        let header = 5 + u32::from_le_bytes([sections[1], sections[2], sections[3], sections[4]]) as usize;
        let empty = [STATE, 0, 0, 0, 0].repeat(SECTIONS_MAX as usize);
        let sections = [&sections[..header], &empty[..], &sections[header..]].concat();
        match decode(&file_of(&sections), Path::new("a")) {
            Err(CapsuleError::Damaged { section, .. }) => assert_eq!(section, SECTIONS_MAX),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn damage_behind_checksums_that_hold_never_panics() {
        let seed = plain(&encode(&sample()).0);
        muster_fuzz::run(
            "capsule",
            std::slice::from_ref(&seed),
            |_| {},
            |input| match decode(&file_of(input), Path::new("a")) {
                Ok(capsule) => capsule.replay(None, |_, _, _| {}).is_ok() || input != seed,
                Err(_) => false,
            },
        );
    }
}
