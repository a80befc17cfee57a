//! The records of the log, readable from the first one that is kept to the newest that is applied.
//!
//! Behind what this replica applies, one task reads the same entries from the log and notes every now
//! and then which record stands where (a mark). With the archive for what is older, and the log from the
//! nearest mark on for what is newer, every record can be found and read, and nothing is kept twice.
//!
//! **Invariant:** only applied entries are read, so that nothing that was handed out is taken back.
//! **Invariant:** apply never waits for any of this.

use muster_archive::{Archive, ArchiveError, ArchivedRound, RaftPosition, Slice, Summary};
use muster_consensus::{CommittedEntry, Consensus, LogSlice};
use muster_state::State;
use muster_types::{LogIndex, Refusal, RefusalCode};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::apply::replicated::Shared;
use crate::background::in_background;
use crate::history::settings::HistorySettings;
use crate::refusals::stopping_reads;

/// Bytes between two marks: what is read in vain at most before a record that is asked for.
const MARK_BYTES: u64 = 128 << 10;
/// The same in entries: without payloads they have no bytes.
const MARK_ENTRIES: u64 = 1_024;
/// Without an archive: the log may be purged up to the last mark.
const MARK_ENTRIES_ALONE: u64 = 64;
/// Marks that are kept without an archive: some four gigabytes of log.
const MARKS_MAX: usize = 32_768;
/// Between two looks at a log that had nothing where there should be something.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Rounds above this together are decoded apart from the threads that serve.
const DECODE_HERE_BYTES: usize = 32 << 10;
/// Segments that are read from the archive at a time, for all who follow.
const ARCHIVE_READS_MAX: usize = 2;
/// Stretches of the log that are kept for the next who reads them, and what is in them together. One may be larger.
const SLICES_MAX: usize = 16;
const SLICES_BYTES_MAX: usize = 32 << 20;

/// A place in the log that can be read from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) place: RaftPosition,
    /// Bytes of payloads before it, counted from the start of the process.
    pub(super) bytes: u64,
    pub(super) noted_at: Instant,
}

/// The places of what is not in the archive yet.
pub(super) struct LogIndexMap {
    /// Ascending; the first is where the archive ends, or ought to.
    pub(super) marks: VecDeque<Mark>,
    /// The newest place, not yet far enough from the last mark to be one.
    pub(super) end: Mark,
    /// The state at the first mark, where that is not in the archive: what it can go on from.
    pub(super) origin: Option<Arc<State>>,
}

/// How the archive stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchiveStatus {
    /// Whether this replica keeps one.
    pub enabled: bool,
    /// Where.
    pub place: String,
    /// What it holds.
    pub summary: Summary,
    /// Why it cannot be written at present; none when it can.
    pub failing: Option<String>,
    /// Why old segments cannot be moved away at present; none when they can, or when none have to be.
    pub offload_failing: Option<String>,
    /// Objects that were set aside at the start, since they are damaged.
    pub damaged: Vec<String>,
    /// Objects that are damaged or gone and not yet rebuilt.
    pub unmended: Vec<String>,
    /// The number of objects that were rebuilt since the start.
    pub mended: u64,
}

/// Reads the records of the log, and remembers where they are.
pub(crate) struct History {
    pub(crate) consensus: Consensus,
    pub(super) shared: Arc<Shared>,
    /// Whether an archive is kept: it may be one that cannot be opened so far.
    keeps_archive: bool,
    archive: OnceLock<Arc<Archive>>,
    /// The archive was opened behind the start of the replica; the index map begins behind it then.
    archive_opened: Notify,
    index_map_follows: Notify,
    /// The generation of the cluster that this replica's directory is of.
    generation: u32,
    index_map: Mutex<Option<LogIndexMap>>,
    /// The last record that can be read.
    pub(super) end: watch::Sender<LogIndex>,
    pub(crate) status: watch::Sender<ArchiveStatus>,
    archive_reads: Arc<Semaphore>,
    /// What was read last, for all who follow: none of them keeps a stretch for itself. The last one used is the last.
    slices: Mutex<VecDeque<KeptSlice>>,
    pub(super) shutdown: CancellationToken,
}

struct KeptSlice {
    is_archived: bool,
    slice: Arc<Slice>,
}

