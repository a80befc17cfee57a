//! The log on disk: entries in segment files, vote and floor in a database, and the high-water mark in a file.
//!
//! A batch is one write into the preallocated space of a segment and one `fdatasync`. A purge removes
//! whole segments. Where the entries of the retained segments are is kept in memory.
//!
//! **Invariant:** the purge floor is durable before the first purged segment is removed; reads
//! honour it, and what a crash left half done is finished at open.
//! **Invariant:** the mark is lowered before a truncation and raised only after a flush.
//! **Invariant:** a batch that did not fit on the disk can be written again, at the same offset.

use crate::backend::{LogBackend, LogFloor, Recovered, WriteBatch};
use crate::codec;
use crate::error::{Damage, StoreError};
use crate::files::{FileLayer, is_out_of_space};
use crate::high_water::{self, HighWater, HighWaterFile, SLOT_BYTES, SLOTS};
use crate::identity::{create_directory, damaged, file_error, room_error};
use crate::meta::MetaDatabase;
use crate::options::StoreOptions;
use crate::raft_types::{Entry, LogId, Vote};
use crate::segment::{self, DATA_OFFSET, MARKS_OFFSET, ScanError, Scanned, Segment};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const LOG_DIRECTORY: &str = "log";
/// Offsets in a segment are four bytes; only the last entry may end behind this.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// One read of a segment.
const READ_BYTES_MAX: usize = 4 << 20;

/// The end of the log: its last entry, and the checksum the next envelope chains to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tip {
    last: Option<LogId>,
    chain: u32,
}

/// The log on disk. Opened by [`LogBackend::recover`].
pub struct DiskBackend {
    dir: PathBuf,
    options: StoreOptions,
    open: Option<OpenLog>,
}

/// The segment that is written to.
struct Active {
    first_index: u64,
    file: File,
    /// Written, not flushed.
    dirty: bool,
    mark_slot: u64,
}

struct OpenLog {
    dir: PathBuf,
    directory: PathBuf,
    files: Arc<dyn FileLayer>,
    segment_entries: u64,
    segment_bytes: u64,
    meta: MetaDatabase,
    high_water: HighWaterFile,
    /// By first index.
    segments: BTreeMap<u64, Segment>,
    active: Option<Active>,
    /// The sealed segment that was read last.
    reading: Option<(u64, File)>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    floor: Option<LogId>,
    floor_chain: u32,
    tip: Tip,
    sequence: u64,
    /// The high-water file says less than the log has.
    unsettled: bool,
    buffer: Vec<u8>,
    offsets: Vec<u32>,
}

impl DiskBackend {
    /// The log in `dir`, which [`DiskBackend::create`] made or another process left.
    #[must_use]
    pub fn new(dir: &Path, options: StoreOptions) -> Self {
        DiskBackend { dir: dir.to_path_buf(), options, open: None }
    }

    /// Creates an empty log in `dir` that starts after `floor`, complete and durable when this
    /// returns.
    ///
    /// # Errors
    /// When a file cannot be made or is there already.
    pub fn create(dir: &Path, options: &StoreOptions, floor: Option<LogId>) -> Result<(), StoreError> {
        create_directory(&dir.join(LOG_DIRECTORY), options.files.as_ref())?;
        MetaDatabase::create(dir, &options.files, floor)?;
        HighWaterFile::create(dir, options.files.clone()).map(drop)
    }

    fn opened(&mut self) -> Result<&mut OpenLog, StoreError> {
        self.open.as_mut().ok_or_else(|| StoreError::Stopped { reason: "it is not open".to_owned() })
    }
}

impl LogBackend for DiskBackend {
    fn recover(&mut self) -> Result<Recovered, StoreError> {
        let mut open = OpenLog::open(&self.dir, &self.options)?;
        let recovered = open.verify()?;
        self.open = Some(open);
        Ok(recovered)
    }

    fn write(&mut self, batch: &WriteBatch) -> Result<(), StoreError> {
        self.opened()?.write(batch)
    }

    fn truncate_after(&mut self, keep: Option<LogId>) -> Result<(), StoreError> {
        self.opened()?.truncate_after(keep)
    }

    fn purge(&mut self, floor: LogFloor) -> Result<(), StoreError> {
        self.opened()?.purge(floor.0)
    }

