//! A connection to one replica that shows the caller's token with each call, and its span, where it has them.

use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{self, HeaderValue};
use tonic::transport;

/// In the metadata of a call: the span that it is a part of, by W3C Trace Context.
const TRACE_PARENT: &str = "traceparent";

/// A connection to one replica. Clones share it.
#[derive(Clone, Debug)]
pub struct Channel {
    inner: transport::Channel,
    /// Marked as sensitive: nothing prints it.
    authorization: Option<HeaderValue>,
    /// The span that each call is a part of.
    trace_parent: Option<HeaderValue>,
    /// Held by each caller of a connection that several share.
    _user: Option<Arc<()>>,
}

impl Channel {
    pub(crate) fn new(
        inner: transport::Channel,
        authorization: Option<HeaderValue>,
        trace_parent: Option<HeaderValue>,
    ) -> Channel {
        Channel { inner, authorization, trace_parent, _user: None }
    }

    /// The same connection for one more caller, who holds the mark as long as it has this.
    pub(crate) fn for_user(&self, user: &Arc<()>) -> Channel {
        Channel { _user: Some(Arc::clone(user)), ..self.clone() }
    }
}

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<Body>;
    type Error = transport::Error;
    type Future = <transport::Channel as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::poll_ready(&mut self.inner, context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(http::header::AUTHORIZATION, authorization.clone());
        }
        if let Some(parent) = &self.trace_parent {
            request.headers_mut().insert(TRACE_PARENT, parent.clone());
        }
        self.inner.call(request)
    }
}
