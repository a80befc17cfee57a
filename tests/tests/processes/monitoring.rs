//! A real Prometheus and a real Alertmanager watch a real cluster with the rules of `ops/alerts`.
//!
//! Rules wait for minutes or an hour before they fire. The test of a lost leader has them as they are; the tests of other faults
//! have the same expressions with [`SHORT_FOR`] in place of these times, and `promtool test rules` has the times.
//!
//! It runs where `MUSTER_MONITORING=1` asks for it and both programs are there (`.ci/monitoring` installs them), and says
//! that it is skipped otherwise.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::rebuild::Disk;
use crate::support::{
    Agents, Cluster, accelerators, free_address, heavy, is_finished, job, say, submit, wait_for_job,
};

/// Between two looks: each is a request to another program.
const LOOK: Duration = Duration::from_millis(500);
/// An alert has to be there after its `for` (30 s) and a few scrapes and evaluations.
const ALERT_LIMIT: Duration = Duration::from_secs(90);
/// The example scrapes every 10 s; a test has less time.
const SCRAPE: &str = "2s";
/// Prometheus evaluates rules for some seconds before it knows where Alertmanager is, and an alert that it sends until then is lost.
/// It sends one again after a minute, unless told otherwise.
const RESEND: &str = "5s";
/// How long a fault lasts before its alert fires, where the time of the rule is too long for a test.
const SHORT_FOR: &str = "3s";

fn alerts_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/alerts")
}

/// A program on the path, by the first of its names that runs.
async fn program(names: &[&str]) -> Option<String> {
    for name in names {
        let mut version = Command::new(name);
        version.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if version.status().await.is_ok_and(|status| status.success()) {
            return Some((*name).to_owned());
        }
    }
    None
}

struct Monitoring {
    /// Killed with the test.
    _programs: [Child; 2],
    prometheus: SocketAddr,
    alertmanager: SocketAddr,
}

/// The body of an answer with code 200.
async fn get(address: SocketAddr, path: &str) -> Option<String> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        // With this version an answer is not cut into pieces.
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        head.split(' ').nth(1).filter(|code| *code == "200")?;
        Some(body.to_owned())
    };
    tokio::time::timeout(Duration::from_secs(10), asked).await.ok().flatten()
}

impl Monitoring {
    fn start(cluster: &Cluster, programs: [String; 2], agents: &[SocketAddr]) -> Monitoring {
        Monitoring::start_with(cluster, programs, agents, ToOwned::to_owned)
    }

    /// With the rules as the last argument changes each line of them.
    fn start_with(
        cluster: &Cluster,
        programs: [String; 2],
        agents: &[SocketAddr],
        change: impl Fn(&str) -> String,
    ) -> Monitoring {
        let home = cluster.scratch.path().join("monitoring");
        std::fs::create_dir(&home).expect("a directory can be made");
        let (prometheus, alertmanager) =
            (free_address(Ipv4Addr::LOCALHOST), free_address(Ipv4Addr::LOCALHOST));
        let config = std::fs::read_to_string(alerts_directory().join("prometheus.yaml"))
            .expect("the example is there");
        let targets: Vec<String> = cluster.replicas.iter().map(|files| format!("'{}'", files.http)).collect();
        let of_agents: Vec<String> = agents.iter().map(|address| format!("'{address}'")).collect();
        let config = config
            .replace("'127.0.0.1:7470'", &of_agents.join(", "))
            .replace("'127.0.0.1:7601', '127.0.0.1:7602', '127.0.0.1:7603'", &targets.join(", "))
            .replace("127.0.0.1:9093", &alertmanager.to_string())
            .replace("interval: 10s", &format!("interval: {SCRAPE}"));
        assert!(config.contains(&targets[2]) && config.contains(&alertmanager.to_string()), "{config}");
        std::fs::write(home.join("prometheus.yaml"), config).expect("it can be written");
        for rules in ["muster.rules.yaml", "objectives.rules.yaml"] {
            let text = std::fs::read_to_string(alerts_directory().join(rules)).expect("the rules are there");
            let lines: Vec<String> = text.lines().map(&change).collect();
            std::fs::write(home.join(rules), lines.join("\n") + "\n").expect("it can be written");
        }
        let receiver = "route: {receiver: none, group_wait: 0s}\nreceivers: [{name: none}]\n";
        std::fs::write(home.join("alertmanager.yaml"), receiver).expect("it can be written");
        let start = |program: &str, words: &[String]| {
            let log = std::fs::File::create(home.join(format!("{program}.log"))).expect("a log can be made");
            let mut command = Command::new(program);
            command.args(words).current_dir(&home).stdin(Stdio::null()).kill_on_drop(true);
            command.stdout(Stdio::null()).stderr(log).spawn().expect("it starts")
        };
        let [first, second] = programs;
        let started = [
            start(
                &first,
                &[
                    "--config.file=prometheus.yaml".to_owned(),
                    "--storage.tsdb.path=data".to_owned(),
                    format!("--rules.alert.resend-delay={RESEND}"),
                    format!("--web.listen-address={prometheus}"),
                ],
            ),
            start(
                &second,
                &[
                    "--config.file=alertmanager.yaml".to_owned(),
                    "--storage.path=alertmanager".to_owned(),
                    format!("--web.listen-address={alertmanager}"),
                    "--cluster.listen-address=".to_owned(),
                ],
            ),
        ];
        Monitoring { _programs: started, prometheus, alertmanager }
    }

