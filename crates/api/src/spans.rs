//! Spans of what a replica does for a call, a submission and an order, where a collector is configured.
//!
//! A call that names a span in its metadata is a part of it. Without a collector the span that was named goes on as it is: to the
//! leader, and with the jobs of a submission. With one this replica's span takes its place, as a part of it.
//!
//! **Invariant:** no call is refused and none waits for a trace.

use muster_engine::{StartOrder, TracedSubmission};
use muster_traces::{Side, Span, header, names, tracer};
use muster_transport::Principal;
use muster_types::{NodeId, TraceParent};
use muster_wire::status::Refused;
use std::time::Instant;
use tonic::body::Body;
use tonic::codegen::http::{self, HeaderMap, HeaderValue};
use tonic::{Code, Status};

use crate::access::Class;
use crate::headers::FORWARDED;
use crate::measure::spelled;
use crate::render::node_name;

/// The span that a call is served in; among the request's extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traced(pub(crate) TraceParent);

/// The jobs that a call has made; among the extensions of its answer.
#[derive(Clone, Debug)]
pub(crate) struct MadeJobs {
    /// The first of them.
    pub(crate) first: String,
    /// How many.
    pub(crate) jobs: usize,
}

impl MadeJobs {
    /// Those of a call that is a part of a trace; none of any other.
    pub(crate) fn of(parent: Option<TraceParent>, ids: &[String]) -> Option<MadeJobs> {
        let (_, first) = parent.zip(ids.first())?;
        Some(MadeJobs { first: first.clone(), jobs: ids.len() })
    }
}

/// What systems on the way have added to the trace of a call, to be passed on.
pub(crate) fn trace_state(headers: &HeaderMap) -> Option<HeaderValue> {
    let values = headers.get_all(header::TRACE_STATE).iter().map(HeaderValue::as_bytes);
    HeaderValue::from_str(&header::state(values)?).ok()
}

/// Begins the span of a call that was let in, where it has one, and puts its place among the request's extensions. Streams have
/// none: they go on for as long as their callers like.
pub(crate) fn begin(
    request: &mut http::Request<Body>,
    principal: &Principal,
    (path, class): (&'static str, Class),
) -> Option<Span> {
    let headers = request.headers();
    let parent = header::parent(headers.get_all(header::TRACE_PARENT).iter().map(HeaderValue::as_bytes));
    let is_forwarded = headers.contains_key(FORWARDED);
    let tracer = tracer().filter(|_| class == Class::Call);
    let mut span = tracer.and_then(|tracer| match parent {
        Some(parent) => tracer.child(names::CALL, Side::Server, parent),
        // The replica that passed it on has decided that it is not recorded.
        None if is_forwarded => None,
        None => tracer.root(names::CALL, Side::Server),
    });
    if let Some(place) = span.as_ref().and_then(Span::place).or(parent) {
        request.extensions_mut().insert(Traced(place));
    }
    if let Some(span) = &mut span {
        let (service, method) = path.trim_start_matches('/').rsplit_once('/').unwrap_or(("", path));
        span.set(names::RPC_SERVICE, service);
        span.set(names::RPC_METHOD, method);
        span.set(names::PRINCIPAL_KIND, kind(principal));
        span.set(names::FORWARDED, is_forwarded);
    }
    span
}

/// What kind of caller it is, and not who.
fn kind(principal: &Principal) -> &'static str {
    match principal {
        Principal::Plaintext => "plaintext",
        Principal::Anonymous => "anonymous",
        Principal::Named(name) => name.role.kind(),
        Principal::Token(_) => "token",
    }
}

/// Ends the span of a call with what came of it.
pub(crate) fn end(span: Option<Span>, response: &mut http::Response<Body>) {
    let Some(mut span) = span else { return };
    // An answer that is a refusal alone has its status among the headers.
    let status = Status::from_header_map(response.headers());
    let code = status.as_ref().map_or(Code::Ok, Status::code);
    span.set(names::RPC_CODE, i32::from(code));
    if let Some(made) = response.extensions_mut().remove::<MadeJobs>() {
        span.set(names::JOB, made.first);
        span.set(names::JOBS, u64::try_from(made.jobs).unwrap_or(u64::MAX));
    }
    let Some(status) = status.filter(|_| code != Code::Ok) else { return };
    let reason = Refused::from_status(&status).code.map_or(spelled(code), |reason| reason.name());
    span.set(names::REASON, reason);
    if is_fault(code) {
        span.fail(reason);
    }
}

