//! How long the web pages of a large cluster take to their first byte. A measurement, run by hand:
//! `cargo test --release -p muster-api first_bytes -- --ignored --nocapture`

use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::web::Pages;
use super::*;

const HOSTS: u32 = 1_600;
const DEVICES: u32 = 64;
const ARRAYS: u32 = 100;
const ARRAY_SIZE: u32 = 1_000;
const TENANTS: u32 = 50;
const REPETITIONS: usize = 20;

/// Opens the session of a host and keeps it until the test ends.
async fn host(served: &TestServer, number: u32) {
    let (send, requests) = mpsc::channel(16);
    let node = v1::NodeDescription {
        name: format!("host-{number}"),
        region: format!("region-{}", number % 4),
        cluster: format!("cluster-{}", number % 8),
        block: format!("block-{}", number / 64),
        rack: format!("rack-{}", number / 8),
        address: "10.0.0.1".to_owned(),
        accelerators: Some(v1::Accelerators { r#type: "h100".to_owned(), count: DEVICES }),
        cpu_milli: 512_000,
        memory_bytes: 1 << 40,
        ..Default::default()
    };
    let register =
        agent::Register { node: Some(node), holder_id: format!("{:032x}", number + 1), ..Default::default() };
    let message = Some(session_request::Message::Register(register));
    send.send(agent::SessionRequest { message }).await.expect("it is taken");
    let mut client = NodeServiceClient::new(served.channel.clone());
    let mut responses = client.session(ReceiverStream::new(requests)).await.expect("it opens").into_inner();
    let first = responses.message().await.expect("it stands").and_then(|message| message.message);
    assert!(matches!(first, Some(session_response::Message::Registered(_))), "{first:?}");
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_secs(2));
        let mut sequence = 0;
        loop {
            tokio::select! {
                message = responses.message() => if !matches!(message, Ok(Some(_))) { return },
                _ = ticks.tick() => {
                    sequence += 1;
                    let beat = session_request::Message::Heartbeat(agent::Heartbeat { sequence });
                    if send.send(agent::SessionRequest { message: Some(beat) }).await.is_err() {
                        return;
                    }
                }
            }
        }
    });
}

/// Milliseconds to the first byte, and bytes of the whole answer.
async fn asked(address: SocketAddr, path: &str) -> (f64, usize) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let begun = Instant::now();
    stream.write_all(request.as_bytes()).await.expect("it is taken");
    let mut answer = vec![0; 1];
    stream.read_exact(&mut answer).await.expect("it answers");
    let first = begun.elapsed();
    stream.read_to_end(&mut answer).await.expect("it is whole");
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{path}: {}", String::from_utf8_lossy(&answer));
    (first.as_secs_f64() * 1_000.0, answer.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn first_bytes_of_pages_with_a_hundred_thousand_jobs() {
    let served = TestServer::start().await;
    for number in 0..HOSTS {
        host(&served, number).await;
    }
    let mut last = String::new();
    for number in 0..ARRAYS {
        let mut request =
            submission(&format!("00000000-0000-4000-a000-{number:012}"), &format!("sweep-{number}"));
        let job = request.job.as_mut().expect("it has one");
        job.tenant = format!("tenant-{}", number % TENANTS);
        job.labels = [("team".to_owned(), format!("team-{}", number % 7))].into();
        job.spec_mut().array = Some(muster_wire::v1::JobArray { size: ARRAY_SIZE, ..Default::default() });
        let group = &mut job.spec_mut().groups[0];
        group.resources_mut().accelerators.as_mut().expect("it asks for some").amount =
            Some(v1::accelerator_request::Amount::Count(8));
        let taken = served.jobs().submit_job(request).await.expect("it is taken").into_inner();
        last = taken.job_ids.last().cloned().unwrap_or_default();
    }
    let capacity = (HOSTS * DEVICES / 8) as usize;
    while served.engine.view().active_count() < capacity {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let view = served.engine.view();
    let optimised = if cfg!(debug_assertions) { "without optimisation" } else { "optimised" };
    println!(
        "{optimised}: {} jobs, {} of them active, {} nodes, {} devices",
        view.jobs().len(),
        view.active_count(),
        view.nodes().len(),
        HOSTS * DEVICES
    );
    let pages = Pages::of(served.engine.clone(), Security::Plaintext).await;
    println!("| page | first byte, median | slowest of {REPETITIONS} | bytes |\n|---|---|---|---|");
    let job = format!("/jobs/{last}");
    for path in [
        "/",
        "/jobs",
        "/jobs?group=tenant",
        "/jobs?group=tier",
        "/jobs?labels=team%3Dteam-3",
        "/jobs?name=nothing",
        &job,
        "/queues",
        "/nodes",
        "/nodes/host-7",
        "/fleet",
        "/fleet/map",
        "/events",
        "/cluster",
    ] {
        let mut times = Vec::new();
        let mut bytes = 0;
        for _ in 0..REPETITIONS {
            let (ms, size) = asked(pages.address, path).await;
            times.push(ms);
            bytes = size;
        }
        times.sort_by(f64::total_cmp);
        let (median, slowest) = (times[REPETITIONS / 2], times[REPETITIONS - 1]);
        println!("| `{path}` | {median:.1} ms | {slowest:.1} ms | {bytes} |");
    }
}
