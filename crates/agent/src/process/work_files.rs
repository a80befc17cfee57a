//! Files of jobs: fetched from the store that clients share with this host, into a directory that becomes a worker's own. A host
//! inside another scheduler's job has the store of its agent.
//!
//! Each worker gets separate files, which it may change. They are unpacked next to the workers' directories, where nobody else
//! can write, and become the worker's directory by a rename, so a worker has all of them or was never launched.
//!
//! **Invariant:** a start order and a list of files are not believed: every bound and every path is checked here again.

use crate::chain::chain;
use crate::disk::disposal;
use crate::limits;
use crate::offload::blocking;
use crate::process::task::staging;
use crate::rules::WorkerKey;
use crate::turns::Turns;
use muster_blobs::{
    BYTES_MAX, BlobError, BlobStore, Collecting, Store, TreeError, UnpackError, Unpacking, collect,
    place_violation, unpack,
};
use muster_types::blob::{HAS_STORE, STORE_LABEL};
use muster_types::bucket::{BucketConfig, BucketName};
use muster_types::config_value::{bytes, span_ms};
use muster_types::{ArtifactFault, Artifacts, BlobDigest, Violation};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Workers whose files are unpacked at the same time.
const AT_ONCE: usize = 4;
/// Threads that keep artifacts, with those that nobody waits for any more: one stays in a directory or store that hangs. Without a
/// bound they would be all that the agent has for files, its lease among them.
const KEEPING_MAX: usize = 32;
/// Threads that fetch files, in the same way.
const FETCHING_MAX: usize = 32;
/// Artifacts of one worker.
const ARTIFACT_FILES_MAX: usize = 10_000;
/// How long a store that cannot be reached is tried for artifacts.
const ARTIFACTS_RETRIES_MAX: Duration = Duration::from_secs(30);
/// The longest and shortest time for the files of one worker.
const FETCH_MS: (u64, u64) = (1_000, 24 * 3_600_000);
/// Between attempts at a store that cannot be reached: from, to.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// What an operator says of files of jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FilesConfig {
    /// Where the store is that clients share with this host: an absolute path, or `s3://bucket/prefix`. Without it no job with files is
    /// placed here.
    pub store: Option<PathBuf>,
    /// How a store is reached that is a bucket.
    pub s3: BucketConfig,
    /// Bytes that the files of one worker may have.
    #[serde(rename = "size_max", with = "bytes")]
    pub bytes_max: u64,
    /// Milliseconds that the files of one worker may take, attempts after failures included.
    #[serde(rename = "fetch_timeout", with = "span_ms")]
    pub fetch_timeout_ms: u64,
    /// Bytes of the files that are kept of one worker when it has ended.
    #[serde(rename = "artifacts_size_max", with = "bytes")]
    pub artifacts_bytes_max: u64,
    /// Milliseconds that keeping them may take. The worker's end is not told before that.
    #[serde(rename = "artifacts_timeout", with = "span_ms")]
    pub artifacts_timeout_ms: u64,
}

impl Default for FilesConfig {
    fn default() -> FilesConfig {
        FilesConfig {
            store: None,
            s3: BucketConfig::default(),
            bytes_max: BYTES_MAX,
            fetch_timeout_ms: 10 * 60_000,
            artifacts_bytes_max: BYTES_MAX,
            artifacts_timeout_ms: 5 * 60_000,
        }
    }
}

