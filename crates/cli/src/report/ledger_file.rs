//! A ledger that is kept in a file, so that the next report charges only what the log has more.
//!
//! **Invariant:** a file that is damaged, of another log or of another span is refused; nothing is charged on top of it.

use std::io::ErrorKind;
use std::path::Path;

use muster_archive::{Archive, Replay};
use muster_console::{Exit, Failure};
use muster_files::Manner;
use muster_ledger::{Ledger, Window};
use muster_state::State;
use muster_types::{LogTime, PastPoint};

use crate::log::archive_failure;

/// What such a file begins with.
const MAGIC: &[u8; 4] = b"MSLK";
/// The largest file that is read.
const BYTES_MAX: u64 = 1 << 30;

/// A ledger, the state of the same position, and when the span begins that it is of.
pub(super) struct Resumed {
    pub(super) ledger: Ledger,
    pub(super) replay: Replay,
    pub(super) begun: LogTime,
}

fn refused(path: &Path, what: &str) -> Failure {
    Failure::usage(format!("{}: {what}", path.display()))
        .with_next("name another file with --ledger, or remove this one: it can be made again from the log")
}

fn io_failure(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("{}: {error}", path.display()))
}

/// The parts of a file: whether jobs are kept apart, the digest of the state, when the span begins, the ledger.
fn parts(bytes: &[u8]) -> Option<(bool, u64, LogTime, &[u8])> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let ([jobs], rest) = rest.split_first_chunk::<1>()?;
    let (digest, rest) = rest.split_first_chunk::<8>()?;
    let (begun, ledger) = rest.split_first_chunk::<8>()?;
    Some((*jobs != 0, u64::from_le_bytes(*digest), LogTime(u64::from_le_bytes(*begun)), ledger))
}

/// The ledger in a file, with the state that belongs to it; none where there is no file yet.
pub(super) fn read(
    path: &Path,
    archive: &Archive,
    window: Window,
    jobs: bool,
) -> Result<Option<Resumed>, Failure> {
    let bytes = match muster_files::read_bounded(path, BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_failure(path, &error)),
    };
    let (has_jobs, digest, begun, ledger) =
        parts(&bytes).ok_or_else(|| refused(path, "it is no ledger that a report has kept"))?;
    let ledger = Ledger::load(ledger).map_err(|error| refused(path, &error.to_string()))?;
    if ledger.window() != window || has_jobs != jobs {
        return Err(refused(path, "it is the ledger of another span, or with another choice of --by job"));
    }
    let at = PastPoint::Index(ledger.log_index());
    let (replay, reached) = archive.replay(at, None).map_err(|error| archive_failure(&error))?;
    if !reached || replay.state().digest() != digest {
        return Err(refused(
            path,
            "it is the ledger of another log, or of one that goes on behind the end of this one",
        ));
    }
    Ok(Some(Resumed { ledger, replay, begun }))
}

/// Keeps a ledger, in place of the one that is there.
pub(super) fn write(
    path: &Path,
    ledger: &Ledger,
    state: &State,
    (begun, jobs): (LogTime, bool),
) -> Result<(), Failure> {
    let mut bytes = MAGIC.to_vec();
    bytes.push(u8::from(jobs));
    bytes.extend_from_slice(&state.digest().to_le_bytes());
    bytes.extend_from_slice(&begun.0.to_le_bytes());
    bytes.extend_from_slice(&ledger.save());
    muster_files::write_whole(path, &bytes, Manner::PRIVATE).map_err(|error| io_failure(path, &error))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use muster_ledger::Detail;

    use super::super::read::{Reading, Watchers, open, read_in};
    use super::*;
    use crate::report::archives::{START, archive};

    fn report(dir: &Path, kept: Option<&Path>, to: Option<u64>, jobs: bool) -> Result<Reading, Failure> {
        let source = open(&[dir.to_owned()])?;
        let to = to.map(|second| PastPoint::Time(LogTime(START + second * 1_000)));
        let detail = Detail { jobs, ..Detail::default() };
        read_in(&source, None, to, &detail, Watchers { kept, ..Watchers::default() })
    }

    fn files(dir: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> =
            entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
        files.sort();
        files
    }

    #[test]
    fn a_report_goes_on_where_the_last_one_ended() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        archive(&log);
        let whole = report(&log, None, None, false).unwrap();
        // The end of the log is not there yet.
        let last = files(&log.join("segments")).pop().unwrap();
        let aside = dir.path().join("aside");
        std::fs::rename(&last, &aside).unwrap();
        let kept = dir.path().join("kept.ledger");
        let part = report(&log, Some(&kept), None, false).unwrap();
        assert!(part.views != whole.views && kept.exists());
        std::fs::rename(&aside, &last).unwrap();
        let before = std::fs::read(&kept).unwrap();
        for _ in 0..2 {
            let resumed = report(&log, Some(&kept), None, false).unwrap();
            assert_eq!(
                (resumed.views, resumed.from, resumed.to),
                (whole.views.clone(), whole.from, whole.to)
            );
        }
        // A log that has nothing more leaves the file alone.
        assert_ne!(std::fs::read(&kept).unwrap(), before);
        let written = std::fs::metadata(&kept).unwrap().modified().unwrap();
        report(&log, Some(&kept), None, false).unwrap();
        assert_eq!(std::fs::metadata(&kept).unwrap().modified().unwrap(), written);
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (log, kept) = (dir.path().join("log"), dir.path().join("kept.ledger"));
        archive(&log);
        report(&log, Some(&kept), None, false).unwrap();
        let refused =
            |to, jobs| report(&log, Some(&kept), to, jobs).err().map(|error| error.headline().to_owned());
        assert!(refused(Some(150), false).is_some_and(|text| text.contains("of another span")));
        assert!(refused(None, true).is_some_and(|text| text.contains("of another span")));
        assert_eq!(refused(None, false), None);
        let bytes = std::fs::read(&kept).unwrap();
        // The digest of the state.
        let mut other = bytes.clone();
        other[6] ^= 1;
        std::fs::write(&kept, &other).unwrap();
        assert!(refused(None, false).is_some_and(|text| text.contains("of another log")));
        std::fs::write(&kept, &bytes[..bytes.len() - 1]).unwrap();
        assert!(refused(None, false).is_some_and(|text| text.contains("ledger")));
        std::fs::write(&kept, b"a text").unwrap();
        assert!(refused(None, false).is_some_and(|text| text.contains("no ledger")));
    }
}
