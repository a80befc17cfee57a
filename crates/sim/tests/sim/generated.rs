//! Traces that are made: the same bytes for the same seed, and what their names promise.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;

use flate2::Crc;
use flate2::read::GzDecoder;
use muster_sim::generate::{Like, Options, Shape, Trace, crowd, generate, write};
use muster_sim::trace::{Jobs, SubmitOrder, read_failures, read_nodes};

use crate::support::{Files, PLAIN};

fn options(shape: Shape, seed: u64) -> Options {
    Options { jobs: 2_000, ..Options::new(shape, seed) }
}

/// Checksums of what the files of seed 1 hold, nodes, jobs and failures together.
const PINNED: &[(Shape, u32)] = &[
    (Shape::KueueBaseline, 0xd58e_dcd5),
    (Shape::KueueLarge, 0x5c4d_23c2),
    (Shape::KueueTas, 0x5d77_0019),
    (Shape::KaiScale, 0x9221_fe69),
    (Shape::Crowd, 0xdd3b_4609),
    (Shape::Mix, 0x1ef0_2143),
    (Shape::Failures, 0xcb95_2d38),
];

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let mut wrong = Vec::new();
    for (shape, pinned) in PINNED {
        let directories = [Files::new(&[]), Files::new(&[])];
        let mut bytes = Vec::new();
        let mut sum = Crc::new();
        for directory in &directories {
            let trace = generate(&options(*shape, 1)).unwrap();
            let written = write(&trace, directory.directory()).unwrap();
            bytes.push(written.iter().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>());
        }
        assert_eq!(bytes[0], bytes[1], "{}", shape.as_str());
        for file in &bytes[0] {
            let mut content = Vec::new();
            GzDecoder::new(&file[..]).read_to_end(&mut content).unwrap();
            sum.update(&content);
        }
        if sum.sum() != *pinned {
            wrong.push(format!("{}: {:#010x}", shape.as_str(), sum.sum()));
        }
    }
    assert!(wrong.is_empty(), "other traces than before: {}", wrong.join(", "));
}

#[test]
fn another_seed_gives_another_trace() {
    for shape in [Shape::Crowd, Shape::Mix, Shape::Failures] {
        assert_ne!(generate(&options(shape, 1)).unwrap(), generate(&options(shape, 2)).unwrap());
    }
}

#[test]
fn what_is_written_can_be_read_and_replayed() {
    let directory = Files::new(&[]);
    let mix = generate(&Options { jobs: 300, ..options(Shape::Mix, 3) }).unwrap();
    write(&mix, directory.directory()).unwrap();
    let nodes = read_nodes(&directory.path("nodes.csv.gz")).unwrap();
    let jobs = Jobs::read(&directory.path("jobs.csv.gz"), SubmitOrder::Ascending).unwrap();
    assert_eq!((&nodes, &jobs), (&mix.nodes, &mix.jobs));
    let failing = Options { fleet: Some(nodes.clone()), ..options(Shape::Failures, 3) };
    let written = write(&generate(&failing).unwrap(), directory.directory()).unwrap();
    assert_eq!(written, [directory.path("failures.csv.gz")], "the fleet that was given is left alone");
    let failures = read_failures(&directory.path("failures.csv.gz"), &nodes).unwrap();
    let replay = || {
        let jobs = jobs.iter().cloned().map(Ok);
        let report =
            muster_sim::queue::queue(&nodes, jobs, &failures, PLAIN, &muster_sim::stopped, &mut |_| {});
        serde_json::to_string(&report.unwrap()).unwrap()
    };
    let first = replay();
    assert!(first.contains("\"finished\":300"), "{first}");
    assert!(first.ends_with("\"preemptions\":0,\"wall_s\":0.0}"), "{first}");
    assert_eq!(replay(), first);
}

fn queues(trace: &Trace) -> usize {
    trace.jobs.iter().map(|job| &job.queue).collect::<BTreeSet<_>>().len()
}

#[test]
fn shapes_have_the_sizes_of_what_they_are_named_after() {
    let baseline = generate(&options(Shape::KueueBaseline, 1)).unwrap();
    assert_eq!((baseline.jobs.len(), queues(&baseline), baseline.nodes.len()), (15_000, 30, 75));
    let large = generate(&options(Shape::KueueLarge, 1)).unwrap();
    assert_eq!((large.jobs.len(), queues(&large)), (50_000, 1_000));
    let topology = generate(&options(Shape::KueueTas, 1)).unwrap();
    assert_eq!((topology.jobs.len(), topology.nodes.len()), (15_000, 640));
    assert!(topology.jobs.iter().all(|job| job.replicas >= 4));
    let scale = generate(&options(Shape::KaiScale, 1)).unwrap();
    assert_eq!(scale.nodes.len(), 500);
    assert!(scale.jobs.iter().any(|job| job.replicas == 512));
    assert_eq!(scale.jobs.iter().filter(|job| job.submit_s == 0).count(), 4_000);
}

