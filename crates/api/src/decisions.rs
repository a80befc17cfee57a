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

/// A record that is applied later than this behind its log time is not counted, in milliseconds. A query takes the maximum over
/// replicas, so one that counted within a moment what it missed would make every rate jump. Over five minutes, the shortest
/// time that a dashboard looks at, what is counted late makes a rate a fifth too high at most; the shortest delay between a
/// decision and its application on a follower in step is far below it, and so are the clocks of replicas apart.
const LATE_MS: i128 = 60_000;
/// How long the least delay of a record is remembered, in milliseconds, and as much again.
const LEAST_KEPT_MS: u64 = 3_600_000;

/// Counts the decisions of the log as a replica applies them.
///
/// Records that were stamped before the process started are passed over: a replica that starts applies a part of its log a second
/// time. The clock of the leader that stamped them may differ from this one's by as much as clocks of replicas do. Records that
/// are applied late are passed over as well, see [`Delays`].
pub struct DecisionObserver {
    counts: DecisionCounts,
    delays: Delays,
    started: Instant,
    facts: DecisionFacts,
}

/// Tells records that are applied as they are decided from those that a replica makes up for after it was cut off.
///
/// A wrong clock must not stop the counting, so two clocks have to agree that a record is late. By the wall clock it is when its
/// log time is long ago; that is true of every record where this clock is ahead. By the clock that nobody sets it is when it
/// has waited longer than others had to: that is true of every record after log time has stood still, which it does when a
/// leader's clock is behind that of the leader before. Where one of them is wrong, the other one decides. Where both are, this
/// replica counts nothing until the least delay is forgotten, within twice [`LEAST_KEPT_MS`], and others count meanwhile.
#[derive(Debug, Default)]
struct Delays {
    /// The least delay by the clock that nobody sets, from any fixed beginning, since `begun_ms` by that clock.
    least: Option<i128>,
    begun_ms: u64,
    /// The same of the time before.
    least_before: Option<i128>,
}

impl Delays {
    /// Whether a record is late that is applied now, by the wall clock and by the time that the process has run.
    fn is_late(&mut self, stamped: LogTime, wall_ms: u64, running_ms: u64) -> bool {
        let delay = |clock_ms: u64| i128::from(clock_ms) - i128::from(stamped.0);
        if running_ms.saturating_sub(self.begun_ms) >= LEAST_KEPT_MS {
            (self.least_before, self.least, self.begun_ms) = (self.least, None, running_ms);
        }
        let own = delay(running_ms);
        let least = self.least.map_or(own, |least| least.min(own));
        self.least = Some(least);
        let usual = self.least_before.map_or(least, |before| before.min(least));
        delay(wall_ms) > LATE_MS && own - usual > LATE_MS
    }
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
    /// Why a gang whose workers have all ended was told to stop, and when.
    ended: Option<(&'static str, LogTime)>,
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
        let (delays, facts) = (Delays::default(), DecisionFacts::default());
        DecisionObserver { counts, delays, started: Instant::now(), facts }
    }

