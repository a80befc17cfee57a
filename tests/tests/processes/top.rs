//! Looking at a whole cluster: one frame of `muster top`, the address of a web page, and what is
//! collected for those who look for a fault.

use muster_wire::v1;
use serde_json::Value;
use std::process::Stdio;
use tokio::process::Command;

use crate::support::{Agents, Cluster, eventually, job, submit, wait_for_job};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A job that waits for another one, and so can be held.
fn behind(mut job: v1::Job, other: &str) -> v1::Job {
    let on = v1::Dependency { job_id: other.to_owned(), ..Default::default() };
    job.spec_mut().dependencies.push(on);
    job
}

/// Rows of one tab, as programs get them.
async fn frame(cluster: &Cluster, tab: &str) -> Value {
    json(&cluster.operated(&["top", "--once", "--tab", tab, "-o", "json"]).await)
}

fn items(frame: &Value) -> &[Value] {
    frame["items"].as_array().map_or(&[], Vec::as_slice)
}

/// The first frame whose rows are as wanted: each is a bounded read, which a replica may answer that has not applied the
/// latest records.
async fn frame_with(cluster: &Cluster, tab: &str, is_wanted: impl Fn(&[Value]) -> bool) -> Value {
    eventually(&format!("no frame of {tab} has the rows that it should have"), || async {
        let frame = frame(cluster, tab).await;
        is_wanted(items(&frame)).then_some(frame)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_frame_shows_jobs_queues_fleet_replicas_and_events() {
    let mut cluster = Cluster::start(3).await;
    let _agents = Agents::start(&cluster, &["h1"]).await;
    let client = cluster.client();
    let running = submit(&client, job("long", &["sleep", "600"])).await;
    wait_for_job(&client, &running, |job| job.phase() == v1::JobPhase::Running).await;
    // More than the host has: it waits.
    let mut large = job("large", &["true"]);
    large.spec_mut().groups[0].workers = 1_000;
    let waits = client.submit_job(v1::SubmitJobRequest { job: Some(large), ..Default::default() }).await;
    assert!(waits.is_err(), "a job that never fits is refused, and no row of a frame");
    let mut held = job("held", &["true"]);
    held.labels.insert("team".to_owned(), "x".to_owned());
    let held = submit(&client, behind(held, &running)).await;
    cluster.operated(&["job", "hold", &held]).await;

    let jobs = frame_with(&cluster, "jobs", |rows| {
        let is_there =
            |id: &str, state: &str| rows.iter().any(|row| row["id"] == id && row["state"] == state);
        let is_held = rows.iter().any(|row| row["id"] == held.as_str() && row["why"].as_str() > Some(""));
        is_there(&running, "running") && is_held
    })
    .await;
    assert_eq!((&jobs["kind"], &jobs["tab"]), (&"Top".into(), &"jobs".into()), "{jobs}");
    let row = |id: &str| items(&jobs).iter().find(|row| row["id"] == id).cloned().unwrap_or_default();
    assert_eq!(row(&running)["state"], "running", "{jobs}");
    assert_eq!(row(&running)["nodes"], serde_json::json!(["h1"]), "{jobs}");
    assert!(!row(&held)["why"].as_str().unwrap_or_default().is_empty(), "{jobs}");

    frame_with(&cluster, "queues", |rows| {
        rows.iter().any(|row| row["tenant"] == "default" && row["activeJobs"] == 1)
    })
    .await;
    frame_with(&cluster, "fleet", |rows| rows.iter().any(|row| row["name"] == "h1" && row["state"] == "up"))
        .await;
    frame_with(&cluster, "events", |rows| rows.iter().any(|row| row["id"] == running.as_str())).await;
    let replicas = frame_with(&cluster, "replicas", |rows| {
        rows.iter().filter(|row| row["role"] == "leader").count() == 1
    })
    .await;
    assert_eq!(items(&replicas).len(), 3, "{replicas}");

    // As text, and where the output is no terminal.
    let ran = eventually("the text has no line of the job", || async {
        let ran = cluster.operate(&["top"]).await;
        ran.out.contains(&running).then_some(ran)
    })
    .await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert!(ran.err.contains("is no terminal"), "{ran:#?}");
    assert!(ran.out.starts_with("as of index "), "{ran:#?}");
    assert!(!ran.out.contains('\u{1b}'), "{ran:#?}");

    // One that is gone is told, and the others answer.
    let gone = cluster.follower().await;
    cluster.kill(gone).await;
    let is_gone = |row: &Value| row["id"] == gone as u64 + 1 && row["role"] == "unreachable";
    let replicas = frame_with(&cluster, "replicas", |rows| rows.iter().any(is_gone)).await;
    let lost = items(&replicas).iter().find(|row| is_gone(row)).cloned().unwrap_or_default();
    assert!(!lost["error"].as_str().unwrap_or_default().is_empty(), "{replicas}");
    cluster.start_replica(gone);
    // What waits for the other first: it would end with it.
    cluster.operated(&["job", "cancel", &held, &running]).await;
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_of_a_cluster_that_does_not_answer_is_an_error() {
    let mut cluster = Cluster::start(1).await;
    cluster.kill(0).await;
    let ran = cluster.operate(&["top", "--once", "--timeout", "2s"]).await;
    ran.assert_refused(6, &["no replica"]);
    cluster.restart_all().await;
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_are_of_a_replica_that_answers() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let _agents = Agents::start(&cluster, &["h1"]).await;
    let id = submit(&client, job("shown", &["sleep", "600"])).await;
    let web: Vec<String> = cluster.replicas.iter().map(|files| files.http.to_string()).collect();
    let web = web.join(",");
    let open = async |cluster: &Cluster, words: &[&str]| {
        cluster.operated(&[&["open", "--print", "--web", web.as_str()], words].concat()).await
    };
    // A page is of the first replica that knows what it is about, and a name is looked up on any.
    cluster.assert_digests_agree().await;
    let first = cluster.replicas[0].http;
    assert_eq!(open(&cluster, &[&id]).await, format!("http://{first}/jobs/{id}\n"));
    assert_eq!(open(&cluster, &["shown"]).await, format!("http://{first}/jobs/{id}\n"));
    assert_eq!(open(&cluster, &["node", "h1"]).await, format!("http://{first}/nodes/h1\n"));
    assert_eq!(
        open(&cluster, &["queue", "default"]).await,
        format!("http://{first}/queues#tenant-default\n")
    );
    assert_eq!(open(&cluster, &["events"]).await, format!("http://{first}/events\n"));
    let moment = client.seen_log_index().to_string();
    let past = open(&cluster, &[&id, "--at", &moment]).await;
    assert_eq!(past, format!("http://{first}/jobs/{id}?at={moment}\n"));
    cluster.kill(0).await;
    let second = cluster.replicas[1].http;
    assert_eq!(open(&cluster, &["fleet"]).await, format!("http://{second}/fleet\n"));
    let ran = cluster.operate(&["open", "--print", "--web", web.as_str(), "node", "nobody"]).await;
    assert_eq!(ran.code, Some(3), "the first one does not answer, and the others do not know it: {ran:#?}");
    // No port is guessed.
    cluster.operate(&["open", "--print", "fleet"]).await.assert_refused(2, &["--web", "http_listen"]);
    cluster.start_replica(0);
    cluster.operated(&["job", "cancel", &id]).await;
    cluster.assert_digests_agree().await;
}

/// What stands for things that are nobody else's business.
const CANARIES: [&str; 7] = [
    "canary-name-71c2",
    "CANARY-command-71c2",
    "CANARY_ENVIRONMENT_71c2",
    "CANARY-secret-71c2",
    "canary-label-71c2",
    "canary-annotation-71c2",
    "canary-receiver-71c2",
];

/// A file of the bundle as text.
async fn unpacked(bundle: &str, part: &str) -> String {
    let output = Command::new("tar")
        .args(["-xzOf", bundle, &format!("muster-debug/{part}")])
        .stdin(Stdio::null())
        .output()
        .await
        .expect("tar runs");
    assert!(output.status.success(), "{part}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a part is text")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_has_every_part_and_nothing_private() {
    let mut cluster = Cluster::start(3).await;
    let _agents = Agents::start(&cluster, &["h1"]).await;
    let client = cluster.client();
    let [name, command, variable, secret, label, annotation, receiver] = CANARIES;
    let policy = cluster.scratch.path().join("receivers.yaml");
    let url = format!("https://hooks.invalid/{receiver}");
    let text = format!(
        "apiVersion: muster.dev/v1\nkind: Policy\nspec: {{notifications: [{{name: chat, url: '{url}', events: [job_failed], body: slack}}]}}\n"
    );
    std::fs::write(&policy, text).expect("it can be written");
    let policy = policy.to_str().expect("the path is text");
    cluster.operated(&["policy", "set", policy, "--only", "notifications"]).await;
    let mut private = job(name, &["sh", "-c", &format!("echo {command}; sleep 600")]);
    private.labels.insert(label.to_owned(), label.to_owned());
    private.annotations.insert(annotation.to_owned(), annotation.to_owned());
    private.spec_mut().groups[0].set_variable(variable, secret);
    let running = submit(&client, private.clone()).await;
    wait_for_job(&client, &running, |job| job.phase() == v1::JobPhase::Running).await;
    // One that cannot be started: its reason has the command in it.
    let failing = submit(&client, job(name, &[&format!("/nowhere/{command}")])).await;
    wait_for_job(&client, &failing, |job| job.phase() == v1::JobPhase::Failed).await;
    let held = submit(&client, behind(private, &running)).await;
    cluster.operated(&["job", "hold", &held]).await;
    // What is collected is what some replica has applied.
    cluster.assert_digests_agree().await;

    let gone = cluster.follower().await;
    cluster.kill(gone).await;
    let path = cluster.scratch.path().join("fault.tar.gz");
    let file = path.to_str().expect("the test's directory is text");
    let web: Vec<String> = cluster.replicas.iter().map(|files| files.http.to_string()).collect();
    let web = web.join(",");
    let collect = ["debug", "bundle", "--out", file, "--web", web.as_str(), "-o", "json"];
    let told = json(&cluster.operated(&collect).await);
    let manifest = json(&unpacked(file, "manifest.json").await);
    assert_eq!(told["parts"], manifest["parts"]);
    let parts = manifest["parts"].as_array().expect("there are parts").clone();
    let part = |path: &str| parts.iter().find(|part| part["path"] == path).cloned().unwrap_or_default();
    for here in [
        "policy.json",
        "members.json",
        "nodes.json",
        "jobs.json",
        "events.json",
        "decisions.jsonl",
        "client.json",
    ] {
        assert!(part(here)["sha256"].is_string(), "{here}: {manifest:#}");
    }
    // Those of the replica that is gone are missing with the reason; the others have theirs.
    for (at, files) in cluster.replicas.iter().enumerate() {
        for name in ["version", "status", "drill", "archive"] {
            let part = part(&format!("replicas/{}/{name}.json", files.id));
            assert_eq!(part["error"].is_string(), at == gone, "{name} of {}: {manifest:#}", files.id);
        }
        assert_eq!(
            part(&format!("web/{}/metrics.txt", at + 1))["error"].is_string(),
            at == gone,
            "{manifest:#}"
        );
    }
    // Every part is what the manifest says it is, and holds none of what is private.
    for part in parts.iter().filter(|part| part["sha256"].is_string()) {
        let path = part["path"].as_str().expect("a part has a path");
        let text = unpacked(file, path).await;
        assert_eq!(part["bytes"], text.len() as u64, "{path}");
        for canary in CANARIES {
            assert!(!text.contains(canary), "{canary} is in {path}:\n{text}");
        }
    }
    assert!(unpacked(file, "policy.json").await.contains("https://hooks.invalid/"), "the host is shown");
    let jobs = unpacked(file, "jobs.json").await;
    assert!(jobs.contains(&running) && jobs.contains(&held), "{jobs}");
    assert!(unpacked(file, "decisions.jsonl").await.contains("\"decision\":\"gang_placed\""));
    // A second one does not take the place of the first.
    cluster.operate(&collect).await.assert_refused(5, &["not touched"]);
    let listed = cluster.operated(&["debug", "bundle", "--list"]).await;
    for part in parts.iter().filter_map(|part| part["path"].as_str()) {
        let planned = part.split('/').map(|word| if word.parse::<u64>().is_ok() { "N" } else { word });
        assert!(listed.contains(&planned.collect::<Vec<_>>().join("/")), "{part} is not in\n{listed}");
    }
    cluster.start_replica(gone);
    // What waits for the other first: it would end with it.
    cluster.operated(&["job", "cancel", &held, &running]).await;
    cluster.assert_digests_agree().await;
}
