//! Queues whose waits are worked out by hand, and what holds for all of them.

use muster_sim::html;
use muster_sim::queue::{Durations, Options, Report};
use proptest::prelude::*;

use crate::support::{Files, JOBS_HEADER, PLAIN, jobs, nodes, replay};

const ONE_NODE: &[&str] = &["n1 c1 A100 4"];

fn run(node_rows: &[&str], job_rows: &[&str], options: Options) -> Report {
    replay(&Files::new(&[("nodes.csv", &nodes(node_rows)), ("jobs.csv", &jobs(job_rows))]), options)
}

#[test]
fn four_like_jobs_wait_for_one_another() {
    // Each takes the whole node for 100 s: they start at 0, 100, 200 and 300.
    let report =
        run(ONE_NODE, &["a 0 100 1 4000", "b 10 100 1 4000", "c 20 100 1 4000", "d 30 100 1 4000"], PLAIN);
    assert_eq!((report.jobs, report.finished, report.placements), (4, 4, 4));
    // Waits of 0, 90, 180 and 270.
    assert_eq!((report.queue_avg_s, report.queue_p50_s, report.queue_p90_s), (135.0, 90.0, 270.0));
    assert_eq!((report.queue_p99_s, report.queue_max_s, report.jct_avg_s), (270.0, 270.0, 235.0));
    assert_eq!((report.completion.p50_s, report.completion.max_s), (190.0, 370.0));
    assert_eq!((report.utilisation, report.present_s), (1.0, 400.0));
    assert_eq!(report.queueing_by_size.len(), 1);
    assert_eq!(report.queueing_by_size[0].devices, "2-4");
    assert_eq!(report.queue_lengths.iter().map(|point| point.waiting_max).max(), Some(3));
    assert_eq!((report.preemptions, report.evictions, report.wall_s), (0, 0, 0.0));
}

#[test]
fn what_ends_makes_room_for_what_comes_at_the_same_moment() {
    let report = run(ONE_NODE, &["a 0 100 1 4000", "nothing 50 0 1 0", "b 100 7 2 2000"], PLAIN);
    assert_eq!((report.finished, report.queue_max_s), (3, 0.0));
    // 100 s and 7 s, all of the node.
    assert_eq!((report.present_s, report.utilisation), (107.0, 1.0));
    let sizes: Vec<&str> = report.queueing_by_size.iter().map(|class| class.devices.as_str()).collect();
    assert_eq!(sizes, ["0", "2-4"]);
}

#[test]
fn time_without_work_counts_for_nothing() {
    let day = 86_400;
    let late = format!("b {} 100 1 4000", 3 * day);
    let report = run(ONE_NODE, &["a 0 100 1 2000", &late], PLAIN);
    assert_eq!((report.present_s, report.utilisation), (200.0, 0.75));
    assert_eq!(report.regions[0].by_day_percent, [Some(50.0), None, None, Some(100.0)]);
    assert_eq!(report.device_hours_held, 0.167);
}

#[test]
fn at_home_a_job_waits_for_its_own_cluster() {
    let nodes = ["n1 east A100 4", "n2 west A100 4"];
    let jobs = ["a 0 100 1 4000 east", "b 0 100 1 4000 east", "c 0 100 1 4000"];
    let pooled = run(&nodes, &jobs, PLAIN);
    // Two run at once; whichever is third waits for 100 s.
    assert_eq!((pooled.queue_avg_s, pooled.queue_max_s), (33.333, 100.0));
    let home = run(&nodes, &jobs[..2], Options { home_only: true, ..PLAIN });
    assert_eq!((home.queue_avg_s, home.queue_max_s), (50.0, 100.0));
    let regions: Vec<&str> = home.regions.iter().map(|region| region.region.as_str()).collect();
    assert_eq!(regions, ["east", "west"]);
    assert_eq!((home.regions[0].utilisation, home.regions[1].utilisation), (1.0, 0.0));
    let nowhere = run(&nodes, &["a 0 1 1 1000 north"], Options { home_only: true, ..PLAIN });
    assert_eq!((nowhere.never_fit.count, nowhere.finished), (1, 0));
}

#[test]
fn a_gang_whose_node_is_lost_begins_again() {
    let files = Files::new(&[
        ("nodes.csv", &nodes(&["n1 c1 A100 4", "n2 c1 A100 4"])),
        ("jobs.csv", &jobs(&["gang 0 100 2 4000", "later 300 10 1 1000"])),
        ("failures.csv", "node_id,failed_s,repaired_s\nn2,50,150\nn1,1000,1001\n"),
    ]);
    let report = replay(&files, PLAIN);
    // It runs from 0 to 50 and from 150 to 250.
    assert_eq!((report.finished, report.placements, report.evictions, report.preemptions), (2, 3, 1, 0));
    assert_eq!((report.queue_max_s, report.completion.max_s), (150.0, 250.0));
    // 8 devices for 150 s and one for 10, of 260 s with work on 8 devices.
    assert_eq!(report.utilisation, 0.581731);
    assert_eq!(report.device_hours_lost, 0.111);
}