    fn read(&mut self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<Entry>, StoreError> {
        self.opened()?.read(start, end, bytes_max)
    }

    fn settle(&mut self) -> Result<(), StoreError> {
        self.opened()?.settle()
    }

    fn log_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.segments.values().map(|segment| segment.len).sum())
    }

    fn tidy(&mut self) -> Result<bool, StoreError> {
        self.opened()?.remove_one_segment()
    }
}

/// The good prefix of the log.
struct Scan {
    tip: Tip,
    /// Whether the entry the mark names is in the good prefix, as it was.
    mark_seen: bool,
}

/// Opening.
impl OpenLog {
    fn open(dir: &Path, options: &StoreOptions) -> Result<OpenLog, StoreError> {
        let files = options.files.clone();
        let high_water = HighWaterFile::open(dir, files.clone())?;
        let directory = dir.join(LOG_DIRECTORY);
        if !directory.is_dir() {
            return Err(damaged(dir, Damage::FileMissing { path: directory }));
        }
        let (meta, found) = MetaDatabase::open(dir, files.clone())?;
        Ok(OpenLog {
            dir: dir.to_path_buf(),
            directory,
            files,
            segment_entries: options.segment_entries.max(1),
            segment_bytes: options.segment_bytes.min(SEGMENT_BYTES_MAX),
            meta,
            high_water,
            segments: BTreeMap::new(),
            active: None,
            reading: None,
            vote: found.vote,
            committed: None,
            floor: found.floor,
            floor_chain: found.floor_chain,
            tip: Tip { last: found.floor, chain: found.floor_chain },
            sequence: 0,
            unsettled: true,
            buffer: Vec::new(),
            offsets: Vec::new(),
        })
    }

    /// Compares what is there with what was once acknowledged, and removes what never was.
    fn verify(&mut self) -> Result<Recovered, StoreError> {
        let mut names = segment::list(&self.directory, self.files.as_ref())?;
        let mark = self.newest_mark(&names);
        self.sequence = mark.sequence;
        if self.vote < mark.vote {
            let show = |vote: Option<Vote>| vote.map_or("none".to_owned(), |vote| vote.to_string());
            let damage = Damage::VoteLost { flushed: show(mark.vote), found: show(self.vote) };
            return Err(damaged(&self.dir, damage));
        }
        if let Some(first_index) = mark.segment
            && !names.contains(&first_index)
        {
            let path = segment::path_of(&self.directory, first_index);
            return Err(damaged(&self.dir, Damage::FileMissing { path }));
        }
        self.drop_purged(&mut names)?;
        let scan = self.scan(&names, mark.last)?;
        if let Some((flushed, _)) = mark.last
            && !scan.mark_seen
        {
            let intact_index = scan.tip.last.map(|last| last.index());
            let damage = Damage::EntriesLost { flushed_index: flushed.index(), intact_index };
            return Err(damaged(&self.dir, damage));
        }
        self.tip = scan.tip;
        self.committed = mark.committed.min(self.tip.last);
        self.drop_unacknowledged(&names)?;
        // From here on what was found counts as acknowledged, so the mark has to cover it. It does
        // before a purged segment that it may name is removed.
        self.sync_active(true)?;
        self.unsettled = true;
        self.settle()?;
        while self.remove_one_segment()? {}
        let starts = self.segments.keys().next().copied().unwrap_or_default();
        let has_entries = self.tip.last != self.floor;
        let first_index = self.floor.map_or(0, |floor| floor.index() + 1).max(starts);
        Ok(Recovered {
            vote: self.vote,
            committed: self.committed,
            floor: self.floor,
            last: self.tip.last,
            first_index: has_entries.then_some(first_index),
        })
    }

    /// The newest mark, in its own file or in a segment.
    fn newest_mark(&self, names: &[u64]) -> HighWater {
        let marks = names.iter().filter_map(|first_index| {
            let file = File::open(segment::path_of(&self.directory, *first_index)).ok()?;
            Some(high_water::newest_of(&file, MARKS_OFFSET)?.1)
        });
        let own = self.high_water.value();
        marks.filter(|mark| mark.sequence > own.sequence).max_by_key(|mark| mark.sequence).unwrap_or(own)
    }

