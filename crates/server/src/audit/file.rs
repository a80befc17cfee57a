//! Lines in files of bounded size.
//!
//! **Invariant:** what the files take together is at most their number times their size, and one line. Where the number was
//! lowered, files with higher numbers stay as they are: nobody asked for the end of what they have.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// `audit.log`, and `audit.log.1` and so on, which are older the higher their number.
pub(super) struct Lines {
    path: PathBuf,
    bytes_max: u64,
    files_max: u32,
    file: File,
    bytes: u64,
}

impl Lines {
    /// Goes on behind what the file has; a line that was cut short by a crash is ended.
    pub(super) fn open(path: &Path, bytes_max: u64, files_max: u32) -> io::Result<Lines> {
        let mut file = appended(path)?;
        let mut bytes = file.metadata()?.len();
        if bytes > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                bytes += 1;
            }
        }
        Ok(Lines { path: path.to_path_buf(), bytes_max, files_max, file, bytes })
    }

    /// Appends lines. Those of one call are flushed to the disk together.
    pub(super) fn write(&mut self, lines: &[String]) -> io::Result<()> {
        for line in lines {
            let length = line.len() as u64 + 1;
            if self.bytes > 0 && self.bytes + length > self.bytes_max {
                self.begin_next()?;
            }
            let mut text = String::with_capacity(line.len() + 1);
            text.push_str(line);
            text.push('\n');
            self.file.write_all(text.as_bytes())?;
            self.bytes += length;
        }
        self.file.sync_data()
    }

    /// The oldest file goes, each of the others gets the next number, and an empty one is begun.
    fn begin_next(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        let numbered = |number: u32| numbered(&self.path, number);
        for number in (0..self.files_max).rev() {
            let from = numbered(number);
            let moved = match number + 1 == self.files_max {
                true => std::fs::remove_file(&from),
                false => std::fs::rename(&from, numbered(number + 1)),
            };
            if let Err(error) = moved
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(error);
            }
        }
        self.file = appended(&self.path)?;
        self.bytes = 0;
        Ok(())
    }
}

/// The name of the file of this number; the higher, the older.
pub(super) fn numbered(path: &Path, number: u32) -> PathBuf {
    match number {
        0 => path.to_path_buf(),
        number => PathBuf::from(format!("{}.{number}", path.display())),
    }
}

/// For this user and those of its group alone: names of callers and their addresses are in it.
fn appended(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).read(true).append(true).mode(0o640).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(dir: &Path, name: &str) -> String {
        std::fs::read_to_string(dir.join(name)).unwrap_or_default()
    }

    #[test]
    fn files_are_exchanged_at_their_size_and_the_oldest_goes() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut lines = Lines::open(&dir.path().join("audit.log"), 10, 3).expect("it opens");
        for line in ["1aaa", "2bbb", "3ccc", "4ddd", "5eee", "6fff", "7ggg"] {
            lines.write(&[line.to_owned()]).expect("it is written");
        }
        assert_eq!(text(dir.path(), "audit.log"), "7ggg\n");
        assert_eq!(text(dir.path(), "audit.log.1"), "5eee\n6fff\n");
        assert_eq!(text(dir.path(), "audit.log.2"), "3ccc\n4ddd\n");
        assert!(!dir.path().join("audit.log.3").exists());
        // A line above the size of a file has one for itself.
        lines.write(&["x".repeat(30), "8hhh".to_owned()]).expect("it is written");
        assert_eq!(text(dir.path(), "audit.log"), "8hhh\n");
        assert_eq!(text(dir.path(), "audit.log.1"), format!("{}\n", "x".repeat(30)));
        assert_eq!(text(dir.path(), "audit.log.2"), "7ggg\n");
    }

    #[test]
    fn one_file_alone_begins_again_when_it_is_full() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut lines = Lines::open(&dir.path().join("audit.log"), 10, 1).expect("it opens");
        lines.write(&["1aaa".to_owned(), "2bbb".to_owned(), "3ccc".to_owned()]).expect("it is written");
        assert_eq!(text(dir.path(), "audit.log"), "3ccc\n");
        assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 1);
    }

    #[test]
    fn a_replica_that_starts_goes_on_behind_what_is_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.log");
        std::fs::write(&path, "1aaa\n2b").expect("it is written");
        let mut lines = Lines::open(&path, 15, 2).expect("it opens");
        lines.write(&["3ccc".to_owned()]).expect("it is written");
        assert_eq!(text(dir.path(), "audit.log"), "1aaa\n2b\n3ccc\n", "the line that was cut short is ended");
        lines.write(&["4ddd".to_owned()]).expect("it is written");
        assert_eq!(text(dir.path(), "audit.log"), "4ddd\n", "its size was known");
    }
}
