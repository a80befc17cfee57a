//! The free, promised and taken resources of a host: whole devices, shares of devices, CPU and memory.

use alloc::vec::Vec;
use core::cmp::Reverse;
use muster_types::{DeviceAmount, DeviceSet, NodeSpec, WorkerRequest};
use serde::{Deserialize, Serialize};

/// Thousandths of one device.
const DEVICE_MILLI: u16 = 1_000;

/// Part of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceShare {
    /// Its local number.
    pub device: u16,
    /// Thousandths, 1 to 999.
    pub milli: u16,
}

/// What restrictions keep away from a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restricted {
    /// Nothing new is placed on it.
    pub blocked: bool,
    /// Nothing new is placed on these of its devices.
    pub unusable: DeviceSet,
    /// Milli-CPUs that others hold.
    pub cpu_milli: u64,
    /// Bytes of memory that others hold.
    pub memory_bytes: u64,
}

impl Restricted {
    /// Whether all that is free may be used.
    #[must_use]
    pub fn takes_nothing(&self) -> bool {
        self.unusable.is_empty() && self.cpu_milli == 0 && self.memory_bytes == 0
    }
}

/// The free resources of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Free {
    /// Devices of which nothing is held.
    pub devices: DeviceSet,
    /// What is left of devices that are partly held; by device.
    pub shares: Vec<DeviceShare>,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// Bytes.
    pub memory_bytes: u64,
    /// Milli-CPUs of the whole host: what a worker takes that has it to itself.
    pub cpu_milli_total: u64,
    /// Bytes of the whole host.
    pub memory_bytes_total: u64,
    /// Bytes of scratch.
    pub scratch_bytes: u64,
}

impl Free {
    /// All of a host.
    #[must_use]
    pub fn all_of(spec: &NodeSpec) -> Free {
        Free {
            devices: DeviceSet::first(spec.device_count()),
            shares: Vec::new(),
            cpu_milli: spec.cpu_milli,
            memory_bytes: spec.memory_bytes,
            cpu_milli_total: spec.cpu_milli,
            memory_bytes_total: spec.memory_bytes,
            scratch_bytes: spec.scratch_bytes,
        }
    }

