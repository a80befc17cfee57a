//! `muster report …`: what accelerators were used for and what jobs waited for, charged from a log: an archive at hand, the
//! cluster, or both.
//!
//! **Invariant:** what is not in the log is reported as missing, and nothing is charged for it.
//! **Invariant:** the rows of a report of accelerators add up to capacity × time, which is printed.

mod common;
mod cost;
mod cost_report;
mod fairness;
mod fairness_report;
mod focus;
mod goodput;
mod idle_report;
mod ledger_file;
mod page;
mod predictions;
mod read;
mod rows;
mod waits_report;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use muster_console::{Console, Document, Exit, Failure, Global};
use muster_ledger::Detail;
use serde::Serialize;

use common::{LogSpan, ReadView, ReportForm, TableReport, check_form, distinct};
use cost_report::CostArgs;
use fairness_report::{FairnessArgs, FairnessSpan};
use goodput::GoodputArgs;
use idle_report::IdleArgs;
use page::Bar;
use predictions::PredictionArgs;
#[cfg(test)]
pub(crate) use read::tests as archives;
pub(crate) use read::time_of;
use read::{Reading, Watchers};
use rows::{Conservation, Goodput, Row, Unit};
use waits_report::WaitsArgs;

/// Commands about what the fleet was used for.
#[derive(Subcommand)]
pub enum ReportCommand {
    /// Accelerator time by what it was used for: kept and lost work, starts, stops, idle
    #[command(after_help = "\
Examples:
  muster report usage --archive /var/lib/muster/replica-1
  muster report usage --archive /var/lib/muster/replica-1/archive --by tenant,type --from 2026-11-01T00:00:00Z
  muster report usage --archive archive --archive /mnt/history -o csv > usage.csv
  muster report usage --archive archive --ledger usage.ledger     charges what is new since the last report with this file
  muster report usage --by tenant                      the log of the cluster, whether or not it is archived

The lines add up to capacity × time; `conservation error 0` states that they do for each type in each region. Work of which the log does not say yet whether it was kept or lost is provisional.")]
    Usage(ReportArgs),
    /// Accelerator time by what it was idle for
    #[command(after_help = "\
Examples:
  muster report idle --archive /var/lib/muster/replica-1
  muster report idle --by cause,type,region,tenant
  muster report idle --archive /var/lib/muster/replica-1 --tail --by type,region -o json
  muster report idle --archive /var/lib/muster/replica-1 --sample 10s -o html > idle.html

Where several causes hold at once, one of them is counted, by a fixed order; `ops/guide/ledger.md` states the order. The log
says most of them. Why jobs that wait do not have accelerators of their type is asked of the planner, at moments of the log
that are apart as --sample says; between them the answer holds. The tenant is the one that waits, or that something is kept
for.")]
    Idle(IdleArgs),
    /// Time that jobs spent before they ran, by what they waited for
    #[command(after_help = "\
Examples:
  muster report waits --archive /var/lib/muster/replica-1 --by tenant,tier
  muster report waits --archive /var/lib/muster/replica-1 --by day -o csv
  muster report waits --archive /var/lib/muster/replica-1 --by job,tenant
  muster report waits --by tenant --sample 1m          why those were pending that could start

The lines add up to the time that all jobs waited. With --sample the planner is asked on the way through the log why jobs are
pending that could start, at moments that are so far apart; `ops/guide/ledger.md` states the reasons.")]
    Waits(WaitsArgs),
    /// What accelerator time cost, by the prices of the policy
    #[command(after_help = "\
Examples:
  muster report cost --archive /var/lib/muster/replica-1 --by tenant,type
  muster report cost --archive /var/lib/muster/replica-1 --by job --from 2026-11-01T00:00:00Z --to 2026-12-01T00:00:00Z
  muster report cost --archive /var/lib/muster/replica-1 --form focus > cost.csv
  muster report cost --archive /var/lib/muster/replica-1 --by purchase -o html > cost.html

The prices are those of the policy at the end of the log, each for the time that it states. Time that has no price is
unpriced; it does not count as free. The lines add up to the total, to the millionth of a dollar.")]
    Cost(CostArgs),
    /// What tenants were entitled to, asked for, got, borrowed and lent
    #[command(after_help = "\
Examples:
  muster report fairness --archive /var/lib/muster/replica-1
  muster report fairness --archive /var/lib/muster/replica-1 --from 2026-11-01T00:00:00Z -o csv
  muster report fairness --by tenant -o html > fairness.html
  muster report fairness --verify --from 4711          with placements that went before a request that fitted

The lines are divided by tenant and type; --by takes one of them, or both. A tenant counts with those below it.
`ops/guide/ledger.md` states what each column is.")]
    Fairness(FairnessArgs),
    /// How much of the accelerator time that jobs wanted became work that counts
    #[command(after_help = "\
Examples:
  muster report goodput --archive /var/lib/muster/replica-1
  muster report goodput --archive /var/lib/muster/replica-1 --by tenant,type,region
  muster report goodput --by job --from 2026-11-01T00:00:00Z -o csv > goodput.csv
  muster report goodput --archive archive --tail --by tenant -o json

Goodput is scheduling × runtime × program, each in percent (in thousandths in CSV and JSON): time with all workers running of the time that was wanted,
kept work of that, and the time that steps take at best of what they took. Checkpoints that state their step tell how long
steps took; PROGRAM is not reported where no job states enough of them. `ops/guide/ledger.md` states each term.")]
    Goodput(GoodputArgs),
    /// How well the starts that were predicted for jobs did
    #[command(after_help = "\
Examples:
  muster report predictions --archive /var/lib/muster/replica-1
  muster report predictions --from 2026-11-01T00:00:00Z --sample 1m -o json
  muster report predictions --archive archive --tail

The log is replayed. At moments that are apart as --sample says, the planner is asked when the job that was submitted last will
start, and the answer is compared with when it did. One job in ten should start by p10, half of them by p50, nine in ten by p90. Jobs
that start in the round of their submission are not asked about. At most 2,000 are.")]
    Predictions(PredictionArgs),
}

