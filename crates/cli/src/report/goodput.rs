//! `muster report goodput`: how much of the time that jobs wanted accelerators for became work that counts.
//!
//! **Invariant:** the amounts of the rows add up to those of the total, whatever the rows are divided by.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use muster_console::{Console, Document, Exit, Failure, Global};
use muster_ledger::{Activity, DAY_MS, DemandRow, Detail, StepSums, StepTimes, UsageRow, View};
use muster_types::{JobId, LogTime};
use serde::Serialize;
use serde::ser::SerializeMap;

use super::common::{self, LogSpan, ReadView, ReportForm, TableReport, check_form, distinct};
use super::page::Bar;
use super::read::{Reading, Watchers};
use super::rows::{Unit, percent};

/// What stands where no job has reported enough steps.
const NOT_REPORTED: &str = "not reported";

/// What a report of goodput can be divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GoodputDimension {
    /// The tenant of the job
    Tenant,
    /// The type of accelerator; of jobs that wait, the one that they ask for
    Type,
    /// The region; of jobs that wait, the one that they ask for
    Region,
    /// The tier of the job
    Tier,
    /// The job
    Job,
    /// The day, in UTC
    Day,
}

/// Options of the report of goodput.
#[derive(Args)]
pub struct GoodputArgs {
    #[command(flatten)]
    span: LogSpan,
    /// What the lines are divided by: one or more of these, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "DIMENSION")]
    by: Vec<GoodputDimension>,
    /// Another spelling of -o csv and -o html
    #[arg(long, value_enum, hide = true)]
    form: Option<ReportForm>,
}

/// The job that an amount belongs to, and where.
struct Owner<'a> {
    day: u32,
    tenant: &'a str,
    tier: &'a str,
    kind: &'a str,
    region: &'a str,
    job: Option<JobId>,
}

impl<'a> Owner<'a> {
    /// Of time that a job holds; none for time that has no owner.
    fn of_usage(row: &'a UsageRow) -> Option<Owner<'a>> {
        Some(Owner {
            day: row.day,
            tenant: row.tenant.as_ref()?.as_str(),
            tier: row.tier?.as_str(),
            kind: row.kind.as_str(),
            region: row.region.as_str(),
            job: row.job,
        })
    }

    fn of_demand(row: &'a DemandRow) -> Owner<'a> {
        Owner {
            day: row.day,
            tenant: row.tenant.as_str(),
            tier: row.tier.as_str(),
            kind: row.kind.as_str(),
            region: row.region.as_str(),
            job: row.job,
        }
    }
}

impl GoodputDimension {
    fn title(self) -> &'static str {
        match self {
            GoodputDimension::Tenant => "TENANT",
            GoodputDimension::Type => "TYPE",
            GoodputDimension::Region => "REGION",
            GoodputDimension::Tier => "TIER",
            GoodputDimension::Job => "JOB",
            GoodputDimension::Day => "DAY",
        }
    }

    fn key(self, place: &Owner<'_>) -> String {
        match self {
            GoodputDimension::Tenant => place.tenant.to_owned(),
            GoodputDimension::Type => place.kind.to_owned(),
            GoodputDimension::Region => place.region.to_owned(),
            GoodputDimension::Tier => place.tier.to_owned(),
            // Members of arrays that wait are no jobs yet.
            GoodputDimension::Job => place.job.map_or_else(|| "-".to_owned(), |job| job.to_string()),
            GoodputDimension::Day => {
                let time = LogTime(u64::from(place.day) * DAY_MS).to_string();
                time.split('T').next().unwrap_or_default().to_owned()
            }
        }
    }
}

/// Accelerator time, in thousandths of accelerators times milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amounts {
    /// What jobs asked for while they could start and had no devices.
    demand: u128,
    /// Held by gangs of which some workers had not started.
    starting: u128,
    /// Held by gangs whose workers had all started, until they ended.
    running: u128,
    /// Of that, work that was kept.
    kept: u128,
    /// Of that, work of which it is not known yet whether it was kept.
    provisional: u128,
    /// Of what was kept, the part of jobs that have reported enough steps.
    measured: u128,
    /// What that part would have taken at the best speed of each job.
    ideal: u128,
}

/// The quotient in thousandths, rounded down; none where the divisor is zero.
fn milli(part: u128, whole: u128) -> Option<u64> {
    let found = part.saturating_mul(1_000).checked_div(whole)?;
    u64::try_from(found).ok()
}

impl Amounts {
    fn add(&mut self, other: &Amounts) {
        self.demand += other.demand;
        self.starting += other.starting;
        self.running += other.running;
        self.kept += other.kept;
        self.provisional += other.provisional;
        self.measured += other.measured;
        self.ideal += other.ideal;
    }

