//! The node's side: sessions, fencing, device discovery, executors, launch contracts.
//!
//! One agent runs on every host. It dials any replica, holds a session lease by heartbeats, and runs
//! the workers it is ordered to, each below a shim that stops it when the lease runs out, agent or no
//! agent. See `README.md` for the parts and for what is on disk.
//!
//! **Invariant:** an order is never trusted without a token: it must be newer than everything seen of
//! its job, and confirmed by the leader on the current session.

mod chain;
pub mod clock;
pub mod config;
pub mod contract;
#[doc(hidden)]
pub mod decoders;
pub mod discovery;
mod disk;
mod error;
pub mod executor;
mod former_keys;
pub mod health;
pub mod kubernetes;
mod launch;
mod launches;
pub mod limits;
mod monitoring;
mod node_loop;
mod offload;
mod own_program;
pub mod probe;
pub mod process;
mod relays;
mod remote;
pub mod rules;
mod session;
mod settings;
pub mod slurm;
mod subcommand;
mod temporary;
mod traces;
mod turns;
mod uploads;
mod wire;

pub use config::{AcceleratorConfig, AgentConfig, NodeConfig};
pub use disk::{durable, fencing, lease, state_dir};
pub use error::AgentError;
pub use muster_types::former_key::WrittenKeys;
pub use process::shim::guard_main;
pub use process::{isolation, task, transcript};
pub use remote::files::SecretsAndFiles;
pub use rules::WHOLE_PLACEMENT;
pub use settings::{ConfigError, ControlGroups, LogLimits, MemoryLimit};
pub use subcommand::shim_main;

use executor::Executor as _;
use muster_client::Endpoints;
use muster_transport::{Role, Security, Tls, TlsError};
use muster_types::NodeSpec;
use parking_lot::Mutex;
use process::{ProcessExecutor, ProcessSettings};
use state_dir::StateDir;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

/// Runs the agent until `shutdown`; the workers go on under their shims, as long as the lease does.
///
/// Needs a tokio runtime with several threads, and time and IO enabled.
///
/// # Errors
/// When it cannot start.
pub async fn run(mut config: AgentConfig, shutdown: impl Future<Output = ()>) -> Result<(), AgentError> {
    if !process::priority::raise() {
        tracing::info!("this agent may not raise its priority, so workers have a lower one");
    }
    if config.slurm.is_some() || config.kubernetes.is_some() {
        return run_for_cluster(config, shutdown).await;
    }
    let health = begin_health(&config).await;
    let listed = health.inventory();
    config.check_own()?;
    report_divided(listed.as_ref());
    let root = config.host_root.clone();
    let found = config.check_with(&root, listed.as_ref())?.accelerators.clone();
    let isolating = isolate(&config, found.as_ref()).await.map_err(AgentError::Isolation)?;
    let runtime = process::runtime::find(&config.images, isolating.namespaces(), &config.state_dir).await;
    if let Some(node) = &mut config.node {
        node.accelerators = AcceleratorConfig::of(found.as_ref());
        state_facts(node, &isolating, runtime.as_ref(), config.files.fact());
    }
    let spec = config.check_with(&root, listed.as_ref())?;
    traces::begin(&config.traces, spec.name.as_str());
    let security = security(&config, &Expected::Node(&spec)).map_err(AgentError::Tls)?;
    let endpoints = Endpoints::parse_with(&config.endpoints, security.clone());
    let endpoints = endpoints.map_err(AgentError::Endpoints)?.spread();
    let pages = listen_http(&config).await?;
    let monitor = monitoring::AgentMonitor::new(config.state_dir.clone(), security.clone());
    let state = open_state(&config)?;
    let fences = fencing::Fences::open(&state.jobs(), limits::FENCED_JOBS_MAX)?;
    let notes = match process::socket::open(&state.socket()) {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::warn!(path = %state.socket().display(), %error, "the socket for workers cannot be opened: checkpoints and steps are not reported");
            None
        }
    };
    state.open_to_workers(isolating.has_users())?;
    let (images, reports) = match runtime {
        Some(runtime) => Some(open_images(&config, &state, runtime, found.as_ref()).await?).unzip(),
        None => (None, None),
    };
    let host_commands = open_host_commands(&config, &state, &spec)?;
    let in_memory = config.runtime_dir.clone().or_else(state_dir::usual_runtime);
    let lease_path = state.lease_on_memory(in_memory.as_deref());
    let parts = ExecutorParts {
        lease: lease_path.clone(),
        guard_command: guard_command(&config).await,
        metrics: monitor.metrics().clone(),
        agent_socket: notes.as_ref().map(|_| state.socket()),
        isolating: Arc::new(isolating),
        images: images.clone(),
        host_commands: host_commands.clone(),
    };
    let (executor, told) = ProcessExecutor::new(executor_settings(&config, &state, &spec, parts));
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
    let watched = monitor.node(&spec);
    let kept = executor.kept_artifacts();
    let node = node_loop::NodeLoop::new(
        Arc::new(executor),
        fences,
        Arc::clone(&lease),
        spec.clone(),
        adopted,
        watched.clone(),
    );
    let taking_notes = {
        let tasks = state.tasks();
        let events = events.clone();
        async move {
            match notes {
                Some(listener) => process::socket::serve(listener, events, tasks).await,
                None => std::future::pending().await,
            }
        }
    };
    let node = node.probing_at(config.probe_listen);
    let (line, lines) = watch::channel(None);
    let (of_health, to_health) = mpsc::channel(limits::HEALTH_QUEUED_MAX);
    let of_commands = move || host_commands.as_ref().and_then(|commands| commands.finding());
    let boot = config.boot_id_path.as_path();
    let health = health.run(Arc::clone(&state), boot, watched.clone(), lines, to_health, of_commands);
    let speaking = session::HealthLink { line, of_health };
    let (image_link, image_lines) = process::runtime::ImageLink::new();
    let imaging = process::runtime::serve(images.zip(reports), image_lines);
    let sessions = session::Sessions {
        endpoints,
        state,
        spec,
        lease,
        events,
        speaking,
        images: Some(image_link),
        monitor: watched,
        kept,
    };
    tokio::select! {
        () = keep_fresh(security) => {}
        () = node.run(incoming, told) => {}
        () = sessions.run() => {}
        () = taking_notes => {}
        () = health => {}
        () = imaging => {}
        () = monitor.serve(pages) => {}
        () = shutdown => tracing::info!("agent stops; its workers go on"),
    }
    traces::end().await;
    Ok(())
}

