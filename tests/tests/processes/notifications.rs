//! Receivers of notifications: every event arrives at least once across the loss of leaders, and one that is silent delays no
//! other.

use parking_lot::Mutex;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::support::{Cluster, eventually, heavy, job};
use muster_wire::v1;

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// One request, as it came.
#[derive(Clone, Debug)]
struct Delivered {
    headers: BTreeMap<String, String>,
    body: Value,
}

/// A receiver of this test. Dropping it closes its port.
struct Receiver {
    port: u16,
    delivered: Arc<Mutex<Vec<Delivered>>>,
    serves: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serves.abort();
    }
}

impl Receiver {
    /// Takes everything, or answers nothing.
    async fn start(is_silent: bool) -> Receiver {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let delivered = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&delivered);
        let serves = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let into = Arc::clone(&into);
                open.spawn(async move {
                    if is_silent {
                        std::future::pending::<()>().await;
                    }
                    serve(stream, &into).await;
                });
            }
        });
        Receiver { port, delivered, serves }
    }

    fn delivered(&self) -> Vec<Delivered> {
        self.delivered.lock().clone()
    }

    /// Names of the jobs of which it was told this.
    fn told(&self, event: &str) -> BTreeSet<String> {
        let delivered = self.delivered();
        let of_event = delivered.iter().filter(|delivered| delivered.body["event"] == event);
        of_event.filter_map(|delivered| delivered.body["job"]["name"].as_str().map(str::to_owned)).collect()
    }
}

async fn serve(mut stream: TcpStream, into: &Mutex<Vec<Delivered>>) {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4_096];
        match stream.read(&mut piece).await {
            Ok(read @ 1..) => bytes.extend_from_slice(&piece[..read]),
            _ => return,
        }
        while let Some((delivered, behind)) = parse(&bytes) {
            into.lock().push(delivered);
            bytes.drain(..behind);
            if stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.is_err() {
                return;
            }
        }
    }
}

/// The first request of these bytes and its length, once all of it is there.
fn parse(bytes: &[u8]) -> Option<(Delivered, usize)> {
    let head_end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..head_end]).expect("a head is text");
    let headers: BTreeMap<String, String> = head
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers.get("content-length")?.parse().expect("a length");
    let body = bytes.get(head_end..head_end + length)?;
    let body = serde_json::from_slice(body).expect("a body is JSON");
    Some((Delivered { headers, body }, head_end + length))
}

/// A policy file with receivers: name, port and events.
fn policy(receivers: &[(&str, u16, &str)]) -> String {
    let mut text = "apiVersion: muster.dev/v1\nkind: Policy\nspec:\n  notifications:\n".to_owned();
    for (name, port, events) in receivers {
        text.push_str(&format!(
            "    - {{name: {name}, url: \"http://127.0.0.1:{port}/hook\", events: [{events}]}}\n"
        ));
    }
    text
}

fn keys(directory: &Path, names: &[&str]) -> String {
    std::fs::create_dir_all(directory).expect("a directory can be made");
    for name in names {
        std::fs::write(directory.join(format!("{name}.key")), KEY).expect("a key can be written");
    }
    format!(
        "[notifications]\nsecrets_dir = {directory:?}\nallow_http = true\nallowed_hosts = [\"127.0.0.1\"]\nrequest_timeout = \"1s\"\n"
    )
}

async fn set_policy(cluster: &Cluster, text: &str) {
    let path = cluster.scratch.path().join("policy.yaml");
    std::fs::write(&path, text).expect("a file can be written");
    cluster.operated(&["policy", "set", path.to_str().expect("the path is text")]).await;
}

/// Submits a job that nothing runs, and cancels it: an event of a job.
async fn end_a_job(cluster: &Cluster, name: &str) {
    end(cluster, job(name, &["true"])).await;
}

/// The same of a job that says more.
async fn end(cluster: &Cluster, job: v1::Job) {
    let name = job.name.clone();
    let client = cluster.client();
    let request = v1::SubmitJobRequest { job: Some(job), ..Default::default() };
    let submitted = client.submit_job(request).await;
    let job_id = submitted.unwrap_or_else(|error| panic!("submitting {name}: {error:?}")).job_ids.remove(0);
    let request = v1::CancelJobRequest { job_id, ..Default::default() };
    client.cancel_job(request).await.unwrap_or_else(|error| panic!("cancelling {name}: {error:?}"));
}

