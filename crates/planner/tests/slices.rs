//! Slices of TPUs: what fits is found, lies where the guard accepts it, and breaks as little as it can.
// A test may look at a clock and panic; the crate it tests may not.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use muster_planner::{Budget, Shortfall, SliceVerdict, find_slices};
use muster_types::tpu::{
    CUBE_EDGE, GRID_EDGE, Generation, PodPosition, SliceRequest, SliceShape, forms_slice, host_extent,
    legal_shapes,
};
use muster_types::{Name, NodeId};

type Free = BTreeMap<PodPosition, NodeId>;

/// Numbers that are the same on every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

fn shape(text: &str) -> SliceShape {
    SliceShape::parse(text).unwrap()
}

fn request(text: &str, count: u16) -> SliceRequest {
    SliceRequest { shape: shape(text), count }
}

fn position(pod: &str, cube: u16, at: [u8; 3]) -> PodPosition {
    PodPosition { pod: Name::new(pod).unwrap(), cube, at }
}

/// The hosts of a pod, all free. Their ids run on from those that are there.
fn add_pod(free: &mut Free, generation: Generation, per_host: u16, pod: &str, cubes: u16) {
    let host = host_extent(generation.is_cube_pod(), per_host).unwrap();
    let bounds = if generation.is_cube_pod() { [CUBE_EDGE; 3] } else { [GRID_EDGE, GRID_EDGE, 1] };
    let along = |axis: usize| (0..bounds[axis] as u8).step_by(host[axis].into());
    for cube in 0..cubes {
        for x in along(0) {
            for y in along(1) {
                for z in along(2) {
                    free.insert(position(pod, cube, [x, y, z]), NodeId(free.len() as u32));
                }
            }
        }
    }
}

fn cube_pods(generation: Generation, pods: &[(&str, u16)]) -> Free {
    let mut free = Free::new();
    pods.iter().for_each(|(pod, cubes)| add_pod(&mut free, generation, 4, pod, *cubes));
    free
}

fn grids(per_host: u16, pods: &[&str]) -> Free {
    let mut free = Free::new();
    pods.iter().for_each(|pod| add_pod(&mut free, Generation::V6e, per_host, pod, 1));
    free
}

fn find(generation: Generation, request: &SliceRequest, per_host: u16, free: &Free) -> SliceVerdict {
    let verdict = find_slices(generation, request, per_host, free, &mut Budget::new(1_000_000));
    if let SliceVerdict::Fits(nodes) = &verdict {
        assert_sound(generation, request, per_host, free, nodes);
    }
    verdict
}

/// What the guard asks, and that every host was free.
fn assert_sound(
    generation: Generation,
    request: &SliceRequest,
    per_host: u16,
    free: &Free,
    nodes: &[NodeId],
) {
    let places = positions(free, nodes);
    let hosts = usize::from(request.hosts_per_slice(per_host).unwrap());
    assert_eq!(places.len(), hosts * usize::from(request.count));
    assert_eq!(nodes.iter().collect::<BTreeSet<_>>().len(), nodes.len(), "a host twice");
    for slice in places.chunks(hosts) {
        let formed = forms_slice(generation, request.shape, per_host, slice);
        assert!(formed.is_ok(), "{request:?}: {formed:?}");
    }
}

fn positions(free: &Free, nodes: &[NodeId]) -> Vec<PodPosition> {
    let by_node: BTreeMap<NodeId, &PodPosition> = free.iter().map(|(at, node)| (*node, at)).collect();
    nodes.iter().map(|node| by_node[node].clone()).collect()
}

/// Takes slices out of the free hosts, and says where they are.
fn take(generation: Generation, request: &SliceRequest, per_host: u16, free: &mut Free) -> Vec<PodPosition> {
    match find(generation, request, per_host, free) {
        SliceVerdict::Fits(nodes) => {
            let places = positions(free, &nodes);
            places.iter().for_each(|place| assert!(free.remove(place).is_some()));
            places
        }
        verdict => panic!("{request:?} should fit: {verdict:?}"),
    }
}

