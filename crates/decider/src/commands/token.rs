//! Bearer tokens: made, and revoked.

use alloc::boxed::Box;
use alloc::format;
use muster_journal::{Decision, RequestKey, hash};
use muster_state::{GuardError, State};
use muster_types::token::{is_by_token, lifetime_violation};
use muster_types::{
    Name, Refusal, RefusalCode, RequestId, Requester, TokenGrant, TokenId, Violation, limits,
};

use crate::commands::answer::{Answer, repeated};
use crate::commands::command::TokenOrder;
use crate::commands::schedules::suspend_those_of;
use crate::settle::retention::pruning_for_request;
use crate::speculation::Speculation;

/// Who is bound to a tenant makes tokens for it and those below it, and none that can make tokens.
fn check_reach(state: &State, order: &TokenOrder) -> Result<(), Refusal> {
    let Some(own) = &order.acts_for else { return Ok(()) };
    if state.may_make_token(own, &order.grant) {
        return Ok(());
    }
    let text = format!(
        "{} makes tokens of the roles viewer and submitter for tenant {own} and those below it, and no others",
        order.by
    );
    Err(Refusal::new(RefusalCode::PermissionDenied, text).with("tenant", own))
}

/// The tenant is one that the policy lists: a token of any other is not accepted.
fn check_tenant(state: &State, grant: &TokenGrant) -> Result<(), Refusal> {
    match &grant.tenant {
        Some(tenant) if !state.policy().policy.tenants.contains_key(tenant) => {
            let text = format!("the policy lists no tenant {tenant}; add it with `muster policy set`");
            Err(Refusal::fields(alloc::vec![Violation::new("tenant", text)]))
        }
        _ => Ok(()),
    }
}

/// The role is one that the policy defines, as a part of the built-in one that the grant names. What a tenant's administrator may
/// grant follows from the built-in one: a part of it is never more.
fn check_role(state: &State, grant: &TokenGrant) -> Result<(), Refusal> {
    match &grant.own_role {
        Some(own) if !state.knows_role(grant) => {
            let text = format!(
                "the policy defines no role {own} that is a part of {}; see `roles` of `muster policy show`",
                grant.role
            );
            Err(Refusal::fields(alloc::vec![Violation::new("own_role", text)]))
        }
        _ => Ok(()),
    }
}

pub(super) fn create(speculation: &mut Speculation, order: &TokenOrder) -> Result<Answer, Refusal> {
    let TokenOrder { request, by, token, grant, lifetime_ms, .. } = order;
    let key = RequestKey { id: *request, fingerprint: hash(&("create token", token, grant, lifetime_ms)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let mut violations = grant.violations();
    violations.extend(lifetime_violation(*lifetime_ms));
    if !violations.is_empty() {
        return Err(Refusal::fields(violations));
    }
    let state = speculation.state();
    check_reach(state, order)?;
    check_tenant(state, grant)?;
    check_role(state, grant)?;
    let decision = Decision::TokenCreated {
        request: key,
        by: by.clone(),
        token: *token,
        grant: Box::new(grant.clone()),
        lifetime_ms: *lifetime_ms,
    };
    state.check(&decision).map_err(|error| match error {
        GuardError::TokenExists => exists(state, order),
        _ => full(state, grant),
    })?;
    // Tokens can be made and revoked without end, and each request is remembered: those of a tenant are counted.
    let pruning = pruning_for_request(speculation, order.acts_for.is_some(), 0)?;
    if let Some(own) = &order.acts_for {
        speculation.count_request([own])?;
    }
    pruning.carry_out(speculation);
    Ok(Answer::Done { at: speculation.push(decision) })
}

/// An id that is taken is that of another client's token, so the refusal does not name that one.
fn exists(state: &State, order: &TokenOrder) -> Refusal {
    let grant = &order.grant;
    match state.token_named(grant.tenant.as_ref(), &grant.name) {
        Some(known) => {
            let text = format!("there is a token {} already; revoke it, or choose another name", grant.name);
            Refusal::new(RefusalCode::TokenExists, text).with("token_id", known)
        }
        None => Refusal::new(RefusalCode::TokenExists, "the id of the token is taken; make another secret"),
    }
}

fn full(state: &State, grant: &TokenGrant) -> Refusal {
    let tenant = grant.tenant.as_ref();
    let of_tenant = state.token_count_of(tenant);
    let (held, limit, max) = if of_tenant >= limits::TENANT_TOKENS_MAX {
        (of_tenant, "tenant_tokens_max", limits::TENANT_TOKENS_MAX)
    } else {
        (state.live_token_count(), "tokens_max", limits::TOKENS_MAX)
    };
    let whose = tenant.map_or_else(|| "of no tenant".into(), |tenant| format!("of tenant {tenant}"));
    let text = match limit {
        "tenant_tokens_max" => format!("there are as many tokens {whose} as there may be: {max}; revoke one"),
        _ => format!("the cluster holds as many tokens as it may: {max}; revoke one"),
    };
    let refusal = Refusal::new(RefusalCode::StateFull, text);
    let refusal = refusal.with("limit", limit).with("held", held).with("held_max", max);
    match tenant {
        Some(tenant) => refusal.with("tenant", tenant),
        None => refusal,
    }
}

pub(super) fn revoke(
    speculation: &mut Speculation,
    request: RequestId,
    by: &Requester,
    acts_for: Option<&Name>,
    token: TokenId,
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("revoke token", token)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let state = speculation.state();
    // Of another tenant's tokens nobody is told whether they exist.
    let is_reached = state.token(token).is_some_and(|row| {
        acts_for.is_none_or(|own| state.may_revoke_token(own, &by.name, token, &row.grant))
    });
    let decision = Decision::TokenRevoked { request: key, by: by.clone(), token };
    if !is_reached || state.check(&decision).is_err() {
        let refusal = Refusal::new(RefusalCode::TokenNotFound, format!("there is no token {token}"));
        return Err(refusal.with("token_id", token));
    }
    // Nobody who takes a token back is held up. There are no more of these requests than of those that made the tokens.
    pruning_for_request(speculation, false, 0)?.carry_out(speculation);
    let at = speculation.push(decision);
    let why = format!("token {token} of its owner was revoked");
    suspend_those_of(speculation, |owner| is_by_token(owner, token), &why);
    Ok(Answer::Done { at })
}
