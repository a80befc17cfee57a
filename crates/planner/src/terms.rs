//! What policy allows a gang.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;
use muster_state::PoolKey;
use muster_types::policy::{Policy, Window, WindowPurpose};
use muster_types::{DeviceAmount, DeviceSet, JobSpec, LogTime, Name, NodeId, WorkerRequest};

use crate::valuation::Valuation;

/// What policy allows a gang; the planner does not know why.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// Log time.
    pub now: LogTime,
    /// How long it is expected to run on a type of throughput 1,000.
    pub run_ms: u64,
    /// Thousandths of devices that it may use in a pool; `u64::MAX` for no limit.
    pub room_milli: &'a dyn Fn(&PoolKey) -> u64,
    /// What of nodes is kept for others.
    pub holds: &'a Holds,
    /// Weights, prices, data sets, spare hosts and windows.
    pub policy: &'a Policy,
    /// Whether it may have fewer workers than it asks for, down to its least: then it gets as many as fit.
    pub elastic: bool,
    /// What free devices are worth, for jobs of one worker; without it they go by best fit.
    pub valuation: Option<&'a RefCell<Valuation>>,
}

impl fmt::Debug for Terms<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Terms");
        fields.field("now", &self.now).field("run_ms", &self.run_ms).field("elastic", &self.elastic);
        fields.field("holds", &self.holds).finish_non_exhaustive()
    }
}

impl Terms<'_> {
    /// When the gang is expected to end if it starts now on types of which the slowest has this throughput.
    pub(crate) fn end(&self, spec: &JobSpec, throughput_milli: u32) -> LogTime {
        self.now.plus_ms(self.run_on(spec, throughput_milli))
    }

    /// How long the gang is expected to run there.
    pub(crate) fn run_on(&self, spec: &JobSpec, throughput_milli: u32) -> u64 {
        let run_ms = u128::from(self.run_ms) * 1_000 / u128::from(throughput_milli.max(1));
        let run_ms = u64::try_from(run_ms).unwrap_or(u64::MAX);
        run_ms.min(spec.run_time_limit_ms.unwrap_or(u64::MAX))
    }
}

/// What of a node is kept for others from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// A gang that is expected to end by then is free to use the node.
    pub from: LogTime,
    /// Devices that one which ends later may still have; a device of which it has a share counts whole.
    pub spare_devices: u16,
    /// Milli-CPUs that it may have.
    pub spare_cpu_milli: u64,
    /// Bytes that it may have.
    pub spare_memory_bytes: u64,
}

/// What of the fleet is kept for others. A clone costs nothing.
#[derive(Clone, Debug, Default)]
pub struct Holds {
    by_node: Arc<BTreeMap<NodeId, Vec<Hold>>>,
    open: Arc<BTreeSet<Name>>,
    /// Nodes of which nothing is had at all.
    gone_round: Arc<BTreeSet<NodeId>>,
    /// Whether windows are not looked at: for asking what difference they make.
    ignores_windows: bool,
}

impl Holds {
    /// Nothing is kept.
    #[must_use]
    pub fn new() -> Holds {
        Holds::default()
    }

    /// Keeps something of a node. Where several holds concern a gang, the least of each amount counts.
    pub fn add(&mut self, node: NodeId, hold: Hold) {
        Arc::make_mut(&mut self.by_node).entry(node).or_default().push(hold);
    }

    /// What is kept of a node.
    #[must_use]
    pub fn get(&self, node: NodeId) -> &[Hold] {
        self.by_node.get(&node).map_or(&[], Vec::as_slice)
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_node.is_empty()
    }

