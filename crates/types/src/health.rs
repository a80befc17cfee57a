//! The health of a host and of its devices: what an agent observes, what the cluster's policy makes of it,
//! and what follows for the node.
//!
//! Agents only observe. What an observation means is a replicated, versioned table ([`HealthPolicy`]), because
//! vendors disagree and change their minds: the record that draws a conclusion names the version it was drawn
//! by. The defaults are those of NVIDIA's XID catalogue of October 2025 and of NVML's recovery actions.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

use crate::fleet::DeviceSet;
use crate::ids::ParseIdError;
use crate::limits;
use crate::reason::Violation;
use crate::time::LogTime;

/// What the driver asks for so that a device works again: NVML's field 230.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RecoveryAction {
    /// Nothing.
    None,
    /// A reset of the device.
    GpuReset,
    /// A reboot of the host.
    NodeReboot,
    /// That nobody uses its links to other devices.
    DrainP2p,
    /// That nobody uses it or its links, and a reset then.
    DrainAndReset,
    /// That its NVLink domain's memory service is restarted.
    ImexDomain,
}

impl RecoveryAction {
    /// Every one, by its number in NVML.
    pub const ALL: [RecoveryAction; 6] = [
        RecoveryAction::None,
        RecoveryAction::GpuReset,
        RecoveryAction::NodeReboot,
        RecoveryAction::DrainP2p,
        RecoveryAction::DrainAndReset,
        RecoveryAction::ImexDomain,
    ];

    /// By its number in NVML; none for a number that is not known.
    #[must_use]
    pub fn of_number(number: u32) -> Option<RecoveryAction> {
        RecoveryAction::ALL.get(number as usize).copied()
    }

    /// Its number in NVML.
    #[must_use]
    pub fn number(self) -> u32 {
        self as u32
    }

    /// Stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RecoveryAction::None => "none",
            RecoveryAction::GpuReset => "gpu-reset",
            RecoveryAction::NodeReboot => "node-reboot",
            RecoveryAction::DrainP2p => "drain-p2p",
            RecoveryAction::DrainAndReset => "drain-and-reset",
            RecoveryAction::ImexDomain => "imex-domain",
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Finding {
    /// The driver reported an XID: something that happened, which lasts until somebody has acted on it.
    Xid(u16),
    /// The driver asks for a recovery. [`RecoveryAction::None`] is no finding.
    Recovery(RecoveryAction),
    /// Memory errors that could not be corrected since the driver was loaded.
    EccUncorrectable,
    /// A row of its memory is to be remapped at the next reset.
    RowRemapPending,
    /// A row of its memory could not be remapped.
    RowRemapFailed,
    /// The hardware slows it down, for its heat or for its power, for longer than a moment.
    Slowdown,
    /// It is not, or not wholly, part of its NVLink fabric.
    Fabric,
    /// It does not answer, or is not there any more.
    DeviceLost,
    /// The driver's library does not return: nothing is known of the host's devices any more.
    MonitorHung,
    /// Its links to other hosts are much slower than theirs. Never reported by an agent about its own host,
    /// but by a check of several.
    Network,
    /// The prolog or the epilog that its operator has run around workers fails again and again.
    HostCommand,
}

impl Finding {
    /// Every one but the XIDs, which are told apart by their codes, and the recovery actions.
    pub const KINDS: [Finding; 9] = [
        Finding::EccUncorrectable,
        Finding::RowRemapPending,
        Finding::RowRemapFailed,
        Finding::Slowdown,
        Finding::Fabric,
        Finding::DeviceLost,
        Finding::MonitorHung,
        Finding::Network,
        Finding::HostCommand,
    ];
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Xid(code) => write!(f, "xid-{code}"),
            Finding::Recovery(action) => write!(f, "recovery-{}", action.name()),
            Finding::EccUncorrectable => f.write_str("ecc-uncorrectable"),
            Finding::RowRemapPending => f.write_str("row-remap-pending"),
            Finding::RowRemapFailed => f.write_str("row-remap-failed"),
            Finding::Slowdown => f.write_str("slowdown"),
            Finding::Fabric => f.write_str("fabric"),
            Finding::DeviceLost => f.write_str("device-lost"),
            Finding::MonitorHung => f.write_str("monitor-hung"),
            Finding::Network => f.write_str("network"),
            Finding::HostCommand => f.write_str("host-command"),
        }
    }
}

