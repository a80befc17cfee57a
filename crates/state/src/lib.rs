//! The replicated state machine: guard, fold, derived indexes, invariants, digest, snapshot.
//!
//! [`State::apply_round`] takes a round from the log. Each record passes the guard (leadership and
//! sequence current, the decision's own preconditions) and is folded in; a record that does not pass
//! is counted and changes nothing else. What the outside must do about it comes back as
//! [`Effect`]s: apply itself has no clock, no randomness, no IO, and does not know who leads here.
//!
//! **Invariant:** same rounds, same state, same digest, on every replica and every version.
//! **Invariant:** this crate decides nothing: it accepts or rejects what was decided.
//! **Invariant:** a clone costs nothing and never changes afterwards (persistent maps), so read
//! views, speculation and snapshots need no lock.
#![no_std]
#![deny(missing_docs, clippy::float_arithmetic)]

extern crate alloc;

mod admission;
mod apply;
mod array;
mod array_invariants;
mod budget;
mod capacity;
mod charge;
mod control;
mod demand;
mod effect;
mod fleet_holds;
mod fold;
mod forecast;
mod free;
mod grants;
mod guard;
mod guard_error;
mod history;
mod host_limits;
mod index;
mod licences;
mod metadata;
mod node_reasons;
mod notifications;
mod overrides;
mod policy;
mod queue;
mod ready_members;
mod recovery;
mod redact;
mod restrict;
mod rows;
mod schedules;
mod sequence;
mod snapshot;
mod spares;
mod spend;
pub mod standing;
mod state;
mod submission_group;
mod table;
mod tables;
mod token;
pub mod tree;
mod user_turns;
mod user_usage;
mod verify;

pub mod booking;
pub mod fit;
pub mod quota;
pub mod usage;

pub use admission::NotAdmitted;
pub use apply::CheckedDecision;
pub use array::{DependencyState, JobEnd, WaitingMember};
pub use budget::{BudgetUse, SpentBudget};
pub use capacity::{CAPACITY_ROWS_MAX, CAPACITY_SEEN_MS_MIN, Interruptions};
pub use control::will_wait;
pub use demand::{DEMAND_GROUP_DEVICES_MAX, DEMAND_SAMPLE, DEMAND_WINDOW, Demand, DemandSum, WorkerDemand};
pub use effect::{Applied, Effect};
pub use forecast::Forecast;
pub use free::{DeviceShare, Free, FreeKey, Promised, Restricted};
pub use grants::GrantObstacle;
pub use guard_error::GuardError;
pub use host_limits::{HostLimit, HostResource};
pub use index::{
    ApartKind, LinePlace, Pool, PoolKey, QueueLoad, QueuePosition, Rack, RackKey, Shape, UserLane, UserLoad,
    Work,
};
pub use policy::{ExceededLimit, JobAboveLimit, MissingRight};
pub use queue::{EligibleDemand, QueueRow, QuotaUse};
pub use quota::Side;
pub use redact::Redaction;
pub use rows::{
    AdmissionRow, ArrayFacts, ArrayLoad, ArrayRow, ArrayTemplate, BURST_GAP_MS, BudgetRow, BurstKey,
    BurstRow, CAPACITY_DAYS, CapacityDay, CapacityKey, CapacityRow, Charge, ClusterMeta, ControlRow, EndRun,
    Failure, FleetHoldRow, GangClass, HISTORY_ROWS_MAX, HealthPolicyRow, HistoryKey, HistoryLevel,
    HistoryRow, HoldRow, JobRow, JobTimes, MemberEnd, MemberEnds, ModificationRow, NodeFacts,
    NodeOverridesRow, NodeReason, NodeReasonsRow, NodeRow, NodeStatus, OBSERVATION, OBSERVATIONS_KEPT, Phase,
    Placement, PolicyRow, PromiseRow, QuotaAnswer, QuotaGrantEnd, QuotaGrantRow, QuotaGrantStatus,
    RUN_BUCKETS, RankArtifacts, RankState, RecoveryRow, RequestAnswer, RequestRow, RestrictionRow, Saved,
    ScheduleRow, ScheduleRunRow, ScheduleSuspension, SpendPart, SpendRow, Straggler, bucket_of,
    rows_of_array,
};
pub use schedules::schedule_bytes;
pub use sequence::Sequence;
pub use snapshot::{RestoreError, SnapshotChunks};
pub use standing::{GangStanding, NominalCover, PreemptionReason};
pub use state::State;
pub use table::Table;
pub use tree::{Map, Set};
pub use verify::BrokenInvariant;
