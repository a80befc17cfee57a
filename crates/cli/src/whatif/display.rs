//! A comparison as tables, and as one document.

use muster_console::{Console, Document, Failure, Grid};
use muster_manifest::quantity::show_about;
use muster_sim::whatif::{Difference, Side, TenantDifference, WaitDifference, Waits};
use muster_types::LogTime;
use serde::Serialize;

use super::Comparison;
use crate::sim::structured;

/// Tenants and tiers of a table; the document has all of them.
const ROWS_SHOWN: usize = 30;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WhatifView<'a> {
    from: String,
    to: String,
    change: &'a [String],
    record: &'a Side,
    unchanged: &'a Side,
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<&'a Side>,
    /// The replay without a change less the record.
    error: &'a Difference,
    /// The replay with the change less the one without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<&'a Difference>,
    caveats: &'a [String],
}

pub(super) fn show(console: &Console, is_line: bool, comparison: &Comparison) -> Result<(), Failure> {
    if is_line || console.is_structured() {
        let view = WhatifView {
            from: comparison.from.to_string(),
            to: comparison.to.to_string(),
            change: &comparison.change,
            record: &comparison.record,
            unchanged: &comparison.unchanged,
            changed: comparison.changed.as_ref(),
            error: &comparison.error,
            difference: comparison.difference.as_ref(),
            caveats: &comparison.caveats,
        };
        return structured(console, is_line, &Document::new("WhatifReport", Some(comparison.last), view));
    }
    let change = match comparison.change.is_empty() {
        true => "without a change".to_owned(),
        false => format!("with {}", comparison.change.join(", ")),
    };
    console.line(&format!("{}, {change}", span(comparison.from, comparison.to)))?;
    console.line("")?;
    console.table(&figures(comparison))?;
    console.line("")?;
    console.table(&tenants(comparison))?;
    let rows = comparison.error.by_tenant.len();
    if rows > ROWS_SHOWN {
        console.line(&format!("and {} more tenants and tiers; --json has all of them", rows - ROWS_SHOWN))?;
    }
    console.line("")?;
    for caveat in &comparison.caveats {
        console.line(&format!("note: {caveat}"))?;
    }
    Ok(())
}

fn span(from: LogTime, to: LogTime) -> String {
    format!("{from} to {to}")
}

/// Columns of a table, those of the change only where there is one.
fn header(first: &[&'static str], comparison: &Comparison) -> Grid {
    let mut titles = first.to_vec();
    titles.extend(["RECORD", "UNCHANGED", "ERROR"]);
    if comparison.changed.is_some() {
        titles.extend(["CHANGED", "DIFFERENCE"]);
    }
    Grid::new(titles)
}

/// A figure of a side, and by how much it differs, as text.
type Figure<'a> = (&'a dyn Fn(&Side) -> String, &'a dyn Fn(&Difference) -> String);

fn row(first: Vec<String>, comparison: &Comparison, (value, less): Figure<'_>) -> Vec<String> {
    let mut cells = first;
    cells.extend([value(&comparison.record), value(&comparison.unchanged), less(&comparison.error)]);
    if let (Some(changed), Some(difference)) = (&comparison.changed, &comparison.difference) {
        cells.extend([value(changed), less(difference)]);
    }
    cells
}

fn figures(comparison: &Comparison) -> Grid {
    type Count = (&'static str, fn(&Side) -> u64, fn(&Difference) -> i64);
    let counts: [Count; 7] = [
        ("jobs started", |side| side.started, |less| less.started),
        ("jobs finished", |side| side.finished, |less| less.finished),
        ("jobs failed", |side| side.failed, |less| less.failed),
        ("jobs refused", |side| side.refused, |less| less.refused),
        ("jobs never started", |side| side.waiting, |less| less.waiting),
        ("preemptions", |side| side.preemptions, |less| less.preemptions),
        ("deadline misses", |side| side.deadline_misses, |less| less.deadline_misses),
    ];
    let mut grid = header(&["FIGURE"], comparison);
    for (title, value, less) in counts {
        let figure: Figure<'_> = (&|side| value(side).to_string(), &|found| signed(less(found)));
        grid.row(row(vec![title.to_owned()], comparison, figure));
    }
    for (title, value, less) in WAITS {
        let figure: Figure<'_> =
            (&|side| show_about(value(&side.waits)), &|found| signed_span(less(&found.waits)));
        grid.row(row(vec![format!("wait {title}")], comparison, figure));
    }
    let mut kinds: Vec<&str> = comparison.error.types.iter().map(|row| row.kind.as_str()).collect();
    let changed = comparison.difference.iter().flat_map(|found| &found.types);
    kinds.extend(changed.map(|row| row.kind.as_str()));
    kinds.sort_unstable();
    kinds.dedup();
    for kind in kinds {
        let value = |side: &Side| {
            let found = side.types.iter().find(|row| row.kind == kind);
            percent(found.map_or(0, |row| row.utilisation_ppm))
        };
        let less = |found: &Difference| {
            let found = found.types.iter().find(|row| row.kind == kind);
            signed_percent(found.map_or(0, |row| row.utilisation_ppm))
        };
        grid.row(row(vec![format!("utilisation {kind}")], comparison, (&value, &less)));
    }
    grid
}

/// Percentiles of waits: a title, the value of a side, and of a difference.
type Percentile = (&'static str, fn(&Waits) -> u64, fn(&WaitDifference) -> i64);

const WAITS: [Percentile; 3] = [
    ("p50", |waits| waits.p50_ms, |less| less.p50_ms),
    ("p90", |waits| waits.p90_ms, |less| less.p90_ms),
    ("p99", |waits| waits.p99_ms, |less| less.p99_ms),
];

/// Waits by tenant and tier. What only the changed side has is in the document.
fn tenants(comparison: &Comparison) -> Grid {
    let mut grid = header(&["TENANT", "TIER", "WAIT"], comparison);
    for TenantDifference { tenant, tier, .. } in comparison.error.by_tenant.iter().take(ROWS_SHOWN) {
        for (title, value, less) in WAITS {
            let of_side = |side: &Side| {
                let found = side.by_tenant.iter().find(|row| row.tenant == *tenant && row.tier == *tier);
                found.map_or("-".to_owned(), |row| show_about(value(&row.waits)))
            };
            let of_difference = |found: &Difference| {
                let found = found.by_tenant.iter().find(|row| row.tenant == *tenant && row.tier == *tier);
                found.map_or("-".to_owned(), |row| signed_span(less(&row.waits)))
            };
            let first = vec![tenant.clone(), (*tier).to_owned(), title.to_owned()];
            grid.row(row(first, comparison, (&of_side, &of_difference)));
        }
    }
    grid
}

fn signed(value: i64) -> String {
    if value > 0 { format!("+{value}") } else { value.to_string() }
}

fn signed_span(ms: i64) -> String {
    let sign = match ms {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", show_about(ms.unsigned_abs()))
}

/// Millionths as percent, to the tenth.
fn percent(ppm: u64) -> String {
    let tenths = (ppm + 500) / 1_000;
    format!("{}.{}%", tenths / 10, tenths % 10)
}

fn signed_percent(ppm: i64) -> String {
    let shown = percent(ppm.unsigned_abs());
    match (shown.as_str(), ppm) {
        ("0.0%", _) => shown,
        (_, 1..) => format!("+{shown}"),
        _ => format!("-{shown}"),
    }
}
