//! The hidden subcommand `muster shim`: every process that an agent, or another scheduler on its behalf, starts from this program.

use crate::process::shim;
use crate::remote::runner;
use crate::{launch, own_program};
use std::ffi::OsString;
use std::path::Path;

/// First argument of the runner inside an allocation of Slurm.
const SLURM: &str = "slurm";
/// First argument of the runner inside a pod of Kubernetes.
const KUBERNETES: &str = "kubernetes";
/// First argument of the process that installs this program for such a runner; the second is the directory.
const INSTALL: &str = "install";

/// The hidden subcommand: `args` are those after it. Returns the exit code. To be called on the main
/// thread, before any runtime or other thread exists.
pub fn shim_main(args: impl IntoIterator<Item = OsString>) -> i32 {
    let args: Vec<OsString> = args.into_iter().collect();
    match args.first().and_then(|first| first.to_str()) {
        Some(SLURM) if args.len() == 1 => runner::main_in_batch_job(),
        Some(KUBERNETES) if args.len() == 1 => runner::main_in_pod(),
        Some(INSTALL) if args.len() == 2 => install(Path::new(&args[1])),
        Some(launch::LAUNCH) => {
            let words: Option<Vec<&str>> = args[1..].iter().map(|word| word.to_str()).collect();
            words.map_or_else(shim::usage, |words| launch::main(&words))
        }
        _ => shim::guard_main(args),
    }
}

fn install(directory: &Path) -> i32 {
    use std::io::Write as _;
    match own_program::install(directory) {
        Ok(()) => 0,
        Err(why) => {
            // Into the output of the container that it is; there is nobody else to tell.
            let _ = writeln!(std::io::stderr().lock(), "muster shim install: {why}");
            i32::from(runner::code::SETUP)
        }
    }
}
