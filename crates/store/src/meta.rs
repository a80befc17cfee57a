//! The database of what is small and seldom written: the vote and the purge floor, on sled.
//!
//! sled's own flush reaches the kernel, not the disk, so every flush is followed by an `fdatasync`
//! of its data file. Values are far below the size at which sled moves a page out of that file.
//!
//! **Invariant:** what [`MetaDatabase::put_vote`] and [`MetaDatabase::put_floor`] wrote survives a
//! power cut when they return.
//! **Invariant:** a database that cannot be read is damage, whether sled reports it or panics.

use crate::codec::{
    CodecError, Reader, put_log_id_option, put_vote, read_log_id_option, read_vote, seal, unseal,
};
use crate::error::{Damage, StoreError};
use crate::files::FileLayer;
use crate::identity::{damaged, file_error, sync_directory};
use crate::io_thread::{contained, panic_text};
use crate::raft_types::{LogId, Vote};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) const META_DIRECTORY: &str = "meta";
const TREE: &str = "meta";
const KEY_VOTE: &str = "vote";
const KEY_FLOOR: &str = "floor";
/// The least sled takes; there are two values.
const CACHE_BYTES: u64 = 1 << 20;
/// sled's unit of file allocation.
const SLED_SEGMENT_BYTES: usize = 256 << 10;
/// Threads of a database that this process just closed may hold its lock a moment longer.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);

/// What the database says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meta {
    pub(crate) vote: Option<Vote>,
    pub(crate) floor: Option<LogId>,
    /// What the entry after the floor chains to.
    pub(crate) floor_chain: u32,
}

pub(crate) struct MetaDatabase {
    db: sled::Db,
    tree: sled::Tree,
    data_path: PathBuf,
    data_file: File,
    files: Arc<dyn FileLayer>,
}

fn database(operation: &'static str) -> impl Fn(sled::Error) -> StoreError {
    move |source| StoreError::Database { operation, source }
}

