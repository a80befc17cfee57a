//! `muster log …`: the decision log, through any replica or from an archive at hand.

mod archive;
mod bisect;
mod source;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use muster_client::{Client, LogItem, LogReader, oldest_kept};
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid, moment, one_line};
use muster_wire::time::unix_ms;
use muster_wire::{admin, v1};
use serde::Serialize;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::interrupt::Interrupts;

#[cfg(test)]
pub use archive::open as open_archive;
pub use archive::{failure as archive_failure, moment as point_of_log};
pub use source::{LogSource, SourceArgs};

/// A line has as many columns in any terminal: enough for an index, a time and the name of a decision.
const COLUMNS_MIN: usize = 60;
/// Between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Replicas are three or five; more is a broken answer.
const REPLICAS_MAX: usize = 64;

/// Commands about the decision log.
#[derive(Subcommand)]
pub enum LogCommand {
    /// Show the newest records and, with -f, every new one
    Tail(TailArgs),
    /// Show one record with everything in it
    #[command(after_help = "\
Examples:
  muster log show 4711
  muster log show 4711 -o json | jq .content")]
    Show {
        /// Its log index
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        index: u64,
    },
    /// Write records to a file or to stdout, as JSON lines or CSV
    Export(ExportArgs),
    /// Say whether history is whole: of every replica, or of an archive directory, byte by byte
    Verify(VerifyArgs),
    /// Rebuild a state of the past from an archive directory and show its figures
    State(StateArgs),
    /// Find the first record behind which a condition fails
    Bisect(bisect::BisectArgs),
    /// Show what an archive directory takes on its disk, and what it would take uncompressed
    #[command(after_help = "\
Examples:
  muster log stats --archive /var/lib/muster/replica-1/archive
  muster log stats --archive /var/lib/muster/replica-1/archive -o json | jq .segments.storedBytes

Headers are read and checksums are not compared: `muster log verify` does that.")]
    Stats {
        /// An archive directory, of a running replica or a copy; repeat it to add up several
        #[arg(long, value_name = "DIR", required = true)]
        archive: Vec<PathBuf>,
    },
}

/// Options of `muster log tail`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster log tail                                   the last 20 records
  muster log tail -f --decision gang_placed         placements as they happen
  muster log tail --from 1 --decision exec_opened   who ran commands next to workers, as far back as the replica has records
  muster log tail -f --from 4711                    every record from 4711 on, and then new ones
  muster log tail -n 1000 -o json | jq .decision | sort | uniq -c

Following survives the loss of the replica that serves it: it goes on behind the last record, through
another one. Interrupted with Ctrl-C it says where to go on.")]
pub struct TailArgs {
    /// Go on with new records
    #[arg(short, long)]
    follow: bool,
    /// How many of the newest to begin with; with --decision, how many are looked at
    #[arg(short = 'n', long, value_name = "RECORDS", default_value_t = 20)]
    lines: u64,
    /// Begin with this record instead
    #[arg(long, value_name = "INDEX", conflicts_with = "lines", value_parser = clap::value_parser!(u64).range(1..))]
    from: Option<u64>,
    /// Only this decision, by name; may be repeated
    #[arg(long, value_name = "NAME")]
    decision: Vec<String>,
}

/// Forms of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// One JSON object a line
    Jsonl,
    /// A header and one line a record, the content as JSON in the last column
    Csv,
}

/// Options of `muster log export`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster log export --file history.jsonl
  muster log export --form csv --from 1 --to 100000 --file history.csv
  muster log export --archive /var/lib/muster/replica-1/archive | jq -c 'select(.decision == \"job_finished\")'

Without --to it ends with the newest record of the moment it began. A file that exists is not touched.")]
pub struct ExportArgs {
    /// JSON lines or CSV
    #[arg(long, value_enum, default_value_t = ExportFormat::Jsonl)]
    pub form: ExportFormat,
    /// The first record
    #[arg(long, value_name = "INDEX", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub from: u64,
    /// The last record
    #[arg(long, value_name = "INDEX", value_parser = clap::value_parser!(u64).range(1..))]
    pub to: Option<u64>,
    /// Where to; stdout without it
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// From this archive directory instead of a replica; repeat it to read along what was moved elsewhere
    #[arg(long, value_name = "DIR")]
    pub archive: Vec<PathBuf>,
}

