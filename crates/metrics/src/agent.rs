//! The registry of one agent.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Series;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::fmt::Error;
use std::time::Duration;

use crate::decisions::Counts;
use crate::facts::ProcessFacts;
use crate::families;
use crate::rows::{self, Rows, count, units};

/// Bounds of the buckets of launches, in seconds: a shim that waits takes milliseconds, and another scheduler may take minutes.
const LAUNCH_BUCKETS_S: [f64; 16] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0];

macro_rules! closed {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$of])* $variant,)*
        }

        impl $name {
            /// Every one.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// The value of the label.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                }
            }
        }
    };
}

closed! {
    /// What came of an attempt to open a session.
    SessionOutcome {
        /// It is open.
        Opened = "opened",
        /// No replica could be reached.
        Unreachable = "unreachable",
        /// A replica refused it, or the connection broke.
        Refused = "refused",
        /// A replica did not answer in time.
        Unanswered = "unanswered",
        /// The answer cannot be used.
        Unusable = "unusable",
        /// It is a session of another cluster.
        ForeignCluster = "foreign_cluster",
    }
}

closed! {
    /// What came of the order to start a worker.
    StartOutcome {
        /// It was launched.
        Started = "started",
        /// It could not be launched.
        Failed = "failed",
        /// It was stopped before.
        Stopped = "stopped",
    }
}

closed! {
    /// A stage of the start of a worker with an image.
    LaunchStage {
        /// Its image is fetched.
        Pulling = "pulling",
        /// Its image is unpacked.
        Unpacking = "unpacking",
        /// Its image is there, and it is launched.
        Starting = "starting",
    }
}

closed! {
    /// How a worker ended.
    EndCause {
        /// With code 0.
        Succeeded = "succeeded",
        /// With another code.
        Failed = "failed",
        /// By a signal.
        Signal = "signal",
        /// The lease ran out.
        LeaseExpired = "lease_expired",
        /// It used more memory than it had asked for.
        OutOfMemory = "out_of_memory",
        /// It wrote more to its scratch directory than it had asked for.
        OutOfScratch = "out_of_scratch",
        /// It could not be launched.
        LaunchFailed = "launch_failed",
        /// It was stopped before it was launched.
        NotStarted = "not_started",
        /// There is no trace of it.
        Vanished = "vanished",
        /// A device or the host failed.
        NodeFault = "node_fault",
        /// The scheduler below lost it.
        BackendLost = "backend_lost",
        /// The check of its gang's network failed.
        PreflightFailed = "preflight_failed",
    }
}

closed! {
    /// Where a worker is.
    WorkerPhase {
        /// It is being launched.
        Launching = "launching",
        /// It runs.
        Running = "running",
        /// It was told to stop and has not ended.
        Stopping = "stopping",
        /// It has ended, and the leader has not acknowledged that.
        Ended = "ended",
    }
}

closed! {
    /// What the agent observes of an accelerator.
    DeviceHealth {
        /// Nothing is wrong, as far as the agent can see.
        Healthy = "healthy",
        /// Something is wrong, and it works.
        Degraded = "degraded",
        /// It does not work, or needs a repair.
        Failed = "failed",
        /// Others than Muster use it.
        Foreign = "foreign",
    }
}

closed! {
    /// What became of output.
    OutputFate {
        /// It was written.
        Kept = "kept",
        /// It could not be written.
        Dropped = "dropped",
    }
}

/// What an agent knows of itself at one moment. What is not known is none and has no series.
#[derive(Clone, Debug, Default)]
pub struct AgentFacts {
    /// Version of the program.
    pub version: String,
    /// Nodes that it stands for.
    pub nodes: u64,
    /// Those of them with an open session.
    pub sessions_connected: u64,
    /// Until the first lease runs out, in milliseconds.
    pub lease_left_ms: Option<u64>,
    /// Workers by state.
    pub workers: Vec<(WorkerPhase, u64)>,
    /// Accelerators.
    pub devices: Vec<DeviceFacts>,
    /// Outputs that are being sent.
    pub uploads_pending: u64,
    /// Space left, in bytes.
    pub state_free_bytes: Option<u64>,
    /// Days that the certificate lasts.
    pub certificate_days_left: Option<i64>,
    /// The process.
    pub process: ProcessFacts,
}

