//! `muster debug …`: what somebody who looks for a fault needs, in one file.

mod package;
mod parts;
mod redacted;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use muster_console::{Console, Document, Exit, Failure, Global, Grid, Items, WebArgs};
use serde::Serialize;

use crate::Program;
use crate::job_files::now_ms;

/// Commands for those who look for a fault.
#[derive(Subcommand)]
pub enum DebugCommand {
    /// Collect what every replica that answers says into one file, without anything private
    Bundle(BundleArgs),
}

/// Options of `muster debug bundle`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster debug bundle --list                     what would be collected; asks nothing
  muster debug bundle                            into muster-debug-TIME.tar.gz
  muster debug bundle --out fault.tar.gz --decisions 1000
  muster debug bundle --out fault.tar.gz --web replica-1:7601,replica-2:7601     with /metrics of these
  tar -xzOf fault.tar.gz muster-debug/manifest.json | jq '.parts[] | select(.error)'

Left out always: names, labels, annotations, commands, environments, scripts, directories and messages of jobs; labels,
taints and addresses of nodes; paths in addresses of receivers of notifications; certificates and keys. What could not be
collected is listed with the reason, and the rest is written all the same. A part that is too large is cut between two
rows; its last row and the manifest state it (the first row of decisions.jsonl, where the newest are kept). A file that
exists is not touched, and only its owner may read it.")]
pub struct BundleArgs {
    /// The file; it must not exist [default: muster-debug-TIME.tar.gz]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Only list what would be collected
    #[arg(long)]
    list: bool,
    /// How many of the newest decisions
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    decisions: u32,
    /// How long all of it may take; what is missing then is listed as missing
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = muster_console::timeout)]
    deadline: Duration,
    #[command(flatten)]
    web: WebArgs,
}

/// A part of a bundle that there is to collect.
#[derive(Serialize)]
struct Planned {
    path: String,
    about: &'static str,
}

/// Content of `DebugBundle`: what was written.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    file: String,
    bytes: u64,
    #[serde(flatten)]
    manifest: package::Manifest,
}

pub async fn run(
    program: &Program,
    global: &Global,
    console: &Console,
    command: DebugCommand,
) -> Result<Exit, Failure> {
    let DebugCommand::Bundle(args) = command;
    if args.list {
        return list(console);
    }
    let out = args.out.unwrap_or_else(default_name);
    if out.symlink_metadata().is_ok() {
        let text = format!("{} exists, and a file that exists is not touched", out.display());
        return Err(Failure::new(Exit::Conflict, text).with_next("name another one with --out"));
    }
    let web = global.web(&args.web)?;
    let client = global.client().await?;
    let collector = parts::Collector::new(client, web, args.decisions, args.deadline);
    let collected = collector.collect(program.version).await;
    let (bytes, manifest) = package::pack(collected, program.version, now_ms())?;
    package::write(&out, &bytes)?;
    show(console, &Written { file: out.display().to_string(), bytes: bytes.len() as u64, manifest })
}

/// A name with the time in it.
fn default_name() -> PathBuf {
    let time = muster_console::time(now_ms()).unwrap_or_default();
    let time: String =
        time.split('.').next().unwrap_or_default().chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    PathBuf::from(format!("muster-debug-{time}.tar.gz"))
}

fn list(console: &Console) -> Result<Exit, Failure> {
    let planned: Vec<Planned> =
        parts::PLAN.iter().map(|(path, about)| Planned { path: (*path).to_owned(), about }).collect();
    if console.is_structured() {
        console.object(&Document::new("DebugBundlePlan", None::<u64>, Items { items: planned }))?;
        return Ok(Exit::Ok);
    }
    let mut grid = Grid::new(vec!["PART", "WHAT IT HOLDS"]);
    for part in planned {
        grid.row(vec![part.path, part.about.to_owned()]);
    }
    console.table(&grid)?;
    Ok(Exit::Ok)
}

fn show(console: &Console, written: &Written) -> Result<Exit, Failure> {
    if console.is_structured() {
        console.object(&Document::new("DebugBundle", None::<u64>, written))?;
    } else {
        console.line(&written.file)?;
        let parts = &written.manifest.parts;
        let failed: Vec<_> = parts.iter().filter(|part| part.error.is_some()).collect();
        for part in &failed {
            let why = part.error.as_deref().unwrap_or_default();
            console.progress(&format!("missing: {}: {}", part.path, muster_console::one_line(why)));
        }
        for part in parts {
            if let Some(left_out) = &part.left_out {
                console.progress(&format!("cut: {}: {left_out}", part.path));
            }
        }
        console.progress(&format!(
            "{} parts, {} missing, {} bytes; read it before you pass it on: names of nodes, tenants and regions are in it",
            parts.len(),
            failed.len(),
            written.bytes
        ));
    }
    Ok(Exit::Ok)
}
