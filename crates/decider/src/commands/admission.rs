//! Who may take part: nodes that register, and certificates that are not good any more.

use alloc::boxed::Box;
use alloc::format;
use muster_journal::{Decision, RequestKey, hash};
use muster_state::NotAdmitted;
use muster_types::{
    AdmissionMode, Approval, CertificateSerial, LogIndex, Name, NodeAdmission, NodeBounds, NodeSpec, Refusal,
    RefusalCode, RequestId, Requester, Revocation, limits,
};

use crate::commands::answer::{Answer, repeated};
use crate::commands::schedules::suspend_those_of;
use crate::speculation::Speculation;

/// Whether a node may register as it describes itself.
///
/// # Errors
/// With what an operator can do.
pub(super) fn check(speculation: &Speculation, spec: &NodeSpec) -> Result<(), Refusal> {
    let state = speculation.state();
    state.admits(spec, speculation.usual_admission()).map_err(|why| refused(spec, &why))
}

/// A node that is about to come back with fewer devices may have again what it had: a device that was taken out is put
/// in again.
pub(super) fn keep_what_it_had(speculation: &mut Speculation, known: &NodeSpec, spec: &NodeSpec) {
    let state = speculation.state();
    let mode = state.admission().map_or_else(|| speculation.usual_admission(), |row| row.admission.mode);
    let mut rules = state.admission().into_iter().flat_map(|row| &row.admission.rules);
    let is_covered = rules.any(|rule| rule.covers(&spec.name));
    let is_held_to = mode != AdmissionMode::Open && !is_covered && state.approval(&spec.name).is_none();
    if !is_held_to || spec.device_count() >= known.device_count() {
        return;
    }
    let approval = Some(Approval::Approved(NodeBounds::of(known)));
    let decision = Decision::NodeApprovalSet {
        request: None,
        by: Requester::default(),
        name: spec.name.clone(),
        approval,
    };
    if speculation.state().check(&decision).is_ok() {
        speculation.push(decision);
    }
}

/// Whether a node that is there already may go on: it is asked for less than one that comes.
pub(super) fn check_standing(speculation: &Speculation, spec: &NodeSpec) -> Result<(), Refusal> {
    match speculation.state().approval(&spec.name) {
        Some(Approval::Rejected) => Err(refused(spec, &NotAdmitted::Rejected)),
        _ => Ok(()),
    }
}

fn refused(spec: &NodeSpec, why: &NotAdmitted) -> Refusal {
    let name = &spec.name;
    let text = match why {
        NotAdmitted::Unknown => format!(
            "nobody has approved node {name}; an operator sees it with `muster node pending` and admits it with `muster \
             node approve {name}`"
        ),
        NotAdmitted::Rejected => {
            format!("an operator has rejected node {name}; `muster node approve {name}` takes that back")
        }
        NotAdmitted::Differs(text) => format!(
            "node {name} is not admitted as it describes itself: {text}; if that is right, an operator admits it with \
             `muster node approve {name}`"
        ),
    };
    Refusal::new(RefusalCode::NodeNotAdmitted, text).with("node", name)
}

fn full(what: &str, limit: &'static str, max: usize) -> Refusal {
    let text = format!("the cluster holds as many {what} as it may: {max}");
    Refusal::new(RefusalCode::StateFull, text).with("limit", limit).with("held_max", max)
}

pub(super) fn set(
    speculation: &mut Speculation,
    (request, by): (RequestId, &Requester),
    admission: &NodeAdmission,
    expected_version: Option<LogIndex>,
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("node admission", admission, expected_version)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let violations = admission.violations();
    if !violations.is_empty() {
        return Err(Refusal::fields(violations));
    }
    let current = speculation.state().admission().map_or(LogIndex::ZERO, |row| row.version);
    if let Some(expected) = expected_version.filter(|expected| *expected != current) {
        let text = format!(
            "the admission of nodes is at version {current}, not {expected}; read it again and apply the change to that"
        );
        return Err(Refusal::new(RefusalCode::PolicyChanged, text).with("version", current));
    }
    let decision =
        Decision::NodeAdmissionSet { request: key, by: by.clone(), admission: Box::new(admission.clone()) };
    Ok(Answer::Done { at: speculation.push(decision) })
}

pub(super) fn approve(
    speculation: &mut Speculation,
    (request, by): (RequestId, &Requester),
    name: &Name,
    approval: Option<&Approval>,
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("node approval", name, approval)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let violations = approval.map(Approval::violations).unwrap_or_default();
    if !violations.is_empty() {
        return Err(Refusal::fields(violations));
    }
    let decision = Decision::NodeApprovalSet {
        request: Some(key),
        by: by.clone(),
        name: name.clone(),
        approval: approval.cloned(),
    };
    if speculation.state().check(&decision).is_err() {
        return Err(full("approvals of nodes", "approvals_max", limits::APPROVALS_MAX));
    }
    Ok(Answer::Done { at: speculation.push(decision) })
}

/// Saying it again changes nothing.
pub(super) fn revoke(
    speculation: &mut Speculation,
    (request, by): (RequestId, &Requester),
    serial: CertificateSerial,
    revocation: &Revocation,
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("revoke", serial, revocation)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let violations = revocation.violations();
    if !violations.is_empty() {
        return Err(Refusal::fields(violations));
    }
    let decision =
        Decision::CertificateRevoked { request: key, by: by.clone(), serial, revocation: revocation.clone() };
    if speculation.state().check(&decision).is_err() {
        return Err(full("revoked certificates", "revocations_max", limits::REVOCATIONS_MAX));
    }
    let at: LogIndex = speculation.push(decision);
    let holder = revocation.holder.as_str();
    if !holder.is_empty() {
        // Whether it has another certificate, the state does not know.
        let why = format!("certificate {serial} of {holder}, its owner, was revoked");
        suspend_those_of(speculation, |owner| owner == holder, &why);
    }
    Ok(Answer::Done { at })
}
