//! The archive: written at its end, read anywhere.

use bytes::Bytes;
use muster_state::State;
use muster_types::{ClusterId, LogIndex, LogTime, PastPoint};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::Arc;

use crate::base::{self, BaseReader};
use crate::catalog::{BaseName, Catalog, SegmentName, Stretch, Summary};
use crate::error::ArchiveError;
use crate::floor::Floor;
use crate::floor_file::FLOOR;
use crate::layout::{BASES, SEGMENTS};
use crate::object::ObjectStore;
use crate::record::{ArchivedRound, RaftPosition, Record, Records};
use crate::replay::{Observer, Replay};
use crate::segment::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_TARGET, Segment, SegmentDraft, SegmentEnd, Start};
use crate::suspects::Suspects;

/// Damaged segments at the end that are set aside at once; of more, the archive is refused.
const DAMAGED_MAX: usize = 64;

/// The archive of one cluster. Calls block; they belong on threads that may.
pub struct Archive {
    pub(crate) store: Arc<dyn ObjectStore>,
    cluster: Mutex<Option<ClusterId>>,
    catalog: RwLock<Catalog>,
    end: Mutex<Option<SegmentEnd>>,
    /// Segments at the end that were set aside when it was opened.
    damaged: Vec<String>,
    pub(crate) suspects: Suspects,
}

/// Consecutive rounds of one segment.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Right before the first of them.
    pub from: RaftPosition,
    /// In the order of the log.
    pub rounds: Vec<ArchivedRound>,
    /// Right behind the last Raft entry that is covered.
    pub end: RaftPosition,
    /// The last record that counts: a later generation of the cluster may begin behind it.
    pub to: LogIndex,
}

impl Slice {
    /// Bytes of its rounds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rounds.iter().map(|round| round.payload.len()).sum()
    }
}

impl Archive {
    /// Opens what `store` holds. Objects of another cluster than `cluster` are refused; without one,
    /// the archive's own counts.
    ///
    /// # Errors
    /// When the store fails, or its newest segment is damaged or another cluster's.
    pub fn open(store: Arc<dyn ObjectStore>, cluster: Option<ClusterId>) -> Result<Archive, ArchiveError> {
        Archive::open_with(store, cluster, false)
    }

    /// The same for the one who writes it: damaged segments at the end are set aside. The archive ends before them then,
    /// and goes on from there with what the log or another replica has. See [`Archive::damaged`].
    ///
    /// # Errors
    /// When the store fails, or its newest segment is another cluster's or of a newer release.
    pub fn open_and_mend(
        store: Arc<dyn ObjectStore>,
        cluster: Option<ClusterId>,
    ) -> Result<Archive, ArchiveError> {
        Archive::open_with(store, cluster, true)
    }

    fn open_with(
        store: Arc<dyn ObjectStore>,
        cluster: Option<ClusterId>,
        mends: bool,
    ) -> Result<Archive, ArchiveError> {
        let list = |prefix: &str| store.list(prefix).map_err(|e| ArchiveError::store("listing", prefix, e));
        let segments: Vec<SegmentName> = list(SEGMENTS)?.iter().filter_map(SegmentName::parse).collect();
        let bases: Vec<BaseName> = list(BASES)?.iter().filter_map(BaseName::parse).collect();
        let mut catalog = Catalog::new(segments, bases);
        let (floor, damaged) = open_floor(store.as_ref(), cluster, mends)?;
        catalog.floor = floor;
        let mut archive = Archive {
            store,
            cluster: Mutex::new(cluster),
            catalog: RwLock::new(catalog),
            end: Mutex::new(None),
            damaged,
            suspects: Suspects::default(),
        };
        let mut newest = archive.catalog().newest();
        while let Some(name) = newest {
            // Whole: what the next segment is chained to has to be what was written.
            match archive.segment(&name) {
                Ok(segment) => {
                    archive.end = Mutex::new(Some(segment.end));
                    break;
                }
                Err(error) if mends && error.is_damage() && archive.damaged.len() < DAMAGED_MAX => {
                    let (object, reason) = (name.object(), &error as &dyn std::error::Error);
                    tracing::error!(
                        error = reason,
                        first_log_index = %name.first,
                        last_log_index = %name.last,
                        "a segment at the end of the archive is damaged and is set aside"
                    );
                    let aside = archive.store.set_aside(&object);
                    aside.map_err(|source| ArchiveError::store("setting aside", &object, source))?;
                    archive.suspects.forget(&object);
                    archive.damaged.push(object);
                    archive.catalog_mut().remove_segment(&name);
                    newest = archive.catalog().newest();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(archive)
    }

    /// Segments that were set aside when it was opened, since they are damaged.
    #[must_use]
    pub fn damaged(&self) -> &[String] {
        &self.damaged
    }

    pub(crate) fn catalog(&self) -> RwLockReadGuard<'_, Catalog> {
        self.catalog.read()
    }

    pub(crate) fn catalog_mut(&self) -> RwLockWriteGuard<'_, Catalog> {
        self.catalog.write()
    }

    /// Where its objects are, for messages.
    #[must_use]
    pub fn place(&self) -> String {
        self.store.place()
    }

    /// Whose records these are; none while it is empty and nobody has said.
    #[must_use]
    pub fn cluster(&self) -> Option<ClusterId> {
        *self.cluster.lock()
    }

    /// Figures about it.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.catalog().summary()
    }