impl FilesConfig {
    /// The first key that breaks its rule, and the rule.
    #[must_use]
    pub fn violation(&self) -> Option<(&'static str, String)> {
        if let Some((key, rule)) = self.store.as_deref().and_then(|store| place_violation(store, &self.s3)) {
            let key = match key {
                None => "files.store",
                Some("endpoint") => "files.s3.endpoint",
                Some("region") => "files.s3.region",
                Some("credentials_file") => "files.s3.credentials_file",
                Some(_) => "files.s3.ca_file",
            };
            return Some((key, rule));
        }
        let is_bucket = self.store.as_deref().and_then(Path::to_str).is_some_and(BucketName::is_meant);
        if !is_bucket && self.s3 != BucketConfig::default() {
            let rule = "must be left out, or `store` must name a bucket: s3://BUCKET/PREFIX";
            return Some(("files.s3", rule.to_owned()));
        }
        let (min, max) = FETCH_MS;
        if !(min..=max).contains(&self.fetch_timeout_ms) {
            let violation = Violation::span("files.fetch_timeout", self.fetch_timeout_ms, min, max);
            return Some(("files.fetch_timeout", violation.description));
        }
        if !(min..=max).contains(&self.artifacts_timeout_ms) {
            let violation = Violation::span("files.artifacts_timeout", self.artifacts_timeout_ms, min, max);
            return Some(("files.artifacts_timeout", violation.description));
        }
        None
    }

    /// The part for a runner, whose store is its agent: the bounds, and not where the store is.
    pub(crate) fn bounds(&self) -> FilesConfig {
        FilesConfig { store: None, s3: BucketConfig::default(), ..self.clone() }
    }

    /// The label of a node that can have files; it goes before what an operator says.
    pub(crate) fn fact(&self) -> Option<(String, String)> {
        self.store.as_ref().map(|_| (STORE_LABEL.to_owned(), HAS_STORE.to_owned()))
    }
}

/// Why a worker does not have its files: a stable word, and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilesError {
    word: &'static str,
    found: String,
}

impl FilesError {
    const NO_STORE: &'static str = "FILES_NO_STORE";
    const NOT_FOUND: &'static str = "FILES_NOT_FOUND";
    const DIGEST_MISMATCH: &'static str = "FILES_DIGEST_MISMATCH";
    const UNREACHABLE: &'static str = "FILES_STORE_UNREACHABLE";
    const INVALID: &'static str = "FILES_INVALID";
    const TOO_LARGE: &'static str = "FILES_TOO_LARGE";
    const TIMED_OUT: &'static str = "FILES_TIMED_OUT";
    const UNUSABLE: &'static str = "FILES_UNUSABLE";

    /// Where the host has no store.
    pub(crate) fn no_store() -> FilesError {
        let found = "this node has no store of files (files.store in its agent's configuration)".to_owned();
        FilesError { word: FilesError::NO_STORE, found }
    }

    fn of(error: &UnpackError) -> FilesError {
        let word = match error {
            UnpackError::Blob(BlobError::NotFound(_)) => FilesError::NOT_FOUND,
            UnpackError::Blob(BlobError::Mismatch(_)) => FilesError::DIGEST_MISMATCH,
            UnpackError::Blob(BlobError::TooLarge { .. })
            | UnpackError::Tree(TreeError::Bytes { .. } | TreeError::Files(_) | TreeError::Directories) => {
                FilesError::TOO_LARGE
            }
            UnpackError::Blob(BlobError::Unreachable(_)) => FilesError::UNREACHABLE,
            UnpackError::Tree(_) | UnpackError::Size { .. } => FilesError::INVALID,
            UnpackError::Blob(BlobError::NoStore(_) | BlobError::Changed | BlobError::Local(_))
            | UnpackError::Write { .. }
            | UnpackError::GivenUp => FilesError::UNUSABLE,
        };
        FilesError { word, found: chain(error) }
    }
}

impl fmt::Display for FilesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.word, self.found)
    }
}

/// A directory with the files of a worker that was not launched yet; removed unless it becomes the worker's.
#[derive(Debug)]
pub(crate) struct Staged(PathBuf);

impl Staged {
    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // It loses its name at once: another attempt may make it again.
        if let Some(tasks) = self.0.parent()
            && let Err(error) = disposal::discard(tasks, &self.0)
        {
            tracing::warn!(path = %self.0.display(), %error, "files of a worker that was not launched stay");
        }
    }
}