    /// The names of the alerts that Alertmanager holds.
    async fn alerts(&self) -> Option<BTreeSet<String>> {
        let body = get(self.alertmanager, "/api/v2/alerts?active=true").await?;
        let alerts: serde_json::Value = serde_json::from_str(&body).ok()?;
        let names = alerts.as_array()?.iter().filter_map(|alert| alert["labels"]["alertname"].as_str());
        Some(names.map(ToOwned::to_owned).collect())
    }

    /// Waits until the alerts are as wanted; how long that took.
    async fn until(&self, what: &str, wanted: impl Fn(&BTreeSet<String>) -> bool) -> Duration {
        let begun = Instant::now();
        let mut last = None;
        while begun.elapsed() < ALERT_LIMIT {
            last = self.alerts().await;
            if last.as_ref().is_some_and(&wanted) {
                return begun.elapsed();
            }
            tokio::time::sleep(LOOK).await;
        }
        panic!("{what}: not within {} s; the alerts are {last:?}", ALERT_LIMIT.as_secs());
    }

    /// Waits until every replica of a cluster of three was scraped.
    async fn scraped(&self) {
        let begun = Instant::now();
        while self.series("muster_raft_is_leader").await < 3 {
            assert!(begun.elapsed() < ALERT_LIMIT, "not every replica is scraped");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// How many series Prometheus has under a name.
    async fn series(&self, name: &str) -> u64 {
        let path = format!("/api/v1/query?query=count({{__name__=%22{name}%22}})");
        let answer = get(self.prometheus, &path).await.and_then(|body| serde_json::from_str(&body).ok());
        let answer: serde_json::Value = answer.unwrap_or_default();
        answer["data"]["result"][0]["value"][1].as_str().and_then(|count| count.parse().ok()).unwrap_or(0)
    }
}

/// Both programs, where they are asked for and there.
async fn programs() -> Option<[String; 2]> {
    if std::env::var_os("MUSTER_MONITORING").is_none_or(|wanted| wanted != "1") {
        say(
            "skipped: Prometheus and Alertmanager (MUSTER_MONITORING=1 asks for them; .ci/monitoring installs them)",
        );
        return None;
    }
    let programs =
        (program(&["prometheus"]).await, program(&["prometheus-alertmanager", "alertmanager"]).await);
    let (Some(prometheus), Some(alertmanager)) = programs else {
        say("skipped: Prometheus and Alertmanager are not on the path");
        return None;
    };
    Some([prometheus, alertmanager])
}

/// The expressions of every dashboard, with the titles of their panels.
fn expressions() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/dashboards");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("there are dashboards") {
        let path = entry.expect("it can be listed").path();
        let text = std::fs::read_to_string(&path).expect("it can be read");
        let dashboard: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        for panel in dashboard["panels"].as_array().expect("it has panels") {
            for target in panel["targets"].as_array().expect("a panel has targets") {
                let expression = target["expr"].as_str().expect("a target has an expression");
                found.push((format!("{}: {}", dashboard["title"], panel["title"]), expression.to_owned()));
            }
        }
    }
    assert!(found.len() > 30, "{found:?}");
    found
}

