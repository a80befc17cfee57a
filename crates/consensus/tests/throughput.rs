//! How much gets through: printed, not judged, because the machine is shared.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::time::Instant;
use support::{Cluster, Disk, guarded};

async fn measure(disk: fn() -> Disk, name: &str) {
    let cluster = Cluster::start(3, 3, disk).await;
    let leadership = cluster.leader().await;
    let leader = cluster.consensus(leadership.replica);
    guarded("the barrier", leader.barrier(leadership)).await.unwrap();
    for (bytes, in_flight, total) in [(256, 1, 200), (256, 64, 2_000), (25_600, 1, 200), (25_600, 16, 600)] {
        let payload = Bytes::from(vec![7; bytes]);
        let started = Instant::now();
        let mut running = FuturesUnordered::new();
        let (mut proposed, mut committed) = (0, 0);
        while committed < total {
            while proposed < total && running.len() < in_flight {
                running.push(leader.propose(payload.clone(), leadership));
                proposed += 1;
            }
            guarded("a commit", running.next()).await.unwrap().unwrap();
            committed += 1;
        }
        let seconds = started.elapsed().as_secs_f64();
        println!("{name}: {bytes} bytes, {in_flight} in flight: {:.0} entries/s", f64::from(total) / seconds);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_per_second() {
    measure(Disk::memory, "memory").await;
    measure(Disk::directory, "sled").await;
}
