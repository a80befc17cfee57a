//! The thread that asks NVML: devices, events, states.

use super::collect::{Collector, Origin};
use super::kernel_log::{Bus, bus_of};
use super::{HealthConfig, Source};
use muster_nvml::{Device, LoadError, Nvml, Watch};
use muster_types::health::{Finding, Observation, RecoveryAction};
use muster_types::{DeviceSet, Name, limits};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// What the first list of devices may take before the agent goes on without it.
const LIST_MAX: Duration = Duration::from_secs(10);
/// Events that wait to be looked at; a storm says the same again and again.
const EVENTS_WAITING_MAX: usize = 1_024;
/// The longest wait for an event: the thread reports that it is alive this often.
const WAIT_MAX_MS: u64 = 1_000;
/// Reasons of slower clocks that are a fault: hardware slowdown, its heat, its power.
const SLOWED: u64 = 8 | 64 | 128;
/// Of a hundred looks, how many have to see a slowdown.
const SLOWED_PERCENT: usize = 60;
/// Looks in a row that see a fabric in trouble, so that one that is being set up is none.
const FABRIC_LOOKS: u32 = 3;

/// One device as the library lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedDevice {
    /// `GPU-…`.
    pub uuid: String,
    /// Its model.
    pub model: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// Where it is on the PCI bus.
    pub bus: Option<Bus>,
    /// Its NVLink domain and the clique there: `<cluster>.<clique>`.
    pub clique: Option<String>,
    /// Whether it is divided into instances.
    pub divided: bool,
}

/// What the library lists, in the order of the PCI bus; none for a device that was lost before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// The driver's version.
    pub driver: String,
    /// By local number.
    pub devices: Vec<Option<ListedDevice>>,
}

impl Inventory {
    /// Local numbers by their place on the bus.
    #[must_use]
    pub fn buses(&self) -> BTreeMap<Bus, u16> {
        let listed = self.devices.iter().zip(0..);
        listed.filter_map(|(device, index)| Some((device.as_ref()?.bus?, index))).collect()
    }

    /// The identities of devices by their local numbers, those that are known.
    #[must_use]
    pub fn uuids(&self, numbers: &[u32]) -> Vec<String> {
        let listed = numbers.iter().filter_map(|number| self.devices.get(*number as usize)?.as_ref());
        listed.map(|device| device.uuid.clone()).collect()
    }

    /// Local numbers of the devices that are divided into instances (MIG).
    #[must_use]
    pub fn divided(&self) -> Vec<usize> {
        let listed = self.devices.iter().enumerate();
        listed
            .filter(|(_, device)| device.as_ref().is_some_and(|device| device.divided))
            .map(|(n, _)| n)
            .collect()
    }

    /// Facts that jobs may select nodes by.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<Name, String> {
        let mut labels = BTreeMap::new();
        let mut put = |name: &'static str, value: String| {
            if !value.is_empty() && value.len() <= limits::LABEL_BYTES_MAX {
                labels.insert(Name::literal(name), value);
            }
        };
        put("gpu.driver", self.driver.clone());
        let known: Vec<&ListedDevice> = self.devices.iter().flatten().collect();
        // Only what all of them have in common is a fact of the node.
        let common = |of: fn(&ListedDevice) -> String| {
            let mut values = known.iter().map(|device| of(device));
            let first = values.next().unwrap_or_default();
            if values.all(|other| other == first) { first } else { String::new() }
        };
        put("gpu.model", common(|device| device.model.clone()));
        put("gpu.memory-gib", common(|device| (device.memory_bytes >> 30).to_string()));
        put("gpu.clique", common(|device| device.clique.clone().unwrap_or_default()));
        if known.iter().any(|device| device.divided) {
            put("gpu.mig", "on".to_owned());
        }
        labels
    }
}

/// What the thread has seen.
#[derive(Default)]
struct MonitorState {
    inventory: Option<Inventory>,
    findings: Vec<Observation>,
    events: VecDeque<Observation>,
    dropped: u64,
    reset: DeviceSet,
    /// When it last came back from the library; none when it does not ask any more.
    alive: Option<Instant>,
}

/// The thread, from outside.
pub(crate) struct Monitor {
    seen: Arc<Mutex<MonitorState>>,
    hang: Duration,
}

