//! Damaged and missing objects are rebuilt.
//!
//! A segment is made of the same rounds again, which the log or another replica still has. A base is made by replaying the
//! segments before it. A damaged object stays where it is until its replacement is at hand, and is kept aside then.
//!
//! **Invariant:** a segment is replaced only by one with the same records at the same place. Where a segment stands behind
//! it, the chain of that one has to go on from it, which holds for the bytes that were there and for no others.

use bytes::Bytes;
use muster_journal::ROUND_BYTES_MAX;
use muster_state::Sequence;
use muster_types::{ClusterId, LogIndex, PastPoint};
use std::collections::BTreeSet;

use crate::archive::Archive;
use crate::base::BaseReader;
use crate::catalog::{BaseName, SegmentName, Stretch};
use crate::error::ArchiveError;
use crate::record::{ArchivedRound, RaftPosition};
use crate::segment::{HEADER_BYTES, Header, SegmentDraft, Start, parse_header};

/// A segment that is damaged or missing, and what is known of it.
#[derive(Clone, Debug)]
pub struct Lack {
    name: SegmentName,
    start: Start,
    from: RaftPosition,
    /// The checksum of the segment before it.
    previous: u32,
    /// What the segment behind it goes on from: the last record of this one, and its checksum.
    behind: Option<(Sequence, u32)>,
}

impl Lack {
    /// The object's name.
    #[must_use]
    pub fn object(&self) -> String {
        self.name.object()
    }

    /// Its first record.
    #[must_use]
    pub fn first_log_index(&self) -> LogIndex {
        self.name.first
    }

    /// Its last record.
    #[must_use]
    pub fn last_log_index(&self) -> LogIndex {
        self.name.last
    }

    /// The generation of the cluster at its end.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.name.generation
    }

    /// The first Raft entry it covers.
    #[must_use]
    pub fn first_raft(&self) -> u64 {
        self.name.first_raft
    }

    /// The first Raft entry behind it.
    #[must_use]
    pub fn next_raft(&self) -> u64 {
        self.name.last_raft.saturating_add(1)
    }
}

impl Archive {
    /// Objects that are damaged or gone and not yet rebuilt, by name.
    #[must_use]
    pub fn unmended(&self) -> Vec<String> {
        self.suspects.names()
    }

    /// The number of objects that were rebuilt since the archive was opened.
    #[must_use]
    pub fn mended(&self) -> u64 {
        self.suspects.mended()
    }

    /// Reads the object with this number whole, segments before bases, so that damage is found before somebody needs what is
    /// damaged. `None` behind the last one.
    pub fn look_over(&self, number: usize) -> Option<Result<(), ArchiveError>> {
        let (segment, base) = {
            let catalog = self.catalog();
            let segments = catalog.segments();
            let at = number.checked_sub(segments.len());
            (segments.get(number).copied(), at.and_then(|at| catalog.bases.get(at)).copied())
        };
        match (segment, base) {
            (Some(name), _) => Some(self.segment(&name).map(|_| ())),
            (None, Some(name)) => Some(self.check_base(&name).map(|_| ())),
            (None, None) => None,
        }
    }

    /// Segments that have to be rebuilt and can be, the oldest first: damaged ones, and those that are missing between two
    /// that are there.
    ///
    /// # Errors
    /// When the store fails.
    pub fn lacks(&self) -> Result<Vec<Lack>, ArchiveError> {
        let (segments, line, floor) = {
            let catalog = self.catalog();
            (catalog.segments().to_vec(), catalog.line.clone(), catalog.floor.clone())
        };
        let mut found = Vec::new();
        for name in segments.iter().filter(|name| self.suspects.contains(&name.object())) {
            found.extend(self.damaged_segment(name, &segments)?);
        }
        let mut before: Option<&Stretch> = None;
        for stretch in &line {
            let is_beginning = before.is_none() && floor.is_none();
            if is_beginning || before.is_some() {
                found.extend(self.missing_segment(before, stretch)?);
            }
            before = Some(stretch);
        }
        // What was moved away or removed since it was noted is not missed.
        let known: BTreeSet<String> = {
            let catalog = self.catalog();
            let bases = catalog.bases.iter().map(BaseName::object);
            catalog.segments().iter().map(SegmentName::object).chain(bases).collect()
        };
        self.suspects.retain(&known);
        found.sort_by_key(|lack| (lack.name.generation, lack.name.first));
        Ok(found)
    }

