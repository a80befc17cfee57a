//! What the TPU generations offer, and when hosts form a slice: the tables are the specification.

use std::collections::BTreeSet;
use std::fmt;

use muster_types::tpu::{
    CUBE_EDGE, GRID_EDGE, Generation, PodPosition, SHAPE_RULE, SliceFault, SliceRequest, SliceShape,
    chips_of_alias, default_for_chips, forms_slice, host_extent, host_offsets, largest_within_chips,
    legal_shapes,
};
use muster_types::{Name, Violation};
use proptest::prelude::*;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};
use serde::{Deserialize, Serialize};

fn shape(text: &str) -> SliceShape {
    SliceShape::parse(text).unwrap()
}

fn generation(kind: &str) -> Generation {
    Generation::of_kind(kind).unwrap()
}

fn position(pod: &str, cube: u16, at: [u8; 3]) -> PodPosition {
    PodPosition { pod: Name::new(pod).unwrap(), cube, at }
}

#[test]
fn an_accelerator_kind_names_its_generation() {
    let table = [
        ("v4", Generation::V4),
        ("tpu-v4", Generation::V4),
        ("tpu-v4-podslice", Generation::V4),
        ("v5e", Generation::V5e),
        ("v5litepod", Generation::V5e),
        ("tpu-v5-lite-podslice", Generation::V5e),
        ("v5p", Generation::V5p),
        ("tpu-v5p", Generation::V5p),
        ("tpu-v5p-slice", Generation::V5p),
        ("v6e", Generation::V6e),
        ("tpu-v6e-slice", Generation::V6e),
        ("v7x", Generation::V7x),
        ("tpu-v7x", Generation::V7x),
        ("tpu7x", Generation::V7x),
    ];
    for (kind, expected) in table {
        assert_eq!(Generation::of_kind(kind), Some(expected), "{kind}");
    }
    for kind in ["", "tpu-", "v5", "v3", "h100", "V4", "v5p-8", "tpu"] {
        assert_eq!(Generation::of_kind(kind), None, "{kind}");
    }
    for generation in Generation::ALL {
        assert_eq!(Generation::of_kind(generation.as_str()), Some(generation));
    }
}

#[test]
fn a_pod_is_as_large_as_it_is_built() {
    // Generation, cubes, chips, chips per host.
    let table: [(Generation, u16, u32, &[u16]); 5] = [
        (Generation::V4, 64, 4_096, &[4]),
        (Generation::V5e, 0, 256, &[1, 4, 8]),
        (Generation::V5p, 140, 8_960, &[4]),
        (Generation::V6e, 0, 256, &[1, 4, 8]),
        (Generation::V7x, 144, 9_216, &[1, 4]),
    ];
    for (generation, cubes, chips, per_host) in table {
        assert_eq!(generation.is_cube_pod(), cubes > 0);
        assert_eq!(generation.cubes_per_pod_max(), cubes);
        assert_eq!(generation.chips_per_pod_max(), chips);
        assert_eq!(generation.chips_per_host(), per_host);
    }
}

#[test]
fn an_alias_counts_tensor_cores_where_a_chip_has_two() {
    let table = [
        ("v4-8", Some((Generation::V4, 4))),
        ("v5p-8", Some((Generation::V5p, 4))),
        ("v5p-12288", Some((Generation::V5p, 6_144))),
        ("v5p-17920", Some((Generation::V5p, 8_960))),
        ("v5p-17922", None),
        ("tpu7x-8", Some((Generation::V7x, 4))),
        ("tpu7x-2", Some((Generation::V7x, 1))),
        ("v5litepod-16", Some((Generation::V5e, 16))),
        ("v5e-1", Some((Generation::V5e, 1))),
        ("v6e-16", Some((Generation::V6e, 16))),
        ("tpu-v6e-256", Some((Generation::V6e, 256))),
        ("v6e-257", None),
        ("v5p-7", None),
        ("v5p-0", None),
        ("v5p-08", None),
        ("v5p-+8", None),
        ("v5p-", None),
        ("v5p", None),
        ("h100-8", None),
        ("v5p-99999999999999999999", None),
    ];
    for (alias, expected) in table {
        assert_eq!(chips_of_alias(alias), expected, "{alias}");
    }
}