async fn start(names: &[&str]) -> Cluster {
    let mut cluster = Cluster::lay_out(3);
    cluster.settings = keys(&cluster.scratch.path().join("keys"), names);
    for at in 0..3 {
        cluster.write_config(at);
    }
    cluster.found().await;
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_arrives_at_least_once_when_leaders_are_killed() {
    let _turn = heavy().await;
    let receiver = Receiver::start(false).await;
    let mut cluster = start(&["ops"]).await;
    set_policy(&cluster, &policy(&[("ops", receiver.port, "job_cancelled")])).await;
    let mut expected = BTreeSet::new();
    for round in 0..2 {
        for number in 0..10 {
            let name = format!("job-{round}-{number}");
            end_a_job(&cluster, &name).await;
            expected.insert(name);
        }
        let leader = cluster.leader().await;
        cluster.kill(leader).await;
        let name = format!("without-{round}");
        end_a_job(&cluster, &name).await;
        expected.insert(name);
        cluster.restart_all().await;
    }
    eventually("an event did not arrive", || async {
        (receiver.told("job_cancelled") == expected).then_some(())
    })
    .await;
    // One event has one id, however often it comes.
    let mut ids: BTreeMap<String, String> = BTreeMap::new();
    for delivered in receiver.delivered() {
        let id = delivered.headers["muster-delivery"].clone();
        assert!(id.ends_with("-ops") && delivered.body["id"] == id.as_str(), "{delivered:?}");
        assert!(delivered.headers["muster-signature"].starts_with("v1="), "{delivered:?}");
        assert!(delivered.headers["muster-timestamp"].parse::<u64>().is_ok_and(|s| s > 1_600_000_000));
        let name = delivered.body["job"]["name"].as_str().expect("a name").to_owned();
        assert_eq!(ids.entry(id).or_insert_with(|| name.clone()), &name);
    }
    assert_eq!(ids.len(), expected.len());
    eventually("the progress was not recorded", || async {
        let listed = cluster.operated(&["notification", "list", "-o", "json"]).await;
        let listed: Value = serde_json::from_str(&listed).expect("it is JSON");
        let one = &listed["items"][0];
        let all_taken = one["acknowledgedEvents"].as_u64() >= Some(expected.len() as u64);
        (one["name"] == "ops" && all_taken && one["givenUpEvents"] == 0 && one["skippedRecords"] == 0)
            .then_some(())
    })
    .await;
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_is_silent_or_refused_delays_no_other() {
    let (quick, silent) = (Receiver::start(false).await, Receiver::start(true).await);
    let mut cluster = start(&["quick", "silent"]).await;
    let mut text = policy(&[
        ("quick", quick.port, "job_cancelled, node_quarantined"),
        ("silent", silent.port, "job_cancelled"),
        ("keyless", quick.port, "job_cancelled"),
    ]);
    // An address of this machine under a name that no configuration lists.
    text.push_str(
        "    - {name: private, url: \"http://localhost:1/\", events: [job_cancelled], body: slack}\n",
    );
    set_policy(&cluster, &text).await;
    let started = Instant::now();
    for number in 0..5 {
        end_a_job(&cluster, &format!("job-{number}")).await;
    }
    cluster.operated(&["node", "quarantine", "no-agent", "--reason", "fails too often"]).await;
    eventually("the quick one was not told", || async {
        let nodes = quick.delivered();
        let node = nodes.iter().find(|delivered| delivered.body["event"] == "node_quarantined");
        let told = node.is_some_and(|delivered| delivered.body["node"]["detail"] == "fails too often");
        (quick.told("job_cancelled").len() == 5 && told).then_some(())
    })
    .await;
    assert!(started.elapsed() < Duration::from_secs(30), "it waited for the others");
    eventually("the errors are not shown", || async {
        let listed = cluster.operated(&["notification", "list", "-o", "json"]).await;
        let listed: Value = serde_json::from_str(&listed).expect("it is JSON");
        let error = |name: &str| {
            let items = listed["items"].as_array()?;
            let item = items.iter().find(|item| item["name"] == name)?;
            Some(item["lastError"].as_str()?.to_owned())
        };
        let is = |name: &str, part: &str| error(name).is_some_and(|error| error.contains(part));
        (is("silent", "no answer within") && is("keyless", "keyless.key") && is("private", "allowed_hosts"))
            .then_some(())
    })
    .await;
    assert!(quick.delivered().iter().all(|one| one.headers["muster-delivery"].ends_with("-quick")));
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_names_who_is_told_of_it_and_the_delivery_is_shown() {
    let receiver = Receiver::start(false).await;
    let mut cluster = start(&["chat"]).await;
    let mut text = policy(&[]);
    text.push_str(&format!(
        "    - {{name: chat, url: \"http://127.0.0.1:{}/hook\", forJobs: true}}\n",
        receiver.port
    ));
    set_policy(&cluster, &text).await;
    end_a_job(&cluster, "silent").await;
    let mut named = job("named", &["true"]);
    let events = vec![v1::NotificationEvent::JobCancelled.into()];
    named.spec_mut().notify = vec![v1::JobNotification { receiver: "chat".to_owned(), events }];
    end(&cluster, named).await;
    eventually("the receiver was not told", || async {
        (receiver.told("job_cancelled") == BTreeSet::from(["named".to_owned()])).then_some(())
    })
    .await;
    eventually("the delivery is not shown", || async {
        let shown = cluster.operated(&["notification", "log", "chat", "-o", "json"]).await;
        let shown: Value = serde_json::from_str(&shown).expect("it is JSON");
        let last = &shown["items"][0];
        (last["event"] == "job_cancelled" && last["result"] == "taken").then_some(())
    })
    .await;
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_that_is_suspended_is_told_once() {
    let receiver = Receiver::start(false).await;
    let mut cluster = start(&["ops"]).await;
    set_policy(&cluster, &policy(&[("ops", receiver.port, "schedule_suspended")])).await;
    let schedule = v1::Schedule {
        name: "nightly".to_owned(),
        // In no year that anybody waits for here.
        cron: "0 6 29 2 *".to_owned(),
        job: Some(job("report", &["true"])),
        ..Default::default()
    };
    let client = cluster.client();
    let create = v1::CreateScheduleRequest { schedule: Some(schedule), ..Default::default() };
    client.create_schedule(create).await.expect("it is made");
    // The second one changes nothing.
    for reason in ["the data are not there", "still not"] {
        let suspend = v1::SuspendScheduleRequest {
            name: "nightly".to_owned(),
            reason: reason.to_owned(),
            ..Default::default()
        };
        client.suspend_schedule(suspend).await.expect("it is suspended");
    }
    let told = eventually("the receiver was not told", || async {
        let delivered = receiver.delivered();
        let first = delivered.first()?;
        (first.body["event"] == "schedule_suspended").then(|| first.body.clone())
    })
    .await;
    assert_eq!(told["schedule"]["name"], "nightly", "{told}");
    assert_eq!(told["schedule"]["detail"], "the data are not there", "{told}");
    eventually("the progress was not recorded", || async {
        let listed = cluster.operated(&["notification", "list", "-o", "json"]).await;
        let listed: Value = serde_json::from_str(&listed).expect("it is JSON");
        (listed["items"][0]["acknowledgedEvents"] == 1).then_some(())
    })
    .await;
    let ids: BTreeSet<String> =
        receiver.delivered().iter().map(|delivered| delivered.headers["muster-delivery"].clone()).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    let told = cluster.operated(&["schedule", "delete", "nightly", "--dry-run"]).await;
    assert!(told.contains("would be deleted: 0 6 29 2 *"), "{told}");
    cluster.operated(&["schedule", "show", "nightly"]).await;
    cluster.operated(&["schedule", "delete", "nightly"]).await;
    cluster.operate(&["schedule", "delete", "nightly", "--dry-run"]).await.assert_refused(3, &["nightly"]);
    cluster.assert_digests_agree().await;
}
