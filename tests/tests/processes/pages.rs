//! The pages of replicas and agents for monitoring systems and probes.

use muster_metrics::{AGENT_FAMILIES, FAMILIES, Family};
use muster_wire::time::timestamp;
use muster_wire::v1;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{
    Agents, Cluster, PATIENCE, accelerators, eventually, free_address, is_finished, job, node, register, say,
    submit, wait_for_job, work,
};

/// In the year 2100.
const FAR: u64 = 4_102_444_800_000;
/// Families without a series where a cluster has no certificates, is too young for a snapshot, and has disks that do not stall.
const NOT_YET: [&str; 3] =
    ["muster_certificate_days_left", "muster_snapshot_age_seconds", "muster_storage_stalled_seconds"];
/// A segment of the archive every moment, so that there is one within a test.
const EAGER: &str = "\n[archive]\nsegment_age = \"200ms\"\n";

struct Page {
    code: u16,
    head: String,
    body: String,
}

/// Asks for a page as any program would, on a separate connection.
async fn ask(address: SocketAddr, request_line: &str) -> Option<Page> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request = format!("{request_line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let code = head.split(' ').nth(1)?.parse().ok()?;
        Some(Page { code, head: head.to_lowercase(), body: body.to_owned() })
    };
    tokio::time::timeout(PATIENCE, asked).await.ok().flatten()
}

async fn get(address: SocketAddr, path: &str) -> Page {
    ask(address, &format!("GET {path}")).await.unwrap_or_else(|| panic!("{path} is not answered"))
}

/// The value of a series, written as the text format has it.
fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

async fn becomes(cluster: &Cluster, at: usize, series: &str, wanted: f64) {
    becomes_at(cluster.replicas[at].http, series, wanted).await;
}

