//! Who waits how long: a replay of submissions and run times over virtual time.
//!
//! Events are submissions, ends, losses and returns of nodes; between two of them nothing changes. A gang
//! that was placed runs at once and ends after its run time. At one moment ends come first, then nodes, then
//! submissions in the order of the trace, and then the scheduler has its turn until nothing more follows.
//! A gang on a node that is lost starts from the beginning elsewhere.
//!
//! Definitions. *Completion* of a job is from its submission to its end. *Queueing* is from its submission to
//! the start of the run that it ended by: work lost before that counts as waiting. *Utilisation* is the
//! device-seconds that gangs held over those of the whole fleet, nodes under repair included, counted only
//! while some job waited or ran.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::iter::Peekable;

use muster_types::{JobId, Name};
use serde::Serialize;
use thiserror::Error;

use crate::driver::{Driver, Happened, Hints, Scope, Why};
use crate::stopwatch::{Clock, per_second};
use crate::summary::{Quantiles, seconds};
use crate::tally::{Closed, DAY_MS, Tally, WaitBox};
use crate::trace::{FailureEntry, JobEntry, NodeEntry, TraceError};
use crate::{FleetError, Preset};

pub use crate::tally::{Length, RegionUse, SizeClass};

/// Examples shown of jobs that did not run.
const EXAMPLES_MAX: usize = 5;
/// Run-time limits that users choose from, in hours.
const LIMIT_HOURS: [u64; 7] = [1, 4, 12, 24, 3 * 24, 7 * 24, 30 * 24];

/// Why there is no result.
#[derive(Debug, Error)]
pub enum QueueError {
    /// The jobs cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A node cannot be.
    #[error(transparent)]
    Fleet(#[from] FleetError),
}

/// What the scheduler is told of how long a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durations {
    /// What it will be.
    True,
    /// A run-time limit: the least of 1 h, 4 h, 12 h, 1 d, 3 d, 7 d and 30 d that it does not break, and
    /// none when it is longer.
    Limit,
    /// Nothing: whatever is known of it the scheduler has learnt from jobs before.
    Predicted,
}

impl Durations {
    fn hints(self, duration_ms: u64) -> Hints {
        let limits = LIMIT_HOURS.iter().map(|hours| hours * 3_600_000);
        match self {
            Durations::True => Hints { expected_ms: Some(duration_ms), ..Hints::default() },
            Durations::Limit => {
                Hints { limit_ms: limits.clone().find(|limit| *limit >= duration_ms), ..Hints::default() }
            }
            Durations::Predicted => Hints::default(),
        }
    }
}

/// How to replay.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Under which policy.
    pub preset: Preset,
    /// What the scheduler is told of run times.
    pub durations: Durations,
    /// Whether every job stays in its home cluster.
    pub home_only: bool,
}

/// Where a replay is; told once for each day of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Days of the trace that are over.
    pub day: u64,
    /// Jobs submitted so far.
    pub submitted: u64,
    /// Jobs that wait.
    pub waiting: u64,
    /// Jobs that run.
    pub running: u64,
    /// Jobs that are over.
    pub finished: u64,
}

/// A job that did not run, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Example {
    /// Its id in the trace.
    pub job: String,
    /// One sentence.
    pub reason: String,
}

/// Jobs that did not run to their end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// How many.
    pub count: u64,
    /// The first few.
    pub examples: Vec<Example>,
}

