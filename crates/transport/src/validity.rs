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
}

fn until(not_after: i64) -> Duration {
    let left = u64::try_from(not_after.saturating_sub(unix_now()).saturating_add(1)).unwrap_or(0);
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
        let changes = WatchStream::from_changes(changes);
        let look = Box::pin(tokio::time::sleep(until(not_after)));
        Validity { tls, chain, not_after, verified_as, changes, look, over: false }
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
            if unix_now() > self.not_after {
                tracing::info!("a connection ends: its certificate has");
                self.over = true;
            } else {
                self.look.as_mut().reset(Instant::now() + until(self.not_after));
            }
        }
    }
}

/// What reading from such a connection says.
pub(crate) fn over() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "the peer's certificate is trusted no more")
}
