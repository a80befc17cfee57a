//! How many nodes may be kept away for their network, and which are suspected.
//!
//! **Invariant:** of each pool, each fleet cluster and the fleet no more nodes are kept away for their network than
//! [`blamed_max`] says, whatever is measured: beyond that it is the network that is at fault, and not the hosts.

use alloc::vec::Vec;
use muster_state::{PoolKey, RestrictionRow, State};
use muster_types::health::{Condition, Finding, NodeHealth};
use muster_types::{NodeId, limits};

/// What checks have found of a node without keeping it away.
pub(crate) fn suspicions(health: &NodeHealth) -> impl Iterator<Item = &Condition> + Clone {
    health.recent.iter().filter(|condition| condition.observation.finding == Finding::Network)
}

/// How many of this number of nodes may be cordoned at most because of their network.
fn blamed_max(nodes: u64) -> u64 {
    (nodes / limits::NETWORK_BLAMED_ONE_OF).max(1)
}

/// Nodes, and how many of them are kept away for their network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NodeShare {
    nodes: u64,
    blamed: u64,
}

/// The shares of a node's pool, its fleet cluster and the fleet, itself not counted among the blamed.
fn shares(state: &State, node: NodeId) -> Option<[NodeShare; 3]> {
    let own = PoolKey::of(&state.node(node)?.spec);
    let levels =
        |key: &PoolKey| [*key == own, (&key.region, &key.cluster) == (&own.region, &own.cluster), true];
    let mut shares = [NodeShare::default(); 3];
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
pub(crate) fn may_blame(state: &State, node: NodeId) -> bool {
    let Some(shares) = shares(state, node) else { return false };
    let has_room = |share: &NodeShare| share.blamed < blamed_max(share.nodes);
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
