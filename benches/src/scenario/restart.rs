//! A replica with many jobs is killed and started again: how long until it serves and is caught up, what its
//! memory is, and what making a snapshot costs those who submit meanwhile.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::Common;
use crate::cluster::{Cluster, Settings};
use crate::figures::rounded;
use crate::load::{self, Load, Part};
use crate::machine;
use crate::muster::{DEADLINE, Submitter, Via, preload};

/// Entries of the log between two snapshots here: large rounds make few entries.
const ENTRIES_PER_SNAPSHOT: u64 = 2_000;
const ENTRIES_KEPT: u64 = 500;
/// Longest wait for a replica to come back, and for a snapshot to be made.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "EXAMPLES:\n  muster-bench restart\n  muster-bench restart --jobs 100000 --times 5")]
pub(crate) struct RestartArgs {
    #[command(flatten)]
    common: Common,
    /// Jobs that wait in the cluster
    #[arg(long, default_value_t = 1_000_000)]
    jobs: usize,
    /// How often a follower is killed and started again
    #[arg(long, default_value_t = 3)]
    times: u32,
}

/// The newest complete snapshot of a replica: its name and size.
fn newest_snapshot(data: &Path) -> Option<(String, u64)> {
    let mut found: Vec<(std::time::SystemTime, String, u64)> = std::fs::read_dir(data.join("snapshots"))
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let (meta, name) = (entry.metadata().ok()?, entry.file_name().into_string().ok()?);
            let complete = meta.is_file() && !name.ends_with(".tmp") && !name.contains("partial");
            complete.then_some((meta.modified().ok()?, name, meta.len()))
        })
        .collect();
    found.sort();
    found.pop().map(|(_, name, bytes)| (name, bytes))
}

/// Submits until the follower and the leader have made a snapshot, and says what that did to latency.
async fn snapshot_under_load(cluster: &Cluster, leader: usize) -> Result<Value> {
    const RATE: f64 = 500.0;
    let before = newest_snapshot(&cluster.data(leader));
    let connections = Submitter::connections(cluster, 8, &[leader], 1, Via::Call)?;
    let begun = Instant::now();
    println!("{}", Part::header());
    let mut parts: Vec<(bool, Part)> = Vec::new();
    loop {
        let what = format!("{RATE}/s, all jobs held");
        let load = Load { what, each: 1, length: Duration::from_secs(1), processes: Vec::new() };
        let part = load::open(&load, &connections, RATE).await?;
        let made = newest_snapshot(&cluster.data(leader)) != before;
        parts.push((made, part));
        if made || begun.elapsed() > PATIENCE {
            break;
        }
    }
    let Some((name, bytes)) = newest_snapshot(&cluster.data(leader)) else { bail!("no snapshot was made") };
    let worst =
        |some: &mut dyn Iterator<Item = &Part>| some.map(|part| part.latency.max_ms()).fold(0.0, f64::max);
    // The snapshot is written during some seconds before its name appears.
    let quiet = worst(&mut parts.iter().take(parts.len().saturating_sub(5)).map(|(_, part)| part));
    let during = worst(&mut parts.iter().rev().take(5).map(|(_, part)| part));
    println!(
        "snapshot {name}: {bytes} bytes; longest submission {during:.1} ms while it was made, {quiet:.1} ms before"
    );
    Ok(json!({
        "bytes": bytes,
        "longest_submission_ms_while_made": rounded(during),
        "longest_submission_ms_before": rounded(quiet),
        "submissions_per_s": RATE,
    }))
}

pub(crate) async fn run(args: RestartArgs) -> Result<()> {
    let settings = Settings { snapshots: Some((ENTRIES_PER_SNAPSHOT, ENTRIES_KEPT)), ..Settings::default() };
    let mut cluster = Cluster::start(args.common.dir.as_deref(), settings).await?;
    let machine = machine::describe_with_disk(cluster.directory())?;
    println!("{}", machine::sentence(&machine));
    let leader = cluster.wait_for_leader().await?;
    let empty: Vec<u64> =
        cluster.processes(leader).iter().map(|(_, pid)| machine::resident_bytes_of(*pid)).collect();
    let begun = Instant::now();
    let loaded = preload(&cluster, leader, args.jobs).await?;
    let load_s = begun.elapsed().as_secs_f64();
    println!("{} jobs in {load_s:.1} s, {:.0}/s", args.jobs, args.jobs as f64 / load_s);
    for replica in 0..3 {
        cluster.wait_for(replica, loaded, PATIENCE).await?;
    }
    let per_job: Vec<(String, f64)> = cluster
        .processes(leader)
        .iter()
        .zip(empty)
        .map(|((who, pid), empty)| {
            let grown = machine::resident_bytes_of(*pid).saturating_sub(empty);
            (who.clone(), rounded(grown as f64 / args.jobs.max(1) as f64))
        })
        .collect();
    println!("resident bytes per waiting job: {per_job:?}");
    let snapshot = snapshot_under_load(&cluster, leader).await?;
    let mut restarts = Vec::new();
    for n in 0..args.times as usize {
        let follower = (leader + 1 + n % 2) % 3;
        let observer = cluster.client_of(leader)?;
        let status = observer.get_status(Default::default()).await.context("asking the leader")?;
        let target = status.freshness.map_or(0, |f| f.log_index);
        cluster.kill(follower)?;
        let begun = Instant::now();
        cluster.run(follower, false)?;
        cluster.wait_for(follower, 0, PATIENCE).await?;
        let serves = begun.elapsed().as_secs_f64();
        cluster.wait_for(follower, target, PATIENCE).await?;
        let caught_up = begun.elapsed().as_secs_f64();
        let resident = machine::resident_bytes_of(cluster.process(follower)?);
        println!(
            "restart {}: serves after {serves:.2} s, caught up after {caught_up:.2} s, {} MiB resident",
            n + 1,
            resident >> 20
        );
        restarts.push(json!({
            "serves_s": rounded(serves),
            "caught_up_s": rounded(caught_up),
            "resident_bytes": resident,
        }));
    }
    let report = json!({
        "scenario": "restart",
        "machine": machine,
        "jobs": args.jobs,
        "jobs_per_s_while_loading": rounded(args.jobs as f64 / load_s),
        "resident_bytes_per_job": per_job.into_iter().map(|(who, bytes)| (who, json!(bytes))).collect::<serde_json::Map<_, _>>(),
        "snapshot": snapshot,
        "restarts": restarts,
        "deadline_s": DEADLINE.as_secs(),
        "load_average_after": machine::load_average(),
    });
    args.common.output.write("restart", &report)
}
