//! `muster report cost`: its options and its forms.

use clap::{Args, ValueEnum};
use muster_archive::{Archive, ArchiveError};
use muster_console::{Console, Document, Exit, Failure, Global};
use muster_ledger::Detail;
use muster_types::{LogIndex, PastPoint};
use serde::Serialize;

use super::common::{self, LogSpan, ReadView, ReportForm, TableReport, check_form, distinct};
use super::cost::{self, Amount, CostDimension, CostRow, Prices, dollars};
use super::focus;
use super::page::Bar;
use super::read::{Reading, Watchers};
use super::rows::{self, Unit};
use crate::log::archive_failure;

/// Options of the report of cost.
#[derive(Args)]
pub struct CostArgs {
    #[command(flatten)]
    span: LogSpan,
    /// What the lines are divided by: one or more of these, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "DIMENSION")]
    by: Vec<CostDimension>,
    /// Print a form that -o does not have; it does not go with -o
    #[arg(long, value_enum)]
    form: Option<CostForm>,
}

/// Forms of the report of cost: FOCUS, and other spellings of -o.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CostForm {
    /// As -o csv
    #[value(hide = true)]
    Csv,
    /// As -o html
    #[value(hide = true)]
    Html,
    /// CSV in the columns of FOCUS, one line for each day and price; of --by it takes job alone
    Focus,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CostView {
    #[serde(flatten)]
    read: ReadView,
    currency: &'static str,
    rows: Vec<CostRow>,
    /// Millionths of a dollar, as text like all amounts.
    total: String,
    /// Millionths of a dollar for an hour times what `unit` counts.
    exact: String,
    priced: String,
    unpriced: String,
    unit: &'static str,
}

pub(super) async fn run(global: &Global, console: &Console, args: &CostArgs) -> Result<Exit, Failure> {
    check_form(console, args.form.is_some())?;
    let by = distinct(&args.by);
    if args.form == Some(CostForm::Focus) && by.iter().any(|by| *by != CostDimension::Job) {
        return Err(Failure::usage(
            "--form focus has the columns of FOCUS, and --by can only add job to them",
        )
        .with_next("leave out --by, or use --by job or -o csv"));
    }
    let source = args.span.open(global, console).await?;
    let prices = last_prices(&source.archive)?;
    let jobs = by.contains(&CostDimension::Job);
    let detail = Detail { cuts: prices.boundaries().to_vec(), jobs };
    let reading = args.span.read(&source, &detail, Watchers::told(console))?;
    let rows = cost::rows(&reading.views, &prices, &by);
    let total = cost::total(rows.iter().map(|row| &row.amount));
    let capacity = rows::capacity(&reading.views);
    if total.priced + total.unpriced != capacity {
        // The property of the ledger says that this cannot be; a report that is wrong is not printed.
        let text = format!("the rows add up to {total:?} and the capacity is {capacity}");
        return Err(Failure::new(Exit::Failed, text));
    }
    let report = CostReport { by, prices, reading, rows, total };
    let form = match args.form {
        Some(CostForm::Focus) => {
            report.focus(console)?;
            return Ok(Exit::Ok);
        }
        Some(CostForm::Csv) => Some(ReportForm::Csv),
        Some(CostForm::Html) => Some(ReportForm::Html),
        None => None,
    };
    common::write(console, form, &report)
}

/// The prices of the policy at the end of the log, which are for all times.
fn last_prices(archive: &Archive) -> Result<Prices, Failure> {
    let Some(last) = archive.summary().last else { return Ok(Prices::default()) };
    let at = |index| archive.replay(PastPoint::Index(index), None);
    let replayed = match at(last) {
        // The end cannot be read; the report goes as far as this.
        Err(ArchiveError::Missing { from, .. }) if from.0 > 1 => at(LogIndex(from.0 - 1)),
        replayed => replayed,
    };
    let (replay, _) = replayed.map_err(|error| archive_failure(&error))?;
    Ok(Prices::new(replay.state().policy().policy.price_table().clone()))
}

struct CostReport {
    by: Vec<CostDimension>,
    prices: Prices,
    reading: Reading,
    rows: Vec<CostRow>,
    total: Amount,
}

