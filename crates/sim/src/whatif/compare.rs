//! How two sides differ.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::whatif::meter::{Side, TypeUse, Waits};

/// The second of two values less the first.
fn less(second: u64, first: u64) -> i64 {
    let difference = i128::from(second) - i128::from(first);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

/// How waits differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitDifference {
    /// Jobs.
    pub jobs: i64,
    /// Median, in milliseconds.
    pub p50_ms: i64,
    /// 90th percentile, in milliseconds.
    pub p90_ms: i64,
    /// 99th percentile, in milliseconds.
    pub p99_ms: i64,
}

impl WaitDifference {
    fn between(first: Waits, second: Waits) -> WaitDifference {
        WaitDifference {
            jobs: less(second.jobs, first.jobs),
            p50_ms: less(second.p50_ms, first.p50_ms),
            p90_ms: less(second.p90_ms, first.p90_ms),
            p99_ms: less(second.p99_ms, first.p99_ms),
        }
    }
}

/// How the waits of one tenant and tier differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TenantDifference {
    /// The tenant, without those below it.
    pub tenant: String,
    /// The tier.
    pub tier: &'static str,
    /// By how much.
    #[serde(flatten)]
    pub waits: WaitDifference,
}

/// How the use of one type of accelerator differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TypeDifference {
    /// The type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Accelerator-seconds of capacity.
    pub capacity_seconds: i64,
    /// Accelerator-seconds that were held.
    pub held_seconds: i64,
    /// Utilisation, in millionths.
    pub utilisation_ppm: i64,
}

/// A side less another: what the second has more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// Jobs that were not taken.
    pub refused: i64,
    /// Jobs placed for the first time.
    pub started: i64,
    /// Jobs that succeeded.
    pub finished: i64,
    /// Jobs that failed.
    pub failed: i64,
    /// Jobs that never started.
    pub waiting: i64,
    /// Preemptions.
    pub preemptions: i64,
    /// Missed deadlines.
    pub deadline_misses: i64,
    /// Waits of all jobs.
    pub waits: WaitDifference,
    /// Waits by tenant and tier, of those on either side.
    pub by_tenant: Vec<TenantDifference>,
    /// Use by type, of those on either side.
    pub types: Vec<TypeDifference>,
}

impl Difference {
    /// What `second` has more than `first`.
    #[must_use]
    pub fn between(first: &Side, second: &Side) -> Difference {
        Difference {
            refused: less(second.refused, first.refused),
            started: less(second.started, first.started),
            finished: less(second.finished, first.finished),
            failed: less(second.failed, first.failed),
            waiting: less(second.waiting, first.waiting),
            preemptions: less(second.preemptions, first.preemptions),
            deadline_misses: less(second.deadline_misses, first.deadline_misses),
            waits: WaitDifference::between(first.waits, second.waits),
            by_tenant: tenants(first, second),
            types: types(first, second),
        }
    }

    /// Whether the sides agree in everything that is compared.
    #[must_use]
    pub fn is_none(&self) -> bool {
        let is_same = |waits: &WaitDifference| *waits == WaitDifference::default();
        let counts = [
            self.refused,
            self.started,
            self.finished,
            self.failed,
            self.waiting,
            self.preemptions,
            self.deadline_misses,
        ];
        counts.iter().all(|count| *count == 0)
            && is_same(&self.waits)
            && self.by_tenant.iter().all(|row| is_same(&row.waits))
            && self.types.iter().all(|row| (row.capacity_seconds, row.held_seconds) == (0, 0))
    }
}

/// Tenants and tiers whose jobs hardly start on the second side of a range of this length, and do on the first: half of them
/// wait for half of the range or longer.
#[must_use]
pub fn starved(first: &Side, second: &Side, range_ms: u64) -> Vec<(String, &'static str)> {
    let is_long = |waits: &Waits| waits.jobs > 0 && waits.p50_ms.saturating_mul(2) >= range_ms;
    let waits_long_before = |tenant: &str, tier: &str| {
        first.by_tenant.iter().any(|row| row.tenant == tenant && row.tier == tier && is_long(&row.waits))
    };
    let rows = second.by_tenant.iter().filter(|row| range_ms > 0 && is_long(&row.waits));
    let rows = rows.filter(|row| !waits_long_before(&row.tenant, row.tier));
    rows.map(|row| (row.tenant.clone(), row.tier)).collect()
}

fn tenants(first: &Side, second: &Side) -> Vec<TenantDifference> {
    let mut rows: BTreeMap<(&str, &'static str), (Waits, Waits)> = BTreeMap::new();
    for row in &first.by_tenant {
        rows.entry((row.tenant.as_str(), row.tier)).or_default().0 = row.waits;
    }
    for row in &second.by_tenant {
        rows.entry((row.tenant.as_str(), row.tier)).or_default().1 = row.waits;
    }
    let row = |((tenant, tier), (first, second)): ((&str, &'static str), (Waits, Waits))| TenantDifference {
        tenant: tenant.to_owned(),
        tier,
        waits: WaitDifference::between(first, second),
    };
    rows.into_iter().map(row).collect()
}

fn types(first: &Side, second: &Side) -> Vec<TypeDifference> {
    let mut rows: BTreeMap<&str, [(u64, u64, u64); 2]> = BTreeMap::new();
    let figures = |row: &TypeUse| (row.capacity_seconds, row.held_seconds, row.utilisation_ppm);
    for (place, side) in [first, second].into_iter().enumerate() {
        for row in &side.types {
            rows.entry(row.kind.as_str()).or_default()[place] = figures(row);
        }
    }
    let row = |(kind, [first, second]): (&str, [(u64, u64, u64); 2])| TypeDifference {
        kind: kind.to_owned(),
        capacity_seconds: less(second.0, first.0),
        held_seconds: less(second.1, first.1),
        utilisation_ppm: less(second.2, first.2),
    };
    rows.into_iter().map(row).collect()
}
