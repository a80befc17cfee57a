//! Many agents: sessions with nothing behind them but heartbeats, thousands in this process, and what they
//! cost the replicas.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::SinkExt as _;
use muster_wire::agent::node_service_client::NodeServiceClient;
use muster_wire::agent::session_request::Message as Request;
use muster_wire::agent::session_response::Message as Response;
use muster_wire::{agent, v1};
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};
use tonic::transport::{Channel, Endpoint};

use super::{Common, To};
use crate::cluster::{Cluster, Settings};
use crate::figures::{Latencies, rounded};
use crate::machine;

/// Sessions that share a connection.
const SESSIONS_PER_CONNECTION: usize = 250;
/// Registrations under way at a time.
const REGISTERING_MAX: usize = 256;
/// Longest wait for all sessions to stand.
const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "EXAMPLES:\n  muster-bench agents\n  muster-bench agents --agents 2000 --interval-ms 1000 --to all"
)]
pub(crate) struct AgentsArgs {
    #[command(flatten)]
    common: Common,
    /// Sessions
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    agents: u32,
    /// Between two heartbeats of one of them
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    interval_ms: u64,
    /// Which replicas the sessions go through
    #[arg(long, value_enum, default_value_t = To::Leader)]
    to: To,
}

struct Shared {
    interval: Duration,
    registering: Semaphore,
    measuring: AtomicBool,
    acknowledged: AtomicU64,
    latency: Mutex<Latencies>,
}

/// The first message of a host with this number of devices.
pub(super) fn registration(n: u32, devices: u32) -> agent::SessionRequest {
    let node = v1::NodeDescription {
        name: format!("sim-{n}"),
        region: "region-1".into(),
        cluster: "c1".into(),
        block: format!("block-{}", n / 512),
        rack: format!("rack-{}", n / 16),
        address: format!("10.{}.{}.{}", n >> 16, (n >> 8) & 255, n & 255),
        accelerators: Some(v1::Accelerators { r#type: "h100".into(), count: devices }),
        cpu_milli: 192_000,
        memory_bytes: 2 << 40,
        ..Default::default()
    };
    let holder_id = format!("{:032x}", uuid::Uuid::new_v4().as_u128());
    let register = agent::Register {
        node: Some(node),
        holder_id,
        workers: Vec::new(),
        version: String::new(),
        takes: Vec::new(),
        start_id: 0,
        start_before_id: 0,
    };
    agent::SessionRequest { message: Some(Request::Register(register)) }
}

/// One session, for as long as it stands.
async fn agent(n: u32, channel: Channel, shared: Arc<Shared>, ready: mpsc::Sender<()>) -> Result<()> {
    let (mut to_leader, stream) = futures::channel::mpsc::channel(4);
    let turn = shared.registering.acquire().await.context("the semaphore is never closed")?;
    to_leader.send(registration(n, 8)).await.context("the stream is closed")?;
    let mut client = NodeServiceClient::new(channel);
    let mut answers = client.session(stream).await.context("a session was refused")?.into_inner();
    let first = answers.message().await.context("a session broke")?.and_then(|m| m.message);
    ensure!(matches!(first, Some(Response::Registered(_))), "a session began with something else");
    drop(turn);
    let _ = ready.send(()).await;
    // All over the interval, as those of a fleet are.
    let offset = shared.interval.mul_f64(uuid::Uuid::new_v4().as_bytes()[0] as f64 / 256.0);
    let mut ticks = tokio::time::interval_at((Instant::now() + offset).into(), shared.interval);
    let mut sequence = 0;
    let mut sent = Instant::now();
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                sequence += 1;
                sent = Instant::now();
                let beat = Request::Heartbeat(agent::Heartbeat { sequence });
                to_leader.send(agent::SessionRequest { message: Some(beat) }).await.context("a session ended")?;
            }
            answer = answers.message() => {
                let answer = answer.context("a session broke")?.context("a session ended")?;
                if let Some(Response::HeartbeatAck(ack)) = answer.message
                    && ack.sequence == sequence
                    && shared.measuring.load(Ordering::Relaxed)
                {
                    shared.acknowledged.fetch_add(1, Ordering::Relaxed);
                    shared.latency.lock().record(sent.elapsed());
                }
            }
        }
    }
}