impl History {
    pub(crate) fn new(
        consensus: Consensus,
        shared: Arc<Shared>,
        settings: &HistorySettings,
        generation: u32,
        shutdown: CancellationToken,
    ) -> History {
        let archive = settings.archive.as_ref();
        let unopened = settings.unopened.as_ref();
        let place = archive.map(|archive| archive.place());
        let status = ArchiveStatus {
            enabled: archive.is_some() || unopened.is_some(),
            place: place.or_else(|| unopened.map(|unopened| unopened.place.clone())).unwrap_or_default(),
            summary: archive.map(|archive| archive.summary()).unwrap_or_default(),
            failing: unopened.map(|unopened| unopened.reason.clone()),
            offload_failing: None,
            damaged: archive.map(|archive| archive.damaged().to_vec()).unwrap_or_default(),
            unmended: Vec::new(),
            mended: 0,
        };
        History {
            consensus,
            shared,
            keeps_archive: status.enabled,
            archive: archive.map_or_else(OnceLock::new, |archive| OnceLock::from(Arc::clone(archive))),
            archive_opened: Notify::new(),
            index_map_follows: Notify::new(),
            generation,
            index_map: Mutex::new(None),
            end: watch::Sender::new(LogIndex::ZERO),
            status: watch::Sender::new(status),
            archive_reads: Arc::new(Semaphore::new(ARCHIVE_READS_MAX)),
            slices: Mutex::default(),
            shutdown,
        }
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// The archive; none when none is kept, or as long as it cannot be opened.
    pub(crate) fn archive(&self) -> Option<&Arc<Archive>> {
        self.archive.get()
    }

    /// The archive could be opened at last. Returns when what is noted of the log goes on behind it.
    pub(super) async fn archive_is_open(&self, archive: Arc<Archive>) {
        self.status.send_modify(|status| {
            (status.failing, status.summary) = (None, archive.summary());
            status.damaged = archive.damaged().to_vec();
        });
        // Only the archiver opens it, once.
        let _ = self.archive.set(archive);
        self.archive_opened.notify_one();
        self.index_map_follows.notified().await;
    }

    pub(super) fn index_map(&self) -> MutexGuard<'_, Option<LogIndexMap>> {
        // Plain data; a thread that panicked has left it as it was.
        self.index_map.lock()
    }

    /// Notes where records stand, for as long as the replica runs.
    pub(crate) async fn follow(self: Arc<History>) {
        let following = async {
            let start = self.start().await;
            self.begin(start.0, start.1);
            let mut applied = self.consensus.applied();
            loop {
                applied.mark_unchanged();
                self.catch_up().await;
                tokio::select! {
                    changed = applied.changed() => if changed.is_err() {
                        return;
                    },
                    () = self.archive_opened.notified() => {
                        let start = self.start_behind_archive();
                        self.begin(start.0, start.1);
                        self.index_map_follows.notify_one();
                    }
                }
            }
        };
        tokio::select! {
            () = following => {}
            () = self.shutdown.cancelled() => {}
        }
    }

    /// Where to begin: behind the archive, if the log still has that, else at the beginning of the log,
    /// else at the snapshot that this replica began with.
    async fn start(&self) -> (RaftPosition, Option<Arc<State>>) {
        let restored = self.shared.restored();
        let floor = self.consensus.log_floor();
        if let Some(end) = self.archive().and_then(|archive| archive.end()) {
            let goes_on = floor.is_none_or(|floor| floor < end.next_raft);
            // Rebuilt from a state: where that is not what the archive ends with, what comes behind it
            // belongs to another generation.
            let is_newer_generation = restored.as_ref().is_some_and(|position| {
                let at = place_of(position.raft_index, &position.state);
                self.generation.max(at.generation) > end.generation
                    && (at.sequence, at.next_raft) != (end.sequence, end.next_raft)
            });
            if goes_on && !is_newer_generation {
                return (end, None);
            }
        } else if floor.is_none() {
            return (RaftPosition::default(), None);
        }
        match restored {
            Some(position) => {
                let place = place_of(position.raft_index, &position.state);
                // The record that begins this generation may be the next one.
                let generation = place.generation.max(self.generation);
                (RaftPosition { generation, ..place }, Some(position.state.clone()))
            }
            None => (RaftPosition::default(), None),
        }
    }

    /// Where to begin once the archive was opened behind the start: behind it, if the log still has that, else at the
    /// present state, so that the archive goes on behind a gap.
    fn start_behind_archive(&self) -> (RaftPosition, Option<Arc<State>>) {
        let floor = self.consensus.log_floor();
        let end = self.archive().and_then(|archive| archive.end());
        let position = self.shared.position.load_full();
        let present = place_of(position.raft_index, &position.state);
        match end {
            Some(end)
                if end.generation >= present.generation && floor.is_none_or(|at| at < end.next_raft) =>
            {
                (end, None)
            }
            None if floor.is_none() => (RaftPosition::default(), None),
            _ => (present, Some(Arc::clone(&position.state))),
        }
    }

