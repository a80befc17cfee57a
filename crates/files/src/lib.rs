//! Files that appear whole or not at all, and names that survive a loss of power.
//!
//! A file is written under another name in the same directory, flushed, and then given its name. **Invariant:** a reader
//! sees what was there before or all of what was written, never a part. After a failure before the file has its name, what was there before
//! still stands, and the other name is gone. A process that is killed may leave it: [`remove_waiting`] clears a directory.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a file has to survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// The processes that write it. Nothing is flushed: after a loss of power there may be neither the old file nor the new.
    Processes,
    /// A loss of power.
    PowerLoss,
}

/// Whether a file that already has the name is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// The new one takes its place.
    Replaced,
    /// It stays, and the error is [`io::ErrorKind::AlreadyExists`].
    Kept,
}

/// How a file is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// The permissions of the new file.
    pub mode: u32,
    /// What it has to survive.
    pub lasting: Lasting,
    /// Whether a file that already has the name is replaced.
    pub existing: Existing,
}

impl Manner {
    /// For its owner alone, through a loss of power, in place of what is there.
    pub const PRIVATE: Manner =
        Manner { mode: 0o600, lasting: Lasting::PowerLoss, existing: Existing::Replaced };

    /// The same, for everybody to read.
    pub const PUBLIC: Manner = Manner { mode: 0o644, ..Manner::PRIVATE };
}

/// A file that is being written and has not got its name yet. Dropped before [`WholeFile::finish`], it is removed.
#[derive(Debug)]
pub struct WholeFile {
    file: File,
    waiting: PathBuf,
    path: PathBuf,
    manner: Manner,
}

/// Ends the name of a file that is being written, so that a directory can be cleared of those of a process that was killed.
pub const WAITING: char = '~';

/// Tells the files apart that one process writes for one name at the same time.
static NUMBER: AtomicU64 = AtomicU64::new(0);

impl WholeFile {
    /// Begins the file that will be at `path`.
    ///
    /// # Errors
    /// When `path` has no file name, or the file cannot be created next to it.
    pub fn begin(path: &Path, manner: Manner) -> io::Result<WholeFile> {
        let name = path.file_name().ok_or_else(|| io::Error::other("a file needs a name"))?;
        // Two processes may write for the same name, and one process several times at once.
        let mut aside = OsString::from(".");
        aside.push(name);
        aside.push(format!(".{}.{}{WAITING}", process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
        let waiting = directory_of(path).join(aside);
        // A process of the same number that was killed may have left one.
        match fs::remove_file(&waiting) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(manner.mode).open(&waiting)?;
        Ok(WholeFile { file, waiting, path: path.to_owned(), manner })
    }

    /// Gives the file exactly these permissions, whatever the mask of this process left of them.
    ///
    /// # Errors
    /// When the file system does not take them.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        let permissions = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(mode);
        self.file.set_permissions(permissions)
    }

    /// Gives the file its name. What it has to survive, it survives once this returns.
    ///
    /// # Errors
    /// When it cannot be flushed or named. If the flush of the directory fails, the file has its name, and may lose it with the
    /// power.
    pub fn finish(self) -> io::Result<()> {
        let lasts = self.manner.lasting == Lasting::PowerLoss;
        if lasts {
            self.file.sync_all()?;
        }
        match self.manner.existing {
            Existing::Replaced => fs::rename(&self.waiting, &self.path)?,
            // Unlike renaming, a second name is refused when it is taken. The first one goes before the directory is flushed,
            // so that none is left behind.
            Existing::Kept => {
                fs::hard_link(&self.waiting, &self.path)?;
                fs::remove_file(&self.waiting)?;
            }
        }
        if lasts { sync_directory(directory_of(&self.path)) } else { Ok(()) }
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        // It is gone already where it was given its name by a rename.
        let _ = fs::remove_file(&self.waiting);
    }
}

/// Makes a file of these bytes.
///
/// # Errors
/// When any step fails; what was there before is then still whole, unless only the flush of the directory failed: then the new file is there
/// and may be lost with the power.
pub fn write_whole(path: &Path, bytes: &[u8], manner: Manner) -> io::Result<()> {
    let mut file = WholeFile::begin(path, manner)?;
    file.write_all(bytes)?;
    file.finish()
}

/// Removes what processes that were killed left in a directory. For one that no process writes into at present.
///
/// # Errors
/// When the directory cannot be read, or a file in it not removed.
pub fn remove_waiting(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.ends_with(WAITING) && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Reads a file of at most `bytes_max` bytes.
///
/// # Errors
/// When it cannot be read; [`io::ErrorKind::FileTooLarge`] when it is larger.
pub fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// Gives a file or directory another name that survives a loss of power. Where it moves from one directory to another,
/// both are flushed.
///
/// # Errors
/// When it cannot be renamed, or a directory cannot be flushed.
pub fn rename_durably(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_directory(directory_of(to))?;
    if directory_of(from) == directory_of(to) { Ok(()) } else { sync_directory(directory_of(from)) }
}

/// Returns once the names in a directory survive a loss of power.
///
/// # Errors
/// When it cannot be opened or flushed.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// The directory that a path is in.
#[must_use]
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn names(directory: &Path) -> Vec<OsString> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_file_appears_whole_with_its_permissions_and_nothing_next_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        for (text, manner) in [("one", Manner::PRIVATE), ("another", Manner::PUBLIC)] {
            let mut file = WholeFile::begin(&path, manner).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            assert_ne!(fs::read_to_string(&path).ok().as_deref(), Some(text), "it has no name yet");
            file.finish().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(names(dir.path()), ["mark"]);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o077 & !0o044, 0);
    }

    #[test]
    fn what_is_dropped_or_refused_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        write_whole(&path, b"first", Manner::PRIVATE).unwrap();
        let mut dropped = WholeFile::begin(&path, Manner::PRIVATE).unwrap();
        dropped.write_all(b"half").unwrap();
        drop(dropped);
        let kept = Manner { existing: Existing::Kept, ..Manner::PRIVATE };
        let error = write_whole(&path, b"second", kept).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(names(dir.path()), ["mark"]);
        write_whole(&dir.path().join("new"), b"second", kept).unwrap();
        assert_eq!(fs::read(dir.path().join("new")).unwrap(), b"second");
        assert_eq!(names(dir.path()).len(), 2);
    }

    #[test]
    fn what_a_killed_process_left_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let mut left = WholeFile::begin(&dir.path().join("key"), Manner::PRIVATE).unwrap();
        left.write_all(b"secret").unwrap();
        std::mem::forget(left);
        fs::write(dir.path().join("kept~"), b"").unwrap();
        fs::write(dir.path().join(".hidden"), b"").unwrap();
        assert_eq!(names(dir.path()).len(), 3);
        remove_waiting(dir.path()).unwrap();
        let mut left = names(dir.path());
        left.sort();
        assert_eq!(left, [".hidden", "kept~"]);
    }

    #[test]
    fn reads_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        write_whole(&path, &[7; 10], Manner::PRIVATE).unwrap();
        assert_eq!(read_bounded(&path, 10).unwrap(), [7; 10]);
        assert_eq!(read_bounded(&path, 9).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn names_move_between_directories() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("sub/to"));
        fs::create_dir(dir.path().join("sub")).unwrap();
        write_whole(&from, b"x", Manner::PRIVATE).unwrap();
        rename_durably(&from, &to).unwrap();
        assert!(!from.exists() && to.exists());
        assert_eq!(directory_of(Path::new("file")), Path::new("."));
    }
}
