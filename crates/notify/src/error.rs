//! Why a delivery fails.

use muster_fetch::{FetchError, StatusCode};

/// Why an attempt failed. No text of it has an address or a key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeliveryError {
    /// A key or an address of the directory of secrets cannot be used.
    #[error("{0}")]
    Secret(String),
    /// No answer came.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// It answered with something else than success.
    #[error("it answered {}", .0.as_u16())]
    Status(StatusCode),
}
