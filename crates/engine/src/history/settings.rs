//! How history is kept, and the archive that it is kept in.

use futures::future::BoxFuture;
use muster_archive::{Archive, ArchiveError, ArchivedRound, Bounds, DirectoryStore};
use muster_types::ClusterId;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Where another replica's rounds come from.
pub trait PeerHistory: Send + Sync + 'static {
    /// Rounds from `raft_index` on, as many as the peer gives at a time, and the first entry behind them.
    /// The text of an error is for the log.
    fn rounds(
        &self,
        endpoint: String,
        raft_index: u64,
    ) -> BoxFuture<'static, Result<(Vec<ArchivedRound>, u64), String>>;
}

/// An archive that could not be opened. The replica serves without it, keeps its log, and tries again.
#[derive(Clone)]
pub struct UnopenedArchive {
    /// Its directory, for people.
    pub place: String,
    /// Why it could not be opened.
    pub reason: String,
    /// Tries again; blocks.
    pub open: Arc<dyn Fn() -> Result<Archive, ArchiveError> + Send + Sync>,
}

/// An error of the archive with its causes, for people.
#[must_use]
pub fn archive_error_text(error: &ArchiveError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// What the archive keeps on its own disk, and where the rest goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The directory that takes what does not stay. It has to be there: a disk that is not mounted is not written into.
    pub offload_dir: PathBuf,
    /// What stays.
    pub bounds: Bounds,
}

/// How history is kept.
#[derive(Clone)]
pub struct HistorySettings {
    /// The archive; none for no more history than the log has.
    pub archive: Option<Arc<Archive>>,
    /// An archive that is to be kept and could not be opened at the start.
    pub unopened: Option<UnopenedArchive>,
    /// What the archive keeps on its own disk; none for everything.
    pub retention: Option<Retention>,
    /// A segment is closed at this age, whatever its size.
    pub segment_age: Duration,
    /// Where missing records come from; none for nowhere.
    pub peers: Option<Arc<dyn PeerHistory>>,
}

impl HistorySettings {
    /// With an archive that closes its segments at the usual age.
    #[must_use]
    pub fn new(archive: Option<Arc<Archive>>) -> HistorySettings {
        HistorySettings {
            archive,
            unopened: None,
            retention: None,
            segment_age: Duration::from_secs(600),
            peers: None,
        }
    }
}

/// Opens the archive in a directory. Blocks.
///
/// # Errors
/// When the directory cannot be used, or what is in it is another cluster's. A damaged segment at its end is set aside, and
/// what it had comes from the log or from another replica.
pub fn open_archive(dir: &std::path::Path, cluster: ClusterId) -> Result<Archive, ArchiveError> {
    let store = DirectoryStore::open(dir).map_err(|source| ArchiveError::Store {
        operation: "opening",
        object: dir.display().to_string(),
        source,
    })?;
    Archive::open_and_mend(Arc::new(store), Some(cluster))
}

/// Up to which Raft entry the log of a replica whose directory is of this generation of the cluster may be purged.
#[must_use]
pub fn purge_up_to(archive: &Archive, generation: u32) -> u64 {
    // Entries of another generation are counted in another way.
    let end = archive.end().filter(|end| end.generation >= generation);
    end.map_or(0, |end| end.next_raft.saturating_sub(1))
}

/// On a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ArchiveError> + Send + 'static,
) -> Result<T, ArchiveError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