#[test]
fn a_shape_has_two_or_three_axes() {
    for text in ["1x1", "2x4", "16x16", "2x2x1", "4x4x4", "256x256x256", "8x8x6", "3x5"] {
        assert_eq!(shape(text).to_string(), text);
    }
    for text in [
        "", "4", "x", "4x", "x4", "4x4x", "4x4x4x4", "0x4", "4x0x4", "257x4", "4 x4", "+4x4", "04x4", "4X4",
        "-4x4", "99999x1", "100000x1", "4x4,4", "٤x٤",
    ] {
        assert_eq!(SliceShape::parse(text), None, "{text:?}");
    }
    assert_eq!(SliceShape::new(&[4]), None);
    assert_eq!(SliceShape::new(&[4, 4, 4, 4]), None);
    assert_eq!(shape("4x4").extent(), [4, 4, 1]);
    assert_eq!(shape("4x4").axes(), [4, 4]);
    assert_ne!(shape("4x4"), shape("4x4x1"));
    assert_eq!(format!("{:>8}", shape("4x4x8")), "   4x4x8");
}

/// A shape as a serialiser writes it.
struct Written(SliceShape);

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.serialize(f)
    }
}

#[test]
fn a_shape_is_checked_when_it_is_read() {
    let read = |text: &'static str| {
        let from: StrDeserializer<'_, Error> = text.into_deserializer();
        SliceShape::deserialize(from)
    };
    assert_eq!(read("4x4x8"), Ok(shape("4x4x8")));
    assert_eq!(Written(shape("4x4x8")).to_string(), "4x4x8");
    assert_eq!(read("4x4x").unwrap_err().to_string(), SHAPE_RULE);
}

#[test]
fn the_shapes_offered() {
    let table = [
        ("v5e", "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"),
        ("v6e", "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"),
        ("v4", "2x2x1 2x2x4 2x4x4 4x4x4 8x4x4 4x8x4 4x4x8 12x8x4 16x16x16 4x4x256"),
        ("v5p", "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x4x256 4x20x28 16x20x28 8x16x32"),
        ("v7x", "1x1x1 2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 12x12x12 16x24x24 4x4x244"),
    ];
    for (kind, shapes) in table {
        for text in shapes.split(' ') {
            assert_eq!(shape(text).check(generation(kind)), Ok(()), "{kind} {text}");
        }
    }
    let refused = [
        ("v5e", "1x2 4x2 2x8 8x4 16x8 3x3 32x32 4x4x4 2x2x1 16x16x1"),
        ("v6e", "1x1x1 6x6 16x32"),
        ("v4", "1x1x1 1x2x1 4x2x2 2x2x3 4x4x6 20x16x16 4x4 16x16"),
        ("v5p", "1x1x1 8x4x4 4x8x4 2x2x8 4x4x2 4x4x5 16x20x32 16x24x24 2x2"),
        ("v7x", "2x1x1 8x4x4 20x20x24 4x4"),
    ];
    for (kind, shapes) in refused {
        for text in shapes.split(' ').map(shape) {
            let illegal = text.check(generation(kind)).unwrap_err();
            assert_eq!((illegal.generation, illegal.shape), (generation(kind), text));
        }
    }
}

#[test]
fn the_number_of_shapes_offered() {
    // The counts of the public generator of these shapes: 4 below a cube, then whole cubes of at most
    // 256 chips an axis; v4's counts every order of the axes, TPU7x's leaves out the single chip.
    let every_order = |shape: &SliceShape| {
        let [x, y, z] = shape.extent();
        let orders = [[x, y, z], [x, z, y], [y, x, z], [y, z, x], [z, x, y], [z, y, x]];
        orders.into_iter().collect::<BTreeSet<_>>().len()
    };
    let v4 = legal_shapes(Generation::V4);
    let cubes: usize = v4.iter().filter(|s| s.is_whole_cubes()).map(every_order).sum();
    assert_eq!(4 + cubes, 800);
    assert_eq!(legal_shapes(Generation::V5p).len(), 414);
    assert_eq!(legal_shapes(Generation::V7x).len(), 432 + 1);
    assert_eq!(legal_shapes(Generation::V5e).len(), 8);
    for generation in Generation::ALL {
        let shapes = legal_shapes(generation);
        assert!(shapes.iter().all(|s| s.check(generation).is_ok()), "{generation}");
        assert!(shapes.is_sorted_by_key(|s| (s.chips(), *s)), "{generation}");
    }
}

