//! `muster report fairness`: its options and its forms.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use muster_console::{Console, Document, Exit, Failure, Global, Grid};
use muster_ledger::Detail;
use muster_sim::turns::{TurnCheck, TurnCounts};
use muster_types::Name;
use serde::Serialize;

use super::common::{self, LogSpan, ReadView, ReportForm, check_form, distinct};
use super::fairness::{Division, Fairness, FairnessSum};
use super::page::{Bar, page};
use super::read::{Reading, Watchers};
use super::rows::{self, Unit};

/// Options of the report of fairness.
#[derive(Args)]
pub struct FairnessArgs {
    #[command(flatten)]
    span: FairnessSpan,
    /// Look at each placement of the span too: whether a request that fitted had its turn earlier
    #[arg(long)]
    verify: bool,
}

/// What is looked at, and how it is shown.
#[derive(Args)]
pub struct FairnessSpan {
    #[command(flatten)]
    span: LogSpan,
    /// What the lines are divided by, separated by commas [default: tenant,type]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "DIMENSION")]
    by: Vec<FairnessDimension>,
    /// Another spelling of -o csv and -o html
    #[arg(long, value_enum, hide = true)]
    form: Option<ReportForm>,
}

/// What a report of fairness can be divided by, and the divisions of other reports that it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FairnessDimension {
    /// The tenant, with everyone below it
    Tenant,
    /// The type of accelerator
    Type,
    /// The region, by which it cannot be divided
    #[value(hide = true)]
    Region,
    /// The tier of the job, by which it cannot be divided
    #[value(hide = true)]
    Tier,
    /// The job, by which it cannot be divided
    #[value(hide = true)]
    Job,
    /// The day, by which it cannot be divided
    #[value(hide = true)]
    Day,
    /// The cause, by which it cannot be divided
    #[value(hide = true)]
    Cause,
}

impl FairnessDimension {
    fn title(self) -> &'static str {
        match self {
            FairnessDimension::Tenant => "TENANT",
            FairnessDimension::Type => "TYPE",
            FairnessDimension::Region => "REGION",
            FairnessDimension::Tier => "TIER",
            FairnessDimension::Job => "JOB",
            FairnessDimension::Day => "DAY",
            FairnessDimension::Cause => "CAUSE",
        }
    }

    /// Why the report cannot be divided by it, and what can; none where it can.
    fn refusal(self) -> Option<(&'static str, &'static str)> {
        match self {
            FairnessDimension::Tenant | FairnessDimension::Type => None,
            FairnessDimension::Region => Some((
                "fairness has no lines by region: a quota may be for all regions together, and a job that is pending has no region yet",
                "use --by tenant or type, or `muster report usage --by tenant,type,region` for where tenants used accelerators",
            )),
            FairnessDimension::Tier => Some((
                "fairness has no lines by tier: a tenant has one quota for its jobs of all tiers",
                "use --by tenant or type, or `muster report usage --by tenant,tier` and `muster report waits --by tenant,tier`",
            )),
            FairnessDimension::Job => Some((
                "fairness has no lines by job: a quota is of a tenant, and no job is entitled to a part of it",
                "use --by tenant or type, or `muster report usage --by job` and `muster report waits --by job`",
            )),
            FairnessDimension::Day => Some((
                "fairness has no lines by day: it is added up over the span",
                "use --by tenant or type, and name one day with --from and --to",
            )),
            FairnessDimension::Cause => Some((
                "fairness has no lines by cause: why an entitled job waited is not compared",
                "use --by tenant or type, or `muster report waits --by tenant` for what jobs waited for",
            )),
        }
    }
}

/// What the lines are divided by, in the order of their columns.
fn dimensions(by: &[FairnessDimension]) -> Result<Vec<FairnessDimension>, Failure> {
    if let Some((why, next)) = by.iter().find_map(|by| by.refusal()) {
        return Err(Failure::usage(why).with_next(next));
    }
    Ok(match by.is_empty() {
        true => vec![FairnessDimension::Tenant, FairnessDimension::Type],
        false => distinct(by),
    })
}

