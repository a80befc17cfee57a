//! Ranks on generated topologies, against every permutation on small ones; what programs are told; pages and servers.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::collections::{BTreeMap, BTreeSet};

use muster_parallel::collective::Fabric;
use muster_parallel::ranks::{Host, RankMap, imagined, map, mesh, traffic};
use muster_parallel::search::{Fixed, Question, usual_program};
use muster_parallel::serving::Serving;
use muster_parallel::{
    Calibration, Layout, Model, Precision, Program, Report, Training, accelerator, html, parse_config,
    programs,
};
use proptest::prelude::*;

const LLAMA_8B: &str = r#"{"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,
    "num_key_value_heads":8,"intermediate_size":14336,"vocab_size":128256}"#;

fn gpt() -> Model {
    Model::gpt(24, 2048, 16, 51200, 2048)
}

fn training(batch: u64) -> Training {
    Training { batch, sequence: 2048, precision: Precision::Bf16, program: Program::MEGATRON_CORE }
}

fn mapped(layout: &Layout, hosts: &[Host]) -> RankMap {
    map(&gpt(), layout, &training(64), &accelerator::find("h100").unwrap(), hosts).unwrap()
}

/// Hosts of racks: how many devices each host has.
fn fleet(racks: &[Vec<u64>]) -> Vec<Host> {
    let mut hosts = Vec::new();
    for (rack, sizes) in racks.iter().enumerate() {
        for devices in sizes {
            hosts.push(Host {
                name: format!("host-{}", hosts.len()),
                devices: *devices,
                place: vec![format!("rack-{rack}")],
            });
        }
    }
    hosts
}

#[test]
fn traffic_is_that_of_the_worked_examples() {
    let close = |ours: f64, published: f64| (ours / published - 1.0).abs() < 0.02;
    for (layers, hidden, heads, pipeline, data, batch, tensor_gb, pipeline_gb) in [
        (96, 12288, 96, 12, 16, 1536, 270.6, 9.66),
        (105, 20480, 128, 35, 8, 2240, 493.0, 47.0),
        (128, 25600, 160, 64, 6, 3072, 752.0, 107.0),
    ] {
        let model = Model::gpt(layers, hidden, heads, 51200, 2048);
        let layout = Layout { tensor: 8, pipeline, data, ..Layout::ONE };
        let sent = traffic(&model, &layout, &training(batch));
        assert!(close(sent.tensor_bytes / 1e9, tensor_gb), "{sent:?}");
        assert!(close(sent.pipeline_bytes / 1e9, pipeline_gb), "{sent:?}");
        let split = Layout { sequence_parallel: true, ..layout };
        let sent = traffic(&model, &split, &training(batch));
        assert!(close(sent.pipeline_bytes / 1e9, pipeline_gb / 8.0), "{sent:?}");
    }
}

#[test]
fn on_whole_hosts_tensor_groups_stay_inside_and_data_groups_on_their_rail() {
    let layout = Layout { tensor: 8, pipeline: 2, data: 4, ..Layout::ONE };
    let found = mapped(&layout, &imagined(&accelerator::find("h100").unwrap(), 64));
    assert_eq!(found.widest[0], 0);
    assert!(found.rail_aligned);
    assert!(found.environment.contains(&("NCCL_CROSS_NIC".to_owned(), "0".to_owned())));
    assert!(found.imex_domains.is_empty());
    let numbers: Vec<u64> = found.ranks.iter().map(|rank| rank.rank).collect();
    assert_eq!(numbers, (0..64).collect::<Vec<u64>>());
}

#[test]
fn a_rack_of_fast_links_is_one_imex_domain() {
    let kind = accelerator::find("gb200").unwrap();
    let layout = Layout { tensor: 8, data: 8, ..Layout::ONE };
    let found = map(&gpt(), &layout, &training(64), &kind, &imagined(&kind, 64)).unwrap();
    assert_eq!(found.imex_domains.len(), 1);
    assert_eq!(found.imex_domains[0].len(), 16);
    assert!(found.environment.contains(&("NCCL_MNNVL_ENABLE".to_owned(), "1".to_owned())));
}

