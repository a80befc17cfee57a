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

use crate::driver::{Driver, EPOCH_MS, Happened, Hints, Refused, Scope, StopKind};
use crate::stopwatch::{Clock, per_second};
use crate::summary::{Quantiles, device_hours, seconds};
use crate::tally::{Closed, DAY_MS, Tally, WaitBox};
use crate::tenants::Tenants;
use crate::trace::{FailureEntry, JobEntry, NodeEntry, TraceError};
use crate::wakes::{Wakes, earliest};
use crate::{FleetError, ReplayPolicy, TenantReport};

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
#[derive(Clone, Debug)]
pub struct Options {
    /// Under which policy.
    pub policy: ReplayPolicy,
    /// Second 0 of the trace, in milliseconds since the Unix epoch: what windows of the policy count from.
    pub start_ms: u64,
    /// What the scheduler is told of run times.
    pub durations: Durations,
    /// Whether every job stays in its home cluster.
    pub home_only: bool,
}

impl Options {
    /// Under one policy, told how long jobs will run, over the whole fleet.
    #[must_use]
    pub fn under(policy: impl Into<ReplayPolicy>) -> Options {
        Options { policy: policy.into(), start_ms: EPOCH_MS, durations: Durations::True, home_only: false }
    }
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

/// Jobs that came to nothing for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ByReason {
    /// The stable name of the reason.
    pub code: String,
    /// Which jobs.
    #[serde(flatten)]
    pub jobs: Missing,
}