fn open_sled(directory: &Path) -> Result<sled::Db, StoreError> {
    let started = Instant::now();
    loop {
        let opened = sled::Config::new()
            .path(directory)
            .cache_capacity(CACHE_BYTES)
            .segment_size(SLED_SEGMENT_BYTES)
            .flush_every_ms(None)
            .open();
        match opened {
            Err(sled::Error::Io(error))
                if error.to_string().contains("could not acquire lock")
                    && started.elapsed() < LOCK_WAIT_MAX =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.map_err(database("opening")),
        }
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

fn read_value<T>(
    dir: &Path,
    tree: &sled::Tree,
    name: &'static str,
    decode: impl FnOnce(&mut Reader<'_>) -> Result<T, CodecError>,
) -> Result<Option<T>, StoreError> {
    let Some(bytes) = tree.get(name).map_err(database("reading"))? else {
        return Ok(None);
    };
    let decoded = unseal(&bytes, name).and_then(|body| decode(&mut Reader(body)));
    decoded.map(Some).map_err(|error| damaged(dir, Damage::Database { detail: format!("{name}: {error}") }))
}

impl Meta {
    fn read(dir: &Path, tree: &sled::Tree) -> Result<Meta, StoreError> {
        let vote = read_value(dir, tree, KEY_VOTE, read_vote)?;
        let floor = read_value(dir, tree, KEY_FLOOR, |reader| {
            Ok((read_log_id_option(reader)?, reader.u32("chain")?))
        })?;
        let (floor, floor_chain) = floor.unwrap_or_default();
        Ok(Meta { vote, floor, floor_chain })
    }
}

impl MetaDatabase {
    /// Creates a database with no vote; complete and durable when this returns.
    pub(crate) fn create(
        dir: &Path,
        files: &Arc<dyn FileLayer>,
        floor: Option<LogId>,
    ) -> Result<(), StoreError> {
        let directory = dir.join(META_DIRECTORY);
        std::fs::create_dir_all(&directory).map_err(|source| file_error("creating", &directory, source))?;
        let db = open_sled(&directory)?;
        let tree = db.open_tree(TREE).map_err(database("creating"))?;
        if floor.is_some() {
            tree.insert(KEY_FLOOR, floor_bytes(floor, 0)).map_err(database("writing"))?;
        }
        db.flush().map_err(database("flushing"))?;
        drop((tree, db));
        for file in
            std::fs::read_dir(&directory).map_err(|source| file_error("listing", &directory, source))?
        {
            let path = file.map_err(|source| file_error("listing", &directory, source))?.path();
            if path.is_dir() {
                sync_directory(&path, files.as_ref())?;
                continue;
            }
            File::open(&path)
                .and_then(|file| files.sync_data(&file, &path))
                .map_err(|source| file_error("flushing", &path, source))?;
        }
        sync_directory(&directory, files.as_ref())?;
        sync_directory(dir, files.as_ref())
    }

    /// Opens the database and makes durable what is found in it.
    pub(crate) fn open(dir: &Path, files: Arc<dyn FileLayer>) -> Result<(Self, Meta), StoreError> {
        let at = dir.to_path_buf();
        // sled checks itself by panicking, some of it on its own threads, and flushes when it is
        // dropped: a thread of ours takes the panic, and a database that cannot be read is left as
        // it is, for the operator who examines it.
        let opening = std::thread::Builder::new()
            .name("muster-meta-open".to_owned())
            .spawn(move || contained("opening", || Self::open_contained(&at, files)))
            .map_err(StoreError::StartThread)?;
        let opened = opening.join().unwrap_or_else(|panic| {
            let detail = panic_text(panic.as_ref());
            Err(StoreError::DatabasePanicked { operation: "opening", detail })
        });
        opened.map_err(|error| match error {
            StoreError::Database { source, operation } if speaks_of_damage(&source) => {
                damaged(dir, Damage::Database { detail: format!("{operation}: {source}") })
            }
            StoreError::DatabasePanicked { operation, detail } => {
                damaged(dir, Damage::Database { detail: format!("{operation}: {detail}") })
            }
            error => error,
        })
    }

    fn open_contained(dir: &Path, files: Arc<dyn FileLayer>) -> Result<(Self, Meta), StoreError> {
        let directory = dir.join(META_DIRECTORY);
        let data_path = directory.join("db");
        // sled would silently create what is missing.
        for path in [data_path.clone(), directory.join("conf")] {
            if !path.exists() {
                return Err(damaged(dir, Damage::FileMissing { path }));
            }
        }
        // Never dropped unless it could be read: dropping flushes.
        let db = ManuallyDrop::new(open_sled(&directory)?);
        let tree = ManuallyDrop::new(db.open_tree(TREE).map_err(database("opening"))?);
        let meta = Meta::read(dir, &tree)?;
        let data_file = File::open(&data_path).map_err(|source| file_error("opening", &data_path, source))?;
        let (db, tree) = (ManuallyDrop::into_inner(db), ManuallyDrop::into_inner(tree));
        let this = MetaDatabase { db, tree, data_path, data_file, files };
        this.flush()?;
        Ok((this, meta))
    }

    pub(crate) fn put_vote(&self, vote: &Vote) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        put_vote(&mut bytes, vote);
        self.put(KEY_VOTE, seal(bytes))
    }

    pub(crate) fn put_floor(&self, floor: Option<LogId>, chain: u32) -> Result<(), StoreError> {
        self.put(KEY_FLOOR, floor_bytes(floor, chain))
    }

    fn put(&self, key: &'static str, bytes: Vec<u8>) -> Result<(), StoreError> {
        self.tree.insert(key, bytes).map_err(database("writing"))?;
        self.flush()
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.db.flush().map_err(database("flushing"))?;
        self.files
            .sync_data(&self.data_file, &self.data_path)
            .map_err(|source| file_error("flushing", &self.data_path, source))
    }
}

fn floor_bytes(floor: Option<LogId>, chain: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_log_id_option(&mut bytes, floor.as_ref());
    bytes.extend_from_slice(&chain.to_le_bytes());
    seal(bytes)
}
