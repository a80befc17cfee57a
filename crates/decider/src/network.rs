//! The network of a node as a condition of it: what a check before a start found, until a probe finds otherwise.
//!
//! One host is blamed for a link that has two ends, so the blame is bounded: in a pool most of which would be kept
//! away from work it is the network that is at fault, and not the hosts.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::Decision;
use muster_state::{PoolKey, State};
use muster_types::health::{Condition, Finding, HealthAction, NodeHealth, Observation};
use muster_types::{DeviceSet, JobId, NodeId, limits};

use crate::command::Answer;
use crate::health::{stop_faulty, weigh};
use crate::job::settle_many;
use crate::quarantine::POOL_SHARE;
use crate::schedule::ROUND_BYTES_SOFT;
use crate::speculation::Speculation;

/// A check has found the network of this node at fault.
pub(crate) fn at_fault(speculation: &mut Speculation, node: NodeId, detail: &str) {
    let state = speculation.state();
    let policy = state.health_policy();
    let before = state.restriction(node).map(|row| row.health.clone()).unwrap_or_default();
    let observation = Observation { detail: bounded(detail), ..Observation::of(Finding::Network, None) };
    let wanted = policy.policy.action(&observation);
    let action = if wanted.lasts() && !may_blame(state, node) { HealthAction::Ignore } else { wanted };
    let known = before.conditions.iter().position(|c| c.observation.is_like(&observation));
    let event = Condition { observation, action, since: speculation.now(), boot: 0 };
    let mut health = before;
    match known {
        // What was seen first stands, and nothing graver follows.
        Some(at) if health.conditions[at].action >= action => return,
        Some(at) => health.conditions[at] = event.clone(),
        None if action.lasts() && health.conditions.len() < limits::HEALTH_CONDITIONS_MAX => {
            health.conditions.push(event.clone());
        }
        None => {
            let excess = (health.recent.len() + 1).saturating_sub(limits::HEALTH_RECENT_MAX);
            health.recent.drain(..excess);
            health.recent.push(event.clone());
        }
    }
    // Nothing follows from what the format cannot say: the job alone avoids the node.
    if change(speculation, node, health, alloc::vec![event]) {
        stop_faulty(speculation, node);
        let promised: Vec<JobId> = speculation.state().promised_on(node).collect();
        settle_many(speculation, promised);
    }
}

/// A probe has found nothing wrong with the network of these nodes.
pub(crate) fn sound(speculation: &mut Speculation, nodes: &[NodeId]) -> Answer {
    for node in nodes {
        if speculation.round_bytes() > ROUND_BYTES_SOFT {
            break;
        }
        let Some(row) = speculation.state().restriction(*node) else { continue };
        let mut health = row.health.clone();
        health.conditions.retain(|condition| condition.observation.finding != Finding::Network);
        if health.conditions.len() < row.health.conditions.len() {
            change(speculation, *node, health, Vec::new());
        }
    }
    Answer::Done { at: speculation.last_index() }
}

/// Whether the record was made.
fn change(
    speculation: &mut Speculation,
    node: NodeId,
    mut health: NodeHealth,
    events: Vec<Condition>,
) -> bool {
    let state = speculation.state();
    let Some(row) = state.node(node) else { return false };
    let policy = state.health_policy();
    weigh(&policy.policy, &mut health, DeviceSet::first(row.spec.device_count()));
    let health = Box::new(health);
    let decision = Decision::NodeHealthChanged { node, policy: policy.version, health, events };
    let is_sayable = speculation.can_say(&decision);
    if is_sayable {
        speculation.push(decision);
    }
    is_sayable
}

/// Whether few enough nodes of its pool are blamed already: one of so many, but one always may be.
fn may_blame(state: &State, node: NodeId) -> bool {
    let Some(row) = state.node(node) else { return false };
    let key = PoolKey::of(&row.spec);
    let pool = state.pools().find(|(pool, _)| **pool == key);
    let nodes: u64 = pool.map_or(0, |(_, pool)| pool.shapes.iter().map(|(_, count)| u64::from(*count)).sum());
    let is_blamed = |node: NodeId, conditions: &[Condition]| {
        let network = |condition: &Condition| condition.observation.finding == Finding::Network;
        conditions.iter().any(network) && state.node(node).is_some_and(|row| PoolKey::of(&row.spec) == key)
    };
    let others = state.restrictions().filter(|(other, _)| *other != node);
    let blamed = others.filter(|(other, row)| is_blamed(*other, &row.health.conditions)).count() as u64;
    blamed < (nodes / POOL_SHARE).max(1)
}

/// The longest start of a sentence that a condition holds, cut between characters.
fn bounded(detail: &str) -> String {
    let mut end = detail.len().min(limits::HEALTH_DETAIL_BYTES_MAX);
    while !detail.is_char_boundary(end) {
        end -= 1;
    }
    String::from(&detail[..end])
}