#[test]
fn hosts_that_do_not_match_are_refused() {
    let kind = accelerator::find("h100").unwrap();
    let layout = Layout { data: 8, ..Layout::ONE };
    let fail = |hosts: &[Host]| map(&gpt(), &layout, &training(64), &kind, hosts).unwrap_err().to_string();
    assert!(fail(&[]).contains("needs 8 devices, and the 0 hosts have 0"));
    assert!(fail(&fleet(&[vec![4]])).contains("the 1 hosts have 4"));
    let mut hosts = fleet(&[vec![4, 4]]);
    hosts[1].place.clear();
    assert!(fail(&hosts).contains("name the same for each"));
    hosts[0].devices = u64::MAX;
    assert!(fail(&hosts).contains("needs 8 devices"));
}

/// Groups of `size` consecutive ranks that lie whole in one domain, by domain: the host itself at depth 0, and the domains
/// around it from the narrowest on.
fn whole_groups(found: &RankMap, hosts: &[Host], size: usize, depth: usize) -> BTreeMap<String, u64> {
    let domains: BTreeMap<&str, String> =
        hosts.iter().map(|host| (host.name.as_str(), domain(host, depth))).collect();
    let mut counts = BTreeMap::new();
    for group in found.ranks.chunks(size) {
        let first = &domains[group[0].host.as_str()];
        if group.iter().all(|rank| &domains[rank.host.as_str()] == first) {
            *counts.entry(first.clone()).or_insert(0) += 1;
        }
    }
    counts
}

fn domain(host: &Host, depth: usize) -> String {
    if depth == 0 { host.name.clone() } else { host.place[..host.place.len() + 1 - depth].join("/") }
}

/// Hosts in racks in blocks.
fn tree(blocks: &[Vec<Vec<u64>>]) -> Vec<Host> {
    let mut hosts = Vec::new();
    for (block, racks) in blocks.iter().enumerate() {
        for (rack, sizes) in racks.iter().enumerate() {
            for devices in sizes {
                let place = vec![format!("block-{block}"), format!("rack-{rack}")];
                hosts.push(Host { name: format!("host-{}", hosts.len()), devices: *devices, place });
            }
        }
    }
    hosts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// As many tensor parallel groups lie inside each host, each rack and each block as could, and of what these groups
    /// are put together to, as many context parallel groups. More than 32 devices, so that nothing is exchanged for the
    /// sake of other groups.
    #[test]
    fn no_inner_group_crosses_a_level_that_it_could_have_stayed_in(
        blocks in proptest::collection::vec(
            proptest::collection::vec(proptest::collection::vec(1..9_u64, 1..5), 1..4),
            1..4,
        ),
        exponents in (0..4_u32, 0..3_u32),
    ) {
        let (tensor, context) = (1_u64 << exponents.0, 1_u64 << exponents.1);
        let mut blocks = blocks;
        let total: u64 = blocks.iter().flatten().flatten().sum();
        let inner = tensor * context;
        // One host more makes it whole, in a block that has nothing else, and large enough.
        blocks.push(vec![vec![40 * inner + (inner - total % inner) % inner]]);
        let hosts = tree(&blocks);
        let total: u64 = hosts.iter().map(|host| host.devices).sum();
        let layout = Layout { tensor, context, data: total / inner, ..Layout::ONE };
        let found = mapped(&layout, &hosts);
        let mut used: Vec<(&str, u64)> =
            found.ranks.iter().map(|rank| (rank.host.as_str(), rank.device)).collect();
        used.sort_unstable();
        used.dedup();
        prop_assert_eq!(used.len() as u64, total, "each device has one rank");
        for depth in 0..=2 {
            let mut devices: BTreeMap<String, u64> = BTreeMap::new();
            for host in &hosts {
                *devices.entry(domain(host, depth)).or_default() += host.devices;
            }
            let of_tensor = whole_groups(&found, &hosts, tensor as usize, depth);
            let of_context = whole_groups(&found, &hosts, inner as usize, depth);
            for (name, devices) in devices {
                let groups = of_tensor.get(&name).copied().unwrap_or(0);
                prop_assert_eq!(groups, devices / tensor, "tensor groups in {}", name);
                let outer = of_context.get(&name).copied().unwrap_or(0);
                prop_assert_eq!(outer, groups / context, "context groups in {}", name);
            }
        }
    }

    /// On generated fleets of six devices no order of all 720 is two percent cheaper.
    #[test]
    fn on_small_generated_fleets_no_permutation_is_two_percent_cheaper(
        owners in proptest::collection::vec(0..4_usize, 6),
        racks in proptest::collection::vec(0..2_usize, 4),
        which in 0..8_usize,
    ) {
        let sizes = [(2, 1, 3), (3, 1, 2), (2, 3, 1), (3, 2, 1), (1, 2, 3), (1, 3, 2), (6, 1, 1), (1, 1, 6)];
        let mut hosts: Vec<Host> = Vec::new();
        for (host, rack) in racks.iter().enumerate() {
            let devices = owners.iter().filter(|owner| **owner == host).count() as u64;
            if devices > 0 {
                let name = format!("host-{}", hosts.len());
                hosts.push(Host { name, devices, place: vec![format!("rack-{rack}")] });
            }
        }
        let (tensor, pipeline, data) = sizes[which];
        let layout = Layout { tensor, pipeline, data, ..Layout::ONE };
        let (found, least) = (mapped(&layout, &hosts).communication_us, least_cost(&layout, &hosts));
        prop_assert!(found <= least * 1.02 && found >= least * 0.999, "{:?} {:?}: {} {}", layout, hosts, found, least);
    }
}

