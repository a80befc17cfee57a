//! The replica: intake, decision loop, apply loop, read views, watch hub, liveness, outbox.
//!
//! ```text
//!  api ── execute ──> intake ──> decision loop ──> consensus ──> apply (every replica)
//!          ^                     (leader only,      (quorum,       │ publishes the view,
//!          │                      speculation)       durable)      │ events, order changes,
//!          └──────────────────── answered from apply <─────────────┘ and wakes the waiters
//! ```
//!
//! One serial loop decides; it runs only while this replica leads and only behind the barrier.
//! Agents' sessions end at the leader: [`Session`] renews leases, hands out orders, takes reports.
//!
//! **Invariant:** nobody is told of a record before it was applied here, and then only if the
//! applied record is the one that was proposed.
//! **Invariant:** a heartbeat is acknowledged only after a quorum confirmed the leadership since it
//! arrived, and only while the session has not run out.
//! **Invariant:** every queue is bounded; a full one refuses, it never waits for memory.
//! **Invariant:** parses no request: values come in checked.

mod apply;
mod background;
pub mod calendar;
mod clock;
mod decide;
mod engine;
mod history;
mod log_lines;
mod refusals;
#[cfg(test)]
mod sample;
mod services;
mod sessions;
#[cfg(test)]
mod tests;
mod watch;

pub use apply::orders::{Order, StartOrder, StopOrder};
pub use apply::replicated::{
    Divergence, DivergenceHandler, Mismatch, RecordObserver, Replicated, View, WorkObserver, replicated,
};
pub use apply::traced::{Stages, TracedSubmission};
pub use background::{NotDone, in_background};
pub use engine::{
    DELIVERIES_KEPT, Delivered, Delivery, DeliveryResult, Engine, EngineConfig, InboxDepth,
    LEADERSHIPS_COUNTED_FOR, LocalFacts, ReplicaInfo, submission_kib,
};
pub use history::follower::{LogBatch, LogFollower, LogPosition, RecordVisitor, Visited};
pub use history::records::{ArchiveStatus, round as archived_round};
pub use history::settings::{
    HistorySettings, PeerHistory, Retention, UnopenedArchive, archive_error_text, open_archive, purge_up_to,
};
pub use muster_consensus::{
    ChangeOptions, Changed, Member, PeerReport, ReplicaNode, ReplicaStatus, Role, Space, StateMark,
    StorageHealth, Traffic, TrafficScope,
};
pub use services::execs::{ExecPurpose, ExecRequest};
pub use services::probe::{PROBE_NODES_MAX, ProbeResult};
pub use services::reads::{Reading, staleness_ms};
pub use services::session::Session;
pub use services::watching::Subscription;
pub use sessions::execs::{
    CallerSide, ExecInput, ExecOrder, ExecOutput, ForwardedContent, ForwardedPiece, NodeSide,
};
pub use sessions::images::NodeStage;
pub use sessions::liveness::Liveness;
pub use sessions::logs::{Attempt, LogChunk, LogRequest};
pub use sessions::messages::{Inbound, Opening, Outbound, ProbeOrder, ProbeReport, WorkerReport};
pub use sessions::pending::PendingNode;
pub use watch::changes::{Change, Event, JobBefore, WatchPosition};
