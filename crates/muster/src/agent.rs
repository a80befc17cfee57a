//! `muster agent` and the shim below it.

use muster_agent::{AgentConfig, WrittenKeys};
use muster_types::config_value::plain_mistake;
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

/// What this program calls itself; one that breaks rules on purpose states it wherever versions are shown.
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
/// Next to it: that program.
pub const PROGRAM_VARIABLE: &str = "MUSTER_AGENT_PROGRAM";
/// In the environment of `muster agent`: it is to be the agent itself.
pub const WHOLE_VARIABLE: &str = "MUSTER_AGENT_WHOLE";

/// Is the agent until it is told to stop.
pub fn main(args: AgentArgs) -> ExitCode {
    let format = match process::log_format(Some(&args.config)) {
        Ok(format) => format,
        Err(error) => return process::complain(&error),
    };
    process::log_to_stderr("info", format);
    process::die_with_parent();
    process::run(Some(THREADS), |shutdown| run(args, shutdown))
}

/// What guards workers, where it is installed next to this program.
const SHIM_PROGRAM: &str = "muster-shim";

fn read(path: &Path) -> Result<AgentConfig, AgentFailure> {
    let failed = |source| AgentFailure::Read { path: path.to_path_buf(), source };
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > FILE_BYTES_MAX {
        let detail = format!("has {size} bytes; a configuration has at most {FILE_BYTES_MAX}");
        return Err(AgentFailure::Parse { path: path.to_path_buf(), detail });
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let refused = |detail: String| AgentFailure::Parse { path: path.to_path_buf(), detail };
    // What is no TOML is reported below.
    let written: WrittenKeys = toml::from_str(&text).unwrap_or_default();
    AgentConfig::refuse_former(&written).map_err(|error| refused(error.to_string()))?;
    let parsed: Result<AgentConfig, _> = toml::from_str(&text);
    let mut config = parsed.map_err(|error| refused(plain_mistake(&error.to_string())))?;
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
    if let Some(node) = &config.node {
        process::log_as_node(&node.name);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_the_unit_in_it_is_refused_with_the_present_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("agent.toml");
        let said = |more: &str| {
            let text =
                format!("state_dir = \"/var/lib/muster-agent\"\nendpoints = [\"127.0.0.1:7400\"]\n{more}");
            std::fs::write(&path, text).expect("writing");
            read(&path).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(said("health = { hang = \"30s\" }\n"), Ok(()));
        for (more, parts) in [
            ("[health]\nhang_ms = 30000\n", ["health.hang_ms: is now `hang`", "hang = \"30s\""]),
            ("health.hang_ms = 30000\n", ["health.hang_ms: is now `hang`", "a duration like 90s"]),
            (
                "workers = { rlimits = { core_bytes = 0 } }\n",
                ["workers.rlimits.core_bytes: is now `core_size`", "core_size = \"0\""],
            ),
            ("[health]\nhang = 30000\n", ["hang = 30000", "expected a duration like 90s"]),
            ("[health]\nhangs = \"30s\"\n", ["unknown field `hangs`", "`hang`"]),
        ] {
            let refusal = said(more).expect_err("it is refused");
            assert!(refusal.contains("agent.toml"), "{refusal}");
            assert!(parts.iter().all(|part| refusal.contains(part)), "{more}: {refusal}");
        }
    }
}