/// Commands about fairness.
#[derive(Subcommand)]
pub enum FairnessCommand {
    /// Recompute shares from the log, and find who was served before a request that had its turn earlier and fitted
    #[command(after_help = "\
Examples:
  muster fairness verify --archive /var/lib/muster/replica-1
  muster fairness verify --from 4711 -o json | jq .turns.findings

It is `muster report fairness --verify`. `ops/guide/ledger.md` states what each column is, and what a finding does not say.")]
    Verify(FairnessSpan),
}

/// Carries out a command about fairness.
pub async fn verify_fairness(
    global: &Global,
    console: &Console,
    command: &FairnessCommand,
) -> Result<Exit, Failure> {
    let FairnessCommand::Verify(span) = command;
    fairness_report::report(global, console, span, true).await
}

/// What a report can be divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dimension {
    /// What it is a report of, by which it is always divided: the use, the cause or the reason
    Cause,
    /// The tenant of the job
    Tenant,
    /// The type of accelerator
    Type,
    /// The region
    Region,
    /// The tier of the job
    Tier,
    /// The job
    Job,
    /// The day, in UTC
    Day,
}

impl Dimension {
    fn title(self) -> &'static str {
        match self {
            Dimension::Cause => "CAUSE",
            Dimension::Tenant => "TENANT",
            Dimension::Type => "TYPE",
            Dimension::Region => "REGION",
            Dimension::Tier => "TIER",
            Dimension::Job => "JOB",
            Dimension::Day => "DAY",
        }
    }
}

/// Options of a report.
#[derive(Args)]
pub struct ReportArgs {
    #[command(flatten)]
    span: LogSpan,
    /// What the lines are divided by: one or more of these, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "DIMENSION")]
    by: Vec<Dimension>,
    /// Another spelling of -o csv and -o html
    #[arg(long, value_enum, hide = true)]
    form: Option<ReportForm>,
    /// Go on from the ledger in this file, and keep it there for the next report: only what the log has more is charged
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
}

impl ReportArgs {
    /// What the ledger keeps apart for this report.
    fn detail(&self) -> Detail {
        Detail { jobs: self.by.contains(&Dimension::Job), ..Detail::default() }
    }
}

/// Which report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportKind {
    Usage,
    Idle,
    Waits,
}

