//! Whose turn it is within a tenant, where its users share what it gets.

use alloc::format;
use alloc::string::String;
use muster_policy::users_by_turn;
use muster_state::State;
use muster_types::token::user_of;
use muster_types::{JobId, JobSpec, LogTime};

/// Whose turn it is among the users of a waiting job's tenant, as the end of a sentence; empty where users do not share what the
/// tenant gets.
pub(crate) fn users_note(state: &State, job: JobId, spec: &JobSpec, now: LogTime) -> String {
    let tenant = &spec.tenant;
    if state.policy().policy.user_shares(tenant).is_none() {
        return String::new();
    }
    let users = users_by_turn(state, spec.tier, tenant, now);
    let own = user_of(state.creator(job));
    let Some(place) = users.iter().position(|place| place.user == own) else { return String::new() };
    let by = "by what they have used for their weight (`users` in the policy)";
    match (users.first(), place) {
        (Some(first), 1..) => format!(
            "; users of tenant {tenant} take turns {by}: {} is next, and {} is number {} of {} with waiting {} jobs",
            named(&first.user),
            named(own),
            place + 1,
            users.len(),
            spec.tier
        ),
        _ => format!("; users of tenant {tenant} take turns {by}: {} is next", named(own)),
    }
}

fn named(user: &str) -> &str {
    if user.is_empty() { "who is not known" } else { user }
}
