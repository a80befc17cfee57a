//! One binary: the servers, the agents, and the command line. Config and assembly only.
//!
//! This file mounts the subcommands; `muster-cli` documents what those of a client promise to scripts (output shapes, exit
//! codes).

mod agent;
#[cfg(test)]
mod documents;
mod process;
mod restore;
mod usage;

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

pub(crate) use agent::VERSION;

/// Muster: a scheduler cluster for fleets of accelerators that span regions.
#[derive(Parser)]
#[command(name = "muster", version = VERSION, propagate_version = true, after_help = muster_cli::ROOT_AFTER_HELP)]
pub struct Arguments {
    #[command(flatten)]
    global: muster_console::Global,
    #[command(subcommand)]
    command: Command,
}

/// Commands that run a part of the cluster get separate variants in addition to the client's.
#[derive(Subcommand)]
#[expect(clippy::large_enum_variant, reason = "a process has one of them")]
enum Command {
    #[command(flatten)]
    Client(muster_cli::ClientCommand),
    Server(muster_server::ServerArgs),
    Agent(agent::AgentArgs),
    Quickstart(muster_local_cluster::quickstart::QuickstartArgs),
    Dev(muster_local_cluster::dev::DevArgs),
    /// Workers to try the scheduler with
    #[command(subcommand)]
    Example(ExampleCommand),
    /// Runs one worker below an agent
    #[command(hide = true, disable_help_flag = true)]
    Shim {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// A word that is no command
    #[command(external_subcommand)]
    Unknown(Vec<String>),
}

#[derive(Subcommand)]
enum ExampleCommand {
    Train(muster_example::TrainArgs),
    Work(muster_example::WorkArgs),
}

/// What the commands need of this program.
const PROGRAM: muster_cli::Program = muster_cli::Program {
    version: VERSION,
    commands: Arguments::command,
    restore: |console, args| Box::pin(restore::restore(console, args)),
};

/// The first word of a shim's command line.
const SHIM: &str = "shim";

fn main() -> ExitCode {
    // Two of these start for every worker, and one whose job has just been submitted waits for them: the
    // description of all commands, which parsing begins with, would cost more than everything they do.
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|first| first == SHIM) {
        return shim(words);
    }
    if std::env::var_os(muster_cli::complete::VARIABLE).is_some() {
        clap_complete::CompleteEnv::with_factory(Arguments::command)
            .var(muster_cli::complete::VARIABLE)
            .complete();
    }
    if std::env::args_os().len() <= 1 {
        return if Arguments::command().print_help().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage::refused(&error),
    };
    if let Some(confession) = muster_planted::confess() {
        let _ = writeln!(std::io::stderr().lock(), "muster: {confession}");
    }
    match arguments.command {
        Command::Client(command) => muster_cli::run(&PROGRAM, &arguments.global, command),
        Command::Unknown(words) => muster_cli::run_unknown(&PROGRAM, &arguments.global, &words),
        Command::Server(args) => {
            // The protocol's own steps are for those who look for a fault in it; that an answer is not to be had any
            // more because this replica stops is no fault, and why it stops the replica says itself.
            let format = match process::log_format(args.config()) {
                Ok(format) => format,
                Err(error) => return process::complain(&error),
            };
            process::log_to_stderr("info,openraft=warn,openraft::raft::stream_append=off", format);
            process::die_with_parent();
            process::run(None, |shutdown| async {
                match muster_server::run(args, VERSION, shutdown).await {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(error) => process::complain(&error),
                }
            })
        }
        Command::Agent(args) => {
            become_agent_alone(&args);
            agent::main(args)
        }
        Command::Quickstart(args) => {
            process::log_to_stderr("error", muster_types::LogFormat::Text);
            process::run(None, |shutdown| async {
                match muster_local_cluster::quickstart::run(args, shutdown).await {
                    Ok(code) => code,
                    Err(error) => process::complain(error.as_ref()),
                }
            })
        }
        Command::Dev(args) => {
            process::log_to_stderr("error", muster_types::LogFormat::Text);
            process::run(None, |shutdown| async {
                match muster_local_cluster::dev::run(args, shutdown).await {
                    Ok(code) => code,
                    Err(error) => process::complain(error.as_ref()),
                }
            })
        }
        Command::Example(ExampleCommand::Train(args)) => muster_example::train(args).into(),
        Command::Example(ExampleCommand::Work(args)) => muster_example::work(args).into(),
        Command::Shim { arguments } => shim(arguments),
    }
}

/// Becomes the agent without the rest, where that is installed next to this program; returns where it is not.
fn become_agent_alone(args: &agent::AgentArgs) {
    let Ok(program) = std::env::current_exe() else { return };
    let alone = program.with_file_name("muster-agent");
    if std::env::var_os(agent::WHOLE_VARIABLE).is_some() || !alone.exists() {
        return;
    }
    let mut command = std::process::Command::new(&alone);
    command.env(agent::RELEASE_VARIABLE, VERSION).env(agent::PROGRAM_VARIABLE, &program);
    let error = command.arg("--config").arg(&args.config).exec();
    let _ = writeln!(
        std::io::stderr().lock(),
        "muster: {} cannot be run, going on without it: {error}",
        alone.display()
    );
}

/// Guards one worker, or becomes it.
fn shim(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> ExitCode {
    let code = muster_agent::shim_main(arguments);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
