//! Where slices of TPUs go.
//!
//! The hosts that are free and whole are all this looks at: a host that is in use, lost or faulty is
//! absent, which takes its cube from the slices of whole cubes and leaves the other hosts of the cube to
//! smaller slices.
//!
//! - **Whole cubes** are counted: the pod with the fewest free cubes that suffice, its lowest cubes.
//! - **Boxes in a cube** go to the cube with the fewest free hosts that holds one, so that whole cubes stay
//!   whole; between equals to the pod with the fewest whole cubes.
//! - **Rectangles of a grid** go to the pod with the fewest free hosts that holds one.
//! - **In a cube or on a grid** the place is taken that leaves the most capacity for other slices. The score
//!   is a list of numbers, compared from its start: for each shape, the largest first, how many of its
//!   *aligned* places stay free, those whose corner is a multiple of their size; then, for each shape again,
//!   how many of all its places do. Aligned places that lie the same way do not overlap, and each halves into
//!   two of the next shape, so nothing that a large slice could use is broken for a small one while there is
//!   another place. Then the orientation that was asked for goes first, and the smallest z, y and x.
//!
//! Several slices are placed one after another. Where that does not find places for all, an exhaustive
//! search of each cube or grid tries, up to [`SEARCH_STEPS_MAX`] steps.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use muster_types::NodeId;
use muster_types::tpu::{
    self, CUBE_EDGE, GRID_EDGE, Generation, PodPosition, SliceRequest, SliceShape, host_extent, host_offsets,
};

use crate::Budget;

/// Steps of the exhaustive search over all cubes or grids of one request. An empty grid of 64 hosts takes
/// fewer than a hundred for any shape.
const SEARCH_STEPS_MAX: u32 = 20_000;

/// What looking for slices came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SliceVerdict {
    /// The nodes, slice by slice, each slice in rank order.
    Fits(Vec<NodeId>),
    /// They do not all fit now.
    Short(Shortfall),
    /// The budget ran out before an answer.
    OutOfBudget,
}

/// Why slices do not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// What was asked for.
    pub request: SliceRequest,
    /// How many of the slices fit.
    pub slices_that_fit: u16,
    /// Hosts that are free and whole, over all pods.
    pub hosts_free: u32,
    /// Cubes with all their hosts free, over all pods; none on grid pods.
    pub cubes_free: Option<u32>,
    /// The largest slice that the generation offers and that would fit now.
    pub largest: Option<SliceShape>,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SliceRequest { shape, count } = self.request;
        write!(f, "{} of {count} slices of {shape} fit: {} hosts", self.slices_that_fit, self.hosts_free)?;
        if let Some(cubes) = self.cubes_free {
            write!(f, " and {cubes} whole cubes")?;
        }
        match self.largest {
            Some(largest) => write!(f, " are free, the largest free slice is {largest}"),
            None => f.write_str(" are free"),
        }
    }
}

/// Finds places for slices among the free whole hosts of one fleet cluster, all of one generation and of as
/// many chips. Positions that no such host can have are passed over.
///
/// What fits is found for one slice always. For more it is found within the bound of the search; one
/// slice of less than a host takes a whole host. The budget pays one visit per free host and one per
/// cube or grid that a slice is tried in.
#[must_use]
pub fn find_slices(
    generation: Generation,
    request: &SliceRequest,
    chips_per_host: u16,
    free: &BTreeMap<PodPosition, NodeId>,
    budget: &mut Budget,
) -> SliceVerdict {
    let Some(floor) = Floor::new(generation, chips_per_host, free, budget) else {
        return SliceVerdict::OutOfBudget;
    };
    let fits = request.shape.check(generation).is_ok() && request.shape.hosts(chips_per_host).is_some();
    let mut found = Some(Vec::new());
    if fits {
        found = if request.shape.is_whole_cubes() {
            floor.clone().take_cubes(request, budget)
        } else {
            floor.take_boxes(request, budget)
        };
    }
    let Some(slices) = found else { return SliceVerdict::OutOfBudget };
    if fits && slices.len() == usize::from(request.count) {
        return SliceVerdict::Fits(slices.into_iter().flatten().collect());
    }
    SliceVerdict::Short(floor.shortfall(request, slices.len() as u16))
}

/// Hosts that a slice could be made of: a box, or one cube of a slice of whole cubes.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Of which pod, counted in the order of their names.
    pub(crate) pod: usize,
    /// Its hosts.
    pub(crate) nodes: Vec<NodeId>,
}

