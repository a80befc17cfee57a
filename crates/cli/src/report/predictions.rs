//! `muster report predictions`: how well the starts that were predicted did.

use clap::Args;
use muster_console::{Console, Document, Exit, Failure, Format, Global};
use muster_ledger::Detail;
use muster_manifest::quantity;
use muster_manifest::quantity::show_duration;
use muster_sim::predictions::{PredictionCheck, PredictionCounts};
use serde::Serialize;

use super::common::{self, LogSpan, ReadView};
use super::idle_report;
use super::read::{Reading, Watchers};
use super::rows::percent;

/// Options of the report of predictions.
#[derive(Args)]
pub struct PredictionArgs {
    #[command(flatten)]
    span: LogSpan,
    /// The least log time between two predictions; 0s for one behind each submission [default: a thousandth of the span, and at
    /// least a second]
    #[arg(long, value_name = "DURATION", value_parser = sample)]
    sample: Option<u64>,
}

fn sample(text: &str) -> Result<u64, String> {
    quantity::duration_ms(text).map_err(|error| error.to_string())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PredictionsView {
    #[serde(flatten)]
    read: ReadView,
    asked: u64,
    unpredicted: u64,
    started: u64,
    by_q10: u64,
    by_q50: u64,
    by_q90: u64,
    without_q90: u64,
    never: u64,
    open: u64,
    overdue: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_median_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_p90_ms: Option<u64>,
}

pub(super) async fn run(global: &Global, console: &Console, args: &PredictionArgs) -> Result<Exit, Failure> {
    let source = args.span.open(global, console).await?;
    let interval_ms = match args.sample {
        Some(interval_ms) => interval_ms,
        None => idle_report::moments_apart_ms(&source, args.span.from, args.span.to)?,
    };
    let mut check = PredictionCheck::every(interval_ms);
    let watchers = Watchers { predictions: Some(&mut check), ..Watchers::told(console) };
    let reading = args.span.read(&source, &Detail::default(), watchers)?;
    if console.is_structured() {
        return document(console, &reading, &check);
    }
    if console.format == Format::Csv {
        return csv(console, &reading, &check);
    }
    for line in lines(check.counts(), check.errors_ms()) {
        console.line(&line)?;
    }
    for note in common::notes(&reading) {
        console.line(&note)?;
    }
    Ok(Exit::Ok)
}

fn document(console: &Console, reading: &Reading, check: &PredictionCheck) -> Result<Exit, Failure> {
    let PredictionCounts {
        asked,
        unpredicted,
        started,
        by_q10,
        by_q50,
        by_q90,
        without_q90,
        never,
        open,
        overdue,
    } = check.counts();
    let errors = check.errors_ms();
    let view = PredictionsView {
        read: ReadView::of(reading),
        asked,
        unpredicted,
        started,
        by_q10,
        by_q50,
        by_q90,
        without_q90,
        never,
        open,
        overdue,
        error_median_ms: errors.map(|(median, _)| median),
        error_p90_ms: errors.map(|(_, p90)| p90),
    };
    console.object(&Document::new("PredictionsReport", Some(reading.last.0), view))?;
    Ok(Exit::Ok)
}

/// The same as a header and one line.
fn csv(console: &Console, reading: &Reading, check: &PredictionCheck) -> Result<Exit, Failure> {
    for line in csv_lines(check.counts(), check.errors_ms()) {
        console.line(&line)?;
    }
    common::notes(reading).iter().for_each(|note| console.error(note));
    Ok(Exit::Ok)
}

fn csv_lines(counts: PredictionCounts, errors: Option<(u64, u64)>) -> [String; 2] {
    let text = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
    let columns = [
        ("asked", Some(counts.asked)),
        ("unpredicted", Some(counts.unpredicted)),
        ("started", Some(counts.started)),
        ("by_q10", Some(counts.by_q10)),
        ("by_q50", Some(counts.by_q50)),
        ("by_q90", Some(counts.by_q90)),
        ("without_q90", Some(counts.without_q90)),
        ("never", Some(counts.never)),
        ("open", Some(counts.open)),
        ("overdue", Some(counts.overdue)),
        ("error_median_ms", errors.map(|(median, _)| median)),
        ("error_p90_ms", errors.map(|(_, p90)| p90)),
    ];
    [columns.map(|(name, _)| name.to_owned()).join(","), columns.map(|(_, value)| text(value)).join(",")]
}

/// The same for people.
fn lines(counts: PredictionCounts, errors: Option<(u64, u64)>) -> Vec<String> {
    let of_started = |part: u64| percent(part.into(), counts.started.into());
    let mut lines = vec![format!(
        "{} jobs were asked about when they had been submitted; of {} nothing was predicted",
        counts.asked, counts.unpredicted
    )];
    if counts.started > 0 {
        lines.push(format!(
            "{} of them started: {} % by p10 (10 % would be exact), {} % by p50 (50 %), {} % by p90 (90 %)",
            counts.started,
            of_started(counts.by_q10),
            of_started(counts.by_q50),
            of_started(counts.by_q90)
        ));
    }
    if counts.without_q90 > 0 {
        lines.push(format!("of {} that started, no p90 was known", counts.without_q90));
    }
    if let Some((median, p90)) = errors {
        lines.push(format!(
            "starts were {} from p50 in the median, and at most {} in nine of ten",
            show_duration(median),
            show_duration(p90)
        ));
    }
    if counts.never > 0 {
        lines.push(format!("{} ended without a start", counts.never));
    }
    if counts.open > 0 {
        lines.push(format!("{} still wait, {} of them beyond p90", counts.open, counts.overdue));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::SourceArgs;
    use crate::report::archives::archive;
    use crate::report::read::read_in;

    #[test]
    fn sentences_have_shares_of_what_started() {
        let counts = PredictionCounts {
            asked: 12,
            unpredicted: 1,
            started: 8,
            by_q10: 1,
            by_q50: 4,
            by_q90: 6,
            without_q90: 1,
            never: 1,
            open: 2,
            overdue: 1,
        };
        let [header, values] = csv_lines(counts, Some((5_000, 60_000)));
        assert!(header.starts_with("asked,unpredicted,started,"), "{header}");
        assert_eq!(values, "12,1,8,1,4,6,1,1,2,1,5000,60000");
        assert_eq!(header.matches(',').count(), values.matches(',').count());
        assert_eq!(
            lines(counts, Some((5_000, 60_000))),
            [
                "12 jobs were asked about when they had been submitted; of 1 nothing was predicted",
                "8 of them started: 12.5 % by p10 (10 % would be exact), 50.0 % by p50 (50 %), 75.0 % by p90 (90 %)",
                "of 1 that started, no p90 was known",
                "starts were 5s from p50 in the median, and at most 1m in nine of ten",
                "1 ended without a start",
                "2 still wait, 1 of them beyond p90",
            ]
        );
        assert_eq!(lines(PredictionCounts::default(), None).len(), 1);
    }

    #[test]
    fn an_archive_is_asked_about_its_jobs() {
        let dir = tempfile::tempdir().unwrap();
        archive(dir.path());
        let source = SourceArgs { archive: vec![dir.path().to_owned()], tail: false }.open_at_hand().unwrap();
        let mut check = PredictionCheck::every(0);
        let watchers = Watchers { predictions: Some(&mut check), ..Watchers::default() };
        read_in(&source, None, None, &Detail::default(), watchers).unwrap();
        let counts = check.counts();
        assert!(counts.asked > 0, "{counts:?}");
        assert_eq!(
            counts.asked,
            counts.unpredicted + counts.started + counts.never + counts.open,
            "{counts:?}"
        );
    }
}
