//! Who looks after the membership: sets damaged storage aside and starts the replica empty, takes replicas out
//! and in again on demand. Every change is made by the product; so is everything that a replica whose storage
//! was lost does to come back.

use crate::cluster::Cluster;
use crate::raft_runtime::SimConfig;
use crate::replica::Replica;
use crate::runtime::{Host, event, sleep_ms, spawn_on, timeout};
use crate::site::{Site, lock};
use muster_consensus::{ChangeOptions, Consensus, ReplicaStatus};
use muster_types::ReplicaId;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// How long one step of a change is waited for; it goes on without.
const STEP_PATIENCE: Duration = Duration::from_secs(3);

/// The operator. Clones share it.
#[derive(Clone)]
pub struct Operator {
    cluster: Arc<Cluster>,
    /// To be taken out, for a change of scene.
    unwanted: Arc<Mutex<BTreeSet<Host>>>,
}

/// Whether this replica knows a membership that is settled and in which everybody votes.
fn knows_all(status: &ReplicaStatus, all: usize) -> bool {
    let voters = status.members.iter().filter(|member| member.votes).count();
    status.membership_settled && voters == all && !status.rejoining
}

impl Operator {
    /// Begins to look after the cluster.
    pub fn start(cluster: &Arc<Cluster>) -> Operator {
        let operator = Operator { cluster: Arc::clone(cluster), unwanted: Arc::default() };
        let this = operator.clone();
        crate::runtime::spawn(async move {
            loop {
                sleep_ms(400).await;
                this.step().await;
            }
        });
        operator
    }

    /// Takes a replica out of the cluster for a while.
    pub fn take_out(&self, host: Host) {
        lock(&self.unwanted).insert(host);
    }

    /// Everybody is wanted again.
    pub fn want_all(&self) {
        lock(&self.unwanted).clear();
    }

    /// Whether every replica votes and no change is half done, as far as the leader knows.
    pub fn is_whole(&self) -> bool {
        let all = self.cluster.site.replica_hosts().len();
        self.cluster.leader().is_some_and(|leader| knows_all(&leader.consensus.status(), all))
    }

    /// Whether every replica runs and knows itself and all others as voters: then one of them may be lost for
    /// good. A change that some have not heard of yet is a smaller cluster, which may have nobody to spare.
    pub fn is_settled(&self) -> bool {
        let replicas = self.cluster.replicas();
        let all = self.cluster.site.replica_hosts().len();
        replicas.len() == all && replicas.iter().all(|replica| knows_all(&replica.consensus.status(), all))
    }

    async fn change<F, Fut, T, E>(&self, leader: &Arc<Replica>, what: &str, id: ReplicaId, change: F)
    where
        F: FnOnce(Consensus<SimConfig>) -> Fut + 'static,
        Fut: Future<Output = Result<T, E>>,
        E: std::fmt::Display,
    {
        event("membership", format_args!("n{} {what} {id}", leader.host));
        let consensus = leader.consensus.clone();
        let (host, what) = (leader.host, what.to_owned());
        let task = spawn_on(leader.host, async move {
            if let Err(error) = change(consensus).await {
                event("membership", format_args!("n{host} not {what} {id}: {error}"));
            }
        });
        // Whatever came of it is seen in the next step.
        let _ = timeout(STEP_PATIENCE, task).await;
    }

    async fn step(&self) {
        for host in self.cluster.damaged() {
            event("set aside", format_args!("n{host}"));
            self.cluster.empty(host);
            self.cluster.boot(host).await;
        }
        if !self.cluster.returning().is_empty() && self.is_settled() {
            self.cluster.all_returned();
        }
        let Some(leader) = self.cluster.leader() else { return };
        let members = leader.consensus.members();
        let voters = members.iter().filter(|member| member.votes).count();
        let (unwanted, returning) = (lock(&self.unwanted).clone(), self.cluster.returning());
        for host in self.cluster.site.replica_hosts() {
            let id = ReplicaId(u64::from(host));
            let member = members.iter().find(|member| member.replica == id);
            if unwanted.contains(&host) {
                // Never below what a quorum needs, and no other one while a replica rejoins.
                let may = voters > 2 && host != leader.host && returning.is_empty();
                if may && member.is_some_and(|member| member.votes) {
                    let options = ChangeOptions::default();
                    return self
                        .change(&leader, "remove", id, move |c| async move { c.remove(id, options).await })
                        .await;
                }
                continue;
            }
            match member {
                None if self.cluster.replica(host).is_some() => {
                    let node = Site::node(host);
                    return self
                        .change(&leader, "add", id, move |c| async move { c.add_learner(id, node).await })
                        .await;
                }
                // A replica whose storage was lost asks for its vote itself, unless the leader that took it no longer leads.
                Some(member) if !member.votes && member.report.as_ref().is_some_and(|r| !r.rejoining) => {
                    return self
                        .change(&leader, "promote", id, move |c| async move { c.promote(id).await })
                        .await;
                }
                _ => {}
            }
        }
    }
}
