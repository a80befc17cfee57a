//! Rows of the ledger, added up by what a report is divided by.

use std::collections::BTreeMap;

use muster_ledger::{Activity, DAY_MS, JobTotals, View, WaitReason};
use muster_types::{JobId, LogTime};
use serde::Serialize;
use serde::ser::SerializeMap;

use super::Dimension;

/// What amounts are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Thousandths of accelerators times milliseconds.
    Accelerators,
    /// Jobs times milliseconds.
    Jobs,
}

impl Unit {
    pub(super) fn name(self) -> &'static str {
        match self {
            Unit::Accelerators => "accelerator_thousandth_ms",
            Unit::Jobs => "job_ms",
        }
    }

    /// Hours with three decimals, rounded down.
    pub(super) fn hours(self, amount: u128) -> String {
        let ms = match self {
            Unit::Accelerators => amount / 1_000,
            Unit::Jobs => amount,
        };
        format!("{}.{:03}", ms / 3_600_000, ms % 3_600_000 / 3_600)
    }
}

/// One sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// What it is the sum of, in the order that was asked for.
    pub(super) keys: Vec<(&'static str, String)>,
    pub(super) state: String,
    pub(super) amount: u128,
}

/// One object, with the amount as text: it may be above what numbers of JSON hold.
impl Serialize for Row {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.keys.len() + 2))?;
        for (key, value) in &self.keys {
            map.serialize_entry(&key.to_lowercase(), value)?;
        }
        map.serialize_entry("state", &self.state)?;
        map.serialize_entry("amount", &self.amount.to_string())?;
        map.end()
    }
}

/// Where a row of the ledger belongs.
struct Source<'a> {
    day: u32,
    tenant: Option<&'a str>,
    tier: Option<&'a str>,
    kind: &'a str,
    region: &'a str,
    job: Option<JobId>,
}

impl Source<'_> {
    fn key(&self, by: Dimension) -> String {
        match by {
            // Rows are always divided by it.
            Dimension::Cause => String::new(),
            Dimension::Tenant => self.tenant.unwrap_or("-").to_owned(),
            Dimension::Tier => self.tier.unwrap_or("-").to_owned(),
            // Also of time that no job holds.
            Dimension::Job => self.job.map_or_else(|| "-".to_owned(), |job| job.to_string()),
            Dimension::Type => self.kind.to_owned(),
            Dimension::Region => self.region.to_owned(),
            Dimension::Day => {
                let time = LogTime(u64::from(self.day) * DAY_MS).to_string();
                time.split('T').next().unwrap_or_default().to_owned()
            }
        }
    }
}

/// Adds up rows; states keep the order that they are given in.
struct Sums<'a, S> {
    by: &'a [Dimension],
    sums: BTreeMap<(Vec<String>, S), u128>,
}