    /// Of a row of the ledger; none where no gang holds the accelerators.
    fn of_usage(row: &UsageRow, steps: &BTreeMap<JobId, StepSums>) -> Option<Amounts> {
        let amount = row.milli_ms;
        Some(match row.activity {
            Activity::Starting => Amounts { starting: amount, ..Amounts::default() },
            Activity::Kept => {
                let sums = row.job.and_then(|job| steps.get(&job)).filter(|sums| sums.actual_ms > 0);
                let ideal = sums.map_or(0, |sums| {
                    amount.saturating_mul(u128::from(sums.ideal_ms)) / u128::from(sums.actual_ms)
                });
                let measured = if sums.is_some() { amount } else { 0 };
                Amounts { running: amount, kept: amount, measured, ideal, ..Amounts::default() }
            }
            Activity::Provisional => Amounts { running: amount, provisional: amount, ..Amounts::default() },
            Activity::Lost(_) | Activity::Checkpointing | Activity::Stopping => {
                Amounts { running: amount, ..Amounts::default() }
            }
            Activity::Spare | Activity::Idle(_) => return None,
        })
    }

    fn wanted(&self) -> u128 {
        self.demand + self.starting + self.running
    }

    fn factors(&self) -> Factors {
        let program = milli(self.ideal, self.measured);
        // With more digits than what is shown, so that it is rounded once.
        let part = |part: u128, whole: u128| part.saturating_mul(1_000_000).checked_div(whole);
        let kept = part(self.kept, self.wanted());
        let goodput = kept.zip(part(self.ideal, self.measured));
        let goodput = goodput.and_then(|(kept, ideal)| u64::try_from(kept * ideal / 1_000_000_000).ok());
        Factors {
            scheduling: milli(self.running, self.wanted()),
            runtime: milli(self.kept, self.running),
            runtime_highest: milli(self.kept + self.provisional, self.running),
            program,
            measured: milli(self.measured, self.kept),
            goodput,
        }
    }
}

/// The factors of goodput, in thousandths; none where there is nothing to divide by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Factors {
    /// Time with all workers running, of the time that was wanted.
    scheduling: Option<u64>,
    /// Kept work, of the time with all workers running; provisional work counts as lost.
    runtime: Option<u64>,
    /// The same if all provisional work is kept.
    runtime_highest: Option<u64>,
    /// Time that the steps take at best, of what they took; none where no job has reported enough steps.
    program: Option<u64>,
    /// The part of the kept work that `program` is known of.
    measured: Option<u64>,
    /// Scheduling × runtime × program.
    goodput: Option<u64>,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GoodputRow {
    keys: Vec<(&'static str, String)>,
    amounts: Amounts,
}

/// One object, with amounts as text: they may be above what numbers of JSON hold.
impl Serialize for GoodputRow {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in &self.keys {
            map.serialize_entry(&key.to_lowercase(), value)?;
        }
        for (title, amount) in self.amounts() {
            map.serialize_entry(title, &amount.to_string())?;
        }
        map.serialize_entry("factors", &self.amounts.factors())?;
        map.end()
    }
}

impl GoodputRow {
    fn amounts(&self) -> [(&'static str, u128); 8] {
        let of = &self.amounts;
        [
            ("wanted", of.wanted()),
            ("pending", of.demand),
            ("starting", of.starting),
            ("running", of.running),
            ("kept", of.kept),
            ("provisional", of.provisional),
            ("measured", of.measured),
            ("ideal", of.ideal),
        ]
    }

    fn cells(&self) -> Vec<String> {
        let mut cells: Vec<String> = self.keys.iter().map(|(_, value)| value.clone()).collect();
        cells.push(Unit::Accelerators.hours(self.amounts.wanted()));
        cells.extend(factor_cells(&self.amounts.factors()));
        cells
    }
}

/// The factors in percent, as people read them; CSV and JSON have the thousandths.
fn factor_cells(factors: &Factors) -> [String; 5] {
    let in_percent = |milli: u64| percent(milli.into(), 1_000);
    let shown = |value: Option<u64>, otherwise: &str| value.map_or_else(|| otherwise.to_owned(), in_percent);
    let runtime = match (factors.runtime, factors.runtime_highest) {
        (Some(low), Some(high)) if low < high => format!("{} to {}", in_percent(low), in_percent(high)),
        (low, _) => shown(low, "-"),
    };
    [
        shown(factors.scheduling, "-"),
        runtime,
        shown(factors.program, NOT_REPORTED),
        shown(factors.measured, "-"),
        shown(factors.goodput, NOT_REPORTED),
    ]
}

/// The rows, in the order of their keys.
fn rows(views: &[View], steps: &BTreeMap<JobId, StepSums>, by: &[GoodputDimension]) -> Vec<GoodputRow> {
    let mut sums: BTreeMap<Vec<String>, Amounts> = BTreeMap::new();
    let mut add = |place: &Owner<'_>, amounts: &Amounts| {
        let keys = by.iter().map(|by| by.key(place)).collect();
        sums.entry(keys).or_default().add(amounts);
    };
    for view in views {
        for row in &view.usage {
            if let Some((place, amounts)) = Owner::of_usage(row).zip(Amounts::of_usage(row, steps)) {
                add(&place, &amounts);
            }
        }
        for row in &view.demand {
            let amounts = Amounts { demand: row.milli_ms, ..Amounts::default() };
            add(&Owner::of_demand(row), &amounts);
        }
    }
    let row = |(keys, amounts): (Vec<String>, Amounts)| GoodputRow {
        keys: by.iter().map(|by| by.title()).zip(keys).collect(),
        amounts,
    };
    sums.into_iter().map(row).collect()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GoodputView {
    #[serde(flatten)]
    read: ReadView,
    rows: Vec<GoodputRow>,
    total: GoodputRow,
    unit: &'static str,
}

struct GoodputReport {
    by: Vec<GoodputDimension>,
    reading: Reading,
    rows: Vec<GoodputRow>,
    total: GoodputRow,
}

pub(super) async fn run(global: &Global, console: &Console, args: &GoodputArgs) -> Result<Exit, Failure> {
    check_form(console, args.form.is_some())?;
    let source = args.span.open(global, console).await?;
    // The speed of a program is that of a job.
    let detail = Detail { jobs: true, ..Detail::default() };
    let mut steps = StepTimes::default();
    let watchers = Watchers { steps: Some(&mut steps), ..Watchers::told(console) };
    let reading = args.span.read(&source, &detail, watchers)?;
    let by = distinct(&args.by);
    let sums = steps.sums();
    let rows = rows(&reading.views, &sums, &by);
    let mut amounts = Amounts::default();
    rows.iter().for_each(|row| amounts.add(&row.amounts));
    let report = GoodputReport { by, reading, rows, total: GoodputRow { keys: Vec::new(), amounts } };
    common::write(console, args.form, &report)
}

impl TableReport for GoodputReport {
    fn title(&self) -> &'static str {
        "Goodput"
    }