#[test]
fn a_refusal_names_the_neighbours() {
    let table = [
        (
            "v5p",
            "8x8x6",
            "8x8x6 is no v5p slice; legal neighbours: 4x8x8 (256 chips), 4x8x12 (384 chips), 8x8x8 (512 chips)",
        ),
        // Only the order is wrong.
        ("v5p", "8x4x4", "8x4x4 is no v5p slice; legal neighbours: 4x4x8 (128 chips)"),
        ("v6e", "8x4", "8x4 is no v6e slice; legal neighbours: 4x8 (32 chips)"),
        // A flat shape for a cube pod.
        (
            "v5p",
            "4x4",
            "4x4 is no v5p slice; legal neighbours: 2x2x1 (4 chips), 2x2x4 (16 chips), 2x4x4 (32 chips)",
        ),
        (
            "v6e",
            "4x4x4",
            "4x4x4 is no v6e slice; legal neighbours: 4x4 (16 chips), 8x8 (64 chips), 8x16 (128 chips)",
        ),
        ("v5e", "5x5", "5x5 is no v5e slice; legal neighbours: 4x4 (16 chips), 8x8 (64 chips)"),
        ("v5e", "1x2", "1x2 is no v5e slice; legal neighbours: 1x1 (1 chip), 2x2 (4 chips)"),
        // Nothing below, nothing above.
        ("v4", "1x1x1", "1x1x1 is no v4 slice; legal neighbours: 2x2x1 (4 chips)"),
        ("v5p", "64x64x64", "64x64x64 is no v5p slice; legal neighbours: 16x20x28 (8960 chips)"),
        // More than a pod along one axis.
        ("v4", "16x16x20", "16x16x20 is no v4 slice; legal neighbours: 16x16x16 (4096 chips)"),
    ];
    for (kind, asked, sentence) in table {
        let illegal = shape(asked).check(generation(kind)).unwrap_err();
        assert_eq!(illegal.to_string(), sentence);
        let expected = Violation::new("slice.shape", sentence);
        assert_eq!(illegal.violation("slice.shape"), expected);
    }
}

#[test]
fn the_default_is_the_most_cube_like() {
    let cubes = [
        (4, "2x2x1"),
        (8, "2x2x2"),
        (16, "2x2x4"),
        (32, "2x4x4"),
        (64, "4x4x4"),
        (128, "4x4x8"),
        (192, "4x4x12"),
        (256, "4x8x8"),
        (320, "4x4x20"),
        (384, "4x8x12"),
        (512, "8x8x8"),
        (768, "8x8x12"),
        (1_024, "8x8x16"),
        (1_536, "8x12x16"),
        (2_048, "8x16x16"),
        (4_096, "16x16x16"),
    ];
    for generation in [Generation::V4, Generation::V5p, Generation::V7x] {
        for (chips, expected) in cubes {
            assert_eq!(default_for_chips(generation, chips), Some(shape(expected)), "{generation} {chips}");
        }
        assert_eq!(default_for_chips(generation, 100), None);
        assert_eq!(default_for_chips(generation, 0), None);
    }
    assert_eq!(default_for_chips(Generation::V5p, 8_960), Some(shape("16x20x28")));
    assert_eq!(default_for_chips(Generation::V7x, 9_216), Some(shape("16x24x24")));
    assert_eq!(default_for_chips(Generation::V7x, 1), Some(shape("1x1x1")));
    let grid = [(1, "1x1"), (4, "2x2"), (8, "2x4"), (16, "4x4"), (32, "4x8"), (64, "8x8"), (128, "8x16")];
    for (chips, expected) in grid {
        assert_eq!(default_for_chips(Generation::V6e, chips), Some(shape(expected)));
    }
    assert_eq!(default_for_chips(Generation::V6e, 512), None);
    assert_eq!(largest_within_chips(Generation::V5p, 63), Some(shape("2x4x4")));
    assert_eq!(largest_within_chips(Generation::V5p, 400), Some(shape("4x8x12")));
    // 71 cubes in a row would be longer than any axis, so it is 70.
    assert_eq!(largest_within_chips(Generation::V5p, 71 * 64), Some(shape("8x20x28")));
    assert_eq!(largest_within_chips(Generation::V5p, 3), None);
}

