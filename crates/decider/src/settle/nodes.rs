//! What follows for what runs on a node: from its health, from drains and repairs, and from maintenance.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::{Decision, RequestKey, StopCause};
use muster_state::{JobRow, Phase, RankState, State};
use muster_types::health::{
    Condition, Drain, DrainCause, Finding, HealthAction, NodeHealth, RepairPhase, RepairStep,
};
use muster_types::{DeviceSet, FailureClass, JobId, LogIndex, NodeId, Requester};

use crate::rules::health::{evidence, faulty, weigh};
use crate::settle::job::{settle, settle_many};
use crate::speculation::Speculation;

/// Gangs stopped in one tick because a drain has reached its deadline.
pub(crate) const FORCED_PER_TICK: usize = 1_000;

/// Stops the gangs that run on what is faulty.
pub(crate) fn stop_faulty(speculation: &mut Speculation, node: NodeId) {
    let state = speculation.state();
    let Some(row) = state.restriction(node) else { return };
    let (devices, is_all) = faulty(&row.health);
    if devices.is_empty() && !is_all {
        return;
    }
    let holds = |job: &JobId| is_all || !held_on(state, *job, node).is_disjoint(devices);
    let gangs: Vec<JobId> = state.gangs_on(node).filter(holds).collect();
    let grave = row.health.conditions.iter().filter(|condition| condition.action.stops_work());
    let detail = grave.max_by_key(|condition| condition.action).map(evidence).unwrap_or_default();
    for job in gangs {
        fail(speculation, job, node, FailureClass::NodeFault, detail.clone());
    }
}

/// Ends the attempts that ran on a device of which the driver says that its application has failed.
pub(crate) fn stop_failed(speculation: &mut Speculation, node: NodeId, events: &[Condition]) {
    for event in events.iter().filter(|event| event.action == HealthAction::RestartApp) {
        let Some(device) = event.observation.device else { continue };
        let state = speculation.state();
        let holds = |job: &JobId| !held_on(state, *job, node).is_disjoint(DeviceSet(1 << device));
        let gangs: Vec<JobId> = state.gangs_on(node).filter(holds).collect();
        for job in gangs {
            fail(speculation, job, node, FailureClass::Application, evidence(event));
        }
    }
}

fn fail(speculation: &mut Speculation, job: JobId, node: NodeId, class: FailureClass, detail: String) {
    let Some(row) = speculation.state().job(job) else { return };
    let Some(token) = runs(row) else { return };
    let cause = StopCause::Fault { class, node, detail };
    speculation.push(Decision::GangStopRequested { job, token, cause });
    settle(speculation, job);
}

/// Devices that a gang's live workers hold on a node.
fn held_on(state: &State, job: JobId, node: NodeId) -> DeviceSet {
    let Some(placement) = state.job(job).and_then(|row| row.placement.as_deref()) else {
        return DeviceSet::EMPTY;
    };
    let live = placement.slots.iter().zip(&placement.ranks);
    let here = live.filter(|(slot, rank)| slot.node == node && !RankState::is_over(rank));
    here.fold(DeviceSet::EMPTY, |set, (slot, _)| set.union(slot.devices))
}

fn evict(speculation: &mut Speculation, job: JobId, node: NodeId) {
    let Some(row) = speculation.state().job(job) else { return };
    let Some(token) = runs(row) else { return };
    let cause = StopCause::Evicted { node };
    speculation.push(Decision::GangStopRequested { job, token, cause });
    settle(speculation, job);
}

/// The token of a gang that runs or is being started.
pub(crate) fn runs(row: &JobRow) -> Option<muster_types::FencingToken> {
    let placement = row.placement.as_ref()?;
    matches!(row.phase, Phase::Starting | Phase::Running).then_some(placement.token)
}

/// What follows once a node's restrictions have changed: promised capacity there is given up, and what is overdue goes.
pub(crate) fn after_restriction(speculation: &mut Speculation, node: NodeId) {
    let promised: Vec<JobId> = speculation.state().promised_on(node).collect();
    settle_many(speculation, promised);
    let mut left = FORCED_PER_TICK;
    advance_drain(speculation, node, &mut left);
}