    /// The last record that was moved to another store. `None` when nothing was moved.
    #[must_use]
    pub fn floor(&self) -> Option<Floor> {
        self.catalog().floor.clone()
    }

    /// The place behind its last segment; none when it has none.
    #[must_use]
    pub fn end(&self) -> Option<RaftPosition> {
        self.end.lock().map(|end| end.place)
    }

    pub(crate) fn newest_end(&self) -> Option<SegmentEnd> {
        *self.end.lock()
    }

    /// Its newest base that is not known to be damaged.
    #[must_use]
    pub fn newest_base(&self) -> Option<BaseName> {
        let catalog = self.catalog();
        let mut newest_first = catalog.bases.iter().rev();
        newest_first.find(|base| !self.suspects.contains(&base.object())).copied()
    }

    /// Bytes of the segments that end behind a record.
    #[must_use]
    pub fn segment_bytes_behind(&self, index: LogIndex) -> u64 {
        let catalog = self.catalog();
        catalog.line[catalog.find(index.next())..].iter().map(|stretch| stretch.name.bytes).sum()
    }

    /// A segment that goes on at `from`.
    ///
    /// # Errors
    /// When [`Start::Follows`] is asked for and `from` is not where the archive ends, or when a founding
    /// does not begin at the beginning.
    pub fn draft(
        &self,
        cluster: ClusterId,
        start: Start,
        from: RaftPosition,
    ) -> Result<SegmentDraft, ArchiveError> {
        let end = *self.end.lock();
        let (found, out_of_order) = (from.sequence.log_index, |expected| ArchiveError::OutOfOrder {
            found: from.sequence.log_index,
            expected,
        });
        let previous = match (start, end) {
            (Start::Follows, Some(end)) => {
                let expected = end.place.sequence;
                if from.sequence != expected || from.next_raft < end.place.next_raft {
                    return Err(out_of_order(expected.log_index));
                }
                end.checksum
            }
            (Start::Gap, Some(end)) => {
                let (generation, expected) = (end.place.generation, end.place.sequence.log_index);
                if from.generation <= generation && found <= expected {
                    return Err(out_of_order(expected));
                }
                0
            }
            (Start::Gap, None) => 0,
            (Start::Founding, None) if found == LogIndex::ZERO => 0,
            (Start::Follows | Start::Founding, _) => return Err(out_of_order(LogIndex::ZERO)),
        };
        Ok(SegmentDraft::new(cluster, start, from, previous))
    }

    /// Closes a segment at `end` and puts it into the store, durably. `first_time` is the log time of its
    /// first round.
    ///
    /// # Errors
    /// When the store fails; then the archive is as it was.
    ///
    /// # Panics
    /// When the segment has no record.
    pub fn seal(
        &self,
        draft: SegmentDraft,
        end: RaftPosition,
        first_time: LogTime,
    ) -> Result<SegmentName, ArchiveError> {
        let sealed = draft.seal(end, first_time);
        assert!(sealed.name.first <= sealed.name.last, "a segment has a record");
        let object = sealed.name.object();
        let put = self.store.put(&object, &mut std::iter::once(Ok(sealed.bytes)));
        put.map_err(|source| ArchiveError::store("writing", &object, source))?;
        self.catalog_mut().add_segment(sealed.name);
        *self.end.lock() = Some(sealed.end);
        Ok(sealed.name)
    }

