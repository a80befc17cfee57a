//! `muster agent` and the shim below it.

use muster_agent::AgentConfig;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio_util::sync::CancellationToken;

use crate::process::{self, complain};

/// Bytes of a configuration file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Runs the agent of one host.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:\n  \
    muster agent --config /etc/muster/agent.toml\n\n\
    The agent can be restarted at any time: workers go on under their shims, as long as the lease does.")]
pub struct AgentArgs {
    /// Configuration file (TOML); see ops/examples/agent.toml
    #[arg(long, env = "MUSTER_AGENT_CONFIG")]
    pub config: PathBuf,
}

/// Why the agent could not start.
#[derive(Debug, thiserror::Error)]
enum AgentFailure {
    #[error("reading {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path}: {detail}")]
    Parse { path: PathBuf, detail: String },
    #[error("{path}")]
    Run {
        path: PathBuf,
        #[source]
        source: muster_agent::AgentError,
    },
    #[error("finding this program")]
    Program(#[source] std::io::Error),
}

/// What this program calls itself; one that breaks rules on purpose says so wherever versions are shown.
pub const VERSION: &str = if muster_planted::IS_ON {
    concat!(env!("CARGO_PKG_VERSION"), "+BREAKS-RULES-ON-PURPOSE")
} else {
    env!("CARGO_PKG_VERSION")
};

/// Threads of an agent: one that may be held up, and one that is not. A host for training has hundreds of
/// processors, and a thread for each would take memory from those whom the host is for.
const THREADS: usize = 2;
/// In the environment of the agent alone: the release of the program that became it.
pub const RELEASE_VARIABLE: &str = "MUSTER_AGENT_RELEASE";
/// Beside it: that program.
pub const PROGRAM_VARIABLE: &str = "MUSTER_AGENT_PROGRAM";
/// In the environment of `muster agent`: it is to be the agent itself.
pub const WHOLE_VARIABLE: &str = "MUSTER_AGENT_WHOLE";

/// Is the agent until it is told to stop.
pub fn main(args: AgentArgs) -> ExitCode {
    process::log_to_stderr("info");
    process::die_with_parent();
    process::run(Some(THREADS), |shutdown| run(args, shutdown))
}

/// What guards workers, where it is installed beside this program.
const SHIM_PROGRAM: &str = "muster-shim";

fn read(path: &Path) -> Result<AgentConfig, AgentFailure> {
    let failed = |source| AgentFailure::Read { path: path.to_path_buf(), source };
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > FILE_BYTES_MAX {
        let detail = format!("has {size} bytes; a configuration has at most {FILE_BYTES_MAX}");
        return Err(AgentFailure::Parse { path: path.to_path_buf(), detail });
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let parsed: Result<AgentConfig, _> = toml::from_str(&text);
    let mut config = parsed.map_err(|error| AgentFailure::Parse {
        path: path.to_path_buf(),
        detail: error.to_string().trim_end().to_owned(),
    })?;
    if config.shim_command.is_empty() {
        let own = std::env::current_exe().map_err(AgentFailure::Program)?;
        let small = own.with_file_name(SHIM_PROGRAM);
        // What runs on other hosts, as a cluster's runner does, is known there by the name of the whole.
        let whole = std::env::var_os(PROGRAM_VARIABLE).map(PathBuf::from).filter(|program| program.exists());
        let program = whole.unwrap_or(own);
        if config.shim_program.is_none() && small.exists() {
            config.shim_program = Some(small);
        }
        config.shim_command = vec![program.display().to_string(), "shim".to_owned()];
    }
    Ok(config)
}

/// Runs the agent until it is told to stop.
async fn run(args: AgentArgs, shutdown: CancellationToken) -> ExitCode {
    let config = match read(&args.config) {
        Ok(config) => config,
        Err(error) => return complain(&error),
    };
    if let Err(refusal) = muster_planted::admit(&config.state_dir) {
        return complain(&refusal);
    }
    // On the runtime's own threads: whatever wakes it there runs it at once, where the main thread would have to be
    // woken for every message.
    let ran = tokio::spawn(muster_agent::run(config, shutdown.cancelled_owned())).await;
    match ran.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(source) => complain(&AgentFailure::Run { path: args.config, source }),
    }
}
