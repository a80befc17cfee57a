//! `muster queue …`.

use clap::{Args, Subcommand};
use muster_client::QueueItem;
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid, Items};
use muster_wire::time::unix_ms;
use muster_wire::v1;

use crate::interrupt::Interrupts;
use crate::job::follow::{Next, next_until};
use crate::job::list::tell_forecast;
use crate::job::print_jobs;
use crate::queue_text::{milli, quotas, share};
use crate::reading::ReadArgs;
use crate::view::{self, QueueEvent};

const PAGE_SIZE: u32 = 1_000;

/// Commands about queues.
#[derive(Subcommand)]
pub enum QueueCommand {
    /// List queues by tenant: what waits, what runs, shares and quotas
    List(ListArgs),
    /// Say why the jobs of a tenant wait: its share and quotas, who goes before it, and what its oldest jobs wait for
    #[command(after_help = "\
Examples:
  muster queue why vision
  muster queue why vision --at 2026-11-22T08:00:00Z     why they waited then
  muster queue why vision -o json | jq .jobs")]
    Why {
        /// The tenant
        tenant: String,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// List waiting jobs by when they are expected to start
    #[command(after_help = "\
Examples:
  muster queue starts
  muster queue starts --tenant vision -o json | jq '.items[0].status.expectedStart'

One forecast of the whole queue gives each waiting job its capacity in the order of the queue, as what runs is expected to end. It ends at a
bound on its work, and says for how many jobs it was made; `muster explain JOB` looks at one job more closely.")]
    Starts(StartsArgs),
    /// Print each change of queues, with its log index, until Ctrl-C
    #[command(after_help = "\
Examples:
  muster queue watch
  muster queue watch vision speech
  muster queue watch -o json | jq '.queues[] | {tenant, pendingJobs}'

What one round of decisions changes comes together. Survives the loss of replicas: goes on exactly behind the
last change that was printed.")]
    Watch {
        /// Tenants; none for all
        tenants: Vec<String>,
    },
}

/// Options of `muster queue list`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster queue list
  muster queue list -o wide
  muster queue list --at 2026-11-22T08:00:00Z

PENDING and ACTIVE are the tenant's own jobs, with the devices that they ask for or hold. IN-USE and QUOTAS count
the tenants below it as well. The smaller SHARE goes first.")]
pub struct ListArgs {
    #[command(flatten)]
    read: ReadArgs,
}

/// Options of `muster queue starts`.
#[derive(Args)]
pub struct StartsArgs {
    /// Only jobs of this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    #[command(flatten)]
    read: ReadArgs,
}

pub async fn run(global: &Global, console: &Console, command: QueueCommand) -> Result<Exit, Failure> {
    match command {
        QueueCommand::List(args) => list(global, console, &args.read).await,
        QueueCommand::Why { tenant, read } => crate::queue_reason::why(global, console, &tenant, &read).await,
        QueueCommand::Starts(args) => starts(global, console, args).await,
        QueueCommand::Watch { tenants } => watch(global, console, tenants).await,
    }
}

async fn list(global: &Global, console: &Console, read: &ReadArgs) -> Result<Exit, Failure> {
    let client = read.client(global).await?;
    let mut request = v1::ListTenantsRequest { page_size: PAGE_SIZE, ..Default::default() };
    let mut queues: Vec<view::Queue> = Vec::new();
    let mut freshness: Option<v1::Freshness> = None;
    loop {
        let page = client.list_tenants(request.clone()).await?;
        freshness = freshness.or(page.freshness);
        queues.extend(page.tenants.into_iter().map(view::Queue::from));
        if page.next_page_token.is_empty() || page.next_page_token == request.page_token {
            break;
        }
        request.page_token = page.next_page_token;
    }
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("QueueList", freshness, Items { items: queues }))?;
        }
        Format::Name => {
            let lines: String = queues.iter().map(|queue| format!("{}\n", queue.tenant)).collect();
            console.bytes(lines.as_bytes())?;
        }
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            console.table(&table(&queues, console.is_wide()))?
        }
    }
    read.tell_age(console, freshness.as_ref());
    Ok(Exit::Ok)
}

