//! `muster report cost`: its options and its forms.

use clap::{Args, ValueEnum};
use muster_archive::{Archive, ArchiveError};
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid};
use muster_ledger::Detail;
use muster_types::{LogIndex, PastPoint};
use serde::Serialize;

use super::cost::{self, Amount, CostDimension, CostRow, Prices, dollars};
use super::page::{Bar, page};
use super::read::{Reading, Watchers, read_in};
use super::rows::{self, Unit};
use super::{MissingView, focus, text};
use crate::log::{SourceArgs, archive_failure, point_of_log};

/// Options of the report of cost.
#[derive(Args)]
pub struct CostArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// What the lines are divided by: one or more of these, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "DIMENSION")]
    by: Vec<CostDimension>,
    /// Where the report begins: an RFC 3339 time or a log index [default: the first record]
    #[arg(long, value_name = "INDEX|TIME", value_parser = point_of_log)]
    from: Option<PastPoint>,
    /// Where the report ends; the end itself is not included [default: the last record]
    #[arg(long, value_name = "INDEX|TIME", value_parser = point_of_log)]
    to: Option<PastPoint>,
    /// Print another form than a table; it does not go with -o
    #[arg(long, value_enum)]
    form: Option<CostForm>,
}

/// Forms of the report of cost apart from those of -o.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CostForm {
    /// A header and one line for each sum
    Csv,
    /// A page with a chart and a table
    Html,
    /// CSV in the columns of FOCUS, one line for each day and price; of --by it takes job alone
    Focus,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CostView {
    from: Option<String>,
    to: Option<String>,
    first_log_index: u64,
    last_log_index: u64,
    missing: Vec<MissingView>,
    notes: Vec<String>,
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
    if args.form.is_some() && console.format != Format::Table {
        return Err(super::two_forms());
    }
    let by = super::distinct(&args.by);
    if args.form == Some(CostForm::Focus) && by.iter().any(|by| *by != CostDimension::Job) {
        return Err(Failure::usage(
            "--form focus has the columns of FOCUS, and --by can only add job to them",
        )
        .with_next("leave out --by, or use --by job or --form csv"));
    }
    let source = args.source.open(global, console).await?;
    let prices = last_prices(&source.archive)?;
    let jobs = by.contains(&CostDimension::Job);
    let detail = Detail { cuts: prices.boundaries().to_vec(), jobs };
    let reading = read_in(&source, args.from, args.to, &detail, Watchers::told(console))?;
    let rows = cost::rows(&reading.views, &prices, &by);
    let total = cost::total(rows.iter().map(|row| &row.amount));
    let capacity = rows::capacity(&reading.views);
    if total.priced + total.unpriced != capacity {
        // The property of the ledger says that this cannot be; a report that is wrong is not printed.
        let text = format!("the rows add up to {total:?} and the capacity is {capacity}");
        return Err(Failure::new(Exit::Failed, text));
    }
    let report = CostReport { by, prices, reading, rows, total };
    match args.form {
        Some(CostForm::Csv) => report.csv(console)?,
        Some(CostForm::Html) => console.line(&report.html())?,
        Some(CostForm::Focus) => report.focus(console)?,
        None if console.format == Format::Html => console.line(&report.html())?,
        None if console.is_structured() => report.document(console)?,
        None => report.table(console)?,
    }
    Ok(Exit::Ok)
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
        let mut notes = super::notes(&self.reading);
        if self.prices.is_empty() {
            notes.push(
                "the policy at the end of the log has no prices: `muster policy set --only prices`".into(),
            );
        }
        notes
    }

    /// Titles of the columns, in lower case for CSV.
    fn header(&self) -> Vec<&'static str> {
        let mut header: Vec<&'static str> = self.by.iter().map(|by| by.title()).collect();
        header.extend(["USE", "HOURS", "UNPRICED", "DOLLARS"]);
        header
    }

    fn cells(row: &CostRow) -> Vec<String> {
        let mut cells: Vec<String> = row.keys.iter().map(|(_, value)| value.clone()).collect();
        let (priced, unpriced) = (hours(row.amount.priced), hours(row.amount.unpriced));
        cells.extend([row.state.clone(), priced, unpriced, row.dollars()]);
        cells
    }

    fn total_line(&self) -> String {
        let span = self.span();
        let (priced, unpriced) = (hours(self.total.priced), hours(self.total.unpriced));
        let dollars = dollars(self.total.micro_dollars());
        format!(
            "total ${dollars} for {priced} accelerator-hours; unpriced {unpriced} accelerator-hours; {span}"
        )
    }

    fn span(&self) -> String {
        let (from, to) = (text(self.reading.from), text(self.reading.to));
        format!("{} to {}", from.unwrap_or_default(), to.unwrap_or_default())
    }

    fn say_notes(&self, console: &Console) {
        self.notes().iter().for_each(|note| console.error(note));
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

    fn html(&self) -> String {
        let header: Vec<String> = self.header().into_iter().map(str::to_owned).collect();
        let rows: Vec<Vec<String>> = self.rows.iter().map(CostReport::cells).collect();
        let mut lines = vec![self.total_line()];
        lines.extend(self.notes());
        let bars = self.rows.iter().map(|row| {
            let keys: String = row.keys.iter().map(|(_, value)| format!("{value} ")).collect();
            Bar {
                label: format!("{keys}{}", row.state),
                group: row.state.clone(),
                amount: row.micro_dollars,
                text: format!("${}", row.dollars()),
            }
        });
        let bars: Vec<Bar> = bars.filter(|bar| bar.amount > 0).collect();
        page("Cost of accelerators", &bars, &header, &rows, &lines)
    }

    fn document(&self, console: &Console) -> Result<(), Failure> {
        let reading = &self.reading;
        let view = CostView {
            from: text(reading.from),
            to: text(reading.to),
            first_log_index: reading.first.0,
            last_log_index: reading.last.0,
            missing: super::missing(reading),
            notes: reading.notes.clone(),
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

    fn table(&self, console: &Console) -> Result<(), Failure> {
        let mut grid = Grid::new(self.header());
        self.rows.iter().for_each(|row| grid.row(CostReport::cells(row)));
        console.table(&grid)?;
        console.line(&format!("\n{}", self.total_line()))?;
        for note in self.notes() {
            console.line(&note)?;
        }
        Ok(())
    }
}