impl Monitor {
    /// Starts the thread, and waits a moment for its list of devices.
    pub(crate) fn begin(config: &HealthConfig, said: Arc<Notify>) -> Monitor {
        let seen = Arc::new(Mutex::new(MonitorState::default()));
        let monitor = Monitor { seen: Arc::clone(&seen), hang: Duration::from_millis(config.hang_ms) };
        let path = match &config.nvml {
            Source::Off => return monitor,
            Source::Auto => None,
            Source::File(path) => Some(path.clone()),
        };
        let (listed, list) = std_mpsc::channel();
        let poll = Duration::from_millis(config.poll_interval_ms);
        let window = (config.slowdown_window_ms / config.poll_interval_ms.max(1)).clamp(1, 100_000) as usize;
        lock(&seen).alive = Some(Instant::now());
        let thread = std::thread::Builder::new().name("nvml".to_owned()).spawn(move || {
            if let Some(mut asking) = Poller::begin(path.as_deref(), &seen, (poll, window)) {
                // Nobody waits any more when the list took too long.
                let _ = listed.send(());
                asking.run(&said);
            }
            lock(&seen).alive = None;
        });
        if let Err(error) = thread {
            tracing::warn!(%error, "the health of GPUs is not watched");
            lock(&monitor.seen).alive = None;
            return monitor;
        }
        if let Err(std_mpsc::RecvTimeoutError::Timeout) = list.recv_timeout(LIST_MAX.min(monitor.hang)) {
            tracing::error!("NVML does not list the devices; the agent goes on without knowing them");
        }
        monitor
    }

    /// The devices, once they were listed.
    pub(crate) fn inventory(&self) -> Option<Inventory> {
        lock(&self.seen).inventory.clone()
    }

    /// Passes on what was seen; a thread that does not come back is seen as well.
    pub(crate) fn take(&self, collector: &mut Collector) {
        let mut seen = lock(&self.seen);
        let mut findings = seen.findings.clone();
        if let Some(since) = seen.alive.map(|at| at.elapsed()).filter(|since| *since > self.hang) {
            let mut hung = Observation::of(Finding::MonitorHung, None);
            hung.detail = format!("a call of NVML has not returned for {} s", since.as_secs());
            findings.push(hung);
        }
        let (events, reset) = (std::mem::take(&mut seen.events), std::mem::take(&mut seen.reset));
        drop(seen);
        collector.findings(findings);
        collector.was_reset(reset);
        for event in events {
            collector.saw(Instant::now(), Origin::Library, event);
        }
    }
}

fn lock(seen: &Mutex<MonitorState>) -> parking_lot::MutexGuard<'_, MonitorState> {
    // A panic under the lock leaves whole values.
    seen.lock()
}

/// One device and what was seen of it.
struct Watched {
    device: Option<Device>,
    group: DeviceSet,
    recovery: RecoveryAction,
    /// Of the last looks, which saw it slowed down.
    slowed: VecDeque<bool>,
    fabric_looks: u32,
}

/// The thread, from inside.
struct Poller {
    nvml: Nvml,
    watch: Option<Watch>,
    devices: Vec<Watched>,
    seen: Arc<Mutex<MonitorState>>,
    poll: Duration,
    window: usize,
}

