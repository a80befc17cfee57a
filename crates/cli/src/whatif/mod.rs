//! `muster whatif`: what a cluster would have done under a change, replayed from an archive at hand.
//!
//! **Invariant:** a range of which the archive lacks a record is refused, and nothing is filled in.
//! **Invariant:** the same archive and change print the same bytes on standard output.

mod display;
mod reading;
pub mod shadow;

use std::time::{Duration, Instant};

use clap::Args;
use muster_console::{Console, Exit, Failure, Global};
use muster_sim::whatif::{
    AddedDevices, Change, Difference, NodeFailure, QuotaChange, Side, WhatifError, starved,
};
use muster_types::{LogTime, Name, PastPoint};

use crate::log::{LogSource, SourceArgs, point_of_log};
use crate::report::time_of;
use crate::sim::policy_file;
use reading::Reading;

/// How long the command may be silent, and the time between two lines of progress.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// Options of `muster whatif`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster whatif --archive /var/lib/muster/replica-1 --from 2026-11-01T00:00:00Z --to 2026-11-08T00:00:00Z --fleet +64xh100@eu-west/train
  muster whatif --archive archive --from 4711 --to 98000 --policy next.yaml
  muster whatif --archive archive --from 4711 --to 98000 --fleet -node-17 --fleet -node-18 --json
  muster whatif --archive archive --from 4711 --to 98000 --quota research=+128 --quota vision/h100@eu-west=64
  muster whatif --archive archive --from 4711 --to 98000 --failures node-17@2026-11-02T08:00:00Z..2026-11-02T20:00:00Z
  muster whatif --archive archive --from 4711 --to 98000      how well the replay meets the record, without a change
  muster whatif --from 1 --to 900 --fleet +8xh100@eu/c1       the log of the cluster, whether or not it is archived

The submissions, controls of jobs, changes of the policy, grants of quota, bookings, holds of regions and tenants, and what
happened to nodes in the range go to the scheduler of this program, from the state at --from: once as they were, and once
with the change. The difference is between these two replays; how far the replay without a change is from the record is
printed next to it as its error.

A policy file holds for the whole range, in place of the policies of the record. A quota is changed in each policy of the
record, or in that file. Accelerators are added as hosts like those of the fleet. A node with - is not there in the range. The
session of a node that fails ends, and what runs there is lost; the node registers again at the end of that time.
Where the archive has a gap in the range, the range is refused. `ops/guide/ledger.md` states what each figure is.")]
pub struct WhatifArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Where the range begins: an RFC 3339 time or a log index
    #[arg(long, value_name = "INDEX|TIME", value_parser = point_of_log)]
    from: PastPoint,
    /// Where the range ends; its last records are those of this time
    #[arg(long, value_name = "INDEX|TIME", value_parser = point_of_log)]
    to: PastPoint,
    #[command(flatten)]
    change: ChangeArgs,
    /// A node that fails for a time, NODE@FROM..UNTIL with RFC 3339 times; may be repeated
    #[arg(long, value_name = "NODE@FROM..UNTIL", value_parser = failure)]
    failures: Vec<NodeFailure>,
    /// One JSON object on one line instead of tables
    #[arg(long)]
    json: bool,
}

/// What is changed.
#[derive(Args)]
struct ChangeArgs {
    /// A policy file, as for `muster policy set`; +2h in it counts from the beginning of the range
    #[arg(long, value_name = "FILE")]
    policy: Option<String>,
    /// Accelerators more, +COUNTxTYPE@REGION/CLUSTER, or a node that is not there, -NODE; several are separated by commas, or
    /// the option is repeated
    #[arg(long, value_name = "+DEVICES|-NODE", allow_hyphen_values = true, value_delimiter = ',', value_parser = fleet_change)]
    fleet: Vec<FleetChange>,
    /// A nominal quota in accelerators, TENANT[/TYPE[@REGION]]=+N, =-N or =N; several are separated by commas, or the option is
    /// repeated
    #[arg(long, value_name = "TENANT=+N", value_delimiter = ',', value_parser = quota_change)]
    quota: Vec<QuotaChange>,
}

/// A change of the fleet.
#[derive(Clone, Debug)]
enum FleetChange {
    /// Accelerators more.
    Added(AddedDevices),
    /// A node that is not there.
    Removed(Name),
}

