//! The host's health: what NVML, the kernel's log and the provider say, reported to the leader, who decides what
//! follows; and the repairs that it orders.
//!
//! **Invariant:** nothing here decides that a device may not be used; the leader does, by the replicated policy.
//! **Invariant:** calls of the driver's library are made on a separate thread and may hang: everything else goes
//! on, and a call that does not return is itself a finding.

mod collect;
mod kernel_log;
mod maintenance;
mod monitor;
mod repair;

pub use kernel_log::Xid;
pub use monitor::{Inventory, ListedDevice};

use crate::disk::state_dir::StateDir;
use crate::monitoring::NodeMonitor;
use collect::Collector;
use monitor::Monitor;
use muster_types::config_value::span_ms;
use muster_types::health::Observation;
use muster_types::{LogTime, Violation};
use muster_wire::agent;
use repair::Repairs;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::MissedTickBehavior;

/// How the host's health is watched.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HealthConfig {
    /// NVIDIA's management library: where the system keeps it, none, or this file.
    pub nvml: Source,
    /// The kernel's log, for XIDs that the library does not tell: `/dev/kmsg`, none, or this file.
    pub kernel_log: Source,
    /// A file that says when the provider will take the host away: Unix seconds, or `ONGOING`; an empty or absent
    /// one says nothing. On GKE: what the node's label `cloud.google.com/scheduled-maintenance-time` holds.
    pub maintenance_file: Option<PathBuf>,
    /// Program and arguments that repair the host once it is empty; without them a person does.
    pub repair_command: Vec<String>,
    /// From one look at the devices to the next.
    #[serde(rename = "poll_interval", with = "span_ms")]
    pub poll_interval_ms: u64,
    /// A call of the library that takes longer hangs.
    #[serde(rename = "hang", with = "span_ms")]
    pub hang_ms: u64,
    /// A device is slowed down when it was at six of ten looks within this time.
    #[serde(rename = "slowdown_window", with = "span_ms")]
    pub slowdown_window_ms: u64,
}

impl Default for HealthConfig {
    fn default() -> HealthConfig {
        HealthConfig {
            nvml: Source::Auto,
            kernel_log: Source::Auto,
            maintenance_file: None,
            repair_command: Vec::new(),
            poll_interval_ms: 5_000,
            hang_ms: 30_000,
            slowdown_window_ms: 600_000,
        }
    }
}

/// Where something is read from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Where it usually is; a host without it is not an error.
    #[default]
    Auto,
    /// Not at all.
    Off,
    /// This file.
    File(PathBuf),
}

impl HealthConfig {
    /// Nothing is watched.
    #[must_use]
    pub fn off() -> HealthConfig {
        HealthConfig { nvml: Source::Off, kernel_log: Source::Off, ..HealthConfig::default() }
    }

    /// The first key that breaks its rule, and the rule.
    #[must_use]
    pub(crate) fn violation(&self) -> Option<(&'static str, String)> {
        const HOUR_MS: u64 = 3_600_000;
        let look_ms = self.poll_interval_ms;
        let spans = [
            ("health.poll_interval", look_ms, 10, HOUR_MS),
            // Two looks.
            ("health.hang", self.hang_ms, 2 * look_ms.min(1_000), HOUR_MS),
            // One look.
            ("health.slowdown_window", self.slowdown_window_ms, look_ms, 24 * HOUR_MS),
        ];
        if let Some((key, ms, least, most)) =
            spans.into_iter().find(|(_, ms, least, most)| !(least..=most).contains(&ms))
        {
            return Some((key, Violation::span(key, ms, least, most).description));
        }
        let program = self.repair_command.first();
        if program.is_some_and(|program| !program.starts_with('/')) || self.repair_command.len() > 64 {
            let rule = "must begin with the absolute path of a program";
            return Some(("health.repair_command", rule.to_owned()));
        }
        None
    }
}

