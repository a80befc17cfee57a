//! Output that comes over the link, into the worker's directory here.
//!
//! **Invariant:** the same files and limits as for a process of this host, so the same reader reads them.

use super::link::Piece;
use super::record::Directories;
use crate::process::transcript::{OutputTally, Writer};
use crate::rules::WorkerKey;
use crate::settings::LogLimits;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;

/// The open transcripts of one share.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    writers: BTreeMap<u32, Writer>,
    complained: bool,
}

impl Outputs {
    /// Adds a piece; what became of it. What cannot be written is lost: a full disk here must stop no worker there.
    pub(crate) fn write(
        &mut self,
        directories: &Directories,
        key: WorkerKey,
        piece: &Piece,
        limits: &LogLimits,
    ) -> OutputTally {
        let tally =
            |outputs: &Outputs| outputs.writers.get(&piece.rank).map(Writer::tally).unwrap_or_default();
        let before = tally(self);
        if let Err(error) = self.keep(directories, key, piece, limits)
            && !std::mem::replace(&mut self.complained, true)
        {
            tracing::warn!(job = %key.job, worker = %key, %error, "output is being lost");
        }
        let after = tally(self);
        OutputTally { kept: after.kept - before.kept, dropped: after.dropped - before.dropped }
    }

    fn keep(
        &mut self,
        directories: &Directories,
        key: WorkerKey,
        piece: &Piece,
        limits: &LogLimits,
    ) -> io::Result<()> {
        let writer = match self.writers.entry(piece.rank) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(empty) => {
                let task = directories.task(key);
                let (path, before) = (task.output(), task.output_before());
                let (bytes_max, free_min) = (limits.worker_bytes_max, limits.free_bytes_min);
                empty.insert(Writer::resume(path, before, bytes_max, free_min)?)
            }
        };
        writer.skip(piece.lost);
        match piece.stream {
            Some(stream) => writer.write(stream, &piece.data),
            None => writer.finish(),
        }
    }

    /// The worker has ended: the last loss is recorded.
    pub(crate) fn end(&mut self, rank: u32) {
        if let Some(mut writer) = self.writers.remove(&rank)
            && let Err(error) = writer.finish()
        {
            tracing::warn!(rank, %error, "how much output was lost cannot be written");
        }
    }
}