impl Poller {
    fn begin(
        path: Option<&Path>,
        seen: &Arc<Mutex<MonitorState>>,
        (poll, window): (Duration, usize),
    ) -> Option<Poller> {
        let nvml = match Nvml::open(path) {
            Ok(nvml) => nvml,
            Err(LoadError::Absent(why)) if path.is_none() => {
                tracing::info!(
                    why,
                    "no NVML on this host: it has no NVIDIA devices, or their health is not watched"
                );
                return None;
            }
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, source, "NVML cannot be used: the health of GPUs is not watched");
                return None;
            }
        };
        let count = nvml.device_count().unwrap_or_else(|error| {
            tracing::warn!(%error, "NVML does not count the devices");
            0
        });
        let count = count.min(limits::HOST_DEVICES_MAX.into());
        let handles: Vec<(u32, Device)> =
            (0..count).filter_map(|index| Some((index, nvml.device(index).ok()?))).collect();
        let watch = nvml.watch(&handles).unwrap_or_else(|error| {
            tracing::warn!(%error, "NVML tells no events; XIDs come from the kernel's log alone");
            None
        });
        let devices = (0..count).map(|index| watched(index, &handles)).collect();
        let mut asking = Poller { nvml, watch, devices, seen: Arc::clone(seen), poll, window };
        let inventory = asking.list();
        tracing::info!(
            driver = inventory.driver,
            devices = inventory.devices.len(),
            watched = asking.watch.is_some(),
            "the health of GPUs is watched"
        );
        lock(&asking.seen).inventory = Some(inventory);
        asking.look();
        Some(asking)
    }

    fn list(&self) -> Inventory {
        let driver = self.nvml.driver_version().unwrap_or_default();
        let device = |watched: &Watched| {
            let device = watched.device.as_ref()?;
            let clique = device.fabric().ok().flatten().filter(|fabric| fabric.state == 3);
            let clique = clique.map(|fabric| {
                let digits: String = fabric.cluster.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("{digits}.{}", fabric.clique)
            });
            Some(ListedDevice {
                uuid: device.uuid().ok()?,
                model: device.name().unwrap_or_default(),
                memory_bytes: device.memory_bytes().unwrap_or_default(),
                bus: device.pci_bus().ok().as_deref().and_then(bus_of),
                clique,
                divided: device.is_divided().unwrap_or_default(),
            })
        };
        Inventory { driver, devices: self.devices.iter().map(device).collect() }
    }

    /// Waits for events and looks at the devices now and then, for as long as somebody holds what it sees.
    fn run(&mut self, said: &Notify) {
        let mut looked = Instant::now();
        while Arc::strong_count(&self.seen) > 1 {
            let left = self.poll.saturating_sub(looked.elapsed());
            let wait_ms = (left.as_millis() as u64).clamp(1, WAIT_MAX_MS);
            match self.watch.as_ref().map(|watch| watch.next(wait_ms as u32)) {
                None => std::thread::sleep(Duration::from_millis(wait_ms)),
                Some(Ok(None)) => {}
                Some(Ok(Some(event))) => {
                    self.happened(event.device, event.xid);
                    said.notify_one();
                }
                Some(Err(error)) => {
                    // A device that is lost can make every wait fail: the state is looked at all the same.
                    tracing::debug!(%error, "NVML tells no event");
                    std::thread::sleep(Duration::from_millis(wait_ms));
                }
            }
            if looked.elapsed() >= self.poll {
                looked = Instant::now();
                if self.look() {
                    said.notify_one();
                }
            }
            lock(&self.seen).alive = Some(Instant::now());
        }
    }

    fn happened(&self, device: Option<u32>, xid: u64) {
        let index = device.and_then(|index| u16::try_from(index).ok());
        let code = u16::try_from(xid).unwrap_or(u16::MAX);
        let mut event = Observation::of(Finding::Xid(code), index);
        if let Some(watched) = index.and_then(|index| self.devices.get(usize::from(index))) {
            event.group = watched.group;
            let asked = watched.device.as_ref().and_then(|device| device.recovery_action().ok());
            event.recovery = asked.and_then(RecoveryAction::of_number);
        }
        tracing::warn!(xid, device, recovery = ?event.recovery, "the driver reports an XID");
        let mut seen = lock(&self.seen);
        if seen.events.len() < EVENTS_WAITING_MAX {
            seen.events.push_back(event);
        } else {
            seen.dropped += 1;
            if seen.dropped.is_power_of_two() {
                tracing::warn!(dropped = seen.dropped, "XIDs come faster than they are looked at");
            }
        }
    }

    /// Looks at every device; whether something is otherwise than before.
    fn look(&mut self) -> bool {
        let mut findings = Vec::new();
        let mut reset = DeviceSet::EMPTY;
        for index in 0..self.devices.len() {
            let before = self.devices[index].recovery;
            if self.devices[index].device.is_none() {
                self.devices[index].device = self.nvml.device(index as u32).ok();
            }
            let watched = &mut self.devices[index];
            let (found, asked) = look_at(watched, self.window);
            watched.recovery = asked;
            if before != RecoveryAction::None && asked == RecoveryAction::None && is_answering(&found) {
                reset = reset.union(DeviceSet(1 << index));
            }
            findings.extend(found.into_iter().map(|(finding, detail)| Observation {
                group: watched.group,
                detail,
                ..Observation::of(finding, Some(index as u16))
            }));
        }
        let mut seen = lock(&self.seen);
        let is_news = seen.findings != findings || !reset.is_empty();
        seen.findings = findings;
        seen.reset = seen.reset.union(reset);
        is_news
    }
}

fn is_answering(found: &[(Finding, String)]) -> bool {
    !found.iter().any(|(finding, _)| *finding == Finding::DeviceLost)
}

