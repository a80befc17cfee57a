//! Recorded traces, where there are any: what must hold whatever the policy.

use std::env;
use std::path::PathBuf;
use std::time::Instant;

use muster_sim::pack::pack;
use muster_sim::queue::{Durations, Options, queue};
use muster_sim::trace::{Jobs, Order, SubmitOrder, read_nodes};
use muster_sim::{EPOCH_MS, Preset, ReplayPolicy, html};

/// What the best published method allocates of this fleet once 130 % of it have arrived.
const FRAGMENTATION_DESCENT_PERCENT: f64 = 95.39;

fn traces() -> Option<PathBuf> {
    let directory = env::var_os("MUSTER_TRACES").map(PathBuf::from);
    if directory.is_none() {
        println!("skipped: MUSTER_TRACES is not set");
    }
    directory
}

#[test]
fn a_fleet_is_filled_with_no_more_than_arrived_or_fits() {
    let Some(directory) = traces() else { return };
    let directory = directory.join("openb");
    let nodes = read_nodes(&directory.join("nodes_gpu.csv.gz")).unwrap();
    let jobs = Jobs::read(&directory.join("jobs_default.csv.gz"), SubmitOrder::Any).unwrap();
    let order = Order::open(&directory.join("orders/default.42.txt.gz"), &jobs).unwrap();
    let started = Instant::now();
    let report =
        pack(&nodes, &jobs, order, &ReplayPolicy::default(), EPOCH_MS, &|| started.elapsed()).unwrap();
    println!(
        "allocated at 100 %: {:?}, at 130 %: {:?}, {} placements/s, {} s of the scheduler, {:?} in all",
        report.allocated_percent_at_100,
        report.allocated_percent_at_130,
        report.placements_per_s,
        report.scheduler_s,
        started.elapsed()
    );
    // What is claimed: more than fragmentation gradient descent, the best published method, on this order.
    assert!(
        report.allocated_percent_at_130.is_some_and(|percent| percent > FRAGMENTATION_DESCENT_PERCENT),
        "{:?}",
        report.allocated_percent_at_130
    );
    assert_eq!(report.capacity_milli, 6_212_000);
    assert_eq!(report.placed + report.unplaced.no_room + report.unplaced.never_fit, report.jobs);
    assert_eq!(report.allocated_percent.len(), 131);
    assert!(report.allocated_milli <= report.arrived_milli.min(report.capacity_milli));
    for (arrived, pair) in report.allocated_percent.windows(2).enumerate() {
        assert!(pair[0] <= pair[1], "at {arrived} % nothing ends");
        // Half a percent of rounding.
        assert!(pair[1] <= (arrived as f64 + 1.5).min(100.0), "{} at {} %", pair[1], arrived + 1);
    }
}

#[test]
fn every_job_of_a_month_ends_once() {
    let Some(directory) = traces() else { return };
    let directory = directory.join("itp2021");
    let nodes = read_nodes(&directory.join("nodes_tight.csv.gz")).unwrap();
    // Debug builds check far more and take their time; the first part has busy days as well.
    let whole = if cfg!(debug_assertions) { 2_000 } else { usize::MAX };
    let part = if cfg!(debug_assertions) { 500 } else { 2_000 };
    let mut cases = vec![(Preset::Default, false, whole)];
    cases.extend(Preset::ALL.iter().map(|preset| (*preset, true, part)));
    for (preset, home_only, count) in cases {
        let jobs =
            Jobs::open(&directory.join("jobs_dev.csv.gz"), SubmitOrder::Ascending).unwrap().take(count);
        let options = Options { durations: Durations::Predicted, home_only, ..Options::under(preset) };
        let started = Instant::now();
        let report = queue(&nodes, jobs, &[], options, &|| started.elapsed(), &mut |_| {}).unwrap();
        println!(
            "{preset}, home only {home_only}, {} jobs: avg JCT {} s, queue avg {} s, p50 {} s, p90 {} s, \
             p99 {} s, max {} s, utilisation {}, {} decisions/s, {} s in all",
            report.jobs,
            report.jct_avg_s,
            report.queue_avg_s,
            report.queue_p50_s,
            report.queue_p90_s,
            report.queue_p99_s,
            report.queue_max_s,
            report.utilisation,
            report.decisions_per_s,
            report.wall_s
        );
        assert_eq!(report.finished + report.never_fit.count, report.jobs);
        assert_eq!((report.unfinished.count, report.without_duration.count), (0, 0));
        assert_eq!(report.placements, report.finished + report.preemptions + report.moves);
        assert!(report.utilisation > 0.0 && report.utilisation <= 1.0, "{}", report.utilisation);
        for region in &report.regions {
            let mut days = region.by_day_percent.iter().flatten();
            assert!(days.all(|percent| *percent <= 100.0), "{}", region.region);
        }
        assert!(html::page(std::slice::from_ref(&report)).contains("</html>"));
    }
}
