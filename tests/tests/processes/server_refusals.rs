//! A server that cannot start says which file, which key and what to do, and leaves no trace.

use muster_wire::v1;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use crate::rebuild::damage;
use crate::support::{Cluster, Ran, free_address, job, node, register, run_to_end};

/// The exit code of every refusal to start.
const FAILED: i32 = 1;

async fn server(config: &Path, more: &[&str]) -> Ran {
    let config = config.to_str().expect("the test's directory is text");
    run_to_end(&[&["server", "--config", config], more].concat(), "").await
}

/// The first replica's server with its configuration changed.
async fn server_with(cluster: &Cluster, change: impl FnOnce(String) -> String, more: &[&str]) -> Ran {
    let config = cluster.scratch.path().join("changed.toml");
    let usual = cluster.config_of(0);
    let text = change(usual.clone());
    assert_ne!(text, usual, "nothing was changed");
    std::fs::write(&config, text).expect("writing a config");
    server(&config, more).await
}

fn replace(from: &'static str, to: &'static str) -> impl FnOnce(String) -> String {
    move |text| text.replacen(from, to, 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_configurations_are_refused() {
    let cluster = Cluster::lay_out(3);
    let data = cluster.replicas[0].data();

    let missing = cluster.scratch.path().join("nowhere.toml");
    server(&missing, &["--bootstrap"]).await.assert_refused(FAILED, &["nowhere.toml", "No such file"]);

    type Change = Box<dyn FnOnce(String) -> String>;
    let cases: [(&str, Change, &[&str]); 13] = [
        ("missing key", Box::new(replace("replica_id = 1\n", "")), &["missing field `replica_id`"]),
        (
            "unknown key",
            Box::new(|text| format!("colour = \"red\"\n{text}")),
            &["unknown field `colour`", "cluster_id"],
        ),
        (
            "unknown key in a table",
            Box::new(replace("[timing]\n", "[timing]\npatience_ms = 1\n")),
            &["unknown field `patience_ms`"],
        ),
        ("no TOML", Box::new(|_| "{".to_owned()), &["line 1"]),
        (
            "wrong type",
            Box::new(replace("replica_id = 1", "replica_id = \"one\"")),
            &["replica_id", "expected a whole number, 0 or more; got the text"],
        ),
        (
            "not a member",
            Box::new(replace("replica_id = 1", "replica_id = 9")),
            &["members: must name this replica, r9"],
        ),
        (
            "bound",
            Box::new(replace("lease_ttl = \"3s\"", "lease_ttl = \"1ms\"")),
            &["parameters.lease_ttl: must be between 500ms and 1h, got 1ms"],
        ),
        (
            "a duration without its unit",
            Box::new(replace("lease_ttl = \"3s\"", "lease_ttl = 3000")),
            &["lease_ttl = 3000", "expected a duration like 90s, 2h or 1h30m"],
        ),
        (
            "a quantity of another kind",
            Box::new(replace("lease_ttl = \"3s\"", "lease_ttl = \"64MiB\"")),
            &["lease_ttl = \"64MiB\"", "expected a duration like 90s, 2h or 1h30m"],
        ),
        (
            "a key of an earlier form",
            Box::new(replace("lease_ttl = \"3s\"", "lease_ttl_ms = 3000")),
            &["parameters.lease_ttl_ms: is now `lease_ttl`", "lease_ttl = \"3s\"; takes a duration like 90s"],
        ),
        ("name", Box::new(replace("\"region-2\"", "\"Region Two\"")), &["members[1].region: must be"]),
        (
            "elections that cannot work",
            Box::new(replace("election_timeout_max = \"500ms\"", "election_timeout_max = \"1ms\"")),
            &["timing.election_timeout_max: must be above", "got 1ms"],
        ),
        (
            "heartbeats that are too slow",
            Box::new(replace(
                "[timing]\nheartbeat_interval = \"100ms\"",
                "[timing]\nheartbeat_interval = \"250ms\"",
            )),
            &["timing.election_timeout_min: must be above heartbeat_interval, 250ms, got 250ms"],
        ),
    ];
    for (what, change, parts) in cases {
        let ran = server_with(&cluster, change, &["--bootstrap"]).await;
        ran.assert_refused(FAILED, parts);
        assert!(ran.err.contains("changed.toml"), "{what}: the file is not named: {}", ran.err);
        assert!(!data.exists(), "{what}: something was written");
    }

    // An empty directory without leave to make one: a lost disk must not vote again.
    let config = cluster.replicas[0].config();
    server(&config, &[]).await.assert_refused(FAILED, &["data_dir", "holds no replica", "--bootstrap"]);
    assert!(!data.exists(), "something was written");

    // Plaintext that others could reach.
    let open = |key: &'static str| {
        move |text: String| {
            let lines = text.lines().map(|line| match line.starts_with(key) {
                true => format!("{key} = \"0.0.0.0:0\"\n"),
                false => format!("{line}\n"),
            });
            lines.collect()
        }
    };
    for key in ["client_listen", "peer_listen", "http_listen"] {
        let ran = server_with(&cluster, open(key), &["--bootstrap"]).await;
        ran.assert_refused(FAILED, &[key, "0.0.0.0:0", "plaintext", "--insecure"]);
        assert!(!data.exists(), "something was written");
    }

    // A port in use, by key and address.
    let replica = &cluster.replicas[0];
    for (key, address) in
        [("client_listen", replica.client), ("peer_listen", replica.peer), ("http_listen", replica.http)]
    {
        let _taken = TcpListener::bind(address).unwrap();
        let ran = server(&config, &["--bootstrap"]).await;
        ran.assert_refused(FAILED, &[key, &address.to_string(), "in use"]);
        assert!(!data.exists(), "something was written");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_data_folders_are_refused() {
    let mut cluster = Cluster::start(1).await;
    let data = cluster.replicas[0].data();
    let config = cluster.replicas[0].config();

    // In use: by another process, so the addresses have to be others.
    let [x, y] = cluster.block;
    let elsewhere = |text: String| {
        let lines = text.lines().map(|line| match line.split_once(" = ") {
            Some((key @ ("client_listen" | "peer_listen" | "http_listen"), _)) => {
                let address = free_address(Ipv4Addr::new(127, x, y, 9));
                format!("{key} = \"{address}\"\n")
            }
            _ => format!("{line}\n"),
        });
        lines.collect()
    };
    let ran = server_with(&cluster, elsewhere, &[]).await;
    ran.assert_refused(FAILED, &[data.to_str().unwrap(), "in use by another process"]);
    cluster.assert_digests_agree().await;
    cluster.stop(0).await;

    // Another cluster's, another replica's; also where creating one was allowed.
    let own = cluster.id.to_string();
    for more in [&[][..], &["--bootstrap"]] {
        let other = "00000000000000000000000000000042";
        let ran = server_with(&cluster, |text| text.replace(&own, other), more).await;
        ran.assert_refused(FAILED, &[data.to_str().unwrap(), "belongs to cluster", &own, other]);
        let other =
            |text: String| text.replace("replica_id = 1", "replica_id = 2").replace("id = 1\n", "id = 2\n");
        let ran = server_with(&cluster, other, more).await;
        ran.assert_refused(FAILED, &[data.to_str().unwrap(), "belongs to replica r1, not to r2"]);
    }

    // A newer release's. The format stands behind the eight bytes of the magic, a checksum at the end.
    let identity = data.join("IDENTITY");
    let genuine = std::fs::read(&identity).unwrap();
    let mut newer = genuine[..genuine.len() - 4].to_vec();
    newer[8..12].copy_from_slice(&7u32.to_le_bytes());
    let checksum = crc32fast::hash(&newer);
    newer.extend_from_slice(&checksum.to_le_bytes());
    std::fs::write(&identity, &newer).unwrap();
    let ran = server(&config, &[]).await;
    ran.assert_refused(
        FAILED,
        &[data.to_str().unwrap(), "format 7", "up to 2", "run the release that wrote it"],
    );
    assert_eq!(std::fs::read(&identity).unwrap(), newer, "it was changed");
    std::fs::write(&identity, &genuine).unwrap();

    // Refused or not, it was left as it was.
    cluster.start_replica(0);
    cluster.leader().await;
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_data_is_refused_with_advice() {
    let mut cluster = Cluster::start(1).await;
    // Something to lose, and a node for which it is not refused.
    let client = cluster.client();
    register(&cluster.replicas[0].endpoint(), node("h1")).await.unwrap();
    for number in 0..20 {
        let wanted = job(&format!("kept-{number}"), &["true"]);
        let request = v1::SubmitJobRequest { job: Some(wanted), ..Default::default() };
        client.submit_job(request).await.unwrap();
    }
    cluster.assert_digests_agree().await;
    cluster.stop(0).await;
    let config = cluster.replicas[0].config();
    let data = cluster.replicas[0].data();

    // Bytes of the log turned over, here and there. It has no peers to be rebuilt from.
    damage(&data.join("log"));
    for more in [&[][..], &["--bootstrap"]] {
        let ran = server(&config, more).await;
        ran.assert_refused(FAILED, &["data_dir", data.to_str().unwrap(), "damaged", "learner"]);
    }
    // The log gone altogether is damage as well, not a new replica.
    std::fs::remove_dir_all(data.join("log")).unwrap();
    for more in [&[][..], &["--bootstrap"]] {
        let ran = server(&config, more).await;
        ran.assert_refused(FAILED, &["data_dir", "damaged", "learner"]);
    }
}
