//! Reports of agents on the health of their hosts, and the policy by which these are judged.
//!
//! A report says what an agent sees; the replicated health policy says what that means; the conclusion is one
//! record with its evidence, and whatever has to stop because of it stops by separate records behind it.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use muster_journal::{Decision, RequestKey, hash};
use muster_state::{NodeStatus, State};
use muster_types::health::{HealthPolicy, HealthReport, RepairEnd, RepairPhase, RepairStep};
use muster_types::{DeviceSet, JobId, LogIndex, NodeId, Refusal, RefusalCode, RequestId, Requester};

use crate::commands::answer::{Answer, repeated};
use crate::rules::health::conclude;
use crate::settle::job::settle_many;
use crate::settle::nodes::{end_repair, follow_maintenance, stop_failed, stop_faulty};
use crate::speculation::Speculation;

/// Takes over what an agent says of its host. A report that says nothing new changes nothing.
pub(super) fn report(
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
        at = speculation.push(Decision::NodeHealthChanged { node, policy: policy.version, health, events });
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
                speculation.push(Decision::NodeRepairSet {
                    request: None,
                    by: Requester::default(),
                    node,
                    step,
                })
            }
        };
    }
    follow_maintenance(speculation, node);
    Ok(Answer::Done { at })
}

/// Sets the health policy. What was concluded by the one before stands until the next report.
pub(super) fn set_policy(
    speculation: &mut Speculation,
    (request, by): (RequestId, &Requester),
    policy: &HealthPolicy,
    expected_version: Option<LogIndex>,
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("health_policy", policy, expected_version)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    check_policy(speculation.state(), policy, expected_version)?;
    let decision =
        Decision::HealthPolicySet { request: key, by: by.clone(), policy: Box::new(policy.clone()) };
    Ok(Answer::Done { at: speculation.push(decision) })
}

/// Whether a health policy could be set now; the version in force.
///
/// # Errors
/// With its violations, or when another version is in force than the one that is expected.
pub fn check_policy(
    state: &State,
    policy: &HealthPolicy,
    expected_version: Option<LogIndex>,
) -> Result<LogIndex, Refusal> {
    let violations = policy.violations();
    if !violations.is_empty() {
        return Err(Refusal::fields(violations));
    }
    let current = state.health_policy().version;
    if let Some(expected) = expected_version.filter(|expected| *expected != current) {
        let text = format!(
            "the health policy is at version {current}, not {expected}; read it again and apply the change to that"
        );
        return Err(Refusal::new(RefusalCode::PolicyChanged, text).with("version", current));
    }
    Ok(current)
}