#[test]
fn an_axis_wraps_where_there_are_links() {
    let table = [
        // Whole cubes wrap on every axis, also the short one; less than a cube on none.
        ("v5p", "4x4x4", [true, true, true], 1_000),
        ("v5p", "4x4x20", [true, true, true], 1_000),
        ("v5p", "2x4x4", [false, false, false], 2_000),
        ("v5p", "2x2x2", [false, false, false], 2_000),
        ("v5p", "2x2x1", [false, false, false], 3_000),
        ("v7x", "1x1x1", [false, false, false], 0),
        // A grid wraps over its whole edge.
        ("v6e", "16x16", [true, true, false], 1_000),
        ("v6e", "8x16", [false, true, false], 1_334),
        ("v6e", "8x8", [false, false, false], 2_000),
        ("v6e", "4x4", [false, false, false], 2_000),
        ("v6e", "1x1", [false, false, false], 0),
    ];
    for (kind, text, wraps, cost_milli) in table {
        let (generation, shape) = (generation(kind), shape(text));
        let found = [0, 1, 2].map(|axis| shape.wraps(generation, axis));
        assert_eq!(found, wraps, "{kind} {text}");
        assert_eq!(shape.ring_cost_milli(generation), cost_milli, "{kind} {text}");
        assert!(!shape.wraps(generation, 3));
    }
}

#[test]
fn hosts_of_a_slice() {
    // Shape, chips per host, hosts, chips of each worker.
    let table = [
        ("1x1", 8, Some(1), 1),
        ("2x2", 8, Some(1), 4),
        ("2x4", 8, Some(1), 8),
        ("4x4", 8, Some(2), 8),
        ("4x8", 8, Some(4), 8),
        ("8x8", 8, Some(8), 8),
        ("8x16", 8, Some(16), 8),
        ("16x16", 8, Some(32), 8),
        ("1x1", 4, Some(1), 1),
        ("2x2", 4, Some(1), 4),
        ("2x4", 4, Some(2), 4),
        ("16x16", 4, Some(64), 4),
        ("1x1", 1, Some(1), 1),
        ("2x2", 1, None, 1),
        ("2x4", 2, None, 2),
        ("1x1x1", 1, Some(1), 1),
        ("1x1x1", 4, Some(1), 1),
        ("2x2x1", 4, Some(1), 4),
        ("2x2x1", 8, None, 4),
        ("2x2x1", 1, None, 1),
        ("2x4x4", 4, Some(8), 4),
        ("4x4x4", 4, Some(16), 4),
        ("16x20x28", 4, Some(2_240), 4),
        ("16x24x24", 4, Some(2_304), 4),
        ("256x256x256", 4, None, 4),
    ];
    for (text, per_host, hosts, per_worker) in table {
        let request = SliceRequest { shape: shape(text), count: 3 };
        assert_eq!(request.hosts_per_slice(per_host), hosts, "{text} on hosts of {per_host}");
        assert_eq!(request.workers(per_host), hosts.map(|hosts| 3 * u32::from(hosts)));
        assert_eq!(request.chips_per_worker(per_host), per_worker, "{text} on hosts of {per_host}");
        assert_eq!(host_offsets(request.shape, per_host).map(|o| o.len()), hosts.map(usize::from));
    }
}