fn short(generation: Generation, request: &SliceRequest, per_host: u16, free: &Free) -> Shortfall {
    match find(generation, request, per_host, free) {
        SliceVerdict::Short(shortfall) => shortfall,
        verdict => panic!("{request:?} should not fit: {verdict:?}"),
    }
}

/// Pod and cube of every host, without repetition.
fn cubes_of(places: &[PodPosition]) -> Vec<(&str, u16)> {
    let all: BTreeSet<(&str, u16)> = places.iter().map(|at| (at.pod.as_str(), at.cube)).collect();
    all.into_iter().collect()
}

#[test]
fn whole_cubes_come_from_the_pod_that_they_fit_best() {
    let mut free = cube_pods(Generation::V5p, &[("a", 12), ("b", 5), ("c", 4)]);
    // Four are left in c, which is exactly enough.
    let places = take(Generation::V5p, &request("4x8x8", 1), 4, &mut free);
    assert_eq!(cubes_of(&places), [("c", 0), ("c", 1), ("c", 2), ("c", 3)]);
    free.remove(&position("b", 0, [2, 2, 3])).unwrap();
    free.remove(&position("b", 2, [0, 0, 0])).unwrap();
    let places = take(Generation::V5p, &request("4x4x8", 1), 4, &mut free);
    assert_eq!(cubes_of(&places), [("b", 1), ("b", 3)]);
    let places = take(Generation::V5p, &request("4x4x8", 1), 4, &mut free);
    assert_eq!(cubes_of(&places), [("a", 0), ("a", 1)]);
    // The order of axes is the one asked for, so v4 gets its ranks along x.
    let free = cube_pods(Generation::V4, &[("a", 2)]);
    let SliceVerdict::Fits(nodes) = find(Generation::V4, &request("8x4x4", 1), 4, &free) else { panic!() };
    let places = positions(&free, &nodes[..4]);
    assert_eq!(cubes_of(&places), [("a", 0), ("a", 1)]);
}

#[test]
fn a_bad_host_takes_its_cube_from_large_slices_only() {
    let mut free = cube_pods(Generation::V5p, &[("a", 3)]);
    free.remove(&position("a", 1, [2, 0, 1])).unwrap();
    let shortfall = short(Generation::V5p, &request("4x4x12", 1), 4, &free);
    assert_eq!(
        shortfall.to_string(),
        "0 of 1 slices of 4x4x12 fit: 47 hosts and 2 whole cubes are free, the largest free slice is 4x4x8"
    );
    // Its other 15 hosts serve smaller ones, before any whole cube is broken: 8 + 4 + 2 + 1.
    for text in ["2x4x4", "2x2x4", "2x2x2", "2x2x1"] {
        let places = take(Generation::V5p, &request(text, 1), 4, &mut free);
        assert_eq!(cubes_of(&places), [("a", 1)], "{text}");
    }
    assert_eq!(cubes_of(&take(Generation::V5p, &request("4x4x8", 1), 4, &mut free)), [("a", 0), ("a", 2)]);
    assert!(free.is_empty());
}

#[test]
fn boxes_leave_whole_cubes_whole_and_large_boxes_large() {
    let mut free = cube_pods(Generation::V7x, &[("a", 3), ("b", 1)]);
    // Nothing is broken yet: the pod with the fewest whole cubes gives one.
    assert_eq!(cubes_of(&take(Generation::V7x, &request("2x2x1", 1), 4, &mut free)), [("b", 0)]);
    // From then on that cube, and in it the half that is broken already.
    let places = take(Generation::V7x, &request("2x2x4", 1), 4, &mut free);
    assert_eq!(cubes_of(&places), [("b", 0)]);
    take(Generation::V7x, &request("2x2x2", 1), 4, &mut free);
    let half = take(Generation::V7x, &request("2x4x4", 1), 4, &mut free);
    assert_eq!(cubes_of(&half), [("b", 0)]);
    // One host is left in b: a larger box breaks a cube of a.
    assert_eq!(cubes_of(&take(Generation::V7x, &request("2x2x2", 1), 4, &mut free)), [("a", 0)]);
    assert_eq!(cubes_of(&take(Generation::V7x, &request("2x2x1", 1), 4, &mut free)), [("b", 0)]);
    let shortfall = short(Generation::V7x, &request("4x4x12", 1), 4, &free);
    assert_eq!((shortfall.hosts_free, shortfall.cubes_free), (46, Some(2)));
    assert_eq!(shortfall.largest, Some(shape("4x4x8")));
}