impl FromStr for Finding {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Finding, ParseIdError> {
        let unknown =
            ParseIdError { expected: "a finding: xid-79, recovery-gpu-reset, ecc-uncorrectable, …" };
        if let Some(code) = text.strip_prefix("xid-") {
            // One text per finding: no sign and no leading zeros.
            let plain = code.bytes().all(|b| b.is_ascii_digit()) && (code == "0" || !code.starts_with('0'));
            return code.parse().ok().filter(|_| plain).map(Finding::Xid).ok_or(unknown);
        }
        if let Some(name) = text.strip_prefix("recovery-") {
            let action = RecoveryAction::ALL.into_iter().find(|action| action.name() == name);
            return action.map(Finding::Recovery).ok_or(unknown);
        }
        Finding::KINDS.into_iter().find(|kind| format!("{kind}") == text).ok_or(unknown)
    }
}

/// What follows from a finding. The later ones are the graver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HealthAction {
    /// It is recorded, and nothing else.
    Ignore,
    /// The attempt that ran on the device has failed; the device is as good as before.
    RestartApp,
    /// Nothing new is placed on the device, or on the host when it is about the host; what runs goes on.
    Cordon,
    /// What runs on the device is stopped, and nothing is placed on it until it was reset.
    ResetGpu,
    /// What runs on the host is stopped, and nothing is placed on it until it was rebooted.
    RebootNode,
    /// What runs on the device or host is stopped, and nothing is placed on it until somebody has looked.
    Inspect,
}

impl HealthAction {
    /// Every one, gravest last.
    pub const ALL: [HealthAction; 6] = [
        HealthAction::Ignore,
        HealthAction::RestartApp,
        HealthAction::Cordon,
        HealthAction::ResetGpu,
        HealthAction::RebootNode,
        HealthAction::Inspect,
    ];

    /// Stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            HealthAction::Ignore => "ignore",
            HealthAction::RestartApp => "restart-app",
            HealthAction::Cordon => "cordon",
            HealthAction::ResetGpu => "reset-gpu",
            HealthAction::RebootNode => "reboot-node",
            HealthAction::Inspect => "inspect",
        }
    }

    /// By its stable name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<HealthAction> {
        HealthAction::ALL.into_iter().find(|action| action.name() == name)
    }

    /// Whether what runs there has to stop.
    #[must_use]
    pub fn stops_work(self) -> bool {
        self >= HealthAction::ResetGpu
    }

    /// Whether it lasts: the node is not as it was until somebody has acted.
    #[must_use]
    pub fn lasts(self) -> bool {
        self >= HealthAction::Cordon
    }
}

impl fmt::Display for HealthAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What an agent has seen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Observation {
    /// What.
    pub finding: Finding,
    /// On which device, by local number; none when it is about the host.
    pub device: Option<u16>,
    /// Devices of the host that share NVLink with it, itself among them; empty when not known.
    pub group: DeviceSet,
    /// What the driver asked for right behind it; none when the driver cannot say.
    pub recovery: Option<RecoveryAction>,
    /// How many times since the report before, at least one.
    pub count: u32,
    /// One sentence, bounded.
    pub detail: String,
}

impl Observation {
    /// A finding without more.
    #[must_use]
    pub fn of(finding: Finding, device: Option<u16>) -> Observation {
        Observation {
            finding,
            device,
            group: DeviceSet::EMPTY,
            recovery: None,
            count: 1,
            detail: String::new(),
        }
    }

    /// Whether it and another are about the same.
    #[must_use]
    pub fn is_like(&self, other: &Observation) -> bool {
        (self.finding, self.device) == (other.finding, other.device)
    }
}

/// What an agent says of its host's health: all that is wrong now, and what happened since its last report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthReport {
    /// Which boot of the host this is; another number after every boot.
    pub boot: u64,
    /// What is wrong now.
    pub findings: Vec<Observation>,
    /// XIDs since the last report.
    pub events: Vec<Observation>,
    /// Devices that were reset since the last report, so that what was wrong with them is over.
    pub reset: DeviceSet,
    /// When the provider will take the host away, by the time of day; none when it has not announced that.
    pub maintenance_at: Option<LogTime>,
    /// How the repair that was ordered has ended; none when none has.
    pub repair: Option<RepairEnd>,
}

/// How a repair has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RepairEnd {
    /// The host says that it is done.
    Done,
    /// It failed, with a sentence.
    Failed(String),
}

