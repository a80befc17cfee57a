//! A client with an administrator's rights: it takes nodes out of use and puts them back, forgets lost ones, sets labels and
//! taints, says which nodes are admitted, changes both policies, and in the end puts back what keeps work away from nodes.
//!
//! What could leave a job without any place at all (a forgotten node, a taint) it does in one of the two clusters only.

use crate::clients::{BOUND_TENANT, GUEST_TENANT, ask, policy_of};
use crate::cluster::Cluster;
use crate::runtime::{Host, below, chance, event, pick, random, sleep_ms, spawn_on};
use crate::site::{FIRST_CLIENT, lock};
use muster_decider::{
    Command, DrainOrder, FleetHoldOrder, OverridesOrder, RepairOrder, ScheduleAction, ScheduleControl,
};
use muster_state::{NodeRow, NodeStatus, State};
use muster_types::health::{HealthPolicy, RepairPhase};
use muster_types::policy::{
    PolicyDraft, PolicyPart, PolicyUpdate, TenantPolicy, Window, WindowPurpose, WindowScope,
};
use muster_types::{
    AdmissionMode, AdmissionRule, Approval, CertificateSerial, DeviceSet, FleetHold, FleetPart, HoldTarget,
    LogIndex, Name, NodeAdmission, NodeBounds, NodeId, NodeOverridesChange, RefusalCode, RequestId,
    Requester, Revocation,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Its host.
const WHO: Host = FIRST_CLIENT + 6;
/// Attempts at one command.
const TRIES: usize = 8;
/// The cluster whose nodes may be forgotten, labelled and tainted: every job has a place in the other.
const CHANGED_CLUSTER: &str = "eu-1";
/// The node there that gets labels, taints and windows.
const CHANGED_NODE: &str = "m4";
/// The label and the taint that are set there.
const MARK: &str = "slow";

/// Restricts nodes and changes the policy until `until_ms`, then puts everything back.
/// Every request that it makes is in `asked`.
pub fn start(cluster: &Arc<Cluster>, asked: Arc<Mutex<BTreeSet<RequestId>>>, until_ms: u64) {
    let this = AdminClient { cluster: Arc::clone(cluster), asked };
    spawn_on(WHO, async move { this.run(until_ms).await });
}

/// A hold of an operator, or its end.
fn hold_order(request: RequestId, target: HoldTarget, hold: Option<FleetHold>) -> Command {
    let by = Requester::named("admin/ops".to_owned(), true);
    Command::SetFleetHold(Box::new(FleetHoldOrder { request, by, target, hold }))
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
        // Refused where the node is already so, or not there: the next look says what is left to do. What the product does not know
        // itself is no answer.
        if let Some(Err(refusal)) = ask(&self.cluster, WHO, TRIES, |_| command(request)).await
            && refusal.code == RefusalCode::Internal
        {
            self.cluster.site.checks.fail(format!("{:?} was refused: {refusal}", command(request)));
        }
    }

    fn node(&self) -> Option<NodeId> {
        let leader = self.cluster.leader()?;
        let nodes: Vec<NodeId> = leader.view.state().nodes().iter().map(|(id, _)| *id).collect();
        pick(&nodes)
    }

    async fn disturb(&self) {
        let Some(node) = self.node() else { return };
        let what = below(6);
        // Where a rule is broken on purpose, the seeds that are known to show it stay the same.
        if self.cluster.site.settings.bug.is_none() && chance(500) {
            return self.change_settings().await;
        }
        event("admin client", format_args!("{what} {node}"));
        match what {
            0 => {
                self.tell(|request| Command::SetCordon {
                    request,
                    by: muster_types::Requester::default(),
                    node,
                    cordoned: true,
                    reason: Some("it was disliked".to_owned()),
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
                    reason: None,
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

    /// What is not about the use of one node.
    async fn change_settings(&self) {
        let Some(leader) = self.cluster.leader() else { return };
        let state = leader.view.state();
        drop(leader);
        let is_lost =
            |row: &NodeRow| row.spec.cluster.as_str() == CHANGED_CLUSTER && row.status != NodeStatus::Up;
        let some_are_lost = state.nodes().iter().any(|(_, row)| is_lost(row));
        let what = if some_are_lost && chance(500) { 0 } else { below(10) };
        event("admin client", format_args!("settings {what}"));
        let (by, old) = (Requester::default(), chance(150).then_some(LogIndex(1)));
        match what {
            0 | 1 => self.forget(&state).await,
            9 => self.hold(&state).await,
            2 => self.mark(&state).await,
            3 => {
                let admission = Box::new(admission());
                self.tell(|request| Command::SetNodeAdmission {
                    request,
                    by: by.clone(),
                    admission: admission.clone(),
                    expected_version: old,
                })
                .await;
            }
            4 => {
                let (name, approval) = approval();
                self.tell(|request| Command::SetNodeApproval {
                    request,
                    by: by.clone(),
                    name: name.clone(),
                    approval: approval.clone(),
                })
                .await;
            }
            5 => {
                let Some(serial) = CertificateSerial::from_bytes(&(random() | 1).to_be_bytes()) else {
                    return;
                };
                let until = state.log_time().plus_ms(10_000);
                let revocation = Revocation { holder: "tenant/free/eve".to_owned(), until };
                self.tell(|request| Command::RevokeCertificate {
                    request,
                    by: by.clone(),
                    serial,
                    revocation: revocation.clone(),
                })
                .await;
            }
            6 => {
                let mut policy = HealthPolicy::clone(&state.health_policy().policy);
                policy.reboots_max = 2 + below(3) as u16;
                self.tell(|request| Command::SetHealthPolicy {
                    request,
                    by: by.clone(),
                    policy: Box::new(policy.clone()),
                    expected_version: old,
                })
                .await;
            }
            7 => self.update_policy(&state, old).await,
            // There is none that is newer: the answer is that it is in force, or a refusal.
            _ => {
                let format = if chance(500) { state.format() } else { u16::MAX };
                self.tell(|_| Command::RaiseFormat { by: by.clone(), format }).await;
            }
        }
    }

    /// Nodes that are up stay, and the request is refused.
    async fn forget(&self, state: &State) {
        let here = |name: &Name| name.as_str() == CHANGED_CLUSTER;
        let all = state.nodes().iter().filter(|(_, row)| here(&row.spec.cluster));
        let (up, lost): (Vec<_>, Vec<_>) =
            all.map(|(id, row)| (*id, row.status)).partition(|(_, status)| *status == NodeStatus::Up);
        let Some((node, _)) = pick(&lost).or_else(|| pick(&up)) else { return };
        self.tell(|request| Command::ForgetNode { request: Some(request), by: Requester::default(), node })
            .await;
    }

    /// Sets a label and a taint, or takes them back.
    async fn mark(&self, state: &State) {
        let (Some(node), mark) = (state.node_named(&Name::literal(CHANGED_NODE)), Name::literal(MARK)) else {
            return;
        };
        let has_mark = state.node(node).is_some_and(|row| row.overrides.is_some());
        let change = match has_mark && chance(600) {
            true => unmarked(),
            false => NodeOverridesChange {
                set_labels: [(mark.clone(), "yes".to_owned())].into(),
                set_taints: if chance(500) { [mark].into() } else { BTreeSet::new() },
                ..NodeOverridesChange::default()
            },
        };
        self.override_node(node, change).await;
    }

    async fn override_node(&self, node: NodeId, change: NodeOverridesChange) {
        self.tell(|request| {
            let (by, change) = (Requester::default(), change.clone());
            Command::SetNodeOverrides(Box::new(OverridesOrder { request, by, node, change }))
        })
        .await;
    }

    /// A window of some seconds on one node, or a tenant that comes or goes.
    async fn update_policy(&self, state: &State, expected_version: Option<LogIndex>) {
        let mut draft = PolicyDraft::default();
        let guest = Name::literal(GUEST_TENANT);
        let part = if chance(500) {
            let from = state.log_time().plus_ms(below(4_000));
            let tenant = Name::literal(BOUND_TENANT);
            draft.windows = vec![Window {
                name: Name::literal("service"),
                from,
                until: from.plus_ms(1_000 + below(8_000)),
                scope: WindowScope { node: Some(Name::literal(CHANGED_NODE)), ..WindowScope::default() },
                purpose: match chance(500) {
                    true => WindowPurpose::Maintenance,
                    false => WindowPurpose::ReservedFor { tenant },
                },
            }];
            PolicyPart::Windows
        } else {
            if !state.policy().policy.tenants.contains_key(&guest) {
                draft.tenants = BTreeMap::from([(guest.clone(), TenantPolicy::default())]);
            }
            PolicyPart::Tenant(guest)
        };
        let Ok(update) = PolicyUpdate::new(&draft, vec![part]) else { return };
        self.tell(|request| Command::UpdatePolicy {
            request,
            by: Requester::default(),
            update: Box::new(update.clone()),
            expected_version,
        })
        .await;
    }

    /// Holds the cluster whose nodes change, for a while or until it is put back, or releases it.
    async fn hold(&self, state: &State) {
        let target =
            HoldTarget::Part(FleetPart { region: None, cluster: Some(Name::literal(CHANGED_CLUSTER)) });
        let until = chance(700).then(|| state.log_time().plus_ms(1_000 + below(5_000)));
        let hold = FleetHold { reason: "a new switch".to_owned(), until, stops_work: chance(300) };
        let hold = chance(800).then_some(hold);
        self.tell(|request| hold_order(request, target.clone(), hold.clone())).await;
    }

    /// Ends what is not about the use of one node, and keeps work waiting all the same. What a client asked for may be carried out
    /// long after that client has stopped.
    async fn put_settings_back(&self, state: &State) {
        let by = Requester::named("admin/ops".to_owned(), true);
        let bookings: Vec<Name> = state.bookings().map(|(name, _)| name.clone()).collect();
        for name in bookings {
            self.tell(|request| {
                let (by, name) = (by.clone(), name.clone());
                Command::DeleteBooking { request, by, acts_for: None, name }
            })
            .await;
        }
        let held: Vec<HoldTarget> = state.fleet_holds().map(|(target, _)| target.clone()).collect();
        for target in held {
            self.tell(|request| hold_order(request, target.clone(), None)).await;
        }
        let schedules: Vec<_> = state.schedules().map(|(key, _)| key.clone()).collect();
        for schedule in schedules {
            self.tell(|request| {
                let (by, schedule, action) = (by.clone(), schedule.clone(), ScheduleAction::Delete);
                let order = ScheduleControl { request, by, acts_for: None, schedule, action };
                Command::ControlSchedule(Box::new(order))
            })
            .await;
        }
        if state.admission().is_some_and(|row| row.admission.mode != AdmissionMode::Open) {
            self.tell(|request| Command::SetNodeAdmission {
                request,
                by: by.clone(),
                admission: Box::default(),
                expected_version: None,
            })
            .await;
        }
        if !state.policy().policy.windows.is_empty()
            && let Ok(policy) = policy_of(12_000).check()
        {
            self.tell(|request| Command::SetPolicy {
                request,
                by: by.clone(),
                policy: Box::new(policy.clone()),
                expected_version: None,
            })
            .await;
        }
        let marked: Vec<NodeId> =
            state.nodes().iter().filter(|(_, row)| row.overrides.is_some()).map(|(id, _)| *id).collect();
        for node in marked {
            self.override_node(node, unmarked()).await;
        }
    }

    /// Ends every cordon, drain, quarantine and repair, and what else keeps work away from nodes.
    async fn put_back(&self) {
        let Some(leader) = self.cluster.leader() else { return };
        let state = leader.view.state();
        if self.cluster.site.settings.bug.is_none() {
            self.put_settings_back(&state).await;
        }
        for (node, row) in state.nodes().iter() {
            let node = *node;
            if row.cordoned {
                self.tell(|request| Command::SetCordon {
                    request,
                    by: muster_types::Requester::default(),
                    node,
                    cordoned: false,
                    reason: None,
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
                    reason: None,
                })
                .await;
            }
        }
    }
}

/// The label and the taint are taken back.
fn unmarked() -> NodeOverridesChange {
    let mark = || [Name::literal(MARK)].into();
    NodeOverridesChange { remove_labels: mark(), remove_taints: mark(), ..NodeOverridesChange::default() }
}

/// One that admits every machine there is, in one way or another.
fn admission() -> NodeAdmission {
    let rule = |pattern: &str| AdmissionRule { pattern: pattern.to_owned(), bounds: NodeBounds::default() };
    match below(3) {
        0 => NodeAdmission::default(),
        1 => NodeAdmission { mode: AdmissionMode::Pinned, rules: Vec::new() },
        _ => NodeAdmission { mode: AdmissionMode::Approve, rules: vec![rule("m*"), rule("other-*-gpu")] },
    }
}

/// Of a machine that is there, or of one that is not: only that one is rejected.
fn approval() -> (Name, Option<Approval>) {
    match below(4) {
        0 => (Name::literal("m0"), Some(Approval::Approved(NodeBounds::default()))),
        1 => (Name::literal("m0"), None),
        2 => (Name::literal("unknown"), Some(Approval::Rejected)),
        _ => (Name::literal("unknown"), None),
    }
}
