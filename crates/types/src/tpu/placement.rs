//! Where the hosts of a pod are, and whether some of them form a slice.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use super::{CUBE_EDGE, GRID_EDGE, Generation, IllegalShape, SliceShape};
use crate::name::Name;
use crate::reason::Violation;

/// Chips of a host along x, y and z: 1x1x1, 2x2x1, or 2x4x1 for a host of 8 chips, which only grid pods
/// have. None for a number of chips that no host has.
///
/// Hosts lie in their pod as they are built: a slice may be turned, a host may not.
#[must_use]
pub fn host_extent(is_cube_pod: bool, chips_per_host: u16) -> Option<[u16; 3]> {
    match chips_per_host {
        1 => Some([1, 1, 1]),
        4 => Some([2, 2, 1]),
        8 if !is_cube_pod => Some([2, 4, 1]),
        _ => None,
    }
}

/// Where a host is: the place of its first chip, the one with the smallest coordinates.
///
/// The order is pod, cube, x, y, z.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodPosition {
    /// Unique in the fleet cluster.
    pub pod: Name,
    /// The cube in its pod, from 0; always 0 on a grid pod.
    pub cube: u16,
    /// Chip coordinates x, y, z inside the cube, or on the grid, where z is always 0.
    pub at: [u8; 3],
}

impl PodPosition {
    /// Whether a host of this many chips can be there.
    ///
    /// # Errors
    /// The first rule broken: a number of chips that no host of the generation has, a cube that no pod
    /// has, a place outside the cube or grid, a place between those of two hosts.
    pub fn check(&self, generation: Generation, chips_per_host: u16) -> Result<(), Violation> {
        let offered = generation.chips_per_host();
        let extent = host_extent(generation.is_cube_pod(), chips_per_host);
        let Some(extent) = extent.filter(|_| offered.contains(&chips_per_host)) else {
            return Err(Violation::new(
                "chips_per_host",
                format!("a {generation} host has {} chips, got {chips_per_host}", Alternatives(offered)),
            ));
        };
        let cubes = generation.cubes_per_pod_max().max(1);
        if self.cube >= cubes {
            return Err(Violation::limit("cube", self.cube.into(), 0, u64::from(cubes) - 1));
        }
        let bounds = if generation.is_cube_pod() { [CUBE_EDGE; 3] } else { [GRID_EDGE, GRID_EDGE, 1] };
        let [x, y, z] = self.at;
        for axis in 0..3 {
            let place = u16::from(self.at[axis]);
            if place >= bounds[axis] || !place.is_multiple_of(extent[axis]) {
                let letter = ["x", "y", "z"][axis];
                let last = bounds[axis] - extent[axis];
                return Err(Violation::new(
                    "at",
                    format!(
                        "({x}, {y}, {z}) is no place of a {generation} host of {chips_per_host} chips: \
                         {letter} must be a multiple of {} from 0 to {last}",
                        extent[axis]
                    ),
                ));
            }
        }
        Ok(())
    }
}

impl fmt::Display for PodPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.at;
        write!(f, "{}/{}/({x}, {y}, {z})", self.pod, self.cube)
    }
}

/// Numbers as people list them: `1, 4 or 8`.
struct Alternatives<'a>(&'a [u16]);

impl fmt::Display for Alternatives<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, number) in self.0.iter().enumerate() {
            match place {
                0 => {}
                _ if place + 1 == self.0.len() => f.write_str(" or ")?,
                _ => f.write_str(", ")?,
            }
            number.fmt(f)?;
        }
        Ok(())
    }
}

/// The slices a job runs on. With more than one (multislice) all have the same shape; each lies inside
/// one pod, and the pods may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SliceRequest {
    /// Of each slice.
    pub shape: SliceShape,
    /// Slices, from 1.
    pub count: u16,
}

impl SliceRequest {
    /// Every rule that the request breaks on a generation.
    #[must_use]
    pub fn check(&self, generation: Generation) -> Vec<Violation> {
        let mut found = Vec::new();
        if let Err(illegal) = self.shape.check(generation) {
            found.push(illegal.violation("shape"));
        }
        if self.count == 0 {
            found.push(Violation::limit("count", 0, 1, u16::MAX.into()));
        }
        found
    }

