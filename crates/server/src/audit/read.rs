//! What the files have, for who asks this replica for it.
//!
//! **Invariant:** one reading keeps no more lines than were asked for and reads no more than [`READ_BYTES_MAX`] bytes, the newest ones, whatever
//! the size and the number of the files are. A file that is exchanged meanwhile is read once.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use muster_api::{DeniedCallLog, DeniedCalls, DeniedPage, DeniedQuery};
use muster_types::{DENIED_LINE_BYTES_MAX, DeniedLine};

use super::FILE;
use super::file::numbered;
use crate::config::AuditConfig;

/// Bytes that one reading looks at: a few hundred thousand lines.
const READ_BYTES_MAX: u64 = 64 << 20;

/// The files of one replica.
pub(crate) struct AuditFiles {
    path: PathBuf,
    files_max: u32,
}

impl AuditFiles {
    pub(crate) fn new(data_dir: &Path, config: AuditConfig) -> AuditFiles {
        AuditFiles { path: data_dir.join(FILE), files_max: config.files_max }
    }
}

/// A time as milliseconds since the Unix epoch.
fn ms(text: &str) -> Option<u64> {
    let time: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok()
}

fn calls(line: DeniedLine) -> DeniedCalls {
    DeniedCalls {
        first_ms: line.time.as_deref().and_then(ms),
        last_ms: line.last_time.as_deref().and_then(ms),
        caller: line.caller,
        role: line.role,
        address: line.address,
        call: line.call,
        code: line.code,
        reason: line.reason,
        count: line.count,
    }
}

/// Whether somebody asks for these.
fn is_asked_for(line: &DeniedLine, query: &DeniedQuery) -> bool {
    let is_by = query.caller.is_empty() || line.is_of(&query.caller);
    let is_for = query.reason.is_empty() || line.is_because_of(&query.reason);
    is_by && is_for && line.is_within((query.from_ms, query.to_ms), ms)
}

