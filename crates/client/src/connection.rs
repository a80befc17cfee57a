//! The connections of one client: the present one, and one to the leader where that is another replica.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use crate::channel::Channel;
use crate::endpoint::{ConnectError, Endpoints};

/// In the answer of a replica that is not the leader: where the leader is.
pub(crate) const LEADER: &str = "muster-leader";

/// A leader that could not be reached is not tried again for so long.
const LEADER_PAUSE: Duration = Duration::from_secs(10);

/// A mutation goes out by another way too when nothing at all was heard over its connection for so long: a
/// replica that lost its power or its network closes nothing. Above a round trip around the world with the
/// quorum's behind it, and below what an election takes, so that the request waits where the next leader is
/// known first.
const SILENCE_MAX: Duration = Duration::from_millis(500);
/// And when it has waited so long itself, whatever else was heard: a replica that has lost its quorum may keep one
/// mutation and answer another.
const UNANSWERED_MAX: Duration = Duration::from_millis(2_000);
/// Attempts of one client that may be under way by more than one way, so that a cluster which is silent
/// because it has too much to do is not given twice as much.
const DOUBLED_MAX: usize = 64;

/// The one channel that clones of a client share.
pub(crate) struct Connection {
    endpoints: Endpoints,
    /// Held while connecting, so that many calls that lose a replica together connect once.
    current: Mutex<Option<Link>>,
    /// Where mutations go when a replica has said that it only passes them on.
    leader: parking_lot::Mutex<LeaderLink>,
    /// For attempts by more than one way.
    pub(crate) doubled: Semaphore,
}

/// What is known of a way to the leader.
#[derive(Default)]
struct LeaderLink {
    link: Option<Link>,
    /// When it may be looked for again; while somebody looks, some time ahead.
    not_before: Option<Instant>,
}

/// A channel to one replica.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) address: Arc<str>,
    pub(crate) channel: Channel,
    /// Tells this connection from later ones to the same address.
    identity: Arc<()>,
    /// Of the certificates it was made with.
    epoch: u64,
    /// When an answer last came over it.
    heard: Arc<parking_lot::Mutex<Instant>>,
}

impl Link {
    pub(crate) fn new((address, channel): (String, Channel), epoch: u64) -> Link {
        let heard = Arc::new(parking_lot::Mutex::new(Instant::now()));
        Link { address: address.into(), channel, identity: Arc::new(()), epoch, heard }
    }

    pub(crate) fn is(&self, other: &Link) -> bool {
        Arc::ptr_eq(&self.identity, &other.identity)
    }

    /// Something came over it.
    pub(crate) fn heard_now(&self) {
        *self.heard.lock() = Instant::now();
    }

    /// Returns when nothing has been answered over it for [`SILENCE_MAX`], counted from `asked` at the earliest.
    pub(crate) async fn silence(&self, asked: Instant) {
        let mut since = asked;
        loop {
            tokio::time::sleep_until(since + SILENCE_MAX).await;
            let last = *self.heard.lock();
            if last <= since {
                return;
            }
            since = last;
        }
    }

    /// The same, and at the latest [`UNANSWERED_MAX`] after `asked`.
    pub(crate) async fn silence_or_patience(&self, asked: Instant) {
        tokio::select! {
            () = self.silence(asked) => {}
            () = tokio::time::sleep_until(asked + UNANSWERED_MAX) => {}
        }
    }
}

impl Connection {
    pub(crate) fn new(endpoints: Endpoints) -> Connection {
        let doubled = Semaphore::new(DOUBLED_MAX);
        Connection { endpoints, current: Mutex::new(None), leader: Default::default(), doubled }
    }

    pub(crate) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// The present channel, or one to the next endpoint of the rotation.
    pub(crate) async fn current_within(&self, limit: Duration) -> Result<Link, ConnectError> {
        match tokio::time::timeout(limit, self.current()).await {
            Ok(result) => result,
            Err(_) => Err(ConnectError::ConnectInTime { waited: limit }),
        }
    }

