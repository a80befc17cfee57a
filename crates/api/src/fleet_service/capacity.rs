//! What there is of each type in each region, by how it was bought.

use std::collections::BTreeMap;

use muster_state::{CapacityKey, NodeStatus, State};
use muster_types::Name;
use muster_types::policy::PurchaseKind;
use muster_wire::closed::number_or_zero;
use muster_wire::time::duration;
use muster_wire::v1;

/// Rows of an answer.
pub(super) const LISTED_MAX: usize = 4_096;

/// What a row of an answer takes.
pub(super) const ROW_BYTES: usize = 512;

/// Region, type and purchase.
type Subject<'a> = (&'a Name, Option<&'a Name>, Option<PurchaseKind>);

#[derive(Clone, Copy, Default)]
struct Counts {
    nodes: u32,
    devices: u64,
    free_devices: u64,
}

/// All of it, by region, type and purchase: what nodes are of, and what was seen of nodes that are gone.
pub(super) fn list(view: &State) -> Vec<v1::Capacity> {
    let mut counted: BTreeMap<Subject<'_>, Counts> = BTreeMap::new();
    for (_, row) in view.nodes().iter() {
        let accelerators = row.spec.accelerators.as_ref();
        let kind = accelerators.map(|has| &has.kind);
        let counts = counted.entry((&row.spec.region, kind, PurchaseKind::of_node(&row.spec))).or_default();
        if row.status == NodeStatus::Up {
            counts.nodes = counts.nodes.saturating_add(1);
            counts.devices += accelerators.map_or(0, |has| u64::from(has.count));
        }
        if row.is_placeable() {
            counts.free_devices += u64::from(row.offer().devices.count());
        }
    }
    for key in view.capacity_keys() {
        counted.entry((&key.region, key.kind.as_ref(), Some(key.purchase))).or_default();
    }
    counted.into_iter().take(LISTED_MAX).map(|(subject, counts)| shown(view, subject, counts)).collect()
}

fn shown(view: &State, (region, kind, purchase): Subject<'_>, counts: Counts) -> v1::Capacity {
    let now = view.log_time();
    let prices = view.policy().policy.price_table();
    let key = |purchase| CapacityKey { region: region.clone(), kind: kind.cloned(), purchase };
    let taken = purchase.map(|purchase| view.interruptions(&key(purchase), now)).unwrap_or_default();
    v1::Capacity {
        region: region.to_string(),
        r#type: kind.map(Name::to_string).unwrap_or_default(),
        purchase: number_or_zero(purchase),
        nodes: counts.nodes,
        devices: counts.devices,
        free_devices: counts.free_devices,
        micro_dollars_per_device_hour: kind.and_then(|kind| prices.get(kind, region, purchase, now)),
        interruptions_per_day_milli: taken.per_day_milli,
        measured: taken.is_measured,
        interruptions: taken.seen,
        node_time: Some(duration(taken.node_ms)),
    }
}
