//! What is measured: names, types, labels and help of each family, and the registry that a process exposes.
//!
//! A family has one row in [`FAMILIES`] or [`AGENT_FAMILIES`]. Counters and distributions are counted where something happens; everything else
//! is read when a monitoring system asks, from facts that the replica states, so nothing is kept twice. The alerts on
//! error budgets are made here as well, because they name these families.
//! **Invariant:** no label is a job, a node, a user or a free text; each comes from a closed set or is bounded by [`TENANTS_MAX`].

mod agent;
mod calls;
mod decisions;
mod facts;
mod families;
mod objectives;
mod registry;
mod rows;

pub use agent::{
    AgentFacts, AgentMetrics, DeviceFacts, DeviceHealth, EndCause, LaunchStage, OutputFate, SessionOutcome,
    StartOutcome, WorkerPhase,
};
pub use calls::{CallLabels, CallSeries, RefusalLabels};
pub use decisions::{DecisionCounts, DecisionLabels};
pub use facts::{
    PoolFacts, ProcessFacts, QuotaFacts, ReplicaFacts, StateFacts, StrandedFacts, TenantFacts, UsedFacts,
};
pub use families::{AGENT_FAMILIES, FAMILIES, Family, Kind};
pub use objectives::{FILE_BYTES_MAX as OBJECTIVE_BYTES_MAX, Objective, ObjectiveError, rules};
pub use registry::{CONTENT_TYPE, ReplicaMetrics, TENANTS_MAX};
