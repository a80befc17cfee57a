//! How long collectives take: a latency for each step and a bandwidth for each byte, by what a group crosses.

use crate::accelerator::{Accelerator, Links, Slice};
use crate::coefficients::Calibration;

/// One step of a ring over fast links, in microseconds.
const LINK_STEP_US: f64 = 3.4;
/// One step of a ring over the network, in microseconds.
const NETWORK_STEP_US: f64 = 14.0;
/// One hop of a torus, in microseconds.
const HOP_US: f64 = 1.0;
/// What starting any collective takes, in microseconds.
const START_US: f64 = 8.0;

/// A group of devices: how many, and how many of them lie in one domain of fast links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Devices.
    pub size: u64,
    /// Devices of the group within one domain.
    pub inside: u64,
}

/// Bandwidths as a calibration has found them, in bytes a microsecond, in the fleet of one gang.
#[derive(Clone, Copy, Debug)]
pub struct Fabric {
    links: Links,
    domain: u64,
    slice: Option<Slice>,
    rings_in_blocks: bool,
    link_efficiency: f64,
    network_bytes_per_us: f64,
}

impl Fabric {
    /// Of a gang of `devices`: domains, or slices, that are filled in order.
    #[must_use]
    pub fn new(accelerator: &Accelerator, calibration: &Calibration, devices: u64) -> Fabric {
        let slice = accelerator.slice(devices);
        Fabric {
            links: accelerator.links,
            domain: slice.map_or(accelerator.domain(), |slice| slice.chips()),
            slice,
            rings_in_blocks: false,
            link_efficiency: calibration.link_efficiency,
            network_bytes_per_us: accelerator.network_gbs * 1e3 * calibration.network_efficiency,
        }
    }

    /// The same with groups that fill no axis as blocks over two: with an even number of chips from four on, a ring goes
    /// around them.
    #[must_use]
    pub fn with_rings_in_blocks(self, rings_in_blocks: bool) -> Fabric {
        Fabric { rings_in_blocks, ..self }
    }

    fn ring_links(&self, size: u64) -> u64 {
        // A number of chips that no slice has is taken for a line.
        let links = self.slice.map_or(1, |slice| slice.ring_links(size));
        let is_block = self.rings_in_blocks && self.slice.is_some() && size >= 4 && size.is_multiple_of(2);
        links.max(if is_block { 2 } else { 1 })
    }

    /// A group of every `stride`-th device.
    #[must_use]
    pub fn group(&self, size: u64, stride: u64) -> Group {
        let inside = if stride >= self.domain { 1 } else { (self.domain / stride).clamp(1, size.max(1)) };
        Group { size, inside }
    }

    /// Within a domain, for a group that has `inside` devices in it.
    fn link_bytes_per_us(&self, inside: u64) -> f64 {
        let gbs = match self.links {
            Links::Switched { bandwidth_gbs, .. } => bandwidth_gbs,
            Links::Torus { link_gbs, .. } => link_gbs * self.ring_links(inside) as f64,
        };
        gbs * 1e3 * self.link_efficiency
    }

    fn latency_us(&self, group: Group) -> f64 {
        let outside = (group.size / group.inside.max(1)).saturating_sub(1) as f64;
        let inside = group.inside.saturating_sub(1) as f64;
        let step = match self.links {
            // One ring passes through every device.
            Links::Switched { .. } => LINK_STEP_US * (outside + 1.0),
            // Axes work at the same time, and the longest has as many hops as this.
            Links::Torus { .. } => return START_US + HOP_US * inside.min(16.0) + NETWORK_STEP_US * outside,
        };
        START_US + step * inside + NETWORK_STEP_US * outside
    }

    /// Every device ends with all `bytes`, of which each had an equal part; or the reverse, with a sum.
    #[must_use]
    pub fn gather_us(&self, bytes: f64, group: Group) -> f64 {
        if group.size <= 1 {
            return 0.0;
        }
        let inside = group.inside as f64;
        let outside = (group.size as f64 / inside).max(1.0);
        let within = (inside - 1.0) / inside * bytes / self.link_bytes_per_us(group.inside);
        // Each device of a domain carries its own part over its own adapter.
        let between = (outside - 1.0) / outside * bytes / inside / self.network_bytes_per_us;
        self.latency_us(group) + within + between
    }

    /// Every device ends with the sum of all.
    #[must_use]
    pub fn reduce_us(&self, bytes: f64, group: Group) -> f64 {
        2.0 * self.gather_us(bytes, group)
    }

    /// Every device sends a different part of its `bytes` to every other one.
    #[must_use]
    pub fn exchange_us(&self, bytes: f64, group: Group) -> f64 {
        if group.size <= 1 {
            return 0.0;
        }
        let (size, inside) = (group.size as f64, group.inside as f64);
        let within = bytes * (inside - 1.0) / size / self.link_bytes_per_us(group.inside);
        let within = match self.links {
            Links::Switched { .. } => within,
            // On a ring, a quarter of what gathering all parts of all devices takes.
            Links::Torus { .. } => within * inside / 4.0,
        };
        self.latency_us(group) + within + bytes * (size - inside) / size / self.network_bytes_per_us
    }

    /// One device sends to one other.
    #[must_use]
    pub fn send_us(&self, bytes: f64, leaves_domain: bool) -> f64 {
        if leaves_domain {
            NETWORK_STEP_US + bytes / self.network_bytes_per_us
        } else {
            LINK_STEP_US + bytes / self.link_bytes_per_us(2)
        }
    }
}
