//! Watchers of all jobs on a follower: how long after a submission was acknowledged each of them sees it.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use muster_client::{Client, WatchItem};
use muster_wire::v1;
use serde_json::json;
use tokio::sync::mpsc;

use super::Common;
use crate::cluster::{Cluster, Settings};
use crate::figures::{Latencies, rounded};
use crate::machine;
use crate::muster::{DEADLINE, submit};

/// Watches on one connection.
const WATCHES_PER_CONNECTION: usize = 64;
/// Longest wait for the last watcher to see the last job.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "EXAMPLES:\n  muster-bench watch\n  muster-bench watch --watchers 1 --rate 200")]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    common: Common,
    /// Watchers, all on one follower
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=8_192))]
    watchers: u32,
    /// Submissions per second, one after another at the leader
    #[arg(long, default_value_t = 10.0)]
    rate: f64,
}

/// When each job was sent and acknowledged, and when it was seen.
#[derive(Default)]
struct Observations {
    acknowledged: HashMap<String, (Instant, Instant)>,
    seen: Vec<(String, Instant)>,
}

async fn follow(client: Client, ready: mpsc::Sender<()>, seen: Arc<Mutex<Observations>>) -> Result<()> {
    let mut watch = client.watch_jobs(v1::WatchJobsRequest::default());
    let mut synced = false;
    // A job may change again, when the one host there is takes it: only its first sight counts.
    let mut known = HashSet::new();
    loop {
        match watch.next().await.context("a watch ended")? {
            WatchItem::SyncEnd { .. } => {
                synced = true;
                let _ = ready.send(()).await;
            }
            WatchItem::Changed { job, .. } if synced && known.insert(job.id.clone()) => {
                let now = Instant::now();
                seen.lock().seen.push((job.id, now));
            }
            WatchItem::Restarted => anyhow::bail!("a watch lost its place"),
            _ => {}
        }
    }
}

pub(crate) async fn run(args: WatchArgs) -> Result<()> {
    let cluster = Cluster::start(args.common.dir.as_deref(), Settings::default()).await?;
    let machine = machine::describe_with_disk(cluster.directory())?;
    println!("{}", machine::sentence(&machine));
    let leader = cluster.wait_for_leader().await?;
    let follower = (leader + 1) % 3;
    let seen = Arc::new(Mutex::new(Observations::default()));
    let (ready, mut started) = mpsc::channel(64);
    let watchers = args.watchers as usize;
    let connections: Vec<Client> = (0..watchers.div_ceil(WATCHES_PER_CONNECTION))
        .map(|_| cluster.client_of(follower))
        .collect::<Result<_>>()?;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..watchers {
        let client = connections[n % connections.len()].clone();
        tasks.spawn(follow(client, ready.clone(), Arc::clone(&seen)));
    }
    for _ in 0..watchers {
        tokio::time::timeout(PATIENCE, started.recv()).await.context("not all watches have begun")?;
    }
    let client = cluster.client(leader, DEADLINE)?;
    let processes = cluster.processes(leader);
    let before: Vec<Duration> = processes.iter().map(|(_, pid)| machine::process_time(*pid)).collect();
    let begun = Instant::now();
    let count = (args.rate * args.common.seconds as f64) as usize;
    for n in 0..count {
        tokio::time::sleep_until((begun + Duration::from_secs_f64(n as f64 / args.rate)).into()).await;
        let sent = Instant::now();
        let ids = submit(&client, 1).await.context("a submission was not acknowledged")?;
        let acknowledged = Instant::now();
        let mut seen = seen.lock();
        seen.acknowledged.extend(ids.into_iter().map(|id| (id, (sent, acknowledged))));
    }
    let expected = count * watchers;
    let all_seen = || seen.lock().seen.len() >= expected;
    while !all_seen() && begun.elapsed() < args.common.length() + PATIENCE {
        ensure!(tasks.try_join_next().is_none(), "a watch ended");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let seen = seen.lock();
    ensure!(seen.seen.len() == expected, "{} of {expected} events were seen", seen.seen.len());
    let (mut behind, mut whole) = (Latencies::new()?, Latencies::new()?);
    for (id, at) in &seen.seen {
        let (sent, acknowledged) = seen.acknowledged.get(id).context("a job nobody submitted was seen")?;
        // Seen before the client was told counts as no delay.
        behind.record(at.saturating_duration_since(*acknowledged));
        whole.record(at.saturating_duration_since(*sent));
    }
    let per_event: Vec<(String, f64)> = processes
        .iter()
        .zip(before)
        .map(|((who, pid), before)| {
            let spent = machine::process_time(*pid).saturating_sub(before);
            (who.clone(), rounded(spent.as_micros() as f64 / expected as f64))
        })
        .collect();
    println!("{watchers} watchers on a follower, {}/s submitted at the leader", args.rate);
    println!("events: {expected}, {:.0}/s", expected as f64 / seconds);
    for (what, l) in [("acknowledged -> seen", &behind), ("sent -> seen", &whole)] {
        println!("{what:<22} p50 {:.2} ms, p99 {:.2} ms, max {:.1} ms", l.ms(0.5), l.ms(0.99), l.max_ms());
    }
    println!("processor time per event, us: {per_event:?}");
    let report = json!({
        "scenario": "watch",
        "machine": machine,
        "watchers": watchers,
        "submissions_per_s": args.rate,
        "events_per_s": rounded(expected as f64 / seconds),
        "acknowledged_to_seen": behind.json(),
        "sent_to_seen": whole.json(),
        "processor_us_per_event": per_event.into_iter().collect::<HashMap<_, _>>(),
        "load_average_after": machine::load_average(),
    });
    args.common.output.write("watch", &report)
}
