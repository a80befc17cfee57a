//! What an array that waits costs: bytes of state, and a pass over the pending queue.
//!
//! The state of an array that waits has two parts. Members near their turn are jobs, with rows like others: as many as the window
//! has, whatever the size of the array. All others are ranges of numbers in the one row of the array. The bar is on the sum; each part
//! is a figure next to it.

use muster_types::limits;

use super::fleet::{Fleet, Layout, Mix};
use super::{Bar, Figure, growth};

/// Members of the array: as many as one may have.
const MEMBERS: u32 = 100_000;
/// Bytes of state for a thousand members that wait, all in all.
const BYTES_MAX: f64 = 1_024.0;
/// A pass with the array against one without.
const RATIO_MAX: f64 = 3.0;

/// Bytes of a snapshot of a full fleet behind which an array of this size waits; none without an array.
fn snapshot_bytes(size: Option<u32>) -> f64 {
    let (mut fleet, _) = Fleet::full(Layout::blocks_of_512(1_000));
    fleet.speculation.take_round();
    if let Some(size) = size {
        fleet.submit_array(Mix::FewClasses.job(0, 1), size);
        fleet.schedule();
    }
    fleet.state().snapshot().map(|chunk| chunk.len() as f64).sum()
}

/// Measures a pass over a waiting array, and the bytes that its waiting members take.
pub(super) fn waiting() -> Vec<Figure> {
    let bench = "array";
    let window = limits::ARRAY_WINDOW;
    let (none, jobs, whole) =
        (snapshot_bytes(None), snapshot_bytes(Some(window)), snapshot_bytes(Some(MEMBERS)));
    let thousands = |members: u32| f64::from(members) / 1_000.0;
    let (without, with) = growth::with_array(MEMBERS);
    let us = |times: &super::Times| times.median().as_secs_f64() * 1e6;
    vec![
        Figure::new(
            bench,
            "state for 1,000 members that wait and are no jobs yet, of an array of 100,000",
            (whole - jobs) / thousands(MEMBERS - window),
            "bytes",
        ),
        Figure::new(
            bench,
            format!("state of the {window} members that are jobs, of an array of any size"),
            (jobs - none) / 1_024.0,
            "KiB",
        ),
        Figure::new(
            bench,
            "all state of an array of 100,000 that waits, by 1,000 members",
            (whole - none) / thousands(MEMBERS),
            "bytes",
        )
        .bar(Bar::AtMost(BYTES_MAX)),
        Figure::new(bench, "a round on a full fleet, nobody else waiting", us(&without), "us")
            .detail(without.json()),
        Figure::new(bench, "the same, an array of 100,000 waiting", us(&with), "us").detail(with.json()),
        Figure::new(bench, "with the array against without", us(&with) / us(&without).max(1.0), "times")
            .bar(Bar::AtMost(RATIO_MAX)),
    ]
}
