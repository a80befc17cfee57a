//! Whose turn it is within a tenant, where its users share what it gets.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_policy::{UserPlace, users_by_turn};
use muster_state::State;
use muster_types::token::user_of;
use muster_types::{JobId, JobSpec, LogTime, Name, PriorityTier};

/// The users of a tenant with jobs that wait for capacity, at most `count`: by tier from the highest, and in each in the order of their
/// turns. None where users do not share what the tenant gets.
#[must_use]
pub fn users_of_queue(
    state: &State,
    tenant: &Name,
    now: LogTime,
    count: usize,
) -> Vec<(PriorityTier, UserPlace)> {
    let mut users = Vec::new();
    if state.policy().policy.user_shares(tenant).is_none() {
        return users;
    }
    for tier in PriorityTier::ALL.into_iter().rev() {
        let of_tier = users_by_turn(state, tier, tenant, now).into_iter().map(|place| (tier, place));
        users.extend(of_tier.take(count.saturating_sub(users.len())));
    }
    users
}

/// How far the turn of a waiting job's user is among the users of its tenant, as the end of a sentence; empty where users do not share
/// what the tenant gets. It names nobody: explanations are shown to people who do not see the jobs of the tenant.
pub(crate) fn turn_note(state: &State, job: JobId, spec: &JobSpec, now: LogTime) -> String {
    let tenant = &spec.tenant;
    if state.policy().policy.user_shares(tenant).is_none() {
        return String::new();
    }
    let users = users_by_turn(state, spec.tier, tenant, now);
    let own = user_of(state.creator(job));
    let Some(place) = users.iter().position(|place| place.user == own) else { return String::new() };
    let turn = match place {
        0 => String::from("it is the turn of its user"),
        before => format!(
            "it is the turn of another, and its user is number {} of {} with {} jobs that wait",
            before + 1,
            users.len(),
            spec.tier
        ),
    };
    format!(
        "; users of tenant {tenant} take turns by what they have used for their weight (`users` in the policy): {turn}"
    )
}
