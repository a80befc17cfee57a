//! Why an agent cannot start.

use crate::disk::fencing::FencingError;
use crate::disk::lease::LeaseError;
use crate::disk::state_dir::StateDirError;
use crate::executor::ExecutorError;
use crate::settings::ConfigError;
use muster_transport::TlsError;

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
    /// There is no client for the API server of Kubernetes.
    #[error("configuration key kubernetes.kubeconfig")]
    Kubernetes(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The address for monitoring systems cannot be used.
    #[error("http_listen: listening on {address} failed; is the port in use?")]
    ListenHttp {
        /// The address.
        address: std::net::SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The directory of images cannot be used.
    #[error("configuration key images.directory")]
    Images(#[source] std::io::Error),
    /// The state directory is in use or unusable.
    #[error("open the state directory")]
    State(#[from] StateDirError),
    /// The fencing tokens cannot be read: without them nothing may be started.
    #[error("read the fencing tokens")]
    Fencing(#[from] FencingError),
    /// The lease file cannot be made.
    #[error("open the lease file")]
    Lease(#[from] LeaseError),
    /// The workers of an earlier agent cannot be listed.
    #[error("take over running workers")]
    Adopt(#[source] ExecutorError),
}
