//! Streams of callers that broke, which is no end of them.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Bytes;

/// Why a caller's stream broke, once it has. Clones are about the same stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct BrokenOff(Arc<OnceLock<Status>>);

impl BrokenOff {
    /// The stream broke for this reason; the first one stands.
    pub(crate) fn break_off(&self, why: Status) {
        let _ = self.0.set(why);
    }

    fn why(&self) -> Option<&Status> {
        self.0.get()
    }

    /// Why the caller's stream broke, where this status of the call to the leader follows from that alone.
    pub(crate) fn explains(&self, status: &Status) -> Option<Status> {
        self.why().filter(|_| is_broken(status)).cloned()
    }

    /// The same, and any other status as it is.
    pub(crate) fn rather_than(&self, status: Status) -> Status {
        self.explains(&status).unwrap_or(status)
    }

    /// What goes to the leader: it fails where the caller's stream did.
    pub(crate) fn cutting(self, inner: Body) -> Body {
        Body::new(Cut { inner, broken: self })
    }
}

/// Whether a status was made here, of a connection that broke.
pub(crate) fn is_broken(status: &Status) -> bool {
    use std::error::Error as _;
    status.source().is_some()
}

/// The body of a request that ends in an error where the stream that it is made of broke: so the stream to the leader is reset, and
/// does not end.
struct Cut {
    inner: Body,
    broken: BrokenOff,
}

impl http_body::Body for Cut {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if !matches!(polled, Poll::Ready(None)) {
            return polled;
        }
        Poll::Ready(self.broken.why().map(|status| Err(status.clone())))
    }

    fn is_end_stream(&self) -> bool {
        self.broken.why().is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
