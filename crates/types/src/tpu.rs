//! Tensor processing units: the generations, and the slices each may form.
//!
//! A pod is one domain of the chips' own interconnect, and a slice is a shaped part of it. There are
//! two kinds. A *cube pod* (v4, v5p, TPU7x) is made of cubes of 4x4x4 chips whose faces meet in
//! optical switches, so any free cubes of a pod, in any order, make a slice of whole cubes: that is
//! counting. Below a cube, a slice is a box inside one cube. A *grid pod* (v5e, v6e) is a fixed grid
//! of 16x16 chips, and a slice is a rectangle of it.
//!
//! Shapes are the ones that Google offers for each generation; chips and shape are what counts here,
//! an accelerator type such as `v5p-8` is an alias of them ([`chips_of_alias`]).
//!
//! **Invariant:** [`forms_slice`] is the one answer to whether hosts form a slice: the planner proposes
//! by it and the guard admits by it.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::reason::Violation;

mod placement;

pub use placement::{PodPosition, SliceFault, SliceRequest, forms_slice, host_extent, host_offsets};

/// The label of a host that is part of a slice which a provider has made, with the shape of that slice: `/` is `.` in labels of nodes.
pub const SLICE_LABEL: &str = "cloud.google.com.gke-tpu-topology";

/// Chips along each edge of a cube.
pub const CUBE_EDGE: u16 = 4;
/// Chips of a cube.
pub const CUBE_CHIPS: u16 = CUBE_EDGE * CUBE_EDGE * CUBE_EDGE;
/// Chips along each edge of a grid pod.
pub const GRID_EDGE: u16 = 16;
/// Longest axis of a slice that is offered for any generation.
pub const AXIS_MAX: u16 = 256;

/// Shapes of less than a cube, which every cube pod offers in addition to whole cubes.
const SUB_CUBES: [[u16; 3]; 4] = [[2, 2, 1], [2, 2, 2], [2, 2, 4], [2, 4, 4]];
/// Every shape of a grid pod.
const GRID_SHAPES: [[u16; 2]; 8] =
    [[1, 1], [2, 2], [2, 4], [4, 4], [4, 8], [8, 8], [8, 16], [GRID_EDGE, GRID_EDGE]];

/// A TPU generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Generation {
    /// TPU v4.
    V4,
    /// TPU v5e, also written `v5litepod`.
    V5e,
    /// TPU v5p.
    V5p,
    /// TPU v6e, Trillium.
    V6e,
    /// TPU7x, Ironwood.
    V7x,
}

impl Generation {
    /// Every generation, oldest first.
    pub const ALL: [Generation; 5] =
        [Generation::V4, Generation::V5e, Generation::V5p, Generation::V6e, Generation::V7x];

