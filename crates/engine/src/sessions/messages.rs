//! What an agent and the leader say to each other in a session.

use muster_decider::PlannedImage;
use muster_types::health::{HealthReport, Repair};
use muster_types::probe::{Link, Ring};
use muster_types::{
    AgentStart, Artifacts, ExitStatus, Features, FencingToken, ForeignLoad, HolderId, JobId, NodeId,
    NodeSpec, Parameters, Refusal,
};
use std::sync::Arc;

use crate::apply::orders::Order;
use crate::sessions::execs::ExecOrder;
use crate::sessions::images::NodeStage;
use crate::sessions::logs::LogRequest;

/// One worker as its agent sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerReport {
    /// Which job.
    pub job: JobId,
    /// Which placement.
    pub token: FencingToken,
    /// Which worker; none for "nothing of this placement is here, and none will start".
    pub rank: Option<u32>,
    /// How it ended; none while it runs.
    pub exit: Option<ExitStatus>,
    /// What became of its artifacts; none where its job wants none.
    pub artifacts: Option<Artifacts>,
}

impl WorkerReport {
    /// Its rank, and what became of its artifacts. None of a worker that runs: of that one it would be another record each time.
    pub(crate) fn kept(&self) -> Option<(u32, Artifacts)> {
        self.rank.zip(self.artifacts).filter(|_| self.exit.is_some())
    }
}

/// What an agent opens a session with.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Its host.
    pub spec: NodeSpec,
    /// Itself.
    pub holder: HolderId,
    /// Which start of it; none where it is of a release that does not say that.
    pub start: Option<AgentStart>,
    /// What it still has.
    pub workers: Vec<WorkerReport>,
    /// What it says to take; nothing where it is of a release that says nothing.
    pub takes: Features,
}

/// From the agent.
#[derive(Clone, Debug)]
pub enum Inbound {
    /// Renew the lease.
    Heartbeat {
        /// To be repeated in the acknowledgement.
        sequence: u64,
    },
    /// Transitions of workers.
    Report {
        /// To be repeated in the acknowledgement.
        sequence: u64,
        /// What happened.
        workers: Vec<WorkerReport>,
    },
    /// How the host is.
    Health {
        /// To be repeated in the acknowledgement.
        sequence: u64,
        /// All that is wrong, and what happened.
        report: Box<HealthReport>,
    },
    /// Is this token still the current one?
    ConfirmStart {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
    },
    /// A worker on the node says that its work is saved.
    CheckpointCommitted {
        /// To be repeated in the answer.
        sequence: u64,
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// The step that it is saved up to; none where the worker states none.
        step: Option<u64>,
    },
    /// A worker on the node says that it is ready.
    Ready {
        /// To be repeated in the answer.
        sequence: u64,
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// Which worker.
        rank: u32,
    },
    /// A worker on the node has done a step.
    Step {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// Which worker.
        rank: u32,
        /// Which step, from 1.
        number: u64,
        /// How long it took.
        duration_ms: u64,
    },
    /// Of a probe of the network, or of the check before a start.
    Probe(ProbeReport),
    /// What others hold of the node.
    ForeignLoad(ForeignLoad),
    /// Images that the host holds: those that were asked for last.
    Images(Vec<String>),
    /// What the workers of a placement on the node wait for.
    StartStage {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// What they wait for.
        stage: NodeStage,
    },
}

/// To the agent.
#[derive(Clone, Debug)]
pub enum Outbound {
    /// The session stands.
    Registered {
        /// The node's id.
        node: NodeId,
        /// Its incarnation.
        incarnation: u32,
        /// The cluster's generation.
        generation: u32,
        /// Lease and heartbeat times.
        parameters: Parameters,
    },
    /// The lease is renewed.
    HeartbeatAck {
        /// The heartbeat's.
        sequence: u64,
    },
    /// The report is in the log.
    ReportAck {
        /// The report's.
        sequence: u64,
    },
    /// What became of a note: in the log, or why it never will be.
    NoteAck {
        /// The note's.
        sequence: u64,
        /// None when it is in the log.
        refused: Option<Refusal>,
    },
    /// The report of the host's health was taken over.
    HealthAck {
        /// The report's.
        sequence: u64,
    },
    /// The node is empty and may be repaired.
    Repair(Repair),
    /// The answer to `ConfirmStart`.
    StartConfirmed {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// Whether it may start.
        current: bool,
    },
    /// Something to do.
    Order(Order),
    /// Output to upload.
    ReadLogs(LogRequest),
    /// Something to do for a probe of the network.
    Probe(ProbeOrder),
    /// A command to run next to a worker.
    Exec(ExecOrder),
    /// Images to fetch ahead, in the place of those before.
    Prefetch(Arc<Vec<PlannedImage>>),
}

/// What an agent says of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeReport {
    /// Everything is ready for the workers of a placement but the check.
    Waiting {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
    },
    /// Where the node listens, or why it does not.
    Listening {
        /// Which probe.
        probe: u64,
        /// The port.
        port: Result<u16, String>,
    },
    /// What it measured.
    Measured {
        /// Which probe.
        probe: u64,
        /// Both directions of the pairs that it led.
        links: Vec<Link>,
        /// The ring, when it came to its end.
        ring: Option<Ring>,
        /// How loaded its processors were meanwhile, as in [`Link::load_milli`].
        load_milli: u16,
    },
}

/// What an agent is asked to do for a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOrder {
    /// Listen.
    Listen {
        /// Which probe.
        probe: u64,
    },
    /// Measure.
    Run {
        /// Which probe.
        probe: u64,
        /// What connections have to show.
        key: u128,
        /// This node's place.
        own: u32,
        /// Where everybody listens.
        peers: Arc<Vec<(String, u16)>>,
        /// Bytes in one direction of one pair.
        pair_bytes: u64,
        /// How long that may take.
        pair_ms: u32,
        /// Bytes that the ring reduces.
        ring_bytes: u64,
        /// Everything together.
        budget_ms: u32,
    },
    /// What came of the check of a placement: start, or why this node is at fault.
    Verdict {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// None to start.
        fault: Option<String>,
    },
}