    /// Hosts of one slice; none when hosts of that size form no such slice.
    #[must_use]
    pub fn hosts_per_slice(&self, chips_per_host: u16) -> Option<u16> {
        self.shape.hosts(chips_per_host)
    }

    /// Workers over all slices: one per host, slice by slice, each slice in rank order. So a worker's
    /// rank is slice * hosts per slice + its place in [`host_offsets`].
    #[must_use]
    pub fn workers(&self, chips_per_host: u16) -> Option<u32> {
        Some(u32::from(self.hosts_per_slice(chips_per_host)?) * u32::from(self.count))
    }

    /// Chips of each worker: all of its host, or fewer when the slice is smaller than a host.
    #[must_use]
    pub fn chips_per_worker(&self, chips_per_host: u16) -> u16 {
        let chips = u16::try_from(self.shape.chips()).unwrap_or(u16::MAX);
        chips.min(chips_per_host)
    }
}

/// The first chip of every host of a slice, from the slice's own corner, in rank order: x runs fastest,
/// then y, then z. None when hosts of that size form no such slice.
///
/// This is the order of TPU_WORKER_ID. For a slice of whole cubes it runs over the whole slice, not cube
/// by cube. For a slice that lies turned it is the order of the shape as it lies
/// ([`SliceShape::orientations`]), which [`forms_slice`] returns.
#[must_use]
pub fn host_offsets(shape: SliceShape, chips_per_host: u16) -> Option<Vec<[u16; 3]>> {
    shape.hosts(chips_per_host)?;
    let step = host_extent(shape.axes().len() == 3, chips_per_host)?;
    Some(offsets(shape, step).collect())
}

fn offsets(shape: SliceShape, step: [u16; 3]) -> impl Iterator<Item = [u16; 3]> {
    let extent = shape.extent();
    let along = move |axis: usize| (0..extent[axis]).step_by(step[axis].into());
    along(2).flat_map(move |z| along(1).flat_map(move |y| along(0).map(move |x| [x, y, z])))
}

/// Why hosts, in the order given, do not form a slice. Ranks count from 0 in that order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SliceFault {
    /// The generation has no such slice.
    Shape(IllegalShape),
    /// Hosts of that many chips form no such slice.
    HostSize {
        /// What was asked for.
        shape: SliceShape,
        /// Of the hosts.
        chips_per_host: u16,
    },
    /// Another number of hosts than the slice has.
    HostCount {
        /// What the slice has.
        expected: u16,
        /// What there is.
        got: usize,
    },
    /// No host of the generation can be where this one says it is.
    Position {
        /// Whose.
        rank: usize,
        /// The rule.
        violation: Violation,
    },
    /// A slice lies inside one pod.
    OtherPod {
        /// The first that is in another pod than rank 0.
        rank: usize,
    },
    /// A slice of less than a cube lies inside one cube, and each cube of a larger one is one cube of the
    /// pod.
    OtherCube {
        /// The first that is in another cube than the hosts it belongs with.
        rank: usize,
    },
    /// One cube of the pod stands for two cubes of the slice.
    CubeTwice {
        /// The first host of the second.
        rank: usize,
    },
    /// The host is not where the slice has this rank, however the slice may lie.
    Misplaced {
        /// The first, in the orientation that holds longest.
        rank: usize,
    },
}

impl fmt::Display for SliceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SliceFault::Shape(illegal) => illegal.fmt(f),
            SliceFault::HostSize { shape, chips_per_host } => {
                write!(f, "hosts of {chips_per_host} chips form no {shape} slice")
            }
            SliceFault::HostCount { expected, got } => {
                write!(f, "the slice has {expected} hosts, got {got}")
            }
            SliceFault::Position { rank, violation } => write!(f, "host of rank {rank}: {violation}"),
            SliceFault::OtherPod { rank } => write!(f, "rank {rank} is in another pod than rank 0"),
            SliceFault::OtherCube { rank } => {
                write!(f, "rank {rank} is in another cube than the hosts it belongs with")
            }
            SliceFault::CubeTwice { rank } => {
                write!(f, "the cube of rank {rank} already stands for another part of the slice")
            }
            SliceFault::Misplaced { rank } => write!(f, "rank {rank} is not at its place in the slice"),
        }
    }
}

