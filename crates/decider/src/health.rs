//! The health of nodes, and what keeps work away from them: reports of agents, drains, quarantine, repairs.
//!
//! A report says what an agent sees; the replicated health policy says what that means; the conclusion is one
//! record with its evidence, and whatever has to stop because of it stops by records of its own behind it.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::{Decision, Promise, RearrangeCause, RequestKey, Stop, StopCause, hash};
use muster_planner::{Budget, Verdict, plan};
use muster_state::{Forecast, JobRow, NodeStatus, Phase, RankState, RestrictionRow, State};
use muster_types::health::{
    Condition, Drain, DrainCause, Finding, HealthAction, HealthPolicy, HealthReport, NodeHealth, Observation,
    RebootCount, RepairEnd, RepairPhase, RepairStep,
};
use muster_types::{
    DeviceSet, FailureClass, JobId, LogIndex, LogTime, NodeId, Refusal, RefusalCode, RequestId, Violation,
    limits,
};

use crate::command::{Answer, repeated};
use crate::future::Future;
use crate::job::{settle, settle_many};
use crate::planned::planned_spec;
use crate::schedule::{ROUND_BYTES_SOFT, with_terms};
use crate::speculation::Speculation;

/// Gangs that one pass moves away from nodes that are drained.
const MOVED_MAX: usize = 16;

/// Gangs stopped in one tick because a drain has reached its deadline.
const FORCED_PER_TICK: usize = 1_000;

/// Time given to what runs on a node that is to be repaired, when nobody says otherwise.
const REPAIR_DRAIN_MS: u64 = 600_000;

/// What an operator wants of a node's drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DrainOrder {
    /// Everything is to go; what is still there after so many milliseconds is stopped. None waits for ever.
    Begin {
        /// From now on.
        deadline_ms: Option<u64>,
    },
    /// It may be used again.
    End,
}

/// What an operator wants of a node's repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairOrder {
    /// It is to be emptied and repaired.
    Begin {
        /// What is to be done; none for what the gravest of its conditions asks for.
        action: Option<HealthAction>,
        /// The devices concerned; empty for those of its conditions.
        devices: DeviceSet,
        /// As for a drain.
        deadline_ms: Option<u64>,
    },
    /// It is repaired: what was known against it is over.
    Done,
    /// It could not be repaired.
    Failed {
        /// One sentence.
        detail: String,
    },
}

fn not_active(speculation: &Speculation, decision: &Decision, what: &str) -> Option<Refusal> {
    if speculation.can_say(decision) {
        return None;
    }
    let needed = decision.since_format();
    let text = format!(
        "{what} needs record format {needed}, and {} is in force; upgrade every replica first",
        speculation.state().format()
    );
    Some(Refusal::new(RefusalCode::FormatNotActive, text).with("needed", needed))
}

fn known(state: &State, node: NodeId) -> Result<RestrictionRow, Refusal> {
    if state.node(node).is_none() {
        return Err(Refusal::new(RefusalCode::NodeNotFound, format!("there is no {node}")));
    }
    Ok(state.restriction(node).cloned().unwrap_or_default())
}