/// Gives an unpacking up when it is dropped.
struct GiveUp(Arc<AtomicBool>);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Where the files are that a worker has left, and which ones are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArtifactSource {
    /// The directory that the paths begin in.
    pub(crate) root: PathBuf,
    /// Whether a link may be in its place.
    pub(crate) is_root_followed: bool,
    /// Directories of the host in whose place the worker had others.
    pub(crate) covered: Vec<PathBuf>,
    /// Those in covered ones that it saw all the same.
    pub(crate) shown: Vec<PathBuf>,
    /// As the job names them.
    pub(crate) paths: Vec<String>,
    /// The user that the worker was.
    pub(crate) owner: u32,
}

/// Where objects are: a directory of this host, a bucket, or the store of an agent on another one.
pub(crate) trait SharedStore: fmt::Debug + Send + Sync {
    /// It as a store.
    fn get(&self) -> &dyn BlobStore;
}

impl<T: BlobStore + fmt::Debug + Send + Sync> SharedStore for T {
    fn get(&self) -> &dyn BlobStore {
        self
    }
}

/// The store of this host.
#[derive(Debug)]
pub struct WorkFiles {
    store: Arc<dyn SharedStore>,
    bytes_max: u64,
    time: Duration,
    /// Of those whose files are fetched, in rotation over tenants.
    turns: Turns,
    /// Of those whose artifacts are kept, in rotation over tenants. No worker waits for its files until another one's were kept.
    artifact_turns: Turns,
    /// Each is held by its thread.
    keeping: Arc<Semaphore>,
    fetching: Arc<Semaphore>,
    /// Bytes of the artifacts of one worker, and the time for them.
    artifacts: (u64, Duration),
}

impl WorkFiles {
    /// As an operator says; none where no store is named.
    #[must_use]
    pub fn of(config: &FilesConfig) -> Option<WorkFiles> {
        let store = Store::at(config.store.clone()?, &config.s3);
        Some(WorkFiles::with(config, Arc::new(store)))
    }

    /// Another store, with the bounds that are stated.
    pub(crate) fn with(config: &FilesConfig, store: Arc<dyn SharedStore>) -> WorkFiles {
        WorkFiles {
            store,
            bytes_max: config.bytes_max,
            time: Duration::from_millis(config.fetch_timeout_ms),
            turns: Turns::new(AT_ONCE),
            artifact_turns: Turns::new(AT_ONCE),
            keeping: Arc::new(Semaphore::new(KEEPING_MAX)),
            fetching: Arc::new(Semaphore::new(FETCHING_MAX)),
            artifacts: (config.artifacts_bytes_max, Duration::from_millis(config.artifacts_timeout_ms)),
        }
    }

