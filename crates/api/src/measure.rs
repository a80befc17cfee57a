//! Counts calls when they end, before anything else sees them: those that the guard refuses as well.

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use muster_metrics::{CallLabels, ReplicaMetrics};
use muster_wire::status::Refused;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::{Code, Status};
use tower_layer::Layer;

use crate::access::{Class, rule_of};

/// Counts every call of the listener.
#[derive(Clone)]
pub(crate) struct MeasureLayer(pub(crate) ReplicaMetrics);

impl<S> Layer<S> for MeasureLayer {
    type Service = Measured<S>;

    fn layer(&self, inner: S) -> Measured<S> {
        Measured { inner, metrics: self.0.clone() }
    }
}

/// Services whose calls are counted.
#[derive(Clone)]
pub(crate) struct Measured<S> {
    inner: S,
    metrics: ReplicaMetrics,
}

impl<S> Service<http::Request<Body>> for Measured<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let mut count = Count::begin(&self.metrics, request.uri().path());
        let answered = self.inner.call(request);
        Box::pin(async move {
            let response = answered.await?;
            // An answer that is a refusal alone has its status among the headers.
            count.read(response.headers());
            Ok(response.map(|inner| Body::new(Counted { inner, count })))
        })
    }
}

/// One call from its beginning to its end, however that comes.
struct Count {
    metrics: ReplicaMetrics,
    method: &'static str,
    is_stream: bool,
    begun: Instant,
    /// Cancelled unless another code comes: what is dropped before its end was not waited for.
    code: Code,
}

impl Count {
    fn begin(metrics: &ReplicaMetrics, path: &str) -> Count {
        metrics.call_begun();
        let rule = rule_of(path);
        let method = rule.map_or("other", |rule| rule.path.trim_start_matches('/'));
        let is_stream = rule.is_none_or(|rule| rule.class != Class::Call);
        Count { metrics: metrics.clone(), method, is_stream, begun: Instant::now(), code: Code::Cancelled }
    }

    /// Takes the status from headers or trailers, where they have one.
    fn read(&mut self, headers: &http::HeaderMap) {
        let Some(status) = Status::from_header_map(headers) else { return };
        self.code = status.code();
        if self.code != Code::Ok
            && let Some(reason) = Refused::from_status(&status).code
        {
            self.metrics.refused(reason.name());
        }
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        let labels = CallLabels { method: self.method, code: spelled(self.code) };
        self.metrics.call_ended(labels, (!self.is_stream).then(|| self.begun.elapsed()));
    }
}

/// As the specification of gRPC spells it.
fn spelled(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// An answer that is counted when it is over.
struct Counted {
    inner: Body,
    count: Count,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.count.read(trailers);
                }
            }
            Poll::Ready(Some(Err(status))) => self.count.code = status.code(),
            Poll::Ready(None) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
