//! The log on sled.
//!
//! One tree per segment of indexes, so that purging drops whole trees: deleting key by key took
//! thirty times as long and gave nothing back. An entry is cut into pieces, because sled moves a
//! page larger than a quarter of its segment into a file of its own, which it never flushes.
//! sled's own flush reaches the kernel, not the disk, so every flush is followed by an `fdatasync`
//! of its data file, and by one of the high-water file.
//!
//! **Invariant:** the purge floor is durable before the first purged entry is removed; reads honour
//! it, and what a crash left half done is finished at open.
//! **Invariant:** the high-water file is lowered before a truncation and raised after a flush.

use crate::backend::{LogBackend, LogFloor, Recovered, WriteBatch};
use crate::codec::{
    self, CodecError, Reader, put_log_id_option, put_vote, read_log_id_option, read_vote, seal, unseal,
};
use crate::error::{Damage, StoreError};
use crate::high_water::{HighWater, HighWaterFile};
use crate::identity::{damaged, file_error, sync_folder};
use crate::io_thread::contained;
use crate::memory::entry_bytes;
use crate::options::StoreOptions;
use crate::raft_types::{Entry, LogId, Vote};
use crate::store::SNAPSHOT_FOLDER;
use bytes::{Bytes, BytesMut};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LOG_FOLDER: &str = "log";
const META_TREE: &str = "meta";
const SEGMENT_PREFIX: &str = "log/";
const KEY_VOTE: &str = "vote";
const KEY_COMMITTED: &str = "committed";
const KEY_FLOOR: &str = "floor";

/// sled's unit of file allocation; a page larger than a quarter of it leaves the data file.
const SLED_SEGMENT_BYTES: usize = 8 << 20;
/// A sled leaf splits above 16 values and merges with a neighbour of fewer than 4, so a page has
/// at most about 20 pieces.
const PIECE_BYTES: usize = 64 << 10;
const PIECES_IN_PAGE_MAX: usize = 24;
const _: () = assert!(PIECE_BYTES * PIECES_IN_PAGE_MAX < SLED_SEGMENT_BYTES / 4);
const KEY_BYTES: usize = 10;

fn database(operation: &'static str) -> impl Fn(sled::Error) -> StoreError {
    move |source| StoreError::Database { operation, source }
}

fn key(index: u64, piece: u16) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&index.to_be_bytes());
    key[8..].copy_from_slice(&piece.to_be_bytes());
    key
}

fn index_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(..8)?.try_into().ok()?))
}

fn segment_name(segment: u64) -> String {
    // Fixed width, so that the names sort like the numbers.
    format!("{SEGMENT_PREFIX}{segment:016x}")
}

fn segment_number(name: &[u8]) -> Option<u64> {
    let name = std::str::from_utf8(name).ok()?;
    u64::from_str_radix(name.strip_prefix(SEGMENT_PREFIX)?, 16).ok()
}

/// The end of the log: its last entry, and the checksum the next envelope chains to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tip {
    last: Option<LogId>,
    chain: u32,
}

/// The log on sled. Opened by [`LogBackend::recover`].
pub struct SledBackend {
    dir: PathBuf,
    options: StoreOptions,
    open: Option<OpenDatabase>,
}

struct OpenDatabase {
    dir: PathBuf,
    db: sled::Db,
    meta: sled::Tree,
    /// The segment that is written to.
    current: Option<(u64, sled::Tree)>,
    segments: BTreeSet<u64>,
    segment_entries: u64,
    data_file: File,
    high_water: HighWaterFile,
    options: StoreOptions,
    vote: Option<Vote>,
    floor: Option<LogId>,
    floor_chain: u32,
    /// The first entry there is; right after the floor, except in a log that starts elsewhere.
    first_index: u64,
    tip: Tip,
}

impl SledBackend {
    /// The log in `dir`, which [`SledBackend::create`] made or another process left.
    #[must_use]
    pub fn new(dir: &Path, options: StoreOptions) -> Self {
        SledBackend { dir: dir.to_path_buf(), options, open: None }
    }

