//! What is on disk of one share: this node's part of one placement, as one job of another scheduler.
//!
//! Next to the directories of its workers (`tasks/`, as for processes of the host: output, end,
//! acknowledgement) there is one record, `shares/<job>_<token>`, written before anything is asked
//! there and whenever it must not be forgotten what was asked or granted.
//!
//! **Invariant:** no job exists there without a record that was durable before it; a record says
//! `granted` before the runner hears it.

use crate::disk::durable::{self, DurableError, read_record, write_record};
use crate::process::artifacts;
use crate::process::task::TaskDir;
use crate::rules::{Placement, WorkerKey};
use muster_transport::SharedIdentity;
use muster_types::{Artifacts, ExitStatus, FencingToken, JobId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// The record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record<T> {
    pub(crate) placement: Placement,
    pub(crate) epoch: u64,
    pub(crate) identity: SharedIdentity,
    /// How far its job is known.
    pub(crate) stage: T,
    /// The runner that was told to launch.
    pub(crate) granted: Option<String>,
}

/// Where the records and the workers' directories of one node are.
#[derive(Clone, Debug)]
pub(crate) struct Directories {
    pub(crate) shares: PathBuf,
    pub(crate) tasks: PathBuf,
}

/// What a share is found by.
pub(crate) type ShareKey = (JobId, FencingToken);

fn file_name((job, token): ShareKey) -> String {
    format!("{job}_{token}")
}

fn key_of_name(name: &str) -> Option<ShareKey> {
    let (job, token) = name.split_once('_')?;
    Some((job.parse().ok()?, token.parse().ok()?))
}

impl Directories {
    pub(crate) fn task(&self, key: WorkerKey) -> TaskDir {
        TaskDir::of(&self.tasks, key)
    }

    fn path(&self, key: ShareKey) -> PathBuf {
        self.shares.join(file_name(key))
    }

    /// Makes the workers' directories and the record; whether they are new.
    ///
    /// # Errors
    /// When something cannot be made durable; then nothing may be submitted.
    pub(crate) fn begin<T: Serialize>(&self, record: &Record<T>) -> io::Result<bool> {
        let placement = &record.placement;
        let key = (placement.job, placement.token);
        if self.path(key).exists() {
            return Ok(false);
        }
        let tasks: Vec<TaskDir> = placement.ranks().map(|rank| self.task(placement.key(rank))).collect();
        // Of a refusal, or of an agent that died right here.
        if tasks.iter().any(|task| task.path().exists()) {
            return Ok(false);
        }
        for task in tasks {
            make(task.path())?;
        }
        durable::sync_directory(&self.tasks)?;
        self.write(record).map_err(io::Error::other)?;
        Ok(true)
    }

    /// Replaces the record.
    ///
    /// # Errors
    /// When it is not durable.
    pub(crate) fn write<T: Serialize>(&self, record: &Record<T>) -> Result<(), DurableError> {
        write_record(&self.path((record.placement.job, record.placement.token)), record)
    }

    /// Every record.
    ///
    /// # Errors
    /// When one cannot be read: what it stood for may be running.
    pub(crate) fn records<T: DeserializeOwned>(&self) -> Result<Vec<Record<T>>, DurableError> {
        let fail = |source| DurableError::Read { path: self.shares.clone(), source };
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.shares).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let Some(key) = entry.file_name().to_str().and_then(key_of_name) else { continue };
            found.extend(read_record::<Record<T>>(&self.path(key))?);
        }
        found.sort_by_key(|record| (record.placement.job, record.placement.token));
        Ok(found)
    }

    /// The highest lease epoch that a record belongs to; 0 without any.
    ///
    /// # Errors
    /// When a record cannot be read.
    pub(crate) fn epoch_floor<T: DeserializeOwned>(&self) -> io::Result<u64> {
        make(&self.shares)?;
        let records = self.records::<T>().map_err(io::Error::other)?;
        Ok(records.iter().map(|record| record.epoch).max().unwrap_or(0))
    }

    /// Nothing of it is left, here or there.
    ///
    /// # Errors
    /// When it cannot be removed; it is then found and settled again.
    pub(crate) fn forget(&self, key: ShareKey) -> io::Result<()> {
        match std::fs::remove_file(self.path(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Records what became of the files of a worker, before its end.
    ///
    /// # Errors
    /// When it is not durable.
    pub(crate) fn keep(&self, key: WorkerKey, kept: &Artifacts) -> io::Result<()> {
        let task = self.task(key);
        make(task.path())?;
        write_record(&artifacts::record_of(&task), kept).map_err(io::Error::other)
    }

    /// What is on record of them; none where its job wants none, or it was not told.
    pub(crate) fn kept(&self, key: WorkerKey) -> Option<Artifacts> {
        let read = read_record::<Artifacts>(&artifacts::record_of(&self.task(key)));
        read.unwrap_or_else(|error| {
            tracing::warn!(job = %key.job, worker = %key, %error, "what became of a worker's files is not known");
            None
        })
    }

    /// Records an end, which is the first and only one.
    ///
    /// # Errors
    /// When it is not durable.
    pub(crate) fn end(&self, key: WorkerKey, status: &ExitStatus) -> io::Result<()> {
        let task = self.task(key);
        make(task.path())?;
        match task.exit() {
            Ok(Some(_)) => Ok(()),
            _ => task.write_exit(status.clone()).map_err(io::Error::other),
        }
    }
}

fn make(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_records_come_back() {
        let key = (JobId(5 * 1024), FencingToken { generation: 2, log_index: muster_types::LogIndex(77) });
        assert_eq!(key_of_name(&file_name(key)), Some(key));
        for bad in ["", "job-1", "job-1_x", ".job-1_1.1.99", "lost+found"] {
            assert_eq!(key_of_name(bad), None, "{bad}");
        }
    }
}
