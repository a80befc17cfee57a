//! `muster server`: one replica, put together from its rooms.

mod config;

pub use config::{ConfigError, ServerConfig};

use muster_consensus::{Consensus, ConsensusConfig, Role, StopReason};
use muster_decider::Founding;
use muster_engine::{Engine, EngineConfig, ReplicaInfo};
use muster_store::{Identity, OpenMode, ReplicaStore, StoreError, StoreOptions};
use muster_transport::{PeerName, Role as PeerRole, Security, Tls, TlsError};
use std::cmp::Reverse;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long a leader that stops may take to let another lead.
const HAND_OVER_MAX: Duration = Duration::from_millis(1_500);
/// How long calls in progress may take to end; open watches and sessions are told at once.
const DRAIN_MAX: Duration = Duration::from_millis(1_000);
/// How long consensus may take to put its storage away.
const CONSENSUS_STOP_MAX: Duration = Duration::from_secs(5);

/// Runs one replica of the scheduler.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:\n  \
    First start of each replica of a new cluster:\n      muster server --config /etc/muster/server.toml --bootstrap\n  \
    Every start after that:\n      muster server --config /etc/muster/server.toml")]
pub struct ServerArgs {
    /// Configuration file (TOML); see ops/examples/server.toml
    #[arg(long, env = "MUSTER_CONFIG")]
    config: PathBuf,
    /// Allow the data directory to be created and the cluster to be formed. For the first start only:
    /// a replica that lost its disk must not vote again under its old id
    #[arg(long)]
    bootstrap: bool,
    /// Allow plaintext on addresses that other machines can reach
    #[arg(long)]
    insecure: bool,
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
    if tls.name() != own {
        return Err(TlsError::WrongName { found: Box::new(tls.name()), wanted: own.to_string() }.into());
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

async fn open_store(config: &ServerConfig, bootstrap: bool) -> Result<ReplicaStore, ServerError> {
    let identity = Identity { cluster_id: config.cluster_id, replica_id: config.replica_id };
    let mode = if bootstrap { OpenMode::CreateIfMissing } else { OpenMode::Existing };
    let dir = config.data_dir.clone();
    let opened = tokio::task::spawn_blocking(move || {
        ReplicaStore::open(&dir, identity, mode, StoreOptions::production())
    });
    let opened = opened.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    opened.map_err(|source| {
        let hint = match &source {
            StoreError::NotFound { .. } => {
                Some("start a replica for the first time with --bootstrap".to_owned())
            }
            _ => None,
        };
        let advice = [source.advice(), hint].into_iter().flatten().map(|text| format!("; {text}")).collect();
        ServerError::Store { dir: config.data_dir.clone(), advice, source: Box::new(source) }
    })
}

/// Runs a replica until `shutdown` or until it stops by itself.
///
/// # Errors
/// Says which part failed and what to do about it.
pub async fn run(args: ServerArgs, shutdown: CancellationToken) -> Result<(), ServerError> {
    let config = ServerConfig::read(&args.config)?;
    // Listeners first: a port in use is said before anything is written.
    let security = security(&config, args.insecure)?;
    let open = args.insecure || matches!(security, Security::Tls(_));
    let clients = listen("client_listen", config.client_listen, open).await?;
    let peers = listen("peer_listen", config.peer_listen, open).await?;
    let store = open_store(&config, args.bootstrap).await?;
    let (replicated, view) = muster_engine::replicated();
    let mut settings = ConsensusConfig::new(config.cluster_id, config.replica_id);
    settings.timing = config.timing;
    settings.snapshots = config.snapshots;
    settings.security = security.clone();
    let consensus = Consensus::start(settings, store, replicated).await?;
    let peers = {
        // Ends with the runtime: the others hear this replica until consensus has stopped.
        let consensus = consensus.clone();
        tokio::spawn(async move { consensus.serve_peers(peers, std::future::pending()).await })
    };
    if args.bootstrap {
        consensus.initialize(config.members.clone()).await?;
    }
    let founding = Founding { cluster: config.cluster_id, parameters: config.parameters };
    let engine_config =
        EngineConfig { founding, client_commands_waiting_max: 8_192, node_commands_waiting_max: 16_384 };
    let info = ReplicaInfo { replica: config.replica_id, region: config.region.clone() };
    let engine = Engine::start(engine_config, info, view, consensus.clone());
    tracing::info!(replica = %config.replica_id, region = %config.region, clients = %config.client_listen, peers = %config.peer_listen, "replica serves");
    let stop_serving = CancellationToken::new();
    let api = tokio::spawn(muster_api::serve(
        engine.clone(),
        config.api,
        security.clone(),
        clients,
        stop_serving.clone().cancelled_owned(),
    ));
    let fresh = tokio::spawn(async move {
        match security {
            Security::Tls(tls) => tls.keep_fresh().await,
            Security::Plaintext => {}
        }
    });
    let mut parts = Parts { engine, consensus, peers, api, stop_serving };
    let ended = parts.until_over(&shutdown).await;
    parts.stop(ended.is_ok()).await;
    fresh.abort();
    ended
}

/// What runs, and what stops it.
struct Parts {
    engine: Engine,
    consensus: Consensus,
    peers: JoinHandle<Result<(), tonic::transport::Error>>,
    api: JoinHandle<Result<(), muster_api::ServeError>>,
    stop_serving: CancellationToken,
}

impl Parts {
    /// Waits until it is told to stop or a part ends by itself; why, in that case.
    async fn until_over(&mut self, shutdown: &CancellationToken) -> Result<(), ServerError> {
        let mut stopped = self.consensus.stopped();
        let mut failed = self.engine.failed();
        tokio::select! {
            // What has ended by itself is said, whatever else happens at the time.
            biased;
            reason = stopped.wait_for(Option::is_some) => {
                let reason = reason.ok().and_then(|reason| reason.clone());
                Err(ServerError::Stopped(reason.unwrap_or(StopReason::Shutdown)))
            }
            detail = failed.wait_for(Option::is_some) => {
                let detail = detail.ok().and_then(|detail| detail.clone());
                Err(ServerError::Decisions { detail: detail.unwrap_or_default() })
            }
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
            within("handing over the leadership", HAND_OVER_MAX, hand_over(&self.consensus)).await;
        }
        self.engine.stop();
        self.stop_serving.cancel();
        if !self.api.is_finished() {
            // Waits for open streams, which end with the engine, and for their clients to take it.
            within("ending the calls in progress", DRAIN_MAX, async { drop(self.api.await) }).await;
        }
        within("stopping consensus", CONSENSUS_STOP_MAX, self.consensus.shutdown()).await;
        self.peers.abort();
    }
}

async fn within(what: &str, limit: Duration, step: impl Future<Output = ()>) {
    if tokio::time::timeout(limit, step).await.is_err() {
        tracing::warn!(limit_ms = limit.as_millis(), "{what} took too long; going on without");
    }
}

/// Lets the voter that lacks least lead, so that a restart costs the cluster no election timeout.
async fn hand_over(consensus: &Consensus) {
    let status = consensus.status();
    if status.role != Role::Leader {
        return;
    }
    let others = status.members.iter().filter(|m| m.votes && m.replica != status.replica);
    let Some(next) = others.max_by_key(|m| (m.matched_index, Reverse(m.silent_ms))) else { return };
    match consensus.transfer_leadership(next.replica).await {
        Ok(()) => tracing::info!(to = %next.replica, "leadership handed over"),
        Err(error) => tracing::info!(to = %next.replica, %error, "leadership was not handed over"),
    }
}