#[test]
fn without_a_whole_cube_the_largest_box_is_told() {
    let mut free = cube_pods(Generation::V5p, &[("a", 2)]);
    free.remove(&position("a", 0, [0, 0, 0])).unwrap();
    free.remove(&position("a", 1, [2, 2, 2])).unwrap();
    let shortfall = short(Generation::V5p, &request("4x4x4", 2), 4, &free);
    assert_eq!(
        shortfall.to_string(),
        "0 of 2 slices of 4x4x4 fit: 30 hosts and 0 whole cubes are free, the largest free slice is 2x4x4"
    );
    let shortfall = short(Generation::V5p, &request("4x4x4", 1), 4, &Free::new());
    assert_eq!(shortfall.largest, None);
    assert_eq!(shortfall.to_string(), "0 of 1 slices of 4x4x4 fit: 0 hosts and 0 whole cubes are free");
}

#[test]
fn rectangles_keep_large_rectangles_possible() {
    let mut free = grids(4, &["a", "b"]);
    // The first goes to a corner, the others next to it: half the pod and a quarter stay in one piece.
    for text in ["4x4", "2x2", "2x4", "4x8"] {
        let places = take(Generation::V6e, &request(text, 1), 4, &mut free);
        assert_eq!(cubes_of(&places), [("a", 0)], "{text}");
    }
    take(Generation::V6e, &request("8x16", 1), 4, &mut free);
    take(Generation::V6e, &request("8x8", 1), 4, &mut free);
    let shortfall = short(Generation::V6e, &request("8x16", 3), 4, &free);
    assert_eq!((shortfall.slices_that_fit, shortfall.largest), (2, Some(shape("16x16"))));
    assert_eq!(
        short(Generation::V6e, &request("16x16", 2), 4, &free).to_string(),
        "1 of 2 slices of 16x16 fit: 65 hosts are free, the largest free slice is 16x16"
    );
}

#[test]
fn a_rectangle_may_lie_turned() {
    // Free is only a strip of 16x2 hosts of 4 chips, and then one of hosts of 8 chips.
    let strip = |per_host, rows: std::ops::Range<u8>| {
        let mut free = grids(per_host, &["a"]);
        free.retain(|place, _| rows.contains(&place.at[1]));
        free
    };
    let free = strip(4, 4..8);
    let SliceVerdict::Fits(nodes) = find(Generation::V6e, &request("4x8", 2), 4, &free) else { panic!() };
    let formed = forms_slice(Generation::V6e, shape("4x8"), 4, &positions(&free, &nodes[..8]));
    assert_eq!(formed, Ok(shape("8x4")));
    let free = strip(8, 4..8);
    let SliceVerdict::Fits(nodes) = find(Generation::V6e, &request("4x8", 2), 8, &free) else { panic!() };
    let formed = forms_slice(Generation::V6e, shape("4x8"), 8, &positions(&free, &nodes[..4]));
    assert_eq!(formed, Ok(shape("8x4")));
    let shortfall = short(Generation::V6e, &request("8x8", 1), 8, &free);
    assert_eq!(shortfall.largest, Some(shape("4x8")));
}