/// Takes over what an agent says of its host. A report that says nothing new changes nothing.
pub(crate) fn report(
    speculation: &mut Speculation,
    node: NodeId,
    incarnation: u32,
    report: &HealthReport,
) -> Result<Answer, Refusal> {
    let state = speculation.state();
    let row = state.node(node).filter(|row| row.status == NodeStatus::Up && row.incarnation == incarnation);
    let Some(row) = row else {
        let text = format!("{node} is not in incarnation {incarnation} any more");
        return Err(Refusal::new(RefusalCode::Fenced, text));
    };
    let violations = report.violations(row.spec.device_count());
    if !violations.is_empty() {
        return Err(Refusal::fields(violations));
    }
    let restriction = state.restriction(node).cloned().unwrap_or_default();
    let policy = state.health_policy();
    let all = DeviceSet::first(row.spec.device_count());
    let before = &restriction.health;
    let (health, events) = conclude(&policy.policy, before, report, speculation.now(), all);
    let mut at = speculation.last_index();
    if health != *before || !events.is_empty() {
        let (health, happened) = (Box::new(health), events.clone());
        let decision = Decision::NodeHealthChanged { node, policy: policy.version, health, events };
        // Until the format can say so, health is the agent's log alone.
        if !speculation.can_say(&decision) {
            return Ok(Answer::Done { at });
        }
        at = speculation.push(decision);
        stop_faulty(speculation, node);
        stop_failed(speculation, node, &happened);
        let promised: Vec<JobId> = speculation.state().promised_on(node).collect();
        settle_many(speculation, promised);
    }
    if let (Some(end), Some(repair)) = (&report.repair, &restriction.repair)
        && repair.phase == RepairPhase::Working
    {
        at = match end {
            RepairEnd::Done => end_repair(speculation, None, node),
            RepairEnd::Failed(detail) => {
                let step = RepairStep::Fail(detail.clone());
                speculation.push(Decision::NodeRepairSet { request: None, node, step })
            }
        };
    }
    follow_maintenance(speculation, node);
    Ok(Answer::Done { at })
}

/// What is known of a node's health behind a report, and what happened, with what follows from each.
fn conclude(
    policy: &HealthPolicy,
    before: &NodeHealth,
    report: &HealthReport,
    now: LogTime,
    all: DeviceSet,
) -> (NodeHealth, Vec<Condition>) {
    let mut health = NodeHealth {
        recent: before.recent.clone(),
        reboots: before.reboots.clone(),
        maintenance_at: report.maintenance_at,
        ..NodeHealth::default()
    };
    let was_reset = |o: &Observation| o.device.is_some_and(|d| report.reset.contains(DeviceSet(1 << d)));
    // An XID is over when the host was rebooted or the device reset, unless somebody has to look first.
    let stays = |c: &&Condition| {
        let is_xid = matches!(c.observation.finding, Finding::Xid(_));
        // No agent can see that the network is sound again.
        let is_network = c.observation.finding == Finding::Network;
        is_network
            || is_xid
                && (c.action == HealthAction::Inspect
                    || (c.boot == report.boot && !was_reset(&c.observation)))
    };
    health.conditions = before.conditions.iter().filter(stays).cloned().collect();
    for observation in &report.findings {
        let action = escalated(policy, &mut health.reboots, observation, report.boot);
        let old = before.conditions.iter().find(|c| c.observation.is_like(observation));
        let since = old.map_or(now, |old| old.since);
        // What differs in its words alone is not news.
        let observation = match old.filter(|old| old.action == action) {
            Some(old) => old.observation.clone(),
            None => observation.clone(),
        };
        if action.lasts() && health.conditions.len() < limits::HEALTH_CONDITIONS_MAX {
            health.conditions.push(Condition { observation, action, since, boot: report.boot });
        }
    }
    let mut events = Vec::new();
    for observation in &report.events {
        let action = escalated(policy, &mut health.reboots, observation, report.boot);
        let event = Condition { observation: observation.clone(), action, since: now, boot: report.boot };
        let known = health.conditions.iter().position(|c| c.observation.is_like(observation));
        match known {
            // It is known already, and nothing graver follows from its coming back.
            Some(at) if health.conditions[at].action >= action => continue,
            Some(at) => health.conditions[at] = event.clone(),
            None if action.lasts() && health.conditions.len() < limits::HEALTH_CONDITIONS_MAX => {
                health.conditions.push(event.clone());
            }
            None => health.recent.push(event.clone()),
        }
        events.push(event);
    }
    let excess = health.recent.len().saturating_sub(limits::HEALTH_RECENT_MAX);
    health.recent.drain(..excess);
    health.conditions.sort_by(|a, b| {
        let key = |c: &Condition| (c.observation.device, c.observation.finding);
        key(a).cmp(&key(b))
    });
    weigh(policy, &mut health, all);
    (health, events)
}

