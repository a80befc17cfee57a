//! The scheduling policy: what every one must pass, and how it is set.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use muster_journal::{Decision, RequestKey, canonical, hash};
use muster_state::State;
use muster_types::policy::{Policy, PolicyDraft};
use muster_types::{JobId, LogIndex, Refusal, RefusalCode, RequestId, Violation};

use crate::commands::answer::{Answer, repeated};
use crate::commands::submit::SUBMISSION_BYTES_MAX;
use crate::settle::job::settle_many;
use crate::speculation::Speculation;

/// The format that has the second record of a policy: [`Decision::PolicyRulesSet`].
const RULES_FORMAT: u16 = 5;

pub(super) fn set_policy(
    speculation: &mut Speculation,
    request: RequestId,
    policy: &Policy,
    expected_version: Option<LogIndex>,
) -> Result<Answer, Refusal> {
    let rules = policy.rules();
    let key = RequestKey { id: request, fingerprint: hash(&("policy", policy, &rules, expected_version)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let second = Decision::PolicyRulesSet { rules: Box::new(rules) };
    let can_say = speculation.can_say(&second);
    check_policy_for(speculation.state(), policy, expected_version, can_say)?;
    let before = speculation.state().policy().policy.clone();
    let at = speculation.push(Decision::PolicySet { request: key, policy: Box::new(policy.as_recorded()) });
    if can_say {
        speculation.push(second);
    }
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
    check_policy_for(state, policy, expected_version, RULES_FORMAT <= state.format())
}

/// The same; `has_rules` tells whether the format has the second record of a policy.
fn check_policy_for(
    state: &State,
    policy: &Policy,
    expected_version: Option<LogIndex>,
    has_rules: bool,
) -> Result<(), Refusal> {
    let rules = policy.rules();
    let bytes = canonical(policy).len() + canonical(&rules).len();
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
    // What such a cluster shows may be set again as it is.
    let known = [PolicyDraft::default().rules(), state.policy().policy.rules()];
    if !has_rules && !known.contains(&rules) {
        let text = "rights of tenants, required isolation, backoff, endOverrunners and deadlines of starts and stops need record format 5; \
                    upgrade every replica first";
        return Err(Refusal::new(RefusalCode::FormatNotActive, text).with("needed", RULES_FORMAT));
    }
    Ok(())
}
