//! A long pending queue and an empty fleet: placements per second.

use serde_json::json;

use super::fleet::{Fleet, HOST_DEVICES, Layout, Mix};
use super::{Bar, Figure, Times};

const HOSTS: u32 = 10_000;

/// As many jobs as the fleet has devices, of four classes.
pub(super) fn few_classes() -> Vec<Figure> {
    drain("few-classes", Mix::FewClasses, 100_000.0)
}

/// As many jobs as the fleet has devices, no two alike.
pub(super) fn all_different() -> Vec<Figure> {
    drain("all-different", Mix::AllDifferent, 20_000.0)
}

fn drain(bench: &'static str, mix: Mix, bar_per_s: f64) -> Vec<Figure> {
    let jobs = u64::from(HOSTS * HOST_DEVICES);
    let (mut submissions, mut passes) = (Times::default(), Times::default());
    for turn in 0..4 {
        let mut fleet = Fleet::new(Layout::blocks_of_512(HOSTS));
        let specs: Vec<_> = (0..jobs).map(|n| mix.job(n, 1)).collect();
        let (mut submission, mut pass) = (Times::default(), Times::default());
        submission.around(|| fleet.submit_all(specs.into_iter(), |_| {}));
        let placed = pass.around(|| fleet.schedule());
        assert!(placed == jobs, "{placed} of {jobs} jobs were placed, and the fleet has capacity for all");
        // The first time warms up.
        if turn > 0 {
            submissions.add(submission.median());
            passes.add(pass.median());
        }
    }
    let per_s = |times: &Times| jobs as f64 / times.median().as_secs_f64();
    let what = format!("{jobs} one-device jobs, {HOSTS} hosts, {}", mix.as_str());
    vec![
        Figure::new(bench, what, per_s(&passes), "placements/s")
            .bar(Bar::AtLeast(bar_per_s))
            .detail(json!({ "passes": passes.json() })),
        Figure::new(bench, "submitting them in batches of 1,000", per_s(&submissions), "jobs/s"),
    ]
}