/// Options of `muster log verify`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster log verify                                             what every replica says of its archive
  muster log verify --archive /var/lib/muster/replica-1/archive reads everything: checksums, chain, gaps,
                                                                and a replay against the recorded digests
  muster log verify --archive /var/lib/muster/replica-1/archive --archive /mnt/history/replica-1
                                                                the same with what was moved to another directory

Exit code 1 when something is missing or damaged. A damaged segment is named; the one of the same name in
another replica's archive replaces it.")]
pub struct VerifyArgs {
    /// An archive directory, of a running replica or a copy; repeat it to read along what was moved elsewhere
    #[arg(long, value_name = "DIR")]
    archive: Vec<PathBuf>,
}

/// Options of `muster log state`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster log state --archive /backup/archive --at 4711
  muster log state --archive /backup/archive --at 2026-11-22T08:30:00Z -o json

With a cluster at hand, every command that reads takes --at: `muster job list --at 4711`.")]
pub struct StateArgs {
    /// An archive directory; repeat it to read along what was moved elsewhere
    #[arg(long, value_name = "DIR", required = true)]
    pub archive: Vec<PathBuf>,
    /// Behind a log index, or at an RFC 3339 time; the newest without it
    #[arg(long, value_name = "INDEX|TIME", value_parser = archive::moment)]
    pub at: Option<muster_types::PastPoint>,
}

/// A record for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RecordView {
    log_time: Option<String>,
    term: u64,
    leader: u64,
    raft_index: u64,
    generation: u32,
    decision: String,
    content: Value,
}

pub async fn run(global: &Global, console: &Console, command: LogCommand) -> Result<Exit, Failure> {
    match command {
        LogCommand::Tail(args) => tail(&global.client().await?, console, args).await,
        LogCommand::Show { index } => show(&global.client().await?, console, index).await,
        LogCommand::Export(args) if !args.archive.is_empty() => archive::export(console, &args),
        LogCommand::Export(args) => export(&global.client().await?, console, &args).await,
        LogCommand::Verify(VerifyArgs { archive }) if archive.is_empty() => {
            verify(&global.client().await?, console).await
        }
        LogCommand::Verify(VerifyArgs { archive }) => archive::verify(console, &archive),
        LogCommand::State(args) => archive::state(console, &args),
        LogCommand::Bisect(args) => bisect::run(global, console, &args).await,
        LogCommand::Stats { archive } => archive::stats(console, &archive),
    }
}

pub fn time(ms: u64) -> Option<String> {
    let ms = i64::try_from(ms).ok().filter(|ms| *ms > 0)?;
    Some(jiff::Timestamp::from_millisecond(ms).ok()?.to_string())
}

fn view(record: &v1::LogRecord) -> RecordView {
    RecordView {
        log_time: moment(record.log_time),
        term: record.term,
        leader: record.leader_id,
        raft_index: record.raft_index,
        generation: record.generation,
        decision: record.decision.clone(),
        content: serde_json::from_str(&record.content_json)
            .unwrap_or_else(|_| Value::String(record.content_json.clone())),
    }
}

/// One record on one line, no longer than the terminal is wide.
fn line(record: &v1::LogRecord, columns: usize) -> String {
    let at = moment(record.log_time).unwrap_or_default();
    let text = format!("{:>8}  {at:<24}  {:<20}  {}", record.log_index, record.decision, record.summary);
    let mut line: String = one_line(text.trim_end()).chars().take(columns).collect();
    if line.chars().count() == columns {
        line.pop();
        line.push('…');
    }
    line
}

/// What goes to a pipe or a file is not cut.
fn columns(console: &Console) -> usize {
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let said = said.or_else(|| console.terminal_width().map(usize::from));
    match said {
        Some(columns) if !console.is_wide() => columns.max(COLUMNS_MIN),
        _ => usize::MAX,
    }
}

fn print(console: &Console, record: &v1::LogRecord) -> Result<(), Failure> {
    match console.format {
        Format::Json | Format::Yaml => {
            console.event(&Document::new("LogRecord", Some(record.log_index), view(record)))
        }
        Format::Name => console.line(&record.log_index.to_string()),
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            console.line(&line(record, columns(console)))
        }
    }
}

