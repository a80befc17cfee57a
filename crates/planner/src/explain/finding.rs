//! Reasons why a gang waits: their codes, their numbers and their sentences.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use muster_types::{CapacityRules, LogTime, Name, Segment};

use crate::awaited::AwaitedNodes;
use crate::explain::report::ClusterReport;

/// Kinds of nodes that have not joined which a sentence lists.
const AWAITED_SHOWN_MAX: usize = 4;

/// Why a job waits: a closed set with stable codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitReason {
    /// No cluster of the fleet is in its regions.
    NoClusterAllowed,
    /// The policy names a type or a region that it asks for, of which no node has joined yet, and no cluster that has
    /// nodes could hold it.
    NodesNotJoined,
    /// No cluster it may use could hold it, even if it were empty and all of it up.
    NoClusterLargeEnough,
    /// Only lost or cordoned nodes would make a cluster large enough.
    WaitingForNodes,
    /// There are not enough free devices.
    WaitingForCapacity,
    /// There are enough free devices in one cluster, but too few on each host.
    Fragmented,
    /// Hosts have the devices free, but not the CPU that goes with them.
    WaitingForCpu,
    /// Hosts have the devices free, but not the memory that goes with them.
    WaitingForMemory,
    /// There is capacity in one cluster, but not as near or as far apart as required.
    Topology,
    /// There are enough free hosts, but they do not form its slices.
    SliceFragmented,
    /// It would fit, but its tenant's quota does not allow as much.
    QuotaExceeded,
    /// It would fit on what is kept for gangs before it.
    BehindOtherGangs,
    /// It would not be over before a window of maintenance or of a reservation.
    Window,
    /// It would fit on nodes that are booked for others, or the booking that it names is not open.
    Booked,
    /// It would fit where other jobs are from which it has to keep away, or are not with which it has to be.
    Affinity,
    /// It would fit on hosts that policy keeps free in each rack, to take the place of failed ones.
    SpareHosts,
    /// It would fit on nodes that were bought in another way than it asks for, or that are taken away more often.
    Purchase,
    /// It waits for another job.
    Dependency,
    /// It failed, and is tried again after a wait.
    RetryBackoff,
    /// No cluster that it may use has a copy of the data set that its checkpoints are in.
    CheckpointNotReadable,
    /// Somebody holds it, its tenant, or the place where it would fit.
    Held,
    /// It may not start before a time.
    NotBefore,
    /// Its tenant has as many jobs placed as the policy lets it have.
    TenantLimit,
    /// Fewer of a counted resource are free than it asks for.
    Licence,
    /// Capacity is promised to it; gangs that run there are giving it up.
    MakingRoom,
    /// It fits; its turn has not come yet.
    InLine,
}

impl WaitReason {
    /// Every reason.
    pub const ALL: [WaitReason; 26] = [
        WaitReason::NoClusterAllowed,
        WaitReason::NodesNotJoined,
        WaitReason::NoClusterLargeEnough,
        WaitReason::WaitingForNodes,
        WaitReason::WaitingForCapacity,
        WaitReason::Fragmented,
        WaitReason::WaitingForCpu,
        WaitReason::WaitingForMemory,
        WaitReason::Topology,
        WaitReason::SliceFragmented,
        WaitReason::QuotaExceeded,
        WaitReason::BehindOtherGangs,
        WaitReason::Window,
        WaitReason::Booked,
        WaitReason::Affinity,
        WaitReason::SpareHosts,
        WaitReason::Purchase,
        WaitReason::Dependency,
        WaitReason::Held,
        WaitReason::NotBefore,
        WaitReason::RetryBackoff,
        WaitReason::CheckpointNotReadable,
        WaitReason::TenantLimit,
        WaitReason::Licence,
        WaitReason::MakingRoom,
        WaitReason::InLine,
    ];