    fn begin(&self, place: RaftPosition, origin: Option<Arc<State>>) {
        let mark = Mark { place, bytes: 0, noted_at: Instant::now() };
        if !self.keeps_archive {
            self.consensus.hold_purge(Some(place.next_raft.saturating_sub(1)));
        }
        *self.index_map() = Some(LogIndexMap { marks: VecDeque::from([mark]), end: mark, origin });
        self.end.send_replace(place.sequence.log_index);
    }

    fn index_map_end(&self) -> Option<Mark> {
        self.index_map().as_ref().map(|index_map| index_map.end)
    }

    /// Reads what was applied since.
    async fn catch_up(&self) {
        while let Some(end) = self.index_map_end() {
            match self.consensus.read_applied(end.place.next_raft).await {
                Ok(LogSlice::Entries(entries)) if entries.is_empty() => {
                    self.let_go_of_snapshot(&end.place);
                    return;
                }
                Ok(LogSlice::Entries(entries)) => match advance(end, entries).await {
                    Ok(next) => self.note(next),
                    Err(error) => {
                        // Apply stops before such a round as well, and reports it.
                        tracing::error!(error = &error as &dyn std::error::Error, "history stops here");
                        return std::future::pending().await;
                    }
                },
                Ok(LogSlice::Purged { .. }) => {
                    let newer = self.shared.restored().filter(|p| p.raft_index >= end.place.next_raft);
                    match newer {
                        Some(position) => {
                            let place = place_of(position.raft_index, &position.state);
                            self.begin(place, Some(Arc::clone(&position.state)));
                        }
                        None => tokio::time::sleep(LOOK_AGAIN).await,
                    }
                }
                Err(error) => {
                    if self.consensus.stopped().borrow().is_none() {
                        tracing::warn!(error = &error as &dyn std::error::Error, "history waits for the log");
                    }
                    tokio::time::sleep(LOOK_AGAIN * 20).await;
                }
            }
        }
    }

    /// A snapshot that the log has been read past is of no use here any more, and keeps memory.
    fn let_go_of_snapshot(&self, reached: &RaftPosition) {
        if self.shared.restored().is_some_and(|position| position.raft_index < reached.next_raft) {
            self.shared.forget_restored();
        }
    }

    fn note(&self, next: Mark) {
        let floor = self.consensus.log_floor();
        let entries_max = if self.keeps_archive { MARK_ENTRIES } else { MARK_ENTRIES_ALONE };
        let mut index_map = self.index_map();
        let Some(index_map) = index_map.as_mut() else { return };
        index_map.end = next;
        let far = index_map.marks.back().is_none_or(|last| {
            next.bytes - last.bytes >= MARK_BYTES
                || next.place.next_raft - last.place.next_raft >= entries_max
        });
        if far {
            index_map.marks.push_back(next);
        }
        if !self.keeps_archive {
            if far {
                // Everything behind the last mark can be read.
                self.consensus.hold_purge(Some(next.place.next_raft.saturating_sub(1)));
            }
            let lost = |mark: &Mark| floor.is_some_and(|floor| mark.place.next_raft <= floor);
            while index_map.marks.len() > MARKS_MAX
                || (index_map.marks.len() > 1 && lost(&index_map.marks[0]))
            {
                index_map.marks.pop_front();
            }
        }
        self.end.send_replace(next.place.sequence.log_index);
    }

    /// The first record that can be read here, and the last.
    pub(crate) fn range(&self) -> (LogIndex, LogIndex) {
        let in_archive = self.archive().and_then(|archive| archive.summary().first);
        let in_log =
            self.index_map().as_ref().map(|index_map| index_map.marks[0].place.sequence.log_index.next());
        let first = in_archive.or(in_log).unwrap_or(LogIndex(1));
        (first, *self.end.borrow())
    }

    /// A place at or before a record, as near as it is known.
    pub(crate) fn place_before(&self, index: LogIndex) -> Result<RaftPosition, Refusal> {
        let index_map = self.index_map();
        let Some(index_map) = index_map.as_ref() else { return Err(not_yet()) };
        let near = index_map.marks.iter().rev().chain(std::iter::once(&index_map.marks[0]));
        let near =
            std::iter::once(&index_map.end).chain(near).find(|mark| mark.place.sequence.log_index < index);
        match near {
            Some(mark) => Ok(mark.place),
            // The archive finds it by itself.
            None => Ok(RaftPosition {
                sequence: muster_state::Sequence { log_index: LogIndex(index.0 - 1), ..Default::default() },
                ..RaftPosition::default()
            }),
        }
    }

