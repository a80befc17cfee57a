//! `muster region hold|release|list`: regions, clusters and tenants that operators hold until further notice.

use std::collections::BTreeSet;

use clap::{Args, Subcommand};
use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid, Items, moment};
use muster_manifest::quantity;
use muster_wire::time::timestamp;
use muster_wire::v1;
use serde::Serialize;

use crate::consent::Consent;
use crate::job_files::now_ms;

/// Nodes of one page.
const PAGE_SIZE: u32 = 1_000;

/// Commands about what is held.
#[derive(Subcommand)]
pub enum RegionCommand {
    /// Let nothing start in a region, in a cluster or of a tenant until it is released
    #[command(after_help = "\
Examples:
  muster region hold eu-1 --reason 'the cooling is repaired'
  muster region hold eu-1 --in-cluster c2 --reason 'a new switch' --until +6h --drain --dry-run
  muster region hold --in-cluster c2 --reason 'a new switch'
  muster region hold --tenant lab --reason 'the budget is checked' --until 2027-03-01T09:00:00+01:00

Nothing starts there, also not on nodes that join later, and of a tenant and those below it nothing starts anywhere; jobs wait, and
`muster job explain` says for what. What runs goes on: with --drain it is stopped with its grace, and keeps its place in the queue.
With --yes jobs are stopped, and a place is held that has no nodes yet. Holding what is held already changes the reason, the end and
the drain.")]
    Hold(HoldArgs),
    /// Release what is held: jobs start there again
    #[command(after_help = "\
Examples:
  muster region release eu-1
  muster region release --tenant lab")]
    Release {
        #[command(flatten)]
        #[allow(missing_docs, reason = "a flattened field has no help text")]
        target: TargetArgs,
    },
    /// List what is held
    #[command(after_help = "\
Examples:
  muster region list
  muster region list -o json | jq -r '.items[].reason'")]
    List,
}

/// What is held.
#[derive(Args)]
pub struct TargetArgs {
    /// The region
    #[arg(required_unless_present_any = ["in_cluster", "tenant"])]
    region: Option<String>,
    /// The cluster, of the region or of all
    #[arg(long = "in-cluster", value_name = "CLUSTER")]
    in_cluster: Option<String>,
    /// The tenant, with those below it
    #[arg(long, value_name = "TENANT", conflicts_with_all = ["region", "in_cluster"])]
    tenant: Option<String>,
}

impl TargetArgs {
    fn target(&self) -> v1::HoldTarget {
        v1::HoldTarget {
            region: self.region.clone().unwrap_or_default(),
            cluster: self.in_cluster.clone().unwrap_or_default(),
            tenant: self.tenant.clone().unwrap_or_default(),
        }
    }
}

/// How it is held.
#[derive(Args)]
pub struct HoldArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Why, for people
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Until when: a time with an offset from UTC, or +2h for two hours from now [default: until it is released]
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<u64>,
    /// Stop what runs there, with its grace
    #[arg(long, conflicts_with = "tenant")]
    drain: bool,
    #[command(flatten)]
    consent: Consent,
}

