//! What an archive keeps on its own disk: the oldest segments go to another store, and from here once they are there.
//!
//! **Invariant:** no object is removed before the other store has the same bytes durably, and before the floor records it.

use bytes::Bytes;
use muster_types::{ClusterId, LogIndex, LogTime};
use std::io::ErrorKind;

use crate::archive::Archive;
use crate::catalog::{BaseName, SegmentName};
use crate::error::ArchiveError;
use crate::floor::Floor;
use crate::floor_file::FLOOR;
use crate::object::ObjectStore;

/// Bytes that are copied at a time.
const PIECE_BYTES: usize = 1 << 20;

/// What an archive may keep on its own disk. Its newest segment, and a base to begin with, always stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of segments and bases together; none for no bound.
    pub bytes_max: Option<u64>,
    /// How long before the newest record a segment may end, by log time, in milliseconds; none for no bound.
    pub age_ms_max: Option<u64>,
}

/// What was given away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloaded {
    /// Segments and bases.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Copies an object, unless the other store has it.
fn copy(from: &dyn ObjectStore, to: &dyn ObjectStore, object: &str, bytes: u64) -> Result<(), ArchiveError> {
    if to.size(object).is_ok_and(|size| size == bytes) {
        return Ok(());
    }
    let mut at = 0;
    let mut pieces = std::iter::from_fn(|| {
        if at >= bytes {
            return None;
        }
        let piece = from.get(object, at, PIECE_BYTES);
        if let Ok(piece) = &piece {
            at += piece.len() as u64;
            if piece.is_empty() {
                return Some(Err(ErrorKind::UnexpectedEof.into()));
            }
        }
        Some(piece)
    });
    let failed = |source| ArchiveError::store("offloading", object, source);
    to.put(object, &mut pieces).map_err(failed)?;
    let size = to.size(object).map_err(failed)?;
    if size == bytes { Ok(()) } else { Err(failed(ErrorKind::UnexpectedEof.into())) }
}

impl Archive {
    /// The last record that has to go so that the rest is within `bounds`; none when it is. `now` is the log time of the
    /// newest record there is.
    #[must_use]
    pub fn offload_due(&self, bounds: Bounds, now: LogTime) -> Option<LogIndex> {
        let catalog = self.catalog();
        let summary = catalog.summary();
        let mut bytes = summary.segment_bytes + summary.base_bytes;
        let oldest = bounds.age_ms_max.map(|age| now.minus_ms(age));
        let (_, before_last) = catalog.line.split_last()?;
        let mut due = None;
        for stretch in before_last {
            let is_old = oldest.is_some_and(|oldest| stretch.name.last_time < oldest);
            let is_too_much = bounds.bytes_max.is_some_and(|max| bytes > max);
            if !is_old && !is_too_much {
                break;
            }
            due = Some(stretch.to);
            let bases = catalog.bases.iter().filter(|base| stretch.name.first <= base.log_index);
            let bases = bases.take_while(|base| base.log_index < stretch.to).map(|base| base.bytes);
            bytes = bytes.saturating_sub(stretch.name.bytes + bases.sum::<u64>());
        }
        due
    }

    /// Whether a state behind these records can be made without them. The base is read whole: a damaged one would leave
    /// what stays without a beginning. Blocks for as long as that takes.
    #[must_use]
    pub fn has_base_from(&self, through: LogIndex) -> bool {
        while let Some(base) = self.newest_base().filter(|base| base.log_index >= through) {
            match self.check_base(&base) {
                Ok(_) => return true,
                // It is noted, and not the newest any more.
                Err(error) if error.is_damage() => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Gives every segment that ends with `through` or before it, and every base before that, to another store, and removes them
    /// here once they are there. Interrupted, it goes on when it is called again.
    ///
    /// # Errors
    /// When an object is damaged or cannot be copied; then nothing was removed here.
    pub fn offload(
        &self,
        cluster: ClusterId,
        to: &dyn ObjectStore,
        through: LogIndex,
    ) -> Result<Offloaded, ArchiveError> {
        let (segments, bases, log_time) = self.objects_through(through);
        for name in &segments {
            // What is given away is whole: nobody could mend it there.
            self.segment(name)?;
            copy(self.store.as_ref(), to, &name.object(), name.bytes)?;
        }
        for name in &bases {
            self.check_base(name)?;
            copy(self.store.as_ref(), to, &name.object(), name.bytes)?;
        }
        let floor = Floor { through, log_time, place: to.place() };
        let mut content = std::iter::once(Ok(Bytes::from(floor.encode(cluster))));
        let put = self.store.put(FLOOR, &mut content);
        put.map_err(|source| ArchiveError::store("writing", FLOOR, source))?;
        self.catalog_mut().floor = Some(floor);
        let mut done = Offloaded::default();
        let segments = segments.iter().map(|name| (name.object(), name.bytes));
        for (object, bytes) in segments.chain(bases.iter().map(|name| (name.object(), name.bytes))) {
            self.store.remove(&object).map_err(|source| ArchiveError::store("removing", &object, source))?;
            done = Offloaded { objects: done.objects + 1, bytes: done.bytes + bytes };
            self.catalog_mut().remove_object(&object);
        }
        Ok(done)
    }

    /// What lies at or before a record, and the log time there.
    fn objects_through(&self, through: LogIndex) -> (Vec<SegmentName>, Vec<BaseName>, LogTime) {
        let catalog = self.catalog();
        let in_line = |name: &SegmentName| catalog.line.iter().any(|s| s.name == *name && s.to <= through);
        let segments = catalog.segments().iter().filter(|name| name.last <= through || in_line(name));
        let bases = catalog.bases.iter().filter(|base| base.log_index < through);
        let last = catalog.line.iter().rev().find(|stretch| stretch.to <= through);
        let log_time = last.map_or(LogTime(0), |stretch| stretch.name.last_time);
        (segments.copied().collect(), bases.copied().collect(), log_time)
    }
}
