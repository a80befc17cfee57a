//! What the reports have in common: the part of the log that they are about, what they say of it, and the forms of a table.

use clap::{Args, ValueEnum};
use muster_console::{Console, Exit, Failure, Format, Global, Grid};
use muster_ledger::Detail;
use muster_types::{LogTime, PastPoint};
use serde::Serialize;

use super::page::{Bar, page};
use super::read::{Reading, Watchers, read_in};
use crate::log::{LogSource, SourceArgs, point_of_log};

/// The part of the log that a report is about.
#[derive(Args)]
pub struct LogSpan {
    #[command(flatten)]
    pub(super) source: SourceArgs,
    /// Where the report begins: an RFC 3339 time or a log index [default: the first record]
    #[arg(long, value_name = "INDEX|TIME", value_parser = point_of_log)]
    pub(super) from: Option<PastPoint>,
    /// Where the report ends; the end itself is not included [default: the last record]
    #[arg(long, value_name = "INDEX|TIME", value_parser = point_of_log)]
    pub(super) to: Option<PastPoint>,
}

impl LogSpan {
    pub(super) async fn open(&self, global: &Global, console: &Console) -> Result<LogSource, Failure> {
        self.source.open(global, console).await
    }

    /// What the log says of the span, with more kept apart.
    pub(super) fn read(
        &self,
        source: &LogSource,
        detail: &Detail,
        watchers: Watchers<'_>,
    ) -> Result<Reading, Failure> {
        read_in(source, self.from, self.to, detail, watchers)
    }
}

/// Forms of a report that -o names as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportForm {
    /// A header and one line for each sum
    Csv,
    /// A page with a chart and a table
    Html,
}

/// Refuses two forms of one report.
pub(super) fn check_form(console: &Console, has_form: bool) -> Result<(), Failure> {
    if has_form && console.format != Format::Table {
        return Err(Failure::usage("--form and -o ask for two forms of one report")
            .with_next("leave out -o for the form, or leave out --form for what -o names"));
    }
    Ok(())
}

/// The form that -o or --form names; none for a table and what programs read.
pub(super) fn form_of(console: &Console, form: Option<ReportForm>) -> Option<ReportForm> {
    form.or(match console.format {
        Format::Csv => Some(ReportForm::Csv),
        Format::Html => Some(ReportForm::Html),
        Format::Table | Format::Wide | Format::Json | Format::Yaml | Format::Name => None,
    })
}

/// Each dimension once, where it comes first.
pub(super) fn distinct<D: Copy + PartialEq>(by: &[D]) -> Vec<D> {
    let mut once = Vec::new();
    for dimension in by {
        if !once.contains(dimension) {
            once.push(*dimension);
        }
    }
    once
}

fn text(time: LogTime) -> Option<String> {
    (time.0 > 0).then(|| time.to_string())
}

/// From when to when what was read is.
pub(super) fn span(reading: &Reading) -> String {
    let (from, to) = (text(reading.from), text(reading.to));
    format!("{} to {}", from.unwrap_or_default(), to.unwrap_or_default())
}

/// What the archive does not have, one sentence each.
pub(super) fn notes(reading: &Reading) -> Vec<String> {
    let mut notes = reading.notes.clone();
    for gap in &reading.missing {
        let until = gap.until.and_then(text);
        let behind = until.map_or("the end".to_owned(), |time| time.clone());
        notes.push(format!(
            "missing: records {} to {}; nothing is charged from {} to {behind}",
            gap.records.from,
            gap.records.to,
            text(gap.since).unwrap_or_else(|| "the beginning".to_owned()),
        ));
    }
    notes
}

/// What was read, for programs; every report has it before its rows.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReadView {
    from: Option<String>,
    to: Option<String>,
    first_log_index: u64,
    last_log_index: u64,
    missing: Vec<MissingView>,
    notes: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MissingView {
    first_log_index: u64,
    last_log_index: u64,
    from: Option<String>,
    /// None where nothing behind it can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
}