    /// Appends rounds that come right behind what the archive has, in as many segments as they need; the
    /// entries that they are of end before `next_raft`. Rounds at the end without a record stay out.
    ///
    /// # Errors
    /// When they do not follow, cannot be read, or the store fails; segments closed by then stay.
    pub fn append(
        &self,
        cluster: ClusterId,
        rounds: &[ArchivedRound],
        next_raft: u64,
    ) -> Result<(), ArchiveError> {
        let (mut start, mut from) = match self.end() {
            Some(end) => (Start::Follows, end),
            None => (Start::Founding, RaftPosition::default()),
        };
        let mut rest = rounds;
        while !rest.is_empty() {
            let mut draft = self.draft(cluster, start, from)?;
            let mut place = from;
            let mut first_time = None;
            let mut taken = 0;
            for round in rest {
                let log_time = round.decode()?.log_time;
                first_time = first_time.or(Some(log_time));
                place.step(round)?;
                draft.push(round);
                taken += 1;
                if draft.bytes() >= SEGMENT_BYTES_TARGET && place.sequence.log_index > from.sequence.log_index
                {
                    break;
                }
            }
            if place.sequence.log_index == from.sequence.log_index {
                return Ok(());
            }
            rest = &rest[taken..];
            if rest.is_empty() {
                place.next_raft = place.next_raft.max(next_raft);
            }
            let first_time = first_time.unwrap_or_default().min(place.sequence.log_time);
            self.seal(draft, place, first_time)?;
            (start, from) = (Start::Follows, place);
        }
        Ok(())
    }

    /// Puts a state into the store. It covers every Raft entry before `place.next_raft`, and the last of
    /// them has a record: those of an ended leadership behind a record are counted in the state, so they
    /// make another state at the same record.
    ///
    /// # Errors
    /// When the store fails; then the archive is as it was.
    pub fn put_base(
        &self,
        cluster: ClusterId,
        place: RaftPosition,
        state: &State,
    ) -> Result<BaseName, ArchiveError> {
        let place = RaftPosition { sequence: state.sequence(), ..place };
        let object = BaseName::of(&place, 0).object();
        let mut bytes = 0u64;
        let encoded = base::encode(cluster, &place, state).inspect(|piece| bytes += piece.len() as u64);
        let put = self.store.put(&object, &mut base::pieces(encoded));
        put.map_err(|source| ArchiveError::store("writing", &object, source))?;
        let name = BaseName::of(&place, bytes);
        self.catalog_mut().add_base(name);
        Ok(name)
    }

    fn check_cluster(&self, object: &str, found: ClusterId) -> Result<(), ArchiveError> {
        let mut cluster = self.cluster.lock();
        let expected = *cluster.get_or_insert(found);
        if expected == found {
            return Ok(());
        }
        Err(ArchiveError::Foreign { object: object.to_owned(), found, expected })
    }

    /// Reads a segment, and holds it against its name. One that is damaged is noted.
    pub(crate) fn segment(&self, name: &SegmentName) -> Result<Segment, ArchiveError> {
        let object = name.object();
        self.read_segment(name, &object).inspect_err(|error| self.suspects.note(&object, error))
    }

    fn read_segment(&self, name: &SegmentName, object: &str) -> Result<Segment, ArchiveError> {
        let failed = |source| ArchiveError::store("reading", object, source);
        let size = self.store.size(object).map_err(failed)?;
        if size > SEGMENT_BYTES_MAX {
            return Err(ArchiveError::damaged(
                object,
                format!("it has {size} bytes; no segment has as many"),
            ));
        }
        let bytes: Bytes = self.store.get(object, 0, size as usize).map_err(failed)?;
        let segment = Segment::parse(object, &bytes)?;
        let own = SegmentName::of(&segment.header.from, &segment.end.place, name.bytes);
        if own != *name {
            return Err(ArchiveError::damaged(object, "its name is not the one of its content"));
        }
        self.check_cluster(object, segment.header.cluster)?;
        Ok(segment)
    }

