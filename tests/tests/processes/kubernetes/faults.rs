//! An API server whose answers get lost, come too late or are refusals: a proxy before it makes them so.

use muster_wire::v1::{self, JobPhase};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::lab::{Lab, PodAgent, Witness, nodes_up};
use super::{HOLD, is_running};
use crate::support::{Cluster, heavy, is_finished, say, submit, wait_for_job};

/// A watch is cut after so long.
const WATCH_CUT: Duration = Duration::from_secs(3);
/// A page of a list takes so much longer.
const LIST_DELAY: Duration = Duration::from_secs(1);
/// Longest head of a request.
const HEAD_MAX: usize = 64 << 10;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// It is answered.
    Passed,
    /// It is refused with this status, and has no effect.
    Refused(u16),
    /// The connection ends before it is carried out.
    LostBefore,
    /// It is carried out, and the connection ends before the answer.
    LostAfter,
    /// It is answered late, as lists of many objects are.
    Slow,
    /// A watch ends after a while.
    Cut,
    /// A watch says that it has forgotten its place.
    Expired,
}

struct Shared {
    /// Where `kubectl proxy` listens.
    onward: SocketAddr,
    enabled: AtomicBool,
    requests: AtomicU64,
    watches: AtomicU64,
    met: Mutex<BTreeMap<Fate, u64>>,
}

impl Shared {
    /// Two of seven requests, every list and every watch meet something, one kind after the other.
    fn fate(&self, line: &str) -> Fate {
        let is_watch = line.contains("watch=true") || line.contains("watch=1");
        let fate = if !self.enabled.load(Ordering::Relaxed) {
            Fate::Passed
        } else if is_watch {
            match self.watches.fetch_add(1, Ordering::Relaxed) % 8 {
                2 => Fate::Refused(410),
                4 => Fate::Expired,
                6 => Fate::Refused(500),
                _ => Fate::Cut,
            }
        } else {
            let at = self.requests.fetch_add(1, Ordering::Relaxed);
            let of_write = [Fate::LostAfter, Fate::Refused(409), Fate::Refused(429), Fate::LostBefore];
            let of_read = [Fate::Refused(500), Fate::LostBefore, Fate::Refused(429), Fate::Refused(503)];
            let fates = if line.starts_with("GET") { of_read } else { of_write };
            // Not every second or third one: calls that belong together would always lose the same one of them.
            let is_list = line.starts_with("GET") && line.contains("limit=");
            let otherwise = if is_list { Fate::Slow } else { Fate::Passed };
            if [0, 3].contains(&(at % 7)) { fates[(at / 3 % 4) as usize] } else { otherwise }
        };
        *self.met.lock().entry(fate).or_default() += 1;
        fate
    }
}

/// The proxy, and `kubectl proxy` behind it, which has the credentials.
struct Faults {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: tokio::task::JoinHandle<()>,
    _kubectl: Child,
}

impl Drop for Faults {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Faults {
    async fn start(lab: &Lab) -> Faults {
        let mut kubectl = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(lab.kubeconfig())
            .args(["proxy", "--port=0", "--address=127.0.0.1"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("there is a kubectl");
        let mut said = String::new();
        let mut lines = BufReader::new(kubectl.stdout.take().expect("its output is ours"));
        lines.read_line(&mut said).await.expect("it says where it listens");
        let onward = said.split_whitespace().last().and_then(|word| word.parse().ok());
        let onward = onward.unwrap_or_else(|| panic!("an address: {said:?}"));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let shared = Arc::new(Shared {
            onward,
            enabled: AtomicBool::new(true),
            requests: AtomicU64::new(0),
            watches: AtomicU64::new(0),
            met: Mutex::default(),
        });
        let of_all = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&of_all);
                // What ends early is a fault like the others.
                tokio::spawn(async move { serve(stream, &shared).await.unwrap_or_default() });
            }
        });
        Faults { shared, address, accepting, _kubectl: kubectl }
    }

    /// A file that leads to the proxy.
    fn kubeconfig(&self, directory: &Path) -> PathBuf {
        let file = directory.join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{ "name": "here", "cluster": { "server": format!("http://{}", self.address) } }],
            "users": [{ "name": "nobody", "user": {} }],
            "contexts": [{ "name": "here", "context": { "cluster": "here", "user": "nobody" } }],
        });
        std::fs::write(&file, text.to_string()).expect("writing a kubeconfig");
        file
    }
}