impl ReadView {
    pub(super) fn of(reading: &Reading) -> ReadView {
        let missing = reading.missing.iter().map(|gap| MissingView {
            first_log_index: gap.records.from.0,
            last_log_index: gap.records.to.0,
            from: text(gap.since),
            to: gap.until.and_then(text),
        });
        ReadView {
            from: text(reading.from),
            to: text(reading.to),
            first_log_index: reading.first.0,
            last_log_index: reading.last.0,
            missing: missing.collect(),
            notes: reading.notes.clone(),
        }
    }
}

/// A report that is a table with a chart.
pub(super) trait TableReport {
    /// The title of its page.
    fn title(&self) -> &'static str;
    /// Titles of the columns.
    fn header(&self) -> Vec<&'static str>;
    /// The cells of each row.
    fn cells(&self) -> Vec<Vec<String>>;
    /// The chart.
    fn bars(&self) -> Vec<Bar>;
    /// The lines below the rows.
    fn lines(&self) -> Vec<String>;
    /// Writes it as CSV.
    fn csv(&self, console: &Console) -> Result<(), Failure>;
    /// Writes it for programs.
    fn document(&self, console: &Console) -> Result<(), Failure>;
}

/// Writes a report in the form that was asked for.
pub(super) fn write(
    console: &Console,
    form: Option<ReportForm>,
    report: &impl TableReport,
) -> Result<Exit, Failure> {
    match form_of(console, form) {
        Some(ReportForm::Csv) => report.csv(console)?,
        Some(ReportForm::Html) => console.line(&html(report))?,
        None if console.is_structured() => report.document(console)?,
        None => table(console, report)?,
    }
    Ok(Exit::Ok)
}

fn html(report: &impl TableReport) -> String {
    let header: Vec<String> = report.header().into_iter().map(str::to_owned).collect();
    page(report.title(), &report.bars(), &header, &report.cells(), &report.lines())
}

fn table(console: &Console, report: &impl TableReport) -> Result<(), Failure> {
    let mut grid = Grid::new(report.header());
    report.cells().into_iter().for_each(|cells| grid.row(cells));
    console.table(&grid)?;
    console.line("")?;
    report.lines().iter().try_for_each(|line| console.line(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Two;

    impl TableReport for Two {
        fn title(&self) -> &'static str {
            "Two rows"
        }

        fn header(&self) -> Vec<&'static str> {
            vec!["TENANT", "HOURS"]
        }

        fn cells(&self) -> Vec<Vec<String>> {
            [("a", "1.000"), ("b", "2.000")].map(|(a, b)| vec![a.to_owned(), b.to_owned()]).to_vec()
        }

        fn bars(&self) -> Vec<Bar> {
            let bar = |label: &str, amount| Bar {
                label: label.to_owned(),
                group: "all".to_owned(),
                amount,
                text: format!("{amount} h"),
            };
            vec![bar("a", 1), bar("b", 2)]
        }

        fn lines(&self) -> Vec<String> {
            vec!["total 3 hours".to_owned()]
        }

        fn csv(&self, _: &Console) -> Result<(), Failure> {
            Ok(())
        }

        fn document(&self, _: &Console) -> Result<(), Failure> {
            Ok(())
        }
    }

    #[test]
    fn a_page_has_all_that_a_table_has() {
        let page = html(&Two);
        for part in ["Two rows", "<th>TENANT</th>", "<td>2.000</td>", "2 h", "total 3 hours"] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }

    #[test]
    fn output_names_the_form_of_a_report_as_form_does() {
        let console = |format| Console::new(format, true, true);
        assert_eq!(form_of(&console(Format::Csv), None), Some(ReportForm::Csv));
        assert_eq!(form_of(&console(Format::Html), None), Some(ReportForm::Html));
        assert_eq!(form_of(&console(Format::Table), Some(ReportForm::Csv)), Some(ReportForm::Csv));
        for format in [Format::Table, Format::Wide, Format::Json, Format::Yaml] {
            assert_eq!(form_of(&console(format), None), None, "{format:?}");
        }
        assert!(check_form(&console(Format::Csv), true).is_err(), "two forms");
    }

    #[test]
    fn each_dimension_counts_once_where_it_comes_first() {
        assert_eq!(distinct(&['b', 'a', 'b', 'c', 'a']), ['b', 'a', 'c']);
    }
}
