//! A client with an administrator's rights: it takes nodes out of use and puts them back, changes the policy,
//! and in the end puts back every node that is still kept away.

use crate::clients::{ask, policy_of};
use crate::cluster::Cluster;
use crate::runtime::{Host, below, event, pick, random, sleep_ms, spawn_on};
use crate::site::{FIRST_CLIENT, lock};
use muster_decider::{Command, DrainOrder, RepairOrder};
use muster_types::health::RepairPhase;
use muster_types::{DeviceSet, NodeId, RequestId};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Its host.
const WHO: Host = FIRST_CLIENT + 6;
/// Attempts at one command.
const TRIES: usize = 8;

/// Restricts nodes and changes the policy until `until_ms`, then puts everything back.
/// Every request that it makes is in `asked`.
pub fn start(cluster: &Arc<Cluster>, asked: Arc<Mutex<BTreeSet<RequestId>>>, until_ms: u64) {
    let this = AdminClient { cluster: Arc::clone(cluster), asked };
    spawn_on(WHO, async move { this.run(until_ms).await });
}

struct AdminClient {
    cluster: Arc<Cluster>,
    asked: Arc<Mutex<BTreeSet<RequestId>>>,
}

impl AdminClient {
    async fn run(self, until_ms: u64) {
        while crate::runtime::elapsed_ms() < until_ms {
            sleep_ms(500 + below(4_000)).await;
            self.disturb().await;
        }
        loop {
            self.put_back().await;
            sleep_ms(1_000).await;
        }
    }

    async fn tell(&self, command: impl Fn(RequestId) -> Command) {
        let request = RequestId(u128::from(random()) << 64 | u128::from(random()));
        lock(&self.asked).insert(request);
        // Refused where the node is already so, or not there: the next look says what is left to do.
        let _ = ask(&self.cluster, WHO, TRIES, |_| command(request)).await;
    }

    fn node(&self) -> Option<NodeId> {
        let leader = self.cluster.leader()?;
        let nodes: Vec<NodeId> = leader.view.state().nodes().iter().map(|(id, _)| *id).collect();
        pick(&nodes)
    }

    async fn disturb(&self) {
        let Some(node) = self.node() else { return };
        let what = below(6);
        event("admin client", format_args!("{what} {node}"));
        match what {
            0 => {
                self.tell(|request| Command::SetCordon {
                    request,
                    by: muster_types::Requester::default(),
                    node,
                    cordoned: true,
                })
                .await
            }
            1 => {
                let order = DrainOrder::Begin { deadline_ms: Some(500 + below(3_000)) };
                self.tell(|request| Command::SetDrain {
                    request,
                    by: muster_types::Requester::default(),
                    node,
                    order,
                })
                .await;
            }
            2 => {
                let reason = Some("it was disliked".to_owned());
                self.tell(|request| Command::SetQuarantine {
                    request,
                    by: muster_types::Requester::default(),
                    node,
                    reason: reason.clone(),
                })
                .await;
            }
            3 => {
                let order =
                    RepairOrder::Begin { action: None, devices: DeviceSet::EMPTY, deadline_ms: Some(1_000) };
                self.tell(|request| Command::SetRepair {
                    request,
                    by: muster_types::Requester::default(),
                    node,
                    order: order.clone(),
                })
                .await;
            }
            4 => self.put_back().await,
            _ => {
                let policy = policy_of(8_000 + below(8) * 1_000);
                let Ok(policy) = policy.check() else { return };
                self.tell(|request| Command::SetPolicy {
                    request,
                    by: muster_types::Requester::default(),
                    policy: Box::new(policy.clone()),
                    expected_version: None,
                })
                .await;
            }
        }
    }

    /// Ends every cordon, drain, quarantine and repair.
    async fn put_back(&self) {
        let Some(leader) = self.cluster.leader() else { return };
        let state = leader.view.state();
        for (node, row) in state.nodes().iter() {
            let node = *node;
            if row.cordoned {
                self.tell(|request| Command::SetCordon {
                    request,
                    by: muster_types::Requester::default(),
                    node,
                    cordoned: false,
                })
                .await;
            }
            let Some(restriction) = state.restriction(node) else { continue };
            if restriction.quarantine.is_some() {
                self.tell(|request| Command::SetQuarantine {
                    request,
                    by: muster_types::Requester::default(),
                    node,
                    reason: None,
                })
                .await;
            }
            let failed =
                |phase: &RepairPhase| matches!(phase, RepairPhase::Failed(_) | RepairPhase::Draining);
            if restriction.repair.as_ref().is_some_and(|repair| failed(&repair.phase)) {
                self.tell(|request| Command::SetRepair {
                    request,
                    by: muster_types::Requester::default(),
                    node,
                    order: RepairOrder::Done,
                })
                .await;
            } else if restriction.drain.is_some() && restriction.repair.is_none() {
                let order = DrainOrder::End;
                self.tell(|request| Command::SetDrain {
                    request,
                    by: muster_types::Requester::default(),
                    node,
                    order,
                })
                .await;
            }
        }
    }
}