#[test]
fn slices_of_less_than_a_host_take_one_each() {
    for (per_host, text) in [(8, "1x1"), (8, "2x2"), (8, "2x4"), (4, "1x1"), (4, "2x2"), (1, "1x1")] {
        let mut free = grids(per_host, &["a", "b"]);
        for place in free.keys().filter(|place| &*place.pod == "a").take(5).cloned().collect::<Vec<_>>() {
            free.remove(&place);
        }
        let places = take(Generation::V6e, &request(text, 3), per_host, &mut free);
        assert_eq!(cubes_of(&places), [("a", 0)], "{text}: the fuller pod first");
        let hosts = free.len() as u16;
        take(Generation::V6e, &request(text, hosts), per_host, &mut free);
        assert!(free.is_empty());
    }
    let mut free = Free::new();
    add_pod(&mut free, Generation::V7x, 1, "a", 3);
    take(Generation::V7x, &request("1x1x1", 192), 1, &mut free);
    assert!(free.is_empty());
}

#[test]
fn an_empty_pod_is_filled_to_the_last_host() {
    for generation in Generation::ALL {
        for per_host in generation.chips_per_host() {
            let mut free = Free::new();
            let cubes = if generation.is_cube_pod() { 12 } else { 1 };
            for pod in ["a", "b"] {
                add_pod(&mut free, generation, *per_host, pod, cubes);
            }
            for shape in legal_shapes(generation) {
                let Some(hosts) = shape.hosts(*per_host) else { continue };
                let per_pod = match shape.cubes() {
                    Some(of_slice) => u32::from(cubes) / of_slice,
                    None => free.len() as u32 / 2 / u32::from(hosts),
                };
                let request = SliceRequest { shape, count: 2 * per_pod as u16 };
                let verdict = find(generation, &request, *per_host, &free);
                assert!(matches!(verdict, SliceVerdict::Fits(_)), "{generation} {request:?}: {verdict:?}");
                let more = SliceRequest { shape, count: request.count + 1 };
                let shortfall = short(generation, &more, *per_host, &free);
                assert_eq!(shortfall.slices_that_fit, request.count, "{generation} {shape}");
            }
        }
    }
}

#[test]
fn hosts_that_form_no_such_slice_fall_short() {
    let free = grids(1, &["a"]);
    let shortfall = short(Generation::V6e, &request("2x2", 1), 1, &free);
    assert_eq!((shortfall.hosts_free, shortfall.largest), (256, Some(shape("1x1"))));
    // A position that no host can have is passed over, and so is a size or shape that there is not.
    let mut free = Free::new();
    free.insert(position("a", 0, [3, 17, 5]), NodeId(0));
    free.insert(position("a", 9_999, [0, 0, 0]), NodeId(1));
    free.insert(position("a", 0, [255, 255, 255]), NodeId(2));
    for generation in Generation::ALL {
        for per_host in [0, 1, 2, 4, 8, 64] {
            for text in ["1x1", "4x4", "2x2x1", "4x4x4", "3x3", "256x256x256"] {
                let shortfall = short(generation, &request(text, 1), per_host, &free);
                assert_eq!(shortfall.slices_that_fit, 0);
            }
        }
    }
}

#[test]
fn a_spent_budget_gives_no_answer() {
    let free = cube_pods(Generation::V5p, &[("a", 2)]);
    for text in ["2x2x2", "4x4x4"] {
        for visits in [0, 1, 31, 32] {
            let mut budget = Budget::new(visits);
            let verdict = find_slices(Generation::V5p, &request(text, 1), 4, &free, &mut budget);
            assert_eq!(verdict, SliceVerdict::OutOfBudget);
            assert!(budget.is_spent());
        }
        let verdict = find_slices(Generation::V5p, &request(text, 1), 4, &free, &mut Budget::new(33));
        assert!(matches!(verdict, SliceVerdict::Fits(_)));
    }
}