/// Every box that a slice of this shape could be among these hosts, or for a slice of whole cubes every cube
/// that is whole; pod by pod. None when the budget runs out.
pub(crate) fn parts_of(
    generation: Generation,
    shape: SliceShape,
    chips_per_host: u16,
    hosts: &BTreeMap<PodPosition, NodeId>,
    budget: &mut Budget,
) -> Option<Vec<Part>> {
    let floor = Floor::new(generation, chips_per_host, hosts, budget)?;
    let mut parts = Vec::new();
    if shape.check(generation).is_err() || shape.hosts(chips_per_host).is_none() {
        return Some(parts);
    }
    let places = if shape.is_whole_cubes() { Vec::new() } else { floor.places(shape) };
    for tile in &floor.tiles {
        if !budget.visit() {
            return None;
        }
        if shape.is_whole_cubes() && floor.is_whole_cube(tile) {
            parts.push(Part { pod: tile.pod, nodes: tile.nodes.clone() });
        }
        let fitting = places.iter().filter(|place| holds(tile.free, place.cells));
        parts.extend(fitting.map(|place| Part { pod: tile.pod, nodes: floor.nodes_of_box(tile, place) }));
    }
    Some(parts)
}

/// Hosts of one cube or of one grid pod, or of one pod when hosts of a single chip stand alone.
#[derive(Clone, Debug)]
struct Tile {
    /// Place of its pod among the pods.
    pod: usize,
    /// The free hosts, one bit per cell.
    free: Cells,
    /// By cell; meaningful where the cell is free.
    nodes: Vec<NodeId>,
}

/// A set of the cells of a tile. A cell is a host's place, counted with x fastest, then y, then z.
type Cells = u64;

/// One way for a slice to lie in a tile.
#[derive(Clone, Copy, Debug)]
struct SlicePlacement {
    lying: SliceShape,
    corner: [u16; 3],
    cells: Cells,
}

/// The free hosts, tile by tile, by pod and cube.
#[derive(Clone, Debug)]
struct Floor {
    generation: Generation,
    chips_per_host: u16,
    /// Chips of a host along each axis.
    host: [u16; 3],
    /// Hosts of a tile along each axis.
    cells: [u16; 3],
    tiles: Vec<Tile>,
    pods: Vec<PodCount>,
}

/// What is free in a pod.
#[derive(Clone, Copy, Debug, Default)]
struct PodCount {
    hosts: u32,
    whole_cubes: u32,
}

impl Floor {
    /// None when the budget runs out.
    fn new(
        generation: Generation,
        chips_per_host: u16,
        free: &BTreeMap<PodPosition, NodeId>,
        budget: &mut Budget,
    ) -> Option<Floor> {
        // No host has such a size: then no position passes its check, and the floor stays empty.
        let host = host_extent(generation.is_cube_pod(), chips_per_host).unwrap_or([1; 3]);
        let chips = if generation.is_cube_pod() { [CUBE_EDGE; 3] } else { [GRID_EDGE, GRID_EDGE, 1] };
        let mut cells = [0, 1, 2].map(|axis| chips[axis] / host[axis]);
        if chips_per_host == 1 {
            // Hosts of one chip form slices of one chip, so where they are does not matter: a row of cells
            // holds them in the order of their positions.
            cells = [Cells::BITS as u16, 1, 1];
        }
        let mut floor =
            Floor { generation, chips_per_host, host, cells, tiles: Vec::new(), pods: Vec::new() };
        let mut last: Option<&PodPosition> = None;
        for (position, node) in free {
            if !budget.visit() {
                return None;
            }
            if position.check(generation, chips_per_host).is_err() {
                continue;
            }
            floor.add(position, *node, last);
            last = Some(position);
        }
        for index in 0..floor.tiles.len() {
            let tile = &floor.tiles[index];
            let (pod, is_whole) = (tile.pod, floor.is_whole_cube(tile));
            floor.pods[pod].whole_cubes += u32::from(is_whole);
        }
        Some(floor)
    }

    /// Adds a host after the one before it in the order of positions.
    fn add(&mut self, position: &PodPosition, node: NodeId, last: Option<&PodPosition>) {
        let size = self.cells.iter().map(|n| usize::from(*n)).product();
        let is_new_pod = last.is_none_or(|last| last.pod != position.pod);
        let is_new_tile = is_new_pod || last.is_none_or(|last| last.cube != position.cube);
        let is_full_row = || self.tiles.last().is_some_and(|tile| tile.free == Cells::MAX);
        if is_new_pod {
            self.pods.push(PodCount::default());
        }
        let pod = self.pods.len() - 1;
        self.pods[pod].hosts += 1;
        if is_new_tile || (self.chips_per_host == 1 && is_full_row()) {
            self.tiles.push(Tile { pod, free: 0, nodes: alloc::vec![NodeId(0); size] });
        }
        let at = [0, 1, 2].map(|axis| u16::from(position.at[axis]) / self.host[axis]);
        let tile = self.tiles.last_mut().expect("the first host opened a tile");
        let cell =
            if self.chips_per_host == 1 { tile.free.count_ones() as usize } else { cell_of(self.cells, at) };
        tile.free |= 1 << cell;
        tile.nodes[cell] = node;
    }

