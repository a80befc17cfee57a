//! What nodes offer, in the index of their pool.

use muster_types::{NodeId, NodeSpec};

use super::{Indexes, PoolKey, RackKey};
use crate::free::FreeKey;
use crate::rows::NodeRow;

/// What a placeable node offers, as far as the index of its pool knows it.
pub(crate) struct Offered {
    key: FreeKey,
    /// Whole devices that nobody holds.
    idle: u16,
    /// Free thousandths of devices.
    free_milli: u64,
    is_in_use: bool,
}

impl Offered {
    /// None for a node that takes no new work.
    pub(crate) fn of(row: &NodeRow) -> Option<Offered> {
        if !row.is_placeable() {
            return None;
        }
        let offer = row.offer();
        Some(Offered {
            key: offer.key(),
            idle: offer.devices.count(),
            free_milli: offer.device_milli(),
            is_in_use: row.is_in_use(),
        })
    }
}

impl Indexes {
    /// Puts what a node offers into its pool.
    pub(crate) fn add_free(&mut self, id: NodeId, row: &NodeRow) {
        self.shift_free(id, &row.spec, None, Offered::of(row));
    }

    /// A node of this description offers something else than before.
    pub(crate) fn shift_free(
        &mut self,
        id: NodeId,
        spec: &NodeSpec,
        before: Option<Offered>,
        after: Option<Offered>,
    ) {
        if before.is_none() && after.is_none() {
            return;
        }
        let pool = self.pools.get_mut(&PoolKey::of(spec)).expect("a registered node's pool exists");
        let rack = pool.racks.get_mut(&RackKey::of(spec)).expect("a registered node's rack exists");
        // A node that is idle as before stays where it is in its rack.
        let moves = before.as_ref().map(|gone| gone.idle) != after.as_ref().map(|new| new.idle);
        let pod = |idle: u16| spec.pod.as_ref().filter(|_| idle == spec.device_count());
        if let Some(Offered { key, idle, free_milli, is_in_use }) = before {
            let was_there = pool.by_free.remove(&(key, id));
            assert!(was_there, "the free index knows every placeable node under what it offers");
            pool.idle_devices -= u64::from(idle);
            pool.free_milli -= free_milli;
            if let Some(position) = pod(idle) {
                pool.idle_hosts.remove(&(position.clone(), id));
            }
            if moves {
                rack.by_idle.remove(&(idle, id));
            }
            rack.idle_devices -= u64::from(idle);
            rack.in_use -= u32::from(is_in_use);
        }
        if let Some(Offered { key, idle, free_milli, is_in_use }) = after {
            pool.by_free.insert((key, id));
            pool.idle_devices += u64::from(idle);
            pool.free_milli += free_milli;
            if let Some(position) = pod(idle) {
                pool.idle_hosts.insert((position.clone(), id));
            }
            if moves {
                rack.by_idle.insert((idle, id));
            }
            rack.idle_devices += u64::from(idle);
            rack.in_use += u32::from(is_in_use);
        }
    }
}