/// Waiting jobs, the first to start first; those for which nothing is known come last, the newest first.
async fn starts(global: &Global, console: &Console, args: StartsArgs) -> Result<Exit, Failure> {
    let client = args.read.client(global).await?;
    let filter = v1::JobFilter {
        phases: vec![v1::JobPhase::Pending.into()],
        tenant: args.tenant.unwrap_or_default(),
        ..Default::default()
    };
    let mut request = v1::ListJobsRequest {
        page_size: PAGE_SIZE,
        filter: Some(filter),
        expected_starts: true,
        ..Default::default()
    };
    let (mut jobs, mut freshness, mut forecast) = (Vec::new(), None, None);
    loop {
        let page = client.list_jobs(request.clone()).await?;
        freshness = freshness.or(page.freshness);
        forecast = forecast.or(page.forecast);
        jobs.extend(page.jobs);
        if page.next_page_token.is_empty() || page.next_page_token == request.page_token {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let expected = |job: &v1::Job| {
        let start = job.status.as_ref().and_then(|status| status.expected_start.as_ref());
        start.and_then(|start| unix_ms(start.p50)).unwrap_or(u64::MAX)
    };
    jobs.sort_by_key(expected);
    print_jobs(console, freshness, jobs.into_iter().map(view::Job::from).collect())?;
    if let Some(forecast) = forecast {
        tell_forecast(console, &forecast);
    }
    args.read.tell_age(console, freshness.as_ref());
    Ok(Exit::Ok)
}

async fn watch(global: &Global, console: &Console, tenants: Vec<String>) -> Result<Exit, Failure> {
    let client = global.client().await?;
    let mut watch = client.watch_tenants(v1::WatchTenantsRequest { tenants, ..Default::default() });
    let end = global.end();
    let mut interrupts = Interrupts::listen()?;
    loop {
        match next_until(watch.next(), end, &mut interrupts).await? {
            Next::Item(item) => print(console, &item)?,
            Next::Ended(exit) => return Ok(exit),
        }
    }
}

fn print(console: &Console, item: &QueueItem) -> Result<(), Failure> {
    match console.format {
        Format::Json | Format::Yaml => console.event(&document(item)),
        Format::Name | Format::Table | Format::Wide | Format::Html | Format::Csv => match item {
            QueueItem::Changed { log_index, queues, forgotten } => {
                for queue in queues {
                    let line = line(*log_index, &view::Queue::from(queue.clone()));
                    console.line(if console.format == Format::Name { &queue.tenant } else { &line })?;
                }
                for tenant in forgotten.iter().filter(|_| console.format != Format::Name) {
                    console.line(&format!("#{log_index}  {tenant}  gone"))?;
                }
                Ok(())
            }
            QueueItem::Restarted => {
                crate::job::follow::say_restarted(console);
                Ok(())
            }
            _ => Ok(()),
        },
    }
}

fn document(item: &QueueItem) -> Document<QueueEvent> {
    let event = |r#type| QueueEvent { r#type, queues: Vec::new(), forgotten: Vec::new() };
    let (log_index, content) = match item {
        QueueItem::Changed { log_index, queues, forgotten } => {
            let queues = queues.iter().cloned().map(view::Queue::from).collect();
            (Some(*log_index), QueueEvent { r#type: "changed", queues, forgotten: forgotten.clone() })
        }
        QueueItem::SyncEnd { log_index } => (Some(*log_index), event("syncEnd")),
        QueueItem::Bookmark { log_index } => (Some(*log_index), event("bookmark")),
        QueueItem::Restarted => (None, event("restarted")),
        _ => (None, event("unknown")),
    };
    Document::new("QueueEvent", log_index, content)
}

fn line(log_index: u64, queue: &view::Queue) -> String {
    let (pending, active) = (jobs(queue.pending_jobs), jobs(queue.active_jobs));
    let (asked, held) = (devices(queue.pending_devices_milli), devices(queue.active_devices_milli));
    let quotas = quotas(queue);
    let quotas = if quotas.is_empty() { quotas } else { format!("  quotas {quotas}") };
    let tenant = &queue.tenant;
    format!("#{log_index}  {tenant}  {pending} pending for {asked}  {active} active on {held}{quotas}")
}

fn jobs(count: u64) -> String {
    if count == 1 { "1 job".to_owned() } else { format!("{count} jobs") }
}

fn table(queues: &[view::Queue], wide: bool) -> Grid {
    let mut header = vec!["TENANT"];
    if wide {
        header.extend(["PARENT", "WEIGHT"]);
    }
    header.extend(["PENDING", "ASKED"]);
    if wide {
        header.push("HELD");
    }
    header.extend(["ACTIVE", "DEVICES", "IN-USE", "SHARE", "QUOTAS"]);
    let mut grid = Grid::new(header);
    for queue in queues {
        let mut cells = vec![queue.tenant.clone()];
        if wide {
            cells.push(queue.parent.clone());
            cells.push(milli(queue.weight_milli.into()));
        }
        cells.push(queue.pending_jobs.to_string());
        cells.push(milli(queue.pending_devices_milli));
        if wide {
            cells.push(queue.gated_jobs.to_string());
        }
        cells.push(queue.active_jobs.to_string());
        cells.push(milli(queue.active_devices_milli));
        let in_use = queue.uses.iter().filter(|used| used.used_milli > 0);
        let in_use: Vec<String> =
            in_use.map(|used| format!("{}:{}", used.r#type, milli(used.used_milli))).collect();
        cells.push(in_use.join(","));
        cells.push(share(queue.share_billionths));
        cells.push(quotas(queue));
        grid.row(cells);
    }
    grid
}

fn devices(value: u64) -> String {
    if value == 1_000 { "1 device".to_owned() } else { format!("{} devices", milli(value)) }
}