    /// Creates an empty log in `dir`, complete and durable when this returns.
    ///
    /// # Errors
    /// When a file cannot be made, or entries of an earlier replica are in the folder.
    pub fn create(dir: &Path, options: &StoreOptions) -> Result<(), StoreError> {
        let folder = dir.join(LOG_FOLDER);
        // An interrupted creation is started again; anything that was ever flushed stays. Snapshots
        // get their folder after creation, so it too says that there was a replica.
        let flushed = HighWaterFile::open(dir, options.sync.clone())
            .is_ok_and(|high_water| high_water.value() != HighWater::default());
        if flushed || dir.join(SNAPSHOT_FOLDER).exists() {
            let path = dir.join("IDENTITY");
            return Err(damaged(dir, Damage::FileMissing { path }));
        }
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(|source| file_error("removing", &folder, source))?;
        }
        std::fs::create_dir_all(&folder).map_err(|source| file_error("creating", &folder, source))?;
        let db = open_sled(&folder, options)?;
        db.open_tree(META_TREE).map_err(database("creating"))?;
        db.flush().map_err(database("flushing"))?;
        drop(db);
        for file in std::fs::read_dir(&folder).map_err(|source| file_error("listing", &folder, source))? {
            let path = file.map_err(|source| file_error("listing", &folder, source))?.path();
            File::open(&path)
                .and_then(|file| file.sync_all())
                .map_err(|source| file_error("flushing", &path, source))?;
        }
        sync_folder(&folder)?;
        HighWaterFile::create(dir, options.sync.clone())?;
        sync_folder(dir)
    }

    fn opened(&mut self) -> Result<&mut OpenDatabase, StoreError> {
        self.open.as_mut().ok_or_else(|| StoreError::Stopped { reason: "it is not open".to_owned() })
    }
}

/// A file that ends early or does not add up was written once and is not any more; a system that
/// refuses to open it says nothing about its content.
fn speaks_of_damage(error: &sled::Error) -> bool {
    use std::io::ErrorKind::{InvalidData, InvalidInput, NotFound, UnexpectedEof};
    match error {
        sled::Error::Io(error) => {
            matches!(error.kind(), InvalidData | InvalidInput | NotFound | UnexpectedEof)
        }
        _ => true,
    }
}

/// Threads of a database that this process just closed may hold its lock a moment longer.
const SLED_LOCK_WAIT_MAX: Duration = Duration::from_secs(5);

fn open_sled(folder: &Path, options: &StoreOptions) -> Result<sled::Db, StoreError> {
    let started = Instant::now();
    loop {
        let opened = sled::Config::new()
            .path(folder)
            .cache_capacity(options.cache_bytes_max)
            .segment_size(SLED_SEGMENT_BYTES)
            .flush_every_ms(None)
            .open();
        match opened {
            Err(sled::Error::Io(error))
                if error.to_string().contains("could not acquire lock")
                    && started.elapsed() < SLED_LOCK_WAIT_MAX =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.map_err(database("opening")),
        }
    }
}