impl core::error::Error for SliceFault {}

/// Whether the hosts at `positions`, in rank order, are exactly one such slice; the shape as it lies.
///
/// - Less than a host, or one host: any host.
/// - Rectangle of a grid pod, box inside a cube: rank 0 is the corner with the smallest coordinates, and
///   the others are at [`host_offsets`] of one of the shape's orientations from there. Only orientations
///   count that are made of whole hosts: a 2x2x1 host lies flat, so 2x2x1 cannot stand. The orientation
///   is returned. It decides the rank order, and is what the worker must be told as its topology.
/// - Whole cubes: the chip offset of each rank divided by 4 names a cube of the slice, the remainder the
///   place in it. All hosts of one cube of the slice are in one cube of the pod, each at its place; every
///   cube of the slice has its own cube. Which one is free: the switches join any.
///
/// # Errors
/// The first thing that is wrong.
pub fn forms_slice(
    generation: Generation,
    shape: SliceShape,
    chips_per_host: u16,
    positions: &[PodPosition],
) -> Result<SliceShape, SliceFault> {
    shape.check(generation).map_err(SliceFault::Shape)?;
    let step = host_extent(generation.is_cube_pod(), chips_per_host);
    let (Some(step), Some(expected)) = (step, shape.hosts(chips_per_host)) else {
        return Err(SliceFault::HostSize { shape, chips_per_host });
    };
    let Some(first) = positions.first().filter(|_| positions.len() == usize::from(expected)) else {
        return Err(SliceFault::HostCount { expected, got: positions.len() });
    };
    for (rank, position) in positions.iter().enumerate() {
        let checked = position.check(generation, chips_per_host);
        checked.map_err(|violation| SliceFault::Position { rank, violation })?;
        if position.pod != first.pod {
            return Err(SliceFault::OtherPod { rank });
        }
    }
    if shape.is_whole_cubes() {
        return whole_cubes(shape, step, positions);
    }
    if let Some(rank) = positions.iter().position(|position| position.cube != first.cube) {
        return Err(SliceFault::OtherCube { rank });
    }
    if expected == 1 {
        return Ok(shape);
    }
    let mut longest = 0;
    for lying in shape.orientations() {
        if lying.hosts(chips_per_host) != Some(expected) {
            continue;
        }
        let is_at = |(position, offset): (&PodPosition, [u16; 3])| {
            (0..3).all(|axis| u16::from(position.at[axis]) == u16::from(first.at[axis]) + offset[axis])
        };
        match positions.iter().zip(offsets(lying, step)).position(|pair| !is_at(pair)) {
            None => return Ok(lying),
            Some(rank) => longest = longest.max(rank),
        }
    }
    Err(SliceFault::Misplaced { rank: longest })
}

/// Whole cubes of a pod whose hosts have been checked one by one.
fn whole_cubes(
    shape: SliceShape,
    step: [u16; 3],
    positions: &[PodPosition],
) -> Result<SliceShape, SliceFault> {
    let [x_cubes, y_cubes, z_cubes] = shape.extent().map(|length| usize::from(length / CUBE_EDGE));
    let mut cubes: Vec<Option<u16>> = alloc::vec![None; x_cubes * y_cubes * z_cubes];
    let mut taken = BTreeSet::new();
    for (rank, (position, offset)) in positions.iter().zip(offsets(shape, step)).enumerate() {
        if (0..3).any(|axis| u16::from(position.at[axis]) != offset[axis] % CUBE_EDGE) {
            return Err(SliceFault::Misplaced { rank });
        }
        let [x, y, z] = offset.map(|place| usize::from(place / CUBE_EDGE));
        let cube = &mut cubes[x + x_cubes * (y + y_cubes * z)];
        match *cube {
            Some(cube) if cube != position.cube => return Err(SliceFault::OtherCube { rank }),
            Some(_) => {}
            None if taken.insert(position.cube) => *cube = Some(position.cube),
            None => return Err(SliceFault::CubeTwice { rank }),
        }
    }
    Ok(shape)
}