impl DeniedCallLog for AuditFiles {
    fn find(&self, query: &DeniedQuery) -> io::Result<DeniedPage> {
        let mut page = DeniedPage::default();
        let mut newer = VecDeque::new();
        let mut bytes_left = READ_BYTES_MAX;
        let mut read = BTreeSet::new();
        for number in 0..self.files_max {
            let file = match File::open(numbered(&self.path, number)) {
                Ok(file) => file,
                // One may have no name while they are exchanged.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let metadata = file.metadata()?;
            if !read.insert((metadata.dev(), metadata.ino())) || metadata.len() == 0 {
                continue;
            }
            let lines_left = query.limit.saturating_sub(newer.len());
            if bytes_left == 0 || lines_left == 0 {
                page.is_cut = true;
                break;
            }
            let mut found = VecDeque::new();
            newest_of(file, metadata.len(), &mut bytes_left, |part| match part {
                FilePart::Unread => page.unread = page.unread.saturating_add(1),
                FilePart::Skipped => page.is_cut = true,
                FilePart::Calls(line) if !is_asked_for(&line, query) => {}
                FilePart::Calls(line) => {
                    if found.len() == lines_left {
                        found.pop_front();
                        page.is_cut = true;
                    }
                    found.push_back(line);
                }
            })?;
            found.append(&mut newer);
            newer = found;
        }
        page.calls = newer.into_iter().map(|line| calls(*line)).collect();
        Ok(page)
    }
}

/// What a file has, piece by piece.
enum FilePart {
    Calls(Box<DeniedLine>),
    /// A line that is none of a replica.
    Unread,
    /// The older part of the file is not looked at.
    Skipped,
}

/// The newest part of a file, as much of it as may still be read, line by line.
fn newest_of(
    mut file: File,
    length: u64,
    bytes_left: &mut u64,
    mut each: impl FnMut(FilePart),
) -> io::Result<()> {
    let taken = length.min(*bytes_left);
    *bytes_left -= taken;
    let mut is_partial = taken < length;
    if is_partial {
        file.seek(SeekFrom::Start(length - taken))?;
        each(FilePart::Skipped);
    }
    // What is written from now on is left to the next reading.
    let mut reader = BufReader::new(file.take(taken));
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.by_ref().take(DENIED_LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        // The first one was cut, where the file was.
        let is_cut = std::mem::take(&mut is_partial);
        let text = line.trim_ascii();
        if is_cut || text.is_empty() {
            continue;
        }
        each(serde_json::from_slice(text).map_or(FilePart::Unread, |line| FilePart::Calls(Box::new(line))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    const SECOND_MS: u64 = 1_795_766_400_000;

    fn line(number: u64, caller: &str, code: &str) -> String {
        let time =
            jiff::Timestamp::from_millisecond(i64::try_from(SECOND_MS + number * 1_000).unwrap()).unwrap();
        serde_json::json!({
            "time": time.to_string(), "lastTime": time.to_string(), "replica": 1, "caller": caller, "address": "192.0.2.7",
            "call": "S/Cancel", "code": code, "reason": format!("not yours {number}"), "count": number,
        })
        .to_string()
    }

    /// Files of three lines each: 1 to 3 in the oldest, 7 to 9 in the newest.
    fn files() -> (tempfile::TempDir, AuditFiles) {
        let dir = tempfile::tempdir().unwrap();
        for (number, first) in [(2, 1), (1, 4), (0, 7)] {
            let mut text = String::new();
            for number in first..first + 3 {
                let caller =
                    if number % 2 == 0 { "tenant/vision/ada" } else { "tenant/speech/eve+token/00c0ffee" };
                let code = if number == 5 { "UNAUTHENTICATED" } else { "PERMISSION_DENIED" };
                writeln!(text, "{}", line(number, caller, code)).unwrap();
            }
            std::fs::write(numbered(&dir.path().join(FILE), number), text).unwrap();
        }
        let files = AuditFiles::new(dir.path(), AuditConfig::default());
        (dir, files)
    }

    fn found(files: &AuditFiles, query: &DeniedQuery) -> (Vec<u64>, bool) {
        let page = files.find(query).unwrap();
        assert_eq!(page.unread, 0);
        (page.calls.iter().map(|calls| calls.count).collect(), page.is_cut)
    }

    #[test]
    fn the_newest_are_found_over_all_files_oldest_first() {
        let (_dir, files) = files();
        let all = DeniedQuery { limit: 100, ..DeniedQuery::default() };
        assert_eq!(found(&files, &all), ((1..=9).collect(), false));
        assert_eq!(found(&files, &DeniedQuery { limit: 4, ..all.clone() }), (vec![6, 7, 8, 9], true));
        assert_eq!(found(&files, &DeniedQuery { limit: 3, ..all.clone() }), (vec![7, 8, 9], true));
        assert_eq!(found(&files, &DeniedQuery { limit: 9, ..all }), ((1..=9).collect(), false));
    }

    #[test]
    fn calls_are_found_by_caller_reason_and_time() {
        let (_dir, files) = files();
        let all = DeniedQuery { limit: 100, ..DeniedQuery::default() };
        for who in ["eve", "tenant/speech/eve", "tenant/speech/eve+token/00c0ffee"] {
            let query = DeniedQuery { caller: who.to_owned(), ..all.clone() };
            assert_eq!(found(&files, &query).0, [1, 3, 5, 7, 9], "{who}");
        }
        for (reason, expected) in [("UNAUTHENTICATED", vec![5]), ("not yours 6", vec![6]), ("DENIED", vec![])]
        {
            let query = DeniedQuery { reason: reason.to_owned(), ..all.clone() };
            assert_eq!(found(&files, &query).0, expected, "{reason}");
        }
        let (from_ms, to_ms) = (Some(SECOND_MS + 3_000), Some(SECOND_MS + 5_000));
        assert_eq!(found(&files, &DeniedQuery { from_ms, to_ms, ..all }).0, [3, 4, 5]);
    }

    #[test]
    fn what_is_no_line_is_counted_and_a_file_with_two_names_is_read_once() {
        let (dir, files) = files();
        let path = dir.path().join(FILE);
        std::fs::write(&path, "{\n\nnonsense\n").unwrap();
        std::fs::hard_link(&path, numbered(&path, 3)).unwrap();
        let page = files.find(&DeniedQuery { limit: 100, ..DeniedQuery::default() }).unwrap();
        assert_eq!((page.calls.len(), page.unread), (6, 2));
        let none = AuditFiles::new(&dir.path().join("none"), AuditConfig::default());
        assert_eq!(
            none.find(&DeniedQuery { limit: 1, ..DeniedQuery::default() }).unwrap(),
            DeniedPage::default()
        );
    }

    #[test]
    fn only_the_newest_part_of_what_is_too_much_is_read() {
        let (dir, _) = files();
        let path = dir.path().join(FILE);
        let length = std::fs::metadata(&path).unwrap().len();
        let mut left = length - 1;
        let (mut counts, mut skipped) = (Vec::new(), 0);
        newest_of(File::open(&path).unwrap(), length, &mut left, |found| match found {
            FilePart::Calls(calls) => counts.push(calls.count),
            FilePart::Skipped => skipped += 1,
            FilePart::Unread => panic!("all are lines"),
        })
        .unwrap();
        assert_eq!((counts, skipped, left), (vec![8, 9], 1, 0));
    }
}
