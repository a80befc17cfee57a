//! What readers of the web pages can cost who take nothing, say nothing or wait.

use muster_monitoring::ConnectionTimeouts;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic::codegen::{Bytes, Service};

use super::web::{Pages, Site};
use super::*;
use crate::web::Timeouts;

/// As of a replica, in less time.
const SHORT: Timeouts = Timeouts {
    connection: ConnectionTimeouts {
        first_byte: Duration::from_millis(500),
        stall: Duration::from_millis(500),
    },
    page: Duration::from_millis(500),
};

type Answered = http::Response<Body>;

/// A connection of HTTP/2 whose streams have a window of one byte each.
async fn narrow(pages: &Pages) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", pages.address)).expect("an address");
    guarded("a connection", endpoint.initial_stream_window_size(1).connect()).await.expect("it connects")
}

async fn ask(
    mut channel: Channel,
    address: SocketAddr,
    path: &str,
) -> Result<Answered, tonic::transport::Error> {
    std::future::poll_fn(|context| channel.poll_ready(context)).await?;
    let address = format!("http://{address}{path}");
    channel.call(http::Request::get(address).body(Body::empty()).expect("a request")).await
}

async fn read_to_end(answer: Answered) -> Result<Bytes, Status> {
    Ok(http_body_util::BodyExt::collect(answer.into_body()).await?.to_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_nothing_of_its_answers_holds_little_and_loses_its_connection() {
    let site = Site::within(SHORT).await;
    let channel = narrow(&site.pages).await;
    let (answered, mut answers) = mpsc::unbounded_channel();
    for _ in 0..200 {
        let (channel, address, answered) = (channel.clone(), site.pages.address, answered.clone());
        tokio::spawn(async move { drop(answered.send(ask(channel, address, "/").await)) });
    }
    drop(answered);
    let mut held = Vec::new();
    let (mut most, mut lost) = (0, 0);
    guarded("the end of every request", async {
        while let Some(answer) = answers.recv().await {
            most = most.max(site.pages.web.unwritten_bytes());
            match answer {
                Ok(answer) => held.push(answer),
                Err(_) => lost += 1,
            }
        }
    })
    .await;
    assert!(lost > 0, "the connection ended while requests were open");
    assert!(most < 4 << 20, "no more than its streams have: {most}");
    drop((held, channel));
    guarded("free memory", async {
        while site.pages.web.unwritten_bytes() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(site.pages.get("/").await.status, 200, "others are answered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_asks_for_nothing_ends() {
    let site = Site::within(SHORT).await;
    for said in ["", "PRI * HT"] {
        let mut stream = TcpStream::connect(site.pages.address).await.expect("it listens");
        stream.write_all(said.as_bytes()).await.expect("it is taken");
        let ended = guarded("its end", stream.read_to_end(&mut Vec::new())).await;
        assert!(ended.is_err() || ended.is_ok_and(|bytes| bytes < 1_024), "{said:?}");
    }
    // One that has asked is kept while it has nothing to take.
    let mut stream = TcpStream::connect(site.pages.address).await.expect("it listens");
    let host = site.pages.address;
    let request = format!("HEAD / HTTP/1.1\r\nhost: {host}\r\n\r\n");
    for _ in 0..2 {
        stream.write_all(request.as_bytes()).await.expect("it stands");
        let mut answer = [0; 4096];
        assert!(guarded("an answer", stream.read(&mut answer)).await.expect("it stands") > 0);
        tokio::time::sleep(SHORT.connection.stall * 3).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_nobody_reads_ends_with_its_connection() {
    let site = Site::within(SHORT).await;
    let channel = narrow(&site.pages).await;
    let stalled = ask(channel.clone(), site.pages.address, "/events/stream").await.expect("it is answered");
    assert_eq!(stalled.status(), 200);
    guarded("its end", async {
        let mut number = 0;
        // It takes nothing, and its connection notices that by the next request at the latest.
        while ask(channel.clone(), site.pages.address, "/assets/icon.svg").await.is_ok() && number < 200 {
            number += 1;
            site.submit(number, "train", 8).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            if site.pages.web.open_streams() == 0 {
                break;
            }
        }
        while site.pages.web.open_streams() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(guarded("its rest", read_to_end(stalled)).await.is_err(), "it was not ended in order");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_waits_too_long_is_a_page() {
    let site = Site::within(SHORT).await;
    let job = site.submit(1, "train", 1).await;
    let turns = site.pages.web.all_turns().await;
    for path in ["/", "/jobs", &format!("/jobs/{job}"), "/queues", "/fleet/map"] {
        let answer = guarded("an answer", site.pages.get(path)).await;
        assert_eq!(answer.status, 503, "{path}: {}", answer.head);
        assert!(
            answer.head.contains("content-type: text/html") && answer.head.contains("retry-after: 1"),
            "{path}: {}",
            answer.head
        );
        assert!(answer.body.contains("its time was over"), "{path}: {}", answer.body);
    }
    drop(turns);
    assert_eq!(site.pages.get("/").await.status, 200);
}
