//! A small file that says how far the log was once flushed.
//!
//! A log that lost its tail looks like one that never had it. This file stands next to the log and is
//! never ahead of it, so that the two can be compared at open: less in the log than here is damage.
//!
//! What it says is a *mark*. Flushing the file with every batch would double the flushes of the
//! path that everything waits for. So under load the mark of a batch is written into the segment the
//! next batch goes to, without a separate flush: the flush of that next batch takes it along. The
//! file itself is flushed with every vote, every new segment, every truncation, and once nothing has
//! been written for a moment. The mark with the highest sequence number counts, wherever it stands.
//!
//! Every place of marks has two slots that are written alternately; a write torn by a crash leaves the
//! other.
//!
//! **Invariant:** a mark never says more than the log had durably when it was written.

use crate::codec::{
    CodecError, Reader, put_log_id, put_log_id_option, put_vote, read_log_id, read_log_id_option, read_vote,
    seal, unseal,
};
use crate::error::{Damage, StoreError};
use crate::files::FileLayer;
use crate::identity::{damaged, file_error, sync_directory};
use crate::raft_types::{LogId, Vote};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const FILE: &str = "HIGHWATER";
const MAGIC: [u8; 4] = *b"MHW1";
/// One slot per page, so that writing one never tears the other.
pub(crate) const SLOT_BYTES: usize = 4_096;
pub(crate) const SLOTS: u64 = 2;

/// What was flushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HighWater {
    /// Rises with every mark.
    pub(crate) sequence: u64,
    /// The last entry and the checksum of its envelope.
    pub(crate) last: Option<(LogId, u32)>,
    /// The vote.
    pub(crate) vote: Option<Vote>,
    /// What is known to be committed. Not a promise: losing it costs a little time at restart.
    pub(crate) committed: Option<LogId>,
    /// The first entry of the segment that is written to; the segment exists.
    pub(crate) segment: Option<u64>,
}

/// The bytes of a slot; the rest of its page is zero.
pub(crate) fn encode(value: &HighWater) -> Vec<u8> {
    let mut body = MAGIC.to_vec();
    body.extend_from_slice(&value.sequence.to_le_bytes());
    body.push(u8::from(value.last.is_some()));
    if let Some((log_id, chain)) = &value.last {
        put_log_id(&mut body, log_id);
        body.extend_from_slice(&chain.to_le_bytes());
    }
    body.push(u8::from(value.vote.is_some()));
    if let Some(vote) = &value.vote {
        put_vote(&mut body, vote);
    }
    put_log_id_option(&mut body, value.committed.as_ref());
    body.push(u8::from(value.segment.is_some()));
    body.extend_from_slice(&value.segment.unwrap_or_default().to_le_bytes());
    let body = seal(body);
    let mut slot = (body.len() as u32).to_le_bytes().to_vec();
    slot.extend_from_slice(&body);
    slot
}

pub(crate) fn decode(slot: &[u8]) -> Result<HighWater, CodecError> {
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
    let committed = read_log_id_option(&mut reader)?;
    let segment = reader.bool("segment")?;
    let first_index = reader.u64("segment")?;
    reader.end()?;
    Ok(HighWater { sequence, last, vote, committed, segment: segment.then_some(first_index) })
}

/// The newest intact mark of the two slots that start at `offset`, and its slot.
pub(crate) fn newest_of(file: &File, offset: u64) -> Option<(u64, HighWater)> {
    let slots = (0..SLOTS).filter_map(|number| {
        let mut slot = vec![0; SLOT_BYTES];
        file.read_exact_at(&mut slot, offset + number * SLOT_BYTES as u64).ok()?;
        Some((number, decode(&slot).ok()?))
    });
    slots.max_by_key(|(_, value)| value.sequence)
}

/// The open file.
pub(crate) struct HighWaterFile {
    path: PathBuf,
    file: File,
    /// The slot that holds `value`.
    slot: u64,
    value: HighWater,
    files: Arc<dyn FileLayer>,
}

impl HighWaterFile {
    /// Creates a file that says nothing was flushed.
    pub(crate) fn create(dir: &Path, files: Arc<dyn FileLayer>) -> Result<Self, StoreError> {
        let path = dir.join(FILE);
        let file = files.create(&path).map_err(|source| file_error("creating", &path, source))?;
        files
            .write_at(&file, &path, &[0; SLOT_BYTES * SLOTS as usize], 0)
            .map_err(|source| file_error("writing", &path, source))?;
        let mut this = HighWaterFile { path, file, slot: 0, value: HighWater::default(), files };
        this.write(HighWater { sequence: 1, ..HighWater::default() })?;
        this.write(HighWater { sequence: 2, ..HighWater::default() })?;
        sync_directory(dir, this.files.as_ref())?;
        Ok(this)
    }

    /// Opens the file of a complete replica; its absence is damage.
    pub(crate) fn open(dir: &Path, files: Arc<dyn FileLayer>) -> Result<Self, StoreError> {
        let path = dir.join(FILE);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(damaged(dir, Damage::FileMissing { path }));
            }
            Err(source) => return Err(file_error("opening", &path, source)),
        };
        match newest_of(&file, 0) {
            Some((slot, value)) => Ok(HighWaterFile { path, file, slot, value, files }),
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
        let slot = (self.slot + 1) % SLOTS;
        self.files
            .write_at(&self.file, &self.path, &encode(&value), slot * SLOT_BYTES as u64)
            .and_then(|()| self.files.sync_data(&self.file, &self.path))
            .map_err(|source| file_error("flushing", &self.path, source))?;
        self.slot = slot;
        self.value = value;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::SystemFiles;
    use crate::raft_types::LeaderId;
    use openraft::vote::RaftLeaderId;

    fn at(index: u64) -> HighWater {
        let log_id = LogId::new(LeaderId::new(3, 1), index);
        HighWater {
            sequence: 10 + index,
            last: Some((log_id, 42)),
            vote: Some(Vote::new(3, 1)),
            committed: Some(log_id),
            segment: Some(index),
        }
    }

    #[test]
    fn the_newest_intact_slot_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let mut file = HighWaterFile::create(dir.path(), Arc::new(SystemFiles)).unwrap();
        file.write(at(1)).unwrap();
        file.write(at(2)).unwrap();
        let newest_slot = file.slot * SLOT_BYTES as u64;
        drop(file);
        let reopened = HighWaterFile::open(dir.path(), Arc::new(SystemFiles)).unwrap();
        assert_eq!(reopened.value(), at(2));
        // A torn write of the newest slot leaves the one before, and that is not written next.
        let raw = OpenOptions::new().write(true).open(&path).unwrap();
        raw.write_all_at(&[0xff; 20], newest_slot).unwrap();
        let mut reopened = HighWaterFile::open(dir.path(), Arc::new(SystemFiles)).unwrap();
        assert_eq!(reopened.value(), at(1));
        reopened.write(at(3)).unwrap();
        assert_eq!(reopened.slot * SLOT_BYTES as u64, newest_slot);
        raw.set_len(10).unwrap();
        assert!(matches!(
            HighWaterFile::open(dir.path(), Arc::new(SystemFiles)),
            Err(StoreError::Damaged { .. })
        ));
    }
}
