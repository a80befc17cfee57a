//! Requests of the object store's client, over the connections that all of Muster's requests to other servers have.

use async_trait::async_trait;
use bytes::Bytes;
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use muster_fetch::{FetchError, Pieces, Streamer};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Bytes of an answer that is no object: an error, or that something was done. The client reads those into memory.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Where the client's requests go. Its own settings of connections say nothing: those of the streamer hold.
#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) streamer: Streamer,
}

impl HttpConnector for Service {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let may_be_long = head.method == http::Method::GET;
        let body = body.collect().await?.to_bytes();
        let answer = self.streamer.send(http::Request::from_parts(head, body)).await.map_err(failed)?;
        let (head, pieces) = answer.into_parts();
        let is_long = may_be_long && head.status.is_success();
        let left = if is_long { None } else { Some(ANSWER_BYTES_MAX) };
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(Coming { pieces, left })))
    }
}

/// The body of an answer.
struct Coming {
    pieces: Pieces,
    /// Bytes that may still come; none for any number.
    left: Option<usize>,
}

impl Body for Coming {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let next = self.pieces.poll_recv(context);
        if let (Poll::Ready(Some(Ok(piece))), Some(left)) = (&next, &mut self.left) {
            let Some(rest) = left.checked_sub(piece.len()) else {
                let why = std::io::Error::other("the answer is too long");
                return Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Decode, why))));
            };
            *left = rest;
        }
        next.map(|piece| piece.map(|piece| piece.map(Frame::data).map_err(failed)))
    }
}

/// What the client makes of an error: whether it tries once more.
fn failed(error: FetchError) -> HttpError {
    let kind = match &error {
        FetchError::Unresolved(_) | FetchError::Connect(_) => HttpErrorKind::Connect,
        FetchError::Exchange(_) => HttpErrorKind::Request,
        FetchError::TimedOut(_) => HttpErrorKind::Timeout,
        FetchError::Refused(_) | FetchError::Authorities(_) | FetchError::Request(_) => {
            HttpErrorKind::Unknown
        }
    };
    HttpError::new(kind, error)
}
