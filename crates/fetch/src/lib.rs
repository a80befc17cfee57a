//! Requests to servers that are not of the cluster: receivers of notifications, issuers of tokens, and object stores.
//!
//! **Invariant:** a request goes to the address that was checked, and nowhere else; redirects are not followed.
//! **Invariant:** everything that the other side says is bounded, in bytes and in time.
#![deny(missing_docs)]

mod address;
mod error;
mod exchange;
mod streamer;

pub use address::is_public;
pub use error::FetchError;
pub use exchange::{Answer, Ask, FetchRules, Fetcher};
pub use http::StatusCode;
pub use streamer::{Pieces, Streamer};
