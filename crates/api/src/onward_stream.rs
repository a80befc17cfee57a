//! Streams of callers that are passed on to the leader.
//!
//! Once they are messages, a stream that ended and one that broke look alike, and an end says something: no more input follows, an
//! output is complete. So the call to the leader is reset where the caller's stream broke.
//!
//! **Invariant:** the leader sees the end of a stream only where its caller ended it.

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use tonic::{Request, Status, Streaming};

pub(crate) use crate::broken_stream::BrokenOff;
use crate::forward::{Caller, Router};
use crate::guard::ours;

/// A request that passes a caller's stream on, behind a message that was read of it already, and what is known of its end. It has
/// no deadline: such a stream may go on for long.
pub(crate) fn request<T: Send + 'static>(
    first: Option<T>,
    requests: Streaming<T>,
    caller: Caller,
) -> (Request<impl Stream<Item = T> + Send + 'static>, BrokenOff) {
    let broken = BrokenOff::default();
    let rest = futures::stream::unfold((requests, broken.clone()), |(mut requests, broken)| async move {
        match requests.message().await {
            Ok(Some(message)) => Some((message, (requests, broken))),
            Ok(None) => None,
            Err(status) => {
                broken.break_off(ours(status));
                None
            }
        }
    });
    let mut onward = Router::onward(futures::stream::iter(first).chain(rest), caller);
    onward.metadata_mut().remove("grpc-timeout");
    onward.extensions_mut().insert(broken.clone());
    (onward, broken)
}

/// What the leader answers, up to its end, or to this last word once another leads: answers that are cut off do not end with OK.
pub(crate) fn until_superseded<T: Send + 'static>(
    answers: impl Stream<Item = Result<T, Status>> + Send + 'static,
    superseded: impl Future<Output = ()> + Send + 'static,
    last_word: Status,
) -> BoxStream<'static, Result<T, Status>> {
    let state = Some((answers.boxed(), Box::pin(superseded), last_word));
    let cut = futures::stream::unfold(state, |state| async move {
        let (mut answers, mut superseded, last_word) = state?;
        tokio::select! {
            answer = answers.next() => answer.map(|answer| (answer, Some((answers, superseded, last_word)))),
            () = &mut superseded => Some((Err(last_word), None)),
        }
    });
    cut.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Frame;
    use http_body_util::BodyExt as _;
    use muster_transport::Principal;
    use muster_types::RefusalCode;
    use muster_wire::status::Refused;
    use muster_wire::v1;
    use muster_wire::v1::exec_worker_request;
    use muster_wire::v1::job_service_client::JobServiceClient;
    use prost::Message as _;
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use std::time::Duration;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
    use tonic::body::Body;
    use tonic::codec::Codec as _;
    use tonic::codegen::Bytes;
    use tonic::codegen::{Service, http};
    use tonic::transport::{Channel, Endpoint, Server};

    use crate::original::Onward;
    use crate::refusals::late;

    /// A leader that says what it was sent: all of it up to its end, or that there was none.
    #[derive(Clone)]
    struct Leader(UnboundedSender<Option<Bytes>>);

    impl tonic::server::NamedService for Leader {
        const NAME: &'static str = "muster.v1beta1.JobService";
    }

    impl Service<http::Request<Body>> for Leader {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            let told = self.0.clone();
            // A reset ends the call, and what was read of it has to be told nevertheless.
            let read = tokio::spawn(async move {
                let body = request.into_body().collect().await.ok().map(|body| body.to_bytes());
                told.send(body).expect("the test waits for it");
            });
            Box::pin(async move {
                read.await.expect("it is told");
                Ok(Status::unimplemented("it is kept").into_http())
            })
        }
    }

    async fn leader() -> (Channel, UnboundedReceiver<Option<Bytes>>) {
        let (told, heard) = unbounded_channel();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        tokio::spawn(Server::builder().add_service(Leader(told)).serve_with_incoming(incoming));
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        (endpoint.connect_lazy(), heard)
    }

    fn framed(message: &[u8]) -> Bytes {
        let length = u32::try_from(message.len()).expect("it is short");
        [&[0][..], &length.to_be_bytes(), message].concat().into()
    }

    /// A caller's stream of one message; then it breaks with this status, or ends.
    fn stream(message: Bytes, breaks: Option<Status>) -> Streaming<v1::ExecWorkerRequest> {
        let frames = [Ok(Frame::data(message))].into_iter().chain(breaks.map(Err));
        let body = http_body_util::StreamBody::new(futures::stream::iter(frames));
        let mut codec = tonic_prost::ProstCodec::<v1::ExecWorkerRequest, v1::ExecWorkerRequest>::default();
        Streaming::new_request(codec.decoder(), body, None, None)
    }

    /// What the leader reads of such a stream, up to its end, and what the caller is told.
    async fn passed_on(breaks: Option<Status>) -> (Option<Bytes>, Status) {
        let (channel, mut heard) = leader().await;
        let caller = Caller::reading(Principal::Plaintext, tokio::time::Instant::now());
        let input = v1::ExecWorkerRequest {
            message: Some(exec_worker_request::Message::Input(b"half of it".to_vec())),
        };
        let (onward, broken) = request(None, stream(framed(&input.encode_to_vec()), breaks), caller);
        let mut leader = JobServiceClient::new(Onward(channel));
        let answered = async { leader.exec_worker(onward).await.expect_err("it only keeps it") };
        let both = async { tokio::join!(answered, heard.recv()) };
        let both = tokio::time::timeout(Duration::from_secs(30), both).await;
        let (status, heard) = both.expect("both sides hear of it");
        (heard.expect("the leader is asked"), broken.rather_than(status))
    }

    #[tokio::test]
    async fn answers_that_are_cut_off_end_with_the_reason() {
        let (superseded, is_superseded) = tokio::sync::oneshot::channel::<()>();
        let answers = futures::stream::iter([Ok(1)]).chain(futures::stream::pending());
        let is_superseded = async move { drop(is_superseded.await) };
        let mut cut = until_superseded(answers, is_superseded, late("another leads"));
        assert_eq!(cut.next().await.expect("it goes on").expect("an answer"), 1);
        superseded.send(()).expect("it is waited for");
        let last = cut.next().await.expect("a last word").expect_err("it is cut off");
        assert_eq!(last.message(), "another leads");
        assert!(cut.next().await.is_none());
        let whole = futures::stream::iter([Ok(1)]);
        let whole = until_superseded(whole, std::future::pending(), late("nobody else leads"));
        assert_eq!(whole.count().await, 1, "an end is an end");
    }

    #[tokio::test]
    async fn a_stream_that_its_caller_ended_ends_at_the_leader() {
        let input = v1::ExecWorkerRequest {
            message: Some(exec_worker_request::Message::Input(b"half of it".to_vec())),
        };
        let (heard, status) = passed_on(None).await;
        assert_eq!(heard, Some(framed(&input.encode_to_vec())));
        assert_eq!(status.message(), "it is kept", "the leader's own words");
    }

    #[tokio::test]
    async fn a_stream_that_broke_does_not_end_at_the_leader() {
        let (heard, status) = passed_on(Some(late("the rest never came"))).await;
        assert_eq!(heard, None, "the leader took it for whole");
        assert_eq!(Refused::from_status(&status).code, Some(RefusalCode::RequestTimeout), "{status:?}");
    }
}
