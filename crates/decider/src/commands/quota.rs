//! Quota for some time: asked for, answered, and granted.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use muster_journal::{Decision, RequestKey, hash};
use muster_state::{GrantObstacle, GuardError, QuotaGrantStatus, State};
use muster_types::policy::{GrantFault, QuotaGrant, QuotaSource, reason_violation};
use muster_types::{LogIndex, LogTime, Name, Refusal, RefusalCode, Requester, Violation, limits};

use crate::commands::answer::{Answer, repeated};
use crate::commands::command::{QuotaAnswerOrder, QuotaOrder};
use crate::settle::retention::pruning_for_request;
use crate::speculation::Speculation;

/// Whether a grant names a type that the fleet or the policy knows.
fn is_known(state: &State, grant: &QuotaGrant) -> bool {
    let (kind, region) = (&grant.kind, grant.region.as_ref());
    let named = state.policy().policy.named();
    let is_named = match region {
        Some(region) => named.has_kind_in(kind, region),
        None => named.has_kind(kind),
    };
    is_named || state.registered_milli(kind, region) > 0
}

/// What every request for quota and every grant must keep, by itself and on this fleet and policy.
fn check_fields(state: &State, now: LogTime, grant: &QuotaGrant) -> Result<(), Refusal> {
    let mut violations = grant.violations();
    violations.extend(grant.end_violation(now));
    if !state.policy().policy.tenants.contains_key(&grant.tenant) {
        let text = format!("the policy lists no tenant {}; add it with `muster policy set`", grant.tenant);
        violations.push(Violation::new("tenant", text));
    }
    if !is_known(state, grant) {
        let place = grant.region.as_ref().map(|region| format!(" in region {region}")).unwrap_or_default();
        let text =
            format!("no node has accelerators of type {}{place}, and the policy names none", grant.kind);
        violations.push(Violation::new("type", text));
    }
    if violations.is_empty() { Ok(()) } else { Err(fields(violations)) }
}

/// A refusal of fields of a grant, by their paths in the request.
fn fields(violations: Vec<Violation>) -> Refusal {
    Refusal::fields(violations.into_iter().map(|violation| violation.under("grant")).collect())
}

/// Who is bound to a tenant asks for it and for those below it.
fn check_asker(state: &State, order: &QuotaOrder) -> Result<(), Refusal> {
    let (tenant, Some(own)) = (&order.grant.tenant, &order.acts_for) else { return Ok(()) };
    if state.policy().policy.ancestry(tenant).any(|above| above == own) {
        return Ok(());
    }
    let text = format!("{} acts for tenant {own} and those below it, not for {tenant}", order.by);
    Err(Refusal::new(RefusalCode::PermissionDenied, text).with("tenant", tenant))
}

/// Who is bound to a tenant grants to those below it.
fn check_giver(state: &State, giver: Option<&Name>, tenant: &Name) -> Result<(), Refusal> {
    let Some(own) = giver else { return Ok(()) };
    if state.may_give_quota(own, tenant) {
        return Ok(());
    }
    let text = format!(
        "an administrator of tenant {own} grants quota to the tenants below {own}; that of {tenant} is for the \
         administrators of a tenant above it, and for the operators of the cluster"
    );
    Err(Refusal::new(RefusalCode::PermissionDenied, text).with("tenant", tenant))
}

