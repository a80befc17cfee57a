//! Submissions: the peak at several numbers of clients, latency at half of it, batches; others for comparison.

use anyhow::Result;
use serde_json::{Value, json};

use super::{Common, To};
use crate::cluster::{Cluster, Settings};
use crate::figures::rounded;
use crate::load::{self, Caller, Load, Part};
use crate::machine;
use crate::muster::{Submitter, Via, job};
use crate::peer::{Peer, etcd, slurm};

/// Connections that clients share, at most: some for many clients, as a program with many users has.
const CONNECTIONS_MAX: u32 = 16;
/// Jobs in one batch.
const BATCH: u32 = 100;
/// Clients that submit batches.
const BATCH_CLIENTS: u32 = 16;

#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "EXAMPLES:\n  muster-bench submit\n  muster-bench submit --against etcd --save\n  muster-bench submit --clients 256 --to leader --seconds 20"
)]
pub(crate) struct SubmitArgs {
    #[command(flatten)]
    common: Common,
    /// Clients of the closed loops, separated by commas; the open loop runs at half of the last one's peak
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1, 16, 256], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: Vec<u32>,
    /// Submissions per second of the open loop; half of the peak when not given
    #[arg(long)]
    rate: Option<f64>,
    /// Where clients connect
    #[arg(long, value_enum, default_value = "all")]
    to: To,
    /// Measure another system as well, in the same run
    #[arg(long, value_enum)]
    against: Option<Peer>,
}

/// The parts of one run.
struct Run {
    closed: Vec<(u32, Part)>,
    /// Over streams, where the one that is measured has such.
    streamed: Vec<(u32, Part)>,
    half: Part,
    batch: Part,
}

fn with_clients((clients, part): &(u32, Part)) -> Value {
    let mut value = part.json();
    value["clients"] = json!(clients);
    value
}

impl Run {
    fn json(&self) -> Value {
        json!({
            "closed": self.closed.iter().map(with_clients).collect::<Vec<_>>(),
            "closed_over_streams": self.streamed.iter().map(with_clients).collect::<Vec<_>>(),
            "open_at_half_of_peak": self.half.json(),
            "batches": self.batch.json(),
        })
    }
}

/// Measures one system: the same steps for each.
async fn measure<C: Caller>(
    args: &SubmitArgs,
    processes: Vec<(String, u32)>,
    has_streams: bool,
    connections: impl Fn(u32, u32, Via) -> Result<Vec<C>>,
) -> Result<Run> {
    let load =
        |what: String, each| Load { what, each, length: args.common.length(), processes: processes.clone() };
    let last = args.clients.last().copied().unwrap_or(1);
    let warm_up = Load { length: std::time::Duration::from_secs(2), ..load(String::new(), 1) };
    load::closed(&warm_up, &connections(last.min(CONNECTIONS_MAX), 1, Via::Call)?, last).await?;
    println!("{}", Part::header());
    let mut of = Vec::new();
    for via in [Via::Call, Via::Stream] {
        let mut closed = Vec::new();
        for clients in args.clients.iter().filter(|_| via == Via::Call || has_streams) {
            let over = if via == Via::Stream { ", streams" } else { "" };
            let load = load(format!("one at a time, {clients} clients{over}"), 1);
            let connections = connections((*clients).min(CONNECTIONS_MAX), 1, via)?;
            let part = load::closed(&load, &connections, *clients).await?;
            println!("{}", part.line());
            closed.push((*clients, part));
        }
        of.push(closed);
    }
    let (streamed, closed) = (of.pop().unwrap_or_default(), of.pop().unwrap_or_default());
    let (via, fastest) = if has_streams { (Via::Stream, &streamed) } else { (Via::Call, &closed) };
    let peak = fastest.last().map_or(1.0, |(_, part)| part.per_s);
    let rate = args.rate.unwrap_or(peak / 2.0).max(1.0);
    let what = format!("one at a time, open loop at {rate:.0}/s");
    let half = load::open(&load(what, 1), &connections(CONNECTIONS_MAX, 1, via)?, rate).await?;
    println!("{}", half.line());
    let what = format!("batches of {BATCH}, {BATCH_CLIENTS} clients");
    let connections = connections(BATCH_CLIENTS, BATCH, Via::Call)?;
    let batch = load::closed(&load(what, BATCH), &connections, BATCH_CLIENTS).await?;
    println!("{}", batch.line());
    Ok(Run { closed, streamed, half, batch })
}

