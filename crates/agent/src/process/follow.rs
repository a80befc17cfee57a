//! Following a worker's output while it grows.
//!
//! **Invariant:** memory is bounded by a few pieces; a reader that stops reading stops this.

use crate::executor::{OutputChunk, OutputRequest};
use crate::process::task::TaskDir;
use crate::process::transcript::{Piece, Reader};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
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
    let (path, before, streams) = (task.output(), task.output_before(), request.streams.clone());
    let (position, tail_bytes) = (request.from_position, request.tail_bytes);
    let mut reader = blocking(move || Reader::open(path, before, streams, position, tail_bytes)).await?;
    loop {
        // Read before the output is: all output is on disk when the end is. A directory that is gone is that
        // of an ended worker.
        let ended = matches!(task.exit(), Ok(Some(_)) | Err(_)) || !task.path().is_dir();
        loop {
            let (back, read) = blocking(move || reader.next().map(|piece| (reader, piece))).await?;
            reader = back;
            let Some(piece) = read else { break };
            if sink.send(chunk(piece)).await.is_err() {
                return Ok(());
            }
        }
        match &mut changes {
            Some(changes) if !ended => changes.wait().await?,
            _ => return Ok(()),
        }
    }
}

fn chunk(piece: Piece) -> OutputChunk {
    OutputChunk {
        stream: piece.stream,
        data: piece.data,
        dropped_bytes: piece.lost,
        position: piece.position,
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| io::Error::other("the read was given up"))?
}

/// Wakes when something in the directory changed.
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
            let flags = AddWatchFlags::IN_MODIFY
                | AddWatchFlags::IN_CREATE
                | AddWatchFlags::IN_MOVED_TO
                | AddWatchFlags::IN_DELETE_SELF;
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
    use crate::process::transcript::{OutputStream, Writer};
    use crate::rules::WorkerKey;
    use muster_types::{ExitStatus, FencingToken, JobId};

    #[tokio::test]
    async fn following_over_rotations_to_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let task = TaskDir::at(dir.path().to_owned());
        let mut writer = Writer::new(task.output(), task.output_before(), 4_096, 0);
        writer.write(OutputStream::Stdout, b"one ").unwrap();
        let (sink, mut told) = mpsc::channel(4);
        let key = WorkerKey { job: JobId(1), token: FencingToken::default(), rank: 0 };
        let streams = vec![OutputStream::Stdout, OutputStream::Stderr];
        let request = OutputRequest { key, streams, follow: true, tail_bytes: 0, from_position: 0 };
        let reader = {
            let task = task.clone();
            tokio::spawn(async move { read(&task, &request, &sink).await })
        };
        assert_eq!(told.recv().await.unwrap().data, b"one ");
        for round in 0..20u8 {
            writer.write(OutputStream::Stderr, &[round; 1_000]).unwrap();
            let mut bytes = 0;
            while bytes < 1_000 {
                let chunk = told.recv().await.unwrap();
                assert_eq!((chunk.stream, chunk.dropped_bytes), (Some(OutputStream::Stderr), 0));
                assert!(chunk.data.iter().all(|byte| *byte == round));
                bytes += chunk.data.len();
            }
        }
        task.write_exit(ExitStatus::Code(0)).unwrap();
        assert_eq!(told.recv().await, None);
        reader.await.unwrap().unwrap();
    }
}