/// The refusal of a grant that is not made.
fn refusal(grant: &QuotaGrant, giver: Option<&Name>, obstacle: GrantObstacle) -> Refusal {
    let QuotaGrant { tenant, kind, .. } = grant;
    let place = grant.region.as_ref().map(|region| format!(" in region {region}")).unwrap_or_default();
    let asked = grant.amount_milli;
    let unavailable = |text: String, source: &QuotaSource| {
        Refusal::new(RefusalCode::QuotaNotAvailable, text)
            .with("tenant", tenant)
            .with("from", &source.tenant)
            .with("nominal_milli", source.nominal_milli)
            .with("given_milli", source.given_milli)
            .with("asked_milli", asked)
    };
    match obstacle {
        GrantObstacle::Fault(GrantFault::TenantUnknown) => {
            let text = GrantFault::TenantUnknown.to_string();
            fields(vec![Violation::new("tenant", text)])
        }
        GrantObstacle::Fault(GrantFault::AboveSource(source)) => {
            let fault = GrantFault::AboveSource(source.clone());
            let text = format!(
                "{asked} thousandths of {kind}{place} for {tenant} are more than there is to grant: {fault}"
            );
            unavailable(text, &source)
        }
        GrantObstacle::Fault(fault @ GrantFault::OtherRegions { .. }) => {
            fields(vec![Violation::new("region", fault.to_string())])
        }
        GrantObstacle::Fault(fault @ GrantFault::TooLarge) => {
            fields(vec![Violation::new("amount_milli", fault.to_string())])
        }
        GrantObstacle::NothingToGive => {
            let from = giver.unwrap_or(tenant).clone();
            let text = format!(
                "tenant {from} has no quota of {kind}{place} that it could grant from; an operator can grant it"
            );
            unavailable(text, &QuotaSource { tenant: from, nominal_milli: 0, given_milli: 0 })
        }
        GrantObstacle::Outlives { until, source } => {
            let fault = GrantFault::AboveSource(source.clone());
            let text = format!(
                "it fits until {until} and not to {}: a grant that it comes out of ends then, and after that {fault}",
                grant.until
            );
            unavailable(text, &source).with("until_ms", until.0)
        }
        GrantObstacle::Full { limit, held, most } => {
            let text = format!("there are as many grants of quota in force as there may be: {most}; end one");
            full(text, (limit, held, most), tenant)
        }
    }
}

