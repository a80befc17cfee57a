//! Why a request fails.

use std::time::Duration;

/// Why a request brought no answer. No text of it has an address.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The rules do not allow this address.
    #[error("{0}")]
    Refused(String),
    /// The host has no address.
    #[error("its host cannot be resolved: {0}")]
    Unresolved(#[source] std::io::Error),
    /// No connection came about.
    #[error("connecting failed: {0}")]
    Connect(#[source] std::io::Error),
    /// The authorities of servers' certificates are not there.
    #[error("the authorities of certificates cannot be read: {0}")]
    Authorities(String),
    /// The exchange broke off, or was none of HTTP.
    #[error("the exchange failed: {0}")]
    Exchange(#[source] hyper::Error),
    /// A request could not be made of it.
    #[error("no request can be made: {0}")]
    Request(#[source] http::Error),
    /// It did not answer in time.
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
}