#[test]
fn a_request_is_checked_whole() {
    let check = |text, count| SliceRequest { shape: shape(text), count }.check(Generation::V5p);
    assert_eq!(check("4x4x8", 2), []);
    let found = check("8x4x4", 0);
    let fields: Vec<&str> = found.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(fields, ["shape", "count"]);
}

#[test]
fn ranks_run_along_x_then_y_then_z() {
    let text = |shape_text, per_host| {
        let offsets = host_offsets(shape(shape_text), per_host).unwrap();
        let parts: Vec<String> = offsets.iter().map(|[x, y, z]| format!("{x},{y},{z}")).collect();
        parts.join(" ")
    };
    assert_eq!(text("4x4", 4), "0,0,0 2,0,0 0,2,0 2,2,0");
    assert_eq!(text("4x8", 4), "0,0,0 2,0,0 0,2,0 2,2,0 0,4,0 2,4,0 0,6,0 2,6,0");
    assert_eq!(text("4x8", 8), "0,0,0 2,0,0 0,4,0 2,4,0");
    assert_eq!(text("8x4", 8), "0,0,0 2,0,0 4,0,0 6,0,0");
    assert_eq!(text("2x4x4", 4), "0,0,0 0,2,0 0,0,1 0,2,1 0,0,2 0,2,2 0,0,3 0,2,3");
    assert_eq!(text("1x1", 8), "0,0,0");
    // Over the whole slice, not cube by cube: the fifth host is a row further, in the first cube again.
    let wide = host_offsets(shape("8x4x4"), 4).unwrap();
    assert_eq!(wide[..6], [[0, 0, 0], [2, 0, 0], [4, 0, 0], [6, 0, 0], [0, 2, 0], [2, 2, 0]]);
}

/// Kind, chips per host, cube, place, and what is wrong with it.
type HostRow = (&'static str, u16, u16, [u8; 3], Option<&'static str>);

#[test]
fn a_host_is_where_a_host_can_be() {
    let table: [HostRow; 14] = [
        ("v5p", 4, 0, [0, 0, 0], None),
        ("v5p", 4, 139, [2, 2, 3], None),
        ("v5p", 4, 140, [0, 0, 0], Some("cube: must be between 0 and 139, got 140")),
        (
            "v5p",
            4,
            0,
            [1, 0, 0],
            Some("at: (1, 0, 0) is no place of a v5p host of 4 chips: x must be a multiple of 2 from 0 to 2"),
        ),
        (
            "v5p",
            4,
            0,
            [0, 0, 4],
            Some("at: (0, 0, 4) is no place of a v5p host of 4 chips: z must be a multiple of 1 from 0 to 3"),
        ),
        ("v5p", 8, 0, [0, 0, 0], Some("chips_per_host: a v5p host has 4 chips, got 8")),
        ("v5p", 1, 0, [0, 0, 0], Some("chips_per_host: a v5p host has 4 chips, got 1")),
        ("v7x", 1, 143, [3, 3, 3], None),
        ("v6e", 8, 0, [14, 12, 0], None),
        (
            "v6e",
            8,
            0,
            [14, 14, 0],
            Some(
                "at: (14, 14, 0) is no place of a v6e host of 8 chips: y must be a multiple of 4 from 0 to 12",
            ),
        ),
        ("v6e", 4, 0, [14, 14, 0], None),
        (
            "v6e",
            4,
            0,
            [14, 14, 1],
            Some(
                "at: (14, 14, 1) is no place of a v6e host of 4 chips: z must be a multiple of 1 from 0 to 0",
            ),
        ),
        ("v6e", 4, 1, [0, 0, 0], Some("cube: must be between 0 and 0, got 1")),
        ("v6e", 2, 0, [0, 0, 0], Some("chips_per_host: a v6e host has 1, 4 or 8 chips, got 2")),
    ];
    for (kind, per_host, cube, at, expected) in table {
        let found = position("a", cube, at).check(generation(kind), per_host);
        assert_eq!(found.err().map(|violation| violation.to_string()).as_deref(), expected);
    }
    assert_eq!(position("pod-7", 3, [2, 0, 1]).to_string(), "pod-7/3/(2, 0, 1)");
}