async fn becomes_at(address: SocketAddr, series: &str, wanted: f64) {
    eventually(&format!("{series} is not {wanted}"), || async {
        let page = ask(address, "GET /metrics").await?;
        (value(&page.body, series) == Some(wanted)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_monitoring_system_sees_what_a_replica_does() {
    let mut cluster = Cluster::start_with(3, 0, "").await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    let client = cluster.client();
    let evidence = cluster.scratch.path().join("intervals");
    // Behind this host is no agent: it is lost in a moment, and both jobs wait.
    let mut host = node("with-devices");
    host.accelerators = Some(v1::Accelerators { r#type: "h100".to_owned(), count: 8 });
    register(&cluster.replicas[leader].endpoint(), host).await.expect("a host can be registered");
    submit(&client, work("first", &evidence, 10, 0, (1, 8))).await;
    submit(&client, work("second", &evidence, 10, 0, (1, 8))).await;
    let unknown = v1::GetJobRequest { job_id: "job-424242".to_owned(), ..Default::default() };
    client.get_job(unknown).await.expect_err("there is no such job");
    for at in [leader, follower] {
        becomes(&cluster, at, r#"muster_tenant_jobs{tenant="default",state="pending"}"#, 2.0).await;
        becomes(&cluster, at, r#"muster_jobs{state="active"}"#, 0.0).await;
        becomes(&cluster, at, r#"muster_nodes{state="lost"}"#, 2.0).await;
    }

    let page = get(cluster.replicas[leader].http, "/metrics").await;
    assert_eq!(page.code, 200);
    assert!(page.head.contains("content-type: application/openmetrics-text"), "{}", page.head);
    assert!(page.body.ends_with("# EOF\n"));
    let on_leader =
        |series: &str| value(&page.body, series).unwrap_or_else(|| panic!("{series}: {}", page.body));
    assert_eq!(on_leader("muster_raft_is_leader"), 1.0);
    assert_eq!(on_leader("muster_raft_voters"), 3.0);
    assert_eq!(on_leader("muster_raft_is_voter"), 1.0);
    assert_eq!(on_leader(r#"muster_accelerators_used{type="h100"}"#), 0.0, "a lost node is not in use");
    let pool = r#"{region="region-1",cluster="region-1-a",type="h100"}"#;
    assert_eq!(on_leader(&format!("muster_accelerators{pool}")), 8.0);
    assert_eq!(on_leader(&format!("muster_accelerators_free{pool}")), 0.0, "a lost node takes no jobs");
    assert!(on_leader("muster_log_index") >= 3.0);
    assert!(on_leader("process_resident_memory_bytes") > 1e6);
    assert_eq!(page.body.matches("muster_raft_peer_lag_entries{").count(), 2, "{}", page.body);
    // Whichever replica the client asked has counted the refusal, and each call with its code and its duration.
    let mut pages = Vec::new();
    for files in &cluster.replicas {
        pages.push(get(files.http, "/metrics").await.body);
    }
    let sum = |series: &str| pages.iter().filter_map(|text| value(text, series)).sum::<f64>();
    assert!(sum(r#"muster_refusals_total{reason="JOB_NOT_FOUND"}"#) >= 1.0, "{}", pages.concat());
    let get_job = r#"method="muster.v1beta1.JobService/GetJob""#;
    assert!(sum(&format!(r#"muster_grpc_calls_total{{{get_job},code="NOT_FOUND"}}"#)) >= 1.0);
    assert!(sum(&format!(r#"muster_grpc_call_duration_seconds_count{{{get_job}}}"#)) >= 1.0);
    say(&format!("a scrape of the leader has {} bytes", page.body.len()));

    // A probe learns what a replica is good for, and another one leads once the first is gone.
    assert_eq!(get(cluster.replicas[leader].http, "/readyz").await.body, "leader\n");
    assert_eq!(get(cluster.replicas[follower].http, "/readyz").await.body, "follower\n");
    cluster.kill(leader).await;
    let next = cluster.leader().await;
    becomes(&cluster, next, "muster_raft_is_leader", 1.0).await;
    cluster.kill(next).await;
    let last = (0..3).find(|at| ![leader, next].contains(at)).expect("one of three is left");
    let alone = cluster.replicas[last].http;
    eventually("a replica without a quorum is ready", || async {
        let page = ask(alone, "GET /readyz").await?;
        (page.code == 503).then_some(())
    })
    .await;
    becomes(&cluster, last, "muster_raft_has_leader", 0.0).await;
    assert_eq!(get(alone, "/livez").await.code, 200, "a restart would not help it");
    // One that starts and finds nobody is read by a monitoring system while it is good for nothing else.
    cluster.kill(last).await;
    cluster.start_replica(last);
    eventually("a replica that recovers is not read", || async {
        let (ready, page) = (ask(alone, "GET /readyz").await?, ask(alone, "GET /metrics").await?);
        (ready.code == 503 && page.code == 200 && page.body.ends_with("# EOF\n")).then_some(())
    })
    .await;
    cluster.restart_all().await;
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_are_counted_on_every_replica_while_it_runs() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    let _agents = Agents::start(&cluster, &["a"]).await;
    let client = cluster.client();
    for (name, command) in [("good", "true"), ("bad", "false")] {
        let id = submit(&client, job(name, &[command])).await;
        wait_for_job(&client, &id, is_finished).await;
    }
    for at in [leader, follower] {
        for (series, wanted) in [
            (r#"muster_jobs_submitted_total{tier="standard"}"#, 2.0),
            (r#"muster_jobs_submitted_total{tier="critical"}"#, 0.0),
            (r#"muster_job_queue_duration_seconds_count{tier="standard"}"#, 2.0),
            (r#"muster_jobs_finished_total{outcome="succeeded"}"#, 1.0),
            (r#"muster_jobs_finished_total{outcome="failed"}"#, 1.0),
            (r#"muster_attempts_failed_total{class="application"}"#, 1.0),
            (r#"muster_gangs_stopped_total{cause="preempted"}"#, 0.0),
            (r#"muster_gang_stop_duration_seconds_count{cause="preempted"}"#, 0.0),
            (r#"muster_log_records_total{decision="jobs_submitted"}"#, 2.0),
        ] {
            becomes(&cluster, at, series, wanted).await;
        }
        let page = get(cluster.replicas[at].http, "/metrics").await.body;
        let started = value(&page, r#"muster_job_start_duration_seconds_count{tier="standard"}"#);
        assert!(started >= Some(1.0), "{page}");
    }
    // It applies the log a second time, and counts nothing of that.
    cluster.kill(follower).await;
    cluster.start_replica(follower);
    becomes(&cluster, follower, r#"muster_jobs{state="finished"}"#, 2.0).await;
    becomes(&cluster, follower, r#"muster_jobs_submitted_total{tier="standard"}"#, 0.0).await;
    let id = submit(&client, job("good", &["true"])).await;
    wait_for_job(&client, &id, is_finished).await;
    becomes(&cluster, follower, r#"muster_jobs_submitted_total{tier="standard"}"#, 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_page_is_refused_and_many_scrapes_hurt_nobody() {
    let cluster = Cluster::start(1).await;
    let address = cluster.replicas[0].http;
    for (line, code) in [
        ("GET /", 200),
        ("GET /nothing", 404),
        ("GET /metrics/../secret", 404),
        ("POST /metrics", 405),
        ("DELETE /readyz", 405),
        ("POST /muster.v1beta1.JobService/SubmitJob", 405),
    ] {
        let page = ask(address, line).await.unwrap_or_else(|| panic!("{line} is not answered"));
        assert_eq!(page.code, code, "{line}: {}", page.body);
    }
    // Not HTTP at all: the connection ends, and nothing else does.
    let mut stream = TcpStream::connect(address).await.expect("it takes connections");
    stream.write_all(&[0, 255, 13, 10, 13, 10]).await.expect("it is sent");
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "a connection that says nothing sensible is left open");

    let many = (0..64)
        .map(|_| tokio::spawn(async move { ask(address, "GET /metrics").await.map(|page| page.code) }));
    let mut codes = Vec::new();
    for one in many.collect::<Vec<_>>() {
        codes.push(one.await.expect("a scrape does not panic"));
    }
    assert!(codes.iter().all(|code| matches!(code, Some(200 | 503) | None)), "{codes:?}");
    assert!(codes.contains(&Some(200)), "{codes:?}");
    assert_eq!(get(address, "/livez").await.body, "ok\n");
    assert_eq!(get(address, "/readyz").await.body, "leader\n");
}

/// An agent that serves pages, and where.
async fn agent_with_pages(cluster: &Cluster, name: &str) -> (Agents, SocketAddr) {
    let http = free_address(Ipv4Addr::LOCALHOST);
    let (endpoints, settings) = (cluster.endpoints(), format!("http_listen = \"{http}\"\n"));
    let agents = Agents::start_with(cluster, &[name], |_| endpoints.clone(), |_, _| settings.clone()).await;
    (agents, http)
}

async fn says(address: SocketAddr, path: &str, code: u16, text: &str) {
    eventually(&format!("{path} does not say {text:?}"), || async {
        let page = ask(address, &format!("GET {path}")).await?;
        (page.code == code && page.body.starts_with(text)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_says_how_it_is_and_counts_its_workers() {
    let mut cluster = Cluster::start(1).await;
    cluster.leader().await;
    let (_agents, http) = agent_with_pages(&cluster, "a").await;
    says(http, "/readyz", 200, "session open, lease stands").await;
    assert_eq!(get(http, "/livez").await.body, "ok\n");
    let client = cluster.client();
    let commands: [&[&str]; 3] = [&["/bin/echo", "12345"], &["/bin/false"], &["/no/such/program"]];
    for command in commands {
        let id = submit(&client, job("one", command)).await;
        wait_for_job(&client, &id, is_finished).await;
    }
    for (series, wanted) in [
        ("muster_agent_nodes", 1.0),
        ("muster_agent_sessions_connected", 1.0),
        (r#"muster_agent_sessions_opened_total{outcome="opened"}"#, 1.0),
        (r#"muster_agent_worker_ends_total{cause="succeeded"}"#, 1.0),
        (r#"muster_agent_worker_ends_total{cause="failed"}"#, 1.0),
        (r#"muster_agent_worker_ends_total{cause="launch_failed"}"#, 1.0),
        (r#"muster_agent_worker_ends_total{cause="lease_expired"}"#, 0.0),
        (r#"muster_agent_output_bytes_total{fate="kept"}"#, 6.0),
        (r#"muster_agent_output_bytes_total{fate="dropped"}"#, 0.0),
        (r#"muster_agent_workers{state="running"}"#, 0.0),
        (r#"muster_agent_accelerators{type="h100",health="healthy"}"#, 4.0),
        (r#"muster_agent_accelerators{type="h100",health="failed"}"#, 0.0),
    ] {
        becomes_at(http, series, wanted).await;
    }
    let text = get(http, "/metrics").await.body;
    let of = |series: &str| value(&text, series).unwrap_or_else(|| panic!("{series}: {text}"));
    let started = of(r#"muster_agent_worker_starts_total{outcome="started"}"#);
    let failed = of(r#"muster_agent_worker_starts_total{outcome="failed"}"#);
    assert!(started >= 2.0 && started + failed == 3.0, "{text}");
    assert_eq!(of("muster_agent_launch_duration_seconds_count"), started, "{text}");
    assert!(of("muster_agent_lease_left_seconds") > 0.0 && of("muster_agent_state_free_bytes") > 0.0);
    assert!(of("process_resident_memory_bytes") > 1e6);
    for wrong in ["POST /metrics", "PUT /readyz"] {
        assert_eq!(ask(http, wrong).await.map(|page| page.code), Some(405), "{wrong}");
    }

    // Without the cluster it has no session, and soon no lease.
    cluster.kill(0).await;
    says(http, "/readyz", 503, "no session with the cluster").await;
    becomes_at(http, "muster_agent_sessions_connected", 0.0).await;
    eventually("the lease has not run out", || async {
        let page = ask(http, "GET /metrics").await?;
        value(&page.body, "muster_agent_lease_left_seconds").is_none().then_some(())
    })
    .await;
    assert_eq!(get(http, "/livez").await.code, 200, "a restart would not help it");
    cluster.start_replica(0);
    says(http, "/readyz", 200, "session open, lease stands").await;
    let opened = r#"muster_agent_sessions_opened_total{outcome="opened"}"#;
    becomes_at(http, opened, 2.0).await;
}

/// The families of a table that a page does not describe.
fn missing<'a>(table: &'a [Family], page: &str) -> Vec<&'a str> {
    let described = |name: &str| page.lines().any(|line| line.starts_with(&format!("# TYPE {name} ")));
    let names = table.iter().map(|family| family.name);
    names.filter(|name| !described(name) && !NOT_YET.contains(name)).collect()
}

/// The series that rules and dashboards name.
fn named_in_operations() -> BTreeSet<String> {
    let operations = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops");
    let mut names = BTreeSet::new();
    for (directory, ending) in [("alerts", ".rules.yaml"), ("dashboards", ".json")] {
        for entry in std::fs::read_dir(operations.join(directory)).expect("it can be listed") {
            let path = entry.expect("it can be listed").path();
            if !path.to_string_lossy().ends_with(ending) {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("it can be read");
            let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
            let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
            let words = lines.flat_map(|line| line.split(|letter| !is_part(letter)));
            let series = words.filter(|word| word.starts_with("muster_") || word.starts_with("process_"));
            names.extend(series.map(ToOwned::to_owned));
        }
    }
    assert!(names.len() > 50, "{names:?}");
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_series_that_rules_and_dashboards_name_is_scraped() {
    let mut cluster = Cluster::lay_out_with(3, 0, EAGER);
    for at in 0..3 {
        cluster.start_replica_with(at, &["--bootstrap"]);
    }
    let leader = cluster.leader().await;
    let (_agents, http) = agent_with_pages(&cluster, "a").await;
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/examples/policy.yaml");
    cluster.operated(&["policy", "set", policy.to_str().expect("a path")]).await;
    let client = cluster.client();
    let mut later = job("later", &["/bin/true"]);
    later.spec_mut().not_before = Some(timestamp(FAR));
    submit(&client, later).await;
    let id = submit(&client, job("good", &["/bin/true"])).await;
    wait_for_job(&client, &id, is_finished).await;
    let mut holds = job("holds", &["/bin/sleep", "600"]);
    // The example guarantees it more than there is here, and lends nothing of that.
    "serving".clone_into(&mut holds.tenant);
    holds.spec_mut().groups[0].resources_mut().accelerators = Some(accelerators("h100", 1));
    let id = submit(&client, holds).await;
    wait_for_job(&client, &id, |job| job.phase() == v1::JobPhase::Running).await;
    eventually("nothing is in the archive of the leader", || async {
        let page = ask(cluster.replicas[leader].http, "GET /metrics").await?;
        value(&page.body, "muster_archive_log_index").filter(|index| *index > 0.0)
    })
    .await;
    becomes(&cluster, leader, r#"muster_jobs_pending{reason="not_before"}"#, 1.0).await;
    becomes(&cluster, leader, r#"muster_jobs_pending{reason="eligible"}"#, 0.0).await;
    becomes(&cluster, leader, r#"muster_inbox_commands{lane="clients"}"#, 0.0).await;

    let mut pages = vec![get(http, "/metrics").await.body];
    for replica in &cluster.replicas {
        pages.push(get(replica.http, "/metrics").await.body);
    }
    assert_eq!(missing(AGENT_FAMILIES, &pages[0]), Vec::<&str>::new(), "{}", pages[0]);
    assert_eq!(missing(FAMILIES, &pages[1..].concat()), Vec::<&str>::new());
    let of_leader = &pages[1 + leader];
    for counted in [
        "muster_raft_proposal_duration_seconds_count",
        "muster_storage_flush_duration_seconds_count",
        "muster_rounds_duration_seconds_count",
    ] {
        assert!(value(of_leader, counted) > Some(0.0), "{counted}: {of_leader}");
    }
    let all = pages.concat();
    let is_there = |name: &str| {
        let of = |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        all.lines().any(of)
    };
    let named = named_in_operations();
    let absent: Vec<&String> =
        named.iter().filter(|name| !is_there(name) && !NOT_YET.contains(&name.as_str())).collect();
    assert!(absent.is_empty(), "no series of {absent:?}");
}
