//! What a caller sent, byte for byte, for the leader that it is passed on to.
//!
//! During an upgrade a follower may be of an older release than caller and leader. Were its own reading of a message passed
//! on, fields that it does not know would be gone, and a job would run without what it asked for. So the message is passed
//! on as it came. A task-local value keeps it while the call is carried out, so the services that pass calls on need not know
//! of it.
//!
//! **Invariant:** what is passed on in the place of a message is what this very call was asked with, by the same method.
//! **Invariant:** nothing is kept by a leader, nor of calls that were passed on already, nor of streams.

use parking_lot::Mutex;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::http::HeaderValue;
use tonic::codegen::{Bytes, Service, http};
use tonic::transport::Channel;

use crate::broken_stream::BrokenOff;

/// Bytes before each message: whether it is compressed, and its length.
pub(crate) const PREFIX_BYTES: usize = 5;

tokio::task_local! {
    static CALL: Original;
}

/// A message as it is read. Clones are the same message.
#[derive(Clone, Debug)]
pub(crate) struct Original {
    path: Arc<str>,
    bytes: Arc<Mutex<Vec<u8>>>,
    bytes_max: usize,
    kept: PassedOn,
}

/// Headers of the request that go along: which features it requires, and what others have added to its trace.
type PassedOn = Vec<(&'static str, HeaderValue)>;

/// A whole message with its prefix; among the extensions of a request that passes it on.
#[derive(Clone, Debug)]
pub(crate) struct Whole {
    path: Arc<str>,
    bytes: Bytes,
    kept: PassedOn,
}

impl Original {
    /// For a call of this method, whose message has at most `message_bytes_max` bytes.
    pub(crate) fn new(path: &str, message_bytes_max: usize, kept: PassedOn) -> Original {
        let bytes_max = message_bytes_max.saturating_add(PREFIX_BYTES);
        Original { path: path.into(), bytes: Arc::default(), bytes_max, kept }
    }

    /// More of it has been read.
    pub(crate) fn push(&self, more: &[u8]) {
        let mut bytes = self.bytes.lock();
        // A longer message is refused. One byte too many is kept, so that it does not look whole.
        let free = (self.bytes_max + 1).saturating_sub(bytes.len());
        bytes.extend_from_slice(more.get(..free).unwrap_or(more));
    }

    /// The message, once it is whole: one message that is not compressed, and nothing behind it.
    fn whole(&self) -> Option<Whole> {
        let bytes = self.bytes.lock();
        let (prefix, message) = bytes.split_first_chunk::<PREFIX_BYTES>()?;
        let [is_compressed, a, b, c, d] = *prefix;
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
        (is_compressed == 0 && length == message.len()).then(|| Whole {
            path: Arc::clone(&self.path),
            bytes: Bytes::copy_from_slice(&bytes),
            kept: self.kept.clone(),
        })
    }

    /// Carries a call out while its message is kept.
    pub(crate) async fn during<T>(self, call: impl Future<Output = T>) -> T {
        CALL.scope(self, call).await
    }
}

/// Has a request that passes a call on carry the message as it came.
pub(crate) fn attach<T>(request: &mut tonic::Request<T>) {
    if let Ok(Some(whole)) = CALL.try_with(Original::whole) {
        request.extensions_mut().insert(whole);
    }
}

/// The message of this call as it came, where it was asked by this method: it goes in the place of one that was read, so none has to
/// be made again.
pub(crate) fn of_method(path: &str) -> Option<Whole> {
    let whole = |original: &Original| if *original.path == *path { original.whole() } else { None };
    CALL.try_with(whole).ok().flatten()
}

/// The way to the leader. A request that carries the message of its call sends that, and not what was read of it; one that passes a
/// stream on fails where that broke.
#[derive(Clone, Debug)]
pub(crate) struct Onward(pub(crate) Channel);

impl Service<http::Request<Body>> for Onward {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = <Channel as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::poll_ready(&mut self.0, context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let whole = request.extensions_mut().remove::<Whole>();
        let mut request = match whole.filter(|whole| *whole.path == *request.uri().path()) {
            Some(whole) => {
                for (name, value) in whole.kept {
                    request.headers_mut().insert(name, value);
                }
                request.map(|_| Body::new(http_body_util::Full::new(whole.bytes)))
            }
            None => request,
        };
        let request = match request.extensions_mut().remove::<BrokenOff>() {
            Some(broken) => request.map(|inner| broken.cutting(inner)),
            None => request,
        };
        self.0.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use muster_transport::{PeerInfo, Principal, Security};
    use muster_wire::v1;
    use muster_wire::v1::job_service_client::JobServiceClient;
    use prost::Message as _;
    use std::convert::Infallible;
    use std::pin::Pin;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
    use tower_layer::Layer as _;

    use crate::ApiConfig;
    use crate::forward::Router;
    use crate::guard::{CallLimits, GuardLayer};
    use crate::headers::FORWARDED;
    use crate::sample;

    const SUBMIT: &str = "/muster.v1beta1.JobService/SubmitJob";

    type Answered<E> = Pin<Box<dyn Future<Output = Result<http::Response<Body>, E>> + Send>>;

    /// A leader that says what it was sent.
    #[derive(Clone)]
    struct Leader(UnboundedSender<Bytes>);

    impl tonic::server::NamedService for Leader {
        const NAME: &'static str = "muster.v1beta1.JobService";
    }

    impl Service<http::Request<Body>> for Leader {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = Answered<Infallible>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            let told = self.0.clone();
            Box::pin(async move {
                let body = request.into_body().collect().await.expect("it is whole").to_bytes();
                told.send(body).expect("the test waits for it");
                Ok(tonic::Status::unimplemented("it is kept").into_http())
            })
        }
    }

    /// A follower that reads a message and passes it on, as services do: by this method or by another.
    #[derive(Clone)]
    struct Follower {
        router: Router,
        leader: Channel,
    }

    impl Service<http::Request<Body>> for Follower {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = Answered<Infallible>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            let Follower { router, leader } = self.clone();
            Box::pin(async move {
                let caller = router.caller(&tonic::Request::new(()));
                let is_submission = request.uri().path() == SUBMIT;
                let body = request.into_body().collect().await.expect("it is whole").to_bytes();
                let message = body.slice(PREFIX_BYTES.min(body.len())..);
                let read = || v1::SubmitJobRequest::decode(message).unwrap_or_default();
                let onward = Router::onward_or(SUBMIT, read, caller);
                let mut leader = JobServiceClient::new(Onward(leader));
                let answer = leader.submit_job(onward).await.expect_err("it only keeps it");
                assert!(answer.message().contains("kept") || !is_submission, "{answer}");
                Ok(http::Response::new(Body::empty()))
            })
        }
    }

    async fn leader() -> (Channel, UnboundedReceiver<Bytes>) {
        let (told, heard) = unbounded_channel();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        tokio::spawn(
            tonic::transport::Server::builder().add_service(Leader(told)).serve_with_incoming(incoming),
        );
        let endpoint =
            tonic::transport::Endpoint::from_shared(format!("http://{address}")).expect("an address");
        (endpoint.connect_lazy(), heard)
    }

    fn framed(is_compressed: u8, message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).expect("it is short");
        [&[is_compressed][..], &length.to_be_bytes(), message].concat()
    }

    /// A submission with a field of a later release.
    fn of_a_later_release() -> Vec<u8> {
        let spec = v1::Job { name: "train".to_owned(), ..Default::default() };
        let known = v1::SubmitJobRequest { job: Some(spec), ..Default::default() };
        // Field 1,000, a number: 7.
        [&known.encode_to_vec()[..], &[0xc0, 0x3e, 7]].concat()
    }

    /// What the leader hears of a call to a replica.
    async fn heard(leads: bool, path: &str, is_forwarded: bool, pieces: Vec<Vec<u8>>) -> Bytes {
        use futures::StreamExt as _;
        let engine = sample::leader().await;
        let traffic = engine.consensus().traffic().clone();
        let (leader, mut told) = leader().await;
        let tokens = crate::tokens::Tokens::new(engine.clone(), false, muster_oidc::Issuers::new(Vec::new()));
        let router = Router::new(engine, ApiConfig::DEFAULT, Security::Plaintext);
        let layer = GuardLayer::new(
            CallLimits::DEFAULT,
            1 << 20,
            traffic,
            std::sync::Arc::new(move || leads),
            crate::unwritten::Ledger::default(),
            (tokens, crate::recorded::CallRecorder::default()),
        );
        let mut replica = layer.layer(Follower { router, leader });
        let frames = futures::stream::iter(pieces)
            .map(|piece| Ok::<_, tonic::Status>(http_body::Frame::data(piece.into())));
        let mut request = http::Request::new(Body::new(http_body_util::StreamBody::new(frames)));
        *request.uri_mut() = path.parse().expect("a path");
        request
            .extensions_mut()
            .insert(PeerInfo { address: ([127, 0, 0, 1], 1).into(), principal: Principal::Plaintext });
        if is_forwarded {
            request.headers_mut().insert(FORWARDED, http::HeaderValue::from_static("1"));
        }
        replica.call(request).await.expect("it is answered");
        told.recv().await.expect("the leader is told")
    }

    #[tokio::test]
    async fn a_field_that_a_follower_does_not_know_reaches_the_leader() {
        let sent = framed(0, &of_a_later_release());
        let pieces = vec![sent[..3].to_vec(), sent[3..9].to_vec(), sent[9..].to_vec()];
        assert_eq!(heard(false, SUBMIT, false, pieces).await, sent);
    }

    #[tokio::test]
    async fn nothing_is_passed_on_but_the_very_message_of_the_call() {
        let message = of_a_later_release();
        let read = v1::SubmitJobRequest::decode(&*message).expect("it can be read").encode_to_vec();
        let (sent, read) = (framed(0, &message), framed(0, &read));
        assert_ne!(sent, read);
        let is_read = |heard: Bytes, what: &str| assert_eq!(heard, read, "{what}");
        is_read(heard(true, SUBMIT, false, vec![sent.clone()]).await, "a leader keeps nothing");
        is_read(heard(false, SUBMIT, true, vec![sent.clone()]).await, "it was passed on already");
        let other = "/muster.v1beta1.JobService/CancelJob";
        is_read(heard(false, other, false, vec![sent.clone()]).await, "another method's message");
        let nothing = framed(0, &[]);
        for (what, bytes) in [
            ("compressed", framed(1, &message)),
            ("something behind it", [&sent[..], &[0]].concat()),
            ("cut short", sent[..sent.len() - 1].to_vec()),
        ] {
            let heard = heard(false, SUBMIT, false, vec![bytes.clone()]).await;
            assert!(heard == read || heard == nothing, "{what}: {heard:?}");
            assert_ne!(heard, bytes, "{what}");
        }
    }

    #[tokio::test]
    async fn a_message_that_goes_on_as_it_came_is_not_made_again() {
        let caller = Router::new(sample::leader().await, ApiConfig::DEFAULT, Security::Plaintext)
            .caller(&tonic::Request::new(()));
        let made = |path: &'static str, bytes: Vec<u8>| async move {
            let original = Original::new(SUBMIT, 1 << 20, Vec::new());
            original.push(&bytes);
            let mut is_made = false;
            let call = async {
                let make = || {
                    is_made = true;
                    v1::SubmitJobRequest::default()
                };
                let request = Router::onward_or(path, make, caller);
                request.extensions().get::<Whole>().is_some()
            };
            let is_attached = original.during(call).await;
            (is_made, is_attached)
        };
        let sent = framed(0, &of_a_later_release());
        assert_eq!(made(SUBMIT, sent.clone()).await, (false, true));
        assert_eq!(made("/muster.v1beta1.JobService/CancelJob", sent.clone()).await, (true, false));
        assert_eq!(made(SUBMIT, sent[..7].to_vec()).await, (true, false), "it is not whole");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let original = Original::new(SUBMIT, 10, Vec::new());
        for _ in 0..100 {
            original.push(&[0; 7]);
        }
        assert_eq!(original.bytes.lock().len(), 16);
        assert!(original.whole().is_none());
    }
}
