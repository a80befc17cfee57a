//! Where runners inside jobs of other schedulers report to.
//!
//! **Invariant:** a caller costs one short-lived task until it has proved that it holds its share's
//! identity; what it may ask then is about that share alone. Callers that prove nothing, and connections
//! to the store, take no place of a link.

use super::files;
use super::link::{self, Frame, Purpose, ToAgent, ToRunner};
use super::scheduler::{Registered, Scheduler, ToShare};
use super::streams::Stream;
use muster_transport::{FRAME_BYTES_MAX, PinnedError, PinnedReader, PinnedWriter, greet};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};

/// Links at once: one per share, and some that are about to end.
const LINKS_MAX: usize = 16_384;
/// Connections to the store at once, and those of the shares of one tenant.
const STORES_MAX: usize = 4_096;
const STORES_OF_TENANT_MAX: usize = STORES_MAX / 2;
/// Callers that have not proved yet who they are.
const UNPROVED_MAX: usize = 1_024;
/// From a connection to its first word.
const GREETING_MAX: Duration = Duration::from_secs(10);
/// Of the first frame: until that is read, a connection has no more than this in memory.
const GREETING_BYTES_MAX: usize = 16 << 10;
/// A runner that is there asks for its lease more often than this.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Messages on their way to one runner.
const OUTGOING_QUEUED_MAX: usize = 64;

/// Callers that have not proved yet who they are, by the numbers of their connections.
#[derive(Clone, Debug)]
struct Unproved {
    max: usize,
    callers: Arc<Mutex<BTreeMap<u64, AbortHandle>>>,
}

/// One of them, until this is dropped.
struct UnprovedCaller {
    number: u64,
    list: Unproved,
}

impl Drop for UnprovedCaller {
    fn drop(&mut self) {
        self.list.callers.lock().remove(&self.number);
    }
}

impl Unproved {
    fn new(max: usize) -> Unproved {
        Unproved { max, callers: Arc::default() }
    }

    fn caller(&self, number: u64) -> UnprovedCaller {
        UnprovedCaller { number, list: self.clone() }
    }

    /// Serves one more. Where there are too many, the oldest one ends: a runner proves itself at once.
    fn begin(
        &self,
        connections: &mut JoinSet<()>,
        number: u64,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let oldest = {
            let mut callers = self.callers.lock();
            let oldest = if callers.len() >= self.max { callers.pop_first() } else { None };
            // With the lock: it must not be over before it is listed.
            callers.insert(number, connections.spawn(work));
            oldest
        };
        if let Some((_, task)) = oldest {
            task.abort();
        }
    }
}

/// Permits of which one tenant has a part at most.
#[derive(Debug)]
struct TenantPermits {
    max: usize,
    each_max: usize,
    held: Mutex<BTreeMap<String, usize>>,
}

/// One of them, held until this is dropped.
struct TenantPermit<'a> {
    of: &'a TenantPermits,
    tenant: String,
}

impl TenantPermits {
    fn new(max: usize, each_max: usize) -> TenantPermits {
        TenantPermits { max, each_max, held: Mutex::default() }
    }

    fn try_take(&self, tenant: &str) -> Option<TenantPermit<'_>> {
        let mut held = self.held.lock();
        let own = held.get(tenant).copied().unwrap_or(0);
        if own >= self.each_max || held.values().sum::<usize>() >= self.max {
            return None;
        }
        held.insert(tenant.to_owned(), own + 1);
        Some(TenantPermit { of: self, tenant: tenant.to_owned() })
    }
}

impl Drop for TenantPermit<'_> {
    fn drop(&mut self) {
        let mut held = self.of.held.lock();
        let left = held.remove(&self.tenant).unwrap_or(0).saturating_sub(1);
        if left > 0 {
            held.insert(self.tenant.clone(), left);
        }
    }
}

/// What callers that have proved who they are have of an agent: no kind of connection takes the place of another.
#[derive(Debug)]
struct Permits {
    links: Semaphore,
    stores: TenantPermits,
}

