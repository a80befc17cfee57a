//! Which nodes fail more often than their peers.

use alloc::format;
use alloc::string::String;
use muster_state::{PoolKey, State};
use muster_types::{LogTime, NodeId};

/// Faults are counted for so long.
pub(crate) const FAULT_WINDOW_MS: u64 = 24 * 3_600_000;
/// Faults in the window below which nothing is concluded.
const FAULTS_MIN: u64 = 3;
/// How many times as many faults as its peers have on average make a node one that fails more often.
const TIMES_PEERS: u64 = 4;
/// Nodes of its pool below which there is nobody to compare with.
const POOL_NODES_MIN: u64 = 4;
/// At most one in this many nodes of a pool is kept away from work for this; but one always may be.
const POOL_SHARE: u64 = 20;

/// Why a node should be kept away from work, when jobs met faults on it more often than on its peers: hosts of the same
/// cluster and type, whose faults are counted over the same time. `held` says which nodes are kept away already.
#[must_use]
pub fn fails_more_often(
    state: &State,
    node: NodeId,
    now: LogTime,
    held: impl Fn(NodeId) -> bool,
) -> Option<String> {
    let since = now.minus_ms(FAULT_WINDOW_MS);
    let recent = |times: &[LogTime]| times.iter().filter(|at| **at >= since).count() as u64;
    let own = recent(state.faults_of(node));
    if own < FAULTS_MIN {
        return None;
    }
    let key = PoolKey::of(&state.node(node)?.spec);
    let nodes: u64 =
        state.pools().find(|(pool, _)| **pool == key)?.1.shapes.iter().map(|(_, n)| u64::from(*n)).sum();
    if nodes < POOL_NODES_MIN {
        return None;
    }
    let (mut of_peers, mut held_there) = (0, 0);
    for (peer, times) in state.node_faults() {
        let is_peer = state.node(peer).is_some_and(|row| PoolKey::of(&row.spec) == key);
        if peer != node && is_peer {
            of_peers += recent(times);
            held_there += u64::from(held(peer));
        }
    }
    let peers = nodes - 1;
    let is_worse = own * peers >= TIMES_PEERS * of_peers.max(1);
    let has_room = held_there < (nodes / POOL_SHARE).max(1);
    (is_worse && has_room).then(|| {
        let hours = FAULT_WINDOW_MS / 3_600_000;
        format!("{own} faults in {hours} hours; its {peers} peers together had {of_peers}")
    })
}