    /// Removes the segments that lie wholly below the floor, without looking into them.
    fn drop_purged(&self, names: &mut Vec<u64>) -> Result<(), StoreError> {
        let Some(floor) = self.floor else { return Ok(()) };
        while let [first, second, ..] = names[..]
            && second <= floor.index() + 1
        {
            let path = segment::path_of(&self.directory, first);
            self.files.remove(&path).map_err(|source| file_error("removing", &path, source))?;
            names.remove(0);
        }
        Ok(())
    }

    fn scan(&mut self, names: &[u64], mark: Option<(LogId, u32)>) -> Result<Scan, StoreError> {
        let floor_index = self.floor.map(|floor| floor.index());
        let mut scan = Scan { tip: self.tip, mark_seen: true };
        if let Some((marked, _)) = mark {
            scan.mark_seen = floor_index >= Some(marked.index());
        }
        let mut buffer = Vec::new();
        for first_index in names {
            let (scanned, file) = match Segment::scan(&self.directory, *first_index, &mut buffer) {
                Ok(scanned) => scanned,
                Err(ScanError::Store(error)) => return Err(error),
                Err(ScanError::Corrupt(detail)) => {
                    let path = segment::path_of(&self.directory, *first_index);
                    return Err(damaged(&self.dir, Damage::FileCorrupt { path, detail }));
                }
            };
            if !self.follows(&scanned, scan.tip) {
                break;
            }
            for (log_id, checksum) in &scanned.entries {
                if Some(log_id.index()) > floor_index {
                    scan.tip = Tip { last: Some(*log_id), chain: *checksum };
                    scan.mark_seen |= mark == Some((*log_id, *checksum));
                }
            }
            let torn = scanned.torn;
            self.segments.insert(*first_index, scanned.segment);
            self.active = Some(Active { first_index: *first_index, file, dirty: false, mark_slot: 0 });
            if torn {
                break;
            }
        }
        Ok(scan)
    }

    /// Whether a segment goes on where `tip` ends. Entries below the floor are only stepped over.
    fn follows(&self, scanned: &Scanned, tip: Tip) -> bool {
        let first_index = scanned.segment.first_index;
        let next = tip.last.map(|last| last.index() + 1);
        match (next, self.floor) {
            // A log without a floor may start anywhere.
            (None, _) => scanned.first_chain == 0,
            (Some(next), _) if first_index == next => scanned.first_chain == tip.chain,
            // So may one that was purged up to before its start.
            (Some(next), _) if first_index > next && tip.last == self.floor => {
                (scanned.first_chain, self.floor_chain) == (0, 0)
            }
            (Some(_), Some(floor)) if tip.last == self.floor && first_index <= floor.index() => {
                let below = (floor.index() - first_index) as usize;
                match scanned.entries.get(below) {
                    Some((log_id, checksum)) => *log_id == floor && *checksum == self.floor_chain,
                    // The log was purged past its end.
                    None => !scanned.torn,
                }
            }
            _ => false,
        }
    }

    /// Cuts what follows the tip: it was never acknowledged.
    fn drop_unacknowledged(&mut self, names: &[u64]) -> Result<(), StoreError> {
        for first_index in names.iter().rev().filter(|name| !self.segments.contains_key(name)) {
            let path = segment::path_of(&self.directory, *first_index);
            tracing::warn!(path = %path.display(), "a segment that was never acknowledged follows the log; removed");
            self.files.remove(&path).map_err(|source| file_error("removing", &path, source))?;
        }
        if let Some(active) = &self.active
            && let Some(segment) = self.segments.get_mut(&active.first_index)
            && segment.written_end > segment.end
        {
            tracing::warn!(last = ?self.tip.last, "bytes that were never acknowledged follow the log; removed");
            segment.cut(segment.next_index(), &active.file, self.files.as_ref())?;
        }
        // A log that was purged past its end goes on in a new segment.
        let next = self.tip.last.map(|last| last.index() + 1);
        let goes_on = |active: &Active| {
            let end = self.segments.get(&active.first_index).map(Segment::next_index);
            next.is_none() || end == next
        };
        if !self.active.as_ref().is_some_and(goes_on) {
            self.active = None;
        }
        Ok(())
    }
}