    /// Bases that are damaged.
    #[must_use]
    pub fn damaged_bases(&self) -> Vec<BaseName> {
        let bases = self.catalog().bases.clone();
        bases.into_iter().filter(|base| self.suspects.contains(&base.object())).collect()
    }

    /// The header of a segment, when at least that is what was written.
    fn header_of(&self, name: &SegmentName) -> Result<Option<Header>, ArchiveError> {
        let object = name.object();
        let bytes = match self.store.get(&object, 0, HEADER_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(ArchiveError::store("reading", &object, source)),
        };
        let Ok(header) = parse_header(&object, &bytes) else { return Ok(None) };
        let is_its_own = header.from.sequence.log_index.next() == name.first
            && header.from.next_raft == name.first_raft
            && self.cluster() == Some(header.cluster);
        Ok(is_its_own.then_some(header))
    }

    /// What the segment behind a record is chained to.
    fn behind(
        &self,
        last: LogIndex,
        generation: u32,
        segments: &[SegmentName],
    ) -> Result<Option<(Sequence, u32)>, ArchiveError> {
        let next = segments.iter().find(|name| name.generation == generation && name.first == last.next());
        let Some(next) = next else {
            // The newest one is what the next one will be chained to.
            let newest = self.newest_end().filter(|end| end.place.sequence.log_index == last);
            return Ok(newest.map(|end| (end.place.sequence, end.checksum)));
        };
        let header = self.header_of(next)?.filter(|header| header.start == Start::Follows);
        Ok(header.map(|header| (header.from.sequence, header.previous)))
    }

    /// What is known of a damaged segment; nothing where its beginning cannot be told.
    fn damaged_segment(
        &self,
        name: &SegmentName,
        segments: &[SegmentName],
    ) -> Result<Option<Lack>, ArchiveError> {
        let behind = self.behind(name.last, name.generation, segments)?;
        let lack = |start, from, previous| Some(Lack { name: *name, start, from, previous, behind });
        if let Some(header) = self.header_of(name)? {
            return Ok(lack(header.start, header.from, header.previous));
        }
        let before = LogIndex(name.first.0.saturating_sub(1));
        if before == LogIndex::ZERO && name.first_raft == 0 {
            return Ok(lack(Start::Founding, RaftPosition::default(), 0));
        }
        let previous =
            segments.iter().find(|other| other.last == before && other.last_raft < name.first_raft);
        if let Some(previous) = previous {
            return Ok(match self.segment(previous) {
                Ok(segment) => {
                    let end = segment.end;
                    let from = RaftPosition { next_raft: name.first_raft, ..end.place };
                    lack(Start::Follows, from, end.checksum)
                }
                // That one first.
                Err(_) => None,
            });
        }
        let bases = self.catalog().bases.clone();
        let base = bases.iter().find(|base| base.log_index == before && base.next_raft == name.first_raft);
        let place = base.and_then(|base| BaseReader::open(self.store.as_ref(), base).ok());
        Ok(place.and_then(|base| lack(Start::Gap, base.header.place, 0)))
    }

    /// The segment that is missing between two, or before the first: where one alone is missing, its neighbours say all that
    /// has to be known of it.
    fn missing_segment(
        &self,
        before: Option<&Stretch>,
        after: &Stretch,
    ) -> Result<Option<Lack>, ArchiveError> {
        let reached = before.map_or(LogIndex::ZERO, |before| before.to);
        if after.name.first <= reached.next() {
            return Ok(None);
        }
        let Some(header) = self.header_of(&after.name)?.filter(|header| header.start == Start::Follows)
        else {
            return Ok(None);
        };
        let (start, from, previous) = match before {
            None => (Start::Founding, RaftPosition::default(), 0),
            Some(before) if before.to < before.name.last => return Ok(None),
            Some(before) => match self.segment(&before.name) {
                Ok(segment) => (Start::Follows, segment.end.place, segment.end.checksum),
                Err(_) => return Ok(None),
            },
        };
        if header.from.next_raft <= from.next_raft {
            return Ok(None);
        }
        let name = SegmentName::of(&from, &header.from, 0);
        let behind = Some((header.from.sequence, header.previous));
        Ok(Some(Lack { name, start, from, previous, behind }))
    }

