//! Questions to the HTTP listener of a replica: its web pages and `/metrics`.
//!
//! It is reached as the listener for clients is, with the same certificates, at addresses of a separate list: members do not
//! tell theirs.

use std::pin::Pin;
use std::time::Duration;

use tonic::body::Body;
use tonic::codegen::{Body as _, Service as _, http};

use crate::Endpoints;
use crate::channel::Channel;
use crate::endpoint::chain;

/// What an HTTP listener answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// The status code.
    pub code: u16,
    /// What the body is, as its header `content-type` has it; empty without one.
    pub content_type: String,
    /// The body, as much of it as was asked for.
    pub body: Vec<u8>,
    /// Whether there was more.
    pub is_cut: bool,
}

impl Endpoints {
    /// Asks one address for a path, with its query, and reads at most `bytes_max` of the body.
    ///
    /// # Errors
    /// When it cannot be reached, does not answer within the limit or breaks off; why, as a sentence.
    pub async fn http_get(
        &self,
        address: &str,
        path: &str,
        bytes_max: usize,
        within: Duration,
    ) -> Result<HttpAnswer, String> {
        let asked = async {
            let (_, channel) = self.connect_to(address).await.map_err(|error| error.to_string())?;
            ask(channel, path, bytes_max).await
        };
        match tokio::time::timeout(within, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no answer within {} ms", within.as_millis())),
        }
    }
}

async fn ask(mut channel: Channel, path: &str, bytes_max: usize) -> Result<HttpAnswer, String> {
    let request = http::Request::get(path).body(Body::empty()).map_err(|error| error.to_string())?;
    let ready = std::future::poll_fn(|context| channel.poll_ready(context)).await;
    ready.map_err(|error| chain(&error))?;
    let response = channel.call(request).await.map_err(|error| chain(&error))?;
    let code = response.status().as_u16();
    let content_type = response.headers().get(http::header::CONTENT_TYPE);
    let content_type = content_type.and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
    let mut body = response.into_body();
    let mut read = Vec::new();
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        let Some(frame) = frame else {
            return Ok(HttpAnswer { code, content_type, body: read, is_cut: false });
        };
        let frame = frame.map_err(|error| format!("the answer broke off: {error}"))?;
        // What comes behind the body says nothing here.
        let Ok(data) = frame.into_data() else { continue };
        let left = bytes_max - read.len();
        read.extend_from_slice(data.get(..left).unwrap_or(&data));
        if data.len() > left {
            return Ok(HttpAnswer { code, content_type, body: read, is_cut: true });
        }
    }
}