    /// As people write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Generation::V4 => "v4",
            Generation::V5e => "v5e",
            Generation::V5p => "v5p",
            Generation::V6e => "v6e",
            Generation::V7x => "tpu7x",
        }
    }

    /// The generation that an accelerator kind names, if it is a TPU: the short names, with or
    /// without `tpu-` before them, and the values of GKE's accelerator label.
    #[must_use]
    pub fn of_kind(kind: &str) -> Option<Generation> {
        match kind.strip_prefix("tpu-").unwrap_or(kind) {
            "v4" | "v4-podslice" => Some(Generation::V4),
            "v5e" | "v5litepod" | "v5-lite-podslice" | "v5-lite-device" => Some(Generation::V5e),
            "v5p" | "v5p-slice" => Some(Generation::V5p),
            "v6e" | "v6e-slice" => Some(Generation::V6e),
            "v7x" | "tpu7x" => Some(Generation::V7x),
            _ => None,
        }
    }

    /// Whether pods are cubes joined by optical switches; otherwise they are grids.
    #[must_use]
    pub fn is_cube_pod(self) -> bool {
        matches!(self, Generation::V4 | Generation::V5p | Generation::V7x)
    }

    /// Most cubes of one pod; a grid pod has none.
    #[must_use]
    pub fn cubes_per_pod_max(self) -> u16 {
        match self {
            Generation::V4 => 64,
            Generation::V5p => 140,
            Generation::V7x => 144,
            Generation::V5e | Generation::V6e => 0,
        }
    }

    /// Most chips of one pod.
    #[must_use]
    pub fn chips_per_pod_max(self) -> u32 {
        match self.cubes_per_pod_max() {
            0 => u32::from(GRID_EDGE) * u32::from(GRID_EDGE),
            cubes => u32::from(cubes) * u32::from(CUBE_CHIPS),
        }
    }

    /// Chips that one host may have, ascending.
    #[must_use]
    pub fn chips_per_host(self) -> &'static [u16] {
        match self {
            Generation::V4 | Generation::V5p => &[4],
            Generation::V7x => &[1, 4],
            Generation::V5e | Generation::V6e => &[1, 4, 8],
        }
    }

    /// The accelerator type of a slice of this many chips, as Cloud TPU writes it; [`chips_of_alias`] reads
    /// it back.
    #[must_use]
    pub fn alias(self, chips: u32) -> String {
        let kind = if self == Generation::V5e { "v5litepod" } else { self.as_str() };
        format!("{kind}-{}", chips * self.alias_units_per_chip())
    }

    /// What one chip counts for in an accelerator type: the number there counts TensorCores where a
    /// chip has two of them, and chips elsewhere.
    fn alias_units_per_chip(self) -> u32 {
        if self.is_cube_pod() { 2 } else { 1 }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Generation and chips of an accelerator type: `v5p-8` is 4 chips and `v6e-8` is 8 chips, because
/// the number counts TensorCores for v4, v5p and TPU7x. None for a text that is no accelerator type,
/// for half a chip, and for more chips than a pod has.
///
/// The chips need not be a slice that is offered: that is [`default_for_chips`]'s to say.
#[must_use]
pub fn chips_of_alias(alias: &str) -> Option<(Generation, u32)> {
    let (kind, units) = alias.rsplit_once('-')?;
    let generation = Generation::of_kind(kind)?;
    let units = parse_number(units)?;
    let per_chip = generation.alias_units_per_chip();
    let chips = units / per_chip;
    let whole = units.is_multiple_of(per_chip) && (1..=generation.chips_per_pod_max()).contains(&chips);
    whole.then_some((generation, chips))
}

/// Digits without sign or leading zero, of at most five places: what a shape and an alias are made of.
fn parse_number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.len() <= 5 && text.bytes().all(|b| b.is_ascii_digit());
    if !digits || text.starts_with('0') { None } else { text.parse().ok() }
}

/// Chips along each axis of a slice: `8x16` on a grid pod, `4x4x8` on a cube pod.
///
/// A value has two or three axes of 1 to [`AXIS_MAX`] chips. Whether a generation offers it is
/// [`SliceShape::check`]'s to say.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceShape {
    /// A shape of two axes has 1 in the third place.
    axes: [u16; 3],
    dimensions: u8,
}

/// What a shape must look like; shown to users.
pub const SHAPE_RULE: &str = "two or three numbers from 1 to 256 with 'x' between them, such as 4x4x8";

impl SliceShape {
    /// The shape with these axes, when there are two or three of a possible length.
    #[must_use]
    pub fn new(axes: &[u16]) -> Option<SliceShape> {
        let possible = (2..=3).contains(&axes.len()) && axes.iter().all(|n| (1..=AXIS_MAX).contains(n));
        if !possible {
            return None;
        }
        let mut all = [1; 3];
        all[..axes.len()].copy_from_slice(axes);
        Some(SliceShape { axes: all, dimensions: axes.len() as u8 })
    }