    fn is_whole_cube(&self, tile: &Tile) -> bool {
        let cells = self.cells.iter().map(|n| u32::from(*n)).product();
        self.generation.is_cube_pod() && self.chips_per_host > 1 && tile.free.count_ones() == cells
    }

    /// Takes slices of whole cubes; as many as fit. None when the budget runs out.
    fn take_cubes(&mut self, request: &SliceRequest, budget: &mut Budget) -> Option<Vec<Vec<NodeId>>> {
        let cubes = request.shape.cubes().expect("the shape is of whole cubes");
        let mut slices = Vec::new();
        while slices.len() < usize::from(request.count) {
            if !budget.visit() {
                return None;
            }
            let enough = (0..self.pods.len()).filter(|pod| self.pods[*pod].whole_cubes >= cubes);
            let Some(pod) = enough.min_by_key(|pod| self.pods[*pod].whole_cubes) else { break };
            let of_pod =
                |tile: &usize| self.tiles[*tile].pod == pod && self.is_whole_cube(&self.tiles[*tile]);
            let chosen: Vec<usize> = (0..self.tiles.len()).filter(of_pod).take(cubes as usize).collect();
            slices.push(self.nodes_of_cubes(request.shape, &chosen));
            for tile in chosen {
                self.tiles[tile].free = 0;
            }
            self.pods[pod].whole_cubes -= cubes;
        }
        Some(slices)
    }

    /// The nodes of a slice of whole cubes in rank order.
    fn nodes_of_cubes(&self, shape: SliceShape, chosen: &[usize]) -> Vec<NodeId> {
        let along = shape.extent().map(|length| length / CUBE_EDGE);
        let offsets = host_offsets(shape, self.chips_per_host).expect("hosts of this size form whole cubes");
        let node_at = |offset: [u16; 3]| {
            let cube = cell_of(along, offset.map(|place| place / CUBE_EDGE));
            let at = [0, 1, 2].map(|axis| offset[axis] % CUBE_EDGE / self.host[axis]);
            self.tiles[chosen[cube]].nodes[cell_of(self.cells, at)]
        };
        offsets.into_iter().map(node_at).collect()
    }

    /// Takes slices that lie in one tile each; as many as fit. None when the budget runs out.
    fn take_boxes(&self, request: &SliceRequest, budget: &mut Budget) -> Option<Vec<Vec<NodeId>>> {
        let places = self.places(request.shape);
        let wanted = usize::from(request.count);
        let mut greedy = Packing { floor: self.clone(), scored: self.scored_places(), slices: Vec::new() };
        while greedy.slices.len() < wanted {
            if !greedy.take_best(&places, budget)? {
                break;
            }
        }
        // One slice that fits is always found, so the search could only find more for several.
        if greedy.slices.len() == wanted || wanted < 2 {
            return Some(greedy.slices);
        }
        let searched = self.search(&places, wanted, budget)?;
        Some(if searched.len() > greedy.slices.len() { searched } else { greedy.slices })
    }

    /// Packs each tile as full as an exhaustive search finds. None when the budget runs out.
    fn search(
        &self,
        places: &[SlicePlacement],
        wanted: usize,
        budget: &mut Budget,
    ) -> Option<Vec<Vec<NodeId>>> {
        let mut by_lowest: Vec<Vec<usize>> = alloc::vec![Vec::new(); Cells::BITS as usize];
        for (number, place) in places.iter().enumerate() {
            by_lowest[place.cells.trailing_zeros() as usize].push(number);
        }
        let mut steps = SEARCH_STEPS_MAX;
        let mut slices = Vec::new();
        for tile in &self.tiles {
            if slices.len() == wanted {
                break;
            }
            if !budget.visit() {
                return None;
            }
            let wanted = wanted - slices.len();
            let mut search =
                Search { places, by_lowest: &by_lowest, steps: &mut steps, wanted, best: Vec::new() };
            search.fill(tile.free, &mut Vec::new());
            let best = search.best;
            slices.extend(best.into_iter().map(|place| self.nodes_of_box(tile, &places[place])));
        }
        Some(slices)
    }