/// The sums that lines divided by these need.
fn division(by: &[FairnessDimension]) -> Division {
    Division {
        by_tenant: by.contains(&FairnessDimension::Tenant),
        by_type: by.contains(&FairnessDimension::Type),
    }
}

/// A sum, with what it is of in the order of the columns, and what there was of the same accelerators.
struct Line {
    tenant: Option<String>,
    kind: Option<String>,
    keys: Vec<String>,
    fair: FairnessSum,
    capacity: u128,
}

/// The lines, sorted by their columns.
fn lines(fairness: &Fairness, by: &[FairnessDimension], capacity: &BTreeMap<String, u128>) -> Vec<Line> {
    let line = |(tenant, kind, fair): (Option<&Name>, Option<&str>, &FairnessSum)| {
        let tenant = tenant.map(Name::to_string);
        let kind = kind.map(str::to_owned);
        let key = |by: &FairnessDimension| match by {
            FairnessDimension::Tenant => tenant.clone(),
            FairnessDimension::Type => kind.clone(),
            _ => None,
        };
        let keys = by.iter().map(|by| key(by).unwrap_or_default()).collect();
        let capacity = match &kind {
            Some(kind) => capacity.get(kind).copied().unwrap_or_default(),
            None => capacity.values().sum(),
        };
        Line { tenant, kind, keys, fair: *fair, capacity }
    };
    let mut lines: Vec<Line> = fairness.sums().map(line).collect();
    lines.sort_by(|a, b| a.keys.cmp(&b.keys));
    lines
}

/// What a reader has to know of lines that are divided in this way.
fn legend(by: &[FairnessDimension]) -> Vec<String> {
    let Division { by_tenant, by_type } = division(by);
    let of_tenants = match by_tenant {
        true => "a tenant counts with those below it",
        false => "each line adds up the tenants of the first level, which count with those below them",
    };
    let of_types =
        "accelerators of all types are added up; borrowed, lent and waited are compared for each type";
    let mut legend = vec![of_tenants.to_owned()];
    legend.extend((!by_type).then(|| of_types.to_owned()));
    legend
}

/// Of one line. Amounts are text: they may be above what numbers of JSON hold.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct FairRow {
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<String>,
    nominal: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    nominal_percent: Option<String>,
    received: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    received_percent: Option<String>,
    demand: String,
    borrowed: String,
    lent: String,
    waited_entitled: String,
    entitled_ms: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FairnessView {
    #[serde(flatten)]
    read: ReadView,
    /// What the rows are divided by.
    by: Vec<String>,
    rows: Vec<FairRow>,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    turns: Option<TurnsView>,
}

/// How placements stood to the pending queue.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TurnsView {
    first: u64,
    behind_waiting: u64,
    held_for: u64,
    out_of_turn: u64,
    not_asked: u64,
    findings: Vec<FindingView>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FindingView {
    log_index: u64,
    placed: String,
    placed_tenant: String,
    passed_over: String,
    passed_over_tenant: String,
}

fn turns_of(turns: &TurnCheck) -> TurnsView {
    let TurnCounts { first, behind_waiting, held_for, out_of_turn, not_asked } = *turns.counts();
    let findings = turns.findings().iter().map(|finding| FindingView {
        log_index: finding.log_index.0,
        placed: finding.placed.0.to_string(),
        placed_tenant: finding.placed.1.to_string(),
        passed_over: finding.passed_over.0.to_string(),
        passed_over_tenant: finding.passed_over.1.to_string(),
    });
    TurnsView { first, behind_waiting, held_for, out_of_turn, not_asked, findings: findings.collect() }
}

/// The same in sentences.
fn lines_of(turns: &TurnCheck) -> Vec<String> {
    let TurnsView { first, behind_waiting, held_for, out_of_turn, not_asked, findings } = turns_of(turns);
    let mut lines = vec![format!(
        "placements: {first} of the first request in the queue, {behind_waiting} behind requests that did not fit, {held_for} for \
         which capacity had been kept, {out_of_turn} behind one that fitted, {not_asked} not looked at"
    )];
    lines.extend(findings.iter().map(|finding| {
        format!(
            "record {}: {} of {} was placed, and {} of {} had its turn before it and fitted",
            finding.log_index,
            finding.placed,
            finding.placed_tenant,
            finding.passed_over,
            finding.passed_over_tenant
        )
    }));
    if out_of_turn > 0 {
        lines.push(
            "reservations and where a pass went on are in no record: a leader may have had a reason"
                .to_owned(),
        );
    }
    lines
}