    /// The shape in a text such as `4x4x8`.
    #[must_use]
    pub fn parse(text: &str) -> Option<SliceShape> {
        let mut axes = [0u16; 3];
        let mut used = 0;
        for part in text.split('x') {
            let place = axes.get_mut(used)?;
            *place = parse_number(part)?.try_into().ok()?;
            used += 1;
        }
        SliceShape::new(&axes[..used])
    }

    /// Chips along each axis, two or three of them.
    #[must_use]
    pub fn axes(&self) -> &[u16] {
        &self.axes[..usize::from(self.dimensions)]
    }

    /// Chips along x, y and z; z is 1 for a shape of two axes.
    #[must_use]
    pub fn extent(self) -> [u16; 3] {
        self.axes
    }

    /// Chips of the slice.
    #[must_use]
    pub fn chips(self) -> u32 {
        self.axes.iter().map(|n| u32::from(*n)).product()
    }

    /// Whether it is made of whole cubes: three axes, each a multiple of [`CUBE_EDGE`].
    #[must_use]
    pub fn is_whole_cubes(self) -> bool {
        self.dimensions == 3 && self.axes.iter().all(|n| n.is_multiple_of(CUBE_EDGE))
    }

    /// Cubes of a slice of whole cubes; none for any other.
    #[must_use]
    pub fn cubes(self) -> Option<u32> {
        self.is_whole_cubes().then(|| self.chips() / u32::from(CUBE_CHIPS))
    }

    /// Whether the generation offers this slice.
    ///
    /// Grid pods offer eight rectangles from 1x1 to 16x16, the shorter axis first. Cube pods offer
    /// 2x2x1, 2x2x2, 2x2x4, 2x4x4 and whole cubes up to the pod's count of them, axes ascending; v4
    /// takes the axes of whole cubes in any order, and TPU7x also has 1x1x1, on hosts of one chip.
    ///
    /// # Errors
    /// What is offered instead.
    pub fn check(self, generation: Generation) -> Result<(), IllegalShape> {
        let legal =
            if generation.is_cube_pod() { self.is_cube_slice(generation) } else { self.is_grid_slice() };
        if legal { Ok(()) } else { Err(IllegalShape::new(generation, self)) }
    }

    fn is_grid_slice(self) -> bool {
        self.dimensions == 2 && GRID_SHAPES.iter().any(|axes| axes == self.axes())
    }

    fn is_cube_slice(self, generation: Generation) -> bool {
        if let Some(cubes) = self.cubes() {
            let ordered = generation == Generation::V4 || self.axes.is_sorted();
            return ordered && cubes <= u32::from(generation.cubes_per_pod_max());
        }
        let one_chip = generation == Generation::V7x && self.axes == [1, 1, 1];
        self.dimensions == 3 && (one_chip || SUB_CUBES.contains(&self.axes))
    }

    /// Whether an axis closes to a ring. On cube pods the optical switches close every axis of a
    /// slice of whole cubes, also one of 4 chips, and no axis of a smaller one. On grid pods only an
    /// axis over the whole edge of 16 closes. An axis that the shape does not have does not.
    #[must_use]
    pub fn wraps(self, generation: Generation, axis: usize) -> bool {
        let Some(length) = self.axes().get(axis) else { return false };
        if generation.is_cube_pod() { self.is_whole_cubes() } else { *length == GRID_EDGE }
    }

    /// How long a large all-reduce over the slice takes, in thousandths of what it takes on a slice of
    /// the generation that wraps on every axis.
    ///
    /// The time is bytes / bandwidth, the same bytes per chip for every shape. Each axis of more than
    /// one chip adds bandwidth: 2 units if it wraps, since data then runs round both ways, and 1 unit if
    /// it does not. With `d` axes in the generation's torus (3 for cube pods, 2 for grids) the cost
    /// is 1000 * 2d / units, rounded up. Latency is not in it. One chip talks to nobody: 0.
    #[must_use]
    pub fn ring_cost_milli(self, generation: Generation) -> u32 {
        let torus_axes: u32 = if generation.is_cube_pod() { 3 } else { 2 };
        let long = (0..usize::from(self.dimensions)).filter(|axis| self.axes[*axis] > 1);
        let units: u32 = long.map(|axis| if self.wraps(generation, axis) { 2 } else { 1 }).sum();
        if units == 0 { 0 } else { (1_000 * 2 * torus_axes).div_ceil(units) }
    }