    /// The nodes of a slice in a tile in rank order.
    fn nodes_of_box(&self, tile: &Tile, place: &SlicePlacement) -> Vec<NodeId> {
        if place.cells.count_ones() == 1 {
            return alloc::vec![tile.nodes[place.cells.trailing_zeros() as usize]];
        }
        let offsets = host_offsets(place.lying, self.chips_per_host).expect("places are of whole hosts");
        let node_at = |offset: [u16; 3]| {
            let at = [0, 1, 2].map(|axis| place.corner[axis] + offset[axis] / self.host[axis]);
            tile.nodes[cell_of(self.cells, at)]
        };
        offsets.into_iter().map(node_at).collect()
    }

    /// Every way for a slice of less than a cube to lie in an empty tile, the orientation asked for first,
    /// then by z, y and x.
    fn places(&self, shape: SliceShape) -> Vec<SlicePlacement> {
        let mut found = Vec::new();
        let Some(hosts) = shape.hosts(self.chips_per_host) else { return found };
        for lying in shape.orientations() {
            if lying.hosts(self.chips_per_host) != Some(hosts) {
                continue;
            }
            let size = match hosts {
                1 => [1; 3],
                _ => [0, 1, 2].map(|axis| lying.extent()[axis] / self.host[axis]),
            };
            if (0..3).any(|axis| size[axis] > self.cells[axis]) {
                continue;
            }
            let [x_last, y_last, z_last] = [0, 1, 2].map(|axis| self.cells[axis] - size[axis]);
            for z in 0..=z_last {
                for y in 0..=y_last {
                    for x in 0..=x_last {
                        let corner = [x, y, z];
                        found.push(SlicePlacement {
                            lying,
                            corner,
                            cells: box_cells(self.cells, corner, size),
                        });
                    }
                }
            }
            if hosts == 1 {
                // One host has one way to lie.
                break;
            }
        }
        found
    }

    /// For each number of a score, the places that it counts.
    fn scored_places(&self) -> Vec<Vec<Cells>> {
        let several = |shape: &SliceShape| {
            !shape.is_whole_cubes() && shape.hosts(self.chips_per_host).is_some_and(|hosts| hosts > 1)
        };
        let is_aligned = |place: &&SlicePlacement| {
            let size = [0, 1, 2].map(|axis| place.lying.extent()[axis] / self.host[axis]);
            (0..3).all(|axis| place.corner[axis].is_multiple_of(size[axis]))
        };
        let shapes = tpu::legal_shapes(self.generation).into_iter().rev().filter(several);
        let by_shape: Vec<Vec<SlicePlacement>> = shapes.map(|shape| self.places(shape)).collect();
        let cells = |place: &SlicePlacement| place.cells;
        let aligned = by_shape.iter().map(|places| places.iter().filter(is_aligned).map(cells).collect());
        let all = by_shape.iter().map(|places| places.iter().map(cells).collect());
        aligned.chain(all).collect()
    }

    /// What is free, for a request that does not fit.
    fn shortfall(&self, request: &SliceRequest, slices_that_fit: u16) -> Shortfall {
        let is_cube_pod = self.generation.is_cube_pod();
        Shortfall {
            request: *request,
            slices_that_fit,
            hosts_free: self.pods.iter().map(|pod| pod.hosts).sum(),
            cubes_free: is_cube_pod.then(|| self.pods.iter().map(|pod| pod.whole_cubes).sum()),
            largest: self.largest(),
        }
    }

    /// The largest shape that fits into what is free.
    fn largest(&self) -> Option<SliceShape> {
        let cubes = self.pods.iter().map(|pod| pod.whole_cubes).max().unwrap_or(0);
        if cubes > 0 {
            return tpu::largest_within_chips(self.generation, cubes * u32::from(tpu::CUBE_CHIPS));
        }
        let fits = |shape: &SliceShape| {
            let places = if shape.is_whole_cubes() { Vec::new() } else { self.places(*shape) };
            places.iter().any(|place| self.tiles.iter().any(|tile| holds(tile.free, place.cells)))
        };
        tpu::legal_shapes(self.generation).into_iter().rev().find(fits)
    }
}

/// A floor that slices are taken from, one after another.
struct Packing {
    floor: Floor,
    /// For each number of a score, the places that it counts.
    scored: Vec<Vec<Cells>>,
    slices: Vec<Vec<NodeId>>,
}