fn status(code: u16) -> serde_json::Value {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason, "code": code,
        "message": "made up by a test",
    })
}

/// One request of one connection, which ends with the answer.
async fn serve(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await? == 0 || head.len() > HEAD_MAX {
            return Ok(());
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await?;
    let (first, rest) = head.split_once("\r\n").unwrap_or((&head, ""));
    let fate = shared.fate(first);
    match fate {
        Fate::LostBefore => return Ok(()),
        Fate::Refused(code) => {
            let text = status(code).to_string();
            let answer = format!(
                "HTTP/1.1 {code} Refused\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{text}",
                text.len()
            );
            return stream.write_all(answer.as_bytes()).await;
        }
        Fate::Expired => {
            let text = json!({ "type": "ERROR", "object": status(410) }).to_string();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{text}\n"
            );
            return stream.write_all(answer.as_bytes()).await;
        }
        Fate::Slow => tokio::time::sleep(LIST_DELAY).await,
        Fate::Passed | Fate::LostAfter | Fate::Cut => {}
    }
    let mut onward = TcpStream::connect(shared.onward).await?;
    let kept = rest.lines().filter(|line| {
        let name = line.split(':').next().unwrap_or_default();
        !["connection", "host"].iter().any(|left_out| name.eq_ignore_ascii_case(left_out)) && !line.is_empty()
    });
    let kept: String = kept.flat_map(|line| [line, "\r\n"]).collect();
    let asked = format!("{first}\r\nHost: {}\r\nConnection: close\r\n{kept}\r\n", shared.onward);
    onward.write_all(asked.as_bytes()).await?;
    onward.write_all(&body).await?;
    match fate {
        Fate::LostAfter => {
            tokio::io::copy(&mut onward, &mut tokio::io::sink()).await?;
        }
        Fate::Cut => {
            let copy = tokio::io::copy(&mut onward, &mut stream);
            let _ = tokio::time::timeout(WATCH_CUT, copy).await;
        }
        _ => {
            // A reader that is gone takes its watch with it.
            tokio::io::copy_bidirectional(&mut onward, &mut stream).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_refusals_or_get_lost_change_nothing() {
    const JOBS: u32 = 10;
    let Some(lab) = Lab::open_or_skip("faults of an API server").await else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let (client, witness, faults) = (cluster.client(), Witness::start().await, Faults::start(&lab).await);
    let kubeconfig = faults.kubeconfig(cluster.scratch.path());
    let mut agent = PodAgent::lay_out(&cluster, &lab, "agent", "muster.test/pods=true", &kubeconfig);
    agent.start();
    nodes_up(&client, lab.nodes.len()).await;

    let held = submit(&client, witness.job("held", HOLD, (1, 1))).await;
    let mut all = Vec::new();
    for at in 0..JOBS {
        let script = format!("sleep 1; exit {}", at % 2 * 3);
        all.push(submit(&client, witness.job("short", &script, (1 + at % 2, 2))).await);
    }
    for (at, id) in all.iter().enumerate() {
        let ended = wait_for_job(&client, id, is_finished).await;
        let wanted = if at % 2 == 0 { JobPhase::Succeeded } else { JobPhase::Failed };
        assert_eq!((ended.phase(), ended.status().attempt), (wanted, 1), "{ended:#?}");
    }
    let still = wait_for_job(&client, &held, is_running).await;
    assert_eq!(still.status().attempt, 1, "{still:#?}");
    agent.kill().await;
    agent.start();
    client.cancel_job(v1::CancelJobRequest { job_id: held.clone(), ..Default::default() }).await.unwrap();
    let ended = wait_for_job(&client, &held, is_finished).await;
    assert_eq!((ended.phase(), ended.status().attempt), (JobPhase::Cancelled, 1), "{ended:#?}");
    // While answers are lost, too.
    lab.nothing_left().await;
    witness.assert_once();
    let met = faults.shared.met.lock().clone();
    say(&format!("requests of the agent and what became of them: {met:?}"));
    let wanted =
        [Fate::LostAfter, Fate::LostBefore, Fate::Slow, Fate::Cut, Fate::Refused(409), Fate::Refused(410)];
    for fate in wanted {
        assert!(met.contains_key(&fate), "{fate:?} did not happen: {met:?}");
    }
    faults.shared.enabled.store(false, Ordering::Relaxed);
    cluster.assert_digests_agree().await;
}