impl<'a, S: Ord> Sums<'a, S> {
    fn new(by: &'a [Dimension]) -> Sums<'a, S> {
        Sums { by, sums: BTreeMap::new() }
    }

    fn add(&mut self, source: &Source<'_>, state: S, amount: u128) {
        let keys = self.by.iter().map(|by| source.key(*by)).collect();
        *self.sums.entry((keys, state)).or_default() += amount;
    }

    fn rows(self, show: impl Fn(&S) -> String) -> Vec<Row> {
        let by = self.by;
        let row = |((keys, state), amount): ((Vec<String>, S), u128)| Row {
            keys: by.iter().map(|by| by.title()).zip(keys).collect(),
            state: show(&state),
            amount,
        };
        self.sums.into_iter().map(row).collect()
    }
}

fn usage_sources(views: &[View]) -> impl Iterator<Item = (Source<'_>, Activity, u128)> {
    views.iter().flat_map(|view| &view.usage).map(|row| {
        let source = Source {
            day: row.day,
            tenant: row.tenant.as_ref().map(|tenant| tenant.as_str()),
            tier: row.tier.map(|tier| tier.as_str()),
            kind: &row.kind,
            region: &row.region,
            job: row.job,
        };
        (source, row.activity, row.milli_ms)
    })
}

/// All activities; idle time is one of them.
pub(super) fn usage(views: &[View], by: &[Dimension]) -> Vec<Row> {
    let mut sums = Sums::new(by);
    for (source, activity, amount) in usage_sources(views) {
        let shown = (!matches!(activity, Activity::Idle(_))).then_some(activity);
        // What is idle comes last.
        sums.add(&source, (shown.is_none(), shown), amount);
    }
    sums.rows(|(_, activity)| activity.map_or_else(|| "idle".to_owned(), |activity| activity.to_string()))
}

/// The causes of idle time, and all other time as one row, so that the sum is the capacity.
pub(super) fn idle(views: &[View], by: &[Dimension]) -> Vec<Row> {
    let mut sums = Sums::new(by);
    for (source, activity, amount) in usage_sources(views) {
        let shown = matches!(activity, Activity::Idle(_)).then_some(activity);
        sums.add(&source, (shown.is_none(), shown), amount);
    }
    sums.rows(|(_, activity)| activity.map_or_else(|| "in_use".to_owned(), |activity| activity.to_string()))
}

pub(super) fn waits(views: &[View], by: &[Dimension]) -> Vec<Row> {
    let mut sums = Sums::new(by);
    for row in views.iter().flat_map(|view| &view.waits) {
        let source = Source {
            day: row.day,
            tenant: Some(&row.tenant),
            tier: Some(row.tier.as_str()),
            kind: row.kind.as_str(),
            region: row.region.as_str(),
            job: None,
        };
        sums.add(&source, row.reason, row.job_ms);
    }
    sums.rows(|reason| reason.to_string())
}

/// The waits of each job, and those of members of arrays that are not created as one line without a job. The sum is that of [`waits`].
pub(super) fn waits_by_job(views: &[View], jobs: &[JobTotals], by: &[Dimension]) -> Vec<Row> {
    let mut sums = Sums::new(by);
    let mut rest: BTreeMap<(&str, &str, WaitReason), u128> = BTreeMap::new();
    for row in views.iter().flat_map(|view| &view.waits) {
        *rest.entry((row.tenant.as_str(), row.tier.as_str(), row.reason)).or_default() += row.job_ms;
    }
    let source = |tenant, tier, job| Source {
        day: 0,
        tenant: Some(tenant),
        tier: Some(tier),
        kind: "",
        region: "",
        job,
    };
    for totals in jobs {
        let (tenant, tier) = (totals.tenant.as_str(), totals.tier.as_str());
        for (reason, ms) in &totals.waited {
            let ms = u128::from(*ms);
            sums.add(&source(tenant, tier, Some(totals.job)), *reason, ms);
            if let Some(left) = rest.get_mut(&(tenant, tier, *reason)) {
                *left = left.saturating_sub(ms);
            }
        }
    }
    for ((tenant, tier, reason), left) in rest.into_iter().filter(|(_, left)| *left > 0) {
        sums.add(&source(tenant, tier, None), reason, left);
    }
    sums.rows(|reason| reason.to_string())
}

pub(super) fn capacity(views: &[View]) -> u128 {
    views.iter().flat_map(|view| &view.capacity).map(|row| row.milli_ms).sum()
}

/// Whether all time of accelerators was charged, and once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conservation {
    /// The sum of the rows.
    pub(super) rows: u128,
    /// Capacity × time.
    pub(super) capacity: u128,
    /// By how much what was charged differs from capacity × time, added up over all types in all regions.
    pub(super) error: u128,
    /// How many types in regions there are.
    pub(super) pools: usize,
}

impl Conservation {
    /// Compares what was charged, and the sum of the rows that show it.
    pub(super) fn of(views: &[View], rows: u128) -> Conservation {
        let mut pools: BTreeMap<(&str, &str), (u128, u128)> = BTreeMap::new();
        for (source, _, amount) in usage_sources(views) {
            pools.entry((source.kind, source.region)).or_default().0 += amount;
        }
        for row in views.iter().flat_map(|view| &view.capacity) {
            pools.entry((row.kind.as_str(), row.region.as_str())).or_default().1 += row.milli_ms;
        }
        let capacity = capacity(views);
        let error: u128 = pools.values().map(|(used, provided)| used.abs_diff(*provided)).sum();
        Conservation { rows, capacity, error: error.max(rows.abs_diff(capacity)), pools: pools.len() }
    }

    pub(super) fn line(&self) -> String {
        let Conservation { rows, capacity, error, pools } = self;
        let [rows, capacity] = [rows, capacity].map(|amount| Unit::Accelerators.hours(*amount));
        // Hours are rounded, and no error may be rounded to none.
        let unit = if *error == 0 { String::new() } else { format!(" {}", Unit::Accelerators.name()) };
        format!(
            "conservation error {error}{unit}: rows {rows}, capacity × time {capacity}, in accelerator-hours, compared for each \
             type in each region ({pools})"
        )
    }
}

/// Tenths of a percent as text, rounded down.
pub(super) fn percent(part: u128, whole: u128) -> String {
    let tenths = part * 1_000 / whole.max(1);
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// How much of the fleet's time did work that counts, as far as the log tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Goodput {
    /// Allocated time of whole gangs to capacity, in percent.
    pub(super) scheduling: String,
    /// Kept work to allocated time, in percent, if all that is provisional is lost.
    pub(super) runtime_low: String,
    /// The same if all of it is kept.
    pub(super) runtime_high: String,
}

impl Goodput {
    /// None without capacity or where nothing was allocated.
    pub(super) fn of(views: &[View]) -> Option<Goodput> {
        let (mut allocated, mut kept, mut provisional) = (0, 0, 0);
        for (_, activity, amount) in usage_sources(views).filter(|(_, activity, _)| activity.is_allocated()) {
            allocated += amount;
            kept += if activity == Activity::Kept { amount } else { 0 };
            provisional += if activity == Activity::Provisional { amount } else { 0 };
        }
        let capacity = capacity(views);
        (capacity > 0 && allocated > 0).then(|| Goodput {
            scheduling: percent(allocated, capacity),
            runtime_low: percent(kept, allocated),
            runtime_high: percent(kept + provisional, allocated),
        })
    }

