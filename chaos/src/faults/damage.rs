//! Files of a stopped process that are not what it wrote: bytes that turned, and directories that are gone.

use super::FaultError;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Where entries begin in a file of the log, behind its header and its marks.
const ENTRIES_OFFSET: u64 = 12_288;
/// A file with less in it has no middle to speak of.
const ENTRIES_BYTES_MIN: u64 = 64;

/// Bytes that were turned, and what they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    path: PathBuf,
    genuine: Vec<(u64, u8)>,
}

impl Damage {
    /// Turns every bit of some bytes of a file.
    pub fn turn(path: &Path, offsets: impl IntoIterator<Item = u64>) -> Result<Damage, FaultError> {
        let file = open(path)?;
        let mut damage = Damage { path: path.to_owned(), genuine: Vec::new() };
        let failed = |operation| FaultError::on_path(operation, path);
        for at in offsets {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).map_err(failed("reading"))?;
            file.write_all_at(&[!byte[0]], at).map_err(failed("damaging"))?;
            damage.genuine.push((at, byte[0]));
        }
        if damage.genuine.is_empty() {
            return Err(FaultError::NoEffect(format!("no byte of {} was turned", path.display())));
        }
        file.sync_all().map_err(failed("flushing"))?;
        Ok(damage)
    }

    /// Turns one byte of the log of a replica that is stopped: in the middle half of what its newest file with
    /// entries holds, so that acknowledged entries follow it and it cannot be taken for a write that was never
    /// finished. Which byte follows from the seed.
    pub fn log_entry(data: &Path, seed: u64) -> Result<Damage, FaultError> {
        let log = data.join("log");
        let listed = std::fs::read_dir(&log).map_err(FaultError::on_path("listing", &log))?;
        let mut segments: Vec<PathBuf> = listed
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "segment"))
            .collect();
        segments.sort_unstable();
        for path in segments.iter().rev() {
            let used = used_bytes(path).map_err(FaultError::on_path("reading", path))?;
            let entries = used.saturating_sub(ENTRIES_OFFSET);
            if entries >= ENTRIES_BYTES_MIN {
                let middle = entries / 4..entries * 3 / 4;
                let at = ENTRIES_OFFSET + StdRng::seed_from_u64(seed).random_range(middle);
                return Damage::turn(path, [at]);
            }
        }
        Err(FaultError::NoEffect(format!("{} holds no entries", log.display())))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it was harmed.
    pub fn offsets(&self) -> impl Iterator<Item = u64> {
        self.genuine.iter().map(|(at, _)| *at)
    }

    /// Makes the file again what it was, if it is still there.
    pub fn undo(self) -> Result<(), FaultError> {
        let file = open(&self.path)?;
        for (at, byte) in &self.genuine {
            file.write_all_at(&[*byte], *at).map_err(FaultError::on_path("mending", &self.path))?;
        }
        file.sync_all().map_err(FaultError::on_path("flushing", &self.path))
    }

    /// Everything in a directory is gone; the directory itself, which may be where a disk is mounted, stays.
    pub fn lose(directory: &Path) -> Result<(), FaultError> {
        let failed = |path: &Path| FaultError::on_path("removing", path);
        let listed = std::fs::read_dir(directory).map_err(failed(directory))?;
        for entry in listed {
            let entry = entry.map_err(failed(directory))?;
            let is_directory = entry.file_type().map_err(failed(&entry.path()))?.is_dir();
            let path = entry.path();
            let removed =
                if is_directory { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            removed.map_err(failed(&path))?;
        }
        Ok(())
    }
}

fn open(path: &Path) -> Result<File, FaultError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(FaultError::on_path("opening", path))
}

/// The bytes of a file up to the zeros at its end. Files of the log are allocated in full from the start.
fn used_bytes(path: &Path) -> io::Result<u64> {
    const PIECE: u64 = 1 << 20;
    let file = File::open(path)?;
    let mut end = file.metadata()?.len();
    let mut piece = vec![0; usize::try_from(PIECE).expect("a piece fits in memory")];
    while end > 0 {
        let start = end.saturating_sub(PIECE);
        let bytes = &mut piece[..usize::try_from(end - start).expect("at most a piece")];
        file.read_exact_at(bytes, start)?;
        if let Some(last) = bytes.iter().rposition(|byte| *byte != 0) {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}
