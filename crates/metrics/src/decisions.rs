//! Decisions of the log, counted when a replica applies them.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Series;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

use crate::families::{self, Family};

/// Bounds of the buckets of how long jobs wait and gangs take to start, in seconds: from a start within a heartbeat to a wait
/// of three days.
const WAIT_BUCKETS_S: [f64; 16] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0,
    172_800.0, 259_200.0,
];

/// The one label of a series: its name in the family, and a value from a closed set.
type OneLabel = [(&'static str, &'static str); 1];

/// Counts of one family with one label.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    family: Family,
    series: Series<OneLabel, Counter>,
}

impl Counts {
    pub(crate) fn new(family: Family) -> Counts {
        Counts { family, series: Series::default() }
    }

    fn label(&self, value: &'static str) -> OneLabel {
        [(self.family.labels[0], value)]
    }

    pub(crate) fn add(&self, value: &'static str, count: u64) {
        self.series.get_or_create(&self.label(value)).inc_by(count);
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(self.family.name, self.family.help, self.series.clone());
    }
}

/// Durations of one family by tier, or by cause.
#[derive(Clone, Debug)]
struct Waits {
    family: Family,
    series: Series<OneLabel, Histogram, fn() -> Histogram>,
}

impl Waits {
    fn new(family: Family) -> Waits {
        Waits { family, series: Series::new_with_constructor(|| Histogram::new(WAIT_BUCKETS_S)) }
    }

    fn add(&self, value: &'static str, duration: Duration) {
        self.series.get_or_create(&[(self.family.labels[0], value)]).observe(duration.as_secs_f64());
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(self.family.name, self.family.help, self.series.clone());
    }
}

/// The values that the labels of decisions have.
#[derive(Clone, Copy, Debug)]
pub struct DecisionLabels<'a> {
    /// Tiers of jobs.
    pub tiers: &'a [&'static str],
    /// Why gangs are stopped.
    pub stop_causes: &'a [&'static str],
    /// Kinds of failures.
    pub failure_classes: &'a [&'static str],
    /// How jobs end.
    pub outcomes: &'a [&'static str],
    /// Why nodes are lost.
    pub loss_causes: &'a [&'static str],
}

/// What was decided while a process ran. Clones share it.
#[derive(Clone, Debug)]
pub struct DecisionCounts {
    records: Counts,
    submitted: Counts,
    queued: Waits,
    starts: Waits,
    stopped: Counts,
    stops: Waits,
    failed: Counts,
    finished: Counts,
    lost: Counts,
}

impl Default for DecisionCounts {
    fn default() -> DecisionCounts {
        DecisionCounts {
            records: Counts::new(families::RECORDS),
            submitted: Counts::new(families::SUBMITTED),
            queued: Waits::new(families::QUEUE_SECONDS),
            starts: Waits::new(families::START_SECONDS),
            stopped: Counts::new(families::STOPPED),
            stops: Waits::new(families::STOP_SECONDS),
            failed: Counts::new(families::FAILED),
            finished: Counts::new(families::FINISHED),
            lost: Counts::new(families::LOST),
        }
    }
}

impl DecisionCounts {
    /// Exposes each of these series from now on, at zero: a rate over a series that begins with its first event misses
    /// that event.
    pub fn begin(&self, labels: DecisionLabels<'_>) {
        for (counts, values) in [
            (&self.submitted, labels.tiers),
            (&self.stopped, labels.stop_causes),
            (&self.failed, labels.failure_classes),
            (&self.finished, labels.outcomes),
            (&self.lost, labels.loss_causes),
        ] {
            values.iter().for_each(|value| counts.add(value, 0));
        }
        for (waits, values) in
            [(&self.queued, labels.tiers), (&self.starts, labels.tiers), (&self.stops, labels.stop_causes)]
        {
            for value in values {
                drop(waits.series.get_or_create(&[(waits.family.labels[0], *value)]));
            }
        }
    }

    /// A record was applied.
    pub fn record(&self, decision: &'static str) {
        self.records.add(decision, 1);
    }

    /// Jobs of a tier were submitted.
    pub fn submitted(&self, tier: &'static str, jobs: u64) {
        self.submitted.add(tier, jobs);
    }

    /// A gang got its place after a wait.
    pub fn placed(&self, tier: &'static str, waited: Duration) {
        self.queued.add(tier, waited);
    }

    /// Every worker of a gang has started.
    pub fn started(&self, tier: &'static str, took: Duration) {
        self.starts.add(tier, took);
    }

    /// A gang was told to stop.
    pub fn stopped(&self, cause: &'static str) {
        self.stopped.add(cause, 1);
    }

    /// Every worker of a gang that was told to stop has ended.
    pub fn ended(&self, cause: &'static str, took: Duration) {
        self.stops.add(cause, took);
    }

    /// An attempt failed.
    pub fn failed(&self, class: &'static str) {
        self.failed.add(class, 1);
    }

    /// A job ended.
    pub fn finished(&self, outcome: &'static str) {
        self.finished.add(outcome, 1);
    }

    /// A node was declared lost.
    pub fn lost(&self, cause: &'static str) {
        self.lost.add(cause, 1);
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        for counts in
            [&self.records, &self.submitted, &self.stopped, &self.failed, &self.finished, &self.lost]
        {
            counts.register(registry);
        }
        self.queued.register(registry);
        self.starts.register(registry);
        self.stops.register(registry);
    }
}