    fn header(&self) -> Vec<&'static str> {
        let mut header: Vec<&'static str> = self.by.iter().map(|by| by.title()).collect();
        header.extend(["WANTED", "SCHEDULING", "RUNTIME", "PROGRAM", "MEASURED", "GOODPUT"]);
        header
    }

    fn cells(&self) -> Vec<Vec<String>> {
        self.rows.iter().map(GoodputRow::cells).collect()
    }

    fn lines(&self) -> Vec<String> {
        let span = common::span(&self.reading);
        let hours = Unit::Accelerators.hours(self.total.amounts.wanted());
        let [scheduling, runtime, program, measured, goodput] = factor_cells(&self.total.amounts.factors());
        let mut lines = vec![format!(
            "total {hours} accelerator-hours were wanted, {span}: scheduling {scheduling}, runtime {runtime}, program \
             {program} (known of {measured} of the kept work), goodput {goodput}"
        )];
        lines.push("factors are in percent".to_owned());
        lines.extend(common::notes(&self.reading));
        lines
    }

    fn csv(&self, console: &Console) -> Result<(), Failure> {
        let mut header: Vec<String> = self.by.iter().map(|by| by.title().to_lowercase()).collect();
        header.extend(self.total.amounts().map(|(title, _)| title.to_owned()));
        let factors = ["scheduling", "runtime", "runtime_highest", "program", "goodput"];
        header.extend(factors.map(str::to_owned));
        console.line(&header.join(","))?;
        for row in &self.rows {
            let mut cells: Vec<String> = row.keys.iter().map(|(_, value)| value.clone()).collect();
            cells.extend(row.amounts().map(|(_, amount)| amount.to_string()));
            let found = row.amounts.factors();
            let factors =
                [found.scheduling, found.runtime, found.runtime_highest, found.program, found.goodput];
            // Empty where it is not reported.
            cells.extend(factors.map(|factor| factor.map_or_else(String::new, |factor| factor.to_string())));
            console.line(&cells.join(","))?;
        }
        for note in common::notes(&self.reading) {
            console.error(&note);
        }
        Ok(())
    }

    fn document(&self, console: &Console) -> Result<(), Failure> {
        let reading = &self.reading;
        let view = GoodputView {
            read: ReadView::of(reading),
            rows: self.rows.clone(),
            total: self.total.clone(),
            unit: Unit::Accelerators.name(),
        };
        console.object(&Document::new("GoodputReport", Some(reading.last.0), view))
    }

    fn bars(&self) -> Vec<Bar> {
        let bars = self.rows.iter().flat_map(|row| {
            let keys: String = row.keys.iter().map(|(_, value)| format!("{value} ")).collect();
            let parts = [("wanted", row.amounts.wanted()), ("kept", row.amounts.kept)];
            parts.map(|(group, amount)| Bar {
                label: format!("{keys}{group}"),
                group: group.to_owned(),
                amount,
                text: format!("{} h", Unit::Accelerators.hours(amount)),
            })
        });
        bars.collect()
    }
}

#[cfg(test)]
#[path = "goodput_tests.rs"]
mod tests;