/// Every different order of the hosts that devices belong to; devices of one host are alike.
fn permutations(owners: &[usize]) -> BTreeSet<Vec<usize>> {
    let mut found = BTreeSet::from([Vec::new()]);
    for owner in owners {
        let mut longer = BTreeSet::new();
        for order in &found {
            for place in 0..=order.len() {
                let mut next: Vec<usize> = order.clone();
                next.insert(place, *owner);
                longer.insert(next);
            }
        }
        found = longer;
    }
    found
}

/// The planner's model of cost, written a second time: groups by position, the widest domain that each crosses.
fn cost_of(layout: &Layout, order: &[usize], hosts: &[Host], data_first: bool) -> f64 {
    let kind = accelerator::find("h100").unwrap();
    let sent = traffic(&gpt(), layout, &training(64));
    let place = |rank: usize| order[rank];
    let us_per_byte = |a: usize, b: usize| {
        if a == b {
            1.0 / 450e3
        } else if hosts[a].place == hosts[b].place {
            1.0 / (kind.network_gbs * 1e3)
        } else {
            1.0 / (kind.network_gbs * 1e3 * 0.8)
        }
    };
    let (t, d, p) = (layout.tensor as usize, layout.data as usize, layout.pipeline as usize);
    let (data_stride, stage_stride) = if data_first { (t, t * d) } else { (t * p, t) };
    let mut cost = 0.0;
    for (size, stride, bytes) in [(t, 1, sent.tensor_bytes), (d, data_stride, sent.data_bytes)] {
        let mut slowest: f64 = 0.0;
        for first in (0..order.len()).filter(|at| (at / stride).is_multiple_of(size)) {
            for a in 0..size {
                for b in 0..a {
                    slowest = slowest.max(us_per_byte(place(first + a * stride), place(first + b * stride)));
                }
            }
        }
        cost += slowest * bytes;
    }
    if p > 1 {
        let mut slowest: f64 = 0.0;
        for first in (0..order.len()).filter(|at| (at / stage_stride).is_multiple_of(p)) {
            let hops = (1..p).map(|at| {
                us_per_byte(place(first + at * stage_stride), place(first + (at - 1) * stage_stride))
            });
            slowest = slowest.max(hops.sum::<f64>() / (p - 1) as f64);
        }
        cost += slowest * sent.pipeline_bytes;
    }
    cost
}

/// The host of each device.
fn owners(hosts: &[Host]) -> Vec<usize> {
    let each = hosts.iter().enumerate();
    each.flat_map(|(at, host)| std::iter::repeat_n(at, host.devices as usize)).collect()
}

