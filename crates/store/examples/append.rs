//! Appends entries of 256 bytes as fast as one writer that waits for each batch can, and says how
//! many per second became durable and how large the directory is.
//!
//! `cargo run --release -p muster-store --example append -- [directory] [seconds per line] [batch]`
#![allow(clippy::unwrap_used, reason = "a measurement that fails has nothing else to say")]

use bytes::Bytes;
use muster_store::{
    Entry, EntryPayload, Identity, LeaderId, LogId, OpenMode, Payload, RaftConfig, ReplicaStore, StoreOptions,
};
use muster_types::{ClusterId, ReplicaId};
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::vote::RaftLeaderId;
use std::path::Path;
use std::time::{Duration, Instant};

const PAYLOAD_BYTES: usize = 256;
const BATCHES: [u64; 4] = [1, 16, 256, 4_096];

fn directory_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for file in std::fs::read_dir(path).unwrap() {
        let path = file.unwrap().path();
        bytes += if path.is_dir() { directory_bytes(&path) } else { path.metadata().unwrap().blocks() * 512 };
    }
    bytes
}

async fn measure(dir: &Path, batch: u64, time: Duration) {
    let identity = Identity { cluster_id: ClusterId(1), replica_id: ReplicaId(1), generation: 1 };
    let store =
        ReplicaStore::open(dir, identity, OpenMode::CreateIfMissing, StoreOptions::production()).unwrap();
    let mut log = store.log.clone();
    let mut next = 0;
    let mut latencies = Vec::new();
    let started = Instant::now();
    while started.elapsed() < time {
        let entries: Vec<Entry> = (next..next + batch)
            .map(|index| {
                let payload: Vec<u8> = (0..PAYLOAD_BYTES as u64).map(|at| (at * 31 + index) as u8).collect();
                let log_id = LogId::new(LeaderId::new(1, 1), index);
                Entry { log_id, payload: EntryPayload::Normal(Payload(Bytes::from(payload))) }
            })
            .collect();
        next += batch;
        let asked = Instant::now();
        let (sender, flushed) = RaftConfig::oneshot();
        log.append(entries, IOFlushed::<RaftConfig>::signal(sender)).await.unwrap();
        flushed.await.unwrap().unwrap();
        latencies.push(asked.elapsed());
    }
    let seconds = started.elapsed().as_secs_f64();
    store.log.close().await;
    latencies.sort();
    println!(
        "batch {batch:>5}: {:>9.0} entries/s, p50 {:>6.2} ms, p99 {:>6.2} ms, {:.2} bytes on disk per byte of payload",
        next as f64 / seconds,
        latencies[latencies.len() / 2].as_secs_f64() * 1e3,
        latencies[latencies.len() * 99 / 100].as_secs_f64() * 1e3,
        directory_bytes(dir) as f64 / (next * PAYLOAD_BYTES as u64) as f64,
    );
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap_or_else(|| ".".to_owned());
    let seconds = arguments.next().map_or(3, |seconds| seconds.parse().unwrap());
    let only: Option<u64> = arguments.next().map(|batch| batch.parse().unwrap());
    for batch in BATCHES.into_iter().filter(|batch| only.is_none_or(|only| only == *batch)) {
        let dir = tempfile::tempdir_in(&directory).unwrap();
        measure(dir.path(), batch, Duration::from_secs(seconds)).await;
    }
}