/// Opens the state directory, and has removed what workers that the last boot has ended left in other places.
fn open_state(config: &AgentConfig) -> Result<Arc<StateDir>, state_dir::StateDirError> {
    let state = StateDir::open(&config.state_dir, &config.boot_id_path)?;
    if let Some(tasks) = state.ended_by_boot() {
        process::remove_temporary_below(tasks.to_owned());
    }
    Ok(Arc::new(state))
}

/// What the executor of a host has in addition to the configuration.
struct ExecutorParts {
    lease: PathBuf,
    guard_command: Vec<String>,
    metrics: muster_metrics::AgentMetrics,
    agent_socket: Option<PathBuf>,
    isolating: Arc<process::isolation::Isolating>,
    images: Option<Arc<process::runtime::Images>>,
    host_commands: Option<Arc<process::host_commands::HostCommands>>,
}

fn executor_settings(
    config: &AgentConfig,
    state: &StateDir,
    spec: &NodeSpec,
    parts: ExecutorParts,
) -> ProcessSettings {
    let ExecutorParts { lease, guard_command, metrics, agent_socket, isolating, images, host_commands } =
        parts;
    ProcessSettings {
        tasks: state.tasks(),
        lease,
        holder: state.holder(),
        shim_command: config.shim_command.clone(),
        guard_command,
        ready_max: config.ready_workers.unwrap_or_else(|| limits::ready_workers(spec.device_count())),
        node: spec.name.to_string(),
        accelerator: spec.accelerators.as_ref().map(|a| a.kind.to_string()).unwrap_or_default(),
        environment: config.base_environment(),
        secrets_dir: config.secrets_dir.clone(),
        scratch_dir: config.scratch_dir.clone(),
        logs: config.logs.clone(),
        control_groups: config.control_groups.clone(),
        memory_limit: config.memory_limit,
        metrics,
        agent_socket,
        isolating,
        shown: config.scratch_dir.iter().cloned().chain([state.root().to_owned()]).collect(),
        images,
        files: process::work_files::WorkFiles::of(&config.files).map(Arc::new),
        host_commands,
        is_in_job: false,
    }
}

