//! Temporary files of a worker that shares `/tmp` with the host: a separate directory (`TMPDIR`), which goes with the attempt. What
//! has its own `/tmp` needs none.

use crate::rules::WorkerKey;
use muster_types::HolderId;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The variable by which programs find the directory.
pub(crate) const VARIABLE: &str = "TMPDIR";
/// How its name begins.
const PREFIX: &str = "muster-";
/// Sockets may be below it, whose paths have 107 bytes at most.
const BASE_BYTES_MAX: usize = 16;

/// Where temporary files go that may be sockets.
pub(crate) fn short_base() -> PathBuf {
    let usual = std::env::temp_dir();
    if usual.as_os_str().len() <= BASE_BYTES_MAX { usual } else { PathBuf::from("/tmp") }
}

/// The directory of a worker. Nobody else can guess it, and so nobody take it.
pub(crate) fn of(key: WorkerKey, holder: HolderId) -> PathBuf {
    let worker = format!("{}_{}_{}", key.job, key.token, key.rank);
    let hash = Sha256::new()
        .chain_update(b"muster temporary files\0")
        .chain_update(holder.0.to_le_bytes())
        .chain_update(worker.as_bytes())
        .finalize();
    let name: String = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    short_base().join(format!("{PREFIX}{name}"))
}

/// The directory of the worker that this process belongs to, if it has one.
pub(crate) fn own() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).map(PathBuf::from).filter(|path| is_one(path))
}

fn is_one(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_has_a_directory_that_no_other_has() {
        let key = |rank| WorkerKey { job: muster_types::JobId(7), token: Default::default(), rank };
        let directory = of(key(0), HolderId(1));
        assert!(is_one(&directory) && directory.as_os_str().len() <= 36, "{}", directory.display());
        assert_ne!(of(key(1), HolderId(1)), directory);
        assert_ne!(of(key(0), HolderId(2)), directory);
        assert!(!is_one(Path::new("/tmp")));
    }
}
