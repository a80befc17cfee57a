//! Why a delivery fails.

use http::StatusCode;
use std::time::Duration;

/// Why an attempt failed. No text of it has an address or a key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeliveryError {
    /// A key or an address of the directory of secrets cannot be used.
    #[error("{0}")]
    Secret(String),
    /// The configuration does not allow this address.
    #[error("{0}")]
    Refused(String),
    /// The host has no address.
    #[error("its host cannot be resolved: {0}")]
    Unresolved(#[source] std::io::Error),
    /// No connection came about.
    #[error("connecting failed: {0}")]
    Connect(#[source] std::io::Error),
    /// The authorities of receivers' certificates are not there.
    #[error("the authorities of certificates cannot be read: {0}")]
    Authorities(String),
    /// The exchange broke off, or was none of HTTP.
    #[error("the exchange failed: {0}")]
    Exchange(#[source] hyper::Error),
    /// A request could not be made of it.
    #[error("no request can be made: {0}")]
    Request(#[source] http::Error),
    /// It answered with something else than success.
    #[error("it answered {}", .0.as_u16())]
    Status(StatusCode),
    /// It did not answer in time.
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
}