/// Devices that are divided into instances are none that are offered.
fn report_divided(listed: Option<&health::Inventory>) {
    if let Some(divided) = listed.map(health::Inventory::divided).filter(|divided| !divided.is_empty()) {
        tracing::error!(
            ?divided,
            "devices are divided into instances (MIG), which are not supported: this host offers no accelerators"
        );
    }
}

/// What is so goes before what an operator says of the node.
fn state_facts(
    node: &mut NodeConfig,
    isolating: &process::isolation::Isolating,
    runtime: Option<&process::runtime::FoundRuntime>,
    of_files: Option<(String, String)>,
) {
    let taints = isolating.taints().filter(|taint| !node.taints.contains(taint)).collect::<Vec<_>>();
    node.taints.extend(taints);
    node.labels.extend(isolating.facts().map(|(label, fact)| (label.to_owned(), fact.to_owned())));
    node.labels.extend(isolating.binding_fact());
    for feature in muster_types::worker_features::WorkerFeature::ALL {
        node.labels.remove(feature.label());
    }
    node.labels.extend(isolating.lacking_facts());
    node.labels.remove(muster_types::container::VERSION_LABEL);
    node.labels.extend(process::runtime::facts(runtime));
    node.labels.remove(muster_types::blob::STORE_LABEL);
    node.labels.extend(of_files);
}

/// What keeps workers from this host, tried out.
async fn isolate(
    config: &AgentConfig,
    accelerators: Option<&muster_types::Accelerators>,
) -> Result<process::isolation::Isolating, String> {
    let family = accelerators.map_or(contract::Family::Other, |found| contract::family(found.kind.as_str()));
    let count = accelerators.map_or(0, |found| found.count);
    let (workers, before) = (config.workers.clone(), config.shim_command.clone());
    let (root, groups) = (config.host_root.clone(), config.control_groups.clone());
    offload::blocking(move || {
        let isolating = process::isolation::Isolating::find(&workers, |namespaces| {
            process::shim::try_out(before.get(1..).unwrap_or_default(), namespaces)
        })?;
        let files = process::devices::DeviceFiles::find(&root, family, count, &workers.devices);
        let cores = process::cores::HostCores::find(&root, family, count);
        let isolating = isolating.with_cores(cores);
        Ok(isolating.with_devices(files, || process::cgroup::try_filter(&process::cgroup::parent(&groups)?)))
    })
    .await
}

/// Off the runtime: what an earlier agent left unfinished there is removed.
async fn open_images(
    config: &AgentConfig,
    state: &StateDir,
    runtime: process::runtime::FoundRuntime,
    accelerators: Option<&muster_types::Accelerators>,
) -> Result<(Arc<process::runtime::Images>, process::runtime::ImageReports), AgentError> {
    let (images, usual) = (config.images.clone(), state.root().join("images"));
    let (secrets_dir, root) = (config.secrets_dir.clone(), config.host_root.clone());
    let family = accelerators.map(|found| contract::family(found.kind.as_str()));
    let opened = offload::blocking(move || {
        let devices = family.and_then(|family| process::cdi::DeviceSpecification::find(&root, family));
        let opened = process::runtime::Images::open(&images, usual, runtime, secrets_dir);
        opened.map(|(images, reports)| (images.with_devices(devices), reports))
    });
    let (images, reports) = opened.await.map_err(AgentError::Images)?;
    Ok((Arc::new(images), reports))
}

/// What the operator has run around workers.
fn open_host_commands(
    config: &AgentConfig,
    state: &StateDir,
    spec: &NodeSpec,
) -> Result<Option<Arc<process::host_commands::HostCommands>>, AgentError> {
    let opened = process::host_commands::HostCommands::open(
        (&config.prolog, &config.job_prolog),
        (&config.epilog, &config.job_epilog),
        state.epilogs(),
        spec.name.to_string(),
        config.base_environment(),
        state.holder(),
    );
    opened.map(|commands| commands.map(Arc::new)).map_err(AgentError::Epilogs)
}

