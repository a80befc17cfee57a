//! Counts what this replica applies, for monitoring systems.

use muster_archive::Observer;
use muster_journal::{Decision, NodeLostCause, Outcome, RearrangeCause, StopCause, SubmittedPart};
use muster_metrics::{DecisionCounts, DecisionLabels};
use muster_state::{Applied, Effect, Phase, State};
use muster_types::{FailureClass, JobId, LogTime, PriorityTier};
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const STOP_CAUSES: [&str; 11] = [
    "cancelled",
    "worker_failed",
    "evicted",
    "run_time_limit",
    "preempted",
    "moved",
    "resized",
    "drained",
    "fault",
    "deadline",
    "requested",
];
const OUTCOMES: [&str; 3] = ["succeeded", "failed", "cancelled"];
const LOSS_CAUSES: [&str; 2] = ["lease_expired", "replaced"];

/// Counts the decisions of the log as a replica applies them.
///
/// Records that were stamped before the process started are passed over: a replica that starts applies a part of its log a second
/// time. The clock of the leader that stamped them may differ from this one's by as much as clocks of replicas do.
pub struct DecisionObserver {
    counts: DecisionCounts,
    started: Instant,
    facts: DecisionFacts,
}

/// What a decision will have meant if it is not refused, as far as the state behind it does not tell.
#[derive(Default)]
struct DecisionFacts {
    name: &'static str,
    submitted: BTreeMap<PriorityTier, u64>,
    /// The tier of a gang that is placed, and since when it has waited.
    placed: Option<(PriorityTier, LogTime)>,
    /// A gang of which a worker had not started so far.
    starting: Option<JobId>,
    stopped: Vec<&'static str>,
    failed: Option<FailureClass>,
    finished: Option<&'static str>,
    lost: Option<&'static str>,
}

impl DecisionObserver {
    /// For a process that starts now.
    #[must_use]
    pub fn new(counts: DecisionCounts) -> DecisionObserver {
        let tiers = PriorityTier::ALL.map(PriorityTier::as_str);
        let classes: Vec<&'static str> = FailureClass::ALL.iter().map(|class| class.as_str()).collect();
        counts.begin(DecisionLabels {
            tiers: &tiers,
            stop_causes: &STOP_CAUSES,
            failure_classes: &classes,
            outcomes: &OUTCOMES,
            loss_causes: &LOSS_CAUSES,
        });
        DecisionObserver { counts, started: Instant::now(), facts: DecisionFacts::default() }
    }

    /// When the process started, by the wall clock as it stands now: one that was wrong at the start may have been corrected since.
    fn since(&self) -> LogTime {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let then = now.saturating_sub(self.started.elapsed());
        LogTime(u64::try_from(then.as_millis()).unwrap_or(u64::MAX))
    }

    fn count(&self, state: &State, applied: &Applied) {
        let DecisionFacts { name, submitted, placed, starting, stopped, failed, finished, lost } =
            &self.facts;
        let counts = &self.counts;
        counts.record(name);
        submitted.iter().for_each(|(tier, jobs)| counts.submitted(tier.as_str(), *jobs));
        if let Some((tier, since)) = placed {
            let waited_ms = state.log_time().0.saturating_sub(since.0);
            counts.placed(tier.as_str(), Duration::from_millis(waited_ms));
        }
        if let Some(job) = starting
            && applied.effects.contains(&Effect::JobChanged(*job))
            && let Some((tier, took_ms)) = started(state, *job)
        {
            counts.started(tier.as_str(), Duration::from_millis(took_ms));
        }
        stopped.iter().for_each(|cause| counts.stopped(cause));
        if let Some(class) = failed {
            counts.failed(class.as_str());
        }
        if let Some(outcome) = finished {
            counts.finished(outcome);
        }
        if let Some(cause) = lost {
            counts.lost(cause);
        }
    }
}