impl ReportKind {
    fn name(self) -> &'static str {
        match self {
            ReportKind::Usage => "UsageReport",
            ReportKind::Idle => "IdleReport",
            ReportKind::Waits => "WaitsReport",
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReportView {
    #[serde(flatten)]
    read: ReadView,
    rows: Vec<Row>,
    /// As text: it may be above what numbers of JSON hold.
    total: String,
    /// The same unit; none for waiting time.
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<String>,
    /// By how much rows and capacity differ, over all types in all regions; none for waiting time.
    #[serde(skip_serializing_if = "Option::is_none")]
    conservation_error: Option<String>,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    goodput: Option<Goodput>,
}

pub async fn run(global: &Global, console: &Console, command: &ReportCommand) -> Result<Exit, Failure> {
    let args = match command {
        ReportCommand::Usage(args) => args,
        ReportCommand::Idle(args) => return idle_report::run(global, console, args).await,
        ReportCommand::Waits(args) => return waits_report::run(global, console, args).await,
        ReportCommand::Cost(args) => return cost_report::run(global, console, args).await,
        ReportCommand::Fairness(args) => return fairness_report::run(global, console, args).await,
        ReportCommand::Goodput(args) => return goodput::run(global, console, args).await,
        ReportCommand::Predictions(args) => return predictions::run(global, console, args).await,
    };
    check_form(console, args.form.is_some())?;
    let source = args.span.open(global, console).await?;
    let watchers = Watchers { kept: args.ledger.as_deref(), ..Watchers::told(console) };
    let reading = args.span.read(&source, &args.detail(), watchers)?;
    show(console, ReportKind::Usage, args, reading)
}

/// What was read, in the form that was asked for.
fn show(console: &Console, kind: ReportKind, args: &ReportArgs, reading: Reading) -> Result<Exit, Failure> {
    let mut by = distinct(&args.by);
    // That is what the rows are anyway.
    by.retain(|by| *by != Dimension::Cause);
    let rows = match kind {
        ReportKind::Usage => rows::usage(&reading.views, &by),
        ReportKind::Idle => rows::idle(&reading.views, &by),
        ReportKind::Waits if by.contains(&Dimension::Job) => {
            rows::waits_by_job(&reading.views, &reading.jobs, &by)
        }
        ReportKind::Waits => rows::waits(&reading.views, &by),
    };
    let total: u128 = rows.iter().map(|row| row.amount).sum();
    let conservation = (kind != ReportKind::Waits).then(|| Conservation::of(&reading.views, total));
    if let Some(broken) = conservation.as_ref().filter(|compared| compared.error > 0) {
        // The property of the ledger says that this cannot be; a report that is wrong is not printed.
        return Err(Failure::new(Exit::Failed, broken.line()));
    }
    let goodput = (kind == ReportKind::Usage).then(|| Goodput::of(&reading.views)).flatten();
    let report = Report { kind, by, reading, rows, total, conservation, goodput };
    common::write(console, args.form, &report)
}

struct Report {
    kind: ReportKind,
    by: Vec<Dimension>,
    reading: Reading,
    rows: Vec<Row>,
    total: u128,
    /// None for waiting time.
    conservation: Option<Conservation>,
    goodput: Option<Goodput>,
}

impl Report {
    fn unit(&self) -> Unit {
        if self.kind == ReportKind::Waits { Unit::Jobs } else { Unit::Accelerators }
    }

    fn cells_of(&self, row: &Row) -> Vec<String> {
        let mut cells: Vec<String> = row.keys.iter().map(|(_, value)| value.clone()).collect();
        let hours = self.unit().hours(row.amount);
        cells.extend([row.state.clone(), hours, rows::percent(row.amount, self.total)]);
        cells
    }
}

impl TableReport for Report {
    fn title(&self) -> &'static str {
        match self.kind {
            ReportKind::Usage => "Use of accelerators",
            ReportKind::Idle => "Idle accelerators",
            ReportKind::Waits => "Waiting time of jobs",
        }
    }

    fn header(&self) -> Vec<&'static str> {
        let mut header: Vec<&'static str> = self.by.iter().map(|by| by.title()).collect();
        let state = match self.kind {
            ReportKind::Usage => "USE",
            ReportKind::Idle => "CAUSE",
            ReportKind::Waits => "REASON",
        };
        header.extend([state, "HOURS", "PERCENT"]);
        header
    }

    fn cells(&self) -> Vec<Vec<String>> {
        self.rows.iter().map(|row| self.cells_of(row)).collect()
    }

    fn bars(&self) -> Vec<Bar> {
        let bars = self.rows.iter().map(|row| {
            let keys: String = row.keys.iter().map(|(_, value)| format!("{value} ")).collect();
            Bar {
                label: format!("{keys}{}", row.state),
                group: row.state.clone(),
                amount: row.amount,
                text: format!("{} h", self.unit().hours(row.amount)),
            }
        });
        bars.collect()
    }

    fn lines(&self) -> Vec<String> {
        let span = common::span(&self.reading);
        let hours = self.unit().hours(self.total);
        let mut lines = vec![match self.conservation {
            Some(_) => format!("total {hours} accelerator-hours = capacity × time, {span}"),
            None => format!("total {hours} job-hours, {span}"),
        }];
        lines.extend(self.conservation.iter().map(Conservation::line));
        lines.extend(self.goodput.iter().map(Goodput::line));
        lines.extend(common::notes(&self.reading));
        lines
    }

    fn csv(&self, console: &Console) -> Result<(), Failure> {
        let mut header: Vec<String> = self.by.iter().map(|by| by.title().to_lowercase()).collect();
        header.extend(["state".to_owned(), self.unit().name().to_owned(), "hours".to_owned()]);
        console.line(&header.join(","))?;
        for row in &self.rows {
            let mut cells: Vec<String> = row.keys.iter().map(|(_, value)| value.clone()).collect();
            cells.extend([row.state.clone(), row.amount.to_string(), self.unit().hours(row.amount)]);
            console.line(&cells.join(","))?;
        }
        for note in common::notes(&self.reading) {
            console.error(&note);
        }
        Ok(())
    }

    fn document(&self, console: &Console) -> Result<(), Failure> {
        let view = ReportView {
            read: ReadView::of(&self.reading),
            rows: self.rows.clone(),
            total: self.total.to_string(),
            capacity: self.conservation.as_ref().map(|compared| compared.capacity.to_string()),
            conservation_error: self.conservation.as_ref().map(|compared| compared.error.to_string()),
            unit: self.unit().name(),
            goodput: self.goodput.clone(),
        };
        console.object(&Document::new(self.kind.name(), Some(self.reading.last.0), view))
    }
}