impl HealthReport {
    /// Every rule that a report of a host with this many devices breaks.
    #[must_use]
    pub fn violations(&self, devices: u16) -> Vec<Violation> {
        let mut found = Vec::new();
        let lists = [
            ("findings", &self.findings, limits::HEALTH_CONDITIONS_MAX),
            ("events", &self.events, limits::HEALTH_EVENTS_MAX),
        ];
        for (name, list, max) in lists {
            if list.len() > max {
                found.push(Violation::limit(name, list.len() as u64, 0, max as u64));
                continue;
            }
            for (place, observation) in list.iter().enumerate() {
                let of_kind = matches!(observation.finding, Finding::Xid(_)) == (name == "events");
                if observation.finding == Finding::Network {
                    let text = "is found by measuring several hosts, and not said by one of them";
                    found.push(Violation::new(format!("{name}[{place}].finding"), text));
                }
                if !of_kind {
                    let text = "an XID is an event, and everything else a finding";
                    found.push(Violation::new(format!("{name}[{place}].finding"), text));
                }
                found.extend(observation.violation(devices).map(|v| v.under(&format!("{name}[{place}]"))));
            }
        }
        if let Some(RepairEnd::Failed(detail)) = &self.repair
            && detail.len() > limits::DETAIL_BYTES_MAX
        {
            let max = limits::DETAIL_BYTES_MAX;
            found.push(Violation::new("repair", format!("must be at most {max} bytes")));
        }
        found
    }
}

impl Observation {
    fn violation(&self, devices: u16) -> Option<Violation> {
        let of_host = DeviceSet::first(devices.min(limits::HOST_DEVICES_MAX));
        if let Some(device) = self.device.filter(|device| *device >= devices) {
            let text = format!("must be one of the host's {devices} devices, got {device}");
            return Some(Violation::new("device", text));
        }
        if !of_host.contains(self.group) {
            return Some(Violation::new("group", "must be devices of the host"));
        }
        if self.detail.len() > limits::HEALTH_DETAIL_BYTES_MAX {
            let max = limits::HEALTH_DETAIL_BYTES_MAX;
            return Some(Violation::new("detail", format!("must be at most {max} bytes")));
        }
        None
    }
}

/// What policy says of an XID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum XidRule {
    /// This.
    Act(HealthAction),
    /// What the driver's recovery action asks for; where the driver cannot say, or asks for nothing, it is
    /// recorded alone.
    AsDriverSays,
}

impl XidRule {
    /// Stable name: of the action, or `as-driver-says`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            XidRule::Act(action) => action.name(),
            XidRule::AsDriverSays => "as-driver-says",
        }
    }

    /// By its stable name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<XidRule> {
        if name == XidRule::AsDriverSays.name() {
            return Some(XidRule::AsDriverSays);
        }
        HealthAction::of_name(name).map(XidRule::Act)
    }
}

/// What is made of findings. Replicated; its version is the record that set it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthPolicy {
    /// By XID.
    pub xids: BTreeMap<u16, XidRule>,
    /// For XIDs that have no separate line.
    pub xid_unlisted: XidRule,
    /// Whether the driver's recovery action, where it can say one, goes before a line that asks for a reset or a
    /// reboot.
    pub trust_driver: bool,
    /// Of everything else; what is not there is ignored.
    pub findings: BTreeMap<Finding, HealthAction>,
    /// Reboots after which the same finding asks for a person.
    pub reboots_max: u16,
    /// Whether nothing new is placed on a device's whole NVLink group while it waits for its reset.
    pub reset_takes_group: bool,
    /// How long before maintenance begins a node is drained.
    pub maintenance_lead_ms: u64,
}

impl Default for HealthPolicy {
    fn default() -> HealthPolicy {
        let mut xids = BTreeMap::new();
        for (action, ranges) in XID_DEFAULTS {
            for (first, last) in *ranges {
                xids.extend((*first..=*last).map(|code| (code, *action)));
            }
        }
        let recovery = |action, then| (Finding::Recovery(action), then);
        let findings = BTreeMap::from([
            recovery(RecoveryAction::GpuReset, HealthAction::ResetGpu),
            recovery(RecoveryAction::NodeReboot, HealthAction::RebootNode),
            recovery(RecoveryAction::DrainP2p, HealthAction::Cordon),
            recovery(RecoveryAction::DrainAndReset, HealthAction::ResetGpu),
            recovery(RecoveryAction::ImexDomain, HealthAction::Cordon),
            (Finding::EccUncorrectable, HealthAction::Ignore),
            (Finding::RowRemapPending, HealthAction::Cordon),
            (Finding::RowRemapFailed, HealthAction::Inspect),
            (Finding::Slowdown, HealthAction::Cordon),
            (Finding::Fabric, HealthAction::Cordon),
            (Finding::DeviceLost, HealthAction::RebootNode),
            (Finding::MonitorHung, HealthAction::Cordon),
            (Finding::Network, HealthAction::Cordon),
            (Finding::HostCommand, HealthAction::Cordon),
        ]);
        HealthPolicy {
            xids,
            xid_unlisted: XidRule::AsDriverSays,
            trust_driver: true,
            findings,
            reboots_max: 2,
            reset_takes_group: true,
            maintenance_lead_ms: 600_000,
        }
    }
}