    /// Nodes of which something is kept, by id.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &[Hold])> {
        self.by_node.iter().map(|(node, holds)| (*node, holds.as_slice()))
    }

    /// The same for a gang that may use these reservation windows of the policy. To every other gang a
    /// reservation window is closed like one for maintenance.
    #[must_use]
    pub fn with_open_windows(&self, windows: impl IntoIterator<Item = Name>) -> Holds {
        Holds { open: Arc::new(windows.into_iter().collect()), ..self.clone() }
    }

    /// The same for a gang that is to go round these nodes, in place of those it went round before.
    #[must_use]
    pub fn round(&self, nodes: Arc<BTreeSet<NodeId>>) -> Holds {
        Holds { gone_round: nodes, ..self.clone() }
    }

    /// The same with nothing kept of nodes.
    pub(crate) fn without_nodes(&self) -> Holds {
        Holds { by_node: Arc::default(), gone_round: Arc::default(), ..self.clone() }
    }

    /// The same with all windows open.
    pub(crate) fn without_windows(&self) -> Holds {
        Holds { ignores_windows: true, ..self.clone() }
    }

    /// Whether nothing of the gang may run in a window while it lasts.
    pub(crate) fn is_closed(&self, window: &Window) -> bool {
        if self.ignores_windows {
            return false;
        }
        match window.purpose {
            WindowPurpose::Maintenance => true,
            WindowPurpose::ReservedFor { .. } => !self.open.contains(&window.name),
        }
    }

    /// What a gang that ends at this time may have of a node; none when nothing is kept from it.
    pub(crate) fn spare(&self, node: NodeId, end: LogTime) -> Option<Spare> {
        if self.gone_round.contains(&node) {
            return Some(Spare::NOTHING);
        }
        if self.by_node.is_empty() {
            return None;
        }
        let concerning = self.get(node).iter().filter(|hold| hold.from < end);
        concerning.fold(None, |least: Option<Spare>, hold| {
            let least = least.unwrap_or(Spare::ALL);
            Some(Spare {
                devices: least.devices.min(hold.spare_devices),
                cpu_milli: least.cpu_milli.min(hold.spare_cpu_milli),
                memory_bytes: least.memory_bytes.min(hold.spare_memory_bytes),
            })
        })
    }
}

/// What a gang may have of a node that is kept for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spare {
    pub(crate) devices: u16,
    pub(crate) cpu_milli: u64,
    pub(crate) memory_bytes: u64,
}

impl Spare {
    const ALL: Spare = Spare { devices: u16::MAX, cpu_milli: u64::MAX, memory_bytes: u64::MAX };
    const NOTHING: Spare = Spare { devices: 0, cpu_milli: 0, memory_bytes: 0 };

    /// How many such workers it holds at most. Shares of devices that the gang has already are not
    /// counted here but by [`Spare::take`].
    pub(crate) fn workers(&self, request: &WorkerRequest, touched: DeviceSet) -> u32 {
        let by_device = match request.accelerators.as_ref().map(|a| a.amount) {
            None => u64::MAX,
            Some(DeviceAmount::Whole(count)) => u64::from(self.devices / count.max(1)),
            Some(DeviceAmount::Share(milli)) => {
                let devices = u64::from(self.devices) + u64::from(touched.count());
                devices * u64::from(1_000 / milli.max(1))
            }
        };
        let by_cpu = self.cpu_milli / request.cpu_milli.max(1);
        let by_memory = self.memory_bytes / request.memory_bytes.max(1);
        u32::try_from(by_device.min(by_cpu).min(by_memory)).unwrap_or(u32::MAX)
    }

    /// Takes what a worker holds; false when there is not as much. `touched` are devices of which the
    /// gang has shares already: they are counted.
    pub(crate) fn take(&mut self, request: &WorkerRequest, devices: DeviceSet, touched: DeviceSet) -> bool {
        let more = devices.difference(touched).count();
        let enough = self.devices >= more
            && self.cpu_milli >= request.cpu_milli
            && self.memory_bytes >= request.memory_bytes;
        if enough {
            self.devices -= more;
            self.cpu_milli -= request.cpu_milli;
            self.memory_bytes -= request.memory_bytes;
        }
        enough
    }
}