/// Accelerators of one type in one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Type.
    pub kind: String,
    /// Condition.
    pub health: DeviceHealth,
    /// How many.
    pub count: u64,
}

/// Histograms by one label.
type HistogramsByLabel = Series<[(&'static str, &'static str); 1], Histogram, fn() -> Histogram>;

/// What one agent counts, and the format in which it is read. Clones share it.
#[derive(Clone, Debug)]
pub struct AgentMetrics {
    sessions: Counts,
    starts: Counts,
    ends: Counts,
    launches: Histogram,
    stages: HistogramsByLabel,
    output: Counts,
    notes_refused: Counter,
}

impl Default for AgentMetrics {
    /// Every series is there from the beginning: a rate over one that begins with its first event misses that event.
    fn default() -> AgentMetrics {
        let metrics = AgentMetrics {
            sessions: Counts::new(families::AGENT_SESSIONS),
            starts: Counts::new(families::AGENT_STARTS),
            ends: Counts::new(families::AGENT_ENDS),
            launches: Histogram::new(LAUNCH_BUCKETS_S),
            stages: Series::new_with_constructor(|| Histogram::new(LAUNCH_BUCKETS_S)),
            output: Counts::new(families::AGENT_OUTPUT),
            notes_refused: Counter::default(),
        };
        SessionOutcome::ALL.iter().for_each(|outcome| metrics.sessions.add(outcome.as_str(), 0));
        StartOutcome::ALL.iter().for_each(|outcome| metrics.starts.add(outcome.as_str(), 0));
        EndCause::ALL.iter().for_each(|cause| metrics.ends.add(cause.as_str(), 0));
        OutputFate::ALL.iter().for_each(|fate| metrics.output.add(fate.as_str(), 0));
        for stage in LaunchStage::ALL {
            drop(metrics.stages.get_or_create(&of_stage(*stage)));
        }
        metrics
    }
}

impl AgentMetrics {
    /// An attempt to open a session is over.
    pub fn session(&self, outcome: SessionOutcome) {
        self.sessions.add(outcome.as_str(), 1);
    }

    /// Counts a launched worker. `took` is the time since its order arrived, where that is known.
    pub fn launched(&self, took: Option<Duration>) {
        self.starts.add(StartOutcome::Started.as_str(), 1);
        if let Some(took) = took {
            self.launches.observe(took.as_secs_f64());
        }
    }

    /// Workers with images waited so long in a stage of their start.
    pub fn stage_over(&self, stage: LaunchStage, took: Duration) {
        self.stages.get_or_create(&of_stage(stage)).observe(took.as_secs_f64());
    }

    /// A worker was not launched.
    pub fn not_launched(&self, outcome: StartOutcome) {
        self.starts.add(outcome.as_str(), 1);
    }

    /// A worker has ended.
    pub fn ended(&self, cause: EndCause) {
        self.ends.add(cause.as_str(), 1);
    }

    /// Bytes of output were kept or dropped.
    pub fn output(&self, fate: OutputFate, bytes: u64) {
        self.output.add(fate.as_str(), bytes);
    }

    /// A note of a checkpoint was refused.
    pub fn checkpoint_note_refused(&self) {
        self.notes_refused.inc();
    }

    /// Everything in the text format, with these facts.
    #[must_use]
    pub fn scrape(&self, facts: AgentFacts) -> String {
        let mut registry = Registry::default();
        for counts in [&self.sessions, &self.starts, &self.ends, &self.output] {
            counts.register(&mut registry);
        }
        let (launches, notes) = (families::AGENT_LAUNCH_SECONDS, families::AGENT_NOTES_REFUSED);
        registry.register(launches.name, launches.help, self.launches.clone());
        let stages = families::AGENT_STAGE_SECONDS;
        registry.register(stages.name, stages.help, self.stages.clone());
        registry.register(notes.name, notes.help, self.notes_refused.clone());
        registry.register_collector(Box::new(Reading(facts)));
        rows::text(&registry)
    }
}

/// The label of a stage.
fn of_stage(stage: LaunchStage) -> [(&'static str, &'static str); 1] {
    [(families::AGENT_STAGE_SECONDS.labels[0], stage.as_str())]
}