fn fleet_change(text: &str) -> Result<FleetChange, String> {
    if let Some(added) = text.strip_prefix('+') {
        return added.parse().map(FleetChange::Added);
    }
    let form = || "expected +COUNTxTYPE@REGION/CLUSTER or -NODE".to_owned();
    let name = text.strip_prefix('-').ok_or_else(form)?;
    Name::new(name).map(FleetChange::Removed).ok_or_else(form)
}

fn failure(text: &str) -> Result<NodeFailure, String> {
    let form = || "expected NODE@FROM..UNTIL with times like 2026-11-22T08:30:00Z".to_owned();
    let time = |text: &str| match point_of_log(text) {
        Ok(PastPoint::Time(time)) => Ok(time),
        Ok(PastPoint::Index(_)) | Err(_) => Err(form()),
    };
    let (node, span) = text.split_once('@').ok_or_else(form)?;
    let (from, until) = span.split_once("..").ok_or_else(form)?;
    let node = Name::new(node).ok_or_else(form)?;
    Ok(NodeFailure { node, from: time(from)?, until: time(until)? })
}

fn quota_change(text: &str) -> Result<QuotaChange, String> {
    text.parse()
}

/// Tells how far a long command is, once a second, from its first second on.
struct Progress<'a> {
    console: &'a Console,
    last: Instant,
}

impl Progress<'_> {
    fn tell(&mut self, what: &str, time: LogTime) {
        if self.last.elapsed() >= SILENCE_MAX {
            self.last = Instant::now();
            self.console.progress(&format!("{what}: {time}"));
        }
    }
}

/// What the record, the replay without a change, and the replay with it come to.
struct Comparison {
    record: Side,
    unchanged: Side,
    /// None without a change.
    changed: Option<Side>,
    /// The replay without a change less the record.
    error: Difference,
    /// The replay with the change less the one without it.
    difference: Option<Difference>,
    /// What the figures do not say.
    caveats: Vec<String>,
    /// The change, in words.
    change: Vec<String>,
    from: LogTime,
    to: LogTime,
    /// The last record of the archive.
    last: u64,
}

pub async fn run(global: &Global, console: &Console, args: &WhatifArgs) -> Result<Exit, Failure> {
    let source = args.source.open(global, console).await?;
    let comparison = compare(console, args, &source)?;
    display::show(console, args.json, &comparison)?;
    Ok(Exit::Ok)
}

/// A change that cannot be replayed, or a range.
fn refused(error: WhatifError) -> Failure {
    Failure::usage(error.sentence).with_details(error.details).with_next(error.next)
}

fn compare(console: &Console, args: &WhatifArgs, source: &LogSource) -> Result<Comparison, Failure> {
    let archive = &source.archive;
    let (from, to) = (time_of(archive, args.from)?, time_of(archive, args.to)?);
    let mut change = change_of(&args.change, from)?;
    change.failures.clone_from(&args.failures);
    let mut progress = Progress { console, last: Instant::now() };
    let reading = Reading::of(archive, (from, to), &mut progress)?;
    let last = archive.summary().last.unwrap_or_default().0;
    let failures = args.failures.iter().map(|failure| format!("failure {failure}"));
    let words = words(&args.change).into_iter().chain(failures).collect();
    compare_reading(&mut progress, &reading, (&change, words), (from, to), (last, &source.notes))
}

/// Replays a recording with a change, in words too, and without it. `notes` are sentences on where the log came from.
fn compare_reading(
    progress: &mut Progress<'_>,
    reading: &Reading,
    (change, words): (&Change, Vec<String>),
    (from, to): (LogTime, LogTime),
    (last, notes): (u64, &[String]),
) -> Result<Comparison, Failure> {
    reading.recording.check(change).map_err(refused)?;
    let none = Change::default();
    let mut replay = |change: &Change, what: &str| {
        let told = &mut |time| progress.tell(what, time);
        reading.recording.replay(change, told).map_err(refused)
    };
    let unchanged = replay(&none, "replaying without the change")?;
    let changed = match words.is_empty() {
        true => None,
        false => Some(replay(change, "replaying with the change")?),
    };
    let record = reading.recording.record.clone();
    Ok(Comparison {
        error: Difference::between(&record, &unchanged),
        difference: changed.as_ref().map(|changed| Difference::between(&unchanged, changed)),
        caveats: [
            caveats(reading, &unchanged, changed.as_ref()),
            starved_caveats(&unchanged, changed.as_ref(), to.since_ms(from)),
            notes.to_vec(),
        ]
        .concat(),
        change: words,
        record,
        unchanged,
        changed,
        from,
        to,
        last,
    })
}

