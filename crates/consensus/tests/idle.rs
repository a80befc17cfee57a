//! A cluster that has nothing to do stays as it is: no elections, no broken streams.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use parking_lot::Mutex;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use support::{Cluster, Disk};

/// Collects what is logged.
#[derive(Clone, Default)]
struct Collected(Arc<Mutex<Vec<u8>>>);

impl Write for Collected {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_cluster_keeps_its_leader_and_its_streams() {
    let collected = Collected::default();
    let writer = collected.clone();
    tracing_subscriber::fmt().with_env_filter("warn").with_writer(move || writer.clone()).init();
    let cluster = Cluster::start(3, 3, Disk::memory).await;
    let leadership = cluster.leader().await;
    let index = cluster.write(&[1, 2, 3], "one").await;
    for id in 1..=3 {
        cluster.applied(id, index).await;
    }
    collected.0.lock().clear();
    // The time is the subject here: longer than any timeout of an idle stream.
    let mut view = cluster.consensus(leadership.replica).leadership();
    let changed = tokio::time::timeout(Duration::from_secs(4), async {
        view.wait_for(|view| view.mine != Some(leadership)).await.map(|view| view.clone())
    });
    assert!(changed.await.is_err(), "the leader stays");
    let logged = String::from_utf8(collected.0.lock().clone()).unwrap();
    assert!(!logged.contains("recv RPCError"), "{logged}");
}