/// Whether some slice is free, the long way: every corner, every orientation, chip by chip.
fn exists(generation: Generation, shape: SliceShape, per_host: u16, free: &Free) -> bool {
    let host = host_extent(generation.is_cube_pod(), per_host).unwrap();
    if shape.hosts(per_host) == Some(1) {
        return !free.is_empty();
    }
    let mut tiles: BTreeMap<(&str, u16), BTreeSet<[u16; 3]>> = BTreeMap::new();
    for place in free.keys() {
        let chips = tiles.entry((place.pod.as_str(), place.cube)).or_default();
        let [x, y, z] = place.at.map(u16::from);
        for dx in 0..host[0] {
            for dy in 0..host[1] {
                chips.insert([x + dx, y + dy, z]);
            }
        }
    }
    let [a, b, c] = shape.extent();
    let turned = [[a, b, c], [a, c, b], [b, a, c], [b, c, a], [c, a, b], [c, b, a]];
    let on_hosts = |axes: &[u16; 3]| (0..3).all(|axis| axes[axis].is_multiple_of(host[axis]));
    for axes in turned.iter().filter(|axes| on_hosts(axes)) {
        let is_free = |chips: &BTreeSet<[u16; 3]>, corner: &[u16; 3]| {
            (0..3).all(|axis| corner[axis].is_multiple_of(host[axis]))
                && (0..axes[0]).all(|x| {
                    (0..axes[1]).all(|y| {
                        (0..axes[2]).all(|z| chips.contains(&[corner[0] + x, corner[1] + y, corner[2] + z]))
                    })
                })
        };
        if tiles.values().any(|chips| chips.iter().any(|corner| is_free(chips, corner))) {
            return true;
        }
    }
    false
}

/// Every free slice is found and every slice found is free; the largest that is told is the largest.
fn check_against_the_long_way(generation: Generation, per_host: u16, free: &Free) {
    let mut largest = None;
    for shape in legal_shapes(generation) {
        let whole_cubes = shape.cubes().is_some_and(|cubes| cubes > 1);
        if shape.hosts(per_host).is_none() || whole_cubes {
            continue;
        }
        let is_there = exists(generation, shape, per_host, free);
        match find(generation, &SliceRequest { shape, count: 1 }, per_host, free) {
            SliceVerdict::Fits(_) => assert!(is_there, "{generation} {shape} is not there"),
            SliceVerdict::Short(_) => assert!(!is_there, "{generation} {shape} was not found"),
            SliceVerdict::OutOfBudget => panic!("the budget is for more than this"),
        }
        if is_there {
            largest = Some(shape);
        }
    }
    let shortfall = short(generation, &SliceRequest { count: u16::MAX, ..request("2x2", 1) }, per_host, free);
    if shortfall.cubes_free.unwrap_or(0) < 2 {
        assert_eq!(shortfall.largest, largest);
    }
    assert_eq!(shortfall.hosts_free as usize, free.len());
}

#[test]
fn what_is_free_is_found() {
    let mut numbers = Numbers(1);
    for round in 0..150 {
        let per_host = [4, 8][round % 2];
        let mut free = grids(per_host, &["a", "b"]);
        let percent_taken = numbers.below(100);
        free.retain(|_, _| numbers.below(100) >= percent_taken);
        check_against_the_long_way(Generation::V6e, per_host, &free);
    }
    for _ in 0..150 {
        let mut free = cube_pods(Generation::V5p, &[("a", 2), ("b", 1)]);
        let percent_taken = numbers.below(100);
        free.retain(|_, _| numbers.below(100) >= percent_taken);
        check_against_the_long_way(Generation::V5p, 4, &free);
    }
}

