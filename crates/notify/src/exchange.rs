//! One request to a receiver. Of its answer only the status counts.

use std::sync::Arc;

use muster_fetch::{Ask, FetchRules, Fetcher};
use muster_transport::PublicTls;

use crate::error::DeliveryError;
use crate::settings::NotifySettings;

/// Bytes of an answer's body that are read. Nothing in it counts.
const ANSWER_BYTES_MAX: usize = 4 << 10;

/// Sends requests to one receiver, one after another.
pub(crate) struct Sender {
    fetcher: Fetcher,
}

impl Sender {
    pub(crate) fn new(settings: &NotifySettings, tls: Arc<Result<PublicTls, String>>) -> Sender {
        let rules = FetchRules {
            allow_http: settings.allow_http,
            allowed_hosts: settings.allowed_hosts.clone(),
            timeout: settings.request_timeout,
        };
        Sender { fetcher: Fetcher::new(rules, tls) }
    }

    /// Posts a body of JSON, and waits for the answer at most as long as the configuration says.
    pub(crate) async fn post(
        &mut self,
        url: &str,
        headers: &[(&'static str, String)],
        body: Vec<u8>,
    ) -> Result<(), DeliveryError> {
        let body = Some(("application/json", body));
        let ask = Ask { url, headers, body, answer_bytes_max: ANSWER_BYTES_MAX };
        let status = self.fetcher.ask(ask).await?.status;
        if status.is_success() { Ok(()) } else { Err(DeliveryError::Status(status)) }
    }
}
