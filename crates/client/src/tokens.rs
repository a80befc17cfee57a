//! Bearer tokens: made, listed and revoked.

use muster_wire::admin;

use crate::Client;
use crate::admin::admin;
use crate::calls::{ensure_request_id, repeatable};
use crate::error::CallError;
use crate::retry::Subject;

impl Client {
    /// Makes a bearer token. The caller makes its secret: see `muster_transport::TokenSecret`.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn create_token(
        &self,
        mut request: admin::CreateTokenRequest,
    ) -> Result<admin::CreateTokenResponse, CallError> {
        let request_id = ensure_request_id(&mut request.request_id);
        let send = |channel| {
            let request = request.clone();
            async move { admin(channel).create_token(request).await }
        };
        let subject = Subject { operation: "create token", request_id };
        let answer: admin::CreateTokenResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// Tokens that the caller may revoke.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn list_tokens(&self) -> Result<admin::ListTokensResponse, CallError> {
        let send = |channel| async move { admin(channel).list_tokens(admin::ListTokensRequest {}).await };
        self.retry(repeatable("list tokens"), send).await
    }

    /// Makes a token invalid before it expires.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn revoke_token(
        &self,
        mut request: admin::RevokeTokenRequest,
    ) -> Result<admin::RevokeTokenResponse, CallError> {
        let request_id = ensure_request_id(&mut request.request_id);
        let send = |channel| {
            let request = request.clone();
            async move { admin(channel).revoke_token(request).await }
        };
        let subject = Subject { operation: "revoke token", request_id };
        let answer: admin::RevokeTokenResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }
}