impl LogBackend for SledBackend {
    fn recover(&mut self) -> Result<Recovered, StoreError> {
        let dir = self.dir.clone();
        let options = self.options.clone();
        // sled checks itself by panicking, some of it on threads of its own, and flushes when it is
        // dropped: a thread of ours takes the panic, and a database that did not verify is left as
        // it is, for whoever examines it.
        let opening = std::thread::Builder::new()
            .name("muster-log-open".to_owned())
            .spawn(move || contained("opening", || OpenDatabase::open(&dir, options)))
            .map_err(StoreError::StartThread)?;
        let opened = opening.join().unwrap_or_else(|panic| {
            let detail = crate::io_thread::panic_text(panic.as_ref());
            Err(StoreError::DatabasePanicked { operation: "opening", detail })
        });
        match opened {
            Ok((open, recovered)) => {
                self.open = Some(open);
                Ok(recovered)
            }
            Err(StoreError::Database { source, operation }) if speaks_of_damage(&source) => {
                Err(damaged(&self.dir, Damage::Database { detail: format!("{operation}: {source}") }))
            }
            Err(StoreError::DatabasePanicked { operation, detail }) => {
                Err(damaged(&self.dir, Damage::Database { detail: format!("{operation}: {detail}") }))
            }
            Err(error) => Err(error),
        }
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

    fn tidy(&mut self) -> Result<bool, StoreError> {
        self.opened()?.drop_one_segment()
    }
}

/// What the meta tree says.
#[derive(Default)]
struct Meta {
    vote: Option<Vote>,
    committed: Option<LogId>,
    floor: Option<LogId>,
    floor_chain: u32,
}

fn read_meta<T>(
    dir: &Path,
    meta: &sled::Tree,
    name: &'static str,
    decode: impl FnOnce(&mut Reader<'_>) -> Result<T, CodecError>,
) -> Result<Option<T>, StoreError> {
    let Some(bytes) = meta.get(name).map_err(database("reading"))? else {
        return Ok(None);
    };
    let decoded = unseal(&bytes, name).and_then(|body| decode(&mut Reader(body)));
    decoded.map(Some).map_err(|error| damaged(dir, Damage::Database { detail: format!("{name}: {error}") }))
}

impl Meta {
    fn read(dir: &Path, meta: &sled::Tree) -> Result<Meta, StoreError> {
        let vote = read_meta(dir, meta, KEY_VOTE, read_vote)?;
        let committed = read_meta(dir, meta, KEY_COMMITTED, read_log_id_option)?.flatten();
        let floor = read_meta(dir, meta, KEY_FLOOR, |reader| {
            Ok((read_log_id_option(reader)?, reader.u32("chain")?))
        })?;
        let (floor, floor_chain) = floor.unwrap_or_default();
        Ok(Meta { vote, committed, floor, floor_chain })
    }
}

/// The good prefix of the log, and what follows it.
struct Scan {
    tip: Tip,
    /// Whether the entry the high-water file names is in the good prefix, as it was.
    high_water_seen: bool,
    /// Something after the good prefix has to be removed.
    torn: bool,
    first_index: Option<u64>,
}

impl OpenDatabase {
    fn open(dir: &Path, options: StoreOptions) -> Result<(OpenDatabase, Recovered), StoreError> {
        let high_water = HighWaterFile::open(dir, options.sync.clone())?;
        let folder = dir.join(LOG_FOLDER);
        let data_path = folder.join("db");
        // sled would silently create what is missing.
        for path in [data_path.clone(), folder.join("conf")] {
            if !path.exists() {
                return Err(damaged(dir, Damage::FileMissing { path }));
            }
        }
        let db = open_sled(&folder, &options)?;
        // Never dropped unless it verified: dropping flushes.
        let db = std::mem::ManuallyDrop::new(db);
        let meta_tree = db.open_tree(META_TREE).map_err(database("opening"))?;
        let meta = Meta::read(dir, &meta_tree)?;
        let data_file = File::open(&data_path).map_err(|source| file_error("opening", &data_path, source))?;
        let segments = db.tree_names().iter().filter_map(|name| segment_number(name)).collect();
        let mut open = OpenDatabase {
            dir: dir.to_path_buf(),
            db: (*db).clone(),
            meta: meta_tree,
            current: None,
            segments,
            segment_entries: options.segment_entries.max(1),
            data_file,
            high_water,
            options,
            vote: meta.vote,
            floor: meta.floor,
            floor_chain: meta.floor_chain,
            first_index: meta.floor.map_or(0, |floor| floor.index() + 1),
            tip: Tip { last: meta.floor, chain: meta.floor_chain },
        };
        let verified = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| open.verify(meta.committed)));
        match verified {
            Ok(Ok(recovered)) => {
                drop(std::mem::ManuallyDrop::into_inner(db));
                Ok((open, recovered))
            }
            Ok(Err(error)) => {
                std::mem::forget(open);
                Err(error)
            }
            Err(panic) => {
                std::mem::forget(open);
                Err(StoreError::DatabasePanicked {
                    operation: "verifying",
                    detail: crate::io_thread::panic_text(panic.as_ref()),
                })
            }
        }
    }