/// Writing.
impl OpenLog {
    fn write(&mut self, batch: &WriteBatch) -> Result<(), StoreError> {
        // An attempt that found the disk full may have written a part already.
        let mut rest = batch.entries.as_slice();
        while let [entry, ..] = rest
            && Some(entry.log_id) <= self.tip.last
        {
            rest = &rest[1..];
        }
        while !rest.is_empty() {
            let written = self.write_run(rest)?;
            rest = &rest[written..];
        }
        self.committed = self.committed.max(batch.committed);
        self.sync_active(false)?;
        if let Some(vote) = &batch.vote {
            self.meta.put_vote(vote)?;
            self.vote = Some(*vote);
            self.unsettled = true;
            return self.settle();
        }
        self.mark()
    }

    /// Writes as many of the entries as fit the active segment, at least one, in one piece.
    fn write_run(&mut self, entries: &[Entry]) -> Result<usize, StoreError> {
        self.buffer.clear();
        self.offsets.clear();
        let [first, ..] = entries else { return Ok(0) };
        let mut chain = codec::put_entry(&mut self.buffer, first, self.tip.chain);
        let first_index = first.log_id.index();
        if !self.has_room(first_index, self.buffer.len() as u64) {
            self.roll(first_index, self.buffer.len() as u64)?;
        }
        let Some((active, segment)) = Self::active(&mut self.active, &mut self.segments) else {
            return Err(StoreError::EntryMissing { index: first_index });
        };
        let room_entries = self.segment_entries.saturating_sub(segment.entries()).max(1);
        let room_bytes = segment.len.saturating_sub(segment.end);
        let mut count = 1;
        // Below the first offset that would not fit four bytes: the segment is not so large.
        self.offsets.push(segment.end as u32);
        for entry in entries.iter().take(usize::try_from(room_entries).unwrap_or(usize::MAX)).skip(1) {
            let start = self.buffer.len();
            let checksum = codec::put_entry(&mut self.buffer, entry, chain);
            if self.buffer.len() as u64 > room_bytes {
                self.buffer.truncate(start);
                break;
            }
            self.offsets.push((segment.end + start as u64) as u32);
            chain = checksum;
            count += 1;
        }
        let end = segment.end + self.buffer.len() as u64;
        segment.written_end = segment.written_end.max(end);
        active.dirty = true;
        self.files
            .write_at(&active.file, &segment.path, &self.buffer, segment.end)
            .map_err(|source| room_error("writing", &segment.path, source))?;
        segment.accept(&self.offsets, end);
        self.tip = Tip { last: Some(entries[count - 1].log_id), chain };
        if self.buffer.capacity() > 2 * READ_BYTES_MAX {
            self.buffer = Vec::new();
        }
        Ok(count)
    }

