//! Which nodes are admitted and which certificates are revoked: the calls about it, apart from their services.

use muster_decider::Command;
use muster_engine::Engine;
use muster_state::State;
use muster_types::{
    Approval, LogIndex, Name, NodeBounds, Refusal, RefusalCode, RequestId, Requester, Violation,
};
use muster_wire::closed::ClosedSet as _;
use muster_wire::convert::{
    admission_rule_to_proto, approval_to_proto, node_admission_from_proto, node_bounds_from_proto,
    node_spec_to_proto, request_id, revocation_from_proto, revocation_to_proto,
};
use muster_wire::time::log_time;
use muster_wire::{admin, v1};
use tonic::Status;

use crate::read::{freshness, invalid, page_size, written};

/// What an operator says of a node, as far as the message says it.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Approved(NodeBounds),
    /// As it waits, or as it is known.
    AsIs,
    Rejected,
    Cleared,
}

pub(crate) fn wanted(message: &v1::SetNodeApprovalRequest) -> Result<(RequestId, Name, Wanted), Status> {
    use v1::set_node_approval_request::Approval as RequestedApproval;
    let mut violations = Vec::new();
    let id = request_id("request_id", &message.request_id).map_err(|v| violations.push(v)).ok();
    let name = Name::new(&message.name);
    if name.is_none() {
        violations.push(Violation::new("name", format!("must be {}", muster_types::NAME_RULE)));
    }
    let wanted = match &message.approval {
        Some(RequestedApproval::Approve(bounds)) => {
            node_bounds_from_proto("approve", bounds).map(Wanted::Approved)
        }
        Some(RequestedApproval::ApproveAsIs(v1::ApproveAsIs {})) => Ok(Wanted::AsIs),
        Some(RequestedApproval::Reject(v1::RejectNode {})) => Ok(Wanted::Rejected),
        Some(RequestedApproval::Clear(v1::ClearApproval {})) => Ok(Wanted::Cleared),
        None => {
            let text = "must be one of approve, approve_as_is, reject, clear";
            Err(vec![Violation::new("approval", text)])
        }
    };
    match (id, name, wanted) {
        (Some(id), Some(name), Ok(wanted)) => Ok((id, name, wanted)),
        (_, _, wanted) => {
            violations.extend(wanted.err().unwrap_or_default());
            Err(invalid(violations))
        }
    }
}

/// Carries it out, at the leader.
pub(crate) async fn approve(
    engine: &Engine,
    (id, by): (RequestId, &Requester),
    name: &Name,
    wanted: &Wanted,
) -> Result<v1::SetNodeApprovalResponse, Refusal> {
    let view = engine.view();
    let is_repeated = view.request(id).is_some();
    let approval = match wanted {
        // What it says of itself may have changed since the first time.
        Wanted::AsIs if is_repeated => view.approval(name).cloned(),
        Wanted::AsIs => Some(Approval::Approved(as_it_is(engine, &view, name)?)),
        Wanted::Approved(bounds) => Some(Approval::Approved(bounds.clone())),
        Wanted::Rejected => Some(Approval::Rejected),
        Wanted::Cleared => None,
    };
    let command = Command::SetNodeApproval { request: id, by: by.clone(), name: name.clone(), approval };
    let answer = engine.execute(command).await?;
    engine.forget_pending_node(name);
    let approval = engine.view().approval(name).map(|approval| approval_to_proto(name, approval));
    Ok(v1::SetNodeApprovalResponse { approval, freshness: written(engine, answer.at()) })
}

fn as_it_is(engine: &Engine, view: &State, name: &Name) -> Result<NodeBounds, Refusal> {
    if let Some(pending) = engine.pending_node(name) {
        return Ok(NodeBounds::of(&pending.spec));
    }
    let known = view.node_named(name).and_then(|id| view.node(id));
    known.map(|row| NodeBounds::of(&row.spec)).ok_or_else(|| {
        let text = format!(
            "node {name} has not tried to register within the last minutes, and is not known; say --region, --cluster or \
             --devices to admit it before it comes"
        );
        Refusal::new(RefusalCode::NodeNotFound, text).with("node", name)
    })
}

pub(crate) fn admission_command(
    message: &v1::SetNodeAdmissionRequest,
    by: Requester,
) -> Result<Command, Status> {
    let request = request_id("request_id", &message.request_id).map_err(|v| vec![v]);
    let admission = node_admission_from_proto(message.mode, &message.rules);
    match (request, admission) {
        (Ok(request), Ok(admission)) => {
            let expected_version = message.expected_version.map(LogIndex);
            Ok(Command::SetNodeAdmission { request, by, admission: Box::new(admission), expected_version })
        }
        (request, admission) => {
            let mut violations = request.err().unwrap_or_default();
            violations.extend(admission.err().unwrap_or_default());
            Err(invalid(violations))
        }
    }
}

pub(crate) fn admission(
    engine: &Engine,
    message: &v1::GetNodeAdmissionRequest,
) -> Result<v1::GetNodeAdmissionResponse, Status> {
    let after = match message.after.as_str() {
        "" => None,
        text => match Name::new(text) {
            Some(name) => Some(name),
            None => return Err(invalid(vec![Violation::new("after", "must be the name of a node")])),
        },
    };
    let size = page_size(message.page_size)?;
    let view = engine.reading();
    let row = view.admission();
    let mut approvals = view.approvals(after.as_ref()).map(|(name, said)| approval_to_proto(name, said));
    Ok(v1::GetNodeAdmissionResponse {
        mode: row.map_or_else(|| engine.usual_admission(), |row| row.admission.mode).number(),
        is_set: row.is_some(),
        version: row.map_or(0, |row| row.version.0),
        set_time: row.and_then(|row| log_time(row.set_at)),
        rules: row.iter().flat_map(|row| &row.admission.rules).map(admission_rule_to_proto).collect(),
        approvals: approvals.by_ref().take(size).collect(),
        has_more: approvals.next().is_some(),
        freshness: Some(freshness(engine, &view)),
    })
}

pub(crate) fn pending(engine: &Engine) -> v1::ListPendingNodesResponse {
    let nodes = engine.pending_nodes().into_iter().map(|node| v1::PendingNode {
        description: Some(node_spec_to_proto(&node.spec)),
        first_seen_time: log_time(node.first_seen),
        last_seen_time: log_time(node.last_seen),
        reason: node.reason,
    });
    v1::ListPendingNodesResponse { nodes: nodes.collect() }
}

pub(crate) fn revoke_command(
    message: &admin::RevokeCertificateRequest,
    by: Requester,
) -> Result<Command, Status> {
    let request = request_id("request_id", &message.request_id).map_err(|v| vec![v]);
    let certificate = message.certificate.clone().unwrap_or_default();
    match (request, revocation_from_proto("certificate", &certificate)) {
        (Ok(request), Ok((serial, revocation))) => {
            Ok(Command::RevokeCertificate { request, by, serial, revocation })
        }
        (request, certificate) => {
            let mut violations = request.err().unwrap_or_default();
            violations.extend(certificate.err().unwrap_or_default());
            Err(invalid(violations))
        }
    }
}

pub(crate) fn revoked(engine: &Engine) -> admin::ListRevokedCertificatesResponse {
    let view = engine.reading();
    let certificates = view.revocations().map(|(serial, row)| revocation_to_proto(serial, row));
    admin::ListRevokedCertificatesResponse {
        certificates: certificates.collect(),
        freshness: Some(freshness(engine, &view)),
    }
}
