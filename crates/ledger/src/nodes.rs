//! What the idle accelerators of a node are idle for.

use alloc::vec::Vec;
use muster_state::{Free, NodeRow, NodeStatus, State};
use muster_types::limits::HOST_DEVICES_MAX;
use muster_types::{DeviceAmount, DeviceSet, JobId, NodeId};
use serde::{Deserialize, Serialize};

use crate::activity::IdleCause;
use crate::charges::Owner;

/// What a part of a node is idle for, before it is known which jobs wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Cell {
    /// Nothing may be placed there.
    Blocked(IdleCause),
    /// It is kept for a gang of this owner.
    Reserved(Owner),
    /// A job could be placed there.
    Open,
}

/// Thousandths of each device that nobody holds.
struct Idle {
    milli: [u64; HOST_DEVICES_MAX as usize],
    count: usize,
}

impl Idle {
    fn of(free: &Free, count: u16) -> Idle {
        let count = usize::from(count.min(HOST_DEVICES_MAX));
        let mut milli = [0; HOST_DEVICES_MAX as usize];
        for device in free.devices.iter() {
            if let Some(of_device) = milli.get_mut(usize::from(device)) {
                *of_device = 1_000;
            }
        }
        for share in &free.shares {
            if let Some(of_device) = milli.get_mut(usize::from(share.device)) {
                *of_device = u64::from(share.milli);
            }
        }
        Idle { milli, count }
    }

    /// Takes at most `most` thousandths of each of these devices.
    fn take(&mut self, devices: DeviceSet, most: u64) -> u64 {
        let mut taken = 0;
        for (device, milli) in self.milli.iter_mut().enumerate().take(self.count) {
            if devices.0 & (1 << device) != 0 {
                let part = most.min(*milli);
                *milli -= part;
                taken += part;
            }
        }
        taken
    }
}

const ALL: DeviceSet = DeviceSet(u64::MAX);

/// What keeps new work from devices of a node, in order of precedence.
fn blocks(state: &State, id: NodeId, row: &NodeRow) -> Vec<(IdleCause, DeviceSet)> {
    let mut found = Vec::new();
    if row.status == NodeStatus::Lost {
        found.push((IdleCause::NodeLost, ALL));
        return found;
    }
    if let Some(restriction) = state.restriction(id) {
        let health = &restriction.health;
        found.push((IdleCause::Fault, if health.out_of_service { ALL } else { health.unusable }));
        let of_node = [
            (IdleCause::Repair, restriction.repair.is_some()),
            (IdleCause::Quarantine, restriction.quarantine.is_some()),
            (IdleCause::Drain, restriction.drain.is_some()),
        ];
        found.extend(of_node.into_iter().filter(|(_, holds)| *holds).map(|(cause, _)| (cause, ALL)));
    }
    if row.cordoned {
        found.push((IdleCause::Cordon, ALL));
    }
    if let Some(restriction) = state.restriction(id) {
        let foreign = &restriction.foreign;
        found.push((IdleCause::Foreign, if foreign.closed { ALL } else { foreign.devices }));
    }
    found
}

/// The idle parts of a node, in thousandths. `owner` says whose a job is.
pub(crate) fn cells(
    state: &State,
    id: NodeId,
    row: &NodeRow,
    mut owner: impl FnMut(JobId) -> Owner,
) -> Vec<(Cell, u64)> {
    let mut idle = Idle::of(&row.free, row.spec.device_count());
    let mut cells: Vec<(Cell, u64)> = Vec::new();
    let mut put = |cell: Cell, milli: u64| match cells.iter_mut().find(|(known, _)| *known == cell) {
        _ if milli == 0 => {}
        Some((_, sum)) => *sum += milli,
        None => cells.push((cell, milli)),
    };
    for (cause, devices) in blocks(state, id, row) {
        put(Cell::Blocked(cause), idle.take(devices, 1_000));
    }
    if !row.promised.is_empty() {
        for job in state.promised_on(id) {
            put(Cell::Reserved(owner(job)), reserved(state, id, job, &mut idle));
        }
    }
    put(Cell::Open, idle.take(ALL, 1_000));
    cells
}

/// What is kept for one gang of what is idle.
fn reserved(state: &State, node: NodeId, job: JobId, idle: &mut Idle) -> u64 {
    let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { return 0 };
    let Some(hold) = &row.promise else { return 0 };
    let mut sum = 0;
    for (rank, slot) in hold.slots.iter().enumerate().filter(|(_, slot)| slot.node == node) {
        let group = u32::try_from(rank).ok().and_then(|rank| spec.group_of_slot(rank, hold.slots.len()));
        let amount = group.and_then(|group| group.request.accelerators.as_ref()).map(|a| a.amount);
        sum += match amount {
            None => 0,
            Some(DeviceAmount::Whole(_)) => idle.take(slot.devices, 1_000),
            Some(DeviceAmount::Share(milli)) => idle.take(slot.devices, u64::from(milli)),
        };
    }
    sum
}