    /// Compares what is there with what was once acknowledged, and removes what never was.
    fn verify(&mut self, committed: Option<LogId>) -> Result<Recovered, StoreError> {
        let high_water = self.high_water.value();
        if self.vote < high_water.vote {
            let show = |vote: Option<Vote>| vote.map_or("none".to_owned(), |vote| vote.to_string());
            let damage = Damage::VoteLost { flushed: show(high_water.vote), found: show(self.vote) };
            return Err(damaged(&self.dir, damage));
        }
        let scan = self.scan(high_water.last)?;
        if let Some((flushed, _)) = high_water.last
            && !scan.high_water_seen
        {
            let intact_index = scan.tip.last.map(|last| last.index());
            let damage = Damage::EntriesLost { flushed_index: flushed.index(), intact_index };
            return Err(damaged(&self.dir, damage));
        }
        self.tip = scan.tip;
        self.first_index = scan.first_index.unwrap_or(self.first_index);
        if scan.torn {
            tracing::warn!(last = ?self.tip.last, "entries that were never acknowledged follow the log; removed");
            self.remove_after(self.tip.last)?;
        }
        while self.drop_one_segment()? {}
        // From here on what was found counts as acknowledged, so the mark has to cover it.
        self.flush(true)?;
        Ok(Recovered {
            vote: self.vote,
            committed: committed.min(self.tip.last),
            floor: self.floor,
            last: self.tip.last,
        })
    }