fn hours(milli_ms: u128) -> String {
    Unit::Accelerators.hours(milli_ms)
}

impl CostReport {
    fn notes(&self) -> Vec<String> {
        let mut notes = common::notes(&self.reading);
        if self.prices.is_empty() {
            notes.push(
                "the policy at the end of the log has no prices: `muster policy set --only prices`".into(),
            );
        }
        notes
    }

    fn cells_of(row: &CostRow) -> Vec<String> {
        let mut cells: Vec<String> = row.keys.iter().map(|(_, value)| value.clone()).collect();
        let (priced, unpriced) = (hours(row.amount.priced), hours(row.amount.unpriced));
        cells.extend([row.state.clone(), priced, unpriced, row.dollars()]);
        cells
    }

    fn total_line(&self) -> String {
        let span = common::span(&self.reading);
        let (priced, unpriced) = (hours(self.total.priced), hours(self.total.unpriced));
        let dollars = dollars(self.total.micro_dollars());
        format!(
            "total ${dollars} for {priced} accelerator-hours; unpriced {unpriced} accelerator-hours; {span}"
        )
    }

    fn say_notes(&self, console: &Console) {
        self.notes().iter().for_each(|note| console.error(note));
    }

    fn focus(&self, console: &Console) -> Result<(), Failure> {
        let (charges, unpriced) = cost::charges(&self.reading.views, &self.prices);
        console.line(&focus::COLUMNS.join(","))?;
        let span = (self.reading.from, self.reading.to);
        for charge in &charges {
            console.line(&focus::line(charge, &self.prices, span))?;
        }
        for (what, milli_ms) in unpriced {
            console.error(&format!("unpriced, and not in the file: {} hours of {what}", hours(milli_ms)));
        }
        self.say_notes(console);
        Ok(())
    }
}

impl TableReport for CostReport {
    fn title(&self) -> &'static str {
        "Cost of accelerators"
    }

    fn header(&self) -> Vec<&'static str> {
        let mut header: Vec<&'static str> = self.by.iter().map(|by| by.title()).collect();
        header.extend(["USE", "HOURS", "UNPRICED", "DOLLARS"]);
        header
    }

    fn cells(&self) -> Vec<Vec<String>> {
        self.rows.iter().map(CostReport::cells_of).collect()
    }

    fn bars(&self) -> Vec<Bar> {
        let bars = self.rows.iter().map(|row| {
            let keys: String = row.keys.iter().map(|(_, value)| format!("{value} ")).collect();
            Bar {
                label: format!("{keys}{}", row.state),
                group: row.state.clone(),
                amount: row.micro_dollars,
                text: format!("${}", row.dollars()),
            }
        });
        bars.filter(|bar| bar.amount > 0).collect()
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.total_line()];
        lines.extend(self.notes());
        lines
    }

    fn csv(&self, console: &Console) -> Result<(), Failure> {
        let mut header: Vec<String> = self.by.iter().map(|by| by.title().to_lowercase()).collect();
        let amounts = ["state", "priced", "unpriced", "micro_dollars", "exact"];
        header.extend(amounts.map(str::to_owned));
        console.line(&header.join(","))?;
        for row in &self.rows {
            let mut cells: Vec<String> = row.keys.iter().map(|(_, value)| value.clone()).collect();
            let Amount { priced, unpriced, exact } = row.amount;
            // Empty where nothing has a price.
            let of_priced = |value: u128| if priced > 0 { value.to_string() } else { String::new() };
            cells.extend([row.state.clone(), priced.to_string(), unpriced.to_string()]);
            cells.extend([of_priced(row.micro_dollars), of_priced(exact)]);
            console.line(&cells.join(","))?;
        }
        self.say_notes(console);
        Ok(())
    }

    fn document(&self, console: &Console) -> Result<(), Failure> {
        let reading = &self.reading;
        let view = CostView {
            read: ReadView::of(reading),
            currency: "USD",
            rows: self.rows.clone(),
            total: self.total.micro_dollars().to_string(),
            exact: self.total.exact.to_string(),
            priced: self.total.priced.to_string(),
            unpriced: self.total.unpriced.to_string(),
            unit: Unit::Accelerators.name(),
        };
        console.object(&Document::new("CostReport", Some(reading.last.0), view))
    }
}
