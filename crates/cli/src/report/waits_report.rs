//! `muster report waits`: its options, and the planner that is asked on the way through the log.

use clap::Args;
use muster_console::{Console, Exit, Failure, Global};
use muster_manifest::quantity::show_duration;
use muster_sim::waits::WaitReasons;

use super::common::check_form;
use super::idle_report::sample;
use super::read::Watchers;
use super::{Dimension, ReportArgs, ReportKind, show};

/// Options of the report of waits.
#[derive(Args)]
pub struct WaitsArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// Ask the planner why jobs are pending that could start: the least log time between two moments at which it is asked; 0s
    /// for behind each round
    #[arg(long, value_name = "DURATION", value_parser = sample, conflicts_with = "ledger")]
    sample: Option<u64>,
}

pub(super) async fn run(global: &Global, console: &Console, args: &WaitsArgs) -> Result<Exit, Failure> {
    let report = &args.report;
    check_form(console, report.form.is_some())?;
    if report.by.contains(&Dimension::Job) {
        check_by_job(report)?;
    }
    let source = report.span.open(global, console).await?;
    let mut waits = args.sample.map(WaitReasons::every);
    let kept = report.ledger.as_deref();
    let watchers = Watchers { waits: waits.as_mut(), kept, ..Watchers::told(console) };
    let mut reading = report.span.read(&source, &report.detail(), watchers)?;
    reading.notes.extend(waits.as_ref().map(note));
    show(console, ReportKind::Waits, report, reading)
}

/// The waits of each job are known as a whole, and not by day.
fn check_by_job(args: &ReportArgs) -> Result<(), Failure> {
    if args.ledger.is_some() {
        return Err(
            Failure::usage("--ledger keeps no waits of jobs").with_next("leave out --ledger, or job in --by")
        );
    }
    let others = [Dimension::Type, Dimension::Region, Dimension::Day];
    match args.by.iter().find(|by| others.contains(by)) {
        Some(other) => Err(Failure::usage(format!(
            "the waits of each job are not divided by {} too",
            other.title().to_lowercase()
        ))
        .with_next("divide by job, tenant and tier")),
        None => Ok(()),
    }
}

/// At which moments the planner was asked.
fn note(waits: &WaitReasons) -> String {
    let apart = match waits.interval_ms() {
        0 => "each behind a round".to_owned(),
        ms => format!("{} apart at least", show_duration(ms)),
    };
    match waits.moments() {
        0 => "the planner was not asked: no job was pending".to_owned(),
        moments => format!(
            "why jobs were pending was asked of the planner at {moments} moments, {apart}, for the first requests in the queue; \
             other jobs have no reason behind `waiting`"
        ),
    }
}

#[cfg(test)]
mod tests {
    use muster_ledger::Detail;

    use super::*;
    use crate::log::SourceArgs;
    use crate::report::archives::archive;
    use crate::report::read::read_in;
    use crate::report::rows;

    #[test]
    fn why_a_job_was_pending_is_asked_of_the_planner_and_the_sum_stays() {
        let dir = tempfile::tempdir().unwrap();
        archive(dir.path());
        let source = SourceArgs { archive: vec![dir.path().to_owned()], tail: false }.open_at_hand().unwrap();
        let mut waits = WaitReasons::every(0);
        let watchers = Watchers { waits: Some(&mut waits), ..Watchers::default() };
        let reading = read_in(&source, None, None, &Detail::default(), watchers).unwrap();
        let rows = rows::waits(&reading.views, &[]);
        let shown: Vec<_> = rows.iter().map(|row| (row.state.as_str(), row.amount)).collect();
        // The one node has capacity for it while it waits.
        assert_eq!(shown, [("waiting.turn", 10_000), ("starting", 5_000)]);
        assert!(waits.moments() > 0 && note(&waits).contains("each behind a round"), "{}", note(&waits));
        assert!(note(&WaitReasons::every(5_000)).starts_with("the planner was not asked"));
    }
}