    /// Whether nobody holds anything of the host: every worker takes some of its CPUs.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.cpu_milli == self.cpu_milli_total && self.memory_bytes == self.memory_bytes_total
    }

    /// Whether the CPUs, the memory and the scratch suffice for a worker.
    fn has_what_hosts_have(&self, request: &WorkerRequest) -> bool {
        let suffices = self.cpu_milli >= request.cpu_milli
            && self.memory_bytes >= request.memory_bytes
            && self.scratch_bytes >= request.scratch_bytes;
        suffices && (!request.exclusive || self.is_whole())
    }

    /// Milli-CPUs and bytes that a worker takes.
    fn taken_by(&self, request: &WorkerRequest) -> (u64, u64) {
        match request.exclusive {
            true => (self.cpu_milli_total, self.memory_bytes_total),
            false => (request.cpu_milli, request.memory_bytes),
        }
    }

    /// Thousandths of devices.
    #[must_use]
    pub fn device_milli(&self) -> u64 {
        let shares: u64 = self.shares.iter().map(|share| u64::from(share.milli)).sum();
        u64::from(self.devices.count()) * u64::from(DEVICE_MILLI) + shares
    }

    /// The devices that a worker would get, without regard to their type: the lowest idle ones; for a
    /// share the fullest device that holds it, an idle one last. None when it does not fit.
    #[must_use]
    pub fn pick(&self, request: &WorkerRequest) -> Option<DeviceSet> {
        if !self.has_what_hosts_have(request) {
            return None;
        }
        match request.accelerators.as_ref().map(|a| a.amount) {
            None => Some(DeviceSet::EMPTY),
            Some(DeviceAmount::Whole(count)) => self.devices.lowest(count),
            Some(DeviceAmount::Share(milli)) => {
                let fitting = self.shares.iter().filter(|share| share.milli >= milli);
                match fitting.min_by_key(|share| (share.milli, share.device)) {
                    Some(share) => Some(DeviceSet(1 << share.device)),
                    None => self.devices.lowest(1),
                }
            }
        }
    }

    /// Whether exactly these devices would satisfy the request.
    #[must_use]
    pub fn admits(&self, request: &WorkerRequest, devices: DeviceSet) -> bool {
        if !self.has_what_hosts_have(request) {
            return false;
        }
        match request.accelerators.as_ref().map(|a| a.amount) {
            None => devices.is_empty(),
            Some(DeviceAmount::Whole(count)) => devices.count() == count && self.devices.contains(devices),
            Some(DeviceAmount::Share(milli)) => {
                let holds =
                    |share: &DeviceShare| DeviceSet(1 << share.device) == devices && share.milli >= milli;
                devices.count() == 1 && (self.devices.contains(devices) || self.shares.iter().any(holds))
            }
        }
    }

    /// How many such workers fit.
    #[must_use]
    pub fn workers(&self, request: &WorkerRequest) -> u32 {
        if request.exclusive {
            return u32::from(self.has_what_hosts_have(request));
        }
        let by_device = match request.accelerators.as_ref().map(|a| a.amount) {
            None => u64::MAX,
            Some(DeviceAmount::Whole(count)) => u64::from(self.devices.count() / count.max(1)),
            Some(DeviceAmount::Share(milli)) => {
                let each = |free: u16| u64::from(free / milli.max(1));
                let shares: u64 = self.shares.iter().map(|share| each(share.milli)).sum();
                u64::from(self.devices.count()) * each(DEVICE_MILLI) + shares
            }
        };
        // Most hosts of a full fleet: the rest is not worth a division.
        if by_device == 0 {
            return 0;
        }
        let by_cpu = self.cpu_milli / request.cpu_milli.max(1);
        let by_memory = self.memory_bytes / request.memory_bytes.max(1);
        let by_scratch = by_scratch(self.scratch_bytes, request);
        u32::try_from(by_device.min(by_cpu).min(by_memory).min(by_scratch)).unwrap_or(u32::MAX)
    }

    /// Takes what a worker holds.
    ///
    /// # Panics
    /// When it is not free: the caller has asked [`Free::admits`].
    pub fn take(&mut self, request: &WorkerRequest, devices: DeviceSet) {
        let (cpu_milli, memory_bytes) = self.taken_by(request);
        self.cpu_milli -= cpu_milli;
        self.memory_bytes -= memory_bytes;
        self.scratch_bytes -= request.scratch_bytes;
        match request.accelerators.as_ref().map(|a| a.amount) {
            None => {}
            Some(DeviceAmount::Whole(_)) => {
                assert!(self.devices.contains(devices), "a leased device was free");
                self.devices = self.devices.difference(devices);
            }
            Some(DeviceAmount::Share(milli)) => self.take_share(devices, milli),
        }
    }

    fn take_share(&mut self, devices: DeviceSet, milli: u16) {
        let device = single(devices);
        if self.devices.contains(devices) {
            self.devices = self.devices.difference(devices);
            let at = self.shares.partition_point(|share| share.device < device);
            self.shares.insert(at, DeviceShare { device, milli: DEVICE_MILLI - milli });
            return;
        }
        let at = self.share_at(device).expect("a leased share was free");
        assert!(self.shares[at].milli >= milli, "a leased share was free");
        self.shares[at].milli -= milli;
        if self.shares[at].milli == 0 {
            self.shares.remove(at);
        }
    }

    /// Gives back what a worker held; the exact inverse of [`Free::take`].
    ///
    /// # Panics
    /// When it was free already.
    pub fn give(&mut self, request: &WorkerRequest, devices: DeviceSet) {
        let (cpu_milli, memory_bytes) = self.taken_by(request);
        self.cpu_milli += cpu_milli;
        self.memory_bytes += memory_bytes;
        self.scratch_bytes += request.scratch_bytes;
        match request.accelerators.as_ref().map(|a| a.amount) {
            None => {}
            Some(DeviceAmount::Whole(_)) => {
                assert!(self.devices.is_disjoint(devices), "what is freed was held");
                self.devices = self.devices.union(devices);
            }
            Some(DeviceAmount::Share(milli)) => self.give_share(devices, milli),
        }
    }

    fn give_share(&mut self, devices: DeviceSet, milli: u16) {
        let device = single(devices);
        assert!(self.devices.is_disjoint(devices), "what is freed was held");
        let at = match self.share_at(device) {
            Some(at) => at,
            None => {
                let at = self.shares.partition_point(|share| share.device < device);
                self.shares.insert(at, DeviceShare { device, milli: 0 });
                at
            }
        };
        self.shares[at].milli += milli;
        assert!(self.shares[at].milli <= DEVICE_MILLI, "no more is freed than there is");
        if self.shares[at].milli == DEVICE_MILLI {
            self.shares.remove(at);
            self.devices = self.devices.union(devices);
        }
    }

    /// The free resources without those that are promised to others. Promised resources that victims still hold are not
    /// free here either way.
    #[must_use]
    pub fn without_promised(&self, promised: &Promised) -> Free {
        let shared: DeviceSet = promised
            .shares
            .iter()
            .fold(DeviceSet::EMPTY, |set, share| set.union(DeviceSet(1 << share.device)));
        let mut free = Free {
            devices: self.devices.difference(promised.devices).difference(shared),
            shares: Vec::new(),
            cpu_milli: self.cpu_milli.saturating_sub(promised.cpu_milli),
            memory_bytes: self.memory_bytes.saturating_sub(promised.memory_bytes),
            cpu_milli_total: self.cpu_milli_total,
            memory_bytes_total: self.memory_bytes_total,
            scratch_bytes: self.scratch_bytes.saturating_sub(promised.scratch_bytes),
        };
        let of_device = |device: u16| {
            let share = promised.shares.iter().find(|share| share.device == device);
            share.map_or(0, |share| share.milli)
        };
        for share in &self.shares {
            if promised.devices.contains(DeviceSet(1 << share.device)) {
                continue;
            }
            let milli = share.milli.saturating_sub(of_device(share.device));
            if milli > 0 {
                free.shares.push(DeviceShare { device: share.device, milli });
            }
        }
        // Idle devices of which a share is promised.
        for share in promised.shares.iter().filter(|s| self.devices.contains(DeviceSet(1 << s.device))) {
            let milli = DEVICE_MILLI.saturating_sub(share.milli);
            if milli > 0 {
                free.shares.push(DeviceShare { device: share.device, milli });
            }
        }
        free.shares.sort_unstable();
        free
    }

    /// What is left without devices that may not be used, and without what others hold. The CPU and memory
    /// of unusable devices stay: a worker without devices may still have them.
    #[must_use]
    pub fn without(&self, restricted: &Restricted) -> Free {
        let mut free = self.clone();
        free.devices = free.devices.difference(restricted.unusable);
        free.shares.retain(|share| !restricted.unusable.contains(DeviceSet(1 << share.device)));
        free.cpu_milli = free.cpu_milli.saturating_sub(restricted.cpu_milli);
        free.memory_bytes = free.memory_bytes.saturating_sub(restricted.memory_bytes);
        free
    }

    /// By what the host is found in the index of free capacity.
    #[must_use]
    pub fn key(&self) -> FreeKey {
        let mut shares: Vec<u16> = self.shares.iter().map(|share| share.milli).collect();
        shares.sort_unstable_by_key(|milli| Reverse(*milli));
        FreeKey {
            idle: self.devices.count(),
            cpu_milli: self.cpu_milli,
            memory_bytes: self.memory_bytes,
            shares,
            is_whole: self.is_whole(),
            scratch_bytes: self.scratch_bytes,
        }
    }

    fn share_at(&self, device: u16) -> Option<usize> {
        self.shares.iter().position(|share| share.device == device)
    }
}