/// Positions of a slice that lies like this at a corner, in rank order; whole cubes from `cubes`.
fn hosts_at(lying: SliceShape, per_host: u16, corner: [u8; 3], cubes: &[u16]) -> Vec<PodPosition> {
    let along = lying.extent().map(|length| usize::from(length / CUBE_EDGE));
    let place = |[x, y, z]: [u16; 3]| {
        if !lying.is_whole_cubes() {
            let at = [corner[0] + x as u8, corner[1] + y as u8, corner[2] + z as u8];
            return position("a", cubes[0], at);
        }
        let [i, j, k] = [x, y, z].map(|place| usize::from(place / CUBE_EDGE));
        let at = [x, y, z].map(|place| (place % CUBE_EDGE) as u8);
        position("a", cubes[i + along[0] * (j + along[1] * k)], at)
    };
    host_offsets(lying, per_host).unwrap().into_iter().map(place).collect()
}

#[test]
fn what_forms_a_slice() {
    // Kind, chips per host, shape, as it lies, corner.
    let table = [
        ("v6e", 4, "4x8", "4x8", [0, 0, 0]),
        ("v6e", 4, "4x8", "4x8", [12, 6, 0]),
        ("v6e", 4, "4x8", "8x4", [2, 12, 0]),
        ("v6e", 8, "4x8", "8x4", [0, 4, 0]),
        ("v6e", 8, "2x4", "2x4", [14, 12, 0]),
        ("v6e", 8, "1x1", "1x1", [14, 12, 0]),
        ("v6e", 1, "1x1", "1x1", [15, 15, 0]),
        ("v5p", 4, "2x2x1", "2x2x1", [2, 2, 3]),
        ("v5p", 4, "2x2x2", "2x2x2", [0, 2, 1]),
        ("v5p", 4, "2x2x4", "2x2x4", [2, 0, 0]),
        ("v5p", 4, "2x2x4", "4x2x2", [0, 2, 2]),
        ("v5p", 4, "2x2x4", "2x4x2", [2, 0, 1]),
        ("v5p", 4, "2x4x4", "4x2x4", [0, 2, 0]),
        ("v5p", 4, "2x4x4", "4x4x2", [0, 0, 2]),
    ];
    for (kind, per_host, asked, lying, corner) in table {
        let hosts = hosts_at(shape(lying), per_host, corner, &[0]);
        let found = forms_slice(generation(kind), shape(asked), per_host, &hosts);
        assert_eq!(found, Ok(shape(lying)), "{kind} {asked} as {lying} at {corner:?}");
    }
    // Whole cubes: any cubes of the pod in any order, in the order of axes that was asked for.
    let hosts = hosts_at(shape("4x8x8"), 4, [0; 3], &[139, 2, 77, 0]);
    assert_eq!(forms_slice(Generation::V5p, shape("4x8x8"), 4, &hosts), Ok(shape("4x8x8")));
    let hosts = hosts_at(shape("8x4x4"), 4, [0; 3], &[5, 1]);
    assert_eq!(forms_slice(Generation::V4, shape("8x4x4"), 4, &hosts), Ok(shape("8x4x4")));
    // The same hosts are a 4x4x8 slice only in the rank order of one.
    let fault = forms_slice(Generation::V4, shape("4x4x8"), 4, &hosts);
    assert_eq!(fault, Err(SliceFault::Misplaced { rank: 2 }));
}