    /// Whether a record that was stamped then is one of those that are decided while this process runs and keeps up.
    fn is_current(&mut self, stamped: LogTime) -> bool {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let wall_ms = ms(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        let running_ms = ms(self.started.elapsed());
        let is_late = self.delays.is_late(stamped, wall_ms, running_ms);
        // When the process started, by the wall clock as it stands now: one that was wrong then may have been corrected.
        stamped.0 >= wall_ms.saturating_sub(running_ms) && !is_late
    }

    fn count(&self, state: &State, applied: &Applied) {
        let DecisionFacts { name, submitted, placed, starting, stopped, ended, failed, finished, lost } =
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
        if let Some((cause, since)) = ended {
            counts.ended(cause, Duration::from_millis(state.log_time().0.saturating_sub(since.0)));
        }
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

/// Why a gang is being stopped and since when; none for a job of which nothing is.
fn stopping(state: &State, job: JobId) -> Option<(&'static str, LogTime)> {
    let Phase::Stopping(cause) = &state.job(job)?.phase else { return None };
    Some((stop_cause(cause), state.times(job).stopping_since?))
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
            Decision::JobRequeued { job, .. } => facts.ended = stopping(state, *job),
            Decision::JobFinished { job, outcome } => {
                facts.ended = stopping(state, *job);
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
        if is_applied && self.is_current(state.log_time()) {
            self.count(state, applied);
        }
    }

    fn round_over(&mut self, _: &State) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_tests::host;
    use muster_decider::{
        Answer, BootstrapConfig, Command, ControlOrder, JobSelection, Speculation, handle, schedule,
        settle_all,
    };
    use muster_journal::RankUpdate;
    use muster_metrics::{ReplicaFacts, ReplicaMetrics};
    use muster_planner::Budget;
    use muster_types::{
        ClusterId, Control, ExitStatus, HolderId, JobDraft, Leadership, LogIndex, Name, Parameters,
        ReplicaId, RequestId, Requester, Submission, TaskGroup, WorkerRequest,
    };

    /// A cluster whose records an observer hears as a replica that applies them does.
    struct ObservedCluster {
        speculation: Speculation,
        state: State,
        observer: DecisionObserver,
        metrics: ReplicaMetrics,
        begun_ms: u64,
    }

    impl ObservedCluster {
        /// From now on, because records from before an observer began are not counted.
        fn begin() -> ObservedCluster {
            let metrics = ReplicaMetrics::default();
            let observer = DecisionObserver::new(metrics.decisions().clone());
            let begun = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
            let begun_ms = u64::try_from(begun.as_millis()).expect("it is long before the year 500,000,000");
            let founding = BootstrapConfig::new(ClusterId(1), Parameters::DEFAULT);
            let leadership = Leadership { term: 1, replica: ReplicaId(1) };
            let now = LogTime(begun_ms + 1_000);
            let speculation = Speculation::begin(State::default(), leadership, now, founding);
            ObservedCluster { speculation, state: State::default(), observer, metrics, begun_ms }
        }

        fn run(&mut self, command: &Command) -> Answer {
            handle(&mut self.speculation, command)
                .unwrap_or_else(|refusal| panic!("{command:?}: {refusal:?}"))
        }

        /// What was decided so far is applied, and it is this number of seconds after the beginning.
        fn at(&mut self, seconds: u64) {
            settle_all(&mut self.speculation);
            while let Some(round) = self.speculation.take_round() {
                let leadership = Leadership { term: round.term, replica: round.replica };
                for (ordinal, decision) in (0_u64..).zip(&round.decisions) {
                    self.observer.before(&self.state, decision);
                    let index = LogIndex(round.first_index.0 + ordinal);
                    let applied = self.state.apply(leadership, index, round.log_time, decision);
                    self.observer.after(&self.state, &applied);
                }
            }
            self.speculation.set_now(LogTime(self.begun_ms + seconds * 1_000));
        }

        fn report(&mut self, job: JobId, update: RankUpdate) {
            let placement = self.speculation.state().job(job).and_then(|row| row.placement.clone());
            let placement = placement.expect("it is placed");
            let slot = placement.slots.first().expect("it has a worker");
            let (node, incarnation, token) = (slot.node, slot.incarnation, placement.token);
            self.run(&Command::Report { node, incarnation, job, token, updates: vec![(0, update)] });
        }

        fn value(&self, series: &str) -> Option<f64> {
            let text = self.metrics.scrape(ReplicaFacts::default());
            text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
        }
    }

    #[test]
    fn a_gang_that_was_told_to_stop_is_timed_by_its_cause_until_it_has_ended() {
        let name = |text: &str| Name::new(text).expect("a name");
        let request = WorkerRequest {
            accelerators: None,
            cpu_milli: 1,
            memory_bytes: 1 << 20,
            exclusive: false,
            scratch_bytes: 0,
        };
        let group = TaskGroup::new(name("main"), 1, vec!["train".to_owned()], request);
        let spec = JobDraft::new(name("train"), name("vision"), vec![group]).check().expect("a job");
        let mut observed = ObservedCluster::begin();
        let holder = HolderId(1);
        observed.run(&Command::Register { spec: host("h1"), holder, other_session_is_over: true });
        let submit = Command::submit(RequestId(1), vec![Submission::from(spec)].into());
        let job = match observed.run(&submit) {
            Answer::Submitted { jobs, .. } => *jobs.first().expect("it is one"),
            other => panic!("a submission is answered as one, not {other:?}"),
        };
        schedule(&mut observed.speculation, &mut Budget::new(1_000));
        observed.at(2);
        observed.report(job, RankUpdate::Running);
        observed.at(10);
        let order = ControlOrder {
            request: RequestId(2),
            by: Requester::named(String::new(), true),
            acts_for: None,
            control: Control::Cancel,
            selection: JobSelection::named(vec![job]),
        };
        observed.run(&Command::Control(Box::new(order)));
        observed.at(14);
        let (count, sum) = (
            r#"muster_gang_stop_duration_seconds_count{cause="cancelled"}"#,
            r#"muster_gang_stop_duration_seconds_sum{cause="cancelled"}"#,
        );
        assert_eq!(observed.value(r#"muster_gangs_stopped_total{cause="cancelled"}"#), Some(1.0));
        assert_eq!(observed.value(count), Some(0.0), "its worker has not ended");
        observed.report(job, RankUpdate::Exited(ExitStatus::Code(1)));
        observed.at(20);
        assert_eq!((observed.value(count), observed.value(sum)), (Some(1.0), Some(4.0)));
        let other = r#"muster_gang_stop_duration_seconds_count{cause="preempted"}"#;
        assert_eq!(observed.value(other), Some(0.0));
    }

    const START_MS: u64 = 1_700_000_000_000;
    const MINUTE_MS: u64 = 60_000;

    /// A replica whose wall clock differs from log time by so much.
    struct Replica {
        delays: Delays,
        clock_ahead_ms: i64,
    }

    impl Replica {
        fn new(clock_ahead_ms: i64) -> Replica {
            Replica { delays: Delays::default(), clock_ahead_ms }
        }

        /// Whether it counts a record of a minute that it applies in another.
        fn counts(&mut self, stamped_minute: u64, applied_minute: u64) -> bool {
            let running_ms = applied_minute * MINUTE_MS;
            let wall_ms = (START_MS + running_ms).saturating_add_signed(self.clock_ahead_ms);
            !self.delays.is_late(LogTime(START_MS + stamped_minute * MINUTE_MS), wall_ms, running_ms)
        }
    }

    #[test]
    fn what_a_replica_makes_up_for_is_not_counted() {
        for clock_ahead_ms in [0, 3_600_000] {
            let mut replica = Replica::new(clock_ahead_ms);
            assert!((0..5).all(|minute| replica.counts(minute, minute)), "it is in step");
            // It was cut off for twenty minutes.
            assert!((5..24).all(|minute| !replica.counts(minute, 25)), "it jumps");
            assert!((24..200).all(|minute| replica.counts(minute, minute.max(25))), "it is in step again");
        }
    }

    #[test]
    fn a_wrong_clock_silences_no_replica() {
        for clock_ahead_ms in [-3_600_000, 3_600_000, 86_400_000] {
            let mut replica = Replica::new(clock_ahead_ms);
            assert!((0..600).all(|minute| replica.counts(minute, minute)), "{clock_ahead_ms}");
        }
        // One that is behind cannot tell, and counts.
        let mut behind = Replica::new(-3_600_000);
        assert!(behind.counts(0, 0) && behind.counts(1, 20));
    }

    #[test]
    fn log_time_that_stands_still_silences_a_replica_with_a_wrong_clock_for_a_while_and_no_other() {
        // Log time was half an hour ahead, and waits for the clock of the next leader.
        let stamped = |minute: u64| (minute + 30).min(minute.max(60));
        let mut sound = Replica::new(0);
        assert!((0..300).all(|minute| sound.counts(stamped(minute), minute)));
        let mut ahead = Replica::new(86_400_000);
        let counted: Vec<bool> = (0..300).map(|minute| ahead.counts(stamped(minute), minute)).collect();
        assert!(counted[..30].iter().all(|counts| *counts));
        assert!(!counted[60], "both clocks say that it is late");
        assert!(counted[180..].iter().all(|counts| *counts), "the least delay is forgotten");
    }
}
