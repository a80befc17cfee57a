//! Reading a worker's output while it grows and rotates.
//!
//! With both streams, what is already there comes stream by stream, and what follows in the order in
//! which it is seen: the two files carry no common clock.
//!
//! **Invariant:** memory is bounded by one chunk per stream; a reader that stops reading stops this.

use crate::executor::{OutputChunk, OutputRequest};
use crate::limits::LOG_CHUNK_BYTES;
use crate::task::TaskDir;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

/// How late output may be seen where the kernel gives out no more watches.
const POLL: Duration = Duration::from_millis(250);

/// Sends what is asked for until its end. A receiver that is gone ends it too.
///
/// # Errors
/// When a file cannot be read.
pub(crate) async fn read(
    task: &TaskDir,
    request: &OutputRequest,
    sink: &mpsc::Sender<OutputChunk>,
) -> io::Result<()> {
    // Before the first look, so that nothing falls between the two.
    let mut changes = request.follow.then(|| Changes::of(task));
    let mut tails: Vec<Option<Tail>> =
        request.streams.iter().map(|stream| Some(Tail::new(task, stream, request.tail_bytes))).collect();
    loop {
        // Read before the output is: all output is on disk when the end is.
        let ended = matches!(task.exit(), Ok(Some(_)) | Err(_));
        for slot in &mut tails {
            let Some(mut tail) = slot.take() else { continue };
            loop {
                let (back, read) = blocking_read(tail).await?;
                tail = back;
                let Some(data) = read else { break };
                if sink.send(OutputChunk { stream: tail.stream, data }).await.is_err() {
                    return Ok(());
                }
            }
            *slot = Some(tail);
        }
        match &mut changes {
            Some(changes) if !ended => changes.wait().await?,
            _ => return Ok(()),
        }
    }
}

async fn blocking_read(mut tail: Tail) -> io::Result<(Tail, Option<Vec<u8>>)> {
    tokio::task::spawn_blocking(move || tail.next().map(|data| (tail, data)))
        .await
        .map_err(|_| io::Error::other("the read was given up"))?
}

/// One stream's place in its two files.
struct Tail {
    stream: &'static str,
    path: PathBuf,
    /// The open file and its number: a rename does not change what is open.
    file: Option<(File, u64)>,
}

impl Tail {
    fn new(task: &TaskDir, stream: &'static str, tail_bytes: u64) -> Tail {
        let (path, before) = (task.output(stream), task.output_before(stream));
        let length = |path| std::fs::metadata(path).map_or(0, |meta| meta.len());
        let (older, newer) = (length(&before), length(&path));
        let skip = if tail_bytes == 0 { 0 } else { (older + newer).saturating_sub(tail_bytes) };
        // A file that is not there yet is opened when it is.
        let file = if older > skip { open_at(&before, skip).ok() } else { open_at(&path, skip - older).ok() };
        Tail { stream, path, file }
    }

    /// The next piece; none when there is nothing more for now.
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let Some((file, number)) = &mut self.file else {
                match open_at(&self.path, 0) {
                    Ok(opened) => self.file = Some(opened),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                    Err(e) => return Err(e),
                }
                continue;
            };
            if let Some(data) = read_piece(file)? {
                return Ok(Some(data));
            }
            match std::fs::metadata(&self.path) {
                Ok(meta) if meta.ino() != *number => {}
                // The same file, or the moment between rename and creation.
                Ok(_) => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(e),
            }
            // Rotated: what was written after the last read and before the rename comes first.
            if let Some(data) = read_piece(file)? {
                return Ok(Some(data));
            }
            self.file = None;
        }
    }
}

fn open_at(path: &PathBuf, offset: u64) -> io::Result<(File, u64)> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let number = file.metadata()?.ino();
    Ok((file, number))
}

fn read_piece(file: &mut File) -> io::Result<Option<Vec<u8>>> {
    let mut data = Vec::new();
    file.take(LOG_CHUNK_BYTES as u64).read_to_end(&mut data)?;
    Ok((!data.is_empty()).then_some(data))
}

/// Wakes when something in the folder changed.
enum Changes {
    Watched(AsyncFd<Watch>),
    Polled,
}

struct Watch(Inotify);

impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Changes {
    fn of(task: &TaskDir) -> Changes {
        let watch = || -> io::Result<AsyncFd<Watch>> {
            let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
            let flags = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
            inotify.add_watch(task.path(), flags)?;
            // Its successor is unsafe; what that asks for (the descriptor stays open and the same) holds
            // by `Watch` owning it.
            #[allow(deprecated)]
            AsyncFd::new(Watch(inotify))
        };
        match watch() {
            Ok(fd) => Changes::Watched(fd),
            Err(error) => {
                tracing::info!(%error, "no watch for output; looking at it several times a second instead");
                Changes::Polled
            }
        }
    }

    async fn wait(&mut self) -> io::Result<()> {
        match self {
            Changes::Polled => {
                tokio::time::sleep(POLL).await;
                Ok(())
            }
            Changes::Watched(fd) => {
                let mut ready = fd.readable().await?;
                // Which file it was does not matter; all pending events are taken together.
                while ready.get_inner().0.read_events().is_ok_and(|events| !events.is_empty()) {}
                ready.clear_ready();
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::WorkerKey;
    use muster_types::{ExitStatus, FencingToken, JobId};

    fn request(follow: bool, tail_bytes: u64) -> OutputRequest {
        let key = WorkerKey { job: JobId(1), token: FencingToken::default(), rank: 0 };
        OutputRequest { key, streams: vec!["stdout"], follow, tail_bytes }
    }

    async fn collect(mut told: mpsc::Receiver<OutputChunk>) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(chunk) = told.recv().await {
            all.extend(chunk.data);
        }
        all
    }

    #[tokio::test]
    async fn tail_spans_both_files() {
        let dir = tempfile::tempdir().unwrap();
        let task = TaskDir::at(dir.path().to_owned());
        std::fs::write(task.output_before("stdout"), b"0123456789").unwrap();
        std::fs::write(task.output("stdout"), b"abcde").unwrap();
        for (tail, expected) in
            [(0, &b"0123456789abcde"[..]), (7, b"89abcde"), (3, b"cde"), (99, b"0123456789abcde")]
        {
            let (sink, told) = mpsc::channel(4);
            read(&task, &request(false, tail), &sink).await.unwrap();
            drop(sink);
            assert_eq!(collect(told).await, expected, "tail {tail}");
        }
    }

    #[tokio::test]
    async fn following_over_a_rotation_to_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let task = TaskDir::at(dir.path().to_owned());
        std::fs::write(task.output("stdout"), b"one ").unwrap();
        let (sink, mut told) = mpsc::channel(4);
        let reader = {
            let task = task.clone();
            tokio::spawn(async move { read(&task, &request(true, 0), &sink).await })
        };
        assert_eq!(told.recv().await.unwrap().data, b"one ");
        std::fs::rename(task.output("stdout"), task.output_before("stdout")).unwrap();
        std::fs::write(task.output("stdout"), b"two ").unwrap();
        assert_eq!(told.recv().await.unwrap().data, b"two ");
        task.write_exit(ExitStatus::Code(0)).unwrap();
        assert_eq!(collect(told).await, b"");
        reader.await.unwrap().unwrap();
    }
}