/// What the best of all orders costs.
fn least_cost(layout: &Layout, hosts: &[Host]) -> f64 {
    permutations(&owners(hosts))
        .iter()
        .flat_map(|order| [true, false].map(|first| cost_of(layout, order, hosts, first)))
        .fold(f64::INFINITY, f64::min)
}

#[test]
fn on_small_gangs_no_permutation_is_two_percent_cheaper() {
    let layouts = [(2, 2, 2), (4, 1, 2), (2, 4, 1), (1, 2, 4), (2, 1, 4), (1, 4, 2)];
    let fleets = [
        fleet(&[vec![4, 4]]),
        fleet(&[vec![2, 2], vec![2, 2]]),
        fleet(&[vec![3, 3], vec![2]]),
        fleet(&[vec![1, 3], vec![3, 1]]),
        fleet(&[vec![5, 1], vec![1, 1]]),
    ];
    for (at, hosts) in fleets.iter().enumerate() {
        let orders = permutations(&owners(hosts));
        assert!(orders.len() >= 56, "{at}: {} orders", orders.len());
        for (tensor, pipeline, data) in layouts {
            let layout = Layout { tensor, pipeline, data, ..Layout::ONE };
            let found = mapped(&layout, hosts).communication_us;
            let least = least_cost(&layout, hosts);
            assert!(found <= least * 1.02 && found >= least * 0.999, "{layout:?} {hosts:?}: {found} {least}");
        }
    }
}

#[test]
fn tensor_groups_of_a_slice_take_axes_that_wrap() {
    let mesh_of = |kind: &str, tensor: u64, data: u64| {
        let layout = Layout { tensor, data, ..Layout::ONE };
        mesh(&accelerator::find(kind).unwrap(), &layout)
    };
    let found = mesh_of("v6e", 16, 8).unwrap();
    assert_eq!((found.shape.as_slice(), found.tensor_axes.as_slice()), (&[8, 16][..], &[1][..]));
    assert!(found.tensor_wraps && found.wraps == [false, true]);
    let found = mesh_of("v6e", 8, 8).unwrap();
    assert!(!found.tensor_wraps && found.shape == [8, 8]);
    let found = mesh_of("v5p", 4, 16).unwrap();
    assert!(found.tensor_wraps && found.shape == [4, 4, 4]);
    let found = mesh_of("v5p", 8, 64).unwrap();
    assert!(found.tensor_wraps && found.shape == [8, 8, 8]);
    let found = mesh_of("v4", 2, 2).unwrap();
    assert!(!found.tensor_wraps && found.shape == [2, 2, 1]);
    assert_eq!(mesh_of("v6e", 1, 512).unwrap().slices, 2);
    assert!(mesh_of("v6e", 1, 24).unwrap_err().to_string().contains("no slices of v6e"));
    assert!(mesh_of("h100", 1, 8).unwrap_err().to_string().contains("no torus"));
}

/// A group that fills axes of a slice has two links for each that wraps and one for each that does not; a part of an axis
/// is never a ring.
#[test]
fn a_group_on_a_torus_has_the_links_that_wrap_rules_give_it() {
    for (kind, chips, groups) in [
        ("v6e", 256, &[(256, 4), (16, 2), (8, 1), (32, 2)][..]),
        ("v6e", 128, &[(128, 3), (16, 2), (8, 1)]),
        ("v6e", 64, &[(64, 2), (8, 1), (4, 1)]),
        ("v5p", 64, &[(4, 2), (16, 4), (64, 6), (2, 1)]),
        ("v5p", 512, &[(8, 2), (64, 4), (512, 6), (4, 1)]),
        ("v5p", 16, &[(16, 3), (4, 2), (2, 1)]),
        ("v4", 2 * 3072, &[(12, 2), (256, 4), (3072, 6)]),
    ] {
        let slice = accelerator::find(kind).unwrap().slice(chips).unwrap();
        for (size, links) in groups {
            assert_eq!(slice.ring_links(*size), *links, "{size} of {chips} {kind}: {slice:?}");
        }
    }
    // Twice the time where it does not wrap: eight chips of an axis of sixteen, and sixteen that are all of it.
    let kind = accelerator::find("v6e").unwrap();
    let fabric = Fabric::new(&kind, &Calibration::of(&kind), 256);
    let bytes = 1e12;
    let part = fabric.gather_us(bytes, fabric.group(8, 1)) / (7.0 / 8.0);
    let whole = fabric.gather_us(bytes, fabric.group(16, 1)) / (15.0 / 16.0);
    assert!((part / whole - 2.0).abs() < 0.001, "{part} {whole}");
}

