//! Which nodes are admitted, and which certificates are revoked.

use muster_wire::{admin, v1};

use crate::Client;
use crate::admin::admin;
use crate::calls::{ensure_request_id, fleet};
use crate::error::CallError;
use crate::retry::Subject;

fn subject(operation: &'static str, request_id: Option<String>) -> Subject {
    Subject { operation, request_id }
}

impl Client {
    /// Nodes that have tried to register within the last minutes and are not admitted.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn list_pending_nodes(&self) -> Result<v1::ListPendingNodesResponse, CallError> {
        let send =
            |channel| async move { fleet(channel).list_pending_nodes(v1::ListPendingNodesRequest {}).await };
        self.retry(subject("list pending nodes", None), send).await
    }

    /// Which nodes are admitted, and what operators have said of nodes by name.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn get_node_admission(
        &self,
        request: v1::GetNodeAdmissionRequest,
    ) -> Result<v1::GetNodeAdmissionResponse, CallError> {
        let send = |channel| {
            let request = request.clone();
            async move { fleet(channel).get_node_admission(request).await }
        };
        self.retry(subject("get node admission", None), send).await
    }

    /// Sets which nodes are admitted.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn set_node_admission(
        &self,
        mut request: v1::SetNodeAdmissionRequest,
    ) -> Result<v1::SetNodeAdmissionResponse, CallError> {
        let request_id = ensure_request_id(&mut request.request_id);
        let send = |channel| {
            let request = request.clone();
            async move { fleet(channel).set_node_admission(request).await }
        };
        let answer: v1::SetNodeAdmissionResponse =
            self.retry(subject("set node admission", request_id), send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// Approves or rejects a node by its name, or takes that back.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn set_node_approval(
        &self,
        mut request: v1::SetNodeApprovalRequest,
    ) -> Result<v1::SetNodeApprovalResponse, CallError> {
        let request_id = ensure_request_id(&mut request.request_id);
        let send = |channel| {
            let request = request.clone();
            async move { fleet(channel).set_node_approval(request).await }
        };
        let answer: v1::SetNodeApprovalResponse =
            self.retry(subject("set node approval", request_id), send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// Makes a certificate invalid before its end.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn revoke_certificate(
        &self,
        mut request: admin::RevokeCertificateRequest,
    ) -> Result<admin::RevokeCertificateResponse, CallError> {
        let request_id = ensure_request_id(&mut request.request_id);
        let send = |channel| {
            let request = request.clone();
            async move { admin(channel).revoke_certificate(request).await }
        };
        let answer: admin::RevokeCertificateResponse =
            self.retry(subject("revoke certificate", request_id), send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// Certificates that are revoked and have not ended.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn list_revoked_certificates(
        &self,
    ) -> Result<admin::ListRevokedCertificatesResponse, CallError> {
        let send = |channel| async move {
            admin(channel).list_revoked_certificates(admin::ListRevokedCertificatesRequest {}).await
        };
        self.retry(subject("list revoked certificates", None), send).await
    }
}