    fn slice_of(&self, stretch: &Stretch) -> Result<Slice, ArchiveError> {
        let segment = self.segment(&stretch.name)?;
        Ok(Slice {
            from: segment.header.from,
            rounds: segment.rounds,
            end: segment.end.place,
            to: stretch.to,
        })
    }

    /// The segment with a record.
    ///
    /// # Errors
    /// [`ArchiveError::NotReached`] behind its end, [`ArchiveError::Missing`] in a gap, or when the
    /// segment cannot be read.
    pub fn slice_with(&self, index: LogIndex) -> Result<Slice, ArchiveError> {
        let stretch = {
            let catalog = self.catalog();
            let at = catalog.find(index);
            let Some(stretch) = catalog.line.get(at).copied() else {
                let newest = catalog.line.last().map_or(LogIndex::ZERO, |stretch| stretch.to);
                return Err(ArchiveError::NotReached { newest });
            };
            if stretch.name.first > index {
                if let Some(floor) = catalog.floor.as_ref().filter(|floor| index <= floor.through) {
                    return Err(ArchiveError::BelowFloor { floor: floor.clone() });
                }
                let before = at.checked_sub(1).and_then(|at| catalog.line.get(at));
                let from = before.map_or(LogIndex(1), |before| before.to.next());
                return Err(ArchiveError::Missing { from, to: LogIndex(stretch.name.first.0 - 1) });
            }
            stretch
        };
        self.slice_of(&stretch)
    }

