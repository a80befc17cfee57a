//! Filling a fleet, worked out by hand.

use muster_sim::pack::{PackError, Report, Unplaced, pack};
use muster_sim::trace::{Jobs, Order, SubmitOrder, read_nodes};
use muster_sim::{EPOCH_MS, ReplayPolicy, stopped};

use crate::support::{Files, JOBS_HEADER, NODES_HEADER, jobs, nodes};

fn fill(nodes: &str, jobs: &str, order: &[&str]) -> Result<Report, PackError> {
    let files = Files::new(&[("nodes.csv", nodes), ("jobs.csv", jobs), ("order.txt", &order.join("\n"))]);
    let nodes = read_nodes(&files.path("nodes.csv")).unwrap();
    let jobs = Jobs::read(&files.path("jobs.csv"), SubmitOrder::Any).unwrap();
    let order = Order::open(&files.path("order.txt"), &jobs).unwrap();
    pack(&nodes, &jobs, order, &ReplayPolicy::default(), EPOCH_MS, &stopped)
}

/// Two nodes of two devices each.
fn two_nodes() -> String {
    nodes(&["n1 c1 A100 2", "n2 c1 A100 2"])
}

#[test]
fn two_nodes_are_filled_as_worked_out_by_hand() {
    let jobs = jobs(&["whole 9 0 1 2000", "half 5 0 1 1000"]);
    // Arrived 50 %: both devices of a node. 75 %: one of the other. 125 %: no node has two left.
    // 150 %: too late to be looked at.
    let report = fill(&two_nodes(), &jobs, &["whole", "half", "whole", "half"]).unwrap();
    let curve = &report.allocated_percent;
    assert_eq!(curve.len(), 131);
    let places =
        [(0, 0.0), (49, 0.0), (50, 50.0), (74, 50.0), (75, 75.0), (124, 75.0), (125, 75.0), (130, 75.0)];
    for (arrived, allocated) in places {
        assert_eq!(curve[arrived], allocated, "at {arrived} %");
    }
    assert_eq!((report.jobs, report.placed), (3, 2));
    assert_eq!(report.unplaced, Unplaced { no_room: 1, never_fit: 0, ..Unplaced::default() });
    assert_eq!((report.allocated_percent_at_100, report.allocated_percent_at_130), (Some(75.0), Some(75.0)));
    assert_eq!((report.capacity_milli, report.arrived_milli, report.allocated_milli), (4_000, 5_000, 3_000));
}

#[test]
fn what_was_refused_is_tried_once_and_leaves_nothing_behind() {
    let jobs = jobs(&["too-large 0 0 1 3000", "gang 0 0 2 2000", "one 0 0 1 1000"]);
    // Three devices on one node: never. With the whole fleet for the gang 175 % would have arrived.
    let report = fill(&two_nodes(), &jobs, &["too-large", "gang", "one"]).unwrap();
    assert_eq!((report.jobs, report.placed), (1, 0));
    assert_eq!(report.unplaced, Unplaced { no_room: 0, never_fit: 1, ..Unplaced::default() });
    assert_eq!(report.allocated_percent_at_130, Some(0.0), "passed over");
    let report = fill(&two_nodes(), &jobs, &["one", "one", "one", "one", "one"]).unwrap();
    assert_eq!(report.unplaced, Unplaced { no_room: 1, never_fit: 0, ..Unplaced::default() });
    assert_eq!((report.allocated_percent_at_100, report.allocated_percent[125]), (Some(100.0), 100.0));
    assert_eq!(report.allocated_percent_at_130, None, "no more than 125 % arrived");
}

#[test]
fn jobs_that_ask_for_no_device_or_nothing_at_all_are_placed_as_well() {
    let nodes = format!("{NODES_HEADER}\nn1,,,A100,1,4000,1024\n");
    let jobs = format!(
        "{JOBS_HEADER}\nidle,0,0,,1,0,0,0,\nbusy,0,0,,1,0,4000,1024,\nfree,0,0,,1,1000,,,\nfull,0,0,,1,0,4001,0,\n"
    );
    let report = fill(&nodes, &jobs, &["idle", "idle", "free", "full"]).unwrap();
    assert_eq!(
        (report.placed, report.unplaced),
        (3, Unplaced { no_room: 0, never_fit: 1, ..Unplaced::default() })
    );
    // What asks for all there is does not fit next to another, and fits alone.
    let report = fill(&nodes, &jobs, &["busy", "idle", "free"]).unwrap();
    assert_eq!((report.placed, report.unplaced.no_room), (1, 2));
    assert_eq!(report.allocated_percent_at_100, Some(0.0));
}

#[test]
fn a_fleet_without_devices_is_refused() {
    let nodes = format!("{NODES_HEADER}\nn1,,,,0,4000,1024\n");
    let error = fill(&nodes, &jobs(&["a 0 0 1 1000"]), &["a"]).unwrap_err();
    assert_eq!(error.to_string(), "no node has an accelerator: there is nothing to be allocated");
}

#[test]
fn shares_of_a_device_and_a_choice_of_types_are_asked_for_as_they_stand() {
    let nodes = nodes(&["n1 c1 A100 1", "n2 c1 H100 1", "n3 c1 T4 2"]);
    let header = JOBS_HEADER;
    let jobs = format!(
        "{header}\nhalf,0,0,A100,1,500,,,\nmost,0,0,A100|H100,1,700,,,\nwhole,0,0,H100|A100,1,1000,,,\nany,0,0,,1,2000,,,\n"
    );
    // The halves share the A100, so most of a device is free on the H100 only, and no whole one of either.
    let report = fill(&nodes, &jobs, &["half", "half", "most", "whole", "any"]).unwrap();
    assert_eq!(
        (report.placed, report.unplaced),
        (4, Unplaced { no_room: 1, never_fit: 0, ..Unplaced::default() })
    );
    assert_eq!((report.allocated_milli, report.arrived_milli), (3_700, 4_700));
    // Of 4 devices 0.5, 1, 1.7, 2.7 and 4.7 have arrived.
    let at = |percent: usize| report.allocated_percent[percent];
    assert_eq!((at(13), at(25), at(43), at(68), at(118)), (12.5, 25.0, 42.5, 42.5, 92.5));
}
