//! Load on a real cluster of processes, open loop, with percentiles and the machine they were taken on; and
//! the cost of the scheduler by itself.

mod cluster;
mod place;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use cluster::Cluster;
use hdrhistogram::Histogram;
use muster_client::Client;
use muster_wire::v1;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Submissions of the open loop that may be under way at once; more would measure this program.
const UNDER_WAY_MAX: usize = 20_000;
/// Longest latency that is told apart.
const LATENCY_MAX_US: u64 = 60_000_000;
const FAILOVERS: usize = 5;

#[derive(Parser)]
#[command(about, version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Submissions: peak, latency at half of it, batches, failover
    Submit(SubmitArgs),
    /// The scheduler by itself, on one thread: placements, gangs, verdicts, growth, memory, peers' tests
    Place(PlaceArgs),
    /// What a replica does at its start, on one thread: replay of a log, snapshot, restore
    Replay(ReplayArgs),
}

#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES:\n  muster-bench replay\n  muster-bench replay --jobs 100000 --json benches/results/2026-01-31-replay.json"
)]
struct ReplayArgs {
    /// Jobs in the log
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    jobs: u64,
    /// Folder for the log and the snapshot; a temporary one when not given
    #[arg(long)]
    dir: Option<PathBuf>,
    /// File to write everything to as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// One step over files that are there, for a process of its own
    #[arg(long, hide = true, requires = "dir")]
    step: Option<place::replay::Step>,
}

#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES:\n  muster-bench place\n  muster-bench place --only gang,never\n  muster-bench place --json benches/results/2026-01-31-place.json"
)]
struct PlaceArgs {
    /// Only these, separated by commas; all when not given
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(place::names()))]
    only: Vec<String>,
    /// File to write everything to as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES:\n  muster-bench submit\n  muster-bench submit --seconds 20 --rate 1000 --json | tail -n 1"
)]
struct SubmitArgs {
    /// Clients of the closed loop
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// Length of each part
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Submissions per second of the open loop; half of the peak when not given
    #[arg(long)]
    rate: Option<u32>,
    /// Folder whose disk is measured; the system's temporary folder when not given
    #[arg(long)]
    dir: Option<PathBuf>,
    /// One JSON object as the last line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Serialize)]
struct Percentiles {
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    max_ms: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Part {
    per_s: f64,
    acknowledged: u64,
    failed: u64,
    latency: Percentiles,
}

#[derive(Debug, Serialize)]
struct Machine {
    cpus: usize,
    model: String,
    kernel: String,
    /// Of 200 appends of 4 KiB to a file beside the data.
    fdatasync_p50_us: u64,
    fdatasync_p99_us: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    clients: u32,
    peak: Part,
    open_loop_rate: u32,
    half: Part,
    batch_of_100: Part,
    batch_jobs_per_s: f64,
    failover_ms: Vec<u64>,
}

fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).context("making a histogram")
}

fn percentiles(all: &Histogram<u64>) -> Percentiles {
    let ms = |us: u64| us as f64 / 1_000.0;
    Percentiles {
        p50_ms: ms(all.value_at_quantile(0.5)),
        p99_ms: ms(all.value_at_quantile(0.99)),
        p999_ms: ms(all.value_at_quantile(0.999)),
        max_ms: ms(all.max()),
    }
}

fn micros(since: Instant) -> u64 {
    (since.elapsed().as_micros() as u64).clamp(1, LATENCY_MAX_US)
}

fn job() -> v1::JobSpec {
    let group = v1::TaskGroup {
        workers: 1,
        command: vec!["python3".into(), "train.py".into(), "--config".into(), "base.yaml".into()],
        cpu_milli: 1,
        memory_bytes: 1 << 20,
        ..Default::default()
    };
    v1::JobSpec { name: "bench".into(), groups: vec![group], ..Default::default() }
}

async fn submit(client: &Client, batch: usize) -> bool {
    if batch == 1 {
        let request = v1::SubmitJobRequest { spec: Some(job()), ..Default::default() };
        return client.submit_job(request).await.is_ok();
    }
    let request = v1::SubmitJobsRequest { request_id: String::new(), specs: vec![job(); batch] };
    client.submit_jobs(request).await.is_ok()
}

