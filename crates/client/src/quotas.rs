//! Quota for some time: asked for, answered, granted and listed.

use muster_wire::v1;
use muster_wire::v1::quota_service_client::QuotaServiceClient;

use crate::Client;
use crate::calls::{ANSWER_BYTES_MAX, changes, ensure_request_id, repeatable, within};
use crate::channel::Channel;
use crate::error::CallError;
use crate::retry::Subject;

fn quotas(channel: Channel) -> QuotaServiceClient<Channel> {
    QuotaServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

impl Client {
    changes! { quotas:
        /// Asks for more quota for a tenant; with `validate_only`, shows what it would displace.
        "request quota", request_quota: RequestQuotaRequest -> RequestQuotaResponse;
        /// Approves or denies a request for quota, or ends the grant that it has become.
        "answer quota", answer_quota: AnswerQuotaRequest -> AnswerQuotaResponse;
        /// Grants quota to a tenant; with `validate_only`, shows what it would displace.
        "grant quota", grant_quota: GrantQuotaRequest -> GrantQuotaResponse;
    }

    /// Requests for quota and grants that the caller may see.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn list_quota_grants(
        &self,
        mut request: v1::ListQuotaGrantsRequest,
    ) -> Result<v1::ListQuotaGrantsResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let send = |channel| {
            let request = request.clone();
            async move { quotas(channel).list_quota_grants(within(limit, request)).await }
        };
        let answer: v1::ListQuotaGrantsResponse = self.retry(repeatable("list quota grants"), send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }
}