fn full(text: String, (limit, held, most): (&'static str, usize, usize), tenant: &Name) -> Refusal {
    let refusal = Refusal::new(RefusalCode::StateFull, text);
    refusal.with("limit", limit).with("held", held).with("held_max", most).with("tenant", tenant)
}

/// The refusal of a record that is not an obstacle of its grant.
fn broken(state: &State, (by, tenant): (&Requester, &Name), error: GuardError) -> Refusal {
    match error {
        GuardError::Limit => {
            let of_tenant = state.open_quota_requests(tenant);
            let of_user = state.open_quota_requests_of_user(&by.name);
            let all = ("quota_requests_max", state.live_quota_rows(), limits::QUOTA_REQUESTS_MAX);
            let (limit, held, most) = [
                ("tenant_quota_requests_max", of_tenant, limits::TENANT_QUOTA_REQUESTS_MAX),
                ("user_quota_requests_max", of_user, limits::USER_QUOTA_REQUESTS_MAX),
            ]
            .into_iter()
            .find(|(_, held, most)| held >= most)
            .unwrap_or(all);
            let text = format!(
                "there are as many open requests for quota as there may be: {most}; deny or approve one first"
            );
            full(text, (limit, held, most), tenant)
        }
        other => Refusal::new(RefusalCode::Internal, format!("the record was refused: {other:?}")),
    }
}

/// What keeps a request from being recorded; also the check without a change.
///
/// # Errors
/// The refusal.
pub fn check_quota_request(state: &State, now: LogTime, order: &QuotaOrder) -> Result<(), Refusal> {
    check_asker(state, order)?;
    check_fields(state, now, &order.grant)
}

/// What keeps a grant from being made; also the check without a change.
///
/// # Errors
/// The refusal.
pub fn check_quota_grant(state: &State, now: LogTime, order: &QuotaOrder) -> Result<(), Refusal> {
    let giver = order.acts_for.as_ref();
    check_fields(state, now, &order.grant)?;
    check_giver(state, giver, &order.grant.tenant)?;
    match state.grant_obstacle(&order.grant, giver) {
        Some(obstacle) => Err(refusal(&order.grant, giver, obstacle)),
        None => Ok(()),
    }
}

/// Records a decision that somebody asked for. Requests of tenants are counted: each is remembered.
fn push(
    speculation: &mut Speculation,
    decision: Decision,
    (by, acts_for, tenant): (&Requester, Option<&Name>, &Name),
) -> Result<Answer, Refusal> {
    let state = speculation.state();
    let checked = state.check_next(decision.clone()).map_err(|error| {
        let found = obstacle_to(state, &decision);
        found.unwrap_or_else(|| broken(state, (by, tenant), error))
    })?;
    let pruning = pruning_for_request(speculation, acts_for.is_some(), 0)?;
    if let Some(own) = acts_for {
        speculation.count_request([own])?;
    }
    pruning.carry_out(speculation);
    // Where nothing was pruned the guard does not look again: with very many tenants a look takes long.
    Ok(Answer::Done { at: speculation.push_checked(checked) })
}

/// The refusal of a grant that the guard refused, where it can be said what the grant lacks.
fn obstacle_to(state: &State, decision: &Decision) -> Option<Refusal> {
    let (grant, giver) = match decision {
        Decision::QuotaGranted { grant, giver, .. } => (&**grant, giver.as_ref()),
        Decision::QuotaAnswered { id, giver, approved: true, .. } => {
            (&state.quota_grant(*id)?.grant, giver.as_ref())
        }
        _ => return None,
    };
    let obstacle = state.grant_obstacle(grant, giver)?;
    Some(refusal(grant, giver, obstacle))
}

pub(super) fn request(speculation: &mut Speculation, order: &QuotaOrder) -> Result<Answer, Refusal> {
    let QuotaOrder { request, by, acts_for, grant } = order;
    let key = RequestKey { id: *request, fingerprint: hash(&("request quota", grant)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    check_quota_request(speculation.state(), speculation.now(), order)?;
    let decision = Decision::QuotaRequested { request: key, by: by.clone(), grant: Box::new(grant.clone()) };
    push(speculation, decision, (by, acts_for.as_ref(), &grant.tenant))
}

pub(super) fn grant(speculation: &mut Speculation, order: &QuotaOrder) -> Result<Answer, Refusal> {
    let QuotaOrder { request, by, acts_for, grant } = order;
    let key = RequestKey { id: *request, fingerprint: hash(&("grant quota", grant)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    // Whether it can be made is the guard's to say, once.
    check_fields(speculation.state(), speculation.now(), grant)?;
    check_giver(speculation.state(), acts_for.as_ref(), &grant.tenant)?;
    let decision = Decision::QuotaGranted {
        request: key,
        by: by.clone(),
        giver: acts_for.clone(),
        grant: Box::new(grant.clone()),
    };
    push(speculation, decision, (by, acts_for.as_ref(), &grant.tenant))
}

/// Of requests of other tenants nobody is told whether they exist.
fn not_found(id: LogIndex) -> Refusal {
    let text = format!("there is no request for quota {id} that you may answer");
    Refusal::new(RefusalCode::QuotaRequestNotFound, text).with("quota_request_id", id)
}

pub(super) fn answer(speculation: &mut Speculation, order: &QuotaAnswerOrder) -> Result<Answer, Refusal> {
    let QuotaAnswerOrder { request, by, acts_for, id, approved, reason } = order;
    let key = RequestKey { id: *request, fingerprint: hash(&("answer quota", id, approved, reason)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let violations: Vec<Violation> = reason_violation("reason", reason).into_iter().collect();
    if !violations.is_empty() {
        return Err(Refusal::fields(violations));
    }
    let (state, now, giver) = (speculation.state(), speculation.now(), acts_for.as_ref());
    let row = state.quota_grant(*id).ok_or_else(|| not_found(*id))?;
    let tenant = row.grant.tenant.clone();
    let is_seen = |own: &Name| state.policy().policy.ancestry(&tenant).any(|above| above == own);
    if !giver.is_none_or(is_seen) {
        return Err(not_found(*id));
    }
    check_giver(state, giver, &tenant)?;
    let is_open = match row.status {
        QuotaGrantStatus::Requested => true,
        QuotaGrantStatus::Granted => !approved,
        _ => false,
    };
    if !is_open {
        let status = row.status.name();
        let text = format!("request for quota {id} is {status} already");
        let refusal = Refusal::new(RefusalCode::QuotaRequestAnswered, text);
        return Err(refusal.with("quota_request_id", id).with("status", status));
    }
    if *approved {
        check_fields(state, now, &row.grant)?;
    }
    let decision = Decision::QuotaAnswered {
        request: key,
        by: by.clone(),
        id: *id,
        giver: acts_for.clone(),
        approved: *approved,
        reason: reason.clone(),
    };
    push(speculation, decision, (by, giver, &tenant))
}