/// How many such workers a host's scratch is enough for; most ask for none.
fn by_scratch(bytes: u64, request: &WorkerRequest) -> u64 {
    bytes.checked_div(request.scratch_bytes).unwrap_or(u64::MAX)
}

/// The number of the only device of a share.
fn single(devices: DeviceSet) -> u16 {
    assert!(devices.count() == 1, "a share is of one device");
    devices.0.trailing_zeros() as u16
}

/// Resources of a host that are kept for gangs that wait for preempted ones to stop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promised {
    /// Whole devices.
    pub devices: DeviceSet,
    /// Shares of others; by device.
    pub shares: Vec<DeviceShare>,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// Bytes.
    pub memory_bytes: u64,
    /// Bytes of scratch.
    pub scratch_bytes: u64,
}

impl Promised {
    /// Whether nothing is promised.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Promised::default()
    }

    /// Promises what a worker will hold of this host.
    ///
    /// # Panics
    /// When it is promised already.
    pub fn add(&mut self, request: &WorkerRequest, devices: DeviceSet, host: &NodeSpec) {
        let (cpu_milli, memory_bytes) = Free::all_of(host).taken_by(request);
        self.cpu_milli += cpu_milli;
        self.memory_bytes += memory_bytes;
        self.scratch_bytes += request.scratch_bytes;
        match request.accelerators.as_ref().map(|a| a.amount) {
            None => {}
            Some(DeviceAmount::Whole(_)) => {
                assert!(self.devices.is_disjoint(devices), "a device is promised once");
                self.devices = self.devices.union(devices);
            }
            Some(DeviceAmount::Share(milli)) => {
                let device = single(devices);
                let at = self.shares.partition_point(|share| share.device < device);
                match self.shares.get_mut(at).filter(|share| share.device == device) {
                    Some(share) => share.milli += milli,
                    None => self.shares.insert(at, DeviceShare { device, milli }),
                }
            }
        }
    }

    /// Takes a promise back; the exact inverse of [`Promised::add`].
    ///
    /// # Panics
    /// When it was not promised.
    pub fn remove(&mut self, request: &WorkerRequest, devices: DeviceSet, host: &NodeSpec) {
        let (cpu_milli, memory_bytes) = Free::all_of(host).taken_by(request);
        self.cpu_milli -= cpu_milli;
        self.memory_bytes -= memory_bytes;
        self.scratch_bytes -= request.scratch_bytes;
        match request.accelerators.as_ref().map(|a| a.amount) {
            None => {}
            Some(DeviceAmount::Whole(_)) => {
                assert!(self.devices.contains(devices), "what is taken back was promised");
                self.devices = self.devices.difference(devices);
            }
            Some(DeviceAmount::Share(milli)) => {
                let device = single(devices);
                let at = self.shares.iter().position(|share| share.device == device);
                let at = at.expect("what is taken back was promised");
                self.shares[at].milli -= milli;
                if self.shares[at].milli == 0 {
                    self.shares.remove(at);
                }
            }
        }
    }

    /// Leaves out what a worker of the host holds that is being stopped, as far as that much is promised: of what can be counted.
    /// A whole device is free or is not, whichever job holds it.
    pub(crate) fn leave_out(&mut self, request: &WorkerRequest, devices: DeviceSet, host: &Free) {
        let (cpu_milli, memory_bytes) = host.taken_by(request);
        self.cpu_milli = self.cpu_milli.saturating_sub(cpu_milli);
        self.memory_bytes = self.memory_bytes.saturating_sub(memory_bytes);
        self.scratch_bytes = self.scratch_bytes.saturating_sub(request.scratch_bytes);
        if let Some(DeviceAmount::Share(milli)) = request.accelerators.as_ref().map(|a| a.amount) {
            let shares = self.shares.iter_mut();
            for share in shares.filter(|share| devices.contains(DeviceSet(1 << share.device))) {
                share.milli = share.milli.saturating_sub(milli);
            }
            self.shares.retain(|share| share.milli > 0);
        }
    }
}

