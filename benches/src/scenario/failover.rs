//! The leader is killed under load, again and again: how long until a submission made after the kill is
//! acknowledged, and whether any failed.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tokio::task::JoinSet;

use super::Common;
use crate::cluster::{Cluster, Settings};
use crate::figures::{median, rounded};
use crate::machine;
use crate::muster::{DEADLINE, Submitter, Via, preload, submit};

/// Longest wait for a killed replica to be back.
const BACK_MAX: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "EXAMPLES:\n  muster-bench failover\n  muster-bench failover --jobs 1000000 --kills 20"
)]
pub(crate) struct FailoverArgs {
    #[command(flatten)]
    common: Common,
    /// How often the leader is killed
    #[arg(long, default_value_t = 10)]
    kills: u32,
    /// Submissions per second all the while, over all replicas
    #[arg(long, default_value_t = 200.0)]
    rate: f64,
    /// Jobs that the cluster holds before
    #[arg(long, default_value_t = 0)]
    jobs: usize,
}

/// What became of one submission.
#[derive(Clone, Copy)]
struct Outcome {
    due: Instant,
    ended: Instant,
    acknowledged: bool,
}

type Outcomes = Arc<Mutex<Vec<Outcome>>>;

/// Submits at fixed times until it is stopped; then waits for those under way.
async fn submit_steadily(
    connections: Vec<Submitter>,
    rate: f64,
    outcomes: Outcomes,
    stop: tokio::sync::watch::Receiver<bool>,
) {
    let mut under_way = JoinSet::new();
    let begun = Instant::now();
    let mut n = 0u64;
    while !*stop.borrow() {
        let due = begun + Duration::from_secs_f64(n as f64 / rate);
        tokio::time::sleep_until(due.into()).await;
        let connection = connections[n as usize % connections.len()].clone();
        let outcomes = Arc::clone(&outcomes);
        under_way.spawn(async move {
            let acknowledged = submit(&connection.client, connection.jobs).await.is_some();
            let outcome = Outcome { due, ended: Instant::now(), acknowledged };
            outcomes.lock().push(outcome);
        });
        while under_way.try_join_next().is_some() {}
        n += 1;
    }
    while under_way.join_next().await.is_some() {}
}

/// The earliest end of an acknowledged submission that was due after a kill.
fn first_after(outcomes: &Outcomes, killed: Instant) -> Option<Duration> {
    let outcomes = outcomes.lock();
    let after = outcomes.iter().filter(|outcome| outcome.acknowledged && outcome.due > killed);
    after.map(|outcome| outcome.ended - killed).min()
}

pub(crate) async fn run(args: FailoverArgs) -> Result<()> {
    let mut cluster = Cluster::start(args.common.dir.as_deref(), Settings::default()).await?;
    let machine = machine::describe_with_disk(cluster.directory())?;
    println!("{}", machine::sentence(&machine));
    let leader = cluster.wait_for_leader().await?;
    if args.jobs > 0 {
        preload(&cluster, leader, args.jobs).await?;
    }
    let outcomes = Outcomes::default();
    let connections = Submitter::connections(&cluster, 6, &[0, 1, 2], 1, Via::Call)?;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let load = tokio::spawn(submit_steadily(connections, args.rate, Arc::clone(&outcomes), stopped));
    let mut gaps = Vec::new();
    for n in 1..=args.kills {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let leader = cluster.wait_for_leader().await?;
        let killed = Instant::now();
        cluster.kill(leader)?;
        let gap = loop {
            if let Some(gap) = first_after(&outcomes, killed) {
                break gap;
            }
            ensure!(killed.elapsed() < DEADLINE, "nothing was acknowledged after the leader was killed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        cluster.run(leader, false)?;
        let observer = cluster.client(leader + 1, DEADLINE)?;
        let status = observer.get_status(Default::default()).await.context("asking the others")?;
        let target = status.freshness.map_or(0, |f| f.log_index);
        let back = cluster.wait_for(leader, target, BACK_MAX).await?;
        println!(
            "kill {n} of {}: next acknowledged after {} ms, back after {} ms",
            args.kills,
            gap.as_millis(),
            back.as_millis()
        );
        gaps.push(rounded(gap.as_secs_f64() * 1_000.0));
    }
    stop.send_replace(true);
    load.await.context("the load ended badly")?;
    let outcomes = outcomes.lock();
    let failed = outcomes.iter().filter(|outcome| !outcome.acknowledged).count();
    let worst = gaps.iter().copied().fold(0.0, f64::max);
    println!(
        "leader killed -> next acknowledged submission: median {} ms, worst {worst} ms; {failed} of {} submissions failed",
        median(&gaps),
        outcomes.len()
    );
    let report = json!({
        "scenario": "failover",
        "machine": machine,
        "jobs_held": args.jobs,
        "submissions_per_s": args.rate,
        "gaps_ms": gaps,
        "median_ms": median(&gaps),
        "worst_ms": worst,
        "submissions": outcomes.len(),
        "failed": failed,
        "load_average_after": machine::load_average(),
    });
    let name = if args.jobs > 0 { "failover-held" } else { "failover" };
    args.common.output.write(name, &report)
}
