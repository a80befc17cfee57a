//! Accelerators and how they are wired: peaks, memory, the fast links of a domain and the network beyond it.
//!
//! Bandwidths are one-way and for each device; peaks are dense. All of it is what vendors publish.

use serde::Serialize;

use crate::error::PlanError;

/// The fast links among neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Links {
    /// A switch, or a mesh as good as one: every device reaches every other one of its domain at full speed.
    Switched {
        /// Devices of a domain.
        domain: u64,
        /// One-way, for each device, in GB/s.
        bandwidth_gbs: f64,
    },
    /// A torus: groups lie along its axes.
    Torus {
        /// Axes of the largest slice.
        axes: u32,
        /// Devices of the largest slice.
        pod: u64,
        /// One link, one way, in GB/s.
        link_gbs: f64,
        /// Length at which an axis of a flat slice wraps around; 0 if slices are made of cubes, which always wrap.
        wrap_length: u64,
    },
}

/// One kind of accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Accelerator {
    /// Name, as jobs ask for it.
    pub name: &'static str,
    /// Dense peak in bf16, in TFLOP/s.
    pub bf16_tflops: f64,
    /// Dense peak in fp8, in TFLOP/s; 0 without.
    pub fp8_tflops: f64,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Memory bandwidth, in GB/s.
    pub memory_gbs: f64,
    /// Most power it draws, in watts; 0 if it is not published.
    pub power_watts: f64,
    /// Devices of a host.
    pub host_devices: u64,
    /// The fast links.
    pub links: Links,
    /// One-way network bandwidth for each device, in GB/s.
    pub network_gbs: f64,
    /// Devices below one leaf of the network, or of one slice's pod.
    pub leaf_devices: u64,
}

const GIB: u64 = 1 << 30;
const GB: u64 = 1_000_000_000;

const fn gpu(name: &'static str, tflops: (f64, f64), memory_bytes: u64, memory_gbs: f64) -> Accelerator {
    Accelerator {
        name,
        bf16_tflops: tflops.0,
        fp8_tflops: tflops.1,
        memory_bytes,
        memory_gbs,
        power_watts: 700.0,
        host_devices: 8,
        links: Links::Switched { domain: 8, bandwidth_gbs: 450.0 },
        network_gbs: 50.0,
        leaf_devices: 256,
    }
}

const fn tpu(
    name: &'static str,
    tflops: (f64, f64),
    memory: (u64, f64),
    links: Links,
    dcn: f64,
) -> Accelerator {
    Accelerator {
        name,
        bf16_tflops: tflops.0,
        fp8_tflops: tflops.1,
        memory_bytes: memory.0,
        memory_gbs: memory.1,
        power_watts: 0.0,
        host_devices: 4,
        links,
        network_gbs: dcn,
        leaf_devices: 0,
    }
}

const fn torus(axes: u32, pod: u64, link_gbs: f64, wrap_length: u64) -> Links {
    Links::Torus { axes, pod, link_gbs, wrap_length }
}

/// Every kind that is known.
pub const ACCELERATORS: [Accelerator; 13] = [
    Accelerator {
        power_watts: 400.0,
        links: Links::Switched { domain: 8, bandwidth_gbs: 300.0 },
        network_gbs: 25.0,
        ..gpu("a100", (312.0, 0.0), 80 * GIB, 2040.0)
    },
    gpu("h100", (989.0, 1979.0), 80 * GIB, 3350.0),
    Accelerator {
        links: Links::Switched { domain: 8, bandwidth_gbs: 200.0 },
        ..gpu("h800", (989.0, 1979.0), 80 * GIB, 3350.0)
    },
    gpu("h200", (989.0, 1979.0), 141 * GB, 4800.0),
    Accelerator {
        power_watts: 1000.0,
        links: Links::Switched { domain: 8, bandwidth_gbs: 900.0 },
        ..gpu("b200", (2250.0, 4500.0), 180 * GB, 7700.0)
    },
    Accelerator {
        power_watts: 1200.0,
        host_devices: 4,
        links: Links::Switched { domain: 72, bandwidth_gbs: 900.0 },
        ..gpu("gb200", (2500.0, 5000.0), 186 * GB, 8000.0)
    },
    Accelerator {
        power_watts: 750.0,
        links: Links::Switched { domain: 8, bandwidth_gbs: 448.0 },
        ..gpu("mi300x", (1300.0, 2610.0), 192 * GB, 5300.0)
    },
    tpu("v4", (275.0, 0.0), (32 * GB, 1200.0), torus(3, 4096, 45.0, 0), 6.25),
    tpu("v5e", (197.0, 394.0), (16 * GB, 819.0), torus(2, 256, 45.0, 16), 3.125),
    tpu("v5p", (459.0, 918.0), (95 * GIB, 2765.0), torus(3, 8960, 90.0, 0), 6.25),
    tpu("v6e", (918.0, 1836.0), (32 * GB, 1638.0), torus(2, 256, 90.0, 16), 12.5),
    tpu("v7x", (2307.0, 4614.0), (192 * GIB, 7380.0), torus(3, 9216, 100.0, 0), 12.5),
    // The smaller A100, still common.
    Accelerator {
        power_watts: 400.0,
        links: Links::Switched { domain: 8, bandwidth_gbs: 300.0 },
        network_gbs: 25.0,
        ..gpu("a100-40", (312.0, 0.0), 40 * GIB, 1555.0)
    },
];