    /// Hosts of such a slice, or none when hosts of that size form none. A slice of less than a host
    /// takes one host, and only some of its chips. Hosts of one chip form slices of one chip only.
    #[must_use]
    pub fn hosts(self, chips_per_host: u16) -> Option<u16> {
        let host = host_extent(self.dimensions == 3, chips_per_host)?;
        if self.axes.iter().zip(host).all(|(length, of_host)| *length <= of_host) {
            return Some(1);
        }
        let whole = self.axes.iter().zip(host).all(|(length, of_host)| length.is_multiple_of(of_host));
        if chips_per_host == 1 || !whole {
            return None;
        }
        u16::try_from(self.chips() / u32::from(chips_per_host)).ok()
    }

    /// The ways a slice may lie in its pod, as it was asked for first. Rectangles and boxes inside a
    /// cube may be turned to any order of their axes. Whole cubes need not be: the switches join them
    /// in the order that was asked for.
    #[must_use]
    pub fn orientations(self) -> Vec<SliceShape> {
        let [x, y, z] = self.axes;
        let turned: &[[u16; 3]] = match self.dimensions {
            2 => &[[x, y, 1], [y, x, 1]],
            _ if self.is_whole_cubes() => &[[x, y, z]],
            _ => &[[x, y, z], [x, z, y], [y, x, z], [y, z, x], [z, x, y], [z, y, x]],
        };
        let mut found: Vec<SliceShape> = Vec::with_capacity(turned.len());
        for axes in turned {
            let shape = SliceShape { axes: *axes, dimensions: self.dimensions };
            if !found.contains(&shape) {
                found.push(shape);
            }
        }
        found
    }

    /// Sum of the axes: among shapes of the same chips, the most cube-like has the smallest.
    fn axes_sum(self) -> u32 {
        self.axes.iter().map(|n| u32::from(*n)).sum()
    }
}

impl fmt::Display for SliceShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.axes;
        match self.dimensions {
            2 => f.pad(&format!("{x}x{y}")),
            _ => f.pad(&format!("{x}x{y}x{z}")),
        }
    }
}

impl fmt::Debug for SliceShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for SliceShape {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SliceShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        SliceShape::parse(&text).ok_or_else(|| serde::de::Error::custom(SHAPE_RULE))
    }
}

/// Every shape that a generation offers, by chips and then by axes. Orders of the axes that v4 takes
/// in addition to the ascending one are left out.
#[must_use]
pub fn legal_shapes(generation: Generation) -> Vec<SliceShape> {
    let mut found = Vec::new();
    if !generation.is_cube_pod() {
        found.extend(GRID_SHAPES.iter().map(|[x, y]| SliceShape { axes: [*x, *y, 1], dimensions: 2 }));
        return found;
    }
    let mut add = |axes| found.push(SliceShape { axes, dimensions: 3 });
    if generation == Generation::V7x {
        add([1, 1, 1]);
    }
    SUB_CUBES.into_iter().for_each(&mut add);
    let cubes_max = generation.cubes_per_pod_max();
    let edge_max = AXIS_MAX / CUBE_EDGE;
    for a in (1..=cubes_max).take_while(|a| a * a * a <= cubes_max) {
        for b in (a..=edge_max).take_while(|b| a * b * b <= cubes_max) {
            for c in (b..=edge_max).take_while(|c| a * b * c <= cubes_max) {
                add([a * CUBE_EDGE, b * CUBE_EDGE, c * CUBE_EDGE]);
            }
        }
    }
    found.sort_by_key(|shape| (shape.chips(), *shape));
    found
}