    pub(super) fn line(&self) -> String {
        let Goodput { scheduling, runtime_low, runtime_high } = self;
        let runtime = match runtime_low == runtime_high {
            true => format!("{runtime_low} %"),
            false => format!("{runtime_low} % to {runtime_high} %, as provisional work is decided"),
        };
        format!("goodput: scheduling {scheduling} %, runtime {runtime}; program: see `muster report goodput`")
    }
}

#[cfg(test)]
mod tests {
    use muster_ledger::{CapacityRow, IdleCause, UsageRow};
    use muster_types::{Name, PriorityTier};

    use super::*;

    fn view() -> View {
        let row = |day, tenant: Option<&'static str>, activity, milli_ms| UsageRow {
            day,
            tenant: tenant.map(Name::literal),
            tier: tenant.map(|_| PriorityTier::Standard),
            kind: Name::literal("h100"),
            region: Name::literal("eu"),
            activity,
            purchase: None,
            period: 0,
            job: None,
            milli_ms,
        };
        let hour = 3_600_000_000;
        View {
            usage: vec![
                row(20_000, None, Activity::Idle(IdleCause::Fault), hour),
                row(20_000, None, Activity::Idle(IdleCause::NoDemand), 2 * hour),
                row(20_000, Some("a"), Activity::Kept, 3 * hour),
                row(20_001, Some("a"), Activity::Provisional, hour),
                row(20_001, Some("b"), Activity::Starting, hour / 2),
            ],
            waits: Vec::new(),
            demand: Vec::new(),
            capacity: vec![CapacityRow {
                day: 20_000,
                kind: Name::literal("h100"),
                region: Name::literal("eu"),
                purchase: None,
                milli_ms: 7 * hour + hour / 2,
            }],
        }
    }

    fn lines(rows: &[Row]) -> Vec<String> {
        let keys = |row: &Row| row.keys.iter().map(|(_, value)| format!("{value} ")).collect::<String>();
        rows.iter()
            .map(|row| format!("{}{} {}", keys(row), row.state, Unit::Accelerators.hours(row.amount)))
            .collect()
    }

    #[test]
    fn rows_add_up_to_the_capacity_however_they_are_divided() {
        let views = [view()];
        assert_eq!(
            lines(&usage(&views, &[])),
            ["kept 3.000", "provisional 1.000", "starting 0.500", "idle 3.000"]
        );
        assert_eq!(
            lines(&idle(&views, &[Dimension::Type])),
            ["h100 idle.fault 1.000", "h100 idle.no_demand 2.000", "h100 in_use 4.500"]
        );
        let by_day = usage(&views, &[Dimension::Day, Dimension::Tenant]);
        assert_eq!(
            lines(&by_day),
            [
                "2024-10-04 - idle 3.000",
                "2024-10-04 a kept 3.000",
                "2024-10-05 a provisional 1.000",
                "2024-10-05 b starting 0.500",
            ]
        );
        for rows in [usage(&views, &[]), idle(&views, &[Dimension::Tier]), by_day] {
            assert_eq!(rows.iter().map(|row| row.amount).sum::<u128>(), capacity(&views));
        }
    }

    #[test]
    fn what_a_region_has_too_much_another_one_does_not_make_good() {
        let mut view = view();
        let sum: u128 = view.usage.iter().map(|row| row.milli_ms).sum();
        let whole = Conservation::of(&[view.clone()], sum);
        assert_eq!(
            whole.line(),
            "conservation error 0: rows 7.500, capacity × time 7.500, in accelerator-hours, compared for each type in each region (1)"
        );
        let broken = Conservation::of(&[view.clone()], sum - 1);
        assert_eq!(broken.error, 1, "the rows leave something out");
        assert!(
            broken.line().starts_with("conservation error 1 accelerator_thousandth_ms: "),
            "{}",
            broken.line()
        );
        view.usage[0].region = Name::literal("us");
        let moved = Conservation::of(&[view], sum);
        assert_eq!((moved.rows, moved.error, moved.pools), (moved.capacity, 7_200_000_000, 2));
    }

    #[test]
    fn a_job_has_a_line_where_jobs_are_kept_apart() {
        let mut view = view();
        let job = JobId(7);
        view.usage[2].job = Some(job);
        let rows = usage(&[view.clone()], &[Dimension::Job]);
        let kept = format!("{job} kept 3.000");
        assert_eq!(lines(&rows)[..2], ["- provisional 1.000".to_owned(), "- starting 0.500".to_owned()]);
        assert!(lines(&rows).contains(&kept), "{rows:?}");
        assert_eq!(rows.iter().map(|row| row.amount).sum::<u128>(), capacity(&[view]));
    }

    #[test]
    fn goodput_is_a_range_while_work_is_provisional() {
        let goodput = Goodput::of(&[view()]).unwrap();
        assert_eq!(
            goodput.line(),
            "goodput: scheduling 60.0 %, runtime 66.6 % to 88.8 %, as provisional work is decided; program: see \
             `muster report goodput`"
        );
        assert_eq!(Goodput::of(&[]), None);
    }
}
