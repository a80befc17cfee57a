//! The newest token this node has seen of each job, on disk before anything is launched with it.
//!
//! One record per job holds the token and the ranks it came with; they are appended to one file, which is
//! rewritten when most of it is outdated. What is remembered cannot grow without end: the lowest tokens are folded into one
//! **floor** below which no unknown job starts. That is
//! sound because tokens are log positions, ordered over all jobs: an order below the floor is older
//! than 16,384 later placements on this node, and refusing a current one only costs a new placement.
//!
//! **Invariant:** a launch is permitted by a token strictly above everything persisted for its job
//! and above the floor, and that token is durable before the launch.

use crate::disk::durable::{DurableError, read_record};
use crate::disk::fence_log::FenceLog;
use crate::rules::FenceTable;
pub use crate::rules::{Fence, TokenOrder};
use muster_types::{FencingToken, JobId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// Bytes of records from which on the file is rewritten, when they are also twice what it has to hold.
const LOG_BYTES_REWRITTEN: u64 = 1 << 20;

/// What the file says, one after another.
#[derive(Debug, Serialize, Deserialize)]
enum Entry {
    /// The newest token of a job.
    Fence(JobId, Fence),
    /// No job is known from below this token, except those that follow.
    Floor(FencingToken),
}

/// The fences of this node.
#[derive(Debug)]
pub struct Fences {
    path: PathBuf,
    log: FenceLog,
    /// Bytes of the log when it was last rewritten.
    rewritten_bytes: u64,
    /// A rewrite has failed since the last one that succeeded.
    is_rewrite_owed: bool,
    table: FenceTable,
}

/// What kept fences from being read.
#[derive(Debug, thiserror::Error)]
pub enum FencingError {
    /// The directory cannot be listed or made.
    #[error("open the fencing directory {path}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A record cannot be read: a lost token could start a revoked gang, so nothing is guessed.
    #[error("read a fencing record")]
    Record(#[source] DurableError),
}

impl Fences {
    /// Reads every fence in `directory`, keeping at most `jobs_max` of them one by one.
    ///
    /// # Errors
    /// When anything there cannot be read whole.
    pub fn open(directory: &Path, jobs_max: usize) -> Result<Fences, FencingError> {
        let fail = |source| FencingError::Directory { path: directory.to_owned(), source };
        std::fs::create_dir_all(directory).map_err(fail)?;
        let path = directory.join("log");
        let opened = FenceLog::open::<Entry>(&path).map_err(FencingError::Record)?;
        let mut table = FenceTable::new(jobs_max);
        let log = match opened {
            Some((log, entries)) => {
                for entry in entries {
                    match entry {
                        Entry::Fence(job, fence) => table.restore(job, fence),
                        Entry::Floor(token) => table.restore_floor(token),
                    }
                }
                log
            }
            None => {
                let (jobs, floor) = earlier(directory)?;
                table.restore_floor(floor);
                for (job, fence) in jobs {
                    table.restore(job, fence);
                }
                FenceLog::replace(&path, entries(&table)).map_err(FencingError::Record)?
            }
        };
        // In the one file by now; what cannot be removed is never looked at again.
        for job in directories(directory)?.keys() {
            let _ = std::fs::remove_dir_all(directory.join(job.to_string()));
        }
        let rewritten_bytes = log.bytes();
        Ok(Fences { path, log, rewritten_bytes, is_rewrite_owed: false, table })
    }

    /// What `token` is for `job`.
    #[must_use]
    pub fn standing(&self, job: JobId, token: FencingToken) -> TokenOrder {
        self.table.standing(job, token)
    }

    /// What is remembered of a job.
    #[must_use]
    pub fn of(&self, job: JobId) -> Option<&Fence> {
        self.table.of(job)
    }

    /// All of them.
    pub(crate) fn table(&self) -> &FenceTable {
        &self.table
    }

    /// Persists a newer token with its ranks; an older or equal one changes nothing.
    ///
    /// # Errors
    /// When it cannot be made durable: then it must not be launched.
    pub fn raise(
        &mut self,
        job: JobId,
        token: FencingToken,
        ranks: BTreeSet<u32>,
    ) -> Result<(), DurableError> {
        if self.standing(job, token) != TokenOrder::Newer {
            return Ok(());
        }
        // After a rewrite that failed it is not known which file a restart reads, so nothing is appended before one has succeeded.
        if self.is_rewrite_owed {
            self.rewrite()?;
        }
        let fence = Fence { token, ranks };
        self.log.append(&Entry::Fence(job, fence.clone()))?;
        self.table.raise(job, fence);
        self.prune(job)
    }

    /// Folds the lowest tokens into the floor, and keeps the file small.
    fn prune(&mut self, keep: JobId) -> Result<(), DurableError> {
        let outdated = self.log.bytes() > LOG_BYTES_REWRITTEN.max(2 * self.rewritten_bytes);
        if self.table.fold(keep) || outdated { self.rewrite() } else { Ok(()) }
    }

    /// Rewrites the file, with nothing in it that does not count.
    fn rewrite(&mut self) -> Result<(), DurableError> {
        self.is_rewrite_owed = true;
        self.log = FenceLog::replace(&self.path, entries(&self.table))?;
        self.is_rewrite_owed = false;
        self.rewritten_bytes = self.log.bytes();
        Ok(())
    }
}

/// What the file has to say: the floor first, for it takes back what is below it.
fn entries(table: &FenceTable) -> impl Iterator<Item = Entry> {
    let fences = table.jobs().iter().map(|(job, fence)| Entry::Fence(*job, fence.clone()));
    std::iter::once(Entry::Floor(table.floor())).chain(fences)
}

/// Directories of single jobs, as they were kept before there was one file.
fn directories(directory: &Path) -> Result<BTreeMap<JobId, PathBuf>, FencingError> {
    let fail = |source| FencingError::Directory { path: directory.to_owned(), source };
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name();
        if let Some(job) = name.to_str().and_then(|name| name.parse::<JobId>().ok()) {
            found.insert(job, entry.path());
        }
    }
    Ok(found)
}

/// What an agent before this one has left in such directories.
fn earlier(directory: &Path) -> Result<(BTreeMap<JobId, Fence>, FencingToken), FencingError> {
    let floor = read_record(&directory.join("floor")).map_err(FencingError::Record)?.unwrap_or_default();
    let mut jobs = BTreeMap::new();
    for (job, path) in directories(directory)? {
        if let Some(fence) = read_record(&path.join("token")).map_err(FencingError::Record)? {
            jobs.insert(job, fence);
        }
    }
    Ok((jobs, floor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::LogIndex;

    fn token(index: u64) -> FencingToken {
        FencingToken { generation: 1, log_index: LogIndex(index) }
    }

    #[test]
    fn behind_a_rewrite_that_failed_nothing_is_acknowledged_before_one_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let mut fences = Fences::open(dir.path(), 4).unwrap();
        // No file can be written where there is a directory.
        let blocker = dir.path().join("log.new");
        std::fs::create_dir(&blocker).unwrap();
        let failed = (1..=16).find(|job| fences.raise(JobId(*job), token(*job), BTreeSet::new()).is_err());
        let last = failed.expect("more tokens than are kept one by one need a rewrite");
        assert!(fences.raise(JobId(last), token(99), BTreeSet::new()).is_err());
        std::fs::remove_dir(&blocker).unwrap();
        fences.raise(JobId(last), token(99), BTreeSet::new()).unwrap();
        let fences = Fences::open(dir.path(), 4).unwrap();
        assert_eq!(fences.standing(JobId(last), token(99)), TokenOrder::Same);
    }

    #[test]
    fn only_a_newer_token_passes_and_it_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut fences = Fences::open(dir.path(), 10).unwrap();
        assert_eq!(fences.standing(JobId(1), token(5)), TokenOrder::Newer);
        fences.raise(JobId(1), token(5), BTreeSet::from([0, 2])).unwrap();
        fences.raise(JobId(1), token(4), BTreeSet::from([9])).unwrap();
        let fences = Fences::open(dir.path(), 10).unwrap();
        assert_eq!(fences.standing(JobId(1), token(5)), TokenOrder::Same);
        assert_eq!(fences.standing(JobId(1), token(4)), TokenOrder::Older);
        let rebuilt = FencingToken { generation: 2, log_index: LogIndex(1) };
        assert_eq!(fences.standing(JobId(1), rebuilt), TokenOrder::Newer);
        assert_eq!(fences.of(JobId(1)).unwrap().ranks, BTreeSet::from([0, 2]));
    }

    #[test]
    fn a_damaged_record_is_an_error_and_not_a_missing_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut fences = Fences::open(dir.path(), 10).unwrap();
        for index in [5, 6] {
            fences.raise(JobId(1), token(index), BTreeSet::new()).unwrap();
        }
        let path = dir.path().join("log");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[9] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(matches!(Fences::open(dir.path(), 10), Err(FencingError::Record(_))));
    }

    #[test]
    fn what_an_earlier_release_kept_in_folders_is_taken_over_once() {
        let dir = tempfile::tempdir().unwrap();
        let fence = Fence { token: token(5), ranks: BTreeSet::from([3]) };
        std::fs::create_dir(dir.path().join("job-1")).unwrap();
        crate::disk::durable::write_record(&dir.path().join("job-1/token"), &fence).unwrap();
        crate::disk::durable::write_record(&dir.path().join("floor"), &token(2)).unwrap();
        for _ in 0..2 {
            let fences = Fences::open(dir.path(), 10).unwrap();
            assert_eq!(fences.of(JobId(1)), Some(&fence));
            assert_eq!(fences.standing(JobId(9), token(2)), TokenOrder::Older);
            assert!(!dir.path().join("job-1").exists());
        }
        std::fs::create_dir(dir.path().join("job-1")).unwrap();
        std::fs::remove_file(dir.path().join("log")).unwrap();
        std::fs::write(dir.path().join("job-1/token"), b"muster-record 1 00000000 2\n{}").unwrap();
        assert!(matches!(Fences::open(dir.path(), 10), Err(FencingError::Record(_))));
    }

    #[test]
    fn the_file_stays_small_however_often_a_job_is_placed() {
        let dir = tempfile::tempdir().unwrap();
        let mut fences = Fences::open(dir.path(), 10).unwrap();
        let ranks: BTreeSet<u32> = (0..16_384).collect();
        for index in 1..=40 {
            fences.raise(JobId(1), token(index), ranks.clone()).unwrap();
        }
        assert!(fences.log.bytes() <= LOG_BYTES_REWRITTEN + (128 << 10), "{}", fences.log.bytes());
        let fences = Fences::open(dir.path(), 10).unwrap();
        assert_eq!(fences.standing(JobId(1), token(40)), TokenOrder::Same);
    }

    #[test]
    fn pruned_jobs_stay_fenced_by_the_floor() {
        let dir = tempfile::tempdir().unwrap();
        let mut fences = Fences::open(dir.path(), 8).unwrap();
        for job in 1..=30 {
            fences.raise(JobId(job), token(100 + job), BTreeSet::new()).unwrap();
        }
        let fences = Fences::open(dir.path(), 8).unwrap();
        assert!(fences.table.jobs().len() <= 9);
        for job in 1..=30 {
            assert_ne!(fences.standing(JobId(job), token(100 + job)), TokenOrder::Newer, "job {job}");
        }
        assert_eq!(fences.standing(JobId(31), token(131)), TokenOrder::Newer);
    }
}