/// What guards workers: the small program where it is one of this release, else this one.
async fn guard_command(config: &AgentConfig) -> Vec<String> {
    let Some(program) = &config.shim_program else { return config.shim_command.clone() };
    match process::speaks(program).await {
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

/// Runs the agent of another scheduler's cluster until `shutdown`.
async fn run_for_cluster(config: AgentConfig, shutdown: impl Future<Output = ()>) -> Result<(), AgentError> {
    config.check_own()?;
    config.check_alone()?;
    for (key, command) in config.host_commands() {
        if command.is_set() {
            let rule = "is for the agent of a host: the scheduler of a cluster has its own".to_owned();
            return Err(ConfigError { key: key.to_owned(), rule }.into());
        }
    }
    let slurm = config.slurm.as_ref().and_then(|slurm| slurm.violation(&config.shim_command));
    let kubernetes = config.kubernetes.as_ref().and_then(kubernetes::KubernetesConfig::violation);
    if let Some(violation) = slurm.or(kubernetes) {
        return Err(violation.into());
    }
    let (table, name) = match (&config.slurm, &config.kubernetes) {
        (Some(slurm), _) => ("slurm", slurm.name.as_str()),
        (None, Some(kubernetes)) => ("kubernetes", kubernetes.name.as_str()),
        (None, None) => return Ok(()),
    };
    traces::begin(&config.traces, name);
    let security = security(&config, &Expected::Group { table, name }).map_err(AgentError::Tls)?;
    let endpoints = Endpoints::parse_with(&config.endpoints, security.clone());
    let endpoints = endpoints.map_err(AgentError::Endpoints)?.spread();
    let pages = listen_http(&config).await?;
    let monitor = monitoring::AgentMonitor::new(config.state_dir.clone(), security.clone());
    let around = remote::Surroundings {
        monitor: monitor.clone(),
        state_dir: config.state_dir,
        boot_id_path: config.boot_id_path,
        endpoints,
        shim_command: config.shim_command,
        logs: config.logs,
        pass_environment: config.pass_environment,
        given: SecretsAndFiles { secrets_dir: config.secrets_dir, files: config.files },
    };
    let serving = async {
        match (&config.slurm, &config.kubernetes) {
            (Some(slurm), _) => slurm::serve(slurm, around).await,
            (None, Some(kubernetes)) => kubernetes::serve(kubernetes, around).await,
            (None, None) => Ok(()),
        }
    };
    tokio::select! {
        () = keep_fresh(security) => {}
        ended = serving => ended?,
        () = monitor.serve(pages) => {}
        () = shutdown => tracing::info!("agent stops; what it started goes on"),
    }
    traces::end().await;
    Ok(())
}

/// The listener for monitoring systems; where it listens is logged, for port 0 is any.
async fn listen_http(config: &AgentConfig) -> Result<Option<TcpListener>, AgentError> {
    let Some(address) = config.http_listen else { return Ok(None) };
    let failed = |source| AgentError::ListenHttp { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    tracing::info!(http = %bound, "pages for monitoring systems are served");
    Ok(Some(listener))
}

/// Reads the certificates again when their files change, for ever.
async fn keep_fresh(security: Security) {
    match security {
        Security::Tls(tls) => tls.keep_fresh().await,
        Security::Plaintext => std::future::pending().await,
    }
}

/// The name that the agent's certificate must have, or every session would be refused.
enum Expected<'a> {
    Node(&'a NodeSpec),
    /// The first part of the names of its nodes, and the table that states it.
    Group {
        table: &'static str,
        name: &'a str,
    },
}

/// The certificates of the configuration.
fn security(config: &AgentConfig, expected: &Expected<'_>) -> Result<Security, TlsError> {
    let Some(files) = &config.tls else { return Ok(Security::Plaintext) };
    let tls = Tls::load(files.clone())?;
    // What is loaded with a certificate has its name.
    let Some(found) = tls.name() else { return Ok(Security::Tls(tls)) };
    let wanted = match (found.role, expected) {
        (Role::Agent(node), Expected::Node(spec)) if node.as_str() == spec.name.as_str() => {
            return Ok(Security::Tls(tls));
        }
        (Role::AgentGroup(own), Expected::Group { name, .. }) if own.as_str() == *name => {
            return Ok(Security::Tls(tls));
        }
        (_, Expected::Node(spec)) => format!("agent/{}, the node of this configuration,", spec.name),
        (_, Expected::Group { table, name }) => {
            format!("agent-group/{name}, as {table}.name in this configuration,")
        }
    };
    Err(TlsError::WrongName { found: Box::new(found), wanted })
}
