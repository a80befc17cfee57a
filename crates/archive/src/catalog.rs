//! The catalog: what an archive holds, by the names of its objects. It finds any record without reading one.
//!
//! **Invariant:** a name is a claim; each reader of the object compares it with the content.

use muster_types::{LogIndex, LogTime};

use crate::floor::Floor;
use crate::layout::{BASES, SEGMENTS};
use crate::object::ObjectInfo;
use crate::record::RaftPosition;

/// A segment, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentName {
    /// The generation of the cluster at its end.
    pub generation: u32,
    /// Its first record.
    pub first: LogIndex,
    /// Its last record.
    pub last: LogIndex,
    /// The first Raft entry it covers.
    pub first_raft: u64,
    /// The last Raft entry it covers.
    pub last_raft: u64,
    /// Log time of its last record.
    pub last_time: LogTime,
    /// Size of the object.
    pub bytes: u64,
}

/// A base, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BaseName {
    /// The generation of the cluster.
    pub generation: u32,
    /// The last record in it.
    pub log_index: LogIndex,
    /// The first Raft entry that is not in it.
    pub next_raft: u64,
    /// Log time of its last record.
    pub log_time: LogTime,
    /// Size of the object.
    pub bytes: u64,
}

fn numbers<const N: usize>(text: &str, separator: char) -> Option<[u64; N]> {
    let mut found = [0; N];
    let mut parts = text.split(separator);
    for place in &mut found {
        let part = parts.next().filter(|part| part.bytes().all(|b| b.is_ascii_digit()))?;
        *place = part.parse().ok()?;
    }
    parts.next().is_none().then_some(found)
}

impl SegmentName {
    pub(crate) fn of(from: &RaftPosition, end: &RaftPosition, bytes: u64) -> SegmentName {
        SegmentName {
            generation: end.generation,
            first: from.sequence.log_index.next(),
            last: end.sequence.log_index,
            first_raft: from.next_raft,
            last_raft: end.next_raft.saturating_sub(1),
            last_time: end.sequence.log_time,
            bytes,
        }
    }

    /// The name of the object.
    #[must_use]
    pub fn object(&self) -> String {
        format!(
            "{SEGMENTS}{:010}/{:020}-{:020}-{:020}-{:020}-{:020}",
            self.generation, self.first.0, self.last.0, self.first_raft, self.last_raft, self.last_time.0
        )
    }

    pub(crate) fn parse(object: &ObjectInfo) -> Option<SegmentName> {
        let (generation, rest) = object.name.strip_prefix(SEGMENTS)?.split_once('/')?;
        let [generation] = numbers(generation, '/')?;
        let [first, last, first_raft, last_raft, last_time] = numbers(rest, '-')?;
        let name = SegmentName {
            generation: u32::try_from(generation).ok()?,
            first: LogIndex(first),
            last: LogIndex(last),
            first_raft,
            last_raft,
            last_time: LogTime(last_time),
            bytes: object.bytes,
        };
        let fits = first > 0 && first <= last && first_raft <= last_raft && last < u64::MAX;
        (fits && name.object() == object.name).then_some(name)
    }
}

impl BaseName {
    pub(crate) fn of(place: &RaftPosition, bytes: u64) -> BaseName {
        BaseName {
            generation: place.generation,
            log_index: place.sequence.log_index,
            next_raft: place.next_raft,
            log_time: place.sequence.log_time,
            bytes,
        }
    }

    /// The name of the object.
    #[must_use]
    pub fn object(&self) -> String {
        format!(
            "{BASES}{:010}/{:020}-{:020}-{:020}",
            self.generation, self.log_index.0, self.next_raft, self.log_time.0
        )
    }

    pub(crate) fn parse(object: &ObjectInfo) -> Option<BaseName> {
        let (generation, rest) = object.name.strip_prefix(BASES)?.split_once('/')?;
        let [generation] = numbers(generation, '/')?;
        let [log_index, next_raft, log_time] = numbers(rest, '-')?;
        let name = BaseName {
            generation: u32::try_from(generation).ok()?,
            log_index: LogIndex(log_index),
            next_raft,
            log_time: LogTime(log_time),
            bytes: object.bytes,
        };
        (name.object() == object.name).then_some(name)
    }
}

/// Records that are missing between two that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The first missing one.
    pub from: LogIndex,
    /// The last missing one.
    pub to: LogIndex,
}

/// An archive in figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The first record there is; none in an empty archive.
    pub first: Option<LogIndex>,
    /// The last record there is.
    pub last: Option<LogIndex>,
    /// Log time of the last record.
    pub last_time: LogTime,
    /// Segments.
    pub segments: u64,
    /// Their bytes together.
    pub segment_bytes: u64,
    /// Bases.
    pub bases: u64,
    /// Their bytes together.
    pub base_bytes: u64,
    /// What is missing, before the first segment too, and was not given to another store.
    pub gaps: Vec<Gap>,
    /// The last record that was moved to another store. `None` when nothing was moved.
    pub floor: Option<Floor>,
}

/// A segment and how far it counts: a later generation of the cluster may begin before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) name: SegmentName,
    pub(crate) to: LogIndex,
}

