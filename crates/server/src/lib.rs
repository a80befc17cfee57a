//! `muster server`: one replica, assembled from its parts.

mod audit;
mod config;
mod evidence;
mod former_keys;
mod objectives;
mod open;
mod recover;

pub use config::{ConfigError, ServerConfig};
pub use evidence::now_ms;
pub use recover::{begin_from, take_archive};

use muster_archive::ArchiveError;
use muster_consensus::{Advertise, Consensus, ConsensusConfig, Role, StopReason};
use muster_decider::BootstrapConfig;
use muster_engine::{
    DivergenceHandler, Engine, EngineConfig, HistorySettings, ReplicaInfo, UnopenedArchive, View,
    archive_error_text, open_archive, purge_up_to,
};
use muster_metrics::ReplicaMetrics;
use muster_store::{ReplicaStore, StoreError};
use muster_transport::{PeerName, Role as PeerRole, Security, Tls, TlsError};
use std::cmp::Reverse;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use evidence::DivergedMark;
use open::open_store;

/// How long a leader that stops may take to let another lead.
const TRANSFER_MAX: Duration = Duration::from_millis(1_500);
/// How long calls in progress may take to end; open watches and sessions are told at once.
const DRAIN_MAX: Duration = Duration::from_millis(1_000);
/// How long consensus may take to put its storage away.
const CONSENSUS_STOP_MAX: Duration = Duration::from_secs(5);
/// How often the replica looks at what it keeps on its disk, for its status.
const FACTS_EVERY: Duration = Duration::from_secs(5);
/// How often a leader looks whether every replica reads a newer record format, where that is wanted.
const FORMATS_EVERY: Duration = Duration::from_secs(2);

/// Runs one replica of the scheduler.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "EXAMPLES:\n  \
    First start of each replica of a new cluster:\n      muster server --config /etc/muster/server.toml --bootstrap\n  \
    Every start after that:\n      muster server --config /etc/muster/server.toml\n  \
    A new replica of a cluster that runs; it waits until `muster cluster add` takes it in:\n      \
    muster server --config /etc/muster/server.toml --join\n  \
    A replica that lost its disk, or whose data is damaged or has diverged:\n      \
    muster server --config /etc/muster/server.toml --rebuild\n  \
    What that would do, without starting the replica:\n      \
    muster server --config /etc/muster/server.toml --rebuild --dry-run"
)]
pub struct ServerArgs {
    #[command(subcommand)]
    command: Option<ServerCommand>,
    /// Configuration file (TOML); see ops/examples/server.toml
    #[arg(long, env = "MUSTER_CONFIG", required = true)]
    config: Option<PathBuf>,
    /// Allow the data directory to be created and the cluster to be founded. For the first start only: every configured
    /// member is asked first, and where one of them has the cluster already this is refused, for a replica that lost
    /// its disk must not vote again under its old id
    #[arg(long, group = "start")]
    bootstrap: bool,
    /// Allow the data directory to be created, for a new replica of a cluster that runs. It forms no cluster
    /// and votes for nobody before it is taken in
    #[arg(long, group = "start")]
    join: bool,
    /// Move what is damaged in the data directory aside and rebuild it from the other replicas. An intact
    /// directory is left as it is
    #[arg(long, group = "start")]
    rebuild: bool,
    /// Say what --rebuild would do with the data directory, and start nothing. The directory is opened as for every start,
    /// which completes a last write that was interrupted, and nothing else is changed
    #[arg(long, requires = "rebuild")]
    dry_run: bool,
    /// Allow plaintext on addresses that other machines can reach
    #[arg(long)]
    insecure: bool,
}

/// What is done to a replica that does not run.
#[derive(Debug, clap::Subcommand)]
enum ServerCommand {
    Recover(recover::RecoverArgs),
}

/// How a replica is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// For the first time, in a new cluster.
    Bootstrap,
    /// For the first time, in a cluster that runs.
    Join,
    /// After it lost what it had.
    Rebuild,
    /// As it was.
    Again,
}

