//! Drills over real processes.

use std::process::ExitCode;

fn main() -> ExitCode {
    muster_chaos::cli::main()
}
