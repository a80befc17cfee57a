//! From a submission to the first instruction of what was submitted, on an idle cluster with real agents:
//! one worker on one host, a gang over many (on an idle cluster, right behind another one, and behind the check of the
//! network between its hosts), and a gang whose host dies.
//!
//! A worker is a shell that writes a line into a FIFO as the first thing it does. The clock runs from before
//! the submission is sent until this program has read the line, so the shell's own start is in it.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use muster_client::Client;
use muster_types::Parameters;
use muster_wire::v1;
use nix::sys::stat::Mode;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Common;
use crate::cluster::{Cluster, Settings};
use crate::figures::{Latencies, median, rounded};
use crate::machine;
use crate::muster::DEADLINE;

/// Longest wait for a worker to begin, and for a job to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Accelerators of a host, and workers of a gang on it.
const DEVICES: usize = 4;

#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "EXAMPLES:\n  muster-bench launch\n  muster-bench launch --launches 1000 --gangs 50 --deaths 0 --save"
)]
pub(crate) struct LaunchArgs {
    #[command(flatten)]
    common: Common,
    /// Jobs of one worker, one after another
    #[arg(long, default_value_t = 300)]
    launches: u32,
    /// Gangs over all hosts, one after another
    #[arg(long, default_value_t = 20)]
    gangs: u32,
    /// How long the cluster is left alone before a gang, in milliseconds; then again without
    #[arg(long, default_value_t = 1_000)]
    pause_ms: u64,
    /// Hosts of a gang, with four workers each
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u8).range(2..=64))]
    hosts: u8,
    /// How often the host of a running gang dies
    #[arg(long, default_value_t = 3)]
    deaths: u32,
}

/// What workers have said, with when it was read.
struct Lines {
    path: PathBuf,
    said: mpsc::UnboundedReceiver<(String, Instant)>,
}

impl Lines {
    fn open(directory: &Path) -> Result<Lines> {
        let path = directory.join("begun");
        nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).context("making a FIFO")?;
        // Both ends, so that it has no end while workers come and go.
        let file = OpenOptions::new().read(true).write(true).open(&path).context("opening the FIFO")?;
        let (tell, said) = mpsc::unbounded_channel();
        // It hangs in its read when the program ends, and ends with it.
        std::thread::spawn(move || {
            let mut lines = BufReader::new(file).lines();
            while let Some(Ok(line)) = lines.next() {
                if tell.send((line, Instant::now())).is_err() {
                    return;
                }
            }
        });
        Ok(Lines { path, said })
    }

    /// The next one.
    async fn next(&mut self) -> Result<(String, Instant)> {
        let said = tokio::time::timeout(PATIENCE, self.said.recv()).await;
        said.context("no worker began")?.context("the FIFO is closed")
    }

    /// A gang whose workers say a word and go on with `then`.
    fn job(&self, word: &str, workers: usize, then: &str) -> v1::Job {
        let script = format!("echo {word} > {}; {then}", self.path.display());
        let choice = v1::AcceleratorChoice { r#type: "h100".into(), throughput_milli: 0 };
        let accelerators = v1::AcceleratorRequest {
            choices: vec![choice],
            amount: Some(v1::accelerator_request::Amount::Count(1)),
        };
        let group = v1::TaskGroup {
            workers: workers as u32,
            runtime: muster_wire::process(vec!["/bin/sh".into(), "-c".into(), script]),
            resources: Some(v1::Resources {
                cpu_milli: 100,
                memory_bytes: 1 << 20,
                accelerators: Some(accelerators),
            }),
            ..Default::default()
        };
        v1::Job {
            name: "launch".into(),
            spec: Some(v1::JobSpec { groups: vec![group], ..Default::default() }),
            ..Default::default()
        }
    }
}

async fn submit(client: &Client, job: v1::Job) -> Result<String> {
    let request = v1::SubmitJobRequest { job: Some(job), ..Default::default() };
    let mut answer = client.submit_job(request).await.context("a submission was not acknowledged")?;
    answer.job_ids.pop().context("the answer has no job")
}

