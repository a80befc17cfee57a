//! Counts calls when they end, before anything else sees them: those that the guard refuses as well. Submissions of a stream
//! are counted one by one, since each is answered like a call.

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use muster_metrics::{CallLabels, CallSeries, RefusalLabels, ReplicaMetrics};
use muster_types::RefusalCode;
use muster_wire::status::Refused;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::{Code, Status};
use tower_layer::Layer;

use crate::access::{Class, RULES, rule_of};

/// What a submission of a stream is counted under. Objectives take it together with submissions by a call.
const STREAMED_SUBMISSION: &str = "muster.v1beta1.JobService/SubmitStream/submission";
/// The codes that objectives read: an answer, and those that say that the service failed.
const CODES: [Code; 6] =
    [Code::Ok, Code::Unavailable, Code::DeadlineExceeded, Code::Internal, Code::Unknown, Code::DataLoss];
/// Methods of which an objective reads the duration.
const TIMED: [&str; 3] =
    ["muster.v1beta1.JobService/SubmitJob", "muster.v1beta1.JobService/SubmitJobs", STREAMED_SUBMISSION];
/// What is promised, the millionths of calls that may fail, and whether a method counts.
pub(crate) type CallObjective = (&'static str, u64, fn(&str) -> bool);
/// The objectives of `ops/slo` about calls that have an answer or none.
pub(crate) const OBJECTIVES: [CallObjective; 2] = [
    ("Submissions are accepted or refused with a reason.", 500, is_submission),
    ("Reads of jobs, queues and nodes are answered.", 1_000, is_read),
];
/// What the names of methods that read begin with.
const READ_NAMES: [&str; 4] = ["Get", "List", "Explain", "Plan"];
/// The codes of gRPC are the numbers up to this one.
const CODE_MAX: i32 = 16;
/// The limits that a `STATE_FULL` names. Those of the whole cluster concern everybody, those of a share one tenant, and those
/// of approvals, revocations and tokens an operator.
const STATE_LIMITS: [&str; 10] = [
    "jobs_held_max",
    "requests_held_max",
    "jobs_held_share",
    "requests_held_share",
    "approvals_max",
    "revocations_max",
    "tokens_max",
    "tenant_tokens_max",
    "schedules_max",
    "tenant_schedules_max",
];

/// The name of a method, of a path.
fn method(path: &'static str) -> &'static str {
    path.trim_start_matches('/')
}

/// Exposes the series that objectives and alerts read from now on, at zero.
pub(crate) fn begin(metrics: &ReplicaMetrics) {
    let calls = RULES.iter().filter(|rule| rule.class == Class::Call).map(|rule| method(rule.path));
    let methods: Vec<&str> = calls.chain([STREAMED_SUBMISSION]).collect();
    let others = RefusalCode::ALL.iter().filter(|code| **code != RefusalCode::StateFull);
    let others = others.map(|code| RefusalLabels { reason: code.name(), limit: "" });
    let full = STATE_LIMITS.map(|limit| RefusalLabels { reason: RefusalCode::StateFull.name(), limit });
    metrics.begin_calls(CallSeries {
        methods: &methods,
        codes: &CODES.map(spelled),
        timed: &TIMED,
        refusals: &others.chain(full).collect::<Vec<_>>(),
    });
}

fn is_submission(method: &str) -> bool {
    TIMED.contains(&method)
}

fn is_read(method: &str) -> bool {
    method.split_once('/').is_some_and(|(_, name)| READ_NAMES.iter().any(|read| name.starts_with(read)))
}

/// For each objective, the calls that this replica has answered since it started, and those that failed.
pub(crate) fn spent(metrics: &ReplicaMetrics) -> [(u64, u64); OBJECTIVES.len()] {
    OBJECTIVES.map(|(_, _, is_of)| counted(metrics, is_of))
}

/// Calls of the methods, and those that failed by the fault of the service.
fn counted(metrics: &ReplicaMetrics, is_of: fn(&str) -> bool) -> (u64, u64) {
    let calls = RULES.iter().filter(|rule| rule.class == Class::Call).map(|rule| method(rule.path));
    let (mut all, mut failed) = (0, 0);
    for method in calls.chain([STREAMED_SUBMISSION]).filter(|method| is_of(method)) {
        for code in (0..=CODE_MAX).map(Code::from_i32) {
            let answers = |bound| metrics.answers(&CallLabels { method, code: spelled(code), bound });
            let (met, unmet) = (answers(""), answers("unmet"));
            all += met + unmet;
            if code != Code::Ok && CODES.contains(&code) {
                failed += met;
            }
        }
    }
    (all, failed)
}

/// Counts the answer to a submission of a stream that came in at `begun`.
pub(crate) fn count_streamed<T>(metrics: &ReplicaMetrics, begun: Instant, answer: &Result<T, Status>) {
    #[cfg(test)]
    answer.as_ref().err().inspect(|status| {
        let (stream, _) = STREAMED_SUBMISSION.rsplit_once('/').unwrap_or_default();
        crate::protocol_tests::note(&format!("/{stream}"), status);
    });
    let verdict = answer.as_ref().err().map_or(Verdict::of_code(Code::Ok), Verdict::of);
    verdict.refusal.inspect(|refusal| metrics.refused(*refusal));
    metrics.answered(verdict.labels(STREAMED_SUBMISSION), Some(begun.elapsed()));
}

/// What an answer is counted under, next to its method.
#[derive(Clone, Copy)]
struct Verdict {
    code: Code,
    /// See [`CallLabels`].
    bound: &'static str,
    refusal: Option<RefusalLabels>,
}

impl Verdict {
    fn of_code(code: Code) -> Verdict {
        Verdict { code, bound: "", refusal: None }
    }

    fn of(status: &Status) -> Verdict {
        if status.code() == Code::Ok {
            return Verdict::of_code(Code::Ok);
        }
        let refused = Refused::from_status(status);
        // A caller may ask for any position and any age, so no number of such answers says that the service failed.
        let is_beyond = matches!(refused.code, Some(RefusalCode::TooStale | RefusalCode::LogIndexNotReached));
        let refusal = refused.code.map(|code| RefusalLabels { reason: code.name(), limit: limit(&refused) });
        Verdict { code: status.code(), bound: if is_beyond { "unmet" } else { "" }, refusal }
    }

    fn labels(self, method: &'static str) -> CallLabels {
        CallLabels { method, code: spelled(self.code), bound: self.bound }
    }
}

/// The limit that a `STATE_FULL` names, of a closed set: another version of Muster may have answered.
fn limit(refused: &Refused) -> &'static str {
    if refused.code != Some(RefusalCode::StateFull) {
        return "";
    }
    let named = refused.metadata.get("limit");
    STATE_LIMITS.into_iter().find(|limit| named.is_some_and(|named| named == limit)).unwrap_or("other")
}

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
    verdict: Verdict,
}

