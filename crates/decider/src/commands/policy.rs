//! The scheduling policy: what every one must pass, and how it is set.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use muster_journal::{Decision, RequestKey, canonical, hash};
use muster_state::State;
use muster_types::policy::Policy;
use muster_types::{JobId, LogIndex, Refusal, RefusalCode, RequestId, Violation};

use crate::commands::answer::{Answer, repeated};
use crate::commands::submit::SUBMISSION_BYTES_MAX;
use crate::settle::job::settle_many;
use crate::speculation::Speculation;

pub(super) fn set_policy(
    speculation: &mut Speculation,
    request: RequestId,
    policy: &Policy,
    expected_version: Option<LogIndex>,
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("policy", policy, expected_version)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    check_policy(speculation.state(), policy, expected_version)?;
    let before = speculation.state().policy().policy.clone();
    let at = speculation.push(Decision::PolicySet { request: key, policy: Box::new(policy.clone()) });
    if before.required_isolation != policy.required_isolation {
        let promised: Vec<JobId> = speculation.state().promised().collect();
        settle_many(speculation, promised);
    }
    if before.order != policy.order || before.backfill != policy.backfill {
        speculation.leave_turns_stale();
    }
    Ok(Answer::Done { at })
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
    let current = state.policy().version;
    if let Some(expected) = expected_version.filter(|expected| *expected != current) {
        let text = format!(
            "the policy is at version {current}, not {expected}; read it again and apply the change to that"
        );
        return Err(Refusal::new(RefusalCode::PolicyChanged, text).with("version", current));
    }
    Ok(())
}