#[test]
fn what_forms_no_slice() {
    let grid = |change: fn(&mut Vec<PodPosition>)| {
        let mut hosts = hosts_at(shape("4x8"), 4, [2, 2, 0], &[0]);
        change(&mut hosts);
        let fault = forms_slice(Generation::V6e, shape("4x8"), 4, &hosts).unwrap_err();
        fault.to_string()
    };
    assert_eq!(grid(|hosts| hosts.truncate(7)), "the slice has 8 hosts, got 7");
    assert_eq!(grid(|hosts| hosts.clear()), "the slice has 8 hosts, got 0");
    assert_eq!(grid(|hosts| hosts[5].pod = Name::literal("b")), "rank 5 is in another pod than rank 0");
    assert_eq!(grid(|hosts| hosts.swap(3, 4)), "rank 3 is not at its place in the slice");
    assert_eq!(grid(|hosts| hosts[7] = hosts[6].clone()), "rank 7 is not at its place in the slice");
    assert_eq!(
        grid(|hosts| hosts[1].at[0] += 1),
        "host of rank 1: at: (5, 2, 0) is no place of a v6e host of 4 chips: x must be a multiple of 2 from 0 to 14"
    );
    let cubes = |change: fn(&mut Vec<PodPosition>)| {
        let mut hosts = hosts_at(shape("4x4x8"), 4, [0; 3], &[7, 3]);
        change(&mut hosts);
        let fault = forms_slice(Generation::V5p, shape("4x4x8"), 4, &hosts).unwrap_err();
        fault.to_string()
    };
    let twice = "the cube of rank 16 already stands for another part of the slice";
    assert_eq!(cubes(|hosts| hosts.iter_mut().for_each(|host| host.cube = 7)), twice);
    let other = "rank 9 is in another cube than the hosts it belongs with";
    assert_eq!(cubes(|hosts| hosts[9].cube = 3), other);
    assert_eq!(cubes(|hosts| hosts.swap(0, 1)), "rank 0 is not at its place in the slice");
    // A box that reaches over the edge of its cube is none, even where the next cube goes on.
    let mut over = hosts_at(shape("2x2x2"), 4, [0, 0, 2], &[4]);
    over[1] = position("a", 5, [0, 0, 0]);
    let fault = forms_slice(Generation::V5p, shape("2x2x2"), 4, &over);
    assert_eq!(fault, Err(SliceFault::OtherCube { rank: 1 }));
    // Hosts lie flat, so a slice of two cannot lie in x.
    let flat = [position("a", 0, [0, 0, 0]), position("a", 0, [2, 0, 0])];
    let fault = forms_slice(Generation::V5p, shape("2x2x2"), 4, &flat);
    assert_eq!(fault, Err(SliceFault::Misplaced { rank: 1 }));
    // Nor can a host of 8 chips lie on its side.
    let sides = [position("a", 0, [0, 0, 0]), position("a", 0, [2, 0, 0])];
    assert_eq!(forms_slice(Generation::V6e, shape("4x4"), 8, &sides), Ok(shape("4x4")));
    let sides = [position("a", 0, [0, 0, 0]), position("a", 0, [0, 4, 0])];
    let fault = forms_slice(Generation::V6e, shape("4x4"), 8, &sides);
    assert_eq!(fault, Err(SliceFault::Misplaced { rank: 1 }));
    let fault = forms_slice(Generation::V6e, shape("4x4"), 1, &sides);
    assert_eq!(fault, Err(SliceFault::HostSize { shape: shape("4x4"), chips_per_host: 1 }));
    let fault = forms_slice(Generation::V6e, shape("4x6"), 4, &sides);
    assert!(matches!(fault, Err(SliceFault::Shape(_))));
}

fn generations() -> impl Strategy<Value = Generation> {
    prop::sample::select(&Generation::ALL[..])
}

fn shapes() -> impl Strategy<Value = SliceShape> {
    let axis = prop_oneof![1u16..=32, prop::sample::select(vec![4u16, 8, 12, 16, 64, 256])];
    prop::collection::vec(axis, 2..=3).prop_map(|axes| SliceShape::new(&axes).unwrap())
}

