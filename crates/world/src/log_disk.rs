//! A replica's log on a simulated disk: what the product's writer asks of storage, carried out in simulated time.
//!
//! One journal holds entries, votes, truncations, purges and what is known to be committed, in the order they were
//! written. A separate mark records how far it was once synced: less than that is damage, never a short log.
//!
//! The contract is that of `LogBackend` in `muster-store`. A batch is one write and one sync; what was not synced is lost or torn
//! when power fails, a sync may fail or take long, and a full disk refuses a batch, perhaps after it took a part of it.

use crate::disk::Disk;
use crate::runtime::{Host, below, event};
use bytes::Bytes;
use muster_store::{
    Entry, LeaderId, LogId, Recovered, StorageOperation, StorageOutcome, StoreError, Vote, WriteBatch,
    decode_entry, encode_entry,
};
use openraft::vote::RaftLeaderId;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

const MARK: &str = "mark";
const KIND_ENTRY: u8 = 1;
const KIND_VOTE: u8 = 2;
const KIND_TRUNCATE: u8 = 3;
const KIND_PURGE: u8 = 4;
const KIND_COMMITTED: u8 = 5;
/// Kind, length, checksum.
const FRAME_BYTES: usize = 9;

/// Less is there than was acknowledged.
#[derive(Debug)]
pub struct Damaged {
    /// Bytes that are intact.
    pub intact: usize,
    /// Bytes that were marked as synced.
    pub marked: usize,
}

/// What the disk has of a log.
#[derive(Default)]
struct Content {
    entries: BTreeMap<u64, Entry>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    floor: Option<LogId>,
    /// Checksum of the envelope written last.
    chain: u32,
}

impl Content {
    fn last(&self) -> Option<LogId> {
        self.entries.values().next_back().map(|entry| entry.log_id).or(self.floor)
    }

    fn insert(&mut self, entry: &Entry, envelope: &[u8]) {
        self.chain = crc32fast::hash(envelope);
        self.entries.insert(entry.log_id.index(), entry.clone());
    }

    fn truncate(&mut self, keep: Option<LogId>) {
        self.entries.split_off(&keep.map_or(0, |keep| keep.index() + 1));
    }

    fn purge(&mut self, floor: LogId) {
        self.floor = self.floor.max(Some(floor));
        self.entries = self.entries.split_off(&(floor.index() + 1));
    }
}

/// The storage of one start of a replica.
pub struct LogDisk {
    host: Host,
    disk: Disk,
    content: Content,
    /// The last entry that would survive a loss of power.
    durable: Option<LogId>,
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + FRAME_BYTES);
    out.push(kind);
    out.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(body);
    let sum = crc32fast::hash(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// The first whole frame, and how long it is.
fn unframe(bytes: &[u8]) -> Option<(u8, &[u8], usize)> {
    let kind = *bytes.first()?;
    let len = u32::from_le_bytes(bytes.get(1..5)?.try_into().ok()?) as usize;
    let end = 5usize.checked_add(len)?;
    let sum = u32::from_le_bytes(bytes.get(end..end.checked_add(4)?)?.try_into().ok()?);
    (crc32fast::hash(&bytes[..end]) == sum).then(|| (kind, &bytes[5..end], end + 4))
}

fn words(body: &[u8]) -> Vec<u64> {
    body.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_le_bytes)).collect()
}

fn log_id_of(words: &[u64]) -> Option<LogId> {
    let [term, node, index] = words.try_into().ok()?;
    Some(LogId::new(LeaderId::new(term, node), index))
}