impl ServerArgs {
    /// The configuration file, where one is named.
    #[must_use]
    pub fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    fn start(&self) -> Start {
        match (self.bootstrap, self.join, self.rebuild) {
            (true, _, _) => Start::Bootstrap,
            (_, true, _) => Start::Join,
            (_, _, true) => Start::Rebuild,
            _ => Start::Again,
        }
    }
}

/// Why a server could not start or did not stay.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The configuration was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address cannot be listened on.
    #[error("{key}: listening on {address} failed; is the port in use?")]
    Listen {
        /// Key of the configuration.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Plaintext would be open to other machines.
    #[error(
        "{key}: {address} can be reached from other machines, and without certificates this is plaintext; configure [tls] (`muster ca` makes what it needs), listen on a loopback address, or say --insecure"
    )]
    Plaintext {
        /// Key of the configuration.
        key: &'static str,
        /// The address.
        address: SocketAddr,
    },
    /// This build breaks rules on purpose, and may not do so here.
    #[error(transparent)]
    Planted(#[from] muster_planted::Refusal),
    /// The certificates were refused.
    #[error("tls: the certificates cannot be used")]
    Tls(#[from] TlsError),
    /// Two wishes that exclude each other.
    #[error("--insecure asks for plaintext and [tls] for certificates; leave one of them out")]
    Contradiction,
    /// The data directory was refused.
    #[error("data_dir: opening {dir} failed{advice}")]
    Store {
        /// The directory.
        dir: PathBuf,
        /// What to do, where there is something.
        advice: String,
        /// Why.
        #[source]
        source: Box<StoreError>,
    },
    /// The archive is another cluster's.
    #[error(
        "archive.dir: opening {dir} failed; another cluster's archive can be moved away, and a new one begins"
    )]
    Archive {
        /// The directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: ArchiveError,
    },
    /// The replica has diverged and was not rebuilt.
    #[error(
        "data_dir: the replica in {dir} has diverged at log index {}: its digest was {}, the log's {}; start it once with --rebuild, and report what is kept in {dir}",
        mark.log_index, mark.actual_digest, mark.expected_digest
    )]
    Diverged {
        /// The directory.
        dir: PathBuf,
        /// What is known.
        mark: Box<DivergedMark>,
    },
    /// The mark of a divergence or the evidence could not be read or moved.
    #[error("data_dir: looking for evidence in {dir} failed")]
    Evidence {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The recovery was not made.
    #[error(transparent)]
    Recover(#[from] recover::RecoverError),
    /// No configuration file was named.
    #[error("--config is needed")]
    NoConfig,
    /// Consensus did not start.
    #[error("starting consensus failed")]
    Consensus(#[from] muster_consensus::StartError),
    /// The replica stopped by itself.
    #[error("the replica stopped")]
    Stopped(#[source] StopReason),
    /// The decision loop stopped on a broken invariant.
    #[error("the decision loop stopped: {detail}; this is a bug, keep the log and the data directory")]
    Decisions {
        /// What it said.
        detail: String,
    },
    /// The client listener failed.
    #[error("serving failed")]
    Serve(#[source] muster_api::ServeError),
    /// The peer listener failed.
    #[error("serving peers failed")]
    ServePeers(#[source] tonic::transport::Error),
}

/// The certificates of the configuration, which have to be this replica's.
fn security(config: &ServerConfig, insecure: bool) -> Result<Security, ServerError> {
    let Some(files) = &config.tls else { return Ok(Security::Plaintext) };
    if insecure {
        return Err(ServerError::Contradiction);
    }
    let tls = Tls::load(files.clone())?;
    let own = PeerName { cluster: config.cluster_id, role: PeerRole::Replica(config.replica_id) };
    if let Some(found) = tls.name().filter(|found| *found != own) {
        return Err(TlsError::WrongName { found: Box::new(found), wanted: own.to_string() }.into());
    }
    tracing::info!(name = %own, days_left = tls.days_left(), "certificates are in force");
    Ok(Security::Tls(tls))
}

async fn listen(key: &'static str, address: SocketAddr, open: bool) -> Result<TcpListener, ServerError> {
    if !address.ip().is_loopback() && !open {
        return Err(ServerError::Plaintext { key, address });
    }
    TcpListener::bind(address).await.map_err(|source| ServerError::Listen { key, address, source })
}

/// Whether the data directory is in memory. Said at each start, for a replica promises what its disk is to keep.
fn volatile(dir: &Path) -> bool {
    let is_volatile = open::is_in_memory(dir);
    if is_volatile {
        tracing::warn!(
            code = "STORAGE_VOLATILE",
            data_dir = %dir.display(),
            "the data directory is in memory: what this replica promises is lost when its machine restarts"
        );
    }
    is_volatile
}

/// Opens the archive. History must not keep a replica from serving: where it cannot be opened, the replica starts without
/// it, keeps its log, and tries again. Only an archive of another cluster is refused, for that is a configuration
/// which can never work.
async fn open_history(config: &ServerConfig) -> Result<HistorySettings, ServerError> {
    let mut history = HistorySettings::new(None);
    let Some(archive) = &config.archive else { return Ok(history) };
    history.segment_age = archive.segment_age;
    history.retention = archive.retention.clone();
    let (dir, cluster) = (archive.dir.clone(), config.cluster_id);
    let open = Arc::new(move || open_archive(&dir, cluster));
    let first = Arc::clone(&open);
    let opened = tokio::task::spawn_blocking(move || first()).await;
    match opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())) {
        Ok(archive) => history.archive = Some(Arc::new(archive)),
        Err(source @ ArchiveError::Foreign { .. }) => {
            return Err(ServerError::Archive { dir: archive.dir.clone(), source });
        }
        Err(error) => {
            let (place, reason) = (archive.dir.display().to_string(), archive_error_text(&error));
            tracing::error!(
                archive = place,
                error = reason,
                "the archive cannot be opened; the replica serves without it, and keeps its log until it can"
            );
            history.unopened = Some(UnopenedArchive { place, reason, open });
        }
    }
    Ok(history)
}

/// What a new cluster begins with.
fn founding_of(config: &ServerConfig, generation: u32, security: &Security) -> BootstrapConfig {
    BootstrapConfig {
        cluster: config.cluster_id,
        generation,
        parameters: config.parameters,
        format_max: config.format_max(),
        new_cluster_format: Some(config.format_max()),
        admission: match security {
            // A node that reaches such a listener is taken for what it claims to be in any case.
            Security::Plaintext => muster_types::AdmissionMode::Open,
            Security::Tls(_) => muster_types::AdmissionMode::Pinned,
        },
    }
}

fn consensus_settings(
    config: &ServerConfig,
    version: &str,
    security: &Security,
    view: &View,
) -> ConsensusConfig {
    let mut settings = ConsensusConfig::new(config.cluster_id, config.replica_id);
    settings.timing = config.timing;
    settings.snapshots = config.snapshots;
    settings.leader = config.leader.clone();
    settings.known_peers = config.members.clone();
    settings.security = security.clone();
    settings.advertise = Advertise {
        version: version.to_owned(),
        format_max: config.format_max().into(),
        marks: view.marks(),
        is_volatile: volatile(&config.data_dir),
    };
    settings
}

/// Prints what a rebuild would do.
async fn print_rebuild(config: &ServerConfig) -> Result<(), ServerError> {
    use std::io::Write as _;
    let text = open::would_rebuild(config).await?;
    // Nobody is left to tell when standard output is gone.
    let _ = writeln!(std::io::stdout().lock(), "{text}");
    Ok(())
}

/// Runs a replica until `shutdown` or until it stops by itself. `version` is what it tells the other replicas.
///
/// # Errors
/// Says which part failed and what to do about it.
pub async fn run(args: ServerArgs, version: &str, shutdown: CancellationToken) -> Result<(), ServerError> {
    let start = args.start();
    if let Some(ServerCommand::Recover(args)) = args.command {
        return Ok(recover::run(args).await?);
    }
    let config = ServerConfig::read(&args.config.ok_or(ServerError::NoConfig)?)?;
    if args.dry_run {
        muster_planted::admit(&config.data_dir)?;
        return print_rebuild(&config).await;
    }
    // Listeners first: a port in use is reported before anything is written.
    let security = security(&config, args.insecure)?;
    let open = args.insecure || matches!(security, Security::Tls(_));
    let clients = listen("client_listen", config.client_listen, open).await?;
    let peers = listen("peer_listen", config.peer_listen, open).await?;
    let pages = match config.http_listen {
        Some(address) => Some(listen("http_listen", address, open).await?),
        None => None,
    };
    muster_planted::admit(&config.data_dir)?;
    begin_traces(&config, version);
    let store = open_store(&config, start).await?;
    let founding = founding_of(&config, store.identity().generation, &security);
    let (replicated, view) = muster_engine::replicated(founding.format_max);
    let metrics = ReplicaMetrics::default();
    measure(&metrics, &view, &store);
    let counter = muster_api::DecisionObserver::new(metrics.decisions().clone());
    let replicated =
        replicated.on_divergence(keep_evidence(config.data_dir.clone())).observed_by(Box::new(counter));
    let mut history = open_history(&config).await?;
    if config.archive.is_some() {
        // Before anything is purged.
        let archived = history.archive.as_ref();
        let up_to = archived.map_or(0, |archive| purge_up_to(archive, store.identity().generation));
        store.log.hold_purge(Some(up_to));
    }
    let settings = consensus_settings(&config, version, &security, &view);
    let consensus = Consensus::start(settings, store, replicated).await?;
    let peers = {
        // Ends with the runtime: the others hear this replica until consensus has stopped.
        let consensus = consensus.clone();
        tokio::spawn(async move { consensus.serve_peers(peers, std::future::pending()).await })
    };
    let founded = {
        let (consensus, members) = (consensus.clone(), config.members.clone());
        let founds = start == Start::Bootstrap;
        tokio::spawn(async move { if founds { consensus.found(members).await } else { Ok(()) } })
    };
    let engine_config = EngineConfig {
        founding,
        client_commands_waiting_max: 8_192,
        node_commands_waiting_max: 16_384,
        contain_faults: true,
    };
    let info = ReplicaInfo { replica: config.replica_id, region: config.region.clone() };
    let engine = Engine::start(engine_config, info, view, consensus.clone());
    history.peers = Some(Arc::new(muster_api::RemoteHistory::new(security.clone())));
    engine.keep_history(history);
    tracing::info!(replica = %config.replica_id, region = %config.region, clients = %config.client_listen, peers = %config.peer_listen, "replica serves");
    tokio::spawn(tell_facts(engine.clone(), security.clone(), config.data_dir.clone()));
    if config.upgrade.raise_automatically {
        tokio::spawn(engine.clone().raise_format_when_ready(FORMATS_EVERY));
    }
    tokio::spawn(muster_notify::run(engine.clone(), config.notifications.clone()));
    let stop_serving = CancellationToken::new();
    let (recorder, recorded) = muster_api::CallRecorder::queue();
    let issuers = muster_oidc::Issuers::new(config.issuers.clone());
    if !issuers.is_empty() {
        if !config.api.tokens {
            tracing::warn!("`[[oidc]]` of the configuration has no effect without `tokens = true`");
        }
        // Ends with the runtime.
        tokio::spawn(issuers.clone().keep_fresh());
    }
    let account = objectives::open(&config.data_dir);
    let kept = (account.clone(), engine.clone(), metrics.clone(), config.data_dir.clone());
    let accounting = tokio::spawn(objectives::keep(kept.0, kept.1, kept.2, kept.3));
    let shared = muster_api::Shared::new(engine.clone(), config.api, security.clone())
        .recording(recorder)
        .accounting(account)
        .reading_denied(Arc::new(audit::AuditFiles::new(&config.data_dir, config.audit)))
        .signing_in(issuers);
    let recording = {
        let (engine, place) = (engine.clone(), (config.data_dir.clone(), config.replica_id));
        let stopping = async move { engine.stopping().await };
        tokio::spawn(audit::record(recorded, place, config.audit, stopping))
    };
    if let Some(listener) = pages {
        tokio::spawn(keep_pages(engine.clone(), shared.clone(), metrics.clone(), listener));
    }
    let api =
        tokio::spawn(muster_api::serve(shared, metrics, clients, stop_serving.clone().cancelled_owned()));
    let fresh = tokio::spawn(async move {
        match security {
            Security::Tls(tls) => tls.keep_fresh().await,
            Security::Plaintext => {}
        }
    });
    let mut parts = Parts { engine, consensus, founded, peers, api, stop_serving };
    let ended = parts.until_over(&shutdown).await;
    parts.stop(ended.is_ok()).await;
    within("recording the last calls", DRAIN_MAX, async { drop(recording.await) }).await;
    within("writing the account of error budgets", DRAIN_MAX, async { drop(accounting.await) }).await;
    muster_traces::end(DRAIN_MAX).await;
    fresh.abort();
    ended
}

/// Has spans recorded and sent from now on, where the configuration names a collector.
fn begin_traces(config: &ServerConfig, version: &str) {
    let Some(settings) = &config.traces else { return };
    let resource = vec![
        ("service.name", "muster-server".to_owned()),
        ("service.version", version.to_owned()),
        ("service.instance.id", config.replica_id.to_string()),
        ("cloud.region", config.region.to_string()),
    ];
    muster_traces::begin(settings, resource, version);
}

/// Has durations of the replica's work measured from here on.
fn measure(metrics: &ReplicaMetrics, view: &View, store: &ReplicaStore) {
    view.timed_by(Box::new(muster_api::WorkTimes::new(metrics.clone())));
    let (of_flushes, of_appends) = (metrics.clone(), metrics.clone());
    store.log.observe_flushes(move |took| of_flushes.flushed(took));
    store.log.observe_appends(move |bytes| of_appends.appended(bytes));
}

/// Serves the pages for monitoring systems as long as the replica runs. Should their listener fail, the replica goes on.
async fn keep_pages(
    engine: Engine,
    shared: muster_api::Shared,
    metrics: ReplicaMetrics,
    listener: TcpListener,
) {
    let served = muster_api::serve_pages(shared, metrics, listener, async move { engine.stopping().await });
    if let Err(error) = served.await {
        let error = &error as &dyn std::error::Error;
        tracing::error!(error, "http_listen: serving the pages for monitoring systems failed");
    }
}

/// Keeps what is known of a divergence before the replica stops.
fn keep_evidence(dir: PathBuf) -> DivergenceHandler {
    Box::new(move |divergence| {
        if let Err(error) = evidence::keep(&dir, divergence) {
            // It stops all the same, and notices again at the next start.
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, dir = %dir.display(), "the mark of a diverged replica could not be written");
        }
    })
}

/// Keeps what the replica knows of itself up to date, for its status.
async fn tell_facts(engine: Engine, security: Security, dir: PathBuf) {
    let mut ticks = tokio::time::interval(FACTS_EVERY);
    loop {
        tokio::select! {
            () = engine.stopping() => return,
            _ = ticks.tick() => {}
        }
        let directory = dir.join("snapshots");
        let age = tokio::task::spawn_blocking(move || newest_age_ms(&directory)).await;
        let archived = engine.archive_status().ok();
        let damaged = archived.as_ref().map(|status| status.borrow().damaged.clone()).unwrap_or_default();
        let unmended = archived.as_ref().map(|status| status.borrow().unmended.clone()).unwrap_or_default();
        let mended = archived.as_ref().map_or(0, |status| status.borrow().mended);
        let failing = archived.as_ref().and_then(|status| status.borrow().failing.clone());
        let offload_failing = archived.as_ref().and_then(|status| status.borrow().offload_failing.clone());
        let archived = archived.and_then(|status| status.borrow().summary.last);
        engine.update_local_facts(|facts| {
            facts.snapshot_age_ms = age.ok().flatten();
            facts.archive_log_index = archived.map(|index| index.0);
            facts.archive_damaged = damaged;
            (facts.archive_unmended, facts.archive_mended) = (unmended, mended);
            facts.archive_failing = failing;
            facts.archive_offload_failing = offload_failing;
            facts.certificate_days_left = security.days_left();
        });
    }
}

/// How old the newest snapshot in a directory is, in milliseconds.
fn newest_age_ms(directory: &Path) -> Option<u64> {
    let files = std::fs::read_dir(directory).ok()?.flatten();
    let snapshots = files.filter(|file| file.path().extension().is_some_and(|end| end == "snapshot"));
    let newest = snapshots.filter_map(|file| file.metadata().ok()?.modified().ok()).max()?;
    u64::try_from(newest.elapsed().unwrap_or_default().as_millis()).ok()
}

/// What runs, and what stops it.
struct Parts {
    engine: Engine,
    consensus: Consensus,
    founded: JoinHandle<Result<(), muster_consensus::StartError>>,
    peers: JoinHandle<Result<(), tonic::transport::Error>>,
    api: JoinHandle<Result<(), muster_api::ServeError>>,
    stop_serving: CancellationToken,
}

impl Parts {
    /// Waits until it is told to stop or a part ends by itself; why, in that case.
    async fn until_over(&mut self, shutdown: &CancellationToken) -> Result<(), ServerError> {
        let mut stopped = self.consensus.stopped();
        let mut failed = self.engine.failed();
        let founded = &mut self.founded;
        let unfounded = async {
            match founded.await {
                Ok(Err(error)) => error,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            // What has ended by itself is reported, whatever else happens at the time.
            biased;
            reason = stopped.wait_for(Option::is_some) => {
                let reason = reason.ok().and_then(|reason| reason.clone());
                Err(ServerError::Stopped(reason.unwrap_or(StopReason::Shutdown)))
            }
            detail = failed.wait_for(Option::is_some) => {
                let detail = detail.ok().and_then(|detail| detail.clone());
                Err(ServerError::Decisions { detail: detail.unwrap_or_default() })
            }
            error = unfounded => Err(ServerError::Consensus(error)),
            served = &mut self.peers => match served {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(ServerError::ServePeers(error)),
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            },
            served = &mut self.api => match served {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(ServerError::Serve(error)),
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            },
            () = shutdown.cancelled() => Ok(()),
        }
    }

    /// Stops one part after the other. Every step is bounded: what does not end in its time is left
    /// to the end of the process, which loses nothing that was acknowledged.
    async fn stop(self, in_order: bool) {
        if in_order {
            // Errors of a protocol that is being ended are told from others by this line.
            tracing::info!("the replica was told to stop");
            within("transferring the leadership", TRANSFER_MAX, transfer_leadership(&self.consensus)).await;
        }
        self.engine.stop();
        self.stop_serving.cancel();
        if !self.api.is_finished() {
            // Waits for open streams, which end with the engine, and for their clients to take it.
            within("ending the calls in progress", DRAIN_MAX, async { drop(self.api.await) }).await;
        }
        self.founded.abort();
        within("stopping consensus", CONSENSUS_STOP_MAX, self.consensus.shutdown()).await;
        self.peers.abort();
    }
}

async fn within(what: &str, limit: Duration, step: impl Future<Output = ()>) {
    if tokio::time::timeout(limit, step).await.is_err() {
        tracing::warn!(limit_ms = limit.as_millis(), "{what} took too long; going on without");
    }
}

/// Lets the best of the other voters lead, so that a restart costs the cluster no election timeout.
async fn transfer_leadership(consensus: &Consensus) {
    let status = consensus.status();
    if status.role != Role::Leader {
        return;
    }
    let others = status.members.iter().filter(|m| m.votes && m.replica != status.replica);
    // Who has not said how it fares yet may still be the best there is.
    let nearest = others.max_by_key(|m| (m.matched_index, Reverse(m.silent_ms))).map(|m| m.replica);
    let Some(next) = consensus.successor().or(nearest) else { return };
    match consensus.transfer_leadership(next).await {
        Ok(()) => tracing::info!(to = %next, "leadership transferred"),
        Err(error) => tracing::info!(to = %next, %error, "leadership was not transferred"),
    }
}
