//! The log of a replica as programs read it.

use serde_json::Value;
use std::path::Path;

use crate::support::{Agents, Cluster, eventually};

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
