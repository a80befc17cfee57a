//! Fault injection: traffic that a replica refuses for a while, on purpose. A drill makes a live replica silent with it.
//!
//! The traffic is refused where it passes, with a status that names the reason. Connections stay open, messages that
//! have left a queue may still arrive, and nothing of the log, the vote or the configuration is touched: a replica
//! that starts again takes everything.
//!
//! **Invariant:** a refusal ends by this replica's own monotonic clock, even if the drill that asked for it is never
//! heard of again.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tonic::Status;

/// Which traffic is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficScope {
    /// What other replicas ask of this one: votes, entries, heartbeats, calls they pass on.
    pub peers_in: bool,
    /// What this replica would ask of others.
    pub peers_out: bool,
    /// What clients and agents ask of it, and what goes on being answered to them.
    pub clients: bool,
}

impl TrafficScope {
    /// All of it.
    pub const ALL: TrafficScope = TrafficScope { peers_in: true, peers_out: true, clients: true };

    /// Whether it is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == TrafficScope::default()
    }
}

impl std::fmt::Display for TrafficScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [(self.peers_in, "peers-in"), (self.peers_out, "peers-out"), (self.clients, "clients")];
        let named: Vec<&str> = parts.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect();
        f.write_str(&if *self == TrafficScope::ALL { "all".to_owned() } else { named.join(", ") })
    }
}

#[derive(Clone, Copy)]
struct Refused {
    scope: TrafficScope,
    until: Instant,
}

/// What this replica refuses at present. Clones share it.
#[derive(Clone)]
pub struct Traffic {
    refused: Arc<watch::Sender<Option<Refused>>>,
}

impl Default for Traffic {
    fn default() -> Self {
        Traffic { refused: Arc::new(watch::Sender::new(None)) }
    }
}

impl Traffic {
    /// Refuses traffic until then, in place of what was refused so far.
    pub fn refuse(&self, scope: TrafficScope, until: Instant) {
        self.refused.send_replace(Some(Refused { scope, until }));
    }

    /// Takes everything again.
    pub fn allow(&self) {
        self.refused.send_replace(None);
    }

    /// What is refused now, and for how long still at most.
    #[must_use]
    pub fn refused(&self) -> Option<(TrafficScope, Duration)> {
        let refused = *self.refused.borrow();
        let refused = refused?;
        let left = refused.until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some((refused.scope, left))
    }

    fn left(&self, concerns: impl Fn(TrafficScope) -> bool) -> Option<Duration> {
        self.refused().filter(|(scope, _)| concerns(*scope)).map(|(_, left)| left)
    }

    /// For how long still clients and agents are refused, if they are.
    #[must_use]
    pub fn clients_refused(&self) -> Option<Duration> {
        self.left(|scope| scope.clients)
    }

    /// For how long still calls of other replicas are refused, if they are.
    #[must_use]
    pub fn peers_in_refused(&self) -> Option<Duration> {
        self.left(|scope| scope.peers_in)
    }

    /// For how long still this replica calls no other, if it does not.
    #[must_use]
    pub fn peers_out_refused(&self) -> Option<Duration> {
        self.left(|scope| scope.peers_out)
    }

    /// Waits until what this is about begins to be refused.
    async fn until(&self, concerns: impl Fn(TrafficScope) -> bool) {
        let mut changes = self.refused.subscribe();
        let begun = |refused: &Option<Refused>| {
            refused.is_some_and(|refused| concerns(refused.scope) && refused.until > Instant::now())
        };
        if changes.wait_for(begun).await.is_err() {
            // Unreachable: this value holds the sender.
            std::future::pending::<()>().await;
        }
    }

    /// Resolves once clients are refused.
    pub async fn until_clients_refused(&self) {
        self.until(|scope| scope.clients).await;
    }

    /// Resolves once calls of other replicas are refused.
    pub async fn until_peers_in_refused(&self) {
        self.until(|scope| scope.peers_in).await;
    }

    /// Resolves once other replicas are not called.
    pub(crate) async fn until_peers_out_refused(&self) {
        self.until(|scope| scope.peers_out).await;
    }

    /// # Errors
    /// While calls of other replicas are refused.
    pub(crate) fn admit_peer(&self) -> Result<(), Status> {
        self.peers_in_refused().map_or(Ok(()), |_| Err(silent()))
    }
}

/// What a peer is told.
pub(crate) fn silent() -> Status {
    Status::unavailable("this replica refuses its peers for a while, for a drill")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_refusal_ends_by_itself_and_says_what_it_is_about() {
        let traffic = Traffic::default();
        assert!(traffic.refused().is_none());
        traffic.refuse(TrafficScope { clients: true, ..Default::default() }, Instant::now());
        assert!(traffic.clients_refused().is_none(), "its time is over");
        let until = Instant::now() + Duration::from_secs(60);
        traffic.refuse(TrafficScope { clients: true, ..Default::default() }, until);
        traffic.until_clients_refused().await;
        assert!(traffic.clients_refused().is_some_and(|left| left <= Duration::from_secs(60)));
        assert!(traffic.peers_in_refused().is_none() && traffic.peers_out_refused().is_none());
        traffic.admit_peer().expect("peers are not concerned");
        traffic.refuse(TrafficScope::ALL, until);
        assert_eq!(traffic.admit_peer().expect_err("they are now").code(), tonic::Code::Unavailable);
        traffic.allow();
        assert!(traffic.refused().is_none());
    }

    #[tokio::test]
    async fn who_waits_is_woken_when_it_begins() {
        let traffic = Traffic::default();
        let waiting = tokio::spawn({
            let traffic = traffic.clone();
            async move { traffic.until_peers_out_refused().await }
        });
        let until = Instant::now() + Duration::from_secs(60);
        traffic.refuse(TrafficScope { peers_in: true, ..Default::default() }, until);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "it waits for something else");
        traffic.refuse(TrafficScope::ALL, until);
        waiting.await.expect("it ends");
    }

    #[test]
    fn scopes_are_named() {
        assert_eq!(TrafficScope::ALL.to_string(), "all");
        let some = TrafficScope { peers_in: true, peers_out: true, clients: false };
        assert_eq!(some.to_string(), "peers-in, peers-out");
        assert!(TrafficScope::default().is_empty() && !some.is_empty());
    }
}
