//! `muster server`: one replica, put together from its rooms.

mod config;

pub use config::{ConfigError, ServerConfig};

use muster_api::ApiConfig;
use muster_consensus::{Consensus, ConsensusConfig, StopReason};
use muster_decider::Founding;
use muster_engine::{Engine, EngineConfig, ReplicaInfo};
use muster_store::{Identity, OpenMode, ReplicaStore, StoreError, StoreOptions};
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

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
        "{key}: {address} can be reached from other machines, and this release speaks plaintext only; listen on a loopback address, or say --insecure"
    )]
    Plaintext {
        /// Key of the configuration.
        key: &'static str,
        /// The address.
        address: SocketAddr,
    },
    /// The data directory was refused.
    #[error("data_dir: opening {dir} failed{advice}")]
    Store {
        /// The directory.
        dir: PathBuf,
        /// What to do, where there is something.
        advice: String,
        /// Why.
        #[source]
        source: StoreError,
    },
    /// Consensus did not start.
    #[error("starting consensus failed")]
    Consensus(#[from] muster_consensus::StartError),
    /// The replica stopped by itself.
    #[error("the replica stopped")]
    Stopped(#[source] StopReason),
    /// The client listener failed.
    #[error("serving failed")]
    Serve(#[source] muster_api::ServeError),
    /// The peer listener failed.
    #[error("serving peers failed")]
    ServePeers(#[source] tonic::transport::Error),
}

async fn listen(key: &'static str, address: SocketAddr, insecure: bool) -> Result<TcpListener, ServerError> {
    if !address.ip().is_loopback() && !insecure {
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
        ServerError::Store { dir: config.data_dir.clone(), advice, source }
    })
}

/// Runs a replica until `shutdown` or until it stops by itself.
///
/// # Errors
/// Says which part failed and what to do about it.
pub async fn run(args: ServerArgs, shutdown: CancellationToken) -> Result<(), ServerError> {
    let config = ServerConfig::read(&args.config)?;
    // Listeners first: a port in use is said before anything is written.
    let clients = listen("client_listen", config.client_listen, args.insecure).await?;
    let peers = listen("peer_listen", config.peer_listen, args.insecure).await?;
    let store = open_store(&config, args.bootstrap).await?;
    let (replicated, view) = muster_engine::replicated();
    let mut settings = ConsensusConfig::new(config.cluster_id, config.replica_id);
    settings.timing = config.timing;
    settings.snapshots = config.snapshots;
    let consensus = Consensus::start(settings, store, replicated).await?;
    let serving = {
        let (consensus, shutdown) = (consensus.clone(), shutdown.clone());
        tokio::spawn(async move { consensus.serve_peers(peers, shutdown.cancelled_owned()).await })
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
    let api = {
        let shutdown = shutdown.clone();
        tokio::spawn(muster_api::serve(
            engine.clone(),
            ApiConfig::DEFAULT,
            clients,
            shutdown.cancelled_owned(),
        ))
    };
    let ended = wait(&consensus, &shutdown, serving, api).await;
    shutdown.cancel();
    engine.stop();
    consensus.shutdown().await;
    ended
}

async fn wait(
    consensus: &Consensus,
    shutdown: &CancellationToken,
    peers: tokio::task::JoinHandle<Result<(), tonic::transport::Error>>,
    api: tokio::task::JoinHandle<Result<(), muster_api::ServeError>>,
) -> Result<(), ServerError> {
    let mut stopped = consensus.stopped();
    tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        reason = stopped.wait_for(Option::is_some) => match reason.as_deref() {
            Ok(Some(reason)) => Err(ServerError::Stopped(reason.clone())),
            _ => Err(ServerError::Stopped(StopReason::Shutdown)),
        },
        served = peers => match served {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(ServerError::ServePeers(error)),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        },
        served = api => match served {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(ServerError::Serve(error)),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        },
    }
}
