//! Small files: read with a bound, written whole or not at all.

use crate::error::TlsError;
use muster_files::{Existing, Manner};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Bytes of a file of certificates: some dozen of them at most.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where a process finds its certificates. The same keys in every configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The authorities that peers are accepted from; several during a rotation.
    pub ca: PathBuf,
    /// The process's own certificate, and any in between.
    pub cert: PathBuf,
    /// Its private key; not open to everybody.
    pub key: PathBuf,
}

/// Where everything is read from that a process has.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// With a certificate.
    Own(TlsFiles),
    /// Authorities alone: for a client that shows a token in the place of a certificate.
    Authority(PathBuf),
}

impl Source {
    pub(crate) fn ca(&self) -> &Path {
        match self {
            Source::Own(files) => &files.ca,
            Source::Authority(ca) => ca,
        }
    }

    pub(crate) fn read(&self) -> Result<Contents, TlsError> {
        match self {
            Source::Own(files) => files.read(),
            Source::Authority(path) => {
                let read = read_bounded(path);
                let ca = read.map_err(|source| TlsError::Read { path: path.clone(), source })?;
                Ok(Contents { ca, cert: Vec::new(), key: Vec::new() })
            }
        }
    }
}

/// What the files held at one moment. Certificate and key are empty where there are none.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) ca: Vec<u8>,
    pub(crate) cert: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl TlsFiles {
    fn read(&self) -> Result<Contents, TlsError> {
        let read = |path: &Path| {
            read_bounded(path).map_err(|source| TlsError::Read { path: path.to_path_buf(), source })
        };
        let mode = std::fs::metadata(&self.key)
            .map_err(|source| TlsError::Read { path: self.key.clone(), source })?
            .mode()
            & 0o777;
        if mode & 0o007 != 0 {
            return Err(TlsError::OpenKey { path: self.key.clone(), mode });
        }
        Ok(Contents { ca: read(&self.ca)?, cert: read(&self.cert)?, key: read(&self.key)? })
    }
}

pub(crate) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    muster_files::read_bounded(path, FILE_BYTES_MAX)
}

/// Writes a file whole. Without `replace` one that is there stays, and the error says `AlreadyExists`.
pub(crate) fn write_whole(path: &Path, bytes: &[u8], mode: u32, replace: bool) -> io::Result<()> {
    let existing = if replace { Existing::Replaced } else { Existing::Kept };
    muster_files::write_whole(path, bytes, Manner { mode, existing, ..Manner::PRIVATE })
}