    /// The segment that covers a Raft entry of the cluster's newest generation; `None` without one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn slice_with_raft(&self, raft_index: u64) -> Result<Option<Slice>, ArchiveError> {
        let stretch = self.catalog().find_raft(raft_index);
        stretch.map(|stretch| self.slice_of(&stretch)).transpose()
    }

    /// The records from one to another, both included, as far as the archive reaches.
    #[must_use]
    pub fn records(self: &Arc<Archive>, from: LogIndex, to: LogIndex) -> Rounds {
        Rounds { archive: Arc::clone(self), next: from.max(LogIndex(1)), to, open: None }
    }

    /// Every segment, in the order of the records.
    pub(crate) fn stretches(&self) -> Vec<Stretch> {
        self.catalog().line.clone()
    }

    pub(crate) fn bases(&self) -> Vec<BaseName> {
        self.catalog().bases.clone()
    }

    /// The newest base that is not behind `at`.
    fn base_before(&self, at: PastPoint) -> Option<BaseName> {
        let catalog = self.catalog();
        let fits = |base: &&BaseName| match at {
            PastPoint::Index(index) => base.log_index <= index,
            PastPoint::Time(time) => base.log_time <= time,
        };
        catalog.bases.iter().rev().find(fits).copied()
    }

    /// The state of a base. One that is damaged is noted.
    pub(crate) fn restore(&self, name: &BaseName) -> Result<Replay, ArchiveError> {
        self.read_base(name).inspect_err(|error| self.suspects.note(&name.object(), error))
    }

    fn read_base(&self, name: &BaseName) -> Result<Replay, ArchiveError> {
        let reader = BaseReader::open(self.store.as_ref(), name)?;
        self.check_cluster(&name.object(), reader.header.cluster)?;
        let (state, header) = reader.restore()?;
        Ok(Replay::from_state(state, header.place.next_raft))
    }

    /// Holds a base's checksums, without making a state of it. One that is damaged is noted.
    pub(crate) fn check_base(&self, name: &BaseName) -> Result<u64, ArchiveError> {
        self.digest_of(name).inspect_err(|error| self.suspects.note(&name.object(), error))
    }

    fn digest_of(&self, name: &BaseName) -> Result<u64, ArchiveError> {
        let reader = BaseReader::open(self.store.as_ref(), name)?;
        self.check_cluster(&name.object(), reader.header.cluster)?;
        Ok(reader.check()?.digest)
    }

    /// The nearest place before `at` that a replay can begin at: a base, or the founding. A base that
    /// cannot be read is logged, and the one before it is used.
    fn begin(&self, at: PastPoint) -> Result<Replay, ArchiveError> {
        let mut limit = at;
        while let Some(base) = self.base_before(limit) {
            match self.restore(&base) {
                Ok(replay) => return Ok(replay),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, last_log_index = %base.log_index, object = base.object(), "a base of the archive is passed over");
                }
            }
            let Some(before) = base.log_index.0.checked_sub(1) else { break };
            limit = PastPoint::Index(LogIndex(before));
        }
        Ok(Replay::founding())
    }

    /// Rebuilds the state at `at`, from the nearest base or, when that is nearer, from `known`. Where
    /// the archive ends before it, what was reached, and `false`.
    ///
    /// # Errors
    /// When something on the way is missing, damaged, or comes to another state than the leader had.
    pub fn replay(&self, at: PastPoint, known: Option<Replay>) -> Result<(Replay, bool), ArchiveError> {
        self.replay_while(at, known, || true)
    }

    /// The same, as long as `goes_on` returns true; it is called between segments.
    ///
    /// # Errors
    /// As [`Archive::replay`], and [`ArchiveError::GivenUp`].
    pub fn replay_while(
        &self,
        at: PastPoint,
        known: Option<Replay>,
        goes_on: impl Fn() -> bool,
    ) -> Result<(Replay, bool), ArchiveError> {
        let nearest = self.base_before(at).map_or(LogIndex::ZERO, |base| base.log_index);
        let known = known.filter(|known| known.state().log_index() >= nearest);
        let resumes = known.as_ref().is_some_and(|known| known.state().log_index() > LogIndex::ZERO);
        let mut replay = match known {
            Some(known) => known,
            None => self.begin(at)?,
        };
        let reached = self.advance(&mut replay, (at, resumes), goes_on, &mut ())?;
        Ok((replay, reached))
    }

    /// Goes on with a replay up to the end of the archive while somebody looks. After an error the replay has what came
    /// before it.
    ///
    /// # Errors
    /// As [`Archive::replay`]: [`ArchiveError::Missing`] in front of a gap.
    pub fn follow(&self, replay: &mut Replay, observer: &mut impl Observer) -> Result<(), ArchiveError> {
        let end = PastPoint::Index(LogIndex(u64::MAX));
        self.follow_while(replay, end, || true, observer).map(|_| ())
    }

    /// The same up to `at` and as long as `goes_on` returns true, which is called between segments; whether `at` was reached.
    ///
    /// # Errors
    /// As [`Archive::follow`], and [`ArchiveError::GivenUp`].
    pub fn follow_while(
        &self,
        replay: &mut Replay,
        at: PastPoint,
        goes_on: impl Fn() -> bool,
        observer: &mut impl Observer,
    ) -> Result<bool, ArchiveError> {
        let resumes = replay.state().log_index() > LogIndex::ZERO;
        self.advance(replay, (at, resumes), goes_on, observer)
    }

    /// The first base that has a record in it: where a replay can begin again behind a gap that ends there.
    #[must_use]
    pub fn base_with(&self, index: LogIndex) -> Option<BaseName> {
        self.catalog().bases.iter().find(|base| base.log_index >= index).copied()
    }

    /// Whether `at` was reached; it is not where the archive ends before. Rounds without a record may follow the last record
    /// of the segment of a replay that is resumed: they count as well.
    fn advance(
        &self,
        replay: &mut Replay,
        (at, mut rest_of_segment): (PastPoint, bool),
        goes_on: impl Fn() -> bool,
        observer: &mut impl Observer,
    ) -> Result<bool, ArchiveError> {
        loop {
            if at == PastPoint::Index(replay.state().log_index()) {
                return Ok(true);
            }
            if !goes_on() {
                return Err(ArchiveError::GivenUp);
            }
            let last = replay.state().log_index();
            let resumes = std::mem::take(&mut rest_of_segment);
            let slice = match self.slice_with(if resumes { last } else { last.next() }) {
                // The segment of a state that a base gave may be gone.
                Err(ArchiveError::Missing { .. }) if resumes => continue,
                Ok(slice) => slice,
                Err(ArchiveError::NotReached { .. }) => return Ok(false),
                Err(error) => return Err(error),
            };
            let before = replay.state().log_index();
            if replay_slice(replay, &slice, at, observer)? {
                return Ok(true);
            }
            if replay.state().log_index() == before && !resumes {
                // The segment is intact, but its rounds do not follow the state.
                return Err(ArchiveError::Missing { from: before.next(), to: slice.to });
            }
        }
    }
}