/// Whole hosts are made free among small jobs: as soon as those have run for the minimum time and anything
/// happens. Victims taken by what each of them loses, wherever it is, left nobody a whole host for hours.
#[test]
fn a_whole_host_is_made_free_in_a_crowd() {
    let trace = crowd(40, 1);
    let jobs = trace.jobs.iter().cloned().map(Ok);
    let report =
        muster_sim::queue::queue(&trace.nodes, jobs, &[], PLAIN, &muster_sim::stopped, &mut |_| {}).unwrap();
    let whole = report.queueing_by_size.iter().find(|class| class.devices == "5-8").unwrap();
    assert_eq!((whole.waits.count, report.finished), (4, 40 * 48 + 4));
    assert!(whole.waits.max_s <= 600.0, "{:?}", whole.waits);
    assert!(report.preemptions <= 4 * 8, "{} stopped", report.preemptions);
}

#[test]
fn mixes_have_the_marginals_they_were_made_of() {
    // Mean and median size, median and mean run time. Means of heavy tails come slowly.
    let cases = [
        (Like::Seren, 5.68, 1_000, 122, 1_414.0),
        (Like::Kalos, 26.8, 1_000, 124, 1_260.0),
        (Like::Philly, 1.93, 1_000, 874, 18_006.0),
        (Like::Helios, 3.72, 1_000, 206, 6_652.0),
        (Like::Pai, 0.68, 500, 481, 4_787.0),
    ];
    for (like, size_mean, size_median, duration_median, duration_mean) in cases {
        let options = Options { like: Some(like), jobs: 40_000, ..Options::new(Shape::Mix, 5) };
        let trace = generate(&options).unwrap();
        let mut sizes: Vec<u64> = trace.jobs.iter().map(|job| job.total_milli()).collect();
        let mut durations: Vec<u64> = trace.jobs.iter().map(|job| job.duration_s.unwrap()).collect();
        sizes.sort_unstable();
        durations.sort_unstable();
        let mean = |values: &[u64]| values.iter().sum::<u64>() as f64 / values.len() as f64;
        let near = |found: f64, wanted: f64, part: f64| (found / wanted - 1.0).abs() < part;
        let name = like.as_str();
        assert_eq!(sizes[sizes.len() / 2], size_median, "{name}");
        assert!(near(mean(&sizes) / 1_000.0, size_mean, 0.1), "{name}: {}", mean(&sizes));
        assert!(near(durations[durations.len() / 2] as f64, f64::from(duration_median), 0.05), "{name}");
        assert!(near(mean(&durations), duration_mean, 0.2), "{name}: {}", mean(&durations));
    }
}

#[test]
fn nodes_fail_at_the_published_rate() {
    for (like, rate) in [(Like::Rsc1, 6.50), (Like::Rsc2, 2.34), (Like::Llama3, 3.79)] {
        let options = Options { like: Some(like), days: 300, ..Options::new(Shape::Failures, 9) };
        let trace = generate(&options).unwrap();
        let per_thousand_days = trace.failures.len() as f64 / (trace.nodes.len() as f64 * 300.0) * 1_000.0;
        assert!((per_thousand_days / rate - 1.0).abs() < 0.1, "{}: {per_thousand_days}", like.as_str());
    }
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let with = |change: fn(&mut Options), shape| {
        let mut options = options(shape, 1);
        change(&mut options);
        generate(&options).unwrap_err().to_string()
    };
    assert!(with(|o| o.like = Some(Like::Rsc1), Shape::Mix).starts_with("a mix is like one of seren"));
    assert!(with(|o| o.like = Some(Like::Pai), Shape::Failures).contains("rsc1, rsc2, llama3"));
    assert!(with(|o| o.like = Some(Like::Pai), Shape::KaiScale).contains("like nothing else"));
    assert_eq!(with(|o| o.jobs = 0, Shape::Mix), "jobs: must be from 1 to 5000000, got 0");
    assert_eq!(with(|o| o.load_percent = 0, Shape::Mix), "load: must be from 1 to 1000 percent, got 0");
    assert_eq!(with(|o| o.days = 0, Shape::Failures), "days: must be from 1 to 3660, got 0");
}
