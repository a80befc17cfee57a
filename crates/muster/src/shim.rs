//! The small program next to `muster` that guards a worker, and becomes it. An agent that does not find it, or finds
//! that of another release, uses `muster shim`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let code = muster_agent::guard_main(std::env::args_os().skip(1));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
