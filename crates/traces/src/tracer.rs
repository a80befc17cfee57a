//! The tracer of this process, and spans on their way to the collector.

use muster_types::TraceParent;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};
use tokio::sync::mpsc;

use crate::settings::SampleRatio;

/// Spans that have ended and were not sent yet.
const QUEUE_MAX: usize = 8_192;
/// Attributes of one span.
const ATTRIBUTES_MAX: usize = 16;
/// Bytes of the text of an attribute; the rest is cut off.
const TEXT_BYTES_MAX: usize = 256;

static TRACER: OnceLock<Tracer> = OnceLock::new();
/// Spans for which there was no place, or which the collector did not take.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// The tracer of this process; none where no collector is configured.
pub fn tracer() -> Option<&'static Tracer> {
    TRACER.get()
}

/// Has this process record spans from now on. False where it does already; then the other tracer stays.
pub fn install(tracer: Tracer) -> bool {
    TRACER.set(tracer).is_ok()
}

/// Spans that were dropped since this process started.
#[must_use]
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

pub(crate) fn note_dropped(spans: usize) {
    DROPPED.fetch_add(u64::try_from(spans).unwrap_or(u64::MAX), Ordering::Relaxed);
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

/// A span that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What it is.
    pub name: &'static str,
    /// On which side.
    pub side: Side,
    /// Its trace, and itself in it.
    pub own: TraceParent,
    /// The span that it is a part of; none for the first of its trace.
    pub parent: Option<[u8; 8]>,
    /// When it began.
    pub begun: SystemTime,
    /// When it ended.
    pub ended: SystemTime,
    /// What is known of it.
    pub attributes: Vec<(&'static str, Value)>,
    /// Why it failed; none where it did not.
    pub failure: Option<String>,
}

/// Ended spans, for the task that sends them.
pub type Queue = mpsc::Receiver<Ended>;

/// Makes spans of this process.
#[derive(Debug)]
pub struct Tracer {
    ratio: SampleRatio,
    ended: mpsc::Sender<Ended>,
}

impl Tracer {
    /// One that records this part of the traces that begin here, and where its spans come out.
    #[must_use]
    pub fn new(ratio: SampleRatio) -> (Tracer, Queue) {
        let (ended, queue) = mpsc::channel(QUEUE_MAX);
        (Tracer { ratio, ended }, queue)
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
        let (attributes, failure) = (Vec::new(), None);
        let record = Ended { name, side, own, parent, begun, ended: begun, attributes, failure };
        Span { record: Some(record), is_over: false, ended: self.ended.clone() }
    }
}

/// An id that has a bit.
fn new_span_id() -> [u8; 8] {
    rand::random::<u64>().max(1).to_be_bytes()
}

/// A span that goes on until it is dropped.
#[derive(Debug)]
pub struct Span {
    /// None once it was sent.
    record: Option<Ended>,
    /// Its end is known.
    is_over: bool,
    ended: mpsc::Sender<Ended>,
}

impl Span {
    /// Its place in its trace, which parts of it have as their parent.
    #[must_use]
    pub fn place(&self) -> Option<TraceParent> {
        self.record.as_ref().map(|record| record.own)
    }

    /// Adds what is known of it; what exceeds the bound of attributes is left out.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        if let Some(record) = self.record.as_mut().filter(|record| record.attributes.len() < ATTRIBUTES_MAX) {
            record.attributes.push((name, value.into()));
        }
    }

    /// It has failed, for this reason.
    pub fn fail(&mut self, why: &str) {
        if let (Some(record), Value::Text(why)) = (&mut self.record, Value::from(why)) {
            record.failure = Some(why);
        }
    }

    /// It began and ended at these times.
    pub fn lasted(&mut self, begun: Instant, ended: Instant) {
        if let Some(record) = &mut self.record {
            record.begun = at(begun);
            record.ended = at(ended).max(record.begun);
            self.is_over = true;
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(mut record) = self.record.take() else { return };
        if !self.is_over {
            record.ended = SystemTime::now().max(record.begun);
        }
        if self.ended.try_send(record).is_err() {
            note_dropped(1);
        }
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
    use std::time::Duration;

    fn all() -> SampleRatio {
        "1".parse().expect("it is a ratio")
    }

    fn sampled() -> TraceParent {
        TraceParent::new([7; 16], [8; 8], 1).expect("it is good")
    }

    #[tokio::test]
    async fn a_span_is_queued_when_it_is_dropped_with_its_parent_and_attributes() {
        let (tracer, mut queue) = Tracer::new(all());
        let mut span = tracer.child("muster.call", Side::Server, sampled()).expect("it is sampled");
        let place = span.place().expect("it goes on");
        span.set("muster.job", "job-1");
        span.set("muster.log_index", 7_u64);
        span.fail("OVERLOADED");
        assert!(queue.try_recv().is_err(), "it goes on");
        drop(span);
        let ended = queue.recv().await.expect("it has ended");
        assert_eq!((ended.own, ended.parent), (place, Some([8; 8])));
        assert_eq!(place.trace_id(), [7; 16]);
        assert_eq!(ended.attributes[1], ("muster.log_index", Value::Number(7)));
        assert_eq!(ended.failure.as_deref(), Some("OVERLOADED"));
        assert!(ended.ended >= ended.begun);
    }

    #[tokio::test]
    async fn what_is_known_of_its_times_is_kept() {
        let (tracer, mut queue) = Tracer::new(all());
        let now = Instant::now();
        let mut span = tracer.root("muster.apply", Side::Internal).expect("all are recorded");
        span.lasted(now, now + Duration::from_millis(0));
        drop(span);
        let ended = queue.recv().await.expect("it has ended");
        assert!(ended.ended >= ended.begun && ended.parent.is_none());
    }

    #[test]
    fn what_is_not_sampled_is_no_span_and_what_finds_no_place_is_counted() {
        let (tracer, _queue) = Tracer::new("0".parse().expect("it is a ratio"));
        assert!(tracer.root("muster.call", Side::Server).is_none());
        let unsampled = TraceParent::new([7; 16], [8; 8], 0).expect("it is good");
        assert!(tracer.child("muster.call", Side::Server, unsampled).is_none());
        let before = dropped();
        for _ in 0..=QUEUE_MAX {
            drop(tracer.child("muster.call", Side::Server, sampled()));
        }
        assert!(dropped() > before);
    }

    #[test]
    fn texts_are_cut_between_characters() {
        let Value::Text(text) = Value::from("ä".repeat(TEXT_BYTES_MAX)) else { panic!("it is a text") };
        assert_eq!(text, "ä".repeat(TEXT_BYTES_MAX / 2));
        assert_eq!(Value::from(""), Value::Text(String::new()));
        assert_eq!(Value::from(u64::MAX), Value::Number(i64::MAX));
    }
}