/// What follows from an observation, given how often the host was rebooted for it before.
fn escalated(
    policy: &HealthPolicy,
    counts: &mut Vec<RebootCount>,
    observation: &Observation,
    boot: u64,
) -> HealthAction {
    let action = policy.action(observation);
    if action != HealthAction::RebootNode {
        return action;
    }
    let same =
        |count: &&mut RebootCount| (count.finding, count.device) == (observation.finding, observation.device);
    let reboots = match counts.iter_mut().find(same) {
        Some(count) => {
            if count.boot != boot {
                count.boot = boot;
                count.reboots = count.reboots.saturating_add(1);
            }
            count.reboots
        }
        None => {
            if counts.len() < limits::HEALTH_CONDITIONS_MAX {
                let (finding, device) = (observation.finding, observation.device);
                counts.push(RebootCount { finding, device, boot, reboots: 0 });
            }
            0
        }
    };
    if reboots >= policy.reboots_max { HealthAction::Inspect } else { action }
}

/// What the conditions come to.
pub(crate) fn weigh(policy: &HealthPolicy, health: &mut NodeHealth, all: DeviceSet) {
    let unusable = |set: DeviceSet, c: &Condition| set.union(c.unusable(policy.reset_takes_group));
    let unusable = health.conditions.iter().fold(DeviceSet::EMPTY, unusable);
    health.unusable = DeviceSet(unusable.0 & all.0);
    health.out_of_service = health.conditions.iter().any(Condition::takes_node);
}

