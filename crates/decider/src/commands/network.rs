//! The network of a node as a condition of it: what checks before starts found, until a probe finds otherwise.
//!
//! One check is a suspicion, which keeps nobody away: it stands among what has happened to the node. A second check
//! that finds the same, [`NETWORK_CONFIRMED_AFTER_MS`] or more later and without a probe in between that found the
//! node sound, makes it a condition. [`crate::rules::network`] says how many nodes may be kept away like this.
//!
//! [`NETWORK_CONFIRMED_AFTER_MS`]: limits::NETWORK_CONFIRMED_AFTER_MS

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::Decision;
use muster_types::health::{Condition, Finding, HealthAction, NodeHealth, Observation};
use muster_types::{DeviceSet, JobId, NodeId, limits};

use crate::commands::answer::Answer;
use crate::round::ROUND_BYTES_SOFT;
use crate::rules::health::weigh;
use crate::rules::network::{may_blame, suspicions};
use crate::rules::text::cut;
use crate::settle::job::settle_many;
use crate::settle::nodes::stop_faulty;
use crate::speculation::Speculation;

/// A check has found the network of this node at fault.
pub(super) fn at_fault(speculation: &mut Speculation, node: NodeId, detail: &str) {
    let (state, now) = (speculation.state(), speculation.now());
    let policy = state.health_policy();
    let before = state.restriction(node).map(|row| row.health.clone()).unwrap_or_default();
    let observation = Observation {
        detail: cut(String::from(detail), limits::HEALTH_DETAIL_BYTES_MAX),
        ..Observation::of(Finding::Network, None)
    };
    let wanted = policy.policy.action(&observation);
    let ages = suspicions(&before).map(|suspicion| now.since_ms(suspicion.since));
    let (after, within) = (limits::NETWORK_CONFIRMED_AFTER_MS, limits::NETWORK_CONFIRMED_WITHIN_MS);
    let is_confirmed = ages.clone().any(|age| (after..=within).contains(&age));
    let is_told = ages.min().is_some_and(|age| age < after);
    let lasts = wanted.lasts() && is_confirmed && may_blame(state, node);
    let action = if wanted.lasts() && !lasts { HealthAction::Ignore } else { wanted };
    let known = before.conditions.iter().position(|c| c.observation.is_like(&observation));
    let event = Condition { observation, action, since: now, boot: 0 };
    let mut health = before;
    match known {
        // What was seen first stands, and nothing graver follows.
        Some(at) if health.conditions[at].action >= action => return,
        Some(at) => health.conditions[at] = event.clone(),
        None if lasts && health.conditions.len() < limits::HEALTH_CONDITIONS_MAX => {
            health.conditions.push(event.clone());
        }
        // Said a moment ago, and the first time is what counts.
        None if is_told => return,
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
pub(super) fn sound(speculation: &mut Speculation, nodes: &[NodeId]) -> Answer {
    for node in nodes {
        if speculation.round_bytes() > ROUND_BYTES_SOFT {
            break;
        }
        let Some(row) = speculation.state().restriction(*node) else { continue };
        let mut health = row.health.clone();
        let is_other = |condition: &Condition| condition.observation.finding != Finding::Network;
        health.conditions.retain(is_other);
        health.recent.retain(is_other);
        if health != row.health {
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
    speculation.push(Decision::NodeHealthChanged { node, policy: policy.version, health, events });
    true
}