#[test]
fn a_job_may_run_for_exactly_its_limit() {
    let hour = ["a 0 3600 1 4000", "b 0 3601 1 4000", "c 0 9999999 1 4000"];
    let report = run(ONE_NODE, &hour, Options { durations: Durations::Limit, ..PLAIN });
    assert_eq!((report.finished, report.placements, report.evictions), (3, 3, 0));
}

#[test]
fn jobs_that_do_not_run_are_named() {
    let text = format!(
        "{JOBS_HEADER}\nbig,0,5,,1,8000,,,\nlong,0,,,1,1000,,,\nodd,1,5,H100,1,1000,,,\nfine,2,5,A100,1,1000,,,\n"
    );
    let files = Files::new(&[("nodes.csv", &nodes(ONE_NODE)), ("jobs.csv", &text)]);
    let report = replay(&files, PLAIN);
    assert_eq!((report.jobs, report.finished), (4, 1));
    let named: Vec<&str> = report.never_fit.examples.iter().map(|example| example.job.as_str()).collect();
    assert_eq!((report.never_fit.count, &named[..]), (2, &["big", "odd"][..]));
    assert_eq!(report.without_duration.examples[0].job, "long");
    let page = html::page(std::slice::from_ref(&report));
    assert!(page.contains("<li>big: ") && page.contains("<li>odd: "), "{page}");
}

#[test]
fn the_page_stands_alone_and_says_what_the_report_says() {
    let report = run(ONE_NODE, &["a 0 100 1 4000", "b 10 100 1 4000"], PLAIN);
    let page = html::page(std::slice::from_ref(&report));
    for part in ["<!doctype html>", "Queue length", "Waits by size", "Distribution", "by region and day"] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(page.matches("role=\"img\"").count(), 4, "every chart says what it shows");
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    for outside in ["http:", "https:", "<script", "url(", "@import", "NaN", "inf"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("prefers-color-scheme:dark"));
    // A trace without a single job has a page as well.
    let none = html::page(&[run(ONE_NODE, &[], PLAIN)]);
    assert!(none.contains("</html>") && !none.contains("NaN"));
}

#[test]
fn progress_is_told_by_the_day() {
    let files = Files::new(&[
        ("nodes.csv", &nodes(ONE_NODE)),
        ("jobs.csv", &jobs(&["a 0 100000 1 4000", "b 10 100000 1 4000"])),
    ]);
    let nodes = muster_sim::trace::read_nodes(&files.path("nodes.csv")).unwrap();
    let order = muster_sim::trace::SubmitOrder::Ascending;
    let jobs = muster_sim::trace::Jobs::open(&files.path("jobs.csv"), order).unwrap();
    let mut told = Vec::new();
    let mut progress = |now: &muster_sim::queue::Progress| told.push((now.day, now.waiting, now.running));
    muster_sim::queue::queue(&nodes, jobs, &[], PLAIN, &muster_sim::stopped, &mut progress).unwrap();
    // The first ends at 100,000 s and the second at 200,000 s: in the second and the third day.
    assert_eq!(told, [(1, 1, 1), (2, 0, 1)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever comes: each job ends once or never fits, nothing is held twice, and twice is the same.
    #[test]
    fn every_job_ends_once(
        rows in prop::collection::vec((0u64..30, 0u64..40, 1u32..4, 0u64..6), 0..40),
        home_only in any::<bool>(),
        durations in prop::sample::select(vec![Durations::True, Durations::Limit, Durations::Predicted]),
    ) {
        let mut submit_s = 0;
        let mut texts = Vec::new();
        for (n, (after_s, duration_s, replicas, devices)) in rows.iter().enumerate() {
            submit_s += after_s;
            let home = ["c1", "c2"][n % 2];
            texts.push(format!("j{n} {submit_s} {duration_s} {replicas} {} {home}", devices * 1_000));
        }
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let files = Files::new(&[
            ("nodes.csv", &nodes(&["n1 c1 A100 4", "n2 c1 A100 4", "n3 c2 A100 4"])),
            ("jobs.csv", &jobs(&texts)),
            ("failures.csv", "node_id,failed_s,repaired_s\nn1,20,60\nn3,40,41\nn2,50,90\n"),
        ]);
        let options = Options { home_only, durations, ..PLAIN };
        let report = replay(&files, options.clone());
        prop_assert_eq!(report.finished + report.never_fit.count, rows.len() as u64);
        prop_assert_eq!(report.unfinished.count, 0);
        prop_assert_eq!(report.placements, report.finished + report.preemptions + report.moves + report.evictions);
        prop_assert!(report.utilisation <= 1.0);
        prop_assert_eq!(&replay(&files, options), &report);
    }
}