fn log_id_body(log_id: Option<LogId>) -> Vec<u8> {
    let Some(log_id) = log_id else { return Vec::new() };
    let leader = log_id.committed_leader_id();
    [leader.term, leader.node_id, log_id.index()].iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn vote_body(vote: &Vote) -> Vec<u8> {
    let fields = [vote.leader_id.term, vote.leader_id.node_id, u64::from(vote.committed)];
    fields.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Reads the journal back; how much of it is intact.
fn replay(bytes: &[u8], content: &mut Content) -> usize {
    let mut at = 0;
    while let Some((kind, body, len)) = unframe(&bytes[at..]) {
        match kind {
            KIND_ENTRY => {
                let Ok((entry, chain)) = decode_entry(&Bytes::copy_from_slice(body)) else { break };
                if chain != content.chain {
                    break;
                }
                content.insert(&entry, body);
            }
            KIND_VOTE => {
                let [term, node, committed] = words(body)[..] else { break };
                let vote =
                    if committed == 1 { Vote::new_committed(term, node) } else { Vote::new(term, node) };
                content.vote = Some(vote);
            }
            KIND_TRUNCATE => content.truncate(log_id_of(&words(body))),
            KIND_PURGE => {
                let Some(floor) = log_id_of(&words(body)) else { break };
                content.purge(floor);
            }
            KIND_COMMITTED => content.committed = log_id_of(&words(body)),
            _ => break,
        }
        at += len;
    }
    at
}

fn no_space() -> StoreError {
    let source = io::Error::from(io::ErrorKind::StorageFull);
    StoreError::NoSpace { operation: "writing", path: PathBuf::from("log"), source }
}

impl LogDisk {
    /// Opens what a host's disk has.
    ///
    /// # Errors
    /// When less is intact than was once marked.
    pub fn open(host: Host, disk: &Disk) -> Result<(LogDisk, Recovered), Damaged> {
        let bytes = disk.log();
        let mut content = Content::default();
        let intact = replay(&bytes, &mut content);
        let mark = disk.file(MARK).and_then(|mark| mark.try_into().ok()).map_or(0, u64::from_le_bytes);
        let marked = usize::try_from(mark).unwrap_or(usize::MAX);
        if intact < marked {
            return Err(Damaged { intact, marked });
        }
        if intact < bytes.len() {
            event("torn", format_args!("n{host} {} of {} bytes", intact, bytes.len()));
            disk.cut(intact);
        }
        let last = content.last();
        let recovered = Recovered {
            vote: content.vote,
            // Never past what is there: a start that waits for more would wait for ever.
            committed: content.committed.min(last),
            floor: content.floor,
            last,
            first_index: content.entries.keys().next().copied(),
        };
        Ok((LogDisk { host, disk: disk.clone(), content, durable: last }, recovered))
    }

    /// The last entry that would survive a loss of power; where there is none, the floor.
    pub fn durable(&self) -> Option<LogId> {
        self.durable
    }

    /// Carries out what the writer asks for.
    ///
    /// # Errors
    /// As those of `LogBackend`.
    pub async fn carry_out(&mut self, operation: &StorageOperation) -> Result<StorageOutcome, StoreError> {
        match operation {
            StorageOperation::Write(batch) => {
                self.append(batch)?;
                self.sync().await?;
            }
            StorageOperation::Truncate { keep } => {
                event("truncate", format_args!("n{} after {keep:?}", self.host));
                self.durable = self.durable.min((*keep).max(self.content.floor));
                self.content.truncate(*keep);
                self.note(KIND_TRUNCATE, &log_id_body(*keep));
                self.sync().await?;
            }
            StorageOperation::Purge(floor) => {
                self.content.purge(floor.0);
                self.note(KIND_PURGE, &log_id_body(Some(floor.0)));
                self.sync().await?;
            }
            StorageOperation::Read { start, end, bytes_max } => {
                return Ok(StorageOutcome::Entries(self.read(*start, *end, *bytes_max)));
            }
            // The mark is always what the log has.
            StorageOperation::Settle => {}
            StorageOperation::Tidy => return Ok(StorageOutcome::Tidied { more: false }),
        }
        Ok(StorageOutcome::Done)
    }

    /// One write. A full disk may have taken some of the entries; the next attempt goes on behind them.
    fn append(&mut self, batch: &WriteBatch) -> Result<(), StoreError> {
        let mut left = if self.disk.is_full() { below(batch.entries.len() as u64 + 1) } else { u64::MAX };
        for entry in &batch.entries {
            if Some(entry.log_id) <= self.content.last() {
                continue;
            }
            left = left.checked_sub(1).ok_or_else(no_space)?;
            let envelope = encode_entry(entry, self.content.chain);
            self.disk.append(&frame(KIND_ENTRY, &envelope));
            self.content.insert(entry, &envelope);
        }
        if self.disk.is_full() {
            return Err(no_space());
        }
        if let Some(committed) = batch.committed {
            self.content.committed = Some(committed);
            self.note(KIND_COMMITTED, &log_id_body(Some(committed)));
        }
        if let Some(vote) = &batch.vote {
            self.content.vote = Some(*vote);
            self.note(KIND_VOTE, &vote_body(vote));
        }
        Ok(())
    }

    /// Small, and in space that is kept for it.
    fn note(&self, kind: u8, body: &[u8]) {
        self.disk.append(&frame(kind, body));
    }

    /// The journal first, then the mark: the mark never says more than is there.
    async fn sync(&mut self) -> Result<(), StoreError> {
        let (end, last) = (self.disk.log_bytes(), self.content.last());
        if self.disk.sync().await.is_err() {
            let source = io::Error::other("the disk failed");
            return Err(StoreError::File { operation: "flushing", path: PathBuf::from("log"), source });
        }
        self.durable = last;
        self.disk.overwrite(MARK, Some((end as u64).to_le_bytes().to_vec())).await;
        Ok(())
    }

    fn read(&self, start: u64, end: u64, bytes_max: usize) -> Vec<Entry> {
        let mut bytes = 0;
        let mut found = Vec::new();
        for entry in self.content.entries.range(start..end.max(start)).map(|(_, entry)| entry) {
            if bytes >= bytes_max && !found.is_empty() {
                break;
            }
            bytes += encode_entry(entry, 0).len();
            found.push(entry.clone());
        }
        found
    }
}
