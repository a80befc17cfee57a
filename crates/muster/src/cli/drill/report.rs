//! `muster drill report`.

use clap::Args;
use muster_client::Client;

use super::super::Global;
use super::super::console::Console;
use super::super::failure::{Exit, Failure};
use super::FolderArgs;
use super::record::{Folder, Record};

/// Options of `muster drill report`.
#[derive(Args)]
pub struct ReportArgs {
    /// The drill [default: the newest]
    #[arg(value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    folder: FolderArgs,
}

pub async fn run(_global: &Global, console: &Console, args: ReportArgs) -> Result<Exit, Failure> {
    let folder = Folder::find(args.folder.dir)?;
    let record = folder.load(args.id.as_deref())?;
    console.line(&record.end_detail)?;
    Ok(Exit::Ok)
}

/// What is said when a drill is over; whether everything was as it should be.
pub async fn after_run(
    _client: &Client,
    _console: &Console,
    _folder: &Folder,
    _record: &Record,
) -> Result<bool, Failure> {
    Ok(true)
}