    async fn current(&self) -> Result<Link, ConnectError> {
        let mut current = self.current.lock().await;
        let epoch = self.endpoints.security().epoch();
        if let Some(link) = &*current {
            // With other certificates than it was made with, a connection may soon be trusted no more:
            // new calls go to a new one, those under way end on the old one.
            if link.epoch == epoch {
                return Ok(link.clone());
            }
            if let Ok(again) = self.endpoints.connect_to(&link.address).await {
                let link = Link::new(again, epoch);
                *current = Some(link.clone());
                return Ok(link);
            }
        }
        let link = Link::new(self.endpoints.connect_next().await?, epoch);
        tracing::debug!(endpoint = %link.address, "connected");
        *current = Some(link.clone());
        Ok(link)
    }

    fn leader(&self) -> parking_lot::MutexGuard<'_, LeaderLink> {
        // Nothing panics while it holds the lock.
        self.leader.lock()
    }

    /// The channel to the leader, where one other than the present channel is known.
    pub(crate) fn to_leader(&self) -> Option<Link> {
        let epoch = self.endpoints.security().epoch();
        let mut known = self.leader();
        if known.link.as_ref().is_some_and(|link| link.epoch != epoch) {
            // Made with certificates that may soon be trusted no more.
            *known = LeaderLink::default();
        }
        known.link.clone()
    }

    /// A replica has passed a mutation on to `leader`: later ones go there at once, as soon as there is a
    /// connection. The present channel stays as it is, for reads and for when the leader is gone.
    pub(crate) fn learn_leader(self: &Arc<Self>, leader: &str) {
        {
            let mut known = self.leader();
            let waits = known.not_before.is_some_and(|not_before| Instant::now() < not_before);
            if waits || known.link.is_some() {
                return;
            }
            known.not_before = Some(Instant::now() + LEADER_PAUSE);
        }
        let (connection, leader) = (Arc::clone(self), leader.to_owned());
        tokio::spawn(async move {
            let epoch = connection.endpoints.security().epoch();
            match connection.endpoints.connect_to(&leader).await {
                Ok(found) => connection.leader().link = Some(Link::new(found, epoch)),
                Err(error) => tracing::debug!(leader, %error, "the leader cannot be reached from here"),
            }
        });
    }

    /// The channel does not lead to the leader any more.
    pub(crate) fn forget_leader(&self, failed: &Link) {
        let mut known = self.leader();
        if known.link.as_ref().is_some_and(|link| link.is(failed)) {
            *known = LeaderLink::default();
        }
    }

    /// Gives up a channel, unless another call has already done so.
    pub(crate) async fn give_up(&self, failed: &Link) {
        self.forget_leader(failed);
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|link| link.is(failed)) {
            *current = None;
        }
    }

    /// A channel other than those that are silent: the present one, or one to the next endpoint. Another connection to
    /// a replica that is silent already does not count.
    pub(crate) async fn other_than(&self, silent: Vec<Link>, limit: Duration) -> Result<Link, ConnectError> {
        let present = self.current_within(limit).await?;
        if !silent.iter().any(|link| link.address == present.address) {
            return Ok(present);
        }
        let epoch = self.endpoints.security().epoch();
        let not: Vec<&str> = silent.iter().map(|link| &*link.address).collect();
        match tokio::time::timeout(limit, self.endpoints.connect_next_but(&not)).await {
            Ok(connected) => Ok(Link::new(connected?, epoch)),
            Err(_) => Err(ConnectError::ConnectInTime { waited: limit }),
        }
    }

    /// One connection answered while others were silent, so later calls use it at once. Does not wait for a connection that is
    /// being made: that one cannot be among the silent ones.
    pub(crate) fn prefer(&self, answered: &Link, silent: &[Link]) {
        for link in silent.iter().filter(|link| !link.is(answered)) {
            self.forget_leader(link);
            let Ok(mut current) = self.current.try_lock() else { continue };
            if current.as_ref().is_some_and(|current| current.address == link.address) {
                *current = Some(answered.clone());
            }
        }
    }

    /// Moves to the address a refusal named. A hint that does not work is dropped with the channel
    /// that gave it: the replica behind it knows no better.
    pub(crate) async fn follow(&self, from: &Link, hint: &str) {
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|link| !link.is(from)) {
            return;
        }
        let epoch = self.endpoints.security().epoch();
        *current = self.endpoints.connect_to(hint).await.ok().map(|to| Link::new(to, epoch));
    }
}
