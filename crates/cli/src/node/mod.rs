//! `muster node …`.

mod admission;
mod health;
mod labels;
mod which;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use muster_client::{Client, NodeItem};
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid, Items, Position, one_line};
use muster_types::health::is_reason;
use muster_types::{LabelSelector, limits};
use muster_wire::v1;
use serde::Serialize;

use self::admission::AdmissionCommand;
use self::health::HealthCommand;
use self::labels::LabelCommand;
use self::which::WhichNodes;
use crate::complete;
use crate::interrupt::Interrupts;
use crate::job::follow::{Next, next_until, say_restarted};
use crate::reading::ReadArgs;
use crate::view::{self, NodeEvent};

const PAGE_SIZE: u32 = 1_000;

/// Commands about nodes.
#[derive(Subcommand)]
pub enum NodeCommand {
    /// List nodes by name
    List(ListArgs),
    /// Show one node and the jobs on it
    #[command(after_help = "\
Examples:
  muster node show host-17
  muster node show host-17 -o yaml")]
    Show {
        /// Its name or id
        #[arg(add = ArgValueCompleter::new(complete::nodes))]
        node: String,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Print each change of nodes, with its log index, until Ctrl-C
    #[command(after_help = "\
Examples:
  muster node watch
  muster node watch --region eu-north
  muster node watch -o json | jq 'select(.node.status == \"lost\")'

Shows what registers, is lost, cordoned, put back, labelled, tainted or forgotten; what is free changes with the jobs, which
`muster job watch` shows. Survives the loss of replicas: goes on exactly behind the last change that was printed.")]
    Watch {
        /// Only this region
        #[arg(long, value_name = "REGION")]
        region: Option<String>,
    },
    /// Take nodes out of placement; what runs on them stays
    #[command(after_help = "\
Examples:
  muster node cordon host-17 --reason \"power work in row 4\"
  muster node cordon --region eu-north            every node that is registered in the region now
  muster node cordon -l pool=research")]
    Cordon {
        #[command(flatten)]
        which: WhichNodes,
        /// Why, in one sentence: shown with the nodes, and to those whose jobs wait for them
        #[arg(long, value_name = "TEXT", value_parser = reason_text)]
        reason: Option<String>,
    },
    /// Put nodes back into placement
    #[command(after_help = "\
Examples:
  muster node uncordon host-17
  muster node uncordon --region eu-north")]
    Uncordon(WhichNodes),
    #[command(flatten)]
    Health(HealthCommand),
    #[command(flatten)]
    Labels(LabelCommand),
    #[command(flatten)]
    Admission(AdmissionCommand),
    /// Drop lost nodes that will not come back; their names may be given to new hosts
    #[command(after_help = "\
Examples:
  muster node forget host-17
  muster node forget host-17 --dry-run

Refused while the node's session stands. A node that comes back all the same registers again.")]
    Forget {
        /// Their names or ids
        #[arg(required = true, add = ArgValueCompleter::new(complete::nodes))]
        nodes: Vec<String>,
        /// Say what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// Options of `muster node list`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster node list
  muster node list --region eu-north -o wide
  muster node list -l pool=research -o name")]
pub struct ListArgs {
    /// Only this region
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
    /// Only nodes whose labels match: pool=research, zone in (a,b), !spot; several by commas
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = labels::selector)]
    selector: Option<LabelSelector>,
    /// At most this number [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    #[command(flatten)]
    read: ReadArgs,
}

pub async fn run(global: &Global, console: &Console, command: NodeCommand) -> Result<Exit, Failure> {
    match command {
        NodeCommand::List(args) => list(&args.read.client(global).await?, console, args).await,
        NodeCommand::Show { node, read } => show(&read.client(global).await?, console, node, &read).await,
        NodeCommand::Watch { region } => watch(global, console, region.unwrap_or_default()).await,
        NodeCommand::Cordon { which, reason } => {
            cordon(&global.client().await?, console, which, reason.unwrap_or_default()).await
        }
        NodeCommand::Uncordon(which) => uncordon(&global.client().await?, console, which).await,
        NodeCommand::Admission(command) => admission::run(global, console, command).await,
        NodeCommand::Health(command) => health::run(global, console, command).await,
        NodeCommand::Labels(command) => labels::run(global, console, command).await,
        NodeCommand::Forget { nodes, dry_run } => {
            forget(&global.client().await?, console, nodes, dry_run).await
        }
    }
}

async fn forget(
    client: &Client,
    console: &Console,
    names: Vec<String>,
    dry_run: bool,
) -> Result<Exit, Failure> {
    if dry_run {
        return would_forget(client, console, names).await;
    }
    let mut ids = Vec::with_capacity(names.len());
    let (mut log_index, mut failed) = (None, None);
    for node in names {
        match client.forget_node(v1::ForgetNodeRequest { node, ..Default::default() }).await {
            Ok(answer) => {
                log_index = answer.freshness.map(|f| f.log_index);
                ids.push(answer.node_id);
            }
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    // Those before the one that failed are gone: they are printed first.
    if !ids.is_empty() {
        print_forgotten(console, log_index, ids)?;
    }
    failed.map_or(Ok(Exit::Ok), |error| Err(error.into()))
}

/// One node that `muster node forget --dry-run` was asked about.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WouldForget {
    name: String,
    node_id: String,
    would_be_forgotten: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DryRun<T> {
    dry_run: bool,
    items: Vec<T>,
}

async fn would_forget(client: &Client, console: &Console, names: Vec<String>) -> Result<Exit, Failure> {
    let (mut rows, mut log_index) = (Vec::with_capacity(names.len()), None);
    for name in names {
        let answer = client.get_node(v1::GetNodeRequest { node: name.clone(), ..Default::default() }).await?;
        let node = answer.node.unwrap_or_default();
        log_index = answer.freshness.map(|f| f.log_index);
        let would_be_forgotten = node.status() == v1::NodeStatus::Lost;
        rows.push(WouldForget { name, node_id: node.id, would_be_forgotten });
    }
    if console.is_structured() {
        let rows = DryRun { dry_run: true, items: rows };
        console.object(&Document::new("ForgottenNodes", log_index, rows))?;
        return Ok(Exit::Ok);
    }
    for WouldForget { name, node_id, would_be_forgotten } in rows {
        let becomes = match would_be_forgotten {
            true => "is lost and would be forgotten",
            false => "is not lost: that would be refused",
        };
        console.line(&format!("{name} ({node_id}) {becomes}"))?;
    }
    Ok(Exit::Ok)
}

fn print_forgotten(console: &Console, log_index: Option<u64>, ids: Vec<String>) -> Result<(), Failure> {
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("ForgottenNodes", log_index, Items { items: ids }))?;
        }
        Format::Name | Format::Table | Format::Wide | Format::Html | Format::Csv => {
            for id in ids {
                console.line(&id)?;
            }
        }
    }
    Ok(())
}

