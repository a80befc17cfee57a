//! The network of a node as a condition of it: what checks before starts found, until a probe finds otherwise.
//!
//! One check is a suspicion, which keeps nobody away: it stands among what has happened to the node. A second check
//! that finds the same, [`NETWORK_CONFIRMED_AFTER_MS`] or more later and without a probe in between that found the
//! node sound, makes it a condition.
//!
//! **Invariant:** of each pool, each fleet cluster and the fleet no more nodes are kept away for their network than
//! [`blamed_max`] says, whatever is measured: beyond that it is the network that is at fault, and not the hosts.
//!
//! [`NETWORK_CONFIRMED_AFTER_MS`]: limits::NETWORK_CONFIRMED_AFTER_MS

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::Decision;
use muster_state::{PoolKey, RestrictionRow, State};
use muster_types::health::{Condition, Finding, HealthAction, NodeHealth, Observation};
use muster_types::{DeviceSet, JobId, NodeId, limits};

use crate::command::Answer;
use crate::health::{stop_faulty, weigh};
use crate::job::settle_many;
use crate::schedule::ROUND_BYTES_SOFT;
use crate::speculation::Speculation;

/// A check has found the network of this node at fault.
pub(crate) fn at_fault(speculation: &mut Speculation, node: NodeId, detail: &str) {
    let (state, now) = (speculation.state(), speculation.now());
    let policy = state.health_policy();
    let before = state.restriction(node).map(|row| row.health.clone()).unwrap_or_default();
    let observation = Observation { detail: bounded(detail), ..Observation::of(Finding::Network, None) };
    let wanted = policy.policy.action(&observation);
    let ages = suspicions(&before).map(|suspicion| now.since_ms(suspicion.since));
    let (after, within) = (limits::NETWORK_CONFIRMED_AFTER_MS, limits::NETWORK_CONFIRMED_WITHIN_MS);
    let is_confirmed = ages.clone().any(|age| (after..=within).contains(&age));
    let is_said = ages.min().is_some_and(|age| age < after);
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
        None if is_said => return,
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

/// What checks have found of a node without keeping it away.
fn suspicions(health: &NodeHealth) -> impl Iterator<Item = &Condition> + Clone {
    health.recent.iter().filter(|condition| condition.observation.finding == Finding::Network)
}

/// A probe has found nothing wrong with the network of these nodes.
pub(crate) fn sound(speculation: &mut Speculation, nodes: &[NodeId]) -> Answer {
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
    let decision = Decision::NodeHealthChanged { node, policy: policy.version, health, events };
    let is_sayable = speculation.can_say(&decision);
    if is_sayable {
        speculation.push(decision);
    }
    is_sayable
}

/// How many of this number of nodes may be cordoned at most because of their network.
fn blamed_max(nodes: u64) -> u64 {
    (nodes / limits::NETWORK_BLAMED_ONE_OF).max(1)
}

/// Nodes, and how many of them are kept away for their network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    nodes: u64,
    blamed: u64,
}

/// The shares of a node's pool, its fleet cluster and the fleet, itself not counted among the blamed.
fn shares(state: &State, node: NodeId) -> Option<[Share; 3]> {
    let own = PoolKey::of(&state.node(node)?.spec);
    let levels =
        |key: &PoolKey| [*key == own, (&key.region, &key.cluster) == (&own.region, &own.cluster), true];
    let mut shares = [Share::default(); 3];
    for (key, pool) in state.pools() {
        let nodes: u64 = pool.shapes.iter().map(|(_, count)| u64::from(*count)).sum();
        let counted = shares.iter_mut().zip(levels(key)).filter(|(_, counts)| *counts);
        counted.for_each(|(share, _)| share.nodes += nodes);
    }
    for (other, row) in state.restrictions().filter(|(other, _)| *other != node) {
        let is_blamed = row.health.conditions.iter().any(|c| c.observation.finding == Finding::Network);
        let Some(key) = state.node(other).filter(|_| is_blamed).map(|row| PoolKey::of(&row.spec)) else {
            continue;
        };
        let counted = shares.iter_mut().zip(levels(&key)).filter(|(_, counts)| *counts);
        counted.for_each(|(share, _)| share.blamed += 1);
    }
    Some(shares)
}

/// Whether few enough nodes of its pool, its cluster and the fleet are kept away already.
fn may_blame(state: &State, node: NodeId) -> bool {
    let Some(shares) = shares(state, node) else { return false };
    let has_room = |share: &Share| share.blamed < blamed_max(share.nodes);
    shares[0].nodes >= limits::NETWORK_BLAMED_POOL_MIN && shares.iter().all(has_room)
}

/// Nodes that a second check has found at fault as well and that are not kept away, because as many as may be are kept
/// away already. Somebody has to look at their network.
#[must_use]
pub fn suspects_beyond_the_bound(state: &State) -> Vec<NodeId> {
    let is_beyond = |(node, row): &(NodeId, &RestrictionRow)| {
        let of_network = |c: &&Condition| c.observation.finding == Finding::Network;
        suspicions(&row.health).nth(1).is_some()
            && !row.health.conditions.iter().any(|c| of_network(&c))
            && !may_blame(state, *node)
    };
    state.restrictions().filter(is_beyond).map(|(node, _)| node).collect()
}

/// The longest start of a sentence that a condition holds, cut between characters.
fn bounded(detail: &str) -> String {
    let mut end = detail.len().min(limits::HEALTH_DETAIL_BYTES_MAX);
    while !detail.is_char_boundary(end) {
        end -= 1;
    }
    String::from(&detail[..end])
}