/// The tier of a gang whose workers all run, and how long they took to start.
fn started(state: &State, job: JobId) -> Option<(PriorityTier, u64)> {
    let row = state.job(job).filter(|row| row.phase == Phase::Running)?;
    let placed_at = row.placement.as_ref()?.placed_at;
    Some((state.spec(job)?.tier, row.started_at?.0.saturating_sub(placed_at.0)))
}

/// Since when a job waits for capacity; none for one that something else held back before its first attempt.
fn waits_since(state: &State, job: JobId) -> Option<(PriorityTier, LogTime)> {
    let (row, spec) = (state.job(job)?, state.spec(job)?);
    let is_held_back = !spec.dependencies.is_empty() || spec.not_before.is_some();
    let since = state.times(job).waits_since.or((!is_held_back).then_some(row.submitted_at))?;
    Some((spec.tier, since))
}

fn rearranged(cause: &RearrangeCause) -> &'static str {
    match cause {
        RearrangeCause::Preempted { .. } => "preempted",
        RearrangeCause::Moved { .. } => "moved",
        RearrangeCause::Resized => "resized",
        RearrangeCause::Drained { .. } => "drained",
    }
}

fn stop_cause(cause: &StopCause) -> &'static str {
    match cause {
        StopCause::Cancelled => "cancelled",
        StopCause::WorkerFailed { .. } => "worker_failed",
        StopCause::Evicted { .. } => "evicted",
        StopCause::RunTimeLimit => "run_time_limit",
        StopCause::Rearranged(cause) => rearranged(cause),
        StopCause::Fault { .. } => "fault",
        StopCause::Deadline => "deadline",
        StopCause::Requested { .. } => "requested",
    }
}

impl Observer for DecisionObserver {
    fn before(&mut self, state: &State, decision: &Decision) {
        let mut facts = DecisionFacts { name: decision.name(), ..DecisionFacts::default() };
        match decision {
            Decision::JobsSubmitted { specs, .. } => {
                specs.iter().for_each(|spec| *facts.submitted.entry(spec.tier).or_default() += 1);
            }
            Decision::ArraysSubmitted { parts, .. } => {
                let count = |part: &SubmittedPart| (part.spec.tier, u64::from(part.job_count()));
                for (tier, jobs) in parts.iter().map(count) {
                    *facts.submitted.entry(tier).or_default() += jobs;
                }
            }
            Decision::GangPlaced { job, .. } => facts.placed = waits_since(state, *job),
            Decision::WorkersReported { job, .. } => {
                let is_starting = state.job(*job).is_some_and(|row| row.phase == Phase::Starting);
                facts.starting = is_starting.then_some(*job);
            }
            Decision::GangStopRequested { cause, .. } => facts.stopped.push(stop_cause(cause)),
            Decision::Rearranged { stops, .. } => {
                facts.stopped.extend(stops.iter().map(|stop| rearranged(&stop.cause)));
            }
            Decision::JobRequeueRequested { jobs, suspended, .. } => {
                let cause = StopCause::Requested { suspended: *suspended };
                facts.stopped.extend(jobs.iter().map(|_| stop_cause(&cause)));
            }
            Decision::AttemptFailed { class, .. } => facts.failed = Some(*class),
            Decision::JobFinished { outcome, .. } => {
                facts.finished = Some(match outcome {
                    Outcome::Succeeded => "succeeded",
                    Outcome::Failed { .. } => "failed",
                    Outcome::Cancelled => "cancelled",
                });
            }
            Decision::NodeLost { cause, .. } => {
                facts.lost = Some(match cause {
                    NodeLostCause::LeaseExpired => "lease_expired",
                    NodeLostCause::Replaced => "replaced",
                });
            }
            _ => {}
        }
        self.facts = facts;
    }

    fn after(&mut self, state: &State, applied: &Applied) {
        let is_applied = applied.log_index.is_some() && applied.rejection.is_none();
        if is_applied && state.log_time() >= self.since() {
            self.count(state, applied);
        }
    }

    fn round_over(&mut self, _: &State) {}
}