/// Jobs by the reason for which they came to nothing.
#[derive(Default)]
struct Reasons(BTreeMap<&'static str, Missing>);

impl Reasons {
    fn add(&mut self, code: &'static str, job: &str, reason: impl Into<String>) {
        self.0.entry(code).or_default().add(job, reason);
    }

    fn report(self) -> Vec<ByReason> {
        self.0.into_iter().map(|(code, jobs)| ByReason { code: code.to_owned(), jobs }).collect()
    }
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
    /// Jobs that the policy refused at submission, by reason.
    pub refused: Vec<ByReason>,
    /// Jobs that were ended because their deadline had passed.
    pub late: Missing,
    /// Jobs that still waited when nothing more was to come.
    pub unfinished: Missing,
    /// The same, by what they waited for.
    pub unfinished_by_reason: Vec<ByReason>,
    /// By tenant, those that held most first.
    pub tenants: Vec<TenantReport>,
    /// What an operator should know of the policy, and which part of it the replay could not show.
    pub notes: Vec<String>,
    /// Seconds in which some job waited or ran.
    pub present_s: f64,
    /// Device-hours that gangs held.
    pub device_hours_held: f64,
    /// Of those, the ones of runs that were lost.
    pub device_hours_lost: f64,
    /// Gangs that lost their devices with a node.
    pub evictions: u64,
    /// Gangs stopped to go on elsewhere, so that another can be placed.
    pub moves: u64,
    /// Gangs stopped because a window opened where they ran.
    pub window_stops: u64,
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
    /// How long each job of several workers waited, in the order in which they ended.
    #[serde(skip)]
    pub gangs: Vec<GangWait>,
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
    pub policy: String,
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

/// How long a job of several workers waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangWait {
    /// Its id in the trace.
    pub job: String,
    /// From its submission to the start of the run that it ended by, in milliseconds.
    pub wait_ms: u64,
    /// That run, in milliseconds.
    pub run_ms: u64,
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
    let driver = Driver::new(options.policy.settings(), nodes, scope, options.start_ms, clock)?;
    let mut capacity: BTreeMap<Name, u64> = BTreeMap::new();
    for (place, node) in nodes.iter().enumerate() {
        *capacity.entry(driver.region_of_node(place).clone()).or_default() +=
            u64::from(node.accel_count) * 1_000;
    }
    let warnings = options.policy.whole().map_or(Vec::new(), |policy| driver.policy_warnings(policy));
    let mut replay = Replay {
        driver,
        warnings,
        tally: Tally::new(capacity),
        tenants: Tenants::default(),
        wakes: wakes_of(&options),
        options,
        live: BTreeMap::new(),
        ends: BinaryHeap::new(),
        now_ms: 0,
        gangs: Vec::new(),
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
    tenant: Name,
    submitted_ms: u64,
    duration_ms: u64,
    total_milli: u64,
    is_gang: bool,
    run: Option<Run>,
    /// Whether policy is what stopped its present run.
    stopped_by_policy: bool,
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
    window_stops: u64,
    /// Milli-devices times milliseconds of runs that were lost.
    lost: u128,
    never_fit: Missing,
    without_duration: Missing,
    unfinished: Missing,
    late: Missing,
    refused: Reasons,
    unfinished_by_reason: Reasons,
}

/// What a replay wakes up for apart from events: the windows of a policy that an operator wrote.
fn wakes_of(options: &Options) -> Wakes {
    let Some(policy) = options.policy.whole() else { return Wakes::default() };
    let times = policy.windows.iter().flat_map(|window| [window.from.0, window.until.0]);
    Wakes::at(times.filter_map(|ms| ms.checked_sub(options.start_ms)).collect())
}

struct Replay<'a> {
    driver: Driver<'a>,
    /// What is worth knowing of the policy before a job comes.
    warnings: Vec<String>,
    tally: Tally,
    tenants: Tenants,
    wakes: Wakes,
    options: Options,
    live: BTreeMap<JobId, Live>,
    /// When, of which placement, of which job; the earliest first.
    ends: BinaryHeap<Reverse<(u64, u64, JobId)>>,
    now_ms: u64,
    gangs: Vec<GangWait>,
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
            let event = earliest(earliest(submission, end), outages.next_ms());
            let Some(next_ms) = earliest(event, self.next_wake(event)) else {
                self.give_up();
                return Ok(());
            };
            self.wakes.pass(next_ms);
            let placements = self.counts.placements;
            let is_event = event == Some(next_ms);
            self.pass_time(next_ms, progress);
            self.end_runs();
            self.change_nodes(&mut outages);
            while let Some(job) =
                jobs.next_if(|job| job.as_ref().map_or(true, |job| job.submit_s * 1_000 <= next_ms))
            {
                self.submit(&job?);
            }
            self.settle();
            self.wakes.be_patient(is_event || self.counts.placements > placements);
        }
    }

    /// The next moment at which time alone may make a difference, if that is before the next event.
    fn next_wake(&self, event: Option<u64>) -> Option<u64> {
        // With nothing running, time brings nothing but what is known.
        let waits = self.waiting() > 0 && self.counts.running > 0;
        self.wakes.next(self.now_ms, waits, event)
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
        let tenant = self.driver.tenant(entry);
        self.tenants.submitted(&tenant);
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
                let is_gang = entry.replicas > 1;
                let deadline = entry.deadline_s.map(|s| s * 1_000).filter(|ms| *ms > submitted_ms);
                self.wakes.add(deadline);
                let live = Live {
                    id,
                    tenant,
                    submitted_ms,
                    duration_ms,
                    total_milli,
                    is_gang,
                    run: None,
                    stopped_by_policy: false,
                };
                self.live.insert(job, live);
            }
            Err(Refused { code, sentence, by_policy: true }) => {
                self.tenants.refused(&tenant);
                self.counts.refused.add(code, &entry.id, sentence);
            }
            Err(Refused { sentence, .. }) => self.counts.never_fit.add(&entry.id, sentence),
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
        self.tenants.borrowing(self.now_ms, &self.driver.borrowed());
    }

    fn follow(&mut self, happened: Happened) {
        match happened {
            Happened::Placed(job) => self.start(job),
            Happened::MustStop { job, why } => {
                match why {
                    StopKind::Evicted => self.counts.evictions += 1,
                    StopKind::Preempted => self.counts.preemptions += 1,
                    StopKind::Moved => self.counts.moves += 1,
                    StopKind::Window => self.counts.window_stops += 1,
                    // It is counted when it is over.
                    StopKind::Late => {}
                }
                let live = self.live.get_mut(&job).expect("only jobs of the replay are stopped");
                live.stopped_by_policy =
                    matches!(why, StopKind::Preempted | StopKind::Moved | StopKind::Window);
                if live.stopped_by_policy {
                    self.tenants.stopped(&live.tenant);
                }
                self.driver.report_stopped(job);
            }
            Happened::Requeued(job) => self.lose_run(job),
            Happened::Finished { job, is_done } => self.finish(job, is_done),
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
        live.stopped_by_policy = false;
        self.tenants.hold(&live.tenant, self.now_ms, live.total_milli);
        self.ends.push(Reverse((self.now_ms + live.duration_ms, placement, job)));
        self.driver.report_running(job);
    }

    fn lose_run(&mut self, job: JobId) {
        let live = self.live.get_mut(&job).expect("only jobs of the replay are requeued");
        let run = live.run.take().expect("a gang waits again after a run");
        self.counts.running -= 1;
        let lost = u128::from(live.total_milli) * u128::from(self.now_ms - run.started_ms);
        self.counts.lost += lost;
        if live.stopped_by_policy {
            self.tenants.lost(&live.tenant, lost);
        }
        self.tally.release(run.region, live.total_milli);
        self.tenants.release(&live.tenant, self.now_ms, live.total_milli);
    }

    fn finish(&mut self, job: JobId, is_done: bool) {
        let live = self.live.remove(&job).expect("a job is over once");
        if let Some(run) = live.run {
            self.counts.running -= 1;
            self.tally.release(run.region, live.total_milli);
            self.tenants.release(&live.tenant, self.now_ms, live.total_milli);
        }
        let Some(run) = live.run.filter(|_| is_done) else {
            self.counts.late.add(&live.id, "its deadline passed before it was over");
            return;
        };
        self.counts.finished += 1;
        let wait_ms = run.started_ms - live.submitted_ms;
        self.tenants.finished(&live.tenant, wait_ms);
        if live.is_gang {
            self.gangs.push(GangWait { job: live.id, wait_ms, run_ms: live.duration_ms });
        }
        self.tally.finished(live.total_milli, wait_ms, self.now_ms - live.submitted_ms);
    }

    /// Nothing more will happen, and jobs wait.
    fn give_up(&mut self) {
        for (job, live) in &self.live {
            self.counts.unfinished.add(&live.id, "still waits when nothing more is to come");
            self.tenants.unfinished(&live.tenant);
            if let Some((code, sentence)) = self.driver.why_it_waits(*job) {
                self.counts.unfinished_by_reason.add(code, &live.id, sentence);
            }
        }
    }

    /// Which parts of the policy the trace has nothing of, and which parts of the trace the policy does not
    /// name.
    fn notes(&self) -> Vec<String> {
        let Some(policy) = self.options.policy.whole() else { return Vec::new() };
        let mut notes = self.warnings.clone();
        let mut add = |names: Vec<&Name>, text: &str| {
            if !names.is_empty() {
                let first: Vec<&str> = names.iter().take(EXAMPLES_MAX).map(|name| name.as_str()).collect();
                let more = if names.len() > EXAMPLES_MAX { ", ..." } else { "" };
                notes.push(format!("{text} ({}): {}{more}", names.len(), first.join(", ")));
            }
        };
        add(self.tenants.without_jobs(policy), "tenants of the policy without a job in the trace");
        if !policy.tenants.is_empty() {
            let text =
                "tenants of the trace that the policy does not list, so they share one place below unlisted";
            add(self.tenants.unlisted(policy), text);
        }
        let begin = self.options.start_ms;
        let end = begin + self.now_ms;
        let closed = policy.windows.iter().filter(|window| window.until.0 <= begin || window.from.0 >= end);
        let text =
            "windows that are never open while the trace lasts; a time such as +2h counts from its beginning";
        add(closed.map(|window| &window.name).collect(), text);
        notes
    }

    fn report(self, nodes: u64, devices: u64) -> Report {
        let notes = self.notes();
        let tenants = self.tenants.close(self.now_ms, self.options.policy.whole());
        let closed: Closed = self.tally.close();
        let (queueing, completion) = (closed.waits(), closed.turnarounds());
        let counts = self.counts;
        Report {
            durations: self.options.durations,
            home_only: self.options.home_only,
            nodes,
            devices,
            jobs: counts.submitted,
            finished: counts.finished,
            never_fit: counts.never_fit,
            without_duration: counts.without_duration,
            refused: counts.refused.report(),
            late: counts.late,
            unfinished: counts.unfinished,
            unfinished_by_reason: counts.unfinished_by_reason.report(),
            tenants,
            notes,
            present_s: closed.present_ms() as f64 / 1_000.0,
            device_hours_held: device_hours(closed.held_total()),
            device_hours_lost: device_hours(counts.lost),
            evictions: counts.evictions,
            moves: counts.moves,
            window_stops: counts.window_stops,
            placements: counts.placements,
            queueing,
            completion,
            queueing_by_size: closed.by_size(),
            regions: closed.by_region(),
            queue_lengths: closed.lengths(),
            gangs: self.gangs,
            drawing: Drawing { distribution: closed.distribution(), boxes: closed.boxes() },
            decisions: self.driver.decisions(),
            scheduler_s: seconds(self.driver.time()),
            decisions_per_s: per_second(self.driver.decisions(), self.driver.time()),
            policy: self.options.policy.to_string(),
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