async fn list(client: &Client, console: &Console, args: ListArgs) -> Result<Exit, Failure> {
    let limit = args.limit.map_or(usize::MAX, |limit| limit as usize);
    // Of those that are listed, a selector takes some.
    let page_size = if args.selector.is_some() { PAGE_SIZE } else { args.limit.unwrap_or(PAGE_SIZE) };
    let mut request = v1::ListNodesRequest {
        page_size: page_size.min(PAGE_SIZE),
        region: args.region.unwrap_or_default(),
        ..Default::default()
    };
    let mut nodes: Vec<view::Node> = Vec::new();
    let mut freshness: Option<v1::Freshness> = None;
    loop {
        let page = client.list_nodes(request.clone()).await?;
        freshness = freshness.or(page.freshness);
        let remaining = limit - nodes.len();
        let is_selected = |node: &v1::Node| {
            args.selector.as_ref().is_none_or(|selector| labels::is_selected(selector, node))
        };
        nodes.extend(page.nodes.into_iter().filter(is_selected).take(remaining).map(view::Node::from));
        let over = page.next_page_token.is_empty() || page.next_page_token == request.page_token;
        if over || nodes.len() >= limit {
            break;
        }
        request.page_token = page.next_page_token;
    }
    print_nodes(console, freshness, nodes)?;
    args.read.tell_age(console, freshness.as_ref());
    Ok(Exit::Ok)
}

async fn show(client: &Client, console: &Console, node: String, read: &ReadArgs) -> Result<Exit, Failure> {
    let answer = client.get_node(v1::GetNodeRequest { node, read: None }).await?;
    let node = view::Node::from(answer.node.unwrap_or_default());
    match console.format {
        Format::Json | Format::Yaml => console.object(&Document::new("Node", answer.freshness, node))?,
        Format::Name => console.line(&node.name)?,
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            let node = [node];
            console.table(&table(&node, true))?;
            show_reasons(console, &node[0])?;
            labels::show(console, &node[0])?;
            let [view::Node { job_ids, .. }] = node;
            if !job_ids.is_empty() {
                console.line("")?;
                let mut grid = Grid::new(vec!["JOBS HERE"]);
                job_ids.into_iter().for_each(|id| grid.row(vec![id]));
                console.table(&grid)?;
            }
        }
    }
    read.tell_age(console, answer.freshness.as_ref());
    Ok(Exit::Ok)
}

