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
        .env("MUSTER_LOG", "info,openraft=warn,openraft::raft::stream_append=off")
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

/// What the consensus library says of a peer's message to a replica that is being stopped, as it was told to be.
const STOPPING: &str = "failed to send RaftMsg to RaftCore";

/// Lines that no process may write, whatever is done to it: of panics, and of errors that nothing handles.
#[must_use]
pub fn complaints(text: &str) -> Vec<String> {
    let complains =
        |line: &&str| line.contains("panicked at") || (line.contains(" ERROR ") && !line.contains(STOPPING));
    text.lines().filter(complains).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_later_is_read_and_complaints_are_found() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join("log");
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
