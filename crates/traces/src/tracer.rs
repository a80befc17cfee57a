//! The tracer of this process, and its spans until they end.

use muster_types::TraceParent;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use crate::export::SpanQueue;
use crate::settings::{SampleRatio, TracesSettings};

/// Attributes of one span.
const ATTRIBUTES_MAX: usize = 16;
/// Bytes of the text of an attribute; the rest is cut off.
const TEXT_BYTES_MAX: usize = 256;

static TRACER: OnceLock<Tracer> = OnceLock::new();

/// The tracer of this process; none where no collector is configured.
pub fn tracer() -> Option<&'static Tracer> {
    TRACER.get()
}

/// Has this process record spans from now on, and send them until [`end`] or until the runtime that this is called on ends. Where it
/// does so already, that goes on. `resource` says what this process is.
pub fn begin(settings: &TracesSettings, resource: Vec<(&'static str, String)>, version: &str) {
    if tracer().is_some() {
        return;
    }
    match SpanQueue::for_collector(settings, resource) {
        // Another may have been faster: then this one ends.
        Ok(queue) => drop(TRACER.set(Tracer::new(settings.ratio, version, queue))),
        Err(error) => tracing::warn!(%error, "no spans are recorded"),
    }
}

/// Sends the spans that have ended, and no others from then on. It takes no longer than `limit`.
pub async fn end(limit: Duration) {
    if let Some(tracer) = tracer()
        && !tracer.end(limit).await
    {
        tracing::warn!(limit_ms = limit.as_millis(), "not all spans were sent to the collector of traces");
    }
}

/// On which side of an exchange a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Within this process.
    Internal,
    /// It answers a call.
    Server,
    /// It sends something that others take.
    Producer,
    /// It takes what others have sent.
    Consumer,
}