impl Packing {
    /// Takes one slice; false when none fits, none when the budget runs out.
    fn take_best(&mut self, places: &[SlicePlacement], budget: &mut Budget) -> Option<bool> {
        let mut best: Option<((u32, u32), usize)> = None;
        for (index, tile) in self.floor.tiles.iter().enumerate() {
            if tile.free == 0 {
                continue;
            }
            let pod = &self.floor.pods[tile.pod];
            // Hosts of one chip fill a pod whatever its rows.
            let hosts = if self.floor.chips_per_host == 1 { pod.hosts } else { tile.free.count_ones() };
            let key = (hosts, pod.whole_cubes);
            // Cheap to see that it cannot win; only a tile that may is looked into and paid for.
            if best.is_some_and(|(least, _)| key >= least) {
                continue;
            }
            if !budget.visit() {
                return None;
            }
            if places.iter().any(|place| holds(tile.free, place.cells)) {
                best = Some((key, index));
            }
        }
        let Some((_, index)) = best else { return Some(false) };
        let place = self.best_place(self.floor.tiles[index].free, places);
        self.slices.push(self.floor.nodes_of_box(&self.floor.tiles[index], place));
        let tile = &self.floor.tiles[index];
        let (pod, was_whole) = (tile.pod, self.floor.is_whole_cube(tile));
        self.floor.pods[pod].whole_cubes -= u32::from(was_whole);
        self.floor.pods[pod].hosts -= place.cells.count_ones();
        self.floor.tiles[index].free &= !place.cells;
        Some(true)
    }

    /// The place with the best score in a tile that holds one; the first of equals.
    fn best_place<'a>(&self, free: Cells, places: &'a [SlicePlacement]) -> &'a SlicePlacement {
        let mut best: Vec<&SlicePlacement> = places.iter().filter(|place| holds(free, place.cells)).collect();
        // Number by number, since mostly the first few decide.
        for counted in &self.scored {
            if best.len() == 1 {
                break;
            }
            let mut most = 0;
            for place in core::mem::take(&mut best) {
                let rest = free & !place.cells;
                let count = counted.iter().filter(|cells| holds(rest, **cells)).count();
                if count > most {
                    most = count;
                    best.clear();
                }
                if count == most {
                    best.push(place);
                }
            }
        }
        best.first().expect("a place fits, or the tile would not have been chosen")
    }
}

/// An exhaustive search for disjoint places in one tile.
struct Search<'a> {
    places: &'a [SlicePlacement],
    /// For each cell, the numbers of the places whose lowest cell it is.
    by_lowest: &'a [Vec<usize>],
    steps: &'a mut u32,
    wanted: usize,
    /// The most places found together, by their number.
    best: Vec<usize>,
}

impl Search<'_> {
    /// Decides the lowest free cell: some place has it as its own lowest, or nothing does. True when
    /// looking further is of no use.
    fn fill(&mut self, free: Cells, chosen: &mut Vec<usize>) -> bool {
        if chosen.len() > self.best.len() {
            self.best.clone_from(chosen);
        }
        if self.best.len() == self.wanted || *self.steps == 0 {
            return true;
        }
        *self.steps -= 1;
        let Some(area) = self.places.first().map(|place| place.cells.count_ones() as usize) else {
            return true;
        };
        if chosen.len() + free.count_ones() as usize / area <= self.best.len() {
            return false;
        }
        let by_lowest = self.by_lowest;
        for number in &by_lowest[free.trailing_zeros() as usize] {
            let place = &self.places[*number];
            if holds(free, place.cells) {
                chosen.push(*number);
                let is_done = self.fill(free & !place.cells, chosen);
                chosen.pop();
                if is_done {
                    return true;
                }
            }
        }
        self.fill(free & (free - 1), chosen)
    }
}

/// Whether every cell of a place is free.
fn holds(free: Cells, place: Cells) -> bool {
    free & place == place
}

/// The number of a cell, x fastest, in a box with this many cells along each axis.
fn cell_of(along: [u16; 3], [x, y, z]: [u16; 3]) -> usize {
    usize::from(x) + usize::from(along[0]) * (usize::from(y) + usize::from(along[1]) * usize::from(z))
}

/// The cells of a box of this size at this corner.
fn box_cells(along: [u16; 3], corner: [u16; 3], size: [u16; 3]) -> Cells {
    let mut cells = 0;
    for z in corner[2]..corner[2] + size[2] {
        for y in corner[1]..corner[1] + size[1] {
            for x in corner[0]..corner[0] + size[0] {
                cells |= 1 << cell_of(along, [x, y, z]);
            }
        }
    }
    cells
}
