//! The newest token this node has seen of each job, on disk before anything is launched with it.
//!
//! One record per job holds the token and the ranks it came with. The folder cannot grow without
//! end: the lowest tokens are folded into one **floor** below which no unknown job starts. That is
//! sound because tokens are log positions, ordered over all jobs: an order below the floor is older
//! than 16,384 later placements on this node, and refusing a current one only costs a new placement.
//!
//! **Invariant:** a launch is permitted by a token strictly above everything persisted for its job
//! and above the floor, and that token is durable before the launch.

use crate::durable::{DurableError, read_record, write_record};
use muster_types::{FencingToken, JobId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// What is remembered of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The newest token seen.
    pub token: FencingToken,
    /// Ranks of the start order with this token; empty when only a stop was seen.
    pub ranks: BTreeSet<u32>,
}

/// What a token is against what was seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Newer than all: may be launched.
    Newer,
    /// The one that is already persisted: never launched a second time.
    Same,
    /// Below it.
    Older,
}

/// The fences of this node.
#[derive(Debug)]
pub struct Fences {
    folder: PathBuf,
    jobs: BTreeMap<JobId, Fence>,
    floor: FencingToken,
    jobs_max: usize,
}

/// What kept fences from being read.
#[derive(Debug, thiserror::Error)]
pub enum FencingError {
    /// The folder cannot be listed or made.
    #[error("open the fencing folder {path}")]
    Folder {
        /// The folder.
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
    /// Reads every fence below `folder`, keeping at most `jobs_max` of them one by one.
    ///
    /// # Errors
    /// When anything there cannot be read whole.
    pub fn open(folder: &Path, jobs_max: usize) -> Result<Fences, FencingError> {
        let fail = |source| FencingError::Folder { path: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(fail)?;
        let floor = read_record(&folder.join("floor")).map_err(FencingError::Record)?.unwrap_or_default();
        let mut jobs = BTreeMap::new();
        for entry in std::fs::read_dir(folder).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name();
            let Some(job) = name.to_str().and_then(|n| n.parse::<JobId>().ok()) else { continue };
            if let Some(fence) = read_record(&entry.path().join("token")).map_err(FencingError::Record)? {
                jobs.insert(job, fence);
            }
        }
        Ok(Fences { folder: folder.to_owned(), jobs, floor, jobs_max: jobs_max.max(1) })
    }

    /// What `token` is for `job`.
    #[must_use]
    pub fn standing(&self, job: JobId, token: FencingToken) -> Standing {
        match self.jobs.get(&job) {
            Some(fence) if token == fence.token => Standing::Same,
            Some(fence) if token < fence.token => Standing::Older,
            Some(_) => Standing::Newer,
            None if token <= self.floor => Standing::Older,
            None => Standing::Newer,
        }
    }

    /// What is remembered of a job.
    #[must_use]
    pub fn of(&self, job: JobId) -> Option<&Fence> {
        self.jobs.get(&job)
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
        if self.standing(job, token) != Standing::Newer {
            return Ok(());
        }
        let folder = self.folder.join(job.to_string());
        let fence = Fence { token, ranks };
        let fail = |source| DurableError::Write { path: folder.clone(), source };
        if !folder.is_dir() {
            std::fs::create_dir_all(&folder).map_err(fail)?;
            crate::durable::sync_folder(&self.folder).map_err(fail)?;
        }
        write_record(&folder.join("token"), &fence)?;
        self.jobs.insert(job, fence);
        self.prune(job)
    }

    /// Folds the lowest tokens into the floor. The floor is durable before any record goes.
    fn prune(&mut self, keep: JobId) -> Result<(), DurableError> {
        // An eighth of slack, so that the sort is paid once in a while.
        if self.jobs.len() <= self.jobs_max + self.jobs_max / 8 {
            return Ok(());
        }
        let mut by_token: Vec<(FencingToken, JobId)> =
            self.jobs.iter().filter(|(job, _)| **job != keep).map(|(job, f)| (f.token, *job)).collect();
        by_token.sort_unstable();
        let surplus = self.jobs.len() - self.jobs_max;
        let out = &by_token[..surplus.min(by_token.len())];
        if let Some((highest, _)) = out.last() {
            let floor = self.floor.max(*highest);
            write_record(&self.folder.join("floor"), &floor)?;
            self.floor = floor;
        }
        for (_, job) in out {
            self.jobs.remove(job);
            // A folder that stays is read again at the next start: harmless, it only fences more.
            if let Err(error) = std::fs::remove_dir_all(self.folder.join(job.to_string())) {
                tracing::warn!(%job, %error, "an old fencing record could not be removed");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::LogIndex;

    fn token(index: u64) -> FencingToken {
        FencingToken { generation: 1, log_index: LogIndex(index) }
    }

    #[test]
    fn only_a_newer_token_passes_and_it_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut fences = Fences::open(dir.path(), 10).unwrap();
        assert_eq!(fences.standing(JobId(1), token(5)), Standing::Newer);
        fences.raise(JobId(1), token(5), BTreeSet::from([0, 2])).unwrap();
        fences.raise(JobId(1), token(4), BTreeSet::from([9])).unwrap();
        let fences = Fences::open(dir.path(), 10).unwrap();
        assert_eq!(fences.standing(JobId(1), token(5)), Standing::Same);
        assert_eq!(fences.standing(JobId(1), token(4)), Standing::Older);
        let rebuilt = FencingToken { generation: 2, log_index: LogIndex(1) };
        assert_eq!(fences.standing(JobId(1), rebuilt), Standing::Newer);
        assert_eq!(fences.of(JobId(1)).unwrap().ranks, BTreeSet::from([0, 2]));
    }

    #[test]
    fn a_damaged_record_is_an_error_and_not_a_missing_one() {
        let dir = tempfile::tempdir().unwrap();
        Fences::open(dir.path(), 10).unwrap().raise(JobId(1), token(5), BTreeSet::new()).unwrap();
        std::fs::write(dir.path().join("job-1/token"), b"muster-record 1 00000000 2\n{}").unwrap();
        assert!(matches!(Fences::open(dir.path(), 10), Err(FencingError::Record(_))));
    }

    #[test]
    fn pruned_jobs_stay_fenced_by_the_floor() {
        let dir = tempfile::tempdir().unwrap();
        let mut fences = Fences::open(dir.path(), 8).unwrap();
        for job in 1..=30 {
            fences.raise(JobId(job), token(100 + job), BTreeSet::new()).unwrap();
        }
        let fences = Fences::open(dir.path(), 8).unwrap();
        assert!(fences.jobs.len() <= 9);
        for job in 1..=30 {
            assert_ne!(fences.standing(JobId(job), token(100 + job)), Standing::Newer, "job {job}");
        }
        assert_eq!(fences.standing(JobId(31), token(131)), Standing::Newer);
    }
}
