//! Whether a worker fits on a node: the one feasibility function, used by the planner and the guard.

use muster_types::{DeviceSet, WorkerRequest};

use crate::rows::NodeRow;

/// The devices of `node` that a worker could have right now, lowest numbers first; none when it
/// does not fit. Status and cordon are the caller's to check.
#[must_use]
pub fn devices_for(node: &NodeRow, request: &WorkerRequest) -> Option<DeviceSet> {
    if node.free_cpu_milli < request.cpu_milli || node.free_memory_bytes < request.memory_bytes {
        return None;
    }
    match &request.accelerators {
        None => Some(DeviceSet::EMPTY),
        Some(wanted) => {
            let has = node.spec.accelerators.as_ref()?;
            if has.kind == wanted.kind { node.free_devices.lowest(wanted.count) } else { None }
        }
    }
}

/// Whether exactly these devices of `node` satisfy the request right now.
#[must_use]
pub fn admits(node: &NodeRow, request: &WorkerRequest, devices: DeviceSet) -> bool {
    let wanted = request.accelerators.as_ref().map_or(0, |a| a.count);
    devices_for(node, request).is_some() && devices.count() == wanted && node.free_devices.contains(devices)
}

/// How many such workers a host of this size holds when it is empty.
#[must_use]
pub fn workers_per_host(devices: u16, cpu_milli: u64, memory_bytes: u64, request: &WorkerRequest) -> u32 {
    let by_device = match &request.accelerators {
        Some(wanted) => u64::from(devices / wanted.count.max(1)),
        None => u64::MAX,
    };
    let by_cpu = cpu_milli / request.cpu_milli.max(1);
    let by_memory = memory_bytes / request.memory_bytes.max(1);
    u32::try_from(by_device.min(by_cpu).min(by_memory)).unwrap_or(u32::MAX)
}