#[test]
fn several_slices_are_sound_and_every_order_of_ids_gives_the_same_places() {
    let mut numbers = Numbers(2);
    for _ in 0..150 {
        let generation = numbers.pick(&Generation::ALL);
        let per_host = numbers.pick(generation.chips_per_host());
        let mut free = Free::new();
        let cubes = if generation.is_cube_pod() { 6 } else { 1 };
        for pod in ["a", "b", "c"] {
            add_pod(&mut free, generation, per_host, pod, cubes);
        }
        let percent_taken = numbers.below(40);
        free.retain(|_, _| numbers.below(100) >= percent_taken);
        let fitting = |shape: &SliceShape| shape.hosts(per_host).is_some() && shape.chips() <= 256;
        let shapes: Vec<SliceShape> = legal_shapes(generation).into_iter().filter(fitting).collect();
        let request = SliceRequest { shape: numbers.pick(&shapes), count: 1 + numbers.below(12) as u16 };
        let verdict = find(generation, &request, per_host, &free);
        if let SliceVerdict::Short(shortfall) = &verdict {
            let fewer = SliceRequest { count: shortfall.slices_that_fit, ..request };
            assert!(fewer.count < request.count);
            assert!(matches!(find(generation, &fewer, per_host, &free), SliceVerdict::Fits(_)));
        }
        // Ids are the caller's; places are chosen by position alone.
        let renamed: Free = free.iter().map(|(at, node)| (at.clone(), NodeId(99_999 - node.0))).collect();
        let again = find(generation, &request, per_host, &renamed);
        if let (SliceVerdict::Fits(nodes), SliceVerdict::Fits(others)) = (&verdict, &again) {
            assert_eq!(positions(&free, nodes), positions(&renamed, others));
        } else {
            assert_eq!(verdict, again);
        }
    }
}

/// Fills a pod with random shapes until the first is refused: the hosts that are free then, and the hosts
/// of the refused slice.
fn fill_until_refused(
    generation: Generation,
    per_host: u16,
    shapes: &[&str],
    numbers: &mut Numbers,
) -> (usize, usize) {
    let mut free = Free::new();
    add_pod(&mut free, generation, per_host, "a", 1);
    loop {
        let request = request(numbers.pick(shapes), 1);
        match find(generation, &request, per_host, &free) {
            SliceVerdict::Fits(nodes) => {
                positions(&free, &nodes).iter().for_each(|place| assert!(free.remove(place).is_some()))
            }
            _ => return (free.len(), usize::from(request.shape.hosts(per_host).unwrap())),
        }
    }
}

/// While nothing ends, no slice is refused where as many hosts are free: nothing is fragmented. The bounds
/// on what is free at the first refusal, in thousandths of the pod, are those measured and a little more.
/// Without the score, at the first place that is free, 108 of 200 fillings with small shapes end by
/// fragmentation, with 55 thousandths free in the mean and 187 at worst.
#[test]
fn filling_a_pod_does_not_fragment_it() {
    let table: [(Generation, u16, &str, usize, usize); 4] = [
        (Generation::V6e, 4, "2x2 2x4 4x4", 20, 50),
        (Generation::V6e, 4, "2x2 2x4 4x4 4x8 8x8", 90, 240),
        (Generation::V6e, 8, "2x4 4x4 4x8 8x8", 75, 230),
        (Generation::V5p, 4, "2x2x1 2x2x2 2x2x4 2x4x4", 140, 440),
    ];
    let mut numbers = Numbers(3);
    for (generation, per_host, shapes, mean_max, worst_max) in table {
        let listed: Vec<&str> = shapes.split(' ').collect();
        let pod = if generation.is_cube_pod() { 16 } else { 256 / usize::from(per_host) };
        let (mut sum, mut worst) = (0, 0);
        for _ in 0..200 {
            let (free, refused) = fill_until_refused(generation, per_host, &listed, &mut numbers);
            assert!(free < refused, "{generation} {shapes}: {refused} hosts refused with {free} free");
            sum += free * 1_000 / pod;
            worst = worst.max(free * 1_000 / pod);
        }
        let mean = sum / 200;
        println!("{generation}, hosts of {per_host}, {shapes}: mean {mean}, worst {worst} thousandths free");
        assert!(mean <= mean_max && worst <= worst_max, "mean {mean}, worst {worst}");
    }
}