    /// Rounds around a place: a segment, or about a megabyte of the log; none when there is nothing behind it yet. The
    /// first of them may be before the place.
    pub(crate) async fn read(&self, place: RaftPosition) -> Result<Option<Arc<Slice>>, Refusal> {
        let next = place.sequence.log_index.next();
        for _ in 0..2 {
            let archived = self.archive().filter(|archive| {
                let has =
                    |end: RaftPosition| end.sequence.log_index >= next && end.next_raft > place.next_raft;
                archive.end().is_some_and(has)
            });
            if let Some(archive) = archived {
                return self.read_archive(Arc::clone(archive), next).await.map(Some);
            }
            if let Some(slice) = self.kept_of_log(place.next_raft) {
                return Ok(Some(slice));
            }
            match self.consensus.read_applied(place.next_raft).await {
                Ok(LogSlice::Entries(entries)) if entries.is_empty() => return Ok(None),
                Ok(LogSlice::Entries(entries)) => {
                    let end =
                        RaftPosition { next_raft: entries.last().map_or(0, |e| e.raft_index + 1), ..place };
                    let rounds = entries.into_iter().filter_map(round).collect();
                    let slice = Arc::new(Slice { from: place, rounds, end, to: LogIndex(u64::MAX) });
                    self.keep(false, &slice);
                    return Ok(Some(slice));
                }
                // Perhaps just now, because the archive has it.
                Ok(LogSlice::Purged { .. }) => {}
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "the log cannot be read for a follower");
                    return Err(stopping_reads());
                }
            }
        }
        Err(self.compacted(next))
    }

    async fn read_archive(&self, archive: Arc<Archive>, index: LogIndex) -> Result<Arc<Slice>, Refusal> {
        if let Some(slice) = self.kept_of_archive(index) {
            return Ok(slice);
        }
        let place = Arc::clone(&self.archive_reads).acquire_owned().await.map_err(|_| stopping_reads())?;
        // Who had the place before may have read the same.
        if let Some(slice) = self.kept_of_archive(index) {
            return Ok(slice);
        }
        let read = in_background(move || {
            // Given back when the work is over, not when its caller has gone.
            let _place = place;
            archive.slice_with(index)
        });
        let read = read.await;
        match read.map_err(|_| stopping_reads())? {
            Ok(slice) => {
                let slice = Arc::new(slice);
                self.keep(true, &slice);
                Ok(slice)
            }
            Err(error) => Err(self.refusal(&error)),
        }
    }

    /// Rounds from a Raft entry on, as far as one segment or about a megabyte of the log reaches, and the entry behind
    /// them.
    pub(crate) async fn rounds_from(&self, raft_index: u64) -> Result<(Vec<ArchivedRound>, u64), Refusal> {
        if let Some(archive) = self.archive().cloned() {
            let place =
                Arc::clone(&self.archive_reads).acquire_owned().await.map_err(|_| stopping_reads())?;
            let read = in_background(move || {
                let _place = place;
                archive.slice_with_raft(raft_index)
            });
            let read = read.await;
            let slice = read.map_err(|_| stopping_reads())?.map_err(|error| self.refusal(&error))?;
            if let Some(slice) = slice {
                let rounds = slice.rounds.into_iter().filter(|round| round.raft_index >= raft_index);
                return Ok((rounds.collect(), slice.end.next_raft));
            }
        }
        match self.consensus.read_applied(raft_index).await {
            Ok(LogSlice::Entries(entries)) => {
                let next = entries.last().map_or(raft_index, |entry| entry.raft_index + 1);
                Ok((entries.into_iter().filter_map(round).collect(), next))
            }
            Ok(LogSlice::Purged { .. }) => {
                let text = format!("the entry at Raft index {raft_index} is not kept here any more");
                Err(Refusal::new(RefusalCode::ResumeTokenCompacted, text))
            }
            Err(_) => Err(stopping_reads()),
        }
    }

    fn kept_of_log(&self, next_raft: u64) -> Option<Arc<Slice>> {
        self.kept(|kept| {
            let reach = kept.slice.from.next_raft..kept.slice.end.next_raft;
            !kept.is_archived && reach.contains(&next_raft)
        })
    }

    fn kept_of_archive(&self, index: LogIndex) -> Option<Arc<Slice>> {
        self.kept(|kept| {
            let (from, end) = (kept.slice.from.sequence.log_index, kept.slice.end.sequence.log_index);
            kept.is_archived && from < index && index <= end.min(kept.slice.to)
        })
    }

    fn kept(&self, has: impl Fn(&KeptSlice) -> bool) -> Option<Arc<Slice>> {
        let mut slices = self.slices.lock();
        let at = slices.iter().rposition(has)?;
        let kept = slices.remove(at)?;
        let slice = Arc::clone(&kept.slice);
        slices.push_back(kept);
        Some(slice)
    }

    fn keep(&self, is_archived: bool, slice: &Arc<Slice>) {
        let mut slices = self.slices.lock();
        slices.push_back(KeptSlice { is_archived, slice: Arc::clone(slice) });
        let mut bytes: usize = slices.iter().map(|kept| kept.slice.bytes()).sum();
        while slices.len() > 1 && (slices.len() > SLICES_MAX || bytes > SLICES_BYTES_MAX) {
            bytes -= slices.pop_front().map_or(0, |kept| kept.slice.bytes());
        }
    }

    pub(crate) fn compacted(&self, index: LogIndex) -> Refusal {
        if let Some(floor) = self.archive().and_then(|archive| archive.floor())
            && index <= floor.through
        {
            return self.refusal(&ArchiveError::BelowFloor { floor });
        }
        let (first, _) = self.range();
        let text = format!("record {index} is not kept here any more; the oldest is {first}");
        Refusal::new(RefusalCode::ResumeTokenCompacted, text).with("oldest_log_index", first)
    }

    /// What a reader is told of a failure of the archive. Operators find the details in the log.
    pub(crate) fn refusal(&self, error: &ArchiveError) -> Refusal {
        match error {
            ArchiveError::Missing { from, to } => {
                let text = format!("the records from {from} to {to} are missing in this replica's archive");
                Refusal::new(RefusalCode::ResumeTokenCompacted, text).with("oldest_log_index", to.next())
            }
            ArchiveError::BelowFloor { floor } => {
                Refusal::new(RefusalCode::ResumeTokenCompacted, error.to_string())
                    .with("oldest_log_index", floor.through.next())
                    .with("offloaded_to", &floor.place)
            }
            ArchiveError::GivenUp => {
                let text = "the state of the past was not made: nobody waited for it; ask again";
                Refusal::new(RefusalCode::ArchiveUnavailable, text)
            }
            error => {
                tracing::error!(error = error as &dyn std::error::Error, "the archive cannot be read");
                let text = format!("the archive of this replica cannot be read: {error}");
                Refusal::new(RefusalCode::ArchiveUnavailable, text)
            }
        }
    }
}

