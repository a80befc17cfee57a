//! `muster licence list`: what the policy counts, who holds it and which job is next.

use clap::Subcommand;
use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid, Items};
use muster_wire::v1;
use serde::Serialize;

/// Commands about counted resources.
#[derive(Subcommand)]
pub enum LicenceCommand {
    /// List how many there are of each licence, how many are in use, by which tenants, and which job is next
    #[command(after_help = "\
Examples:
  muster licence list
  muster licence list -o json | jq -r '.items[] | select(.used > .count).name'

The policy counts them (resources: [{name: matlab, count: 40}]), and a job asks for them with licences in its file
(licences: {matlab: 2}). It holds them as a whole, from its placement to its end. NEXT is the job that keeps
what is given back, or else the first in the queue that asks for one. A count that is lowered below what is in use stops
no job.")]
    List,
}

/// Carries out a command.
pub async fn run(global: &Global, console: &Console, command: LicenceCommand) -> Result<Exit, Failure> {
    let client = global.client().await?;
    match command {
        LicenceCommand::List => list(&client, console).await?,
    }
    Ok(Exit::Ok)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LicenceView {
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    region: String,
    count: u64,
    used: u64,
    uses: Vec<UseView>,
    uses_left_out: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    next_job_id: String,
}

#[derive(Serialize)]
struct UseView {
    tenant: String,
    used: u64,
}

impl From<v1::Licence> for LicenceView {
    fn from(licence: v1::Licence) -> LicenceView {
        let v1::Licence { name, region, count, used, uses, uses_left_out, next_job_id } = licence;
        let uses = uses.into_iter().map(|of| UseView { tenant: of.tenant, used: of.used }).collect();
        LicenceView { name, region, count, used, uses, uses_left_out, next_job_id }
    }
}

impl LicenceView {
    /// Who holds how many, as far as it fits a table.
    fn holders(&self) -> String {
        const SHOWN: usize = 4;
        let shown = self.uses.iter().take(SHOWN).map(|of| format!("{} {}", of.tenant, of.used));
        let mut text = shown.collect::<Vec<_>>().join(", ");
        if self.uses.len() > SHOWN || self.uses_left_out {
            text.push_str(", ...");
        }
        text
    }
}

async fn list(client: &Client, console: &Console) -> Result<(), Failure> {
    let answer = client.list_licences(v1::ListLicencesRequest::default()).await?;
    let items: Vec<LicenceView> = answer.licences.into_iter().map(LicenceView::from).collect();
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("LicenceList", answer.freshness, Items { items }))
        }
        Format::Name => {
            let names = items.iter().map(|item| format!("{}\n", item.name));
            console.bytes(names.collect::<String>().as_bytes())
        }
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            let mut grid = Grid::new(vec!["NAME", "REGION", "COUNT", "USED", "HELD BY", "NEXT"]);
            for item in items {
                let holders = item.holders();
                let (count, used) = (item.count.to_string(), item.used.to_string());
                grid.row(vec![item.name, item.region, count, used, holders, item.next_job_id]);
            }
            console.list(&grid, "the policy counts none; `resources` of a policy file adds them")
        }
    }
}