fn time(text: &str) -> Result<u64, String> {
    quantity::time_ms(text, now_ms()).map_err(|error| error.to_string())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HoldView {
    #[serde(skip_serializing_if = "String::is_empty")]
    region: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    cluster: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    tenant: String,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    drain: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    creator: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
}

impl From<v1::FleetHold> for HoldView {
    fn from(hold: v1::FleetHold) -> HoldView {
        let target = hold.target.unwrap_or_default();
        HoldView {
            region: target.region,
            cluster: target.cluster,
            tenant: target.tenant,
            reason: hold.reason,
            until: moment(hold.end_time),
            drain: hold.drain,
            creator: hold.creator,
            since: moment(hold.create_time),
        }
    }
}

/// What is held, in words.
fn named(target: &v1::HoldTarget) -> String {
    match (target.tenant.as_str(), target.region.as_str(), target.cluster.as_str()) {
        ("", region, "") => format!("region {region}"),
        ("", "", cluster) => format!("cluster {cluster}"),
        ("", region, cluster) => format!("cluster {cluster} of region {region}"),
        (tenant, ..) => format!("tenant {tenant}"),
    }
}

/// Carries out a command about what is held.
pub async fn run(global: &Global, console: &Console, command: RegionCommand) -> Result<Exit, Failure> {
    let client = global.client().await?;
    match command {
        RegionCommand::Hold(args) => hold(&client, console, &args).await?,
        RegionCommand::Release { target } => release(&client, console, &target).await?,
        RegionCommand::List => list(&client, console).await?,
    }
    Ok(Exit::Ok)
}

/// Nodes of a region, a cluster or both; empty names are those of all.
pub async fn nodes_of(client: &Client, region: &str, cluster: &str) -> Result<Vec<v1::Node>, Failure> {
    let mut request =
        v1::ListNodesRequest { page_size: PAGE_SIZE, region: region.to_owned(), ..Default::default() };
    let mut found = Vec::new();
    loop {
        let page = client.list_nodes(request.clone()).await?;
        let is_there = |node: &v1::Node| {
            node.description.as_ref().is_some_and(|described| {
                (region.is_empty() || described.region == region)
                    && (cluster.is_empty() || described.cluster == cluster)
            })
        };
        found.extend(page.nodes.into_iter().filter(is_there));
        if page.next_page_token.is_empty() || page.next_page_token == request.page_token {
            return Ok(found);
        }
        request.page_token = page.next_page_token;
    }
}

/// What a hold of nodes that have these jobs would do, and what it would take away.
fn effect(target: &v1::HoldTarget, drains: bool, nodes: &[v1::Node]) -> (String, Option<String>) {
    let effect = format!("{} would be held, where {} nodes are now", named(target), nodes.len());
    let jobs: BTreeSet<&String> = nodes.iter().flat_map(|node| &node.job_ids).collect();
    let loss = match jobs.len() {
        _ if nodes.is_empty() => Some("the name may be wrong: `muster node list` shows places".to_owned()),
        count @ 1.. if drains => {
            Some(format!("what runs there would be stopped with its grace: jobs {count}"))
        }
        _ => None,
    };
    (effect, loss)
}

/// Whether to go on: not for a look, and not where jobs would be stopped, or no node would be held, and nobody said yes.
async fn is_agreed(
    client: &Client,
    console: &Console,
    args: &HoldArgs,
    target: &v1::HoldTarget,
) -> Result<bool, Failure> {
    if !target.tenant.is_empty() {
        let effect = format!("{} would be held, and what runs would go on", named(target));
        return args.consent.given(console, &effect, None);
    }
    let nodes = nodes_of(client, &target.region, &target.cluster).await?;
    let (effect, loss) = effect(target, args.drain, &nodes);
    args.consent.given(console, &effect, loss.as_deref())
}

async fn hold(client: &Client, console: &Console, args: &HoldArgs) -> Result<(), Failure> {
    let target = args.target.target();
    if !is_agreed(client, console, args, &target).await? {
        return Ok(());
    }
    let request = v1::SetFleetHoldRequest {
        request_id: String::new(),
        target: Some(target.clone()),
        held: Some(true),
        reason: args.reason.clone(),
        end_time: args.until.map(timestamp),
        drain: args.drain,
    };
    let answer = client.set_fleet_hold(request).await?;
    let view = HoldView::from(answer.hold.unwrap_or_default());
    if console.is_structured() {
        return console.object(&Document::new("FleetHold", answer.freshness, view));
    }
    let until = view.until.unwrap_or_else(|| "it is released".to_owned());
    console.progress(&format!("{} is held until {until}: {}", named(&target), args.reason));
    Ok(())
}

async fn release(client: &Client, console: &Console, args: &TargetArgs) -> Result<(), Failure> {
    let target = args.target();
    let request =
        v1::SetFleetHoldRequest { target: Some(target.clone()), held: Some(false), ..Default::default() };
    client.set_fleet_hold(request).await?;
    console.progress(&format!("{} is released", named(&target)));
    Ok(())
}

async fn list(client: &Client, console: &Console) -> Result<(), Failure> {
    let answer = client.list_fleet_holds(v1::ListFleetHoldsRequest::default()).await?;
    let items: Vec<HoldView> = answer.holds.into_iter().map(HoldView::from).collect();
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("FleetHoldList", answer.freshness, Items { items }))
        }
        Format::Name => {
            let name = |hold: &HoldView| format!("{}{}{}\n", hold.region, hold.cluster, hold.tenant);
            let lines: String = items.iter().map(name).collect();
            console.bytes(lines.as_bytes())
        }
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            let mut grid = Grid::new(vec!["REGION", "CLUSTER", "TENANT", "UNTIL", "DRAIN", "REASON"]);
            for hold in items {
                grid.row(vec![
                    hold.region,
                    hold.cluster,
                    hold.tenant,
                    hold.until.unwrap_or_else(|| "released".to_owned()),
                    (if hold.drain { "yes" } else { "no" }).to_owned(),
                    hold.reason,
                ]);
            }
            console.list(&grid, "nothing is held")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: RegionCommand,
    }

    #[test]
    fn what_a_hold_would_stop_is_said_before() {
        let target = v1::HoldTarget { region: "eu-1".to_owned(), ..Default::default() };
        let node = |jobs: &[&str]| v1::Node {
            job_ids: jobs.iter().map(|id| (*id).to_owned()).collect(),
            ..Default::default()
        };
        let nodes = [node(&["job-1", "job-2"]), node(&["job-2"])];
        let (said, loss) = effect(&target, true, &nodes);
        assert_eq!(said, "region eu-1 would be held, where 2 nodes are now");
        assert!(loss.is_some_and(|loss| loss.ends_with("jobs 2")));
        assert_eq!(effect(&target, false, &nodes).1, None);
        assert_eq!(effect(&target, true, &[node(&[])]).1, None);
        assert!(effect(&target, false, &[]).1.is_some_and(|loss| loss.starts_with("the name may be wrong")));
    }

    #[test]
    fn something_is_held_for_a_reason() {
        let parsed = |words: &[&str]| {
            let line = Line::try_parse_from([&["region"][..], words].concat());
            line.map(|line| match line.command {
                RegionCommand::Hold(args) => named(&args.target.target()),
                RegionCommand::Release { target } => named(&target.target()),
                RegionCommand::List => String::new(),
            })
        };
        for (words, name) in [
            (&["hold", "eu-1", "--reason", "a"][..], "region eu-1"),
            (
                &["hold", "eu-1", "--in-cluster", "c1", "--reason", "a", "--drain"],
                "cluster c1 of region eu-1",
            ),
            (&["release", "--in-cluster", "c1"], "cluster c1"),
            (&["release", "--tenant", "lab"], "tenant lab"),
        ] {
            assert_eq!(parsed(words).expect("it is whole"), name);
        }
        for wrong in [
            &["hold", "eu-1"][..],
            &["hold", "--reason", "a"],
            &["hold", "eu-1", "--tenant", "lab", "--reason", "a"],
            &["hold", "--tenant", "lab", "--reason", "a", "--drain"],
            &["release"],
        ] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }
}
