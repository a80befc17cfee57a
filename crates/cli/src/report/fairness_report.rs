//! `muster report fairness`: its options and its forms.

use std::collections::BTreeMap;

use clap::Args;
use muster_console::{Console, Document, Exit, Failure, Global, Grid};
use muster_ledger::Detail;
use muster_sim::turns::{TurnCheck, TurnCounts};
use serde::Serialize;

use super::common::{self, LogSpan, ReadView, ReportForm, check_form};
use super::fairness::{Fairness, FairnessSum};
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
    /// Another spelling of -o csv and -o html
    #[arg(long, value_enum, hide = true)]
    form: Option<ReportForm>,
}

/// Of one tenant and type. Amounts are text: they may be above what numbers of JSON hold.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct FairRow {
    tenant: String,
    r#type: String,
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

const COLUMNS: [&str; 11] = [
    "tenant",
    "type",
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
    let source = args.span.open(global, console).await?;
    let mut fairness = Fairness::default();
    let mut turns = verify.then(TurnCheck::default);
    let watchers =
        Watchers { fairness: Some(&mut fairness), turns: turns.as_mut(), ..Watchers::told(console) };
    let mut reading = args.span.read(&source, &Detail::default(), watchers)?;
    reading.notes.extend(turns.iter().flat_map(lines_of));
    let capacity = capacity(&reading);
    let of = |kind: &str| capacity.get(kind).copied().unwrap_or_default();
    match common::form_of(console, args.form) {
        Some(ReportForm::Csv) => {
            console.line(&COLUMNS.join(","))?;
            for (tenant, kind, fair) in fairness.sums() {
                console.line(&row(tenant, kind, fair, of(kind)).cells().join(","))?;
            }
            common::notes(&reading).iter().for_each(|note| console.error(note));
        }
        Some(ReportForm::Html) => html(console, &reading, &fairness, of)?,
        None if console.is_structured() => {
            let rows = fairness.sums().map(|(tenant, kind, fair)| row(tenant, kind, fair, of(kind)));
            let rows = rows.collect();
            let view = FairnessView {
                read: ReadView::of(&reading),
                rows,
                unit: Unit::Accelerators.name(),
                turns: turns.as_ref().map(turns_of),
            };
            console.object(&Document::new("FairnessReport", Some(reading.last.0), view))?;
        }
        None => table(console, &reading, &fairness, of)?,
    }
    Ok(Exit::Ok)
}

fn html(
    console: &Console,
    reading: &Reading,
    fairness: &Fairness,
    capacity: impl Fn(&str) -> u128,
) -> Result<(), Failure> {
    let header = COLUMNS.map(str::to_owned);
    let rows = fairness.sums();
    let rows = rows.map(|(tenant, kind, fair)| row(tenant, kind, fair, capacity(kind)).cells().to_vec());
    let rows: Vec<Vec<String>> = rows.collect();
    let bars = fairness.sums().flat_map(|(tenant, kind, fair)| {
        [("nominal", fair.nominal), ("received", fair.received)].map(|(group, amount)| Bar {
            label: format!("{tenant} {kind} {group}"),
            group: group.to_owned(),
            amount,
            text: format!("{} h", Unit::Accelerators.hours(amount)),
        })
    });
    let bars: Vec<Bar> = bars.collect();
    console.line(&page("Fairness", &bars, &header, &rows, &common::notes(reading)))
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

fn row(tenant: &str, kind: &str, fair: &FairnessSum, capacity: u128) -> FairRow {
    FairRow {
        tenant: tenant.to_owned(),
        r#type: kind.to_owned(),
        nominal: fair.nominal.to_string(),
        nominal_percent: percent(fair.nominal, capacity),
        received: fair.received.to_string(),
        received_percent: percent(fair.received, capacity),
        demand: fair.demand().to_string(),
        borrowed: fair.borrowed.to_string(),
        lent: fair.lent.to_string(),
        waited_entitled: fair.entitled.to_string(),
        entitled_ms: fair.entitled_ms.to_string(),
    }
}

impl FairRow {
    fn cells(self) -> [String; COLUMNS.len()] {
        [
            self.tenant,
            self.r#type,
            self.nominal,
            self.nominal_percent.unwrap_or_default(),
            self.received,
            self.received_percent.unwrap_or_default(),
            self.demand,
            self.borrowed,
            self.lent,
            self.waited_entitled,
            self.entitled_ms,
        ]
    }
}

fn table(
    console: &Console,
    reading: &Reading,
    fairness: &Fairness,
    capacity: impl Fn(&str) -> u128,
) -> Result<(), Failure> {
    let header =
        ["TENANT", "TYPE", "NOMINAL", "%", "RECEIVED", "%", "DEMAND", "BORROWED", "LENT", "WAITED", "HOURS"];
    let mut grid = Grid::new(header.to_vec());
    let hours = |milli_ms: u128| Unit::Accelerators.hours(milli_ms);
    let shown = |amount, capacity| percent(amount, capacity).unwrap_or_else(|| "-".to_owned());
    for (tenant, kind, fair) in fairness.sums() {
        let capacity = capacity(kind);
        grid.row(vec![
            tenant.to_string(),
            kind.to_owned(),
            hours(fair.nominal),
            shown(fair.nominal, capacity),
            hours(fair.received),
            shown(fair.received, capacity),
            hours(fair.demand()),
            hours(fair.borrowed),
            hours(fair.lent),
            hours(fair.entitled),
            Unit::Jobs.hours(fair.entitled_ms),
        ]);
    }
    console.table(&grid)?;
    console.line("\naccelerator-hours, and percent of what there was; WAITED is what waiting jobs asked for within the quota,")?;
    console.line("and HOURS for how long; a tenant counts with those below it")?;
    for note in common::notes(reading) {
        console.line(&note)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_that_nobody_has_has_no_percentages() {
        let fair = FairnessSum { nominal: 1_908_000, ..FairnessSum::default() };
        let of_none = row("research", "v5p", &fair, 0).cells();
        assert_eq!((of_none[2].as_str(), of_none[3].as_str(), of_none[5].as_str()), ("1908000", "", ""));
        let of_some = row("research", "v5p", &fair, 3_816_000).cells();
        assert_eq!((of_some[3].as_str(), of_some[5].as_str()), ("50.0", "0.0"));
    }
}
