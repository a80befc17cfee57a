//! A submission that is a part of a trace: through a follower to its worker, and to a collector.

use muster_client::{Client, Endpoints, Options};
use muster_types::TraceParent;
use muster_wire::v1;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use prost::Message as _;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::support::{Agents, Cluster, eventually, is_finished, job, output, wait_for_job};

/// A collector of this test. Dropping it closes its port.
struct Collector {
    endpoint: String,
    spans: Arc<Mutex<Vec<Span>>>,
    serves: JoinHandle<()>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serves.abort();
    }
}

impl Collector {
    async fn start() -> Collector {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("it is bound"));
        let spans = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&spans);
        let serves = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let into = Arc::clone(&into);
                open.spawn(async move { while_open(stream, &into).await });
            }
        });
        Collector { endpoint, spans, serves }
    }

    /// Spans of a trace by their names.
    fn of(&self, trace_id: [u8; 16]) -> BTreeMap<String, Vec<Span>> {
        let mut found: BTreeMap<String, Vec<Span>> = BTreeMap::new();
        for span in self.spans.lock().iter().filter(|span| span.trace_id == trace_id) {
            found.entry(span.name.clone()).or_default().push(span.clone());
        }
        found
    }
}

/// Takes requests until the other side closes the connection.
async fn while_open(stream: TcpStream, into: &Mutex<Vec<Span>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut length, mut line) = (0, String::new());
        loop {
            line.clear();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            let lower = line.trim().to_ascii_lowercase();
            if let Some(said) = lower.strip_prefix("content-length:") {
                length = said.trim().parse().expect("a length");
            }
            if lower.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        let request = ExportTraceServiceRequest::decode(body.as_slice()).expect("it is a request of OTLP");
        let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
        into.lock().extend(scopes.flat_map(|scope| scope.spans));
        if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.is_err() {
            return;
        }
    }
}

fn parent(text: &str) -> TraceParent {
    TraceParent::parse(text).expect("it is good")
}

/// A client of one replica whose calls are a part of a span.
fn client_in(endpoint: &str, parent: TraceParent) -> Client {
    let endpoints = Endpoints::parse(&[endpoint.to_owned()]).expect("an address is an endpoint");
    Client::lazy(endpoints.with_trace_parent(parent), Options::STANDARD)
}

fn request(id: u128) -> v1::SubmitJobRequest {
    let job = job("traced", &["sh", "-c", "echo $TRACEPARENT"]);
    v1::SubmitJobRequest {
        request_id: uuid::Uuid::from_u128(id).to_string(),
        job: Some(job),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submission_through_a_follower_is_one_trace_down_to_its_worker() {
    let collector = Collector::start().await;
    let endpoint = &collector.endpoint;
    let settings = format!("[traces]\nendpoint = \"{endpoint}\"\nsample_ratio = \"0\"\n");
    let mut cluster = Cluster::lay_out_with(3, 0, &settings);
    for at in 0..3 {
        cluster.start_replica_with(at, &["--bootstrap"]);
    }
    cluster.leader().await;
    let (replicas, more) = (cluster.shown_endpoints(), format!("traces = {{ endpoint = \"{endpoint}\" }}\n"));
    let _agents = Agents::start_with(&cluster, &["h1"], |_| replicas.clone(), |_, _| more.clone()).await;
    let follower = cluster.follower().await;

    let of = parent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    let traced = client_in(&cluster.replicas[follower].endpoint(), of);
    let id = traced.submit_job(request(7)).await.expect("it fits").job_ids.remove(0);
    let client = cluster.client();
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(ended.phase(), v1::JobPhase::Succeeded, "{ended:#?}");
    let worker = parent(output(&client, &id).await.trim());
    assert_eq!(worker.trace_id(), of.trace_id());

    let wanted = [
        ("muster.call", 2),
        ("muster.decide", 1),
        ("muster.replicate", 1),
        ("muster.apply", 1),
        ("muster.order", 1),
        ("muster.launch", 1),
    ];
    let spans = eventually("the collector has not got all spans", || async {
        let found = collector.of(of.trace_id());
        let has = |(name, count): &(&str, usize)| found.get(*name).is_some_and(|spans| spans.len() >= *count);
        wanted.iter().all(has).then_some(found)
    })
    .await;
    let calls = &spans["muster.call"];
    let of_follower =
        calls.iter().find(|span| span.parent_span_id == of.span_id()).expect("the follower's call");
    let of_leader =
        calls.iter().find(|span| span.parent_span_id == of_follower.span_id).expect("the leader's call");
    for name in ["muster.decide", "muster.replicate", "muster.apply", "muster.order", "muster.launch"] {
        let span = &spans[name][0];
        assert_eq!(
            span.parent_span_id, of_leader.span_id,
            "{name} is a part of the leader's call: {spans:#?}"
        );
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
    }
    assert_eq!(spans["muster.launch"][0].span_id, worker.span_id(), "the worker goes on from its launch");

    // The same request in another span is the same request.
    let other = parent("00-11111111111111111111111111111111-2222222222222222-01");
    let again = client_in(&cluster.replicas[follower].endpoint(), other);
    let repeated = again.submit_job(request(7)).await.expect("it is repeated");
    assert_eq!(repeated.job_ids, [id]);
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_collector_a_trace_goes_on_to_the_worker_and_one_that_is_none_is_ignored() {
    let mut cluster = Cluster::start(1).await;
    let _agents = Agents::start(&cluster, &["h1"]).await;
    let client = cluster.client();
    let of = parent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00");
    let traced = client_in(&cluster.replicas[0].endpoint(), of);
    let id = traced.submit_job(request(7)).await.expect("it fits").job_ids.remove(0);
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(ended.spec().trace_parent, of.to_string(), "no span of a replica takes its place");
    let worker = parent(output(&client, &id).await.trim());
    assert_eq!((worker.trace_id(), worker.is_sampled()), (of.trace_id(), false));

    let id = client.submit_job(request(8)).await.expect("it fits").job_ids.remove(0);
    wait_for_job(&client, &id, is_finished).await;
    assert_eq!(output(&client, &id).await.trim(), "", "it is a part of no trace");
    cluster.assert_digests_agree().await;
}
