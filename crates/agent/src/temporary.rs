//! Temporary files of a worker that shares `/tmp` with the host: a separate directory (`TMPDIR`), which goes with the attempt. What
//! has its own `/tmp` needs none.

use crate::rules::{Launch, Placement, WorkerKey};
use muster_types::HolderId;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The variable by which programs find the directory.
pub(crate) const VARIABLE: &str = "TMPDIR";
/// The variable that names the directory of a worker whose job has asked for scratch.
pub(crate) const SCRATCH_VARIABLE: &str = "MUSTER_SCRATCH";
/// Bytes of the path that scratch directories may be below, for the same sockets.
pub(crate) const SCRATCH_BASE_BYTES_MAX: usize = 40;
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
    below(&short_base(), key, holder)
}

/// The same below another directory than that of the host's temporary files.
pub(crate) fn below(base: &Path, key: WorkerKey, holder: HolderId) -> PathBuf {
    let worker = format!("{}_{}_{}", key.job, key.token, key.rank);
    let hash = Sha256::new()
        .chain_update(b"muster temporary files\0")
        .chain_update(holder.0.to_le_bytes())
        .chain_update(worker.as_bytes())
        .finalize();
    let name: String = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    base.join(format!("{PREFIX}{name}"))
}

/// The scratch directory of a worker; none where its job asks for none.
///
/// # Errors
/// One sentence, where this host gives no scratch.
pub(crate) fn scratch_of(
    base: Option<&Path>,
    placement: &Placement,
    key: WorkerKey,
    holder: HolderId,
) -> Result<Option<PathBuf>, String> {
    if placement.scratch_bytes == 0 {
        return Ok(None);
    }
    let missing = "this host gives no scratch; `scratch_dir` of its agent's configuration says where it is";
    Ok(Some(below(base.ok_or(missing)?, key, holder)))
}

/// What a worker finds its directories by. One that its job names for temporary files stays what it is.
pub(crate) fn variables(
    scratch: Option<&Path>,
    temporary: Option<&Path>,
    worker: &Launch,
) -> Vec<(String, String)> {
    let said = |name: &str, path: &Path| (name.to_owned(), path.display().to_string());
    let is_named = worker.environment.contains_key(VARIABLE);
    let temporary = temporary.filter(|_| !is_named).map(|path| said(VARIABLE, path));
    scratch.map(|path| said(SCRATCH_VARIABLE, path)).into_iter().chain(temporary).collect()
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
        let scratch = below(Path::new("/local/scratch"), key(0), HolderId(1));
        assert!(is_one(&scratch) && scratch.starts_with("/local/scratch"), "{}", scratch.display());
    }
}