impl Missing {
    fn add(&mut self, job: &str, reason: impl Into<String>) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(Example { job: job.to_owned(), reason: reason.into() });
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What the scheduler was told of run times.
    pub durations: Durations,
    /// Whether every job stayed in its home cluster.
    pub home_only: bool,
    /// Nodes of the fleet.
    pub nodes: u64,
    /// Devices of the fleet.
    pub devices: u64,
    /// Jobs in the trace.
    pub jobs: u64,
    /// Jobs that ran to their end, each once.
    pub finished: u64,
    /// Jobs that no state of this fleet could hold.
    pub never_fit: Missing,
    /// Jobs left out because the trace does not say how long they ran.
    pub without_duration: Missing,
    /// Jobs that still waited when nothing more was to come.
    pub unfinished: Missing,
    /// Seconds in which some job waited or ran.
    pub present_s: f64,
    /// Device-hours that gangs held.
    pub device_hours_held: f64,
    /// Of those, the ones of runs that were lost.
    pub device_hours_lost: f64,
    /// Gangs that lost their devices with a node.
    pub evictions: u64,
    /// Gangs stopped to go on elsewhere, so that another finds room.
    pub moves: u64,
    /// Placements, repeated ones included.
    pub placements: u64,
    /// From submission to the start of the run that counted.
    pub queueing: Quantiles,
    /// From submission to the end.
    pub completion: Quantiles,
    /// Queueing by size of the gang; the longest of each is how it was starved.
    pub queueing_by_size: Vec<SizeClass>,
    /// Use by region and day.
    pub regions: Vec<RegionUse>,
    /// Queue length over time, at most a few hundred points.
    pub queue_lengths: Vec<Length>,
    /// For drawing.
    #[serde(skip)]
    pub(crate) drawing: Drawing,
    /// Records that the scheduler wrote.
    pub decisions: u64,
    /// Seconds that the scheduler took.
    pub scheduler_s: f64,
    /// Records for each of those seconds; 0 when not measured.
    pub decisions_per_s: f64,
    /// The policy.
    pub policy: Preset,
    /// Mean completion.
    pub jct_avg_s: f64,
    /// Mean queueing.
    pub queue_avg_s: f64,
    /// Median queueing.
    pub queue_p50_s: f64,
    /// 90th percentile of queueing.
    pub queue_p90_s: f64,
    /// 99th percentile of queueing.
    pub queue_p99_s: f64,
    /// Longest queueing.
    pub queue_max_s: f64,
    /// Share of device-seconds held.
    pub utilisation: f64,
    /// Gangs stopped for the sake of others.
    pub preemptions: u64,
    /// Seconds that the whole replay took; 0 when not measured.
    pub wall_s: f64,
}

/// What only the page shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Drawing {
    pub(crate) distribution: Vec<(f64, f64)>,
    pub(crate) boxes: Vec<WaitBox>,
}

/// Replays jobs over a fleet. Jobs come in the order of their submission.
///
/// # Errors
/// When the jobs end in an error, or the fleet cannot be.
pub fn queue(
    nodes: &[NodeEntry],
    jobs: impl Iterator<Item = Result<JobEntry, TraceError>>,
    failures: &[FailureEntry],
    options: Options,
    clock: Clock<'_>,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, QueueError> {
    let begin = clock();
    let scope = if options.home_only { Scope::Home } else { Scope::Fleet };
    let driver = Driver::new(options.preset.settings(), nodes, scope, clock)?;
    let mut capacity: BTreeMap<Name, u64> = BTreeMap::new();
    for (place, node) in nodes.iter().enumerate() {
        *capacity.entry(driver.region_of_node(place).clone()).or_default() +=
            u64::from(node.accel_count) * 1_000;
    }
    let mut replay = Replay {
        driver,
        tally: Tally::new(capacity),
        options,
        live: BTreeMap::new(),
        ends: BinaryHeap::new(),
        now_ms: 0,
        counts: Counts::default(),
    };
    replay.run(jobs.peekable(), failures, progress)?;
    let devices = nodes.iter().map(|node| u64::from(node.accel_count)).sum();
    let mut report = replay.report(nodes.len() as u64, devices);
    report.wall_s = seconds(clock().saturating_sub(begin));
    Ok(report)
}

/// A job that waits or runs.
struct Live {
    id: String,
    submitted_ms: u64,
    duration_ms: u64,
    total_milli: u64,
    run: Option<Run>,
}

/// A run of a job.
#[derive(Clone, Copy)]
struct Run {
    started_ms: u64,
    region: usize,
    /// Which placement of the replay it is: an end belongs to one.
    placement: u64,
}

#[derive(Default)]
struct Counts {
    submitted: u64,
    finished: u64,
    running: u64,
    placements: u64,
    preemptions: u64,
    evictions: u64,
    moves: u64,
    /// Milli-devices times milliseconds of runs that were lost.
    lost: u128,
    never_fit: Missing,
    without_duration: Missing,
    unfinished: Missing,
}

struct Replay<'a> {
    driver: Driver<'a>,
    tally: Tally,
    options: Options,
    live: BTreeMap<JobId, Live>,
    /// When, of which placement, of which job; the earliest first.
    ends: BinaryHeap<Reverse<(u64, u64, JobId)>>,
    now_ms: u64,
    counts: Counts,
}