#[derive(Debug, Default)]
pub(crate) struct Catalog {
    /// In the order of the records, without overlap.
    pub(crate) line: Vec<Stretch>,
    /// By record.
    pub(crate) bases: Vec<BaseName>,
    segments: Vec<SegmentName>,
    all_bases: Vec<BaseName>,
    /// Up to where records were given to another store.
    pub(crate) floor: Option<Floor>,
}

impl Catalog {
    pub(crate) fn new(segments: Vec<SegmentName>, bases: Vec<BaseName>) -> Catalog {
        let mut catalog =
            Catalog { line: Vec::new(), bases: Vec::new(), segments, all_bases: bases, floor: None };
        catalog.arrange();
        catalog
    }

    /// Where each generation of the cluster ends, because a later one begins.
    fn arrange(&mut self) {
        self.segments.sort_unstable();
        self.all_bases.sort_unstable();
        let mut cuts: Vec<(u32, LogIndex)> = Vec::new();
        let mut cut = LogIndex(u64::MAX);
        for segment in self.segments.iter().rev() {
            if cuts.last().is_none_or(|(generation, _)| *generation != segment.generation) {
                cuts.push((segment.generation, cut));
            }
            cut = cut.min(segment.first);
        }
        let end_of = |generation: u32| {
            cuts.iter().find(|(g, _)| *g == generation).map_or(LogIndex(u64::MAX), |(_, cut)| *cut)
        };
        self.line = self.segments.iter().filter_map(|name| stretch(*name, end_of(name.generation))).collect();
        self.line.sort_unstable_by_key(|stretch| stretch.name.first);
        self.bases = self.all_bases.iter().filter(|b| b.log_index < end_of(b.generation)).copied().collect();
        self.bases.sort_unstable_by_key(|base| (base.log_index, base.generation));
    }

    pub(crate) fn add_segment(&mut self, name: SegmentName) {
        self.segments.push(name);
        match self.line.last() {
            // The usual case: nothing else moves.
            Some(last) if last.name.generation == name.generation && last.name.last < name.first => {
                self.line.push(Stretch { name, to: name.last });
            }
            _ => self.arrange(),
        }
    }

    pub(crate) fn remove_segment(&mut self, name: &SegmentName) {
        self.segments.retain(|segment| segment != name);
        self.arrange();
    }

    /// A segment was written, or rebuilt under the name that it had.
    pub(crate) fn replace_segment(&mut self, name: SegmentName) {
        self.segments.retain(|segment| segment.object() != name.object());
        self.segments.push(name);
        self.arrange();
    }

    /// An object is no longer there.
    pub(crate) fn remove_object(&mut self, object: &str) {
        self.segments.retain(|segment| segment.object() != object);
        self.all_bases.retain(|base| base.object() != object);
        self.arrange();
    }

    pub(crate) fn add_base(&mut self, name: BaseName) {
        self.all_bases.retain(|base| base.object() != name.object());
        self.all_bases.push(name);
        self.arrange();
    }

    /// Every segment, also of ended generations of the cluster.
    pub(crate) fn segments(&self) -> &[SegmentName] {
        &self.segments
    }

    pub(crate) fn newest(&self) -> Option<SegmentName> {
        self.segments.iter().max().copied()
    }

    /// The index, among the segments that count, of the one with a record, or of the first one behind it.
    pub(crate) fn find(&self, index: LogIndex) -> usize {
        self.line.partition_point(|stretch| stretch.to < index)
    }

    /// The same by the Raft entry, within the newest generation of the cluster.
    pub(crate) fn find_raft(&self, raft_index: u64) -> Option<Stretch> {
        let newest = self.newest()?.generation;
        let of_newest = self.line.iter().rev().take_while(|stretch| stretch.name.generation == newest);
        let covers = |stretch: &&Stretch| {
            stretch.name.first_raft <= raft_index && raft_index <= stretch.name.last_raft
        };
        of_newest.take_while(|stretch| stretch.name.last_raft >= raft_index).find(covers).copied()
    }

    pub(crate) fn summary(&self) -> Summary {
        let mut gaps = Vec::new();
        // What was given away is not missing.
        let mut next = self.floor.as_ref().map_or(LogIndex(1), |floor| floor.through.next());
        for stretch in &self.line {
            if stretch.name.first > next {
                gaps.push(Gap { from: next, to: LogIndex(stretch.name.first.0 - 1) });
            }
            next = next.max(LogIndex(stretch.to.0.saturating_add(1)));
        }
        Summary {
            first: self.line.first().map(|stretch| stretch.name.first),
            last: self.line.last().map(|stretch| stretch.to),
            last_time: self.line.last().map_or(LogTime(0), |stretch| stretch.name.last_time),
            segments: self.segments.len() as u64,
            segment_bytes: self.segments.iter().map(|name| name.bytes).sum(),
            bases: self.all_bases.len() as u64,
            base_bytes: self.all_bases.iter().map(|name| name.bytes).sum(),
            gaps,
            floor: self.floor.clone(),
        }
    }
}

fn stretch(name: SegmentName, cut: LogIndex) -> Option<Stretch> {
    let to = LogIndex(name.last.0.min(cut.0.saturating_sub(1)));
    (name.first <= to).then_some(Stretch { name, to })
}
