//! From the worker's pipes into files of bounded size.
//!
//! Each stream has two files: `stdout` is written until it has half of the limit, then becomes `stdout.1`
//! (replacing the one before) and a new one begins. So between half and all of the limit is kept, always
//! the newest; the start of a long run is given up for its end, which is what failures are read from.
//!
//! **Invariant:** the pipe is always drained: a full disk or a failing write costs output, never a
//! worker that blocks on it, and never the shim's own attention (these are threads of their own).

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// One stream's two files.
#[derive(Debug)]
pub(crate) struct Rotated {
    path: PathBuf,
    before: PathBuf,
    half: u64,
    file: Option<File>,
    written: u64,
}

impl Rotated {
    pub(crate) fn new(path: PathBuf, before: PathBuf, bytes_max: u64) -> Rotated {
        Rotated { path, before, half: (bytes_max / 2).max(1), file: None, written: 0 }
    }

    /// Opens the file, so that it is there before the first output.
    pub(super) fn open(&mut self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.path)?;
        self.file = Some(file);
        self.written = 0;
        Ok(())
    }

    /// Goes on behind what an earlier process wrote.
    pub(crate) fn resume(&mut self) -> io::Result<()> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
        self.written = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.file.is_some() && self.written >= self.half {
                self.file = None;
                std::fs::rename(&self.path, &self.before)?;
            }
            if self.file.is_none() {
                self.open()?;
            }
            let room = usize::try_from(self.half - self.written).unwrap_or(usize::MAX);
            let part = &bytes[..bytes.len().min(room)];
            if let Some(file) = &mut self.file {
                file.write_all(part)?;
            }
            self.written += part.len() as u64;
            bytes = &bytes[part.len()..];
        }
        Ok(())
    }
}

/// The two threads that copy.
pub(super) struct Copying {
    done: Receiver<()>,
    threads: usize,
}

impl Copying {
    /// Starts a thread per stream.
    pub(super) fn start(streams: Vec<(Box<dyn Read + Send>, Rotated)>) -> Copying {
        let (tell, done) = std::sync::mpsc::channel();
        let threads = streams.len();
        for (pipe, files) in streams {
            let tell: Sender<()> = tell.clone();
            std::thread::spawn(move || {
                copy(pipe, files);
                // The receiver is gone only when the shim is about to end anyway.
                let _ = tell.send(());
            });
        }
        Copying { done, threads }
    }

    /// Waits until both pipes are at their end, at most this long.
    pub(super) fn finish(self, patience: Duration) {
        let end = Instant::now() + patience;
        for _ in 0..self.threads {
            match self.done.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

fn copy(mut pipe: Box<dyn Read + Send>, mut files: Rotated) {
    let mut buffer = vec![0u8; 64 << 10];
    let mut complained = false;
    loop {
        let read = match pipe.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        if let Err(error) = files.write(&buffer[..read])
            && !complained
        {
            complained = true;
            super::complain(&format!("output is being lost: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_output_is_kept_within_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let (path, before) = (dir.path().join("out"), dir.path().join("out.1"));
        let mut files = Rotated::new(path.clone(), before.clone(), 100);
        files.open().unwrap();
        let all: Vec<u8> = (0..=255u8).cycle().take(1_234).collect();
        for chunk in all.chunks(7) {
            files.write(chunk).unwrap();
        }
        let mut kept = std::fs::read(&before).unwrap();
        kept.extend(std::fs::read(&path).unwrap());
        assert!(kept.len() >= 50 && kept.len() <= 100, "{}", kept.len());
        assert!(all.ends_with(&kept));
    }

    #[test]
    fn one_large_write_rotates_as_often_as_needed() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Rotated::new(dir.path().join("out"), dir.path().join("out.1"), 10);
        files.write(b"abcdefghijklmnopqrstuvwxyz").unwrap();
        assert_eq!(std::fs::read(dir.path().join("out.1")).unwrap(), b"uvwxy");
        assert_eq!(std::fs::read(dir.path().join("out")).unwrap(), b"z");
    }
}