/// How the agent speaks of health on its present session.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// Of the session.
    pub(crate) number: u64,
    pub(crate) outgoing: mpsc::Sender<agent::SessionRequest>,
}

/// What the leader says of health.
#[derive(Debug)]
pub(crate) enum FromLeader {
    /// A report was taken over.
    Ack(u64),
    /// The host is empty: repair it.
    Repair(agent::RepairOrder),
}

/// Watches the host, from before its description is made.
pub struct Health {
    config: HealthConfig,
    monitor: Monitor,
    said: Arc<Notify>,
}

impl Health {
    /// Begins to watch; waits a moment for the devices to be listed.
    #[must_use]
    pub fn begin(config: &HealthConfig) -> Health {
        let said = Arc::new(Notify::new());
        let monitor = Monitor::begin(config, Arc::clone(&said));
        Health { config: config.clone(), monitor, said }
    }

    /// The devices that the library lists; none without it.
    #[must_use]
    pub fn inventory(&self) -> Option<Inventory> {
        self.monitor.inventory()
    }

    /// Reports and repairs, for ever. `others` is what other parts of the agent have found about this host.
    pub(crate) async fn run(
        self,
        state: Arc<StateDir>,
        boot_id_path: &Path,
        node: NodeMonitor,
        mut line: watch::Receiver<Option<Line>>,
        mut incoming: mpsc::Receiver<FromLeader>,
        others: impl Fn() -> Option<Observation>,
    ) {
        let boot = boot_number(boot_id_path);
        let mut collector = Collector::new(boot);
        let mut repairs = Repairs::new(self.config.repair_command.clone(), state.repair(), boot);
        let buses = self.monitor.inventory().map(|i| i.buses()).unwrap_or_else(kernel_log::buses_of_host);
        let mut kernel = kernel_log::follow(&self.config.kernel_log, buses);
        let interval = Duration::from_millis(self.config.poll_interval_ms.min(1_000));
        let mut interval = tokio::time::interval(interval);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = line.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    collector.session_changed();
                }
                message = incoming.recv() => match message {
                    Some(FromLeader::Ack(sequence)) => {
                        collector.acknowledged(sequence);
                        repairs.acknowledged(collector.told_repair());
                    }
                    Some(FromLeader::Repair(order)) => repairs.ordered(order, self.monitor.inventory()),
                    None => return,
                },
                Some(xid) = kernel.recv() => {
                    collector.saw(Instant::now(), collect::Origin::KernelLog, xid.observation());
                }
                () = self.said.notified() => {}
                () = repairs.ended() => {}
                _ = interval.tick() => {}
            }
            self.monitor.take(&mut collector);
            collector.found(others());
            node.devices_are(collector.conditions());
            collector.maintenance(self.config.maintenance_file.as_deref().and_then(maintenance::read));
            let Some(line) = line.borrow_and_update().clone() else { continue };
            if let Some(report) = collector.due(Instant::now(), repairs.outcome()) {
                let message = agent::session_request::Message::Health(report);
                let request = agent::SessionRequest { message: Some(message) };
                // A session that takes nothing ends soon, and the next one is told again.
                if line.outgoing.try_send(request).is_err() {
                    tracing::debug!(session = line.number, "a health report waits for the next session");
                    collector.session_changed();
                }
            }
        }
    }
}

/// A number that is another one after every boot: the first digits of the kernel's identity of the boot.
fn boot_number(path: &Path) -> u64 {
    let bytes = crate::disk::durable::read_bounded(path, 64).unwrap_or_default();
    let digits = bytes.iter().filter_map(|b| char::from(*b).to_digit(16)).take(16);
    digits.fold(0, |number, digit| (number << 4) | u64::from(digit))
}

/// Milliseconds since the Unix epoch, as a log time.
pub(crate) fn log_time(seconds: u64) -> LogTime {
    LogTime(seconds.saturating_mul(1_000))
}
