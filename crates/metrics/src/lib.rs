//! What is measured: names, types, labels and help of each family, and the registry that a process exposes.
//!
//! A family has one row in [`FAMILIES`]. Counters and distributions are counted where something happens; everything else
//! is read when a monitoring system asks, from facts that the replica states, so nothing is kept twice. The alerts on
//! error budgets are made here as well, because they name these families.
//! **Invariant:** no label is a job, a node, a user or a free text; each comes from a closed set or is bounded by [`TENANTS_MAX`].

mod calls;
mod decisions;
mod facts;
mod families;
mod objectives;
mod registry;

pub use calls::CallLabels;
pub use decisions::{DecisionCounts, DecisionLabels};
pub use facts::{PoolFacts, QuotaFacts, ReplicaFacts, TenantFacts};
pub use families::{FAMILIES, Family, Kind};
pub use objectives::{FILE_BYTES_MAX as OBJECTIVE_BYTES_MAX, Objective, ObjectiveError, rules};
pub use registry::{CONTENT_TYPE, ReplicaMetrics, TENANTS_MAX};
