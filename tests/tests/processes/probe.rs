//! The network between hosts is measured: by hand, and before a gang starts. One of the hosts is behind a
//! line that takes a hundredth of what the others do.

use muster_example::intervals;
use muster_wire::v1::{self, JobPhase};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Agents, Cluster, free_address, heavy, is_finished, say, wait_for_job, work};

/// The host behind the narrow line, and what that takes: less than any network for training.
const SLOW: &str = "h3";
const BYTES_PER_S: u64 = 2_000_000;

/// Passes on what comes to an address, slowly in the one direction.
async fn narrow_line(at: SocketAddr, target: SocketAddr) {
    let listener = TcpListener::bind(at).await.expect("the port is free");
    tokio::spawn(async move {
        loop {
            let (near, _) = listener.accept().await.expect("a listener listens");
            tokio::spawn(async move {
                // Nobody listens there but during a probe.
                let Ok(far) = TcpStream::connect(target).await else { return };
                let ((mut from, mut back), (mut answers, mut to)) = (near.into_split(), far.into_split());
                let slowly = async {
                    let mut bytes = vec![0; 8 << 10];
                    while let Ok(read @ 1..) = from.read(&mut bytes).await {
                        tokio::time::sleep(Duration::from_secs_f64(read as f64 / BYTES_PER_S as f64)).await;
                        if to.write_all(&bytes[..read]).await.is_err() {
                            return;
                        }
                    }
                };
                tokio::join!(slowly, tokio::io::copy(&mut answers, &mut back)).1.ok();
            });
        }
    });
}

fn gang(evidence: &std::path::Path, workers: u32) -> v1::Job {
    let mut wanted = work("checked", evidence, 300, 0, (workers, 4));
    wanted.spec_mut().preflight = v1::Preflight::On.into();
    wanted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_host_is_named_and_a_gang_does_not_start_on_it() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let endpoints = cluster.shown_endpoints();
    // Where the slow host really listens; others find it at its address, behind the line.
    let behind = free_address(Ipv4Addr::new(127, cluster.block[0], cluster.block[1], 116));
    let listening = parking_lot::Mutex::new(None);
    let settings = |name: &str, address: Ipv4Addr| {
        if name == SLOW {
            *listening.lock() = Some(SocketAddr::from((address, behind.port())));
            return format!("probe_listen = \"{behind}\"\n");
        }
        format!("probe_listen = \"{address}:0\"\n")
    };
    // The line is narrow for those who connect to the host, which of two is the later one to those before it.
    let sound = Agents::start_with(&cluster, &["h1", "h2"], |_| endpoints.clone(), settings).await;
    let slow = Agents::start_with(&cluster, &[SLOW], |_| endpoints.clone(), settings).await;
    let shown = listening.lock().expect("the slow host was laid out");
    narrow_line(shown, behind).await;

    // By hand.
    let ran = cluster.operate(&["probe", "h1", "h2", "-o", "json"]).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let document: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(document["links"].as_array().map(Vec::len), Some(2), "{document:#}");
    assert_eq!(document["rings"].as_array().map(Vec::len), Some(2), "{document:#}");
    assert!(document["links"][0]["bytesPerSecond"].as_u64() > Some(10_000_000), "{document:#}");
    let ran = cluster.operate(&["probe", "h1", "h2", SLOW]).await;
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    assert!(ran.out.contains(&format!("do without {SLOW}: ")), "{}", ran.out);
    say(&format!("a probe of three hosts, one of them slow:\n{}", ran.out));
    cluster.operate(&["probe", "h1"]).await.assert_refused(2, &["two nodes or more"]);
    cluster.operate(&["probe", "h1", "no-such"]).await.assert_refused(3, &["NODE_NOT_FOUND"]);

    // A gang on the sound hosts starts, checked.
    let evidence = cluster.scratch.path().join("intervals");
    std::fs::create_dir(&evidence).unwrap();
    let submit = |wanted| {
        let client = client.clone();
        async move {
            let request = v1::SubmitJobRequest { job: Some(wanted), ..Default::default() };
            client.submit_job(request).await.expect("a job that fits is accepted").job_ids.remove(0)
        }
    };
    let cordon = v1::CordonNodeRequest { node: SLOW.to_owned(), ..Default::default() };
    client.cordon_node(cordon).await.unwrap();
    let id = submit(gang(&evidence, 2)).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!((ended.phase(), ended.status().attempt), (JobPhase::Succeeded, 1), "{ended:#?}");
    let uncordon = v1::UncordonNodeRequest { node: SLOW.to_owned(), ..Default::default() };
    client.uncordon_node(uncordon).await.unwrap();

    // One that needs all three does not: no worker of it ever runs, and the job says on which node that was.
    let mut wanted = gang(&evidence, 3);
    let never = v1::RetryLimit { failure_class: v1::FailureClass::Preflight.into(), retries: 0 };
    wanted.spec_mut().retry_mut().limits = vec![never];
    let id = submit(wanted).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!((ended.phase(), ended.status().attempt), (JobPhase::Failed, 1), "{ended:#?}");
    let history = ended.status().history.as_ref();
    let failure = history.and_then(|history| history.last_failure.as_ref()).expect("a failed job says why");
    assert_eq!(
        (failure.failure_class(), failure.node_name.as_str()),
        (v1::FailureClass::Preflight, SLOW),
        "{failure:#?}"
    );
    assert!(failure.message.contains("slow"), "{failure:#?}");
    let ran = intervals::read(&evidence).unwrap();
    assert!(ran.iter().all(|interval| interval.job != id), "a worker started on a faulty network: {ran:#?}");
    sound.wait_status("h1", v1::NodeStatus::Up).await;
    slow.wait_status(SLOW, v1::NodeStatus::Up).await;
    cluster.assert_digests_agree().await;
}