/// The columns behind those that the lines are divided by.
const MEASURES: [&str; 9] = [
    "nominal",
    "nominal_percent",
    "received",
    "received_percent",
    "demand",
    "borrowed",
    "lent",
    "waited_entitled",
    "entitled_ms",
];

/// The titles of all columns, as programs read them.
fn columns(by: &[FairnessDimension]) -> Vec<String> {
    let keys = by.iter().map(|by| by.title().to_lowercase());
    keys.chain(MEASURES.map(str::to_owned)).collect()
}

pub(super) async fn run(global: &Global, console: &Console, args: &FairnessArgs) -> Result<Exit, Failure> {
    report(global, console, &args.span, args.verify).await
}

/// The report, with a look at each placement where that is asked for.
pub(super) async fn report(
    global: &Global,
    console: &Console,
    args: &FairnessSpan,
    verify: bool,
) -> Result<Exit, Failure> {
    check_form(console, args.form.is_some())?;
    let by = dimensions(&args.by)?;
    let source = args.span.open(global, console).await?;
    let mut fairness = Fairness::divided(division(&by));
    let mut turns = verify.then(TurnCheck::default);
    let watchers =
        Watchers { fairness: Some(&mut fairness), turns: turns.as_mut(), ..Watchers::told(console) };
    let mut reading = args.span.read(&source, &Detail::default(), watchers)?;
    reading.notes.extend(turns.iter().flat_map(lines_of));
    let lines = lines(&fairness, &by, &capacity(&reading));
    match common::form_of(console, args.form) {
        Some(ReportForm::Csv) => {
            console.line(&columns(&by).join(","))?;
            for line in &lines {
                console.line(&cells(line).join(","))?;
            }
            common::notes(&reading).iter().for_each(|note| console.error(note));
        }
        Some(ReportForm::Html) => html(console, &reading, &by, &lines)?,
        None if console.is_structured() => {
            let view = FairnessView {
                read: ReadView::of(&reading),
                by: by.iter().map(|by| by.title().to_lowercase()).collect(),
                rows: lines.iter().map(row).collect(),
                unit: Unit::Accelerators.name(),
                turns: turns.as_ref().map(turns_of),
            };
            console.object(&Document::new("FairnessReport", Some(reading.last.0), view))?;
        }
        None => table(console, &reading, &by, &lines)?,
    }
    Ok(Exit::Ok)
}

fn html(
    console: &Console,
    reading: &Reading,
    by: &[FairnessDimension],
    lines: &[Line],
) -> Result<(), Failure> {
    let rows: Vec<Vec<String>> = lines.iter().map(cells).collect();
    let bars = lines.iter().flat_map(|line| {
        [("nominal", line.fair.nominal), ("received", line.fair.received)].map(|(group, amount)| Bar {
            label: format!("{} {group}", line.keys.join(" ")),
            group: group.to_owned(),
            amount,
            text: format!("{} h", Unit::Accelerators.hours(amount)),
        })
    });
    let bars: Vec<Bar> = bars.collect();
    let notes: Vec<String> = legend(by).into_iter().chain(common::notes(reading)).collect();
    console.line(&page("Fairness", &bars, &columns(by), &rows, &notes))
}

/// Thousandths of accelerators times milliseconds of each type that there were.
fn capacity(reading: &Reading) -> BTreeMap<String, u128> {
    let mut sums = BTreeMap::new();
    for row in reading.views.iter().flat_map(|view| &view.capacity) {
        *sums.entry(row.kind.to_string()).or_default() += row.milli_ms;
    }
    sums
}

/// Of what there was of a type; none where there was none of it, such as a type of the policy that no node has.
fn percent(amount: u128, capacity: u128) -> Option<String> {
    (capacity > 0).then(|| rows::percent(amount, capacity))
}

