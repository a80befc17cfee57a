//! Who looks after the membership: replaces a replica whose disk is damaged, finishes changes that a leader
//! left half done, and takes replicas out and in again on demand.
//!
//! A replica that lost its log is taken out of the cluster before it starts empty, and learns everything as a
//! learner before it votes again.

use crate::cluster::{Cluster, lock};
use crate::replica::Replica;
use crate::runtime::{Host, event, sleep_ms, spawn_on, timeout};
use openraft::ChangeMembers;
use openraft::async_runtime::WatchReceiver;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One step of a change.
const STEP_PATIENCE: Duration = Duration::from_secs(3);
/// A learner that is so close to the leader may vote.
const LAG_MAX: u64 = 40;

/// The operator. Clones share it.
#[derive(Clone)]
pub struct Operator {
    cluster: Arc<Cluster>,
    /// To be taken out, for a change of scene.
    unwanted: Arc<Mutex<BTreeSet<Host>>>,
}

struct Seen {
    voters: BTreeSet<u64>,
    nodes: BTreeSet<u64>,
    joint: Option<BTreeSet<u64>>,
    last: u64,
}

fn seen(leader: &Replica) -> Seen {
    let metrics = leader.raft.metrics();
    let metrics = metrics.borrow_watched();
    let membership = metrics.membership_config.membership();
    let configs = membership.get_joint_config();
    Seen {
        voters: membership.voter_ids().collect(),
        nodes: membership.nodes().map(|(id, _)| *id).collect(),
        joint: if configs.len() > 1 { configs.last().cloned() } else { None },
        last: metrics.last_log_index.unwrap_or(0),
    }
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

    /// Whether every replica votes and no change is half done.
    pub fn is_whole(&self) -> bool {
        let Some(leader) = self.cluster.leader() else { return false };
        let seen = seen(&leader);
        seen.joint.is_none() && seen.voters.len() == self.cluster.replica_hosts().len()
    }

    /// Whether every replica runs and knows itself and all others as voters: then one of them may be lost for
    /// good. A change that some have not heard of yet is a smaller cluster, which may have nobody to spare.
    pub fn is_settled(&self) -> bool {
        let replicas = self.cluster.replicas();
        let all = self.cluster.replica_hosts().len();
        let knows_all = |replica: &Arc<Replica>| {
            let seen = seen(replica);
            seen.joint.is_none() && seen.voters.len() == all
        };
        replicas.len() == all && replicas.iter().all(knows_all)
    }

    async fn change(
        &self,
        leader: &Arc<Replica>,
        what: &str,
        change: ChangeMembers<u64, muster_store::ReplicaNode>,
    ) {
        event("membership", format_args!("n{} {what}: {change:?}", leader.host));
        let raft = leader.raft.clone();
        let task = spawn_on(leader.host, async move { raft.change_membership(change, false).await.is_ok() });
        // Whatever came of it is seen in the next step.
        let _ = timeout(STEP_PATIENCE, task).await;
    }

    async fn step(&self) {
        let Some(leader) = self.cluster.leader() else { return };
        let now = seen(&leader);
        if let Some(target) = now.joint {
            return self.change(&leader, "finish", ChangeMembers::ReplaceAllVoters(target)).await;
        }
        let (damaged, unwanted) = (self.cluster.damaged(), lock(&self.unwanted).clone());
        for host in self.cluster.replica_hosts() {
            let id = u64::from(host);
            let out = damaged.contains(&host) || unwanted.contains(&host);
            // Never below what a quorum needs.
            if out && now.voters.contains(&id) {
                let enough = now.voters.len() > 2 || damaged.contains(&host);
                if leader.host != host && enough {
                    return self.change(&leader, "remove", ChangeMembers::RemoveVoters([id].into())).await;
                }
                continue;
            }
            if damaged.contains(&host) && !now.nodes.contains(&id) {
                event("replace", format_args!("n{host}"));
                self.cluster.emptied(host);
                self.cluster.checks.count(|counts| counts.replaced += 1);
                self.cluster.boot(host).await;
                return;
            }
            if out || self.cluster.replica(host).is_none() {
                continue;
            }
            if !now.nodes.contains(&id) {
                event("membership", format_args!("n{} learner {host}", leader.host));
                let raft = leader.raft.clone();
                let task = spawn_on(leader.host, async move {
                    raft.add_learner(id, Cluster::node(host), false).await.is_ok()
                });
                let _ = timeout(STEP_PATIENCE, task).await;
                return;
            }
            let applied = self.cluster.replica(host).map_or(0, |replica| *replica.machine.applied().borrow());
            if !now.voters.contains(&id) && applied + LAG_MAX >= now.last {
                return self.change(&leader, "promote", ChangeMembers::AddVoterIds([id].into())).await;
            }
        }
    }
}