/// The most disjoint boxes among the free hosts of a pod, the long way: with this host in some box or none.
fn most_boxes(boxes: &[BTreeSet<PodPosition>], free: &BTreeSet<PodPosition>) -> usize {
    let Some(first) = free.first() else { return 0 };
    let mut rest = free.clone();
    rest.remove(first);
    let mut most = most_boxes(boxes, &rest);
    for of_box in boxes.iter().filter(|of_box| of_box.contains(first) && of_box.is_subset(free)) {
        let rest = free.difference(of_box).cloned().collect();
        most = most.max(1 + most_boxes(boxes, &rest));
    }
    most
}

#[test]
fn as_many_slices_fit_as_can() {
    let mut numbers = Numbers(4);
    let mut searched = 0;
    for _ in 0..100 {
        let mut free = cube_pods(Generation::V5p, &[("a", 1)]);
        let percent_taken = numbers.below(60);
        free.retain(|_, _| numbers.below(100) >= percent_taken);
        // Boxes of four hosts: 1x1x4, 2x1x2 and 1x2x2 hosts at every place in the cube.
        let mut boxes = Vec::new();
        for [a, b, c] in [[2, 2, 4], [4, 2, 2], [2, 4, 2]] {
            for (x, y, z) in (0..16).map(|n| (n & 1, n >> 1 & 1, n >> 2)) {
                let [x, y] = [2 * x, 2 * y];
                if x + a <= 4 && y + b <= 4 && z + c <= 4 {
                    let inside = |at: &[u8; 3]| {
                        (x..x + a).contains(&at[0])
                            && (y..y + b).contains(&at[1])
                            && (z..z + c).contains(&at[2])
                    };
                    let mut all = cube_pods(Generation::V5p, &[("a", 1)]);
                    all.retain(|place, _| inside(&place.at));
                    boxes.push(all.into_keys().collect::<BTreeSet<_>>());
                }
            }
        }
        let most = most_boxes(&boxes, &free.keys().cloned().collect());
        let shortfall = short(Generation::V5p, &request("2x2x4", 5), 4, &free);
        assert_eq!(usize::from(shortfall.slices_that_fit), most);
        searched += most;
    }
    assert!(searched > 100, "some fit");
}

/// The most dominoes on the free hosts of a grid: a matching of the black squares to the white ones.
fn most_dominoes(free: &BTreeSet<(i8, i8)>) -> usize {
    fn augment(
        black: (i8, i8),
        free: &BTreeSet<(i8, i8)>,
        seen: &mut BTreeSet<(i8, i8)>,
        partner: &mut BTreeMap<(i8, i8), (i8, i8)>,
    ) -> bool {
        for (dx, dy) in [(1, 0), (-1, 0), (0, 1), (0, -1)] {
            let white = (black.0 + dx, black.1 + dy);
            if !free.contains(&white) || !seen.insert(white) {
                continue;
            }
            let is_open = match partner.get(&white).copied() {
                None => true,
                Some(other) => augment(other, free, seen, partner),
            };
            if is_open {
                partner.insert(white, black);
                return true;
            }
        }
        false
    }
    let mut partner = BTreeMap::new();
    let black = free.iter().filter(|(x, y)| (x + y) % 2 == 0);
    black.filter(|black| augment(**black, free, &mut BTreeSet::new(), &mut partner)).count()
}

#[test]
fn slices_of_two_hosts_fill_a_grid_as_dominoes_can() {
    let mut numbers = Numbers(5);
    let mut missed = 0;
    for _ in 0..100 {
        let mut free = grids(4, &["a"]);
        let percent_taken = numbers.below(60);
        free.retain(|_, _| numbers.below(100) >= percent_taken);
        let squares = free.keys().map(|place| (place.at[0] as i8 / 2, place.at[1] as i8 / 2)).collect();
        let most = most_dominoes(&squares);
        let found = usize::from(short(Generation::V6e, &request("2x4", 33), 4, &free).slices_that_fit);
        assert!(found <= most);
        missed += most - found;
    }
    // Its steps are bounded, so the search may miss what only all of them would show.
    assert!(missed <= 1, "{missed} slices missed on 100 grids");
}
