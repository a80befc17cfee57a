//! Where runners inside jobs of other schedulers report to.
//!
//! **Invariant:** a caller costs one short-lived task until it has proved that it holds its share's
//! identity; what it may ask then is about that share alone.

use super::files;
use super::link::{self, Frame, Purpose, ToAgent, ToRunner};
use super::scheduler::{Registered, Scheduler, ToShare};
use super::streams::Stream;
use muster_transport::{FRAME_BYTES_MAX, PinnedError, PinnedReader, PinnedWriter, greet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

/// Connections at once: one per share, and some that are about to end.
const CONNECTIONS_MAX: usize = 16_384;
/// From a connection to its first word.
const GREETING_MAX: Duration = Duration::from_secs(10);
/// Of the first frame: until that is read, a connection has no more than this in memory.
const GREETING_BYTES_MAX: usize = 16 << 10;
/// A runner that is there asks for its lease more often than this.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Messages on their way to one runner.
const OUTGOING_QUEUED_MAX: usize = 64;

/// Accepts connections. Never ends.
pub(crate) async fn serve<S: Scheduler>(backend: Arc<S>, listener: TcpListener) {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Ends with the server.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, mostly: others will be given back.
                tracing::warn!(%error, "a connection of a runner was not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (backend, number) = (Arc::clone(&backend), NUMBERS.fetch_add(1, Ordering::Relaxed));
        connections.spawn(async move {
            let _permit = permit;
            if let Err(why) = connection(&*backend, stream, number).await {
                tracing::info!(why, "a connection of a runner ended");
            }
        });
    }
}

async fn connection<S: Scheduler>(backend: &S, stream: TcpStream, number: u64) -> Result<(), String> {
    // Without it small frames would wait for each other; the connection works either way.
    let _ = stream.set_nodelay(true);
    let opening = async {
        let greeted = greet(stream).await.map_err(|e| e.to_string())?;
        let share = backend.common().share(&greeted.name).ok_or("nothing waits for this runner")?;
        let (mut reader, writer) = greeted.accept(&share.identity).await.map_err(|e| e.to_string())?;
        reader.limit_frames(GREETING_BYTES_MAX);
        let first = reader.read().await.map_err(|e| e.to_string())?.unwrap_or_default();
        reader.limit_frames(FRAME_BYTES_MAX);
        let first = link::decode::<ToAgent>(&first);
        Ok::<_, String>((share, reader, writer, first.ok_or("the first message must be a greeting")?))
    };
    let opened = tokio::time::timeout(GREETING_MAX, opening).await;
    let (share, reader, writer, first) = opened.map_err(|_| "it said nothing in time")??;
    let (runner, job) = match first {
        ToAgent::Hello { runner, job, host } => {
            tracing::debug!(host, job, "a runner connects");
            (runner, job)
        }
        ToAgent::Stream(purpose) => {
            return hand_on(backend, &share, purpose, Stream { reader, writer }).await;
        }
        _ => return Err("the first message must be a greeting".to_owned()),
    };
    let (out, outgoing) = mpsc::channel(OUTGOING_QUEUED_MAX);
    let hello = ToShare::Hello { connection: number, runner, job, out: out.clone() };
    share.inbox.send(hello).await.map_err(|_| "its share is over")?;
    // The share keeps the other sender: when it drops that, the connection ends.
    let weak = out.downgrade();
    drop(out);
    let ended = tokio::select! {
        ended = read(reader, &share, number, &weak) => ended,
        ended = write(writer, outgoing) => ended,
    };
    // Gone with the agent, or the share is over.
    let _ = share.inbox.send(ToShare::Gone(number)).await;
    ended.map_err(|error| error.to_string())
}

/// Hands on a connection for bytes to who asked for it, or answers what is asked for on it.
async fn hand_on<S: Scheduler>(
    backend: &S,
    share: &Registered<S>,
    purpose: Purpose,
    stream: Stream,
) -> Result<(), String> {
    let common = backend.common();
    match purpose {
        Purpose::Errand(errand) => {
            common.streams.arrived(share.key, &share.place, errand, stream);
            Ok(())
        }
        Purpose::Store => files::serve(common.files.as_ref(), &share.files, stream).await,
    }
}

async fn read<S: Scheduler>(
    mut from: PinnedReader<TcpStream>,
    share: &Registered<S>,
    number: u64,
    out: &mpsc::WeakSender<ToRunner>,
) -> Result<(), PinnedError> {
    loop {
        let read = tokio::time::timeout(SILENCE_MAX, from.read()).await;
        let silent = std::io::Error::from(std::io::ErrorKind::TimedOut);
        let Some(bytes) = read.map_err(|_| PinnedError::Io(silent))?? else { return Ok(()) };
        match link::decode_frame(&bytes) {
            Some(Frame::Message(ToAgent::Renew { number })) => {
                let answer = match share.promise.left() {
                    Some(left) => ToRunner::Lease { number, left },
                    None => ToRunner::Lapsed,
                };
                let Some(out) = out.upgrade() else { return Ok(()) };
                // A full queue: the runner takes nothing, and so gets no lease either.
                let _ = out.try_send(answer);
            }
            Some(frame) => {
                if share.inbox.send(ToShare::Frame(number, frame)).await.is_err() {
                    return Ok(());
                }
            }
            None => tracing::debug!("a frame of another version is passed over"),
        }
    }
}

async fn write(
    mut to: PinnedWriter<TcpStream>,
    mut outgoing: mpsc::Receiver<ToRunner>,
) -> Result<(), PinnedError> {
    while let Some(message) = outgoing.recv().await {
        to.write(&link::encode(&message)).await?;
    }
    Ok(())
}
