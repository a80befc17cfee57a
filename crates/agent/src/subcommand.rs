//! The hidden subcommand `muster shim`: every process that an agent, or Slurm on its behalf, starts from this program.

use crate::process::shim;
use crate::{launch, slurm};
use std::ffi::OsString;

/// First argument of the runner inside an allocation of Slurm.
const SLURM: &str = "slurm";

/// The hidden subcommand: `args` are those after it. Returns the exit code. To be called on the main
/// thread, before any runtime or other thread exists.
pub fn shim_main(args: impl IntoIterator<Item = OsString>) -> i32 {
    let args: Vec<OsString> = args.into_iter().collect();
    match args.first().and_then(|first| first.to_str()) {
        Some(SLURM) if args.len() == 1 => slurm::runner_main(),
        Some(launch::LAUNCH) => {
            let words: Option<Vec<&str>> = args[1..].iter().map(|word| word.to_str()).collect();
            words.map_or_else(shim::usage, |words| launch::main(&words))
        }
        _ => shim::guard_main(args),
    }
}