/// Why operators took a node out of placement, who did it and when.
fn show_reasons(console: &Console, node: &view::Node) -> Result<(), Failure> {
    let all = [("Cordoned", &node.cordon_reason), ("Drained", &node.drain_reason)];
    let all = all.into_iter().filter_map(|(what, said)| Some((what, said.as_ref()?)));
    for (place, (what, said)) in all.enumerate() {
        if place == 0 {
            console.line("")?;
        }
        let by = if said.creator.is_empty() { "an operator" } else { said.creator.as_str() };
        let at = said.create_time.as_ref().map(|at| format!(" at {at}")).unwrap_or_default();
        let why = if said.reason.is_empty() { "no reason was given" } else { said.reason.as_str() };
        console.line(&one_line(&format!("{what} by {by}{at}: {why}")))?;
    }
    Ok(())
}

/// Why it is out of placement, in one cell.
fn why_out(node: &view::Node) -> String {
    let all = [&node.cordon_reason, &node.drain_reason].into_iter().flatten();
    all.map(|said| said.reason.as_str()).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ")
}

async fn watch(global: &Global, console: &Console, region: String) -> Result<Exit, Failure> {
    let client = global.client().await?;
    let mut watch = client.watch_nodes(v1::WatchNodesRequest { region, ..Default::default() });
    let end = global.end();
    let mut interrupts = Interrupts::listen()?;
    loop {
        match next_until(watch.next(), end, &mut interrupts).await? {
            Next::Item(item) => print_event(console, &item)?,
            Next::Ended(exit) => return Ok(exit),
        }
    }
}

fn print_event(console: &Console, item: &NodeItem) -> Result<(), Failure> {
    match (console.format, item) {
        (Format::Json | Format::Yaml, item) => console.event(&event(item)),
        (Format::Name, NodeItem::Changed { node, .. }) => {
            console.line(node.description.as_ref().map_or(node.id.as_str(), |known| known.name.as_str()))
        }
        (Format::Table | Format::Wide, NodeItem::Changed { log_index, node }) => {
            console.line(&event_line(*log_index, &view::Node::from((**node).clone())))
        }
        (Format::Table | Format::Wide, NodeItem::Forgotten { log_index, node_id }) => {
            console.line(&format!("#{log_index}  {node_id}  forgotten"))
        }
        (Format::Table | Format::Wide, NodeItem::Restarted) => {
            say_restarted(console);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn event_line(log_index: u64, node: &view::Node) -> String {
    let devices = node.accelerators.as_ref().map(|a| format!("  {}:{}", a.r#type, a.count));
    let (devices, jobs) = (devices.unwrap_or_default(), node.job_ids.len());
    let place = format!("{}/{}", node.region, node.cluster);
    let line = format!(
        "#{log_index}  {}  {place}  {}{devices}  {} free, jobs: {jobs}",
        node.name, node.state, node.free_devices
    );
    one_line(&line)
}

fn event(item: &NodeItem) -> Document<NodeEvent> {
    let event = |r#type, node: Option<&v1::Node>, node_id: Option<&String>| NodeEvent {
        r#type,
        node: node.cloned().map(view::Node::from),
        node_id: node_id.cloned(),
    };
    let (log_index, content) = match item {
        NodeItem::Changed { log_index, node } => (Some(*log_index), event("changed", Some(node), None)),
        NodeItem::SyncEnd { log_index } => (Some(*log_index), event("syncEnd", None, None)),
        NodeItem::Bookmark { log_index } => (Some(*log_index), event("bookmark", None, None)),
        NodeItem::Forgotten { log_index, node_id } => {
            (Some(*log_index), event("forgotten", None, Some(node_id)))
        }
        NodeItem::Restarted => (None, event("restarted", None, None)),
        _ => (None, event("unknown", None, None)),
    };
    Document::new("NodeEvent", log_index, content)
}

async fn cordon(
    client: &Client,
    console: &Console,
    which: WhichNodes,
    reason: String,
) -> Result<Exit, Failure> {
    let mut changed = Changed::default();
    for node in which.names(client).await? {
        let request = v1::CordonNodeRequest { node, reason: reason.clone(), ..Default::default() };
        let answer = client.cordon_node(request).await?;
        changed.note(answer.node, answer.freshness);
    }
    changed.print(console)
}

async fn uncordon(client: &Client, console: &Console, which: WhichNodes) -> Result<Exit, Failure> {
    let mut changed = Changed::default();
    for node in which.names(client).await? {
        let request = v1::UncordonNodeRequest { node, ..Default::default() };
        let answer = client.uncordon_node(request).await?;
        changed.note(answer.node, answer.freshness);
    }
    changed.print(console)
}

/// Why nodes are taken out of placement, as the server takes it.
fn reason_text(text: &str) -> Result<String, String> {
    if is_reason(text) {
        return Ok(text.to_owned());
    }
    Err(format!("must be 1 to {} bytes without control characters", limits::DETAIL_BYTES_MAX))
}

/// Nodes as they are after a command has changed them.
#[derive(Default)]
pub struct Changed {
    nodes: Vec<view::Node>,
    log_index: Option<u64>,
}

impl Changed {
    /// One more, as the answer has it.
    pub(super) fn note(&mut self, node: Option<v1::Node>, freshness: Option<v1::Freshness>) {
        self.log_index = freshness.map(|freshness| freshness.log_index);
        self.nodes.push(view::Node::from(node.unwrap_or_default()));
    }

    /// Shows all of them.
    pub(super) fn print(self, console: &Console) -> Result<Exit, Failure> {
        print_nodes(console, self.log_index, self.nodes)?;
        Ok(Exit::Ok)
    }
}

pub(super) fn print_nodes(
    console: &Console,
    position: impl Into<Position>,
    nodes: Vec<view::Node>,
) -> Result<(), Failure> {
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("NodeList", position, Items { items: nodes }))
        }
        Format::Name => {
            let lines: String = nodes.iter().map(|node| format!("{}\n", node.name)).collect();
            console.bytes(lines.as_bytes())
        }
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            console.table(&table(&nodes, console.is_wide()))
        }
    }
}

