//! What a process of the cluster is started with, and what it writes.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};
use tokio::process::Command;

/// Servers and agents started with it end when the thread that started them does.
const DIE_WITH_PARENT: &str = "MUSTER_DIE_WITH_PARENT";
/// Of one log, since a drill began, that is looked through and kept; a server that writes more has gone wrong.
const LOG_BYTES_MAX: u64 = 64 << 20;

/// A command of `muster` with its log.
///
/// # Errors
/// When the log cannot be opened.
pub fn command(program: &Path, log: &Path, args: &[&str]) -> Result<Command> {
    let file = OpenOptions::new().create(true).append(true).open(log);
    let file = file.with_context(|| format!("opening {}", log.display()))?;
    let mut command = Command::new(program);
    command
        .args(args)
        .env(DIE_WITH_PARENT, "1")
        .env_remove("MUSTER_ENDPOINTS")
        // The consensus library tells of every vote; what Muster says of elections is enough.
        .env("MUSTER_LOG", "info,openraft=warn")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file);
    Ok(command)
}

/// Where a log had come to: what is behind it belongs to a drill.
#[derive(Clone, Debug)]
pub struct LogMark {
    path: PathBuf,
    from: u64,
}

impl LogMark {
    /// The end of a log as it is now; its beginning where there is none.
    #[must_use]
    pub fn at_end(path: &Path) -> LogMark {
        let from = std::fs::metadata(path).map_or(0, |found| found.len());
        LogMark { path: path.to_path_buf(), from }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was written since.
    ///
    /// # Errors
    /// When the log is there and cannot be read.
    pub fn text(&self) -> Result<String> {
        let reading = || format!("reading {}", self.path.display());
        if !self.path.exists() {
            return Ok(String::new());
        }
        let mut file = File::open(&self.path).with_context(reading)?;
        file.seek(SeekFrom::Start(self.from)).with_context(reading)?;
        let mut bytes = Vec::new();
        file.take(LOG_BYTES_MAX).read_to_end(&mut bytes).with_context(reading)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// What the consensus library says of a message to a replica that is being stopped, as it was told to be.
const OF_STOPPING: [&str; 2] = ["failed to send RaftMsg to RaftCore", "stream_append: RaftCore stopped"];
/// What a replica says when it was told to stop, and when it serves.
const STOPS: &str = "the replica was told to stop";
const SERVES: &str = "replica serves";

/// Lines that no process may write, whatever is done to it: of panics, and of errors that nothing handles. What the
/// consensus library says of a replica's end is one, unless that replica has said that it was told to stop.
#[must_use]
pub fn complaints(text: &str) -> Vec<String> {
    let mut stops = false;
    let mut found = Vec::new();
    for line in text.lines() {
        stops = line.contains(STOPS) || (stops && !line.contains(SERVES));
        let is_expected = stops && OF_STOPPING.iter().any(|words| line.contains(words));
        if line.contains("panicked at") || (line.contains(" ERROR ") && !is_expected) {
            found.push(line.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_consensus_is_a_complaint_unless_the_replica_was_told_to_stop() {
        let ended = " ERROR openraft::raft: stream_append: RaftCore stopped: it panicked";
        let unsent = " ERROR openraft::raft: failed to send RaftMsg to RaftCore: a vote";
        let told = format!("\u{20}INFO {STOPS}");
        let serves = format!("\u{20}INFO {SERVES} replica=1");
        let text = [ended, &told, ended, unsent, " ERROR it is not well", &serves, unsent].join("\n");
        assert_eq!(complaints(&text), [ended, " ERROR it is not well", unsent]);
    }

    #[test]
    fn only_what_came_later_is_read_and_complaints_are_found() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("log");
        assert_eq!(LogMark::at_end(&path).text().expect("nothing is fine"), "");
        std::fs::write(&path, "thread 'main' panicked at before\n").expect("writing a log");
        let mark = LogMark::at_end(&path);
        let more = "\u{20}INFO all is well\n ERROR it is not\nthread 'x' panicked at y\n";
        let mut file = OpenOptions::new().append(true).open(&path).expect("it is there");
        std::io::Write::write_all(&mut file, more.as_bytes()).expect("appending to a log");
        let found = complaints(&mark.text().expect("it can be read"));
        assert_eq!(found, [" ERROR it is not", "thread 'x' panicked at y"]);
    }
}