    /// Stable code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            WaitReason::NoClusterAllowed => "NO_CLUSTER_ALLOWED",
            WaitReason::NodesNotJoined => "NODES_NOT_JOINED",
            WaitReason::NoClusterLargeEnough => "NO_CLUSTER_LARGE_ENOUGH",
            WaitReason::WaitingForNodes => "WAITING_FOR_NODES",
            WaitReason::WaitingForCapacity => "WAITING_FOR_CAPACITY",
            WaitReason::Fragmented => "FRAGMENTED",
            WaitReason::WaitingForCpu => "WAITING_FOR_CPU",
            WaitReason::WaitingForMemory => "WAITING_FOR_MEMORY",
            WaitReason::Topology => "TOPOLOGY_UNSATISFIED",
            WaitReason::SliceFragmented => "SLICE_FRAGMENTED",
            WaitReason::QuotaExceeded => "QUOTA_EXCEEDED",
            WaitReason::BehindOtherGangs => "RESERVED_FOR_OTHERS",
            WaitReason::Window => "MAINTENANCE_WINDOW",
            WaitReason::Booked => "BOOKED",
            WaitReason::Affinity => "AFFINITY",
            WaitReason::SpareHosts => "SPARE_HOSTS",
            WaitReason::Purchase => "PURCHASE",
            WaitReason::Dependency => "WAITING_FOR_DEPENDENCY",
            WaitReason::Held => "HELD",
            WaitReason::NotBefore => "NOT_BEFORE",
            WaitReason::RetryBackoff => "RETRY_BACKOFF",
            WaitReason::CheckpointNotReadable => "CHECKPOINT_NOT_READABLE",
            WaitReason::TenantLimit => "TENANT_LIMIT",
            WaitReason::Licence => "WAITING_FOR_LICENCE",
            WaitReason::MakingRoom => "PREEMPTING",
            WaitReason::InLine => "QUEUED",
        }
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

/// A reason with its numbers.
#[derive(Clone, Debug)]
pub(super) enum Finding {
    NoClusterAllowed,
    NodesNotJoined(BTreeSet<AwaitedNodes>),
    NoClusterLargeEnough { wanted: u32 },
    WaitingForNodes { place: (Name, Name), missing: u32, wanted: u32, reasons: Vec<String> },
    WaitingForCapacity(Closest),
    Fragmented(Closest),
    WaitingForCpu { closest: Closest, free_milli: u64, wanted_milli: u64 },
    WaitingForMemory { closest: Closest, free_bytes: u64, wanted_bytes: u64 },
    Topology { closest: Closest, largest_domain_workers: u32, segments: Option<SegmentShortage> },
    SliceFragmented(Closest),
    QuotaExceeded { place: (Name, Name), wanted_milli: u64, room_milli: u64 },
    BehindOtherGangs { place: (Name, Name), reserved_devices: u64 },
    CheckpointNotReadable { data_set: Name },
    Window { place: (Name, Name), nodes: u32, open: Option<(Name, LogTime)> },
    Booked { place: (Name, Name), nodes: u32, booking: Name, until: Option<LogTime> },
    PlaceHeld { place: (Name, Name), held: String, until: Option<LogTime> },
    Affinity { place: (Name, Name), text: String, excluded: u32, nodes: u32 },
    SpareHosts { place: (Name, Name), hosts: u64 },
    Purchase { place: (Name, Name), nodes: u32, asked: CapacityRules },
    InLine,
}

/// Segments that have no place, at the first level from the inside out at which that is so.
#[derive(Clone, Debug)]
pub(super) struct SegmentShortage {
    /// The segment and those within it, from the outside in.
    pub(super) segments: Vec<Segment>,
    /// How many of it have a place now.
    pub(super) fit: u64,
    /// How many the gang needs.
    pub(super) wanted: u64,
}

impl fmt::Display for SegmentShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((outer, inner)) = self.segments.split_first() else { return Ok(()) };
        let mut what = Workers(outer.workers).to_string();
        for (place, segment) in inner.iter().enumerate() {
            let joint = if place == 0 { "in" } else { "and" };
            what.push_str(&format!(" {joint} {}s of {}", segment.level, segment.workers));
        }
        match self.fit {
            0 => write!(f, "no {} there has place for a segment of {what}", outer.level),
            fit => write!(f, "there is place now for {fit} of its {} segments of {what}", self.wanted),
        }
    }
}

/// The cluster that is closest to holding a gang.
#[derive(Clone, Debug)]
pub(super) struct Closest {
    /// Region and cluster.
    place: (Name, Name),
    /// Workers it needs.
    wanted: u32,
    /// Workers that fit there now.
    fit: u32,
    /// Idle devices of the type there.
    free_devices: u64,
    /// All devices of the type there.
    total_devices: u64,
}

impl Closest {
    pub(super) fn of(report: &ClusterReport, wanted: u32) -> Closest {
        Closest {
            place: report.place(),
            wanted,
            fit: report.workers_that_fit,
            free_devices: report.free_devices,
            total_devices: report.total_devices,
        }
    }
}