    fn active<'a>(
        active: &'a mut Option<Active>,
        segments: &'a mut BTreeMap<u64, Segment>,
    ) -> Option<(&'a mut Active, &'a mut Segment)> {
        let active = active.as_mut()?;
        let segment = segments.get_mut(&active.first_index)?;
        Some((active, segment))
    }

    fn has_room(&mut self, index: u64, bytes: u64) -> bool {
        let entries_max = self.segment_entries;
        Self::active(&mut self.active, &mut self.segments).is_some_and(|(_, segment)| {
            segment.next_index() == index
                && segment.entries() < entries_max
                && segment.end + bytes <= segment.len
        })
    }

    /// Closes the active segment and makes one that starts with entry `first_index`.
    fn roll(&mut self, first_index: u64, bytes: u64) -> Result<(), StoreError> {
        self.sync_active(false)?;
        if let Some((active, segment)) = Self::active(&mut self.active, &mut self.segments)
            && segment.len > segment.end
        {
            // What was allocated and is not needed any more goes back.
            self.files
                .set_len(&active.file, &segment.path, segment.end)
                .map_err(|source| file_error("trimming", &segment.path, source))?;
            segment.len = segment.end;
        }
        let len = (DATA_OFFSET + bytes).max(self.segment_bytes);
        let (segment, file) =
            Segment::create(&self.directory, first_index, self.tip.chain, len, self.files.as_ref())?;
        self.segments.insert(first_index, segment);
        self.active = Some(Active { first_index, file, dirty: false, mark_slot: 0 });
        self.unsettled = true;
        self.settle()
    }

    /// The one flush of the hot path.
    fn sync_active(&mut self, always: bool) -> Result<(), StoreError> {
        let Some((active, segment)) = Self::active(&mut self.active, &mut self.segments) else {
            return Ok(());
        };
        if active.dirty || always {
            self.files
                .sync_data(&active.file, &segment.path)
                .map_err(|source| file_error("flushing", &segment.path, source))?;
            active.dirty = false;
        }
        Ok(())
    }

    fn high_water_now(&mut self) -> HighWater {
        self.sequence += 1;
        // Where the log is empty the floor stands for its end; snapshots vouch for what is below.
        let last = self.tip.last.filter(|last| Some(*last) != self.floor).map(|last| (last, self.tip.chain));
        let segment = self.active.as_ref().map(|active| active.first_index);
        HighWater { sequence: self.sequence, last, vote: self.vote, committed: self.committed, segment }
    }

    /// Says in the active segment how far it is flushed; the next flush of it takes that along.
    fn mark(&mut self) -> Result<(), StoreError> {
        let mark = high_water::encode(&self.high_water_now());
        self.unsettled = true;
        let Some((active, segment)) = Self::active(&mut self.active, &mut self.segments) else {
            return self.settle();
        };
        active.mark_slot = (active.mark_slot + 1) % SLOTS;
        let offset = MARKS_OFFSET + active.mark_slot * SLOT_BYTES as u64;
        match self.files.write_at(&active.file, &segment.path, &mark, offset) {
            // On a file system that needs free space to overwrite, the mark before it counts.
            Err(source) if is_out_of_space(&source) => Ok(()),
            written => written.map_err(|source| file_error("marking", &segment.path, source)),
        }
    }

    fn settle(&mut self) -> Result<(), StoreError> {
        if self.unsettled {
            let now = self.high_water_now();
            self.high_water.write(now)?;
            self.unsettled = false;
        }
        Ok(())
    }

    fn truncate_after(&mut self, keep: Option<LogId>) -> Result<(), StoreError> {
        if self.tip.last <= keep {
            return Ok(());
        }
        let keep = keep.max(self.floor);
        self.tip = match keep {
            Some(keep) if Some(keep) != self.floor => {
                Tip { last: Some(keep), chain: self.checksum(keep.index())? }
            }
            _ => Tip { last: self.floor, chain: self.floor_chain },
        };
        self.committed = self.committed.min(self.tip.last);
        let first = keep.map_or(0, |keep| keep.index() + 1);
        let removed: Vec<u64> = self.segments.range(first..).map(|(first_index, _)| *first_index).collect();
        let cut = self.segments.range(..first).next_back().map(|(first_index, _)| *first_index);
        // Its entries may all be below the floor, if the log was purged past its end.
        let cut = cut.filter(|cut| self.segments[cut].next_index() >= first);
        self.active = match cut {
            Some(first_index) => {
                let file = segment::open_file(&self.segments[&first_index].path)?;
                Some(Active { first_index, file, dirty: false, mark_slot: 0 })
            }
            None => None,
        };
        // Lowered first: a crash in between leaves more than was promised, never less.
        self.unsettled = true;
        self.settle()?;
        // From the end backward, so that a crash in between leaves no hole.
        for first_index in removed.iter().rev() {
            if let Some(segment) = self.segments.remove(first_index) {
                let path = &segment.path;
                self.files.remove(path).map_err(|source| file_error("truncating", path, source))?;
            }
        }
        self.reading = None;
        if !removed.is_empty() {
            crate::identity::sync_directory(&self.directory, self.files.as_ref())?;
        }
        match Self::active(&mut self.active, &mut self.segments) {
            Some((active, segment)) => segment.cut(first, &active.file, self.files.as_ref()),
            None => Ok(()),
        }
    }

    fn purge(&mut self, floor: LogId) -> Result<(), StoreError> {
        if Some(floor) <= self.floor {
            return Ok(());
        }
        let starts = self.segments.keys().next().copied().unwrap_or(u64::MAX);
        let inside = self.tip.last.is_some_and(|last| last.index() >= floor.index());
        let chain = if !inside {
            // Past the end there is nothing to chain to: the next entry starts a new chain.
            0
        } else if floor.index() < starts {
            // Nothing is removed; the first entry chains to what it always did.
            self.floor_chain
        } else {
            self.checksum(floor.index())?
        };
        self.meta.put_floor(Some(floor), chain)?;
        self.floor = Some(floor);
        self.floor_chain = chain;
        if self.tip.last.is_none_or(|last| last.index() <= floor.index()) {
            if !inside {
                self.active = None;
            }
            self.tip = Tip { last: Some(floor), chain };
        }
        self.unsettled = true;
        self.settle()
    }

    /// Removes one segment that lies wholly below the floor. Returns whether there is another.
    fn remove_one_segment(&mut self) -> Result<bool, StoreError> {
        let Some(first_index) = self.purged_segment() else { return Ok(false) };
        if let Some(segment) = self.segments.remove(&first_index) {
            let path = &segment.path;
            // Should a crash bring the name back, the next open removes it again.
            self.files.remove(path).map_err(|source| file_error("purging", path, source))?;
        }
        if self.reading.as_ref().is_some_and(|(reading, _)| *reading == first_index) {
            self.reading = None;
        }
        Ok(self.purged_segment().is_some())
    }

    fn purged_segment(&self) -> Option<u64> {
        let floor = self.floor?;
        let (first_index, segment) = self.segments.first_key_value()?;
        let is_active = self.active.as_ref().is_some_and(|active| active.first_index == *first_index);
        (!is_active && segment.next_index() <= floor.index() + 1).then_some(*first_index)
    }
}