/// Facts of one moment as series.
#[derive(Debug)]
struct Reading(AgentFacts);

impl Collector for Reading {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        for rows in series(&self.0).into_iter().chain(rows::process(self.0.process)) {
            rows.encode(&mut encoder)?;
        }
        Ok(())
    }
}

fn series(facts: &AgentFacts) -> Vec<Rows<'_>> {
    let mut build = Rows::new(families::BUILD);
    build.row([&facts.version], 1.0);
    let mut workers = Rows::new(families::AGENT_WORKERS);
    for (phase, number) in &facts.workers {
        workers.row([phase.as_str()], count(*number));
    }
    let mut devices = Rows::new(families::AGENT_DEVICES);
    for DeviceFacts { kind, health, count: number } in &facts.devices {
        devices.row([kind, health.as_str()], count(*number));
    }
    vec![
        build,
        Rows::one(families::AGENT_NODES, Some(count(facts.nodes))),
        Rows::one(families::AGENT_CONNECTED, Some(count(facts.sessions_connected))),
        Rows::one(families::AGENT_LEASE, facts.lease_left_ms.map(units)),
        workers,
        devices,
        Rows::one(families::AGENT_UPLOADS, Some(count(facts.uploads_pending))),
        Rows::one(families::AGENT_STATE_FREE, facts.state_free_bytes.map(count)),
        Rows::one(families::CERTIFICATE_DAYS, facts.certificate_days_left.map(rows::days)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::AGENT_FAMILIES;

    fn everything() -> AgentFacts {
        AgentFacts {
            version: "1.2.3".to_owned(),
            nodes: 1,
            sessions_connected: 1,
            lease_left_ms: Some(7_250),
            workers: WorkerPhase::ALL.iter().zip(1..).map(|(phase, number)| (*phase, number)).collect(),
            devices: vec![
                DeviceFacts { kind: "h100".to_owned(), health: DeviceHealth::Healthy, count: 7 },
                DeviceFacts { kind: "h100".to_owned(), health: DeviceHealth::Failed, count: 1 },
            ],
            uploads_pending: 2,
            state_free_bytes: Some(1 << 30),
            certificate_days_left: Some(12),
            process: ProcessFacts {
                resident_bytes: Some(1),
                cpu_ms: Some(1_250),
                open_descriptors: Some(12),
                trace_spans_dropped: 0,
            },
        }
    }

    #[test]
    fn every_family_of_the_table_is_exposed_once_and_no_other() {
        let text = AgentMetrics::default().scrape(everything());
        let described = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        let mut described: Vec<&str> = described.collect();
        let mut wanted: Vec<&str> = AGENT_FAMILIES.iter().map(|family| family.name).collect();
        described.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(described, wanted);
    }

    #[test]
    fn a_scrape_is_this_text() {
        let metrics = AgentMetrics::default();
        metrics.session(SessionOutcome::Unreachable);
        metrics.session(SessionOutcome::Opened);
        metrics.launched(Some(Duration::from_millis(125)));
        metrics.not_launched(StartOutcome::Failed);
        metrics.ended(EndCause::LaunchFailed);
        metrics.ended(EndCause::OutOfMemory);
        metrics.output(OutputFate::Kept, 4_096);
        metrics.checkpoint_note_refused();
        let mut text = metrics.scrape(everything());
        // Series of one family have no order.
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        lines.sort_unstable();
        text = lines.iter().map(|line| format!("{line}\n")).collect();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/agent.txt");
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert_eq!(text, std::fs::read_to_string(path).unwrap_or_default(), "UPDATE_EXPECT=1 writes {path}");
    }

    #[test]
    fn what_is_not_known_has_no_series_and_counters_begin_at_zero() {
        let text = AgentMetrics::default().scrape(AgentFacts::default());
        assert!(!text.contains("muster_agent_lease_left_seconds"), "{text}");
        assert!(text.contains("muster_agent_worker_ends_total{cause=\"vanished\"} 0\n"), "{text}");
        assert!(text.contains("muster_agent_sessions_opened_total{outcome=\"opened\"} 0\n"), "{text}");
    }
}