/// The immediate action of NVIDIA's XID catalogue (2025-10-29). XIDs whose resolution is a workflow that looks
/// at companion events go by the driver's recovery action, but for the double-bit memory error 48, after
/// which the device needs a reset; 163 to 173 have no line in the catalogue, and the reboot is what a widely
/// used health daemon does.
const XID_DEFAULTS: &[(XidRule, &[(u16, u16)])] = &[
    (
        XidRule::Act(HealthAction::RestartApp),
        &[
            (8, 8),
            (11, 11),
            (13, 13),
            (25, 25),
            (31, 32),
            (39, 41),
            (60, 60),
            (68, 72),
            (75, 77),
            (80, 80),
            (82, 86),
            (88, 89),
            (94, 94),
            (96, 105),
            (126, 135),
            (139, 139),
        ],
    ),
    (
        XidRule::Act(HealthAction::Ignore),
        &[
            (14, 14),
            (37, 38),
            (43, 45),
            (63, 63),
            (66, 67),
            (92, 93),
            (106, 108),
            (121, 121),
            (137, 137),
            (141, 141),
            (152, 153),
            (157, 157),
            (160, 161),
        ],
    ),
    (
        XidRule::Act(HealthAction::ResetGpu),
        &[
            (46, 46),
            (48, 48),
            (62, 62),
            (64, 64),
            (95, 95),
            (109, 110),
            (119, 120),
            (136, 136),
            (140, 140),
            (143, 143),
            (155, 156),
            (158, 158),
        ],
    ),
    (
        XidRule::Act(HealthAction::RebootNode),
        &[(79, 79), (151, 151), (163, 163), (166, 167), (169, 169), (172, 173)],
    ),
    (XidRule::AsDriverSays, &[(74, 74), (144, 150), (154, 154)]),
    (XidRule::Act(HealthAction::Inspect), &[(54, 54), (78, 78), (159, 159)]),
];

impl HealthPolicy {
    /// Every rule that it breaks.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        if self.xids.len() > limits::HEALTH_XIDS_MAX {
            let max = limits::HEALTH_XIDS_MAX as u64;
            found.push(Violation::limit("xids", self.xids.len() as u64, 0, max));
        }
        for finding in self.findings.keys() {
            if matches!(finding, Finding::Xid(_) | Finding::Recovery(RecoveryAction::None)) {
                let text = "must be a finding other than an XID, which stands under `xids`";
                found.push(Violation::new(format!("findings.{finding}"), text));
            }
        }
        if self.reboots_max > limits::HEALTH_REBOOTS_MAX {
            let max = limits::HEALTH_REBOOTS_MAX.into();
            found.push(Violation::limit("max_reboots", self.reboots_max.into(), 0, max));
        }
        if self.maintenance_lead_ms > limits::DRAIN_MS_MAX {
            found.push(Violation::span(
                "maintenance_lead",
                self.maintenance_lead_ms,
                0,
                limits::DRAIN_MS_MAX,
            ));
        }
        found
    }

    /// What follows from an observation, however often the host was rebooted for it.
    #[must_use]
    pub fn action(&self, observation: &Observation) -> HealthAction {
        let of = |finding: Finding| self.findings.get(&finding).copied().unwrap_or(HealthAction::Ignore);
        let Finding::Xid(code) = observation.finding else { return of(observation.finding) };
        let asked = match observation.recovery {
            Some(RecoveryAction::None) => Some(HealthAction::Ignore),
            Some(action) => Some(of(Finding::Recovery(action))),
            None => None,
        };
        match self.xids.get(&code).copied().unwrap_or(self.xid_unlisted) {
            XidRule::AsDriverSays => asked.unwrap_or(HealthAction::Ignore),
            XidRule::Act(action @ (HealthAction::ResetGpu | HealthAction::RebootNode))
                if self.trust_driver =>
            {
                // The catalogue wants more than the driver: the attempt has failed all the same.
                asked.map_or(action, |asked| asked.max(HealthAction::RestartApp))
            }
            XidRule::Act(action) => action,
        }
    }
}

/// Something that is wrong with a node, and what follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// What was seen.
    pub observation: Observation,
    /// What policy made of it.
    pub action: HealthAction,
    /// Since when, or when it happened.
    pub since: LogTime,
    /// In which boot of the host.
    pub boot: u64,
}