async fn tail(client: &Client, console: &Console, args: TailArgs) -> Result<Exit, Failure> {
    let from_index = match args.from {
        Some(from) => from,
        None => {
            let status = client.get_archive_status().await?;
            let first = status.newest_log_index.saturating_add(1).saturating_sub(args.lines);
            first.max(status.oldest_log_index).max(1)
        }
    };
    let decisions = args.decision;
    let nothing = none_of(&decisions, from_index);
    let request =
        v1::ReadDecisionsRequest { from_index, follow: args.follow, decisions, ..Default::default() };
    let reader = client.read_decisions(request);
    let again = |next| format!("go on with: muster log tail -f --from {next}");
    let mut shown = false;
    let exit = each_record(console, reader, 0, again, |record| {
        shown = true;
        print(console, record)
    })
    .await?;
    if let (false, Exit::Ok, Some(nothing)) = (shown, exit, nothing) {
        console.progress(&nothing);
    }
    Ok(exit)
}

/// What to say where no record has one of the names that were asked for: the name may be wrong, or the record older.
fn none_of(decisions: &[String], from_index: u64) -> Option<String> {
    if decisions.is_empty() {
        return None;
    }
    let further = if from_index > 1 { "; --from 1 looks at older ones as well" } else { "" };
    Some(format!("no record from {from_index} on is called {}{further}", decisions.join(" or ")))
}

/// Shows the records of a reader up to `to_index`, or to its end where that is 0, and tells each second how far it is where the end is
/// known. An interrupt ends it with `again`, which says how to go on from the next index.
pub async fn each_record(
    console: &Console,
    mut reader: LogReader,
    to_index: u64,
    again: impl Fn(u64) -> String,
    mut show: impl FnMut(&v1::LogRecord) -> Result<(), Failure>,
) -> Result<Exit, Failure> {
    let mut told_at = Instant::now();
    let mut interrupts = Interrupts::listen()?;
    loop {
        let at = reader.next_index();
        let item = {
            // One read goes on while the time passes: of a filtered log a record may be long in coming.
            let next = reader.next();
            tokio::pin!(next);
            loop {
                tokio::select! {
                    item = &mut next => break item,
                    () = tokio::time::sleep(PROGRESS_INTERVAL.saturating_sub(told_at.elapsed())), if to_index > 0 => {
                        told_at = Instant::now();
                        console.progress(&format!("record {at} of {to_index}"));
                    }
                    exit = interrupts.next() => {
                        console.progress(&again(at));
                        return Ok(exit);
                    }
                }
            }
        };
        let item = item.map_err(|error| kept(error, &reader))?;
        match item {
            Some(LogItem::Record(record)) => show(&record)?,
            Some(_) => {}
            None => return Ok(Exit::Ok),
        }
        if to_index > 0 && reader.next_index() > to_index {
            return Ok(Exit::Ok);
        }
    }
}

/// Adds what is still there to a refusal of what is not.
pub fn kept(error: muster_client::CallError, reader: &LogReader) -> Failure {
    let oldest = oldest_kept(&error);
    let failure = Failure::from(error);
    match oldest {
        Some(oldest) => failure.with_next(format!(
            "record {} is not kept there any more; the oldest is {oldest}, see --from and --archive",
            reader.next_index()
        )),
        None => failure,
    }
}

async fn one(client: &Client, index: u64) -> Result<v1::LogRecord, Failure> {
    let request = v1::ReadDecisionsRequest { from_index: index, to_index: index, ..Default::default() };
    let mut reader = client.read_decisions(request);
    while let Some(item) = reader.next().await.map_err(|error| kept(error, &reader))? {
        if let LogItem::Record(record) = item {
            return Ok(*record);
        }
    }
    let text = format!("record {index} does not exist yet; the newest is {}", reader.next_index() - 1);
    Err(Failure::new(Exit::NotFound, text))
}

async fn show(client: &Client, console: &Console, index: u64) -> Result<Exit, Failure> {
    let record = one(client, index).await?;
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("LogRecord", Some(index), view(&record)))?;
        }
        Format::Name => console.line(&record.decision)?,
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            let shown = view(&record);
            console.line(&format!("record     {index}"))?;
            console.line(&format!("decision   {}", one_line(&record.decision)))?;
            console.line(&format!("decided    {}", shown.log_time.as_deref().unwrap_or("-")))?;
            console.line(&format!("by         replica {} in term {}", record.leader_id, record.term))?;
            console.line(&format!("raft index {}", record.raft_index))?;
            console.line(&format!("generation {}", record.generation))?;
            // As YAML: braces and quotes help nobody to read.
            let content = console.with_format(Format::Yaml);
            console.line("")?;
            content.object(&shown.content)?;
        }
    }
    Ok(Exit::Ok)
}

/// Where an export goes.
pub struct Output {
    to: Box<dyn Write>,
    told_at: Instant,
    pub records: u64,
}

