//! The task that sends spans to the collector.

use muster_fetch::{Ask, FetchError, FetchRules, Fetcher};
use muster_transport::PublicTls;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::otlp;
use crate::settings::TracesSettings;
use crate::tracer::{Ended, Queue, note_dropped};

/// Spans of one request.
const BATCH_MAX: usize = 512;
/// How long spans are gathered for a request that is not full.
const GATHER: Duration = Duration::from_millis(500);
/// How long one request may take.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// The pause before a request that failed is sent once more.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Bytes of an answer that are read: it says nothing that is used.
const ANSWER_BYTES_MAX: usize = 4 << 10;

/// Sends what comes out of the queue until its tracer is gone. `resource` says what this process is. Spans that the collector does
/// not take, asked twice, are dropped and counted.
pub async fn export(
    mut queue: Queue,
    settings: TracesSettings,
    resource: Vec<(&'static str, String)>,
    version: &str,
) {
    let mut collector = Collector::new(settings);
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, BATCH_MAX).await > 0 {
        if batch.len() < BATCH_MAX {
            tokio::time::sleep(GATHER).await;
            while batch.len() < BATCH_MAX
                && let Ok(span) = queue.try_recv()
            {
                batch.push(span);
            }
        }
        collector.take(&resource, version, &batch).await;
        batch.clear();
    }
}

struct Collector {
    settings: TracesSettings,
    fetcher: Fetcher,
    is_failing: bool,
}

impl Collector {
    fn new(settings: TracesSettings) -> Collector {
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
        Collector { settings, fetcher: Fetcher::new(rules, Arc::new(tls)), is_failing: false }
    }

    async fn take(&mut self, resource: otlp::Resource<'_>, version: &str, spans: &[Ended]) {
        let body = otlp::request(resource, version, spans);
        let mut failure = self.ask(body.clone()).await;
        if failure.is_some() {
            tokio::time::sleep(AGAIN_AFTER).await;
            failure = self.ask(body).await;
        }
        match failure {
            None => self.is_failing = false,
            Some(why) => {
                note_dropped(spans.len());
                // Once, and not for each request: the metric says how many.
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(
                        error = why,
                        "the collector of traces takes no spans; they are dropped and counted"
                    );
                }
            }
        }
    }

    /// Why the collector did not take it; none where it did.
    async fn ask(&mut self, body: Vec<u8>) -> Option<String> {
        let ask = Ask {
            url: &self.settings.url,
            headers: &[],
            body: Some(("application/x-protobuf", body)),
            answer_bytes_max: ANSWER_BYTES_MAX,
        };
        let answer: Result<_, FetchError> = self.fetcher.ask(ask).await;
        match answer {
            Ok(answer) if answer.status.is_success() => None,
            Ok(answer) => Some(format!("it answers {}", answer.status.as_u16())),
            Err(error) => Some(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TracesFile;
    use crate::tracer::{Side, Tracer, dropped};
    use muster_types::TraceParent;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    /// A collector that answers with this status; gives its address and what it is sent.
    async fn collector(status: u16) -> (String, tokio::sync::mpsc::UnboundedReceiver<Vec<u8>>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (told, sent) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let told = told.clone();
                tokio::spawn(async move {
                    let mut buffer = vec![0; 64 << 10];
                    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                        let _ = told.send(buffer[..read].to_vec());
                        let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        (format!("http://{address}"), sent)
    }

    fn contains(bytes: &[u8], part: &[u8]) -> bool {
        bytes.windows(part.len()).any(|window| window == part)
    }

    fn settings(endpoint: String) -> TracesSettings {
        let file = TracesFile { endpoint: Some(endpoint), sample_ratio: Some("1".to_owned()) };
        file.check().expect("it is right").expect("it names a collector")
    }

    #[tokio::test]
    async fn a_span_reaches_the_collector_with_its_trace() {
        let (endpoint, mut sent) = collector(200).await;
        let settings = settings(endpoint);
        let (tracer, queue) = Tracer::new(settings.ratio);
        let resource = vec![("service.name", "muster-server".to_owned())];
        let task = tokio::spawn(export(queue, settings, resource, "0.1.0"));
        let of = TraceParent::new([0xa7; 16], [2; 8], 1).expect("it is good");
        drop(tracer.child("muster.call", Side::Server, of).expect("it is sampled"));
        // The request may come in several pieces.
        let mut bytes = Vec::new();
        while !contains(&bytes, b"muster.call") {
            bytes.extend(sent.recv().await.expect("it is asked"));
        }
        assert!(bytes.starts_with(b"POST /v1/traces HTTP/1.1\r\n"));
        assert!(contains(&bytes, &[0xa7; 16]) && contains(&bytes, b"muster-server"));
        drop(tracer);
        task.await.expect("it ends with its tracer");
    }

    #[tokio::test]
    async fn what_no_collector_takes_is_counted() {
        let settings = settings("http://127.0.0.1:1".to_owned());
        let (tracer, queue) = Tracer::new(settings.ratio);
        let before = dropped();
        drop(tracer.root("muster.call", Side::Server).expect("all are recorded"));
        drop(tracer);
        export(queue, settings, Vec::new(), "0.1.0").await;
        assert!(dropped() > before);
    }
}
