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
pub use jwt::unverified_expiry_s;
pub use keys::{Algorithm, KEY_SET_BYTES_MAX, SigningKey};
pub use muster_fetch::FetchRules;
pub use muster_transport::{JWT_BYTES_MAX, is_jwt};
pub use settings::{ISSUERS_MAX, IssuerSettings, KeySource, RULES_MAX, Rule};