proptest! {
    #[test]
    fn a_shape_comes_back_from_its_text(shape in shapes()) {
        prop_assert_eq!(SliceShape::parse(&shape.to_string()), Some(shape));
    }

    #[test]
    fn no_text_makes_parsing_panic(text in "[0-9xX+ -]{0,12}") {
        if let Some(shape) = SliceShape::parse(&text) {
            prop_assert_eq!(shape.to_string(), text);
        }
    }

    #[test]
    fn legal_is_what_is_listed(generation in generations(), shape in shapes()) {
        let listed = legal_shapes(generation);
        let in_order = {
            let mut axes = shape.axes().to_vec();
            if generation == Generation::V4 && shape.is_whole_cubes() {
                axes.sort_unstable();
            }
            SliceShape::new(&axes).unwrap()
        };
        prop_assert_eq!(shape.check(generation).is_ok(), listed.contains(&in_order));
    }

    #[test]
    fn neighbours_are_legal_and_near(generation in generations(), shape in shapes()) {
        let Err(illegal) = shape.check(generation) else { return Ok(()) };
        let chips: Vec<u32> = illegal.neighbours.iter().map(|s| s.chips()).collect();
        prop_assert!((1..=3).contains(&chips.len()));
        prop_assert!(chips.is_sorted());
        for neighbour in &illegal.neighbours {
            prop_assert_eq!(neighbour.check(generation), Ok(()));
        }
        // On each side there is one, unless the generation has none there.
        let listed = legal_shapes(generation);
        if listed.iter().any(|s| s.chips() <= shape.chips()) {
            prop_assert!(chips[0] <= shape.chips());
        }
        if listed.iter().any(|s| s.chips() >= shape.chips()) {
            prop_assert!(chips[chips.len() - 1] >= shape.chips());
        }
    }

    /// A slice cut out of a pod is one; with two of its hosts exchanged it is none.
    #[test]
    fn exchanged_ranks_form_no_slice(
        generation in generations(),
        pick: prop::sample::Index,
        turn: prop::sample::Index,
        size: prop::sample::Index,
        exchange: (prop::sample::Index, prop::sample::Index),
        seed: u16,
    ) {
        let sizes = generation.chips_per_host();
        let per_host = sizes[size.index(sizes.len())];
        let fit = |s: &SliceShape| s.hosts(per_host).is_some();
        let listed: Vec<SliceShape> = legal_shapes(generation).into_iter().filter(fit).collect();
        let asked = listed[pick.index(listed.len())];
        let hosts = asked.hosts(per_host);
        let ways: Vec<SliceShape> =
            asked.orientations().into_iter().filter(|lying| lying.hosts(per_host) == hosts).collect();
        // One host has one way to lie.
        let lying = if hosts == Some(1) { asked } else { ways[turn.index(ways.len())] };
        let cubes: Vec<u16> = match asked.cubes() {
            Some(cubes) => {
                let max = generation.cubes_per_pod_max();
                (0..cubes as u16).map(|cube| (cube + seed % max) % max).collect()
            }
            None => vec![0],
        };
        let mut found = hosts_at(lying, per_host, [0; 3], &cubes);
        prop_assert_eq!(forms_slice(generation, asked, per_host, &found), Ok(lying));
        let (a, b) = (exchange.0.index(found.len()), exchange.1.index(found.len()));
        found.swap(a, b);
        prop_assert_eq!(forms_slice(generation, asked, per_host, &found).is_ok(), a == b);
    }

    #[test]
    fn ranks_tile_the_slice(generation in generations(), pick: prop::sample::Index) {
        let listed = legal_shapes(generation);
        let shape = listed[pick.index(listed.len())];
        for per_host in generation.chips_per_host() {
            let Some(offsets) = host_offsets(shape, *per_host) else { continue };
            if offsets.len() == 1 {
                continue;
            }
            let step = host_extent(generation.is_cube_pod(), *per_host).unwrap();
            let mut chips = BTreeSet::new();
            for [x, y, z] in &offsets {
                for dx in 0..step[0] {
                    for dy in 0..step[1] {
                        prop_assert!(chips.insert([x + dx, y + dy, *z]), "a chip twice");
                    }
                }
            }
            prop_assert_eq!(chips.len(), shape.chips() as usize);
            let extent = shape.extent();
            prop_assert!(chips.iter().all(|chip| (0..3).all(|axis| chip[axis] < extent[axis])));
            prop_assert!(extent.iter().all(|length| generation.is_cube_pod() || *length <= GRID_EDGE));
            let keys: Vec<[u16; 3]> = offsets.iter().map(|[x, y, z]| [*z, *y, *x]).collect();
            prop_assert!(keys.is_sorted());
        }
    }
}
