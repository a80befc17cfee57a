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

mod archiver;
mod background;
mod checkpoints;
mod clock;
mod contacts;
mod containment;
mod engine;
mod events;
mod explanations;
mod history;
#[cfg(test)]
mod history_tests;
mod leader;
mod liveness;
mod logs;
mod members;
mod mending;
mod orders;
mod own_rounds;
mod past;
mod past_changes;
mod pending;
mod probe;
mod reads;
mod replicated;
#[cfg(test)]
mod sample;
mod session;
mod steps;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unheard_tests;
mod waiters;
mod watch;

pub use archiver::{
    HistorySettings, PeerHistory, Retention, UnopenedArchive, archive_error_text, open_archive, purge_up_to,
};
pub use background::{NotDone, in_background};
pub use engine::{Engine, EngineConfig, LEADERSHIPS_COUNTED_FOR, LocalFacts, ReplicaInfo, submission_kib};
pub use history::{ArchiveStatus, LogBatch, LogFollower, LogPosition, round as archived_round};
pub use logs::{Attempt, LogChunk, LogRequest};
pub use muster_consensus::{
    ChangeOptions, Changed, Member, PeerReport, ReplicaNode, ReplicaStatus, Role, Space, StateMark,
    StorageHealth, Traffic, TrafficScope,
};
pub use orders::{Order, StartOrder, StopOrder};
pub use pending::PendingNode;
pub use probe::{PROBE_NODES_MAX, ProbeOrder, ProbeReport, ProbeResult};
pub use reads::{Reading, staleness_ms};
pub use replicated::{Divergence, DivergenceHandler, Mismatch, Replicated, View, replicated};
pub use session::{Inbound, Opening, Outbound, Session, WorkerReport};
pub use watch::{Change, Event, Subscription, WatchPosition};
