//! Who is at the other end: certificates, names, and the connections between processes.
//!
//! Every process of a cluster has a certificate with one name in it (`spiffe://<cluster>/replica/1`,
//! `/agent/<node>`, `/client/<user>`, `/admin/<user>`), signed by the cluster's own authority. Both ends
//! of every connection show theirs; host names and addresses prove nothing and are not looked at.
//! [`Security`] is the one way in and out: with certificates, or plaintext for a single machine, with the
//! same types for callers. What has no certificate, a runner inside another scheduler's allocation, speaks over
//! [pinned connections](dial) with a certificate made for that one placement.
//!
//! **Invariant:** a connection exists only after its peer's chain *and* name were verified, and ends when
//! that certificate ends or its authority is dropped. Where a listener takes bearer tokens, a caller without a certificate
//! is [`Principal::Anonymous`] until a token says who it is.
//! **Invariant:** a broken file never replaces a good one; what is in force is swapped as a whole.
//! **Invariant:** the only crate that names rustls, rcgen and x509-parser.
#![deny(missing_docs)]

mod address;
mod authority;
mod client;
mod error;
mod files;
mod host;
mod material;
mod name;
mod pinned;
mod public;
mod security;
mod server;
mod token;
mod validity;
mod verify;

pub use address::{AddressError, Scheme};
pub use authority::{Authority, AuthorityReport, CertificateReport, Issued, IssuedLine, describe};
pub use client::Connector;
pub use error::{AuthorityError, TlsError};
pub use files::TlsFiles;
pub use host::{Host, HostError, PermittedHosts};
pub use name::{Expect, ISSUER_NAME_BYTES_MAX, NameError, PeerName, Principal, Role, ShortName, TokenHolder};
pub use pinned::{
    FRAME_BYTES_MAX, Greeted, PINNED_NAME_BYTES_MAX, PinnedError, PinnedReader, PinnedWriter, SharedIdentity,
    dial, greet,
};
pub use public::PublicTls;
pub use security::{Security, Tls};
pub use server::{AcceptLimits, Incoming, PeerConnection, PeerInfo};
pub use token::{Bearer, JWT_BYTES_MAX, TOKEN_TEXT_BYTES, TokenError, TokenSecret, is_jwt};
