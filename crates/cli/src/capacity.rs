//! `muster capacity list`: what there is of each type in each region, by how it was bought.

use clap::Subcommand;
use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid, Items, span};
use muster_manifest::quantity::Decimal;
use muster_types::policy::PurchaseKind;
use muster_wire::closed::word;
use muster_wire::v1;
use serde::Serialize;

/// Commands about capacity.
#[derive(Subcommand)]
pub enum CapacityCommand {
    /// List nodes and free devices by region, type and purchase, with the price and how often such nodes are taken away
    #[command(after_help = "\
Examples:
  muster capacity list
  muster capacity list -o json | jq -r '.items[] | select(.purchase == \"spot\" and .freeDevices > 0).region'

How a node was bought is what its label purchase says: owned, on_demand, spot or reserved; nodes without it have no purchase here. Free
devices are those that are wholly free on nodes in service. Interruptions are counted for each node and day, over the last 14 days: an
interruption is the loss of a node that was in service: not drained, cordoned, in quarantine or being repaired. Below ten days of nodes
the rate is the policy's (interruptionRates), and without one nothing is shown. A job asks for purchases with capacity in its file.")]
    List,
}

/// Carries out a command.
pub async fn run(global: &Global, console: &Console, command: CapacityCommand) -> Result<Exit, Failure> {
    let client = global.client().await?;
    match command {
        CapacityCommand::List => list(&client, console).await?,
    }
    Ok(Exit::Ok)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CapacityView {
    region: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    accelerator_type: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    purchase: &'static str,
    nodes: u32,
    devices: u64,
    free_devices: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_device_hour: Option<Decimal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interruptions_per_day: Option<Decimal>,
    measured: bool,
    interruptions: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_time: Option<String>,
}

impl From<v1::Capacity> for CapacityView {
    fn from(capacity: v1::Capacity) -> CapacityView {
        CapacityView {
            region: capacity.region,
            accelerator_type: capacity.r#type,
            purchase: word::<PurchaseKind>(capacity.purchase),
            nodes: capacity.nodes,
            devices: capacity.devices,
            free_devices: capacity.free_devices,
            per_device_hour: capacity.micro_dollars_per_device_hour.map(Decimal::micro),
            interruptions_per_day: capacity
                .interruptions_per_day_milli
                .map(|milli| Decimal::milli(milli.into())),
            measured: capacity.measured,
            interruptions: capacity.interruptions,
            node_time: span(capacity.node_time),
        }
    }
}

impl CapacityView {
    /// What the rate follows from.
    fn basis(&self) -> String {
        match (self.measured, &self.interruptions_per_day) {
            (true, _) => {
                let time = self.node_time.as_deref().unwrap_or("0s");
                format!("{} in {time} of nodes", self.interruptions)
            }
            (false, Some(_)) => "policy".to_owned(),
            (false, None) => "too little seen".to_owned(),
        }
    }
}

async fn list(client: &Client, console: &Console) -> Result<(), Failure> {
    let answer = client.list_capacity(v1::ListCapacityRequest::default()).await?;
    let items: Vec<CapacityView> = answer.capacity.into_iter().map(CapacityView::from).collect();
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("CapacityList", answer.freshness, Items { items }))
        }
        Format::Name => {
            let name = |item: &CapacityView| {
                let parts = [item.region.as_str(), item.accelerator_type.as_str(), item.purchase];
                format!(
                    "{}\n",
                    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
                )
            };
            console.bytes(items.iter().map(name).collect::<String>().as_bytes())
        }
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            let header =
                vec!["REGION", "TYPE", "PURCHASE", "NODES", "DEVICES", "FREE", "$/HOUR", "TAKEN/DAY", "FROM"];
            let mut grid = Grid::new(header);
            for item in items {
                let basis = item.basis();
                let number =
                    |number: Option<Decimal>| number.map(|number| number.to_string()).unwrap_or_default();
                grid.row(vec![
                    item.region,
                    item.accelerator_type,
                    item.purchase.to_owned(),
                    item.nodes.to_string(),
                    item.devices.to_string(),
                    item.free_devices.to_string(),
                    number(item.per_device_hour),
                    number(item.interruptions_per_day),
                    basis,
                ]);
            }
            console.table(&grid)
        }
    }
}
