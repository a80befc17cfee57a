//! `muster node pending|approve|reject|admission`: which nodes are admitted.

use clap::{Args, Subcommand, ValueEnum};
use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid, Items, moment};
use muster_types::AdmissionMode;
use muster_wire::closed::word;
use muster_wire::v1;
use muster_wire::v1::set_node_approval_request::Approval;
use serde::Serialize;

/// Approvals of one page.
const PAGE_SIZE: u32 = 1_000;

/// Commands about nodes that want to take part.
#[derive(Subcommand)]
pub enum AdmissionCommand {
    /// List nodes that have tried to register and are not admitted, with what each says of itself
    #[command(after_help = "\
Examples:
  muster node pending
  muster node pending -o json | jq '.items[].name'

An agent that is refused tries again every few seconds; one that has not for ten minutes is not listed.")]
    Pending,
    /// Admit a node by its name: as it describes itself at present, or within the bounds that are given
    #[command(after_help = "\
Examples:
  muster node approve host-17                                     as it waits, or as it is known
  muster node approve host-17 --region eu --devices h100:8        before it comes
  muster node approve host-17 --region eu --no-devices

What is given bounds the node; with any of the options, what is left out is not asked about.")]
    Approve(ApproveArgs),
    /// Keep a node out by its name
    #[command(after_help = "\
Examples:
  muster node reject host-17
  muster node reject host-17 --clear       takes back what was said of it, approved or rejected

A node that is connected stays until its agent registers again; `muster ca revoke` ends its connection at once.")]
    Reject {
        /// Its name
        node: String,
        /// Take back what was said of it
        #[arg(long)]
        clear: bool,
    },
    /// Show or set which nodes are admitted without being approved one by one
    #[command(subcommand)]
    Admission(RulesCommand),
}

#[derive(Args)]
pub struct ApproveArgs {
    /// Its name
    node: String,
    /// The region that it has to be in
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
    /// The cluster that it has to be in
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Types of devices that it may have, with the most of each: h100:8
    #[arg(long, value_name = "TYPE:COUNT", value_delimiter = ',', value_parser = device)]
    devices: Vec<v1::Accelerators>,
    /// It may have no devices
    #[arg(long, conflicts_with = "devices")]
    no_devices: bool,
}

