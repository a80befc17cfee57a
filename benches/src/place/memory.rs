//! What a waiting job takes beyond what its user wrote.

use std::sync::Arc;

use muster_types::JobSpec;
use serde_json::json;

use super::fleet::{Fleet, Layout, Mix};
use super::{Bar, Figure};
use crate::machine::resident_bytes;

const JOBS: u64 = 1_000_000;

/// Resident memory for a million different waiting jobs, without that of a million specs.
pub(super) fn waiting() -> Vec<Figure> {
    let mut fleet = Fleet::new(Layout::blocks_of_512(1_000));
    let before = resident_bytes();
    // Kept, so that what comes after does not live in what they leave.
    let specs: Vec<Arc<JobSpec>> = (0..JOBS).map(|n| Arc::new(Mix::AllDifferent.job(n, 1))).collect();
    let specs_bytes = resident_bytes().saturating_sub(before);
    let before = resident_bytes();
    fleet.submit_all((0..JOBS).map(|n| Mix::AllDifferent.job(n, 1)), |_| {});
    let all_bytes = resident_bytes().saturating_sub(before);
    assert!(fleet.state().pending_count() as u64 == JOBS, "all of them wait");
    let each = |bytes: u64| bytes as f64 / JOBS as f64;
    drop(specs);
    let what = format!("{JOBS} different waiting jobs, beyond their specs");
    let detail = json!({ "spec_bytes": each(specs_bytes), "all_bytes": each(all_bytes) });
    vec![
        Figure::new("memory", what, each(all_bytes) - each(specs_bytes), "bytes/job")
            .bar(Bar::AtMost(1_024.0))
            .detail(detail),
        Figure::new("memory", "their specs", each(specs_bytes), "bytes/job"),
    ]
}