    /// Puts the files of a worker that has ended into the store, of at most this many bytes and for at most this long. A store
    /// that cannot be reached is tried again for a while.
    pub(crate) async fn keep(
        &self,
        key: WorkerKey,
        tenant: &str,
        left: ArtifactSource,
        (bytes_max, time_max): (Option<u64>, Duration),
    ) -> Artifacts {
        let (own_max, time) = self.artifacts;
        let bytes_max = bytes_max.map_or(own_max, |max| max.min(own_max));
        let until = Instant::now() + time.min(time_max);
        // The worker's devices wait for this.
        let tried_until = until.min(Instant::now() + ARTIFACTS_RETRIES_MAX);
        let out_of_time = Artifacts { fault: Some((ArtifactFault::OutOfTime, 0)), ..Artifacts::default() };
        let Ok(_turn) = tokio::time::timeout_at(until, self.artifact_turns.take(tenant)).await else {
            return out_of_time;
        };
        let left = Arc::new(left);
        let mut pause = PAUSE.0;
        loop {
            let Ok(thread) = Arc::clone(&self.keeping).try_acquire_owned() else {
                tracing::error!(
                    job = %key.job,
                    worker = %key,
                    "directories or the store of earlier workers hang; no files are kept"
                );
                return out_of_time;
            };
            let given_up = Arc::new(AtomicBool::new(false));
            // Also when the caller does not wait for this any more.
            let _give_up = GiveUp(Arc::clone(&given_up));
            let (store, left) = (Arc::clone(&self.store), Arc::clone(&left));
            let attempt = blocking(move || {
                let _thread = thread;
                let is_given_up = || given_up.load(Ordering::Relaxed) || Instant::now() >= until;
                let asked = Collecting {
                    root: &left.root,
                    is_root_followed: left.is_root_followed,
                    covered: &left.covered,
                    shown: &left.shown,
                    paths: &left.paths,
                    owner: Some(left.owner),
                    files_max: ARTIFACT_FILES_MAX,
                    bytes_max,
                    is_given_up: &is_given_up,
                };
                collect(store.get(), &asked)
            });
            // What was kept by then is told, so the attempt has a moment to end by itself.
            let Ok(kept) = tokio::time::timeout_at(until + limits::ARTIFACTS_END_MAX, attempt).await else {
                return out_of_time;
            };
            let is_unreached = kept.fault.is_some_and(|(fault, _)| fault == ArtifactFault::StoreUnreachable);
            if !is_unreached || Instant::now() + pause >= tried_until {
                return kept;
            }
            tracing::warn!(
                job = %key.job,
                worker = %key,
                "the files of a worker are put into the store again"
            );
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Unpacks the files of a worker next to the directories of workers, in `tasks`. `owner` is the user that the worker is;
    /// `disk_bytes_max` is what it may have on the disk, 0 for no bound.
    ///
    /// A store that cannot be reached is tried again until the time is over. So is a disk that hangs, which then keeps one of the
    /// [`FETCHING_MAX`] threads for that.
    pub(crate) async fn fetch(
        &self,
        tasks: &Path,
        (key, tenant): (WorkerKey, &str),
        digest: BlobDigest,
        (owner, disk_bytes_max): (Option<u32>, u64),
    ) -> Result<Staged, FilesError> {
        let until = Instant::now() + self.time;
        let timed_out = |why: &str| {
            let found = format!("not within {} s{why}", self.time.as_secs());
            FilesError { word: FilesError::TIMED_OUT, found }
        };
        let Ok(_turn) = tokio::time::timeout_at(until, self.turns.take(tenant)).await else {
            return Err(timed_out(": other workers are given their files"));
        };
        let bytes_max = if disk_bytes_max == 0 { self.bytes_max } else { self.bytes_max.min(disk_bytes_max) };
        let mut pause = PAUSE.0;
        loop {
            let thread = tokio::time::timeout_at(until, Arc::clone(&self.fetching).acquire_owned());
            let Ok(Ok(thread)) = thread.await else {
                return Err(timed_out(": the disk or the store hangs for workers before this one"));
            };
            let given_up = Arc::new(AtomicBool::new(false));
            // Also when the caller does not wait for this any more.
            let _give_up = GiveUp(Arc::clone(&given_up));
            let (store, tasks) = (Arc::clone(&self.store), tasks.to_owned());
            let attempt = blocking(move || {
                let _thread = thread;
                let staged = Staged(staging(&tasks, key));
                // What an attempt before has left.
                disposal::discard(&tasks, staged.path())
                    .map_err(|error| UnpackError::Write { path: staged.path().to_owned(), error })?;
                let is_given_up = || given_up.load(Ordering::Relaxed);
                let owner = owner.map(|user| (user, user));
                let asked =
                    Unpacking { digest, into: staged.path(), bytes_max, owner, is_given_up: &is_given_up };
                unpack(store.get(), &asked).map(|()| staged)
            });
            let error = match tokio::time::timeout_at(until, attempt).await {
                Ok(Ok(staged)) => return Ok(staged),
                Ok(Err(error)) => FilesError::of(&error),
                Err(_) => return Err(timed_out("")),
            };
            if error.word != FilesError::UNREACHABLE || Instant::now() + pause >= until {
                return Err(error);
            }
            tracing::warn!(job = %key.job, worker = %key, %error, "the files of a worker are fetched again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_blobs::{BlobDirectory, pack};
    use muster_types::{FencingToken, JobId, LogIndex};

    fn key() -> WorkerKey {
        let token = FencingToken { generation: 1, log_index: LogIndex(9) };
        WorkerKey { job: JobId(1), token, rank: 0 }
    }

    struct Bench {
        scratch: tempfile::TempDir,
        files: WorkFiles,
    }

    impl Bench {
        /// With a store that nobody has made yet.
        fn new(time_ms: u64) -> Bench {
            let scratch = tempfile::tempdir().unwrap();
            for name in ["store", "tasks", "work"] {
                std::fs::create_dir(scratch.path().join(name)).unwrap();
            }
            let store = Some(scratch.path().join("store"));
            let config = FilesConfig { store, fetch_timeout_ms: time_ms, ..FilesConfig::default() };
            Bench { files: WorkFiles::of(&config).unwrap(), scratch }
        }

        fn put(&self) -> BlobDigest {
            let work = self.scratch.path().join("work");
            std::fs::write(work.join("train.py"), "print(1)").unwrap();
            let store = BlobDirectory::open_or_make(self.scratch.path().join("store")).unwrap();
            let packed = pack(&work).unwrap();
            packed.send(&store, &mut |_| ()).unwrap();
            packed.digest()
        }

        async fn fetch(&self, digest: BlobDigest, disk: u64) -> Result<Staged, FilesError> {
            let tasks = self.scratch.path().join("tasks");
            self.files.fetch(&tasks, (key(), "research"), digest, (None, disk)).await
        }

        fn tasks(&self) -> usize {
            std::fs::read_dir(self.scratch.path().join("tasks")).unwrap().count()
        }
    }

    #[tokio::test]
    async fn files_are_there_whole_and_go_when_nobody_takes_them() {
        let bench = Bench::new(20_000);
        let digest = bench.put();
        let staged = bench.fetch(digest, 0).await.unwrap();
        assert_eq!(std::fs::read_to_string(staged.path().join("train.py")).unwrap(), "print(1)");
        // What an attempt before has left is not in the way.
        std::mem::forget(staged);
        let staged = bench.fetch(digest, 0).await.unwrap();
        drop(staged);
        while bench.tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn what_cannot_be_had_has_a_stable_word() {
        let bench = Bench::new(20_000);
        let digest = bench.put();
        let word = async |digest, disk| bench.fetch(digest, disk).await.unwrap_err().word;
        assert_eq!(word(BlobDigest::new([3; 32]), 0).await, FilesError::NOT_FOUND);
        assert_eq!(word(digest, 4).await, FilesError::TOO_LARGE);
        let digits = digest.digits();
        let (first, _) = digits.split_at(2);
        let list = bench.scratch.path().join("store/objects").join(first).join(&digits);
        std::fs::write(&list, "no list").unwrap();
        assert_eq!(word(digest, 0).await, FilesError::DIGEST_MISMATCH);
    }

    #[tokio::test]
    async fn a_store_that_is_not_mounted_is_waited_for() {
        let bench = Bench::new(20_000);
        let digest = {
            let digest = bench.put();
            std::fs::rename(bench.scratch.path().join("store"), bench.scratch.path().join("away")).unwrap();
            digest
        };
        let mount = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            std::fs::rename(bench.scratch.path().join("away"), bench.scratch.path().join("store")).unwrap();
        };
        let (fetched, ()) = tokio::join!(bench.fetch(digest, 0), mount);
        assert!(fetched.is_ok(), "{fetched:?}");
        let absent = Bench::new(1_000);
        assert_eq!(absent.fetch(digest, 0).await.unwrap_err().word, FilesError::UNREACHABLE);
    }

    fn left(bench: &Bench) -> ArtifactSource {
        use std::os::unix::fs::MetadataExt as _;

        let root = bench.scratch.path().join("work");
        let owner = std::fs::metadata(&root).unwrap().uid();
        let paths = vec!["train.py".to_owned()];
        ArtifactSource { root, is_root_followed: false, covered: Vec::new(), shown: Vec::new(), paths, owner }
    }

    #[tokio::test]
    async fn threads_that_hang_are_bounded_and_an_end_waits_for_none() {
        let bench = Bench::new(20_000);
        bench.put();
        let bounds = (None, Duration::from_secs(20));
        let hanging = Arc::clone(&bench.files.keeping);
        let hanging = hanging.acquire_many_owned(u32::try_from(KEEPING_MAX).unwrap()).await.unwrap();
        let kept = bench.files.keep(key(), "research", left(&bench), bounds).await;
        assert_eq!(kept.fault, Some((ArtifactFault::OutOfTime, 0)));
        drop(hanging);
        assert_eq!(bench.files.keep(key(), "research", left(&bench), bounds).await.files, 1);
    }

    #[tokio::test]
    async fn threads_that_hang_while_they_fetch_are_bounded() {
        let mut bench = Bench::new(50);
        let digest = bench.put();
        let hanging = Arc::clone(&bench.files.fetching);
        let hanging = hanging.acquire_many_owned(u32::try_from(FETCHING_MAX).unwrap()).await.unwrap();
        assert_eq!(bench.fetch(digest, 0).await.unwrap_err().word, FilesError::TIMED_OUT);
        drop(hanging);
        bench.files.time = Duration::from_secs(20);
        assert!(bench.fetch(digest, 0).await.is_ok());
    }

    #[tokio::test]
    async fn a_tenant_whose_files_take_long_leaves_a_turn_to_others() {
        let bench = Bench::new(20_000);
        let digest = bench.put();
        let mut turns = Vec::new();
        for _ in 1..AT_ONCE {
            turns.push(bench.files.turns.take("many").await);
        }
        let more = tokio::time::timeout(Duration::ZERO, bench.files.turns.take("many")).await;
        assert!(more.is_err(), "the last one is for another tenant");
        assert!(bench.fetch(digest, 0).await.is_ok());
    }

    #[tokio::test]
    async fn artifacts_of_others_delay_no_files_of_a_worker() {
        let bench = Bench::new(20_000);
        let digest = bench.put();
        // As if four workers left files that take long.
        let mut turns = Vec::new();
        for other in 0..AT_ONCE {
            turns.push(bench.files.artifact_turns.take(&format!("tenant-{other}")).await);
        }
        assert!(bench.fetch(digest, 0).await.is_ok());
        let kept = bench.files.keep(key(), "research", left(&bench), (None, Duration::from_millis(50))).await;
        assert_eq!(kept.fault, Some((ArtifactFault::OutOfTime, 0)));
    }

    #[test]
    fn keys_that_cannot_be_meant_are_named() {
        let usual = FilesConfig::default();
        assert_eq!((usual.violation(), usual.fact()), (None, None));
        let key = |config: FilesConfig| config.violation().map(|(key, _)| key);
        let relative = Some(PathBuf::from("store"));
        assert_eq!(key(FilesConfig { store: relative, ..usual.clone() }), Some("files.store"));
        let bucket = FilesConfig { store: Some(PathBuf::from("s3://files/prod")), ..usual.clone() };
        assert_eq!(key(bucket.clone()), None);
        let s3 = BucketConfig { endpoint: Some("http://minio:9000".to_owned()), ..BucketConfig::default() };
        assert_eq!(key(FilesConfig { s3: s3.clone(), ..bucket }), Some("files.s3.endpoint"));
        assert_eq!(key(FilesConfig { s3: s3.clone(), ..usual.clone() }), Some("files.s3"));
        let directory = Some(PathBuf::from("/mnt/shared"));
        assert_eq!(key(FilesConfig { store: directory, s3, ..usual.clone() }), Some("files.s3"));
        assert_eq!(key(FilesConfig { fetch_timeout_ms: 1, ..usual }), Some("files.fetch_timeout"));
    }
}
