//! Reads of single jobs, by consistency, replica and number of clients; etcd for comparison.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::Common;
use super::submit::value;
use crate::cluster::{Cluster, Settings};
use crate::figures::rounded;
use crate::load::{self, Caller, Load, Part};
use crate::machine;
use crate::muster::{DEADLINE, Read, Reader, submit};
use crate::peer::{Peer, etcd};

/// Jobs that reads choose from: as many as keys of a peer.
const JOBS: usize = etcd::KEYS;
/// Connections that clients share, at most.
const CONNECTIONS_MAX: u32 = 16;

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "EXAMPLES:\n  muster-bench read\n  muster-bench read --against etcd --clients 64")]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    common: Common,
    /// Clients of the closed loops, separated by commas
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1, 16, 64], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: Vec<u32>,
    /// Measure etcd as well, in the same run
    #[arg(long, value_enum)]
    against: Option<Peer>,
}

/// A kind of read: of which replica, and how consistent.
#[derive(Clone, Copy, Debug)]
struct Kind {
    name: &'static str,
    at_leader: bool,
    read: Read,
}

const KINDS: &[Kind] = &[
    Kind { name: "any, follower", at_leader: false, read: Read::Any },
    Kind { name: "bounded, follower", at_leader: false, read: Read::Bounded },
    Kind { name: "linearizable, follower", at_leader: false, read: Read::Linearizable },
    Kind { name: "any, leader", at_leader: true, read: Read::Any },
    Kind { name: "linearizable, leader", at_leader: true, read: Read::Linearizable },
];

struct Measured {
    kind: Kind,
    clients: u32,
    part: Part,
}

async fn measure<C: Caller>(
    args: &ReadArgs,
    processes: Vec<(String, u32)>,
    leader: usize,
    connections: impl Fn(usize, usize, Kind) -> Result<Vec<C>>,
) -> Result<Vec<Measured>> {
    let follower = (leader + 1) % 3;
    let mut all = Vec::new();
    println!("{}", Part::header());
    for kind in KINDS {
        let at = if kind.at_leader { leader } else { follower };
        for clients in &args.clients {
            let what = format!("{}, {clients} clients", kind.name);
            let load = Load { what, each: 1, length: args.common.length(), processes: processes.clone() };
            let open = connections((*clients).min(CONNECTIONS_MAX) as usize, at, *kind)?;
            let part = load::closed(&load, &open, *clients).await?;
            println!("{}", part.line());
            all.push(Measured { kind: *kind, clients: *clients, part });
        }
    }
    Ok(all)
}

fn json_of(all: &[Measured]) -> Value {
    let one = |measured: &Measured| {
        let mut value = measured.part.json();
        value["read"] = json!(measured.kind.name);
        value["clients"] = json!(measured.clients);
        value
    };
    all.iter().map(one).collect()
}

async fn of_muster(args: &ReadArgs) -> Result<(Value, Vec<Measured>)> {
    let cluster = Cluster::start(args.common.dir.as_deref(), Settings::default()).await?;
    let machine = machine::describe_with_disk(cluster.directory())?;
    println!("{}", machine::sentence(&machine));
    let leader = cluster.wait_for_leader().await?;
    let client = cluster.client(leader, DEADLINE)?;
    let mut jobs = Vec::new();
    while jobs.len() < JOBS {
        jobs.extend(submit(&client, 500).await.context("the jobs to read were not acknowledged")?);
    }
    let jobs: Arc<[String]> = jobs.into();
    for replica in 0..3 {
        cluster.wait_for(replica, client.seen_log_index(), DEADLINE).await?;
    }
    println!("\nmuster: three replicas, {JOBS} waiting jobs");
    let connections = |count: usize, at: usize, kind: Kind| {
        let one = |_| {
            let client = cluster.client_of(at)?.reading(kind.read.options());
            Ok(Reader { client, jobs: Arc::clone(&jobs) })
        };
        (0..count).map(one).collect::<Result<Vec<_>>>()
    };
    Ok((machine, measure(args, cluster.processes(leader), leader, connections).await?))
}

async fn of_etcd(args: &ReadArgs) -> Result<Option<(String, Vec<Measured>)>> {
    let Some(members) = etcd::Etcd::start(args.common.dir.as_deref()).await? else { return Ok(None) };
    members.fill(&value()).await?;
    let version = members.version().await?;
    println!("\netcd {version}: three members, {JOBS} keys; any and bounded = serializable");
    let connections = |count: usize, at: usize, kind: Kind| {
        // What is at most so old has no like there: serializable is the nearest.
        let serializable = kind.read != Read::Linearizable;
        Ok(members.connections(count, &[at], etcd::Action::Get { serializable }))
    };
    Ok(Some((version, measure(args, members.processes(), members.leader, connections).await?)))
}

pub(crate) async fn run(args: ReadArgs) -> Result<()> {
    let (machine, ours) = of_muster(&args).await?;
    let mut report = json!({
        "scenario": "read",
        "machine": machine,
        "jobs": JOBS,
        "seconds_each": args.common.seconds,
        "muster": json_of(&ours),
    });
    match args.against {
        Some(Peer::Etcd) => match of_etcd(&args).await? {
            Some((version, theirs)) => {
                report["etcd_version"] = json!(version);
                report["etcd"] = json_of(&theirs);
                let ratio = |(ours, theirs): (&Measured, &Measured)| {
                    json!({
                        "read": ours.kind.name,
                        "clients": ours.clients,
                        "times_as_many_per_s": rounded(ours.part.per_s / theirs.part.per_s),
                    })
                };
                report["muster_over_etcd"] = ours.iter().zip(&theirs).map(ratio).collect();
                println!("\nmuster over etcd: {}", report["muster_over_etcd"]);
            }
            None => println!("\netcd: skipped, not installed; {}", etcd::INSTALL),
        },
        Some(Peer::Slurm) => println!("\nslurm: skipped, it has no read of one job that could be compared"),
        None => {}
    }
    report["load_average_after"] = json!(machine::load_average());
    args.common.output.write(if args.against.is_some() { "read-etcd" } else { "read" }, &report)
}
