//! Bytes on disk: what the log takes for a job compared with the bytes of its record, and what comes back after a
//! purge.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use muster_journal::{Decision, Estimate, RequestKey, canonical};
use muster_types::RequestId;
use muster_wire::convert::jobs_from_proto;
use serde_json::json;

use super::Common;
use crate::cluster::{Cluster, Settings};
use crate::figures::rounded;
use crate::load::{self, Load};
use crate::machine;
use crate::muster::{Submitter, Via, job};

/// Entries of the log between two snapshots, and kept behind one.
const ENTRIES_PER_SNAPSHOT: u64 = 4_000;
const ENTRIES_KEPT: u64 = 500;
/// How long nothing must change on disk to be taken for settled, and the longest wait for that.
const SETTLED: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "EXAMPLES:\n  muster-bench disk\n  muster-bench disk --seconds 30 --save")]
pub(crate) struct DiskArgs {
    #[command(flatten)]
    common: Common,
}

/// Bytes written to the files below a directory, without its snapshots, and those of the snapshots. What is
/// allocated ahead of the writer is empty so far: a file counts up to its last byte that is not zero.
fn usage(data: &Path) -> (u64, u64) {
    fn walk(directory: &Path) -> u64 {
        let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
        let size = |entry: std::fs::DirEntry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => walk(&entry.path()),
            // It may have been purged since it was listed.
            Ok(_) => std::fs::File::open(entry.path()).and_then(written).unwrap_or(0),
            Err(_) => 0,
        };
        entries.flatten().map(size).sum()
    }
    let snapshots = walk(&data.join("snapshots"));
    (walk(data).saturating_sub(snapshots), snapshots)
}

/// Up to the last byte that is not zero, looked for from the end.
fn written(file: std::fs::File) -> std::io::Result<u64> {
    const STEP: u64 = 1 << 20;
    let mut end = file.metadata()?.len();
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(STEP);
        block.resize((end - start) as usize, 0);
        file.read_exact_at(&mut block, start)?;
        if let Some(last) = block.iter().rposition(|byte| *byte != 0) {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Bytes of the record of a submission of `jobs` jobs, per job.
fn record_bytes_per_job(jobs: usize) -> Result<f64> {
    let specs = jobs_from_proto("jobs", vec![job(); jobs])
        .map_err(|violations| anyhow::anyhow!("the job of the benches is refused: {violations:?}"))?;
    let decision = Decision::JobsSubmitted {
        request: RequestKey { id: RequestId(u128::MAX), fingerprint: u64::MAX },
        by: muster_types::Requester::default(),
        estimates: vec![Estimate::default(); specs.len()],
        specs: specs.into_iter().map(|job| std::sync::Arc::new(job.spec)).collect(),
    };
    Ok(canonical(&decision).len() as f64 / jobs as f64)
}

/// Waits until the directory has not changed for a while; its size then.
async fn settled(data: &Path) -> (u64, u64) {
    let begun = Instant::now();
    let mut last = usage(data);
    let mut since = Instant::now();
    while since.elapsed() < SETTLED && begun.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = usage(data);
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

pub(crate) async fn run(args: DiskArgs) -> Result<()> {
    let mut rows = Vec::new();
    let mut machine = json!(null);
    for (what, each, clients, snapshots) in [
        ("one at a time, 64 clients", 1, 64, None),
        ("batches of 100, 16 clients", 100, 16, None),
        ("one at a time, 64 clients, purged", 1, 64, Some((ENTRIES_PER_SNAPSHOT, ENTRIES_KEPT))),
    ] {
        let cluster =
            Cluster::start(args.common.dir.as_deref(), Settings { snapshots, ..Settings::default() }).await?;
        if machine.is_null() {
            machine = machine::describe_with_disk(cluster.directory())?;
            println!("{}", machine::sentence(&machine));
        }
        let leader = cluster.wait_for_leader().await?;
        let data = cluster.data(leader);
        let (before, _) = usage(&data);
        let connections = Submitter::connections(&cluster, 8, &[leader], each, Via::Call)?;
        let load = Load {
            what: what.to_owned(),
            each: each as u32,
            length: args.common.length(),
            processes: Vec::new(),
        };
        let mut highest = 0;
        let part = {
            let sizes = async {
                loop {
                    highest = highest.max(usage(&data).0);
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            };
            tokio::select! {
                part = load::closed(&load, &connections, clients) => part?,
                () = sizes => unreachable!("it never ends"),
            }
        };
        let (after, snapshot) = settled(&data).await;
        let jobs = part.latency.count() as f64 * each as f64;
        let record = record_bytes_per_job(each)?;
        let log = after.saturating_sub(before) as f64 / jobs;
        println!(
            "{what:<36} {jobs:>9.0} jobs: log {log:.0} bytes a job, record {record:.0}, {:.2} times; highest {highest}, after {after}, snapshots {snapshot}",
            log / record
        );
        rows.push(json!({
            "what": what,
            "jobs": jobs,
            "log_bytes_before": before,
            "log_bytes_highest": highest,
            "log_bytes_after": after,
            "snapshot_bytes": snapshot,
            "record_bytes_per_job": rounded(record),
            "log_bytes_per_job": rounded(log),
            "times": rounded(log / record),
        }));
    }
    let report = json!({ "scenario": "disk", "machine": machine, "rows": rows, "load_average_after": machine::load_average() });
    args.common.output.write("disk", &report)
}