/// Hosts with equal keys, of one type, are alike to every worker. Ordered fullest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FreeKey {
    /// Idle devices.
    pub idle: u16,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// Bytes.
    pub memory_bytes: u64,
    /// What is left of devices that are partly held, most first, in thousandths.
    pub shares: Vec<u16>,
    /// Whether nobody holds anything of the host.
    pub is_whole: bool,
    /// Bytes of scratch.
    pub scratch_bytes: u64,
}

impl FreeKey {
    /// Before every host with this many idle devices.
    #[must_use]
    pub fn first_with(idle: u16) -> FreeKey {
        let shares = Vec::new();
        FreeKey { idle, cpu_milli: 0, memory_bytes: 0, shares, is_whole: false, scratch_bytes: 0 }
    }

    /// How many such workers fit on such a host.
    #[must_use]
    pub fn workers(&self, request: &WorkerRequest) -> u32 {
        if request.exclusive {
            let suffices = self.cpu_milli >= request.cpu_milli
                && self.memory_bytes >= request.memory_bytes
                && self.scratch_bytes >= request.scratch_bytes;
            return u32::from(self.is_whole && suffices);
        }
        let by_device = match request.accelerators.as_ref().map(|a| a.amount) {
            None => u64::MAX,
            Some(DeviceAmount::Whole(count)) => u64::from(self.idle / count.max(1)),
            Some(DeviceAmount::Share(milli)) => {
                let each = |free: u16| u64::from(free / milli.max(1));
                let shares: u64 = self.shares.iter().map(|milli| each(*milli)).sum();
                u64::from(self.idle) * each(DEVICE_MILLI) + shares
            }
        };
        let by_cpu = self.cpu_milli / request.cpu_milli.max(1);
        let by_memory = self.memory_bytes / request.memory_bytes.max(1);
        let by_scratch = by_scratch(self.scratch_bytes, request);
        u32::try_from(by_device.min(by_cpu).min(by_memory).min(by_scratch)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::AcceleratorRequest;

    fn host() -> Free {
        Free {
            devices: DeviceSet::EMPTY,
            shares: Vec::new(),
            cpu_milli: 8_000,
            memory_bytes: 64,
            cpu_milli_total: 8_000,
            memory_bytes_total: 64,
            scratch_bytes: 100,
        }
    }

    fn worker(exclusive: bool) -> WorkerRequest {
        WorkerRequest { accelerators: None, cpu_milli: 1_000, memory_bytes: 1, exclusive, scratch_bytes: 0 }
    }

    #[test]
    fn a_worker_with_a_host_to_itself_takes_all_of_it_and_only_where_nobody_is() {
        let (alone, small) = (worker(true), worker(false));
        let mut free = host();
        assert_eq!((free.workers(&alone), free.key().workers(&alone), free.workers(&small)), (1, 1, 8));
        free.take(&alone, DeviceSet::EMPTY);
        assert_eq!((free.cpu_milli, free.memory_bytes), (0, 0));
        assert_eq!((free.workers(&small), free.pick(&small), free.workers(&alone)), (0, None, 0));
        free.give(&alone, DeviceSet::EMPTY);
        assert_eq!(free, host());
        free.take(&small, DeviceSet::EMPTY);
        assert!(!free.admits(&alone, DeviceSet::EMPTY) && free.key().workers(&alone) == 0);
        assert_eq!(free.workers(&small), 7);
        let others = Restricted { cpu_milli: 1, ..Restricted::default() };
        assert_eq!(host().without(&others).workers(&alone), 0, "others than Muster hold a part of it");
        let large = WorkerRequest { cpu_milli: 9_000, ..worker(true) };
        assert_eq!(host().workers(&large), 0);
    }

    #[test]
    fn scratch_is_counted_and_comes_back() {
        let asks = WorkerRequest { scratch_bytes: 40, ..worker(false) };
        let mut free = host();
        assert_eq!((free.workers(&asks), free.key().workers(&asks)), (2, 2));
        assert_eq!(free.workers(&worker(false)), 8, "who asks for none is not bounded by it");
        free.take(&asks, DeviceSet::EMPTY);
        free.take(&asks, DeviceSet::EMPTY);
        assert_eq!((free.scratch_bytes, free.pick(&asks), free.workers(&asks)), (20, None, 0));
        assert!(!free.admits(&asks, DeviceSet::EMPTY) && free.admits(&worker(false), DeviceSet::EMPTY));
        free.give(&asks, DeviceSet::EMPTY);
        assert_eq!(free.workers(&asks), 1);
        let promised = Promised { scratch_bytes: 30, ..Promised::default() };
        assert_eq!(free.without_promised(&promised).workers(&asks), 0, "a part of it is promised");
        free.give(&asks, DeviceSet::EMPTY);
        assert_eq!(free, host());
    }

    #[test]
    fn what_a_worker_leaves_that_is_being_stopped_is_not_kept_of_what_is_free() {
        let request = |milli: u16| WorkerRequest {
            accelerators: Some(AcceleratorRequest {
                choices: Vec::new(),
                amount: DeviceAmount::Share(milli),
            }),
            scratch_bytes: 10,
            ..worker(false)
        };
        let share = |milli: u16| alloc::vec![DeviceShare { device: 3, milli }];
        let promised = Promised {
            devices: DeviceSet(1),
            shares: share(700),
            cpu_milli: 3_000,
            memory_bytes: 2,
            scratch_bytes: 15,
        };
        let mut left = promised.clone();
        left.leave_out(&request(500), DeviceSet(1 << 3), &host());
        let expected = Promised {
            devices: DeviceSet(1),
            shares: share(200),
            cpu_milli: 2_000,
            memory_bytes: 1,
            scratch_bytes: 5,
        };
        assert_eq!(left, expected);
        left.leave_out(&request(500), DeviceSet(1 << 3), &host());
        left.leave_out(&request(500), DeviceSet(1 << 4), &host());
        let expected = Promised { devices: DeviceSet(1), ..Promised::default() };
        assert_eq!(left, expected, "no more than is promised, and no whole device");
        let mut left = promised;
        left.leave_out(&worker(true), DeviceSet::EMPTY, &host());
        assert_eq!((left.cpu_milli, left.memory_bytes), (0, 0), "it has the host to itself");
    }
}