pub(crate) fn not_yet() -> Refusal {
    Refusal::new(
        RefusalCode::ClusterNotReady,
        "this replica has just started; its history is not at hand yet",
    )
}

/// The place right behind a Raft entry at which a state stands.
pub(super) fn place_of(raft_index: u64, state: &State) -> RaftPosition {
    RaftPosition {
        next_raft: raft_index.saturating_add(1),
        sequence: state.sequence(),
        generation: generation_of(state),
    }
}

pub(crate) fn generation_of(state: &State) -> u32 {
    state.cluster().map_or(0, |cluster| cluster.generation)
}

/// An entry as the archive keeps it; none for one of the protocol's own.
#[must_use]
pub fn round(entry: CommittedEntry) -> Option<ArchivedRound> {
    let CommittedEntry { raft_index, term, leader, payload } = entry;
    Some(ArchivedRound { raft_index, term, leader, payload: payload? })
}

async fn advance(mut mark: Mark, entries: Vec<CommittedEntry>) -> Result<Mark, ArchiveError> {
    let bytes: usize = entries.iter().map(|e| e.payload.as_ref().map_or(0, |p| p.len())).sum();
    let step = move || {
        for entry in entries {
            let next_raft = entry.raft_index.saturating_add(1);
            if let Some(round) = round(entry) {
                mark.bytes += round.payload.len() as u64;
                mark.place.step(&round)?;
            }
            mark.place.next_raft = next_raft;
        }
        mark.noted_at = Instant::now();
        Ok(mark)
    };
    if bytes <= DECODE_HERE_BYTES {
        return step();
    }
    let stepped = tokio::task::spawn_blocking(step).await;
    stepped.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}