/// Rules about nodes.
#[derive(Subcommand)]
pub enum RulesCommand {
    /// Show the mode, the rules, and what was said of nodes by name
    #[command(after_help = "\
Examples:
  muster node admission show")]
    Show,
    /// Set the mode and all rules
    #[command(after_help = "\
Examples:
  muster node admission set approve
  muster node admission set approve --rule 'eu-*:region=eu,cluster=eu-1,devices=h100:8'
  muster node admission set pinned

Modes:
  open       every node is admitted as it describes itself: for a cluster without certificates
  pinned     a node is admitted when it comes for the first time, and stays in its region and cluster with the type of
             devices that it had, and no more of them: the usual mode with certificates
  approve    nodes are admitted that an operator has approved, that a rule admits, or that are known as what they say

A node whose name a rule covers has to keep the bounds of one that does; `*` stands for any text.")]
    Set {
        /// What is asked of nodes that no rule names
        mode: Mode,
        /// PATTERN[:region=R,cluster=C,devices=TYPE:COUNT+TYPE:COUNT]; can be given again
        #[arg(long = "rule", value_name = "RULE", value_parser = rule)]
        rules: Vec<v1::NodeAdmissionRule>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Mode {
    /// Every node is admitted
    Open,
    /// A node stays what it was when it first came
    Pinned,
    /// Nodes wait to be approved
    Approve,
}

impl Mode {
    fn to_message(self) -> v1::AdmissionMode {
        match self {
            Mode::Open => v1::AdmissionMode::Open,
            Mode::Pinned => v1::AdmissionMode::Pinned,
            Mode::Approve => v1::AdmissionMode::Approve,
        }
    }
}

fn device(text: &str) -> Result<v1::Accelerators, String> {
    let wrong = || format!("devices are given as TYPE:COUNT, for example h100:8, got {text:?}");
    let (kind, count) = text.split_once(':').ok_or_else(wrong)?;
    Ok(v1::Accelerators { r#type: kind.to_owned(), count: count.parse().map_err(|_| wrong())? })
}

fn rule(text: &str) -> Result<v1::NodeAdmissionRule, String> {
    let (pattern, rest) = text.split_once(':').unwrap_or((text, ""));
    let mut bounds = v1::NodeBounds::default();
    for part in rest.split(',').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("region", value)) => bounds.region = value.to_owned(),
            Some(("cluster", value)) => bounds.cluster = value.to_owned(),
            Some(("devices", "none")) => bounds.bounds_devices = true,
            Some(("devices", value)) => {
                bounds.bounds_devices = true;
                bounds.devices = value.split('+').map(device).collect::<Result<_, _>>()?;
            }
            _ => return Err(format!("a rule bounds region, cluster and devices, got {part:?}")),
        }
    }
    Ok(v1::NodeAdmissionRule { pattern: pattern.to_owned(), bounds: Some(bounds) })
}

pub async fn run(global: &Global, console: &Console, command: AdmissionCommand) -> Result<Exit, Failure> {
    let client = global.client().await?;
    match command {
        AdmissionCommand::Pending => pending(&client, console).await,
        AdmissionCommand::Approve(args) => approve(&client, console, args).await,
        AdmissionCommand::Reject { node, clear } => {
            let said = if clear {
                Approval::Clear(v1::ClearApproval {})
            } else {
                Approval::Reject(v1::RejectNode {})
            };
            say(&client, console, node, said).await
        }
        AdmissionCommand::Admission(RulesCommand::Show) => show(&client, console).await,
        AdmissionCommand::Admission(RulesCommand::Set { mode, rules }) => {
            let request = v1::SetNodeAdmissionRequest {
                request_id: String::new(),
                mode: mode.to_message().into(),
                rules,
                expected_version: None,
            };
            client.set_node_admission(request).await?;
            show(&client, console).await
        }
    }
}

async fn approve(client: &Client, console: &Console, args: ApproveArgs) -> Result<Exit, Failure> {
    let ApproveArgs { node, region, cluster, devices, no_devices } = args;
    let is_bare = region.is_none() && cluster.is_none() && devices.is_empty() && !no_devices;
    let said = if is_bare {
        Approval::ApproveAsIs(v1::ApproveAsIs {})
    } else {
        Approval::Approve(v1::NodeBounds {
            region: region.unwrap_or_default(),
            cluster: cluster.unwrap_or_default(),
            bounds_devices: no_devices || !devices.is_empty(),
            devices,
        })
    };
    say(client, console, node, said).await
}

async fn say(client: &Client, console: &Console, name: String, approval: Approval) -> Result<Exit, Failure> {
    let request = v1::SetNodeApprovalRequest {
        request_id: String::new(),
        name: name.clone(),
        approval: Some(approval),
    };
    let answer = client.set_node_approval(request).await?;
    let shown = answer.approval.as_ref().map(approval_view);
    let shown = shown.unwrap_or(ApprovalView { name, verdict: "none", bounds: None });
    let log_index = answer.freshness.map(|f| f.log_index);
    if console.is_structured() {
        console.object(&Document::new("NodeApproval", log_index, shown))?;
    } else {
        console.table(&approvals_table(&[shown]))?;
    }
    Ok(Exit::Ok)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BoundsView {
    #[serde(skip_serializing_if = "String::is_empty")]
    region: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    cluster: String,
    /// As `h100:8`; none for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<Vec<String>>,
}

impl BoundsView {
    fn of(bounds: &v1::NodeBounds) -> BoundsView {
        let devices = bounds.devices.iter().map(|device| format!("{}:{}", device.r#type, device.count));
        BoundsView {
            region: bounds.region.clone(),
            cluster: bounds.cluster.clone(),
            devices: bounds.bounds_devices.then(|| devices.collect()),
        }
    }

    fn cells(&self) -> [String; 3] {
        let any = |text: &String| if text.is_empty() { "any".to_owned() } else { text.clone() };
        let devices = match &self.devices {
            None => "any".to_owned(),
            Some(devices) if devices.is_empty() => "none".to_owned(),
            Some(devices) => devices.join(","),
        };
        [any(&self.region), any(&self.cluster), devices]
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApprovalView {
    name: String,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bounds: Option<BoundsView>,
}

fn approval_view(approval: &v1::NodeApproval) -> ApprovalView {
    let verdict = if approval.approved.is_some() { "approved" } else { "rejected" };
    ApprovalView {
        name: approval.name.clone(),
        verdict,
        bounds: approval.approved.as_ref().map(BoundsView::of),
    }
}

fn approvals_table(approvals: &[ApprovalView]) -> Grid {
    let mut grid = Grid::new(vec!["NAME", "VERDICT", "REGION", "CLUSTER", "DEVICES"]);
    for approval in approvals {
        let mut cells = vec![approval.name.clone(), approval.verdict.to_owned()];
        cells.extend(approval.bounds.iter().flat_map(BoundsView::cells));
        cells.resize(5, String::new());
        grid.row(cells);
    }
    grid
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PendingView {
    name: String,
    region: String,
    cluster: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<String>,
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_seen_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_seen_time: Option<String>,
    reason: String,
}

async fn pending(client: &Client, console: &Console) -> Result<Exit, Failure> {
    let nodes = client.list_pending_nodes().await?.nodes;
    let nodes: Vec<PendingView> = nodes
        .into_iter()
        .map(|node| {
            let described = node.description.unwrap_or_default();
            PendingView {
                name: described.name,
                region: described.region,
                cluster: described.cluster,
                devices: described.accelerators.map(|a| format!("{}:{}", a.r#type, a.count)),
                address: described.address,
                first_seen_time: moment(node.first_seen_time),
                last_seen_time: moment(node.last_seen_time),
                reason: node.reason,
            }
        })
        .collect();
    if console.is_structured() {
        console.object(&Document::new("PendingNodeList", None::<u64>, Items { items: nodes }))?;
        return Ok(Exit::Ok);
    }
    if console.format == Format::Name {
        nodes.iter().try_for_each(|node| console.line(&node.name))?;
        return Ok(Exit::Ok);
    }
    let mut grid = Grid::new(vec!["NAME", "REGION", "CLUSTER", "DEVICES", "LAST-SEEN", "REASON"]);
    for node in nodes {
        let devices = node.devices.unwrap_or_else(|| "none".to_owned());
        let seen = node.last_seen_time.unwrap_or_default();
        grid.row(vec![node.name, node.region, node.cluster, devices, seen, node.reason]);
    }
    console.table(&grid)?;
    Ok(Exit::Ok)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RuleView {
    pattern: String,
    bounds: BoundsView,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionView {
    mode: String,
    /// Whether an operator has set it.
    is_set: bool,
    rules: Vec<RuleView>,
    approvals: Vec<ApprovalView>,
}

async fn show(client: &Client, console: &Console) -> Result<Exit, Failure> {
    let mut request = v1::GetNodeAdmissionRequest { after: String::new(), page_size: PAGE_SIZE };
    let mut answer = client.get_node_admission(request.clone()).await?;
    let mut approvals: Vec<ApprovalView> = answer.approvals.iter().map(approval_view).collect();
    while answer.has_more {
        request.after = approvals.last().map(|last| last.name.clone()).unwrap_or_default();
        answer = client.get_node_admission(request.clone()).await?;
        if answer.approvals.is_empty() {
            break;
        }
        approvals.extend(answer.approvals.iter().map(approval_view));
    }
    let rules = answer.rules.iter().map(|rule| RuleView {
        pattern: rule.pattern.clone(),
        bounds: BoundsView::of(&rule.bounds.clone().unwrap_or_default()),
    });
    let view = AdmissionView {
        mode: word::<AdmissionMode>(answer.mode).to_owned(),
        is_set: answer.is_set,
        rules: rules.collect(),
        approvals,
    };
    if console.is_structured() {
        console.object(&Document::new("NodeAdmission", answer.freshness, view))?;
        return Ok(Exit::Ok);
    }
    let usual = if view.is_set { "" } else { " (as usual here; nobody has set it)" };
    console.line(&format!("mode: {}{usual}", view.mode))?;
    if !view.rules.is_empty() {
        let mut grid = Grid::new(vec!["RULE", "REGION", "CLUSTER", "DEVICES"]);
        for rule in &view.rules {
            let mut cells = vec![rule.pattern.clone()];
            cells.extend(rule.bounds.cells());
            grid.row(cells);
        }
        console.line("")?;
        console.table(&grid)?;
    }
    if !view.approvals.is_empty() {
        console.line("")?;
        console.table(&approvals_table(&view.approvals))?;
    }
    Ok(Exit::Ok)
}
