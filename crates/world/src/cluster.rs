//! The replicas of a cluster: starts, stops and replaces them, and knows which of them run.

use crate::replica::{BootError, Replica, Surroundings};
use crate::runtime::{self, HARNESS, Host, event, spawn_on};
use crate::settings::Settings;
use crate::site::{Site, lock};
use muster_planted::Rule;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// The replicas of a cluster, and what they share with the other hosts.
pub struct Cluster {
    /// What all hosts share.
    pub site: Arc<Site>,
    running: Mutex<BTreeMap<Host, Arc<Replica>>>,
    /// Replicas whose disk has less than they acknowledged.
    damaged: Mutex<BTreeSet<Host>>,
    returning: Mutex<BTreeSet<Host>>,
    starts: Mutex<u64>,
}

impl Cluster {
    /// With every host placed and none started.
    pub fn new(settings: Settings) -> Arc<Cluster> {
        Arc::new(Cluster {
            site: Site::new(settings),
            running: Mutex::default(),
            damaged: Mutex::default(),
            returning: Mutex::default(),
            starts: Mutex::default(),
        })
    }

    /// A replica that is started.
    pub fn replica(&self, host: Host) -> Option<Arc<Replica>> {
        lock(&self.running).get(&host).cloned()
    }

    /// Every replica that is started.
    pub fn replicas(&self) -> Vec<Arc<Replica>> {
        lock(&self.running).values().cloned().collect()
    }

    /// The replica with the newest leadership, if any leads.
    pub fn leader(&self) -> Option<Arc<Replica>> {
        let leading = |replica: &Arc<Replica>| {
            let mine = replica.consensus.leadership().borrow().mine?;
            Some((mine, Arc::clone(replica)))
        };
        self.replicas().iter().filter_map(leading).max_by_key(|(mine, _)| *mine).map(|(_, replica)| replica)
    }

    /// Replicas whose disk is damaged.
    pub fn damaged(&self) -> BTreeSet<Host> {
        lock(&self.damaged).clone()
    }

    /// Starts a replica; whether it runs.
    pub async fn boot(self: &Arc<Self>, host: Host) -> bool {
        let start = {
            let mut starts = lock(&self.starts);
            *starts += 1;
            *starts
        };
        event("boot", format_args!("n{host} start {start}"));
        let (peers, aborting) = (Arc::clone(self), Arc::clone(self));
        let surroundings = Surroundings {
            site: Arc::clone(&self.site),
            peers: Arc::new(move |host| peers.replica(host).map(|replica| replica.service.clone())),
            abort: Arc::new(move |why| aborting.abort(host, why)),
        };
        match spawn_on(host, Replica::boot(surroundings, host, start)).await {
            Ok(Ok(replica)) => {
                lock(&self.running).insert(host, replica);
                true
            }
            Ok(Err(BootError::Damaged)) => {
                event("damaged", format_args!("n{host}"));
                if self.site.settings.bug == Some(Rule::VoteAfterLoss) {
                    // As if nothing had been there.
                    runtime::kill(host);
                    self.site.disk(host).wipe();
                } else {
                    runtime::kill(host);
                    lock(&self.damaged).insert(host);
                }
                false
            }
            Ok(Err(BootError::Refused(why))) => {
                self.site.checks.fail(format!("n{host} does not start: {why}"));
                false
            }
            Err(_gone) => {
                self.site.checks.fail(format!("n{host} was lost while it started"));
                false
            }
        }
    }

    /// What is left on a damaged disk is set aside: the replica starts empty under its old name, with the mark
    /// of a lost storage, and has to rejoin.
    pub fn empty(&self, host: Host) {
        let disk = self.site.disk(host);
        disk.wipe();
        crate::storage::mark_as_lost(&disk);
        self.site.checks.emptied(host);
        self.site.checks.count(|counts| counts.replaced += 1);
        lock(&self.damaged).remove(&host);
        lock(&self.returning).insert(host);
    }

    /// Replicas that lost their storage and are not seen to be full members again.
    pub fn returning(&self) -> BTreeSet<Host> {
        lock(&self.returning).clone()
    }

    /// They all are.
    pub fn all_returned(&self) {
        lock(&self.returning).clear();
    }

    /// Power loss of a replica.
    pub fn crash(&self, host: Host) {
        event("crash", format_args!("n{host}"));
        let gone = lock(&self.running).remove(&host);
        runtime::kill(host);
        self.site.disk(host).cut_power();
        drop(gone);
    }

    /// A replica ends itself.
    pub fn abort(self: &Arc<Self>, host: Host, why: &'static str) {
        event("abort", format_args!("n{host}: {why}"));
        let this = Arc::clone(self);
        spawn_on(HARNESS, async move { this.crash(host) });
    }

    /// Asks a replica something over the network. The request is under way whatever becomes of the asker; it
    /// may come twice, or never. None when no answer came in time.
    pub async fn call<T, F, Fut>(
        self: &Arc<Self>,
        from: Host,
        to: Host,
        ttl: Duration,
        what: &'static str,
        f: F,
    ) -> Option<T>
    where
        F: Fn(Arc<Replica>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let this = Arc::clone(self);
        self.site.call(move |host| this.replica(host), (from, to), ttl, what, f).await
    }
}
