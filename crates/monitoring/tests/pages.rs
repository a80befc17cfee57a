//! A listener with the pages of a process that is well or not.

use muster_monitoring::{
    Condition, ConnectionTimeouts, FEW_CONNECTIONS, Monitored, is_user, process_facts, routes, serve,
};
use muster_transport::{AcceptLimits, Principal, Security};
use parking_lot::{Condvar, Mutex};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Default)]
struct Process {
    is_ready: Arc<AtomicBool>,
    is_secret: bool,
}

impl Monitored for Process {
    fn scrape(&self) -> String {
        "# EOF\n".to_owned()
    }

    fn live(&self) -> Condition {
        Condition::good("ok")
    }

    fn ready(&self) -> Condition {
        match self.is_ready.load(Ordering::SeqCst) {
            true => Condition::good("session open"),
            false => Condition::bad("no session"),
        }
    }

    fn may_scrape(&self, principal: &Principal) -> bool {
        !self.is_secret && is_user(principal)
    }
}

/// A process whose scrapes last until they are let go.
#[derive(Clone, Default)]
struct Slow {
    begun: Arc<AtomicUsize>,
    let_go: Arc<(Mutex<bool>, Condvar)>,
}

impl Monitored for Slow {
    fn scrape(&self) -> String {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let (is_over, changed) = &*self.let_go;
        // A test that fails must not wait for it.
        let _ = changed.wait_while_for(&mut is_over.lock(), |is_over| !*is_over, PATIENCE);
        "# EOF\n".to_owned()
    }

    fn live(&self) -> Condition {
        Condition::good("ok")
    }

    fn ready(&self) -> Condition {
        Condition::good("ok")
    }

    fn may_scrape(&self, _: &Principal) -> bool {
        true
    }
}

async fn start(process: impl Monitored, bounds: AcceptLimits) -> SocketAddr {
    start_within(process, bounds, ConnectionTimeouts::DEFAULT).await
}

async fn start_within(
    process: impl Monitored,
    bounds: AcceptLimits,
    timeouts: ConnectionTimeouts,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    tokio::spawn(async move {
        serve(routes(process), bounds, timeouts, &Security::Plaintext, listener, std::future::pending()).await
    });
    address
}

/// The code and the body of the answer to these bytes; none where the connection ends without one.
async fn ask(address: SocketAddr, head: &str) -> Option<(u16, String)> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        stream.write_all(format!("{head}\r\n\r\n").as_bytes()).await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("an answer, or an end")
}

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let head = format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close");
    ask(address, &head).await.expect("an answer")
}

#[tokio::test]
async fn probes_learn_whether_a_process_is_ready_and_why_not() {
    let process = Process::default();
    let address = start(process.clone(), FEW_CONNECTIONS).await;
    assert_eq!(get(address, "/livez").await, (200, "ok\n".to_owned()));
    assert_eq!(get(address, "/readyz").await, (503, "no session\n".to_owned()));
    process.is_ready.store(true, Ordering::SeqCst);
    assert_eq!(get(address, "/readyz").await, (200, "session open\n".to_owned()));
    assert_eq!(get(address, "/metrics").await, (200, "# EOF\n".to_owned()));
    assert_eq!(get(address, "/").await.0, 404);
    let secret = start(Process { is_secret: true, ..Process::default() }, FEW_CONNECTIONS).await;
    assert_eq!(get(secret, "/metrics").await.0, 403);
}

#[tokio::test]
async fn other_methods_and_bodies_are_refused() {
    let address = start(Process::default(), FEW_CONNECTIONS).await;
    let head = |line: &str| format!("{line} HTTP/1.1\r\nHost: here\r\nConnection: close");
    assert_eq!(ask(address, &head("DELETE /metrics")).await.map(|answer| answer.0), Some(405));
    let with_body = format!("{}\r\nContent-Length: 1000000000", head("GET /metrics"));
    assert_eq!(ask(address, &with_body).await.map(|answer| answer.0), Some(413));
    let without_end = format!("{}\r\nTransfer-Encoding: chunked", head("GET /readyz"));
    assert_eq!(ask(address, &without_end).await.map(|answer| answer.0), Some(413));
}

#[tokio::test]
async fn a_connection_too_many_is_closed_and_others_go_on() {
    let address = start(Process::default(), AcceptLimits { connections_max: 2, ..FEW_CONNECTIONS }).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let head = "GET /livez HTTP/1.1\r\nHost: here\r\n\r\n";
        stream.write_all(head.as_bytes()).await.expect("it is sent");
        // Answered, so it is one of those that count.
        assert!(stream.read(&mut [0; 512]).await.expect("an answer") > 0);
        held.push(stream);
    }
    let head = "GET /livez HTTP/1.1\r\nHost: here\r\nConnection: close";
    assert_eq!(ask(address, head).await, None);
    drop(held);
    // The place of a connection that has ended is free a moment later.
    let free = async { while ask(address, head).await.is_none() {} };
    tokio::time::timeout(PATIENCE, free).await.expect("places are given back");
}

/// A caller that goes away does not end its scrape, so the next one must not come on top of it.
#[tokio::test]
async fn scrapes_that_nobody_waits_for_count_until_they_are_over() {
    let slow = Slow::default();
    let address = start(slow.clone(), FEW_CONNECTIONS).await;
    for count in 1..=2 {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").await.expect("it is sent");
        let begins = async {
            while slow.begun.load(Ordering::SeqCst) < count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, begins).await.expect("a scrape begins");
        drop(stream);
    }
    for _ in 0..20 {
        assert_eq!(get(address, "/metrics").await.0, 503);
    }
    assert_eq!(slow.begun.load(Ordering::SeqCst), 2);
    *slow.let_go.0.lock() = true;
    slow.let_go.1.notify_all();
    let free = async { while get(address, "/metrics").await.0 != 200 {} };
    tokio::time::timeout(PATIENCE, free).await.expect("places are given back");
}

#[tokio::test]
async fn a_connection_that_asks_for_nothing_ends() {
    let short = Duration::from_millis(200);
    let timeouts = ConnectionTimeouts { first_byte: short, stall: short };
    let address = start_within(Process::default(), FEW_CONNECTIONS, timeouts).await;
    for said in ["", "GET /livez"] {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream.write_all(said.as_bytes()).await.expect("it is sent");
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it ends");
        assert!(ended.is_err() || rest.len() < 1_024, "{said:?}: {ended:?}");
    }
    assert_eq!(get(address, "/livez").await.0, 200);
}

#[test]
fn the_process_has_memory_and_descriptors() {
    let facts = process_facts();
    assert!(facts.resident_bytes.is_some_and(|bytes| bytes > 1 << 20), "{facts:?}");
    assert!(facts.open_descriptors.is_some_and(|count| count > 0), "{facts:?}");
}
