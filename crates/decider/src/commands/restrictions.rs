//! What operators say of nodes: cordons, drains, quarantine and repairs.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::{Decision, RequestKey, hash};
use muster_state::{RestrictionRow, State};
use muster_types::health::{Drain, DrainCause, HealthAction, RepairStep, is_reason};
use muster_types::{
    DeviceSet, JobId, LogTime, NodeId, Refusal, RefusalCode, RequestId, Requester, Violation, limits,
};

use crate::commands::answer::{Answer, not_active, repeated};
use crate::commands::command::{DrainOrder, RepairOrder};
use crate::settle::job::settle_many;
use crate::settle::nodes::{after_restriction, end_repair};
use crate::speculation::Speculation;

/// Time given to what runs on a node that is to be repaired, when nobody says otherwise.
const REPAIR_DRAIN_MS: u64 = 600_000;

fn known(state: &State, node: NodeId) -> Result<RestrictionRow, Refusal> {
    if state.node(node).is_none() {
        return Err(Refusal::new(RefusalCode::NodeNotFound, format!("there is no {node}")).with("node", node));
    }
    Ok(state.restriction(node).cloned().unwrap_or_default())
}

/// Keeps new work away from a node, or ends that.
pub(super) fn set_cordon(
    speculation: &mut Speculation,
    (request, by): (RequestId, &Requester),
    node: NodeId,
    (cordoned, reason): (bool, Option<&str>),
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("cordon", node, cordoned, reason)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    if speculation.state().node(node).is_none() {
        return Err(Refusal::new(RefusalCode::NodeNotFound, format!("there is no {node}")).with("node", node));
    }
    let reason = checked_reason(cordoned, reason)?;
    let by = by.clone();
    let at = speculation.push(Decision::NodeCordonSet { request: key, by, node, cordoned, reason });
    let promised: Vec<JobId> = speculation.state().promised_on(node).collect();
    settle_many(speculation, promised);
    Ok(Answer::Done { at })
}

/// Drains a node, or ends that.
pub(super) fn set_drain(
    speculation: &mut Speculation,
    (request, by): (RequestId, &Requester),
    node: NodeId,
    (order, reason): (DrainOrder, Option<&str>),
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("drain", node, order_key(order), reason)) };
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
    let reason = checked_reason(drain.is_some(), reason)?;
    let decision = Decision::NodeDrainSet { request: Some(key), by: by.clone(), node, drain, reason };
    let at = speculation.push(decision);
    after_restriction(speculation, node);
    Ok(Answer::Done { at })
}

/// Why a node is taken out of placement, for people; nothing is stated where it is put back.
fn checked_reason(is_taken_out: bool, reason: Option<&str>) -> Result<Option<String>, Refusal> {
    let Some(reason) = reason else { return Ok(None) };
    if !is_taken_out {
        let text = "must be left out where a node is put back";
        return Err(Refusal::fields(alloc::vec![Violation::new("reason", text)]));
    }
    if !is_reason(reason) {
        let text = format!("must be 1 to {} bytes without control characters", limits::DETAIL_BYTES_MAX);
        return Err(Refusal::fields(alloc::vec![Violation::new("reason", text)]));
    }
    Ok(Some(String::from(reason)))
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
        let violation = Violation::span("stop_after", ms, 0, limits::DRAIN_MS_MAX);
        return Err(Refusal::fields(alloc::vec![violation]));
    }
    Ok(Some(now.plus_ms(ms)))
}

/// Keeps a node away from work, or lets it back.
pub(super) fn set_quarantine(
    speculation: &mut Speculation,
    (request, by): (RequestId, &Requester),
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
    let decision = Decision::NodeQuarantineSet { request: Some(key), by: by.clone(), node, reason };
    if let Some(refusal) = not_active(speculation, &decision, "this reason of a quarantine") {
        return Err(refusal);
    }
    let at = speculation.push(decision);
    after_restriction(speculation, node);
    Ok(Answer::Done { at })
}

/// Begins or ends a repair.
pub(super) fn set_repair(
    speculation: &mut Speculation,
    (request, by): (RequestId, &Requester),
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
    match order {
        RepairOrder::Begin { action, devices, deadline_ms } => {
            begin_repair(speculation, (key, by), node, (*action, *devices), *deadline_ms)
        }
        RepairOrder::Done if row.repair.is_some() || !row.health.is_blank() => {
            Ok(Answer::Done { at: end_repair(speculation, Some((key, by)), node) })
        }
        RepairOrder::Failed { detail } if row.repair.is_some() => {
            if detail.len() > limits::DETAIL_BYTES_MAX {
                let text = format!("must be at most {} bytes", limits::DETAIL_BYTES_MAX);
                return Err(Refusal::fields(alloc::vec![Violation::new("detail", text)]));
            }
            let step = RepairStep::Fail(detail.clone());
            let at =
                speculation.push(Decision::NodeRepairSet { request: Some(key), by: by.clone(), node, step });
            Ok(Answer::Done { at })
        }
        RepairOrder::Done | RepairOrder::Failed { .. } => {
            let text = "the node is not being repaired, and nothing is known against it";
            Err(Refusal::new(RefusalCode::RepairNotBegun, text))
        }
    }
}

/// Empties the node first, so that the program or person that repairs it finds nothing running.
fn begin_repair(
    speculation: &mut Speculation,
    (key, by): (RequestKey, &Requester),
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
    let at = speculation.push(Decision::NodeRepairSet { request: Some(key), by: by.clone(), node, step });
    if row.drain.is_none() {
        let drain = Some(Drain { since: now, deadline, cause: DrainCause::Repair });
        let (by, reason) = (by.clone(), None);
        speculation.push(Decision::NodeDrainSet { request: None, by, node, drain, reason });
    }
    after_restriction(speculation, node);
    Ok(Answer::Done { at })
}