impl Output {
    /// Opens a new file, or stdout, and writes what the form begins with.
    pub fn open(args: &ExportArgs) -> Result<Output, Failure> {
        let to: Box<dyn Write> = match &args.file {
            Some(path) => {
                let file = File::options().write(true).create_new(true).open(path).map_err(|error| {
                    Failure::new(Exit::Failed, format!("{} cannot be made: {error}", path.display()))
                })?;
                Box::new(BufWriter::new(file))
            }
            None => Box::new(BufWriter::new(std::io::stdout())),
        };
        let mut output = Output { to, told_at: Instant::now(), records: 0 };
        if args.form == ExportFormat::Csv {
            output.line(muster_archive::CSV_HEADER)?;
        }
        Ok(output)
    }

    /// One line.
    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.to.write_all(text.as_bytes())?;
        self.to.write_all(b"\n")?;
        Ok(())
    }

    /// Says now and then how far it is.
    pub fn progress(&mut self, console: &Console, at: u64, to: u64) {
        self.records += 1;
        if self.told_at.elapsed() >= PROGRESS_INTERVAL {
            self.told_at = Instant::now();
            console.progress(&format!("record {at} of {to}"));
        }
    }

    /// Everything is written.
    pub fn finish(mut self, console: &Console, file: Option<&PathBuf>) -> Result<(), Failure> {
        self.to.flush()?;
        let place = file.map_or("stdout".to_owned(), |path| path.display().to_string());
        console.progress(&format!("{} records written to {place}", self.records));
        Ok(())
    }
}

/// The same lines as an export from an archive.
fn export_line(form: ExportFormat, record: &v1::LogRecord) -> String {
    match form {
        ExportFormat::Jsonl => serde_json::json!({
            "logIndex": record.log_index,
            "logTimeMs": unix_ms(record.log_time).unwrap_or_default(),
            "term": record.term,
            "leader": record.leader_id,
            "raftIndex": record.raft_index,
            "generation": record.generation,
            "decision": record.decision,
            "content": view(record).content,
        })
        .to_string(),
        ExportFormat::Csv => format!(
            "{},{},{},{},{},{},{},\"{}\"",
            record.log_index,
            unix_ms(record.log_time).unwrap_or_default(),
            record.term,
            record.leader_id,
            record.raft_index,
            record.generation,
            record.decision,
            record.content_json.replace('"', "\"\"")
        ),
    }
}

async fn export(client: &Client, console: &Console, args: &ExportArgs) -> Result<Exit, Failure> {
    let newest = client.get_archive_status().await?.newest_log_index;
    let to_index = args.to.unwrap_or(newest);
    if to_index < args.from {
        return Err(Failure::usage(format!("there is nothing from {} to {to_index}", args.from)));
    }
    let request = v1::ReadDecisionsRequest { from_index: args.from, to_index, ..Default::default() };
    let mut reader = client.read_decisions(request);
    let mut output = Output::open(args)?;
    while let Some(item) = reader.next().await.map_err(|error| kept(error, &reader))? {
        if let LogItem::Record(record) = item {
            output.line(&export_line(args.form, &record))?;
            output.progress(console, record.log_index, to_index);
        }
    }
    if reader.next_index() <= to_index {
        let text = format!("the log ends at {}, before {to_index}", reader.next_index() - 1);
        return Err(Failure::new(Exit::Failed, text));
    }
    output.finish(console, args.file.as_ref())?;
    Ok(Exit::Ok)
}

/// What a replica says of its archive.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ArchiveView {
    replica: u64,
    endpoint: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    enabled: bool,
    place: String,
    first_log_index: u64,
    last_log_index: u64,
    newest_log_index: u64,
    segments: u64,
    segment_bytes: u64,
    bases: u64,
    base_bytes: u64,
    gaps: Vec<[u64; 2]>,
    failing: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    offloaded: Option<OffloadedView>,
    offload_failing: String,
}

/// What a replica moved to another directory.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OffloadedView {
    through_log_index: u64,
    place: String,
}

#[derive(Serialize)]
struct Archives {
    archives: Vec<ArchiveView>,
}