/// Names of every kind.
#[must_use]
pub fn names() -> Vec<&'static str> {
    ACCELERATORS.iter().map(|accelerator| accelerator.name).collect()
}

/// The kind of that name, in either case; `a100-80` and `tpu-` in front are understood.
///
/// # Errors
/// If there is none.
pub fn find(name: &str) -> Result<Accelerator, PlanError> {
    let wanted = name.trim().to_ascii_lowercase();
    let wanted = wanted.strip_prefix("tpu-").unwrap_or(&wanted);
    let wanted = match wanted {
        "a100-80" | "a100-80gb" => "a100",
        "a100-40gb" => "a100-40",
        "tpu7x" => "v7x",
        other => other,
    };
    let found = ACCELERATORS.iter().find(|accelerator| accelerator.name == wanted);
    found.copied().ok_or_else(|| {
        let name = name.chars().take(60).collect();
        PlanError::UnknownAccelerator { name, known: names() }
    })
}

/// Slices of a torus that a gang fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// How many.
    pub count: u64,
    /// Axes of each: two or three.
    pub axes: usize,
    /// Chips along each axis; 1 behind the last.
    pub shape: [u64; 3],
    /// Axes that are closed to rings.
    pub wraps: [bool; 3],
}

impl Slice {
    /// Chips of one slice.
    #[must_use]
    pub fn chips(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Links that a group of this number of chips of a slice has for a ring collective: it fills whole axes where some
    /// multiply to its size, two links for each that is a ring and one for each that is not. Else it takes a part of an axis, which
    /// is never a ring, or of as many axes as it needs.
    #[must_use]
    pub fn ring_links(&self, size: u64) -> u64 {
        let mut best = 0_u64;
        for set in 1..1_usize << self.axes {
            let chosen = (0..self.axes).filter(|axis| set >> axis & 1 == 1 && self.shape[*axis] > 1);
            let (mut product, mut links) = (1_u64, 0);
            for axis in chosen {
                product *= self.shape[axis];
                links += if self.wraps[axis] { 2 } else { 1 };
            }
            if product == size.min(self.chips()) {
                best = best.max(links);
            }
        }
        if best > 0 {
            return best;
        }
        let mut lengths = self.shape;
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        let (mut reach, mut links) = (1_u64, 0_u64);
        for length in lengths {
            if reach < size {
                (reach, links) = (reach * length, links + 1);
            }
        }
        links.max(1)
    }
}

/// Shape of a slice with this number of chips; none if none is offered.
fn slice_shape(axes: u32, chips: u64) -> Option<[u64; 3]> {
    if axes == 2 {
        let shapes = [[1, 1], [2, 2], [2, 4], [4, 4], [4, 8], [8, 8], [8, 16], [16, 16]];
        return shapes.iter().find(|[a, b]| a * b == chips).map(|[a, b]| [*a, *b, 1]);
    }
    let small = [[1, 1, 1], [2, 2, 1], [2, 2, 2], [2, 2, 4], [2, 4, 4]];
    if let Some(shape) = small.into_iter().find(|shape| shape.iter().product::<u64>() == chips) {
        return Some(shape);
    }
    // Whole cubes: of all boxes the one whose longest axis is shortest.
    let mut best: Option<[u64; 3]> = None;
    for a in (4..).step_by(4).take_while(|a| a * a * a <= chips) {
        for b in (a..).step_by(4).take_while(|b| a * b * b <= chips) {
            let c = chips / (a * b);
            if a * b * c == chips && c.is_multiple_of(4) && best.is_none_or(|other| c < other[2]) {
                best = Some([a, b, c]);
            }
        }
    }
    best
}

impl Accelerator {
    /// The slices that this number of chips forms; none if no such slice is offered, or there is no torus. An axis
    /// of a flat slice wraps at one length; those of a cubic slice all wrap if it is made of whole cubes.
    #[must_use]
    pub fn slice(&self, devices: u64) -> Option<Slice> {
        let Links::Torus { axes, pod, wrap_length, .. } = self.links else { return None };
        let count = devices.div_ceil(pod).max(1);
        let shape = slice_shape(axes, devices / count).filter(|_| devices.is_multiple_of(count))?;
        let axes = axes as usize;
        let cubes = axes == 3 && shape.iter().all(|length| length.is_multiple_of(4));
        let wraps = shape.map(|length| if wrap_length > 0 { length == wrap_length } else { cubes });
        Some(Slice { count, axes, shape, wraps })
    }

    /// Devices that reach one another over fast links.
    #[must_use]
    pub fn domain(&self) -> u64 {
        match self.links {
            Links::Switched { domain, .. } => domain,
            Links::Torus { pod, .. } => pod,
        }
    }

    /// Largest tensor parallel group that stays on links as fast as one device's: the domain, or one axis.
    #[must_use]
    pub fn tensor_max(&self) -> u64 {
        match self.links {
            Links::Switched { domain, .. } => domain,
            Links::Torus { .. } => 16,
        }
    }

    /// Peak for matrices in a precision, in operations a microsecond.
    #[must_use]
    pub fn peak_per_us(&self, fp8: bool) -> f64 {
        let tflops = if fp8 && self.fp8_tflops > 0.0 { self.fp8_tflops } else { self.bf16_tflops };
        tflops * 1e6
    }

    /// It is a TPU.
    #[must_use]
    pub fn is_tpu(&self) -> bool {
        matches!(self.links, Links::Torus { .. })
    }
}