    /// Rebuilds a segment from the rounds of the entries that it covers, and keeps the damaged one aside.
    ///
    /// # Errors
    /// [`ArchiveError::Differs`] when these rounds make another segment, or the store's; then everything is as it was.
    pub fn mend(
        &self,
        cluster: ClusterId,
        lack: &Lack,
        rounds: &[ArchivedRound],
    ) -> Result<(), ArchiveError> {
        let object = lack.object();
        let differs =
            |detail: &str| ArchiveError::Differs { object: object.clone(), detail: detail.to_owned() };
        let mut draft = SegmentDraft::new(cluster, lack.start, lack.from, lack.previous);
        let mut place = lack.from;
        let mut first_time = None;
        for round in rounds {
            let is_in_order = round.raft_index >= place.next_raft && round.raft_index < lack.next_raft();
            if !is_in_order || round.payload.len() > ROUND_BYTES_MAX {
                return Err(differs("a round is out of place"));
            }
            first_time = first_time.or(Some(round.decode()?.log_time));
            place.step(round)?;
            draft.push(round);
        }
        place.next_raft = lack.next_raft();
        let first_time = first_time.unwrap_or_default().min(place.sequence.log_time);
        let sealed = draft.seal(place, first_time);
        if sealed.name.object() != object {
            return Err(differs("they lead to another place"));
        }
        if let Some((sequence, checksum)) = lack.behind
            && (place.sequence != sequence || sealed.end.checksum != checksum)
        {
            return Err(differs("the segment behind it does not go on from them"));
        }
        self.replace(&object, &mut std::iter::once(Ok(sealed.bytes)))?;
        self.catalog_mut().replace_segment(sealed.name);
        self.suspects.rebuilt(&object);
        Ok(())
    }

    /// Rebuilds a damaged base by a replay of the records before it. Blocks for as long as that takes.
    ///
    /// # Errors
    /// When the segments before it do not lead to it, or the store's; then everything is as it was.
    pub fn mend_base(&self, cluster: ClusterId, name: &BaseName) -> Result<(), ArchiveError> {
        let object = name.object();
        let differs =
            |detail: &str| ArchiveError::Differs { object: object.clone(), detail: detail.to_owned() };
        let (mut replay, reached) = self.replay(PastPoint::Index(name.log_index), None)?;
        if !reached {
            return Err(ArchiveError::NotReached { newest: replay.state().log_index() });
        }
        // A base stands between two entries: what is left of the round that was reached is part of it.
        if let Some(open) = replay.open_round() {
            let slice = self.slice_with(name.log_index)?;
            let round = slice.rounds.iter().find(|round| round.raft_index == open);
            let round = round.ok_or_else(|| differs("the round before it is not there"))?;
            replay.apply(round, None)?;
        }
        replay.pass(name.next_raft);
        let place = RaftPosition {
            next_raft: replay.next_raft(),
            sequence: replay.state().sequence(),
            generation: name.generation,
        };
        if BaseName::of(&place, name.bytes) != *name {
            return Err(differs("a replay leads to another place"));
        }
        self.set_aside(&object)?;
        self.put_base(cluster, place, replay.state())?;
        self.suspects.rebuilt(&object);
        Ok(())
    }

    fn set_aside(&self, object: &str) -> Result<(), ArchiveError> {
        self.store.set_aside(object).map_err(|source| ArchiveError::store("setting aside", object, source))
    }

    fn replace(
        &self,
        object: &str,
        content: &mut dyn Iterator<Item = std::io::Result<Bytes>>,
    ) -> Result<(), ArchiveError> {
        self.set_aside(object)?;
        self.store.put(object, content).map_err(|source| ArchiveError::store("writing", object, source))
    }
}
