//! The agent as a separate program, which `muster agent` becomes where it is installed next to it: the memory that a
//! program's text takes on every host is that of the agent alone. One of another release gives way to that program.

mod agent;
mod process;

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use clap::Parser;

/// Runs the agent of one host: `muster agent`, which uses this program where it finds it.
#[derive(Parser)]
#[command(name = "muster-agent", version = agent::VERSION)]
struct Arguments {
    #[command(flatten)]
    agent: agent::AgentArgs,
}

fn main() -> ExitCode {
    // What its own workers are guarded by where `muster-shim` is not installed: this program again.
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|first| first == "shim") {
        let code = muster_agent::shim_main(words);
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    let other = std::env::var(agent::RELEASE_VARIABLE).ok().filter(|release| release != agent::VERSION);
    if let (Some(release), Some(program)) = (other, std::env::var_os(agent::PROGRAM_VARIABLE)) {
        // It belongs to another release than the program that became it.
        let error = Command::new(program)
            .arg("agent")
            .args(std::env::args_os().skip(1))
            .env_remove(agent::RELEASE_VARIABLE)
            .env(agent::WHOLE_VARIABLE, "1")
            .exec();
        eprintln!(
            "muster-agent: release {release} cannot be gone back to: {error}; this is {}",
            agent::VERSION
        );
    }
    let arguments = Arguments::parse();
    if let Some(confession) = muster_planted::confess() {
        eprintln!("muster: {confession}");
    }
    agent::main(arguments.agent)
}
