//! A small file that says how far the log was once flushed.
//!
//! A database that lost its tail looks like one that never had it. This file stands outside the
//! database and is made durable after it and before anything is acknowledged, so that the two can
//! be compared at open: less in the database than here is damage. Two slots are written in turn; a
//! write torn by a crash leaves the other, and what the torn one said was not acknowledged yet.
//!
//! **Invariant:** it never says more than the database has durably, except for data that was lost.

use crate::codec::{CodecError, Reader, put_log_id, put_vote, read_log_id, read_vote, seal, unseal};
use crate::error::{Damage, StoreError};
use crate::identity::{damaged, file_error, sync_folder};
use crate::options::FileSync;
use crate::raft_types::{LogId, Vote};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILE: &str = "HIGHWATER";
const MAGIC: [u8; 4] = *b"MHW1";
/// One slot per disk sector or page, so that writing one never tears the other.
const SLOT_BYTES: usize = 4_096;
const SLOTS: u64 = 2;

/// What was flushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HighWater {
    /// The last entry and the checksum of its envelope.
    pub(crate) last: Option<(LogId, u32)>,
    /// The vote.
    pub(crate) vote: Option<Vote>,
}

fn encode(sequence: u64, value: &HighWater) -> Vec<u8> {
    let mut body = MAGIC.to_vec();
    body.extend_from_slice(&sequence.to_le_bytes());
    body.push(u8::from(value.last.is_some()));
    if let Some((log_id, chain)) = &value.last {
        put_log_id(&mut body, log_id);
        body.extend_from_slice(&chain.to_le_bytes());
    }
    body.push(u8::from(value.vote.is_some()));
    if let Some(vote) = &value.vote {
        put_vote(&mut body, vote);
    }
    let body = seal(body);
    let mut slot = (body.len() as u32).to_le_bytes().to_vec();
    slot.extend_from_slice(&body);
    slot.resize(SLOT_BYTES, 0);
    slot
}

fn decode(slot: &[u8]) -> Result<(u64, HighWater), CodecError> {
    let mut reader = Reader(slot);
    let len = reader.u32("the slot")? as usize;
    let mut reader = Reader(unseal(reader.take(len, "the slot")?, "the slot")?);
    if reader.take(4, "the magic")? != MAGIC {
        return Err(CodecError::Invalid("the magic"));
    }
    let sequence = reader.u64("sequence")?;
    let last =
        if reader.bool("last")? { Some((read_log_id(&mut reader)?, reader.u32("chain")?)) } else { None };
    let vote = if reader.bool("vote")? { Some(read_vote(&mut reader)?) } else { None };
    reader.end()?;
    Ok((sequence, HighWater { last, vote }))
}

/// The open file.
pub(crate) struct HighWaterFile {
    path: PathBuf,
    file: File,
    sequence: u64,
    value: HighWater,
    sync: Arc<dyn FileSync>,
}

impl HighWaterFile {
    pub(crate) fn path(dir: &Path) -> PathBuf {
        dir.join(FILE)
    }

    /// Creates a file that says nothing was flushed.
    pub(crate) fn create(dir: &Path, sync: Arc<dyn FileSync>) -> Result<Self, StoreError> {
        let path = Self::path(dir);
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let file = open().map_err(|source| file_error("creating", &path, source))?;
        let mut this = HighWaterFile { path, file, sequence: 0, value: HighWater::default(), sync };
        this.write(HighWater::default())?;
        this.write(HighWater::default())?;
        sync_folder(dir)?;
        Ok(this)
    }

    /// Opens the file of a complete replica; its absence is damage.
    pub(crate) fn open(dir: &Path, sync: Arc<dyn FileSync>) -> Result<Self, StoreError> {
        let path = Self::path(dir);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(damaged(dir, Damage::FileMissing { path }));
            }
            Err(source) => return Err(file_error("opening", &path, source)),
        };
        let mut newest: Option<(u64, HighWater)> = None;
        for slot_number in 0..SLOTS {
            let mut slot = vec![0; SLOT_BYTES];
            let whole = file.read_exact_at(&mut slot, slot_number * SLOT_BYTES as u64).is_ok();
            if let Ok(found) = decode(&slot)
                && whole
                && newest.is_none_or(|best| best.0 < found.0)
            {
                newest = Some(found);
            }
        }
        match newest {
            Some((sequence, value)) => Ok(HighWaterFile { path, file, sequence, value, sync }),
            None => {
                let detail = "neither slot is intact".to_owned();
                Err(damaged(dir, Damage::FileCorrupt { path, detail }))
            }
        }
    }

    pub(crate) fn value(&self) -> HighWater {
        self.value
    }

    /// Replaces the value, durably.
    pub(crate) fn write(&mut self, value: HighWater) -> Result<(), StoreError> {
        let sequence = self.sequence + 1;
        let offset = (sequence % SLOTS) * SLOT_BYTES as u64;
        self.file
            .write_all_at(&encode(sequence, &value), offset)
            .and_then(|()| self.sync.sync_data(&self.file))
            .map_err(|source| file_error("flushing", &self.path, source))?;
        self.sequence = sequence;
        self.value = value;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::SyncData;
    use crate::raft_types::LeaderId;
    use openraft::vote::RaftLeaderId;

    fn at(index: u64) -> HighWater {
        HighWater { last: Some((LogId::new(LeaderId::new(3, 1), index), 42)), vote: Some(Vote::new(3, 1)) }
    }

    #[test]
    fn the_newest_intact_slot_counts() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = HighWaterFile::create(dir.path(), Arc::new(SyncData)).unwrap();
        file.write(at(1)).unwrap();
        file.write(at(2)).unwrap();
        let newest_slot = (file.sequence % SLOTS) * SLOT_BYTES as u64;
        drop(file);
        let reopened = HighWaterFile::open(dir.path(), Arc::new(SyncData)).unwrap();
        assert_eq!(reopened.value(), at(2));
        // A torn write of the newest slot leaves the one before.
        let raw = OpenOptions::new().write(true).open(HighWaterFile::path(dir.path())).unwrap();
        raw.write_all_at(&[0xff; 20], newest_slot).unwrap();
        let reopened = HighWaterFile::open(dir.path(), Arc::new(SyncData)).unwrap();
        assert_eq!(reopened.value(), at(1));
        raw.set_len(10).unwrap();
        assert!(matches!(
            HighWaterFile::open(dir.path(), Arc::new(SyncData)),
            Err(StoreError::Damaged { .. })
        ));
    }
}