/// Reading.
impl OpenLog {
    /// Where entries stand: their segment, and how many of those before `end` it has within the
    /// bytes, at least one.
    fn place(&self, start: u64, end: u64, bytes_max: usize) -> Result<(&Segment, u64, u64), StoreError> {
        let missing = StoreError::EntryMissing { index: start };
        let found = self.segments.range(..=start).next_back().map(|(_, segment)| segment);
        let Some(segment) = found.filter(|segment| start < segment.next_index()) else {
            return Err(missing);
        };
        let end = end.min(segment.next_index());
        let Some(from) = segment.offset(start) else { return Err(missing) };
        let mut last = start + 1;
        while last < end && segment.offset(last).is_some_and(|offset| offset - from < bytes_max as u64) {
            last += 1;
        }
        let Some(to) = segment.offset(last) else { return Err(missing) };
        Ok((segment, from, to))
    }

    /// The envelopes of one segment from `start` on.
    fn read_piece(&mut self, start: u64, end: u64, bytes_max: usize) -> Result<Bytes, StoreError> {
        let (segment, from, to) = self.place(start, end, bytes_max)?;
        let (first_index, path) = (segment.first_index, segment.path.clone());
        let file = match (&self.active, &self.reading) {
            (Some(active), _) if active.first_index == first_index => &active.file,
            (_, Some((reading, file))) if *reading == first_index => file,
            _ => {
                let file = File::open(&path).map_err(|source| file_error("opening", &path, source))?;
                &self.reading.insert((first_index, file)).1
            }
        };
        let mut bytes = vec![0; (to - from) as usize];
        file.read_exact_at(&mut bytes, from).map_err(|source| file_error("reading", &path, source))?;
        Ok(Bytes::from(bytes))
    }

    /// The checksum of the envelope of an entry.
    fn checksum(&mut self, index: u64) -> Result<u32, StoreError> {
        let envelope = self.read_piece(index, index + 1, 0)?;
        match codec::check_envelope(&envelope) {
            Ok(found) if found.log_id.index() == index => Ok(found.checksum),
            Ok(_) => Err(StoreError::EntryMissing { index }),
            Err(source) => Err(StoreError::EntryCorrupt { index, source }),
        }
    }

    fn read(&mut self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<Entry>, StoreError> {
        let bytes_max = bytes_max.min(READ_BYTES_MAX);
        let start = start.max(self.floor.map_or(0, |floor| floor.index() + 1));
        let end = end.min(self.tip.last.map_or(0, |last| last.index() + 1));
        let mut found: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        let mut next = start;
        while next < end && (bytes < bytes_max || found.is_empty()) {
            let mut piece = self.read_piece(next, end, bytes_max - bytes)?;
            bytes += piece.len();
            while !piece.is_empty() {
                let corrupt = |source| StoreError::EntryCorrupt { index: next, source };
                let len = codec::envelope_len(&piece).map_err(corrupt)?.min(piece.len());
                let (entry, _) = codec::decode_entry(&piece.split_to(len)).map_err(corrupt)?;
                if entry.log_id.index() != next {
                    return Err(StoreError::EntryMissing { index: next });
                }
                found.push(entry);
                next += 1;
            }
        }
        Ok(found)
    }
}