/// Accepts connections. Never ends.
pub(crate) async fn serve<S: Scheduler>(backend: Arc<S>, listener: TcpListener) {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    let stores = TenantPermits::new(STORES_MAX, STORES_OF_TENANT_MAX);
    let permits = Arc::new(Permits { links: Semaphore::new(LINKS_MAX), stores });
    let unproved = Unproved::new(UNPROVED_MAX);
    // Ends with the server.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
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
        let (permits, caller) = (Arc::clone(&permits), unproved.caller(number));
        unproved.begin(&mut connections, number, async move {
            if let Err(why) = connection(&*backend, &permits, stream, caller).await {
                tracing::info!(why, "a connection of a runner ended");
            }
        });
    }
}

async fn connection<S: Scheduler>(
    backend: &S,
    permits: &Permits,
    stream: TcpStream,
    caller: UnprovedCaller,
) -> Result<(), String> {
    let number = caller.number;
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
    drop(caller);
    let (runner, job) = match first {
        ToAgent::Hello { runner, job, host } => {
            tracing::debug!(host, job, "a runner connects");
            (runner, job)
        }
        ToAgent::Stream(purpose) => {
            return hand_on(backend, permits, &share, (purpose, Stream { reader, writer })).await;
        }
        _ => return Err("the first message must be a greeting".to_owned()),
    };
    let Ok(_place) = permits.links.try_acquire() else {
        return Err("too many runners are connected".to_owned());
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
    permits: &Permits,
    share: &Registered<S>,
    (purpose, stream): (Purpose, Stream),
) -> Result<(), String> {
    let common = backend.common();
    match purpose {
        Purpose::Errand(errand) => {
            common.streams.arrived(share.key, &share.place, errand, stream);
            Ok(())
        }
        Purpose::Store => {
            let Some(_place) = permits.stores.try_take(share.files.tenant()) else {
                return Err("runners have too many connections to the store".to_owned());
            };
            files::serve(common.files.as_ref(), &share.files, stream).await
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn callers_that_prove_nothing_make_room_for_newer_ones() {
        let unproved = Unproved::new(2);
        let mut connections = JoinSet::new();
        let listed = || unproved.callers.lock().keys().copied().collect::<Vec<_>>();
        for number in 1..=3 {
            let caller = unproved.caller(number);
            unproved.begin(&mut connections, number, async move {
                let _caller = caller;
                std::future::pending::<()>().await;
            });
        }
        let ended = connections.join_next().await.unwrap();
        assert!(ended.unwrap_err().is_cancelled(), "the oldest one");
        assert_eq!(listed(), [2, 3]);
        // One that proves itself takes nobody's place from then on, and nobody ends it.
        let caller = unproved.caller(4);
        unproved.begin(&mut connections, 4, async move {
            drop(caller);
            std::future::pending::<()>().await;
        });
        assert!(connections.join_next().await.unwrap().unwrap_err().is_cancelled());
        while listed() != [3] {
            tokio::task::yield_now().await;
        }
        for number in 5..=8 {
            unproved.begin(&mut connections, number, std::future::pending());
        }
        for _ in 0..3 {
            assert!(connections.join_next().await.unwrap().unwrap_err().is_cancelled());
        }
        assert_eq!((listed(), connections.len()), ([7, 8].to_vec(), 3), "the one that is proved goes on");
    }

    #[test]
    fn a_tenant_has_a_part_of_the_connections_to_the_store() {
        let permits = TenantPermits::new(3, 2);
        let held = (permits.try_take("one"), permits.try_take("one"));
        assert!(held.0.is_some() && held.1.is_some() && permits.try_take("one").is_none());
        let other = permits.try_take("two");
        assert!(other.is_some() && permits.try_take("three").is_none(), "all are held");
        drop(held);
        assert!(permits.try_take("three").is_some());
        drop(other);
        assert!(permits.held.lock().is_empty());
    }
}