/// What was known against the node is over, apart from what its agent still sees; nobody asked where its agent reports it.
pub(crate) fn end_repair(
    speculation: &mut Speculation,
    asked: Option<(RequestKey, &Requester)>,
    node: NodeId,
) -> LogIndex {
    let row = speculation.state().restriction(node).cloned().unwrap_or_default();
    let state = speculation.state();
    let policy = state.health_policy();
    let all = state.node(node).map_or(DeviceSet::EMPTY, |row| DeviceSet::first(row.spec.device_count()));
    let mut health = NodeHealth { maintenance_at: row.health.maintenance_at, ..NodeHealth::default() };
    let is_seen = |c: &&Condition| !matches!(c.observation.finding, Finding::Xid(_) | Finding::Network);
    health.conditions = row.health.conditions.iter().filter(is_seen).cloned().collect();
    weigh(&policy.policy, &mut health, all);
    let mut at = speculation.last_index();
    if health != row.health {
        let health = Box::new(health);
        let events = Vec::new();
        at = speculation.push(Decision::NodeHealthChanged { node, policy: policy.version, health, events });
    }
    let by = asked.map(|(_, by)| by.clone()).unwrap_or_default();
    // What was asked for has a separate record, so that a repetition finds its answer.
    if row.repair.is_some() || asked.is_some() {
        let (request, by) = (asked.map(|(key, _)| key), by.clone());
        at = speculation.push(Decision::NodeRepairSet { request, by, node, step: RepairStep::End });
    }
    if row.drain.is_some_and(|drain| drain.cause == DrainCause::Repair) {
        speculation.push(Decision::NodeDrainSet { request: None, by, node, drain: None, reason: None });
    }
    at
}

/// A node whose maintenance is near is drained until that is over.
pub(crate) fn follow_maintenance(speculation: &mut Speculation, node: NodeId) {
    let now = speculation.now();
    let state = speculation.state();
    let lead_ms = state.health_policy().policy.maintenance_lead_ms;
    let row = state.restriction(node).cloned().unwrap_or_default();
    let due = row.health.maintenance_at.filter(|at| at.minus_ms(lead_ms) <= now);
    let is_ours = row.drain.is_some_and(|drain| drain.cause == DrainCause::Maintenance);
    let drain = match (due, row.drain) {
        (Some(begins), None) => {
            Some(Drain { since: now, deadline: Some(begins), cause: DrainCause::Maintenance })
        }
        // It begins at another time than was said before.
        (Some(begins), Some(drain)) if is_ours && drain.deadline != Some(begins) => {
            Some(Drain { deadline: Some(begins), ..drain })
        }
        (None, Some(_)) if is_ours => None,
        _ => return,
    };
    let by = Requester::default();
    let decision = Decision::NodeDrainSet { request: None, by, node, drain, reason: None };
    speculation.push(decision);
    after_restriction(speculation, node);
}

/// Stops what is still on a node behind its deadline; at most `left` gangs.
pub(crate) fn advance_drain(speculation: &mut Speculation, node: NodeId, left: &mut usize) {
    let now = speculation.now();
    let Some(row) = speculation.state().restriction(node).cloned() else { return };
    let Some(drain) = row.drain else { return };
    if drain.deadline.is_some_and(|deadline| deadline <= now) {
        let state = speculation.state();
        let still_runs = |job: &JobId| state.job(*job).is_some_and(|row| runs(row).is_some());
        let gangs: Vec<JobId> = state.gangs_on(node).filter(still_runs).take(*left).collect();
        *left -= gangs.len();
        for job in gangs {
            evict(speculation, job, node);
        }
    }
    let waits = row.repair.is_some_and(|repair| repair.phase == RepairPhase::Draining);
    if waits && speculation.state().gangs_on(node).next().is_none() {
        let step = RepairStep::Work;
        speculation.push(Decision::NodeRepairSet { request: None, by: Requester::default(), node, step });
    }
}