/// The shape of a slice of this many chips when nobody says which: the one over which a large all-reduce is
/// fastest, by the axes that close to rings; of several the most cube-like, which has the smallest sum of
/// axes and so the shortest way between chips. None when no slice has that many. (Where a slice of one shape
/// lies makes no difference to its rings: an axis closes by its length alone.)
#[must_use]
pub fn default_for_chips(generation: Generation, chips: u32) -> Option<SliceShape> {
    let same = legal_shapes(generation).into_iter().filter(|shape| shape.chips() == chips);
    same.min_by_key(|shape| (shape.ring_cost_milli(generation), shape.axes_sum(), *shape))
}

/// The most cube-like of the largest shapes of at most this many chips.
#[must_use]
pub fn largest_within_chips(generation: Generation, chips_max: u32) -> Option<SliceShape> {
    let within = legal_shapes(generation).into_iter().filter(|shape| shape.chips() <= chips_max);
    within.max_by_key(largest_first)
}

/// Orders by chips, then by how cube-like; a total order over shapes.
fn largest_first(shape: &SliceShape) -> (u32, Reverse<u32>, Reverse<SliceShape>) {
    (shape.chips(), Reverse(shape.axes_sum()), Reverse(*shape))
}

/// A shape that a generation does not offer, and what it offers instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IllegalShape {
    /// What it was asked of.
    pub generation: Generation,
    /// What was asked for.
    pub shape: SliceShape,
    /// One to three shapes, by chips: the largest that lies inside the one asked for, the one of as many
    /// chips, and the smallest that the one asked for lies inside. Where none lies inside, or none
    /// around, the next by chips takes the place.
    pub neighbours: Vec<SliceShape>,
}

impl IllegalShape {
    fn new(generation: Generation, shape: SliceShape) -> IllegalShape {
        let legal = legal_shapes(generation);
        let chips = shape.chips();
        let inside = legal.iter().filter(|s| lies_inside(**s, shape)).max_by_key(|s| largest_first(s));
        let below = || legal.iter().filter(|s| s.chips() < chips).max_by_key(|s| largest_first(s));
        let smallest_first = |s: &&SliceShape| (s.chips(), s.axes_sum(), **s);
        let around = legal.iter().filter(|s| lies_inside(shape, **s)).min_by_key(smallest_first);
        let above = || legal.iter().filter(|s| s.chips() > chips).min_by_key(smallest_first);
        let same = default_for_chips(generation, chips);
        let found = [inside.or_else(below).copied(), same, around.or_else(above).copied()];
        let mut neighbours: Vec<SliceShape> = found.into_iter().flatten().collect();
        neighbours.sort_by_key(|s| (s.chips(), *s));
        neighbours.dedup();
        IllegalShape { generation, shape, neighbours }
    }

    /// As a rule broken by `field`.
    #[must_use]
    pub fn violation(&self, field: &str) -> Violation {
        Violation::new(field, format!("{self}"))
    }
}

/// Whether `inner` fits into `outer` when both are turned to ascending axes.
fn lies_inside(inner: SliceShape, outer: SliceShape) -> bool {
    let (mut inner, mut outer) = (inner.axes, outer.axes);
    inner.sort_unstable();
    outer.sort_unstable();
    inner.iter().zip(outer).all(|(a, b)| *a <= b)
}

impl fmt::Display for IllegalShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is no {} slice; legal neighbours: ", self.shape, self.generation)?;
        for (place, shape) in self.neighbours.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            let unit = if shape.chips() == 1 { "chip" } else { "chips" };
            write!(f, "{comma}{shape} ({} {unit})", shape.chips())?;
        }
        Ok(())
    }
}

impl core::error::Error for IllegalShape {}
