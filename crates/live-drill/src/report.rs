//! `muster drill report`, and what is printed when a drill is over.

use clap::{Args, ValueEnum};
use muster_client::Client;
use muster_console::{Console, Exit, Failure, Format, Global};
use muster_drill::judge::{Findings, Kind, Rule, Verdict};

use super::DirectoryArgs;
use super::evidence::{Judged, judged};
use super::record::{DrillsDirectory, Record};
use super::standard;

/// Options of `muster drill report`.
#[derive(Args)]
pub struct ReportArgs {
    /// The drill [default: the newest]
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// The form of the page
    #[arg(short, long, value_enum, default_value_t = Page::Markdown)]
    format: Page,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// Forms of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Page {
    /// For a terminal, a ticket or a wiki
    Markdown,
    /// One file for a browser, with the picture of what happened when
    Html,
    /// For programs; so does -o json
    Json,
}

pub async fn run(global: &Global, console: &Console, args: ReportArgs) -> Result<Exit, Failure> {
    let directory = DrillsDirectory::find(args.directory.dir)?;
    let record = directory.load(args.id.as_deref())?;
    let client = global.client().await?;
    let judged = of(&client, console, &directory, &record).await?;
    let page = if console.format == Format::Json { Page::Json } else { args.format };
    let text = match page {
        Page::Markdown => judged.page().markdown(),
        Page::Html => judged.page().html(),
        Page::Json => judged.page().json() + "\n",
    };
    console.bytes(text.as_bytes())?;
    Ok(Exit::Ok)
}

async fn of(
    client: &Client,
    console: &Console,
    directory: &DrillsDirectory,
    record: &Record,
) -> Result<Judged, Failure> {
    let given = standard::kept(&record.name, &record.scenario)?;
    judged(client, console, &directory.of(&record.id), record, given.scenario).await
}

fn ms(value: Option<u64>) -> String {
    value.map_or_else(|| "not measured".to_owned(), |ms| format!("{ms} ms"))
}

/// What came of it, for a person.
fn lines(record: &Record, verdict: &Verdict) -> Vec<String> {
    let figures = &verdict.figures;
    let silence = |kind| figures.kinds.get(&kind).and_then(|kind| kind.silence_ms);
    let checked = &verdict.checked;
    let mut lines = vec![
        record.end_detail.clone(),
        format!(
            "longest time without an acknowledged submission: {}; the slowest submission: {}; failed: {}",
            ms(silence(Kind::Submission)),
            ms(figures.submission_worst_ms),
            figures.submissions_failed
        ),
        format!(
            "longest time without a linearizable read: {}; without any read on a replica that was left alone: {}",
            ms(silence(Kind::LinearizableRead)),
            ms(figures.survivors_silence_ms)
        ),
        format!(
            "acknowledged and lost: {}; linearizable: {} ({} reads, {} answers and {} acknowledgements held against {} records)",
            figures.lost,
            if verdict.is_linearizable() { "yes" } else { "NOT SHOWN" },
            checked.linearizable_reads,
            checked.contents,
            checked.acknowledgements,
            checked.records
        ),
        format!(
            "gangs that ran when it began: {}; interrupted: {}; accelerator time lost: {} s",
            verdict.gangs_at_fault,
            verdict.ledger.total.interruptions,
            verdict.ledger.total.accelerator_ms / 1_000
        ),
    ];
    for (rule, breaches) in &verdict.findings.0 {
        for finding in &breaches.first {
            lines.push(format!("FOUND {}: {}", rule.code(), finding.text));
        }
    }
    lines
}

/// What came of it, in a few words. What could not be looked at is not known to hold, and not known to be broken either: a
/// cluster on which no gang runs shows nothing of gangs.
fn conclusion(findings: &Findings) -> &'static str {
    if findings.is_empty() {
        "everything held"
    } else if findings.rules().all(|rule| rule == Rule::NotChecked) {
        "nothing was broken, and not everything could be looked at (NOT_CHECKED)"
    } else {
        "NOT EVERYTHING HELD"
    }
}

/// Prints what came of a drill when it is over. Returns whether everything was as it should be.
pub async fn after_run(
    client: &Client,
    console: &Console,
    directory: &DrillsDirectory,
    record: &Record,
) -> Result<bool, Failure> {
    if record.fault_at_ms.is_none() {
        console.line(&format!("drill {}: nothing was done: {}", record.id, record.end_detail))?;
        return Ok(false);
    }
    let judged = of(client, console, directory, record).await?;
    match console.format {
        Format::Json | Format::Yaml => console.object(&judged.page())?,
        Format::Name => console.line(&record.id)?,
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            for line in lines(record, &judged.verdict) {
                console.line(&line)?;
            }
            let came_of_it = conclusion(&judged.verdict.findings);
            console.line(&format!("{came_of_it}; the page: muster drill report {}", record.id))?;
        }
    }
    Ok(judged.verdict.held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_drill::judge::Breaches;

    #[test]
    fn what_was_not_looked_at_is_not_called_broken() {
        let of = |rules: &[Rule]| {
            let found = rules.iter().map(|rule| (*rule, Breaches { count: 1, ..Breaches::default() }));
            conclusion(&Findings(found.collect()))
        };
        assert_eq!(of(&[]), "everything held");
        assert!(of(&[Rule::NotChecked]).starts_with("nothing was broken"));
        assert_eq!(of(&[Rule::NotChecked, Rule::AcknowledgementLost]), "NOT EVERYTHING HELD");
    }
}