/// Devices on which what runs has to stop, and whether all of the node has to.
fn faulty(health: &NodeHealth) -> (DeviceSet, bool) {
    let grave = health.conditions.iter().filter(|condition| condition.action.stops_work());
    let mut devices = DeviceSet::EMPTY;
    let mut is_all = false;
    for condition in grave {
        is_all |= condition.takes_node();
        if let Some(device) = condition.observation.device {
            devices = devices.union(DeviceSet(1 << device));
        }
    }
    (devices, is_all)
}

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
fn stop_failed(speculation: &mut Speculation, node: NodeId, events: &[Condition]) {
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

/// What was seen, in words.
fn evidence(condition: &Condition) -> String {
    let observation = &condition.observation;
    let place = observation.device.map_or_else(|| "the host".into(), |d| format!("device {d}"));
    let mut text = format!("{} on {place}: {}", observation.finding, condition.action);
    if !observation.detail.is_empty() {
        text = format!("{text} ({})", observation.detail);
    }
    text
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
fn runs(row: &JobRow) -> Option<muster_types::FencingToken> {
    let placement = row.placement.as_ref()?;
    matches!(row.phase, Phase::Starting | Phase::Running).then_some(placement.token)
}

/// Drains a node, or ends that.
pub(crate) fn set_drain(
    speculation: &mut Speculation,
    request: RequestId,
    node: NodeId,
    order: DrainOrder,
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("drain", node, order_key(order))) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let row = known(speculation.state(), node)?;
    let now = speculation.now();
    let drain = match order {
        DrainOrder::Begin { deadline_ms } => {
            let deadline = deadline(now, deadline_ms)?;
            let begun = row.drain.as_ref().map_or((now, DrainCause::Operator), |d| (d.since, d.cause));
            Some(Drain { since: begun.0, deadline, cause: begun.1 })
        }
        DrainOrder::End => {
            refuse_end(&row, now, speculation.state().health_policy().policy.maintenance_lead_ms)?;
            None
        }
    };
    let decision = Decision::NodeDrainSet { request: Some(key), node, drain };
    if let Some(refusal) = not_active(speculation, &decision, "draining a node") {
        return Err(refusal);
    }
    let at = speculation.push(decision);
    after_restriction(speculation, node);
    Ok(Answer::Done { at })
}

/// A drain that something else asks for is not an operator's to end.
fn refuse_end(row: &RestrictionRow, now: LogTime, lead_ms: u64) -> Result<(), Refusal> {
    if row.repair.is_some() {
        let text = "the node is being repaired; end that with `muster node repair --done`";
        return Err(Refusal::new(RefusalCode::RepairUnderWay, text));
    }
    if let Some(begins) = row.health.maintenance_at.filter(|at| at.minus_ms(lead_ms) <= now) {
        let text = format!(
            "its provider has announced maintenance that begins in {} s; the node is put back when that is over",
            begins.since_ms(now) / 1_000
        );
        return Err(Refusal::new(RefusalCode::MaintenanceDue, text).with("maintenance_at_ms", begins.0));
    }
    Ok(())
}

/// Words that an order is known by.
fn order_key(order: DrainOrder) -> Option<Option<u64>> {
    match order {
        DrainOrder::Begin { deadline_ms } => Some(deadline_ms),
        DrainOrder::End => None,
    }
}

fn deadline(now: LogTime, deadline_ms: Option<u64>) -> Result<Option<LogTime>, Refusal> {
    let Some(ms) = deadline_ms else { return Ok(None) };
    if ms > limits::DRAIN_MS_MAX {
        let violation = Violation::limit("deadline_ms", ms, 0, limits::DRAIN_MS_MAX);
        return Err(Refusal::fields(alloc::vec![violation]));
    }
    Ok(Some(now.plus_ms(ms)))
}

/// What follows once a node is restricted otherwise: promised room there is given up, and what is overdue goes.
fn after_restriction(speculation: &mut Speculation, node: NodeId) {
    let promised: Vec<JobId> = speculation.state().promised_on(node).collect();
    settle_many(speculation, promised);
    let mut left = FORCED_PER_TICK;
    advance_drain(speculation, node, &mut left);
}

/// Keeps a node away from work, or lets it back.
pub(crate) fn set_quarantine(
    speculation: &mut Speculation,
    request: RequestId,
    node: NodeId,
    reason: Option<&str>,
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("quarantine", node, reason)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    known(speculation.state(), node)?;
    if reason.is_some_and(|reason| reason.is_empty() || reason.len() > limits::DETAIL_BYTES_MAX) {
        let text = format!("must be 1 to {} bytes", limits::DETAIL_BYTES_MAX);
        return Err(Refusal::fields(alloc::vec![Violation::new("reason", text)]));
    }
    let reason = reason.map(String::from);
    let decision = Decision::NodeQuarantineSet { request: Some(key), node, reason };
    if let Some(refusal) = not_active(speculation, &decision, "a quarantine") {
        return Err(refusal);
    }
    let at = speculation.push(decision);
    after_restriction(speculation, node);
    Ok(Answer::Done { at })
}

/// Begins or ends a repair.
pub(crate) fn set_repair(
    speculation: &mut Speculation,
    request: RequestId,
    node: NodeId,
    order: &RepairOrder,
) -> Result<Answer, Refusal> {
    let words = match order {
        RepairOrder::Begin { action, devices, deadline_ms } => hash(&("begin", action, devices, deadline_ms)),
        RepairOrder::Done => hash("done"),
        RepairOrder::Failed { detail } => hash(&("failed", detail)),
    };
    let key = RequestKey { id: request, fingerprint: hash(&("repair", node, words)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let row = known(speculation.state(), node)?;
    let probe = Decision::NodeRepairSet { request: Some(key), node, step: RepairStep::End };
    if let Some(refusal) = not_active(speculation, &probe, "a repair") {
        return Err(refusal);
    }
    match order {
        RepairOrder::Begin { action, devices, deadline_ms } => {
            begin_repair(speculation, key, node, (*action, *devices), *deadline_ms)
        }
        RepairOrder::Done if row.repair.is_some() || !row.health.is_blank() => {
            Ok(Answer::Done { at: end_repair(speculation, Some(key), node) })
        }
        RepairOrder::Failed { detail } if row.repair.is_some() => {
            if detail.len() > limits::DETAIL_BYTES_MAX {
                let text = format!("must be at most {} bytes", limits::DETAIL_BYTES_MAX);
                return Err(Refusal::fields(alloc::vec![Violation::new("detail", text)]));
            }
            let step = RepairStep::Fail(detail.clone());
            let at = speculation.push(Decision::NodeRepairSet { request: Some(key), node, step });
            Ok(Answer::Done { at })
        }
        RepairOrder::Done | RepairOrder::Failed { .. } => {
            let text = "the node is not being repaired, and nothing is known against it";
            Err(Refusal::new(RefusalCode::RepairNotBegun, text))
        }
    }
}

/// Empties the node first: whoever repairs it, a program or a person, finds nothing running.
fn begin_repair(
    speculation: &mut Speculation,
    key: RequestKey,
    node: NodeId,
    (action, devices): (Option<HealthAction>, DeviceSet),
    deadline_ms: Option<u64>,
) -> Result<Answer, Refusal> {
    let state = speculation.state();
    let row = known(state, node)?;
    if row.repair.is_some() {
        let text = "the node is being repaired already; end that with `muster node repair --done`";
        return Err(Refusal::new(RefusalCode::RepairUnderWay, text));
    }
    let count = state.node(node).map_or(0, |row| row.spec.device_count());
    if !DeviceSet::first(count).contains(devices) {
        let text = format!("must be among the host's {count} devices");
        return Err(Refusal::fields(alloc::vec![Violation::new("devices", text)]));
    }
    let asked = action.or_else(|| row.gravest().filter(|action| action.stops_work()));
    let action = asked.unwrap_or(HealthAction::Inspect);
    if !action.stops_work() {
        let text = "must be reset-gpu, reboot-node or inspect";
        return Err(Refusal::fields(alloc::vec![Violation::new("action", text)]));
    }
    let devices = match (devices.is_empty(), action) {
        (true, HealthAction::ResetGpu) => row.health.unusable,
        _ => devices,
    };
    let now = speculation.now();
    let deadline = deadline(now, Some(deadline_ms.unwrap_or(REPAIR_DRAIN_MS)))?;
    let step = RepairStep::Begin { action, devices };
    let at = speculation.push(Decision::NodeRepairSet { request: Some(key), node, step });
    if row.drain.is_none() {
        let drain = Some(Drain { since: now, deadline, cause: DrainCause::Repair });
        speculation.push(Decision::NodeDrainSet { request: None, node, drain });
    }
    after_restriction(speculation, node);
    Ok(Answer::Done { at })
}

/// What was known against the node is over, apart from what its agent still sees.
fn end_repair(speculation: &mut Speculation, request: Option<RequestKey>, node: NodeId) -> LogIndex {
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
    // What was asked for has a record of its own, so that a repetition finds its answer.
    if row.repair.is_some() || request.is_some() {
        at = speculation.push(Decision::NodeRepairSet { request, node, step: RepairStep::End });
    }
    if row.drain.is_some_and(|drain| drain.cause == DrainCause::Repair) {
        speculation.push(Decision::NodeDrainSet { request: None, node, drain: None });
    }
    at
}

/// Sets the health policy. What was concluded by the one before stands until the next report.
pub(crate) fn set_policy(
    speculation: &mut Speculation,
    request: RequestId,
    policy: &HealthPolicy,
    expected_version: Option<LogIndex>,
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("health_policy", policy, expected_version)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let violations = policy.violations();
    if !violations.is_empty() {
        return Err(Refusal::fields(violations));
    }
    let current = speculation.state().health_policy().version;
    if let Some(expected) = expected_version.filter(|expected| *expected != current) {
        let text = format!(
            "the health policy is at version {current}, not {expected}; read it again and apply the change to that"
        );
        return Err(Refusal::new(RefusalCode::PolicyChanged, text).with("version", current));
    }
    // A policy that was read and changed has lines about what only a later format can find.
    let policy = policy.clone().in_format(speculation.state().format());
    let decision = Decision::HealthPolicySet { request: key, policy: Box::new(policy) };
    if let Some(refusal) = not_active(speculation, &decision, "a health policy") {
        return Err(refusal);
    }
    Ok(Answer::Done { at: speculation.push(decision) })
}

/// A node whose maintenance is near is drained until that is over.
fn follow_maintenance(speculation: &mut Speculation, node: NodeId) {
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
    let decision = Decision::NodeDrainSet { request: None, node, drain };
    if speculation.can_say(&decision) {
        speculation.push(decision);
        after_restriction(speculation, node);
    }
}

/// What time brings about: maintenance comes near, drains reach their deadline, emptied nodes may be repaired.
pub(crate) fn advance(speculation: &mut Speculation) {
    let now = speculation.now();
    let state = speculation.state();
    let announced = state.maintenance().next();
    let lead_ms = announced.map_or(0, |_| state.health_policy().policy.maintenance_lead_ms);
    let near = state.maintenance().take_while(|(at, _)| at.minus_ms(lead_ms) <= now);
    // One that is drained for it already is nothing new.
    let is_new = |node: &NodeId| state.restriction(*node).is_some_and(|row| row.drain.is_none());
    let near: Vec<NodeId> = near.map(|(_, node)| node).filter(is_new).collect();
    // A whole fleet may be taken away at once: the rest is for the rounds after this one.
    for node in near {
        if speculation.round_bytes() > ROUND_BYTES_SOFT {
            return;
        }
        follow_maintenance(speculation, node);
    }
    let draining: Vec<NodeId> = speculation.state().draining().collect();
    let mut left = FORCED_PER_TICK;
    for node in draining {
        if speculation.round_bytes() > ROUND_BYTES_SOFT {
            return;
        }
        advance_drain(speculation, node, &mut left);
    }
}

/// Stops what is still on a node behind its deadline; at most so many gangs.
fn advance_drain(speculation: &mut Speculation, node: NodeId, left: &mut usize) {
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
        speculation.push(Decision::NodeRepairSet { request: None, node, step });
    }
}

/// Moves gangs away from nodes that are drained, those that lose least by it: they have saved their work and
/// find room elsewhere now. The others end by themselves, or at the deadline.
pub(crate) fn move_drained(speculation: &mut Speculation, future: &Future, budget: &mut Budget) {
    let now = speculation.now();
    let state = speculation.state();
    let mut gangs: Vec<(JobId, NodeId)> = Vec::new();
    for node in state.draining() {
        gangs.extend(state.gangs_on(node).filter(|job| may_move(state, *job)).map(|job| (job, node)));
    }
    gangs.sort_unstable();
    // A gang on several of these nodes moves once.
    gangs.dedup_by_key(|(job, _)| *job);
    let mut moved = 0;
    for (job, node) in gangs {
        if moved == MOVED_MAX || budget.is_spent() || speculation.round_bytes() > ROUND_BYTES_SOFT {
            return;
        }
        let state = speculation.state();
        let row = state.job(job).expect("an indexed job has a row").clone();
        // Where its checkpoints cannot be read it would begin again: then it stays until the deadline.
        let Some(spec) = planned_spec(state, job) else { continue };
        let token = row.placement.as_ref().expect("a running job has a placement").token;
        let mut forecast = Forecast::new(state);
        forecast.end(job);
        let holds = future.holds_for(state, &spec.tenant);
        let verdict =
            with_terms(&forecast, now, &spec, &row, &holds, |terms| plan(&forecast, &spec, terms, budget));
        let Verdict::Fits(found) = verdict else { continue };
        let stops = alloc::vec![Stop { job, token, cause: RearrangeCause::Drained { node } }];
        let promises = alloc::vec![Promise { job, workers: found.workers }];
        speculation.push(Decision::Rearranged { stops, promises });
        moved += 1;
    }
}

/// Whether a gang may be moved before its deadline: without checkpoints it would begin again.
fn may_move(state: &State, job: JobId) -> bool {
    let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { return false };
    let goes_on = state.saves_its_work(job) || spec.is_elastic();
    runs(row).is_some() && !row.cancel_requested && spec.preemptible && goes_on
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xid(code: u16, device: u16) -> Observation {
        Observation::of(Finding::Xid(code), Some(device))
    }

    fn after(before: &NodeHealth, report: &HealthReport) -> (NodeHealth, Vec<Condition>) {
        conclude(&HealthPolicy::default(), before, report, LogTime(1_000), DeviceSet::first(8))
    }

    #[test]
    fn a_reset_takes_the_group_and_ends_with_it() {
        let group = DeviceSet::first(4);
        let observation = Observation { group, ..xid(95, 1) };
        let report = HealthReport { boot: 1, events: alloc::vec![observation], ..HealthReport::default() };
        let (health, events) = after(&NodeHealth::default(), &report);
        assert_eq!((health.unusable, health.out_of_service, events.len()), (group, false, 1));
        assert_eq!(faulty(&health), (DeviceSet(2), false), "what runs on the others may end");
        // The same again is not news; a reset of another device changes nothing, one of its own ends it.
        let (again, events) = after(&health, &report);
        assert_eq!((&again, events.len()), (&health, 0));
        let reset =
            |device: u16| HealthReport { boot: 1, reset: DeviceSet(1 << device), ..HealthReport::default() };
        assert_eq!(after(&health, &reset(0)).0, health);
        assert!(after(&health, &reset(1)).0.is_blank());
    }

    #[test]
    fn what_comes_back_behind_two_reboots_is_for_a_person() {
        let seen = |boot| HealthReport { boot, events: alloc::vec![xid(79, 0)], ..HealthReport::default() };
        let quiet = |boot| HealthReport { boot, ..HealthReport::default() };
        let mut health = NodeHealth::default();
        let mut actions = Vec::new();
        for boot in 1..=4 {
            health = after(&health, &quiet(boot)).0;
            health = after(&health, &seen(boot)).0;
            assert!(health.out_of_service || health.unusable == DeviceSet(1));
            actions.push(health.conditions[0].action);
        }
        use HealthAction::{Inspect, RebootNode};
        assert_eq!(actions, [RebootNode, RebootNode, Inspect, Inspect]);
        assert_eq!(after(&health, &quiet(5)).0.conditions.len(), 1, "no reboot ends it");
    }

    #[test]
    fn the_driver_goes_before_the_catalogue() {
        use muster_types::health::RecoveryAction;
        let policy = HealthPolicy::default();
        let said = |code, recovery| policy.action(&Observation { recovery, ..xid(code, 0) });
        assert_eq!(said(95, None), HealthAction::ResetGpu);
        assert_eq!(said(95, Some(RecoveryAction::NodeReboot)), HealthAction::RebootNode);
        assert_eq!(said(95, Some(RecoveryAction::None)), HealthAction::RestartApp);
        assert_eq!(said(13, Some(RecoveryAction::NodeReboot)), HealthAction::RestartApp);
        assert_eq!(said(74, Some(RecoveryAction::GpuReset)), HealthAction::ResetGpu);
        assert_eq!(said(74, None), HealthAction::Ignore);
        assert_eq!(said(9_999, None), HealthAction::Ignore);
        assert_eq!(said(54, Some(RecoveryAction::None)), HealthAction::Inspect);
    }

    #[test]
    fn a_storm_is_remembered_in_eight_lines() {
        let mut health = NodeHealth::default();
        for _ in 0..100 {
            let events = alloc::vec![xid(13, 0), xid(43, 1)];
            let report = HealthReport { boot: 1, events, ..HealthReport::default() };
            health = after(&health, &report).0;
        }
        assert_eq!(health.recent.len(), limits::HEALTH_RECENT_MAX);
        assert!(health.is_bounded() && health.unusable.is_empty() && !health.out_of_service);
    }

    #[test]
    fn lasting_findings_are_there_as_long_as_they_are_seen() {
        let slow = Observation::of(Finding::Slowdown, Some(2));
        let worse = Observation { detail: "91 C".into(), ..slow.clone() };
        let report = |findings| HealthReport { boot: 1, findings, ..HealthReport::default() };
        let (health, _) = after(&NodeHealth::default(), &report(alloc::vec![slow]));
        assert_eq!((health.unusable, faulty(&health).0), (DeviceSet(4), DeviceSet::EMPTY));
        assert_eq!(after(&health, &report(alloc::vec![worse])).0, health, "other words are not news");
        assert!(after(&health, &report(Vec::new())).0.is_blank());
        let hung = report(alloc::vec![Observation::of(Finding::MonitorHung, None)]);
        let (health, _) = after(&health, &hung);
        assert!(health.out_of_service && health.unusable.is_empty());
    }
}
