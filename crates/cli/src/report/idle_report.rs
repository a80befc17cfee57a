//! `muster report idle`: its options, and the planner that is asked on the way through the log.

use clap::Args;
use muster_console::{Console, Exit, Failure, Global};
use muster_manifest::quantity;
use muster_manifest::quantity::show_duration;
use muster_sim::idle::IdleReasons;
use muster_types::{LogTime, PastPoint};

use super::common::check_form;
use super::read::{Watchers, time_of};
use super::{ReportArgs, ReportKind, show};
use crate::log::LogSource;

/// Moments that a span is divided into where nobody states how far they are apart.
const MOMENTS: u64 = 1_000;
/// The least time between two of them then.
const INTERVAL_MS_MIN: u64 = 1_000;

/// Options of the report of idle accelerators.
#[derive(Args)]
pub struct IdleArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// The least log time between two moments at which the planner is asked why jobs that wait do not have what is idle; 0s
    /// for behind each round [default: a thousandth of the span, and at least a second]
    #[arg(long, value_name = "DURATION", value_parser = sample)]
    sample: Option<u64>,
    /// Do not ask the planner: what the log does not say is `demand_unplaced`
    #[arg(long, conflicts_with = "sample")]
    no_planner: bool,
}

pub(super) fn sample(text: &str) -> Result<u64, String> {
    quantity::duration_ms(text).map_err(|error| error.to_string())
}

pub(super) async fn run(global: &Global, console: &Console, args: &IdleArgs) -> Result<Exit, Failure> {
    let report = &args.report;
    check_form(console, report.form.is_some())?;
    let source = report.span.open(global, console).await?;
    let interval_ms = match args.sample {
        Some(interval_ms) => interval_ms,
        None => moments_apart_ms(&source, report.span.from, report.span.to)?,
    };
    let mut reasons = (!args.no_planner).then(|| IdleReasons::every(interval_ms));
    if report.ledger.is_some() && reasons.is_some() {
        return Err(Failure::usage("--ledger has what the log says, and not what the planner is asked")
            .with_next("leave out --ledger, or give --no-planner too"));
    }
    let kept = report.ledger.as_deref();
    let watchers = Watchers { reasons: reasons.as_mut(), kept, ..Watchers::told(console) };
    let mut reading = report.span.read(&source, &report.detail(), watchers)?;
    reading.notes.extend(reasons.as_ref().map(note));
    show(console, ReportKind::Idle, report, reading)
}

/// The least log time between two moments where nobody states it.
pub(super) fn moments_apart_ms(
    source: &LogSource,
    from: Option<PastPoint>,
    to: Option<PastPoint>,
) -> Result<u64, Failure> {
    Ok((span_ms(source, from, to)? / MOMENTS).max(INTERVAL_MS_MIN))
}

/// How long the span of a report is.
fn span_ms(source: &LogSource, from: Option<PastPoint>, to: Option<PastPoint>) -> Result<u64, Failure> {
    let (archive, summary) = (&source.archive, source.archive.summary());
    let begin = match (from, summary.first) {
        (Some(point), _) => time_of(archive, point)?,
        (None, None) => summary.last_time,
        // A record that cannot be read is reported by the report.
        (None, Some(first)) => {
            let record = archive.records(first, first).next().and_then(Result::ok);
            record.map_or(summary.last_time, |record| record.log_time)
        }
    };
    let end: LogTime = match to {
        Some(point) => time_of(archive, point)?.min(summary.last_time),
        None => summary.last_time,
    };
    Ok(end.since_ms(begin))
}

/// At which moments the planner was asked.
fn note(reasons: &IdleReasons) -> String {
    let apart = match reasons.interval_ms() {
        0 => "each behind a round".to_owned(),
        ms => format!("{} apart at least", show_duration(ms)),
    };
    match reasons.moments() {
        0 => {
            "the planner was not asked: no job waited for accelerators of its type that were idle".to_owned()
        }
        moments => format!(
            "why jobs did not have idle accelerators of their type was asked of the planner at {moments} moments, {apart}; \
             between them the answer holds"
        ),
    }
}

#[cfg(test)]
mod tests {
    use muster_ledger::Detail;

    use super::*;
    use crate::log::SourceArgs;
    use crate::report::archives::{START, archive};
    use crate::report::common::LogSpan;
    use crate::report::read::read_in;
    use crate::report::rows;

    #[test]
    fn what_the_log_does_not_say_is_asked_of_the_planner_and_the_sum_stays() {
        let dir = tempfile::tempdir().unwrap();
        archive(dir.path());
        let source = SourceArgs { archive: vec![dir.path().to_owned()], tail: false }.open_at_hand().unwrap();
        let mut reasons = IdleReasons::every(0);
        let watchers = Watchers { reasons: Some(&mut reasons), ..Watchers::default() };
        let reading = read_in(&source, None, None, &Detail::default(), watchers).unwrap();
        let rows = rows::idle(&reading.views, &[]);
        let shown: Vec<_> = rows.iter().map(|row| (row.state.as_str(), row.amount / 1_000_000)).collect();
        // A job of eight fits on the one node while it waits.
        assert_eq!(shown, [("idle.turn", 80), ("idle.no_demand", 880), ("in_use", 640)]);
        assert!(
            reasons.moments() > 0 && note(&reasons).contains("each behind a round"),
            "{}",
            note(&reasons)
        );
        assert!(note(&IdleReasons::every(5_000)).starts_with("the planner was not asked"));
    }

    #[test]
    fn a_span_that_nobody_states_is_that_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        archive(dir.path());
        let source = SourceArgs { archive: vec![dir.path().to_owned()], tail: false };
        let at = |second: u64| Some(PastPoint::Time(LogTime(START + second * 1_000)));
        let log = source.open_at_hand().unwrap();
        let mut span = LogSpan { source, from: None, to: None };
        assert_eq!(span_ms(&log, span.from, span.to).unwrap(), 200_000);
        (span.from, span.to) = (at(50), at(900));
        assert_eq!(span_ms(&log, span.from, span.to).unwrap(), 150_000);
    }
}
