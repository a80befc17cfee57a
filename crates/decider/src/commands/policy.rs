//! The scheduling policy: what every one must pass, and how it is set.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use muster_journal::{Decision, RequestKey, canonical, hash};
use muster_state::State;
use muster_types::policy::{Policy, PolicyUpdate};
use muster_types::{JobId, LogIndex, Refusal, RefusalCode, RequestId, Requester, Violation};

use crate::commands::answer::{Answer, VIOLATIONS_MAX, repeated};
use crate::commands::submit::SUBMISSION_BYTES_MAX;
use crate::settle::job::settle_many;
use crate::speculation::Speculation;

pub(super) fn set_policy(
    speculation: &mut Speculation,
    (request, by): (RequestId, &Requester),
    policy: &Policy,
    expected_version: Option<LogIndex>,
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("policy", policy, expected_version)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    check_policy(speculation.state(), policy, expected_version)?;
    Ok(put_in_force(speculation, (key, by), policy.clone()))
}

/// The request is what was asked, and not what comes of it: repeated later, it finds another policy in force.
pub(super) fn update_policy(
    speculation: &mut Speculation,
    (request, by): (RequestId, &Requester),
    update: &PolicyUpdate,
    expected_version: Option<LogIndex>,
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("policy update", update, expected_version)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let policy = updated_policy(speculation.state(), update, expected_version)?;
    Ok(put_in_force(speculation, (key, by), policy))
}

fn put_in_force(
    speculation: &mut Speculation,
    (request, by): (RequestKey, &Requester),
    policy: Policy,
) -> Answer {
    let before = speculation.state().policy().policy.clone();
    // Where a promise is for nodes that its gang may not be on any more, it is dropped.
    let isolation_changes =
        before.required_isolation != policy.required_isolation || !before.has_same_partitions(&policy);
    let order_changes = before.order != policy.order
        || before.backfill != policy.backfill
        || deadline_rights_change(&before, &policy);
    let at = speculation.push(Decision::PolicySet { request, by: by.clone(), policy: Box::new(policy) });
    if isolation_changes {
        let promised: Vec<JobId> = speculation.state().promised().collect();
        settle_many(speculation, promised);
    }
    if order_changes {
        speculation.leave_turns_stale();
    }
    Answer::Done { at }
}

/// Whether some tenant's deadlines begin or cease to count for the order of the jobs that wait.
fn deadline_rights_change(before: &Policy, after: &Policy) -> bool {
    let mut tenants = before.tenants.keys().chain(after.tenants.keys());
    tenants.any(|tenant| before.rights(tenant).deadlines != after.rights(tenant).deadlines)
}

/// The policy that an update would put in force, checked; also the check without a change.
///
/// # Errors
/// The refusal.
pub fn updated_policy(
    state: &State,
    update: &PolicyUpdate,
    expected_version: Option<LogIndex>,
) -> Result<Policy, Refusal> {
    let in_force = &state.policy().policy;
    // A version that is not in force is reported first: what else is wrong may follow from it.
    check_version(state, expected_version)?;
    let policy = update.apply(in_force).map_err(|mut found| {
        found.truncate(VIOLATIONS_MAX);
        Refusal::fields(found)
    })?;
    check_policy(state, &policy, expected_version)?;
    Ok(policy)
}

/// What every policy must pass after its own rules; also the check without a change.
///
/// # Errors
/// The refusal.
pub fn check_policy(
    state: &State,
    policy: &Policy,
    expected_version: Option<LogIndex>,
) -> Result<(), Refusal> {
    let bytes = canonical(policy).len();
    if bytes > SUBMISSION_BYTES_MAX {
        let text = format!("must be at most {SUBMISSION_BYTES_MAX} bytes, got {bytes}");
        return Err(Refusal::fields(alloc::vec![Violation::new("policy", text)]));
    }
    check_version(state, expected_version)?;
    check_roles_in_use(state, policy)
}

/// A role that tokens have stays, and stays a part of the same built-in role: what they may would change behind their makers.
/// Which sign-ins name it, the configurations of replicas say; those are refused without it.
fn check_roles_in_use(state: &State, policy: &Policy) -> Result<(), Refusal> {
    if state.policy().policy.roles == policy.roles {
        return Ok(());
    }
    let (now, mut found) = (state.log_time(), Vec::new());
    for (id, token) in state.tokens().filter(|(_, token)| token.is_live(now)) {
        let grant = &token.grant;
        // One that was refused before as well is in nobody's way.
        let Some(own) = grant.own_role.as_ref().filter(|_| state.knows_role(grant)) else { continue };
        if policy.own_role(own, grant.role).is_none() && found.len() < VIOLATIONS_MAX {
            let text = format!(
                "token {} ({id}) has this role as a part of {}: revoke it first with `muster token revoke`",
                grant.name, grant.role
            );
            found.push(Violation::new(format!("policy.roles.{own}"), text));
        }
    }
    if found.is_empty() { Ok(()) } else { Err(Refusal::fields(found)) }
}

fn check_version(state: &State, expected_version: Option<LogIndex>) -> Result<(), Refusal> {
    let current = state.policy().version;
    if let Some(expected) = expected_version.filter(|expected| *expected != current) {
        let text = format!(
            "the policy is at version {current}, not {expected}; read it again and apply the change to that"
        );
        return Err(Refusal::new(RefusalCode::PolicyChanged, text).with("version", current));
    }
    Ok(())
}
