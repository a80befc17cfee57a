//! What can be wrong with certificates.

use crate::name::{NameError, PeerName};
use std::path::PathBuf;

/// Why certificates were not taken.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read.
    #[error("reading {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A file does not hold what it should.
    #[error("{path}: {detail}")]
    Content {
        /// Which.
        path: PathBuf,
        /// What is wrong and what would be right.
        detail: String,
    },
    /// A key that others can read.
    #[error("{path}: a private key must not be open to everybody; its mode is {mode:o}, `chmod 600` it")]
    OpenKey {
        /// Which.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A certificate names something that is no name of ours.
    #[error("the certificate's name {text:?} is none of a cluster's")]
    Name {
        /// What it says, shortened.
        text: String,
        /// What is wrong with it.
        #[source]
        source: NameError,
    },
    /// A certificate without exactly one name.
    #[error("a certificate must carry exactly one URI name, this one has {count}")]
    Names {
        /// How many it has.
        count: usize,
    },
    /// The certificate is for somebody else.
    #[error("the certificate is for {found}, where {wanted} is needed")]
    WrongName {
        /// Whom it names.
        found: Box<PeerName>,
        /// Who is needed.
        wanted: String,
    },
    /// The certificate is not good any more.
    #[error("the certificate of {name} is revoked")]
    Revoked {
        /// Whom it names.
        name: Box<PeerName>,
    },
    /// The certificate does not stand up to its own authorities.
    #[error("{path}: the certificate is not accepted by the authorities in {ca}: {detail}")]
    Chain {
        /// The certificate.
        path: PathBuf,
        /// The authorities.
        ca: PathBuf,
        /// Why.
        detail: String,
    },
    /// The library refused a configuration made of all that.
    #[error("configuring TLS failed: {detail}")]
    Configure {
        /// What it said.
        detail: String,
    },
}

/// Why the authority did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file could not be read or written.
    #[error("{action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Something is there already.
    #[error("{path} exists already; say --force to replace it")]
    Exists {
        /// Which file.
        path: PathBuf,
    },
    /// An authority is there already; replacing it would cut off everything it has signed.
    #[error("{dir} holds an authority already; `muster ca rotate` replaces it without an interruption")]
    AuthorityExists {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory holds no authority.
    #[error("{dir} holds no authority; make one with `muster ca init`")]
    NoAuthority {
        /// The directory.
        dir: PathBuf,
    },
    /// A file of the authority does not hold what it should.
    #[error("{path}: {detail}")]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// The step does not fit the state of the rotation.
    #[error("{detail}")]
    Step {
        /// What to do instead.
        detail: &'static str,
    },
    /// A host that a certificate cannot name.
    #[error("{detail}")]
    Hosts {
        /// What to do instead.
        detail: String,
    },
    /// A time to live out of bounds.
    #[error("a certificate lasts 1 to {days_max} days, not {days}")]
    Days {
        /// What was asked for.
        days: u32,
        /// The most.
        days_max: u32,
    },
    /// Making a key or a certificate failed.
    #[error("making a certificate failed: {detail}")]
    Make {
        /// What the library said.
        detail: String,
    },
}
