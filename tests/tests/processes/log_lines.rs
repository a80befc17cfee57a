//! The log of a replica as programs read it.

use serde_json::Value;
use std::path::Path;

use crate::support::{Agents, Cluster, eventually, is_finished, job, submit, wait_for_job};

/// What a replica is started below.
const AS_JSON: [&str; 2] = ["env", "MUSTER_LOG_FORMAT=json"];

/// The line with this message and field, once it is there. Every line before it is an object.
async fn line(log: &Path, message: &str, (field, value): (&str, &str)) -> Value {
    eventually(&format!("no line {message:?} in {}", log.display()), || async {
        let text = std::fs::read_to_string(log).ok()?;
        // The last one may not be whole yet.
        let (whole, _) = text.rsplit_once('\n')?;
        let parse = |line: &str| -> Value {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
        };
        let is_wanted = |line: &Value| {
            let said = line[field].as_str().map_or_else(|| line[field].to_string(), str::to_owned);
            line["message"] == message && said == value
        };
        whole.lines().map(parse).find(is_wanted)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_is_an_object_whose_fields_are_those_of_the_guide() {
    let mut cluster = Cluster::lay_out(1);
    cluster.start_replica_below(&AS_JSON, 0, &["--bootstrap"]);
    cluster.leader().await;
    let _agents = Agents::start(&cluster, &["h1"]).await;
    let log = cluster.replicas[0].home.join("log");
    let served = line(&log, "replica serves", ("replica", "r1")).await;
    assert!(served["timestamp"].is_string() && served["level"] == "INFO", "{served}");
    let leads = line(&log, "leadership begins", ("level", "INFO")).await;
    assert!(leads["term"].as_u64() >= Some(1), "{leads}");
    assert!(leads["log_index"].as_str().is_some_and(|index| index.parse::<u64>().is_ok()), "{leads}");
    let opened = line(&log, "session opened", ("name", "h1")).await;
    assert!(opened["node"].as_str().is_some_and(|node| node.starts_with("node-")), "{opened}");
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_of_an_agent_about_a_worker_has_its_job_and_node() {
    let mut cluster = Cluster::start(1).await;
    let endpoints = cluster.shown_endpoints();
    let as_json = |_: &str, _| "log_format = \"json\"\n".to_owned();
    let agents = Agents::start_with(&cluster, &["h1"], |_| endpoints.clone(), as_json).await;
    let log = agents.home("h1").join("log");
    let client = cluster.client();
    let id = submit(&client, job("greeting", &["true"])).await;
    wait_for_job(&client, &id, is_finished).await;
    for message in ["launching", "ended"] {
        let found = line(&log, message, ("job", &id)).await;
        assert_eq!(found["node"], "h1", "{found}");
    }
    // What is about no worker names the node as well, by the name and not by the id.
    for message in ["registered", "agent started"] {
        line(&log, message, ("node", "h1")).await;
    }
    // No line names it twice, or leaves it out once the configuration is read.
    let text = std::fs::read_to_string(&log).unwrap();
    let lines = text.lines().skip_while(|line| !line.contains("agent started"));
    for line in lines {
        assert_eq!(line.matches("\"node\":").count(), 1, "{line}");
    }
    cluster.assert_digests_agree().await;
}