fn question(config: &str, kind: &str, devices_max: u64) -> Question {
    let accelerator = accelerator::find(kind).unwrap();
    Question {
        model: parse_config(config).unwrap(),
        training: Training {
            batch: 256,
            sequence: 4096,
            precision: Precision::Bf16,
            program: usual_program(&accelerator),
        },
        accelerator,
        calibration: Calibration::of(&accelerator),
        devices_max,
        fixed: Fixed::default(),
    }
}

#[test]
fn programs_are_told_the_sizes_of_the_layout() {
    let layout =
        Layout { tensor: 4, pipeline: 4, data: 2, interleave: 2, sequence_parallel: true, ..Layout::ONE };
    let model = parse_config(LLAMA_8B).unwrap();
    let told = programs::arguments(&model, &layout, &training(64));
    let megatron = told.megatron.join(" ");
    for words in [
        "--tensor-model-parallel-size 4",
        "--pipeline-model-parallel-size 4",
        "--num-layers-per-virtual-pipeline-stage 4",
        "--sequence-parallel",
        "--global-batch-size 64",
    ] {
        assert!(megatron.contains(words), "{megatron}");
    }
    assert!(told.torchtitan.contains(&"--parallelism.tensor_parallel_degree=4".to_owned()));
    assert!(told.maxtext.contains(&"ici_pipeline_parallelism=4".to_owned()));
    assert!(told.deepspeed.contains("\"gradient_accumulation_steps\":32"), "{}", told.deepspeed);
    assert!(told.environment.contains(&("PARALLEL_DATA".to_owned(), "2".to_owned())));
}

#[test]
fn a_page_needs_nothing_else_and_shows_nothing_unescaped() {
    for kind in ["h100", "v5p"] {
        let mut question = question(LLAMA_8B, kind, 128);
        question.model.architecture = "<script>&\"'".to_owned();
        let report = Report::new(&question, Some(2.5)).unwrap();
        assert!(report.usd_per_million_tokens.unwrap() > 0.0);
        let page = html::page(&report);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;&amp;&quot;&#39;"));
        for foreign in ["http://", "https://", "url(", "@import"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert_eq!(page.matches("<svg").count(), 3);
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(!page.contains("NaN") && !page.contains("=\"inf"), "a size that is no number");
    }
    for price in [-1.0, f64::NAN, f64::INFINITY] {
        let text = Report::new(&question(LLAMA_8B, "h100", 8), Some(price)).unwrap_err().to_string();
        assert!(text.contains("price"), "{text}");
    }
}

#[test]
fn a_server_reads_its_weights_and_its_cache_for_every_token() {
    let serving = |requests: u64| Serving {
        model: parse_config(LLAMA_8B).unwrap(),
        accelerator: accelerator::find("h200").unwrap(),
        context: 2048,
        requests,
        bytes: 2,
    };
    for (requests, published_ms) in [(1, 4.3), (32, 6.4), (128, 13.1)] {
        let server = serving(requests).plan().unwrap()[0];
        assert_eq!((server.tensor, server.requests), (1, requests));
        assert!((server.decode_ms / published_ms - 1.0).abs() < 0.02, "{requests}: {}", server.decode_ms);
        assert_eq!(server.cache_bytes_per_token, 128.0 * 1024.0);
    }
    assert!(serving(0).plan().unwrap_err().to_string().contains("requests is 0"));
    let large = Serving { context: 1 << 28, ..serving(1) };
    assert!(large.plan().unwrap_err().to_string().contains("the cheapest change that helps"));
}
