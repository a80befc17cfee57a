//! The node's side: sessions, fencing, device discovery, executors, launch contracts.
//!
//! One agent runs on every host. It dials any replica, holds a session lease by heartbeats, and runs
//! the workers it is ordered to, each below a shim that stops it when the lease runs out, agent or no
//! agent. See `README.md` for the parts and for what is on disk.
//!
//! **Invariant:** an order is never trusted without a token: it must be newer than everything seen of
//! its job, and confirmed by the leader on the current session.

pub mod cgroup;
pub mod clock;
pub mod config;
pub mod contract;
#[doc(hidden)]
pub mod decoders;
pub mod devices;
pub mod discovery;
pub mod durable;
pub mod executor;
mod fence_log;
pub mod fencing;
mod follow;
mod guards;
pub mod health;
pub mod isolation;
mod kept;
mod launch;
pub mod lease;
pub mod limits;
mod memory;
mod node;
mod notes;
pub mod notice;
pub mod order;
pub mod probe;
pub mod process;
pub mod processes;
mod ready;
pub mod rules;
mod secrets;
mod session;
mod shim;
pub mod slurm;
mod socket;
mod speaker;
pub mod state_dir;
pub mod task;
pub mod transcript;
mod tree;
mod uploads;

pub use config::{
    AcceleratorConfig, AgentConfig, ConfigError, ControlGroups, LogLimits, MemoryLimit, NodeConfig,
};
pub use node::WHOLE_PLACEMENT;
pub use shim::{guard_main, shim_main};

use executor::Executor as _;
use muster_client::Endpoints;
use muster_transport::{Role, Security, Tls, TlsError};
use muster_types::NodeSpec;
use process::{ProcessExecutor, ProcessSettings};
use state_dir::StateDir;
use std::future::Future;
use std::sync::{Arc, Mutex};
use tokio::sync::{mpsc, watch};

