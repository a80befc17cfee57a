//! For how long a connection's peer is trusted.

use crate::name::Expect;
use crate::security::{Tls, unix_now};
use rustls::pki_types::{CertificateDer, UnixTime};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};
use tokio_stream::Stream as _;
use tokio_stream::wrappers::WatchStream;

/// Wall clocks are set, so the end of a certificate is looked for at least this often.
const LOOK_EVERY: Duration = Duration::from_secs(600);

/// In which direction the peer was verified.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PeerKind {
    Client,
    Server(Expect),
}

/// Watches over one connection: over when the peer's certificate is, or when the authorities in force
/// no longer include its own.
pub(crate) struct Validity {
    tls: Tls,
    chain: Vec<CertificateDer<'static>>,
    not_after: i64,
    verified_as: PeerKind,
    changes: WatchStream<u64>,
    look: Pin<Box<Sleep>>,
    over: bool,
    /// The wall clock, in seconds of Unix time.
    clock: fn() -> i64,
}

fn until(not_after: i64, now: i64) -> Duration {
    let left = u64::try_from(not_after.saturating_sub(now).saturating_add(1)).unwrap_or(0);
    Duration::from_secs(left).min(LOOK_EVERY)
}

impl Validity {
    /// `changes` was subscribed to before the peer was verified, so that no change is missed.
    pub(crate) fn new(
        tls: Tls,
        changes: watch::Receiver<u64>,
        chain: Vec<CertificateDer<'static>>,
        not_after: i64,
        verified_as: PeerKind,
    ) -> Validity {
        Validity::by_clock(unix_now, tls, changes, chain, not_after, verified_as)
    }

    fn by_clock(
        clock: fn() -> i64,
        tls: Tls,
        changes: watch::Receiver<u64>,
        chain: Vec<CertificateDer<'static>>,
        not_after: i64,
        verified_as: PeerKind,
    ) -> Validity {
        let changes = WatchStream::from_changes(changes);
        let look = Box::pin(tokio::time::sleep(until(not_after, clock())));
        Validity { tls, chain, not_after, verified_as, changes, look, over: false, clock }
    }

    /// Ready once the peer is trusted no more.
    pub(crate) fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.over {
                return Poll::Ready(());
            }
            if let Poll::Ready(Some(_)) = Pin::new(&mut self.changes).poll_next(context) {
                let trust = &self.tls.material().trust;
                let verified = match self.verified_as {
                    PeerKind::Client => trust.client(&self.chain, UnixTime::now()),
                    PeerKind::Server(expect) => trust.server(&self.chain, expect, UnixTime::now()),
                };
                if let Err(error) = verified {
                    tracing::info!(%error, "a connection ends: its certificate is trusted no more");
                    self.over = true;
                }
                continue;
            }
            if self.look.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            let now = (self.clock)();
            if now > self.not_after {
                tracing::info!("a connection ends: its certificate has");
                self.over = true;
            } else {
                self.look.as_mut().reset(Instant::now() + until(self.not_after, now));
            }
        }
    }
}

/// What reading from such a connection says.
pub(crate) fn over() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "the peer's certificate is trusted no more")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, Role, TlsFiles};
    use muster_types::{ClusterId, ReplicaId};
    use std::cell::Cell;

    /// A wall clock that goes with the timers of the test, and is set by it.
    const BEGIN_S: i64 = 1_800_000_000;
    thread_local! {
        static BEGUN: Cell<Option<Instant>> = const { Cell::new(None) };
        static SET_AHEAD_S: Cell<i64> = const { Cell::new(0) };
    }

    fn clock() -> i64 {
        let begun = BEGUN.get().expect("the test has begun");
        let passed = i64::try_from(begun.elapsed().as_secs()).expect("a few hours");
        BEGIN_S + passed + SET_AHEAD_S.get()
    }

    /// Trust in a peer whose certificate ends after this number of seconds.
    fn ends_after(tls: &Tls, seconds: i64) -> Validity {
        BEGUN.set(Some(Instant::now()));
        SET_AHEAD_S.set(0);
        let not_after = BEGIN_S + seconds;
        Validity::by_clock(clock, tls.clone(), tls.changes(), Vec::new(), not_after, PeerKind::Client)
    }

    async fn over(validity: &mut Validity) {
        std::future::poll_fn(|context| validity.poll_over(context)).await;
    }

    fn passed() -> Duration {
        BEGUN.get().expect("the test has begun").elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_connection_ends_when_the_certificate_of_its_peer_does() {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::init(&directory.path().join("authority"), ClusterId(7), 10);
        let out = directory.path().join("replica");
        let issued = authority.and_then(|made| made.issue(Role::Replica(ReplicaId(1)), 5, &out, false));
        let issued = issued.expect("a certificate");
        let files = TlsFiles { ca: issued.ca, cert: issued.cert, key: issued.key };
        let tls = Tls::load(files).expect("they go together");

        // Later than the first looks at the clock, at the first moment behind its last second.
        let mut validity = ends_after(&tls, 1_500);
        over(&mut validity).await;
        assert_eq!(passed().as_secs(), 1_501);
        over(&mut validity).await;
        assert_eq!(passed().as_secs(), 1_501, "it stays over");

        // The wall clock is set ahead: the end is found by the next look.
        let mut validity = ends_after(&tls, 86_400);
        let early = tokio::time::timeout(Duration::from_secs(100), over(&mut validity)).await;
        assert!(early.is_err(), "the certificate has not ended");
        SET_AHEAD_S.set(90_000);
        over(&mut validity).await;
        assert!(passed() <= LOOK_EVERY + Duration::from_secs(1), "{:?}", passed());

        // It is set back: the certificate is good for longer, by the clock that the peer is verified by.
        let mut validity = ends_after(&tls, 300);
        SET_AHEAD_S.set(-600);
        over(&mut validity).await;
        assert_eq!(passed().as_secs(), 901);
    }
}