pub(super) async fn connect(endpoint: &str) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(endpoint.to_owned()).context("an endpoint")?;
    endpoint.tcp_nodelay(true).connect().await.context("connecting to a replica")
}

pub(crate) async fn run(args: AgentsArgs) -> Result<()> {
    let cluster = Cluster::start(args.common.dir.as_deref(), Settings::default()).await?;
    let machine = machine::describe_with_disk(cluster.directory())?;
    println!("{}", machine::sentence(&machine));
    let leader = cluster.wait_for_leader().await?;
    let endpoints = cluster.endpoints();
    let to = args.to.replicas(leader);
    let shared = Arc::new(Shared {
        interval: Duration::from_millis(args.interval_ms),
        registering: Semaphore::new(REGISTERING_MAX),
        measuring: AtomicBool::new(false),
        acknowledged: AtomicU64::new(0),
        latency: Mutex::new(Latencies::new()?),
    });
    let (ready, mut stands) = mpsc::channel(REGISTERING_MAX);
    let mut sessions = tokio::task::JoinSet::new();
    let begun = Instant::now();
    let mut channel = None;
    for n in 0..args.agents {
        if (n as usize).is_multiple_of(SESSIONS_PER_CONNECTION) {
            let replica = to[n as usize / SESSIONS_PER_CONNECTION % to.len()];
            channel = Some(connect(&endpoints[replica]).await?);
        }
        let channel = channel.clone().context("the first session has made a connection")?;
        sessions.spawn(agent(n, channel, Arc::clone(&shared), ready.clone()));
    }
    let all = async {
        for _ in 0..args.agents {
            tokio::select! {
                _ = stands.recv() => {}
                Some(ended) = sessions.join_next() => {
                    return Err(ended.context("a session panicked")?.err().context("a session ended")?);
                }
            }
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, all).await.context("not all sessions stand")??;
    let registered = begun.elapsed();
    println!("{} sessions through {} after {registered:.1?}", args.agents, args.to.name());

    // One interval to settle: what the registrations left behind is not what is measured.
    tokio::time::sleep(shared.interval).await;
    let processes = cluster.processes(leader);
    let spent =
        || -> Vec<Duration> { processes.iter().map(|(_, pid)| machine::process_time(*pid)).collect() };
    let before = spent();
    let begun = Instant::now();
    shared.measuring.store(true, Ordering::Relaxed);
    tokio::time::sleep(args.common.length()).await;
    shared.measuring.store(false, Ordering::Relaxed);
    let seconds = begun.elapsed().as_secs_f64();
    let cores: Vec<(String, f64)> = processes
        .iter()
        .zip(before.iter().zip(spent()))
        .map(|((who, _), (before, after))| {
            (who.clone(), rounded(after.saturating_sub(*before).as_secs_f64() / seconds))
        })
        .collect();
    let ended = std::iter::from_fn(|| sessions.try_join_next()).count();
    let acknowledged = shared.acknowledged.load(Ordering::Relaxed);
    let latency = shared.latency.lock().clone();
    let resident = machine::resident_bytes_of(cluster.process(leader)?);
    println!(
        "heartbeats every {} ms: {:.0}/s acknowledged, p50 {:.2} ms, p99 {:.2} ms, max {:.1} ms; {ended} sessions ended",
        args.interval_ms,
        acknowledged as f64 / seconds,
        latency.ms(0.5),
        latency.ms(0.99),
        latency.max_ms(),
    );
    println!("cores: {cores:?}; the leader has {} MiB resident", resident >> 20);
    let report = json!({
        "scenario": "agents",
        "machine": machine,
        "agents": args.agents,
        "interval_ms": args.interval_ms,
        "through": args.to.name(),
        "registered_after_s": rounded(registered.as_secs_f64()),
        "acknowledged_per_s": rounded(acknowledged as f64 / seconds),
        "sessions_ended": ended,
        "acknowledgement": latency.json(),
        "cores": cores.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        "leader_resident_mib": resident >> 20,
        "load_average_after": machine::load_average(),
    });
    args.common.output.write("agents", &report)
}