/// Every byte that is no letter or digit as its number, for an address.
fn escaped(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
            byte => format!("%{byte:02x}"),
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_panel_of_a_dashboard_has_data() {
    let Some(programs) = programs().await else { return };
    let _heavy = heavy().await;
    let cluster = Cluster::start(3).await;
    cluster.leader().await;
    let http = free_address(Ipv4Addr::LOCALHOST);
    let settings = format!("http_listen = \"{http}\"\n");
    let endpoints = cluster.endpoints();
    let _agents = Agents::start_with(&cluster, &["a"], |_| endpoints.clone(), |_, _| settings.clone()).await;
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/examples/policy.yaml");
    cluster.operated(&["policy", "set", policy.to_str().expect("a path")]).await;
    // A receiver that never answers has series as well.
    let receivers = cluster.scratch.path().join("receivers.yaml");
    let text = "apiVersion: muster.dev/v1\nkind: Policy\nspec: {notifications: [{name: on-call, url: 'https://hooks.invalid/', events: [job_succeeded]}]}\n";
    std::fs::write(&receivers, text).expect("it can be written");
    cluster
        .operated(&["policy", "set", receivers.to_str().expect("a path"), "--only", "notifications"])
        .await;
    let monitoring = Monitoring::start(&cluster, programs, &[http]);
    let client = cluster.client();
    // What a tenant holds and what it costs is there while a job runs on accelerators.
    let mut holds = job("holds", &["sleep", "100000"]);
    holds.tenant = "serving".to_owned();
    holds.spec.as_mut().expect("it has one").groups[0]
        .resources
        .as_mut()
        .expect("it has them")
        .accelerators = Some(accelerators("h100", 1));
    submit(&client, holds).await;
    let mut empty = Vec::new();
    let begun = Instant::now();
    // Rates need two scrapes with a call between them.
    while begun.elapsed() < ALERT_LIMIT {
        let id = submit(&client, job("good", &["true"])).await;
        wait_for_job(&client, &id, is_finished).await;
        empty.clear();
        for (panel, expression) in expressions() {
            let path = format!("/api/v1/query?query={}", escaped(&expression));
            let answer =
                get(monitoring.prometheus, &path).await.and_then(|body| serde_json::from_str(&body).ok());
            let answer: serde_json::Value = answer.unwrap_or_default();
            if answer["data"]["result"].as_array().is_none_or(Vec::is_empty) {
                empty.push((panel, expression));
            }
        }
        if empty.is_empty() {
            say(&format!("{} expressions of dashboards have data", expressions().len()));
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
    panic!("no data for {empty:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_alert_on_a_lost_leader_arrives_and_ends() {
    let Some(programs) = programs().await else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let monitoring = Monitoring::start(&cluster, programs, &[]);
    monitoring.scraped().await;
    let watchdog = BTreeSet::from(["MusterWatchdog".to_owned()]);
    monitoring
        .until("a healthy cluster has other alerts than the watchdog", |alerts| *alerts == watchdog)
        .await;
    // What the rules read on a healthy cluster is there under those names.
    for name in [
        "muster_raft_is_leader",
        "muster_raft_has_leader",
        "muster_raft_is_voter",
        "muster_raft_voters",
        "muster_storage_free_bytes",
    ] {
        assert_eq!(monitoring.series(name).await, 3, "{name}");
    }
    assert!(monitoring.series("muster_grpc_calls_total").await > 0);
    assert!(monitoring.series("muster:slo_bad_ratio:5m").await > 0, "the ratios are recorded");

    let follower = (leader + 1) % 3;
    cluster.kill(leader).await;
    cluster.kill(follower).await;
    let fires = |alerts: &BTreeSet<String>| alerts.contains("MusterNoLeader");
    let after = monitoring.until("no alert although nobody leads", fires).await;
    cluster.start_replica(leader);
    cluster.start_replica(follower);
    cluster.leader().await;
    let ended = monitoring.until("the alert stays although a replica leads", |alerts| !fires(alerts)).await;
    say(&format!(
        "MusterNoLeader arrived {} s after two of three replicas were killed and ended {} s after a replica led again",
        after.as_secs(),
        ended.as_secs()
    ));
}

/// A line of the rules, with a short time in place of a long one. What a disk will have in a day does not follow from a minute.
fn with_short_times(line: &str) -> String {
    let line = line.split(" or predict_linear").next().unwrap_or(line);
    match line.split_once("for: ") {
        Some((indent, time)) if indent.trim().is_empty() && !time.ends_with('s') => {
            format!("{indent}for: {SHORT_FOR}")
        }
        _ => line.to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_on_a_lost_region_a_full_disk_and_a_waiting_tenant_arrive_and_end() {
    let Some(programs) = programs().await else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::lay_out(3);
    let disks: Vec<Disk> = (0..3).filter_map(|at| Disk::mount(&cluster.replicas[at].data())).collect();
    if disks.len() < 3 {
        say(
            "SKIPPED alerts on a lost region, a full disk and a waiting tenant: this user cannot mount a tmpfs",
        );
        return;
    }
    // The rule calls less than 10 GB nearly full.
    disks.iter().for_each(|disk| disk.resize("16g"));
    // A host without an agent would be a lost node.
    cluster.found_without_hosts().await;
    let regions: Vec<String> = cluster.replicas.iter().map(|files| files.region()).collect();
    let (first, last) = (regions[0].as_str(), regions[2].as_str());
    let mut agents = Agents::start_in(&cluster, &[("a", first), ("b", last)]).await;
    let monitoring = Monitoring::start_with(&cluster, programs, &[], with_short_times);
    monitoring.scraped().await;
    let watchdog = BTreeSet::from(["MusterWatchdog".to_owned()]);
    let is_healthy = |alerts: &BTreeSet<String>| *alerts == watchdog;
    monitoring.until("a healthy cluster has other alerts than the watchdog", is_healthy).await;
    let mut report = Vec::new();

    // A tenant whose quota guarantees what no host has yet, and a job of it that waits for nothing else.
    let policy = cluster.scratch.path().join("guarantee.yaml");
    let text = "apiVersion: muster.dev/v1\nkind: Policy\nspec: {tenants: {research: {quotas: [{type: b200, nominal: 4096}]}}, prices: [{type: b200, perDeviceHour: 4}]}\n";
    std::fs::write(&policy, text).expect("it can be written");
    cluster.operated(&["policy", "set", policy.to_str().expect("a path")]).await;
    let mut waiting = job("waits", &["true"]);
    waiting.tenant = "research".to_owned();
    let group = &mut waiting.spec.as_mut().expect("it has one").groups[0];
    group.workers = 64;
    group.resources.as_mut().expect("it has them").accelerators = Some(accelerators("b200", 1));
    let id = submit(&cluster.client(), waiting).await;
    let fires = |name: &'static str| move |alerts: &BTreeSet<String>| alerts.contains(name);
    let ends = |name: &'static str| move |alerts: &BTreeSet<String>| !alerts.contains(name);
    let fired = monitoring.until("no alert on an unused guarantee", fires("MusterGuaranteeUnused")).await;
    cluster.operated(&["job", "cancel", &id]).await;
    let ended = monitoring.until("the alert on a guarantee stays", ends("MusterGuaranteeUnused")).await;
    report.push(("MusterGuaranteeUnused", fired, ended));

    let follower = cluster.follower().await;
    disks[follower].resize("8g");
    let fired = monitoring.until("no alert on a full disk", fires("MusterDiskFills")).await;
    disks[follower].resize("16g");
    let ended = monitoring.until("the alert on a full disk stays", ends("MusterDiskFills")).await;
    report.push(("MusterDiskFills", fired, ended));

    // A region with a replica and a host.
    cluster.kill(2).await;
    agents.crash("b", "second").await;
    let fired = monitoring.until("no alert on a quorum at risk", fires("MusterQuorumAtRisk")).await;
    let nodes = monitoring.until("no alert on lost nodes", fires("MusterNodesLost")).await;
    cluster.start_replica(2);
    agents.start_agent("b");
    let ended = monitoring.until("the alerts on a lost region stay", is_healthy).await;
    report.push(("MusterQuorumAtRisk", fired, ended));
    report.push(("MusterNodesLost", fired + nodes, ended));
    for (alert, fired, ended) in report {
        let (fired, ended) = (fired.as_secs(), ended.as_secs());
        say(&format!(
            "{alert} arrived {fired} s after the fault, with `for` of {SHORT_FOR}, and ended {ended} s after its end"
        ));
    }
    cluster.scratch.assert_no_panics();
    cluster.scratch.kill_all();
}