fn watched(index: u32, handles: &[(u32, Device)]) -> Watched {
    let device = handles.iter().find(|(known, _)| *known == index).map(|(_, device)| device.clone());
    let group = device.as_ref().map_or(DeviceSet::EMPTY, |device| {
        let linked =
            handles.iter().filter(|(other, peer)| *other != index && device.is_linked(peer).unwrap_or(false));
        let linked = linked.fold(0u64, |set, (other, _)| set | 1 << other);
        if linked == 0 { DeviceSet::EMPTY } else { DeviceSet(linked | 1 << index) }
    });
    Watched { device, group, recovery: RecoveryAction::None, slowed: VecDeque::new(), fabric_looks: 0 }
}

/// What is wrong with a device now, and what the driver asks for.
fn look_at(watched: &mut Watched, window: usize) -> (Vec<(Finding, String)>, RecoveryAction) {
    let lost = |why: &str| (vec![(Finding::DeviceLost, why.to_owned())], RecoveryAction::None);
    let Some(device) = watched.device.clone() else { return lost("it has no handle") };
    // The identity is what every device can say.
    match device.uuid() {
        Err(error) if error.needs_reset() => {
            let asked = RecoveryAction::GpuReset;
            return (vec![(Finding::Recovery(asked), error.to_string())], asked);
        }
        Err(error) => {
            if error.is_lost() {
                // An earlier handle may be of nothing: it is asked for again.
                watched.device = None;
            }
            return lost(&error.to_string());
        }
        Ok(_) => {}
    }
    let mut found = Vec::new();
    let asked = device.recovery_action().ok().and_then(RecoveryAction::of_number);
    let asked = asked.unwrap_or(RecoveryAction::None);
    if asked != RecoveryAction::None {
        found.push((Finding::Recovery(asked), String::new()));
    }
    if let Some(count) = device.ecc_uncorrected().ok().filter(|count| *count > 0) {
        found.push((Finding::EccUncorrectable, format!("{count} since the driver was loaded")));
    }
    let rows = device.remapped_rows().unwrap_or_default();
    if rows.pending {
        found.push((Finding::RowRemapPending, String::new()));
    }
    if rows.failed {
        found.push((Finding::RowRemapFailed, String::new()));
    }
    let reasons = device.clock_reasons().unwrap_or(0);
    if is_slowed(&mut watched.slowed, reasons & SLOWED != 0, window) {
        let heat = device.temperature_c().map(|degrees| format!(", {degrees} C")).unwrap_or_default();
        found.push((Finding::Slowdown, format!("clock reasons {reasons:#x}{heat}")));
    }
    let trouble = device.fabric().ok().flatten().and_then(|fabric| fabric.trouble());
    watched.fabric_looks = if trouble.is_some() { watched.fabric_looks.saturating_add(1) } else { 0 };
    if let Some(trouble) = trouble.filter(|_| watched.fabric_looks >= FABRIC_LOOKS) {
        found.push((Finding::Fabric, trouble.to_owned()));
    }
    (found, asked)
}

/// Whether a device was slowed down at most of the looks of a whole window.
fn is_slowed(looks: &mut VecDeque<bool>, now: bool, window: usize) -> bool {
    looks.push_back(now);
    while looks.len() > window {
        looks.pop_front();
    }
    let slowed = looks.iter().filter(|slowed| **slowed).count();
    looks.len() == window && slowed * 100 >= window * SLOWED_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_of_heat_is_no_slowdown() {
        let mut looks = VecDeque::new();
        let mut say = |slow: bool| is_slowed(&mut looks, slow, 10);
        assert!(!(0..9).any(|_| say(true)), "not before a whole window");
        assert!(say(true));
        let cooling: Vec<bool> = (0..6).map(|_| say(false)).collect();
        assert_eq!(cooling, [true, true, true, true, false, false]);
    }

    #[test]
    fn labels_are_what_all_devices_have_in_common() {
        let device = |model: &str, clique: Option<&str>| {
            Some(ListedDevice {
                uuid: "GPU-1".into(),
                model: model.into(),
                memory_bytes: 80 << 30,
                bus: Some((0, 1, 0)),
                clique: clique.map(str::to_owned),
                divided: false,
            })
        };
        let devices = vec![device("NVIDIA H100", Some("fa.7")), None, device("NVIDIA H100", Some("fa.8"))];
        let inventory = Inventory { driver: "570.1".into(), devices };
        let labels: Vec<(String, String)> =
            inventory.labels().into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        let expected = [("gpu.driver", "570.1"), ("gpu.memory-gib", "80"), ("gpu.model", "NVIDIA H100")];
        assert_eq!(labels, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
