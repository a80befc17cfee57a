//! gRPC services: limits, forwarding, status mapping.
//!
//! Every replica serves every call. Reads are answered from the local applied state, as fresh as
//! the caller asks (`ReadOptions`); writes and sessions are passed on to the leader, and a change
//! of leader on the way is ridden out here as long as the caller waits, because repeating a write
//! under its request id repeats its answer and not its effect.
//!
//! **Invariant:** decides nothing: a message becomes a command or a refusal that names the field.
//! **Invariant:** who calls is known before anything of the call is looked at, and `access` says whether
//! they may; what it does not name is not served.
//! **Invariant:** what a caller sends is bounded before it is looked at.

mod access;
#[cfg(test)]
mod access_tests;
mod admin_service;
mod admission;
#[cfg(test)]
mod admission_tests;
#[cfg(test)]
mod apart_tests;
mod arrays;
#[cfg(test)]
mod arrays_tests;
mod assembly;
#[cfg(test)]
mod audit_tests;
mod booking_service;
#[cfg(test)]
mod booking_tests;
mod broken_stream;
mod caller;
mod cluster_service;
mod config;
mod controls;
#[cfg(test)]
mod controls_tests;
mod decisions;
mod denied;
mod drill_service;
mod drills;
mod exec;
mod explanation;
mod facts;
mod features;
mod fleet_service;
mod forward;
mod guard;
mod headers;
mod identity;
mod job_filter;
mod job_service;
#[cfg(test)]
mod label_tests;
mod licences;
mod log_service;
mod measure;
mod node_service;
mod notifications;
mod objectives;
mod onward_stream;
mod original;
mod outputs;
mod pages;
mod pieces;
mod policy_service;
mod port_forward;
#[cfg(test)]
mod protocol_tests;
mod queue_service;
mod quota_service;
#[cfg(test)]
mod quota_tests;
mod read;
mod recorded;
mod refusals;
mod regions;
mod render;
mod rendered;
#[cfg(test)]
mod role_object_tests;
#[cfg(test)]
mod role_tests;
#[cfg(test)]
mod sample;
mod schedule_service;
#[cfg(test)]
mod schedule_tests;
mod server;
mod shared;
mod shares;
mod spans;
mod starting;
mod starts;
mod submit_stream;
#[cfg(test)]
mod tests;
mod token_calls;
#[cfg(test)]
mod token_tests;
mod tokens;
mod turns;
mod unwritten;
mod verbs;
mod visibility;
mod warnings;
mod watcher;
mod web;
mod work_times;

pub use access::may_call;
pub use config::ApiConfig;
pub use decisions::DecisionObserver;
pub use denied::{DeniedCallLog, DeniedCalls, DeniedPage, DeniedQuery};
pub use guard::CallLimits;
pub use log_service::RemoteHistory;
pub use objectives::{DAYS_KEPT, ObjectiveAccount};
pub use pages::serve_pages;
pub use recorded::{CallRecorder, RecordedCall, RecordedCalls};
pub use server::{ServeError, serve};
pub use shared::Shared;
pub use work_times::WorkTimes;