fn change_of(args: &ChangeArgs, from: LogTime) -> Result<Change, Failure> {
    let policy = args.policy.as_deref().map(|file| policy_file(file, from.0)).transpose()?;
    let mut change = Change { policy: policy.map(Box::new), quotas: args.quota.clone(), ..Change::default() };
    for fleet in &args.fleet {
        match fleet {
            FleetChange::Added(added) => change.added.push(added.clone()),
            FleetChange::Removed(node) => change.removed.push(node.clone()),
        }
    }
    Ok(change)
}

/// The change as it was asked for.
fn words(args: &ChangeArgs) -> Vec<String> {
    let policy = args.policy.iter().map(|file| format!("policy {file}"));
    let fleet = args.fleet.iter().map(|fleet| match fleet {
        FleetChange::Added(added) => format!("fleet +{added}"),
        FleetChange::Removed(node) => format!("fleet -{node}"),
    });
    let quotas = args.quota.iter().map(|quota| format!("quota {quota}"));
    policy.chain(fleet).chain(quotas).collect()
}

/// A sentence on each tenant and tier that the change leaves without devices.
fn starved_caveats(unchanged: &Side, changed: Option<&Side>, range_ms: u64) -> Vec<String> {
    let starved = changed.map(|changed| starved(unchanged, changed, range_ms)).unwrap_or_default();
    let sentence = |(tenant, tier): (String, &str)| {
        format!(
            "WARNING: the change starves {tier} jobs of {tenant}: half of them wait for at least half of the range, which they \
             do not without the change"
        )
    };
    starved.into_iter().map(sentence).collect()
}

/// What the figures do not say, a sentence each.
fn caveats(reading: &Reading, unchanged: &Side, changed: Option<&Side>) -> Vec<String> {
    let recording = &reading.recording;
    let mut caveats = vec![
        "the inputs are those of the record: under the change people would have submitted and cancelled otherwise".to_owned(),
        "run times are those of the record, from the placement of a gang to its end, wherever it is placed".to_owned(),
        format!(
            "jobs are cut by the range: {} held devices and {} waited where it begins; in the record {} hold devices and {} \
             have never started where it ends, and count with their wait until then",
            recording.running_at_begin,
            recording.waiting_at_begin,
            recording.record.running,
            recording.record.waiting
        ),
    ];
    let last = changed.unwrap_or(unchanged);
    if unchanged.estimated_runs + last.estimated_runs > 0 {
        caveats.push(format!(
            "the log does not contain the end of {} attempts of the replay without the change and {} of the last replay: they \
             run for as long as the leader expected, or longer where they had",
            unchanged.estimated_runs, last.estimated_runs
        ));
    }
    if unchanged.refused + last.refused + unchanged.inputs_without_effect + last.inputs_without_effect > 0 {
        caveats.push(format!(
            "of the replay without the change {} submitted jobs were refused and {} other inputs had no effect, of the last \
             replay {} and {}",
            unchanged.refused, unchanged.inputs_without_effect, last.refused, last.inputs_without_effect
        ));
    }
    if unchanged.without_booking + last.without_booking > 0 {
        caveats.push(format!(
            "{} jobs of the replay without the change and {} of the last replay name a booking that is not there for them, \
             and run without it",
            unchanged.without_booking, last.without_booking
        ));
    }
    if !recording.not_replayed.is_empty() {
        let kinds = recording.not_replayed.iter().map(|(name, count)| format!("{name} ({count})"));
        let kinds: Vec<String> = kinds.collect();
        caveats.push(format!("records that are not replayed: {}", kinds.join(", ")));
    }
    caveats.extend(reading.note.clone());
    caveats
}

#[cfg(test)]
mod tests;
