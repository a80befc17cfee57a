//! Spans on their way to the collector: the queue and the exporter of OpenTelemetry's SDK, which reach it through this
//! workspace's own client.

use muster_fetch::{Ask, FetchRules, Fetcher};
use muster_transport::PublicTls;
use opentelemetry::KeyValue;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{ExporterBuildError, Protocol, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter, SpanProcessor as _,
};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::{Handle, TryCurrentError};

use crate::settings::TracesSettings;

/// Spans that have ended and were not sent yet.
const QUEUE_MAX: usize = 8_192;
/// Spans of one request.
const BATCH_MAX: usize = 512;
/// How long spans are gathered for a request that is not full.
const GATHER: Duration = Duration::from_millis(500);
/// How long one request may take.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// For how long a request that fails is sent again.
const EXPORT_MAX: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 4 << 10;
/// The kind of the body of a request, by the specification of OTLP.
const BODY_KIND: &str = "application/x-protobuf";

/// Spans for which there was no place, or which the collector did not take.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Spans that were dropped since this process started.
#[must_use]
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

fn note_dropped(spans: usize) {
    DROPPED.fetch_add(u64::try_from(spans).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Why no spans can be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    #[error(transparent)]
    NoRuntime(#[from] TryCurrentError),
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
}

/// Ended spans, with the SDK's thread that sends them. That thread ends with the last clone.
#[derive(Clone, Debug)]
pub(crate) struct SpanQueue {
    processor: Arc<BatchSpanProcessor>,
    waiting: Arc<AtomicUsize>,
}

impl SpanQueue {
    /// One whose spans go to the collector, in requests on the runtime that this is called on. `resource` says what this process is.
    pub(crate) fn for_collector(
        settings: &TracesSettings,
        resource: Vec<(&'static str, String)>,
    ) -> Result<SpanQueue, ExportError> {
        // What is set here goes before the variables of OpenTelemetry in the environment.
        let mut exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new(settings, Handle::try_current()?))
            .with_endpoint(settings.url.as_str())
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(EXPORT_MAX)
            .build()?;
        let attributes = resource.into_iter().map(|(name, value)| KeyValue::new(name, value));
        exporter.set_resource(&Resource::builder_empty().with_attributes(attributes).build());
        Ok(SpanQueue::new(exporter))
    }

    /// One whose spans go to this exporter.
    pub(crate) fn new<E: SpanExporter + 'static>(exporter: E) -> SpanQueue {
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = Counted { exporter, waiting: Arc::clone(&waiting) };
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE_MAX)
            .with_max_export_batch_size(BATCH_MAX)
            .with_scheduled_delay(GATHER)
            .build();
        SpanQueue { processor: Arc::new(BatchSpanProcessor::new(counted, config)), waiting }
    }

    /// Waits for nothing. A span for which there is no place is dropped and counted: here, because the processor, whose bound is the
    /// same, counts for its log alone.
    pub(crate) fn put(&self, span: SpanData) {
        if self.waiting.fetch_add(1, Ordering::AcqRel) >= QUEUE_MAX {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            note_dropped(1);
        } else {
            self.processor.on_end(span);
        }
    }

    /// Sends what waits, and ends the thread. False where that takes longer than `limit`.
    pub(crate) async fn end(&self, limit: Duration) -> bool {
        let processor = Arc::clone(&self.processor);
        let ending = tokio::task::spawn_blocking(move || processor.shutdown_with_timeout(limit).is_ok());
        ending.await.unwrap_or(false)
    }
}

/// An exporter, with what it takes out of the queue and what it does not get rid of counted.
#[derive(Debug)]
struct Counted<E> {
    exporter: E,
    waiting: Arc<AtomicUsize>,
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.waiting.fetch_sub(spans, Ordering::AcqRel);
        let result = self.exporter.export(batch).await;
        if result.is_err() {
            note_dropped(spans);
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }
}

/// The collector, as the exporter asks it.
struct Collector {
    fetcher: Arc<tokio::sync::Mutex<Fetcher>>,
    /// The exporter's thread has none.
    runtime: Handle,
    is_failing: AtomicBool,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").finish_non_exhaustive()
    }
}

