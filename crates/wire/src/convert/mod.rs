//! From messages to values of `types`, and back.
//!
//! A message is whatever the network brought. It becomes a value or a list of [`Violation`]s whose
//! fields are paths *in the message* (`spec.groups[0].workers`), so that every client can point at
//! what its user wrote. All rules that concern a value alone live in `types`; what is checked here is
//! only what cannot be expressed there: presence, text forms, and sizes that must be bounded before
//! anything is copied.
//!
//! **Invariant:** no message makes a conversion panic or allocate more than a constant times its own
//! size (arrays excepted, whose size is bounded first).

mod admission;
mod affinity;
mod array;
mod booking;
mod capacity;
mod change;
mod container;
mod contract;
mod demand;
mod feature;
mod fleet_hold;
mod health;
mod id;
mod job;
mod licence;
mod node;
mod node_requirements;
mod policy;
mod probe;
mod queue_choices;
mod quota;
mod read;
mod schedule;
mod token;
mod user_shares;
mod value;

use muster_types::{LogTime, Violation};

use crate::closed::{ClosedSet, value_from_proto};
use crate::time::{Duration, Timestamp, duration_from_proto, timestamp_from_proto};

pub use admission::{
    admission_rule_to_proto, approval_to_proto, node_admission_from_proto, node_bounds_from_proto,
    node_bounds_to_proto, revocation_from_proto, revocation_to_proto,
};
pub use affinity::affinity_to_proto;
pub use array::array_to_proto;
pub use booking::{booking_spec_from_proto, booking_spec_to_proto, booking_to_proto};
pub use change::{changes_from_proto, throttle_from_proto};
pub use container::{container_to_proto, launched_container};
pub use contract::{
    artifacts_from_proto, artifacts_to_proto, host_rules_from_proto, host_rules_to_proto, notice_to_proto,
    ulimits_from_proto, ulimits_to_proto, workdir_from_proto, workdir_to_proto,
};
pub use demand::{accelerator_request_from_proto, accelerator_request_to_proto};
pub use feature::{features_from_proto, features_to_proto};
pub use fleet_hold::{fleet_hold_from_proto, hold_target_from_proto, hold_target_to_proto};
pub use health::{
    health_policy_from_proto, health_policy_to_proto, health_report_from_proto, health_report_to_proto,
    repair_from_proto, restriction_to_proto, stop_after_from_proto,
};
pub use id::{array_id, holder_id_from_text, holder_id_to_text, job_id, node_id, request_id, request_id_of};
pub use job::{job_spec_to_proto, jobs_from_proto, submission_to_proto, submissions_from_proto};
pub use node::{
    WorkerReport, foreign_load_from_proto, foreign_load_to_proto, kept_to_proto,
    node_overrides_change_from_proto, node_overrides_to_proto, node_spec_from_proto, node_spec_to_proto,
    worker_report_from_proto, worker_report_to_proto,
};
pub use node_requirements::node_expression_to_proto;
pub use policy::{policy_from_proto, policy_to_proto, policy_update_from_proto};
pub use probe::{
    PROBE_LINKS_MAX, probe_finding_to_proto, probe_link_to_proto, probe_links_from_proto,
    probe_ring_from_proto, probe_ring_to_proto,
};
pub use quota::quota_grant_from_proto;
pub use read::{ReadAsked, UNSAID_OF_LISTS, read_from_proto};
pub use schedule::{
    overlap_rule_from_proto, overlap_rule_to_proto, schedule_from_proto, schedule_key_from_proto,
    schedule_to_proto,
};
pub use token::{TokenRequest, token_from_proto, token_role_from_proto, token_role_to_proto, token_to_proto};
pub(crate) use value::cut;
pub use value::{
    accelerators_from_proto, accelerators_to_proto, device_set_from_proto, device_set_to_proto,
    exit_status_from_proto, exit_status_to_proto, fencing_token_from_proto, fencing_token_to_proto,
};

/// Most violations one refusal carries. Nobody reads more, and a message of four megabytes can break
/// a million rules.
pub const VIOLATIONS_MAX: usize = 256;

/// The violations of one message, bounded by [`VIOLATIONS_MAX`].
#[derive(Default)]
pub(crate) struct Found(Vec<Violation>);

impl Found {
    pub(crate) fn push(&mut self, violation: Violation) {
        if !self.is_full() {
            self.0.push(violation);
        }
    }

    pub(crate) fn extend(&mut self, violations: Vec<Violation>) {
        let free = VIOLATIONS_MAX.saturating_sub(self.0.len());
        self.0.extend(violations.into_iter().take(free));
    }

    /// The value, or `None` with its violations kept.
    pub(crate) fn take<T>(&mut self, result: Result<T, Violation>) -> Option<T> {
        result.map_err(|violation| self.push(violation)).ok()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= VIOLATIONS_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn into_violations(self) -> Vec<Violation> {
        self.0
    }
}

/// One of a closed set, and what stands for it when it is left out or wrong.
pub(crate) fn one_of<T: ClosedSet + Default>(at: &str, field: &str, number: i32, found: &mut Found) -> T {
    let read = value_from_proto(field, number).map_err(|violation| in_message(at, violation));
    found.take(read).flatten().unwrap_or_default()
}

/// A moment that may be left out, and is when it is wrong. `at` and `field` are the path, made only for the violation.
pub(crate) fn moment(at: &str, field: &str, moment: Option<Timestamp>, found: &mut Found) -> Option<LogTime> {
    let read = moment.map(|moment| timestamp_from_proto(field, moment));
    found.take(read?.map_err(|violation| in_message(at, violation))).map(LogTime)
}

/// A span in milliseconds, likewise.
pub(crate) fn span(at: &str, field: &str, span: Option<Duration>, found: &mut Found) -> Option<u64> {
    let read = span.map(|span| duration_from_proto(field, span));
    found.take(read?.map_err(|violation| in_message(at, violation)))
}

fn in_message(at: &str, violation: Violation) -> Violation {
    if at.is_empty() { violation } else { violation.under(at) }
}

/// A user's text in a message to the user: quoted, escaped and short.
pub(crate) fn shown(text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    format!("{short:?}")
}

/// Cuts a list to its bound and reports that; the rules for what is in it then run over bounded input.
pub(crate) fn bound<T>(field: &str, list: &mut Vec<T>, max: usize, found: &mut Found) {
    if list.len() > max {
        found.push(Violation::count(field, list.len(), (0, max), "entries"));
        list.truncate(max);
    }
}

/// `field` below `at`; an empty `at` is the message itself.
pub(crate) fn below(at: &str, field: &str) -> String {
    if at.is_empty() { field.to_owned() } else { format!("{at}.{field}") }
}

#[cfg(test)]
mod tests;
