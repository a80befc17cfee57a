//! Output that comes over the link, into the worker's folder here.
//!
//! **Invariant:** the same files and limits as for a process of this host, so the same reader reads them.

use super::link::Piece;
use super::record::Folders;
use crate::order::WorkerKey;
use crate::shim::Rotated;
use std::collections::BTreeMap;
use std::io;

/// The open files of one share.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    files: BTreeMap<(u32, &'static str), Rotated>,
    complained: bool,
}

impl Outputs {
    /// Adds a piece. What cannot be written is lost: a full disk here must stop no worker there.
    pub(super) fn write(&mut self, folders: &Folders, key: WorkerKey, piece: &Piece, bytes_max: u64) {
        let slot = (piece.rank, piece.stream);
        let result = match self.files.entry(slot) {
            std::collections::btree_map::Entry::Occupied(open) => open.into_mut().write(&piece.data),
            std::collections::btree_map::Entry::Vacant(empty) => {
                let task = folders.task(key);
                let (path, before) = (task.output(piece.stream), task.output_before(piece.stream));
                let mut file = Rotated::new(path, before, bytes_max);
                let opened: io::Result<()> = file.resume();
                opened.and_then(|()| empty.insert(file).write(&piece.data))
            }
        };
        if let Err(error) = result
            && !std::mem::replace(&mut self.complained, true)
        {
            tracing::warn!(worker = %key, %error, "output is being lost");
        }
    }
}