impl Condition {
    /// The devices that nothing new is placed on because of it; none where it is about the host.
    #[must_use]
    pub fn unusable(&self, reset_takes_group: bool) -> DeviceSet {
        let Some(device) = self.observation.device.filter(|_| self.action.lasts()) else {
            return DeviceSet::EMPTY;
        };
        let own = DeviceSet(1 << device);
        match self.action {
            HealthAction::ResetGpu if reset_takes_group => own.union(self.observation.group),
            _ => own,
        }
    }

    /// Whether nothing new is placed on the whole host because of it.
    #[must_use]
    pub fn takes_node(&self) -> bool {
        self.action == HealthAction::RebootNode || (self.action.lasts() && self.observation.device.is_none())
    }
}

/// How often a host was rebooted for a finding that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootCount {
    /// Which.
    pub finding: Finding,
    /// On which device.
    pub device: Option<u16>,
    /// The last boot it was seen in.
    pub boot: u64,
    /// Boots it was seen in after the first.
    pub reboots: u16,
}

/// What is known of a node's health.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHealth {
    /// What is wrong.
    pub conditions: Vec<Condition>,
    /// What happened last and asks for nothing that lasts; newest last.
    pub recent: Vec<Condition>,
    /// Findings that asked for a reboot.
    pub reboots: Vec<RebootCount>,
    /// When the provider will take the host away.
    pub maintenance_at: Option<LogTime>,
    /// Devices that nothing new is placed on.
    pub unusable: DeviceSet,
    /// Whether nothing new is placed on the node at all.
    pub out_of_service: bool,
}

impl NodeHealth {
    /// Whether nothing is known against it.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        *self == NodeHealth::default()
    }

    /// Whether it is within its bounds, and what it says of devices follows from its conditions or says more.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        let texts = self.conditions.iter().chain(&self.recent);
        self.conditions.len() <= limits::HEALTH_CONDITIONS_MAX
            && self.recent.len() <= limits::HEALTH_RECENT_MAX
            && self.reboots.len() <= limits::HEALTH_CONDITIONS_MAX
            && texts.into_iter().all(|c| c.observation.detail.len() <= limits::HEALTH_DETAIL_BYTES_MAX)
    }
}

/// Why a node is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DrainCause {
    /// An operator wants it.
    Operator,
    /// The provider has announced maintenance.
    Maintenance,
    /// It is to be repaired.
    Repair,
}

impl DrainCause {
    /// Stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DrainCause::Operator => "operator",
            DrainCause::Maintenance => "maintenance",
            DrainCause::Repair => "repair",
        }
    }
}

/// Whether a text can be the reason why an operator took a node out of placement: not empty, short and of one line.
#[must_use]
pub fn is_reason(text: &str) -> bool {
    (1..=limits::DETAIL_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// A node from which everything is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Since when.
    pub since: LogTime,
    /// When what is still there is stopped; none waits for ever.
    pub deadline: Option<LogTime>,
    /// Why.
    pub cause: DrainCause,
}

/// A node that is kept away from work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// Since when.
    pub since: LogTime,
    /// One sentence.
    pub reason: String,
}

/// Where a repair stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RepairPhase {
    /// The node is being drained, and its agent told once nothing runs there.
    Draining,
    /// The node is empty and its agent, or a person, is at work.
    Working,
    /// It failed; a person is needed.
    Failed(String),
}

impl RepairPhase {
    /// Stable name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            RepairPhase::Draining => "draining",
            RepairPhase::Working => "working",
            RepairPhase::Failed(_) => "failed",
        }
    }
}

/// One step of a repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RepairStep {
    /// It is wanted.
    Begin {
        /// What is to be done.
        action: HealthAction,
        /// The devices concerned; empty for the host.
        devices: DeviceSet,
    },
    /// Nothing runs on the node any more: the work may begin.
    Work,
    /// It failed, with a sentence.
    Fail(String),
    /// It is over.
    End,
}

impl RepairStep {
    /// Stable name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            RepairStep::Begin { .. } => "begin",
            RepairStep::Work => "work",
            RepairStep::Fail(_) => "fail",
            RepairStep::End => "end",
        }
    }
}

/// A repair of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    /// Names it: the log index of the record that it began with.
    pub number: u64,
    /// What is to be done: a reset, a reboot, or that a person looks.
    pub action: HealthAction,
    /// The devices concerned; empty for the host.
    pub devices: DeviceSet,
    /// Since when.
    pub since: LogTime,
    /// Where it stands.
    pub phase: RepairPhase,
}