fn table(nodes: &[view::Node], wide: bool) -> Grid {
    let mut header = vec!["NAME", "REGION", "CLUSTER", "STATUS", "ACCELERATORS", "FREE"];
    if wide {
        header.extend([
            "BLOCK",
            "RACK",
            "CPU-FREE",
            "MEMORY-FREE",
            "OTHERS-HOLD",
            "INCARNATION",
            "ID",
            "ADDRESS",
            "SET-BY-OPERATORS",
            "REASON",
        ]);
    }
    header.push("JOBS");
    let mut grid = Grid::new(header);
    for node in nodes {
        let accelerators = node.accelerators.as_ref();
        let mut cells = vec![
            node.name.clone(),
            node.region.clone(),
            node.cluster.clone(),
            node.state.to_owned(),
            accelerators.map(|a| format!("{}:{}", a.r#type, a.count)).unwrap_or_default(),
            node.free_devices.to_string(),
        ];
        if wide {
            cells.push(node.block.clone());
            cells.push(node.rack.clone());
            cells.push(format!("{}/{}", cpus(node.free_cpu_milli), cpus(node.cpu_milli)));
            cells.push(format!("{}/{}", gib(node.free_memory_bytes), gib(node.memory_bytes)));
            cells.push(node.foreign_load.as_ref().map(held_by_others).unwrap_or_default());
            cells.push(node.incarnation.to_string());
            cells.push(node.id.clone());
            cells.push(node.address.clone());
            cells.push(labels::in_short(node));
            cells.push(why_out(node));
        }
        cells.push(node.job_ids.len().to_string());
        grid.row(cells);
    }
    grid
}

/// What others hold, as far as it is anything: `4 devices, 16 cpus, 64Gi`, or that nothing is given out there.
fn held_by_others(load: &view::ForeignLoad) -> String {
    let mut parts = Vec::new();
    if load.closed {
        parts.push("closed".to_owned());
    }
    if load.devices > 0 {
        parts.push(format!("{} devices", load.devices));
    }
    if load.cpu_milli > 0 {
        parts.push(format!("{} cpus", cpus(load.cpu_milli)));
    }
    if load.memory_bytes > 0 {
        parts.push(gib(load.memory_bytes.next_multiple_of(1 << 30)));
    }
    parts.join(", ")
}

fn cpus(milli: u64) -> String {
    if milli.is_multiple_of(1_000) { (milli / 1_000).to_string() } else { format!("{milli}m") }
}

/// Whole GiB, rounded down: what is shown as free is free.
fn gib(bytes: u64) -> String {
    format!("{}Gi", bytes >> 30)
}