/// The floor of an archive, and what was set aside because it is damaged: only where the records went is lost then.
fn open_floor(
    store: &dyn ObjectStore,
    cluster: Option<ClusterId>,
    mends: bool,
) -> Result<(Option<Floor>, Vec<String>), ArchiveError> {
    match Floor::read(store) {
        Ok(Some((found, floor))) => match cluster {
            Some(expected) if expected != found => {
                Err(ArchiveError::Foreign { object: FLOOR.to_owned(), found, expected })
            }
            _ => Ok((Some(floor), Vec::new())),
        },
        Ok(None) => Ok((None, Vec::new())),
        Err(error) if mends && error.is_damage() => {
            let reason = &error as &dyn std::error::Error;
            tracing::error!(error = reason, "the floor of the archive is damaged and is set aside");
            store.set_aside(FLOOR).map_err(|source| ArchiveError::store("setting aside", FLOOR, source))?;
            Ok((None, vec![FLOOR.to_owned()]))
        }
        Err(error) => Err(error),
    }
}

/// Whether `at` was reached in the slice.
fn replay_slice(
    replay: &mut Replay,
    slice: &Slice,
    at: PastPoint,
    observer: &mut impl Observer,
) -> Result<bool, ArchiveError> {
    let end = PastPoint::Index(slice.to);
    // Where a later generation of the cluster begins, the rest of this one does not count.
    let cut = slice.to < slice.end.sequence.log_index;
    for round in &slice.rounds {
        let stop = match at {
            PastPoint::Index(index) if index <= slice.to => at,
            _ if cut => end,
            _ => at,
        };
        if replay.apply_observed(round, Some(stop), observer)? {
            return Ok(stop == at);
        }
    }
    // Entries of the protocol's own may follow the last round.
    replay.pass(slice.end.next_raft);
    Ok(false)
}

/// Records out of an archive, segment by segment.
pub struct Rounds {
    archive: Arc<Archive>,
    next: LogIndex,
    to: LogIndex,
    open: Option<Open>,
}

struct Open {
    records: Records,
    rounds: std::vec::IntoIter<ArchivedRound>,
    ready: std::vec::IntoIter<Record>,
    to: LogIndex,
}

impl Rounds {
    fn step(&mut self) -> Result<Option<Record>, ArchiveError> {
        while self.next <= self.to {
            let Some(open) = &mut self.open else {
                let slice = match self.archive.slice_with(self.next) {
                    Err(ArchiveError::NotReached { .. }) => return Ok(None),
                    other => other?,
                };
                let records = Records::from(slice.from);
                let (rounds, ready) = (slice.rounds.into_iter(), Vec::new().into_iter());
                self.open = Some(Open { records, rounds, ready, to: slice.to });
                continue;
            };
            match open.ready.next() {
                Some(record) if record.log_index == self.next && record.log_index <= open.to => {
                    self.next = record.log_index.next();
                    return Ok(Some(record));
                }
                // Before what was asked for, or of a generation that ended before it.
                Some(_) => {}
                None => match open.rounds.next() {
                    Some(round) => open.ready = open.records.take(&round)?.into_iter(),
                    None if self.next > open.to => self.open = None,
                    None => return Err(ArchiveError::Missing { from: self.next, to: open.to }),
                },
            }
        }
        Ok(None)
    }
}

impl Iterator for Rounds {
    type Item = Result<Record, ArchiveError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step().transpose();
        if matches!(step, Some(Err(_))) {
            // Nothing behind an error can be told to follow it.
            self.next = LogIndex(u64::MAX);
            self.to = LogIndex::ZERO;
        }
        step
    }
}