impl Side {
    fn kind(self) -> SpanKind {
        match self {
            Side::Internal => SpanKind::Internal,
            Side::Server => SpanKind::Server,
            Side::Producer => SpanKind::Producer,
            Side::Consumer => SpanKind::Consumer,
        }
    }
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
        Value::Text(text.get(..end.unwrap_or(0)).unwrap_or_default().to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::from(text.as_str())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Value {
        Value::Number(number.into())
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Value {
        Value::Number(number.into())
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Value {
        Value::Flag(flag)
    }
}

impl From<Value> for opentelemetry::Value {
    fn from(value: Value) -> opentelemetry::Value {
        match value {
            Value::Text(text) => text.into(),
            Value::Number(number) => number.into(),
            Value::Flag(flag) => flag.into(),
        }
    }
}

/// Makes spans of this process.
#[derive(Debug)]
pub struct Tracer {
    ratio: SampleRatio,
    /// What makes the spans.
    scope: InstrumentationScope,
    queue: SpanQueue,
}

impl Tracer {
    /// One that records this part of the traces that begin here.
    pub(crate) fn new(ratio: SampleRatio, version: &str, queue: SpanQueue) -> Tracer {
        let scope = InstrumentationScope::builder("muster").with_version(version.to_owned()).build();
        Tracer { ratio, scope, queue }
    }

    /// Sends what waits. False where that takes longer than `limit`.
    pub(crate) async fn end(&self, limit: Duration) -> bool {
        self.queue.end(limit).await
    }

    /// The first span of a trace that begins here; none where this trace is not to be recorded.
    #[must_use]
    pub fn root(&self, name: &'static str, side: Side) -> Option<Span> {
        let trace_id = rand::random::<u128>();
        if !self.ratio.takes(trace_id) {
            return None;
        }
        let own = TraceParent::new(trace_id.to_be_bytes(), new_span_id(), 1)?;
        Some(self.span(name, side, own, None))
    }

    /// A part of a span; none where its trace is not recorded.
    #[must_use]
    pub fn child(&self, name: &'static str, side: Side, of: TraceParent) -> Option<Span> {
        self.child_as(name, side, of, of.with_span(new_span_id())?)
    }

    /// The same with an id that others know already.
    #[must_use]
    pub fn child_as(
        &self,
        name: &'static str,
        side: Side,
        of: TraceParent,
        own: TraceParent,
    ) -> Option<Span> {
        of.is_sampled().then(|| self.span(name, side, own, Some(of.span_id())))
    }

    fn span(&self, name: &'static str, side: Side, own: TraceParent, parent: Option<[u8; 8]>) -> Span {
        let begun = SystemTime::now();
        let (trace_id, span_id) = (TraceId::from_bytes(own.trace_id()), SpanId::from_bytes(own.span_id()));
        let record = SpanData {
            span_context: SpanContext::new(trace_id, span_id, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: parent.map_or(SpanId::INVALID, SpanId::from_bytes),
            // What is not within this process follows from a call, or from the contract of a job.
            parent_span_is_remote: parent.is_some() && side != Side::Internal,
            span_kind: side.kind(),
            name: name.into(),
            start_time: begun,
            end_time: begun,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        };
        Span { own, record: Some(Box::new(record)), is_over: false, queue: self.queue.clone() }
    }
}

/// An id that has a bit.
fn new_span_id() -> [u8; 8] {
    rand::random::<u64>().max(1).to_be_bytes()
}

/// A span that goes on until it is dropped.
#[derive(Debug)]
pub struct Span {
    own: TraceParent,
    /// None once it was sent.
    record: Option<Box<SpanData>>,
    /// Its end is known.
    is_over: bool,
    queue: SpanQueue,
}

impl Span {
    /// Its place in its trace, which parts of it have as their parent.
    #[must_use]
    pub fn place(&self) -> Option<TraceParent> {
        self.record.is_some().then_some(self.own)
    }

    /// Adds what is known of it; what exceeds the bound of attributes is left out.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        let Some(record) = &mut self.record else { return };
        if record.attributes.len() < ATTRIBUTES_MAX {
            let value: Value = value.into();
            record.attributes.push(KeyValue::new(name, value));
        } else {
            record.dropped_attributes_count = record.dropped_attributes_count.saturating_add(1);
        }
    }

    /// It has failed, for this reason.
    pub fn fail(&mut self, why: &str) {
        if let (Some(record), Value::Text(why)) = (&mut self.record, Value::from(why)) {
            record.status = Status::error(why);
        }
    }

    /// It began and ended at these times.
    pub fn lasted(&mut self, begun: Instant, ended: Instant) {
        if let Some(record) = &mut self.record {
            record.start_time = at(begun);
            record.end_time = at(ended).max(record.start_time);
            self.is_over = true;
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(mut record) = self.record.take() else { return };
        if !self.is_over {
            record.end_time = SystemTime::now().max(record.start_time);
        }
        self.queue.put(*record);
    }
}

/// The time of day of a moment that has passed.
fn at(moment: Instant) -> SystemTime {
    let now = SystemTime::now();
    now.checked_sub(moment.elapsed()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::SpanExporter;
    use parking_lot::Mutex;
    use std::sync::Arc;

    /// Longer than anything here takes.
    const LIMIT: Duration = Duration::from_secs(60);

    /// Keeps what it is given.
    #[derive(Clone, Debug, Default)]
    struct Recorded(Arc<Mutex<Vec<SpanData>>>);

    impl SpanExporter for Recorded {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().extend(batch);
            Ok(())
        }
    }

    impl Recorded {
        /// The only span that this tracer has made.
        async fn only(&self, tracer: &Tracer) -> SpanData {
            assert!(tracer.end(LIMIT).await);
            let mut spans = std::mem::take(&mut *self.0.lock());
            assert_eq!(spans.len(), 1, "{spans:?}");
            spans.remove(0)
        }
    }

    fn recording(ratio: &str) -> (Tracer, Recorded) {
        let kept = Recorded::default();
        let queue = SpanQueue::new(kept.clone());
        (Tracer::new(ratio.parse().expect("it is a ratio"), "0.1.0", queue), kept)
    }

    fn sampled() -> TraceParent {
        TraceParent::new([7; 16], [8; 8], 1).expect("it is good")
    }

    #[tokio::test]
    async fn a_span_is_queued_when_it_is_dropped_with_its_parent_and_attributes() {
        let (tracer, kept) = recording("1");
        let own = sampled().derived(&[1, 2]);
        let mut span =
            tracer.child_as("muster.launch", Side::Consumer, sampled(), own).expect("it is sampled");
        assert_eq!(span.place(), Some(own));
        span.set("muster.job", "job-1");
        span.set("muster.log_index", 7_u64);
        span.fail("OVERLOADED");
        // It goes on, and is none of those that are sent.
        drop(tracer.child("muster.call", Side::Server, own).expect("it is sampled"));
        let call = kept.only(&tracer).await;
        assert_eq!(call.parent_span_id.to_bytes(), own.span_id());
        assert_ne!(call.span_context.span_id().to_bytes(), own.span_id());

        let (tracer, kept) = recording("1");
        span.queue = tracer.queue.clone();
        drop(span);
        let ended = kept.only(&tracer).await;
        assert_eq!(ended.span_context.trace_id().to_bytes(), [7; 16]);
        assert_eq!(ended.span_context.span_id().to_bytes(), own.span_id());
        assert_eq!((ended.parent_span_id.to_bytes(), ended.parent_span_is_remote), ([8; 8], true));
        assert_eq!(ended.attributes[1], KeyValue::new("muster.log_index", 7_i64));
        assert_eq!(ended.status, Status::error("OVERLOADED"));
        assert!(ended.end_time >= ended.start_time);
    }

    #[tokio::test]
    async fn what_is_known_of_its_times_is_kept() {
        let (tracer, kept) = recording("1");
        let begun = Instant::now();
        let mut span = tracer.root("muster.apply", Side::Internal).expect("all are recorded");
        span.lasted(begun, begun);
        drop(span);
        let ended = kept.only(&tracer).await;
        assert!(ended.end_time >= ended.start_time);
        assert_eq!((ended.parent_span_id, ended.parent_span_is_remote), (SpanId::INVALID, false));
    }

    #[tokio::test]
    async fn attributes_are_bounded() {
        let (tracer, kept) = recording("1");
        let mut span = tracer.root("muster.call", Side::Server).expect("all are recorded");
        for _ in 0..=ATTRIBUTES_MAX {
            span.set("muster.jobs", 1_u32);
        }
        drop(span);
        let ended = kept.only(&tracer).await;
        assert_eq!((ended.attributes.len(), ended.dropped_attributes_count), (ATTRIBUTES_MAX, 1));
    }

    #[test]
    fn what_is_not_sampled_is_no_span() {
        let (tracer, _kept) = recording("0");
        assert!(tracer.root("muster.call", Side::Server).is_none());
        let unsampled = TraceParent::new([7; 16], [8; 8], 0).expect("it is good");
        assert!(tracer.child("muster.call", Side::Server, unsampled).is_none());
    }

    #[test]
    fn texts_are_cut_between_characters() {
        let Value::Text(text) = Value::from("ä".repeat(TEXT_BYTES_MAX)) else { panic!("it is a text") };
        assert_eq!(text, "ä".repeat(TEXT_BYTES_MAX / 2));
        assert_eq!(Value::from(""), Value::Text(String::new()));
        assert_eq!(Value::from(u64::MAX), Value::Number(i64::MAX));
    }
}