impl Count {
    fn begin(metrics: &ReplicaMetrics, path: &str) -> Count {
        metrics.call_begun();
        let rule = rule_of(path);
        let method = rule.map_or("other", |rule| method(rule.path));
        let is_stream = rule.is_none_or(|rule| rule.class != Class::Call);
        let verdict = Verdict::of_code(Code::Cancelled);
        Count { metrics: metrics.clone(), method, is_stream, begun: Instant::now(), verdict }
    }

    /// Takes the status from headers or trailers, where they have one.
    fn read(&mut self, headers: &http::HeaderMap) {
        let Some(status) = Status::from_header_map(headers) else { return };
        #[cfg(test)]
        crate::protocol_tests::note(&format!("/{}", self.method), &status);
        self.verdict = Verdict::of(&status);
        self.verdict.refusal.inspect(|refusal| self.metrics.refused(*refusal));
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        let labels = self.verdict.labels(self.method);
        self.metrics.call_ended(labels, (!self.is_stream).then(|| self.begun.elapsed()));
    }
}

/// As the specification of gRPC spells it.
pub(crate) fn spelled(code: Code) -> &'static str {
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
            Poll::Ready(Some(Err(status))) => {
                self.count.verdict = Verdict::of_code(status.code());
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use muster_metrics::ReplicaFacts;
    use muster_types::Refusal;
    use muster_wire::status::to_status;

    const SUBMISSIONS: [&str; 2] = [
        include_str!("../../../ops/slo/submissions-answered.yaml"),
        include_str!("../../../ops/slo/submissions-fast.yaml"),
    ];
    const READS: &str = include_str!("../../../ops/slo/reads-answered.yaml");

    fn refusal(code: RefusalCode, limit: Option<&'static str>) -> Status {
        let refusal = Refusal::new(code, "it is refused");
        to_status(&match limit {
            Some(limit) => refusal.with("limit", limit),
            None => refusal,
        })
    }

    #[test]
    fn error_budgets_are_those_of_the_objectives_and_count_what_these_do() {
        for ((promise, budget, _), file) in OBJECTIVES.into_iter().zip([SUBMISSIONS[0], READS]) {
            assert!(file.contains(&format!("description: {promise}\n")), "{promise}");
            let objective = format!("objective: \"{}\"", if budget == 500 { "99.95" } else { "99.9" });
            assert!(file.contains(&objective), "{objective}: {file}");
        }
        let metrics = ReplicaMetrics::default();
        let answered = |method, code, bound| metrics.answered(CallLabels { method, code, bound }, None);
        answered(TIMED[0], "OK", "");
        answered(TIMED[1], "INVALID_ARGUMENT", "");
        answered(STREAMED_SUBMISSION, "UNAVAILABLE", "");
        answered("muster.v1beta1.JobService/GetJob", "UNAVAILABLE", "unmet");
        answered("muster.v1beta1.JobService/ExplainJob", "INTERNAL", "");
        answered("muster.v1beta1.JobService/CancelJob", "INTERNAL", "");
        assert_eq!(spent(&metrics), [(3, 1), (2, 1)]);
    }

    #[test]
    fn what_was_asked_for_and_is_not_there_yet_is_told_apart_from_failures() {
        let bound = |code| Verdict::of(&refusal(code, None)).bound;
        assert_eq!(bound(RefusalCode::TooStale), "unmet");
        assert_eq!(bound(RefusalCode::LogIndexNotReached), "unmet");
        assert_eq!(bound(RefusalCode::ReadUnconfirmed), "");
        assert_eq!(bound(RefusalCode::NotLeader), "");
    }

    #[test]
    fn a_full_state_is_counted_by_its_limit_and_no_text_becomes_a_label() {
        let limit = |code, limit| Verdict::of(&refusal(code, limit)).refusal.map(|labels| labels.limit);
        assert_eq!(limit(RefusalCode::StateFull, Some("jobs_held_max")), Some("jobs_held_max"));
        assert_eq!(limit(RefusalCode::StateFull, Some("jobs_held_share")), Some("jobs_held_share"));
        assert_eq!(limit(RefusalCode::StateFull, Some("of another version")), Some("other"));
        assert_eq!(limit(RefusalCode::StateFull, None), Some("other"));
        assert_eq!(limit(RefusalCode::TenantLimit, Some("pendingJobs")), Some(""));
    }

    #[test]
    fn what_objectives_read_is_there_from_the_beginning() {
        let metrics = ReplicaMetrics::default();
        begin(&metrics);
        let text = metrics.scrape(ReplicaFacts::default());
        let mut named = 0;
        for file in SUBMISSIONS.into_iter().chain([READS]) {
            let codes = file.split_once("code=~\"").map_or("", |(_, rest)| rest);
            for code in codes.split('"').next().unwrap_or_default().split('|').filter(|code| !code.is_empty())
            {
                for method in
                    ["JobService/SubmitJob", "JobService/SubmitStream/submission", "JobService/GetJob"]
                {
                    let series = format!(
                        "muster_grpc_calls_total{{method=\"muster.v1beta1.{method}\",code=\"{code}\"}} 0\n"
                    );
                    assert!(text.contains(&series), "{series} in {text}");
                    named += 1;
                }
            }
        }
        assert!(named >= 30, "the codes of the objectives are not read");
        for method in TIMED {
            let series =
                format!("muster_grpc_call_duration_seconds_bucket{{le=\"0.5\",method=\"{method}\"}} 0\n");
            assert!(text.contains(&series), "{series} in {text}");
        }
        assert!(
            text.contains("muster_refusals_total{reason=\"STATE_FULL\",limit=\"jobs_held_max\"} 0\n"),
            "{text}"
        );
        assert!(text.len() < 100 << 10, "{} bytes", text.len());
    }
}
