//! The mark of a diverged replica and what is kept next to it.
//!
//! ```text
//! <data_dir>/DIVERGED               says where, and the two digests; TOML
//! <data_dir>/diverged.backup        the state as it was, to be looked at with `muster backup verify`
//! ```
//!
//! **Invariant:** while the mark is there, the replica does not start; it is written before the replica
//! stops, and moved to the evidence only by a rebuild.

use muster_archive::backup::{BackupHeader, BackupWriter};
use muster_engine::{Divergence, Mismatch};
use muster_files::Manner;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const MARK: &str = "DIVERGED";
const STATE: &str = "diverged.backup";
/// Bytes of a mark that are read.
const MARK_BYTES_MAX: u64 = 64 << 10;

/// What is known of a divergence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DivergedMark {
    /// The record that carries the digest.
    pub log_index: u64,
    /// The digest in the log.
    pub expected_digest: String,
    /// That of the state here.
    pub actual_digest: String,
    /// When it was noticed, in milliseconds since the Unix epoch.
    pub noticed_at_ms: u64,
    /// The release that noticed it.
    pub version: String,
}

/// This machine's time, in milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The mark in a directory, if there is one. One that cannot be read counts all the same.
///
/// # Errors
/// When the directory cannot be looked into.
pub fn mark_in(dir: &Path) -> std::io::Result<Option<DivergedMark>> {
    let path = dir.join(MARK);
    let size = match std::fs::metadata(&path) {
        Ok(found) => found.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let unreadable = || DivergedMark {
        log_index: 0,
        expected_digest: "unknown".to_owned(),
        actual_digest: "unknown".to_owned(),
        noticed_at_ms: 0,
        version: String::new(),
    };
    if size > MARK_BYTES_MAX {
        return Ok(Some(unreadable()));
    }
    let text = std::fs::read(&path)?;
    let text = String::from_utf8_lossy(&text);
    Ok(Some(toml::from_str(&text).unwrap_or_else(|_| unreadable())))
}

/// Keeps a divergence: the mark first, so that whatever fails after it, the replica does not start.
///
/// # Errors
/// When the mark cannot be written.
pub fn keep(dir: &Path, divergence: &Divergence<'_>) -> std::io::Result<()> {
    let (expected_digest, actual_digest) = match divergence.mismatch {
        Mismatch::Digest { expected, actual } => (format!("{expected:016x}"), format!("{actual:016x}")),
        Mismatch::Position { first } => (
            format!("unknown (the leader's next round begins at record {first})"),
            format!("{:016x}", divergence.state.rows_digest()),
        ),
    };
    let mark = DivergedMark {
        log_index: divergence.log_index.0,
        expected_digest,
        actual_digest,
        noticed_at_ms: now_ms(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let text = toml::to_string(&mark).map_err(std::io::Error::other)?;
    muster_files::write_whole(&dir.join(MARK), text.as_bytes(), Manner::PUBLIC)?;
    if let Err(error) = keep_state(dir, divergence) {
        let error = &error as &dyn std::error::Error;
        tracing::error!(error, "the state of the diverged replica could not be kept as evidence");
    }
    Ok(())
}

fn keep_state(dir: &Path, divergence: &Divergence<'_>) -> Result<(), muster_archive::backup::BackupError> {
    let state = divergence.state;
    let leadership = state.leadership();
    let header = BackupHeader {
        cluster_id: state.cluster().map_or(muster_types::ClusterId(0), |cluster| cluster.cluster),
        cluster_generation: state.generation(),
        log_index: state.log_index().0,
        log_time_ms: state.log_time().0,
        state_digest: state.digest(),
        format: state.format(),
        replica_id: leadership.map_or(0, |leadership| leadership.replica.0),
        created_at_ms: now_ms(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let mut writer = BackupWriter::create(&dir.join(STATE), &header)?;
    for chunk in state.snapshot() {
        writer.write(&chunk)?;
    }
    writer.finish().map(|_| ())
}

/// Moves the mark and the state into the directory with the rest of the evidence.
///
/// # Errors
/// When a file cannot be moved.
pub fn move_mark(dir: &Path, evidence: &Path) -> std::io::Result<()> {
    // The mark last: while it is there, nobody takes the directory for a healthy one.
    for name in [STATE, MARK] {
        match muster_files::rename_durably(&dir.join(name), &evidence.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    // One that was moved before may not be flushed yet.
    muster_files::sync_directory(evidence)?;
    muster_files::sync_directory(dir)
}

/// The newest directory with evidence in `dir`.
pub fn newest_evidence(dir: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    let sets = entries.filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("damaged-") && path.is_dir()
    });
    sets.max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_state::State;
    use muster_types::LogIndex;

    #[test]
    fn a_divergence_is_kept_and_moved_to_the_evidence() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let dir = directory.path();
        assert_eq!(mark_in(dir).expect("it can be looked into"), None);
        let state = State::default();
        let mismatch = Mismatch::Digest { expected: 0xab, actual: state.digest() };
        let divergence = Divergence { log_index: LogIndex(7), mismatch, state: &state };
        keep(dir, &divergence).expect("it can be written");
        let mark = mark_in(dir).expect("it can be looked into").expect("there is one");
        assert_eq!((mark.log_index, mark.expected_digest.as_str()), (7, "00000000000000ab"));
        let reader = muster_archive::backup::BackupReader::open(&dir.join(STATE)).expect("the state is kept");
        assert_eq!(reader.header().state_digest, state.digest());
        // A mark that cannot be read is a mark.
        std::fs::write(dir.join(MARK), b"\xff{").expect("it can be written");
        assert!(mark_in(dir).expect("it can be looked into").is_some());
        let evidence = dir.join("damaged-1");
        std::fs::create_dir(&evidence).expect("a directory can be made");
        move_mark(dir, &evidence).expect("it can be moved");
        assert_eq!(mark_in(dir).expect("it can be looked into"), None);
        assert!(evidence.join(MARK).exists() && evidence.join(STATE).exists());
        assert_eq!(newest_evidence(dir), Some(evidence));
    }
}