/// Waits until a job is over, so that the next one finds the cluster idle.
async fn ended(client: &Client, id: &str) -> Result<()> {
    let begun = Instant::now();
    loop {
        let request = v1::GetJobRequest { job_id: id.to_owned(), ..Default::default() };
        let job = client.get_job(request).await.context("asking for a job")?.job.context("no such job")?;
        match job.phase() {
            v1::JobPhase::Succeeded | v1::JobPhase::Cancelled => return Ok(()),
            v1::JobPhase::Failed => anyhow::bail!("{id} failed: {}", job.status().message),
            _ => ensure!(begun.elapsed() < PATIENCE, "{id} did not end: {}", job.status().message),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Why a job has not begun, as far as the cluster says: how it stands, and the nodes that take nothing.
async fn stands(client: &Client, id: &str) -> String {
    let request = v1::GetJobRequest { job_id: id.to_owned(), ..Default::default() };
    let job = match client.get_job(request).await {
        Ok(answer) => answer.job.map(|job| format!("{:?}: {}", job.phase(), job.status().message)),
        Err(error) => Some(format!("cannot be asked for: {error}")),
    };
    let nodes = match client.list_nodes(v1::ListNodesRequest::default()).await {
        Ok(answer) => answer.nodes,
        Err(error) => return format!("{id} {}; nodes: {error}", job.unwrap_or_default()),
    };
    let restricted = nodes.iter().filter_map(|node| Some((&node.id, node.restriction.as_ref()?)));
    let out: Vec<String> = restricted.map(|(id, why)| format!("{id}: {:?}", why.conditions)).collect();
    format!("{id} {}; nodes at fault: {}", job.unwrap_or_default(), out.join(", "))
}

/// What is submitted.
#[derive(Clone, Copy)]
struct Gang {
    workers: usize,
    /// Whether the network between its hosts is measured before it starts, as that of a large gang usually is.
    checked: bool,
    /// How long nothing is asked of the cluster before it.
    pause: Duration,
}

/// Submissions one after another: until acknowledged, and until the last worker has begun.
async fn launches(
    client: &Client,
    lines: &mut Lines,
    count: u32,
    gang: Gang,
) -> Result<(Latencies, Latencies)> {
    let (mut acknowledged, mut begun) = (Latencies::new()?, Latencies::new()?);
    let Gang { workers, checked, pause } = gang;
    for n in 0..count {
        tokio::time::sleep(pause).await;
        let word = format!("w{workers}-{n}");
        let mut job = lines.job(&word, workers, "exit 0");
        if !checked {
            job.spec_mut().preflight = v1::Preflight::Off.into();
        }
        let sent = Instant::now();
        let id = submit(client, job).await?;
        acknowledged.record(sent.elapsed());
        let mut last = sent;
        for _ in 0..workers {
            let (said, at) = match lines.next().await {
                Ok(line) => line,
                Err(error) => return Err(error.context(stands(client, &id).await)),
            };
            ensure!(said == word, "{said} began where {word} was submitted");
            last = last.max(at);
        }
        begun.record(last - sent);
        ended(client, &id).await?;
    }
    Ok((acknowledged, begun))
}

/// Hosts of a running gang die, one after another: until the gang has begun again elsewhere.
async fn deaths(cluster: &mut Cluster, client: &Client, lines: &mut Lines, count: u32) -> Result<Vec<f64>> {
    let mut gaps = Vec::new();
    for n in 0..count {
        let word = format!("d{n}");
        // Over two hosts.
        let id = submit(client, lines.job(&word, 2 * DEVICES, "exec sleep 600")).await?;
        for _ in 0..2 * DEVICES {
            lines.next().await?;
        }
        let request = v1::GetJobRequest { job_id: id.clone(), ..Default::default() };
        let job = client.get_job(request).await.context("asking for a job")?.job.context("no such job")?;
        let placement = job.status().placement.as_ref();
        let name = placement.and_then(|p| p.workers.first().map(|w| w.node_name.clone()));
        let host = (0..cluster.agents().len()).find(|n| name.as_deref() == Some(&Cluster::host_name(*n)));
        let host = host.context("the gang is on no host of ours")?;
        let died = Instant::now();
        cluster.crash_host(host);
        let mut last = died;
        for _ in 0..2 * DEVICES {
            let (said, at) = lines.next().await?;
            ensure!(said == word, "{said} began where {word} was to begin again");
            last = last.max(at);
        }
        gaps.push(rounded((last - died).as_secs_f64() * 1_000.0));
        let request = v1::CancelJobRequest { job_id: id.clone(), ..Default::default() };
        client.cancel_job(request).await.context("cancelling a job")?;
        ended(client, &id).await?;
    }
    Ok(gaps)
}

fn print(what: &str, latency: &Latencies) {
    println!(
        "{what:<52} median {:.2} ms, p99 {:.2} ms, max {:.1} ms",
        latency.ms(0.5),
        latency.ms(0.99),
        latency.max_ms()
    );
}

fn memory(cluster: &Cluster) -> Value {
    let mib = |bytes: u64| rounded(bytes as f64 / f64::from(1 << 20));
    let agents: Vec<(u64, u64)> = cluster.agents().into_iter().map(machine::memory_of).collect();
    let most = agents.iter().map(|(resident, _)| *resident).max().unwrap_or(0);
    let own = agents.iter().map(|(_, own)| *own).max().unwrap_or(0);
    println!(
        "resident memory of an agent: at most {} MiB, {} MiB of it not its program's text",
        mib(most),
        mib(own)
    );
    json!({ "agents": agents.len(), "resident_mib_max": mib(most), "own_mib_max": mib(own) })
}

pub(crate) async fn run(args: LaunchArgs) -> Result<()> {
    let mut cluster = Cluster::start(args.common.dir.as_deref(), Settings::default()).await?;
    let machine = machine::describe_with_disk(cluster.directory())?;
    println!("{}", machine::sentence(&machine));
    let leader = cluster.wait_for_leader().await?;
    let mut lines = Lines::open(cluster.directory())?;
    let client = cluster.client(leader, DEADLINE)?;

    cluster.start_agents(1).await?;
    // The first few pay for connections and cold files.
    let one = Gang { workers: 1, checked: false, pause: Duration::ZERO };
    launches(&client, &mut lines, 5, one).await?;
    let (acknowledged, single) = launches(&client, &mut lines, args.launches, one).await?;
    print("one worker: submitted -> acknowledged", &acknowledged);
    print("one worker: submitted -> first instruction", &single);

    let hosts = usize::from(args.hosts);
    cluster.start_agents(hosts).await?;
    let workers = hosts * DEVICES;
    let idle = Gang { workers, checked: false, pause: Duration::from_millis(args.pause_ms) };
    launches(&client, &mut lines, 1, idle).await?;
    let (_, gang) = launches(&client, &mut lines, args.gangs, idle).await?;
    print(&format!("{workers} workers over {hosts} hosts: -> the last one's first"), &gang);
    let (_, at_once) =
        launches(&client, &mut lines, args.gangs, Gang { pause: Duration::ZERO, ..idle }).await?;
    print("the same, one right behind another", &at_once);
    let (_, checked) = launches(&client, &mut lines, args.gangs / 2, Gang { checked: true, ..idle }).await?;
    print("the same, behind the check of the network", &checked);
    let memory = memory(&cluster);

    let gaps = deaths(&mut cluster, &client, &mut lines, args.deaths.min(u32::from(args.hosts) - 2)).await?;
    let lease_ms = Parameters::DEFAULT.lease_ttl_ms + Parameters::DEFAULT.lease_margin_ms;
    if !gaps.is_empty() {
        let worst = gaps.iter().copied().fold(0.0, f64::max);
        println!(
            "host dies -> its gang runs elsewhere: median {} ms, worst {worst} ms, with a lease of {lease_ms} ms",
            median(&gaps)
        );
    }
    let report = json!({
        "scenario": "launch",
        "machine": machine,
        "one_worker": { "acknowledged": acknowledged.json(), "first_instruction": single.json() },
        "gang": {
            "workers": workers,
            "hosts": hosts,
            "pause_ms": args.pause_ms,
            "last_first_instruction": gang.json(),
            "one_behind_another": at_once.json(),
            "behind_network_check": checked.json(),
        },
        "memory": memory,
        "host_death": { "lease_ms": lease_ms, "gang_elsewhere_ms": gaps },
        "load_average_after": machine::load_average(),
    });
    args.common.output.write("launch", &report)
}
