//! `muster top`: a live view of the cluster in a terminal.
//!
//! Watches of the client fill a [`model`], and a frame is a function of model, view and time. Only `screen` knows a
//! terminal, and only `feed` a cluster.
//!
//! **Invariant:** what a watch tells is never listed again; the model is bounded.
//! **Invariant:** the terminal is as it was before when the command ends, however it ends.

mod draw;
mod feed;
mod model;
mod once;
mod rows;
mod screen;
mod text;
mod view;

use std::io::IsTerminal as _;

use clap::Args;
use muster_console::{Console, Exit, Failure, Format, Global};

pub use view::{JobOrder, StateFilter, Tab};

use draw::Theme;
use feed::Feeds;
use view::View;

/// Options of `muster top`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster top                                     shows jobs, queues, fleet, replicas and events; ? lists the keys
  muster top --tab fleet                         begins with the fleet
  muster top --tenant vision --state pending --sort queue
  muster top --once                              prints one frame and ends
  muster top --once --tab queues -o json | jq '.items[] | {tenant, pendingJobs}'

The first line states the index of the log that is shown and how old that is, or that no replica answers. When a replica
is lost, the view asks another one. Where the output is no terminal, one frame is printed.")]
pub struct TopArgs {
    /// Print one frame and end
    #[arg(long)]
    once: bool,
    /// Begin with this part
    #[arg(long, value_enum, default_value_t)]
    tab: Tab,
    /// Show only rows of tenants whose names begin with this; of nodes only events where such a tenant's jobs run
    #[arg(long, value_name = "TENANT", default_value = "")]
    tenant: String,
    /// Show only rows with this text in their name or id
    #[arg(long, value_name = "TEXT", default_value = "")]
    name: String,
    /// Show only jobs in this state
    #[arg(long, value_enum, default_value_t)]
    state: StateFilter,
    /// List jobs in this order
    #[arg(long, value_enum, default_value_t)]
    sort: JobOrder,
}

/// Shows the cluster until the user ends it, or prints one frame.
///
/// # Errors
/// When the cluster cannot be found or nothing answers, or the terminal cannot be used.
pub async fn run(global: &Global, console: &Console, args: TopArgs) -> Result<Exit, Failure> {
    if matches!(console.format, Format::Name | Format::Html | Format::Csv) {
        return Err(Failure::usage("muster top prints -o table, json or yaml"));
    }
    let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let is_once = args.once || console.is_structured() || !is_terminal;
    if is_once && !args.once && !console.is_structured() {
        console.progress("the output is no terminal: one frame is printed, as with --once");
    }
    let client = global.client().await?;
    let theme = Theme { has_colour: console.has_colour() };
    let view = View {
        tab: args.tab,
        tenant: args.tenant,
        text: args.name,
        state: args.state,
        order: args.sort,
        ..View::default()
    };
    let feeds = Feeds::start(&client);
    if is_once {
        return once::run(console, feeds, view, theme, global.timeout).await;
    }
    // From here on the screen belongs to the view.
    console.bytes(&[])?;
    screen::run(feeds, view, theme).await
}