async fn of_muster(args: &SubmitArgs) -> Result<(Value, Run)> {
    let cluster = Cluster::start(args.common.dir.as_deref(), Settings::default()).await?;
    let machine = machine::describe_with_disk(cluster.directory())?;
    println!("{}", machine::sentence(&machine));
    let leader = cluster.wait_for_leader().await?;
    println!("\nmuster: three replicas; clients connect to {}", args.to.name());
    let to = args.to.replicas(leader);
    let connections = |count: u32, each: u32, via| {
        Submitter::connections(&cluster, count as usize, &to, each as usize, via)
    };
    Ok((machine, measure(args, cluster.processes(leader), true, connections).await?))
}

/// The bytes that a peer stores for what Muster stores a job for.
pub(crate) fn value() -> Vec<u8> {
    use prost::Message as _;
    job().encode_to_vec()
}

async fn of_etcd(args: &SubmitArgs) -> Result<Option<(String, Run)>> {
    let Some(members) = etcd::Etcd::start(args.common.dir.as_deref()).await? else { return Ok(None) };
    let version = members.version().await?;
    println!(
        "\netcd {version}: three members, puts of new keys with the bytes of a job; clients connect to {}",
        args.to.name()
    );
    let to = args.to.replicas(members.leader);
    let connections = |count: u32, each: u32, _| {
        let action = match each {
            1 => etcd::Action::Put { value: value() },
            many => etcd::Action::PutMany { value: value(), count: many as usize },
        };
        Ok(members.connections(count as usize, &to, action))
    };
    let run = measure(args, members.processes(), false, connections).await?;
    Ok(Some((version, run)))
}

fn ratios(ours: &Run, theirs: &Run) -> Value {
    let over = |(ours, (_, theirs)): (&(u32, Part), &(u32, Part))| json!({ "clients": ours.0, "times_as_many_per_s": rounded(ours.1.per_s / theirs.per_s) });
    json!({
        "closed": ours.closed.iter().zip(&theirs.closed).map(over).collect::<Vec<_>>(),
        "closed_over_streams": ours.streamed.iter().zip(&theirs.closed).map(over).collect::<Vec<_>>(),
        "batches": rounded(ours.batch.per_s / theirs.batch.per_s),
    })
}

pub(crate) async fn run(args: SubmitArgs) -> Result<()> {
    let (machine, ours) = of_muster(&args).await?;
    let mut report = json!({
        "scenario": "submit",
        "machine": machine,
        "connects_to": args.to.name(),
        "seconds_each": args.common.seconds,
        "muster": ours.json(),
    });
    match args.against {
        Some(Peer::Etcd) => match of_etcd(&args).await? {
            Some((version, theirs)) => {
                report["etcd"] = theirs.json();
                report["etcd"]["version"] = json!(version);
                report["muster_over_etcd"] = ratios(&ours, &theirs);
                println!("\nmuster over etcd, submissions over puts: {}", report["muster_over_etcd"]);
            }
            None => println!("\netcd: skipped, not installed; {}", etcd::INSTALL),
        },
        Some(Peer::Slurm) => report["slurm"] = slurm::submissions(&args.common, &ours.closed)?,
        None => {}
    }
    report["load_average_after"] = json!(machine::load_average());
    let name = match args.against {
        Some(Peer::Etcd) => "submit-etcd",
        Some(Peer::Slurm) => "submit-slurm",
        None => "submit",
    };
    args.common.output.write(name, &report)
}