impl fmt::Display for Closest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Closest { place: (region, cluster), wanted, fit, free_devices, total_devices } = self;
        write!(
            f,
            "{fit} of {wanted} workers fit now in {region}/{cluster}, which is closest ({free_devices} of \
             {total_devices} devices free)"
        )
    }
}

impl Finding {
    pub(super) fn reason(&self) -> WaitReason {
        match self {
            Finding::NoClusterAllowed => WaitReason::NoClusterAllowed,
            Finding::NodesNotJoined(_) => WaitReason::NodesNotJoined,
            Finding::CheckpointNotReadable { .. } => WaitReason::CheckpointNotReadable,
            Finding::NoClusterLargeEnough { .. } => WaitReason::NoClusterLargeEnough,
            Finding::WaitingForNodes { .. } => WaitReason::WaitingForNodes,
            Finding::WaitingForCapacity(_) => WaitReason::WaitingForCapacity,
            Finding::Fragmented(_) => WaitReason::Fragmented,
            Finding::WaitingForCpu { .. } => WaitReason::WaitingForCpu,
            Finding::WaitingForMemory { .. } => WaitReason::WaitingForMemory,
            Finding::Topology { .. } => WaitReason::Topology,
            Finding::SliceFragmented(_) => WaitReason::SliceFragmented,
            Finding::QuotaExceeded { .. } => WaitReason::QuotaExceeded,
            Finding::BehindOtherGangs { .. } => WaitReason::BehindOtherGangs,
            Finding::Window { .. } => WaitReason::Window,
            Finding::Booked { .. } => WaitReason::Booked,
            Finding::PlaceHeld { .. } => WaitReason::Held,
            Finding::Affinity { .. } => WaitReason::Affinity,
            Finding::SpareHosts { .. } => WaitReason::SpareHosts,
            Finding::Purchase { .. } => WaitReason::Purchase,
            Finding::InLine => WaitReason::InLine,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::NoClusterAllowed => f.write_str("no cluster of the fleet is in its regions"),
            Finding::NodesNotJoined(awaited) => {
                f.write_str("it waits for nodes ")?;
                for (place, nodes) in awaited.iter().take(AWAITED_SHOWN_MAX).enumerate() {
                    write!(f, "{}{nodes}", if place == 0 { "" } else { " or " })?;
                }
                if awaited.len() > AWAITED_SHOWN_MAX {
                    f.write_str(" or others")?;
                }
                f.write_str(", which the policy names; none has joined the fleet yet")
            }
            Finding::CheckpointNotReadable { data_set } => write!(
                f,
                "no cluster of the fleet is in a region that it may use and that has a copy of {data_set}, which its \
                 checkpoints are in"
            ),
            Finding::NoClusterLargeEnough { wanted } => {
                write!(f, "no cluster it may use could hold its {}, even if it were empty", Workers(*wanted))
            }
            Finding::WaitingForNodes { place: (region, cluster), missing, wanted, reasons } => {
                write!(
                    f,
                    "{missing} {} out of service (lost, cordoned, drained, quarantined or unhealthy; `muster node \
                     health` says why), and the others of {region}/{cluster}, which is closest, could not hold its {}",
                    if *missing == 1 { "node is" } else { "nodes are" },
                    Workers(*wanted)
                )?;
                for (place, reason) in reasons.iter().enumerate() {
                    write!(f, "{}{reason}", if place == 0 { "; operators say: " } else { "; " })?;
                }
                Ok(())
            }
            Finding::WaitingForCapacity(closest) => closest.fmt(f),
            Finding::Fragmented(closest) => {
                write!(f, "{closest}: free devices are enough, but not together on hosts as it needs them")
            }
            Finding::WaitingForCpu { closest, free_milli, wanted_milli } => write!(
                f,
                "{closest}: hosts have the devices free, but not the CPU; a worker wants {} CPUs, and the host with \
                 devices free that has most has {} left",
                Milli(*wanted_milli),
                Milli(*free_milli)
            ),
            Finding::WaitingForMemory { closest, free_bytes, wanted_bytes } => write!(
                f,
                "{closest}: hosts have the devices free, but not the memory; a worker wants {} MiB, and the host \
                 with devices free that has most has {} left",
                wanted_bytes >> 20,
                free_bytes >> 20
            ),
            Finding::Topology {
                closest: Closest { place: (region, cluster), wanted, .. },
                segments: Some(segments),
                ..
            } => write!(f, "its {} would fit in {region}/{cluster}, but {segments}", Workers(*wanted)),
            Finding::Topology {
                closest: Closest { place: (region, cluster), wanted, .. },
                largest_domain_workers,
                segments: None,
            } => {
                write!(
                    f,
                    "its {} would fit in {region}/{cluster}, but not as its topology rule says; one domain holds at most {largest_domain_workers} now",
                    Workers(*wanted)
                )
            }
            Finding::SliceFragmented(closest) => {
                write!(f, "{closest}: free hosts are enough, but they do not form its slices")
            }
            Finding::QuotaExceeded { place: (region, cluster), wanted_milli, room_milli } => write!(
                f,
                "it would fit in {region}/{cluster}, but needs {} devices and quota leaves {}",
                Milli(*wanted_milli),
                Milli(*room_milli)
            ),
            Finding::BehindOtherGangs { place: (region, cluster), reserved_devices } => write!(
                f,
                "it would fit in {region}/{cluster}, but {reserved_devices} devices there are kept for gangs before it"
            ),
            Finding::Window { place: (region, cluster), nodes, open } => {
                let nodes = format!("{nodes} {} there", if *nodes == 1 { "node" } else { "nodes" });
                match open {
                    Some((window, until)) => write!(
                        f,
                        "it would fit in {region}/{cluster}, but window {window} is open there until {until}, and \
                         windows keep {nodes} from it"
                    ),
                    None => write!(
                        f,
                        "it would fit in {region}/{cluster}, but would not end before a window that keeps {nodes} \
                         from it begins"
                    ),
                }
            }
            Finding::Booked { place: (region, cluster), nodes, booking, until: Some(until) } => write!(
                f,
                "it would fit in {region}/{cluster}, but booking {booking} keeps nodes there from it until {until}, and \
                 bookings keep {nodes} {} there from it",
                if *nodes == 1 { "node" } else { "nodes" }
            ),
            Finding::Booked { place: (region, cluster), booking, until: None, .. } => write!(
                f,
                "it would fit in {region}/{cluster}, but it names booking {booking}, and the nodes of that do not hold it now"
            ),
            Finding::PlaceHeld { place: (region, cluster), held, until } => {
                write!(f, "it would fit in {region}/{cluster}, but {held}: nothing starts there ")?;
                match until {
                    Some(until) => write!(f, "until {until}"),
                    None => f.write_str("until an operator releases it"),
                }
            }
            Finding::Affinity { place: (region, cluster), text, excluded, nodes } => write!(
                f,
                "it would fit in {region}/{cluster}, but has to be {text}, and that excludes {excluded} of {nodes} {} there",
                if *nodes == 1 { "node" } else { "nodes" }
            ),
            Finding::SpareHosts { place: (region, cluster), hosts } => write!(
                f,
                "it would fit in {region}/{cluster}, but only with hosts that policy keeps free in their racks to take the place of failed ones ({hosts} of them)"
            ),
            Finding::Purchase { place: (region, cluster), nodes, asked } => {
                write!(f, "it would fit in {region}/{cluster}, but not on nodes that it allows: ")?;
                match (asked.allowed(), asked.interruptions_milli_max) {
                    (Some(allowed), None) => write!(f, "it asks for {allowed}")?,
                    (None, most) => {
                        let most = Milli(most.unwrap_or_default().into());
                        write!(f, "it allows {most} interruptions for each node and day")?;
                    }
                    (Some(allowed), Some(most)) => {
                        let most = Milli(most.into());
                        write!(
                            f,
                            "it asks for {allowed} and allows {most} interruptions for each node and day"
                        )?;
                    }
                }
                write!(
                    f,
                    ", which keeps {nodes} {} there from it",
                    if *nodes == 1 { "node" } else { "nodes" }
                )
            }
            Finding::InLine => f.write_str("it fits now, and its turn has not come yet"),
        }
    }
}

/// Workers as people write them.
pub(super) struct Workers(pub(super) u32);

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, if self.0 == 1 { "worker" } else { "workers" })
    }
}

/// Thousandths of devices as people write them.
pub(super) struct Milli(pub(super) u64);

impl fmt::Display for Milli {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1_000, self.0 % 1_000);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{rest:03}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}