fn row(line: &Line) -> FairRow {
    let fair = &line.fair;
    FairRow {
        tenant: line.tenant.clone(),
        r#type: line.kind.clone(),
        nominal: fair.nominal.to_string(),
        nominal_percent: percent(fair.nominal, line.capacity),
        received: fair.received.to_string(),
        received_percent: percent(fair.received, line.capacity),
        demand: fair.demand().to_string(),
        borrowed: fair.borrowed.to_string(),
        lent: fair.lent.to_string(),
        waited_entitled: fair.entitled.to_string(),
        entitled_ms: fair.entitled_ms.to_string(),
    }
}

/// The cells of a line, with exact amounts.
fn cells(line: &Line) -> Vec<String> {
    let row = row(line);
    let measures: [String; MEASURES.len()] = [
        row.nominal,
        row.nominal_percent.unwrap_or_default(),
        row.received,
        row.received_percent.unwrap_or_default(),
        row.demand,
        row.borrowed,
        row.lent,
        row.waited_entitled,
        row.entitled_ms,
    ];
    line.keys.iter().cloned().chain(measures).collect()
}

fn table(
    console: &Console,
    reading: &Reading,
    by: &[FairnessDimension],
    lines: &[Line],
) -> Result<(), Failure> {
    let mut header: Vec<&'static str> = by.iter().map(|by| by.title()).collect();
    header.extend(["NOMINAL", "%", "RECEIVED", "%", "DEMAND", "BORROWED", "LENT", "WAITED", "HOURS"]);
    let mut grid = Grid::new(header);
    let hours = |milli_ms: u128| Unit::Accelerators.hours(milli_ms);
    let shown = |amount, capacity: u128| percent(amount, capacity).unwrap_or_else(|| "-".to_owned());
    for Line { keys, fair, capacity, .. } in lines {
        let measures = [
            hours(fair.nominal),
            shown(fair.nominal, *capacity),
            hours(fair.received),
            shown(fair.received, *capacity),
            hours(fair.demand()),
            hours(fair.borrowed),
            hours(fair.lent),
            hours(fair.entitled),
            Unit::Jobs.hours(fair.entitled_ms),
        ];
        grid.row(keys.iter().cloned().chain(measures).collect());
    }
    console.table(&grid)?;
    console.line("\naccelerator-hours, and percent of what there was; WAITED is what waiting jobs asked for within the quota,")?;
    console.line(&format!("and HOURS for how long; {}", legend(by).join("; ")))?;
    for note in common::notes(reading) {
        console.line(&note)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_by_tenant_and_type_unless_it_is_asked_otherwise() {
        use FairnessDimension::{Tenant, Type};
        assert_eq!(dimensions(&[]).unwrap(), [Tenant, Type]);
        assert_eq!(dimensions(&[Type, Tenant, Type]).unwrap(), [Type, Tenant]);
        let of_both = [Tenant, Type];
        assert_eq!(columns(&of_both)[..3], ["tenant", "type", "nominal"].map(str::to_owned));
        assert_eq!(columns(&[Type])[..2], ["type", "nominal"].map(str::to_owned));
        assert_eq!(division(&of_both), Division::default());
        assert_eq!(division(&[Tenant]), Division { by_tenant: true, by_type: false });
    }

    #[test]
    fn what_fairness_cannot_be_divided_by_is_refused_with_what_can() {
        for refused in FairnessDimension::value_variants() {
            if matches!(refused, FairnessDimension::Tenant | FairnessDimension::Type) {
                continue;
            }
            let failure = dimensions(&[FairnessDimension::Tenant, *refused]).unwrap_err();
            let word = format!("by {}:", refused.title().to_lowercase());
            assert!(failure.headline().contains(&word), "{}", failure.headline());
        }
    }

    #[test]
    fn a_type_that_nobody_has_has_no_percentages() {
        assert_eq!(percent(1_908_000, 0), None);
        assert_eq!(percent(1_908_000, 3_816_000).as_deref(), Some("50.0"));
    }
}