    fn scan(&self, high_water: Option<(LogId, u32)>) -> Result<Scan, StoreError> {
        let mut tip = Tip { last: self.floor, chain: self.floor_chain };
        let mut high_water_seen = match high_water {
            None => true,
            Some((flushed, _)) => self.floor.is_some_and(|floor| floor.index() >= flushed.index()),
        };
        let first = self.floor.map_or(0, |floor| floor.index() + 1);
        let mut torn = false;
        let mut first_index = None;
        'segments: for segment in self.segments.range(first / self.segment_entries..) {
            let tree = self.db.open_tree(segment_name(*segment)).map_err(database("opening"))?;
            let mut envelopes = Envelopes::new(&tree, first);
            while let Some((index, envelope)) = envelopes.next_envelope()? {
                let expected = tip.last.map_or(index, |last| last.index() + 1);
                let intact = codec::decode_entry(&envelope).ok().filter(|(entry, chain)| {
                    entry.log_id.index() == index && index == expected && *chain == tip.chain
                });
                let Some((entry, _)) = intact else {
                    torn = true;
                    break 'segments;
                };
                first_index = first_index.or(Some(index));
                let checksum = codec::envelope_checksum(&envelope).unwrap_or_default();
                tip = Tip { last: Some(entry.log_id), chain: checksum };
                high_water_seen |= high_water == Some((entry.log_id, checksum));
            }
        }
        Ok(Scan { tip, high_water_seen, torn, first_index })
    }

    fn segment_of(&self, index: u64) -> u64 {
        index / self.segment_entries
    }

    fn segment(&mut self, index: u64) -> Result<&sled::Tree, StoreError> {
        let segment = self.segment_of(index);
        let tree = match self.current.take() {
            Some((current, tree)) if current == segment => tree,
            _ => self.db.open_tree(segment_name(segment)).map_err(database("opening"))?,
        };
        self.segments.insert(segment);
        Ok(&self.current.insert((segment, tree)).1)
    }

    fn write(&mut self, batch: &WriteBatch) -> Result<(), StoreError> {
        for entry in &batch.entries {
            let index = entry.log_id.index();
            if self.tip.last == self.floor {
                self.first_index = index;
            }
            let envelope = codec::encode_entry(entry, self.tip.chain);
            let tree = self.segment(index)?;
            for (piece, bytes) in envelope.chunks(PIECE_BYTES).enumerate() {
                let piece = u16::try_from(piece).map_err(|_| StoreError::EntryMissing { index })?;
                tree.insert(key(index, piece), bytes).map_err(database("writing"))?;
            }
            let chain = codec::envelope_checksum(&envelope).unwrap_or_default();
            self.tip = Tip { last: Some(entry.log_id), chain };
        }
        if let Some(vote) = &batch.vote {
            let mut bytes = Vec::new();
            put_vote(&mut bytes, vote);
            self.put_meta(KEY_VOTE, bytes)?;
            self.vote = Some(*vote);
        }
        if batch.committed.is_some() {
            let mut bytes = Vec::new();
            put_log_id_option(&mut bytes, batch.committed.as_ref());
            self.put_meta(KEY_COMMITTED, bytes)?;
        }
        self.flush(true)
    }

    fn put_meta(&self, name: &'static str, body: Vec<u8>) -> Result<(), StoreError> {
        self.meta.insert(name, seal(body)).map(drop).map_err(database("writing"))
    }

    /// Makes everything written so far durable, then says so in the high-water file.
    fn flush(&mut self, raise_high_water: bool) -> Result<(), StoreError> {
        self.db.flush().map_err(database("flushing"))?;
        self.flush_blobs()?;
        self.options
            .sync
            .sync_data(&self.data_file)
            .map_err(|source| file_error("flushing", &self.dir.join(LOG_FOLDER).join("db"), source))?;
        if raise_high_water {
            self.high_water.write(self.high_water_now())?;
        }
        Ok(())
    }

    fn high_water_now(&self) -> HighWater {
        // Where the log is empty the floor stands for its end; snapshots vouch for what is below.
        let last = self.tip.last.filter(|last| Some(*last) != self.floor).map(|last| (last, self.tip.chain));
        HighWater { last, vote: self.vote }
    }

    /// Pages are kept too small to leave the data file; should one do so, its file is flushed here.
    fn flush_blobs(&self) -> Result<(), StoreError> {
        let folder = self.dir.join(LOG_FOLDER).join("blobs");
        let Ok(files) = std::fs::read_dir(&folder) else { return Ok(()) };
        let mut any = false;
        for file in files.flatten() {
            any = true;
            let path = file.path();
            match File::open(&path) {
                Ok(file) => self
                    .options
                    .sync
                    .sync_data(&file)
                    .map_err(|source| file_error("flushing", &path, source))?,
                Err(source) if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(file_error("opening", &path, source)),
            }
        }
        if any { sync_folder(&folder) } else { Ok(()) }
    }

    fn truncate_after(&mut self, keep: Option<LogId>) -> Result<(), StoreError> {
        if self.tip.last <= keep {
            return Ok(());
        }
        let keep = keep.max(self.floor);
        let tip = match keep {
            Some(keep) if Some(keep) != self.floor => {
                let envelope = self.envelope(keep.index())?;
                let chain = codec::envelope_checksum(&envelope)
                    .map_err(|source| StoreError::EntryCorrupt { index: keep.index(), source })?;
                Tip { last: Some(keep), chain }
            }
            _ => Tip { last: self.floor, chain: self.floor_chain },
        };
        self.tip = tip;
        // Lowered first: a crash in between leaves more than was promised, never less.
        self.high_water.write(self.high_water_now())?;
        self.remove_after(tip.last)?;
        self.flush(false)
    }

    fn remove_after(&mut self, keep: Option<LogId>) -> Result<(), StoreError> {
        let first = keep.map_or(0, |keep| keep.index() + 1);
        self.current = None;
        let later: Vec<u64> = self.segments.range(self.segment_of(first)..).copied().collect();
        for segment in later.into_iter().rev() {
            if segment * self.segment_entries >= first {
                self.db.drop_tree(segment_name(segment)).map_err(database("truncating"))?;
                self.segments.remove(&segment);
                continue;
            }
            let tree = self.db.open_tree(segment_name(segment)).map_err(database("opening"))?;
            // From the end backward, so that a crash in between leaves no hole.
            for found in tree.range(key(first, 0)..).rev() {
                let (key, _) = found.map_err(database("truncating"))?;
                tree.remove(key).map_err(database("truncating"))?;
            }
        }
        Ok(())
    }

    fn purge(&mut self, floor: LogId) -> Result<(), StoreError> {
        if Some(floor) <= self.floor {
            return Ok(());
        }
        let inside = self.tip.last.is_some_and(|last| last.index() >= floor.index());
        let chain = if floor.index() < self.first_index {
            // Nothing is removed; the first entry chains to what it always did.
            self.floor_chain
        } else if inside {
            let index = floor.index();
            let envelope = self.envelope(index)?;
            codec::envelope_checksum(&envelope)
                .map_err(|source| StoreError::EntryCorrupt { index, source })?
        } else {
            // Past the end there is nothing to chain to: the next entry starts a new chain.
            0
        };
        let mut bytes = Vec::new();
        put_log_id_option(&mut bytes, Some(&floor));
        bytes.extend_from_slice(&chain.to_le_bytes());
        self.put_meta(KEY_FLOOR, bytes)?;
        self.floor = Some(floor);
        self.floor_chain = chain;
        self.first_index = self.first_index.max(floor.index() + 1);
        if self.tip.last.is_none_or(|last| last.index() <= floor.index()) {
            self.tip = Tip { last: Some(floor), chain };
        }
        self.flush(true)
    }

    /// Drops one segment that lies wholly below the floor. Returns whether there is another.
    fn drop_one_segment(&mut self) -> Result<bool, StoreError> {
        let Some(floor) = self.floor else { return Ok(false) };
        let live = self.segment_of(floor.index() + 1);
        let Some(segment) = self.segments.first().copied().filter(|segment| *segment < live) else {
            return Ok(false);
        };
        if self.current.as_ref().is_some_and(|(current, _)| *current == segment) {
            self.current = None;
        }
        self.db.drop_tree(segment_name(segment)).map_err(database("purging"))?;
        self.segments.remove(&segment);
        Ok(self.segments.first().is_some_and(|segment| *segment < live))
    }

    fn envelope(&mut self, index: u64) -> Result<Bytes, StoreError> {
        let tree = self.segment(index)?.clone();
        match Envelopes::new(&tree, index).next_envelope()? {
            Some((found, envelope)) if found == index => Ok(envelope),
            _ => Err(StoreError::EntryMissing { index }),
        }
    }

    fn read(&mut self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<Entry>, StoreError> {
        let start = start.max(self.floor.map_or(0, |floor| floor.index() + 1));
        let end = end.min(self.tip.last.map_or(0, |last| last.index() + 1));
        let mut found: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        let mut next = start;
        while next < end {
            let segment = self.segment_of(next);
            let tree = self.db.open_tree(segment_name(segment)).map_err(database("opening"))?;
            let mut envelopes = Envelopes::new(&tree, next);
            while next < end && self.segment_of(next) == segment {
                if bytes >= bytes_max && !found.is_empty() {
                    return Ok(found);
                }
                let Some((index, envelope)) = envelopes.next_envelope()?.filter(|(index, _)| *index == next)
                else {
                    return Err(StoreError::EntryMissing { index: next });
                };
                let (entry, _) = codec::decode_entry(&envelope)
                    .map_err(|source| StoreError::EntryCorrupt { index, source })?;
                bytes += entry_bytes(&entry);
                found.push(entry);
                next += 1;
            }
        }
        Ok(found)
    }
}

/// Puts the pieces of entries together again.
struct Envelopes {
    pieces: sled::Iter,
    /// The first piece of the next entry, already taken.
    ahead: Option<(sled::IVec, sled::IVec)>,
}

impl Envelopes {
    fn new(tree: &sled::Tree, first: u64) -> Self {
        Envelopes { pieces: tree.range(key(first, 0)..), ahead: None }
    }

    /// The next entry's index and whatever bytes it has; its envelope says whether they are whole.
    fn next_envelope(&mut self) -> Result<Option<(u64, Bytes)>, StoreError> {
        let mut envelope = BytesMut::new();
        let mut current = None;
        loop {
            let next = match self.ahead.take() {
                Some(piece) => Some(piece),
                None => self.pieces.next().transpose().map_err(database("reading"))?,
            };
            let Some((key, bytes)) = next else { break };
            let index = index_of(&key).unwrap_or(u64::MAX);
            match current {
                Some(current) if current != index => {
                    self.ahead = Some((key, bytes));
                    break;
                }
                _ => current = Some(index),
            }
            envelope.extend_from_slice(&bytes);
        }
        Ok(current.map(|index| (index, envelope.freeze())))
    }
}