/// Why an agent could not start. Once it runs, nothing ends it but its shutdown.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The configuration breaks a rule.
    #[error("read the configuration")]
    Config(#[from] ConfigError),
    /// An endpoint is no address.
    #[error("configuration key endpoints")]
    Endpoints(#[source] muster_client::EndpointsError),
    /// Workers cannot be isolated as they have to be.
    #[error("configuration key workers.isolation: {0}")]
    Isolation(String),
    /// The certificates cannot be used.
    #[error("configuration key tls")]
    Tls(#[source] TlsError),
    /// The address for what runs inside another scheduler's allocations cannot be used.
    #[error("listen for runners")]
    Listen(#[source] std::io::Error),
    /// The state directory is in use or unusable.
    #[error("open the state directory")]
    State(#[from] state_dir::StateDirError),
    /// The fencing tokens cannot be read: without them nothing may be started.
    #[error("read the fencing tokens")]
    Fencing(#[from] fencing::FencingError),
    /// The lease file cannot be made.
    #[error("open the lease file")]
    Lease(#[from] lease::LeaseError),
    /// The workers of an earlier agent cannot be listed.
    #[error("take over running workers")]
    Adopt(#[source] executor::ExecutorError),
}

/// Runs the agent until `shutdown`; the workers go on under their shims, as long as the lease does.
///
/// Needs a tokio runtime with several threads, and time and IO enabled.
///
/// # Errors
/// When it cannot start.
pub async fn run(mut config: AgentConfig, shutdown: impl Future<Output = ()>) -> Result<(), AgentError> {
    if let Some(slurm) = config.slurm.take() {
        return slurm::run(config, slurm, shutdown).await;
    }
    let health = begin_health(&config).await;
    let listed = health.inventory();
    config.check_own()?;
    if let Some(divided) =
        listed.as_ref().map(health::Inventory::divided).filter(|divided| !divided.is_empty())
    {
        tracing::error!(
            ?divided,
            "devices are divided into instances (MIG), which are not supported: this host offers no accelerators"
        );
    }
    let root = config.host_root.clone();
    let devices = config.check_with(&root, listed.as_ref())?.device_count();
    let isolating = isolate(&config, devices).await.map_err(AgentError::Isolation)?;
    if let Some(node) = &mut config.node {
        let taints = isolating.taints().filter(|taint| !node.taints.contains(taint)).collect::<Vec<_>>();
        node.taints.extend(taints);
        // What is so goes before what an operator says.
        node.labels.extend(isolating.facts().map(|(label, fact)| (label.to_owned(), fact.to_owned())));
    }
    let spec = config.check_with(&root, listed.as_ref())?;
    let security = security(&config, &spec).map_err(AgentError::Tls)?;
    let endpoints = Endpoints::parse_with(&config.endpoints, security.clone());
    let endpoints = endpoints.map_err(AgentError::Endpoints)?.spread();
    let state = Arc::new(StateDir::open(&config.state_dir, &config.boot_id_path)?);
    let fences = fencing::Fences::open(&state.jobs(), limits::FENCED_JOBS_MAX)?;
    let notes = match socket::open(&state.socket()) {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::warn!(path = %state.socket().display(), %error, "no notes are taken of workers");
            None
        }
    };
    state.open_to_workers(isolating.has_users())?;
    let runtime = config.runtime_dir.clone().or_else(state_dir::usual_runtime);
    let lease_path = state.lease_on_memory(runtime.as_deref());
    let (executor, told) = ProcessExecutor::new(ProcessSettings {
        tasks: state.tasks(),
        lease: lease_path.clone(),
        holder: state.holder(),
        shim_command: config.shim_command.clone(),
        guard_command: guard_command(&config).await,
        ready_max: config.ready_workers.unwrap_or_else(|| limits::ready_workers(spec.device_count())),
        node: spec.name.to_string(),
        accelerator: spec.accelerators.as_ref().map(|a| a.kind.to_string()).unwrap_or_default(),
        environment: config.base_environment(),
        secrets_dir: config.secrets_dir.clone(),
        logs: config.logs.clone(),
        control_groups: config.control_groups.clone(),
        memory_limit: config.memory_limit,
        agent_socket: notes.as_ref().map(|_| state.socket()),
        isolating: Arc::new(isolating),
        shown: vec![state.root().to_owned()],
    });
    let adopted = executor.adopt().await.map_err(AgentError::Adopt)?;
    let epoch_floor = adopted.iter().map(|found| found.epoch).max().unwrap_or(0);
    let lease = lease::Lease::open(&lease_path, state.holder().0, epoch_floor)?;
    let lease = Arc::new(Mutex::new(lease));
    tracing::info!(
        node = %spec.name,
        holder = ?state.holder(),
        accelerators = spec.accelerators.as_ref().map(ToString::to_string),
        workers = adopted.len(),
        "agent started"
    );

    let (events, incoming) = mpsc::channel(limits::ORDERS_QUEUED_MAX);
    let node = node::Node::new(Arc::new(executor), fences, Arc::clone(&lease), spec.clone(), adopted);
    let taking_notes = {
        let tasks = state.tasks();
        let events = events.clone();
        async move {
            match notes {
                Some(listener) => socket::serve(listener, events, tasks).await,
                None => std::future::pending().await,
            }
        }
    };
    let node = node.probing_at(config.probe_listen);
    let (line, lines) = watch::channel(None);
    let (of_health, to_health) = mpsc::channel(limits::HEALTH_QUEUED_MAX);
    let health = health.run(Arc::clone(&state), &config.boot_id_path, lines, to_health);
    let speaking = session::Speaking { line, of_health };
    let sessions = session::Sessions { endpoints, state, spec, lease, events, speaking };
    let fresh = async {
        match security {
            Security::Tls(tls) => tls.keep_fresh().await,
            Security::Plaintext => std::future::pending().await,
        }
    };
    tokio::select! {
        () = fresh => {}
        () = node.run(incoming, told) => {}
        () = sessions.run() => {}
        () = taking_notes => {}
        () = health => {}
        () = shutdown => tracing::info!("agent stops; its workers go on"),
    }
    Ok(())
}

/// What keeps workers from this host, tried out.
async fn isolate(config: &AgentConfig, devices: u16) -> Result<isolation::Isolating, String> {
    let (workers, before) = (config.workers.clone(), config.shim_command.clone());
    let (root, groups) = (config.host_root.clone(), config.control_groups.clone());
    process::blocking(move || {
        let isolating = isolation::Isolating::find(&workers, |namespaces| {
            shim::try_out(before.get(1..).unwrap_or_default(), namespaces)
        })?;
        let files = devices::DeviceFiles::find(&root, devices, &workers.devices);
        Ok(isolating.with_devices(files, || cgroup::try_filter(&cgroup::parent(&groups)?)))
    })
    .await
}

/// An error and what is behind it, as one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

/// What guards workers: the small program where it is one of this release, else this one.
async fn guard_command(config: &AgentConfig) -> Vec<String> {
    let Some(program) = &config.shim_program else { return config.shim_command.clone() };
    match ready::speaks(program).await {
        Ok(()) => vec![program.display().to_string()],
        Err(why) => {
            tracing::warn!(program = %program.display(), why, "workers are guarded by this program instead");
            config.shim_command.clone()
        }
    }
}

/// Off the runtime: the first call of a driver's library may take seconds.
async fn begin_health(config: &AgentConfig) -> health::Health {
    let settings = config.health.clone();
    let begun = tokio::task::spawn_blocking(move || health::Health::begin(&settings)).await;
    // It does not panic; without it nothing is watched.
    begun.unwrap_or_else(|_| health::Health::begin(&health::HealthConfig::off()))
}

/// The certificates of the configuration; they have to be this node's, or every session would be refused.
fn security(config: &AgentConfig, spec: &NodeSpec) -> Result<Security, TlsError> {
    let Some(files) = &config.tls else { return Ok(Security::Plaintext) };
    let tls = Tls::load(files.clone())?;
    match tls.name().role {
        Role::Agent(node) if node.as_str() == spec.name.as_str() => Ok(Security::Tls(tls)),
        _ => {
            let wanted = format!("agent/{}, the node of this configuration,", spec.name);
            Err(TlsError::WrongName { found: Box::new(tls.name()), wanted })
        }
    }
}
