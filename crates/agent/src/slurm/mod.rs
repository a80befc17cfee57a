//! A whole Slurm cluster as capacity of the fleet.
//!
//! One agent beside slurmctld stands for all of its nodes: each of them is a node of Muster with a session
//! and a lease of its own, and its GPUs, CPUs and memory are what the scheduler places gangs on. This
//! node's share of a placement becomes one batch job on that very node; the job runs a small
//! [runner](self::runner) which is handed the workers and runs each below a shim, as any agent does. What
//! other users of the cluster hold is reported, and not free.
//!
//! | file | what |
//! |---|---|
//! | `config.rs` | the `[slurm]` table |
//! | `command.rs`, `parse.rs` | Slurm's commands, and what they print |
//! | `backend.rs` | one poll for all, the shares by name |
//! | `share.rs`, `record.rs`, `ends.rs` | one batch job, from the intent to the end |
//! | `executor.rs` | the trait for one node |
//! | `link.rs`, `server.rs`, `runner.rs` | what runs inside the allocation, and how it is spoken to |
//! | `nodes.rs` | the nodes and their sessions |
//!
//! **Invariant:** Slurm is never believed about what runs: a worker runs because a runner was told to
//! launch it, once, under a lease; see [`share`].

mod backend;
mod command;
mod config;
mod ends;
mod executor;
mod link;
mod nodes;
mod output;
mod parse;
mod record;
mod runner;
mod server;
mod share;

pub use config::SlurmConfig;
pub(crate) use runner::main as runner_main;

use crate::config::AgentConfig;
use crate::durable::{read_record, write_record};
use crate::{AgentError, state_dir};
use backend::Backend;
use muster_client::Endpoints;
use muster_transport::{Role, Security, Tls, TlsError};
use std::future::Future;
use std::path::Path;
use std::sync::Arc;

/// Runs the agent of a Slurm cluster until `shutdown`; batch jobs go on as long as their leases do.
pub(crate) async fn run(
    config: AgentConfig,
    slurm: SlurmConfig,
    shutdown: impl Future<Output = ()>,
) -> Result<(), AgentError> {
    config.check_own()?;
    if config.node.is_some() {
        let rule = "an agent is for a host or for a cluster: not beside node".to_owned();
        return Err(crate::ConfigError { key: "slurm".to_owned(), rule }.into());
    }
    let settings = slurm.check(&config.shim_command)?;
    let security = security(&config, settings.name.as_str()).map_err(AgentError::Tls)?;
    let endpoints = Endpoints::parse_with(&config.endpoints, security.clone());
    let endpoints = endpoints.map_err(AgentError::Endpoints)?.spread();
    let state = state_dir::lock(&config.state_dir)?;
    let scope = scope(&config.state_dir)?;
    let listener = tokio::net::TcpListener::bind(slurm.listen).await.map_err(AgentError::Listen)?;
    tracing::info!(cluster = %settings.name, listen = %slurm.listen, scope, "agent of a Slurm cluster started");

    let backend = Backend::new(settings, scope, config.logs.clone(), config.pass_environment.clone());
    let backend = Arc::new(backend);
    let nodes = nodes::Nodes::new(
        Arc::clone(&backend),
        config.state_dir.join("nodes"),
        config.boot_id_path.clone(),
        endpoints,
    );
    let fresh = async {
        match security {
            Security::Tls(tls) => tls.keep_fresh().await,
            Security::Plaintext => std::future::pending().await,
        }
    };
    tokio::select! {
        () = fresh => {}
        () = server::serve(Arc::clone(&backend), listener) => {}
        () = nodes.run() => {}
        () = shutdown => tracing::info!("agent stops; its batch jobs go on"),
    }
    drop(state);
    Ok(())
}

/// The certificates of the configuration; the agent's name is the first part of its nodes' names.
fn security(config: &AgentConfig, name: &str) -> Result<Security, TlsError> {
    let Some(files) = &config.tls else { return Ok(Security::Plaintext) };
    let tls = Tls::load(files.clone())?;
    match tls.name().role {
        Role::Agent(own) if own.as_str() == name => Ok(Security::Tls(tls)),
        _ => {
            let wanted = format!("agent/{name}, as slurm.name in this configuration,");
            Err(TlsError::WrongName { found: Box::new(tls.name()), wanted })
        }
    }
}

/// What tells this agent's batch jobs from another's, made once.
fn scope(root: &Path) -> Result<String, state_dir::StateDirError> {
    let path = root.join("scope");
    let failed = state_dir::StateDirError::Record;
    if let Some(scope) = read_record::<String>(&path).map_err(failed)? {
        return Ok(scope);
    }
    let scope = format!("{:032x}", rand::random::<u128>());
    write_record(&path, &scope).map_err(failed)?;
    Ok(scope)
}