/// Whether a code says that the server has failed, as OpenTelemetry's conventions have it; others are about the request.
fn is_fault(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

/// The stages of a submission that this leader has applied.
pub(crate) fn submitted(submission: &TracedSubmission, applied: Instant) {
    let Some(tracer) = tracer() else { return };
    let TracedSubmission { parent, job, jobs, log_index, term, stages } = submission;
    for (name, begun, ended) in [
        (names::DECIDE, stages.begun, stages.proposed),
        (names::REPLICATE, stages.proposed, stages.committed),
        (names::APPLY, stages.committed, applied),
    ] {
        let Some(mut span) = tracer.child(name, Side::Internal, *parent) else { return };
        span.set(names::JOB, job.to_string());
        span.set(names::JOBS, *jobs);
        span.set(names::LOG_INDEX, log_index.0);
        span.set(names::TERM, *term);
        span.lasted(begun, ended);
    }
}

/// An order to start workers is sent to their node.
pub(crate) fn ordered(order: &StartOrder, node: NodeId) {
    let Some(tracer) = tracer() else { return };
    let parent = order.view.contract(order.job).and_then(|contract| contract.trace_parent);
    let Some(mut span) = parent.and_then(|parent| tracer.child(names::ORDER, Side::Producer, parent)) else {
        return;
    };
    span.set(names::JOB, order.job.to_string());
    span.set(names::TENANT, order.spec.tenant.as_str());
    span.set(names::ATTEMPT, order.attempt);
    span.set(names::NODE, node_name(&order.view, node));
    span.set(names::LOG_INDEX, order.placement.token.log_index.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const SUBMIT: &str = "/muster.v1beta1.JobService/SubmitJob";

    fn request(values: &[&'static str]) -> http::Request<Body> {
        let mut request = http::Request::new(Body::empty());
        for value in values {
            request.headers_mut().append(header::TRACE_PARENT, HeaderValue::from_static(value));
        }
        request
    }

    #[test]
    fn without_a_collector_a_call_is_a_part_of_the_span_that_it_names_and_of_no_other() {
        let place = |values: &[&'static str]| {
            let mut request = request(values);
            let span = begin(&mut request, &Principal::Plaintext, (SUBMIT, Class::Call));
            assert!(span.is_none());
            request.extensions().get::<Traced>().map(|traced| traced.0.to_string())
        };
        assert_eq!(place(&[PARENT]).as_deref(), Some(PARENT));
        assert_eq!(place(&[]), None);
        assert_eq!(place(&[PARENT, PARENT]), None);
        assert_eq!(place(&["00-4BF92F3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"]), None);
        assert_eq!(place(&["00-00000000000000000000000000000000-00f067aa0ba902b7-01"]), None);
    }

    #[test]
    fn what_is_passed_on_of_others_is_bounded() {
        let mut headers = HeaderMap::new();
        assert_eq!(trace_state(&headers), None);
        headers.append(header::TRACE_STATE, HeaderValue::from_static("a=1"));
        headers.append(header::TRACE_STATE, HeaderValue::from_static("b=2"));
        assert_eq!(trace_state(&headers), Some(HeaderValue::from_static("a=1,b=2")));
        let long = "a".repeat(header::STATE_BYTES_MAX);
        headers.append(header::TRACE_STATE, HeaderValue::from_str(&long).expect("it is text"));
        assert_eq!(trace_state(&headers), None);
    }

    #[test]
    fn refusals_of_a_request_are_no_faults_of_the_server() {
        assert!(!is_fault(Code::InvalidArgument) && !is_fault(Code::PermissionDenied) && !is_fault(Code::Ok));
        assert!(is_fault(Code::Unavailable) && is_fault(Code::Internal));
    }
}