/// What nodes do, in order of time.
struct Outages<'a> {
    failures: std::slice::Iter<'a, FailureEntry>,
    /// When and which node.
    repairs: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Outages<'_> {
    fn next_ms(&self) -> Option<u64> {
        let failure = self.failures.as_slice().first().map(|failure| failure.failed_s * 1_000);
        earliest(failure, self.repairs.peek().map(|Reverse((ms, _))| *ms))
    }
}

fn earliest(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

impl Replay<'_> {
    fn run(
        &mut self,
        mut jobs: Peekable<impl Iterator<Item = Result<JobEntry, TraceError>>>,
        failures: &[FailureEntry],
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<(), QueueError> {
        let mut outages = Outages { failures: failures.iter(), repairs: BinaryHeap::new() };
        loop {
            let submission = match jobs.peek() {
                Some(Ok(job)) => Some(job.submit_s * 1_000),
                // An error is taken out at once: what came before it says nothing without the rest.
                Some(Err(_)) => Some(self.now_ms),
                None => None,
            };
            let end = self.ends.peek().map(|Reverse((ms, ..))| *ms);
            if submission.is_none() && self.live.is_empty() {
                return Ok(());
            }
            let Some(next_ms) = earliest(earliest(submission, end), outages.next_ms()) else {
                self.give_up();
                return Ok(());
            };
            self.pass_time(next_ms, progress);
            self.end_runs();
            self.change_nodes(&mut outages);
            while let Some(job) =
                jobs.next_if(|job| job.as_ref().map_or(true, |job| job.submit_s * 1_000 <= next_ms))
            {
                self.submit(&job?);
            }
            self.settle();
        }
    }

    fn pass_time(&mut self, next_ms: u64, progress: &mut dyn FnMut(&Progress)) {
        self.tally.advance(next_ms, !self.live.is_empty());
        if next_ms / DAY_MS > self.now_ms / DAY_MS {
            progress(&Progress {
                day: next_ms / DAY_MS,
                submitted: self.counts.submitted,
                waiting: self.waiting(),
                running: self.counts.running,
                finished: self.counts.finished,
            });
        }
        self.now_ms = next_ms;
        self.driver.set_now(next_ms);
    }

    fn waiting(&self) -> u64 {
        self.live.len() as u64 - self.counts.running
    }

    /// Gangs whose run time is over report it.
    fn end_runs(&mut self) {
        while let Some(Reverse((ms, placement, job))) = self.ends.peek().copied()
            && ms <= self.now_ms
        {
            self.ends.pop();
            let run = self.live.get(&job).and_then(|live| live.run);
            // A run that was lost does not end.
            if run.is_some_and(|run| run.placement == placement) {
                self.driver.report_done(job);
            }
        }
        // Only now, so that a run that ends at its limit has kept to it.
        self.driver.tick();
    }

    fn change_nodes(&mut self, outages: &mut Outages<'_>) {
        while let Some(Reverse((ms, node))) = outages.repairs.peek().copied()
            && ms <= self.now_ms
        {
            outages.repairs.pop();
            self.driver.return_node(node);
        }
        while let Some(failure) = outages.failures.as_slice().first()
            && failure.failed_s * 1_000 <= self.now_ms
        {
            outages.failures.next();
            outages.repairs.push(Reverse((failure.repaired_s * 1_000, failure.node)));
            self.driver.lose_node(failure.node);
        }
    }

    fn submit(&mut self, entry: &JobEntry) {
        self.counts.submitted += 1;
        let Some(duration_s) = entry.duration_s else {
            self.counts.without_duration.add(&entry.id, "the trace does not say how long it ran");
            return;
        };
        let duration_ms = duration_s * 1_000;
        let spec = self.driver.spec(entry, self.options.durations.hints(duration_ms));
        match spec.and_then(|spec| self.driver.submit(&spec)) {
            Ok(job) => {
                let (submitted_ms, total_milli) = (self.now_ms, entry.total_milli());
                let id = entry.id.clone();
                self.live.insert(job, Live { id, submitted_ms, duration_ms, total_milli, run: None });
            }
            Err(reason) => self.counts.never_fit.add(&entry.id, reason),
        }
    }

    /// Carries out what was decided and lets the scheduler decide, until nothing follows any more.
    fn settle(&mut self) {
        loop {
            for happened in self.driver.take_happened() {
                self.follow(happened);
            }
            if self.driver.wants_schedule() {
                self.driver.schedule();
            } else if !self.driver.has_happened() {
                break;
            }
        }
        let waiting = self.waiting();
        self.tally.waiting(waiting);
    }

    fn follow(&mut self, happened: Happened) {
        match happened {
            Happened::Placed(job) => self.start(job),
            Happened::MustStop { job, why } => {
                match why {
                    Why::Evicted => self.counts.evictions += 1,
                    Why::Preempted => self.counts.preemptions += 1,
                    Why::Moved => self.counts.moves += 1,
                }
                self.driver.report_stopped(job);
            }
            Happened::Requeued(job) => self.lose_run(job),
            Happened::Finished(job) => self.finish(job),
        }
    }

    fn start(&mut self, job: JobId) {
        let region = self.driver.region_of(job).map(|name| self.tally.region(name));
        let region = region.expect("a placed gang is somewhere");
        self.counts.placements += 1;
        self.counts.running += 1;
        let live = self.live.get_mut(&job).expect("only jobs of the replay are placed");
        let placement = self.counts.placements;
        live.run = Some(Run { started_ms: self.now_ms, region, placement });
        self.tally.hold(region, live.total_milli);
        self.ends.push(Reverse((self.now_ms + live.duration_ms, placement, job)));
        self.driver.report_running(job);
    }

    fn lose_run(&mut self, job: JobId) {
        let live = self.live.get_mut(&job).expect("only jobs of the replay are requeued");
        let run = live.run.take().expect("a gang waits again after a run");
        self.counts.running -= 1;
        self.counts.lost += u128::from(live.total_milli) * u128::from(self.now_ms - run.started_ms);
        self.tally.release(run.region, live.total_milli);
    }

    fn finish(&mut self, job: JobId) {
        let live = self.live.remove(&job).expect("a job is over once");
        let run = live.run.expect("a job of a replay ends by its run");
        self.counts.running -= 1;
        self.counts.finished += 1;
        self.tally.release(run.region, live.total_milli);
        let wait_ms = run.started_ms - live.submitted_ms;
        self.tally.finished(live.total_milli, wait_ms, self.now_ms - live.submitted_ms);
    }

    /// Nothing more will happen, and jobs wait.
    fn give_up(&mut self) {
        for live in self.live.values() {
            self.counts.unfinished.add(&live.id, "still waits when nothing more is to come");
        }
    }

    fn report(self, nodes: u64, devices: u64) -> Report {
        let closed: Closed = self.tally.close();
        let (queueing, completion) = (closed.waits(), closed.turnarounds());
        let counts = self.counts;
        let hours = |milli_ms: u128| (milli_ms as f64 / 3_600_000.0 / 1_000.0 * 1_000.0).round() / 1_000.0;
        Report {
            durations: self.options.durations,
            home_only: self.options.home_only,
            nodes,
            devices,
            jobs: counts.submitted,
            finished: counts.finished,
            never_fit: counts.never_fit,
            without_duration: counts.without_duration,
            unfinished: counts.unfinished,
            present_s: closed.present_ms() as f64 / 1_000.0,
            device_hours_held: hours(closed.held_total()),
            device_hours_lost: hours(counts.lost),
            evictions: counts.evictions,
            moves: counts.moves,
            placements: counts.placements,
            queueing,
            completion,
            queueing_by_size: closed.by_size(),
            regions: closed.by_region(),
            queue_lengths: closed.lengths(),
            drawing: Drawing { distribution: closed.distribution(), boxes: closed.boxes() },
            decisions: self.driver.decisions(),
            scheduler_s: seconds(self.driver.time()),
            decisions_per_s: per_second(self.driver.decisions(), self.driver.time()),
            policy: self.options.preset,
            jct_avg_s: completion.avg_s,
            queue_avg_s: queueing.avg_s,
            queue_p50_s: queueing.p50_s,
            queue_p90_s: queueing.p90_s,
            queue_p99_s: queueing.p99_s,
            queue_max_s: queueing.max_s,
            utilisation: closed.utilisation(),
            preemptions: counts.preemptions,
            wall_s: 0.0,
        }
    }
}
