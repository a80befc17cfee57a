//! Manual pages, one for each command, from the definition that the command line is parsed with: a page cannot describe an
//! option that there is not.

use std::path::{Path, PathBuf};

use muster_console::{Console, Exit, Failure};

use crate::Program;

/// Options of `muster man`.
#[derive(clap::Args)]
pub struct ManArgs {
    /// The directory that the pages are written into; it is made where it is missing
    #[arg(long, value_name = "DIRECTORY")]
    dir: PathBuf,
}

/// Writes `muster.1`, and a page for each command that help lists.
pub fn run(program: &Program, console: &Console, args: &ManArgs) -> Result<Exit, Failure> {
    write(program, &args.dir).map_err(|error| {
        Failure::new(Exit::Failed, format!("writing manual pages to {}: {error}", args.dir.display()))
    })?;
    console.progress(&format!("manual pages are in {}", args.dir.display()));
    Ok(Exit::Ok)
}

fn write(program: &Program, dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to((program.commands)(), dir)
}