impl Collector {
    fn new(settings: &TracesSettings, runtime: Handle) -> Collector {
        let is_plain = settings.url.starts_with("http://");
        // The operator of this process has named the host, so it may be anywhere.
        let rules = FetchRules {
            allow_http: is_plain,
            allowed_hosts: BTreeSet::from([settings.host.clone()]),
            timeout: REQUEST_MAX,
        };
        let tls = if is_plain {
            Err("it is reached without TLS".to_owned())
        } else {
            PublicTls::load(None).map_err(|error| error.to_string())
        };
        let fetcher = Arc::new(tokio::sync::Mutex::new(Fetcher::new(rules, Arc::new(tls))));
        Collector { fetcher, runtime, is_failing: AtomicBool::new(false) }
    }

    fn note(&self, failure: Option<String>) {
        let was_failing = self.is_failing.swap(failure.is_some(), Ordering::Relaxed);
        // Once, and not for each request: the metric says how many spans it costs.
        if let Some(error) = failure.filter(|_| !was_failing) {
            tracing::warn!(
                error,
                "the collector of traces takes no spans; what it does not take when it is asked again is dropped and counted"
            );
        }
    }
}

#[async_trait::async_trait]
impl HttpClient for Collector {
    /// Of the request the body is sent, and no header: those that variables of the environment may add are none of the configuration's.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let fetcher = Arc::clone(&self.fetcher);
        let asking = self.runtime.spawn(async move {
            let (head, body) = request.into_parts();
            let url = head.uri.to_string();
            let body = Some((BODY_KIND, body.to_vec()));
            let ask = Ask { url: &url, headers: &[], body, answer_bytes_max: ANSWER_BYTES_MAX };
            let mut fetcher = fetcher.lock().await;
            fetcher.ask(ask).await
        });
        // An error where the runtime has ended.
        let answer = asking.await?;
        self.note(match &answer {
            Ok(answer) if answer.status.is_success() => None,
            Ok(answer) => Some(format!("it answers {}", answer.status.as_u16())),
            Err(error) => Some(error.to_string()),
        });
        let answer = answer?;
        Ok(Response::builder().status(answer.status).body(Bytes::from(answer.body))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TracesFile;
    use crate::tracer::{Side, Tracer};
    use muster_types::TraceParent;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
    use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
    use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
    use prost::Message as _;
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;

    /// Longer than anything here takes.
    const LIMIT: Duration = Duration::from_secs(60);

    type Requests = mpsc::UnboundedReceiver<(String, ExportTraceServiceRequest)>;

    /// The next request on a connection: its first line and its body.
    async fn read(stream: &mut BufReader<TcpStream>) -> Option<(String, ExportTraceServiceRequest)> {
        let (mut first, mut length, mut line) = (String::new(), 0, String::new());
        loop {
            line.clear();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            let lower = line.trim().to_ascii_lowercase();
            if first.is_empty() {
                first.clone_from(&lower);
            } else if let Some(said) = lower.strip_prefix("content-length:") {
                length = said.trim().parse().ok()?;
            } else if let Some(kind) = lower.strip_prefix("content-type:") {
                assert_eq!(kind.trim(), BODY_KIND);
            } else if lower.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        Some((first, ExportTraceServiceRequest::decode(body.as_slice()).expect("it is a request of OTLP")))
    }

    /// A collector that gives these answers one after another, and 200 after them; its address and what it is sent.
    async fn collector(answers: &'static [u16]) -> (String, Requests) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (told, sent) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut answers = answers.iter();
            while let Ok((stream, _)) = listener.accept().await {
                let mut stream = BufReader::new(stream);
                // One connection after another, as the client has them.
                while let Some(request) = read(&mut stream).await {
                    let _ = told.send(request);
                    let status = answers.next().unwrap_or(&200);
                    let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        break;
                    }
                }
            }
        });
        (format!("http://{address}"), sent)
    }

    fn recording(endpoint: String) -> Tracer {
        let file = TracesFile { endpoint: Some(endpoint), sample_ratio: Some("1".to_owned()) };
        let settings = file.check().expect("it is right").expect("it names a collector");
        let resource = vec![("service.name", "muster-server".to_owned())];
        let queue = SpanQueue::for_collector(&settings, resource).expect("this is a runtime");
        Tracer::new(settings.ratio, "0.1.0", queue)
    }

    fn attribute(key: &str, value: Value) -> KeyValue {
        let value = Some(AnyValue { value: Some(value) });
        KeyValue { key: key.to_owned(), value, ..Default::default() }
    }

    #[tokio::test]
    async fn a_span_reaches_the_collector_with_all_that_is_known_of_it() {
        let (endpoint, mut sent) = collector(&[]).await;
        let tracer = recording(endpoint);
        let of = TraceParent::new([0xa7; 16], [2; 8], 1).expect("it is good");
        let own = of.with_span([3; 8]).expect("it is good");
        let mut span = tracer.child_as("muster.launch", Side::Consumer, of, own).expect("it is sampled");
        span.set("muster.node", "h1");
        span.set("muster.rank", 300_u32);
        span.set("muster.forwarded", true);
        span.fail("no");
        drop(span);
        let (line, request) = sent.recv().await.expect("it is asked");
        assert_eq!(line, "post /v1/traces http/1.1");
        let [of_resource] = request.resource_spans.as_slice() else { panic!("one resource: {request:#?}") };
        let name = attribute("service.name", Value::StringValue("muster-server".to_owned()));
        assert_eq!(of_resource.resource.clone().expect("there is one").attributes, [name]);
        let [of_scope] = of_resource.scope_spans.as_slice() else { panic!("one scope: {request:#?}") };
        let scope = of_scope.scope.clone().expect("there is one");
        assert_eq!((scope.name.as_str(), scope.version.as_str()), ("muster", "0.1.0"));
        let [span] = of_scope.spans.as_slice() else { panic!("one span: {request:#?}") };
        assert_eq!((span.trace_id.as_slice(), span.span_id.as_slice()), (&[0xa7; 16][..], &[3; 8][..]));
        assert_eq!(span.parent_span_id, [2; 8]);
        assert_eq!((span.name.as_str(), span.kind()), ("muster.launch", SpanKind::Consumer));
        assert!(0 < span.start_time_unix_nano && span.start_time_unix_nano <= span.end_time_unix_nano);
        let known = [
            attribute("muster.node", Value::StringValue("h1".to_owned())),
            attribute("muster.rank", Value::IntValue(300)),
            attribute("muster.forwarded", Value::BoolValue(true)),
        ];
        assert_eq!(span.attributes, known);
        let status = span.status.clone().expect("there is one");
        assert_eq!((status.code(), status.message.as_str()), (StatusCode::Error, "no"));
    }

    #[tokio::test]
    async fn a_collector_that_is_busy_is_asked_again() {
        let (endpoint, mut sent) = collector(&[503]).await;
        let tracer = recording(endpoint);
        drop(tracer.root("muster.call", Side::Server));
        let first = sent.recv().await.expect("it is asked");
        assert_eq!(sent.recv().await.expect("it is asked again"), first);
    }

    #[tokio::test]
    async fn what_waits_is_sent_at_the_end() {
        let (endpoint, mut sent) = collector(&[]).await;
        let tracer = recording(endpoint);
        let spans = BATCH_MAX * 2 + 1;
        for _ in 0..spans {
            drop(tracer.root("muster.call", Side::Server));
        }
        assert!(tracer.end(LIMIT).await, "the collector answers");
        let mut taken = 0;
        while let Ok((_, request)) = sent.try_recv() {
            let scopes = request.resource_spans.iter().flat_map(|resource| &resource.scope_spans);
            taken += scopes.map(|scope| scope.spans.len()).sum::<usize>();
        }
        assert_eq!(taken, spans);
    }

    #[tokio::test]
    async fn what_no_collector_takes_is_counted() {
        let tracer = recording("http://127.0.0.1:1".to_owned());
        let before = dropped();
        drop(tracer.root("muster.call", Side::Server).expect("all are recorded"));
        tracer.end(LIMIT).await;
        assert!(dropped() > before);
    }

    /// Takes nothing until its gate is opened.
    #[derive(Debug)]
    struct Held(Arc<tokio::sync::Semaphore>);

    impl SpanExporter for Held {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            let _ = self.0.acquire().await;
            Ok(())
        }
    }

    #[tokio::test]
    async fn nobody_waits_for_a_place_and_what_finds_none_is_counted() {
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let queue = SpanQueue::new(Held(Arc::clone(&gate)));
        let tracer = Tracer::new("1".parse().expect("it is a ratio"), "0.1.0", queue);
        let before = dropped();
        for _ in 0..2 * QUEUE_MAX {
            drop(tracer.root("muster.call", Side::Server));
        }
        // The thread may have taken one batch out.
        let least = u64::try_from(QUEUE_MAX - BATCH_MAX).expect("it is small");
        assert!(dropped() - before >= least);
        assert!(!tracer.end(Duration::ZERO).await, "the end is bounded");
        gate.close();
    }
}