fn archive_view(
    endpoint: String,
    replica: u64,
    answer: Result<admin::GetArchiveStatusResponse, String>,
) -> ArchiveView {
    let error = answer.as_ref().err().cloned();
    let status = answer.unwrap_or_default();
    ArchiveView {
        replica,
        endpoint,
        error,
        enabled: status.enabled,
        place: status.place,
        first_log_index: status.first_log_index,
        last_log_index: status.last_log_index,
        newest_log_index: status.newest_log_index,
        segments: status.segments,
        segment_bytes: status.segment_bytes,
        bases: status.bases,
        base_bytes: status.base_bytes,
        gaps: status.gaps.iter().map(|gap| [gap.from_index, gap.to_index]).collect(),
        failing: status.failure_message,
        offloaded: (status.offloaded_through_index > 0).then_some(OffloadedView {
            through_log_index: status.offloaded_through_index,
            place: status.offloaded_to,
        }),
        offload_failing: status.offload_failure_message,
    }
}

impl ArchiveView {
    fn state(&self) -> String {
        match (&self.error, self.enabled) {
            (Some(_), _) => "unreachable".to_owned(),
            (None, false) => "off".to_owned(),
            (None, true) if !self.failing.is_empty() => "failing".to_owned(),
            (None, true) if !self.gaps.is_empty() => "gaps".to_owned(),
            (None, true) => "whole".to_owned(),
        }
    }
}

async fn verify(client: &Client, console: &Console) -> Result<Exit, Failure> {
    let status = client.get_status(v1::GetStatusRequest::default()).await?;
    let mut asking = JoinSet::new();
    for replica in status.replicas.into_iter().take(REPLICAS_MAX) {
        let client = client.clone();
        asking.spawn(async move {
            let answer = client.get_archive_status_of(&replica.client_endpoint).await;
            let answer = answer.map_err(|error| match std::error::Error::source(&error) {
                Some(source) => source.to_string(),
                None => error.to_string(),
            });
            archive_view(replica.client_endpoint, replica.id, answer)
        });
    }
    let mut archives: Vec<ArchiveView> = Vec::new();
    while let Some(answer) = asking.join_next().await {
        archives.extend(answer.ok());
    }
    archives.sort_by_key(|archive| archive.replica);
    let whole = archives.iter().all(|archive| archive.state() == "whole");
    if console.is_structured() {
        console.object(&Document::new("Archives", None::<u64>, Archives { archives }))?;
    } else {
        let mut grid = Grid::new(vec![
            "REPLICA", "ARCHIVE", "FIRST", "LAST", "NEWEST", "SEGMENTS", "BYTES", "BASES", "DETAIL",
        ]);
        for archive in &archives {
            let gaps: Vec<String> = archive.gaps.iter().map(|[a, b]| format!("{a}-{b} missing")).collect();
            let detail = match &archive.error {
                Some(error) => error.clone(),
                None if !archive.failing.is_empty() => archive.failing.clone(),
                None if !gaps.is_empty() => gaps.join(", "),
                None if !archive.offload_failing.is_empty() => archive.offload_failing.clone(),
                None => match &archive.offloaded {
                    Some(offloaded) => format!(
                        "{}; through {} in {}",
                        archive.place, offloaded.through_log_index, offloaded.place
                    ),
                    None => archive.place.clone(),
                },
            };
            let number = |value: u64| value.to_string();
            grid.row(vec![
                number(archive.replica),
                archive.state(),
                number(archive.first_log_index),
                number(archive.last_log_index),
                number(archive.newest_log_index),
                number(archive.segments),
                number(archive.segment_bytes + archive.base_bytes),
                number(archive.bases),
                detail,
            ]);
        }
        console.table(&grid)?;
    }
    Ok(if whole { Exit::Ok } else { Exit::Failed })
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS_MIN, line, none_of, v1};

    #[test]
    fn a_line_is_cut_where_a_terminal_ends_and_nowhere_else() {
        let summary = "x".repeat(300);
        let record = v1::LogRecord { log_index: 7, summary, ..v1::LogRecord::default() };
        let cut = line(&record, COLUMNS_MIN);
        assert!(cut.ends_with('…') && cut.chars().count() == COLUMNS_MIN, "{cut}");
        assert!(line(&record, usize::MAX).ends_with(&record.summary));
    }

    #[test]
    fn a_filter_that_finds_nothing_leads_to_older_records() {
        let names = ["gang_plcaed".to_owned(), "exec_opened".to_owned()];
        let told = none_of(&names, 124).unwrap_or_default();
        assert!(told.contains("gang_plcaed or exec_opened") && told.contains("--from 1"), "{told}");
        assert!(none_of(&names, 1).is_some_and(|told| !told.contains("--from")));
        assert_eq!(none_of(&[], 124), None);
    }
}
