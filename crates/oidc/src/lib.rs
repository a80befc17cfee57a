//! Sign-ins by tokens of OpenID issuers.
//!
//! A replica verifies a token with the keys that its issuer publishes, and finds out from its groups and the configuration what its
//! holder may. A client gets tokens by the device flow (RFC 8628).
//!
//! **Invariant:** a call never waits for an issuer: keys are read by tasks of this crate.
//! **Invariant:** a token is accepted only with a signature by a public key of its issuer, for this audience, within its time; names
//! that stand twice in it are refused.
#![deny(missing_docs)]

mod base64url;
mod device;
mod error;
mod issuers;
mod json;
mod jwt;
mod keys;
mod refresh;
mod settings;
#[cfg(any(test, feature = "test-issuer"))]
pub mod test_issuer;
#[cfg(test)]
mod tests;

pub use device::{DeviceCode, Login, Provider, Tokens};
pub use error::{LoginError, SignInRefusal};
pub use issuers::{Issuers, SignIn};
pub use jwt::JWT_BYTES_MAX;
pub use keys::{Algorithm, KEY_SET_BYTES_MAX};
pub use muster_fetch::FetchRules;
pub use settings::{ISSUERS_MAX, IssuerSettings, KeySource, RULES_MAX, Rule};

/// Whether a text has the form of a signed token: three parts of the alphabet, with dots between them.
#[must_use]
pub fn is_jwt(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let parts: Vec<&str> = text.split('.').take(4).collect();
    parts.len() == 3 && parts.iter().all(|part| !part.is_empty() && part.bytes().all(is_digit))
}
