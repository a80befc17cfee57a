//! `muster drill stop`: ends a drill from anywhere, and undoes what one that died has left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::Args;
use muster_client::{Client, Options};
use muster_console::{Console, Document, Exit, Failure, Format, Global};
use muster_wire::admin;
use serde::Serialize;

use super::cluster_snapshot::{self, is_denied, why};
use super::means::{cancel_probes, end_at, release};

/// How long the members are asked for before the addresses that were given have to do.
const MEMBERS_MAX: Duration = Duration::from_secs(5);

/// Options of `muster drill stop`.
#[derive(Args)]
pub struct StopArgs {}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Stopped {
    /// Drills that were ended.
    drills: Vec<String>,
    /// Nodes that take work again.
    nodes_put_back: usize,
    probes_cancelled: usize,
    /// Replicas that could not be told; they forget the drill by themselves.
    not_told: BTreeMap<String, String>,
}

/// The replicas: the members where one says who they are, else the addresses given. A replica that is silent
/// says nothing but about its drill.
async fn services(client: &Client) -> Vec<(u64, muster_client::ReplicaDrills)> {
    let given = || client.endpoints().iter().map(|address| (0, client.drills_of(address))).collect();
    let patient = client.with_options(Options { deadline: MEMBERS_MAX, ..client.options().clone() });
    match cluster_snapshot::replicas(&patient).await {
        Ok(snapshot) if !snapshot.replicas.is_empty() => cluster_snapshot::drill_services(client, &snapshot),
        _ => given(),
    }
}

pub async fn run(global: &Global, console: &Console, _args: StopArgs) -> Result<Exit, Failure> {
    let client = global.client().await?;
    let services = services(&client).await;
    let mut drills = BTreeSet::new();
    for (replica, service) in &services {
        match service.get_drill(admin::GetDrillRequest {}).await {
            Ok(answer) => drills.extend(answer.drill.map(|drill| drill.id)),
            Err(error) if is_denied(&error) => return Err(Failure::new(Exit::Denied, why(&error))),
            Err(error) => {
                console.progress(&format!("replica {replica} at {}: {}", service.address(), why(&error)))
            }
        }
    }
    // Twice: a driver that is being told renews at a replica that has been, unless it is known by name.
    let mut untold = end_at(&services, "").await;
    for id in &drills {
        untold = end_at(&services, id).await;
    }
    let nodes_put_back = release(&client, |_, _| true).await?;
    let probes_cancelled = cancel_probes(&client, None).await?;
    let not_told = untold.into_iter().map(|(replica, why)| (format!("replica {replica}"), why)).collect();
    let stopped =
        Stopped { drills: drills.into_iter().collect(), nodes_put_back, probes_cancelled, not_told };
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("StoppedDrills", None::<u64>, &stopped))?;
        }
        Format::Name => {
            for id in &stopped.drills {
                console.line(id)?;
            }
        }
        Format::Table | Format::Wide | Format::Html | Format::Csv => print(console, &stopped)?,
    }
    Ok(Exit::Ok)
}

fn print(console: &Console, stopped: &Stopped) -> Result<(), Failure> {
    if stopped.drills.is_empty() {
        console.line("no drill ran")?;
    }
    for id in &stopped.drills {
        console.line(&format!("drill {id} is ended"))?;
    }
    if stopped.nodes_put_back > 0 {
        console.line(&format!("{} nodes take work again", stopped.nodes_put_back))?;
    }
    if stopped.probes_cancelled > 0 {
        console.line(&format!("{} probes are cancelled", stopped.probes_cancelled))?;
    }
    for (replica, why) in &stopped.not_told {
        console.line(&format!("{replica} could not be told and takes traffic again by itself: {why}"))?;
    }
    Ok(())
}