/// Every client submits again as soon as it was answered.
async fn closed_loop(cluster: &Cluster, clients: u32, batch: usize, length: Duration) -> Result<Part> {
    let begun = Instant::now();
    let mut workers = Vec::new();
    // Some connections for many clients, as a program with many users has.
    let connections: Vec<Client> = (0..clients.min(16))
        .map(|n| cluster.client(n as usize, Duration::from_secs(30)))
        .collect::<Result<_>>()?;
    for n in 0..clients as usize {
        let client = connections[n % connections.len()].clone();
        workers.push(tokio::spawn(async move {
            let mut latencies = histogram()?;
            let mut failed = 0u64;
            while begun.elapsed() < length {
                let sent = Instant::now();
                if submit(&client, batch).await { latencies.record(micros(sent))? } else { failed += 1 }
            }
            anyhow::Ok((latencies, failed))
        }));
    }
    let mut all = histogram()?;
    let mut failed = 0;
    for worker in workers {
        let (latencies, lost) = worker.await.context("a client panicked")??;
        all.add(latencies)?;
        failed += lost;
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok(Part {
        per_s: all.len() as f64 / seconds,
        acknowledged: all.len(),
        failed,
        latency: percentiles(&all),
    })
}

/// Submissions are due at fixed times, whatever became of those before.
async fn open_loop(cluster: &Cluster, rate: u32, length: Duration) -> Result<Part> {
    let connections: Vec<Client> =
        (0..16).map(|n| cluster.client(n, Duration::from_secs(30))).collect::<Result<_>>()?;
    let latencies = Arc::new(std::sync::Mutex::new(histogram()?));
    let failed = Arc::new(AtomicU64::new(0));
    let room = Arc::new(Semaphore::new(UNDER_WAY_MAX));
    let begun = Instant::now();
    let count = (f64::from(rate) * length.as_secs_f64()) as u64;
    for n in 0..count {
        let due = begun + Duration::from_secs_f64(n as f64 / f64::from(rate));
        tokio::time::sleep_until(due.into()).await;
        let permit = Arc::clone(&room).acquire_owned().await.context("the semaphore is never closed")?;
        let client = connections[n as usize % connections.len()].clone();
        let (latencies, failed) = (Arc::clone(&latencies), Arc::clone(&failed));
        tokio::spawn(async move {
            let acknowledged = submit(&client, 1).await;
            if acknowledged {
                let mut all = latencies.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                all.saturating_record(micros(due));
            } else {
                failed.fetch_add(1, Ordering::Relaxed);
            }
            drop(permit);
        });
    }
    let _all = room.acquire_many(UNDER_WAY_MAX as u32).await.context("the semaphore is never closed")?;
    let seconds = begun.elapsed().as_secs_f64();
    let all = latencies.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let failed = failed.load(Ordering::Relaxed);
    Ok(Part {
        per_s: all.len() as f64 / seconds,
        acknowledged: all.len(),
        failed,
        latency: percentiles(&all),
    })
}

/// SIGKILL of the leader to the next acknowledged submission.
async fn failover(cluster: &mut Cluster) -> Result<u64> {
    let leader = cluster.wait_for_leader().await?;
    let client = cluster.client(leader + 1, Duration::from_secs(30))?;
    anyhow::ensure!(submit(&client, 1).await, "the cluster does not answer");
    let killed = Instant::now();
    cluster.kill(leader)?;
    anyhow::ensure!(submit(&client, 1).await, "no submission was acknowledged after the leader was killed");
    let ms = killed.elapsed().as_millis() as u64;
    cluster.run(leader, false)?;
    let back = cluster.endpoints()[leader].clone();
    let target = client.seen_log_index();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        if let Ok(status) = client.get_status_of(&back).await
            && status.freshness.is_some_and(|f| f.log_index >= target)
        {
            return Ok(ms);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    anyhow::bail!("the killed replica did not come back")
}

fn machine(folder: &Path) -> Result<Machine> {
    let path = folder.join("flush");
    let mut file = std::fs::File::create(&path).context("creating a file to flush")?;
    let mut flushes = histogram()?;
    for _ in 0..200 {
        use std::io::Write as _;
        file.write_all(&[7u8; 4_096]).context("writing")?;
        let begun = Instant::now();
        file.sync_data().context("flushing")?;
        flushes.record(micros(begun))?;
    }
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|l| l.strip_prefix("model name"))
        .map(|l| l.trim_start_matches([' ', '\t', ':']));
    let name = nix::sys::utsname::uname().context("asking for the kernel")?;
    Ok(Machine {
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        model: model.unwrap_or("unknown").to_owned(),
        kernel: name.release().to_string_lossy().into_owned(),
        fdatasync_p50_us: flushes.value_at_quantile(0.5),
        fdatasync_p99_us: flushes.value_at_quantile(0.99),
    })
}

async fn run(args: SubmitArgs) -> Result<Report> {
    let mut cluster = Cluster::start(args.dir.as_deref()).await?;
    let length = Duration::from_secs(args.seconds);
    let machine = machine(cluster.folder())?;
    eprintln!("warming up");
    closed_loop(&cluster, args.clients, 1, Duration::from_secs(2)).await?;
    eprintln!("peak: {} clients, closed loop, {} s", args.clients, args.seconds);
    let peak = closed_loop(&cluster, args.clients, 1, length).await?;
    let open_loop_rate = args.rate.unwrap_or((peak.per_s / 2.0) as u32).max(1);
    eprintln!("half: {open_loop_rate}/s, open loop, {} s", args.seconds);
    let half = open_loop(&cluster, open_loop_rate, length).await?;
    eprintln!("batch: 16 clients, 100 jobs each, closed loop, {} s", args.seconds);
    let batch_of_100 = closed_loop(&cluster, 16, 100, length).await?;
    let mut failover_ms = Vec::new();
    for n in 1..=FAILOVERS {
        eprintln!("failover {n} of {FAILOVERS}");
        failover_ms.push(failover(&mut cluster).await?);
    }
    let batch_jobs_per_s = batch_of_100.per_s * 100.0;
    Ok(Report {
        machine,
        clients: args.clients,
        peak,
        open_loop_rate,
        half,
        batch_of_100,
        batch_jobs_per_s,
        failover_ms,
    })
}

fn show(report: &Report) {
    let m = &report.machine;
    println!(
        "{} x {}, Linux {}, fdatasync p50 {} us, p99 {} us",
        m.cpus, m.model, m.kernel, m.fdatasync_p50_us, m.fdatasync_p99_us
    );
    println!(
        "{:<28} {:>10} {:>9} {:>9} {:>9} {:>9} {:>7}",
        "", "per s", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "failed"
    );
    let parts = [
        (format!("single, {} clients", report.clients), &report.peak),
        (format!("single, open at {}/s", report.open_loop_rate), &report.half),
        ("batch of 100, 16 clients".to_owned(), &report.batch_of_100),
    ];
    for (name, part) in parts {
        let l = &part.latency;
        println!(
            "{name:<28} {:>10.0} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>7}",
            part.per_s, l.p50_ms, l.p99_ms, l.p999_ms, l.max_ms, part.failed
        );
    }
    println!("jobs in batches: {:.0}/s", report.batch_jobs_per_s);
    println!("leader killed -> next acknowledged submission: {:?} ms", report.failover_ms);
}

fn run_place(args: &PlaceArgs) -> Result<()> {
    let report = place::run(&args.only).map_err(anyhow::Error::msg)?;
    write_json(args.json.as_deref(), &report)
}

fn write_json(path: Option<&Path>, report: &serde_json::Value) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(report)? + "\n";
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn run_replay(args: &ReplayArgs) -> Result<()> {
    if let (Some(step), Some(dir)) = (args.step, &args.dir) {
        let found = place::replay::step(step, dir).map_err(anyhow::Error::msg)?;
        println!("{found}");
        return Ok(());
    }
    let temporary = tempfile::tempdir().context("making a temporary folder")?;
    let folder = args.dir.as_deref().unwrap_or(temporary.path());
    let report = place::run_replay(args.jobs, folder).map_err(anyhow::Error::msg)?;
    write_json(args.json.as_deref(), &report)
}

fn main() -> Result<()> {
    let args = match Arguments::parse().command {
        Command::Submit(args) => args,
        Command::Place(args) => return run_place(&args),
        Command::Replay(args) => return run_replay(&args),
    };
    let json = args.json;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    let report = runtime.block_on(run(args))?;
    show(&report);
    if json {
        println!("{}", serde_json::to_string(&report)?);
    }
    Ok(())
}
