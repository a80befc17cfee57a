//! A connection between two hosts: messages in order, both ways, until it breaks.
//!
//! What is lost on the way is sent again for a while, as TCP does; then the connection is over, and a process
//! that still waits at an end hears nothing rather than an error.

use crate::runtime::{HARNESS, Host, chance, now_ns, sleep_true_ns, spawn_on};
use crate::site::{Site, lock};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Between two attempts to send what was lost.
const AGAIN_NS: u64 = 300_000_000;
/// Attempts before the connection is given up.
const TRIES: usize = 12;
/// How long an end that hears nothing is left waiting.
const SILENCE_NS: u64 = 10_000_000_000;

/// One end: what it sends, and what it hears. Dropping it ends the connection.
pub struct End<S, R> {
    to: mpsc::UnboundedSender<(u64, S)>,
    from: mpsc::UnboundedReceiver<R>,
}

/// What one end sends. Dropping it says that nothing more comes.
pub struct Saying<S>(mpsc::UnboundedSender<(u64, S)>);

impl<S> Saying<S> {
    /// Sends; whether there is still a connection, as far as this end knows.
    pub fn send(&self, message: S) -> bool {
        self.0.send((now_ns(), message)).is_ok()
    }
}

impl<S, R> End<S, R> {
    /// What it sends and what it hears, each by itself.
    pub fn split(self) -> (Saying<S>, mpsc::UnboundedReceiver<R>) {
        (Saying(self.to), self.from)
    }

    /// Sends; whether there is still a connection, as far as this end knows.
    pub fn send(&self, message: S) -> bool {
        self.to.send((now_ns(), message)).is_ok()
    }

    /// The next message; none when the other end is gone.
    pub async fn next(&mut self) -> Option<R> {
        self.from.recv().await
    }
}

/// Connects two hosts.
pub fn connect<A, B>(site: &Arc<Site>, here: Host, there: Host) -> (End<A, B>, End<B, A>)
where
    A: Send + 'static,
    B: Send + 'static,
{
    let (to_there, out) = mpsc::unbounded_channel();
    let (arrive_there, from_here) = mpsc::unbounded_channel();
    let (to_here, back) = mpsc::unbounded_channel();
    let (arrive_here, from_there) = mpsc::unbounded_channel();
    spawn_on(HARNESS, carry(Arc::clone(site), here, there, out, arrive_there));
    spawn_on(HARNESS, carry(Arc::clone(site), there, here, back, arrive_here));
    (End { to: to_there, from: from_there }, End { to: to_here, from: from_here })
}

async fn carry<T>(
    site: Arc<Site>,
    from: Host,
    to: Host,
    mut out: mpsc::UnboundedReceiver<(u64, T)>,
    arrive: mpsc::UnboundedSender<T>,
) {
    let mut last = 0;
    while let Some((sent, message)) = out.recv().await {
        let Some(late) = passes(&site, from, to).await else {
            sleep_true_ns(SILENCE_NS).await;
            return;
        };
        // Nothing overtakes what was sent before.
        last = last.max(sent.max(late.since) + late.leg);
        sleep_true_ns(last.saturating_sub(now_ns())).await;
        if arrive.send(message).is_err() {
            break;
        }
    }
    // The other end may have closed it, or lost power silently.
    if chance(300) {
        sleep_true_ns(SILENCE_NS).await;
    }
}

/// A message that gets through.
struct Passed {
    /// Since when it is on its way for the last time.
    since: u64,
    leg: u64,
}

async fn passes(site: &Arc<Site>, from: Host, to: Host) -> Option<Passed> {
    let mut since = 0;
    for _ in 0..TRIES {
        if let Some(leg) = lock(&site.network).leg(from, to) {
            return Some(Passed { since, leg });
        }
        sleep_true_ns(AGAIN_NS).await;
        since = now_ns();
    }
    None
}
